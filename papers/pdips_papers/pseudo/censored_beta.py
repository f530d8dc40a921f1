"""Simulation study of Hu et al. (2022): Beta(0.5, 3), censored and weighted posteriors and a histogram."""

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

CLAIMED, TRUE = ("5", "4", "3"), ("5", "4", "3", "1")
"""Epsilons that published forms claim, and that sound forms have."""

COUNTED = ("Min", "Q1", "Median", "Mean", "Q3", "Max", "sd")
"""Summaries over replicates, the columns of table 1 and of supplementary table 3."""

RECORD, PARAMETER, SHOWN, ILLUSTRATED = "record", "phi", 20, "1.6"
"""What figures 9 and 1 show, which isn't tabulated; how many values a replicate; the epsilon of figure 1."""

COUNTS = figures("censored-beta", "counts")
"""Of 2,000 records, over 100 replicates: tables 1 and 3."""


class CensoredBeta(study.Study):
    """``pdips study censored-beta``."""

    name: ClassVar[str] = "censored-beta"
    title: ClassVar[str] = "Censored and weighted posteriors of a beta model: the simulations of Hu et al. (2022)"
    default_replicates: ClassVar[int] = 100

    def tasks(self, options: study.Options) -> list[study.Task]:
        """Return one task for each replicate."""
        arguments = {
            "n": N_RECORDS,
            "claimed": list(options.epsilons or CLAIMED),
            "true": list(options.epsilons or TRUE),
        }
        return [study.Task(key=f"replicate={number:04}", arguments=arguments) for number in range(options.replicates)]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw a table, synthesize it by every form at every epsilon, and measure each."""
        rng = np.random.default_rng(seed)
        n = arguments["n"]
        y = rng.beta(*synth.SHAPES, n)
        forms: list[Iterable[synth.Synthesis]] = [
            [
                synth.Synthesis(row=synth.CONFIDENTIAL, synthetic=y),
                synth.Synthesis(row=synth.FRESH, synthetic=rng.beta(*synth.SHAPES, n)),
            ],
            synth.PublishedSynthesizers(y, rng, arguments.get("draws", synth.N_DRAWS)).all(arguments["claimed"]),
            synth.sound(y, arguments["true"], rng),
        ]
        every = [each for made in forms for each in made]
        drawn = {each.row: rng.choice(each.synthetic, SHOWN) for each in every if each.row in densest(arguments)}
        shown = _values(RECORD, drawn) + _values(PARAMETER, parameters(n, rng))
        return shown + [row for each in every for row in measured(y, each)]

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return the long table: means of utility measures, summaries of bounds and of counts beside the paper's."""
        places = study.by_place(measurements[~measurements["column"].isin((RECORD, PARAMETER))])
        parts = [summary for (row, column), values in places.items() for summary in summaries(row, column, values)]
        found = pd.DataFrame(parts, columns=study.COLUMNS[:4])
        printed = {
            (row, f"{synth.COUNT}: {name}"): value
            for row, values in COUNTS.items()
            for name, value in zip(COUNTED, values, strict=True)
        }
        return study.beside(found, printed)

    def layout(self, table: pd.DataFrame) -> list[study.Block]:
        """Return counts, bounds, utility by epsilon, and down-scaling."""
        rows = set(table["row"])
        epsilons = synth.epsilons_in(rows)
        blocks = [_counts(rows, epsilons), _bounds(rows, epsilons)]
        blocks += [_utility(rows, epsilon) for epsilon in epsilons]
        if synth.row_of(synth.WEIGHTED, "", synth.SCALE) in rows:
            wanted = [*(row for _, row, _ in downscaled()), synth.row_of(synth.HISTORICAL, synth.DOWNSCALED_AT)]
            title = f"Utility with and without down-scaling at claimed ϵ = {synth.DOWNSCALED_AT}"
            shown = {row: row for row in wanted if row in rows}
            blocks.append(
                study.Block(title=title, rows=shown, columns=_columns(), headline=False, group="Down-scaling (4.4)")
            )
        return [block for block in blocks if block.rows]

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[study.Picture]:
        """Draw the paper's violins: the Lipschitz bounds, each measure by epsilon, the effect of down-scaling."""
        values = study.by_place(measurements)
        epsilons = synth.epsilons_in(row for row, _ in values)
        found = [_bounds_of(values, epsilons), *(_utility_of(values, epsilons, column) for column in synth.UTILITY)]
        if (synth.row_of(synth.WEIGHTED, "", synth.SCALE), synth.BOUND) in values:
            found.append(_downscaled_of(values))
        return [*found, _densities(values)]

    def findings(self, table: pd.DataFrame) -> list[study.Finding]:
        """Compare the paper's claims with what was found."""
        return synth.simulated_findings(table)


def densest(arguments: Mapping[str, Any]) -> list[str]:
    """Return the rows of the paper's figure 9: the data, and its five synthesizers at the largest epsilon."""
    forms = [synth.row_of(form, arguments["claimed"][0]) for form in synth.BOUNDED]
    return [
        synth.CONFIDENTIAL,
        synth.WEIGHTED,
        *forms,
        *(synth.row_of(form, arguments["true"][0]) for form in synth.PHS),
    ]


def _values(column: str, drawn: Mapping[str, FloatArray]) -> list[dict[str, Any]]:
    return [{"row": row, "column": column, "value": value} for row in drawn for value in drawn[row].tolist()]


def parameters(n: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Return draws of the beta law's mean from the prior, the posterior and the published censored posterior."""
    fits, drawn = GridFit(synth.beta_model(), {"y": rng.beta(0.5, 2, n)}, SHOWN, rng), {"prior": rng.random(SHOWN)}
    for row, window in {"posterior": np.inf, f"Censor_uw, epsilon = {ILLUSTRATED}": float(ILLUSTRATED) / 2}.items():
        fits.fit(None, window)
        drawn[row] = np.array([float(each["phi"]) for each in fits.several(SHOWN)])
    return drawn


def measured(y: np.ndarray, made: synth.Synthesis) -> list[dict[str, Any]]:
    """Return the measurements of one synthetic set: its bound and count if it has them, and its utility."""
    largest, average = synth.ecdf_distances(y, made.synthetic)
    low, middle, high = np.quantile(made.synthetic, [0.15, 0.5, 0.9])
    values = (largest, average, float(made.synthetic.mean()), float(middle), float(low), float(high))
    found = dict(zip(synth.UTILITY, values, strict=True))
    if made.row == synth.CONFIDENTIAL:
        found = {name: value for name, value in found.items() if "ECDF" not in name}
    if made.bound is not None:
        found[synth.BOUND] = made.bound
    if made.censored is not None:
        found[synth.COUNT] = made.censored
    return [{"row": made.row, "column": column, "value": value} for column, value in found.items()]


def summaries(row: str, column: str, values: np.ndarray) -> list[tuple[Any, ...]]:
    """Return (row, column, value, standard error) of what is said of a measure over replicates."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
    error = spread / np.sqrt(len(values))
    quartiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    if column == synth.COUNT:
        low, first, middle, third, high = quartiles
        of_all: Sequence[float] = (low, first, middle, values.mean(), third, high, spread)
        return [
            (row, f"{synth.COUNT}: {name}", value, error if name == "Mean" else np.nan)
            for name, value in zip(COUNTED, of_all, strict=True)
        ]
    if column == synth.BOUND:
        target = float(row.partition("epsilon = ")[2].partition(",")[0] or "nan") / 2
        above = np.nan if np.isnan(target) else float((values > target).mean())
        stated = (values.mean(), spread, quartiles[0], quartiles[-1], above)
        return [
            (row, name, value, error if name == synth.BOUNDS[0] else np.nan)
            for name, value in zip(synth.BOUNDS, stated, strict=True)
        ]
    return [(row, column, float(values.mean()), error)]


def _columns() -> dict[str, str]:
    return {name: name.replace("percentile", "pct.") for name in synth.UTILITY}


def _counts(rows: set[str], epsilons: Iterable[str]) -> study.Block:
    wanted = [synth.row_of(form, epsilon) for epsilon in epsilons for form in synth.BOUNDED]
    wanted += [synth.row_of(synth.HISTORICAL, synth.DOWNSCALED_AT), *(row for row in COUNTS if "c1" in row)]
    return study.Block(
        title="Tables 1 and 3: records (of 2,000) of weight 0 in Weighted-e, of censored likelihood in Censor_w "
        "and Censor_uw",
        rows={row: row.replace("epsilon", "ϵ") for row in wanted if row in rows},
        columns={f"{synth.COUNT}: {name}": name for name in COUNTED},
        group="Counts (4.2)",
    )


def _bounds(rows: set[str], epsilons: Iterable[str]) -> study.Block:
    wanted = [synth.UNWEIGHTED, synth.WEIGHTED, synth.row_of(synth.WEIGHTED, "", synth.SCALE)]
    wanted += [synth.row_of(form, epsilon) for epsilon in epsilons for form in synth.BOUNDED]
    wanted += [row for row in COUNTS if "c1" in row]
    labels = ("mean", "sd", "min", "max", "share above ϵ / 2")
    return study.Block(
        title="Lipschitz bounds, which the paper draws (figures 2, 6 and 10)",
        rows={row: row.replace("epsilon", "ϵ") for row in wanted if row in rows},
        columns=dict(zip(synth.BOUNDS, labels, strict=True)),
        headline=False,
        group="Lipschitz bounds (4.2)",
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
        **{synth.row_of(form, epsilon): f"{form}; true ϵ {epsilon}" for form in synth.PHS},
        **{synth.sound_row(centre, epsilon): f"centre {centre}; true ϵ {epsilon}" for centre in synth.CENTRES},
    }
    return study.Block(
        title=f"Utility at ϵ = {epsilon}, claimed by the published forms: means over replicates",
        rows={row: label for row, label in wanted.items() if row in rows},
        columns=_columns(),
        group="Utility (4.3), published and sound",
    )


def downscaled() -> list[tuple[str, str, int]]:
    """Return label, row and colour of the forms with and without down-scaling."""
    return [
        (
            f"{form}, c1 = {scale:g}",
            synth.row_of(form, "" if form == synth.WEIGHTED else synth.DOWNSCALED_AT, scale),
            colour,
        )
        for form in (synth.WEIGHTED, synth.WEIGHTED_E, synth.CENSOR_W)
        for scale, colour in ((1.0, PUBLISHED), (synth.SCALE, 2))
    ]


GREY, PUBLISHED, SOUND, OURS = 1, 4, 3, 5

KEY = {
    "not private": f"--series-{GREY}",
    "as published, at the epsilon it claims": f"--series-{PUBLISHED}",
    "sound, at its true epsilon": f"--series-{SOUND}",
    "sound, staged (the default)": f"--series-{OURS}",
}

TRUTH = stats.beta(0.5, 3)

TRUE_VALUES = {"mean": float(TRUTH.mean())} | {
    name: float(TRUTH.ppf(p)) for name, p in (("median", 0.5), ("15th percentile", 0.15), ("90th percentile", 0.9))
}
"""Of Beta(0.5, 3)."""

FIGURES, DOWNSCALED = (data("settings.toml")["censored-beta"][part] for part in ("figures", "downscaled"))

OUTSIDE = "centre: zero"
"""Limits of pictures are made without it."""


def _limits(
    drawn: Sequence[Sequence[Violin]], marks: Sequence[float] = (), low: float | None = None
) -> tuple[float, float]:
    """Return limits that hold nearly all values of all panels, so that a few outliers don't flatten the rest."""
    every = [np.asarray(each.values, dtype=float) for panel in drawn for each in panel]
    high = max([*(float(np.quantile(values, 0.98)) for values in every), *marks])
    least = min([*(float(np.quantile(values, 0.02)) for values in every), *marks]) if low is None else low
    margin = 0.04 * (high - least) or 0.1
    return least - (0.0 if low is not None else margin), high + margin


def _present(values: study.Values, column: str, wanted: Sequence[tuple[str, str, int]]) -> list[Violin]:
    """Return the violins, from (label, row, colour), of which there are values."""
    return [Violin(label, values[row, column], colour) for label, row, colour in wanted if (row, column) in values]


def _forms(epsilon: str) -> list[tuple[str, str, int]]:
    """Return label, row and colour of every form that is compared at an epsilon."""
    published = [(form, synth.row_of(form, epsilon), PUBLISHED) for form in synth.BOUNDED]
    of_centre = {"zero": SOUND, "Beta(0.6, 2)": SOUND, "staged": OURS}
    return [
        (synth.CONFIDENTIAL, synth.CONFIDENTIAL, GREY),
        (synth.FRESH, synth.FRESH, GREY),
        (synth.UNWEIGHTED, synth.UNWEIGHTED, GREY),
        (synth.WEIGHTED, synth.WEIGHTED, PUBLISHED),
        *published,
        *((form, synth.row_of(form, epsilon), SOUND) for form in synth.PHS),
        *((f"centre: {centre}", synth.sound_row(centre, epsilon), of_centre[centre]) for centre in synth.CENTRES),
    ]


def _bounds_of(values: study.Values, epsilons: Sequence[str]) -> study.Picture:
    drawn = {
        epsilon: _present(
            values,
            synth.BOUND,
            [
                (synth.WEIGHTED, synth.WEIGHTED, PUBLISHED),
                *((form, synth.row_of(form, epsilon), PUBLISHED) for form in synth.BOUNDED),
            ],
        )
        for epsilon in epsilons
        if (synth.row_of(synth.CENSOR_UW, epsilon), synth.BOUND) in values
    }
    limits = _limits(list(drawn.values()), low=0.0)
    panels = [violins(f"claimed ϵ = {each}", rows, limits, [float(each) / 2]) for each, rows in drawn.items()]
    every = _present(
        values, synth.BOUND, [(synth.UNWEIGHTED, synth.UNWEIGHTED, GREY), (synth.WEIGHTED, synth.WEIGHTED, PUBLISHED)]
    )
    panels.append(violins("without a target", every, _limits([every], low=0.0)))
    return study.Picture(
        title="Lipschitz bounds (figures 2 and 10)",
        panels=panels,
        caption="Distribution over replicates of the largest weighted and censored log-likelihood of any record "
        "and draw; the dashed line is ϵ / 2. Dots are means, lines reach from the least to the greatest value.",
        key=dict(list(KEY.items())[:2]),
    )


def _utility_of(values: study.Values, epsilons: Sequence[str], column: str) -> study.Picture:
    powers = column == "avg-ECDF"
    if powers:
        values = {place: np.log10(found) for place, found in values.items() if place[1] == column}
    drawn = {epsilon: _present(values, column, _forms(epsilon)) for epsilon in epsilons}
    marks = [TRUE_VALUES[column]] if column in TRUE_VALUES else []
    usual = [[each for each in rows if each.label != OUTSIDE] for rows in drawn.values()]
    limits = _limits(usual, marks, low=None if marks or powers else 0.0)
    truth = " The dashed line is the value of Beta(0.5, 3)." if marks else " The axis is logarithmic." if powers else ""
    return study.Picture(
        title=f"{column} ({FIGURES[column]})",
        panels=[violins(f"ϵ = {epsilon}", rows, limits, marks, powers=powers) for epsilon, rows in drawn.items()],
        caption="Distribution over replicates; where centre zero lies to the right of the picture, the table has "
        f"it.{truth} At the same ϵ the true loss of Censor_uw is 2 ϵ, and Weighted, Weighted-e and Censor_w have "
        "none; PH and the forms named by their centre keep ϵ.",
        key=KEY,
    )


def _downscaled_of(values: study.Values) -> study.Picture:
    panels = []
    for column, figure in DOWNSCALED.items():
        rows = _present(values, column, downscaled())
        marks = (
            [float(synth.DOWNSCALED_AT) / 2]
            if column == synth.BOUND
            else [TRUE_VALUES[column]]
            if column in TRUE_VALUES
            else []
        )
        low = None if column in TRUE_VALUES else 0.0
        panels.append(violins(f"{column} ({figure})", rows, _limits([rows], marks, low), marks))
    return study.Picture(
        title=f"With and without down-scaling at ϵ = {synth.DOWNSCALED_AT}",
        panels=panels,
        caption=f"Weights as they are, and times {synth.SCALE:g}. Dashed: ϵ / 2, or the value of Beta(0.5, 3).",
        key={"c1 = 1": f"--series-{PUBLISHED}", f"c1 = {synth.SCALE:g}": "--series-2"},
    )


def _densities(values: study.Values) -> study.Picture:
    """Return the paper's figures 1 and 9, of values of all replicates together."""
    shown = {column: [each for each in values if each[1] == column] for column in (PARAMETER, RECORD)}
    phi, record = ([Violin(each[0], values[each], PUBLISHED) for each in places] for places in shown.values())
    centred = [Violin(row, values[row, of] - values[row, of].mean(), PUBLISHED) for row, of in shown[PARAMETER]]
    return study.Picture(
        title="Densities of all replicates together (figures 1 and 9)",
        panels=[
            violins("mean of the beta law", phi, (0.0, 1.0)),
            violins("the same about its mean", centred, (-0.5, 0.5)),
            violins("records of the data and of synthetic sets", record, (0.0, 1.0)),
        ],
    )
