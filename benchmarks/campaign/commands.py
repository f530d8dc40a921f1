"""Random command lines, run in this process, and how each ends."""

import contextlib
import io
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import click
import pandas as pd

from benchmarks.campaign.chance import Chance
from pdips import cli
from pdips.registry import MECHANISMS

DOCUMENTED = (0, 2, 3, 4, 130)
SECONDS = 8.0  # after which a command is interrupted, which is one of its ends
MOST_CHARACTERS = 6_000  # of a message, which may quote what was given

SCHEMA = """
[columns.a]
levels = ["x", "y"]
[columns.b]
lower = 0
upper = 10
bins = 4
"""
FILES = {
    "schema.toml": SCHEMA,
    "plain.toml": SCHEMA.replace("bins = 4\n", ""),
    "wrong.toml": SCHEMA.replace('"y"', "3"),
    "other.toml": SCHEMA.replace('"y"', '"z"'),
    "public.toml": SCHEMA + "public = true\n",
    "draft.toml": "# DRAFT: read off the table\n" + SCHEMA,
    "broken.toml": SCHEMA + "[[",
    "deep.toml": "a = " + "[" * 900 + "]" * 900,
    "digits.toml": SCHEMA + "unit = " + "9" * 5_000,
    "outside.toml": '[columns.a]\nlevels_file = "../levels.txt"\n',
    "empty.toml": "",
    "table.csv": "a,b\n" + "x,1.5\ny,7\nx,10\n" * 20,
    "one.csv": "a,b\nx,1\n",
    "header.csv": "a,b\n",
    "more.csv": "a,b,c\nx,1,2\n",
    "ragged.csv": "a,b\nx,1,2\ny\n",
    "empty.csv": "",
    "unknown.csv": "a,b\nq,1\n",
    "false.parquet": "no parquet",
    "text.txt": "a,b\nx,1\n",
    "claim.toml": 'formula = "b ~ a"\n',
    "raises.py": "raise RuntimeError('x\\ny')\n",
    "exits.py": "import sys\nsys.exit(0)\n",
    "nothing.py": "",
    "broken.py": "def (",
    "false.sqlite": "no ledger",
}
LATIN = ("latin.csv", "latin.toml")  # no UTF-8

NUMBERS = (
    "1",
    "0",
    "-1",
    "2",
    "1/3",
    "0.5",
    "1e-9",
    "1e999",
    "nan",
    "inf",
    "-inf",
    "1e9999999",
    "9" * 400,
    "٣",
    "1_000",
    "0x10",
    "1e-400",
    "1000000",
    " 2 ",
)
TEXTS = (
    "",
    " ",
    "-",
    "--",
    "x",
    "a",
    "b",
    "a,b",
    "a,,b",
    "ü",
    "\udcff",
    "x" * 5_000,
    "a\nb",
    "a=b",
    "=",
    "..",
    ".",
    "%s",
    "{0}",
    "<b>",
    "'",
    '"',
    "a~b",
    "b ~ a",
)
TABLES = (
    "table.csv",
    "table.parquet",
    "one.csv",
    "header.csv",
    "more.csv",
    "ragged.csv",
    "empty.csv",
    "unknown.csv",
    "false.parquet",
    "text.txt",
    "latin.csv",
    "parts",
    "nowhere.csv",
    "folder",
    "release",
    "a.duckdb#b",
)
SCHEMAS = tuple(name for name in (*FILES, *LATIN) if name.endswith(".toml"))
LEDGERS = (
    "ledger.sqlite",
    "new.sqlite",
    "false.sqlite",
    "folder",
    "no/such/l.sqlite",
    "/dev/null",
    "table.csv",
    "/proc/l.sqlite",
)
FOLDERS = ("release", "release/public", "folder", "nowhere", "table.csv", "empty")
OUTPUTS = ("release", "folder", "table.csv", "no/such", "/dev/null", "/proc/nowhere")
MODELS = ("raises.py", "exits.py", "nothing.py", "broken.py", "no.py", "nonsense")
SETTINGS = (
    "split=per-set",
    "kind=zcdp",
    "delta=1e-6",
    "delta=2",
    "x=1",
    "variant=published",
    "variant=x",
    "order=a,b",
    "order=",
    "layers=2",
    "layers=x",
    "below=cells",
    "degree=1",
    "n_records=60",
    "quantiles=3",
    "sets=posterior",
    "novalue",
    "=",
    "epsilon=2",
    "split=once",
)
WORDS = {
    "table": TABLES,
    "members": TABLES,
    "schema_path": SCHEMAS,
    "mechanism_name": (*MECHANISMS, "nonsense"),
    "neighbours": ("replace-one", "add-remove", "both"),
    "model": MODELS,
    "options": SETTINGS,
    "ledger_path": LEDGERS,
    "path": LEDGERS + SCHEMAS,
    "directory": FOLDERS,
    "folders": FOLDERS,
    "claim_path": ("claim.toml", "schema.toml", "nowhere.toml"),
    "out": OUTPUTS,
    "html_path": OUTPUTS,
    "json_path": OUTPUTS,
    "target": OUTPUTS,
    "n_sets": ("1", "2", "3", "0", "x", "10001"),
    "n_runs": ("10", "1", "0", "-1", "x"),
    "replays": ("2", "1", "0", "x"),
    "names": ("a", "a,b", "b,a", "c", ""),
    "seed": ("1", "0", "-1", "x"),
    "formula": ("b ~ a", "a ~ b", "a", "a ~", "~", "a ~ a", "b ~ 1", "log(b) ~ a"),
    "wants": ("a within 5", "two-way within .1", "a", "z within 1", "a within x"),
    "draws": ("nowhere.nc", "table.csv", "folder"),
}
"""Values of the parameters of commands, by their names in the code."""

NEVER = {"scheduler", "every"}  # minutes, or a network


@dataclass(frozen=True)
class Ending:
    """How a command ended; ``fault`` is empty where that is allowed."""

    code: int
    fault: str = ""


def command_line(seed: int, number: int) -> list[str]:
    """Return the words of a command, the same for the same seed and number."""
    chance = Chance(seed, number, 2)
    command: click.Command = cli.program
    words = list[str]()
    while isinstance(command, click.Group):
        names = sorted(command.commands)
        likely = [name for name in ("synthesize", "plan", "ledger") if name in names]
        name = chance.one(likely if likely and chance.maybe(0.6) else names)
        if chance.maybe(0.01):
            return [*words, chance.one(TEXTS)]
        words.append(name)
        command = command.commands[name]
    for parameter in command.params:
        words += _given(chance, parameter)
    if chance.maybe(0.05):
        words.insert(chance.whole(1, len(words)), chance.one(TEXTS + NUMBERS))
    return words


def _given(chance: Chance, parameter: click.Parameter) -> list[str]:
    """Return the words by which a parameter is given, if it is."""
    name = parameter.name or ""
    if name in NEVER or not chance.maybe(0.97 if parameter.required else 0.15):
        return []
    times = chance.whole(1, 2) if parameter.multiple or parameter.nargs < 0 else 1
    found = list[str]()
    for _ in range(times):
        if isinstance(parameter, click.Option):
            found.append(parameter.opts[-1])
        if not (isinstance(parameter, click.Option) and parameter.is_flag):
            found.append(_value(chance, parameter, name))
    return found


def _value(chance: Chance, parameter: click.Parameter, name: str) -> str:
    if chance.maybe(0.04):
        return chance.one(TEXTS)
    if isinstance(parameter.type, click.Choice):
        choices: list[str] = [*map(str, parameter.type.choices), "nonsense"]
        return chance.one(choices)
    known = WORDS.get(name)
    if known is None:
        return chance.one(NUMBERS)
    # most commands should get past their first file
    return known[0] if chance.maybe(0.7) else chance.one(known)


@contextlib.contextmanager
def shelf() -> Iterator[None]:
    """Work in a temporary folder with files of all sorts, and a release."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in FILES.items():
            Path(name).write_text(text, encoding="utf-8")
        for name in LATIN:
            Path(name).write_bytes("a,b\nä,1\n".encode("latin-1"))
        frame = pd.DataFrame({"a": ["x", "y"] * 30, "b": [1.5, 9.0] * 30})
        frame.to_parquet("table.parquet")
        for made in ("parts", "folder", "empty"):
            Path(made).mkdir()
        frame.to_parquet("parts/1.parquet")
        Path("folder/file.txt").write_text("", encoding="utf-8")
        words = "synthesize table.csv --schema schema.toml --epsilon 1 --out release"
        run([*words.split(), "--sets", "1", "--ledger", "ledger.sqlite"])
        yield


def run(words: Sequence[str]) -> Ending:
    """Run a command in this process, and judge its exit code and what it prints."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    err.reconfigure(errors="backslashreplace")  # as of every program
    fault = ""
    code = 0
    with (
        mock.patch.object(sys, "argv", ["pdips", *words]),
        mock.patch.dict(os.environ),
        mock.patch("pdips.html.SILENCE", 1e6),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            cli.main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(bool(error.code))
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            code = 1
            fault = f"ended with {type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return Ending(code, fault or _fault(code, text_of(out), text_of(err)))


def text_of(stream: io.TextIOWrapper) -> str:
    """Return what was written to a stream."""
    stream.seek(0)
    text: str = stream.read()
    return text


def _fault(code: int, out: str, err: str) -> str:
    """Return what is wrong with an ending, or nothing."""
    lines = [
        line
        for line in err.splitlines()
        if line.strip() and not line.startswith(("WARNING ", "NOTE "))
    ]
    if code not in DOCUMENTED:
        return f"exit code {code}: {err.strip()[:MOST_CHARACTERS]}"
    if "Traceback" in out + err:
        return "a traceback"
    if lines and lines[0].startswith("Usage: "):  # a group without a command
        return ""
    if len(lines) > 1:
        return f"{len(lines)} lines on stderr: {err[:MOST_CHARACTERS]!r}"
    if code in (2, 4, 130) and not lines:
        return f"exit code {code} without a word"
    is_message = code == 0 or not lines or lines[0].startswith("pdips: ")
    if not is_message or len(err) > MOST_CHARACTERS:
        return f"not a message of the program: {err[:MOST_CHARACTERS]!r}"
    return ""


def campaign(
    seed: int, n_commands: int, *, first: int = 0
) -> Iterator[tuple[int, list[str], Ending]]:
    """Yield each command line with its number and ending."""
    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)
    }
    try:
        with shelf():
            for number in range(first, first + n_commands):
                words = command_line(seed, number)
                yield number, words, run(words)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
