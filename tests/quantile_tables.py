"""Tiny tables of one column on a public grid, and lines of given records: their laws, how far apart on neighbours."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations_with_replacement

import numpy as np
import pandas as pd

from pdips import Schema, Table
from pdips.privacy.curator import Curator
from pdips.privacy.noise import RandomBits, exponential_mechanism
from pdips.privacy.plan import Plan
from pdips.privacy.replay import exact_law
from pdips.quantile.column_plan import ColumnBudget
from pdips.quantile.gradient import LineRegression, RegressionRecords
from pdips.quantile.line_search import UNAVAILABLE, Fitter
from pdips.quantile.quantile_plan import QuantilePlan

CellTable = tuple[int, ...]
"""The cells of the records, in order; the last cell lies above the grid."""


def cumulative(table: CellTable, n_points: int) -> np.ndarray:
    return np.array([sum(cell <= point for cell in table) for point in range(n_points)], dtype=np.int64)


def tables(n: int, n_points: int) -> list[CellTable]:
    return list(combinations_with_replacement(range(n_points + 1), n))


def pairs(n: int, n_points: int, neighbours: str) -> Iterator[tuple[CellTable, CellTable]]:
    """Yield all neighbouring pairs of which the smaller table has ``n`` records, one order of each."""
    for table in tables(n, n_points):
        for cell in range(n_points + 1):
            if neighbours == "add-remove":
                yield table, tuple(sorted((*table, cell)))
            else:
                for i in range(n):
                    changed = tuple(sorted((*table[:i], cell, *table[i + 1 :])))
                    if changed > table:
                        yield table, changed


def worst_loss(
    law: Callable[[np.ndarray, int], dict[tuple[int, ...], float]], n: int, n_points: int, neighbours: str
) -> float:
    """Return the largest log ratio of an outcome's probabilities over all neighbouring pairs.

    No table, not even an empty one, may make an outcome impossible.
    """
    known: dict[CellTable, np.ndarray] = {}
    outcomes = set()

    def logs(table: CellTable) -> np.ndarray:
        if table not in known:
            found = dict(sorted(law(cumulative(table, n_points), len(table)).items()))
            outcomes.add((*found,))
            known[table] = np.array([*found.values()])
        return known[table]

    losses = [float(np.abs(logs(a) - logs(b)).max()) for a, b in pairs(n, n_points, neighbours)]
    assert len(outcomes) <= 1
    return max(losses, default=0.0)


def frequencies(drawn: np.ndarray, law: dict[tuple[int, ...], float]) -> tuple[np.ndarray, np.ndarray]:
    """Return counts of drawn tuples and their expected counts, tuples in the law's order."""
    places = {key: i for i, key in enumerate(law)}
    counts = np.bincount([places[key] for key in map(tuple, drawn.tolist())], minlength=len(law))
    return counts, np.exp(list(law.values())) * len(drawn)


NO_TABLE = Table(pd.DataFrame({"y": [0.0]}), Schema.from_toml("[columns.y]\nlower = 0\nupper = 1\n"))
"""Stands for a table where records are given otherwise."""


def regression_of(outcome: np.ndarray, predictors: np.ndarray, lower: float, upper: float) -> LineRegression:
    """Return the regression of given records, whatever the table."""
    records = RegressionRecords.of(outcome, predictors)
    return LineRegression(read=lambda table: records, n_predictors=predictors.shape[1], lower=lower, upper=upper)


def records_of(regression: LineRegression) -> RegressionRecords:
    return regression.read(NO_TABLE)


def budget_of(epsilon: Fraction, neighbours: str = "replace-one") -> ColumnBudget:
    return ColumnBudget(schema=NO_TABLE.schema, neighbours=neighbours, item="y", epsilon=Fraction(epsilon))


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
        return self.quantiles.steps(self.fitter, budget_of(self.epsilon, self.fitter.neighbours), self.n_predictors)

    def plan(self, schema: Schema) -> Plan:
        steps = tuple(step for each in self.steps.values() for step in each)
        return Plan(mechanism="lines", schema=schema, neighbours=self.fitter.neighbours, steps=steps, law="")

    def synthesize(self, plan: Plan, curator, rng) -> np.ndarray:
        assert self.regression is not None
        return self.lines(self.regression, curator)

    def lines(self, regression: LineRegression, curator) -> np.ndarray:
        return self.quantiles.lines(regression, self.fitter, self.steps, curator)

    def law(self, records) -> list:
        """The exact law on records (x_1, ..., x_p, y), of which there may be none."""
        rows = np.array(records, dtype=float).reshape(len(records), 1 + self.n_predictors)
        asked = replace(self, regression=regression_of(rows[:, -1], rows[:, :-1], 0.0, 1.0))
        return exact_law(asked, NO_TABLE).outcomes


class Anything(Curator):
    """Releases whatever is allowed, evenly: what no table makes likely must be right as well."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def _take(self, step, *laws) -> None:
        """Take any step in any order."""

    def _choose(self, step, scores) -> np.ndarray:
        self.scores = scores(NO_TABLE)
        open_ = np.flatnonzero(self.scores[0] != UNAVAILABLE)
        assert len(open_)
        return self.rng.choice(open_, 1)

    def _count(self, step, statistic, possible) -> np.ndarray:
        raise AssertionError("lines ask for no counts")

    def _draw(self, step, distribution) -> np.ndarray:
        found = distribution(NO_TABLE)
        return np.sort(self.rng.integers(0, len(found.cumulative), len(found.taus)))


class Exact(Anything):
    """Answers exactly, in any order; `scores` are those of the last choice."""

    def _choose(self, step, scores) -> np.ndarray:
        self.scores, self.unit = scores(NO_TABLE), 1 / step.scale
        return exponential_mechanism(self.scores, self.unit, RandomBits(self.rng))

    def coins(self, n, share) -> np.ndarray:
        return self.rng.random(n) < share
