"""Verdicts on what is computed at release: good releases are not red, useless ones are,
and the terminal says so.
"""

import json
import logging
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from small_models import normal
from tables import cases
from test_report import facts_of, pages, run_of, write_folder
from test_report_diagnostics import chains_of

from pdips import Margins, Schema, Table
from pdips.convergence import ROUNDS, announce
from pdips.evaluation.encoding import with_decile_bins
from pdips.evaluation.margins import compare, moments
from pdips.registry import find
from pdips.release.documents import PrivacyDocument, RunDocument
from pdips.release.large_set import LargeSet
from pdips.report import utility
from pdips.report.diagnostics import judge
from pdips.report.verdict import COLOURS, Check, summed

PAY, TOP = {"lower": 0, "upper": 100_000}, 12_000
GROUPS = {"sex": {"levels": ["f", "m"]}, "region": {"levels": ["n", "e", "s", "w"]}}
EDGES = [0, 500, 1000, 1500, 2000, 3000, 5000, TOP]
SCHEMA = Schema(
    columns=GROUPS | {"pay": {"lower": 0, "upper": TOP, "bin_edges": EDGES}}
)
OPEN = Schema(columns={"sex": {"levels": ["f", "m"]}, "pay": PAY})
MANY = Schema(
    columns={
        **{f"q{i}": {"levels": list("abcde")} for i in range(6)},
        "pay": {**PAY, "bins": 20},
    }
)


def people(n: int = 3_000, seed: int = 0) -> pd.DataFrame:
    """Return records whose pay has a mean of about 1,850."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["f", "m"], n, p=[0.4, 0.6])
    pay = rng.lognormal(7.3 + 0.2 * (sex == "m"), 0.5, n).clip(0, TOP - 1)
    return pd.DataFrame(
        {
            "sex": sex,
            "region": rng.choice(list("nesw"), n, p=[0.4, 0.3, 0.2, 0.1]),
            "pay": pay,
        }
    )


def answers(n: int = 3_000) -> pd.DataFrame:
    """Return records with far more cells than records."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            f"q{i}": rng.choice(list("abcde"), n, p=[0.6, 0.2, 0.1, 0.05, 0.05])
            for i in range(6)
        }
    )
    return frame.assign(pay=people(n)["pay"])


def released(table: Table, mechanism: str, **settings: Any) -> list[pd.DataFrame]:
    release, _ = find(mechanism)(**settings).release(
        table, rng=np.random.default_rng(2)
    )
    return list(release.sets)


def verdicts_of(
    table: Table, sets: list[pd.DataFrame], *, sampling: str = "exact"
) -> dict[str, str]:
    """Return the levels of the verdicts on diagnostics and utility of a release that
    has nothing but its sets.
    """
    public = PrivacyDocument.model_validate(
        facts_of(dict(table.schema.to_dict()["columns"]), (), sampling=sampling)
    )
    comparison = compare(with_decile_bins(table), sets, np.random.default_rng(3))
    ran = {
        "release": public.release,
        "table": None,
        "seconds": {},
        "peak_memory_mib": 1,
        "ledger": None,
        "n_records": table.n_records,
        "diagnostics": {},
        "published": True,
        "comparison": comparison,
    }
    run = RunDocument.model_validate(ran)
    found = utility.checks(public, run.comparison)
    return {
        "diagnostics": judge(public, run, (), None)[0].level,
        "utility": summed(found).level,
    }


def normals(humps: float) -> tuple[Table, list[pd.DataFrame]]:
    """Return a table of two humps and a release of a model that takes them for one
    normal of deviation 1.
    """
    schema = Schema(columns={"y": {"lower": -100, "upper": 100}})
    rng = np.random.default_rng(4)
    table = Table(
        pd.DataFrame(
            {"y": rng.choice([-humps, humps], 2_000) + rng.normal(0, 1, 2_000)}
        ),
        schema,
    )
    return table, released(table, "censored-posterior", epsilon=4, model=normal)


def made_of(
    frame: pd.DataFrame, schema: Schema, mechanism: str, **settings: Any
) -> tuple[Table, list[pd.DataFrame]]:
    table = Table(frame, schema)
    return table, released(table, mechanism, **settings)


def off_by(times: float, schema: Schema = OPEN) -> tuple[Table, list[pd.DataFrame]]:
    columns = list(schema.columns)
    made = people(seed=5)
    most = float(schema.columns["pay"].upper or 0)
    return Table(people()[columns], schema), [
        made.assign(pay=(made["pay"] * times).clip(0, most))[columns]
    ]


GOOD = {
    "margins at 1": lambda: made_of(people(), SCHEMA, "margins", epsilon=1),
    "margins at 10": lambda: made_of(people(), SCHEMA, "margins", epsilon=10, n_sets=2),
    "laplace at 5": lambda: made_of(people(), SCHEMA, "laplace-sanitizer", epsilon=5),
    "laplace at 10, add-remove": lambda: made_of(
        people(), SCHEMA, "laplace-sanitizer", epsilon=10, neighbours="add-remove"
    ),
    "a model that fits": lambda: normals(0.0),
    "other records of the same law": lambda: off_by(1.0),
    "the same, in bins": lambda: off_by(1.0, SCHEMA),
}
USELESS = {
    "pay 13 times too large": lambda: off_by(13.0),
    "pay 500 times too small": lambda: off_by(1 / 500),  # as by observed = log(pay)
    "pay 13 times too large, in bins": lambda: off_by(13.0, SCHEMA),
    "margins at 0.001": lambda: made_of(people(), SCHEMA, "margins", epsilon="0.001"),
    "laplace at 0.001": lambda: made_of(
        people(), SCHEMA, "laplace-sanitizer", epsilon="0.001"
    ),
    "laplace on 312,500 cells": lambda: made_of(
        answers(), MANY, "laplace-sanitizer", epsilon=1
    ),
    "a wrong likelihood": lambda: normals(8.0),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_releases_are_not_red(name):
    table, sets = GOOD[name]()
    assert set(verdicts_of(table, sets).values()) <= {"good", "watch"}


@pytest.mark.parametrize("name", USELESS)
def test_useless_releases_are_red_in_both_sections(name):
    table, sets = USELESS[name]()
    assert set(verdicts_of(table, sets).values()) == {"bad"}


def test_records_of_the_same_law_pass_every_check():
    """Seeded. Of 20 tables with two columns none is called more than yellow, and at
    most 2 are.
    """
    found = [
        verdicts_of(
            Table(people(400, seed=i)[["sex", "pay"]], OPEN),
            [people(400, seed=100 + i)[["sex", "pay"]]],
        )
        for i in range(20)
    ]
    levels = [one["utility"] for one in found]
    assert "bad" not in levels
    assert levels.count("watch") <= 2


def test_a_mean_that_is_off_by_more_than_three_percent_of_where_most_values_lie_needs_review():  # noqa: E501
    frame = people(20_000)[["sex", "pay"]]
    [one] = moments(
        Table(frame, OPEN), [frame.assign(pay=frame["pay"] + 0.17 * frame["pay"].std())]
    )
    assert 3.5 < one.span < 5  # a normal column's is 4.65
    assert utility._of_means(one, 0) == "watch"
    assert utility._of_means(one.model_copy(update={"shift": 0.1}), 0) == "good"
    # of a column whose values are all equal
    assert utility._of_means(one.model_copy(update={"span": None}), 0) == "good"
    assert utility._of_spreads(one.model_copy(update={"ratio": 1.2})) == "watch"
    assert utility._of_spreads(one.model_copy(update={"ratio": 1.1})) == "good"


# The comparison


def test_means_and_deviations_are_those_by_hand():
    frame = pd.DataFrame({"sex": list("fmf"), "pay": [1.0, 2.0, 6.0]})
    made = [
        pd.DataFrame({"sex": ["f"] * 2, "pay": [4.0, 6.0]}),
        pd.DataFrame({"sex": ["m"] * 2, "pay": [0.0, 0.0]}),
    ]
    (found,) = moments(Table(frame, OPEN), made)
    sd = np.std([1, 2, 6])
    assert (found.mean, found.sd) == (3, pytest.approx(sd))
    assert (found.synthetic_mean, found.synthetic_sd) == (2.5, 0.5)
    # means of 2.5 on average, and each far off
    assert found.shift == pytest.approx((2 / sd + 3 / sd) / 2)
    assert found.ratio == pytest.approx(0.5 / sd)
    assert found.shift_error == pytest.approx(2**-0.5)
    schema = Schema(columns={"a": {"lower": 0, "upper": 12**0.5, "missing": True}})
    frame = pd.DataFrame({"a": [1.0, None, 1.0]})  # constant, and missing
    (found,) = moments(
        Table(frame, schema),
        [pd.DataFrame({"a": [3.0, None]}), pd.DataFrame({"a": [None, None]})],
    )
    assert (found.sd, found.ratio, found.shift) == (0, None, pytest.approx(2))
    assert (
        moments(Table(pd.DataFrame({"a": [None, None]}, dtype=float), schema), [frame])
        == []
    )
    (lost,) = moments(Table(frame, schema), [pd.DataFrame({"a": [None]}, dtype=float)])
    assert lost.shift is None


def test_errors_are_those_of_resamples():
    """5,000 resamples: the deviation of their means and deviations is known to 1 %."""
    frame, rng = people(500)[["sex", "pay"]], np.random.default_rng(6)
    (found,) = moments(Table(frame, OPEN), [frame])
    pay = frame["pay"].to_numpy()
    drawn = pay[rng.integers(500, size=(5_000, 500))]
    assert found.shift_error == pytest.approx(
        drawn.mean(axis=1).std() / pay.std(), rel=0.05
    )
    assert found.ratio_error == pytest.approx(
        drawn.std(axis=1).std() / pay.std(), rel=0.15
    )
    one_way = compare(with_decile_bins(Table(frame, OPEN)), [frame]).one_way[0]
    share = (frame["sex"] == "f").mean()
    apart = np.abs(rng.binomial(500, share, 20_000) / 500 - share).mean()
    assert one_way.reference == pytest.approx(apart, rel=0.05)


def test_counted_tables_and_large_sets_are_compared_at_the_middle_of_their_bins(
    tmp_path,
):
    people(200).to_parquet(tmp_path / "t.parquet")
    counted = Table.read(tmp_path / "t.parquet", SCHEMA, counted=True)
    assert counted.counts is not None
    whole = Table(people(200), SCHEMA)
    expected = np.array([250, 750, 1250, 1750, 2500, 4000, 8500])[whole.codes["pay"]]
    large = LargeSet(
        schema=SCHEMA, codes=whole.codes, counts=np.ones(200, dtype=np.int64), seed=0
    )
    for table, made in ((counted, people(200)), (whole, large), (counted, large)):
        (found,) = moments(table, [made])
        assert (found.mean, found.sd) == (
            pytest.approx(expected.mean()),
            pytest.approx(expected.std()),
        )
        assert (found.shift, found.ratio) == (
            pytest.approx(0, abs=1e-9),
            pytest.approx(1),
        )


# The rules


def level_of(name: str, **changes: Any) -> str:
    """Return the level of one check where margins or moments of a column are as
    given.
    """
    facts = facts_of(impossible=())
    run = run_of(facts)
    comparison = run["comparison"]
    known = {
        "column": "age",
        "mean": 40.0,
        "sd": 10.0,
        "synthetic_mean": 40.0,
        "synthetic_sd": 10.0,
        "shift": 0.0,
        "span": 100.0,  # so wide that the other limits hold alone
    }
    known |= {"shift_error": 0.01, "ratio": 1.0, "ratio_error": 0.01} | changes
    comparison["numeric"] = [known] if name in ("means", "standard deviations") else []
    for one in comparison["one_way"]:
        one.update(distance=0.0, reference=0.01)
    if name == "single columns":
        comparison["one_way"][changes.pop("place", 0)].update(changes)
    if name == "pairs of columns":
        comparison["two_way"].update(
            {key: (np.ones((4, 4)) * value).tolist() for key, value in changes.items()}
        )
    found = utility.checks(
        PrivacyDocument.model_validate(facts),
        RunDocument.model_validate(run).comparison,
    )
    return next(check.level for check in found if check.name == name)


@pytest.mark.parametrize(
    ("name", "changes", "level"),
    cases(__file__, "rules_on_what_is_compared_at_release"),
)
def test_rules_on_what_is_compared_at_release(name, changes, level):
    assert level_of(name, **changes) == level


def test_a_lost_pair_among_many_is_seen_though_the_mean_passes():
    """Columns are put in an order of their own each; a and b were the same."""
    rng = np.random.default_rng(7)
    frame = pd.DataFrame(rng.integers(0, 3, (800, 24))).rename(columns=str)
    frame = frame.assign(a=frame["0"], b=frame.pop("0"))
    schema = Schema.model_validate(
        {"columns": {name: {"levels": [0, 1, 2]} for name in frame}}
    )
    comparison = compare(
        Table(frame, schema), [frame.apply(lambda one: rng.permutation(one))], rng
    )
    assert (
        np.mean([one for one, *_ in comparison.two_way.pairs()])
        < 2 * comparison.two_way.reference_mean()
    )
    (found,) = (
        one
        for one in utility.checks(SimpleNamespace(table_schema=schema), comparison)
        if "pairs" in one.name
    )
    assert (found.level, "furthest a and b" in found.found) == ("bad", True)


def test_a_verdict_counts_and_names_what_did_not_pass():
    def one(name: str, level: Any) -> Check:
        return Check(name=name, found="12", rule="at most 3", level=level)

    assert summed([one("a", "good"), one("b", "good")]).line == "All 2 checks passed."
    assert summed([one("a", "good")]).line == "The only check passed."
    assert summed([]).level == "open"
    found = summed(
        [
            one("a", "watch"),
            one("b", "bad"),
            one("c", "good"),
            one("d", "watch"),
            one("e", "open"),
        ]
    )
    assert found.level == "bad"
    assert found.line == (
        "1 check failed: b: 12 (rule: at most 3). 2 checks need review: a: 12 (rule: "
        "at most 3); d: 12 (rule: at most "
        "3). 1 check could not be made: e: 12 (rule: at most 3)."
    )
    assert found.short == (
        "red     1 check failed: b; 2 checks need review: a, d; 1 "
        "check could not be made: e"
    )


# Rounds of chains


@pytest.mark.parametrize("mechanism", ["censored-posterior", "modips", "scores"])
def test_further_rounds_need_review_and_the_words_fit_the_mechanism(
    tmp_path, mechanism
):
    offers = asdict(find(mechanism).offers)
    facts = facts_of(sampling="mcmc", mechanism=mechanism, offers=offers)
    for rounds, level in ((1, "good"), (2, "watch"), (3, "watch")):
        run = run_of(facts) | {
            "diagnostics": {
                "convergence": [chains_of(), chains_of() | {"rounds": rounds}]
            }
        }
        verdict, _ = judge(
            PrivacyDocument.model_validate(facts),
            RunDocument.model_validate(run),
            (),
            None,
        )
        assert verdict.level == level
        assert (f"they agreed in round {rounds} of {ROUNDS}" in verdict.line) == (
            rounds > 1
        )
        if rounds > 1:
            assert ("which the guarantee does not cover" in verdict.line) == (
                mechanism == "censored-posterior"
            )
            assert ("costs nothing" in verdict.line) == (
                mechanism != "censored-posterior"
            )
    folder = write_folder(tmp_path / "out", facts, run)
    assert "they agreed in round 3 of 3" in pages(folder)[1]
    assert "round 3" not in (folder / "public" / "card.html").read_text(
        encoding="utf-8"
    )


# The terminal


@pytest.fixture
def here(tmp_path):
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml())
    people(400).to_parquet(tmp_path / "t.parquet")
    return tmp_path


def synthesize(here, epsilon: object, *more: object) -> list[object]:
    words = [
        "synthesize",
        here / "t.parquet",
        "--schema",
        here / "s.toml",
        "--mechanism",
        "margins",
    ]
    return [*words, "--epsilon", epsilon, "--out", here / "out", "--report", *more]


def verdict_lines(out: str) -> dict[str, str]:
    heading = (
        "verdicts  FOR THE CURATOR ONLY: from the confidential table; acting "
        "on them is not covered by epsilon"
    )
    lines = out.splitlines()
    found = [line.split(maxsplit=1) for line in lines[lines.index(heading) + 1 :]]
    return dict(found)


def test_the_terminal_shows_a_line_for_each_section(pdips, here):
    found = verdict_lines(pdips.ok(*synthesize(here, 20)))
    assert list(found) == ["price", "diagnostics", "utility", "checklist"]
    assert all(words.split()[0] in COLOURS.values() for words in found.values())
    assert found["diagnostics"].split()[0] != "red"
    assert verdict_lines(pdips.ok("report", here / "out")) == found


def test_a_useless_release_is_red_and_the_exit_code_is_0(pdips, here):
    found = verdict_lines(pdips.ok(*synthesize(here, "0.001")))
    for section in ("diagnostics", "utility"):
        assert found[section].startswith("red")
        assert "failed" in found[section]
        assert "single columns" in found[section]
    report = (here / "out/confidential/report.html").read_text()
    assert "Failed." in report
    assert (
        "Passed."
        not in report[
            report.index('<section id="utility"') : report.index(
                '<section id="checklist"'
            )
        ]
    )
    public = "".join(
        path.read_text()
        for path in (here / "out/public").iterdir()
        if path.suffix in (".json", ".html")
    )
    assert "single columns" not in public


def test_announcements_reach_the_terminal_while_a_release_is_made(
    pdips, here, monkeypatch
):
    made = Margins.release_planned

    def announced(*words: Any, **named: Any) -> Any:
        announce(2, confidential=True)
        announce(3, confidential=False)
        return made(*words, **named)

    monkeypatch.setattr(Margins, "release_planned", announced)
    code, _, err = pdips(*synthesize(here, 1))
    assert code == 0
    assert err == (
        "NOTE      Chains disagreed; running them again, longer (round 2 of 3). This "
        "decision is not covered by the "
        "privacy guarantee.\n"
        "NOTE      Chains disagreed; running them again, longer (round 3 of 3). They "
        "read noisy statistics only, so "
        "this costs nothing.\n"
    )
    assert (
        json.loads((here / "out/public/privacy.json").read_text())["mechanism"]
        == "margins"
    )
    assert not logging.getLogger("pdips").handlers
    # without a report there are no verdicts
    for path in (here / "out/confidential").iterdir():
        path.unlink()
    (here / "out/confidential").rmdir()
    assert "CURATOR" not in pdips.ok("report", here / "out")
