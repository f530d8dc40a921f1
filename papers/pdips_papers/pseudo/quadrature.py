"""Posteriors of models with one to three parameters, by a lattice: for published forms and studies, never private."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.posterior.censoring import check_weights
from pdips.posterior.columns import Values
from pdips.posterior.model import constrained, initial, split
from pdips.posterior.pseudo_posterior import largest
from pdips.posterior.record_likelihood import RecordLikelihood
from pdips_papers.pseudo import lattice


def bounded_sums(
    terms: FloatArray, weights: FloatArray | None, counts: NDArray[Any] | None, window: float = np.inf
) -> FloatArray:
    """Return sums over records, shape (points,), of weighted log-likelihoods within a window.

    ``terms``, shape (points, records), are spoilt. A record of weight 0 plays no part; NaN counts as impossible.
    """
    if weights is not None:
        with np.errstate(invalid="ignore"):
            terms *= weights
    np.clip(terms, -window, window, out=terms)
    sums: FloatArray = terms.sum(axis=1) if counts is None else terms @ counts
    for row in np.flatnonzero(np.isnan(sums)):  # seldom: 0 times infinity, or a log-likelihood that isn't a number
        known = np.where(np.isnan(terms[row]), -window, terms[row])
        if weights is not None:
            known = np.where(weights == 0, 0.0, known)
        sums[row] = known.sum() if counts is None else (known * counts)[counts > 0].sum()
    return sums


class Quadrature:
    """The posterior of a model with one to three real parameters, which refits without compiling again.

    prior(theta) exp(sum_i counts_i clip(weights_i log p(x_i | theta))), clipped at ± ``window``, in the unconstrained
    space of PyMC, Jacobians included. It reads all records at once and adapts to them, so nothing that it gives is
    private. ``mode`` "FAST_COMPILE" compiles in a fraction of a second; "NUMBA" takes seconds, and pays for costly
    densities after thousands of fits.
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
        self._likelihood, self._mode, self._tolerance = RecordLikelihood(model, columns=values), mode, tolerance
        self._start = initial(model)
        if self._start.size > lattice.MOST_DIMENSIONS:
            raise InputError(f"a lattice takes one to three parameters, and the model has {self._start.size}; use NUTS")
        self.values = values
        self.update(**settings)

    def update(
        self,
        values: Values | None = None,
        *,
        weights: FloatArray | None = None,
        counts: NDArray[Any] | None = None,
        window: float = np.inf,
    ) -> Self:
        """Refit to new records (the old ones if left out), with these weights, numbers of each record, and window."""
        self.values = self.values if values is None else values
        n_rows = len(next(iter(self.values.values())))
        if not window > 0:
            raise InputError(f"window must be above 0, got {window}")
        if counts is not None and np.shape(counts) != (n_rows,):
            raise InputError("counts must have one whole number for each row")
        self.weights = None if weights is None else check_weights(weights, n_rows)
        self.counts, self.window = counts, window
        self.__dict__.pop("lattice", None)
        return self

    @cached_property
    def lattice(self) -> lattice.Lattice:
        """The law of the unconstrained parameters."""
        return lattice.fit(self.log_density, self._start, tolerance=self._tolerance)

    def log_density(self, points: FloatArray) -> FloatArray:
        """Return the log density at unconstrained points, shape (points, d), up to a constant."""
        each = split(self._likelihood.model, points)
        with np.errstate(all="ignore"):
            found = np.broadcast_to(self._likelihood.log_prior(each), len(points)).astype(np.float64)
        for rows, terms in self._likelihood.blocks(self.values, each, self._mode):
            found[rows] += bounded_sums(terms, self.weights, self.counts, self.window)
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

    def largest(self, draws: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Return max over draws of abs(log-likelihood) of each record, shape (records,); NaN counts as infinite."""
        points = [np.asarray(draws[value.name]) for value in self._likelihood.model.value_vars]
        return largest(self._likelihood.blocks(self.values, points, self._mode))
