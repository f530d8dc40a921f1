"""What regressions on sets of a GLOM tend to: integrals against a large sample."""

import numpy as np
import pytest

from pdips_papers.modips import glom_limit, sequential_model
from pdips_papers.modips.sequential_model import SEQUENCE, design, levels

N_RECORDS = 400_000
# limits of one sample are within 4 of its standard errors: 17 coefficients, so that
# one is beyond in one of 900 samples
FAR = 4


def sampled_limit(rng: np.random.Generator, *, pooled: bool = True) -> np.ndarray:
    """Return coefficients on a large set of a GLOM that was fitted to a large sample,
    by cell if ``pooled`` is false.
    """
    root = np.linalg.cholesky(np.array([[1, 0.5], [0.5, 1]]))
    z = rng.standard_normal((1, 1, N_RECORDS, 2)) @ root.T
    drawn = sequential_model.draw_levels(
        z, lambda regression, _: regression.truth[None, None], rng
    )
    cell = drawn.cell[0, 0]
    z = z[0, 0]
    counts = np.bincount(cell, minlength=12)
    means = np.stack([np.bincount(cell, column) / counts for column in z.T], axis=1)
    about = z - means[cell]
    if not pooled:
        about = z - z.mean(axis=0)
    spread = np.linalg.cholesky(np.cov(about.T))
    synthetic = means[cell] + rng.standard_normal(z.shape) @ spread.T
    w = levels(cell)
    found = []
    for regression in SEQUENCE:
        x = design(synthetic, list(w[: regression.outcome]))[:, : regression.p]
        for level in range(1, regression.classes):
            kept = np.isin(w[regression.outcome], (0, level))
            is_one = (w[regression.outcome][kept] == level).astype(float)
            ones = np.ones(kept.sum())
            found.append(glom_limit.logistic_limit(x[kept], is_one, ones)[0])
    return np.concatenate(found)


def errors(limits) -> np.ndarray:
    """Return standard errors of coefficients from a sample of this test's size."""
    gaps = (limits["limit"] - limits["truth"]) / limits["standard errors off"]
    return np.sqrt(glom_limit.N_RECORDS / N_RECORDS) * gaps.abs().to_numpy()


def test_the_limit_is_that_of_a_large_sample():
    limits = glom_limit.limits()
    wanted = limits["limit"].to_numpy()
    right = sampled_limit(np.random.default_rng(1))
    wrong = sampled_limit(np.random.default_rng(1), pooled=False)
    # means and covariance are estimated too, from as many records
    assert (np.abs(right - wanted) < FAR * 1.5 * errors(limits)).all()
    assert (np.abs(wrong - wanted) > FAR * 1.5 * errors(limits)).any()


def test_the_model_that_is_called_wrong_is_wrong_and_nearly_harmless():
    limits = glom_limit.limits()
    assert limits.loc["beta 3, z1", "limit"] == pytest.approx(-2.398, abs=5e-4)
    assert limits.loc["beta 2, z2", "limit"] == pytest.approx(1.457, abs=5e-4)
    assert 0.5 < limits["standard errors off"].abs().max() < 0.53


def test_without_a_model_the_truth_comes_back():
    standard, weights = glom_limit.standard_nodes()
    z = standard @ np.linalg.cholesky(np.array([[1, 0.5], [0.5, 1]])).T
    joint = weights[:, None] * glom_limit.cell_shares(z)
    assert joint.sum() == pytest.approx(1)
    numbers = np.broadcast_to(z[:, None], (*joint.shape, 2))
    truth = np.concatenate([regression.truth.ravel() for regression in SEQUENCE])
    found = np.concatenate([beta for beta, _ in glom_limit.regressions(numbers, joint)])
    assert found == pytest.approx(truth, abs=1e-9)
