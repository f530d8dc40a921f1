"""The rows of the fertility study: how each makes one synthetic set of a table, and what it spends."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.privacy.loss import exact
from pdips.privacy.noise import RandomBits, discrete_laplace
from pdips.registry import find
from pdips.statistics.count_trees import NoiseLaw
from pdips.statistics.exact_counts import draw_counts
from pdips_papers.modips.fertility_data import ORDER

Maker = Callable[[Table, str, np.random.Generator], pd.DataFrame]

HALF, PERKS = "alpha = 1/2", "alpha = 1/K"
LAPLACE_PUBLISHED, LAPLACE = "Laplace sanitizer (published)", "Laplace sanitizer"
PRIVBAYES = "privbayes"
PUBLISHED, PLUG_IN, AWARE = "plug-in (published)", "plug-in", "noise-aware"
PRINTED_SVM, SOUND_SVM, SOUND_SVM_N = "PrivateSVM (printed)", "PrivateSVM, C = 1", "PrivateSVM, C = n"
SVMS = (PRINTED_SVM, SOUND_SVM, SOUND_SVM_N)

ORIGINAL, MAJORITY = "original data", "majority class"
RESAMPLE, EVEN = "resample, not private", "even cells, no data"


def modips_row(likelihood: str, prior: str) -> str:
    """Return what a row of the saturated log-linear model is called."""
    return f"MODIPS {likelihood}, {prior}"


def sizes(schema: Schema) -> list[int]:
    """Return the number of levels or bins of each column."""
    return [schema.columns[name].n_values for name in ORDER]


def cell_counts(table: Table) -> IntArray:
    """Return the exact counts of the full cross-tabulation, flattened."""
    widths = sizes(table.schema)
    cells = np.ravel_multi_index(tuple(table.codes[name] for name in ORDER), widths)
    return np.bincount(cells, minlength=int(np.prod(widths))).astype(np.int64)


def records(counts: IntArray, schema: Schema, rng: np.random.Generator) -> pd.DataFrame:
    """Turn counts of cells into records; numbers evenly inside their bins."""
    occupied = np.flatnonzero(counts)
    codes = np.unravel_index(np.repeat(occupied, counts[occupied]), sizes(schema))
    return decode(schema, {name: codes[place].astype(np.int64) for place, name in enumerate(ORDER)}, rng)


def dirichlet_counts(weights: FloatArray, n: int, rng: np.random.Generator) -> IntArray:
    """Draw proportions from a Dirichlet law with these parameters, and counts of n records from them."""
    drawn = rng.standard_gamma(weights)
    return rng.multinomial(n, drawn / drawn.sum()).astype(np.int64)


def _modips(likelihood: str, prior: str) -> Maker:
    def make(table: Table, epsilon: str, rng: np.random.Generator) -> pd.DataFrame:
        counts = cell_counts(table)
        alpha = 0.5 if prior == HALF else 1 / len(counts)
        scale = Fraction(1 if likelihood == PUBLISHED else 2) / exact(epsilon, "epsilon")
        noisy = counts + discrete_laplace(scale, len(counts), RandomBits(rng))
        if likelihood == AWARE:
            believed = draw_counts(noisy, NoiseLaw("laplace", scale), table.n_records, alpha, 1, rng)[0]
        else:
            believed = np.maximum(noisy, 0)
        return records(dirichlet_counts(alpha + believed, table.n_records, rng), table.schema, rng)

    return make


def _mechanism(name: str, **options: str) -> Maker:
    def make(table: Table, epsilon: str, rng: np.random.Generator) -> pd.DataFrame:
        made: pd.DataFrame = find(name)(epsilon=epsilon, **options).release(table, rng=rng)[0].sets[0]
        return made

    return make


FORMS: dict[str, Maker] = {
    LAPLACE_PUBLISHED: _mechanism("laplace-sanitizer", variant="published"),
    LAPLACE: _mechanism("laplace-sanitizer"),
    **{modips_row(way, prior): _modips(way, prior) for prior in (HALF, PERKS) for way in (PUBLISHED, PLUG_IN, AWARE)},
    PRIVBAYES: _mechanism("privbayes"),
}
"""Synthetic sets by row, at an epsilon. Published rows claim it and spend twice as much; the others spend it."""


def resample(table: Table, rng: np.random.Generator) -> pd.DataFrame:
    """Draw records of a table with replacement: no privacy."""
    return table.frame.iloc[rng.integers(table.n_records, size=table.n_records)].reset_index(drop=True)


def even(table: Table, rng: np.random.Generator) -> pd.DataFrame:
    """Draw every column evenly, without looking at any record."""
    widths = sizes(table.schema)
    codes = {name: rng.integers(width, size=table.n_records) for name, width in zip(ORDER, widths, strict=True)}
    return decode(table.schema, codes, rng)
