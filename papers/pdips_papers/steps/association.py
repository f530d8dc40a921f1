"""Chi-square tests of every two columns, on the table and on synthetic sets. For inside
use only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import chdtrc, chdtri, fdtrc
from scipy.stats import chi2_contingency

from pdips.arrays import FloatArray, IntArray
from pdips.data.table import Table
from pdips.evaluation.encoding import coded_columns, codes_of, sizes_of, table_codes
from pdips.evaluation.margins import some

LEVELS = (0.01, 0.05, 0.10)  # Levels of significance
CATEGORIES = ("<= 0.01", "0.01 - 0.05", "0.05 - 0.1", "> 0.1")  # Of p-values


@dataclass(frozen=True, kw_only=True, eq=False)
class Association:
    """Conclusions of chi-square tests of every two columns on the table and, combined,
    on the synthetic sets.

    ``consistency`` is by level of significance the share of pairs on which both
    conclude alike; ``crosstab`` counts pairs by category of the original (rows) and of
    the synthetic p-value (columns).
    """

    pairs: list[tuple[str, str]]
    p_original: FloatArray
    p_synthetic: FloatArray
    consistency: dict[float, float]
    crosstab: pd.DataFrame


def chi_square(table: Table, sets: Sequence[pd.DataFrame]) -> Association:
    """Compare the conclusions of Pearson's chi-square test on every pair of columns.

    Bowen, Liu and Su (2021), section 4.3, without corrections. Binned columns count as
    categories of their bins. A test leaves out levels that its own table doesn't have;
    with no degrees of freedom left the p-value is 1. A set that lacks levels enters the
    combination with the statistic that has the same p-value at the largest number of
    degrees of freedom among the sets.
    """
    names = coded_columns(table.schema)
    sizes = sizes_of(table.schema)
    ours = _p_values([table_codes(table)], sizes)
    theirs = _p_values([codes_of(frame, table.schema) for frame in some(sets)], sizes)
    cells = np.searchsorted(LEVELS, ours), np.searchsorted(LEVELS, theirs)
    crosstab = np.zeros((len(CATEGORIES), len(CATEGORIES)), dtype=np.int64)
    np.add.at(crosstab, cells, 1)
    counts = pd.DataFrame(
        crosstab,
        pd.Index(CATEGORIES, name="original"),
        pd.Index(CATEGORIES, name="synthetic"),
    )
    return Association(
        pairs=list(combinations(names, 2)),
        p_original=ours,
        p_synthetic=theirs,
        consistency=_consistency(ours, theirs),
        crosstab=counts,
    )


def combine_chi_square(statistics: ArrayLike, df: int) -> float:
    """Combine chi-square statistics of one hypothesis, with ``df`` degrees of freedom,
    into one p-value.

    Li, Meng, Raghunathan and Rubin (1991), *Significance levels from repeated p-values
    with multiply-imputed data*, Statistica Sinica 1, 65-92: with ``r = (1 + 1/m)
    var(sqrt d)``, variance with m - 1 below,

        D = (mean(d) / k - (m + 1) / (m - 1) r) / (1 + r),

    referred to the F distribution with ``k`` and ``k^(-3/m) (m - 1) (1 + 1/r)^2``
    degrees of freedom (to chi-square for ``r = 0``). It was made for imputed data.
    Where sets disagree, as under much noise, it is conservative: D may even be
    negative, and the p-value is then 1. A single statistic keeps its own.
    """
    d = np.asarray(statistics, dtype=np.float64)
    m = len(d)
    if m == 1:
        return float(chdtrc(df, d[0]))
    r = (1 + 1 / m) * float(np.sqrt(d).var(ddof=1))
    excess = float(d.mean()) / df - (m + 1) / (m - 1) * r
    statistic = max(0.0, excess / (1 + r))
    if r < 1e-12:
        return float(chdtrc(df, df * statistic))
    second_df = df ** (-3 / m) * (m - 1) * (1 + 1 / r) ** 2
    return float(fdtrc(df, second_df, statistic))


def pearson(counts: FloatArray) -> tuple[float, int]:
    """Return Pearson's chi-square statistic and degrees of freedom of a two-way table,
    empty levels left out.
    """
    kept = counts[counts.any(axis=1)][:, counts.any(axis=0)]
    if min(kept.shape) < 2:
        return 0.0, 0
    test = chi2_contingency(kept, correction=False)
    return float(test.statistic), int(test.dof)


def _p_values(tables: Sequence[IntArray], sizes: Sequence[int]) -> FloatArray:
    """Return the p-value of each pair of columns, combined over tables."""
    p_values = []
    for i, j in combinations(range(len(sizes)), 2):
        tests = [pearson(_crossed(codes, i, j, sizes)) for codes in tables]
        df = max(own for _, own in tests)
        statistics = [_at_df(statistic, own, df) for statistic, own in tests]
        p_values.append(combine_chi_square(statistics, df) if df else 1.0)
    return np.array(p_values)


def _crossed(codes: IntArray, i: int, j: int, sizes: Sequence[int]) -> FloatArray:
    """Return the counts of two columns, shape (levels, levels)."""
    cells = codes[:, i] * sizes[j] + codes[:, j]
    counts = np.bincount(cells, minlength=sizes[i] * sizes[j])
    return counts.reshape(sizes[i], sizes[j]).astype(np.float64)


def _at_df(statistic: float, own: int, df: int) -> float:
    """Return the statistic that has the same p-value at more degrees of freedom."""
    if own in (0, df):
        return statistic
    p = float(chdtrc(own, statistic))
    return float(chdtri(df, p)) if p > 0 else statistic


def _consistency(a: FloatArray, b: FloatArray) -> dict[float, float]:
    if not len(a):
        return dict.fromkeys(LEVELS, float("nan"))
    return {level: float(np.mean((a <= level) == (b <= level))) for level in LEVELS}
