"""What a curator sees of a posterior, against numbers worked out by hand; and the coordinates in which chains run."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from small_models import WIDE, blueprint, normal

from pdips.posterior.bounds import Bounds
from pdips.posterior.inspection import InspectedRecords, Posterior, censored_records, inspect, tree_of
from pdips.posterior.model import split
from pdips.posterior.private_reference import Anchor, Stage
from pdips.posterior.record_likelihood import Tally
from pdips.posterior.target import Target

Y = np.array([-3.0, 0.0, 0.5, 4.0])
COUNTS = np.array([1, 3, 2, 1])
THETA = np.array([-0.5, 0.2, 0.3, 1.0])
CENTRE = np.array([0.1])
WINDOW = 0.75


def looked_at(weights: bool = False):
    space = blueprint(normal, WIDE)
    anchor = Anchor(CENTRE, np.eye(1) * 0.1, reach=6.0)
    stage = Stage(anchor=anchor, n_records=7, centre=split(space.model, CENTRE[None]))
    target = Target(space=space, stage=stage, window=Fraction(WINDOW), weights=weights)
    records = replace(censored_records(target, {"y": Y}, COUNTS), blueprint=None)
    released = [{"theta": np.asarray(1.0)}]
    tree = tree_of([{"theta": np.asarray(theta)} for theta in THETA])
    found = inspect(records, Posterior(tree=tree, released=released, facts={"sampler": "grid"}, independent=True))
    return *found, target.around


def by_hand() -> np.ndarray:
    """log p(y | theta) - log p(y | centre), shape (draws, rows)."""
    return stats.norm.logpdf(Y, THETA[:, None], 1) - stats.norm.logpdf(Y, CENTRE, 1)


def test_bounds_and_counts_are_those_by_hand():
    facts, tree, _ = looked_at()
    found, terms = facts["posterior"], by_hand()
    assert found["bounds"]["bound"] == pytest.approx(np.abs(terms).max())
    assert found["bounds"]["weighted"] is False
    cut = np.abs(terms) > WINDOW
    assert cut.any()
    assert not cut.all()
    window = found["bounds"]["window"]
    assert window["any"] == COUNTS[cut.any(axis=0)].sum()
    assert window["any_share"] == window["any"] / 7
    assert window["released"] == [COUNTS[cut[3]].sum()]  # theta = 1 is what was released
    assert found["parameters"] == [
        {"name": "theta", "mean": pytest.approx(THETA.mean()), "sd": pytest.approx(THETA.std()), "released": [1.0]}
    ]
    group = tree["pdips"].to_dataset()
    np.testing.assert_allclose(group["largest"], np.repeat(np.abs(terms).max(axis=0), COUNTS))
    np.testing.assert_allclose(group["value_y"], np.repeat(Y, COUNTS))
    np.testing.assert_allclose(group["share_by_draw"][0], (cut @ COUNTS) / 7)


def test_public_weights_are_those_by_hand():
    facts, tree, points = looked_at(weights=True)
    far = np.abs(stats.norm.logpdf(Y, points[0][:, None], 1) - stats.norm.logpdf(Y, CENTRE, 1)).max(axis=0)
    alpha = np.minimum(1, WINDOW / far)
    assert (alpha < 1).any()
    assert facts["posterior"]["bounds"]["bound"] == pytest.approx(np.abs(alpha * by_hand()).max())
    np.testing.assert_allclose(tree["pdips"]["weights"], np.repeat(alpha, COUNTS))


def test_r_hat_and_effective_draws_are_those_of_arviz():
    import arviz as az

    rng = np.random.default_rng(3)
    draws = rng.normal(0, 1, (4, 200, 2)) + np.array([0, 0, 0, 1.0])[:, None, None]
    tree = xr.DataTree.from_dict({"posterior": az.from_dict({"posterior": {"b": draws}})["posterior"].to_dataset()})
    likelihood = blueprint(normal, WIDE).likelihood
    records = InspectedRecords(likelihood=likelihood, values={"y": Y[:1]}, counts=np.ones(1, int))
    posterior = Posterior(tree=tree, released=[{"b": draws[0, 0]}], facts={"sampler": "nuts"}, independent=False)
    found, _ = inspect(records, posterior)
    rows = found["posterior"]["parameters"]
    assert [row["name"] for row in rows] == ["b[0]", "b[1]"]
    assert [row["rhat"] for row in rows] == pytest.approx(az.rhat(tree["posterior"].to_dataset())["b"].values)
    assert rows[0]["rhat"] > 1.05  # the fourth chain is elsewhere
    assert found["posterior"]["bounds"] == {"failed": "KeyError"}  # a model of other parameters


@pytest.mark.parametrize("limit", [None, 1.0])
def test_a_tally_in_pieces_agrees_with_all_at_once(limit):
    rng = np.random.default_rng(1)
    found = rng.normal(0, 1, (9, 21))
    found[2, 3], found[4, 5], found[1, 20] = -np.inf, np.nan, np.inf
    weights, centre = rng.uniform(0, 1, 21) * (np.arange(21) % 3 > 0), rng.normal(0, 1, 21)
    each = Tally(21, 9, weights, centre, limit, counts := rng.integers(1, 4, 21))
    for rows in (slice(0, 13), slice(13, 21)):
        each.add(rows, slice(0, 9), found[:, rows].copy())
    made, found = Bounds.of(each, 3, False), np.where(np.isnan(found), -np.inf, found) - centre
    terms = np.repeat(np.where(weights == 0, 0.0, found) * weights, counts, axis=1)
    beyond = np.abs(terms) > (np.inf if limit is None else limit)
    seen = (made.largest, made.lowest, made.highest, made.mean, made.draws_beyond)
    wanted = (np.abs(terms).max(axis=0), terms.min(axis=0), terms.max(axis=0), terms.mean(axis=0), beyond.sum(axis=0))
    seen, wanted = (*seen, made.largest_by_draw), (*wanted, np.abs(terms).max(axis=1).reshape(3, -1))
    for one, other in zip((*seen, made.records_beyond.ravel()), (*wanted, beyond.sum(axis=1)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert made.n_records == counts.sum()
