"""Slopes that differ by group: the joint posterior of several effects of each group,
against fine grids and NUTS on the same noisy numbers, and models as they are written.
"""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy.special import logsumexp
from scipy.stats import chi2, gamma, norm
from tables import refuses

import pdips
from pdips import Schema
from pdips.groups import hyperparameters, release_of_groups
from pdips.groups.design import GroupDesign
from pdips.groups.group_sums import GroupSums
from pdips.groups.hierarchy import Hierarchy, Slopes, Spread
from pdips.groups.hyperparameters import FAR_BELOW, HyperPosterior
from pdips.groups.noisy_groups import NoisyGroups
from pdips.groups.quadrature import Common, GroupQuadrature, SizeLaw
from pdips.groups.release_of_groups import GroupResult
from pdips.sampling import mechanism_of, source_of_groups

# PyMC's initial points of correlations are compiled, with or without BLAS
pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

NOISE = 3.0
YEARS = np.arange(3)
DEVIATION = 2.0
MEANS = np.array([1.0, 0.8])
ROOT = np.linalg.cholesky(np.array([[1.5**2, -0.6], [-0.6, 0.8**2]]))
"""Of an intercept and a slope."""
FACTORS = np.column_stack([np.ones(3), YEARS])
SIZES = SizeLaw(40.0, 1.5, 0.05)


def schema_of(n_sites, *, public=False):
    known = {"public": public}
    columns = {
        "pay": {"lower": -10, "upper": 10},
        "site": {"lower": 0, "upper": n_sites - 1, "integer": True} | known,
        "year": {"lower": 0, "upper": 2, "integer": True} | known,
    }
    return Schema.model_validate({"columns": columns})


def simulated(
    n_sites,
    rng,
    *,
    noise=NOISE,
    public=False,
    means=MEANS,
    root=ROOT,
    deviation=DEVIATION,
):
    """Return noisy numbers of sites by year, and the sites' effects."""
    schema = schema_of(n_sites, public=public)
    design = GroupDesign.of(schema, "pay", "normal", ("site",), ("year",))
    effects = means + rng.standard_normal((n_sites, 2)) @ root.T
    expected = rng.gamma(SIZES.shape, 3 * SIZES.mean / SIZES.shape, n_sites)
    shares = np.array([0.5, 0.3, 0.2])
    sizes = rng.poisson(
        expected[:, None] * shares * rng.gamma(20, 1 / 20, (n_sites, 3))
    )
    cell = np.repeat(np.arange(3 * n_sites), sizes.ravel())
    at = (effects @ FACTORS.T).ravel()[cell]
    upper = design.upper_steps(rng.normal(at, deviation))
    steps = design.steps
    parts = [upper] if public else [steps - upper, upper]
    ends = [np.bincount(cell, part, minlength=3 * n_sites) for part in parts]
    exact = np.concatenate(ends)
    noisy = np.rint(exact + rng.normal(0, noise * steps, len(exact)))
    squares = ((2 * upper / steps - 1) ** 2).sum() + rng.normal(0, 5)
    measured = NoisyGroups.of_ends(
        design,
        noisy.astype(np.int64),
        (noise * steps) ** 2,
        squares=(float(squares), 25.0),
        n_records=int(sizes.sum()),
        public_sizes=sizes.ravel() if public else None,
    )
    return measured, effects


def common_of(root=ROOT, *, public=False):
    base = FACTORS @ MEANS
    slopes = Slopes(FACTORS @ root, MEANS, root)
    middle = float(base.mean())
    spread = Spread(middle, 1.0, DEVIATION, base - middle, slopes)
    return Common(spread, None if public else SIZES)


def brute_force(quadrature, common, site):
    """Log evidence, means and covariance of one site's standard normal effects, on fine
    grids: of what the site expects and of both effects; sizes are summed over, too.
    """
    noisy = quadrature.noisy
    spread = common.spread
    along = np.linspace(-5, 5, 61)
    first, second = (mesh.ravel() for mesh in np.meshgrid(along, along, indexing="ij"))
    points = np.column_stack([first, second])
    log_prior = norm.logpdf(points).sum(axis=1) + 2 * np.log(along[1] - along[0])
    predictors = spread.mean + spread.offsets + points @ spread.slopes.loadings.T
    means = predictors / 10
    within = (DEVIATION / 10) ** 2
    loud = np.sqrt(noisy.size_variance)
    totals = np.array([noisy.sizes[3 * site : 3 * site + 3].sum()])
    log_total = np.zeros(1)
    if common.sizes is not None:
        edges = np.linspace(0, max(totals[0] * 2, 0) + 20 * loud, 121)
        totals = (edges[1:] + edges[:-1]) / 2
        scale = 3 * SIZES.mean / SIZES.shape
        log_total = np.log(np.diff(gamma.cdf(edges, SIZES.shape, scale=scale)))
    logs = log_total[:, None] + log_prior
    for year in YEARS:
        cell = 3 * site + year
        for row, total in enumerate(totals):
            expected = total * quadrature.shares[year]
            sizes = noisy.sizes[cell : cell + 1]
            log_size = np.zeros(1)
            if common.sizes is not None:
                about = np.sqrt(expected * (1 + SIZES.unevenness * expected))
                sizes = expected + about * np.linspace(-5, 5, 25)
                log_size = norm.logpdf(sizes, expected, about) + np.log(about * 10 / 24)
                log_size += norm.logpdf(noisy.sizes[cell], sizes, loud)
            else:
                expected = sizes[0]
            spread_of = np.sqrt(expected * within + noisy.sum_variance)
            at = sizes[:, None] * means[:, year]
            sums = norm.logpdf(noisy.sums[cell], at, spread_of)
            logs[row] += logsumexp(log_size[:, None] + sums, axis=0)
    total = logsumexp(logs)
    weights = np.exp(logsumexp(logs, axis=0) - total)
    middle = weights @ points
    off = points - middle
    return total, middle, (off * weights[:, None]).T @ off


@pytest.mark.parametrize("public", [False, True])
def test_joint_moments_of_effects_are_those_of_fine_grids(public):
    rng = np.random.default_rng(3)
    n_sites = 6
    noisy, _ = simulated(n_sites, rng, public=public)
    noisy = replace(noisy, squares=None)
    common = common_of(public=public)
    quadrature = GroupQuadrature(noisy)
    quadrature.locate(common)
    means, covariances, sizes = quadrature.joint_moments(common)
    exact = [brute_force(quadrature, common, site) for site in range(n_sites)]
    evidence = sum(total for total, _, _ in exact)
    assert quadrature.evidence(common) == pytest.approx(evidence, abs=0.3)
    for site, (_, middle, covariance) in enumerate(exact):
        assert np.abs(means[site] - middle).max() < 0.05
        ratio = np.sqrt(np.diag(covariances[site]) / np.diag(covariance))
        assert np.abs(ratio - 1).max() < 0.05
        both, other = (
            each[0, 1] / np.sqrt(each[0, 0] * each[1, 1])
            for each in (covariances[site], covariance)
        )
        assert abs(both - other) < 0.05
    drawn, drawn_sizes = quadrature.sample(common, 4_000, rng)
    assert np.abs(drawn.mean(axis=0) - means).max() < 0.08
    assert (
        np.abs(drawn.std(axis=0) / np.sqrt(np.diagonal(covariances, 0, 1, 2)) - 1).max()
        < 0.08
    )
    assert np.abs(drawn_sizes.mean(axis=0) / np.maximum(sizes, 1) - 1).max() < 0.15
    # the broken twin: one group's block is forgotten
    sums = noisy.sums.copy()
    sums[:3] = sums[3:6]
    twin = GroupQuadrature(replace(noisy, sums=sums))
    twin.locate(common)
    assert np.abs(twin.joint_moments(common)[0][0] - exact[0][1]).max() > 0.05


class Known(Hierarchy):
    """The law that tables are drawn by, on scales on which it can be searched."""

    start = np.array([*MEANS, *np.log([1.5, 0.8, DEVIATION]), np.arctanh(-0.5)])
    effects: ClassVar = {"u": 0}
    terms = ("intercept", "slope")

    def spread(self, place):
        first, second, deviation = np.exp(place[2:5])
        rho = np.tanh(place[5])
        root = np.array([[first, 0], [rho * second, np.sqrt(1 - rho**2) * second]])
        base = FACTORS @ place[:2]
        middle = float(base.mean())
        slopes = Slopes(FACTORS @ root, place[:2], root)
        return Spread(middle, 1.0, float(deviation), base - middle, slopes)

    def log_prior(self, place):
        off = place[:2] / 3
        scales = np.exp(place[2:5])
        # half-normal with a deviation of 3, uniform for the correlation
        jacobians = place[2:5].sum() + np.log1p(-(np.tanh(place[5]) ** 2))
        return float(-(off**2).sum() / 2 - (scales**2).sum() / 18 + jacobians)

    def named(self, places, predictors):
        return {}


def intervals(noisy, common):
    """Posterior means and deviations of a site's effects as the model has them."""
    quadrature = GroupQuadrature(noisy)
    quadrature.locate(common)
    standard, covariances, _ = quadrature.joint_moments(common)
    slopes = common.spread.slopes
    deviations = np.sqrt(
        np.diagonal(slopes.root @ covariances @ slopes.root.T, 0, 1, 2)
    )
    return slopes.natural(standard), deviations


def without_noise_on_sizes(noisy):
    """The broken twin: noisy sizes are taken as if they had no noise."""
    return replace(noisy, size_variance=0.0, sizes=np.maximum(noisy.sizes, 0.0))


def test_noise_on_sizes_is_part_of_the_intervals_of_effects():
    # means near an end of the range, where it matters most; 2,400 effects, two of a
    # site: .95 leaves the range once in 500 tests
    rng = np.random.default_rng(17)
    means = np.array([8.0, -0.1])
    root = ROOT / 3
    noisy, effects = simulated(
        1_200, rng, noise=1.0, means=means, root=root, deviation=0.3
    )
    noisy = replace(noisy, squares=None)
    base = FACTORS @ means
    middle = float(base.mean())
    slopes = Slopes(FACTORS @ root, means, root)
    spread = Spread(middle, 1.0, 0.3, base - middle, slopes)

    def covered(given, sizes):
        found, deviations = intervals(given, Common(spread, sizes))
        return (np.abs(effects - found) < 1.96 * deviations).mean()

    assert 0.932 < covered(noisy, SIZES) < 0.968
    assert covered(without_noise_on_sizes(noisy), None) < 0.92


@pytest.mark.slow
def test_intervals_of_effects_and_of_common_parameters_cover():
    # 4 tables of 300 sites: 2,400 effects, which share common parameters in tables
    covered = []
    off = []
    for number in range(4):
        rng = np.random.default_rng([number, 51])
        noisy, effects = simulated(300, rng)
        result = GroupResult.of(noisy, Known(), rng)
        table = result.effects_table()
        for term, truth in zip(Known.terms, effects.T, strict=True):
            away = np.abs(truth - table[term]) / table[f"{term}_sd"]
            covered.append((away < 1.96).mean())
        places = result.weighted.resampled(400, rng)[:, :6]
        off.append((places.mean(axis=0) - Known.start) / places.std(axis=0))
    assert 0.92 < np.mean(covered) < 0.98
    # 24 nearly normal numbers: all but one seed in 2,000
    assert np.abs(off).max() < 4


def least_squares(noisy, effects_root, sizes):
    """Mean and precision of the two common means by generalised least squares of noisy
    sums in the outcome's unit, with numbers of records and variances known.
    """
    told = np.zeros((2, 2))
    pull = np.zeros(2)
    loud = 100 * noisy.sum_variance
    sums = 10 * noisy.sums.reshape(-1, 3)
    for size, total in zip(sizes.reshape(-1, 3), sums, strict=True):
        given = FACTORS * size[:, None]
        spread = given @ effects_root
        own = np.diag(size * DEVIATION**2 + loud)
        weights = np.linalg.inv(spread @ spread.T + own)
        told += given.T @ weights @ given
        pull += given.T @ weights @ total
    return np.linalg.solve(told, pull), told


def quadratic(noisy, sizes):
    """Mean and precision of the common means by the evidence, which is a quadratic form
    of them, with all else known.
    """
    quadrature = GroupQuadrature(noisy)
    step = 0.05

    def evidence(means):
        base = FACTORS @ means
        middle = float(base.mean())
        slopes = Slopes(FACTORS @ ROOT, means, ROOT)
        spread = Spread(middle, 1.0, DEVIATION, base - middle, slopes)
        return quadrature.evidence(Common(spread, sizes))

    quadrature.locate(common_of(public=sizes is None))
    ways = step * np.array([[1, 0], [0, 1], [1, 1]])
    up, down = (
        np.array([evidence(MEANS + sign * way) for way in ways]) for sign in (1, -1)
    )
    first, second, both = (2 * evidence(MEANS) - up - down) / step**2
    mixed = (both - first - second) / 2
    precision = np.array([[first, mixed], [mixed, second]])
    slope = (up - down)[:2] / (2 * step)
    return MEANS + np.linalg.solve(precision, slope), precision


def test_common_means_are_those_of_least_squares_where_sizes_are_public():
    noisy, _ = simulated(60, np.random.default_rng(21), public=True)
    noisy = replace(noisy, squares=None)
    means, precision = quadratic(noisy, None)
    exact, told = least_squares(noisy, ROOT, noisy.sizes)
    assert precision == pytest.approx(told, rel=1e-5)
    assert means == pytest.approx(exact, abs=1e-5)
    # the broken twin: that sites differ isn't part of what is unknown of their means
    _, twin = least_squares(noisy, 0 * ROOT, noisy.sizes)
    assert twin[0, 0] > 1.3 * told[0, 0]


def test_common_means_are_as_far_off_as_their_posterior_says():
    """60 tables of 60 sites, whose sizes have noise. Squared distances are a chi-square
    with 120 degrees of freedom, which leaves the range once in 1,000 tests.
    """
    distances = []
    twins = []
    for number in range(60):
        rng = np.random.default_rng([number, 77])
        noisy, _ = simulated(60, rng, noise=1.0)
        noisy = replace(noisy, squares=None)
        means, precision = quadratic(noisy, SIZES)
        off = means - MEANS
        distances.append(off @ precision @ off)
        sizes = np.maximum(noisy.sizes, 0.0)
        twin_means, told = least_squares(noisy, 0 * ROOT, sizes)
        off = twin_means - MEANS
        twins.append(off @ told @ off)
    lower, upper = chi2.ppf([0.0005, 0.9995], 120)
    assert lower < np.sum(distances) < upper
    # the broken twin: sites don't differ
    assert np.sum(twins) > upper


def test_a_search_that_goes_too_far_ends_no_release():
    noisy, _ = simulated(20, np.random.default_rng(2))
    hyper = HyperPosterior(noisy, Known(), np.random.default_rng(0))
    place = hyper.start()
    assert hyper.log_density(hyper.quadrature, place) > -1e6
    place[4] = 400.0  # the log of a deviation whose square no number holds
    assert hyper.log_density(hyper.quadrature, place) == -FAR_BELOW


@pytest.mark.slow
def test_effects_are_as_uncertain_as_nuts_has_them():
    """The same noisy numbers, with the numbers of records of all sites and years
    sampled.
    """
    rng = np.random.default_rng(8)
    n_sites = 15
    noisy, _ = simulated(n_sites, rng)
    noisy = replace(noisy, squares=None, n_records=None)
    common = common_of()
    by_sums, deviations = intervals(noisy, common)
    quadrature = GroupQuadrature(noisy)
    quadrature.locate(common)
    rate = SIZES.shape / (3 * SIZES.mean)
    shape = (n_sites, 3)
    with pm.Model():
        z = pm.Normal("z", shape=(n_sites, 2))
        mean = (MEANS + z @ ROOT.T) @ FACTORS.T / 10
        total = pm.Gamma("total", SIZES.shape, rate, shape=n_sites)
        expected = total[:, None] * quadrature.shares
        about = pm.math.sqrt(expected * (1 + SIZES.unevenness * expected))
        sizes = expected + about * pm.Normal("about", shape=shape)
        loud = np.sqrt(noisy.size_variance)
        pm.Normal("n", sizes, loud, observed=noisy.sizes.reshape(shape))
        within = expected * (DEVIATION / 10) ** 2 + noisy.sum_variance
        sums = noisy.sums.reshape(shape)
        pm.Normal("t", sizes * mean, pm.math.sqrt(within), observed=sums)
        drawn = pm.sample(
            1_000,
            tune=1_000,
            chains=2,
            cores=1,
            random_seed=1,
            progressbar=False,
            target_accept=0.9,
        )
    z = drawn.posterior["z"].stack(sample=("chain", "draw")).to_numpy()
    u = MEANS[:, None] + np.einsum("pq,gqd->gpd", ROOT, z)
    assert np.abs(by_sums - u.mean(axis=2)).max() < 0.15 * deviations.max()
    ratio = deviations / u.std(axis=2)
    assert 0.97 < ratio.mean() < 1.03
    assert np.abs(ratio - 1).max() < 0.1
    _, covariances, _ = quadrature.joint_moments(common)
    both = ROOT @ covariances @ ROOT.T
    by_closed = both[:, 0, 1] / np.sqrt(both[:, 0, 0] * both[:, 1, 1])
    by_nuts = np.array([np.corrcoef(draws)[0, 1] for draws in u])
    assert np.abs(by_closed - by_nuts).max() < 0.1


def test_the_sum_of_squares_has_the_law_that_the_other_numbers_give_it():
    rng = np.random.default_rng(7)
    common = common_of()
    off = []
    for _ in range(40):
        noisy, _ = simulated(40, rng)
        quadrature = GroupQuadrature(noisy)
        quadrature.locate(common)
        parts = [
            quadrature._of_squares(rows, block, common)
            for rows, block in quadrature._blocks(common)
        ]
        mean, variance, *_ = np.sum(parts, axis=0)
        off.append((noisy.squares - mean) / np.sqrt(variance + noisy.squares_variance))
    # mean and deviation of 40 normal numbers, four deviations wide each
    assert abs(np.mean(off)) < 4 / np.sqrt(40)
    assert 0.55 < np.std(off) < 1.45
    # the broken twin: squares are those of records without slopes
    flat = float(sum(noisy.sizes)) * (0.2**2 + (MEANS[0] / 10) ** 2)
    assert abs(noisy.squares - flat) > 4 * np.sqrt(variance)


def make(df):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 3, shape=2)
        tau = pm.HalfNormal("tau", 2, shape=2)
        z = pm.Normal("z", 0, 1, shape=(450, 2))
        site = df["site"].values
        a = mu[0] + tau[0] * z[:, 0]
        b = mu[1] + tau[1] * z[:, 1]
        sigma = pm.HalfNormal("sigma", 5)
        mean = a[site] + b[site] * df["year"].values
        pm.Normal("pay", mean, sigma, observed=df["pay"].values)
    return model


def correlated(df):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 3, shape=2)
        deviations = pm.HalfNormal.dist(2)
        chol, _, _ = pm.LKJCholeskyCov(
            "chol", n=2, eta=2, sd_dist=deviations, compute_corr=True
        )
        u = pm.MvNormal("u", mu, chol=chol, shape=(450, 2))
        site = df["site"].values
        sigma = pm.HalfNormal("sigma", 5)
        mean = u[site, 0] + u[site, 1] * df["year"].values
        pm.Normal("pay", mean, sigma, observed=df["pay"].values)
    return model


def planned(model, schema, **options):
    source = source_of_groups(model, schema, options)
    mechanism = GroupSums(epsilon=2, model=source)
    return mechanism, mechanism.plan(schema).design


@pytest.mark.parametrize(
    ("model", "effects", "terms"),
    [
        (
            "pay ~ year + (1 + year | site)",
            {"1|site": 0, "year|site": 0},
            ("1|site", "year|site"),
        ),
        ("pay ~ (0 + year | site)", {"year|site": 0}, ("year|site",)),
        (make, {"z": 0}, ("z[0]", "z[1]")),
        (correlated, {"u": 0}, ("u[0]", "u[1]")),
    ],
)
def test_slopes_are_recognised_however_they_are_spelt(model, effects, terms):
    mechanism, design = planned(model, schema_of(450))
    assert (design.effect_columns, design.within) == (("site",), ("year",))
    hierarchy = mechanism.hierarchy(design)
    assert (dict(hierarchy.effects), hierarchy.terms) == (effects, terms)
    rng = np.random.default_rng(1)
    place = hierarchy.start + 0.2 * rng.standard_normal(len(hierarchy.start))
    spread = hierarchy.spread(place)
    # cells' means are those of the effects as the model has them
    standard = rng.standard_normal((1, len(terms)))
    entries = spread.slopes.natural(standard)
    factors = FACTORS[:, -len(terms) :]
    at = spread.predictors(standard, YEARS)
    slopes = entries[0] @ factors.T
    if callable(model):
        scale = spread.slopes.loadings @ np.linalg.inv(spread.slopes.root)
        slopes = entries[0] @ scale.T
    base = at - slopes
    assert np.ptp(np.diff(base)) < 1e-6
    if model is correlated:
        assert abs(spread.slopes.root[1, 0]) > 1e-3
        assert np.allclose(base, 0)


def records(n=20_000):
    rng = np.random.default_rng(4)
    site = rng.integers(0, 450, n)
    year = rng.integers(0, 3, n)
    effects = MEANS + rng.standard_normal((450, 2)) @ ROOT.T
    at = effects[site, 0] + effects[site, 1] * year
    pay = np.clip(rng.normal(at, DEVIATION), -10, 10)
    return pd.DataFrame({"pay": pay, "site": site, "year": year}), effects


@pytest.mark.slow
def test_a_correlated_intercept_and_slope_of_each_site_are_in_the_tree_and_its_table():
    frame, effects = records()
    tree = pdips.sample(
        correlated,
        frame,
        schema_of(450),
        epsilon=4,
        seed=1,
        sets=2,
        progress=False,
        mechanism="group-sums",
    )
    posterior = tree["posterior"]
    assert posterior["u"].dims == ("chain", "draw", "site", "u_dim_1")
    correlation = posterior["chol_corr"][..., 0, 1].to_numpy().ravel()
    assert abs(correlation.mean() + 0.5) < 3 * correlation.std()
    # 900 intervals of 95 %, and common parameters that all of them share
    low, high = posterior["u"].quantile([0.025, 0.975], ("chain", "draw")).to_numpy()
    assert 0.92 < ((low < effects) & (effects < high)).mean() < 0.98
    table = tree.pdips.release.tables["effects"]
    assert [*table] == [
        "site",
        "u[0]",
        "u[0]_sd",
        "u[1]",
        "u[1]_sd",
        "u[0]:u[1]_correlation",
    ]
    assert (table["u[0]:u[1]_correlation"].abs() < 1).all()
    drawn = posterior["u"].mean(("chain", "draw")).to_numpy()
    assert np.abs(table[["u[0]", "u[1]"]].to_numpy() - drawn).max() < 0.25
    [one, _] = tree.pdips.release.sets
    by_year = one.groupby("year")["pay"].mean() - frame.groupby("year")["pay"].mean()
    # of 6,700 records a year, and of noise on 450 sites
    assert by_year.abs().max() < 0.3


@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        ("ill ~ (1 + year | site)", {"family": "bernoulli"}, "identity link alone"),
        ("visits ~ (year | site)", {"family": "poisson"}, "log link a group's mean"),
        ("pay ~ (1 + height | site)", {}, "give the column levels"),
        ("pay ~ (1 | unit) + (1 | firm)", {}, "are crossed"),
    ],
)
def test_slopes_with_other_links_and_crossed_groups_are_refused_with_the_reason(
    model, settings, said
):
    columns = dict(schema_of(450).columns)
    columns["ill"] = {"lower": 0, "upper": 1, "integer": True}
    columns["visits"] = {"lower": 0, "upper": 20, "integer": True}
    columns["height"] = {"lower": 1, "upper": 2}
    columns["firm"] = {"lower": 0, "upper": 999, "integer": True}
    columns["unit"] = {"lower": 0, "upper": 699, "integer": True}
    named = {name: column for name, column in columns.items() if name in model}
    schema = Schema(columns=named)
    assert mechanism_of(model, schema) is GroupSums
    refuses(said, planned, model, schema, **settings)


def test_of_very_many_groups_the_tree_has_common_parameters_alone(monkeypatch):
    rng = np.random.default_rng(2)
    noisy, _ = simulated(40, rng)
    mechanism, design = planned(make, schema_of(450))
    hierarchy = mechanism.hierarchy(design)
    search = replace(hyperparameters.SEARCH, rounds=1, most_rounds=1)
    monkeypatch.setattr(hyperparameters, "SEARCH", search)
    monkeypatch.setattr(release_of_groups, "MOST_IN_TREE", 10)
    result = GroupResult.of(noisy, hierarchy, rng)
    posterior, _ = result.draws(rng)
    assert {*posterior.data_vars} == {"mu", "tau", "sigma"}
    assert len(result.effects_table()) == 40


def test_a_covariance_that_has_no_root_has_no_density():
    mechanism, design = planned(correlated, schema_of(450))
    hierarchy = mechanism.hierarchy(design)
    place = np.full(len(hierarchy.start), 400.0)
    with np.errstate(all="ignore"):
        assert not np.isfinite(hierarchy.spread(place).slopes.root).all()
