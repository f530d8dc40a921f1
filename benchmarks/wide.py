"""Tables of too many cells to lay out: ``python -m benchmarks.wide adult.parquet
--epsilon 1 --delta 1e-9``.

With ``--coverage 20`` how often intervals from 20 sets hold what they should. ``--peer
PYTHON,CHECKOUT`` runs MST of Private-PGM as of April 2023 (revision 9448ee6) beside, in
an environment with its needs and pandas before 3; AIM if ``--only`` names it, which
takes up to hours and needs ``hdmm`` and ``autodp`` too. ``--jobs 4`` runs seeds in
processes of their own, ``--only "pairs zcdp,MST"`` names the mechanisms. With
``--classes 10`` a set of ``models/latent_classes.py`` from the margins of the same
release of ``margins``.

Numeric columns are cut at edges that are given here or, where a table has others, into
eight bins of equal width.
"""

import argparse
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from pdips import Margins, PrivBayes, Schema, Table
from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.margins.maximum_entropy import MOST_DENSE
from pdips.mechanism import Mechanism
from pdips.outside import NoisyMargins

EDGES: dict[str, list[float]] = {
    "age": [0, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 100],
    "fnlwgt": [0, 50_000, 100_000, 150_000, 200_000, 300_000, 400_000, 2_000_000],
    "capital_gain": [0, 1, 1_000, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000],
    "capital_loss": [0, 1, 1_000, 1_500, 2_000, 2_500, 5_000],
    "hours_per_week": [0, 10, 20, 30, 35, 40, 41, 50, 60, 100],
}
"""Of Adult, from what is known of ages, hours and taxes."""

N_TRIPLES, MOST_COMPARED, FEW, FEWEST = 100, 20_000, 10, 50


def coded(frame: pd.DataFrame) -> tuple[pd.DataFrame, Schema]:
    """Return a table whose numeric columns are bins, and its schema."""
    made, columns = {}, dict[str, Any]()
    for name, values in frame.items():
        cuts = EDGES.get(str(name)) if pd.api.types.is_numeric_dtype(values) else None
        if (
            cuts is None
            and pd.api.types.is_numeric_dtype(values)
            and values.nunique() > FEW
        ):
            cuts = np.linspace(values.min(), values.max() + 1, 9).tolist()
        each = (
            values.astype(object).map(str)
            if cuts is None
            else pd.Series(np.searchsorted(cuts, values, side="right")).astype(str)
        )
        made[str(name)] = each.to_numpy()
        columns[str(name)] = {"levels": sorted(set(made[str(name)]))}
    return pd.DataFrame(made), Schema.model_validate({"columns": columns})


def codes_of(frame: pd.DataFrame, schema: Schema) -> IntArray:
    """Return the levels of all records."""
    table = Table(frame, schema)
    return np.column_stack([table.codes[name] for name in schema.columns])


def distances(
    one: IntArray, other: IntArray, sizes: IntArray, sets: list[tuple[int, ...]]
) -> float:
    """Return the mean total variation distance of margins."""
    found = []
    for columns in map(list, sets):
        shares: list[FloatArray] = []
        for codes in (one, other):
            cell = np.ravel_multi_index(
                tuple(codes[:, columns].T), tuple(sizes[columns])
            )
            shares.append(
                np.bincount(cell, minlength=int(np.prod(sizes[columns]))) / len(codes)
            )
        found.append(np.abs(shares[0] - shares[1]).sum() / 2)
    return float(np.mean(found))


def told_apart(
    one: IntArray, other: IntArray, rng: np.random.Generator
) -> tuple[float, float]:
    """Return AUC and KS of boosted trees that tell records of two tables apart, on
    records that they weren't shown.
    """
    n = min(len(one), len(other), MOST_COMPARED)
    both = np.concatenate(
        [one[rng.permutation(len(one))[:n]], other[rng.permutation(len(other))[:n]]]
    )
    of, order = np.repeat([0, 1], n), rng.permutation(2 * n)
    fitted = HistGradientBoostingClassifier(random_state=0).fit(
        both[order[:n]], of[order[:n]]
    )
    chances, held = fitted.predict_proba(both[order[n:]])[:, 1], of[order[n:]]
    return float(roc_auc_score(held, chances)), float(
        stats.ks_2samp(chances[held == 0], chances[held == 1]).statistic
    )


def predicted(true: IntArray, made: IntArray, target: int) -> float:
    """Return the AUC of boosted trees on the true table that learned a column of two
    levels on a synthetic set.
    """
    if len(np.unique(made[:, target])) < 2:
        return 0.5
    inputs = np.delete(made, target, 1)
    fitted = HistGradientBoostingClassifier(random_state=0).fit(inputs, made[:, target])
    return float(
        roc_auc_score(
            true[:, target], fitted.predict_proba(np.delete(true, target, 1))[:, 1]
        )
    )


def first_set(
    mechanism: Mechanism, frame: pd.DataFrame, schema: Schema, seed: int
) -> IntArray:
    """Return the levels of a synthetic set, shape (records, columns)."""
    release, _ = mechanism.release(
        Table(frame, schema), rng=np.random.default_rng(seed)
    )
    return codes_of(release.sets[0], schema)


def set_of_classes(
    n_classes: int, mechanism: Mechanism, frame: pd.DataFrame, schema: Schema, seed: int
) -> IntArray:
    """Return the levels of a set of latent classes, from the noisy margins of a release
    and its first set.
    """
    from pdips.posterior import model_file
    from pdips.posterior.nuts import sample

    latent, rng = (
        model_file.load(model_file.path("latent_classes"))[0],
        np.random.default_rng(seed),
    )
    release, _ = mechanism.release(Table(frame, schema), rng=rng)
    margins, records = NoisyMargins.of(release), release.sets[0]
    model = latent.margins_model(margins, records, n_classes)
    tree = sample(model, draws=500, tune=500, chains=2, rng=rng)
    return codes_of(latent.draw(tree, margins, len(records), rng), schema)


PEER = """
import sys
from itertools import combinations
import numpy, pandas
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/src"]
from mbi import Dataset, Domain
given = numpy.load(sys.argv[2])
names = [f"c{k}" for k in range(len(given["sizes"]))]
table = Dataset(pandas.DataFrame(given["codes"], columns=names), Domain(names, given["sizes"].tolist()))
numpy.random.seed(int(sys.argv[5]))
if sys.argv[6] == "MST":
    from mechanisms.mst import MST
    made = MST(table, float(sys.argv[3]), float(sys.argv[4]))
else:
    from mechanisms.aim import AIM
    pairs = [(pair, 1.0) for pair in combinations(names, 2) if table.domain.size(pair) <= 10_000]
    made = AIM(float(sys.argv[3]), float(sys.argv[4])).run(table, pairs)
numpy.save(sys.argv[2] + ".npy", made.df[names].to_numpy())
"""  # noqa: E501


def peer(
    name: str,
    command: str,
    true: IntArray,
    sizes: IntArray,
    epsilon: str,
    delta: str,
    seed: int,
) -> IntArray:
    """Return a set by Private-PGM's MST or AIM, whose relation is add-remove, in an
    environment of its own.
    """
    python, checkout = command.split(",")
    with TemporaryDirectory() as folder:
        given = Path(folder) / "given.npz"
        np.savez(given, codes=true, sizes=sizes)
        subprocess.run(
            [python, "-c", PEER, checkout, given, epsilon, delta, str(seed), name],
            check=True,
        )
        return np.asarray(np.load(f"{given}.npy"), dtype=np.int64)


def coverage(
    mechanism: Mechanism,
    frame: pd.DataFrame,
    schema: Schema,
    triples: list[tuple[int, ...]],
    seed: int,
) -> None:
    """Print how often 95 % intervals of counts from posterior sets hold those of the
    population, by size of margin.

    The population is the table; what is released is a sample of as many records drawn
    from it with replacement. T is (1 + 1/m) B with m - 1 degrees of freedom. Cells that
    expect more than 50 records count.
    """
    sample = frame.sample(
        len(frame), replace=True, random_state=seed, ignore_index=True
    )
    release, _ = mechanism.release(
        Table(sample, schema), rng=np.random.default_rng(seed)
    )
    sizes = np.array([column.n_levels for column in schema.columns.values()])
    true, made = (
        codes_of(frame, schema),
        [codes_of(each, schema) for each in release.sets],
    )
    reach = stats.t.ppf(0.975, len(made) - 1) * np.sqrt(1 + 1 / len(made))
    pairs = list(combinations(range(len(sizes)), 2))
    for name, margins in (
        ("levels", [(k,) for k in range(len(sizes))]),
        ("pairs", pairs),
        ("triples", triples),
    ):
        held = list[BoolArray]()
        for columns in map(list, margins):
            cells = [
                np.ravel_multi_index(tuple(codes[:, columns].T), tuple(sizes[columns]))
                for codes in (true, *made)
            ]
            counts = np.array(
                [
                    np.bincount(cell, minlength=int(np.prod(sizes[columns])))
                    for cell in cells
                ]
            )
            off = np.abs(counts[1:].mean(axis=0) - counts[0]) <= reach * counts[1:].std(
                axis=0, ddof=1
            )
            held.append(off[counts[0] > FEWEST])
        print(
            f"{name}: {np.concatenate(held).mean():.3f} of {len(np.concatenate(held))}",
            flush=True,
        )


def measures(
    make: Callable[[int], IntArray],
    true: IntArray,
    sizes: IntArray,
    target: int | None,
    seed: int,
) -> list[float]:
    """Return how far one set is off, and the CPU seconds that it took."""
    start = sum(os.times()[:4])
    made = make(seed)
    spent = sum(os.times()[:4]) - start
    pairs = list(combinations(range(len(sizes)), 2))
    found = [
        distances(true, made, sizes, list(pairs)),
        distances(true, made, sizes, chosen_triples(len(sizes))),
    ]
    found += told_apart(true, made, np.random.default_rng(seed))
    return [*found, np.nan if target is None else predicted(true, made, target), spent]


def chosen_triples(n_columns: int) -> list[tuple[int, ...]]:
    """Return the triples that are looked at."""
    rng = np.random.default_rng(0)
    return [
        tuple(rng.choice(n_columns, 3, replace=False).tolist())
        for _ in range(N_TRIPLES)
    ]


def main() -> None:
    """Print a line for each mechanism, or the coverage of intervals."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    parser.add_argument("--epsilon", default="1")
    parser.add_argument("--delta", default="1e-9")
    parser.add_argument("--neighbours", default="add-remove")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--target", help="a column of two levels to be predicted")
    parser.add_argument("--peer", metavar="PYTHON,CHECKOUT")
    parser.add_argument("--classes", type=int)
    parser.add_argument(
        "--chosen", type=int, help="also count so many pairs alone, chosen privately"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--coverage", type=int, metavar="SETS")
    asked = parser.parse_args()
    frame, schema = coded(pd.read_parquet(asked.table))
    true = codes_of(frame, schema)
    sizes = np.array([column.n_levels for column in schema.columns.values()])
    common = {"epsilon": asked.epsilon, "neighbours": asked.neighbours}
    gaussian = {**common, "delta": asked.delta}
    if asked.coverage:
        few = np.prod(sizes.astype(float)) <= MOST_DENSE
        for measure in ("pairs", "views") if few else ("pairs",):
            print(f"margins of {measure}")
            for seed in range(asked.runs):
                several = Margins(
                    measure=measure,
                    **gaussian,
                    n_sets=asked.coverage,
                    sets="posterior",
                )
                coverage(several, frame, schema, chosen_triples(len(sizes)), seed)
        return
    mechanisms: list[Any] = [
        Margins(measure="pairs", **gaussian),
        Margins(measure="pairs", **common),
    ]
    if asked.chosen:
        mechanisms += [
            Margins(measure="pairs", **each, chosen=asked.chosen)
            for each in (gaussian, common)
        ]
    if np.prod(sizes.astype(float)) <= MOST_DENSE:
        mechanisms += [Margins(measure="views", **each) for each in (gaussian, common)]
    if asked.neighbours == "replace-one":
        mechanisms.append(PrivBayes(epsilon=asked.epsilon))
    ways: dict[str, Callable[[int], IntArray]] = {
        f"{each.name} "
        f"{getattr(each, 'kind', 'pure')}{', chosen' * bool(getattr(each, 'chosen', 0))}": partial(  # noqa: E501
            first_set, each, frame, schema
        )
        for each in mechanisms
    }
    if asked.classes:
        ways["latent classes"] = partial(
            set_of_classes, asked.classes, mechanisms[0], frame, schema
        )
    if asked.peer and asked.neighbours == "add-remove":
        for name in ("MST", "AIM") if "AIM" in asked.only else ("MST",):
            ways[f"{name} zcdp"] = partial(
                peer, name, asked.peer, true, sizes, asked.epsilon, asked.delta
            )
    print(
        "mechanism and kind: pairs, triples, told apart (AUC, KS), target's AUC, "
        "CPU s; standard errors below"
    )
    target = list(frame.columns).index(asked.target) if asked.target else None
    with ProcessPoolExecutor(asked.jobs) as pool:
        for name, make in ways.items():
            if name.startswith(tuple(asked.only.split(","))):
                rows = [
                    *pool.map(
                        partial(measures, make, true, sizes, target),
                        range(asked.first, asked.first + asked.runs),
                    )
                ]
                for label, values in (
                    (name, np.mean(rows, axis=0)),
                    ("", stats.sem(rows, axis=0)),
                ):
                    print(
                        f"{label:20}" + "  ".join(f"{value:.4f}" for value in values),
                        flush=True,
                    )


if __name__ == "__main__":
    main()
