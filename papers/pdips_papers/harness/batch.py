"""Releases of many tables at once by a shipped mechanism, for studies that repeat one thousands of times."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.mechanism import Mechanism

REPLICATE = "replicate"


def release_each(
    mechanism: Mechanism, records: FloatArray, column: Mapping[str, Any], rng: np.random.Generator
) -> FloatArray:
    """Release many tables of one column by one release of them all.

    Parameters
    ----------
    mechanism : Mechanism
        One that works on every combination of public columns by itself, as histograms and urns do.
    records : ndarray, shape (tables, records)
        Values of the column.
    column : mapping
        Its public facts, as a schema file has them.
    rng : Generator
        Source of randomness.

    Returns
    -------
    ndarray, shape (tables, sets, records)
        Synthetic values, in any order.

    Notes
    -----
    The number of the table is a public column. A replaced record stays in its table, so each table has the noise, the
    price and the number of records that it has in a release of its own.
    """
    n_tables, n = records.shape
    schema = Schema.model_validate(
        {"columns": {REPLICATE: {"levels": list(range(n_tables)), "public": True}, "x": dict(column)}}
    )
    place = np.repeat(np.arange(n_tables), n)
    sets = mechanism.release(Table(pd.DataFrame({REPLICATE: place, "x": records.ravel()}), schema), rng=rng)[0].sets
    made = []
    for each in sets:
        order = np.argsort(each[REPLICATE].to_numpy(), kind="stable")
        made.append(each["x"].to_numpy(dtype=np.float64)[order].reshape(n_tables, n))
    return np.stack(made, axis=1)
