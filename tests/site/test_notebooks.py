"""The notebooks as they are stored: run in order, no errors, no trace of a machine.
`make notebooks` runs them.
"""

from __future__ import annotations

import ast
import pkgutil
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

ROOT = Path(__file__).resolve().parents[2]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))


TOOL = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "run_notebooks.py")))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_stored_notebook_is_clean_and_what_it_imports_exists(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert TOOL.faults(notebook) == []
    assert path.stat().st_size < TOOL.MOST_BYTES
    assert _missing(nbformat.read(path, as_version=4)) == []


def _missing(notebook: Any) -> list[str]:
    """Return what the code of a notebook imports from the project and the project
    doesn't have.
    """
    wanted = [
        (node.module, alias.name)
        for cell in notebook.cells
        if cell.cell_type == "code" and not cell.source.startswith("%%")
        for node in ast.walk(
            ast.parse(TransformerManager().transform_cell(cell.source))
        )
        if isinstance(node, ast.ImportFrom)
        and node.module
        and node.module.split(".")[0] in ("pdips", "pdips_papers")
        for alias in node.names
    ]
    missing = []
    for module, name in wanted:
        try:
            pkgutil.resolve_name(f"{module}:{name}")
        except (ModuleNotFoundError, AttributeError):
            missing.append(f"{module}.{name}")
    return missing


def test_an_import_of_what_is_gone_and_a_name_of_this_machine_are_found() -> None:
    notebook = _good()
    notebook.cells[
        1
    ].source = "from pdips import Table, Gone\nfrom pdips.gone import Table"
    assert _missing(notebook) == ["pdips.Gone", "pdips.gone.Table"]
    notebook = _good()
    notebook.cells[1].outputs[0].text = "from bigserver17"
    assert TOOL.output_faults(notebook, ["bigserver17"])
    assert not TOOL.output_faults(notebook, ["localhost", "otherserver"])


def test_readme_lists_every_notebook() -> None:
    readme = (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
    assert PATHS
    assert [path.name for path in PATHS if f"]({path.name})" not in readme] == []


def _good() -> Any:
    """A notebook with nothing wrong, to spoil one thing at a time."""
    new = nbformat.v4
    picture = new.new_output(
        "display_data", data={"image/png": "aGVsbG8="}, metadata={}
    )
    table = new.new_output(
        "execute_result", data={"text/html": "<table></table>"}, execution_count=1
    )
    printed = new.new_output("stream", name="stdout", text="5 sets\n")
    code = "# alt: Two bars, the left one\n#      higher than the right.\ndraw(seed=1)"
    cells = [
        new.new_markdown_cell("# A title"),
        new.new_code_cell(code, execution_count=1, outputs=[printed, picture, table]),
        new.new_markdown_cell(
            "A seeded release must not be published. More: [docs](../docs/choosing.md)."
        ),
    ]
    notebook = new.new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "x"}}
    )
    TOOL.normalise(notebook)
    return notebook


def _wrong(notebook: Any) -> dict[str, Any]:
    """Return ways to spoil a notebook, by what is said of each."""
    title, code, last = notebook.cells
    new = nbformat.v4.new_output
    return {
        "stderr": lambda: code.outputs.append(
            new("stream", name="stderr", text="UserWarning: x")
        ),
        "ValueError": lambda: code.outputs.append(
            new("error", ename="ValueError", evalue="x", traceback=[])
        ),
        "folder of a machine: /home": lambda: code.outputs[0].update(
            text="written to /home/someone/x.csv"
        ),
        "cell 2 names a folder": lambda: code.update(
            source=code.source + "\nread('/tmp/x')"
        ),
        "address": lambda: code.outputs[0].update(text="<Axes at 0x7f12ab34cd>"),
        "top to bottom": lambda: code.update(execution_count=2),
        "kernel": lambda: notebook.metadata.kernelspec.update(name="ir"),
        "format 4.5": lambda: notebook.update(nbformat_minor=4),
        "title": lambda: title.update(source="Some words"),
        "pointer to the docs": lambda: last.update(
            source="A seed: never publish. The end."
        ),
        "alt text": lambda: code.metadata.clear(),
        "no picture": lambda: code.outputs.pop(1),
        "no table": lambda: code.outputs.pop(2),
        "formulas": lambda: last.update(source="As $x^2$. " + last.source),
        "seeded release": lambda: last.update(source="[docs](../docs/choosing.md)"),
    }


def test_a_clean_notebook_passes() -> None:
    notebook = _good()
    nbformat.validate(notebook)
    assert TOOL.faults(notebook) == []
    alt = "Two bars, the left one higher than the right."
    assert notebook.cells[1].metadata.mystnb.image.alt == alt
    assert notebook.cells[1].outputs[1].metadata["image/png"].alt == alt


@pytest.mark.parametrize("what", _wrong(_good()))
def test_each_fault_is_found(what: str) -> None:
    notebook = _good()
    _wrong(notebook)[what]()
    found = TOOL.faults(notebook)
    assert len(found) == 1
    assert what in found[0]


def test_unknown_name_is_refused() -> None:
    with pytest.raises(SystemExit, match="no notebook named nonesuch"):
        TOOL.find("nonesuch")
