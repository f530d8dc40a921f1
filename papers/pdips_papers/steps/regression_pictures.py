"""The paper's figures 2 and 3: bias, RMSE and coverage of regression coefficients, and prediction, against epsilon."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips_papers.harness.curves import Line, boxes, lines
from pdips_papers.harness.framework import Picture
from pdips_papers.steps.regression_models import model
from pdips_papers.steps.steps_regression import EPSILONS, FORMS, METHODS, Place

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = ("published", "sound")
COLOURS = dict(zip(DRAWN, (4, 3), strict=True))
METHOD_COLOURS = {"STEPS": 5, "UH modified": 2, "PrivBayes": 6}
MEASURES = ("bias", "RMSE", "coverage")

type Values = Mapping[tuple[str, str, str], Mapping[str, FloatArray]]
"""By method, form and epsilon: each measure by coefficient, and the prediction error in an array of one."""


def pictures(measurements: pd.DataFrame, samples: Sequence[int]) -> list[Picture]:
    """Return for each model and size a grid of measures by methods, and prediction errors."""
    found = []
    groups = {str(row): group for row, group in measurements.groupby("row", sort=False)}
    for number in (1, 2):
        for n_records in samples:
            values = _values(groups, number, n_records)
            if values:
                found += [_coefficients(values, number, n_records), _prediction(values, number, n_records)]
    return found


def _values(groups: Mapping[str, pd.DataFrame], number: int, n_records: int) -> Values:
    beta, found = model(number).beta, {}
    epsilons = dict.fromkeys(EPSILONS) | dict.fromkeys(
        row.split("epsilon = ")[1].split(":")[0] for row in groups if "epsilon = " in row
    )
    for method in METHODS:
        for form in FORMS:
            for epsilon in epsilons:
                group = groups.get(str(Place(number, n_records, method, form, epsilon)))
                if group is not None:
                    errors = np.array(group["estimates"].tolist(), dtype=float) - beta
                    found[method, form, epsilon] = {
                        "bias": errors.mean(axis=0),
                        "RMSE": np.sqrt((errors**2).mean(axis=0)),
                        "coverage": np.array(group["covered"].tolist(), dtype=float).mean(axis=0),
                        "prediction": np.array([group["value"].mean()]),
                    }
    return found


def _epsilons(values: Values) -> list[str]:
    return sorted({epsilon for _, _, epsilon in values}, key=float)


def _coefficients(values: Values, number: int, n_records: int) -> Picture:
    """Return lines by coefficient for model 1, box plots over coefficients for model 2."""
    epsilons, panels = _epsilons(values), []
    for measure in MEASURES:
        drawn = [value[measure] for (_, form, _), value in values.items() if form in DRAWN]
        limits = _limits(drawn, measure)
        for method in dict.fromkeys(method for method, _, _ in values):
            by_form = {
                form: [values.get((method, form, epsilon), {}).get(measure, np.empty(0)) for epsilon in epsilons]
                for form in DRAWN
            }
            draw = _lines if number == 1 else _boxes
            panels.append(draw(f"{measure}: {method}", epsilons, by_form, limits))
    what = "each line one of 11 coefficients" if number == 1 else "boxes over the 120 coefficients"
    return Picture(
        title=f"Figure {number + 1}: model {number}, n = {n_records:,}",
        panels=panels,
        caption=f"Against total epsilon: {what}. Sound: measured anew for each of the four sets.",
        key={form: f"--series-{colour}" for form, colour in COLOURS.items()},
    )


def _limits(drawn: Sequence[FloatArray], measure: str) -> tuple[float, float]:
    if measure == "coverage":
        return -0.03, 1.03
    both = np.concatenate(drawn)
    margin = 0.05 * float(np.ptp(both)) or 0.1
    return float(both.min()) - margin if measure == "bias" else 0.0, float(both.max()) + margin


def _lines(
    title: str, ticks: Sequence[str], by_form: Mapping[str, Sequence[FloatArray]], limits: tuple[float, float]
) -> "Figure":
    drawn = []
    for form, by_epsilon in by_form.items():
        n_coefficients = max(map(len, by_epsilon), default=0)
        for place in range(n_coefficients):
            y = [float(values[place]) if len(values) else math.nan for values in by_epsilon]
            drawn.append(Line(y, COLOURS[form], thin=True))
    return lines(title, ticks, "epsilon", drawn, limits)


def _boxes(
    title: str, ticks: Sequence[str], by_form: Mapping[str, Sequence[FloatArray]], limits: tuple[float, float]
) -> "Figure":
    groups = [(COLOURS[form], by_epsilon) for form, by_epsilon in by_form.items()]
    return boxes(title, ticks, "epsilon", groups, limits)


def _prediction(values: Values, number: int, n_records: int) -> Picture:
    epsilons, panels = _epsilons(values), []
    for form in FORMS:
        drawn = []
        for method in METHODS:
            y = [
                float(values[method, form, e]["prediction"][0]) if (method, form, e) in values else math.nan
                for e in epsilons
            ]
            drawn.append(Line(y, METHOD_COLOURS[method]))
        panels.append(lines(f"prediction MSE: {form}", epsilons, "epsilon", drawn))
    return Picture(
        title=f"Prediction: model {number}, n = {n_records:,}",
        panels=panels,
        caption="Mean squared error on 100 fresh records against total epsilon; the truth itself has 1.",
        key={method: f"--series-{colour}" for method, colour in METHOD_COLOURS.items()},
    )
