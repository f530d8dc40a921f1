"""What paper 002 prints in tables 1 and 2, targets for our mechanism, and what published rows really cost."""

import math
from fractions import Fraction

from pdips.privacy.loss import exact
from pdips.quantile.kng import KNG
from pdips_papers.kng.as_printed import true_epsilon

MEASURES = (
    "pMSE WOI",
    "pMSE WI",
    "WRT",
    "KM",
    "Int diff",
    "Slope diff",
    "NRMSE X2",
    "NRMSE X3",
)
"""Columns: table 1, then table 2."""

GENERAL, SPECIFIC = MEASURES[:4], MEASURES[4:]
LARGER_IS_BETTER = ("KM",)

PRINTED: dict[str, tuple[float, ...]] = {
    "Non-private": (0.0003, 0.0004, 2.86, 952.34, 2.07, 0.86, 0.317, 0.193),
    "Stepwise - Fixed": (0.0146, 0.0167, 12.65, 743.62, 14.76, 1.83, 0.326, 0.201),
    "Stepwise - Varying": (0.0067, 0.0105, 12.36, 531.40, 15.15, 5.72, 0.325, 0.203),
    "Sandwich - Fixed": (0.0083, 0.0093, 5.15, 762.32, 12.20, 2.05, 0.321, 0.202),
    "Sandwich - Varying": (0.0077, 0.0084, 4.88, 743.99, 14.95, 6.29, 0.326, 0.207),
    "KNG": (0.1219, 0.1309, 42.18, 49.30, 70.22, 211.50, 1.705, 1.601),
    "pMSE Mechanism": (0.0374, 0.0601, 12.94, 742.81, 28.53, 36.40, 0.390, 0.265),
}
"""Means of 100 replicates, by row of tables 1 and 2, in the order of :data:`MEASURES`."""

ERRORS: dict[str, tuple[float, ...]] = {
    "Non-private": (0.00001, 0.00001, 0.07, 0.67, 0.10, 0.06, 0.001, 0.001),
    "Stepwise - Fixed": (0.0004, 0.0004, 0.23, 3.29, 0.23, 0.14, 0.001, 0.001),
    "Stepwise - Varying": (0.0003, 0.0003, 0.22, 4.76, 0.12, 0.44, 0.001, 0.001),
    "Sandwich - Fixed": (0.0004, 0.0004, 0.12, 2.70, 0.26, 0.16, 0.001, 0.001),
    "Sandwich - Varying": (0.0004, 0.0004, 0.11, 4.95, 0.10, 0.44, 0.001, 0.002),
    "KNG": (0.0018, 0.0024, 0.52, 1.83, 0.39, 1.85, 0.011, 0.036),
    "pMSE Mechanism": (0.0031, 0.0030, 0.85, 6.66, 1.47, 2.55, 0.007, 0.006),
}
"""Their printed standard errors."""

TARGETS: dict[str, float] = dict(zip(MEASURES, (0.0015, 0.0025, 4.0, 900, 8, 1.8, 0.321, 0.198), strict=True))
"""What the recommended mechanism is to reach at a true epsilon of 1: at most this, for KM at least."""

PREDICTORS = {"x1": 0, "x2": 1, "x3": 2}
"""How many each column has, in order."""

BUDGET = {"x1": Fraction(1, 2), "x2": Fraction(1, 4), "x3": Fraction(1, 4)}
"""Shares of epsilon in the paper."""


def spent(mechanism: KNG) -> float:
    """Return what the published variant of a mechanism spends on the paper's three columns.

    The sum over columns and quantiles of the epsilon that each line claims, times Delta_R / (2 (1 - tau) C_X)
    (``docs/proofs/kng.md``, section 6): what basic composition guarantees when lines are drawn exactly from the printed
    density on public candidates.
    """
    epsilon = exact(mechanism.epsilon, "epsilon")
    return math.fsum(
        true_epsilon(mechanism.quantile_plan, p, float(epsilon * BUDGET[name])) for name, p in PREDICTORS.items()
    )
