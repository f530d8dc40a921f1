"""Run the long audits and write their tables into ``docs/results/audit.md``:
``make audit``."""

import argparse
import math
import re
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.path_classes import (
    CAPS,
    ClassSummary,
    PathClass,
    path_classes,
    summarised,
)
from pdips.audit import (
    Finding,
    audit_cases,
    certify_postprocessing,
    registered_cases,
    worst_by_pair,
)
from pdips.audit.findings import along_paths
from pdips.audit.random_pairs import random_pair
from pdips.errors import InputError
from pdips.registry import AUDITS, find, variants_of

PAGE = Path(__file__).parents[1] / "docs" / "results" / "audit.md"
RUNS = 400_000
PAIRS = 10  # At each cap of each class and relation
CERTIFIED = 3  # Pairs of each class and relation
CONFIDENCE = 0.95
SETTINGS: tuple[dict[str, str], ...] = (
    {},
    {"neighbours": "add-remove"},
    {"variant": "published"},
)


def offered(name: str, settings: dict[str, str]) -> bool:
    """Whether a mechanism offers a relation or a variant."""
    return all(
        value in (*find(name).offers.relations, *variants_of(name))
        for value in settings.values()
    )


def line(finding: Finding) -> str:
    """Return a finding as a row of a Markdown table."""
    who = f"{finding.mechanism} {finding.settings}".strip()
    what = (
        f"{who} | {finding.variant} | {finding.neighbours} | "
        f"{finding.pair.partition(':')[0]} | {finding.engine}"
    )
    unit = " rho" if finding.unit == "rho" else ""
    bound = f"{finding.bound:.6f}" if unit else f"{finding.bound:.3f}"
    return f"| {what} | {finding.claim:g}{unit} | {bound} | {finding.verdict} |"


def class_line(summary: ClassSummary) -> str:
    """Return the largest ratios of a class as a row."""
    largest = [
        # rounded up: a ratio above 1 isn't written as 1
        f"{math.ceil(summary.largest[cap] * 1e6 - 1e-3) / 1e6:.6f}"
        if cap in summary.largest
        else ""
        for cap in CAPS
    ]
    of = f"{summary.path_class} | {summary.neighbours}"
    return f"| {of} | {summary.n_pairs} | {' | '.join(largest)} |"


def certified(path_class: PathClass, neighbours: Any, n_pairs: int) -> tuple[int, int]:
    """Return how many certificates were tried on a class, and how many failed."""
    made = path_class.build(neighbours, 8)
    n_tried = n_failed = 0
    for number in range(n_pairs):
        rng = np.random.default_rng([1, number])
        schema = path_class.schema(path_class.caps[number % len(path_class.caps)], rng)
        try:
            plan = made.plan(schema)
        except InputError:
            continue
        pair = random_pair(schema, neighbours, rng)
        found = certify_postprocessing(made, pair, seed=number, plan=plan)
        n_tried += 1
        n_failed += not found.holds
    return n_tried, n_failed


def paths(n_pairs: int) -> str:
    """Follow all classes along paths, and return their table and what it says."""
    start = time.perf_counter()
    rows = list[str]()
    n_total = n_above = n_tried = n_failed = 0
    for path_class in path_classes():
        for neighbours in path_class.relations:
            summary = summarised(path_class, neighbours, n_pairs)
            rows.append(class_line(summary))
            n_total += summary.n_pairs
            n_above += summary.ratio > 1 + 1e-9 or bool(summary.faults)
            tried, failed = certified(
                path_class, neighbours, math.ceil(CERTIFIED * path_class.share)
            )
            n_tried += tried
            n_failed += failed
            print(rows[-1], flush=True)
    minutes = (time.perf_counter() - start) / 60
    header = (
        "| class | neighbours | pairs | cap 1 | cap 2 | cap 3 |\n" + "| --- " * 6 + "|"
    )
    said = (
        f"{date.today().isoformat()}: {n_total:,} pairs; classes above 1: {n_above}. "
        f"Certificates of post-processing: {n_tried:,}; failed: {n_failed}. "
        f"{minutes:.0f} minutes.\n"
    )
    return "\n".join([said, header, *rows])


def written(marker: str, text: str) -> None:
    """Replace what stands between two marks on the page."""
    page = PAGE.read_text(encoding="utf-8")
    fenced = f"<!-- {marker} -->\n\n{text}\n\n<!-- end -->"
    pattern = rf"(?s)<!-- {marker} -->.*?<!-- end -->"
    PAGE.write_text(re.sub(pattern, lambda _: fenced, page), encoding="utf-8")


def main() -> None:
    """Audit, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--paths", action="store_true", help="losses along paths alone")
    asked = parser.parse_args()
    written("made by make audit: paths", paths(asked.pairs))
    if not asked.paths:
        audits(asked.runs)


def audits(n_runs: int) -> None:
    """Audit by enumeration and by runs, and write the page."""
    rows = []
    seconds = {}
    for name in AUDITS:
        for settings in SETTINGS:
            if not offered(name, settings):
                continue
            cases = registered_cases(name, **settings)
            cases += along_paths(cases, np.random.default_rng(0))
            start = time.perf_counter()
            rows += [
                line(found)
                for found in worst_by_pair(
                    audit_cases(cases, n_runs=n_runs, confidence=CONFIDENCE)
                )
            ]
            seconds[f"{name} {' '.join(settings.values()) or 'sound'}"] = (
                time.perf_counter() - start
            )
    header = (
        (
            "| mechanism | variant | neighbours | pair | engine | claim | bound | "
            "verdict |\n"
        )
        + "| --- " * 8
        + "|"
    )
    took = f"{sum(seconds.values()):.0f} s in all"
    text = "\n".join(
        [
            f"{date.today().isoformat()}, {n_runs:,} runs on each table, confidence "
            f"{CONFIDENCE:g} for each mechanism "
            f"and setting together; wall time on two cores: {took}.\n",
            header,
            *rows,
        ]
    )
    written("made by make audit", text)
    print(text)


if __name__ == "__main__":
    main()
