"""Two tables side by side, without a schema: numeric columns as numbers, all others as levels. For inside use only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError

Records = pd.DataFrame | NDArray[Any]

MISSING = "missing"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Pair:
    """One column in the original and in the synthetic table.

    Attributes
    ----------
    name : str
        Of the column.
    original, synthetic : ndarray of float64, shape (records,)
        Numbers, NaN where missing; for a column of levels the number of the level.
    levels : tuple of str, or None
        Levels of a column that isn't numeric, sorted, those of both tables, and ``"missing"`` last where a table has
        missing values; None for a numeric column.
    """

    name: str
    original: FloatArray
    synthetic: FloatArray
    levels: tuple[str, ...] | None

    @property
    def pooled(self) -> FloatArray:
        """Original values, then synthetic ones."""
        return np.concatenate([self.original, self.synthetic])


def paired(original: Records, synthetic: Records, columns: Sequence[str] | None = None) -> list[Pair]:
    """Lay two tables side by side, column by column.

    Parameters
    ----------
    original, synthetic : DataFrame or array_like, shape (records, columns)
        Columns of a frame are matched by name; those of an array are called ``"x1"``, ``"x2"``, ... or, if the other
        table is a frame, as there. Columns of numbers (Booleans too) are numeric, all others have levels.
    columns : sequence of str, optional
        Which columns, in which order; default: all, as in the original.

    Returns
    -------
    list of Pair
        One a column.

    Raises
    ------
    InputError
        If a table has no record, columns differ, or a numeric column holds an infinite value.
    """
    a, b = _framed(original, synthetic)
    for frame, which in ((a, "original"), (b, "synthetic")):
        if not len(frame):
            raise InputError(f"the {which} table must have at least one record")
        if not frame.columns.is_unique:
            raise InputError(f"the {which} table must name each column once")
    chosen = [str(name) for name in a.columns] if columns is None else list(columns)
    if not chosen:
        raise InputError("a comparison needs at least one column")
    for frame, which in ((a, "original"), (b, "synthetic")):
        absent = [name for name in chosen if name not in frame.columns]
        if absent:
            raise InputError(f"column {absent[0]!r} is not in the {which} table; both must have it")
    if columns is None and len(b.columns) > len(a.columns):
        extra = next(name for name in b.columns if name not in a.columns)
        raise InputError(f"column {extra!r} is not in the original table; drop it, or name the columns to compare")
    return [_pair(name, a[name], b[name]) for name in chosen]


def indicators(pair: Pair) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return a column as numbers for a model: original and synthetic part by the number's name.

    A column of levels gives an indicator for each level but the first. A numeric one is itself; if values are missing,
    they are filled with the mean of the others, and an indicator ``"name=missing"`` is added.
    """
    both = (pair.original, pair.synthetic)
    if pair.levels is not None:
        return {
            f"{pair.name}={level}": ((both[0] == code) * 1.0, (both[1] == code) * 1.0)
            for code, level in enumerate(pair.levels)
            if code > 0
        }
    absent = np.isnan(pair.pooled)
    if not absent.any():
        return {pair.name: both}
    mean = 0.0 if absent.all() else float(pair.pooled[~absent].mean())
    filled = tuple(np.where(np.isnan(values), mean, values) for values in both)
    return {
        pair.name: (filled[0], filled[1]),
        f"{pair.name}={MISSING}": (np.isnan(both[0]) * 1.0, np.isnan(both[1]) * 1.0),
    }


def complete(pair: Pair, measure: str) -> Pair:
    """Return a numeric column that has no missing values.

    Raises
    ------
    InputError
        If it has levels or missing values.
    """
    if pair.levels is not None:
        raise InputError(f"column {pair.name!r} must be numeric for {measure}; leave it out")
    if np.isnan(pair.pooled).any():
        raise InputError(f"column {pair.name!r} must have no missing values for {measure}; drop or fill them")
    return pair


def reference(
    measure: Callable[[Records, Records], float],
    original: Records,
    *,
    n_draws: int = 10,
    rng: np.random.Generator | None = None,
) -> float:
    """Return what a measure gives for resamples of the original: about as good as synthesis can get.

    Parameters
    ----------
    measure : callable
        Called with the original and a resample of it, gives a number: ``pmse``, or
        ``lambda a, b: k_marginal(a, b).score``.
    original : DataFrame or array_like, shape (records, columns)
        The confidential table.
    n_draws : int
        Resamples to average over, each as large as the original and drawn from it with replacement.
    rng : numpy.random.Generator, optional
        For the resamples.

    Returns
    -------
    float
        Mean of the measure.

    Raises
    ------
    InputError
        If the original has no record, or ``n_draws`` is below 1.
    """
    if n_draws < 1:
        raise InputError("n_draws must be at least 1")
    if not len(original):
        raise InputError("the original table must have at least one record")
    rng = np.random.default_rng() if rng is None else rng
    n = len(original)
    rows = [rng.integers(n, size=n) for _ in range(n_draws)]
    return float(np.mean([measure(original, _taken(original, row)) for row in rows]))


def _taken(table: Records, rows: IntArray) -> Records:
    return table.iloc[rows] if isinstance(table, pd.DataFrame) else np.asarray(table)[rows]


def _framed(original: Records, synthetic: Records) -> tuple[pd.DataFrame, pd.DataFrame]:
    names = next((list(t.columns) for t in (original, synthetic) if isinstance(t, pd.DataFrame)), None)
    frames = [_frame(table, names) for table in (original, synthetic)]
    return frames[0].rename(columns=str), frames[1].rename(columns=str)


def _frame(table: Records, names: list[Any] | None) -> pd.DataFrame:
    if isinstance(table, pd.DataFrame):
        return table
    values = np.asarray(table)
    if values.ndim not in (1, 2):
        raise InputError("a table must be a frame or an array of records by columns")
    values = values.reshape(len(values), -1) if len(values) else values.reshape(0, values.shape[-1])
    if names is not None and len(names) != values.shape[1]:
        raise InputError("both tables must have the same number of columns")
    return pd.DataFrame(values, columns=names or [f"x{j + 1}" for j in range(values.shape[1])])


def _pair(name: str, original: "pd.Series[Any]", synthetic: "pd.Series[Any]") -> Pair:
    numeric = [pd.api.types.is_numeric_dtype(part.dtype) for part in (original, synthetic)]
    if all(numeric):
        a, b = (part.to_numpy(dtype=np.float64, na_value=np.nan) for part in (original, synthetic))
        if np.isinf(a).any() or np.isinf(b).any():
            raise InputError(f"column {name!r} must hold finite numbers")
        return Pair(name=name, original=a, synthetic=b, levels=None)
    if any(numeric):
        raise InputError(f"column {name!r} must be numeric in both tables or in neither")
    both = pd.concat([part.astype(object) for part in (original, synthetic)])
    both = both.map(str, na_action="ignore")
    codes, levels = pd.factorize(both, sort=True)
    named = tuple(str(level) for level in levels)
    if (codes < 0).any():
        codes, named = np.where(codes < 0, len(named), codes), (*named, MISSING)
    values = codes.astype(np.float64)
    return Pair(name=name, original=values[: len(original)], synthetic=values[len(original) :], levels=named)
