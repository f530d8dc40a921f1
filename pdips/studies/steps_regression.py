"""Paper 000, section 3: linear regression on synthetic sets of STEPS, the universal histogram and PrivBayes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.inference import combine
from pdips.mechanism import Mechanism
from pdips.registry import find
from pdips.schema import Column, Schema
from pdips.studies.framework import Block, Data, Options, Picture, Task
from pdips.studies.regression_models import FloatArray, Model, cell_of, draw, fit, model
from pdips.table import Table

N_SETS = 4
N_TEST = 100
EPSILONS = ("0.5", "2", "5", "10")
SAMPLES = (10_000, 4_000)
METHODS = ("STEPS", "UH modified", "PrivBayes")
FORMS: dict[str, dict[str, Any]] = {
    "published": {"variant": "published", "split": "per-set"},
    "sound": {"variant": "sound", "split": "per-set"},
    "sound, measured once": {"variant": "sound", "split": "once"},
}
REFERENCES = ("the table itself", "bins alone")
FIRST_GROUP = ("x1", "x2", "x4")
ELECTION_SHARE = "1/10"
"""Part of the budget that the paper sets aside for building the tree."""

SUMMARIES = {
    "bias": "mean |bias|",
    "rmse": "mean RMSE",
    "coverage": "mean coverage",
    "prediction": "prediction MSE",
}


@dataclass(frozen=True)
class Place:
    """A row of the table, as its text says it."""

    number: int
    n_records: int
    method: str
    form: str = ""
    epsilon: str = ""

    def __str__(self) -> str:
        method = f"{self.method} ({self.form})" if self.form else self.method
        return f"model {self.number}, n = {self.n_records:,}" + (
            f", epsilon = {self.epsilon}: {method}" if self.epsilon else f": {method}"
        )


class StepsRegression:
    """Section 3 of paper 000: bias, root mean squared error and coverage of regression coefficients; prediction."""

    name: ClassVar[str] = "steps-regression"
    title: ClassVar[str] = "Linear regression on synthetic sets: STEPS, universal histogram and PrivBayes"
    default_replicates: ClassVar[int] = 50
    data: ClassVar[Data] = "none"

    def tasks(self, options: Options) -> list[Task]:
        """One simulated table of one model and size a task: all methods and epsilons are run on it."""
        epsilons = list(options.epsilons or EPSILONS)
        return [
            Task(
                key=f"model{number}.n={n_records}.replicate={replicate}",
                arguments={"model": number, "n_records": n_records, "epsilons": epsilons},
            )
            for replicate in range(options.replicates)
            for number in (1, 2)
            for n_records in SAMPLES
        ]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw a table, release it by all methods at all epsilons, and measure what the sets say of the model."""
        rng = np.random.default_rng(seed)
        number, n_records = int(arguments["model"]), int(arguments["n_records"])
        what = model(number)
        table = draw(what, n_records, rng)
        test = rng.integers(len(what.means), size=N_TEST)
        y = what.means[test] + rng.normal(size=N_TEST)
        cases = [(Place(number, n_records, REFERENCES[0]), [table.frame])]
        cases.append((Place(number, n_records, REFERENCES[1]), [_within_bins(table, rng) for _ in range(N_SETS)]))
        for epsilon in arguments["epsilons"]:
            for method in METHODS:
                for form in FORMS:
                    sets = release(table, method, form, epsilon, rng)
                    cases.append((Place(number, n_records, method, form, epsilon), sets))
        return [_measurement(place, what, sets, what.design[test], y) for place, sets in cases]

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Summarise over replicates: by coefficient and over coefficients."""
        rows: list[dict[str, Any]] = []
        for row, found in measurements.groupby("row", sort=False):
            what = model(int(found["model"].iloc[0]))
            figures = _summary(found, what) | _by_coefficient(found, what)
            rows += [
                {"row": row, "column": column, "ours": ours, "standard_error": error, "paper": np.nan}
                for column, (ours, error) in figures.items()
            ]
        return pd.DataFrame(rows)

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """One block a model and size, and one more for its coefficients."""
        blocks = []
        for number, n_records in [(number, n_records) for number in (1, 2) for n_records in SAMPLES]:
            start = f"model {number}, n = {n_records:,}"
            mine = table[table["row"].str.startswith(start)]
            rows = {row: row.removeprefix(start).lstrip(",: ") for row in mine["row"].unique()}
            columns = [column for column in mine["column"].unique() if column not in SUMMARIES.values()]
            title = f"Model {number}, n = {n_records:,}"
            summaries = {column: column for column in SUMMARIES.values()}
            blocks.append(Block(title=title, rows=rows, columns=summaries, group=f"Model {number}"))
            more = f"{title}: {'by coefficient' if number == 1 else 'quartiles of the coefficients'}"
            blocks.append(
                Block(title=more, rows=rows, columns=dict(zip(columns, columns, strict=True)), headline=False)
            )
        return blocks

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[Picture]:
        """Draw the paper's figures 2 and 3."""
        from pdips.studies.regression_pictures import pictures

        return pictures(measurements)

    def text(self) -> str:
        """Return what was done, what the paper says of its figures, and what its rows really spend."""
        from pdips.studies.regression_text import TEXT

        return TEXT


def release(table: Table, method: str, form: str, epsilon: str, rng: np.random.Generator) -> Sequence[pd.DataFrame]:
    """Return the synthetic sets of one method."""
    build, source = _BUILDERS[method]
    return source(table, build(epsilon, form, table.schema, rng), rng)


def _privbayes(epsilon: str, form: str, schema: Schema, rng: np.random.Generator) -> Mechanism:
    found: Mechanism = find("privbayes")(epsilon=epsilon, n_sets=N_SETS, degree=2, **FORMS[form])
    return found
