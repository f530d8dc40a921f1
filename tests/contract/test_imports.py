"""The house rules on imports: lower rooms never reach up, and a quick ``import pdips`` stays quick."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tables import cases

PACKAGE = Path(__file__).parents[2] / "pdips"

RANKS = cases(__file__, "ranks")
"""Rooms by rank, as docs/architecture.md draws them. Within a rank, rooms may not form a cycle."""

RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}


def rooms_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pdips":
            below = (node.module or "").split(".")[1:2]
            found |= set(below) or {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("pdips.")}
    return found & set(RANK)


def steps_up(imports: dict[str, set[str]]) -> list[tuple[str, str]]:
    return [(room, other) for room, others in imports.items() for other in others if RANK[other] > RANK[room]]


def all_imports() -> dict[str, set[str]]:
    imports: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room != "__init__":
            imports.setdefault(room, set()).update(rooms_imported(path) - {room})
    return imports


def test_every_module_has_a_rank_and_imports_from_none_that_is_higher():
    assert set(all_imports()) <= set(RANK)
    assert steps_up(all_imports()) == []
    # the broken twin
    assert steps_up({"data": {"privacy"}, "privacy": {"data"}}) == [("data", "privacy")]


def test_rooms_of_one_rank_form_no_cycle():
    imports = all_imports()
    for room, others in imports.items():
        for other in others:
            assert not (RANK[other] == RANK[room] and room in imports[other])


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("statement", ["import pdips", "import pdips.cli"])
def test_a_first_import_brings_nothing_heavy(statement):
    assert not loaded_after(statement) & {"pymc", "pytensor", "arviz", "numpy", "pandas", "matplotlib", "ibis"}


def test_no_mechanism_so_far_needs_pymc():
    assert not loaded_after("import pdips; pdips.Steps, pdips.LaplaceSanitizer") & {"pymc", "pytensor", "arviz"}


def test_every_public_name_is_there():
    import pdips

    assert [name for name in pdips.__all__ if getattr(pdips, name, None) is None] == []
    assert set(dir(pdips)) == {*pdips.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = pdips.Nothing


def test_only_one_module_draws_noise():
    # numpy's own noise in the library would be neither exact nor from the operating system
    forbidden = (".laplace(", ".normal(", ".gumbel(", ".exponential(", "random.seed")
    for path in PACKAGE.rglob("*.py"):
        assert not any(word in path.read_text(encoding="utf-8") for word in forbidden), path.name


def test_new_names_warn_of_nothing():
    code = "import pdips; [getattr(pdips, name) for name in pdips.__all__]"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_version_stands_alike_in_code_and_in_both_distributions():
    import pdips

    stated = [(PACKAGE.parent / folder / "pyproject.toml").read_text(encoding="utf-8") for folder in ("", "papers")]
    assert [f'\nversion = "{pdips.__version__}"\n' in each for each in stated] == [True, True]
