"""Bambi, an extra: imported where a formula is read, and called so that what it says
arrives as one line.
"""

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Any

from pdips.errors import InputError
from pdips.extras import require

EXPECTED = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    AssertionError,
    NotImplementedError,
    UserWarning,
)
"""What Bambi, formulae and PyMC raise where a formula or a prior is wrong."""


def bambi() -> Any:
    """Return the package Bambi, or refuse with the line that installs it.

    Examples
    --------
    >>> bambi().Prior("Normal", mu=0, sigma=1)
    Normal(mu: 0.0, sigma: 1.0)
    """
    require("bambi", "formulas and Bambi models need")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import bambi as package
    return package


@contextlib.contextmanager
def one_line(what: str) -> Iterator[None]:
    """Run Bambi without its prints and warnings; what it refuses is one line.

    Bambi sees public columns and made-up outcomes only, so its words quote no record.

    Parameters
    ----------
    what : str
        Begins the line: what is refused.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        # a misspelt name of a prior must not be passed over
        warnings.filterwarnings("error", message=r"Unused name\(s\) in `priors`")
        try:
            yield
        except InputError:
            raise
        except _errors() as error:
            said = str(error).partition(" Set `bmb.config")[0]
            words = " ".join(said.split()) or type(error).__name__
            raise InputError(f"{what}: {words}") from None


def _errors() -> tuple[type[Exception], ...]:
    """Return what is raised where a formula or a prior is wrong."""
    from formulae.parser import ParseError
    from formulae.resolver import ResolverError
    from formulae.scanner import ScanError
    from formulae.terms.call_resolver import CallResolverError

    return (*EXPECTED, ParseError, ResolverError, ScanError, CallResolverError)
