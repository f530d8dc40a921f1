"""The smallest epsilon for a stated accuracy: minimal, rounded up, refused where it can't be told."""

import json
import math
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tables import cases, random_table, refuses, schema_of

from pdips import LaplaceSanitizer, Modips, PrivBayes, Schema, Steps, Table, calibrate
from pdips.margins import planning
from pdips.registry import MECHANISMS, find, published

REPOSITORY = Path(__file__).parents[2]
HOURS = REPOSITORY / "examples" / "hours.toml"
SCHEMA = schema_of(3, 2, 2)
OTHER = random_table(schema_of(2, 2), 20)
CLOSED = ("laplace-sanitizer", "modips", "pairs", "steps")


def step_below(epsilon: Fraction) -> Fraction:
    """The next smaller number of three digits, by decimals alone."""
    three, number = Context(prec=3), Decimal(str(float(epsilon)))
    assert three.plus(number) == number
    return Fraction(three.next_minus(number))


@pytest.mark.parametrize("target", [0.7, 12.0, 450.0])
def test_the_next_smaller_epsilon_misses_the_target(neighbours, target):
    order = ("a", "b")
    found = calibrate(
        Steps(epsilon=7, order=order, below="cells", neighbours=neighbours), SCHEMA, standard_error=target
    )

    def worst(epsilon: Fraction) -> float:
        told = planning.margin_errors(SCHEMA, epsilon=epsilon, order=order, layers=2, neighbours=neighbours)
        return float(told["se_records"].max())

    assert worst(found.epsilon) <= target < worst(step_below(found.epsilon))
    assert found.reached == pytest.approx(worst(found.epsilon))
    assert found.method == "closed form"
    assert found.mechanism == Steps(epsilon=found.epsilon, order=order, below="cells", neighbours=neighbours)
    assert found.by_margin["reached"].iloc[0] == found.reached
    assert "no table was read" in found.statement


def test_a_width_is_that_of_its_interval_and_minimal():
    made = LaplaceSanitizer(epsilon=1)
    found = calibrate(made, SCHEMA, interval_width=100, level=0.9, of="two-way")
    below = replace(made, epsilon=step_below(found.epsilon))
    # noise of 12 cells by the exact law: a cell of b x c is 3 cells less a quarter of all 12
    rng, weights = np.random.default_rng(1), np.array([1 - 1 / 4] * 3 + [-1 / 4] * 9)
    for epsilon, wide in ((found.epsilon, 100), (below.epsilon, 100 / 1.02)):
        rate = float(epsilon) / 2
        noise = rng.geometric(1 - math.exp(-rate), (40_000, 12)) - rng.geometric(1 - math.exp(-rate), (40_000, 12))
        share = (np.abs(noise @ weights) <= wide / 2).mean()
        # 5 standard errors of a share of 0.9, error rate 3e-7 a side; a width 2 % smaller covers less
        assert share > 0.9 - 5 * 0.0015 if wide == 100 else share < 0.9
    assert found.reached <= 100
    assert len(found.by_margin) == 3


def test_shares_sets_and_samples():
    made = LaplaceSanitizer(epsilon=1, n_sets=4, split="per-set")
    records = calibrate(made, SCHEMA, standard_error=20, of="b")
    share = calibrate(made, SCHEMA, standard_error=0.02, in_="share", n_records=1_000, of=[("b",)])
    assert records.epsilon == share.epsilon
    assert share.unit == "share of the records"
    # four tables at a quarter of epsilon each have four times the scale, their mean half its error: twice in all
    once = calibrate(LaplaceSanitizer(epsilon=1), SCHEMA, standard_error=20, of="b")
    assert float(records.epsilon / once.epsilon) == pytest.approx(2, rel=0.01)
    sampled = calibrate(made, SCHEMA, standard_error=20, of="b", n_records=1_000, sampling_share=0.5)
    assert sampled.epsilon == calibrate(made, SCHEMA, standard_error=math.sqrt(20**2 - 1_000 / 4), of="b").epsilon
    guess = calibrate(replace(made, neighbours="add-remove"), SCHEMA, standard_error=0.02, in_="share", n_records=1_000)
    assert "public guess" in guess.statement


def test_functions_classes_and_budgets_by_layer():
    found = calibrate(Steps(epsilon=3, order=("a",), below="cells", budget=(1, 2)), SCHEMA, standard_error=10)
    assert found.mechanism.budget == (found.epsilon / 3, 2 * found.epsilon / 3)
    assert calibrate(LaplaceSanitizer, SCHEMA, standard_error=10).epsilon == (
        calibrate(lambda epsilon: LaplaceSanitizer(epsilon=epsilon), SCHEMA, standard_error=10).epsilon
    )
    assert repr(found).startswith("Calibration(epsilon=")
    tried = pd.DataFrame({"epsilon": [0.01], "reached": [math.inf], "monte_carlo_error": [0.0], "worst": ["none"]})
    plain = json.loads(json.dumps(replace(found, by_epsilon=tried).describe(), allow_nan=False))
    assert plain["epsilon"] == float(found.epsilon)
    assert plain["by_epsilon"][0]["reached"] is None  # too small an epsilon


def test_statistics_of_a_model():
    made = Modips(epsilon=1, model="multinomial", budget="equal")
    found = calibrate(made, SCHEMA, standard_error=30, of=["counts", ("a", "b")])
    counts, pairs = (float(found.by_margin.set_index("margin")["reached"][name]) for name in ("counts", "a x b"))
    assert pairs == pytest.approx(counts * math.sqrt(2))
    assert pairs <= 30
    column = Schema(columns={"x": {"lower": 0.0, "upper": 1.0, "resolution": 0.01}})
    moments = Modips(epsilon=1, model="normal_moments", kind="zcdp")
    both = calibrate(moments, column, interval_width=3, of=["total", "squares"])
    assert both.unit == "its own unit"
    assert both.reached <= 3
    refuses("nor a statistic of the model: total, squares", calibrate, moments, column, standard_error=1, of="median")


def test_a_simulation_meets_its_target_with_room_for_its_own_error():
    table = random_table(SCHEMA, 400)
    asked: dict[str, Any] = {"standard_error": 0.03, "in_": "share", "public_table": table, "replicates": 10, "of": "a"}
    found = calibrate(PrivBayes(epsilon=1), SCHEMA, **asked)
    assert found.method == "simulation"
    assert found.reached + 2 * found.monte_carlo_error <= 0.03
    assert found.monte_carlo_error > 0
    tried = found.by_epsilon.set_index("epsilon")
    smaller = tried.loc[tried.index < float(found.epsilon)]
    assert (smaller["reached"] + 2 * smaller["monte_carlo_error"] > 0.03).all()
    assert "PUBLIC or SYNTHETIC" in found.statement
    assert found.epsilon == calibrate(PrivBayes(epsilon=1), SCHEMA, **asked).epsilon


def test_simulated_widths_and_measures():
    asked: dict[str, Any] = {"n_records": 300, "replicates": 8, "largest_epsilon": 20}
    wide = calibrate(PrivBayes(epsilon=1), SCHEMA, interval_width=60, of="b", level=0.8, **asked)
    assert wide.epsilon > calibrate(PrivBayes(epsilon=1), SCHEMA, standard_error=60, of="b", **asked).epsilon
    assert "made-up records" in wide.statement

    def share(sets: list[pd.DataFrame]) -> float:
        return float(np.mean([(frame["b"] == 1).mean() for frame in sets]))

    found = calibrate(PrivBayes(epsilon=1, n_sets=2), SCHEMA, standard_error=0.05, measure=share, **asked)
    assert found.worst == "measure"
    assert found.reached <= 0.05
    few: dict[str, Any] = {"interval_width": 0.5, "n_records": 20, "replicates": 5, "largest_epsilon": 1}
    assert calibrate(PrivBayes(epsilon=1), SCHEMA, measure=lambda sets: 0.4, **few).epsilon == Fraction(1, 100)
    refuses("finite", calibrate, PrivBayes(epsilon=1), SCHEMA, measure=lambda sets: math.nan, **few)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_every_mechanism_works_or_says_why_not(name):
    models = {"censored-posterior": "normal", "pseudo-posterior": "normal", "modips": "multinomial", "scores": "normal"}
    made = find(name)(epsilon=1, **({"model": models[name]} if name in models else {}))
    asked: dict[str, Any] = {"standard_error": 60, "n_records": 200, "replicates": 5, "of": "c", "largest_epsilon": 10}
    # a model of records that fits the schema takes seconds to compile
    one = "describes one numeric column"
    refused = {"pseudo-posterior": "bounds nothing", "censored-posterior": one, "scores": one}
    if name in refused:
        refuses(refused[name], calibrate, made, SCHEMA, **asked)
        return
    found = calibrate(made, SCHEMA, **asked)
    assert found.method == ("closed form" if name in CLOSED else "simulation")
    assert found.reached <= 60


@pytest.mark.parametrize(("name", "asked", "message"), cases(__file__, "refusals"))
def test_refusals(name, asked, message):
    refuses(message, calibrate, find(name)(epsilon=1), SCHEMA, **asked)


@pytest.mark.parametrize(
    ("made", "asked", "message"),
    [
        (published("laplace-sanitizer")(epsilon=1), {"standard_error": 1}, "bounds nothing"),
        (PrivBayes(epsilon=1), {"standard_error": 5, "public_table": OTHER}, "another schema"),
        (Steps(epsilon=1, elect="node"), {"standard_error": 1}, "elected"),
        ("steps", {"standard_error": 1}, "mechanism must be"),
        (lambda epsilon: LaplaceSanitizer(epsilon=1), {"standard_error": 10}, "one with this epsilon"),
    ],
)
def test_mechanisms_that_cannot_be_calibrated_are_refused(made, asked, message):
    refuses(message, calibrate, made, SCHEMA, **asked)


def test_a_margin_of_public_columns_is_refused():
    schema = schema_of(3, 2, 2)
    schema.columns["a"] = schema.columns["a"].model_copy(update={"public": True})
    refuses("exact at any epsilon", calibrate, LaplaceSanitizer(epsilon=1), schema, standard_error=5, of="a")


def test_the_closed_form_reads_no_table(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a table was made")

    monkeypatch.setattr(Table, "__init__", refuse)
    monkeypatch.setattr(Table, "read", refuse)
    assert calibrate(Steps(epsilon=1), SCHEMA, interval_width=100).reached <= 100


def test_the_command(pdips, tmp_path):
    words = ["calibrate", "steps", "--schema", HOURS, "--margin", "age", "--margin", "sex,income"]
    shown = pdips.ok(*words, "--standard-error", 100, "--json", tmp_path / "told.json")
    held = json.loads((tmp_path / "told.json").read_text())
    assert shown.startswith(
        f"smallest  epsilon = {held['epsilon']:g} in total over 1 set, replace-one neighbours (closed"
    )
    assert [row["margin"] for row in held["by_margin"]] == ["sex x income", "age"]
    assert held["reached"] <= 100
    public, small = tmp_path / "public.csv", tmp_path / "s.toml"
    small.write_text('[columns.a]\nlevels = ["x", "y"]\n[columns.b]\nlevels = ["u", "v", "w"]\n')
    pd.DataFrame({"a": ["x", "y"] * 60, "b": ["u", "v", "w"] * 40}).to_csv(public, index=False)
    words = ["calibrate", "privbayes", "--schema", small, "--standard-error", 0.1, "--share", "--replicates", 5]
    code, shown, _ = pdips(*words, "--public-table", public, "--sets", 2)
    assert code == 0
    assert "(simulation)" in shown
    assert "PUBLIC or SYNTHETIC" in shown
    assert "share of the records, Monte Carlo standard error" in shown


@pytest.mark.parametrize(("path", "message"), [("", "must name a file"), ("no/x.json", "a folder that doesn't exist")])
def test_a_file_that_could_not_be_written_is_refused_first(pdips, tmp_path, path, message):
    pdips.fails(message, "calibrate", "steps", "--schema", HOURS, "--standard-error", 100, "--json", tmp_path / path)


def test_the_page_shows_what_is_found():
    youth, asked = Schema.load(REPOSITORY / "examples" / "youth.toml"), {"in_": "share", "n_records": 48_371}
    found = calibrate(Steps(epsilon=1), youth, standard_error=0.01, **asked)
    assert f"\n# {found}\n" in (REPOSITORY / "docs" / "calibrate.md").read_text(encoding="utf-8")
