"""Where each mechanism lives, by its name on the command line. Imports none of them until it is asked for one."""

import importlib
from typing import Any

from pdips.privacy import choice

MECHANISMS: dict[str, str] = {
    "laplace-sanitizer": "pdips.mechanisms.sanitizer:LaplaceSanitizer",
    "steps": "pdips.mechanisms.tree:Steps",
}


def find(name: str) -> type[Any]:
    """Return the class of a mechanism.

    Raises
    ------
    InputError
        If there is no mechanism of this name; the message lists those that there are.
    """
    module, _, attribute = MECHANISMS[choice(name, tuple(MECHANISMS), "mechanism")].partition(":")
    found: type[Any] = getattr(importlib.import_module(module), attribute)
    return found
