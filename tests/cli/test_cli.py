"""The program as people run it: a release from end to end, and every bad input with its
one line and exit code.
"""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from tables import cases, schema_text

from pdips import Ledger, Margins, Schema, Table, html
from pdips.margins.planning import suited
from pdips.privacy.curator import CHECKING, Clock
from pdips.synthesis import ReleaseJob

SCHEMA = schema_text("cli")


def written(folder: Path) -> Path:
    """Return a folder with a table and its schema."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "colour": rng.choice(["blue", "red"], 60),
            "size": rng.integers(1, 4, 60),
            "wage": rng.uniform(0, 1000, 60),
        }
    )
    frame.to_parquet(folder / "t.parquet")
    frame.to_csv(folder / "t.csv", index=False)
    (folder / "s.toml").write_text(SCHEMA)
    return folder


@pytest.fixture
def here(tmp_path):
    return written(tmp_path)


def words(
    here,
    *more: object,
    table="t.parquet",
    mechanism="margins",
    epsilon: object = 1,
    out="out",
):
    common = [
        "synthesize",
        here / table,
        "--schema",
        here / "s.toml",
        "--mechanism",
        mechanism,
    ]
    return [*common, "--epsilon", epsilon, "--out", here / out, *more]


def left_behind(here) -> set[str]:
    return {path.name for path in here.iterdir()} - {"t.parquet", "t.csv", "s.toml"}


@pytest.mark.parametrize("said", [{}, {"OPENBLAS_NUM_THREADS": "2"}])
def test_linear_algebra_has_one_thread_unless_the_environment_says_otherwise(said):
    code = (
        "import os, atexit as a; a.register(lambda: "
        "print(os.getenv('OPENBLAS_NUM_THREADS'))); import pdips.cli as p"
    )
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith("_NUM_THREADS")
    }
    words = [sys.executable, "-c", f"{code}; p.main()", "--version"]
    shown = subprocess.run(
        words, env={**kept, **said}, capture_output=True, text=True, check=True
    ).stdout
    assert shown.split()[-1] == said.get("OPENBLAS_NUM_THREADS", "1")


def test_a_mechanism_is_chosen_by_the_schema_alone(pdips, here):
    unnamed = [word for word in words(here) if word not in ("--mechanism", "margins")]
    assert ("mechanism margins: it counts views that hold all pairs") in pdips.ok(
        *unnamed
    ).splitlines()[0]
    assert (
        json.loads((here / "out/public/privacy.json").read_text())["mechanism"]
        == "margins"
    )
    wide = Schema(columns={f"c{k}": {"levels": list(range(8))} for k in range(9)})
    assert [suited(wide)[0], suited(wide, has_model=True)[0]] == ["margins", "scores"]


@pytest.mark.slow_cases(
    "local",
)
@pytest.mark.parametrize("scheduler", [None, "local"])
def test_a_folder_of_files_is_released_from_end_to_end(pdips, here, scheduler):
    (here / "parts").mkdir()
    frame = pd.read_parquet(here / "t.parquet")
    for number in range(3):
        frame[number::3].to_parquet(here / "parts" / f"{number}.parquet", index=False)
    named = [
        "synthesize",
        here / "parts",
        "--schema",
        here / "s.toml",
        "--epsilon",
        1,
        "--ledger",
        here / "l.sqlite",
    ]
    for more, said in [
        (["--mechanism", "steps"], "steps takes no table in many files"),
        (
            ["--scheduler", "tcp://localhost:no"],
            "no dask scheduler answers at tcp://localhost:no",
        ),
    ]:
        code, _, err = pdips(*named, *more, "--out", here / "out")
        assert (code, said in err, len(err.splitlines())) == (2, True, 1)
    assert Ledger(here / "l.sqlite").summary().spent_epsilon == 0
    out = pdips.ok(
        *named,
        *([] if scheduler is None else ["--scheduler", scheduler]),
        "--report",
        "--out",
        here / "out",
    )
    assert "mechanism margins: it takes a table in many files" in out
    assert len(pd.read_parquet(here / "out/public/synthetic_1.parquet")) == 60
    assert json.loads((here / "out/confidential/run.json").read_text())["comparison"][
        "skipped"
    ]
    assert ("counted and not compared") in (
        here / "out/confidential/report.html"
    ).read_text()
    assert Ledger(here / "l.sqlite").summary().spent_epsilon == 1


@pytest.mark.parametrize(
    ("mechanism", "table", "file_format"),
    [
        ("laplace-sanitizer", "t.csv", "parquet"),
        ("margins", "t.parquet", "csv"),
        ("steps", "t.csv", "parquet"),
    ],
)
def test_a_release_from_end_to_end(pdips, here, mechanism, table, file_format):
    arguments = words(
        here, "--sets", 2, "--format", file_format, mechanism=mechanism, table=table
    )
    out = pdips.ok(*arguments, "--ledger", here / "l.sqlite")
    for word in (
        "2 synthetic sets",
        "epsilon = 1 in total",
        "card.html",
        f"`pdips report {here / 'out'}` writes the report",
        "1 spent",
    ):
        assert word in out
    public = here / "out" / "public"
    names = ("answers", "margins", "synthetic_1", "synthetic_2")
    tables = {f"{name}.{file_format}" for name in names}
    assert {path.name for path in public.iterdir()} == {
        "card.html",
        "datapackage.json",
        "privacy.json",
        "signature.json",
    } | tables
    pdips.ok("check", here / "out", "--ledger", here / "l.sqlite")
    schema = Schema.load(here / "s.toml")
    for number in (1, 2):
        assert (
            Table.read(public / f"synthetic_{number}.{file_format}", schema).n_records
            == 60
        )
    inside = here / "out" / "confidential"
    assert {path.name for path in inside.iterdir()} == {"run.json"}
    assert stat.S_IMODE(inside.stat().st_mode) == 0o700
    assert left_behind(here) == {"out", "l.sqlite", "l.sqlite.key"}


def test_the_report_is_written_on_demand_and_is_the_same_later(pdips, here):
    out = pdips.ok(*words(here, "--report"))
    report = here / "out/confidential/report.html"
    assert f"inside    {report}: for the curator only" in out
    written = report.read_bytes()
    report.unlink()
    assert str(report) in pdips.ok("report", here / "out")
    assert report.read_bytes() == written
    out = pdips.ok(*words(here, "--overwrite"))
    assert "verdicts" not in out
    assert not report.exists()
    pdips.ok("report", here / "out")
    assert report.exists()


def test_a_loss_is_told_in_words_and_a_price_as_it_was_asked_for(pdips, here):
    line = "price     epsilon = 1{} in total, replace-one neighbours, {}\n"
    assert line.format("", "kind pure") in pdips.ok(*words(here))
    out = pdips.ok(*words(here, "--delta", "1e-6", "--overwrite"))
    assert line.format(" at delta = 0.000001", "Gaussian noise") in out


def test_the_files_have_all_that_others_rely_on(pdips, here):
    more = [
        "--option",
        "order=size,colour",
        "--option",
        "split=per-set",
        "--neighbours",
        "add-remove",
        "--sets",
        2,
    ]
    assert pdips(*words(here, *more, mechanism="steps"))[0] == 0
    text = (here / "out/public/privacy.json").read_text()
    facts, run = (
        json.loads(text),
        json.loads((here / "out/confidential/run.json").read_text()),
    )
    settings = {
        "order": ["size", "colour"],
        "split": "per-set",
        "neighbours": "add-remove",
    }
    assert facts["settings"] | settings == facts["settings"]
    assert Schema.model_validate(facts["schema"]) == Schema.load(here / "s.toml")
    assert run["seconds"]
    assert run["peak_memory_mib"] > 10
    assert "seconds" not in text
    (here / "out/public/card.html").unlink()
    assert "card.html" in pdips.ok("report", here / "out")  # writes the pages again
    assert (here / "out/public/card.html").exists()


def test_a_seed_marks_the_release(pdips, here):
    # which is another thing
    code, out, err = pdips(*words(here, "--seed", 1, "--allow", "asymptotic"))
    assert (code, "Do not publish" in err) == (0, True)
    assert (
        "public    nothing: the synthetic sets stay inside unless you say --allow "
        "seeded"
    ) in out
    assert {path.name for path in (here / "out").iterdir()} == {"confidential"}
    assert (
        json.loads((here / "out/confidential/privacy.json").read_text())["reproducible"]
        is True
    )
    assert "seed: 1" not in (here / "out/confidential/run.json").read_text()
    code, out, err = pdips(*words(here, "--seed", 1, "--allow", "seeded", out="again"))
    assert (code, "Do not publish" in err) == (0, True)
    assert "again/public: card.html" in out
    places = ("out/confidential", "again/public")
    first, again = (
        pd.read_parquet(here / place / "synthetic_1.parquet") for place in places
    )
    pd.testing.assert_frame_equal(first, again)


def test_a_release_without_guarantee_has_no_public_folder(pdips, here):
    assert "NO GUARANTEE" in pdips.ok(
        *words(here, "--option", "variant=published", mechanism="steps")
    )
    assert {path.name for path in (here / "out").iterdir()} == {"confidential"}
    assert (here / "out/confidential/synthetic_1.parquet").exists()


def test_overwrite_replaces_a_release_and_nothing_else(pdips, here):
    assert pdips(*words(here))[0] == 0
    pdips.fails("is not empty", *words(here, epsilon=2))
    assert pdips(*words(here, "--overwrite", epsilon=2))[0] == 0
    assert (
        json.loads((here / "out/public/privacy.json").read_text())["privacy"]["epsilon"]
        == 2
    )
    (here / "link").symlink_to(here / "out")
    assert pdips(*words(here, "--overwrite", epsilon=3, out="link"))[0] == 0
    assert (
        json.loads((here / "out/public/privacy.json").read_text())["privacy"]["epsilon"]
        == 3
    )
    assert left_behind(here) == {"out", "link"}
    (here / "out" / "thesis.tex").write_text("ten years")
    pdips.fails("holds more than a release", *words(here, "--overwrite"))
    assert (here / "out" / "thesis.tex").read_text() == "ten years"


def test_another_version_of_the_table_is_adopted_by_name(pdips, here):
    ledger = here / "l.sqlite"
    pdips(*words(here, "--ledger", ledger))
    pd.read_parquet(here / "t.parquet").iloc[1:].to_parquet(here / "t.parquet")
    err = pdips.fails("", *words(here, "--ledger", ledger, out="more"))
    # that the table differs from another one is an answer about its records
    assert "another table" not in err
    pdips.fails(
        "another table", *words(here, "--ledger", ledger, "--explain", out="more")
    )
    assert (
        pdips(
            "ledger", "adopt", ledger, here / "t.parquet", "--schema", here / "s.toml"
        )[0]
        == 0
    )
    assert "epsilon 2 spent" in pdips.ok(*words(here, "--ledger", ledger, out="more"))
    found = Ledger(ledger)
    assert [role for _, role in found.tables()] == ["first", "version"]
    assert [one.outcome for one in found.attempts()] == [
        "charged",
        "refused",
        "refused",
        "adopted",
        "charged",
    ]
    assert [one.explained for one in found.attempts()] == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_schema_draft_and_check(pdips, here):
    code, out, err = pdips("schema", "draft", here / "t.csv")
    assert code == 0
    assert "READ OFF THE CONFIDENTIAL TABLE" in out
    assert "replace its levels and bounds" in err
    (here / "d.toml").write_text(out)
    (here / "s.toml").write_text(out)
    complains(pdips, here, "is still a draft", "schema", "check", here / "d.toml")
    complains(pdips, here, "is still a draft", *words(here))
    complains(
        pdips,
        here,
        "is still a draft",
        "plan",
        here / "d.toml",
    )
    (here / "d.toml").write_text(
        "\n".join(line for line in out.splitlines() if not line.startswith("# DRAFT."))
    )
    out = pdips.ok("schema", "check", here / "d.toml")
    assert "colour: 2 levels" in out
    assert "no bins: wage; mechanism margins needs none" in out
    (here / "d.toml").replace(here / "s.toml")
    asked = words(here, mechanism="steps")
    complains(pdips, here, "(bins = 20); mechanism 'margins' needs none", *asked)


def test_some_columns_of_a_file_as_people_have_them(pdips, here):
    pd.read_parquet(here / "t.parquet").assign(comment="x").to_csv(
        here / "t.csv", index=False, sep=";"
    )
    complains(
        pdips,
        here,
        "'comment' of the table is not in the schema",
        *words(here, table="t.csv"),
    )
    pdips.ok(
        *words(
            here,
            "--columns",
            "wage, colour",
            "--ledger",
            here / "l.sqlite",
            table="t.csv",
        )
    )
    assert set(pd.read_parquet(here / "out" / "public" / "synthetic_1.parquet")) == {
        "wage",
        "colour",
    }
    assert pdips("evaluate", here / "t.csv", here / "out")[0] == 0
    for chosen, message in (
        ("wage,clour", "did you mean 'colour'?"),
        ("", "'' is no column of the schema"),
    ):
        pdips.fails(
            message, *words(here, "--columns", chosen, table="t.csv", out="more")
        )
    text = (here / "s.toml").read_text()
    (here / "s.toml").write_text(f"ignore = ['wage']\n{text}")
    complains(
        pdips,
        here,
        "ignore: 'wage' is a column of this schema",
        *words(here, table="t.csv"),
    )


def complains(pdips, here, message: str, *arguments: object, code: int = 2) -> None:
    """Check for one line on stderr that has ``message`` and no record's value or
    position, and nothing left behind.
    """
    before = left_behind(here)
    err = pdips.fails(message, *arguments, code=code)
    assert err.startswith("pdips: ")
    # the folder's own name has digits that say nothing of the table
    said = err.replace(str(here), "")
    assert not any(word in said for word in ("SECRET", "31415", "17"))
    assert left_behind(here) <= before


def test_what_cannot_be_done(pdips, here):
    complains(
        pdips,
        here,
        "`pdips schema draft TABLE`",
        "synthesize",
        "t.csv",
        "--epsilon",
        1,
        "--out",
        "o",
    )
    complains(pdips, here, "doesn't exist", *words(here, table="none.parquet"))
    complains(pdips, here, "l.sqlite", "ledger", "show", here / "l.sqlite")
    complains(pdips, here, "release", "report", here)
    (here / "file").write_text("")
    complains(pdips, here, "is a file; name a folder", *words(here, out="file"))
    complains(pdips, here, "is no folder", *words(here, out="file/out"))
    (here / "t.parquet").write_bytes((here / "t.parquet").read_bytes()[:-9])
    complains(pdips, here, "damaged", *words(here))


@pytest.mark.parametrize(
    ("more", "message"), cases(__file__, "options_that_make_no_sense")
)
def test_options_that_make_no_sense(pdips, here, more, message):
    complains(pdips, here, message, *words(here, *more, mechanism="steps"))


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (RuntimeError("SECRET"), "a bug: RuntimeError", 1),
        (
            OSError(28, "No space left on device"),
            "No space left on device; nothing was charged, nothing was released",
            2,
        ),
    ],
)
def test_what_goes_wrong_before_a_charge_says_so_and_shows_no_value(
    pdips, here, monkeypatch, error, message, code
):
    monkeypatch.setattr(Margins, "release_planned", Mock(side_effect=error))
    complains(pdips, here, message, *words(here), code=code)


def test_an_interrupt_before_a_charge_says_that_there_is_none(pdips, here, monkeypatch):
    monkeypatch.setattr(Margins, "release_planned", Mock(side_effect=KeyboardInterrupt))
    code, out, err = pdips(*words(here))
    assert (code, out, err.strip()) == (
        130,
        "",
        "pdips: interrupted; nothing was charged, nothing was released",
    )
    assert left_behind(here) == set()


def test_a_terminated_run_leaves_nothing_behind(here):
    # forty trees of fifteen layers take minutes; the hidden folder stands as soon as
    # the table is being read
    examples = Path(__file__).parents[2] / "examples"
    table = [
        examples / "youth.parquet",
        "--schema",
        examples / "youth.toml",
        "--mechanism",
        "steps",
    ]
    more = [
        "--epsilon",
        "1",
        "--sets",
        "40",
        "--option",
        "split=per-set",
        "--option",
        "layers=15",
        "--out",
    ]
    command = [
        sys.executable,
        "-m",
        "pdips",
        "synthesize",
        *map(str, [*table, *more, here / "out"]),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        while not left_behind(here):
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=60)
    # interrupted while a class is being made, Python ends by the signal itself: a shell
    # calls both 130
    assert running.returncode in (130, -signal.SIGINT)
    assert (out, err.strip()) == (
        "",
        "pdips: interrupted; nothing was charged, nothing was released",
    )
    assert left_behind(here) == set()


def test_an_interrupt_as_soon_as_a_folder_is_made_leaves_nothing_else(
    pdips, here, monkeypatch
):
    assert pdips(*words(here))[0] == 0
    before, done = (here / "out/public/privacy.json").read_bytes(), Path.mkdir

    def interrupted(self, *args, **kwargs):
        done(self, *args, **kwargs)
        if self.name.startswith(".out-"):
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    assert pdips(*words(here, "--overwrite", epsilon=2))[0] == 130
    assert left_behind(here) == {"out"}
    assert (here / "out/public/privacy.json").read_bytes() == before


def test_a_termination_that_python_drops_is_sent_again():
    # an interrupt in __del__ or in the callback of a weak reference is only printed,
    # and the program would go on
    code = """
import os, signal, time
from pdips import cli

class Dropping:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

def going_on(**_):
    Dropping()
    time.sleep(30)
    print("went on")

cli.program.main = going_on
cli.run()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 130
    assert (ended.stdout, ended.stderr) == (
        "",
        "pdips: interrupted; nothing was charged, nothing was released\n",
    )


def test_nothing_is_said_to_a_reader_who_has_gone():
    # a pipe whose other end is closed, as `pdips plan S.toml | head -1` leaves it
    reading, writing = os.pipe()
    os.close(reading)
    code = "import sys; sys.argv = ['pdips', '--help']; import pdips.cli as p; p.run()"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_help_and_version(pdips):
    for arguments in (
        ["--help"],
        ["synthesize", "--help"],
        ["ledger", "--help"],
        ["schema", "--help"],
        ["--version"],
    ):
        assert "pdips" in pdips.ok(*arguments)
    code, _, err = pdips()
    assert (code, "Commands:" in err) == (2, True)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_step_that_lasts_says_so_where_nobody_watches(monkeypatch, capsys, quiet):
    monkeypatch.setattr(html, "SILENCE", 0.01)
    with html.show_progress(quiet=quiet) as tell:
        tell("fitting a field")
        time.sleep(0.3)
    said = capsys.readouterr().err.splitlines()
    assert bool(said) is not quiet
    assert all(
        re.fullmatch(
            r"working   (starting|fitting a field) \(0 "
            r"s\)",
            line,
        )
        for line in said
    )


@pytest.mark.parametrize(("model", "said"), [("m.py", [CHECKING]), (None, [])])
def test_checks_of_a_model_are_announced_before_the_price_is_computed(model, said):
    told = []
    mechanism = SimpleNamespace(model=model, plan=lambda schema: schema / 0)
    job = ReleaseJob(
        mechanism=mechanism, schema=1, table="t.csv", clock=Clock(told.append)
    )
    with pytest.raises(ZeroDivisionError):
        job.run()
    assert told == said


def test_a_terminal_and_a_notebook_show_the_share_that_is_done(monkeypatch, capsys):
    steps = (
        "drawing by NUTS: 25% of 8,000 draws, 3 divergent, about 9 s left",
        "drawing synthetic set 4 of 5",
        "reading",
    )
    assert [html._share(step) for step in steps] == [0.25, 0.6, None]
    monkeypatch.setenv("FORCE_COLOR", "1")
    with html.show_progress() as tell:
        tell(steps[0])
        time.sleep(0.3)
    assert "3 divergent, about 9 s left" in capsys.readouterr().err
    shown = []
    monkeypatch.setattr("rich.console.Console.is_jupyter", True, raising=False)
    monkeypatch.setattr(
        "IPython.display.display",
        lambda *_, **__: SimpleNamespace(update=lambda one: shown.append(one.data)),
    )
    monkeypatch.setattr("rich.console.Console.__init__", lambda self, **_: None)
    with html.show_progress() as tell:
        tell("25% <of it>")
    assert shown == ["<progress max=1 value=0.25></progress> 25% &lt;of it&gt;", ""]
