"""What skewed and long-tailed outcomes do to clipped scores, and its correction."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import statsmodels.api as sm
from scipy import stats
from small_models import written

from pdips import Schema, Scores, Table
from pdips.privacy.curator import Clock, Drawing
from pdips.privacy.noise import RandomBits
from pdips.scores.centred_model import Near
from pdips.scores.deformed import Deformed, deformations
from pdips.scores.inner_points import FURTHEST, QUANTILES
from pdips.scores.pseudo_table import likely_shares, merged_shares

SCHEMA = Schema(
    columns={
        "z": {"lower": -2, "upper": 2},
        "y": {"lower": -12, "upper": 12},
    }
)


@written
def line(data):
    b = pm.Normal("b", 0, 5, shape=2)
    sd = pm.HalfNormal("sd", 5)
    pm.Normal("y", b[0] + b[1] * data["z"], sd, observed=data["y"])


def drawn(errors, n, seed):
    rng = np.random.default_rng(seed)
    z = np.clip(rng.normal(size=n), -2, 2)
    y = np.clip(0.5 + 0.7 * z + errors(rng, n), -12, 12)
    return pd.DataFrame({"z": z, "y": y})


def long_tailed(rng, n):
    return rng.standard_t(5, n)


def skewed(rng, n):
    return rng.exponential(size=n) - 1


def asked(made, plan, frame, seed):
    noise = RandomBits(np.random.default_rng(seed))
    table = Table(frame, SCHEMA)
    return made.ask(plan, Drawing(plan, table, noise, Clock(), None)).sums


def standard(sums, frame):
    """How far the most probable parameters are from the ordinary estimate, in posterior
    standard deviations.
    """
    here = sums.mode_of_last()
    fit = sm.OLS(frame["y"], sm.add_constant(frame["z"])).fit()
    ordinary = np.append(fit.params, np.log((fit.resid**2).mean()) / 2)
    covariance = np.linalg.inv(here.curvature + sums.prior.precision)
    return (here.place - ordinary) / np.sqrt(np.diag(covariance))


def test_deformations_of_a_normal_law_leave_its_mean_and_variance():
    z = np.linspace(-FURTHEST, FURTHEST, QUANTILES)
    weights = stats.norm.pdf(z)[None] / stats.norm.pdf(z).sum()
    changes = deformations(weights, is_continuous=True)[0]
    for power in (0, 1, 2):
        # but for what lies further out than the points
        assert np.abs((weights[0] * z**power) @ changes).max() < 1e-2
    # the broken twin: plain powers
    assert abs((weights[0] * z) @ z**3) > 1


@pytest.mark.parametrize("rate", [0.1, 1.0, 7.5])
def test_deformations_of_a_count_leave_the_sum_of_its_shares(rate):
    """The broken twin takes the polynomial at the middle of a value's share."""
    weights = stats.poisson.pmf(np.arange(60), rate)[None]
    changes = deformations(weights, is_continuous=False)[0]
    assert np.abs(weights[0] @ changes).max() < 1e-9
    middle = stats.norm.ppf(np.clip(np.cumsum(weights[0]) - weights[0] / 2, 1e-12, 1))
    middle = np.clip(middle, -8, 8)
    assert abs(weights[0] @ (middle**2 - 1)) > 1e-3


def test_no_deformation_moves_what_is_corrected():
    """Neither of the two, once parameters have explained what they can; without what is
    taken off, the broken twin, both do.
    """
    rng = np.random.default_rng(4)
    deformed = Deformed(
        outer=rng.random(50),
        clipped=rng.normal(size=(50, 3)),
        scores=rng.normal(size=(50, 3)),
        counted=rng.normal(size=(50, 2)),
        changes=rng.normal(size=(50, 2)),
    )
    weighted = deformed.outer[:, None] * deformed._free
    corrected = deformed.clipped - deformed.counted @ deformed.factors.T
    assert np.abs(corrected.T @ weighted).max() < 1e-9
    assert np.abs(deformed.clipped.T @ weighted).max() > 0.5
    # the estimate without clipping stays where it is
    assert np.abs(deformed.scores.T @ weighted).max() < 1e-9
    # two numbers that say the same correct nothing
    twice = replace(deformed, counted=np.repeat(deformed.counted[:, :1], 2, axis=1))
    assert not twice.factors.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("errors", "of", "delta"), [(long_tailed, 2, None), (skewed, 0, "1e-6")]
)
def test_intervals_hold_where_outcomes_aren_t_normal(errors, of, delta):
    """Eight fixed tables of 5,000: the scale under t(5) errors, pure, and the intercept
    under exponential ones. On average over tables it is off by less than 1.3 posterior
    deviations, of which the average itself has a standard error of .3; without the
    correction, the broken twin, by more than it is with it by 1.
    """
    made = Scores(epsilon=1, delta=delta, model=line)
    plan = made.plan(SCHEMA)
    off = []
    twin = []
    for seed in range(8):
        frame = drawn(errors, 5_000, seed)
        sums = asked(made, plan, frame, seed)
        off.append(standard(sums, frame)[of])
        twin.append(standard(replace(sums, is_corrected=False), frame)[of])
    assert abs(np.mean(off)) < 1.3
    assert abs(np.mean(twin)) > abs(np.mean(off)) + 1


def test_far_parameters_are_cut_off_alike_in_numbers_and_in_the_model():
    near = Near(np.array([1.0, -1.0]), np.diag([4.0, 1.0]))
    places = np.array([[1.0, -1.0], [4.0, -1.0], [5.5, 3.0]])
    assert near.log_density(places)[:2].tolist() == [0.0, 0.0]
    assert near.log_density(places)[2] < -10
    for place, found in zip(places, near.log_density(places), strict=True):
        assert near.graph(place).eval() == pytest.approx(found)


def test_cells_that_are_louder_than_their_counts_still_say_where_numbers_lie():
    """Twenty fixed histograms of 7,185 normal numbers in 64 cells under noise of 188
    records. The broken twin judges each cell by itself, and finds a single one.
    """
    middles = np.arange(64) + 0.5
    of_cells = stats.norm.pdf(middles, 35, 14)
    counts = 7_185 * of_cells / of_cells.sum()
    spreads = []
    twins = []
    for seed in range(20):
        noise = np.random.default_rng(seed).laplace(0, 188 / np.sqrt(2), 64)
        noisy = counts + noise
        both = merged_shares(noisy, 188), likely_shares(noisy, 3 * 188)
        for into, shares in zip((spreads, twins), both, strict=True):
            mean = shares @ middles
            into.append(np.sqrt(shares @ (middles - mean) ** 2))
    assert np.median(spreads) == pytest.approx(14, rel=0.35)
    assert min(spreads) > 5
    assert min(twins) < 1
    # under less noise, empty cells are told from others one by one
    noise = np.random.default_rng(0).laplace(0, 15, 64)
    few = np.where(middles < 6, 1_000.0, 0.0)
    assert merged_shares(few + noise, 15 * np.sqrt(2))[12:].sum() < 0.05
    # without noise, shares are those of the counts
    assert merged_shares(counts, 0.0) == pytest.approx(counts / counts.sum())
    assert merged_shares(np.zeros(4), 1.0).tolist() == [0.25] * 4
