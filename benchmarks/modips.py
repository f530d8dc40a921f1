"""Print what modips takes: ``python -m benchmarks.modips [release|counting|study]``,
all unless named.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import pandas as pd

from pdips import Modips, Schema, Table
from pdips_papers import find
from pdips_papers.harness.study import Options

NUMBER = {"columns": {"y": {"lower": -3, "upper": 4}}}
MANY = 10_000_000


def numbers(n: int) -> Table:
    """Return standard normal records within bounds."""
    drawn = np.clip(np.random.default_rng(0).standard_normal(n), -3, 4)
    return Table(pd.DataFrame({"y": drawn}), Schema.model_validate(NUMBER))


def release() -> None:
    """Time one release of the normal model, five sets of 1,000 records, after
    compilation.
    """
    table = numbers(1000)
    for likelihood in ("noise-aware", "plug-in"):
        mechanism = Modips(
            epsilon=1, n_sets=5, model="normal_moments", likelihood=likelihood
        )
        mechanism.release(table)
        start, used = time.perf_counter(), time.process_time()
        mechanism.release(table)
        wall, used = time.perf_counter() - start, time.process_time() - used
        print(
            f"| modips, normal model, m = 5, {likelihood} | {wall:.2f} s "
            f"({used:.2f} s of processor time) | <= 3 s |"
        )


def study(share: int = 10) -> None:
    """Time a part of the replicates of both simulations, in processor seconds, and
    scale up to 5,000.
    """
    for name in ("proportions", "normal-moments"):
        chosen, used = find(name), 0.0
        tasks = chosen.tasks(Options(replicates=5000 // share))
        chosen.run(tasks[0].arguments, 0)
        for number, task in enumerate(tasks):
            start = time.process_time()
            chosen.run(task.arguments, number)
            used += time.process_time() - start
        print(
            f"| {name}, 5,000 replicates, 9 epsilons | {share * used:.0f} s of "
            f"processor time | <= 1,200 s |"
        )


def counting() -> None:
    """Time a release from ten million records, and what share of it is spent before the
    noise and on the sets.
    """
    table = numbers(MANY)
    _, record = Modips(
        epsilon=1,
        n_sets=1,
        n_records=1000,
        neighbours="add-remove",
        model="normal_moments",
    ).release(table)
    total = sum(record.seconds.values())
    text = ", ".join(
        f"{name} {seconds:.2f} s" for name, seconds in record.seconds.items()
    )
    print(
        f"| modips, {MANY:,} records, add-remove, 1,000 synthetic ones | {total:.1f} "
        f"s: {text} | counting dominates |"
    )


PARTS: dict[str, Callable[[], None]] = {
    "release": release,
    "counting": counting,
    "study": study,
}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
