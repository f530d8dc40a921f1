"""Noisy counts as data: rows of ``margins.parquet``, and the law of their noise in ``privacy.json``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.column import Column
from pdips.data.totals import KnownTable
from pdips.privacy.noise import discrete_laplace_variance
from pdips.privacy.plan import Step

MOST_NUMBERS = 2_000_000  # Releases of more noisy counts don't publish them


@dataclass(frozen=True, kw_only=True)
class MarginError:
    """The standard error, in records, that the noise gives to one cell of a margin of these columns. Public."""

    columns: tuple[str, ...]
    standard_error: float


@dataclass(frozen=True, kw_only=True)
class MarginAxis:
    """An axis of a margin: ``size`` positions, which are the levels of a column or groups of them.

    Several ``columns`` are those that structural zeros tie together; ``codes`` then has the combination at each
    position, numbered with the last column's level running fastest. Of intervals, ``first`` has the first level of
    each, or ``lower`` the lower bound of each where a numeric column has no bins; missing values come last. Of groups
    of levels, ``groups`` has the position of each level of the schema, and of missing values.
    """

    columns: tuple[str, ...]
    size: int
    codes: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    lower: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MarginLaw:
    """What the rows of one margin are, and the noise on each count: independent, of mean 0. Public.

    There are no ``axes`` for the number of records. Noise is discrete; an "estimate" is no measurement, but worked out
    from other files with an error of about this ``variance``. The ``scale`` of Gaussian noise is sigma. ``rows`` is how
    many numbers ``margins.parquet`` has of it. With ``differences`` these are differences of neighbouring positions
    along each axis, the higher less the lower.
    """

    axes: tuple[MarginAxis, ...]
    law: Literal["laplace", "gaussian", "estimate"]
    scale: float
    variance: float
    rows: int
    differences: bool = False


@dataclass(frozen=True, eq=False)
class MeasuredMargin:
    """Noisy counts of a margin, or of some of its cells.

    ``noisy``, shape (numbers,), is in records; ``cells``, of the same shape, has the number of each cell, the position
    on the last axis running fastest.
    """

    law: MarginLaw
    noisy: IntArray
    cells: IntArray

    @classmethod
    def of(
        cls, step: Step, axes: Sequence[MarginAxis], noisy: IntArray, cells: IntArray | None = None
    ) -> "MeasuredMargin":
        """Return counts with the noise of a step; without ``cells``, those of all cells."""
        laplace = step.law == "laplace"
        law = MarginLaw(
            axes=tuple(axes),
            law="laplace" if laplace else "gaussian",
            scale=float(step.scale) if laplace else math.sqrt(step.variance),
            variance=step.standard_deviation**2,
            rows=len(noisy),
        )
        return cls(law, noisy, np.arange(len(noisy)) if cells is None else cells)

    def whole(self) -> FloatArray | None:
        """Return the counts with an axis for each of the margin's, or None where some weren't counted."""
        shape = tuple(axis.size - self.law.differences for axis in self.law.axes)
        if not np.array_equal(self.cells, np.arange(math.prod(shape))):
            return None
        return self.noisy.reshape(shape).astype(float)


def residual(differences: FloatArray, n_axes: int | None = None) -> FloatArray:
    """Return the centred table that has these differences along each of its axes, or of the last ``n_axes``."""
    found = differences
    for axis in range(-(found.ndim if n_axes is None else n_axes), 0):
        found = np.cumsum(np.insert(found, 0, 0.0, axis=axis), axis=axis)
    return centred(found, n_axes)


def centred(table: FloatArray, n_axes: int | None = None) -> FloatArray:
    """Return a table less its means along each axis, or each of the last: what it says beyond its margins."""
    for axis in range(-(table.ndim if n_axes is None else n_axes), 0):
        table = table - table.mean(axis=axis, keepdims=True)
    return table


def axes_of(names: Sequence[str], sizes: Sequence[int] | IntArray) -> list[MarginAxis]:
    return [MarginAxis(columns=(name,), size=int(size)) for name, size in zip(names, sizes, strict=True)]


def known_margin(table: KnownTable) -> MeasuredMargin:
    """Return the counts of a public total as if they were measured, next to exactly."""
    axes, counts = axes_of(table.columns, table.shares.shape), np.round(table.shares.ravel() * table.n_records)
    law = MarginLaw(axes=tuple(axes), law="gaussian", scale=1e-3, variance=1e-6, rows=len(counts))
    return MeasuredMargin(law, counts.astype(np.int64), np.arange(len(counts)))


def with_groups(
    margins: Sequence[MeasuredMargin], columns: Mapping[str, Column]
) -> tuple[list[MeasuredMargin], dict[str, Column]]:
    """Return margins in which groups of the levels of ``NAME`` are a column ``NAME_groups``, and all columns."""
    found, renamed = dict(columns), list[MeasuredMargin]()
    for each in margins:
        axes = list(each.law.axes)
        for k, axis in enumerate(axes):
            if axis.groups:
                name, column = f"{axis.columns[0]}_groups", columns[axis.columns[0]]
                found[name] = Column(levels=column.grouped()[0], missing=bool(column.missing))
                axes[k] = replace(axis, columns=(name,), groups=())
        renamed.append(replace(each, law=replace(each.law, axes=tuple(axes))))
    return renamed, found


def with_product(
    margins: Sequence[MeasuredMargin], columns: Mapping[str, Column], group: Sequence[str]
) -> tuple[list[MeasuredMargin], dict[str, Column], str]:
    """Return margins in which some columns are one, of all combinations of their levels; all columns; and its name.

    Margins with some of the columns only are left unchanged and are not used.
    """
    name, found = ":".join(group), list[MeasuredMargin]()
    levels = [", ".join(each) for each in product(*(columns[one].names() for one in group))]
    for each in margins:
        table, axes = each.whole(), each.law.axes
        at = [k for one in group for k, axis in enumerate(axes) if axis.columns == (one,) and not axis.first]
        if table is not None and len(at) == len(group) and not each.law.differences:
            rest = [k for k in range(len(axes)) if k not in at]
            merged = (MarginAxis(columns=(name,), size=len(levels)), *(axes[k] for k in rest))
            counts = table.transpose([*at, *rest]).ravel().astype(np.int64)
            each = MeasuredMargin(replace(each.law, axes=merged), counts, each.cells)
        found.append(each)
    kept = {one: column for one, column in columns.items() if one not in group}
    return found, {**kept, name: Column(levels=levels)}, name


def stacked(margins: Sequence[MeasuredMargin]) -> pd.DataFrame:
    """Return the rows of ``margins.parquet``: ``margin`` numbers the entries of ``margins`` in ``privacy.json``."""
    parts = [{"margin": k, "cell": each.cells, "noisy": each.noisy} for k, each in enumerate(margins)]
    return pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True).astype(np.int64)


def unstacked(laws: Sequence[MarginLaw], rows: pd.DataFrame) -> list[MeasuredMargin]:
    """Return the margins of a file: what :func:`stacked` takes."""
    margin, cell, noisy = (rows[name].to_numpy(dtype=np.int64) for name in ("margin", "cell", "noisy"))
    ends = np.searchsorted(margin, np.arange(len(laws) + 1))
    if np.any(np.diff(margin) < 0) or np.diff(ends).tolist() != [law.rows for law in laws] or ends[-1] < len(rows):
        raise ValueError("rows aren't those of these margins")
    found = [MeasuredMargin(law, noisy[a:b], cell[a:b]) for law, a, b in zip(laws, ends[:-1], ends[1:], strict=True)]
    for each in found:
        n_cells = math.prod(axis.size - each.law.differences for axis in each.law.axes)
        if len(each.cells) and (np.any(np.diff(each.cells) <= 0) or each.cells[0] < 0 or each.cells[-1] >= n_cells):
            raise ValueError("cells aren't those of a margin")
    return found


def noise_variance(law: str, scale: float) -> float:
    """Return the variance that goes with a scale; that of Gaussian noise is its square."""
    return scale**2 if law == "gaussian" else discrete_laplace_variance(Fraction(scale))
