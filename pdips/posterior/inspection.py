"""What a curator may see of a posterior: parameters, how far records' terms go, whether
it predicts records. Unpaid.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray, finite
from pdips.data.column import Column
from pdips.errors import InputError
from pdips.posterior.bounds import Bounds, Tally
from pdips.posterior.columns import Values, bounds_of, collapse, distinct, public_names
from pdips.posterior.model import Blueprint, unconstrained
from pdips.posterior.nuts import ChainDraws
from pdips.posterior.record_likelihood import Points, RecordLikelihood
from pdips.posterior.streams import draws_by_name
from pdips.posterior.target import GridDraws, Target
from pdips.release.release import Release
from pdips.release.tree import stored_name

Draws = Mapping[str, NDArray[Any]]
AnyPath = str | Path
Found = tuple[dict[str, Any], xr.DataTree | None]

# Log-likelihoods that are worked out, as long as that leaves ``LEAST_DRAWS``
WORK = 4_000_000
LEAST_DRAWS = 100
MOST_LISTED = 60  # Parameters in the table
# Posterior draws that are published beside the sets, where a posterior costs nothing
MOST_PUBLISHED = 1_000
# Records whose bounds go into the tree: all, or these and the one with the largest
# bound
STORED = 20_000
COMPILED = 50_000_000
GRID_DRAWS = 1_000
PICK_SEED = 3

# Draws at which records are predicted, and those before the clock is looked at
PREDICTED = 20
AT_ONCE = 5
# Records of the table that are compared, and records that are drawn at each draw
MOST_RECORDS = 10_000
MOST_SECONDS = 5.0
MOST_COLUMNS = 12
BINS = 30
SEED = 19


@dataclass(frozen=True, eq=False, kw_only=True)
class Posterior:
    """Draws from the posterior that a release was drawn from: confidential."""

    tree: xr.DataTree  # group ``posterior``, and ``sample_stats`` of chains
    released: Sequence[Draws]  # the draws that were released, by free variable
    # what else there is to say: ``sampler``, ``convergence``, ``edge``
    facts: Mapping[str, Any]
    independent: bool  # whether the draws are independent


@dataclass(frozen=True, eq=False, kw_only=True)
class InspectedRecords:
    """Confidential records, and how they enter the posterior."""

    likelihood: RecordLikelihood
    values: Values  # columns, shape (rows,)
    counts: IntArray  # how many records each row stands for
    weights: FloatArray | None = None  # alpha of each row
    centre: FloatArray | None = None  # c of each row, nats
    limit: float | None = None  # the window's half-width, nats
    blueprint: Blueprint | None = None  # what draws records, to compare them with these


def inspect_draws(draws: GridDraws | ChainDraws, released: Sequence[Draws]) -> Found:
    """Look closer at a censored posterior: at its chains, or by further draws from its
    grid. All of it stays inside.
    """
    values: Values
    if isinstance(draws, ChainDraws):
        values, counts = distinct(draws.values, draws.table.counts)
        facts = {
            "sampler": "nuts",
            "convergence": draws.convergence,
            "passed": draws.convergence.passed,
        }
        tree = draws.tree
    else:
        values, counts = draws.records
        tree, edge = _on_grid(draws)
        facts = {"sampler": "grid", "edge": edge}
    posterior = Posterior(
        tree=tree,
        released=released,
        facts=facts,
        independent=not isinstance(draws, ChainDraws),
    )
    return inspect(censored_records(draws.target, values, counts), posterior)


def _on_grid(draws: GridDraws) -> tuple[xr.DataTree, float]:
    """Return further draws from a grid, and the probability of its edge."""
    scored = draws.scored
    rng = np.random.default_rng()
    probabilities = np.exp(scored.log_probabilities())
    shares = probabilities / probabilities.sum()
    chosen = rng.choice(len(shares), GRID_DRAWS, p=shares)
    places = scored.grid.inside(scored.index[chosen], rng)
    outermost = scored.grid.outermost(scored.index)
    tree = tree_of(draws.target.space.values_of(places))
    return tree, float(probabilities[outermost].sum())


def censored_records(
    target: Target, values: Values, counts: IntArray
) -> InspectedRecords:
    """Return distinct records with their centres, and weights where some aren't 1, in a
    censored posterior.
    """
    centre, weights = target.centres_and_weights(values)
    fine = np.isfinite(centre)
    all_count = fine.all() and not target.weights
    weights = np.where(fine, weights, 0.0)
    return InspectedRecords(
        likelihood=target.space.likelihood,
        values=values,
        counts=counts,
        weights=None if all_count else weights,
        centre=np.where(fine, centre, 0.0),
        limit=float(target.window),
        blueprint=target.space,
    )


def tree_of(draws: Sequence[Draws]) -> xr.DataTree:
    """Return independent draws, one mapping each, as a tree of one chain."""
    stacked = {}
    for name in draws[0]:
        stacked[name] = np.stack([np.asarray(draw[name]) for draw in draws])
    return chains_of(stacked)


def chains_of(draws: Draws, chains: int = 1) -> xr.DataTree:
    """Return draws, shape (draws, ...), of chains one after the other as a tree."""
    shaped = {
        name: values.reshape((chains, -1, *values.shape[1:]))
        for name, values in draws.items()
    }
    tree = az.from_dict({"posterior": shaped})
    # attributes are what files do not take
    dataset = tree["posterior"].to_dataset().drop_attrs()
    return xr.DataTree.from_dict({"posterior": dataset})


def inspect(records: InspectedRecords, posterior: Posterior) -> Found:
    """Return what there is to see, as plain numbers and words for ``run.json``, and as
    a tree.

    That bounds can't be worked out, or no records drawn, is told and stops nothing: the
    release is paid for.
    """
    facts = _facts(posterior)
    groups = {"posterior": _plain(posterior.tree["posterior"].to_dataset())}
    if "sample_stats" in posterior.tree.children:
        groups["sample_stats"] = _plain(posterior.tree["sample_stats"].to_dataset())
    try:
        bounds, censored = _bounds(records, posterior)
    except Exception as error:  # noqa: BLE001 - whatever a model's graph raises; its words may quote records
        facts["bounds"] = {"failed": type(error).__name__}
    else:
        facts["bounds"] = bounds.describe() | {"window": censored}
        groups["pdips"] = _stored(bounds, records)
    blueprint = records.blueprint
    if blueprint is not None:
        with suppress(Exception):  # a prior that can't be drawn forwards has no group
            prior = tree_of(blueprint.values_of(blueprint.prior))
            groups["prior"] = prior["posterior"].to_dataset()
        draws = groups["posterior"]
        try:
            with np.errstate(all="ignore"):
                facts["records"], predicted = check_records(
                    blueprint, draws, records.values, records.counts
                )
        except Exception as error:  # noqa: BLE001 - whatever a model's graph raises; its words may quote records
            facts["records"] = {"failed": type(error).__name__}
        else:
            groups |= predicted
    return {"posterior": facts}, xr.DataTree.from_dict(groups)


def _facts(posterior: Posterior) -> dict[str, Any]:
    """Return what there is to say of a posterior, with the number of draws and chains.

    Of its first parameters: mean, standard deviation, R-hat, effective draws, and the
    value that was released.
    """
    dataset = posterior.tree["posterior"].to_dataset()
    dataset = dataset[[name for name in posterior.released[0] if name in dataset]]
    agreement: dict[str, Any] = {}
    if not posterior.independent:
        with np.errstate(all="ignore"):
            agreement["rhat"] = az.rhat(dataset)
            agreement["ess_bulk"] = az.ess(dataset, method="bulk")
            agreement["ess_tail"] = az.ess(dataset, method="tail")
    rows = []
    for name, array in dataset.items():
        released = [np.asarray(draw[str(name)]) for draw in posterior.released]
        numbers = {
            "mean": array.mean(("chain", "draw")),
            "sd": array.std(("chain", "draw")),
            **{key: part[name] for key, part in agreement.items()},
        }
        for place, label in _entries(numbers["mean"]):
            row: dict[str, Any] = {"name": f"{name}{label}"}
            for key, values in numbers.items():
                row[key] = finite(values.values[place])
            row["released"] = [finite(value[place]) for value in released]
            rows.append(row)
    sizes = posterior.tree["posterior"].sizes
    return {
        **posterior.facts,
        "parameters": rows[:MOST_LISTED],
        "more": max(0, len(rows) - MOST_LISTED),
        "draws": int(sizes["draw"]),
        "chains": int(sizes["chain"]),
    }


def _entries(array: xr.DataArray) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the place of each entry of an array, and what follows its name: its
    coordinates in brackets, nothing for a single number.
    """
    for place in np.ndindex(array.shape):
        labels = []
        for dim, i in zip(array.dims, place, strict=True):
            has_labels = dim in array.coords
            labels.append(str(array.coords[dim].values[i] if has_labels else i))
        yield place, f"[{', '.join(labels)}]" if labels else ""


def published_draws(draws: xr.DataTree | xr.Dataset) -> pd.DataFrame:
    """Return the draws of a tree, or of its group ``posterior``, as a table, one a row,
    columns such as ``mu[0, 1]``.
    """
    if isinstance(draws, xr.DataTree):
        draws = draws["posterior"].to_dataset()
    stacked = draws.stack(sample=("chain", "draw"))
    total = stacked.sizes["sample"]
    taken = np.arange(min(total, MOST_PUBLISHED)) * max(total // MOST_PUBLISHED, 1)
    columns: dict[str, NDArray[Any]] = {}
    for name, array in stacked.transpose("sample", ...).data_vars.items():
        values = array.to_numpy()[taken]
        for place in np.ndindex(values.shape[1:]):
            label = f"[{', '.join(map(str, place))}]" if place else ""
            columns[f"{name}{label}"] = values[(slice(None), *place)]
    return pd.DataFrame(columns)


def released_draws(release: Release) -> pd.DataFrame:
    """Return the posterior draws that a release publishes as a table: see
    :func:`published_draws`.
    """
    if release.posterior_draws is None:
        raise InputError(f"{release.mechanism} publishes no posterior")
    return published_draws(release.posterior_draws.posterior)


def inspect_statistics(
    posterior: Posterior,
    simulated: Mapping[str, FloatArray],
    noisy: Mapping[str, FloatArray],
) -> tuple[dict[str, Any], xr.DataTree]:
    """Compare noisy statistics with those simulated from their posterior, shape (draws,
    entries), by name.

    Returns ``posterior``: its parameters and facts, and ``predictive``: for each
    statistic the share of entries whose published value lies outside the central 95 %
    of the simulated ones, the smallest two-sided p-value, and how many standard
    deviations of the simulated ones the ``furthest`` entry is off their mean. And a
    tree with the groups ``posterior``, ``sample_stats`` of chains,
    ``posterior_predictive`` (chain, draw, entry) and ``observed_data``: the noisy
    statistics, which are published.
    """
    predictive = {}
    predicted = {}
    observed = {}
    for name, values in simulated.items():
        predictive[name] = _predictive(values, noisy[name])
        stored = stored_name(name)
        predicted[stored] = (["chain", "draw", f"{stored} entry"], values[None])
        observed[stored] = ([f"{stored} entry"], noisy[name])
    tree = posterior.tree.copy()
    tree["posterior_predictive"] = xr.DataTree(xr.Dataset(predicted))
    tree["observed_data"] = xr.DataTree(xr.Dataset(observed))
    return {"posterior": _facts(posterior) | {"predictive": predictive}}, tree


def _predictive(simulated: FloatArray, noisy: FloatArray) -> dict[str, Any]:
    """Return how far published numbers are from simulated ones, shape (draws,
    entries).
    """
    n = len(simulated)
    below = (simulated <= noisy).mean(axis=0)
    above = (simulated >= noisy).mean(axis=0)
    p_values = 2 * (np.minimum(below, above) * n + 1) / (n + 1)
    low, high = np.quantile(simulated, [0.025, 0.975], axis=0)
    spread = simulated.std(axis=0)
    off = np.abs(noisy - simulated.mean(axis=0))
    deviations = off[spread > 0] / spread[spread > 0]
    is_outside = (noisy < low) | (noisy > high)
    return {
        "outside": float(is_outside.mean()),
        "smallest_p": min(float(p_values.min()), 1.0),
        "entries": len(noisy),
        "furthest": float(deviations.max(initial=0.0)),
    }


def _bounds(
    records: InspectedRecords, posterior: Posterior
) -> tuple[Bounds, dict[str, Any] | None]:
    model = records.likelihood.model
    all_draws = posterior.tree["posterior"].to_dataset()
    chains = all_draws.sizes["chain"]
    wanted = max(LEAST_DRAWS, WORK // len(records.counts)) // chains
    every = max(1, -(-all_draws.sizes["draw"] // max(wanted, 1)))
    kept = all_draws.isel(draw=slice(None, None, every))
    draws = draws_by_name(xr.DataTree.from_dict({"posterior": kept}))
    tally = _tallied(records, unconstrained(model, draws), chains)
    bounds = Bounds.of(tally, posterior.independent)
    if records.limit is None:
        return bounds, None
    released = {}
    for variable in model.free_RVs:
        values = [np.asarray(draw[variable.name]) for draw in posterior.released]
        released[variable.name] = np.stack(values)
    beyond = _tallied(records, unconstrained(model, released)).records_beyond
    return bounds, {
        "limit": records.limit,
        "any": bounds.n_censored,
        "any_share": bounds.share_censored,
        "released": [int(count) for count in beyond],
        "released_share": [float(count / bounds.n_records) for count in beyond],
    }


def _tallied(records: InspectedRecords, points: Points, chains: int = 1) -> Tally:
    """Return what there is to know of records' terms at some points, those of each
    chain as many.
    """
    rows = len(records.counts)
    n_draws = len(points[0])
    tally = Tally(
        rows,
        (chains, n_draws // chains),
        records.weights,
        records.centre,
        records.limit,
        records.counts,
    )
    mode = None if rows * n_draws > COMPILED else "FAST_COMPILE"
    for some, terms in records.likelihood.blocks(records.values, points, mode):
        tally.add(slice(0, rows), some, terms)
    return tally


def _stored(bounds: Bounds, records: InspectedRecords) -> xr.Dataset:
    """Return bounds by draw and by record, with the records' values; of many records
    only some.
    """
    whole = bounds.to_tree()["pdips"].to_dataset()
    row = np.repeat(np.arange(len(records.counts)), records.counts)
    kept = np.arange(len(row))
    if len(kept) > STORED:
        rng = np.random.default_rng(PICK_SEED)
        chosen = rng.choice(len(row), STORED, replace=False)
        kept = np.unique([*chosen, int(np.argmax(bounds.largest))])
    row = row[kept]
    values = {}
    for name, column in records.values.items():
        stored = np.asarray(column)[row]
        values[stored_name(f"value_{name}")] = ("record", stored)
    if records.weights is not None:
        values["weights"] = ("record", records.weights[row])
    some = whole.isel(record=kept)
    return some.assign(values).assign_attrs(records=bounds.n_records)


def _plain(dataset: xr.Dataset) -> xr.Dataset:
    """Return what a file can hold."""
    variables = dataset.data_vars.items()
    others = [name for name, array in variables if array.dtype.kind not in "biuf"]
    return dataset.drop_vars(others).drop_attrs()


def check_records(
    blueprint: Blueprint, posterior: xr.Dataset, values: Values, counts: IntArray
) -> tuple[dict[str, Any], dict[str, xr.Dataset]]:
    """Draw records from a model at draws from its posterior, and compare each column's
    shares with the table's.

    A posterior predictive check whose test quantity is the total variation distance of
    a column's shares from the mean of all that was drawn. Of many records it takes
    some; it ends when its time is over, with the draws made by then. The drawn columns
    alone are compared: public ones are the table's own.
    """
    rng = np.random.default_rng(SEED)
    rows = _some_rows(counts, rng)
    taken = {name: np.asarray(column)[rows] for name, column in values.items()}
    names = blueprint.synthesized[:MOST_COLUMNS]
    edges = {name: bin_edges(blueprint.columns[name]) for name in names}
    simulated = _simulated_shares(blueprint, posterior, taken, edges, rng)
    columns = []
    predicted = {}
    observed = {}
    for place, name in enumerate(names):
        shares = _shares(taken[name], blueprint.columns[name], edges[name])
        columns.append({"name": name} | compare(shares, simulated[name]))
        dims = ("chain", "draw", f"bin_{place}")
        predicted[f"column_{place}"] = (dims, simulated[name][None])
        observed[f"column_{place}"] = ((f"bin_{place}",), shares)
        observed[f"edges_{place}"] = ((f"edge_{place}",), edges[name])
    n_draws = len(simulated[names[0]])
    facts = {"draws": n_draws, "records": len(rows), "columns": columns}
    return facts, {
        "posterior_predictive": xr.Dataset(predicted),
        "observed_data": xr.Dataset(observed),
    }


def _simulated_shares(
    blueprint: Blueprint,
    posterior: xr.Dataset,
    taken: Values,
    edges: Mapping[str, FloatArray],
    rng: np.random.Generator,
) -> dict[str, FloatArray]:
    """Return the shares of bins of columns drawn beside public ones, each of shape
    (draws, bins), as many as there is time for.
    """
    n_records = len(next(iter(taken.values())))
    public = {name: taken[name] for name in public_names(blueprint.schema)}
    shares: dict[str, list[FloatArray]] = {name: [] for name in edges}
    end = time.monotonic() + MOST_SECONDS
    for parameters in _lots(blueprint, posterior):
        drawn = blueprint.draw_several(parameters, n_records, public, rng)
        for name in edges:
            column = blueprint.columns[name]
            shares[name] += [
                _shares(values, column, edges[name]) for values in drawn[name]
            ]
        if time.monotonic() > end:
            break
    return {name: np.stack(by_draw) for name, by_draw in shares.items()}


def _some_rows(counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the rows of all records, or of some where there are many."""
    n = int(counts.sum())
    chosen = np.arange(n)
    if n > MOST_RECORDS:
        chosen = np.sort(rng.choice(n, MOST_RECORDS, replace=False, shuffle=False))
    return np.searchsorted(np.cumsum(counts), chosen, side="right")


def _lots(blueprint: Blueprint, posterior: xr.Dataset) -> Iterator[Draws]:
    """Yield draws of the parameters as far apart as they can be, a few at once, each
    lot from all over the chains.
    """
    draws = draws_by_name(xr.DataTree.from_dict({"posterior": posterior}))
    names = [variable.name for variable in blueprint.model.free_RVs]
    n_draws = len(draws[names[0]])
    places = np.unique(np.linspace(0, n_draws - 1, PREDICTED).astype(int))
    n_lots = max(1, len(places) // AT_ONCE)
    for lot in range(n_lots):
        yield {name: draws[name][places[lot::n_lots]] for name in names}


def compare(observed: FloatArray, simulated: FloatArray) -> dict[str, float]:
    """Return how far observed shares, shape (bins,), and simulated ones, (draws, bins),
    lie from the simulated mean.
    """
    middle = simulated.mean(axis=0)
    typical = np.abs(simulated - middle).sum(axis=1) / 2
    distance = np.abs(observed - middle).sum() / 2
    p = (1 + int((typical >= distance).sum())) / (1 + len(simulated))
    return {"distance": float(distance), "typical": float(typical.mean()), "p": p}


def bin_edges(column: Column) -> FloatArray:
    """Return the edges of a column's bins, from the schema alone: one for each level or
    few whole numbers, or 30.
    """
    if column.is_categorical:
        return np.arange(-0.5, column.n_levels, dtype=np.float64)
    lower, upper = bounds_of(column)
    if column.integer and upper - lower < BINS:
        return np.arange(lower - 0.5, upper + 1, dtype=np.float64)
    space = np.geomspace if column.scale == "log" else np.linspace
    edges = space(lower, upper, BINS + 1)
    # rounding must not leave out what lies at a bound
    edges[0] = lower
    edges[-1] = upper
    return edges


def _shares(values: NDArray[Any], column: Column, edges: FloatArray) -> FloatArray:
    """Return the share of each bin; what lies outside is moved to the nearest end, as
    in synthetic sets.
    """
    lower, upper = bounds_of(column)
    numbers = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=lower)
    numbers = np.clip(numbers, lower, upper)
    if column.is_categorical or column.integer:
        numbers = np.rint(numbers)
    else:
        numbers = collapse(numbers, column)
    counts, _ = np.histogram(numbers, edges)
    return counts / max(len(numbers), 1)
