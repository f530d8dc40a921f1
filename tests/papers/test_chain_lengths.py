"""The authors' chains with more steps."""

import numpy as np
import pytest

from pdips_papers.kng import chain_lengths
from pdips_papers.kng.as_run import N_STEPS
from pdips_papers.kng.heavy_rows import STARTED, Case, as_run_lines


@pytest.fixture(scope="module")
def case():
    return Case.draw(300, np.random.default_rng(1))


def lines(case, row, n_steps, seed=2):
    found = np.ones((300, 1))
    rng = np.random.default_rng(seed)
    return as_run_lines(row, case, "x1", found, 1.0, rng, n_steps)[0]


@pytest.mark.parametrize("row", chain_lengths.ROWS)
def test_the_length_is_that_of_the_paper_unless_stated(case, row):
    rng = np.random.default_rng(2)
    usual = as_run_lines(row, case, "x1", np.ones((300, 1)), 1.0, rng)[0]
    np.testing.assert_array_equal(usual, lines(case, row, N_STEPS))
    assert not np.array_equal(usual, lines(case, row, 2 * N_STEPS))


def test_longer_chains_leave_the_start(case):
    median = case.estimates["x1"][24, 0]
    gone = [
        np.mean(
            [
                np.abs(lines(case, STARTED, n_steps, seed) - median).mean()
                for seed in range(5)
            ]
        )
        for n_steps in (10, 1_000, 20_000)
    ]
    assert gone == sorted(gone)
    assert gone[0] < 0.5 * gone[2]


def test_the_table_has_a_row_for_each_kind_of_chain(monkeypatch):
    monkeypatch.setattr(chain_lengths, "N_RECORDS", 200)
    shown = chain_lengths.table(2, [10, 20], rows=("KNG", STARTED))
    head, *rows = shown.splitlines()
    assert head.split() == ["10", "steps", "20", "steps"]
    assert [row.count("±") for row in rows] == [2, 2]
    assert "±" not in chain_lengths.table(1, [10], rows=("KNG",))
