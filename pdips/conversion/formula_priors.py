"""Priors of a formula: written as text, and without numbers that may have been read off
the table.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pymc as pm

from pdips.conversion.bambi_package import bambi
from pdips.errors import InputError
from pdips.posterior.closures import check_closed

DECIMAL = re.compile(r"\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+")
DIGITS = 6
"""A number that people write has no more digits; a moment of a table has."""
TOO_LONG = (
    f"a number of more than {DIGITS} digits, as moments of a table have: round it, or "
    "say public_constants=True if it comes from public sources alone"
)
EXAMPLE = "Normal(mu=0, sigma=2)"


def prior_of(text: str) -> Any:
    """Return the prior, or the number, that a text says.

    Parameters
    ----------
    text : str
        A distribution of PyMC with its arguments by name, each a number or again a
        distribution; or a number alone, for a parameter that is fixed.

    Examples
    --------
    >>> prior_of("Normal(mu=0, sigma=HalfNormal(sigma=3))")
    Normal(mu: 0.0, sigma: HalfNormal(sigma: 3.0))
    """
    try:
        return _prior(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        raise InputError(
            f"a prior is written as in {EXAMPLE!r}, got {text!r}"
        ) from None


def _prior(node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        number = ast.literal_eval(node)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError("no number")
        return number
    if not isinstance(node.func, ast.Name) or node.args:
        raise ValueError("no distribution whose arguments are named")
    named = getattr(pm, node.func.id, None)
    if not (isinstance(named, type) and issubclass(named, pm.Distribution)):
        raise ValueError("no distribution of PyMC")
    arguments = {str(each.arg): _prior(each.value) for each in node.keywords}
    return bambi().Prior(node.func.id, **arguments)


def spelt_priors(priors: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return priors with those that are text made of it.

    Examples
    --------
    >>> spelt_priors({"sigma": {"age": "Normal(mu=0, sigma=1)"}})
    {'sigma': {'age': Normal(mu: 0.0, sigma: 1.0)}}
    """
    spelt: dict[str, Any] = {}
    for name, prior in (priors or {}).items():
        if isinstance(prior, Mapping):
            spelt[name] = spelt_priors(prior)
        else:
            spelt[name] = prior_of(prior) if isinstance(prior, str) else prior
    return spelt


def check_priors(priors: Mapping[str, Any], *, digits: bool = True) -> None:
    """Refuse priors that may hold what was read off the table: functions that hold
    data, and, with ``digits``, numbers of many digits.

    Examples
    --------
    >>> check_priors({"age": prior_of("Normal(mu=0, sigma=2.5)")})
    """
    for name, prior in priors.items():
        for number in _numbers(prior, name):
            if digits and not is_short(number):
                raise InputError(f"the prior of {name!r} has {TOO_LONG}")


def _numbers(prior: Any, name: str) -> Iterator[float]:
    """Yield the numbers in a prior, and look into the functions in it."""
    is_pymc = type(prior).__module__.partition(".")[0] == "pymc"
    if prior is None or isinstance(prior, str) or is_pymc:
        return
    if isinstance(prior, Mapping):
        for inner in prior.values():
            yield from _numbers(inner, name)
    elif isinstance(prior, bambi().Prior):
        yield from _numbers(prior.args, name)
        yield from _numbers(prior.dist, name)
    elif callable(prior):
        check_closed(prior, f"the prior of {name!r}")
    else:
        try:
            numbers = np.asarray(prior, float)
        except (TypeError, ValueError):
            raise InputError(
                f"the prior of {name!r} holds {type(prior).__name__}: write numbers, "
                "or a distribution"
            ) from None
        yield from numbers.ravel()


def check_typed(held: Mapping[str, str], name: str, public_constants: bool) -> None:
    """Refuse numbers from outside of a function's code that nobody types: they look
    worked out of records, and would be published with the model's text.

    Parameters
    ----------
    held : mapping of str to str
        Names and texts, as :func:`pdips.posterior.closures.check_closed` returns them.
    name : str
        What messages call the function.
    public_constants : bool
        Whether it is said that they are public.

    Examples
    --------
    >>> check_typed({"width": "width = 2.5"}, "make", False)
    """
    for constant, text in held.items():
        numbers = DECIMAL.findall(text)
        if not public_constants and not all(is_short(float(each)) for each in numbers):
            raise InputError(
                f"{name} reads {constant!r} from outside of its code, which holds "
                f"numbers with many digits, as what is worked out of records has: "
                f"write round public numbers, or say public_constants=True if "
                f"everybody may know them"
            )


def is_short(number: float) -> bool:
    """Whether a number has no more digits than one that people write.

    Examples
    --------
    >>> is_short(2.5), is_short(2.5000001)
    (True, False)
    """
    return not np.isfinite(number) or float(f"{number:.{DIGITS}g}") == number
