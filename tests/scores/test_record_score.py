"""One record's score: a function of that record alone, inside of its ball, in whole
steps.
"""

import warnings
from itertools import product

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from small_models import blueprint, written
from tables import refuses, schema_in

from pdips import Schema
from pdips.posterior.columns import Columns, stand_ins
from pdips.posterior.record_likelihood import RecordLikelihood
from pdips.scores.record_score import STEPS, Clipping, RecordScore

SCHEMA = schema_in("record_score")


@written
def grouped(data):
    effects, slope = pm.Normal("effects", 0, 5, shape=3), pm.Normal("slope", 0, 1)
    pm.Normal(
        "y",
        effects[data["g"]] + slope * data["x"],
        pm.HalfNormal("sd", 5),
        observed=data["y"],
    )


@pytest.fixture(scope="module")
def score():
    return RecordScore(blueprint(grouped, SCHEMA).likelihood)


@pytest.fixture(scope="module")
def records():
    return stand_ins(SCHEMA, 200)


def at(norm="l2", radius=2.0, seed=0):
    rng = np.random.default_rng(seed)
    return Clipping(rng.normal(size=5), rng.normal(size=(5, 5)), radius, norm)


def length(norm, steps):
    return (
        np.abs(steps).sum() if norm == "l1" else np.sqrt(float((steps * steps).sum()))
    )


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_sums_are_those_of_records_alone_to_the_last_step(score, records, norm):
    clipping = at(norm)
    alone = [
        score.total(clipping, {name: each[i : i + 1] for name, each in records.items()})
        for i in range(200)
    ]
    backwards = {name: np.asfortranarray(each[::-1]) for name, each in records.items()}
    assert np.array_equal(score.total(clipping, records), np.sum(alone, axis=0))
    assert np.array_equal(score.total(clipping, backwards), np.sum(alone, axis=0))
    public = clipping.clipped(score.of_public(clipping.place, records)).sum(axis=0)
    assert np.allclose(
        score.total(clipping, records) * clipping.unit,
        public,
        atol=200 * 2 * clipping.unit,
    )


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_no_score_leaves_its_ball(norm):
    rng = np.random.default_rng(1)
    for scale in (1e-300, 1e-3, 1.0, 1e3, 1e300):
        for seed in range(20):
            assert (
                length(norm, at(norm, seed=seed).steps(scale * rng.normal(size=5)))
                <= STEPS
            )
    # rounded to the nearest step in place of towards 0, some would
    clipping = Clipping(np.zeros(64), np.eye(64), 1.0, "l2")
    nearest = [
        np.rint(8 * v / np.sqrt((v * v).sum())) for v in rng.normal(size=(50, 64))
    ]
    assert max((q * q).sum() for q in nearest) > 64
    assert all(
        (clipping.steps(v) ** 2).sum() <= STEPS**2 for v in rng.normal(size=(50, 64))
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_counts_as_nothing(bad):
    clipping = at()
    assert not clipping.steps(np.array([1.0, bad, 0.0, 0.0, 0.0])).any()
    assert clipping.steps(np.array([1.0, 0.0, 0.0, 0.0, 0.0])).any()


def test_a_code_beyond_what_is_looked_up_in_counts_as_nothing(score, records):
    assert score.checked
    clipping = at()
    one = {name: each[:1].copy() for name, each in records.items()}
    for code in (3, 10**9, -4):
        assert not score.total(clipping, one | {"g": np.array([code])}).any()
    assert score.total(clipping, one | {"g": np.array([2])}).any()


RAISED = {6.0: ValueError, 7.0: MemoryError, 8.0: SystemExit}


class Fussy(Op):
    """Twice a number; it raises above 5 and warns above 4, as an analyst's own
    operation may.
    """

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [pt.as_tensor(x)], [pt.as_tensor(x).type()])

    def perform(self, node, inputs, outputs):
        if (inputs[0] > 5).any():
            raise RAISED[float(inputs[0].max())](f"a record has {inputs[0]}")
        if (inputs[0] > 4).any():
            warnings.warn(f"a record has {inputs[0]}", RuntimeWarning, stacklevel=1)
        outputs[0][0] = 2 * inputs[0]

    def pullback(self, inputs, outputs, cotangents):
        return [2 * cotangents[0]]


@written
def fussy(data):
    pm.Normal("y", pm.Normal("a", 0, 1) * Fussy()(data["x"]), 1, observed=data["y"])


@written
def shares(data):
    """A slope that grows without bound near 0."""
    pm.Beta("y", pm.LogNormal("a", 0, 1), 2, observed=data["y"])


@written
def rooted(data):
    """Below 1 the log-likelihood is no number."""
    pm.Normal("y", pm.Normal("a", 0, 1) * pt.sqrt(data["y"] - 1), 1, observed=data["y"])


def score_of(build, columns):
    schema = Schema(columns=columns)
    model = build(Columns(schema, stand_ins(schema, 1)), schema)
    return RecordScore(RecordLikelihood(model, columns=schema.columns))


AT_ZERO = Clipping(np.zeros(1), np.eye(1), 1.0, "l1")


def test_a_record_that_makes_the_model_raise_or_warn_counts_alone_and_tells_nothing(
    capfd,
):
    score = score_of(
        fussy,
        {
            "x": {"lower": -9, "upper": 9, "public": True},
            "y": {"lower": -9, "upper": 9},
        },
    )
    usual = {"x": np.array([1.0, 0.3, -1.0]), "y": np.array([0.1, 1.0, 2.0])}
    with warnings.catch_warnings():
        # that numba can't compile it, which is told before a record is read
        warnings.simplefilter("ignore")
        expected = score.total(AT_ZERO, usual)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (*RAISED, 4.5):
            alone = score.total(AT_ZERO, {"x": np.array([x]), "y": np.array([3.0])})
            beside = {"x": np.append(usual["x"], x), "y": np.append(usual["y"], 3.0)}
            assert np.array_equal(score.total(AT_ZERO, beside), expected + alone)
            assert alone.any() == (x < 5)
    assert capfd.readouterr() == ("", "")


def test_a_record_without_a_slope_at_the_reference_counts_as_nothing():
    score = score_of(rooted, {"y": {"lower": 0, "upper": 5}})
    bad, good = np.array([0.5]), np.array([3.0])
    assert np.isnan(score.of_public(np.zeros(1), {"y": bad})).all()
    assert not score.total(AT_ZERO, {"y": bad}).any()
    found = score.total(AT_ZERO, {"y": np.concatenate([bad, good])})
    assert np.array_equal(found, score.total(AT_ZERO, {"y": good}))
    assert found.any()


def test_a_record_of_likelihood_zero_counts_within_its_ball():
    @written
    def bounded(data):
        pm.Uniform("y", 0, pm.LogNormal("most", 0, 1), observed=data["y"])

    score = score_of(bounded, {"y": {"lower": 0, "upper": 9}})
    beyond = {"y": np.array([5.0])}
    score._likelihood.at([np.zeros((1,))])
    assert np.isneginf(score._likelihood(score._likelihood.rows(beyond)[0])).all()
    for radius in (1e-9, 1.0):  # whatever its slope is, the clip decides
        assert (
            abs(score.total(Clipping(np.zeros(1), np.eye(1), radius, "l1"), beyond)[0])
            <= STEPS
        )


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize(
    ("whitening", "radius"),
    [
        *product([np.nan, np.inf, 0.0], [1.0]),
        (1e300, 1e-300),
        *product([1.0], [np.nan, np.inf, 0.0, 5e-324]),
    ],
)
def test_a_reference_gone_wrong_leaves_no_score_outside_of_its_ball(
    norm, whitening, radius
):
    clipping = Clipping(np.zeros(3), np.full((3, 3), whitening), radius, norm)
    for score in (
        [1.0, -2.0, 0.5],
        [0.0, 0.0, 0.0],
        [1e308, 1e308, 1e308],
        [5e-324, 0.0, 0.0],
    ):
        assert length(norm, clipping.steps(np.array(score))) <= STEPS


@pytest.mark.slow
def test_sums_of_many_extreme_records_are_exact():
    # 2^20 steps for each of 70,000 records, over several blocks: no sum in doubles, no
    # overflow
    score = score_of(shares, {"y": {"lower": 0, "upper": 1}})
    steep = Clipping(np.zeros(1), np.full((1, 1), 1e6), 1.0, "l2")
    assert score.total(steep, {"y": np.full(70_000, 0.9)})[0] == 70_000 * STEPS


def test_a_likelihood_whose_slope_no_record_moves_is_refused():
    @written
    def rounded(data):
        pm.Normal("y", pt.floor(pm.Normal("a", 0, 1)), 1, observed=data["y"])

    refuses("must enter smoothly", score_of, rounded, {"y": {"lower": -5, "upper": 5}})


def test_a_lookup_inside_of_a_function_is_found_wherever_its_place_comes_from():
    @written
    def hidden(data):
        a = pm.Normal("a", 0, 1, shape=3)
        x, held = pt.dvector(), pt.dvector()
        looked = OpFromGraph([held, x], [held[pt.cast(pt.floor(x), "int64")]])
        pm.Normal("y", looked(a, data["x"]), 1, observed=data["y"])

    score = score_of(
        hidden,
        {"x": {"lower": 0, "upper": 9, "public": True}, "y": {"lower": -9, "upper": 9}},
    )
    assert not score.checked  # so that it is run with bounds
    at = Clipping(np.zeros(3), np.eye(3), 1.0, "l1")
    assert not score.total(at, {"x": np.array([7.5]), "y": np.array([1.0])}).any()
    assert score.total(at, {"x": np.array([1.5]), "y": np.array([1.0])}).any()
