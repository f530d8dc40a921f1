"""The rows of the fertility study: the table, its public schema, what is measured, and how each form makes a set."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.readers import read_frame
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.errors import InputError
from pdips.privacy.loss import exact
from pdips.privacy.noise import RandomBits, discrete_laplace
from pdips.registry import variant_class
from pdips.statistics.exact_counts import NoiseLaw, draw_counts

EPSILONS = (repr(math.e),)
TARGET, ALTERED = "diagnosis", "O"
NUMBERS = {"age": "age", "hours_sitting": "hours"}

N_BINS = 4
"""Public bins of age and of hours; the paper doesn't say how many it has."""

TEST_SHARE, TEST_ALTERED = 0.2, 0.15
"""A fifth of the records is held out, and 3 of 20 of these have an altered diagnosis, as in the paper's table 4."""

LEVELS: dict[str, list[float | int | str]] = {
    "season": [-1.0, -0.33, 0.33, 1.0],
    "childish_diseases": [0, 1],
    "accident_or_trauma": [0, 1],
    "surgical_intervention": [0, 1],
    "high_fevers": [-1, 0, 1],
    "alcohol": [0.2, 0.4, 0.6, 0.8, 1.0],
    "smoking": [-1, 0, 1],
    TARGET: ["N", ALTERED],
}
"""The eight categorical columns of the paper's "8-way" table, diagnosis included: 2,880 cells."""

ORDER = (
    "season",
    "age",
    "childish_diseases",
    "accident_or_trauma",
    "surgical_intervention",
    "high_fevers",
    "alcohol",
    "smoking",
    "hours_sitting",
    TARGET,
)

UCI = str(files("pdips_papers").joinpath("data", "fertility.csv"))
"""The table of the paper: Gil et al. (2012), UCI Machine Learning Repository, doi 10.24432/C5Z01Z, CC BY 4.0."""

CONFUSION = ("+ as +", "+ as -", "- as +", "- as -")
"""Observed and predicted, per 20 held out; + is an altered diagnosis."""

RATE = "CR, %"
WAYS = (1, 2, 3, 8)
TVD = {k: f"TVD {k}-way" for k in WAYS}
MOMENTS = tuple(f"{short} {moment}" for short in NUMBERS.values() for moment in ("mean", "SD"))
BALANCED, AMONG_ALTERED, AMONG_NORMAL = "balanced, %", "altered called so, %", "normal called altered, %"
ONE_CLASS = "sets of one class, %"

COST = 1.0
"""C of the support vector machines, as in e1071 by default: its cross-validation reports a rate and chooses nothing."""

HALF, PERKS = "alpha = 1/2", "alpha = 1/K"
LAPLACE_PUBLISHED, LAPLACE = "Laplace sanitizer (published)", "Laplace sanitizer"
PRIVBAYES = "privbayes"
PUBLISHED, PLUG_IN, AWARE = "plug-in (published)", "plug-in", "noise-aware"
PRINTED_SVM, SOUND_SVM, SOUND_SVM_N = "PrivateSVM (printed)", "PrivateSVM, C = 1", "PrivateSVM, C = n"
SVMS = (PRINTED_SVM, SOUND_SVM, SOUND_SVM_N)
ORIGINAL, MAJORITY = "original data", "majority class"
RESAMPLE, EVEN = "resample, not private", "even cells, no data"
REFERENCES = (ORIGINAL, MAJORITY, RESAMPLE, EVEN)

Maker = Callable[[Table, str, np.random.Generator], pd.DataFrame]


@lru_cache(maxsize=1)
def fertility_schema() -> Schema:
    """Return the schema: eight categorical columns, and age and hours from 0 to 1 in bins. 46,080 cells."""
    numeric = {"lower": 0.0, "upper": 1.0, "bins": N_BINS}
    return Schema.model_validate(
        {"columns": {name: {"levels": LEVELS[name]} if name in LEVELS else numeric for name in ORDER}}
    )


@lru_cache(maxsize=2)
def read_fertility(path: str) -> Table:
    """Read the table from a ``.csv`` or ``.parquet`` file, with the columns of ``ORDER``; others are left out."""
    frame = read_frame(Path(path))
    missing = [name for name in ORDER if name not in frame.columns]
    if missing:
        raise InputError(
            f"the fertility table lacks a column {missing[0]!r}; it needs these {len(ORDER)}: {', '.join(ORDER)}"
        )
    table = Table(frame[list(ORDER)], fertility_schema())
    if split_sizes(table) is None:
        raise InputError(
            "study fertility needs at least 20 records, with enough of diagnosis N and O for both to be in the four "
            "fifths that are synthesized and in the fifth that is held out"
        )
    return table


def split_sizes(table: Table) -> tuple[int, int] | None:
    """Return how many records of altered and of normal diagnosis are held out; None if there are too few."""
    altered = int((table.codes[TARGET] == 1).sum())
    held = round(TEST_SHARE * table.n_records)
    of_altered = max(1, round(TEST_ALTERED * held))
    of_normal = held - of_altered
    enough = table.n_records >= 20 and of_altered < altered and of_normal < table.n_records - altered
    return (of_altered, of_normal) if enough else None


def split(table: Table, rng: np.random.Generator) -> tuple[Table, Table]:
    """Return a table to synthesize and one held out, drawn at random."""
    sizes = split_sizes(table)
    if sizes is None:
        raise InputError("the fertility table has too few records to split")
    target = table.codes[TARGET]
    held = np.concatenate(
        [rng.permutation(np.flatnonzero(target == code))[:size] for code, size in zip((1, 0), sizes, strict=True)]
    )
    inside = np.ones(table.n_records, dtype=bool)
    inside[held] = False
    train, test = (table.frame[rows].reset_index(drop=True) for rows in (inside, ~inside))
    return Table(train, table.schema), Table(test, table.schema)


def features(table: Table) -> tuple[FloatArray, FloatArray]:
    """Return the nine predictors as coded, within [-1, 1], and the label: 1 altered, -1 normal."""
    columns = [
        np.array(LEVELS[name], dtype=np.float64)[table.codes[name]]
        if name in LEVELS
        else pd.to_numeric(table.frame[name]).to_numpy(dtype=np.float64)
        for name in ORDER
        if name != TARGET
    ]
    return np.column_stack(columns), np.where(table.codes[TARGET] == 1, 1.0, -1.0)


# Measures: a classifier on records held out, moments, distances of tables.


def classify(train: Table, test: Table) -> FloatArray:
    """Fit a linear support vector machine on one table and return its labels, 1 or -1, for the records of another."""
    from sklearn.svm import SVC

    (x, y), (new, _) = features(train), features(test)
    if len(np.unique(y)) < 2:
        return np.full(len(new), y[0])
    return np.asarray(SVC(kernel="linear", C=COST).fit(x, y).predict(new), dtype=np.float64)


def confusion(predicted: FloatArray, test: Table) -> dict[str, float]:
    """Return the confusion matrix per 20 records, the consistency rate and rates by class, in %."""
    _, y = features(test)
    counts = [float(((y == seen) & (predicted == said)).sum()) for seen in (1, -1) for said in (1, -1)]
    found = {name: 20 * count / len(y) for name, count in zip(CONFUSION, counts, strict=True)}
    altered, normal = counts[0] / (counts[0] + counts[1]), counts[2] / (counts[2] + counts[3])
    return found | {
        RATE: 100 * (counts[0] + counts[3]) / len(y),
        BALANCED: 50 * (1 + altered - normal),
        AMONG_ALTERED: 100 * altered,
        AMONG_NORMAL: 100 * normal,
    }


def moments(made: Table) -> dict[str, float]:
    """Return mean and standard deviation of age and hours."""
    found = []
    for name in NUMBERS:
        values = made.frame[name].to_numpy(dtype=np.float64)
        found += [float(values.mean()), float(values.std(ddof=1))]
    return dict(zip(MOMENTS, found, strict=True))


def distances(original: Table, made: Table) -> dict[str, float]:
    """Return the paper's total variation distances: mean over all k-way tables of sum |share - share|, from 0 to 2."""
    sizes = [len(levels) for levels in LEVELS.values()]
    codes = [np.column_stack([table.codes[name] for name in LEVELS]) for table in (original, made)]
    found = {}
    for k, label in TVD.items():
        apart = []
        for chosen in combinations(range(len(sizes)), k):
            widths = [sizes[j] for j in chosen]
            shares = [
                np.bincount(
                    np.ravel_multi_index(tuple(each[:, list(chosen)].T), widths), minlength=int(np.prod(widths))
                )
                / len(each)
                for each in codes
            ]
            apart.append(np.abs(shares[0] - shares[1]).sum())
        found[label] = float(np.mean(apart))
    return found


def measure(train: Table, test: Table, made: Table) -> dict[str, float]:
    """Return everything that is measured of one synthetic set."""
    one_class = 100.0 * (len(np.unique(features(made)[1])) < 2)
    found = confusion(classify(made, test), test) | moments(made) | distances(train, made)
    return found | {ONE_CLASS: one_class}


# Forms: how each row makes a synthetic set of a table, and what it spends.


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
        drawn = rng.standard_gamma(alpha + believed)
        return records(rng.multinomial(table.n_records, drawn / drawn.sum()), table.schema, rng)

    return make


def _mechanism(name: str, variant: str = "sound") -> Maker:
    def make(table: Table, epsilon: str, rng: np.random.Generator) -> pd.DataFrame:
        kind, choosing = variant_class(name, variant)
        made: pd.DataFrame = kind(epsilon=epsilon, **choosing).release(table, rng=rng)[0].sets[0]
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
