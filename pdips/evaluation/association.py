"""Chi-square tests of association on all pairs of columns, synthetic against confidential. For inside use only."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray, IntArray
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.codes import coded_columns, codes_of, resampled, sizes_of, table_codes

LEVELS = (0.01, 0.05, 0.10)
CATEGORIES = ("<= 0.01", "0.01 - 0.05", "0.05 - 0.1", "> 0.1")


@dataclass(frozen=True, kw_only=True, eq=False)
class Association:
    """Conclusions of chi-square tests on the table and on the synthetic sets.

    Attributes
    ----------
    pairs : list of tuple of str
        Every two columns.
    p_original, p_synthetic : ndarray of float64, shape (pairs,)
        p-values on the table, and combined over the synthetic sets.
    consistency : dict of float to float
        By level of significance, the share of pairs on which table and sets conclude alike.
    crosstab : DataFrame, 4 by 4
        Number of pairs by category of the original (rows) and of the synthetic p-value (columns).
    reference : dict of float to float
        ``consistency`` of a single set drawn with replacement from the table itself.
    """

    pairs: list[tuple[str, str]]
    p_original: FloatArray
    p_synthetic: FloatArray
    consistency: dict[float, float]
    crosstab: pd.DataFrame
    reference: dict[float, float]


def chi_square(table: Table, sets: Sequence[pd.DataFrame], *, rng: np.random.Generator | None = None) -> Association:
    """Compare the conclusions of Pearson's chi-square test on every pair of columns.

    Parameters
    ----------
    table : Table
        The confidential table; binned numeric columns count as categories of their bins.
    sets : sequence of DataFrame
        Synthetic sets of the same schema.
    rng : numpy.random.Generator, optional
        For the resample that gives the reference.

    Returns
    -------
    Association
        p-values, agreement and cross-tabulation.

    Raises
    ------
    InputError
        If there is no set.

    Notes
    -----
    No correction for continuity nor for the number of tests, as in section 4.3 of paper 000 (Bowen, Liu and Su 2021).
    A test leaves out levels that its own table doesn't have, and its degrees of freedom are those of what is left; with
    none left (a column with one level only, or no records) the statistic is 0 and the p-value 1.

    :func:`combine_chi_square` wants one number of degrees of freedom: it is the largest among the sets. A set that
    lacks levels enters with the statistic that has the same p-value at that number (its own statistic, where the
    p-value is below what a double can hold). With one set the p-value is its own.
    """
    if not len(sets):
        raise InputError("a measure of utility needs at least one synthetic set")
    names, sizes = coded_columns(table.schema), sizes_of(table.schema)
    original = table_codes(table)
    p_original = _p_values([original], sizes)
    p_synthetic = _p_values([codes_of(frame, table.schema) for frame in sets], sizes)
    p_resample = _p_values([resampled(original, rng)], sizes)
    return Association(
        pairs=list(combinations(names, 2)),
        p_original=p_original,
        p_synthetic=p_synthetic,
        consistency=_consistency(p_original, p_synthetic),
        crosstab=_crosstab(p_original, p_synthetic),
        reference=_consistency(p_original, p_resample),
    )


def combine_chi_square(statistics: ArrayLike, df: int) -> float:
    """Combine chi-square statistics of several sets into one p-value.

    Parameters
    ----------
    statistics : array_like, shape (sets,)
        Chi-square statistics ``d`` of the same hypothesis.
    df : int
        Their degrees of freedom ``k``.

    Returns
    -------
    float
        p-value; with one set, that of its statistic.

    Raises
    ------
    InputError
        If there are no statistics, one is negative or not finite, or ``df`` is below 1.

    Notes
    -----
    Li, Meng, Raghunathan and Rubin (1991), *Significance levels from repeated p-values with multiply-imputed data*,
    Statistica Sinica 1, 65-92: with ``r = (1 + 1/m) var(sqrt d)``, variance with m - 1 below,

        D = (mean(d) / k - (m + 1) / (m - 1) r) / (1 + r),

    referred to the F distribution with ``k`` and ``k^(-3/m) (m - 1) (1 + 1/r)^2`` degrees of freedom (to chi-square for
    ``r = 0``). It was made for imputed data; paper 000 uses it for synthetic sets. Where sets disagree, as under much
    noise, it is conservative: D may even be negative, and the p-value is then 1.
    """
    from scipy.special import chdtrc, fdtrc

    d = np.asarray(statistics, dtype=np.float64)
    if d.ndim != 1 or not len(d) or not np.isfinite(d).all() or (d < 0).any():
        raise InputError("statistics must be finite numbers, not negative, at least one")
    if df < 1:
        raise InputError("df must be at least 1")
    m = len(d)
    if m == 1:
        return float(chdtrc(df, d[0]))
    r = (1 + 1 / m) * float(np.sqrt(d).var(ddof=1))
    statistic = max(0.0, (float(d.mean()) / df - (m + 1) / (m - 1) * r) / (1 + r))
    if r < 1e-12:
        return float(chdtrc(df, df * statistic))
    return float(fdtrc(df, df ** (-3 / m) * (m - 1) * (1 + 1 / r) ** 2, statistic))


def pearson(counts: FloatArray) -> tuple[float, int]:
    """Return Pearson's chi-square statistic and degrees of freedom of a two-way table, empty levels left out."""
    rows, columns = counts.sum(axis=1), counts.sum(axis=0)
    df = max(0, int((rows > 0).sum()) - 1) * max(0, int((columns > 0).sum()) - 1)
    if not df:
        return 0.0, 0
    expected = np.outer(rows, columns) / counts.sum()
    filled = expected > 0
    return float(((counts - expected)[filled] ** 2 / expected[filled]).sum()), df


def _p_values(tables: Sequence[IntArray], sizes: Sequence[int]) -> FloatArray:
    """Return the p-value of each pair of columns, combined over tables."""
    pairs = combinations(range(len(sizes)), 2)
    return np.array([_combined([pearson(_counts(codes, i, j, sizes)) for codes in tables]) for i, j in pairs])


def _counts(codes: IntArray, i: int, j: int, sizes: Sequence[int]) -> FloatArray:
    cells = np.bincount(codes[:, i] * sizes[j] + codes[:, j], minlength=sizes[i] * sizes[j])
    return cells.reshape(sizes[i], sizes[j]).astype(np.float64)


def _combined(tests: Sequence[tuple[float, int]]) -> float:
    df = max(own for _, own in tests)
    return combine_chi_square([_at_df(statistic, own, df) for statistic, own in tests], df) if df else 1.0


def _at_df(statistic: float, own: int, df: int) -> float:
    """Return the statistic that has the same p-value at more degrees of freedom."""
    from scipy.special import chdtrc, chdtri

    if own in (0, df):
        return statistic
    p = float(chdtrc(own, statistic))
    return float(chdtri(df, p)) if p > 0 else statistic


def _consistency(a: FloatArray, b: FloatArray) -> dict[float, float]:
    return {level: float(np.mean((a <= level) == (b <= level))) if len(a) else float("nan") for level in LEVELS}


def _crosstab(original: FloatArray, synthetic: FloatArray) -> pd.DataFrame:
    counts = np.zeros((len(CATEGORIES), len(CATEGORIES)), dtype=np.int64)
    np.add.at(counts, (np.searchsorted(LEVELS, original), np.searchsorted(LEVELS, synthetic)), 1)
    index = pd.Index(CATEGORIES, name="original")
    return pd.DataFrame(counts, index=index, columns=pd.Index(CATEGORIES, name="synthetic"))
