"""pseudo-posterior: the weighted synthesizers of paper 004, which bound nothing for any table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.mechanism import MOST_SETS, Drawn, Split, Variant, check_settings, run
from pdips.posterior.columns import record_values
from pdips.posterior.fits import ByLattice, Chains, has_few
from pdips.posterior.model import Blueprint, BuildModel, Source, as_source
from pdips.posterior.records import synthetic_sets
from pdips.posterior.statements import UNRECORDED
from pdips.posterior.weights import linear_weights, lipschitz_bound, weighted_e
from pdips.posterior.workspace import ONE_AT_A_TIME, Workspace, workspace
from pdips.privacy.curator import Clock, Progress
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, as_float, choice, exact, spell
from pdips.privacy.noise import RandomBits
from pdips.release.release import Closer, Release, RunRecord

Weights = Literal["weighted", "weighted-e"]
WEIGHTS: tuple[Weights, ...] = ("weighted", "weighted-e")

QUANTILES = ("least", "lower quartile", "median", "upper quartile", "greatest")


@dataclass(frozen=True, kw_only=True)
class PseudoPosterior:
    """Records drawn from a model whose likelihood counts risky records for less.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        The paper's target, which bounds nothing. ``weighted-e`` drops records by it; ``weighted`` doesn't use it.
    n_sets : int
        Number of synthetic sets, all from one draw of the parameters.
    neighbours : {"replace-one"}
        The number of records is public.
    model : path, callable or Source
        The model: a file with ``build_model(data, schema)``, or that function.
    variant : {"published"}
        There is no sound form of it.
    weights : {"weighted", "weighted-e"}
        Which of the paper's two rules gives the weights.
    scale, shift : float
        The paper's c1 and c2: weights are scale alpha + shift, brought into [0, 1].
    n_draws : int
        Draws S of the parameters over which a record's largest log-likelihood is taken.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Paper 004, section 2: fit the model, f_i = max over draws of abs(log p(x_i | theta)); alpha_i falls linearly from 1
    at the least f to 0 at the greatest; fit prior(theta) prod_i p(x_i | theta)^alpha_i; ``weighted-e`` puts alpha_i = 0
    where alpha_i f_i > epsilon / 2. The paper calls this asymptotically differentially private with
    epsilon_x = 2 max_i alpha_i f_i of the second fit. SOUNDNESS 2.6: with log-likelihoods that the parameters leave
    unbounded (normal, beta, Bernoulli, ...) no finite epsilon holds at any number of records; and the weights depend on
    all records, so each record moves the weights of all others. ``docs/mechanisms/pseudo-posterior.md`` has an example.
    """

    name: ClassVar[str] = "pseudo-posterior"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one",)
    variants: ClassVar[tuple[Variant, ...]] = ("published",)
    splits: ClassVar[tuple[Split, ...]] = ("once",)
    most_sets: ClassVar[int] = MOST_SETS

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    model: str | Path | BuildModel | Source | None = None
    variant: Variant = "published"
    weights: Weights = "weighted"
    scale: float = 1.0
    shift: float = 0.0
    n_draws: int = 1_000

    def __post_init__(self) -> None:
        check_settings(self, variant=self.variant)
        choice(self.weights, WEIGHTS, "weights")
        if self.model is not None:
            object.__setattr__(self, "model", as_source(self.model))
        linear_weights([1.0], scale=self.scale, shift=self.shift)
        if isinstance(self.n_draws, bool) or not isinstance(self.n_draws, int) or not 1 <= self.n_draws <= 100_000:
            raise InputError(f"n_draws must be a whole number from 1 to 100,000, got {self.n_draws}")

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return what the paper claims, of kind "asymptotic"."""
        epsilon = exact(self.epsilon, "epsilon")
        text = _statement(self, schema)
        return PrivacyLoss(
            epsilon=epsilon, neighbours=self.neighbours, kind="asymptotic", sampling="mcmc", statement=text
        )

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the one item; on the way the model is tried on stand-ins, so that its faults cost nothing."""
        space = self._space(schema)
        space.check(discrete=True)
        if not has_few(space.blueprint) and not space.discrete:
            space.check_gradient()
        return (Spend(step="parameters drawn from the pseudo posterior", epsilon=exact(self.epsilon, "epsilon")),)

    def blueprint(self, schema: Schema) -> Blueprint:
        """Return the model, checked.

        Raises
        ------
        InputError
            If there is no model, or it doesn't fit the schema.
        """
        return self._space(schema).blueprint

    def _space(self, schema: Schema) -> Workspace:
        if self.model is None:
            raise InputError(f"{self.name} needs a model: a file with build_model(data, schema), or that function")
        return workspace(as_source(self.model), schema)

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {
            "epsilon": as_float(exact(self.epsilon, "epsilon")),
            "n_sets": self.n_sets,
            "neighbours": self.neighbours,
            "variant": self.variant,
            "model": None if self.model is None else as_source(self.model).name,
            "model_source": None if self.model is None else as_source(self.model).text or None,
            "weights": self.weights,
            "scale": self.scale,
            "shift": self.shift,
            "n_draws": self.n_draws,
        }

    def record_weights(self, bounds: FloatArray) -> FloatArray:
        """Return the weights of records whose largest log-likelihoods in the unweighted fit are ``bounds``."""
        alpha = linear_weights(bounds, scale=self.scale, shift=self.shift)
        return weighted_e(alpha, bounds, self.epsilon) if self.weights == "weighted-e" else alpha

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> FloatArray:
        """Return parameters drawn from the pseudo posterior, shape (runs, numbers), for audits of few parameters.

        The draws over which risks are taken are made once for all runs, which are independent given these.
        """
        blueprint = self.blueprint(table.schema)
        if not has_few(blueprint):
            raise InputError(f"{self.name} is audited with models of one to three continuous parameters only")
        with ONE_AT_A_TIME:
            fits = ByLattice(blueprint, record_values(table), self.n_draws, bits.generator())
            fits.largest(self.record_weights(fits.largest(None)))
        return np.column_stack([value.reshape(n_runs, -1) for value in fits.several(n_runs).values()])

    def release(
        self,
        table: Table,
        *,
        rng: np.random.Generator | None = None,
        ledger: Ledger | None = None,
        progress: Progress | None = None,
    ) -> tuple[Release, RunRecord]:
        """Fit, weigh, fit again and draw a release.

        Parameters
        ----------
        table : Table
            The confidential table.
        rng : numpy.random.Generator, optional
            For tests and studies; a release made with one is marked reproducible.
        ledger : Ledger, optional
            Refuses: it holds no losses that bound nothing.
        progress : callable, optional
            Told the name of each step.

        Returns
        -------
        Release, RunRecord
            What may be published by who allows ``"asymptotic"``, and what stays inside.

        Raises
        ------
        InputError
            If there is no model, it doesn't fit the schema, or a ledger is given.
        RefusedError
            If the chains don't converge.
        """

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            blueprint = self.blueprint(table.schema)
            parameters, diagnostics, closer = self._fit(blueprint, table, bits.generator(), clock)
            sets = synthetic_sets(blueprint, table, parameters, self.n_sets, table.n_records, bits, clock)
            return Drawn(sets=sets, diagnostics=diagnostics, closer=closer)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)

    def _fit(
        self, blueprint: Blueprint, table: Table, rng: np.random.Generator, clock: Clock
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any], Closer]:
        """Return one draw of the parameters from the pseudo posterior, what the curator may see, what looks closer."""
        kind = ByLattice if has_few(blueprint) else Chains
        fits = kind(blueprint, record_values(table), self.n_draws, rng)
        with clock.step("fitting the model"):
            bounds = fits.largest(None)
        with clock.step("fitting the pseudo posterior"):
            weights = self.record_weights(bounds)
            weighted = fits.largest(weights)
        delta = lipschitz_bound(weights, weighted)
        alpha = np.repeat(weights, fits.counts)
        diagnostics = {
            "fit": fits.name,
            "unweighted bound": float(bounds.max()),
            "bound": delta,
            "epsilon_x": 2 * delta,
            "share of weight 0": float((alpha == 0).mean()),
            "weight quantiles": dict(zip(QUANTILES, np.quantile(alpha, [0, 0.25, 0.5, 0.75, 1]).tolist(), strict=True)),
            "draws": self.n_draws,
            "convergence": fits.convergence,
        }
        released = fits.one()

        def closer() -> Any:
            from pdips.posterior import inspection as look

            draws = fits.tree()
            tree = draws if isinstance(draws, xr.DataTree) else look.tree_of(draws)
            posterior = look.Posterior(tree=tree, released=[released], facts=fits.facts, independent=fits.independent)
            held = {"model": blueprint.model, "values": fits.values, "counts": fits.counts, "limit": None}
            records = look.Records(**held, terms=lambda _: (weights, None), blueprint=blueprint)
            return look.inspect(records, posterior)

        return released, diagnostics, closer


def _statement(mechanism: PseudoPosterior, schema: Schema | None) -> str:
    plural = "s" if mechanism.n_sets > 1 else ""
    rule = (
        "the least risky record counts in full and the riskiest not at all"
        if mechanism.weights == "weighted"
        else "the least risky record counts in full, and records whose weighted log-likelihood exceeds half of epsilon "
        "count not at all"
    )
    parts = [
        f"{mechanism.name} ({mechanism.weights}) with the paper's target epsilon = "
        f"{spell(exact(mechanism.epsilon, 'epsilon'))} for {mechanism.n_sets} synthetic set{plural}.",
        f"Each record's likelihood is raised to a weight between 0 and 1, set by its disclosure risk: {rule}.",
        "What the paper claims (004, section 2.1) is asymptotic differential privacy: the local Lipschitz bound of the "
        "weighted log-likelihoods, computed on the confidential table, contracts onto the global one over all tables "
        "of the same size as the number of records grows, and twice that bound is epsilon.",
        "This is no guarantee for this table or any other: no finite epsilon holds at any number of records, as soon "
        "as the model's log-likelihoods are unbounded over its parameters. The weights come from a fit to the "
        "confidential table and compare its records, so replacing one record moves the weights of all others. The "
        "bound is a function of the confidential records, is not protected, and is not part of this release.",
        "Neighbours in the paper: tables that differ in the values of one record; the number of records is public.",
        "Parameters are drawn by quadrature or by Markov chains, in floating point: not exactly.",
    ]
    if mechanism.model is not None and not as_source(mechanism.model).text:
        parts.append(UNRECORDED)
    if schema is not None and schema.public_columns:
        names = ", ".join(schema.public_columns)
        parts.append(f"Public columns, their values copied (not their order) and not protected in any way: {names}.")
    return " ".join(parts)
