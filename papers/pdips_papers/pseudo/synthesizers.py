"""The synthesizers of Hu et al. (2022) on one column in [0, 1]: as published, and with the loss that they claim."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import as_source
from pdips.posterior.pseudo_posterior import GridFit, linear_weights, lipschitz_bound, weighted_e
from pdips.registry import find

N_DRAWS = 1_000
"""Draws S of a fit over which a record's largest log-likelihood is taken; the paper's counts grow with it."""

SCALE = 0.8
"""The paper's c1 for down-scaling, at epsilon 4 only."""

DOWNSCALED_AT = "4"
WEIGHTED, WEIGHTED_E, CENSOR_W, CENSOR_UW, PH = "Weighted", "Weighted-e", "Censor_w", "Censor_uw", "PH"
PH_LN = "PH, ln(n) bins"
"""The paper allows sqrt(n) and ln(n) bins and doesn't say which it took."""

HISTORICAL = "Censor_w, c1 of a historical table"
"""Section 4.5: the scale is chosen on another table, drawn from the same law."""

PHS = (PH, PH_LN)
SHAPES = (0.5, 3.0)
"""Of the beta law that tables are drawn from."""

SCALES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
UNWEIGHTED, FRESH, CONFIDENTIAL = "Unweighted", "fresh sample", "Data"
BOUND, COUNT = "Lipschitz bound", "count"
UTILITY = ("max-ECDF", "avg-ECDF", "mean", "median", "15th percentile", "90th percentile")
BOUNDS = (BOUND, f"{BOUND}: sd", f"{BOUND}: min", f"{BOUND}: max", f"{BOUND}: share above")

EPSILON = 5
"""The paper's target in its application."""

STAGED = {"staged, ϵ = 5": 5, "staged, ϵ = 1": 1}
"""The default form of ``censored-posterior``, by its column in the application's table: true epsilon."""

CENTRES: dict[str, dict[str, Any]] = {
    "zero": {"centre": "zero"},
    "Beta(0.6, 2)": {"centre": "reference", "reference": {"phi": 0.6 / 2.6, "lambda": 2.6}},
    "staged": {"centre": "staged"},
}
"""What the sound censored posterior is centred on, by its name in the table."""

SCHEMA = Schema.model_validate({"columns": {"y": {"lower": 0, "upper": 1}}})


@dataclass(frozen=True, kw_only=True)
class Synthesis:
    """What a synthesizer made of a table."""

    row: str
    synthetic: FloatArray
    bound: float | None = None
    censored: int | None = None


def row_of(form: str, epsilon: str = "", scale: float = 1.0) -> str:
    """Return the row of a form: ``"Censor_w, epsilon = 4, c1 = 0.8"``."""
    parts = [form, f"epsilon = {epsilon}" if epsilon else "", "" if scale == 1 else f"c1 = {scale:g}"]
    return ", ".join(part for part in parts if part)


def sound_row(centre: str, epsilon: str) -> str:
    """Return the row of a sound censored posterior."""
    return row_of(f"sound, centred on {centre}", epsilon)


def censored_count(weights: FloatArray, largest: FloatArray, window: float) -> int:
    """Return how many records have some abs(alpha_i log p(x_i | theta_s)) above the window."""
    return int((weights * np.where(weights == 0, 0.0, largest) > window).sum())


@lru_cache(maxsize=1)
def beta_model() -> Blueprint:
    """Return the beta synthesizer, compiled once a process."""
    return Blueprint(as_source("beta"), SCHEMA)


class PublishedSynthesizers:
    """The published synthesizers of one table: fits of one model that differ in weights and window."""

    def __init__(self, y: FloatArray, rng: np.random.Generator, n_draws: int = N_DRAWS) -> None:
        self._y, self._rng = y, rng
        self._fit = GridFit(beta_model(), {"y": y}, n_draws, rng)
        self._n_draws, self._ones = n_draws, np.ones(len(self._fit.counts))

    def refit(self, weights: FloatArray, window: float = np.inf) -> tuple[FloatArray, FloatArray]:
        """Return the largest log-likelihoods under a fit, shape (records,), and a synthetic set from one draw of it."""
        largest = self._fit.largest(weights, window)
        [one] = self._fit.several(1)
        phi, precision = float(one["phi"]), float(one["lambda"])
        return largest, self._rng.beta(precision * phi, precision * (1 - phi), len(self._y))

    def all(self, epsilons: Sequence[str]) -> Iterator[Synthesis]:
        """Make every published form at every claimed epsilon, with down-scaling at epsilon 4."""
        risks, synthetic = self.refit(self._ones)
        yield Synthesis(row=UNWEIGHTED, synthetic=synthetic, bound=float(risks.max()))
        for epsilon in epsilons:
            yield self.censored(CENSOR_UW, self._ones, epsilon)
        if DOWNSCALED_AT in epsilons:
            past = PublishedSynthesizers(self._rng.beta(*SHAPES, len(self._y)), self._rng, self._n_draws)
            alpha = linear_weights(risks, scale=past.scale_for(DOWNSCALED_AT))
            yield self.censored(HISTORICAL, alpha, DOWNSCALED_AT)
        for scale in (1.0, SCALE) if DOWNSCALED_AT in epsilons else (1.0,):
            at = epsilons if scale == 1 else (DOWNSCALED_AT,)
            alpha = linear_weights(risks, scale=scale)
            largest, synthetic = self.refit(alpha)
            yield Synthesis(row=row_of(WEIGHTED, "", scale), synthetic=synthetic, bound=lipschitz_bound(alpha, largest))
            for epsilon in at:
                yield self.dropped(alpha, risks, epsilon, scale)
                yield self.censored(CENSOR_W, alpha, epsilon, scale)

    def scale_for(self, epsilon: str) -> float:
        """Return the largest scale c1 at which the weighted fit of this table has its bound within epsilon / 2."""
        risks, _ = self.refit(self._ones)
        for scale in SCALES:
            alpha = linear_weights(risks, scale=scale)
            if lipschitz_bound(alpha, self.refit(alpha)[0]) <= float(epsilon) / 2:
                return scale
        return SCALES[-1]

    def dropped(self, alpha: FloatArray, risks: FloatArray, epsilon: str, scale: float) -> Synthesis:
        """Make Weighted-e: weight 0 where alpha_i f_i > epsilon / 2, f of the unweighted fit."""
        weights = weighted_e(alpha, risks, epsilon)
        largest, synthetic = self.refit(weights)
        return Synthesis(
            row=row_of(WEIGHTED_E, epsilon, scale),
            synthetic=synthetic,
            bound=lipschitz_bound(weights, largest),
            censored=censored_count(alpha, risks, float(epsilon) / 2),
        )

    def censored(self, form: str, alpha: FloatArray, epsilon: str, scale: float = 1.0) -> Synthesis:
        """Make Censor_w or Censor_uw: the weighted likelihood censored at epsilon / 2."""
        window = float(epsilon) / 2
        largest, synthetic = self.refit(alpha, window)
        return Synthesis(
            row=row_of(form, epsilon, scale),
            synthetic=synthetic,
            bound=min(lipschitz_bound(alpha, largest), window),
            censored=censored_count(alpha, largest, window),
        )


def binned_schema(name: str, lower: float, upper: float, n: int, form: str) -> Schema:
    """Return the schema of one column cut into as many bins as a form of the histogram has."""
    bins = int(np.ceil(np.sqrt(n) if form == PH else np.log(n)))
    return Schema.model_validate({"columns": {name: {"lower": lower, "upper": upper, "bins": bins}}})


def sound(y: FloatArray, epsilons: Sequence[str], rng: np.random.Generator) -> Iterator[Synthesis]:
    """Make the sound forms at each epsilon, which is their true loss if one record is replaced.

    The perturbed histogram has sqrt(n) or ln(n) bins, rounded up, and noise of scale 2 / epsilon: sound as published.
    """
    frame = pd.DataFrame({"y": y})
    table, binned = Table(frame, SCHEMA), {form: Table(frame, binned_schema("y", 0, 1, len(y), form)) for form in PHS}
    for epsilon in epsilons:
        for form in PHS:
            histogram, _ = find("perturbed-histogram")(epsilon=epsilon).release(binned[form], rng=rng)
            yield Synthesis(row=row_of(form, epsilon), synthetic=_values(histogram.sets))
        for centre, settings in CENTRES.items():
            release, _ = find("censored-posterior")(epsilon=epsilon, model="beta", **settings).release(table, rng=rng)
            yield Synthesis(row=sound_row(centre, epsilon), synthetic=_values(release.sets))


def _values(sets: Sequence[pd.DataFrame]) -> FloatArray:
    return sets[0]["y"].to_numpy(dtype=np.float64)


def ecdf_distances(confidential: FloatArray, synthetic: FloatArray) -> tuple[float, float]:
    """Return max-ECDF and avg-ECDF: the largest absolute and mean squared difference at the confidential records."""
    ours, theirs = (
        np.searchsorted(np.sort(values), confidential, side="right") / len(values)
        for values in (confidential, synthetic)
    )
    return float(np.abs(ours - theirs).max()), float(((ours - theirs) ** 2).mean())


def epsilons_in(rows: Iterable[str]) -> list[str]:
    """Return the epsilons in the names of rows, the largest first."""
    found = {row.partition("epsilon = ")[2].partition(",")[0] for row in rows if "epsilon = " in row}
    return sorted(found, key=float, reverse=True)
