"""Print how far off margins are by ``steps`` and by what OpenDP makes with Private-PGM, at one price.

``python -m benchmarks.neighbours``, in an environment that has ``opendp[mbi]`` beside ``pdips``. Add-remove neighbours, which is what
OpenDP has; persons may have as many records as the schema says. AIM and MST are given the schema's levels as public keys, and their
other settings are left as they are.
"""

import argparse
import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.choosing import cut
from pdips.mechanisms.tree import Steps
from pdips.table import Table, decode
from pdips.utility.margins import k_way

DELTA = 1e-9
TABLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "hours, 5 columns": ("hours", ("age", "sex", "education", "hours_per_week", "income")),
    "youth, 15 columns": ("youth", ()),
}
Synthesizer = Callable[[Table, float], pd.DataFrame]


def steps(table: Table, epsilon: float) -> pd.DataFrame:
    """Return one set by ``steps`` with its defaults; pure."""
    release, _ = Steps(epsilon=epsilon, neighbours="add-remove").release(table)
    found: pd.DataFrame = release.sets[0]
    return found


def opendp(algorithm: str, kind: str) -> Synthesizer:
    """Return a synthesizer: ``algorithm`` of ``opendp.extras.mbi``, with a pure loss or one of zCDP."""

    def made(table: Table, epsilon: float) -> pd.DataFrame:
        dp: Any = importlib.import_module("opendp.prelude")
        pl: Any = importlib.import_module("polars")
        dp.enable_features("contrib")
        codes = pl.DataFrame({name: [*map(int, values)] for name, values in table.codes.items()})
        loss = {"epsilon": epsilon} if kind == "pure" else {"rho": rho_of(epsilon, DELTA), "delta": 0.0}
        context = dp.Context.compositor(
            data=codes.lazy(),
            privacy_unit=dp.unit_of(contributions=table.schema.records.max_per_person),
            privacy_loss=dp.loss_of(**loss),
        )
        levels = {name: [*range(column.n_levels)] for name, column in table.schema.columns.items()}
        query = context.query(**loss).contingency_table(keys=levels, algorithm=getattr(dp.mbi, algorithm)())
        return decoded(query.release().synthesize(rows=table.n_records).to_pandas(), table)

    return made


def rho_of(epsilon: float, delta: float) -> float:
    """Return the largest rho whose zCDP gives (epsilon, delta) by Bun and Steinke's conversion."""
    root: float = np.sqrt(np.log(1 / delta) + epsilon) - np.sqrt(np.log(1 / delta))
    return root**2


def decoded(codes: pd.DataFrame, table: Table) -> pd.DataFrame:
    """Return records with the schema's levels in place of their numbers, without those of OpenDP's category for unknown keys."""
    codes = codes.dropna()
    each = {name: codes[name].to_numpy().astype(np.int64) for name in table.schema.columns}
    return decode(table.schema, each, np.random.default_rng(0))


ROWS: Mapping[str, Synthesizer] = {
    "pdips steps, pure": steps,
    "OpenDP MST, pure": opendp("MST", "pure"),
    "OpenDP AIM, pure": opendp("AIM", "pure"),
    f"OpenDP MST, zCDP read at delta = {DELTA:g}": opendp("MST", "zcdp"),
    f"OpenDP AIM, zCDP read at delta = {DELTA:g}": opendp("AIM", "zcdp"),
}


def main() -> None:
    """Print a row for each table, price and synthesizer."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--releases", type=int, default=3)
    words.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    words.add_argument("--tables", nargs="+", default=[*TABLES])
    words.add_argument("--rows", nargs="+", default=[*ROWS])
    asked = words.parse_args()
    print("| table | epsilon | synthesizer | one-way | two-way | three-way | seconds a set |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in asked.tables:
        table = cut(*TABLES[name])
        for epsilon in asked.epsilons:
            for row in asked.rows:
                start, found = time.perf_counter(), []
                sets = [ROWS[row](table, epsilon) for _ in range(asked.releases)]
                seconds = (time.perf_counter() - start) / asked.releases
                for k in (1, 2, 3):
                    rng = np.random.default_rng(0)
                    found.append(k_way(table, sets, k, n_draws=200, rng=rng)["mean"])
                distances = " | ".join(f"{one:.4f}" for one in found)
                print(f"| {name} | {epsilon:g} | {row} | {distances} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
