"""The noisy numbers furthest from what the posterior predicts of them, by name."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pdips.report.figures import (
    ACCENT,
    BAR,
    INK,
    as_svg,
    fit,
    name_rows,
    panel,
    styled,
    widest,
)

if TYPE_CHECKING:
    import xarray as xr

PREDICTED = "noisy_statistics"
PUBLISHED = "observed_data"
MOST_NAMED = 12
MOST_SD = 6.0  # Noisy numbers further off than this are drawn at the edge
LONGEST_NAME = 34


@dataclass(frozen=True, kw_only=True)
class PredictedNumber:
    """A noisy number, in standard deviations of what the posterior predicts of it, from
    the mean of that.
    """

    name: str
    off: float
    low: float  # ends of the middle 95 % of what is predicted
    high: float

    @property
    def is_outside(self) -> bool:
        """Whether it lies outside of the middle 95 %."""
        return not self.low <= self.off <= self.high


def furthest(tree: "xr.DataTree | None") -> list[PredictedNumber]:
    """Return the noisy numbers that lie outside of the middle 95 % of what the
    posterior predicts of them, the furthest off first, up to twelve.
    """
    if tree is None or not {PREDICTED, PUBLISHED} <= tree.children.keys():
        return []
    return furthest_of(tree[PUBLISHED].to_dataset(), tree[PREDICTED].to_dataset())


def furthest_of(
    published: "xr.Dataset", predicted: "xr.Dataset"
) -> list[PredictedNumber]:
    """Return the noisy numbers furthest off, of those that were published and draws of
    them, by answer.
    """
    numbers = _numbers(published, predicted)
    outside = [number for number in numbers if number.is_outside]
    outside.sort(key=lambda number: -abs(number.off))
    return outside[:MOST_NAMED]


def _numbers(
    published: "xr.Dataset", predicted: "xr.Dataset"
) -> Iterator[PredictedNumber]:
    for answer in published.data_vars:
        noisy = published[answer]
        if answer not in predicted or noisy.ndim != 1:
            continue
        [dim] = noisy.dims
        draws = predicted[answer].stack(sample=("chain", "draw"))
        drawn = draws.transpose("sample", dim).to_numpy()
        labels = [str(label) for label in noisy[dim].to_numpy()]
        if answer != "counts" or dim not in noisy.coords:
            labels = [f"{answer}, {label}" for label in labels]
        # a number that is the same at all draws is far from nothing
        moving = np.flatnonzero(drawn.std(axis=0) > 0)
        middle = drawn[:, moving].mean(axis=0)
        spread = drawn[:, moving].std(axis=0)
        ends = np.quantile(drawn[:, moving], [0.025, 0.975], axis=0)
        low, high = (ends - middle) / spread
        off = (noisy.to_numpy()[moving] - middle) / spread
        for place, entry in enumerate(moving):
            yield PredictedNumber(
                name=labels[entry],
                off=float(off[place]),
                low=float(low[place]),
                high=float(high[place]),
            )


@styled
def furthest_figure(numbers: Sequence[PredictedNumber]) -> str:
    """Draw noisy numbers, a row each with its name, over the middle 95 % of what the
    posterior predicts.
    """
    names = [fit(number.name, LONGEST_NAME) for number in numbers]
    left = 16 + widest(names, 10)
    height = 22 * len(numbers)
    margins = (left, 16, 34, 4)
    figure, axes = panel(
        "off the mean, in sd", width=left + 206, height=height + 38, margins=margins
    )
    for place, number in enumerate(numbers):
        axes.hlines(place, number.low, number.high, color=BAR, linewidth=8)
        shown = max(-MOST_SD, min(number.off, MOST_SD))
        axes.plot([shown], [place], "D", color=ACCENT, markersize=5)
    axes.axvline(0, color=INK, linewidth=0.5)
    axes.set(xlim=(-MOST_SD, MOST_SD), ylim=(len(numbers) - 0.5, -0.5))
    name_rows(axes, names, 10)
    label = (
        f"The {len(numbers)} noisy numbers furthest from what the posterior predicts; "
        f"the furthest is {numbers[0].name}"
    )
    return as_svg(figure, label, "furthest noisy numbers")


def figures_of_furthest(tree: "xr.DataTree | None") -> list[tuple[str, str]]:
    """Return the figure of the noisy numbers furthest off with its title; none where
    all are as predicted.
    """
    return titled_figure(furthest(tree))


def titled_figure(numbers: Sequence[PredictedNumber]) -> list[tuple[str, str]]:
    """Return the figure of some noisy numbers with its title, if there are any."""
    return [("furthest off", furthest_figure(numbers))] if numbers else []
