"""A model with its parameters moved, turned and stretched until its posterior is nearly round: quicker for NUTS."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.replace import graph_replace

from pdips.bayes.grid import Anchor, shapes

FloatArray = NDArray[np.float64]

ROUND = "pdips_round"

LEAST_SPREAD = 1e-6


def axes_at(anchor: Anchor, prior: FloatArray) -> FloatArray:
    """Return axes, each as long as a standard deviation of a posterior at an anchor, the prior taken in.

    Parameters
    ----------
    anchor : Anchor
        Place and axes of the likelihood.
    prior : ndarray, shape (draws, parameters)
        Draws from the prior, in unconstrained space.

    Returns
    -------
    ndarray, shape (parameters, parameters)
        The axes are its columns.
    """
    low, high = np.quantile(prior, [0.159, 0.841], axis=0)
    spread = np.maximum((high - low) / 2, LEAST_SPREAD)
    # In units of the prior's spread, so that no direction is off by more than that.
    inverse = np.linalg.pinv(anchor.shape / spread[:, None])
    values, vectors = np.linalg.eigh(inverse.T @ inverse + np.eye(len(spread)))
    return np.asarray(spread[:, None] * vectors / np.sqrt(values))


def whitened(model: pm.Model, like: pm.Model, place: FloatArray, axes: FloatArray) -> pm.Model:
    """Return a model of one vector ``z`` whose log density is a model's at ``place + axes @ z``.

    Parameters
    ----------
    model : pymc.Model
        Its free variables are continuous.
    like : pymc.Model
        One with the same value variables, whose order is that of ``place``.
    place : ndarray, shape (parameters,)
        In unconstrained space.
    axes : ndarray, shape (parameters, parameters)
        See :func:`axes_at`.

    Returns
    -------
    pymc.Model
        Its free variable is called ``pdips_round``; the free variables and deterministics of the old model are
        deterministics of this one.
    """
    names = [*(variable.name for variable in model.free_RVs), *(variable.name for variable in model.deterministics)]
    graphs = model.replace_rvs_by_values([model[name] for name in names])
    with pm.Model(coords=dict(model.coords)) as new:
        z = pm.Flat(ROUND, shape=len(place))
        flat = pt.as_tensor(place) + pt.as_tensor(axes) @ z
        replaced, start = dict[Any, Any](), 0
        known = {value.name: value for value in model.value_vars}
        for value, shape in zip((known[each.name] for each in like.value_vars), shapes(like), strict=True):
            size = int(np.prod(shape, dtype=int))
            part = flat[start] if shape == () else flat[start : start + size].reshape(shape)
            replaced[value] = pt.specify_shape(part, value.type.shape).astype(value.dtype)
            start += size
        log_density, *found = graph_replace([model.logp(), *graphs], replaced, strict=False)
        pm.Potential("pdips_log_density", log_density)
        for name, graph in zip(names, found, strict=True):
            pm.Deterministic(name, graph, dims=model.named_vars_to_dims.get(name))
    return new
