"""Chains for normal columns within cells have the posterior that the model file states: calibration by simulation."""

import numpy as np
import pytest
from laws import ACCEPT, REJECT
from scipy import stats

from pdips.statistics.general_location import Known, run

CELLS, D, N, ALPHA = 3, 2, 40, 0.5
SCALES = {"counts": 3.0, "sums": 3.0, "products": 2.0}
PRIORS = np.repeat([[0.0], [0.5], [2.0], [4.0], [2.0], [4.0]], D, axis=1)
RUNS, RANKS = 120, 20


def gamma(rng) -> np.ndarray:
    return rng.gamma(2, 1 / 4, D)


def simulate(rng):
    """Parameters from their prior, exact statistics from their laws, and what noise makes of them."""
    m, tau, sd, rho = rng.normal(0, 0.5, D), gamma(rng), gamma(rng), rng.uniform(-1, 1)
    cov = np.diag(sd) @ np.array([[1, rho], [rho, 1]]) @ np.diag(sd)
    counts = rng.multinomial(N, rng.dirichlet(np.full(CELLS, ALPHA))).astype(float)
    sizes = np.maximum(counts, 0.5)
    sums = np.array([rng.multivariate_normal(s * m, s * cov + np.diag((s * tau) ** 2)) for s in sizes])
    scatter = stats.wishart(N - CELLS, cov).rvs(random_state=rng)
    products = scatter + sums.T @ (sums / sizes[:, None])
    noisy = (
        counts + rng.laplace(0, SCALES["counts"], CELLS).round(),
        sums + rng.laplace(0, SCALES["sums"], sums.shape),
        products + np.tril(rng.laplace(0, SCALES["products"], (D, D))),
    )
    return {"m": m[0], "tau": tau[1], "sd": sd[0], "rho": rho, "cell": counts[0] + rng.random()}, noisy


def ranks(factor: float, seed: int, runs: int = RUNS) -> dict[str, np.ndarray]:
    """Ranks of true values among draws, with noise taken for ``factor`` times what it is."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(runs):
        truth, (counts, sums, products) = simulate(rng)
        whole = np.tril(products) + np.tril(products, -1).T
        start = rng.multinomial(N, np.full(CELLS, 1 / CELLS)).astype(float)
        known = Known(
            counts=counts,
            count_scales=np.full(CELLS, factor * SCALES["counts"]),
            sums=sums,
            sum_scales=np.full(D, factor * SCALES["sums"]),
            products=whole,
            product_scales=np.full((D, D), factor * SCALES["products"]),
            gaussian=False,
            alpha=ALPHA,
            priors=PRIORS,
            df=float(N - CELLS),
        )
        n, _, m, tau, chol = run(known, start, 400, RANKS - 1, 40, rng)
        cov = chol @ np.swapaxes(chol, 1, 2)
        sd = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
        drawn = {"m": m[:, 0], "tau": tau[:, 1], "sd": sd[:, 0], "rho": cov[:, 1, 0] / sd[:, 0] / sd[:, 1]}
        drawn["cell"] = n[:, 0] + rng.random(len(n))
        found.append([(drawn[name] < truth[name]).sum() for name in truth])
    return dict(zip(truth, np.array(found).T, strict=True))


def p_values(found: dict[str, np.ndarray]) -> dict[str, float]:
    """Chi-square against even ranks, in ten classes."""
    return {name: stats.chisquare(np.bincount(each // 2, minlength=10)).pvalue for name, each in found.items()}


@pytest.fixture(scope="module")
def right() -> dict[str, float]:
    return p_values(ranks(1.0, seed=8))


def test_ranks_are_even(right):
    # five chi-squares at 1e-6 each
    assert min(right.values()) > ACCEPT, right


def test_too_little_noise_is_seen():
    assert min(p_values(ranks(0.2, seed=8, runs=RUNS // 2)).values()) < REJECT
