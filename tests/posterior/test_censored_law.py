"""The price of a censored posterior by the code's own law, cell by cell, for two models with one parameter.

No randomness: ``law`` is exact to rounding. The broken twin is a window twice as wide.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from small_models import about, written

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.posterior.censored_posterior import CensoredPosterior
from pdips.privacy.replay import exact_law

EPSILON = Fraction(1)
ROUNDING = 1e-6


coin = written(lambda data: pm.Bernoulli("x", pm.Beta("p", 1, 1), observed=data["x"]))
normal = about(parameter=lambda data: pm.Normal("mu", 0, 2), name="x", observed=lambda data: data["x"])


COIN = Schema.model_validate({"columns": {"x": {"levels": [0, 1]}}})
NUMBER = Schema.model_validate({"columns": {"x": {"lower": -4.0, "upper": 4.0}}})
CASES = {"coin": (coin, COIN, {"p": 0.5}, (0, 1)), "normal": (normal, NUMBER, {"mu": 0.0}, (-4.0, 0.0, 4.0))}


def log_probabilities(mechanism, values, schema):
    law = exact_law(mechanism, Table(pd.DataFrame({"x": values}), schema))
    assert law.repeats == 1
    return {outcome.key: outcome.log_probability for outcome in law.outcomes}


def loss(p, q):
    assert p.keys() == q.keys()
    return max(abs(p[key] - q[key]) for key in p)


def pairs(values, relation, n=60):
    for base, one, other in product(values, repeat=3):
        shared = [base] * n
        if relation == "add-remove":
            yield [*shared, one], shared
        elif one != other:
            yield [*shared, one], [*shared, other]


def worst(case, relation, epsilon):
    build, schema, reference, values = CASES[case]
    extra = {"n_records": 60} if relation == "add-remove" else {}
    mechanism = CensoredPosterior(
        epsilon=epsilon, model=build, neighbours=relation, reference=reference, n_sets=1, **extra
    )
    known = {}

    def law(records):
        key = tuple(records)
        if key not in known:
            known[key] = log_probabilities(mechanism, records, schema)
        return known[key]

    return max(loss(law(a), law(b)) for a, b in pairs(values, relation))


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("case", CASES)
def test_the_law_costs_epsilon_and_no_more(case, relation):
    found = worst(case, relation, EPSILON)
    assert 0.9 * EPSILON < found <= EPSILON + ROUNDING


def test_a_window_twice_as_wide_is_caught():
    assert worst("coin", "replace-one", 2 * EPSILON) > 1.5 * EPSILON


def test_public_facts_do_not_see_the_number_of_records_under_add_remove():
    """The cells of a law are the same ones for tables of any size: 60 records and one."""
    build, schema, reference, _ = CASES["normal"]
    mechanism = CensoredPosterior(
        epsilon=EPSILON, model=build, neighbours="add-remove", reference=reference, n_records=60
    )
    many, one = (log_probabilities(mechanism, [0.0] * n, schema) for n in (60, 1))
    assert many.keys() == one.keys()
    assert np.isfinite(list(one.values())).all()
