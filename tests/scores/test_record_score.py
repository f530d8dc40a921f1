"""One record's score: a function of that record alone, inside of its ball, in whole steps."""

import numpy as np
import pymc as pm
import pytest

from pdips import Schema
from pdips.posterior.columns import stand_ins
from pdips.posterior.model import blueprint_of
from pdips.posterior.model_file import as_source
from pdips.scores.record_score import STEPS, Clipping, RecordScore

SCHEMA = Schema.model_validate(
    {
        "columns": {
            "g": {"levels": ["a", "b", "c"], "public": True},
            "x": {"lower": -3, "upper": 3, "public": True},
            "y": {"lower": -30, "upper": 30},
        }
    }
)


def grouped(data, schema):
    with pm.Model() as model:
        effects, slope = pm.Normal("effects", 0, 5, shape=3), pm.Normal("slope", 0, 1)
        pm.Normal("y", effects[data["g"]] + slope * data["x"], pm.HalfNormal("sd", 5), observed=data["y"])
    return model


@pytest.fixture(scope="module")
def score():
    return RecordScore(blueprint_of(as_source(grouped), SCHEMA).likelihood)


@pytest.fixture(scope="module")
def records():
    return stand_ins(SCHEMA, 200)


def at(norm="l2", radius=2.0, seed=0):
    rng = np.random.default_rng(seed)
    return Clipping(rng.normal(size=5), rng.normal(size=(5, 5)), radius, norm)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_sums_are_those_of_records_alone_to_the_last_step(score, records, norm):
    clipping = at(norm)
    alone = [score.total(clipping, {name: each[i : i + 1] for name, each in records.items()}) for i in range(200)]
    backwards = {name: np.asfortranarray(each[::-1]) for name, each in records.items()}
    assert np.array_equal(score.total(clipping, records), np.sum(alone, axis=0))
    assert np.array_equal(score.total(clipping, backwards), np.sum(alone, axis=0))
    public = clipping.clipped(score.of_public(clipping.place, records)).sum(axis=0)
    assert np.allclose(score.total(clipping, records) * clipping.unit, public, atol=200 * 2 * clipping.unit)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_no_score_leaves_its_ball(norm):
    rng = np.random.default_rng(1)
    size = {"l1": lambda q: np.abs(q).sum(), "l2": lambda q: np.sqrt(float((q * q).sum()))}[norm]
    for scale in (1e-300, 1e-3, 1.0, 1e3, 1e300):
        for seed in range(20):
            found = at(norm, seed=seed).steps(scale * rng.normal(size=5))
            assert size(found) <= STEPS
    # rounded to the nearest step in place of towards 0, some would
    clipping = Clipping(np.zeros(64), np.eye(64), 1.0, "l2")
    nearest = [np.rint(8 * v / np.sqrt((v * v).sum())) for v in rng.normal(size=(50, 64))]
    assert max((q * q).sum() for q in nearest) > 64
    assert all((clipping.steps(v) ** 2).sum() <= STEPS**2 for v in rng.normal(size=(50, 64)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_counts_as_nothing(bad):
    clipping = at()
    assert not clipping.steps(np.array([1.0, bad, 0.0, 0.0, 0.0])).any()
    assert clipping.steps(np.array([1.0, 0.0, 0.0, 0.0, 0.0])).any()


def test_a_code_beyond_what_is_looked_up_in_counts_as_nothing(score, records):
    assert score._checked
    clipping = at()
    one = {name: each[:1].copy() for name, each in records.items()}
    for code in (3, 10**9, -4):
        assert not score.total(clipping, one | {"g": np.array([code])}).any()
    assert score.total(clipping, one | {"g": np.array([2])}).any()
