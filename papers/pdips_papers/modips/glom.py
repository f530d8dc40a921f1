"""Simulation study 3 of Bowen and Liu (2020): two numbers within the cells of three
categorical variables (GLOM).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.inference import Rule
from pdips.posterior.inspection import released_draws
from pdips.privacy.loss import positive
from pdips.privacy.noise import RandomBits
from pdips_papers.harness.curves import methods_of, suffix_of
from pdips_papers.harness.measures import interval_summary
from pdips_papers.harness.study import (
    FAILS,
    HOLDS,
    PARTLY,
    PROVED,
    Claims,
    Finding,
    Said,
    say,
)
from pdips_papers.modips import cell_estimates as cells
from pdips_papers.modips import location_model as model
from pdips_papers.modips.cell_histograms import scotts_bins, two_steps
from pdips_papers.modips.location_model import N_SETS, Bounds, Records, draw_records

N = 1000
RHO = 0.5
LEVELS = (2, 3, 4)

MARGINS = ((0.4, 0.6), (0.2, 0.3, 0.5), (0.15, 0.2, 0.25, 0.4))
"""Shares of the levels, independent of each other: cells of 1.2 to 12 %. The paper's
are in its supplement.
"""

CELLS = 24
SHARES = np.einsum("i,j,k->ijk", *MARGINS).ravel()
LEVEL_OF = np.stack(np.unravel_index(np.arange(CELLS), LEVELS))

MEANS = -2 + 4 * np.stack(
    [5 * np.arange(CELLS) % CELLS, 7 * np.arange(CELLS) % CELLS], axis=-1
) / (CELLS - 1)
"""Cell means: 24 equal steps from -2 to 2 in two orders. The paper's are in its
supplement.
"""

COVARIANCE = np.array([[1.0, RHO], [RHO, 1.0]])

BY_CELL = Bounds(MEANS, np.array([4.0, 4.0]))
"""The paper's bounds: the true mean of each cell give or take 4 standard deviations,
taken as public.
"""

COMMON = Bounds(np.zeros((CELLS, 2)), np.array([6.0, 6.0]))
"""Bounds -6 and 6 for all cells, as an analyst would have them who doesn't know the
cell means.
"""

PUBLIC_BINS = 6
"""Bins of each number within a cell: the middle of the paper's 4 to 7."""

PLACES = {"lowest": 0, "Q1": 6, "median": 12, "Q3": 17, "highest": 23}

SHOWN = {
    j: {name: int(np.argsort(MEANS[:, j])[place]) for name, place in PLACES.items()}
    for j in (0, 1)
}
"""The cells with the lowest true mean, the quartiles, the highest."""

MARGINALS = {
    "w1=1": (0, 0),
    "w2=1": (1, 0),
    "w2=2": (1, 1),
    "w3=1": (2, 0),
    "w3=2": (2, 1),
    "w3=3": (2, 2),
}

GROUPS = {
    **{
        f"Cell means of z{j + 1}": {
            f"mu{j + 1}, {name}": f"mean of z{j + 1}, {name} cell" for name in PLACES
        }
        for j in (0, 1)
    },
    "Variances and correlation": {
        "s1": "variance of z1",
        "s2": "variance of z2",
        "rho": "correlation",
    },
    "Marginal probabilities": {name: f"P({name})" for name in MARGINALS},
}


class Glom(cells.GroupedStudy):
    """``pdips study glom``."""

    name: ClassVar[str] = "glom"
    title: ClassVar[str] = (
        "Numbers within cells, by the general location model: "
        "study 3 of Bowen and Liu (2020)"
    )
    default_replicates: ClassVar[int] = 5000
    groups = GROUPS
    methods = methods_of("cells", "glom")
    headlines = ("mu1, median", "s1", "rho", "w1=1")

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw the data of a batch once, and synthesize them by every method at every
        epsilon.
        """
        rng = np.random.default_rng(seed)
        bits = RandomBits(rng)
        data = simulated(arguments["replicates"], rng)
        rows = measured("original", data)
        rows += measured(
            "multiple-synthesis",
            draw_records(model.exact_posterior(data, CELLS, rng), N, rng),
        )
        for spelled in arguments["epsilons"]:
            epsilon = positive(spelled, "epsilon")
            suffix = suffix_of(spelled)
            for method, synthesize in METHODS.items():
                rows += measured(method, synthesize(data, epsilon, bits), suffix)
            rows += noise_aware(data, epsilon, bits, suffix)
        return rows

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Hold the claims of section 4.3.1 against the table."""
        return claims.judge(cells.AverageFigures(table, self))


def simulated(replicates: int, rng: np.random.Generator) -> Records:
    """Draw data sets from the model, moved into the bounds of each cell."""
    counts = rng.multinomial(N, SHARES, size=(replicates, 1))
    cells_of_all = np.tile(np.arange(CELLS), replicates)
    cell = np.repeat(cells_of_all, counts.ravel()).reshape(replicates, 1, N)
    factor = np.linalg.cholesky(COVARIANCE)
    z = MEANS[cell] + rng.standard_normal((*cell.shape, 2)) @ factor.T
    return Records(cell, BY_CELL.clip(cell, z))


def noise_aware(
    data: Records, epsilon: Fraction, bits: RandomBits, suffix: str
) -> list[dict[str, Any]]:
    """Return the rows of five sets, and of the published posterior, of releases by
    ``modips`` with ``models/glom.py``.

    With common bounds: the paper's have each cell's true mean in their middle, and a
    prior that shrinks cells' means towards each other would learn from that what nobody
    knows.
    """
    tables = model.tables(data, LEVELS, COMMON.half)
    releases = model.releases(tables, "glom", epsilon, bits.generator())
    sets = model.records_in(releases, LEVELS)
    rows = measured("modips-noise-aware", sets, suffix, "posterior-predictive")
    posteriors = [released_draws(release) for release in releases]
    for name, (drawn, truth) in _posterior_draws(posteriors).items():
        row = f"modips-posterior, {name}"
        rows += interval_summary(row, suffix, middle_of(drawn), truth)
    return rows


def _posterior_draws(
    posteriors: Sequence[pd.DataFrame],
) -> dict[str, tuple[FloatArray, float]]:
    """Return draws of what is measured, shape (replicates, draws), and its true
    value.
    """

    def drawn(name: str) -> FloatArray:
        return np.stack([table[name].to_numpy() for table in posteriors])

    half = COMMON.half
    named: dict[str, tuple[FloatArray, float]] = {}
    for j, shown in SHOWN.items():
        for name, k in shown.items():
            means = half[j] * drawn(f"mu[{k}, {j}]")
            named[f"mu{j + 1}, {name}"] = (means, float(MEANS[k, j]))
    first = drawn("Sigma[0, 0]")
    second = drawn("Sigma[1, 1]")
    named["s1"] = (first * half[0] ** 2, 1.0)
    named["s2"] = (second * half[1] ** 2, 1.0)
    named["rho"] = (drawn("Sigma[0, 1]") / np.sqrt(first * second), RHO)
    shares = np.stack([drawn(f"pi[{k}]") for k in range(CELLS)], axis=-1)
    for name, (column, level) in MARGINALS.items():
        share = shares[..., LEVEL_OF[column] == level].sum(axis=-1)
        named[name] = (share, MARGINS[column][level])
    return named


def middle_of(draws: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the posterior mean and the ends of the middle 95 %, from draws of shape
    (replicates, draws).
    """
    lower, upper = np.quantile(draws, [0.025, 0.975], axis=1)
    return draws.mean(axis=1), lower, upper


def measured(
    method: str, sets: Records, suffix: str = "", rule: Rule = "sanitized"
) -> list[dict[str, Any]]:
    """Estimate cell means, variances, correlation and marginal probabilities from sets,
    as section 4.3.1 does.
    """
    means, errors = cells.mean_estimates(sets, CELLS)
    rows = []
    for j, shown in SHOWN.items():
        for name, k in shown.items():
            row = f"{method}, mu{j + 1}, {name}"
            estimates = (means[..., k, j], errors[..., k, j])
            rows += cells.summarised(row, suffix, *estimates, float(MEANS[k, j]), rule)
    for name, estimates in cells.covariance_estimates(sets, CELLS).items():
        truth = RHO if name == "rho" else 1.0
        rows += cells.summarised(f"{method}, {name}", suffix, *estimates, truth, rule)
    for name, (column, level) in MARGINALS.items():
        share = (LEVEL_OF[column] == level)[sets.cell].mean(axis=2)
        error = share * (1 - share) / sets.n
        truth = MARGINS[column][level]
        rows += cells.summarised(f"{method}, {name}", suffix, share, error, truth, rule)
    return rows


def np_dips_published(data: Records, epsilon: Fraction, bits: RandomBits) -> Records:
    """Do as printed: Scott's bins in each cell, half of epsilon / m for counts and half
    for bins, sensitivity 1.

    The bins give away each cell's standard deviation and count, so no epsilon is finite
    (5.3).
    """
    counts, means, _ = model.cell_moments(data, CELLS)
    place = model.places(data.cell, CELLS)
    square = (data.z.reshape(-1, 2) - means.reshape(-1, 2)[place]) ** 2
    by_column = [np.bincount(place, square[:, j], counts.size) for j in (0, 1)]
    sums = np.stack(by_column, axis=-1).reshape(-1, CELLS, 2)
    degrees = np.maximum(counts[:, 0] - 1, 1)
    deviations = np.sqrt(sums / degrees[..., None])
    bins = scotts_bins(deviations, counts[:, 0], BY_CELL.half)
    return two_steps(data, BY_CELL, bins, 2 * N_SETS / epsilon, bits)


def np_dips(data: Records, epsilon: Fraction, bits: RandomBits) -> Records:
    """Do the same with public bins, at sensitivity 2 in each step: epsilon in all."""
    bins = np.full((len(data.cell), CELLS, 2), PUBLIC_BINS)
    return two_steps(data, BY_CELL, bins, 4 * N_SETS / epsilon, bits)


def modips_published(data: Records, epsilon: Fraction, bits: RandomBits) -> Records:
    """Do as printed, with the true counts in the scale of the noise on cell means."""
    rng = bits.generator()
    return draw_records(model.as_printed(data, BY_CELL, epsilon, bits), N, rng, BY_CELL)


def once(
    bounds: Bounds, n: int = N
) -> Callable[[Records, Fraction, RandomBits], Records]:
    """Return a synthesizer that sanitizes the statistics once at the whole epsilon and
    draws each set from them.
    """

    def synthesize(data: Records, epsilon: Fraction, bits: RandomBits) -> Records:
        noisy = model.sanitised(data, bounds, epsilon, bits)
        fitted = model.plug_in(noisy, bounds, N_SETS, bits.generator())
        return draw_records(fitted, n, bits.generator(), bounds)

    return synthesize


METHODS: dict[str, Callable[[Records, Fraction, RandomBits], Records]] = {
    "np-dips-published": np_dips_published,
    "np-dips": np_dips,
    "modips-published": modips_published,
    "modips-plug-in": once(BY_CELL),
    "modips-plug-in-common": once(COMMON),
}
"""Each takes data, the total epsilon and bits, and returns synthetic sets."""

SPREADS = ("s1", "s2", "rho")
HISTOGRAMS = ("np-dips-published", "np-dips")
MODELS = ("modips-published", "modips-plug-in", "modips-plug-in-common")
PRINTED = ("np-dips-published", "modips-published")
claims: Claims[cells.AverageFigures] = Claims("glom")


def _cases(seen: cells.AverageFigures, start: str) -> list[str]:
    return [case for case in seen.cases if case.startswith(start)]


def _better(seen: cells.AverageFigures, cases: Sequence[str]) -> Said:
    """Compare the published forms in all four measures."""
    where = seen.above(math.exp(-2.01))
    right = []
    text = []
    labels = {
        "bias": "mean absolute bias",
        "rmse": "RMSE",
        "coverage": "coverage",
        "width": "width",
    }
    for measure, label in labels.items():
        methods = (*PRINTED, "np-dips", "modips-plug-in")
        text.append(f"{label}: {seen.words(methods, cases, measure, where)}")
        histogram, modips = (seen.of(name, cases, measure, where) for name in PRINTED)
        off = (
            (abs(histogram - 0.95), abs(modips - 0.95))
            if measure == "coverage"
            else (histogram, modips)
        )
        right.append(off[0] <= 1.1 * off[1])
    return (
        f"Means over the parameters shown and epsilon {cells.span(where)}. "
        f"{'; '.join(text)}."
    ), right


@claims
def _means(seen: cells.AverageFigures) -> Said:
    return _better(seen, _cases(seen, "mu"))


@claims
def _shares(seen: cells.AverageFigures) -> Said:
    return _better(seen, _cases(seen, "w"))


@claims
def _spreads(seen: cells.AverageFigures) -> Said:
    where = seen.above(math.exp(-1.01))
    parts = [
        f"{label}: {seen.words((*HISTOGRAMS, *MODELS), SPREADS, measure, where)}"
        for measure, label in (("bias", "mean absolute bias"), ("rmse", "RMSE"))
    ]
    histogram, modips = (seen.of(name, SPREADS, "rmse", where) for name in PRINTED)
    text = f"Means over the three and epsilon {cells.span(where)}. {'; '.join(parts)}."
    return (
        text,
        HOLDS if modips < 0.7 * histogram else PARTLY if modips < histogram else FAILS,
    )


@claims
def _coverage_of_spreads(seen: cells.AverageFigures) -> Said:
    where = seen.above(1.01)
    modips = seen.of("modips-published", SPREADS, "coverage", where)
    histogram = seen.of("np-dips-published", SPREADS, "coverage", seen.epsilons)
    words = seen.words((*MODELS, *HISTOGRAMS), SPREADS, "coverage", where)
    text = f"Mean coverage for epsilon {cells.span(where)}: {words}."
    return text, HOLDS if modips > 0.92 and histogram < 0.5 else PARTLY


OF_BINS = 0.16
"""Bias of a variance that bins alone explain, (4/3)^2 / 12, and a little for
rounding.
"""


@claims
def _discretised(seen: cells.AverageFigures) -> Said:
    bias = seen.words(HISTOGRAMS, ("s1", "s2"), "bias", [seen.top])
    noise = seen.of("np-dips-published", ("s1",), "bias", [seen.lowest])
    left = [
        seen.of(name, (case,), "bias", [seen.top])
        for name in HISTOGRAMS
        for case in ("s1", "s2")
    ]
    return say(
        [min(left) > 0, max(left) <= OF_BINS],
        bias=bias,
        noise=cells.figure(noise, "bias"),
    )


@claims
def _once(seen: cells.AverageFigures) -> Said:
    where = seen.above(0.99)
    names = (*MODELS, "modips-noise-aware")
    plugged, aware = (
        seen.of(name, seen.cases, "coverage", where) for name in names[2:]
    )
    judged = HOLDS if plugged < aware - 0.1 else PARTLY
    return say(
        judged,
        where=cells.span(where),
        coverage=seen.words(names, seen.cases, "coverage", where),
    )


@claims
def _price(seen: cells.AverageFigures) -> Said:
    names = (*PRINTED, "np-dips", "modips-plug-in", "modips-plug-in-common")
    return say(
        PROVED, errors=seen.words(names, _cases(seen, "mu"), "rmse", [seen.middle])
    )
