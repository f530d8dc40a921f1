"""The rows of the study ``heavy-tailed``: what it draws, how each row synthesizes it,
and what is measured of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.optimize import linprog

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.evaluation.propensity import pmse
from pdips.mechanism import Mechanism
from pdips.privacy.loss import exact
from pdips.privacy.noise import RandomBits
from pdips.quantile.kng import QUANTILES
from pdips.registry import find
from pdips_papers.harness.marginal_score import mean_k_marginal
from pdips_papers.harness.prediction import (
    normalised_rmse,
    standardised_differences,
)
from pdips_papers.harness.printed import data, figures, mechanism
from pdips_papers.harness.wasserstein import wasserstein_randomization
from pdips_papers.kng.as_printed import true_epsilon
from pdips_papers.kng.as_run import CAPS, MEDIAN, N_STEPS, WALKS, Column, corners
from pdips_papers.kng.pmse_as_printed import published
from pdips_papers.kng.pmse_mechanism import pmse_mechanism

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

GENERAL = MEASURES[:4]
SPECIFIC = MEASURES[4:]
LARGER_IS_BETTER = ("KM",)

PRINTED = figures("heavy-tailed", "means")
"""Means of 100 replicates, by row of tables 1 and 2, in the order of
:data:`MEASURES`.
"""

ERRORS = figures("heavy-tailed", "errors")
"""Their printed standard errors."""

TARGETS: dict[str, float] = dict(
    zip(MEASURES, (0.0015, 0.0025, 4.0, 900, 8, 1.8, 0.321, 0.198), strict=True)
)
"""What the recommended mechanism is to reach at a true epsilon of 1: at most this, for
KM at least.
"""

PREDICTORS = {"x1": 0, "x2": 1, "x3": 2}
"""How many each column has, in order."""

BUDGET = {"x1": Fraction(1, 2), "x2": Fraction(1, 4), "x3": Fraction(1, 4)}
"""Shares of epsilon in the paper."""


def spent(mechanism: Any) -> float:
    """Return what the published variant of a mechanism spends on the paper's three
    columns.

    The sum over columns and quantiles of the epsilon that each line claims, times
    Delta_R / (2 (1 - tau) C_X) (``docs/proofs/kng.md``): what basic composition
    guarantees when lines are drawn exactly from the printed density on public
    candidates.
    """
    epsilon = exact(mechanism.epsilon, "epsilon")
    return math.fsum(
        true_epsilon(mechanism.quantile_plan, p, float(epsilon * BUDGET[name]))
        for name, p in PREDICTORS.items()
    )


UPPER = {"x1": 1_000, "x2": 1_000, "x3": 2_000}

SCHEMA = Schema.model_validate(
    {"columns": {name: {"lower": 0, "upper": upper} for name, upper in UPPER.items()}}
)
"""Public: the paper's bounds on outcomes. No value that can be drawn in practice is
beyond them; they are cut there.
"""

PREDICTOR_CAPS = {"x1": 46, "x2": 106}
TAUS = np.array([float(exact(tau, "quantiles")) for tau in QUANTILES])

CHANCES = np.diff(np.concatenate([[0.0], TAUS[:-1], [1.0]]))
"""How likely the authors' code draws each quantile: what lies between it and the one
below, all of the end above.
"""

MIDDLES = np.diff(np.concatenate([[0.0], (TAUS[1:] + TAUS[:-1]) / 2, [1.0]]))
"""How likely they are as the paper's text has it, each in the middle of its bin."""

Kind = Literal["reference", "published", "sound", "ours"]


def draw_population(n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return records of section 4.1: x1 ~ Exp(0.1), x2 = 4 + 3 x1 + Exp(0.1), x3 = 3 +
    2 x1 + x2 + Exp(0.1).
    """
    noise = 10 * rng.standard_exponential((3, n))
    x1 = noise[0]
    x2 = 4 + 3 * x1 + noise[1]
    x3 = 3 + 2 * x1 + x2 + noise[2]
    return pd.DataFrame({"x1": x1, "x2": x2, "x3": x3}).clip(
        lower=0, upper=pd.Series(UPPER), axis=1
    )


def quantile_lines(
    predictors: FloatArray, outcome: FloatArray, taus: Sequence[float]
) -> FloatArray:
    """Return the coefficients of linear quantile regressions without privacy, the
    intercept first; lines may cross.
    """
    if not predictors.shape[1]:
        return np.quantile(outcome, taus, method="inverted_cdf")[:, None]
    # the dual programme: as many constraints as coefficients, which are its multipliers
    design = np.column_stack([np.ones(len(outcome)), predictors])
    sums = design.sum(axis=0)
    found = [
        linprog(
            -outcome,
            A_eq=design.T,
            b_eq=(1 - tau) * sums,
            bounds=(0, 1),
            options={"presolve": False},
        )
        for tau in taus
    ]
    return -np.array([each.eqlin.marginals for each in found])


@dataclass(frozen=True)
class Case:
    """A replicate: the table to be synthesized, another from the same law to predict, a
    third to compare with.
    """

    training: pd.DataFrame
    testing: pd.DataFrame
    fresh: pd.DataFrame

    @classmethod
    def draw(cls, n: int, rng: np.random.Generator) -> "Case":
        """Draw n records of each."""
        return cls(*(draw_population(n, rng) for _ in range(3)))

    @cached_property
    def table(self) -> Table:
        """The training table with its public schema."""
        return Table(self.training, SCHEMA)

    @cached_property
    def estimates(self) -> dict[str, FloatArray]:
        """Quantile regressions of columns on those before them, without privacy; shape
        (quantiles, 1 + predictors).
        """
        values = self.training.to_numpy()
        return {
            name: quantile_lines(values[:, :p], values[:, p], TAUS.tolist())
            for name, p in PREDICTORS.items()
        }


Make = Callable[[Case, str, np.random.Generator], pd.DataFrame]


@dataclass(frozen=True, kw_only=True)
class Form:
    """A row of the tables: ``short`` names it in pictures, ``settings`` are those of
    ``kng`` if that makes it.
    """

    kind: Kind
    short: str
    make: Make
    settings: Mapping[str, Any] = field(default_factory=dict)

    def true_epsilon(self, epsilon: str) -> float | None:
        """Return what the row spends if it claims epsilon; None where no bound is
        known.
        """
        if self.kind == "published":
            return (
                spent(mechanism("kng", self.kind, epsilon=epsilon, **self.settings))
                if self.settings
                else None
            )
        return None if self.kind == "reference" else float(exact(epsilon, "epsilon"))


def _released(made: Mechanism, case: Case, rng: np.random.Generator) -> pd.DataFrame:
    return made.release(case.table, rng=rng)[0].sets[0]


def _kng(kind: Kind, short: str, **settings: Any) -> Form:
    settings |= {"caps": PREDICTOR_CAPS, "budget": BUDGET}
    if kind == "published":
        settings |= {"between": "quantile"}

    def make(case: Case, epsilon: str, rng: np.random.Generator) -> pd.DataFrame:
        return _released(mechanism("kng", kind, epsilon=epsilon, **settings), case, rng)

    return Form(kind=kind, short=short, make=make, settings=settings)


def _pmse(choose: Callable[..., FloatArray] | None = None) -> Make:
    def make(case: Case, epsilon: str, rng: np.random.Generator) -> pd.DataFrame:
        return pmse_mechanism(
            case.training, epsilon, choose=choose, bits=RandomBits(rng)
        )

    return make


def by_columns(
    draw_lines: Callable[..., FloatArray], chances: FloatArray = CHANCES
) -> Make:
    """Return what draws records column by column, each value from one of the column's
    lines.
    """

    def make(case: Case, epsilon: str, rng: np.random.Generator) -> pd.DataFrame:
        found = np.ones((len(case.training), 1))
        for name in case.training:
            lines = draw_lines(case, name, found, float(exact(epsilon, "epsilon")), rng)
            chosen = lines[rng.choice(len(TAUS), len(found), p=chances)]
            found = np.column_stack([found, (found * chosen).sum(axis=1)])
        return pd.DataFrame(found[:, 1:], columns=list(case.training))

    return make


def _estimates(case: Case, name: str, *_: Any) -> FloatArray:
    return case.estimates[name]


def as_run_lines(
    method: str,
    case: Case,
    name: str,
    found: FloatArray,
    epsilon: float,
    rng: np.random.Generator,
    n_steps: int = N_STEPS,
) -> tuple[FloatArray, FloatArray]:
    """Return the lines of a column as the authors' chains give them, of 1,000 steps or
    others, and the shares of proposals accepted.

    ``found`` has ones and the synthetic predictors, shape (records, 1 + predictors);
    rows ``KNG`` don't look at them.
    """
    outcome = case.training[name].to_numpy()
    predictors = case.training.to_numpy()[:, : PREDICTORS[name]]
    x = np.vstack([np.ones(len(outcome)), np.minimum(predictors, CAPS[name]).T])
    column = Column(
        x,
        outcome,
        CAPS[name],
        corners(found.T),
        UPPER[name],
        n_steps,
    )
    median = case.estimates[name][MEDIAN]
    share = epsilon * float(BUDGET[name])
    if method in WALKS:
        return column.lines(
            WALKS[method][PREDICTORS[name] > 0], median, TAUS, share, rng
        )
    return column.plain_lines(
        TAUS, share, rng, start=None if method == "KNG" else median
    )


FRESH = "Fresh sample"
NON_PRIVATE = "Non-private"
PMSE = "pMSE Mechanism"
RECOMMENDED = "kng-residual"
CENTRED = "Non-private, bins centred"

STARTED = "KNG, started at the median"
"""Ours: the chains of row KNG, begun where the extended methods' median begins."""

SETTINGS = data("settings.toml")["heavy-tailed"]
SCHEMES = SETTINGS["schemes"]

published_row = "{} (published)".format
as_run_row = "{} (as run)".format
sound_row = "{} (sound)".format
"""The rows of a paper's method as printed, by the authors' chains, and made sound."""


def _forms() -> dict[str, Form]:
    fresh = Form(
        kind="reference",
        short="fresh sample",
        make=lambda case, epsilon, rng: case.fresh,
    )
    forms = {
        FRESH: fresh,
        NON_PRIVATE: Form(
            kind="reference", short="non-private", make=by_columns(_estimates)
        ),
        CENTRED: Form(
            kind="reference",
            short="non-private, centred",
            make=by_columns(_estimates, MIDDLES),
        ),
    }
    words = {
        method: method.lower().replace(" - ", ", ").replace("kng", "KNG")
        for method in SCHEMES
    }
    for method, settings in SCHEMES.items():
        forms[published_row(method)] = _kng(
            "published", f"{words[method]}, publ.", **settings
        )
    for method in (*SCHEMES, STARTED):
        make = by_columns(lambda *each, method=method: as_run_lines(method, *each)[0])
        forms[as_run_row(method)] = Form(
            kind="published", short=f"{words.get(method, method)}, as run", make=make
        )
    forms[published_row(PMSE)] = Form(
        kind="published", short="pMSE mech., publ.", make=_pmse(published)
    )
    for method, settings in SCHEMES.items():
        forms[sound_row(method)] = _kng("sound", words[method], **settings)
    forms[sound_row(PMSE)] = Form(kind="sound", short="pMSE mech.", make=_pmse())
    return forms | {
        RECOMMENDED: Form(
            kind="ours",
            short="kng-residual",
            make=lambda case, epsilon, rng: _released(
                find("kng-residual")(epsilon=epsilon, caps=PREDICTOR_CAPS), case, rng
            ),
        )
    }


FORMS: dict[str, Form] = _forms()
"""All rows, in the order of the tables."""

N_RESPLITS = 500
"""The paper has 1,000; a replicate's ratio has a relative standard error of 3 % from
them, the mean of 100 of 0.3 %.
"""

BY_COLUMNS = "WRT by columns"
"""Beyond the paper: whole records change sides, and columns count alike."""

PLACES: Mapping[str, FloatArray] = {
    "x1": np.geomspace(0.1, 1_000, 41),
    "x2": np.geomspace(1, 1_000, 31),
    "x3": np.geomspace(1, 2_000, 34),
}
"""Where distribution functions are looked at."""


def measures(
    training: pd.DataFrame,
    testing: pd.DataFrame,
    synthetic: pd.DataFrame,
    rng: np.random.Generator,
    *,
    n_resplits: int = N_RESPLITS,
) -> dict[str, float]:
    """Return the measures of both tables by their names, and one beyond the paper."""
    pooled = wasserstein_randomization(
        training, synthetic, n_permutations=n_resplits, rng=rng
    )
    few = max(n_resplits // 10, 1)
    by_columns = wasserstein_randomization(
        training, synthetic, distance="columns", n_permutations=few, rng=rng
    )
    differences = standardised_differences(training, synthetic, "x2", ["x1"])
    values = [
        pmse(training, synthetic),
        pmse(training, synthetic, interactions=True),
        pooled.ratio,
        mean_k_marginal(training, synthetic),
        float(differences["intercept"]),
        float(differences["x1"]),
        normalised_rmse(synthetic, testing, "x2", ["x1"]),
        normalised_rmse(synthetic, testing, "x3", ["x1", "x2"]),
    ]
    return dict(zip(MEASURES, values, strict=True)) | {BY_COLUMNS: by_columns.ratio}


def place_name(column: str, number: int) -> str:
    """Return what the share of values up to a place is called among measurements."""
    return f"{column} up to {PLACES[column][number]:.4g}"


def distributions(frame: pd.DataFrame) -> dict[str, float]:
    """Return the distribution function of each column at :data:`PLACES`."""
    found: dict[str, float] = {}
    for column, places in PLACES.items():
        values = np.sort(frame[column].to_numpy(dtype=np.float64))
        shares = np.searchsorted(values, places, side="right") / len(values)
        found |= {
            place_name(column, number): float(share)
            for number, share in enumerate(shares)
        }
    return found
