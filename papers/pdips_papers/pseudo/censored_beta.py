"""Simulation study of Hu et al. (2022): Beta(0.5, 3), censored and weighted posteriors
and a histogram.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from scipy import stats

from pdips.arrays import FloatArray
from pdips.posterior.pseudo_posterior import GridFit
from pdips_papers.harness import study
from pdips_papers.harness.curves import Violin, violins
from pdips_papers.harness.printed import data, figures
from pdips_papers.pseudo import synthesizers as synth

N_RECORDS = 2_000

CLAIMED = ("5", "4", "3")
TRUE = ("5", "4", "3", "1")
"""Epsilons that published forms claim, and that sound forms have."""

COUNTED = ("Min", "Q1", "Median", "Mean", "Q3", "Max", "sd")
"""Summaries over replicates, the columns of table 1 and of supplementary table 3."""

RECORD = "record"
PARAMETER = "phi"
SHOWN = 20
ILLUSTRATED = "1.6"
"""What figures 9 and 1 show, which isn't tabulated; how many values a replicate; the
epsilon of figure 1.
"""

COUNTS = figures("censored-beta", "counts")
"""Of 2,000 records, over 100 replicates: tables 1 and 3."""


class CensoredBeta(study.Study):
    """``pdips study censored-beta``."""

    name: ClassVar[str] = "censored-beta"
    title: ClassVar[str] = (
        "Censored and weighted posteriors of a beta model: the "
        "simulations of Hu et al. (2022)"
    )
    default_replicates: ClassVar[int] = 100

    def tasks(self, options: study.Options) -> list[study.Task]:
        """Return one task for each replicate."""
        arguments = {
            "n": N_RECORDS,
            "claimed": list(options.epsilons or CLAIMED),
            "true": list(options.epsilons or TRUE),
        }
        return [
            study.Task(key=f"replicate={number:04}", arguments=arguments)
            for number in range(options.replicates)
        ]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw a table, synthesize it by every form at every epsilon, and measure
        each.
        """
        rng = np.random.default_rng(seed)
        n = arguments["n"]
        y = rng.beta(*synth.SHAPES, n)
        fresh = rng.beta(*synth.SHAPES, n)
        n_draws = arguments.get("draws", synth.N_DRAWS)
        published = synth.PublishedSynthesizers(y, rng, n_draws)
        syntheses = [
            synth.Synthesis(row=synth.CONFIDENTIAL, synthetic=y),
            synth.Synthesis(row=synth.FRESH, synthetic=fresh),
            *published.all(arguments["claimed"]),
            *synth.sound(y, arguments["true"], rng),
        ]
        shown = {}
        for synthesis in syntheses:
            if synthesis.row in densest(arguments):
                shown[synthesis.row] = rng.choice(synthesis.synthetic, SHOWN)
        rows = _values(RECORD, shown) + _values(PARAMETER, parameters(n, rng))
        for synthesis in syntheses:
            rows += measured(y, synthesis)
        return rows

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return the long table: means of utility measures, summaries of bounds and of
        counts beside the paper's.
        """
        is_shown = measurements["column"].isin((RECORD, PARAMETER))
        parts = []
        for place, values in study.by_place(measurements[~is_shown]).items():
            parts += summaries(*place, values)
        printed = {}
        for row, counts in COUNTS.items():
            for name, value in zip(COUNTED, counts, strict=True):
                printed[row, f"{synth.COUNT}: {name}"] = value
        return study.beside(pd.DataFrame(parts, columns=study.COLUMNS[:4]), printed)

    def layout(self, table: pd.DataFrame) -> list[study.Block]:
        """Return counts, bounds, utility by epsilon, and down-scaling."""
        rows = set(table["row"])
        epsilons = synth.epsilons_in(rows)
        blocks = [_counts(rows, epsilons), _bounds(rows, epsilons)]
        blocks += [_utility(rows, epsilon) for epsilon in epsilons]
        if synth.row_of(synth.WEIGHTED, "", synth.SCALE) in rows:
            blocks.append(_with_down_scaling(rows))
        return [block for block in blocks if block.rows]

    def pictures(
        self, measurements: pd.DataFrame, table: pd.DataFrame
    ) -> list[study.Picture]:
        """Draw the paper's violins: the Lipschitz bounds, each measure by epsilon, the
        effect of down-scaling.
        """
        values = study.by_place(measurements)
        epsilons = synth.epsilons_in(row for row, _ in values)
        pictures = [_bounds_of(values, epsilons)]
        for column in synth.UTILITY:
            pictures.append(_utility_of(values, epsilons, column))
        if (synth.row_of(synth.WEIGHTED, "", synth.SCALE), synth.BOUND) in values:
            pictures.append(_downscaled_of(values))
        return [*pictures, _densities(values)]

    def findings(self, table: pd.DataFrame) -> list[study.Finding]:
        """Compare the paper's claims with what was found."""
        return synth.simulated_findings(table)


def densest(arguments: Mapping[str, Any]) -> list[str]:
    """Return the rows of the paper's figure 9: the data, and its five synthesizers at
    the largest epsilon.
    """
    claimed = arguments["claimed"][0]
    true = arguments["true"][0]
    return [
        synth.CONFIDENTIAL,
        synth.WEIGHTED,
        *(synth.row_of(form, claimed) for form in synth.BOUNDED),
        *(synth.row_of(form, true) for form in synth.PHS),
    ]


def _values(column: str, drawn: Mapping[str, FloatArray]) -> list[dict[str, Any]]:
    return [
        {"row": row, "column": column, "value": value}
        for row in drawn
        for value in drawn[row].tolist()
    ]


def parameters(n: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Return draws of the beta law's mean from the prior, the posterior and the
    published censored posterior.
    """
    y = rng.beta(0.5, 2, n)
    fits = GridFit(synth.beta_model(), {"y": y}, SHOWN, rng)
    windows = {
        "posterior": np.inf,
        f"Censor_uw, epsilon = {ILLUSTRATED}": float(ILLUSTRATED) / 2,
    }
    drawn = {"prior": rng.random(SHOWN)}
    for row, window in windows.items():
        fits.fit(None, window)
        drawn[row] = np.array([float(draw["phi"]) for draw in fits.several(SHOWN)])
    return drawn


def measured(y: np.ndarray, made: synth.Synthesis) -> list[dict[str, Any]]:
    """Return the measurements of one synthetic set: its bound and count if it has them,
    and its utility.
    """
    synthetic = made.synthetic
    largest, average = synth.ecdf_distances(y, synthetic)
    low, middle, high = np.quantile(synthetic, [0.15, 0.5, 0.9]).tolist()
    values = (largest, average, float(synthetic.mean()), middle, low, high)
    utility = dict(zip(synth.UTILITY, values, strict=True))
    if made.row == synth.CONFIDENTIAL:
        utility = {name: value for name, value in utility.items() if "ECDF" not in name}
    if made.bound is not None:
        utility[synth.BOUND] = made.bound
    if made.censored is not None:
        utility[synth.COUNT] = made.censored
    return study.rows_of(made.row, utility)


def summaries(row: str, column: str, values: np.ndarray) -> list[tuple[Any, ...]]:
    """Return (row, column, value, standard error) of what is said of a measure over
    replicates.
    """
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
    error = spread / np.sqrt(len(values))
    if column == synth.COUNT:
        numbers = _of_counts(values, spread)
    elif column == synth.BOUND:
        numbers = _of_bounds(row, values, spread)
    else:
        return [(row, column, float(values.mean()), error)]
    of_means = (f"{synth.COUNT}: Mean", synth.BOUND)
    return [
        (row, name, value, error if name in of_means else np.nan)
        for name, value in numbers.items()
    ]


def _of_counts(values: np.ndarray, spread: float) -> dict[str, float]:
    low, first, middle, third, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    numbers = (low, first, middle, values.mean(), third, high, spread)
    names = [f"{synth.COUNT}: {name}" for name in COUNTED]
    return dict(zip(names, numbers, strict=True))


def _of_bounds(row: str, values: np.ndarray, spread: float) -> dict[str, float]:
    above = np.nan
    _, _, rest = row.partition("epsilon = ")
    if rest:
        epsilon = float(rest.partition(",")[0])
        above = float((values > epsilon / 2).mean())
    numbers = (values.mean(), spread, values.min(), values.max(), above)
    return dict(zip(synth.BOUNDS, numbers, strict=True))


def _columns() -> dict[str, str]:
    return {name: name.replace("percentile", "pct.") for name in synth.UTILITY}


def _claimed_rows(epsilons: Iterable[str]) -> list[str]:
    """Return the rows of the published forms that claim an epsilon."""
    return [
        synth.row_of(form, epsilon) for epsilon in epsilons for form in synth.BOUNDED
    ]


def _present_rows(wanted: Iterable[str], rows: set[str]) -> dict[str, str]:
    return {row: row.replace("epsilon", "ϵ") for row in wanted if row in rows}


def _counts(rows: set[str], epsilons: Iterable[str]) -> study.Block:
    wanted = [
        *_claimed_rows(epsilons),
        synth.row_of(synth.HISTORICAL, synth.DOWNSCALED_AT),
        *(row for row in COUNTS if "c1" in row),
    ]
    return study.Block(
        title="Tables 1 and 3: records (of 2,000) of weight 0 in Weighted-e, of "
        "censored likelihood in Censor_w "
        "and Censor_uw",
        rows=_present_rows(wanted, rows),
        columns={f"{synth.COUNT}: {name}": name for name in COUNTED},
        group="Counts (4.2)",
    )


def _bounds(rows: set[str], epsilons: Iterable[str]) -> study.Block:
    wanted = [
        synth.UNWEIGHTED,
        synth.WEIGHTED,
        synth.row_of(synth.WEIGHTED, "", synth.SCALE),
        *_claimed_rows(epsilons),
        *(row for row in COUNTS if "c1" in row),
    ]
    labels = ("mean", "sd", "min", "max", "share above ϵ / 2")
    return study.Block(
        title="Lipschitz bounds, which the paper draws (figures 2, 6 and 10)",
        rows=_present_rows(wanted, rows),
        columns=dict(zip(synth.BOUNDS, labels, strict=True)),
        headline=False,
        group="Lipschitz bounds (4.2)",
    )


def _with_down_scaling(rows: set[str]) -> study.Block:
    historical = synth.row_of(synth.HISTORICAL, synth.DOWNSCALED_AT)
    wanted = [*(row for _, row, _ in downscaled()), historical]
    return study.Block(
        title=f"Utility with and without down-scaling at claimed ϵ = "
        f"{synth.DOWNSCALED_AT}",
        rows={row: row for row in wanted if row in rows},
        columns=_columns(),
        headline=False,
        group="Down-scaling (4.4)",
    )


def _utility(rows: set[str], epsilon: str) -> study.Block:
    """Return every form at one epsilon; its true loss stands in its label."""
    twice = f"{2 * float(epsilon):g}"
    wanted = {
        synth.CONFIDENTIAL: "confidential data",
        synth.FRESH: "fresh sample from the truth",
        synth.UNWEIGHTED: "Unweighted: posterior as it is; no privacy",
        synth.WEIGHTED: "Weighted; no true ϵ",
        synth.row_of(synth.WEIGHTED_E, epsilon): "Weighted-e; no true ϵ",
        synth.row_of(synth.CENSOR_W, epsilon): "Censor_w; no true ϵ",
        synth.row_of(synth.CENSOR_UW, epsilon): f"Censor_uw; true ϵ {twice}",
    }
    for form in synth.PHS:
        wanted[synth.row_of(form, epsilon)] = f"{form}; true ϵ {epsilon}"
    for centre in synth.CENTRES:
        label = f"centre {centre}; true ϵ {epsilon}"
        wanted[synth.sound_row(centre, epsilon)] = label
    return study.Block(
        title=f"Utility at ϵ = {epsilon}, claimed by the published forms: means over "
        f"replicates",
        rows={row: label for row, label in wanted.items() if row in rows},
        columns=_columns(),
        group="Utility (4.3), published and sound",
    )


def downscaled() -> list[tuple[str, str, int]]:
    """Return label, row and colour of the forms with and without down-scaling."""
    found = []
    for form in (synth.WEIGHTED, synth.WEIGHTED_E, synth.CENSOR_W):
        epsilon = "" if form == synth.WEIGHTED else synth.DOWNSCALED_AT
        for scale, colour in ((1.0, PUBLISHED), (synth.SCALE, 2)):
            row = synth.row_of(form, epsilon, scale)
            found.append((f"{form}, c1 = {scale:g}", row, colour))
    return found


GREY = 1
PUBLISHED = 4
SOUND = 3
OURS = 5

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

_SETTINGS = data("settings.toml")["censored-beta"]
FIGURES = _SETTINGS["figures"]
DOWNSCALED = _SETTINGS["downscaled"]

OUTSIDE = "centre: zero"
"""Limits of pictures are made without it."""


def _limits(
    drawn: Sequence[Sequence[Violin]],
    marks: Sequence[float] = (),
    low: float | None = None,
) -> tuple[float, float]:
    """Return limits that hold nearly all values of all panels, so that a few outliers
    don't flatten the rest.
    """
    arrays = [
        np.asarray(violin.values, dtype=float) for panel in drawn for violin in panel
    ]
    high = max([*(float(np.quantile(values, 0.98)) for values in arrays), *marks])
    if low is not None:
        return low, high + (0.04 * (high - low) or 0.1)
    least = min([*(float(np.quantile(values, 0.02)) for values in arrays), *marks])
    margin = 0.04 * (high - least) or 0.1
    return least - margin, high + margin


def _present(
    values: study.Values, column: str, wanted: Sequence[tuple[str, str, int]]
) -> list[Violin]:
    """Return the violins, from (label, row, colour), of which there are values."""
    return [
        Violin(label, values[row, column], colour)
        for label, row, colour in wanted
        if (row, column) in values
    ]


def _forms(epsilon: str) -> list[tuple[str, str, int]]:
    """Return label, row and colour of every form that is compared at an epsilon."""
    of_centre = {"zero": SOUND, "Beta(0.6, 2)": SOUND, "staged": OURS}
    forms = [
        (synth.CONFIDENTIAL, synth.CONFIDENTIAL, GREY),
        (synth.FRESH, synth.FRESH, GREY),
        (synth.UNWEIGHTED, synth.UNWEIGHTED, GREY),
        (synth.WEIGHTED, synth.WEIGHTED, PUBLISHED),
        *_bounded(epsilon),
    ]
    for form in synth.PHS:
        forms.append((form, synth.row_of(form, epsilon), SOUND))
    for centre in synth.CENTRES:
        row = synth.sound_row(centre, epsilon)
        forms.append((f"centre: {centre}", row, of_centre[centre]))
    return forms


def _bounded(epsilon: str) -> list[tuple[str, str, int]]:
    """Return label, row and colour of the published forms that claim an epsilon."""
    return [(form, synth.row_of(form, epsilon), PUBLISHED) for form in synth.BOUNDED]


def _bounds_of(values: study.Values, epsilons: Sequence[str]) -> study.Picture:
    weighted = (synth.WEIGHTED, synth.WEIGHTED, PUBLISHED)
    drawn = {}
    for epsilon in epsilons:
        if (synth.row_of(synth.CENSOR_UW, epsilon), synth.BOUND) in values:
            forms = [weighted, *_bounded(epsilon)]
            drawn[epsilon] = _present(values, synth.BOUND, forms)
    limits = _limits(list(drawn.values()), low=0.0)
    panels = [
        violins(f"claimed ϵ = {epsilon}", rows, limits, [float(epsilon) / 2])
        for epsilon, rows in drawn.items()
    ]
    unweighted = (synth.UNWEIGHTED, synth.UNWEIGHTED, GREY)
    without = _present(values, synth.BOUND, [unweighted, weighted])
    panels.append(violins("without a target", without, _limits([without], low=0.0)))
    return study.Picture(
        title="Lipschitz bounds (figures 2 and 10)",
        panels=panels,
        caption="Distribution over replicates of the largest weighted and censored "
        "log-likelihood of any record "
        "and draw; the dashed line is ϵ / 2. Dots are means, lines reach from the "
        "least to the greatest value.",
        key=dict(list(KEY.items())[:2]),
    )


def _utility_of(
    values: study.Values, epsilons: Sequence[str], column: str
) -> study.Picture:
    powers = column == "avg-ECDF"
    if powers:
        values = {
            place: np.log10(numbers)
            for place, numbers in values.items()
            if place[1] == column
        }
    drawn = {epsilon: _present(values, column, _forms(epsilon)) for epsilon in epsilons}
    usual = [
        [violin for violin in rows if violin.label != OUTSIDE]
        for rows in drawn.values()
    ]
    marks = []
    truth = ""
    low: float | None = 0.0
    if column in TRUE_VALUES:
        marks = [TRUE_VALUES[column]]
        truth = " The dashed line is the value of Beta(0.5, 3)."
        low = None
    elif powers:
        truth = " The axis is logarithmic."
        low = None
    limits = _limits(usual, marks, low=low)
    return study.Picture(
        title=f"{column} ({FIGURES[column]})",
        panels=[
            violins(f"ϵ = {epsilon}", rows, limits, marks, powers=powers)
            for epsilon, rows in drawn.items()
        ],
        caption="Distribution over replicates; where centre zero lies to the right "
        "of the picture, the table has "
        f"it.{truth} At the same ϵ the true loss of Censor_uw is 2 ϵ, and Weighted, "
        f"Weighted-e and Censor_w have "
        "none; PH and the forms named by their centre keep ϵ.",
        key=KEY,
    )


def _downscaled_of(values: study.Values) -> study.Picture:
    panels = []
    for column, figure in DOWNSCALED.items():
        rows = _present(values, column, downscaled())
        marks = []
        low: float | None = 0.0
        if column in TRUE_VALUES:
            marks = [TRUE_VALUES[column]]
            low = None
        elif column == synth.BOUND:
            marks = [float(synth.DOWNSCALED_AT) / 2]
        limits = _limits([rows], marks, low)
        panels.append(violins(f"{column} ({figure})", rows, limits, marks))
    return study.Picture(
        title=f"With and without down-scaling at ϵ = {synth.DOWNSCALED_AT}",
        panels=panels,
        caption=f"Weights as they are, and times {synth.SCALE:g}. Dashed: ϵ / 2, or "
        f"the value of Beta(0.5, 3).",
        key={"c1 = 1": f"--series-{PUBLISHED}", f"c1 = {synth.SCALE:g}": "--series-2"},
    )


def _densities(values: study.Values) -> study.Picture:
    """Return the paper's figures 1 and 9, of values of all replicates together."""
    phi = []
    centred = []
    records = []
    for (row, column), numbers in values.items():
        if column == PARAMETER:
            phi.append(Violin(row, numbers, PUBLISHED))
            centred.append(Violin(row, numbers - numbers.mean(), PUBLISHED))
        elif column == RECORD:
            records.append(Violin(row, numbers, PUBLISHED))
    return study.Picture(
        title="Densities of all replicates together (figures 1 and 9)",
        panels=[
            violins("mean of the beta law", phi, (0.0, 1.0)),
            violins("the same about its mean", centred, (-0.5, 0.5)),
            violins("records of the data and of synthetic sets", records, (0.0, 1.0)),
        ],
    )
