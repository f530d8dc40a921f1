"""Print the table of ``docs/results/planning.md``: errors told before a
release, and found in releases of the youth survey.
"""

import numpy as np

from benchmarks.__main__ import EXAMPLES, ORDER
from pdips import LaplaceSanitizer, Schema, Steps, Table
from pdips.arrays import FloatArray
from pdips.margins.forecast import errors_of
from pdips.mechanism import Mechanism

REPEATS = 3
GROUPS = ((0.0, 0.3), (0.3, 1.0), (1.0, 3.0), (3.0, 10.0), (10.0, 100.0))
"""Standard errors told, in percentage points: from, to."""


def found_errors(table: Table, mechanism: Mechanism) -> FloatArray:
    """Return the root mean square error over the cells of each margin, in percentage
    points, over some releases.
    """
    names = list(table.schema.columns)
    margins = [(name,) for name in names] + [
        (a, b) for i, a in enumerate(names) for b in names[i + 1 :]
    ]
    total = np.zeros(len(margins))
    for _ in range(REPEATS):
        made = Table(mechanism.release(table)[0].sets[0], table.schema.without_person())
        for place, margin in enumerate(margins):
            sizes = tuple(table.schema.columns[name].n_levels for name in margin)
            both = [
                np.bincount(
                    np.ravel_multi_index(
                        tuple(t.codes[name] for name in margin), sizes
                    ),
                    minlength=np.prod(sizes),
                )
                for t in (table, made)
            ]
            total[place] += np.mean((both[0] - both[1]) ** 2) / table.n_records**2
    return np.asarray(100 * np.sqrt(total / REPEATS))


def main() -> None:
    """Print it."""
    table = Table.read(EXAMPLES / "youth.parquet", Schema.load(EXAMPLES / "youth.toml"))
    for layers in (0, 3, 8):
        made = (
            Steps(epsilon=1, order=ORDER[:layers])
            if layers
            else LaplaceSanitizer(epsilon=1)
        )
        planned = errors_of(made.plan(table.schema), "all").values()
        errors = np.array([noise.standard_error for noise in planned])
        told = 100 * errors / table.n_records
        found = found_errors(table, made)
        for low, high in GROUPS:
            held = (told > low) & (told <= high)
            if held.any():
                print(
                    layers,
                    f"told {low} to {high}:",
                    held.sum(),
                    np.median(told[held]),
                    np.median(found[held]),
                )


if __name__ == "__main__":
    main()
