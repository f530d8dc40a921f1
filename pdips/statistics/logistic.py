"""A ridge-regularised logistic regression as a bounded statistic, in whole steps of a public grid."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import Scale
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior.columns import Values, check_column, record_values
from pdips.privacy.loss import Neighbours, Number, exact, positive
from pdips.privacy.noise import quantise
from pdips.statistics.certified_minimum import MOST_RECORDS, Accuracy, Logits, minimum, root_above

GRID_BITS = 12
"""The grid's step is between 2^-12 and 2^-13 of what one record can do."""
LARGEST_KAPPA = 2**40
LARGEST_TOLERANCE = Fraction(1, 8)


@dataclass(frozen=True, kw_only=True)
class Logistic:
    """Coefficients of a logistic regression that minimise kappa / 2 norm(b)^2 + the sum of the records' log-losses.

    Parameters
    ----------
    outcome : str
        A column with levels. Two levels: the logit of the second one; more: one logit for each level but the first.
    predictors : tuple of str
        Numeric columns, as u in [-1, 1] of their public bounds, and columns with levels, as indicators of all but the
        first. The intercept comes first. All are divided by sqrt(1 + number of predictors), so that no record is longer
        than 1.
    kappa : int, float, str or Fraction
        Public strength of the ridge, in records: at kappa = n lambda it is paper 003's lambda.

    Raises
    ------
    InputError
        If kappa is not above 0 or beyond 2^40, or a predictor is named twice or is the outcome.

    Notes
    -----
    Replacing a record moves the exact minimum by at most G / kappa in length: G = 2 for two levels, 2 sqrt(2) for more;
    half as much if a record is added or removed, or if all predictors are public (Chaudhuri and Monteleoni, 2009;
    SOUNDNESS 5.6, review E1). What is measured are coefficients certified to be near it, in steps of :meth:`step`.
    Rounding and the certificate are in the sensitivity. Proof: ``docs/proofs/modips.md``, theorems 5 and 6.
    """

    outcome: str
    predictors: tuple[str, ...]
    kappa: Number

    def __post_init__(self) -> None:
        object.__setattr__(self, "predictors", tuple(self.predictors))
        if positive(self.kappa, "kappa") > LARGEST_KAPPA:
            raise InputError(f"kappa must be at most 2^40, got {self.kappa}")
        if len(set(self.predictors)) < len(self.predictors) or self.outcome in self.predictors:
            raise InputError(f"predictors of {self.outcome!r} must differ from each other and from it")

    def check(self, schema: Schema) -> None:
        """Refuse columns that aren't there or of the wrong kind, and a ridge too weak to be certified."""
        for name in (self.outcome, *self.predictors):
            if name not in schema.columns:
                raise InputError(f"a statistic names column {name!r}, which the schema doesn't have")
            check_column(name, schema.columns[name])
        outcome = schema.columns[self.outcome]
        if not outcome.is_categorical or outcome.n_levels < 2:
            raise InputError(
                f"the outcome of a logistic regression needs two levels or more, and {self.outcome!r} has not"
            )
        if self._accuracy(schema).tolerance > LARGEST_TOLERANCE:
            raise InputError(
                f"kappa = {self.kappa} is too small for so many coefficients: their error couldn't be bounded"
            )

    def shape(self, schema: Schema) -> tuple[int, int]:
        """Return (levels of the outcome - 1, coefficients of each logit)."""
        return schema.columns[self.outcome].n_levels - 1, len(self._terms(schema))

    def _terms(self, schema: Schema) -> list[str]:
        return ["1", *(term for name in self.predictors for term in _terms_of(name, schema.columns[name]))]

    def labels(self, schema: Schema) -> pd.DataFrame:
        """Return the level of the outcome and the predictor of each coefficient; "1" is the intercept."""
        levels, terms = schema.columns[self.outcome].names()[1:], self._terms(schema)
        rows = [(level, term) for level in levels for term in terms]
        return pd.DataFrame(rows, columns=[self.outcome, "predictor" if self.outcome != "predictor" else "term"])

    def names(self, schema: Schema) -> list[str]:
        """Return what each coefficient is called, in the order of ``measure(...).ravel()``."""
        return [f"{self.outcome} = {level}: {term}" for level, term in self.labels(schema).itertuples(index=False)]

    def _accuracy(self, schema: Schema) -> Accuracy:
        n_logits, d = self.shape(schema)
        return Accuracy(n_logits + 1, d, exact(self.kappa, "kappa"))

    def step(self) -> Fraction:
        """Return the grid's step, a power of two, in the unit of the coefficients."""
        kappa = math.ceil(exact(self.kappa, "kappa") * 2**GRID_BITS)
        return Fraction(1, 1 << (kappa - 1).bit_length())

    def unit(self, schema: Schema) -> float:
        """Return the grid's step as a double, which it is."""
        return float(self.step())

    def _moved(self, schema: Schema, neighbours: Neighbours) -> Fraction:
        """Return how far one person moves certified coefficients, in length, in steps, before they are rounded."""
        several = self.shape(schema)[0] > 1
        one_sided = neighbours == "add-remove" or all(schema.columns[name].public for name in self.predictors)
        gradient = root_above(Fraction((2 if several else 1) * (1 if one_sided else 4)))
        total = schema.records.max_per_person * gradient + 2 * self._accuracy(schema).tolerance
        return total / (exact(self.kappa, "kappa") * self.step())

    def _is_public(self, schema: Schema) -> bool:
        return all(schema.columns[name].public for name in (self.outcome, *self.predictors))

    def l1(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return the l1-sensitivity in whole steps, for all records that one person may have; 0 for what is public."""
        if self._is_public(schema):
            return 0
        n = math.prod(self.shape(schema))
        return math.ceil(root_above(Fraction(n)) * self._moved(schema, neighbours) + n) - 1

    def l2_squared(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return the square of the l2-sensitivity in whole steps squared."""
        if self._is_public(schema):
            return 0
        n = math.prod(self.shape(schema))
        return math.ceil((self._moved(schema, neighbours) + root_above(Fraction(n))) ** 2) - 1

    def sensitivity(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return :meth:`l1`."""
        return self.l1(schema, neighbours)

    def spread(self, schema: Schema) -> FloatArray:
        """Return the variance of what one record, spread evenly over the schema, adds to each coefficient near 0."""
        each = [1.0]
        for name in self.predictors:
            column = schema.columns[name]
            each += [1 / 3] if not column.is_categorical else [1 / column.n_levels] * (column.n_levels - 1)
        one = np.array(each) / (4 * (1 + len(self.predictors)) * float(exact(self.kappa, "kappa")) ** 2)
        return np.tile(one, self.shape(schema)[0])

    def design(self, values: Values, schema: Schema) -> FloatArray:
        """Return predictors as the regression reads them, of confidential records or of synthetic ones.

        Parameters
        ----------
        values : mapping of str to ndarray, shape (records,)
            Columns as :func:`pdips.posterior.columns.record_values` gives them: numbers, and codes of levels.
        schema : Schema
            Their bounds and levels.

        Returns
        -------
        ndarray, shape (records, coefficients of a logit)
            Logits are this times the coefficients; no row is longer than 1, exactly.
        """
        scale = _scale(len(self.predictors))
        n = len(values[self.predictors[0]]) if self.predictors else len(next(iter(values.values())))
        columns = [np.ones(n)]
        for name in self.predictors:
            columns += _encoded(schema.columns[name], values[name])
        return np.ascontiguousarray(np.column_stack(columns) * scale)

    def measure(self, table: Table) -> IntArray:
        """Return the certified coefficients in whole steps, shape as :meth:`shape` says.

        Raises
        ------
        InputError
            If the table has more than 2^25 records, or was counted and a predictor is numeric.
        """
        schema = table.schema
        self.check(schema)
        if table.n_records > MOST_RECORDS:
            raise InputError(f"logistic regressions are made for tables of at most {MOST_RECORDS:,} records")
        if any(name not in table.frame and not schema.columns[name].is_categorical for name in self.predictors):
            raise InputError("a logistic regression reads records one by one: read the table with counted=False")
        values = record_values(table, (self.outcome, *self.predictors))
        level = values[self.outcome]
        logits = Logits(
            x=self.design(values, schema),
            level=level,
            weight=np.ones(len(level), dtype=np.int64) if table.counts is None else table.counts,
            n_levels=schema.columns[self.outcome].n_levels,
            kappa=exact(self.kappa, "kappa"),
        )
        return quantise(minimum(logits, self._accuracy(schema)), self.step())


def _terms_of(name: str, column: Column) -> list[str]:
    return [f"{name} = {level}" for level in column.names()[1:]] if column.is_categorical else [name]


def _scale(n_predictors: int) -> float:
    """Return the largest double whose square, times 1 + the number of predictors, is at most 1."""
    found = math.sqrt(1 / (1 + n_predictors))
    while Fraction(found) ** 2 * (1 + n_predictors) > 1:
        found = math.nextafter(found, 0)
    return found


def _encoded(column: Column, values: FloatArray | IntArray) -> list[FloatArray]:
    """Return a column as predictors in [-1, 1], each record by itself."""
    if column.is_categorical:
        return [(values == level).astype(np.float64) for level in range(1, column.n_levels)]
    low, high = Scale(column).bounds
    share = (Scale(column).there(np.asarray(values, dtype=np.float64)) - low) / (high - low)
    return [np.clip(2 * share - 1, -1.0, 1.0)]
