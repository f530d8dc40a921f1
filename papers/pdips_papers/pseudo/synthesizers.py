"""The synthesizers of Hu et al. (2022) on one column in [0, 1], as published and sound;
its claims on simulations.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.mechanism import Mechanism
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import as_source
from pdips.posterior.pseudo_posterior import (
    GridFit,
    linear_weights,
    lipschitz_bound,
    weighted_e,
)
from pdips.registry import find
from pdips.report.formats import number
from pdips_papers.harness.study import PROVED, Claims, Figures, Finding, Said, say

N_DRAWS = 1_000
"""Draws S of a fit over which a record's largest log-likelihood is taken; the paper's
counts grow with it.
"""

SCALE = 0.8
"""The paper's c1 for down-scaling, at epsilon 4 only."""

DOWNSCALED_AT = "4"
WEIGHTED = "Weighted"
WEIGHTED_E = "Weighted-e"
CENSOR_W = "Censor_w"
CENSOR_UW = "Censor_uw"
PH = "PH"
BOUNDED = (WEIGHTED_E, CENSOR_W, CENSOR_UW)
"""The published forms that claim an epsilon."""

PH_LN = "PH, ln(n) bins"
"""The paper allows sqrt(n) and ln(n) bins and doesn't say which it took."""

HISTORICAL = "Censor_w, c1 of a historical table"
"""Section 4.5: the scale is chosen on another table, drawn from the same law."""

PHS = (PH, PH_LN)
SHAPES = (0.5, 3.0)
"""Of the beta law that tables are drawn from."""

SCALES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
UNWEIGHTED = "Unweighted"
FRESH = "fresh sample"
CONFIDENTIAL = "Data"
BOUND = "Lipschitz bound"
COUNT = "count"
UTILITY = (
    "max-ECDF",
    "avg-ECDF",
    "mean",
    "median",
    "15th percentile",
    "90th percentile",
)
BOUNDS = (
    BOUND,
    f"{BOUND}: sd",
    f"{BOUND}: min",
    f"{BOUND}: max",
    f"{BOUND}: share above",
)

EPSILON = 5
"""The paper's target in its application."""

STAGED = {"staged, ϵ = 5": 5, "staged, ϵ = 1": 1}
"""The default form of ``censored-posterior``, by its column in the application's table:
true epsilon.
"""

CENTRES: dict[str, dict[str, Any]] = {
    "zero": {"centre": "zero"},
    "Beta(0.6, 2)": {
        "centre": "reference",
        "reference": {"phi": 0.6 / 2.6, "lambda": 2.6},
    },
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
    parts = [form]
    if epsilon:
        parts.append(f"epsilon = {epsilon}")
    if scale != 1:
        parts.append(f"c1 = {scale:g}")
    return ", ".join(parts)


def sound_row(centre: str, epsilon: str) -> str:
    """Return the row of a sound censored posterior."""
    return row_of(f"sound, centred on {centre}", epsilon)


def censored_count(weights: FloatArray, largest: FloatArray, window: float) -> int:
    """Return how many records have some abs(alpha_i log p(x_i | theta_s)) above the
    window.
    """
    terms = weights * np.where(weights == 0, 0.0, largest)
    return int((terms > window).sum())


@lru_cache(maxsize=1)
def beta_model() -> Blueprint:
    """Return the beta synthesizer, compiled once a process."""
    return Blueprint(as_source("beta"), SCHEMA)


class PublishedSynthesizers:
    """The published synthesizers of one table: fits of one model that differ in weights
    and window.
    """

    def __init__(
        self, y: FloatArray, rng: np.random.Generator, n_draws: int = N_DRAWS
    ) -> None:
        self._y = y
        self._rng = rng
        self._fit = GridFit(beta_model(), {"y": y}, n_draws, rng)
        self._n_draws = n_draws
        self._ones = np.ones(len(self._fit.counts))

    def refit(
        self, weights: FloatArray, window: float = np.inf
    ) -> tuple[FloatArray, FloatArray]:
        """Return the largest log-likelihoods under a fit, shape (records,), and a
        synthetic set from one draw of it.
        """
        largest = self._fit.largest(weights, window)
        [one] = self._fit.several(1)
        phi = float(one["phi"])
        precision = float(one["lambda"])
        shapes = (precision * phi, precision * (1 - phi))
        return largest, self._rng.beta(*shapes, len(self._y))

    def all(self, epsilons: Sequence[str]) -> Iterator[Synthesis]:
        """Make every published form at every claimed epsilon, with down-scaling at
        epsilon 4.
        """
        risks, synthetic = self.refit(self._ones)
        yield Synthesis(row=UNWEIGHTED, synthetic=synthetic, bound=float(risks.max()))
        for epsilon in epsilons:
            yield self.censored(CENSOR_UW, self._ones, epsilon)
        scales = [1.0]
        if DOWNSCALED_AT in epsilons:
            scales.append(SCALE)
            historical = self._rng.beta(*SHAPES, len(self._y))
            past = PublishedSynthesizers(historical, self._rng, self._n_draws)
            alpha = linear_weights(risks, scale=past.scale_for(DOWNSCALED_AT))
            yield self.censored(HISTORICAL, alpha, DOWNSCALED_AT)
        for scale in scales:
            at = epsilons if scale == 1 else (DOWNSCALED_AT,)
            alpha = linear_weights(risks, scale=scale)
            yield self._made(row_of(WEIGHTED, "", scale), alpha)
            for epsilon in at:
                yield self.dropped(alpha, risks, epsilon, scale)
                yield self.censored(CENSOR_W, alpha, epsilon, scale)

    def scale_for(self, epsilon: str) -> float:
        """Return the largest scale c1 at which the weighted fit of this table has its
        bound within epsilon / 2.
        """
        risks, _ = self.refit(self._ones)
        for scale in SCALES:
            alpha = linear_weights(risks, scale=scale)
            largest, _ = self.refit(alpha)
            if lipschitz_bound(alpha, largest) <= float(epsilon) / 2:
                return scale
        return SCALES[-1]

    def dropped(
        self, alpha: FloatArray, risks: FloatArray, epsilon: str, scale: float
    ) -> Synthesis:
        """Make Weighted-e: weight 0 where alpha_i f_i > epsilon / 2, f of the
        unweighted fit.
        """
        weights = weighted_e(alpha, risks, epsilon)
        made = self._made(row_of(WEIGHTED_E, epsilon, scale), weights)
        return replace(made, censored=censored_count(alpha, risks, float(epsilon) / 2))

    def censored(
        self, form: str, alpha: FloatArray, epsilon: str, scale: float = 1.0
    ) -> Synthesis:
        """Make Censor_w or Censor_uw: the weighted likelihood censored at epsilon
        / 2.
        """
        return self._made(row_of(form, epsilon, scale), alpha, float(epsilon) / 2)

    def _made(self, row: str, weights: FloatArray, window: float = np.inf) -> Synthesis:
        largest, synthetic = self.refit(weights, window)
        bound = min(lipschitz_bound(weights, largest), window)
        count = censored_count(weights, largest, window)
        return Synthesis(
            row=row,
            synthetic=synthetic,
            bound=bound,
            censored=None if np.isinf(window) else count,
        )


def binned_schema(name: str, lower: float, upper: float, n: int, form: str) -> Schema:
    """Return the schema of one column cut into as many bins as a form of the histogram
    has.
    """
    wanted = np.sqrt(n) if form == PH else np.log(n)
    column = {"lower": lower, "upper": upper, "bins": int(np.ceil(wanted))}
    return Schema.model_validate({"columns": {name: column}})


def sound(
    y: FloatArray, epsilons: Sequence[str], rng: np.random.Generator
) -> Iterator[Synthesis]:
    """Make the sound forms at each epsilon, which is their true loss if one record is
    replaced.

    The perturbed histogram has sqrt(n) or ln(n) bins, rounded up, and noise of scale 2
    / epsilon: sound as published.
    """
    frame = pd.DataFrame({"y": y})
    table = Table(frame, SCHEMA)
    binned = {}
    for form in PHS:
        binned[form] = Table(frame, binned_schema("y", 0, 1, len(y), form))
    for epsilon in epsilons:
        for form in PHS:
            histogram = find("perturbed-histogram")(epsilon=epsilon)
            synthetic = _released(histogram, binned[form], rng)
            yield Synthesis(row=row_of(form, epsilon), synthetic=synthetic)
        for centre, settings in CENTRES.items():
            censored = find("censored-posterior")(
                epsilon=epsilon, model="beta", **settings
            )
            synthetic = _released(censored, table, rng)
            yield Synthesis(row=sound_row(centre, epsilon), synthetic=synthetic)


def _released(
    mechanism: Mechanism, table: Table, rng: np.random.Generator
) -> FloatArray:
    """Return the column of the first set of a release."""
    release, _ = mechanism.release(table, rng=rng)
    return release.sets[0]["y"].to_numpy(dtype=np.float64)


def ecdf_distances(
    confidential: FloatArray, synthetic: FloatArray
) -> tuple[float, float]:
    """Return max-ECDF and avg-ECDF: the largest absolute and mean squared difference at
    the confidential records.
    """
    n_ours = np.searchsorted(np.sort(confidential), confidential, side="right")
    n_theirs = np.searchsorted(np.sort(synthetic), confidential, side="right")
    apart = n_ours / len(confidential) - n_theirs / len(synthetic)
    return float(np.abs(apart).max()), float((apart**2).mean())


def epsilons_in(rows: Iterable[str]) -> list[str]:
    """Return the epsilons in the names of rows, the largest first."""
    found = set()
    for row in rows:
        _, _, rest = row.partition("epsilon = ")
        if rest:
            found.add(rest.partition(",")[0])
    return sorted(found, key=float, reverse=True)


# The claims of sections 4.2 to 4.4, and our targets.

TARGETS = {"5": 0.060, "4": 0.065, "3": 0.070, "1": 0.09}
"""Mean max-ECDF that the default is to stay below, by true epsilon."""

MEAN_COUNT = f"{COUNT}: Mean"
STATISTICS = UTILITY[2:]
CLAIMING = (WEIGHTED, *BOUNDED)
"""The published forms."""


class CensoredFigures(Figures):
    """The table of the simulations by row and column."""

    def __init__(self, table: pd.DataFrame) -> None:
        super().__init__(table)
        self.epsilons = epsilons_in(self.rows)
        self.claimed = [
            epsilon
            for epsilon in self.epsilons
            if row_of(CENSOR_UW, epsilon) in self.rows
        ]

    def of(self, form: str, epsilon: str, column: str) -> float:
        """Return the figure of a form at an epsilon; Weighted's is the same at all."""
        if form == WEIGHTED:
            epsilon = ""
        return self.at(row_of(form, epsilon), column)

    def each(self, form: str, column: str) -> list[float]:
        """Return the figures of a form at each claimed epsilon."""
        return [self.of(form, epsilon, column) for epsilon in self.claimed]

    def off(self, form: str, column: str) -> list[float]:
        """Return how far a statistic's mean lies from that of fresh samples, at each
        claimed epsilon.
        """
        truth = self.at(FRESH, column)
        return [abs(value - truth) for value in self.each(form, column)]

    @property
    def where(self) -> str:
        """The claimed epsilons as text."""
        return f"ϵ = {', '.join(self.claimed)}"

    def lowest(self, form: str, others: Sequence[str]) -> list[bool]:
        """Say at each claimed epsilon and in both ECDF measures whether a form is below
        all others.
        """
        is_lowest = []
        for column in UTILITY[:2]:
            for epsilon in self.claimed:
                least = min(self.of(other, epsilon, column) for other in others)
                is_lowest.append(self.of(form, epsilon, column) < least)
        return is_lowest


claims: Claims[CensoredFigures] = Claims("censored-beta")
down_scaling: Claims[CensoredFigures] = Claims("censored-beta")
targets: Claims[CensoredFigures] = Claims("censored-beta")


def simulated_findings(table: pd.DataFrame) -> list[Finding]:
    """Hold the claims of sections 4.2, 4.3 and 4.4 against the table, then our own
    targets.
    """
    seen = CensoredFigures(table)
    found = claims.judge(seen) if seen.claimed else []
    if not np.isnan(seen.at(row_of(WEIGHTED, "", SCALE), BOUND)):
        found += down_scaling.judge(seen)
    wanted = _wanted(seen)
    if wanted:
        limits = _series(TARGETS[epsilon] for epsilon in wanted)
        found += targets.judge(seen, limits=limits, epsilons=", ".join(wanted))
    return found


def _series(values: Iterable[float]) -> str:
    return ", ".join(number(value) for value in values)


def _by_form(values: Mapping[str, Sequence[float]]) -> str:
    return "; ".join(f"{form} {_series(each)}" for form, each in values.items())


def _all_below(low: Sequence[float], high: Sequence[float]) -> bool:
    return all(a < b for a, b in zip(low, high, strict=True))


def _rising(values: Sequence[float]) -> bool:
    return _all_below(values[:-1], values[1:])


@claims
def _weighting(seen: CensoredFigures) -> Said:
    low, high = (seen.at(UNWEIGHTED, name) for name in BOUNDS[2:4])
    least, most = (seen.at(WEIGHTED, name) for name in BOUNDS[2:4])
    text = f"Least to greatest: {_series((low, high))} and {_series((least, most))}."
    is_unweighted = 5.5 < low < 9 and 10 < high < 20
    is_weighted = 1.5 < least < 2.5 and 2.8 < most < 4.2
    return text, [is_unweighted, is_weighted]


@claims
def _concentration(seen: CensoredFigures) -> Said:
    spread = seen.each(WEIGHTED_E, BOUNDS[1])
    most = seen.each(WEIGHTED_E, BOUNDS[3])
    above = seen.each(WEIGHTED_E, BOUNDS[4])
    weighted = seen.at(WEIGHTED, BOUNDS[1])
    judged = [all(value < weighted for value in spread), max(above) > 0]
    return say(
        judged,
        spread=_series(spread),
        weighted=number(weighted),
        above=_series(above),
        most=_series(most),
    )


@claims
def _strict(seen: CensoredFigures) -> Said:
    above = [*seen.each(CENSOR_W, BOUNDS[4]), *seen.each(CENSOR_UW, BOUNDS[4])]
    first = seen.claimed[0]
    least, mean = (seen.of(CENSOR_W, first, name) for name in (BOUNDS[2], BOUND))
    return say(
        [max(above) == 0, least < float(first) / 2],
        first=first,
        least=number(least),
        mean=number(mean),
    )


@claims
def _counts(seen: CensoredFigures) -> Said:
    dropped, weighted, plain = (seen.each(form, MEAN_COUNT) for form in BOUNDED)
    printed = [
        seen.paper(row_of(CENSOR_W, epsilon), MEAN_COUNT) for epsilon in seen.claimed
    ]
    fewer = [_all_below(weighted, plain), _all_below(dropped, weighted)]
    judged = fewer + [_rising(counts) for counts in (dropped, weighted, plain)]
    return say(
        judged,
        plain=_series(plain),
        weighted=_series(weighted),
        dropped=_series(dropped),
        printed=_series(printed),
    )


@claims
def _guarantee(seen: CensoredFigures) -> Said:
    return say(PROVED)


@claims
def _weighted_first(seen: CensoredFigures) -> Said:
    better = seen.lowest(WEIGHTED, (WEIGHTED_E, CENSOR_W, CENSOR_UW, PH))
    ours = _series(seen.at(WEIGHTED, column) for column in UTILITY[:2])
    unweighted = _series(seen.at(UNWEIGHTED, column) for column in UTILITY[:2])
    return say(
        better, ours=ours, wins=sum(better), all=len(better), unweighted=unweighted
    )


@claims
def _censor_w(seen: CensoredFigures) -> Said:
    better = seen.lowest(CENSOR_W, (WEIGHTED_E, CENSOR_UW, PH))
    forms = (CENSOR_W, WEIGHTED_E, CENSOR_UW)
    values = {form: seen.each(form, UTILITY[0]) for form in forms}
    return say(better, values=_by_form(values), wins=sum(better), all=len(better))


@claims
def _deteriorates(seen: CensoredFigures) -> Said:
    forms = (WEIGHTED_E, CENSOR_W, CENSOR_UW, PH)
    values = {form: seen.each(form, UTILITY[0]) for form in forms}
    text = f"Mean max-ECDF at {seen.where}: {_by_form(values)}."
    return text, [_rising(each) for each in values.values()]


@claims
def _below_unweighted(seen: CensoredFigures) -> Said:
    plain, weighted = (seen.each(form, UTILITY[0]) for form in (CENSOR_UW, CENSOR_W))
    text = f"Mean max-ECDF at {seen.where}: {_series(plain)} and {_series(weighted)}."
    return text, [b < a for a, b in zip(plain, weighted, strict=True)]


@claims
def _histogram(seen: CensoredFigures) -> Said:
    parts = []
    right = []
    for histogram in PHS:
        for column in UTILITY[:2]:
            at_histogram = seen.each(histogram, column)
            worse = []
            for form in CLAIMING:
                pairs = zip(at_histogram, seen.each(form, column), strict=True)
                worse += [theirs > published for theirs, published in pairs]
            values = _series(at_histogram)
            parts.append(f"{histogram}, {column} {values}, worse in {sum(worse)}")
            right.append(sum(worse) > 0.75 * len(worse))
    return say(right, all=len(worse), parts="; ".join(parts))


@claims
def _statistics(seen: CensoredFigures) -> Said:
    off = {}
    for form in CLAIMING:
        off[form] = np.array([seen.off(form, column) for column in STATISTICS])
    median = [seen.off(form, "median") for form in (CENSOR_W, WEIGHTED_E, CENSOR_UW)]
    best_median = [min(values) == values[0] for values in zip(*median, strict=True)]
    least = np.min(list(off.values()), axis=0)
    worse = float((off[CENSOR_UW] > off[CENSOR_W]).mean())
    best = float((off[WEIGHTED] <= least).mean())
    judged = [best == 1, worse == 1, all(best_median)]
    return say(
        judged,
        best=number(100 * best),
        worse=number(100 * worse),
        wins=sum(best_median),
        all=len(best_median),
    )


@down_scaling
def _downscaling(seen: CensoredFigures) -> Said:
    def pair(form: str, column: str) -> tuple[float, float]:
        epsilon = "" if form == WEIGHTED else DOWNSCALED_AT
        before = seen.at(row_of(form, epsilon), column)
        return before, seen.at(row_of(form, epsilon, SCALE), column)

    forms = (WEIGHTED, WEIGHTED_E, CENSOR_W)
    bounds = {form: pair(form, BOUND) for form in forms}
    spreads = {form: pair(form, BOUNDS[1]) for form in forms}
    average = {form: pair(form, "avg-ECDF") for form in forms}
    counts = {form: pair(form, MEAN_COUNT) for form in forms[1:]}
    texts = []
    for form in forms:
        texts.append(f"{form} {_change(bounds[form])}, {_change(average[form])}")
    fewer = [f"{form} {_change(change)}" for form, change in counts.items()]
    changes = [pairs.values() for pairs in (bounds, spreads, average, counts)]
    better = [after < before for pairs in changes for before, after in pairs]
    text = (
        f"Mean bound and mean avg-ECDF: {'; '.join(texts)}. Counts: {'; '.join(fewer)}."
    )
    return text, better


def _change(pair: tuple[float, float]) -> str:
    before, after = pair
    return f"{number(before)} to {number(after)}"


def _wanted(seen: CensoredFigures) -> list[str]:
    return [
        epsilon
        for epsilon in TARGETS
        if not np.isnan(seen.at(sound_row("staged", epsilon), UTILITY[0]))
    ]


@targets
def _staged(seen: CensoredFigures) -> Said:
    wanted = _wanted(seen)
    found = {}
    for centre in ("staged", "zero", "Beta(0.6, 2)"):
        rows = [sound_row(centre, epsilon) for epsilon in wanted]
        found[f"centre {centre}"] = [seen.at(row, UTILITY[0]) for row in rows]
    histogram = _series(seen.at(row_of(PH, epsilon), UTILITY[0]) for epsilon in wanted)
    references = _series(seen.at(row, UTILITY[0]) for row in (FRESH, UNWEIGHTED))
    limits = [TARGETS[epsilon] for epsilon in wanted]
    pairs = zip(found["centre staged"], limits, strict=True)
    judged = [ours <= limit for ours, limit in pairs]
    return say(
        judged,
        text=f"C{_by_form(found)[1:]}",
        histogram=histogram,
        references=references,
    )
