"""The studies of Hu et al. (2022): definitions by hand, losses compared, tables, pages,
what is refused.
"""

import html
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats
from tables import refuses, schema_in

from pdips import Schema, Table
from pdips.posterior.pseudo_posterior import PseudoPosterior, linear_weights
from pdips_papers.harness.study import Options, Task, schema_beside
from pdips_papers.pseudo import salary
from pdips_papers.pseudo.censored_beta import COUNTED, COUNTS, CensoredBeta, summaries
from pdips_papers.pseudo.salary import SALARY, SALARY_ROWS, Salary, confidential_column
from pdips_papers.pseudo.synthesizers import (
    BOUND,
    BOUNDS,
    COUNT,
    PublishedSynthesizers,
    censored_count,
    ecdf_distances,
    row_of,
    simulated_findings,
    sound_row,
)

N, DRAWS = 250, 150


def draw(seed=1, n=N):
    return np.random.default_rng(seed).beta(0.5, 3, n)


def published(seed=1):
    return PublishedSynthesizers(draw(), np.random.default_rng(seed), DRAWS)


# Definitions by hand


def test_a_record_is_censored_if_any_draw_leaves_the_window():
    weights, largest = (
        np.array([1.0, 0.5, 0.5, 0.0]),
        np.array([3.0, 4.0, 4.1, math.inf]),
    )
    assert censored_count(weights, largest, 2.0) == 2
    assert censored_count(np.ones(3), largest[:3], 2.0) == 3
    assert censored_count(weights, largest, 3.0) == 0


def test_distances_of_distribution_functions():
    largest, average = ecdf_distances(
        np.array([4.0, 1, 3, 2]), np.array([1.0, 1, 5, 1])
    )
    assert largest == 0.5
    assert average == pytest.approx((0.5**2 + 0.25**2 + 0 + 0.25**2) / 4)
    assert ecdf_distances(draw(), draw()) == (0, 0)
    # at the confidential records, not at the synthetic ones
    assert ecdf_distances(np.array([1.0, 1, 5, 1]), np.array([4.0, 1, 3, 2]))[
        1
    ] != pytest.approx(average)


def test_counts_and_bounds_are_of_the_censored_fit_and_weighted_e_of_the_unweighted_one():  # noqa: E501
    made = published()
    risks, _ = made.refit(np.ones(N))
    found = made.censored("Censor_uw", np.ones(N), "2").censored
    own, _ = published(2).refit(np.ones(N), 1.0)
    # by integration about 168, and about 157 by the draws of the uncensored fit, which
    # is the wrong definition
    assert found == pytest.approx((own > 1).sum(), abs=0.1 * N)
    assert censored_count(np.ones(N), risks, 1.0) < found - 3
    made = published()
    risks, _ = made.refit(np.ones(N))
    for scale in (1.0, 0.8):
        alpha = linear_weights(risks, scale=scale)
        weights = PseudoPosterior(
            epsilon=2, weights="weighted-e", scale=scale
        ).record_weights(risks)
        found = made.dropped(alpha, risks, "2", scale)
        assert found.row == row_of("Weighted-e", "2", scale)
        assert found.censored == (weights == 0).sum() - (alpha == 0).sum() > 0
    forms = {made.row: made for made in published().all(["5", "4"])}
    assert list(forms)[:2] == ["Unweighted", "Censor_uw, epsilon = 5"]
    assert "Censor_w, epsilon = 4, c1 = 0.8" in forms
    assert "Censor_w, epsilon = 5, c1 = 0.8" not in forms
    assert forms["Unweighted"].bound > 5 > forms["Weighted"].bound
    assert forms["Weighted, c1 = 0.8"].bound < forms["Weighted"].bound
    assert forms["Censor_uw, epsilon = 4"].bound == 2
    assert forms["Censor_w, epsilon = 4"].bound <= 2
    assert (
        forms["Censor_w, epsilon = 4"].censored
        < forms["Censor_uw, epsilon = 4"].censored
    )


def test_summaries_over_replicates():
    values = np.array([0.0, 1, 2, 7])
    counts = {
        column: value
        for _, column, value, _ in summaries("x, epsilon = 4", COUNT, values)
    }
    assert [counts[f"{COUNT}: {name}"] for name in COUNTED[:6]] == [
        0,
        0.75,
        1.5,
        2.5,
        3.25,
        7,
    ]
    assert counts[f"{COUNT}: sd"] == pytest.approx(np.std(values, ddof=1))
    bounds = {
        column: value
        for _, column, value, _ in summaries("x, epsilon = 4, c1 = 0.8", BOUND, values)
    }
    # one is above 4 / 2
    assert bounds == dict(
        zip(BOUNDS, (2.5, np.std(values, ddof=1), 0, 7, 0.25), strict=True)
    )
    assert all(np.isnan(error) for *_, error in summaries("x", "mean", np.array([1.0])))


# A tiny run


class Tiny(CensoredBeta):
    """Two replicates of few records."""

    def tasks(self, options):
        cut = {"n": N, "draws": DRAWS, "claimed": ["4"], "true": ["1"]}
        return [
            Task(key=f"replicate={number}", arguments=cut)
            for number in range(options.replicates)
        ]


@pytest.fixture(scope="module")
def tiny(studied):
    return studied(Tiny(), Options(replicates=2))


@pytest.mark.slow
def test_the_table_has_what_is_printed_and_the_page_is_drawn(tiny):
    measurements, table, page = tiny
    places = set(zip(table["row"], table["column"], strict=True))
    blocks = CensoredBeta().layout(table)
    for block in blocks:
        assert any(
            (row, column) in places for row in block.rows for column in block.columns
        ), block.title
    assert list(
        next(
            block for block in blocks if "Tables 1 and 3" in block.title
        ).columns.values()
    ) == list(COUNTED)
    printed = table.set_index(["row", "column"])["paper"]
    assert [
        printed["Censor_w, epsilon = 4", f"{COUNT}: {name}"] for name in COUNTED
    ] == list(COUNTS["Censor_w, epsilon = 4"])
    assert set(measurements["task"]) == {"replicate=0", "replicate=1"}
    assert sound_row("staged", "1") in set(table["row"])
    assert (
        "Why isn't known: the paper gives its weights up to proportionality"
    ) in html.unescape(page)
    assert "Lipschitz bounds (figures 2 and 10)" in page
    assert "true ϵ 8" in page  # Censor_uw at a claim of 4
    assert page.count("<svg") > 15
    assert "(figures 1 and 9)" in page
    for picture in CensoredBeta().pictures(measurements, table):
        assert picture.panels, picture.title


def verdict_of(table, words):
    (found,) = [
        finding for finding in simulated_findings(table) if words in finding.claim
    ]
    return found.verdict


def changed(table, row, column, value):
    place = (table["row"] == row) & (table["column"] == column)
    assert place.sum() == 1
    return table.assign(ours=table["ours"].mask(place, value))


@pytest.mark.slow
def test_verdicts_follow_the_figures(tiny):
    _, table, _ = tiny
    staged = sound_row("staged", "1")
    assert verdict_of(changed(table, staged, "max-ECDF", 0.089), "(Ours)") == "holds"
    assert (
        verdict_of(changed(table, staged, "max-ECDF", 0.091), "(Ours)")
        == "doesn't hold"
    )
    fewer = changed(table, "Weighted-e, epsilon = 4", f"{COUNT}: Mean", -1)
    assert verdict_of(fewer, "censors more records") == "holds"
    none = changed(fewer, "Censor_uw, epsilon = 4", f"{COUNT}: Mean", -2)
    assert verdict_of(none, "censors more records") == "holds in part"
    assert verdict_of(table, "differentially private") == "doesn't hold, by proof"


# Salary


def salaries(n=60, seed=1):
    rng = np.random.default_rng(seed)
    return Table(
        pd.DataFrame({"sex": rng.choice(["f", "m"], n), "pay": rng.uniform(5, 45, n)}),
        PAY,
    )


PAY = schema_in("study_004_pay")


def test_the_schema_lies_beside_the_table(tmp_path):
    path = tmp_path / "pay.parquet"
    salaries().frame.to_parquet(path)
    refuses(
        r"there is no "
        r"pay\.toml",
        lambda: Salary().tasks(Options(replicates=1, data=path)),
    )
    (tmp_path / "pay.toml").write_text(PAY.to_toml(), encoding="utf-8")
    assert confidential_column(schema_beside(path, "salary")) == "pay"
    first, second = Salary().tasks(Options(replicates=2, data=path))
    assert first.arguments == second.arguments
    assert first.key != second.key
    refuses(
        "takes no --epsilon",
        lambda: Salary().tasks(Options(replicates=1, data=path, epsilons=("2",))),
    )


@pytest.mark.parametrize("columns", [{"pay"}, {"sex", "pay", "other"}])
def test_one_confidential_number_and_public_columns(columns):
    known = {
        "sex": {"levels": ["f", "m"], "public": True},
        "pay": {"lower": 0, "upper": 50},
        "other": {"lower": 0, "upper": 1},
    }
    schema = Schema(columns={name: known[name] for name in sorted(columns)})
    refuses("one confidential column", confidential_column, schema)


def test_log_likelihoods_are_those_of_the_scaled_number(monkeypatch):
    table, rng = salaries(), np.random.default_rng(2)
    posterior = {
        "intercept": rng.normal(0, 0.1, (2, 3)),
        "coefficients": rng.normal(0, 0.1, (2, 3, 1)),
    }
    posterior["lambda"] = rng.uniform(3, 4, (2, 3))
    dims = ("chain", "draw", "effect")
    given = xr.Dataset(
        {name: (dims[: each.ndim], each) for name, each in posterior.items()}
    )
    given = xr.DataTree.from_dict({"posterior": given})
    monkeypatch.setattr(salary, "sample", lambda *_, **__: given)
    monkeypatch.setattr(
        salary, "converged", lambda _: SimpleNamespace(rhat={"lambda": 1.0})
    )
    largest, synthetic, _ = salary.PublishedRegressions(table, rng).refit(
        np.ones(60), 2.5
    )
    y, male = table.frame["pay"].to_numpy() / 50, (table.frame["sex"] == "m").to_numpy()
    mean = 1 / (
        1
        + np.exp(
            -(posterior["intercept"][..., None] + posterior["coefficients"] * male)
        )
    )
    precision = posterior["lambda"][..., None]
    by_hand = np.abs(
        stats.beta.logpdf(y, precision * mean, precision * (1 - mean))
    ).max(axis=(0, 1))
    assert largest == pytest.approx(by_hand)
    assert ((synthetic >= 0) & (synthetic <= 50)).all()
    # the broken twin: in natural units
    assert np.abs(largest - np.abs(by_hand - math.log(50))).max() > 1


class Recorded(salary.PublishedRegressions):
    """Writes down what is fitted."""

    def refit(self, weights, window):
        self.__dict__.setdefault("fits", []).append((weights, window))
        n = len(weights)
        return np.linspace(1, 6, n), np.full(n, 20.0), 1.001


def test_published_forms_differ_in_weights_and_window():
    made = Recorded(salaries(), np.random.default_rng(1))
    answers = {answer.column: answer for answer in made.all()}
    alpha = linear_weights(np.linspace(1, 6, 60))
    dropped = np.where(alpha * np.linspace(1, 6, 60) > 2.5, 0, alpha)
    wanted = [
        (np.ones(60), math.inf),
        (alpha, math.inf),
        (dropped, math.inf),
        (alpha, 2.5),
        (np.ones(60), 2.5),
    ]
    for (weights, window), (given, half) in zip(wanted, made.fits, strict=True):
        assert window == half
        np.testing.assert_allclose(weights, given)
    assert (
        answers["Censor_uw"].bound,
        answers["Censor_uw"].claimed,
        answers["Censor_uw"].true,
    ) == (2.5, 5, 10)
    assert answers["Weighted"].claimed == 2 * answers["Weighted"].bound
    assert answers["Weighted"].true is answers["Censor_w"].true is None


@pytest.mark.usefixtures("withheld")
def test_the_salary_table_is_the_papers(monkeypatch, studied, tmp_path):
    monkeypatch.setattr(salary, "PublishedRegressions", Recorded)
    path = tmp_path / "pay.parquet"
    salaries().frame.to_parquet(path)
    path.with_suffix(".toml").write_text(PAY.to_toml(), encoding="utf-8")
    _, table, page = studied(Salary(), Options(replicates=2, data=path))
    seen = table.set_index(["row", "column"])
    assert (
        seen["paper"]["max-ECDF", "PH"] == SALARY["PH"][SALARY_ROWS.index("max-ECDF")]
    )
    assert seen["ours"]["Sets released", "staged, ϵ = 5"] == 0
    assert ("Mean", "staged, ϵ = 5") not in seen.index
    assert seen["ours"]["Mean", "Weighted"] == 20
    assert seen["ours"]["True ϵ", "Censor_uw"] == 10
    assert [row for row in Salary().layout(table)[0].rows if row != "True ϵ"] == list(
        SALARY_ROWS
    )
    assert "1,601 salaries" in page
