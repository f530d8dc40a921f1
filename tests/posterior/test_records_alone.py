"""No record enters another one's term: by the way in which the likelihood is made, and
refused where it was meant.
"""

from functools import cache

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.exceptions import TruncationError
from pytensor.raise_op import Assert
from small_models import written
from tables import refuses, schema_in

from pdips import InputError
from pdips.posterior.censoring import censor_records
from pdips.posterior.columns import stand_ins
from pdips.posterior.model import Blueprint, split
from pdips.posterior.model_checks import on_stand_ins, terms_of
from pdips.posterior.model_file import Source
from pdips.posterior.record_likelihood import RecordLikelihood

SCHEMA = schema_in("records_alone")
N = 30


@cache
def built(crossing):
    """A model in which the mean of y is theta times ``crossing`` of the columns."""

    @written
    def build(data):
        theta, sigma, p = (
            pm.Normal("theta", 0, 3),
            pm.HalfNormal("sigma", 3),
            pm.Beta("p", 2, 2),
        )
        b = pm.Bernoulli("b", p, observed=data["b"])
        v = pm.Normal("v", theta, 20, observed=data["v"])
        pm.Normal("y", theta * crossing(data, b, v), sigma, observed=data["y"])

    return Blueprint(Source(build, "crossing"), SCHEMA)


def own(data, b, v):
    return data["z"] + b + v * pt.eq(data["g"], 1)


def carried_on(data, b, v):
    return pytensor.scan(
        lambda z, a: a / 2 + z,
        sequences=[data["z"]],
        outputs_info=[pt.zeros(())],
        return_updates=0,
    )


COMPARING = {
    "largest": (lambda data, b, v: b.max(), "b"),
    "anyone": (lambda data, b, v: pt.any(pt.eq(b, 1)), "b"),
    "levels_that_occur": (
        lambda data, b, v: sum(
            1 * pt.any(pt.eq(data["g"], level)) for level in range(3)
        ),
        "g",
    ),
    "mostly": (lambda data, b, v: pt.switch((1 - b).mean() > 0.99, 3.0, 1.0), "b"),
    "where_it_is_rare": (
        lambda data, b, v: pt.switch(data["z"] > 3, data["z"] * v.mean(), 0.0),
        "v",
    ),
    "ranked": (lambda data, b, v: pt.sort(data["z"]), "z"),
    "cumulated": (lambda data, b, v: pt.cumsum(v), "v"),
    "every_tenth": (lambda data, b, v: data["z"][np.arange(data.n_records) // 10], "z"),
    "distinct": (lambda data, b, v: pt.extra_ops.unique(data["z"]).shape[0], "z"),
    "carried_on": (carried_on, "z"),
    "by_number": (
        lambda data, b, v: data["z"] * np.log(1 + data.n_records),
        "how many records",
    ),
}
"""Models that compare records, with the column that a refusal names."""


@pytest.mark.parametrize("name", COMPARING)
def test_a_model_that_compares_records_is_refused_by_the_column(name):
    crossing, column = COMPARING[name]
    said = refuses("log-likelihood of a record depends on", built(crossing).check)
    named = said.split("(")[0]
    assert column in named
    assert [each for each in SCHEMA.columns if f"'{each}'" in named] == (
        [column] if column in SCHEMA.columns else []
    )


def neighbours(seed):
    """Two tables that differ in one record, and which it is."""
    rng = np.random.default_rng(seed)
    values = {
        "z": rng.uniform(-5, 5, N),
        "g": rng.integers(0, 2, N),
        "b": np.zeros(N, np.int64),
    }
    values |= {"v": rng.uniform(-50, 50, N), "y": rng.uniform(-100, 100, N)}
    place = int(rng.integers(N))
    other = {"z": 5.0, "g": 2, "b": 1, "v": 50.0, "y": -100.0}
    return (
        values,
        {
            name: np.where(np.arange(N) == place, other[name], each)
            for name, each in values.items()
        },
        place,
    )


def moved(terms, seeds=5):
    """Return the most that one record moves the terms of others, over pairs of tables
    and parameters.
    """
    found = [0.0]
    for seed in range(seeds):
        one, other, place = neighbours(seed)
        rng = np.random.default_rng(seed)
        point = {
            "theta": rng.normal(0, 3),
            "sigma": abs(rng.normal(0, 3)),
            "p": rng.uniform(),
        }
        found.append(
            np.abs(terms(one, point) - terms(other, point))[np.arange(N) != place].max()
        )
    return max(found)


def repeated(blueprint):
    """The engine: the term of one record, repeated; nothing has been compared."""
    made = censor_records(blueprint.model, SCHEMA.columns, window=1.0)

    def terms(values, point):
        made.update(
            values={
                name: values[name]
                for name in ("z", "g", "b", "v", "y")
                if name + "_data" in made.model
            }
        )
        return made.log_likelihood({name: [value] for name, value in point.items()})[0]

    return terms


def as_written(blueprint):
    """The broken twin: the graph of many records, as the analyst wrote it."""
    found = terms_of(
        blueprint.build(stand_ins(SCHEMA, N)), SCHEMA.columns, single=False
    )

    def terms(values, point):
        p, sigma = point["p"], point["sigma"]
        transformed = {"sigma_log__": np.log(sigma), "p_logodds__": np.log(p / (1 - p))}
        return found({"theta": point["theta"], **transformed}, values)[0]

    return terms


@pytest.mark.slow_cases(
    "its_own",
)
@pytest.mark.parametrize("name", ["its_own", *COMPARING])
def test_not_even_a_model_that_compares_records_lets_one_into_the_term_of_another(name):
    model = built(COMPARING[name][0] if name in COMPARING else own)
    assert moved(repeated(model)) == 0.0
    if name == "its_own":
        model.check()


@pytest.mark.parametrize(
    "name", ["largest", "mostly", "where_it_is_rare", "ranked", "cumulated"]
)
def test_the_graph_of_many_records_lets_them_in(name):
    # the broken twin: what was sampled before
    assert moved(as_written(built(COMPARING[name][0])), seeds=20) > 1


def checked_index(data, b, v):
    return pt.arange(3)[Assert("known level")(data["g"], data["g"][0] >= 0)]


def of_two(weights):
    """A mixture of two normal laws, whose weights have a distribution of PyMC."""

    @written
    def build(data):
        mean = pm.Normal("mean", 0, 3, shape=2)
        pm.NormalMixture("y", w=weights("w"), mu=mean, sigma=1, observed=data["y"])

    return Blueprint(Source(build, "of two"), SCHEMA.only(["y"]))


def test_weights_that_do_not_add_up_to_1_are_refused_with_what_to_write():
    of_two(lambda name: pm.Dirichlet(name, np.ones(2))).check()
    with pytest.raises(InputError, match=r"add up to 1; write w = pm\.Dirichlet"):
        of_two(lambda name: pm.Beta(name, 1, 1, shape=2)).check()


def test_a_law_of_which_nothing_lies_between_its_bounds_is_refused_in_plain_words():
    said = r"the release draws .* narrow the priors"
    with pytest.raises(InputError, match=said), on_stand_ins("the release"):
        raise TruncationError("Truncation did not converge in 10000 steps")


def test_what_cannot_be_repeated_is_refused():
    refuses("can't be repeated for every record", repeated, built(checked_index))


@pytest.mark.slow
def test_one_record_moves_the_log_density_by_no_more_than_its_window_allows():
    window, points = 0.25, np.random.default_rng(0).normal(size=(200, 3)) * 2
    for name in ("largest", "where_it_is_rare", "cumulated"):
        made = censor_records(
            built(COMPARING[name][0]).model, SCHEMA.columns, window=window
        )
        function = made.model.compile_logp(mode="FAST_COMPILE")
        one, other, _ = neighbours(1)
        found = []
        for values in (one, other):
            made.update(
                values={
                    name: values[name]
                    for name in values
                    if name + "_data" in made.model
                }
            )
            found.append(
                [
                    function(
                        dict(
                            zip(
                                ("theta", "sigma_log__", "p_logodds__"),
                                point,
                                strict=True,
                            )
                        )
                    )
                    for point in points
                ]
            )
        assert np.ptp(np.subtract(*found)) <= 4 * window + 1e-9


# One engine, three ways to call it


@written
def lookups(data):
    """Products of matrices, lookups, mixtures and a matrix for each record."""
    beta, effect = (
        pm.Normal("beta", 0, 1, shape=2),
        pm.Normal("effect", 0, 1, shape=(3, 2)),
    )
    weights, places = (
        pm.Dirichlet("weights", np.ones(2)),
        pm.Normal("places", 0, 5, shape=2),
    )
    design = pt.stack([data["z"], data["z"] ** 2 / 5], axis=1)
    b = pm.Bernoulli(
        "b", logit_p=design @ beta + effect[data["g"], 1], observed=data["b"]
    )
    v = pm.NormalMixture("v", weights, places + b[:, None], 10.0, observed=data["v"])
    own = pt.linalg.det((data["z"] ** 2 + 1)[:, None, None] * np.eye(2))
    rows = pt.special.softmax(effect, axis=1)[data["g"]]
    mean = (
        (rows * design).sum(axis=1)
        + pt.dot(design, pt.stack([beta, beta], axis=1)).max(axis=1)
        + v
    )
    pm.StudentT("y", nu=4, mu=mean, sigma=own, observed=data["y"])


@pytest.mark.slow
def test_one_record_blocks_and_nuts_have_the_same_terms():
    space = Blueprint(Source(lookups, "lookups"), SCHEMA)
    values, flat = stand_ins(SCHEMA, 40), space.prior[:6]
    likelihood = RecordLikelihood(space.model, mode="FAST_COMPILE")
    likelihood.at(split(space.model, flat))
    alone = np.array([likelihood(row) for row in likelihood.rows(values)]).T
    blocks = np.concatenate(
        [terms for _, terms in likelihood.blocks(values, split(space.model, flat))]
    )
    made = censor_records(space.model, SCHEMA.columns, window=1.0).update(values=values)
    points = space.values_of(flat)
    nuts = made.log_likelihood(
        {name: np.array([point[name] for point in points]) for name in points[0]}
    )
    written = terms_of(space.build(values), SCHEMA.columns, single=False)
    expected = [written(point, values)[0] for point in space._points(flat)]
    assert np.isfinite(alone).all()
    for found in (blocks, nuts, expected):
        np.testing.assert_allclose(found, alone, rtol=1e-10, atol=1e-10)
