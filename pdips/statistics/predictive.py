"""Whether a model could have given the noisy statistics that it was fitted to: a posterior predictive check."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.table import Table
from pdips.posterior.inspection import MOST_LISTED, Posterior, listed
from pdips.posterior.model_file import stored_name
from pdips.posterior.records import to_frame
from pdips.privacy.noise import RandomBits
from pdips.statistics.fit import Fitted
from pdips.statistics.model import StatisticModel, Wanted
from pdips.statistics.plan import Measured
from pdips.statistics.post_processing import number_of_records, settle

DRAWS = 100
MOST_RECORDS = 10_000_000
"""Records that are simulated in all."""

SEED = 17


def check_predictive(
    model: StatisticModel,
    measured: Measured,
    fitted: Fitted,
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


def _facts(fitted: Fitted, n_released: int) -> dict[str, Any]:
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
    measured: Measured,
    fitted: Fitted,
    covariates: Mapping[str, NDArray[Any]],
    public: pd.DataFrame,
) -> dict[str, FloatArray]:
    """Return simulated noisy statistics, shape (draws, entries), by name."""
    n = round(number_of_records(measured, settle(measured)))
    rng = np.random.default_rng(SEED)
    stacked = fitted.tree["posterior"].to_dataset().stack(sample=("chain", "draw")).transpose("sample", ...)
    total = stacked.sizes["sample"]
    n_draws = max(min(DRAWS, total, MOST_RECORDS // max(n, 1)), 2)
    rows: dict[str, list[FloatArray]] = {part.name: [] for part in measured.parts if part.n_noised}
    for row in np.linspace(0, total - 1, n_draws).astype(int):
        draw = {str(name): values.to_numpy()[row] for name, values in stacked.data_vars.items()}
        columns = model.records(draw, Wanted(n, covariates), measured.schema, rng)
        frame = to_frame(measured.schema, columns, public, rng)
        table = Table(frame, measured.schema.without_person())
        for part in measured.parts:
            if part.n_noised:
                exact = part.statistic.measure(table).ravel().astype(np.float64)
                exact[: part.n_noised] += part.noise(1, RandomBits(rng))[0]
                rows[part.name].append(exact * part.statistic.unit(measured.schema))
    return {name: np.array(each) for name, each in rows.items()}
