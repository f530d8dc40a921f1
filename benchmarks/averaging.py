"""Model averaging by stacking: how far sets of the mixture are from the table, against
each single model's sets.

    python -m benchmarks.averaging cells 2 200

Two designs. *cells*: a cross-tabulation of three columns, and the saturated model with
three priors: Jeffreys' (the shipped one), one that is sparse and one that is nearly
even; tables that are dense, that have most records in few cells, and that are even.
*groups*: a number within ten groups, and the general location model with two priors of
the spread between groups' means: the shipped one, and one that has them nearly alike;
tables of both kinds. All models of a replicate have the same noisy statistics.
"""

import sys
import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.posterior.model_file import load
from pdips.privacy.answers import PublicFacts
from pdips.statistics.modips import Modips

N_SETS = 10
EPSILONS = ("0.1", "0.5", "2")
EDITS = {
    "multinomial": {
        "jeffreys": ("", ""),
        "sparse": ("PRIOR = 1 / 2", "PRIOR = 1 / 60"),
        "even": ("PRIOR = 1 / 2", "PRIOR = 20.0"),
    },
    "glom": {
        "apart": ("", ""),
        "alike": ('pm.Gamma("tau", 2, 4', 'pm.Gamma("tau", 2, 80'),
    },
}
LEVELS = (5, 4, 3)


def schema_of(design: str) -> Schema:
    """Return the public schema of a design."""
    if design == "cells":
        return Schema.model_validate(
            {
                "columns": {
                    f"c{place}": {"levels": list(range(size))}
                    for place, size in enumerate(LEVELS)
                }
            }
        )
    return Schema.model_validate(
        {
            "columns": {
                "g": {"levels": list(range(10))},
                "y": {"lower": -4.0, "upper": 4.0},
            }
        }
    )


def truths(
    design: str, n: int, rng: np.random.Generator
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield tables of each kind."""
    if design == "cells":
        cells = int(np.prod(LEVELS))
        few = np.where(np.arange(cells) < 4, 1.0, 0.0)
        for name, shares in (
            ("dense", rng.dirichlet(np.full(cells, 0.7))),
            (
                "few cells",
                rng.permutation(few) * rng.dirichlet(np.full(cells, 5.0)) + 1e-9,
            ),
            ("even", np.full(cells, 1.0)),
        ):
            drawn = np.unravel_index(
                rng.choice(cells, size=n, p=shares / shares.sum()), LEVELS
            )
            yield (
                name,
                pd.DataFrame({f"c{place}": codes for place, codes in enumerate(drawn)}),
            )
        return
    for name, spread in (("apart", 1.0), ("alike", 0.0)):
        g = rng.integers(10, size=n)
        y = rng.normal(0, spread, 10)[g] + rng.normal(0, 0.7, n)
        yield name, pd.DataFrame({"g": g, "y": np.clip(y, -4, 4)})


def distance(table: pd.DataFrame, made: pd.DataFrame) -> float:
    """Mean over pairs of columns (a number in sixteen bins) of half the sum of |share -
    share|.
    """
    both = [
        frame.assign(y=np.floor(2 * frame["y"])) if "y" in frame else frame
        for frame in (table, made)
    ]
    found = []
    for pair in combinations(table.columns, 2):
        one, other = (
            frame.astype(float).groupby(list(pair)).size() / len(frame)
            for frame in both
        )
        found.append(one.sub(other, fill_value=0).abs().sum() / 2)
    return float(np.mean(found))


def main(design: str, replicates: int, n: int) -> None:
    """Print mean distances by design, table, size and epsilon, and the mixture's over
    the best single model's.
    """
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files: dict[str, list[Path]] = {}
        for source, edits in EDITS.items():
            text = load(source)[1].read_text(encoding="utf-8")
            for name, (old, new) in edits.items():
                assert old in text
                path = Path(folder) / f"{name}.py"
                path.write_text(text.replace(old, new), encoding="utf-8")
                files.setdefault(source, []).append(path)
        schema, several = (
            schema_of(design),
            tuple(files["multinomial" if design == "cells" else "glom"]),
        )
        for number in range(replicates):
            rng = np.random.default_rng([number, n])
            for kind, frame in truths(design, n, rng):
                for epsilon in EPSILONS:
                    mixed, _ = Modips(
                        epsilon=epsilon, model=several, n_sets=N_SETS
                    ).release(Table(frame, schema))
                    found = {"mixture": [*mixed.sets]}
                    for path in several:
                        alone = Modips(epsilon=epsilon, model=path, n_sets=N_SETS)
                        found[path.stem] = alone.more_sets(
                            schema, mixed.answers, PublicFacts(n), N_SETS, rng
                        )
                    rows += [
                        (
                            kind,
                            epsilon,
                            name,
                            np.mean([distance(frame, made) for made in sets]),
                        )
                        for name, sets in found.items()
                    ]
            print(f"{number + 1} of {replicates}", flush=True)
    by = ["table", "epsilon"]
    long = pd.DataFrame(rows, columns=[*by, "model", "distance"]).groupby(
        [*by, "model"]
    )["distance"]
    wide, errors = long.mean().unstack("model"), long.sem().unstack("model")["mixture"]
    best = wide.drop(columns="mixture").min(axis=1)
    print(
        wide.round(3)
        .assign(error=errors.round(3), ratio=(wide["mixture"] / best).round(2))
        .to_string()
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))
