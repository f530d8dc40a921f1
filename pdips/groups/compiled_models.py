"""A mixed model that a person wrote, compiled: its linear predictor and priors at the
parameters that groups have in common.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pytensor.graph.traversal import ancestors

from pdips.arrays import FloatArray
from pdips.posterior.interpreted import LIGHT


@dataclass(frozen=True)
class GroupVector:
    """A variable with entries for each group: several, where it has two axes.

    Parameters
    ----------
    variable : variable
        Of the model.
    shape : tuple of int
        Its shape there.
    axis : int
        The axis of groups.
    """

    variable: Any
    shape: tuple[int, ...]
    axis: int

    @property
    def name(self) -> str:
        return str(self.variable.name)

    @property
    def n_terms(self) -> int:
        return math.prod(self.shape) // self.shape[self.axis]

    def terms(self, model: pm.Model) -> list[str]:
        """Return what its effects of a group are called."""
        if len(self.shape) == 1:
            return [self.name]
        dims = model.named_vars_to_dims.get(self.name, (None, None))
        labels = model.coords.get(dims[1 - self.axis]) or range(self.n_terms)
        return [f"{self.name}[{label}]" for label in labels]

    def by_term(self, entries: FloatArray) -> FloatArray:
        """Return its entries, shape (terms, groups)."""
        whole = np.broadcast_to(entries, self.shape)
        return np.moveaxis(whole, self.axis, -1).reshape(self.n_terms, -1)

    def given(self, by_term: FloatArray) -> FloatArray:
        """Return its entries as the model has them, of shape (terms, groups)."""
        whole = by_term if len(self.shape) > 1 else by_term[0]
        return np.moveaxis(whole, -1, self.axis)

    def drawn(self, effects: FloatArray) -> FloatArray:
        """Return draws of it, of shape (draws, groups, terms)."""
        if len(self.shape) == 1:
            return effects[..., 0]
        return np.moveaxis(effects, 1, 1 + self.axis)

    def law(self, mean: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return means, shape (groups, terms), and roots of covariances, shape (groups,
        terms, terms), of a prior: ``scale`` are deviations, or a covariance.
        """
        means = self.by_term(mean).T
        if self.variable.owner.op.name == "normal":
            deviations = self.by_term(scale).T
            return means, deviations[:, :, None] * np.eye(self.n_terms)
        shape = (len(means), self.n_terms, self.n_terms)
        try:
            roots = np.linalg.cholesky(np.broadcast_to(scale, shape))
        except np.linalg.LinAlgError:
            # far from the mode, where parameters have no density
            roots = np.full(shape, np.nan)
        return means, roots


@dataclass(frozen=True)
class GroupLaws:
    """What a model says at given parameters.

    Parameters
    ----------
    base : ndarray
        The predictor where a group's entries are 0, shape (covariates,).
    factors : ndarray
        How much each entry counts, shape (covariates, terms).
    means : ndarray
        Of the prior of entries, shape (terms,).
    root : ndarray
        Of its covariance, shape (terms, terms).
    deviation : float
        Of records.
    """

    base: FloatArray
    factors: FloatArray
    means: FloatArray
    root: FloatArray
    deviation: float


class CompiledMixedModel:
    """What is worked out of a model at the parameters that groups have in common.

    Parameters
    ----------
    model : pymc.Model
        As it was built, on a record of each combination of group and covariates, those
        of a group one after the other.
    vectors : list of GroupVector
        With entries for each group, which have a normal prior.
    link : callable
        Of the family.
    """

    def __init__(
        self,
        model: pm.Model,
        vectors: list[GroupVector],
        link: Callable[[FloatArray], FloatArray],
    ) -> None:
        self.vectors = vectors
        by_group = [one.variable for one in vectors]
        self.others = [one for one in model.free_RVs if one not in by_group]
        self.link = link
        self.values = [model.rvs_to_values[one] for one in self.others]
        initial = model.initial_point()
        parts = [np.asarray(initial[value.name], np.float64) for value in self.values]
        self.shapes = [part.shape for part in parts]
        self.dtypes = [value.dtype for value in self.values]
        flat = [part.ravel() for part in parts]
        self.start = np.concatenate(flat) if flat else np.empty(0)
        self.n_entries = vectors[0].shape[vectors[0].axis]
        self.n_terms = sum(one.n_terms for one in vectors)
        prior = pm.math.constant(0.0)
        if self.others:
            prior = model.logp(vars=self.others, sum=True)
        self.log_prior = _function(self.values, [prior])
        # as the author has them, with what follows from them alone
        self.named = [*self.others, *_common(model, by_group)]
        natural = model.replace_rvs_by_values(list(self.named))
        self.natural = _function(self.values, natural, several=True)
        mean, deviation = _parameters_of(model.observed_RVs[0])
        asked = model.replace_rvs_by_values([mean, deviation])
        entries = [model.rvs_to_values[one] for one in by_group]
        self._record = _function([*self.values, *entries], asked, several=True)
        laws = [
            number for one in by_group for number in one.owner.op.dist_params(one.owner)
        ]
        law = model.replace_rvs_by_values(laws)
        self._law = _function(self.values, law, several=True)

    def split(self, place: FloatArray) -> list[NDArray[Any]]:
        """Return the values of each variable."""
        parts = []
        first = 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            size = int(np.prod(shape))
            part = place[first : first + size].reshape(shape)
            parts.append(part.astype(dtype))
            first += size
        return parts

    def of_vectors(self, by_term: FloatArray) -> list[FloatArray]:
        """Return the entries of each vector, of shape (..., terms) of all."""
        ends = np.cumsum([one.n_terms for one in self.vectors])[:-1]
        return np.split(by_term, ends, axis=-1)

    def record(
        self, place: FloatArray, entries: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the linear predictor of each record, shape (groups, covariates), and
        its deviation, at entries of shape (groups, terms).
        """
        given = [
            one.given(part.T).astype(one.variable.dtype)
            for one, part in zip(self.vectors, self.of_vectors(entries), strict=True)
        ]
        mean, deviation = self._record(*self.split(place), *given)
        with np.errstate(all="ignore"):
            predictor = self.link(np.asarray(mean, np.float64))
        # a model without covariates may give one number for all records
        whole = np.broadcast_to(predictor.ravel(), self._length_of(predictor))
        return whole.reshape(self.n_entries, -1), np.asarray(deviation)

    def _length_of(self, predictor: FloatArray) -> int:
        return max(predictor.size, self.n_entries)

    def law(self, place: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return means of the prior of entries, shape (groups, terms), and roots of
        their covariances, shape (groups, terms, terms).
        """
        numbers = self._law(*self.split(place))
        means = []
        roots = np.zeros((self.n_entries, self.n_terms, self.n_terms))
        first = 0
        for number, one in enumerate(self.vectors):
            some, root = one.law(*numbers[2 * number : 2 * number + 2])
            means.append(some)
            own = slice(first, first + one.n_terms)
            roots[:, own, own] = root
            first += one.n_terms
        return np.concatenate(means, axis=1), roots

    def laws(self, place: FloatArray) -> GroupLaws:
        """Return what the model says at parameters."""
        shape = (self.n_entries, self.n_terms)
        zero, deviation = self.record(place, np.zeros(shape))
        factors = []
        for entry in np.eye(self.n_terms):
            one, _ = self.record(place, np.broadcast_to(entry, shape))
            factors.append(one[0] - zero[0])
        means, roots = self.law(place)
        return GroupLaws(
            base=np.array(zero[0]),
            factors=np.array(factors).T,
            means=means[0],
            root=roots[0],
            deviation=float(np.ravel(deviation)[0]),
        )


def vectors_by_group(model: pm.Model, n_entries: int) -> list[GroupVector]:
    """Return the variables with entries for each group: each entry moves the records of
    its group alone.
    """
    moves = _Moves(model, n_entries)
    found = []
    for number, one in enumerate(model.free_RVs):
        shape = moves.at[number].shape
        if len(shape) > 2:
            continue
        for axis, size in enumerate(shape):
            if size == n_entries and moves.is_by_group(number, axis):
                found.append(GroupVector(one, shape, axis))
                break
    return found


class _Moves:
    """Which groups' records are moved by which entries of variables."""

    def __init__(self, model: pm.Model, n_entries: int) -> None:
        values = [model.rvs_to_values[one] for one in model.free_RVs]
        mean, _ = _parameters_of(model.observed_RVs[0])
        self.n_entries = n_entries
        self.function = _function(values, model.replace_rvs_by_values([mean]))
        rng = np.random.default_rng(0)
        initial = model.initial_point()
        self.at = []
        for value in values:
            start = np.asarray(initial[value.name])
            moved = start + 0.3 * rng.standard_normal(start.shape)
            self.at.append(np.asarray(moved, value.dtype))
        self.before = np.asarray(self.function(*self.at))

    def is_by_group(self, number: int, axis: int) -> bool:
        """Return whether entries along an axis of a variable are by group."""
        if self.before.size < self.n_entries:
            return False
        for entry in {0, 1, self.n_entries - 1}:
            moved = np.moveaxis(self.at[number].copy(), axis, 0)
            moved[entry] += 1
            given = [*self.at]
            given[number] = np.moveaxis(moved, 0, axis)
            off = np.asarray(self.function(*given)) != self.before
            groups = np.flatnonzero(off.reshape(self.n_entries, -1).any(axis=1))
            if groups.tolist() != [entry]:
                return False
        return True


def _common(model: pm.Model, by_group: list[Any]) -> list[Any]:
    """Return the deterministic variables that are neither by group nor by record."""
    others = {*by_group, *model.data_vars, *model.observed_RVs}
    return [
        one
        for one in model.deterministics
        if others.isdisjoint(ancestors([one])) and one.owner is not None
    ]


def _function(inputs: list[Any], outputs: list[Any], several: bool = False) -> Any:
    """Compile a function of value variables; of one output alone if not several."""
    return pytensor.function(
        inputs,
        outputs if several else outputs[0],
        mode=LIGHT,
        on_unused_input="ignore",
    )


def _parameters_of(observed: Any) -> tuple[Any, Any]:
    """Return the mean of an outcome and its deviation, which is 1 where the family
    has none.
    """
    inputs = observed.owner.op.dist_params(observed.owner)
    kind = observed.owner.op.name
    if kind == "normal":
        return inputs[0], inputs[1]
    if kind == "binomial":
        return inputs[1], pm.math.constant(1.0)
    return inputs[0], pm.math.constant(1.0)
