"""The confidential table: records checked against a schema, as codes; and codes turned back into records."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.errors import InputError
from pdips.schema import Column, Schema

IntArray = NDArray[np.int64]


class Table:
    """Records of a confidential table, checked against its schema.

    The only type that holds confidential values: neither its ``repr`` nor a message shows one, nor how many there are.

    Parameters
    ----------
    frame : DataFrame
        One row a record; the columns are those of the schema, and the person key if the schema names one.
    schema : Schema
        What is public about the table.

    Attributes
    ----------
    schema : Schema
        As given.
    frame : DataFrame
        As given, for evaluation inside.
    codes : dict of str to ndarray of int64, shape (records,)
        Level or bin of each record, ``n_values`` for a missing value. Numeric columns without bins have none.

    Raises
    ------
    InputError
        If a column is missing or in excess, a value lies outside its column's levels or bounds or is missing without
        leave, a combination is impossible, a person has too many records, or there are no records.
    """

    def __init__(self, frame: pd.DataFrame, schema: Schema) -> None:
        self.schema = schema
        _check_columns(frame, schema)
        if not len(frame):
            raise InputError("the table has no records")
        self.frame = frame
        self.codes = {
            name: _encode(name, frame[name], column)
            for name, column in schema.columns.items()
            if column.is_categorical or column.is_binned or _check_numeric(name, frame[name], column)
        }
        self._check_impossible()
        _check_persons(frame, schema)

    def __repr__(self) -> str:
        return f"Table(columns={list(self.schema.columns)})"

    @property
    def n_records(self) -> int:
        """Number of records: public for replace-one neighbours, confidential for add-remove."""
        return len(self.frame)

    @classmethod
    def read(cls, path: str | Path, schema: Schema) -> Self:
        """Read a ``.csv`` or ``.parquet`` file; the first line of a ``.csv`` names the columns."""
        return cls(read_frame(path), schema)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the records, whatever their order and the schema; as confidential as they are."""
        total = np.zeros(len(self.frame), dtype=np.uint64)
        for name in sorted(map(str, self.frame.columns)):
            codes, uniques = pd.factorize(self.frame[name], use_na_sentinel=False)
            spelt = np.array([f"{name}={value}" for value in uniques], dtype=object)
            total = total * np.uint64(0x9E3779B97F4A7C15) + pd.util.hash_array(spelt)[codes]
        rows = pd.util.hash_array(total)
        return f"{len(rows)}-{int(rows.sum(dtype=np.uint64)):016x}-{int(np.bitwise_xor.reduce(rows)):016x}"

    def _check_impossible(self) -> None:
        for rule in self.schema.impossible:
            codes = self.schema.rule_codes(rule)
            if np.logical_and.reduce([np.isin(self.codes[name], wanted) for name, wanted in codes.items()]).any():
                spelt = ", ".join(f"{name} = {'|'.join(map(str, levels))}" for name, levels in rule.items())
                raise InputError(f"the table holds a combination that the schema calls impossible: {spelt}")


def read_frame(path: str | Path) -> pd.DataFrame:
    """Read a ``.csv`` (everything as text, empty cells as missing) or ``.parquet`` file.

    Raises
    ------
    InputError
        If the file is missing, of another kind, or damaged.
    """
    file = Path(path)
    if file.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{file} must end in .csv or .parquet")
    if not file.is_file():
        raise InputError(f"{file} doesn't exist or is no file")
    try:
        if file.suffix.lower() == ".csv":
            return pd.read_csv(file, dtype=str, keep_default_na=False, na_values=[""], encoding="utf-8")
        return pd.read_parquet(file, engine="pyarrow")
    except PermissionError:
        raise InputError(f"{file} may not be read") from None
    except (ValueError, OSError, pd.errors.ParserError, pd.errors.EmptyDataError):  # ArrowInvalid is a ValueError
        raise InputError(f"{file} is damaged, or no {file.suffix[1:]} file") from None


def _check_columns(frame: pd.DataFrame, schema: Schema) -> None:
    if not frame.columns.is_unique:
        raise InputError("the table has two columns of the same name")
    known = {*schema.columns, *({schema.records.person} if schema.records.person else ())}
    for name in known - {*frame.columns}:
        raise InputError(f"column {name!r} of the schema is not in the table")
    for name in sorted(map(str, {*frame.columns} - known)):
        raise InputError(f"column {name!r} of the table is not in the schema; describe it there, or take it out")


def _check_persons(frame: pd.DataFrame, schema: Schema) -> None:
    person, cap = schema.records.person, schema.records.max_per_person
    if person is not None and frame[person].value_counts(dropna=True).max() > cap:
        raise InputError(f"column {person!r}: a person has more records than records.max_per_person = {cap} allows")


def _key(value: object) -> str:
    """Spell a level alike whether it comes from a schema, a text file or a typed file."""
    if isinstance(value, (bool, np.bool_)):
        return str(value)
    return str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else str(value)


def _number_key(value: object) -> str:
    """Spell a number alike even if a text file has it as 1994.0."""
    try:
        return _key(float(value)) if isinstance(value, str) else _key(value)
    except ValueError:
        return _key(value)


def _level_codes(column: Column) -> dict[str, int]:
    codes = {_key(level): code for code, level in enumerate(column.levels)}
    for code, level in enumerate(column.levels):
        if isinstance(level, bool):
            codes |= {str(level).lower(): code, str(level).upper(): code}
    return codes | {_key(code): column.n_values for code in column.missing_codes}


def _refuse_undeclared_missing(name: str, column: Column, missing: NDArray[np.bool_]) -> None:
    if missing.any() and not column.missing:
        raise InputError(f"column {name!r} has missing values, which its schema doesn't declare (missing = true)")


def _encode(name: str, values: pd.Series, column: Column) -> IntArray:
    return _encode_levels(name, values, column) if column.is_categorical else _encode_bins(name, values, column)


def _encode_levels(name: str, values: pd.Series, column: Column) -> IntArray:
    positions, uniques = pd.factorize(values)
    known, key = _level_codes(column), _key if isinstance(column.levels[0], (str, bool)) else _number_key
    codes = np.array([*(known.get(key(value), -1) for value in uniques), column.n_values], dtype=np.int64)
    if (codes[:-1] < 0).any():
        raise InputError(f"column {name!r} has values outside the levels of its schema")
    _refuse_undeclared_missing(name, column, positions < 0)
    return codes[positions]


def numbers(name: str, values: pd.Series, column: Column) -> NDArray[np.float64]:
    """Return a numeric column as doubles, NaN where missing, after checking it against its bounds."""
    positions, uniques = pd.factorize(values)
    codes = {_key(code) for code in column.missing_codes}
    missing = np.array([*(bool(codes) and _number_key(value) in codes for value in uniques), True])[positions]
    _refuse_undeclared_missing(name, column, missing)
    known = pd.to_numeric(values[~missing], errors="coerce").to_numpy(dtype=np.float64)
    lower, upper = float(column.lower or 0), float(column.upper or 0)
    if np.isnan(known).any():
        raise InputError(f"column {name!r} has values that are no numbers")
    if ((known < lower) | (known > upper)).any():
        raise InputError(f"column {name!r} has values outside its bounds, {lower:g} to {upper:g}")
    if column.integer and (known % 1 != 0).any():
        raise InputError(f"column {name!r} must hold whole numbers")
    cleaned = np.full(len(values), np.nan)
    cleaned[~missing] = known
    return cleaned


def _check_numeric(name: str, values: pd.Series, column: Column) -> bool:
    numbers(name, values, column)
    return False


def _encode_bins(name: str, values: pd.Series, column: Column) -> IntArray:
    cleaned = numbers(name, values, column)
    codes = np.searchsorted(column.edges, cleaned, side="right") - 1
    return np.where(np.isnan(cleaned), column.n_values, np.minimum(codes, column.n_values - 1)).astype(np.int64)


def decode(schema: Schema, codes: Mapping[str, IntArray], rng: np.random.Generator) -> pd.DataFrame:
    """Turn codes into records: levels as they are spelt, numbers drawn evenly inside their bins.

    Parameters
    ----------
    schema : Schema
        Says what each code means.
    codes : mapping of str to ndarray of int64, shape (records,)
        Level or bin of each record, ``n_values`` for missing.
    rng : numpy.random.Generator
        For the position within a bin, which depends on no record.

    Returns
    -------
    DataFrame
        The columns of ``codes``, in their order.
    """
    return pd.DataFrame({name: _decode(schema.columns[name], column, rng) for name, column in codes.items()})


def _decode(column: Column, codes: IntArray, rng: np.random.Generator) -> Any:
    if column.is_categorical:
        return _level_array(column).take(codes)
    numbers_drawn = _draw_inside(column, np.minimum(codes, column.n_values - 1), rng)
    missing = codes == column.n_values
    if not missing.any():
        return numbers_drawn.astype(np.int64) if column.integer else numbers_drawn
    code = next((code for code in column.missing_codes if isinstance(code, (int, float))), None)
    drawn = pd.array(numbers_drawn.astype(np.int64), dtype="Int64") if column.integer else pd.array(numbers_drawn)
    drawn[missing] = pd.NA if code is None else code
    return drawn


def _level_array(column: Column) -> Any:
    levels = list(column.levels)
    if not column.missing:
        return pd.Series(levels).array
    like = [code for code in column.missing_codes if isinstance(code, str) == isinstance(levels[0], str)]
    if like and not isinstance(levels[0], bool):
        return pd.Series([*levels, like[0]]).array
    dtype: Any = {bool: "boolean", int: "Int64", float: "Float64"}.get(type(levels[0]), "str")
    return pd.Series([*levels, None], dtype=dtype).array


def _draw_inside(column: Column, codes: IntArray, rng: np.random.Generator) -> NDArray[np.float64]:
    low, high = column.edges[codes], column.edges[codes + 1]
    if column.integer:
        return rng.integers(low.astype(np.int64), high.astype(np.int64)).astype(np.float64)
    position = rng.random(len(codes))
    if column.scale == "log":
        return np.clip(low * (high / low) ** position, low, high)
    return np.clip(low + (high - low) * position, low, high)
