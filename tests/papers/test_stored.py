"""Runs that are kept: how they were made, and the tables of pages made of them."""

import re
from pathlib import Path

import pandas as pd
import pytest

from pdips_papers.harness import stored
from pdips_papers.harness.printed import data, figures
from pdips_papers.modips.fertility import Fertility
from pdips_papers.steps import voter_2018 as earlier

PAGE = Path(__file__).parents[2] / "docs" / "results" / "studies.md"
CASES = [case for case in earlier.CASES if "as run" in case or case == earlier.FLAT]
ROWS = {
    earlier.row_of(power, case): f"{power}, {case}"
    for power in earlier.ANALYSED
    for case in CASES
}
COLUMNS = {
    earlier.KS: "KS distance",
    earlier.SIGNS: "same signs, of 32",
    earlier.COVERED: "covered, of 32",
    earlier.L1: "records in a wrong cell",
}


@pytest.mark.parametrize("name", data("runs.toml"))
def test_a_run_says_how_it_was_made(name):
    facts = stored.stored_facts(name)
    module = rf"python -m pdips_papers\.\w+\.\w+ {name}\.csv \d+"
    assert re.match(rf"pdips study {name}|{module}", facts["command"])
    assert re.fullmatch(r"[0-9a-f]{8}", facts["commit"])
    assert re.fullmatch(r"2026-\d\d-\d\d", facts["date"])
    assert facts["seconds"] > 0
    assert facts["replicates"] > 1
    table = stored.stored_table(name)
    assert list(table) == ["row", "column", "ours", "standard_error", "paper"]
    assert not table.duplicated(["row", "column"]).any()


def test_the_page_has_the_run():
    text = PAGE.read_text(encoding="utf-8")
    assert stored.markdown("voter-2018", ROWS, COLUMNS) in text


@pytest.mark.parametrize(
    "name", [name for name, facts in data("runs.toml").items() if "page" in facts]
)
def test_the_page_has_the_table_of_a_run(name):
    text = PAGE.read_text(encoding="utf-8")
    table = stored.page_table(name)
    assert table in text
    # the broken twin: another figure
    figure = re.search(r"\d+\.\d+|\d\d+", table).group()
    assert table.replace(figure, f"{figure}1", 1) not in text


def test_every_table_that_is_kept_says_how_it_was_made():
    kept = Path(stored.__file__).parents[1] / "data" / "runs"
    assert {path.stem for path in kept.glob("*.csv")} == set(data("runs.toml"))


def test_the_whole_study_of_fertility_says_what_the_page_says():
    found = Fertility().findings(stored.stored_table("fertility"))
    refuted = [each for each in found if each.verdict.startswith("doesn't hold")]
    assert any("PrivateSVM" in each.claim for each in refuted)
    assert any("by proof" in each.verdict for each in refuted)


def test_the_page_has_table_5_of_the_firms():
    text = PAGE.read_text(encoding="utf-8")
    for method, values in figures("firm-panel", "table-5").items():
        pairs = zip(values[:4], values[4:], strict=True)
        cells = [f"{pmse:.4f}; {score:.0f}" for pmse, score in pairs]
        assert f"| {method} | {' | '.join(cells)} |" in text


def test_the_papers_order_of_distances_holds_in_the_rows_as_run():
    study = earlier.Voter2018()
    verdicts = {
        finding.claim.split(" ")[0]: finding.verdict
        for finding in study.findings(stored.stored_table("voter-2018"))
        if "KS distance" in finding.found
    }
    assert verdicts == {"STEPS-2": "holds", "Of": "holds"}
    # the broken twin: flat Laplace and STEPS-2 exchanged
    table = stored.stored_table("voter-2018")
    other = table.replace(
        {
            earlier.row_of(power, one): earlier.row_of(power, two)
            for power in earlier.ANALYSED
            for one, two in (
                (earlier.FLAT, earlier.STEPS),
                (earlier.STEPS, earlier.FLAT),
            )
        }
    )
    found = {
        finding.claim.split(" ")[0]: finding.verdict
        for finding in study.findings(other)
        if "KS distance" in finding.found
    }
    assert found["STEPS-2"] != "holds"


def test_figures_are_shown_with_errors_and_the_papers(monkeypatch):
    table = pd.DataFrame(
        [("a", "x", 0.5, 0.01, 0.4), ("a", "y", 1234.5, float("nan"), float("nan"))],
        columns=["row", "column", "ours", "standard_error", "paper"],
    )
    monkeypatch.setattr(stored, "stored_table", lambda name: table)
    shown = stored.markdown("any", {"a": "A"}, {"x": "X", "y": "Y"})
    assert shown.splitlines()[-1] == "| A | 0.500 ± 0.010 (0.400) | 1,234 |"
