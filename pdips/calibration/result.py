"""What a calibration found."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import pandas as pd

from pdips.calibration.simulation import Goal
from pdips.mechanism import Mechanism
from pdips.privacy.loss import spell

Method = Literal["closed form", "simulation"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Calibration:
    """The smallest epsilon at which a stated accuracy is reached, and on what that rests.

    Parameters
    ----------
    epsilon : Fraction
        Rounded up to three significant digits; to two where it was found by simulation.
    mechanism : Mechanism
        With this epsilon, ready for a release.
    goal : {"standard error", "interval width"}
        What was asked for.
    target, reached : float
        What it was to be at most, and what it is at this epsilon, for the worst margin.
    worst : str
        That margin, or statistic.
    monte_carlo_error : float
        Standard error of ``reached``; 0 in closed form.
    unit : str
        Of target and reached.
    method : {"closed form", "simulation"}
        How it was found.
    by_epsilon : DataFrame
        What is reached at each epsilon that was tried: ``epsilon``, ``reached``, ``monte_carlo_error``, ``worst``.
    by_margin : DataFrame
        What is reached at the epsilon that was found: ``margin``, ``reached``.
    statement : str
        What was worked out from which facts, and what it leaves out.
    """

    epsilon: Fraction
    mechanism: Mechanism
    goal: Goal
    target: float
    reached: float
    worst: str
    monte_carlo_error: float
    unit: str
    method: Method
    by_epsilon: pd.DataFrame
    by_margin: pd.DataFrame
    statement: str

    def __repr__(self) -> str:
        return f"Calibration(epsilon={spell(self.epsilon)}, {self.goal} {self.reached:.4g} {self.unit}, {self.method})"

    def describe(self) -> dict[str, Any]:
        """Return it as plain values, for JSON: None where nothing is reached, at an epsilon that is too small."""
        plain = ("goal", "target", "reached", "worst", "monte_carlo_error", "unit", "method", "statement")
        return {
            "mechanism": self.mechanism.name,
            "epsilon": float(self.epsilon),
            "neighbours": self.mechanism.neighbours,
            "n_sets": self.mechanism.n_sets,
            **{name: getattr(self, name) for name in plain},
            "by_epsilon": [
                {**row, "reached": row["reached"] if math.isfinite(row["reached"]) else None}
                for row in self.by_epsilon.to_dict("records")
            ],
            "by_margin": self.by_margin.to_dict("records"),
        }
