"""Fits that read the whole table and adapt to it: for the published forms of paper 004, never private."""

import importlib
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from pymc.model.transform.conditioning import remove_value_transforms

from pdips.arrays import FloatArray
from pdips.posterior import lattice
from pdips.posterior.columns import Values, distinct
from pdips.posterior.model import Blueprint
from pdips.posterior.pointwise import Likelihoods
from pdips.posterior.quadrature import Quadrature
from pdips.posterior.record_likelihood import inputs_of

COMPILED = 200_000
"""Distinct records from which on it pays to compile the log-likelihood for speed."""

CHAINS, TUNE, LEAST_DRAWS = 4, 1_000, 1_000


def has_few(blueprint: Blueprint) -> bool:
    """Whether a lattice takes the parameters of a model."""
    continuous = all(value.dtype.startswith("float") for value in blueprint.model.value_vars)
    return continuous and blueprint.n_parameters <= lattice.MOST_DIMENSIONS


class ByLattice:
    """Posteriors of a model with few parameters, by quadrature; equal records are one row."""

    name = "quadrature"
    independent = True

    def __init__(self, blueprint: Blueprint, values: Values, n_draws: int, rng: np.random.Generator) -> None:
        rows, self.counts = distinct(values, None)
        self.values: Values = rows
        mode = "NUMBA" if len(self.counts) > COMPILED else "FAST_COMPILE"
        self._quadrature = Quadrature(blueprint.model, rows, counts=self.counts, mode=mode)
        self._names = [variable.name for variable in blueprint.model.free_RVs]
        self._n_draws, self._rng = n_draws, rng

    def largest(self, weights: FloatArray | None, window: float = np.inf) -> FloatArray:
        """Fit with some weights and a window, and return the largest log-likelihood of each row."""
        self.fit(weights, window)
        return self._quadrature.largest(self._quadrature.draws(self._n_draws, self._rng))

    def fit(self, weights: FloatArray | None, window: float = np.inf) -> None:
        """Fit with some weights; weighted log-likelihoods are kept within the window."""
        self._quadrature.update(weights=weights, window=window)

    def several(self, n: int) -> dict[str, NDArray[Any]]:
        """Return fresh draws of the free variables from the last fit."""
        draws = self._quadrature.draws(n, self._rng)
        return {name: draws[name] for name in self._names}

    def one(self) -> dict[str, NDArray[Any]]:
        """Return a fresh draw from the last fit."""
        return {name: value[0] for name, value in self.several(1).items()}

    def tree(self) -> list[dict[str, NDArray[Any]]]:
        """Return fresh draws from the last fit."""
        draws = self.several(self._n_draws)
        return [{name: value[i] for name, value in draws.items()} for i in range(self._n_draws)]

    @property
    def facts(self) -> dict[str, Any]:
        """What there is to say about the last fit."""
        return {"sampler": self.name}

    @property
    def convergence(self) -> dict[str, float]:
        """Return how good the last fit is."""
        return {"total variation distance to half the lattice": self._quadrature.error}


class Chains:
    """Posteriors of a model with more parameters, by NUTS."""

    name = "NUTS"
    independent = False

    def __init__(self, blueprint: Blueprint, values: Values, n_draws: int, rng: np.random.Generator) -> None:
        model = blueprint.model
        read = {name: values[name] for name in inputs_of(model, values)}
        self._censored = _module("likelihood").censor_records(model, tuple(values), window=np.inf).update(values=read)
        self.values: Values = values
        self._likelihoods = Likelihoods(remove_value_transforms(model), values)
        self._watch, self._rng = blueprint.source.watch, rng
        self._n_draws, self._n_each = n_draws, max(-(-n_draws // CHAINS), LEAST_DRAWS)
        self.counts = np.ones(self._likelihoods.n_rows, dtype=np.int64)

    def largest(self, weights: FloatArray | None, window: float = np.inf) -> FloatArray:
        """Fit with some weights and a window, and return the largest log-likelihood of each record."""
        self.fit(weights, window)
        places = np.linspace(0, CHAINS * self._n_each - 1, self._n_draws).astype(np.int64)
        return self._likelihoods.largest({name: value[places] for name, value in self._draws.items()})

    def fit(self, weights: FloatArray | None, window: float = np.inf) -> None:
        """Fit with some weights; weighted log-likelihoods are kept within the window."""
        self._censored.update(weights=1.0 if weights is None else weights, window=window)
        sampling = _module("sampling")
        tree = sampling.sample(self._censored, draws=self._n_each, tune=TUNE, chains=CHAINS, rng=self._rng)
        found = sampling.converged(tree, self._watch)
        sampling.require(found)
        self.convergence = {"chains": found}
        self.facts = {"sampler": self.name, "convergence": found, "passed": found.passed}
        self._held: xr.DataTree = tree
        posterior = tree["posterior"].to_dataset().stack(sample=("chain", "draw")).transpose("sample", ...)
        self._draws = {str(name): posterior[name].to_numpy() for name in posterior.data_vars}

    def tree(self) -> xr.DataTree:
        """Return the draws of the last fit."""
        return self._held

    def several(self, n: int) -> dict[str, NDArray[Any]]:
        """Return n draws of the last fit, as far apart as they can be."""
        total = CHAINS * self._n_each
        places = (self._rng.integers(total) + np.arange(n) * max(total // n, 1)) % total
        return {name: value[places] for name, value in self._draws.items()}

    def one(self) -> dict[str, NDArray[Any]]:
        """Return one draw of the last fit."""
        place = int(self._rng.integers(CHAINS * self._n_each))
        return {name: value[place] for name, value in self._draws.items()}


def _module(name: str) -> Any:
    """Import a module only when it is used: NUTS brings much along."""
    return importlib.import_module(f"pdips.posterior.{name}")
