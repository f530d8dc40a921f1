"""Counts given noisy ones: against enumeration of all tables, at sizes that count, and
what is refused.

Each statistical test has a fixed seed and fails a right sampler with probability 1e-6;
its twin must fail at 1e-9.
"""

import time
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from laws import ACCEPT, REJECT, chi_square
from scipy import stats
from scipy.special import gammaln
from tables import cases, compositions, refuses

from pdips.privacy.noise import RandomBits, discrete_gaussian, discrete_laplace
from pdips.statistics import exact_counts
from pdips.statistics.exact_counts import (
    NoiseLaw,
    draw_counts,
    draw_first_of_two,
    draw_proportions,
)
from pdips.statistics.general_location import Known, run


def exact(noisy, log_noise, n, alpha, *, flat=True):
    """Return all tables and the probability of each, from the formula.

    Without n, which is ``flat``, these are all tables with counts below 50.
    """
    alpha = np.broadcast_to(np.asarray(alpha, dtype=float), len(noisy))
    every = np.array(
        list(product(range(50), repeat=len(noisy)))
        if n is None
        else compositions(n, len(noisy))
    )
    logs = (
        gammaln(alpha + every)
        - gammaln(every + 1.0)
        + log_noise(np.asarray(noisy) - every)
    ).sum(axis=1)
    if n is None and flat:
        logs += gammaln(every.sum(axis=1) + 1.0) - gammaln(
            alpha.sum() + every.sum(axis=1)
        )
    weights = np.exp(logs - logs.max())
    return every, weights / weights.sum()


def p_value(drawn, every, probabilities):
    places = {tuple(table): place for place, table in enumerate(every.tolist())}
    seen = np.bincount(
        [places[tuple(table)] for table in drawn.tolist()], minlength=len(every)
    )
    expected = probabilities * len(drawn)
    rare = expected < 5
    seen, expected = (
        np.append(each[~rare], each[rare].sum()) for each in (seen, expected)
    )
    return stats.chisquare(seen[expected > 0], expected[expected > 0]).pvalue


CASES = cases(__file__, "cases")


@pytest.mark.parametrize(("noisy", "alpha", "n"), CASES)
@pytest.mark.parametrize(
    "law", [NoiseLaw("laplace", Fraction(3, 2)), NoiseLaw("gaussian", Fraction(3))]
)
def test_the_law_is_that_of_all_tables(noisy, alpha, n, law):
    def log_noise(factor):
        if law.law == "laplace":
            return lambda noise: -np.abs(noise) / (1.5 * factor)
        return lambda noise: -(noise**2) / (6.0 * factor)

    drawn = draw_counts(noisy, law, n, alpha, 40_000, np.random.default_rng(5))
    assert p_value(drawn, *exact(noisy, log_noise(1.0), n, alpha)) > ACCEPT
    # the wrong scale
    assert p_value(drawn, *exact(noisy, log_noise(1.5), n, alpha)) < REJECT
    if n != 4 or np.ndim(alpha):
        # another prior
        assert (
            p_value(drawn, *exact(noisy, log_noise(1.0), n, np.asarray(alpha) + 0.7))
            < REJECT
        )


def test_large_counts_against_a_sum_over_all_tables():
    noisy, n, alpha = [700, 180, -40], 900, 0.4
    every, weights = exact(noisy, lambda noise: -np.abs(noise) / 60, n, alpha)
    drawn = draw_counts(
        noisy,
        NoiseLaw("laplace", Fraction(60)),
        n,
        alpha,
        50_000,
        np.random.default_rng(1),
    )
    for place in range(3):
        law = np.pad(np.bincount(every[:, place], weights=weights, minlength=n + 1), 1)
        assert (
            chi_square(drawn[:, place], lambda count, law=law: law[count + 1]) > ACCEPT
        )


def test_fourier_transforms_give_the_same_draws(monkeypatch):
    noisy = np.random.default_rng(2).integers(-50, 300, size=13)
    arguments = (noisy, NoiseLaw("laplace", Fraction(40)), 1500, 0.5, 2_000)
    direct = draw_counts(*arguments, np.random.default_rng(3))
    monkeypatch.setattr(exact_counts, "DIRECT", 0)
    by_transform = draw_counts(*arguments, np.random.default_rng(3))
    # a draw may fall on the other side of a rounded threshold
    assert (direct == by_transform).mean() > 0.999


@pytest.mark.parametrize(
    ("noisy", "alpha"), [([3, -1, 4], 0.7), ([-5, -8, -4], 0.2), ([10, 2], [1.0, 2.5])]
)
def test_an_unknown_number_of_records(noisy, alpha):
    """Flat on the number of records: against all tables with counts below 50, of which
    the rest is 1e-12.
    """
    drawn = draw_counts(
        noisy,
        NoiseLaw("laplace", Fraction(1)),
        None,
        alpha,
        30_000,
        np.random.default_rng(8),
    )
    assert (
        p_value(drawn, *exact(noisy, lambda noise: -np.abs(noise), None, alpha))
        > ACCEPT
    )
    # as if the number's law were in the counts' weights
    assert (
        p_value(
            drawn, *exact(noisy, lambda noise: -np.abs(noise), None, alpha, flat=False)
        )
        < REJECT
    )


def test_trees_of_other_tilts_say_the_same_of_the_number_of_records():
    noisy = np.random.default_rng(9).integers(-3, 9, size=200)
    values, inverse = np.unique(noisy, return_inverse=True)
    law, inverse = NoiseLaw("laplace", Fraction(2)), np.sort(inverse)
    half, most = np.full(len(values), 0.5), int(noisy.clip(0).sum()) + 900
    kinds = exact_counts.Kinds(values, half, np.bincount(inverse), law, most)
    here, there = (
        exact_counts._stretch(kinds, inverse, aim, 0, kinds.n) for aim in (600, 640)
    )
    low, high = max(here.low, there.low), min(here.high, there.high)
    assert high - low > 20
    both = [each.logs[low - each.low : high + 1 - each.low] for each in (here, there)]
    assert np.abs(both[0] - both[1]).max() < 1e-6
    joined = exact_counts._followed(kinds, inverse)
    assert all(a.high + 1 == b.low for a, b in pairwise(joined))
    step = np.diff(np.concatenate([each.logs for each in joined]))
    assert np.abs(np.diff(step)).max() < 0.1  # no jump where stretches meet


@pytest.mark.parametrize(
    ("law", "width", "power"), [("laplace", 4, 1), ("gaussian", 20, 2)]
)
def test_one_noisy_count_of_two(law, width, power):
    n, alpha, law_of_noise = 50, (1 / 3, 2.0), NoiseLaw(law, Fraction(width))

    def log_noise(noise):  # of the second count nothing is seen
        return -(np.abs(noise) ** power) / (power * width) * [1, 0]

    for noisy in (-7, 20, 61):
        first = draw_first_of_two(
            noisy, law_of_noise, n, alpha, 20_000, np.random.default_rng(3)
        )
        drawn = np.column_stack([first, n - first])
        assert p_value(drawn, *exact([noisy, 0], log_noise, n, alpha)) > ACCEPT
        # the prior left out
        assert p_value(drawn, *exact([noisy, 0], log_noise, n, 1)) < REJECT


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("n_cells", "n", "scale"), [(50_000, 80, Fraction(3, 4)), (24, 10**7, Fraction(2))]
)
def test_many_cells_and_many_records_are_quick(n_cells, n, scale, known):
    rng, law = (
        np.random.default_rng(4),
        NoiseLaw("laplace", scale if known else Fraction(1, 2)),
    )
    counts = rng.multinomial(n, rng.dirichlet(np.full(n_cells, 0.5)))
    noisy = counts + discrete_laplace(law.scale, n_cells, RandomBits(rng))
    draw_counts([1], law, 1, 1.0, 1, rng)  # compiled
    start = time.process_time()
    drawn = draw_counts(noisy, law, n if known else None, 0.5, 20, rng)
    assert time.process_time() - start < (3 if known else 4)
    assert (drawn >= 0).all()
    assert np.abs(drawn.sum(axis=1) - n).max() == 0 or not known
    assert abs(drawn.sum(axis=1).mean() - n) < 6 * max(drawn.sum(axis=1).std(), 1)
    assert np.sqrt(((drawn.mean(axis=0) - counts) ** 2).mean()) < 1.05 * np.sqrt(
        ((noisy - counts) ** 2).mean()
    )


def test_gaussian_noise_on_many_records():
    rng = np.random.default_rng(6)
    counts = rng.multinomial(10**6, rng.dirichlet(np.full(24, 0.5)))
    noisy = counts + discrete_gaussian(Fraction(100), 24, RandomBits(rng))
    drawn = draw_counts(
        noisy, NoiseLaw("gaussian", Fraction(100)), 10**6, 0.5, 500, rng
    )
    assert (np.abs(drawn - noisy).max(axis=1) < 70).all()
    assert np.abs(drawn.std(axis=0)[counts > 100] / 10 - 1).max() < 0.25


def test_trivial_tables_and_refusals():
    rng = np.random.default_rng(0)
    assert draw_counts(
        [7], NoiseLaw("laplace", Fraction(1)), 3, 1.0, 2, rng
    ).tolist() == [[3], [3]]
    assert draw_counts(
        [7, -2], NoiseLaw("laplace", Fraction(1)), 0, 1.0, 1, rng
    ).tolist() == [[0, 0]]
    assert (
        draw_counts(
            [900, -900], NoiseLaw("laplace", Fraction(1, 50)), 3, 1.0, 1, rng
        ).sum()
        == 3
    )
    assert np.allclose(
        draw_proportions(np.array([[5, 0], [0, 5]]), 0.5, rng).sum(axis=1), 1
    )
    assert (
        abs(
            draw_proportions(np.full((20_000, 2), [3, 1]), [1.0, 2.0], rng)[:, 0].mean()
            - 4 / 7
        )
        < 0.01
    )
    for alpha in (0.0, [1.0, 1.0, 1.0]):
        refuses(
            "alpha must be",
            draw_counts,
            [1, 2],
            NoiseLaw("laplace", Fraction(1)),
            3,
            alpha,
            1,
            rng,
        )
    refuses(
        "too wide",
        draw_counts,
        [1, 2],
        NoiseLaw("laplace", Fraction(10**9)),
        10**9,
        1.0,
        1,
        rng,
    )


# Chains for normal columns within cells have the posterior that the model file states.
CELLS, D, N, ALPHA = 3, 2, 40, 0.5
SCALES = {"counts": 3.0, "sums": 3.0, "products": 2.0}
PRIORS = np.repeat([[0.0], [0.5], [2.0], [4.0], [2.0], [4.0]], D, axis=1)
RANKS = 20


def gamma(rng) -> np.ndarray:
    return rng.gamma(2, 1 / 4, D)


def simulate(rng):
    """Parameters from their prior, exact statistics from their laws, and what noise
    makes of them.
    """
    m, tau, sd, rho = rng.normal(0, 0.5, D), gamma(rng), gamma(rng), rng.uniform(-1, 1)
    cov = np.diag(sd) @ np.array([[1, rho], [rho, 1]]) @ np.diag(sd)
    counts = rng.multinomial(N, rng.dirichlet(np.full(CELLS, ALPHA))).astype(float)
    sizes = np.maximum(counts, 0.5)
    sums = np.array(
        [
            rng.multivariate_normal(s * m, s * cov + np.diag((s * tau) ** 2))
            for s in sizes
        ]
    )
    scatter = stats.wishart(N - CELLS, cov).rvs(random_state=rng)
    products = scatter + sums.T @ (sums / sizes[:, None])
    noisy = (
        counts + rng.laplace(0, SCALES["counts"], CELLS).round(),
        sums + rng.laplace(0, SCALES["sums"], sums.shape),
        products + np.tril(rng.laplace(0, SCALES["products"], (D, D))),
    )
    return {
        "m": m[0],
        "tau": tau[1],
        "sd": sd[0],
        "rho": rho,
        "cell": counts[0] + rng.random(),
    }, noisy


def p_values(factor: float, runs: int) -> list[float]:
    """Chi-squares of ranks of true values among draws against even ones; noise is taken
    for ``factor`` times itself.
    """
    rng, found = np.random.default_rng(8), []
    for _ in range(runs):
        truth, (counts, sums, products) = simulate(rng)
        whole = np.tril(products) + np.tril(products, -1).T
        start = rng.multinomial(N, np.full(CELLS, 1 / CELLS)).astype(float)
        shapes = {"counts": CELLS, "sums": D, "products": (D, D)}
        scales = {
            f"{name[:-1]}_scales": np.full(shape, factor * SCALES[name])
            for name, shape in shapes.items()
        }
        law = {
            "gaussian": False,
            "alpha": ALPHA,
            "priors": PRIORS,
            "df": float(N - CELLS),
        }
        known = Known(counts=counts, sums=sums, products=whole, **scales, **law)
        n, _, m, tau, chol = run(known, start, 400, RANKS - 1, 40, rng)
        cov = chol @ np.swapaxes(chol, 1, 2)
        sd = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
        drawn = {
            "m": m[:, 0],
            "tau": tau[:, 1],
            "sd": sd[:, 0],
            "rho": cov[:, 1, 0] / sd[:, 0] / sd[:, 1],
        }
        drawn["cell"] = n[:, 0] + rng.random(len(n))
        found.append([(drawn[name] < truth[name]).sum() for name in truth])
    return [
        stats.chisquare(np.bincount(each // 2, minlength=10)).pvalue
        for each in np.array(found).T
    ]


@pytest.mark.slow
def test_ranks_are_even_and_too_little_noise_is_seen():
    # five chi-squares at 1e-6 each
    assert min(p_values(1.0, 120)) > ACCEPT
    assert min(p_values(0.2, 60)) < REJECT
