"""The censored posterior as paper 004 has it, for studies and audits: it claims epsilon and loses more."""

from fractions import Fraction
from typing import Any

import numpy as np

from pdips.arrays import FloatArray
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior.columns import record_values
from pdips.posterior.fits import ByLattice, Chains, has_few
from pdips.posterior.model import Blueprint
from pdips.posterior.weights import linear_weights

N_DRAWS = 1_000
"""Draws of the unweighted fit over which a record's largest log-likelihood is taken: the paper's S."""


def draw(
    blueprint: Blueprint, table: Table, window: Fraction, weights: str, *, n: int, rng: np.random.Generator
) -> tuple[list[dict[str, FloatArray]], dict[str, Any]]:
    """Draw parameters from the paper's posterior, and say how.

    Parameters
    ----------
    blueprint : Blueprint
        The model.
    table : Table
        The confidential table.
    window : Fraction
        Weighted log-likelihoods are cut off beyond it: the paper's epsilon / 2.
    weights : {"none", "confidential"}
        The paper's Censor_uw, or Censor_w, whose weights come from a fit to the table.
    n : int
        Number of draws.
    rng : numpy.random.Generator
        Of everything: nothing here is exact.

    Notes
    -----
    Paper 004, equations 3.5 and 3.6. One to three continuous parameters by quadrature, more by NUTS.
    """
    fits, diagnostics = _fit(blueprint, table, window, weights, rng)
    drawn = fits.several(n)
    return [{name: value[row] for name, value in drawn.items()} for row in range(n)], diagnostics


def observe(
    blueprint: Blueprint, table: Table, window: Fraction, weights: str, *, n: int, rng: np.random.Generator
) -> FloatArray:
    """Return parameters of independent draws, shape (n, numbers), for audits of few parameters.

    The draws that weights are made from are made once for all.
    """
    if not has_few(blueprint):
        raise InputError("the published form is audited with models of one to three continuous parameters only")
    fits, _ = _fit(blueprint, table, window, weights, rng)
    return np.column_stack([value.reshape(n, -1) for value in fits.several(n).values()])


def _fit(
    blueprint: Blueprint, table: Table, window: Fraction, weights: str, rng: np.random.Generator
) -> tuple[ByLattice | Chains, dict[str, Any]]:
    kind = ByLattice if has_few(blueprint) else Chains
    fits = kind(blueprint, record_values(table), N_DRAWS, rng)
    alpha = linear_weights(fits.largest(None)) if weights == "confidential" else None
    fits.fit(alpha, float(window))
    return fits, {"sampler": fits.name, "convergence": fits.convergence}
