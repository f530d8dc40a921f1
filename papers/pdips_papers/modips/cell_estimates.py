"""What Bowen and Liu's (2020) simulations 3 and 4 share: estimates from sets, claims on
means, pictures.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.inference import Rule
from pdips.report.figures import INK
from pdips.report.formats import MINUS
from pdips_papers.harness.curves import (
    CurveFigures,
    CurveStudy,
    epsilons_of,
    short,
    suffix_of,
)
from pdips_papers.harness.measures import (
    MEASURES,
    at_each,
    averaged,
    combine,
    pooled,
    summary,
)
from pdips_papers.harness.study import Block, Picture
from pdips_papers.modips.location_model import Records, cell_moments, places

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WITHOUT = "without"
"""The measure of sets that give no estimate: a cell is empty, or a regression has no
fit.
"""


class GroupedStudy(CurveStudy):
    """A study with pictures by group of parameters, and a table of sets without an
    estimate.
    """

    groups: ClassVar[Mapping[str, Mapping[str, str]]]
    """By heading: the parameters that one picture shows, and how to print them."""

    def __init_subclass__(cls) -> None:
        cls.labels = {
            case: label
            for cases in cls.groups.values()
            for case, label in cases.items()
        }

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return the long table of the curves, and the shares of sets without an
        estimate after it.
        """
        without = measurements["column"].str.startswith(WITHOUT)
        table = super().table(measurements[~without])
        shares = pooled(measurements[without])
        plain = shares["column"] == WITHOUT
        repeated = at_each(
            shares[plain].assign(column="bias"),
            [suffix_of(epsilon) for epsilon in epsilons_of(table)],
        )
        repeated["column"] = repeated["column"].str.replace("bias", WITHOUT, n=1)
        return pd.concat([table, repeated, shares[~plain]], ignore_index=True)

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Return the blocks of the curves, and those of sets without an estimate."""
        epsilons = epsilons_of(table)
        present = set(zip(table["row"], table["column"], strict=True))
        columns = {
            f"{WITHOUT}{suffix_of(epsilon)}": short(epsilon) for epsilon in epsilons
        }
        blocks = super().layout(table)
        for case, label in self.labels.items():
            rows = {
                f"{name}, {case}": self.methods[name].label
                for name in self.methods
                if any((f"{name}, {case}", column) in present for column in columns)
            }
            if rows:
                title = f"{label}: share of sets without an estimate"
                blocks.append(
                    Block(
                        title=title,
                        rows=rows,
                        columns=columns,
                        headline=False,
                        group="By epsilon",
                    )
                )
        return blocks

    def pictures(
        self, measurements: pd.DataFrame, table: pd.DataFrame
    ) -> list[Picture]:
        """Return a picture for each group: four panels for each of its parameters, with
        a line for each method.
        """
        by_case = {
            picture.title: picture for picture in super().pictures(measurements, table)
        }
        found = []
        for title, cases in self.groups.items():
            parts = [
                (label, by_case[label]) for label in cases.values() if label in by_case
            ]
            panels = [
                _named(panel, label) for label, part in parts for panel in part.panels
            ]
            if parts:
                caption = parts[0][1].caption
                key = parts[0][1].key
                found.append(
                    Picture(title=title, caption=caption, panels=panels, key=key)
                )
        return found


def _named(panel: "str | Figure", label: str) -> "str | Figure":
    """Put the parameter into the title of a panel."""
    if not isinstance(panel, str):
        axes = panel.axes[0]
        title = (
            axes.get_title(loc="left")
            .replace(MEASURES["coverage"], "coverage")
            .replace(" of the interval", "")
        )
        axes.set_title(f"{label}: {title}", fontsize=9.5, color=INK, loc="left", pad=5)
    return panel


class AverageFigures(CurveFigures):
    """AverageFigures of figures over parameters and epsilons, as numbers and in words;
    what isn't there is left out.
    """

    def of(
        self, name: str, cases: Sequence[str], measure: str, epsilons: Sequence[str]
    ) -> float:
        """Return the mean over cases and epsilons, of absolute values for the bias;
        infinite without any.
        """
        values = np.array(self.over([name], cases, measure, epsilons))
        values = np.abs(values[~np.isnan(values)])
        return float(values.mean()) if len(values) else math.inf

    def words(
        self,
        names: Sequence[str],
        cases: Sequence[str],
        measure: str,
        epsilons: Sequence[str],
    ) -> str:
        """Return such means for several methods."""
        shown = (
            f"{self.said[name]} "
            f"{figure(self.of(name, cases, measure, epsilons), measure)}"
            for name in names
        )
        return ", ".join(shown)


def figure(value: float, measure: str) -> str:
    """Return a figure in words: a percentage for coverage."""
    if math.isinf(value):
        return "none"
    if measure == "coverage":
        return f"{100 * value:.0f} %"
    return f"{value:.2g}".replace("-", MINUS) if value < 100 else f"{value:,.0f}"


def span(epsilons: Sequence[str]) -> str:
    """Name a run of epsilons by its ends."""
    return (
        short(epsilons[0])
        if len(epsilons) == 1
        else (f"{short(epsilons[0])} to {short(epsilons[-1])}")
    )


def summarised(
    row: str,
    suffix: str,
    estimates: FloatArray,
    variances: FloatArray,
    truth: float,
    rule: Rule = "sanitized",
) -> list[dict[str, Any]]:
    """Return the measurements of one parameter, and the share of sets without an
    estimate if there are any.
    """
    estimate, half = combine(estimates, variances, rule)
    there = np.isfinite(estimate) & np.isfinite(half)
    rows = (
        summary(row, suffix, (estimate[there], half[there]), truth)
        if there.any()
        else []
    )
    lacking = 1 - (np.isfinite(estimates) & np.isfinite(variances)).mean(axis=1)
    return [*rows, averaged(row, f"{WITHOUT}{suffix}", lacking)]


def covariance_estimates(
    records: Records, cells: int
) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Estimate the variances and the correlation of z, pooled over cells, as sections
    4.3.1 and 4.3.2 do.

    Variances S^2 with S^4 (2 / (n - 1) + kappa / n), kappa the excess kurtosis about
    the means of the cells; the correlation r with (1 - r^2) / (n - 2) as printed, which
    is too large where r isn't 0.
    """
    n = records.n
    counts, means, spread = cell_moments(records, cells)
    degrees = n - (counts > 0).sum(axis=-1)
    place = places(records.cell, cells)
    estimates = {}
    for j in (0, 1):
        away = records.z[..., j].ravel() - means[..., j].ravel()[place]
        square = away.reshape(records.cell.shape) ** 2
        second = spread[..., j, j]
        fourth = np.einsum("rsn,rsn->rs", square, square) / n
        kurtosis = _ratio(fourth, second**2, 3.0)
        variance = second * n / degrees
        relative = np.maximum(2 / (n - 1) + (kurtosis - 3) / n, 0)
        estimates[f"s{j + 1}"] = (variance, variance**2 * relative)
    size = np.sqrt(spread[..., 0, 0] * spread[..., 1, 1])
    r = _ratio(spread[..., 0, 1], size, math.nan)
    estimates["rho"] = r, (1 - r**2) / (n - 2)
    return estimates


def _ratio(above: FloatArray, below: FloatArray, otherwise: float) -> FloatArray:
    """Return a ratio; something else where nothing positive is below."""
    filled = np.full(below.shape, otherwise)
    return np.asarray(np.divide(above, below, out=filled, where=below > 0))


def mean_estimates(records: Records, cells: int) -> tuple[FloatArray, FloatArray]:
    """Estimate the mean of z in each cell, with the pooled variance over the cell's
    count.
    """
    counts, means, spread = cell_moments(records, cells)
    degrees = records.n - (counts > 0).sum(axis=-1)
    variance = np.stack([spread[..., j, j] for j in (0, 1)], axis=-1)
    pooled_variance = variance * (records.n / degrees)[..., None]
    there = counts[..., None] > 0
    size = np.maximum(counts, 1)[..., None]
    errors = np.where(there, pooled_variance[:, :, None] / size, np.nan)
    return np.where(there, means, np.nan), errors
