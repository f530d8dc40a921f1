"""PrivBayes as the papers ran it: mutual information, how far it moves, and what
choices of a network by it cost.
"""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from tables import FAMILY_SHAPES, largest_score_move, schema_of, worst_loss

from pdips_papers.steps.as_printed import (
    INFORMATION_STEPS,
    PrintedPrivBayes,
    information_sensitivity,
    mutual_information,
)

EPSILON = Fraction(3, 2)


@pytest.mark.parametrize(("rows", "columns", "n"), FAMILY_SHAPES)
def test_mutual_information_moves_by_its_sensitivity_at_most(rows, columns, n):
    binary = 2 in (rows, columns)
    allowed = information_sensitivity(n, binary=binary)
    found = largest_score_move(mutual_information, rows, columns, n)
    assert found <= allowed
    if not binary:  # the broken twin: the constant of binary families for all
        assert found > information_sensitivity(n, binary=True)
    # attained but for rounding, which takes two steps at most
    if binary or n % 2:
        assert found >= allowed - 3


def test_one_record_has_no_information():
    assert information_sensitivity(1, binary=False) == 1
    assert mutual_information(np.array([[0, 1], [0, 0]])) == 0


def test_mutual_information_equals_its_definition():
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.integers(0, 50, (3, 4)) * rng.integers(0, 2, (3, 4))
        joint = counts / counts.sum()
        apart = np.outer(joint.sum(axis=1), joint.sum(axis=0))
        nats = counts.sum() * stats.entropy(joint.ravel(), apart.ravel())
        found = mutual_information(counts)
        assert found == pytest.approx(nats * INFORMATION_STEPS, abs=0.51)


@pytest.mark.slow
def test_choices_cost_their_share_whatever_the_tables_cost():
    made = PrintedPrivBayes(
        epsilon=EPSILON, degree=1, usefulness=0, network_share="0.999"
    )
    cost = worst_loss(made, schema_of(2, 2, 2), (4,), only="choices")
    assert EPSILON / 3 < cost <= EPSILON
