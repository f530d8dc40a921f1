"""The code on a Markdown page: found, and run as a reader would, in one folder and one
namespace a page.

HTML comments, which readers do not see, say what a page leaves out: ``<!-- setup ...
-->`` holds Python that runs where it stands; ``<!-- file: NAME -->`` writes the next
block to a file; ``<!-- not run: REASON -->`` says why the next block isn't run.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from markdown_it import MarkdownIt

from pdips import Schema
from pdips.cli import program

ROOT = Path(__file__).parents[1]
MARKDOWN = MarkdownIt("commonmark").enable("table")
PROSE = ("text", "json")
"""Languages of blocks that hold formulas, folders or what a program prints."""


@dataclass(frozen=True)
class Block:
    """A block of code: where it begins, its language, its text, the file it is written
    to, why it isn't run.
    """

    line: int
    language: str
    text: str
    file: str | None = None
    not_run: str | None = None


def pages() -> list[Path]:
    """Return all pages of the project with code on them or not."""
    hidden = ("_build", "_notebooks")
    found = (
        path
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if not set(hidden) & set(path.parts)
    )
    return [ROOT / "README.md", *found]


def blocks(text: str) -> Iterator[Block]:
    """Find the blocks of a page in order, hidden ones as language "setup"."""
    marks: dict[str, str] = {}
    for token in MARKDOWN.parse(text):
        line = (token.map or [0])[0] + 1
        if token.type == "html_block":
            said = re.fullmatch(
                r"<!--\s*(setup|file:|not "
                r"run:)\s(.*?)\s*-->",
                token.content.strip(),
                re.DOTALL,
            )
            if said and said[1] == "setup":
                yield Block(line, "setup", said[2])
            elif said:
                marks[said[1]] = said[2]
        elif token.type in ("fence", "code_block"):
            language = token.info.strip() if token.type == "fence" else "indented"
            yield Block(
                line,
                language,
                token.content,
                marks.pop("file:", None),
                marks.pop("not run:", None),
            )
    assert not marks, f"a comment that no block takes: {marks}"


def is_code(block: Block) -> bool:
    """Say whether a block is to be run: no formula, and no directive of Sphinx."""
    return block.language not in PROSE and not block.language.startswith("{")


def commands(block: Block) -> list[list[str]]:
    """Return the commands of a block of shell, words apart."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def check(block: Block) -> None:
    """Check what can be checked without running: languages, targets of make, options of
    the program.
    """
    known = ("python", "setup", "bash", "toml", "r", *PROSE)
    assert block.language in known or block.language.startswith("{"), (
        f"line {block.line}: {block.language!r}"
    )
    if block.language == "bash":
        for words in commands(block):
            _check_command(words, block)
    if block.language in ("python", "setup"):
        compile(block.text, f"line {block.line}", "exec")


def _check_command(words: list[str], block: Block) -> None:
    if words[0] == "make":
        targets = re.findall(
            r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")
        )
        assert words[1] in targets, f"line {block.line}: no target {words[1]}"
    elif words[0].endswith("pdips"):
        command, rest = _subcommand(words[1:])
        there = {
            option
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        gone = (
            {word.split("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
            - there
            - {"--help"}
        )
        assert not gone, f"line {block.line}: {command.name} has no {gone}"
    else:
        assert block.not_run, (
            f"line {block.line}: {words[0]} isn't run, and no comment says why"
        )


def _subcommand(words: list[str]) -> tuple[click.Command, list[str]]:
    command: click.Command = program
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    if command.name == "study":  # it hands over to a package of its own
        [entry] = entry_points(group="pdips.commands", name="study")
        command = entry.load()
    return command, words


@cache
def has_r() -> bool:
    """Whether R is there, with the package that reads ``privacy.json``."""
    if shutil.which("Rscript") is None:
        return False
    words = ["Rscript", "-e", "library(jsonlite)"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def run(block: Block, names: dict[str, Any]) -> None:
    """Run a block where the process stands; ``names`` is what the page's Python has
    defined so far.
    """
    if block.file:
        Path(block.file).write_text(block.text, encoding="utf-8")
    if block.language in ("python", "setup"):
        exec(compile(block.text, f"line {block.line}", "exec"), names)
    elif block.language == "r" and has_r():
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(
            ["Rscript", "-e", block.text],
            check=True,
            capture_output=True,
            env={**os.environ, "PATH": path},
        )
    elif block.language == "toml":
        Schema.from_toml(block.text)
    elif block.language == "bash":
        for words in commands(block):
            assert words[0].endswith("pdips"), (
                f"line {block.line}: can't run {words[0]}"
            )
            result = CliRunner().invoke(program, words[1:], standalone_mode=False)
            if result.exception is not None:
                raise result.exception
            assert result.exit_code == 0, f"line {block.line}: {result.output}"
