"""The pairs and events on which the Laplace sanitizer, STEPS and the universal histogram are audited."""

from collections.abc import Callable, Iterator

from pdips.audit.engines import law_of
from pdips.audit.neighbour_pairs import (
    Case,
    Pair,
    file_pairs,
    small_pairs,
    table_of,
    toward_counts,
    where_allowed,
    with_event,
    worst_pairs,
)
from pdips.data.schema import Schema
from pdips.histogram.laplace import LaplaceSanitizer
from pdips.margins.steps import Steps
from pdips.margins.universal_histogram import UniversalHistogram
from pdips.mechanism import Mechanism

TINY = Schema.model_validate(
    {
        "columns": {
            "colour": {"levels": ["blue", "green", "red"]},
            "size": {"lower": 0, "upper": 10, "bins": 2},
            "ill": {"levels": [False, True]},
        }
    }
)
"""A table of 12 cells with a numeric column, on which everything can be enumerated."""


AGE = {"lower": 0, "upper": 90, "bins": 9}

ORDERED = Schema.model_validate({"columns": {"age": AGE, "ill": {"levels": ["no", "yes"]}}})
"""A table with an ordered column of nine levels: at fan-out 3, two layers of intervals and the cells."""

ALONE = Schema.model_validate({"columns": {"age": AGE}})
"""The ordered column by itself: two layers, so that few counts change and the counts engine sees a small excess."""


def toward(mechanism: Mechanism, pair: Pair) -> Pair:
    """Return the pair with the event that tells most of all noisy counts of a mechanism, by its law."""
    (first,), (second,) = (law_of(mechanism, table).outcomes for table in (pair.first, pair.second))
    return toward_counts(pair, first.statistics, second.statistics)


def sanitizer(build: Callable[..., LaplaceSanitizer]) -> Iterator[Case]:
    """Yield the cases of the Laplace sanitizer."""
    flat = build()
    for pair in [*worst_pairs(TINY, flat.neighbours), *file_pairs(flat.neighbours)]:
        yield Case(flat, pair, "exact")
        yield Case(flat, toward(flat, pair) if flat.split == "once" else pair)
    yield Case(flat, worst_pairs(TINY, flat.neighbours)[0])


def steps(build: Callable[..., Steps]) -> Iterator[Case]:
    """Yield the cases of STEPS: margins, order given, elected, the cells' layer, the elections of a large table."""
    asked = build()
    elected = where_allowed(build, layers=2) or asked
    given = where_allowed(build, layers=2, order=("ill", "colour"))
    shallow = where_allowed(build, layers=1, order=("ill",))
    yield from _margins(build)
    if given is not None and shallow is not None:
        boundary = worst_pairs(TINY, given.neighbours)[1]
        yield Case(shallow, toward(shallow, boundary) if shallow.split == "once" else boundary)
        for pair in worst_pairs(TINY, given.neighbours):
            yield Case(given, pair, "exact")
            yield Case(given, toward(given, pair) if given.split == "once" else pair)
    elections = where_allowed(build, layers=1, election_share="0.999")
    if elections is not None:
        yield from _elections(elections)
    for pair in worst_pairs(TINY, elected.neighbours):
        yield Case(elected, pair, "exact")
    yield Case(elected, worst_pairs(TINY, elected.neighbours)[0])


WIDE = Schema.model_validate({"columns": {name: {"levels": list(range(12))} for name in "abc"}})
"""Too many cells for one view: the margins of a release overlap."""


def _margins(build: Callable[..., Steps]) -> Iterator[Case]:
    """Yield the cases of margins: overlapping ones, and below trees that stop or whose groups or layers are elected."""
    margins = where_allowed(build, below="margins")
    if margins is None:
        return
    if (margins.order, margins.layers, margins.elect, margins.utility, margins.election_share) == (None,) * 5:
        pair = worst_pairs(WIDE, margins.neighbours)[1]
        yield Case(margins, pair, "exact")
        yield Case(margins, toward(margins, pair) if margins.split == "once" else pair)
    for settings in ({"order": ("ill",)}, {"elect": "layer", "layers": 1}, {"elect": "groups"}):
        made = where_allowed(build, below="margins", **settings)
        if made is not None:
            yield Case(made, worst_pairs(TINY, made.neighbours)[1], "exact")
    stopping = where_allowed(build, order=("ill", "colour"), stop=1)
    if stopping is not None:
        yield Case(stopping, worst_pairs(TINY, stopping.neighbours)[1])


def _elections(mechanism: Steps) -> Iterator[Case]:
    """Yield elections by themselves: all tiny tables, and the pair that finds observed levels out (c03)."""
    neighbours = mechanism.neighbours
    small = Schema.model_validate({"columns": {"a": {"levels": [0, 1]}, "b": {"levels": [0, 1, 2]}}})
    for pair in small_pairs(small, neighbours, 3):
        yield Case(mechanism, pair, "exact")
    wide = Schema.model_validate({"columns": {"a": {"levels": list(range(6))}, "b": {"levels": [0, 1]}}})
    crowd = [(0, 0)] * 995 + [(level, 0) for level in (1, 2, 3, 4)]
    moved = [*crowd, (5, 0)] if neighbours == "replace-one" else crowd
    name = "observed levels: the only record in its level moves to a level that nobody had"
    pair = Pair(name, table_of([*crowd, (0, 1)], wide), table_of(moved, wide), neighbours)
    yield Case(mechanism, with_event(pair, lambda rows: rows[:, 0] == 0, "the first column is elected"))
    yield Case(mechanism, pair, "exact")


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
