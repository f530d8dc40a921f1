"""A coin: one column with two levels, from a noisy count (for modips).

Simulation 1 of Bowen & Liu, Comparative study of differentially private data synthesis
methods, Statistical Science 35 (2020). The prior is Kerman's neutral one (Electronic
Journal of Statistics 5, 2011).

Schema: one column with two levels and nothing else.
"""

import numpy as np
import pymc as pm

from pdips.errors import InputError
from pdips.statistics.statistic import Counts

SHARE = "share of the first level"
PRIOR = 1 / 3


def column(schema):
    names = list(schema.columns)
    if len(names) == 1 and not schema.columns[names[0]].is_categorical:
        raise InputError(
            f"bernoulli.py describes one column with two levels, and {names[0]!r} is "
            f"numeric: give it levels in the "
            "schema, or take normal_moments.py"
        )
    if (
        len(names) != 1
        or schema.columns[names[0]].n_levels != 2
        or schema.columns[names[0]].public
    ):
        raise InputError(
            f"bernoulli.py describes one column with two levels that "
            f"isn't public; the schema has {names}"
        )
    return names[0]


def statistics(schema):
    return {"counts": Counts(by=(column(schema),))}


def build_model(given, schema):
    with pm.Model() as model:
        share = pm.Beta(SHARE, PRIOR, PRIOR)
        n = given.measured.n_records
        if n is None:
            given.multinomial("counts", pm.math.stack([share, 1 - share]))
        else:  # the count of the first level says all, and is summed over
            given.observe("counts", pm.Binomial.dist(n, share), n)
    return model


def draw_records(draw, records, schema, rng):
    codes = rng.random(records.n) >= np.asarray(draw[SHARE])
    return {column(schema): codes.astype(int)}
