"""The pairs and events on which PrivBayes is audited."""

from collections.abc import Callable, Iterator
from typing import Any

from pdips.audit.cases.margins import TINY, by_both, exactly
from pdips.audit.neighbour_pairs import Case, Pair, small_pairs, table_of, where_allowed, with_event, worst_pairs
from pdips.data.schema import Schema

BITS = Schema.model_validate({"columns": {name: {"levels": [0, 1]} for name in "abc"}})
TIED = Schema.model_validate(
    {"columns": {"a": {"levels": [0, 1], "public": True}, "b": {"levels": [0, 1]}, "c": {"levels": [0, 1]}}}
)
"""The network starts with a, which is public: which of the others comes next is a choice."""

CROWD = 60


def privbayes(build: Callable[..., Any]) -> Iterator[Case]:
    """Yield the cases of PrivBayes: one joint table of all columns, networks with tables, networks by themselves."""
    pairs = worst_pairs(TINY, build().neighbours)
    yield from by_both(where_allowed(build, degree=2), pairs)
    tables = where_allowed(build, degree=1, usefulness=0, network_share="0.001")
    for made in (tables, build()):
        yield from exactly(made, pairs)
        if made is not None:
            yield Case(made, pairs[0])
    for score in ("r", "mi"):
        choices = where_allowed(build, degree=1, usefulness=0, network_share="0.999", score=score)
        if choices is not None:
            yield from exactly(choices, list(small_pairs(BITS, choices.neighbours, 2)))
            yield from (Case(choices, _turning_pair(), engine) for engine in ("exact", "counts"))


def _turning_pair() -> Pair:
    """Return the pair that moves two scores by their sensitivity, in opposite directions: a tells of b, or of c."""
    crowd = [(1, 1, 1)] * CROWD
    first, second = (table_of([*crowd, odd], TIED) for odd in ((0, 0, 1), (0, 1, 0)))
    pair = Pair("turning: the odd record ties the first column to another one", first, second, "replace-one")
    return with_event(pair, lambda rows: rows[:, 0] == 0, "b comes first")
