"""From public or privately measured facts to one parameter value, and how wide a posterior would be there.

All of it is post-processing: nothing here sees a confidential record.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from scipy.optimize import minimize

from pdips.arrays import FloatArray
from pdips.posterior.columns import Values, distinct
from pdips.posterior.density import Density
from pdips.posterior.grid import Anchor, join, shapes, split, start
from pdips.posterior.private_reference import WITHIN, Cells
from pdips.posterior.record_likelihood import alone, inputs_of, log_prior, over_records, record_terms

PRIOR_DRAWS = 2_000
PUBLIC_SEED = 20240229
"""Seed of draws that depend on nothing but public facts, so that anybody can draw them again."""

ZOOM = {1: 65, 2: 21, 3: 11}
"""Values tried along each axis in one round of a search, by number of parameters."""

ROUNDS = 10
IMPOSSIBLE = -700.0
"""Stands in for the log of a density of 0, which a reference may give and a record may not."""


def fit(density: Density, cells: Cells, prior: FloatArray) -> FloatArray:
    """Return the most probable parameters given counts of cells, shape (parameters,), in unconstrained space.

    Parameters
    ----------
    density : Density
        The model's log density.
    cells : Cells
        The counts.
    prior : ndarray, shape (draws, parameters)
        Draws from the prior: where to look.
    """
    low, high = np.quantile(prior, [0.001, 0.999], axis=0)
    if len(low) > max(ZOOM):
        return _climb(density.model, cells)
    frame = pd.DataFrame(dict(cells.values))
    once = {str(name): column.to_numpy() for name, column in frame[~frame.duplicated()].items()}
    place = frame.groupby(list(frame.columns), sort=False).ngroup().to_numpy()  # in the order of first appearance
    rows = density.rows(once)
    return _zoom(lambda flat: _fitness(density, cells, rows, place, flat), low, high)


def _fitness(density: Density, cells: Cells, distinct_rows: Any, place: Any, flat: FloatArray) -> FloatArray:
    """Return log prior plus log-likelihood of the counts, shape (points,).

    Noisy counts are taken as normal around their expectation, with the variance of sampling plus that of the noise;
    counts of a synthetic table as multinomial.
    """
    points = split(density.model, flat)
    density.at(points)
    with np.errstate(all="ignore"):
        rows = np.array([density(row) for row in distinct_rows])[place]
        rows = np.where(np.isfinite(rows), rows, IMPOSSIBLE).reshape(len(cells.counts), WITHIN, -1)
        inside = _log_mean(rows)
        prior = density.log_prior(points)
        if not cells.variance:
            fitness = prior + cells.counts @ inside
        else:
            share = inside + cells.log_volumes[:, None]
            expected = np.exp(share - share.max(axis=0))
            expected *= cells.n_records / expected.sum(axis=0)
            variance = expected + cells.variance
            fitness = prior - ((cells.counts[:, None] - expected) ** 2 / variance + np.log(variance)).sum(axis=0) / 2
    return np.where(np.isfinite(fitness), fitness, -np.inf)


def _log_mean(rows: FloatArray) -> FloatArray:
    """Return the log of the mean of exp(rows) over the middle axis."""
    highest = rows.max(axis=1)
    return np.asarray(highest + np.log(np.exp(rows - highest[:, None]).mean(axis=1)))


def _zoom(fitness: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray) -> FloatArray:
    """Return the best of ever finer lattices, each around the best of the last."""
    n = ZOOM[len(low)]
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, 1e-6)
    for _ in range(ROUNDS):
        axes = np.meshgrid(*np.linspace(middle - half, middle + half, n).T, indexing="ij")
        flat = np.stack([axis.ravel() for axis in axes], axis=1)
        middle = np.asarray(flat[int(np.argmax(fitness(flat)))])
        half = half * min(8 / (n - 1), 0.6)
    return np.asarray(middle)


def _climb(model: pm.Model, cells: Cells) -> FloatArray:
    """Climb from the model's own starting point to the most probable parameters given a synthetic table."""
    columns = inputs_of(model, cells.values)
    term, record = alone(record_terms(model), columns)
    held = {name: pytensor.shared(np.asarray(cells.values[name], shared.dtype)) for name, shared in columns.items()}
    rows = over_records(term, {record[name]: shared for name, shared in held.items()})
    rows = pt.switch(pt.isnan(rows) | pt.isinf(rows), IMPOSSIBLE, rows)
    inside = pt.logsumexp(rows.reshape((len(cells.counts), WITHIN)), axis=1)
    target = log_prior(model) + (np.maximum(cells.counts, 0.0) * inside).sum()
    slopes = [slope.ravel() for slope in pt.grad(target, model.value_vars)]
    both = pytensor.function(model.value_vars, [target, *slopes], mode="FAST_COMPILE", on_unused_input="ignore")

    def downhill(flat: FloatArray) -> tuple[float, FloatArray]:
        with np.errstate(all="ignore"):
            value, *found = both(*(each[0] for each in split(model, flat[None])))
        slope = np.concatenate(found)
        fine = np.isfinite(value) and np.isfinite(slope).all()
        return (-float(value), -slope) if fine else (1e300, np.zeros_like(flat))

    return np.asarray(minimize(downhill, initial(model), jac=True, method="L-BFGS-B", options={"maxiter": 500}).x)


def initial(model: pm.Model) -> FloatArray:
    """Return the model's own starting point, shape (parameters,)."""
    return np.asarray(join([each[None] for each in start(model)])[0])


def anchor_at(density: Density, place: FloatArray, records: Values, n_records: int) -> Anchor:
    """Return an anchor as wide as the posterior of ``n_records`` records like some public ones would be.

    Parameters
    ----------
    density : Density
        The model's log density.
    place : ndarray, shape (parameters,)
        Public parameters.
    records : mapping of str to ndarray, shape (rows,)
        Public records, drawn from the model at ``place``.
    n_records : int
        A public number of records.
    """
    step = 1e-4
    density.at(
        split(density.model, np.concatenate([place + step * np.eye(len(place)), place - step * np.eye(len(place))]))
    )
    with np.errstate(all="ignore"):
        rows, counts = distinct(records, None)
        moved = np.array([density(row) for row in density.rows(rows)])
    slopes = (moved[:, : len(place)] - moved[:, len(place) :]) / (2 * step)
    fine = np.isfinite(slopes).all(axis=1)
    slopes, counts = slopes[fine], counts[fine]
    information = (slopes.T * counts) @ slopes / max(counts.sum(), 1)
    values, vectors = np.linalg.eigh(information)
    single = vectors / np.sqrt(np.maximum(values, max(values.max() * 1e-6, 1e-12)))
    return Anchor(place, single / np.sqrt(n_records), reach=12.0)


def prior_draws(model: pm.Model, n: int = PRIOR_DRAWS) -> FloatArray:
    """Return draws from the prior, shape (n, parameters), in unconstrained space; the same ones every time."""
    transforms = model.rvs_to_transforms
    graphs = [
        variable if transforms[variable] is None else transforms[variable].forward(variable, *variable.owner.inputs)
        for variable in model.free_RVs
    ]
    drawn = pm.draw(graphs, draws=n, random_seed=PUBLIC_SEED, mode="FAST_COMPILE")
    return join([np.reshape(values, (n, *shape)) for values, shape in zip(drawn, shapes(model), strict=True)])


def anchor_of_prior(prior: FloatArray) -> Anchor:
    """Return an anchor that takes in draws from the prior, for posteriors of which nothing is known beforehand."""
    low, middle, high = np.quantile(prior, [0.001, 0.5, 0.999], axis=0)
    return Anchor(middle, np.diag(np.maximum(high - low, 1e-9) / 6), reach=5.0, even=True)


def unconstrained(model: pm.Model, values: dict[str, Any]) -> FloatArray:
    """Return values of the free variables, in the model's own units, as parameters in unconstrained space."""
    transforms = model.rvs_to_transforms
    given = {variable: pt.as_tensor(np.asarray(values[variable.name], variable.dtype)) for variable in model.free_RVs}
    graphs = [
        given[variable] if transforms[variable] is None else transforms[variable].forward(given[variable], *inputs)
        for variable in model.free_RVs
        for inputs in [clone_replace(list(variable.owner.inputs), given, rebuild_strict=False)]
    ]
    return np.concatenate([np.ravel(each) for each in pytensor.function([], graphs, mode="FAST_COMPILE")()])
