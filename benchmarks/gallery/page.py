"""The page of the gallery: which models, what came of them, and which families."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pymc as pm

from benchmarks.gallery.entries import Entry
from benchmarks.gallery.families import Verdict
from benchmarks.gallery.run import (
    ACCEPTED,
    AMENDED,
    AS_WRITTEN,
    DELTA,
    EPSILON,
    FAILED,
    REFUSED,
    TAKEN,
    Outcome,
)
from pdips.release.public_draws import CONTRADICTED

PAGE = Path(__file__).parents[2] / "docs" / "results" / "gallery.md"
COMMAND = "python -m benchmarks.gallery --page"
# Longest sentence that a table shows
LONGEST = 300

Outcomes = Mapping[tuple[str, str], Outcome]

SOURCES = {
    "pymc": "PyMC's example gallery",
    "bambi": "Bambi's example gallery",
    "posteriordb": "posteriordb: models of Gelman and Hill (2007)",
    "pdips": "the project's battery",
}

INTRODUCTION = """# Gallery

Thirty models, each from its source's text to a private posterior by `pdips.sample`, of
records that are drawn from it at known parameters. {command}, {when}, PyMC {version},
epsilon {epsilon} at delta {delta}. Covariates are public.

The models were chosen by a rule before one of them was run, every k-th of each source
(`benchmarks/gallery/chosen.toml`), and are written as the source has them. Where one is
refused and the sentence says how to write it, the model written so is the next line.

{counted}

*Taken*: passes all checks before a record is read; its release was not run. *CPU s*: of
one core, in brackets until records are read. *Effective*: independent draws, the least
of all parameters. *Covered*: 95 % intervals that hold the simulation's parameter.
*Misfit*: how often noisy answers would be as far off if the model is right; below
{contradicted} pdips says that they contradict it.
"""

HEAD = (
    "| model | family | ending | CPU s | drawn by | effective | "
    "R-hat | covered | misfit |\n|---|---|---|---|---|---|---|---|---|"
)

SENTENCES = "| model | sentence |\n|---|---|"

FAMILIES = """## Families

Families of models in a few lines each, as they are taken before a table is read: built
on made-up records, the terms of many records compared with that of one, and gradients
taken. `x`, `region`, `year` and `followed` are public.
"""


def write_page(
    galleries: Mapping[str, Sequence[Entry]],
    outcomes: Outcomes,
    verdicts: Sequence[Verdict],
) -> None:
    """Write the page, from what came of the models."""
    parts = [_introduction(outcomes)]
    for gallery, models in galleries.items():
        parts.append(f"## From {SOURCES[gallery]}\n")
        parts.append(_table(models, outcomes))
        parts.append(_sentences(models, outcomes))
    parts.append(FAMILIES)
    parts.append(_families(verdicts))
    PAGE.write_text("\n".join(part for part in parts if part), encoding="utf-8")


def _introduction(outcomes: Outcomes) -> str:
    as_written = [found for (_, form), found in outcomes.items() if form == AS_WRITTEN]
    number = {
        ending: sum(found.ending == ending for found in as_written)
        for ending in (ACCEPTED, TAKEN, REFUSED, FAILED)
    }
    others = [found for (_, form), found in outcomes.items() if form == AMENDED]
    released = [found for found in outcomes.values() if found.ending == ACCEPTED]
    n_covered = sum(found.covered for found in released)
    n_known = sum(found.n_known for found in released)
    counted = (
        f"As written {number[ACCEPTED]} are accepted, {number[TAKEN]} more are taken "
        f"by all checks and were not released, {number[REFUSED]} are refused and "
        f"{number[FAILED]} failed. Of {len(others)} written otherwise "
        f"{sum(found.ending in (ACCEPTED, TAKEN) for found in others)} are accepted or "
        f"taken. "
        f"{n_covered} of {n_known} intervals hold the parameter."
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=PAGE.parent,
    ).stdout.strip()
    return INTRODUCTION.format(
        command=f"`{COMMAND}`,\nat commit `{commit}`",
        when=datetime.now(UTC).date().isoformat(),
        version=pm.__version__,
        epsilon=EPSILON,
        delta=DELTA,
        counted=counted,
        contradicted=CONTRADICTED,
    )


def _table(models: Sequence[Entry], outcomes: Outcomes) -> str:
    lines = [HEAD]
    for entry in models:
        for form in (AS_WRITTEN, AMENDED):
            found = outcomes.get((entry.name, form))
            if found is not None:
                lines.append(_row(entry, found))
    return "\n".join(lines) + "\n"


def _row(entry: Entry, found: Outcome) -> str:
    name = f"`{entry.name}`"
    family = entry.family
    written = entry.written
    if found.form == AMENDED and entry.amended is not None:
        name = ""
        written = entry.amended
    if written.said:
        family = f"{family}; {written.said}"
    if found.ending != ACCEPTED:
        return f"| {name} | {family} | {found.ending} | {found.cpu:.0f} | | | | | |"
    to_plan = found.cpu * found.to_plan / (found.to_plan + found.release)
    seconds = f"{found.cpu:.0f} ({to_plan:.0f})"
    return (
        f"| {name} | {family} | {found.ending} | {seconds} | {found.sampler} | "
        f"{found.effective:.0f} | {found.rhat:.2f} | {found.covered} of "
        f"{found.n_known} | {found.misfit:.2g} |"
    )


def _sentences(models: Sequence[Entry], outcomes: Outcomes) -> str:
    """Return the sentences of the refusals, as rows of a table."""
    lines = []
    for entry in models:
        for form in (AS_WRITTEN, AMENDED):
            found = outcomes.get((entry.name, form))
            if found is not None and found.sentence:
                lines.append(f"| `{entry.name}`, {form} | {plain(found.sentence)} |")
    return "\n".join([SENTENCES, *lines]) + "\n" if lines else ""


def _families(verdicts: Sequence[Verdict]) -> str:
    lines = ["| family | example | ending | sentence |", "|---|---|---|---|"]
    for verdict in verdicts:
        lines.append(
            f"| {verdict.family} | `{verdict.example}` | {verdict.ending} | "
            f"{plain(verdict.sentence)} |"
        )
    return "\n".join(lines) + "\n"


def plain(sentence: str) -> str:
    """Return a sentence as a cell of a table."""
    cell = re.sub(r"\s+", " ", sentence).replace("|", r"\|")
    cell = cell.replace("<", "&lt;").replace("*", r"\*")
    return cell if len(cell) <= LONGEST else f"{cell[:LONGEST]} ..."
