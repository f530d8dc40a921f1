"""Audit cases of sanitized statistics: the worst pairs, and those that find Bowen and
Liu's (2020) forms out.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pdips.audit.cases.margins import exactly, filled, toward
from pdips.audit.neighbour_pairs import Case, Pair, either, sized
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.statistics.logistic import Logistic
from pdips.statistics.model import RecordRequest, StatisticModel
from pdips.statistics.modips import Modips
from pdips.statistics.noisy_model import Evidence
from pdips.statistics.plan import Statistic
from pdips.statistics.statistic import Counts, Products, Sums

Build = Callable[..., Modips]
Declared = Callable[[Schema], Mapping[str, Statistic]]

COIN = Schema.model_validate({"columns": {"x": {"levels": [0, 1]}}})
SHARE = {"lower": 0, "upper": 1}
MIXED = Schema.model_validate(
    {"columns": {"w": {"levels": ["a", "b", "c", "d"]}, "y": SHARE, "z": SHARE}}
)
CHOICE = Schema.model_validate(
    {"columns": {"w": {"levels": [0, 1]}, "x": {"lower": -1, "upper": 1}}}
)

MANY = 1_000  # Records of the pair on which the printed regression is found out
CROWD = 3


def modips(build: Build) -> Iterator[Case]:
    """Yield the cases of sanitized statistics: the worst pairs, and those of the
    printed forms.

    Sums and products are tried exactly only: the noise of all statistics is drawn by
    the same code.
    """
    for declared in (of_counts, of_a_coin, of_moments, of_choices):
        mechanism = _with(build, declared)
        pairs = _pairs(declared, mechanism.neighbours)
        first = pairs[0]
        if mechanism.kind == "pure":
            yield from exactly(mechanism, pairs)
        if declared is not of_moments:
            yield Case(
                mechanism,
                toward(mechanism, first) if mechanism.kind == "pure" else first,
            )


# Models of which only the statistics matter


def of_counts(schema: Schema) -> dict[str, Statistic]:
    """Return the counts of the first column."""
    return {"cells": Counts(by=("w",))}


def of_a_coin(schema: Schema) -> dict[str, Statistic]:
    return {"cells": Counts(by=("x",))}


def of_moments(schema: Schema) -> dict[str, Statistic]:
    """Return the statistics of the general location model: counts, sums by cell,
    products in all.
    """
    sums = {f"sums of {name}": Sums(of=name, by=("w",)) for name in "yz"}
    products = {f"{x}{y}": Products(of=(x, y)) for x, y in ("yy", "yz", "zz")}
    return {"cells": Counts(by=("w",)), **sums, **products}


def of_choices(schema: Schema) -> dict[str, Statistic]:
    return {
        "cells": Counts(by=("w",)),
        "regression": Logistic(outcome="w", predictors=("x",), kappa=1),
    }


def _with(build: Build, declared: Declared) -> Modips:
    model = StatisticModel(declared, no_model, no_records, name=declared.__name__)
    mechanism: Modips = sized(build, MANY, model=model)
    if mechanism.model is not model:
        raise InputError(
            "the audit of modips has statistics of its own; leave model out"
        )
    if isinstance(mechanism.budget, Mapping):
        raise InputError(
            "the audit of modips has statistics of its own; leave their shares out"
        )
    return mechanism


def no_model(given: Evidence, schema: Schema) -> pm.Model:
    with pm.Model() as model:
        pm.Normal("nothing", 0, 1)
    return model


def no_records(
    draw: Any, wanted: RecordRequest, schema: Schema, rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    columns = schema.columns.items()
    return {
        name: np.full(wanted.n, 0 if column.is_categorical else column.lower)
        for name, column in columns
    }


# Pairs


_mixed = partial(filled, MIXED)
_coins = partial(filled, COIN)
_choices = partial(filled, CHOICE)


def _moved(
    name: str,
    record: tuple[str, float, float],
    other: tuple[str, float, float],
    neighbours: Neighbours,
) -> Pair:
    rest = [("a", 0.0, 0.0)] * CROWD + [("b", 1.0, 1.0)] * CROWD
    return either(name, _mixed, rest, record, other, neighbours)


def _pairs(declared: Declared, neighbours: Neighbours) -> list[Pair]:
    """Return the pairs on which statistics are tried, the one that they lose most on
    first.
    """
    if declared is of_counts:
        name = "empty cell: a record alone in its cell moves or leaves"
        return [_moved(name, ("c", 0, 0), ("d", 0, 0), neighbours)]
    if declared is of_a_coin:
        name = "boundary: nobody or one person has the second level"
        return [either(name, _coins, [0] * (MANY - 1), 1, 0, neighbours)]
    if declared is of_choices:
        name = "regression: the only informative record says the opposite, or leaves"
        return [either(name, _choices, [(0, 0.0)] * 20, (1, 1.0), (0, 1.0), neighbours)]
    moves = {  # all but squares, squares, and what the printed forms are caught on
        "corner: a record leaves for the opposite corner of another cell": ("b", 0, 1),
        "middle: a record leaves a corner for the middle": ("b", 0.5, 0.5),
        "third: a record leaves a corner for a third on both sides": (
            "b",
            2 / 3,
            1 / 3,
        ),
    }
    pairs = [_moved(name, ("a", 1, 1), to, neighbours) for name, to in moves.items()]
    if neighbours == "replace-one":
        pairs += [emptied_cell(), larger_cell(), other_sign()]
    return pairs


def counted_pair() -> Pair:
    """Return the pair in which a count is none or one."""
    return either(
        "nobody or one person has the level",
        _coins,
        [0] * (MANY - 1),
        0,
        1,
        "replace-one",
    )


def emptied_cell() -> Pair:
    """Return the pair in which a cell has one record, or none."""
    record = ("a", 0.0, 0.0)
    other = ("b", 0.0, 0.0)
    return either(
        "a cell has one record or none",
        _mixed,
        [other] * 3,
        record,
        other,
        "replace-one",
    )


def larger_cell() -> Pair:
    """Return the pair in which a cell has two records, or three."""
    rest = [("a", 0.0, 0.0)] * 2 + [("b", 0.0, 0.0)] * 3
    return either(
        "a cell has two records or three",
        _mixed,
        rest,
        ("b", 1.0, 0.0),
        ("a", 1.0, 0.0),
        "replace-one",
    )


def other_sign() -> Pair:
    """Return the pair in which a record's product about the mean of its cell changes
    its sign with the cell.
    """
    name = "a record's product changes its sign with its cell"
    rest = [("a", 0.0, 1.0)] * 9 + [("b", 0.0, 0.0)] * 10
    return either(name, _mixed, rest, ("b", 1.0, 1.0), ("a", 1.0, 0.0), "replace-one")


def turned_choice() -> Pair:
    """Return the pair in which one record of a thousand is informative, and says the
    opposite.
    """
    name = "one informative record says the opposite"
    rest = [(0, 0.0)] * (MANY - 1)
    return either(name, _choices, rest, (1, 1.0), (0, 1.0), "replace-one")
