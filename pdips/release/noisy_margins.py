"""Noisy counts as data: rows of ``margins.parquet``, and the law of their noise in
``privacy.json``.
"""

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
    """The standard error, in records, that the noise gives to one cell of a margin of
    these columns. Public.
    """

    columns: tuple[str, ...]
    standard_error: float


@dataclass(frozen=True, kw_only=True)
class MarginAxis:
    """An axis of a margin: ``size`` positions, which are the levels of a column or
    groups of them.

    Several ``columns`` are those that structural zeros tie together; ``codes`` then has
    the combination at each position, numbered with the last column's level running
    fastest. Of intervals, ``first`` has the first level of each, or ``lower`` the lower
    bound of each where a numeric column has no bins; missing values come last. Of
    groups of levels, ``groups`` has the position of each level of the schema, and of
    missing values.
    """

    columns: tuple[str, ...]
    size: int
    codes: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    lower: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MarginLaw:
    """What the rows of one margin are, and the noise on each count: independent, of
    mean 0. Public.

    There are no ``axes`` for the number of records. Noise is discrete; an "estimate" is
    no measurement, but worked out from other files with an error of about this
    ``variance``. The ``scale`` of Gaussian noise is sigma. ``rows`` is how many numbers
    ``margins.parquet`` has of it. With ``differences`` these are differences of
    neighbouring positions along each axis, the higher less the lower.
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

    ``noisy``, shape (numbers,), is in records; ``cells``, of the same shape, has the
    number of each cell, the position on the last axis running fastest.
    """

    law: MarginLaw
    noisy: IntArray
    cells: IntArray

    @classmethod
    def of(
        cls,
        step: Step,
        axes: Sequence[MarginAxis],
        noisy: IntArray,
        cells: IntArray | None = None,
    ) -> "MeasuredMargin":
        """Return counts with the noise of a step; without ``cells``, those of all
        cells.
        """
        is_laplace = step.law == "laplace"
        scale = float(step.scale) if is_laplace else math.sqrt(step.variance)
        law = MarginLaw(
            axes=tuple(axes),
            law="laplace" if is_laplace else "gaussian",
            scale=scale,
            variance=step.standard_deviation**2,
            rows=len(noisy),
        )
        if cells is None:
            cells = np.arange(len(noisy))
        return cls(law, noisy, cells)

    def whole(self) -> FloatArray | None:
        """Return the counts with an axis for each of the margin's, or None where some
        weren't counted.
        """
        shape = tuple(axis.size - self.law.differences for axis in self.law.axes)
        if not np.array_equal(self.cells, np.arange(math.prod(shape))):
            return None
        return self.noisy.reshape(shape).astype(float)


def residual(differences: FloatArray, n_axes: int | None = None) -> FloatArray:
    """Return the centred table that has these differences along each of its axes, or of
    the last ``n_axes``.
    """
    table = differences
    if n_axes is None:
        n_axes = table.ndim
    for axis in range(-n_axes, 0):
        from_zero = np.insert(table, 0, 0.0, axis=axis)
        table = np.cumsum(from_zero, axis=axis)
    return centred(table, n_axes)


def centred(table: FloatArray, n_axes: int | None = None) -> FloatArray:
    """Return a table less its means along each axis, or each of the last: what it says
    beyond its margins.
    """
    if n_axes is None:
        n_axes = table.ndim
    for axis in range(-n_axes, 0):
        table = table - table.mean(axis=axis, keepdims=True)
    return table


def axes_of(names: Sequence[str], sizes: Sequence[int] | IntArray) -> list[MarginAxis]:
    return [
        MarginAxis(columns=(name,), size=int(size))
        for name, size in zip(names, sizes, strict=True)
    ]


def known_margin(table: KnownTable) -> MeasuredMargin:
    """Return the counts of a public total as if they were measured, next to exactly."""
    axes = axes_of(table.columns, table.shares.shape)
    counts = np.round(table.shares.ravel() * table.n_records)
    law = MarginLaw(
        axes=tuple(axes), law="gaussian", scale=1e-3, variance=1e-6, rows=len(counts)
    )
    return MeasuredMargin(law, counts.astype(np.int64), np.arange(len(counts)))


def with_groups(
    margins: Sequence[MeasuredMargin], columns: Mapping[str, Column]
) -> tuple[list[MeasuredMargin], dict[str, Column]]:
    """Return margins in which groups of the levels of ``NAME`` are a column
    ``NAME_groups``, and all columns.
    """
    all_columns = dict(columns)
    renamed = []
    for margin in margins:
        axes = []
        for axis in margin.law.axes:
            if axis.groups:
                column = columns[axis.columns[0]]
                name = f"{axis.columns[0]}_groups"
                groups = column.grouped()[0]
                all_columns[name] = Column(levels=groups, missing=bool(column.missing))
                axis = replace(axis, columns=(name,), groups=())
            axes.append(axis)
        law = replace(margin.law, axes=tuple(axes))
        renamed.append(replace(margin, law=law))
    return renamed, all_columns


def with_product(
    margins: Sequence[MeasuredMargin],
    columns: Mapping[str, Column],
    group: Sequence[str],
) -> tuple[list[MeasuredMargin], dict[str, Column], str]:
    """Return margins in which some columns are one, of all combinations of their
    levels; all columns; and its name.

    Margins with some of the columns only are left unchanged and are not used.
    """
    name = ":".join(group)
    levels = []
    for combination in product(*(columns[column].names() for column in group)):
        levels.append(", ".join(combination))
    axis = MarginAxis(columns=(name,), size=len(levels))
    merged = [_merged(margin, axis, group) for margin in margins]
    kept = {}
    for other, column in columns.items():
        if other not in group:
            kept[other] = column
    return merged, {**kept, name: Column(levels=levels)}, name


def _merged(
    margin: MeasuredMargin, axis: MarginAxis, group: Sequence[str]
) -> MeasuredMargin:
    """Return a margin in which some columns are one axis, if it has all of them."""
    table = margin.whole()
    axes = margin.law.axes
    places = []
    for column in group:
        for place, own in enumerate(axes):
            if own.columns == (column,) and not own.first:
                places.append(place)
    if table is None or len(places) != len(group) or margin.law.differences:
        return margin
    others = [place for place in range(len(axes)) if place not in places]
    counts = table.transpose([*places, *others]).ravel().astype(np.int64)
    law = replace(margin.law, axes=(axis, *(axes[place] for place in others)))
    return MeasuredMargin(law, counts, margin.cells)


def stacked(margins: Sequence[MeasuredMargin]) -> pd.DataFrame:
    """Return the rows of ``margins.parquet``: ``margin`` numbers the entries of
    ``margins`` in ``privacy.json``.
    """
    n_rows = [len(margin.noisy) for margin in margins]
    rows = {
        "margin": np.repeat(np.arange(len(margins)), n_rows),
        "cell": np.concatenate([margin.cells for margin in margins]),
        "noisy": np.concatenate([margin.noisy for margin in margins]),
    }
    return pd.DataFrame(rows).astype(np.int64)


def unstacked(laws: Sequence[MarginLaw], rows: pd.DataFrame) -> list[MeasuredMargin]:
    """Return the margins of a file: what :func:`stacked` takes."""
    numbers = rows["margin"].to_numpy(dtype=np.int64)
    cells = rows["cell"].to_numpy(dtype=np.int64)
    noisy = rows["noisy"].to_numpy(dtype=np.int64)
    ends = np.searchsorted(numbers, np.arange(len(laws) + 1))
    are_sorted = bool(np.all(np.diff(numbers) >= 0))
    n_rows = [law.rows for law in laws]
    if not are_sorted or np.diff(ends).tolist() != n_rows or ends[-1] < len(rows):
        raise ValueError("rows aren't those of these margins")
    margins = []
    for law, start, stop in zip(laws, ends[:-1], ends[1:], strict=True):
        margin = MeasuredMargin(law, noisy[start:stop], cells[start:stop])
        _check_cells(margin)
        margins.append(margin)
    return margins


def _check_cells(margin: MeasuredMargin) -> None:
    cells = margin.cells
    if not len(cells):
        return
    law = margin.law
    n_cells = math.prod(axis.size - law.differences for axis in law.axes)
    are_rising = bool(np.all(np.diff(cells) > 0))
    if not are_rising or cells[0] < 0 or cells[-1] >= n_cells:
        raise ValueError("cells aren't those of a margin")


def noise_variance(law: str, scale: float) -> float:
    """Return the variance that goes with a scale; that of Gaussian noise is its
    square.
    """
    return scale**2 if law == "gaussian" else discrete_laplace_variance(Fraction(scale))
