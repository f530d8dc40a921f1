"""Exact counts of pairs are the same by every way, and sets that are drawn in chunks
keep what others keep.
"""

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from tables import refuses

from pdips import Margins, Schema, Table, memory
from pdips.fields.pair_sets import FittedPairs
from pdips.margins import pair_tables
from pdips.margins.pair_tables import pair_counts
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits

SIZES = {
    "few levels": [2, 2, 3, 2, 2],
    "many levels": [2, 50, 1, 13, 300],
    "one block": [4],
}


def one_by_one(codes, counts, offsets):
    """Pairs counted as they are defined."""
    found = np.zeros((offsets[-1], offsets[-1]), dtype=np.int64)
    levels = codes + offsets[:-1]
    for i in range(codes.shape[1]):
        for j in range(i, codes.shape[1]):
            np.add.at(found, (levels[:, i], levels[:, j]), counts)
    return found


def records(sizes, n=5_000):
    rng = np.random.default_rng(7)
    codes = np.column_stack([rng.integers(0, size, n) for size in sizes])
    return codes.astype(np.int32), np.concatenate([[0], np.cumsum(sizes)])


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_pairs_are_counted_alike_by_every_way(sizes, monkeypatch):
    monkeypatch.setattr(pair_tables, "LARGE_TILE", 1_000)
    codes, offsets = records(sizes)
    ones = np.ones(len(codes), dtype=np.int64)
    wanted = one_by_one(codes, ones, offsets)
    ways = [pair_counts(codes, None, offsets), pair_counts(codes, ones, offsets)]
    for limit in (0, 1_000):  # by cells, and by products of matrices
        monkeypatch.setattr(pair_tables, "FEW_LEVELS", limit)
        ways.append(pair_counts(codes, None, offsets))
    for found in ways:
        np.testing.assert_array_equal(found, wanted)
    # the broken twin: one record is left out
    assert not np.array_equal(pair_counts(codes[1:], None, offsets), wanted)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_rows_that_stand_for_several_records_count_so_often(sizes):
    codes, offsets = records(sizes, 3_000)
    counts = np.random.default_rng(1).integers(0, 5, len(codes))
    found = pair_counts(codes, counts, offsets)
    np.testing.assert_array_equal(found, one_by_one(codes, counts, offsets))
    repeated = np.repeat(codes, counts, axis=0)
    np.testing.assert_array_equal(found, pair_counts(repeated, None, offsets))


def test_counts_of_all_layers_and_margins_follow_from_one_reading():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "a": rng.integers(0, 3, 500),
            "b": rng.integers(0, 4, 500),
            "c": rng.integers(0, 2, 500),
            "x": np.where(rng.random(500) < 0.1, np.nan, rng.uniform(0, 5e4, 500)),
        }
    )
    schema = Schema.model_validate(
        {
            "columns": {
                **{name: {"levels": [0, 1, 2, 3]} for name in "abc"},
                "x": {"lower": 0, "upper": 5e4, "missing": True},
            }
        }
    )
    table = Table(frame, schema)
    mechanism = of_pairs(epsilon=1, delta="1e-6", also=("a", "b", "c"))
    plan = mechanism.plan(schema)
    fine = mechanism._fine(schema).asking(plan.steps)
    (column,) = fine.columns
    exact = fine.cells(table)
    for layer in range(len(column.nodes)):
        interval = np.append(column.nodes[layer], -1)[table.binned("x", column.fine)]
        held = interval[interval >= 0]
        counts = np.bincount(held, minlength=column.n_intervals(layer))
        n_missing = [int((interval < 0).sum())] if layer == 0 else []
        wanted = [*counts.tolist(), *n_missing]
        assert fine._of_cells(0, layer, exact).tolist() == wanted
        assert column.counts(table, layer).tolist() == wanted
    design = plan.design
    levels = {"x": column.levels(table, np.array([0, 100, column.n_cells]))}
    every = design.every_count(table, levels)
    small = [margin for margin in design.margins if 1 <= len(margin) <= 2]
    wanted = design.tally(table, design.margins, levels)
    np.testing.assert_array_equal(design.counts_of(every), wanted)
    np.testing.assert_array_equal(
        design.small_counts(small, every), design.tally(table, small, levels)
    )


def fitted_pairs(n=2_000):
    rng = np.random.default_rng(5)
    first = rng.integers(0, 3, n)
    frame = pd.DataFrame(
        {
            "a": first,
            "b": np.where(rng.random(n) < 0.8, first, rng.integers(0, 3, n)),
            "c": rng.integers(0, 2, n),
        }
    )
    columns = {name: {"levels": [0, 1, 2]} for name in "abc"}
    table = Table(frame, Schema.model_validate({"columns": columns}))
    mechanism = of_pairs(epsilon=5, delta="1e-6", sets="fitted")
    plan = mechanism.plan(table.schema)
    curator = Drawing(plan, table, RandomBits(np.random.default_rng(1)))
    measured = mechanism.ask(plan, curator)
    return FittedPairs.of(measured, None, np.random.default_rng(2)), frame


def test_chunks_of_a_large_set_keep_counts_of_levels_and_pairs():
    fitted, frame = fitted_pairs()
    chunks = list(fitted.frames(2_500, np.random.default_rng(3), 1_000))
    assert [len(chunk) for chunk in chunks] == [1_000, 1_000, 500]
    shares = fitted.target.levels / fitted.measured.pairs.n
    for chunk in chunks:
        for block, name in enumerate("abc"):
            own = fitted.measured.pairs.levels_of(block)
            counts = np.bincount(chunk[name], minlength=3)
            # rounded: less than one record off
            assert (np.abs(counts - len(chunk) * shares[own]) < 1).all()
    made = pd.concat(chunks)
    # fixed seeds: 0.012 (2026-12-01); of independent columns it is 0.26
    pairs = [pd.crosstab(one["a"], one["b"], normalize=True) for one in (made, frame)]
    assert np.abs(pairs[0] - pairs[1]).to_numpy().sum() / 2 < 0.05
    # the broken twin: one chunk said to be three
    assert not chunks[0].equals(chunks[1])


def test_sets_that_cannot_fit_are_refused_before_the_charge(monkeypatch, ledger):
    _, frame = fitted_pairs()
    schema = Schema.model_validate(
        {"columns": {name: {"levels": [0, 1, 2]} for name in "abc"}}
    )
    mechanism = Margins(epsilon=1, delta="1e-6", measure="pairs", n_sets=2)
    table = Table(frame, schema)
    needed = 2_000 * 3 * (20 + 2 * 16)
    monkeypatch.setattr(memory, "available", lambda: needed - 1)
    said = refuses("GiB are available", mechanism.release, table, ledger=ledger)
    assert "0.0 GiB" in said
    refuses("doesn't exist", ledger.entries)  # nothing was written
    # the twin: with one byte more they are made
    monkeypatch.setattr(memory, "available", lambda: needed)
    mechanism.release(table, ledger=ledger)
    assert len(ledger.entries()) == 1
