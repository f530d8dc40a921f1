"""Tables beside the simplest rival: ``python -m benchmarks.tables --runs 3``.

The default synthesizer, all pairs, independent columns (``chosen=0``: the whole
budget on single columns) and plain noisy histograms of 20 bins, at the same relation
and kind of guarantee; and, of releases of several sets, whose sets carry the noise, one
of them (``sets``; ``sets of chosen pairs`` if not all are counted).

How far sets are off in single columns, pairs, triples (mean total variation distance;
numbers cut at true deciles, in pairs and triples at true quintiles) and in means of
numbers by group (in standard deviations of the number), and the ratio of the first to
independent columns.
The list of tables was fixed before anything was tuned; ``--aside`` runs the four that
were set aside. Tables of more than 10,000 records are sampled. ``--only chain:8000``
takes simulated records, ``--jobs 2`` runs tables in processes of their own.
"""

import argparse
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.surveys import (
    described,
    drawn,
    independent,
    noise_of,
    packaged,
)
from benchmarks.wide import distances
from pdips import Margins, Schema, Table
from pdips.arrays import IntArray

EXAMPLES = Path(__file__).parents[1] / "examples"
TUNED = {
    "CPS1988": "AER",
    "SLID": "carData",
    "HI": "Ecdat",
    "credit_data": "modeldata",
    "TitanicSurvival": "carData",
    "attrition": "modeldata",
    "NMES1988": "AER",
    "WVS": "carData",
    "HealthInsurance": "AER",
    "mlc_churn": "modeldata",
    "yrbss": "openintro",
    "BankWages": "AER",
    "stackoverflow": "modeldata",
    "youth": "",
}
ASIDE = {
    "nassCDS": "DAAG",
    "diamonds": "ggplot2",
    "Wage": "ISLR",
    "lending_club": "modeldata",
}
FRESH = {
    "PSID1982": "AER",
    "crime1": "wooldridge",
    "Fatalities": "AER",
    "ames": "modeldata",
    "RetSchool": "Ecdat",
}
"""Small, skewed and wide ones, named before any was looked at, for ``--only``."""
MOST_RECORDS = 10_000
N_TRIPLES = 60
LEAST_GROUP = 0.05  # Share of the records of a group whose means are compared
DELTA = "1e-9"
CORRELATION = 0.8  # Of neighbours in a chain, before cuts
WAYS = ("default", "pairs", "independent", "histograms", "sets", "sets of chosen pairs")
MEASURES = ("singles", "pairs", "triples", "groups")


def chain(n_records: int) -> tuple[pd.DataFrame, Schema]:
    """Return ten columns, numbers and four levels by turns, each of which depends on
    the one before.
    """
    rng = np.random.default_rng(0)
    normal = np.empty((n_records, 10))
    normal[:, 0] = rng.normal(size=n_records)
    for place in range(1, 10):
        own = rng.normal(size=n_records)
        normal[:, place] = CORRELATION * normal[:, place - 1]
        normal[:, place] += np.sqrt(1 - CORRELATION**2) * own
    columns = dict[str, Any]()
    values = dict[str, Any]()
    for place in range(10):
        name = f"c{place}"
        if place % 2:
            values[name] = np.digitize(normal[:, place], [-0.7, 0, 0.7])
            columns[name] = {"levels": [0, 1, 2, 3]}
        else:
            values[name] = np.round(np.clip(normal[:, place], -5, 5), 2)
            columns[name] = {"lower": -5, "upper": 5}
    return pd.DataFrame(values), Schema.model_validate({"columns": columns})


def read(name: str) -> tuple[pd.DataFrame, Schema]:
    """Return a table, at most 10,000 of its records, and its schema; or, by a name such
    as "chain:8000", so many simulated ones.
    """
    if name.startswith("chain:"):
        return chain(int(name.partition(":")[2]))
    if name == "youth":
        frame = pd.read_parquet(EXAMPLES / "youth.parquet")
        schema = Schema.load(EXAMPLES / "youth.toml")
    else:
        package = (TUNED | ASIDE | FRESH)[name]
        frame, schema = described(packaged(package, name, None))
    if len(frame) > MOST_RECORDS:
        frame = frame.sample(MOST_RECORDS, random_state=0, ignore_index=True)
    return frame, schema


def cut(
    values: pd.Series, true: pd.Series, column: Any, n_parts: int
) -> tuple[IntArray, int]:
    """Return the level or the true quantile that each value is in, missing as the last
    one, and how many there are.
    """
    if column.is_categorical:
        order = {str(level): place for place, level in enumerate(column.levels)}
        levels = values.map(str, na_action="ignore").map(order)
        codes = levels.fillna(len(order)).to_numpy()
        return np.asarray(codes, dtype=np.int64), len(order) + 1
    known = true.dropna().astype(float)
    cuts = np.unique(np.quantile(known, np.arange(1, n_parts) / n_parts))
    numbers = values.astype(float).to_numpy()
    places = np.searchsorted(cuts, numbers, side="left")
    places = np.where(np.isnan(numbers), len(cuts) + 1, places)
    return np.asarray(places, dtype=np.int64), len(cuts) + 2


def codes_of(
    made: pd.DataFrame, true: pd.DataFrame, schema: Schema, n_parts: int
) -> tuple[IntArray, IntArray]:
    """Return the places of all values, shape (records, columns), and their numbers."""
    found = [
        cut(made[name], true[name], column, n_parts)
        for name, column in schema.columns.items()
    ]
    return np.column_stack([codes for codes, _ in found]), np.array(
        [size for _, size in found]
    )


def of_groups(made: pd.DataFrame, true: pd.DataFrame, schema: Schema) -> float:
    """Return the mean error of means of numbers by group, at most 1 each, in standard
    deviations of the number.
    """
    errors = []
    columns = schema.columns.items()
    groups = [name for name, column in columns if column.is_categorical]
    numbers = [name for name, column in columns if not column.is_categorical]
    for group in groups:
        shares = true[group].map(str, na_action="ignore").value_counts() / len(true)
        by_group = made[group].map(str, na_action="ignore")
        for level in shares.index[shares >= LEAST_GROUP]:
            rows = true[group].map(str, na_action="ignore") == level
            for number in numbers:
                values = true[number].astype(float)
                held = made.loc[by_group == level, number].astype(float).mean()
                error = abs(values[rows].mean() - held) / max(values.std(), 1e-12)
                errors.append(min(error, 1.0) if np.isfinite(error) else 1.0)
    return float(np.mean(errors)) if errors else np.nan


def judged(made: pd.DataFrame, true: pd.DataFrame, schema: Schema) -> list[float]:
    """Return the distances of single columns, pairs and triples, and the error of means
    by group.
    """
    n_columns = len(schema.columns)
    singles: list[tuple[int, ...]] = [(place,) for place in range(n_columns)]
    pairs: list[tuple[int, ...]] = [*combinations(range(n_columns), 2)]
    triples: list[tuple[int, ...]] = [*combinations(range(n_columns), 3)]
    if len(triples) > N_TRIPLES:
        some = np.random.default_rng(0).choice(len(triples), N_TRIPLES, replace=False)
        triples = [triples[place] for place in some]
    found = []
    for n_parts, margins in ((10, singles), (5, pairs), (5, triples)):
        codes, sizes = codes_of(made, true, schema, n_parts)
        exact, _ = codes_of(true, true, schema, n_parts)
        found.append(distances(exact, codes, sizes, margins))
    return [*found, of_groups(made, true, schema)]


def made_by(
    way: str,
    frame: pd.DataFrame,
    schema: Schema,
    common: dict[str, Any],
    seed: int,
) -> pd.DataFrame:
    """Return one set."""
    rng = np.random.default_rng(seed)
    if way == "histograms":
        deviation = noise_of(
            common["epsilon"], common.get("delta"), len(schema.columns)
        )
        if common["neighbours"] == "add-remove":
            deviation /= np.sqrt(2) if "delta" in common else 2
        shares = independent(frame, schema, deviation, rng, "delta" not in common)
        return drawn(schema, shares, len(frame), rng)
    settings: dict[str, Any] = {"n_sets": 1}
    if way == "independent":
        settings["chosen"] = 0
    if way == "pairs":
        settings["measure"] = "pairs"
    if way.startswith("sets"):
        settings["n_sets"] = 2
    if way == "sets of chosen pairs":
        settings["measure"] = "chosen"
    release, _ = Margins(**common, **settings).release(Table(frame, schema), rng=rng)
    made: pd.DataFrame = release.sets[0]
    return made


def cell(
    name: str,
    epsilon: str,
    delta: str | None,
    neighbours: str,
    ways: Sequence[str],
    runs: int,
) -> dict[str, Any]:
    """Return the mean errors of each way on one table at one price, and CPU seconds."""
    warnings.simplefilter("ignore")
    frame, schema = read(name)
    common: dict[str, Any] = {"epsilon": epsilon, "neighbours": neighbours}
    if delta is not None:
        common["delta"] = delta
    found = dict[str, Any]()
    for way in ways:
        start = sum(os.times()[:2])
        make: Callable[[int], pd.DataFrame] = partial(
            made_by, way, frame, schema, common
        )
        sets = [make(seed) for seed in range(runs)]
        spent = (sum(os.times()[:2]) - start) / runs
        errors = np.mean([judged(made, frame, schema) for made in sets], axis=0)
        found[way] = [*errors.tolist(), spent]
    return found


def main() -> None:
    """Print a row for each table, price and kind, and means of ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--aside", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--epsilon", default=".25,1,4")
    parser.add_argument("--kinds", default="pure,delta")
    parser.add_argument("--neighbours", default="add-remove")
    parser.add_argument("--only", default="", help="names of tables")
    parser.add_argument("--ways", default=",".join(WAYS))
    asked = parser.parse_args()
    ways = asked.ways.split(",")
    names = [*(ASIDE if asked.aside else TUNED)]
    if asked.only:
        names = asked.only.split(",")
    jobs = [
        (name, epsilon, kind)
        for kind in asked.kinds.split(",")
        for epsilon in asked.epsilon.split(",")
        for name in names
    ]
    print(
        "| kind | epsilon | table | "
        + " | ".join(f"{way}: {', '.join(MEASURES)}" for way in ways)
        + " | ratios to independent columns | CPU s |"
    )
    print("| --- " * (len(ways) + 5) + "|")
    ratios = dict[tuple[str, str], list[list[float]]]()
    with ProcessPoolExecutor(asked.jobs) as pool:
        found = pool.map(
            cell,
            [name for name, _, _ in jobs],
            [epsilon for _, epsilon, _ in jobs],
            [DELTA if kind == "delta" else None for _, _, kind in jobs],
            [asked.neighbours] * len(jobs),
            [ways] * len(jobs),
            [asked.runs] * len(jobs),
        )
        for (name, epsilon, kind), errors in zip(jobs, found, strict=True):
            row = [", ".join(f"{e:.4f}" for e in errors[way][:-1]) for way in ways]
            spent = ", ".join(f"{errors[way][-1]:.1f}" for way in ways)
            said = "-"
            if "independent" in errors:
                first = errors[ways[0]]
                ratio = np.divide(first[:-1], errors["independent"][:-1])
                ratios.setdefault((kind, epsilon), []).append(ratio.tolist())
                said = ", ".join(f"{value:.2f}" for value in ratio)
            print(
                f"| {kind} | {epsilon} | {name} | {' | '.join(row)} | {said} | "
                f"{spent} |",
                flush=True,
            )
    for (kind, epsilon), rows in ratios.items():
        mean = ", ".join(f"{value:.2f}" for value in np.nanmean(rows, axis=0))
        most = ", ".join(f"{value:.2f}" for value in np.nanmax(rows, axis=0))
        print(f"{kind}, epsilon {epsilon}: mean ratio {mean}; largest {most}")


if __name__ == "__main__":
    main()
