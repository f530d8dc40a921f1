"""What paper 000 says of its table 3, held against ours."""

from collections.abc import Callable
from itertools import pairwise

import pandas as pd

from pdips_papers.harness.framework import Finding
from pdips_papers.modips.words import FAILS, HOLDS, PARTLY, TO_COME
from pdips_papers.steps.voter import SCORE
from pdips_papers.steps.voter_data import MEASURES, PAPER_METHODS, SMALLER_IS_BETTER

CHI_SQUARE = [key for key in MEASURES if key.startswith("consistency")]


class Figures:
    """Our figures of the published forms, by place and method."""

    def __init__(self, table: pd.DataFrame) -> None:
        self._found = {
            (row, column): (ours, paper)
            for row, column, ours, paper in table[["row", "column", "ours", "paper"]].itertuples(index=False)
        }
        rows = [row for row, _ in self._found if row.endswith("(published)") and ": " in row]
        self.places = list(dict.fromkeys(row.partition(": ")[0] for row in rows))
        self.complete = bool(rows) and all(
            f"{place}: {method} (published)" in rows for place in self.places for method in PAPER_METHODS
        )

    def at(self, place: str, method: str, column: str, side: int = 0) -> float:
        """Return our figure, or with side 1 the paper's."""
        return float(self._found[f"{place}: {method} (published)", column][side])

    def best(self, place: str, key: str) -> float:
        """Return the best figure of a measure among the six methods, as printed."""
        choose: Callable[..., float] = min if key in SMALLER_IS_BETTER else max
        return choose(round(self.at(place, method, MEASURES[key]), 3) for method in PAPER_METHODS)


def findings(table: pd.DataFrame) -> list[Finding]:
    """Return the paper's claims and what the table says of each; without all six methods, nothing."""
    seen = Figures(table)
    if not seen.complete:
        return []
    return [_overall(seen), _specks(seen), _chi_square(seen), _informed(seen), _decreases(seen)]


def _overall(seen: Figures) -> Finding:
    sums = {method: sum(seen.at(place, method, SCORE) for place in seen.places) for method in PAPER_METHODS}
    papers = {method: sum(seen.at(place, method, SCORE, 1) for place in seen.places) for method in PAPER_METHODS}
    order = sorted(sums, key=sums.__getitem__)
    text = ", ".join(
        f"{method} {sums[method]:.0f}" + (f" ({papers[method]:.0f})" if papers[method] == papers[method] else "")
        for method in order
    )
    if {*order[:2]} == {"STEPS-2", "STEPS-3"}:
        verdict = HOLDS if order[2] == "flat Laplace" else PARTLY
    else:
        verdict = PARTLY if order[0].startswith("STEPS") else FAILS
    return Finding(
        claim="All analyses taken together, STEPS-2 and STEPS-3 are best, followed by the flat Laplace sanitizer "
        "(section 4.3.1).",
        found=f"Overall scores summed over epsilons, the paper's in parentheses: {text}.",
        verdict=verdict,
    )


def _specks(seen: Figures) -> Finding:
    label = MEASURES["ks_distance"]
    wins = [round(seen.at(place, "PrivBayes", label), 3) == seen.best(place, "ks_distance") for place in seen.places]
    text = "; ".join(
        f"{place}, PrivBayes {seen.at(place, 'PrivBayes', label):.3f}, best of the others "
        f"{min(seen.at(place, method, label) for method in PAPER_METHODS if method != 'PrivBayes'):.3f}"
        for place in seen.places
    )
    return Finding(
        claim="PrivBayes has by far the smallest KS distance at all epsilons (section 4.3.2).",
        found=f"KS distances: {text}.",
        verdict=_verdict(wins),
    )


def _chi_square(seen: Figures) -> Finding:
    wins = [
        round(seen.at(place, "flat Laplace", MEASURES[key]), 3) == seen.best(place, key)
        for place in seen.places
        for key in CHI_SQUARE
    ]
    return Finding(
        claim="In the chi-square tests the flat Laplace sanitizer is best, followed by STEPS (section 4.3.3).",
        found=f"Flat Laplace has the highest consistency rate in {sum(wins)} of {len(wins)} comparisons.",
        verdict=_verdict(wins),
    )


def _informed(seen: Figures) -> Finding:
    wins = []
    for place in seen.places:
        for key, label in MEASURES.items():
            for layers in (2, 3):
                steps, uh = (round(seen.at(place, f"{name}-{layers}", label), 3) for name in ("STEPS", "UH modified"))
                wins.append(steps <= uh if key in SMALLER_IS_BETTER else steps >= uh)
    share = sum(wins) / len(wins)
    return Finding(
        claim="STEPS outperforms random partitioning, UH modified, on almost all measures (section 4.3.1).",
        found=f"STEPS-L is at least as good as UH modified-L in {sum(wins)} of {len(wins)} comparisons.",
        verdict=HOLDS if share > 0.8 else PARTLY if share > 0.5 else FAILS,
    )


def _decreases(seen: Figures) -> Finding:
    label = MEASURES["ks_distance"]
    places = sorted(seen.places, key=lambda place: float(place.rpartition("= ")[2]))
    falls = {
        method: all(
            seen.at(after, method, label) <= seen.at(before, method, label) + 0.0005
            for before, after in pairwise(places)
        )
        for method in PAPER_METHODS
    }
    exceptions = [method for method, fall in falls.items() if not fall]
    return Finding(
        claim="For all methods the KS distance decreases as epsilon increases (section 4.3.2).",
        found=f"It does{', but for ' + ', '.join(exceptions) if exceptions else ' for all six'}.",
        verdict=TO_COME if len(places) < 2 else _verdict(list(falls.values())),
    )


def _verdict(right: list[bool]) -> str:
    return HOLDS if all(right) else PARTLY if any(right) else FAILS
