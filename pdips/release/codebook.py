"""``datapackage.json``: the codebook of what is published, as a Frictionless Data Package (datapackage.org, 2.0)."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from pdips.data.column import Column
from pdips.data.dates import spelling
from pdips.registry import HOMES
from pdips.release.documents import PrivacyDocument

CODEBOOK = "datapackage.json"
PROFILE = "https://datapackage.org/profiles/2.0/{}.json"
DTYPES = {"i": "integer", "u": "integer", "f": "number", "b": "boolean"}
LEVELS = {str: "string", float: "number", bool: "boolean", int: "integer"}
_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
DRAWN, TABLES, MEDIA_TYPES = _TEXTS["drawn"], _TEXTS["tables"], _TEXTS["media_types"]


def codebook(
    document: PrivacyDocument, digests: Mapping[str, str], tables: Mapping[str, pd.DataFrame]
) -> dict[str, Any]:
    """Return a Data Package that describes the files of a release, whose SHA-256 are given by name.

    Of ``tables``, those beside the sets, only names and types of columns are read. Beyond the standard a field has its
    ``origin`` ("public" or "synthetic"), ``unit``, ``bins`` (``number``, ``scale``, and ``edges`` where the schema
    lists them), ``groups`` as the schema has them, and ``weight`` if it is the weight.
    """
    schema, resources = document.table_schema, []
    columns = [{"name": name, **_field(name, column, document, tables)} for name, column in schema.columns.items()]
    fields, members = {"synthetic": columns}, schema.members
    if members is not None:
        key = {"name": members.key, "type": "integer", "description": "The household, by a number of the set."}
        own = members.of_households(schema.columns)
        alone = ({"name": name, **_field(name, c, document, tables)} for name, c in members.columns.items())
        fields |= {"households": [key, *(c for c in columns if c["name"] in own)], "members": [key, *alone]}
    for path, digest in sorted(digests.items()):
        stem, _, suffix = path.rpartition(".")
        known, dtypes = TABLES.get(stem, {}), tables[stem].dtypes.items() if stem in tables else ()
        beside = [
            {"name": name, "type": DTYPES.get(dtype.kind, "string"), "description": known.get(name, known.get("*", ""))}
            for name, dtype in dtypes
        ]
        found = {
            "$schema": PROFILE.format("dataresource"),
            "name": path if suffix in ("sav", "dta") else stem,
            "title": known.get("title", stem.replace("_", " ")),
            "type": "table",
            "profile": "tabular-data-resource",  # for readers of version 1
            "path": path,
            "format": suffix,
            "mediatype": MEDIA_TYPES[suffix],
            "hash": f"sha256:{digest}",
            "schema": {
                "$schema": PROFILE.format("tableschema"),
                "fields": beside if stem in tables else fields.get(stem.split("_")[0], columns),
            },
        }
        resources.append(found | ({"encoding": "utf-8"} if suffix == "csv" else {}))
    return {
        "$schema": PROFILE.format("datapackage"),
        "name": re.sub(r"[^a-z0-9]+", "-", (schema.title or "").lower()).strip("-") or "synthetic-data",
        "title": schema.title or "Synthetic data",
        "description": f"Synthetic sets: {document.n_sets}, by {document.mechanism}. {document.privacy.statement}",
        **{key: rules for key, rules in schema.to_dict().items() if key in ("impossible", "rule")},
        "resources": resources,
    }


def _field(name: str, column: Column, document: PrivacyDocument, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is public of a column, and how its values were drawn."""
    levels, kind, weight = column.levels, _type(column), name == document.table_schema.records.weight
    found: dict[str, Any] = {"type": kind, "title": column.label or name}
    constraints: dict[str, Any] = {"required": not column.missing}
    if levels is None:
        what = f"Values: {column.span()}"
        constraints |= {"minimum": _written(column.lower, column), "maximum": _written(column.upper, column)}
    else:
        what = f"Levels: {len(levels):,}"
        if kind in ("number", "boolean"):  # which have no categories
            what = f"Levels: {', '.join(column.shown()[: len(levels)])}"
        constraints["enum"] = [*levels]
        if kind in ("string", "integer"):
            found["categories"] = _labelled({level: column.labels.get(spelling(level)) for level in levels})
    if column.is_binned:
        edges = {"edges": [_written(edge, column) for edge in column.bin_edges]} if column.bin_edges else {}
        found["bins"] = {"number": column.n_values, "scale": column.scale, **edges}
    drawn = "public" if column.public else "model" if document.settings.get("model") else "other"
    if drawn == "other" and levels is None and document.mechanism in HOMES and document.mechanism[:3] != "kng":
        binned = "log_bins" if column.scale == "log" else "bins"
        drawn = binned if column.is_binned else "intervals" if "intervals" in tables else "other"
    notes = {
        "total": any(name in total.columns for total in document.totals),
        "weight": weight,
        "raked": weight and any(total.weighted for total in document.table_schema.total),
    }
    extras = {"unit": column.unit, "groups": column.groups, "weight": weight}
    return found | {
        "description": ". ".join([what, DRAWN[drawn], *(DRAWN[key] for key, holds in notes.items() if holds)]) + ".",
        "constraints": constraints,
        "missingValues": _labelled(_missing(column, kind)),
        "origin": "public" if column.public else "synthetic",
        **{key: value for key, value in extras.items() if value},
    }


def _type(column: Column) -> str:
    if column.levels is not None:
        return next(LEVELS[kind] for kind in LEVELS if any(isinstance(level, kind) for level in column.levels))
    return "date" if column.type == "date" and column.unit != "year" else "integer" if column.integer else "number"


def _written(value: float | None, column: Column) -> Any:
    """Return a bound or an edge as sets write it."""
    if _type(column) == "date":
        return f"{column.spell(value or 0)}-01"[:10]
    return int(value or 0) if column.integer else value


def _missing(column: Column, kind: str) -> dict[str, str | None]:
    """Return how sets write a missing value, and its label: the first code that the column's type holds, or nothing."""
    codes = [code for code in column.missing_codes if isinstance(code, str) == (kind == "string")]
    if not column.missing or not codes or kind in ("boolean", "date"):
        return {"": None} if column.missing else {}
    spelt = spelling(codes[0])
    return {str(float(codes[0])) if kind == "number" else spelt: column.labels.get(spelt)}


def _labelled(labels: Mapping[Any, str | None]) -> list[Any]:
    """Return values, beside their labels where there are any; labels that two values share are told apart."""
    known = [label for label in labels.values() if label]
    if len({*known}) < len(known):
        labels = {value: label and f"{value} {label}" for value, label in labels.items()}
    both = [{"value": value, **({"label": label} if label else {})} for value, label in labels.items()]
    return both if known else [*labels]
