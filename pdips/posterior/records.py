"""Synthetic sets from released parameter values: post-processing of these, beside the public columns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.data.schema import Column, Schema
from pdips.data.table import Table, decode
from pdips.errors import InputError
from pdips.margins.synthesis import public_order, public_records
from pdips.posterior.columns import Values, record_values
from pdips.privacy.curator import Curator

Parameters = Mapping[str, NDArray[Any]]
DrawRecords = Callable[[Parameters, int, Values, np.random.Generator], Values]


def synthetic_sets(
    draw: DrawRecords,
    schema: Schema,
    curator: Curator,
    parameters: Parameters | Sequence[Parameters],
    n_sets: int,
    n_records: int,
    rng: np.random.Generator,
) -> list[pd.DataFrame]:
    """Draw synthetic sets from a model at one value of its parameters, or at one for each set."""
    each = [parameters] * n_sets if isinstance(parameters, Mapping) else list(parameters)
    if len(each) != n_sets:
        raise InputError(f"parameters must be given once, or once for each of {n_sets} sets")
    if schema.public_columns and n_records != curator.n_records:
        raise InputError("with public columns the synthetic sets have the table's public records")
    public, covariates = public_columns(curator.public) if schema.public_columns else (pd.DataFrame(), {})
    sets = []
    for number, values in enumerate(each, start=1):
        with curator.timed(f"drawing synthetic set {number} of {n_sets}"):
            sets.append(to_frame(schema, draw(values, n_records, covariates, rng), public, rng))
    return sets


def to_frame(
    schema: Schema, drawn: Mapping[str, NDArray[Any]], public: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """Turn what a model drew into records: levels as they are spelt, numbers within their bounds."""
    made = {name: public[name].array for name in public.columns}
    for name, values in drawn.items():
        made[name] = _column(name, schema.columns[name], np.asarray(values), schema, rng)
    return pd.DataFrame({name: made[name] for name in schema.columns})


def _column(name: str, column: Column, values: NDArray[Any], schema: Schema, rng: np.random.Generator) -> Any:
    if np.isnan(values.astype(np.float64)).any():
        values = np.where(np.isnan(values), float(column.lower or 0), values)
    if column.is_categorical:
        codes = np.clip(np.rint(values), 0, column.n_levels - 1).astype(np.int64)
        return decode(schema, {name: codes}, rng)[name].array
    known = np.clip(values.astype(np.float64), float(column.lower or 0), float(column.upper or 0))
    return np.rint(known).astype(np.int64) if column.integer else known


def public_columns(table: Table) -> tuple[pd.DataFrame, dict[str, NDArray[Any]]]:
    """Return the public columns of a table as they are written, and as models read them, in one order."""
    names = list(table.schema.public_columns)
    if not names:
        return pd.DataFrame(), {}
    order = public_order(table, names)
    return public_records(table, names), {name: values[order] for name, values in record_values(table, names).items()}
