"""Multinomial-Dirichlet and McClure-Reiter: exact prices by enumeration, laws of the
draws, flaws that must be caught.

Statistical checks are wrong with probability 1e-6 (``laws.py``), seeds fixed; each has
a broken twin.
"""

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from laws import ACCEPT, REJECT, assert_law, chi_square, p_value, seen
from scipy import stats
from tables import Flawed, bits, refuses, schema_of, table_of

from pdips import McClureReiter, MultinomialDirichlet, SmoothedHistogram
from pdips.audit import audit
from pdips.audit.neighbour_pairs import Pair, small_pairs
from pdips.histogram.urns import UrnRule, Urns, first_drawn
from pdips.margins.domain import domain_of
from pdips.privacy.replay import ExactLaw as Law
from pdips.privacy.replay import Outcome, exact_law, record

ROUNDING = 1e-9
SURE = 1 - 1e-6


# The price


def test_the_law_is_the_dirichlet_multinomial_of_the_paper():
    alpha = 4 / math.expm1(1)
    law = stats.dirichlet_multinomial([3 + alpha, alpha, 1 + alpha], 4).logpmf
    assert_law(MultinomialDirichlet(epsilon=1), [(0,), (0,), (0,), (2,)], 3, law)
    alpha = 3 / math.expm1(2)  # of two levels it is the beta-binomial
    law = stats.betabinom(3, 2 + alpha, 1 + alpha).logpmf
    assert_law(
        MultinomialDirichlet(epsilon=2),
        [(0,), (0,), (1,)],
        2,
        lambda counts: law(counts[0]),
    )


def test_each_set_has_its_share():
    one = MultinomialDirichlet(epsilon=1, n_sets=4)
    assert [spend.epsilon for spend in one.spends(schema_of(2))] == [Fraction(1, 4)] * 4
    pair = next(iter(small_pairs(schema_of(3), "replace-one", 2)))
    assert audit(one, pair, engine="exact").bound == pytest.approx(1, abs=ROUNDING)


# What is drawn


@pytest.mark.parametrize("epsilon", [1, 5])
def test_observed_counts_follow_the_law_that_is_audited(epsilon):
    table = table_of([(0,), (0,), (0,), (1,)], schema_of(3))
    mechanism = MultinomialDirichlet(epsilon=epsilon)
    (rows,) = record(mechanism, table, 100_000, bits())
    found, outcomes = (
        Counter(map(tuple, rows.tolist())),
        exact_law(mechanism, table).outcomes,
    )
    assert p_value(*seen(found, outcomes)) > ACCEPT
    # the twin without the Polya urn's memory: independent draws
    alone = UrnRule(
        domain=domain_of(table.schema),
        epsilon=Fraction(4 * math.log(1 + math.expm1(epsilon) / 4)),
        polya=False,
    )
    law = Urns(table, alone).log_probabilities()
    twin = np.exp([law[outcome.key] for outcome in outcomes])
    assert (
        p_value([found[outcome.key] for outcome in outcomes], twin / twin.sum())
        < REJECT
    )


def test_a_large_set_has_the_spread_of_its_posterior():
    # 4,000 sets of 1,000 records: the count of level 0 has the Beta-binomial law, and
    # not the binomial one of its mean
    table = table_of([(0,)] * 700 + [(1,)] * 300, schema_of(2))
    counts = (record(MultinomialDirichlet(epsilon=3), table, 4000, bits())[0] == 0).sum(
        axis=1
    )
    alpha = 1000 / math.expm1(3)
    assert (
        chi_square(counts, stats.betabinom(1000, 700 + alpha, 300 + alpha).pmf) > ACCEPT
    )
    assert (
        chi_square(counts, stats.binom(1000, (700 + alpha) / (1000 + 2 * alpha)).pmf)
        < REJECT
    )


def test_copies_of_copies_are_followed_to_their_first():
    # without records to speak of, an urn is nearly all copies of its own draws
    assert first_drawn(np.array([0, 0, 1, 2, 3, 5, 5, 6])).tolist() == [
        0,
        0,
        0,
        0,
        0,
        5,
        5,
        5,
    ]


def test_a_million_records_are_drawn():
    mechanism = MultinomialDirichlet(epsilon=1, n_records=1_000_000)
    release, _ = mechanism.release(
        table_of([(0, 0), (1, 1)], schema_of(2, 3)), rng=np.random.default_rng(0)
    )
    assert len(release.sets[0]) == 1_000_000


# McClure and Reiter


def test_mcclure_reiter_is_the_smoothed_histogram_of_n_records_and_makes_one_set():
    table = table_of([(0, 0), (1, 2), (1, 2)], schema_of(2, 3))
    laws = [
        exact_law(mechanism(epsilon=2), table).outcomes
        for mechanism in (McClureReiter, SmoothedHistogram)
    ]
    assert laws[0] == laws[1]
    refuses("would cost epsilon again", McClureReiter, epsilon=1, n_sets=5)


# Flaws


@dataclass(frozen=True, kw_only=True)
class TwoSetsOfOneDraw(Flawed):
    """Multinomial-Dirichlet that draws two sets from one pi and pays for one."""

    n_sets: int = 2

    def posterior(self, table):
        return np.bincount(
            table.codes["a"], minlength=2
        ) + table.n_records / math.expm1(self.epsilon)

    def observe(self, table, n_runs, bits):
        rng, prior = bits.generator(), self.posterior(table)
        pi = rng.beta(*prior, size=n_runs)
        return np.column_stack([rng.binomial(table.n_records, pi) for _ in range(2)])

    def law(self, table) -> Law:
        n, prior = table.n_records, self.posterior(table)
        outcomes = []
        for i in range(n + 1):
            for j in range(n + 1):
                log = stats.dirichlet_multinomial(prior, 2 * n).logpmf(
                    [i + j, 2 * n - i - j]
                )
                log += math.log(
                    math.comb(n, i) * math.comb(n, j) / math.comb(2 * n, i + j)
                )
                outcomes.append(Outcome(key=(i, j), log_probability=float(log)))
        return Law(outcomes=outcomes)


def test_two_sets_of_one_posterior_draw_are_caught():
    # SOUNDNESS section 8: n = 1, K = 2, both synthetic records in cell 1: .597 against
    # .134
    tables = [table_of([(c,)], schema_of(2)) for c in (0, 1)]
    both = Pair(
        "alone",
        *tables,
        "replace-one",
        lambda rows: (rows == 1).all(axis=1),
        "both in the first cell",
    )
    found = audit(
        TwoSetsOfOneDraw(),
        both,
        n_runs=40_000,
        confidence=SURE,
        rng=np.random.default_rng(0),
    )
    assert found.verdict == "VIOLATION"
    assert audit(TwoSetsOfOneDraw(), both, engine="exact").bound == pytest.approx(
        math.log(2 * math.e - 1)
    )
    honest = Pair(
        "alone",
        *tables,
        "replace-one",
        lambda rows: (rows == 0).all(axis=1),
        "both there",
    )
    sound = MultinomialDirichlet(epsilon=1, n_sets=2)
    found = audit(
        sound, honest, n_runs=40_000, confidence=SURE, rng=np.random.default_rng(0)
    )
    assert found.verdict == "consistent"
    assert found.bound > 0.9
