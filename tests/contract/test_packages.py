"""What the two distributions ship and declare: no study in the library's wheel, and every import a dependency."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from tables import refuses

from pdips import registry

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {"pdips": (ROOT, ("pdips", "models")), "pdips-papers": (ROOT / "papers", ("pdips_papers",))}
MODULES = {"ibis-framework": "ibis", "ipython": "IPython", "scikit-learn": "sklearn", "tomli-w": "tomli_w"}
"""What distributions are imported as, where that is another name."""

INDIRECT = {"pdips": {"pdips_papers"}, "pdips-papers": {"pdips_papers"}}
"""Itself; and, of the library, the published forms that are still to move."""


def imported(*folders: Path) -> set[str]:
    found = set()
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).split(".")[0])
            elif isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
    return found - set(sys.stdlib_module_names)


def declared(project: dict, extras: tuple[str, ...] = ()) -> set[str]:
    wanted = list(project["dependencies"])
    wanted += [each for extra in extras for each in project["optional-dependencies"][extra]]
    names = {re.split(r"[<>=\[ ]", each)[0] for each in wanted}
    return {MODULES.get(name, name) for name in names}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_what_is_imported_is_declared_and_nothing_else(name):
    home, folders = DISTRIBUTIONS[name]
    project = tomllib.loads((home / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    used = imported(*(home / folder for folder in folders)) - {name} - INDIRECT[name]
    assert used == declared(
        project, ("panels",) if name == "pdips-papers" else ("cluster", "databases", "files", "notebooks")
    )


def test_an_undeclared_import_would_be_seen(tmp_path):
    # the broken twin
    (tmp_path / "a.py").write_text("def f():\n    import numba\nfrom pytensor.graph import x\nimport json\n")
    assert imported(tmp_path) - declared({"dependencies": ["pymc>=6", "numba"]}) == {"pytensor"}


def test_no_study_is_in_the_wheel_of_the_library(tmp_path):
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"pdips"}
    assert "pdips/gallery/glom.py" in names
    assert "pdips/registry.py" in names
    assert not [name for name in names if "stud" in name]


def test_published_forms_are_found_by_entry_point(monkeypatch):
    forms = {entry.name for entry in entry_points(group="pdips.published")}
    assert forms <= set(registry.MECHANISMS)
    for name in forms:
        assert registry.published(name).name == name
        assert "published" in registry.variants_of(name)
        assert "published" not in registry.find(name).variants
    refuses("must be", registry.variant_class, "kng-residual", "published")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: ())
    refuses(r"a package of their own.*pip install \./papers", registry.published, "steps")
