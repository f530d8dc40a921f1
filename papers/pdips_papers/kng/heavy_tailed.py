"""Tran et al. (2023), section 4: three heavy-tailed columns by K-norm gradient quantile
regression.
"""

import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from pdips.errors import InputError
from pdips.privacy.loss import exact
from pdips_papers.harness import study
from pdips_papers.harness.curves import Line, Violin, shares, violins
from pdips_papers.kng import heavy_rows as heavy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_RECORDS = 5_000

EPSILON = "1"
TRAINING = "Training table"
SECONDS = "CPU seconds"
TRUE = "true ϵ"
CLAIMED = "claimed ϵ"

COLOURS: dict[heavy.Kind, int] = {"reference": 1, "published": 4, "sound": 3, "ours": 5}

KEY = {
    "without privacy": "--series-1",
    "as published, at the ϵ it claims": "--series-4",
    "sound, at its true ϵ": "--series-3",
    "kng-residual (recommended)": "--series-5",
}

LINES = {
    **{method: number for number, method in enumerate(heavy.SCHEMES, start=2)},
    heavy.PMSE: 7,
}
"""Colours of methods where those of one kind are drawn together."""

DISTRIBUTIONS = {
    TRAINING: "--series-1 dashed",
    **{method: f"--series-{number}" for method, number in LINES.items()},
    "kng-residual, or without privacy": "--series-8",
}

TABLES = {
    "Table 1: general utility; KM is best at 1000, the others at 0": heavy.GENERAL,
    "Table 2: specific utility; smaller is better": heavy.SPECIFIC,
}

TICKS = (1, 10, 100, 1_000)
FIGURES = {"x1": "figure 3", "x2": "figure 4", "x3": "figure 5"}


@dataclass(frozen=True, kw_only=True)
class HeavyTailed(study.Study):
    """``pdips study heavy-tailed``: some rows or all, of ``n`` records, with
    Wasserstein tests of ``n_resplits``.
    """

    name: ClassVar[str] = "heavy-tailed"
    title: ClassVar[str] = (
        "Heavy-tailed columns by K-norm gradients: tables 1 and 2 of Tran et al. (2023)"
    )
    default_replicates: ClassVar[int] = 100

    rows: Sequence[str] = tuple(heavy.FORMS)
    n: int = N_RECORDS
    n_resplits: int = heavy.N_RESPLITS

    def tasks(self, options: study.Options) -> list[study.Task]:
        """Return one task for each replicate. Raises InputError if more than one
        epsilon is given.
        """
        if len(options.epsilons) > 1:
            raise InputError(
                "heavy-tailed takes one --epsilon: run it once for "
                "each, with a folder of its own"
            )
        arguments = {
            "n": self.n,
            "rows": list(self.rows),
            "resplits": self.n_resplits,
            "epsilon": (options.epsilons or (EPSILON,))[0],
        }
        return [
            study.Task(key=f"replicate={number:04}", arguments=arguments)
            for number in range(options.replicates)
        ]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw tables, make every row, and measure it. A row's randomness doesn't
        depend on which others there are.
        """
        case = heavy.Case.draw(arguments["n"], _generator(seed, "population"))
        epsilon = arguments["epsilon"]
        claimed = float(exact(epsilon, "epsilon"))
        measured = {CLAIMED: claimed, **heavy.distributions(case.training)}
        found = study.rows_of(TRAINING, measured)
        for row in arguments["rows"]:
            form = heavy.FORMS[row]
            start = time.process_time()
            synthetic = form.make(case, epsilon, _generator(seed, row))
            values = {SECONDS: time.process_time() - start}
            spent = form.true_epsilon(epsilon)
            if spent is not None:
                values[TRUE] = spent
            rng = _generator(seed, f"measures of {row}")
            values |= heavy.measures(
                case.training,
                case.testing,
                synthetic,
                rng,
                n_resplits=arguments["resplits"],
            )
            found += study.rows_of(row, values | heavy.distributions(synthetic))
        return found

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Average over replicates, the paper's figures beside those at its epsilon.
        Distributions are left out.
        """
        claimed = measurements.loc[measurements["column"] == CLAIMED, "value"]
        at_its_epsilon = (claimed == float(EPSILON)).all()
        made = set(measurements["row"]) if at_its_epsilon else set()
        paper = {
            (row, column): value
            for (row, column), value in paper_figures().items()
            if row in made
        }
        is_synthetic = measurements["row"] != TRAINING
        is_distribution = measurements["column"].str.contains(" up to ")
        figures = study.summarise(measurements[is_synthetic & ~is_distribution], paper)
        return pd.concat([figures, _errors(figures)], ignore_index=True)

    def layout(self, table: pd.DataFrame) -> list[study.Block]:
        """Print tables 1 and 2 with what each row truly spends, then what is beyond the
        paper.
        """
        made = set(table["row"])
        rows = {row: row for row in heavy.FORMS if row in made}
        blocks = []
        for title, columns in TABLES.items():
            shown = {TRUE: TRUE} | dict(zip(columns, columns, strict=True))
            blocks.append(study.Block(title=title, rows=rows, columns=shown))
        if any(table["column"].isin([error_of(name) for name in heavy.GENERAL])):
            printed_rows = set(table.loc[table["paper"].notna(), "row"])
            printed = {row: row for row in rows if row in printed_rows}
            for title, columns in TABLES.items():
                name = title.partition(":")[0].lower()
                errors = study.Block(
                    title=f"Standard errors of {name}",
                    rows=printed,
                    columns={error_of(column): column for column in columns},
                    headline=False,
                )
                blocks.append(errors)
        more = {heavy.BY_COLUMNS: heavy.BY_COLUMNS, SECONDS: SECONDS}
        beyond = study.Block(
            title="Beyond the paper", rows=rows, columns=more, headline=False
        )
        return [*blocks, beyond]

    def pictures(
        self, measurements: pd.DataFrame, table: pd.DataFrame
    ) -> list[study.Picture]:
        """Draw the measures of both tables over replicates, and distributions by
        method, as figures 3 to 5.
        """
        values = study.by_place(measurements)
        caption = (
            "Distribution over replicates; dots are means, the dashed line is our "
            "target for kng-residual. KM is best "
            "at 1000, the others, on logarithmic axes, at 0."
        )
        pictures = []
        for title, columns in TABLES.items():
            picture = study.Picture(
                title=f"{title.partition(':')[0]}, by method",
                panels=[_chart(values, column) for column in columns],
                caption=caption,
                key=KEY,
            )
            pictures.append(picture)
        pictures += [_distributions(values, column) for column in heavy.PLACES]
        return pictures

    def findings(self, table: pd.DataFrame) -> list[study.Finding]:
        """Return the paper's claims as far as their rows were made, its price, and our
        targets.
        """
        findings = []
        methods = (*heavy.SCHEMES, heavy.PMSE)
        for form, row_of in FORMS_OF_CLAIMS.items():
            seen = HeavyFigures(table, row_of)
            if seen.has(*map(row_of, methods)):
                findings += claims.judge(seen, form=form)
        for claim, row_of in AGREEMENT.items():
            printed = (heavy.NON_PRIVATE, *map(row_of, methods))
            rows = [row for row in printed if seen.has(row)]
            if any(seen.has(row_of(method)) for method in heavy.SCHEMES):
                findings.append(_agreement(seen, claim, rows))
        chains = (KNG, heavy.STARTED, EXTENDED[1])
        if seen.has(*map(heavy.as_run_row, chains)):
            findings += starts.judge(seen)
        findings += price.judge(seen)
        if seen.has(heavy.RECOMMENDED):
            findings += [_target(seen, column) for column in heavy.TARGETS]
        return findings


def paper_figures(
    printed: Mapping[str, Sequence[float]] = heavy.PRINTED,
) -> dict[tuple[str, str], float]:
    """Return the paper's tables 1 and 2, or their standard errors, by row and column of
    ours.
    """
    figures = dict[tuple[str, str], float]()
    for method, values in printed.items():
        rows = [heavy.published_row(method), heavy.as_run_row(method)]
        if method == heavy.NON_PRIVATE:
            rows = [method]
        for row in rows:
            for column, value in zip(heavy.MEASURES, values, strict=True):
                figures[row, column] = value
    return figures


def error_of(column: str) -> str:
    """Return the name of the standard errors of a measure, as figures of their own."""
    return f"SE, {column}"


def _errors(found: pd.DataFrame) -> pd.DataFrame:
    """Return our standard errors beside the paper's, where it has figures."""
    mine = found[found["paper"].notna()]
    names = [error_of(column) for column in mine["column"]]
    mine = study.beside(mine, paper_figures(heavy.ERRORS))
    return mine.assign(
        column=names, ours=mine["standard_error"], standard_error=math.nan
    )


def _generator(seed: int, use: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(use.encode())])


def _chart(values: study.Values, column: str) -> "Figure":
    powers = column not in heavy.LARGER_IS_BETTER
    drawn = []
    for row, form in heavy.FORMS.items():
        if (row, column) in values:
            heights = values[row, column]
            if powers:
                heights = np.log10(np.maximum(heights, 1e-6))
            drawn.append(Violin(form.short, heights, COLOURS[form.kind]))
    every = np.concatenate([np.asarray(violin.values) for violin in drawn])
    target = heavy.TARGETS[column]
    if powers:
        target = float(np.log10(target))
    low = min(float(np.quantile(every, 0.01)), target)
    high = max(float(every.max()), target)
    margin = 0.04 * (high - low) or 0.1
    limits = (low - margin, high + margin) if powers else (0.0, 1000.0)
    return violins(column, drawn, limits, [target], powers=powers)


def _distributions(values: study.Values, column: str) -> study.Picture:
    groups = {
        "as published": {
            heavy.published_row(method): number for method, number in LINES.items()
        },
        "as run": {
            heavy.as_run_row(method): number for method, number in LINES.items()
        },
        "sound": {heavy.sound_row(method): number for method, number in LINES.items()},
        "beyond the paper": {heavy.RECOMMENDED: 8},
        "without privacy": {heavy.NON_PRIVATE: 8},
    }
    panels = []
    for title, rows in groups.items():
        known = {
            row: number
            for row, number in rows.items()
            if (row, heavy.place_name(column, 0)) in values
        }
        if known:
            drawn = [
                Line(_shares(values, row, column), number)
                for row, number in known.items()
            ]
            drawn.append(Line(_shares(values, TRAINING, column), 1, paper=True))
            panels.append(
                shares(title, column.upper(), heavy.PLACES[column], drawn, TICKS)
            )
    return study.Picture(
        title=f"Distribution of {column.upper()} ({FIGURES[column]})",
        panels=panels,
        caption="Share of values up to each place, on a logarithmic axis, mean over "
        "replicates. What lies below it, "
        "negative values too, is in its first value.",
        key=DISTRIBUTIONS,
    )


def _shares(values: study.Values, row: str, column: str) -> list[float]:
    return [
        float(values[row, heavy.place_name(column, number)].mean())
        for number in range(len(heavy.PLACES[column]))
    ]


# What the paper says of its simulation, and our own targets.

MET = "met"
MISSED = "not met"
UNDECIDED = "within Monte Carlo error"
KNG = "KNG"
EXTENDED = tuple(method for method in heavy.SCHEMES if method != KNG)


class HeavyFigures(study.Figures):
    """Our means and their errors, of the rows as published or as made sound."""

    def __init__(self, table: pd.DataFrame, row_of: Callable[[str], str]) -> None:
        super().__init__(table)
        self.row_of = row_of

    def has(self, *rows: str) -> bool:
        """Return whether all rows were made."""
        return not any(math.isnan(self.at(row, heavy.MEASURES[0])) for row in rows)

    def better(self, column: str, one: str, other: str) -> bool | None:
        """Return whether a row is better than another; None within two standard errors
        of their difference.
        """
        gap = self.at(one, column) - self.at(other, column)
        spread = 2 * math.hypot(self.error(one, column), self.error(other, column))
        return None if not abs(gap) > spread else better(column, gap, 0.0)

    def compare(
        self, pairs: Sequence[tuple[str, str]], columns: Sequence[str]
    ) -> study.Said:
        """Count in how many measures the first of two methods is better than the
        second, and in how many worse.
        """
        parts = []
        right = []
        for one, other in pairs:
            rows = (self.row_of(one), self.row_of(other))
            wins = {column: self.better(column, *rows) for column in columns}
            verdicts = list(wins.values())
            worse = [column for column in columns if wins[column] is False]
            more = ""
            if 0 < len(worse) < len(columns):
                more = f", worse in {', '.join(worse)}"
            if None in verdicts:
                more += f", {verdicts.count(None)} undecided"
            parts.append(f"{one} {verdicts.count(True)} of {len(verdicts)}{more}")
            right += verdicts
        return (
            f"Better by more than two standard errors in: {'; '.join(parts)}."
        ), decided(right)


def decided(right: Sequence[bool | None]) -> str:
    """Return the verdict on comparisons of which some are within Monte Carlo error."""
    return (
        study.verdict([each is True for each in right])
        if {True, False} & {*right}
        else UNDECIDED
    )


claims, starts, price = (study.Claims[HeavyFigures]("heavy-tailed") for _ in range(3))


def better(column: str, one: float, other: float) -> bool:
    """Return whether a figure of a measure is better than another."""
    return one > other if column in heavy.LARGER_IS_BETTER else one < other


@claims
def _better_than_kng(seen: HeavyFigures) -> study.Said:
    return seen.compare([(method, KNG) for method in EXTENDED], heavy.MEASURES)


@claims
def _sandwich(seen: HeavyFigures) -> study.Said:
    pairs = [
        (f"Sandwich - {slopes}", f"Stepwise - {slopes}")
        for slopes in ("Fixed", "Varying")
    ]
    return seen.compare(pairs, heavy.GENERAL)


@claims
def _better_than_pmse(seen: HeavyFigures) -> study.Said:
    other = seen.row_of(heavy.PMSE)
    worse = []
    not_worse = []
    for method, column in product(EXTENDED, heavy.MEASURES):
        if (method, column) == (EXTENDED[1], "KM"):
            continue
        wins = seen.better(column, seen.row_of(method), other)
        not_worse.append(wins is not False)
        if wins is False:
            worse.append(f"{method} in {column}")
    text = (
        f"Worse by more than two standard errors: {', '.join(worse) or 'none'}, "
        f"of {len(not_worse)} comparisons."
    )
    return text, not_worse


@claims
def _fixed_slopes(seen: HeavyFigures) -> study.Said:
    pairs = [
        (f"{scheme} - Fixed", f"{scheme} - Varying")
        for scheme in ("Stepwise", "Sandwich")
    ]
    return seen.compare(pairs, heavy.MEASURES[4:6])


@claims
def _prediction(seen: HeavyFigures) -> study.Said:
    parts = []
    alike = []
    for column in heavy.MEASURES[6:]:
        values = [seen.at(seen.row_of(method), column) for method in EXTENDED]
        low = min(values)
        high = max(values)
        reference = seen.at(heavy.NON_PRIVATE, column)
        parts.append(
            f"{column} {_figure(low)} to {_figure(high)}, without privacy "
            f"{_figure(reference)}"
        )
        alike.append(high <= 1.05 * low)
    return f"{'; '.join(parts)}.", alike


def _run_row(method: str) -> str:
    return (
        heavy.published_row(heavy.PMSE)
        if method == heavy.PMSE
        else heavy.as_run_row(method)
    )


FORMS_OF_CLAIMS: Mapping[str, Callable[[str], str]] = {
    "as the authors ran them (pMSE mechanism as published)": _run_row,
    "as published": heavy.published_row,
    "sound": heavy.sound_row,
}

AGREEMENT: Mapping[str, Callable[[str], str]] = {
    "The printed figures are those of the authors' chains (tables 1 and 2; pMSE "
    "mechanism as published).": _run_row,
    "The printed figures are those of the stated methods (tables 1 and "
    "2).": heavy.published_row,
}


def _agreement(seen: HeavyFigures, claim: str, rows: Sequence[str]) -> study.Finding:
    """Say where our means are within three standard errors of the paper's, both errors
    and its rounding counted.
    """
    agree = []
    parts = []
    for row in rows:
        method = row.rpartition(" (")[0] or row
        means = heavy.PRINTED[method]
        errors = heavy.ERRORS[method]
        near = 0
        for column, printed, error in zip(heavy.MEASURES, means, errors, strict=True):
            gap = abs(seen.at(row, column) - printed)
            spread = math.hypot(error, np.nan_to_num(seen.error(row, column)))
            near += gap <= 3 * spread + error / 2
        agree.append(near)
        parts.append(f"{method} {near} of {len(heavy.MEASURES)}")
    text = f"Within three standard errors of ours: {', '.join(parts)}."
    whole = sum(agree) == len(rows) * len(heavy.MEASURES)
    return study.Finding(
        claim=claim, found=text, verdict=study.verdict([whole, sum(agree) > 0])
    )


@starts
def _starts(seen: HeavyFigures) -> study.Said:
    zero = heavy.as_run_row(KNG)
    moved = heavy.as_run_row(heavy.STARTED)
    parts = []
    least = []
    for column in heavy.MEASURES:
        start = seen.at(zero, column)
        closed = start - seen.at(moved, column)
        shares = [
            closed / (start - seen.at(heavy.as_run_row(method), column))
            for method in EXTENDED
        ]
        parts.append(f"{column} {min(shares):.0%} to {max(shares):.0%}")
        least.append(min(shares))
    return study.say([share > 0.5 for share in least], text=", ".join(parts))


@price
def _price(seen: HeavyFigures) -> study.Said | None:
    spent = dict[str, float]()
    for method in heavy.SCHEMES:
        epsilon = seen.at(heavy.published_row(method), TRUE)
        if not math.isnan(epsilon):
            spent[method] = epsilon
    if not spent:
        return None
    text = ", ".join(f"{method} {epsilon:.2f}" for method, epsilon in spent.items())
    return study.say([max(spent.values()) <= 1], text=text)


def _target(seen: HeavyFigures, column: str) -> study.Finding:
    """Say whether our mechanism reaches a target, with the best published row beside
    it.
    """
    target = heavy.TARGETS[column]
    larger = column in heavy.LARGER_IS_BETTER
    best = max if larger else min
    here = seen.at(heavy.RECOMMENDED, column)
    error = seen.error(heavy.RECOMMENDED, column)
    number = heavy.MEASURES.index(column)
    printed = best(
        values[number]
        for row, values in heavy.PRINTED.items()
        if row != heavy.NON_PRIVATE
    )
    text = _figure(here)
    if not math.isnan(error):
        text += f" ± {error:.2g}"
    text += (
        f" at a true epsilon of {seen.at(heavy.RECOMMENDED, TRUE):g}; the best "
        f"private row that the paper prints has {printed:g}"
    )
    published = [
        seen.at(row, column)
        for row, form in heavy.FORMS.items()
        if form.kind == "published" and seen.has(row)
    ]
    if published:
        text += f", the best published row here {_figure(best(published))}"
    if seen.has(heavy.FRESH):
        text += f", a fresh sample {_figure(seen.at(heavy.FRESH, column))}"
    is_met = here >= target if larger else here <= target
    bound = "at least" if larger else "at most"
    return study.Finding(
        claim=f"(Ours) {heavy.RECOMMENDED}: {column} {bound} {target:g}.",
        found=f"{text}.",
        verdict=MET if is_met else MISSED,
    )


def _figure(value: float) -> str:
    if abs(value) < 0.05:
        return f"{value:.4f}"
    if abs(value) < 10:
        return f"{value:.3f}"
    return f"{value:.1f}"
