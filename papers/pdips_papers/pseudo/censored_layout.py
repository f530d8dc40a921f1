"""How the table of the study censored-beta is printed."""

from collections.abc import Iterable

import pandas as pd

from pdips_papers.harness.framework import Block
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
from pdips_papers.pseudo.censored_paper import COUNTED, COUNTS

BOUND, COUNT = "Lipschitz bound", "count"
UTILITY = ("max-ECDF", "avg-ECDF", "mean", "median", "15th percentile", "90th percentile")
BOUNDS = (BOUND, f"{BOUND}: sd", f"{BOUND}: min", f"{BOUND}: max", f"{BOUND}: share above")


def epsilons_of(rows: Iterable[str]) -> list[str]:
    """Return the epsilons in the names of rows, the largest first."""
    found = {row.partition("epsilon = ")[2].partition(",")[0] for row in rows if "epsilon = " in row}
    return sorted(found, key=float, reverse=True)


def layout(table: pd.DataFrame) -> list[Block]:
    """Return counts, bounds, utility by epsilon, and down-scaling."""
    rows = set(table["row"])
    epsilons = epsilons_of(rows)
    blocks = [_counts(rows, epsilons), _bounds(rows, epsilons)]
    blocks += [_utility(rows, epsilon) for epsilon in epsilons]
    scaled = {
        row: row
        for form in (WEIGHTED, WEIGHTED_E, CENSOR_W)
        for scale in (1.0, SCALE)
        if (row := row_of(form, "" if form == WEIGHTED else DOWNSCALED_AT, scale)) in rows
    }
    if row_of(WEIGHTED, "", SCALE) in rows:
        title = f"Utility with and without down-scaling at claimed ϵ = {DOWNSCALED_AT}"
        blocks.append(Block(title=title, rows=scaled, columns=_columns(), headline=False, group="Down-scaling (4.4)"))
    return [block for block in blocks if block.rows]


def _columns() -> dict[str, str]:
    return {name: name.replace("percentile", "pct.") for name in UTILITY}


def _counts(rows: set[str], epsilons: Iterable[str]) -> Block:
    wanted = [row_of(form, epsilon) for epsilon in epsilons for form in (WEIGHTED_E, CENSOR_W, CENSOR_UW)]
    wanted += [row for row in COUNTS if "c1" in row]
    return Block(
        title="Tables 1 and 3: records (of 2,000) of weight 0 in Weighted-e, of censored likelihood in Censor_w "
        "and Censor_uw",
        rows={row: row.replace("epsilon", "ϵ") for row in wanted if row in rows},
        columns={f"{COUNT}: {name}": name for name in COUNTED},
        group="Counts (4.2)",
    )


def _bounds(rows: set[str], epsilons: Iterable[str]) -> Block:
    wanted = [UNWEIGHTED, WEIGHTED, row_of(WEIGHTED, "", SCALE)]
    wanted += [row_of(form, epsilon) for epsilon in epsilons for form in (WEIGHTED_E, CENSOR_W, CENSOR_UW)]
    wanted += [row for row in COUNTS if "c1" in row]
    labels = ("mean", "sd", "min", "max", "share above ϵ / 2")
    return Block(
        title="Lipschitz bounds, which the paper draws (figures 2, 6 and 10)",
        rows={row: row.replace("epsilon", "ϵ") for row in wanted if row in rows},
        columns=dict(zip(BOUNDS, labels, strict=True)),
        headline=False,
        group="Lipschitz bounds (4.2)",
    )


def _utility(rows: set[str], epsilon: str) -> Block:
    """Return every form at one epsilon; its true loss stands in its label."""
    twice = f"{2 * float(epsilon):g}"
    wanted = {
        CONFIDENTIAL: "confidential data",
        FRESH: "fresh sample from the truth",
        UNWEIGHTED: "Unweighted: posterior as it is; no privacy",
        WEIGHTED: "Weighted; no true ϵ",
        row_of(WEIGHTED_E, epsilon): "Weighted-e; no true ϵ",
        row_of(CENSOR_W, epsilon): "Censor_w; no true ϵ",
        row_of(CENSOR_UW, epsilon): f"Censor_uw; true ϵ {twice}",
        row_of(PH, epsilon): f"PH; true ϵ {epsilon}",
        **{sound_row(centre, epsilon): f"centre {centre}; true ϵ {epsilon}" for centre in CENTRES},
    }
    return Block(
        title=f"Utility at ϵ = {epsilon}, claimed by the published forms: means over replicates",
        rows={row: label for row, label in wanted.items() if row in rows},
        columns=_columns(),
        group="Utility (4.3), published and sound",
    )
