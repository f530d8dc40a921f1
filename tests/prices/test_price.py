"""What a release costs, computed exactly: every tiny table, every neighbour, every outcome of the elections.

The noise is discrete Laplace of independent known scales (tests/privacy/test_noise.py), so the worst log ratio over
noisy counts is the l1 distance of the true counts divided by the scales; elections have finitely many outcomes, each
with the probability that the code's own scores give it. No randomness, no tolerance beyond rounding.
"""

from fractions import Fraction
from functools import lru_cache
from itertools import permutations, product

import numpy as np
import pytest
from tables import all_tables, replacements, schema_of, table_of

from pdips import LaplaceSanitizer, Steps
from pdips.margins.domain import domain_of, root, split_by
from pdips.margins.elections import election_scores
from pdips.privacy.replay import exact_law
from pdips.registry import published

EPSILON = Fraction(3, 2)
ROUNDING = 1e-9


def neighbour_pairs(schema, relation, sizes):
    for n in sizes:
        for records in all_tables(schema, n):
            if relation == "replace-one":
                yield from ((records, other) for other in replacements(records, schema))
            else:
                yield from ((records, records[:i] + records[i + 1 :]) for i in range(n) if n > 1)


def law_loss(a, b) -> Fraction:
    """The worst log ratio over noisy counts, of two laws without choices."""
    (one,), (other,) = a.outcomes, b.outcomes
    moved = zip(one.statistics, other.statistics, one.scales, strict=True)
    return sum((abs(x - y) / scale for x, y, scale in moved if x != y), Fraction(0))


def sanitizer_loss(mechanism, schema, sizes=(1, 2, 3)) -> Fraction:
    @lru_cache(None)
    def seen(records):
        return exact_law(mechanism, table_of(records, schema))

    pairs = neighbour_pairs(schema, mechanism.neighbours, sizes)
    return max(law_loss(seen(a), seen(b)) for a, b in pairs)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_sanitizer_costs_exactly_epsilon(relation):
    assert sanitizer_loss(LaplaceSanitizer(epsilon=EPSILON, neighbours=relation), schema_of(2, 3)) == EPSILON


def test_published_sanitizer_costs_twice_what_it_says():
    # the broken twin: sensitivity 1 with a public number of records
    assert sanitizer_loss(published("laplace-sanitizer")(epsilon=EPSILON), schema_of(2, 3)) == 2 * EPSILON


def test_sets_of_their_own_share_the_price():
    one = sanitizer_loss(LaplaceSanitizer(epsilon=EPSILON, n_sets=5, split="per-set"), schema_of(2, 2))
    assert 5 * one == EPSILON


def test_structural_zeros_cost_nothing_and_show_nothing():
    schema = schema_of(2, 2, impossible=[{"a": 1, "b": 0}])
    a, b = (exact_law(LaplaceSanitizer(epsilon=1), table_of(records, schema)) for records in ([(0, 0)], [(1, 1)]))
    assert law_loss(a, b) == 1
    assert a.outcomes[0].statistics == (1, 0, 0, 0)
    assert a.outcomes[0].scales[2] == 0


def person_loss(mechanism, schema) -> Fraction:
    """Replace all records of one person with two, in tables of three records."""
    records = [r for (r,) in all_tables(schema, 1)]
    laws = {
        (mine, other): exact_law(mechanism, table_of([*mine, other], schema))
        for mine in product(records, repeat=2)
        for other in records
    }
    return max(
        law_loss(laws[a, other], laws[b, other])
        for other in records
        for a in product(records, repeat=2)
        for b in product(records, repeat=2)
    )


def test_the_price_counts_persons():
    schema = schema_of(2, 2, records={"max_per_person": 2})
    assert person_loss(LaplaceSanitizer(epsilon=EPSILON), schema) == EPSILON


def test_forgetting_the_cap_doubles_the_price():
    # the broken twin: the scale for one record a person, the neighbours of a person with two
    mechanism, schema = LaplaceSanitizer(epsilon=EPSILON), schema_of(2, 2)
    assert person_loss(mechanism, schema) == 2 * EPSILON


def log_softmax(scores: np.ndarray, unit: Fraction) -> np.ndarray:
    available = scores != np.iinfo(np.int64).min
    logits = np.where(available, np.where(available, scores, 0) * float(unit), -np.inf)
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


class Outcomes:
    """For one mechanism: the log probability of every tree and the true counts on it, table by table."""

    def __init__(self, mechanism: Steps, schema) -> None:
        self.mechanism, self.schema = mechanism, schema
        self.seen = lru_cache(None)(self._seen)

    def _seen(self, records):
        """Return log probabilities, shape (trees,), and counts in units of their noise, shape (trees, counts)."""
        outcomes = sorted(exact_law(self.mechanism, table_of(records, self.schema)).outcomes, key=lambda one: one.key)
        logs = np.array([outcome.log_probability for outcome in outcomes])
        width = max(len(outcome.statistics) for outcome in outcomes)
        counts = np.zeros((len(outcomes), width))
        for row, outcome in zip(counts, outcomes, strict=True):
            row[: len(outcome.scales)] = np.array(outcome.statistics) / np.array(list(map(float, outcome.scales)))
        return [outcome.key for outcome in outcomes], logs, counts

    def worst(self, pairs) -> tuple[float, float, float]:
        """Return the worst total, and the worst of the elections and of the noise alone."""
        found = np.zeros(3)
        for a, b in pairs:
            (keys, logs, counts), (other_keys, other_logs, other_counts) = self.seen(a), self.seen(b)
            assert keys == other_keys
            chosen, lost = np.abs(logs - other_logs), np.abs(counts - other_counts).sum(axis=1)
            found = np.maximum(found, [(chosen + lost).max(), chosen.max(), lost.max()])
        return tuple(found)


def representatives(schema, relation, sizes):
    """Neighbours of which the first is the least table among those that differ from it by the names of levels.

    Neither scores nor noise depend on the names, so every other pair of neighbours loses what one of these loses.
    """
    ways = list(product(*(permutations(range(column.n_levels)) for column in schema.columns.values())))

    def renamed(records, way):
        return tuple(sorted(tuple(names[level] for names, level in zip(way, r, strict=True)) for r in records))

    for a, b in neighbour_pairs(schema, relation, sizes):
        if tuple(a) == min(renamed(a, way) for way in ways):
            yield a, b


def test_representatives_lose_what_all_pairs_lose():
    found, schema = Outcomes(Steps(epsilon=2, layers=1), schema_of(2, 2)), schema_of(2, 2)
    few, every = ([*pairs(schema, "replace-one", (2,))] for pairs in (representatives, neighbour_pairs))
    assert len(few) < len(every) / 2
    assert found.worst(few) == pytest.approx(found.worst(every), abs=ROUNDING)


def test_the_law_of_elections_is_spelt_out_by_its_scores():
    # the probability of every tree, from scores by themselves: the root's election, and one in each of its nodes
    mechanism, table = outcomes().mechanism, table_of([(0, 0, 1), (1, 2, 0), (1, 2, 1)], SCHEMA)
    domain, units = domain_of(SCHEMA), [1 / step.scale for step in mechanism.plan(SCHEMA).steps[:3:2]]
    codes = np.column_stack([*table.codes.values()])
    top = log_softmax(election_scores(domain, root(domain), np.zeros(3, int), codes), units[0])[0]
    found = {outcome.key: outcome.log_probability for outcome in exact_law(mechanism, table).outcomes}
    assert len(found) == 16
    for (first, *second), log in found.items():
        below = split_by(domain, root(domain), np.array([first]))
        each = log_softmax(election_scores(domain, below, codes[:, first], codes), units[1])
        assert log == pytest.approx(top[first] + sum(each[np.arange(len(second)), second]), abs=ROUNDING)


SCHEMA = schema_of(2, 3, 2)
SHARE = Fraction(1, 3)


def outcomes(build=Steps, **settings) -> Outcomes:
    return Outcomes(build(epsilon=EPSILON, layers=2, election_share=SHARE, **settings), SCHEMA)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_steps_costs_at_most_epsilon(relation):
    found = outcomes(neighbours=relation)
    total, elections, noise = found.worst(representatives(SCHEMA, relation, (2, 3)))
    assert total <= EPSILON + ROUNDING
    assert elections <= EPSILON * SHARE + ROUNDING
    assert noise == pytest.approx(float(EPSILON * (1 - SHARE)))  # tight
    items = found.mechanism.spends(SCHEMA)
    assert sum(spend.epsilon for spend in items) == EPSILON
    assert len(items) == 5


def test_published_steps_costs_more_than_it_says():
    # the broken twin: sensitivity 1, the cells not paid for, observed levels
    found = outcomes(published("steps"))
    total, _, noise = found.worst(representatives(SCHEMA, "replace-one", (3,)))
    assert noise == pytest.approx(float(2 * EPSILON * (1 - SHARE) * Fraction(3, 2)))
    assert total > 2 * EPSILON
    true_loss = float(EPSILON * (2 * SHARE + 3 * (1 - SHARE)))
    assert f"The true loss is up to {true_loss:g}." in found.mechanism.privacy_loss(SCHEMA).statement
    assert total <= true_loss


def selection_loss(pairs, *, unit: Fraction, observed_levels: bool) -> float:
    """The worst log ratio of one election between two columns, for pairs of (counts of X1, counts of X2)."""

    def scores(counts):
        from pdips.margins.elections import STEPS_PER_UNIT, one_way_aic

        aic = [one_way_aic(np.array([c]), observed_levels=observed_levels)[0] for c in counts]
        return -np.floor(np.array([aic]) * STEPS_PER_UNIT + 0.5).astype(np.int64)

    return max(np.abs(log_softmax(scores(a), unit) - log_softmax(scores(b), unit)).max() for a, b in pairs)


def test_an_election_on_a_large_table_stays_within_its_price():
    # X1 = four single records and the rest, X2 = the record alone and the rest; the record moves
    # to a level of X1 that nobody had and to the common level of X2. With observed levels the loss is twice the claim.
    before, after = ([996, 1, 1, 1, 1, 0], [999, 1]), ([996, 0, 1, 1, 1, 1], [1000, 0])
    alone = ([995, 1, 1, 1, 1, 1], [1000, 0])
    both = [build(epsilon=1, layers=1, election_share="0.999") for build in (Steps, published("steps"))]
    fair, flawed = (1 / made.plan(schema_of(6, 2)).steps[0].scale for made in both)
    pairs = [(before, after), (before, alone)]
    assert selection_loss(pairs, unit=fair, observed_levels=False) <= 1
    assert selection_loss([(before, alone)], unit=flawed, observed_levels=True) > 1.5


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_election_scores_move_by_the_sensitivity_at_most(relation):
    # rounding included, and with the slack of one step that is paid for (docs/proofs/steps.md, lemma 2)
    from pdips.margins.elections import STEPS_PER_UNIT, one_way_aic

    def steps(counts):
        return np.floor(one_way_aic(counts) * STEPS_PER_UNIT + 0.5).astype(int)

    rng = np.random.default_rng(0)
    counts = rng.integers(0, 400, (4000, 4)) * rng.integers(0, 2, (4000, 4)) + 1
    rise = steps(counts + np.array([1, 0, 0, 0])) - steps(counts)
    if relation == "add-remove":
        assert rise.min() >= 0
        assert rise.max() <= 2 * STEPS_PER_UNIT
    else:
        moved = steps(counts + np.array([-1, 1, 0, 0])) - steps(counts)
        assert np.abs(moved).max() <= 2 * STEPS_PER_UNIT


def test_aic_equals_the_log_likelihood_spelt_out():
    from math import lgamma, log

    from pdips.margins.elections import one_way_aic

    for counts in ([3, 0, 5], [0, 0], [1], [300, 2000, 1, 255, 256]):
        n = sum(counts)
        likelihood = lgamma(n + 1) - sum(lgamma(c + 1) for c in counts) + sum(c * log(c / n) for c in counts if c)
        assert one_way_aic(np.array([counts]))[0] == pytest.approx(-2 * likelihood + 2 * (len(counts) - 1), abs=1e-9)
