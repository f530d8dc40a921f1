"""What stops a run of the program after its charge, and how the release is finished:
each run ends in one of four ways, and its exit code and line say in which.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from tables import cases
from test_cli import words, written

from pdips import Ledger, Margins, Schema, Table
from pdips.cli.common import command_of
from pdips.errors import InputError, ResumableError
from pdips.privacy.journal import Journal
from pdips.release.release import Release

ROOT = Path(__file__).parents[2]
READ = Journal.read


@pytest.fixture
def here(tmp_path):
    """A folder with a table and its schema."""
    return written(tmp_path)


def charged(here, *more: object, **named) -> list[object]:
    """Return a command that charges a ledger."""
    return words(here, "--ledger", here / "l.sqlite", *more, **named)


def resume(here, *more: object) -> list[object]:
    return ["resume", here / "l.sqlite", *more]


def stop(monkeypatch, error: BaseException) -> None:
    """Let an error come when a release is to be written."""

    def stopped(self, *_, **__) -> None:
        raise error

    monkeypatch.setattr(Release, "write", stopped)


def beside(here) -> set[str]:
    """Return the answers and locks that lie beside the ledger, and hidden folders."""
    hidden = {path.name for path in here.glob(".*")}
    return hidden | {path.name for path in here.glob("l.sqlite.*")} - {"l.sqlite.key"}


def is_whole(folder: Path) -> bool:
    """Whether a folder has a release whose files are those that it names."""
    document = json.loads((folder / "privacy.json").read_text())
    return {*document["digests"]} <= {path.name for path in folder.iterdir()}


FULL = OSError(28, "No space left on device")
ENDS = {
    "disk": (FULL, "No space left on device"),
    "interrupt": (KeyboardInterrupt(), "interrupted"),
    "exit": (SystemExit(0), "interrupted"),
    "bug": (ZeroDivisionError("SECRET"), "stopped by ZeroDivisionError"),
    "memory": (MemoryError(), "stopped by MemoryError"),
    "rule": (InputError("pyreadstat is gone"), "pyreadstat is gone"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_is_stopped_after_its_charge_is_resumed(
    pdips, here, monkeypatch, end
):
    error, what = ENDS[end]
    with monkeypatch.context() as patched:
        stop(patched, error)
        said = pdips.fails(what, *charged(here), code=4)
    assert said == (
        f"pdips: {what}; the release is charged (number 1) and not published. Finish "
        f"it at no further price: pdips resume {here / 'l.sqlite'} 1\n"
    )
    ledger = Ledger(here / "l.sqlite")
    shown = pdips.ok("ledger", "show", ledger.path)
    assert f"not published yet: pdips resume {ledger.path} 1" in shown
    assert not (here / "out").exists()
    [answers] = beside(here)
    assert answers.endswith(".answers")
    out = pdips.ok(*resume(here))
    assert "epsilon 1 spent" in out
    assert is_whole(here / "out/public")
    assert beside(here) == set()
    assert [entry.end for entry in ledger.entries()] == ["finished"]
    carried = json.loads((here / "out/public/privacy.json").read_text())["receipt"]
    assert carried["number"] == 1
    assert pdips("ledger", "check", ledger.path, here / "out")[0] == 0
    pdips.fails("no charge that can be resumed", *resume(here))


def test_a_release_with_gaussian_noise_is_resumed_as_it_was_charged(
    pdips, here, monkeypatch
):
    with monkeypatch.context() as patched:
        stop(patched, FULL)
        pdips.fails("No space left", *charged(here, "--delta", "1e-6"), code=4)
    assert "epsilon 1 spent" in pdips.ok(*resume(here))
    facts = json.loads((here / "out/public/privacy.json").read_text())
    assert (facts["privacy"]["kind"], facts["privacy"]["epsilon"]) == ("zcdp", 1)
    assert facts["settings"]["delta"] == 1e-6
    shown = pdips.ok("ledger", "show", here / "l.sqlite")
    assert "epsilon 1, delta 0.000001" in shown


def test_a_set_in_chunks_is_resumed_with_as_many_records(pdips, here, monkeypatch):
    more = ("--records", 5_000, "--delta", "1e-6", "--sets", 1)
    with monkeypatch.context() as patched:
        stop(patched, FULL)
        pdips.fails("No space left", *charged(here, *more), code=4)
    assert "epsilon 1 spent" in pdips.ok(*resume(here))
    home = here / "out/public"
    assert is_whole(home)
    assert len(pd.read_parquet(home / "synthetic_1.parquet")) == 5_000
    document = json.loads((home / "privacy.json").read_text())
    assert document["settings"]["records"] == "5000"


def test_before_a_charge_nothing_is_charged_and_the_line_says_so(
    pdips, here, monkeypatch
):
    for error, line, code in (
        (KeyboardInterrupt(), "interrupted; nothing was charged", 130),
        (FULL, "No space left on device; nothing was charged, nothing was", 2),
        (ZeroDivisionError("SECRET"), "a bug: ZeroDivisionError. Run again", 1),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(
                "pdips.data.table.Table.read",
                lambda *_, error=error, **__: (_ for _ in ()).throw(error),
            )
            found, out, err = pdips(*charged(here))
        # after an interrupt a terminal begins a new line
        assert (found, out, err.strip().count("\n")) == (code, "", 0)
        assert line in err
        assert "SECRET" not in err
    ledger = Ledger(here / "l.sqlite")
    assert [one.outcome for one in ledger.attempts()] == ["withdrawn"] * 3
    assert (ledger.entries(), beside(here)) == ([], set())


def test_one_number_is_needed_where_several_charges_are_open(pdips, here, monkeypatch):
    pdips.ok("ledger", "set-total", here / "l.sqlite", 9)
    said = f"ledger {here / 'l.sqlite'} has no charge that can be resumed"
    pdips.fails(said, *resume(here))
    with monkeypatch.context() as patched:
        stop(patched, FULL)
        pdips.fails("pdips resume", *charged(here, out="first"), code=4)
        pdips.fails("pdips resume", *charged(here, epsilon=2, out="second"), code=4)
    pdips.fails("several charges can be resumed, name one: 1, 2", *resume(here))
    pdips.fails("no charge 3 that can be resumed; open are: 1, 2", *resume(here, 3))
    pdips.ok(*resume(here, 2))
    assert not (here / "first").exists()
    pdips.ok(*resume(here))
    for name, epsilon in (("first", 1), ("second", 2)):
        document = json.loads((here / name / "public/privacy.json").read_text())
        assert document["privacy"]["epsilon"] == epsilon
    assert Ledger(here / "l.sqlite").summary().spent_epsilon == 3


def stopped_run(pdips, here, monkeypatch, *more: object) -> None:
    with monkeypatch.context() as patched:
        stop(patched, FULL)
        pdips.fails("pdips resume", *charged(here, *more), code=4)


def test_a_command_is_repeated_from_where_it_was_given(pdips, here, monkeypatch):
    monkeypatch.chdir(here)
    command = ["synthesize", "t.csv", "--schema", "s.toml", "--epsilon", "1/3"]
    more = ["--out", "o", "--ledger", "l.sqlite", "--columns", "colour,wage"]
    sets = ["--sets", 2, "--format", "csv", "--mechanism", "steps"]
    option = ["--option", "order=wage,colour"]
    with monkeypatch.context() as patched:
        stop(patched, FULL)
        pdips.fails("pdips resume l.sqlite 1", *command, *more, *sets, *option, code=4)
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    pdips.ok(*resume(here))
    assert [*elsewhere.iterdir()] == []
    document = json.loads((here / "o/public/privacy.json").read_text())
    assert document["settings"]["order"] == ["wage", "colour"]
    assert [*document["schema"]["columns"]] == ["colour", "wage"]
    assert (here / "o/public/synthetic_2.csv").exists()


def test_a_folder_that_is_gone_or_full_is_said(pdips, here, monkeypatch, tmp_path):
    folder = here / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    stopped_run(pdips, here, monkeypatch)
    monkeypatch.chdir(here)
    folder.rmdir()
    pdips.fails(f"was made in {folder}, which is gone", *resume(here))
    folder.mkdir()
    (here / "out").mkdir()
    (here / "out/thesis.tex").write_text("ten years")
    pdips.fails("is not empty; name another folder", *resume(here))
    pdips.ok(*resume(here, "--out", here / "more"))
    assert is_whole(here / "more/public")


def test_a_table_that_has_moved_is_named(pdips, here, monkeypatch):
    stopped_run(pdips, here, monkeypatch)
    (here / "t.parquet").rename(here / "moved.parquet")
    pdips.fails("t.parquet doesn't exist", *resume(here))
    monkeypatch.chdir(here)
    pdips.ok(*resume(here, "--table", "moved.parquet"))
    assert is_whole(here / "out/public")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda frame: frame.assign(size=[*frame["size"][:-1], 2]), "the table isn't"),
        (lambda frame: frame.iloc[1:], "the table isn't the one that it was charged"),
        (
            lambda frame: frame.assign(colour=["SECRET", *frame["colour"][1:]]),
            "the table is refused",
        ),
    ],
)
def test_another_table_is_refused_and_on_record(pdips, here, monkeypatch, change, said):
    frame = pd.read_parquet(here / "t.parquet")
    frame.loc[len(frame) - 1, "size"] = 1
    frame.to_parquet(here / "t.parquet")
    stopped_run(pdips, here, monkeypatch)
    change(frame).to_parquet(here / "t.parquet")
    line = pdips.fails(said, *resume(here))
    assert "record" in line
    assert "SECRET" not in line
    ledger = Ledger(here / "l.sqlite")
    assert (ledger.summary().refusals, len(ledger.attempts())) == (1, 1)
    frame.to_parquet(here / "t.parquet")
    pdips.ok(*resume(here))


def test_another_schema_or_other_code_is_refused_before_the_table_is_read(
    pdips, here, monkeypatch
):
    stopped_run(pdips, here, monkeypatch)
    table = (here / "t.parquet").read_bytes()
    (here / "t.parquet").unlink()
    text = (here / "s.toml").read_text()
    (here / "s.toml").write_text(f"title = 'another'\n{text}")
    pdips.fails("was made for another plan", *resume(here))
    (here / "s.toml").write_text(text)
    with monkeypatch.context() as patched:
        patched.setattr("pdips.mechanism.code_version", lambda: "9.9.9+0")
        pdips.fails("was made by another version of the code", *resume(here))
    (here / "t.parquet").write_bytes(table)
    pdips.ok(*resume(here))


def test_a_seed_isnt_kept_and_the_release_stays_inside(pdips, here, monkeypatch):
    seed = 918273645546372
    stopped_run(pdips, here, monkeypatch, "--seed", seed)
    [answers] = beside(here)
    kept = (here / answers).read_bytes() + (here / "l.sqlite").read_bytes()
    assert str(seed).encode() not in kept
    assert b'"seed": null' in kept
    code, out, err = pdips(*resume(here))
    assert (code, "Do not publish" in err) == (0, True)
    assert "the synthetic sets stay inside unless you say --allow seeded" in out
    assert not (here / "out/public").exists()
    document = json.loads((here / "out/confidential/privacy.json").read_text())
    assert document["reproducible"] is True


def test_a_release_from_python_is_resumed_there(pdips, here, monkeypatch):
    schema = Schema.load(here / "s.toml")
    table, ledger = Table.read(here / "t.parquet", schema), Ledger(here / "l.sqlite")
    with monkeypatch.context() as patched:
        patched.setattr(
            "pdips.mechanism.check_totals", lambda *_: (_ for _ in ()).throw(FULL)
        )
        with pytest.raises(ResumableError, match="repeat the call with resume=1"):
            Margins(epsilon=1).release(table, ledger=ledger)
    said = "was made from Python: repeat the call there with resume=1"
    pdips.fails(said, *resume(here))


# Passwords

ADDRESSES = {
    "postgresql://me:SECRET@host/db#people": True,
    "mysql://me:SE@CRET@host:3306/db#people": True,
    "postgresql://host/db?user=me&password=SECRET#people": True,
    "postgresql://host/db?sslmode=require;PWD=SECRET#people": True,
    "md://db?motherduck_token=SECRET#people": True,
    "postgresql://me@host/db#people": False,
    "postgresql://host/db?sslmode=require#people": False,
    "people.duckdb#people": False,
    "/home/me/a:b@c/t.parquet": False,
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_with_a_password_isnt_kept(address):
    has_password = ADDRESSES[address]
    kept = command_of("synthesize", {"table": address, "members": None, "out": "o"})
    assert kept["options"]["table"] == (None if has_password else address)
    assert kept["withheld"] == (["table"] if has_password else [])
    assert kept["options"]["out"] == "o"
    assert "SECRET" not in json.dumps(kept)


def test_a_table_whose_address_wasnt_kept_is_asked_for(pdips, here, monkeypatch):
    stopped_run(pdips, here, monkeypatch)
    monkeypatch.setattr(Journal, "read", withheld("table", "members"))
    for said in ("table", "members"):
        other = "members" if said == "table" else "table"
        line = f"has a password, which isn't kept: give it with --{said}"
        pdips.fails(line, *resume(here, f"--{other}", here / "t.parquet"))
    monkeypatch.setattr(Journal, "read", withheld("table"))
    pdips.ok(*resume(here, "--table", here / "t.parquet"))


def withheld(*names: str):
    """Return what reads a journal as if addresses had had passwords."""

    def read(journal: Journal):
        facts, answers = READ(journal)
        for name in names:
            facts["command"]["options"][name] = None
        facts["command"]["withheld"] = [*names]
        return facts, answers

    return read


# What is in its place already


def unlisted(*_, **__) -> None:
    raise InputError("the ledger is locked by another process")


def test_a_release_whose_end_couldnt_be_recorded_is_found_in_its_place(
    pdips, here, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "end", unlisted)
        code, out, err = pdips(*charged(here, "--sets", 1))
    assert (code, err.count("\n")) == (0, 1)
    assert "WARNING   the ledger is locked by another process. The release is in" in err
    assert "released  1 synthetic set" in out
    before = (here / "out/public/privacy.json").read_bytes()
    out = pdips.ok(*resume(here))
    assert out == f"finished  {here / 'out/public'} holds the whole release already\n"
    assert (here / "out/public/privacy.json").read_bytes() == before
    assert (Ledger(here / "l.sqlite").resumable(), beside(here)) == ([], set())


PAGES = {
    "interrupt": (KeyboardInterrupt(), 4),
    "disk": (FULL, 4),
    "rule": (InputError("run.json is damaged"), 4),
    "bug": (ZeroDivisionError("SECRET"), 1),
}


@pytest.mark.parametrize("end", PAGES)
def test_pages_that_cant_be_written_leave_the_whole_release(
    pdips, here, monkeypatch, end
):
    error, code = PAGES[end]

    def failing(*_, **__) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("pdips.report.pages.write_card", failing)
        said = pdips.fails("holds the whole release", *charged(here), code=code)
    assert f"`pdips report {here / 'out'}` writes the pages again" in said
    assert "SECRET" not in said
    assert is_whole(here / "out/public")
    assert [entry.end for entry in Ledger(here / "l.sqlite").entries()] == ["finished"]
    assert beside(here) == set()


def test_an_older_release_stays_until_the_new_one_is_whole(pdips, here, monkeypatch):
    pdips.ok(*charged(here))
    before = (here / "out/public/privacy.json").read_bytes()
    stopped_run(pdips, here, monkeypatch, "--overwrite")
    assert (here / "out/public/privacy.json").read_bytes() == before
    pdips.ok(*resume(here))
    document = json.loads((here / "out/public/privacy.json").read_text())
    assert document["receipt"]["number"] == 2


# Whole processes

DRIVER = cases(__file__, "cli_resume_driver")


def process(here, act: str, *command: object, shell: str = "") -> subprocess.Popen[str]:
    """Start the program, in which something happens when a release is written."""
    program = DRIVER.replace("ACT", act)
    full = [sys.executable, "-c", program, *map(str, command)]
    if shell:
        quoted = " ".join(map(shlex.quote, full))
        full = ["bash", "-o", "pipefail", "-c", shell.format(quoted)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        full,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=here,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_process_that_is_ended_after_its_charge_is_resumed(pdips, here, name):
    number = signal.Signals[name]
    act = 'print("charged", flush=True); time.sleep(60)'
    with process(here, act, *charged(here)) as running:
        assert running.stdout.readline() == "charged\n"
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    assert out == ""
    if name == "SIGKILL":
        assert (running.returncode, err) == (-signal.SIGKILL, "")
    else:
        assert running.returncode == 4
        assert err == (
            "pdips: interrupted; the release is charged (number 1) and not published. "
            f"Finish it at no further price: pdips resume {here / 'l.sqlite'} 1\n"
        )
    assert not (here / "out").exists()
    pdips.ok(*resume(here))
    assert is_whole(here / "out/public")
    ledger = Ledger(here / "l.sqlite")
    assert ledger.summary().spent_epsilon == 1
    assert [entry.end for entry in ledger.entries()] == ["finished"]
    assert {path.name for path in here.glob("l.sqlite.*")} == {"l.sqlite.key"}


@pytest.mark.slow
def test_a_second_interrupt_is_one_line_too(here):
    act = (
        'try: print("charged", flush=True); time.sleep(60)\n    finally: '
        'print("leaving", flush=True); time.sleep(60)'
    )
    with process(here, act, *charged(here)) as running:
        for said in ("charged\n", "leaving\n"):
            assert running.stdout.readline() == said
            running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 4
    assert err.count("\n") == 1
    assert f"pdips resume {here / 'l.sqlite'} 1" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "said"),
    [
        ("{} > /dev/full", "No space left on device"),
        ("{} | true", "Broken pipe"),
        ("{} >&-", "Bad file descriptor"),
    ],
)
def test_an_output_that_nobody_takes_leaves_the_release_and_says_so(here, shell, said):
    # the reader of the pipe is gone long before the first line
    act = "time.sleep(0.5); real(self, *given, **named)"
    with process(here, act, *charged(here), shell=shell) as running:
        out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert out == ""
    assert is_whole(here / "out/public")
    assert (here / "out/confidential/run.json").exists()
    ledger = Ledger(here / "l.sqlite")
    assert [entry.end for entry in ledger.entries()] == ["finished"]
    if said == "Bad file descriptor":
        assert err.count("\n") <= 1
        return
    assert err == (
        f"pdips: {here / 'out/public'} holds the whole release; the summary couldn't "
        f"be printed: {said}\n"
    )


@pytest.mark.slow
def test_why_a_mechanism_was_taken_is_told_when_the_release_is_in_its_place(here):
    chosen = [word for word in charged(here) if word not in ("--mechanism", "margins")]
    act = "real(self, *given, **named)"
    with process(here, act, *chosen, shell="{} > /dev/full") as running:
        _, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert is_whole(here / "out/public")
    assert [entry.end for entry in Ledger(here / "l.sqlite").entries()] == ["finished"]
    assert err.endswith("the summary couldn't be printed: No space left on device\n")


# Models that end the program

MODELS = {
    "file exits": "import sys\nsys.exit(0)\n",
    "file raises": "class Odd(BaseException): pass\nraise Odd('far')\n",
    "model exits": "import sys\ndef build_model(data, schema):\n    sys.exit(0)\n",
    "model raises": "class Odd(BaseException): pass\n"
    "def build_model(data, schema):\n    raise Odd('far')\n",
    "statistics exit": "import sys\ndef statistics(schema):\n    sys.exit(0)\n"
    "def build_model(given, schema):\n    pass\n"
    "def draw_records(draw, records, schema, rng):\n    pass\n",
}


@pytest.mark.slow_cases(
    "file exits",
)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_ends_the_program_is_refused_in_one_line(pdips, here, name):
    (here / "m.py").write_text(MODELS[name])
    mechanism = "modips" if name == "statistics exit" else "scores"
    command = charged(here, "--model", here / "m.py", mechanism=mechanism)
    said = pdips.fails("m.py", *command)
    assert ("SystemExit" in said) == ("exit" in name)
    assert not (here / "l.sqlite").exists() or not Ledger(here / "l.sqlite").entries()
    assert not (here / "out").exists()
