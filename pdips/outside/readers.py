"""Noisy tables of others as noisy margins: the US Census Bureau's Noisy Measurement Files, and counts of OpenDP."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pdips.data.coding import encode
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.outside.noisy_margins import NoisyMargins
from pdips.privacy.loss import choice
from pdips.release.noisy_margins import MarginLaw, MeasuredMargin, axes_of, noise_variance

type Source = str | Path | pd.DataFrame

NMF_ATTRIBUTES = (("hhgq", "votingage", "hispanic", "cenrace"), ("h1",), ("relgq", "sex", "age", "hispanic", "cenrace"))
"""In the order of ``query_shape``: persons and housing units of P.L. 94-171, persons of the DHC."""


def read_nmf(source: Source, geocode: str, *, levels: Mapping[str, Sequence[Any]] | None = None) -> NoisyMargins:
    """Read the noisy counts of one place from a Noisy Measurement File of the 2020 Census.

    Parameters
    ----------
    source : path or DataFrame
        A Parquet file or a folder of them, ``DPQuery`` of a level of geography or a part of it: persons or housing
        units of the redistricting data (P.L. 94-171), or persons of the demographic and housing characteristics.
    geocode : str
        The place, as the file spells it.
    levels : mapping of str to sequence, optional
        The levels of columns in the file's order. It names none: those left out are called "0", "1", ...

    Returns
    -------
    NoisyMargins
        A column for each attribute, and one of its own for each recode, such as ``hhinstlevels``. The number of
        records is estimated; constraints (rows with a ``sign``) aren't used.

    Raises
    ------
    InputError
        If the file has another layout or no counts of the place; if a query is there twice, has counts that aren't
        whole numbers, or no variance of 0.5 or more (a smaller one isn't the square of the scale).

    Examples
    --------
    >>> row = {"geocode": "050", "query_name": "detailed_dpq", "h1": "detailed", "query_shape": [2], "value": [31, 70]}
    >>> read_nmf(pd.DataFrame([row | {"variance": 4.0}]), "050").margins[0].law.scale
    2.0
    """
    frame = _frame(source, filters=[("geocode", "==", geocode)])
    names = next((names for names in NMF_ATTRIBUTES if {*names} <= {*frame}), ())
    wanted = {"geocode", "query_name", "query_shape", "value", "variance", *(names or NMF_ATTRIBUTES[0])}
    if lacking := sorted(wanted - {*frame}):
        raise InputError(f"a Noisy Measurement File that can be read has columns {', '.join(lacking)}")
    rows = frame[(frame["geocode"] == geocode) & (frame["sign"].isna() if "sign" in frame else True)]
    found, sizes = list[tuple[Any, ...]](), dict[str, int]()
    for row in rows.to_dict("records"):
        query, specs, shape = row["query_name"], [row[name] for name in names], [int(n) for n in row["query_shape"]]
        if [spec != "*" for spec in specs] != [size > 1 for size in shape]:
            raise InputError(f"{query}: query_shape isn't that of {', '.join(names)}")
        if list(rows["query_name"]).count(query) > 1:
            raise InputError(f"{query} is there twice for one geocode, so it isn't known which variance is whose")
        if not row["variance"] >= 0.5:
            raise InputError(f"{query} has no variance of 0.5 or more, so the scale of its noise isn't known")
        used = zip(names, specs, shape, strict=True)
        axes = {name if spec == "detailed" else spec: size for name, spec, size in used if spec != "*"}
        if any(sizes.setdefault(name, size) != size for name, size in axes.items()):
            raise InputError(f"{query} has another number of levels than a query before it")
        found.append(([*axes], None, row["value"], "gaussian", math.sqrt(row["variance"])))
    called = {name: [str(k) for k in range(size)] for name, size in sizes.items()} | dict(levels or {})
    if sizes and {name: len(each) for name, each in called.items()} != sizes:
        raise InputError(f"levels must be those of columns, as many as they have: {sizes}")
    return _margins({name: {"levels": [*each]} for name, each in called.items()}, found)


def read_opendp(*tables: tuple[Source, Source]) -> NoisyMargins:
    """Read noisy counts by groups that OpenDP released, of one table.

    Parameters
    ----------
    *tables : tuple of two paths or DataFrames
        What ``release().collect()`` and ``summarize()`` of a query ``group_by(...).agg(dp.len(signed=True))`` gave, as
        Parquet, CSV or pandas.

    Returns
    -------
    NoisyMargins
        A column for each key; its last level is "missing" where a key is null. The number of records is estimated.

    Raises
    ------
    InputError
        If a summary states no noise of a count or two, a law other than Integer Laplace and Integer Gaussian, or a
        threshold; if counts aren't whole numbers, are unsigned, or don't have each combination of keys once.

    Examples
    --------
    >>> counts = pd.DataFrame({"ill": ["no", "yes"], "len": [90, -2]})
    >>> stated = {"column": "len", "aggregate": "Frame Length", "distribution": "Integer Laplace", "scale": 2.0}
    >>> read_opendp((counts, pd.DataFrame([stated]))).margins[0].law.scale
    2.0
    """
    if not all(isinstance(each, tuple) and len(each) == 2 for each in tables):
        raise InputError("give pairs, (counts, summary), in brackets of their own")
    found = list[tuple[Any, ...]]()
    for counts, stated in (map(_frame, each) for each in tables):
        if lacking := {"column", "aggregate", "distribution", "scale"} - {*stated}:
            raise InputError(f"what summarize() gives has a column {min(lacking)!r}, and this has none")
        own = stated[stated["aggregate"].isin(["Frame Length", "Length"])].drop_duplicates()
        if len(own) != 1 or own["column"].iloc[0] not in counts:
            raise InputError("a summary must state one noise, of one column of counts that is in the table")
        if "threshold" in own and own["threshold"].notna().any():
            raise InputError("groups below a threshold were left out, so noise isn't of mean 0: name keys in the query")
        name, law, scale = own[["column", "distribution", "scale"]].iloc[0]
        choice(law, ("Integer Laplace", "Integer Gaussian"), "distribution")
        if pd.api.types.is_unsigned_integer_dtype(counts[name]):
            raise InputError(f"counts in {name!r} are unsigned, so noise below 0 was cut off: use dp.len(signed=True)")
        keys = [str(key) for key in counts if key not in {*stated["column"]}]
        counts = counts.sort_values([*keys, name])
        found.append((keys, counts[keys], counts[name], law.removeprefix("Integer ").lower(), scale))
    columns = dict[str, Any]()
    for key in [key for keys, *_ in found for key in keys]:
        values = pd.concat([cells[key] for _, cells, *_ in found if key in cells])
        known = values.dropna().convert_dtypes().unique()
        columns[key] = {"levels": known.tolist(), "missing": bool(values.isna().any())}
    return _margins(columns, found)


def _frame(source: Source, **how: Any) -> pd.DataFrame:
    if isinstance(source, pd.DataFrame):
        return source
    try:
        csv = Path(source).suffix == ".csv"
        return pd.read_csv(source, keep_default_na=False, na_values=[""]) if csv else pd.read_parquet(source, **how)
    except (OSError, ValueError, NotImplementedError):  # the last: a geocode of another type
        raise InputError(f"{source} isn't there, or isn't of this format") from None


def _margins(columns: Mapping[str, Any], tables: Sequence[tuple[Any, ...]]) -> NoisyMargins:
    """Return margins of tables: names of columns, their cells (None: all, in order), counts, law and scale."""
    if not columns or not tables:
        raise InputError("there are no noisy counts by columns: of this place, or in these tables")
    schema, measured = Schema(columns=columns), list[MeasuredMargin]()
    for names, cells, counts, law, scale in tables:
        sizes, what = [schema.columns[name].n_levels for name in names], ", ".join(names) or "no column"
        noisy = pd.to_numeric(pd.Series(counts), errors="coerce").to_numpy(np.float64, na_value=np.nan)
        codes, scale = np.arange(len(noisy)), float(pd.to_numeric(scale, errors="coerce"))
        if cells is not None and names:
            codes = np.ravel_multi_index([encode(name, cells[name], schema.columns[name]) for name in names], sizes)
        if not np.array_equal(np.sort(codes), np.arange(math.prod(sizes))):
            raise InputError(f"there must be one count for each combination of {what}")
        if not ((abs(noisy) < 2**53) & (noisy == np.round(noisy))).all():
            raise InputError(f"noisy counts are whole numbers, and some by {what} aren't; those of a model aren't read")
        if not 0 < scale < math.inf:
            raise InputError(f"the scale of the noise on counts by {what} must be a number above 0")
        axes, variance = tuple(axes_of(names, sizes)), noise_variance(law, scale)
        stated = MarginLaw(axes=axes, law=law, scale=scale, variance=variance, rows=len(noisy))
        measured.append(MeasuredMargin(stated, noisy[np.argsort(codes)].astype(np.int64), np.arange(len(noisy))))
    return NoisyMargins.pooled(schema, "add-remove", measured, None)
