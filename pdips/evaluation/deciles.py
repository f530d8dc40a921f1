"""Numeric columns without bins cut at the table's own deciles, to be compared like the others. For inside use only."""

import numpy as np

from pdips.data.coding import numbers
from pdips.data.schema import Column
from pdips.data.table import Table

PARTS = 10


def cut(table: Table) -> Table:
    """Return a table whose numeric columns all have bins: the schema's, or else about a tenth of the known values each.

    The cuts are read off the confidential table, so they and what is found with them stay inside.
    """
    schema = table.schema
    open_ = [name for name, column in schema.columns.items() if not (column.is_categorical or column.is_binned)]
    if not open_ or table.counts is not None:
        return table
    columns = {name: _cut(name, table) if name in open_ else column for name, column in schema.columns.items()}
    return Table(table.frame, schema.model_copy(update={"columns": columns}))


def _cut(name: str, table: Table) -> Column:
    column = table.schema.columns[name]
    values = numbers(name, table.frame[name], column)
    known, low, high = values[~np.isnan(values)], float(column.lower or 0), float(column.upper or 0)
    inner = np.quantile(known, np.arange(1, PARTS) / PARTS) if len(known) else np.zeros(0)
    inner = np.unique(np.rint(inner) if column.integer else inner)
    edges = [low, *(float(edge) for edge in inner if low < edge < high), high]
    return Column.model_validate(column.model_dump(exclude={"bins", "bin_edges"}) | {"bin_edges": edges})
