"""What paper 002 says of its simulation, and our own targets, held against the table."""

import math
from collections.abc import Callable, Sequence

import pandas as pd

from pdips_papers.harness.framework import Finding
from pdips_papers.kng.heavy_forms import FORMS, FRESH, NON_PRIVATE, PMSE, RECOMMENDED, SCHEMES, published_row, sound_row
from pdips_papers.kng.heavy_paper import ERRORS, GENERAL, LARGER_IS_BETTER, MEASURES, PRINTED, TARGETS
from pdips_papers.kng.heavy_tailed import TRUE
from pdips_papers.modips.words import FAILS, HOLDS, PARTLY

MET, MISSED = "met", "not met"
KNG = "KNG"
EXTENDED = tuple(method for method in SCHEMES if method != KNG)


class Figures:
    """Our means and their errors, by row and measure."""

    def __init__(self, table: pd.DataFrame) -> None:
        self._found = {
            (row, column): (ours, error)
            for row, column, ours, error in table[["row", "column", "ours", "standard_error"]].values.tolist()
        }

    def has(self, *rows: str) -> bool:
        """Return whether all rows were made."""
        return all((row, MEASURES[0]) in self._found for row in rows)

    def at(self, row: str, column: str) -> float:
        """Return a mean; NaN if there is none."""
        return float(self._found.get((row, column), (math.nan, math.nan))[0])

    def error(self, row: str, column: str) -> float:
        """Return its standard error, NaN with a single replicate."""
        return float(self._found.get((row, column), (math.nan, math.nan))[1])


def findings(table: pd.DataFrame) -> list[Finding]:
    """Return the paper's claims as far as their rows were made, its price, and the targets."""
    seen = Figures(table)
    found = []
    for name, row_of in (("as published", published_row), ("sound", sound_row)):
        if seen.has(*(row_of(method) for method in (*SCHEMES, PMSE))):
            found += [
                check(seen, name, row_of)
                for check in (_better_than_kng, _sandwich, _better_than_pmse, _fixed_slopes, _prediction)
            ]
    agreeing = [row for row in (NON_PRIVATE, *map(published_row, (*SCHEMES, PMSE))) if seen.has(row)]
    if agreeing:
        found += [_agreement(seen, agreeing), *_price(seen, agreeing)]
    return found + (_targets(seen) if seen.has(RECOMMENDED) else [])


def better(column: str, one: float, other: float) -> bool:
    """Return whether a figure of a measure is better than another."""
    return one > other if column in LARGER_IS_BETTER else one < other


def _verdict(right: Sequence[bool]) -> str:
    return HOLDS if all(right) else PARTLY if any(right) else FAILS


def _compare(seen: Figures, pairs: Sequence[tuple[str, str]], columns: Sequence[str]) -> tuple[str, str]:
    """Count in how many measures the first of two rows is better; return the counts in words, and the verdict."""
    right = [
        [better(column, seen.at(one, column), seen.at(other, column)) for column in columns] for one, other in pairs
    ]
    counts = [
        f"{one.partition(' (')[0]} {sum(each)} of {len(each)}"
        + (f" ({', '.join(worse)} worse)" if 0 < len(worse := _worse(columns, each)) < len(each) else "")
        for (one, _), each in zip(pairs, right, strict=True)
    ]
    return f"Better in: {'; '.join(counts)}.", _verdict([won for each in right for won in each])


def _worse(columns: Sequence[str], right: Sequence[bool]) -> list[str]:
    return [column for column, won in zip(columns, right, strict=True) if not won]


Row = Callable[[str], str]


def _better_than_kng(seen: Figures, name: str, row_of: Row) -> Finding:
    text, verdict = _compare(seen, [(row_of(method), row_of(KNG)) for method in EXTENDED], MEASURES)
    return Finding(
        claim=f"The four extended methods perform better than KNG across all measures (4.2 and 4.3); {name}.",
        found=text,
        verdict=verdict,
    )


def _sandwich(seen: Figures, name: str, row_of: Row) -> Finding:
    pairs = [(row_of(f"Sandwich - {slopes}"), row_of(f"Stepwise - {slopes}")) for slopes in ("Fixed", "Varying")]
    text, verdict = _compare(seen, pairs, GENERAL)
    return Finding(
        claim=f"Sandwich performs slightly better than stepwise across the measures of general utility (4.2); {name}.",
        found=text,
        verdict=verdict,
    )


def _better_than_pmse(seen: Figures, name: str, row_of: Row) -> Finding:
    text, verdict = _compare(seen, [(row_of(method), row_of(PMSE)) for method in EXTENDED], MEASURES)
    return Finding(
        claim="The four extended methods perform as well as the pMSE mechanism or better, but for KM of stepwise with "
        f"varying slopes (4.2 and 4.3); {name}.",
        found=text,
        verdict=verdict,
    )


def _fixed_slopes(seen: Figures, name: str, row_of: Row) -> Finding:
    pairs = [(row_of(f"{scheme} - Fixed"), row_of(f"{scheme} - Varying")) for scheme in ("Stepwise", "Sandwich")]
    text, verdict = _compare(seen, pairs, MEASURES[4:6])
    return Finding(
        claim=f"Fixed slopes are best for the intercept and the slope, as the data have fixed slopes (4.3); {name}.",
        found=text,
        verdict=verdict,
    )


def _prediction(seen: Figures, name: str, row_of: Row) -> Finding:
    spans = []
    for column in MEASURES[6:]:
        values = [seen.at(row_of(method), column) for method in EXTENDED]
        spans.append((column, min(values), max(values), seen.at(NON_PRIVATE, column)))
    text = "; ".join(
        f"{column} {_figure(low)} to {_figure(high)}, without privacy {_figure(reference)}"
        for column, low, high, reference in spans
    )
    alike = [high <= 1.05 * low for _, low, high, _ in spans]
    return Finding(
        claim=f"In NRMSE the four extended methods perform roughly the same (4.3); {name}.",
        found=f"{text}.",
        verdict=_verdict(alike),
    )


def _agreement(seen: Figures, rows: Sequence[str]) -> Finding:
    """Say where our means are within three standard errors of the paper's, both errors and its rounding counted."""
    agree, total, parts = 0, 0, []
    for row in rows:
        method = row.removesuffix(" (published)")
        near = 0
        for column, printed, error in zip(MEASURES, PRINTED[method], ERRORS[method], strict=True):
            own = seen.error(row, column)
            spread = math.hypot(error, 0.0 if math.isnan(own) else own)
            near += abs(seen.at(row, column) - printed) <= 3 * spread + error / 2
        agree, total = agree + near, total + len(MEASURES)
        parts.append(f"{method} {near} of {len(MEASURES)}")
    return Finding(
        claim="The printed figures are those of the stated methods (tables 1 and 2).",
        found=f"Within three standard errors of ours: {', '.join(parts)}. The paper's private rows come from short "
        "chains that start at the estimate without privacy, not from the density that it states.",
        verdict=HOLDS if agree == total else PARTLY if agree else FAILS,
    )


def _price(seen: Figures, rows: Sequence[str]) -> list[Finding]:
    spent = {row.removesuffix(" (published)"): seen.at(row, TRUE) for row in rows}
    known = {method: value for method, value in spent.items() if not math.isnan(value)}
    if not known:
        return []
    text = ", ".join(f"{method} {value:.2f}" for method, value in known.items())
    return [
        Finding(
            claim="The private rows satisfy 1-differential privacy (4.1).",
            found=f"Drawn exactly from the printed density they spend {text}; as the paper ran them, and the published "
            "pMSE mechanism in any case, no bound is known.",
            verdict=HOLDS if max(known.values()) <= 1 else FAILS,
        )
    ]


def _targets(seen: Figures) -> list[Finding]:
    """Return our targets, one a measure, and the best published row beside."""
    found = []
    published = [row for row, form in FORMS.items() if form.kind == "published" and seen.has(row)]
    for column, target in TARGETS.items():
        here, least = seen.at(RECOMMENDED, column), column in LARGER_IS_BETTER
        error = seen.error(RECOMMENDED, column)
        printed = [values[MEASURES.index(column)] for row, values in PRINTED.items() if row != NON_PRIVATE]
        text = f"{_figure(here)}" + ("" if math.isnan(error) else f" ± {error:.2g}")
        text += f" at a true epsilon of {seen.at(RECOMMENDED, TRUE):g}"
        text += f"; the best private row that the paper prints has {max(printed) if least else min(printed):g}"
        if published:
            ours = [seen.at(row, column) for row in published]
            text += f", the best published row here {_figure(max(ours) if least else min(ours))}"
        if seen.has(FRESH):
            text += f", a fresh sample {_figure(seen.at(FRESH, column))}"
        met = here >= target if least else here <= target
        found.append(
            Finding(
                claim=f"(Ours) {RECOMMENDED}: {column} {'at least' if least else 'at most'} {target:g}.",
                found=f"{text}.",
                verdict=MET if met else MISSED,
            )
        )
    return found


def _figure(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 0.05 else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
