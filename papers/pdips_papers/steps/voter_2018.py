"""Bowen and Liu (2018): trees that differ by branch, two allocations and a random partition on the voter table."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.data.table import Table
from pdips.evaluation.margins import LEVELS, chi_square
from pdips.evaluation.propensity import specks
from pdips.margins.tree import one_way_aic
from pdips_papers.harness import study
from pdips_papers.harness.curves import Line, boxes, lines
from pdips_papers.harness.measures import combine
from pdips_papers.harness.printed import data, figures, mechanism
from pdips_papers.steps.voter import EPSILONS, N_SETS, Original, data_arguments, firth_fit, load, log_epsilon

CASES: dict[str, tuple[str, str, dict[str, Any]]] = data("settings.toml")["voter-2018"]["rows"]

FLAT, STEPS = "flat Laplace (published)", "STEPS-2 (sound, half-to-leaves)"
PRINTED_ROWS = {FLAT: "Laplace", STEPS: "STEPS-2"}
"""Rows beside which the paper's figures stand."""

ANALYSED = ("-1", "1")
"""Log epsilons at which the paper fits its regression and counts cells."""

KS, L1, SIGNS, COVERED, NARROWER = (
    "SPECKS: KS distance",
    "l1 distance of cells",
    "coefficients of the same sign",
    "coefficients covered",
    "intervals narrower than flat Laplace's",
)
RATES = tuple(f"consistency rate, {round(100 * level)} %" for level in LEVELS)
SIGN, WIDTH, TREE = "same sign: ", "width: ", "same column elected: "
GROUPED = {"income": 13, "residence": 5}
"""Columns whose coefficients table 4 counts together, and how many those are."""

ROOT = "income"
TABLE_3 = (*["residence"] * 3, "married", "residence", *["registered"] * 4, *["residence"] * 5)
"""What the paper's tree splits first, and what each of its branches splits next."""

NO_NOISE = "tree without noise"


class Voter2018(study.Study):
    """``pdips study voter-2018``."""

    name: ClassVar[str] = "voter-2018"
    title: ClassVar[str] = "Youth voters: trees that differ by branch, of the earlier STEPS paper"
    default_replicates: ClassVar[int] = 3
    data: ClassVar[study.Data] = "optional"

    def tasks(self, options: study.Options) -> list[study.Task]:
        """One release of one row at one epsilon a task. Reads the table, to refuse a wrong one."""
        given = data_arguments(options)
        return [study.Task(key="tree", arguments={**given, "case": NO_NOISE})] + [
            study.Task(
                key=study.task_key(f"{case}.epsilon={epsilon}.replicate={replicate}"),
                arguments={**given, "case": case, "epsilon": epsilon},
            )
            for replicate in range(options.replicates)
            for epsilon in options.epsilons or EPSILONS
            for case in CASES
        ]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Make one release and measure it."""
        original, rng = load(arguments.get("data")), np.random.default_rng(seed)
        if arguments["case"] == NO_NOISE:
            found = {code: first_column(original.table, {ROOT: code}) for code in range(len(TABLE_3))}
            top = study.rows_of("first layer", {first_column(original.table, {}): 1.0})
            return top + [row for code, name in found.items() for row in study.rows_of(branch_of(code), {name: 1.0})]
        case, power = str(arguments["case"]), log_epsilon(arguments["epsilon"])
        name, variant, options = CASES[case]
        made = mechanism(
            name, variant, epsilon=Fraction(arguments["epsilon"]), n_sets=N_SETS, split="per-set", **options
        )
        release, _ = made.release(original.table, rng=rng)
        measures = {KS: specks(original.table, release.sets, rng=rng).mean}
        if power in ANALYSED:
            measures |= analysed(original, release.sets, rng)
        if name == "steps":
            measures |= agreement(original.table, release.statistics)
        return study.rows_of(row_of(power, case), measures)

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Average over replicates beside the paper's figures; add which intervals are narrower than flat Laplace's."""
        paper = printed()
        trees = {place: value for place, value in paper.items() if place[0].startswith(ROOT)}
        found = study.summarise(measurements, trees)
        rows = [row for row in found["row"].unique() if ": " in row]
        seen, more = study.Figures(found), []
        widths = [column for column in found["column"].unique() if column.startswith(WIDTH)]
        for row in rows:
            flat = row_of(row.partition(": ")[0].rpartition(" ")[2], FLAT)
            pairs = [(seen.at(row, column), seen.at(flat, column)) for column in widths]
            if pairs and row != flat and not np.isnan(pairs).any():
                more.append((row, NARROWER, float(sum(a < b for a, b in pairs)), np.nan, np.nan))
        found = pd.concat([found, pd.DataFrame(more, columns=list(study.COLUMNS))], ignore_index=True)
        return study.beside(found, paper)

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
        named = {side: {name: name for name in tree[side].unique()} for side in ("row", "column")}
        title = "Table 3: the column with the smallest AIC without noise, 1 where it is elected"
        blocks = [study.Block(title=title, rows=named["row"], columns=named["column"], headline=False)]
        for place, rows in study.by_prefix(table["row"].unique()).items():
            mine = table[table["row"].isin(rows)]
            for title, wanted, headline in parts:
                names = [each for each in mine["column"].unique() if _wanted(each, wanted)]
                columns = {each: each.removeprefix(wanted) if isinstance(wanted, str) else each for each in names}
                if columns:
                    title_ = f"{place}, {title}"
                    blocks.append(study.Block(title=title_, rows=rows, columns=columns, headline=headline, group=place))
        return blocks

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[study.Picture]:
        """Draw figures 2 (SPECKS), 3 (chi-square tests) and 4 (widths of intervals)."""
        seen = study.Figures(table)
        places = sorted({row.partition(": ")[0].rpartition(" ")[2] for row in seen.rows if ": " in row}, key=float)
        cases = [case for case in CASES if any(row.endswith(f": {case}") for row in seen.rows)]
        key = {case: f"--series-{number % 7 + 1}" for number, case in enumerate(cases)}

        def curve(measure: str, at: Sequence[str]) -> Any:
            drawn = [
                Line([seen.at(row_of(place, case), measure) for place in at], number % 7 + 1)
                for number, case in enumerate(cases)
            ]
            return lines(measure, at, "log epsilon", drawn, (-0.03, 1.03))

        found = [study.Picture(title="Figure 2: SPECKS", panels=[curve(KS, places)], key=key)]
        at = [place for place in places if place in ANALYSED]
        if at:
            panels = [curve(rate, at) for rate in RATES]
            found.append(study.Picture(title="Figure 3: chi-square tests", panels=panels, key=key))
            names = [column for column in table["column"].unique() if column.startswith(WIDTH)]
            groups = [
                (number % 7 + 1, [np.array([seen.at(row_of(place, case), name) for name in names]) for place in at])
                for number, case in enumerate(cases)
            ]
            caption = "Widths of 95 % intervals, over coefficients."
            panels = [boxes("width", at, "log epsilon", groups)]
            found.append(study.Picture(title="Figure 4: intervals", panels=panels, caption=caption, key=key))
        return found

    def findings(self, table: pd.DataFrame) -> list[study.Finding]:
        """Hold the paper's claims against the table."""
        seen = study.Figures(table)
        complete = all(row_of(power, case) in seen.rows for power in ANALYSED for case in CASES)
        return claims.judge(seen) if complete else []


def row_of(power: str, case: str) -> str:
    """Return what a row is called in the table."""
    return f"log epsilon = {power}: {case}"


def branch_of(code: int) -> str:
    """Return the row of a branch of the paper's tree, counted from 1 as in its table 3."""
    return f"{ROOT} ({code + 1})"


def _wanted(column: str, wanted: str | Sequence[str]) -> bool:
    return column.startswith(wanted) if isinstance(wanted, str) else column in wanted


def analysed(original: Original, sets: Sequence[pd.DataFrame], rng: np.random.Generator) -> dict[str, float]:
    """Return what section 3.3 measures: cells, chi-square tests, and the regression with Firth's correction."""
    table, names = original.table, list(original.table.schema.columns)
    cells = [frame.value_counts(names) for frame in (table.frame, *sets)]
    found = {L1: float(np.mean([cells[0].sub(each, fill_value=0).abs().sum() for each in cells[1:]]))}
    rates = chi_square(table, sets, rng=rng).consistency
    found |= {rate: rates[level] for rate, level in zip(RATES, LEVELS, strict=True)}
    fits = [firth_fit(frame, table.schema) for frame in sets]
    estimates, errors = (np.array([getattr(fit, each) for fit in fits]).T for each in ("estimates", "standard_errors"))
    centre, half = combine(estimates, errors**2)
    truth, labels = original.firth.estimates, original.firth.names
    same = np.sign(centre) == np.sign(truth)
    found |= {SIGNS: float(same.sum()), COVERED: float((np.abs(centre - truth) <= half).sum())}
    for name, value, width in zip(labels, same, 2 * half, strict=True):
        column = name.partition("=")[0]
        label = f"{SIGN}{column if column in GROUPED and ':' not in name else name}"
        found[label] = found.get(label, 0.0) + float(value)
        found[f"{WIDTH}{name}"] = float(width)
    return found


def first_column(table: Table, chosen: Mapping[str, int]) -> str:
    """Return the column with the smallest one-way AIC among records with the given codes: no noise."""
    kept = np.ones(table.n_records, dtype=bool)
    for name, code in chosen.items():
        kept &= table.codes[name] == code
    free = [name for name in table.schema.columns if name not in chosen]
    aic = [
        float(one_way_aic(np.bincount(table.codes[name][kept], minlength=table.schema.columns[name].n_levels)[None])[0])
        for name in free
    ]
    return free[int(np.argmin(aic))]


def agreement(table: Table, statistics: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """Return the share of a release's elections, of layer 1 and of the branches below, that go as without noise."""
    names = list(table.schema.columns)
    tops, below = ([frame for key, frame in statistics.items() if key.endswith(f"layer {n}")] for n in (1, 2))
    found: dict[str, list[float]] = {"first layer": [], "second layer": []}
    for top, deeper in zip(tops, below, strict=True):
        root = _cut(top, names)[0]
        found["first layer"].append(float(root == first_column(table, {})))
        for code, branch in deeper.groupby(root):
            elected = [name for name in _cut(branch, names) if name != root]
            found["second layer"] += [float(name == first_column(table, {root: int(str(code))})) for name in elected]
    return {f"{TREE}{layer}": float(np.mean(values)) for layer, values in found.items() if values}


def _cut(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the columns that nodes have been split by."""
    return [name for name in names if (frame[name] >= 0).any()]


def printed() -> dict[tuple[str, str], float]:
    """Return the figures of section 3.3 and of table 4 by row and column."""
    found = {(branch_of(code), name): 1.0 for code, name in enumerate(TABLE_3)}
    columns, signs = figures("voter-2018", "columns"), figures("voter-2018", "signs")
    for row, name in PRINTED_ROWS.items():
        for power in ANALYSED:
            place = row_of(power, row)
            for label, value in zip((L1, SIGNS, COVERED, NARROWER), columns[f"{name} {power}"], strict=True):
                found[place, label] = value
            at = list(PRINTED_ROWS.values()).index(name) + 2 * ANALYSED.index(power)
            found |= {(place, f"{SIGN}{label}"): values[at] for label, values in signs.items()}
    return found


claims: study.Claims[study.Figures] = study.Claims("voter-2018")


def _better(seen: study.Figures, column: str, one: str, other: str, smaller: bool = True) -> list[bool]:
    pairs = [(seen.at(row_of(power, one), column), seen.at(row_of(power, other), column)) for power in ANALYSED]
    return [a < b if smaller else a > b for a, b in pairs]


def _said(seen: study.Figures, column: str, cases: Sequence[str]) -> str:
    parts = [
        f"{case} {', '.join(f'{seen.at(row_of(power, case), column):.4g}' for power in ANALYSED)}" for case in cases
    ]
    return f"{column} at log epsilon {' and '.join(ANALYSED)}: {'; '.join(parts)}."


@claims
def _specks(seen: study.Figures) -> study.Said:
    cases = list(CASES)[:3]
    return _said(seen, KS, cases), [each for other in cases[:2] for each in _better(seen, KS, cases[2], other)]


@claims
def _allocations(seen: study.Figures) -> study.Said:
    cases = [case for case in CASES if case.startswith("STEPS") and "sound" in case]
    better = [each for place in (0, 2) for each in _better(seen, KS, cases[place + 1], cases[place])]
    return _said(seen, KS, cases), better


@claims
def _cells(seen: study.Figures) -> study.Said:
    low = _better(seen, L1, STEPS, FLAT)[0]
    a, b = (seen.at(row_of(ANALYSED[1], case), L1) for case in (STEPS, FLAT))
    return _said(seen, L1, (FLAT, STEPS)), [low, abs(a - b) < 0.01 * b]


@claims
def _signs(seen: study.Figures) -> study.Said:
    values = {case: [seen.at(row_of(power, case), SIGNS) for power in ANALYSED] for case in (FLAT, STEPS)}
    rises = [low < high for low, high in values.values()]
    return _said(seen, SIGNS, (FLAT, STEPS)), [*_better(seen, SIGNS, STEPS, FLAT, smaller=False), *rises]
