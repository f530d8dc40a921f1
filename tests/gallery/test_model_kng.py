"""Quantile regressions by the K-norm gradient density: forms, starts, and what a
release pays, rounds and refuses.
"""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from tables import cases, refuses

from pdips import RefusedError, Schema, Table
from pdips.posterior import model_file

lines = model_file.load(model_file.path("kng_quantile_regression"))[0]

SCHEMA = Schema.from_toml(
    "[columns.age]\nlower = 20\nupper = 60\n[columns.wage]\nlower = 0\nupper = 6000\n"
)
TAUS = ("1/10", "1/2", "9/10")
QUICK = {"draws": 300, "tune": 60}


def table(n=300):
    rng = np.random.default_rng(1)
    age = rng.uniform(20, 60, n)
    return Table(
        pd.DataFrame(
            {
                "age": age,
                "wage": (1000 + 30 * age + rng.exponential(600, n)).clip(0, 6000),
            }
        ),
        SCHEMA,
    )


@pytest.fixture(autouse=True)
def _seeded(monkeypatch):
    """Releases draw by one seed: chains of so few draws disagree now and then."""
    seeded = np.random.default_rng(8)
    monkeypatch.setattr(
        np.random,
        "default_rng",
        lambda *seed, made=np.random.default_rng: made(*seed) if seed else seeded,
    )


@pytest.fixture
def opened(ledger):
    ledger.set_total(10)
    return ledger


@pytest.mark.slow
@pytest.mark.parametrize("form", lines.FORMS)
@pytest.mark.parametrize("spread", [None, 3000.0])
def test_released_lines_are_priced_rounded_and_dont_cross(form, spread, opened):
    settings = {"form": form, "main": ["1/10"], "spread": spread, "ledger": opened}
    found, loss, trees = lines.release_lines(
        table(), "wage", ["age"], TAUS, 6, **settings, **QUICK
    )
    assert (loss.epsilon, loss.kind, loss.sampling, loss.neighbours) == (
        6,
        "pure",
        "mcmc",
        "replace-one",
    )
    assert "nothing bounds" in loss.statement
    assert opened.summary().spent_epsilon == 6
    spends = [(spend.step, spend.epsilon) for spend in opened.entries()[0].spends]
    assert spends == [(f"line {tau}", 2) for tau in (0.1, 0.5, 0.9)]
    assert len(trees) == (1 if form == "joint" else 3)
    ordered = [found[tau] for tau in sorted(found)]
    for below, above in pairwise(ordered):
        assert (above - below)[0] >= np.abs((above - below)[1:]).sum()
    step = 2.0**-7  # the least power of two above 6,000 / 2^20
    assert all((line / step == np.rint(line / step)).all() for line in ordered)
    middle = found[Fraction(1, 2)]
    # the median at 40 years; chains and noise of epsilon 2 move it by about 30
    assert abs(middle[0] - 2616) < 400


@pytest.mark.slow
def test_no_more_is_said_than_was_paid(monkeypatch):
    seen = []
    whole = lines.knorm_gradient
    monkeypatch.setattr(
        lines,
        "knorm_gradient",
        lambda *a, **k: seen.append(k["scale"]) or whole(*a, **k),
    )
    lines.release_lines(table(), "wage", [], TAUS, "0.7", **QUICK)
    assert 0 < 2 * sum(map(Fraction, seen)) <= Fraction("0.7")
    assert len(seen) == 3


EDGES, QUARTILES = np.array([0.0, 1.0, 2.0, 4.0, 7.0, 10.0]), (0.25, 0.75)
"""The box [0, 10] as the outcomes 1, 2, 4, 7 cut it: with an intercept alone the
density is constant on intervals.
"""


def exact_law(scale, floor=0.0, *, apart=True):
    """Probability of each two intervals of the lower and the upper quartile, which
    mustn't cross, above a floor.
    """
    widths = np.maximum(EDGES[1:] - np.maximum(EDGES[:-1], floor), 0)
    steep = [np.exp(-scale * np.abs(np.arange(5) - 4 * tau)) for tau in QUARTILES]
    law = np.outer(*(widths * each for each in steep))
    law = np.triu(law) - (np.diag(np.diag(law)) / 2 if apart else 0)
    return law / law.sum()


@pytest.mark.slow
@pytest.mark.parametrize("floor", [None, 2.5])
def test_draws_have_their_exact_law_in_total_variation(floor):
    # 2,000 effective draws over 15 cells: expected distance .03; above .07 with
    # probability at most exp(-2 2000 .04^2)
    box = [[0.0], [10.0]]
    y = np.repeat(EDGES[1:-1], 400)  # the step moves less often for many records
    around = {"floor": None if floor is None else [floor]}
    model = lines.lines_model(
        np.ones((1600, 1)), y, QUARTILES, 0.8 / 400, *box, **around
    )
    starts = [
        {
            lines.name_of(tau): np.array([height])
            for tau, height in zip(QUARTILES, (3.0, 8.0), strict=True)
        }
    ] * 4
    draws = lines.sample_lines(model, starts, draws=800, tune=100, rng=3)["posterior"]
    low, high = (
        np.searchsorted(
            EDGES[1:-1], draws[lines.name_of(tau)].to_numpy().ravel(), side="right"
        )
        for tau in QUARTILES
    )
    found = np.zeros((5, 5))
    np.add.at(found, (low, high), 1 / low.size)

    def distance(*law, **more):
        return np.abs(found - exact_law(*law, **more)).sum() / 2

    assert distance(0.8, floor or 0.0) < 0.07
    assert distance(0.4, floor or 0.0) > 0.07  # another scale
    # crossing within an interval
    assert distance(0.8, floor or 0.0, apart=False) > 0.07
    assert distance(0.8, 1.5) > 0.07  # another floor


def test_stages_go_outwards_and_main_lines_come_first():
    taus = [Fraction(k, 10) for k in (1, 3, 5, 7, 9)]
    expected = {
        "joint": [[1, 3, 5, 7, 9]],
        "stepwise": [[5], [3], [7], [1], [9]],
        "sandwich": [[5], [1], [9], [3], [7]],
    }
    for form, order in expected.items():
        assert [
            [int(10 * tau) for tau in stage]
            for stage in lines.stages_of(taus, form, taus[::4])
        ] == order


FLOOR, CEILING = {"floor": [1.0, 0.5]}, {"ceiling": [5.0, -0.5]}


@pytest.mark.parametrize("around", [{}, FLOOR, CEILING, FLOOR | CEILING])
def test_starts_lie_in_the_box_and_between_public_lines(around):
    rng, taus = np.random.default_rng(2), [Fraction(1, 4), Fraction(1, 2)]
    for start in lines.public_starts(taus, [0, -6], [6, 6], rng, **around):
        whole = [
            around.get("floor"),
            *(start[lines.name_of(tau)] for tau in taus),
            around.get("ceiling"),
        ]
        whole = [np.array(line) for line in whole if line is not None]
        for below, above in pairwise(whole):
            assert (above - below)[0] >= np.abs((above - below)[1:]).sum()
        assert all((line >= [0, -6]).all() and (line <= 6).all() for line in whole)


def test_a_line_that_rounding_moves_across_another_becomes_it():
    floor, ceiling = np.array([1.0, 0.5]), np.array([2.0, 0.5])
    assert lines.rounded(np.array([1.3, 0.49]), 0.5, floor, ceiling).tolist() == [
        1.5,
        0.5,
    ]
    assert (
        lines.rounded(np.array([1.1, 0.3]), 0.25, floor, None).tolist()
        == floor.tolist()
    )
    assert (
        lines.rounded(np.array([1.9, 0.7]), 0.25, None, ceiling).tolist()
        == ceiling.tolist()
    )


def test_chains_that_disagree_release_nothing_and_stay_charged(opened):
    with pytest.raises(RefusedError, match="did not converge"):
        lines.release_lines(
            table(), "wage", ["age"], TAUS, 6, ledger=opened, draws=5, tune=2
        )
    assert opened.summary().spent_epsilon == 6
    with pytest.raises(RefusedError, match="remain"):
        lines.release_lines(table(), "wage", ["age"], TAUS, 6, ledger=opened, **QUICK)


@pytest.mark.parametrize(
    ("change", "words"),
    cases(__file__, "bad_settings_are_refused_before_anything_is_spent"),
)
def test_bad_settings_are_refused_before_anything_is_spent(change, words, opened):
    settings = {
        "outcome": "wage",
        "predictors": ["age"],
        "taus": TAUS,
        "epsilon": 6,
        "ledger": opened,
    } | change
    refuses(words, lines.release_lines, table(), **settings)
    assert not opened.entries()


def test_taus_of_a_model_increase():
    refuses(
        "increase",
        lines.lines_model,
        np.ones((9, 1)),
        np.arange(9.0),
        [0.7, 0.3],
        1.0,
        [0],
        [9],
    )
