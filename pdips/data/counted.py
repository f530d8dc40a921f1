"""Large files counted: distinct records as codes, and how often each occurs, without holding the table.

Arrow reads batches with each column as a dictionary of values and an index into it. A value of a dictionary is checked
and coded once, by the function that codes whole tables; a record is then a number in mixed radix, a sum of look-ups.
"""

import dataclasses
import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import reduce

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.data.coding import (
    CellError,
    HashArray,
    encode,
    exchange_commas,
    numbers,
    person_keys,
    refuse_for,
    value_hashes,
)
from pdips.data.readers import Batches, is_text, to_pandas
from pdips.data.schema import Column, Schema

LARGEST_NUMBER = 2**62
MERGE_RECORDS = 1 << 21
WORKERS = 2
GOLDEN = 0x9E3779B97F4A7C15


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Counted:
    """Distinct records of a table and how often each occurs; as confidential as the table.

    ``codes`` have the level or bin of each distinct record, by column; of a public numeric column its place in
    ``values``, where NaN is missing. ``crowded`` says whether a person has more records than the schema's cap.
    """

    codes: dict[str, IntArray]
    values: dict[str, FloatArray]
    counts: IntArray
    fingerprint: str
    crowded: bool


class UncountableError(Exception):
    """The records can't be told apart by a number: the table has to be read whole."""


def countable(opened: Batches, schema: Schema, *, mixed: bool = True) -> bool:
    """Whether a table can be counted: plain types, and bins for each numeric column that isn't copied as it is.

    ``mixed``: records are told apart by a number, so that there may not be too many cells.
    """
    return (
        not any(rule.ordered for rule in schema.rule)
        and all(_is_plain(kind) for kind in opened.schema.types)
        and all(
            column.is_categorical
            or (column.public and column.type == "number")
            or (column.is_binned and not column.public)
            for column in schema.columns.values()
        )
        and (not mixed or _n_cells(schema) <= LARGEST_NUMBER)
    )


def _n_cells(schema: Schema) -> int:
    return math.prod(c.n_levels for c in schema.columns.values() if c.is_categorical or not c.public)


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    tests = (is_text, pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_boolean)
    return any(test(kind) for test in tests)


def count(opened: Batches, schema: Schema) -> Counted:
    """Count the records of a file, or of a database: distinct ones in the order of their codes.

    A database counts them itself unless a column is no part of the schema, or has numbers that hardly repeat.
    """
    coders = coders_of(opened, schema)
    tally = _Tally(math.prod(coder.radix for coder in coders))
    repeats = all(coder.column and (coder.column.is_categorical or coder.column.integer) for coder in coders)
    distinct = opened.distinct if repeats else None
    for part in _parallel(distinct or opened.batches, coders, weighted=distinct is not None):
        tally.add(*part)
    refuse_for([coder.problem() for coder in coders if coder.problems])
    number, counts = tally.merged()
    return Counted(
        codes={c.name: number // c.stride % c.radix for c in coders if c.column is not None},
        values={c.name: np.array(list(c.known), dtype=np.float64) for c in coders if c.is_copied},
        counts=counts,
        fingerprint=digest(tally.n_records, tally.sum, tally.xor),
        crowded=tally.most_of_a_person_exceed(schema.records.max_per_person),
    )


def record_weight(place: int, n_columns: int) -> int:
    """Return the odd factor of a column's hashes in the hash of a record; ``place`` in the sorted column names."""
    return pow(GOLDEN, n_columns - 1 - place, 1 << 64)


def digest(n_records: int, total: int, parity: int) -> str:
    """Return a fingerprint from the number of records and the sum and the exclusive or of their hashes."""
    return f"{n_records}-{total:016x}-{parity:016x}"


def digest_of(hashes: HashArray) -> str:
    return digest(len(hashes), int(hashes.sum(dtype=np.uint64)), int(np.bitwise_xor.reduce(hashes)))


def sum_of_digests(digests: Iterable[str]) -> str:
    """Return the digest of all records from those of parts of them."""
    n_records = total = parity = 0
    for n, added, mixed in (each.split("-") for each in digests):
        n_records, total, parity = n_records + int(n), (total + int(added, 16)) % (1 << 64), parity ^ int(mixed, 16)
    return digest(n_records, total, parity)


def coded(batch: pa.RecordBatch, coders: Sequence["Coder"], *, hashed: bool) -> tuple[dict[str, IntArray], HashArray]:
    """Return what each column, and the key of persons, adds to the numbers of a batch's records, and their hashes.

    If these aren't wanted, they are zeros, and columns besides are not looked at.
    """
    codes, total = dict[str, IntArray](), np.zeros(len(batch), dtype=np.uint64)
    for coder in coders:
        if hashed or coder.column is not None:
            index, steps, hashes = coder.look_up(batch.column(coder.name))
            if hashed:
                total += hashes.take(index, mode="clip")
            if coder.is_key or coder.column is not None:
                codes[coder.name] = steps.take(index, mode="clip")
    return codes, pd.util.hash_array(total) if hashed else total


def coders_of(opened: Batches, schema: Schema, *, mixed: bool = True) -> list["Coder"]:
    """Return what codes each column: as summands of a number in mixed radix, or each by itself."""
    copied = [name for name, column in schema.columns.items() if column.public and not column.is_categorical]
    room = LARGEST_NUMBER // _n_cells(schema) if mixed else 1
    most_values = int(room ** (1 / len(copied))) if copied else 0
    if copied and most_values < 2:
        raise UncountableError
    names = [*schema.columns, *(str(name) for name in opened.columns if name not in schema.columns)]
    ranks, coders, stride = sorted(names), [], 1
    for name in names:
        column, is_copied = schema.columns.get(name), name in copied
        field = opened.schema.field(name)
        radix = 1 if column is None else most_values if is_copied else column.n_levels
        coders.append(
            Coder(
                name=name,
                column=column,
                is_copied=is_copied,
                has_commas=column is not None and schema.has_commas(column),
                is_key=name == schema.records.person,
                field=field.with_type(field.type.value_type if pa.types.is_dictionary(field.type) else field.type),
                metadata=opened.schema.metadata,
                stride=stride,
                radix=radix,
                weight=record_weight(ranks.index(name), len(names)),
            )
        )
        stride *= radix if mixed else 1
    return coders


@dataclasses.dataclass(kw_only=True, repr=False)
class Coder:
    """Turns the values of one column into summands of a record's number and of its hash."""

    name: str
    column: Column | None
    is_copied: bool
    is_key: bool
    has_commas: bool
    field: pa.Field
    metadata: dict[bytes, bytes] | None
    stride: int
    radix: int
    weight: int
    known: dict[float, int] = dataclasses.field(default_factory=dict)
    problems: list[CellError] = dataclasses.field(default_factory=list)
    _last: tuple[pa.Array, bool, IntArray, HashArray] | None = None
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def problem(self) -> CellError:
        """Return what is wrong in any batch."""
        broken = [rule for problem in self.problems for rule in problem.broken]
        return CellError(self.name, *broken, bounds="".join({problem.bounds for problem in self.problems}))

    def look_up(self, values: pa.Array) -> tuple[NDArray[np.int32], IntArray, HashArray]:
        """Return an index for each record, and what to add to its number and to its hash for each index."""
        found = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        dictionary, index, has_null = found.dictionary, found.indices, found.null_count > 0
        if has_null:
            index = index.fill_null(len(dictionary))
        with self._lock:
            last = self._last
            if last is None or last[1] != has_null or not last[0].equals(dictionary):
                last = self._last = (dictionary, has_null, *self._summands(dictionary, has_null))
        return index.to_numpy(zero_copy_only=False), last[2], last[3]

    def _summands(self, dictionary: pa.Array, has_null: bool) -> tuple[IntArray, HashArray]:
        codes = np.zeros(len(dictionary) + 1, dtype=np.int64)
        cells = dictionary.cast(self.field.type)
        if has_null:  # a missing one comes after them
            cells = pa.concat_arrays([cells, pa.nulls(1, cells.type)])
        whole = pa.table([cells], schema=pa.schema([self.field], metadata=self.metadata))
        values = to_pandas(whole)[self.name]  # as the column would be in a table read whole
        try:
            hashes = value_hashes(self.name, values) * np.uint64(self.weight)
            found = self._codes(exchange_commas(values) if self.has_commas else values)
        except CellError as error:
            self.problems.append(error)
            return codes, codes.view(np.uint64)
        codes[: len(found)] = found
        return codes, hashes

    def _codes(self, values: pd.Series) -> IntArray:
        """Return what each value adds to a record's number, 0 if it is ignored; of a person's key, its hash."""
        if self.column is None and not self.is_key:
            return np.zeros(len(values), dtype=np.int64)
        if self.column is None:
            positions, keys = person_keys(self.name, values)
            return np.append(pd.util.hash_array(keys), np.uint64(0))[positions].view(np.int64)
        if self.is_copied:
            return self._places(numbers(self.name, values, self.column)) * self.stride
        return encode(self.name, values, self.column) * self.stride

    def _places(self, values: FloatArray) -> IntArray:
        keys = [math.nan if math.isnan(value) else value + 0.0 for value in values.tolist()]  # one nan object for all
        places = [self.known.setdefault(key, len(self.known)) for key in keys]
        if len(self.known) > self.radix:
            raise UncountableError
        return np.array(places, dtype=np.int64)


type _Part = tuple[IntArray, IntArray | None, HashArray, HashArray | None]


def _parallel(batches: Iterator[pa.RecordBatch], coders: list[Coder], *, weighted: bool) -> Iterator[_Part]:
    """Number the records of each batch, a few batches at a time."""
    waiting: deque[Future[_Part]] = deque()
    with ThreadPoolExecutor(WORKERS) as pool:
        for batch in batches:
            waiting.append(pool.submit(_numbered, batch, coders, weighted))
            if len(waiting) > WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _numbered(batch: pa.RecordBatch, coders: list[Coder], weighted: bool) -> _Part:
    """Return the number of each record, how often it occurs if that isn't once, its hash, and that of its person."""
    steps, hashes = coded(batch, coders, hashed=True)
    persons, times = None, batch.column(len(coders)).to_numpy() if weighted else None
    for key in (coder.name for coder in coders if coder.is_key):
        known = ~batch.column(key).is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        persons = steps.pop(key).view(np.uint64)[known]
    return reduce(np.add, steps.values()), times, hashes, persons


class _Tally:
    """Sums over all records, and their numbers merged into distinct ones with counts."""

    def __init__(self, n_cells: int) -> None:
        self._n_cells = n_cells
        self.n_records, self.sum, self.xor = 0, 0, 0
        self._number, self._counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._new: list[IntArray] = []
        self._times: list[IntArray] = []
        self._persons: list[HashArray] = []

    def add(self, number: IntArray, times: IntArray | None, hashes: HashArray, persons: HashArray | None) -> None:
        self.n_records += len(number) if times is None else int(times.sum())
        added = hashes if times is None else hashes * times.astype(np.uint64)
        self.sum = (self.sum + int(added.sum(dtype=np.uint64))) % (1 << 64)
        if times is not None:
            self._times.append(times)
            hashes = hashes[times % 2 == 1]
        self.xor ^= int(np.bitwise_xor.reduce(hashes))
        if persons is not None:
            self._persons.append(persons)
        self._new.append(number)
        if sum(map(len, self._new)) >= max(MERGE_RECORDS, len(self._number)):
            self.merged()

    def merged(self) -> tuple[IntArray, IntArray]:
        """Return the distinct numbers so far, and how often each occurs."""
        number = np.concatenate([*self._new, np.empty(0, dtype=np.int64)])
        if self._times:
            new, place = np.unique(number, return_inverse=True)
            times = np.bincount(place, np.concatenate(self._times)).astype(np.int64)
        elif self._n_cells > 4 * len(number):
            new, times = np.unique(number, return_counts=True)
        else:  # counting is quicker than sorting
            times = np.bincount(number)
            new = np.flatnonzero(times)
            times = times[new]
        both, place = np.unique(np.concatenate([self._number, new]), return_inverse=True)
        counts = np.zeros(len(both), dtype=np.int64)
        counts[place[: len(self._number)]] = self._counts
        counts[place[len(self._number) :]] += times
        self._number, self._counts, self._new, self._times = both, counts, [], []
        return both, counts

    def most_of_a_person_exceed(self, cap: int) -> bool:
        """Whether a key occurs more often than the cap. Two keys of one 64-bit hash would count as one person."""
        if not self._persons:
            return False
        keys = np.concatenate(self._persons)
        self._persons = []
        keys.sort()
        return bool((keys[cap:] == keys[:-cap]).any())
