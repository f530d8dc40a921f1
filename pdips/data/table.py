"""The confidential table: records checked against a schema, as codes; and codes turned back into records."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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
from pdips.data.databases import snapshot
from pdips.data.dates import dates
from pdips.data.readers import is_large, open_batches, read_frame, to_pandas
from pdips.data.rules import barred, lowest
from pdips.data.schema import Column, Schema
from pdips.errors import DataError, InputError

MOST_DRAWS = 200  # How often numbers that break the order of a rule are drawn again within their bins


class Table:
    """Records of a confidential table, checked against its schema.

    The only type that holds confidential values: neither its ``repr`` nor a message shows one, nor how many there are.

    Parameters
    ----------
    frame : DataFrame, dict of columns or pyarrow.Table
        One row a record; the columns are those of the schema, and the person key if the schema names one.
    schema : Schema
        What is public about the table.

    Attributes
    ----------
    schema : Schema
        As given.
    frame : DataFrame
        As given, for evaluation inside, without columns that are ignored; dates, clipped numbers and trimmed text as
        they are read. Of a counted table: the values of its public numeric columns.
    codes : dict of str to ndarray of int64, shape (rows,)
        Level or bin of each row, ``n_values`` for a missing value. Numeric columns without bins have none.
    counts : ndarray of int64, shape (rows,), or None
        How many records each row stands for, in a table that was counted; None where every row is a record.

    Raises
    ------
    InputError
        If a column is missing, in excess or of a type that can't be coded.
    DataError
        If a value lies outside its column's levels or bounds or is missing without leave, a combination is impossible,
        a person has too many records, or there are no records.

    Examples
    --------
    >>> Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    Table(columns=['age', 'sex', 'race', ...])
    """

    partitioned: ClassVar[bool] = False

    def __init__(self, frame: pd.DataFrame | dict[str, Any] | pa.Table, schema: Schema) -> None:
        if isinstance(frame, (dict, pa.Table)):
            frame = _as_frame(frame, schema)
        if not isinstance(frame, pd.DataFrame) or not isinstance(schema, Schema):
            raise InputError(
                f"a Table is made of a DataFrame, a dict of columns or an Arrow table, and a Schema; got "
                f"{type(frame).__name__} and {type(schema).__name__}"
            )
        self.schema = schema
        check_columns(frame, schema)
        if not len(frame):
            raise DataError("the table has no records")
        self.counts: IntArray | None = None
        self.codes: dict[str, IntArray] = {}
        self._given, read = frame, dict[str, Any]()
        problems: list[DataError] = []
        for name, column in schema.columns.items():
            try:
                has_commas = schema.has_commas(column)
                cells = exchange_commas(frame[name]) if has_commas else frame[name]
                if column.is_categorical or column.is_binned:
                    self.codes[name] = encode(name, cells, column)
                if not column.is_categorical:
                    found = numbers(name, cells, column)
                    if column.type == "date" or column.out_of_range == "clip" or has_commas:
                        read[name] = number_array(column, found)
                elif column.trim or has_commas:
                    read[name] = _level_array(column).take(self.codes[name])
            except CellError as error:
                problems.append(error)
        refuse_for(problems)
        self.frame = frame if not read and len(_known(schema)) == frame.shape[1] else frame[_known(schema)].copy()
        for name, values in read.items():
            self.frame[name] = values
        refuse_for([*self.impossible(), *_crowded(frame, schema)])

    def __repr__(self) -> str:
        return f"Table(columns={list(self.schema.columns)})"

    def __len__(self) -> int:
        raise InputError("a Table tells no length: n_records has it, which is confidential under add-remove")

    def __reduce__(self) -> NoReturn:
        raise InputError("a Table isn't pickled: the copy would hold confidential records outside of its folder")

    @property
    def n_records(self) -> int:
        """Number of records: public for replace-one neighbours, confidential for add-remove."""
        return len(self.frame) if self.counts is None else int(self.counts.sum())

    @classmethod
    def read(cls, path: Any, schema: Schema, *, counted: bool | None = None) -> Self:
        """Read a ``.csv``, ``.csv.gz`` or ``.parquet`` file, one of Stata, SPSS or SAS, or a table in a database.

        The first line of a ``.csv`` names the columns. The others are ``.dta``, ``.sav``, ``.zsav``, ``.por``,
        ``.sas7bdat`` and ``.xpt``, and need ``pdips[files]``. Databases need ``pdips[databases]``.

        Parameters
        ----------
        path : path, address or Ibis table
            The file. Addresses are like ``people.duckdb#people`` and ``postgresql://host/db#people``.
        schema : Schema
            What is public about the table.
        counted : bool, optional
            Whether to hold distinct records and their counts rather than every record. Left out, files of more than
            two million records (CSV: 200 MB) are counted. Tables that can't be (``docs/large_tables.md``) are loaded
            whole all the same.
        """
        with snapshot(path) as lent:
            if is_large(lent) if counted is None else counted:
                opened = open_batches(lent, key=schema.records.person, separator=schema.csv.separator)
                check_columns(opened.columns, schema)
                if counting.countable(opened, schema):
                    with suppress(counting.UncountableError):
                        return cls._of_counts(counting.count(opened, schema), schema)
                del opened  # or its query would go on
            return cls(read_frame(lent, separator=schema.csv.separator), schema)

    @classmethod
    def of_households(cls, households: Any, members: Any, schema: Schema) -> Self:
        """Return the table with a record a household, of the tables of households and of their members.

        Parameters
        ----------
        households, members : path, DataFrame, dict of columns, pyarrow.Table, address in a database or Ibis table
            Both with the key that the schema names.
        schema : Schema
            With ``members``.
        """
        if schema.members is None:
            raise InputError("a table of members needs [members] in the schema")
        known = schema.members
        homes, people = (_as_frame(each, schema) for each in (households, members))
        check_columns(people, schema.of_members())
        if not homes.columns.is_unique:
            raise InputError("the table of households has two columns of the same name")
        alone = cls(people, schema.of_members()) if len(people) else None  # no household need have members
        ranks = np.zeros(len(people)) if known.order is None or alone is None else alone.sort_key(known.order)
        largest_first = known.order is not None and not known.columns[known.order].is_categorical
        return cls(known.joined(homes, people, -ranks if largest_first else ranks), schema)

    @classmethod
    def _of_counts(cls, found: counting.Counted, schema: Schema) -> Self:
        """Return a table whose rows are distinct records, after the checks that are left."""
        if not len(found.counts):
            raise DataError("the table has no records")
        table = cls.__new__(cls)
        table.schema, table.counts, table.fingerprint = schema, found.counts, found.fingerprint
        rows = pd.RangeIndex(len(found.counts))
        table.frame = pd.DataFrame({n: values[found.codes[n]] for n, values in found.values.items()}, index=rows)
        table.codes = {
            name: encode(name, table.frame[name], column) if name in found.values else found.codes[name]
            for name, column in schema.columns.items()
            if column.is_categorical or column.is_binned
        }
        refuse_for([*table.impossible(), *([_crowd(schema)] if found.crowded else [])])
        return table

    def total(self, statistic: Callable[["Table"], IntArray]) -> IntArray:
        """Return whole numbers of the table; where it is in many files, their sum over these."""
        return statistic(self)

    def count(self, place: IntArray, n_places: int) -> IntArray:
        """Return how many records are in each of some places, given the place of each row."""
        return tally(place, self.counts, n_places)

    def repeats(self, rows: IntArray) -> IntArray:
        """Return rows, each as often as there are records of it."""
        return rows if self.counts is None else np.repeat(rows, self.counts[rows])

    def spelt(self, name: str) -> Any:
        """Return a public column as the schema spells its values, in an array with ``take``."""
        column = self.schema.columns[name]
        if column.is_categorical:
            return _level_array(column).take(self.codes[name])
        return number_array(column, numbers(name, self.frame[name], column))

    def public_part(self) -> "Table":
        """Return the public columns of all records, sorted: the order of the file may show what isn't public."""
        names = self.schema.public_columns
        by_value = [self.sort_key(name) for name in reversed(names)]
        by_level = [self.codes[name] for name in reversed(names) if name in self.codes]  # as cells are ordered
        rows = self.repeats(np.lexsort([*by_value, *by_level])) if names else np.zeros(self.n_records, dtype=np.int64)
        part = type(self).__new__(type(self))
        part.schema, part.counts = self.schema, None
        held = [name for name in names if name in self.frame]
        part.frame = self.frame[held].take(rows).reset_index(drop=True)
        part.codes = {name: self.codes[name][rows] for name in names if name in self.codes}
        return part

    def sort_key(self, name: str) -> FloatArray:
        """Return numbers that sort a column: codes of levels, and within bins the values themselves."""
        column = self.schema.columns[name]
        if column.is_categorical:
            return self.codes[name].astype(np.float64)
        return numbers(name, self.frame[name], column)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the records, whatever their order and the schema; as confidential as they are."""
        names = sorted(map(str, self._given.columns))
        total = np.zeros(len(self._given), dtype=np.uint64)
        for place, name in enumerate(names):
            weight = np.uint64(counting.record_weight(place, len(names)))
            with suppress(CellError):  # of an ignored column with nested values
                total += value_hashes(name, self._given[name]) * weight
        return counting.digest_of(pd.util.hash_array(total))

    def impossible(self) -> Iterator[DataError]:
        """Yield what records have that the schema rules out."""
        columns = self.schema.columns
        for rule, codes in zip(self.schema.impossible, self.schema.zeros(), strict=False):
            if self._has(codes):
                spelt = ", ".join(f"{name} = {'|'.join(map(str, levels))}" for name, levels in rule.items())
                yield DataError(f"the table holds a combination that the schema calls impossible: {spelt}")
        for kept in self.schema.rule:
            values = {name: numbers(name, self.frame[name], columns[name]) for name in kept.ordered}
            if kept.broken(values).any() if values else any(map(self._has, barred([kept], columns))):
                yield DataError(f"the table breaks a rule of the schema: {kept}")

    def _has(self, codes: Mapping[str, list[int]]) -> bool:
        return bool(np.logical_and.reduce([np.isin(self.codes[name], wanted) for name, wanted in codes.items()]).any())


def are_two(table: Any, schema: Schema) -> bool:
    """Whether a table is given as two, of households and of members, which must be as the schema says."""
    found = isinstance(table, tuple) and len(table) == 2
    if found != (schema.members is not None):
        raise InputError("[members] in the schema needs two tables, of households and members (--members); else one")
    return found


def _as_frame(table: Any, schema: Schema) -> pd.DataFrame:
    if isinstance(table, pd.DataFrame):
        return table
    if isinstance(table, pa.Table):
        return to_pandas(table)
    return pd.DataFrame(table) if isinstance(table, dict) else read_frame(table, separator=schema.csv.separator)


def _known(schema: Schema) -> list[str]:
    return [*schema.columns, *([schema.records.person] if schema.records.person else [])]


def check_columns(frame: pd.DataFrame, schema: Schema) -> None:
    """Refuse columns that aren't those of the schema, or are of a type that can't be coded."""
    if not frame.columns.is_unique:
        raise InputError("the table has two columns of the same name")
    known, there, ignored = {*_known(schema)}, {*frame.columns}, schema.ignore
    more = set[str]() if ignored is True else {*map(str, there - known - {*(ignored or ())})}
    problems = [f"column {name!r} of the schema is not in the table" for name in sorted(known - there)]
    if more and not problems:  # else what looks like names may be a record
        what = f"column {min(more)!r} of the table is" if len(more) == 1 else f"{len(more)} columns of the table are"
        line = f"ignore = {json.dumps(sorted(more), ensure_ascii=False)}"
        problems = [f"{what} not in the schema; describe what is needed, or add to its first lines: {line}"]
    for name in sorted(known & there):
        try:
            check_type(name, frame[name], is_date=name in schema.columns and schema.columns[name].type == "date")
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError("; ".join(problems))


def _crowded(frame: pd.DataFrame, schema: Schema) -> Iterator[DataError]:
    person, cap = schema.records.person, schema.records.max_per_person
    if person is None:
        return
    positions, keys = person_keys(person, frame[person])
    if np.bincount(pd.factorize(keys)[0][positions[positions >= 0]], minlength=1).max() > cap:
        yield _crowd(schema)


def _crowd(schema: Schema) -> DataError:
    person, cap = schema.records.person, schema.records.max_per_person
    return DataError(f"column {person!r}: a person has more records than records.max_per_person = {cap} allows")


def tally(place: IntArray, counts: IntArray | None, n_places: int) -> IntArray:
    """Return how many records are in each of some places, where a row stands for ``counts`` records, or for one.

    Exact: sums of whole numbers below 2^53 are.
    """
    if counts is None:
        return np.bincount(place, minlength=n_places)
    return np.bincount(place, weights=counts, minlength=n_places).astype(np.int64)


def decode(schema: Schema, codes: Mapping[str, IntArray], rng: np.random.Generator) -> pd.DataFrame:
    """Turn codes into records: levels as they are spelt, numbers drawn evenly inside their bins."""
    columns = {name: schema.columns[name] for name in codes}
    drawn = {
        name: _draw_inside(column, codes[name], rng) for name, column in columns.items() if not column.is_categorical
    }
    rules = [rule for rule in schema.rule if rule.ordered and {*drawn} >= {*rule.ordered}]
    for tries in range(MOST_DRAWS + 1 if rules else 0):
        rows = np.flatnonzero(np.logical_or.reduce([rule.broken(drawn) for rule in rules]))
        names = {name for rule in rules for name in rule.ordered} if len(rows) else ()
        again = {name: _draw_inside(columns[name], codes[name][rows], rng) for name in names}
        if tries == MOST_DRAWS and again:  # the few that are left take the lowest numbers that are in order
            again = lowest(rules, {n: _edges(columns[n], codes[n][rows])[0] for n in names})
        for name, values in again.items():
            drawn[name][rows] = values
    return pd.DataFrame(
        {
            name: number_array(column, drawn[name]) if name in drawn else _level_array(column).take(codes[name])
            for name, column in columns.items()
        }
    )


def number_array(column: Column, drawn: FloatArray) -> Any:
    """Give numbers, NaN where missing, the type that the schema calls for, whether or not any is missing."""
    missing = np.isnan(drawn)
    if column.type == "date" and column.unit != "year":
        found = dates(np.where(missing, 0, drawn), column.unit)
        return pd.Series(np.where(missing, np.datetime64("NaT", "s"), found)).array
    code = next((code for code in column.missing_codes if not isinstance(code, str)), None)
    whole = drawn.copy()
    whole[missing] = 0 if code is None else code
    typed = whole.astype(np.int64) if column.integer else whole
    if not column.missing or code is not None:
        return typed
    nullable: Any = pd.Series(typed).astype("Int64" if column.integer else "Float64").array
    nullable[missing] = pd.NA
    return nullable


def check_representable(schema: Schema) -> None:
    """Check, before anything is spent, that every level and bin of a schema can be written to a file."""
    for name, column in schema.columns.items():
        if column.is_categorical or column.is_binned:
            codes = {name: np.arange(column.n_levels)}
            try:
                pa.Table.from_pandas(decode(schema, codes, np.random.default_rng()))
            except (TypeError, ValueError, OverflowError):
                raise InputError(f"column {name!r} has levels, bins or missing codes that no file could hold") from None


def _level_array(column: Column) -> Any:
    levels = list(column.levels)
    kind = next(kind for kind in (str, float, bool, int) if any(isinstance(level, kind) for level in levels))
    same = [code for code in column.missing_codes if isinstance(code, str) == (kind is str)]
    if not column.missing or (same and kind is not bool):
        return pd.Series([*levels, *same[: bool(column.missing)]], dtype=kind).array
    dtype: Any = {bool: "boolean", int: "Int64", float: "Float64", str: "str"}[kind]
    return pd.Series([*levels, None], dtype=dtype).array


def _draw_inside(column: Column, codes: IntArray, rng: np.random.Generator) -> FloatArray:
    """Return numbers drawn evenly inside bins, NaN where they are missing."""
    low, high = _edges(column, np.minimum(codes, column.n_values - 1))
    if column.integer:
        drawn = rng.integers(low.astype(np.int64), high.astype(np.int64)).astype(np.float64)
    else:
        position = rng.random(len(codes))
        drawn = low * (high / low) ** position if column.scale == "log" else low + (high - low) * position
        drawn = np.clip(drawn, low, high)
    return np.where(codes == column.n_values, np.nan, drawn)


def _edges(column: Column, codes: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the bounds of bins, NaN where values are missing."""
    edges = np.append(column.edges, np.nan)
    return np.where(codes == column.n_values, np.nan, edges[codes]), edges[codes + 1]
