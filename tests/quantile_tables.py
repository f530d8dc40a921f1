"""Lines of given records, and their laws."""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pandas as pd

from pdips import Schema, Table
from pdips.privacy.answers import Answers
from pdips.privacy.curator import Curator
from pdips.privacy.noise import RandomBits, exponential_mechanism
from pdips.privacy.plan import Plan
from pdips.privacy.replay import exact_law
from pdips.quantile.column_plan import ColumnBudget
from pdips.quantile.gradient import LineRegression, RegressionRecords
from pdips.quantile.line_search import UNAVAILABLE, Fitter
from pdips.quantile.quantile_plan import QuantilePlan

NO_TABLE = Table(
    pd.DataFrame({"y": [0.0]}), Schema.from_toml("[columns.y]\nlower = 0\nupper = 1\n")
)
"""Stands for a table where records are given otherwise."""


def regression_of(
    outcome: np.ndarray, predictors: np.ndarray, lower: float, upper: float
) -> LineRegression:
    """Return the regression of given records, whatever the table."""
    records = RegressionRecords.of(outcome, predictors)
    return LineRegression(
        read=lambda table: records,
        n_predictors=predictors.shape[1],
        lower=lower,
        upper=upper,
    )


def records_of(regression: LineRegression) -> RegressionRecords:
    return regression.read(NO_TABLE)


def budget_of(epsilon: Fraction, neighbours: str = "replace-one") -> ColumnBudget:
    return ColumnBudget(
        schema=NO_TABLE.schema,
        neighbours=neighbours,
        item="y",
        epsilon=Fraction(epsilon),
    )


@dataclass(frozen=True)
class Lines:
    """The lines of one regression, as a mechanism of their own."""

    quantiles: QuantilePlan
    fitter: Fitter
    epsilon: Fraction
    n_predictors: int = 0
    regression: LineRegression | None = None

    @property
    def steps(self):
        return self.quantiles.steps(
            self.fitter,
            budget_of(self.epsilon, self.fitter.neighbours),
            self.n_predictors,
        )

    def plan(self, schema: Schema) -> Plan:
        steps = tuple(step for each in self.steps.values() for step in each)
        return Plan(
            mechanism="lines",
            schema=schema,
            neighbours=self.fitter.neighbours,
            steps=steps,
            law="",
        )

    def ask(self, plan: Plan, curator) -> np.ndarray:
        assert self.regression is not None
        return self.lines(self.regression, curator)

    def lines(self, regression: LineRegression, curator) -> np.ndarray:
        return self.quantiles.lines(regression, self.fitter, self.steps, curator)

    def law(self, records) -> list:
        """The exact law on records (x_1, ..., x_p, y), of which there may be none."""
        rows = np.array(records, dtype=float).reshape(
            len(records), 1 + self.n_predictors
        )
        asked = replace(
            self, regression=regression_of(rows[:, -1], rows[:, :-1], 0.0, 1.0)
        )
        return exact_law(asked, NO_TABLE).outcomes


class Anything(Curator):
    """Releases whatever is allowed, evenly: what no table makes likely must be right as
    well.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.answers = Answers()

    def _take(self, step, *laws, share=1) -> None:
        """Take any step in any order."""

    def _choose(self, step, scores) -> np.ndarray:
        self.scores = scores(NO_TABLE)
        open_ = np.flatnonzero(self.scores[0] != UNAVAILABLE)
        assert len(open_)
        return self.rng.choice(open_, 1)

    def _count(self, step, statistic, possible) -> np.ndarray:
        raise AssertionError("lines ask for no counts")

    def _draw(self, step, distribution) -> np.ndarray:
        raise AssertionError("lines ask for no draws from a distribution")


class Exact(Anything):
    """Answers exactly, in any order; `scores` are those of the last choice."""

    def _choose(self, step, scores) -> np.ndarray:
        self.scores, self.unit = scores(NO_TABLE), 1 / step.scale
        return exponential_mechanism(self.scores, self.unit, RandomBits(self.rng))

    def coins(self, n, share) -> np.ndarray:
        return self.rng.random(n) < share
