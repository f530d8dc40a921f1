"""Releases of many tables at once by a shipped mechanism, for studies that repeat one
thousands of times.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.mechanism import Mechanism

REPLICATE = "replicate"


def stacked(records: FloatArray, column: Mapping[str, Any]) -> Table:
    """Return many tables of one column, shape (tables, records), as one; the number of
    the table is a public column.

    Examples
    --------
    >>> stacked(np.zeros((3, 5)), {"levels": [0, 1]}).n_records
    15
    """
    n_tables, n = records.shape
    schema = Schema.model_validate(
        {
            "columns": {
                REPLICATE: {"levels": list(range(n_tables)), "public": True},
                "x": dict(column),
            }
        }
    )
    return Table(
        pd.DataFrame(
            {REPLICATE: np.repeat(np.arange(n_tables), n), "x": records.ravel()}
        ),
        schema,
    )


def release_each(
    mechanism: Mechanism, tables: Table, rng: np.random.Generator
) -> FloatArray:
    """Release many tables of one column by one release of them all.

    Parameters
    ----------
    mechanism : Mechanism
        One that works on every combination of public columns by itself, as histograms
        and urns do.
    tables : Table
        What :func:`stacked` made of them; made once, it serves any number of releases.
    rng : Generator
        Source of randomness.

    Returns
    -------
    ndarray, shape (tables, sets, records)
        Synthetic values, in any order.

    Notes
    -----
    The number of the table is a public column. A replaced record stays in its table, so
    each table has the noise, the price and the number of records that it has in a
    release of its own.

    Examples
    --------
    >>> from pdips import LaplaceSanitizer
    >>> tables = stacked(np.zeros((3, 5)), {"levels": [0, 1]})
    >>> release_each(
    ...     LaplaceSanitizer(epsilon=1), tables, np.random.default_rng(1)
    ... ).shape
    (3, 1, 5)
    """
    sets = mechanism.release(tables, rng=rng)[0].sets
    n_tables = tables.schema.columns[REPLICATE].n_levels
    if any((np.diff(each[REPLICATE].to_numpy()) < 0).any() for each in sets):
        raise ValueError("public columns of synthetic sets must come sorted")
    return np.stack(
        [each["x"].to_numpy(dtype=np.float64).reshape(n_tables, -1) for each in sets],
        axis=1,
    )
