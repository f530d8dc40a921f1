"""Packages that only some features need, by the extra of pdips that installs them."""

from importlib.util import find_spec
from typing import Literal

from pdips.errors import InputError

Extra = Literal["bambi", "cluster", "databases", "files", "report"]

PACKAGES: dict[Extra, tuple[str, ...]] = {
    "bambi": ("bambi", "formulae"),
    "cluster": ("dask", "distributed"),
    "databases": ("duckdb", "ibis", "psycopg"),
    "files": ("pyreadstat",),
    "report": (
        "firthmodels",
        "formulaic",
        "jinja2",
        "markupsafe",
        "matplotlib",
        "rich",
        "sklearn",
        "statsmodels",
    ),
}
"""What each extra installs, as it is imported; ``pyproject.toml`` says the same."""


def require(extra: Extra, what: str) -> None:
    """Refuse, in one line, what needs packages that aren't installed.

    Called before anything is read or charged, so that a missing package stops no run
    half way.

    Parameters
    ----------
    extra : {"bambi", "cluster", "databases", "files", "report"}
        What installs the packages.
    what : str
        What needs them, with its verb: begins the line.

    Raises
    ------
    InputError
        If a package is missing. The message names the extra.

    Examples
    --------
    >>> require("files", "files of SPSS need")
    """
    missing = [name for name in PACKAGES[extra] if find_spec(name) is None]
    if missing:
        named = ", ".join(missing[:2])
        more = " and others" if len(missing) > 2 else ""
        raise InputError(f'{what} {named}{more}: pip install "pdips[{extra}]"')
