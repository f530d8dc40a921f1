"""What simulations 3 and 4 of paper 003 share: estimates from sets, sets without one, and pictures by group."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import special

from pdips.arrays import FloatArray
from pdips.report.figures import INK
from pdips_papers.harness.epsilon_curves import Curves, epsilons_of, short, suffix_of
from pdips_papers.harness.framework import Block, Picture
from pdips_papers.harness.measures import LEVEL, MANY_DEGREES, MEASURES, at_each, pooled, summary
from pdips_papers.modips.mixed_moments import Records, cell_moments, places

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Combining = Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]

WITHOUT = "without"
"""The measure of sets that give no estimate: a cell is empty, or a regression has no fit."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters that one picture shows.

    Parameters
    ----------
    title : str
        Heading.
    cases : mapping of str to str
        End of the name of a row, and how to print it.
    """

    title: str
    cases: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class GroupedCurves:
    """Curves over epsilon with pictures by group of parameters, and a table of sets without an estimate.

    Parameters
    ----------
    curves : Curves
        Of all groups.
    groups : sequence of Group
        In order.
    """

    curves: Curves
    groups: Sequence[Group]

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return the long table of :meth:`Curves.table`, and the shares of sets without an estimate after it."""
        without = measurements["column"].str.startswith(WITHOUT)
        table = self.curves.table(measurements[~without])
        shares = pooled(measurements[without])
        plain = shares["column"] == WITHOUT
        repeated = at_each(shares[plain].assign(column="bias"), [suffix_of(epsilon) for epsilon in epsilons_of(table)])
        repeated["column"] = repeated["column"].str.replace("bias", WITHOUT, n=1)
        return pd.concat([table, repeated, shares[~plain]], ignore_index=True)

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Return the blocks of :meth:`Curves.layout`, and those of sets without an estimate."""
        epsilons, present = epsilons_of(table), set(zip(table["row"], table["column"], strict=True))
        columns = {f"{WITHOUT}{suffix_of(epsilon)}": short(epsilon) for epsilon in epsilons}
        blocks = self.curves.layout(table)
        for case, label in self.curves.cases.items():
            rows = {
                f"{name}, {case}": self.curves.label(name)
                for name in self.curves.methods
                if any((f"{name}, {case}", column) in present for column in columns)
            }
            if rows:
                title = f"{label}: share of sets without an estimate"
                blocks.append(Block(title=title, rows=rows, columns=columns, headline=False, group="By epsilon"))
        return blocks

    def pictures(self, table: pd.DataFrame) -> list[Picture]:
        """Return a picture for each group: four panels for each of its parameters, with a line for each method."""
        single = self.curves.pictures(table)
        by_case = {picture.title: picture for picture in single}
        found = []
        for group in self.groups:
            parts = [(label, by_case[label]) for label in group.cases.values() if label in by_case]
            panels = [self._named(panel, label) for label, part in parts for panel in part.panels]
            if parts:
                caption, key = parts[0][1].caption, parts[0][1].key
                found.append(Picture(title=group.title, caption=caption, panels=panels, key=key))
        return found

    @staticmethod
    def _named(panel: "str | Figure", label: str) -> "str | Figure":
        """Put the parameter into the title of a panel."""
        if not isinstance(panel, str):
            axes = panel.axes[0]
            measure = (
                axes.get_title(loc="left").replace(MEASURES["coverage"], "coverage").replace(" of the interval", "")
            )
            axes.set_title(f"{label}: {measure}", fontsize=9.5, color=INK, loc="left", pad=5)
        return panel


def grouped(groups: Sequence[Group], **options: Any) -> GroupedCurves:
    """Return the curves of all groups; ``options`` are those of :class:`Curves`."""
    cases = {case: label for group in groups for case, label in group.cases.items()}
    return GroupedCurves(curves=Curves(cases=cases, **options), groups=groups)


def combine_available(estimates: FloatArray, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Combine the estimates of those sets that have one, by equations (3.5) to (3.7) of paper 003.

    Parameters
    ----------
    estimates, variances : ndarray, shape (replicates, sets)
        NaN where a set gives none.

    Returns
    -------
    estimate, half_width : ndarray, shape (replicates,)
        As :func:`~pdips_papers.harness.measures.combine` has it; NaN where
        fewer than two sets of several have an estimate.
    """
    there = np.isfinite(estimates) & np.isfinite(variances)
    m = there.sum(axis=1)
    enough = m >= min(2, estimates.shape[1])
    size = np.maximum(m, 1)
    centre = np.where(there, estimates, 0).sum(axis=1) / size
    within = np.where(there, variances, 0).sum(axis=1) / size
    between = np.where(there, (estimates - centre[:, None]) ** 2, 0).sum(axis=1) / np.maximum(m - 1, 1)
    ratio = np.divide(m * within, between, out=np.full(len(m), np.inf), where=between > 0)
    degrees = np.minimum((size - 1) * (1 + np.minimum(ratio, MANY_DEGREES)) ** 2, MANY_DEGREES)
    normal = (m <= 1) | (degrees >= MANY_DEGREES)
    quantile = np.where(normal, special.ndtri(LEVEL), special.stdtrit(np.maximum(degrees, 1.0), LEVEL))
    half = quantile * np.sqrt(between / size + within)
    return np.where(enough, centre, np.nan), np.where(enough, half, np.nan)


def summarised(
    row: str,
    suffix: str,
    estimates: FloatArray,
    variances: FloatArray,
    truth: float,
    combining: Combining = combine_available,
) -> list[dict[str, Any]]:
    """Return the measurements of one parameter, and the share of sets without an estimate if there are any."""
    estimate, half = combining(estimates, variances)
    there = np.isfinite(estimate) & np.isfinite(half)
    rows = summary(row, suffix, (estimate[there], half[there]), truth) if there.any() else []
    lacking = 1 - (np.isfinite(estimates) & np.isfinite(variances)).mean(axis=1)
    return [
        *rows,
        {
            "row": row,
            "column": f"{WITHOUT}{suffix}",
            "value": float(lacking.mean()),
            "square": float((lacking**2).mean()),
            "count": len(lacking),
        },
    ]


def covariance_estimates(records: Records, cells: int) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Estimate the variances and the correlation of z, pooled over cells, as sections 4.3.1 and 4.3.2 do.

    Variances S^2 with S^4 (2 / (n - 1) + kappa / n), kappa the excess kurtosis about the means of the cells; the
    correlation r with (1 - r^2) / (n - 2) as printed, which is too large where r isn't 0.
    """
    n = records.n
    counts, means, spread = cell_moments(records, cells)
    degrees = n - (counts > 0).sum(axis=-1)
    place = places(records.cell, cells)
    found = {}
    for j in (0, 1):
        square = (records.z[..., j].ravel() - means[..., j].ravel()[place]).reshape(records.cell.shape) ** 2
        second, fourth = spread[..., j, j], np.einsum("rsn,rsn->rs", square, square) / n
        kurtosis = np.divide(fourth, second**2, out=np.full(second.shape, 3.0), where=second > 0) - 3
        variance = second * n / degrees
        found[f"s{j + 1}"] = variance, variance**2 * np.maximum(2 / (n - 1) + kurtosis / n, 0)
    size = np.sqrt(spread[..., 0, 0] * spread[..., 1, 1])
    r = np.divide(spread[..., 0, 1], size, out=np.full(size.shape, math.nan), where=size > 0)
    found["rho"] = r, (1 - r**2) / (n - 2)
    return found


def mean_estimates(records: Records, cells: int) -> tuple[FloatArray, FloatArray]:
    """Estimate the mean of z in each cell, with the pooled variance over the cell's count.

    Returns
    -------
    estimates, variances : ndarray, shape (replicates, sets, cells, 2)
        NaN where a cell is empty. The paper prints the variance over n; with it no interval would cover.
    """
    counts, means, spread = cell_moments(records, cells)
    degrees = records.n - (counts > 0).sum(axis=-1)
    pooled_variance = np.stack([spread[..., j, j] for j in (0, 1)], axis=-1) * (records.n / degrees)[..., None]
    there = counts[..., None] > 0
    size = np.maximum(counts, 1)[..., None]
    return np.where(there, means, np.nan), np.where(there, pooled_variance[:, :, None] / size, np.nan)
