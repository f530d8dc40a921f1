"""Bowen and Liu (2018): trees that differ by branch, two allocations and a random
partition on the voter table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.table import Table
from pdips.evaluation.propensity import specks
from pdips.margins.elections import (
    one_way_aic,
)
from pdips.mechanism import Mechanism
from pdips_papers.harness import study
from pdips_papers.harness.curves import Line, boxes, lines
from pdips_papers.harness.measures import combine
from pdips_papers.harness.printed import data, figures, mechanism
from pdips_papers.steps.as_printed import AsRunPartition, AsRunSteps
from pdips_papers.steps.association import LEVELS, chi_square
from pdips_papers.steps.voter import (
    EPSILONS,
    N_SETS,
    Original,
    data_arguments,
    firth_fit,
    load,
    log_epsilon,
)

CASES: dict[str, tuple[str, str, dict[str, Any]]] = data("settings.toml")["voter-2018"][
    "rows"
]

FLAT = "flat Laplace (published)"
STEPS = "STEPS-2 (as run, half-to-leaves)"
EQUAL = "STEPS-2 (as run, equal)"
PARTITION = "Random Partition-2 (as run)"
CLAIMED = (FLAT, PARTITION, STEPS, EQUAL)
"""Rows as the paper ran them, of which its claims are."""

PRINTED_ROWS = {FLAT: "Laplace", STEPS: "STEPS-2"}
"""Rows beside which the paper's figures stand."""

ANALYSED = ("-1", "1")
"""Log epsilons at which the paper fits its regression and counts cells."""

KS = "SPECKS: KS distance"
L1 = "l1 distance of cells, halved"
"""Half the sum of differences: what the paper prints is below the number of records,
where the sum itself may be twice that.
"""

SIGNS = "coefficients of the same sign"
COVERED = "coefficients covered"
NARROWER = "intervals narrower than flat Laplace's"
RATES = tuple(f"consistency rate, {round(100 * level)} %" for level in LEVELS)
SIGN = "same sign: "
WIDTH = "width: "
TREE = "same column elected: "
GROUPED = {"income": 13, "residence": 5}
"""Columns whose coefficients table 4 counts together, and how many those are."""

ROOT = "income"
TABLE_3 = (
    *["residence"] * 3,
    "married",
    "residence",
    *["registered"] * 4,
    *["residence"] * 5,
)
"""What the paper's tree splits first, and what each of its branches splits next."""

NO_NOISE = "tree without noise"


@dataclass(frozen=True, kw_only=True)
class Voter2018(study.Study):
    """``pdips study voter-2018``: some rows or all."""

    name: ClassVar[str] = "voter-2018"
    title: ClassVar[str] = (
        "Youth voters: trees that differ by branch, of the earlier STEPS paper"
    )
    default_replicates: ClassVar[int] = 3
    data: ClassVar[study.Data] = "optional"

    rows: Sequence[str] = tuple(CASES)

    def tasks(self, options: study.Options) -> list[study.Task]:
        """One release of one row at one epsilon a task. Reads the table, to refuse a
        wrong one.
        """
        given = data_arguments(options)
        tasks = [study.Task(key="tree", arguments={**given, "case": NO_NOISE})]
        epsilons = options.epsilons or EPSILONS
        for replicate, epsilon, case in product(
            range(options.replicates), epsilons, self.rows
        ):
            key = study.task_key(f"{case}.epsilon={epsilon}.replicate={replicate}")
            arguments = {**given, "case": case, "epsilon": epsilon}
            tasks.append(study.Task(key=key, arguments=arguments))
        return tasks

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Make one release and measure it."""
        original = load(arguments.get("data"))
        rng = np.random.default_rng(seed)
        if arguments["case"] == NO_NOISE:
            top = first_column(original.table, {})
            rows = study.rows_of("first layer", {top: 1.0})
            for code in range(len(TABLE_3)):
                name = first_column(original.table, {ROOT: code})
                rows += study.rows_of(branch_of(code), {name: 1.0})
            return rows
        case = str(arguments["case"])
        power = log_epsilon(arguments["epsilon"])
        made = mechanism_of(case, Fraction(arguments["epsilon"]))
        name = CASES[case][0]
        release, _ = made.release(original.table, rng=rng)
        measures = {KS: specks(original.table, release.sets, rng=rng).mean}
        if power in ANALYSED:
            measures |= analysed(original, release.sets)
        if name == "steps" and "order" not in CASES[case][2]:
            measures |= agreement(original.table, release.statistics)
        return study.rows_of(row_of(power, case), measures)

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Average over replicates beside the paper's figures; add which intervals are
        narrower than flat Laplace's.
        """
        paper = printed()
        trees = {
            place: value for place, value in paper.items() if place[0].startswith(ROOT)
        }
        summarised = study.summarise(measurements, trees)
        rows = [row for row in summarised["row"].unique() if ": " in row]
        columns = summarised["column"].unique()
        widths = [column for column in columns if column.startswith(WIDTH)]
        seen = study.Figures(summarised)
        more = []
        for row in rows:
            flat = row_of(_power_of(row), FLAT)
            ours = np.array([seen.at(row, column) for column in widths])
            theirs = np.array([seen.at(flat, column) for column in widths])
            is_known = not np.isnan(ours + theirs).any()
            if widths and row != flat and is_known:
                narrower = float((ours < theirs).sum())
                more.append((row, NARROWER, narrower, np.nan, np.nan))
        added = pd.DataFrame(more, columns=list(study.COLUMNS))
        both = pd.concat([summarised, added], ignore_index=True)
        return study.beside(both, paper)

    def layout(self, table: pd.DataFrame) -> list[study.Block]:
        """Print by epsilon what the paper has; signs, widths and trees below."""
        parts = (
            ("general utility and chi-square tests", (KS, *RATES, L1), True),
            ("regression", (SIGNS, COVERED, NARROWER), True),
            ("table 4, signs by coefficient", SIGN, False),
            ("figure 4, widths of intervals", WIDTH, False),
            ("table 3, share of elections that go as without noise", TREE, False),
        )
        tree = table[~table["row"].str.contains(": ")]
        rows_of_tree, columns_of_tree = (
            {name: name for name in tree[side].unique()} for side in ("row", "column")
        )
        title = (
            "Table 3: the column with the smallest AIC without noise, 1 where it "
            "is elected"
        )
        blocks = [
            study.Block(
                title=title, rows=rows_of_tree, columns=columns_of_tree, headline=False
            )
        ]
        for place, rows in study.by_prefix(table["row"].unique()).items():
            mine = table[table["row"].isin(rows)]["column"].unique()
            for title, wanted, headline in parts:
                prefix = wanted if isinstance(wanted, str) else ""
                columns = {
                    name: name.removeprefix(prefix)
                    for name in mine
                    if _wanted(name, wanted)
                }
                if columns:
                    blocks.append(
                        study.Block(
                            title=f"{place}, {title}",
                            rows=rows,
                            columns=columns,
                            headline=headline,
                            group=place,
                        )
                    )
        return blocks

    def pictures(
        self, measurements: pd.DataFrame, table: pd.DataFrame
    ) -> list[study.Picture]:
        """Draw figures 2 (SPECKS), 3 (chi-square tests) and 4 (widths of intervals)."""
        seen = study.Figures(table)
        powers = {_power_of(row) for row in seen.rows if ": " in row}
        places = sorted(powers, key=float)
        cases = [
            case
            for case in CASES
            if any(row.endswith(f": {case}") for row in seen.rows)
        ]
        colours = {case: number % 7 + 1 for number, case in enumerate(cases)}
        key = {case: f"--series-{colour}" for case, colour in colours.items()}

        def curve(measure: str, at: Sequence[str]) -> Any:
            drawn = []
            for case, colour in colours.items():
                values = [seen.at(row_of(place, case), measure) for place in at]
                drawn.append(Line(values, colour))
            return lines(measure, at, "log epsilon", drawn, (-0.03, 1.03))

        pictures = [
            study.Picture(title="Figure 2: SPECKS", panels=[curve(KS, places)], key=key)
        ]
        at = [place for place in places if place in ANALYSED]
        if at:
            tests = [curve(rate, at) for rate in RATES]
            groups = _widths(seen, table, colours, at)
            widths = boxes("width", at, "log epsilon", groups)
            caption = "Widths of 95 % intervals, over coefficients."
            pictures += [
                study.Picture(
                    title="Figure 3: chi-square tests", panels=tests, key=key
                ),
                study.Picture(
                    title="Figure 4: intervals",
                    panels=[widths],
                    caption=caption,
                    key=key,
                ),
            ]
        return pictures

    def findings(self, table: pd.DataFrame) -> list[study.Finding]:
        """Hold the paper's claims against the table."""
        seen = study.Figures(table)
        complete = all(
            row_of(power, case) in seen.rows for power in ANALYSED for case in CLAIMED
        )
        return claims.judge(seen) if complete else []


def mechanism_of(case: str, epsilon: Fraction) -> Mechanism:
    """Return the mechanism of a row at a total epsilon for five sets."""
    name, form, options = CASES[case]
    common = {"epsilon": epsilon, "n_sets": N_SETS, "split": "per-set"}
    if form == "as run":
        made: Mechanism = AS_RUN[name](**common, **options)
        return made
    return mechanism(name, form, **common, **options)


AS_RUN: Mapping[str, Any] = {
    "steps": AsRunSteps,
    "universal-histogram": AsRunPartition,
}


def _widths(
    seen: study.Figures,
    table: pd.DataFrame,
    colours: Mapping[str, int],
    at: Sequence[str],
) -> list[tuple[int, list[FloatArray]]]:
    """Return by colour of a case, and log epsilon, the widths over coefficients."""
    names = [name for name in table["column"].unique() if name.startswith(WIDTH)]
    groups = []
    for case, colour in colours.items():
        by_place = []
        for place in at:
            row = row_of(place, case)
            by_place.append(np.array([seen.at(row, name) for name in names]))
        groups.append((colour, by_place))
    return groups


def row_of(power: str, case: str) -> str:
    """Return what a row is called in the table."""
    return f"log epsilon = {power}: {case}"


def _power_of(row: str) -> str:
    """Return the log epsilon of a row."""
    return row.partition(": ")[0].rpartition(" ")[2]


def branch_of(code: int) -> str:
    """Return the row of a branch of the paper's tree, counted from 1 as in its
    table 3.
    """
    return f"{ROOT} ({code + 1})"


def _wanted(column: str, wanted: str | Sequence[str]) -> bool:
    return column.startswith(wanted) if isinstance(wanted, str) else column in wanted


def analysed(original: Original, sets: Sequence[pd.DataFrame]) -> dict[str, float]:
    """Return what section 3.3 measures: cells, chi-square tests, and the regression
    with Firth's correction.
    """
    table = original.table
    names = list(original.table.schema.columns)
    ours = table.frame.value_counts(names)
    apart = [
        ours.sub(frame.value_counts(names), fill_value=0).abs().sum() / 2
        for frame in sets
    ]
    measures = {L1: float(np.mean(apart))}
    rates = chi_square(table, sets).consistency
    for rate, level in zip(RATES, LEVELS, strict=True):
        measures[rate] = rates[level]
    return measures | _regressed(original, sets)


def _regressed(original: Original, sets: Sequence[pd.DataFrame]) -> dict[str, float]:
    """Return how signs and intervals of coefficients compare with the table's."""
    fits = [firth_fit(frame, original.table.schema) for frame in sets]
    estimates = np.array([fit.estimates for fit in fits]).T
    errors = np.array([fit.standard_errors for fit in fits]).T
    centre, half = combine(estimates, errors**2)
    truth = original.firth.estimates
    same = np.sign(centre) == np.sign(truth)
    covered = np.abs(centre - truth) <= half
    measures = {SIGNS: float(same.sum()), COVERED: float(covered.sum())}
    terms = original.firth.names
    for name, value, width in zip(terms, same, 2 * half, strict=True):
        column = name.partition("=")[0]
        is_grouped = column in GROUPED and ":" not in name
        label = f"{SIGN}{column if is_grouped else name}"
        measures[label] = measures.get(label, 0.0) + float(value)
        measures[f"{WIDTH}{name}"] = float(width)
    return measures


def first_column(table: Table, chosen: Mapping[str, int]) -> str:
    """Return the column with the smallest one-way AIC among records with the given
    codes: no noise.
    """
    kept = np.ones(table.n_records, dtype=bool)
    for name, code in chosen.items():
        kept &= table.codes[name] == code
    free = [name for name in table.schema.columns if name not in chosen]
    aic = []
    for name in free:
        n_levels = table.schema.columns[name].n_levels
        counts = np.bincount(table.codes[name][kept], minlength=n_levels)
        aic.append(float(one_way_aic(counts[None])[0]))
    return free[int(np.argmin(aic))]


def agreement(table: Table, statistics: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """Return the share of a release's elections, of layer 1 and of the branches below,
    that go as without noise.
    """
    names = list(table.schema.columns)
    tops, below = (
        [frame for key, frame in statistics.items() if key.endswith(f"layer {n}")]
        for n in (1, 2)
    )
    first = []
    second = []
    for top, deeper in zip(tops, below, strict=True):
        root = _cut(top, names)[0]
        first.append(root == first_column(table, {}))
        for code, branch in deeper.groupby(root):
            best = first_column(table, {root: int(str(code))})
            elected = [name for name in _cut(branch, names) if name != root]
            second += [name == best for name in elected]
    shares = {}
    for layer, is_same in (("first layer", first), ("second layer", second)):
        if is_same:
            shares[f"{TREE}{layer}"] = float(np.mean(is_same))
    return shares


def _cut(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the columns that nodes have been split by."""
    return [name for name in names if (frame[name] >= 0).any()]


def printed() -> dict[tuple[str, str], float]:
    """Return the figures of section 3.3 and of table 4 by row and column."""
    figures_by_place = {}
    for code, name in enumerate(TABLE_3):
        figures_by_place[branch_of(code), name] = 1.0
    columns = figures("voter-2018", "columns")
    signs = figures("voter-2018", "signs")
    labels = (L1, SIGNS, COVERED, NARROWER)
    for k, (row, name) in enumerate(PRINTED_ROWS.items()):
        for j, power in enumerate(ANALYSED):
            place = row_of(power, row)
            for label, value in zip(labels, columns[f"{name} {power}"], strict=True):
                figures_by_place[place, label] = value
            for label, values in signs.items():
                figures_by_place[place, f"{SIGN}{label}"] = values[k + 2 * j]
    return figures_by_place


claims: study.Claims[study.Figures] = study.Claims("voter-2018")


def _better(
    seen: study.Figures, column: str, one: str, other: str, smaller: bool = True
) -> list[bool]:
    better = []
    for power in ANALYSED:
        a = seen.at(row_of(power, one), column)
        b = seen.at(row_of(power, other), column)
        better.append(a < b if smaller else a > b)
    return better


def _said(seen: study.Figures, column: str, cases: Sequence[str]) -> str:
    parts = []
    for case in cases:
        values = (f"{seen.at(row_of(power, case), column):.4g}" for power in ANALYSED)
        parts.append(f"{case} {', '.join(values)}")
    return f"{column} at log epsilon {' and '.join(ANALYSED)}: {'; '.join(parts)}."


@claims
def _specks(seen: study.Figures) -> study.Said:
    others = (FLAT, PARTITION)
    return _said(seen, KS, (*others, STEPS)), [
        each for other in others for each in _better(seen, KS, STEPS, other)
    ]


@claims
def _allocations(seen: study.Figures) -> study.Said:
    cases = (STEPS, EQUAL)
    better = _better(seen, KS, STEPS, EQUAL)
    return _said(seen, KS, cases), better


@claims
def _cells(seen: study.Figures) -> study.Said:
    low = _better(seen, L1, STEPS, FLAT)[0]
    a, b = (seen.at(row_of(ANALYSED[1], case), L1) for case in (STEPS, FLAT))
    return _said(seen, L1, (FLAT, STEPS)), [low, abs(a - b) < 0.01 * b]


@claims
def _signs(seen: study.Figures) -> study.Said:
    values = {
        case: [seen.at(row_of(power, case), SIGNS) for power in ANALYSED]
        for case in (FLAT, STEPS)
    }
    rises = [low < high for low, high in values.values()]
    return _said(seen, SIGNS, (FLAT, STEPS)), [
        *_better(seen, SIGNS, STEPS, FLAT, smaller=False),
        *rises,
    ]
