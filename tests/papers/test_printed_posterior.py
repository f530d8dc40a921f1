"""The censored posterior as Hu et al. (2022) have it: what it claims, refuses and makes."""

import re

import numpy as np
import pandas as pd
import pytest
from small_models import UNIT, beta, beta_records
from tables import cases, refuses

from pdips import Table
from pdips.registry import published


@pytest.fixture(scope="module")
def printed():
    return published("censored-posterior")


@pytest.mark.parametrize(
    ("weights", "wrong"), [("none", "loses up to 2|true loss .* up to 2"), ("confidential", "no finite")]
)
def test_it_says_what_is_wrong_with_it(printed, weights, wrong):
    made = printed(epsilon=1, model=beta, weights=weights)
    loss = made.privacy_loss(UNIT)
    assert loss.kind == "none"
    assert loss.statement.startswith("NO GUARANTEE")
    assert "by a factor" not in loss.statement
    assert re.search(wrong, loss.statement)
    assert made.settings()["variant"] == "published"
    table = Table(pd.DataFrame({"y": beta_records(200)}), UNIT)
    release, record = made.release(table, rng=np.random.default_rng(0))
    assert len(release.sets[0]) == 200
    assert record.diagnostics["sampler"] == "grid"
    assert set(record.diagnostics["convergence"]) == {"probability at the grid's edge"}


@pytest.mark.parametrize(("settings", "says"), cases(__file__, "it_refuses_what_the_paper_does_not_do"))
def test_it_refuses_what_the_paper_does_not_do(printed, settings, says):
    refuses(says, printed, **{"epsilon": 1, "model": beta} | settings)
