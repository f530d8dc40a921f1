"""Differentially private data synthesis for Bayesian analysts.

Names are imported when they are first used, so that ``import pdips`` is quick and doesn't import PyMC.
"""

import importlib
import re
from pathlib import Path
from typing import Any

from pdips.release import VERSION

__version__ = VERSION

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOMES = {name: module for module, name in re.findall(r"from (\S+) import (\w+)", _STUB)}
"""The module of each public name, as the stub beside this file has them."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pdips' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
