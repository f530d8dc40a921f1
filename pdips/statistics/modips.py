"""modips: bounded statistics sanitized once, a PyMC model of them, and as many synthetic sets as wanted (paper 003)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.histogram.urns import check_n_records
from pdips.mechanism import Drawn, Mechanism, Split
from pdips.posterior import nuts as sampling
from pdips.posterior.censored_posterior import largest_rho
from pdips.posterior.columns import public_columns
from pdips.privacy.curator import Clock, Curator, Progress
from pdips.privacy.loss import Number, PrivacyLoss, as_float, choice, exact, positive, zcdp
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Plan
from pdips.release.release import Release, RunRecord
from pdips.statistics.model import Options, StatisticModel, as_statistic_model
from pdips.statistics.noisy_model import Likelihood
from pdips.statistics.plan import StatisticPlan
from pdips.statistics.synthesis import STATISTICS, Synthesis, rehearse, synthesize

Budget = Literal["equal", "optimal"]

STATISTIC_WORDS = {
    "Counts": "counts by cell",
    "Sums": "sums of columns counted from the middle of their public bounds",
    "Products": "sums of products of such columns",
    "Scatter": "sums of squares about the mean",
    "Logistic": "coefficients of regularised logistic regressions",
}
"""What is said of the statistics that ship, by the names of their types."""


@dataclass(frozen=True, kw_only=True)
class Modips(Mechanism):
    """Records from a PyMC model of noisy statistics: model-based synthesis.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person. ``"1/3"`` and ``0.1`` are taken as written.
    n_sets : int
        Number of synthetic sets.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public.
    model : path, name or StatisticModel
        A file with ``statistics``, ``build_model`` and ``draw_records``, or the name of one that comes with pdips.
    likelihood : {"noise-aware", "plug-in"}
        Whether the posterior allows for the noise, or takes noisy statistics as if exact, as in the paper.
    split : {"once", "per-set"}
        One sanitization for all sets, each from a posterior draw of its own; or one for each set, which shares the
        budget among them, as in the paper.
    budget : {"optimal", "equal"}, mapping of str to number, or str
        How the budget is divided over the statistics: so that the sum of the relative variances of the noise is
        smallest for records spread evenly over the schema, evenly, or as given, in words "total=2/3,squares=1/3".
    kind : {"pure", "zcdp"}
        Discrete Laplace noise, whose losses add up in epsilon; or discrete Gaussian noise, read at ``delta``.
    delta : int, float, str or Fraction
        For ``kind="zcdp"``.
    n_records : int, optional
        Public number of synthetic records. By default as many as the table has, which add-remove can't reveal.
    nuts : {"auto", "nutpie", "pymc", "numpyro"}
        Whose NUTS: nutpie's, PyMC's own, or numpyro's if it is installed. With "auto", a sampler made for the model
        goes before NUTS, if there is one that recognises it.
    draws, tune, n_chains : int, optional
        Draws of each chain, or independent ones; steps before them; chains. By default 1,000, 1,000 and 4. What a
        sampler that is no NUTS doesn't have is refused.

    Raises
    ------
    InputError
        If a setting is out of range, or the model can't be read.

    Notes
    -----
    Neighbours: as asked for. Statistics are whole numbers whose sensitivities follow from the schema; independent
    discrete Laplace noise of scale (sensitivity / share of epsilon) on each makes them epsilon-private together
    (sequential composition), discrete Gaussian noise rho-zero-concentrated. All that follows reads noisy statistics and
    public facts only: chains, how long they run and whether they agree can't lose anything, and any number of sets
    costs the same. Proof: ``docs/proofs/modips.md``. Paper 003, section 3.2.2, after Liu (2016), splits epsilon over
    the sets instead. Noise-aware posteriors: Bernstein and Sheldon (2018), *Differentially private Bayesian inference
    for exponential families*.
    """

    name: ClassVar[str] = "modips"
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")

    model: str | Path | StatisticModel | Any = None
    likelihood: Likelihood = "noise-aware"
    split: Split = "once"
    budget: Budget | Mapping[str, Number] | str = "optimal"
    kind: Literal["pure", "zcdp"] = "pure"
    delta: Number = "1/1000000"
    n_records: int | None = None
    nuts: sampling.Sampler = "auto"
    draws: int | None = None
    tune: int | None = None
    n_chains: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_n_records(self.n_records, self.neighbours)
        choice(self.likelihood, ("noise-aware", "plug-in"), "likelihood")
        choice(self.kind, ("pure", "zcdp"), "kind")
        choice(self.nuts, sampling.SAMPLERS, "nuts")
        if isinstance(self.budget, str) and "=" in self.budget:
            object.__setattr__(self, "budget", _shares(self.budget))
        elif isinstance(self.budget, Mapping):  # read once
            object.__setattr__(self, "budget", {str(name): share for name, share in list(self.budget.items())})
        if not isinstance(self.budget, Mapping):
            choice(self.budget, ("optimal", "equal"), "budget")
        if not 0 < positive(self.delta, "delta") < 1:
            raise InputError(f"delta must be above 0 and below 1, got {self.delta}")
        for name in ("draws", "tune", "n_chains"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= 1_000_000):
                raise InputError(f"{name} must be a whole number from 1 to 1,000,000, got {value}")
        if self.model is not None:
            object.__setattr__(self, "model", as_statistic_model(self.model))
        self.amount  # noqa: B018 - refuses an epsilon that is too small for its kind

    @property
    def n_sanitizations(self) -> int:
        """How often statistics are sanitized."""
        return self.n_sets if self.split == "per-set" else 1

    @property
    def rho(self) -> Fraction:
        """The total as a zero-concentrated loss; 0 for a pure one."""
        if self.kind == "pure":
            return Fraction(0)
        return largest_rho(exact(self.epsilon, "epsilon"), exact(self.delta, "delta"))

    @property
    def amount(self) -> Fraction:
        """Epsilon or rho of one sanitization."""
        return (self.rho or exact(self.epsilon, "epsilon")) / self.n_sanitizations

    @property
    def _model(self) -> StatisticModel:
        if self.model is None:
            raise InputError(f"{self.name} needs a model: --model with a file or the name of one (pdips models list)")
        return as_statistic_model(self.model)

    @property
    def _budget(self) -> Budget | Mapping[str, Number]:
        if isinstance(self.budget, str):
            return "equal" if self.budget == "equal" else "optimal"
        return self.budget

    def design(self, schema: Schema) -> StatisticPlan:
        """Return which statistics are measured of tables of a schema, and with how much noise.

        Raises
        ------
        InputError
            If there is no model, or its statistics don't fit the schema.
        """
        return StatisticPlan(
            schema=schema,
            neighbours=self.neighbours,
            statistics=self._model.declared(schema, self.neighbours),
            budget=self._budget,
            amount=self.amount,
            law="laplace" if self.kind == "pure" else "gaussian",
        )

    def plan(self, schema: Schema) -> Plan:
        """Return what is asked of tables of a schema: one step for each statistic that isn't public."""
        design = self.design(schema)
        if schema.public_columns and (self.neighbours == "add-remove" or self.n_records is not None):
            raise InputError(
                "public columns show the number of records, so neighbours = add-remove and n_records don't go with them"
            )
        rehearse(self._synthesis(), design, at_release=False)
        return design.priced(
            mechanism=self.name,
            repeats=self.n_sanitizations,
            n_sets=self.n_sets,
            law=_law_of(self, design),
            kind=self.kind,
            delta=Fraction(0) if self.kind == "pure" else exact(self.delta, "delta"),
            claim=None if self.kind == "pure" else exact(self.epsilon, "epsilon"),
        )

    def without_schema(self, epsilon: Fraction, text: str) -> PrivacyLoss:
        """Return the price before there is a schema: zero-concentrated losses are read at delta."""
        if self.kind == "zcdp":
            return zcdp(self.rho, self.delta, self.neighbours, text)
        return super().without_schema(epsilon, text)

    def check(self, plan: Plan, table: Table) -> None:
        """Try the release on as many made-up records as the table has, where their number is public."""
        n_records = table.n_records if plan.n_public else None
        rehearse(self._synthesis(), plan.design, n_records, at_release=True)

    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
        """Ask all statistics, and draw sets from the posterior that they leave."""
        design: StatisticPlan = plan.design
        with curator.timed("adding noise"):
            measured = [design.ask(curator) for _ in range(plan.repeats)]
        public = public_columns(curator.public) if plan.schema.public_columns else (pd.DataFrame(), {})
        return synthesize(self._synthesis(), measured, *public, rng, curator.timed).drawn()

    def shown(self) -> dict[str, Any]:
        """Return the budget, delta and the text of the model, which is public, as plain values."""
        budget = self.budget
        model: Any = self.model
        return {
            "budget": {name: str(share) for name, share in budget.items()} if isinstance(budget, Mapping) else budget,
            "delta": as_float(exact(self.delta, "delta")) if self.kind == "zcdp" else 0.0,
            "model": None if model is None else model.name,
            "model_source": None if model is None else model.text,
        }

    def _synthesis(self) -> Synthesis:
        options = Options(draws=self.draws, tune=self.tune, chains=self.n_chains, nuts=self.nuts)
        return Synthesis(
            model=self._model,
            likelihood=self.likelihood,
            n_sets=self.n_sets,
            n_records=self.n_records,
            options=options,
        )

    def again(
        self, release: Release, *, n_sets: int, rng: np.random.Generator | None = None, progress: Progress | None = None
    ) -> tuple[Release, RunRecord]:
        """Draw more sets from the noisy statistics of a release: post-processing, at no further cost.

        The model and the likelihood may be others than those of the release, as long as the statistics are the same.

        Parameters
        ----------
        release : Release
            Of ``split="once"``, without public columns.
        n_sets : int
            Number of sets.
        rng : numpy.random.Generator, optional
            For tests and studies; it protects nothing here.
        progress : callable, optional
            Told the name of each step.

        Returns
        -------
        Release, RunRecord
            With the loss of the first, of which it is a part.

        Raises
        ------
        InputError
            If the release isn't one of this mechanism with the same statistics.
        """
        if release.mechanism != self.name or release.settings.get("split") != "once" or self.split != "once":
            raise InputError(
                "more sets are drawn from a release of modips with split = once, by a mechanism of the same"
            )
        if release.schema.public_columns:
            raise InputError("more sets of a release with public columns need the table: release it with more sets")
        settings = {name: release.settings.get(name) for name in ("epsilon", "neighbours", "kind", "delta", "budget")}
        if settings != {name: self.settings()[name] for name in settings}:
            raise InputError("epsilon, neighbours, kind, delta and budget must be those of the release")
        clock, bits = Clock(progress), RandomBits(rng)
        measured = self.design(release.schema).restored(release.tables[STATISTICS])
        synthesis = replace(self._synthesis(), n_sets=n_sets)
        drawn = synthesize(synthesis, [measured], pd.DataFrame(), {}, bits.generator(), clock.step).drawn()
        made = replace(release, sets=tuple(drawn.sets), tables=drawn.tables, statistics=drawn.statistics)
        return made, RunRecord(
            seconds=clock.seconds, peak_memory=0.0, diagnostics=drawn.diagnostics, closer=drawn.closer
        )


def _shares(text: str) -> dict[str, Number]:
    """Return shares of the budget that are given in words, "name=share,name=share"."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    return {name.strip(): share.strip() for name, _, share in pairs}


def _law_of(mechanism: Modips, design: StatisticPlan) -> str:
    """Return what the mechanism does, for the disclosure board."""
    each = mechanism.n_sanitizations
    names = {type(statistic).__name__ for statistic in design.statistics.values()}
    known = [words for name, words in STATISTIC_WORDS.items() if name in names]
    noise = (
        "independent discrete Laplace noise of scale (sensitivity / its share of epsilon) is added to each number that "
        "isn't public"
        if mechanism.kind == "pure"
        else "independent discrete Gaussian noise is added to each number that isn't public, and losses are added up "
        "as zero-concentrated ones"
    )
    repeated = f" This is done {each} times, once for each set, each with its part of the budget." if each > 1 else ""
    return (
        f"Bounded statistics of the table ({', '.join(known)}) are worked out in whole numbers, and {noise}."
        f"{repeated} Everything else, Markov chains where there are any, is worked out from these noisy statistics and "
        "public facts, so that it costs nothing: neither how well chains mix nor how many sets are drawn weakens the "
        "guarantee. The model and its priors say what the synthetic records look like; they were not chosen by looking "
        "at the table."
    )
