"""What the outcomes of a record may be given its covariates: points that stand for all
of it, how likely each is, and the score of the record there.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.continuous import TruncatedNormalRV
from pymc.distributions.truncated import TruncatedRV
from pymc.pytensorf import constant_fold
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from scipy.stats import norm

from pdips.arrays import BoolArray, FloatArray
from pdips.errors import InputError
from pdips.graphs.repetition import over_records
from pdips.posterior.columns import SUFFIX, Relabelling, Values, bounds_of, stand_ins
from pdips.posterior.interpreted import BY_NUMPY, runs_well
from pdips.posterior.model import Blueprint, split
from pdips.posterior.record_likelihood import (
    RecordLikelihood,
    inputs_of,
    open_checks,
    with_parts_held,
)
from pdips.privacy.curator import tell
from pdips.scores.record_score import RecordScore, checked_lookups

# Points of a continuous outcome: quantiles of as many shares, evenly far apart on the
# scale of a standard normal distribution, up to so many standard deviations
QUANTILES = 45
FURTHEST = 5.5
# Records from which on what is known of one is compiled: seconds, and then each takes a
# fortieth of the time
COMPILED_FROM = 4_000
# What a value of a count weighs at most, at the reference and given any covariates, so
# that it is left out of what follows from public numbers
LEAST_LIKELY = 1e-30
# Combinations of outcomes that are counted out, and the most values of one
MOST_COMBINATIONS = 400
# How much further than to its upper bound the values of a count are looked at, and from
# 0: the model as written knows no bound
BEYOND = 2
# What is counted of outcomes, in deviations of a standard normal distribution: of a
# continuous one whether it lies in the middle or far out, as it does more often where
# tails are long, whatever the scale; of a count whether it lies out at all, as many
# have no scale of their own. Of nine pairs of cuts these had most power under noise on
# the wrong models and real tables of `benchmarks.moments` (2026-12-01)
MIDDLE = 0.75
FAR = 2.5
OUT = 1.5


@dataclass(frozen=True, eq=False)
class OutcomeLaw:
    """A model of one record whose outcomes are given as it observes them.

    Where the model observes a function of a column, such as its logarithm, the
    likelihood reads its values.
    """

    space: Blueprint
    likelihood: RecordLikelihood
    score: RecordScore

    @classmethod
    def of(cls, space: Blueprint) -> "OutcomeLaw":
        """Return that of a blueprint."""
        model = _model_of_observed(space)
        likelihood = RecordLikelihood(model, columns=space.columns)
        return cls(space, likelihood, RecordScore(likelihood))

    @cached_property
    def record(self) -> dict[str, Any]:
        """The columns of one record as a table has them, shape (1,) each."""
        columns = dict(self.likelihood.record)
        for name, column in inputs_of(self.space.model, columns).items():
            columns[name] = column.type.clone(shape=(1,))(name=name)
        return columns

    @cached_property
    def observed_record(self) -> tuple[dict[str, Any], bool]:
        """The columns of one record as the model observes them, as graphs of
        :attr:`record`: what is observed is worked out of each record alone. And whether
        all that they look up stays inside of what it is looked up in.
        """
        model = self.space.model
        given = {
            column: self.record[name]
            for name, column in inputs_of(model, self.record).items()
        }
        columns = dict(self.record)
        sure = True
        for name, made in self.space.transformations.items():
            if not isinstance(made, Relabelling):
                observed = model.rvs_to_values[model[name]]
                [graph] = clone_replace([observed], given, rebuild_strict=False)
                graph, is_inside = checked_lookups(graph, {*self.record.values()})
                columns[name] = pt.specify_shape(graph, (1,))
                sure = sure and is_inside
        return columns, sure

    def observed(self, values: Values) -> dict[str, NDArray[Any]]:
        """Return columns of public records with outcomes as the model observes them.

        Never of confidential ones: the function is run on whole columns.
        """
        columns = dict(values)
        for name, made in self.space.transformations.items():
            if name in columns and not isinstance(made, Relabelling):
                columns[name] = made.forward(columns[name])
        return columns

    def written(self, values: Values) -> dict[str, NDArray[Any]]:
        """Return columns of records with outcomes as the table has them."""
        columns = dict(values)
        for name, made in self.space.transformations.items():
            if name in columns and not isinstance(made, Relabelling):
                columns[name] = made.back(columns[name])
        return columns


def _model_of_observed(space: Blueprint) -> pm.Model:
    """Return the model of one stand-in that reads transformed outcomes as observed."""
    values = stand_ins(space.schema, 1)
    for name in space.synthesized:
        if _is_continuous(space, name):
            values[name] = np.asarray(values[name], dtype=np.float64)
    model = space.build(values)
    for name, made in space.transformations.items():
        if not isinstance(made, Relabelling):
            model.rvs_to_values[model[name]] = model[name + SUFFIX]
    return model


def _is_continuous(space: Blueprint, name: str) -> bool:
    """Whether a column is observed by itself as an outcome of a continuous law."""
    known = space.model.named_vars.get(name)
    return known is not None and known.dtype.startswith("float")


def quantiles_of(law: Any, shares: Any) -> Any:
    """Return the quantiles of a law, truncated by bounds or not, as a graph.

    Below a truncated law's quantile lies the same share of the law itself, between the
    shares below both bounds.

    Raises
    ------
    NotImplementedError
        If the law has no inverse distribution function.
    """
    node = law.owner
    is_truncated = isinstance(node.op, TruncatedRV)
    if not is_truncated and not isinstance(node.op, TruncatedNormalRV):
        return pm.icdf(law, shares)
    *inputs, lower, upper = node.inputs
    # bounds that are infinite are known by being constants
    bounds = constant_fold([lower, upper], raise_not_constant=False)
    if not is_truncated:
        return pm.icdf(node.op.make_node(*inputs, *bounds).outputs[1], shares)
    base = node.op.base_rv_op.make_node(*inputs).default_output()
    if not base.dtype.startswith("float"):
        raise NotImplementedError
    below, above = (_share_below(base, bound) for bound in bounds)
    return pm.icdf(base, below + shares * (above - below))


def _share_below(law: Any, bound: Any) -> Any:
    """Return the probability of a draw below a bound, which may be infinite."""
    if isinstance(bound, Constant) and np.isinf(bound.data).all():
        return pt.constant(float(bound.data.flat[0] > 0))
    return pt.exp(pm.logcdf(law, pt.cast(bound, law.dtype)))


@dataclass(frozen=True, eq=False)
class InnerPoints:
    """Points that stand for what the outcomes of a record may be.

    Those of discrete outcomes are the same for each record, all combinations of their
    values, and weigh what the model says of them. Those of a continuous one are its
    quantiles given the covariates, and weigh always the same.
    """

    law: OutcomeLaw
    # shape (points,), by outcome; empty for quantiles
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    # shape (points,): what quantiles weigh
    weights: FloatArray | None = None

    @classmethod
    def of(cls, space: Blueprint) -> "InnerPoints":
        """Return the points of a model's outcomes.

        Raises
        ------
        InputError
            If outcomes are many, or of a law without quantiles.
        """
        law = OutcomeLaw.of(space)
        wide = [name for name, names in space.observed.items() if names != (name,)]
        if wide:
            raise InputError(
                f"{wide[0]!r} observes several columns at once, beside confidential "
                f"covariates: observe each column by itself"
            )
        continuous = [n for n in space.synthesized if _is_continuous(space, n)]
        if not continuous:
            return cls(law, law.observed(_combinations(space)))
        if len(space.synthesized) > 1:
            raise InputError(
                f"{continuous[0]!r} is a continuous outcome beside others, and "
                f"covariates are confidential: model one outcome at a time, or declare "
                f"the covariates public"
            )
        shares = np.linspace(-FURTHEST, FURTHEST, QUANTILES)
        weights = norm.pdf(shares)
        return cls(law, {}, weights / weights.sum())

    @property
    def n(self) -> int:
        """How many points there are."""
        if self.weights is not None:
            return len(self.weights)
        return len(next(iter(self.values.values())))

    @property
    def by_levels(self) -> bool:
        """Whether all outcomes have levels, so that their scores are bounded."""
        columns = self.law.space.columns
        return all(columns[name].is_categorical for name in self.outcomes)

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The columns that the model describes."""
        return self.law.space.synthesized

    @property
    def one_number(self) -> bool:
        """Whether the only outcome is a number, so that it may lie far out."""
        return len(self.outcomes) == 1 and not self.by_levels

    def likely(self, weights: FloatArray) -> BoolArray:
        """Return which points matter somewhere, shape (points,), by what they weigh at
        public records, shape (records, points). Of a count with wide bounds few do.
        """
        if self.weights is not None or self.by_levels:
            return np.ones(self.n, dtype=bool)
        return np.asarray((weights > LEAST_LIKELY).any(axis=0))

    def only(self, kept: BoolArray) -> "InnerPoints":
        """Return some of the points of discrete outcomes."""
        if kept.all():
            return self
        return replace(self, values={n: each[kept] for n, each in self.values.items()})

    @cached_property
    def shape_of_quantiles(self) -> FloatArray:
        """Which quantiles are in the middle or far out, shape (points,); those at a cut
        in part, so that the mean over all is exact.
        """
        assert self.weights is not None
        below = [_below(self.weights, cut) for cut in (-FAR, -MIDDLE, MIDDLE, FAR)]
        return below[0] + below[2] - below[1] + 1 - below[3]

    @cached_property
    def _graph(self) -> Any:
        """A matrix with a row for the record itself and one for each point: the log
        density, the scores, and the outcome where points are quantiles.
        """
        record = self.law.likelihood.record
        own, _ = self.law.observed_record
        points: dict[str, Any] = {
            name: pt.as_tensor(values) for name, values in self.values.items()
        }
        if self.weights is not None:
            [outcome] = self.outcomes
            points[outcome] = self._quantiles[0]
        rows = {}
        for name, one in record.items():
            value = own[name].astype(one.dtype)
            if name in points:
                at = points[name].astype(one.dtype)
                rows[one] = pt.concatenate([value, at])
            else:
                rows[one] = pt.broadcast_to(value, (self.n + 1,))
        logs = over_records(self.law.score.term, rows)
        scores = over_records(self.law.score.slopes[None], rows)
        scores = pt.broadcast_to(scores, (self.n + 1, scores.shape[1]))
        parts = [logs[:, None], scores]
        if self.one_number:
            [outcome] = self.outcomes
            parts.append(rows[record[outcome]][:, None])
        return pt.concatenate([part.astype("float64") for part in parts], axis=1)

    @cached_property
    def _quantiles(self) -> tuple[Any, bool]:
        """The quantiles of the outcome of a record, shape (points,), as a graph of the
        value variables and the record's covariates; and whether all that they look up
        stays inside of what it is looked up in.
        """
        record = self.law.record
        model = self.law.likelihood.model
        [variable] = model.observed_RVs
        replaced = dict(
            zip(
                model.free_RVs,
                model.replace_rvs_by_values(model.free_RVs),
                strict=True,
            )
        )
        columns = inputs_of(model, record)
        replaced |= {columns[name]: one for name, one in record.items()}
        [law] = clone_replace([variable], replaced, rebuild_strict=False)
        shares = norm.cdf(np.linspace(-FURTHEST, FURTHEST, QUANTILES))
        try:
            quantiles = quantiles_of(law, pt.as_tensor(shares[:, None]))
        except NotImplementedError:
            raise InputError(
                f"no quantiles are known of the law of {variable.name!r}, which are "
                f"needed where covariates are confidential: take a law with an inverse "
                f"distribution function (pm.icdf), or declare the covariates public"
            ) from None
        quantiles = open_checks(quantiles, lambda _: True).reshape((QUANTILES,))
        return checked_lookups(quantiles, {*record.values()})

    @cached_property
    def _parts(self) -> tuple[Any, Any, list[Any]]:
        inputs = self.law.record.values()
        model = self.law.likelihood.model
        return with_parts_held(self._graph, inputs, model.value_vars)

    @property
    def _checked(self) -> bool:
        """Whether compiled code, which checks no bounds, looks up nothing beyond."""
        _, sure = self.law.observed_record
        if self.weights is not None:
            sure = sure and self._quantiles[1]
        return sure and self.law.score.checked

    def _function(self, mode: Any) -> Any:
        graph, _, _ = self._parts
        inputs = [*self.law.record.values()]
        with pytensor.config.change_flags(numba__fastmath=False):
            function = pytensor.function(
                inputs, graph, mode=mode, on_unused_input="ignore"
            )
        function.trust_input = True
        return function

    @cached_property
    def _single(self) -> Any:
        """What works out the matrix of one record, without compiling where numpy does
        it well.
        """
        if not self._checked:  # checks bounds, as compiled code doesn't
            return self._function("FAST_COMPILE")
        by_numpy = self._function(BY_NUMPY)
        return by_numpy if runs_well(by_numpy) else self._compiled

    @cached_property
    def _compiled(self) -> Any:
        if not self._checked:
            return self._single
        tell("compiling the score of one record")
        return self._function(None)

    def given(self, place: FloatArray) -> None:
        """Set the parameters, unconstrained, shape (parameters,)."""
        _, ahead, held = self._parts
        model = self.law.likelihood.model
        parts = split(model, np.asarray(place, dtype=np.float64)[None])
        point = [
            np.array(part[0], dtype=value.dtype)
            for value, part in zip(model.value_vars, parts, strict=True)
        ]
        for shared, value in zip(held, ahead(*point), strict=True):
            shared.set_value(value, borrow=True)

    def matrices(self, values: Values, expected: float = 0.0) -> FloatArray:
        """Return what is known of records, given one at a time, shape (records, points
        + 1, ...): the records themselves first.

        No number stands where something can't be worked out. ``expected`` is the public
        or noisy number of records, which says whether it pays to compile.
        """
        function = self._compiled if expected > COMPILED_FROM else self._single
        columns = [
            np.ascontiguousarray(values[name], dtype=one.dtype)[:, None]
            for name, one in self.law.record.items()
        ]
        rows = [list(row) for row in zip(*columns, strict=True)]
        width = self.law.space.n_parameters + 1 + self.one_number
        found = np.full((len(rows), self.n + 1, width), np.nan)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            # a warning, too, would tell of the record that it comes from
            warnings.simplefilter("ignore")
            for number, row in enumerate(rows):
                try:
                    found[number] = function(*row)
                except KeyboardInterrupt:
                    raise  # from outside
                except BaseException:  # noqa: BLE001 - it has seen one record, and must not tell of it
                    continue
        return found

    def split(self, matrices: FloatArray) -> "AtPoints":
        """Return what :meth:`matrices` returned by what it is."""
        last = -1 if self.one_number else None
        with np.errstate(all="ignore"):
            if self.weights is None:
                weights = _shares(matrices[:, 1:, 0])
            else:
                weights = np.broadcast_to(self.weights, matrices[:, 1:, 0].shape)
            shape = np.zeros(matrices.shape[:2])
            above = np.zeros(matrices.shape[:2])
            if self.one_number:
                shape = self._shape(weights, matrices[:, :, -1])
                above = self._above(weights, matrices[:, :, -1])
        scores = matrices[:, :, 1:last]
        return AtPoints(scores, weights, matrices[:, 1:, -1], shape, above)

    def _shape(self, weights: FloatArray, outcomes: FloatArray) -> FloatArray:
        """Return how much of each outcome lies where it is counted, between 0 and 1:
        shape (records, points + 1), the records themselves first.

        The mean given covariates is the same for all of them. Each record goes through
        the same operations: no sum along an axis.
        """
        shape = np.zeros_like(outcomes)
        own = outcomes[:, 0]
        if self.weights is not None:
            shape[:, 1:] = self.shape_of_quantiles
            at = {c: outcomes[:, 1 + _place(c)] for c in (-FAR, -MIDDLE, MIDDLE, FAR)}
            in_middle = (own > at[-MIDDLE]) & (own <= at[MIDDLE])
            shape[:, 0] = in_middle | (own <= at[-FAR]) | (own > at[FAR])
            return shape
        # each value has a share of [0, 1], and what of it lies out is counted
        [values] = self.values.values()
        below = np.zeros(len(outcomes))
        for k, value in enumerate(values):
            inside = [
                np.clip((norm.cdf(cut) - below) / weights[:, k], 0.0, 1.0)
                for cut in (-OUT, OUT)
            ]
            counted = 1.0 + inside[0] - inside[1]
            shape[:, 1 + k] = np.where(np.isnan(counted), 0.0, counted)
            shape[:, 0] = np.where(own == value, shape[:, 1 + k], shape[:, 0])
            below += weights[:, k]
        return shape

    def _above(self, weights: FloatArray, outcomes: FloatArray) -> FloatArray:
        """Return how much of each outcome lies above its median given covariates,
        between 0 and 1: shape (records, points + 1), the records themselves first.

        The mean given covariates is one half. Of a count it is what of the value's
        share of [0, 1] lies above the middle. No sum along an axis.
        """
        above = np.zeros_like(outcomes)
        own = outcomes[:, 0]
        if self.weights is not None:
            middle = _place(0.0)
            above[:, 1 + middle] = 0.5
            above[:, 2 + middle :] = 1.0
            above[:, 0] = own > outcomes[:, 1 + middle]
            return above
        [values] = self.values.values()
        below = np.zeros(len(outcomes))
        for k, value in enumerate(values):
            counted = 1.0 - np.clip((0.5 - below) / weights[:, k], 0.0, 1.0)
            above[:, 1 + k] = np.where(np.isnan(counted), 0.0, counted)
            above[:, 0] = np.where(own == value, above[:, 1 + k], above[:, 0])
            below += weights[:, k]
        return above


@dataclass(frozen=True, eq=False)
class AtPoints:
    """The scores of records as they are and at points of their outcomes, and what the
    points weigh.
    """

    scores: FloatArray  # shape (records, points + 1, parameters)
    weights: FloatArray  # shape (records, points)
    quantiles: FloatArray  # shape (records, points); of a continuous outcome
    # shape (records, points + 1): how much lies where it is counted, from 0 to 1
    shape: FloatArray
    above: FloatArray  # shape (records, points + 1): how much lies above the median

    def only(self, kept: BoolArray) -> "AtPoints":
        """Return what is known at some of the points, shape (points,)."""
        if kept.all():
            return self
        with_own = np.append(True, kept)
        return AtPoints(
            self.scores[:, with_own],
            self.weights[:, kept],
            self.quantiles[:, kept],
            self.shape[:, with_own],
            self.above[:, with_own],
        )


def _place(cut: float) -> int:
    """Return which quantile is so many deviations out."""
    return round((cut + FURTHEST) / (2 * FURTHEST) * (QUANTILES - 1))


def _below(weights: FloatArray, cut: float) -> FloatArray:
    """Return which points lie below a cut, shape (points,); the one at the cut in part,
    so that together they weigh what lies below.
    """
    place = _place(cut)
    below = np.zeros(len(weights))
    below[:place] = 1.0
    below[place] = (norm.cdf(cut) - weights[:place].sum()) / weights[place]
    return below


def _shares(logs: FloatArray) -> FloatArray:
    """Return probabilities of points by their log densities, shape (records, points),
    as shares of each row; 0 where there is no number.

    Each row goes through the same operations whatever others there are; exponentials,
    whose last bit may depend on the place in an array, are one call for each row.
    """
    logs = np.where(np.isnan(logs), -np.inf, logs)
    most = logs.max(axis=1, keepdims=True)
    fine = np.isfinite(most)
    below = logs - np.where(fine, most, 0.0)
    shares = np.empty_like(below)
    for share, row in zip(shares, below, strict=True):
        share[:] = np.exp(row)
    shares = np.where(fine, shares, 0.0)
    total = np.zeros(len(logs))
    for column in shares.T:
        total += column
    return np.asarray(shares / np.where(total > 0, total, 1.0)[:, None])


def _combinations(space: Blueprint) -> dict[str, NDArray[Any]]:
    """Return all combinations of the values of discrete outcomes."""
    by_outcome = []
    for name in space.synthesized:
        column = space.columns[name]
        lower, upper = bounds_of(column)
        if not column.is_categorical:
            upper = lower + BEYOND * (upper - lower)
            lower = min(lower, 0.0)
        by_outcome.append(np.arange(lower, upper + 1))
    n = int(np.prod([len(values) for values in by_outcome]))
    if n > MOST_COMBINATIONS:
        names = " and ".join(map(repr, space.synthesized))
        raise InputError(
            f"{names} can have {n:,} values, which are all looked at for each record "
            f"where covariates are confidential, and may be {MOST_COMBINATIONS}: "
            f"narrow the bounds, or declare the covariates public"
        )
    combined = np.array([*product(*by_outcome)])
    return dict(zip(space.synthesized, combined.T, strict=True))
