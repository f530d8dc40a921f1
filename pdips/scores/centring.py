"""A record's clipped score less what its covariates would lead one to expect, and its
curvature: functions of one record, in whole steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.scores.inner_points import AtPoints
from pdips.scores.record_score import STEPS, Norm, sizes_in_order, stays_inside

# What is summed over records
Kind = Literal["scores", "curvature", "shape", "above", "squares"]
KINDS: tuple[Kind, ...] = ("scores", "curvature", "shape", "above", "squares")
# Of one number between 0 and 1 that each record has
COUNTED: tuple[Kind, ...] = ("above", "shape")


@dataclass(frozen=True, eq=False)
class Centring:
    """How scores at public parameters are whitened, clipped and centred.

    Everything here is public, or follows from earlier noisy answers; no field depends
    on a record.
    """

    place: FloatArray  # shape (parameters,), unconstrained: where the gradient is taken
    whitening: FloatArray  # shape (parameters, parameters)
    radius: float  # of the ball of scores, in units of whitened scores
    curvature_radius: float  # of the ball of curvatures, in their square
    norm: Norm

    def arrays(self) -> dict[str, FloatArray]:
        """Return all but the norm as arrays, to be kept with answers."""
        return {
            "place": self.place,
            "whitening": self.whitening,
            "radius": np.asarray(self.radius),
            "curvature_radius": np.asarray(self.curvature_radius),
        }

    @classmethod
    def read(cls, arrays: Mapping[str, FloatArray], norm: Norm) -> "Centring":
        """Return what :meth:`arrays` returned, with its norm."""
        return cls(
            arrays["place"],
            arrays["whitening"],
            float(arrays["radius"]),
            float(arrays["curvature_radius"]),
            norm,
        )

    def unit(self, kind: Kind) -> float:
        """What a whole step of a sum is worth."""
        return self.largest(kind) / STEPS

    def largest(self, kind: Kind) -> float:
        """The largest norm of what one record adds to a sum."""
        if kind == "scores":
            return self.radius
        if kind in COUNTED:
            return 1.0
        return self.curvature_radius if kind == "curvature" else self.radius**2

    @property
    def pairs(self) -> tuple[IntArray, IntArray]:
        """Rows and columns of the entries on and above the diagonal of a matrix."""
        rows, columns = np.triu_indices(len(self.place))
        return rows, columns

    @property
    def doubled(self) -> FloatArray:
        """What entries on and above the diagonal are multiplied by, so that their norm
        is that of the whole matrix.
        """
        rows, columns = self.pairs
        off = np.sqrt(2) if self.norm == "l2" else 1.0
        return np.where(rows == columns, 1.0, off)

    def matrix(self, entries: FloatArray) -> FloatArray:
        """Return symmetric matrices, shape (..., parameters, parameters), from what is
        published of them, shape (..., pairs).
        """
        rows, columns = self.pairs
        n = len(self.place)
        whole = np.zeros((*np.shape(entries)[:-1], n, n))
        whole[..., rows, columns] = entries / self.doubled
        whole[..., columns, rows] = entries / self.doubled
        return whole

    def of(self, at: AtPoints) -> "CentredScores":
        """Return what is summed of records, each from its own numbers alone.

        Each record goes through the same additions and multiplications in the same
        order: no matrix product and no sum along an axis, whose bits depend on how many
        records come along. What isn't finite counts as nothing.
        """
        with np.errstate(all="ignore"):
            return self._of(at)

    def _of(self, at: AtPoints) -> "CentredScores":
        whitened = self._whitened(at)
        is_known = np.isfinite(whitened).all(axis=2)
        whitened[~is_known] = 0.0
        weights = np.where(is_known[:, 1:], at.weights, 0.0)
        lengths = self._lengths(whitened)
        shrunk = np.minimum(1.0, self.radius / np.where(lengths > 0, lengths, 1.0))
        shrunk = np.where(lengths > 0, shrunk, 1.0)
        expected, curvature = self._over_points(whitened[:, 1:], shrunk[:, 1:], weights)
        factor = self._factor(expected, curvature)
        factor = np.where((at.weights > 0).any(axis=1), factor, 0.0)
        return CentredScores(
            clipped=whitened * shrunk[:, :, None],
            expected=expected,
            is_known=is_known[:, 0],
            curvature=factor[:, None] * curvature,
            factor=factor,
            shape=at.shape[:, :1],
            above=at.above[:, :1],
            centring=self,
        )

    def _over_points(
        self, whitened: FloatArray, shrunk: FloatArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the mean of clipped scores over what the outcomes may be, shape
        (records, parameters), and its derivative, shape (records, pairs).
        """
        rows, columns = self.pairs
        expected = np.zeros_like(whitened[:, 0])
        curvature = np.zeros((len(whitened), len(rows)))
        for k in range(weights.shape[1]):
            point = whitened[:, k]
            weight = (weights[:, k] * shrunk[:, k])[:, None]
            expected += weight * point
            curvature += weight * (point[:, rows] * point[:, columns])
        return expected, curvature * self.doubled

    def _factor(self, expected: FloatArray, curvature: FloatArray) -> FloatArray:
        """Return what scores and curvatures of records are multiplied by, so that both
        stay in their balls.
        """
        size = self._length(curvature)
        by_mean = self.radius / (self.radius + self._length(expected))
        by_size = self.curvature_radius / np.where(size > 0, size, 1.0)
        factor = np.minimum(by_mean, np.where(size > 0, by_size, 1.0))
        return np.where(np.isfinite(factor), factor, 0.0)

    def own_lengths(self, at: AtPoints) -> FloatArray:
        """Return the norms of the records' own whitened scores, shape (records,); 0
        where there is none.
        """
        own = AtPoints(
            at.scores[:, :1],
            at.weights[:, :0],
            at.quantiles[:, :0],
            at.shape[:, :1],
            at.above[:, :1],
        )
        with np.errstate(all="ignore"):
            lengths = self._lengths(self._whitened(own))[:, 0]
        return np.where(np.isfinite(lengths), lengths, 0.0)

    def lengths(self, at: AtPoints) -> FloatArray:
        """Return the norms of whitened scores at points, shape (records, points)."""
        with np.errstate(all="ignore"):
            lengths = self._lengths(self._whitened(at)[:, 1:])
        return np.where(np.isfinite(lengths), lengths, 0.0)

    def _whitened(self, at: AtPoints) -> FloatArray:
        whitened = np.zeros_like(at.scores)
        for k, column in enumerate(self.whitening.T):
            whitened += at.scores[:, :, k, None] * column
        return whitened

    def _lengths(self, whitened: FloatArray) -> FloatArray:
        """Return the norms of scores, shape (records, points)."""
        n_records, n_points, width = whitened.shape
        flat = self._length(whitened.reshape(-1, width))
        return flat.reshape(n_records, n_points)

    def _length(self, vectors: FloatArray) -> FloatArray:
        """Return the norms of rows, added up from left to right."""
        sizes = sizes_in_order(vectors, self.norm)
        return sizes if self.norm == "l1" else np.sqrt(sizes)

    def whole(self, values: FloatArray, kind: Kind) -> IntArray:
        """Return what records add to a sum, shape (records, sums), in whole steps; 0
        for a record that rounding would leave outside of the ball.
        """
        steps = values / self.unit(kind)
        fine = np.isfinite(steps).all(axis=1) & (np.abs(steps) < 2 * STEPS).all(axis=1)
        whole = np.where(fine[:, None], steps, 0.0).astype(np.int64)  # towards 0
        return np.where(stays_inside(whole, self.norm)[:, None], whole, 0)


@dataclass(frozen=True, eq=False)
class CentredScores:
    """What is summed of some records, not yet in whole steps."""

    clipped: FloatArray  # shape (records, points + 1, parameters)
    expected: FloatArray  # shape (records, parameters)
    is_known: BoolArray  # shape (records,): whether a record has a score
    curvature: FloatArray  # shape (records, pairs)
    factor: FloatArray  # shape (records,): of the covariates alone
    # shape (records, 1): how much of the outcome lies where it is counted, from 0 to 1
    shape: FloatArray
    # shape (records, 1): how much of it lies above its median, from 0 to 1
    above: FloatArray
    centring: Centring

    @property
    def scores(self) -> FloatArray:
        """The centred scores of the records, shape (records, parameters); 0 for one
        that has none.
        """
        factor = np.where(self.is_known, self.factor, 0.0)
        return factor[:, None] * (self.clipped[:, 0] - self.expected)

    @property
    def at_points(self) -> FloatArray:
        """The centred scores that the records would have at points of their outcomes,
        shape (records, points, parameters).
        """
        apart = self.clipped[:, 1:] - self.expected[:, None]
        return self.factor[:, None, None] * apart

    @property
    def squares(self) -> FloatArray:
        """The products of entries of the records' scores, shape (records, pairs)."""
        scores = self.scores
        rows, columns = self.centring.pairs
        products: NDArray[np.float64] = scores[:, rows] * scores[:, columns]
        return products * self.centring.doubled

    def total(self) -> dict[Kind, IntArray]:
        """Return the sums over these records in whole steps."""
        by_kind: dict[Kind, FloatArray] = {
            "scores": self.scores,
            "curvature": self.curvature,
            "shape": self.shape,
            "above": self.above,
            "squares": self.squares,
        }
        return {
            kind: self.centring.whole(values, kind).sum(axis=0)
            for kind, values in by_kind.items()
        }
