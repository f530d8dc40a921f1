"""censored-posterior: any PyMC model as a differentially private synthesizer (paper 004, corrected)."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError, UselessWarning
from pdips.histogram.urns import check_n_records
from pdips.mechanism import MOST_SETS, Drawn, Split, Variant, check_settings, run, statement
from pdips.posterior import nuts as sampling
from pdips.posterior import price as prices
from pdips.posterior import private_reference as stages
from pdips.posterior import statements
from pdips.posterior.censoring import CLIPS, Clip
from pdips.posterior.columns import distinct, record_values
from pdips.posterior.grid import NODES, Scored, score_grid
from pdips.posterior.model import ONE_AT_A_TIME, Workspace, workspace
from pdips.posterior.model_file import BuildModel, Source, as_source
from pdips.posterior.price import Price
from pdips.posterior.private_reference import Reference, Stage
from pdips.posterior.records import synthetic_sets
from pdips.posterior.rehearsal import check_unused, on_stand_ins
from pdips.posterior.rejection import check_prior, check_proposals, draw_by_rejection
from pdips.posterior.target import Target
from pdips.privacy.curator import Clock, Progress
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, choice, exact, positive, zcdp
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import ExactLaw as Law
from pdips.privacy.replay import Outcome
from pdips.release.release import Closer, Release, RunRecord

Centre = Literal["staged", "reference", "zero"]
Sampler = Literal["auto", "grid", "nuts", "rejection"]
Backend = sampling.Sampler
Drawing = tuple[list[dict[str, FloatArray]], dict[str, Any], Closer | None]

USELESS = 8
"""Nats that all records together must be able to move the log density by; with fewer, the prior is all there is."""

OF_NUTS = ("draws", "tune", "n_chains", "nuts")


@dataclass(frozen=True, kw_only=True)
class CensoredPosterior:
    """Records from a PyMC model at a draw from a posterior in which no record counts for more than its share.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person. ``"1/3"`` and ``0.1`` are taken as written.
    n_sets : int
        Number of synthetic sets.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public. A window costs half as much under add-remove.
    model : path, name, callable or Source
        The model: a file with ``build_model(data, schema)``, the name of one that comes with pdips, or that function.
    split : {"once", "per-set"}
        One draw of the parameters for all sets, or one for each, which shares the budget among them.
    centre : {"staged", "reference", "zero"}, optional
        What a record's log density is compared with: that at parameters fitted to a private reference, which costs
        ``share`` of the budget; that under ``reference``; or nothing, as in the paper. By default ``reference`` where
        there is one, otherwise staged.
    reference : path, str or mapping, optional
        Public: a table (.csv, .parquet) such as an earlier release, "prior" for the prior predictive, or values of the
        model's parameters, as a mapping or as "name=value,name=value".
    share : int, float, str or Fraction
        Share of the budget that the private reference gets: at least half of it is well spent there, more if records
        are few or the budget is small (``docs/mechanisms/censored-posterior.md``).
    weights : {"none", "public"}
        Whether terms that could leave the window are scaled down first, by weights from public parameter values.
    clip : {"hard", "tanh", "algebraic"}
        How terms are kept inside: cut off, w tanh(u / w), or w u / (w + abs(u)).
    kind : {"pure", "zcdp"}
        Whether draws add up in epsilon, or as zero-concentrated losses read at ``delta``.
    delta : int, float, str or Fraction
        For ``kind="zcdp"``.
    sampler : {"auto", "grid", "nuts", "rejection"}
        "auto": exactly, on a public grid, for up to three parameters, otherwise by NUTS. Rejection is exact for any
        number of parameters, but only feasible for few records.
    n_records : int, optional
        Public number of synthetic records. By default as many as the table has, which add-remove can't reveal.
    nuts : {"auto", "nutpie", "pymc", "numpyro"}
        Whose NUTS: nutpie's, PyMC's own, or numpyro's if it is installed.
    draws, tune, n_chains : int
        Of NUTS.

    Raises
    ------
    InputError
        If a setting is out of range, or the model can't be read.

    Notes
    -----
    One draw from prior(theta) exp(sum_i s(alpha_i (log p(x_i | theta) - c_i))) with s in [-w, w] costs 4 w under
    replace-one and 2 w under add-remove, both attained, if alpha and c depend on their record and on public values only
    (paper 004, equation 3.6; the paper itself takes 4 w for 2 w). With a centre at one parameter value the base
    measure takes back, on records simulated there, what censoring would take away, so that the posterior keeps its
    place and width where the window is narrow, the better the nearer the centre is. Proof:
    ``docs/proofs/censored-posterior.md``.
    """

    name: ClassVar[str] = "censored-posterior"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one", "add-remove")
    variants: ClassVar[tuple[Variant, ...]] = ("sound",)
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")
    most_sets: ClassVar[int] = MOST_SETS
    centres: ClassVar[tuple[str, ...]] = ("staged", "reference", "zero")
    weightings: ClassVar[tuple[str, ...]] = ("none", "public")

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    model: str | Path | BuildModel | Source | None = None
    split: Split = "once"
    centre: Centre | None = None
    reference: str | Path | Mapping[str, Any] | None = None
    share: Number = "3/4"
    weights: str = "none"
    clip: Clip = "hard"
    kind: Literal["pure", "zcdp"] = "pure"
    delta: Number = "1/1000000"
    sampler: Sampler = "auto"
    nuts: Backend = "auto"
    n_records: int | None = None
    draws: int = 1_000
    tune: int = 1_000
    n_chains: int = 4

    def __post_init__(self) -> None:
        check_settings(self, split=self.split)
        check_n_records(self.n_records, self.neighbours)
        choice(self.weights, self.weightings, "weights")
        choice(self.clip, CLIPS, "clip")
        choice(self.kind, ("pure", "zcdp"), "kind")
        choice(self.sampler, ("auto", "grid", "nuts", "rejection"), "sampler")
        choice(self.nuts, sampling.SAMPLERS, "nuts")
        prices.check_share(self.share)
        if self.centre is not None:
            choice(self.centre, self.centres, "centre")
        if (self.centre == "reference") != (self.reference is not None) and self.centre is not None:
            raise InputError("centre = reference and reference go together: name a public table, 'prior' or parameters")
        if not 0 < positive(self.delta, "delta") < 1:
            raise InputError(f"delta must be above 0 and below 1, got {self.delta}")
        for name in ("draws", "tune", "n_chains"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
                raise InputError(f"{name} must be a whole number from 1 to 1,000,000, got {value}")
        if self.model is not None:
            object.__setattr__(self, "model", as_source(self.model))
        self.price  # noqa: B018 - refuses an epsilon that is too small for its kind

    @property
    def centred_on(self) -> Centre:
        """What terms are centred on."""
        return self.centre or ("staged" if self.reference is None else "reference")

    @property
    def n_draws(self) -> int:
        """Number of parameter draws."""
        return self.n_sets if self.split == "per-set" else 1

    @property
    def price(self) -> Price:
        """How the budget is spent."""
        share = prices.check_share(self.share) if self.centred_on == "staged" else Fraction(0)
        if self.kind == "zcdp":
            return prices.concentrated(self.epsilon, self.delta, share, self.n_draws)
        return prices.pure(self.epsilon, share, self.n_draws)

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of the release."""
        epsilon = exact(self.epsilon, "epsilon")
        sampler = self._sampler(schema)
        delta = exact(self.delta, "delta") if self.kind == "zcdp" else Fraction(0)
        text = statement(self, schema, statements.law(self, sampler, schema), delta=delta)
        sampling: Literal["exact", "mcmc"] = "mcmc" if sampler in (None, "nuts") else "exact"
        if self.kind == "zcdp":
            return replace(zcdp(self.price.rho, self.delta, self.neighbours, text), sampling=sampling)
        return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="pure", sampling=sampling, statement=text)

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: the private reference, if there is one, and the draws.

        On the way all that could fail after the charge is tried on made-up records.
        """
        space = self._space(schema)
        if schema.public_columns and (self.neighbours == "add-remove" or self.n_records is not None):
            raise InputError(
                "public columns show the number of records, so neighbours = add-remove and n_records don't go with them"
            )
        space.check()
        if self._sampler(schema) == "nuts" and self.neighbours == "add-remove":
            raise InputError(
                "NUTS takes a model of as many records as there are, which add-remove protects; take replace-one, or a "
                "model of up to three parameters for the grid"
            )
        if self._sampler(schema) == "nuts":
            space.check_gradient()
        else:
            given = [name for name in OF_NUTS if getattr(self, name) != self.__dataclass_fields__[name].default]
            check_unused(given, f"sampler = {self._sampler(schema)}", "sampler = nuts")
        if self.sampler == "rejection":
            check_prior(space)
        if self.centred_on == "staged":
            stages.check_schema(schema, self.price.stage, self.neighbours)
            stages.rehearse(space)
        if self.centred_on == "reference":
            with on_stand_ins("the fit to the reference"):
                self._reference(space, 1)
        return self.price.spends(self.privacy_loss(schema).epsilon)

    def _space(self, schema: Schema) -> Workspace:
        if self.model is None:
            raise InputError(f"{self.name} needs a model: --model with a file or the name of one (pdips models list)")
        return workspace(as_source(self.model), schema)

    def _sampler(self, schema: Schema | None) -> str | None:
        """Return how parameters are drawn, None if that depends on a model that isn't at hand."""
        if schema is None or self.model is None:
            return None if self.sampler == "auto" else self.sampler
        n_parameters = self._space(schema).blueprint.n_parameters
        few = n_parameters <= max(NODES)
        if self.sampler == "grid" and not few:
            raise InputError(
                f"the model has {n_parameters} parameters and a grid takes at most {max(NODES)}; take sampler = nuts, "
                "or rejection for few records"
            )
        return ("grid" if few else "nuts") if self.sampler == "auto" else self.sampler

    def window(self, schema: Schema) -> Fraction:
        """Return the half-width of the window of one draw, in nats."""
        return self.price.window(self.neighbours, schema.records.max_per_person)

    def target(self, schema: Schema, stage: Stage) -> Target:
        """Return the posterior of one draw."""
        space, weighted = self._space(schema), self.weights == "public"
        return Target(space=space, stage=stage, window=self.window(schema), clip=self.clip, weights=weighted)

    def _reference(self, space: Workspace, n_records: int) -> Stage:
        wanted: Reference = "prior" if self.reference is None else self.reference
        with ONE_AT_A_TIME:
            key = stages.key_of(wanted), n_records
            return space.tried.once(key, lambda: stages.referenced(space, wanted, n_records))

    def stage(self, table: Table, bits: RandomBits) -> Stage:
        """Return what is known before the draw, and spend the first stage's share on it if there is one."""
        space, n_public = self._space(table.schema), self._n_public(table)
        if self.centred_on == "staged":
            return stages.staged(space, table, self.price.stage, self.neighbours, bits)
        if self.centred_on == "reference":
            return self._reference(space, n_public)
        return stages.unreferenced(space, n_public)

    def _n_public(self, table: Table) -> int:
        """Return a number of records that may be known: the table's own where neighbours share it."""
        return self.n_records or table.n_records if self.neighbours == "replace-one" else (self.n_records or 1)

    def scored(self, table: Table, stage: Stage) -> Scored:
        """Return the public grid with its scores."""
        values, counts = distinct(record_values(table), table.counts)
        with ONE_AT_A_TIME:
            return score_grid(self.target(table.schema, stage), values, counts)

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> IntArray | FloatArray:
        """Return the cells of independent releases' draws on the grid, shape (runs, draws), for audits.

        Centre staged is audited by ``audit.cases.posterior.Staged``.
        """
        with ONE_AT_A_TIME:
            scored = self.scored(table, self._fixed(table, bits))
        return scored.observe(n_runs * self.n_draws, bits).reshape(n_runs, self.n_draws)

    def law(self, table: Table) -> Law:
        """Return the exact law of the cell of one draw on the grid, for audits; not with centre staged."""
        with ONE_AT_A_TIME:
            scored = self.scored(table, self._fixed(table, RandomBits(np.random.default_rng(0))))
        found = scored.log_probabilities()
        outcomes = [Outcome(key=(cell,), log_probability=float(p)) for cell, p in enumerate(found) if np.isfinite(p)]
        return Law(outcomes=outcomes, repeats=self.n_draws)

    def _fixed(self, table: Table, bits: RandomBits) -> Stage:
        if self.centred_on == "staged":
            raise InputError("the second stage is audited at a fixed outcome of the first")
        return self.stage(table, bits)

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values, with the text of the model, which is public."""
        return statements.settings(self)

    def release(
        self,
        table: Table,
        *,
        rng: np.random.Generator | None = None,
        ledger: Ledger | None = None,
        progress: Progress | None = None,
    ) -> tuple[Release, RunRecord]:
        """Spend the budget and draw a release.

        Parameters
        ----------
        table : Table
            The confidential table.
        rng : numpy.random.Generator, optional
            For tests and studies; a release made with one is marked reproducible.
        ledger : Ledger, optional
            Charged before any random bit is drawn.
        progress : callable, optional
            Told the name of each step.

        Returns
        -------
        Release, RunRecord
            What may be published, and what stays inside.

        Raises
        ------
        InputError
            If there is no model or it doesn't fit the schema, or the ledger belongs to another table.
        RefusedError
            If the ledger's total would be overspent, or chains don't agree; then the spend stays charged.
        """
        self.spends(table.schema)
        self._look_ahead(table)

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            space = self._space(table.schema)
            with ONE_AT_A_TIME, clock.step("finding where to look"):
                stage = self.stage(table, bits)
            with ONE_AT_A_TIME, clock.step("drawing the parameters"):
                drawn, diagnostics, closer = self._draw(self.target(table.schema, stage), table, bits)
            n, each = self.n_records or table.n_records, drawn if self.n_draws > 1 else drawn[0]
            sets = synthetic_sets(space.blueprint.draw, table, each, self.n_sets, n, bits, clock)
            return Drawn(sets=sets, diagnostics=diagnostics, closer=closer)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)

    def _look_ahead(self, table: Table) -> None:
        """Refuse or warn, from public facts alone and before anything is spent, of what can't work."""
        if self.sampler == "rejection":
            if self.neighbours == "add-remove":
                raise InputError("sampler = rejection needs a public number of records: neighbours = replace-one")
            check_proposals(table.n_records, self.window(table.schema), n_draws=self.n_draws)
        if self._n_public(table) * self.window(table.schema) < USELESS:
            warnings.warn(
                f"epsilon is so small that all records together move the log density by less than {USELESS} nats: what "
                "is released says next to nothing beyond the prior or the reference",
                UselessWarning,
                stacklevel=3,
            )

    def _draw(self, target: Target, table: Table, bits: RandomBits) -> Drawing:
        """Return the parameters of each draw, what the curator may see, and what looks closer."""
        space, sampler = target.space, self._sampler(table.schema)
        if sampler == "nuts":
            return self._draw_chains(target, table, bits)
        values, counts = distinct(record_values(table), table.counts)
        if sampler == "rejection":
            flat = draw_by_rejection(target, values, counts, n=self.n_draws, bits=bits)
            return space.values_of(flat), {"sampler": sampler}, None
        scored = score_grid(target, values, counts)
        drawn = space.values_of(scored.draw(self.n_draws, bits))

        def closer() -> Any:
            from pdips.posterior.inspection import inspect_grid

            return inspect_grid(target, values, counts, drawn, scored)

        return drawn, {"sampler": "grid"}, closer

    def _draw_chains(self, target: Target, table: Table, bits: RandomBits) -> Drawing:
        values, lengths = record_values(table), {"draws": self.draws, "tune": self.tune, "chains": self.n_chains}
        rng = bits.generator()
        drawn, tree, found = sampling.draw_chains(target, values, n=self.n_draws, nuts=self.nuts, rng=rng, **lengths)

        def closer() -> Any:
            from pdips.posterior.inspection import inspect_chains

            return inspect_chains(target, values, table.counts, drawn, tree, found)

        return drawn, {"sampler": "nuts", "convergence": found}, closer
