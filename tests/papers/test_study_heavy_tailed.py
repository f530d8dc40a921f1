"""The study of Tran et al. (2023): regressions, population, prices and measures, a tiny
run, what is said.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog
from tables import cases, refuses

from pdips.quantile.kng import KNG
from pdips.quantile.quantile_plan import QuantilePlan
from pdips_papers.harness.study import COLUMNS, PARTLY, Options
from pdips_papers.kng import as_run
from pdips_papers.kng import heavy_rows as heavy
from pdips_papers.kng.as_printed import true_epsilon
from pdips_papers.kng.heavy_tailed import (
    SECONDS,
    TRAINING,
    TRUE,
    UNDECIDED,
    HeavyTailed,
    better,
    decided,
    error_of,
)

N = 120
ROWS = (
    heavy.FRESH,
    heavy.NON_PRIVATE,
    heavy.published_row("Sandwich - Fixed"),
    heavy.RECOMMENDED,
)


# Quantile regression


def check_loss(x, y, line, tau):
    residual = y - np.column_stack([np.ones(len(y)), x]) @ line
    return float((residual * (tau - (residual < 0))).sum())


def least_loss(x, y, tau):
    """By a linear programme: residuals split into their positive and negative parts."""
    design, n = np.column_stack([np.ones(len(y)), x]), len(y)
    costs = np.concatenate(
        [np.zeros(design.shape[1]), np.full(n, tau), np.full(n, 1 - tau)]
    )
    free = [(None, None)] * design.shape[1] + [(0, None)] * (2 * n)
    return linprog(
        costs,
        A_eq=np.column_stack([design, np.eye(n), -np.eye(n)]),
        b_eq=y,
        bounds=free,
    ).fun


@pytest.mark.parametrize("p", [0, 1, 2])
@pytest.mark.parametrize("ties", [False, True])
def test_lines_have_the_least_loss(p, ties):
    rng = np.random.default_rng(1)
    x, y = rng.exponential(1, (80, p)), rng.exponential(3, 80)
    y += x.sum(axis=1)
    if ties:
        x, y = np.round(x), np.round(y)
    taus = (0.01, 0.3, 0.5, 0.53, 0.99)
    for tau, line in zip(taus, heavy.quantile_lines(x, y, taus), strict=True):
        assert check_loss(x, y, line, tau) == pytest.approx(
            least_loss(x, y, tau), abs=1e-7
        )


# Population, quantiles, prices


def test_the_population_is_the_papers():
    frame = heavy.draw_population(20_000, np.random.default_rng(3))
    noise = [
        frame["x1"],
        frame["x2"] - 4 - 3 * frame["x1"],
        frame["x3"] - 3 - 2 * frame["x1"] - frame["x2"],
    ]
    # mean 10, standard error 10 / sqrt(20,000) = 0.07: wrong in 1 of 10^6 seeds
    for each in noise:
        assert each.min() > -1e-9
        # the broken twin: a rate of 1 / 11
        assert abs(each.mean() - 10) < 0.35 < abs(each.mean() * 1.1 - 10)
        assert each.std() == pytest.approx(10, rel=0.08)


@pytest.mark.parametrize("caps", [(), (46,), (46, 106)])
@pytest.mark.parametrize("tau", [Fraction(1, 100), Fraction(1, 2), Fraction(99, 100)])
def test_overspending_by_brute_force(caps, tau):
    corners = [
        np.array([1.0, *corner]) for corner in product(*[(0, cap) for cap in caps])
    ]
    parts = [
        side * corner for corner in corners for side in (1 - float(tau), -float(tau))
    ]
    largest = max(np.abs(one - other).max() for one in parts for other in parts)
    bound = max(np.abs(corner).max() for corner in corners)
    one_line = QuantilePlan(taus=(tau,), scheme="plain", slopes="varying")
    assert true_epsilon(one_line, len(caps), 3) == pytest.approx(
        3 * largest / (2 * (1 - float(tau)) * bound)
    )


def test_what_published_rows_spend():
    plain = KNG(epsilon=1, scheme="plain", slopes="varying")
    assert heavy.spent(plain) == pytest.approx(np.mean(1 / (2 * (1 - heavy.TAUS))))
    assert heavy.spent(
        KNG(epsilon="1/2", scheme="plain", slopes="varying")
    ) == pytest.approx(heavy.spent(plain) / 2)
    stepwise, sandwich = (
        heavy.spent(KNG(epsilon=1, scheme=scheme))
        for scheme in ("stepwise", "sandwich")
    )
    assert 1 < stepwise < heavy.spent(plain) < sandwich
    assert (
        heavy.FORMS[heavy.RECOMMENDED].true_epsilon("2")
        == heavy.FORMS[heavy.sound_row("KNG")].true_epsilon("2")
        == 2
    )
    assert (
        heavy.FORMS[heavy.FRESH].true_epsilon("1")
        is heavy.FORMS[heavy.published_row(heavy.PMSE)].true_epsilon("1")
        is None
    )


# Measures


def test_measures_of_equal_and_of_shifted_tables():
    rng = np.random.default_rng(6)
    one, other = heavy.draw_population(N, rng), heavy.draw_population(N, rng)
    same = heavy.measures(one, other, one, rng, n_resplits=9)
    assert list(same) == [*heavy.MEASURES, heavy.BY_COLUMNS]
    exact = {
        "WRT": 0,
        "KM": 1000,
        "Int diff": 0,
        "Slope diff": 0,
        heavy.BY_COLUMNS: 0,
        "pMSE WOI": 0,
    }
    assert {name: same[name] for name in exact} == pytest.approx(exact, abs=1e-12)
    far = heavy.measures(one, other, one * 3, rng, n_resplits=9)
    assert all(
        better(name, same[name], far[name])
        for name in heavy.MEASURES
        if name not in ("Slope diff", "NRMSE X3")
    )
    assert heavy.measures(one, one, one, rng, n_resplits=9)["NRMSE X2"] < 1


# The authors' chains


def random_walk(
    start, x, y, points, below, above, *, tau, rate, scale, fixed, single, rng
):
    """The loop of the authors' R code, written plainly: zero rows for steps to come,
    covariances from all rows.
    """
    n, p = as_run.N_STEPS, len(start)
    moves, log_u = rng.standard_normal((n - 1, p)), np.log(rng.random(n - 1))

    def log_density(theta):
        return (
            -rate * np.abs(((y <= theta @ x) - tau) @ x.T).max() - 1e-5 * theta @ theta
        )

    batch, covariance, count = np.zeros((n, p)), scale * np.eye(p), 0
    batch[0] = start
    for i in range(1, n):
        move = (
            scale * np.eye(p)[0] * moves[i - 1]
            if fixed
            else np.linalg.cholesky(covariance) @ moves[i - 1]
        )
        proposal = batch[i - 1] + (scale * moves[i - 1] if single else move)
        heights = proposal @ points
        taken = log_u[i - 1] < log_density(proposal) - log_density(batch[i - 1])
        taken &= (heights > below).all() and (heights < above).all()
        batch[i], count = proposal if taken else batch[i - 1], count + taken
        if count == 10:
            covariance, count = (
                scale * (np.corrcoef(batch.T).reshape(p, p) + 2e-5 * np.eye(p)),
                0,
            )
    return batch[-1]


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("fixed", [False, True])
def test_chains_are_those_of_the_authors_code(p, fixed):
    rng = np.random.default_rng(p)
    x = np.vstack([np.ones(300), rng.exponential(2, (p - 1, 300))])
    y, start = (
        rng.exponential(3, 300) + 2 * x.sum(axis=0),
        np.array([5.0, 2.0, 2.0])[:p],
    )
    below, above = start @ x - 9, start @ x + 7
    column = as_run.Column(x, y, 5.0, x, 1000.0)
    found, accepted = column._walk(
        start,
        0.7,
        8.0,
        np.random.default_rng(9),
        (x, below, above),
        as_run.Proposals(0.01, fixed or p == 1, fixed),
    )
    settings = {
        "rate": 8 / (4 * 0.3 * 5),
        "scale": 0.01,
        "fixed": fixed,
        "single": p == 1,
    }
    direct, other = (
        random_walk(
            start,
            x,
            y,
            x,
            below,
            above,
            tau=tau,
            rng=np.random.default_rng(9),
            **settings,
        )
        for tau in (0.7, 0.3)
    )
    assert found == pytest.approx(direct, rel=1e-6)
    assert found != pytest.approx(other, rel=1e-6)  # the broken twin: another quantile
    assert 0 < accepted < 1


def test_shares_of_chains_add_up_and_quantiles_are_drawn_once():
    for walks in as_run.WALKS.values():
        for walk in walks:
            order = walk.order(49)
            assert sorted(place for place, _, _ in order) == list(range(49))
            assert sum(share for _, share, _ in order) == pytest.approx(1)
    main = [as_run.MEDIAN, *as_run.MAIN]
    assert sorted(heavy.TAUS[main]) == pytest.approx(
        [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99]
    )


def test_lines_as_run_keep_their_order_and_only_kng_forgets_the_estimate():
    case = heavy.Case.draw(400, np.random.default_rng(5))
    found = np.column_stack([np.ones(400), case.training["x1"]])
    for method in as_run.WALKS:
        lines, accepted = heavy.as_run_lines(
            method, case, "x2", found, 1.0, np.random.default_rng(1)
        )
        # equal where a chain accepts nothing
        assert (np.diff(lines @ found.T, axis=0) > -1e-9).all()
        assert abs(lines[as_run.MEDIAN] - case.estimates["x2"][as_run.MEDIAN]).max() < 2
        assert ((accepted >= 0) & (accepted <= 1)).all()
    plain, _ = heavy.as_run_lines(
        "KNG", case, "x2", found, 1.0, np.random.default_rng(1)
    )
    moved, _ = heavy.as_run_lines(
        heavy.STARTED, case, "x2", found, 1.0, np.random.default_rng(1)
    )
    estimate = case.estimates["x2"][as_run.MEDIAN]
    assert (
        np.median(abs(moved - estimate)[:, 1])
        < np.median(abs(plain - estimate)[:, 1]) / 3
    )


# A tiny run


@pytest.fixture(scope="module")
def tiny(studied):
    study = HeavyTailed(rows=ROWS, n=N, n_resplits=9)
    return study, *studied(study, Options(replicates=1))


def test_the_table_has_the_papers_rows_and_columns_and_the_page_is_drawn(tiny):
    study, measurements, table, page = tiny
    assert set(table["row"]) == set(ROWS)
    assert set(table["column"]) == {
        *heavy.MEASURES,
        heavy.BY_COLUMNS,
        SECONDS,
        TRUE,
        *map(error_of, heavy.MEASURES),
    }
    seen = table.set_index(["row", "column"])
    assert seen["paper"][heavy.NON_PRIVATE, "WRT"] == 2.86
    assert seen["paper"][heavy.published_row("Sandwich - Fixed"), "NRMSE X3"] == 0.202
    assert np.isnan(seen["paper"][heavy.RECOMMENDED, "WRT"])
    assert seen["ours"][heavy.published_row("Sandwich - Fixed"), TRUE] > 4
    assert seen["paper"][heavy.NON_PRIVATE, error_of("KM")] == 0.67
    first, second, third, *_ = study.layout(table)
    assert [list(third.rows), list(third.columns.values())] == [
        list(ROWS[1:3]),
        list(heavy.MEASURES[:4]),
    ]
    assert [*first.columns, *list(second.columns)[1:]] == [TRUE, *heavy.MEASURES]
    assert list(first.rows) == list(ROWS)
    assert "What the published rows really spend" in page
    assert "(Ours) kng-residual" in page
    assert [len(picture.panels) for picture in study.pictures(measurements, table)] == [
        4,
        4,
        3,
        3,
        3,
    ]


def test_the_papers_figures_stand_beside_its_epsilon_only(tiny):
    study, measurements, *_ = tiny
    other = measurements.assign(
        value=measurements["value"].mask(
            measurements["row"].eq(TRAINING) & measurements["column"].str.len().lt(12),
            2.0,
        )
    )
    elsewhere = study.table(other)
    assert elsewhere["paper"].isna().all()
    assert [block.headline for block in study.layout(elsewhere)] == [True, True, False]
    assert (
        study.tasks(Options(replicates=1, epsilons=("2",)))[0].arguments["epsilon"]
        == "2"
    )
    refuses(
        "takes one --epsilon", study.tasks, Options(replicates=1, epsilons=("1", "2"))
    )


def test_a_row_is_the_same_whichever_others_there_are():
    both, one = (
        HeavyTailed(rows=rows, n=N, n_resplits=9)
        for rows in ((heavy.FRESH, heavy.CENTRED), (heavy.CENTRED,))
    )
    found = [
        [
            (row["column"], row["value"])
            for row in made
            if row["row"] == heavy.CENTRED and row["column"] != SECONDS
        ]
        for made in (
            each.run(each.tasks(Options(replicates=1))[0].arguments, 7)
            for each in (both, one)
        )
    ]
    assert found[0] == found[1]


# What is said


def told(changes=None):
    """A table with the paper's own figures for all its rows, sound ones too, and with
    our targets, but for changes.
    """
    printed = {}
    for method in (*heavy.SCHEMES, heavy.PMSE):
        printed |= dict.fromkeys(
            (heavy.published_row(method), heavy.sound_row(method)),
            heavy.PRINTED[method],
        )
    printed[heavy.NON_PRIVATE] = heavy.PRINTED[heavy.NON_PRIVATE]
    values = {
        (row, each): value
        for row in printed
        for each, value in zip(heavy.MEASURES, printed[row], strict=True)
    }
    values |= {
        (heavy.RECOMMENDED, column): value
        for column, value in [*heavy.TARGETS.items(), (TRUE, 1.0)]
    }
    values |= {(heavy.published_row("KNG"), TRUE): 2.98} | (changes or {})
    rows = [
        (row, column, value, 0.0, np.nan) for (row, column), value in values.items()
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def verdict(words, changes=None, form=""):
    found = [
        each
        for each in HeavyTailed().findings(told(changes))
        if words in each.claim and form in each.claim
    ]
    (found,) = [finding.verdict for finding in found]
    return found


@pytest.mark.parametrize(
    ("words", "form", "changes", "wanted"), cases(__file__, "verdicts_of_heavy_tails")
)
def test_verdicts_follow_the_figures(words, form, changes, wanted):
    assert (
        verdict(words, {(row, column): value for row, column, value in changes}, form)
        == wanted
    )


def test_what_is_within_monte_carlo_error_is_undecided():
    assert [decided(right) for right in ([None], [None, False], [None, True])] == [
        UNDECIDED,
        "doesn't hold",
        PARTLY,
    ]
    seen = {
        finding.claim: finding.verdict
        for finding in HeavyTailed().findings(told().assign(standard_error=1e6))
    }
    assert [seen[each] for each in seen if "slightly better" in each] == [UNDECIDED] * 2
    assert [seen[each] for each in seen if "pMSE mechanism or better" in each] == [
        "holds"
    ] * 2


def test_claims_on_the_authors_chains_follow_their_rows():
    rows = {
        (heavy.as_run_row(method), column): value
        for method in heavy.SCHEMES
        for column, value in zip(heavy.MEASURES, heavy.PRINTED[method], strict=True)
    }
    rows |= {
        (heavy.as_run_row(heavy.STARTED), column): value
        for (row, column), value in rows.items()
        if "Var" in row
    }
    assert verdict("better than KNG across", rows, form="authors ran") == "holds"
    assert verdict("those of the authors' chains", rows) == "holds"
    assert verdict("mostly that of where chains start", rows) == "holds"
    zero = {
        (heavy.as_run_row(heavy.STARTED), column): rows[heavy.as_run_row("KNG"), column]
        for column in heavy.MEASURES
    }
    assert verdict("mostly that of where chains start", rows | zero) == "doesn't hold"
    assert (
        verdict(
            "those of the authors' chains",
            rows | {(heavy.as_run_row("KNG"), "KM"): 300.0},
        )
        == "holds in part"
    )


@pytest.mark.parametrize("column", heavy.MEASURES)
def test_targets_are_met_or_not(column):
    words, sign = f"{heavy.RECOMMENDED}: {column} at", -1 if column == "KM" else 1
    assert verdict(words) == "met"
    assert (
        verdict(
            words,
            {(heavy.RECOMMENDED, column): heavy.TARGETS[column] * (1 + 0.01 * sign)},
        )
        == "not met"
    )
    assert better(
        column, heavy.TARGETS[column] * (1 - 0.01 * sign), heavy.TARGETS[column]
    )
