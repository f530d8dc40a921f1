"""The study of paper 002: its regressions, population, prices and measures, a tiny run, and what is said of it."""

from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog

from pdips import InputError
from pdips.quantile.kng import KNG
from pdips.quantile.quantile_plan import QuantilePlan
from pdips_papers import find
from pdips_papers.harness.page import write
from pdips_papers.harness.run import measure
from pdips_papers.harness.study import COLUMNS, Options
from pdips_papers.kng.as_printed import true_epsilon
from pdips_papers.kng.heavy_rows import (
    BY_COLUMNS,
    CENTRED,
    CHANCES,
    FORMS,
    FRESH,
    MEASURES,
    MIDDLES,
    NON_PRIVATE,
    PLACES,
    PMSE,
    PRINTED,
    RECOMMENDED,
    SCHEMES,
    TARGETS,
    TAUS,
    Case,
    distributions,
    draw_population,
    measures,
    non_private,
    place_name,
    published_row,
    quantile_lines,
    sound_row,
    spent,
)
from pdips_papers.kng.heavy_tailed import SECONDS, TRAINING, TRUE, HeavyTailed, better, error_of, findings_of

N = 120
ROWS = (FRESH, NON_PRIVATE, published_row("Sandwich - Fixed"), RECOMMENDED)


# Quantile regression


def check_loss(x, y, line, tau):
    residual = y - np.column_stack([np.ones(len(y)), x]) @ line
    return float((residual * (tau - (residual < 0))).sum())


def least_loss(x, y, tau):
    """By a linear programme: residuals split into their positive and negative parts."""
    design, n = np.column_stack([np.ones(len(y)), x]), len(y)
    costs = np.concatenate([np.zeros(design.shape[1]), np.full(n, tau), np.full(n, 1 - tau)])
    free = [(None, None)] * design.shape[1] + [(0, None)] * (2 * n)
    return linprog(costs, A_eq=np.column_stack([design, np.eye(n), -np.eye(n)]), b_eq=y, bounds=free).fun


@pytest.mark.parametrize("p", [0, 1, 2])
@pytest.mark.parametrize("ties", [False, True])
def test_lines_have_the_least_loss(p, ties):
    rng = np.random.default_rng(1)
    x, y = rng.exponential(1, (80, p)), rng.exponential(3, 80)
    y += x.sum(axis=1)
    if ties:
        x, y = np.round(x), np.round(y)
    taus = (0.01, 0.3, 0.5, 0.53, 0.99)
    for tau, line in zip(taus, quantile_lines(x, y, taus), strict=True):
        assert check_loss(x, y, line, tau) == pytest.approx(least_loss(x, y, tau), abs=1e-7)


def test_lines_split_the_records():
    frame = draw_population(500, np.random.default_rng(2))
    x, y = frame[["x1", "x2"]].to_numpy(), frame["x3"].to_numpy()
    for tau, line in zip(TAUS, quantile_lines(x, y, TAUS), strict=True):
        above = y - np.column_stack([np.ones(500), x]) @ line
        assert (above < -1e-8).sum() <= tau * 500 <= (above <= 1e-8).sum()


# Population, quantiles, prices


def test_the_population_is_the_papers():
    frame = draw_population(20_000, np.random.default_rng(3))
    noise = [frame["x1"], frame["x2"] - 4 - 3 * frame["x1"], frame["x3"] - 3 - 2 * frame["x1"] - frame["x2"]]
    for each in noise:  # mean 10, standard error 10 / sqrt(20,000) = 0.07: wrong in 1 of 10^6 seeds
        assert each.min() > -1e-9
        assert abs(each.mean() - 10) < 0.35 < abs(each.mean() * 1.1 - 10)  # the broken twin: a rate of 1 / 11
        assert each.std() == pytest.approx(10, rel=0.08)


def test_quantiles_are_drawn_as_by_the_authors():
    assert pytest.approx([0.01, *[0.02] * 23, 0.03, 0.03, *[0.02] * 22, 0.03]) == CHANCES
    assert MIDDLES[[0, 1, 24, 48]] == pytest.approx([0.02, 0.02, 0.03, 0.02])
    assert MIDDLES.sum() == pytest.approx(1)


def test_values_without_privacy_are_those_of_quantiles():
    case = Case.draw(200, np.random.default_rng(4))
    made = non_private(CHANCES)(case, "1", np.random.default_rng(5))
    assert list(made) == ["x1", "x2", "x3"]
    assert set(made["x1"]) <= set(case.training["x1"])
    assert made["x1"].nunique() <= len(TAUS)
    upwards = [non_private(chances)(case, "1", np.random.default_rng(5))["x1"].mean() for chances in (CHANCES, MIDDLES)]
    assert upwards[0] > upwards[1]


@pytest.mark.parametrize("caps", [(), (46,), (46, 106)])
@pytest.mark.parametrize("tau", [Fraction(1, 100), Fraction(1, 2), Fraction(99, 100)])
def test_overspending_by_brute_force(caps, tau):
    corners = [np.array([1.0, *corner]) for corner in product(*[(0, cap) for cap in caps])]
    parts = [side * corner for corner in corners for side in (1 - float(tau), -float(tau))]
    largest = max(np.abs(one - other).max() for one in parts for other in parts)
    bound = max(np.abs(corner).max() for corner in corners)
    one_line = QuantilePlan(taus=(tau,), scheme="plain", slopes="varying")
    assert true_epsilon(one_line, len(caps), 3) == pytest.approx(3 * largest / (2 * (1 - float(tau)) * bound))


def test_what_published_rows_spend():
    plain = KNG(epsilon=1, scheme="plain", slopes="varying")
    assert spent(plain) == pytest.approx(np.mean(1 / (2 * (1 - TAUS))))
    assert spent(KNG(epsilon="1/2", scheme="plain", slopes="varying")) == pytest.approx(spent(plain) / 2)
    stepwise, sandwich = (spent(KNG(epsilon=1, scheme=scheme)) for scheme in ("stepwise", "sandwich"))
    assert 1 < stepwise < spent(plain) < sandwich
    assert FORMS[RECOMMENDED].true_epsilon("2") == FORMS[sound_row("KNG")].true_epsilon("2") == 2
    assert FORMS[FRESH].true_epsilon("1") is FORMS[published_row(PMSE)].true_epsilon("1") is None


# Measures


def test_measures_of_equal_and_of_shifted_tables():
    rng = np.random.default_rng(6)
    one, other = draw_population(N, rng), draw_population(N, rng)
    same = measures(one, other, one, rng, n_resplits=9)
    assert list(same) == [*MEASURES, BY_COLUMNS]
    assert [same[name] for name in ("WRT", "KM", "Int diff", "Slope diff", BY_COLUMNS)] == [0, 1000, 0, 0, 0]
    assert same["pMSE WOI"] == pytest.approx(0, abs=1e-12)
    far = measures(one, other, one * 3, rng, n_resplits=9)
    assert all(better(name, same[name], far[name]) for name in MEASURES if name not in ("Slope diff", "NRMSE X3"))
    assert measures(one, one, one, rng, n_resplits=9)["NRMSE X2"] < 1


def test_distributions_count_what_lies_below():
    found = distributions(pd.DataFrame({"x1": [-5.0, 1.0, 2e5, 3.0], "x2": [1.0] * 4, "x3": [0.5] * 4}))
    last = len(PLACES["x1"]) - 1
    assert [found[place_name("x1", number)] for number in (0, last)] == [0.25, 0.75]
    assert found[place_name("x2", 0)] == found[place_name("x3", 0)] == 1


# A tiny run


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    study, out = HeavyTailed(rows=ROWS, n=N, n_resplits=9), tmp_path_factory.mktemp("study") / "out"
    options = Options(replicates=1)
    measurements = measure(study, options, out, workers=0)
    table = write(study, options, measurements, out, seed=1, seconds=1.0, command="pdips study heavy-tailed")
    return study, out, measurements, table


def test_the_table_has_the_papers_rows_and_columns(tiny):
    study, _, _, table = tiny
    assert list(table.columns) == list(COLUMNS)
    assert set(table["row"]) == set(ROWS)
    assert set(table["column"]) == {*MEASURES, BY_COLUMNS, SECONDS, TRUE, *map(error_of, MEASURES)}
    seen = table.set_index(["row", "column"])
    assert seen["paper"][NON_PRIVATE, "WRT"] == 2.86
    assert seen["paper"][published_row("Sandwich - Fixed"), "NRMSE X3"] == 0.202
    assert np.isnan(seen["paper"][RECOMMENDED, "WRT"])
    assert seen["ours"][published_row("Sandwich - Fixed"), TRUE] > 4
    assert seen["paper"][NON_PRIVATE, error_of("KM")] == 0.67
    first, second, third, *_ = study.layout(table)
    assert [list(third.rows), list(third.columns.values())] == [list(ROWS[1:3]), list(MEASURES[:4])]
    assert [*first.columns, *list(second.columns)[1:]] == [TRUE, *MEASURES]
    assert list(first.rows) == list(ROWS)


def test_the_page_is_drawn(tiny):
    study, out, measurements, table = tiny
    page = (out / "study.html").read_text(encoding="utf-8")
    assert "What the published rows really spend" in page
    assert "(Ours) kng-residual" in page
    drawn = study.pictures(measurements, table)
    assert [len(picture.panels) for picture in drawn] == [4, 4, 3, 3, 3]


def test_the_papers_figures_stand_beside_its_epsilon_only(tiny):
    study, _, measurements, _ = tiny
    other = measurements.assign(
        value=measurements["value"].mask(
            measurements["row"].eq(TRAINING) & measurements["column"].str.len().lt(12), 2.0
        )
    )
    elsewhere = study.table(other)
    assert elsewhere["paper"].isna().all()
    assert [block.headline for block in study.layout(elsewhere)] == [True, True, False]
    task = study.tasks(Options(replicates=1, epsilons=("2",)))[0]
    assert task.arguments["epsilon"] == "2"
    with pytest.raises(InputError, match="takes one --epsilon"):
        study.tasks(Options(replicates=1, epsilons=("1", "2")))


def test_a_row_is_the_same_whichever_others_there_are():
    both, one = (HeavyTailed(rows=rows, n=N, n_resplits=9) for rows in ((FRESH, CENTRED), (CENTRED,)))
    found = [
        [(row["column"], row["value"]) for row in made if row["row"] == CENTRED and row["column"] != SECONDS]
        for made in (each.run(each.tasks(Options(replicates=1))[0].arguments, 7) for each in (both, one))
    ]
    assert found[0] == found[1]


# What is said


def told(changes=None):
    """A table with the paper's own figures for all its rows, sound ones too, and with our targets, but for changes."""
    values = {
        (row_of(method), column): value
        for method in (*SCHEMES, PMSE)
        for row_of in (published_row, sound_row)
        for column, value in zip(MEASURES, PRINTED[method], strict=True)
    }
    values |= {(NON_PRIVATE, column): value for column, value in zip(MEASURES, PRINTED[NON_PRIVATE], strict=True)}
    values |= {(RECOMMENDED, column): value for column, value in TARGETS.items()} | {(RECOMMENDED, TRUE): 1.0}
    values |= {(published_row("KNG"), TRUE): 2.98} | (changes or {})
    rows = [(row, column, value, 0.0, np.nan) for (row, column), value in values.items()]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def verdict(words, changes=None):
    (found,) = [finding.verdict for finding in findings_of(told(changes)) if words in finding.claim]
    return found


def test_verdicts_follow_the_figures():
    assert verdict("better than KNG across all measures (4.2 and 4.3); sound") == "holds"
    worse = {(published_row("Stepwise - Fixed"), "KM"): 1.0}
    assert verdict("better than KNG across all measures (4.2 and 4.3); as published", worse) == "holds in part"
    assert verdict("stepwise across the measures of general utility (4.2); as published") == "holds in part"
    assert verdict(
        "Fixed slopes are best for the intercept and the slope, as the data have fixed slopes (4.3); sound"
    ) == ("holds")
    far = {(sound_row("Sandwich - Fixed"), "NRMSE X2"): 0.5, (sound_row("Sandwich - Fixed"), "NRMSE X3"): 0.5}
    assert verdict("roughly the same (4.3); sound") == "holds"
    assert verdict("roughly the same (4.3); sound", far) == "doesn't hold"


def test_agreement_and_price_follow_the_figures():
    assert verdict("printed figures are those of the stated methods") == "holds"
    assert verdict("printed figures are", {(published_row("KNG"), "KM"): 300.0}) == "holds in part"
    assert verdict("satisfy 1-differential privacy") == "doesn't hold"
    assert verdict("satisfy 1-differential privacy", {(published_row("KNG"), TRUE): 1.0}) == "holds"


@pytest.mark.parametrize("column", MEASURES)
def test_targets_are_met_or_not(column):
    words, sign = f"{RECOMMENDED}: {column} at", -1 if column == "KM" else 1
    assert verdict(words) == "met"
    assert verdict(words, {(RECOMMENDED, column): TARGETS[column] * (1 + 0.01 * sign)}) == "not met"
    assert better(column, TARGETS[column] * (1 - 0.01 * sign), TARGETS[column])


def test_the_study_is_known_by_name():
    assert isinstance(find("heavy-tailed"), HeavyTailed)
