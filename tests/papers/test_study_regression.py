"""The regression study: models, least squares by cell, STEPS by groups, a tiny run."""

import math
import re
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from small_models import UNIT, beta, beta_records
from tables import cases, refuses

from pdips import Table
from pdips.margins.steps import Steps
from pdips.registry import published
from pdips_papers import find
from pdips_papers.harness.study import Options
from pdips_papers.pseudo import model_mechanisms as study
from pdips_papers.pseudo.model_designs import DESIGNS
from pdips_papers.steps.linear_models import (
    N_CELLS,
    RIDGE,
    Model,
    cell_of,
    draw,
    fit,
    levels_of,
    model,
)
from pdips_papers.steps.regression import (
    FORMS,
    GROUPS,
    SUMMARIES,
    Place,
    StepsRegression,
    release,
    summary,
)


def test_models_are_the_papers():
    main, saturated = model(1), model(2)
    assert main.design.shape == (N_CELLS, 11)
    assert main.names[:4] == ("intercept", "x1=2", "x2=2", "x2=3")
    levels = levels_of(np.arange(N_CELLS))
    top = {"x1": 2, "x2": 3, "x3": 4, "x4": 5}
    (cell,) = np.flatnonzero(
        np.all([levels[name] == level for name, level in top.items()], axis=0)
    )
    assert main.means[cell] == pytest.approx(0 + 0.5 - 0.8 + 0.5 + 0.5)
    assert saturated.beta.shape == (N_CELLS,)
    assert np.array_equal(saturated.means, saturated.beta)
    assert stats.kstest(saturated.beta, "norm").pvalue > 0.01
    assert model(2).beta is saturated.beta  # the same in all repeats


def test_least_squares_and_ridge_by_cell_are_those_of_records():
    what = model(1)
    frame = draw(what, 700, np.random.default_rng(3)).frame
    reference = sm.OLS(frame["y"].to_numpy(), what.design[cell_of(frame)]).fit()
    estimate, variance = fit(what, frame)
    np.testing.assert_allclose(estimate, reference.params, atol=1e-9)
    np.testing.assert_allclose(variance, reference.bse**2, rtol=1e-9)
    what = model(2)
    frame = draw(what, 900, np.random.default_rng(3)).frame
    x, y = what.design[cell_of(frame)], frame["y"].to_numpy()
    inverse = np.linalg.inv(x.T @ x + RIDGE * np.eye(N_CELLS))
    estimate, variance = fit(what, frame)
    np.testing.assert_allclose(estimate, inverse @ x.T @ y, atol=1e-9)
    residual = y - x @ estimate
    spread = residual @ residual / (len(y) - np.trace(x @ inverse @ x.T))
    np.testing.assert_allclose(
        variance, spread * np.diag(inverse @ x.T @ x @ inverse), rtol=1e-9
    )


def test_intervals_cover():
    what, rng, n_fits = model(1), np.random.default_rng(6), 200
    fits = [fit(what, draw(what, 400, rng).frame) for _ in range(n_fits)]
    off = np.array(
        [np.abs(one - what.beta) / np.sqrt(variance) for one, variance in fits]
    )
    # Intervals of one fit may be as dependent as can be: the share that covers has at
    # most the variance of n_fits independent ones. 6 standard deviations: error below
    # 1e-8.
    margin = 6 * math.sqrt(0.95 * 0.05 / n_fits)
    assert abs(np.mean(off < 1.96) - 0.95) < margin
    # the broken twin: intervals that are too short
    assert abs(np.mean(off < 1.96 * 0.6) - 0.95) > margin


def test_steps_by_groups_has_the_papers_noise():
    # Published: nine tenths of epsilon, four sets, two layers, sensitivity 1. Sound:
    # sensitivity 2, all of epsilon.
    schema, epsilon = model(1).schema, Fraction(2)
    common = {"n_sets": 4, "order": GROUPS}
    printed = published("steps")(
        epsilon=Fraction(9, 10) * epsilon, **common, **FORMS["published"]
    )
    scales = [step.scale for step in printed.plan(schema).steps]
    assert scales == [4 * 2 / (Fraction(9, 10) * epsilon)] * 2
    sound = Steps(epsilon=epsilon, **common, **FORMS["sound"])
    assert [step.scale for step in sound.plan(schema).steps] == [
        2 * 4 * 2 / epsilon
    ] * 2
    assert "1.8 epsilon" in find("steps-regression").text()
    assert 4 * sum(2 / scale for scale in scales) == Fraction(18, 10) * epsilon


@pytest.mark.parametrize("form", list(FORMS))
def test_privbayes_gives_four_sets_of_the_schema(form):
    what = model(1)
    sets = release(
        draw(what, 300, np.random.default_rng(8)),
        "PrivBayes",
        form,
        "1",
        np.random.default_rng(9),
    )
    assert len(sets) == 4
    for frame in sets:
        assert set(frame.columns) == set(what.schema.columns)
        assert len(frame) == 300
        assert np.isfinite(fit(what, frame)[0]).all()


@pytest.mark.slow
def test_tiny_run(studied):
    study = StepsRegression(methods=("STEPS", "UH modified"), samples=(300,))
    _, table, page = studied(study, Options(replicates=2, epsilons=("2", "50")))
    values = table.set_index(["row", "column"])["ours"]
    for number in (1, 2):
        rows = [
            Place(number, 300, method, form, "2")
            for method in study.methods
            for form in FORMS
        ]
        for row in (
            *rows,
            Place(number, 300, "the table itself"),
            Place(number, 300, "bins alone"),
        ):
            assert 0 <= values[str(row), SUMMARIES["coverage"]] <= 1
            assert values[str(row), SUMMARIES["rmse"]] > 0
            assert values[str(row), SUMMARIES["prediction"]] > 0.3
    near, far = (
        values[str(Place(1, 300, "STEPS", "sound", epsilon)), SUMMARIES["rmse"]]
        for epsilon in ("50", "2")
    )
    assert near < far
    assert "What the paper says, and what we find" in page
    assert page.count('<svg class="picture"') == 2 * (3 * 2 + 3)


def test_summary_by_hand():
    what = Model(np.ones((N_CELLS, 1)), np.array([1.0]), ("intercept",), 0.0)
    found = pd.DataFrame(
        {"estimates": [[1.5], [0.9]], "covered": [[1], [0]], "value": [1.0, 2.0]}
    )
    figures = summary(found, what)
    assert figures[SUMMARIES["bias"]][0] == pytest.approx(0.2)
    assert figures[SUMMARIES["rmse"]][0] == pytest.approx(math.sqrt((0.25 + 0.01) / 2))
    assert figures[SUMMARIES["coverage"]] == (0.5, pytest.approx(0.5))
    assert figures[SUMMARIES["prediction"]] == (1.5, pytest.approx(0.5))


# The study of mechanisms that take a model: its fits, what it measures, its page;
# intervals that must not cover.
NORMAL = DESIGNS["normal"]
TABLES = 6


@pytest.mark.slow
def test_intervals_of_scores_cover_and_those_of_plugging_in_do_not():
    # At epsilon = .05 noise outweighs sampling. Of 12 intervals of 95 %, taken as
    # independent, fewer than 8 cover with probability 2e-4; those of plugging in, a
    # ninth as wide as the error needs, are the broken twin.
    rng, covered = np.random.default_rng(3), {"scores": 0, "plug-in": 0}
    for _ in range(TABLES):
        for name, answer in study.released(
            NORMAL, NORMAL.table(rng), "scores", "0.05", rng
        ):
            covered[name] += int(
                ((answer.lower <= NORMAL.true) & (NORMAL.true <= answer.upper)).sum()
            )
    assert stats.binom(2 * TABLES, 0.95).cdf(7) < 3e-4
    assert covered["scores"] > 7 >= covered["plug-in"]


def test_a_fit_is_that_of_the_table():
    table = NORMAL.table(np.random.default_rng(1))
    # as the model has it, in spans of the bounds
    y = table.frame["y"].to_numpy() / 8 + 0.5
    draws = study.normal_posterior(NORMAL, table)
    assert draws["location"].mean() == pytest.approx(y.mean(), abs=0.002 * y.std())
    assert draws["spread"].mean() == pytest.approx(y.std(), rel=0.003)
    assert draws["location"].std() == pytest.approx(y.std() / np.sqrt(len(y)), rel=0.1)
    assert draws["spread"].std() == pytest.approx(
        y.std() / np.sqrt(2 * len(y)), rel=0.1
    )


def test_errors_are_in_units_of_sampling():
    truth, one = NORMAL.true, np.array([0.004, 0.003])
    frame = NORMAL.table(np.random.default_rng(1))
    own = study.Answer(
        estimate=truth,
        lower=truth - 1.96 * one,
        upper=truth + 1.96 * one,
        synthetic=frame.frame,
    )
    off = study.Answer(
        estimate=truth + 3 * one,
        lower=truth + one,
        upper=truth + 5 * one,
        synthetic=frame.frame,
    )
    found = {
        row["column"]: row["value"]
        for row in study.measured(NORMAL, "normal, off", frame, off, own)
    }
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


class Normal(study.ModelMechanisms):
    """One design."""

    def tasks(self, options):
        return [
            task
            for task in super().tasks(options)
            if task.arguments["design"] == "normal"
        ]


@pytest.mark.slow
@pytest.mark.usefixtures("withheld")
def test_a_refusal_is_a_row(studied):
    _, table, page = studied(Normal(), Options(replicates=1))
    seen = table.set_index(["row", "column"])["ours"]
    assert (
        seen[
            "normal, censored-posterior, ϵ = 1: refused: the chains don't agree",
            "releases",
        ]
        == 0
    )
    assert (
        seen["normal, scores, ϵ = 1", "releases"]
        == seen["normal, no privacy", "releases"]
        == 1
    )
    for mechanism in ("modips", "scores", "plug-in"):
        assert seen[f"normal, {mechanism}, ϵ = 1", "epsilon"] == 1
        assert 0.05 < seen[f"normal, {mechanism}, ϵ = 1", "rmse"] < 8
    assert "refused: the chains don&#39;t agree" in page
    assert "refuses a design for which pdips has no model of statistics" in page


# The censored posterior as Hu et al. (2022) have it: what it claims, refuses and makes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "wrong"),
    [("none", "loses up to 2|true loss .* up to 2"), ("confidential", "no finite")],
)
def test_it_says_what_is_wrong_with_it(weights, wrong):
    made = published("censored-posterior")(epsilon=1, model=beta, weights=weights)
    loss = made.privacy_loss(UNIT)
    assert loss.kind == "none"
    assert loss.statement.startswith("NO GUARANTEE")
    assert "by a factor" not in loss.statement
    assert re.search(wrong, loss.statement)
    assert made.settings()["variant"] == "published"
    release, record = made.release(
        Table(pd.DataFrame({"y": beta_records(200)}), UNIT),
        rng=np.random.default_rng(0),
    )
    assert len(release.sets[0]) == 200
    assert record.diagnostics["sampler"] == "grid"
    assert set(record.diagnostics["convergence"]) == {"probability at the grid's edge"}


@pytest.mark.parametrize(
    ("settings", "says"), cases(__file__, "it_refuses_what_the_paper_does_not_do")
)
def test_it_refuses_what_the_paper_does_not_do(settings, says):
    refuses(
        says,
        published("censored-posterior"),
        **{"epsilon": 1, "model": beta} | settings,
    )
