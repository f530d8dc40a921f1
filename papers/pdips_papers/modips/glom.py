"""Simulation study 3 of paper 003: two numbers within the cells of three categorical variables (GLOM)."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.privacy.loss import positive
from pdips.privacy.noise import RandomBits
from pdips_papers.harness.epsilon_curves import Method, batches, epsilons_for, suffix_of
from pdips_papers.harness.framework import Block, Data, Finding, Options, Picture, Task
from pdips_papers.harness.measures import interval_summary
from pdips_papers.modips import mixed_moments
from pdips_papers.modips.glom_findings import glom_findings
from pdips_papers.modips.mixed_aware import combine_sets, posterior, some
from pdips_papers.modips.mixed_histograms import scotts_bins, two_steps
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
from pdips_papers.modips.words import text_of

N, RHO = 1000, 0.5
LEVELS = (2, 3, 4)
MARGINS = ((0.4, 0.6), (0.2, 0.3, 0.5), (0.15, 0.2, 0.25, 0.4))
"""Shares of the levels, independent of each other: cells of 1.2 to 12 %. The paper's are in its supplement."""

CELLS = 24
SHARES = np.einsum("i,j,k->ijk", *MARGINS).ravel()
LEVEL_OF = np.stack(np.unravel_index(np.arange(CELLS), LEVELS))
MEANS = -2 + 4 * np.stack([5 * np.arange(CELLS) % CELLS, 7 * np.arange(CELLS) % CELLS], axis=-1) / (CELLS - 1)
"""Cell means: 24 equal steps from -2 to 2 in two orders. The paper's are in its supplement."""

COVARIANCE = np.array([[1.0, RHO], [RHO, 1.0]])
BY_CELL = Bounds(MEANS, np.array([4.0, 4.0]))
"""The paper's bounds: the true mean of each cell give or take 4 standard deviations, taken as public."""

COMMON = Bounds(np.zeros((CELLS, 2)), np.array([6.0, 6.0]))
"""Bounds -6 and 6 for all cells, as an analyst would have them who doesn't know the cell means."""

PUBLIC_BINS = 6
"""Bins of each number within a cell: the middle of the paper's 4 to 7."""

BATCH = 100
PLACES = {"lowest": 0, "Q1": 6, "median": 12, "Q3": 17, "highest": 23}
SHOWN = {j: {name: int(np.argsort(MEANS[:, j])[place]) for name, place in PLACES.items()} for j in (0, 1)}
"""The cells with the lowest true mean, the quartiles, the highest."""

MARGINALS = {"w1=1": (0, 0), "w2=1": (1, 0), "w2=2": (1, 1), "w3=1": (2, 0), "w3=2": (2, 1), "w3=3": (2, 2)}

GROUPS = (
    *(
        Group(
            title=f"Cell means of z{j + 1}",
            cases={f"mu{j + 1}, {name}": f"mean of z{j + 1}, {name} cell" for name in PLACES},
        )
        for j in (0, 1)
    ),
    Group(
        title="Variances and correlation",
        cases={"s1": "variance of z1", "s2": "variance of z2", "rho": "correlation"},
    ),
    Group(title="Marginal probabilities", cases={name: f"P({name})" for name in MARGINALS}),
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
        "modips-plug-in-common": Method(label="MODIPS plug-in, once, common bounds", colour=4),
        "modips-noise-aware": Method(label="MODIPS noise-aware, five sets", colour=8),
        "modips-posterior": Method(label="MODIPS noise-aware, published posterior", colour=7),
    },
    headlines=("mu1, median", "s1", "rho", "w1=1"),
)


class Glom:
    """``pdips study glom``."""

    name = "glom"
    title = "Numbers within cells, by the general location model: simulation study 3 of paper 003"
    default_replicates = 5000
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
        rows = measured("original", data)
        rows += measured("multiple-synthesis", draw_records(mixed_moments.exact_posterior(data, CELLS, rng), N, rng))
        for spelled in arguments["epsilons"]:
            epsilon, suffix = positive(spelled, "epsilon"), suffix_of(spelled)
            for method, synthesize in METHODS.items():
                rows += measured(method, synthesize(data, epsilon, bits), suffix)
            rows += noise_aware(data, epsilon, bits, suffix)
        return rows

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return the long table; the paper draws its results and prints no figures."""
        return CURVES.table(measurements)

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Return the blocks to print."""
        return CURVES.layout(table)

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[Picture]:
        """Draw figure 5 of the paper, and figures 6 and 7 of its supplement."""
        return CURVES.pictures(table)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Compare the paper's claims with what was found."""
        return glom_findings(table, CURVES.curves)

    def text(self) -> str:
        """Say what was done and what each row spends."""
        return text_of(self.name)


def simulated(replicates: int, rng: np.random.Generator) -> Records:
    """Draw data sets from the model, moved into the bounds of each cell."""
    counts = rng.multinomial(N, SHARES, size=(replicates, 1))
    cell = np.repeat(np.tile(np.arange(CELLS), replicates), counts.ravel()).reshape(replicates, 1, N)
    z = MEANS[cell] + rng.standard_normal((*cell.shape, 2)) @ np.linalg.cholesky(COVARIANCE).T
    return Records(cell, BY_CELL.clip(cell, z))


def noise_aware(data: Records, epsilon: Fraction, bits: RandomBits, suffix: str) -> list[dict[str, Any]]:
    """Return the rows of five sets, and of the published posterior, for one replicate in ``ONE_IN``.

    With common bounds: the paper's have each cell's true mean in their middle, and a prior that shrinks cells' means
    towards each other would learn from that what nobody knows.
    """
    first, rng = some(len(data.cell)), bits.generator()
    kept = Records(data.cell[:first], data.z[:first])
    noisy = mixed_moments.sanitised(mixed_moments.observe(kept, COMMON), epsilon, bits)
    found = posterior(noisy, COMMON, rng)
    sets = draw_records(found.spaced(N_SETS), N, rng, COMMON)
    rows, method = measured("modips-noise-aware", sets, suffix, combine_sets), "modips-posterior"
    for j, shown in SHOWN.items():
        for name, k in shown.items():
            row = f"{method}, mu{j + 1}, {name}"
            rows += interval_summary(row, suffix, middle_of(found.means[..., k, j]), float(MEANS[k, j]))
    variances = np.diagonal(found.covariance, axis1=-2, axis2=-1)
    correlation = found.covariance[..., 0, 1] / np.sqrt(variances.prod(axis=-1))
    values = {"s1": variances[..., 0], "s2": variances[..., 1], "rho": correlation}
    for name, draws in values.items():
        rows += interval_summary(f"{method}, {name}", suffix, middle_of(draws), RHO if name == "rho" else 1.0)
    for name, (column, level) in MARGINALS.items():
        share = found.shares[..., LEVEL_OF[column] == level].sum(axis=-1)
        rows += interval_summary(f"{method}, {name}", suffix, middle_of(share), MARGINS[column][level])
    return rows


def middle_of(draws: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the posterior mean and the ends of the middle 95 %, from draws of shape (replicates, draws)."""
    lower, upper = np.quantile(draws, [0.025, 0.975], axis=1)
    return draws.mean(axis=1), lower, upper


def measured(
    method: str, sets: Records, suffix: str = "", combining: Combining = combine_available
) -> list[dict[str, Any]]:
    """Estimate cell means, variances, correlation and marginal probabilities from sets, as section 4.3.1 does."""
    means, errors = mean_estimates(sets, CELLS)
    rows = []
    for j, shown in SHOWN.items():
        for name, k in shown.items():
            row = f"{method}, mu{j + 1}, {name}"
            rows += summarised(row, suffix, means[..., k, j], errors[..., k, j], float(MEANS[k, j]), combining)
    for name, (estimate, variance) in covariance_estimates(sets, CELLS).items():
        rows += summarised(f"{method}, {name}", suffix, estimate, variance, RHO if name == "rho" else 1.0, combining)
    for name, (column, level) in MARGINALS.items():
        share = (LEVEL_OF[column] == level)[sets.cell].mean(axis=2)
        error = share * (1 - share) / sets.n
        rows += summarised(f"{method}, {name}", suffix, share, error, MARGINS[column][level], combining)
    return rows


def np_dips_published(data: Records, epsilon: Fraction, bits: RandomBits) -> Records:
    """Do as printed: Scott's bins in each cell, half of epsilon / m for counts and half for bins, sensitivity 1.

    The bins give away each cell's standard deviation and count, so no epsilon is finite (5.3).
    """
    counts = mixed_moments.cell_moments(data, CELLS)[0][:, 0]
    deviation = np.full((*counts.shape, 2), np.nan)
    for k in range(CELLS):
        inside = (data.cell[:, 0] == k)[..., None]
        mean = (data.z[:, 0] * inside).sum(axis=1) / np.maximum(counts[:, k], 1)[:, None]
        square = ((data.z[:, 0] - mean[:, None]) ** 2 * inside).sum(axis=1)
        deviation[:, k] = np.sqrt(square / np.maximum(counts[:, k] - 1, 1)[:, None])
    bins = scotts_bins(deviation, counts, BY_CELL.half)
    return two_steps(data, BY_CELL, bins, 2 * N_SETS / epsilon, bits)


def np_dips(data: Records, epsilon: Fraction, bits: RandomBits) -> Records:
    """Do the same with public bins, at sensitivity 2 in each step: epsilon in all."""
    bins = np.full((len(data.cell), CELLS, 2), PUBLIC_BINS)
    return two_steps(data, BY_CELL, bins, 4 * N_SETS / epsilon, bits)


def modips_published(data: Records, epsilon: Fraction, bits: RandomBits) -> Records:
    """Do as printed, with the true counts in the scale of the noise on cell means."""
    rng = bits.generator()
    return draw_records(mixed_moments.as_printed(data, BY_CELL, epsilon, bits), N, rng, BY_CELL)


Posterior = Callable[[mixed_moments.Statistics, Bounds, int, np.random.Generator], mixed_moments.Parameters]


def once(posterior: Posterior, bounds: Bounds) -> Callable[[Records, Fraction, RandomBits], Records]:
    """Return a synthesizer that sanitizes the statistics once at the whole epsilon and draws each set from them."""

    def synthesize(data: Records, epsilon: Fraction, bits: RandomBits) -> Records:
        noisy = mixed_moments.sanitised(mixed_moments.observe(data, bounds), epsilon, bits)
        drawn = posterior(noisy, bounds, N_SETS, bits.generator())
        return draw_records(drawn, N, bits.generator(), bounds)

    return synthesize


METHODS: dict[str, Callable[[Records, Fraction, RandomBits], Records]] = {
    "np-dips-published": np_dips_published,
    "np-dips": np_dips,
    "modips-published": modips_published,
    "modips-plug-in": once(mixed_moments.plug_in, BY_CELL),
    "modips-plug-in-common": once(mixed_moments.plug_in, COMMON),
}
"""Each takes data, the total epsilon and bits, and returns synthetic sets."""
