"""The site of these pages: built with warnings as errors, opened in headless Chromium
at two widths, light and dark.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tables import CHROMIUM

ROOT = Path(__file__).parents[2]
SHOWN = ("index", "choosing", "glossary", "card", "mechanisms/steps")
SHOWN += ("proofs/margin-errors", "api/core", "api/commands", "decisions/index")


def in_a_browser(test):
    needs = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
    return pytest.mark.long(pytest.mark.browser(needs(test)))


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        str(source),
        str(target),
    ]
    outside = {
        "PYTHONPATH": str(ROOT),
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    return subprocess.run(
        command, env=os.environ | outside, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    if os.environ.get("PDIPS_SITE"):  # built already, as `make docs` does
        return Path(os.environ["PDIPS_SITE"])
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", target)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.long
def test_every_page_is_there_and_asks_no_other_host(site):
    wanted = [
        path.relative_to(ROOT / "docs")
        for path in (ROOT / "docs").rglob("*.md")
        if "_build" not in path.parts
    ]
    assert len(wanted) > 60
    assert [
        page for page in wanted if not (site / page.with_suffix(".html")).exists()
    ] == []
    loads = re.compile(
        r'(?:src|srcset|data)="(?:https?:)?//|<link[^>]+href="(?:https?:)?//|@import|url\((?:https?:)?//'
    )
    assert [
        page.name
        for page in site.rglob("*.html")
        if loads.search(page.read_text(encoding="utf-8"))
    ] == []
    assert [
        sheet.name
        for sheet in site.rglob("*.css")
        if re.search(r"url\([\"']?https?:", sheet.read_text())
    ] == []
    assert 'src="_static/mathjax/tex-svg.js' in (site / "card.html").read_text(
        encoding="utf-8"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "flaw", ["[gone](gone.md)", "[gone](b.md#gone)", "```{gone}\n```"]
)
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path, flaw):
    # the broken twin: one page with one flaw, the rest of the settings as they are
    source = tmp_path / "docs"
    shutil.copytree(
        ROOT / "docs",
        source,
        ignore=lambda _, names: [n for n in names if n.endswith((".md", "_build"))],
    )
    (source / "index.md").write_text(f"# Here\n\n{flaw}\n\n```{{toctree}}\nb\n```\n")
    (source / "b.md").write_text("# There\n")
    assert build(source, tmp_path / "site").returncode != 0
    (source / "index.md").write_text(
        "# Here\n\n[there](b.md#there)\n\n```{toctree}\nb\n```\n"
    )
    assert build(source, tmp_path / "site").returncode == 0


@in_a_browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_open_without_errors_or_requests(site, browser, width, scheme):
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    wrong: list[str] = []
    page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda asked: (
            asked.url.startswith(("file:", "data:")) or wrong.append(asked.url)
        ),
    )
    notebooks = sorted(
        path.relative_to(site).with_suffix("").as_posix()
        for path in site.glob("_notebooks/*.html")
    )
    for name in (*SHOWN, *notebooks[:1]):
        page.goto((site / f"{name}.html").as_uri())  # until the event "load"
        page.evaluate(
            "Promise.all([document.fonts.ready, window.MathJax?.startup?.promise])"
        )
        # "networkidle" waits as long, but Chromium loses it at times for files
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        assert page.evaluate("document.documentElement.scrollWidth") <= width + 1, name
    assert wrong == []
    page.close()


@in_a_browser
def test_pages_pass_axe(site, browser):
    from axe_playwright_python.sync_playwright import Axe

    wrong = []
    for scheme in ("light", "dark"):
        page = browser.new_page(
            viewport={"width": 1280, "height": 900}, color_scheme=scheme
        )
        for name in SHOWN:
            page.goto((site / f"{name}.html").as_uri())
            found = (
                Axe()
                .run(page, options={"runOnly": ["wcag2a", "wcag2aa"]})
                .response["violations"]
            )
            wrong += [
                (scheme, name, one["id"], [node["html"] for node in one["nodes"]][:3])
                for one in found
            ]
        page.close()
    assert wrong == []
