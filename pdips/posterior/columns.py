"""Columns from a table to a model, as PyMC data or as stand-ins that need no table, and back to synthetic sets."""

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

from pdips.arrays import FloatArray, IntArray
from pdips.data import encoding
from pdips.data.coding import numbers
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.privacy.curator import Curator

Values = Mapping[str, NDArray[Any]]
Parameters = Mapping[str, NDArray[Any]]
DrawRecords = Callable[[Parameters, int, Values, np.random.Generator], Values]

SUFFIX = "_data"  # A column ``wage`` is the ``pm.Data`` called ``wage_data`` in the model that reads it
MISSING = "_missing"  # Whether the number of a column is missing, 0 or 1, is a column with this ending
READING = ("get_value", "eval")  # Methods of a variable that hand out its value

RECORD = "record"  # The dimension that numbers records; it is there as soon as a column is read
GOLDEN = (5**0.5 - 1) / 2
ENDS = (0.0, 1.0)

TRIED = 2_001  # Values of a column, from its lower to its upper bound, at which a transformation is looked at
CLOSE = 1e-7  # Distance of neighbouring values at which steps are looked for, as a share of that to the lower bound
EQUAL = 1e-9  # Difference up to which values count as equal: logarithms of one number differ in their last bit
HALVINGS = 80  # Steps of the bisection: the bounds' distance is halved until doubles have no number between


class Columns(Mapping[str, Any]):
    """The columns that a model may read, each a ``pm.Data`` of one value a record, made when it is first read.

    ``columns["wage"]`` is a vector of doubles in the unit of the schema; that of an integer column holds whole numbers;
    that of a column with levels their codes, 0 for the first one, and the number of levels for a missing value.
    ``columns.matrix(["a", "b"])`` puts several side by side, shape (records, columns).

    Parameters
    ----------
    schema : Schema
        What is public about the columns; ``columns.schema``.
    values : mapping of str to ndarray, shape (records,)
        See :func:`record_values` and :func:`stand_ins`.

    Notes
    -----
    A model reads symbols, not records, so nothing outside its graph can depend on them: neither a prior nor a constant
    worked out beforehand. Inside :meth:`unread` a column's ``get_value`` and ``eval`` say so.

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
            raise InputError(f"the model reads column {name!r}, which the schema doesn't have")
        try:
            model = pm.modelcontext(None)
        except TypeError:
            raise InputError(f"the model must read data[{name!r}] inside its `with pm.Model()` block") from None
        known = model.named_vars.get(name + SUFFIX)
        if known is None:
            known = self._made[name] = pm.Data(name + SUFFIX, self._values[name])
            if RECORD not in (*model.coords, *model.named_vars, *self._values):
                model.add_coord(RECORD, length=known.shape[0])
            if self._locked:  # PyMC itself asks for no value while a model is built
                for method in READING:
                    setattr(known, method, partial(_refuse, name))
        return known

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Refuse to hand out the values of columns while a model is built."""
        self._locked = True
        try:
            yield
        finally:
            self._locked = False
            for variable in self._made.values():
                for method in READING:
                    vars(variable).pop(method, None)

    def check_names(self, model: pm.Model) -> None:
        """Refuse data of a model's own that are called as a column's are."""
        for name in self._values:
            held = model.named_vars.get(name + SUFFIX)
            if held is not None and held is not self._made.get(name):
                raise InputError(
                    f"the model makes a variable {name + SUFFIX!r} of its own, which is what the data of column "
                    f"{name!r} are called; give it another name, or read data[{name!r}]"
                )

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Columns({list(self._values)})"

    @property
    def n_records(self) -> int:
        """How many records there are: for shapes of observed variables, never for priors."""
        return len(next(iter(self._values.values())))

    def matrix(self, names: Sequence[str]) -> Any:
        """Return several columns side by side, shape (records, columns)."""
        return pt.stack([self[name] for name in names], axis=1)


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise InputError(
        f"the model asks for the values of data[{name!r}], by get_value() or eval(), and is built on stand-ins before "
        f"a record is read: what comes is no record's value. Use data[{name!r}] in the formula itself, and public "
        f"numbers to standardise it, such as the bounds in schema.columns[{name!r}]"
    )


def record_values(table: Table, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return the columns of a table as models read them, one value a row, at the schema's resolution."""
    found: dict[str, NDArray[Any]] = {}
    columns, fixed = table.schema.columns, fixed_numbers(table.schema)
    for name in model_columns(table.schema) if names is None else names:
        of = name if name in columns else name.removesuffix(MISSING)
        column = columns[of]
        if column.is_categorical:
            found[name] = table.codes[name]
            continue
        known = numbers(of, table.frame[of], column)
        if of != name:
            found[name] = np.isnan(known).astype(np.int64)
            continue
        known = np.where(np.isnan(known), fixed.get(name, np.nan), known)
        # one zero, not two
        found[name] = known.astype(np.int64) if column.integer else collapse(known, column) + 0.0
    return found


def fixed_numbers(schema: Schema) -> dict[str, float]:
    """Return the public number that models read where a numeric column is missing: the middle of its bounds."""
    found: dict[str, float] = {}
    for name, column in schema.columns.items():
        if column.missing and not column.is_categorical:
            lower, upper = bounds_of(column)
            middle = lower**0.5 * upper**0.5 if column.scale == "log" else (lower + upper) / 2
            found[name] = float(np.floor(middle) if column.integer else collapse(np.array(middle), column) + 0.0)
    return found


def model_columns(schema: Schema) -> dict[str, Column]:
    """Return the columns that models read: of a numeric one that may be missing its number, and whether it is."""
    found, fixed = dict[str, Column](), fixed_numbers(schema)
    for name, column in schema.columns.items():
        if name in fixed and name + MISSING in schema.columns:
            raise InputError(f"models call whether column {name!r} is missing {name + MISSING!r}; rename that column")
        found[name] = column.model_copy(update={"missing": False}) if name in fixed else column
        found |= {name + MISSING: Column(levels=[0, 1], public=column.public)} if name in fixed else {}
    return found


def settled(schema: Schema, drawn: Values) -> dict[str, NDArray[Any]]:
    """Return drawn columns as tables have them: the fixed number wherever a number is missing."""
    fixed = {name: number for name, number in fixed_numbers(schema).items() if name in drawn}
    gone = {name: np.asarray(drawn[name + MISSING]) > 0.5 for name in fixed}
    return {**drawn, **{name: np.where(gone[name], number, drawn[name]) for name, number in fixed.items()}}


def collapse(values: FloatArray, column: Column) -> FloatArray:
    """Move each value to the middle of its cell of the column's resolution, if it has one."""
    if column.resolution is None:
        return values
    lower, upper = bounds_of(column)
    n_cells = int(np.ceil((upper - lower) / column.resolution))
    cell = np.clip(np.floor((values - lower) / column.resolution), 0, n_cells - 1)
    left, right = lower + cell * column.resolution, np.minimum(lower + (cell + 1) * column.resolution, upper)
    return np.asarray((left + right) / 2)


def stand_ins(
    schema: Schema, n: int, *, known: Values | None = None, end: int | None = None
) -> dict[str, NDArray[Any]]:
    """Return ``n`` records made from the schema alone, values of all columns spread over their levels or bounds.

    The first two have the lower and the upper end of every column, or all have one of these (``end``, 0 or 1). Columns
    that are ``known``, such as public ones, are taken as they are.
    """
    found: dict[str, NDArray[Any]] = {}
    for place, (name, column) in enumerate(model_columns(schema).items()):
        share = ((np.arange(n) + 0.5) * GOLDEN ** (1 + place % 3) + place * 0.17) % 1
        share[: len(ENDS)] = ENDS[:n]
        share = share if end is None else np.full(n, ENDS[end])
        lower, upper = bounds_of(column)
        if known and name in known:
            found[name] = known[name]
        elif column.is_categorical:
            found[name] = np.minimum((share * column.n_levels).astype(np.int64), column.n_levels - 1)
        else:
            spread = lower * (upper / lower) ** share if column.scale == "log" else lower + (upper - lower) * share
            found[name] = np.floor(spread).astype(np.int64) if column.integer else spread
    return found


def public_stand_ins(schema: Schema, n: int) -> dict[str, NDArray[Any]]:
    public = public_names(schema)
    return {name: values for name, values in stand_ins(schema, n).items() if name in public}


def public_names(schema: Schema) -> list[str]:
    """Return the names of the public columns as models read them."""
    return [name for name, column in model_columns(schema).items() if column.public]


def bounds_of(column: Column) -> tuple[float, float]:
    """Return the least and the greatest value that a model may read: of codes where a column has levels."""
    if column.is_categorical:
        return 0.0, column.n_levels - 1.0
    return float(column.lower or 0), float(column.upper or 0)


def distinct(values: Values, counts: IntArray | None) -> tuple[dict[str, NDArray[Any]], IntArray]:
    """Return the distinct records in sorted order, and how many each stands for; without ``counts`` rows count one."""
    keys = [pd.Series(column, name=name) for name, column in values.items()]
    each = pd.Series(np.ones(len(keys[0]), dtype=np.int64) if counts is None else counts)
    grouped = each.groupby(keys, sort=True).sum()
    kept = grouped.index.to_frame(index=False)
    return {name: kept[name].to_numpy() for name in values}, grouped.to_numpy(dtype=np.int64)


def synthetic_sets(
    draw: DrawRecords,
    schema: Schema,
    curator: Curator,
    parameters: Parameters | Sequence[Parameters],
    n_sets: int,
    n_records: int,
    rng: np.random.Generator,
) -> list[pd.DataFrame]:
    """Draw synthetic sets from a model at one value of its parameters, or at one for each set.

    The curator is asked for the public columns alone, if there are any; then there are as many records as it holds.
    """
    each = [parameters] * n_sets if isinstance(parameters, Mapping) else list(parameters)
    if len(each) != n_sets:
        raise InputError(f"parameters must be given once, or once for each of {n_sets} sets")
    if schema.public_columns and n_records != curator.n_records:
        raise InputError("with public columns the synthetic sets have the table's public records")
    public, covariates = public_columns(curator.public) if schema.public_columns else (pd.DataFrame(), {})
    sets = []
    for number, values in enumerate(each, start=1):
        with curator.timed(f"drawing synthetic set {number} of {n_sets}"):
            sets.append(to_frame(schema, draw(values, n_records, covariates, rng), public, rng))
    return sets


def to_frame(
    schema: Schema, drawn: Mapping[str, NDArray[Any]], public: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """Turn what a model drew into records, beside public columns in the same order.

    What lies outside is moved to the nearest that may be, what is no number to the lower end: nothing may fail once the
    draw is paid for. ``rng`` isn't used for columns with levels or bounds, and these are all that models describe.
    """
    numbers, columns = {n: np.asarray(given, dtype=np.float64) for n, given in drawn.items()}, model_columns(schema)
    known = {n: np.where(np.isnan(each), float(columns[n].lower or 0), each) for n, each in numbers.items()}
    gone = [name for name in fixed_numbers(schema) if name + MISSING in known]
    known |= {name: np.where(known[name + MISSING] > 0.5, np.nan, known[name]) for name in gone}
    return encoding.to_frame(schema, known, public, rng)


def public_columns(table: Table) -> tuple[pd.DataFrame, dict[str, NDArray[Any]]]:
    """Return the public columns of a table as they are written, and as models read them, in one order."""
    part = table.public_part()
    return pd.DataFrame({name: part.spelt(name) for name in table.schema.public_columns}), public_values(part)


def public_values(table: Table) -> dict[str, NDArray[Any]]:
    """Return the public columns of a table as models read them."""
    return record_values(table, public_names(table.schema))


@dataclass(frozen=True, eq=False)
class Transformation:
    """A strictly monotonic function of one column, and its inverse by bisection between the column's bounds."""

    function: Any = field(repr=False)  # compiled; of a vector of doubles
    lower: float  # the column's bounds, in the unit of the schema
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
    model: pm.Model, observed: Mapping[str, Sequence[str]], known: Mapping[str, Column]
) -> dict[str, Transformation]:
    """Return how the columns are transformed that a model of stand-ins doesn't observe as they are.

    An observed value must be its column or a strictly monotonic function of it, record by record.
    """
    columns = {model[name + SUFFIX]: name for name in known if name + SUFFIX in model.named_vars}
    found: dict[str, Transformation] = {}
    for variable in model.observed_RVs:
        value, names = model.rvs_to_values[variable], observed[variable.name]
        _check_read(variable.name, value, names, columns)
        if names == (variable.name,) and _is_column(value, columns, known[variable.name]):
            continue
        try:
            inputs = {name: pt.dvector(name) for name in names}
            replaced = {each: inputs[name] for each, name in columns.items() if name in inputs}
            [graph] = clone_replace([value], replaced, rebuild_strict=False)
            graph = graph if graph.ndim > 1 else graph[:, None]
            whole = pytensor.function(list(inputs.values()), graph, mode="FAST_COMPILE", on_unused_input="ignore")
            made = {name: _transformation(whole, names, name, known) for name in names}
        except InputError:
            raise
        except Exception:  # noqa: BLE001 - the analyst's own graph, which has seen stand-ins only
            raise _no_inverse(names[0]) from None
        found |= {name: each for name, each in made.items() if each is not None}
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


def _transformation(whole: Any, names: Sequence[str], name: str, known: Mapping[str, Column]) -> Transformation | None:
    """Look at one column of an observed value over the column's bounds, with all others at an end; None: as it is."""
    column = known[name]
    lower, upper = bounds_of(column)

    def at(values: FloatArray, end: int = 0) -> FloatArray:
        others = {each: np.full(len(values), bounds_of(known[each])[end]) for each in names}
        with np.errstate(all="ignore"):
            found = whole(*(others | {name: values}).values())
        return np.asarray(found[:, names.index(name)], dtype=np.float64)

    tried = np.linspace(lower, upper, TRIED)
    if column.is_categorical or column.integer:
        tried = np.unique(np.rint(tried))
    else:  # neighbours close by show whether the function has steps
        tried = np.union1d(tried, tried[TRIED // 4 :: TRIED // 4] * (1 - CLOSE) + CLOSE * lower)
    seen = at(tried)
    if np.array_equal(seen, tried):
        return None
    if np.isnan(seen).any():
        raise InputError(
            f"the observed value of {name!r} is not a number everywhere between the column's bounds; a logarithm needs "
            "bounds above 0, a logit a column that is scaled to the range from 0 to 1 by its bounds"
        )
    same = np.allclose(at(tried, 1), seen, rtol=EQUAL, atol=EQUAL)
    fewer = slice(None, -max(1, len(tried) // 3) - 1, -1)  # so that neither means nor sums from the first on agree
    alone = np.allclose(at(tried[fewer]), seen[fewer], rtol=EQUAL, atol=EQUAL)
    steps = np.diff(seen)
    if not (same and alone and (np.all(steps > 0) or np.all(steps < 0))):
        raise _no_inverse(name)
    return Transformation(at, lower, upper)


def _no_inverse(name: str) -> InputError:
    return InputError(
        f"synthetic records can't be brought back to column {name!r} from what the model observes: write "
        f"observed=data[{name!r}] (whole numbers need integer = true in the schema), or a function of it that rises or "
        f"falls all the way between its bounds, with constants that are public, such as pt.log(data[{name!r}]) or "
        f"(data[{name!r}] - 10) / 5"
    )
