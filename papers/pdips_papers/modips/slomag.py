"""Simulation study 4 of paper 003: categorical variables given two numbers, by a sequence of regressions (SLOMAG)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.privacy.loss import positive
from pdips.privacy.noise import RandomBits
from pdips_papers.harness.epsilon_curves import Method, batches, epsilons_for, suffix_of
from pdips_papers.harness.framework import Block, Data, Finding, Options, Picture, Task
from pdips_papers.modips import mixed_moments, slomag_model
from pdips_papers.modips.mixed_aware import combine_sets, posterior, some
from pdips_papers.modips.mixed_histograms import one_step, scotts_bins
from pdips_papers.modips.mixed_measures import (
    Combining,
    Group,
    combine_available,
    covariance_estimates,
    grouped,
    mean_estimates,
    summarised,
)
from pdips_papers.modips.mixed_moments import N_SETS, Bounds, Records, draw_records
from pdips_papers.modips.slomag_findings import slomag_findings
from pdips_papers.modips.slomag_model import BOUNDS, HALF, ONE_CELL, SEQUENCE, draw_levels, in_units
from pdips_papers.modips.words import text_of

N, RHO = 1000, 0.5
COVARIANCE = np.array([[1.0, RHO], [RHO, 1.0]])
COMPONENTS = 8
"""Two means, three moments, three regressions: each has an eighth of epsilon, as in the paper."""

PENALTY = 0.5
"""The paper's lambda: the prior as printed has precision lambda, the noise is for n lambda."""

RIDGE = 30.0
"""Public precision of the prior of coefficients of predictors in the unit ball, in the sound rows."""

PUBLIC_BINS = 13
"""Bins of each number: what Scott's rule gives for variance 1."""

BATCH = 100
NAMES = ("intercept", "z1", "z2", "w1", "w2")
TRUTHS = {str(number + 1): row for number, row in enumerate(row for one in SEQUENCE for row in one.truth)}

GROUPS = (
    *(
        Group(
            title=f"Coefficients beta {number}: {of}",
            cases={f"beta{number}, {name}": f"β{number}, {name}" for name in NAMES[: len(TRUTHS[number])]},
        )
        for number, of in {
            "2": "w2 given z1, z2, w1",
            "3": "w3 = 2 against 1",
            "1": "w1 given z1, z2",
            "4": "w3 = 3 against 1",
        }.items()
    ),
    Group(title="Means", cases={"mu1": "mean of z1", "mu2": "mean of z2"}),
    Group(
        title="Variances and correlation",
        cases={"s1": "variance of z1", "s2": "variance of z2", "rho": "correlation"},
    ),
)

CURVES = grouped(
    GROUPS,
    methods={
        "original": Method(label="original data", colour=1),
        "multiple-synthesis": Method(label="multiple synthesis, no privacy", colour=2),
        "np-dips-published": Method(label="NP-DIPS (published)", colour=3, dashed=True),
        "np-dips": Method(label="NP-DIPS, public bins", colour=3),
        "modips-published": Method(label="MODIPS plug-in (published)", colour=6, dashed=True),
        "modips-plug-in": Method(label="MODIPS plug-in, sanitized once", colour=5),
        "modips-noise-aware": Method(label="MODIPS noise-aware, five sets", colour=8),
        "wrong-published": Method(label="wrong model: GLOM plug-in (published)", colour=4, dashed=True),
        "wrong-plug-in": Method(label="wrong model: GLOM plug-in, once", colour=4),
        "wrong-noise-aware": Method(label="GLOM noise-aware, five sets", colour=7),
    },
    headlines=("beta2, z1", "mu1", "s1", "rho"),
)


@dataclass(frozen=True)
class Sample:
    """Data sets, and what the published rows draw from them without looking at epsilon.

    Parameters
    ----------
    data : Records
        One set a replicate.
    betas : sequence of ndarray, shape (replicates, sets, d)
        Posterior draws under the prior as printed, by regression, of predictors in the unit ball.
    """

    data: Records
    betas: tuple[FloatArray, ...]


class Slomag:
    """``pdips study slomag``."""

    name = "slomag"
    title = "Categorical variables given numbers, by sequential regressions: simulation study 4 of paper 003"
    default_replicates = 1000
    data: Data = "none"

    def tasks(self, options: Options) -> list[Task]:
        """Return one task for each batch of replicates."""
        epsilons = list(epsilons_for(options))
        return [
            Task(key=f"batch={number:03}", arguments={"replicates": size, "epsilons": epsilons})
            for number, size in enumerate(batches(options.replicates, BATCH))
        ]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw the data of a batch once, and synthesize them by every method at every epsilon."""
        rng = np.random.default_rng(seed)
        bits, data = RandomBits(rng), simulated(arguments["replicates"], rng)
        sample = Sample(data, tuple(slomag_model.posterior_draws(data, one, PENALTY, rng) for one in SEQUENCE))
        rows = measured("original", data) + measured("multiple-synthesis", multiple_synthesis(data, rng))
        for spelled in arguments["epsilons"]:
            epsilon, suffix = positive(spelled, "epsilon"), suffix_of(spelled)
            for method, synthesize in METHODS.items():
                rows += measured(method, synthesize(sample, epsilon, bits), suffix)
            rows += measured("modips-noise-aware", modips_noise_aware(data, epsilon, bits), suffix, combine_sets)
            rows += measured("wrong-noise-aware", wrong_noise_aware(data, epsilon, bits), suffix, combine_sets)
        return rows

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return the long table; the paper draws its results and prints no figures."""
        return CURVES.table(measurements)

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Return the blocks to print."""
        return CURVES.layout(table)

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[Picture]:
        """Draw figures 6 and 7 of the paper, and those of its supplement on the other parameters."""
        return CURVES.pictures(table)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Compare the paper's claims with what was found."""
        return slomag_findings(table, CURVES.curves)

    def text(self) -> str:
        """Say what was done and what each row spends."""
        return text_of(self.name)


def simulated(replicates: int, rng: np.random.Generator) -> Records:
    """Draw data sets from the model, the numbers moved into their bounds first."""
    z = rng.standard_normal((replicates, 1, N, 2)) @ np.linalg.cholesky(COVARIANCE).T
    return draw_levels(np.clip(z, -HALF, HALF), slomag_model.true_coefficients, rng)


def measured(
    method: str, sets: Records, suffix: str = "", combining: Combining = combine_available
) -> list[dict[str, Any]]:
    """Estimate means, variances, correlation and coefficients from sets, as section 4.3.2 does."""
    numbers, rows = without_cells(sets), []
    means, errors = mean_estimates(numbers, 1)
    for j in (0, 1):
        rows += summarised(f"{method}, mu{j + 1}", suffix, means[..., 0, j], errors[..., 0, j], 0.0, combining)
    for name, (estimate, variance) in covariance_estimates(numbers, 1).items():
        rows += summarised(f"{method}, {name}", suffix, estimate, variance, RHO if name == "rho" else 1.0, combining)
    for number, (estimate, variance) in slomag_model.firth_estimates(sets).items():
        for place, truth in enumerate(TRUTHS[number]):
            row = f"{method}, beta{number}, {NAMES[place]}"
            rows += summarised(row, suffix, estimate[..., place], variance[..., place], float(truth), combining)
    return rows


def without_cells(sets: Records) -> Records:
    """Return the numbers alone, all in one cell: the general location model is then a bivariate normal law."""
    return Records(np.zeros_like(sets.cell), sets.z)


def multiple_synthesis(data: Records, rng: np.random.Generator) -> Records:
    """Draw sets from the posterior predictive law under flat priors of the coefficients; no privacy."""
    drawn = mixed_moments.exact_posterior(without_cells(data), 1, rng)
    betas = [slomag_model.posterior_draws(data, one, 0.0, rng) for one in SEQUENCE]
    z = draw_records(drawn, N, rng).z
    return draw_levels(z, lambda regression, _: in_units(betas[regression.outcome], regression), rng)


def np_dips_published(sample: Sample, epsilon: Fraction, bits: RandomBits) -> Records:
    """Do as printed: Scott's bins on the data crossed with the cells, sensitivity 1, epsilon / m a set.

    The bins give away the sample's standard deviations, so no epsilon is finite (5.3).
    """
    deviation = sample.data.z[:, 0].std(axis=1, ddof=1)
    bins = scotts_bins(deviation, np.full(len(deviation), N), ONE_CELL.half)
    return one_step(sample.data, BOUNDS, bins, N_SETS / epsilon, bits)


def np_dips(sample: Sample, epsilon: Fraction, bits: RandomBits) -> Records:
    """Do the same with public bins, at sensitivity 2: epsilon in all."""
    bins = np.full((len(sample.data.cell), 2), PUBLIC_BINS)
    return one_step(sample.data, BOUNDS, bins, 2 * N_SETS / epsilon, bits)


def modips_published(sample: Sample, epsilon: Fraction, bits: RandomBits) -> Records:
    """Do as printed: each set at epsilon / m in eight shares; noise of scale 2 / (n lambda) on posterior draws.

    The posterior's prior has precision lambda, not n lambda: the noise on the coefficients is n times too small, and
    for three levels short by a further sqrt 2 (5.6).
    """
    rng = bits.generator()
    share = float(epsilon) / (COMPONENTS * N_SETS)
    drawn = mixed_moments.as_printed(without_cells(sample.data), ONE_CELL, epsilon * 6 / COMPONENTS, bits)
    z = draw_records(drawn, N, rng, ONE_CELL).z

    def coefficients(regression: slomag_model.Regression, x: FloatArray) -> FloatArray:
        exact = sample.betas[regression.outcome]
        noise = slomag_model.grown_noise(regression, 2 / (N * PENALTY * share), exact.shape[:2], rng)
        return in_units(exact + noise, regression)

    return draw_levels(z, coefficients, rng)


def modips_plug_in(sample: Sample, epsilon: Fraction, bits: RandomBits) -> Records:
    """Sanitize sums, products and regularised modes once at the whole epsilon, and draw each set from them."""
    rng, share = bits.generator(), epsilon / COMPONENTS
    exact = mixed_moments.observe(without_cells(sample.data), ONE_CELL)
    noisy = mixed_moments.sanitised(exact, 5 * share, bits)
    modes = [slomag_model.noisy_modes(sample.data, one, RIDGE, share, bits) for one in SEQUENCE]
    drawn = mixed_moments.plug_in(noisy, ONE_CELL, N_SETS, rng)
    z = draw_records(drawn, N, rng, ONE_CELL).z
    return draw_levels(z, slomag_model.plug_in(modes, RIDGE, rng), rng)


def wrong_published(sample: Sample, epsilon: Fraction, bits: RandomBits) -> Records:
    """Synthesize by the general location model on the 12 cells, as printed in section 4.3.1."""
    rng = bits.generator()
    return draw_records(mixed_moments.as_printed(sample.data, BOUNDS, epsilon, bits), N, rng, BOUNDS)


Posterior = Callable[[mixed_moments.Statistics, Bounds, int, np.random.Generator], mixed_moments.Parameters]


def wrong(posterior: Posterior) -> Callable[[Sample, Fraction, RandomBits], Records]:
    """Return a synthesizer by the general location model on the 12 cells, sanitized once at the whole epsilon."""

    def synthesize(sample: Sample, epsilon: Fraction, bits: RandomBits) -> Records:
        noisy = mixed_moments.sanitised(mixed_moments.observe(sample.data, BOUNDS), epsilon, bits)
        drawn = posterior(noisy, BOUNDS, N_SETS, bits.generator())
        return draw_records(drawn, N, bits.generator(), BOUNDS)

    return synthesize


SCHEMA = Schema.model_validate(
    {
        "columns": {
            **{name: {"lower": -HALF, "upper": HALF} for name in ("z1", "z2")},
            **{f"w{j}": {"levels": list(range(levels))} for j, levels in enumerate(slomag_model.LEVELS, start=1)},
        }
    }
)


def modips_noise_aware(data: Records, epsilon: Fraction, bits: RandomBits) -> Records:
    """Release by ``models/slomag.py``, for one replicate in ``ONE_IN``."""
    from pdips.statistics.modips import Modips

    mechanism = Modips(epsilon=epsilon, n_sets=N_SETS, model="slomag", budget="equal")
    sets = []
    for k in range(some(len(data.cell))):
        w = slomag_model.levels(data.cell[k, 0])
        columns = {"z1": data.z[k, 0, :, 0], "z2": data.z[k, 0, :, 1]}
        frame = pd.DataFrame(columns | {f"w{j}": level for j, level in enumerate(w, start=1)})
        sets.append(mechanism.release(Table(frame, SCHEMA), rng=bits.generator())[0].sets)
    made = [[each[["z1", "z2", "w1", "w2", "w3"]].to_numpy(dtype=np.float64) for each in release] for release in sets]
    values = np.array(made)
    cell = np.ravel_multi_index(tuple(values[..., 2:].astype(np.int64).transpose(3, 0, 1, 2)), slomag_model.LEVELS)
    return Records(cell.astype(np.int64), values[..., :2])


def wrong_noise_aware(data: Records, epsilon: Fraction, bits: RandomBits) -> Records:
    """Do the same, noise-aware, for one replicate in ``ONE_IN``."""
    first, rng = some(len(data.cell)), bits.generator()
    kept = Records(data.cell[:first], data.z[:first])
    noisy = mixed_moments.sanitised(mixed_moments.observe(kept, BOUNDS), epsilon, bits)
    return draw_records(posterior(noisy, BOUNDS, rng).spaced(N_SETS), N, rng, BOUNDS)


METHODS: dict[str, Callable[[Sample, Fraction, RandomBits], Records]] = {
    "np-dips-published": np_dips_published,
    "np-dips": np_dips,
    "modips-published": modips_published,
    "modips-plug-in": modips_plug_in,
    "wrong-published": wrong_published,
    "wrong-plug-in": wrong(mixed_moments.plug_in),
}
"""Each takes data, the total epsilon and bits, and returns synthetic sets."""
