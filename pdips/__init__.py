"""Differentially private data synthesis for Bayesian analysts.

Names are imported when they are first used, so that ``import pdips`` is quick and
doesn't import PyMC.
"""

from pdips import caches
from pdips.registry import public_names
from pdips.release import VERSION

caches.settle()  # before a module imports numba or PyTensor

__version__ = VERSION
_homes, __getattr__ = public_names(__name__, __file__)
__all__ = sorted(_homes)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
