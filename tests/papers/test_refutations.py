"""Claims that don't hold: the page's figures, and each against something else."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from pdips.data.schema import Schema
from pdips.margins.elections import one_way_aic
from pdips_papers import refutations
from pdips_papers.harness.printed import figures
from pdips_papers.steps.as_printed import PrintedSteps

PAGE = Path(__file__).parents[2] / "docs" / "proofs" / "refutations.md"
BETWEEN = r"(?s)<!-- table: [^>]*-->\n(.*?)<!-- end of table -->"
COLUMNS = Schema.model_validate(
    {"columns": {name: {"levels": [0, 1]} for name in "abcd"}}
)


def test_the_page_has_the_table_of_the_script():
    [shown] = re.findall(BETWEEN, PAGE.read_text(encoding="utf-8"))
    assert shown.strip() == refutations.table()


def test_a_censored_draw_costs_up_to_twice_the_claim():
    priors = np.geomspace(1e-8, 0.5, 50)
    losses = [refutations.censored_loss(prior) for prior in priors]
    assert 1.9999 < max(losses) < 2
    # as two laws that are worked out in full
    prior = np.array([0.001, 0.999])
    one, other = (prior * np.exp(sign * np.array([0.5, -0.5])) for sign in (1, -1))
    by_hand = np.log(one / one.sum()) - np.log(other / other.sum())
    assert refutations.censored_loss(0.001) == pytest.approx(by_hand[0])


@pytest.mark.parametrize("n_layers", [2, 3])
def test_prices_of_trees_are_those_of_the_printed_form(n_layers):
    tree = PrintedSteps(epsilon=1, order=tuple("abcd")[:n_layers])
    plan = tree.plan(COLUMNS)
    replaced, added = refutations.tree_prices(n_layers)
    assert sum(step.price for step in plan.steps) == added
    assert replaced == 2 * added
    assert f"The true loss is up to {float(replaced):g}." in plan.law


def largest_move(n: int, *, observed_levels: bool) -> float:
    """Return the largest change of AIC of two and three levels, one of n records
    replaced.
    """
    largest = 0.0
    for a in range(n + 1):
        for b in range(n + 1 - a):
            counts = np.array([a, b, n - a - b])
            here = one_way_aic(counts[None], observed_levels=observed_levels)
            for out, into in ((0, 1), (0, 2), (1, 2)):
                if counts[out]:
                    moved = counts.copy()
                    moved[out] -= 1
                    moved[into] += 1
                    there = one_way_aic(moved[None], observed_levels=observed_levels)
                    largest = max(largest, abs(here - there).item())
    return largest


def test_only_with_public_levels_does_aic_move_by_two():
    assert largest_move(30, observed_levels=False) < 2
    assert 3.9 < largest_move(30, observed_levels=True) < 4
    assert refutations.election_width(30) == pytest.approx(
        largest_move(30, observed_levels=True)
    )


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_redrawing_costs_what_its_law_says(epsilon):
    places = np.linspace(0, 200, 200_001)
    laws = []
    for count in (0, 1):
        weight = np.exp(-epsilon * np.abs(places - count))
        laws.append(weight / weight.sum())
    loss = np.abs(np.log(laws[0] / laws[1])).max()
    assert refutations.redraw_loss(epsilon) == pytest.approx(loss, abs=2e-3)
    # moving to the nearest bound costs epsilon
    assert loss > 1.3 * epsilon


def mean_distance(tables: np.ndarray, k: int) -> float:
    """Return the mean distance of the k-way margins of two tables of shares."""
    n = tables[0].ndim
    apart = []
    for kept in combinations(range(n), k):
        others = tuple(axis for axis in range(n) if axis not in kept)
        one, other = (table.sum(axis=others) for table in tables)
        apart.append(np.abs(one - other).sum())
    return float(np.mean(apart))


def test_the_mean_distance_of_margins_cannot_fall():
    rng = np.random.default_rng(5)
    for _ in range(200):
        tables = rng.dirichlet(np.full(2**5, 0.3), size=2).reshape(2, *[2] * 5)
        means = [mean_distance(tables, k) for k in range(1, 6)]
        assert means == sorted(means)
    # what is printed does
    for row in ("Laplace sanitizer", "MODIPS"):
        printed = list(figures("fertility", "table-5")[row][4:])
        assert printed != sorted(printed)


def test_private_classifiers_of_table_4_are_coins():
    assert refutations.balanced("original") == pytest.approx(0.5)
    for row in ("PrivateSVM", "Laplace sanitizer", "MODIPS"):
        assert abs(refutations.balanced(row) - 0.5) < 0.025
        altered, missed, wrong, normal, rate = figures("fertility", "table-4")[row]
        assert altered + missed == pytest.approx(3)
        assert wrong + normal == pytest.approx(17)
        assert 5 * (altered + normal) == pytest.approx(rate, abs=0.06)


def test_printed_counts_of_censor_w_are_all_or_nothing():
    share, count = refutations.two_point("Censor_w, epsilon = 5")
    assert (share, count) == pytest.approx((0.58, 263), rel=5e-3)
    least, low, middle, mean, high, most, deviation = figures(
        "censored-beta", "counts"
    )["Censor_w, epsilon = 5"]
    assert least == low == middle == 0 < mean < deviation < high < most
    # Censor_uw's aren't
    share, count = refutations.two_point("Censor_uw, epsilon = 5")
    assert share < 0.01
    assert count == pytest.approx(247, rel=0.01)
