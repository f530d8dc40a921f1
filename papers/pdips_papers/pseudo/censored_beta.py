"""Simulation study of paper 004: one column from Beta(0.5, 3), censored and weighted posteriors and a histogram."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pdips_papers.harness.framework import COLUMNS, Block, Data, Finding, Options, Picture, Task
from pdips_papers.modips.words import text_of
from pdips_papers.pseudo.censored_findings import findings
from pdips_papers.pseudo.censored_forms import CONFIDENTIAL, FRESH, N_DRAWS, Made, Published, ecdf_distances, sound
from pdips_papers.pseudo.censored_layout import BOUND, BOUNDS, COUNT, UTILITY, layout
from pdips_papers.pseudo.censored_paper import COUNTED, COUNTS
from pdips_papers.pseudo.censored_pictures import pictures

N_RECORDS = 2_000
SHAPES = (0.5, 3.0)
CLAIMED, TRUE = ("5", "4", "3"), ("5", "4", "3", "1")
"""Epsilons that published forms claim, and that sound forms have."""


class CensoredBeta:
    """``pdips study censored-beta``."""

    name = "censored-beta"
    title = "Censored and weighted posteriors of a beta model: the simulations of paper 004"
    default_replicates = 100
    data: Data = "none"

    def tasks(self, options: Options) -> list[Task]:
        """Return one task for each replicate."""
        arguments = {
            "n": N_RECORDS,
            "claimed": list(options.epsilons or CLAIMED),
            "true": list(options.epsilons or TRUE),
        }
        return [Task(key=f"replicate={number:04}", arguments=arguments) for number in range(options.replicates)]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw a table, synthesize it by every form at every epsilon, and measure each."""
        rng = np.random.default_rng(seed)
        n = arguments["n"]
        y = rng.beta(*SHAPES, n)
        forms: list[Iterator[Made]] = [
            iter([Made(row=CONFIDENTIAL, synthetic=y), Made(row=FRESH, synthetic=rng.beta(*SHAPES, n))]),
            Published(y, rng, arguments.get("draws", N_DRAWS)).all(arguments["claimed"]),
            sound(y, arguments["true"], rng),
        ]
        return [row for made in forms for each in made for row in measured(y, each)]

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return the long table: means of utility measures, summaries of bounds and of counts beside the paper's."""
        parts = [
            summary
            for (row, column), values in measurements.groupby(["row", "column"], sort=False)["value"]
            for summary in summaries(str(row), str(column), values.to_numpy(dtype=np.float64))
        ]
        found = pd.DataFrame(parts, columns=COLUMNS[:4])
        printed = {
            (row, f"{COUNT}: {name}"): value
            for row, values in COUNTS.items()
            for name, value in zip(COUNTED, values, strict=True)
        }
        found["paper"] = [printed.get(place, np.nan) for place in zip(found["row"], found["column"], strict=True)]
        return found

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Return the paper's tables, and utility by epsilon."""
        return layout(table)

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[Picture]:
        """Draw the paper's violins."""
        return pictures(measurements)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Compare the paper's claims with what was found."""
        return findings(table)

    def text(self) -> str:
        """Say what was done and what each row spends."""
        return text_of(self.name)


def measured(y: np.ndarray, made: Made) -> list[dict[str, Any]]:
    """Return the measurements of one synthetic set: its bound and count if it has them, and its utility."""
    largest, average = ecdf_distances(y, made.synthetic)
    low, middle, high = np.quantile(made.synthetic, [0.15, 0.5, 0.9])
    values = (largest, average, float(made.synthetic.mean()), float(middle), float(low), float(high))
    found = dict(zip(UTILITY, values, strict=True))
    if made.row == CONFIDENTIAL:
        found = {name: value for name, value in found.items() if "ECDF" not in name}
    if made.bound is not None:
        found[BOUND] = made.bound
    if made.censored is not None:
        found[COUNT] = made.censored
    return [{"row": made.row, "column": column, "value": value} for column, value in found.items()]


def summaries(row: str, column: str, values: np.ndarray) -> list[tuple[Any, ...]]:
    """Return (row, column, value, standard error) of what is said of a measure over replicates."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
    error = spread / np.sqrt(len(values))
    quartiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    if column == COUNT:
        low, first, middle, third, high = quartiles
        of_all: Sequence[float] = (low, first, middle, values.mean(), third, high, spread)
        return [
            (row, f"{COUNT}: {name}", value, error if name == "Mean" else np.nan)
            for name, value in zip(COUNTED, of_all, strict=True)
        ]
    if column == BOUND:
        target = float(row.partition("epsilon = ")[2].partition(",")[0] or "nan") / 2
        above = np.nan if np.isnan(target) else float((values > target).mean())
        stated = (values.mean(), spread, quartiles[0], quartiles[-1], above)
        return [
            (row, name, value, error if name == BOUNDS[0] else np.nan)
            for name, value in zip(BOUNDS, stated, strict=True)
        ]
    return [(row, column, float(values.mean()), error)]
