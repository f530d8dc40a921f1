"""Errors that ``calibrate`` tells against those found in releases: ``python -m benchmarks.calibrate``."""

import time
from typing import Any

import pandas as pd

from benchmarks.__main__ import EXAMPLES
from pdips import LaplaceSanitizer, PrivBayes, Schema, Steps, Table, UniversalHistogram
from pdips.calibration.calibrate import calibrate
from pdips.calibration.closed_form import read
from pdips.calibration.simulation import Simulation

RELEASES = 5
FEW = ("age", "sex", "income")
CASES: list[tuple[str, tuple[str, ...], Any, str | tuple[str, ...]]] = [
    ("youth", (), Steps(epsilon=1), "all"),
    ("youth", (), Steps(epsilon=1, order=("income", "education", "race")), ("income", "education", "race")),
    ("hours", FEW, LaplaceSanitizer(epsilon=1), "all"),
    ("hours", FEW, UniversalHistogram(epsilon=1, attribute="age"), "all"),
]


def main() -> None:
    """Print a row for each case: a standard error of half a point told, and what comes out."""
    print("| table | mechanism | epsilon | told, worst margin | found, worst of these margins | seconds to tell |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, columns, made, of in CASES:
        schema, table = _load(name, columns)
        start = time.process_time()
        found = calibrate(made, schema, standard_error=0.005, in_="share", n_records=table.n_records, of=of)
        seconds = time.process_time() - start
        told = found.by_margin.set_index("margin")["reached"]
        simulation = Simulation(
            table=table,
            margins=read(of).margins(schema),
            measure=None,
            goal="standard error",
            level=0.95,
            replicates=RELEASES,
            seed=1,
        )
        came = {key: each / table.n_records for key, each in simulation.run(found.mechanism).by_margin.items()}
        worst = max(came, key=lambda key: came[key])
        print(
            f"| {name} | {made.name} | {float(found.epsilon):g} | {100 * found.reached:.3f} ({found.worst}) | "
            f"{100 * came[worst]:.3f} ({worst}, told {100 * told[worst]:.3f}) | {seconds:.2f} |",
            flush=True,
        )
    schema, table = _load("hours", FEW)
    start = time.process_time()
    found = calibrate(
        PrivBayes(epsilon=1), schema, standard_error=0.01, in_="share", n_records=table.n_records, replicates=20
    )
    n = len(found.by_epsilon)
    print(
        f"\nby simulation: {found!r}, Monte Carlo standard error {100 * found.monte_carlo_error:.2f} points, "
        f"{n} epsilons of 20 releases in {time.process_time() - start:.1f} s"
    )


def _load(name: str, columns: tuple[str, ...]) -> tuple[Schema, Table]:
    schema = Schema.load(EXAMPLES / f"{name}.toml")
    frame = pd.read_parquet(EXAMPLES / f"{name}.parquet")
    if columns:
        schema = schema.model_copy(update={"columns": {key: schema.columns[key] for key in columns}})
        frame = frame[list(columns)]
    return schema, Table(frame, schema)


if __name__ == "__main__":
    main()
