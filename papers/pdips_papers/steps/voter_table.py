"""The youth voter table of Bowen et al. (2021): its schema, a reader, a simulated table, the paper's table 3."""

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from pdips.data.readers import read_frame
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.margins import CATEGORIES
from pdips_papers.harness.printed import figures

PAPER_METHODS = ("flat Laplace", "PrivBayes", "UH modified-2", "UH modified-3", "STEPS-2", "STEPS-3")
"""The six methods of table 3, in its order."""

MEASURES = {
    "ks_distance": "SPECKS: KS distance",
    "consistency_1": "consistency rate, 1 %",
    "consistency_5": "consistency rate, 5 %",
    "consistency_10": "consistency rate, 10 %",
    "overlap_all": "CI overlap, all coefficients",
    "overlap_prereg": "CI overlap, prereg. state",
    "overlap_registered": "CI overlap, reg. status",
    "overlap_interaction": "CI overlap, prereg. x reg.",
}
"""The measures of table 3: their columns in ``voter_table3.csv``, and what they are called here."""

SMALLER_IS_BETTER = frozenset({"ks_distance"})
P_VALUES = tuple(f"p original {ours}, synthetic {theirs}" for ours in CATEGORIES for theirs in CATEGORIES)
"""Numbers of the 105 pairs by category of both p-values, by rows: the paper's tables 4 to 9."""
RESAMPLE = "resample, not private"

NEVER, ALWAYS = "no pair found associated", "every pair found associated"
"""What consistency rates come to if the tests on synthetic sets say the same of all pairs, whatever the data."""

REFERENCES = (RESAMPLE, NEVER, ALWAYS)
FIRTH = {key.replace("overlap", "firth"): f"{label} (Firth)" for key, label in MEASURES.items() if "overlap" in key}
SCORE = "overall score"
AMONG_ALL = " among all"


def _data(name: str) -> str:
    return files("pdips_papers").joinpath("data", name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def voter_schema() -> Schema:
    """Return the schema of the voter table, levels as in the paper's table 1."""
    return Schema.from_toml(_data("voter.toml"), source="voter.toml")


@lru_cache(maxsize=1)
def paper_table() -> pd.DataFrame:
    """Return the paper's tables 3 to 9 as printed: 30 rows; measures, printed ranks and scores, and the P_VALUES."""
    path = files("pdips_papers").joinpath("data", "voter_table3.csv")
    with path.open(encoding="utf-8") as file:
        return pd.read_csv(file)


def read_voter(path: str | Path) -> Table:
    """Read the voter table from a ``.csv`` or ``.parquet`` file.

    Columns go by the names of the schema or by those of the paper's table 1, in any case and punctuation; others are
    left out. Values are the levels of the schema, or whole numbers from 0 that count them in their order.
    """
    frame, schema = read_frame(path), voter_schema()
    found = {_plain(str(name)): str(name) for name in reversed(frame.columns)}
    columns: dict[str, Any] = {}
    for name, column in schema.columns.items():
        source = found.get(name, found.get(_plain(column.label or name)))
        if source is None:
            raise InputError(
                f"the voter table lacks a column {name!r} (or {column.label!r}); it needs these 15: "
                f"{', '.join(schema.columns)}"
            )
        columns[name] = _levels(name, frame[source], column)
    return Table(pd.DataFrame(columns), schema)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _levels(name: str, values: pd.Series, column: Column) -> pd.Series:
    """Return the values as levels, if they are that or codes of levels."""
    spelt = {str(level): level for level in column.levels}
    text = values.astype(str)
    if text.isin(list(spelt)).all():
        return text.map(spelt)
    codes = pd.to_numeric(values, errors="coerce")
    if not codes.isin(range(column.n_values)).all():
        raise InputError(
            f"column {name!r} of the voter table must hold {', '.join(map(str, column.levels))}; "
            f"or 0 to {column.n_values - 1} for these in their order"
        )
    return codes.astype("int64").map(dict(enumerate(column.levels)))


N_RECORDS = 44_821

PERCENTAGES = figures("voter", "percentages")
"""Of the levels in their order: the paper's table 1."""


def simulated_voters(n: int = N_RECORDS, *, rng: np.random.Generator) -> pd.DataFrame:
    """Draw a table with the columns, the shares of levels and roughly the sparseness of Bowen et al.'s voter table.

    Parameters
    ----------
    n : int
        Number of records; the paper's by default.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    DataFrame, n by 15
        Levels of :func:`pdips_papers.steps.voter_data.voter_schema`. Shares are those of the paper's table 1 to the
        nearest record; nobody votes without being registered. How columns depend on each other is made up: compare
        methods on it, and don't read anything about voters from it.
    """
    codes = _Codes(n, rng)
    place, means = rng.standard_normal((2, n))
    metro = codes.cut("metro", 2.2 * place)
    prereg = codes.cut("prereg_state", 1.2 * place)
    age = codes.cut("age", np.zeros(n)) - 2.0
    hispanic = codes.cut("hispanic", place + 0.8 * prereg - 0.6 * means)
    white = codes.cut("white", 3 * hispanic - 0.9 * metro + 0.6 * means)
    female = codes.cut("female", np.zeros(n))
    score = 3 * means + 0.7 * white - 0.5 * hispanic + 0.6 * metro - 0.35 * age
    income = (codes.cut("income", score) - 8.0) / 4
    married = codes.cut("married", age + 0.5 * female - 0.8 * income + 0.5 * hispanic - 0.6 * metro)
    college = codes.cut("college", 2.6 * age + 0.5 * income + 0.4 * white + 0.3 * female)
    score = -0.55 * age - 2.6 * married - 1.2 * college + 0.9 * income + 0.3 * hispanic - 0.2 * metro
    residence = (codes.cut("residence", score) - 3.3) / 1.8
    codes.cut("business_farm", 1.3 * income + white - 1.4 * metro - 0.8 * hispanic + 0.5 * residence)
    codes.cut("in_person", -1.5 * residence + 0.5 * married - 0.5 * income - 0.5 * metro + 0.4 * hispanic)
    score = 0.35 * age + 1.6 * college + 0.5 * income + 0.3 * white - 1.3 * hispanic
    registered = codes.cut("registered", score + 0.45 * residence + 0.25 * female + 0.25 * prereg)
    allowed = registered == 1
    dmv = codes.cut("dmv", 0.5 * prereg - 0.2 * age + 0.3 * metro + 0.2 * residence, allowed)
    score = 0.1 * age + 1.3 * college + 0.5 * income + 0.35 * residence + 0.3 * female
    codes.cut("voted", score - 0.2 * hispanic - 0.8 * dmv + 0.1 * prereg, allowed)
    return codes.frame()


class _Codes:
    """Columns, one after the other, each the rank of a score and logistic noise."""

    def __init__(self, n: int, rng: np.random.Generator) -> None:
        self._n, self._rng = n, rng
        self._found: dict[str, NDArray[np.int64]] = {}

    def cut(self, name: str, score: ArrayLike, allowed: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Cut scores, with noise, at the shares of the levels; only those allowed may get the last level."""
        blurred = 0.7 * np.asarray(score, dtype=np.float64) + self._rng.logistic(size=self._n)
        if allowed is not None:
            blurred = np.where(allowed, blurred, -np.inf)
        codes = np.empty(self._n, dtype=np.int64)
        codes[np.argsort(blurred, kind="stable")] = _sorted_codes(PERCENTAGES[name], self._n)
        self._found[name] = codes
        return codes

    def frame(self) -> pd.DataFrame:
        """Return the levels, columns in the order of the schema."""
        return pd.DataFrame(
            {
                name: np.array(column.levels, dtype=object)[self._found[name]]
                for name, column in voter_schema().columns.items()
            }
        )


def _sorted_codes(percentages: Sequence[float], n: int) -> NDArray[np.int64]:
    """Return n codes in ascending order, each as often as its percentage says, to the nearest record."""
    ends = np.rint(n * np.cumsum(percentages) / sum(percentages)).astype(np.int64)
    return np.repeat(np.arange(len(percentages)), np.diff(ends, prepend=0))
