"""Names of variables and dims as Bambi's users know them, in the model that Bambi
makes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pdips.errors import InputError

CENTERED = "_centered"
FACTOR_DIM = "__factor_dim"
RESERVED = ("chain", "draw", "__sample__")
"""Dims that every sample has."""


def mark_centered(model: Any) -> None:
    """Name intercepts of centered covariates so, before a Bambi model is built.

    Bambi samples the intercept at the covariates' means and takes these off after
    sampling; :func:`add_intercepts` does so in the model.
    """
    renamed = {}
    for component in _centered_components(model):
        intercept = component.intercept_term
        name = _name(intercept)
        intercept.alias = renamed[name] = name + CENTERED
    potentials = list[tuple[Any, Any]]()
    for names, function in model.potentials or ():
        if isinstance(names, str):
            potentials.append((renamed.get(names, names), function))
        else:
            potentials.append((tuple(renamed.get(n, n) for n in names), function))
    model.potentials = potentials


def centers_of(model: Any) -> dict[str, Any]:
    """Return the means of covariates that a Bambi model is centered at, by the name of
    their term: those of the records that it was specified on.
    """
    return {
        _name(term): np.atleast_1d(np.mean(term.data, axis=0))
        for component in _centered_components(model)
        for term in component.common_terms.values()
    }


def read_covariates(model: Any, frame: Any, centers: Mapping[str, Any]) -> None:
    """Let a Bambi model read the covariates of another frame than it was specified on,
    less the centers; priors and constants of transforms stay as they are.
    """
    for component in model.conditional_parameters.values():
        if component.hsgp_terms:
            raise InputError(
                "hsgp() reads a confidential covariate, whose range isn't known: write "
                "the model as a function with pm.gp.HSGP and a public range, or "
                "declare the covariate public"
            )
        for term in (
            *component.common_terms.values(),
            *component.offset_terms.values(),
        ):
            values = np.squeeze(term.term.eval_new_data(frame))
            term.data = values - np.squeeze(centers.get(_name(term), 0.0))
        for term in component.group_specific_terms.values():
            written = term.term
            written.expr.data = written.expr.eval_new_data(frame)
            written.factor.data = written.factor.eval_new_data(frame)
            term.group_index = term.invert_dummies(term.grouper)


def add_intercepts(model: Any, centers: Mapping[str, Any]) -> None:
    """Add the intercepts that Bambi reports, where all covariates are 0, to the PyMC
    model of a Bambi model.
    """
    import pymc as pm

    with model.backend.model as built:
        for component in _centered_components(model):
            name = _name(component.intercept_term)
            intercept = built[name]
            dims = built.named_vars_to_dims.get(name)
            for term in component.common_terms.values():
                means = centers[_name(term)]
                coefficients = built[_name(term)]
                # a term of several columns has them along its first axis
                if term.coords:
                    intercept = intercept - means @ coefficients
                else:
                    intercept = intercept - means[0] * coefficients
            pm.Deterministic(name.removesuffix(CENTERED), intercept, dims=dims)


def name_group_dims(built: Any) -> None:
    """Name the dims of groups as their column, in a PyMC model that Bambi made.

    A dim keeps Bambi's name where a variable has the column's: the two can't be called
    the same.
    """
    names = {}
    for dim in built.coords:
        column = dim.removesuffix(FACTOR_DIM)
        if column != dim and column not in (*built.named_vars, *RESERVED):
            names[dim] = column
    for dim, column in names.items():
        built.coords[column] = built.coords.pop(dim)
        length = built.dim_lengths.pop(dim)
        length.name = column
        built.dim_lengths[column] = length
    for variable, dims in built.named_vars_to_dims.items():
        built.named_vars_to_dims[variable] = tuple(names.get(dim, dim) for dim in dims)


def _centered_components(model: Any) -> Iterator[Any]:
    """Yield the parameters whose covariates Bambi centers."""
    for component in model.conditional_parameters.values():
        has_both = component.intercept_term is not None and component.common_terms
        if has_both and model.center_predictors:
            yield component


def _name(term: Any) -> str:
    return str(term.alias or term.name)
