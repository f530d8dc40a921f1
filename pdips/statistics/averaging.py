"""Several models of the same noisy statistics, weighed by stacking: which set is drawn
from which (for modips).

Stacking gives the weights under which the mixture of the models' leave-one-out
predictive densities of the noisy measurements is highest (Yao, Vehtari, Simpson and
Gelman, Using stacking to average Bayesian predictive distributions, Bayesian Analysis
13, 2018). All that is read is public or paid for.
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

# Posterior draws at which exact statistics are predicted, and tables drawn at each
DRAWS = 100
REPEATS = 4
# Pareto k above which the density of a measurement given the others is a guess (Vehtari
# et al. 2024)
MOST_K = 0.7
# Of exact statistics, in standard deviations of the noise: a law without any spread has
# no density
LEAST_SPREAD = 1e-6
# Nats by which densities at one draw after the other are set apart, so that no two are
# equal
TIE = 1e-9


def declared(
    models: Sequence[StatisticModel], schema: Schema, neighbours: Neighbours
) -> dict[str, Statistic]:
    """Return the statistics of all models; refuse models that give one name to two, or
    share none with noise.
    """
    statistics: dict[str, Statistic] = {}
    noisy = list[set[str]]()
    for model in models:
        of_model = model.declared(schema, neighbours)
        noisy.append(set())
        for name, statistic in of_model.items():
            if statistic.sensitivity(schema, neighbours).l1 > 0:
                noisy[-1].add(name)
            if statistics.setdefault(name, statistic) != statistic:
                raise InputError(
                    f"the models declare different statistics of the "
                    f"name {name!r}; rename one of them"
                )
    if not set.intersection(*noisy):
        raise InputError(
            "the models share no noisy statistic by which they could be "
            "weighed: each declares its own"
        )
    return statistics


def shared(
    models: Sequence[StatisticModel], measured: NoisyStatistics
) -> list[StatisticPart]:
    """Return the noisy statistics that all models declare."""
    names = [
        set(model.declared(measured.schema, measured.neighbours)) for model in models
    ]
    return [
        part
        for part in measured.parts
        if part.n_noised and all(part.name in mine for mine in names)
    ]


def log_predictive(
    parts: Sequence[StatisticPart],
    measured: NoisyStatistics,
    exact: Mapping[str, FloatArray],
) -> FloatArray:
    """Return log densities of noisy measurements at posterior draws, shape (draws,
    measurements).

    ``exact`` has statistics of tables drawn at each draw by name, shape (draws,
    repeats, entries), in whole units. One is taken to be normal at each draw, with the
    mean over its repeats and a variance pooled over draws; its noise is added as the
    continuous law of the same scale.
    """
    densities = []
    for part in parts:
        drawn = exact[part.name][..., : part.n_noised]
        noisy = measured.values[part.name][: part.n_noised]
        away = noisy - drawn.mean(axis=1)
        variance = drawn.var(axis=1, ddof=1).mean(axis=0)
        if part.law == "gaussian":
            variance = variance + float(part.scale)
            constant = np.log(2 * np.pi * variance) / 2
            densities.append(-(away**2) / (2 * variance) - constant)
        else:
            scale = float(part.scale)
            deviation = np.maximum(np.sqrt(variance), LEAST_SPREAD * scale)
            densities.append(_normal_laplace(away, deviation, scale))
    return np.concatenate(densities, axis=1)


def _normal_laplace(x: FloatArray, sd: FloatArray, scale: float) -> FloatArray:
    """Return the log density of a normal number about 0 with Laplace noise."""
    ratio = sd / scale
    above = special.log_ndtr(x / sd - ratio) - x / scale
    below = special.log_ndtr(-x / sd - ratio) + x / scale
    constant = ratio**2 / 2 - math.log(2 * scale)
    return np.asarray(np.logaddexp(above, below) + constant)


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
        ``model``; ``weight``; ``difference``, the expected log predictive density in
        nats less that of the best model, and its ``standard_error``; ``measurements``;
        ``uncertain``, of how many Pareto k is above :data:`MOST_K`.

    Examples
    --------
    >>> near, far = np.zeros((100, 8)), np.full((100, 8), -3.0)
    >>> compare(["near", "far"], [near, far])["weight"].round(2).tolist()
    [1.0, 0.0]
    """
    # Weights don't change if a measurement's density is multiplied by the same number
    # in all models.
    top = np.max([density.max(axis=0) for density in log_densities], axis=0)
    expected = {}
    uncertain = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large k, which is published
        for name, density in zip(names, log_densities, strict=True):
            # ArviZ refuses tails of equal values
            apart = TIE * np.arange(len(density))[:, None]
            of_chain = (density - top - apart)[None]
            noisy = xr.DataArray(of_chain, dims=("chain", "draw", "measurement"))
            likelihoods = xr.Dataset({"noisy": noisy})
            tree = xr.DataTree.from_dict({"log_likelihood": likelihoods})
            expected[name] = az.loo(tree, pointwise=True, reff=1.0)
            uncertain.append(int((expected[name].pareto_k > MOST_K).sum()))
        ranked = az.compare(expected, method="stacking", round_to="none")
    table = ranked.loc[list(names)]
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
