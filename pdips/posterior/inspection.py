"""What a curator may see of a posterior: parameters, how far records' terms go, whether it predicts records. Unpaid."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray, finite
from pdips.data.column import Column
from pdips.errors import InputError
from pdips.posterior import model_file
from pdips.posterior.bounds import Bounds, from_log_likelihood, stream_bounds
from pdips.posterior.columns import Values, bounds_of, collapse, distinct, public_names
from pdips.posterior.finished_model import draws_by_name
from pdips.posterior.model import Blueprint, unconstrained
from pdips.posterior.model_file import stored_name
from pdips.posterior.nuts import ChainDraws
from pdips.posterior.record_likelihood import Points, RecordLikelihood, Tally
from pdips.posterior.target import GridDraws, Target

Draws = Mapping[str, NDArray[Any]]
Found = tuple[dict[str, Any], xr.DataTree | None]

WORK = 4_000_000  # Log-likelihoods that are worked out, as long as that leaves ``LEAST_DRAWS``
LEAST_DRAWS = 100
MOST_LISTED = 60  # Parameters in the table
MOST_PUBLISHED = 1_000  # Posterior draws that are published beside the sets, where a posterior costs nothing
STORED = 20_000  # Records whose bounds go into the tree: all, or these and the one with the largest bound
COMPILED = 50_000_000
GRID_DRAWS = 1_000
PICK_SEED = 3

PREDICTED, AT_ONCE = 20, 5  # Draws at which records are predicted, and those before the clock is looked at
MOST_RECORDS = 10_000  # Records of the table that are compared, and records that are drawn at each draw
MOST_SECONDS = 5.0
MOST_COLUMNS = 12
BINS = 30
SEED = 19


@dataclass(frozen=True, eq=False, kw_only=True)
class Posterior:
    """Draws from the posterior that a release was drawn from: confidential."""

    tree: xr.DataTree  # group ``posterior``, and ``sample_stats`` of chains
    released: Sequence[Draws]  # the draws that were released, by free variable
    facts: Mapping[str, Any]  # what else there is to say: ``sampler``, ``convergence``, ``edge``
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
    """Look closer at a censored posterior: at its chains, or by further draws from its grid. All of it stays inside."""
    values: Values
    if isinstance(draws, ChainDraws):
        values, counts = distinct(draws.values, draws.table.counts)
        facts = {"sampler": "nuts", "convergence": draws.convergence, "passed": draws.convergence.passed}
        tree = draws.tree
    else:
        values, counts = draws.records
        scored, rng = draws.scored, np.random.default_rng()
        probabilities = np.exp(scored.log_probabilities())
        chosen = rng.choice(len(probabilities), GRID_DRAWS, p=probabilities / probabilities.sum())
        tree = tree_of(draws.target.space.values_of(scored.grid.inside(scored.index[chosen], rng)))
        facts = {"sampler": "grid", "edge": float(probabilities[scored.grid.outermost(scored.index)].sum())}
    posterior = Posterior(tree=tree, released=released, facts=facts, independent=not isinstance(draws, ChainDraws))
    return inspect(censored_records(draws.target, values, counts), posterior)


def censored_records(target: Target, values: Values, counts: IntArray) -> InspectedRecords:
    """Return distinct records with their centres, and weights where some aren't 1, in a censored posterior."""
    centre, weights = target.centres_and_weights(values)
    fine = np.isfinite(centre)
    return InspectedRecords(
        likelihood=target.space.likelihood,
        values=values,
        counts=counts,
        weights=None if fine.all() and not target.weights else np.where(fine, weights, 0.0),
        centre=np.where(fine, centre, 0.0),
        limit=float(target.window),
        blueprint=target.space,
    )


def tree_of(draws: Sequence[Draws]) -> xr.DataTree:
    """Return independent draws, one mapping each, as a tree of one chain."""
    return chains_of({name: np.stack([np.asarray(draw[name]) for draw in draws]) for name in draws[0]})


def chains_of(draws: Draws, chains: int = 1) -> xr.DataTree:
    """Return draws, shape (draws, ...), of chains one after the other as a tree."""
    shaped = {name: values.reshape((chains, -1, *values.shape[1:])) for name, values in draws.items()}
    made = az.from_dict({"posterior": shaped})["posterior"].to_dataset().drop_attrs()  # which files do not take
    return xr.DataTree.from_dict({"posterior": made})


def inspect(records: InspectedRecords, posterior: Posterior) -> Found:
    """Return what there is to see, as plain numbers and words for ``run.json``, and as a tree.

    That bounds can't be worked out, or no records drawn, is told and stops nothing: the release is paid for.
    """
    facts, groups = _facts(posterior), {"posterior": _plain(posterior.tree["posterior"].to_dataset())}
    if "sample_stats" in posterior.tree.children:
        groups["sample_stats"] = _plain(posterior.tree["sample_stats"].to_dataset())
    try:
        bounds, censored = _bounds(records, posterior)
    except Exception as error:  # noqa: BLE001 - whatever a model's graph raises; its words may quote records
        facts["bounds"] = {"failed": type(error).__name__}
    else:
        facts["bounds"] = bounds.describe() | {"window": censored}
        groups["pdips"] = _stored(bounds, records)
    if records.blueprint is not None:
        with suppress(Exception):  # a prior that can't be drawn forwards has no group
            groups["prior"] = tree_of(records.blueprint.values_of(records.blueprint.prior))["posterior"].to_dataset()
        try:
            with np.errstate(all="ignore"):
                facts["records"], predicted = check_records(
                    records.blueprint, groups["posterior"], records.values, records.counts
                )
        except Exception as error:  # noqa: BLE001 - whatever a model's graph raises; its words may quote records
            facts["records"] = {"failed": type(error).__name__}
        else:
            groups |= predicted
    return {"posterior": facts}, xr.DataTree.from_dict(groups)


def _facts(posterior: Posterior) -> dict[str, Any]:
    """Return what there is to say of a posterior, with the number of draws and chains.

    Of its first parameters: mean, standard deviation, R-hat, effective draws, and the value that was released.
    """
    found, names = posterior.tree["posterior"].to_dataset(), list(posterior.released[0])
    found = found[[name for name in names if name in found]]
    parts: dict[str, Any] = {}
    if not posterior.independent:
        with np.errstate(all="ignore"):
            parts = {"rhat": az.rhat(found), "ess_bulk": az.ess(found, method="bulk")}
            parts["ess_tail"] = az.ess(found, method="tail")
    rows = []
    for name, array in found.items():
        mean, deviation = array.mean(("chain", "draw")), array.std(("chain", "draw"))
        for place in np.ndindex(mean.shape):
            labels = [
                str(mean.coords[dim].values[i]) if dim in mean.coords else str(i)
                for dim, i in zip(mean.dims, place, strict=True)
            ]
            row: dict[str, Any] = {
                "name": f"{name}[{', '.join(labels)}]" if labels else str(name),
                "mean": finite(mean.values[place]),
                "sd": finite(deviation.values[place]),
            }
            row |= {key: finite(part[name].values[place]) for key, part in parts.items()}
            row["released"] = [finite(np.asarray(draw[str(name)])[place]) for draw in posterior.released]
            rows.append(row)
    sizes = posterior.tree["posterior"].sizes
    known = {"parameters": rows[:MOST_LISTED], "more": max(0, len(rows) - MOST_LISTED)}
    return dict(posterior.facts) | known | {"draws": int(sizes["draw"]), "chains": int(sizes["chain"])}


def published_draws(tree: xr.DataTree) -> pd.DataFrame:
    """Return posterior draws as a table, one a row, columns such as ``mu[0, 1]``."""
    stacked = tree["posterior"].to_dataset().stack(sample=("chain", "draw")).transpose("sample", ...)
    total = stacked.sizes["sample"]
    taken = np.arange(min(total, MOST_PUBLISHED)) * max(total // MOST_PUBLISHED, 1)
    columns: dict[str, NDArray[Any]] = {}
    for name, values in stacked.data_vars.items():
        known = values.to_numpy()[taken]
        for place in np.ndindex(known.shape[1:]):
            label = f"{name}[{', '.join(map(str, place))}]" if place else str(name)
            columns[label] = known[(slice(None), *place)]
    return pd.DataFrame(columns)


def inspect_statistics(
    posterior: Posterior, simulated: Mapping[str, FloatArray], noisy: Mapping[str, FloatArray]
) -> tuple[dict[str, Any], xr.DataTree]:
    """Compare noisy statistics with those simulated from their posterior, shape (draws, entries), by name.

    Returns ``posterior``: its parameters and facts, and ``predictive``: for each statistic the share of entries whose
    published value lies outside the central 95 % of the simulated ones, the smallest two-sided p-value, and how many
    standard deviations of the simulated ones the ``furthest`` entry is off their mean. And a tree with the groups
    ``posterior``, ``sample_stats`` of chains, ``posterior_predictive`` (chain, draw, entry) and
    ``observed_data``: the noisy statistics, which are published.
    """
    predictive, predicted, observed = {}, {}, {}
    for name, values in simulated.items():
        below, above = (values <= noisy[name]).mean(axis=0), (values >= noisy[name]).mean(axis=0)
        p_values = np.minimum(2 * (np.minimum(below, above) * len(values) + 1) / (len(values) + 1), 1.0)
        low, high = np.quantile(values, [0.025, 0.975], axis=0)
        spread = values.std(axis=0)
        off = np.abs(noisy[name] - values.mean(axis=0))[spread > 0] / spread[spread > 0]
        predictive[name] = {
            "outside": float(((noisy[name] < low) | (noisy[name] > high)).mean()),
            "smallest_p": float(p_values.min()),
            "entries": len(noisy[name]),
            "furthest": float(off.max(initial=0.0)),
        }
        stored = stored_name(name)
        predicted[stored] = (["chain", "draw", f"{stored} entry"], values[None])
        observed[stored] = ([f"{stored} entry"], noisy[name])
    tree = posterior.tree.copy()
    tree["posterior_predictive"] = xr.DataTree(xr.Dataset(predicted))
    tree["observed_data"] = xr.DataTree(xr.Dataset(observed))
    return {"posterior": _facts(posterior) | {"predictive": predictive}}, tree


def _bounds(records: InspectedRecords, posterior: Posterior) -> tuple[Bounds, dict[str, Any] | None]:
    rows, model = len(records.counts), records.likelihood.model
    all_draws = posterior.tree["posterior"].to_dataset()
    chains, n_draws = all_draws.sizes["chain"], all_draws.sizes["draw"]
    wanted = max(LEAST_DRAWS, WORK // rows) // chains
    kept = all_draws.isel(draw=slice(None, None, max(1, -(-n_draws // max(wanted, 1)))))
    draws = draws_by_name(xr.DataTree.from_dict({"posterior": kept}))
    bounds = Bounds.of(_tallied(records, unconstrained(model, draws), chains), posterior.independent)
    if records.limit is None:
        return bounds, None
    names = [variable.name for variable in model.free_RVs]
    released = {name: np.stack([np.asarray(draw[name]) for draw in posterior.released]) for name in names}
    beyond = _tallied(records, unconstrained(model, released)).records_beyond
    return bounds, {
        "limit": records.limit,
        "any": bounds.n_censored,
        "any_share": bounds.share_censored,
        "released": [int(count) for count in beyond],
        "released_share": [float(count / bounds.n_records) for count in beyond],
    }


def _tallied(records: InspectedRecords, points: Points, chains: int = 1) -> Tally:
    """Return what there is to know of records' terms at some points, those of each chain as many."""
    rows, n_draws = len(records.counts), len(points[0])
    tally = Tally(rows, (chains, n_draws // chains), records.weights, records.centre, records.limit, records.counts)
    mode = None if rows * n_draws > COMPILED else "FAST_COMPILE"
    for some, found in records.likelihood.blocks(records.values, points, mode):
        tally.add(slice(0, rows), some, found)
    return tally


def _stored(bounds: Bounds, records: InspectedRecords) -> xr.Dataset:
    """Return bounds by draw and by record, with the records' values; of many records only some."""
    whole = bounds.to_tree()["pdips"].to_dataset()
    each = np.repeat(np.arange(len(records.counts)), records.counts)
    kept = np.arange(len(each))
    if len(kept) > STORED:
        chosen = np.random.default_rng(PICK_SEED).choice(len(each), STORED, replace=False)
        kept = np.unique([*chosen, int(np.argmax(bounds.largest))])
    values = {
        stored_name(f"value_{name}"): ("record", np.asarray(column)[each[kept]])
        for name, column in records.values.items()
    }
    if records.weights is not None:
        values["weights"] = ("record", records.weights[each[kept]])
    return whole.isel(record=kept).assign(values).assign_attrs(records=bounds.n_records)


def _plain(found: xr.Dataset) -> xr.Dataset:
    """Return what a file can hold."""
    return found.drop_vars([name for name in found.data_vars if found[name].dtype.kind not in "biuf"]).drop_attrs()


def check_records(
    blueprint: Blueprint, posterior: xr.Dataset, values: Values, counts: IntArray
) -> tuple[dict[str, Any], dict[str, xr.Dataset]]:
    """Draw records from a model at draws from its posterior, and compare each column's shares with the table's.

    A posterior predictive check whose test quantity is the total variation distance of a column's shares from the mean
    of all that was drawn. Of many records it takes some; it ends when its time is over, with the draws made by then.
    The drawn columns alone are compared: public ones are the table's own.
    """
    rng, known, n = np.random.default_rng(SEED), blueprint.columns, int(counts.sum())
    chosen = np.sort(rng.choice(n, MOST_RECORDS, replace=False, shuffle=False)) if n > MOST_RECORDS else np.arange(n)
    rows = np.searchsorted(np.cumsum(counts), chosen, side="right")
    taken = {name: np.asarray(column)[rows] for name, column in values.items()}
    names = list(blueprint.synthesized)[:MOST_COLUMNS]
    edges = {name: bin_edges(known[name]) for name in names}
    table = {name: _shares(taken[name], known[name], edges[name]) for name in names}
    public = {name: taken[name] for name in public_names(blueprint.schema)}

    # draws as far apart as they can be, a few at once, each lot from all over the chains
    stacked = draws_by_name(xr.DataTree.from_dict({"posterior": posterior}))
    parameters = {variable.name: stacked[variable.name] for variable in blueprint.model.free_RVs}
    n_draws = len(next(iter(parameters.values())))
    places = np.unique(np.linspace(0, n_draws - 1, PREDICTED).astype(int))
    lots = max(1, len(places) // AT_ONCE)
    made: dict[str, list[FloatArray]] = {name: [] for name in names}
    end = time.monotonic() + MOST_SECONDS
    for lot in range(lots):
        some = {name: each[places[lot::lots]] for name, each in parameters.items()}
        drawn = blueprint.draw_several(some, len(rows), public, rng)
        for name in names:
            made[name] += [_shares(each, known[name], edges[name]) for each in drawn[name]]
        if time.monotonic() > end:
            break
    columns, predicted, observed = [], {}, {}
    for place, name in enumerate(names):
        simulated = np.stack(made[name])
        columns.append({"name": name} | compare(table[name], simulated))
        predicted[f"column_{place}"] = (("chain", "draw", f"bin_{place}"), simulated[None])
        observed[f"column_{place}"] = ((f"bin_{place}",), table[name])
        observed[f"edges_{place}"] = ((f"edge_{place}",), edges[name])
    facts = {"draws": len(made[names[0]]), "records": len(rows), "columns": columns}
    return facts, {"posterior_predictive": xr.Dataset(predicted), "observed_data": xr.Dataset(observed)}


def compare(observed: FloatArray, simulated: FloatArray) -> dict[str, float]:
    """Return how far observed shares, shape (bins,), and simulated ones, (draws, bins), lie from the simulated mean."""
    middle = simulated.mean(axis=0)
    typical = np.abs(simulated - middle).sum(axis=1) / 2
    distance = np.abs(observed - middle).sum() / 2
    p = (1 + int((typical >= distance).sum())) / (1 + len(simulated))
    return {"distance": float(distance), "typical": float(typical.mean()), "p": p}


def bin_edges(column: Column) -> FloatArray:
    """Return the edges of a column's bins, from the schema alone: one for each level or few whole numbers, or 30."""
    if column.is_categorical:
        return np.arange(-0.5, column.n_levels, dtype=np.float64)
    lower, upper = bounds_of(column)
    if column.integer and upper - lower < BINS:
        return np.arange(lower - 0.5, upper + 1, dtype=np.float64)
    space = np.geomspace if column.scale == "log" else np.linspace
    edges = space(lower, upper, BINS + 1)
    edges[0], edges[-1] = lower, upper  # rounding must not leave out what lies at a bound
    return edges


def _shares(values: NDArray[Any], column: Column, edges: FloatArray) -> FloatArray:
    """Return the share of each bin; what lies outside is moved to the nearest end, as in synthetic sets."""
    lower, upper = bounds_of(column)
    known = np.clip(np.nan_to_num(np.asarray(values, dtype=np.float64), nan=lower), lower, upper)
    known = np.rint(known) if column.is_categorical or column.integer else collapse(known, column)
    return np.asarray(np.histogram(known, edges)[0] / max(len(known), 1))


def check_bounds(
    draws: xr.DataTree | str | Path,
    model: pm.Model | str | Path | None = None,
    *,
    variable: str | None = None,
    record_dim: str | None = None,
    weights: FloatArray | None = None,
    centre: FloatArray | None = None,
    limit: float | None = None,
    independent: bool = False,
) -> Bounds:
    """Bound the log-likelihoods of anybody's posterior: ``pdips bounds``.

    Parameters
    ----------
    draws : xarray.DataTree, or path of a netCDF file or zarr folder
        From PyMC, NumPyro or CmdStan by ArviZ: with a group ``log_likelihood`` or, if there is a model, ``posterior``.
    model : pymc.Model or path, optional
        What the draws were made of; of a Python file its ``model``, or what its ``build_model()`` returns.
    variable, record_dim
        As in :func:`from_log_likelihood`; without a model only.
    weights, centre, limit, independent
        As in :func:`stream_bounds`.

    Returns
    -------
    Bounds
        Confidential.

    Raises
    ------
    InputError
        If the file is none, groups or a model are missing, or the draws don't fit the model.

    Examples
    --------
    >>> import xarray as xr
    >>> log_lik = xr.DataArray(np.full((2, 50, 30), -1.0), dims=["chain", "draw", "record"])
    >>> tree = xr.DataTree.from_dict({"log_likelihood": xr.Dataset({"y": log_lik})})
    >>> check_bounds(tree).by_chain.shape
    (2, 30)
    """
    tree = draws if isinstance(draws, xr.DataTree) else _opened(Path(draws))
    common: dict[str, Any] = {"weights": weights, "centre": centre, "limit": limit, "independent": independent}
    if model is None:
        return from_log_likelihood(tree, variable=variable, record_dim=record_dim, **common)
    if variable is not None or record_dim is not None:
        raise InputError("variable and record_dim choose among stored log-likelihoods: leave them out with a model")
    return stream_bounds(_finished(model) if isinstance(model, str | Path) else model, None, tree, **common)


def _opened(path: Path) -> xr.DataTree:
    try:
        return xr.open_datatree(path)
    except (OSError, ValueError, KeyError, TypeError):
        what = "is no netCDF file and no zarr folder of draws, such as ArviZ writes" if path.exists() else "isn't there"
        raise InputError(f"{path} {what}") from None


def _finished(path: str | Path) -> pm.Model:
    """Return the model that a file makes. It may read records, so no message of its own is passed on."""
    if not Path(path).is_file():
        raise InputError(f"there is no model file {path}")
    ended = ""
    try:
        module, _ = model_file.load(path)
        made = module.model if hasattr(module, "model") else module.build_model()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the analyst's own code, which may quote a record
        made, ended = None, f"; it ended with {type(error.__context__ or error).__name__}"
    if not isinstance(made, pm.Model):
        raise InputError(
            f"{Path(path).name} must run by itself and leave a pm.Model, with its data, in the name model, or return "
            f"one from build_model() without arguments{ended}"
        )
    return made
