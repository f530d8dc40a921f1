"""How Sphinx makes the site of these pages: ``make docs``. Nothing is fetched, here or
by a reader's browser.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import pdips

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parent / "notebooks"

project, author, language = "pdips", "the pdips developers", "en"
project_copyright = "the pdips developers; Apache-2.0"
version = release = pdips.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "myst_nb",
    "pymc_sphinx_theme",
]
templates_path = ["_templates"]
exclude_patterns = ["_build"]
nitpicky = False

# Headings down to the third level can be linked to. A link that leads nowhere is a
# warning, and warnings are errors.
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]

# MathJax 3.2.2 (Apache-2.0) lies in _static, so that formulas need no network. Only
# pages with formulas load it.
mathjax_path = "mathjax/tex-svg.js"
mathjax3_config = {"options": {"enableMenu": False}}

# Notebooks keep the outputs that they were committed with, and ask no server for
# widgets.
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}

# The reference comes from numpydoc docstrings.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "pymc_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["pdips.css"]
html_js_files = ["pdips.js"]
html_title = "pdips"
html_copy_source = html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_theme_options: dict[str, Any] = {
    "logo": {"text": "pdips"},
    "navbar_start": ["navbar-logo.html"],
    "navbar_end": ["theme-switcher.html"],
    "secondary_sidebar_items": ["page-toc.html"],
    "footer_end": [],
    "header_links_before_dropdown": 7,
    "show_prev_next": True,
    "use_search_override": False,
    "search_bar_text": "Search these pages",
    "google_analytics_id": "",
    "analytics": {},
}

# Only `make linkcheck` follows links out of the site; it needs a network and isn't part
# of the build.
linkcheck_anchors = False


def copy_notebooks(app: Any, config: Any) -> None:
    """Copy ``notebooks/`` here, where Sphinx can see it, with its links as they are
    from here.
    """
    target = HERE / "_notebooks"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        text = (
            notebook.read_text(encoding="utf-8")
            .replace("](../docs/", "](../")
            .replace("](../README.md", "](../index.md")
        )
        content = json.loads(
            re.sub(r"\]\(\.\./(examples|models|pdips)/", r"](../../\1/", text)
        )
        # for cells with "!"
        content["metadata"]["language_info"] = {
            "name": "python",
            "pygments_lexer": "ipython3",
        }
        (target / notebook.name).write_text(json.dumps(content), encoding="utf-8")


def links_from_here(app: Any, name: str, source: list[str]) -> None:
    """Let links that are right in the repository be right on the site: to the
    notebooks' copies and the first page.
    """
    source[0] = re.sub(
        r"\]\(((?:\.\./)*)\.\./notebooks/", r"](\1_notebooks/", source[0]
    )
    source[0] = re.sub(r"\]\(((?:\.\./)*)\.\./README\.md", r"](\1index.md", source[0])


def help_pages(command: click.Command, name: str) -> Iterator[str]:
    """Return what ``--help`` prints of a command and of those below it."""
    text = command.get_help(
        click.Context(command, info_name=name, max_content_width=100)
    )
    yield f"## `{name}`\n\n```text\n{text}\n```\n"
    if isinstance(command, click.Group):
        for part, below in command.commands.items():
            yield from help_pages(below, f"{name} {part}")


def commands(app: Any, name: str, source: list[str]) -> None:
    """Write the program's help where a page asks for it."""
    if "<!-- commands -->" in source[0]:
        from pdips.cli import program

        source[0] = source[0].replace(
            "<!-- commands -->", "\n".join(help_pages(program, "pdips"))
        )


def setup(app: Any) -> None:
    """Connect the functions above."""
    app.connect("config-inited", copy_notebooks)
    app.connect("source-read", links_from_here)
    app.connect("source-read", commands)
