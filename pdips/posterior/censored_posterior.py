"""censored-posterior: any PyMC model as a differentially private synthesizer (Hu et al.
2022, corrected).
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from pdips.arrays import IntArray
from pdips.convergence import ROUNDS
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError, RefusedError, UselessWarning
from pdips.histogram.urns import check_n_records, check_public
from pdips.mechanism import Drawn, Split
from pdips.posterior import nuts as sampling
from pdips.posterior import private_reference as stages
from pdips.posterior.censoring import CLIPS, Clip
from pdips.posterior.columns import (
    DrawnParameters,
    Parameters,
    Values,
    public_values,
    synthetic_sets,
)
from pdips.posterior.model import ONE_AT_A_TIME, UNRECORDED, Blueprint
from pdips.posterior.model_checks import check_unused, on_stand_ins
from pdips.posterior.nuts import ChainDraws
from pdips.posterior.private_reference import Reference, Stage
from pdips.posterior.rejection import prior_of
from pdips.posterior.target import NODES, GridDraws, RejectionDraws, Target
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import Curator
from pdips.privacy.loss import (
    Number,
    as_float,
    choice,
    exact,
    largest_rho,
    proper_share,
    root,
)
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.registry import load
from pdips.release.offers import Offers

Centre = Literal["staged", "reference", "zero"]
Sampler = Literal["auto", "grid", "nuts", "rejection"]
Draws = GridDraws | ChainDraws | RejectionDraws

# Nats by which all records together must be able to move the log density: else the
# prior is all
USELESS = 8
# Proposals of all draws by rejection, on average, that are put up with
MOST_PROPOSALS = 10**7
OF_NUTS = ("draws", "tune", "n_chains", "nuts")

CENTRES = {
    "staged": "Terms are centred on the log density at parameters that fit a private "
    "reference best: noisy counts or a "
    "synthetic table, which cost their share of epsilon.",
    "reference": "Terms are centred on the log density under a public reference.",
    "zero": "Terms are not centred, so they and the window depend on the units of "
    "the columns.",
}

SAMPLING = {
    "grid": "Parameters are one of finitely many public cells, chosen exactly with "
    "the probabilities that the proof is "
    "about, and a point inside the cell that depends on no record.",
    "rejection": "Parameters are exact draws by rejection from the prior; how long "
    "that takes depends on the records, "
    "so the running time must not be shown.",
    "nuts": "ASSUMPTION THAT NOTHING CERTIFIES: Markov chains (NUTS) have converged, "
    "so that a draw of theirs is one "
    "from the posterior. The guarantee holds for the exact posterior; if the chains' "
    "law is off by a total variation "
    "distance of at most gamma for every table, it holds with delta = (1 + "
    "e^epsilon) gamma. Whether chains agree is "
    f"checked on the confidential table: they are run up to {ROUNDS} times, longer "
    f"each time, until they do, and "
    "without a release if they never do. These decisions are not covered by the "
    "guarantee. Each record's term is "
    "worked out by the library from the model of a single record, so no record can "
    "enter the term of another.",
}


@dataclass(frozen=True, kw_only=True)
class Price:
    """How a total is spent."""

    stage: Fraction  # epsilon of the first stage; 0 without one
    draw: Fraction  # bounded range of one draw, in nats: its epsilon
    n_draws: int  # number of parameter draws
    # the total as zero-concentrated loss; 0 where epsilons are added up
    rho: Fraction = Fraction(0)

    def window(self, sensitivity: Sensitivity) -> Fraction:
        """Return the half-width w of a draw's window, given that of counts of records:
        2 w a record is its price.
        """
        return self.draw / (2 * sensitivity.l1)


def pure(epsilon: Number, share: Fraction, n_draws: int) -> Price:
    """Split epsilon between a first stage and draws by sequential composition."""
    total = exact(epsilon, "epsilon")
    return Price(
        stage=total * share, draw=total * (1 - share) / n_draws, n_draws=n_draws
    )


def concentrated(
    epsilon: Number, delta: Number, share: Fraction, n_draws: int
) -> Price:
    """Split epsilon at delta between a first stage and draws that compose as
    zero-concentrated losses.

    A draw of bounded range eta is eta^2 / 8-zCDP (Cesar and Rogers, 2021), a first
    stage of epsilon_0 epsilon_0^2 / 2-zCDP (Bun and Steinke, 2016, proposition 1.4);
    ``docs/proofs/censored-posterior.md``, theorem 3.
    """
    rho = largest_rho(exact(epsilon, "epsilon"), exact(delta, "delta"))
    stage = root(2 * rho * share)
    draw = root(8 * (rho - stage**2 / 2) / n_draws)
    if not draw or (share and not stage):
        raise InputError(
            "the share leaves too little for the private reference or "
            "for the draws; move it towards 1/2"
        )
    return Price(
        stage=stage,
        draw=draw,
        n_draws=n_draws,
        rho=stage**2 / 2 + n_draws * draw**2 / 8,
    )


def expected_proposals(n: int, window: Fraction) -> float:
    """Return the most proposals that a draw takes on average, e^(2 n w) for n records,
    whatever these are.
    """
    nats = 2 * n * window
    return math.exp(nats) if nats < 700 else math.inf


def check_proposals(n: int, window: Fraction, *, n_draws: int = 1) -> None:
    """Refuse, from public settings alone and before anything is spent, what could take
    too long.
    """
    if n_draws * expected_proposals(n, window) > MOST_PROPOSALS:
        raise RefusedError(
            f"rejection may take e^{float(2 * n * window):.4g} proposals a draw, "
            f"more than {MOST_PROPOSALS:,} in all; take "
            "sampler = grid for up to three parameters, otherwise sampler = nuts, or "
            "fewer records or a smaller epsilon"
        )


@dataclass(frozen=True, kw_only=True)
class CensoredPosterior(sampling.ChainMechanism):
    """Records from a PyMC model at a draw from a posterior in which no record counts
    for more than its share.

    ``epsilon``, ``n_sets`` and ``neighbours`` are those of
    :class:`pdips.mechanism.Mechanism`; a window costs half as much under add-remove.

    Parameters
    ----------
    model : path, name, callable or Source
        The model: a file with ``build_model(data, schema)``, the name of one that comes
        with pdips, or that function.
    split : {"once", "per-set"}
        One draw of the parameters for all sets, or one for each, which shares the
        budget among them.
    centre : {"staged", "reference", "zero"}, optional
        What a record's log density is compared with: that at parameters fitted to a
        private reference, which costs ``share`` of the budget; that under
        ``reference``; or nothing, as in the paper. By default ``reference`` where there
        is one, otherwise staged.
    reference : path, str or mapping, optional
        Public: a table (.csv, .parquet) such as an earlier release, "prior" for the
        prior predictive, or values of the model's parameters, as a mapping or as
        "name=value,name=value".
    share : int, float, str or Fraction
        Share of the budget that the private reference gets: at least half of it is well
        spent there, more if records are few or the budget is small
        (``docs/mechanisms/censored-posterior.md``).
    weights : {"none", "public"}
        Whether terms that could leave the window are scaled down first, by weights from
        public parameter values.
    clip : {"hard", "tanh", "algebraic"}
        How terms are kept inside: cut off, w tanh(u / w), or w u / (w + abs(u)).
    delta : int, float, str or Fraction, optional
        Left out, draws add up in epsilon. With a number they add up as
        zero-concentrated losses, which are read at this delta.
    sampler : {"auto", "grid", "nuts", "rejection"}
        "auto": exactly, on a public grid, for up to three parameters, otherwise by
        NUTS. Rejection is exact for any number of parameters, but only feasible for few
        records.
    n_records : int, optional
        Public number of synthetic records. By default as many as the table has, which
        add-remove can't reveal.
    nuts : {"auto", "nutpie", "pymc", "numpyro", "blackjax"}
        Whose NUTS: nutpie's, PyMC's own, or numpyro's or blackjax's if installed.
    draws, tune, n_chains : int
        Of NUTS.

    Raises
    ------
    InputError
        If a setting is out of range, or the model can't be read.

    Notes
    -----
    One draw from prior(theta) exp(sum_i s(alpha_i (log p(x_i | theta) - c_i))) with s
    in [-w, w] costs 4 w under replace-one and 2 w under add-remove, both attained, if
    alpha and c depend on their record and on public values only (Hu et al. 2022,
    equation 3.6; the paper itself takes 4 w for 2 w). With a centre at one parameter
    value the base measure takes back, on records simulated there, what censoring would
    take away, so that the posterior keeps its place and width where the window is
    narrow, the better the nearer the centre is. Proof:
    ``docs/proofs/censored-posterior.md``.

    Examples
    --------
    >>> import pymc as pm
    >>> def build_model(data, schema):
    ...     with pm.Model() as model:
    ...         share = pm.Beta("share", 1, 1)
    ...         pm.Bernoulli("ill", share, observed=data["ill"])
    ...     return model
    >>> schema = Schema(columns={"ill": Column(levels=[0, 1])})
    >>> table = Table(pd.DataFrame({"ill": [0] * 40 + [1] * 20}), schema)
    >>> release, record = CensoredPosterior(epsilon=16, model=build_model).release(
    ...     table
    ... )
    >>> len(release.sets[0])
    60
    """

    name: ClassVar[str] = "censored-posterior"
    offers: ClassVar[Offers] = Offers(
        public_columns=True,
        relations=("replace-one", "add-remove"),
        kinds=("pure", "zcdp"),
        posterior_of="records",
    )
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")
    centres: ClassVar[tuple[str, ...]] = ("staged", "reference", "zero")
    weightings: ClassVar[tuple[str, ...]] = ("none", "public")

    split: Split = "once"
    centre: Centre | None = None
    reference: str | Path | Mapping[str, Any] | None = None
    share: Number = "3/4"
    weights: str = "none"
    clip: Clip = "hard"
    sampler: Sampler = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_n_records(self.n_records, self.neighbours)
        choice(self.weights, self.weightings, "weights")
        choice(self.clip, CLIPS, "clip")
        choice(self.sampler, ("auto", "grid", "nuts", "rejection"), "sampler")
        proper_share(self.share, "share")
        if self.centre is not None:
            choice(self.centre, self.centres, "centre")
        if (self.centre == "reference") != (
            self.reference is not None
        ) and self.centre is not None:
            raise InputError(
                "centre = reference and reference go together: name a "
                "public table, 'prior' or parameters"
            )
        self.price  # noqa: B018 - refuses an epsilon that is too small for its delta

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
        share = (
            proper_share(self.share, "share")
            if self.centred_on == "staged"
            else Fraction(0)
        )
        if self.delta is not None:
            return concentrated(self.epsilon, self.delta, share, self.n_draws)
        return pure(self.epsilon, share, self.n_draws)

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: the private reference, if there is one, and the draws.

        On the way all that could fail after the charge is tried on made-up records.
        """
        self.check_schema(schema)
        self._rehearse(schema)
        counts = Sensitivity.of_counts(schema, self.neighbours)
        draw = Step(
            name="parameters drawn",
            sensitivity=counts,
            price=self.price.draw,
            law="bounded-range",
        )
        steps: tuple[Step, ...] = (draw,)
        rounds = self.n_draws
        if self.centred_on == "staged":
            first = stages.reference_step(schema, self.price.stage, self.neighbours)
            steps = (
                first,
                replace(draw, price=self.price.draw * self.n_draws, times=self.n_draws),
            )
            rounds = 1
        sampled = "mcmc" if self._sampler(schema) == "nuts" else "exact"
        return self.planned(
            schema,
            steps,
            self._sentences(schema),
            repeats=rounds,
            sampling=sampled,
            **self.reading,
        )

    def _rehearse(self, schema: Schema) -> None:
        """Refuse, on stand-ins, what would fail once records are there."""
        space = self.space(schema)
        sampler = self._sampler(schema)
        check_public(schema, self.neighbours, self.n_records)
        space.check()
        if sampler == "nuts" and self.neighbours == "add-remove":
            raise InputError(
                "NUTS takes a model of as many records as there are, which "
                "add-remove protects; take replace-one, or a "
                "model of up to three parameters for the grid"
            )
        if sampler == "nuts":
            space.check_gradient()
        else:
            given = [
                name
                for name in OF_NUTS
                if getattr(self, name) != self.__dataclass_fields__[name].default
            ]
            check_unused(given, f"sampler = {sampler}", "sampler = nuts")
        if sampler == "rejection":
            if self.neighbours == "add-remove":
                raise InputError(
                    "sampler = rejection needs a public number of "
                    "records: neighbours = replace-one"
                )
            with on_stand_ins("the prior"):
                space.tried.once(
                    "prior", lambda: prior_of(space.model)(2, np.random.default_rng(0))
                )
        if self.centred_on == "staged":
            stages.rehearse(space)
        if self.centred_on == "reference":
            with on_stand_ins("the fit to the reference"):
                self._reference(space, 1)

    def _sampler(self, schema: Schema) -> str:
        """Return how parameters are drawn."""
        n_parameters = self.space(schema).n_parameters
        few = n_parameters <= max(NODES)
        if self.sampler == "grid" and not few:
            raise InputError(
                f"the model has {n_parameters} parameters and a grid takes at most "
                f"{max(NODES)}; take sampler = nuts, "
                "or rejection for few records"
            )
        return ("grid" if few else "nuts") if self.sampler == "auto" else self.sampler

    def window(self, schema: Schema) -> Fraction:
        """Return the half-width of the window of one draw, in nats."""
        return self.price.window(Sensitivity.of_counts(schema, self.neighbours))

    def target(self, schema: Schema, stage: Stage) -> Target:
        """Return the posterior of one draw."""
        space = self.space(schema)
        weighted = self.weights == "public"
        return Target(
            space=space,
            stage=stage,
            window=self.window(schema),
            clip=self.clip,
            weights=weighted,
        )

    def _reference(self, space: Blueprint, n_records: int) -> Stage:
        wanted: Reference = "prior" if self.reference is None else self.reference
        with ONE_AT_A_TIME:
            key = stages.key_of(wanted), n_records
            return space.tried.once(
                key, lambda: stages.referenced(space, wanted, n_records)
            )

    def stage(self, plan: Plan, curator: Curator) -> Stage:
        """Return what is known before the draw, and ask for the private reference if
        there is one.
        """
        space = self.space(plan.schema)
        if self.centred_on == "staged":
            cells = stages.measure(plan, curator, partial(self._followed, curator))
            covariates = space.beside(_sampled_covariates(plan, curator))
            return stages.after(space, cells, covariates)
        n_public = self.n_records
        if n_public is None:
            n_public = curator.n_records if plan.n_public else 1
        if self.centred_on == "reference":
            return self._reference(space, n_public)
        return Stage(anchor=stages.anchor_of_prior(space.prior), n_records=n_public)

    def _followed(self, curator: Curator, noisy: IntArray) -> IntArray:
        """Return what the draws depend on of noisy counts: audits follow them."""
        return curator.decide(noisy, lambda counts: counts)

    def ask(self, plan: Plan, curator: Curator) -> DrawnParameters:
        """Ask for the private reference, and for parameters."""
        with ONE_AT_A_TIME, curator.timed("finding where to look"):
            stage = self.stage(plan, curator)
            draws = self.draws_from(self.target(plan.schema, stage))
        with ONE_AT_A_TIME, curator.timed("drawing the parameters"):
            answers = [curator.draw(plan.steps[-1], draws) for _ in range(self.n_draws)]
            drawn = draws.parameters(answers, curator.generator)
        shows = isinstance(draws, ChainDraws)
        if isinstance(draws, GridDraws):
            shows = bool(draws.records[0])
        return DrawnParameters(
            values=drawn if self.split == "per-set" else drawn[0],
            diagnostics=draws.diagnostics,
            closer=Inspected(draws, drawn) if shows else None,
        )

    def draw(
        self,
        plan: Plan,
        measured: DrawnParameters,
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Draw records from the model at the parameters: with ``split="per-set"`` of
        no more sets than these were drawn for.
        """
        draw = self.space(plan.schema).draw
        n_records = self.n_records or public.n_records
        sets = synthetic_sets(
            draw, plan.schema, public, measured.values, n_sets, n_records, rng
        )
        return Drawn(
            sets=sets, diagnostics=measured.diagnostics, closer=measured.closer
        )

    def draws_from(self, target: Target) -> Draws:
        """Return what the parameters are drawn from, once a curator gives it a
        table.
        """
        sampler = self._sampler(target.space.schema)
        if sampler == "nuts":
            lengths = {
                "draws": self.draws,
                "tune": self.tune,
                "chains": self.n_chains,
                "sampler": self.nuts,
            }
            return ChainDraws(target, self.n_draws, **lengths)
        return (
            GridDraws(target)
            if sampler == "grid"
            else RejectionDraws(target, self.n_draws)
        )

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse or warn, from public facts alone and before anything is spent, of what
        can't work.
        """
        if self.sampler == "rejection":
            check_proposals(
                table.n_records, self.window(plan.schema), n_draws=self.n_draws
            )
        n_public = self.n_records or (table.n_records if plan.n_public else 1)
        if n_public * self.window(plan.schema) < USELESS:
            warnings.warn(
                f"epsilon is so small that all records together move the log density "
                f"by less than {USELESS} nats: what "
                "is released says next to nothing beyond the prior or the reference",
                UselessWarning,
                stacklevel=3,
            )

    def shown(self) -> dict[str, Any]:
        """Return settings that are published otherwise than given: what was filled in,
        and the model's text.
        """
        reference: Any = self.reference
        if isinstance(reference, Mapping):
            reference = dict(reference)
        elif reference is not None:
            reference = Path(reference).name
        share = None
        if self.centred_on == "staged":
            share = as_float(exact(self.share, "share"))
        shown = {"centre": self.centred_on, "reference": reference, "share": share}
        return super().shown() | shown

    def _sentences(self, schema: Schema) -> str:
        """Return what is done, for a disclosure board."""
        n_draws = self.n_draws
        names = [name for name, column in schema.columns.items() if not column.public]
        drawn = "one draw"
        if n_draws > 1:
            drawn = f"{n_draws} independent draws, one for each set,"
        parts = [
            f"Synthetic records come from the analyst's model at {drawn} of its "
            f"parameters from a posterior in which "
            "each record's term is kept inside a window, so that no record can move "
            "the log density by more than its "
            "share.",
            CENTRES[self.centred_on],
        ]
        if self.weights == "public":
            parts.append(
                "Terms are weighed by weights that depend on their record "
                "and on public values only."
            )
        parts.append(SAMPLING[self._sampler(schema)])
        if self.kind == "zcdp":
            spent = (
                ("Draws and the private reference")
                if self.centred_on == "staged"
                else "Draws"
            )
            parts.append(
                f"{spent} are added up as zero-concentrated losses and read at delta."
            )
        if self.n_sets > 1 and n_draws == 1:
            parts.append(
                f"All {self.n_sets} sets share one draw: what differs between them "
                f"does not show how uncertain "
                "parameters are."
            )
        named = ", ".join(names)
        parts.append(
            f"The model of {named} and its priors are public, and were not "
            f"chosen by looking at the table."
        )
        if not self.source.text:
            parts.append(UNRECORDED)
        return " ".join(parts)


def _sampled_covariates(plan: Plan, curator: Curator) -> Values:
    """Return public columns of so many records as the first stage simulates, drawn at
    random among the table's.
    """
    if not plan.schema.public_columns:
        return {}
    rng = curator.generator
    n_records = curator.n_records
    rows = curator.keep(lambda: rng.integers(n_records, size=stages.SIMULATED))
    covariates = public_values(curator.public)
    return {name: values[rows] for name, values in covariates.items()}


@dataclass(frozen=True, eq=False)
class Inspected:
    """What a curator may see of the posterior behind a release: confidential."""

    draws: Draws
    parameters: Sequence[Parameters]

    def __call__(self) -> Any:
        # what it needs takes seconds to import
        inspect_draws = load("pdips.posterior.inspection:inspect_draws")
        return inspect_draws(self.draws, self.parameters)

    def model(self) -> Any:
        """Return the model of the posterior: of all records, bounded, and of what was
        simulated for the centre.
        """
        rows: Values = {}
        if isinstance(self.draws, ChainDraws):
            rows = self.draws.values
        if isinstance(self.draws, GridDraws):
            values, counts = self.draws.records
            rows = {
                name: np.repeat(column, counts, axis=0)
                for name, column in values.items()
            }
        return self.draws.target.model_of(rows).model
