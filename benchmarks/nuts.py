"""What NUTS costs on models of noisy statistics that have a sampler of their own:
``python -m benchmarks.nuts [CASE ...]``, all unless named.

Ten data sets a case: noisy statistics of two tables with rare cells at five levels of
noise. Processor seconds are after compilation, with all rounds of chains that
disagreed; R-hat is the largest and effective draws are the fewest of all variables and
data sets. NUTS is nutpie's, with the lengths that a release has.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from pdips import Modips, Schema, Table
from pdips.arrays import FloatArray, IntArray
from pdips.errors import RefusedError
from pdips.posterior.nuts import compile_nutpie
from pdips.privacy.noise import RandomBits
from pdips.statistics.model import Options, as_statistic_model, fit, prepared
from pdips.statistics.noisy_model import Evidence
from pdips.statistics.plan import NoisyStatistics

EPSILONS = ("1/10", "1/3", "1", "3", "10")
TABLES = 2
RECORDS = 500
RARE = 0.004  # The share of a rare cell: two records
SETS = 5

MOST_SECONDS = 10

Records = Callable[[np.random.Generator], pd.DataFrame]


@dataclass(frozen=True)
class Case:
    """A model, a schema that suits it, and how records of it are drawn."""

    model: str
    columns: Mapping[str, Any]
    records: Records
    likelihood: Any = "noise-aware"


def codes(levels: int, rng: np.random.Generator) -> IntArray:
    """Draw codes of levels, of which every third is rare."""
    shares = np.where(np.arange(levels) % 3 == 2, RARE, 1.0)
    if levels == 2:
        shares = np.array([1 - RARE, RARE])
    return np.asarray(rng.choice(levels, size=RECORDS, p=shares / shares.sum()))


def within(values: FloatArray) -> FloatArray:
    return np.asarray(np.clip(values, -1, 1))


def one_column(levels: int) -> Records:
    return lambda rng: pd.DataFrame({"g": codes(levels, rng)})


def number(rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({"y": within(rng.normal(0.2, 0.1, RECORDS))})


def regressed(rng: np.random.Generator) -> pd.DataFrame:
    """Draw a number that depends on a group and a number, both public."""
    group = codes(6, rng)
    x = rng.uniform(-1, 1, RECORDS)
    y = 0.05 * group + 0.3 * x + rng.normal(0, 0.1, RECORDS)
    return pd.DataFrame({"g": group, "x": x, "y": within(y)})


def grouped(levels: int) -> Records:
    """Return how two numbers are drawn within groups."""

    def draw(rng: np.random.Generator) -> pd.DataFrame:
        group = codes(levels, rng)
        y = rng.normal(0, 0.3, levels)[group] + rng.normal(0, 0.1, RECORDS)
        z = y / 2 + rng.normal(0, 0.2, RECORDS)
        return pd.DataFrame({"g": group, "y": within(y), "z": within(z)})

    return draw


NUMERIC = {"lower": -1.0, "upper": 1.0}


def levels(count: int, **more: Any) -> dict[str, Any]:
    return {"levels": list(range(count)), **more}


def pair(count: int) -> dict[str, Any]:
    return {"g": levels(count), "y": NUMERIC, "z": NUMERIC}


PUBLIC = {"g": levels(6, public=True), "x": {**NUMERIC, "public": True}, "y": NUMERIC}
CASES = {
    "bernoulli": Case("bernoulli", {"g": levels(2)}, one_column(2)),
    "multinomial-3": Case("multinomial", {"g": levels(3)}, one_column(3)),
    "multinomial-30": Case("multinomial", {"g": levels(30)}, one_column(30)),
    "multinomial-300": Case("multinomial", {"g": levels(300)}, one_column(300)),
    "multinomial-30-plug-in": Case(
        "multinomial", {"g": levels(30)}, one_column(30), "plug-in"
    ),
    "normal": Case("normal_moments", {"y": NUMERIC}, number),
    "normal-plug-in": Case("normal_moments", {"y": NUMERIC}, number, "plug-in"),
    "regression": Case("linear_regression", PUBLIC, regressed),
    "regression-plug-in": Case("linear_regression", PUBLIC, regressed, "plug-in"),
    "glom-3": Case("glom", pair(3), grouped(3)),
    "glom-12": Case("glom", pair(12), grouped(12)),
    "slomag": Case("slomag", pair(2), grouped(2)),
}


def data_sets(case: Case) -> list[NoisyStatistics]:
    """Return noisy statistics of each table at each level of noise."""
    schema = Schema.model_validate({"columns": case.columns})
    measured = []
    for seed in range(TABLES):
        table = Table(case.records(np.random.default_rng(seed)), schema)
        for epsilon in EPSILONS:
            design = Modips(epsilon=Fraction(epsilon), model=case.model).design(schema)
            bits = RandomBits(np.random.default_rng(seed))
            measured.append(design.sanitize(table, bits))
    return measured


def fitted(case: Case, noisy: NoisyStatistics, nuts: str) -> tuple[float, Any]:
    """Return processor seconds and how chains agree; None where nothing is released."""
    model = as_statistic_model(case.model)
    options = Options(nuts=nuts)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    start = time.process_time()
    try:
        drawn = fit(
            model, noisy, case.likelihood, n_draws=SETS, rng=rng, options=options
        )
    except RefusedError:
        return time.process_time() - start, None
    return time.process_time() - start, drawn


def compiled(case: Case, noisy: NoisyStatistics) -> float:
    """Compile a case's model for NUTS; return processor seconds."""
    model = as_statistic_model(case.model)
    _, kept = prepared(model, Evidence(noisy, case.likelihood))
    start = time.process_time()
    kept.compiled["nutpie"] = compile_nutpie(kept.model)
    return time.process_time() - start


def row(name: str, case: Case) -> str:
    """Return the row of a case: NUTS, then the sampler made for it."""
    measured = data_sets(case)
    fitted(case, measured[0], "auto")  # what samplers compile
    compiling = compiled(case, measured[0])
    own = [fitted(case, noisy, "auto")[0] for noisy in measured]
    by_nuts = [fitted(case, noisy, "nutpie") for noisy in measured]
    seconds = [used for used, _ in by_nuts]
    agreed = [each.convergence for _, each in by_nuts if each is not None]
    rhat = max((each.largest_rhat for each in agreed), default=np.nan)
    fewest = min((each.smallest_ess_bulk for each in agreed), default=np.nan)
    rounds = max((each.rounds for each in agreed), default=0)
    leaves = len(agreed) == len(measured) and max(seconds) <= MOST_SECONDS
    return (
        f"| {name} | {np.median(seconds):.1f} | {max(seconds):.1f} | "
        f"{len(agreed)} of {len(measured)} | {rounds} | {fewest:,.0f} | {rhat:.3f} | "
        f"{compiling:.0f} | {np.median(own):.2f} | {max(own):.2f} | "
        f"{'yes' if leaves else 'no'} |"
    )


def main(names: list[str]) -> None:
    """Print the table."""
    print(
        "| Case | NUTS, median s | largest s | agreed | rounds | fewest effective "
        "draws | largest R-hat | compiling, s | own sampler, median s | largest s | "
        f"within {MOST_SECONDS} s |"
    )
    print("| --- " * 11 + "|")
    for name in names or CASES:
        print(row(name, CASES[name]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
