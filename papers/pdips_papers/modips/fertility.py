"""Section 5 of Bowen and Liu (2020): 100 records of ten columns, synthesized and classified; tables 4 and 5."""

import math
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.data.table import Table
from pdips.privacy.loss import exact
from pdips.privacy.noise import RandomBits
from pdips_papers.harness import study
from pdips_papers.harness.curves import Line, Violin, lines, violins
from pdips_papers.harness.printed import figures
from pdips_papers.modips.fertility_rows import (
    AMONG_ALTERED,
    AMONG_NORMAL,
    AWARE,
    BALANCED,
    CONFUSION,
    EPSILONS,
    EVEN,
    FORMS,
    HALF,
    LAPLACE,
    LAPLACE_PUBLISHED,
    MAJORITY,
    MOMENTS,
    ORIGINAL,
    PERKS,
    PLUG_IN,
    PRINTED_SVM,
    PRIVBAYES,
    PUBLISHED,
    RATE,
    REFERENCES,
    RESAMPLE,
    SOUND_SVM,
    SVMS,
    TVD,
    UCI,
    classify,
    confusion,
    even,
    features,
    fertility_schema,
    measure,
    modips_row,
    moments,
    read_fertility,
    resample,
    sizes,
    split,
)
from pdips_papers.modips.private_svm import predict, printed, sound

PAPER_4 = figures("fertility", "table-4")
"""Table 4, at epsilon = e: the confusion matrix, row by row, and the consistency rate in %."""

PAPER_5 = figures("fertility", "table-5")
"""Table 5: mean and SD of age and of hours, TVD of 1-, 2-, 3- and 8-way tables."""

MODIPS = modips_row(PUBLISHED, HALF)
PAPERS = {"PrivateSVM": PRINTED_SVM, "Laplace sanitizer": LAPLACE_PUBLISHED, "MODIPS": MODIPS}
"""The rows that do what the paper does, as far as it says."""

TELLS_APART = 5.0
"""Percentage points of balanced accuracy above 50 from which on a classifier is said to tell the classes apart."""

GREY, PUBLISHED_INK, SOUND_INK = 1, 4, 3

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
    title: ClassVar[str] = "Fertility diagnoses: a classifier on synthetic data, section 5 of Bowen and Liu (2020)"
    default_replicates: ClassVar[int] = 100
    data: ClassVar[study.Data] = "optional"

    def tasks(self, options: study.Options) -> list[study.Task]:
        """One split of the table a task, with a set of every form. Reads the table, to refuse a wrong one."""
        arguments: dict[str, Any] = {"epsilons": list(options.epsilons or EPSILONS)}
        if options.data is not None:
            arguments["data"] = str(options.data)
        read_fertility(arguments.get("data", UCI))
        return [study.Task(key=f"replicate={number:04}", arguments=arguments) for number in range(options.replicates)]

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
                found[row_name(epsilon, form)] = _private_svm(form, train, test, epsilon, rng)
        return [measurement for row, mine in found.items() for measurement in study.rows_of(row, mine)]

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return means over replicates, the paper's figures beside the rows at epsilon = e."""
        return study.summarise(measurements, all_figures(set(measurements["row"])))

    def layout(self, table: pd.DataFrame) -> list[study.Block]:
        """Print tables 4 and 5, and rates by class."""
        rows = {row: row for row in table["row"].unique()}
        five = {row: row for row in rows if not any(form in row for form in (*SVMS, MAJORITY))}
        titles = {
            "Table 4: confusion matrix, observed as predicted, of 20 records held out; + is an altered diagnosis. CR: "
            "share classified right": (rows, (*CONFUSION, RATE), True),
            "By class: a classifier that doesn't tell them apart has 50 % balanced": (
                rows,
                (RATE, BALANCED, AMONG_ALTERED, AMONG_NORMAL),
                True,
            ),
            "Table 5: means and standard deviations": (five, MOMENTS, False),
            "Table 5: sum over cells of |share - share|, mean over all tables of k categorical columns; from 0 to 2": (
                five,
                tuple(TVD.values()),
                True,
            ),
        }
        return [
            study.Block(title=title, rows=shown, columns={name: name for name in columns}, headline=headline)
            for title, (shown, columns, headline) in titles.items()
        ]

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[study.Picture]:
        """Draw the classifiers of table 4 and the distances of table 5, for each epsilon."""
        rows, values, found = list(table["row"].unique()), study.by_place(measurements), []
        key = {
            "not private, or without data": f"--series-{GREY}",
            "as published": f"--series-{PUBLISHED_INK}",
            "sound": f"--series-{SOUND_INK}",
        }
        caption = "Over replicates; a dot is the mean. Dashed: everybody called normal."
        for prefix in dict.fromkeys(row.partition(": ")[0] for row in rows if row.startswith("epsilon = ")):
            panels = []
            for column in (RATE, BALANCED):
                mine = [*REFERENCES, *(row for row in rows if row.startswith(f"{prefix}: "))]
                drawn = [_violin(row, row.removeprefix(f"{prefix}: "), list(values[row, column])) for row in mine]
                panels.append(violins(column, drawn, (-2.0, 102.0), marks=[float(values[MAJORITY, column].mean())]))
            title = f"Table 4, {prefix}: right on those held out"
            found.append(study.Picture(title=title, panels=panels, caption=caption, key=key))
            found.append(_distances_of(study.Figures(table), prefix))
        return found

    def findings(self, table: pd.DataFrame) -> list[study.Finding]:
        """Hold the claims of section 5 against the table; nothing if the paper's epsilon wasn't run."""
        seen = FertilityFigures(table)
        laplace, modips = (", ".join(f"{value:.3f}" for value in PAPER_5[name][4:]) for name in list(PAPERS)[1:])
        return [] if math.isnan(seen.at(MODIPS, RATE)) else claims.judge(seen, laplace=laplace, modips=modips)


def row_name(epsilon: str, form: str) -> str:
    """Return what a row is called in the table."""
    return f"epsilon = {float(exact(epsilon, 'epsilon')):.3g}: {form}"


def _references(train: Table, test: Table, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Measure what isn't private, or looks at nothing."""
    majority = np.full(test.n_records, np.where(features(train)[1].mean() > 0, 1.0, -1.0))
    return {
        ORIGINAL: confusion(classify(train, test), test) | moments(train),
        MAJORITY: confusion(majority, test),
        RESAMPLE: measure(train, test, Table(resample(train, rng), train.schema)),
        EVEN: measure(train, test, Table(even(train, rng), train.schema)),
    }


def _private_svm(form: str, train: Table, test: Table, epsilon: str, rng: np.random.Generator) -> dict[str, float]:
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
    found = {(row, column): value for column, value in zip((*CONFUSION, RATE), PAPER_4.get(method, ()), strict=False)}
    five = zip((*MOMENTS, *TVD.values()), PAPER_5.get(method, ()), strict=False)
    return found | {(row, column): value for column, value in five}


def all_figures(rows: set[str]) -> dict[tuple[str, str], float]:
    """Return all figures of the paper, of the rows at its epsilon that there are."""
    paper = {ORIGINAL: "original"} | {row_name(EPSILONS[0], form): method for method, form in PAPERS.items()}
    figures: dict[tuple[str, str], float] = {}
    for row in rows & set(paper):
        figures |= paper_figures(row, paper[row])
    return figures


class FertilityFigures(study.Figures):
    """Our figures at the paper's epsilon, by row without its epsilon."""

    def __init__(self, table: pd.DataFrame) -> None:
        super().__init__(table.assign(row=table["row"].str.removeprefix(row_name(EPSILONS[0], ""))))

    def several(self, rows: Sequence[str], column: str) -> list[float]:
        """Return the figures of several rows."""
        return [self.at(row, column) for row in rows]


claims: study.Claims[FertilityFigures] = study.Claims("fertility")


@claims
def _majority(seen: FertilityFigures) -> study.Said:
    original, majority = seen.several((ORIGINAL, MAJORITY), RATE)
    judged = study.HOLDS if abs(original - majority) < 1 else study.PARTLY
    return study.say(judged, majority=majority, original=original, found=seen.at(ORIGINAL, AMONG_ALTERED))


@claims
def _cost(seen: FertilityFigures) -> study.Said:
    def pair(row: str) -> str:
        return f"{seen.at(row, AMONG_ALTERED):.0f} and {seen.at(row, AMONG_NORMAL):.0f} %"

    printed = {name: PAPER_4[name] for name in PAPERS}
    papers = "; ".join(
        f"{name} {100 * a / (a + b):.0f} and {100 * c / (c + d):.0f} %" for name, (a, b, c, d, _) in printed.items()
    )
    ours = "; ".join(f"{name} {pair(row)}" for name, row in PAPERS.items())
    balanced = seen.several((ORIGINAL, *PAPERS.values()), BALANCED)
    judged = study.FAILS if all(abs(value - 50) < TELLS_APART for value in balanced) else study.PARTLY
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
    laplace, svm, sound, majority = seen.several((LAPLACE_PUBLISHED, PRINTED_SVM, SOUND_SVM, MAJORITY), RATE)
    return study.say(laplace >= svm - 1, laplace=laplace, svm=svm, sound=sound, majority=majority)


@claims
def _moments(seen: FertilityFigures) -> study.Said:
    named = {"original": ORIGINAL, "Laplace": LAPLACE_PUBLISHED, "MODIPS": MODIPS, "without data": EVEN}
    rows = {name: [seen.at(row, column) for column in MOMENTS] for name, row in named.items()}
    text = "; ".join(f"{name} {a:.2f} ({b:.2f}) and {c:.2f} ({d:.2f})" for name, (a, b, c, d) in rows.items())
    return study.say(all(abs(rows[name][0] - rows["original"][0]) < 0.05 for name in ("Laplace", "MODIPS")), text=text)


@claims
def _distances(seen: FertilityFigures) -> study.Said:
    pairs = [seen.several((LAPLACE_PUBLISHED, MODIPS), name) for name in TVD.values()]
    text = "; ".join(f"{a:.3f} and {b:.3f}" for a, b in pairs)
    even = "; ".join(f"{seen.at(EVEN, name):.3f}" for name in TVD.values())
    found = f"1-, 2-, 3- and 8-way, Laplace and MODIPS: {text}. From even cells, without data: {even}."
    return found, [a < b for a, b in pairs]


@claims
def _printed_distances(seen: FertilityFigures) -> study.Said:
    sums = [seen.at(MODIPS, name) for name in TVD.values()]
    parts = ", ".join(f"{value / divisor:.3f}" for value, divisor in zip(sums, (2, 2, 3, 4), strict=True))
    return study.say(study.PROVED, parts=parts, sample=seen.at(RESAMPLE, TVD[8]))


@claims
def _likelihoods(seen: FertilityFigures) -> study.Said:
    ways, even = (PUBLISHED, PLUG_IN, AWARE), seen.at(EVEN, TVD[1])
    sums = [seen.several([modips_row(way, prior) for way in ways], TVD[1]) for prior in (HALF, PERKS)]
    half, perks = (", ".join(f"{value:.3f}" for value in each) for each in sums)
    judged = "yes" if min(each[-1] for each in sums) < 0.9 * even else "no"
    return study.say(
        judged, half=half, HALF=HALF, perks=perks, PERKS=PERKS, even=even, cells=prod(sizes(fertility_schema()))
    )


@claims
def _useful(seen: FertilityFigures) -> study.Said:
    a, b, even, best = seen.several((PRIVBAYES, LAPLACE, EVEN, RESAMPLE), TVD[2])
    judged = "yes" if a < 0.9 * min(b, even) else "no"
    return study.say(
        judged, a=a, b=b, even=even, best=best, rate=seen.at(PRIVBAYES, RATE), balanced=seen.at(PRIVBAYES, BALANCED)
    )


def _violin(row: str, label: str, values: Sequence[float]) -> Violin:
    """Return a violin; values that are all equal are put a hair apart, so that a density can be drawn of them."""
    published = "(published)" in label or label == PRINTED_SVM
    if max(values) - min(values) < 1e-6:
        values = [values[0] - 0.05, values[0], values[0] + 0.05]
    return Violin(label, values, GREY if row in REFERENCES else PUBLISHED_INK if published else SOUND_INK)


def _distances_of(seen: study.Figures, prefix: str) -> study.Picture:
    methods = {form: method for method, form in PAPERS.items()}
    drawn, key = [], {}
    for form, colour in CURVES.items():
        row = form if form in REFERENCES else f"{prefix}: {form}"
        drawn.append(Line([seen.at(row, name) for name in TVD.values()], colour))
        key[form] = f"--series-{colour}"
        paper = paper_figures(row, methods.get(form, "")) if prefix == row_name(EPSILONS[0], "")[:-2] else {}
        if (row, TVD[1]) in paper:
            drawn.append(Line([paper[row, name] for name in TVD.values()], colour, paper=True))
    figure = lines("sum over cells of |share - share|", [str(k) for k in TVD], "columns of a table", drawn, (0.0, 2.05))
    caption = "Solid: ours; dashed and faint: the paper's figures as printed, which fall from 2 to 3 columns."
    title = f"Table 5, {prefix}: distances of cross-tabulations"
    return study.Picture(title=title, panels=[figure], caption=caption, key=key)
