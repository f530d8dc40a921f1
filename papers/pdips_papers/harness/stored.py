"""Whole runs of studies that are kept: tables as data files, with how they were made.

``data/runs/NAME.csv`` has the columns of a study's ``table.csv``, ``data/runs.toml``
the command, the commit of the code, the date and the processor time.
"""

from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from pdips_papers.harness.printed import data
from pdips_papers.harness.study import beside, summarise

type Measured = Iterable[dict[str, Any]]
"""Measurements with ``row``, ``column`` and ``value``: one value a replicate."""


def stored_table(name: str) -> pd.DataFrame:
    """Return the table of a run that is kept, in long form."""
    path = files("pdips_papers").joinpath("data", "runs", f"{name}.csv")
    with path.open(encoding="utf-8") as stream:
        return pd.read_csv(stream)


def write_table(
    path: Path, measured: Measured, paper: Mapping[tuple[str, str], float] | None = None
) -> None:
    """Write the means of measurements, with their standard errors, as a table of a
    run.
    """
    found = summarise(pd.DataFrame(list(measured)))
    beside(found, paper or {}).to_csv(path, index=False)


def stored_facts(name: str) -> Mapping[str, Any]:
    """Return how a run was made: ``command``, ``commit``, ``date``, ``replicates``,
    ``seed``, ``seconds`` of processor time and ``remark``; ``page`` has the names of
    rows and columns on the page of results.
    """
    facts: Mapping[str, Any] = data("runs.toml")[name]
    return facts


def markdown(name: str, rows: Mapping[str, str], columns: Mapping[str, str]) -> str:
    """Return some rows and columns of a run as a table of a page: ours with its
    standard error and, in brackets, the paper's figure.

    ``rows`` and ``columns`` have the names in the page by those in the run.
    """
    table = stored_table(name).set_index(["row", "column"])
    lines = [
        "| | " + " | ".join(columns.values()) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for row, label in rows.items():
        cells = [_cell(table.loc[(row, column)]) for column in columns]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page_table(name: str) -> str:
    """Return the table of a page that ``data/runs.toml`` says of a run."""
    page = stored_facts(name)["page"]
    return markdown(name, page["rows"], page["columns"])


def _cell(line: Any) -> str:
    spec = ".3f" if line["ours"] < 1 else ",.0f" if line["ours"] > 100 else ".1f"
    shown = format(line["ours"], spec)
    if line["standard_error"] > 0:
        shown += f" ± {format(line['standard_error'], spec)}"
    if line["paper"] == line["paper"]:
        shown += f" ({line['paper']:,.{0 if line['paper'] > 1 else 3}f})"
    return shown
