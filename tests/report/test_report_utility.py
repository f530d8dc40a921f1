"""An evaluation on the curator's report: what pictures are drawn from, the verdict,
damaged and foreign files.
"""

import json
import math
import re
import shutil
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape
from tables import cases, refuses, schema_in
from test_report import IDENTIFIER, changed

from pdips import Schema, Table, cli
from pdips.evaluation.document import (
    SUMMARIES,
    AnalysisComparison,
    ColumnDensity,
    EvaluationDocument,
)
from pdips.evaluation.evaluate import evaluate, general_utility
from pdips.evaluation.pictures import (
    MOST_APART,
    MOST_CELLS,
    cells,
    density,
    furthest_cells,
    pictures,
)
from pdips.evaluation.regression import Fit, compare_fits
from pdips.release.documents import PrivacyDocument, check, write_json
from pdips.report import figures as drawing
from pdips.report.pages import rewrite, rewrite_report
from pdips.report.utility import MARGINS, SPECKS
from pdips.report.utility import evaluation_verdict as verdict

SCHEMA = schema_in("report_utility")
FORMULA = "pay ~ age + sex"


def people(n: int = 300, seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 60, n)
    job = pd.Series(
        rng.choice(["none", "part", "full"], n, p=[0.2, 0.3, 0.5]), dtype=object
    )
    frame = pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], n),
            "job": job.mask(rng.random(n) < 0.1),
            "age": age,
        }
    )
    return frame.assign(
        pay=np.exp(3 + 0.02 * age + rng.normal(0, 0.5, n)).clip(1, 1000)
    )


# ---- what pictures are drawn from ----


def test_density_by_hand():
    schema = Schema.from_toml(
        "[columns.x]\nlower = 0\nupper = 9\ninteger = true\nbins = 2\nmissing = "
        'true\nunit = "kg"'
    )
    table = Table(pd.DataFrame({"x": [0, 4, 5, None]}), schema)
    found = density(
        table, [pd.DataFrame({"x": [0, 9]}), pd.DataFrame({"x": [9, None]})], "x"
    )
    assert found["edges"] == [0, 5, 10]
    assert (found["table"], found["sets"], found["missing"]) == (
        [0.5, 0.25],
        [0.25, 0.5],
        [0.25, 0.25],
    )
    assert check(ColumnDensity, found, "x").distance == 0.25
    assert check(ColumnDensity, found, "x").title == "x (kg)"
    assert density(table, [], "x")["sets"] == []


def test_weighted_density_and_difference_by_hand():
    text = (
        '[columns.a]\nlevels = ["x", "y"]\n[columns.w]\nlower = 0\nupper = '
        "4\nbins = 2\n"
    )
    weighed = Schema.from_toml(text + '[records]\nweight = "w"')
    frame, made = (
        pd.DataFrame({"a": ["x", "y"], "w": [1.0, 3.0]}),
        pd.DataFrame({"a": ["x", "x"], "w": [1.0, 1.0]}),
    )
    for schema, ours in (
        (weighed, [0.25, 0.75]),
        (Schema.from_toml(text), [0.5, 0.5]),
    ):
        share = ours[1]
        table = Table(frame, schema)
        assert density(table, [made], "w")["table"] == ours
        found = furthest_cells(table, [made], schema, ["a", "w"])
        # all of the sets in x with a low w
        assert found == [
            {"levels": ["x", "0 to 2"], "table": 1 - share, "sets": 1.0},
            {"levels": ["y", "2 to 4"], "table": share, "sets": 0.0},
        ]


def test_the_cells_that_differ_most_have_the_shares_of_table_and_sets():
    table, sets = Table(people(), SCHEMA), [people(200, 2), people(100, 3)]
    found = furthest_cells(table, sets, SCHEMA, ["job", "age"])
    jobs = ["none", "part", "full", "missing"]

    def shares_of(frame: pd.DataFrame) -> pd.DataFrame:
        decades = (frame["age"] - 20) // 10
        return pd.crosstab(
            frame["job"].fillna("missing"), decades, normalize="all"
        ).reindex(jobs)

    truth, *drawn = (shares_of(frame) for frame in (table.frame, *sets))
    mean = (drawn[0] + drawn[1]) / 2
    gaps = np.sort(np.abs((mean - truth).to_numpy()).ravel())[::-1]
    apart = [abs(cell["sets"] - cell["table"]) for cell in found]
    np.testing.assert_allclose(apart, gaps[:MOST_APART], atol=1e-12)
    ages = ["20-29", "30-39", "40-49", "50-59"]
    for cell in found:
        place = jobs.index(cell["levels"][0]), ages.index(cell["levels"][1])
        assert cell["table"] == pytest.approx(truth.iloc[place])
        assert cell["sets"] == pytest.approx(mean.iloc[place])
    one = furthest_cells(table, sets[:1], SCHEMA, ["job", "age"])
    other = furthest_cells(
        Table(sets[0], SCHEMA), [table.frame], SCHEMA, ["job", "age"]
    )
    exchanged = [{**cell, "table": cell["sets"], "sets": cell["table"]} for cell in one]
    assert other == exchanged
    assert abs(one[0]["sets"] - one[0]["table"]) > 0.01


def test_cells_come_from_the_schema_and_are_few():
    def edges(text: str) -> list[float]:
        return cells(Schema.from_toml("[columns.x]\n" + text).columns["x"]).tolist()

    assert edges("lower = 0\nupper = 6") == pytest.approx(np.arange(61) / 10)
    assert edges("lower = 0\nupper = 3\ninteger = true") == [0, 1, 2, 3, 4]
    assert edges("lower = 1\nupper = 100\nbin_edges = [1, 5, 100]") == [1, 5, 100]
    log = np.array(edges('lower = 1\nupper = 1e6\nscale = "log"'))
    np.testing.assert_allclose(np.diff(np.log(log)), math.log(1e6) / MOST_CELLS)
    for text in (
        "lower = 0\nupper = 100000\ninteger = true\nbins = 5000",
        "lower = 0\nupper = 9\nbins = 61",
    ):
        found = edges(text)
        assert len(found) == MOST_CELLS + 1
        assert (found[0], found[-1]) in ((0, 100001), (0, 9))
        assert found == sorted(found)
    whole = np.array(edges("lower = 7\nupper = 1000\ninteger = true"))
    assert np.all(whole == np.round(whole))
    assert len(np.unique(whole)) == MOST_CELLS + 1


def test_of_many_levels_those_that_differ_most_are_named():
    levels = [f"level {i}" for i in range(40)]
    schema = Schema(
        columns={
            "a": {"levels": levels, "missing": True},
            "b": {"lower": 0, "upper": 1, "bins": 2},
        }
    )
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.choice(levels, 2000), "b": rng.random(2000)})
    made = frame.assign(a=frame["a"].where(frame["a"] != "level 7", "level 33"))
    found = furthest_cells(Table(frame, schema), [made], schema, ["a", "b"])
    assert len(found) == MOST_APART
    assert {cell["levels"][0] for cell in found[:4]} == {"level 7", "level 33"}
    assert [cell["sets"] for cell in found[:4] if "7" in cell["levels"][0]] == [0, 0]
    assert found[4]["table"] == found[4]["sets"]


def test_pictures_hold_what_the_measures_found():
    table, sets = (
        Table(people(), SCHEMA),
        [people(seed=2), people(seed=3), people().iloc[:0]],
    )
    measures = {measure.name: measure for measure in general_utility(table, sets[:2])}
    found = pictures(table, sets, list(measures.values()))
    assert [one.column for one in found.densities] == ["age", "pay"]
    furthest = measures[MARGINS[0]].detail.model_dump()["furthest"]
    assert [([*pair.columns], pair.distance) for pair in found.pairs] == [
        (one["columns"], one["distance"]) for one in furthest[:4]
    ]
    assert {len(pair.cells) for pair in found.pairs} == {MOST_APART}
    assert measures[SPECKS].detail.model_dump() == {"classifier": "logistic"}
    assert pictures(table, [], []).pairs == []


# ---- the verdict ----


def measure(name: str, mean: float | None, reference: float | None) -> dict[str, Any]:
    reason = None if mean is not None else "no figure"
    by_set = [] if mean is None else [mean]
    return {
        "name": name, "reading": "", "by_set": by_set, "mean": mean, "reference": reference, "weighted": False,  # noqa: E501
        "reason": reason,
    }  # fmt: skip


def analysed(difference: float | None, coverage: float | None) -> dict[str, Any]:
    summary = {"standardised difference": difference, "coverage": coverage}
    return {
        "formula": "y ~ x", "family": "linear", "weighted": False, "level": 0.95, "rule": "sanitized", "note": None, "coefficients": [],  # noqa: E501
        "summary": summary, "reference": summary,
    }  # fmt: skip


def found_of(general: list[dict[str, Any]], specific: Any = None) -> EvaluationDocument:
    release = {"identifier": IDENTIFIER, "mechanism": "margins", "epsilon": 1.0}
    release |= {"kind": "pure", "n_sets": 2}
    content = {
        "inside_only": "",
        "release": release,
        "weight": None,
        "seed_of_references": 0,
        "basics": [],
        "general": general,
        "specific": specific,
        "pictures": {"densities": [], "pairs": []},
        "seconds": {},
        "software": {},
    }
    return check(EvaluationDocument, content, "x")


@pytest.mark.parametrize(
    ("general", "specific", "level"), cases(__file__, "the_verdict_follows_its_rule")
)
def test_the_verdict_follows_its_rule(general, specific, level):
    measures = [measure(name, *figures) for name, figures in general.items()]
    given = verdict(found_of(measures, specific and analysed(*specific)))
    assert given.level == level
    if level != "open":
        assert "not fit for every use" in given.line


def test_no_evaluation_is_open_and_the_line_names_what_is_off():
    assert verdict(None).level == "open"
    far = [measure(MARGINS[0], 0.2, 0.01), measure(SPECKS, 0.1, 0.01)]
    line = verdict(found_of(far, analysed(0.5, 0.9))).line
    assert line.startswith(
        "Two-way margins are far off (0.200, a resample 0.0100); SPECKS is near (0.100"
    )
    assert (
        "the analysis is near (estimates 0.500 standard errors off on average, 90.0"
    ) in line


# ---- pictures ----


def test_each_picture_says_its_result():
    line = {
        "column": "x",
        "label": "<Pay>",
        "unit": "USD",
        "log": True,
        "edges": [1, 10, 1000],
        "missing": [0.5, 0.1],
    }
    one = check(ColumnDensity, {**line, "table": [0.2, 0.3], "sets": [0.5, 0.4]}, "x")
    assert one.distance == pytest.approx(0.4)
    assert (
        "<Pay> (USD): share of log width in 2 cells; total variation distance 0.400; "
        "furthest apart: 1.00 to 10.0" in unescape(drawing.density(one, "b"))
    )


def compared(
    names: Sequence[str], original: Any, combined: Any, half: float = 1.0
) -> AnalysisComparison:
    """Return the comparison of two fits whose intervals reach so far to both sides;
    None for what a fit can't tell.
    """
    known = {
        "names": tuple(names),
        "standard_errors": np.full(len(names), half / 1.959964),
        "converged": True,
    }
    ours, theirs = (
        Fit(estimates=np.array(each, dtype=float), **known)
        for each in (original, combined)
    )
    rows = compare_fits(ours, [theirs]).reset_index().to_dict("records")
    return check(AnalysisComparison, {**analysed(1, 1), "coefficients": rows}, "x")


def test_the_forest_draws_coefficients_that_the_table_tells_in_its_standard_errors():
    drawn = drawing.forest(
        compared("abcd", [1.0, 2.0, 0.5, None], [1.5, 90.0, None, 1.0]), "x"
    )
    assert "for 1 of 3 the table's estimate lies inside" in unescape(drawn)
    assert "furthest apart: b, 2.00 from the table, 90.0 from the sets" in drawn
    assert [f">{name}<" in drawn for name in "abcd"] == [True, True, True, False]
    assert ">+12<" in drawn
    kept = drawing.coefficients(
        compared([f"x{i}" for i in range(90)], np.ones(90), range(90))
    )
    assert len(kept) == drawing.MOST_COEFFICIENTS
    assert [one.coefficient for one in kept] == [f"x{i}" for i in range(50, 90)]
    assert "<svg" in drawing.forest(compared("a", [1.0], [1.0], 1e-300), "x")
    # a standard error is 1 / 1.96
    drawn = drawing.forest(compared("ab", [1.0, 2.0], [1.5, 0.0]), "x")
    style = r'<path d="M (\S+) \S+ \nL (\S+) \S+ \n"[^>]*var\(--(bar|accent)\)'
    found = [
        (kind, float(low), float(high)) for low, high, kind in re.findall(style, drawn)
    ]
    assert [kind for kind, _, _ in found] == ["bar", "bar", "accent", "accent"]
    (_, low, high), (_, again, _), (_, first, last), (_, down, up) = found
    assert again == low  # both bands reach 1.96 standard errors to both sides
    half = (high - low) / 2
    assert (first - low, last - high) == (
        pytest.approx(half / 2),
        pytest.approx(half / 2),
    )
    assert (down - low, up - high) == (
        pytest.approx(-2 * half),
        pytest.approx(-2 * half),
    )


# ---- the page ----


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A release with its run and its evaluation, and the words that the evaluation
    ended with.
    """
    folder = tmp_path_factory.mktemp("made")
    binned = Schema.from_toml(
        SCHEMA.to_toml().replace('scale = "log"', 'scale = "log"\nbins = 5')
    )
    people().to_parquet(folder / "t.parquet")
    (folder / "s.toml").write_text(binned.to_toml())
    words = [
        "--schema",
        folder / "s.toml",
        "--mechanism",
        "margins",
        "--epsilon",
        "3",
        "--sets",
        "2",
    ]
    for line in (
        ["synthesize", folder / "t.parquet", *words, "--out", folder / "out"],
        ["evaluate", folder / "t.parquet", folder / "out", "--analysis", FORMULA],
    ):
        cli.program.main([*map(str, line)], standalone_mode=False)
    assert (folder / "out" / "confidential" / "evaluation.json").is_file()
    return folder


def stored(here: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (here / "out" / "confidential" / "evaluation.json").read_text()
    )
    return found


def store(here: Path, found: Any) -> None:
    write_json(here / "out" / "confidential" / "evaluation.json", found)


def public(here: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in (here / "out" / "public").iterdir()
    }


@pytest.mark.slow
def test_the_report_shows_the_evaluation_with_its_pictures(here):
    report = (here / "out" / "confidential" / "report.html").read_text()
    for measured in stored(here)["general"]:
        assert f'<th scope="row">{measured["name"]}' in report
    for words in (
        "share of log width in 5 cells",
        "age: share of width in 4 cells",
        "Coefficients of pay ~ age + sex",
        "Distribution functions, column by column",
        "the cells that differ most",
        *SUMMARIES,
    ):
        assert words in report, words
    assert report.count("the cells that differ most</caption>") == 4
    assert not re.search(r"#0[12]0[12]0\d", report)
    assert "No evaluation was made" not in report
    assert report == rewrite(here / "out")[1].read_text()
    (here / "out" / "confidential" / "evaluation.json").unlink()
    assert "No evaluation was made" in rewrite(here / "out")[1].read_text()


def test_evaluate_names_the_report_and_leaves_the_public_part_alone(here, pdips):
    before, inside = public(here), here / "out" / "confidential"
    (inside / "report.html").unlink()
    out = pdips.ok("evaluate", here / "t.parquet", here / "out")
    assert out.splitlines()[-1].endswith("report.html")
    assert (inside / "report.html").is_file()
    assert public(here) == before
    shutil.rmtree(inside)  # the public part alone gets no report
    out = pdips.ok("evaluate", here / "t.parquet", here / "out")
    assert "report.html" not in out
    assert [path.name for path in inside.iterdir()] == ["evaluation.json"]
    assert rewrite(here / "out") == [here / "out" / "public" / "card.html"]
    assert rewrite_report(here / "out") is None


@pytest.mark.parametrize(
    ("keys", "value", "message"), cases(__file__, "a_damaged_evaluation")
)
def test_a_damaged_evaluation_is_refused_by_key_without_its_value(
    here, keys, value, message
):
    store(here, changed(stored(here), keys, value))
    before = (here / "out" / "confidential" / "report.html").read_bytes()
    assert "much" not in refuses(
        rf"evaluation.json is damaged: "
        rf"{message}",
        rewrite,
        here / "out",
    )
    assert (here / "out" / "confidential" / "report.html").read_bytes() == before


def test_an_evaluation_of_another_release_is_marked_and_not_shown(here):
    found, release = stored(here), PrivacyDocument.read(here / "out" / "public")
    found["general"][0]["reading"] = "sentinel reading"
    for other in (
        {"mechanism": "privbayes"},
        {"kind": "none"},
        {"epsilon": 2.0, "n_sets": 3},
    ):
        store(here, found | {"release": found["release"] | other})
        assert EvaluationDocument.found(here / "out" / "confidential").release.differs(
            release
        ) == [*other]
    report = rewrite(here / "out")[1].read_text()
    assert (
        "evaluation.json is of another release (its epsilon and n_sets differ)"
    ) in report
    assert "Nothing of it is shown" in report
    assert "sentinel reading" not in report
    assert "Coefficients of" not in report


@pytest.mark.slow
def test_hostile_names_stay_inside_and_many_columns_are_shown(here):
    found, before = stored(here), public(here)
    nasty = "<i>&\"'</svg>"
    found["general"][0].update(name=nasty, reading=nasty, mean=0.74123)
    found["specific"]["coefficients"][0]["coefficient"] = nasty
    found["specific"]["formula"] = nasty
    one = found["pictures"]["densities"][0]
    found["pictures"]["densities"] = [
        {**one, "label": f"{nasty} {i}"} for i in range(80)
    ]
    pair = found["pictures"]["pairs"][0]
    pair["cells"][0]["levels"][0] = pair["columns"][0] = nasty
    store(here, found)
    report = rewrite(here / "out")[1].read_text()
    assert public(here) == before
    assert ">0.741<" in report
    assert report.count(escape(nasty)) > 24
    assert "<i>&" not in report
    assert "The 24 of 80 numeric columns that are furthest apart." in report
    assert report.count("</svg>") == report.count("<svg")


def test_times_as_far_counts_from_what_equal_tables_score():
    found = found_of(
        [
            measure(MARGINS[0], 0.03, 0.01),
            measure(SPECKS, 0.1, 0.0),
            measure("x", None, None),
        ]
    )
    times = [one.times for one in found.general]
    assert times == [pytest.approx(3), None, None]


def test_overwriting_a_release_takes_its_evaluation_away(here, pdips):
    words = [
        "--schema",
        here / "s.toml",
        "--mechanism",
        "laplace-sanitizer",
        "--epsilon",
        "3",
        "--overwrite",
        "--report",
    ]
    assert (
        pdips("synthesize", here / "t.parquet", *words, "--out", here / "out")[0] == 0
    )
    assert not (here / "out" / "confidential" / "evaluation.json").exists()
    assert ("No evaluation was made") in (
        here / "out" / "confidential" / "report.html"
    ).read_text()


def test_of_sets_without_records_no_pairs_are_shown(here):
    for number in (1, 2):
        path = here / "out" / "public" / f"synthetic_{number}.parquet"
        pd.read_parquet(path).iloc[:0].to_parquet(path)
    found = evaluate(here / "t.parquet", here / "out")
    assert found.pictures.pairs == []
    found.write(here / "out" / "confidential")
    report = rewrite(here / "out")[1].read_text()
    assert "no synthetic set has records" in report
    assert "not worked out: a set has no records" in report
