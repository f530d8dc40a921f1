"""The pairs and events on which the universal histogram is audited."""

from collections.abc import Callable, Iterator

from pdips.audit.cases.margins import TINY, toward
from pdips.audit.neighbour_pairs import Case, where_allowed, worst_pairs
from pdips.data.schema import Schema
from pdips.margins.universal_histogram import UniversalHistogram

AGE = {"lower": 0, "upper": 90, "bins": 9}

ORDERED = Schema.model_validate({"columns": {"age": AGE, "ill": {"levels": ["no", "yes"]}}})
"""A table with an ordered column of nine levels: at fan-out 3, two layers of intervals and the cells."""

ALONE = Schema.model_validate({"columns": {"age": AGE}})
"""The ordered column by itself: two layers, so that few counts change and the counts engine sees a small excess."""


def universal(build: Callable[..., UniversalHistogram]) -> Iterator[Case]:
    """Yield the cases of the universal histogram: columns in random order, and intervals of one column."""
    shuffled = where_allowed(build, layers=2)
    if shuffled is not None:
        for pair in worst_pairs(TINY, shuffled.neighbours):
            yield Case(shuffled, pair, "exact")
        yield Case(shuffled, worst_pairs(TINY, shuffled.neighbours)[1])
    cut = where_allowed(build, attribute="age", fan_out=3) or where_allowed(build, attribute="age")
    if cut is not None:
        for schema in (ALONE, ORDERED):
            for pair in worst_pairs(schema, cut.neighbours):
                yield Case(cut, pair, "exact")
        boundary = worst_pairs(ALONE, cut.neighbours)[1]
        yield Case(cut, toward(cut, boundary) if cut.split == "once" else boundary)
        yield Case(cut, worst_pairs(ORDERED, cut.neighbours)[0])
    if shuffled is None and cut is None:
        yield Case(build(), worst_pairs(TINY, build().neighbours)[1], "exact")
