"""The violins of paper 004, figures 2 to 8 and those of its supplement, with the sound forms beside them."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from pdips.arrays import FloatArray
from pdips_papers.harness.curves import Violin, violins
from pdips_papers.harness.framework import Picture
from pdips_papers.pseudo.censored_forms import (
    CENSOR_UW,
    CENSOR_W,
    CENTRES,
    CONFIDENTIAL,
    DOWNSCALED_AT,
    FRESH,
    PH,
    SCALE,
    UNWEIGHTED,
    WEIGHTED,
    WEIGHTED_E,
    row_of,
    sound_row,
)
from pdips_papers.pseudo.censored_layout import BOUND, UTILITY, epsilons_of

GREY, PUBLISHED, SOUND, OURS = 1, 4, 3, 5
KEY = {
    "not private": f"--series-{GREY}",
    "as published, at the epsilon it claims": f"--series-{PUBLISHED}",
    "sound, at its true epsilon": f"--series-{SOUND}",
    "sound, staged (the default)": f"--series-{OURS}",
}
TRUTH = stats.beta(0.5, 3)
TRUE_VALUES = {
    "mean": float(TRUTH.mean()),
    "median": float(TRUTH.ppf(0.5)),
    "15th percentile": float(TRUTH.ppf(0.15)),
    "90th percentile": float(TRUTH.ppf(0.9)),
}
"""Of Beta(0.5, 3)."""

FIGURES = {
    "max-ECDF": "figure 3",
    "avg-ECDF": "figure 4",
    "mean": "beyond the paper",
    "median": "figures 5 and 15",
    "15th percentile": "figures 11 and 13",
    "90th percentile": "figures 12 and 14",
}
DOWNSCALED = {
    BOUND: "figure 6",
    "max-ECDF": "figure 16",
    "avg-ECDF": "figure 7",
    "mean": "figure 17",
    "median": "figure 18",
    "15th percentile": "figure 8",
}

OUTSIDE = "centre: zero"
"""Limits of pictures are made without it."""

type Values = Mapping[tuple[str, str], FloatArray]
"""By row and column: one value a replicate."""


def pictures(measurements: pd.DataFrame) -> list[Picture]:
    """Return the Lipschitz bounds, each utility measure by epsilon, and the effect of down-scaling."""
    values = {
        (str(row), str(column)): group.to_numpy(dtype=np.float64)
        for (row, column), group in measurements.groupby(["row", "column"], sort=False)["value"]
    }
    epsilons = epsilons_of(row for row, _ in values)
    found = [_bounds(values, epsilons), *(_utility(values, epsilons, column) for column in UTILITY)]
    if (row_of(WEIGHTED, "", SCALE), BOUND) in values:
        found.append(_downscaled(values))
    return found


def _limits(
    drawn: Sequence[Sequence[Violin]], marks: Sequence[float] = (), low: float | None = None
) -> tuple[float, float]:
    """Return limits that hold nearly all values of all panels, so that a few outliers don't flatten the rest."""
    every = [np.asarray(each.values, dtype=float) for panel in drawn for each in panel]
    high = max([*(float(np.quantile(values, 0.98)) for values in every), *marks])
    least = min([*(float(np.quantile(values, 0.02)) for values in every), *marks]) if low is None else low
    margin = 0.04 * (high - least) or 0.1
    return least - (0.0 if low is not None else margin), high + margin


def _present(values: Values, column: str, wanted: Sequence[tuple[str, str, int]]) -> list[Violin]:
    """Return the violins, from (label, row, colour), of which there are values."""
    return [Violin(label, values[row, column], colour) for label, row, colour in wanted if (row, column) in values]


def _bounds(values: Values, epsilons: Sequence[str]) -> Picture:
    drawn = {
        epsilon: _present(
            values,
            BOUND,
            [
                (WEIGHTED, WEIGHTED, PUBLISHED),
                *((form, row_of(form, epsilon), PUBLISHED) for form in (WEIGHTED_E, CENSOR_W, CENSOR_UW)),
            ],
        )
        for epsilon in epsilons
        if (row_of(CENSOR_UW, epsilon), BOUND) in values
    }
    limits = _limits(list(drawn.values()), low=0.0)
    panels = [violins(f"claimed ϵ = {each}", rows, limits, [float(each) / 2]) for each, rows in drawn.items()]
    every = _present(values, BOUND, [(UNWEIGHTED, UNWEIGHTED, GREY), (WEIGHTED, WEIGHTED, PUBLISHED)])
    panels.append(violins("without a target", every, _limits([every], low=0.0)))
    return Picture(
        title="Lipschitz bounds (figures 2 and 10)",
        panels=panels,
        caption="Distribution over replicates of the largest weighted and censored log-likelihood of any record "
        "and draw; the dashed line is ϵ / 2. Dots are means, lines reach from the least to the greatest value.",
        key=dict(list(KEY.items())[:2]),
    )


def _forms(epsilon: str) -> list[tuple[str, str, int]]:
    """Return label, row and colour of every form that is compared at an epsilon."""
    published = [(form, row_of(form, epsilon), PUBLISHED) for form in (WEIGHTED_E, CENSOR_W, CENSOR_UW)]
    of_centre = {"zero": SOUND, "Beta(0.6, 2)": SOUND, "staged": OURS}
    return [
        (CONFIDENTIAL, CONFIDENTIAL, GREY),
        (FRESH, FRESH, GREY),
        (UNWEIGHTED, UNWEIGHTED, GREY),
        (WEIGHTED, WEIGHTED, PUBLISHED),
        *published,
        (PH, row_of(PH, epsilon), SOUND),
        *((f"centre: {centre}", sound_row(centre, epsilon), of_centre[centre]) for centre in CENTRES),
    ]


def _utility(values: Values, epsilons: Sequence[str], column: str) -> Picture:
    powers = column == "avg-ECDF"
    if powers:
        values = {place: np.log10(found) for place, found in values.items() if place[1] == column}
    drawn = {epsilon: _present(values, column, _forms(epsilon)) for epsilon in epsilons}
    marks = [TRUE_VALUES[column]] if column in TRUE_VALUES else []
    usual = [[each for each in rows if each.label != OUTSIDE] for rows in drawn.values()]
    limits = _limits(usual, marks, low=None if marks or powers else 0.0)
    truth = " The dashed line is the value of Beta(0.5, 3)." if marks else " The axis is logarithmic." if powers else ""
    return Picture(
        title=f"{column} ({FIGURES[column]})",
        panels=[violins(f"ϵ = {epsilon}", rows, limits, marks, powers=powers) for epsilon, rows in drawn.items()],
        caption="Distribution over replicates; where centre zero lies to the right of the picture, the table has "
        f"it.{truth} At the same ϵ the true loss of Censor_uw is 2 ϵ, and Weighted, Weighted-e and Censor_w have "
        "none; PH and the forms named by their centre keep ϵ.",
        key=KEY,
    )


def _downscaled(values: Values) -> Picture:
    panels = []
    for column, figure in DOWNSCALED.items():
        wanted = [
            (f"{form}, c1 = {scale:g}", row_of(form, "" if form == WEIGHTED else DOWNSCALED_AT, scale), colour)
            for form in (WEIGHTED, WEIGHTED_E, CENSOR_W)
            for scale, colour in ((1.0, PUBLISHED), (SCALE, 2))
        ]
        rows = _present(values, column, wanted)
        marks = (
            [float(DOWNSCALED_AT) / 2] if column == BOUND else [TRUE_VALUES[column]] if column in TRUE_VALUES else []
        )
        low = None if column in TRUE_VALUES else 0.0
        panels.append(violins(f"{column} ({figure})", rows, _limits([rows], marks, low), marks))
    return Picture(
        title=f"With and without down-scaling at ϵ = {DOWNSCALED_AT}",
        panels=panels,
        caption=f"Weights as they are, and times {SCALE:g}. Dashed: ϵ / 2, or the value of Beta(0.5, 3).",
        key={"c1 = 1": f"--series-{PUBLISHED}", f"c1 = {SCALE:g}": "--series-2"},
    )
