"""The tests of papers are left out only where nothing that they run has changed."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location(
        "papers_digest", ROOT / "tools" / "papers_digest.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILES = {
    "papers/pdips_papers/__init__.py": "",
    "papers/pdips_papers/study.py": "from pdips.first import f\n",
    "papers/pdips_papers/rows.csv": "1,2\n",
    "pdips/__init__.py": "",
    "pdips/first.py": "def f():\n    from pdips.lazy import g\n",
    "pdips/lazy.py": "from pdips import registry\n",
    "pdips/registry.py": "HOMES = {'a': ('room.a:A', 'cases_of_a:b')}\n",
    "pdips/room/__init__.py": "",
    "pdips/room/a.py": "import pdips.room\n",
    "pdips/room/facts.toml": "x = 1\n",
    "pdips/audit/cases/cases_of_a.py": "",
    "pdips/asked.py": "",
    "tests/papers/test_study.py": "import pdips.asked\nimport helpers\n",
    "tests/helpers.py": "",
    "models/line.py": "",
    "requirements.lock": "numpy==2\n",
}
OTHERS = {
    "pdips/cli/check.py": "import pdips.first\n",
    "docs/index.md": "",
    "tests/cli/test_check.py": "",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in {**FILES, **OTHERS}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", [*FILES, *OTHERS])
def test_the_digest_changes_with_what_papers_run_alone(tool, tree, name):
    before = tool.digest(tree)
    path = tree / name
    more = "x,\n" if path.suffix == ".csv" else "# more\n"
    path.write_text(path.read_text(encoding="utf-8") + more, encoding="utf-8")
    assert (tool.digest(tree) != before) == (name in FILES)


def test_a_file_that_moves_or_goes_is_a_change(tool, tree):
    before = tool.digest(tree)
    (tree / "models/line.py").rename(tree / "models/curve.py")
    assert tool.digest(tree) != before


def test_tests_are_left_out_after_they_have_passed(tool, tree, capsys):
    tool.main([], tree)
    assert capsys.readouterr() == ("", "")  # no digest: they run
    tool.main(["--write"], tree)
    tool.main([], tree)
    out, err = capsys.readouterr()
    assert out == "--ignore=tests/papers\n"
    assert (err.count("\n"), "left out" in err) == (1, True)
    (tree / "pdips/lazy.py").write_text("", encoding="utf-8")
    tool.main([], tree)
    assert capsys.readouterr() == ("", "")


def test_the_closure_has_mechanisms_that_a_registry_names_and_no_command(tool):
    names = {path.relative_to(ROOT).as_posix() for path in tool.closure(ROOT)}
    assert {
        "pdips/fields/margins.py",
        "pdips/quantile/kng.py",
        "pdips/audit/cases/quantile.py",
        "pdips/statistics/plan.py",
        "tests/papers/conftest.py",
        "tests/tables.py",
    } <= names
    assert "pdips/cli/check.py" not in names
