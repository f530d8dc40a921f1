"""What docs/proofs/modips.md claims of counts, sums, products and scatter: every neighbouring pair of tiny tables."""

from functools import cache, partial
from itertools import combinations_with_replacement, product

import numpy as np
import pandas as pd
import pytest

from pdips import Schema, Table
from pdips.statistics.statistic import Counts, Products, Scatter, Sums


def schema_of(n_cells, k=1, public=()):
    columns = {
        "g": {"levels": list(range(n_cells))},
        "x": {"lower": -1, "upper": 1, "integer": True},
        "y": {"lower": -1, "upper": 1, "integer": True},
    }
    columns = {name: column | {"public": name in public} for name, column in columns.items()}
    return Schema(columns=columns, records={"max_per_person": k})


def measured(statistic, schema, records):
    frame = pd.DataFrame(list(records), columns=list(schema.columns))
    return statistic.measure(Table(frame, schema)).ravel()


def changes(statistic, schema, neighbours, rest):
    """Yield what one person's records, public parts kept, can change beside ``rest``."""
    k = schema.records.max_per_person
    sizes = range(len(schema.columns["g"].levels)), (-1, 0, 1), (-1, 0, 1)
    public = [place for place, name in enumerate(schema.columns) if name in schema.public_columns]
    groups = list(combinations_with_replacement(product(*sizes), k))
    of = cache(partial(measured, statistic, schema))
    for mine in groups:
        if neighbours == "add-remove":
            yield of((*rest, *mine)) - of(rest)
            continue
        for other in groups:
            if all(sorted(r[p] for r in mine) == sorted(r[p] for r in other) for p in public):
                yield of((*rest, *mine)) - of((*rest, *other))


def largest(statistic, schema, neighbours, rests=(((0, 0, 0),),)):
    found = [change for rest in rests for change in changes(statistic, schema, neighbours, rest)]
    noised = statistic.n_noised(schema, neighbours) if isinstance(statistic, Counts) else None
    found = np.unique(np.array(found)[:, :noised], axis=0)
    return np.abs(found).sum(axis=1).max(), (found**2).sum(axis=1).max()


STATISTICS = {
    "counts": Counts(by=("g",)),
    "number": Counts(),
    "sums": Sums(of="x", by=("g",)),
    "sum": Sums(of="x"),
    "products": Products(of=("x", "y")),
    "products by cell": Products(of=("x", "y"), by=("g",)),
    "squares": Products(of=("x", "x")),
    "squares by cell": Products(of=("x", "x"), by=("g",)),
}


@pytest.mark.parametrize("n_cells", [2, 3])
@pytest.mark.parametrize("name", STATISTICS)
def test_lemmas_1_to_3_are_attained_and_never_exceeded(name, n_cells, neighbours):
    statistic, schema = STATISTICS[name], schema_of(n_cells)
    claimed = statistic.sensitivity(schema, neighbours).l1, statistic.sensitivity(schema, neighbours).l2_squared
    if name == "number" and neighbours == "replace-one":
        assert claimed == (0, 0)
        return
    assert largest(statistic, schema, neighbours) == claimed


@pytest.mark.parametrize("name", ["counts", "squares by cell"])
def test_a_person_with_two_records(name, neighbours):
    statistic, schema = STATISTICS[name], schema_of(2, k=2)
    claimed = statistic.sensitivity(schema, neighbours).l1, statistic.sensitivity(schema, neighbours).l2_squared
    assert largest(statistic, schema, neighbours) == claimed
    once = (
        statistic.sensitivity(schema_of(2), neighbours).l1,
        statistic.sensitivity(schema_of(2), neighbours).l2_squared,
    )
    assert claimed == (2 * once[0], 4 * once[1])


@pytest.mark.parametrize("name", ["sums", "products by cell", "squares by cell"])
def test_public_cells(name):
    statistic, schema = STATISTICS[name], schema_of(2, public=("g",))
    claimed = statistic.sensitivity(schema, "replace-one").l1, statistic.sensitivity(schema, "replace-one").l2_squared
    assert largest(statistic, schema, "replace-one") == claimed
    assert claimed[0] <= statistic.sensitivity(schema_of(2), "replace-one").l1


@pytest.mark.parametrize("name", ["sums", "products by cell"])
def test_public_values_in_confidential_cells(name):
    statistic, schema = STATISTICS[name], schema_of(2, public=("x",))
    assert largest(statistic, schema, "replace-one")[0] == statistic.sensitivity(schema, "replace-one").l1


def test_public_statistics_cost_nothing():
    schema = schema_of(2, public=("g", "x", "y"))
    for statistic in (*STATISTICS.values(), Scatter(of="x")):
        assert (
            statistic.sensitivity(schema, "replace-one").l1
            == statistic.sensitivity(schema, "replace-one").l2_squared
            == 0
        )


def test_lemma_4_is_not_exceeded_and_nearly_attained(neighbours):
    schema, statistic = schema_of(1), Scatter(of="x")
    rests = [tuple((0, value, 0) for value in (0, *[end] * n)) for n in (1, 3, 8) for end in (-1, 1)]
    rests += [tuple((0, end, 0) for _ in range(n)) for n in (1, 5, 40) for end in (-1, 1)]
    found, _ = largest(statistic, schema, neighbours, rests)
    claimed = statistic.sensitivity(schema, neighbours).l1
    assert 0.9 * claimed < found <= claimed
    assert claimed == 4 * Products(of=("x", "x")).sensitivity(schema, neighbours).l1
