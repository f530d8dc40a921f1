"""The study of mechanisms that take a model: its fits, what it measures, its page; intervals that must not cover."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from small_models import UNIT, beta, beta_records
from tables import cases, refuses

from pdips import RefusedError, Table
from pdips.registry import MECHANISMS, published
from pdips_papers.harness.page import write
from pdips_papers.harness.run import measure
from pdips_papers.harness.study import Options
from pdips_papers.pseudo import model_mechanisms as study
from pdips_papers.pseudo.model_designs import DESIGNS

NORMAL = DESIGNS["normal"]
TABLES = 6


def test_intervals_of_scores_cover_and_those_of_plugging_in_do_not():
    # At epsilon = .05 noise outweighs sampling. Of 12 intervals of 95 %, taken as independent, fewer than 8 cover with
    # probability 2e-4; those of plugging in, a ninth as wide as the error needs, are the broken twin.
    rng, covered = np.random.default_rng(3), {"scores": 0, "plug-in": 0}
    for _ in range(TABLES):
        for name, answer in study.released(NORMAL, NORMAL.table(rng), "scores", "0.05", rng):
            covered[name] += int(((answer.lower <= NORMAL.true) & (NORMAL.true <= answer.upper)).sum())
    assert stats.binom(2 * TABLES, 0.95).cdf(7) < 3e-4
    assert covered["scores"] > 7 >= covered["plug-in"]


def test_a_fit_is_that_of_the_table():
    table = NORMAL.table(np.random.default_rng(1))
    y = table.frame["y"].to_numpy() / 8 + 0.5  # as the model has it, in spans of the bounds
    draws = study.normal_posterior(NORMAL, table)
    assert draws["location"].mean() == pytest.approx(y.mean(), abs=0.002 * y.std())
    assert draws["spread"].mean() == pytest.approx(y.std(), rel=0.003)
    assert draws["location"].std() == pytest.approx(y.std() / np.sqrt(len(y)), rel=0.1)
    assert draws["spread"].std() == pytest.approx(y.std() / np.sqrt(2 * len(y)), rel=0.1)


def test_errors_are_in_units_of_sampling():
    truth, one = NORMAL.true, np.array([0.004, 0.003])
    frame = NORMAL.table(np.random.default_rng(1))
    own = study.Answer(estimate=truth, lower=truth - 1.96 * one, upper=truth + 1.96 * one, synthetic=frame.frame)
    off = study.Answer(estimate=truth + 3 * one, lower=truth + one, upper=truth + 5 * one, synthetic=frame.frame)
    found = {row["column"]: row["value"] for row in study.measured(NORMAL, "normal, off", frame, off, own)}
    assert found["rmse"] == pytest.approx(9)
    assert found["coverage"] == found["max-ECDF"] == 0
    assert found["width"] == pytest.approx(4 / 3.92)


@pytest.mark.parametrize("name", list(DESIGNS))
def test_designs_have_parameters_of_their_models(name):
    design = DESIGNS[name]
    assert sorted(design.truth) == sorted(rv.name for rv in design.space.model.free_RVs)
    assert len(design.labels) == len(design.true) == design.space.n_parameters
    back = design.parameters(design.true)
    assert all(np.array_equal(back[key], value) for key, value in design.truth.items())


class Withholds:
    """A mechanism whose chains never agree."""

    def __init__(self, **settings):
        raise RefusedError("the chains don't agree; more advice")


class Normal(study.ModelMechanisms):
    """One design."""

    def tasks(self, options):
        return [task for task in super().tasks(options) if task.arguments["design"] == "normal"]


def test_a_refusal_is_a_row(monkeypatch, tmp_path):
    monkeypatch.setitem(MECHANISMS, "censored-posterior", Withholds)
    options = Options(replicates=1)
    measurements = measure(Normal(), options, tmp_path, workers=0)
    table = write(
        Normal(), options, measurements, tmp_path, seed=1, seconds=1.0, command="pdips study model-mechanisms"
    )
    seen = table.set_index(["row", "column"])["ours"]
    assert seen["normal, censored-posterior, ϵ = 1: refused: the chains don't agree", "releases"] == 0
    assert seen["normal, scores, ϵ = 1", "releases"] == seen["normal, no privacy", "releases"] == 1
    for mechanism in ("modips", "scores", "plug-in"):
        assert seen[f"normal, {mechanism}, ϵ = 1", "epsilon"] == 1
        assert 0.05 < seen[f"normal, {mechanism}, ϵ = 1", "rmse"] < 8
    page = (tmp_path / "study.html").read_text(encoding="utf-8")
    assert "refused: the chains don&#39;t agree" in page
    assert "refuses a design for which pdips has no model of statistics" in page


# The censored posterior as Hu et al. (2022) have it: what it claims, refuses and makes


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
