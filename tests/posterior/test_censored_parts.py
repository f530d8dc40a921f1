"""The parts of the censored posterior, each against a computation by hand.

Seeds are fixed. Where a test could fail by chance, its rate is in a comment.
"""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from small_models import CLIPPED, blueprint, grid_of, written
from tables import bits, refuses

from pdips import CensoredPosterior, Schema, Table
from pdips.posterior import private_reference as reference
from pdips.posterior.censoring import CLIPS, clip_graph, clip_values
from pdips.posterior.columns import collapse, distinct, record_values, stand_ins
from pdips.posterior.model import constrained, join, split
from pdips.posterior.private_reference import Anchor, Stage
from pdips.posterior.record_likelihood import RecordLikelihood
from pdips.posterior.target import STEPS, Grid, Target, score_grid
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import _choose_exactly, _LazyUniform, exponential_mechanism
from pdips.privacy.plan import Plan
from pdips.privacy.replay import exact_law

SPAN = Schema.from_toml("[columns.y]\nlower = -10.0\nupper = 10.0\n")


@written
def normal(data):
    pm.Normal("y", pm.Normal("mean", 0.0, 3.0), 2.0, observed=data["y"])


@written
def two_parameters(data):
    pm.Normal(
        "y",
        pm.Normal("mean", 0.0, 3.0),
        pm.HalfNormal("spread", 4.0),
        observed=data["y"],
    )


@written
def lookup(data):
    pm.Normal(
        "y",
        pm.Normal("shift", 0.0, 1.0, shape=2)[data["group"]],
        1.0,
        observed=data["y"],
    )


@pytest.fixture(scope="module")
def one():
    return blueprint(normal, SPAN)


@pytest.fixture(scope="module")
def two():
    return blueprint(two_parameters, SPAN)


def measured(table: Table, seed: int):
    """Return the cells of a private reference of epsilon 1."""
    step = reference.reference_step(SPAN, Fraction(1), "replace-one")
    plan = Plan(
        mechanism="", schema=SPAN, neighbours="replace-one", steps=(step,), law=""
    )
    return reference.measure(
        plan, Drawing(plan, table, bits(seed)), lambda noisy: noisy
    )


# One record at many points


def test_what_a_record_adds_is_the_same_to_the_last_bit_whatever_others_there_are(two):
    rng = np.random.default_rng(0)
    points = [rng.normal(size=501), rng.normal(size=501)]
    y = rng.normal(size=40)
    two.likelihood.at(points)
    alone = [
        two.likelihood(row).tobytes()
        for y_i in y
        for row in two.likelihood.rows({"y": np.array([y_i])})
    ]
    order = rng.permutation(40)
    among = [
        two.likelihood(row).tobytes() for row in two.likelihood.rows({"y": y[order]})
    ]
    assert among == [alone[i] for i in order]


def test_a_parameter_may_be_a_vector_and_a_lookup_beyond_it_is_no_number():
    group = {"lower": 0, "upper": 5, "integer": True, "public": True}
    schema = Schema(columns={"group": group, "y": {"lower": -9, "upper": 9}})
    likelihood = blueprint(lookup, schema).likelihood
    likelihood.at([np.array([[0.0, 1.0], [2.0, -1.0]])])
    known, beyond = likelihood.rows(
        {"group": np.array([1, 5]), "y": np.array([0.5, 0.5])}
    )
    np.testing.assert_allclose(
        likelihood(known), stats.norm.logpdf(0.5, [1.0, -1.0], 1), rtol=1e-12
    )
    assert np.isnan(likelihood(beyond)).all()


# Whole-number scores


@pytest.mark.parametrize("far", [[], [np.array([-4.0, 4.0])]], ids=["plain", "weighed"])
@pytest.mark.parametrize(("clip", "by_hand"), CLIPPED.items())
def test_scores_are_sums_of_rounded_terms(one, clip, by_hand, far):
    points, y, counts = (
        [np.linspace(-3, 3, 7)],
        np.array([-1.0, 0.2, 4.0]),
        np.array([1, 5, 2]),
    )
    stage = Stage(
        anchor=reference.anchor_of_prior(one.prior),
        n_records=8,
        centre=[np.array([0.5])],
    )
    target = Target(
        space=one, stage=stage, window=Fraction(1, 3), clip=clip, weights=bool(far)
    )
    # public points, over which weights keep a term inside of the window
    vars(target)["around"] = far
    total = target.total(points, {"y": y}, counts)
    whole, there = (
        stats.norm.logpdf(y[:, None], theta, 2) - stats.norm.logpdf(y[:, None], 0.5, 2)
        for theta in (points[0], np.concatenate([[0.5], *far]))
    )
    u = whole * np.minimum(
        1, 1 / 3 / np.abs(there).max(axis=1, keepdims=True, initial=1e-300)
    )
    expected = counts @ np.floor(STEPS * by_hand(u, 1 / 3) * 3 + 0.5)
    # a last bit at a rounding edge
    assert np.abs(total - expected).max() <= counts.sum()
    assert np.abs(total).max() <= counts.sum() * STEPS
    np.testing.assert_allclose(
        target.excess(points, {"y": y}),
        (whole - by_hand(u, 1 / 3)).mean(axis=0),
        atol=1e-12,
    )


@pytest.mark.parametrize("clip", CLIPS)
def test_the_clip_function_is_the_same_in_numbers_and_as_a_graph(clip):
    u = np.append(
        np.random.default_rng(0).normal(0, 3, 400),
        [np.nan, np.inf, -np.inf, 1e300, -1e300, 0.0],
    )
    for window in (0.2, 1.0, 7.0):
        found = clip_graph(pt.as_tensor(u), pt.as_tensor(window), clip).eval(
            mode="FAST_COMPILE"
        )
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(
                found, window * clip_values(u / window, clip), rtol=1e-12, atol=1e-12
            )
        assert np.abs(found).max() <= window


def test_records_are_collapsed_one_by_one_and_zeros_are_one():
    column = Schema.from_toml(
        "[columns.y]\nlower = 0.0\nupper = 1.0\nresolution = 0.3\n"
    ).columns["y"]
    np.testing.assert_allclose(
        collapse(np.array([0.0, 0.29, 0.3, 0.95, 1.0]), column),
        [0.15, 0.15, 0.45, 0.95, 0.95],
    )
    zeros = record_values(Table(pd.DataFrame({"y": [-0.0, 0.0, 1.0]}), SPAN))["y"]
    assert not np.signbit(zeros).any()
    values, counts = distinct({"y": zeros, "records in all": np.array([3, 3, 4])}, None)
    assert counts.tolist() == [2, 1]
    assert values["records in all"].tolist() == [3, 4]


def test_stand_ins_have_both_ends_of_every_column():
    schema = Schema.from_toml(
        "[columns.a]\nlevels = [1, 2, 3]\n[columns.b]\nlower = "
        "2\nupper = 9\ninteger = true\n"
    )
    made = stand_ins(schema, 30)
    assert {0, 2} <= set(made["a"])
    assert {2, 9} <= set(made["b"])
    for end, ends in ((0, (0, 2)), (1, (2, 9))):
        assert [set(values) for values in stand_ins(schema, 3, end=end).values()] == [
            {value} for value in ends
        ]


# The grid


def test_the_law_on_the_grid_is_the_censored_posterior(one):
    # against quadrature on a lattice twenty times as fine, without a line of the
    # mechanism's code
    y, window = np.array([0.5, 1.5, 2.0, -6.0]), Fraction(1, 2)
    stage = Stage(
        anchor=reference.anchor_of_prior(one.prior),
        n_records=4,
        centre=[np.array([0.0])],
    )
    scored = score_grid(
        Target(space=one, stage=stage, window=window),
        {"y": y},
        np.ones(4, dtype=np.int64),
    )
    place, p = scored.grid.at(scored.index)[:, 0], np.exp(scored.log_probabilities())
    fine = np.linspace(-20, 20, 80_001)
    u = stats.norm.logpdf(y[:, None], fine, 2) - stats.norm.logpdf(y[:, None], 0, 2)
    q = np.exp(stats.norm.logpdf(fine, 0, 3) + np.clip(u, -0.5, 0.5).sum(axis=0))
    q /= q.sum()
    assert p @ place == pytest.approx(q @ fine, abs=2e-3)
    assert p @ place**2 == pytest.approx(q @ fine**2, rel=2e-3)


def test_draws_follow_the_law_and_lie_in_their_cells(one):
    # chi-square over ten groups of cells, level 1e-3; the twin with half the window is
    # rejected
    y, counts = np.array([0.5, 3.5]), np.array([20, 20])
    stage = Stage(
        anchor=reference.anchor_of_prior(one.prior),
        n_records=40,
        centre=[np.array([0.0])],
    )
    scored, other = (
        score_grid(Target(space=one, stage=stage, window=window), {"y": y}, counts)
        for window in (Fraction(1, 4), Fraction(1, 8))
    )
    p, twin = (np.exp(each.log_probabilities()) for each in (scored, other))
    drawn = exponential_mechanism(
        np.broadcast_to(scored.scores, (2_000, len(p))), scored.unit, bits(1)
    )
    group = np.minimum((np.cumsum(p) * 10).astype(int), 9)
    seen = np.bincount(group[drawn], minlength=10)
    assert stats.chisquare(seen, 2_000 * np.bincount(group, p)).pvalue > 1e-3
    assert stats.chisquare(seen, 2_000 * np.bincount(group, twin)).pvalue < 1e-3
    inside = scored.grid.inside(scored.index[drawn[:50]], np.random.default_rng(2))
    assert inside.shape == (50, 1)
    assert np.isin(np.round(_index(scored.grid, inside)), scored.index).all()


def _index(grid: Grid, flat: np.ndarray) -> np.ndarray:
    steps = np.linalg.solve(grid.anchor.shape, (flat - grid.anchor.place).T).T
    return (
        np.arcsinh(steps * grid.growth / grid.finest) / grid.growth
        + (grid.n_nodes - 1) / 2
    )


@pytest.mark.parametrize("reach", [1.0, 6.0, 300.0])
def test_nodes_start_fine_and_reach_as_far_as_they_should(two, reach):
    grid = Grid(two.likelihood, Anchor(np.zeros(2), np.eye(2), reach))
    along, edges = (
        grid.at(np.stack([index, index], axis=1))[:, 0]
        for index in (np.arange(grid.n_nodes), np.arange(grid.n_nodes + 1) - 0.5)
    )
    assert along[-1] == pytest.approx(reach, rel=1e-6)
    assert (np.diff(along) > 0).all()
    assert np.diff(along).min() <= 0.301
    index = grid.indices()
    prior = two.likelihood.log_prior(split(two.model, grid.at(index)))
    index, prior = index[prior > -100], prior[prior > -100]
    volumes = np.exp(grid.log_weights(index) - prior)
    by_hand = np.diff(edges)
    expected = by_hand[index[:, 0]] * by_hand[index[:, 1]]
    np.testing.assert_allclose(
        volumes / volumes.max(), expected / expected.max(), rtol=2e-2
    )


def test_parameters_go_to_unconstrained_space_and_back(two):
    flat = two.parameters_of({"mean": np.array(1.5), "spread": np.array(2.5)})
    assert flat == pytest.approx([1.5, np.log(2.5)])
    [back] = constrained(two.model, flat[None])
    assert float(back["spread"]) == pytest.approx(2.5)
    assert join(split(two.model, flat[None])) == pytest.approx(flat[None])
    refuses("values for mean, spread", two.parameters_of, {"mean": np.array(1.0)})
    refuses(
        "exclude", two.parameters_of, {"mean": np.array(1.0), "spread": np.array(-1.0)}
    )


# The first stage


def test_the_first_stage_counts_cells_with_noise_of_its_price():
    # mean over 4,000 noisy cells of scale 2 / epsilon: off by more than 4 standard
    # errors once in 16,000
    table = Table(pd.DataFrame({"y": np.full(50, 3.0)}), SPAN)
    true = np.zeros(32)
    true[20] = 50  # 3 lies in the cell that begins at 2.5
    found = [measured(table, seed) for seed in range(125)]
    noise, cells = np.concatenate([each.counts - true for each in found]), found[-1]
    assert cells.n_records == 50
    scale, expected = (
        np.abs(noise).mean(),
        pytest.approx(2.0, abs=4 * 2.0 / np.sqrt(4_000)),
    )
    assert scale == expected
    assert cells.variance == pytest.approx(np.var(noise), rel=0.15)
    assert scale / 2 != expected  # the broken twin: scale 1 / epsilon


def test_the_fit_to_cells_finds_the_parameters_and_without_records_the_prior(two):
    place = reference.fit(
        two.likelihood, reference.no_cells(reference.binned(SPAN)), two.prior
    )
    assert place == pytest.approx([0.0, np.log(4.0)], abs=0.01)
    table = Table(
        pd.DataFrame(
            {"y": np.clip(np.random.default_rng(3).normal(1.0, 2.0, 5_000), -10, 10)}
        ),
        SPAN,
    )
    mean, log_spread = reference.fit(two.likelihood, measured(table, 4), two.prior)
    assert mean == pytest.approx(1.0, abs=0.12)  # 4 standard errors
    assert np.exp(log_spread) == pytest.approx(2.0, abs=0.09)


def test_references_that_differ_in_the_last_digit_are_two():
    values = [np.r_[np.zeros(2_000), last] for last in (1.0, 1.0 + 1e-12)]
    # the broken twin: numpy shortens long arrays
    assert str(values[0]) == str(values[1])
    assert len({reference.key_of({"mean": value}) for value in values}) == 2
    assert reference.key_of("prior") == "prior"


def test_the_anchor_is_as_wide_as_the_posterior_there(two):
    y = np.random.default_rng(5).normal(0, 1, 4_000)
    anchor = reference.anchor_at(two.likelihood, np.array([0.0, 0.0]), {"y": y}, 100)
    covariance = anchor.shape @ anchor.shape.T
    # Fisher's information
    np.testing.assert_allclose(covariance, np.diag([1 / 100, 1 / 200]), atol=8e-4)


def test_the_correction_keeps_a_narrow_window_from_moving_the_posterior(two):
    # Records are skewed, the window is narrow: without the correction the posterior
    # goes to where a majority gains.
    @written
    def shifted_exponential(data):
        rate = pm.HalfNormal("scale", 5.0)
        pm.CustomDist(
            "y",
            rate,
            dist=lambda s, size: pm.Exponential.dist(scale=s, size=size) - 3.0,
            observed=data["y"],
        )

    y = np.clip(np.random.default_rng(6).exponential(2.0, 2_000) - 2.0, -10, 10) - 1.0
    space, ones, found = (
        blueprint(shifted_exponential, SPAN),
        np.ones(2_000, dtype=np.int64),
        [],
    )
    place = space.parameters_of({"scale": np.array(2.0)})
    simulated = reference.simulate(space, place, {})
    anchor = reference.anchor_at(space.likelihood, place, simulated, 2_000)
    for records in (simulated, {}):
        stage = Stage(
            anchor=anchor,
            n_records=2_000,
            centre=split(space.model, place[None]),
            simulated=records,
        )
        scored = score_grid(
            Target(space=space, stage=stage, window=Fraction(1, 50)), {"y": y}, ones
        )
        p, at = np.exp(scored.log_probabilities()), scored.grid.at(scored.index)[:, 0]
        found.append(
            np.array([np.abs(p @ at - place[0]), np.sqrt(p @ (at - p @ at) ** 2)])
            / anchor.shape[0, 0]
        )
    (moved, width), (without, _) = found
    assert moved < 2.0
    assert width == pytest.approx(1.0, abs=0.25)
    assert without > 3.0  # the broken twin


# Prices


def test_a_long_choice_is_decided_by_bisection():
    below, available = np.arange(3_000) % 7, np.ones(3_000, dtype=bool)
    weights = np.exp(-below / 3)
    threshold = (weights / weights.sum()).cumsum()[1_234]
    for shift, wanted in ((-1e-9, 1_234), (1e-9, 1_235)):
        lazy = _LazyUniform(int((threshold + shift) * 2**64), 64, bits(0))
        assert _choose_exactly(below, available, Fraction(1, 3), lazy) == wanted


def test_public_facts_do_not_see_the_number_of_records_under_add_remove():
    # the cells of a law are the same ones for tables of any size: 60 records and one
    made = CensoredPosterior(
        epsilon=1,
        model=normal,
        neighbours="add-remove",
        reference={"mean": 0.0},
        n_records=60,
    )
    many, one = (
        exact_law(made, Table(pd.DataFrame({"y": [0.0] * n}), SPAN)).outcomes
        for n in (60, 1)
    )
    assert {outcome.key for outcome in many} == {outcome.key for outcome in one}
    assert np.isfinite([outcome.log_probability for outcome in one]).all()


# What a hostile reader tried on the censored posterior and got through with once; each
# must stay closed


BOTH = Schema.from_toml(
    "[columns.x]\nlower = 0.0\nupper = 9.0\n[columns.y]\nlower = -10.0\nupper = 10.0\n"
)


@written
def tight(data):
    """A prior far below most of a grid that follows the likelihood."""
    pm.Normal("y", pm.Normal("mean", 0.0, 0.005), 2.0, observed=data["y"])


@written
def inverse(data):
    """A matrix that is singular for records with x = 3.5."""
    mean = pm.Normal("mean", 0.0, 3.0)
    x = pm.Uniform("x", 0, 9, observed=data["x"])
    pm.Normal(
        "y",
        mean,
        pt.abs(pt.linalg.inv((x - 3.5)[:, None, None])[:, 0, 0]),
        observed=data["y"],
    )


def test_a_record_that_makes_the_model_raise_is_answered():
    likelihood = RecordLikelihood(blueprint(inverse, BOTH).model)
    likelihood.at([np.linspace(-1, 1, 5)])
    ordinary, singular = (
        likelihood(row)
        for row in likelihood.rows(
            {"x": np.array([1.0, 3.5]), "y": np.array([0.0, 0.0])}
        )
    )
    assert np.isfinite(ordinary).all()
    assert np.isnan(singular).all()


@pytest.mark.parametrize("error", [MemoryError, SystemExit, RecursionError])
def test_not_even_an_error_that_ends_programs_tells_of_a_record(monkeypatch, error):
    likelihood = RecordLikelihood(blueprint(inverse, BOTH).model)
    likelihood.at([np.linspace(-1, 1, 5)])
    [row] = likelihood.rows({"x": np.array([1.0]), "y": np.array([0.0])})
    assert np.isfinite(likelihood(row)).all()

    def end(*_):
        raise error("a record")

    monkeypatch.setitem(vars(likelihood), "_single", (None, [], end))
    assert np.isnan(likelihood(row)).all()


def test_a_tiny_budget_leaves_scores_whole_numbers():
    mechanism = CensoredPosterior(epsilon="1e-9", model=tight, reference={"mean": 0.0})
    table = Table(pd.DataFrame({"y": np.full(50, -3.0)}), SPAN)
    with pytest.warns(UserWarning, match="epsilon is so small"):
        release, _ = mechanism.release(table, rng=np.random.default_rng(1))
    assert len(release.sets[0]) == 50


def test_threads_do_not_share_points():
    table = Table(
        pd.DataFrame({"y": np.random.default_rng(0).uniform(-9, 9, 600)}), SPAN
    )
    mechanisms = [
        CensoredPosterior(epsilon=1, model=tight, reference={"mean": place})
        for place in (0.0, 0.01)
    ]

    def scores(mechanism):
        return grid_of(mechanism, table)[1].scores

    alone = [scores(each) for each in mechanisms]
    with ThreadPoolExecutor(2) as pool:
        np.testing.assert_array_equal([*pool.map(scores, mechanisms)], alone)
    assert not np.array_equal(*alone)


def test_the_statement_of_a_concentrated_price_promises_no_pure_epsilon():
    loss = CensoredPosterior(
        epsilon=1, model=tight, delta="1e-6", split="per-set", n_sets=100
    ).privacy_loss(SPAN)
    assert "any output by a factor" not in loss.statement
    assert "beyond that, by at most delta = 0.000001" in loss.statement
    pure = CensoredPosterior(epsilon=1, model=tight).privacy_loss(SPAN)
    assert "any output by a factor of at most e^epsilon; the number" in pure.statement
    assert "beyond that, by at most delta" not in pure.statement
