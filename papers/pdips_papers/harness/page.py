"""Write what a study found: ``table.csv``, and ``study.html``, one page that needs no
other file.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd

from pdips import __version__
from pdips.report.figures import as_svg
from pdips.report.formats import number
from pdips.report.pages import render
from pdips_papers.harness.study import COLUMNS, Block, Options, Study, judged


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a block: our figure, the text of its standard error, the paper's
    figure.
    """

    ours: float = math.nan
    error: str = ""
    paper: float = math.nan


def write(
    study: Study,
    options: Options,
    measurements: pd.DataFrame,
    out: Path,
    *,
    seed: int,
    seconds: float,
    command: str,
) -> pd.DataFrame:
    """Write the table and the page of a study."""
    table = study.table(measurements)[list(COLUMNS)]
    table.to_csv(out / "table.csv", index=False)
    facts = {
        "study": study,
        "inside": options.data is not None,
        "replicates": options.replicates,
        "n_tasks": measurements["task"].nunique(),
        "seed": seed,
        "date": date.today().isoformat(),
        "version": __version__,
        "seconds": seconds,
        "command": command,
        "has_paper": bool(table["paper"].notna().any()),
    }
    shown = _shown(study, measurements, table)
    texts = Path(__file__).parents[1] / "texts"
    page = render("study.html.j2", texts, **facts, **shown)
    (out / "study.html").write_text(page, encoding="utf-8")
    return table


def _shown(
    study: Study, measurements: pd.DataFrame, table: pd.DataFrame
) -> dict[str, Any]:
    from markupsafe import Markup

    drawn = []
    for place, picture in enumerate(study.pictures(measurements, table)):
        panels = []
        for i, panel in enumerate(picture.panels):
            name = f"study {place} {i}"
            if not isinstance(panel, str):
                panel = as_svg(panel, picture.title, name, clip=True)
            panels.append(Markup(panel))
        drawn.append(
            {
                "title": picture.title,
                "caption": picture.caption,
                "key": dict(picture.key),
                "panels": panels,
            }
        )
    blocks = [spread(block, table) for block in study.layout(table)]
    findings = judged(study, measurements, table)
    return {
        "text": Markup(study.text()),
        "pictures": drawn,
        "blocks": blocks,
        "findings": findings,
    }


def spread(block: Block, table: pd.DataFrame) -> dict[str, Any]:
    """Return a block as the page and the terminal print it: labels, and cells in
    rows.
    """
    places = {}
    for row, column, ours, error, paper in table[list(COLUMNS)].values.tolist():
        places[row, column] = Cell(ours=ours, error=_error(error), paper=paper)
    rows = [
        [places.get((row, column), Cell()) for column in block.columns]
        for row in block.rows
    ]
    columns = []
    for i, label in enumerate(block.columns.values()):
        has_paper = any(not math.isnan(row[i].paper) for row in rows)
        columns.append({"label": label, "has_paper": has_paper})
    return {
        "title": block.title,
        "group": block.group,
        "headline": block.headline,
        "columns": columns,
        "rows": list(zip(block.rows.values(), rows, strict=True)),
    }


def _error(value: float) -> str:
    """Return a standard error at two significant digits, nothing where there is
    none.
    """
    if math.isnan(value) or value == 0:
        return ""
    return f"{value:.2g}" if 1e-4 <= value < 1e6 else number(value)


def lines(cells: Sequence[Cell], has_paper: Sequence[bool]) -> list[str]:
    """Return the cells of a row as plain text, for the terminal."""
    texts = []
    for cell, paper in zip(cells, has_paper, strict=True):
        error = f" ± {cell.error}" if cell.error else ""
        texts.append(f"{number(cell.ours)}{error}")
        if paper:
            texts.append(number(cell.paper))
    return texts
