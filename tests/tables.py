"""Tiny tables that the tests enumerate, and sampling from schemas."""

from collections.abc import Iterator
from itertools import combinations_with_replacement, product

import numpy as np
import pandas as pd

from pdips.audit import Case, audit_cases
from pdips.audit.neighbour_pairs import small_pairs
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.privacy.noise import RandomBits

RELATIONS = ("replace-one", "add-remove")


def bits(seed: int = 0) -> RandomBits:
    """Random bits that come again: from a seed, where a release takes the operating system's."""
    return RandomBits(np.random.default_rng(seed))


def schema_of(*sizes: int, **extra) -> Schema:
    """Columns a, b, c, ... with levels 0, 1, ..."""
    columns = {name: {"levels": list(range(size))} for name, size in zip("abcdefgh", sizes, strict=False)}
    return Schema.model_validate({"columns": columns, **extra})


def all_records(schema: Schema) -> list[tuple[int, ...]]:
    return list(product(*(range(column.n_levels) for column in schema.columns.values())))


def table_of(records, schema: Schema) -> Table:
    return Table(pd.DataFrame(list(records), columns=list(schema.columns)), schema)


def all_tables(schema: Schema, n: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every table of n records, up to their order."""
    return combinations_with_replacement(all_records(schema), n)


def replacements(records, schema: Schema) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every table that differs by one record."""
    for i in range(len(records)):
        for other in all_records(schema):
            if other != records[i]:
                yield tuple(sorted((*records[:i], other, *records[i + 1 :])))


def random_table(schema: Schema, n: int, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    return table_of([[rng.integers(c.n_levels) for c in schema.columns.values()] for _ in range(n)], schema)


def worst_loss(mechanism, schema, sizes) -> float:
    """The worst log ratio over all tables of these sizes, their neighbours, and all synthetic sets."""
    pairs = [pair for n in sizes for pair in small_pairs(schema, mechanism.neighbours, n)]
    return max(finding.bound for finding in audit_cases([Case(mechanism, pair, "exact") for pair in pairs]))
