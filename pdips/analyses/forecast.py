"""How wide the interval of a named analysis will be: the analysis itself, answered from
made-up records.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pandas as pd

from pdips.analyses.estimates import summaries
from pdips.arrays import FloatArray
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.privacy.loss import exact
from pdips.privacy.plan import Plan
from pdips.report.coefficients import entries
from pdips.scores.scores import Scores

# So little noise that the interval is as good as the table's own
NO_NOISE = 10**5
PUBLIC_SEED = 20_261_201
RUNS = 2  # answers from each made-up table: their noise differs
MOST_RECORDS = 100_000

# Of a bell over the bounds: a sixth of the range is one standard deviation
BELL = 1 / 6
# Of a column that is squeezed: where in the range its mean lies, and what its first
# level has of the records
SQUEEZED = 1 / 20
FIRST_LEVEL = 4 / 5

type Spread = Callable[[np.random.Generator, int], FloatArray]


@dataclass(frozen=True, kw_only=True)
class MadeUpShape:
    """How made-up records lie within the bounds and levels of a schema.

    Parameters
    ----------
    numbers : callable
        Draws numbers between 0, the lower bound, and 1, the upper one.
    first_level : float, optional
        Share of the records that have a column's first level; others share the rest
        evenly. Left out, all levels are as frequent.
    """

    numbers: Spread
    first_level: float | None = None

    def table(self, schema: Schema, n_records: int, rng: np.random.Generator) -> Table:
        """Return records whose columns know nothing of each other."""
        cells = {
            name: self._column(column, n_records, rng)
            for name, column in schema.columns.items()
        }
        return Table(pd.DataFrame(cells), schema)

    def _column(
        self, column: Column, n_records: int, rng: np.random.Generator
    ) -> pd.Series:
        if column.levels is not None:
            levels = pd.Series([*column.levels], dtype=object)
            codes = rng.choice(len(levels), n_records, p=self._shares(len(levels)))
            return levels.iloc[codes].reset_index(drop=True)
        lower = float(column.lower or 0)
        width = float(column.upper or 0) - lower
        numbers = lower + width * self.numbers(rng, n_records)
        if column.type == "date":
            return pd.Series([column.spell(number) for number in numbers])
        return pd.Series(numbers.round() if column.integer else numbers)

    def _shares(self, n_levels: int) -> FloatArray:
        shares = np.ones(n_levels)
        if self.first_level is not None and n_levels > 1:
            rest = 1 - self.first_level
            shares[0] = self.first_level * (n_levels - 1) / rest
        return np.asarray(shares / shares.sum())


def _bell(rng: np.random.Generator, n_records: int) -> FloatArray:
    return np.clip(1 / 2 + BELL * rng.standard_normal(n_records), 0, 1)


def _squeezed(rng: np.random.Generator, n_records: int) -> FloatArray:
    return np.minimum(SQUEEZED * rng.standard_exponential(n_records), 1)


FILLED_BOUNDS = MadeUpShape(numbers=_bell)
SQUEEZED_BOUNDS = MadeUpShape(numbers=_squeezed, first_level=FIRST_LEVEL)


@dataclass(frozen=True, kw_only=True)
class ForecastWidth:
    """How many times as wide as without privacy intervals will be, the median over
    coefficients.

    Parameters
    ----------
    filled : float
        Where numbers lie all over their bounds, and levels are as frequent.
    squeezed : float
        Where numbers lie at the lower end of their bounds, skewed, and four fifths of
        the records have the first level.

    Examples
    --------
    >>> print(ForecastWidth(filled=1.52, squeezed=12.3))
    95 % intervals about 1.5 times as wide ... 12 times if they are skewed ...
    """

    filled: float
    squeezed: float

    def __str__(self) -> str:
        return (
            f"95 % intervals about {_times(self.filled)} times as wide as without "
            f"privacy if columns fill their bounds, {_times(self.squeezed)} times if "
            f"they are skewed into a tenth of them (made-up records; not in it: a "
            f"model that is wrong, covariates that go together)"
        )


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def forecast_width(scores: Scores, plan: Plan, n_records: int) -> ForecastWidth:
    """Return how wide intervals of an analysis will be beside those without privacy.

    The analysis is answered from made-up records of two shapes, several times at its
    price and once with next to no noise. So all that widens an interval is in it: the
    shares of cells and rounds, clipping, and the error of the reference at which scores
    are asked for. Above 100,000 records, so many are made up, and the price is that at
    which the noise has the same share of the sampling error. No table is read.

    Parameters
    ----------
    scores : Scores
        What answers the analysis, with its part of the budget.
    plan : Plan
        Its plan.
    n_records : int
        Public number of records, or a guess.

    Raises
    ------
    InputError
        If the made-up records are refused: too few, or public columns are described.
    """
    if plan.schema.public_columns:
        raise InputError("widths beside public columns aren't forecast")
    n_made_up = min(n_records, MOST_RECORDS)
    at_price = scores
    if n_made_up < n_records:
        quieter = Fraction((n_records / n_made_up) ** 0.5)
        at_price = replace(scores, epsilon=exact(scores.epsilon, "epsilon") * quieter)
    alone = replace(scores, epsilon=NO_NOISE)
    ratios = []
    for shape in (FILLED_BOUNDS, SQUEEZED_BOUNDS):
        rng = np.random.default_rng(PUBLIC_SEED)
        table = shape.table(plan.schema, n_made_up, rng)
        without_privacy = _widths(alone, table, rng)
        runs = [_widths(at_price, table, rng) for _ in range(RUNS)]
        ratios.append(float(np.median(np.array(runs) / without_privacy)))
    filled, squeezed = ratios
    return ForecastWidth(filled=filled, squeezed=squeezed)


def _widths(scores: Scores, table: Table, rng: np.random.Generator) -> FloatArray:
    """Return the width of each coefficient's interval in an answer from a table."""
    release, _ = scores.release(table, rng=rng)
    draws = release.posterior_draws
    if draws is None:
        raise AssertionError("scores publishes a posterior")
    found = summaries(dict(entries(draws.posterior)))
    return np.asarray(found["upper"] - found["lower"], dtype=float)


def outlook(scores: Scores, plan: Plan, n_records: int) -> str:
    """Return what is said beforehand of an answer: that it would be refused, or how
    wide its intervals will be.
    """
    try:
        scores.check_enough(plan, n_records)
    except InputError as refusal:
        return f"it would be refused: {refusal}"
    try:
        return str(forecast_width(scores, plan, n_records))
    except InputError as refusal:
        return f"no forecast of its width: {refusal}"
