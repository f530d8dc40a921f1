"""Paper 000, section 3: linear regression on synthetic sets of STEPS, the universal histogram and PrivBayes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.table import Table, decode
from pdips.inference import combine
from pdips.mechanism import Mechanism
from pdips.privacy.loss import exact
from pdips.registry import find
from pdips_papers.harness.framework import Block, Data, Finding, Options, Picture, Task
from pdips_papers.steps.regression_models import Fit, Model, draw, fit, model

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
DEFAULT = "steps as by default"
REFERENCES = ("the table itself", "bins alone")
GROUPS = ("x1+x2+x4", "x3+y")
"""The two layers of the tree: the simulation puts a group of columns into each."""

ELECTION_SHARE = Fraction(1, 10)
"""Part of the budget that the paper sets aside for building the tree."""

MOST_SHOWN = 20
"""With more coefficients than this the table has quartiles over coefficients."""

NORMAL_QUANTILE = 1.959964

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


@dataclass(frozen=True, kw_only=True)
class StepsRegression:
    """Section 3 of paper 000: bias, root mean squared error and coverage of regression coefficients; prediction.

    Parameters
    ----------
    methods : sequence of str
        Methods to run; all by default.
    samples : sequence of int
        Numbers of records.
    """

    name: ClassVar[str] = "steps-regression"
    title: ClassVar[str] = "Linear regression on synthetic sets: STEPS, universal histogram and PrivBayes"
    default_replicates: ClassVar[int] = 50
    data: ClassVar[Data] = "none"

    methods: Sequence[str] = METHODS
    samples: Sequence[int] = SAMPLES

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
            for n_records in self.samples
        ]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw a table, release it by all methods at all epsilons, and measure what the sets say of the model."""
        rng = np.random.default_rng(seed)
        number, n_records = int(arguments["model"]), int(arguments["n_records"])
        what = model(number)
        table = draw(what, n_records, rng)
        test = rng.integers(len(what.means), size=N_TEST)
        y = what.means[test] + rng.standard_normal(N_TEST)
        cases: list[tuple[Place, Sequence[pd.DataFrame]]] = [(Place(number, n_records, REFERENCES[0]), [table.frame])]
        cases.append((Place(number, n_records, REFERENCES[1]), [_within_bins(table, rng) for _ in range(N_SETS)]))
        for epsilon in arguments["epsilons"]:
            for method in self.methods:
                for form in FORMS:
                    sets = release(table, method, form, epsilon, rng)
                    cases.append((Place(number, n_records, method, form, epsilon), sets))
            ours = find("steps")(epsilon=epsilon, n_sets=N_SETS).release(table, rng=rng)[0].sets
            cases.append((Place(number, n_records, DEFAULT, "", epsilon), ours))
        return [_measurement(place, what, sets, what.design[test], y) for place, sets in cases]

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Summarise over replicates: by coefficient and over coefficients."""
        rows: list[dict[str, Any]] = []
        for row, found in measurements.groupby("row", sort=False):
            what = model(int(found["model"].iloc[0]))
            figures = summary(found, what) | _by_coefficient(found, what)
            rows += [
                {"row": row, "column": column, "ours": ours, "standard_error": error, "paper": np.nan}
                for column, (ours, error) in figures.items()
            ]
        return pd.DataFrame(rows)

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """One block a model and size, and one more for its coefficients."""
        blocks = []
        for number, n_records in [(number, n_records) for number in (1, 2) for n_records in self.samples]:
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
        from pdips_papers.steps.regression_pictures import pictures

        return pictures(measurements, self.samples)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Hold the claims that the paper makes in words against the table."""
        from pdips_papers.steps.regression_findings import findings

        return findings(table, self.samples)

    def text(self) -> str:
        """Return what was done, what the paper says of its figures, and what its rows really spend."""
        return files("pdips_papers").joinpath("texts", "steps-regression.html").read_text(encoding="utf-8")


def release(table: Table, method: str, form: str, epsilon: str, rng: np.random.Generator) -> Sequence[pd.DataFrame]:
    """Return the synthetic sets of one method."""
    common = {"n_sets": N_SETS, **FORMS[form]}
    if method == "PrivBayes":
        # The code that the paper ran uses mutual information and considers every family.
        as_published = {"score": "mi", "usefulness": 0} if form == "published" else {}
        found: Mechanism = find("privbayes")(epsilon=epsilon, degree=2, **as_published, **common)
        return found.release(table, rng=rng)[0].sets
    if method == "UH modified":
        found = find("universal-histogram")(epsilon=epsilon, layers=4, **common)
        return found.release(table, rng=rng)[0].sets
    # the paper read the grouping off the data, without noise; here it is given, and what its elections cost is left out
    budget = exact(epsilon, "epsilon") * (1 - ELECTION_SHARE if form == "published" else 1)
    found = find("steps")(epsilon=budget, order=GROUPS, **common)
    return found.release(table, rng=rng)[0].sets


def _within_bins(table: Table, rng: np.random.Generator) -> pd.DataFrame:
    """Return the table with each y drawn anew inside its bin: what cutting y does without any noise."""
    return decode(table.schema, table.codes, rng)


def _measurement(
    place: Place, what: Model, sets: Sequence[pd.DataFrame], regressors: FloatArray, y: FloatArray
) -> dict[str, Any]:
    """Analyse the sets of one release: estimates, whether intervals cover the truth, and the error of predictions."""
    fits = [fit(what, frame) for frame in sets]
    estimate, (lower, upper) = _together(fits)
    return {
        "row": str(place),
        "column": SUMMARIES["prediction"],
        "value": float(np.mean((y - regressors @ estimate) ** 2)),
        "model": place.number,
        "estimates": np.round(estimate, 6).tolist(),
        "covered": ((lower <= what.beta) & (what.beta <= upper)).astype(int).tolist(),
    }


def _together(fits: Sequence[Fit]) -> tuple[FloatArray, tuple[FloatArray, FloatArray]]:
    if len(fits) > 1:
        combined = combine([one.estimate for one in fits], [one.variance for one in fits])
        return combined.estimate, combined.interval
    half = NORMAL_QUANTILE * np.sqrt(fits[0].variance)
    return fits[0].estimate, (fits[0].estimate - half, fits[0].estimate + half)


def _arrays(found: pd.DataFrame, what: Model) -> tuple[FloatArray, FloatArray]:
    """Return errors of the estimates and whether intervals cover, each of shape (replicates, coefficients)."""
    errors = np.array(found["estimates"].tolist(), dtype=np.float64) - what.beta
    return errors, np.array(found["covered"].tolist(), dtype=np.float64)


def summary(found: pd.DataFrame, what: Model) -> dict[str, tuple[float, float]]:
    """Return figures averaged over coefficients, with standard errors over replicates by linearisation.

    ``found`` has the estimates and the coverage of one replicate a row, and the prediction error as ``value``.
    """
    errors, covered = _arrays(found, what)
    bias, rmse = errors.mean(axis=0), np.sqrt((errors**2).mean(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(rmse > 0, errors**2 / (2 * rmse), 0.0)
    prediction = found["value"].to_numpy(dtype=np.float64)
    return {
        SUMMARIES["bias"]: (float(np.abs(bias).mean()), _error((np.sign(bias) * errors).mean(axis=1))),
        SUMMARIES["rmse"]: (float(rmse.mean()), _error(parts.mean(axis=1))),
        SUMMARIES["coverage"]: (float(covered.mean()), _error(covered.mean(axis=1))),
        SUMMARIES["prediction"]: (float(prediction.mean()), _error(prediction)),
    }


def _by_coefficient(found: pd.DataFrame, what: Model) -> dict[str, tuple[float, float]]:
    """Return bias, RMSE and coverage of each coefficient, or their quartiles where there are many."""
    errors, covered = _arrays(found, what)
    measures = {
        "bias": errors.mean(axis=0),
        "RMSE": np.sqrt((errors**2).mean(axis=0)),
        "coverage": covered.mean(axis=0),
    }
    if len(what.beta) > MOST_SHOWN:
        quartiles = {"lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75}
        return {
            f"{label}, {name}": (float(np.quantile(values, share)), math.nan)
            for label, values in measures.items()
            for name, share in quartiles.items()
        }
    spread = {
        "bias": [_error(column) for column in errors.T],
        "RMSE": [math.nan] * len(what.beta),
        "coverage": [_error(column) for column in covered.T],
    }
    return {
        f"{label} {name}": (float(value), error)
        for label, values in measures.items()
        for name, value, error in zip(what.names, values, spread[label], strict=True)
    }


def _error(values: FloatArray) -> float:
    """Return the standard error of a mean over replicates."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
