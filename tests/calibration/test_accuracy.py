"""The smallest epsilon for counts that are near enough: minimal, rounded up, refused
where it can't be told.
"""

import math
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from margin_tables import of_pairs
from tables import cases, refuses, schema_of

from pdips import LaplaceSanitizer, Margins, Modips, PrivBayes, Schema, Steps, Table
from pdips.calibration import accuracy
from pdips.calibration.accuracy import Want, smallest_epsilon
from pdips.margins.forecast import errors_of
from pdips.registry import published

HOURS = Path(__file__).parents[2] / "examples" / "hours.toml"
SCHEMA = schema_of(3, 2, 2)


def step_below(epsilon: Fraction) -> Fraction:
    """The next smaller number of three digits, by decimals alone."""
    three, number = Context(prec=3), Decimal(str(float(epsilon)))
    assert three.plus(number) == number
    return Fraction(three.next_minus(number))


@pytest.mark.parametrize("within", ["2", "30", "910"])
def test_the_next_smaller_epsilon_misses_what_is_wanted(neighbours, within):
    made = Steps(epsilon=7, order=("a", "b"), below="cells", neighbours=neighbours)
    enough = smallest_epsilon(made, SCHEMA, [f"all within {within}"])

    def worst(epsilon: Fraction) -> float:
        plan = replace(made, epsilon=epsilon).plan(SCHEMA)
        return max(each.half_width(0.95) for each in errors_of(plan, "all").values())

    below = step_below(enough.epsilon)
    assert worst(enough.epsilon) <= float(within) < worst(below)
    assert enough.reached == pytest.approx(worst(enough.epsilon))
    assert enough.bound == float(within)


def test_counts_are_as_near_as_wanted_and_the_epsilon_is_minimal():
    made = LaplaceSanitizer(epsilon=1)
    enough = smallest_epsilon(made, SCHEMA, ["two-way within 50"])
    # noise of 12 cells by the exact law: a cell of b x c is 3 cells less a quarter of
    # all 12
    rng, weights = np.random.default_rng(1), np.array([1 - 1 / 4] * 3 + [-1 / 4] * 9)
    for epsilon, bound in (
        (enough.epsilon, 50),
        (step_below(enough.epsilon), 50 / 1.02),
    ):
        p = 1 - math.exp(-float(epsilon) / 2)
        noise = rng.geometric(p, (40_000, 12)) - rng.geometric(p, (40_000, 12))
        share = (np.abs(noise @ weights) <= bound).mean()
        # 5 standard errors of a share of 0.95, error rate 3e-7 a side; a bound 2 %
        # smaller holds less often
        assert share > 0.95 - 5 * 0.0011 if bound == 50 else share < 0.95


def test_several_wants_are_met_and_the_hardest_is_told():
    made = LaplaceSanitizer(epsilon=1, n_sets=4, split="per-set")
    wants = ["a within 40", "b x c within .02"]
    enough = smallest_epsilon(made, SCHEMA, wants, 1_000)
    alone = [smallest_epsilon(made, SCHEMA, [want], 1_000) for want in wants]
    assert enough == max(alone, key=lambda each: each.epsilon)
    assert (enough.hardest, enough.bound) == ("b x c", 20)
    # four tables at a quarter of epsilon each have four times the scale, their mean
    # half its error: twice in all
    once = smallest_epsilon(LaplaceSanitizer(epsilon=1), SCHEMA, wants, 1_000)
    assert float(enough.epsilon / once.epsilon) == pytest.approx(2, rel=0.03)


def test_budgets_by_layer_are_scaled():
    made = Steps(epsilon=3, order=("a",), below="cells", budget=(1, 2))
    enough = smallest_epsilon(made, SCHEMA, ["all within 20"])
    scaled = replace(
        made,
        epsilon=enough.epsilon,
        budget=(enough.epsilon / 3, 2 * enough.epsilon / 3),
    )
    errors = errors_of(scaled.plan(SCHEMA), "all").values()
    assert max(each.half_width(0.95) for each in errors) == enough.reached <= 20


def test_statistics_of_a_model():
    made = Modips(epsilon=1, model="multinomial", budget="equal")
    counts, pairs = (
        errors_of(made.plan(SCHEMA), words)[words].standard_error
        for words in ("counts", "a x b")
    )
    assert pairs == pytest.approx(counts * math.sqrt(2))
    enough = smallest_epsilon(made, SCHEMA, ["counts within 50", "a x b within 60"])
    assert enough.hardest == "a x b"
    column = Schema(columns={"x": {"lower": 0.0, "upper": 1.0, "resolution": 0.01}})
    moments = Modips(epsilon=1, model="normal_moments", delta="1e-6")
    assert smallest_epsilon(moments, column, ["squares within 3"]).reached <= 3
    said = "nor a statistic of the model: total, squares"
    refuses(said, smallest_epsilon, moments, column, ["median within 3"])


@pytest.mark.parametrize(("wants", "message"), cases(__file__, "refusals"))
def test_refusals(wants, message):
    schema = schema_of(3, 2, 2)
    schema.columns["p"] = schema.columns["a"].model_copy(update={"public": True})
    refuses(message, smallest_epsilon, Margins(epsilon=1), schema, wants)


def test_what_no_epsilon_meets_and_columns_without_a_margin_are_refused(monkeypatch):
    columns = {"a": {"levels": [0, 1]}, "free": {"lower": 0.0, "upper": 1.0}}
    schema = Schema(columns=columns)
    said = "neither levels nor bins"
    refuses(
        said,
        smallest_epsilon,
        of_pairs(epsilon=1),
        schema,
        ["free within 5"],
    )
    monkeypatch.setattr(accuracy, "LARGEST", Fraction(1))
    said = "isn't met at epsilon = 1, the largest"
    refuses(said, smallest_epsilon, Margins(epsilon=1), SCHEMA, ["all within 2"])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (published("laplace-sanitizer")(epsilon=1), "bounds nothing"),
        (PrivBayes(epsilon=1), "aren't known in closed form"),
        (Steps(epsilon=1, elect="node"), "elected"),
    ],
)
def test_mechanisms_without_a_form_are_refused(made, message):
    refuses(message, smallest_epsilon, made, SCHEMA, ["a within 5"])


def test_no_table_is_read(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a table was made")

    monkeypatch.setattr(Table, "__init__", refuse)
    monkeypatch.setattr(Table, "read", refuse)
    made = Margins(epsilon=1)
    assert smallest_epsilon(made, SCHEMA, ["all within 50"]).reached <= 50


def test_a_want_is_read_from_the_right():
    want = Want.of("within x age within 1/3")
    assert (want.margins, want.within) == ("within x age", Fraction(1, 3))
    assert want.in_records(30) == 10


def test_the_command(pdips):
    words = ["plan", HOURS, "--mechanism", "margins", "--records", 48_842]
    wants = ["education x income within .005", "age within 400"]
    shown = pdips.ok(*words, "--want", wants[0], "--want", wants[1])
    enough = smallest_epsilon(Margins(epsilon=1), Schema.load(HOURS), wants, 48_842)
    assert (
        f"epsilon = {float(enough.epsilon):g} is the smallest that meets all" in shown
    )
    assert f"the hardest is {enough.hardest}, within " in shown
    pdips.fails("must be like", *words, "--want", "education")
