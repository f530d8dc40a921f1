"""Run the long audits and write their table into ``docs/audit.md``: ``make audit``."""

import argparse
import re
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from pdips import Steps
from pdips.audit import Finding, audit_cases, registered_cases, worst_by_pair
from pdips.audit.membership import attack
from pdips.audit.neighbour_pairs import Case
from pdips.registry import AUDITS, find, variants_of

PAGE = Path(__file__).parents[1] / "docs" / "audit.md"
RUNS = 400_000
CONFIDENCE = 0.95
SETTINGS: tuple[dict[str, str], ...] = ({}, {"neighbours": "add-remove"}, {"variant": "published"})


ATTACKED = ("laplace-sanitizer", "steps")
"""Membership attacks take 4,000 whole releases each; these two have a published variant to compare with."""


def offered(name: str, settings: dict[str, str]) -> bool:
    """Whether a mechanism offers a relation or a variant."""
    return all(value in (*find(name).relations, *variants_of(name)) for value in settings.values())


def attacked_case(cases: Sequence[Case]) -> Case:
    """Return the first case whose releases are quick: none whose margins have to be fitted."""
    for case in cases:
        made = case.mechanism
        if isinstance(made, Steps) and made.settings()["below"] == "cells":
            return case
    return cases[0]


def line(finding: Finding) -> str:
    """Return a finding as a row of a Markdown table."""
    who = f"{finding.mechanism} {finding.settings}".strip()
    what = f"{who} | {finding.variant} | {finding.neighbours} | {finding.pair.partition(':')[0]} | {finding.engine}"
    return f"| {what} | {finding.claim:g} | {finding.bound:.3f} | {finding.verdict} |"


def attacks(case: Case) -> list[str]:
    """Return the membership attacks on a mechanism as rows."""
    variant = getattr(case.mechanism, "variant", "sound")
    return [
        f"| {case.mechanism.name} | {variant} | {found.score} | {found.false_positive_rate:g} | "
        f"{found.measured_false_positive_rate:.3f} | "
        f"{found.true_positive_rate:.3f} ({found.lower:.3f} to {found.upper:.3f}) | {found.permitted:.3f} |"
        for found in attack(case.mechanism, case.pair)
    ]


def main() -> None:
    """Audit, attack, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    n_runs = parser.parse_args().runs
    rows, attacked, seconds = [], [], {}
    for name in AUDITS:
        for settings in SETTINGS:
            if not offered(name, settings):
                continue
            cases = registered_cases(name, **settings)
            start = time.perf_counter()
            rows += [line(found) for found in worst_by_pair(audit_cases(cases, n_runs=n_runs, confidence=CONFIDENCE))]
            seconds[f"{name} {' '.join(settings.values()) or 'sound'}"] = time.perf_counter() - start
            if "neighbours" not in settings and name in ATTACKED:
                attacked += attacks(attacked_case(cases))
    header = "| mechanism | variant | neighbours | pair | engine | claim | bound | verdict |\n" + "| --- " * 8 + "|"
    against = (
        "| mechanism | variant | score | aim | false positives | true positives | permitted |\n" + "| --- " * 7 + "|"
    )
    took = ", ".join(f"{name} {spent:.0f} s" for name, spent in seconds.items())
    text = "\n".join(
        [
            f"{date.today().isoformat()}, {n_runs:,} runs on each table, confidence {CONFIDENCE:g} for each mechanism "
            f"and setting together; wall time on two cores: {took}.\n",
            header,
            *rows,
            "\nMembership, 2,000 shadow releases of each table (95 % limits for each rate):\n",
            against,
            *attacked,
        ]
    )
    page = PAGE.read_text(encoding="utf-8")
    fenced = f"<!-- made by make audit -->\n\n{text}\n\n<!-- end -->"
    PAGE.write_text(re.sub(r"(?s)<!-- made by make audit -->.*<!-- end -->", lambda _: fenced, page), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
