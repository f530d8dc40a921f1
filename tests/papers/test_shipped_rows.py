"""Rows of studies that bear the name of a shipped mechanism are releases of it, one by one or in batches.

Each check of laws accepts a true one but once in a million (seeds are fixed) and comes with a broken twin.
"""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from laws import ACCEPT, REJECT, chi_square, two_samples
from scipy import stats
from tables import bits

from pdips import registry
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.registry import find
from pdips_papers import find as find_study
from pdips_papers.harness.batch import release_each, stacked
from pdips_papers.harness.study import Options
from pdips_papers.modips import normal_moments, proportions

N, ONES, RUNS, SINGLE = 6, 2, 3000, 400
EPSILON = Fraction(3)
X = np.array([-2.9, -2.0, -1.1, 0.3, 0.9, 3.9])


class ReachedError(Exception):
    """The study asked for the mechanism."""


STUDIES = {
    "proportions": ("laplace-sanitizer", "multinomial-dirichlet", "mcclure-reiter"),
    "normal-moments": ("laplace-sanitizer", "perturbed-histogram", "smoothed-histogram"),
    "glom": ("modips",),
    "slomag": ("modips",),
    "censored-beta": ("perturbed-histogram", "censored-posterior"),
    "model-mechanisms": ("censored-posterior", "modips", "scores"),
    "steps-regression": ("steps", "universal-histogram", "privbayes"),
    "heavy-tailed": ("kng-residual",),
}


@pytest.mark.parametrize(("study", "name"), [(study, name) for study, names in STUDIES.items() for name in names])
def test_a_study_calls_the_mechanism_that_its_rows_are_named_after(study, name, monkeypatch):
    class Stub:
        variants = find(name).variants
        __dataclass_fields__ = find(name).__dataclass_fields__

        def __init__(self, **settings):
            raise ReachedError

    monkeypatch.setitem(registry.MECHANISMS, name, Stub)
    found = find_study(study)
    if study == "heavy-tailed":
        found = type(found)(rows=("kng-residual",), n=50, n_resplits=2)
    arguments = dict(found.tasks(Options(replicates=1, epsilons=("1",)))[0].arguments)
    if study == "censored-beta":
        arguments |= {"n": 20, "draws": 10, "claimed": []}
    if study == "model-mechanisms" and name != "censored-posterior":
        arguments["censored"] = []
    with pytest.raises(ReachedError):
        found.run(arguments, 1)


def in_first_bin(values):
    return np.sum(np.asarray(values) < -3 + 7 / 3, axis=-1)


def batch(study, row, epsilon, module=None):
    """What a study's batch makes of many copies of one table: ones, or records in the first of three bins."""
    n_sets = dict(study.SHIPPED[row][1]).get("n_sets", 1)
    values, column = one_table(study)
    made = study.shipped(row, stacked(np.tile(values, (RUNS // n_sets, 1)), column), n_sets * epsilon, bits(1))
    return (made if study is proportions else in_first_bin(made)).ravel()


def one_table(study):
    if study is proportions:
        return (np.arange(N) < ONES).astype(float), {"levels": [0, 1]}
    return X, {"lower": -3, "upper": 4, "bins": 3}


def one_by_one(study, row):
    """The same of releases of that table by the mechanism that the row is named after."""
    values, column = one_table(study)
    table = Table(pd.DataFrame({"x": values}), Schema.model_validate({"columns": {"x": column}}))
    mechanism, rng = find(NAMED[row])(epsilon=EPSILON), np.random.default_rng(2)
    sets = [mechanism.release(table, rng=rng)[0].sets[0]["x"].to_numpy(dtype=float) for _ in range(SINGLE)]
    return in_first_bin(sets) if study is normal_moments else np.sum(sets, axis=1)


NAMED = {
    "laplace-both-counts": "laplace-sanitizer",
    "multinomial-dirichlet": "multinomial-dirichlet",
    "mcclure-reiter": "mcclure-reiter",
    "sanitizer-on-bins": "laplace-sanitizer",
    "perturbed-histogram": "perturbed-histogram",
    "smoothed-histogram": "smoothed-histogram",
}
"""What rows are named after, written out here once more: a row that calls another mechanism fails."""

ROWS = [(study, row) for study in (proportions, normal_moments) for row in study.SHIPPED]


@pytest.mark.parametrize(("study", "row"), ROWS, ids=[row for _, row in ROWS])
def test_a_batch_has_the_law_of_single_releases(study, row, monkeypatch):
    single = one_by_one(study, row)
    assert two_samples(batch(study, row, EPSILON), single) > ACCEPT
    assert two_samples(batch(study, row, EPSILON / 30), single) < REJECT  # the broken twin: a thirtieth of the epsilon
    other = "mcclure-reiter" if NAMED[row] != "mcclure-reiter" else "laplace-sanitizer"
    settings = {} if other == "mcclure-reiter" else {"n_sets": 1}
    monkeypatch.setitem(study.SHIPPED, row, (other, settings))  # another mechanism under the name of the row
    assert NAMED[row] == "smoothed-histogram" or two_samples(batch(study, row, EPSILON), single) < REJECT


def test_tables_of_a_batch_are_apart():
    # the broken twin: tables that shared noise or records would move together
    records = np.repeat([[0.0] * 4, [1.0] * 4], 50, axis=0)
    mechanism = find("laplace-sanitizer")(epsilon=10_000, n_sets=3, split="per-set")
    made = release_each(mechanism, stacked(records, {"levels": [0, 1]}), np.random.default_rng(0))
    assert made.shape == (100, 3, 4)
    np.testing.assert_array_equal(made, np.repeat(records[:, None], 3, axis=1))
    alike = stacked(records[:50], {"levels": [0, 1]})
    loud = release_each(find("laplace-sanitizer")(epsilon="0.5"), alike, np.random.default_rng(0))
    assert len(np.unique(loud.sum(axis=2))) > 2


def test_laws_of_urns_are_exact_in_batches():
    alpha = N / np.expm1(float(EPSILON))
    ones = batch(proportions, "multinomial-dirichlet", EPSILON)
    assert chi_square(ones, stats.betabinom(N, alpha + ONES, alpha + N - ONES).pmf) > ACCEPT
    # a twin of 10 times the prior scores above REJECT with probability below 1e-40
    assert chi_square(ones, stats.betabinom(N, 10 * alpha + ONES, 10 * alpha + N - ONES).pmf) < REJECT
    a = 1 / np.expm1(float(EPSILON) / N)
    ones = batch(proportions, "mcclure-reiter", EPSILON)
    assert chi_square(ones, stats.binom(N, (ONES + a) / (N + 2 * a)).pmf) > ACCEPT
    assert chi_square(ones, stats.binom(N, ONES / N).pmf) < REJECT
