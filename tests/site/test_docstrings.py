"""Every public name has an example that runs: what ``pdips`` exports, and what the
pages of docs/api describe.
"""

import doctest
import math
import pkgutil
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pdips
from pdips import Schema, Table, registry

ROOT = Path(__file__).parents[2]
DESCRIBED = re.compile(r"(?m)^\.\. auto(?:class|function):: (\S+)$")
PUBLIC = sorted(
    {f"pdips.{name}" for name in pdips.__all__}
    | {
        name
        for page in (ROOT / "docs" / "api").glob("*.md")
        for name in DESCRIBED.findall(page.read_text("utf-8"))
    }
)
WITHOUT: set[str] = {"pdips_papers.harness.run.measure"}
"""Public names that have no example yet. It may only become shorter."""


def find(name: str) -> object:
    # a module may have a function of its own name
    return pkgutil.resolve_name(":".join(name.rsplit(".", 1)))


def examples_of(named: object) -> doctest.DocTest | None:
    """Return the examples in an object's own docstring, None if it has none.

    They run in a copy of its module's names, and as after ``from pdips import *`` and
    the usual imports of data.
    """
    names = {name: getattr(pdips, name) for name in pdips.__all__} | {
        "np": np,
        "pd": pd,
    }
    names |= vars(sys.modules[named.__module__])
    [found] = doctest.DocTestFinder(recurse=False, exclude_empty=False).find(
        named, name="public", globs=names
    )
    return found if found.examples else None


def run(found: doctest.DocTest) -> str:
    """Return what was other than the examples say, an empty text if all is as
    they say.
    """
    complaints: list[str] = []
    doctest.DocTestRunner(
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    ).run(found, out=complaints.append)
    return "".join(complaints)


@pytest.mark.slow_cases(
    "pdips.Ledger",
    "pdips.Release",
    "pdips.Scores",
    "pdips.evaluation.distribution.ecdf_distances",
    "pdips.evaluation.evaluate.specific_utility",
    "pdips.evaluation.margins.compare",
    "pdips.evaluation.margins.k_way",
    "pdips.evaluation.propensity.specks",
    "pdips.evaluation.regression.compare_fits",
    "pdips.inference.rule_for",
    "pdips.noisy_likelihood",
    "pdips.synthesize",
)
@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in WITHOUT])
def test_a_public_name_has_an_example_that_runs(name, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "MECHANISMS", dict(registry.MECHANISMS))
    monkeypatch.setattr(registry, "AUDITS", dict(registry.AUDITS))
    found = examples_of(find(name))
    assert found is not None, "no example in its docstring"
    assert not (complaints := run(found)), complaints


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_a_name_without_an_example_is_still_without(name):
    assert name in PUBLIC
    assert examples_of(find(name)) is None, "it has one: take it out of WITHOUT"


def test_a_wrong_or_missing_example_would_be_seen():
    # the broken twins
    def right():
        """>>> 1 + 1
        2
        """

    def wrong():
        """>>> 1 + 1
        3
        """

    assert not run(examples_of(right))
    assert "Got:\n    2" in run(examples_of(wrong))
    assert examples_of(test_a_wrong_or_missing_example_would_be_seen) is None


# The example tables: they pass their schemas, they are as large as their README says,
# and every rule on them bites.

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("youth", "hours", "earnings")
RECORDS = {"youth": 48_371, "hours": 48_842, "earnings": 7_675}
CELLS = {"youth": 1_492_992, "hours": 2_830_464, "earnings": 5_616}
LARGEST = {"youth": 200_000, "hours": 250_000, "earnings": 50_000}


def schema_of(name: str) -> Schema:
    return Schema.load(EXAMPLES / f"{name}.toml")


def table_of(name: str) -> Table:
    return Table.read(EXAMPLES / f"{name}.parquet", schema_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_table_passes_its_schema_and_is_as_its_readme_says(name: str) -> None:
    schema, table, path = schema_of(name), table_of(name), EXAMPLES / f"{name}.parquet"
    assert table.n_records == RECORDS[name]
    assert list(table.codes) == list(table.schema.columns) == list(table.frame.columns)
    assert (
        math.prod(column.n_levels for column in schema.columns.values())
        == CELLS[name]
        < 3_000_000
    )
    assert Schema.from_toml(schema.to_toml()) == schema
    assert schema.title
    assert all(column.label for column in schema.columns.values())
    assert all(
        column.unit for column in schema.columns.values() if not column.is_categorical
    )
    found = pq.read_schema(path)
    assert not found.metadata  # no index of pandas, no trace of where it was made
    assert set(found.types) <= {pa.string(), pa.int64(), pa.float64()}
    assert path.stat().st_size < LARGEST[name]
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    row = next(
        line for line in readme.splitlines() if line.startswith(f"| `{name}.parquet`")
    )
    assert f"| {RECORDS[name]:,} |" in row
    assert f"| {CELLS[name]:,}" in row


def test_youth_has_as_many_possible_cells_as_stated() -> None:
    schema = schema_of("youth")
    possible = np.ones(
        [column.n_levels for column in schema.columns.values()], dtype=bool
    )
    for codes in schema.zeros():
        every = (
            codes.get(name, range(column.n_levels))
            for name, column in schema.columns.items()
        )
        possible[np.ix_(*map(list, every))] = False
    assert possible.sum() == 921_600


def test_what_the_readme_says_of_columns_and_persons() -> None:
    assert (
        sum(path.stat().st_size for path in EXAMPLES.rglob("*") if path.is_file())
        < 600_000
    )
    assert schema_of("youth").records.max_per_person == 2
    table = table_of("hours")
    columns = table.schema.columns
    assert columns["capital_gain"].names()[0] == "0"
    assert "40" in columns["hours_per_week"].names()
    unknown = (table.frame["workclass"] == "?").to_numpy()
    assert unknown.any()
    assert (table.codes["workclass"][unknown] == columns["workclass"].n_values).all()
