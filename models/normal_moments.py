"""A normal distribution for one numeric column, from noisy sums (for modips).

Simulation 2 of Bowen & Liu, Comparative study of differentially private data synthesis
methods, Statistical Science 35 (2020), with proper priors; noise-aware as in Bernstein
& Sheldon, Differentially private Bayesian inference for exponential families (2018).

Schema: one numeric column and nothing else. With scale = "log" its logarithm is normal.
"""

import numpy as np
import pymc as pm

from pdips.errors import InputError
from pdips.statistics.statistic import Products, Sums, unit_of

PRIOR_MEAN = 0.5
PRIOR_SD = 0.5


def column(schema):
    names = list(schema.columns)
    if (
        len(names) != 1
        or schema.columns[names[0]].is_categorical
        or schema.columns[names[0]].public
    ):
        raise InputError(
            f"normal_moments.py describes one numeric column that isn't "
            f"public; the schema has {names}"
        )
    return names[0]


def statistics(schema):
    y = column(schema)
    return {"total": Sums(of=y), "squares": Products(of=(y, y))}


def build_model(given, schema):
    with pm.Model() as model:
        # In units of half the range, counted from its middle. The mean lies within the
        # bounds with probability .95; values within bounds never spread by more than
        # half of their range.
        mean = pm.Normal("mean", 0, PRIOR_MEAN)
        sd = pm.HalfNormal("sd", PRIOR_SD)
        n = given.n
        total = given.normal("total", n * mean, sd, times=n)
        given.wishart(
            ["squares"],
            df=n - 1 if given.measured.n_records != 2 else 0,
            chol=sd,
            about=total[0] ** 2 / n,
        )
        unit = unit_of(schema, column(schema))
        pm.Deterministic("mu", unit.middle + unit.half * mean)
        pm.Deterministic("sigma", unit.half * sd)
    return model


def draw_records(draw, records, schema, rng):
    y = column(schema)
    u = draw["mean"] + draw["sd"] * rng.standard_normal(records.n)
    return {y: unit_of(schema, y).back(np.asarray(u))}
