"""Choosing without peeking: the standard error of every margin of a tree, before any budget is spent.

All of this is computed from the schema and the settings. No record is read, and nothing is to be paid.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.margins.domain import columns_of
from pdips.margins.maximum_entropy import MOST_DENSE
from pdips.margins.shapes import Shape, checked_order, shape_of
from pdips.margins.views import View, choose_views
from pdips.margins.views import margin_errors as margin_errors_of
from pdips.privacy.loss import Neighbours, Number, choice, positive
from pdips.privacy.noise import discrete_laplace_variance

Rule = Literal["equal", "half-to-leaves", "optimal"]
By = Literal["two-way", "one-way"]

RULES: tuple[Rule, ...] = get_args(Rule)

PARTS = 1000
"""Budgets are suggested in thousandths of epsilon."""

USABLE = 1.0
"""Percentage points of the number of records: the standard error up to which a margin is called usable."""

MOST_ROUNDS = 200
SMALLEST_SHARE = 1e-6


def layer_scales(
    schema: Schema, epsilon: Number, epsilons: Sequence[Number], neighbours: Neighbours = "replace-one"
) -> tuple[Fraction, ...]:
    """Return the scale of the noise on each layer, in records, for a budget by layer that adds up to epsilon.

    Raises
    ------
    InputError
        If a budget isn't above 0, or they don't add up; the message says to what they do.
    """
    total = positive(epsilon, "epsilon")
    each = [positive(part, "the epsilon of a layer") for part in epsilons]
    if sum(each) != total:
        raise InputError(f"the epsilons of the layers add up to {sum(each, Fraction(0))}, not to epsilon = {total}")
    sensitivity = (2 if neighbours == "replace-one" else 1) * schema.records.max_per_person
    return tuple(sensitivity / part for part in each)


def budgets(shape: Shape, epsilon: Fraction, rule: Rule, by: By = "two-way") -> tuple[Fraction, ...]:
    """Return the epsilon of each noised layer by a rule."""
    n = shape.n_noised
    if rule == "optimal":
        return _best(shape, epsilon, by)
    if rule == "half-to-leaves" and n > 1:
        return (*(epsilon / 2 / (n - 1),) * (n - 1), epsilon / 2)
    return (epsilon / n,) * n


def best_budget(
    schema: Schema,
    order: Sequence[str],
    layers: int,
    epsilon: Number,
    *,
    neighbours: Neighbours = "replace-one",
    by: By = "two-way",
) -> tuple[Fraction, ...]:
    """Return the budget by layer with the least mean variance of the margins.

    Parameters
    ----------
    schema : Schema
        What is public about the table.
    order : sequence of str
        Columns from the top.
    layers : int
        How many of them split.
    epsilon : int, float, str or Fraction
        The total, in nats.
    neighbours : {"replace-one", "add-remove"}
        The relation.
    by : {"two-way", "one-way"}
        Which margins count, each alike.

    Returns
    -------
    tuple of Fraction
        In thousandths of epsilon, at least one each; the last one is that of the cells. They add up to epsilon exactly.
    """
    return _best(
        shape_of(schema, order, layers, neighbours), positive(epsilon, "epsilon"), choice(by, get_args(By), "by")
    )


def _best(shape: Shape, epsilon: Fraction, by: By) -> tuple[Fraction, ...]:
    """Minimise the mean variance over shares, with that of continuous Laplace noise, and round to thousandths.

    The variance of a least squares estimate is a minimum over linear estimators, for each of which it is linear in the
    variances of the noise: it is concave in them. So its tangent, whose slopes w_h are mean squared weights, lies above
    it, and minimising the tangent, sum w_h / share_h^2, by share_h ~ w_h^(1/3) never makes it worse.
    """
    n = shape.n_noised
    if n == 1:
        return (epsilon,)
    wanted = 2 if by == "two-way" else 1
    cost = shape.coefficients[[len(margin) == wanted for margin in shape.margins]].mean(axis=0)
    found = [_descend(shape, cost, start) for start in np.vstack([np.ones(n), 1 + n * np.eye(n)])]
    _, share = min(found, key=lambda pair: pair[0])
    return tuple(epsilon * Fraction(part, PARTS) for part in _whole_parts(share))


def _descend(shape: Shape, cost: FloatArray, share: FloatArray) -> tuple[float, FloatArray]:
    """Return the least cost that can be reached from a split of the budget, and its shares."""
    before = math.inf
    for _ in range(MOST_ROUNDS):
        share = share / share.sum()
        value, weight = _value_and_weights(shape, cost, share)
        if value > before * (1 - 1e-7):
            break
        before, share = value, np.cbrt(weight)
    return value, share / share.sum()


def _value_and_weights(shape: Shape, cost: FloatArray, share: FloatArray) -> tuple[float, FloatArray]:
    """Return the cost of a split of the budget, and its derivatives by the variances of the noise."""
    noise = 1 / np.maximum(share, SMALLEST_SHARE) ** 2
    spread, fan_out = shape.spreads(noise).tolist(), shape.fan_out
    gain = cost[1:].tolist()
    if not shape.n_public:
        gain[0] += cost[0] * fan_out[0]
    for layer in range(1, shape.n_noised):
        gain[layer] += gain[layer - 1] * spread[layer] ** 2 / (fan_out[layer] * spread[layer + 1] ** 2)
    return float(cost @ spread), np.array(gain) * (np.array(spread[1:]) / noise) ** 2


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
    """
    order = checked_order(schema, order)
    shape = shape_of(schema, order, len(order) if layers is None else layers, neighbours)
    if (epsilon is None) == (scales is None):
        raise InputError("give either epsilon or scales")
    if scales is None and epsilon is not None:
        scales = layer_scales(schema, epsilon, _spent(shape, epsilon, budget), neighbours)
    if scales is None or len(scales) != shape.n_noised:
        raise InputError(f"the tree has {shape.n_noised} layers with noise, the budget {len(scales or ())}")
    errors = _errors(shape, scales)
    frame = pd.DataFrame(
        {
            "margin": [" x ".join(shape.names[place] for place in margin) for margin in shape.margins],
            "cells": [math.prod(int(shape.sizes[place]) for place in margin) for margin in shape.margins],
            "se_records": errors,
        }
    )
    return frame if n is None else frame.assign(se_share=errors / _checked_n(n))


def _spent(shape: Shape, epsilon: Number, budget: Rule | Sequence[Number]) -> Sequence[Number]:
    if isinstance(budget, str):
        return budgets(shape, positive(epsilon, "epsilon"), choice(budget, RULES, "budget"))
    return budget


def _errors(shape: Shape, scales: Sequence[Fraction]) -> FloatArray:
    spread = shape.spreads(np.array([discrete_laplace_variance(scale) for scale in scales]))
    return np.asarray(np.sqrt(shape.coefficients @ spread))


def _checked_n(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InputError(f"n must be a whole number of at least 1, got {n}")
    return n


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

    Raises
    ------
    InputError
        If a setting is out of range or doesn't fit the schema.
    """
    order, total = checked_order(schema, order), positive(epsilon, "epsilon")
    if isinstance(n_sets, bool) or not isinstance(n_sets, int) or n_sets < 1:
        raise InputError(f"n_sets must be a whole number of at least 1, got {n_sets}")
    wanted: By = choice(by, get_args(By), "by") if len(schema.columns) > 1 else "one-way"
    _checked_n(n)
    rows = [_margins(schema, n, total / n_sets, neighbours)] if columns_of(schema).n_cells <= MOST_DENSE else []
    for layers in range(_most_layers(schema, order) + 1):
        shape = shape_of(schema, order, layers, neighbours)
        for rule in RULES if shape.n_noised > 1 else RULES[:1]:
            epsilons = budgets(shape, total / n_sets, rule, wanted)
            errors = _errors(shape, layer_scales(schema, total / n_sets, epsilons, neighbours)) * 100 / _checked_n(n)
            cells = int(np.prod(shape.sizes))
            rows.append(
                {"layers": layers, "budget": rule, **_on_tree(shape, errors), "cells": cells, "epsilons": epsilons}
            )
    median = f"{wanted.replace('-', '_')}_median"
    by_rank = ["usable", median, "layers"]
    return pd.DataFrame(rows).sort_values(by_rank, ascending=[False, True, True], ignore_index=True)


def _margins(schema: Schema, n: int, epsilon: Fraction, neighbours: Neighbours) -> dict[str, Any]:
    """Return the row of noisy margins without a tree."""
    domain = columns_of(schema)
    shares = choose_views(domain)
    epsilons = tuple(epsilon * share for share in shares.values())
    scales = layer_scales(schema, epsilon, epsilons, neighbours)
    views = tuple(View(columns, scale, "") for columns, scale in zip(shares, scales, strict=True))
    found = [item for item in margin_errors_of(domain, views) if not {*item.columns} <= {*schema.public_columns}]
    errors = np.array([item.standard_error for item in found]) * 100 / n
    n_columns = np.array([len(item.columns) for item in found])
    cells = sum(view.n_cells(domain) for view in views)
    return {
        "layers": 0,
        "budget": "margins",
        **_summary(errors, n_columns),
        "cells": cells,
        "epsilons": epsilons,
    }


def _most_layers(schema: Schema, order: Sequence[str]) -> int:
    """Return the deepest tree of its own: splitting by all columns is splitting by all but the last."""
    return min(len(order), len(schema.columns) - len(schema.public_columns) - 1)


def _on_tree(shape: Shape, errors: FloatArray) -> dict[str, float]:
    """Return the summary of a tree's errors; public margins left out."""
    protected = np.array([shape.depth[list(margin)].any() for margin in shape.margins])
    return _summary(errors[protected], np.array([len(margin) for margin in shape.margins])[protected])


def _summary(errors: FloatArray, n_columns: IntArray) -> dict[str, float]:
    """Return median and worst error by kind of margin, and how many are usable."""
    found: dict[str, float] = {}
    for name, size in (("one_way", 1), ("two_way", 2)):
        held = errors[n_columns == size]
        found[f"{name}_median"] = float(np.median(held)) if len(held) else math.nan
        found[f"{name}_worst"] = float(held.max(initial=0.0)) if len(held) else math.nan
    return {**found, "usable": int((errors <= USABLE).sum())}
