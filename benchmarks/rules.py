"""Coverage by mechanism, rule and analysis, over redrawn small tables: ``python -m
benchmarks.rules``.

The population has columns a (3 levels), b and c (2 levels), which go together in
threes, and d (2 levels), which is independent of them, so that its coefficient in a
regression of c on a, b and d is 0. Tables are drawn from it with replacement, released,
and analysed by the rule of ``rule_for``, and from the noisy margins without sets.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from pdips import (
    LaplaceSanitizer,
    Margins,
    Mechanism,
    Modips,
    PrivBayes,
    Release,
    Schema,
    Table,
)
from pdips.arrays import FloatArray
from pdips.evaluation.regression import fit_design
from pdips.inference import combine, rule_for
from pdips.outside import NoisyMargins, noisy_margins

SIZES = {"a": 3, "b": 2, "c": 2, "d": 2}
SCHEMA = Schema.model_validate(
    {
        "columns": {
            k: {"levels": [f"{k}{i}" for i in range(n)]} for k, n in SIZES.items()
        }
    }
)
FORMULA = "c ~ a + b + d"
ANSWERS = (
    "share",
    "two-way cell",
    "three-way cell",
    "linear b",
    "logit b",
    "linear d",
    "logit d",
)
Pair = tuple[FloatArray, FloatArray]


def population() -> pd.DataFrame:
    """Return 100,000 records: the law of which everything is known."""
    a, b, c = np.indices((3, 2, 2))
    weight = np.exp(
        0.3 * a * b - 0.4 * a + 0.5 * b * c - 0.3 * c + 0.6 * (a == 1) * (b == c)
    )
    counts = np.round(50_000 * weight / weight.sum()).astype(int).ravel()
    rows = np.repeat(np.indices((3, 2, 2)).reshape(3, -1), counts, axis=1)
    rows = np.hstack([np.vstack([rows, np.full(rows.shape[1], d)]) for d in (0, 1)])
    return pd.DataFrame(
        {k: [f"{k}{i}" for i in own] for k, own in zip(SIZES, rows, strict=True)}
    )


def cases(epsilon: str, m: int) -> dict[str, Callable[[], Mechanism]]:
    """Return what is tried."""
    zcdp: dict[str, Any] = {"epsilon": epsilon, "n_sets": m, "delta": "1e-6"}
    pure: dict[str, Any] = {"epsilon": epsilon, "n_sets": m}
    views = partial(Margins, measure="views")
    return {
        "pairs, posterior, zcdp": lambda: Margins(measure="pairs", **zcdp),
        "pairs, posterior, pure": lambda: Margins(measure="pairs", **pure),
        "pairs, fitted, zcdp": lambda: Margins(measure="pairs", sets="fitted", **zcdp),
        "pairs, fitted, pure": lambda: Margins(measure="pairs", sets="fitted", **pure),
        "views, posterior, zcdp": lambda: Margins(
            measure="views", sets="posterior", **zcdp
        ),
        "views, posterior, pure": lambda: Margins(
            measure="views", sets="posterior", **pure
        ),
        "views, fitted, pure": lambda: views(sets="fitted", **pure),
        "views, per-set, pure": lambda: Margins(
            measure="views", split="per-set", **pure
        ),
        "laplace-sanitizer, per-set": lambda: LaplaceSanitizer(split="per-set", **pure),
        "laplace-sanitizer, once": lambda: LaplaceSanitizer(**pure),
        "privbayes, per-set": lambda: PrivBayes(split="per-set", **pure),
        "privbayes, once": lambda: PrivBayes(**pure),
        "modips multinomial, noise-aware": lambda: Modips(model="multinomial", **pure),
        "modips multinomial, plug-in": lambda: Modips(
            model="multinomial", likelihood="plug-in", **pure
        ),
    }


def analyse(frame: pd.DataFrame) -> Pair:
    """Return all answers of one set and their variances."""
    codes = {
        name: pd.Categorical(frame[name], SCHEMA.columns[name].levels).codes
        for name in SIZES
    }
    two, ones = (codes["a"] == 1) & (codes["b"] == 1), np.ones(len(frame))
    shares = np.array([codes["c"].mean(), two.mean(), (two & (codes["c"] == 1)).mean()])
    design = np.column_stack(
        [ones, codes["a"] == 1, codes["a"] == 2, codes["b"], codes["d"]]
    ).astype(float)
    y, names = codes["c"].astype(float), ("Intercept", "a1", "a2", "b", "d")
    fits = [
        fit_design(design, y, names, "linear"),
        fit_design(design, y, names, "logistic"),
    ]
    values = [fit.estimates[k] for k in (3, 4) for fit in fits]
    errors = [fit.standard_errors[k] ** 2 for k in (3, 4) for fit in fits]
    return np.array([*shares, *values]), np.array(
        [*(shares * (1 - shares) / len(frame)), *errors]
    )


def from_sets(release: Release, rule: Any) -> tuple[FloatArray, ...]:
    """Return bounds and p-values of all answers from the sets of a release."""
    found = combine(analyse, list(release.sets), rule=rule)
    return *found.interval, found.p_value()


def from_margins(release: Release) -> tuple[FloatArray, ...]:
    """Return bounds and p-values of all answers but the cell of three columns from the
    noisy margins alone.
    """
    margins, rows = NoisyMargins.of(release), list[tuple[float, float, float]]()

    def take(answer: Any, name: str) -> None:
        row = answer.summary().loc[name]
        p = 0.0 if row["lower"] > 0 or row["upper"] < 0 else 1.0
        rows.append((float(row["lower"]), float(row["upper"]), p))

    take(margins.share("c"), "c1")
    take(margins.share(["a", "b"]), "a1, b1")
    rows.append((np.nan, np.nan, np.nan))
    fits = margins.ols(FORMULA), margins.glm(FORMULA, family="binomial")
    for name in ("b[b1]", "d[d1]"):
        for fit in fits:
            take(fit, name)
    return tuple(np.array(rows).T)


def tables(n: int, n_tables: int) -> Iterator[tuple[np.random.Generator, Table]]:
    """Yield tables drawn from the population, each with its own stream."""
    frame = population()
    for number in range(n_tables):
        rng = np.random.default_rng([n, number])
        yield (
            rng,
            Table(
                frame.sample(n, replace=True, random_state=rng, ignore_index=True),
                SCHEMA,
            ),
        )


def row(
    name: str,
    rule: str,
    truth: FloatArray,
    found: list[tuple[FloatArray, ...]],
    start: float,
) -> None:
    """Print a row: coverage of five answers, false positives of two tests, and the
    seconds that it took.
    """
    low, high, p = (np.array([each[k] for each in found]) for k in range(3))
    held = np.where(np.isnan(low), np.nan, (low <= truth) & (truth <= high))[:, :5]
    wrong = np.where(np.isnan(p), np.nan, p < 0.05)[:, 5:]
    cells = [
        f"{100 * value:.1f}" for value in np.nanmean(np.hstack([held, wrong]), axis=0)
    ]
    lost = int(np.isnan(low[:, [0, 1, 3, 4, 5, 6]]).any(axis=1).sum())
    print(
        f"| {name} | {rule} | {' | '.join(cells)} | {lost} without a fit, "
        f"{time.perf_counter() - start:.0f} s",
        flush=True,
    )


def main() -> None:
    """Print a row for each mechanism, and one for its noisy margins."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--size", type=int, default=1_000)
    parser.add_argument("--epsilon", default="1")
    parser.add_argument("--sets", type=int, default=5)
    parser.add_argument(
        "--replicates",
        type=int,
        default=200,
        help="of the noise, in place of the library's 1,000",
    )
    parser.add_argument(
        "--cases", nargs="+", default=[""], help="beginnings of their names"
    )
    parser.add_argument(
        "--ways", nargs="+", choices=["sets", "margins"], default=["sets", "margins"]
    )
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    noisy_margins.N_REPLICATES = asked.replicates
    warnings.simplefilter("ignore")
    truth, _ = analyse(population())
    print(f"truth: {dict(zip(ANSWERS, truth.round(4).tolist(), strict=True))}")
    print(
        "| mechanism | rule "
        "| " + " | ".join([*ANSWERS[:5], "false: linear d", "false: logit d"]) + " |"
    )
    for name, made in cases(asked.epsilon, asked.sets).items():
        if not name.startswith(tuple(asked.cases)):
            continue
        start, mechanism = time.perf_counter(), made()
        found: dict[str, list[tuple[FloatArray, ...]]] = {}
        for rng, table in tables(asked.size, asked.tables):
            release, _ = mechanism.release(table, rng=rng)
            rule: Any = rule_for(release)
            if "sets" in asked.ways:
                found.setdefault(rule, []).append(from_sets(release, rule))
            if (
                "margins" in asked.ways
                and "margins" in release.tables
                and not isinstance(mechanism, PrivBayes)
            ):
                found.setdefault("noisy margins", []).append(from_margins(release))
        for rule, each in found.items():
            row(name, rule, truth, each, start)


if __name__ == "__main__":
    main()
