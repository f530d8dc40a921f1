"""Every block of code in the pages runs, or says why not; the pages and the site hold together."""

import re
import shutil
from pathlib import Path

import pages
import pytest

from pdips import registry

ROOT = Path(__file__).parents[1]
PAGES = {path.relative_to(ROOT).as_posix(): path for path in pages.pages()}
LONG = ("docs/audit.md", "docs/diagnostics.md", "docs/mechanisms/kng.md", "docs/models.md", "docs/studies.md")
MOST_NOT_RUN = 20


def parsed(name: str) -> list[pages.Block]:
    return list(pages.blocks(PAGES[name].read_text(encoding="utf-8")))


WITH_CODE = [name for name in PAGES if any(pages.is_code(block) for block in parsed(name))]


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(ROOT / "models", tmp_path / "models", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "MECHANISMS", dict(registry.MECHANISMS))
    monkeypatch.setattr(registry, "AUDITS", dict(registry.AUDITS))
    return tmp_path


def run_page(text: str) -> None:
    names = {"__name__": "page"}
    for block in pages.blocks(text):
        pages.check(block)
        if pages.is_code(block) and not block.not_run:
            pages.run(block, names)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in WITH_CODE])
def test_code_on_the_page_runs(name, scratch):
    run_page(PAGES[name].read_text(encoding="utf-8"))
