"""Standard errors of the margins of a tree before any budget is spent, from the schema
and the settings alone.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple, get_args

import pandas as pd

from pdips.data.schema import Schema
from pdips.errors import InputError, hint
from pdips.margins.domain import check_domain, columns_of, domain_of, splittable
from pdips.margins.margin_error import ColumnTree, small_margins
from pdips.margins.steps import divide
from pdips.margins.views import can_be_laid_out
from pdips.privacy.loss import Neighbours, Number, check_whole, choice, positive
from pdips.privacy.plan import Step
from pdips.privacy.sensitivity import Sensitivity

Rule = Literal["equal", "half-to-leaves"]

RULES: tuple[Rule, ...] = get_args(Rule)

type ColumnOrder = Sequence[str] | None
"""Columns from the top; left out, those of the schema in its order."""

type LayerScales = Sequence[Fraction] | None
"""Of the noise on each layer, in records; left out, they follow from a budget."""

type LayerBudget = Rule | Sequence[Number]
"""A rule, or the epsilon of each noised layer from the top."""


class Suited(NamedTuple):
    """The mechanism to take where none is named, and why.

    Parameters
    ----------
    name : str
        Of the mechanism.
    why : str
        What decided.
    settings : dict
        That are to be added where they aren't given.
    """

    name: str
    why: str
    settings: dict[str, Any]


def suited(
    schema: Schema, *, has_model: bool = False, in_files: bool = False
) -> Suited:
    """Return the mechanism to take where none is named, and why, from public facts
    alone.

    ``has_model``: whether the user brings a PyMC model; ``in_files``: whether the table
    is a folder of files.

    Examples
    --------
    >>> columns = {name: {"levels": list(range(10))} for name in "abcdefgh"}
    >>> found = suited(Schema.model_validate({"columns": columns}))
    >>> found.name, found.why[:38]
    ('margins', 'it counts pairs of columns, of which 1')
    """
    if has_model:
        return Suited("scores", "it takes any PyMC model of one record", {})
    columns = schema.columns.values()
    if schema.members is not None:
        return Suited("margins", "it takes households with members", {})
    if in_files:
        # each view would read all files once more
        why = "it takes a table in many files, whose pairs are counted in one pass"
        return Suited("margins", why, {"measure": "pairs"})
    if not all(column.is_categorical or column.is_binned for column in columns):
        return Suited("margins", "it needs no bins for numeric columns", {})
    n_cells = columns_of(schema).n_cells
    why = f"it counts pairs of columns, of which {n_cells:,} cells needn't be laid out"
    if can_be_laid_out(schema):
        why = (
            f"it counts views that hold all pairs of columns, and {n_cells:,} cells "
            f"can be laid out"
        )
    return Suited("margins", why, {})


def column_tree(
    schema: Schema,
    order: Sequence[str],
    layers: int,
    neighbours: Neighbours = "replace-one",
) -> ColumnTree:
    """Return the tree that splits by the first ``layers`` columns of ``order``; 0
    layers is a flat histogram.
    """
    check_domain(schema, choice(neighbours, get_args(Neighbours), "neighbours"))
    order = checked_order(schema, order)
    domain = domain_of(schema)
    if isinstance(layers, bool) or not isinstance(layers, int):
        raise InputError(_wrong_layers(layers, order))
    if not 0 <= layers <= len(order):
        raise InputError(_wrong_layers(layers, order))
    # splitting by all columns is splitting by all but the last
    n_free = len(domain.names) - len(domain.public)
    split = order[: min(layers, n_free - 1)]
    depths = dict.fromkeys(schema.public_columns, 0)
    depths |= {name: depth for depth, name in enumerate(split, start=1)}
    below = len(split) + 1
    by_column = tuple(depths.get(name, below) for name in domain.names)
    return ColumnTree(domain, by_column, neighbours == "replace-one")


def _wrong_layers(layers: object, order: Sequence[str]) -> str:
    return (
        f"layers must be a whole number from 0 to the {len(order)} "
        f"columns of the order, got {layers}"
    )


def checked_order(schema: Schema, order: ColumnOrder) -> tuple[str, ...]:
    """Return the columns from the top: as given, or those of the schema that aren't
    public in its order.
    """
    free = splittable(schema)
    if order is None:
        return tuple(free)
    for name in order:
        if name not in free:
            raise InputError(
                f"order: {name!r} is no column of the schema that could be split "
                f"by{hint(name, free)}"
            )
    if not order or len(set(order)) < len(order):
        raise InputError("order must name at least one column, and none twice")
    return tuple(order)


def layer_scales(
    schema: Schema,
    epsilon: Number,
    epsilons: Sequence[Number],
    neighbours: Neighbours = "replace-one",
) -> tuple[Fraction, ...]:
    """Return the scale of the noise on each layer, in records, for a budget by layer
    that adds up to epsilon.
    """
    total = positive(epsilon, "epsilon")
    parts = [positive(part, "the epsilon of a layer") for part in epsilons]
    if sum(parts) != total:
        raise InputError(
            f"the epsilons of the layers add up to "
            f"{sum(parts, Fraction(0))}, not to epsilon = {total}"
        )
    sensitivity = Sensitivity.of_counts(schema, neighbours)
    steps = [
        Step(name="a layer", sensitivity=sensitivity, price=part) for part in parts
    ]
    return tuple(step.scale for step in steps)


def margin_errors(
    schema: Schema,
    n: int | None = None,
    epsilon: Number | None = None,
    *,
    order: ColumnOrder = None,
    layers: int | None = None,
    budget: LayerBudget = "equal",
    scales: LayerScales = None,
    neighbours: Neighbours = "replace-one",
) -> pd.DataFrame:
    """Return the standard error of a count in every one-way and two-way margin, before
    any budget is spent.

    Parameters
    ----------
    schema : Schema
        What is public about the table.
    n : int, optional
        Number of records where that is public, or else a public guess: for errors as
        shares.
    epsilon : int, float, str or Fraction, optional
        The total, in nats, divided over the layers by ``budget``. Left out where
        ``scales`` are given.
    order : sequence of str, optional
        Columns from the top; those of the schema in its order unless given.
    layers : int, optional
        How many of them split; all unless given. 0 is a flat histogram.
    budget : {"equal", "half-to-leaves"} or sequence of numbers
        The rule, or the epsilon of each noised layer from the top, the last one that of
        the cells.
    scales : sequence of Fraction, optional
        Scale of the noise by layer, in records, in place of epsilon and budget.
    neighbours : {"replace-one", "add-remove"}
        The relation.

    Returns
    -------
    DataFrame
        A row for each margin: ``margin`` ("voted", "voted x college"), ``cells`` in it,
        ``se_records`` and, with ``n``, ``se_share`` (of ``n``, between 0 and 1).

    Notes
    -----
    All cells of a margin have one standard error. It is that of the least squares
    counts. Making them nonnegative comes after and moves them too: by more than that on
    trees with far more cells than records. Structural zeros are left out of account:
    with them errors are at most as large (Gauss and Markov: knowing more never hurts).

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "sex": Column(levels=["f", "m"]),
    ...     }
    ... )
    >>> list(margin_errors(schema, epsilon=1)["margin"])
    ['ill', 'sex', 'ill x sex']
    """
    columns = checked_order(schema, order)
    n_layers = len(columns) if layers is None else layers
    tree = column_tree(schema, columns, n_layers, neighbours)
    if (epsilon is None) == (scales is None):
        raise InputError("give either epsilon or scales")
    if epsilon is not None:
        total = positive(epsilon, "epsilon")
        if isinstance(budget, str):
            rule = choice(budget, RULES, "budget")
            budget = divide(rule, total, tree.n_noised, tree.n_noised)
        scales = layer_scales(schema, total, budget, neighbours)
    if scales is None or len(scales) != tree.n_noised:
        raise InputError(
            f"the tree has {tree.n_noised} layers with noise, the "
            f"budget {len(scales or ())}"
        )
    errors = tree.standard_errors(scales)
    margins = small_margins(len(tree.depth))
    names = tree.domain.names
    frame = pd.DataFrame(
        {
            "margin": [" x ".join(names[k] for k in margin) for margin in margins],
            "cells": [tree.domain.size_of(margin) for margin in margins],
            "se_records": errors,
        }
    )
    if n is None:
        return frame
    check_whole(n, "n", 1, None)
    return frame.assign(se_share=errors / n)
