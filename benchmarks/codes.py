"""A column of many codes whose groups go with other columns: groups in the schema,
beside none and wrong ones.

``python -m benchmarks.codes --runs 10``. The table is made up: 200 codes in 12 groups,
skewed, in arbitrary order. In "neighbours" the groups are runs of neighbouring codes in
that order, as many and as large. ``--coverage 150`` prints instead how often intervals
from five sets hold the shares of 12 codes, and of their 3 groups with another column.
"""

import argparse
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from pdips import Margins, Schema, Table
from pdips.inference import combine

N_CODES, N_GROUPS, N_RECORDS = 200, 12, 5_000
Kind = Literal["pure", "zcdp"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DELTAS: dict[Kind, str | None] = {"pure": None, "zcdp": "1e-6"}
COLUMNS = {"edu": 5, "sector": 4, "union": 2}


def made_up(
    rng: np.random.Generator,
) -> tuple[pd.DataFrame, list[str], dict[str, list[str]]]:
    """Return records, the codes in arbitrary order, and their groups."""
    codes = [f"c{k:03}" for k in rng.permutation(N_CODES)]
    group = np.sort(
        np.append(np.arange(N_GROUPS), rng.integers(0, N_GROUPS, N_CODES - N_GROUPS))
    )
    share = rng.dirichlet(np.full(N_GROUPS, 2.0))[group] * rng.gamma(0.3, size=N_CODES)
    drawn = rng.choice(N_CODES, N_RECORDS, p=share / share.sum())
    frame = pd.DataFrame({"job": np.array(codes)[drawn]})
    for name, size in COLUMNS.items():
        law = rng.dirichlet(np.full(size, 0.7), N_GROUPS).cumsum(axis=1)
        frame[name] = (
            (rng.random(N_RECORDS)[:, None] > law[group[drawn]])
            .sum(axis=1)
            .clip(0, size - 1)
        )
    groups = {
        f"g{k}": [codes[place] for place in np.flatnonzero(group == k)]
        for k in range(N_GROUPS)
    }
    return frame, sorted(codes), groups


def distance(one: pd.DataFrame, other: pd.DataFrame, columns: list[str]) -> float:
    """Return the total variation distance of a margin."""
    both = [frame.groupby(columns).size() / len(frame) for frame in (one, other)]
    return float(both[0].sub(both[1], fill_value=0.0).abs().sum() / 2)


def distances(
    frame: pd.DataFrame, made: pd.DataFrame, groups: dict[str, list[str]]
) -> dict[str, float]:
    """Return distances of the codes, of pairs of their groups, of pairs of codes, and
    of the other pairs.
    """
    group = {code: name for name, codes in groups.items() for code in codes}
    one, other = (each.assign(group=each["job"].map(group)) for each in (frame, made))
    names, found = (
        [*COLUMNS],
        {
            "codes": distance(one, other, ["job"]),
            "groups": distance(one, other, ["group"]),
        },
    )
    found["groups x others"] = float(
        np.mean([distance(one, other, ["group", name]) for name in names])
    )
    found["codes x others"] = float(
        np.mean([distance(one, other, ["job", name]) for name in names])
    )
    others = [[a, b] for k, a in enumerate(names) for b in names[k + 1 :]]
    return found | {
        "other pairs": float(np.mean([distance(one, other, pair) for pair in others]))
    }


def covered(kind: Kind, seed: int, n: int = 3_000) -> tuple[float, float]:
    """Return how many of the 95 % intervals held, of shares of codes and of pairs of
    groups with sex.
    """
    rng, jobs, share = (
        np.random.default_rng(seed),
        [f"{g}{k}" for g in "ABC" for k in range(4)],
        np.arange(1, 13) / 78,
    )
    women = {"A": 0.9, "B": 0.5, "C": 0.1}
    frame = pd.DataFrame({"job": rng.choice(jobs, n, p=share)})
    frame["sex"] = np.where(rng.random(n) < frame["job"].str[0].map(women), "f", "m")
    frame["x"] = rng.integers(0, 3, n)
    job = {"levels": jobs, "groups": 1}
    schema = Schema.model_validate(
        {
            "columns": {
                "job": job,
                "sex": {"levels": ["f", "m"]},
                "x": {"levels": [0, 1, 2]},
            }
        }
    )
    made = Margins(epsilon=1, delta=DELTAS[kind], n_sets=5, sets="posterior")
    release, _ = made.release(
        Table(frame, schema), rng=np.random.default_rng(seed + 10**6)
    )
    both = np.concatenate(
        [
            share,
            [share[4 * k : 4 * k + 4].sum() * women[g] for k, g in enumerate("ABC")],
        ]
    )
    seen = np.array(
        [
            [*((one["job"] == each).mean() for each in jobs)]
            + [((one["job"].str[0] == g) & (one["sex"] == "f")).mean() for g in "ABC"]
            for one in release.sets
        ]
    )
    found = (
        combine(seen, np.maximum(seen * (1 - seen), 1e-9) / n, rule="between")
        .summary()
        .to_numpy()
    )
    held = (found[:, -2] <= both) & (both <= found[:, -1])
    return float(held[:12].mean()), float(held[12:].mean())


def main() -> None:
    """Print mean distances and their standard errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--coverage", type=int, default=0, help="tables")
    asked, rows = parser.parse_args(), []
    runs = asked.runs
    if asked.coverage:
        for kind in KINDS:
            held = np.mean(
                [covered(kind, seed) for seed in range(asked.coverage)], axis=0
            )
            print(kind, held.round(3), flush=True)
        return
    for run in range(runs):
        frame, codes, groups = made_up(np.random.default_rng(run))
        ends = np.cumsum([0, *map(len, groups.values())])
        runs_of = {f"r{k}": codes[a:b] for k, (a, b) in enumerate(pairwise(ends))}
        for kind in KINDS:
            for way, used in {
                "groups": groups,
                "neighbours": runs_of,
                "none": None,
            }.items():
                job: dict[str, Any] = {"levels": codes} | (
                    {"groups": used} if used else {}
                )
                columns = {"job": job} | {
                    name: {"levels": list(range(size))}
                    for name, size in COLUMNS.items()
                }
                table = Table(frame, Schema.model_validate({"columns": columns}))
                release, _ = Margins(epsilon=1, delta=DELTAS[kind]).release(
                    table, rng=np.random.default_rng(run)
                )
                rows.append(
                    {
                        "kind": kind,
                        "way": way,
                        **distances(frame, release.sets[0], groups),
                    }
                )
    found = pd.DataFrame(rows).groupby(["kind", "way"], sort=False)
    print(found.mean().round(4).to_string())
    print((found.std() / np.sqrt(runs)).round(4).to_string())


if __name__ == "__main__":
    main()
