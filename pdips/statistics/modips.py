"""modips (Bowen and Liu 2020): statistics sanitized once, a PyMC model of them, as many
sets as wanted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.convergence import Convergence
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import DataError, InputError
from pdips.histogram.urns import check_n_records, check_public
from pdips.mechanism import Drawn, LaplaceOrGaussian, Split
from pdips.posterior import nuts as sampling
from pdips.posterior.model_checks import Tried, on_stand_ins
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import Curator, timed
from pdips.privacy.loss import Number, check_whole, choice
from pdips.privacy.plan import Plan
from pdips.release.noisy_margins import MeasuredMargin, axes_of
from pdips.release.offers import Offers, SetsShare
from pdips.statistics import averaging
from pdips.statistics.fitted_model import FittedModel, compared
from pdips.statistics.model import Options, StatisticModel, as_statistic_model, fit
from pdips.statistics.noisy_model import Likelihood
from pdips.statistics.plan import NoisyStatistics, StatisticPlan, to_frame
from pdips.statistics.statistic import Counts
from pdips.statistics.tree import published_posteriors

STATISTICS = "statistics"
MODELS = "models"

STATISTIC_WORDS = {
    "Counts": "counts by cell",
    "Sums": "sums of columns counted from the middle of their public bounds",
    "Products": "sums of products of such columns",
    "Scatter": "sums of squares about the mean",
    "Logistic": "coefficients of regularised logistic regressions",
}
"""What is said of the statistics that ship, by the names of their types."""

NOISE_WORDS = {
    "pure": "independent discrete Laplace noise of scale (sensitivity / its share of "
    "epsilon) is added to each number that isn't public",
    "zcdp": "independent discrete Gaussian noise is added to each number that isn't "
    "public, and losses are added up as zero-concentrated ones",
}
POST_PROCESSING = (
    "Everything else, Markov chains where there are any, is worked out from these "
    "noisy statistics and public facts, so that it costs nothing: neither how well "
    "chains mix nor how many sets are drawn weakens the guarantee. The model and its "
    "priors say what the synthetic records look like; they were not chosen by looking "
    "at the table."
)

MOST_TRIED = 1_000  # Records of a release that is tried on stand-ins

_tried = Tried()


@dataclass(frozen=True, kw_only=True)
class Modips(LaplaceOrGaussian):
    """Records from a PyMC model of noisy statistics: model-based synthesis.

    ``epsilon``, ``n_sets`` and ``neighbours`` are those of
    :class:`pdips.mechanism.Mechanism`.

    Parameters
    ----------
    model : path, name or StatisticModel, or a sequence of these
        A file with ``statistics``, ``build_model`` and ``draw_records``, or the name of
        one that comes with pdips. Of several all statistics are measured. Sets are
        drawn from the mixture that best predicts the noisy statistics which all declare
        (:mod:`pdips.statistics.averaging`); the table ``models`` has the weights.
    likelihood : {"noise-aware", "plug-in"}
        Whether the posterior allows for the noise, or takes noisy statistics as if
        exact, as in the paper.
    split : {"once", "per-set"}
        One sanitization for all sets, each from a posterior draw of its own; or one for
        each set, which shares the budget among them, as in the paper.
    budget : {"optimal", "equal"}, mapping of str to number, or str
        How the budget is divided over the statistics: so that the sum of the relative
        variances of the noise is smallest for records spread evenly over the schema,
        evenly, or as given, in words "total=2/3,squares=1/3".
    delta : int, float, str or Fraction, optional
        Left out, noise is discrete Laplace, and losses add up in epsilon. A number
        makes it discrete Gaussian, with a zero-concentrated loss that is read at this
        delta.
    n_records : int, optional
        Public number of synthetic records. By default as many as the table has, which
        add-remove can't reveal.
    nuts : {"auto", "nutpie", "pymc", "numpyro", "blackjax"}
        Whose NUTS: nutpie's, PyMC's own, or numpyro's or blackjax's if installed. With
        "auto", a sampler made for the model goes before NUTS, if there is one that
        recognises it.
    draws, tune, n_chains : int, optional
        Draws of each chain, or independent ones; steps before them; chains. By default
        1,000, 1,000 and 4. What a sampler that is no NUTS doesn't have is refused.

    Raises
    ------
    InputError
        If a setting is out of range, or the model can't be read.

    Notes
    -----
    Statistics are whole numbers whose sensitivities follow from the schema; independent
    discrete Laplace noise of scale (sensitivity / share of epsilon) on each makes them
    epsilon-private together, discrete Gaussian noise rho-zero-concentrated. All that
    follows reads noisy statistics and public facts only: chains, how long they run and
    whether they agree can't lose anything, and any number of sets costs the same
    (``docs/proofs/modips.md``). Bowen and Liu (2020), section 3.2.2, after Liu (2016),
    splits epsilon over the sets instead. Noise-aware posteriors: Bernstein and Sheldon
    (2018), *Differentially private Bayesian inference for exponential families*.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=[0, 1])})
    >>> table = Table(pd.DataFrame({"ill": [0] * 300 + [1] * 100}), schema)
    >>> release, record = Modips(epsilon=1, model="bernoulli", n_sets=2).release(table)
    >>> [len(made) for made in release.sets]
    [400, 400]
    """

    name: ClassVar[str] = "modips"
    offers: ClassVar[Offers] = Offers(
        public_columns=True,
        relations=("replace-one", "add-remove"),
        kinds=("pure", "zcdp"),
        sets_share="posterior",
        posterior_of="answers",
    )
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")

    model: str | Path | StatisticModel | tuple[Any, ...] | Any = None
    likelihood: Likelihood = "noise-aware"
    split: Split = "once"
    budget: Mapping[str, Number] | str = "optimal"
    n_records: int | None = None
    nuts: sampling.Sampler = "auto"
    draws: int | None = None
    tune: int | None = None
    n_chains: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_n_records(self.n_records, self.neighbours)
        choice(self.likelihood, ("noise-aware", "plug-in"), "likelihood")
        choice(self.nuts, sampling.SAMPLERS, "nuts")
        object.__setattr__(self, "budget", _as_budget(self.budget))
        for name in self._options.given():
            check_whole(getattr(self, name), name)
        if self.model is not None:
            models = _as_models(self.model)
            if len(models) > 1 and self.split == "per-set":
                raise InputError(
                    "several models go with split = once: they are "
                    "weighed by one sanitization"
                )
            object.__setattr__(self, "model", models if len(models) > 1 else models[0])

    @property
    def _sources(self) -> tuple[StatisticModel, ...]:
        """The models, once they have been read from wherever they were given."""
        models: Any = self.model
        return models if isinstance(models, tuple) else (models,)

    @property
    def _options(self) -> Options:
        return Options(
            draws=self.draws, tune=self.tune, chains=self.n_chains, nuts=self.nuts
        )

    def design(self, schema: Schema) -> StatisticPlan:
        """Return which statistics are measured of tables of a schema, and with how much
        noise.
        """
        if self.model is None:
            raise InputError(
                f"{self.name} needs a model: --model with a file or the "
                f"name of one (pdips models list)"
            )
        return StatisticPlan(
            schema=schema,
            neighbours=self.neighbours,
            statistics=averaging.declared(self._sources, schema, self.neighbours),
            budget=self.budget,
            amount=self.total / self.rounds,
            law=self.noise_law,
        )

    def sets_share(self) -> SetsShare:
        """Return what the sets share: plug-in posteriors know of no noise."""
        shared = super().sets_share()
        is_plug_in = self.likelihood == "plug-in"
        return "noise" if shared == "posterior" and is_plug_in else shared

    def plan(self, schema: Schema) -> Plan:
        """Return what is asked of tables of a schema: one step for each statistic that
        isn't public.
        """
        self.check_schema(schema)
        design = self.design(schema)
        check_public(schema, self.neighbours, self.n_records)
        self._rehearse(design, at_release=False)
        return design.priced(
            mechanism=self.name,
            repeats=self.rounds,
            n_sets=self.n_sets,
            law=self._law(design),
            **self.reading,
        )

    def _law(self, design: StatisticPlan) -> str:
        """Return what is done, for the disclosure board."""
        names = {type(statistic).__name__ for statistic in design.statistics.values()}
        asked = [words for name, words in STATISTIC_WORDS.items() if name in names]
        noise = NOISE_WORDS[self.kind]
        repeated = ""
        if self.rounds > 1:
            repeated = (
                f" This is done {self.rounds} times, once for each set, each with its "
                f"part of the budget."
            )
        return (
            f"Bounded statistics of the table ({', '.join(asked)}) are worked out in "
            f"whole numbers, and {noise}.{repeated} {POST_PROCESSING}"
        )

    def check(self, plan: Plan, table: Table) -> None:
        """Try the release on as many made-up records as the table has, where their
        number is public.
        """
        for part in plan.design.parts:
            most = part.statistic.most_records
            if most is not None and table.n_records > most:
                raise DataError(
                    f"statistic {part.name!r} is made for tables of at most "
                    f"{most:,} records"
                )
        self._rehearse(
            plan.design, table.n_records if plan.n_public else None, at_release=True
        )

    def _rehearse(
        self, design: StatisticPlan, n_records: int | None = None, *, at_release: bool
    ) -> None:
        """Try a release on stand-ins: statistics, noise, the model, its density and
        gradient, draws, records.

        Nothing here reads a record. What passed is remembered; a price alone is tried
        at one scale of the noise.
        """
        parts = tuple(
            (part.name, repr(part.statistic), part.law, part.n_noised)
            for part in design.parts
        )
        settings = (
            self.likelihood,
            self._options,
            bool(self.n_records),
            design.neighbours,
        )
        models = tuple(source.text or source for source in self._sources)
        price = (models, design.schema.to_toml(), parts, *settings)
        release = (*price, n_records, tuple(part.scale for part in design.parts))

        def attempt() -> None:
            noisy = design.tried(n_records)
            n_drawn = len(noisy.public_frame)
            if not n_drawn:
                wanted = self.n_records or noisy.n_records or MOST_TRIED
                n_drawn = min(wanted, MOST_TRIED)
            short = replace(self, n_sets=len(models), n_records=n_drawn)
            rng = np.random.default_rng(0)
            names = " or ".join(source.name for source in self._sources)
            with on_stand_ins(names), np.errstate(all="ignore"):
                short._drawn([noisy], len(models), rng, trial=True)

        _tried.once(release if at_release else price, attempt)
        _tried.once(price, lambda: None)  # asked after a release

    def ask(self, plan: Plan, curator: Curator) -> list[NoisyStatistics]:
        """Measure all statistics of a plan once for all sets, or once for each."""
        measured = []
        for _ in range(plan.repeats):
            with timed("adding noise"):
                measured.append(plan.design.ask(curator))
        return measured

    def draw(
        self,
        plan: Plan,
        measured: Sequence[NoisyStatistics],
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Draw sets from the posterior that noisy statistics leave; of several
        measurements one after the other.
        """
        return self._drawn(measured, n_sets, rng)

    def _drawn(
        self,
        measured: Sequence[NoisyStatistics],
        n_sets: int,
        rng: np.random.Generator,
        *,
        trial: bool = False,
    ) -> Drawn:
        """Draw as :meth:`draw` does; a trial takes few draws, and one set of each
        model.
        """
        fits = self._fitted(measured, n_sets, rng, trial=trial)
        weights = pd.DataFrame()
        model_of_set = np.zeros(n_sets, dtype=np.int64)
        if len(self._sources) > 1 and trial:
            model_of_set = np.arange(n_sets)
        elif len(self._sources) > 1:
            with timed("weighing the models"):
                weights = compared(fits)
            model_of_set = _shared_out(weights["weight"], n_sets, rng)
            counts = np.bincount(model_of_set, minlength=len(weights))
            weights = weights.assign(sets=counts)
        sets = []
        for number, model in enumerate(model_of_set):
            with timed(f"drawing synthetic set {number + 1} of {n_sets}"):
                turn, measurement = divmod(number, len(measured))
                fitted = fits[measurement * len(self._sources) + model]
                draw = fitted.posterior.draw(turn)
                n = self.n_records or fitted.n_records
                sets.append(fitted.records(draw, n, rng))
        heaviest = 0 if weights.empty else int(weights["weight"].argmax())
        of_heaviest = np.flatnonzero(model_of_set == heaviest)
        released = of_heaviest[: _draws_of_each(measured, n_sets)].tolist()
        tables = {STATISTICS: _stacked(measured)}
        diagnostics: dict[str, Any] = {
            "likelihood": self.likelihood,
            "convergence": _agreement(fits),
        }
        if not weights.empty:
            tables[MODELS] = weights
            diagnostics["models"] = weights.to_dict("records")
        return Drawn(
            sets=sets,
            tables=tables,
            diagnostics=diagnostics,
            closer=partial(fits[heaviest].predictive_check, released),
            margins=[margin for noisy in measured for margin in _margins(noisy)],
            posterior_draws=published_posteriors(fits, heaviest),
        )

    def _fitted(
        self,
        measured: Sequence[NoisyStatistics],
        n_sets: int,
        rng: np.random.Generator,
        *,
        trial: bool,
    ) -> list[FittedModel]:
        """Return the posterior of each model for each measurement; models of one
        measurement stand together.
        """
        fits = []
        for noisy, source in product(measured, self._sources):
            with timed("drawing from the posterior"):
                posterior = fit(
                    source,
                    noisy,
                    self.likelihood,
                    n_draws=_draws_of_each(measured, n_sets),
                    rng=rng,
                    options=self._options,
                    trial=trial,
                )
            fits.append(FittedModel(source, noisy, posterior))
        return fits

    def shown(self) -> dict[str, Any]:
        """Return the budget, delta and the text of the model, which is public, as plain
        values.
        """
        budget: Any = self.budget
        if isinstance(budget, Mapping):
            budget = {name: str(share) for name, share in budget.items()}
        name = None
        text = None
        if self.model is not None:
            name = ", ".join(source.name for source in self._sources)
            text = "\n\n".join(source.text for source in self._sources)
        return super().shown() | {"budget": budget, "model": name, "model_source": text}


def _as_budget(budget: Mapping[str, Number] | str) -> dict[str, Any] | str:
    """Return a budget as a word, or as shares by name, read once."""
    if isinstance(budget, Mapping):
        return {str(name): share for name, share in list(budget.items())}
    if isinstance(budget, str) and "=" in budget:
        pairs = [pair.partition("=") for pair in budget.split(",")]
        return {name.strip(): share.strip() for name, _, share in pairs}
    choice(budget, ("optimal", "equal"), "budget")
    return budget


def _as_models(given: Any) -> tuple[StatisticModel, ...]:
    """Read one model or several, of different names."""
    several = isinstance(given, Sequence) and not isinstance(given, str)
    models = tuple(as_statistic_model(one) for one in (given if several else [given]))
    if len({model.name for model in models}) < max(len(models), 1):
        raise InputError("models must be at least one, and have different names")
    return models


def _draws_of_each(measured: Sequence[NoisyStatistics], n_sets: int) -> int:
    """Return how many sets are drawn from the posterior of each measurement at most."""
    return -(-n_sets // len(measured))


def _shared_out(
    weights: "pd.Series[float]", n_sets: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the model of each set: as many sets of each as its weight says."""
    places = (rng.permutation(n_sets) + rng.random()) / n_sets
    bounds = weights.cumsum()[:-1]
    return np.searchsorted(bounds, places, side="right")


def _agreement(fits: Sequence[FittedModel]) -> list[Convergence] | str:
    """Return how well the chains of each posterior agree, where there are chains."""
    convergences = [fitted.posterior.convergence for fitted in fits]
    return [each for each in convergences if each is not None] or "independent draws"


def _stacked(measured: Sequence[NoisyStatistics]) -> pd.DataFrame:
    """Return noisy statistics as they are published; of several measurements, ``set``
    says which each belongs to.
    """
    frames = [to_frame(noisy) for noisy in measured]
    if len(frames) == 1:
        return frames[0]
    marked = [frame.assign(set=number) for number, frame in enumerate(frames, start=1)]
    return pd.concat(marked, ignore_index=True)


def _margins(measured: NoisyStatistics) -> Iterator[MeasuredMargin]:
    """Yield the noisy counts among noisy statistics."""
    columns = measured.schema.columns
    for part in measured.of(Counts):
        if part.step is not None:
            names = cast(Counts, part.statistic).by
            axes = axes_of(names, [columns[name].n_levels for name in names])
            noisy = measured.values[part.name][: part.n_noised]
            yield MeasuredMargin.of(part.step, axes, noisy)
