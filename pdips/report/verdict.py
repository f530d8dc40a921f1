"""The plain line that opens each section of the curator's report, and the checks that
it sums up.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pdips.report.formats import plural

Level = Literal["good", "watch", "bad", "open"]
WORDS: dict[Level, str] = {
    "good": "Passed",
    "watch": "Needs review",
    "bad": "Failed",
    "open": "Open",
}
COLOURS: dict[Level, str] = {
    "good": "green",
    "watch": "yellow",
    "bad": "red",
    "open": "grey",
}
SIGNS: dict[Level, str] = {
    "good": "\N{CHECK MARK}",
    "watch": "!",
    "bad": "\N{MULTIPLICATION X}",
    "open": "?",
}
WORST_FIRST: tuple[Level, ...] = ("bad", "watch", "open", "good")
DID: dict[Level, tuple[str, str]] = {
    "bad": ("failed", "failed"),
    "watch": ("needs review", "need review"),
    "open": ("could not be made", "could not be made"),
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One line on one section, a ``brief`` one for a terminal, and the level: open
    where nothing tells.
    """

    level: Level
    line: str
    brief: str = ""

    @property
    def short(self) -> str:
        """The colour's name and what was found, on one line."""
        return f"{COLOURS[self.level]:<6}  {self.brief or self.line}"


@dataclass(frozen=True)
class Check:
    """One rule and what it found."""

    name: str
    found: str
    rule: str
    level: Level


def graded(good: bool, *, bad: bool = False) -> Level:
    """Return the level of a rule with two limits; what is neither good nor bad is to be
    looked at.
    """
    if good:
        return "good"
    return "bad" if bad else "watch"


def summed(checks: Sequence[Check]) -> Verdict:
    """Return the verdict of some checks: its level is the worst of theirs; the line
    names those that didn't pass.
    """
    if not checks:
        return Verdict(level="open", line="No check could be made.")
    parts = []
    briefly = []
    for level in WORST_FIRST[:-1]:
        found = [check for check in checks if check.level == level]
        if found:
            did = f"{plural(len(found), 'check')} {DID[level][len(found) > 1]}"
            said = [f"{one.name}: {one.found} (rule: {one.rule})" for one in found]
            names = [one.name for one in found]
            parts.append(f"{did}: {'; '.join(said)}.")
            briefly.append(f"{did}: {', '.join(names)}")
    if not parts:
        line = f"All {len(checks)} checks passed."
        if len(checks) == 1:
            line = "The only check passed."
        return Verdict(level="good", line=line)
    return Verdict(
        level=worst_of(check.level for check in checks),
        line=" ".join(parts),
        brief="; ".join(briefly),
    )


def worst(found: Sequence[Verdict], otherwise: Verdict) -> Verdict:
    """Return the worst of what was found, its line followed by the lines of the others;
    ``otherwise`` for none.
    """
    if not found:
        return otherwise
    ordered = sorted(found, key=lambda verdict: WORST_FIRST.index(verdict.level))
    lines = [verdict.line for verdict in ordered]
    briefly = []
    for verdict in ordered:
        said = verdict.brief or verdict.line
        briefly.append(f"{said.removesuffix('.')}.")
    return Verdict(
        level=ordered[0].level, line=" ".join(lines), brief=" ".join(briefly)
    )


def worst_of(levels: Iterable[Level]) -> Level:
    """Return the worst of some levels; good for none."""
    return min(levels, key=WORST_FIRST.index, default="good")
