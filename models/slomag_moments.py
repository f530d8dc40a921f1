"""Numeric columns that are jointly normal, and columns with levels by a sequence of logits on them (for modips).

The model is SLOMAG of Bowen & Liu, Comparative study of differentially private data synthesis methods, Statistical
Science 35 (2020), section 4.3.2. The statistics are others: in place of regularised regressions, counts and sums by
cell, which are what the scores of the logits are made of (Huggins, Adams & Broderick, PASS-GLM: polynomial approximate
sufficient statistics for scalable Bayesian GLM inference, 2017; Kulkarni, Jaelkoe, Koskela, Kaski & Honkela,
Differentially private Bayesian inference for generalized linear models, 2021). They need no ridge, and less noise.

Schema: one to three numeric columns, and columns with levels; the order of the latter is that of the logits.

Experimental: slow, and its coverage isn't measured. With the five columns and 1,000 records of simulation 4 there, two
chains of 500 + 500 draws take 28 to 35 s of processor time at epsilon = e^2 and e^4 (trajectories of 12 steps), and
agree, in some cases only after a second round that takes twice that; at epsilon = 1 trajectories have 36 steps, as
coefficients are hardly known, and no fit was carried to its end. Compiling takes 36 s or more, once (November 2026, two
cores that others used too).
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pdips.errors import InputError
from pdips.statistics.sequential_logits import beginnings, sequence_sums
from pdips.statistics.statistic import Counts, Products, Sums
from pdips.statistics.units import unit_of

MOST_CELLS = 64


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


def build_model(given, schema):
    z, w = columns(schema)
    d, sizes = len(z), [schema.columns[name].n_levels for name in w]
    begin, spread = beginnings(given, list(statistics(schema)), d)
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
        pm.Deterministic("factor", factor)
        # Of predictors with mean 0 and standard deviation 1, or 0 and 1: 2.5 as scale as in Gelman, Jakulin, Pittau &
        # Su, A weakly informative default prior distribution for logistic and other regression models (2008).
        logits = {
            name: pm.Normal(f"logits of {name}", 0, 2.5, shape=(sizes[i] - 1, 1 + d + sum(sizes[:i]) - i))
            for i, name in enumerate(w)
        }
        sequence_sums(given, list(statistics(schema)), mean, factor, list(logits.values()))
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
