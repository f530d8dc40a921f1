"""Run the notebooks, and on request keep what they show.

    python tools/run_notebooks.py                        run all, fail on an error or on
    a word on stderr python tools/run_notebooks.py quickstart --write     run one, and
    store its outputs

A notebook runs in a scratch folder that holds a copy of `examples/`, with the
repository importable and the program `pdips` on the path. Nothing that it writes lands
in the repository.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets.config import Config

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
AT_ONCE = 2
MOST_BYTES = 1_500_000
SHORTEST_ALT = 20
FOLDERS = re.compile(
    r"(?<![\w<.])(/(tmp|root|home|work|Users|private|opt|mnt|var/folders)\b|[A-Z]:\\Users\b)"
)
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}\b")
ALT = re.compile(r"^# alt: (.+(?:\n#      .+)*)", re.MULTILINE)
KERNEL = {
    "display_name": "Python 3 (ipykernel)",
    "language": "python",
    "name": "python3",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the notebooks named, or all; 0 if every one is clean, 1 if not."""
    parser = argparse.ArgumentParser(
        description="Run the notebooks in a scratch folder."
    )
    parser.add_argument(
        "names",
        nargs="*",
        help="names without .ipynb, or paths; all notebooks if left out",
    )
    parser.add_argument(
        "--write", action="store_true", help="store the outputs in the notebooks"
    )
    parser.add_argument(
        "--timeout", type=int, default=600, help="most seconds a cell may take (600)"
    )
    asked = parser.parse_args(arguments)
    paths = [find(name) for name in asked.names] or sorted(NOTEBOOKS.glob("*.ipynb"))
    if not paths:
        say(f"no notebook in {NOTEBOOKS.name}/")
        return 1
    wrong = 0
    with ProcessPoolExecutor(AT_ONCE) as pool:
        runs = [pool.submit(one, path, asked.timeout, asked.write) for path in paths]
        for path, run in zip(paths, runs, strict=True):
            seconds, faults = run.result()
            say(f"{path.stem:<40} {seconds:6.1f} s  {'failed' if faults else 'ok'}")
            for fault in faults:
                say(f"  {fault}")
            wrong += bool(faults)
    return int(wrong > 0)


def find(name: str) -> Path:
    """The file of a notebook given by name or path."""
    for path in (Path(name), NOTEBOOKS / f"{Path(name).stem}.ipynb"):
        if path.suffix == ".ipynb" and path.is_file():
            return path
    raise SystemExit(f"no notebook named {name} in {NOTEBOOKS.name}/")


def one(path: Path, timeout: int, write: bool) -> tuple[float, list[str]]:
    """Run one notebook; its seconds, and what is wrong with it, a line each. Stored
    only if nothing is.
    """
    begun = time.perf_counter()
    faults = run_in_scratch(path, timeout, write)
    return time.perf_counter() - begun, faults


def run_in_scratch(path: Path, timeout: int, write: bool) -> list[str]:
    """Run one notebook in a folder of its own; what is wrong with it, a line each."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder).resolve()
        try:
            execute(notebook, scratch, timeout)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            return [str(error).strip()]
        normalise(notebook)
        faults = output_faults(
            notebook, [str(ROOT), str(scratch), str(Path.home()), socket.gethostname()]
        )
    if write and not faults:
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
    return faults


def execute(notebook: Any, scratch: Path, timeout: int) -> None:
    """Run every cell in `scratch`, filling in the outputs."""
    shutil.copytree(ROOT / "examples", scratch / "examples")
    program = scratch / ".bin" / "pdips"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nfrom pdips.cli import main\n\nmain()\n", encoding="utf-8"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(
            (
                str(program.parent),
                str(Path(sys.executable).parent),
                os.environ.get("PATH", ""),
            )
        ),
        "PYTHONPATH": str(ROOT),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "IPYTHONDIR": str(scratch / ".ipython"),
        # others run beside it
        **dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
        ),
        "NO_COLOR": "1",
        "COLUMNS": "120",
    }
    sockets = Config(
        KernelManager={
            "transport": "ipc",
            "connection_file": str(scratch / ".kernel.json"),
        }
    )
    client = NotebookClient(
        notebook,
        config=sockets,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(scratch)}},
    )
    client.execute(env=environment)


def normalise(notebook: Any) -> None:
    """Drop what differs between machines and runs; number the cells; hand each picture
    its alt text.
    """
    notebook.nbformat = 4
    notebook.nbformat_minor = 5
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    )
    for i, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{i:02d}"
        cell.metadata = nbformat.from_dict(
            {k: v for k, v in cell.metadata.items() if k in {"tags", "mystnb"}}
        )
        if cell.cell_type == "code":
            normalise_code(cell)


def normalise_code(cell: Any) -> None:
    """One code cell: streams joined, outputs without run-time metadata, alt texts from
    the comment `# alt: ...`.
    """
    outputs: list[Any] = []
    for output in cell.outputs:
        if output.get("data", {}).get("text/html") == "":
            continue  # a progress bar that is over
        if (
            output.output_type == "stream"
            and outputs
            and outputs[-1].get("name") == output.name
        ):
            outputs[-1].text += output.text
        else:
            outputs.append(output)
    for output in outputs:
        if output.output_type == "stream":
            output.text = output.text.replace("\r\n", "\n")
    cell.outputs = outputs
    alt = alt_text(cell.source)
    if alt:
        cell.metadata["mystnb"] = {"image": {"alt": alt}}
    for output in outputs:
        if output.output_type in {"display_data", "execute_result"}:
            shown = (
                {"image/png": {"alt": alt}}
                if alt and "image/png" in output.data
                else {}
            )
            output.metadata = nbformat.from_dict(shown)


def alt_text(source: str) -> str:
    """What the comment `# alt: ...` of a cell says; further lines of it are indented by
    six spaces.
    """
    found = ALT.search(source)
    return (
        " ".join(line.lstrip("# ") for line in found.group(1).splitlines())
        if found
        else ""
    )


def texts(cell: Any) -> list[str]:
    """All that a code cell shows as text: streams, and every text form of what it
    displays.
    """
    found: list[str] = []
    for output in cell.outputs:
        if output.output_type == "stream":
            found.append(output.text)
        elif output.output_type in {"display_data", "execute_result"}:
            found += [
                str(data)
                for kind, data in output.data.items()
                if not kind.startswith("image/png")
            ]
    return found


def output_faults(notebook: Any, machine: list[str]) -> list[str]:
    """What no output may have: errors, words on stderr, paths and names of the machine,
    addresses of objects.
    """
    faults: list[str] = []
    for cell in code_cells(notebook):
        where = f"code cell {cell.execution_count}"
        for output in cell.outputs:
            if output.output_type == "error":
                faults.append(f"{where}: {output.ename}: {output.evalue}")
            if output.output_type == "stream" and output.name == "stderr":
                faults.append(f"{where} writes to stderr: {output.text.strip()}")
        shown = "\n".join(texts(cell))
        for name in [
            name
            for name in machine
            if len(name) > 1 and name != "localhost" and name in shown
        ]:
            faults.append(f"{where} shows a path or name of this machine: {name}")
        for pattern, what in (
            (FOLDERS, "a folder of a machine"),
            (ADDRESS, "the address of an object"),
        ):
            found = pattern.search(shown)
            if found:
                faults.append(f"{where} shows {what}: {found.group(0)}")
    return faults


def faults(notebook: Any) -> list[str]:
    """What is wrong with a notebook as it is stored; nothing is run. The conventions
    are in notebooks/README.md.
    """
    cells = notebook.cells
    found = output_faults(notebook, [])
    if (notebook.nbformat, notebook.nbformat_minor) != (4, 5):
        found.append("not in notebook format 4.5")
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("its kernel isn't python3")
    if [cell.execution_count for cell in code_cells(notebook)] != list(
        range(1, len(code_cells(notebook)) + 1)
    ):
        found.append("not run from top to bottom")
    if not (
        cells and cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    ):
        found.append("doesn't begin with a title")
    if not (
        cells and cells[-1].cell_type == "markdown" and "](../docs/" in cells[-1].source
    ):
        found.append("doesn't end with a pointer to the docs")
    for i, cell in enumerate(cells, start=1):
        folder = FOLDERS.search(cell.source)
        if folder:
            found.append(f"cell {i} names a folder of a machine: {folder.group(0)}")
    return found + content_faults(notebook)


def content_faults(notebook: Any) -> list[str]:
    """A picture with words for who can't see it, a table, and a warning where a seed is
    set.
    """
    found: list[str] = []
    kinds = [
        (cell, out.data)
        for cell in code_cells(notebook)
        for out in cell.outputs
        if "data" in out
    ]
    pictures = [cell for cell, data in kinds if "image/png" in data]
    if not pictures:
        found.append("shows no picture")
    for cell in pictures:
        if (
            len(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", ""))
            < SHORTEST_ALT
        ):
            found.append(
                f"code cell {cell.execution_count}: a picture without alt text"
            )
    if not any("<table" in str(data.get("text/html", "")) for _, data in kinds):
        found.append("shows no table")
    prose = " ".join(
        cell.source.lower() for cell in notebook.cells if cell.cell_type == "markdown"
    )
    if re.search(r"\$[^$\n]+\$", prose):
        found.append("has formulas between dollar signs: write them in plain text")
    seeded = any(
        re.search(r"\bseed=|\bdefault_rng\(|--seed\b", cell.source)
        for cell in code_cells(notebook)
    )
    if seeded and not re.search(r"seed[^.]*publish|publish[^.]*seed", prose):
        found.append(
            "sets a seed and doesn't say that a seeded release must not be published"
        )
    return found


def code_cells(notebook: Any) -> list[Any]:
    """The code cells, in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def say(line: str) -> None:
    """One line on stdout."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
