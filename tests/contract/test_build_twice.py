"""Wheel and source archive: the same bytes at every build, enough in the archive to
build it all again; workflows and the conda recipe say what ``pyproject.toml`` says.
"""

import re
import runpy
import shutil
import tarfile
import tomllib
from types import SimpleNamespace

import pytest
import yaml
from test_house import ROOT

from pdips.extras import PACKAGES

TOOL = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "build_twice.py")))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
IN_CONDA = {
    "arviz[h5netcdf,zarr]": ("arviz", "h5netcdf", "zarr"),
    "matplotlib": ("matplotlib-base",),
}
"""What distributions are called in a conda recipe, where that is another name."""

FOLDERS = ("docs", "notebooks", "examples", "models", "tests", "papers", "benchmarks")


def as_conda_says(wanted: list[str]) -> set[str]:
    """Return requirements as a conda recipe spells them."""
    found = set()
    for each in wanted:
        name, bounds = re.fullmatch(r"([^<>=]+)([<>=].*)", each).groups()
        first, *others = IN_CONDA.get(name, (name,))
        found |= {f"{first} {bounds}", *others}
    return found


def recipe() -> dict:
    text = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


@pytest.mark.slow
def test_two_builds_are_the_same_bytes_and_the_archive_builds_the_wheel(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert TOOL.different(ROOT, tmp_path / "dist") == []
    # the broken twin: another time in the same files
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    source = TOOL.unpacked(archive, tmp_path / "source")
    other = TOOL.built(source, tmp_path / "other")
    shutil.rmtree(tmp_path / "other")
    assert TOOL.built(source, tmp_path / "other") == other
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    again = TOOL.built(source, tmp_path / "again")
    assert [other[name] == again[name] for name in other] == [False, False]


@pytest.mark.slow
def test_the_source_archive_holds_what_tests_and_pages_read(tmp_path):
    TOOL.built(ROOT, tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    here = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for kind in ("*.py", "*.md", "*.ipynb", "*.toml", "*.parquet", "*.css", "*.js")
        for path in (ROOT / folder).rglob(kind)
        if not {"_build", "_notebooks"} & {*path.parts}
    }
    assert len(here) > 500
    assert here - names == set()
    assert {"Makefile", "requirements.lock", "CITATION.cff", ".ci/run"} <= names


def test_the_conda_recipe_says_what_pyproject_says():
    found = recipe()
    assert found["context"]["version"] == PROJECT["version"]
    assert found["source"] == {"path": ".."}
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["report"]]
    runs = {*found["requirements"]["run"]}
    assert runs == as_conda_says(wanted) | {f"python {PROJECT['requires-python']}"}
    # the broken twin
    assert as_conda_says(["matplotlib>=4"]) == {"matplotlib-base >=4"}


def test_citation_and_workflows_say_what_pyproject_says():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["authors"] == PROJECT["authors"]
    flows = [*(ROOT / ".github" / "workflows").glob("*.yml")]
    assert len(flows) == 3
    extras = {*PACKAGES, *PROJECT["optional-dependencies"]}
    for path in flows:
        text = path.read_text(encoding="utf-8")
        assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
        named = re.findall(r"(?:\.|whl\)?)\[([\w,]+)\]", text)
        assert {each for part in named for each in part.split(",")} <= extras


def test_no_address_of_the_project_is_made_up():
    # nothing is published yet: neither a repository nor a page
    assert "urls" not in PROJECT
    about = recipe()["about"]
    assert not {"homepage", "repository", "documentation"} & {*about}
