"""The authors' chains with more steps."""

import numpy as np
import pytest

from pdips_papers.harness import stored
from pdips_papers.kng import as_run, chain_lengths
from pdips_papers.kng.as_run import N_STEPS
from pdips_papers.kng.heavy_rows import STARTED, Case, as_run_lines

NEAR = as_run._near
WALK = as_run._walk.py_func


@pytest.fixture(scope="module")
def case():
    return Case.draw(300, np.random.default_rng(1))


def lines(case, row, n_steps, seed=2):
    found = np.ones((300, 1))
    rng = np.random.default_rng(seed)
    return as_run_lines(row, case, "x1", found, 1.0, rng, n_steps)[0]


@pytest.mark.slow
@pytest.mark.parametrize("row", chain_lengths.ROWS)
def test_the_length_is_that_of_the_paper_unless_stated(case, row):
    rng = np.random.default_rng(2)
    usual = as_run_lines(row, case, "x1", np.ones((300, 1)), 1.0, rng)[0]
    np.testing.assert_array_equal(usual, lines(case, row, N_STEPS))
    assert not np.array_equal(usual, lines(case, row, 2 * N_STEPS))


@pytest.mark.slow
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


def test_each_kind_of_chain_is_scored_and_the_exact_law_too(monkeypatch, tmp_path):
    monkeypatch.setattr(chain_lengths, "N_RECORDS", 200)
    rows = ("KNG", STARTED)
    found = list(chain_lengths.scores(0, [10, 0], rows))
    cells = [(one["row"], one["column"]) for one in found]
    assert cells == [
        (row, column) for row in rows for column in ("10 steps", chain_lengths.EXACT)
    ]
    values = {cell: one["value"] for cell, one in zip(cells, found, strict=True)}
    # a start is no part of the law
    assert len({values[row, chain_lengths.EXACT] for row in rows}) == 1
    assert len({values[row, "10 steps"] for row in rows}) == 2
    stored.write_table(tmp_path / "t.csv", found, chain_lengths.PAPER)
    assert (tmp_path / "t.csv").read_text().startswith("row,column,ours")


@pytest.mark.parametrize("row", ["Stepwise - Varying", STARTED])
def test_a_chain_that_looks_at_near_records_only_is_the_same(case, row, monkeypatch):
    found = np.column_stack([np.ones(300), case.training["x1"]])

    def lines_of(reach):
        monkeypatch.setattr(as_run, "_walk", WALK)
        monkeypatch.setattr(as_run, "REACH", reach)
        rng = np.random.default_rng(3)
        return as_run_lines(row, case, "x2", found, 1.0, rng, 60)[0]

    everything = lines_of(1e12)
    np.testing.assert_allclose(lines_of(8.0), everything, rtol=1e-12)
    # the broken twin: sides that moved are forgotten
    monkeypatch.setattr(as_run, "_near", forgetful)
    assert not np.allclose(lines_of(8.0), everything, rtol=1e-12)


def forgetful(theta, reach, density):
    """Keep no record near."""
    near_x, near_y, far = NEAR(theta, reach, density)
    return near_x[:, :0], near_y[:0], far


def test_lines_that_keep_apart_at_corners_keep_apart_everywhere(case):
    points = np.column_stack([np.ones(300), case.training[["x1", "x2"]]]).T
    corners = as_run.corners(points)
    assert corners.shape[1] < 40
    slopes = np.random.default_rng(4).standard_normal((200, 3))
    assert (slopes @ corners).max(axis=1) == pytest.approx(
        (slopes @ points).max(axis=1)
    )
    # two columns, and points on a line
    assert as_run.corners(points[:2]).shape[1] == 2
    on_a_line = np.vstack([points[:2], 2 * points[1]])
    assert as_run.corners(on_a_line).shape[1] > 2
