"""Job flows against rates worked out by hand."""

import numpy as np
import pandas as pd
import pytest
from tables import refuses

from pdips_papers.kng.job_flows import job_flows

YEARS = {1977: "emp_1977", 1976: "emp_1976", 1978: "emp_1978"}


def firms() -> pd.DataFrame:
    """A firm that grows and shrinks, one that is born in 1977, one that is gone in 1978, one that comes last."""
    return pd.DataFrame(
        {"emp_1976": [10, np.nan, 30, np.nan], "emp_1977": [16, 4, 20, np.nan], "emp_1978": [12, 4, np.nan, 8]}
    )


def test_rates_by_hand():
    found = job_flows(firms(), YEARS)
    assert list(found.index) == [1976, 1977, 1978]
    assert list(found["employment"]) == [40, 40, 24]
    assert found.loc[1976, ["creation", "destruction", "net"]].isna().all()
    # 1977: Z = (40 + 40) / 2 = 40; created 6 + 4 (a birth), destroyed 10.
    assert found.loc[1977, ["creation", "destruction", "net"]].tolist() == pytest.approx([10 / 40, 10 / 40, 0])
    # 1978: Z = (40 + 24) / 2 = 32; created 8 (a birth), destroyed 4 and 20 (an exit).
    assert found.loc[1978, ["creation", "destruction", "net"]].tolist() == pytest.approx([8 / 32, 24 / 32, -16 / 32])


def test_a_year_without_anybody_has_no_rates():
    frame = pd.DataFrame({"a": [np.nan, np.nan], "b": [np.nan, np.nan], "c": [3.0, np.nan]})
    found = job_flows(frame, {1: "a", 2: "b", 3: "c"})
    assert np.isnan(found.loc[2, "creation"])
    assert found.loc[3, "creation"] == 2  # all jobs are new: 3 / (3 / 2)


@pytest.mark.parametrize(
    ("frame", "years", "message"),
    [
        (firms(), {1976: "emp_1976"}, "at least two years"),
        (firms(), {1976: "emp_1976", 1979: "emp_1979"}, "'emp_1979' must be a numeric column"),
        (firms().astype(str), YEARS, "must be a numeric column"),
    ],
)
def test_bad_input_names_the_rule(frame, years, message):
    refuses(message, job_flows, frame, years)
