"""The laws of noise in PyMC: exact, drawn as stated, and summed over true counts."""

import math

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import logsumexp
from tables import refuses

from pdips import DiscreteGaussian, DiscreteLaplace, NoisyCounts
from pdips.release.noisy_margins import MarginAxis, MarginLaw

WHOLE = np.arange(-400, 401)


def noise(law: str, scale: float) -> np.ndarray:
    """Return the probabilities of -400, ..., 400, by enumeration."""
    found = np.exp(
        -np.abs(WHOLE) / scale if law == "laplace" else -(WHOLE**2) / (2 * scale**2)
    )
    return found / found.sum()


def probabilities(variable, values: np.ndarray) -> np.ndarray:
    return np.exp(pm.logp(variable, values).eval())


@pytest.mark.parametrize("scale", [0.2, 0.99, 1.0, 9.5])
@pytest.mark.parametrize(
    ("law", "distribution"),
    [("laplace", DiscreteLaplace), ("gaussian", DiscreteGaussian)],
)
def test_a_law_is_that_of_the_noise(law, distribution, scale):
    found = probabilities(distribution.dist(3, scale), WHOLE + 3)
    np.testing.assert_allclose(found, noise(law, scale), rtol=1e-9, atol=1e-14)
    assert found.sum() == pytest.approx(1, abs=1e-12)
    if law == "laplace":
        np.testing.assert_allclose(
            found, stats.dlaplace.pmf(WHOLE, 1 / scale), rtol=1e-9, atol=1e-300
        )


def noisy(law: str, **how):
    with pm.Model():
        return NoisyCounts("noisy", noise=(law, 2.0), shape=(), **how)


DRAWN = {
    "laplace": lambda: DiscreteLaplace.dist(3, 2.0),
    "gaussian": lambda: DiscreteGaussian.dist(3, 2.0),
    "poisson": lambda: noisy("laplace", mean=3.0),
    "binomial": lambda: noisy("gaussian", mean=0.5, n_records=6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_draws_follow_the_law(name):
    # chi-square over 21 cells: rejects a right sampler in 1e-4 of seeds. The twin is
    # moved by a tenth of a count.
    def in_cells(values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(np.clip(values, -7, 13) + 7, weights, minlength=21)

    variable = DRAWN[name]()
    expected = in_cells(WHOLE, probabilities(variable, WHOLE))
    assert expected.sum() == pytest.approx(1, abs=1e-9)
    draws = pm.draw(variable, 40_000, random_seed=1)
    moved = draws + (np.random.default_rng(2).random(40_000) < 0.1)
    right, twin = (
        stats.chisquare(in_cells(each), 40_000 * expected).pvalue
        for each in (draws, moved)
    )
    assert right > 1e-4 > twin


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["FAST_COMPILE", "FAST_RUN", "NUMBA", "CVM"])
@pytest.mark.parametrize(
    ("law", "distribution"),
    [("laplace", DiscreteLaplace), ("gaussian", DiscreteGaussian)],
)
def test_draws_follow_the_law_in_every_mode(law, distribution, mode):
    # chi-square over 21 cells, at two counts and scales at once: rejects a right
    # sampler in 2e-4 of seeds. The twin has the other count's scale.
    counts, scales = np.array([3, 40]), np.array([2.0, 4.0])
    variable = distribution.dist(counts, scales)
    draws = pm.draw(variable, 20_000, mode=mode, random_seed=1)
    assert draws.dtype == np.int64
    for k, twin in ((0, 1), (1, 0)):
        seen = np.bincount(np.clip(draws[:, k] - counts[k], -10, 10) + 10, minlength=21)
        chances = [
            np.bincount(np.clip(WHOLE, -10, 10) + 10, noise(law, scale), minlength=21)
            for scale in scales
        ]
        right = stats.chisquare(seen, 20_000 * chances[k]).pvalue
        wrong = stats.chisquare(seen, 20_000 * chances[twin]).pvalue
        assert right > 1e-4 > wrong


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.05, 0.99, 9.5, 199.0, 201.0, 3_000.0])
@pytest.mark.parametrize(
    ("law", "distribution"),
    [("laplace", DiscreteLaplace), ("gaussian", DiscreteGaussian)],
)
def test_a_cumulative_law_is_that_of_enumeration(law, distribution, scale):
    reach = math.ceil(60 * scale) + 60
    whole = np.arange(-reach, reach + 1)
    log = -np.abs(whole) / scale
    if law == "gaussian":
        log = -(whole**2) / (2 * scale**2)
    log = log - logsumexp(log)
    below = np.logaddexp.accumulate(log)
    above = np.logaddexp.accumulate(log[::-1])[::-1]
    some = np.unique(np.rint(np.linspace(-30, 30, 301) * max(scale, 1)).astype(int))
    place = some + reach
    expected = below[place]
    expected[some >= 0] = np.log1p(-np.exp(above[place[some >= 0] + 1]))
    found = pm.logcdf(distribution.dist(3, scale), some + 3).eval()
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-15)
    if law == "laplace":
        np.testing.assert_allclose(
            np.exp(found), stats.dlaplace.cdf(some, 1 / scale), rtol=1e-9, atol=1e-300
        )


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("n_records", [None, 9])
def test_true_counts_are_summed_over(law, n_records):
    true = np.arange(200)
    chance = (
        stats.poisson.pmf(true, 2.5)
        if n_records is None
        else stats.binom.pmf(true, n_records, 0.3)
    )
    expected = np.convolve(noise(law, 3.0), chance)[400 - 20 : 400 + 41]
    mean = 2.5 if n_records is None else 0.3
    with pm.Model():
        variable = NoisyCounts(
            "noisy", mean, noise=(law, 3.0), n_records=n_records, shape=61
        )
    np.testing.assert_allclose(
        probabilities(variable, np.arange(-20, 41)), expected, rtol=1e-6, atol=1e-12
    )


@pytest.mark.parametrize(("law", "scale"), [("laplace", 33.5), ("gaussian", 125.0)])
def test_loud_noise_is_as_good_as_continuous(law, scale):
    # where sums stop: half the sum of absolute differences, over what 1,001 noisy
    # counts have
    values = np.arange(-500, 501)
    with pm.Model():
        laws = [
            NoisyCounts(f"n{k}", 0.7, noise=(law, scale), exact=k == 0, shape=1001)
            for k in (0, 1)
        ]
    exact, relaxed = (probabilities(each, values) for each in laws)
    assert np.abs(exact - relaxed).sum() / 2 < 1e-3


@pytest.mark.slow
def test_a_hierarchical_posterior_is_that_of_enumeration():
    # two chains of 1,000 draws: the error of a mean is about 0.04 posterior standard
    # deviations. The twin has no noise.
    seen, grid = np.array([3, -4, 9]), np.linspace(-4, 6, 401)
    steps = np.linspace(-5, 5, 201)
    rate, true = np.exp(grid[:, None] + 0.7 * steps), np.arange(300)
    log_prior = stats.norm.logpdf(grid, 1, 1)

    def posterior(likelihood) -> tuple[float, float]:
        log = log_prior + sum(
            logsumexp(likelihood(y) + stats.norm.logpdf(steps), axis=1) for y in seen
        )
        weight = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
        return weight @ grid, np.sqrt(weight @ grid**2 - (weight @ grid) ** 2)

    counted = stats.poisson.logpmf(true, rate[..., None])
    mean, spread = posterior(
        lambda y: logsumexp(counted + stats.dlaplace.logpmf(y - true, 1 / 4.0), axis=-1)
    )
    twin, _ = posterior(lambda y: stats.poisson.logpmf(max(y, 0), rate))
    with pm.Model():
        centre = pm.Normal("centre", 1, 1)
        group = pm.Normal("group", 0, 1, shape=3)
        NoisyCounts(
            "noisy",
            pm.math.exp(centre + 0.7 * group),
            noise=("laplace", 4.0),
            observed=seen,
        )
        settings = {
            "chains": 2,
            "cores": 1,
            "nuts_sampler": "pymc",
            "progressbar": False,
            "quiet": True,
        }
        drawn = pm.sample(
            1_000, tune=500, random_seed=3, target_accept=0.9, **settings
        ).posterior["centre"]
    assert abs(float(drawn.mean()) - mean) < 0.2 * spread < abs(twin - mean)
    assert float(drawn.std()) == pytest.approx(spread, rel=0.15)


def test_what_noisy_counts_refuse():
    axes = (MarginAxis(columns=("a",), size=3),)
    tied = MarginLaw(
        axes=axes, law="gaussian", scale=2.0, variance=4.0, rows=2, differences=True
    )
    laws = {
        "share noise": tied,
        "law of the noise": ("cauchy", 1.0),
        "above 0": ("laplace", 0.0),
    }
    with pm.Model():
        for message, law in laws.items():
            refuses(message, NoisyCounts, "noisy", 3.0, noise=law, observed=[1, 2])
    with pytest.raises(pm.logprob.utils.ParameterValueError, match="scale > 0"):
        pm.logp(DiscreteLaplace.dist(0, -1.0), 0).eval()
