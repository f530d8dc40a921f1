"""Tiny tables that the tests enumerate, sampling from schemas, and values to be
searched for in what is published.
"""

import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import xarray as xr

from pdips import InputError, PrivacyLoss, Schema, Table
from pdips.audit.findings import exact_bound
from pdips.audit.neighbour_pairs import small_pairs
from pdips.data.schema import Records
from pdips.errors import DataError
from pdips.margins.domain import domain_of
from pdips.margins.tree import (
    GivenColumns,
    NoisyTree,
    Splitter,
    TreeDesign,
)
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Plan, Step
from pdips.privacy.replay import ExactLaw, exact_law, joined, record
from pdips.privacy.sensitivity import Sensitivity

RELATIONS = ("replace-one", "add-remove")
CHROMIUM = (
    shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)


def bits(seed: int = 0) -> RandomBits:
    """Random bits that come again: from a seed, where a release takes the operating
    system's.
    """
    return RandomBits(np.random.default_rng(seed))


def refuses(
    match: str,
    call: Callable[..., object],
    *given: object,
    error: type = InputError,
    **named: object,
) -> str:
    """Return the one line with which a call is refused."""
    with pytest.raises(error, match=match or None) as caught:
        call(*given, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def unread(
    match: str, path: Path | str, schema: Schema, error: type = DataError
) -> set[str]:
    """Return the lines with which a file is refused, read whole and counted."""
    return {
        refuses(match, Table.read, path, schema, counted=counted, error=error)
        for counted in (False, True)
    }


def cases(test: str, name: str) -> tuple:
    """Return one of the tables of cases in ``cases.toml`` beside a test; arrays are
    tuples, and "null" is None.
    """
    found = tomllib.loads(
        Path(test).with_name("cases.toml").read_text(encoding="utf-8")
    )[name]
    return _frozen(found)


def _frozen(value: object) -> object:
    if isinstance(value, dict):
        return {key: _frozen(each) for key, each in value.items()}
    return (
        tuple(map(_frozen, value))
        if isinstance(value, list)
        else None
        if value == "null"
        else value
    )


def schema_text(name: str) -> str:
    """Return one of the schemas in ``tests/schemas`` as it is written."""
    return "\n" + Path(__file__).with_name("schemas").joinpath(
        f"{name}.toml"
    ).read_text(encoding="utf-8")


def schema_in(name: str) -> Schema:
    return Schema.from_toml(schema_text(name))


def filled(schema: Schema, n: int, rng, numbers=None) -> pd.DataFrame:
    """Records of any levels, and of any numbers between bounds or as ``numbers`` makes
    them.
    """
    numbers = numbers or (lambda column: rng.uniform(column.lower, column.upper, n))
    columns = schema.columns.items()
    return pd.DataFrame(
        {
            name: rng.choice(list(c.levels), n) if c.levels else numbers(c)
            for name, c in columns
        }
    )


def compositions(total: int, n_parts: int) -> list[tuple[int, ...]]:
    """All ways to put ``total`` records into ``n_parts`` cells."""
    bars = combinations(range(total + n_parts - 1), n_parts - 1)
    return [
        tuple(b - a - 1 for a, b in pairwise((-1, *bar, total + n_parts - 1)))
        for bar in bars
    ]


FAMILY_SHAPES = [(2, 2, 7), (2, 3, 6), (2, 4, 5), (3, 3, 5), (3, 4, 4)]
"""Combinations of parents, levels and records of small families of a network."""


def largest_score_move(score, rows: int, columns: int, n: int) -> float:
    """The most that the score of a family moves when one of n records is replaced, over
    all tables of this shape.
    """
    worst, places = 0, np.eye(rows * columns, dtype=np.int64)
    for rest in compositions(n - 1, rows * columns):
        scores = [
            score((np.array(rest) + place).reshape(rows, columns)) for place in places
        ]
        worst = max(worst, max(scores) - min(scores))
    return worst


def schema_of(*sizes: int, **extra) -> Schema:
    """Columns a, b, c, ... with levels 0, 1, ..."""
    columns = {
        name: {"levels": list(range(size))}
        for name, size in zip("abcdefgh", sizes, strict=False)
    }
    return Schema.model_validate({"columns": columns, **extra})


def with_cap(schema: Schema, cap: int, person: str | None = "person") -> Schema:
    """The same columns where a person has up to so many records, and a key unless there
    is none.
    """
    return schema.model_copy(
        update={"records": Records(max_per_person=cap, person=person)}
    )


def all_records(schema: Schema) -> list[tuple[int, ...]]:
    return list(
        product(*(range(column.n_levels) for column in schema.columns.values()))
    )


def table_of(records, schema: Schema) -> Table:
    return Table(pd.DataFrame(list(records), columns=list(schema.columns)), schema)


def all_tables(schema: Schema, n: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every table of n records, up to their order."""
    return combinations_with_replacement(all_records(schema), n)


def random_table(schema: Schema, n: int, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    return table_of(
        [[rng.integers(c.n_levels) for c in schema.columns.values()] for _ in range(n)],
        schema,
    )


def worst_loss(mechanism, schema, sizes=(2,), pairs=None, only="") -> float:
    """The worst log ratio over all tables of these sizes, their neighbours, and all
    that is shown.

    Or ``only`` over the choices, or the noise given them. Laws are worked out once a
    table.
    """
    left_out = {
        "choices": {"statistics": (), "scales": ()},
        "noise": {"log_probability": 0.0},
    }.get(only, {})
    laws = {}

    class Remembered:
        def law(self, table):
            key = tuple(map(tuple, np.column_stack([*table.codes.values()])))
            if key not in laws:
                whole = exact_law(mechanism, table)
                laws[key] = replace(
                    whole,
                    outcomes=[
                        replace(outcome, **left_out) for outcome in whole.outcomes
                    ],
                )
            return laws[key]

    tried = pairs or [
        pair for n in sizes for pair in small_pairs(schema, mechanism.neighbours, n)
    ]
    return max(exact_bound(Remembered(), pair).epsilon for pair in tried)


def loss_between(one, other) -> float:
    """The worst log ratio over all outcomes of two exact laws."""
    laws = [
        SimpleNamespace(law=ExactLaw(outcomes=outcomes)) for outcomes in (one, other)
    ]
    return exact_bound(
        SimpleNamespace(law=lambda table: table.law),
        SimpleNamespace(first=laws[0], second=laws[1]),
    ).epsilon


def runs_of(
    mechanism, table: Table, n_runs: int, from_bits: RandomBits | None = None
) -> np.ndarray:
    """What runs of a mechanism show, one a row: choices and noisy numbers, before
    post-processing.
    """
    return np.concatenate(record(mechanism, table, n_runs, from_bits or bits()), axis=1)


def runs_and_releases(
    mechanism, other, table: Table, n_runs: int, n_releases: int
) -> list[np.ndarray]:
    """Many runs of a mechanism together, as many of another one, and runs of the first
    one by one.
    """
    from_bits = bits()
    blocks = [record(each, table, n_runs, from_bits) for each in (mechanism, other)]
    together, others, *alone = joined(
        *blocks, *(record(mechanism, table, 1, from_bits) for _ in range(n_releases))
    )
    return [together, others, np.concatenate(alone)]


def scales_of(mechanism, schema: Schema) -> tuple:
    """The scales of the noise on counts, in the order in which they are asked for."""
    return tuple(
        step.scale for step in mechanism.plan(schema).steps if step.law == "laplace"
    )


def plan_of_tree(
    schema: Schema,
    scales,
    splitter: Splitter | None = None,
    relation: str = "replace-one",
) -> Plan:
    """A plan that counts a tree with noise of these scales by layer; None for a layer
    that isn't counted.
    """
    sensitivity = Sensitivity.of_counts(schema, relation)
    layers = [
        None
        if scale is None
        else Step(
            name=f"layer {i}", sensitivity=sensitivity, price=sensitivity.l1 / scale
        )
        for i, scale in enumerate(scales, start=1)
    ]
    tree = TreeDesign(
        domain=domain_of(schema),
        layers=tuple(layers),
        splitter=splitter or GivenColumns(),
    )
    steps = tuple(step for step in layers if step is not None)
    return Plan(
        mechanism="tree",
        schema=schema,
        neighbours=relation,
        steps=steps,
        law="Counts.",
        design=tree,
    )


def grown(plan: Plan, table: Table, seed: int = 0) -> NoisyTree:
    """One noisy tree over a table."""
    return plan.design.measure(Drawing(plan, table, bits(seed)))


@dataclass(frozen=True, kw_only=True)
class Flawed:
    """What mechanisms that break their promise share: the promise."""

    name: ClassVar[str] = "flawed"
    epsilon: float | Fraction = 1
    n_sets: int = 1
    neighbours: str = "replace-one"

    def privacy_loss(self, schema=None) -> PrivacyLoss:
        return PrivacyLoss(
            epsilon=self.epsilon,
            neighbours=self.neighbours,
            kind="pure",
            statement="Wrong.",
        )


def claimed_by(statistic, schema: Schema, neighbours: str) -> tuple[int, int]:
    """The sensitivities that a statistic says it has."""
    found = statistic.sensitivity(schema, neighbours)
    return found.l1, found.l2_squared


# Sentinels

SENTINEL_SCHEMA = schema_in("sentinel")
N_SENTINELS = 1237


def confidential_table() -> pd.DataFrame:
    """Records full of values that nobody else has."""
    rng, n = np.random.default_rng(5), N_SENTINELS
    frame = pd.DataFrame({"colour": rng.choice(["blue", "red"], n, p=[0.713, 0.287])})
    frame = frame.assign(
        wage=rng.uniform(0, 1_000_000, n), births=rng.integers(0, 1_000_000, n)
    )
    return frame.assign(person_id=[f"sentinel-{i}" for i in range(n)])


def sentinels(frame: pd.DataFrame, neighbours: str) -> set[str]:
    """Every number, key and count of the table as text; the number of records where it
    isn't public.
    """
    found = (
        {repr(float(x)) for x in frame["wage"]} | set(frame["person_id"]) | {"sentinel"}
    )
    found |= {f"{share:.6f}" for share in frame["colour"].value_counts(normalize=True)}
    found |= {
        repr(float(share)) for share in frame["colour"].value_counts(normalize=True)
    }
    if neighbours == "add-remove":
        found |= {str(N_SENTINELS), f"{N_SENTINELS:,}"}
    return found


def shown(words: set[str], text: str, *, synthetic: bool = False) -> list[str]:
    """Return the words that a text has.

    A number of records counts where it stands alone, for long numbers and digests have
    its digits by chance. Synthetic values have 16 digits, whose first or last eight can
    be a share's by chance: in their files a share that was rounded counts only where
    it stands alone, and a whole one anywhere.
    """
    # neither a part of a longer number nor the whole part of a broken one
    whole = r"(?<![\w.])%s(?!\w|\.\d*[1-9])"
    alone = {str(N_SENTINELS): whole, f"{N_SENTINELS:,}": whole}
    if synthetic:
        short = [word for word in words if len(word) <= 8]
        alone = dict.fromkeys(short, r"(?<![\d.])%s(?!\d)") | alone
    return [
        word
        for word in words
        if word in text and re.search(alone.get(word, "%s") % re.escape(word), text)
    ]


MOST_READ = 20_000  # Numbers of each variable of a tree that are searched


def text_of(path: Path) -> str:
    """All that a file holds."""
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return (
            table.to_pandas().to_csv()
            + str(table.schema.metadata)
            + str(pq.ParquetFile(path).metadata)
        )
    if path.suffix == ".nc":
        tree = xr.open_datatree(path)
        parts = [str(tree.attrs)]
        for node in tree.subtree:
            dataset = node.to_dataset(inherit=False)
            parts.append(str(dataset.attrs))
            for name, array in dataset.variables.items():
                values = " ".join(map(str, np.ravel(array.values)[:MOST_READ].tolist()))
                parts.append(f"{name} {array.attrs} {values}")
        return "\n".join(parts)
    return path.read_text(encoding="utf-8")


def skewed(n: int, seed: int) -> np.ndarray:
    """Three columns with heavy tails, each leaning on those before it."""
    rng = np.random.default_rng(seed)
    x1 = rng.exponential(10, n)
    x2 = 4 + 3 * x1 + rng.exponential(20, n)
    return np.column_stack([x1, x2, 3 + 2 * x1 + x2 + rng.exponential(30, n)])


def voters(n: int = 400, seed: int = 1) -> pd.DataFrame:
    """Records of the schema "evaluate"."""
    rng = np.random.default_rng(seed)
    age, college = rng.integers(18, 99, n), rng.random(n) < 0.4
    odds = -1.5 + 0.03 * age + 0.8 * college
    region = pd.Series(rng.choice(["north", "south", "west"], n), dtype=object).mask(
        rng.random(n) < 0.1
    )
    voted = np.where(rng.random(n) < 1 / (1 + np.exp(-odds)), "yes", "no")
    frame = pd.DataFrame(
        {"voted": voted, "age": age, "college": college, "region": region}
    )
    frame["visits"] = np.minimum(rng.poisson(np.exp(0.2 + 0.01 * (age - 50))), 9)
    return frame.assign(
        income=np.clip(np.exp(3 + 0.02 * age + rng.normal(0, 0.5, n)), 1, 1000)
    )
