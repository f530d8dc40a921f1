"""A closer look at a posterior, taken when somebody asks: what it needs takes seconds to import."""

import importlib
from functools import partial
from typing import Any

from pdips.release.release import Closer


def look(how: str, *facts: Any) -> Closer:
    """Return what finds, when it is called, what a function of :mod:`pdips.posterior.inspection` finds."""
    return partial(_look, how, *facts)


def stored_name(name: str) -> str:
    """Return what a variable is called in a stored tree, where a slash would end the name of a group."""
    return name.replace("/", "\N{DIVISION SLASH}")


def _look(how: str, *facts: Any) -> Any:
    return getattr(importlib.import_module("pdips.posterior.inspection"), how)(*facts)
