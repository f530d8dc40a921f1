"""Where scores are taken first, by noisy counts of cells, in any unit of outcomes; and
how far they reach last.
"""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from pdips import Schema, Scores, Table
from pdips.analyses.declarations import sources_of
from pdips.privacy.curator import Clock, Drawing
from pdips.privacy.noise import RandomBits
from pdips.scores import references
from pdips.scores.centring import Centring
from pdips.scores.pseudo_table import likely_shares, merged_shares, shares_of_levels
from pdips.scores.references import (
    FINE_EDGE,
    LOUDEST,
    RoundNoise,
    edge_of,
    last_radii,
    length_edges,
    radius_by_tail,
    usual_norm,
)

SCHEMA = Schema(
    columns={
        "y": {"lower": 0, "upper": 50_000},
        "x": {"lower": 0, "upper": 60},
        "g": {"levels": ["a", "b"]},
    }
)
# Nearly all outcomes are in the first of equal cells, whose width is this
OF_FIRST = 1_562.5


@pytest.fixture(scope="module")
def spending():
    """5,000 records most of which spend little, and some very much."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 60, 5_000)
    g = rng.choice(["a", "b"], 5_000)
    y = np.minimum(np.exp(rng.normal(4, 1.6, 5_000)), 50_000)
    return Table(pd.DataFrame({"y": y, "x": x, "g": g}), SCHEMA)


def first_scales(table):
    """The logarithm of the first reference's standard deviation under the noise of four
    pure releases.
    """
    [source] = sources_of(["y ~ x + g"], SCHEMA)
    mechanism = Scores(epsilon=1, model=source, score_rounds=1)
    plan = mechanism.plan(SCHEMA)
    for seed in range(4):
        bits = RandomBits(np.random.default_rng(seed))
        sums = mechanism.ask(plan, Drawing(plan, table, bits, Clock(), None)).sums
        yield sums.rounds[0].centring.place[0]


@pytest.mark.slow
def test_the_first_search_knows_the_units_of_an_outcome(spending, monkeypatch):
    """The made-up outcomes are spread evenly over one cell. The broken twin climbs with
    steps of 1 for all parameters, and stops where a deviation is still far off.
    """
    expected = np.log(OF_FIRST / np.sqrt(12))
    scales = np.array([*first_scales(spending)])
    assert scales == pytest.approx(expected, abs=0.05)
    monkeypatch.setattr(references, "_scale_at", lambda sums, place, records: 1.0)
    twins = np.array([*first_scales(spending)])
    assert np.abs(twins - expected).max() > 0.1


def test_a_cell_that_is_noise_among_empty_ones_holds_no_records():
    """One of 36 cells has 3.3 deviations of noise. The broken twin counts it, which
    puts six of a hundred records at four fifths of the upper bound.
    """
    noisy = np.random.default_rng(0).normal(0, 60, 36)
    noisy[0] += 5_000
    noisy[25] = 316
    assert merged_shares(noisy, 94, 5_000.0)[0] == 1
    assert likely_shares(noisy, 3 * 94)[25] > 0.05
    # noise of many cells that adds up is no share of records whose number is known
    noisy[1:] = 90
    assert merged_shares(noisy, 94, 5_000.0)[0] == 1
    assert merged_shares(noisy, 94)[0] < 1


def test_no_level_is_left_without_rows():
    """A level of a tenth of 5,000 records may be hidden by pure noise of 126. The
    broken twin has no row of it, so that nothing is known of its effect.
    """
    noisy = np.array([4_520.0, 110.0])
    shares = shares_of_levels(noisy, 126)
    assert shares.sum() == pytest.approx(1)
    assert shares[1] == pytest.approx(110 / 4_630)
    assert shares_of_levels(np.array([4_520.0, -80.0]), 126)[1] == pytest.approx(
        63 / 4_583
    )
    assert likely_shares(noisy, 126)[1] == 0
    assert shares_of_levels(np.zeros(3), 0.0) == pytest.approx([1 / 3] * 3)


def test_the_last_radius_is_beyond_the_last_edge_that_is_off():
    """Of long tails fewer records lie in the shoulders, so that beyond the first edge
    there are as many as expected. The broken twin stops there, and clips the tail.
    """
    edges = length_edges(4, "l2")[:7]
    expected = np.array([2_000.0, 1_100, 450, 120, 20, 2, 0])
    beyond = np.array([2_000.0, 1_400, 900, 500, 220, 40, 10])
    counts = -np.diff(np.append(beyond, 0))
    radius = radius_by_tail(counts, 20.0, edges, expected, 5_000.0)
    assert radius == edges[5]
    first = int(np.argmax(np.abs(beyond - expected) <= 0.3 * np.sqrt(5_000)))
    assert edges[first] < radius / 5
    right = -np.diff(np.append(expected, 0))
    assert radius_by_tail(right, 20.0, edges, expected, 5_000.0) == edges[0]
    off = counts + np.array([0, 0, 0, 0, 0, 0, 500])
    assert radius_by_tail(off, 20.0, edges, expected, 5_000.0) == edges[-1]


def test_fewer_than_none_beyond_an_edge_are_noise():
    """Where no record is expected, noisy counts below 0 are nothing of the table's:
    taken as far off they would ask for the widest ball.
    """
    edges = length_edges(4, "l2")
    expected = np.array([2_000.0, 900, 300, 60, 8, 1, 0, 0, 0, 0, 0])
    counts = -np.diff(np.append(expected, 0))
    counts[-2:] -= 60.0
    assert radius_by_tail(counts, 20.0, edges, expected, 5_000.0) == edges[0]
    counts[-2:] += 120.0
    assert radius_by_tail(counts, 20.0, edges, expected, 5_000.0) == edges[-1]


D = 5


class NormalScores:
    """Scores of a regression with normal errors, as the radii read them: those of
    coefficients, and of a standard deviation, which are squares.
    """

    points = SimpleNamespace(by_levels=False)
    weights = np.array([1.0])

    def __init__(self, n_records):
        self.n_records = n_records

    def at_rows(self, at):
        z = np.linspace(-5.5, 5.5, 45)
        scores = np.column_stack([*[z] * (D - 1), (z**2 - 1) / np.sqrt(2)])
        scores = np.concatenate([np.zeros((1, D)), scores])[None]
        weights = np.exp(-(z**2) / 2)
        at = SimpleNamespace(scores=scores, weights=(weights / weights.sum())[None])
        return at, None


def radii(n, tail, noise):
    at = Centring(np.zeros(D), np.eye(D), 1.0, 1.0, "l2")
    usual = usual_norm(D, "l2")
    asked = last_radii(NormalScores(n), at, noise, tail and tail * usual)
    return asked, asked.radius / usual


def test_long_tails_get_a_wide_ball_of_scores_and_no_loud_curvature():
    """A curvature is of covariates alone and has no tail: its ball stays where its
    noise is fine. In the broken twin, as it was until 2026-12-01, scores were held to
    it as well: counts of visits were off by four standard deviations.
    """
    noise = RoundNoise(15.0, 22.0)
    n = 20_000
    asked, radius = radii(n, 8.0, noise)
    assert radius == pytest.approx(8.0)
    assert (asked.whitening == np.eye(D)).all()
    assert edge_of(asked.curvature_radius, D, noise, n) <= FINE_EDGE + 1e-9
    _, before = radii(n, None, noise)
    assert before < 8.0
    few, _ = radii(4_000, 3.0, noise)
    assert edge_of(few.curvature_radius, D, noise, 4_000) <= FINE_EDGE + 1e-9


def test_a_ball_is_never_louder_than_is_said_but_deviations_get_other_units():
    """Beyond LOUDEST the scores of a standard deviation, squares of residuals, are what
    doesn't fit: scaled down, they do, and so do residuals. Coefficients keep their
    units.
    """
    noise = RoundNoise(15.0, 22.0)
    n = 5_000
    asked, radius = radii(n, 32.0, noise)
    loudest = LOUDEST * np.sqrt(n) / noise.scores
    assert asked.radius == pytest.approx(loudest)
    scale = np.diag(asked.whitening)
    assert (scale[:-1] == 1).all()
    assert scale[-1] == pytest.approx(radius / 32.0)
    fits, _ = radii(n, 4.0, noise)
    assert (fits.whitening == np.eye(D)).all()
