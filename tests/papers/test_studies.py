"""The framework of studies: seeds, resuming, refusals, the table and the page; and the
measures that studies share.
"""

import math
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tables import refuses

from pdips.inference import combine as combine_by_rule
from pdips_papers import find, names
from pdips_papers.harness.measures import at_each, combine, pooled, summary
from pdips_papers.harness.run import SETTINGS, measure, perform
from pdips_papers.harness.study import (
    Block,
    Finding,
    Options,
    Picture,
    Study,
    Task,
    derive_seed,
    judged,
    resample,
    summarise,
)


class Dice(Study):
    """A study for tests: the mean of dice, which the paper gives as 3.5."""

    name = "dice"
    title = "Dice & <coins>"
    default_replicates = 6
    data = "optional"

    def __init__(self) -> None:
        self.ran: list[str] = []

    def tasks(self, options):
        return [
            Task(key=f"replicate={i}", arguments={"n": 10})
            for i in range(options.replicates)
        ]

    def run(self, arguments, seed):
        self.ran.append(str(seed))
        throws = np.random.default_rng(seed).integers(1, 7, arguments["n"])
        return [{"row": "dice", "column": "mean", "value": throws.mean()}]

    def table(self, measurements):
        return summarise(
            measurements,
            {("dice", "mean"): 3.5, ("dice", "best"): 6.0},
            open_rows=["coins"],
        )

    def layout(self, table):
        best = Block(
            title="Best", rows={"dice": "d"}, columns={"best": "b"}, headline=False
        )
        return [*super().layout(table), best]

    def pictures(self, measurements, table):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(2, 1), dpi=72)
        figure.add_subplot().plot([0, 1], [0, 1], color="#020101")
        panels = ['<svg class="picture"></svg>', figure]
        return [
            Picture(
                title="Throws",
                panels=panels,
                key={"dice": "--series-1", "loaded": "--series-2 dashed"},
            )
        ]

    def findings(self, table):
        return [Finding(claim="3.5 & more", found="so it is", verdict="holds")]

    def text(self):
        return "<p>Dice were thrown.</p>"


def options(replicates=6, **more):
    return Options(replicates=replicates, **more)


def run_dice(out, study=None, **more):
    study = study or Dice()
    return study, measure(study, options(), out, **{"workers": 0, **more})


@pytest.mark.parametrize(
    "content",
    ["", '{"arguments": {"n": 10}', '{"arguments": {"n": 11}, "measurements": []}'],
)
def test_a_damaged_or_foreign_result_is_run_again(tmp_path, content):
    _, first = run_dice(tmp_path)
    (tmp_path / "replicates/replicate=4.json").write_text(content)
    study, again = run_dice(tmp_path)
    assert len(study.ran) == 1
    pd.testing.assert_frame_equal(first, again)


def test_seeds_depend_on_study_seed_and_key_only(tmp_path):
    assert (
        len(
            {
                derive_seed(*words)
                for words in [
                    ("a", 1, "k"),
                    ("b", 1, "k"),
                    ("a", 2, "k"),
                    ("a", 1, "l"),
                ]
            }
        )
        == 4
    )
    assert derive_seed("a", 1, "k") == derive_seed("a", 1, "k") < 2**128
    _, first = run_dice(tmp_path / "one", seed=1)
    _, other = run_dice(tmp_path / "two", seed=2)
    assert list(first["value"]) != list(other["value"])


@pytest.fixture
def given(tmp_path):
    """A table that is given."""
    (tmp_path / "t.csv").write_text("a\n1\n")
    return tmp_path / "t.csv"


def test_other_settings_and_another_table_are_refused_and_the_folder_of_a_table_is_closed(  # noqa: E501
    tmp_path, given
):
    run_dice(tmp_path / "out")
    changes = [
        ({"replicates": 7}, {}, "replicates = 6, not 7"),
        ({"epsilons": ("1",)}, {}, "epsilons"),
        ({"data": given}, {}, "another table"),
        ({}, {"seed": 2}, "seed = 1, not 2"),
    ]
    for more, settings, message in changes:
        refuses(
            message,
            measure,
            Dice(),
            options(**more),
            tmp_path / "out",
            workers=0,
            **settings,
        )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"replicates"}
    (tmp_path / "open").mkdir(mode=0o755)
    for name in ("new", "open"):
        measure(Dice(), options(data=given), tmp_path / name, workers=0)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
        assert str(given) not in (tmp_path / name / "replicates" / SETTINGS).read_text()
    given.write_text("a\n2\n")
    refuses(
        "another table",
        measure,
        Dice(),
        options(data=given),
        tmp_path / "new",
        workers=0,
    )


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("ten years")
    refuses("holds something other than a study", run_dice, tmp_path)
    refuses("is a file", run_dice, tmp_path / "thesis.tex")
    refuses("can't write in", run_dice, Path("/proc/pdips"))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_bad_requests(tmp_path, given):
    refuses("replicates must be at least 1", options, 0)
    refuses("epsilon must be", options, epsilons=("-1",))
    refuses("given twice", options, epsilons=("1", "1.0"))
    refuses("is no file", options, data=tmp_path / "none.csv")
    refuses("the key of a task", Task, key="../up")
    refuses("at least 0", run_dice, tmp_path, workers=-1)
    study = Dice()
    study.data = "required"
    refuses("needs a table", run_dice, tmp_path, study)
    study.data = "none"
    refuses(
        "takes no --data",
        measure,
        study,
        options(data=given),
        tmp_path / "out",
        workers=0,
    )
    study.tasks = lambda options: [Task(key="one"), Task(key="one")]
    with pytest.raises(ValueError, match="same key"):
        run_dice(tmp_path / "out", study)


def test_the_table(studied):
    _, table, _ = studied(Dice(), options())
    rows = table.set_index(["row", "column"])
    assert rows.loc[("dice", "mean"), "paper"] == 3.5
    assert (
        abs(rows.loc[("dice", "mean"), "ours"] - 3.5)
        < 6 * rows.loc[("dice", "mean"), "standard_error"]
    )
    assert math.isnan(rows.loc[("dice", "best"), "ours"])
    assert rows.loc[("dice", "best"), "paper"] == 6
    assert rows.loc[("coins", "mean")].isna().all()


def test_the_page_needs_no_other_file_and_that_of_a_table_that_was_given_stays_inside(
    studied, given
):
    *_, page = studied(Dice(), options())
    assert not re.search(
        r"<(script|link|img|iframe|object)\b|url\((?!#)|@import|src=|https?://", page
    )
    for text in (
        "Dice &amp; &lt;coins&gt;",
        "<p>Dice were thrown.</p>",
        "pdips study dice",
        "3.5 &amp; more",
        "holds",
    ):
        assert text in page
    assert page.count('<svg class="picture"') == 2
    assert "var(--series-1)" in page
    assert "#020101" not in page
    assert "stroke-dasharray: 6 4" in page
    assert "Inside only" not in page
    for tag in ("table", "svg", "section", "figure", "details", "div"):
        assert page.count(f"<{tag}") == page.count(f"</{tag}>")
    *_, page = studied(Dice(), options(data=given))
    assert page.count("Inside only") == 2


@pytest.mark.slow
def test_a_killed_program_goes_on_where_it_stopped(tmp_path):
    out = tmp_path / "out"
    words = [
        "study",
        "proportions",
        "--replicates",
        "300",
        "--epsilon",
        "1",
        "--workers",
        "0",
        "--out",
        str(out),
    ]
    command = [sys.executable, "-m", "pdips", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        while len(list(out.glob("replicates/n*.json"))) < 2 and running.poll() is None:
            time.sleep(0.005)
        os.kill(running.pid, signal.SIGKILL)
    kept = {path: path.stat().st_mtime_ns for path in out.glob("replicates/n*.json")}
    assert 2 <= len(kept) < 12
    assert ("n = 1,000, π = 0.25") in subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())
    study = find("proportions")
    at_once = study.table(
        measure(study, options(300, epsilons=("1",)), tmp_path / "once", workers=0)
    )
    pd.testing.assert_frame_equal(
        pd.read_csv(out / "table.csv"), at_once, check_dtype=False
    )


@pytest.mark.slow
def test_processes_of_dask_find_the_same(tmp_path):
    study, told = find("proportions"), []

    def made(workers):
        folder, asked = tmp_path / str(workers), options(20, epsilons=("0.5",))
        return measure(
            study,
            asked,
            folder,
            workers=workers,
            tell=lambda done, total: told.append(done),
        )

    here, there = made(0), made(2)
    pd.testing.assert_frame_equal(here, there)
    assert told == [*range(10), *range(10)]


def test_unknown_studies_and_schedulers(pdips, tmp_path):
    words = [
        "study",
        "proportions",
        "--replicates",
        1,
        "--scheduler",
        "tcp://localhost:no",
        "--out",
        tmp_path / "x",
    ]
    pdips.fails("no dask scheduler answers at tcp://localhost:no", *words)
    for words in (["study"], ["study", "magic"]):
        err = pdips.fails("", *words)
        assert all(name in err for name in names())


def test_an_interrupt_says_that_results_stay(pdips, tmp_path, monkeypatch):
    from pdips_papers.modips.proportions import Proportions

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Proportions, "run", interrupted)
    pdips.fails(
        "what is done is kept",
        "study",
        "proportions",
        "--workers",
        0,
        "--out",
        tmp_path / "x",
        code=130,
    )


@pytest.mark.parametrize("name", names())
def test_every_study_keeps_the_contract(name):
    study = find(name)
    assert study.name == name
    assert study.title
    assert study.default_replicates >= 1
    assert study.data in ("none", "optional", "required")
    assert "<p>" in study.text()


def test_batches_pool_into_what_all_replicates_say():
    rng = np.random.default_rng(1)
    estimate, half = rng.standard_normal(100) + 0.2, rng.random(100) * 2
    parts = [slice(0, 30), slice(30, 37), slice(37, 100)]
    rows = [
        row
        for part in parts
        for row in summary("x", "", (estimate[part], half[part]), 0.5, unit=2.0)
    ]
    table = pooled(pd.DataFrame(rows)).set_index("column")
    error = (estimate - 0.5) / 2
    ours = {
        "bias": error.mean(),
        "rmse": math.sqrt((error**2).mean()),
        "width": half.mean(),
    }
    ours["coverage"] = (np.abs(estimate - 0.5) <= half).mean()
    for measure_name, value in ours.items():
        assert table.loc[measure_name, "ours"] == pytest.approx(value)
    assert table.loc["bias", "standard_error"] == pytest.approx(error.std(ddof=1) / 10)
    by_delta = (error**2).std(ddof=1) / 10 / (2 * ours["rmse"])
    assert table.loc["rmse", "standard_error"] == pytest.approx(by_delta)
    assert set(
        at_each(table.reset_index(), [", epsilon=1", ", epsilon=2"])["column"]
    ) == {f"{name}, epsilon={epsilon}" for name in ours for epsilon in (1, 2)}


class Quoting(Dice):
    def run(self, arguments, seed):
        raise KeyError("SECRET")


def test_an_error_in_a_task_quotes_no_value_of_a_table_that_was_given(monkeypatch):
    monkeypatch.delenv("PDIPS_TRACEBACK", raising=False)
    with pytest.raises(RuntimeError) as caught:
        perform(Quoting(), {"data": "t.csv"}, 1)
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))
    assert "KeyError" in str(caught.value)
    with pytest.raises(KeyError):
        perform(Quoting(), {}, 1)


@pytest.mark.parametrize("rule", ["sanitized", "posterior-predictive"])
def test_sets_are_combined_by_their_rule_without_those_that_give_no_estimate(rule):
    rng = np.random.default_rng(0)
    q, v = rng.standard_normal((6, 5)), rng.random((6, 5))
    q[0], v[1], q[2, 3:], q[3, :4], q[4] = (
        q[0] * 1e-3,
        v[1] * 1e-6,
        np.nan,
        np.nan,
        np.nan,
    )
    centre, half = combine(q, v, rule)
    for place, there in ((0, 5), (1, 5), (2, 3), (5, 5)):
        one = combine_by_rule(q[place, :there], v[place, :there], rule=rule)
        assert (centre[place], centre[place] + half[place]) == pytest.approx(
            (one.estimate, one.interval[1])
        )
    assert np.isnan([centre[3:5], half[3:5]]).all()
    if rule == "sanitized":  # the paper's: T = W + B / m
        b, w = q[0].var(ddof=1), v[0].mean()
        slow = stats.t.ppf(0.975, 4 * (1 + 5 * w / b) ** 2) * math.sqrt(b / 5 + w)
        assert half[0] == pytest.approx(slow, rel=1e-7)
        # the broken twin: the rule for imputation
        wrong = 1.96 * np.sqrt(1.2 * q[5].var(ddof=1) + v[5].mean())
        assert half[5] != pytest.approx(wrong, rel=0.05)


def test_one_set_or_equal_sets_have_normal_intervals():
    _, half = combine(np.array([[0.3], [0.4]]), np.array([[4.0], [0.0]]))
    np.testing.assert_allclose(half, [2 * stats.norm.ppf(0.975), 0])
    _, half = combine(np.full((1, 5), 0.3), np.full((1, 5), 4.0))
    np.testing.assert_allclose(half, 2 * stats.norm.ppf(0.975))


class Coins(Dice):
    """Two rows and a claim about them: the first is larger."""

    name = "coins"
    shift = 0.0

    def run(self, arguments, seed):
        a, b = np.random.default_rng(seed).standard_normal(2)
        return [
            {"row": "a", "column": "x", "value": a + self.shift},
            {"row": "b", "column": "x", "value": b},
        ]

    def table(self, measurements):
        return summarise(measurements)

    def findings(self, table):
        a, b = table["ours"]
        return [
            Finding(
                claim="a > b", found="", verdict="holds" if a > b else "doesn't hold"
            )
        ]


@pytest.mark.parametrize(
    ("shift", "verdict"), [(3.0, "holds"), (-3.0, "doesn't hold"), (0.45, "undecided")]
)
def test_a_verdict_stands_only_if_resampled_replicates_give_it_too(
    tmp_path, shift, verdict
):
    study = Coins()
    study.shift = shift
    measurements = measure(study, options(replicates=20), tmp_path, workers=0)
    (found,) = judged(study, measurements, study.table(measurements))
    # at 0.45 the difference is 0.01, its standard error 0.23
    assert found.verdict == verdict
    assert found.certainty.startswith("20 replicates")
    one = measurements[measurements["task"] == "replicate=0"]
    assert judged(study, one, study.table(one))[0].certainty == (
        "one replicate: no Monte Carlo error"
    )


def test_resamples_keep_pairs_together():
    keys = [f"{case}.replicate={n}" for case in ("a", "b") for n in range(30)]
    again, n = resample(
        pd.DataFrame({"task": keys, "value": [*range(30), *range(30)]}),
        np.random.default_rng(1),
    )
    values = again["value"].to_numpy()
    assert n == 30
    assert (values[:30] == values[30:]).all()
    assert len(set(values)) < 25  # with replacement
    assert again["task"].tolist() == keys
