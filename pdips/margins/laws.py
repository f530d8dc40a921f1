"""What audits see of a tree: its raw output in many runs, and its exact law. Grown by the code that releases run."""

import math
from fractions import Fraction

import numpy as np

from pdips.arrays import IntArray
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.margins.counts import Drawing, Enumerating, Given, Measured, Plan, codes_of, grow, settle
from pdips.margins.domain import STOP
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import ExactLaw as Law
from pdips.privacy.replay import Outcome


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
        rows = [
            _row(tree, settled, group)
            for group, settled, n in settle(table, plan, bits, n_runs)
            for tree in grow(table, settled, Drawing(settled.chooser, bits, table.counts), n)
        ]
        trees.append(np.concatenate(rows)[bits.generator().permutation(n_runs)])
    return np.concatenate(trees, axis=1)


def _row(tree: Measured, plan: Plan, group: int) -> IntArray:
    n_runs = len(tree.observed[0])
    if isinstance(plan.chooser, Given):
        choices, width = ([np.full((n_runs, 1), group)], [1]) if group >= 0 else ([], [])
    else:
        choices, width = [np.repeat(chosen[None], n_runs, axis=0) for chosen in tree.chosen], _most_nodes(tree)[:-1]
    return np.concatenate([*_padded(choices, width, STOP), *_padded(*_counts(tree, plan, group), 0)], axis=1)


def _most_nodes(tree: Measured) -> list[int]:
    """Return how many nodes each layer has at most, whichever columns are chosen."""
    domain, n_split = tree.domain, len(tree.chosen)
    sizes = sorted(np.delete(domain.sizes, domain.public), reverse=True)
    n_top = domain.n_cells // math.prod(int(size) for size in sizes)
    return [n_top * math.prod(int(size) for size in sizes[:depth]) for depth in range(n_split + 1)]


def _counts(tree: Measured, plan: Plan, group: int) -> tuple[list[IntArray], list[int]]:
    """Return the counts of layer 0, of the layers that are counted and of the views, and their public widths."""
    most = [*_most_nodes(tree), tree.domain.n_cells]
    shown = [0, *(i for i, scale in enumerate(plan.scales, start=1) if scale is not None)]
    counts = [tree.observed[i] for i in shown] + list(tree.views)
    width = [most[i] if i == 0 or group < 0 else most[-1] for i in shown] + [len(view[0]) for view in tree.views]
    return counts, width


def _padded(parts: list[IntArray], width: list[int], filler: int) -> list[IntArray]:
    return [
        np.pad(part, ((0, 0), (0, wanted - part.shape[1])), constant_values=filler)
        for part, wanted in zip(parts, width, strict=True)
    ]


def law(table: Table, plan: Plan) -> Law:
    """Return the exact law: every choice of columns with its probability, true counts and noise scales.

    Statistics stand where :func:`observe` puts them in its rows, after the choices.

    Raises
    ------
    InputError
        If the tree has a stopping rule: its shape then depends on noise, and has no finite law.
    """
    if plan.stop is not None:
        raise InputError("a tree with a stopping rule has no law that could be enumerated: leave stop out")
    settled = [(-1, plan, 0.0)]
    if plan.groups is not None:
        log_probabilities = plan.groups.log_probabilities(codes_of(table), table.counts)
        settled = [
            (i, plan.settled(group), float(log))
            for i, (group, log) in enumerate(zip(plan.groups.candidates, log_probabilities, strict=True))
        ]
    outcomes = [
        _outcome(tree, part, group, log)
        for group, part, log in settled
        for tree in grow(table, part, Enumerating(part.chooser, table.counts))
    ]
    return Law(outcomes=outcomes, repeats=plan.n_trees)


def _outcome(tree: Measured, plan: Plan, group: int, log_probability: float) -> Outcome:
    counts, width = _counts(tree, plan, group)
    scales: list[Fraction] = [Fraction(0)] * tree.layers[0].n_nodes
    layers = [(layer.counted, scale) for layer, scale in zip(tree.layers[1:], plan.scales, strict=True)]
    views = [(view.possible(tree.domain), view.scale) for view in plan.views]
    noised = [(mask, scale) for mask, scale in [*layers, *views] if scale is not None]
    for (mask, scale), n_places in zip(noised, width[1:], strict=True):
        scales += [scale if counted else Fraction(0) for counted in mask]
        scales += [Fraction(0)] * (n_places - len(mask))
    return Outcome(
        key=(*([group] if group >= 0 else []), *(int(column) for chosen in tree.chosen for column in chosen)),
        log_probability=tree.log_probability + log_probability,
        statistics=tuple(int(count) for part in _padded(counts, width, 0) for count in part[0]),
        scales=tuple(scales),
    )
