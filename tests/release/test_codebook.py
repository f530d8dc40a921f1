"""The codebook beside the sets: a Data Package by the published profile, true of every
cell, and of public facts alone.

``datapackage_2_0.json`` is the profile
https://datapackage.org/profiles/2.0/datapackage.json (public domain) without its prose.
"""

import csv
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from margin_tables import of_pairs
from small_models import cells_of, draw_cells, shares_of_cells
from tables import cases, schema_text

from pdips import KNG, LaplaceSanitizer, Margins, Modips, Schema, Table
from pdips.release.codebook import DRAWN, TABLES
from pdips.release.folder import file_digest
from pdips.statistics.model import StatisticModel

PROFILE = json.loads(
    Path(__file__).with_name("datapackage_2_0.json").read_text(encoding="utf-8")
)
N = 400
LEVELS = schema_text("codebook_levels")
NUMBERS = schema_text("codebook_numbers")
MIXED = Schema.from_toml(LEVELS.replace("[[impossible]]", NUMBERS + "[[impossible]]"))
UNBINNED = Schema(
    columns={
        "wage": {"lower": 0, "upper": 100},
        "home": {"levels": ["blue", "red"], "missing": True},
    }
)
CELLS = Schema.from_toml(
    "[columns.a]\nlevels = [0, 1]\n[columns.b]\nlevels = [0, 1, 2]"
)
MODEL = StatisticModel(cells_of, shares_of_cells, draw_cells, "cells")


def table(schema: Schema, seed: int = 5) -> Table:
    """Records whose every column has all that it may have."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "home": rng.choice(["blue", "red", None], N),
            "job": rng.choice([1, 9, -7], N),
            "region": np.repeat(["n", "s"], N // 2),
            "share": 0.5,
            "ok": rng.choice([True, False], N),
            "age": rng.integers(18, 99, N),
            "rent": rng.choice([-9.0, 12.5, 2999.0], N),
            "moved": pd.to_datetime(
                pd.Series(rng.choice(["2019-01-03", "2020-12-31", None], N))
            ),
            "born": rng.integers(1950, 2000, N),
            "w": rng.uniform(1, 90, N),
            "wage": rng.uniform(0, 100, N)
            * (1 if "job" not in schema.columns else 9000),
            "a": rng.choice([0, 1], N),
            "b": rng.choice([0, 1, 2], N),
        }
    )
    return Table(frame[[*schema.columns]], schema)


def published(
    folder: Path,
    mechanism: Any,
    schema: Schema,
    file_format: Any = "csv",
    seed: int = 5,
) -> dict[str, Any]:
    release, _ = mechanism.release(table(schema, seed))
    release.publish(folder, file_format=file_format)
    found: dict[str, Any] = json.loads(
        (folder / "datapackage.json").read_text(encoding="utf-8")
    )
    return found


def read(cell: str, kind: str) -> Any:
    """A cell of a text file by the lexical rules of Table Schema."""
    if kind == "boolean":
        return {"True": True, "False": False}[cell]
    if kind == "date":
        assert len(cell) == 10
    return {"integer": int, "number": float, "date": str, "string": str}[kind](cell)


def check(folder: Path, package: dict[str, Any]) -> None:
    """Read every cell of every file by what its resource says alone."""
    for resource in package["resources"]:
        if resource["format"] == "nc":  # a tree, which says itself what it holds
            assert xr.open_datatree(folder / resource["path"])["posterior"].sizes
            continue
        with (folder / resource["path"]).open(
            encoding=resource["encoding"], newline=""
        ) as file:
            names, *rows = csv.reader(file)
        fields = resource["schema"]["fields"]
        assert names == [field["name"] for field in fields]
        for field, cells in zip(fields, zip(*rows, strict=True), strict=True):
            limits = field.get("constraints", {})
            missing = [
                each if isinstance(each, str) else each["value"]
                for each in field.get("missingValues", [""])
            ]
            values = [
                None if cell in missing else read(cell, field["type"]) for cell in cells
            ]
            known = [value for value in values if value is not None]
            assert not (limits.get("required") and len(known) < len(values))
            assert {*known} <= {*limits.get("enum", known)}
            assert all(value >= limits.get("minimum", value) for value in known)
            assert all(value <= limits.get("maximum", value) for value in known)
            # both a value and a missing one, so the checks above saw them
            if "constraints" in field:
                assert known
                assert (None in values) != limits["required"]


MECHANISMS = [
    (Margins(epsilon=50, n_sets=2), MIXED),
    (LaplaceSanitizer(epsilon=50), Schema.from_toml(LEVELS)),
    (of_pairs(epsilon=50), UNBINNED),
    (Modips(epsilon=5, n_sets=2, model=MODEL), CELLS),
    (KNG(epsilon=50), UNBINNED),
]


@pytest.mark.parametrize(
    ("mechanism", "schema"), MECHANISMS, ids=lambda each: getattr(each, "name", "")
)
def test_the_codebook_is_a_data_package_and_true_of_every_cell(
    tmp_path, mechanism, schema
):
    package = published(tmp_path / "csv", mechanism, schema)
    jsonschema.validate(package, PROFILE)
    check(tmp_path / "csv", package)
    stated = json.loads((tmp_path / "csv/privacy.json").read_text())["digests"]
    told = {
        each["path"]: each["hash"].removeprefix("sha256:")
        for each in package["resources"]
    }
    assert stated == {
        **told,
        "datapackage.json": file_digest(tmp_path / "csv/datapackage.json"),
    }
    assert {path.name for path in (tmp_path / "csv").iterdir()} == {
        *stated,
        "privacy.json",
    }
    for name, each in ((each["name"], each) for each in package["resources"]):
        assert name in TABLES or name.startswith("synthetic_")
        fields = each.get("schema", {"fields": []})["fields"]
        assert fields or each["format"] == "nc"
        assert all(field["description"] for field in fields)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "whole"},
        {"name": 3},
        {"missingValues": [-7]},
        {"categories": ["1"]},
        {"constraints": {"required": 1}},
    ],
)
def test_the_profile_refuses_what_is_no_data_package(tmp_path, wrong):
    package = published(tmp_path / "csv", Margins(epsilon=1), CELLS)
    package["resources"][-1]["schema"]["fields"][0] |= wrong
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(package, PROFILE)


def test_a_false_codebook_is_caught(tmp_path):
    package = published(tmp_path / "csv", Margins(epsilon=50), MIXED)
    fields = {
        field["name"]: field for field in package["resources"][-1]["schema"]["fields"]
    }
    for name, key, false in [
        ("age", "constraints", {"required": True, "maximum": 60}),
        ("job", "constraints", {"required": False, "enum": [1, 2]}),
        ("job", "missingValues", [""]),
        ("rent", "missingValues", ["-9"]),
        ("moved", "constraints", {"required": True}),
        ("share", "type", "integer"),
    ]:
        kept = fields[name][key]
        fields[name][key] = false
        with pytest.raises((AssertionError, ValueError)):
            check(tmp_path / "csv", package)
        fields[name][key] = kept
    check(tmp_path / "csv", package)


@pytest.mark.parametrize(("name", "said"), cases(__file__, "what_is_said_of_a_column"))
def test_what_is_said_of_a_column(tmp_path, name, said):
    package = published(tmp_path, Margins(epsilon=50), MIXED)
    field = next(
        each
        for each in package["resources"][-1]["schema"]["fields"]
        if each["name"] == name
    )
    assert {key: field[key] for key in said} == json.loads(json.dumps(said))


def test_nothing_in_it_is_of_the_table(tmp_path):
    one, other = (
        published(tmp_path / str(seed), Margins(epsilon=1), MIXED, seed=seed)
        for seed in (1, 2)
    )
    hashes = [
        [each.pop("hash") for each in package["resources"]] for package in (one, other)
    ]
    assert one == other
    assert hashes[0] != hashes[1]
    assert (one["name"], one["title"]) == ("a-mixed-table-2020", "A mixed Table, 2020")
    assert (one["impossible"], len(one["rule"])) == ([{"job": [2], "ok": [False]}], 1)


def test_how_numbers_without_bins_and_those_of_models_were_drawn(tmp_path):
    for mechanism, schema, drawn in [
        (MECHANISMS[2][0], UNBINNED, "intervals"),
        (MECHANISMS[3][0], CELLS, "model"),
    ]:
        package = published(tmp_path / drawn, mechanism, schema, "parquet")
        first = package["resources"][-1]["schema"]["fields"][0]
        assert first["description"].endswith(f". {DRAWN[drawn]}.")
        assert "bins" not in first
        assert package["resources"][-1]["mediatype"] == "application/vnd.apache.parquet"


def test_files_of_spss_are_listed_beside_the_sets(tmp_path):
    package = published(tmp_path, LaplaceSanitizer(epsilon=1), CELLS, "sav")
    jsonschema.validate(package, PROFILE)
    assert [each["name"] for each in package["resources"]] == [
        "answers",
        "margins",
        "synthetic_1",
        "synthetic_1.sav",
    ]
    assert package["resources"][2]["schema"] == package["resources"][3]["schema"]
