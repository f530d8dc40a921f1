"""The mean of sums of centred scores at any parameters, by a public table that stands
for the covariates.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pdips.arrays import FloatArray
from pdips.posterior.columns import Values
from pdips.posterior.model import split
from pdips.scores.inner_points import AtPoints, InnerPoints

# Slope of the mean of the sums that is taken for none, over the largest
LEAST_SLOPE = 1e-9


def at_points(points: InnerPoints, candidates: Values, at: AtPoints) -> dict[str, Any]:
    """Return records of all rows at all points, one row after the other."""
    columns = {name: np.repeat(each, points.n) for name, each in candidates.items()}
    n_rows = len(at.weights)
    if points.weights is not None:
        [name] = points.outcomes
        columns[name] = at.quantiles.ravel()
    for name, values in points.values.items():
        columns[name] = np.tile(values, n_rows)
    return columns


@dataclass(frozen=True, eq=False)
class MeanMap:
    """The mean of sums of centred scores at any parameters, by what the model says of
    the points of each row of the pseudo table there.
    """

    points: InnerPoints
    columns: Values  # shape (rows * points,)
    weights: FloatArray  # shape (rows,): of records
    inner: FloatArray  # shape (rows, points): what points weigh at the reference
    scores: FloatArray  # shape (rows, points, parameters): centred
    place: FloatArray
    root: FloatArray  # from moves of parameters to whitened ones
    correction: FloatArray | None = None  # of slopes in whitened moves

    # Log densities that are worked out at once
    AT_ONCE = 2_000_000

    def blocks(self, n: int) -> list[slice]:
        """Return slices of places that go together."""
        size = max(self.AT_ONCE // self.inner.size, 1)
        return [slice(first, first + size) for first in range(0, n, size)]

    def whitened(self, places: FloatArray) -> FloatArray:
        """Return parameters as moves from the reference, in whitened units."""
        return np.asarray((places - self.place) @ self.root.T)

    def logs(self, places: FloatArray) -> FloatArray:
        """Return log densities, shape (places, rows, points)."""
        likelihood = self.points.law.likelihood
        parts = split(likelihood.model, np.asarray(places))
        blocks = likelihood.blocks(self.columns, parts, mode=None)
        logs = np.concatenate([each for _, each in blocks])
        return np.asarray(logs.reshape(len(places), *self.inner.shape))

    @cached_property
    def reference(self) -> FloatArray:
        """Log densities at the reference, shape (rows, points)."""
        return np.asarray(self.logs(self.place[None])[0])

    def inner_weights(self, logs: FloatArray) -> FloatArray:
        """Return what points weigh at parameters, shape (places, rows, points): the
        weights at the reference times the change of the density, as shares of each row.
        """
        with np.errstate(all="ignore"):
            change = logs - self.reference
            change = np.where(np.isnan(change) | (self.inner == 0), -np.inf, change)
            change -= change.max(axis=-1, keepdims=True)
            weights = self.inner * np.exp(np.maximum(change, -1e3))
            return np.asarray(weights / weights.sum(axis=-1, keepdims=True))

    def mean(self, inner: FloatArray, moves: FloatArray) -> FloatArray:
        """Return the mean of the sums, shape (..., parameters)."""
        outer = self.weights[:, None] * inner
        flat = self.scores.reshape(-1, self.scores.shape[-1])
        found = outer.reshape(*inner.shape[:-2], -1) @ flat
        if self.correction is not None:
            found = found + moves @ self.correction
        return np.asarray(found)

    @cached_property
    def flattening(self) -> FloatArray:
        """From the mean of the sums to the whitened move that it would take, were it as
        steep everywhere as at the reference, where it is 0.
        """
        inner = self.inner_weights(self.reference[None])[0]
        slopes = self.slopes(self.place, inner) @ np.linalg.inv(self.root)
        return np.asarray(np.linalg.pinv(slopes, rcond=LEAST_SLOPE))

    def straight(self, mean: FloatArray) -> FloatArray:
        """Return the whitened moves from the reference that means of the sums, shape
        (..., parameters), would take, were they straight lines.

        Clipped scores have a largest mean, and an error of the covariates' law moves
        this mean by as large a share of it as the slope: the error doesn't grow further
        with parameters that are ever farther out.
        """
        return np.asarray(mean @ self.flattening.T)

    def row_scores(self, place: FloatArray, inner: FloatArray) -> FloatArray:
        """Return scores of all rows at all points, shape (rows, points, parameters),
        less their mean in each row.
        """
        scores = self.points.law.score.of_public(place, self.columns)
        scores = np.where(np.isfinite(scores), scores, 0.0)
        scores = scores.reshape(*inner.shape, -1)
        mean = (inner[..., None] * scores).sum(axis=1, keepdims=True)
        return np.asarray(scores - mean)

    def slopes(self, place: FloatArray, inner: FloatArray) -> FloatArray:
        """Return the derivative of the mean, shape (parameters, parameters)."""
        scores = self.row_scores(place, inner)
        outer = (self.weights[:, None] * inner)[..., None]
        flat = (outer * self.scores).reshape(-1, self.scores.shape[-1])
        found = flat.T @ scores.reshape(len(flat), -1)
        if self.correction is not None:
            found = found + self.correction @ self.root
        return np.asarray(found)

    def information(self, place: FloatArray, inner: FloatArray) -> FloatArray:
        """Return what all records would say of the parameters, without clipping."""
        scores = self.row_scores(place, inner)
        outer = (self.weights[:, None] * inner)[..., None]
        flat = scores.reshape(-1, scores.shape[-1])
        return np.asarray((outer * scores).reshape(len(flat), -1).T @ flat)
