"""The public shape of a STEPS release: which layers there are, what each costs and how noisy it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Literal

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.margins.domain import domain_of
from pdips.margins.maximum_entropy import MOST_DENSE
from pdips.margins.views import Columns, choose_views
from pdips.privacy.loss import Number, exact, spell

Below = Literal["cells", "margins"]

MOST_NODES = 1_000_000
"""Depth is chosen so that no layer above the cells has more nodes than this, unless the user says otherwise."""


@dataclass(frozen=True, kw_only=True)
class TreeShape:
    """Layers of one tree and their prices.

    Parameters
    ----------
    counted : tuple of bool
        For each layer that splits by a column, whether its nodes are counted: in a group of columns only the last is.
    below : {"cells", "margins"}
        What is counted below the tree.
    views : dict of columns to Fraction
        The margins, with their shares of what is spent below the tree; empty if all cells are counted.
    elections : tuple of Fraction
        Price of each election.
    noised : tuple of Fraction
        Price of each counted layer; the last one is that of all cells, or of all views together.
    """

    counted: tuple[bool, ...]
    below: Below
    views: dict[Columns, Fraction]
    elections: tuple[Fraction, ...]
    noised: tuple[Fraction, ...]


def splittable(schema: Schema) -> list[str]:
    """Return the columns that a tree can split by."""
    return [name for name in schema.columns if name not in schema.public_columns]


def deepest(schema: Schema) -> int:
    """Return how many layers any choice of columns keeps within ``MOST_NODES`` nodes; at least 1."""
    sizes = sorted((schema.columns[name].n_levels for name in splittable(schema)), reverse=True)
    public = [schema.columns[name].n_levels for name in schema.public_columns]
    nodes = accumulate(sizes, lambda a, b: a * b, initial=math.prod(public))
    return max(sum(number <= MOST_NODES for number in list(nodes)[1:]), 1)


def fits_margins(schema: Schema) -> bool:
    """Return whether the table of all cells can be held while margins are fitted."""
    return domain_of(schema).n_cells <= MOST_DENSE


def check_columns(named: Sequence[str], schema: Schema, option: str) -> None:
    """Check that an order, or groups, name columns that a tree can split by."""
    for name in named:
        if name not in splittable(schema):
            known = ", ".join(splittable(schema))
            raise InputError(f"{option}: {name!r} is no column of the schema that could be split by; there are {known}")


def divide(budget: str | tuple[Number, ...], total: Fraction, n_noised: int, n_paid: int) -> tuple[Fraction, ...]:
    """Divide what the noisy counts may cost among the layers, the last being what is below the tree.

    Parameters
    ----------
    budget : {"equal", "half-to-leaves"} or tuple of numbers
        A rule, or the epsilon of each layer from the top.
    total : Fraction
        What there is to spend.
    n_noised, n_paid : int
        Number of layers with noise, and by how many equal parts of the total are reckoned.

    Raises
    ------
    InputError
        If a budget doesn't have one positive number for each layer, or doesn't add up to the total.
    """
    if isinstance(budget, str):
        if budget == "half-to-leaves" and n_noised > 1:
            return (*(total / 2 / (n_noised - 1),) * (n_noised - 1), total / 2)
        return (total / n_paid,) * n_noised
    parts = tuple(exact(part, "budget") for part in budget)
    if len(parts) != n_noised:
        raise InputError(
            f"budget has {len(parts)} numbers; it needs {n_noised}, one for each noisy layer from the top, "
            "the last for what is counted below the tree"
        )
    if min(parts) <= 0:
        raise InputError("budget must be above 0 for each layer")
    if sum(parts) != total:
        raise InputError(
            f"budget adds up to {spell(sum(parts, Fraction(0)))}; it must add up to {spell(total)}, which is epsilon "
            "less the elections' share"
        )
    return parts


def views_of(schema: Schema) -> dict[Columns, Fraction]:
    """Return the margins to be counted in a table of this schema, with their shares."""
    return choose_views(domain_of(schema))
