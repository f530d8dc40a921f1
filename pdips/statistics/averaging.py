"""Several models of the same noisy statistics, weighed by stacking: which set is drawn from which (for modips).

Stacking gives the weights under which the mixture of the models' leave-one-out predictive densities of the noisy
measurements is highest (Yao, Vehtari, Simpson and Gelman, Using stacking to average Bayesian predictive distributions,
Bayesian Analysis 13, 2018). All that is read is public or paid for.
"""

import math
import warnings
from collections.abc import Mapping, Sequence

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr
from scipy import special

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.statistics.model import StatisticModel
from pdips.statistics.plan import NoisyStatistics, Statistic, StatisticPart

DRAWS, REPEATS = 100, 4  # Posterior draws at which exact statistics are predicted, and tables drawn at each
MOST_K = 0.7  # Pareto k above which the density of a measurement given the others is a guess (Vehtari et al. 2024)
LEAST_SPREAD = 1e-6  # Of exact statistics, in standard deviations of the noise: a law without any spread has no density
TIE = 1e-9  # Nats by which densities at one draw after the other are set apart, so that no two are equal


def declared(models: Sequence[StatisticModel], schema: Schema, neighbours: Neighbours) -> dict[str, Statistic]:
    """Return the statistics of all models; refuse models that give one name to two, or share none with noise."""
    found: dict[str, Statistic] = {}
    each = [model.declared(schema, neighbours) for model in models]
    for mine in each:
        for name, statistic in mine.items():
            if found.setdefault(name, statistic) != statistic:
                raise InputError(f"the models declare different statistics of the name {name!r}; rename one of them")
    noisy = [{name for name in mine if found[name].sensitivity(schema, neighbours).l1 > 0} for mine in each]
    if not set.intersection(*noisy):
        raise InputError("the models share no noisy statistic by which they could be weighed: each declares its own")
    return found


def shared(models: Sequence[StatisticModel], measured: NoisyStatistics) -> list[StatisticPart]:
    """Return the noisy statistics that all models declare."""
    names = [set(model.declared(measured.schema, measured.neighbours)) for model in models]
    return [part for part in measured.parts if part.n_noised and all(part.name in mine for mine in names)]


def log_predictive(
    parts: Sequence[StatisticPart], measured: NoisyStatistics, exact: Mapping[str, FloatArray]
) -> FloatArray:
    """Return log densities of noisy measurements at posterior draws, shape (draws, measurements).

    ``exact`` has statistics of tables drawn at each draw by name, shape (draws, repeats, entries), in whole units. One
    is taken to be normal at each draw, with the mean over its repeats and a variance pooled over draws; its noise is
    added as the continuous law of the same scale.
    """
    found = []
    for part in parts:
        drawn = exact[part.name][..., : part.n_noised]
        away = measured.values[part.name][: part.n_noised] - drawn.mean(axis=1)
        deviation = np.sqrt((drawn.std(axis=1, ddof=1) ** 2).mean(axis=0))
        scale = float(part.scale) if part.law == "laplace" else math.sqrt(part.scale)
        if part.law == "gaussian":
            variance = deviation**2 + scale**2
            found.append(-(away**2) / (2 * variance) - np.log(2 * np.pi * variance) / 2)
        else:
            found.append(_normal_laplace(away, np.maximum(deviation, LEAST_SPREAD * scale), scale))
    return np.concatenate(found, axis=1)


def _normal_laplace(x: FloatArray, sd: FloatArray, scale: float) -> FloatArray:
    """Return the log density of a normal number about 0 with Laplace noise."""
    ratio = sd / scale
    tails = [special.log_ndtr(side * x / sd - ratio) - side * x / scale for side in (1, -1)]
    return np.asarray(np.logaddexp(*tails) + ratio**2 / 2 - math.log(2 * scale))


def compare(names: Sequence[str], log_densities: Sequence[FloatArray]) -> pd.DataFrame:
    """Weigh models by stacking; return a row for each, in their order.

    Parameters
    ----------
    names : sequence of str
        What the models are called, all different.
    log_densities : sequence of ndarray, shape (draws, measurements)
        Of :func:`log_predictive`, one for each model.

    Returns
    -------
    DataFrame
        ``model``; ``weight``; ``difference``, the expected log predictive density in nats less that of the best model,
        and its ``standard_error``; ``measurements``; ``uncertain``, of how many Pareto k is above :data:`MOST_K`.

    Examples
    --------
    >>> near, far = np.zeros((100, 8)), np.full((100, 8), -3.0)
    >>> compare(["near", "far"], [near, far])["weight"].round(2).tolist()
    [1.0, 0.0]
    """
    # Weights don't change if a measurement's density is multiplied by the same number in all models.
    top = np.max([each.max(axis=0) for each in log_densities], axis=0)
    found, uncertain = {}, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large k, which is published
        for name, density in zip(names, log_densities, strict=True):
            apart = TIE * np.arange(len(density))[:, None]  # ArviZ refuses tails of equal values
            held = xr.Dataset({"noisy": (("chain", "draw", "measurement"), (density - top - apart)[None])})
            found[name] = az.loo(xr.DataTree.from_dict({"log_likelihood": held}), pointwise=True, reff=1.0)
            uncertain.append(int((found[name].pareto_k > MOST_K).sum()))
        table = az.compare(found, method="stacking", round_to="none").loc[list(names)]
    weight = np.clip(table["weight"].to_numpy(dtype=float), 0, None)
    return pd.DataFrame(
        {
            "model": list(names),
            "weight": weight / weight.sum(),
            "difference": 0.0 - table["elpd_diff"].abs().to_numpy(dtype=float),
            "standard_error": table["dse"].to_numpy(dtype=float),
            "measurements": len(top),
            "uncertain": uncertain,
        }
    )
