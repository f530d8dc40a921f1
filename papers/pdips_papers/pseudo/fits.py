"""Fits that read the whole table and adapt to it: for the published forms of paper 004, never private."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.posterior.columns import Values, distinct
from pdips.posterior.model import Blueprint
from pdips_papers.pseudo.quadrature import Quadrature

COMPILED = 200_000
"""Distinct records from which on it pays to compile the log-likelihood for speed."""


class ByLattice:
    """Posteriors of a model with few parameters, by quadrature; equal records are one row."""

    name = "quadrature"
    independent = True

    def __init__(self, space: Blueprint, values: Values, n_draws: int, rng: np.random.Generator) -> None:
        rows, self.counts = distinct(values, None)
        self.values: Values = rows
        mode = "NUMBA" if len(self.counts) > COMPILED else "FAST_COMPILE"
        self._quadrature = Quadrature(space.model, rows, counts=self.counts, mode=mode)
        self._names = [variable.name for variable in space.model.free_RVs]
        self._n_draws, self._rng = n_draws, rng

    def largest(self, weights: FloatArray | None, window: float = np.inf) -> FloatArray:
        """Fit with some weights and a window, and return the largest log-likelihood of each row."""
        self.fit(weights, window)
        return self._quadrature.largest(self._quadrature.draws(self._n_draws, self._rng))

    def fit(self, weights: FloatArray | None, window: float = np.inf) -> None:
        """Fit with some weights; weighted log-likelihoods are kept within the window."""
        self._quadrature.update(weights=weights, window=window)

    def several(self, n: int) -> list[dict[str, NDArray[Any]]]:
        """Return n fresh draws of the free variables from the last fit."""
        draws = self._quadrature.draws(n, self._rng)
        return [{name: draws[name][row] for name in self._names} for row in range(n)]

    @property
    def convergence(self) -> dict[str, float]:
        """Return how good the last fit is."""
        return {"total variation distance to half the lattice": self._quadrature.error}
