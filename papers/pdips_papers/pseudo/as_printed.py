"""The censored posterior as paper 004 has it, for studies and audits: it claims epsilon and loses more."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from scipy.stats import beta

from pdips.arrays import BoolArray, FloatArray
from pdips.audit.cases.posterior import beside, shares, three_shares
from pdips.audit.neighbour_pairs import Case, Pair, where_allowed, with_event
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior.censored_posterior import CensoredPosterior, Centre, Drawing
from pdips.posterior.columns import Columns, record_values
from pdips.posterior.model import Workspace
from pdips.posterior.private_reference import Stage
from pdips.posterior.pseudo_posterior import ChainFit, has_few
from pdips.posterior.target import Target
from pdips.posterior.weights import linear_weights
from pdips.privacy.loss import Neighbours, PrivacyLoss, exact, spell
from pdips.privacy.noise import RandomBits
from pdips_papers.pseudo.fits import ByLattice

N_DRAWS = 1_000
"""Draws of the unweighted fit over which a record's largest log-likelihood is taken: the paper's S."""


@dataclass(frozen=True, kw_only=True)
class PrintedPosterior(CensoredPosterior):
    """The paper's Censor_uw, or Censor_w with ``weights="confidential"``: no centre, and a window of epsilon / 2.

    Notes
    -----
    Paper 004, equations 3.5 and 3.6. One to three continuous parameters by quadrature, more by NUTS: nothing here is
    exact. Under replace-one a window of epsilon / 2 loses up to 2 epsilon (``docs/proofs/censored-posterior.md``).
    """

    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one",)
    variant: ClassVar[str] = "published"
    centres: ClassVar[tuple[str, ...]] = ("zero",)
    weightings: ClassVar[tuple[str, ...]] = ("none", "confidential")

    @property
    def centred_on(self) -> Centre:
        """What terms are centred on: nothing."""
        return "zero"

    def window(self, schema: Schema) -> Fraction:
        """Return the half-width of the window of one draw, in nats."""
        return exact(self.epsilon, "epsilon") / 2

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return what the paper calls epsilon, of kind "none"."""
        epsilon = exact(self.epsilon, "epsilon")
        text = _statement(epsilon, self.weights)
        return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="none", sampling="mcmc", statement=text)

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return super().settings() | {"variant": self.variant}

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> FloatArray:
        """Return parameters of independent draws, shape (runs, numbers), for audits of few parameters.

        The draws that weights are made from are made once for all.
        """
        space = self._space(table.schema)
        if not has_few(space.blueprint):
            raise InputError("the published form is audited with models of one to three continuous parameters only")
        fits, _ = self._fit(space, table, bits.generator())
        return np.array([np.concatenate([np.ravel(v) for v in draw.values()]) for draw in fits.several(n_runs)])

    def _fixed(self, table: Table, bits: RandomBits) -> Stage:
        if self.weights == "confidential":
            raise InputError("weights from a fit to the table leave no law that could be spelt out")
        return super()._fixed(table, bits)

    def _look_ahead(self, table: Table) -> None:
        """Nothing that is promised can be useless."""

    def _draw(self, target: Target, table: Table, bits: RandomBits) -> Drawing:
        fits, diagnostics = self._fit(target.space, table, bits.generator())
        return fits.several(self.n_draws), diagnostics, None

    def _fit(
        self, space: Workspace, table: Table, rng: np.random.Generator
    ) -> tuple[ByLattice | ChainFit, dict[str, Any]]:
        kind = ByLattice if has_few(space.blueprint) else ChainFit
        fits = kind(space, record_values(table), N_DRAWS, rng)
        alpha = linear_weights(fits.largest(None)) if self.weights == "confidential" else None
        fits.fit(alpha, float(self.window(table.schema)))
        return fits, {"sampler": fits.name, "convergence": fits.convergence}

    @staticmethod
    def audit_cases(build: Callable[..., CensoredPosterior]) -> Iterator[Case]:
        """Yield the cases to audit it on: Censor_uw, and Censor_w beside it unless weights were chosen."""
        unweighted = where_allowed(partial(build, model=shares), weights="none")
        if unweighted is not None:
            yield Case(unweighted, three_shares(_far_apart))
            yield Case(unweighted, three_shares(), "exact")
        weighted = where_allowed(partial(build, model=narrow), weights="confidential")
        if weighted is not None:
            yield Case(weighted, _outlier())


def _statement(epsilon: Fraction, weights: str) -> str:
    """Return what the form in the paper does, and what is wrong with it."""
    wrong = (
        "its weights come from a fit to the confidential table, so replacing one record moves the weights of all "
        "others, and no finite epsilon holds"
        if weights == "confidential"
        else "its window of half-width epsilon / 2 bounds what removing a record does, but the true loss when one is "
        f"replaced is up to {spell(2 * epsilon)}"
    )
    return (
        "NO GUARANTEE. As paper 004 has it, for studies only: log-likelihoods are kept within epsilon / 2 of 0, which "
        f"it calls epsilon; {wrong}. Parameters are drawn by quadrature or Markov chains in floating point."
    )


def narrow(data: Columns, schema: Schema) -> pm.Model:
    """Return numbers of known, small deviation about an unknown mean."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 3)
        pm.Normal("y", theta, 0.3, observed=data["y"])
    return model


def _far_apart(rows: NDArray[Any]) -> BoolArray:
    phi, lam = rows.T
    a, b = lam * phi, lam * (1 - phi)
    found: BoolArray = (beta.logpdf(0.7, a, b) >= 0.5) & (beta.logpdf(1e-6, a, b) <= -0.5)
    return found


def _outlier() -> Pair:
    """Return the pair of Censor_w: beside an outlier both crowds count; without it the smaller one is the riskiest."""
    pair = beside("an outlier beside two crowds", 100.0, [0.0] * 19 + [1.5] * 19)
    return with_event(pair, lambda rows: np.abs(rows[:, 0] - 1.5) < 0.75, "the mean is nearer to the second crowd")
