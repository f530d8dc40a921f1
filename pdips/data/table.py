"""The confidential table: records checked against a schema, as codes; and codes turned
back into records.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import pandas as pd
import pyarrow as pa

from pdips.arrays import FloatArray, IntArray
from pdips.data import counted as counting
from pdips.data.coding import (
    CellError,
    check_type,
    encode,
    exchange_commas,
    numbers,
    person_keys,
    refuse_for,
    value_hashes,
)
from pdips.data.databases import snapshot, snapshots
from pdips.data.dates import dates
from pdips.data.readers import is_large, open_batches, read_frame, to_pandas
from pdips.data.rules import Rule, barred, lowest
from pdips.data.schema import Column, Schema
from pdips.errors import DataError, InputError

# How often numbers that break the order of a rule are drawn again within their bins
MOST_DRAWS = 200


class Table:
    """Records of a confidential table, checked against its schema.

    The only type that holds confidential values: neither its ``repr`` nor a message
    shows one, nor how many there are.

    Parameters
    ----------
    frame : DataFrame, dict of columns or pyarrow.Table
        One row a record; the columns are those of the schema, and the person key if the
        schema names one.
    schema : Schema
        What is public about the table.

    Attributes
    ----------
    schema : Schema
        As given.
    frame : DataFrame
        As given, for evaluation inside, without columns that are ignored; dates,
        clipped numbers and trimmed text as they are read. Of a counted table: the
        values of its public numeric columns.
    codes : dict of str to ndarray of int64, shape (rows,)
        Level or bin of each row, ``n_values`` for a missing value. Numeric columns
        without bins have none.
    counts : ndarray of int64, shape (rows,), or None
        How many records each row stands for, in a table that was counted; None where
        every row is a record.

    Raises
    ------
    InputError
        If a column is missing, in excess or of a type that can't be coded.
    DataError
        If a value lies outside its column's levels or bounds or is missing without
        leave, a combination is impossible, a person has too many records, or there are
        no records.

    Examples
    --------
    >>> Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    Table(columns=['age', 'sex', 'race', ...])
    """

    partitioned: ClassVar[bool] = False

    def __init__(
        self, frame: pd.DataFrame | dict[str, Any] | pa.Table, schema: Schema
    ) -> None:
        is_table = isinstance(frame, (pd.DataFrame, dict, pa.Table))
        if not is_table or not isinstance(schema, Schema):
            raise InputError(
                f"a Table is made of a DataFrame, a dict of columns or an Arrow "
                f"table, and a Schema; got "
                f"{type(frame).__name__} and {type(schema).__name__}"
            )
        self._check(_copied(frame), schema)

    @classmethod
    def _of_frame(cls, frame: pd.DataFrame, schema: Schema) -> Self:
        """Return the table of a frame that was just read, and that no one else has."""
        table = cls.__new__(cls)
        table._check(frame, schema)
        return table

    def _check(self, frame: pd.DataFrame, schema: Schema) -> None:
        """Check and code records, and keep them; the frame must change no more."""
        self.schema = schema
        check_columns(frame, schema)
        if not len(frame):
            raise DataError("the table has no records")
        self.counts: IntArray | None = None
        self._given = frame
        self.codes: dict[str, IntArray] = {}
        cleaned = self._coded(frame)
        self.frame = frame
        if cleaned or len(_known(schema)) < frame.shape[1]:
            self.frame = frame[_known(schema)].copy()
        for name, values in cleaned.items():
            self.frame[name] = values
        refuse_for([*self.impossible(), *_crowded(frame, schema)])

    def _coded(self, frame: pd.DataFrame) -> dict[str, Any]:
        """Code all columns, or refuse the table; return those that are kept otherwise
        than they are given.
        """
        cleaned = dict[str, Any]()
        problems: list[DataError] = []
        for name, column in self.schema.columns.items():
            has_commas = self.schema.has_commas(column)
            is_changed = has_commas or column.trim or column.out_of_range == "clip"
            try:
                cells = exchange_commas(frame[name]) if has_commas else frame[name]
                if column.is_categorical or column.is_binned:
                    self.codes[name] = encode(name, cells, column)
                if not column.is_categorical:
                    checked = numbers(name, cells, column)
                    if is_changed or column.type == "date":
                        cleaned[name] = number_array(column, checked)
                elif is_changed:
                    cleaned[name] = level_array(column).take(self.codes[name])
            except CellError as error:
                problems.append(error)
        refuse_for(problems)
        return cleaned

    def __repr__(self) -> str:
        return f"Table(columns={list(self.schema.columns)})"

    def __len__(self) -> int:
        raise InputError(
            "a Table tells no length: n_records has it, which is "
            "confidential under add-remove"
        )

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "a Table isn't pickled: the copy would hold confidential "
            "records outside of its folder"
        )

    @property
    def n_records(self) -> int:
        """Number of records: public for replace-one neighbours, confidential for
        add-remove.
        """
        return len(self.frame) if self.counts is None else int(self.counts.sum())

    @classmethod
    def read(cls, path: Any, schema: Schema, *, counted: bool | None = None) -> Self:
        """Read a ``.csv``, ``.csv.gz`` or ``.parquet`` file, one of Stata, SPSS or SAS,
        or a table in a database.

        The first line of a ``.csv`` names the columns. The others are ``.dta``,
        ``.sav``, ``.zsav``, ``.por``, ``.sas7bdat`` and ``.xpt``, and need
        ``pdips[files]``. Databases need ``pdips[databases]``.

        Parameters
        ----------
        path : path, address or Ibis table
            The file. Addresses are like ``people.duckdb#people`` and
            ``postgresql://host/db#people``.
        schema : Schema
            What is public about the table.
        counted : bool, optional
            Whether to hold distinct records and their counts rather than every record.
            Left out, files of more than two million records (CSV: 200 MB) are counted.
            Tables that can't be (``docs/large_tables.md``) are loaded whole all the
            same.
        """
        separator = schema.csv.separator
        with snapshot(path) as lent:
            is_counted = is_large(lent) if counted is None else counted
            if is_counted:
                key = schema.records.person
                opened = open_batches(lent, key=key, separator=separator)
                check_columns(opened.columns, schema)
                if counting.countable(opened, schema):
                    with suppress(counting.UncountableError):
                        return cls._of_counts(counting.count(opened, schema), schema)
                del opened  # or its query would go on
            return cls._of_frame(read_frame(lent, separator=separator), schema)

    @classmethod
    def of_households(cls, households: Any, members: Any, schema: Schema) -> Self:
        """Return the table with a record a household, of the tables of households and
        of their members.

        Parameters
        ----------
        households, members : path, DataFrame, dict, pyarrow.Table or Ibis table
            Both with the key that the schema names.
        schema : Schema
            With ``members``.
        """
        if schema.members is None:
            raise InputError("a table of members needs [members] in the schema")
        declared = schema.members
        with snapshots(households, members) as lent:
            homes, people = (_as_frame(one, schema) for one in lent)
        check_columns(people, schema.of_members())
        if not homes.columns.is_unique:
            raise InputError("the table of households has two columns of the same name")
        ranks = np.zeros(len(people))
        # no household need have members
        if len(people):
            alone = cls._of_frame(people, schema.of_members())
            if declared.order is not None:
                ranks = alone.sort_key(declared.order)
                if not declared.columns[declared.order].is_categorical:
                    ranks = -ranks  # the largest number comes first
        return cls._of_frame(declared.joined(homes, people, ranks), schema)

    @classmethod
    def _of_counts(cls, counted: counting.Counted, schema: Schema) -> Self:
        """Return a table whose rows are distinct records, after the checks that are
        left.
        """
        if not len(counted.counts):
            raise DataError("the table has no records")
        table = cls.__new__(cls)
        table.schema = schema
        table.counts = counted.counts
        table.fingerprint = counted.fingerprint
        numbers_of = {
            n: values[counted.codes[n]] for n, values in counted.values.items()
        }
        rows = pd.RangeIndex(len(counted.counts))
        table.frame = pd.DataFrame(numbers_of, index=rows)
        table.codes = {}
        for name, column in schema.columns.items():
            if name in numbers_of and column.is_binned:
                table.codes[name] = encode(name, table.frame[name], column)
            elif name not in numbers_of:
                table.codes[name] = counted.codes[name]
        problems = [*table.impossible()]
        if counted.crowded:
            problems.append(_crowd(schema))
        refuse_for(problems)
        return table

    def total(self, statistic: Callable[["Table"], IntArray]) -> IntArray:
        """Return whole numbers of the table; where it is in many files, their sum over
        these.
        """
        return statistic(self)

    def hold(self, base: Callable[["Table"], IntArray]) -> None:
        """Count what others will be derived from, where the table is in many files: in
        the pass that checks its records.
        """

    def binned(self, name: str, column: Column) -> IntArray:
        """Return the bin of each row in a numeric column, by the bins of ``column``,
        which is this one but for them.
        """
        return encode(name, self.frame[name], column)

    def count(self, place: IntArray, n_places: int) -> IntArray:
        """Return how many records are in each of some places, given the place of each
        row.
        """
        return tally(place, self.counts, n_places)

    def repeats(self, rows: IntArray) -> IntArray:
        """Return rows, each as often as there are records of it."""
        return rows if self.counts is None else np.repeat(rows, self.counts[rows])

    def spelt(self, name: str) -> Any:
        """Return a public column as the schema spells its values, in an array with
        ``take``.
        """
        column = self.schema.columns[name]
        if column.is_categorical:
            return level_array(column).take(self.codes[name])
        return number_array(column, numbers(name, self.frame[name], column))

    def public_part(self) -> "Table":
        """Return the public columns of all records, sorted: the order of the file may
        show what isn't public.
        """
        names = self.schema.public_columns
        by_value = [self.sort_key(name) for name in reversed(names)]
        # as cells are ordered
        by_level = [self.codes[name] for name in reversed(names) if name in self.codes]
        if names:
            rows = self.repeats(np.lexsort([*by_value, *by_level]))
        else:
            rows = np.zeros(self.n_records, dtype=np.int64)
        part = type(self).__new__(type(self))
        part.schema = self.schema
        part.counts = None
        held = [name for name in names if name in self.frame]
        part.frame = self.frame[held].take(rows).reset_index(drop=True)
        part.codes = {
            name: self.codes[name][rows] for name in names if name in self.codes
        }
        return part

    def viewed(self, schema: Schema) -> "Table":
        """Return the same records as a table of some of the columns, which another
        schema describes alike; nothing is copied, checked or coded again.
        """
        columns = self.schema.columns
        if any(columns.get(name) != of for name, of in schema.columns.items()):
            raise InputError("the schema describes other columns than the table has")
        part = Table.__new__(Table)
        part.schema = schema
        part.counts = self.counts
        part.frame = self.frame[[name for name in schema.columns if name in self.frame]]
        part.codes = {
            name: self.codes[name] for name in schema.columns if name in self.codes
        }
        return part

    def sort_key(self, name: str) -> FloatArray:
        """Return numbers that sort a column: codes of levels, and within bins the
        values themselves.
        """
        column = self.schema.columns[name]
        if column.is_categorical:
            return self.codes[name].astype(np.float64)
        return numbers(name, self.frame[name], column)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the records, whatever their order and the schema; as confidential
        as they are.
        """
        names = sorted(map(str, self._given.columns))
        total = np.zeros(len(self._given), dtype=np.uint64)
        for rank, name in enumerate(names):
            weight = np.uint64(counting.record_weight(rank, len(names)))
            with suppress(CellError):  # of an ignored column with nested values
                total += value_hashes(name, self._given[name]) * weight
        return counting.digest_of(pd.util.hash_array(total))

    def impossible(self) -> Iterator[DataError]:
        """Yield what records have that the schema rules out."""
        zeros = self.schema.zeros()
        for combination, codes in zip(self.schema.impossible, zeros, strict=False):
            if self._has(codes):
                levels = {name: map(str, of) for name, of in combination.items()}
                spelt = [f"{name} = {'|'.join(of)}" for name, of in levels.items()]
                yield DataError(
                    f"the table holds a combination that the schema "
                    f"calls impossible: {', '.join(spelt)}"
                )
        for rule in self.schema.rule:
            if self._breaks(rule):
                yield DataError(f"the table breaks a rule of the schema: {rule}")

    def _breaks(self, rule: Rule) -> bool:
        columns = self.schema.columns
        if not rule.ordered:
            return any(map(self._has, barred([rule], columns)))
        values = {
            name: numbers(name, self.frame[name], columns[name])
            for name in rule.ordered
        }
        return bool(rule.broken(values).any())

    def _has(self, codes: Mapping[str, list[int]]) -> bool:
        """Whether a record has these codes in all of these columns."""
        parts = [np.isin(self.codes[name], wanted) for name, wanted in codes.items()]
        return bool(np.logical_and.reduce(parts).any())


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A statistic whose numbers follow from those of another one: of a table in many
    files they need no further reading.

    Parameters
    ----------
    base : callable
        Takes a table and returns whole numbers that are sums over records. Two are the
        same if they are equal.
    of : callable
        Takes these numbers and returns those of the statistic. Linear, so that it is
        all the same whether files are added up before or after it.
    alone : callable
        Takes a table and returns the numbers of the statistic, where nothing else is
        asked.
    """

    base: Callable[[Table], IntArray]
    of: Callable[[IntArray], IntArray]
    alone: Callable[[Table], IntArray]

    def __call__(self, table: Table) -> IntArray:
        """Return the numbers of a table that is at hand."""
        return self.alone(table)


def are_two(table: Any, schema: Schema) -> bool:
    """Whether a table is given as two, of households and of members, which must be as
    the schema says.
    """
    is_two = isinstance(table, tuple) and len(table) == 2
    if is_two != (schema.members is not None):
        raise InputError(
            "[members] in the schema needs two tables, of households "
            "and members (--members); else one"
        )
    return is_two


def _as_frame(table: Any, schema: Schema) -> pd.DataFrame:
    if isinstance(table, (pd.DataFrame, dict, pa.Table)):
        return _copied(table)
    return read_frame(table, separator=schema.csv.separator)


def _copied(table: pd.DataFrame | dict[str, Any] | pa.Table) -> pd.DataFrame:
    """Return a frame that shares no memory with what a caller may change later.

    What is counted, and what the digest is of, has to be what was checked.
    """
    if isinstance(table, pa.Table):
        # Arrow doesn't copy arrays of numpy, nor files that are mapped into memory
        try:
            return to_pandas(copy.deepcopy(table))
        except pa.ArrowException:
            raise InputError("the Arrow table is damaged") from None
    frame = pd.DataFrame(table, copy=True)
    for number, kind in enumerate(frame.dtypes):
        # pandas copies no memory of Arrow, which others can't change through pandas
        is_arrow = isinstance(kind, pd.ArrowDtype)
        if is_arrow or getattr(kind, "storage", None) == "pyarrow":
            cells: Any = copy.deepcopy(frame.iloc[:, number].array)
            frame.isetitem(number, cells)
    return frame


def _known(schema: Schema) -> list[str]:
    person = schema.records.person
    return [*schema.columns, person] if person else [*schema.columns]


def check_columns(frame: pd.DataFrame, schema: Schema) -> None:
    """Refuse columns that aren't those of the schema, or are of a type that can't be
    coded.
    """
    if not frame.columns.is_unique:
        raise InputError("the table has two columns of the same name")
    wanted = {*_known(schema)}
    given = {*frame.columns}
    missing = sorted(wanted - given)
    problems = [
        f"column {name!r} of the schema is not in the table" for name in missing
    ]
    if not problems:  # else what looks like names may be a record
        problems += _in_excess(given - wanted, schema)
    dates_of = {n for n, column in schema.columns.items() if column.type == "date"}
    for name in sorted(wanted & given):
        try:
            check_type(name, frame[name], is_date=name in dates_of)
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError("; ".join(problems))


def _in_excess(others: Set[Any], schema: Schema) -> Iterator[str]:
    """Yield what to do with columns of a table that its schema neither has nor
    ignores.
    """
    if isinstance(schema.ignore, bool):
        names = [] if schema.ignore else sorted(map(str, others))
    else:
        names = sorted(map(str, others - {*schema.ignore}))
    if not names:
        return
    which = f"column {names[0]!r} of the table is"
    if len(names) > 1:
        which = f"{len(names)} columns of the table are"
    yield (
        f"{which} not in the schema; describe what is needed, or add to "
        f"its first lines: ignore = {json.dumps(names, ensure_ascii=False)}"
    )


def _crowded(frame: pd.DataFrame, schema: Schema) -> Iterator[DataError]:
    person = schema.records.person
    cap = schema.records.max_per_person
    if person is None:
        return
    positions, keys = person_keys(person, frame[person])
    persons = pd.factorize(keys)[0][positions[positions >= 0]]
    if np.bincount(persons, minlength=1).max() > cap:
        yield _crowd(schema)


def _crowd(schema: Schema) -> DataError:
    person = schema.records.person
    cap = schema.records.max_per_person
    return DataError(
        f"column {person!r}: a person has more records than "
        f"records.max_per_person = {cap} allows"
    )


def tally(place: IntArray, counts: IntArray | None, n_places: int) -> IntArray:
    """Return how many records are in each of some places, where a row stands for
    ``counts`` records, or for one.

    Exact: sums of whole numbers below 2^53 are.
    """
    if counts is None:
        return np.bincount(place, minlength=n_places)
    return np.bincount(place, weights=counts, minlength=n_places).astype(np.int64)


def decode(
    schema: Schema, codes: Mapping[str, IntArray], rng: np.random.Generator
) -> pd.DataFrame:
    """Turn codes into records: levels as they are spelt, numbers drawn evenly inside
    their bins.
    """
    columns = {name: schema.columns[name] for name in codes}
    drawn = {
        name: _draw_inside(column, codes[name], rng)
        for name, column in columns.items()
        if not column.is_categorical
    }
    ordered = [rule for rule in schema.rule if rule.ordered]
    rules = [rule for rule in ordered if {*drawn} >= {*rule.ordered}]
    if rules:
        _put_in_order(rules, columns, codes, drawn, rng)
    cells = dict[str, Any]()
    for name, column in columns.items():
        if column.is_categorical:
            cells[name] = level_array(column).take(codes[name])
        else:
            cells[name] = number_array(column, drawn[name])
    return pd.DataFrame(cells)


def _put_in_order(
    rules: Sequence[Rule],
    columns: Mapping[str, Column],
    codes: Mapping[str, IntArray],
    drawn: dict[str, FloatArray],
    rng: np.random.Generator,
) -> None:
    """Draw numbers again within their bins where they break the order of a rule."""
    names = list(dict.fromkeys(name for rule in rules for name in rule.ordered))
    for _ in range(MOST_DRAWS):
        rows = _out_of_order(rules, drawn)
        if not len(rows):
            return
        for name in names:
            drawn[name][rows] = _draw_inside(columns[name], codes[name][rows], rng)
    # the few that are left take the lowest numbers that are in order
    rows = _out_of_order(rules, drawn)
    low = {name: _edges(columns[name], codes[name][rows])[0] for name in names}
    for name, values in lowest(rules, low).items():
        drawn[name][rows] = values


def _out_of_order(rules: Sequence[Rule], drawn: Mapping[str, FloatArray]) -> IntArray:
    broken = [rule.broken(drawn) for rule in rules]
    return np.flatnonzero(np.logical_or.reduce(broken))


def number_array(column: Column, drawn: FloatArray) -> Any:
    """Give numbers, NaN where missing, the type that the schema calls for, whether or
    not any is missing.
    """
    missing = np.isnan(drawn)
    if column.type == "date" and column.unit != "year":
        days = dates(np.where(missing, 0, drawn), column.unit)
        return pd.Series(np.where(missing, np.datetime64("NaT", "s"), days)).array
    codes = [code for code in column.missing_codes if not isinstance(code, str)]
    whole = drawn.copy()
    whole[missing] = codes[0] if codes else 0
    typed = whole.astype(np.int64) if column.integer else whole
    if codes or not column.missing:
        return typed
    kind: Any = "Int64" if column.integer else "Float64"
    nullable: Any = pd.Series(typed).astype(kind).array
    nullable[missing] = pd.NA
    return nullable


def check_representable(schema: Schema) -> None:
    """Check, before anything is spent, that every level and bin of a schema can be
    written to a file.
    """
    for name, column in schema.columns.items():
        if column.is_categorical or column.is_binned:
            codes = {name: np.arange(column.n_levels)}
            try:
                pa.Table.from_pandas(decode(schema, codes, np.random.default_rng()))
            except (TypeError, ValueError, OverflowError):
                raise InputError(
                    f"column {name!r} has levels, bins or missing codes "
                    f"that no file could hold"
                ) from None


def level_array(column: Column) -> Any:
    levels = list(column.levels)
    # a double among whole numbers makes doubles of all
    kind = next(
        kind
        for kind in (str, float, bool, int)
        if any(isinstance(level, kind) for level in levels)
    )
    if not column.missing:
        return pd.Series(levels, dtype=kind).array
    codes = [
        code for code in column.missing_codes if isinstance(code, str) == (kind is str)
    ]
    if codes and kind is not bool:
        return pd.Series([*levels, codes[0]], dtype=kind).array
    dtype: Any = {bool: "boolean", int: "Int64", float: "Float64", str: "str"}[kind]
    return pd.Series([*levels, None], dtype=dtype).array


def _draw_inside(
    column: Column, codes: IntArray, rng: np.random.Generator
) -> FloatArray:
    """Return numbers drawn evenly inside bins, NaN where they are missing."""
    low, high = _edges(column, np.minimum(codes, column.n_values - 1))
    if column.integer:
        whole = rng.integers(low.astype(np.int64), high.astype(np.int64))
        drawn = whole.astype(np.float64)
    else:
        position = rng.random(len(codes))
        drawn = low + (high - low) * position
        if column.scale == "log":
            drawn = low * (high / low) ** position
        drawn = np.clip(drawn, low, high)
    return np.where(codes == column.n_values, np.nan, drawn)


def _edges(column: Column, codes: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the bounds of bins, NaN where values are missing."""
    edges = np.append(column.edges, np.nan)
    return np.where(codes == column.n_values, np.nan, edges[codes]), edges[codes + 1]
