"""Every public name has an example that runs: what ``pdips`` exports, and what the pages of docs/api describe."""

import doctest
import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pdips
from pdips import registry

ROOT = Path(__file__).parents[2]
DESCRIBED = re.compile(r"(?m)^\.\. auto(?:class|function):: (\S+)$")
PUBLIC = sorted(
    {f"pdips.{name}" for name in pdips.__all__}
    | {name for page in (ROOT / "docs" / "api").glob("*.md") for name in DESCRIBED.findall(page.read_text("utf-8"))}
)
WITHOUT: set[str] = {"pdips_papers.harness.run.measure"}
"""Public names that have no example yet. It may only become shorter."""


def find(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def examples_of(named: object) -> doctest.DocTest | None:
    """Return the examples in an object's own docstring, None if it has none.

    They run in a copy of its module's names, and as after ``from pdips import *`` and the usual imports of data.
    """
    names = {name: getattr(pdips, name) for name in pdips.__all__} | {"np": np, "pd": pd}
    names |= vars(sys.modules[named.__module__])
    [found] = doctest.DocTestFinder(recurse=False, exclude_empty=False).find(named, name="public", globs=names)
    return found if found.examples else None


def run(found: doctest.DocTest) -> str:
    """Return what was other than the examples say, an empty text if all is as they say."""
    complaints: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(found, out=complaints.append)
    return "".join(complaints)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in WITHOUT])
def test_a_public_name_has_an_example_that_runs(name, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "MECHANISMS", dict(registry.MECHANISMS))
    monkeypatch.setattr(registry, "AUDITS", dict(registry.AUDITS))
    found = examples_of(find(name))
    assert found is not None, "no example in its docstring"
    assert not (complaints := run(found)), complaints


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_a_name_without_an_example_is_still_without(name):
    assert name in PUBLIC
    assert examples_of(find(name)) is None, "it has one: take it out of WITHOUT"


def test_a_wrong_or_missing_example_would_be_seen():
    # the broken twins
    def right():
        """>>> 1 + 1
        2
        """

    def wrong():
        """>>> 1 + 1
        3
        """

    assert not run(examples_of(right))
    assert "Got:\n    2" in run(examples_of(wrong))
    assert examples_of(test_a_wrong_or_missing_example_would_be_seen) is None
