"""What a plan says that a release will be worth, and what it comes to."""

import json
import math
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from tables import cases

from pdips import Column, Ledger, Margins, Schema, Table
from pdips.calibration.closed_form import prospects
from pdips.fields.pair_counts import MARGINS
from pdips.margins.estimates import estimate
from pdips.margins.forecast import errors_of, label
from pdips.privacy.curator import noisy_counts
from pdips.privacy.noise import RandomBits
from pdips.registry import find

DELTAS = {"pure": None, "zcdp": "1e-6"}
"""For each kind of loss the delta that chooses it."""

COLUMNS = {
    "sex": {"levels": ["f", "m"]},
    "age": {"lower": 0, "upper": 90, "bins": 9},
    "grade": {"levels": [1, 2, 5]},
}
COLUMNS["town"] = {"levels": ["a", "b", "c", "d"], "missing": True}
SCHEMA = Schema(columns=COLUMNS, records={"max_per_person": 2})


def table(schema: Schema = SCHEMA, n: int = 300) -> Table:
    rng = np.random.default_rng(1)
    columns = {
        "sex": rng.choice(["f", "m"], n),
        "age": rng.uniform(0, 90, n),
        "grade": rng.choice([1, 2, 5], n),
    }
    return Table(
        pd.DataFrame(columns | {"town": rng.choice(["a", "b", "c", "d"], n)})[
            list(schema.columns)
        ],
        schema,
    )


@pytest.mark.parametrize("kind", ["pure", "zcdp"])
@pytest.mark.parametrize("measure", ["views", "pairs"])
def test_margins_are_those_that_the_release_states(measure, kind, neighbours):
    # which pairs are counted again isn't known before
    once = {"second_share": 0} if measure == "pairs" else {}
    made = Margins(
        measure=measure,
        epsilon="0.7",
        delta=DELTAS[kind],
        neighbours=neighbours,
        **once,
    )
    found = {
        each.columns: each.standard_error
        for each in prospects(made.plan(SCHEMA), 300)
        if each.kind == "margin"
    }
    release, _ = made.release(table(), rng=np.random.default_rng(2))
    stated = {
        tuple(each.columns): each.standard_error
        for each in release.document().margin_errors
    }
    assert stated.keys() == found.keys()
    assert found == pytest.approx(stated, rel=1e-9)


def drawn_margins(made, columns: tuple[str, ...], runs: int) -> np.ndarray:
    """Noise of a margin as it is drawn for releases, shape (runs, *levels): averaged
    over views, or of residuals.
    """
    plan, bits = made.plan(SCHEMA), RandomBits(np.random.default_rng(3))
    design, places = plan.design, [list(SCHEMA.columns).index(name) for name in columns]
    if made.measure == "pairs":
        empty = np.zeros(len(design.image.weights), dtype=np.int64)
        first = plan.named(MARGINS)
        answers = noisy_counts(empty, None, first, bits, runs)
        return np.array(
            [
                design.margin(estimate(design, first, each, 0).counts, places)
                for each in answers
            ]
        )
    total, precision = 0.0, 0.0
    for view in (view for view in design.views if {*places} <= {*view.columns}):
        noise = noisy_counts(
            np.zeros(view.n_cells, dtype=np.int64), None, view.step, bits, runs
        )
        rest = tuple(
            k + 1 for k, column in enumerate(view.columns) if column not in places
        )
        weight = 1 / view.margin_variance(places)
        total, precision = (
            total + weight * noise.reshape(runs, *view.sizes).sum(axis=rest),
            precision + weight,
        )
    return np.asarray(total / precision)


@pytest.mark.slow_cases(
    "pairs-pure",
    "pairs-zcdp",
)
@pytest.mark.parametrize("kind", ["pure", "zcdp"])
@pytest.mark.parametrize("measure", ["views", "pairs"])
def test_means_and_coefficients_come_true(measure, kind):
    """2,000 answers: a standard deviation off by 10 % has probability 1e-9.

    A statement that forgets how far apart the levels are, or the cap of two records, is
    off by more.
    """
    made, runs, n = Margins(measure=measure, epsilon=3, delta=DELTAS[kind]), 2_000, 300
    told = {
        (each.kind, each.columns): each.standard_error
        for each in prospects(made.plan(SCHEMA), n)
    }
    assert {columns for what, columns in told if what == "mean"} == {
        ("age",),
        ("grade",),
    }
    pairs = {columns for what, columns in told if what == "coefficient"}
    assert pairs == {("sex", "age"), ("sex", "grade"), ("age", "grade")}
    grades, ages = np.array([1.0, 2.0, 5.0]), np.arange(5.0, 95, 10)
    of_grade = drawn_margins(made, ("grade",), runs) @ (grades - grades.mean()) / n
    assert of_grade.std() == pytest.approx(told["mean", ("grade",)], rel=0.1)
    right, left = ((values - values.mean()) / values.std() for values in (grades, ages))
    both = (
        np.einsum(
            "rij,i,j->r", drawn_margins(made, ("age", "grade"), runs), left, right
        )
        / n
    )
    assert both.std() == pytest.approx(told["coefficient", ("age", "grade")], rel=0.1)
    uncapped = SCHEMA.model_copy(
        update={"records": SCHEMA.records.model_copy(update={"max_per_person": 1})}
    )
    alone = {
        (e.kind, e.columns): e.standard_error for e in prospects(made.plan(uncapped), n)
    }
    # the cap forgotten is found out
    assert both.std() > 1.5 * alone["coefficient", ("age", "grade")]
    assert of_grade.std() != pytest.approx(
        told["mean", ("grade",)] / np.linalg.norm(grades - grades.mean()), rel=0.1
    )


def test_numbers_without_bins_have_means_from_their_first_layer():
    schema = Schema(
        columns={"pay": {"lower": 0, "upper": 1000}, "ill": {"levels": [0, 1]}}
    )
    plan = of_pairs(epsilon=1, delta="1e-6").plan(schema)
    found = {(each.kind, each.columns): each for each in prospects(plan, 5_000)}
    assert set(found) == {
        ("margin", ("ill",)),
        ("mean", ("pay",)),
        ("mean", ("ill",)),
        ("coefficient", ("pay", "ill")),
    }
    [part] = found["mean", ("pay",)].parts
    assert part.standard_error == pytest.approx(plan.steps[0].standard_deviation)


def test_errors_of_pairs_are_those_of_the_plan():
    plan = of_pairs(epsilon="0.7").plan(SCHEMA)
    errors = errors_of(plan, "two-way")
    told = {
        label(each.columns): each.standard_error
        for each in prospects(plan, None)
        if each.kind == "margin" and len(each.columns) == 2
    }
    assert {name: error.standard_error for name, error in errors.items()} == (
        pytest.approx(told)
    )


@pytest.mark.parametrize(
    "words",
    [
        "--records 300",
        "--records 300 --delta 1e-6 --neighbours add-remove",
        "--mechanism margins --option second_share=0 --delta 1e-8 --sets 2",
        "--epsilon 1/3 --option delta=1e-6",
        "",
    ],
)
def test_the_command_prints_a_plan_and_all_commands_that_it_needs(
    pdips, tmp_path, words
):
    schema, out = tmp_path / "a schema.toml", tmp_path / "all.json"
    schema.write_text(SCHEMA.to_toml(), encoding="utf-8")
    table().frame.to_parquet(tmp_path / "t.parquet")
    told = pdips.ok("plan", schema, *words.split(), "--json", out)
    rows = {
        (r["kind"], *r["columns"]): r["standard_error"]
        for r in json.loads(out.read_text("utf-8"))["rows"]
    }
    assert ("coefficient", "age", "grade") in rows or "--records" not in words
    commands = [
        line.partition(" ")[2].strip()
        for line in told.splitlines()
        if line.startswith(("total ", "run "))
    ]
    assert [shlex.split(each)[1] for each in commands] == ["ledger", "synthesize"]
    for each in commands:
        here = each.replace("TABLE.sqlite", f"{tmp_path}/l.sqlite")
        here = here.replace("TABLE", f"{tmp_path}/t.parquet")
        printed = pdips.ok(*shlex.split(here.replace("DIR", f"{tmp_path}/out"))[1:])
    account = Ledger(tmp_path / "l.sqlite").summary()
    assert account.spent_epsilon <= account.total_epsilon
    assert account.spent_delta == account.total_delta
    assert "0.99999" not in told + printed
    for each in json.loads((tmp_path / "out/public/privacy.json").read_text("utf-8"))[
        "margin_errors"
    ]:
        assert rows["margin", *each["columns"]] == pytest.approx(
            each["standard_error"], rel=1e-9
        )


@pytest.mark.parametrize(("words", "said"), cases(__file__, "bad_requests_are_refused"))
def test_bad_requests_are_refused(pdips, tmp_path, monkeypatch, words, said):
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code, out, err = pdips("plan", "s.toml", *words.split())
    assert (code, out, said in err) == (2, "", True), err


@pytest.fixture
def planned(pdips, tmp_path):
    """Return the output of ``plan`` for a number of columns, with their schema."""

    def told(n_columns: int, words: str) -> tuple[Schema, str]:
        wide = Schema(
            columns={
                f"c{number}": {"levels": [*range(6)]} for number in range(n_columns)
            }
        )
        (tmp_path / "s.toml").write_text(wide.to_toml(), encoding="utf-8")
        return wide, pdips.ok("plan", tmp_path / "s.toml", *words.split())

    return told


@pytest.mark.parametrize(
    ("delta", "n_records", "said"),
    [
        ("1e-6", "", "give --records N"),
        ("1e-6", "300", "small enough"),
        ("1e-6", "2000", "above one over the square"),
        ("1e-6", "2000", "take --delta 1e-07"),
        ("0.001", "1000", "at least one over the number of records"),
    ],
)
def test_a_plan_judges_delta_by_the_public_number_of_records(
    planned, delta, n_records, said
):
    records = f"--records {n_records}" if n_records else ""
    _, told = planned(2, f"--delta {delta} {records}")
    [line] = [each for each in told.splitlines() if each.startswith("delta ")]
    assert said in line


def test_a_form_without_a_bound_is_planned_without_a_ledger(planned):
    words = "--mechanism steps --option layers=2 --option variant=published"
    _, told = planned(2, words)
    assert "set-total" not in told
    assert "--ledger" not in told


@pytest.mark.parametrize("words", ["", "few", "--delta 1e-6", "--mechanism privbayes"])
def test_a_plan_of_many_columns_says_what_gaussian_noise_would_save(planned, words):
    wide, told = planned(2 if words == "few" else 12, words.removeprefix("few"))
    plans = (
        of_pairs(epsilon=1, delta=DELTAS[kind]).plan(wide) for kind in ("pure", "zcdp")
    )
    errors = [
        np.median([row.standard_error for row in prospects(each, None)])
        for each in plans
    ]
    assert (
        f"would take the median error of counts from {errors[0]:.3g} to "
        f"{errors[1]:.3g}" in told
    ) == (not words)


@pytest.mark.parametrize(
    "words", ["2000", "2000000", "2000 --sets 2", "2000 --option chosen=9 --sets 1"]
)
def test_a_plan_of_loud_pairs_names_chosen_ones(planned, words):
    _, told = planned(24, f"--mechanism margins --records {words}")
    is_loud = words in ("2000", "2000 --sets 2")
    assert ("measure=chosen counts" in told, "noise alone" in told) == (
        is_loud,
        is_loud,
    )
    assert ("chosen by noisy answers" in told) == ("chosen" in words)


@pytest.mark.parametrize("path", sorted(Path("examples").glob("*.toml")), ids=str)
def test_every_example_has_a_plan(path):
    schema = Schema.load(path)
    for name in ("margins", "laplace-sanitizer"):
        found = prospects(find(name)(epsilon=1).plan(schema), 10_000)
        assert len(found) >= len(schema.columns) - 1 or schema.impossible
        assert all(0 < each.standard_error < 1e6 for each in found)


@pytest.mark.slow_cases(
    "columns0",
)
@pytest.mark.parametrize(
    "columns",
    [
        {f"c{k}": {"levels": list(range(10))} for k in range(60)},
        {
            "day": {
                "type": "date",
                "unit": "day",
                "lower": "1990-01-01",
                "upper": "2020-12-31",
            }
        },
        {
            "pay": {"lower": 1, "upper": 1e6, "scale": "log"},
            "age": {"lower": 0, "upper": 90, "integer": True},
        },
        {
            "ill": {"levels": [True, False], "missing": [9]},
            "town": {"levels": ["a"], "public": True},
        },
    ],
)
def test_schemas_of_any_size_are_checked_and_planned(pdips, tmp_path, columns):
    path = tmp_path / "s.toml"
    path.write_text(Schema(columns=columns).to_toml(), encoding="utf-8")
    pdips.ok("schema", "check", path)
    assert "attacker" in pdips.ok(
        "plan", path, "--records", 900, "--mechanism", "margins"
    )


def test_a_column_of_one_level_is_known():
    schema = Schema(
        columns={"year": Column(levels=[1978]), "ill": Column(levels=["no", "yes"])}
    )
    found = {
        each.columns: each.standard_error
        for each in prospects(of_pairs(epsilon=1).plan(schema), None)
    }
    assert found["year",] == 0 < found["ill",] == pytest.approx(found["year", "ill"])


GAPS = """
[columns.sex]
levels = ["f", "m"]

[columns.wealth]
lower = 0
upper = 1000000
missing = true

[columns.age]
lower = 20
upper = 80
bins = 6
"""


def lines_of(told: str) -> dict[str, str]:
    """Return what a plan says behind each word at the margin."""
    lines = (line.partition(" ") for line in told.splitlines())
    return {word: said.strip() for word, _, said in lines if word}


def test_a_plan_says_what_missing_and_skewed_columns_do(pdips, tmp_path):
    (tmp_path / "s.toml").write_text(GAPS, encoding="utf-8")
    out = tmp_path / "all.json"
    told = lines_of(
        pdips.ok("plan", tmp_path / "s.toml", "--records", 9000, "--json", out)
    )
    rows = json.loads(out.read_text("utf-8"))["rows"]
    errors = {(row["kind"], *row["columns"]): row["standard_error"] for row in rows}
    assert told["missing"].endswith("2 at 50% and 10 at 90%: wealth")
    share = errors["mean", "wealth"] / 1_000_000
    said = f"of wealth it is {100 * share / 0.1:.2g}% of a mean 10% up"
    assert said in told["skew"]
    halves = sorted(1.96 * errors[each] for each in errors if each[0] == "coefficient")
    near = sum(half <= 0.1 for half in halves)
    assert told["answers"].startswith(f"{near} of {len(halves)} standardised")
    # of complete columns of words nothing is said
    (tmp_path / "s.toml").write_text(
        '[columns.sex]\nlevels = ["f", "m"]\n[columns.ill]\nlevels = ["a", "b", "c"]',
        encoding="utf-8",
    )
    told = lines_of(pdips.ok("plan", tmp_path / "s.toml", "--records", 9000))
    assert not {"missing", "skew", "answers"} & {*told}


def test_the_epsilon_that_a_plan_names_shortens_half_of_the_intervals(pdips, tmp_path):
    (tmp_path / "s.toml").write_text(GAPS, encoding="utf-8")
    words = ["plan", tmp_path / "s.toml", "--records", 3000, "--sets", 1, "--epsilon"]
    first = lines_of(pdips.ok(*words, "0.2"))["answers"]
    assert first.startswith("0 of 3")
    enough = float(first.rpartition(" ")[2])
    then = lines_of(pdips.ok(*words, f"{1.1 * enough:.3g}"))["answers"]
    assert int(then.split()[0]) >= 2
    # the broken twin: half of it isn't enough
    less = lines_of(pdips.ok(*words, f"{enough / 2:.3g}"))["answers"]
    assert int(less.split()[0]) < 2


def test_missing_records_leave_the_noise_to_the_others():
    # noise of scale 2 on 500 known records and 1,500 missing ones, drawn 20,000 times;
    # the standard deviation is within 5 % at a rate of 1e-12
    grades = np.array([1.0, 2.0, 3.0, 4.0])
    schema = Schema(columns={"grade": {"levels": [1, 2, 3, 4], "missing": True}})
    plan = Margins(epsilon=1).plan(schema)
    [planned] = [row for row in prospects(plan, 2_000) if row.kind == "mean"]
    rng = np.random.default_rng(1)
    scale = float(plan.steps[0].parameter)
    p = 1 - math.exp(-1 / scale)
    noise = rng.geometric(p, (20_000, 4)) - rng.geometric(p, (20_000, 4))
    counts = 125 + noise
    found = (counts @ grades / counts.sum(axis=1)).std()
    assert found == pytest.approx(planned.standard_error / (1 - 0.75), rel=0.05)
    # the broken twin: as if all records were known
    assert found != pytest.approx(planned.standard_error, rel=0.05)
