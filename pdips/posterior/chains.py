"""Parameters drawn from a censored posterior by NUTS: nearly, not exactly, and only if the chains agree."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.convergence import ROUNDS, announce
from pdips.posterior.censoring import Censored, censor_records
from pdips.posterior.columns import Values
from pdips.posterior.drawing import Censoring, around
from pdips.posterior.grid import join, split
from pdips.posterior.nuts import Convergence, Reusable, Sampler, converged, require, sample
from pdips.posterior.pointwise import Likelihoods
from pdips.posterior.record_likelihood import inputs_of
from pdips.posterior.stages import Stage
from pdips.posterior.workspace import Workspace


def censored_model(space: Workspace, stage: Stage, censoring: Censoring, values: Values) -> Censored:
    """Return the model whose log density is the censored posterior's, over the records and what was simulated.

    Parameters
    ----------
    space : Workspace
        The model.
    stage : Stage
        What terms are centred on.
    censoring : Censoring
        How records enter.
    values : mapping of str to ndarray, shape (records,)
        All records, not only distinct ones.
    """
    n_records = len(next(iter(values.values())))
    rows, correction = dict(values), None
    if stage.simulated:
        rows = {name: np.concatenate([values[name], stage.simulated[name]]) for name in values}
        n_simulated = len(next(iter(stage.simulated.values())))
        correction = np.concatenate([np.zeros(n_records), np.full(n_simulated, stage.n_records / n_simulated)])
    settings: dict[str, Any] = {"window": float(censoring.window), "clip": censoring.clip, "correction": correction}
    public = space.blueprint.source.public_potentials
    made = censor_records(space.model, tuple(rows), public_potentials=public, **settings)
    centre, weights = centres_and_weights(space, stage, censoring, rows)
    read = {name: rows[name] for name in inputs_of(space.model, rows)}
    return made.update(values=read, centre=centre, weights=weights)


def centres_and_weights(
    space: Workspace, stage: Stage, censoring: Censoring, rows: Values
) -> tuple[FloatArray, FloatArray]:
    """Return c and alpha of each row, which depend on that row and on public values alone."""
    n_rows = len(next(iter(rows.values())))
    likelihoods = Likelihoods(space.model, rows)
    centre = np.zeros(n_rows)
    if stage.centre:
        total = np.full(n_rows, -np.inf)
        for _, some in likelihoods.blocks(join(stage.centre)):
            total = np.logaddexp(total, np.logaddexp.reduce(some, axis=0))
        centre = total - np.log(len(stage.centre[0]))
    largest = np.zeros(n_rows)
    if censoring.weights:
        for _, some in likelihoods.blocks(join(around(space, stage))):
            largest = np.maximum(largest, np.abs(some - centre).max(axis=0))
    with np.errstate(all="ignore"):
        weights = np.where(largest > float(censoring.window), float(censoring.window) / largest, 1.0)
    return centre, np.where(np.isfinite(weights), weights, 0.0)


def draw_chains(
    space: Workspace,
    stage: Stage,
    censoring: Censoring,
    values: Values,
    *,
    n: int,
    draws: int,
    tune: int,
    chains: int,
    nuts: Sampler = "auto",
    rng: np.random.Generator,
) -> tuple[list[dict[str, NDArray[Any]]], xr.DataTree, Convergence]:
    """Return n of the draws of some chains, these draws, and how well the chains agree.

    Parameters
    ----------
    space, stage, censoring, values
        See :func:`censored_model`.
    n : int
        Number of draws to be released, as far apart as they can be.
    draws, tune, chains, nuts
        See :func:`pdips.posterior.nuts.sample`.
    rng : numpy.random.Generator
        Randomness of the chains, and of which draws are taken.

    Raises
    ------
    RefusedError
        If the chains don't agree in any of ``ROUNDS`` rounds.
    """
    model = censored_model(space, stage, censoring, values)
    place = split(space.model, stage.anchor.place[None])
    start = {value.name: part[0] for value, part in zip(space.model.value_vars, place, strict=True)}
    settings: dict[str, Any] = {"start": start, "chains": chains, "rng": rng, "sampler": nuts}
    tree, found = agreeing(model, space.blueprint.source.watch, draws=draws, tune=tune, **settings)
    posterior = tree["posterior"].to_dataset().stack(sample=("chain", "draw")).transpose("sample", ...)
    total = posterior.sizes["sample"]
    taken = (rng.integers(total) + np.arange(n) * max(total // n, 1)) % total
    names = [variable.name for variable in space.model.free_RVs]
    each = [{name: posterior[name].to_numpy()[row] for name in names} for row in taken]
    return each, tree, found


def agreeing(
    model: Reusable, watch: Sequence[str], *, draws: int, tune: int, confidential: bool = True, **settings: Any
) -> tuple[xr.DataTree, Convergence]:
    """Return chains that agree, run twice as long up to ``ROUNDS`` times if they don't.

    Parameters
    ----------
    model : Reusable
        What to sample.
    watch : sequence of str
        The variables that have to agree; all where there are none.
    draws, tune : int
        Lengths of the first round.
    confidential : bool
        Whether the model reads confidential records: what is announced of a further round depends on it.
    **settings
        Of :func:`pdips.posterior.nuts.sample`.

    Raises
    ------
    RefusedError
        If they disagree in the last round too.
    """
    for number in range(1, ROUNDS + 1):
        if number > 1:
            announce(number, confidential=confidential)
        longer = 2 ** (number - 1)
        tree = sample(model, draws=draws * longer, tune=tune * longer, **settings)
        found = replace(converged(tree, watch), rounds=number)
        if found.passed:
            break
    require(found)
    return tree, found
