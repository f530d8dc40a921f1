"""Whether a model could have given the records: others drawn from it, compared by column. Inside only, unpaid."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Column
from pdips.posterior.columns import Values, collapse
from pdips.posterior.model import Blueprint

DRAWS, AT_ONCE = 20, 5
"""Draws, and those that are made before the clock is looked at."""

MOST_RECORDS = 10_000
"""Records of the table that are compared, and records that are drawn at each draw."""

MOST_SECONDS = 5.0
MOST_COLUMNS = 12
BINS = 30
SEED = 19


def check_records(
    blueprint: Blueprint, posterior: xr.Dataset, values: Values, counts: IntArray
) -> tuple[dict[str, Any], dict[str, xr.Dataset]]:
    """Draw records from a model at draws from its posterior, and compare each column's shares with the table's.

    A posterior predictive check whose test quantity is the total variation distance of a column's shares from the mean
    of all that was drawn. Of many records it takes some; it ends when its time is over, with the draws made by then.
    The drawn columns alone are compared: public ones are the table's own.

    Parameters
    ----------
    blueprint : Blueprint
        The model.
    posterior : Dataset
        Draws, dimensions ``chain`` and ``draw`` and those of the variables.
    values : mapping of str to ndarray, shape (rows,)
        The confidential records, as the model reads them.
    counts : ndarray of int64, shape (rows,)
        How many records each row stands for.

    Returns
    -------
    dict
        ``draws``, ``records``, and for each of ``columns`` its ``name``, the ``distance`` of the table, that of
        draws (``typical``, their mean), and ``p``: how often a draw is as far away as the table.
    dict of str to Dataset
        Group ``posterior_predictive``: ``column_0`` and so on, in the order of ``columns``, (chain, draw, bin);
        ``observed_data``: the same of the table, and ``edges_0`` of columns without levels.
    """
    rng = np.random.default_rng(SEED)
    rows = _some(counts, rng)
    taken = {name: np.asarray(column)[rows] for name, column in values.items()}
    schema = blueprint.schema
    names = list(blueprint.synthesized)[:MOST_COLUMNS]
    edges = {name: bin_edges(schema.columns[name]) for name in names}
    observed = {name: _shares(taken[name], schema.columns[name], edges[name]) for name in names}
    public = {name: taken[name] for name in schema.public_columns}

    made: dict[str, list[FloatArray]] = {name: [] for name in names}
    end = time.monotonic() + MOST_SECONDS
    for parameters in _spread(blueprint, posterior):
        drawn = blueprint.draw_several(parameters, len(rows), public, rng)
        for name in names:
            made[name] += [_shares(each, schema.columns[name], edges[name]) for each in drawn[name]]
        if time.monotonic() > end:
            break
    simulated = {name: np.stack(each) for name, each in made.items()}
    columns = [{"name": name} | compare(observed[name], simulated[name]) for name in names]
    facts = {"draws": len(simulated[names[0]]), "records": len(rows), "columns": columns}
    return facts, _groups([(observed[name], simulated[name], edges[name]) for name in names])


def compare(observed: FloatArray, simulated: FloatArray) -> dict[str, float]:
    """Return how far observed shares, shape (bins,), and simulated ones, (draws, bins), lie from the simulated mean."""
    middle = simulated.mean(axis=0)
    typical = np.abs(simulated - middle).sum(axis=1) / 2
    distance = np.abs(observed - middle).sum() / 2
    beyond = int((typical >= distance).sum())
    p = (1 + beyond) / (1 + len(simulated))
    return {"distance": float(distance), "typical": float(typical.mean()), "p": p}


def bin_edges(column: Column) -> FloatArray:
    """Return the edges of a column's bins, from the schema alone: one for each level or few whole numbers, or 30."""
    if column.is_categorical:
        return np.arange(-0.5, column.n_levels, dtype=np.float64)
    lower, upper = float(column.lower or 0), float(column.upper or 0)
    if column.integer and upper - lower < BINS:
        return np.arange(lower - 0.5, upper + 1, dtype=np.float64)
    space = np.geomspace if column.scale == "log" else np.linspace
    edges = space(lower, upper, BINS + 1)
    edges[0], edges[-1] = lower, upper  # rounding must not leave out what lies at a bound
    return edges


def _some(counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the row of each record, or of some."""
    n = int(counts.sum())
    if n <= MOST_RECORDS:
        return np.repeat(np.arange(len(counts)), counts)
    chosen = np.sort(rng.choice(n, MOST_RECORDS, replace=False, shuffle=False))
    return np.searchsorted(np.cumsum(counts), chosen, side="right").astype(np.int64)


def _spread(blueprint: Blueprint, posterior: xr.Dataset) -> list[dict[str, NDArray[Any]]]:
    """Return parameters at draws as far apart as they can be, a few at once, each lot from all over the chains."""
    names = [variable.name for variable in blueprint.model.free_RVs]
    stacked = posterior[names].stack(sample=("chain", "draw")).transpose("sample", ...)
    places = np.unique(np.linspace(0, stacked.sizes["sample"] - 1, DRAWS).astype(int))
    lots = max(1, len(places) // AT_ONCE)
    return [{name: stacked[name].to_numpy()[places[lot::lots]] for name in names} for lot in range(lots)]


def _shares(values: NDArray[Any], column: Column, edges: FloatArray) -> FloatArray:
    """Return the share of each bin; what lies outside is moved to the nearest end, as in synthetic sets."""
    if column.is_categorical:
        lower, upper = 0.0, column.n_levels - 1.0
    else:
        lower, upper = float(column.lower or 0), float(column.upper or 0)
    known = np.clip(np.nan_to_num(np.asarray(values, dtype=np.float64), nan=lower), lower, upper)
    known = np.rint(known) if column.is_categorical or column.integer else collapse(known, column)
    shares: FloatArray = np.histogram(known, edges)[0] / max(len(known), 1)
    return shares


def _groups(columns: Sequence[tuple[FloatArray, FloatArray, FloatArray]]) -> dict[str, xr.Dataset]:
    predicted, observed = {}, {}
    for place, (table, drawn, edges) in enumerate(columns):
        predicted[f"column_{place}"] = (("chain", "draw", f"bin_{place}"), drawn[None])
        observed[f"column_{place}"] = ((f"bin_{place}",), table)
        observed[f"edges_{place}"] = ((f"edge_{place}",), edges)
    return {"posterior_predictive": xr.Dataset(predicted), "observed_data": xr.Dataset(observed)}
