"""What a release costs, computed exactly: every tiny table, every neighbour, every outcome of the elections.

The noise is discrete Laplace of independent known scales (tests/privacy/test_noise.py), so the worst log ratio over
noisy counts is the l1 distance of the true counts divided by the scales; elections have finitely many outcomes, each
with the probability that the code's own scores give it. No randomness, no tolerance beyond rounding.
"""

from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
from tables import all_tables, replacements, schema_of, table_of

from pdips import LaplaceSanitizer, Steps
from pdips.margins import counts as hierarchy
from pdips.margins.elections import election_scores
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import exact_law
from pdips.registry import published

EPSILON = Fraction(3, 2)
ROUNDING = 1e-9


@pytest.fixture
def silence(monkeypatch):
    """Take the noise away, so that ``measure`` returns what would have had noise added."""
    monkeypatch.setattr(hierarchy, "discrete_laplace", lambda scale, n, bits: np.zeros(n, np.int64))


def observed(table, scales, chooser=None, n_public=True):
    plan = hierarchy.Plan(scales=tuple(scales), chooser=chooser or hierarchy.Given(), n_public=n_public)
    return hierarchy.measure(table, plan, RandomBits(np.random.default_rng()))


def noise_loss(a, b, scales) -> Fraction:
    """The worst log ratio over noisy counts of two tables on one tree; infinite where an exact count differs."""
    assert (a.observed[0] == b.observed[0]).all()
    return sum(
        (
            Fraction(int(np.abs(x - y).sum())) / scale
            for x, y, scale in zip(a.observed[1:], b.observed[1:], scales, strict=True)
        ),
        Fraction(0),
    )


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
@pytest.mark.usefixtures("silence")
def test_sanitizer_costs_exactly_epsilon(relation):
    assert sanitizer_loss(LaplaceSanitizer(epsilon=EPSILON, neighbours=relation), schema_of(2, 3)) == EPSILON


@pytest.mark.usefixtures("silence")
def test_published_sanitizer_costs_twice_what_it_says():
    # the broken twin: sensitivity 1 with a public number of records
    assert sanitizer_loss(published("laplace-sanitizer")(epsilon=EPSILON), schema_of(2, 3)) == 2 * EPSILON


@pytest.mark.usefixtures("silence")
def test_sets_of_their_own_share_the_price():
    one = sanitizer_loss(LaplaceSanitizer(epsilon=EPSILON, n_sets=5, split="per-set"), schema_of(2, 2))
    assert 5 * one == EPSILON


@pytest.mark.usefixtures("silence")
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


@pytest.mark.usefixtures("silence")
def test_the_price_counts_persons():
    schema = schema_of(2, 2, records={"max_per_person": 2})
    assert person_loss(LaplaceSanitizer(epsilon=EPSILON), schema) == EPSILON


@pytest.mark.usefixtures("silence")
def test_forgetting_the_cap_doubles_the_price():
    # the broken twin: the scale for one record a person, the neighbours of a person with two
    mechanism, schema = LaplaceSanitizer(epsilon=EPSILON), schema_of(2, 2)
    assert person_loss(mechanism, schema) == 2 * EPSILON


def all_trees(sizes):
    for first in range(len(sizes)):
        others = [column for column in range(len(sizes)) if column != first]
        for second in product(others, repeat=sizes[first]):
            yield first, second


def log_softmax(scores: np.ndarray, unit: Fraction) -> np.ndarray:
    available = scores != np.iinfo(np.int64).min
    logits = np.where(available, np.where(available, scores, 0) * float(unit), -np.inf)
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


class Forced:
    """Splits the root by ``tree[0]`` and node k of layer 1 by ``tree[1][k]``; adds up how probable that was."""

    def __init__(self, tree, domain, units, observed_levels) -> None:
        self.tree, self.domain, self.units, self.observed_levels = tree, domain, units, observed_levels
        self.log_probability = 0.0

    def draw(self, number, layer, node, codes, *, counts, n_runs, bits):
        chosen = np.array([self.tree[0]] if number == 1 else self.tree[1])
        scores = election_scores(self.domain, layer, node, codes, observed_levels=self.observed_levels)
        log_each = log_softmax(scores, self.units[number - 1])
        self.log_probability += log_each[np.arange(layer.n_nodes), chosen].sum()
        return chosen[None]


class Outcomes:
    """For one mechanism: the log probability of every tree and the true counts on it, table by table."""

    def __init__(self, mechanism: Steps, schema) -> None:
        self.mechanism, self.schema = mechanism, schema
        self.sizes = [column.n_levels for column in schema.columns.values()]
        self.scales, self.units = mechanism.scales(schema), mechanism.election_units(schema)
        self.n_public = mechanism.neighbours == "replace-one"
        self.seen = lru_cache(None)(self._seen)

    def _seen(self, records):
        return [self._on_tree(records, tree) for tree in all_trees(self.sizes)]

    def _on_tree(self, records, tree):
        forced = Forced(tree, hierarchy.domain_of(self.schema), self.units, self.mechanism.variant == "published")
        measured = observed(table_of(records, self.schema), self.scales, forced, self.n_public)
        return measured, forced.log_probability

    def worst(self, pairs) -> tuple[float, float, float]:
        """Return the worst total, and the worst of the elections and of the noise alone."""
        total = elections = noise = 0.0
        for a, b in pairs:
            for (counts_a, log_a), (counts_b, log_b) in zip(self.seen(a), self.seen(b), strict=True):
                lost = float(noise_loss(counts_a, counts_b, self.scales))
                total, elections, noise = (
                    max(total, abs(log_a - log_b) + lost),
                    max(elections, abs(log_a - log_b)),
                    max(noise, lost),
                )
        return total, elections, noise


SCHEMA = schema_of(2, 3, 2)
SHARE = Fraction(1, 3)


def outcomes(**settings) -> Outcomes:
    return Outcomes(Steps(epsilon=EPSILON, layers=2, election_share=SHARE, **settings), SCHEMA)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.usefixtures("silence")
def test_steps_costs_at_most_epsilon(relation):
    found = outcomes(neighbours=relation)
    total, elections, noise = found.worst(neighbour_pairs(SCHEMA, relation, (2, 3)))
    assert total <= EPSILON + ROUNDING
    assert elections <= EPSILON * SHARE + ROUNDING
    assert noise == pytest.approx(float(EPSILON * (1 - SHARE)))  # tight
    items = found.mechanism.spends(SCHEMA)
    assert sum(spend.epsilon for spend in items) == EPSILON
    assert len(items) == 5


@pytest.mark.usefixtures("silence")
def test_published_steps_costs_more_than_it_says():
    # the broken twin: sensitivity 1, the cells not paid for, observed levels
    found = outcomes(variant="published")
    total, _, noise = found.worst(neighbour_pairs(SCHEMA, "replace-one", (3,)))
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
    fair = Steps(epsilon=1, layers=1, election_share="0.999").election_units(schema_of(6, 2))[0]
    flawed = Steps(epsilon=1, layers=1, election_share="0.999", variant="published").election_units(schema_of(6, 2))[0]
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
