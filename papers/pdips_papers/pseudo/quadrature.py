"""Posteriors of models with one to three parameters, by a lattice: for published forms and studies, never private."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.posterior.censoring import CLIPS, Clip, check_weights
from pdips.posterior.columns import Values
from pdips.posterior.model import constrained, initial, split
from pdips.posterior.pseudo_posterior import largest
from pdips.posterior.record_likelihood import RecordLikelihood
from pdips.privacy.loss import choice
from pdips_papers.pseudo import lattice

HELD = 50_000_000
"""Log-likelihoods that may be held, for whoever asks for all of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """What is integrated: prior(theta) times exp(sum_i counts_i s(weights_i (log p(x_i | theta) - centre_i))).

    Parameters
    ----------
    values : mapping of str to ndarray, shape (records,)
        The columns; see ``columns.record_values``.
    weights : ndarray, shape (records,), optional
        Between 0 and 1; None for 1. A record of weight 0 plays no part.
    centre : ndarray, shape (records,), or float
        What is taken from the log-likelihood before it is clipped. A record without a finite one plays no part.
    counts : ndarray, shape (records,), optional
        How many records each row stands for; None for one each.
    window : float
        s maps into [-window, window]; infinite: s leaves everything as it is.
    clip : {"hard", "tanh", "algebraic"}
        s(u) = min(max(u, -w), w), w tanh(u / w) or w u / (w + abs(u)).
    """

    values: Values
    weights: FloatArray | None = None
    centre: FloatArray | float = 0.0
    counts: NDArray[Any] | None = None
    window: float = np.inf
    clip: Clip = "hard"

    def __post_init__(self) -> None:
        choice(self.clip, CLIPS, "clip")
        if not self.window > 0:
            raise InputError(f"window must be above 0, got {self.window}")
        if self.weights is not None:
            object.__setattr__(self, "weights", check_weights(self.weights, self.n_rows))
        centre = np.asarray(self.centre, dtype=np.float64)
        if centre.shape not in {(), (self.n_rows,)}:
            raise InputError("centre must be one number, or one for each record")
        if not np.isfinite(centre).all():
            weights = np.ones(self.n_rows) if self.weights is None else self.weights
            object.__setattr__(self, "weights", np.where(np.isfinite(centre), weights, 0.0))
            object.__setattr__(self, "centre", np.where(np.isfinite(centre), centre, 0.0))
        if self.counts is not None and np.shape(self.counts) != (self.n_rows,):
            raise InputError("counts must have one whole number for each row")

    @property
    def n_rows(self) -> int:
        """Number of rows of the columns."""
        return len(next(iter(self.values.values())))

    def total(self, log_likelihood: FloatArray) -> FloatArray:
        """Return sums over records, shape (points,), of log-likelihoods, shape (points, records), which it spoils."""
        terms = log_likelihood
        if np.any(self.centre):
            terms -= self.centre
        if self.weights is not None:
            with np.errstate(invalid="ignore"):
                terms *= self.weights
        self._clip(terms)
        sums = terms.sum(axis=1) if self.counts is None else terms @ self.counts
        for row in np.flatnonzero(np.isnan(sums)):  # seldom: 0 times infinity, or a log-likelihood that isn't a number
            sums[row] = self._careful_sum(terms[row])
        found: FloatArray = sums
        return found

    def _clip(self, terms: FloatArray) -> None:
        if np.isinf(self.window):
            return
        if self.clip == "hard":
            np.clip(terms, -self.window, self.window, out=terms)
            return
        if self.clip == "tanh":
            terms /= self.window
            np.tanh(terms, out=terms)
            terms *= self.window
        else:
            with np.errstate(invalid="ignore"):
                bent = terms / (1 + np.abs(terms) / self.window)
            terms[...] = np.where(np.isinf(terms), np.sign(terms) * self.window, bent)

    def _careful_sum(self, terms: FloatArray) -> float:
        known = np.where(np.isnan(terms), -self.window, terms)
        if self.weights is not None:
            known = np.where(self.weights == 0, 0.0, known)
        return float(known.sum() if self.counts is None else (known * self.counts)[self.counts > 0].sum())


class Quadrature:
    """The posterior of a model with one to three unconstrained parameters, which refits without compiling again.

    It reads all records at once and adapts to them, so nothing that it gives is private.

    Parameters
    ----------
    model : pymc.Model
        The model, with columns as ``pm.Data`` (``model_file.Blueprint``).
    values : mapping of str to ndarray, shape (records,)
        The columns that the model reads, and any others.
    weights, centre, counts, window, clip
        See :class:`Target`.
    tolerance : float
        Total variation distance; see :func:`lattice.fit`.
    mode : str
        Of the compiled log-likelihood: "FAST_COMPILE" takes a fraction of a second to compile, "NUMBA" seconds,
        once a model, and pays for costly densities after thousands of fits.

    Raises
    ------
    InputError
        If the model has a discrete parameter or more than three, weights are outside [0, 1], or no peak is found.

    Notes
    -----
    In the unconstrained space of PyMC, Jacobians included. The error report is ``error``.
    """

    def __init__(
        self,
        model: pm.Model,
        values: Values,
        *,
        tolerance: float = 0.01,
        mode: str = "FAST_COMPILE",
        **settings: Any,
    ) -> None:
        discrete = [value.name for value in model.value_vars if not value.dtype.startswith("float")]
        if discrete:
            raise InputError(f"parameter {discrete[0]!r} is discrete; a lattice is of real numbers")
        self._likelihood, self._mode = RecordLikelihood(model, columns=values), mode
        self._start = initial(model)
        if self._start.size > lattice.MOST_DIMENSIONS:
            raise InputError(f"a lattice takes one to three parameters, and the model has {self._start.size}; use NUTS")
        self._tolerance = tolerance
        self._lattice: lattice.Lattice | None = None
        self.target = Target(values=values, **settings)

    def update(self, **changed: Any) -> Self:
        """Change some of values, weights, centre, counts, window and clip, and return itself.

        New values without weights, centre or counts drop the old ones, which were of other records.
        """
        if "values" in changed:
            changed = {"weights": None, "centre": 0.0, "counts": None, **changed}
        self.target = replace(self.target, **changed)
        self._lattice = None
        return self

    @property
    def lattice(self) -> lattice.Lattice:
        """The law of the unconstrained parameters."""
        if self._lattice is None:
            self._lattice = lattice.fit(self.log_density, self._start, tolerance=self._tolerance)
        return self._lattice

    @property
    def error(self) -> float:
        """Total variation distance between the law and the one that half the lattice gives."""
        return self.lattice.error

    def log_density(self, points: FloatArray) -> FloatArray:
        """Return the log density at unconstrained points, shape (points, d), up to a constant."""
        each = split(self._likelihood.model, points)
        with np.errstate(all="ignore"):
            found = np.broadcast_to(self._likelihood.log_prior(each), len(points)).astype(np.float64)
        for rows, terms in self._likelihood.blocks(self.target.values, each, self._mode):
            found[rows] += self.target.total(terms)
        return found

    def draws(self, n: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Return independent draws of the free variables and their value variables, shape (n, ...) each."""
        return self._named(self.lattice.draws(n, rng))

    def nodes(self) -> tuple[dict[str, FloatArray], FloatArray]:
        """Return the free variables at the nodes of the lattice, and the probability of each node."""
        points, weights = self.lattice.nodes()
        return self._named(points), weights

    def _named(self, points: FloatArray) -> dict[str, FloatArray]:
        model = self._likelihood.model
        each = constrained(model, points)
        values = dict(zip((value.name for value in model.value_vars), split(model, points), strict=True))
        return values | {name: np.stack([draw[name] for draw in each]) for name in each[0]}

    def log_likelihoods(self, draws: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Return the log-likelihood of each record at each draw, shape (draws, records), neither weighted nor clipped.

        Raises
        ------
        InputError
            If there are too many to hold; see :meth:`largest`.
        """
        points = self._points(draws)
        if len(points[0]) * self.target.n_rows > HELD:
            raise InputError(f"more than {HELD:,} log-likelihoods: ask for the largest of each record")
        return np.concatenate([terms for _, terms in self._likelihood.blocks(self.target.values, points, self._mode)])

    def largest(self, draws: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Return max over draws of abs(log-likelihood) of each record, shape (records,); NaN counts as infinite."""
        return largest(self._likelihood.blocks(self.target.values, self._points(draws), self._mode))

    def _points(self, draws: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        return [np.asarray(draws[value.name]) for value in self._likelihood.model.value_vars]
