"""What a model says of groups: their predictors are normal with a mean and a spread
that follow from a few parameters, whose prior is the analyst's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.groups.design import GroupDesign

LOG_TWO_PI = float(np.log(2 * np.pi))
EFFECT = "effect"


@dataclass(frozen=True)
class Slopes:
    """Several effects in common, as an intercept and a slope: each counts for as much
    as a group's covariates say.

    Parameters
    ----------
    loadings : ndarray
        What standard normal effects count for, shape (groups with effects in common,
        effects).
    means : ndarray
        Of the effects as the model has them, shape (effects,).
    root : ndarray
        Of their covariance: ``means + root @ z`` are the effects, z standard normal.
    """

    loadings: FloatArray
    means: FloatArray
    root: FloatArray

    def natural(self, standard: FloatArray) -> FloatArray:
        """Return effects as the model has them, shape (..., effects) as given."""
        return np.asarray(self.means + standard @ self.root.T)


@dataclass(frozen=True)
class Spread:
    """Where the predictors of groups lie, and how far records are from them.

    A group's predictor is an effect, normal with this mean and spread, and an offset
    where several groups have that effect in common. With several effects it is the mean
    and an offset, and each standard normal effect times its loading.

    With a ``relation`` effects go with sizes: the mean moves by as much as this with
    each deviation of the log of how many records there are, and ``spread`` is what is
    left about it.
    """

    mean: float
    spread: float
    deviation: float  # of records about their group, where the outcome is normal
    # shape (groups with an effect in common,)
    offsets: FloatArray = field(default_factory=lambda: np.zeros(1))
    slopes: Slopes | None = None
    relation: float = 0.0

    @property
    def variance(self) -> float:
        """Of effects among all groups, large and small."""
        return self.spread**2 + self.relation**2

    def predictors(self, effects: FloatArray, group: IntArray) -> FloatArray:
        """Return the predictor of each group, shape (groups,), at what
        :meth:`pdips.groups.quadrature.GroupQuadrature.sample` draws.
        """
        effect, within = np.divmod(group, len(self.offsets))
        if self.slopes is None:
            return np.asarray(effects[effect] + self.offsets[within])
        off = (effects[effect] * self.slopes.loadings[within]).sum(axis=1)
        return np.asarray(self.mean + self.offsets[within] + off)


class Hierarchy(ABC):
    """Parameters that all groups have in common, on an unconstrained scale."""

    @property
    @abstractmethod
    def start(self) -> FloatArray:
        """Parameters at which a search may begin, shape (parameters,)."""

    @abstractmethod
    def spread(self, place: FloatArray) -> Spread:
        """Return what parameters say of the groups."""

    @abstractmethod
    def log_prior(self, place: FloatArray) -> float:
        """Return the log prior density on the unconstrained scale."""

    @abstractmethod
    def named(
        self, places: FloatArray, predictors: FloatArray
    ) -> Mapping[str, FloatArray]:
        """Return draws by the names of the model's variables, shape (draws, ...), of
        parameters, shape (draws, parameters), and of effects with their mean, shape
        (draws, effects); standard normal ones, shape (draws, groups, effects), where
        there are several of a group.
        """

    @property
    @abstractmethod
    def effects(self) -> Mapping[str, int]:
        """The names of variables that have entries for each group, and which of their
        axes is that of groups.
        """

    @property
    def has_relation(self) -> bool:
        """Whether effects may go with sizes."""
        return False

    @property
    def terms(self) -> tuple[str, ...]:
        """What the effects of a group are called, where it has several."""
        return ()

    @property
    def dims(self) -> Mapping[str, tuple[str, ...]]:
        """Dimensions of the other variables that have any."""
        return {}

    @property
    def coords(self) -> Mapping[str, Sequence[Any]]:
        """Labels of these dimensions."""
        return {}


# The largest correlation of effects with sizes: beyond it what is left of the spread is
# narrower than the distance of points on grids
MOST_CORRELATED = 0.9
# Prior deviation of the inverse hyperbolic tangent of its share of that: 95 % of the
# prior lie between -.68 and .68
CORRELATION_SPREAD = 0.5
# Groups from which such a correlation is part of the model: of fewer ones it is hardly
# known, and their intervals would be wider by it (``benchmarks.groups``)
FEWEST_CORRELATED = 300


@dataclass(frozen=True)
class PlainHierarchy(Hierarchy):
    """The model ``outcome ~ 1 + (1 | group)`` with weak priors of the schema's bounds:
    normal for the mean, half-normal for spread and deviation. Of many groups effects
    may be correlated with the logs of sizes; ``spread`` is that of all groups all the
    same.
    """

    is_normal: bool
    middle: float
    scale: float  # of the mean's prior
    spread_scale: float
    deviation_scale: float
    is_correlated: bool = False

    @classmethod
    def of(cls, design: GroupDesign) -> "PlainHierarchy":
        """Return the hierarchy of a design."""
        lower, upper = design.range
        half = (upper - lower) / 2
        has_many = design.n_effects >= FEWEST_CORRELATED
        if design.family == "normal":
            middle = (lower + upper) / 2
            return cls(True, middle, half, half / 2, half, has_many)
        middle = float(np.log((upper + 1) / 4)) if design.family == "poisson" else 0.0
        return cls(False, middle, 1.5, 1.0, 1.0, has_many)

    @property
    def _scales(self) -> tuple[float, ...]:
        """Of the half-normal priors."""
        scales = (self.spread_scale, self.deviation_scale)
        return scales[: 1 + self.is_normal]

    @property
    def start(self) -> FloatArray:
        scales = np.log(np.divide(self._scales, 3))
        unrelated = [0.0] if self.is_correlated else []
        return np.array([self.middle, *scales, *unrelated])

    def spread(self, place: FloatArray) -> Spread:
        deviation = np.exp(place[2]) if self.is_normal else 1.0
        of_all = float(np.exp(place[1]))
        [correlation] = self._correlation(place[None])
        left = of_all * float(np.sqrt(1 - correlation**2))
        moved = of_all * float(correlation)
        return Spread(float(place[0]), left, float(deviation), relation=moved)

    def log_prior(self, place: FloatArray) -> float:
        centred = (place[0] - self.middle) / self.scale
        total = -(centred**2) / 2
        if self.is_correlated:
            total -= (place[-1] / CORRELATION_SPREAD) ** 2 / 2
        for log_value, scale in zip(place[1:], self._scales, strict=False):
            # a half-normal density, and the Jacobian of the logarithm
            total += log_value - np.exp(2 * log_value) / (2 * scale**2)
        return float(total)

    @property
    def effects(self) -> Mapping[str, int]:
        return {EFFECT: 0}

    @property
    def has_relation(self) -> bool:
        return self.is_correlated

    def _correlation(self, places: FloatArray) -> FloatArray:
        """Return that of effects with sizes, shape (draws,), of parameters of shape
        (draws, parameters).
        """
        if not self.is_correlated:
            return np.zeros(len(places))
        return np.asarray(MOST_CORRELATED * np.tanh(places[:, -1]))

    def named(
        self, places: FloatArray, predictors: FloatArray
    ) -> Mapping[str, FloatArray]:
        draws = {"mean": places[:, 0], "spread": np.exp(places[:, 1])}
        if self.is_normal:
            draws["sigma"] = np.exp(places[:, 2])
        if self.is_correlated:
            draws["size_correlation"] = self._correlation(places)
        draws[EFFECT] = predictors - places[:, :1]
        return draws
