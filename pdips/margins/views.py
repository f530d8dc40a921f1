"""Views: margins of a few columns each, of the whole table, that together hold every
pair of columns. What is counted of them, for which tables, and how several sets differ.
"""

from fractions import Fraction
from typing import Literal

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.margins.domain import (
    Domain,
    View,
    check_domain,
    check_noise,
    choose_views,
    columns_of,
    domain_of,
)
from pdips.margins.maximum_entropy import MOST_DENSE
from pdips.margins.tree import TreeDesign
from pdips.privacy.loss import Neighbours
from pdips.privacy.plan import Step
from pdips.privacy.sensitivity import Sensitivity

OF_VIEWS = (
    "margins of a few columns each, chosen from public facts, that hold every pair of "
    "columns"
)
"""What is said of views to a disclosure board."""


def can_be_laid_out(schema: Schema) -> bool:
    """Whether views suit a schema: all its columns have levels or bins and their cells
    can be held, and nothing is asked that pairs alone know (members, groups of codes).

    Examples
    --------
    >>> can_be_laid_out(Schema(columns={"ill": Column(levels=["no", "yes"])}))
    True
    >>> can_be_laid_out(Schema(columns={"pay": Column(lower=0, upper=9)}))
    False
    """
    columns = schema.columns.values()
    has_levels = all(column.is_categorical or column.is_binned for column in columns)
    has_groups = any(column.groups is not None for column in columns)
    if schema.members is not None or has_groups or not has_levels:
        return False
    return columns_of(schema).n_cells <= MOST_DENSE


def check_dense(domain: Domain) -> None:
    """Refuse columns that have more cells together than a fit of margins holds."""
    if domain.n_cells > MOST_DENSE:
        raise InputError(
            f"views are fitted on at most {MOST_DENSE:,} cells; these columns have "
            f"{domain.n_cells:,} together: take mechanism 'margins' with "
            f"measure = 'pairs', which lays out none, merge levels or bins, or leave "
            f"columns out"
        )


def counted_views(
    domain: Domain,
    sensitivity: Sensitivity,
    law: Literal["laplace", "gaussian"],
    price: Fraction,
) -> tuple[View, ...]:
    """Return the views that are counted at a price together, each with its share."""
    views = list[View]()
    for columns, share in choose_views(domain, law).items():
        names = ", ".join(domain.names[column] for column in columns)
        margin = f"the margin of {names}"
        step = Step(
            name=f"noisy counts of {margin}",
            counts=margin,
            sensitivity=sensitivity,
            price=price * share,
            law=law,
        )
        views.append(View(domain, columns, step))
    return tuple(views)


def view_design(
    schema: Schema,
    neighbours: Neighbours,
    law: Literal["laplace", "gaussian"],
    price: Fraction,
    *,
    redraws: bool,
) -> TreeDesign:
    """Return what is counted where views alone are: a tree without layers.

    Parameters
    ----------
    schema : Schema
        What is public about the table.
    neighbours : {"replace-one", "add-remove"}
        The relation.
    law : {"laplace", "gaussian"}
        Of the noise.
    price : Fraction
        Of all views of one round.
    redraws : bool
        Whether each set comes from a table of its own, fitted to the noisy counts with
        fresh noise.

    Returns
    -------
    TreeDesign
        With views, and no layers.

    Raises
    ------
    InputError
        If the columns have too many cells, or the noise is too loud to be drawn.
    """
    _check_levels(schema)
    check_domain(schema, neighbours)
    domain = domain_of(schema)
    check_dense(domain)
    sensitivity = Sensitivity.of_counts(schema, neighbours)
    views = counted_views(domain, sensitivity, law, price)
    scales = [noise_scale(view.step) for view in views]
    check_noise(schema, neighbours, scales)
    return TreeDesign(domain=domain, layers=(), views=views, redraws=redraws)


def _check_levels(schema: Schema) -> None:
    if schema.members is not None:
        raise InputError("views take no members: leave measure out, or take 'pairs'")
    for name, column in schema.columns.items():
        if not column.is_categorical and not column.is_binned:
            raise InputError(
                f"views need bins or bin_edges for column {name!r} in the schema: "
                f"leave measure out, or take 'pairs', which needs none"
            )


def noise_scale(step: Step) -> Fraction:
    """Return the scale of the noise of a step, of either law."""
    return step.scale if step.law == "laplace" else Fraction(step.noise.scale)


def said_of_views(law: Literal["laplace", "gaussian"]) -> str:
    """Return what is said of counted views to a disclosure board."""
    noise = "discrete Laplace"
    added = ""
    if law == "gaussian":
        noise = "discrete Gaussian"
        added = " Losses are added up as zero-concentrated ones and read at delta."
    return (
        f"Counts on {OF_VIEWS}: every count that is not public has exact {noise} noise "
        f"added, and each is paid for. The counts were then made consistent, which "
        f"costs nothing.{added}"
    )
