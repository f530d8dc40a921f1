"""The covariance that simulated records give noisy sums beside public columns, where
what some cells count hardly ever happens.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr

from pdips import Schema, Scores, Table
from pdips.posterior.columns import record_values
from pdips.privacy.curator import Clock, Drawing
from pdips.privacy.noise import RandomBits
from pdips.release.public_draws import REFERENCE_FAR
from pdips.sampling import tell_of
from pdips.scores import first_search, noisy_likelihood
from pdips.scores.first_search import kit_of
from pdips.scores.noisy_likelihood import (
    Measurement,
    NoisySums,
    clipping_at,
    nearest_covariance,
)
from pdips.scores.simulator import Simulator

SCHEMA = Schema(
    columns={
        "visits": {"lower": 0, "upper": 80, "integer": True},
        "a": {"levels": [0, 1], "public": True},
        "b": {"levels": [0, 1], "public": True},
    }
)
RATES = np.array([1.0, 3.0, 6.0, 36.0])  # by 2 b + a
TRUTH = np.log([1.0, 3.0, 6.0, 2.0])  # of beta, 36 = 1 x 3 x 6 x 2


def visits(data, schema):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 10, shape=4)
        a = data["a"]
        b = data["b"]
        mean = pm.math.exp(beta[0] + beta[1] * a + beta[2] * b + beta[3] * a * b)
        pm.Poisson("visits", mean, observed=data["visits"])
    return model


def table_of(seed):
    rng = np.random.default_rng(seed)
    a = np.tile([0, 1, 0, 1], 500)
    b = np.tile([0, 0, 1, 1], 500)
    counts = rng.poisson(RATES[2 * b + a])
    return Table(pd.DataFrame({"visits": counts, "a": a, "b": b}), SCHEMA)


@pytest.fixture(scope="module")
def sums():
    """Quiet counts of cells, and parameters at which they are searched."""
    table = table_of(1)
    space = Scores(epsilon=1, model=visits).space(SCHEMA)
    kit = kit_of(space)
    values = record_values(table)
    public = {name: values[name] for name in ("a", "b")}
    counts = kit.cells.count(table).astype(np.float64)
    counted = NoisySums(
        space=space,
        score=kit.score,
        prior=kit.prior,
        simulator=Simulator(space, public),
        n_records=2_000.0,
        measurements=(Measurement("counts", kit.cells, counts, 0.01),),
        laplace=True,
    )
    return counted, np.array([0.87, 2.71, -0.77, -0.89])


def least(here):
    """The least variance of a combination of exact sums, over the largest."""
    values = np.linalg.eigvalsh(here.sampling)
    return values[0] / values[-1]


def test_a_covariance_stays_and_what_is_none_comes_near():
    """No randomness."""
    covariance = np.array([[2.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(nearest_covariance(covariance), covariance)
    none = np.array([[1.0, 2.0], [2.0, 1.0]])
    np.testing.assert_allclose(nearest_covariance(none), np.full((2, 2), 1.5))


def test_sums_have_a_covariance_where_cells_are_rare(sums, monkeypatch):
    """Seeds fixed, so it fails always or never. Without the correction, the broken
    twin, the matrix has no root, and searches and checks there come to nothing.
    """
    counted, place = sums
    assert least(counted.linearised(place)) > -1e-13
    counted.linearised(place).root  # noqa: B018 - raises where there is none
    monkeypatch.setattr(noisy_likelihood, "nearest_covariance", lambda matrix: matrix)
    assert least(counted.linearised(place)) < -1e-9


def test_a_record_where_none_was_simulated_is_no_contradiction(sums, monkeypatch):
    """Counts are what simulated records make them, but for one record that is moved to
    the last cell, where none falls. The broken twin takes that for impossible. No
    randomness beside the fixed seeds.
    """
    counted, _ = sums
    place = TRUTH
    expected = counted.noisy - counted.linearised(place).residual
    assert expected[-1] < 1e-6
    one = Measurement("counts", counted.measurements[0].question, expected, 0.01)
    one.noisy[-1] += 1
    clipping = clipping_at(counted, place, "l1", 1.0)
    scores = Measurement("scores", clipping, np.zeros(len(place)), 1.0)
    both = replace(counted, measurements=(one, scores))
    assert both.misfits(place)["spread"] > 0.05
    monkeypatch.setattr(NoisySums, "_unseen", property(lambda sums: 0 * sums.noisy))
    assert both.misfits(place)["spread"] < 0.001


@pytest.mark.slow
def test_a_release_of_rare_counts_says_whether_its_answers_agree():
    """Seed fixed. The first counts don't say in which cells rates are high, so that
    the last scores are taken far from the truth: the check says that answers
    contradict each other, where it used to say nothing.
    """
    mechanism = Scores(epsilon=1, model=visits)
    rng = np.random.default_rng(23)
    release, _ = mechanism.release(table_of(1), rng=rng)
    assert 0 < release.posterior["posterior"].attrs["misfit"] <= 1


SEEDS = range(6)
FEW = 2  # of them


def sums_asked(seed):
    """What was asked of the table under the noise of a pure release."""
    mechanism = Scores(epsilon=1, model=visits)
    plan = mechanism.plan(SCHEMA)
    bits = RandomBits(np.random.default_rng(seed))
    curator = Drawing(plan, table_of(1), bits, Clock(), None)
    return mechanism.ask(plan, curator).sums


def off(seed):
    """How far the last scores were taken from the truth, in deviations of one
    record.
    """
    sums = sums_asked(seed)
    move = sums.last_reference - TRUTH
    return float(np.sqrt(move @ sums.linearised(TRUTH).information @ move))


@pytest.mark.slow
def test_references_are_seldom_where_groups_have_changed_places(monkeypatch):
    """Counts of cells are as probable where the groups' rates are exchanged. The broken
    twin searches among all that was measured from where counts alone are most probable,
    as it used to be. 2 of the first eight references were far off, and 12 of 20 of the
    twin's; with these shares the test fails once in 6 sets of seeds. These are fixed.
    """
    far = sum(off(seed) > REFERENCE_FAR for seed in SEEDS)
    assert far <= FEW
    searched = first_search.searched
    monkeypatch.setattr(
        "pdips.scores.scores.searched",
        lambda sums, cells: sums.mode(searched(sums, cells).place),
    )
    monkeypatch.setattr(
        "pdips.scores.scores.searched_again", lambda sums, here: sums.mode(here.place)
    )
    assert sum(off(seed) > REFERENCE_FAR for seed in SEEDS) > max(far, FEW)


@pytest.mark.slow
def test_scores_that_were_taken_far_off_are_said_to_be(monkeypatch, caplog):
    """Two groups have changed places at the last reference. No randomness beside the
    seed.
    """
    swapped = np.log([1.0, 36.0, 6.0, 1 / 72])
    near = sums_asked(1)
    assert near.apart < REFERENCE_FAR / 4
    monkeypatch.setattr(
        "pdips.scores.scores.searched_again",
        lambda sums, here: sums.linearised(swapped),
    )
    sums = sums_asked(1)
    assert sums.apart > 2 * REFERENCE_FAR
    about = {"misfit": 0.5, "reference_apart": sums.apart}
    tree = xr.DataTree.from_dict(
        {"/": xr.Dataset(attrs={"sampler": "importance"}), "posterior": xr.Dataset()}
    )
    tree["posterior"].attrs.update(about)
    tell_of(tree)
    assert "were taken" in caplog.text
    tree["posterior"].attrs["reference_apart"] = near.apart
    caplog.clear()
    tell_of(tree)
    assert not caplog.records


@pytest.mark.parametrize(("apart", "n_said"), [(0.0, 1), (3.0, 2)])
def test_chains_that_take_over_are_said_to_and_where_they_disagree(
    apart, n_said, caplog
):
    """Two chains of 1,000 independent draws, alike or three deviations apart. Seed
    fixed; alike ones fail their checks once in 1,000 seeds.
    """
    draws = np.random.default_rng(1).normal(size=(2, 1_000))
    draws[1] += apart
    posterior = xr.Dataset({"b": (("chain", "draw"), draws)})
    posterior.attrs = {"pareto_k": 0.9, "effective": 30.0}
    top = xr.Dataset(attrs={"sampler": "nuts"})
    tell_of(xr.DataTree.from_dict({"/": top, "posterior": posterior}))
    assert len(caplog.records) == n_said
    assert "draws are those of NUTS" in caplog.text
    assert ("don't agree" in caplog.text) == (n_said == 2)
