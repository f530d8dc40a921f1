"""The measures of paper 002's tables 1 and 2 on one synthetic set, and where its values lie."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.evaluation.distribution import wasserstein_randomization
from pdips.evaluation.margins import k_marginal
from pdips.evaluation.propensity import pmse
from pdips.evaluation.regression import normalised_rmse, standardised_differences
from pdips_papers.kng.heavy_paper import MEASURES

N_RESPLITS = 500
"""The paper has 1,000; a replicate's ratio has a relative standard error of 3 % from them, the mean of 100 of 0.3 %."""

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
    """Return the measures of both tables by their names, and one beyond the paper.

    Parameters
    ----------
    training, testing, synthetic : DataFrame
        Columns x1, x2, x3. All measures compare with the training table but NRMSE, which predicts the testing table.
    rng : numpy.random.Generator
        For re-splits.
    n_resplits : int
        Of the paper's Wasserstein test; a tenth of them by columns.
    """
    pooled = wasserstein_randomization(training, synthetic, n_permutations=n_resplits, rng=rng)
    few = max(n_resplits // 10, 1)
    by_columns = wasserstein_randomization(training, synthetic, distance="columns", n_permutations=few, rng=rng)
    differences = standardised_differences(training, synthetic, "x2", ["x1"])
    values = (
        pmse(training, synthetic),
        pmse(training, synthetic, interactions=True),
        pooled.ratio,
        k_marginal(training, synthetic).score,
        float(differences["intercept"]),
        float(differences["x1"]),
        normalised_rmse(synthetic, testing, "x2", ["x1"]),
        normalised_rmse(synthetic, testing, "x3", ["x1", "x2"]),
    )
    return dict(zip(MEASURES, values, strict=True)) | {BY_COLUMNS: by_columns.ratio}


def place_name(column: str, number: int) -> str:
    """Return what the share of values up to a place is called among measurements."""
    return f"{column} up to {PLACES[column][number]:.4g}"


def is_place(names: "pd.Series[str]") -> "pd.Series[bool]":
    """Return which measurements are shares of values up to a place."""
    return names.str.partition(" up to ")[0].isin(PLACES)


def distributions(frame: pd.DataFrame) -> dict[str, float]:
    """Return the distribution function of each column at :data:`PLACES`."""
    found: dict[str, float] = {}
    for column, places in PLACES.items():
        values = np.sort(frame[column].to_numpy(dtype=np.float64))
        shares = np.searchsorted(values, places, side="right") / len(values)
        found |= {place_name(column, number): float(share) for number, share in enumerate(shares)}
    return found
