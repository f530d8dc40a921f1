"""Columns from a table to a model, as PyMC data or as stand-ins that need no table, and
back to synthetic sets.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Cast
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import SpecifyShape

from pdips.arrays import FloatArray, IntArray
from pdips.data import encoding
from pdips.data.coding import numbers
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError, hint
from pdips.graphs.data import as_data, read_own_data
from pdips.graphs.ranges import told_ranges
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import timed
from pdips.release.release import Closer

Values = Mapping[str, NDArray[Any]]
Parameters = Mapping[str, NDArray[Any]]
DrawRecords = Callable[[Parameters, int, Values, np.random.Generator], Values]

# A column ``wage`` is the ``pm.Data`` called ``wage_data`` in the model that reads it
SUFFIX = "_data"
# Whether the number of a column is missing, 0 or 1, is a column with this ending
MISSING = "_missing"
READING = ("get_value", "eval")  # Methods of a variable that hand out its value

# The dimension that numbers records; it is there as soon as a column is read
RECORD = "record"
GOLDEN = (5**0.5 - 1) / 2
ENDS = (0.0, 1.0)

# Values of a column, from its lower to its upper bound, at which a transformation is
# looked at
TRIED = 2_001
# Distance of neighbouring values at which steps are looked for, as a share of that to
# the lower bound
CLOSE = 1e-7
# Difference up to which values count as equal: logarithms of one number differ in their
# last bit
EQUAL = 1e-9
# Steps of the bisection: the bounds' distance is halved until doubles have no number
# between
HALVINGS = 80


class Columns(Mapping[str, Any]):
    """The columns that a model may read, each a ``pm.Data`` of one value a record, made
    when it is first read.

    ``columns["wage"]`` is a vector of doubles in the unit of the schema; that of an
    integer column holds whole numbers; that of a column with levels their codes, 0 for
    the first one, and the number of levels for a missing value. ``columns.matrix(["a",
    "b"])`` puts several side by side, shape (records, columns).

    Parameters
    ----------
    schema : Schema
        What is public about the columns; ``columns.schema``.
    values : mapping of str to ndarray, shape (records,)
        See :func:`record_values` and :func:`stand_ins`.

    Notes
    -----
    A model reads symbols, not records, so nothing outside its graph can depend on them:
    neither a prior nor a constant worked out beforehand. Inside :meth:`unread` a
    column's ``get_value`` and ``eval`` say so.

    Examples
    --------
    >>> import pymc as pm
    >>> schema = Schema(columns={"wage": Column(lower=0, upper=100)})
    >>> with pm.Model() as model:
    ...     columns = Columns(schema, {"wage": np.array([10.0, 20.0])})
    ...     wage = pm.Normal("w", 50, 10, observed=columns["wage"])
    >>> [data.name for data in model.data_vars]
    ['wage_data']
    """

    def __init__(self, schema: Schema, values: Values) -> None:
        self.schema = schema
        self._values = values
        self._made: dict[str, Any] = {}
        self._locked = False

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise InputError(
                f"the model reads column {name!r}, which the schema doesn't "
                f"have{hint(name, self._values)}"
            )
        try:
            model = pm.modelcontext(None)
        except TypeError:
            raise InputError(
                f"the model must read data[{name!r}] inside its `with pm.Model()` block"
            ) from None
        data = model.named_vars.get(name + SUFFIX)
        if data is None:
            data = as_data(model, name + SUFFIX, name, self._values[name])
            self._made[name] = data
            if RECORD not in (*model.coords, *model.named_vars, *self._values):
                model.add_coord(RECORD, length=data.shape[0])
            if self._locked:  # PyMC itself asks for no value while a model is built
                for method in READING:
                    setattr(data, method, partial(_refuse, name))
        return data

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Refuse to hand out the values of columns while a model is built.

        Approximate Gaussian processes ask for the range of their inputs, and are told
        the range that the schema allows.
        """
        self._locked = True
        try:
            with told_ranges(self._ranges):
                yield
        finally:
            self._locked = False
            for variable in self._made.values():
                for method in READING:
                    vars(variable).pop(method, None)

    def _ranges(self, graph: Any) -> FloatArray | None:
        """Return the least and the greatest value of each column of a matrix, shape (2,
        columns), over what the schema allows; None if it reads no column.
        """
        spread = {
            data: pt.as_tensor(_spread(model_columns(self.schema)[name]))
            for name, data in self._made.items()
        }
        if not spread.keys() & set(ancestors([graph])):
            return None
        [allowed] = clone_replace([graph], spread, rebuild_strict=False)
        values = allowed.eval()
        return np.stack([values.min(axis=0), values.max(axis=0)])

    def check_names(self, model: pm.Model) -> None:
        """Refuse data of a model's own that are called as a column's are."""
        for name in self._values:
            held = model.named_vars.get(name + SUFFIX)
            # pm.observe, pm.do and the like return a model of copies, tags included
            if held is not None and getattr(held.tag, "column", None) != name:
                raise InputError(
                    f"the model makes a variable {name + SUFFIX!r} of its own, which "
                    f"is what the data of column "
                    f"{name!r} are called; give it another name, or read data[{name!r}]"
                )

    def take_over(self, model: pm.Model) -> None:
        """Let observed values read the data that the model holds."""
        read_own_data(model, {name + SUFFIX: made for name, made in self._made.items()})

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Columns({list(self._values)})"

    @property
    def n_records(self) -> int:
        """How many records there are: for shapes of observed variables, never for
        priors.
        """
        return len(next(iter(self._values.values())))

    def matrix(self, names: Sequence[str]) -> Any:
        """Return several columns side by side, shape (records, columns)."""
        return pt.stack([self[name] for name in names], axis=1)


def _spread(column: Column) -> NDArray[Any]:
    """Return values from a column's lower to its upper end, always equally many."""
    return _at_share(column, np.linspace(0, 1, TRIED))


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise InputError(
        f"the model asks for the values of data[{name!r}], by get_value() or eval(), "
        f"and is built on stand-ins before "
        f"a record is read: what comes is no record's value. Use data[{name!r}] in "
        f"the formula itself, and public "
        f"numbers to standardise it, such as the bounds in schema.columns[{name!r}]"
    )


def record_values(
    table: Table, names: Iterable[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Return the columns of a table as models read them, one value a row, at the
    schema's resolution.
    """
    if names is None:
        names = model_columns(table.schema)
    return {name: _values_of(table, name) for name in names}


def _values_of(table: Table, name: str) -> NDArray[Any]:
    columns = table.schema.columns
    of = name if name in columns else name.removesuffix(MISSING)
    column = columns[of]
    if column.is_categorical:
        return table.codes[name]
    values = numbers(of, table.frame[of], column)
    if of != name:
        return np.isnan(values).astype(np.int64)
    fixed = fixed_numbers(table.schema).get(name, np.nan)
    values = np.where(np.isnan(values), fixed, values)
    if column.integer:
        return values.astype(np.int64)
    return collapse(values, column) + 0.0  # one zero, not two


def fixed_numbers(schema: Schema) -> dict[str, float]:
    """Return the public number that models read where a numeric column is missing: the
    middle of its bounds.
    """
    return {
        name: _middle(column)
        for name, column in schema.columns.items()
        if column.missing and not column.is_categorical
    }


def _middle(column: Column) -> float:
    """Return the middle of a column's bounds, as records have it."""
    lower, upper = bounds_of(column)
    middle = (lower + upper) / 2
    if column.scale == "log":
        middle = lower**0.5 * upper**0.5
    if column.integer:
        return float(np.floor(middle))
    return float(collapse(np.array(middle), column) + 0.0)


def model_columns(schema: Schema) -> dict[str, Column]:
    """Return the columns that models read: of a numeric one that may be missing its
    number, and whether it is.
    """
    columns = dict[str, Column]()
    fixed = fixed_numbers(schema)
    for name, column in schema.columns.items():
        columns[name] = column
        if name not in fixed:
            continue
        if name + MISSING in schema.columns:
            raise InputError(
                f"models call whether column {name!r} is missing "
                f"{name + MISSING!r}; rename that column"
            )
        columns[name] = column.model_copy(update={"missing": False})
        columns[name + MISSING] = Column(levels=[0, 1], public=column.public)
    return columns


def settled(schema: Schema, drawn: Values) -> dict[str, NDArray[Any]]:
    """Return drawn columns as tables have them: the fixed number wherever a number is
    missing.
    """
    columns = dict(drawn)
    for name, number in fixed_numbers(schema).items():
        if name in drawn:
            is_missing = np.asarray(drawn[name + MISSING]) > 0.5
            columns[name] = np.where(is_missing, number, drawn[name])
    return columns


def collapse(values: FloatArray, column: Column) -> FloatArray:
    """Move each value to the middle of its cell of the column's resolution, if it has
    one.
    """
    if column.resolution is None:
        return values
    lower, upper = bounds_of(column)
    n_cells = int(np.ceil((upper - lower) / column.resolution))
    cell = np.floor((values - lower) / column.resolution)
    cell = np.clip(cell, 0, n_cells - 1)
    left = lower + cell * column.resolution
    right = np.minimum(lower + (cell + 1) * column.resolution, upper)
    return (left + right) / 2


def stand_ins(
    schema: Schema, n: int, *, known: Values | None = None, end: int | None = None
) -> dict[str, NDArray[Any]]:
    """Return ``n`` records made from the schema alone, values of all columns spread
    over their levels or bounds.

    The first two have the lower and the upper end of every column, or all have one of
    these (``end``, 0 or 1). Columns that are ``known``, such as public ones, are taken
    as they are.
    """
    columns: dict[str, NDArray[Any]] = {}
    for place, (name, column) in enumerate(model_columns(schema).items()):
        if known and name in known:
            columns[name] = known[name]
            continue
        # an irrational step spreads any number of shares evenly over 0 to 1
        step = GOLDEN ** (1 + place % 3)
        share = ((np.arange(n) + 0.5) * step + place * 0.17) % 1
        share[: len(ENDS)] = ENDS[:n]
        if end is not None:
            share[:] = ENDS[end]
        columns[name] = _at_share(column, share)
    return columns


def _at_share(column: Column, share: NDArray[Any]) -> NDArray[Any]:
    """Return values of a column that lie at shares of the way over its levels or
    bounds.
    """
    if column.is_categorical:
        code = (share * column.n_levels).astype(np.int64)
        return np.minimum(code, column.n_levels - 1)
    lower, upper = bounds_of(column)
    if column.scale == "log":
        values = lower * (upper / lower) ** share
    else:
        values = lower + (upper - lower) * share
    return np.floor(values).astype(np.int64) if column.integer else values


def public_stand_ins(schema: Schema, n: int) -> dict[str, NDArray[Any]]:
    """Return the public columns of so many stand-ins."""
    values = stand_ins(schema, n)
    return {name: values[name] for name in public_names(schema)}


def public_names(schema: Schema) -> list[str]:
    """Return the names of the public columns as models read them."""
    return [name for name, column in model_columns(schema).items() if column.public]


def bounds_of(column: Column) -> tuple[float, float]:
    """Return the least and the greatest value that a model may read: of codes where a
    column has levels.
    """
    if column.is_categorical:
        return 0.0, column.n_levels - 1.0
    return float(column.lower or 0), float(column.upper or 0)


def distinct(
    values: Values, counts: IntArray | None
) -> tuple[dict[str, NDArray[Any]], IntArray]:
    """Return the distinct records in sorted order, and how many each stands for;
    without ``counts`` rows count one.
    """
    keys = [pd.Series(column, name=name) for name, column in values.items()]
    if counts is None:
        counts = np.ones(len(keys[0]), dtype=np.int64)
    grouped = pd.Series(counts).groupby(keys, sort=True).sum()
    rows = grouped.index.to_frame(index=False)
    columns = {name: rows[name].to_numpy() for name in values}
    return columns, grouped.to_numpy(dtype=np.int64)


@dataclass(frozen=True, eq=False)
class DrawnParameters:
    """What a curator drew of a model's parameters, once for all sets or for each."""

    values: Parameters | Sequence[Parameters]
    diagnostics: Mapping[str, Any]
    closer: Closer | None


def synthetic_sets(
    draw: DrawRecords,
    schema: Schema,
    public: PublicFacts,
    parameters: Parameters | Sequence[Parameters],
    n_sets: int,
    n_records: int,
    rng: np.random.Generator,
) -> list[pd.DataFrame]:
    """Draw synthetic sets from a model at one value of its parameters, or each at one
    of several.

    Where columns are public there are as many records as these have.
    """
    if isinstance(parameters, Mapping):
        by_set = [parameters] * n_sets
    else:
        by_set = list(parameters)[:n_sets]
    if len(by_set) < n_sets:
        raise InputError(
            f"each set has parameters of its own, which cost their share of the "
            f"budget: they were drawn for {len(by_set)} sets, not for {n_sets}"
        )
    if schema.public_columns and n_records != public.n_records:
        raise InputError(
            "with public columns the synthetic sets have the table's public records"
        )
    beside, covariates = covariates_of(schema, public)
    sets = []
    for number, values in enumerate(by_set, start=1):
        with timed(f"drawing synthetic set {number} of {n_sets}"):
            drawn = draw(values, n_records, covariates, rng)
            sets.append(to_frame(schema, drawn, beside, rng))
    return sets


def covariates_of(
    schema: Schema, public: PublicFacts
) -> tuple[pd.DataFrame, dict[str, NDArray[Any]]]:
    """Return the public columns as :func:`public_columns` does; nothing where there
    are none.
    """
    if not schema.public_columns:
        return pd.DataFrame(), {}
    return public_columns(public.columns)


def to_frame(
    schema: Schema,
    drawn: Mapping[str, NDArray[Any]],
    public: pd.DataFrame,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Turn what a model drew into records, beside public columns in the same order.

    What lies outside is moved to the nearest that may be, what is no number to the
    lower end: nothing may fail once the draw is paid for. ``rng`` isn't used for
    columns with levels or bounds, and these are all that models describe.
    """
    columns = model_columns(schema)
    values = {}
    for name, given in drawn.items():
        known = np.asarray(given, dtype=np.float64)
        lower = float(columns[name].lower or 0)
        values[name] = np.where(np.isnan(known), lower, known)
    for name in fixed_numbers(schema):
        if name + MISSING in values:
            is_missing = values[name + MISSING] > 0.5
            values[name] = np.where(is_missing, np.nan, values[name])
    return encoding.to_frame(schema, values, public, rng)


def public_columns(table: Table) -> tuple[pd.DataFrame, dict[str, NDArray[Any]]]:
    """Return the public columns of a table as they are written, and as models read
    them, in one order.
    """
    part = table.public_part()
    names = table.schema.public_columns
    written = pd.DataFrame({name: part.spelt(name) for name in names})
    return written, public_values(part)


def public_values(table: Table) -> dict[str, NDArray[Any]]:
    """Return the public columns of a table as models read them."""
    return record_values(table, public_names(table.schema))


@dataclass(frozen=True, eq=False)
class Transformation:
    """A strictly monotonic function of one column, and its inverse by bisection between
    the column's bounds.
    """

    function: Any = field(repr=False)  # compiled; of a vector of doubles
    lower: float  # the column's bounds, in the unit of the schema
    upper: float
    _lock: Any = field(default_factory=Lock, repr=False)

    def forward(self, values: FloatArray) -> FloatArray:
        """Return what the model observes where the column has some values, shape
        (values,).
        """
        given = np.asarray(values, dtype=np.float64)
        with self._lock, np.errstate(all="ignore"):
            return np.array(self.function(given), dtype=np.float64)

    def back(self, values: NDArray[Any]) -> FloatArray:
        """Return the column's values where the model drew some, any shape; those beyond
        a bound are moved to it.
        """
        drawn = np.asarray(values, dtype=np.float64).ravel()
        at_lower, at_upper = self.forward(np.array([self.lower, self.upper]))
        rising = bool(at_upper - at_lower >= 0)
        low = np.full(drawn.size, self.lower)
        high = np.full(drawn.size, self.upper)
        for _ in range(HALVINGS):
            middle = low + (high - low) / 2
            observed = self.forward(middle)
            above = observed < drawn if rising else observed > drawn
            low = np.where(above, middle, low)
            high = np.where(above, high, middle)
        # what was drawn itself where a number has it: a model may compare what it
        # observes with what is public, as one of censored times does
        is_exact = self.forward(high) == drawn
        found = np.where(is_exact, high, low + (high - low) / 2)
        return np.asarray(np.where(np.isnan(drawn), np.nan, found)).reshape(
            np.shape(values)
        )


@dataclass(frozen=True, eq=False)
class Relabelling:
    """One number for each level of a column, no two alike, and back."""

    numbers: FloatArray  # by code, shape (levels,)

    def forward(self, values: NDArray[Any]) -> FloatArray:
        """Return what the model observes where the column has some codes."""
        codes = np.rint(np.asarray(values, dtype=np.float64)).astype(np.int64)
        return self.numbers[np.clip(codes, 0, len(self.numbers) - 1)]

    def back(self, values: NDArray[Any]) -> FloatArray:
        """Return the codes whose numbers are nearest to what the model drew."""
        order = np.argsort(self.numbers)
        ordered = self.numbers[order]
        middles = (ordered[1:] + ordered[:-1]) / 2
        place = np.searchsorted(middles, np.asarray(values, dtype=np.float64))
        return order[place].astype(np.float64)


def transformations(
    model: pm.Model, observed: Mapping[str, Sequence[str]], known: Mapping[str, Column]
) -> dict[str, Transformation | Relabelling]:
    """Return how the columns are transformed that a model of stand-ins doesn't observe
    as they are.

    An observed value must be its column or a strictly monotonic function of it, record
    by record; of a column with levels, any one-to-one function.
    """
    columns = {
        model[name + SUFFIX]: name
        for name in known
        if name + SUFFIX in model.named_vars
    }
    found: dict[str, Transformation | Relabelling] = {}
    for variable in model.observed_RVs:
        value = model.rvs_to_values[variable]
        names = observed[variable.name]
        _check_read(variable.name, value, names, columns)
        is_alone = names == (variable.name,)
        if is_alone and _is_column(value, columns, known[variable.name]):
            continue
        try:
            found |= _transformations_of(value, names, columns, known)
        except InputError:
            raise
        except Exception:  # noqa: BLE001 - the analyst's own graph, which has seen stand-ins only
            raise _no_inverse(names[0]) from None
    return found


def _transformations_of(
    value: Any,
    names: Sequence[str],
    columns: Mapping[Any, str],
    known: Mapping[str, Column],
) -> dict[str, Transformation | Relabelling]:
    """Return how the columns of one observed value are transformed, where they are."""
    inputs = {name: pt.dvector(name) for name in names}
    replaced = {data: inputs[name] for data, name in columns.items() if name in inputs}
    [graph] = clone_replace([value], replaced, rebuild_strict=False)
    whole = pytensor.function(
        list(inputs.values()),
        graph if graph.ndim > 1 else graph[:, None],
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )
    found = {name: _transformation(whole, names, name, known) for name in names}
    return {name: change for name, change in found.items() if change is not None}


def _check_read(
    variable: str, value: Any, names: Sequence[str], columns: Mapping[Any, str]
) -> None:
    """Refuse an observed value that reads no column, or another one than it should."""
    behind = set(ancestors([value]))
    read = {name for data, name in columns.items() if data in behind}
    line = f"data.matrix({list(names)})"
    if tuple(names) == (variable,):
        line = f"data[{variable!r}]"
    if not read:
        raise InputError(
            f"the observed value of {variable!r} is no column but numbers made "
            f"beforehand, and synthetic records would "
            f"be as unlike the table as these; write observed={line}"
        )
    wrong = sorted(read - set(names))
    if wrong:
        raise InputError(
            f"the model observes {variable!r}, and the observed value reads column "
            f"{wrong[0]!r}; give the variable the "
            f"name of its column, or write observed={line}"
        )


def _is_column(value: Any, columns: Collection[Any], column: Column) -> bool:
    """Whether an observed value is its column, perhaps in another number type."""
    whole = column.is_categorical or column.integer
    while value.owner is not None:
        op = value.owner.op
        is_cast = isinstance(op, Elemwise) and isinstance(op.scalar_op, Cast)
        keeps = is_cast and (whole or value.type.dtype.startswith("float"))
        # pm.observe says how many records there are
        if not keeps and not isinstance(op, SpecifyShape):
            break
        value = value.owner.inputs[0]
    return value in columns


def _transformation(
    whole: Any, names: Sequence[str], name: str, known: Mapping[str, Column]
) -> Transformation | Relabelling | None:
    """Look at one column of an observed value over the column's bounds, with all others
    at an end; None: as it is.
    """
    column = known[name]
    lower, upper = bounds_of(column)

    def at(values: FloatArray, end: int = 0) -> FloatArray:
        inputs = {}
        for other in names:
            inputs[other] = np.full(len(values), bounds_of(known[other])[end])
        inputs[name] = values
        with np.errstate(all="ignore"):
            observed = whole(*inputs.values())
        return np.asarray(observed[:, names.index(name)], dtype=np.float64)

    tried = np.linspace(lower, upper, TRIED)
    if column.is_categorical or column.integer:
        tried = np.unique(np.rint(tried))
    else:
        # neighbours close by show whether the function has steps
        some = tried[TRIED // 4 :: TRIED // 4]
        tried = np.union1d(tried, some * (1 - CLOSE) + CLOSE * lower)
    seen = at(tried)
    if np.array_equal(seen, tried):
        return None
    if np.isnan(seen).any():
        raise InputError(
            f"the observed value of {name!r} is not a number everywhere between the "
            f"column's bounds; a logarithm needs "
            "bounds above 0, a logit a column that is scaled to the range from 0 to "
            "1 by its bounds"
        )
    same = np.allclose(at(tried, 1), seen, rtol=EQUAL, atol=EQUAL)
    # so that neither means nor sums from the first on agree
    fewer = slice(None, -max(1, len(tried) // 3) - 1, -1)
    alone = np.allclose(at(tried[fewer]), seen[fewer], rtol=EQUAL, atol=EQUAL)
    steps = np.diff(seen)
    is_monotonic = np.all(steps > 0) or np.all(steps < 0)
    if column.is_categorical and same and alone and _are_apart(seen):
        return Relabelling(seen)
    if not (same and alone and is_monotonic):
        raise _no_inverse(name)
    return Transformation(at, lower, upper)


def _are_apart(numbers: FloatArray) -> bool:
    """Whether no two numbers are alike, up to rounding."""
    gaps = np.diff(np.sort(numbers))
    return bool(len(gaps) and gaps.min() > EQUAL * np.ptp(numbers))


def _no_inverse(name: str) -> InputError:
    return InputError(
        f"synthetic records can't be brought back to column {name!r} from what the "
        f"model observes: write "
        f"observed=data[{name!r}] (whole numbers need integer = true in the schema), "
        f"or a function of it that rises or "
        f"falls all the way between its bounds, with constants that are public, such "
        f"as pt.log(data[{name!r}]) or "
        f"(data[{name!r}] - 10) / 5"
    )
