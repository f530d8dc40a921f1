"""What the two distributions ship, declare and import: no study in the wheel, every
import declared, none upwards.
"""

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
from tables import cases, refuses
from test_house import ROOT, imports

from pdips import registry
from pdips.extras import PACKAGES

DISTRIBUTIONS = {
    "pdips": (ROOT, ("pdips", "models")),
    "pdips-papers": (ROOT / "papers", ("pdips_papers",)),
}
MODULES = {
    "ibis-framework": "ibis",
    "ipython": "IPython",
    "scikit-learn": "sklearn",
    "tomli-w": "tomli_w",
}
"""What distributions are imported as, where that is another name."""


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
    wanted += [
        each for extra in extras for each in project["optional-dependencies"][extra]
    ]
    names = {re.split(r"[<>=\[ ]", each)[0] for each in wanted}
    return {MODULES.get(name, name) for name in names}


@pytest.mark.slow_cases(
    "pdips",
)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_what_is_imported_is_declared_and_nothing_else(name):
    home, folders = DISTRIBUTIONS[name]
    project = tomllib.loads((home / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    used = imported(*(home / folder for folder in folders)) - {name.replace("-", "_")}
    assert used == declared(
        project,
        ("panels",) if name == "pdips-papers" else (*PACKAGES, "notebooks"),
    )


def test_an_undeclared_import_would_be_seen(tmp_path):
    # the broken twin
    (tmp_path / "a.py").write_text(
        "def f():\n    import numba\nfrom pytensor.graph import x\nimport json\n"
    )
    assert imported(tmp_path) - declared({"dependencies": ["pymc>=6", "numba"]}) == {
        "pytensor"
    }


def test_no_study_is_in_the_wheel_of_the_library(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "pdips"
    }
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
    refuses(
        r"a package of their own.*pip install "
        r"\./papers",
        registry.published,
        "steps",
    )


# Lower rooms never reach up, and a quick import stays quick.
PACKAGE = ROOT / "pdips"

RANKS = cases(__file__, "ranks")
"""Rooms by rank, as docs/architecture.md lists them. Within a rank, rooms may not form
a cycle.
"""

RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}


def steps_up(imports: dict[str, set[str]]) -> list[tuple[str, str]]:
    return [
        (room, other)
        for room, others in imports.items()
        for other in others
        if RANK[other] > RANK[room]
    ]


def all_imports() -> dict[str, set[str]]:
    rooms: dict[str, set[str]] = {}
    for module, others in imports(ROOT).items():
        if room := module.partition(".")[2].partition(".")[0]:
            rooms.setdefault(room, set()).update(
                {other.split(".")[1] for other in others if "." in other} - {room}
            )
    return rooms


def test_every_module_has_a_rank_and_imports_from_none_that_is_higher():
    assert set(all_imports()) <= set(RANK)
    assert steps_up(all_imports()) == []
    # the broken twin
    assert steps_up({"data": {"privacy"}, "privacy": {"data"}}) == [("data", "privacy")]
    imports = all_imports()
    for room, others in imports.items():
        for other in others:
            assert not (RANK[other] == RANK[room] and room in imports[other])


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


@pytest.mark.parametrize(
    "statement", ["import pdips", "import pdips.cli", "import pdips.outside"]
)
def test_a_first_import_brings_nothing_heavy(statement):
    heavy = {
        "pymc",
        "pytensor",
        "arviz",
        "numba",
        "numpy",
        "scipy",
        "pandas",
        "pydantic",
        "matplotlib",
        "ibis",
    }
    assert not loaded_after(statement) & heavy


def test_no_mechanism_so_far_needs_pymc():
    assert not loaded_after("import pdips; pdips.Steps, pdips.LaplaceSanitizer") & {
        "pymc",
        "pytensor",
        "arviz",
    }


def test_every_public_name_is_there():
    import pdips

    assert [name for name in pdips.__all__ if getattr(pdips, name, None) is None] == []
    assert set(dir(pdips)) == {*pdips.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = pdips.Nothing


def test_only_one_module_draws_noise():
    # numpy's own noise in the library would be neither exact nor from the operating
    # system
    forbidden = (".laplace(", ".normal(", ".gumbel(", ".exponential(", "random.seed")
    for path in PACKAGE.rglob("*.py"):
        assert not any(
            word in path.read_text(encoding="utf-8") for word in forbidden
        ), path.name


@pytest.mark.slow
def test_new_names_warn_of_nothing():
    code = "import pdips; [getattr(pdips, name) for name in pdips.__all__]"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_version_stands_alike_in_code_and_in_both_distributions():
    import pdips

    stated = [
        (PACKAGE.parent / folder / "pyproject.toml").read_text(encoding="utf-8")
        for folder in ("", "papers")
    ]
    assert [f'\nversion = "{pdips.__version__}"\n' in each for each in stated] == [
        True,
        True,
    ]
