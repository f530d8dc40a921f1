"""Certified rejection: its law, its price by enumeration, and what breaks it.

Chi-square checks: seed fixed, false alarm 1e-6; each broken twin must score below 1e-9.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pymc as pm
import pytest
from laws import ACCEPT, REJECT, chi_square
from scipy import stats
from tables import bits, refuses

from pdips.errors import RefusedError
from pdips.posterior.censored_posterior import check_proposals, expected_proposals
from pdips.posterior.rejection import prior_of, reject
from pdips.privacy import noise as coins

WINDOW, STEPS = Fraction(1, 2), 64
UNIT = WINDOW / STEPS
EPSILON = 4 * WINDOW
THETA = np.array([0.02, 0.3, 0.5, 0.7, 0.98])
TWENTIETHS = np.array([0] * 3 + [1] * 6 + [2] * 2 + [3] * 6 + [4] * 3)
MU = np.bincount(TWENTIETHS) / 20


def record_steps(x: int) -> np.ndarray:
    """A Bernoulli record's whole steps at each theta, hard window, centred on
    probability one half.
    """
    log_ratio = np.log(2 * (THETA if x else 1 - THETA))
    return np.floor(STEPS * np.clip(log_ratio / float(WINDOW), -1, 1) + 0.5).astype(
        np.int64
    )


def steps_of(table) -> np.ndarray:
    return sum(record_steps(x) for x in table)


def share(table) -> np.ndarray:
    """h_D: the probability with which each theta is accepted."""
    return np.exp(float(UNIT) * (steps_of(table) - len(table) * STEPS))


def prior(m, generator):
    return [TWENTIETHS[generator.integers(0, 20, m)]]


def score_of(table):
    total = steps_of(table)
    return lambda points: total[points[0]]


def rejection_law(h):
    return h * MU / (h @ MU)


def worst(laws, pairs) -> float:
    return max(float(np.abs(np.log(laws[a] / laws[b])).max()) for a, b in pairs)


def neighbours(n: int):
    """All tables of n binary records, and the pairs that differ in one of them; the
    order of records doesn't matter.
    """
    tables = [(1,) * ones + (0,) * (n - ones) for ones in range(n + 1)]
    return tables, list(itertools.pairwise(tables))


def on(law):
    return lambda values: np.where(
        (values >= 0) & (values < len(law)),
        np.append(law, 0)[np.minimum(values, len(law))],
        0,
    )


# --- laws ---


def test_coins_are_decided_alike_by_doubles_and_by_rationals(monkeypatch):
    steps = np.repeat(np.array([0, 1, 7, 40, 300]), 400)
    quick = coins.decay_coins(steps, UNIT, bits())
    monkeypatch.setattr(coins, "FILTER", 2.0)
    assert np.array_equal(quick, coins.decay_coins(steps, UNIT, bits()))
    assert quick[:400].all()


def test_coins_beyond_the_range_of_doubles():
    assert not coins.decay_coins(np.full(100, 2**60), Fraction(1), bits()).any()


def test_rejection_has_its_law_and_no_other():
    table = (1, 1, 1, 0)
    n_draws = 20_000
    [drawn] = reject(
        score_of(table), prior, n_draws=n_draws, bound=4 * STEPS, unit=UNIT, bits=bits()
    )
    assert drawn.shape == (n_draws,)
    assert chi_square(drawn, on(rejection_law(share(table)))) > ACCEPT
    # half the exponent
    assert chi_square(drawn, on(rejection_law(np.sqrt(share(table))))) < REJECT
    # a record forgotten
    assert chi_square(drawn, on(rejection_law(share(table[:3])))) < REJECT
    assert chi_square(drawn, on(MU)) < REJECT
    [drawn] = reject(
        score_of(table),
        prior,
        n_draws=n_draws,
        bound=4 * STEPS,
        unit=UNIT / 2,
        bits=bits(),
    )
    assert chi_square(drawn, on(rejection_law(share(table)))) < REJECT


def test_batches_do_not_matter():
    table = (1, 0)
    for batch in (1, 7):
        drawn = reject(
            score_of(table),
            prior,
            n_draws=1000,
            bound=2 * STEPS,
            unit=UNIT,
            bits=bits(),
            batch=batch,
        )
        assert chi_square(drawn[0], on(rejection_law(share(table)))) > ACCEPT


def test_rejection_against_quadrature_of_a_normal_model():
    records, w, k = np.array([1.5, 0.4, 2.0]), Fraction(1), 1000

    def score(points):
        log_ratio = [0.5 * x**2 - 0.5 * (x - points[0]) ** 2 for x in records]
        return sum(
            np.floor(k * np.tanh(each / float(w)) + 0.5).astype(np.int64)
            for each in log_ratio
        )

    with pm.Model() as model:
        pm.Normal("mean", 0.0, 2.0)
    [drawn] = reject(
        score, prior_of(model), n_draws=20_000, bound=3 * k, unit=w / k, bits=bits()
    )
    edges = np.linspace(-6, 6, 25)
    fine = np.linspace(-10, 10, 200_001)
    density = stats.norm.pdf(fine, 0, 2) * np.exp(float(w / k) * score([fine]))

    def cells(weights):
        return (
            np.bincount(np.searchsorted(edges, fine), weights, len(edges) + 1)
            / weights.sum()
        )

    found = np.searchsorted(edges, drawn)
    assert chi_square(found, on(cells(density))) > ACCEPT
    assert chi_square(found, on(cells(stats.norm.pdf(fine, 0, 2)))) < REJECT


# --- prices, by enumeration under replace-one ---


@pytest.mark.parametrize("n", [1, 2, 5])
def test_losses_stay_below_epsilon(n):
    tables, pairs = neighbours(n)
    assert worst({t: rejection_law(share(t)) for t in tables}, pairs) <= EPSILON


def test_epsilon_is_nearly_reached_and_a_cap_and_known_proposals_would_leak():
    # two thetas, nearly all prior mass on one of them: the construction of
    # docs/proofs/censored-posterior.md, theorem 1
    mass = np.array([1 - 1e-6, 1e-6])
    h = np.exp([[0, -2 * float(WINDOW)], [-2 * float(WINDOW), 0]])
    laws = [each * mass / (each @ mass) for each in h]
    assert 0.999 * EPSILON < np.abs(np.log(laws[0] / laws[1])).max() <= EPSILON
    # the event "nothing accepted in 1,000 proposals"
    tables, pairs = neighbours(3)
    failing = {t: 1000 * math.log1p(-share(t) @ MU) for t in tables}
    assert max(abs(failing[a] - failing[b]) for a, b in pairs) > 10 * EPSILON
    # remark 6: the sequence theta_1 = theta_2 = ... = theta_99 = one of them, theta_100
    # = another
    tables, pairs = neighbours(3)
    last = {t: 99 * math.log1p(-share(t)[1]) + math.log(share(t)[3]) for t in tables}
    assert max(abs(last[a] - last[b]) for a, b in pairs) > 2 * EPSILON


def test_lanes_that_differ_by_a_step_cost_little():
    # remark 7: two lanes, each record's rounding a step higher in the second one for
    # some thetas
    tables, pairs = neighbours(3)
    flips = {1: np.array([0, 1, 0, 1, 0]), 0: np.array([1, 0, 0, -1, 0])}

    def law(table):
        first = share(table)
        second = np.minimum(
            first * np.exp(float(UNIT) * sum(flips[x] for x in table)), 1
        )
        weights = first * MU + (1 - first @ MU) * second * MU
        return weights / weights.sum()

    assert worst({t: law(t) for t in tables}, pairs) <= EPSILON + 4 * 3 * UNIT


# --- planning and refusals ---


def test_rejection_is_refused_from_public_settings():
    assert expected_proposals(10, Fraction(1, 4)) == pytest.approx(math.exp(5))
    assert expected_proposals(10**6, Fraction(1)) == math.inf
    check_proposals(30, Fraction(1, 4))
    refuses(
        "sampler = grid for up to three",
        check_proposals,
        40,
        Fraction(1, 4),
        error=RefusedError,
    )
    refuses(
        "otherwise sampler = nuts",
        check_proposals,
        30,
        Fraction(1, 4),
        n_draws=10,
        error=RefusedError,
    )


def test_expected_proposals_bound_the_true_number():
    for table in neighbours(4)[0]:
        assert 1 / (share(table) @ MU) <= expected_proposals(4, WINDOW)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n_draws": 0}, "draws"),
        ({"unit": Fraction(0)}, "unit"),
        ({"batch": 0}, "batch"),
        ({"bound": 2**61}, "bound"),
        ({"bound": -2 * STEPS}, "public bounds"),
        ({"score": lambda points: np.zeros(3, dtype=np.int64)}, "one int64 a point"),
        ({"score": lambda points: points[0] * 0.5}, "one int64 a point"),
    ],
)
def test_bad_input_to_rejection(change, match):
    settings = {
        "score": score_of((1, 0)), "prior": prior, "n_draws": 1, "bound": 2 * STEPS, "unit": UNIT, "bits": bits()  # noqa: E501
    }  # fmt: skip
    settings |= change
    refuses(match, reject, settings.pop("score"), settings.pop("prior"), **settings)
