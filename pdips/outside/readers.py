"""Noisy tables of others as noisy margins: the US Census Bureau's Noisy Measurement
Files, and counts of OpenDP.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pdips.data.coding import encode
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.outside.noisy_margins import NoisyMargins
from pdips.privacy.loss import choice
from pdips.release.noisy_margins import (
    MarginLaw,
    MeasuredMargin,
    axes_of,
    noise_variance,
)

type Source = str | Path | pd.DataFrame

NMF_ATTRIBUTES = (
    ("hhgq", "votingage", "hispanic", "cenrace"),
    ("h1",),
    ("relgq", "sex", "age", "hispanic", "cenrace"),
)
"""In the order of ``query_shape``: persons and housing units of P.L. 94-171, persons of
the DHC.
"""


def read_nmf(
    source: Source, geocode: str, *, levels: Mapping[str, Sequence[Any]] | None = None
) -> NoisyMargins:
    """Read the noisy counts of one place from a Noisy Measurement File of the 2020
    Census.

    Parameters
    ----------
    source : path or DataFrame
        A Parquet file or a folder of them, ``DPQuery`` of a level of geography or a
        part of it: persons or housing units of the redistricting data (P.L. 94-171), or
        persons of the demographic and housing characteristics.
    geocode : str
        The place, as the file spells it.
    levels : mapping of str to sequence, optional
        The levels of columns in the file's order. It names none: those left out are
        called "0", "1", ...

    Returns
    -------
    NoisyMargins
        A column for each attribute, and one of its own for each recode, such as
        ``hhinstlevels``. The number of records is estimated; constraints (rows with a
        ``sign``) aren't used.

    Raises
    ------
    InputError
        If the file has another layout or no counts of the place; if a query is there
        twice, has counts that aren't whole numbers, or no variance of 0.5 or more (a
        smaller one isn't the square of the scale).

    Examples
    --------
    >>> row = {
    ...     "geocode": "050",
    ...     "query_name": "detailed_dpq",
    ...     "h1": "detailed",
    ...     "query_shape": [2],
    ...     "value": [31, 70],
    ... }
    >>> read_nmf(pd.DataFrame([row | {"variance": 4.0}]), "050").margins[0].law.scale
    2.0
    """
    rows, names = _rows_of_place(source, geocode)
    tables = list[NoisyTable]()
    sizes = dict[str, int]()
    for row in rows.to_dict("records"):
        query = row["query_name"]
        if list(rows["query_name"]).count(query) > 1:
            raise InputError(
                f"{query} is there twice for one geocode, so it isn't "
                f"known which variance is whose"
            )
        if not row["variance"] >= 0.5:
            raise InputError(
                f"{query} has no variance of 0.5 or more, so the scale "
                f"of its noise isn't known"
            )
        axes = _axes_of_query(row, names)
        if any(sizes.setdefault(name, size) != size for name, size in axes.items()):
            raise InputError(
                f"{query} has another number of levels than a query before it"
            )
        scale = math.sqrt(row["variance"])
        tables.append(NoisyTable([*axes], None, row["value"], "gaussian", scale))
    levels_of = {name: [str(k) for k in range(size)] for name, size in sizes.items()}
    for name, named in (levels or {}).items():
        levels_of[name] = [*named]
    if sizes and {name: len(each) for name, each in levels_of.items()} != sizes:
        raise InputError(
            f"levels must be those of columns, as many as they have: {sizes}"
        )
    return _margins(
        {name: {"levels": each} for name, each in levels_of.items()}, tables
    )


def _rows_of_place(source: Source, geocode: str) -> tuple[pd.DataFrame, Sequence[str]]:
    """Return the queries of a place, constraints left out, and the attributes that the
    file has.
    """
    frame = _frame(source, filters=[("geocode", "==", geocode)])
    names: Sequence[str] = ()
    for attributes in NMF_ATTRIBUTES:
        if not names and {*attributes} <= {*frame}:
            names = attributes
    fixed = ("geocode", "query_name", "query_shape", "value", "variance")
    lacking = {*fixed, *(names or NMF_ATTRIBUTES[0])} - {*frame}
    if lacking:
        raise InputError(
            f"a Noisy Measurement File that can be read has columns "
            f"{', '.join(sorted(lacking))}"
        )
    rows = frame[frame["geocode"] == geocode]
    if "sign" in rows:
        rows = rows[rows["sign"].isna()]
    return rows, names


def _axes_of_query(row: Mapping[Any, Any], names: Sequence[str]) -> dict[str, int]:
    """Return how many levels each column of a query has, a recode's own among them."""
    axes = dict[str, int]()
    shape = [int(size) for size in row["query_shape"]]
    if [row[name] != "*" for name in names] != [size > 1 for size in shape]:
        raise InputError(
            f"{row['query_name']}: query_shape isn't that of {', '.join(names)}"
        )
    for name, size in zip(names, shape, strict=True):
        recode = row[name]
        if recode != "*":
            axes[name if recode == "detailed" else recode] = size
    return axes


def read_opendp(*tables: tuple[Source, Source]) -> NoisyMargins:
    """Read noisy counts by groups that OpenDP released, of one table.

    Parameters
    ----------
    *tables : tuple of two paths or DataFrames
        What ``release().collect()`` and ``summarize()`` of a query
        ``group_by(...).agg(dp.len(signed=True))`` gave, as Parquet, CSV or pandas.

    Returns
    -------
    NoisyMargins
        A column for each key; its last level is "missing" where a key is null. The
        number of records is estimated.

    Raises
    ------
    InputError
        If a summary states no noise of a count or two, a law other than Integer Laplace
        and Integer Gaussian, or a threshold; if counts aren't whole numbers, are
        unsigned, or don't have each combination of keys once.

    Examples
    --------
    >>> counts = pd.DataFrame({"ill": ["no", "yes"], "len": [90, -2]})
    >>> stated = {
    ...     "column": "len",
    ...     "aggregate": "Frame Length",
    ...     "distribution": "Integer Laplace",
    ...     "scale": 2.0,
    ... }
    >>> read_opendp((counts, pd.DataFrame([stated]))).margins[0].law.scale
    2.0
    """
    if not all(isinstance(each, tuple) and len(each) == 2 for each in tables):
        raise InputError("give pairs, (counts, summary), in brackets of their own")
    read = [_stated_counts(_frame(counts), _frame(stated)) for counts, stated in tables]
    columns = dict[str, Any]()
    for table in read:
        for key in table.names:
            values = pd.concat([each.cells[key] for each in read if key in each.names])
            levels = values.dropna().convert_dtypes().unique().tolist()
            columns[key] = {"levels": levels, "missing": bool(values.isna().any())}
    return _margins(columns, read)


def _stated_counts(counts: pd.DataFrame, stated: pd.DataFrame) -> "NoisyTable":
    """Return counts with the law that their summary states."""
    lacking = {"column", "aggregate", "distribution", "scale"} - {*stated}
    if lacking:
        raise InputError(
            f"what summarize() gives has a column {min(lacking)!r}, and this has none"
        )
    of_counts = stated["aggregate"].isin(["Frame Length", "Length"])
    own = stated[of_counts].drop_duplicates()
    if len(own) != 1 or own["column"].iloc[0] not in counts:
        raise InputError(
            "a summary must state one noise, of one column of "
            "counts that is in the table"
        )
    if "threshold" in own and own["threshold"].notna().any():
        raise InputError(
            "groups below a threshold were left out, so noise isn't "
            "of mean 0: name keys in the query"
        )
    name, law, scale = own[["column", "distribution", "scale"]].iloc[0]
    choice(law, ("Integer Laplace", "Integer Gaussian"), "distribution")
    if pd.api.types.is_unsigned_integer_dtype(counts[name]):
        raise InputError(
            f"counts in {name!r} are unsigned, so noise below 0 was "
            f"cut off: use dp.len(signed=True)"
        )
    keys = [str(key) for key in counts if key not in {*stated["column"]}]
    counts = counts.sort_values([*keys, name])
    law = law.removeprefix("Integer ").lower()
    return NoisyTable(keys, counts[keys], counts[name], law, scale)


def _frame(source: Source, **how: Any) -> pd.DataFrame:
    if isinstance(source, pd.DataFrame):
        return source
    try:
        if Path(source).suffix == ".csv":
            return pd.read_csv(source, keep_default_na=False, na_values=[""])
        return pd.read_parquet(source, **how)
    # the last: a geocode of another type
    except (OSError, ValueError, NotImplementedError):
        raise InputError(f"{source} isn't there, or isn't of this format") from None


def _margins(
    columns: Mapping[str, Any], tables: Sequence["NoisyTable"]
) -> NoisyMargins:
    if not columns or not tables:
        raise InputError(
            "there are no noisy counts by columns: of this place, or in these tables"
        )
    schema = Schema(columns=columns)
    measured = [table.measured(schema) for table in tables]
    return NoisyMargins.pooled(schema, "add-remove", measured, None)


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """Noisy counts by columns, as a file has them; ``cells`` None says all cells in
    order.
    """

    names: Sequence[str]
    cells: Any
    counts: Any
    law: Any
    scale: Any

    def measured(self, schema: Schema) -> MeasuredMargin:
        """Return the counts in the order of the cells, with the law of their noise."""
        sizes = [schema.columns[name].n_levels for name in self.names]
        what = ", ".join(self.names) or "no column"
        numbers = pd.to_numeric(pd.Series(self.counts), errors="coerce")
        noisy = numbers.to_numpy(np.float64, na_value=np.nan)
        codes = np.arange(len(noisy))
        if self.cells is not None and self.names:
            by_column = [
                encode(name, self.cells[name], schema.columns[name])
                for name in self.names
            ]
            codes = np.ravel_multi_index(by_column, sizes)
        if not np.array_equal(np.sort(codes), np.arange(math.prod(sizes))):
            raise InputError(f"there must be one count for each combination of {what}")
        is_whole = (abs(noisy) < 2**53) & (noisy == np.round(noisy))
        if not is_whole.all():
            raise InputError(
                f"noisy counts are whole numbers, and some by {what} "
                f"aren't; those of a model aren't read"
            )
        scale = float(pd.to_numeric(self.scale, errors="coerce"))
        if not 0 < scale < math.inf:
            raise InputError(
                f"the scale of the noise on counts by {what} must be a number above 0"
            )
        stated = MarginLaw(
            axes=tuple(axes_of(self.names, sizes)),
            law=self.law,
            scale=scale,
            variance=noise_variance(self.law, scale),
            rows=len(noisy),
        )
        counts = noisy[np.argsort(codes)].astype(np.int64)
        return MeasuredMargin(stated, counts, np.arange(len(noisy)))
