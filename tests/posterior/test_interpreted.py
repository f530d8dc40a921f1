"""What numpy runs gives what compiled code gives, and small models compile nothing."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.random.basic import CategoricalRV
from scipy.stats import norm

from pdips import Column, Schema, Table
from pdips.posterior import interpreted
from pdips.posterior.columns import stand_ins
from pdips.posterior.interpreted import (
    BY_NUMPY,
    LIGHT,
    QuickCategorical,
    function_of,
    runs_well,
)
from pdips.posterior.model import blueprint_of
from pdips.posterior.model_checks import TermFunctions, terms_of
from pdips.posterior.model_file import as_source
from pdips.scores import record_score
from pdips.scores.record_score import Clipping, RecordScore
from pdips.scores.scores import Scores

SCHEMA = Schema(
    columns={
        "x": Column(lower=-4, upper=4, public=True),
        "y": Column(levels=["no", "little", "much"]),
    }
)


def ordinal(data, schema):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1)
        cuts = pm.Normal(
            "cuts",
            0,
            2,
            shape=2,
            transform=pm.distributions.transforms.ordered,
            initval=[-1, 1],
        )
        pm.OrderedLogistic(
            "y", eta=beta * data["x"], cutpoints=cuts, observed=data["y"]
        )
    return model


X = pt.vector("x")
NUMBERS = np.array([-800.0, -40, -1.5, -1e-9, 1e-9, 2, 800, -np.inf, np.inf, np.nan])


@pytest.mark.parametrize(
    "graph",
    [
        pt.softplus(X),
        pt.log1mexp(-pt.abs(X)),
        pt.clip(X, -1, 2),
        pt.clip(X, -1, X),
        pt.clip(X, X, 2),
        pt.clip(X, 2, -1),
        pt.second(X, 3.0),
        pt.sigmoid(X) + 2 * X - X * X,
    ],
    ids=[
        "softplus",
        "log1mexp",
        "clip",
        "clip below",
        "clip above",
        "clip in no order",
        "second",
        "usual",
    ],
)
@pytest.mark.parametrize("mode", [BY_NUMPY, LIGHT], ids=["by numpy", "light"])
def test_functions_that_numpy_has_not_are_worked_out_on_whole_arrays(graph, mode):
    function = pytensor.function([X], graph, mode=mode)
    assert runs_well(function)
    expected = pytensor.function([X], graph, mode="FAST_COMPILE")(NUMBERS)
    assert np.allclose(function(NUMBERS), expected, rtol=1e-14, equal_nan=True)


def test_joins_splits_and_lookups_row_by_row_are_done_at_once():
    rows = pt.matrix("rows")
    place = pt.lvector("place")
    row = pt.dvector("row")
    one = pt.lscalar("one")
    joined = pt.join(0, pt.zeros(1), row, row[:1])
    first, second = pt.split(joined * 2, [2, 4], n_splits=2)
    looked_up = joined[pt.stack([one, one + 1])]
    single = pt.concatenate([looked_up, first, second])
    many = vectorize_graph(single, {row: rows, one: place})
    function = pytensor.function([rows, place], many, mode=BY_NUMPY)
    assert runs_well(function)
    given = np.arange(20.0).reshape(5, 4)
    places = np.array([0, 3, 1, 2, 4])
    expected = pytensor.function([row, one], single, mode="FAST_COMPILE")
    by_row = [expected(each, at) for each, at in zip(given, places, strict=True)]
    assert np.array_equal(function(given, places), by_row)


def test_categories_are_drawn_as_by_pytensor():
    p = np.random.default_rng(0).dirichlet(np.ones(5), 300)
    for probabilities, size in ((p, None), (p, (2, 300)), (p[0], (40,))):
        draws = QuickCategorical.rng_fn(np.random.default_rng(1), probabilities, size)
        same = CategoricalRV.rng_fn(np.random.default_rng(1), probabilities, size)
        assert np.array_equal(draws, same)


def test_what_numpy_would_do_row_by_row_is_compiled_and_named_once(monkeypatch):
    told = []
    monkeypatch.setattr(interpreted, "tell", told.append)
    matrices = pt.tensor3("matrices")
    roots = pt.linalg.cholesky(matrices)
    function = function_of([matrices], roots, what="the roots")
    assert isinstance(function.maker.linker, NumbaLinker)
    function_of([X], X + 1, what="a sum")
    assert told == ["compiling the roots"]


def test_models_that_compute_the_same_share_a_function_and_others_do_not():
    def shifted(by):
        def build(data, schema):
            with pm.Model() as model:
                mu = pm.Normal("mu", 0, 1)
                pm.Bernoulli("y", logit_p=mu * data["x"] + by, observed=data["y"])
            return model

        return build

    schema = Schema(
        columns={
            "x": Column(lower=-4, upper=4, public=True),
            "y": Column(levels=["no", "yes"]),
        }
    )
    functions = TermFunctions()
    found = []
    for by, n in ((0.5, 2), (0.5, 7), (0.25, 7)):
        model = blueprint_of(as_source(shifted(by)), schema).build(stand_ins(schema, n))
        terms = terms_of(model, schema.columns, single=False, functions=functions)
        table = {"x": np.array([1.0, -2.0]), "y": np.array([1, 0])}
        found.append(terms({"mu": 0.3}, table)[0])
    assert len(functions._made) == 2
    assert np.array_equal(found[0], found[1])
    assert not np.allclose(found[1], found[2])


@pytest.mark.slow
def test_a_small_model_is_planned_and_released_without_compiling(monkeypatch):
    def refuse(self, *given, **more):
        raise AssertionError("this compiles, which takes seconds")

    monkeypatch.setattr(NumbaLinker, "jit_compile", refuse)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=300).clip(-4, 4),
            "y": rng.choice(["no", "little", "much"], 300),
        }
    )
    told = []
    mechanism = Scores(epsilon=4, model=ordinal, n_sets=1)
    _, record = mechanism.release(Table(frame, SCHEMA), rng=rng, progress=told.append)
    assert record.diagnostics["sampler"] == "importance"
    assert len(told) == len({*told})
    # a twin that has to compile isn't passed over
    with pytest.raises(AssertionError, match="compiles"):
        pytensor.function([X], X + 1, mode="NUMBA")(np.ones(1))


def test_many_records_are_added_up_by_compiled_code_and_without_it_where_that_fails(
    monkeypatch,
):
    space = blueprint_of(as_source(ordinal), SCHEMA)
    rng = np.random.default_rng(0)
    values = {"x": rng.normal(size=200), "y": rng.integers(3, size=200)}
    clipping = Clipping(np.array([0.5, -1.0, 0.3]), np.eye(3), 3.0, "l2")
    many = record_score.COMPILED_FROM + 1
    score = RecordScore(space.likelihood)
    by_numpy = score.total(clipping, values, many - 1)
    compiled = score.total(clipping, values, many)
    assert isinstance(score._compiled.maker.linker, NumbaLinker)
    assert np.abs(by_numpy - compiled).max() <= 200

    def fail(self, *given, **more):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(NumbaLinker, "jit_compile", fail)
    other = RecordScore(space.likelihood)
    assert np.array_equal(other.total(clipping, values, many), by_numpy)


@pytest.mark.parametrize("bounds", [(0, None), (None, 0), (-1, 1)])
def test_records_are_drawn_within_the_bounds_that_they_are_cut_at(bounds):
    """Each share at a bound is within 5 standard errors: 1 of 1,000,000 seeds fails."""
    lower, upper = bounds

    def build(data, schema):
        with pm.Model() as model:
            law = pm.Normal.dist(pm.Normal("b", 0, 1) * data["x"], 1)
            pm.Censored("z", law, lower=lower, upper=upper, observed=data["z"])
        return model

    columns = {**SCHEMA.only(["x"]).columns, "z": Column(lower=-4, upper=4)}
    space = blueprint_of(as_source(build), Schema(columns=columns))
    n = 4_000
    x = {"x": np.zeros(n)}
    drawn = space.draw({"b": np.array(1.0)}, n, x, np.random.default_rng(5))["z"]
    for bound in bounds:
        if bound is None:
            continue
        share = norm.cdf(-abs(bound))
        beyond = drawn < bound if bound == lower else drawn > bound
        assert not beyond.any()
        at = float(np.mean(drawn == bound))
        assert abs(at - share) < 5 * np.sqrt(share * (1 - share) / n)
