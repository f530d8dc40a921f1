"""What a model observes: a column as it is, or a function of it, through which drawn values are taken back."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast
from pytensor.tensor.elemwise import Elemwise

from pdips.arrays import FloatArray
from pdips.data.schema import Column, Schema
from pdips.errors import InputError
from pdips.posterior.columns import SUFFIX, bounds_of

TRIED = 2_001
"""Values of a column, from its lower to its upper bound, at which a transformation is looked at."""

CLOSE = 1e-7
"""Distance of neighbouring values at which steps are looked for, as a share of that to the lower bound."""

EQUAL = 1e-9
"""Difference up to which values count as equal: logarithms of one number differ in their last bit."""

HALVINGS = 80
"""Steps of the bisection: the bounds' distance is halved until doubles have no number between."""


@dataclass(frozen=True, eq=False)
class Transformation:
    """A strictly monotonic function of one column, and its inverse by bisection between the column's bounds.

    Parameters
    ----------
    function : callable
        Compiled; of a vector of doubles.
    lower, upper : float
        The column's bounds, in the unit of the schema.
    """

    function: Any = field(repr=False)
    lower: float
    upper: float
    _lock: Any = field(default_factory=Lock, repr=False)

    def forward(self, values: FloatArray) -> FloatArray:
        """Return what the model observes where the column has some values, shape (values,)."""
        with self._lock, np.errstate(all="ignore"):
            return np.array(self.function(np.asarray(values, dtype=np.float64)), dtype=np.float64)

    def back(self, values: NDArray[Any]) -> FloatArray:
        """Return the column's values where the model drew some, any shape; those beyond a bound are moved to it."""
        drawn = np.asarray(values, dtype=np.float64).ravel()
        rising = bool(np.diff(self.forward(np.array([self.lower, self.upper])))[0] >= 0)
        low, high = np.full(drawn.size, self.lower), np.full(drawn.size, self.upper)
        for _ in range(HALVINGS):
            middle = low + (high - low) / 2
            found = self.forward(middle)
            above = found < drawn if rising else found > drawn
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        found = np.where(np.isnan(drawn), np.nan, low + (high - low) / 2)
        return np.asarray(found.reshape(np.shape(values)))


def transformations(
    model: pm.Model, observed: Mapping[str, Sequence[str]], schema: Schema
) -> dict[str, Transformation]:
    """Return how the columns are transformed that a model doesn't observe as they are.

    Parameters
    ----------
    model : pymc.Model
        A model of stand-ins.
    observed : mapping of str to sequence of str
        The columns of each observed variable.
    schema : Schema
        The columns' bounds.

    Raises
    ------
    InputError
        If an observed value is neither its column nor a strictly monotonic function of it, record by record.
    """
    columns = {model[name + SUFFIX]: name for name in schema.columns if name + SUFFIX in model.named_vars}
    found: dict[str, Transformation] = {}
    for variable in model.observed_RVs:
        value, names = model.rvs_to_values[variable], observed[variable.name]
        _check_read(variable.name, value, names, columns)
        if names != (variable.name,) or not _is_column(value, columns, schema.columns[variable.name]):
            found |= _taken_apart(value, names, columns, schema)
    return found


def _check_read(variable: str, value: Any, names: Sequence[str], columns: Mapping[Any, str]) -> None:
    """Refuse an observed value that reads no column, or another one than it should."""
    behind = set(ancestors([value]))
    read = {name for each, name in columns.items() if each in behind}
    line = f"data[{variable!r}]" if tuple(names) == (variable,) else f"data.matrix({list(names)})"
    if not read:
        raise InputError(
            f"the observed value of {variable!r} is no column but numbers made beforehand, and synthetic records would "
            f"be as unlike the table as these; write observed={line}"
        )
    if wrong := sorted(read - set(names)):
        raise InputError(
            f"the model observes {variable!r}, and the observed value reads column {wrong[0]!r}; give the variable the "
            f"name of its column, or write observed={line}"
        )


def _is_column(value: Any, columns: Collection[Any], column: Column) -> bool:
    """Whether an observed value is its column, perhaps in another number type."""
    whole = column.is_categorical or column.integer
    while value.owner is not None and isinstance(value.owner.op, Elemwise):
        if not isinstance(value.owner.op.scalar_op, Cast) or not (whole or value.type.dtype.startswith("float")):
            break
        [value] = value.owner.inputs
    return value in columns


def _taken_apart(
    value: Any, names: Sequence[str], columns: Mapping[Any, str], schema: Schema
) -> dict[str, Transformation]:
    """Return the transformations in an observed value, shape (records,) or (records, columns)."""
    inputs = {name: pt.dvector(name) for name in names}
    replaced = {each: inputs[name] for each, name in columns.items() if name in inputs}
    try:
        [graph] = clone_replace([value], replaced, rebuild_strict=False)
        graph = graph if graph.ndim > 1 else graph[:, None]
        whole = pytensor.function(list(inputs.values()), graph, mode="FAST_COMPILE", on_unused_input="ignore")
        found = {}
        for place, name in enumerate(names):
            made = _Looked(whole, names, place, schema)
            if made.is_transformed:
                found[name] = made.transformation
    except InputError:
        raise
    except Exception:  # noqa: BLE001 - the analyst's own graph, which has seen stand-ins only
        raise _no_inverse(names[0]) from None
    return found


class _Looked:
    """One column of an observed value, looked at over the column's bounds with all other columns at an end."""

    def __init__(self, function: Any, names: Sequence[str], place: int, schema: Schema) -> None:
        self._function, self._names, self._place, self._columns = function, names, place, schema.columns
        self.name, column = names[place], schema.columns[names[place]]
        lower, upper = bounds_of(column)
        tried = np.linspace(lower, upper, TRIED)
        if column.is_categorical or column.integer:
            tried = np.unique(np.rint(tried))
        else:  # neighbours close by show whether the function has steps
            tried = np.union1d(tried, tried[TRIED // 4 :: TRIED // 4] * (1 - CLOSE) + CLOSE * lower)
        seen = self._at(tried, 0)
        self.is_transformed = not np.array_equal(seen, tried)
        if self.is_transformed:
            self._check(tried, seen)
        self.transformation = Transformation(lambda values: self._at(values, 0), lower, upper)

    def _at(self, values: FloatArray, end: int) -> FloatArray:
        others = (np.full(len(values), bounds_of(self._columns[name])[end]) for name in self._names)
        given = [values if name == self.name else other for name, other in zip(self._names, others, strict=True)]
        with np.errstate(all="ignore"):
            return np.asarray(self._function(*given)[:, self._place], dtype=np.float64)

    def _check(self, tried: FloatArray, seen: FloatArray) -> None:
        if np.isnan(seen).any():
            raise InputError(
                f"the observed value of {self.name!r} is not a number everywhere between the column's bounds; a "
                "logarithm needs bounds above 0, a logit a column that is scaled to the range from 0 to 1 by its bounds"
            )
        same = np.allclose(self._at(tried, 1), seen, rtol=EQUAL, atol=EQUAL)
        fewer = slice(None, -max(1, len(tried) // 3) - 1, -1)  # so that neither means nor sums from the first on agree
        alone = np.allclose(self._at(tried[fewer], 0), seen[fewer], rtol=EQUAL, atol=EQUAL)
        steps = np.diff(seen)
        if not (same and alone and (np.all(steps > 0) or np.all(steps < 0))):
            raise _no_inverse(self.name)


def _no_inverse(name: str) -> InputError:
    return InputError(
        f"synthetic records can't be brought back to column {name!r} from what the model observes: write "
        f"observed=data[{name!r}] (whole numbers need integer = true in the schema), or a function of it that rises or "
        f"falls all the way between its bounds, with constants that are public, such as pt.log(data[{name!r}]) or "
        f"(data[{name!r}] - 10) / 5"
    )
