"""A release tried on stand-ins before anything is spent: what could fail afterwards fails here."""

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from numpy.typing import NDArray

from pdips.errors import InputError, RefusedError
from pdips.posterior.nuts import SHORTEST_TUNING, available
from pdips.privacy.curator import Clock
from pdips.statistics.fit import Compiled, Fitted, Options, by_own, check_nuts, prepared, start_of, tree_of
from pdips.statistics.model import StatisticModel
from pdips.statistics.noisy_model import Given, Likelihood
from pdips.statistics.plan import Measured, Plan
from pdips.statistics.released import Synthesis, synthesize
from pdips.statistics.samplers import Drawn, Lengths

SHORT = Lengths(draws=8, tune=8, chains=2, rounds=1)
MOST_RECORDS = 1_000
MOST_REMEMBERED = 64

_tried: dict[Hashable, None] = {}


def rehearse(synthesis: Synthesis, plan: Plan, n_records: int | None = None) -> None:
    """Try a release on stand-ins: statistics, noise, the model, its density and gradient, draws, records.

    Parameters
    ----------
    synthesis : Synthesis
        How sets are made.
    plan : Plan
        What is measured.
    n_records : int, optional
        Number of records of the table, where it is public.

    Raises
    ------
    InputError
        Saying what would have failed.

    Notes
    -----
    Nothing here reads a record. Chains are too short to agree; whether they do is seen at the release. What passed is
    remembered, so that a price that is asked for again costs nothing.
    """
    key = (*_key(synthesis, plan), n_records)
    if key in _tried:
        return
    tried = plan.tried(n_records)
    public = pd.DataFrame({name: np.zeros(len(values)) for name, values in tried.public.items()})
    records = len(public) or min(synthesis.n_records or tried.n_records or MOST_RECORDS, MOST_RECORDS)
    short, rng = replace(synthesis, n_sets=1, n_records=records), np.random.default_rng(0)
    try:
        with np.errstate(all="ignore"):
            synthesize(short, [tried], public, tried.public, rng, Clock(), _attempt).drawn()
    except (InputError, RefusedError):
        raise
    except Exception as error:
        raise InputError(f"{synthesis.model.name} fails on stand-ins: {type(error).__name__}: {error}") from error
    _tried.update({key: None, (*key[:-1], None): None})  # the price that follows a release asks without a number
    while len(_tried) > MOST_REMEMBERED:
        _tried.pop(next(iter(_tried)))


def _key(synthesis: Synthesis, plan: Plan) -> tuple[Hashable, ...]:
    parts = tuple((part.name, repr(part.statistic), part.scale, part.law, part.n_noised) for part in plan.parts)
    settings = (synthesis.likelihood, synthesis.options, bool(synthesis.n_records), plan.neighbours)
    return (synthesis.model.text or synthesis.model, plan.schema.to_toml(), parts, *settings)


def _attempt(
    model: StatisticModel,
    measured: Measured,
    likelihood: Likelihood,
    *,
    n_draws: int,
    rng: np.random.Generator,
    options: Options,
) -> Fitted:
    """Stand in for :func:`pdips.statistics.fit.fit`: a few draws of a sampler made for the model, or its start."""
    given = Given(measured, likelihood)
    built, kept = prepared(model, given)
    if kept.own is not None and options.nuts == "auto":
        unused = [name for name in options.given() if name not in kept.own.options]
        if unused:
            raise InputError(
                f"{model.name} is drawn without NUTS ({kept.own.name}), which has no {' and no '.join(unused)}: leave "
                "them out, or set nuts to nutpie or pymc"
            )
        found = by_own(model, built, _unjudged(kept), given, SHORT, n_draws, rng)
        if found is not None:
            return found
    check_nuts(model, given)
    available(built, options.nuts)
    if options.tune is not None and options.tune < SHORTEST_TUNING:
        raise InputError(f"tune must be at least {SHORTEST_TUNING}, got {options.tune}")
    _check_density(model, built)
    flat = model.completed(given, _at_start(built, given, n_draws), rng)
    return Fitted(draws=flat, tree=tree_of(flat), convergence=None)


def _unjudged(kept: Compiled) -> Compiled:
    """Return the same with a sampler whose chains, which are short here, needn't agree."""

    def draw(given: Given, lengths: Lengths, rng: np.random.Generator) -> Drawn | None:
        drawn = None if kept.own is None else kept.own.draw(given, lengths, rng)
        return None if drawn is None else replace(drawn, convergence=None)

    return kept if kept.own is None else replace(kept, own=replace(kept.own, draw=draw))


def _check_density(model: StatisticModel, built: pm.Model) -> None:
    """Refuse a model whose log density or its gradient isn't finite where chains start."""
    free = [built.values_to_rvs[value] for value in built.value_vars if value.dtype.startswith("float")]
    graphs = [built.logp(), built.dlogp(free)] if free else [built.logp()]
    density = built.compile_fn(graphs, inputs=built.value_vars, mode="FAST_COMPILE", on_unused_input="ignore")
    if not all(np.isfinite(each).all() for each in density(start_of(built))):
        raise InputError(
            f"{model.name}: where chains start the log density of build_model, or its gradient, isn't a finite number"
        )


def _at_start(built: pm.Model, given: Given, n_draws: int) -> dict[str, NDArray[Any]]:
    """Return the variables of a model where chains start, shape (n_draws, ...), as draws have them."""
    named = [each for each in (*built.free_RVs, *built.deterministics) if each.name not in given.latents]
    graphs = built.replace_rvs_by_values(named)
    values = built.compile_fn(graphs, inputs=built.value_vars, mode="FAST_COMPILE", on_unused_input="ignore")
    found = values(start_of(built))
    return {str(each.name): np.stack([value] * n_draws) for each, value in zip(named, found, strict=True)}
