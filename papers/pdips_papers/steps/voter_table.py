"""The youth voter table of Bowen et al. (2021), read or simulated; its table 3,
printed, drawn and judged.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.readers import read_frame
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips_papers.harness import study
from pdips_papers.harness.curves import Line, lines
from pdips_papers.harness.printed import data, figures
from pdips_papers.steps.association import CATEGORIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_METHODS = (
    "flat Laplace",
    "PrivBayes",
    "UH modified-2",
    "UH modified-3",
    "STEPS-2",
    "STEPS-3",
)
"""The six methods of table 3, in its order."""

MEASURE_NAMES = data("settings.toml")["voter"]["measures"]
MEASURES, SHORT, FIGURES = (
    {key: names[place] for key, names in MEASURE_NAMES.items()} for place in range(3)
)
"""By column of ``voter_table3.csv``: names of the measures of table 3, column heads,
and figures that draw them.
"""

SMALLER_IS_BETTER = frozenset({"ks_distance"})
P_VALUES = tuple(
    f"p original {ours}, synthetic {theirs}"
    for ours in CATEGORIES
    for theirs in CATEGORIES
)
"""Numbers of the 105 pairs by category of both p-values, by rows: the paper's tables 4
to 9.
"""
RESAMPLE = "resample, not private"

NEVER = "no pair found associated"
ALWAYS = "every pair found associated"
"""What consistency rates come to if the tests on synthetic sets say the same of all
pairs, whatever the data.
"""

REFERENCES = (RESAMPLE, NEVER, ALWAYS)
FIRTH = {
    key.replace("overlap", "firth"): f"{label} (Firth)"
    for key, label in MEASURES.items()
    if "overlap" in key
}
SCORE = "overall score"
AMONG_ALL = " among all"


@lru_cache(maxsize=1)
def voter_schema() -> Schema:
    """Return the schema of the voter table, levels as in the paper's table 1."""
    return Schema.model_validate(data("voter.toml"))


@lru_cache(maxsize=1)
def paper_table() -> pd.DataFrame:
    """Return the paper's tables 3 to 9 as printed: 30 rows; measures, printed ranks and
    scores, and the P_VALUES.
    """
    return pd.read_csv(str(files("pdips_papers").joinpath("data", "voter_table3.csv")))


def read_voter(path: str | Path) -> Table:
    """Read the voter table from a ``.csv`` or ``.parquet`` file.

    Columns go by the names of the schema or by those of the paper's table 1, in any
    case and punctuation; others are left out. Values are the levels of the schema, or
    whole numbers from 0 that count them in their order.
    """
    frame = read_frame(path)
    schema = voter_schema()
    found = {_plain(str(name)): str(name) for name in reversed(frame.columns)}
    columns: dict[str, Any] = {}
    for name, column in schema.columns.items():
        source = found.get(name, found.get(_plain(column.label or name)))
        if source is None:
            raise InputError(
                f"the voter table lacks a column {name!r} (or {column.label!r}); it "
                f"needs these 15: "
                f"{', '.join(schema.columns)}"
            )
        columns[name] = _levels(name, frame[source], column)
    return Table(pd.DataFrame(columns), schema)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _levels(name: str, values: pd.Series, column: Column) -> pd.Series:
    """Return the values as levels, if they are that or codes of levels."""
    spelt = {str(level): level for level in column.levels}
    text = values.astype(str)
    if text.isin(list(spelt)).all():
        return text.map(spelt)
    codes = pd.to_numeric(values, errors="coerce")
    if not codes.isin(range(column.n_values)).all():
        raise InputError(
            f"column {name!r} of the voter table must hold "
            f"{', '.join(map(str, column.levels))}; "
            f"or 0 to {column.n_values - 1} for these in their order"
        )
    return codes.astype("int64").map(dict(enumerate(column.levels)))


N_RECORDS = 44_821

PERCENTAGES = figures("voter", "percentages")
"""Of the levels in their order: the paper's table 1."""


def simulated_voters(n: int = N_RECORDS, *, rng: np.random.Generator) -> pd.DataFrame:
    """Draw a table with the columns, the shares of levels and roughly the sparseness of
    Bowen et al.'s voter table.

    Shares are those of the paper's table 1 to the nearest of the ``n`` records; nobody
    votes without being registered. How columns depend on each other is made up: compare
    methods on it, and don't read anything about voters from it.
    """
    facts = data("voter_simulation.toml")
    place, means = rng.standard_normal((2, n))
    values: dict[str, FloatArray] = {"place": place, "means": means}
    codes: dict[str, IntArray] = {}
    for name, weights in facts["scores"].items():
        score = sum(weight * values[each] for each, weight in weights.items())
        blurred = 0.7 * score + rng.logistic(size=n)
        if name in ("dmv", "voted"):
            blurred = np.where(codes["registered"] == 1, blurred, -np.inf)
        shares = np.cumsum(PERCENTAGES[name]) / sum(PERCENTAGES[name])
        ends = np.rint(n * shares).astype(np.int64)
        levels = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        codes[name] = np.empty(n, dtype=np.int64)
        codes[name][np.argsort(blurred, kind="stable")] = levels
        middle, width = facts["scales"].get(name, (0.0, 1.0))
        values[name] = (codes[name] - middle) / width
    columns = voter_schema().columns
    return pd.DataFrame(
        {
            name: np.array(column.levels, dtype=object)[codes[name]]
            for name, column in columns.items()
        }
    )


# How table 3 is printed, drawn as figures 5 to 7, and held against what the paper says.

COLOURS = {
    method: number for number, method in enumerate((*PAPER_METHODS, "margins"), start=1)
}
LIMITS = (-0.03, 1.03)


def _at_epsilon(
    prefix: str, mine: Mapping[str, str], references: Mapping[str, str]
) -> list[study.Block]:
    paper = {
        row: label.removesuffix(" (published)")
        for row, label in mine.items()
        if "(published)" in row
    }
    own = {row: label for row, label in mine.items() if row not in paper}
    blocks = []
    if paper:
        # in two halves, which fit a screen with the paper's figures beside them
        values = list(_values().items())
        halves = {
            "SPECKS and chi-square tests": values[:4],
            "confidence intervals": values[4:],
        }
        for what, half in halves.items():
            title = f"Table 3, {prefix}, as published: {what}"
            blocks.append(
                study.Block(title=title, rows=paper, columns=dict(half), group=prefix)
            )
        title = f"Table 3, {prefix}: ranks, 1 is the best, and their sum"
        blocks.append(
            study.Block(title=title, rows=paper, columns=_ranks(""), group=prefix)
        )
    if own or references:
        more = {SCORE + AMONG_ALL: "score"} if own else {}
        title = f"{prefix}: sound forms, and what needs no privacy or no data"
        blocks.append(
            study.Block(
                title=title,
                rows=own | dict(references),
                columns=_values() | more,
                group=prefix,
            )
        )
    title = f"{prefix}: ranks among all forms"
    blocks.append(
        study.Block(
            title=title,
            rows=mine,
            columns=_ranks(AMONG_ALL),
            headline=False,
            group=prefix,
        )
    )
    tests = {
        label: label.replace("p original", "").replace("synthetic ", "")
        for label in P_VALUES
    }
    title = (
        f"Tables 4 to 9, {prefix}: pairs of columns by p-value, of the original "
        f"and combined over synthetic sets"
    )
    blocks.append(
        study.Block(
            title=title,
            rows={**mine, **references},
            columns=tests,
            headline=False,
            group=prefix,
        )
    )
    firth = {
        label: SHORT[key.replace("firth", "overlap")] for key, label in FIRTH.items()
    }
    title = f"{prefix}: overlap of confidence intervals with Firth's correction"
    blocks.append(
        study.Block(
            title=title,
            rows={**mine, **references},
            columns=firth,
            headline=False,
            group=prefix,
        )
    )
    return blocks


def _scores(table: pd.DataFrame) -> list[study.Block]:
    blocks = []
    for score, title in (
        (
            SCORE,
            "Overall score: sum of eight ranks among the paper's six methods, as "
            "published; smaller is better",
        ),
        (
            SCORE + AMONG_ALL,
            "Overall score among all forms: sum of eight ranks; smaller is better",
        ),
    ):
        mine = table[table["column"].str.startswith(f"{score}, ")]
        if len(mine):
            columns = {
                column: column.removeprefix(f"{score}, ")
                for column in mine["column"].unique()
            }
            rows = {row: row for row in mine["row"].unique()}
            blocks.append(
                study.Block(
                    title=title, rows=rows, columns=columns, group="Overall scores"
                )
            )
    return blocks


def _values() -> dict[str, str]:
    return {label: SHORT[key] for key, label in MEASURES.items()}


def _ranks(suffix: str) -> dict[str, str]:
    found = {f"rank, {label}{suffix}": SHORT[key] for key, label in MEASURES.items()}
    return {**found, SCORE + suffix: "score"}


def _panel(
    measure: str,
    places: Sequence[str],
    seen: study.Figures,
    methods: Sequence[str],
    forms: Sequence[str],
) -> "Figure":
    drawn = []
    for paper, value in ((False, seen.at), (True, seen.paper)):
        for method in methods:
            for form in forms:
                y = [value(f"{place}: {method} ({form})", measure) for place in places]
                if not all(math.isnan(each) for each in y):
                    drawn.append(Line(y, COLOURS[method], paper=paper))
    ticks = [place.rpartition("= ")[2] for place in places]
    return lines(measure, ticks, "log epsilon", drawn, LIMITS)


CHI_SQUARE = [key for key in MEASURES if key.startswith("consistency")]


class VoterFigures(study.Figures):
    """Our figures of the published forms, by place and method."""

    def __init__(self, table: pd.DataFrame) -> None:
        super().__init__(table)
        rows = [row for row in self.rows if row.endswith("(published)") and ": " in row]
        self.places = list(study.by_prefix(rows))
        self.complete = bool(rows) and all(
            f"{place}: {method} (published)" in rows
            for place in self.places
            for method in PAPER_METHODS
        )

    def of(self, place: str, method: str, column: str) -> float:
        """Return our figure."""
        return self.at(f"{place}: {method} (published)", column)

    def printed(self, place: str, method: str, column: str) -> float:
        """Return our figure as the paper would print it."""
        return round(self.of(place, method, column), 3)

    def is_best(self, place: str, method: str, key: str) -> bool:
        """Say whether a method has the best figure of a measure among the six, as
        printed.
        """
        choose: Callable[..., float] = min if key in SMALLER_IS_BETTER else max
        best = choose(
            self.printed(place, each, MEASURES[key]) for each in PAPER_METHODS
        )
        return self.printed(place, method, MEASURES[key]) == best


claims: study.Claims[VoterFigures] = study.Claims("voter")


@claims
def _overall(seen: VoterFigures) -> study.Said:
    sums = dict[str, float]()
    texts = dict[str, str]()
    for method in PAPER_METHODS:
        sums[method] = sum(seen.of(place, method, SCORE) for place in seen.places)
        rows = [f"{place}: {method} (published)" for place in seen.places]
        of_paper = sum(seen.paper(row, SCORE) for row in rows)
        texts[method] = f"{method} {sums[method]:.0f}"
        if not math.isnan(of_paper):
            texts[method] += f" ({of_paper:.0f})"
    order = sorted(sums, key=sums.__getitem__)
    text = ", ".join(texts[method] for method in order)
    if {*order[:2]} == {"STEPS-2", "STEPS-3"}:
        judged = study.HOLDS if order[2] == "flat Laplace" else study.PARTLY
    else:
        judged = study.PARTLY if order[0].startswith("STEPS") else study.FAILS
    return (
        f"Overall scores summed over epsilons, the paper's in parentheses: {text}."
    ), judged


@claims
def _specks(seen: VoterFigures) -> study.Said:
    label = MEASURES["ks_distance"]
    others = [method for method in PAPER_METHODS if method != "PrivBayes"]
    texts = []
    for place in seen.places:
        ours = seen.of(place, "PrivBayes", label)
        best = min(seen.of(place, method, label) for method in others)
        texts.append(f"{place}, PrivBayes {ours:.3f}, best of the others {best:.3f}")
    return f"KS distances: {'; '.join(texts)}.", [
        seen.is_best(place, "PrivBayes", "ks_distance") for place in seen.places
    ]


@claims
def _chi_square(seen: VoterFigures) -> study.Said:
    wins = [
        seen.is_best(place, "flat Laplace", key)
        for place in seen.places
        for key in CHI_SQUARE
    ]
    return (
        f"Flat Laplace has the highest consistency rate in {sum(wins)} of "
        f"{len(wins)} comparisons."
    ), wins


@claims
def _informed(seen: VoterFigures) -> study.Said:
    wins = []
    for place, key, layers in product(seen.places, MEASURES, (2, 3)):
        steps, uh = (
            seen.printed(place, f"{name}-{layers}", MEASURES[key])
            for name in ("STEPS", "UH modified")
        )
        wins.append(steps <= uh if key in SMALLER_IS_BETTER else steps >= uh)
    share = sum(wins) / len(wins)
    text = (
        f"STEPS-L is at least as good as UH modified-L in {sum(wins)} of "
        f"{len(wins)} comparisons."
    )
    if share > 0.8:
        return text, study.HOLDS
    return text, study.PARTLY if share > 0.5 else study.FAILS


@claims
def _decreases(seen: VoterFigures) -> study.Said:
    label = MEASURES["ks_distance"]
    places = sorted(seen.places, key=lambda place: float(place.rpartition("= ")[2]))
    falls = {}
    for method in PAPER_METHODS:
        distances = [seen.of(place, method, label) for place in places]
        # as printed, with three decimals
        falls[method] = all(b <= a + 0.0005 for a, b in pairwise(distances))
    exceptions = [method for method, fall in falls.items() if not fall]
    whom = f", but for {', '.join(exceptions)}" if exceptions else " for all six"
    text = f"It does{whom}."
    return text, study.TO_COME if len(places) < 2 else list(falls.values())


class Table3(study.Study):
    """Prints, draws and judges the table."""

    def layout(self, table: pd.DataFrame) -> list[study.Block]:
        """Return overall scores, and by epsilon the paper's rows, their ranks, our
        rows, and overlaps by Firth.
        """
        references = {row: row for row in REFERENCES if (table["row"] == row).any()}
        blocks = _scores(table)
        for prefix, rows in study.by_prefix(table["row"].unique()).items():
            blocks += _at_epsilon(prefix, rows, references)
        return blocks

    def pictures(
        self, measurements: pd.DataFrame, table: pd.DataFrame
    ) -> list[study.Picture]:
        """Return each figure twice: the published forms beside the paper's figures, and
        the sound forms.
        """
        seen = study.Figures(table)
        by_place = study.by_prefix(seen.rows)
        places = sorted(by_place, key=lambda place: float(place.rpartition("= ")[2]))
        present = {label for labels in by_place.values() for label in labels.values()}
        shown = {
            "published forms": ("published",),
            "sound forms": ("sound", "default"),
        }
        pictures = []
        for title, (label, forms) in product(
            dict.fromkeys(FIGURES.values()), shown.items()
        ):
            drawn = [
                method
                for method in COLOURS
                if any(f"{method} ({form})" in present for form in forms)
            ]
            if not drawn:
                continue
            panels = [
                _panel(MEASURES[key], places, seen, drawn, forms)
                for key, figure in FIGURES.items()
                if figure == title
            ]
            caption = f"Against log epsilon, {label}."
            if forms == ("published",):
                caption += " Solid: ours; dashed and faint: the paper's."
            pictures.append(
                study.Picture(
                    title=f"{title}, {label}",
                    panels=panels,
                    caption=caption,
                    key={method: f"--series-{COLOURS[method]}" for method in drawn},
                )
            )
        return pictures

    def findings(self, table: pd.DataFrame) -> list[study.Finding]:
        """Return the paper's claims and what the table says of each; without all six
        methods, nothing.
        """
        seen = VoterFigures(table)
        return claims.judge(seen) if seen.complete else []
