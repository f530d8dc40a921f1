"""One release on a table of two million cells, five sets: ``python -m
benchmarks.trees`` and the name of a shape.
"""

import sys
import time

import numpy as np
import pandas as pd

from pdips import LaplaceSanitizer, Margins, Mechanism, Schema, Steps, Table

N_COLUMNS = 21

SHAPES: dict[str, Mechanism] = {
    "flat": LaplaceSanitizer(epsilon=1, n_sets=5),
    "1 layer": Steps(epsilon=1, n_sets=5, order=("c0",)),
    "10 layers": Steps(epsilon=1, n_sets=5, order=tuple(f"c{i}" for i in range(10))),
    "20 layers": Steps(epsilon=1, n_sets=5, order=tuple(f"c{i}" for i in range(20))),
    "10 layers, elected": Steps(epsilon=1, n_sets=5, layers=10),
    "margins": Margins(epsilon=1, n_sets=5, measure="views", sets="fitted"),
}


def main() -> None:
    """Make a table of 50,000 records, release it, and print how long the release
    took.
    """
    rng = np.random.default_rng(0)
    schema = Schema.model_validate(
        {"columns": {f"c{i}": {"levels": [0, 1]} for i in range(N_COLUMNS)}}
    )
    frame = pd.DataFrame(
        {f"c{i}": rng.random(50_000) < 0.1 + 0.03 * i for i in range(N_COLUMNS)}
    ).astype(int)
    table = Table(frame, schema)
    start = time.perf_counter()
    _, record = SHAPES[sys.argv[1]].release(table)
    print(f"{time.perf_counter() - start:.1f} s, {record.peak_memory:.0f} MiB")


if __name__ == "__main__":
    main()
