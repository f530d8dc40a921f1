"""Fixtures that tests of several commands share."""

import sys

import pytest

from pdips import cli


@pytest.fixture
def pdips(monkeypatch, capsys):
    """Run the program in this process; return its exit code, output and complaint."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pdips", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        output = capsys.readouterr()
        return code, output.out, output.err

    return run
