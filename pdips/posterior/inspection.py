"""What a curator may see of a posterior: its parameters, and how far records' terms go beyond the window. Unpaid."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.posterior.bounds import Bounds
from pdips.posterior.closer import stored_name
from pdips.posterior.columns import Values, distinct
from pdips.posterior.drawing import Censoring, Scored, around
from pdips.posterior.grid import join
from pdips.posterior.model import Blueprint
from pdips.posterior.nuts import Convergence
from pdips.posterior.predicted_records import check_records
from pdips.posterior.stages import Stage
from pdips.posterior.streaming import Stream, draws_by_name, stream
from pdips.posterior.tally import Tally
from pdips.posterior.workspace import Workspace

Draws = Mapping[str, NDArray[Any]]
Terms = Callable[[Stream], tuple[FloatArray | None, FloatArray | None]]
Found = tuple[dict[str, Any], xr.DataTree | None]

WORK = 4_000_000
"""Log-likelihoods that are worked out, as long as that leaves ``LEAST_DRAWS``."""

LEAST_DRAWS = 100
MOST_LISTED = 60
"""Parameters in the table."""

STORED = 20_000
"""Records whose bounds go into the tree: all, or these and the one with the largest bound."""

COMPILED = 50_000_000
GRID_DRAWS = 1_000
PICK_SEED = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class Posterior:
    """Draws from the posterior that a release was drawn from: confidential.

    Parameters
    ----------
    tree : DataTree
        Group ``posterior``, and ``sample_stats`` of chains.
    released : sequence of mapping of str to ndarray
        The draws that were released, by free variable.
    facts : mapping
        What else there is to say: ``sampler``, ``convergence``, ``edge``.
    independent : bool
        Whether the draws are independent.
    """

    tree: xr.DataTree
    released: Sequence[Draws]
    facts: Mapping[str, Any]
    independent: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Records:
    """Confidential records, and how they enter the posterior.

    Parameters
    ----------
    model : pymc.Model
        Of any records of the schema.
    values : mapping of str to ndarray, shape (rows,)
        Columns.
    counts : ndarray of int64, shape (rows,)
        How many records each row stands for.
    terms : callable
        Takes the compiled log-likelihoods and returns weights (or None) and centre (or None) of each row.
    limit : float, optional
        The window's half-width, nats.
    blueprint : Blueprint, optional
        What draws records, to compare them with these.
    """

    model: pm.Model
    values: Values
    counts: IntArray
    terms: Terms
    limit: float | None
    blueprint: Blueprint | None = None


def tree_of(draws: Sequence[Draws]) -> xr.DataTree:
    """Return independent draws, one mapping each, as a tree of one chain."""
    stacked = {name: np.stack([np.asarray(draw[name]) for draw in draws])[None] for name in draws[0]}
    return xr.DataTree.from_dict({"posterior": az.from_dict({"posterior": stacked})["posterior"].to_dataset()})


def inspect(records: Records, posterior: Posterior) -> Found:
    """Return what there is to see, as plain numbers and words for ``run.json``, and as a tree.

    That bounds can't be worked out, or no records drawn, is told and stops nothing: the release is paid for.
    """
    parameters = listed(posterior)
    facts = dict(posterior.facts) | {
        "parameters": parameters[:MOST_LISTED],
        "more": max(0, len(parameters) - MOST_LISTED),
    }
    groups = {"posterior": _plain(posterior.tree["posterior"].to_dataset())}
    facts |= {"draws": int(groups["posterior"].sizes["draw"]), "chains": int(groups["posterior"].sizes["chain"])}
    if "sample_stats" in posterior.tree.children:
        groups["sample_stats"] = _plain(posterior.tree["sample_stats"].to_dataset())
    try:
        bounds, weights, censored = _bounds(records, posterior)
    except Exception as error:  # noqa: BLE001 - whatever a model's graph raises; its words may quote records
        facts["bounds"] = {"failed": type(error).__name__}
    else:
        facts["bounds"] = bounds.describe() | {"window": censored}
        groups["pdips"] = _stored(bounds, records, weights)
    if records.blueprint is not None:
        facts["records"], predicted = _predicted(records.blueprint, records, groups["posterior"])
        groups |= predicted
    return {"posterior": facts}, xr.DataTree.from_dict(groups)


def _predicted(
    blueprint: Blueprint, records: Records, posterior: xr.Dataset
) -> tuple[dict[str, Any], dict[str, xr.Dataset]]:
    try:
        with np.errstate(all="ignore"):
            return check_records(blueprint, posterior, records.values, records.counts)
    except Exception as error:  # noqa: BLE001 - whatever a model's graph raises; its words may quote records
        return {"failed": type(error).__name__}, {}


def listed(posterior: Posterior) -> list[dict[str, Any]]:
    """Return mean, standard deviation, R-hat and effective draws of each parameter, and the value that was released."""
    found, names = posterior.tree["posterior"].to_dataset(), list(posterior.released[0])
    found = found[[name for name in names if name in found]]
    chains = not posterior.independent
    with np.errstate(all="ignore"):
        parts = (
            {"rhat": az.rhat(found), "ess_bulk": az.ess(found, method="bulk"), "ess_tail": az.ess(found, method="tail")}
            if chains
            else {}
        )
    rows = []
    for name in found:
        array = found[name]
        mean, deviation = array.mean(("chain", "draw")), array.std(("chain", "draw"))
        for place in np.ndindex(mean.shape):
            row: dict[str, Any] = {
                "name": _called(mean, str(name), place),
                "mean": _number(mean.values[place]),
                "sd": _number(deviation.values[place]),
            }
            row |= {key: _number(part[name].values[place]) for key, part in parts.items()}
            row["released"] = [_number(np.asarray(draw[str(name)])[place]) for draw in posterior.released]
            rows.append(row)
    return rows


def _called(array: xr.DataArray, name: str, place: tuple[int, ...]) -> str:
    if not place:
        return name
    labels = [
        str(array.coords[dim].values[i]) if dim in array.coords else str(i)
        for dim, i in zip(array.dims, place, strict=True)
    ]
    return f"{name}[{', '.join(labels)}]"


def _bounds(records: Records, posterior: Posterior) -> tuple[Bounds, FloatArray | None, dict[str, Any] | None]:
    rows = len(records.counts)
    all_draws = posterior.tree["posterior"].to_dataset()
    chains, n_draws = all_draws.sizes["chain"], all_draws.sizes["draw"]
    wanted = max(LEAST_DRAWS, WORK // rows) // chains
    kept = all_draws.isel(draw=slice(None, None, max(1, -(-n_draws // max(wanted, 1)))))[list(posterior.released[0])]
    draws = draws_by_name(xr.DataTree.from_dict({"posterior": kept}))
    mode = None if rows * len(next(iter(draws.values()))) > COMPILED else "FAST_COMPILE"
    pieces = stream(records.model, records.values, draws, mode=mode)
    weights, centre = records.terms(pieces)
    bounds = _tallied(pieces, records, weights, centre).bounds(chains, posterior.independent)
    if records.limit is None:
        return bounds, weights, None
    released = {name: np.stack([np.asarray(draw[name], dtype=float) for draw in posterior.released]) for name in draws}
    at = _tallied(pieces.at(released), records, weights, centre).bounds(1, True)
    n = bounds.n_records
    return (
        bounds,
        weights,
        {
            "limit": records.limit,
            "any": bounds.n_censored,
            "any_share": bounds.share_censored,
            "released": [int(count) for count in at.records_beyond.ravel()],
            "released_share": [float(count / n) for count in at.records_beyond.ravel()],
        },
    )


def _tallied(pieces: Stream, records: Records, weights: FloatArray | None, centre: FloatArray | None) -> Tally:
    tally = Tally(pieces.n_records, pieces.n_draws, weights, centre, records.limit, records.counts)
    for place, draws, found in pieces.pieces():
        tally.add(place, draws, found)
    return tally


def censored_terms(space: Workspace, stage: Stage, censoring: Censoring) -> Terms:
    """Return the function that works out weights and centre of each row of a censored posterior."""

    def terms(pieces: Stream) -> tuple[FloatArray | None, FloatArray | None]:
        centre = np.zeros(pieces.n_records)
        if stage.centre:
            total = np.full(pieces.n_records, -np.inf)
            for rows, _, found in _at_points(pieces, space, stage.centre).pieces():
                total[rows] = np.logaddexp(total[rows], np.logaddexp.reduce(found, axis=0))
            centre = total - np.log(len(stage.centre[0]))
        fine = np.isfinite(centre)
        centre, weights = np.where(fine, centre, 0.0), np.ones(pieces.n_records)
        if fine.all() and not censoring.weights:
            return None, centre
        if censoring.weights:
            largest = np.zeros(pieces.n_records)
            for rows, _, found in _at_points(pieces, space, around(space, stage)).pieces():
                largest[rows] = np.maximum(largest[rows], np.abs(found - centre[rows]).max(axis=0))
            weights = np.minimum(1.0, float(censoring.window) / np.maximum(largest, 1e-300))
        return np.where(fine, weights, 0.0), centre

    return terms


def _at_points(pieces: Stream, space: Workspace, points: Sequence[FloatArray]) -> Stream:
    values = space.values_of(join(points))
    return pieces.at({name: np.stack([each[name] for each in values]) for name in pieces.names})


def _stored(bounds: Bounds, records: Records, weights: FloatArray | None) -> xr.Dataset:
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
    if weights is not None:
        values["weights"] = ("record", weights[each[kept]])
    made = whole.isel(record=kept).assign(values)
    return made.assign_attrs(records=bounds.n_records)


def _plain(found: xr.Dataset) -> xr.Dataset:
    """Return what a file can hold."""
    return found.drop_vars([name for name in found.data_vars if found[name].dtype.kind not in "biuf"]).drop_attrs()


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def at_chains(
    space: Workspace,
    stage: Stage,
    censoring: Censoring,
    values: Values,
    counts: IntArray | None,
    released: Sequence[Draws],
    tree: xr.DataTree,
    convergence: Convergence,
) -> Found:
    """Look closer at a posterior that was drawn from by NUTS."""
    rows, n = distinct(values, counts)
    facts = {"sampler": "nuts", "convergence": convergence, "passed": convergence.passed}
    posterior = Posterior(tree=tree, released=released, facts=facts, independent=False)
    return inspect(_censored(space, stage, censoring, rows, n), posterior)


def at_grid(
    space: Workspace,
    stage: Stage,
    censoring: Censoring,
    values: Values,
    counts: IntArray,
    released: Sequence[Draws],
    scored: Scored,
) -> Found:
    """Look closer at a posterior on a grid: by draws from it that nobody pays for, so they stay inside."""
    rng = np.random.default_rng()
    probabilities = np.exp(scored.log_probabilities())
    chosen = rng.choice(len(probabilities), GRID_DRAWS, p=probabilities / probabilities.sum())
    draws = space.values_of(scored.grid.inside(scored.index[chosen], rng))
    outermost = ((scored.index == 0) | (scored.index == scored.grid.n_nodes - 1)).any(axis=1)
    facts = {"sampler": "grid", "edge": float(probabilities[outermost].sum())}
    posterior = Posterior(tree=tree_of(draws), released=released, facts=facts, independent=True)
    return inspect(_censored(space, stage, censoring, values, counts), posterior)


def _censored(space: Workspace, stage: Stage, censoring: Censoring, values: Values, counts: IntArray) -> Records:
    terms = censored_terms(space, stage, censoring)
    return Records(
        model=space.model,
        values=values,
        counts=counts,
        terms=terms,
        limit=float(censoring.window),
        blueprint=space.blueprint,
    )
