"""Certified rejection and artificial atoms: their laws, their prices by enumeration, and what breaks them.

Chi-square checks: seed fixed, false alarm 1e-6; each broken twin must score below 1e-9.
"""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pymc as pm
import pytest
from laws import ACCEPT, REJECT, chi_square
from scipy import stats
from tables import bits

from pdips.errors import InputError, RefusedError
from pdips.posterior.atoms import Stopping, draw_with_atom, stopping_for
from pdips.posterior.prior import prior_of
from pdips.posterior.rejection import check_proposals, expected_proposals, reject
from pdips.privacy import coins

WINDOW, STEPS = Fraction(1, 2), 64
UNIT = WINDOW / STEPS
EPSILON = 4 * WINDOW
THETA = np.array([0.02, 0.3, 0.5, 0.7, 0.98])
TWENTIETHS = np.array([0] * 3 + [1] * 6 + [2] * 2 + [3] * 6 + [4] * 3)
MU = np.bincount(TWENTIETHS) / 20


def record_steps(x: int) -> np.ndarray:
    """A Bernoulli record's whole steps at each theta, hard window, centred on probability one half."""
    log_ratio = np.log(2 * (THETA if x else 1 - THETA))
    return np.floor(STEPS * np.clip(log_ratio / float(WINDOW), -1, 1) + 0.5).astype(np.int64)


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


def atom_law(h, atom):
    return np.append(h * MU, atom) / (h @ MU + atom)


def worst(laws, pairs) -> float:
    return max(float(np.abs(np.log(laws[a] / laws[b])).max()) for a, b in pairs)


def neighbours(n: int):
    """All tables of n binary records, and the pairs that differ in one of them; the order of records doesn't matter."""
    tables = [(1,) * ones + (0,) * (n - ones) for ones in range(n + 1)]
    return tables, list(itertools.pairwise(tables))


def on(law):
    return lambda values: np.where(
        (values >= 0) & (values < len(law)), np.append(law, 0)[np.minimum(values, len(law))], 0
    )


# --- laws ---


def test_coins_are_decided_alike_by_doubles_and_by_rationals(monkeypatch):
    steps = np.repeat(np.array([0, 1, 7, 40, 300]), 400)
    quick = coins.decay_coins(steps, UNIT, bits())
    monkeypatch.setattr(coins, "FILTER", 2.0)
    exact = coins.decay_coins(steps, UNIT, bits())
    assert np.array_equal(quick, exact)
    assert quick[:400].all()


def test_coins_beyond_the_range_of_doubles():
    assert not coins.decay_coins(np.full(100, 2**60), Fraction(1), bits()).any()


def test_rejection_has_its_law_and_no_other():
    table = (1, 1, 1, 0)
    n_draws = 20_000
    [drawn] = reject(score_of(table), prior, n_draws=n_draws, bound=4 * STEPS, unit=UNIT, bits=bits())
    assert drawn.shape == (n_draws,)
    assert chi_square(drawn, on(rejection_law(share(table)))) > ACCEPT
    assert chi_square(drawn, on(rejection_law(np.sqrt(share(table))))) < REJECT  # half the exponent
    assert chi_square(drawn, on(rejection_law(share(table[:3])))) < REJECT  # a record forgotten
    assert chi_square(drawn, on(MU)) < REJECT


def test_rejection_with_half_the_exponent_is_caught():
    table = (1, 1, 1, 0)
    [drawn] = reject(score_of(table), prior, n_draws=20_000, bound=4 * STEPS, unit=UNIT / 2, bits=bits())
    assert chi_square(drawn, on(rejection_law(share(table)))) < REJECT


def test_batches_do_not_matter():
    table = (1, 0)
    for batch in (1, 7):
        drawn = reject(score_of(table), prior, n_draws=1000, bound=2 * STEPS, unit=UNIT, bits=bits(), batch=batch)
        assert chi_square(drawn[0], on(rejection_law(share(table)))) > ACCEPT


def test_rejection_against_quadrature_of_a_normal_model():
    records, w, k = np.array([1.5, 0.4, 2.0]), Fraction(1), 1000

    def score(points):
        log_ratio = [0.5 * x**2 - 0.5 * (x - points[0]) ** 2 for x in records]
        return sum(np.floor(k * np.tanh(each / float(w)) + 0.5).astype(np.int64) for each in log_ratio)

    with pm.Model() as model:
        pm.Normal("mean", 0.0, 2.0)
    [drawn] = reject(score, prior_of(model), n_draws=20_000, bound=3 * k, unit=w / k, bits=bits())
    edges = np.linspace(-6, 6, 25)
    fine = np.linspace(-10, 10, 200_001)
    density = stats.norm.pdf(fine, 0, 2) * np.exp(float(w / k) * score([fine]))

    def cells(weights):
        return np.bincount(np.searchsorted(edges, fine), weights, len(edges) + 1) / weights.sum()

    found = np.searchsorted(edges, drawn)
    assert chi_square(found, on(cells(density))) > ACCEPT
    assert chi_square(found, on(cells(stats.norm.pdf(fine, 0, 2)))) < REJECT


RATE = Fraction(1, 8)
ATOM = math.expm1(1 / 8)


def atom_draws(table, stopping, n_draws, batch=8, seed=0):
    source = bits(seed)
    drawn = np.empty(n_draws, dtype=np.int64)
    for i in range(n_draws):
        one = draw_with_atom(
            score_of(table), prior, bound=len(table) * STEPS, unit=UNIT, stopping=stopping, bits=source, batch=batch
        )
        drawn[i] = len(THETA) if one.is_atom else one.points[0][0]
    return drawn


@pytest.mark.parametrize("steps", [0, 20])
def test_atoms_have_their_law_and_no_other(steps):
    table = (1, 1, 0)
    drawn = atom_draws(table, Stopping(rate=RATE, steps=steps), 2500)
    assert chi_square(drawn, on(atom_law(share(table), ATOM))) > ACCEPT
    assert chi_square(drawn, on(atom_law(np.sqrt(share(table)), ATOM))) < REJECT  # half the exponent
    assert chi_square(drawn, on(atom_law(share(table), 2 * ATOM))) < REJECT  # an atom too heavy


def truncated_law(h, rate, steps):
    """The first accepted of min(N, steps) proposals."""
    r = math.exp(-rate)
    kept = r * (1 - h @ MU)
    inside = r * h * MU * (1 - kept**steps) / (1 - kept)
    return np.append(inside, 1 - inside.sum())


def test_truncated_atoms_have_their_law():
    table = (1, 1, 0)
    stopping = Stopping(rate=RATE, steps=5, truncated=True)
    drawn = atom_draws(table, stopping, 2500)
    assert chi_square(drawn, on(truncated_law(share(table), 1 / 8, 5))) > ACCEPT
    assert chi_square(drawn, on(atom_law(share(table), ATOM))) < REJECT


def test_the_number_of_proposals_depends_on_no_record():
    made = []
    for table in ((1, 1, 1, 1), (0, 0, 1, 1)):
        calls = []

        def score(points, table=table, calls=calls):
            calls.append(1)
            return score_of(table)(points)

        for seed in range(40):
            draw_with_atom(
                score, prior, bound=4 * STEPS, unit=UNIT, stopping=Stopping(rate=RATE), bits=bits(seed), batch=1
            )
        made.append(len(calls))
    assert made[0] == made[1] > 0


# --- the chain of SOUNDNESS 6.4, as an independent law ---


def residual_chain(h, atom, switch):
    """The residual kernel with independence Metropolis inside, and its certificate beta; the atom is the last state."""
    m = len(h)
    local = np.minimum(1, h[None] / h[:, None]) * MU[None]
    np.fill_diagonal(local, 0)
    np.fill_diagonal(local, 1 - local.sum(axis=1))
    to_atom = np.minimum(1, atom / h)
    beta = min(switch * min(1, atom), 1 - switch)
    kernel = np.zeros((m + 1, m + 1))
    kernel[:m, :m] = (1 - switch) * local + switch * np.diag(1 - to_atom)
    kernel[:m, m] = switch * to_atom
    kernel[m, :m] = switch * MU * np.minimum(1, h / atom)
    kernel[m, m] = 1 - kernel[m, :m].sum()
    start = np.eye(m + 1)[m]
    return (kernel - beta * start) / (1 - beta), beta, start


@pytest.mark.parametrize("atom", [0.01, 0.2, 1.0, 3.0])
@pytest.mark.parametrize("switch", [0.1, 0.5, 0.8])
def test_the_chain_has_the_same_law_and_never_fewer_steps(atom, switch):
    h = share((1, 1, 0))
    residual, beta, start = residual_chain(h, atom, switch)
    law = beta * np.linalg.solve((np.eye(len(h) + 1) - (1 - beta) * residual).T, start)
    assert np.abs(law - atom_law(h, atom)).max() < 1e-12
    assert beta <= atom / (1 + atom) + 1e-15
    assert Stopping(rate=Fraction(math.log1p(atom))).expected_steps <= (1 - beta) / beta * (1 + 1e-12)


# --- prices, by enumeration under replace-one ---


@pytest.mark.parametrize("n", [1, 2, 5])
def test_losses_stay_below_epsilon(n):
    tables, pairs = neighbours(n)
    assert worst({t: rejection_law(share(t)) for t in tables}, pairs) <= EPSILON
    for atom in (0.01, 0.2, 1.0, 10.0):
        assert worst({t: atom_law(share(t), atom) for t in tables}, pairs) <= EPSILON


def test_epsilon_is_nearly_reached():
    # two thetas, nearly all prior mass on one of them: the construction of SOUNDNESS 2.1
    mass = np.array([1 - 1e-6, 1e-6])
    h = np.exp([[0, -2 * float(WINDOW)], [-2 * float(WINDOW), 0]])
    laws = [each * mass / (each @ mass) for each in h]
    assert 0.999 * EPSILON < np.abs(np.log(laws[0] / laws[1])).max() <= EPSILON


def test_uncentred_scores_cost_more_with_an_atom_and_nothing_without():
    # review E9 (i): a constant of -10 windows stays with records that are 0
    tables, pairs = neighbours(3)
    shifted = {t: share(t) * np.exp(10 * float(WINDOW) * (sum(t) - len(t))) for t in tables}
    assert worst({t: rejection_law(h) for t, h in shifted.items()}, pairs) <= EPSILON
    assert worst({t: atom_law(h, 0.01) for t, h in shifted.items()}, pairs) > 1.5 * EPSILON


def test_a_bound_found_on_the_table_costs_more_with_an_atom_and_nothing_without():
    # review E9 (ii): a true bound on each table's own score, found on a coarse grid: 63 or 63 + 256 steps
    scores = {"high": np.full(5, 62), "low": np.array([-64, -64, 64, -64, -64])}
    own = {"high": 63, "low": 319}
    assert all(scores[t].max() <= own[t] for t in own)
    loose = {t: np.exp(float(UNIT) * (scores[t] - own[t])) for t in scores}
    public = {t: np.exp(float(UNIT) * (scores[t] - STEPS)) for t in scores}
    pairs = [("high", "low")]
    assert worst({t: rejection_law(h) for t, h in loose.items()}, pairs) <= EPSILON
    assert worst({t: atom_law(h, 1e-3) for t, h in public.items()}, pairs) <= EPSILON
    assert worst({t: atom_law(h, 1e-3) for t, h in loose.items()}, pairs) > 1.2 * EPSILON


def test_a_cap_would_leak():
    # review E10: the event "nothing accepted in 1,000 proposals"
    tables, pairs = neighbours(3)
    failing = {t: 1000 * math.log1p(-share(t) @ MU) for t in tables}
    assert max(abs(failing[a] - failing[b]) for a, b in pairs) > 10 * EPSILON


def test_known_proposals_would_leak():
    # remark 6: the sequence theta_1 = theta_2 = ... = theta_99 = one of them, theta_100 = another
    tables, pairs = neighbours(3)
    last = {t: 99 * math.log1p(-share(t)[1]) + math.log(share(t)[3]) for t in tables}
    assert max(abs(last[a] - last[b]) for a, b in pairs) > 2 * EPSILON


def loss_given_the_number(tables, pairs, law_after) -> float:
    """The largest loss of the output when its number of steps, at most 60, is seen."""
    found = 0.0
    for a, b in pairs:
        for k in range(1, 60):
            p, q = law_after(a, k), law_after(b, k)
            both = (p > 1e-12) & (q > 1e-12)
            found = max(found, float(np.abs(np.log(p[both] / q[both])).max()))
    return found


def test_who_sees_the_number_of_steps_learns_more():
    # theorem 5: N depends on no record, but N and the output together lose more; in our sampler and in 6.4's chain
    tables, pairs = neighbours(5)

    def ours(table, k):
        failing = (1 - share(table) @ MU) ** k
        return np.append(rejection_law(share(table)) * (1 - failing), failing)

    def chain(table, k):
        residual, _, start = residual_chain(share(table), 0.1, 1 / 1.1)
        return start @ np.linalg.matrix_power(residual, k)

    assert worst({t: atom_law(share(t), 0.1) for t in tables}, pairs) <= EPSILON
    assert loss_given_the_number(tables, pairs, ours) > 2 * EPSILON
    assert loss_given_the_number(tables, pairs, chain) > 1.2 * EPSILON
    assert abs(chain((1, 1, 0), 1)[-1]) < 1e-12  # one step of 6.4 can't show the atom here,
    assert chain((1, 1, 1), 1)[-1] > 1e-3  # and can here: no finite loss


def excess(p, q, epsilon) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@pytest.mark.parametrize("steps", [10, 40, 80])
def test_delta_covers_truncation_and_the_number_of_steps(steps):
    tables, pairs = neighbours(5)
    pairs = [*pairs, *((b, a) for a, b in pairs)]
    r = math.exp(-RATE)
    delta = float(Stopping(rate=RATE, steps=steps).delta(EPSILON))
    truncated = {t: truncated_law(share(t), float(RATE), steps) for t in tables}

    def seen(table):
        """Output and number of proposals of a padded run: one row for N <= steps, then one for each larger N."""
        h = share(table)
        numbers = np.arange(2000)
        failing = (1 - h @ MU) ** numbers
        given = np.column_stack([rejection_law(h)[None] * (1 - failing)[:, None], failing])
        joint = ((1 - r) * r**numbers)[:, None] * given
        return np.vstack([joint[: steps + 1].sum(axis=0), joint[steps + 1 :]])

    assert max(excess(truncated[a], truncated[b], EPSILON) for a, b in pairs) <= delta
    assert max(excess(seen(a).ravel(), seen(b).ravel(), EPSILON) for a, b in pairs) <= delta
    if steps == 10:
        assert max(excess(seen(a).ravel(), seen(b).ravel(), EPSILON) for a, b in pairs) > 0


def test_delta_is_rounded_up_and_no_more():
    for rate, steps, epsilon in ((Fraction(1, 10), 300, Fraction(1)), (Fraction(1, 7), 3000, Fraction(5, 2))):
        exact = (1 + Decimal(float(epsilon)).exp()) * (
            -(Decimal(rate.numerator) / rate.denominator) * (steps + 1)
        ).exp()
        found = Stopping(rate=rate, steps=steps).delta(epsilon)
        assert exact <= Decimal(found.numerator) / Decimal(found.denominator) <= exact * Decimal("1.000001")
    assert Stopping(rate=Fraction(1, 10), steps=1).delta(Fraction(1)) == 1


def test_lanes_that_differ_by_a_step_cost_little():
    # remark 7: two lanes, each record's rounding a step higher in the second one for some thetas
    tables, pairs = neighbours(3)
    flips = {1: np.array([0, 1, 0, 1, 0]), 0: np.array([1, 0, 0, -1, 0])}

    def law(table):
        first = share(table)
        second = np.minimum(first * np.exp(float(UNIT) * sum(flips[x] for x in table)), 1)
        weights = first * MU + (1 - first @ MU) * second * MU
        return weights / weights.sum()

    assert worst({t: law(t) for t in tables}, pairs) <= EPSILON + 4 * 3 * UNIT


# --- planning and refusals ---


def test_rejection_is_refused_from_public_settings():
    assert expected_proposals(10, Fraction(1, 4)) == pytest.approx(math.exp(5))
    assert expected_proposals(10**6, Fraction(1)) == math.inf
    check_proposals(30, Fraction(1, 4))
    with pytest.raises(RefusedError, match="exact grid"):
        check_proposals(40, Fraction(1, 4))
    with pytest.raises(RefusedError, match="mcmc"):
        check_proposals(30, Fraction(1, 4), n_draws=10)


def test_expected_proposals_bound_the_true_number():
    for table in neighbours(4)[0]:
        assert 1 / (share(table) @ MU) <= expected_proposals(4, WINDOW)


def test_stopping_keeps_the_atom_rare_on_every_table():
    stopping = stopping_for(3, WINDOW, Fraction(1, 10))
    assert stopping.atom_probability(1 / expected_proposals(3, WINDOW)) == pytest.approx(0.1)
    for table in neighbours(3)[0]:
        assert atom_law(share(table), math.expm1(float(stopping.rate)))[-1] <= 0.1
    assert stopping.expected_steps == pytest.approx(9 * expected_proposals(3, WINDOW))
    with pytest.raises(RefusedError, match="proposals"):
        stopping_for(100, WINDOW, Fraction(1, 10))


@pytest.mark.parametrize(
    "settings",
    [{"rate": Fraction(0)}, {"rate": Fraction(41)}, {"rate": RATE, "steps": -1}, {"rate": RATE, "truncated": True}],
)
def test_stopping_out_of_range(settings):
    with pytest.raises(InputError):
        Stopping(**settings)


def test_too_many_steps_are_refused():
    with pytest.raises(RefusedError):
        Stopping(rate=Fraction(1, 2**30))
    with pytest.raises(RefusedError):
        Stopping(rate=RATE, steps=10**8, truncated=True)


@pytest.mark.parametrize("probability", [Fraction(0), Fraction(1)])
def test_atom_probability_out_of_range(probability):
    with pytest.raises(InputError, match="atom"):
        stopping_for(3, WINDOW, probability)


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
        "score": score_of((1, 0)), "prior": prior, "n_draws": 1, "bound": 2 * STEPS, "unit": UNIT, "bits": bits()
    }  # fmt: skip
    settings |= change
    with pytest.raises(InputError, match=match):
        reject(settings.pop("score"), settings.pop("prior"), **settings)
