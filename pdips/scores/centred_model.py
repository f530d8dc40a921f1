"""Noisy sums of centred scores as a PyMC model, to look at, to extend and to sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace

from pdips.arrays import FloatArray
from pdips.posterior.model import Blueprint, transformed
from pdips.scores.inner_points import InnerPoints
from pdips.scores.noisy_likelihood import NOISY_SUMS, prior_model

# How far parameters are looked at, in standard deviations of the posterior as it is
# near its mode, beyond the root of their number, and how steeply it ends there
FAR = 6.0
EDGE = 0.25
NEAR = "near_the_mode"


class CentredData(Protocol):
    """What the model reads: see :class:`pdips.scores.centred_sums.CentredSums`."""

    @property
    def space(self) -> Blueprint: ...
    @property
    def points(self) -> InnerPoints: ...
    @property
    def means(self) -> Any: ...
    @property
    def sampling(self) -> FloatArray: ...
    @property
    def curvature_error(self) -> FloatArray: ...
    @property
    def score_noise(self) -> FloatArray: ...
    @property
    def scores(self) -> FloatArray: ...
    @property
    def pooled(self) -> Any: ...


@dataclass(frozen=True, eq=False)
class Near:
    """The parameters within some standard deviations of the most probable ones, as the
    sums and the prior have them there.

    Further out the noise on the curvature leaves open which way the sums slope: with
    wide priors and many parameters the likelihood falls too slowly for a posterior.
    """

    place: FloatArray
    precision: FloatArray  # shape (parameters, parameters)

    @property
    def reach(self) -> float:
        """How far out they are, in standard deviations."""
        return FAR + float(np.sqrt(len(self.place)))

    def log_density(self, places: FloatArray) -> FloatArray:
        """Return 0 for parameters that are near, and less further out, shape
        (places,).
        """
        moves = places - self.place
        squares = ((moves @ self.precision) * moves).sum(axis=1)
        beyond = np.maximum(np.sqrt(np.maximum(squares, 0.0)) - self.reach, 0.0)
        return np.asarray(-((beyond / EDGE) ** 2) / 2)

    def graph(self, place: Any) -> Any:
        """Return the same as a graph of the parameters."""
        move = place - self.place
        square = pt.dot(pt.dot(move, self.precision), move)
        beyond = pt.sqrt(pt.maximum(square, self.reach**2)) - self.reach
        return -((beyond / EDGE) ** 2) / 2


class CentredLikelihood:
    """A PyMC model of noisy sums: the analyst's priors, and the last sums of centred
    scores.

    ``noisy_sums`` are normal about the sum, over the rows of the pseudo table and the
    points of their outcomes, of what the model says of each point there times its
    centred score; their covariance is that of the exact sums and of the noise.
    """

    record_parameters: tuple[str, ...] = ()

    def __init__(self, sums: CentredData, near: Near) -> None:
        self.model = prior_model(sums.space)
        self.compiled = dict[str, Any]()
        with self.model:
            free = [self.model[each.name] for each in sums.space.model.free_RVs]
            values = [
                transformed(self.model, each, each, each.owner.inputs) for each in free
            ]
            observe_centred(NOISY_SUMS, values, sums)
            place = pt.concatenate([value.ravel() for value in values])
            pm.Potential(NEAR, near.graph(place))


def observe_centred(name: str, values: Sequence[Any], sums: CentredData) -> Any:
    """Observe the last noisy sums in the model in context, given its unconstrained
    parameters.
    """
    place = pt.concatenate([value.ravel() for value in values])
    move = pt.dot(sums.means.root, place - sums.means.place)
    mean = _mean(sums, values, move)
    straight = pt.dot(sums.means.flattening, mean)
    covariance = sums.sampling + _noise_at(sums, straight)
    return pm.MvNormal(name, mean, cov=covariance, observed=sums.scores)


def _mean(sums: CentredData, values: Sequence[Any], move: Any) -> Any:
    """Return the mean of the sums as a graph of the value variables."""
    means = sums.means
    law = sums.points.law
    columns = {
        name: pt.as_tensor(np.asarray(means.columns[name], dtype=one.dtype))
        for name, one in law.likelihood.record.items()
    }
    logs = law.likelihood.graph(columns)
    known = dict(zip(law.likelihood.model.value_vars, values, strict=True))
    [logs] = graph_replace([logs], known, strict=False)
    change = logs.reshape(means.inner.shape) - means.reference
    with np.errstate(divide="ignore"):
        own = np.log(means.inner)
    change = pt.switch(pt.isnan(change), -np.inf, change) + own
    inner = pt.special.softmax(change, axis=1)
    outer = means.weights[:, None] * inner
    flat = means.scores.reshape(-1, means.scores.shape[-1])
    found = pt.dot(outer.ravel(), flat)
    if means.correction is not None:
        found = found + pt.dot(means.correction, move)
    return found


def _noise_at(sums: CentredData, move: Any) -> Any:
    """Return the covariance of the noise as :meth:`CentredSums.noise_at` does."""
    one = np.eye(len(sums.means.place))
    error = sums.curvature_error
    along = pt.outer(move, move) * error * (1 - one) + pt.diag(pt.dot(error, move**2))
    noise = sums.score_noise + along
    if sums.pooled is None:
        return noise
    return pt.dot(pt.dot(sums.pooled.own, noise), sums.pooled.own.T) + sums.pooled.noise
