"""Synthetic sets from noisy statistics: a posterior, a draw for each set, records. All of it post-processing."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.mechanism import Drawn
from pdips.posterior.columns import to_frame as to_records
from pdips.posterior.inspection import MOST_LISTED, Posterior, listed
from pdips.posterior.model_checks import Tried, check_gradient, check_unused, on_stand_ins
from pdips.posterior.model_file import stored_name
from pdips.posterior.nuts import SHORTEST_TUNING, available
from pdips.privacy.curator import Clock
from pdips.privacy.noise import RandomBits
from pdips.statistics.model import (
    Compiled,
    Options,
    PosteriorFit,
    RecordRequest,
    StatisticModel,
    by_own,
    fit,
    prepared,
    start_of,
)
from pdips.statistics.noisy_model import Evidence, Likelihood
from pdips.statistics.plan import NoisyStatistics, StatisticPlan, to_frame
from pdips.statistics.post_processing import number_of_records, settle
from pdips.statistics.samplers import Lengths, SamplerDraws, priors_of_fits

Timed = Callable[[str], AbstractContextManager[None]]

STATISTICS, POSTERIOR = "statistics", "posterior"

MOST_DRAWS = 1_000
MOST_COLUMNS = 1_000
"""Posterior draws, and numbers of each, that are published beside the sets."""

CHECKED_DRAWS = 100
MOST_SIMULATED = 10_000_000
"""Draws from which noisy statistics are simulated, and records in all."""

SEED = 17

SHORT = Lengths(draws=8, tune=8, chains=2, rounds=1)
MOST_TRIED = 1_000
"""Draws and records of a release that is tried on stand-ins."""

_tried = Tried()


@dataclass(frozen=True, kw_only=True)
class Synthesis:
    """How sets are made of noisy statistics.

    Parameters
    ----------
    model : StatisticModel
        The model.
    likelihood : {"noise-aware", "plug-in"}
        How it sees noisy statistics.
    n_sets : int
        Number of sets: each from a posterior draw of its own.
    n_records : int, optional
        Records of each set; as many as the table has unless given.
    options : Options
        How much is drawn from the posterior.
    """

    model: StatisticModel
    likelihood: Likelihood
    n_sets: int
    n_records: int | None
    options: Options


@dataclass(frozen=True, kw_only=True, eq=False)
class SyntheticSets:
    """Synthetic sets, with the noisy statistics and the posteriors that they come from."""

    synthesis: Synthesis
    measured: Sequence[NoisyStatistics]
    fits: Sequence[PosteriorFit]
    sets: Sequence[pd.DataFrame]
    covariates: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    public: pd.DataFrame = field(default_factory=pd.DataFrame)

    def drawn(self) -> Drawn:
        """Return what a mechanism hands over."""
        frames = [to_frame(measured, settle(measured)) for measured in self.measured]
        tables = {STATISTICS: _stacked(frames)}
        posterior = [_published(each) for each in self.fits]
        if all(each.shape[1] <= MOST_COLUMNS for each in posterior):
            tables[POSTERIOR] = _stacked(posterior)
        return Drawn(
            sets=self.sets,
            statistics={STATISTICS: tables[STATISTICS]},
            tables=tables,
            diagnostics={"likelihood": self.synthesis.likelihood, "convergence": _convergence(self.fits)},
            closer=partial(self._closer),
        )

    @property
    def _per_fit(self) -> int:
        """Number of sets that each posterior gave a draw to."""
        return len(self.sets) if len(self.fits) == 1 else 1

    def _closer(self) -> tuple[dict[str, Any], Any]:
        return predictive_check(
            self.synthesis.model, self.measured[0], self.fits[0], self.covariates, self.public, self._per_fit
        )


def synthesize(
    synthesis: Synthesis,
    measured: Sequence[NoisyStatistics],
    public: pd.DataFrame,
    covariates: Mapping[str, NDArray[Any]],
    rng: np.random.Generator,
    timed: Timed,
    fitting: Callable[..., PosteriorFit] = fit,
) -> SyntheticSets:
    """Draw synthetic sets from noisy statistics.

    Parameters
    ----------
    synthesis : Synthesis
        How.
    measured : sequence of NoisyStatistics
        One sanitization for all sets, or one for each.
    public : DataFrame
        Public columns as they are written.
    covariates : mapping of str to ndarray
        The same as models read them.
    rng : numpy.random.Generator
        Randomness, which protects nothing here.
    timed : callable
        Times a part of the work under a name: ``Clock().step`` or a curator's ``timed``.
    fitting : callable
        :func:`pdips.statistics.model.fit`, or what stands in for it when a model is tried.
    """
    schema, fits, sets = measured[0].schema, list[PosteriorFit](), list[pd.DataFrame]()
    each = synthesis.n_sets if len(measured) == 1 else 1
    for noisy in measured:
        with timed("drawing from the posterior"):
            fits.append(
                fitting(synthesis.model, noisy, synthesis.likelihood, n_draws=each, rng=rng, options=synthesis.options)
            )
    for number in range(synthesis.n_sets):
        with timed(f"drawing synthetic set {number + 1} of {synthesis.n_sets}"):
            place = (0, number) if len(measured) == 1 else (number, 0)
            n = synthesis.n_records or _size(measured[place[0]])
            draw = fits[place[0]].draw(place[1])
            columns = synthesis.model.records(draw, RecordRequest(n, covariates), schema, rng)
            sets.append(to_records(schema, columns, public, rng))
    return SyntheticSets(
        synthesis=synthesis, measured=measured, fits=fits, sets=sets, covariates=covariates, public=public
    )


def _size(measured: NoisyStatistics) -> int:
    return round(number_of_records(measured, settle(measured)))


def _stacked(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return tables one below the other; with more than one, ``set`` says which set each belongs to."""
    if len(frames) == 1:
        return frames[0]
    return pd.concat([each.assign(set=number) for number, each in enumerate(frames, start=1)], ignore_index=True)


def _published(fitted: PosteriorFit) -> pd.DataFrame:
    """Return posterior draws as a table, one a row, columns such as ``mu[0, 1]``."""
    stacked = fitted.tree["posterior"].to_dataset().stack(sample=("chain", "draw")).transpose("sample", ...)
    total = stacked.sizes["sample"]
    taken = np.arange(min(total, MOST_DRAWS)) * max(total // MOST_DRAWS, 1)
    columns: dict[str, NDArray[Any]] = {}
    for name, values in stacked.data_vars.items():
        known = values.to_numpy()[taken]
        for place in np.ndindex(known.shape[1:]):
            label = f"{name}[{', '.join(map(str, place))}]" if place else str(name)
            columns[label] = known[(slice(None), *place)]
    return pd.DataFrame(columns)


def _convergence(fits: Sequence[PosteriorFit]) -> Any:
    return [each.convergence for each in fits if each.convergence is not None] or "independent draws"


def rehearse(synthesis: Synthesis, plan: StatisticPlan, n_records: int | None = None, *, at_release: bool) -> None:
    """Try a release on stand-ins: statistics, noise, the model, its density and gradient, draws, records.

    Parameters
    ----------
    synthesis : Synthesis
        How sets are made.
    plan : StatisticPlan
        What is measured.
    n_records : int, optional
        Number of records of the table, where it is public.
    at_release : bool
        Whether a release follows; a price alone is tried at one scale of the noise.

    Raises
    ------
    InputError
        Saying what would have failed.

    Notes
    -----
    Nothing here reads a record. What passed is remembered, so that a price that is asked for again costs nothing.
    """
    parts = tuple((part.name, repr(part.statistic), part.law, part.n_noised) for part in plan.parts)
    settings = (synthesis.likelihood, synthesis.options, bool(synthesis.n_records), plan.neighbours)
    price = (synthesis.model.text or synthesis.model, plan.schema.to_toml(), parts, *settings)
    release = (*price, n_records, tuple(part.scale for part in plan.parts))
    _tried.once(release if at_release else price, partial(_rehearse, synthesis, plan, n_records))
    _tried.once(price, lambda: None)  # asked after a release


def _rehearse(synthesis: Synthesis, plan: StatisticPlan, n_records: int | None) -> None:
    tried = plan.tried(n_records)
    public = pd.DataFrame({name: np.zeros(len(values)) for name, values in tried.public.items()})
    records = len(public) or min(synthesis.n_records or tried.n_records or MOST_TRIED, MOST_TRIED)
    short, rng = replace(synthesis, n_sets=1, n_records=records), np.random.default_rng(0)
    with on_stand_ins(synthesis.model.name), np.errstate(all="ignore"):
        synthesize(short, [tried], public, tried.public, rng, Clock().step, _attempt).drawn()


def _attempt(
    model: StatisticModel,
    measured: NoisyStatistics,
    likelihood: Likelihood,
    *,
    n_draws: int,
    rng: np.random.Generator,
    options: Options,
) -> PosteriorFit:
    """Stand in for :func:`pdips.statistics.model.fit`: a few draws of a sampler made for the model, or its start."""
    given = Evidence(measured, likelihood)
    built, kept = prepared(model, given)
    if kept.own is not None and options.nuts == "auto":
        unused = [name for name in options.given() if name not in kept.own.options]
        check_unused(unused, f"{kept.own.name}, not by NUTS", "nuts = nutpie or pymc")
        found = by_own(model, built, _unjudged(kept), given, SHORT, n_draws, rng)
        if found is not None:
            return found
    priors_of_fits(given, model.name)
    available(built, options.nuts)
    if options.tune is not None and options.tune < SHORTEST_TUNING:
        raise InputError(f"tune must be at least {SHORTEST_TUNING}, got {options.tune}")
    check_gradient(model.name, built, [start_of(built)])
    return PosteriorFit(model.completed(given, _at_start(built, given, n_draws), rng))


def _unjudged(kept: Compiled) -> Compiled:
    """Return the same with a sampler whose chains, which are short here, needn't agree."""

    def draw(given: Evidence, lengths: Lengths, rng: np.random.Generator) -> SamplerDraws | None:
        drawn = None if kept.own is None else kept.own.draw(given, lengths, rng)
        return None if drawn is None else replace(drawn, convergence=None)

    return kept if kept.own is None else replace(kept, own=replace(kept.own, draw=draw))


def _at_start(built: pm.Model, given: Evidence, n_draws: int) -> dict[str, NDArray[Any]]:
    """Return the variables of a model where chains start, shape (n_draws, ...), as draws have them."""
    named = [each for each in (*built.free_RVs, *built.deterministics) if each.name not in given.latents]
    graphs = built.replace_rvs_by_values(named)
    values = built.compile_fn(graphs, inputs=built.value_vars, mode="FAST_COMPILE", on_unused_input="ignore")
    found = values(start_of(built))
    return {str(each.name): np.stack([value] * n_draws) for each, value in zip(named, found, strict=True)}


def predictive_check(
    model: StatisticModel,
    measured: NoisyStatistics,
    fitted: PosteriorFit,
    covariates: Mapping[str, NDArray[Any]],
    public: pd.DataFrame,
    released: int,
) -> tuple[dict[str, Any], xr.DataTree]:
    """Simulate noisy statistics from the posterior and compare the published ones with them.

    Every draw gives records, their statistics, and noise of the published law. It reads nothing but what is published.

    Returns
    -------
    dict
        ``posterior``: its parameters, the ``sampler`` (``moves``: chains of moves made for the model, which have no
        energy), how well chains agree, and ``predictive``: for each statistic the share of
        entries whose published value lies outside the central 95 % of the simulated ones, the smallest two-sided
        p-value, and how many standard deviations of the simulated ones the ``furthest`` entry is off their mean.
    DataTree
        Groups ``posterior``, ``sample_stats`` of chains, ``posterior_predictive`` (chain, draw, entry) and
        ``observed_data``: the noisy statistics, which are published.
    """
    simulated = _simulate(model, measured, fitted, covariates, public)
    found, tree = {}, fitted.tree.copy()
    for name, values in simulated.items():
        noisy = measured.value(name)
        below, above = (values <= noisy).mean(axis=0), (values >= noisy).mean(axis=0)
        p_values = np.minimum(2 * (np.minimum(below, above) * len(values) + 1) / (len(values) + 1), 1.0)
        low, high = np.quantile(values, [0.025, 0.975], axis=0)
        outside = float(((noisy < low) | (noisy > high)).mean())
        found[name] = {"outside": outside, "smallest_p": float(p_values.min()), "entries": len(noisy)}
        found[name]["furthest"] = _furthest(noisy, values)
    names = {name: stored_name(name) for name in simulated}
    predicted = {each: (["chain", "draw", f"{each} entry"], simulated[name][None]) for name, each in names.items()}
    observed = {each: ([f"{each} entry"], measured.value(name)) for name, each in names.items()}
    tree["posterior_predictive"] = xr.DataTree(xr.Dataset(predicted))
    tree["observed_data"] = xr.DataTree(xr.Dataset(observed))
    return {"posterior": _facts(fitted, released) | {"predictive": found}}, tree


def _furthest(noisy: NDArray[Any], simulated: FloatArray) -> float:
    spread = simulated.std(axis=0)
    moving = spread > 0
    off = np.abs(noisy - simulated.mean(axis=0))[moving] / spread[moving]
    return float(off.max(initial=0.0))


def _facts(fitted: PosteriorFit, n_released: int) -> dict[str, Any]:
    """Return what the report shows of the posterior."""
    chains = fitted.convergence is not None
    released = [fitted.draw(number) for number in range(n_released)]
    posterior = Posterior(tree=fitted.tree, released=released, facts={}, independent=not chains)
    rows = listed(posterior)
    found = fitted.tree["posterior"]
    facts = {"parameters": rows[:MOST_LISTED], "more": max(0, len(rows) - MOST_LISTED)}
    facts |= {"draws": int(found.sizes["draw"]), "chains": int(found.sizes["chain"])}
    sampler = ("nuts" if "sample_stats" in fitted.tree else "moves") if chains else "independent draws"
    return facts | {"sampler": sampler, "convergence": fitted.convergence}


def _simulate(
    model: StatisticModel,
    measured: NoisyStatistics,
    fitted: PosteriorFit,
    covariates: Mapping[str, NDArray[Any]],
    public: pd.DataFrame,
) -> dict[str, FloatArray]:
    """Return simulated noisy statistics, shape (draws, entries), by name."""
    n = round(number_of_records(measured, settle(measured)))
    rng = np.random.default_rng(SEED)
    stacked = fitted.tree["posterior"].to_dataset().stack(sample=("chain", "draw")).transpose("sample", ...)
    total = stacked.sizes["sample"]
    n_draws = max(min(CHECKED_DRAWS, total, MOST_SIMULATED // max(n, 1)), 2)
    rows: dict[str, list[FloatArray]] = {part.name: [] for part in measured.parts if part.n_noised}
    for row in np.linspace(0, total - 1, n_draws).astype(int):
        draw = {str(name): values.to_numpy()[row] for name, values in stacked.data_vars.items()}
        columns = model.records(draw, RecordRequest(n, covariates), measured.schema, rng)
        frame = to_records(measured.schema, columns, public, rng)
        table = Table(frame, measured.schema.without_person())
        for part in measured.parts:
            if part.n_noised:
                exact = part.statistic.measure(table).ravel().astype(np.float64)
                exact[: part.n_noised] += part.noise(1, RandomBits(rng))[0]
                rows[part.name].append(exact * part.statistic.unit(measured.schema))
    return {name: np.array(each) for name, each in rows.items()}
