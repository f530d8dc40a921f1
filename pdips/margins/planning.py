"""Standard errors of the margins of a tree before any budget is spent, from the schema and the settings alone."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.margins.domain import View, check_domain, choose_views, columns_of, domain_of, splittable
from pdips.margins.margin_error import ColumnTree, small_margins, view_errors
from pdips.margins.maximum_entropy import MOST_DENSE
from pdips.margins.steps import divide
from pdips.privacy.loss import Neighbours, Number, check_whole, choice, positive
from pdips.privacy.plan import Step
from pdips.privacy.sensitivity import Sensitivity

Rule = Literal["equal", "half-to-leaves", "optimal"]
By = Literal["two-way", "one-way"]

RULES: tuple[Rule, ...] = get_args(Rule)

PARTS = 1000  # Budgets are suggested in thousandths of epsilon
USABLE = 1.0  # Percentage points of the number of records: the standard error up to which a margin is called usable
MOST_ROUNDS = 200
SMALLEST_SHARE = 1e-6


def suited(schema: Schema, *, has_model: bool = False, in_files: bool = False) -> tuple[str, str]:
    """Return the mechanism to take where none is named, and why, from public facts alone.

    ``has_model``: whether the user brings a PyMC model; ``in_files``: whether the table is a folder of files.

    Examples
    --------
    >>> suited(Schema.model_validate({"columns": {name: {"levels": list(range(10))} for name in "abcdefgh"}}))
    ('pairs', '100,000,000 cells are too many to lay out, and it holds all pairs of columns without')
    """
    if has_model:
        return "scores", "it takes any PyMC model of one record"
    if schema.members is not None:
        return "pairs", "it takes households with members"
    if in_files:
        return "pairs", "it takes a table in many files"
    if not all(column.is_categorical or column.is_binned for column in schema.columns.values()):
        return "pairs", "it needs no bins for numeric columns"
    n_cells = columns_of(schema).n_cells
    if n_cells > MOST_DENSE:
        return "pairs", f"{n_cells:,} cells are too many to lay out, and it holds all pairs of columns without"
    return "steps", f"it holds all pairs of columns, and {n_cells:,} cells can be laid out"


def column_tree(
    schema: Schema, order: Sequence[str], layers: int, neighbours: Neighbours = "replace-one"
) -> ColumnTree:
    """Return the tree that splits by the first ``layers`` columns of ``order``; 0 layers is a flat histogram."""
    check_domain(schema, choice(neighbours, get_args(Neighbours), "neighbours"))
    order, domain = checked_order(schema, order), domain_of(schema)
    if isinstance(layers, bool) or not isinstance(layers, int) or not 0 <= layers <= len(order):
        raise InputError(f"layers must be a whole number from 0 to the {len(order)} columns of the order, got {layers}")
    split = order[: min(layers, len(domain.names) - len(domain.public) - 1)]
    known = {name: number for number, name in enumerate(split, start=1)} | dict.fromkeys(schema.public_columns, 0)
    depth = tuple(known.get(name, len(split) + 1) for name in domain.names)
    return ColumnTree(domain, depth, neighbours == "replace-one")


def checked_order(schema: Schema, order: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns from the top: as given, or those of the schema that aren't public in its order."""
    free = splittable(schema)
    if order is None:
        return tuple(free)
    for name in order:
        if name not in free:
            raise InputError(f"order: {name!r} is no column of the schema that could be split by")
    if not order or len(set(order)) < len(order):
        raise InputError("order must name at least one column, and none twice")
    return tuple(order)


def layer_scales(
    schema: Schema, epsilon: Number, epsilons: Sequence[Number], neighbours: Neighbours = "replace-one"
) -> tuple[Fraction, ...]:
    """Return the scale of the noise on each layer, in records, for a budget by layer that adds up to epsilon."""
    total = positive(epsilon, "epsilon")
    each = [positive(part, "the epsilon of a layer") for part in epsilons]
    if sum(each) != total:
        raise InputError(f"the epsilons of the layers add up to {sum(each, Fraction(0))}, not to epsilon = {total}")
    sensitivity = Sensitivity.of_counts(schema, neighbours)
    return tuple(Step(name="a layer", sensitivity=sensitivity, price=part).scale for part in each)


def budgets(tree: ColumnTree, epsilon: Fraction, rule: Rule, by: By = "two-way") -> tuple[Fraction, ...]:
    """Return the epsilon of each noised layer by a rule."""
    return _best(tree, epsilon, by) if rule == "optimal" else divide(rule, epsilon, tree.n_noised, tree.n_noised)


def _best(tree: ColumnTree, epsilon: Fraction, by: By) -> tuple[Fraction, ...]:
    """Minimise the mean variance over shares, with that of continuous Laplace noise, and round to thousandths.

    The variance of a least squares estimate is a minimum over linear estimators, for each of which it is linear in the
    variances of the noise: it is concave in them. So its tangent, whose slopes w_h are mean squared weights, lies above
    it, and minimising the tangent, sum w_h / share_h^2, by share_h ~ w_h^(1/3) never makes it worse. Starts from equal
    shares, and from more for each layer in turn, all at once.
    """
    n = tree.n_noised
    if n == 1:
        return (epsilon,)
    wanted = 2 if by == "two-way" else 1
    cost = tree.coefficients[[len(columns) == wanted for columns in small_margins(len(tree.depth))]].mean(axis=0)
    share = np.vstack([np.ones(n), 1 + n * np.eye(n)])
    before = np.full(len(share), math.inf)
    for _ in range(MOST_ROUNDS):
        share = share / share.sum(axis=1, keepdims=True)
        value, weight = _value_and_weights(tree, cost, share)
        better = value <= before * (1 - 1e-7)
        if not better.any():
            break
        before, found = np.minimum(value, before), share
        share = np.where(better[:, None], np.cbrt(weight), share)
    return tuple(epsilon * Fraction(part, PARTS) for part in _whole_parts(found[np.argmin(before)]))


def _value_and_weights(tree: ColumnTree, cost: FloatArray, share: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the cost of splits of the budget, one a row, and its derivatives by the variances of the noise."""
    noise = 1 / np.maximum(share, SMALLEST_SHARE) ** 2
    spread = np.concatenate(tree.shape.spreads(np.split(noise, tree.n_noised, axis=1)), axis=1)
    gain = np.repeat(cost[None, 1:], len(share), axis=0)
    if not tree.n_public:
        gain[:, 0] += cost[0] * tree.fan_out[0]
    for layer in range(1, tree.n_noised):
        ratio = spread[:, layer] / spread[:, layer + 1]
        gain[:, layer] += gain[:, layer - 1] * ratio**2 / tree.fan_out[layer]
    return spread @ cost, gain * (spread[:, 1:] / noise) ** 2


def _whole_parts(share: FloatArray) -> list[int]:
    """Round shares to thousandths, at least one each, that add up: by largest remainder."""
    free = PARTS - len(share)
    parts = np.floor(share * free)
    rest = round(free - parts.sum())
    parts[np.argsort(parts - share * free, kind="stable")[:rest]] += 1
    return [int(part) + 1 for part in parts]


def margin_errors(
    schema: Schema,
    n: int | None = None,
    epsilon: Number | None = None,
    *,
    order: Sequence[str] | None = None,
    layers: int | None = None,
    budget: Rule | Sequence[Number] = "equal",
    scales: Sequence[Fraction] | None = None,
    neighbours: Neighbours = "replace-one",
) -> pd.DataFrame:
    """Return the standard error of a count in every one-way and two-way margin, before any budget is spent.

    Parameters
    ----------
    schema : Schema
        What is public about the table.
    n : int, optional
        Number of records where that is public, or else a public guess: for errors as shares.
    epsilon : int, float, str or Fraction, optional
        The total, in nats, divided over the layers by ``budget``. Left out where ``scales`` are given.
    order : sequence of str, optional
        Columns from the top; those of the schema in its order unless given.
    layers : int, optional
        How many of them split; all unless given. 0 is a flat histogram.
    budget : {"equal", "half-to-leaves", "optimal"} or sequence of numbers
        The rule, or the epsilon of each noised layer from the top, the last one that of the cells.
    scales : sequence of Fraction, optional
        Scale of the noise by layer, in records, in place of epsilon and budget.
    neighbours : {"replace-one", "add-remove"}
        The relation.

    Returns
    -------
    DataFrame
        A row for each margin: ``margin`` ("voted", "voted x college"), ``cells`` in it, ``se_records`` and, with ``n``,
        ``se_share`` (of ``n``, between 0 and 1).

    Notes
    -----
    All cells of a margin have one standard error. It is that of the least squares counts. Making them nonnegative
    comes after and moves them too: by more than that on trees with far more cells than records. Structural zeros are
    left out of account: with them errors are at most as large (Gauss and Markov: knowing more never hurts).

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"]), "sex": Column(levels=["f", "m"])})
    >>> list(margin_errors(schema, epsilon=1)["margin"])
    ['ill', 'sex', 'ill x sex']
    """
    order = checked_order(schema, order)
    tree = column_tree(schema, order, len(order) if layers is None else layers, neighbours)
    if (epsilon is None) == (scales is None):
        raise InputError("give either epsilon or scales")
    if scales is None and epsilon is not None:
        if isinstance(budget, str):
            budget = budgets(tree, positive(epsilon, "epsilon"), choice(budget, RULES, "budget"))
        scales = layer_scales(schema, epsilon, budget, neighbours)
    if scales is None or len(scales) != tree.n_noised:
        raise InputError(f"the tree has {tree.n_noised} layers with noise, the budget {len(scales or ())}")
    errors, margins = tree.standard_errors(scales), small_margins(len(tree.depth))
    names = [" x ".join(tree.domain.names[place] for place in columns) for columns in margins]
    frame = pd.DataFrame({"margin": names, "cells": list(map(tree.domain.size_of, margins)), "se_records": errors})
    if n is None:
        return frame
    check_whole(n, "n", 1, None)
    return frame.assign(se_share=errors / n)


def suggest_layers(
    schema: Schema,
    n: int,
    epsilon: Number,
    *,
    neighbours: Neighbours = "replace-one",
    order: Sequence[str] | None = None,
    n_sets: int = 1,
    by: By = "two-way",
) -> pd.DataFrame:
    """Compare depths and budgets of a tree by the errors of its margins, without reading a record.

    Parameters
    ----------
    schema : Schema
        What is public about the table.
    n : int
        Number of records where that is public, or else a public guess.
    epsilon : int, float, str or Fraction
        The total, in nats.
    neighbours : {"replace-one", "add-remove"}
        The relation.
    order : sequence of str, optional
        Columns from the top, chosen from public knowledge; those of the schema in its order unless given.
    n_sets : int
        Number of noisy trees that share epsilon: that of the sets with ``split="per-set"``, otherwise 1.
    by : {"two-way", "one-way"}
        Which margins' median sorts the rows, and which ones the optimal budget is made for.

    Returns
    -------
    DataFrame
        A row for each number of layers and rule, best first: most usable margins, then least median error. ``layers``
        (0 is the laplace-sanitizer, or, with budget ``margins``, what :class:`Steps` counts by default), ``budget``,
        ``one_way_median``, ``one_way_worst``, ``two_way_median`` and
        ``two_way_worst`` (standard errors of a cell's count in percentage points of ``n``; margins of public columns
        alone, which are exact, left out), ``usable``, how many of these margins are within one point, ``cells`` of the
        last layer, and ``epsilons`` by layer, to be given on.

    Examples
    --------
    >>> suggest_layers(Schema.load("examples/youth.toml"), 40_000, 1)["layers"].nunique() > 1
    True
    """
    order = checked_order(schema, order)
    check_whole(n_sets, "n_sets", 1, None)
    check_whole(n, "n", 1, None)
    each = positive(epsilon, "epsilon") / n_sets
    wanted: By = choice(by, get_args(By), "by") if len(schema.columns) > 1 else "one-way"
    rows = [_margins(schema, n, each, neighbours)] if columns_of(schema).n_cells <= MOST_DENSE else []
    margins, n_free = small_margins(len(schema.columns)), len(splittable(schema))
    for layers in range(min(len(order), n_free - 1) + 1):  # splitting by all columns is splitting by all but the last
        tree = column_tree(schema, order, layers, neighbours)
        protected = [not {*columns} <= {*tree.domain.public.tolist()} for columns in margins]
        n_columns = np.array([len(columns) for columns in margins])[protected]
        for rule in RULES if tree.n_noised > 1 else RULES[:1]:
            epsilons = budgets(tree, each, rule, wanted)
            errors = tree.standard_errors(layer_scales(schema, each, epsilons, neighbours))[protected]
            found = _summary(errors * 100 / n, n_columns)
            row = {"layers": layers, "budget": rule, **found, "cells": tree.domain.n_cells, "epsilons": epsilons}
            rows.append(row)
    by_rank = ["usable", f"{wanted.replace('-', '_')}_median", "layers"]
    return pd.DataFrame(rows).sort_values(by_rank, ascending=[False, True, True], ignore_index=True)


def _margins(schema: Schema, n: int, epsilon: Fraction, neighbours: Neighbours) -> dict[str, Any]:
    """Return the row of noisy margins without a tree."""
    domain, sensitivity = columns_of(schema), Sensitivity.of_counts(schema, neighbours)
    views = [
        View(domain, columns, Step(name="a margin", sensitivity=sensitivity, price=epsilon * share))
        for columns, share in choose_views(domain).items()
    ]
    found = [item for item in view_errors(domain, views) if not {*item.columns} <= {*schema.public_columns}]
    errors = np.array([item.standard_error for item in found]) * 100 / n
    return {
        "layers": 0,
        "budget": "margins",
        **_summary(errors, np.array([len(item.columns) for item in found])),
        "cells": sum(view.n_cells for view in views),
        "epsilons": tuple(view.step.price for view in views),
    }


def _summary(errors: FloatArray, n_columns: IntArray) -> dict[str, float]:
    """Return median and worst error by kind of margin, and how many are usable."""
    found: dict[str, float] = {}
    for name, size in (("one_way", 1), ("two_way", 2)):
        held = errors[n_columns == size]
        found[f"{name}_median"] = float(np.median(held)) if len(held) else math.nan
        found[f"{name}_worst"] = float(held.max(initial=0.0)) if len(held) else math.nan
    return {**found, "usable": int((errors <= USABLE).sum())}
