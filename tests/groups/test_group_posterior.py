"""The posterior of groups: against brute force, against NUTS on the same numbers, and
by the coverage of its intervals.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from group_tables import DEVIATION, TRUTH, simulated, with_exact_sizes
from scipy.special import logsumexp
from scipy.stats import gamma, norm

from pdips import Schema, Table
from pdips.groups import hyperparameters
from pdips.groups.families import Poisson
from pdips.groups.group_sums import GroupSums
from pdips.groups.hierarchy import PlainHierarchy, Spread
from pdips.groups.hyperparameters import HyperPosterior
from pdips.groups.quadrature import Common, GroupQuadrature, SizeLaw
from pdips.groups.release_of_groups import GroupResult

FAMILIES = ("normal", "bernoulli", "poisson")


def brute_force(noisy, common, group):
    """Log evidence, mean and deviation of one group's predictor, on a fine grid."""
    spread = common.spread
    outcome = GroupQuadrature(noisy).outcome(common)
    loud = np.sqrt(noisy.size_variance)
    top = max(noisy.sizes[group] + 8 * loud, 8 * loud)
    edges = np.linspace(0, top, 2_001)
    sizes = (edges[1:] + edges[:-1]) / 2
    scale = common.sizes.mean / common.sizes.shape
    log_mass = gamma.logpdf(sizes, common.sizes.shape, scale=scale)
    log_mass += np.log(edges[1])
    # the density may be infinite at 0
    log_mass[0] = gamma.logcdf(edges[1], common.sizes.shape, scale=scale)
    log_size = log_mass + norm.logpdf(noisy.sizes[group], sizes, loud)
    reach = np.linspace(-8, 8, 1_601)
    predictors = spread.mean + spread.spread * reach
    mean, variance = outcome.moments(predictors)
    within = sizes[:, None] * variance + noisy.sum_variance
    logs = norm.logpdf(noisy.sums[group], sizes[:, None] * mean, np.sqrt(within))
    step = predictors[1] - predictors[0]
    log_prior = norm.logpdf(predictors, spread.mean, spread.spread) + np.log(step)
    logs = logs + log_size[:, None] + log_prior
    total = logsumexp(logs)
    weights = np.exp(logsumexp(logs, axis=0) - total)
    first = weights @ predictors
    return total, first, np.sqrt(weights @ (predictors - first) ** 2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [0.5, 1.2, 20.0])
@pytest.mark.parametrize("noise", [1.0, 9.0])
def test_sums_over_a_group_are_those_of_a_fine_grid(family, shape, noise):
    rng = np.random.default_rng(3)
    noisy, _, _ = simulated(family, 12, rng, noise=noise)
    noisy = replace(noisy, squares=None)
    mean, spread = TRUTH[family]
    common = Common(Spread(mean, spread, DEVIATION), SizeLaw(35.0, shape))
    quadrature = GroupQuadrature(noisy)
    quadrature.locate(common)
    means, deviations, _ = quadrature.moments(common)
    exact = np.array([brute_force(noisy, common, group) for group in range(12)])
    assert quadrature.evidence(common) == pytest.approx(exact[:, 0].sum(), abs=0.4)
    assert np.abs(means - exact[:, 1]).max() < 0.05 * spread
    assert np.abs(deviations / exact[:, 2] - 1).max() < 0.06
    drawn, _ = quadrature.sample(common, 4_000, rng)
    assert np.abs(drawn.mean(axis=0) - means).max() < 0.1 * spread
    assert np.abs(drawn.std(axis=0) / deviations - 1).max() < 0.1


def test_a_count_beyond_its_bound_counts_as_the_bound():
    rates = np.array([0.2, 3.0, 9.0])
    mean, variance = Poisson(5.0).moments(np.log(rates))
    draws = np.minimum(np.random.default_rng(0).poisson(rates, (400_000, 3)), 5)
    on_scale = 2 * draws / 5 - 1
    assert np.abs(on_scale.mean(axis=0) - mean).max() < 0.004
    assert np.abs(on_scale.var(axis=0) / variance - 1).max() < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("family", ["normal", "bernoulli"])
def test_effects_are_as_uncertain_as_nuts_has_them(family):
    # the same likelihood, sampled with all its latent sizes and predictors
    rng = np.random.default_rng(8)
    noisy, _, _ = simulated(family, 30, rng, average=60.0)
    noisy = replace(noisy, squares=None, n_records=None)
    hierarchy = PlainHierarchy.of(noisy.design)
    result = GroupResult.of(noisy, hierarchy, rng)
    with pm.Model():
        mean = pm.Normal("mean", hierarchy.middle, hierarchy.scale)
        spread = pm.HalfNormal("spread", hierarchy.spread_scale)
        guess = np.log(result.hyper.size_guess)
        log_size = pm.Normal("log_size", guess, 1.5)
        log_shape = pm.Normal("log_shape", 0, 1)
        shape = pm.math.exp(log_shape)
        rate = shape / pm.math.exp(log_size)
        sizes = pm.Gamma("sizes", shape, rate, shape=30)
        predictors = pm.Normal("predictors", mean, spread, shape=30)
        if family == "normal":
            sigma = pm.HalfNormal("sigma", hierarchy.deviation_scale)
            on_scale = predictors / 10
            variance = (sigma / 10) ** 2
        else:
            on_scale = pm.math.tanh(predictors / 2)
            variance = 1 - on_scale**2
        pm.Normal("n", sizes, np.sqrt(noisy.size_variance), observed=noisy.sizes)
        within = sizes * variance + noisy.sum_variance
        pm.Normal("t", sizes * on_scale, pm.math.sqrt(within), observed=noisy.sums)
        drawn = pm.sample(
            1_500,
            tune=1_500,
            chains=2,
            cores=1,
            random_seed=1,
            progressbar=False,
            target_accept=0.95,
        )
    by_nuts = drawn.posterior["predictors"].stack(sample=("chain", "draw"))
    _, by_sums, _ = result.sample(1_000, rng)
    ratio = by_sums.std(axis=0) / by_nuts.std("sample").to_numpy()
    assert 0.9 < ratio.mean() < 1.1
    assert np.abs(ratio - 1).max() < 0.3
    off = by_sums.mean(axis=0) - by_nuts.mean("sample").to_numpy()
    assert np.abs(off).max() < 0.3 * by_sums.std()


def coverage(family, n_tables, n_groups, **settings):
    """The share of groups whose interval holds their predictor."""
    covered = []
    for number in range(n_tables):
        rng = np.random.default_rng([number, 51])
        noisy, predictors, _ = simulated(family, n_groups, rng, **settings)
        result = GroupResult.of(noisy, PlainHierarchy.of(noisy.design), rng)
        mean, deviation, _, _ = result.moments
        covered.append(np.abs(predictors - mean) < 1.96 * deviation)
    return float(np.mean(covered))


def test_intervals_of_normal_groups_cover_on_average():
    # 1,600 groups: a coverage of .95 leaves this range once in 500 tests, were they
    # independent; tables share common parameters, which doubles their variance
    assert 0.925 < coverage("normal", 4, 400, noise=8.0) < 0.975


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_intervals_of_other_groups_cover_on_average(family):
    assert 0.925 < coverage(family, 3, 400, noise=8.0) < 0.975


KNOWN = {"normal": (8.5, 0.5), "bernoulli": (-3.0, 0.6), "poisson": (0.5, 0.4)}
"""Groups whose mean is near an end of the range, where noise on sizes matters most."""


@pytest.mark.parametrize("family", FAMILIES)
def test_noise_on_sizes_is_part_of_the_intervals(family):
    # 4,000 groups: a coverage of .95 leaves the range once in 2,000 tests
    rng = np.random.default_rng(17)
    truth = KNOWN[family]
    noisy, predictors, _ = simulated(
        family, 4_000, rng, truth=truth, noise=6.0, average=200.0, deviation=0.2
    )
    common = Common(Spread(*truth, 0.2), SizeLaw(200.0, 1.2))

    def covered(given, common):
        quadrature = GroupQuadrature(given)
        quadrature.locate(common)
        mean, deviation, _ = quadrature.moments(common)
        return np.abs(predictors - mean) < 1.96 * deviation

    assert 0.938 < covered(replace(noisy, squares=None), common).mean() < 0.962
    # the broken twin: noisy sizes are taken as if they had no noise
    twin = covered(
        replace(with_exact_sizes(noisy), squares=None), Common(common.spread, None)
    )
    assert twin.mean() < 0.935


def test_the_spread_is_integrated_over_where_it_is_near_0():
    rng = np.random.default_rng(2)
    noisy, predictors, _ = simulated("normal", 60, rng, truth=(1.0, 0.02))
    result = GroupResult.of(noisy, PlainHierarchy.of(noisy.design), rng)
    places, _, _ = result.sample(400, rng)
    spread = np.exp(places[:, 1])
    assert np.quantile(spread, 0.05) < 0.3 * np.quantile(spread, 0.95)
    mean, deviation, _, left = result.moments
    # plugged in, a spread of about 0 would leave no group any interval
    assert deviation.min() > 0.05
    assert np.mean(np.abs(predictors - mean) < 1.96 * deviation) > 0.9
    assert left.min() > 0.5


def test_common_parameters_are_found_and_of_many_groups_a_part_is_read(monkeypatch):
    rng = np.random.default_rng(5)
    noisy, _, _ = simulated("normal", 2_000, rng)
    whole = HyperPosterior(noisy, PlainHierarchy.of(noisy.design), rng)
    draws = whole.draws()
    centre = draws.weights @ draws.places
    assert abs(centre[0] - 1.0) < 0.25
    assert abs(np.exp(centre[1]) - 1.5) < 0.25
    assert abs(np.exp(centre[2]) - DEVIATION) < 0.1
    assert draws.effective > 100
    few = replace(whole_search(), most_groups=(500, 500))
    monkeypatch.setattr("pdips.groups.hyperparameters.SEARCH", few)
    part = HyperPosterior(noisy, PlainHierarchy.of(noisy.design), rng)
    assert part.read.n_groups == 500
    other = part.draws()
    assert abs((other.weights @ other.places)[0] - 1.0) < 0.4

    def variance(given):
        middle = given.weights @ given.places
        return given.weights @ (given.places[:, 1] - middle[1]) ** 2

    # fewer groups say less
    assert variance(other) > 1.5 * variance(draws)


def whole_search():
    from pdips.groups.hyperparameters import SEARCH

    return SEARCH


def test_direct_intervals_cover_and_are_the_whole_range_where_nothing_is_known():
    rng = np.random.default_rng(6)
    noisy, predictors, _ = simulated("bernoulli", 2_000, rng, noise=3.0)
    lower, upper = noisy.direct()
    mean = np.tanh(predictors / 2)
    covered = (lower <= mean) & (mean <= upper)
    # of each group by itself, those with extreme rates too
    assert covered.mean() > 0.93
    assert covered[np.argsort(predictors)[-200:]].mean() > 0.9
    unknown = noisy.sizes < 3
    assert unknown.any()
    assert (upper - lower)[unknown].mean() > 1.9


def test_common_parameters_have_draws_enough_where_groups_are_nearly_empty(
    monkeypatch, caplog
):
    """A hundredth of the records that noise stands for: the posterior is wide and bent,
    and four rounds of draws (the broken twin) end with one that has all the weight.
    """
    schema = Schema(
        columns={
            "y": {"levels": [0, 1]},
            "g": {"lower": 0, "upper": 399, "integer": True},
        }
    )
    group = np.random.default_rng(0).integers(0, 400, 40)
    table = Table(pd.DataFrame({"y": np.zeros(40, int), "g": group}), schema)
    made = GroupSums(epsilon=1)

    def effective() -> float:
        _, record = made.release(table, rng=np.random.default_rng(1))
        return record.diagnostics["groups"]["effective"]

    enough = hyperparameters.SEARCH.enough
    assert effective() >= enough
    assert "independent draws" not in caplog.text
    few = replace(hyperparameters.SEARCH, most_rounds=hyperparameters.SEARCH.rounds)
    monkeypatch.setattr(hyperparameters, "SEARCH", few)
    assert effective() < enough / 2
    assert "independent draws" in caplog.text
