"""The pairs and events on which urns are audited."""

from collections.abc import Callable, Iterator

from pdips.audit.cases.margins import TINY, exactly
from pdips.audit.neighbour_pairs import Case, Pair, small_pairs, table_of, with_event, worst_pairs
from pdips.data.schema import Schema
from pdips.histogram.urns import Urn
from pdips.mechanism import Mechanism
from pdips.privacy.loss import Neighbours

TWO = Schema.model_validate({"columns": {"ill": {"levels": [False, True]}}})
THREE = Schema.model_validate({"columns": {"colour": {"levels": ["blue", "green", "red"]}}})
CROWD = 5


def sized_urn(build: Callable[..., Urn]) -> Iterator[Case]:
    """Yield the cases of an urn whose number of draws can be given: one draw, three, and as many as records."""
    one, three = build(n_records=1), build(n_records=3)
    yield Case(one, alone(one.neighbours))
    yield Case(one, alone(one.neighbours), "exact")
    yield from exactly(three, list(small_pairs(THREE, one.neighbours, 3)))
    if one.neighbours == "replace-one":
        yield from urn(build)


def urn(build: Callable[..., Urn]) -> Iterator[Case]:
    """Yield the cases of an urn with as many draws as records."""
    mechanism: Mechanism = build()
    pairs = worst_pairs(TINY, mechanism.neighbours)
    yield Case(mechanism, alone(mechanism.neighbours))
    yield from exactly(mechanism, [*pairs, *small_pairs(THREE, mechanism.neighbours, 3)])
    yield Case(mechanism, pairs[0])


def alone(neighbours: Neighbours) -> Pair:
    """Return the pair of which one table has a record in a cell that is empty in the other, with the worst event.

    Under add-remove a crowd is in the other cell: the larger it is, the closer the loss comes to epsilon, and the rarer
    the event becomes.
    """
    crowd = [(0,)] * CROWD
    first, second = ([*crowd, (1,)], crowd) if neighbours == "add-remove" else ([(1,)], [(0,)])
    name = "empty cell: a record alone in its cell moves or leaves"
    pair = Pair(name, table_of(first, TWO), table_of(second, TWO), neighbours)
    return with_event(pair, lambda rows: (rows == 1).all(axis=1), "all synthetic records are in that cell")
