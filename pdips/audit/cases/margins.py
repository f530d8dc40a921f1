"""The pairs and events on which mechanisms of counts are audited: histograms, urns,
trees, margins, networks.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd

from pdips.audit.findings import law_of
from pdips.audit.neighbour_pairs import (
    Case,
    Pair,
    Written,
    either,
    file_pairs,
    small_pairs,
    table_of,
    toward_counts,
    where_allowed,
    with_event,
    worst_pairs,
)
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.fields.margins import Margins
from pdips.histogram.laplace import LaplaceSanitizer
from pdips.histogram.urns import Urn
from pdips.margins.steps import Steps
from pdips.margins.universal_histogram import UniversalHistogram
from pdips.mechanism import Mechanism
from pdips.privacy.loss import Neighbours

SIZE = {"lower": 0, "upper": 10, "bins": 2}
COLUMNS = {
    "colour": {"levels": ["blue", "green", "red"]},
    "size": SIZE,
    "ill": {"levels": [False, True]},
}
# 12 cells, with a numeric column: everything can be enumerated
TINY = Schema.model_validate({"columns": COLUMNS})

AUDITED_DELTA = "1e-6"  # At which Gaussian noise is audited where none was asked for

AGE = {"lower": 0, "upper": 90, "bins": 9}

ORDERED = Schema.model_validate(
    {"columns": {"age": AGE, "ill": {"levels": ["no", "yes"]}}}
)
"""A table with an ordered column of nine levels: at fan-out 3, two layers of intervals
and the cells.
"""

ALONE = Schema.model_validate({"columns": {"age": AGE}})
"""The ordered column by itself: two layers, so that few counts change and the counts
engine sees a small excess.
"""

WIDE = Schema.model_validate(
    {"columns": {name: {"levels": list(range(12))} for name in "abc"}}
)
"""Too many cells for one view: the margins of a release overlap."""


TWO = Schema.model_validate({"columns": {"ill": {"levels": [False, True]}}})
FOUR = Schema.model_validate({"columns": {name: {"levels": [0, 1]} for name in "abcd"}})
"""Two of its six pairs are counted again, or chosen: which two depends on noise."""

THREE = Schema.model_validate(
    {"columns": {"colour": {"levels": ["blue", "green", "red"]}}}
)

WEIGHT = {"lower": 99, "upper": 100, "resolution": 1}
WEIGHTED = Schema.model_validate(
    {"columns": COLUMNS | {"weight": WEIGHT}, "records": {"weight": "weight"}}
)
"""Its weights have two cells, and sums of weights are the same at each cap that noise
can choose.
"""

HOMES = Schema(
    columns={"rent": {"levels": ["low", "high"]}},
    members={
        "key": "id",
        "most": 2,
        "too_many": "truncate",
        "columns": {"sex": {"levels": ["f", "m"]}},
    },
)

BITS = Schema.model_validate({"columns": {name: {"levels": [0, 1]} for name in "abc"}})
TIED = Schema.model_validate(
    {"columns": {name: {"levels": [0, 1], "public": name == "a"} for name in "abc"}}
)
"""The network starts with a, which is public: which of the others comes next is a
choice.
"""


def toward(mechanism: Mechanism, pair: Pair) -> Pair:
    """Return the pair with the event that tells most of all noisy counts of one round,
    by the mechanism's law.
    """
    if getattr(mechanism, "split", "once") != "once":
        return pair
    [first] = law_of(mechanism, pair.first).outcomes
    [second] = law_of(mechanism, pair.second).outcomes
    return toward_counts(pair, first.statistics, second.statistics)


def filled(schema: Schema, records: Sequence[Any]) -> Table:
    """Return a table of records given cell by cell."""
    return Table(pd.DataFrame(records, columns=[*schema.columns]), schema)


def exactly(mechanism: Mechanism | None, pairs: Sequence[Pair]) -> Iterator[Case]:
    """Yield the pairs for the exact engine; none where the user asked for other
    settings.
    """
    if mechanism is not None:
        yield from (Case(mechanism, pair, "exact") for pair in pairs)


def by_both(mechanism: Mechanism | None, pairs: Sequence[Pair]) -> Iterator[Case]:
    """Yield the pairs for the exact engine and, with the worst event, for the counts
    engine.
    """
    for case in exactly(mechanism, pairs):
        yield from (case, Case(case.mechanism, toward(case.mechanism, case.pair)))


def sanitizer(build: Callable[..., LaplaceSanitizer]) -> Iterator[Case]:
    flat = build()
    pairs = worst_pairs(TINY, flat.neighbours)
    yield from by_both(flat, [*pairs, *file_pairs(flat.neighbours)])
    yield Case(flat, pairs[0])


def steps(build: Callable[..., Steps]) -> Iterator[Case]:
    """Yield the cases of STEPS: order given, elected, the cells' layer, the elections
    of a large table, views below.
    """
    asked = build()
    pairs = worst_pairs(TINY, asked.neighbours)
    yield from _above_views(build)
    given = where_allowed(build, layers=2, order=("ill", "colour"))
    shallow = where_allowed(build, layers=1, order=("ill",))
    if given is not None and shallow is not None:
        yield Case(shallow, toward(shallow, pairs[1]))
        yield from by_both(given, pairs)
    elections = where_allowed(build, layers=1, election_share="0.999")
    if elections is not None:
        yield from _elections(elections)
    elected = where_allowed(build, layers=2) or asked
    yield from exactly(elected, pairs)
    yield Case(elected, pairs[0])


def _above_views(build: Callable[..., Steps]) -> Iterator[Case]:
    """Yield the cases of views below trees that stop, or whose groups or layers are
    elected.
    """
    boundary = worst_pairs(TINY, build().neighbours)[1]
    trees: list[dict[str, Any]] = [
        {"order": ("ill",)},
        {"elect": "layer", "layers": 1},
        {"elect": "groups"},
    ]
    for settings in trees:
        tree = where_allowed(build, below="views", **settings)
        yield from exactly(tree, [boundary])
    stopping = where_allowed(build, order=("ill", "colour"), stop=1)
    if stopping is not None:
        yield Case(stopping, boundary)


def margins(build: Callable[..., Margins]) -> Iterator[Case]:
    """Yield the cases of views, and of pairs."""
    if where_allowed(build, measure="views") is not None:
        yield from _views(partial(build, measure="views"))
    if where_allowed(build, measure="pairs") is not None:
        yield from _pairs(partial(build, measure="pairs"))


def _views(build: Callable[..., Margins]) -> Iterator[Case]:
    """Yield the cases of views, which overlap."""
    plain = build()
    if plain.kind == "pure":
        yield from by_both(plain, worst_pairs(WIDE, plain.neighbours)[1:2])
    yield from gaussian(build)


def _pairs(build: Callable[..., Margins]) -> Iterator[Case]:
    """Yield the cases of all pairs: three columns, weights, households; exactly where
    losses are pure, and by runs.
    """
    plain = build()
    relation = plain.neighbours
    is_pure = plain.kind == "pure"
    of_table = worst_pairs(TINY, relation)
    if is_pure:
        yield from exactly(plain, [*of_table, *small_pairs(THREE, relation, 2)])
        yield Case(plain, toward(plain, worst_pairs(TWO, relation)[0]))
    for settings in ({"second_share": "1/2"}, {"chosen": 2}):
        some = where_allowed(build, **settings)
        if some is not None:
            yield Case(some, worst_pairs(FOUR, relation)[1])
    yield from gaussian(build)
    for mechanism, tried in (
        (where_allowed(build, also=tuple(COLUMNS)), of_table),
        (where_allowed(build, weighted=tuple(COLUMNS)), [_heavy(relation)]),
        (plain, homes(relation)),
    ):
        if is_pure:
            yield from exactly(mechanism, tried)
        elif mechanism is not None:
            yield Case(mechanism, tried[0])


def _heavy(neighbours: Neighbours) -> Pair:
    """Return the pair of which a record leaves all of its levels with the largest
    weight.
    """
    moved = worst_pairs(TINY, neighbours)[1]
    name = f"{moved.name}, and so does its weight"
    first = _weighing(moved.first, last=100.0)
    return Pair(name, first, _weighing(moved.second, last=99.0), neighbours)


def _weighing(table: Table, last: float) -> Table:
    """Return a table whose records weigh least, but for the last one."""
    weights = [*[99.0] * (table.n_records - 1), last]
    return Table(table.frame.assign(weight=weights), WEIGHTED)


def homes(neighbours: Neighbours) -> list[Pair]:
    """Return pairs of tables of households and members: one household gets other
    members, all of them, or leaves.
    """
    others = {"7": ("low", "f"), "2": ("low", "fm")}
    changes = {
        "household: a full one becomes an empty one, or leaves": (
            "3",
            ("high", "mm"),
            ("low", ""),
        ),
        "household: an empty one becomes one of too many members, or leaves": (
            "4",
            ("high", ""),
            ("low", "fff"),
        ),
    }
    pairs = []
    for name, (key, before, after) in changes.items():
        come = {"1": after} if neighbours == "replace-one" else {}
        first = {**others, key: before}
        second = {**come, **others}
        pair = Pair(
            name,
            _home_table(first),
            _home_table(second),
            neighbours,
            written=(_written(first), _written(second)),
        )
        pairs.append(pair)
    return pairs


type _Homes = dict[str, tuple[str, str]]
"""The rent of each household, and the sexes of its members, by key."""


def _home_table(homes: _Homes) -> Table:
    rents = [rent for rent, _ in homes.values()]
    # members are anywhere in their file
    people = []
    for j in range(3):
        for key in sorted(homes):
            people += [(key, sex) for sex in homes[key][1][j : j + 1]]
    return Table.of_households(
        pd.DataFrame({"id": [*homes], "rent": rents}),
        pd.DataFrame(people, columns=["id", "sex"]),
        HOMES,
    )


def _written(homes: _Homes) -> Written:
    return [(rent, *sexes) for rent, sexes in homes.values()]


def gaussian(build: Callable[..., Margins]) -> Iterator[Case]:
    """Yield pairs for Gaussian noise, of one column and of three, by many runs; none
    where other settings exclude it.
    """
    mechanism = build()
    if mechanism.kind == "pure":
        mechanism = where_allowed(build, delta=AUDITED_DELTA)
    if mechanism is not None:
        for schema in (TWO, TINY):
            yield Case(mechanism, worst_pairs(schema, mechanism.neighbours)[0])


def _elections(mechanism: Steps) -> Iterator[Case]:
    """Yield elections by themselves: all tiny tables, and the pair that finds observed
    levels out (c03).
    """
    neighbours = mechanism.neighbours
    small = Schema.model_validate(
        {"columns": {"a": {"levels": [0, 1]}, "b": {"levels": [0, 1, 2]}}}
    )
    yield from exactly(mechanism, list(small_pairs(small, neighbours, 3)))
    wide = Schema.model_validate(
        {"columns": {"a": {"levels": list(range(6))}, "b": {"levels": [0, 1]}}}
    )
    crowd = [(0, 0)] * 995 + [(level, 0) for level in (1, 2, 3, 4)]
    name = (
        "observed levels: the only record in its level moves to a level that nobody had"
    )
    of_wide = partial(table_of, schema=wide)
    pair = either(name, of_wide, crowd, (0, 1), (5, 0), neighbours)
    event_name = "the first column is elected"
    yield Case(mechanism, with_event(pair, lambda rows: rows[:, 0] == 0, event_name))
    yield Case(mechanism, pair, "exact")


def universal(build: Callable[..., UniversalHistogram]) -> Iterator[Case]:
    """Yield the cases of the universal histogram: columns in random order, and
    intervals of one column.
    """
    shuffled = where_allowed(build, layers=2)
    cut = where_allowed(build, attribute="age", fan_out=3)
    if cut is None:
        cut = where_allowed(build, attribute="age")
    relation = build().neighbours
    pairs = worst_pairs(TINY, relation)
    of_ages = worst_pairs(ALONE, relation)
    ordered = worst_pairs(ORDERED, relation)
    yield from exactly(shuffled, pairs)
    if shuffled is not None:
        yield Case(shuffled, pairs[1])
    yield from exactly(cut, [*of_ages, *ordered])
    if cut is not None:
        yield Case(cut, toward(cut, of_ages[1]))
        yield Case(cut, ordered[0])
    if shuffled is None and cut is None:
        yield Case(build(), pairs[1], "exact")


def sized_urn(build: Callable[..., Urn]) -> Iterator[Case]:
    """Yield the cases of an urn whose number of draws can be given: one draw, three,
    and as many as records.
    """
    one = build(n_records=1)
    three = build(n_records=3)
    yield Case(one, alone(one.neighbours))
    yield Case(one, alone(one.neighbours), "exact")
    yield from exactly(three, list(small_pairs(THREE, one.neighbours, 3)))
    if one.neighbours == "replace-one":
        yield from urn(build)


def urn(build: Callable[..., Urn]) -> Iterator[Case]:
    """Yield the cases of an urn with as many draws as records."""
    mechanism: Mechanism = build()
    pairs = worst_pairs(TINY, mechanism.neighbours)
    small = small_pairs(THREE, mechanism.neighbours, 3)
    yield Case(mechanism, alone(mechanism.neighbours))
    yield from exactly(mechanism, [*pairs, *small])
    yield Case(mechanism, pairs[0])


def alone(neighbours: Neighbours) -> Pair:
    """Return the pair of which one table has a record in a cell that is empty in the
    other, with the worst event.

    Under add-remove a crowd is in the other cell: the larger it is, the closer the loss
    comes to epsilon, and the rarer the event becomes.
    """
    name = "empty cell: a record alone in its cell moves or leaves"
    crowd = [(0,)] * 5 * (neighbours == "add-remove")
    of_two = partial(table_of, schema=TWO)
    pair = either(name, of_two, crowd, (1,), (0,), neighbours)
    event_name = "all synthetic records are in that cell"
    return with_event(pair, lambda rows: (rows == 1).all(axis=1), event_name)


def privbayes(build: Callable[..., Any]) -> Iterator[Case]:
    """Yield the cases of PrivBayes: one joint table of all columns, networks with
    tables, networks by themselves.
    """
    pairs = worst_pairs(TINY, build().neighbours)
    yield from by_both(where_allowed(build, degree=2), pairs)
    tables = where_allowed(build, degree=1, usefulness=0, network_share="0.001")
    for mechanism in (tables, build()):
        yield from exactly(mechanism, pairs)
        if mechanism is not None:
            yield Case(mechanism, pairs[0])
    choices = where_allowed(build, degree=1, usefulness=0, network_share="0.999")
    if choices is not None:
        yield from exactly(choices, list(small_pairs(BITS, choices.neighbours, 2)))
        # a pair that moves two scores by their sensitivity, in opposite directions: a
        # tells of b, or of c
        name = "turning: the odd record ties the first column to another one"
        of_tied = partial(table_of, schema=TIED)
        crowd = [(1, 1, 1)] * 60
        pair = either(name, of_tied, crowd, (0, 0, 1), (0, 1, 0), "replace-one")
        pair = with_event(pair, lambda rows: rows[:, 0] == 0, "b comes first")
        yield Case(choices, pair, "exact")
        yield Case(choices, pair, "counts")
