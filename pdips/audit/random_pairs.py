"""Random neighbours, for audits that need no enumeration: one
person's records change together.
"""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from pdips.audit.neighbour_pairs import Pair
from pdips.data.column import Column
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import DataError, InputError
from pdips.privacy.loss import Neighbours

Values = dict[str, Any]
Household = tuple[Values, list[Values]]

TRIES = 300  # Records or tables drawn again where rules bar them
AT_ONCE = 8  # Records that are drawn together
FAR_TRIES = 4  # How often so many are drawn to find two that are far apart
MOST_OTHERS = 6  # Records of other persons
EPOCH = date(1970, 1, 1)


def random_pair(
    schema: Schema,
    neighbours: Neighbours,
    rng: np.random.Generator,
    *,
    far: bool = False,
) -> Pair:
    """Return random neighbours: one person's records, up to the schema's cap, become
    others or leave.

    Half of the persons have as many equal records as the cap allows, which move the
    same way, in some columns or in all, often to an end of their range: only such pairs
    show a cap that was forgotten.

    Parameters
    ----------
    schema : Schema
        Of both tables.
    neighbours : {"replace-one", "add-remove"}
        The relation.
    rng : numpy.random.Generator
        Decides all.
    far : bool
        Whether the person has as many records as the cap allows, all alike, which move
        in as many columns as can be.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> pair = random_pair(schema, "add-remove", np.random.default_rng(0))
    >>> pair.first.n_records - pair.second.n_records
    1
    """
    if schema.members is not None:
        return _random_households(schema, neighbours, rng)
    for _ in range(TRIES):
        try:
            return _random_pair(schema, neighbours, rng, far)
        except DataError:  # a rule bars a record
            continue
    raise InputError("random records of this schema break its rules again and again")


def _random_pair(
    schema: Schema,
    neighbours: Neighbours,
    rng: np.random.Generator,
    far: bool,
) -> Pair:
    cap = schema.records.max_per_person
    together = far or bool(rng.random() < 0.5)
    n_own = cap if together else int(rng.integers(1, cap + 1))
    n_others = int(rng.integers(1, MOST_OTHERS + 1))
    others = _records(schema, rng, n_others)
    before = _records(schema, rng, 1 if together else n_own)
    after = [_moved(schema, record, rng) for record in before]
    if far:
        ends = _far_apart(schema, rng)
        before = [ends[0]]
        after = [ends[1]]
    if together:
        before *= n_own
        after *= n_own
    order = rng.permutation(n_others + n_own)
    first = _table(schema, [*others, *before], n_own, order)
    if neighbours == "add-remove":
        order_of_others = np.argsort(np.argsort(order[:n_others]))
        second = _table(schema, others, 0, order_of_others)
    else:
        second = _table(schema, [*others, *after], n_own, order)
    how = "alike" if together else "each its own way"
    return Pair(f"random: {n_own} records, {how}", first, second, neighbours)


def _table(schema: Schema, records: Sequence[Values], n_own: int, order: Any) -> Table:
    """Return the table of some records, the last ones of one person."""
    columns: dict[str, Any] = {}
    rows = np.argsort(order)
    for name, column in schema.columns.items():
        values = [records[k][name] for k in rows]
        columns[name] = pd.Series(values, dtype=_dtype(column))
    if schema.records.person is not None:
        n_others = len(records) - n_own
        keys = [*range(1, n_others + 1), *[0] * n_own]
        columns[schema.records.person] = [str(keys[k]) for k in rows]
    return Table(pd.DataFrame(columns), schema)


def _dtype(column: Column) -> str:
    if column.levels is not None:
        first = column.levels[0]
        if isinstance(first, bool):
            return "boolean"
        return "string" if isinstance(first, str) else "Float64"
    if column.type == "date":
        return "string"
    return "Int64" if column.integer else "Float64"


def _records(schema: Schema, rng: np.random.Generator, n: int) -> list[Values]:
    """Return random records that the schema's rules allow."""
    records = list[Values]()
    for _ in range(TRIES):
        records += _allowed(schema, rng, {})
        if len(records) >= n:
            return records[:n]
    raise InputError("no random record keeps the rules of this schema")


def _allowed(schema: Schema, rng: np.random.Generator, given: Values) -> list[Values]:
    """Return those of a few random records, with some values given, that the rules
    allow.
    """
    records = [_values(schema.columns, rng, given) for _ in range(AT_ONCE)]
    rules = schema.zeros()
    if not rules:
        return records
    order = np.arange(len(records))
    codes = _table(schema.plain(), records, 0, order).codes
    barred = np.zeros(len(records), dtype=bool)
    for rule in rules:
        parts = [np.isin(codes[name], levels) for name, levels in rule.items()]
        barred |= np.all(parts, axis=0)
    return [records[k] for k in np.flatnonzero(~barred)]


def _values(
    columns: Mapping[str, Column], rng: np.random.Generator, given: Values
) -> Values:
    """Return a random record, with some values given."""
    record: Values = {}
    for name, column in columns.items():
        record[name] = given[name] if name in given else _value(column, rng)
    return record


def _moved(schema: Schema, record: Values, rng: np.random.Generator) -> Values:
    """Return another record of the same person: public columns stay, and others may."""
    share = rng.choice([0.0, 0.3, 0.6])
    kept: Values = {}
    for name, value in record.items():
        if schema.columns[name].public or rng.random() < share:
            kept[name] = value
    for other in _allowed(schema, rng, kept):
        if _distance(schema, record, other):
            return other
    return record


def _far_apart(schema: Schema, rng: np.random.Generator) -> tuple[Values, Values]:
    """Return two records that differ in as many columns, and by as much, as can be
    found; public columns are the same.
    """
    start = _records(schema, rng, 1)[0]
    public = {name: start[name] for name in schema.public_columns}
    records = list[Values]()
    for _ in range(FAR_TRIES):
        records += _allowed(schema, rng, public)
    pairs = product(records, records)
    return max(pairs, key=lambda pair: _distance(schema, *pair))


def _distance(schema: Schema, one: Values, other: Values) -> float:
    """Return how far two records are apart: columns that differ, numbers by their part
    of the range.
    """
    total = 0.0
    for name, column in schema.columns.items():
        here = one[name]
        there = other[name]
        if here != there:
            total += 1.0
            if isinstance(here, float) and isinstance(there, float):
                width = (column.upper or 0.0) - (column.lower or 0.0)
                total += abs(here - there) / width
    return total


def _value(column: Column, rng: np.random.Generator) -> Any:
    """Return a random value, often at an end of the range."""
    if column.missing is True and rng.random() < 0.2:
        return None
    if column.levels is not None:
        return column.levels[int(rng.integers(len(column.levels)))]
    lower = column.lower or 0.0
    value = _number_between(lower, column.upper or 0.0, rng)
    if column.integer or column.type == "date":
        value = max(float(np.floor(value)), lower)
    if column.type == "date":
        return (EPOCH + timedelta(days=int(value))).isoformat()
    return int(value) if column.integer else value


def _number_between(lower: float, upper: float, rng: np.random.Generator) -> float:
    """Return a number, often an end, the number beside one, the middle, or 0."""
    if rng.random() < 0.4:
        return float(rng.uniform(lower, upper))
    ends = [lower, upper, (lower + upper) / 2, min(max(0.0, lower), upper)]
    ends += [float(np.nextafter(upper, lower)), float(np.nextafter(lower, upper))]
    return float(rng.choice(ends))


def _random_households(
    schema: Schema, neighbours: Neighbours, rng: np.random.Generator
) -> Pair:
    """Return random neighbours of which one household, with its members, is another or
    leaves.
    """
    n_homes = int(rng.integers(2, MOST_OTHERS))
    homes = [_household(schema, rng, largest=False) for _ in range(n_homes)]
    other = _household(schema, rng, largest=bool(rng.random() < 0.5))
    changed = [*homes[:-1], other] if neighbours == "replace-one" else homes[:-1]
    first = _home_table(schema, homes, rng)
    second = _home_table(schema, changed, rng)
    written = ([_spelt(*home) for home in homes], [_spelt(*home) for home in changed])
    return Pair("random: a household", first, second, neighbours, written=written)


def _home_table(
    schema: Schema, homes: Sequence[Household], rng: np.random.Generator
) -> Table:
    """Return the table of some households, whose keys tell nothing."""
    members: Any = schema.members
    keys = [str(key) for key in rng.permutation(len(homes))]
    households = list[Values]()
    people = list[Values]()
    for key, (home, own) in zip(keys, homes, strict=True):
        households.append(home | {members.key: key})
        people += [person | {members.key: key} for person in own]
    of_members = pd.DataFrame(people, columns=[members.key, *members.columns])
    return Table.of_households(pd.DataFrame(households), of_members, schema)


def _household(schema: Schema, rng: np.random.Generator, *, largest: bool) -> Household:
    members: Any = schema.members
    most = members.most + (members.too_many == "truncate")
    n_members = most if largest else int(rng.integers(0, most + 1))
    names = members.of_households([*schema.columns])
    home = _values({name: schema.columns[name] for name in names}, rng, {})
    people = [_values(members.columns, rng, {}) for _ in range(n_members)]
    return home, people


def _spelt(home: Values, people: Sequence[Values]) -> tuple[object, ...]:
    return (*home.values(), *(tuple(person.values()) for person in people))


def shuffled(table: Table, rng: np.random.Generator) -> Table:
    """Return a table with its rows in another order.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> table = Table(pd.DataFrame({"ill": ["no", "yes", "yes"]}), schema)
    >>> sorted(shuffled(table, np.random.default_rng(0)).frame["ill"])
    ['no', 'yes', 'yes']
    """
    if table.counts is not None or table.schema.members is not None:
        raise InputError("rows of counted tables, and of households, aren't shuffled")
    order = rng.permutation(len(table.frame))
    frame = table.frame.iloc[order].reset_index(drop=True)
    return Table(frame, table.schema)
