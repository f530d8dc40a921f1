"""What was tried for the defaults of STEPS, and what each choice gives: ``python -m
benchmarks.tried``.

Prints mean total variation distances of all margins of two and of three columns on the
youth survey, one set.
"""

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from benchmarks.__main__ import EXAMPLES, ORDER
from pdips import LaplaceSanitizer, Margins, Mechanism, PrivBayes, Schema, Steps, Table
from pdips.evaluation.margins import k_way
from pdips.margins import domain, maximum_entropy, synthesis

EPSILONS = ("0.1", "1", "7.4")


@contextmanager
def views_of(n_cells: int) -> Iterator[None]:
    """Take views of at most this many cells in place of the size that the design finds
    best.
    """
    usual = domain.SMALLEST_CAP, domain.LARGEST_CAP
    domain.SMALLEST_CAP = domain.LARGEST_CAP = n_cells
    try:
        yield
    finally:
        domain.SMALLEST_CAP, domain.LARGEST_CAP = usual


@contextmanager
def ridge(weight: float) -> Iterator[None]:
    """Weigh the entropy differently."""
    defaults: dict[str, float] = maximum_entropy.fit.__kwdefaults__  # type: ignore[assignment]
    usual, defaults["ridge"] = defaults["ridge"], weight
    try:
        yield
    finally:
        defaults["ridge"] = usual


@contextmanager
def even_base() -> Iterator[None]:
    """Stay close to the table of equal counts, not to that of independent columns."""
    usual = vars(synthesis)["log_independent"]
    vars(synthesis)["log_independent"] = lambda grid, *_: np.where(
        grid.possible(), 0.0, -np.inf
    )
    try:
        yield
    finally:
        vars(synthesis)["log_independent"] = usual


@contextmanager
def as_it_is() -> Iterator[None]:
    """Change nothing."""
    yield


def tried(epsilon: str) -> dict[str, tuple[Mechanism, AbstractContextManager[None]]]:
    """Return what is compared: mechanisms, and what is changed while they run."""
    default = Margins(epsilon=epsilon)
    on_top = Steps(epsilon=epsilon, order=ORDER[:3], below="views")
    stopping = Steps(epsilon=epsilon, order=ORDER[:6], stop=2)
    return {
        "margins, as by default": (default, as_it_is()),
        "every pair by itself (views of up to 28 cells)": (default, views_of(28)),
        "views of up to 64 cells": (default, views_of(64)),
        "views of up to 1,024 cells": (default, views_of(1024)),
        "views of up to 16,384 cells": (default, views_of(16384)),
        "entropy weighed 0.02": (default, ridge(0.02)),
        "entropy weighed 0.001": (default, ridge(0.001)),
        "close to equal counts, not to independence": (default, even_base()),
        "a tree of 3 columns on top, half of the budget": (on_top, as_it_is()),
        "a tree of 6 columns on top that stops": (stopping, as_it_is()),
        "a tree of 8 columns down to all cells": (
            Steps(epsilon=epsilon, order=ORDER),
            as_it_is(),
        ),
        "an elected tree of 8 layers down to all cells": (
            Steps(epsilon=epsilon, layers=8),
            as_it_is(),
        ),
        "STEPS-3, as the papers build it": (
            Steps(epsilon=epsilon, order=ORDER[:3]),
            as_it_is(),
        ),
        "privbayes": (PrivBayes(epsilon=epsilon), as_it_is()),
        "laplace-sanitizer": (LaplaceSanitizer(epsilon=epsilon), as_it_is()),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    table = Table.read(EXAMPLES / "youth.parquet", Schema.load(EXAMPLES / "youth.toml"))
    print(
        "| tried | "
        + " | ".join(f"epsilon {epsilon}" for epsilon in EPSILONS)
        + " |\n| --- |"
        + " ---: |" * 3
    )
    cells: dict[str, list[str]] = {}
    for epsilon in EPSILONS:
        for name, (mechanism, change) in tried(epsilon).items():
            with change:
                sets = [mechanism.release(table)[0].sets[0] for _ in range(repeats)]
            two, three = (k_way(table, sets, k)["mean"] for k in (2, 3))
            cells.setdefault(name, []).append(f"{two:.4f}, {three:.4f}")
    for name, found in cells.items():
        print(f"| {name} | " + " | ".join(found) + " |")


if __name__ == "__main__":
    main()
