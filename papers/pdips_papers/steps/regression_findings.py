"""What paper 000 says of its figures 2 and 3, held against the table."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from pdips_papers.harness.framework import Finding
from pdips_papers.modips.words import FAILS, HOLDS, PARTLY, TO_COME
from pdips_papers.steps.steps_regression import METHODS, REFERENCES, SUMMARIES, Place

SHOWN = ("published", "sound")
NOMINAL = 0.95


class Figures:
    """Figures of the table, averaged over sizes and epsilons."""

    def __init__(self, table: pd.DataFrame, samples: Sequence[int]) -> None:
        self.samples = samples
        self._ours = dict(zip(zip(table["row"], table["column"], strict=True), table["ours"], strict=True))
        rows = [row for row in table["row"].unique() if "epsilon = " in row]
        self.epsilons = sorted({row.split("epsilon = ")[1].split(":")[0] for row in rows}, key=float)
        self.methods = [method for method in METHODS if any(f": {method} (" in row for row in rows)]

    def at(self, measure: str, *places: Place) -> float:
        """Return the mean of a measure over rows."""
        return float(np.mean([self._ours[str(place), SUMMARIES[measure]] for place in places]))

    def mean(self, number: int, method: str, form: str, measure: str, epsilons: Sequence[str] = ()) -> float:
        """Return the mean of a measure over sizes and epsilons; for coverage, its distance from 95 %."""
        chosen = epsilons or self.epsilons
        places = [Place(number, size, method, form, epsilon) for size in self.samples for epsilon in chosen]
        if measure == "coverage":
            return float(np.mean([abs(self.at(measure, place) - NOMINAL) for place in places]))
        return self.at(measure, *places)


def findings(table: pd.DataFrame, samples: Sequence[int]) -> list[Finding]:
    """Return the paper's claims and what the table says of each."""
    seen = Figures(table, samples)
    claims: list[tuple[str, int, dict[str, str], dict[str, str]]] = [
        (
            "Model 1: PrivBayes is best in bias, coverage and prediction, and worst in RMSE; STEPS is best in RMSE; UH "
            "is worst in bias, coverage and prediction (section 3.3).",
            1,
            {"bias": "PrivBayes", "coverage": "PrivBayes", "prediction": "PrivBayes", "rmse": "STEPS"},
            {"bias": "UH modified", "coverage": "UH modified", "prediction": "UH modified", "rmse": "PrivBayes"},
        ),
        (
            "Model 2: STEPS is best overall; PrivBayes is worst in RMSE, UH in coverage and prediction (section 3.3).",
            2,
            {"bias": "STEPS", "rmse": "STEPS", "coverage": "STEPS", "prediction": "STEPS"},
            {"rmse": "PrivBayes", "coverage": "UH modified", "prediction": "UH modified"},
        ),
    ]
    found = [_order(seen, *claim) for claim in claims]
    return [*found, _improves(seen), _coverage(seen)]


def _order(seen: Figures, claim: str, number: int, best: Mapping[str, str], worst: Mapping[str, str]) -> Finding:
    parts, right = [], []
    for form in SHOWN:
        texts = []
        for measure in SUMMARIES:
            means = {method: seen.mean(number, method, form, measure) for method in seen.methods}
            texts.append(f"{_label(measure)} {', '.join(f'{name} {value:.3g}' for name, value in means.items())}")
            if form == "published":
                right += [min(means, key=means.__getitem__) == best[measure]] if measure in best else []
                right += [max(means, key=means.__getitem__) == worst[measure]] if measure in worst else []
        parts.append(f"{form.capitalize()}: {'; '.join(texts)}")
    verdict = HOLDS if all(right) else PARTLY if any(right) else FAILS
    return Finding(
        claim=claim,
        found=f"{'. '.join(parts)}. Means over sizes and epsilons; the verdict is on the published forms.",
        verdict=verdict if len(seen.methods) == len(METHODS) else TO_COME,
    )


def _label(measure: str) -> str:
    return "coverage, distance from 95 %:" if measure == "coverage" else f"{SUMMARIES[measure]}:"


def _improves(seen: Figures) -> Finding:
    low, high = seen.epsilons[0], seen.epsilons[-1]
    texts, right = [], []
    for number in (1, 2):
        for method in seen.methods:
            at_low, at_high = (seen.mean(number, method, "sound", "rmse", [epsilon]) for epsilon in (low, high))
            texts.append(f"model {number}, {method} {at_low:.3g} to {at_high:.3g}")
            right.append(at_high < at_low)
    return Finding(
        claim="Inferences improve with n and epsilon, but for UH and PrivBayes in model 2, where no trend is obvious.",
        found=f"Mean RMSE of the sound forms from epsilon {low} to {high}: {'; '.join(texts)}.",
        verdict=PARTLY if all(right) else HOLDS,
    )


def _coverage(seen: Figures) -> Finding:
    ends = seen.epsilons[0], seen.epsilons[-1]
    bins = [seen.at("coverage", *(Place(number, size, REFERENCES[1]) for size in seen.samples)) for number in (1, 2)]
    texts, strays = [], []
    for number, method in ((1, "PrivBayes"), (2, "STEPS")):
        if method in seen.methods:
            low, high = (
                seen.at("coverage", *(Place(number, size, method, "published", epsilon) for size in seen.samples))
                for epsilon in ends
            )
            texts.append(f"{method} in model {number} {low:.3f} to {high:.3f}")
            strays.append(abs(high - NOMINAL) > abs(low - NOMINAL))
    cause = (
        ""
        if min(bins) < NOMINAL - 0.02
        else ": they aren't the cause. A network of degree 2 has a bias that stays while intervals shrink"
    )
    verdict = HOLDS if min(bins) < NOMINAL - 0.02 else PARTLY if any(strays) else FAILS
    return Finding(
        claim="Coverage strays from 95 % as epsilon grows, for PrivBayes in model 1 and STEPS in model 2, since y is "
        "cut into bins.",
        found=f"Coverage of the published forms from epsilon {ends[0]} to {ends[1]}: {', '.join(texts)}. Bins alone, "
        f"without noise, cover {bins[0]:.3f} in model 1 and {bins[1]:.3f} in model 2{cause}.",
        verdict=verdict if len(strays) == 2 else TO_COME,
    )
