"""What a censored posterior costs, from its formula alone
(``docs/proofs/censored-posterior.md``).

Every law here is spelt out on a fine public grid, so every loss is exact up to
rounding: no randomness, no error rate. Nothing of ``pdips.bayes`` enters, so that the
formulas and the code are tested apart. ``w`` is the half-width of the window, R is
replace-one, A is add-remove; a record's terms are whole numbers of steps of ``w /
LEVELS``.
"""

from fractions import Fraction
from functools import cache
from itertools import product
from math import ceil

import numpy as np
import pytest
from scipy.special import betaln, logsumexp

from pdips.privacy.noise import choice_log_probabilities

EPSILON = Fraction(1)
LEVELS = 64
FLOOR = 60
ROUNDING = 1e-9
CLIPS = {
    "hard": lambda u, w: np.clip(u, -w, w),
    "tanh": lambda u, w: w * np.tanh(u / w),
    "algebraic": lambda u, w: w * np.sign(u) / (1 + w / np.maximum(np.abs(u), 1e-300)),
}


def window(epsilon, relation, records=1):
    """Return the half-width that costs epsilon: theorem 1."""
    return epsilon / ((4 if relation == "replace-one" else 2) * records)


def steps(u, w, clip="hard", levels=LEVELS):
    """Return terms in whole steps; -inf and NaN are the lower end of the window."""
    clipped = CLIPS[clip](np.where(np.isnan(u), -np.inf, u), float(w))
    return np.floor(levels * clipped / float(w) + 0.5).astype(np.int64)


def law(score, unit):
    """Return the log probabilities of the cells, whose scores are whole numbers of
    ``unit`` nats.
    """
    logits = -np.minimum(
        score.max(axis=-1, keepdims=True) - score, ceil(FLOOR / unit)
    ) * float(unit)
    return logits - logsumexp(logits, axis=-1, keepdims=True)


def loss(p, q):
    return float(np.abs(p - q).max())


class Bernoulli:
    """x ~ Bernoulli(theta), theta ~ uniform, on the logit scale; centred on the fair
    coin.
    """

    grid = np.linspace(-12, 12, 481)
    values = np.array([0.0, 1.0])
    centre = np.log([0.5, 0.5])
    log_prior = -np.logaddexp(0, grid) - np.logaddexp(0, -grid)

    @classmethod
    def log_likelihood(cls):
        return np.stack([-np.logaddexp(0, cls.grid), -np.logaddexp(0, -cls.grid)])


class NormalMean:
    """x ~ N(theta, 1), theta ~ N(0, 2); centred on N(0, 2)."""

    grid = np.linspace(-8, 8, 321)
    values = np.linspace(-4, 4, 9)
    centre = -(values**2) / 8 - np.log(2)
    log_prior = -(grid**2) / 8

    @classmethod
    def log_likelihood(cls):
        return -((cls.values[:, None] - cls.grid) ** 2) / 2


MODELS = (Bernoulli, NormalMean)


def terms(model, w, *, clip="hard", weight=1.0, centred=True, levels=LEVELS):
    """Return the terms of each possible record at each point, whole steps, shape
    (values, points).
    """
    centre = model.centre[:, None] if centred else 0.0
    return steps(weight * (model.log_likelihood() - centre), w, clip, levels)


def prior(model, unit):
    return np.floor(model.log_prior / float(unit) + 0.5).astype(np.int64)


@cache
def tables(model, sizes=(0, 4, 64)):
    """Return what neighbours share: some records of one value and some of another, as
    counts of each value.
    """
    found = set()
    for a, b in product(range(len(model.values)), repeat=2):
        for n_a, n_b in product(sizes, repeat=2):
            counts = [0] * len(model.values)
            counts[a] += n_a
            counts[b] += n_b
            found.add(tuple(counts))
    return np.array(sorted(found))


def laws(model, w, change, **kwargs):
    """Return the laws of all tables of :func:`tables`, with ``change`` added to their
    terms, shape (tables, points).
    """
    unit = Fraction(w) / kwargs.get("levels", LEVELS)
    return law(
        tables(model) @ terms(model, w, **kwargs) + change + prior(model, unit), unit
    )


def worst(model, w, relation, records=1, **kwargs):
    """Return the largest loss over neighbours that differ in one person's records,
    which are alike.
    """
    each = terms(model, w, **kwargs)
    with_record = [laws(model, w, records * term, **kwargs) for term in each]
    if relation == "add-remove":
        without = laws(model, w, 0, **kwargs)
        return max(loss(p, without) for p in with_record)
    return max(loss(p, q) for p, q in product(with_record, repeat=2))


# Theorem 1 and its lemmas


def test_own_law_is_that_of_the_exponential_mechanism():
    score = np.random.default_rng(7).integers(-9000, 9000, (5, 40))
    unit = Fraction(1, 97)
    assert loss(law(score, unit), choice_log_probabilities(score, unit)) < ROUNDING


@pytest.mark.parametrize("model", MODELS)
def test_the_price_is_epsilon_and_is_attained_and_a_window_twice_as_wide_is_caught(
    model, neighbours
):
    assert (
        0.95 * EPSILON
        <= worst(model, window(EPSILON, neighbours), neighbours)
        <= EPSILON + ROUNDING
    )
    assert (
        worst(model, window(EPSILON, neighbours), neighbours, centred=False)
        <= EPSILON + ROUNDING
    )
    assert worst(model, 2 * window(EPSILON, neighbours), neighbours) > 1.5 * EPSILON


@pytest.mark.parametrize("clip", ["tanh", "algebraic"])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_other_clips_and_weights_cost_no_more(clip, weight):
    for model, relation in product(MODELS, ["replace-one", "add-remove"]):
        found = worst(
            model, window(EPSILON, relation), relation, clip=clip, weight=weight
        )
        assert 0.5 * EPSILON < found <= EPSILON + ROUNDING


def test_several_records_of_a_person_divide_the_window(neighbours):
    assert (
        worst(Bernoulli, window(EPSILON, neighbours, 3), neighbours, 3)
        <= EPSILON + ROUNDING
    )
    assert worst(Bernoulli, window(EPSILON, neighbours), neighbours, 3) > 2.8 * EPSILON


def test_draws_and_stages_add_up():
    # two independent draws lose the sum on the product of their worst cells: half of
    # epsilon each
    half = worst(Bernoulli, window(EPSILON / 2, "replace-one"), "replace-one")
    assert 0.95 * EPSILON <= 2 * half <= EPSILON + ROUNDING
    assert (
        0.85 * EPSILON
        < staged_worst(EPSILON / 4, 3 * EPSILON / 4)
        <= EPSILON + ROUNDING
    )
    assert staged_worst(EPSILON / 4, 3 * EPSILON / 4, paid=False) > 1.1 * EPSILON


@pytest.mark.parametrize("levels", [1, 2, 8])
def test_coarse_steps_cost_no_more(levels):
    assert (
        worst(NormalMean, window(EPSILON, "replace-one"), "replace-one", levels=levels)
        <= EPSILON + ROUNDING
    )


def test_infinite_and_missing_log_likelihoods_stay_inside_the_window():
    u = np.array([-np.inf, np.inf, np.nan, -1e200, 1e200, 0.0])
    for clip in CLIPS:
        assert steps(u, Fraction(1, 4), clip).tolist() == [-64, 64, -64, -64, 64, 0]


def test_rounding_the_sum_in_place_of_each_record_costs_more():
    """Totals that are 2w apart, 2.5 steps here, may be rounded to 3 steps apart."""
    w = window(EPSILON, "replace-one")
    unit = w * 4 / 5
    exact = np.clip(
        NormalMean.log_likelihood() - NormalMean.centre[:, None], -float(w), float(w)
    )
    shared = tables(NormalMean, (0, 1, 2, 3, 40, 41, 42)) @ exact

    def rounded(term):
        return law(
            np.floor((shared + term) / float(unit) + 0.5).astype(np.int64)
            + prior(NormalMean, unit),
            unit,
        )

    found = [rounded(term) for term in exact]
    assert max(loss(p, q) for p, q in product(found, repeat=2)) > 1.1 * EPSILON


def test_a_centre_read_from_the_table_is_caught():
    """log p at the mean of the table: one record moves the terms of all others."""
    w = window(EPSILON, "replace-one")
    log_likelihood = Bernoulli.log_likelihood()

    def centred_on_itself(n_ones, n):
        p = (n_ones + 0.5) / (n + 1)
        each = steps(log_likelihood - np.log([[1 - p], [p]]), w)
        return law(
            (n - n_ones) * each[0] + n_ones * each[1] + prior(Bernoulli, w / LEVELS),
            w / LEVELS,
        )

    assert (
        max(
            loss(centred_on_itself(n_ones, 40), centred_on_itself(n_ones + 1, 40))
            for n_ones in range(40)
        )
        > 1.5
    )


# Theorem 2: a paid first stage


def staged_worst(first, second, n=12, *, paid=True):
    """Return the largest joint loss of a noisy count and a draw that is centred on it;
    or on the count itself.
    """
    w = window(second, "replace-one")
    noise = np.arange(-400, 401)
    log_noise = -np.abs(noise) * float(first)

    def count_law(n_ones):  # clamped to 0..n: post-processing
        place = np.clip(n_ones + noise, 0, n)
        return np.array([logsumexp(log_noise[place == j]) for j in range(n + 1)])

    def draw_law(n_ones, j):
        p = (j + 1) / (n + 2)
        grid = np.log(p / (1 - p)) + np.linspace(-6, 6, 121)
        each = steps(
            np.stack(
                [
                    -np.logaddexp(0, grid) - np.log(1 - p),
                    -np.logaddexp(0, -grid) - np.log(p),
                ]
            ),
            w,
        )
        return law((n - n_ones) * each[0] + n_ones * each[1], w / LEVELS)

    if not paid:
        return max(loss(draw_law(i, i), draw_law(i + 1, i + 1)) for i in range(n))
    return max(
        np.abs(
            count_law(i)[j] - count_law(i + 1)[j] + draw_law(i, j) - draw_law(i + 1, j)
        ).max()
        for i in range(n)
        for j in range(n + 1)
    )


# Theorem 3: bounded range and zero-concentrated loss


def neighbouring(model, w, relation):
    """Yield laws of neighbours, both shape (tables, points)."""
    sides = [laws(model, w, term) for term in terms(model, w)]
    yield from product(
        sides, [laws(model, w, 0)] if relation == "add-remove" else sides
    )


def excess(model, epsilon, relation, claimed):
    """Return the largest Renyi divergence of neighbours over order * claimed^2 / 8, at
    several orders.
    """
    return max(
        (
            logsumexp(order * one + (1 - order) * other, axis=-1)
            / (order - 1)
            / (order * float(claimed) ** 2 / 8)
        ).max()
        for p, q in neighbouring(model, window(epsilon, relation), relation)
        for one, other in ((p, q), (q, p))
        for order in (1.1, 2, 8, 40)
    )


@pytest.mark.slow_cases(
    "replace-one",
)
def test_a_draw_is_zero_concentrated_and_its_price_nearly_attained(neighbours):
    for model in MODELS:
        assert excess(model, EPSILON, neighbours, EPSILON) <= 1 + ROUNDING
        assert excess(model, 2 * EPSILON, neighbours, EPSILON) > 1.2
    assert excess(Bernoulli, EPSILON / 8, "replace-one", EPSILON / 8) > 0.9


def test_log_ratios_lie_in_an_interval_of_length_epsilon(neighbours):
    for p, q in neighbouring(NormalMean, window(EPSILON, neighbours), neighbours):
        assert np.ptp(p - q, axis=1).max() <= EPSILON + ROUNDING


# The published forms


def paper_beta(size=500):
    """Return the paper's beta model and priors (its Stan program) on cells of equal
    prior mass.
    """
    share = (np.arange(size) + 0.5) / size
    mean, precision = np.meshgrid(share, 0.1 * share ** (-2 / 3), indexing="ij")
    a, b = precision * mean, precision * (1 - mean)
    log_beta = betaln(a, b)
    return lambda x: (a - 1) * np.log(x) + (b - 1) * np.log1p(-x) - log_beta


def normalised(log_weights):
    return log_weights - logsumexp(log_weights)


def test_published_window_costs_twice_what_it_says():
    """Claimed epsilon 1, {.8, .8, .7} against {.8, .8, 1e-6}."""
    log_density, half = paper_beta(), float(EPSILON) / 2
    shared, old, new = (log_density(x) for x in (0.8, 0.7, 1e-6))

    def pair(w):
        clipped = [np.clip(f, -w, w) for f in (shared, old, new)]
        return normalised(2 * clipped[0] + clipped[1]), normalised(
            2 * clipped[0] + clipped[2]
        )

    p, q = pair(half)
    event = (old >= half) & (new <= -half)
    assert np.exp(logsumexp(p[event])) == pytest.approx(0.0146, abs=5e-5)
    assert np.exp(logsumexp(q[event])) == pytest.approx(0.0021, abs=5e-5)
    assert 1.9 * EPSILON < loss(p, q) <= 2 * EPSILON + ROUNDING
    assert loss(*pair(float(window(EPSILON, "replace-one")))) <= EPSILON + ROUNDING


def normal_pair(scale, prior_scale, outlier, n=20):
    """Return a grid, its prior, and the log-likelihoods of n zeros and of n - 1 zeros
    with an outlier.
    """
    theta = np.linspace(-60, 60, 12001)
    log_prior = normalised(-((theta / prior_scale) ** 2) / 2)

    def log_density(x):
        return -(((x - theta) / scale) ** 2) / 2 - np.log(scale * np.sqrt(2 * np.pi))

    zeros = np.stack([log_density(0.0)] * n)
    return theta, log_prior, zeros, np.vstack([zeros[1:], log_density(outlier)])


def confidential_weights(log_prior, log_likelihoods):
    """Return min(1, 1 / E|log-likelihood|) under the posterior of the same table, as
    004 takes them.
    """
    posterior = np.exp(normalised(log_prior + log_likelihoods.sum(axis=0)))
    return np.minimum(1, 1 / (np.abs(log_likelihoods) @ posterior))


def weighted(log_prior, log_likelihoods, weights, w=np.inf):
    return normalised(
        log_prior + np.clip(weights[:, None] * log_likelihoods, -w, w).sum(axis=0)
    )


def test_censoring_with_confidential_weights_has_no_price():
    """Claimed epsilon 1; with weights fixed in public the same pair costs what it
    may.
    """
    half = float(EPSILON) / 2
    theta, log_prior, a, b = normal_pair(0.3, 3, 100)
    p, q = (
        weighted(log_prior, x, confidential_weights(log_prior, x), half) for x in (a, b)
    )
    event = np.abs(theta) > 0.395
    assert np.exp(logsumexp(p[event])) == pytest.approx(6.07e-6, rel=0.01)
    assert np.exp(logsumexp(q[event])) == pytest.approx(0.609, abs=0.01)
    public = np.full(20, 0.5)
    assert (
        loss(*(weighted(log_prior, x, public, half) for x in (a, b)))
        <= 2 * EPSILON + ROUNDING
    )
    assert (
        loss(*(weighted(log_prior, x, public, half / 2) for x in (a, b)))
        <= EPSILON + ROUNDING
    )


def test_the_loss_with_confidential_weights_grows_with_the_table():
    half, found = float(EPSILON) / 2, []
    for n in (10, 20, 40):
        _, log_prior, a, b = normal_pair(0.3, 3, 5 * n, n)
        p, q = (
            weighted(log_prior, x, confidential_weights(log_prior, x), half)
            for x in (a, b)
        )
        found.append(loss(p, q))
    assert found[1] > 2 * found[0] > 8 * EPSILON
    assert found[2] > 2 * found[1]
    # claimed epsilon 5
    theta, log_prior, a, b = normal_pair(1, 10, 400)
    p, q = (weighted(log_prior, x, confidential_weights(log_prior, x)) for x in (a, b))
    event = np.abs(theta) > 3
    assert np.exp(logsumexp(p[event])) < 1e-40
    assert np.exp(logsumexp(q[event])) == pytest.approx(0.331, abs=1e-3)
