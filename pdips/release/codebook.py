"""``datapackage.json``: the codebook of what is published, as a Frictionless Data
Package (datapackage.org, 2.0).
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from pdips.data.column import Column
from pdips.data.dates import spelling
from pdips.release.documents import PrivacyDocument

CODEBOOK = "datapackage.json"
PROFILE = "https://datapackage.org/profiles/2.0/{}.json"
DTYPES = {"i": "integer", "u": "integer", "f": "number", "b": "boolean"}
LEVELS = {str: "string", float: "number", bool: "boolean", int: "integer"}
_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
DRAWN = _TEXTS["drawn"]
TABLES = _TEXTS["tables"]
MEDIA_TYPES = _TEXTS["media_types"]


def codebook(
    document: PrivacyDocument,
    digests: Mapping[str, str],
    tables: Mapping[str, pd.DataFrame],
) -> dict[str, Any]:
    """Return a Data Package that describes the files of a release, whose SHA-256 are
    given by name.

    Of ``tables``, those beside the sets, only names and types of columns are read.
    Beyond the standard a field has its ``origin`` ("public" or "synthetic"), ``unit``,
    ``bins`` (``number``, ``scale``, and ``edges`` where the schema lists them),
    ``groups`` as the schema has them, and ``weight`` if it is the weight.
    """
    schema = document.table_schema
    fields = _fields_of_sets(document, tables)
    resources = []
    for path, digest in sorted(digests.items()):
        stem = path.rpartition(".")[0]
        if path.endswith(".nc"):
            resources.append(_file(path, digest))
            continue
        if stem in tables:
            fields_there = _fields_beside(stem, tables[stem])
        else:
            kind = stem.split("_")[0]
            fields_there = fields.get(kind, fields["synthetic"])
        resources.append(_resource(path, digest, fields_there))
    contents = schema.to_dict()
    words = re.sub(r"[^a-z0-9]+", "-", (schema.title or "").lower()).strip("-")
    return {
        "$schema": PROFILE.format("datapackage"),
        "name": words or "synthetic-data",
        "title": schema.title or "Synthetic data",
        "description": f"Synthetic sets: {document.n_sets}, by {document.mechanism}. "
        f"{document.privacy.statement}",
        **{key: contents[key] for key in ("impossible", "rule") if key in contents},
        "resources": resources,
    }


def _fields_of_sets(
    document: PrivacyDocument, tables: Mapping[str, pd.DataFrame]
) -> dict[str, list[dict[str, Any]]]:
    """Return the fields of the files of a set, by the beginning of their names."""
    schema = document.table_schema
    fields = {}
    for name, column in schema.columns.items():
        fields[name] = {"name": name, **_field(name, column, document, tables)}
    members = schema.members
    if members is None:
        return {"synthetic": [*fields.values()]}
    key = {
        "name": members.key,
        "type": "integer",
        "description": "The household, by a number of the set.",
    }
    of_households = members.of_households(schema.columns)
    of_members = []
    for name, column in members.columns.items():
        of_members.append({"name": name, **_field(name, column, document, tables)})
    return {
        "synthetic": [*fields.values()],
        "households": [
            key,
            *(fields[name] for name in fields if name in of_households),
        ],
        "members": [key, *of_members],
    }


def _fields_beside(stem: str, table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the fields of a table beside the sets."""
    known = TABLES.get(stem, {})
    fields = []
    for name, dtype in table.dtypes.items():
        fields.append(
            {
                "name": name,
                "type": DTYPES.get(dtype.kind, "string"),
                "description": known.get(name, known.get("*", "")),
            }
        )
    return fields


def _file(path: str, digest: str) -> dict[str, Any]:
    """Describe a file that is no table."""
    stem, _, suffix = path.rpartition(".")
    return {
        "$schema": PROFILE.format("dataresource"),
        "name": stem,
        "title": TABLES[stem]["title"],
        "path": path,
        "format": suffix,
        "mediatype": MEDIA_TYPES[suffix],
        "hash": f"sha256:{digest}",
    }


def _resource(path: str, digest: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    """Describe a file."""
    stem, _, suffix = path.rpartition(".")
    title = TABLES.get(stem, {}).get("title", stem.replace("_", " "))
    resource = {
        "$schema": PROFILE.format("dataresource"),
        "name": path if suffix in ("sav", "dta") else stem,
        "title": title,
        "type": "table",
        "profile": "tabular-data-resource",  # for readers of version 1
        "path": path,
        "format": suffix,
        "mediatype": MEDIA_TYPES[suffix],
        "hash": f"sha256:{digest}",
        "schema": {"$schema": PROFILE.format("tableschema"), "fields": fields},
    }
    if suffix == "csv":
        resource["encoding"] = "utf-8"
    return resource


def _field(
    name: str, column: Column, document: PrivacyDocument, tables: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what is public of a column, and how its values were drawn."""
    kind = _type(column)
    schema = document.table_schema
    is_weight = name == schema.records.weight
    field: dict[str, Any] = {"type": kind, "title": column.label or name}
    if column.levels is not None and kind in ("string", "integer"):
        labels = {level: column.labels.get(spelling(level)) for level in column.levels}
        field["categories"] = _labelled(labels)
    if column.is_binned:
        field["bins"] = {"number": column.n_values, "scale": column.scale}
        if column.bin_edges:
            edges = [_written(edge, column) for edge in column.bin_edges]
            field["bins"]["edges"] = edges
    said = [_values(column, kind), DRAWN[_drawn(column, document, tables)]]
    if any(name in total.columns for total in document.totals):
        said.append(DRAWN["total"])
    if is_weight:
        said.append(DRAWN["weight"])
        if any(total.weighted for total in schema.total):
            said.append(DRAWN["raked"])
    field |= {
        "description": f"{'. '.join(said)}.",
        "constraints": _constraints(column),
        "missingValues": _labelled(_missing(column, kind)),
        "origin": "public" if column.public else "synthetic",
    }
    extras = {"unit": column.unit, "groups": column.groups, "weight": is_weight}
    for key, value in extras.items():
        if value:
            field[key] = value
    return field


def _values(column: Column, kind: str) -> str:
    """Say which values a column has; types without categories list their levels."""
    if column.levels is None:
        return f"Values: {column.span()}"
    if kind in ("number", "boolean"):
        return f"Levels: {', '.join(column.shown()[: len(column.levels)])}"
    return f"Levels: {len(column.levels):,}"


def _constraints(column: Column) -> dict[str, Any]:
    required = {"required": not column.missing}
    if column.levels is not None:
        return {**required, "enum": [*column.levels]}
    return {
        **required,
        "minimum": _written(column.lower, column),
        "maximum": _written(column.upper, column),
    }


def _drawn(column: Column, document: PrivacyDocument, tables: Mapping[str, Any]) -> str:
    """Return how the values of a column are drawn, as the texts call it."""
    if column.public:
        return "public"
    if document.settings.get("model"):
        return "model"
    if column.levels is not None or not document.offers.even_in_cells:
        return "other"
    if column.is_binned:
        return "log_bins" if column.scale == "log" else "bins"
    return "intervals" if "intervals" in tables else "other"


def _type(column: Column) -> str:
    if column.levels is not None:
        for kind, name in LEVELS.items():
            if any(isinstance(level, kind) for level in column.levels):
                return name
    if column.type == "date" and column.unit != "year":
        return "date"
    return "integer" if column.integer else "number"


def _written(value: float | None, column: Column) -> Any:
    """Return a bound or an edge as sets write it."""
    if _type(column) == "date":
        return f"{column.spell(value or 0)}-01"[:10]
    return int(value or 0) if column.integer else value


def _missing(column: Column, kind: str) -> dict[str, str | None]:
    """Return how sets write a missing value, and its label: the first code that the
    column's type holds, or nothing.
    """
    if not column.missing:
        return {}
    is_text = kind == "string"
    codes = [code for code in column.missing_codes if isinstance(code, str) == is_text]
    if not codes or kind in ("boolean", "date"):
        return {"": None}
    spelt = spelling(codes[0])
    written = str(float(codes[0])) if kind == "number" else spelt
    return {written: column.labels.get(spelt)}


def _labelled(labels: Mapping[Any, str | None]) -> list[Any]:
    """Return values, beside their labels where there are any; labels that two values
    share are told apart.
    """
    known = [label for label in labels.values() if label]
    if not known:
        return [*labels]
    are_shared = len({*known}) < len(known)
    entries = []
    for value, label in labels.items():
        entry = {"value": value}
        if label:
            entry["label"] = f"{value} {label}" if are_shared else label
        entries.append(entry)
    return entries
