"""The rows of the study ``firm-panel``: ways to synthesize a panel."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from pdips.data.table import Table
from pdips.privacy.curator import Curator, Drawing
from pdips.privacy.noise import RandomBits
from pdips.quantile.column_synthesis import ColumnTask
from pdips.quantile.conditional import Draw, LineDraw
from pdips.quantile.gradient import LineRegression, RegressionRecords
from pdips.quantile.kng import KNG
from pdips.quantile.kng_residual import KNGResidual
from pdips_papers.kng.firm_panel_data import FIRST, LAST, PREFIX
from pdips_papers.kng.heavy_regression import quantile_lines

QUANTILES = tuple(f"{k}/20" for k in range(1, 20))
"""From the 5th to the 95th; the paper writes 20."""

MAIN = ("1/20", "1/4", "1/2", "3/4", "19/20")

PAPER: dict[str, Any] = {"births_share": "1/4", "quantiles": QUANTILES, "main": MAIN}
"""Section 5.1: budgets of 25 and 75 % for births and continuers."""

NON_PRIVATE = "no privacy: quantile regression"
RESIDUAL = "kng-residual"
VARYING = "stepwise, varying slopes"

FORMS: dict[str, Callable[..., KNG | KNGResidual]] = {
    "plain KNG": lambda **common: KNG(scheme="plain", slopes="varying", **PAPER, **common),
    "stepwise, fixed slopes": lambda **common: KNG(scheme="stepwise", slopes="fixed", **PAPER, **common),
    VARYING: lambda **common: KNG(scheme="stepwise", slopes="varying", **PAPER, **common),
    "sandwich, fixed slopes": lambda **common: KNG(scheme="sandwich", slopes="fixed", **PAPER, **common),
    "sandwich, varying slopes": lambda **common: KNG(scheme="sandwich", slopes="varying", **PAPER, **common),
    "kng-residual, a chosen line": lambda **common: KNGResidual(continuers="line", **common),
    RESIDUAL: lambda **common: KNGResidual(**common),
}
"""The paper's schemes with its budgets, all exact and with tight sensitivities, and the recommended mechanism."""


def synthesize(form: str, epsilon: str | None, table: Table, rng: np.random.Generator) -> pd.DataFrame:
    """Return one synthetic panel."""
    if form == NON_PRIVATE:
        return _non_private(table, rng)
    mechanism = FORMS[form](epsilon=epsilon, panel=(FIRST, LAST), panel_columns=(PREFIX,))
    return mechanism.release(table, rng=rng)[0].sets[0]


class _Open(Drawing):
    """Shows what a regression reads, without noise."""

    def read(self, regression: LineRegression) -> RegressionRecords:
        """Return the confidential records of a regression."""
        return regression.read(self._table)


class _NonPrivate(KNGResidual):
    """Quantile regressions at the same quantiles, fitted to the table without noise."""

    def fit(self, task: ColumnTask, curator: Curator) -> Draw:
        """Return quantile regressions of a column."""
        assert isinstance(curator, _Open)
        taus, records = np.array([float(k) / 20 for k in range(1, 20)]), curator.read(task.regression)
        if not len(records.outcome):  # a part of a year that publicly nobody is in
            return LineDraw(
                task.column, task.box, taus, np.zeros((len(taus), 1 + task.box.n_predictors)), "interpolate"
            )
        lines = quantile_lines(records.predictors, records.outcome, list(taus))
        return LineDraw(task.column, task.box, taus, lines, "interpolate")


def _non_private(table: Table, rng: np.random.Generator) -> pd.DataFrame:
    mechanism = _NonPrivate(epsilon=1, panel=(FIRST, LAST), panel_columns=(PREFIX,))
    plan = mechanism.plan(table.schema)
    return mechanism.synthesize(plan, _Open(plan, table, RandomBits(rng)), rng).sets[0]
