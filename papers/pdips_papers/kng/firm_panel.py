"""Section 5 of paper 002 on real firm panels: employment of each year given the year before, and job flows from it."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.evaluation.margins import k_marginal
from pdips.evaluation.propensity import Penalty, pmse
from pdips.privacy.loss import exact
from pdips_papers.harness.framework import Block, Data, Finding, Options, Picture, Task, summarise
from pdips_papers.kng.firm_panel_data import OWN, PANELS, FirmPanel, load
from pdips_papers.kng.firm_panel_forms import FORMS, NON_PRIVATE, synthesize
from pdips_papers.kng.job_flows import RATES, job_flows
from pdips_papers.modips.words import text_of

EPSILONS = ("1", "8")
MOST_COMPARED = 2_000
"""Records of either table that pMSE compares, taken at random from larger ones."""

PENALTY: Penalty = "lasso"

RAW = "raw"
PMSE, KM, LEVEL = "pMSE, LASSO", "3-marginal score", "employment, |log ratio|"
ERRORS = {rate: f"job {rate}, error in % points" for rate in RATES}
MEASURES = (PMSE, KM, LEVEL, *ERRORS.values())


class FirmPanelStudy:
    """``pdips study firm-panel``.

    Parameters
    ----------
    panels, forms : sequence of str
        Which tables and rows; all by default.
    """

    name: ClassVar[str] = "firm-panel"
    title: ClassVar[str] = "Firm panels: section 5 of paper 002 on tables that can be had"
    default_replicates: ClassVar[int] = 5
    data: ClassVar[Data] = "optional"
    needs: ClassVar[str] = (
        ", a .csv or .parquet file with a row for each firm and its schema T.toml beside it: public columns entry and "
        "exit, and emp_1976, emp_1977 and so on"
    )

    def __init__(self, panels: Sequence[str] = PANELS, forms: Sequence[str] = (NON_PRIVATE, *FORMS)) -> None:
        self.panels, self.forms = tuple(panels), tuple(forms)

    def tasks(self, options: Options) -> list[Task]:
        """One synthetic panel of one form a task. Reads the tables, to refuse wrong ones."""
        path = str(options.data) if options.data else None
        panels = (OWN,) if path else self.panels
        tasks = []
        for place, panel in enumerate(panels):
            load(panel, path)
            common = {"panel": panel, "path": path}
            tasks.append(Task(key=f"panel={place}.raw", arguments=common | {"form": RAW}))
            for replicate in range(options.replicates):
                for number, form in enumerate(self.forms):
                    for epsilon in (None,) if form == NON_PRIVATE else options.epsilons or EPSILONS:
                        key = f"panel={place}.form={number}.epsilon={epsilon or 'none'}.replicate={replicate:03}"
                        key = "".join(letter if letter.isalnum() or letter in "._=-" else "_" for letter in key.lower())
                        tasks.append(Task(key=key, arguments=common | {"form": form, "epsilon": epsilon}))
        return tasks

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Make one synthetic panel and measure it; or the raw one."""
        panel, form, epsilon = load(arguments["panel"], arguments["path"]), arguments["form"], arguments.get("epsilon")
        rng = np.random.default_rng(seed)
        row = row_name(arguments["panel"], form, epsilon)
        frame = panel.table.frame
        if form == RAW:
            found = _by_year(job_flows(frame, panel.years))
        else:
            made = synthesize(form, epsilon, panel.table, rng)
            flows = job_flows(made, panel.years)
            found = _by_year(flows) | measure(panel, made, flows, rng)
        return [{"row": row, "column": column, "value": value} for column, value in found.items()]

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return means over replicates."""
        return summarise(measurements)

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Print the measures of each panel; then job flows by year."""
        blocks = []
        for panel in panels_of(table):
            rows = [row for row in table["row"].unique() if row.startswith(f"{panel}: ")]
            labels = {row: row.removeprefix(f"{panel}: ") for row in rows}
            measured = {row: label for row, label in labels.items() if label != RAW}
            title = f"{panel}: how far synthetic panels are from the raw one"
            blocks.append(Block(title=title, rows=measured, columns={name: name for name in MEASURES}))
            by_year = table.loc[table["row"].isin(rows), "column"].drop_duplicates()
            for kind in ("employment", *RATES):
                columns = {name: name.rpartition(" ")[2] for name in by_year if name.startswith(f"{kind} 1")}
                columns |= {name: name.rpartition(" ")[2] for name in by_year if name.startswith(f"{kind} 2")}
                blocks.append(
                    Block(title=f"{panel}: {kind} by year", rows=labels, columns=columns, headline=False, group=panel)
                )
        return blocks

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[Picture]:
        """Draw the paper's figures 1 and 2."""
        from pdips_papers.kng.firm_panel_pictures import pictures

        return pictures(measurements)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Hold the claims of section 5 against the table."""
        from pdips_papers.kng.firm_panel_findings import findings

        return findings(table)

    def text(self) -> str:
        """Say what was done and what each row spends."""
        return text_of(self.name)


def row_name(panel: str, form: str, epsilon: str | None) -> str:
    """Return what a row is called in the table."""
    price = f", epsilon = {float(exact(epsilon, 'epsilon')):g}" if epsilon else ""
    return f"{panel}: {form}{price}"


def panels_of(table: pd.DataFrame) -> list[str]:
    """Return the panels that a table is about."""
    return list(dict.fromkeys(row.partition(": ")[0] for row in table["row"]))


def measure(panel: FirmPanel, made: pd.DataFrame, flows: pd.DataFrame, rng: np.random.Generator) -> dict[str, float]:
    """Return the measures of one synthetic panel."""
    names, frame = list(panel.years.values()), panel.table.frame
    original, synthetic = (each[names].astype("float64").transform("log") for each in (frame, made))
    rows = [
        each.iloc[rng.permutation(len(each))[:MOST_COMPARED]].reset_index(drop=True) for each in (original, synthetic)
    ]
    true = job_flows(frame, panel.years)
    found = {
        PMSE: pmse(*rows, penalty=PENALTY, rng=rng),
        KM: k_marginal(original, synthetic, k=min(3, len(names))).score,
        LEVEL: float(np.abs(np.log(flows["employment"] / true["employment"])).mean()),
    }
    return found | {label: 100 * float((flows[rate] - true[rate]).abs().mean()) for rate, label in ERRORS.items()}


def _by_year(flows: pd.DataFrame) -> dict[str, float]:
    found = {f"{kind} {year}": float(value) for kind in flows for year, value in flows[kind].items()}
    return {name: value for name, value in found.items() if np.isfinite(value)}
