"""How near a certificate comes to the real coverage: ``python -m benchmarks.certificates TABLE.parquet SCHEMA.toml``.

The table is the population: tables of as many records are drawn from it with replacement, and released. The certificate
of one of these releases is beside the coverage over all of them.
"""

import argparse
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from pdips import Pairs, Schema, Steps, Table
from pdips.evaluation.replays import Population, certify, coverage
from pdips.inference import rule_for


def main() -> None:
    """Print real and certified coverage of 95 % intervals for each mechanism."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    parser.add_argument("schema", type=Path)
    parser.add_argument("--epsilon", default="2")
    parser.add_argument("--sets", type=int, default=4)
    parser.add_argument("--replays", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=["pairs", "steps"])
    asked = parser.parse_args()
    schema = Schema.load(asked.schema)
    frame = Table(pd.read_parquet(asked.table), schema).frame
    cases: list[tuple[Any, dict[str, Any]]] = [(Pairs, {}), (Pairs, {"sets": "fitted"}), (Steps, {"sets": "posterior"})]
    for kind, more in cases:
        if asked.only not in (None, kind.name):
            continue
        rng = np.random.default_rng(asked.seed)
        mechanism = kind(epsilon=asked.epsilon, n_sets=asked.sets, **more)
        drawn = frame.sample(len(frame), replace=True, random_state=rng, ignore_index=True)
        release, _ = mechanism.release(Table(drawn, schema), rng=rng)
        with warnings.catch_warnings(action="ignore"):
            rule = rule_for(release)
        population = Population.of(frame, schema, len(frame), None, rng)
        real = coverage(mechanism, population, rule, asked.replays, rng=rng)
        with TemporaryDirectory() as folder:
            release.write(Path(folder) / "public")
            found = certify(folder, replays=asked.replays, rng=rng)
        rows = {row.what: row for row in found.rows}
        print(f"{kind.name} {more}; {asked.replays} replays; rule {found.rule}", flush=True)
        for row in real:
            said = rows.get(row.what)
            certified = "-" if said is None else f"{said.covered:.3f} (± {said.standard_error:.3f})"
            print(
                f"  {row.what:8} real {row.covered:.3f} (± {row.standard_error:.3f})  certified {certified}", flush=True
            )


if __name__ == "__main__":
    main()
