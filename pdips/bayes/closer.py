"""A closer look at a posterior, taken when somebody asks: what it needs takes seconds to import."""

import importlib
from typing import Any


def look(how: str, *facts: Any) -> Any:
    """Return what a function of :mod:`pdips.bayes.inspection` finds."""
    return getattr(importlib.import_module("pdips.bayes.inspection"), how)(*facts)
