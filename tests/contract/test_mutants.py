"""The mutants of ``tools/mutants`` can be made: each changes a text that stands in its
file exactly once. That tests notice them is what ``make mutants`` shows.
"""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tools" / "mutants"


@pytest.fixture
def runner(monkeypatch):
    """The names of the program."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return runpy.run_path(str(FOLDER / "__main__.py"), run_name="mutants")


def test_every_mutant_has_its_place_and_changes_it(runner):
    lost = []
    for mutant in runner["MUTANTS"]:
        whole = (ROOT / "pdips" / mutant.file).read_text(encoding="utf-8")
        places = list(runner["wrapped"](mutant.old).finditer(whole))
        if len(places) != 1 or mutant.old == mutant.new:
            lost.append(mutant.what)
    assert lost == []


def test_there_are_enough_mutants_each_with_a_name_of_its_own(runner):
    names = [mutant.what for mutant in runner["MUTANTS"]]
    assert len(set(names)) == len(names) >= 40


def test_a_text_is_found_however_its_lines_are_broken(runner):
    find = runner["wrapped"]("f(a, b) + c")
    assert find.search("x = f(\n    a,\n    b,\n) + c")
    assert not find.search("f(a, d) + c")
