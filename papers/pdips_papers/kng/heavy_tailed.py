"""Paper 002, section 4: three heavy-tailed columns by quantile regression under the K-norm gradient mechanism."""

import math
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.errors import InputError
from pdips.privacy.loss import exact
from pdips_papers.harness.framework import Block, Data, Finding, Options, Picture, Task, summarise
from pdips_papers.kng.heavy_forms import FORMS, NON_PRIVATE, Case, published_row
from pdips_papers.kng.heavy_measures import N_RESPLITS, distributions, is_place, measures
from pdips_papers.kng.heavy_paper import ERRORS, MEASURES, PRINTED
from pdips_papers.modips.words import text_of

N_RECORDS = 5_000
EPSILON = "1"
TRAINING = "Training table"
SECONDS, TRUE, CLAIMED = "CPU seconds", "true ϵ", "claimed ϵ"


@dataclass(frozen=True, kw_only=True)
class HeavyTailed:
    """``pdips study heavy-tailed``.

    Parameters
    ----------
    rows : sequence of str
        Rows of the tables to make; all by default.
    n : int
        Records of a table.
    n_resplits : int
        Of the Wasserstein test.
    """

    name: ClassVar[str] = "heavy-tailed"
    title: ClassVar[str] = "Heavy-tailed columns by K-norm gradients: tables 1 and 2 of paper 002"
    default_replicates: ClassVar[int] = 100
    data: ClassVar[Data] = "none"

    rows: Sequence[str] = tuple(FORMS)
    n: int = N_RECORDS
    n_resplits: int = N_RESPLITS

    def tasks(self, options: Options) -> list[Task]:
        """Return one task for each replicate. Raises InputError if more than one epsilon is given."""
        if len(options.epsilons) > 1:
            raise InputError("heavy-tailed takes one --epsilon: run it once for each, with a folder of its own")
        arguments = {
            "n": self.n,
            "rows": list(self.rows),
            "resplits": self.n_resplits,
            "epsilon": (options.epsilons or (EPSILON,))[0],
        }
        return [Task(key=f"replicate={number:04}", arguments=arguments) for number in range(options.replicates)]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw tables, make every row, and measure it. A row's randomness doesn't depend on which others there are."""
        case, epsilon = Case.draw(arguments["n"], _generator(seed, "population")), arguments["epsilon"]
        claimed = float(exact(epsilon, "epsilon"))
        found = _rows(TRAINING, {CLAIMED: claimed, **distributions(case.training)})
        for row in arguments["rows"]:
            start = time.process_time()
            synthetic = FORMS[row].make(case, epsilon, _generator(seed, row))
            values = {SECONDS: time.process_time() - start}
            if (spent := FORMS[row].true_epsilon(epsilon)) is not None:
                values[TRUE] = spent
            rng = _generator(seed, f"measures of {row}")
            values |= measures(case.training, case.testing, synthetic, rng, n_resplits=arguments["resplits"])
            found += _rows(row, values | distributions(synthetic))
        return found

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Average over replicates, the paper's figures beside those at its epsilon. Distributions are left out."""
        claimed = measurements.loc[measurements["column"] == CLAIMED, "value"]
        made = set(measurements["row"]) if (claimed == float(EPSILON)).all() else set()
        paper = {place: value for place, value in paper_figures().items() if place[0] in made}
        found = summarise(measurements[(measurements["row"] != TRAINING) & ~is_place(measurements["column"])], paper)
        return pd.concat([found, _errors(found)], ignore_index=True)

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Print tables 1 and 2, then what is beyond the paper."""
        from pdips_papers.kng.heavy_layout import layout

        return layout(table)

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[Picture]:
        """Draw distributions by method, as the paper's figures 3 to 5, and the measures of both tables."""
        from pdips_papers.kng.heavy_pictures import pictures

        return pictures(measurements)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Hold the paper's claims and our targets against the table."""
        from pdips_papers.kng.heavy_findings import findings

        return findings(table)

    def text(self) -> str:
        """Say what was done and what each row spends."""
        return text_of(self.name)


def paper_figures(printed: Mapping[str, Sequence[float]] = PRINTED) -> dict[tuple[str, str], float]:
    """Return the paper's tables 1 and 2, or their standard errors, by row and column of ours."""
    return {
        (row if row == NON_PRIVATE else published_row(row), column): value
        for row, values in printed.items()
        for column, value in zip(MEASURES, values, strict=True)
    }


def error_of(column: str) -> str:
    """Return the name of the standard errors of a measure, as figures of their own."""
    return f"SE, {column}"


def _errors(found: pd.DataFrame) -> pd.DataFrame:
    """Return our standard errors beside the paper's, where it has figures."""
    mine = found[found["paper"].notna()]
    printed = paper_figures(ERRORS)
    paper = [printed[place] for place in zip(mine["row"], mine["column"], strict=True)]
    names = [error_of(column) for column in mine["column"]]
    return mine.assign(column=names, ours=mine["standard_error"], standard_error=math.nan, paper=paper)


def _generator(seed: int, use: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(use.encode())])


def _rows(row: str, values: Mapping[str, float]) -> list[dict[str, Any]]:
    return [{"row": row, "column": column, "value": value} for column, value in values.items()]
