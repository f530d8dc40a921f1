"""Hit-and-run on K-norm gradient densities against brute force.

Chains are thinned until neighbouring draws are uncorrelated to within 0.04, which is
asserted; a true law then fails a chi-square check with probability about 1e-6, and a
broken twin must score below 1e-9. Seeds are fixed.
"""

import itertools

import knorm_tables as by_hand
import numpy as np
import pytest
from laws import ACCEPT, REJECT
from tables import refuses

from pdips.quantile import hit_and_run as kernels
from pdips.quantile.gradient import DENSITY_NORMS as NORMS
from pdips.quantile.gradient import KNormGradient
from pdips.quantile.hit_and_run import HitAndRun
from pdips.quantile.pymc_step import learn_directions


def chain(density, *, n_draws=12_000, thin=25, warm_up=400):
    """Draws of one chain, warmed up as the PyMC step does: half under the l2 norm, half
    to learn directions.
    """
    rng, sampler = (
        np.random.default_rng(1),
        HitAndRun(density, by_hand.LOWER, by_hand.UPPER),
    )
    theta, shape = sampler.check_start([2.5, 0.5]), None
    if warm_up:
        theta = sampler.draw(theta, 1, warm_up // 2, rng, smooth=True)[0]
        warm = sampler.draw(theta, warm_up // 2, 1, rng)
        theta, shape = warm[-1], learn_directions(warm)
    return sampler.draw(theta, n_draws, thin, rng, shape=shape)


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_draws_have_the_law_of_a_fine_grid(norm):
    density = by_hand.skewed(norm=norm)
    draws, cold = chain(density), chain(density, thin=40, warm_up=0)
    assert by_hand.lag_one(draws) < 0.04
    assert (
        min(by_hand.p_value(each, by_hand.cells(density)) for each in (draws, cold))
        > ACCEPT
    )
    assert (
        by_hand.p_value(draws, by_hand.cells(by_hand.skewed(norm=norm, scale=0.6)))
        < REJECT
    )
    assert (
        by_hand.p_value(draws, by_hand.cells(by_hand.skewed(norm=norm, tau=0.4)))
        < REJECT
    )


def test_directions_are_learnt_from_draws_that_move():
    draws = np.random.default_rng(2).standard_normal((500, 2)) @ [
        [3.0, 1.0],
        [0.0, 0.1],
    ]
    root = learn_directions(draws)
    np.testing.assert_allclose(root @ root.T, np.cov(draws.T))
    assert learn_directions(draws[:39]).shape == (0, 2)
    assert learn_directions(np.ones((500, 2))).shape == (0, 2)
    assert learn_directions(draws[:, :1]).shape == (0, 1)


@pytest.mark.slow
def test_draws_between_lines_have_the_law_of_a_fine_grid_and_cross_none():
    density = by_hand.skewed(**by_hand.LINES)
    # the broken twin: lines ignored
    draws, free = chain(density), chain(by_hand.skewed())
    assert by_hand.lag_one(draws) < 0.04
    assert by_hand.p_value(draws, by_hand.cells(density)) > ACCEPT
    assert by_hand.p_value(free, by_hand.cells(density)) < REJECT
    assert -1e-12 <= by_hand.heights(density, draws).min() < 0.01
    assert by_hand.heights(density, free).min() < -0.1
    for each in (draws, free):
        assert ((each >= by_hand.LOWER) & (each <= by_hand.UPPER)).all()


@pytest.mark.slow_cases(
    "",
    "every record comes in",
    "pieces without their lengths",
)
@pytest.mark.parametrize(
    "broken", ["", "pieces without their lengths", "every record comes in"]
)
def test_a_broken_line_draw_would_be_seen(broken):
    density = by_hand.skewed()
    draws = by_hand.slow_chain(
        density, 1500, 10, np.random.default_rng(3), broken=broken
    )
    found = by_hand.p_value(draws, by_hand.cells(density))
    assert found < REJECT if broken else found > ACCEPT


def tables():
    rng = np.random.default_rng(7)
    for n, p in ((12, 1), (30, 2), (700, 3)):
        x = np.column_stack([np.ones(n), rng.integers(-2, 3, (n, p - 1)) / 2])
        # ties of times, records that never change sides, a start on a boundary
        yield x, rng.integers(0, 4, n) / 2
        # so close together that digits don't tell them apart
        yield x, 1 + 1e-9 * rng.random(n)
        yield x, rng.exponential(2, n)


def interval(sampler, theta, direction):
    """The t, 0 among them, with theta + t * direction in the box and between the
    lines.
    """
    return kernels.feasible(theta, direction, sampler._region)


def pieces(sampler, theta, direction):
    """The exponent along a line: ends of its pieces, and the norm on each."""
    work = sampler._work
    n = kernels.pieces(
        theta,
        direction,
        *interval(sampler, theta, direction),
        np.inf,
        sampler._density,
        work,
    )
    return np.array(work.ends[: n + 1]), np.array(work.norms[:n])


@pytest.mark.parametrize("norm", NORMS)
def test_the_exponent_on_a_line_is_the_one_worked_out_directly(norm):
    rng = np.random.default_rng(8)
    for x, y in tables():
        p = x.shape[1]
        density = KNormGradient(x, y, 0.3, 1.0, norm)
        sampler = HitAndRun(density, -100, 100)
        starts = (np.zeros(p), np.full(p, 0.5), rng.uniform(-1, 3, p))
        for theta, direction in itertools.product(
            starts, (*np.eye(p), rng.standard_normal(p), -np.ones(p))
        ):
            ends, norms = pieces(sampler, theta, direction)
            assert (np.diff(ends) >= 0).all()
            assert ends[[0, -1]] == pytest.approx(interval(sampler, theta, direction))
            middles, long = (ends[1:] + ends[:-1]) / 2, np.diff(ends) > 1e-7
            direct = by_hand.norm_at(
                density, theta + middles[long][:, None] * direction
            )
            np.testing.assert_allclose(norms[long], direct, atol=1e-9)
            assert sampler.norm_at(theta) == pytest.approx(
                by_hand.norm_at(density, theta)
            )


@pytest.mark.parametrize("norm", NORMS)
def test_leaving_out_the_far_ends_of_a_line_changes_no_draw(norm):
    rng = np.random.default_rng(11)
    n = kernels.NARROW_FROM
    x = np.column_stack([np.ones(n), np.minimum(rng.exponential(0.5, n), 2) - 1])
    sampler = HitAndRun(
        KNormGradient(x, 1 + 2 * x[:, 1] + rng.exponential(2, n), 0.3, 0.1, norm),
        -20,
        60,
    )
    density, work = sampler._density, sampler._work
    theta = sampler.draw(np.array([1.7, 2.0]), 1, 60, rng, smooth=True)[0]

    def quantiles(n_pieces, scale=density.scale):
        kernels.weigh(n_pieces, scale, work)
        return work.ends[
            np.searchsorted(
                work.masses[:n_pieces],
                np.linspace(0.001, 0.999, 99) * work.masses[n_pieces - 1],
            )
        ]

    for direction in np.array([[1.0, 0.0], [-0.3, 1.0], [50.0, -20.0]]):
        line = theta, direction, *interval(sampler, theta, direction)
        short = kernels.weighed_line(
            *line, kernels.norm_at(theta, density), density, work
        )
        found = quantiles(short)
        whole = kernels.pieces(*line, np.inf, density, work)
        assert short < 0.7 * whole
        np.testing.assert_allclose(found, quantiles(whole), rtol=1e-7, atol=1e-12)
        # quantiles can tell
        assert np.abs(
            quantiles(whole, 1.1 * density.scale) - found
        ).max() > 1e-4 * np.ptp(found)


def by_vertices(theta, direction, density, lower, upper):
    """Every vertex of the box of covariates gives a linear inequality in t, and so does
    every side of the other box.
    """
    lines, signs = density.lines
    vertices = np.array(
        [[1, *each] for each in itertools.product(*np.transpose(density.covariates))]
    )
    heights = np.concatenate(
        [
            ((theta - lines) * signs[:, None] @ vertices.T).ravel(),
            theta - lower,
            upper - theta,
        ]
    )
    rates = np.concatenate(
        [(np.outer(signs, vertices @ direction)).ravel(), direction, -direction]
    )
    with np.errstate(divide="ignore"):
        times = -heights / rates
    return times[rates > 0].max(), times[rates < 0].min()


def test_the_feasible_interval_is_that_of_all_vertices():
    rng = np.random.default_rng(9)
    for p in (1, 2, 3, 5):
        for _ in range(100):
            theta = rng.uniform(-2, 2, p)
            lines = theta + rng.standard_normal((4, p))
            low = rng.uniform(-2, 1, p - 1)
            covariates = low, low + rng.random(p - 1)
            lines[:, 0] += np.where(np.arange(4) < 2, -5, 5) * p
            settings = {
                "floors": lines[:2],
                "ceilings": lines[2:],
                "covariates": covariates,
            }
            density = KNormGradient(np.ones((3, p)), np.zeros(3), 0.5, 1.0, **settings)
            assert (by_hand.heights(density, theta) >= 0).all()
            direction = rng.standard_normal(p)
            found = interval(HitAndRun(density, -9, 9), theta, direction)
            np.testing.assert_allclose(
                found, by_vertices(theta, direction, density, -9, 9), atol=1e-9
            )


def test_a_chain_may_start_on_a_line():
    assert (
        np.ptp(chain(by_hand.skewed(floors=[2.5, 0.5]), n_draws=50), axis=0).min() > 0.1
    )
    density = by_hand.skewed()
    assert not any(
        str(value)[:6] in repr(density) for value in (*density.y, *density.x[:, 1])
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.ones(9)}, "must have the shape"),
        ({"y": np.ones(8)}, "must have the shape"),
        ({"y": np.full(9, np.nan)}, "x and y must be finite"),
        ({"x": np.zeros((9, 2))}, "all ones"),
        ({"tau": 1.0}, "inside of"),
        ({"scale": -1.0}, "scale must be"),
        ({"norm": "l3"}, "norm"),
        ({"covariates": (1, -1)}, "lower <= upper"),
        ({"covariates": (-1, np.inf)}, "covariates must be finite"),
        ({"floors": [1, 2, 3]}, "floors must be"),
        ({"lower": 9.0}, "lower must be below upper"),
        ({"lower": [1, 2, 3]}, "lower must be a number or"),
        ({"start": 20}, "start must lie"),
        ({"start": 0, "floors": [1, 0]}, "start must lie"),
    ],
)
def test_bad_input_is_refused(changed, message):
    table = by_hand.skewed()
    given = {
        "start": 0,
        "lower": -9,
        "upper": 9,
        "x": table.x,
        "y": table.y,
        "tau": 0.5,
        "scale": 1.0,
    } | changed
    start, *box = (given.pop(name) for name in ("start", "lower", "upper"))
    refuses(message, lambda: HitAndRun(KNormGradient(**given), *box).check_start(start))
