"""The general location model of Bowen and Liu's (2020) simulations 3 and 4: noisy
statistics, and draws given them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.privacy.noise import RandomBits, discrete_laplace
from pdips.registry import find
from pdips.release.release import Release
from pdips.statistics.plan import Statistic, StatisticPlan
from pdips.statistics.statistic import Counts, Products, Sums, unit_of
from pdips_papers.harness.measures import (
    draw_covariances,
    draw_shares,
    nearest_covariance,
)

N_SETS = 5

PRIOR = 0.5
"""Parameter of the Dirichlet prior for each cell, as in the paper."""

LEAST = 2.0**-10
"""Least eigenvalue of a noisy covariance matrix, in squared half ranges."""

FINE = 2**20
PAIRS = ((0, 0), (1, 1), (0, 1))

ONE_IN = 100
"""One replicate in this many has noise-aware rows: each is a release with chains of its
own.
"""


@dataclass(frozen=True)
class Records:
    """Data sets (one a replicate) or synthetic sets: ``cell``, shape (replicates, sets,
    n), and ``z``, (..., n, 2).
    """

    cell: IntArray
    z: FloatArray

    @property
    def n(self) -> int:
        """Number of records of a set."""
        return int(self.cell.shape[2])


@dataclass(frozen=True)
class Bounds:
    """Public bounds of z: ``middle``, shape (cells, 2), give or take ``half``, shape
    (2,), the same in all cells.

    So a record that changes its cell changes sums of z - middle as if bounds were
    common.
    """

    middle: FloatArray
    half: FloatArray

    @property
    def cells(self) -> int:
        """Number of cells."""
        return len(self.middle)

    def clip(self, cell: IntArray, z: FloatArray) -> FloatArray:
        """Move what is out of bounds to them."""
        middle = self.middle[cell]
        return np.clip(z, middle - self.half, middle + self.half)

    def schema(self) -> Schema:
        """Return the schema of a cell and of the distances of z from its middle."""
        numbers = {
            f"z{j + 1}": {"lower": -half, "upper": half}
            for j, half in enumerate(self.half.tolist())
        }
        return Schema.model_validate(
            {"columns": {"cell": {"levels": list(range(self.cells))}} | numbers}
        )


@dataclass(frozen=True)
class Parameters:
    """Draws of shares (replicates, sets, cells), means (..., cells, 2) and the common
    covariance (..., 2, 2).
    """

    shares: FloatArray
    means: FloatArray
    covariance: FloatArray


@dataclass(frozen=True)
class Statistics:
    """Statistics of data sets, exact or with noise; u is z - middle in units of half
    the range.
    """

    counts: FloatArray
    sums: FloatArray
    products: FloatArray
    n: int
    noise: float = 0.0


def numeric_statistics(by: tuple[str, ...] = ()) -> dict[str, Statistic]:
    """Return two sums by cell, and three products."""
    sums: dict[str, Statistic] = {
        f"sums {j}": Sums(of=f"z{j + 1}", by=by) for j in (0, 1)
    }
    return sums | {
        f"product {place}": Products(of=(f"z{j + 1}", f"z{k + 1}"))
        for place, (j, k) in enumerate(PAIRS)
    }


def plan_of(bounds: Bounds, epsilon: Fraction) -> StatisticPlan:
    """Return what ``modips`` does for ``models/glom.py``, with equal shares: counts,
    two sums, three products.
    """
    statistics = {"counts": Counts(by=("cell",))} | numeric_statistics(by=("cell",))
    return StatisticPlan(
        schema=bounds.schema(),
        neighbours="replace-one",
        statistics=statistics,
        budget="equal",
        amount=epsilon,
        law="laplace",
    )


def sanitised(
    data: Records, bounds: Bounds, epsilon: Fraction, bits: RandomBits
) -> Statistics:
    """Sanitize the statistics of data sets, shape (replicates, 1, n), once with all of
    epsilon, as ``modips`` does.
    """
    plan = plan_of(bounds, epsilon)
    noisy = sanitized_values(plan, observe(data, bounds, plan.schema), bits)
    return statistics_of(plan, noisy, data.n)


def statistics_of(
    plan: StatisticPlan, noisy: Mapping[str, FloatArray], n: int
) -> Statistics:
    """Return noisy statistics of a plan; all records are in one cell if it counts
    none.
    """
    sums = [part for part in plan.parts if part.name.startswith("sums")]
    deviations = [part.step.noise.standard_deviation for part in sums if part.step]
    products = [noisy[f"product {number}"] for number in range(len(PAIRS))]
    one_cell = np.full((len(noisy["sums 0"]), 1), float(n))
    return Statistics(
        counts=noisy.get("counts", one_cell),
        sums=np.stack([noisy[part.name] for part in sums], axis=-1),
        products=np.concatenate(products, axis=1),
        n=n,
        noise=max(deviations) ** 2,
    )


def sanitized_values(
    plan: StatisticPlan, exact: Mapping[str, IntArray], bits: RandomBits
) -> dict[str, FloatArray]:
    """Return each statistic of a plan with its noise, in its own unit, from exact
    values (replicates, entries).
    """
    noisy = {}
    for part in plan.parts:
        values = exact[part.name]
        whole = values + part.noise(len(values), bits)
        in_units = whole * part.statistic.unit(plan.schema)
        noisy[part.name] = np.asarray(in_units, dtype=np.float64)
    return noisy


def observe(data: Records, bounds: Bounds, schema: Schema) -> dict[str, IntArray]:
    """Return the exact statistics in whole units, shape (replicates, entries), by their
    names in the plan.
    """
    cell = data.cell[:, 0]
    place = places(data.cell, bounds.cells)
    size = len(cell) * bounds.cells
    apart = (data.z - bounds.middle[data.cell])[:, 0]
    u = [unit_of(schema, f"z{j + 1}").whole(apart[..., j].ravel()) for j in (0, 1)]
    counts = np.bincount(place, minlength=size)
    exact: dict[str, IntArray] = {"counts": counts.reshape(-1, bounds.cells)}
    for j in (0, 1):
        sums = np.bincount(place, u[j], size).astype(np.int64)
        exact[f"sums {j}"] = sums.reshape(-1, bounds.cells)
    for number, (j, k) in enumerate(PAIRS):
        products = (u[j] * u[k]).reshape(cell.shape)
        exact[f"product {number}"] = products.sum(axis=1, keepdims=True)
    return exact


def plug_in(
    noisy: Statistics, bounds: Bounds, n_sets: int, rng: np.random.Generator
) -> Parameters:
    """Draw parameters as if noisy statistics were exact: ``n_sets`` independent draws
    from one posterior.

    Before that, all of it post-processing: counts are moved to 1 at least, cell means
    into their bounds, and the eigenvalues of the pooled covariance matrix into what
    bounds allow. What noise adds on average to the square of a sum is taken off, as far
    as the square stays nonnegative.
    """
    counts = np.maximum(noisy.counts, 1)
    means = np.clip(noisy.sums / counts[..., None], -1, 1)
    without_noise = np.maximum(noisy.sums**2 - noisy.noise, 0)
    square = np.minimum(without_noise / counts[..., None], counts[..., None])
    spread = np.empty((len(counts), 2, 2))
    for j in (0, 1):
        spread[:, j, j] = noisy.products[:, j] - square[..., j].sum(axis=1)
    of_means = counts * means[..., 0] * means[..., 1]
    spread[:, 0, 1] = noisy.products[:, 2] - of_means.sum(axis=1)
    spread[:, 1, 0] = spread[:, 0, 1]
    possible = nearest_covariance(spread / noisy.n, LEAST, 1.0)
    covariance = possible * np.outer(bounds.half, bounds.half)
    in_units = means * bounds.half + bounds.middle
    return conjugate(counts, in_units, covariance, noisy.n, n_sets, rng)


def conjugate(
    counts: IntArray,
    means: FloatArray,
    spread: FloatArray,
    n: int,
    n_sets: int,
    rng: np.random.Generator,
) -> Parameters:
    """Draw from the posterior of section 4.3.1, given counts, cell means and the
    covariance matrix with divisor n.

    Dirichlet(counts + 1/2); inverse Wishart on n - K degrees, whose scale is n times
    the matrix (the paper prints the matrix itself, which can't be meant: its draws
    would be n times too small); N(mean, covariance / count).
    """
    if counts.ndim == 2:
        counts = np.repeat(counts[:, None], n_sets, axis=1)
        means = np.repeat(means[:, None], n_sets, axis=1)
        spread = np.repeat(spread[:, None], n_sets, axis=1)
    cells = counts.shape[-1]
    covariance = draw_covariances(n * spread, n - cells, rng)
    root = np.linalg.cholesky(covariance)[:, :, None]
    sizes = np.maximum(counts, 1)
    noise = rng.standard_normal(means.shape) / np.sqrt(sizes)[..., None]
    return Parameters(
        shares=draw_shares(np.maximum(counts, 0) + PRIOR, rng),
        means=means + (root @ noise[..., None])[..., 0],
        covariance=covariance,
    )


def exact_posterior(data: Records, cells: int, rng: np.random.Generator) -> Parameters:
    """Draw parameters given the data themselves, for multiple synthesis without
    privacy.
    """
    counts, means, spread = cell_moments(data, cells)
    return conjugate(counts[:, 0], means[:, 0], spread[:, 0], data.n, N_SETS, rng)


def as_printed(
    data: Records, bounds: Bounds, epsilon: Fraction, bits: RandomBits
) -> Parameters:
    """Draw parameters as the paper prints it: cell means with scale R / (n_k e), e the
    share of a component.

    Each of five sets has a sanitisation of its own at epsilon / 5 in six equal shares.
    The confidential counts set the scale of the noise on the cell means and the spread
    of their draws, so no epsilon is finite; the sensitivity of the off-diagonal entry
    is up to 2 times too small (5.5).
    """
    counts, means, spread = cell_moments(data, bounds.cells)
    counts = np.repeat(counts, N_SETS, 1)
    means = np.repeat(means, N_SETS, 1)
    spread = np.repeat(spread, N_SETS, 1)
    n = data.n
    cells = bounds.cells
    rng = bits.generator()
    share = float(epsilon) / (6 * N_SETS)
    noisy_counts = counts + unit_noise(counts.shape, bits) / share
    size = 2 * bounds.half / np.maximum(counts, 1)[..., None] / share
    noisy_means = bounds.clip(
        np.arange(cells), means + size * unit_noise(means.shape, bits)
    )
    # noise of scale R_j R_k (n - 1) / (n (n - K)) / share on each entry, here in
    # squared half ranges
    scale = np.outer(bounds.half, bounds.half)
    noise = unit_noise((*spread.shape[:-2], 3), bits)
    noisy_spread = spread / scale
    for place, (j, k) in enumerate(PAIRS):
        noisy_spread[..., j, k] += (
            4 * (n - 1) / (n * (n - cells)) / share * noise[..., place]
        )
    noisy_spread[..., 1, 0] = noisy_spread[..., 0, 1]
    drawn = conjugate(
        counts,
        noisy_means,
        nearest_covariance(noisy_spread, LEAST, 1.0) * scale,
        n,
        N_SETS,
        rng,
    )
    return replace(drawn, shares=draw_shares(np.maximum(noisy_counts, 0) + PRIOR, rng))


def unit_noise(shape: tuple[int, ...], bits: RandomBits) -> FloatArray:
    """Draw Laplace noise of scale 1 on a grid of 2^-20, for published rows, whose
    scales depend on the data.
    """
    drawn = discrete_laplace(Fraction(FINE), math.prod(shape), bits)
    return np.asarray(drawn.reshape(shape) / FINE)


def cell_moments(
    records: Records, cells: int
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return counts and means by cell (0 in empty ones), and the covariance matrix
    about them with divisor n.
    """
    shape = (*records.cell.shape[:2], cells)
    place = places(records.cell, cells)
    size = math.prod(shape)
    counts = np.bincount(place, minlength=size)
    sums = [
        np.bincount(place, records.z[..., j].ravel(), size) / np.maximum(counts, 1)
        for j in (0, 1)
    ]
    apart = [
        (records.z[..., j].ravel() - sums[j][place]).reshape(records.cell.shape)
        for j in (0, 1)
    ]
    spread = np.empty((*shape[:2], 2, 2))
    for j, k in PAIRS:
        spread[..., j, k] = spread[..., k, j] = (
            np.einsum("rsn,rsn->rs", apart[j], apart[k]) / records.n
        )
    return counts.reshape(shape), np.stack(sums, axis=-1).reshape(*shape, 2), spread


def places(cell: IntArray, cells: int) -> IntArray:
    """Number the cells of all sets through, flat."""
    first = cells * np.arange(math.prod(cell.shape[:2])).reshape(*cell.shape[:2], 1)
    return np.asarray((cell + first).ravel())


def draw_records(
    drawn: Parameters, n: int, rng: np.random.Generator, bounds: Bounds | None = None
) -> Records:
    """Draw ``n`` records a set; with bounds, what is out of them moves to them."""
    counts = rng.multinomial(n, drawn.shares)
    cells = counts.shape[-1]
    cell = np.repeat(
        np.tile(np.arange(cells), math.prod(counts.shape[:2])), counts.ravel()
    )
    cell = cell.reshape(*counts.shape[:2], n)
    z = rng.standard_normal((*cell.shape, 2)) @ np.swapaxes(
        np.linalg.cholesky(drawn.covariance), -1, -2
    )
    z += drawn.means.reshape(-1, 2)[places(cell, cells)].reshape(z.shape)
    return Records(cell, z if bounds is None else bounds.clip(cell, z))


def tables(data: Records, levels: Sequence[int], half: FloatArray) -> list[Table]:
    """Return data sets as tables of the columns w1, w2, ..., z1 and z2, with common
    bounds; first one in ``ONE_IN``.
    """
    numbers = {
        f"z{j + 1}": {"lower": -width, "upper": width}
        for j, width in enumerate(half.tolist())
    }
    codes = {
        f"w{j + 1}": {"levels": list(range(size))} for j, size in enumerate(levels)
    }
    schema = Schema.model_validate({"columns": codes | numbers})
    found = []
    for k in range(max(1, len(data.cell) // ONE_IN)):
        w = np.unravel_index(data.cell[k, 0], tuple(levels))
        columns = dict(zip(codes, w, strict=True))
        columns |= {f"z{j + 1}": data.z[k, 0, :, j] for j in (0, 1)}
        found.append(Table(pd.DataFrame(columns), schema))
    return found


def releases(
    made: Sequence[Table], model: str, epsilon: Fraction, rng: np.random.Generator
) -> list[Release]:
    """Release each table by ``modips`` with a shipped model, noise-aware, with equal
    shares.
    """
    mechanism = find("modips")(
        epsilon=epsilon, n_sets=N_SETS, model=model, budget="equal"
    )
    return [mechanism.release(table, rng=rng)[0] for table in made]


def records_in(found: Sequence[Release], levels: Sequence[int]) -> Records:
    """Return the synthetic sets of releases as records."""
    names = [f"w{j + 1}" for j in range(len(levels))]
    codes = np.array(
        [
            [each[names].to_numpy(dtype=np.int64) for each in release.sets]
            for release in found
        ]
    )
    z = np.array(
        [
            [each[["z1", "z2"]].to_numpy(dtype=np.float64) for each in release.sets]
            for release in found
        ]
    )
    return Records(
        np.ravel_multi_index(tuple(np.moveaxis(codes, -1, 0)), tuple(levels)).astype(
            np.int64
        ),
        z,
    )
