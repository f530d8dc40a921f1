"""Noisy counts on a tree over public levels, and the synthetic sets that are drawn from them.

Layer 0 is the whole table (cut by the public columns, if there are any), each further layer splits every node by one
column, and the last layer is the full cross-tabulation of the columns that remain. A flat histogram is the tree without
layers in between. The shape of the tree depends on the schema and on earlier noisy choices only.

A release grows one tree. An audit grows many at once, or all that there could be without noise, by the same code.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.mechanism import Clock, Drawn, Law, Mechanism, Outcome
from pdips.mechanisms.consistency import FloatArray, IntArray, consistent, nonnegative, round_cells
from pdips.mechanisms.layers import Cells, Domain, Layer, cells, descend, domain_of, split_by, top_layer
from pdips.noise import RandomBits, discrete_laplace, discrete_laplace_variance
from pdips.release import Noise
from pdips.schema import Schema
from pdips.table import Table, decode

SMALLEST_VARIANCE = 1e-30
"""Stands in for the variance of noise so small that its reciprocal would overflow; only its ratio to others matters."""


@dataclass(frozen=True)
class Measured:
    """Counts of one tree, before anything is made consistent, for one run or several that grew the same tree.

    Parameters
    ----------
    domain : Domain
        The cross-tabulation.
    layers : list of Layer
        Layer 0, the layers that split by a column, and the cells.
    chosen : list of ndarray
        For each layer that was split, the column that split each node.
    observed : list of ndarray of int64, each of shape (runs, nodes)
        Noisy counts by layer; layer 0 holds exact public counts, or zeros where the number of records isn't public.
    variances : list of ndarray, each of shape (nodes,)
        Variance of the noise by layer: 0 for exact counts, infinity for counts not observed.
    log_probability : float
        Of the choices, when all trees are enumerated; 0 when they were drawn.
    """

    domain: Domain
    layers: list[Layer]
    chosen: list[IntArray]
    observed: list[IntArray]
    variances: list[FloatArray]
    log_probability: float = 0.0
    cells: Cells | None = None

    @property
    def parents(self) -> list[IntArray]:
        """Parents of each layer but the first."""
        return [layer.parent for layer in self.layers[1:]]

    def levels(self, cell: IntArray, column: int) -> IntArray:
        """Return the level of a column in each cell of a finished tree."""
        if self.cells is None:
            raise AssertionError("the tree has no cells yet")
        return self.cells.levels(cell, column)


class Chooser(Protocol):
    """Says which column splits each node of a layer, and pays for what it reads."""

    def draw(
        self, number: int, layer: Layer, node: IntArray, codes: IntArray, *, n_runs: int, bits: RandomBits
    ) -> IntArray:
        """Return the choices of ``n_runs`` independent runs, shape (runs, nodes)."""
        ...

    def outcomes(self, number: int, layer: Layer, node: IntArray, codes: IntArray) -> tuple[IntArray, FloatArray]:
        """Return all choices that there could be, shape (outcomes, nodes), and their log probabilities."""
        ...


@dataclass(frozen=True)
class Given:
    """The same columns for every node, from public knowledge; none at all for a flat histogram."""

    columns: tuple[int, ...] = ()

    def draw(
        self, number: int, layer: Layer, node: IntArray, codes: IntArray, *, n_runs: int, bits: RandomBits
    ) -> IntArray:
        """Return the given column for every node of every run."""
        return np.full((n_runs, layer.n_nodes), self.columns[number - 1], dtype=np.int64)

    def outcomes(self, number: int, layer: Layer, node: IntArray, codes: IntArray) -> tuple[IntArray, FloatArray]:
        """Return the one outcome."""
        return np.full((1, layer.n_nodes), self.columns[number - 1], dtype=np.int64), np.zeros(1)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a mechanism does to a table, apart from the table.

    Parameters
    ----------
    scales : tuple of Fraction
        Scale of the noise for each layer below layer 0; the last one is that of the cells.
    chooser : Chooser
        Who chooses the columns that split.
    n_public : bool
        Whether the counts of layer 0 are public.
    n_trees : int
        Number of independent trees in a release.
    names : tuple of str
        What to call each layer in ``scales``.
    """

    scales: tuple[Fraction, ...]
    chooser: Chooser
    n_public: bool
    n_trees: int = 1
    names: tuple[str, ...] = ()

    def noise(self) -> list[Noise]:
        """Return the noise on the counts of each layer, in records."""
        return [
            Noise(statistics=name, scale=float(scale), standard_deviation=math.sqrt(discrete_laplace_variance(scale)))
            for name, scale in zip(self.names, self.scales, strict=True)
        ]


@dataclass(frozen=True)
class _Branch:
    """A choice of columns, which of the runs at hand make it, and its log probability where all are enumerated."""

    chosen: IntArray
    runs: slice
    log_probability: float = 0.0


class _Gardener(Protocol):
    """Grows trees: says which choices occur, and what is observed of a layer's counts in a number of runs."""

    def branches(self, number: int, layer: Layer, node: IntArray, codes: IntArray, n_runs: int) -> list[_Branch]: ...
    def count(self, counts: IntArray, possible: NDArray[np.bool_], scale: Fraction, n_runs: int) -> IntArray: ...


@dataclass(frozen=True)
class _Drawing:
    """Grows trees as a release does, with drawn choices and noisy counts."""

    chooser: Chooser
    bits: RandomBits

    def branches(self, number: int, layer: Layer, node: IntArray, codes: IntArray, n_runs: int) -> list[_Branch]:
        chosen = self.chooser.draw(number, layer, node, codes, n_runs=n_runs, bits=self.bits)
        if n_runs == 1:
            return [_Branch(chosen[0], slice(None))]
        # Choices don't depend on the noise of the layers above, so which runs make which choice is of no account.
        rows, sizes = np.unique(chosen, axis=0, return_counts=True)
        ends = np.cumsum(sizes)
        return [_Branch(row, slice(end - size, end)) for row, size, end in zip(rows, sizes, ends, strict=True)]

    def count(self, counts: IntArray, possible: NDArray[np.bool_], scale: Fraction, n_runs: int) -> IntArray:
        return noisy_counts(counts, possible, scale, self.bits, n_runs)


@dataclass(frozen=True)
class _Enumerating:
    """Grows every tree that there could be, and counts without noise."""

    chooser: Chooser

    def branches(self, number: int, layer: Layer, node: IntArray, codes: IntArray, n_runs: int) -> list[_Branch]:
        chosen, log_probabilities = self.chooser.outcomes(number, layer, node, codes)
        return [_Branch(row, slice(None), float(log)) for row, log in zip(chosen, log_probabilities, strict=True)]

    def count(self, counts: IntArray, possible: NDArray[np.bool_], scale: Fraction, n_runs: int) -> IntArray:
        return np.where(possible, counts, 0)[None]


def _grow(table: Table, plan: Plan, gardener: _Gardener, n_runs: int = 1) -> Iterator[Measured]:
    """Grow every tree that the gardener's choices lead to, and count its layers."""
    domain = domain_of(table.schema)
    codes = np.column_stack([table.codes[name] for name in domain.names])
    top, node = top_layer(domain), np.zeros(len(codes), dtype=np.int64)
    for column in domain.public:
        node = node * domain.sizes[column] + codes[:, column]
    exact = np.bincount(node, minlength=top.n_nodes) if plan.n_public else np.zeros(top.n_nodes, dtype=np.int64)
    variance = np.full(top.n_nodes, 0.0 if plan.n_public else np.inf)

    def extended(tree: Measured, layer: Layer, node: IntArray) -> Measured:
        scale, counts = plan.scales[len(tree.layers) - 1], np.bincount(node, minlength=layer.n_nodes)
        return replace(
            tree,
            layers=[*tree.layers, layer],
            observed=[*tree.observed, gardener.count(counts, layer.possible, scale, len(tree.observed[0]))],
            variances=[*tree.variances, noise_variance(layer.possible, scale)],
        )

    def grown(tree: Measured, node: IntArray) -> Iterator[Measured]:
        number, above = len(tree.layers), tree.layers[-1]
        if number == len(plan.scales):
            bottom = cells(domain, above)
            yield replace(extended(tree, bottom.layer, bottom.find(node, codes)), cells=bottom)
            return
        for branch in gardener.branches(number, above, node, codes, len(tree.observed[0])):
            part = replace(
                tree,
                chosen=[*tree.chosen, branch.chosen],
                observed=[counts[branch.runs] for counts in tree.observed],
                log_probability=tree.log_probability + branch.log_probability,
            )
            below = descend(node, codes, domain, branch.chosen)
            yield from grown(extended(part, split_by(domain, above, branch.chosen), below), below)

    yield from grown(Measured(domain, [top], [], [np.repeat(exact[None], n_runs, axis=0)], [variance]), node)


def measure(table: Table, plan: Plan, bits: RandomBits) -> Measured:
    """Grow one tree over the table and count every layer with noise."""
    (measured,) = _grow(table, plan, _Drawing(plan.chooser, bits))
    return measured


def observe(table: Table, plan: Plan, n_runs: int, bits: RandomBits) -> IntArray:
    """Return the raw output of many independent releases, one a row: choices and noisy counts, before post-processing.

    Parameters
    ----------
    table : Table
        A tiny table.
    plan : Plan
        What is done to it.
    n_runs : int
        Number of releases.
    bits : RandomBits
        For choices and noise.

    Returns
    -------
    ndarray of int64, shape (runs, numbers)
        Trees of different shape are filled up with -1 (choices) and 0 (counts).
    """
    trees = []
    for _ in range(plan.n_trees):
        blocks = [_row_block(tree) for tree in _grow(table, plan, _Drawing(plan.chooser, bits), n_runs)]
        rows = np.concatenate([_padded(block, _public_width(blocks[0], table.schema)) for block in blocks])
        trees.append(rows[bits.generator().permutation(len(rows))])
    return np.concatenate(trees, axis=1)


def _row_block(tree: Measured) -> list[IntArray]:
    n_runs = len(tree.observed[0])
    return [*(np.repeat(chosen[None], n_runs, axis=0) for chosen in tree.chosen), *tree.observed]


def _public_width(block: list[IntArray], schema: Schema) -> list[int]:
    """Return how many choices and counts each layer has at most, whichever columns are chosen."""
    domain, n_split = domain_of(schema), len(block) // 2 - 1
    sizes = sorted(np.delete(domain.sizes, domain.public), reverse=True)
    n_top = domain.n_cells // math.prod(int(size) for size in sizes)
    nodes = [n_top * math.prod(int(size) for size in sizes[:depth]) for depth in range(n_split + 1)]
    return [*nodes[:n_split], *nodes, domain.n_cells]


def _padded(block: list[IntArray], width: list[int]) -> IntArray:
    n_choices = len(block) // 2 - 1  # as many layers were split as were counted, but for layer 0 and the cells
    parts = [
        np.pad(part, ((0, 0), (0, wanted - part.shape[1])), constant_values=-1 if i < n_choices else 0)
        for i, (part, wanted) in enumerate(zip(block, width, strict=True))
    ]
    return np.concatenate(parts, axis=1)


def law(table: Table, plan: Plan) -> Law:
    """Return the exact law: every choice of columns with its probability, true counts and noise scales.

    Statistics stand where :func:`observe` puts them in its rows, after the choices.
    """
    outcomes = [_outcome(tree, plan, table.schema) for tree in _grow(table, plan, _Enumerating(plan.chooser))]
    return Law(outcomes=outcomes, repeats=plan.n_trees)


def _outcome(tree: Measured, plan: Plan, schema: Schema) -> Outcome:
    block = _row_block(tree)
    width = _public_width(block, schema)
    statistics = _padded(block, width)[0, sum(width[: len(tree.chosen)]) :]
    scales: list[Fraction] = [Fraction(0)] * tree.layers[0].n_nodes
    for layer, scale, n_places in zip(tree.layers[1:], plan.scales, width[len(tree.chosen) + 1 :], strict=True):
        scales += [scale if possible else Fraction(0) for possible in layer.possible]
        scales += [Fraction(0)] * (n_places - layer.n_nodes)
    return Outcome(
        key=tuple(int(column) for chosen in tree.chosen for column in chosen),
        log_probability=tree.log_probability,
        statistics=tuple(int(count) for count in statistics),
        scales=tuple(scales),
    )


def synthesize(
    measured: Measured, table: Table, n_sets: int, *, n_public: bool, bits: RandomBits, clock: Clock
) -> list[pd.DataFrame]:
    """Turn noisy counts into synthetic sets.

    Post-processing: of the table it reads the public columns and, where that is public, the number of records.
    """
    rng = bits.generator()
    with clock.step("making the counts consistent"):
        observed = [counts[0] for counts in measured.observed]
        estimates, variances = consistent(measured.parents, observed, measured.variances)
        values = nonnegative(measured.parents, estimates, variances)
    n_records = int(observed[0].sum()) if n_public else max(round(float(estimates[0].sum())), 0)
    sets = []
    for number in range(1, n_sets + 1):
        with clock.step(f"drawing synthetic set {number} of {n_sets}"):
            cell, count = round_cells(measured.parents, values, n_records, rng)
            sets.append(_records(measured, table, np.repeat(cell, count), rng))
    return sets


def _records(measured: Measured, table: Table, cell: IntArray, rng: np.random.Generator) -> pd.DataFrame:
    domain, schema = measured.domain, table.schema
    cell = rng.permutation(cell)
    public = [domain.names[column] for column in domain.public]
    if public:
        cell = _beside_public_records(measured, cell)
    codes = {name: measured.levels(cell, j) for j, name in enumerate(domain.names) if name not in public}
    frame = decode(schema, codes, rng)
    if public:
        frame = pd.concat([public_records(table, public), frame], axis=1)
    return frame[list(domain.names)]


def public_records(table: Table, public: list[str]) -> pd.DataFrame:
    """Return the public columns as the schema spells them, sorted: the order of the file may show what isn't public."""
    by_value = [table.sort_key(name) for name in reversed(public)]
    by_level = [table.codes[name] for name in reversed(public)]  # first, as the cells are ordered
    order = np.lexsort([*by_value, *by_level])
    return pd.DataFrame({name: table.spelt(name).take(order) for name in public})


def _beside_public_records(measured: Measured, cell: IntArray) -> IntArray:
    """Order the cells by their public levels, as the public records are."""
    return cell[np.lexsort([measured.levels(cell, int(column)) for column in reversed(measured.domain.public)])]


def draw(table: Table, plan: Plan, *, mechanism: Mechanism, bits: RandomBits, clock: Clock) -> Drawn:
    """Measure one tree for all sets, or one for each, and draw the sets from it."""
    n_each = mechanism.n_sets // plan.n_trees
    sets: list[pd.DataFrame] = []
    statistics: dict[str, pd.DataFrame] = {}
    for number in range(1, plan.n_trees + 1):
        with clock.step("counting and adding noise"):
            measured = measure(table, plan, bits)
        sets += synthesize(measured, table, n_each, n_public=plan.n_public, bits=bits, clock=clock)
        statistics |= noisy_statistics(measured, f"set {number}, " if plan.n_trees > 1 else "")
    return Drawn(sets=sets, statistics=statistics, noise=plan.noise())


def of_set(number: int, n_trees: int) -> str:
    """Return what tells the items of one tree from those of another."""
    return f", set {number}" if n_trees > 1 else ""


def noisy_statistics(measured: Measured, prefix: str) -> dict[str, pd.DataFrame]:
    """Return the noisy counts as tables: levels of the columns split so far (-1: not split), and the count."""
    domain, found = measured.domain, {}
    for number, (layer, counts) in enumerate(zip(measured.layers[1:-1], measured.observed[1:-1], strict=True), start=1):
        frame = pd.DataFrame(layer.path, columns=list(domain.names))
        found[f"{prefix}layer {number}"] = frame.assign(noisy_count=counts[0])
    found[f"{prefix}cells"] = pd.DataFrame({"noisy_count": measured.observed[-1][0]})
    return found


def noisy_counts(
    counts: IntArray, possible: NDArray[np.bool_], scale: Fraction, bits: RandomBits, n_runs: int = 1
) -> IntArray:
    """Add exact discrete Laplace noise to the counts of possible nodes; the others are 0 and stay so.

    Returns
    -------
    ndarray of int64, shape (runs, nodes)
    """
    n_possible = int(possible.sum())
    noise = discrete_laplace(scale, n_runs * n_possible, bits).reshape(n_runs, n_possible)
    if n_possible == len(counts):
        return counts + noise
    noisy = np.zeros((n_runs, len(counts)), dtype=np.int64)
    noisy[:, possible] = counts[possible] + noise
    return noisy


def noise_variance(possible: NDArray[np.bool_], scale: Fraction) -> FloatArray:
    """Return the variance of each noisy count; 0 for structural zeros, which are exact."""
    return np.where(possible, max(discrete_laplace_variance(scale), SMALLEST_VARIANCE), 0.0)
