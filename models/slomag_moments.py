"""Numeric columns that are jointly normal, and columns with levels by a sequence of logits on them (for modips).

The model is SLOMAG of Bowen & Liu, Comparative study of differentially private data synthesis methods, Statistical
Science 35 (2020), section 4.3.2. The statistics are others: in place of regularised regressions, counts and sums by
cell, which are what the scores of the logits are made of (Huggins, Adams & Broderick, PASS-GLM: polynomial approximate
sufficient statistics for scalable Bayesian GLM inference, 2017; Kulkarni, Jaelkoe, Koskela, Kaski & Honkela,
Differentially private Bayesian inference for generalized linear models, 2021). They need no ridge, and less noise.

Schema: one to three numeric columns, and columns with levels; the order of the latter is that of the logits.

Experimental: slow, and its coverage isn't measured.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pdips.errors import InputError
from pdips.statistics.plan import nearest_positive, number_of_records
from pdips.statistics.statistic import Counts, Products, Sums, unit_of

MOST_CELLS = 64

STEP = {1: 0.4, 2: 0.75, 3: 0.85}
"""Between nodes, in standard deviations, by dimension. A mean of a logistic function of slope 2.2 a deviation is wrong
by 1e-7, 1e-5, 8e-5; of slope 4, by 6e-6, 2e-3, 5e-3: small beside the errors of 1,000 records, not of a million."""

REACH = 4.5
"""Standard deviations from the mean beyond which there are no nodes: variances are short by 1e-3 or less."""

LARGEST, SMALLEST = 0.9, 0.005
"""Means, and eigenvalues of the covariance, of u that chains start within: it steers chains only."""


def columns(schema):
    """The numeric columns z, and those with levels w."""
    z = [name for name, column in schema.columns.items() if not column.is_categorical]
    w = [name for name, column in schema.columns.items() if column.is_categorical]
    if not 1 <= len(z) <= 3 or not w or schema.public_columns or min(schema.columns[name].n_levels for name in w) < 2:
        raise InputError(
            "slomag_moments.py describes one to three numeric columns and at least one with levels, two or more, none "
            f"of them public; the schema has numeric columns {z} and columns with levels {w}"
        )
    if np.prod([schema.columns[name].n_levels for name in w]) > MOST_CELLS:
        raise InputError(f"{' x '.join(w)} has more than {MOST_CELLS} cells: leave columns out, or join their levels")
    return z, w


def pairs(z):
    return [(z[i], z[j]) for i in range(len(z)) for j in range(i + 1)]


def statistics(schema):
    # Sums by all cells, once, rather than by each column with levels: the columns would have to share the budget.
    z, w = columns(schema)
    return (
        {"cells": Counts(by=tuple(w))}
        | {f"sums of {name}": Sums(of=name, by=tuple(w)) for name in z}
        | {f"products of {x}, {y}": Products(of=(x, y)) for x, y in pairs(z)}
    )


def nodes(d):
    """Nodes, shape (nodes, d), and weights for means under a standard normal law.

    The trapezoidal rule, whose error is exponentially small in 1 / step for functions that are analytic near the real
    line (Trefethen & Weideman, The exponentially convergent trapezoidal rule, SIAM Review 56, 2014): a logistic
    function of slope s has its nearest pole pi / s away. Gauss and Hermite's rule does worse on those.
    """
    most = int(REACH / STEP[d])
    axis = STEP[d] * np.arange(-most, most + 1)
    points = np.stack(np.meshgrid(*[axis] * d, indexing="ij"), axis=-1).reshape(-1, d)
    squared = (points**2).sum(axis=1)
    weights = np.exp(-squared[squared <= REACH**2] / 2)
    return points[squared <= REACH**2], weights / weights.sum()


def shares(standard, logits):
    """Probabilities of the cells at each node, shape (nodes, cells); ``standard`` are its numbers, standardised."""
    d, found, indicators = standard.type.shape[1], pt.ones((standard.type.shape[0], 1)), np.zeros((1, 0))
    for x in logits:
        levels = x.type.shape[0] + 1
        offset = x[:, 0] + pt.dot(indicators, x[:, 1 + d :].T)
        odds = offset[None] + pt.dot(standard, x[:, 1 : 1 + d].T)[:, None]
        odds = pt.concatenate([pt.zeros_like(odds[:, :, :1]), odds], axis=2)
        found = (found[:, :, None] * pt.special.softmax(odds, axis=2)).reshape((found.shape[0], -1))
        codes = np.tile(np.eye(levels)[:, 1:], (len(indicators), 1))
        indicators = np.hstack([np.repeat(indicators, levels, axis=0), codes])
    return found


def moments(mean, factor, logits):
    """What one record adds to the statistics on average, shape (entries,), and the average of its products."""
    d, cells = factor.type.shape[0], int(np.prod([x.type.shape[0] + 1 for x in logits]))
    points, weights = nodes(d)
    away = pt.dot(points, factor.T)
    share = shares(pt.specify_shape(away / pt.sqrt((factor**2).sum(axis=1)), points.shape), logits)
    rows, columns = np.tril_indices(d)
    z = mean + away
    by_cell, products = pt.concatenate([pt.ones((len(points), 1)), z], axis=1), z[:, rows] * z[:, columns]
    both = pt.concatenate([by_cell, products], axis=1)
    weighed = weights[:, None] * share
    # by cell, feature and feature; counts and sums of one record are in one cell
    inside = pt.dot(weighed.T, (by_cell[:, :, None] * both[:, None]).reshape((len(points), -1)))
    inside = inside.reshape((cells, 1 + d, 1 + d + len(rows)))
    own = inside[:, :, : 1 + d].transpose((1, 0, 2))[:, :, :, None] * np.eye(cells)[None, :, None]
    own = own.reshape(((1 + d) * cells, (1 + d) * cells))
    cross = inside[:, :, 1 + d :].transpose((1, 0, 2)).reshape(((1 + d) * cells, len(rows)))
    squares = pt.dot((weights[:, None] * products).T, products)
    second = pt.concatenate([pt.concatenate([own, cross], axis=1), pt.concatenate([cross.T, squares], axis=1)], axis=0)
    return pt.concatenate([inside[:, :, 0].T.ravel(), pt.dot(weights, products)]), second


def beginnings(given, schema):
    """Where chains start: mean and factor of the covariance of u, from settled sums and products."""
    z, _ = columns(schema)
    n = number_of_records(given.measured, given.used)
    mean = np.clip([given[f"sums of {name}"].sum() / n for name in z], -LARGEST, LARGEST)
    covariance = np.zeros((len(z), len(z)))
    for (x, y), row, column in zip(pairs(z), *np.tril_indices(len(z)), strict=True):
        value = given[f"products of {x}, {y}"][0] / n - mean[row] * mean[column]
        covariance[row, column] = covariance[column, row] = value
    return mean, np.linalg.cholesky(nearest_positive(covariance, SMALLEST))


def build_model(given, schema):
    z, w = columns(schema)
    d, sizes = len(z), [schema.columns[name].n_levels for name in w]
    begin, spread = beginnings(given, schema)
    with pm.Model() as model:
        # In units of half the range, counted from its middle, as in normal_moments.py.
        mean = pm.Normal("mean", 0, 0.5, shape=d, initval=begin)
        if d > 1:
            law = pm.HalfNormal.dist(0.5, size=d)
            packed = spread[np.tril_indices(d)]
            factor, _, sd = pm.LKJCholeskyCov("covariance", n=d, eta=2, sd_dist=law, compute_corr=True, initval=packed)
        else:
            sd = pm.HalfNormal("sd", 0.5, shape=1, initval=spread[0])
            factor = sd[:, None]
        factor = pm.Deterministic("factor", pt.specify_shape(factor, (d, d)))
        # Of predictors with mean 0 and standard deviation 1, or 0 and 1: 2.5 as scale as in Gelman, Jakulin, Pittau &
        # Su, A weakly informative default prior distribution for logistic and other regression models (2008).
        logits = {
            name: pm.Normal(f"logits of {name}", 0, 2.5, shape=(sizes[i] - 1, 1 + d + sum(sizes[:i]) - i))
            for i, name in enumerate(w)
        }
        # Sums over records are normal by the central limit theorem; over a Poisson number of records too.
        first, second = moments(mean, factor, list(logits.values()))
        n = given.poisson_total("cells")
        centred = not given.aware or given.measured.n_records is not None
        given.gaussian(
            list(statistics(schema)), n * first, n * (second - pt.outer(first, first) if centred else second)
        )
        in_units(mean, factor, sd, logits, [unit_of(schema, name) for name in z])
    return model


def in_units(mean, factor, sd, logits, units):
    """The same parameters in the columns' units (of logarithms where they are measured)."""
    middle, half = np.array([unit.middle for unit in units]), np.array([unit.half for unit in units])
    mu = pm.Deterministic("mu", middle + half * mean)
    wide = half[:, None] * factor
    pm.Deterministic("sigma", pt.dot(wide, wide.T))
    d = len(units)
    for name, x in logits.items():
        slopes = x[:, 1 : d + 1] / (half * sd)
        intercept = x[:, :1] - pt.dot(slopes, mu)[:, None]
        pm.Deterministic(f"coefficients of {name}", pt.concatenate([intercept, slopes, x[:, d + 1 :]], axis=1))


def draw_records(draw, records, schema, rng):
    z, w = columns(schema)
    factor = np.asarray(draw["factor"])
    deviations = rng.standard_normal((records.n, len(z))) @ factor.T
    u, found = np.asarray(draw["mean"]) + deviations, {}
    x = np.column_stack([np.ones(records.n), deviations / np.sqrt((factor**2).sum(axis=1))])
    for name in w:
        logits = x @ np.asarray(draw[f"logits of {name}"]).T
        utilities = np.column_stack([np.zeros(records.n), logits]) + rng.gumbel(size=(records.n, logits.shape[1] + 1))
        found[name] = utilities.argmax(axis=1)
        x = np.column_stack([x, found[name][:, None] == np.arange(1, schema.columns[name].n_levels)])
    return {name: unit_of(schema, name).back(u[:, i]) for i, name in enumerate(z)} | found
