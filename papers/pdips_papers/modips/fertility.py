"""Section 5 of Bowen and Liu (2020): 100 records of ten columns, synthesized and
classified; tables 4 and 5.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.readers import read_frame
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.errors import InputError
from pdips.privacy.loss import exact
from pdips.privacy.noise import RandomBits, discrete_laplace
from pdips.statistics.exact_counts import NoiseLaw, draw_counts
from pdips.statistics.statistic import Counts
from pdips_papers.harness import study
from pdips_papers.harness.curves import Line, Violin, lines, violins
from pdips_papers.harness.printed import data, figures, mechanism
from pdips_papers.modips.private_svm import predict, printed, sound

EPSILONS = (repr(math.e),)
TARGET = "diagnosis"
NUMBERS = {"age": "age", "hours_sitting": "hours"}

TEST_SHARE = 0.2
TEST_ALTERED = 0.15
"""A fifth of the records is held out, and 3 of 20 of these have an altered diagnosis,
as in the paper's table 4.
"""

UCI = str(files("pdips_papers").joinpath("data", "fertility.csv"))
"""The table of the paper: Gil et al. (2012), UCI Machine Learning Repository, doi
10.24432/C5Z01Z, CC BY 4.0.
"""

CONFUSION = ("+ as +", "+ as -", "- as +", "- as -")
"""Observed and predicted, per 20 held out; + is an altered diagnosis."""

RATE = "CR, %"
WAYS = (1, 2, 3, 8)
TVD = {k: f"TVD {k}-way" for k in WAYS}
MOMENTS = tuple(
    f"{short} {moment}" for short in NUMBERS.values() for moment in ("mean", "SD")
)
BALANCED = "balanced, %"
AMONG_ALTERED = "altered called so, %"
AMONG_NORMAL = "normal called altered, %"
ONE_CLASS = "sets of one class, %"

COST = 1.0
"""C of the support vector machines, as in e1071 by default: its cross-validation
reports a rate and chooses nothing.
"""

HALF = "alpha = 1/2"
PERKS = "alpha = 1/K"
LAPLACE_PUBLISHED = "Laplace sanitizer (published)"
LAPLACE = "Laplace sanitizer"
PRIVBAYES = "privbayes"
PUBLISHED = "plug-in (published)"
PLUG_IN = "plug-in"
AWARE = "noise-aware"
PRINTED_SVM = "PrivateSVM (printed)"
SOUND_SVM = "PrivateSVM, C = 1"
SOUND_SVM_N = "PrivateSVM, C = n"
SVMS = (PRINTED_SVM, SOUND_SVM, SOUND_SVM_N)
ORIGINAL = "original data"
MAJORITY = "majority class"
RESAMPLE = "resample, not private"
EVEN = "even cells, no data"
REFERENCES = (ORIGINAL, MAJORITY, RESAMPLE, EVEN)

SCHEMA = Schema.model_validate(data("fertility.toml"))
ORDER = tuple(SCHEMA.columns)
LEVELS = {
    name: column.levels
    for name, column in SCHEMA.columns.items()
    if column.is_categorical
}

Maker = Callable[[Table, str, np.random.Generator], pd.DataFrame]


@lru_cache(maxsize=2)
def read_fertility(path: str) -> Table:
    """Read the table from a ``.csv`` or ``.parquet`` file, with the columns of
    ``ORDER``; others are left out.
    """
    frame = read_frame(Path(path))
    missing = [name for name in ORDER if name not in frame.columns]
    if missing:
        raise InputError(
            f"the fertility table lacks a column {missing[0]!r}; it needs these "
            f"{len(ORDER)}: {', '.join(ORDER)}"
        )
    table = Table(frame[list(ORDER)], SCHEMA)
    split_sizes(table)
    return table


def split_sizes(table: Table) -> tuple[int, int]:
    """Return how many records of altered and of normal diagnosis are held out, or
    refuse too few.
    """
    altered = int((table.codes[TARGET] == 1).sum())
    held = round(TEST_SHARE * table.n_records)
    of_altered = max(1, round(TEST_ALTERED * held))
    of_normal = held - of_altered
    if (
        table.n_records < 20
        or of_altered >= altered
        or of_normal >= table.n_records - altered
    ):
        raise InputError(
            "study fertility needs at least 20 records, with enough of diagnosis N "
            "and O for both to be in the four "
            "fifths that are synthesized and in the fifth that is held out"
        )
    return of_altered, of_normal


def split(table: Table, rng: np.random.Generator) -> tuple[Table, Table]:
    """Return a table to synthesize and one held out, drawn at random."""
    sizes = split_sizes(table)
    target = table.codes[TARGET]
    inside = np.ones(table.n_records, dtype=bool)
    for code, size in zip((1, 0), sizes, strict=True):
        held_out = rng.permutation(np.flatnonzero(target == code))[:size]
        inside[held_out] = False
    train, test = (
        table.frame[rows].reset_index(drop=True) for rows in (inside, ~inside)
    )
    return Table(train, table.schema), Table(test, table.schema)


def features(table: Table) -> tuple[FloatArray, FloatArray]:
    """Return the nine predictors as coded, within [-1, 1], and the label: 1 altered, -1
    normal.
    """
    columns = []
    for name in ORDER:
        if name in LEVELS and name != TARGET:
            coded = np.array(LEVELS[name], dtype=np.float64)
            columns.append(coded[table.codes[name]])
        elif name != TARGET:
            numbers = pd.to_numeric(table.frame[name])
            columns.append(numbers.to_numpy(dtype=np.float64))
    return np.column_stack(columns), np.where(table.codes[TARGET] == 1, 1.0, -1.0)


# Measures: a classifier on records held out, moments, distances of tables.


def classify(train: Table, test: Table) -> FloatArray:
    """Fit a linear support vector machine on one table and return its labels, 1 or -1,
    for the records of another.
    """
    from sklearn.svm import SVC

    (x, y) = features(train)
    (new, _) = features(test)
    if len(np.unique(y)) < 2:
        return np.full(len(new), y[0])
    return np.asarray(
        SVC(kernel="linear", C=COST).fit(x, y).predict(new), dtype=np.float64
    )


def confusion(predicted: FloatArray, test: Table) -> dict[str, float]:
    """Return the confusion matrix per 20 records, the consistency rate and rates by
    class, in %.
    """
    _, y = features(test)
    counts = [
        float(((y == seen) & (predicted == said)).sum())
        for seen in (1, -1)
        for said in (1, -1)
    ]
    found = {
        name: 20 * count / len(y) for name, count in zip(CONFUSION, counts, strict=True)
    }
    altered = counts[0] / (counts[0] + counts[1])
    normal = counts[2] / (counts[2] + counts[3])
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
    """Return the paper's total variation distances: mean over all k-way tables of sum
    |share - share|, from 0 to 2.
    """
    sizes = [len(levels) for levels in LEVELS.values()]
    ours, theirs = (
        Counts(by=tuple(LEVELS)).measure(table) / table.n_records
        for table in (original, made)
    )
    apart = (ours - theirs).reshape(sizes)
    found = {}
    for k, label in TVD.items():
        others = combinations(range(len(sizes)), len(sizes) - k)
        found[label] = float(
            np.mean([np.abs(apart.sum(axis=axes)).sum() for axes in others])
        )
    return found


def measure(train: Table, test: Table, made: Table) -> dict[str, float]:
    """Return everything that is measured of one synthetic set."""
    one_class = 100.0 * (len(np.unique(features(made)[1])) < 2)
    found = (
        confusion(classify(made, test), test) | moments(made) | distances(train, made)
    )
    return found | {ONE_CLASS: one_class}


# Forms: how each row makes a synthetic set of a table, and what it spends.


def modips_row(likelihood: str, prior: str) -> str:
    """Return what a row of the saturated log-linear model is called."""
    return f"MODIPS {likelihood}, {prior}"


def records(counts: IntArray, schema: Schema, rng: np.random.Generator) -> pd.DataFrame:
    """Turn counts of cells into records; numbers evenly inside their bins."""
    occupied = np.flatnonzero(counts)
    codes = np.unravel_index(
        np.repeat(occupied, counts[occupied]),
        [schema.columns[name].n_values for name in ORDER],
    )
    return decode(
        schema,
        {name: codes[place].astype(np.int64) for place, name in enumerate(ORDER)},
        rng,
    )


def _modips(likelihood: str, prior: str) -> Maker:
    def make(table: Table, epsilon: str, rng: np.random.Generator) -> pd.DataFrame:
        counts = Counts(by=ORDER).measure(table).ravel()
        alpha = 0.5 if prior == HALF else 1 / len(counts)
        scale = Fraction(1 if likelihood == PUBLISHED else 2) / exact(
            epsilon, "epsilon"
        )
        noisy = counts + discrete_laplace(scale, len(counts), RandomBits(rng))
        if likelihood == AWARE:
            believed = draw_counts(
                noisy, NoiseLaw("laplace", scale), table.n_records, alpha, 1, rng
            )[0]
        else:
            believed = np.maximum(noisy, 0)
        drawn = rng.standard_gamma(alpha + believed)
        return records(
            rng.multinomial(table.n_records, drawn / drawn.sum()), table.schema, rng
        )

    return make


def _mechanism(name: str, variant: str = "sound") -> Maker:
    def make(table: Table, epsilon: str, rng: np.random.Generator) -> pd.DataFrame:
        return (
            mechanism(name, variant, epsilon=epsilon).release(table, rng=rng)[0].sets[0]
        )

    return make


FORMS: dict[str, Maker] = {
    LAPLACE_PUBLISHED: _mechanism("laplace-sanitizer", variant="published"),
    LAPLACE: _mechanism("laplace-sanitizer"),
    **{
        modips_row(way, prior): _modips(way, prior)
        for prior in (HALF, PERKS)
        for way in (PUBLISHED, PLUG_IN, AWARE)
    },
    PRIVBAYES: _mechanism("privbayes"),
}
"""Synthetic sets by row, at an epsilon. Published rows claim it and spend twice as
much; the others spend it.
"""


def resample(table: Table, rng: np.random.Generator) -> pd.DataFrame:
    """Draw records of a table with replacement: no privacy."""
    return table.frame.iloc[
        rng.integers(table.n_records, size=table.n_records)
    ].reset_index(drop=True)


def even(table: Table, rng: np.random.Generator) -> pd.DataFrame:
    """Draw every column evenly, without looking at any record."""
    columns = table.schema.columns
    codes = {
        name: rng.integers(columns[name].n_values, size=table.n_records)
        for name in ORDER
    }
    return decode(table.schema, codes, rng)


# The study.

PAPER_4 = figures("fertility", "table-4")
"""Table 4, at epsilon = e: the confusion matrix, row by row, and the consistency rate
in %.
"""

PAPER_5 = figures("fertility", "table-5")
"""Table 5: mean and SD of age and of hours, TVD of 1-, 2-, 3- and 8-way tables."""

MODIPS = modips_row(PUBLISHED, HALF)
PAPERS = {
    "PrivateSVM": PRINTED_SVM,
    "Laplace sanitizer": LAPLACE_PUBLISHED,
    "MODIPS": MODIPS,
}
"""The rows that do what the paper does, as far as it says."""

TELLS_APART = 5.0
"""Percentage points of balanced accuracy above 50 from which on a classifier is said to
tell the classes apart.
"""

GREY = 1
PUBLISHED_INK = 4
SOUND_INK = 3

CURVES = {
    RESAMPLE: 1,
    EVEN: 2,
    LAPLACE_PUBLISHED: 3,
    modips_row(PUBLISHED, HALF): 4,
    LAPLACE: 5,
    modips_row(PLUG_IN, HALF): 6,
    modips_row(AWARE, HALF): 7,
    PRIVBAYES: 8,
}


class Fertility(study.Study):
    """``pdips study fertility``."""

    name: ClassVar[str] = "fertility"
    title: ClassVar[str] = (
        "Fertility diagnoses: a classifier on synthetic data, "
        "section 5 of Bowen and Liu (2020)"
    )
    default_replicates: ClassVar[int] = 100
    data: ClassVar[study.Data] = "optional"

    def tasks(self, options: study.Options) -> list[study.Task]:
        """One split of the table a task, with a set of every form. Reads the table, to
        refuse a wrong one.
        """
        arguments: dict[str, Any] = {"epsilons": list(options.epsilons or EPSILONS)}
        if options.data is not None:
            arguments["data"] = str(options.data)
        read_fertility(arguments.get("data", UCI))
        return [
            study.Task(key=f"replicate={number:04}", arguments=arguments)
            for number in range(options.replicates)
        ]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Split the table, synthesize four fifths in every way, classify the rest."""
        rng = np.random.default_rng(seed)
        train, test = split(read_fertility(arguments.get("data", UCI)), rng)
        found = _references(train, test, rng)
        for epsilon in arguments["epsilons"]:
            for form, make in FORMS.items():
                made = Table(make(train, epsilon, rng), train.schema)
                found[row_name(epsilon, form)] = measure(train, test, made)
            for form in SVMS:
                found[row_name(epsilon, form)] = _private_svm(
                    form, train, test, epsilon, rng
                )
        return [
            measurement
            for row, mine in found.items()
            for measurement in study.rows_of(row, mine)
        ]

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return means over replicates, the paper's figures beside the rows at epsilon
        = e.
        """
        paper = {ORIGINAL: "original"} | {
            row_name(EPSILONS[0], form): method for method, form in PAPERS.items()
        }
        rows = set(measurements["row"]) & set(paper)
        shown = {
            place: value
            for row in rows
            for place, value in paper_figures(row, paper[row]).items()
        }
        return study.summarise(measurements, shown)

    def layout(self, table: pd.DataFrame) -> list[study.Block]:
        """Print tables 4 and 5, and rates by class."""
        rows = {row: row for row in table["row"].unique()}
        five = {
            row: row
            for row in rows
            if not any(form in row for form in (*SVMS, MAJORITY))
        }
        titles = {
            "Table 4: confusion matrix, observed as predicted, of 20 records held "
            "out; + is an altered diagnosis. CR: "
            "share classified right": (rows, (*CONFUSION, RATE), True),
            "By class: a classifier that doesn't tell them apart has 50 % balanced": (
                rows,
                (RATE, BALANCED, AMONG_ALTERED, AMONG_NORMAL),
                True,
            ),
            "Table 5: means and standard deviations": (five, MOMENTS, False),
            "Table 5: sum over cells of |share - share|, mean over all tables of k "
            "categorical columns; from 0 to 2": (
                five,
                tuple(TVD.values()),
                True,
            ),
        }
        return [
            study.Block(
                title=title,
                rows=shown,
                columns={name: name for name in columns},
                headline=headline,
            )
            for title, (shown, columns, headline) in titles.items()
        ]

    def pictures(
        self, measurements: pd.DataFrame, table: pd.DataFrame
    ) -> list[study.Picture]:
        """Draw the classifiers of table 4 and the distances of table 5, for each
        epsilon.
        """
        values = study.by_place(measurements)
        found = []
        key = {
            "not private, or without data": f"--series-{GREY}",
            "as published": f"--series-{PUBLISHED_INK}",
            "sound": f"--series-{SOUND_INK}",
        }
        caption = "Over replicates; a dot is the mean. Dashed: everybody called normal."
        for prefix, labels in study.by_prefix(table["row"].unique()).items():
            panels = []
            for column in (RATE, BALANCED):
                mine = {row: row for row in REFERENCES} | labels
                drawn = [
                    _violin(row, label, list(values[row, column]))
                    for row, label in mine.items()
                ]
                panels.append(
                    violins(
                        column,
                        drawn,
                        (-2.0, 102.0),
                        marks=[float(values[MAJORITY, column].mean())],
                    )
                )
            title = f"Table 4, {prefix}: right on those held out"
            found.append(
                study.Picture(title=title, panels=panels, caption=caption, key=key)
            )
            found.append(_distances_of(study.Figures(table), prefix))
        return found

    def findings(self, table: pd.DataFrame) -> list[study.Finding]:
        """Hold the claims of section 5 against the table; nothing if the paper's
        epsilon wasn't run.
        """
        seen = FertilityFigures(table)
        laplace, modips = (
            ", ".join(f"{value:.3f}" for value in PAPER_5[name][4:])
            for name in list(PAPERS)[1:]
        )
        return (
            []
            if math.isnan(seen.at(MODIPS, RATE))
            else claims.judge(seen, laplace=laplace, modips=modips)
        )


def row_name(epsilon: str, form: str) -> str:
    """Return what a row is called in the table."""
    return f"epsilon = {float(exact(epsilon, 'epsilon')):.3g}: {form}"


def _references(
    train: Table, test: Table, rng: np.random.Generator
) -> dict[str, dict[str, float]]:
    """Measure what isn't private, or looks at nothing."""
    majority = np.full(
        test.n_records, np.where(features(train)[1].mean() > 0, 1.0, -1.0)
    )
    return {
        ORIGINAL: confusion(classify(train, test), test) | moments(train),
        MAJORITY: confusion(majority, test),
        RESAMPLE: measure(train, test, Table(resample(train, rng), train.schema)),
        EVEN: measure(train, test, Table(even(train, rng), train.schema)),
    }


def _private_svm(
    form: str, train: Table, test: Table, epsilon: str, rng: np.random.Generator
) -> dict[str, float]:
    """Release a classifier in one of its forms and measure it."""
    x, y = features(train)
    if form == PRINTED_SVM:
        weights = printed(x, y, epsilon, RandomBits(rng))
    else:
        cost = f"1/{train.n_records}" if form == SOUND_SVM else 1
        weights = sound(x, y, cost, epsilon, RandomBits(rng))
    return confusion(predict(weights, features(test)[0]), test)


def paper_figures(row: str, method: str) -> dict[tuple[str, str], float]:
    """Return the paper's figures of a method, as those of a row of ours."""
    found = {
        (row, column): value
        for column, value in zip(
            (*CONFUSION, RATE), PAPER_4.get(method, ()), strict=False
        )
    }
    five = zip((*MOMENTS, *TVD.values()), PAPER_5.get(method, ()), strict=False)
    return found | {(row, column): value for column, value in five}


class FertilityFigures(study.Figures):
    """Our figures at the paper's epsilon, by row without its epsilon."""

    def __init__(self, table: pd.DataFrame) -> None:
        super().__init__(
            table.assign(row=table["row"].str.removeprefix(row_name(EPSILONS[0], "")))
        )

    def several(self, rows: Sequence[str], column: str) -> list[float]:
        """Return the figures of several rows."""
        return [self.at(row, column) for row in rows]


claims: study.Claims[FertilityFigures] = study.Claims("fertility")


@claims
def _majority(seen: FertilityFigures) -> study.Said:
    original, majority = seen.several((ORIGINAL, MAJORITY), RATE)
    judged = study.HOLDS if abs(original - majority) < 1 else study.PARTLY
    return study.say(
        judged,
        majority=majority,
        original=original,
        found=seen.at(ORIGINAL, AMONG_ALTERED),
    )


@claims
def _cost(seen: FertilityFigures) -> study.Said:
    def pair(row: str) -> str:
        return (
            f"{seen.at(row, AMONG_ALTERED):.0f} and {seen.at(row, AMONG_NORMAL):.0f} %"
        )

    printed = {name: PAPER_4[name] for name in PAPERS}
    papers = "; ".join(
        f"{name} {100 * a / (a + b):.0f} and {100 * c / (c + d):.0f} %"
        for name, (a, b, c, d, _) in printed.items()
    )
    ours = "; ".join(f"{name} {pair(row)}" for name, row in PAPERS.items())
    balanced = seen.several((ORIGINAL, *PAPERS.values()), BALANCED)
    judged = (
        study.FAILS
        if all(abs(value - 50) < TELLS_APART for value in balanced)
        else study.PARTLY
    )
    return study.say(
        judged,
        papers=papers,
        ours=ours,
        even=pair(EVEN),
        others=", ".join(f"{value:.1f}" for value in balanced[1:]),
        balanced=balanced,
    )


@claims
def _svm(seen: FertilityFigures) -> study.Said:
    laplace, svm, sound, majority = seen.several(
        (LAPLACE_PUBLISHED, PRINTED_SVM, SOUND_SVM, MAJORITY), RATE
    )
    return study.say(
        laplace >= svm - 1, laplace=laplace, svm=svm, sound=sound, majority=majority
    )


@claims
def _moments(seen: FertilityFigures) -> study.Said:
    named = {
        "original": ORIGINAL,
        "Laplace": LAPLACE_PUBLISHED,
        "MODIPS": MODIPS,
        "without data": EVEN,
    }
    rows = {
        name: [seen.at(row, column) for column in MOMENTS]
        for name, row in named.items()
    }
    text = "; ".join(
        f"{name} {a:.2f} ({b:.2f}) and {c:.2f} ({d:.2f})"
        for name, (a, b, c, d) in rows.items()
    )
    original = rows["original"][0]
    off = [abs(rows[name][0] - original) for name in ("Laplace", "MODIPS")]
    return study.say(max(off) < 0.05, text=text)


@claims
def _distances(seen: FertilityFigures) -> study.Said:
    pairs = [seen.several((LAPLACE_PUBLISHED, MODIPS), name) for name in TVD.values()]
    text = "; ".join(f"{a:.3f} and {b:.3f}" for a, b in pairs)
    even = "; ".join(f"{seen.at(EVEN, name):.3f}" for name in TVD.values())
    found = (
        f"1-, 2-, 3- and 8-way, Laplace and MODIPS: {text}. From even cells, "
        f"without data: {even}."
    )
    return found, [a < b for a, b in pairs]


@claims
def _printed_distances(seen: FertilityFigures) -> study.Said:
    sums = [seen.at(MODIPS, name) for name in TVD.values()]
    parts = ", ".join(
        f"{value / divisor:.3f}"
        for value, divisor in zip(sums, (2, 2, 3, 4), strict=True)
    )
    return study.say(study.PROVED, parts=parts, sample=seen.at(RESAMPLE, TVD[8]))


@claims
def _likelihoods(seen: FertilityFigures) -> study.Said:
    ways = (PUBLISHED, PLUG_IN, AWARE)
    even = seen.at(EVEN, TVD[1])
    sums = [
        seen.several([modips_row(way, prior) for way in ways], TVD[1])
        for prior in (HALF, PERKS)
    ]
    half, perks = (", ".join(f"{value:.3f}" for value in each) for each in sums)
    judged = "yes" if min(each[-1] for each in sums) < 0.9 * even else "no"
    return study.say(
        judged,
        half=half,
        HALF=HALF,
        perks=perks,
        PERKS=PERKS,
        even=even,
        cells=math.prod(column.n_values for column in SCHEMA.columns.values()),
    )


@claims
def _useful(seen: FertilityFigures) -> study.Said:
    a, b, even, best = seen.several((PRIVBAYES, LAPLACE, EVEN, RESAMPLE), TVD[2])
    judged = "yes" if a < 0.9 * min(b, even) else "no"
    return study.say(
        judged,
        a=a,
        b=b,
        even=even,
        best=best,
        rate=seen.at(PRIVBAYES, RATE),
        balanced=seen.at(PRIVBAYES, BALANCED),
    )


def _violin(row: str, label: str, values: Sequence[float]) -> Violin:
    """Return a violin; values that are all equal are put a hair apart, so that a
    density can be drawn of them.
    """
    published = "(published)" in label or label == PRINTED_SVM
    if max(values) - min(values) < 1e-6:
        values = [values[0] - 0.05, values[0], values[0] + 0.05]
    return Violin(
        label,
        values,
        GREY if row in REFERENCES else PUBLISHED_INK if published else SOUND_INK,
    )


def _distances_of(seen: study.Figures, prefix: str) -> study.Picture:
    methods = {form: method for method, form in PAPERS.items()}
    drawn = []
    key = {}
    for form, colour in CURVES.items():
        row = form if form in REFERENCES else f"{prefix}: {form}"
        drawn.append(Line([seen.at(row, name) for name in TVD.values()], colour))
        key[form] = f"--series-{colour}"
        paper = (
            paper_figures(row, methods.get(form, ""))
            if prefix == row_name(EPSILONS[0], "")[:-2]
            else {}
        )
        if (row, TVD[1]) in paper:
            drawn.append(
                Line([paper[row, name] for name in TVD.values()], colour, paper=True)
            )
    figure = lines(
        "sum over cells of |share - share|",
        [str(k) for k in TVD],
        "columns of a table",
        drawn,
        (0.0, 2.05),
    )
    caption = (
        "Solid: ours; dashed and faint: the paper's figures as printed, which "
        "fall from 2 to 3 columns."
    )
    title = f"Table 5, {prefix}: distances of cross-tabulations"
    return study.Picture(title=title, panels=[figure], caption=caption, key=key)
