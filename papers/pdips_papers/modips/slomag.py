"""Simulation study 4 of Bowen and Liu (2020): categories given two numbers, by
sequential regressions (SLOMAG).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.inference import Rule
from pdips.privacy.loss import positive
from pdips.privacy.noise import RandomBits
from pdips.statistics.logistic import Logistic
from pdips.statistics.plan import StatisticPlan
from pdips_papers.harness.curves import methods_of, short, suffix_of
from pdips_papers.harness.study import HOLDS, PARTLY, PROVED, Claims, Finding, Said, say
from pdips_papers.modips import cell_estimates as cells
from pdips_papers.modips import location_model, sequential_model
from pdips_papers.modips.as_printed import grown_noise
from pdips_papers.modips.cell_histograms import noisy_shares, one_step, scotts_bins
from pdips_papers.modips.glom import once
from pdips_papers.modips.glom_limit import limits
from pdips_papers.modips.location_model import N_SETS, Records, draw_records
from pdips_papers.modips.sequential_model import (
    BOUNDS,
    HALF,
    LEVELS,
    ONE_CELL,
    SEQUENCE,
    draw_levels,
    in_units,
)

N = 1000
RHO = 0.5
COVARIANCE = np.array([[1.0, RHO], [RHO, 1.0]])

COMPONENTS = 8
"""Two means, three moments, three regressions: each has an eighth of epsilon, as in the
paper.
"""

PENALTY = Fraction(1, 2)
"""The paper's lambda: the prior as printed has precision lambda, the noise is for n
lambda.
"""

RIDGE = 30
"""Public precision of the prior of coefficients of predictors in the unit ball, in the
sound rows.
"""

PUBLIC_BINS = 13
"""Bins of each number: what Scott's rule gives for variance 1."""

NAMES = ("intercept", "z1", "z2", "w1", "w2")
TRUTHS = {
    str(number + 1): row
    for number, row in enumerate(row for one in SEQUENCE for row in one.truth)
}

GROUPS = {
    **{
        f"Coefficients beta {number}: {of}": {
            f"beta{number}, {name}": f"β{number}, {name}"
            for name in NAMES[: len(TRUTHS[number])]
        }
        for number, of in {
            "2": "w2 given z1, z2, w1",
            "3": "w3 = 2 against 1",
            "1": "w1 given z1, z2",
            "4": "w3 = 3 against 1",
        }.items()
    },
    "Means": {"mu1": "mean of z1", "mu2": "mean of z2"},
    "Variances and correlation": {
        "s1": "variance of z1",
        "s2": "variance of z2",
        "rho": "correlation",
    },
}


@dataclass(frozen=True)
class SlomagSample:
    """Data sets, and what the published rows draw from them without looking at
    epsilon.
    """

    data: Records
    betas: tuple[FloatArray, ...]

    @cached_property
    def exact(self) -> dict[str, IntArray]:
        """The exact statistics in whole units, shape (replicates, entries), by their
        names in the plan.
        """
        codes = np.unravel_index(self.data.cell[:, 0], LEVELS)
        tables = []
        for k, z in enumerate(self.data.z[:, 0]):
            columns = {"z1": z[:, 0], "z2": z[:, 1]} | {
                f"w{j + 1}": code[k] for j, code in enumerate(codes)
            }
            tables.append(Table(pd.DataFrame(columns), SCHEMA))
        parts = plan_of(Fraction(1)).parts
        return {
            part.name: np.stack(
                [part.statistic.measure(each).ravel() for each in tables]
            )
            for part in parts
        }


class Slomag(cells.GroupedStudy):
    """``pdips study slomag``."""

    name: ClassVar[str] = "slomag"
    title: ClassVar[str] = (
        "Categorical variables given numbers, by sequential regressions: simulation "
        "study 4 of Bowen and Liu (2020)"
    )
    default_replicates: ClassVar[int] = 1000
    groups = GROUPS
    methods = methods_of("cells", "slomag")
    headlines = ("beta2, z1", "mu1", "s1", "rho")

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw the data of a batch once, and synthesize them by every method at every
        epsilon.
        """
        rng = np.random.default_rng(seed)
        bits = RandomBits(rng)
        data = simulated(arguments["replicates"], rng)
        sample = SlomagSample(
            data,
            tuple(
                sequential_model.exact_draws(data, one, PENALTY, rng)
                for one in SEQUENCE
            ),
        )
        rows = measured("original", data) + measured(
            "multiple-synthesis", multiple_synthesis(data, rng)
        )
        for spelled in arguments["epsilons"]:
            epsilon = positive(spelled, "epsilon")
            suffix = suffix_of(spelled)
            for method, synthesize in METHODS.items():
                rows += measured(method, synthesize(sample, epsilon, bits), suffix)
            for method, shipped in (
                ("modips-noise-aware", "slomag"),
                ("wrong-noise-aware", "glom"),
            ):
                rows += measured(
                    method,
                    noise_aware(data, shipped, epsilon, rng),
                    suffix,
                    "posterior-predictive",
                )
        return rows

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Hold the claims of section 4.3.2 against the table."""
        return claims.judge(cells.AverageFigures(table, self))


def simulated(replicates: int, rng: np.random.Generator) -> Records:
    """Draw data sets from the model, the numbers moved into their bounds first."""
    z = rng.standard_normal((replicates, 1, N, 2)) @ np.linalg.cholesky(COVARIANCE).T
    z = np.clip(z, -HALF, HALF)
    return draw_levels(
        z,
        lambda one, x: np.broadcast_to(one.truth, (*x.shape[:2], *one.truth.shape)),
        rng,
    )


def measured(
    method: str, sets: Records, suffix: str = "", rule: Rule = "sanitized"
) -> list[dict[str, Any]]:
    """Estimate means, variances, correlation and coefficients from sets, as section
    4.3.2 does.
    """
    numbers = without_cells(sets)
    rows = []
    means, errors = cells.mean_estimates(numbers, 1)
    for j in (0, 1):
        rows += cells.summarised(
            f"{method}, mu{j + 1}",
            suffix,
            means[..., 0, j],
            errors[..., 0, j],
            0.0,
            rule,
        )
    for name, (estimate, variance) in cells.covariance_estimates(numbers, 1).items():
        rows += cells.summarised(
            f"{method}, {name}",
            suffix,
            estimate,
            variance,
            RHO if name == "rho" else 1.0,
            rule,
        )
    for number, (estimate, variance) in sequential_model.firth_estimates(sets).items():
        for place, truth in enumerate(TRUTHS[number]):
            row = f"{method}, beta{number}, {NAMES[place]}"
            rows += cells.summarised(
                row,
                suffix,
                estimate[..., place],
                variance[..., place],
                float(truth),
                rule,
            )
    return rows


def without_cells(sets: Records) -> Records:
    """Return the numbers alone, all in one cell: the general location model is then a
    bivariate normal law.
    """
    return Records(np.zeros_like(sets.cell), sets.z)


def multiple_synthesis(data: Records, rng: np.random.Generator) -> Records:
    """Draw sets from the posterior predictive law under nearly flat priors of the
    coefficients; no privacy.
    """
    drawn = location_model.exact_posterior(without_cells(data), 1, rng)
    betas = [
        sequential_model.exact_draws(data, one, sequential_model.FLAT, rng)
        for one in SEQUENCE
    ]
    z = draw_records(drawn, N, rng).z
    return draw_levels(
        z, lambda regression, _: in_units(betas[regression.outcome], regression), rng
    )


def np_dips_published(
    sample: SlomagSample, epsilon: Fraction, bits: RandomBits
) -> Records:
    """Do as printed: Scott's bins on the data crossed with the cells, sensitivity 1,
    epsilon / m a set.

    The bins give away the sample's standard deviations, so no epsilon is finite (5.3).
    """
    deviation = sample.data.z[:, 0].std(axis=1, ddof=1)
    bins = scotts_bins(deviation, np.full(len(deviation), N), ONE_CELL.half)
    shares = partial(noisy_shares, scale=N_SETS / epsilon, bits=bits)
    return one_step(sample.data, BOUNDS, bins, shares, bits.generator())


def np_dips(sample: SlomagSample, epsilon: Fraction, bits: RandomBits) -> Records:
    """Do the same with public bins, at sensitivity 2: epsilon in all."""
    bins = np.full((len(sample.data.cell), 2), PUBLIC_BINS)
    shares = partial(noisy_shares, scale=2 * N_SETS / epsilon, bits=bits)
    return one_step(sample.data, BOUNDS, bins, shares, bits.generator())


def modips_published(
    sample: SlomagSample, epsilon: Fraction, bits: RandomBits
) -> Records:
    """Do as printed: each set at epsilon / m in eight shares; noise of scale 2 / (n
    lambda) on posterior draws.

    The posterior's prior has precision lambda, not n lambda: the noise on the
    coefficients is n times too small, and for three levels short by a further sqrt 2
    (5.6).
    """
    rng = bits.generator()
    share = float(epsilon) / (COMPONENTS * N_SETS)
    drawn = location_model.as_printed(
        without_cells(sample.data), ONE_CELL, epsilon * 6 / COMPONENTS, bits
    )
    z = draw_records(drawn, N, rng, ONE_CELL).z

    def coefficients(
        regression: sequential_model.Regression, x: FloatArray
    ) -> FloatArray:
        exact = sample.betas[regression.outcome]
        return in_units(
            exact + grown_noise(exact.shape, 2 / (N * float(PENALTY) * share), rng),
            regression,
        )

    return draw_levels(z, coefficients, rng)


SCHEMA = Schema.model_validate(
    {
        "columns": {
            **{name: {"lower": -HALF, "upper": HALF} for name in ("z1", "z2")},
            **{
                f"w{j}": {"levels": list(range(size))}
                for j, size in enumerate(LEVELS, start=1)
            },
        }
    }
)


def plan_of(epsilon: Fraction) -> StatisticPlan:
    """Return what ``modips`` does for ``models/slomag.py``: sums, products, ridge fits,
    an eighth of epsilon each.
    """
    statistics = location_model.numeric_statistics()
    for place in range(len(LEVELS)):
        predictors = ("z1", "z2", *(f"w{j + 1}" for j in range(place)))
        statistics[f"fit {place}"] = Logistic(
            outcome=f"w{place + 1}", predictors=predictors, kappa=RIDGE
        )
    return StatisticPlan(
        schema=SCHEMA,
        neighbours="replace-one",
        statistics=statistics,
        budget="equal",
        amount=epsilon,
        law="laplace",
    )


def modips_plug_in(
    sample: SlomagSample, epsilon: Fraction, bits: RandomBits
) -> Records:
    """Sanitize sums, products and regularised modes once at the whole epsilon, and draw
    each set from them.
    """
    rng = bits.generator()
    plan = plan_of(epsilon)
    values = location_model.sanitized_values(plan, sample.exact, bits)
    drawn = location_model.plug_in(
        location_model.statistics_of(plan, values, N), ONE_CELL, N_SETS, rng
    )
    modes = [values[f"fit {place}"] for place in range(len(LEVELS))]
    z = draw_records(drawn, N, rng, ONE_CELL).z
    return draw_levels(z, sequential_model.plug_in(modes, RIDGE, rng), rng)


def noise_aware(
    data: Records, shipped: str, epsilon: Fraction, rng: np.random.Generator
) -> Records:
    """Release by ``modips`` with a shipped model, for one replicate in ``ONE_IN``."""
    made = location_model.tables(data, LEVELS, ONE_CELL.half)
    return location_model.records_in(
        location_model.releases(made, shipped, epsilon, rng), LEVELS
    )


METHODS: dict[str, Callable[[SlomagSample, Fraction, RandomBits], Records]] = {
    "np-dips-published": np_dips_published,
    "np-dips": np_dips,
    "modips-published": modips_published,
    "modips-plug-in": modips_plug_in,
    # the general location model of section 4.3.1
    "wrong-published": lambda sample, epsilon, bits: draw_records(
        location_model.as_printed(sample.data, BOUNDS, epsilon, bits),
        N,
        bits.generator(),
        BOUNDS,
    ),
    "wrong-plug-in": lambda sample, epsilon, bits: once(BOUNDS)(
        sample.data, epsilon, bits
    ),
}
"""Each takes data, the total epsilon and bits, and returns synthetic sets."""

MEANS = ("mu1", "mu2")
SPREADS = ("s1", "s2", "rho")
PRINTED = ("modips-published", "np-dips-published")
REPAIRED = ("modips-plug-in", "np-dips")
WRONG = ("wrong-published", "wrong-plug-in")
FEW = 0.05

claims: Claims[cells.AverageFigures] = Claims("slomag")


def _betas(seen: cells.AverageFigures) -> list[str]:
    return [case for case in seen.cases if case.startswith("beta")]


@claims
def _no_fit(seen: cells.AverageFigures) -> Said:
    def share(name: str, epsilon: str) -> float:
        return float(
            np.mean(
                seen.over(
                    [name],
                    [f"beta{j}, intercept" for j in "1234"],
                    cells.WITHOUT,
                    [epsilon],
                )
            )
        )

    names = ("modips-published", "modips-plug-in", "np-dips-published", "wrong-plug-in")
    shares = [
        tuple(
            cells.figure(share(name, at), "coverage") for at in (seen.lowest, seen.top)
        )
        for name in names
    ]
    text = [
        f"{seen.said[name]} {low} and {top}"
        for name, (low, top) in zip(names, shares, strict=True)
    ]
    return say(share("modips-published", seen.lowest) > FEW, shares="; ".join(text))


@claims
def _wrong(seen: cells.AverageFigures) -> Said:
    names = (*WRONG, "modips-published")
    top = [seen.top]
    bias, coverage = (
        seen.words(names, _betas(seen), measure, top)
        for measure in ("bias", "coverage")
    )
    return say(
        seen.of(WRONG[0], _betas(seen), "coverage", top) < 0.8,
        bias=bias,
        coverage=coverage,
        **_in_the_limit(),
    )


def _in_the_limit() -> dict[str, str]:
    """Return, in words, the coefficient that sets of a GLOM miss by most, and by how
    much.
    """
    found = limits()
    off = found["standard errors off"].abs()
    worst = int(off.argmax())
    return {
        "limit": f"{found['limit'].iloc[worst]:.2f}",
        "truth": f"{found['truth'].iloc[worst]:g}",
        "off": f"{off.max():.2f}",
    }


@claims
def _bias(seen: cells.AverageFigures) -> Said:
    runs = (seen.above(math.exp(-1.01)), [seen.top])
    parts = [
        f"epsilon {cells.span(run)}: "
        f"{seen.words((*PRINTED, *REPAIRED), _betas(seen), 'bias', run)}"
        for run in runs
    ]
    modips, histogram = (
        seen.of(name, _betas(seen), "bias", [seen.top]) for name in PRINTED
    )
    return say(modips < 0.1 < histogram, parts="; ".join(parts))


@claims
def _errors(seen: cells.AverageFigures) -> Said:
    names = ("original", *PRINTED, *REPAIRED, *WRONG)
    parts = [
        f"epsilon {short(at)}: {seen.words(names, _betas(seen), 'rmse', [at])}"
        for at in (seen.middle, seen.top)
    ]
    modips, original = (
        seen.of(name, _betas(seen), "rmse", [seen.middle])
        for name in (PRINTED[0], "original")
    )
    judged = HOLDS if modips > 2 * original else PARTLY
    return f"Coefficients, {'; '.join(parts)}.", judged


@claims
def _coverage(seen: cells.AverageFigures) -> Said:
    where = seen.above(math.exp(-1.01))
    betas = _betas(seen)
    covered = seen.over([PRINTED[1]], betas, "coverage", where)
    spread = [cells.figure(share, "coverage") for share in (min(covered), max(covered))]
    judged = HOLDS if seen.of(PRINTED[0], betas, "coverage", where) > 0.93 else PARTLY
    words = {
        "coverage": seen.words((*PRINTED, *REPAIRED), betas, "coverage", where),
        "low": seen.words(PRINTED[1:], betas, "width", [seen.lowest]),
        "high": seen.words(PRINTED[1:], betas, "width", [where[-1]]),
    }
    return say(
        judged,
        where=cells.span(where),
        spread=" to ".join(spread),
        last=short(where[-1]),
        **words,
    )


@claims
def _means(seen: cells.AverageFigures) -> Said:
    low = seen.below(math.exp(1))
    high = seen.above(math.exp(1.01))
    names = (*PRINTED, *REPAIRED)
    modips, histogram = (seen.of(name, MEANS, "rmse", low) for name in PRINTED)
    covered = [seen.of(name, MEANS, "coverage", seen.epsilons) for name in PRINTED]
    judged = HOLDS if histogram < modips and min(covered) > 0.92 else PARTLY
    words = {
        "at_low": seen.words(names, MEANS, "rmse", low),
        "at_high": seen.words(names, MEANS, "rmse", high),
        "coverage": seen.words(names, MEANS, "coverage", seen.epsilons),
    }
    return say(judged, low=cells.span(low), high=cells.span(high), **words)


@claims
def _spreads(seen: cells.AverageFigures) -> Said:
    where = seen.above(math.exp(-1.99))
    names = (*PRINTED, *WRONG, *REPAIRED)
    spreads = ("s1", "s2", "rho")
    others = [
        seen.of(name, spreads, "coverage", seen.epsilons)
        for name in (PRINTED[1], WRONG[0])
    ]
    modips = seen.of(PRINTED[0], spreads, "coverage", where)
    judged = HOLDS if modips > 0.93 and max(others) < 0.5 else PARTLY
    last = where[-1:]
    words = {
        "coverage": seen.words(names, spreads, "coverage", where),
        "errors": seen.words(names, spreads, "rmse", where),
        "at_last": seen.words(names, spreads, "coverage", last),
    }
    return say(judged, where=cells.span(where), last=short(last[0]), **words)


@claims
def _price(seen: cells.AverageFigures) -> Said:
    return say(
        PROVED,
        errors=seen.words((*PRINTED, *REPAIRED), _betas(seen), "rmse", [seen.middle]),
    )
