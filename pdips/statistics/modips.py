"""modips (Bowen and Liu 2020): statistics sanitized once, a PyMC model of them, as many sets as wanted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import DataError, InputError
from pdips.histogram.urns import check_n_records, check_public
from pdips.mechanism import Drawn, LaplaceOrGaussian, Split
from pdips.posterior import nuts as sampling
from pdips.posterior.columns import public_columns
from pdips.posterior.columns import to_frame as to_records
from pdips.posterior.inspection import Posterior, inspect_statistics, published_draws
from pdips.posterior.model_checks import Tried, on_stand_ins
from pdips.privacy.curator import Clock, Curator, Progress
from pdips.privacy.loss import Number, check_whole, choice
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Plan
from pdips.release.noisy_margins import MeasuredMargin, axes_of
from pdips.release.release import Release, RunRecord
from pdips.statistics import averaging
from pdips.statistics.logistic import MOST_RECORDS, Logistic
from pdips.statistics.model import Options, PosteriorFit, RecordRequest, StatisticModel, as_statistic_model, fit
from pdips.statistics.noisy_model import Likelihood
from pdips.statistics.plan import NoisyStatistics, StatisticPlan, number_of_records, settle, to_frame
from pdips.statistics.statistic import Counts

Known = tuple[pd.DataFrame, Mapping[str, NDArray[Any]]]
"""Public columns as they are written, and as models read them, in one order."""

STATISTICS, POSTERIOR, MODELS = "statistics", "posterior", "models"

STATISTIC_WORDS = {
    "Counts": "counts by cell",
    "Sums": "sums of columns counted from the middle of their public bounds",
    "Products": "sums of products of such columns",
    "Scatter": "sums of squares about the mean",
    "Logistic": "coefficients of regularised logistic regressions",
}
"""What is said of the statistics that ship, by the names of their types."""

MOST_COLUMNS = 1_000  # Numbers of a posterior draw up to which draws are published beside the sets
CHECKED_DRAWS = 100
MOST_SIMULATED = 10_000_000  # Draws from which noisy statistics are simulated, and records in all
SEED = 17

MOST_TRIED = 1_000  # Records of a release that is tried on stand-ins

_tried = Tried()


@dataclass(frozen=True, kw_only=True)
class Modips(LaplaceOrGaussian):
    """Records from a PyMC model of noisy statistics: model-based synthesis.

    ``epsilon``, ``n_sets`` and ``neighbours`` are those of :class:`pdips.mechanism.Mechanism`.

    Parameters
    ----------
    model : path, name or StatisticModel, or a sequence of these
        A file with ``statistics``, ``build_model`` and ``draw_records``, or the name of one that comes with pdips. Of
        several all statistics are measured. Sets are drawn from the mixture that best predicts the noisy statistics
        which all declare (:mod:`pdips.statistics.averaging`); the table ``models`` has the weights.
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
    Statistics are whole numbers whose sensitivities follow from the schema; independent discrete Laplace noise of scale
    (sensitivity / share of epsilon) on each makes them epsilon-private together, discrete Gaussian noise
    rho-zero-concentrated. All that follows reads noisy statistics and public facts only: chains, how long they run and
    whether they agree can't lose anything, and any number of sets costs the same (``docs/proofs/modips.md``). Bowen and
    Liu (2020), section 3.2.2, after Liu (2016), splits epsilon over the sets instead. Noise-aware posteriors: Bernstein
    and Sheldon (2018), *Differentially private Bayesian inference for exponential families*.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=[0, 1])})
    >>> table = Table(pd.DataFrame({"ill": [0] * 300 + [1] * 100}), schema)
    >>> release, record = Modips(epsilon=1, model="bernoulli", n_sets=2).release(table)
    >>> [len(made) for made in release.sets]
    [400, 400]
    """

    name: ClassVar[str] = "modips"
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
        if isinstance(self.budget, str) and "=" in self.budget:
            pairs = [pair.partition("=") for pair in self.budget.split(",")]
            object.__setattr__(self, "budget", {name.strip(): share.strip() for name, _, share in pairs})
        elif isinstance(self.budget, Mapping):  # read once
            object.__setattr__(self, "budget", {str(name): share for name, share in list(self.budget.items())})
        else:
            choice(self.budget, ("optimal", "equal"), "budget")
        for name in self._options.given():
            check_whole(getattr(self, name), name)
        if self.model is not None:
            given: Any = self.model
            several = isinstance(given, Sequence) and not isinstance(given, str)
            models = tuple(as_statistic_model(each) for each in (given if several else [given]))
            if len({model.name for model in models}) < max(len(models), 1):
                raise InputError("models must be at least one, and have different names")
            if len(models) > 1 and self.split == "per-set":
                raise InputError("several models go with split = once: they are weighed by one sanitization")
            object.__setattr__(self, "model", models if len(models) > 1 else models[0])

    @property
    def _sources(self) -> tuple[StatisticModel, ...]:
        """The models, once they have been read from wherever they were given."""
        return cast(tuple[StatisticModel, ...], self.model if isinstance(self.model, tuple) else (self.model,))

    @property
    def _options(self) -> Options:
        return Options(draws=self.draws, tune=self.tune, chains=self.n_chains, nuts=self.nuts)

    def design(self, schema: Schema) -> StatisticPlan:
        """Return which statistics are measured of tables of a schema, and with how much noise."""
        if self.model is None:
            raise InputError(f"{self.name} needs a model: --model with a file or the name of one (pdips models list)")
        return StatisticPlan(
            schema=schema,
            neighbours=self.neighbours,
            statistics=averaging.declared(self._sources, schema, self.neighbours),
            budget=self.budget,
            amount=self.total / self.rounds,
            law=self.noise_law,
        )

    def plan(self, schema: Schema) -> Plan:
        """Return what is asked of tables of a schema: one step for each statistic that isn't public."""
        self.check_schema(schema)
        design = self.design(schema)
        check_public(schema, self.neighbours, self.n_records)
        self._rehearse(design, at_release=False)
        return design.priced(
            mechanism=self.name, repeats=self.rounds, n_sets=self.n_sets, law=self._law(design), **self.reading
        )

    def _law(self, design: StatisticPlan) -> str:
        """Return what is done, for the disclosure board."""
        names = {type(statistic).__name__ for statistic in design.statistics.values()}
        known = [words for name, words in STATISTIC_WORDS.items() if name in names]
        noise = (
            "independent discrete Laplace noise of scale (sensitivity / its share of epsilon) is added to each number "
            "that isn't public"
            if self.kind == "pure"
            else "independent discrete Gaussian noise is added to each number that isn't public, and losses are added "
            "up as zero-concentrated ones"
        )
        rounds = self.rounds
        repeated = f" This is done {rounds} times, once for each set, each with its part of the budget."
        return (
            f"Bounded statistics of the table ({', '.join(known)}) are worked out in whole numbers, and {noise}."
            f"{repeated if rounds > 1 else ''} Everything else, Markov chains where there are any, is worked out from "
            "these noisy statistics and public facts, so that it costs nothing: neither how well chains mix nor how "
            "many sets are drawn weakens the guarantee. The model and its priors say what the synthetic records look "
            "like; they were not chosen by looking at the table."
        )

    def check(self, plan: Plan, table: Table) -> None:
        """Try the release on as many made-up records as the table has, where their number is public."""
        if table.n_records > MOST_RECORDS and any(isinstance(part.statistic, Logistic) for part in plan.design.parts):
            raise DataError(f"logistic regressions are made for tables of at most {MOST_RECORDS:,} records")
        self._rehearse(plan.design, table.n_records if plan.n_public else None, at_release=True)

    def _rehearse(self, design: StatisticPlan, n_records: int | None = None, *, at_release: bool) -> None:
        """Try a release on stand-ins: statistics, noise, the model, its density and gradient, draws, records.

        Nothing here reads a record. What passed is remembered; a price alone is tried at one scale of the noise.
        """
        parts = tuple((part.name, repr(part.statistic), part.law, part.n_noised) for part in design.parts)
        settings = (self.likelihood, self._options, bool(self.n_records), design.neighbours)
        models = tuple(source.text or source for source in self._sources)
        price = (models, design.schema.to_toml(), parts, *settings)
        release = (*price, n_records, tuple(part.scale for part in design.parts))

        def attempt() -> None:
            tried = design.tried(n_records)
            public = pd.DataFrame({name: np.zeros(len(values)) for name, values in tried.public.items()})
            records = len(public) or min(self.n_records or tried.n_records or MOST_TRIED, MOST_TRIED)
            short, rng = replace(self, n_sets=len(models), n_records=records), np.random.default_rng(0)
            with on_stand_ins(" or ".join(source.name for source in self._sources)), np.errstate(all="ignore"):
                short._draw([tried], (public, tried.public), rng, Clock().step, trial=True)

        _tried.once(release if at_release else price, attempt)
        _tried.once(price, lambda: None)  # asked after a release

    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
        """Ask all statistics, and draw sets from the posterior that they leave."""
        design: StatisticPlan = plan.design
        with curator.timed("adding noise"):
            measured = [design.ask(curator) for _ in range(plan.repeats)]
        known = public_columns(curator.public) if plan.schema.public_columns else (pd.DataFrame(), {})
        return self._draw(measured, known, rng, curator.timed)

    def _draw(
        self,
        measured: Sequence[NoisyStatistics],
        known: Known,
        rng: np.random.Generator,
        timed: Callable[[str], AbstractContextManager[None]],
        *,
        trial: bool = False,
    ) -> Drawn:
        """Draw synthetic sets from one sanitization for all of them, or one for each."""
        public, covariates = known
        schema, fits, sets = measured[0].schema, list[PosteriorFit](), list[pd.DataFrame]()
        n_draws = self.n_sets if len(measured) == 1 else 1
        settings: dict[str, Any] = {"n_draws": n_draws, "rng": rng, "options": self._options, "trial": trial}
        used, sources = [settle(noisy) for noisy in measured], self._sources
        for noisy, source in product(measured, sources):
            with timed("drawing from the posterior"):
                fits.append(fit(source, noisy, self.likelihood, **settings))
        of, compared = np.zeros(self.n_sets, dtype=np.int64), pd.DataFrame()
        if len(sources) > 1 and trial:
            of = np.arange(self.n_sets)
        elif len(sources) > 1:
            with timed("weighing the models"):
                compared = _compared(sources, measured[0], fits, known)
            places = (rng.permutation(self.n_sets) + rng.random()) / self.n_sets  # as many of each as its weight says
            of = np.searchsorted(compared["weight"].cumsum()[:-1], places, side="right")
        for number in range(self.n_sets):
            with timed(f"drawing synthetic set {number + 1} of {self.n_sets}"):
                place, drawn = (
                    (0, fits[of[number]].draw(number)) if len(measured) == 1 else (number, fits[number].draw(0))
                )
                n = self.n_records or round(number_of_records(measured[place], used[place]))
                columns = sources[of[number]].records(drawn, RecordRequest(n, covariates), schema, rng)
                sets.append(to_records(schema, columns, public, rng))
        tables = {STATISTICS: _stacked([to_frame(*each) for each in zip(measured, used, strict=True)])}
        posterior = [published_draws(each.tree) for each in fits]
        if all(each.shape[1] <= MOST_COLUMNS for each in posterior):
            tables[POSTERIOR] = _stacked(posterior, [source.name for source in sources])
        if len(compared):
            tables[MODELS] = compared.assign(sets=np.bincount(of, minlength=len(sources)))
        agreed = [each.convergence for each in fits if each.convergence is not None] or "independent draws"
        heaviest = int(compared["weight"].argmax()) if len(compared) else 0
        released = np.flatnonzero(of == heaviest)[:n_draws].tolist()
        return Drawn(
            sets=sets,
            statistics={STATISTICS: tables[STATISTICS]},
            tables=tables,
            diagnostics={"likelihood": self.likelihood, "convergence": agreed}
            | ({"models": tables[MODELS].to_dict("records")} if MODELS in tables else {}),
            closer=partial(predictive_check, sources[heaviest], measured[0], fits[heaviest], known, released),
            margins=[margin for each in measured for margin in _margins(each)],
        )

    def shown(self) -> dict[str, Any]:
        """Return the budget, delta and the text of the model, which is public, as plain values."""
        budget, models = self.budget, () if self.model is None else self._sources
        return super().shown() | {
            "budget": {name: str(share) for name, share in budget.items()} if isinstance(budget, Mapping) else budget,
            "model": ", ".join(model.name for model in models) or None,
            "model_source": None if self.model is None else "\n\n".join(model.text for model in models),
        }

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
        drawn = replace(self, n_sets=n_sets)._draw([measured], (pd.DataFrame(), {}), bits.generator(), clock.step)
        tables = {name: release.tables[name] for name in ("margins",) if release.margins} | {**drawn.tables}
        made = replace(release, sets=tuple(drawn.sets), tables=tables, statistics=drawn.statistics)
        return made, RunRecord(
            seconds=clock.seconds, peak_memory=0.0, diagnostics=drawn.diagnostics, closer=drawn.closer
        )


def _stacked(frames: Sequence[pd.DataFrame], models: Sequence[str] = ()) -> pd.DataFrame:
    """Return tables one below the other; with more than one, ``set`` or ``model`` says which each belongs to."""
    if len(frames) == 1:
        return frames[0]
    label = {"model": models} if len(models) > 1 else {"set": range(1, len(frames) + 1)}
    marked = [each.assign(**{name: label[name][place] for name in label}) for place, each in enumerate(frames)]
    return pd.concat(marked, ignore_index=True)


def _compared(
    sources: Sequence[StatisticModel], measured: NoisyStatistics, fits: Sequence[PosteriorFit], known: Known
) -> pd.DataFrame:
    """Weigh models by the noisy statistics that all declare, which records at their posterior draws predict."""
    parts, densities = averaging.shared(sources, measured), []
    for source, fitted in zip(sources, fits, strict=True):
        exact = _simulate(source, measured, fitted, known, averaging.DRAWS, averaging.REPEATS)
        densities.append(averaging.log_predictive(parts, measured, exact))
    return averaging.compare([source.name for source in sources], densities)


def _margins(measured: NoisyStatistics) -> Iterator[MeasuredMargin]:
    """Yield the noisy counts among noisy statistics."""
    for part in measured.of(Counts):
        if part.step is not None:
            names = cast(Counts, part.statistic).by
            axes = axes_of(names, [measured.schema.columns[name].n_levels for name in names])
            yield MeasuredMargin.of(part.step, axes, measured.values[part.name][: part.n_noised])


def predictive_check(
    model: StatisticModel, measured: NoisyStatistics, fitted: PosteriorFit, known: Known, released: Sequence[int]
) -> tuple[dict[str, Any], xr.DataTree]:
    """Simulate noisy statistics from the posterior and compare the published ones with them; reads nothing else.

    Returns what :func:`pdips.posterior.inspection.inspect_statistics` does. The ``sampler`` is "moves" for chains of
    moves made for the model, which have no energy.
    """
    bits, simulated = RandomBits(np.random.default_rng(SEED)), _simulate(model, measured, fitted, known)
    for part in measured.parts:
        if part.n_noised:
            found = simulated[part.name][:, 0]
            found[:, : part.n_noised] += part.noise(len(found), bits)
            simulated[part.name] = found * part.statistic.unit(measured.schema)
    chains = fitted.convergence is not None
    sampler = ("nuts" if "sample_stats" in fitted.tree else "moves") if chains else "independent draws"
    draws = [fitted.draw(number) for number in released]
    facts = {"sampler": sampler, "convergence": fitted.convergence}
    posterior = Posterior(tree=fitted.tree, released=draws, facts=facts, independent=not chains)
    return inspect_statistics(posterior, simulated, {name: measured.value(name) for name in simulated})


def _simulate(
    model: StatisticModel,
    measured: NoisyStatistics,
    fitted: PosteriorFit,
    known: Known,
    most: int = CHECKED_DRAWS,
    repeats: int = 1,
) -> dict[str, FloatArray]:
    """Return exact statistics of records at posterior draws, shape (draws, repeats, entries), by name; whole units."""
    n, (public, covariates) = round(number_of_records(measured, settle(measured))), known
    rng = np.random.default_rng(SEED)
    stacked = fitted.tree["posterior"].to_dataset().stack(sample=("chain", "draw")).transpose("sample", ...)
    total = stacked.sizes["sample"]
    n_draws = max(min(most, total, MOST_SIMULATED // max(n * repeats, 1)), 2)
    rows: dict[str, list[FloatArray]] = {part.name: [] for part in measured.parts if part.n_noised}
    for row in np.repeat(np.linspace(0, total - 1, n_draws).astype(int), repeats):
        draw = {str(name): values.to_numpy()[row] for name, values in stacked.data_vars.items()}
        columns = model.records(draw, RecordRequest(n, covariates), measured.schema, rng)
        table = Table(to_records(measured.schema, columns, public, rng), measured.schema.without_person())
        for part in measured.parts:
            if part.n_noised:
                rows[part.name].append(part.statistic.measure(table).ravel().astype(np.float64))
    return {name: np.array(each).reshape((n_draws, repeats, -1)) for name, each in rows.items()}
