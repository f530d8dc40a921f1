"""The statistics that come with pdips, and nothing that only looks like one of them."""

from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Any

from pdips.errors import InputError
from pdips.statistics.logistic import Logistic
from pdips.statistics.statistic import Counts, Products, Scatter, Statistic, Sums

SHIPPED: tuple[type, ...] = (Counts, Sums, Products, Scatter, Logistic)

SEVERAL = {(Counts, "by"), (Sums, "by"), (Products, "by"), (Products, "of"), (Logistic, "predictors")}
"""Fields that hold several names of columns; the others hold one, ``kappa`` a number."""


def shipped(statistics: Any, model: str = "the model") -> dict[str, Statistic]:
    """Return statistics by name as new objects of the shipped types, read once.

    Parameters
    ----------
    statistics : mapping of str to Statistic
        What a model file declares.
    model : str
        What to call it in messages.

    Raises
    ------
    InputError
        If it is no mapping, is empty, or holds anything but the shipped types with their own fields.

    Notes
    -----
    The guarantee rests on the sensitivity of each statistic, which is proved for these types alone
    (``docs/proofs/modips.md``). So the type must be one of them exactly: a subclass could measure something else at the
    price of its parent. What is returned is made anew from plain fields: neither methods set on an instance nor a
    mapping or a string that changes between reads can get in.
    """
    if not isinstance(statistics, Mapping):
        raise InputError(f"{model}: statistics(schema) must return statistics by name, and at least one")
    found = {name: _copied(name, each, model) for name, each in list(statistics.items())}
    if not found:
        raise InputError(f"{model}: statistics(schema) must return statistics by name, and at least one")
    return found


def _copied(name: Any, statistic: Any, model: str) -> Statistic:
    if type(name) is not str or not name:
        raise InputError(f"{model}: statistics(schema) returns {name!r}, which is no name of a statistic")
    kind = type(statistic)
    if kind not in SHIPPED:
        names = ", ".join(each.__name__ for each in SHIPPED)
        raise InputError(
            f"{model}: statistics(schema) returns {name!r}, which is none of {names} itself; the sensitivity of other "
            "statistics, and of subclasses of these, isn't proved: declare what you need by these types"
        )
    own = [field.name for field in fields(kind)]
    if sorted(vars(statistic)) != sorted(own):
        raise InputError(f"{model}: statistic {name!r} has attributes that a {kind.__name__} doesn't have")
    values = {field: _plain(kind, field, vars(statistic)[field], f"{model}: {name!r}") for field in own}
    made: Statistic = kind(**values)
    return made


def _plain(kind: type, field: str, value: Any, label: str) -> Any:
    """Return the value of a field as plain Python objects."""
    if field == "kappa":
        if type(value) not in (int, float, str, Fraction):
            raise InputError(f"{label}: kappa must be a number")
        return value
    if (kind, field) not in SEVERAL:
        if type(value) is not str:
            raise InputError(f"{label}: {field} must be the name of a column")
        return value
    if type(value) not in (tuple, list) or any(type(each) is not str for each in value):
        raise InputError(f"{label}: {field} must be names of columns, such as {field}=('a', 'b') or {field}=('a',)")
    return tuple(value)
