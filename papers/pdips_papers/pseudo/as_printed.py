"""The censored posterior as Hu et al. (2022) have it, for studies and audits: it claims
epsilon and loses more.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from pdips.posterior.censored_posterior import CensoredPosterior, Centre, Draws
from pdips.posterior.columns import Columns, record_values
from pdips.posterior.pseudo_posterior import (
    ChainFit,
    GridFit,
    flat,
    has_few,
    linear_weights,
)
from pdips.posterior.target import GridDraws, Target
from pdips.privacy.loss import exact, spell
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Plan
from pdips_papers.harness.printed import Printed

N_DRAWS = 1_000
"""Draws of the unweighted fit over which a record's largest log-likelihood is taken:
the paper's S.
"""


@dataclass(frozen=True, kw_only=True)
class PrintedPosterior(Printed, CensoredPosterior):
    """The paper's Censor_uw, or Censor_w with ``weights="confidential"``: no centre,
    and a window of epsilon / 2.

    Hu et al. (2022), equations 3.5 and 3.6. One to three continuous parameters on a
    grid, more by NUTS: nothing here is exact. Under replace-one a window of epsilon / 2
    loses up to 2 epsilon (``docs/proofs/censored-posterior.md``).
    """

    centres: ClassVar[tuple[str, ...]] = ("zero",)
    weightings: ClassVar[tuple[str, ...]] = ("none", "confidential")

    @property
    def centred_on(self) -> Centre:
        """What terms are centred on: nothing."""
        return "zero"

    def window(self, schema: Schema) -> Fraction:
        """Return the half-width of the window of one draw, in nats."""
        return exact(self.epsilon, "epsilon") / 2

    def plan(self, schema: Schema) -> Plan:
        """Return the plan, with what the paper calls epsilon."""
        return replace(super().plan(schema), sampling="mcmc")

    @property
    def flaw(self) -> str:
        """What the form in the paper does, and what is wrong with it."""
        wrong = (
            "its weights come from a fit to the confidential table, so replacing one "
            "record moves the weights of all "
            "others, and no finite epsilon holds"
            if self.weights == "confidential"
            else "its window of half-width epsilon / 2 bounds what removing a record "
            "does, but the true loss when one "
            f"is replaced is up to {spell(2 * exact(self.epsilon, 'epsilon'))}"
        )
        return (
            "NO GUARANTEE. As Hu et al. (2022) have it, for studies: log-likelihoods "
            "kept within epsilon / 2 of 0, "
            f"which it calls epsilon; {wrong}. Parameters are drawn on a grid or by "
            f"Markov chains in floating point."
        )

    def check(self, plan: Plan, table: Table) -> None:
        """Nothing that is promised can be useless."""

    def draws_from(self, target: Target) -> Draws:
        """Return what the parameters are drawn from."""
        return PrintedDraws(target, self)

    @staticmethod
    def audit_cases(build: Callable[..., CensoredPosterior]) -> Iterator[Case]:
        """Yield the cases to audit it on: Censor_uw, and Censor_w beside it unless
        weights were chosen.
        """
        unweighted = where_allowed(partial(build, model=shares), weights="none")
        if unweighted is not None:
            yield Case(unweighted, three_shares(_far_apart))
            yield Case(unweighted, three_shares(), "exact")
        weighted = where_allowed(partial(build, model=narrow), weights="confidential")
        if weighted is not None:
            yield Case(weighted, _outlier())


class PrintedDraws(GridDraws):
    """Draws from the paper's posterior; its law on the grid, without weights, is the
    paper's formula.
    """

    def __init__(self, target: Target, mechanism: PrintedPosterior) -> None:
        super().__init__(target)
        self._mechanism = mechanism

    def __call__(self, table: Table) -> "PrintedDraws":
        """Take a table, which a curator holds."""
        self._table = table
        return self

    def draw(self, bits: RandomBits, runs: int = 1) -> FloatArray:  # type: ignore[override]
        """Return the parameters of independent draws, shape (runs, numbers); weights
        are made once for all.
        """
        space = self.target.space
        values = record_values(self._table)
        rng = bits.generator()
        few = has_few(space)
        if runs > 1 and not few:
            raise InputError(
                "the published form is audited with models of one to "
                "three continuous parameters only"
            )
        fits = (GridFit if few else ChainFit)(space, values, N_DRAWS, rng)
        alpha = None
        if self._mechanism.weights == "confidential":
            alpha = linear_weights(fits.largest(None))
        fits.fit(alpha, float(self.target.window))
        self.diagnostics = {"sampler": fits.name, "convergence": fits.convergence}
        self._made = fits.several(runs)
        return np.array([flat(draw) for draw in self._made])

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        """Return the log probability of each cell."""
        if self._mechanism.weights == "confidential":
            raise InputError(
                "weights from a fit to the table leave no law that could be spelt out"
            )
        super().__call__(self._table)
        return super().log_probabilities()

    def parameters(
        self, answers: Sequence[Any], rng: np.random.Generator
    ) -> list[dict[str, FloatArray]]:
        """Return the free variables, as they were drawn."""
        return self._made


def narrow(data: Columns, schema: Schema) -> pm.Model:
    """Return numbers of known, small deviation about an unknown mean."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 3)
        pm.Normal("y", theta, 0.3, observed=data["y"])
    return model


def _far_apart(rows: NDArray[Any]) -> BoolArray:
    phi, lam = rows.T
    law = beta(lam * phi, lam * (1 - phi))
    found: BoolArray = (law.logpdf(0.7) >= 0.5) & (law.logpdf(1e-6) <= -0.5)
    return found


def _outlier() -> Pair:
    """Return the pair of Censor_w: beside an outlier both crowds count; without it the
    smaller one is the riskiest.
    """
    pair = beside("an outlier beside two crowds", 100.0, [0.0] * 19 + [1.5] * 19)
    return with_event(
        pair,
        lambda rows: np.abs(rows[:, 0] - 1.5) < 0.75,
        "the mean is nearer to the second crowd",
    )
