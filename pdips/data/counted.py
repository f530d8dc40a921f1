"""Large files counted: distinct records as codes, and how often each occurs, without
holding the table.

Arrow reads batches with each column as a dictionary of values and an index into it. A
value of a dictionary is checked and coded once, by the function that codes whole
tables; a record is then a number in mixed radix, a sum of look-ups.
"""

import dataclasses
import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import reduce
from typing import Any

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
from pdips.errors import DataError

LARGEST_NUMBER = 2**62
MERGE_RECORDS = 1 << 21
MOST_HASHED = 1 << 21
"""Whole numbers of a column whose hashes are kept."""

WORKERS = 2
GOLDEN = 0x9E3779B97F4A7C15


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Counted:
    """Distinct records of a table and how often each occurs; as confidential as the
    table.

    ``codes`` have the level or bin of each distinct record, by column; of a public
    numeric column its place in ``values``, where NaN is missing. ``crowded`` says
    whether a person has more records than the schema's cap.
    """

    codes: dict[str, IntArray]
    values: dict[str, FloatArray]
    counts: IntArray
    fingerprint: str
    crowded: bool


class UncountableError(Exception):
    """The records can't be told apart by a number: the table has to be read whole."""


def countable(opened: Batches, schema: Schema, *, mixed: bool = True) -> bool:
    """Whether a table can be counted: plain types, and bins for each numeric column
    that isn't copied as it is.

    ``mixed``: records are told apart by a number, so that there may not be too many
    cells.
    """
    if any(rule.ordered for rule in schema.rule):
        return False
    if not all(map(_is_plain, opened.schema.types)):
        return False
    columns = schema.columns.values()
    if not mixed:
        return all(_has_codes(one) or _is_looked_up(one, schema) for one in columns)
    return all(map(_has_codes, columns)) and _n_cells(schema) <= LARGEST_NUMBER


def _has_codes(column: Column) -> bool:
    """Whether a column has levels or bins, or numbers that are copied."""
    if column.is_categorical:
        return True
    return column.type == "number" if column.public else column.is_binned


def _is_looked_up(column: Column, schema: Schema) -> bool:
    """Whether a number without bins can be read by the distinct values of a batch."""
    return column.type == "number" and not schema.has_commas(column)


def _n_cells(schema: Schema) -> int:
    columns = schema.columns.values()
    return math.prod(c.n_levels for c in columns if c.is_categorical or not c.public)


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    is_double = pa.types.is_float32(kind) or pa.types.is_float64(kind)
    is_number = is_double or pa.types.is_integer(kind)
    return is_number or pa.types.is_boolean(kind) or is_text(kind)


def count(opened: Batches, schema: Schema) -> Counted:
    """Count the records of a file, or of a database: distinct ones in the order of
    their codes.

    A database counts them itself unless a column is no part of the schema, or has
    numbers that hardly repeat.
    """
    coders = coders_of(opened, schema)
    tally = _Tally(math.prod(coder.radix for coder in coders))
    distinct = opened.distinct if all(map(_repeats, coders)) else None
    batches = distinct or opened.batches
    for part in _parallel(batches, coders, weighted=distinct is not None):
        if part is not None:
            tally.add(*part)
    refuse_for([coder.problem() for coder in coders if coder.problems])
    number, counts = tally.merged()
    codes = dict[str, IntArray]()
    values = dict[str, FloatArray]()
    for coder in coders:
        if coder.column is not None:
            codes[coder.name] = number // coder.stride % coder.radix
        if coder.is_copied:
            values[coder.name] = np.array([*coder.known], dtype=np.float64)
    return Counted(
        codes=codes,
        values=values,
        counts=counts,
        fingerprint=digest(tally.n_records, tally.sum, tally.xor),
        crowded=tally.most_of_a_person_exceed(schema.records.max_per_person),
    )


def _repeats(coder: "Coder") -> bool:
    """Whether many records may have one value of a column."""
    column = coder.column
    return column is not None and (column.is_categorical or column.integer)


def record_weight(place: int, n_columns: int) -> int:
    """Return the odd factor of a column's hashes in the hash of a record; ``place`` in
    the sorted column names.
    """
    return pow(GOLDEN, n_columns - 1 - place, 1 << 64)


def digest(n_records: int, total: int, parity: int) -> str:
    """Return a fingerprint from the number of records and the sum and the exclusive or
    of their hashes.
    """
    return f"{n_records}-{total:016x}-{parity:016x}"


def digest_of(hashes: HashArray) -> str:
    total = int(hashes.sum(dtype=np.uint64))
    return digest(len(hashes), total, int(np.bitwise_xor.reduce(hashes)))


def sum_of_digests(digests: Iterable[str]) -> str:
    """Return the digest of all records from those of parts of them."""
    n_records = total = parity = 0
    for n, added, mixed in (one.split("-") for one in digests):
        n_records = n_records + int(n)
        total = (total + int(added, 16)) % (1 << 64)
        parity = parity ^ int(mixed, 16)
    return digest(n_records, total, parity)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class CodedBatch:
    """The records of a batch.

    ``codes`` have what each column, and the key of persons, adds to a record's number;
    ``cells`` of each numeric column its distinct values, and each record's place among
    them; ``hashes`` are those of records.
    """

    codes: dict[str, IntArray]
    cells: dict[str, tuple[pd.Series, NDArray[np.integer]]]
    hashes: HashArray


def coded(batch: pa.RecordBatch, coders: Sequence["Coder"]) -> CodedBatch | None:
    """Return the records of a batch; None if it has a value that can't be coded: its
    coder holds the problem. All columns are looked at before, so that all problems are
    named.
    """
    looked_up = [coder.look_up(batch.column(coder.name)) for coder in coders]
    codes = dict[str, IntArray]()
    cells = dict[str, tuple[pd.Series, NDArray[np.integer]]]()
    total = np.zeros(len(batch), dtype=np.uint64)
    for coder, found in zip(coders, looked_up, strict=True):
        if found is None:
            return None
        places, summands = found
        total += summands.hashes[places]
        if coder.has_codes:
            codes[coder.name] = summands.steps[places]
        if coder.column is not None and not coder.column.is_categorical:
            cells[coder.name] = summands.cells, places
    return CodedBatch(codes=codes, cells=cells, hashes=pd.util.hash_array(total))


def coders_of(opened: Batches, schema: Schema, *, mixed: bool = True) -> list["Coder"]:
    """Return what codes each column: as summands of a number in mixed radix, or each by
    itself.
    """
    most_values = _most_values(schema) if mixed else 1
    if most_values < 2 and any(map(_is_copied, schema.columns.values())):
        raise UncountableError
    others = [str(name) for name in opened.columns if name not in schema.columns]
    names = [*schema.columns, *others]
    ranks = sorted(names)
    coders = []
    stride = 1
    for name in names:
        column = schema.columns.get(name)
        is_copied = column is not None and _is_copied(column)
        radix = most_values
        if not is_copied:
            radix = column.n_levels if column and _has_codes(column) else 1
        field = _field_of_values(opened.schema.field(name))
        has_commas = column is not None and schema.has_commas(column)
        weight = record_weight(ranks.index(name), len(names))
        coder = Coder(
            name=name,
            column=column,
            is_copied=is_copied,
            has_commas=has_commas,
            is_key=name == schema.records.person,
            field=field,
            metadata=opened.schema.metadata,
            stride=stride,
            radix=radix,
            weight=weight,
        )
        coders.append(coder)
        if mixed:
            stride *= radix
    return coders


def _is_copied(column: Column) -> bool:
    return column.public and not column.is_categorical


def _most_values(schema: Schema) -> int:
    """Return how many values each copied column may have, so that the number of a
    record is below the largest.
    """
    n_copied = sum(map(_is_copied, schema.columns.values()))
    room = LARGEST_NUMBER // _n_cells(schema)
    return int(room ** (1 / max(n_copied, 1)))


def _field_of_values(field: pa.Field) -> pa.Field:
    """Return a field of the values themselves, where batches have a dictionary."""
    if pa.types.is_dictionary(field.type):
        return field.with_type(field.type.value_type)
    return field


@dataclasses.dataclass(kw_only=True, repr=False)
class Coder:
    """Turns the values of one column into summands of a record's number and of its
    hash.
    """

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
    _hashed: "pd.Series[Any]" = dataclasses.field(
        default_factory=lambda: pd.Series(np.zeros(0, np.uint64), np.zeros(0, np.int64))
    )
    _last: tuple[pa.Array, bool, "_Summands | None"] | None = None
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def problem(self) -> CellError:
        """Return what is wrong in any batch."""
        broken = [rule for problem in self.problems for rule in problem.broken]
        bounds = {problem.bounds for problem in self.problems}
        return CellError(self.name, *broken, bounds="".join(bounds))

    def forget_problems(self) -> None:
        """Begin another file: what is wrong in one isn't wrong in the next."""
        self.problems = []
        if self._last is not None and self._last[2] is None:
            self._last = None

    @property
    def has_codes(self) -> bool:
        """Whether values add to a record's number, or are keys of persons."""
        if self.column is None:
            return self.is_key
        return self.is_copied or _has_codes(self.column)

    def look_up(
        self, values: pa.Array
    ) -> tuple[NDArray[np.integer], "_Summands"] | None:
        """Return an index for each record, and what to add to its number and to its
        hash for each index; None if a value can't be coded.
        """
        if not pa.types.is_dictionary(values.type):
            values = values.dictionary_encode()
        dictionary = values.dictionary
        has_null = values.null_count > 0
        index = values.indices
        if has_null:
            # of a type that holds one place more than there are values
            index = index.cast(pa.int64()).fill_null(len(dictionary))
        with self._lock:
            last = self._last
            if last is None or last[1] != has_null or not last[0].equals(dictionary):
                summands = self._summands(dictionary, has_null)
                self._last = (dictionary, has_null, summands)
            else:
                summands = last[2]
        if summands is None:
            return None
        places = index.to_numpy(zero_copy_only=False)
        self._check_places(places, len(summands.hashes))
        return places, summands

    def _check_places(self, places: NDArray[np.integer], n_values: int) -> None:
        """Refuse an index that points outside of its dictionary: numpy would take the
        value of another record for it.
        """
        # negative ones are huge as numbers without a sign
        unsigned = places.view(f"u{places.itemsize}")
        if len(unsigned) and int(unsigned.max()) >= n_values:
            raise DataError(f"column {self.name!r} is damaged: write the file anew")

    def _summands(self, dictionary: pa.Array, has_null: bool) -> "_Summands | None":
        """Return what each value of a dictionary adds, a missing one last if there are
        any; None, and keep the problem, if one can't be coded.
        """
        cells = dictionary.cast(self.field.type)
        if has_null:
            cells = pa.concat_arrays([cells, pa.nulls(1, cells.type)])
        schema = pa.schema([self.field], metadata=self.metadata)
        # as the column would be in a table read whole
        values = to_pandas(pa.table([cells], schema=schema))[self.name]
        try:
            hashes = self._hashes(values) * np.uint64(self.weight)
            codes = self._codes(exchange_commas(values) if self.has_commas else values)
        except CellError as error:
            self.problems.append(error)
            return None
        return _Summands(steps=codes, hashes=hashes, cells=values)

    def _hashes(self, values: pd.Series) -> HashArray:
        """Return the hash of each value, of whole numbers from those that other batches
        have had: spelling them takes most of the time.
        """
        if not pa.types.is_signed_integer(self.field.type):
            return value_hashes(self.name, values)
        is_missing = values.isna().to_numpy()
        whole = values.to_numpy(dtype=np.int64, na_value=0)
        place = self._hashed.index.get_indexer(pd.Index(whole))
        is_new = is_missing | (place < 0)
        hashes = np.empty(len(values), dtype=np.uint64)
        hashes[is_new] = value_hashes(self.name, values[is_new])
        hashes[~is_new] = self._hashed.to_numpy()[place[~is_new]]
        is_added = is_new & ~is_missing
        if is_added.any() and len(self._hashed) + is_added.sum() <= MOST_HASHED:
            added = pd.Series(hashes[is_added], index=whole[is_added])
            # a dictionary may name a value twice
            added = added[~added.index.duplicated()]
            self._hashed = pd.concat([self._hashed, added])
        return hashes

    def _codes(self, values: pd.Series) -> IntArray:
        """Return what each value adds to a record's number, 0 if it is ignored; of a
        person's key, its hash.
        """
        if self.column is None and not self.is_key:
            return np.zeros(len(values), dtype=np.int64)
        if self.column is not None and not self.has_codes:
            numbers(self.name, values, self.column)  # only checked
            return np.zeros(len(values), dtype=np.int64)
        if self.column is None:
            positions, keys = person_keys(self.name, values)
            hashes = np.append(pd.util.hash_array(keys), np.uint64(0))
            return hashes[positions].view(np.int64)
        if self.is_copied:
            return self._places(numbers(self.name, values, self.column)) * self.stride
        return encode(self.name, values, self.column) * self.stride

    def _places(self, values: FloatArray) -> IntArray:
        places = []
        for value in values.tolist():
            # one nan object for all, and one zero
            key = math.nan if math.isnan(value) else value + 0.0
            places.append(self.known.setdefault(key, len(self.known)))
        if len(self.known) > self.radix:
            raise UncountableError
        return np.array(places, dtype=np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class _Summands:
    """What values of one column add to the numbers and to the hashes of records, and
    the values themselves.
    """

    steps: IntArray
    hashes: HashArray
    cells: pd.Series


type _Part = tuple[IntArray, IntArray | None, HashArray, HashArray | None]


def _parallel(
    batches: Iterator[pa.RecordBatch], coders: list[Coder], *, weighted: bool
) -> Iterator[_Part | None]:
    """Number the records of each batch, a few batches at a time."""
    waiting: deque[Future[_Part | None]] = deque()
    with ThreadPoolExecutor(WORKERS) as pool:
        for batch in batches:
            waiting.append(pool.submit(_numbered, batch, coders, weighted))
            if len(waiting) > WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _numbered(
    batch: pa.RecordBatch, coders: list[Coder], weighted: bool
) -> _Part | None:
    """Return the number of each record, how often it occurs if that isn't once, its
    hash, and that of its person; None if a record can't be coded.
    """
    of_batch = coded(batch, coders)
    if of_batch is None:
        return None
    steps = of_batch.codes
    persons = None
    times = batch.column(len(coders)).to_numpy() if weighted else None
    for key in (coder.name for coder in coders if coder.is_key):
        is_null = batch.column(key).is_null(nan_is_null=True)
        is_known = ~is_null.to_numpy(zero_copy_only=False)
        persons = steps.pop(key).view(np.uint64)[is_known]
    return reduce(np.add, steps.values()), times, of_batch.hashes, persons


class _Tally:
    """Sums over all records, and their numbers merged into distinct ones with
    counts.
    """

    def __init__(self, n_cells: int) -> None:
        self._n_cells = n_cells
        self.n_records = 0
        self.sum = 0
        self.xor = 0
        self._number = np.empty(0, dtype=np.int64)
        self._counts = np.empty(0, dtype=np.int64)
        self._new: list[IntArray] = []
        self._times: list[IntArray] = []
        self._persons: list[HashArray] = []

    def add(
        self,
        number: IntArray,
        times: IntArray | None,
        hashes: HashArray,
        persons: HashArray | None,
    ) -> None:
        added = hashes
        if times is None:
            self.n_records += len(number)
        else:
            self.n_records += int(times.sum())
            self._times.append(times)
            added = hashes * times.astype(np.uint64)
            hashes = hashes[times % 2 == 1]
        total = self.sum + int(added.sum(dtype=np.uint64))
        self.sum = total % (1 << 64)
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
            new, inverse = np.unique(number, return_inverse=True)
            times = np.bincount(inverse, np.concatenate(self._times)).astype(np.int64)
        elif self._n_cells > 4 * len(number):
            new, times = np.unique(number, return_counts=True)
        else:  # counting is quicker than sorting
            times = np.bincount(number)
            new = np.flatnonzero(times)
            times = times[new]
        both = np.union1d(self._number, new)
        counts = np.zeros(len(both), dtype=np.int64)
        counts[np.searchsorted(both, self._number)] = self._counts
        counts[np.searchsorted(both, new)] += times
        self._number = both
        self._counts = counts
        self._new = []
        self._times = []
        return both, counts

    def most_of_a_person_exceed(self, cap: int) -> bool:
        """Whether a key occurs more often than the cap. Two keys of one 64-bit hash
        would count as one person.
        """
        if not self._persons:
            return False
        keys = np.concatenate(self._persons)
        self._persons = []
        keys.sort()
        return bool((keys[cap:] == keys[:-cap]).any())
