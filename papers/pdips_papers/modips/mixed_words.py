"""Figures in words for the findings of simulations 3 and 4 of paper 003."""

import math
from collections.abc import Sequence

import numpy as np

from pdips.privacy.loss import positive
from pdips.report.formats import MINUS
from pdips_papers.harness.epsilon_curves import Figures, short

LABELS = {
    "original": "original data",
    "np-dips-published": "NP-DIPS (published)",
    "np-dips": "NP-DIPS",
    "modips-published": "MODIPS (published)",
    "modips-plug-in": "MODIPS plug-in, once",
    "modips-plug-in-common": "MODIPS plug-in, once, common bounds",
    "modips-noise-aware": "MODIPS noise-aware",
    "multiple-synthesis": "multiple synthesis",
    "wrong-published": "wrong model (published)",
    "wrong-plug-in": "wrong model, once",
}


class Averages:
    """Averages of figures over parameters and epsilons, as numbers and in words.

    Parameters
    ----------
    seen : Figures
        What was found. Figures that there aren't are left out.
    """

    def __init__(self, seen: Figures) -> None:
        self.seen = seen

    def of(self, name: str, cases: Sequence[str], measure: str, epsilons: Sequence[str]) -> float:
        """Return the mean over cases and epsilons, of absolute values for the bias; infinite without any."""
        values = np.array(self.seen.over([name], cases, measure, epsilons))
        values = np.abs(values[~np.isnan(values)])
        return float(values.mean()) if len(values) else math.inf

    def words(self, names: Sequence[str], cases: Sequence[str], measure: str, epsilons: Sequence[str]) -> str:
        """Return such means for several methods."""
        shown = (f"{LABELS[name]} {figure(self.of(name, cases, measure, epsilons), measure)}" for name in names)
        return ", ".join(shown)

    def above(self, limit: float) -> list[str]:
        """Return the epsilons above a limit, or the largest one."""
        kept = [epsilon for epsilon in self.seen.epsilons if positive(epsilon, "epsilon") > limit]
        return kept or self.seen.epsilons[-1:]

    def below(self, limit: float) -> list[str]:
        """Return the epsilons below a limit, or the smallest one."""
        return self.seen.below(limit) or self.seen.epsilons[:1]


def figure(value: float, measure: str) -> str:
    """Return a figure in words: a percentage for coverage."""
    if math.isinf(value):
        return "none"
    if measure == "coverage":
        return f"{100 * value:.0f} %"
    return f"{value:.2g}".replace("-", MINUS) if value < 100 else f"{value:,.0f}"


def span(epsilons: Sequence[str]) -> str:
    """Name a run of epsilons by its ends."""
    return short(epsilons[0]) if len(epsilons) == 1 else f"{short(epsilons[0])} to {short(epsilons[-1])}"
