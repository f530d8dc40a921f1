"""Section 5 of paper 004: a number on public covariates by beta regression; table 2 on a table of one's own."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips_papers.harness.framework import COLUMNS, Block, Data, Finding, Options, Picture, Task, summarise
from pdips_papers.modips.words import text_of
from pdips_papers.pseudo.censored_forms import (
    CENSOR_UW,
    CENSOR_W,
    CONFIDENTIAL,
    PH,
    UNWEIGHTED,
    WEIGHTED,
    WEIGHTED_E,
    ecdf_distances,
)
from pdips_papers.pseudo.censored_paper import SALARY, SALARY_ROWS
from pdips_papers.pseudo.salary_findings import findings
from pdips_papers.pseudo.salary_forms import STAGED, Answer, Published, confidential_column, sound

MOST_RECORDS = 2_000
"""Of a larger table each replicate takes as many records at random; the paper's has 1,601."""

TRUE, RHAT, KEPT = "True ϵ", "R-hat", "Sets released"
PRINTED = ("Lipschitz", "Privacy", TRUE, *SALARY_ROWS[2:])
ORDER = (CONFIDENTIAL, UNWEIGHTED, WEIGHTED, WEIGHTED_E, CENSOR_W, CENSOR_UW, PH, *STAGED)


class Salary:
    """``pdips study salary``."""

    name: ClassVar[str] = "salary"
    title: ClassVar[str] = "One number by beta regression on public columns: table 2 of paper 004"
    default_replicates: ClassVar[int] = 4
    data: ClassVar[Data] = "required"
    needs: ClassVar[str] = (
        ", a .csv or .parquet file with its schema T.toml beside it: one confidential number and public columns, "
        "as examples/earnings.parquet of the source has"
    )

    def tasks(self, options: Options) -> list[Task]:
        """Return one task for each replicate. Reads the table, to refuse a wrong one."""
        path = Path(str(options.data))
        schema = schema_beside(path)
        _load(str(path))
        if options.epsilons:
            raise InputError("study salary has the paper's epsilon, 5, and takes no --epsilon")
        arguments = {"data": str(path), "schema": hashlib.sha256(schema.to_toml().encode()).hexdigest()}
        return [Task(key=f"replicate={number:03}", arguments=arguments) for number in range(options.replicates)]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Synthesize the table, or records of it taken at random, by every form."""
        rng = np.random.default_rng(seed)
        table = subsample(_load(arguments["data"]), arguments.get("records", MOST_RECORDS), rng)
        y = table.frame[confidential_column(table.schema)].to_numpy(dtype=np.float64)
        answers = [Answer(column=CONFIDENTIAL, synthetic=y)]
        answers += Published(table, rng, **arguments.get("fit", {})).all()
        answers += sound(table, rng)
        return [row for answer in answers for row in measured(y, answer)]

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return means over replicates, beside the paper's figures of its own table."""
        paper = {
            (row, column): value
            for column, values in SALARY.items()
            for row, value in zip(SALARY_ROWS, values, strict=True)
            if not np.isnan(value)
        }
        return summarise(measurements, paper)[list(COLUMNS)]

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Return table 2 with rows and columns as in the paper."""
        unit = {"Privacy": "Privacy ϵ, claimed", TRUE: "ϵ, true; a dash for none"}
        rows = {row: unit.get(row, row) for row in PRINTED}
        columns = {column: column for column in ORDER}
        title = "Table 2. The paper's figures are of its own table: 1,601 salaries in dollars a year"
        checks = {row: row for row in (RHAT, KEPT) if row in set(table["row"])}
        return [
            Block(title=title, rows=rows, columns=columns),
            Block(
                title="Chains: the worst R-hat, and share of sets that were released",
                rows=checks,
                columns=columns,
                headline=False,
            ),
        ]

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[Picture]:
        """Draw nothing; the quantiles of table 2 stand for the densities of figure 9."""
        return []

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Compare the paper's claims with what was found."""
        return findings(table)

    def text(self) -> str:
        """Say what was done and what each column spends."""
        return text_of(self.name)


def schema_beside(path: Path) -> Schema:
    """Return the schema in the file beside a table, of the same name with the ending .toml.

    Raises
    ------
    InputError
        If there is none, or it is not of one confidential number and public columns.
    """
    beside = path.with_suffix(".toml")
    if not beside.is_file():
        raise InputError(f"study salary needs the table's schema beside it: there is no {beside.name}")
    schema = Schema.load(beside)
    confidential_column(schema)
    return schema


@lru_cache(maxsize=1)
def _load(path: str) -> Table:
    return Table.read(path, schema_beside(Path(path)))


def subsample(table: Table, most: int, rng: np.random.Generator) -> Table:
    """Return as many records of a table, taken at random without replacement; the table itself if it has no more."""
    if table.n_records <= most:
        return table
    rows = np.sort(rng.choice(table.n_records, size=most, replace=False))
    return Table(table.frame.iloc[rows].reset_index(drop=True), table.schema)


def measured(y: np.ndarray, answer: Answer) -> list[dict[str, Any]]:
    """Return what is said of one synthetic set, of the rows of table 2."""
    stated = {"Lipschitz": answer.bound, "Privacy": answer.claimed, TRUE: answer.true, RHAT: answer.rhat}
    found = {row: float(value) for row, value in stated.items() if value is not None}
    if answer.column in STAGED:
        found[KEPT] = float(answer.synthetic is not None)
    if answer.synthetic is not None:
        if answer.column != CONFIDENTIAL:
            found["max-ECDF"], found["avg-ECDF"] = ecdf_distances(y, answer.synthetic)
        found["Mean"] = float(answer.synthetic.mean())
        low, middle, high = np.quantile(answer.synthetic, [0.15, 0.5, 0.9])
        found |= {"Median": float(middle), "15th Q": float(low), "90th Q": float(high)}
    return [{"row": row, "column": answer.column, "value": value} for row, value in found.items()]
