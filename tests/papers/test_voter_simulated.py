"""The simulated voter table: the shares that the paper prints, the structural zero, sparseness, dependence."""

import numpy as np
import pytest

from pdips.data.table import Table
from pdips_papers.steps.voter_table import N_RECORDS, PERCENTAGES, simulated_voters, voter_schema


@pytest.fixture(scope="module")
def frame():
    return simulated_voters(rng=np.random.default_rng(0))


def test_shares_are_the_papers_and_nobody_votes_unregistered(frame):
    table = Table(frame, voter_schema())  # refuses the impossible combination
    assert list(frame) == list(voter_schema().columns)
    assert len(frame) == N_RECORDS
    for name, percentages in PERCENTAGES.items():
        shares = np.bincount(table.codes[name], minlength=len(percentages)) / N_RECORDS
        assert shares == pytest.approx(np.array(percentages) / sum(percentages), abs=1.5 / N_RECORDS)
    assert set(frame.loc[frame["voted"] == "yes", "registered"]) == {"yes"}


def test_is_as_sparse_as_the_paper_says(frame):
    """Paper 000, table 2: 21,329 of 1,290,240 cells hold somebody, 14,061 of them one."""
    sizes = frame.groupby(list(frame), observed=True).size()
    assert 17_000 < len(sizes) < 26_000
    assert 11_000 < (sizes == 1).sum() < 18_000


def test_columns_depend_on_each_other_and_seeds_repeat():
    a, b, c = (simulated_voters(4_000, rng=np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert a.equals(b)
    assert not a.equals(c)
    college = a["college"] == "yes"
    assert (a.loc[college, "registered"] == "yes").mean() > (a["registered"] == "yes").mean() + 0.1
