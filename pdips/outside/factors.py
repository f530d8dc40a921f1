"""Noisy margins as a term of a PyMC model, and what of the model has to fit them."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pymc as pm
import pytensor
import pytensor.tensor as pt

from pdips.arrays import FloatArray
from pdips.data.column import Column
from pdips.errors import InputError

MOST_LISTED = 12  # Levels of a column in a message
TOTAL = "number of records"
CONTRAST = "{}_contrast"


def model_in_context() -> pm.Model:
    """Return the model in context, or refuse to work without one."""
    try:
        return pm.modelcontext(None)
    except TypeError:
        raise InputError(
            "a factor is added to a model: call it inside of with pm.Model():"
        ) from None


def check_expected(
    columns: dict[str, Column], expected: Any, dims: Sequence[str] | None
) -> Any:
    """Return expected counts as a vector of cells, the last column's level running
    fastest; refuse what isn't about the cells of these columns.
    """
    expected = pt.as_tensor(expected)
    shape = pytensor.function([], expected.shape, mode="FAST_COMPILE")()
    sizes = [column.n_levels for column in columns.values()]
    known = tuple(map(int, shape))
    if len(known) == 1 and len(sizes) > 1:
        if known[0] != math.prod(sizes):
            raise InputError(
                f"expected has {known[0]} entries, and {', '.join(columns)} have "
                f"{' x '.join(map(str, sizes))} = {math.prod(sizes)} cells"
            )
    elif len(known) != len(sizes):
        raise InputError(
            f"expected has {len(known)} axes, and there are {len(sizes)} columns: "
            f"give one axis for each, or a vector of all cells"
        )
    dims = dims or _dims_of(expected)
    if dims is not None:
        _check_dims(columns, dims, len(known))
    if len(known) == len(sizes):
        for (name, column), size in zip(columns.items(), known, strict=True):
            if size != column.n_levels:
                raise InputError(
                    f"the axis of {name!r} in expected has {size} entries, and the "
                    f"column has {column.n_levels} levels: {_listed(column)}"
                )
    return pt.flatten(expected)


def _dims_of(expected: Any) -> Sequence[str] | None:
    """Return the dims of a named variable of the model, if it has one for each axis."""
    model = model_in_context()
    is_named = model.named_vars.get(expected.name) is expected
    dims = model.named_vars_to_dims.get(expected.name) if is_named else None
    if not dims or None in dims:
        return None
    return [str(dim) for dim in dims]


def _check_dims(columns: dict[str, Column], dims: Sequence[str], n_axes: int) -> None:
    """Refuse dims that aren't those of the columns in their order, one by one."""
    coords = model_in_context().coords
    names = list(columns)
    for dim in dims:
        if dim not in coords:
            raise InputError(
                f"{dim!r} is no dimension of the model; it has "
                f"{', '.join(map(repr, coords)) or 'none'}: add it by "
                f"pm.Model(coords=...)"
            )
    if len(dims) != n_axes:
        raise InputError(
            f"expected has {n_axes} axes, and dims names {len(dims)}: give one for "
            f"each axis, in the same order"
        )
    if len(dims) < len(names):
        return  # a vector of all cells
    if set(dims) == set(names) and list(dims) != names:
        raise InputError(
            f"expected has the dims {', '.join(dims)}, and the columns are "
            f"{', '.join(names)}: name the columns in the order of the dims"
        )
    for dim, (name, column) in zip(dims, columns.items(), strict=True):
        labels = coords[dim]
        if labels is not None:
            _check_labels(dim, [*labels], name, column)


def _check_labels(dim: str, labels: list[Any], name: str, column: Column) -> None:
    """Refuse labels that aren't the levels of a column in the order of the schema.
    Intervals of numbers may be called as you like.
    """
    levels = column.names()
    if len(labels) != len(levels):
        raise InputError(
            f"dimension {dim!r} has {len(labels)} labels, and column {name!r} "
            f"{len(levels)} levels: {_listed(column)}"
        )
    spelt = [str(label) for label in labels]
    if not column.is_categorical or spelt == levels or labels == column.levels:
        return
    wrong = "other labels than the levels of"
    if sorted(spelt) == sorted(levels):
        wrong = "another order than the levels of"
    raise InputError(
        f"dimension {dim!r} has {wrong} column {name!r}, which are in the order of the "
        f"schema {_listed(column)}"
    )


def _listed(column: Column) -> str:
    names = column.names()
    more = ["..."] if len(names) > MOST_LISTED else []
    return ", ".join(names[:MOST_LISTED] + more)


def contrast_labels(
    columns: Mapping[str, Column], parts: Sequence[tuple[int, ...]]
) -> list[str]:
    """Return a label for each contrast of the cells of some columns: ``sex[m]``,
    ``sex:school[m, high]``, by the columns on which it depends; there is one for each
    level but the first, as of coefficients.
    """
    names = [*columns]
    levels = [column.names()[1:] for column in columns.values()]
    labels = []
    for part in parts:
        name = ":".join(names[place] for place in part)
        for own in product(*(levels[place] for place in part)):
            inside = f"[{', '.join(own)}]" if own else ""
            labels.append(f"{name or TOTAL}{inside}")
    return labels


def observe_contrasts(
    name: str,
    labels: Sequence[str],
    seen: FloatArray,
    law: tuple[Any, Any],
) -> Any:
    """Observe noisy contrasts in the model in context, by their normal law's mean and
    covariance; their dim is called after the variable.
    """
    model = model_in_context()
    if model.name_for(name) in model.named_vars:
        raise InputError(
            f"the model has a variable {name!r} already: call this one otherwise, "
            f"name=..."
        )
    dim = CONTRAST.format(name)
    model.add_coord(dim, labels)
    return pm.MvNormal(name, *law, observed=seen, dims=dim)
