"""The models that come with pdips: where they are. It doesn't import PyMC."""

import ast
from pathlib import Path

from pdips.errors import InputError

PACKAGE = Path(__file__).parents[1]


def folder() -> Path:
    """Return the folder of the models: part of an installed package, beside the package in a checkout."""
    installed = PACKAGE / "gallery"
    return installed if installed.is_dir() else PACKAGE.parent / "models"


def names() -> dict[str, str]:
    """Return the names of the models, each with the first line of its docstring."""
    files = sorted(folder().glob("*.py"))
    return {file.stem: _first_line(file) for file in files if not file.stem.startswith("_")}


def path(name: str) -> Path:
    """Return the file of a model.

    Raises
    ------
    InputError
        If there is no model of this name; the message lists those that exist.
    """
    known = names()
    if name not in known:
        raise InputError(f"there is no model {name!r}; pdips comes with {', '.join(known)}")
    return folder() / f"{name}.py"


def _first_line(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
