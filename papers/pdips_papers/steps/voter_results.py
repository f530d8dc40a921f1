"""How the voter study's table is printed, drawn as the paper's figures 5 to 7, and held against what the paper says."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import pandas as pd

from pdips_papers.harness.curves import Line, lines
from pdips_papers.harness.study import FAILS, HOLDS, PARTLY, TO_COME, Block, Claims, Figures, Finding, Picture, Said
from pdips_papers.steps.voter_table import (
    AMONG_ALL,
    FIRTH,
    MEASURES,
    P_VALUES,
    PAPER_METHODS,
    REFERENCES,
    SCORE,
    SMALLER_IS_BETTER,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT = {
    "ks_distance": "KS",
    "consistency_1": "1 %",
    "consistency_5": "5 %",
    "consistency_10": "10 %",
    "overlap_all": "CI all",
    "overlap_prereg": "CI prereg.",
    "overlap_registered": "CI reg.",
    "overlap_interaction": "CI pre. x reg.",
}
"""Column heads: SPECKS's KS distance, consistency rates of chi-square tests, overlap of confidence intervals."""

FIGURES = {
    "Figure 5: SPECKS": ("ks_distance",),
    "Figure 6: chi-square tests": ("consistency_1", "consistency_5", "consistency_10"),
    "Figure 7: confidence intervals": ("overlap_all", "overlap_prereg", "overlap_registered", "overlap_interaction"),
}

COLOURS = {method: number for number, method in enumerate((*PAPER_METHODS, "STEPS"), start=1)}
LIMITS = (-0.03, 1.03)


def layout_of(table: pd.DataFrame) -> list[Block]:
    """Return overall scores, and by epsilon the paper's rows, their ranks, our rows, and overlaps by Firth."""
    rows = [row for row in table["row"].unique() if ": " in row]
    references = {row: row for row in REFERENCES if (table["row"] == row).any()}
    blocks = _scores(table)
    for prefix in dict.fromkeys(row.partition(": ")[0] for row in rows):
        blocks += _at_epsilon(prefix, [row for row in rows if row.startswith(f"{prefix}: ")], references)
    return blocks


def _at_epsilon(prefix: str, rows: Sequence[str], references: Mapping[str, str]) -> list[Block]:
    mine = {row: row.removeprefix(f"{prefix}: ") for row in rows}
    paper = {row: label.removesuffix(" (published)") for row, label in mine.items() if "(published)" in row}
    own = {row: label for row, label in mine.items() if row not in paper}
    blocks = []
    if paper:
        values = list(_values().items())  # in two halves, which fit a screen with the paper's figures beside them
        blocks += [
            Block(title=f"Table 3, {prefix}, as published: {title}", rows=paper, columns=dict(half), group=prefix)
            for title, half in (("SPECKS and chi-square tests", values[:4]), ("confidence intervals", values[4:]))
        ]
        title = f"Table 3, {prefix}: ranks, 1 is the best, and their sum"
        blocks.append(Block(title=title, rows=paper, columns=_ranks(""), group=prefix))
    if own or references:
        more = {SCORE + AMONG_ALL: "score"} if own else {}
        title = f"{prefix}: sound forms, and what needs no privacy or no data"
        blocks.append(Block(title=title, rows=own | dict(references), columns=_values() | more, group=prefix))
    title = f"{prefix}: ranks among all forms"
    blocks.append(Block(title=title, rows=mine, columns=_ranks(AMONG_ALL), headline=False, group=prefix))
    tests = {label: label.replace("p original", "").replace("synthetic ", "") for label in P_VALUES}
    title = f"Tables 4 to 9, {prefix}: pairs of columns by p-value, of the original and combined over synthetic sets"
    blocks.append(Block(title=title, rows=mine | dict(references), columns=tests, headline=False, group=prefix))
    firth = {label: SHORT[key.replace("firth", "overlap")] for key, label in FIRTH.items()}
    title = f"{prefix}: overlap of confidence intervals with Firth's correction"
    blocks.append(Block(title=title, rows=mine | dict(references), columns=firth, headline=False, group=prefix))
    return blocks


def _scores(table: pd.DataFrame) -> list[Block]:
    blocks = []
    for score, title in (
        (SCORE, "Overall score: sum of eight ranks among the paper's six methods, as published; smaller is better"),
        (SCORE + AMONG_ALL, "Overall score among all forms: sum of eight ranks; smaller is better"),
    ):
        mine = table[table["column"].str.startswith(f"{score}, ")]
        if len(mine):
            columns = {column: column.removeprefix(f"{score}, ") for column in mine["column"].unique()}
            rows = {row: row for row in mine["row"].unique()}
            blocks.append(Block(title=title, rows=rows, columns=columns, group="Overall scores"))
    return blocks


def _values() -> dict[str, str]:
    return {label: SHORT[key] for key, label in MEASURES.items()}


def _ranks(suffix: str) -> dict[str, str]:
    found = {f"rank, {label}{suffix}": SHORT[key] for key, label in MEASURES.items()}
    return {**found, SCORE + suffix: "score"}


def pictures_of(table: pd.DataFrame) -> list[Picture]:
    """Return each figure twice: the published forms beside the paper's figures, and the sound forms."""
    seen, found = Figures(table), []
    places = list(dict.fromkeys(row.partition(": ")[0] for row in seen.rows if ": " in row))
    places.sort(key=lambda place: float(place.rpartition("= ")[2]))
    made = {row.partition(": ")[2] for row in seen.rows}
    for title, keys in FIGURES.items():
        for forms, label in ((("published",), "published forms"), (("sound", "default"), "sound forms")):
            drawn = [method for method in COLOURS if any(f"{method} ({form})" in made for form in forms)]
            if drawn:
                panels = [_panel(MEASURES[key], places, seen, drawn, forms) for key in keys]
                caption = f"Against log epsilon, {label}."
                if forms == ("published",):
                    caption += " Solid: ours; dashed and faint: the paper's."
                key_ = {method: f"--series-{COLOURS[method]}" for method in drawn}
                found.append(Picture(title=f"{title}, {label}", panels=panels, caption=caption, key=key_))
    return found


def _panel(
    measure: str, places: Sequence[str], seen: Figures, methods: Sequence[str], forms: Sequence[str]
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


class VoterFigures(Figures):
    """Our figures of the published forms, by place and method."""

    def __init__(self, table: pd.DataFrame) -> None:
        super().__init__(table)
        rows = [row for row in self.rows if row.endswith("(published)") and ": " in row]
        self.places = list(dict.fromkeys(row.partition(": ")[0] for row in rows))
        self.complete = bool(rows) and all(
            f"{place}: {method} (published)" in rows for place in self.places for method in PAPER_METHODS
        )

    def of(self, place: str, method: str, column: str) -> float:
        """Return our figure."""
        return self.at(f"{place}: {method} (published)", column)

    def printed(self, place: str, method: str, column: str) -> float:
        """Return our figure as the paper would print it."""
        return round(self.of(place, method, column), 3)

    def is_best(self, place: str, method: str, key: str) -> bool:
        """Say whether a method has the best figure of a measure among the six, as printed."""
        choose: Callable[..., float] = min if key in SMALLER_IS_BETTER else max
        best = choose(self.printed(place, each, MEASURES[key]) for each in PAPER_METHODS)
        return self.printed(place, method, MEASURES[key]) == best


claims: Claims[VoterFigures] = Claims("voter")


def findings_of(table: pd.DataFrame) -> list[Finding]:
    """Return the paper's claims and what the table says of each; without all six methods, nothing."""
    seen = VoterFigures(table)
    return claims.judge(seen) if seen.complete else []


@claims
def _overall(seen: VoterFigures) -> Said:
    sums = {method: sum(seen.of(place, method, SCORE) for place in seen.places) for method in PAPER_METHODS}
    papers = {
        method: sum(seen.paper(f"{place}: {method} (published)", SCORE) for place in seen.places)
        for method in PAPER_METHODS
    }
    order = sorted(sums, key=sums.__getitem__)
    text = ", ".join(
        f"{method} {sums[method]:.0f}" + ("" if math.isnan(papers[method]) else f" ({papers[method]:.0f})")
        for method in order
    )
    if {*order[:2]} == {"STEPS-2", "STEPS-3"}:
        judged = HOLDS if order[2] == "flat Laplace" else PARTLY
    else:
        judged = PARTLY if order[0].startswith("STEPS") else FAILS
    return f"Overall scores summed over epsilons, the paper's in parentheses: {text}.", judged


@claims
def _specks(seen: VoterFigures) -> Said:
    label, others = MEASURES["ks_distance"], [method for method in PAPER_METHODS if method != "PrivBayes"]
    text = "; ".join(
        f"{place}, PrivBayes {seen.of(place, 'PrivBayes', label):.3f}, best of the others "
        f"{min(seen.of(place, method, label) for method in others):.3f}"
        for place in seen.places
    )
    return f"KS distances: {text}.", [seen.is_best(place, "PrivBayes", "ks_distance") for place in seen.places]


@claims
def _chi_square(seen: VoterFigures) -> Said:
    wins = [seen.is_best(place, "flat Laplace", key) for place in seen.places for key in CHI_SQUARE]
    return f"Flat Laplace has the highest consistency rate in {sum(wins)} of {len(wins)} comparisons.", wins


@claims
def _informed(seen: VoterFigures) -> Said:
    wins = []
    for place in seen.places:
        for key, label in MEASURES.items():
            for layers in (2, 3):
                steps, uh = (seen.printed(place, f"{name}-{layers}", label) for name in ("STEPS", "UH modified"))
                wins.append(steps <= uh if key in SMALLER_IS_BETTER else steps >= uh)
    share = sum(wins) / len(wins)
    text = f"STEPS-L is at least as good as UH modified-L in {sum(wins)} of {len(wins)} comparisons."
    return text, HOLDS if share > 0.8 else PARTLY if share > 0.5 else FAILS


@claims
def _decreases(seen: VoterFigures) -> Said:
    label = MEASURES["ks_distance"]
    places = sorted(seen.places, key=lambda place: float(place.rpartition("= ")[2]))
    falls = {
        method: all(
            seen.of(after, method, label) <= seen.of(before, method, label) + 0.0005
            for before, after in pairwise(places)
        )
        for method in PAPER_METHODS
    }
    exceptions = [method for method, fall in falls.items() if not fall]
    text = f"It does{', but for ' + ', '.join(exceptions) if exceptions else ' for all six'}."
    return text, TO_COME if len(places) < 2 else list(falls.values())
