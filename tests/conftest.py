"""Fixtures that the rooms' tests share; tables and laws that aren't fixtures are in
``tables.py`` and ``laws.py``.
"""

import logging
import shutil
import sys

import numpy as np
import pytest
from tables import CHROMIUM, RELATIONS, random_table, schema_of

from pdips import Ledger, cli
from pdips.privacy import curator


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cases that ``slow_cases`` or ``long_cases`` name by their parameters are slow, or
    long.
    """
    for item in items:
        case = item.name.partition("[")[2].removesuffix("]")
        for pace in ("slow", "long"):
            marks = item.iter_markers(f"{pace}_cases")
            if any(case in mark.args for mark in marks):
                item.add_marker(pace)


@pytest.fixture
def silence(monkeypatch):
    """Take the noise on counts away, so that a release sees what would have had noise
    added.
    """
    monkeypatch.setattr(
        curator, "discrete_laplace", lambda scale, n, bits: np.zeros(n, np.int64)
    )


@pytest.fixture
def pdips(monkeypatch, capsys):
    """Run the program in this process; return its exit code, output and complaint,
    however long it takes.

    ``ok`` returns the output of a run without complaint, ``fails`` the complaint in one
    line that has some words.
    """
    monkeypatch.setattr("pdips.html.SILENCE", 1e6)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pdips", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        output = capsys.readouterr()
        return code, output.out, output.err

    def ok(*words: object) -> str:
        code, out, err = run(*words)
        assert (code, err) == (0, "")
        return out

    def fails(message: str, *words: object, code: int = 2) -> str:
        found, out, err = run(*words)
        assert (found, out, err.count("\n")) == (code, "", 1), err
        assert message in err
        return err

    run.ok, run.fails = ok, fails
    return run


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield opened
        opened.close()


@pytest.fixture
def here(released, tmp_path):
    """A copy, to be changed at will, of the folder that a test's module has under the
    name ``released``.
    """
    shutil.copytree(released, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(params=RELATIONS)
def neighbours(request) -> str:
    """Each of the two relations between neighbours."""
    return request.param


@pytest.fixture
def few_simulated(monkeypatch):
    """What censoring takes away is worked out on few simulated records, which is
    quicker and as private.
    """
    monkeypatch.setattr("pdips.posterior.private_reference.SIMULATED", 64)


@pytest.fixture
def path(tmp_path):
    """Where a ledger may be."""
    return tmp_path / "table.sqlite"


@pytest.fixture
def ledger(path):
    return Ledger(path)


@pytest.fixture
def schema():
    """Two columns of two and three levels."""
    return schema_of(2, 3)


@pytest.fixture
def table(schema):
    """Forty records of the small schema, the same ones each time."""
    return random_table(schema, 40)


@pytest.fixture
def quiet(monkeypatch):
    """Keep PyMC from telling how it samples."""
    for name in ("pymc", "pymc.sampling.forward"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.ERROR)
