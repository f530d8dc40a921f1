"""Extras: what is installed without them is enough to import, and a feature whose
packages are missing says so in one line, before anything is charged.
"""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from functools import partial
from itertools import chain
from pathlib import Path

import pandas as pd
import pytest
from tables import refuses
from test_house import ROOT, files, parsed
from test_packages import MODULES

import pdips as library
from pdips import Column, Ledger, Margins, Schema, Table
from pdips.data.partitions import client_of
from pdips.evaluation.evaluate import general_utility
from pdips.evaluation.formula import read_analysis
from pdips.extras import PACKAGES, require
from pdips.release.documents import PrivacyDocument
from pdips.report.derived_files import examine_derived
from pdips.report.pages import rewrite

MOST_DEPENDENCIES = 15
CAPPED = {"arviz", "pymc", "pytensor"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
SCHEMA = Schema(
    columns={"ill": Column(levels=["no", "yes"]), "sex": Column(levels=["f", "m"])}
)
FRAME = pd.DataFrame({"ill": ["no", "yes"] * 20, "sex": ["f", "m", "m", "f"] * 10})


def names_of(wanted: list[str]) -> tuple[str, ...]:
    """Return what some requirements are imported as."""
    named = [re.split(r"[<>=\[ ]", each)[0] for each in wanted]
    return tuple(MODULES.get(each, each) for each in named)


def capped(wanted: list[str]) -> set[str]:
    return {re.split(r"[<>=\[ ]", each)[0] for each in wanted if "<" in each}


def imported_first(root: Path, *folders: str) -> set[str]:
    """Return the packages that are imported with a module, not where a function runs or
    for types alone.
    """
    found = set()
    for _, path in files(root, *folders):
        nodes = list(parsed(path).body)
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).split(".")[0])
            elif isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, (ast.ClassDef, ast.Try, ast.With)):
                nodes += node.body
    return found


def test_few_packages_are_always_installed_and_three_have_caps():
    wanted = PROJECT["dependencies"]
    assert len(wanted) <= MOST_DEPENDENCIES
    extras = PROJECT["optional-dependencies"].values()
    assert capped([*wanted, *chain(*extras)]) == CAPPED
    assert capped(["numpy>=2,<3", "scipy>=1"]) == {"numpy"}  # the broken twin


def test_extras_are_what_pyproject_says():
    extras = PROJECT["optional-dependencies"]
    assert {name: names_of(extras[name]) for name in PACKAGES} == PACKAGES
    every = ",".join(sorted(PACKAGES))
    assert f"pdips[{every}]" in extras["test"]


def test_no_module_needs_an_extra_to_be_imported(tmp_path):
    of_extras = {name for names in PACKAGES.values() for name in names}
    assert not imported_first(ROOT, "pdips") & of_extras
    # the broken twin
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("import jinja2\ndef f():\n    import bambi")
    assert imported_first(tmp_path, "code") & of_extras == {"jinja2"}


@pytest.mark.slow
def test_every_module_is_imported_where_no_extra_is_installed():
    of_extras = sorted(name for names in PACKAGES.values() for name in names)
    # PyMC brings rich along
    missing = [name for name in of_extras if name != "rich"]
    code = f"""
import pkgutil, sys, pdips
sys.modules.update(dict.fromkeys({missing}))
for one in pkgutil.walk_packages(pdips.__path__, "pdips."):
    if not one.name.startswith(("pdips.gallery", "pdips.__main__")):
        __import__(one.name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("extra", PACKAGES)
def test_a_missing_package_is_named_with_the_line_that_installs_it(extra, monkeypatch):
    require(extra, "this needs")
    for name in PACKAGES[extra]:
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, name, None)
            said = refuses("", require, extra, "this needs")
        assert said == f'this needs {name}: pip install "pdips[{extra}]"'


def without(extra: str, monkeypatch) -> str:
    """Take the packages of an extra away; return what a refusal must say."""
    for name in PACKAGES[extra]:
        monkeypatch.setitem(sys.modules, name, None)
        assert importlib.util.find_spec(name) is None
    return rf'need.*: pip install "pdips\[{extra}\]"$'


def test_files_and_clusters_name_their_extra(tmp_path, monkeypatch):
    (tmp_path / "a.sav").write_bytes(b"$FL2")
    refuses(without("files", monkeypatch), Table.read, tmp_path / "a.sav", SCHEMA)
    refuses(without("cluster", monkeypatch), client_of, "local", 2)


def test_cards_reports_and_evaluations_name_their_extra(tmp_path, monkeypatch):
    table = Table(FRAME, SCHEMA)
    release, _ = Margins(epsilon=1, n_sets=2).release(table)
    home = tmp_path / "public"
    release.publish(home)
    answer = library.open(tmp_path).ask("share(ill == 'yes')")
    said = without("report", monkeypatch)
    refuses(said, release.card)
    refuses(said, rewrite, tmp_path)
    refuses(said, answer.plot)
    refuses(said, general_utility, table, release.sets)
    refuses(said, read_analysis, "ill ~ sex", SCHEMA)
    assert not (home / "card.html").exists()
    # what is there can't be compared with the right card: no word that it is at fault
    (home / "card.html").write_text("a card", encoding="utf-8")
    refuses(said, examine_derived, home, PrivacyDocument.read(home))


def test_a_question_whose_card_cannot_be_made_is_refused_before_its_charge(
    tmp_path, monkeypatch
):
    release, _ = Margins(epsilon=1, n_sets=2).release(Table(FRAME, SCHEMA))
    release.publish(tmp_path / "out" / "public")
    ledger = Ledger(tmp_path / "a.sqlite")
    ledger.set_total(1)
    asked = partial(library.answer, epsilon=1, ledger=ledger)  # imports PyMC
    said = without("report", monkeypatch)
    refuses(said, asked, FRAME, tmp_path / "out", "ill ~ sex")
    assert ledger.entries() == []


def test_a_release_whose_card_cannot_be_made_is_refused_before_its_charge(
    tmp_path, monkeypatch, pdips
):
    FRAME.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    Ledger(tmp_path / "a.sqlite").set_total(1)
    words = ["synthesize", tmp_path / "a.parquet", "--schema", tmp_path / "a.toml"]
    words += ["--epsilon", 1]
    words += ["--ledger", tmp_path / "a.sqlite", "--out", tmp_path / "out"]
    without("report", monkeypatch)
    pdips.fails('pip install "pdips[report]"', *words)
    assert not (tmp_path / "out").exists()
    assert Ledger(tmp_path / "a.sqlite").entries() == []
