"""Posteriors by quadrature against conjugate ones and against dense grids of scipy's densities.

Statistical checks are wrong with probability 1e-6 (``laws.py``), seeds fixed; each has a broken twin.
"""

import numpy as np
import pymc as pm
import pytensor
import pytest
from laws import ACCEPT, REJECT
from scipy import special, stats
from small_models import PAIRS, UNIT, WIDE, beta, beta_records, blueprint, four, line, normal

from pdips import InputError
from pdips_papers.pseudo import lattice
from pdips_papers.pseudo.quadrature import Quadrature, bounded_sums

Y = np.array([1.0, 2.5, 3.0, -0.5, 4.0])
RNG_SEED = 20261121


@pytest.fixture(scope="module")
def on_normal():
    return Quadrature(blueprint(normal, WIDE).model, {"y": Y})


@pytest.fixture(scope="module")
def on_beta():
    return Quadrature(blueprint(beta, UNIT).model, {"y": beta_records(40)})


def moments_of(values, weights):
    mean = weights @ values
    return mean, np.sqrt(weights @ (values - mean) ** 2)


def moments(fit, name):
    values, weights = fit.nodes()
    return moments_of(values[name], weights)


def conjugate(y, weights=1.0):
    precision = 0.01 + np.sum(weights * np.ones(len(y)))
    return np.sum(weights * y) / precision, precision**-0.5


# Laws that are known


def test_draws_follow_the_posterior(on_normal):
    on_normal.update(values={"y": Y})
    mean, deviation = conjugate(Y)
    draws = on_normal.draws(50_000, np.random.default_rng(RNG_SEED))["theta"]
    assert draws.shape == (50_000,)
    assert stats.kstest(draws, stats.norm(mean, deviation).cdf).pvalue > ACCEPT
    for factor in (0.9, 1.1):  # the broken twins
        assert stats.kstest(draws, stats.norm(mean, factor * deviation).cdf).pvalue < REJECT


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, conjugate(Y)),
        ({"weights": np.array([1, 0.5, 0, 0.25, 1])}, conjugate(Y, np.array([1, 0.5, 0, 0.25, 1]))),
        ({"counts": np.array([3, 1, 1, 2, 4])}, conjugate(np.repeat(Y, [3, 1, 1, 2, 4]))),
        ({"weights": np.zeros(5)}, (0, 10)),
    ],
    ids=["plain", "weights are powers", "counts repeat records", "weights of 0 give the prior"],
)
def test_a_conjugate_posterior(on_normal, settings, expected):
    on_normal.update(values={"y": Y}, **settings)
    assert moments(on_normal, "theta") == pytest.approx(expected, rel=1e-4, abs=1e-3)
    assert on_normal.lattice.error < 1e-6
    if settings:  # the broken twin
        assert moments(on_normal, "theta") != pytest.approx(conjugate(Y), rel=1e-4)


def test_parameters_that_are_a_vector():
    rng = np.random.default_rng(1)
    x, design = np.linspace(-3, 8, 40), np.column_stack([np.ones(40), np.linspace(-3, 8, 40)])
    y = 1 + 3 * x + rng.normal(size=40)
    fit = Quadrature(blueprint(line, PAIRS).model, {"x": x, "y": y})
    precision = design.T @ design / 4 + np.eye(2) / 25
    values, weights = fit.nodes()
    mean = weights @ values["b"]
    covariance = (values["b"] - mean).T * weights @ (values["b"] - mean)
    np.testing.assert_allclose(mean, np.linalg.solve(precision, design.T @ y / 4), rtol=1e-4)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-3)
    assert fit.draws(7, rng)["b"].shape == (7, 2)


def test_censored_posteriors_of_the_beta_model(on_beta):
    # a dense grid of scipy's densities, in phi and log(lam - 0.1) with the Jacobian
    y, window = beta_records(40), 1.5
    phi, u = np.linspace(0.001, 0.999, 200), np.linspace(-8, 6, 200)
    grid_phi, grid_u = (part.ravel() for part in np.meshgrid(phi, u, indexing="ij"))
    lam = 0.1 + np.exp(grid_u)
    a, b = lam * grid_phi, lam * (1 - grid_phi)
    terms = np.outer(a - 1, np.log(y)) + np.outer(b - 1, np.log1p(-y)) - special.betaln(a, b)[:, None]
    log = np.clip(terms, -window, window).sum(axis=1) - 2.5 * np.log(lam) + grid_u
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    on_beta.update(window=window)
    points, nodes = on_beta.lattice.nodes()
    found = {"phi": special.expit(points[:, 0]), "lam": 0.1 + np.exp(points[:, 1])}
    for name, values in {"phi": grid_phi, "lam": lam}.items():
        (mean, deviation), ours = moments_of(values, weights), moments_of(found[name], nodes)
        assert ours[0] == pytest.approx(mean, abs=0.02 * deviation)
        assert ours[1] == pytest.approx(deviation, rel=0.03)


def test_draws_are_in_the_models_own_units(on_beta):
    draws = on_beta.update().draws(100, np.random.default_rng(0))
    assert set(draws) == {"phi", "lam", "phi_interval__", "lam_interval__"}
    np.testing.assert_allclose(draws["phi"], special.expit(draws["phi_interval__"]))
    assert (draws["lam"] > 0.1).all()


def test_largest_log_likelihoods_are_those_of_scipy(on_beta):
    draws = on_beta.update().draws(17, np.random.default_rng(0))
    a, b = draws["lam"] * draws["phi"], draws["lam"] * (1 - draws["phi"])
    expected = stats.beta.logpdf(beta_records(40), a[:, None], b[:, None])
    np.testing.assert_allclose(on_beta.largest(draws), np.abs(expected).max(axis=0), rtol=1e-9)


def test_whatever_a_log_likelihood_is_its_part_stays_in_the_window():
    def bounded(weights=None, counts=None, window=2.0):
        terms = np.array([[1.0, -np.inf, np.nan, np.inf]])
        return bounded_sums(terms, *(None if each is None else np.array(each) for each in (weights, counts)), window)

    assert bounded() == 1 - 2 - 2 + 2
    assert bounded(weights=[1, 0, 0, 0]) == 1
    assert bounded(counts=[3, 0, 2, 0]) == 3 - 4
    assert bounded_sums(np.array([[0.0, -np.inf, 1.0, 2.0]]), None, None) == -np.inf
    assert bounded_sums(np.array([[0.0, -np.inf, 1.0, 2.0]]), np.array([1, 0, 1, 1]), None) == 3


# Refits


def test_a_refit_compiles_nothing(on_normal, monkeypatch):
    def compiles(*args, **kwargs):
        raise AssertionError("compiled")

    monkeypatch.setattr(pytensor, "function", compiles)
    other = np.linspace(-2, 5, 23)
    on_normal.update(values={"y": other})
    assert moments(on_normal, "theta") == pytest.approx(conjugate(other), rel=1e-4)
    on_normal.update(weights=np.full(23, 0.5), window=1e6)
    assert moments(on_normal, "theta") == pytest.approx(conjugate(other, 0.5), rel=1e-4)
    with pytest.raises(AssertionError, match="compiled"):  # the broken twin
        Quadrature(blueprint(normal, WIDE).model, {"y": Y})


def test_new_records_drop_the_weights_of_old_ones(on_normal):
    on_normal.update(values={"y": Y}, weights=np.full(5, 0.5)).update(values={"y": Y[:3]})
    assert moments(on_normal, "theta") == pytest.approx(conjugate(Y[:3]), rel=1e-4)


def test_the_same_fit_again_is_the_same_to_the_last_bit(on_normal):
    first = on_normal.update(values={"y": Y}).lattice.density
    on_normal.update(values={"y": Y + 400}).draws(1, np.random.default_rng(0))
    np.testing.assert_array_equal(on_normal.update(values={"y": Y}).lattice.density, first)


# The lattice


def banana(points):
    return -(points[:, 0] ** 2) / 2 - (points[:, 1] - points[:, 0] ** 2) ** 2 / 2


def test_the_error_shrinks_as_the_lattice_is_refined():
    rough = lattice.fit(banana, np.zeros(2), tolerance=1)
    fine = lattice.fit(banana, np.zeros(2), tolerance=1e-12)
    assert fine.error < rough.error / 4
    for found in (rough, fine):
        points, weights = found.nodes()
        assert weights @ points == pytest.approx([0, 1], abs=3 * found.error + 1e-6)


def test_a_peak_far_away_and_narrow():
    found = lattice.fit(lambda points: -((points[:, 0] - 9e4) ** 2) / 0.98, np.zeros(1))
    points, weights = found.nodes()
    assert weights @ points == pytest.approx(9e4, abs=1e-3)


def test_a_ridge():
    scale = np.outer([0.01, 30], [0.01, 30]) * np.array([[1, 0.999], [0.999, 1]])
    precision = np.linalg.inv(scale)

    def log(points):
        off = points - [50, 1000]
        return -np.einsum("ij,jk,ik->i", off, precision, off) / 2

    points, weights = lattice.fit(log, np.zeros(2)).nodes()
    np.testing.assert_allclose(weights @ points, [50, 1000], rtol=1e-4)
    np.testing.assert_allclose((points - [50, 1000]).T * weights @ (points - [50, 1000]), scale, rtol=1e-3)


def test_two_peaks():
    found = lattice.fit(lambda p: np.logaddexp(-2 * (p[:, 0] - 3) ** 2, np.log(3) - 2 * (p[:, 0] + 3) ** 2), np.ones(1))
    points, weights = found.nodes()
    assert weights[points[:, 0] < 0].sum() == pytest.approx(0.75, abs=1e-3)


def test_a_density_with_edges():
    found = lattice.fit(lambda p: np.where(np.abs(p[:, 0] - 3) < 1, 0.0, -np.inf), np.zeros(1))
    points, weights = found.nodes()
    assert weights @ points == pytest.approx(3, abs=1e-3)
    assert np.sqrt(weights @ (points - 3) ** 2) == pytest.approx(3**-0.5, rel=0.02)


def test_three_dimensions():
    scale = np.array([[1, 0.9, 0.5], [0.9, 1, 0.7], [0.5, 0.7, 1]])
    precision = np.linalg.inv(scale)
    found = lattice.fit(lambda p: -np.einsum("ij,jk,ik->i", p - 3, precision, p - 3) / 2, np.zeros(3))
    draws = found.draws(20_000, np.random.default_rng(RNG_SEED))
    # five standard errors of means and covariances of 20,000 draws
    np.testing.assert_allclose(draws.mean(axis=0), 3, atol=0.036)
    np.testing.assert_allclose(np.cov(draws.T), scale, atol=0.05)


# Refusals


def no_peak(points):
    return np.zeros(len(points))


def endless(points):
    return np.where(points[:, 0] > 1, np.inf, 0.0)


@pytest.mark.parametrize(
    ("log", "size", "says"),
    [(no_peak, 1, "no peak"), (endless, 1, "infinite"), (no_peak, 4, "one to three")],
)
def test_densities_without_a_lattice(log, size, says):
    with pytest.raises(InputError, match=says):
        lattice.fit(log, np.zeros(size))


def discrete(data, schema):
    with pm.Model() as model:
        k = pm.Poisson("k", 3)
        pm.Normal("y", k, 1, observed=data["y"])
    return model


@pytest.mark.parametrize(
    ("build", "schema", "says"),
    [(four, PAIRS, "the model has 4"), (discrete, WIDE, "'k' is discrete")],
)
def test_models_that_no_lattice_takes(build, schema, says):
    with pytest.raises(InputError, match=says):
        Quadrature(blueprint(build, schema).model, {"x": Y, "y": Y})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"window": 0}, "window"),
        ({"window": np.nan}, "window"),
        ({"weights": [1, 1]}, "weights"),
        ({"weights": [1, 1, 1, 1, 2]}, "between 0 and 1"),
        ({"counts": np.ones(3)}, "counts"),
    ],
)
def test_settings_out_of_range(on_normal, settings, says):
    with pytest.raises(InputError, match=says):
        on_normal.update(values={"y": Y}, **settings)
