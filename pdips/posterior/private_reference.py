"""The first stage of a posterior mechanism: a private table, and the parameters that fit it best."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.margins.steps import Steps
from pdips.posterior.columns import Values, distinct, record_values, stand_ins
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import RandomBits, check_scale, discrete_laplace, discrete_laplace_variance

BINS = 32
"""Bins of a numeric column whose schema gives none."""

WITHIN = 16
"""Values inside a cell over which a density is averaged."""

MOST_CELLS = 4_096
"""Most cells that are counted one by one; a table with more is synthesized by ``Steps``."""

SPREAD_SEED = 1
"""Which value inside a bin goes with which of another column: public."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Counts of cells, with values inside each over which a density is averaged.

    Parameters
    ----------
    values : mapping of str to ndarray, shape (cells * WITHIN,)
        Columns, the values inside a cell one after the other.
    counts : ndarray, shape (cells,)
        Noisy counts of all cells, or counts of the cells that a synthetic table has records in.
    log_volumes : ndarray, shape (cells,)
        Of the cells, in the units of their columns.
    variance : float
        Of the noise on each count; 0 for a synthetic table.
    n_records : int
        How many records there are: the public number, or a noisy one.
    """

    values: Values
    counts: FloatArray
    log_volumes: FloatArray
    variance: float
    n_records: int


def binned(schema: Schema) -> Schema:
    """Return the schema with bins for every numeric column."""
    columns = {
        name: column if column.is_categorical or column.is_binned else column.model_copy(update=bins_of(column))
        for name, column in schema.columns.items()
    }
    return schema.model_copy(update={"columns": columns})


def bins_of(column: Column) -> dict[str, int]:
    """Return into how many bins to cut a column: no more than an integer column has values."""
    width = int((column.upper or 0) - (column.lower or 0)) + 1
    return {"bins": min(BINS, width) if column.integer else BINS}


def counts_cells(schema: Schema) -> bool:
    """Whether the first stage counts every cell, rather than synthesizing a table by ``Steps``."""
    cut = binned(schema).columns.values()
    return not schema.public_columns and math.prod(column.n_levels for column in cut) <= MOST_CELLS


def check_schema(schema: Schema, epsilon: Fraction, neighbours: Neighbours) -> None:
    """Refuse, before anything is spent, a schema that the first stage can't work on."""
    if counts_cells(schema):
        check_scale(scale_of(schema, epsilon, neighbours), "laplace")
    else:
        _steps(epsilon, neighbours).spends(binned(schema))


def measure(table: Table, epsilon: Fraction, neighbours: Neighbours, bits: RandomBits) -> Cells:
    """Spend ``epsilon`` on noisy counts of cells (:class:`LaplaceSanitizer`'s noise), or on a table by ``Steps``.

    Proof: ``docs/proofs/laplace-sanitizer.md``, ``docs/proofs/steps.md``.
    """
    schema = binned(table.schema)
    cut = Table(table.frame, schema)
    if not counts_cells(table.schema):
        rng = bits.generator() if bits.reproducible else None
        release, _ = _steps(epsilon, neighbours).release(cut, rng=rng)
        if not len(release.sets[0]):  # under add-remove noise may leave no record
            return no_cells(schema)
        return cells_of_table(Table(release.sets[0], schema.without_person()))
    counts = counts_of(table)
    noisy = counts + discrete_laplace(scale_of(schema, epsilon, neighbours), len(counts), bits)
    n_records = table.n_records if neighbours == "replace-one" else max(int(noisy.sum()), 1)
    return cells_of_counts(table.schema, noisy, epsilon, neighbours, n_records)


def counts_of(table: Table) -> IntArray:
    """Return the true count of every cell."""
    schema = binned(table.schema)
    cut = Table(table.frame, schema)
    sizes = [column.n_levels for column in schema.columns.values()]
    place = np.ravel_multi_index([cut.codes[name] for name in schema.columns], sizes)
    return np.asarray(cut.count(place, int(np.prod(sizes))))


def scale_of(schema: Schema, epsilon: Fraction, neighbours: Neighbours) -> Fraction:
    """Return the scale of the noise on a count."""
    return (2 if neighbours == "replace-one" else 1) * schema.records.max_per_person / epsilon


def cells_of_counts(
    schema: Schema, noisy: IntArray, epsilon: Fraction, neighbours: Neighbours, n_records: int
) -> Cells:
    """Return the cells with their noisy counts."""
    cut = binned(schema)
    sizes = [column.n_levels for column in cut.columns.values()]
    codes = np.unravel_index(np.arange(len(noisy)), sizes)
    values, volumes = _inside(cut, dict(zip(cut.columns, codes, strict=True)), {})
    variance = discrete_laplace_variance(scale_of(cut, epsilon, neighbours))
    return Cells(values, noisy.astype(np.float64), volumes, variance, n_records)


def no_cells(schema: Schema) -> Cells:
    """Return a table of no records: one cell that counts nothing, so that the prior is all there is."""
    values = {name: np.repeat(column, WITHIN) for name, column in stand_ins(schema, 1).items()}
    return Cells(values, np.zeros(1), np.zeros(1), 0.0, 1)


def cells_of_table(table: Table) -> Cells:
    """Return the cells that a public or synthetic table has records in."""
    public = {name: values for name, values in record_values(table).items() if table.schema.columns[name].public}
    codes = {name: table.codes[name] for name in table.schema.columns if name not in public}
    taken, counts = distinct({**codes, **public}, table.counts)
    values, volumes = _inside(table.schema, {name: taken[name] for name in codes}, {n: taken[n] for n in public})
    return Cells(values, counts.astype(np.float64), volumes, 0.0, max(int(counts.sum()), 1))


def _inside(schema: Schema, codes: Mapping[str, Any], known: Values) -> tuple[dict[str, NDArray[Any]], FloatArray]:
    """Return values spread evenly inside cells, given by their codes, and the logs of the cells' volumes."""
    rng = np.random.default_rng(SPREAD_SEED)
    volumes = np.zeros(len(next(iter(codes.values()))))
    values: dict[str, NDArray[Any]] = {name: np.repeat(column, WITHIN) for name, column in known.items()}
    for name, code in codes.items():
        column = schema.columns[name]
        if column.is_categorical:
            values[name] = np.repeat(code, WITHIN)
            continue
        share = rng.permutation((np.arange(WITHIN) + 0.5) / WITHIN)
        low, width = column.edges[code], column.edges[code + 1] - column.edges[code]
        within = (low[:, None] + width[:, None] * share).ravel()
        values[name] = np.floor(within).astype(np.int64) if column.integer else within
        volumes += np.log(width)
    return {name: values[name] for name in schema.columns}, volumes


def _steps(epsilon: Fraction, neighbours: Neighbours) -> Steps:
    return Steps(epsilon=epsilon, neighbours=neighbours)
