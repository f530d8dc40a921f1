"""Noise-aware posteriors against quadrature, against NUTS on the same model, and by
simulation-based calibration.

Each check of laws accepts a true one but once in a million (seeds are fixed) and comes
with a broken twin.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import simuk
import xarray as xr
from laws import ACCEPT, REJECT
from scipy import stats

from pdips import Schema, Table
from pdips.privacy.noise import RandomBits
from pdips.statistics import regression
from pdips.statistics.model import Options, RecordRequest, as_statistic_model, fit
from pdips.statistics.noisy_model import Evidence
from pdips.statistics.plan import StatisticPlan
from pdips.statistics.samplers import Lengths, recognise
from pdips_papers.modips import normal_moments
from pdips_papers.modips.normal_posteriors import noise_aware, plug_in
from pdips_papers.modips.proportions import Posteriors, inverted

COIN = Schema(columns={"a": {"levels": ["heads", "tails"]}})
NUMBER = Schema(columns={"y": {"lower": -5, "upper": 5}})
PRIORS = np.array([0.5, 0.5])
SHARE = "share of the first level"


def plan_of(model, schema, epsilon):
    asked = {
        "statistics": model.declared(schema, "replace-one"),
        "amount": Fraction(epsilon),
    }
    return StatisticPlan(
        schema=schema,
        neighbours="replace-one",
        budget="optimal",
        law="laplace",
        **asked,
    )


def measured_of(plan, n, **values):
    return replace(
        plan.tried(),
        n_records=n,
        values={name: np.array(each) for name, each in values.items()},
    )


def own_draws(model, given, n_draws, seed=0):
    """Draws of the sampler made for a model, by variable."""
    sampler = recognise(model.built(given), given)
    return sampler.draw(
        given, Lengths(draws=n_draws), np.random.default_rng(seed)
    ).values


def errors(draws, grid, density):
    """Return how far the shares of draws below nine quantiles are off, in standard
    errors of independent draws.
    """
    ends = np.interp(np.arange(1, 10) / 10, np.cumsum(density) / density.sum(), grid)
    p = np.arange(1, 10) / 10
    return np.abs((draws[:, None] < ends).mean(axis=0) - p) / np.sqrt(
        p * (1 - p) / len(draws)
    )


def coin_density(n, noisy, epsilon):
    """The posterior mass of a share on a grid that is fine at both ends, by brute
    force.
    """
    even = (np.arange(20_001) / 20_000) ** 3
    edges = even / (even + even[::-1])
    shares = (edges[1:] + edges[:-1]) / 2
    known = np.arange(n + 1)
    terms = (
        stats.binom.pmf(known[:, None], n, shares)
        * np.exp(-epsilon * np.abs(noisy - known))[:, None]
    )
    return shares, terms.sum(axis=0) * np.diff(stats.beta.cdf(edges, 1 / 3, 1 / 3))


@pytest.mark.parametrize(("n", "noisy", "epsilon"), [(40, -9, 0.1), (100, 61, 0.125)])
def test_a_coin_has_the_posterior_of_brute_force(n, noisy, epsilon):
    grid, density = coin_density(n, noisy, epsilon)
    cdf = np.cumsum(density) / density.sum()
    posteriors = Posteriors(n, Fraction(epsilon))
    mean, low, high = posteriors.interval(np.array([noisy]))
    assert mean[0] == pytest.approx(np.average(grid, weights=density), abs=2e-3)
    assert np.interp([low[0], high[0]], grid, cdf) == pytest.approx(
        [0.025, 0.975], abs=2e-3
    )
    model = as_statistic_model("bernoulli")
    given = Evidence(
        measured_of(plan_of(model, COIN, epsilon), n, counts=[noisy, n - noisy])
    )
    drawn = own_draws(model, given, 20_000)[SHARE]
    for each in (
        drawn,
        posteriors.draw(np.full(20_000, noisy), 1, np.random.default_rng(1))[:, 0],
    ):
        assert errors(each, grid, density).max() < 5.2  # 2 x 9 checks, one in a million
    # the broken twin: a quarter of the noise
    wrong = coin_density(n, noisy, 4 * epsilon)[1]
    assert errors(drawn, grid, wrong).max() > 7


def test_plug_in_coins_take_the_noisy_count_for_the_true_one():
    model = as_statistic_model("bernoulli")
    given = Evidence(
        measured_of(plan_of(model, COIN, 1), 40, counts=[-3, 43]), "plug-in"
    )
    drawn = own_draws(model, given, 20_000)[SHARE]
    assert stats.kstest(drawn, stats.beta(1 / 3, 40 + 1 / 3).cdf).pvalue > ACCEPT
    assert stats.kstest(drawn, stats.beta(1 / 3, 30 + 1 / 3).cdf).pvalue < REJECT


def normal_density(noisy, scales, n, power=1):
    """The posterior density of the standard deviation on a grid, by brute force over
    sums and sums of squares.
    """
    sd = (np.arange(400) + 0.5) / 200
    t = np.linspace(-1.5 * n, 1.5 * n, 401)[:, None]
    edges = 3 * n * (np.arange(1001) / 1000) ** 3  # fine near 0
    q = (edges[1:] + edges[:-1]) / 2
    of_t = np.exp(
        -(np.abs((np.atleast_1d(noisy[0]) - t) / scales[0]) ** power).sum(
            axis=1, keepdims=True
        )
        / power
    )
    of_q = of_t * np.exp(
        -(np.abs((noisy[1] - q - t**2 / n) / scales[1]) ** power) / power
    )
    density = []
    for s in sd:
        law = stats.norm.pdf(t[:, 0], 0, np.sqrt(n * s**2 + n**2 / 4))
        density.append(
            law
            @ of_q
            @ np.diff(stats.chi2.cdf(edges / s**2, n - 1))
            * np.exp(-2 * s**2)
        )
    return sd, np.array(density)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noisy", "scales"), [((3.0, 2.5), (5.0, 2.0)), ((-14.0, -1.0), (9.0, 4.0))]
)
def test_a_normal_law_has_the_posterior_of_brute_force(noisy, scales):
    grid, density = normal_density(noisy, scales, 20)
    many = np.tile(noisy, (20, 1))
    rng = np.random.default_rng(0)
    draws, worth = noise_aware(
        many, np.array(scales), 20.0, PRIORS, 1000, 64_000, 2000.0, rng
    )
    assert worth.min() > 2000
    assert errors(draws[..., 1].ravel(), grid, density).max() < 5.2
    # the broken twin: half the noise
    wrong = normal_density(noisy, (scales[0], scales[1] / 2), 20)[1]
    assert errors(draws[..., 1].ravel(), grid, wrong).max() > 7


@pytest.mark.parametrize(
    ("sums", "squares", "scales", "law", "power"),
    [
        ((-14.0, 6.0), -1.0, (9.0, 4.0), "laplace", 1),
        ((3.0,), 2.5, (5.0, 2.0), "gaussian", 2),
    ],
)
def test_a_regression_on_nothing_has_the_posterior_of_brute_force(
    sums, squares, scales, law, power
):
    # the mean alone, seen through one noisy sum or two of the same
    grid, density = normal_density((np.array(sums), squares), scales, 20, power)
    gram = np.full((1, 1), 20.0)
    model = regression.Regression(
        gram=gram, covariance=1 / gram, df=19.0, width=0.5, spread=0.5
    )
    seen = {
        "loads": np.full((len(sums), 1), 20.0),
        "sums": np.array(sums),
        "scales": np.full(len(sums), scales[0]),
    }
    noisy = regression.NoisyMoments(**seen, squares=squares, scale=scales[1], law=law)
    _, drawn = regression.noise_aware(model, noisy, 4000, np.random.default_rng(0))
    assert errors(drawn, grid, density).max() < 5.2
    _, wrong = normal_density(
        (np.array(sums), squares), (scales[0], scales[1] / 4), 20, power
    )
    assert errors(drawn, grid, wrong).max() > 7


def test_a_prior_mean_moves_coefficients_and_sums_alike():
    # b and its prior mean moved by c, sums and squares with them: the same posterior,
    # moved
    gram, found = np.full((1, 1), 20.0), []
    for seed, centre in ((1, 0.0), (2, 0.4)):
        model = regression.Regression(
            gram=gram,
            covariance=1 / gram,
            df=19.0,
            width=0.1,
            spread=0.5,
            centre=centre,
        )
        drawn, _ = regression.plug_in(
            model, np.array([0.1 + centre]), 2.0, 4000, np.random.default_rng(seed)
        )
        found.append(drawn[:, 0] - centre)
    assert stats.ks_2samp(*found).pvalue > ACCEPT
    assert stats.ks_2samp(found[0], found[1] + 0.05).pvalue < REJECT


def coin(model, rng):
    return measured_of(plan_of(model, COIN, "1/4"), 40, counts=[4, 36])


def normal(total, squares):
    return lambda model, rng: measured_of(
        plan_of(model, NUMBER, "1/2"), 1000, total=[total], squares=[squares]
    )


def line(model, rng):
    n = 500
    columns = {
        "g": {"levels": ["a", "b", "c"], "public": True},
        "x": {"lower": -1, "upper": 1, "public": True},
    }
    schema = Schema(columns=columns | {"y": {"lower": -5, "upper": 5}})
    frame = pd.DataFrame(
        {"g": rng.choice(["a", "b", "c"], n), "x": rng.uniform(-1, 1, n)}
    )
    frame["y"] = np.clip(
        1 + frame["x"] - 2 * (frame["g"] == "b") + rng.standard_normal(n), -5, 5
    )
    return plan_of(model, schema, 1).sanitize(Table(frame, schema), RandomBits(rng))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "measured_by", "likelihood", "names"),
    [
        ("bernoulli", coin, "noise-aware", (SHARE,)),
        ("linear_regression", line, "noise-aware", ("sd", "beta")),
        ("linear_regression", line, "plug-in", ("sd", "beta")),
        ("normal_moments", normal(50_000, 100_000_000), "noise-aware", ("mu", "sigma")),
        (
            "normal_moments",
            normal(-700_000, 260_000_000),
            "noise-aware",
            ("mu", "sigma"),
        ),
    ],
)
def test_samplers_made_for_models_have_the_posterior_of_nuts(
    name, measured_by, likelihood, names
):
    """Both by Kolmogorov-Smirnov, and draws that are moved; draws of samplers are held
    to brute force above.
    """
    model, rng = as_statistic_model(name), np.random.default_rng(0)
    measured = measured_by(model, rng)
    chains = fit(
        model,
        measured,
        likelihood,
        n_draws=5,
        rng=rng,
        options=Options(nuts="nutpie", draws=2000),
    )
    own = fit(model, measured, likelihood, n_draws=8000, rng=rng)
    assert own.convergence is None
    nuts = (
        chains.tree["posterior"]
        .to_dataset()
        .stack(sample=("chain", "draw"))
        .transpose("sample", ...)
    )
    for each in names:
        for a, b in zip(
            *(np.asarray(part[each]).reshape(8000, -1).T for part in (nuts, own.draws)),
            strict=True,
        ):
            # 8,000 draws, worth an eighth at least
            assert stats.ks_2samp(a, b).statistic < 0.09
            # the broken twin
            assert stats.ks_2samp(a, b + 0.5 * b.std()).statistic > 0.15


def test_plug_in_normal_draws_have_their_exact_law():
    rng, n, total, scatter = np.random.default_rng(0), 12, -8.0, 9.0
    drawn = plug_in(
        np.full(20, total), np.full(20, scatter), float(n), PRIORS, 1000, rng
    )[..., 1].ravel()
    grid = (np.arange(4000) + 0.5) / 1000

    def density(widest):
        law = stats.norm.pdf(total, 0, np.sqrt(n * grid**2 + (n / 2) ** 2)) * np.exp(
            -(grid**2) / (2 * widest**2)
        )
        return law * stats.chi2.pdf(scatter / grid**2, n - 1) / grid**2

    assert errors(drawn, grid, density(0.5)).max() < 5.2
    assert errors(drawn, grid, density(5)).max() > 7  # the broken twin: another prior


@pytest.mark.parametrize(
    ("n", "share", "epsilon"), [(40, 0.1, "1/8"), (40, 0.5, "1/3"), (100, 0.25, "1/4")]
)
def test_an_inverted_test_covers_as_it_should(n, share, epsilon):
    rng = np.random.default_rng(0)
    ones = rng.binomial(n, share, 20_000)
    noise = rng.geometric(1 - np.exp(-float(Fraction(epsilon))), (2, 20_000))
    _, low, high = inverted(ones + noise[0] - noise[1], n, Fraction(epsilon))
    assert 0.935 < np.mean((low <= share) & (share <= high)) < 0.965
    # the broken twin: noise ignored
    _, low, high = inverted(ones + noise[0] - noise[1], n, Fraction(10))
    assert np.mean((low <= share) & (share <= high)) < 0.9


class Calibration(simuk.SBC):
    """simuk's simulation-based calibration, with posteriors from ``fit``: noisy
    statistics are no PyMC variables.
    """

    def __init__(
        self,
        model,
        schema,
        n,
        epsilon,
        likelihood="noise-aware",
        factor=1,
        draws=31,
        **settings,
    ):
        self.plan, self.n, self.fitted, self.draws = (
            plan_of(model, schema, epsilon),
            n,
            model,
            draws,
        )
        self.likelihood, self.factor = likelihood, factor
        made_up = replace(self.plan.tried(), n_records=n)
        given = Evidence(made_up, likelihood)
        self.sampler = recognise(model.built(given), given)
        super().__init__(
            model.built(Evidence(made_up, "plug-in")),
            simulator=self.simulate,
            progress_bar=False,
            **settings,
        )

    def simulate(self, seed, **parameters):
        """Draw noisy statistics at one draw from the prior."""
        rng = np.random.default_rng(seed)
        exact = self.exact(parameters, rng)
        bits = RandomBits(rng)
        noisy = {part.name: exact[part.name].copy() for part in self.plan.parts}
        for part in self.plan.parts:
            noisy[part.name][: part.n_noised] += self.factor * part.noise(1, bits)[0]
        return noisy

    def exact(self, parameters, rng):
        """Return statistics of records from ``draw_records``."""
        schema = self.plan.schema
        columns = self.fitted.records(parameters, RecordRequest(self.n), schema, rng)
        frame = pd.DataFrame(
            {
                name: np.array(schema.columns[name].names())[each]
                for name, each in columns.items()
            }
        )
        return {
            part.name: part.statistic.measure(Table(frame, schema)).ravel()
            for part in self.plan.parts
        }

    def _get_posterior_samples(self, replicated):
        values = {name: np.asarray(each) for name, each in replicated.items()}
        if "counts" in values:
            values["counts"][1] = self.n - values["counts"][0]
        measured = replace(self.plan.tried(), n_records=self.n, values=values)
        rng = np.random.default_rng(int(self._seeds[self._simulations_complete]) + 1)
        found = self.sampler.draw(
            Evidence(measured, self.likelihood), Lengths(draws=self.draws), rng
        ).values
        found = {**found, **self.sampler.completed(found)}
        return xr.Dataset({name: ("sample", found[name]) for name in self.var_names})


class NormalCalibration(Calibration):
    """The same for normal sums that bounds don't touch: the model knows of none."""

    def exact(self, parameters, rng):
        """Return sums and sums of squares of normal values in whole steps."""
        u = parameters["mean"] + parameters["sd"] * rng.standard_normal(self.n)
        whole = np.rint(u * 4096).astype(np.int64)
        return {
            "total": np.array([whole.sum()]),
            "squares": np.array([(whole**2).sum()]),
        }


def uniform(ranks, draws=31, cells=16):
    """Return the p-value of ranks being uniform on 0..draws."""
    return stats.chisquare(
        np.bincount(np.ravel(ranks) * cells // (draws + 1), minlength=cells)
    ).pvalue


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The effect of Potentials")
@pytest.mark.parametrize(
    ("name", "kind", "schema", "n", "epsilon", "watched"),
    [
        ("bernoulli", Calibration, COIN, 60, "1/5", (SHARE,)),
        ("normal_moments", NormalCalibration, NUMBER, 50, 1, ("mean", "sd")),
    ],
)
def test_posteriors_are_calibrated(name, kind, schema, n, epsilon, watched):
    model = as_statistic_model(name)

    def least(runs, **twin):
        found = kind(model, schema, n, epsilon, num_simulations=runs, seed=1, **twin)
        found.run_simulations()
        return min(
            uniform(found.simulations["prior_sbc"][each].to_numpy()) for each in watched
        )

    assert least(200) > ACCEPT
    # the broken twins: noise ignored, and four times the noise
    assert least(100, likelihood="plug-in") < REJECT
    assert least(100, factor=4) < REJECT


def test_the_study_measures_as_releases_do():
    # one table: the study's noisy statistics and those of StatisticPlan.sanitize have
    # one law, and settling is the same
    rng = np.random.default_rng(0)
    x = np.clip(rng.standard_normal(30), -5, 5)
    sample = normal_moments.Sample(np.tile(x, (1500, 1)), -5, 5, n_bins=1)
    noisy, scales = normal_moments.sanitize(sample, Fraction(1), RandomBits(rng))
    plan = plan_of(as_statistic_model("normal_moments"), NUMBER, 1)
    table = Table(pd.DataFrame({"y": x}), NUMBER)
    released = [plan.sanitize(table, RandomBits(rng)) for _ in range(1500)]
    for place, name in enumerate(("total", "squares")):
        values = np.array([each.value(name)[0] for each in released])
        assert stats.ks_2samp(noisy[:, place], values).pvalue > ACCEPT
        assert (
            stats.ks_2samp(noisy[:, place], values * 2 - values.mean()).pvalue < REJECT
        )
        assert scales[place] == pytest.approx(released[0].scale(name))
    for place, each in enumerate(released[:20]):
        noisy[place] = [each.value("total")[0], each.value("squares")[0]]
        used, (total, scatter) = (
            Evidence(each, "plug-in"),
            normal_moments.settled(noisy, 30),
        )
        assert total[place] == pytest.approx(used["total"][0])
        assert scatter[place] == pytest.approx(
            used["squares"][0] - used["total"][0] ** 2 / 30
        )
