"""The plain line that opens each section of the curator's report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["good", "watch", "bad", "open"]
WORDS: dict[Level, str] = {"good": "In order", "watch": "Look closer", "bad": "Not in order", "open": "Open"}
SIGNS: dict[Level, str] = {"good": "\N{CHECK MARK}", "watch": "!", "bad": "\N{MULTIPLICATION X}", "open": "?"}
WORST_FIRST: tuple[Level, ...] = ("bad", "watch", "open", "good")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One line on one section.

    Attributes
    ----------
    level : {"good", "watch", "bad", "open"}
        ``open``: what it would take to judge is not there.
    line : str
        A sentence that says what was found, by which rule.
    """

    level: Level
    line: str

    @property
    def word(self) -> str:
        """The level as a reader sees it, so that colour alone says nothing."""
        return WORDS[self.level]

    @property
    def sign(self) -> str:
        """The level as one character, which a screen reader passes over: the word says it."""
        return SIGNS[self.level]


def worst(found: Sequence[Verdict], otherwise: Verdict) -> Verdict:
    """Return the worst of what was found, its line followed by the lines of the others; ``otherwise`` for none."""
    if not found:
        return otherwise
    ordered = sorted(found, key=lambda verdict: WORST_FIRST.index(verdict.level))
    return Verdict(level=ordered[0].level, line=" ".join(verdict.line for verdict in ordered))
