"""A model's parameters as vectors of unconstrained real numbers, and back."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pytensor.graph.replace import clone_replace

from pdips.arrays import FloatArray

PRIOR_DRAWS = 2_000
PUBLIC_SEED = 20240229
"""Seed of draws that depend on nothing but public facts, so that anybody can draw them again."""


@lru_cache(maxsize=16)
def start(model: pm.Model) -> tuple[FloatArray, ...]:
    """Return the model's own starting point, one array for each value variable; found once for each model."""
    point = model.initial_point()
    return tuple(np.asarray(point[value.name], dtype=np.float64) for value in model.value_vars)


def initial(model: pm.Model) -> FloatArray:
    """Return the model's own starting point as a vector, shape (parameters,)."""
    return np.asarray(join([each[None] for each in start(model)])[0])


def split(model: pm.Model, flat: FloatArray) -> list[FloatArray]:
    """Cut parameter vectors, shape (points, parameters), into one array for each value variable."""
    shapes = [each.shape for each in start(model)]
    ends = np.cumsum([int(np.prod(shape, dtype=int)) for shape in shapes])[:-1]
    parts = np.split(flat, ends, axis=1)
    return [part.reshape(len(flat), *shape) for part, shape in zip(parts, shapes, strict=True)]


def join(points: Sequence[Any]) -> FloatArray:
    """Return arrays of value variables as parameter vectors, shape (points, parameters)."""
    return np.concatenate([np.reshape(each, (len(each), -1)) for each in points], axis=1)


def constrained(model: pm.Model, flat: FloatArray) -> list[dict[str, FloatArray]]:
    """Return parameter vectors as values of the free variables, in the model's own units."""
    names, function = [variable.name for variable in model.free_RVs], _constrain(model)
    rows = zip(*split(model, flat), strict=True)
    return [dict(zip(names, map(np.asarray, function(*row)), strict=True)) for row in rows]


@lru_cache(maxsize=16)
def _constrain(model: pm.Model) -> Any:
    graphs = model.replace_rvs_by_values(model.free_RVs)
    return model.compile_fn(graphs, inputs=model.value_vars, point_fn=False, mode="FAST_COMPILE")


def unconstrained(model: pm.Model, draws: Mapping[str, Any]) -> list[FloatArray]:
    """Return draws of the free variables, in the model's own units, as the model's value variables have them."""
    function = _unconstrain(model)
    columns = [np.asarray(draws[variable.name], variable.dtype) for variable in model.free_RVs]
    with np.errstate(all="ignore"):
        return [np.stack(each) for each in zip(*(function(*row) for row in zip(*columns, strict=True)), strict=True)]


@lru_cache(maxsize=16)
def _unconstrain(model: pm.Model) -> Any:
    given = {variable: variable.type(name=variable.name) for variable in model.free_RVs}
    graphs = [
        transformed(model, variable, given[variable], clone_replace(variable.owner.inputs, given, rebuild_strict=False))
        for variable in model.free_RVs
    ]
    return pytensor.function(list(given.values()), graphs, mode="FAST_COMPILE", on_unused_input="ignore")


def prior_draws(model: pm.Model, n: int = PRIOR_DRAWS) -> FloatArray:
    """Return draws from the prior, shape (n, parameters); the same ones every time."""
    graphs = [transformed(model, variable, variable, variable.owner.inputs) for variable in model.free_RVs]
    drawn = pm.draw(graphs, draws=n, random_seed=PUBLIC_SEED, mode="FAST_COMPILE")
    return join([np.reshape(values, (n, *each.shape)) for values, each in zip(drawn, start(model), strict=True)])


def transformed(model: pm.Model, variable: Any, value: Any, inputs: Sequence[Any]) -> Any:
    """Return a value of a free variable, given its distribution's inputs, as the model's value variable has it."""
    transform = model.rvs_to_transforms[variable]
    return value if transform is None else transform.forward(value, *inputs)
