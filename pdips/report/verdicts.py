"""The plain line that opens each section of the curator's report."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["good", "watch", "bad", "open"]
WORDS: dict[Level, str] = {"good": "In order", "watch": "Look closer", "bad": "Not in order", "open": "Not known"}


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
