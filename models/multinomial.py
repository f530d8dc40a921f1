"""Every cell of the full cross-tabulation has a probability of its own, from noisy
counts (for modips).

The saturated log-linear model, section 5 of Bowen & Liu, Comparative study of
differentially private data synthesis methods, Statistical Science 35 (2020);
noise-aware as in Bernstein & Sheldon, Differentially private Bayesian inference for
exponential families (2018), but with the exact law of counts, and independent exact
draws from the posterior.

Schema: columns with levels, and numbers with bins, inside which values are drawn
evenly; none public. With many more cells than records the prior has the say, and the
sets are little but even: leave columns out, or merge levels.
"""

import numpy as np
import pymc as pm

from pdips.data.table import decode
from pdips.errors import InputError
from pdips.statistics.statistic import Counts

PRIOR = 1 / 2  # as in the paper's simulation 3; counts as half a record in each cell


def columns(schema):
    names = tuple(schema.columns)
    if schema.public_columns:
        raise InputError(
            "multinomial.py describes columns that aren't public; leave "
            "public ones out of the schema"
        )
    for name, column in schema.columns.items():
        if column.missing and not column.is_categorical:
            raise InputError(
                f"multinomial.py draws no missing numbers, which column "
                f"{name!r} may have: give it levels"
            )
    return names


def statistics(schema):
    return {"counts": Counts(by=columns(schema))}


def build_model(given, schema):
    with pm.Model() as model:
        shares = pm.Dirichlet("shares", np.full(len(given.noisy("counts")), PRIOR))
        given.multinomial("counts", shares)
    return model


def draw_records(draw, records, schema, rng):
    counts = rng.multinomial(records.n, draw["shares"])
    sizes = [schema.columns[name].n_levels for name in columns(schema)]
    codes = np.unravel_index(
        rng.permutation(np.repeat(np.arange(len(counts)), counts)), sizes
    )
    drawn = {}
    for name, code in zip(columns(schema), codes, strict=True):
        if schema.columns[name].is_categorical:
            drawn[name] = code
        else:
            drawn[name] = decode(schema, {name: code}, rng)[name].to_numpy(dtype=float)
    return drawn
