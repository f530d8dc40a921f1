"""Estimates from public files alone: right, honest about their error, and refused where
nothing was measured.
"""

import json
import re
import sys
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import statsmodels.formula.api as smf
from margin_tables import of_pairs
from tables import RELATIONS, cases, refuses, schema_in

from pdips import (
    LaplaceSanitizer,
    Margins,
    Modips,
    PerturbedHistogram,
    PrivBayes,
    Schema,
    Steps,
    Table,
    UniversalHistogram,
)
from pdips.errors import UselessWarning
from pdips.margins.estimates import estimate
from pdips.outside import NoisyMargins, noisy_margins
from pdips.privacy.plan import Plan
from pdips.release.noisy_margins import unstacked

SCHEMA = schema_in("outside")
MIDDLES = np.arange(25, 80, 10)
CELLS = np.indices((2, 3, 6)).reshape(3, -1)
LAW = np.random.default_rng(0).dirichlet(np.full(36, 5.0))
LINEAR = -1 + 0.5 * CELLS[0] + 0.8 * (CELLS[1] == 2) + 0.03 * (MIDDLES[CELLS[2]] - 50)
CHANCE = 1 / (1 + np.exp(-LINEAR))
DESIGN = np.column_stack(
    [np.ones(36), CELLS[0] == 1, CELLS[1] == 1, CELLS[1] == 2, MIDDLES[CELLS[2]]]
)
TRUE_LOGIT = np.array([-2.5, 0.5, 0, 0.8, 0.03])
TRUE_OLS = np.linalg.solve(
    DESIGN.T @ (LAW[:, None] * DESIGN), DESIGN.T @ (LAW * CHANCE)
)


def drawn(n: int, rng: np.random.Generator) -> Table:
    cell = rng.choice(36, n, p=LAW)
    columns = {
        "sex": np.array(["f", "m"])[CELLS[0][cell]],
        "school": np.array(["low", "middle", "high"])[CELLS[1][cell]],
        "age": MIDDLES[CELLS[2][cell]].astype(float),
        "voted": np.where(rng.random(n) < CHANCE[cell], "yes", "no"),
    }
    return Table(pd.DataFrame(columns), SCHEMA)


@pytest.fixture(scope="module")
def quiet() -> tuple[Table, NoisyMargins]:
    """A table, and margins with all but no noise."""
    table = drawn(2_000, np.random.default_rng(1))
    release, _ = of_pairs(epsilon=100_000).release(table, rng=np.random.default_rng(2))
    return table, NoisyMargins.of(release)


def measured_in(table: Table, plan: Plan, rng: np.random.Generator) -> NoisyMargins:
    """Return margins of a table, without the sets."""
    shown = plan.design.image.show(plan.design.count(table)[None])[0]
    n_records = table.n_records if plan.neighbours == "replace-one" else None
    return NoisyMargins(
        SCHEMA,
        plan.design,
        estimate(plan.design, plan.steps[0], shown, n_records).again(rng),
    )


def measured(n: int, epsilon: float, rng: np.random.Generator) -> NoisyMargins:
    plan = of_pairs(epsilon=epsilon, delta="1e-6", neighbours="replace-one").plan(
        SCHEMA
    )
    return measured_in(drawn(n, rng), plan, rng)


def test_without_noise_all_is_what_the_table_says(quiet):
    table, margins = quiet
    frame = pd.DataFrame({name: table.codes[name] for name in SCHEMA.columns})
    shares = margins.share(["sex", "school"], target="table").summary()
    expected = frame.groupby(["sex", "school"]).size().to_numpy() / 2_000
    np.testing.assert_allclose(shares["estimate"], expected, atol=1e-3)
    assert shares.index[1] == "f, middle"
    np.testing.assert_allclose(
        margins.total("age").estimate, np.bincount(frame["age"], minlength=6), atol=0.2
    )
    school = frame["school"]
    x = np.column_stack(
        [np.ones(2_000), frame["sex"], school == 1, school == 2, MIDDLES[frame["age"]]]
    )
    found = margins.ols("voted ~ sex + school + age", target="table")
    np.testing.assert_allclose(
        found.estimate, np.linalg.lstsq(x, frame["voted"], rcond=None)[0], atol=1e-3
    )
    assert found.names == (
        "Intercept",
        "sex[m]",
        "school[middle]",
        "school[high]",
        "age",
    )
    ols = margins.ols("voted ~ sex + school + age")
    chance, inverse = np.clip(x @ ols.estimate, 0, 1), np.linalg.inv(x.T @ x)
    robust = inverse @ ((x * (chance * (1 - chance))[:, None]).T @ x) @ inverse
    error = np.sqrt(np.diagonal(robust))
    # the law of predictors is a model's
    assert np.abs((ols.covariance - robust) / np.outer(error, error)).max() < 0.05
    aged = margins.ols("age ~ sex")
    x, y = x[:, :2], MIDDLES[frame["age"]]
    residual = y - x @ aged.estimate
    np.testing.assert_allclose(
        aged.covariance,
        residual @ residual / (2_000 - 2) * np.linalg.inv(x.T @ x),
        rtol=0.02,
    )


def of_cells(n: int, epsilon: float, rng: np.random.Generator) -> NoisyMargins:
    """Return the one margin of all columns of a table drawn anew."""
    return NoisyMargins.of(
        LaplaceSanitizer(epsilon=epsilon).release(drawn(n, rng), rng=rng)[0]
    )


def coverage(
    ask,
    truth,
    n_tables: int,
    n: int,
    epsilon: float,
    *,
    noise: float = 1.0,
    made=measured,
) -> float:
    """Return how often 95 % intervals hold the truth; ``noise`` is what the analyst
    takes its variance to be.
    """
    held = []
    for number in range(n_tables):
        margins = made(n, epsilon, np.random.default_rng([n, number]))
        laws = [
            replace(each, law=replace(each.law, variance=each.law.variance * noise))
            for each in margins.margins
        ]
        pairs = replace(margins.found, variance=margins.found.variance * noise)
        found = ask(replace(margins, found=pairs, margins=tuple(laws))).summary()
        held.append((found["lower"] <= truth) & (truth <= found["upper"]))
    return float(np.mean(held))


JOINT = np.array(
    [
        LAW[CELLS[0] == s] @ chance[CELLS[0] == s]
        for s in (0, 1)
        for chance in (1 - CHANCE, CHANCE)
    ]
)
CROSSED = np.column_stack(
    [DESIGN[:, :4], DESIGN[:, [1]] * DESIGN[:, 2:4], DESIGN[:, 4]]
)
TRUE_CROSSED = np.linalg.solve(
    CROSSED.T @ (LAW[:, None] * CROSSED), CROSSED.T @ (LAW * CHANCE)
)
QUESTIONS = {
    "share": (lambda margins: margins.share(["sex", "voted"]), JOINT, 0.5, measured),
    "ols": (
        lambda margins: margins.ols("voted ~ sex + school + age"),
        TRUE_OLS,
        0.5,
        measured,
    ),
    "glm": (
        lambda margins: margins.glm("voted ~ sex + school + age", family="binomial"),
        TRUE_LOGIT,
        0.5,
        measured,
    ),
    "interactions": (
        lambda margins: margins.ols("voted ~ sex * school + age"),
        TRUE_CROSSED,
        0.25,
        of_cells,
    ),
}


@pytest.mark.slow_cases(
    "glm",
    "ols",
    "share",
)
@pytest.mark.parametrize("name", QUESTIONS)
def test_intervals_hold_the_population(name, monkeypatch):
    # 40 tables, 4 to 7 numbers each that hang together: a share of 95 % has a standard
    # error of .016 to .025; below .86 has probability under 1e-3. The twin knows
    # nothing of the noise, whose variance is above sampling's.
    monkeypatch.setattr(noisy_margins, "N_REPLICATES", 60)
    ask, truth, epsilon, made = QUESTIONS[name]
    assert coverage(ask, truth, 40, 2_000, epsilon, made=made) > 0.86
    assert coverage(ask, truth, 20, 2_000, epsilon, noise=1e-6, made=made) < 0.85


@pytest.mark.parametrize(
    "mechanism", [LaplaceSanitizer(epsilon=100_000), Margins(epsilon=100_000)]
)
def test_interactions_and_three_columns_are_read_where_a_margin_holds_them(mechanism):
    table = drawn(2_000, np.random.default_rng(1))
    margins = NoisyMargins.of(mechanism.release(table, rng=np.random.default_rng(2))[0])
    frame = pd.DataFrame(dict(table.codes)).assign(age=MIDDLES[table.codes["age"]])
    right = "C(sex) * C(school) + C(sex) * age"
    linear = smf.ols(f"voted ~ {right}", frame).fit(cov_type="HC0")
    logit = smf.logit(f"voted ~ {right}", frame).fit(disp=0)
    # of statsmodels' coefficients: main terms, then products
    order = [0, 1, 2, 3, 6, 4, 5, 7]
    for found, model, near in (
        (margins.ols("voted ~ sex * school + sex * age"), linear, 1e-3),
        (
            margins.glm("voted ~ sex * school + sex:age + age", family="binomial"),
            logit,
            0.03,
        ),
    ):
        assert [name.count(":") for name in found.names] == [0] * 5 + [1] * 3
        np.testing.assert_allclose(
            found.estimate, model.params.iloc[order], rtol=near, atol=near
        )
        np.testing.assert_allclose(
            np.sqrt(np.diagonal(found.covariance)), model.bse.iloc[order], rtol=0.1
        )
    three = margins.total(["voted", "sex", "school"])
    assert three.names[1] == "no, f, middle"
    counts = frame.groupby(["voted", "sex", "school"], observed=False).size()
    np.testing.assert_allclose(three.estimate, counts, atol=0.5)
    assert margins.total("sex").summary()["standard_error"].max() < 0.1


def test_poisson_and_its_draws():
    schema = Schema(
        columns={"x": {"levels": ["a", "b"]}, "k": {"levels": [0, 1, 2, 3, 4, 5, 6]}}
    )
    rng = np.random.default_rng(3)
    x = rng.integers(0, 2, 4_000)
    frame = pd.DataFrame(
        {
            "x": np.array(["a", "b"])[x],
            "k": np.minimum(rng.poisson(np.exp(-0.5 + 0.7 * x)), 6),
        }
    )
    release, _ = of_pairs(epsilon=10_000).release(Table(frame, schema), rng=rng)
    found = NoisyMargins.of(release).glm("k ~ x", family="poisson")
    means = frame.groupby("x")["k"].mean()
    np.testing.assert_allclose(
        found.estimate, [np.log(means["a"]), np.log(means["b"] / means["a"])], atol=1e-3
    )
    errors = [
        1 / np.sqrt(frame.loc[x == 0, "k"].sum()),
        np.sqrt((1 / frame.groupby("x")["k"].sum()).sum()),
    ]
    np.testing.assert_allclose(
        np.sqrt(np.diagonal(found.covariance)), errors, rtol=0.05
    )
    np.testing.assert_allclose(
        found.posterior.posterior["x[b]"].std(), errors[1], rtol=0.1
    )


def test_a_contrast_is_a_sum_with_its_error_and_a_ratio_has_fiellers_interval(quiet):
    found = quiet[1].share("age")
    older = found.contrast([0, 0, 0, 0, 1, 1], "over 60")
    assert (p := older.estimate[0]) == pytest.approx(found.estimate[4:].sum())
    assert older.summary()["standard_error"].iloc[0] == pytest.approx(
        np.sqrt(p * (1 - p) / 2_000), rel=0.01
    )
    found = quiet[1].share(["school", "voted"])
    low, high = {"low, yes": 1, "low, no": 1}, {"high, yes": 1}
    np.testing.assert_array_equal(
        found.contrast(low).estimate, found.contrast([1, 1, 0, 0, 0, 0]).estimate
    )
    ratio = found.ratio(low, high)
    (above, below), known = ratio.sums[:, 0], ratio.known[..., 0]
    # where the sums' difference is significant no longer
    for end in ratio.summary()[["lower", "upper"]].iloc[0]:
        off, weights = above - end * below, np.array([1, -end])
        assert off**2 == pytest.approx(
            1.959964**2 * weights @ known @ weights, rel=1e-6
        )
    assert (
        ratio.summary()["lower"].iloc[0]
        < above / below
        < ratio.summary()["upper"].iloc[0]
    )
    loud = replace(found, covariance=found.covariance * 10_000).ratio(low, high)
    assert np.isinf(loud.summary()[["lower", "upper"]]).all(axis=None)
    for ask in (
        lambda: found.contrast({"poor": 1}),
        lambda: found.ratio([1], high),
        lambda: found.ratio(low, {}),
    ):
        refuses(r"none of the numbers|needs 6 weights|the sum below is 0", ask)


def test_columns_tied_by_structural_zeros_and_public_ones():
    columns = {
        "age": {"levels": ["child", "adult"]},
        "job": {"levels": ["none", "paid"]},
    }
    columns["sex"] = {"levels": ["f", "m"], "public": True}
    schema = Schema(columns=columns, impossible=[{"age": ["child"], "job": ["paid"]}])
    rng = np.random.default_rng(4)
    age = rng.integers(0, 2, 500)
    jobs = np.array(["none", "paid"])[age * rng.integers(0, 2, 500)]
    frame = pd.DataFrame(
        {
            "age": np.array(["child", "adult"])[age],
            "job": jobs,
            "sex": rng.choice(["f", "m"], 500),
        }
    )
    release, _ = of_pairs(epsilon=10_000).release(Table(frame, schema), rng=rng)
    margins = NoisyMargins.of(release)
    expected = pd.crosstab(frame["job"], frame["sex"]).to_numpy().ravel()
    np.testing.assert_allclose(
        margins.total(["job", "sex"]).estimate, expected, atol=0.1
    )
    assert (
        abs(margins.total(["age", "job"]).summary().loc["child, paid", "estimate"])
        < 1e-9
    )
    refuses(
        "tied by structural zeros, can't be crossed",
        margins.share,
        ["age", "job", "sex"],
    )


def test_a_public_folder_is_enough(tmp_path):
    table = drawn(300, np.random.default_rng(5))
    release, _ = of_pairs(epsilon=1, neighbours="add-remove").release(table)
    release.publish(tmp_path / "public")
    read, kept = NoisyMargins.read(tmp_path), NoisyMargins.of(release)
    np.testing.assert_array_equal(read.found.counts, kept.found.counts)
    assert read.found.n_records == kept.found.n_records
    margins = pd.read_parquet(tmp_path / "public/margins.parquet")
    stated = json.loads((tmp_path / "public/privacy.json").read_text())
    # as before there were any
    (tmp_path / "public/privacy.json").write_text(
        json.dumps({**stated, "digests": None})
    )
    lacking = [margins.drop(columns=name) for name in ("noisy", "cell")]
    for changed in (
        margins.assign(cell=0),
        margins.iloc[::-1],
        margins.iloc[:-1],
        *lacking,
    ):
        changed.to_parquet(tmp_path / "public/margins.parquet")
        refuses("one of them was changed", NoisyMargins.read, tmp_path)
    (tmp_path / "public/margins.parquet").unlink()
    refuses("holds no noisy margins", NoisyMargins.read, tmp_path)
    refuses(
        "holds no noisy margins",
        NoisyMargins.of,
        PerturbedHistogram(epsilon=1).release(table)[0],
    )


@pytest.mark.parametrize(
    ("ask", "given", "named", "message"), cases(__file__, "what_is_refused")
)
def test_what_is_refused(quiet, ask, given, named, message):
    refuses(re.escape(message), getattr(quiet[1], ask), *given, **named)


def test_what_an_answer_refuses(quiet):
    found = quiet[1].share("sex")
    refuses("level must be", found.summary, level=2)
    refuses("2 weights", found.contrast, [1])
    refuses("only glm has draws", lambda: found.posterior)


def test_what_noise_leaves_open_is_said():
    loud = measured(40, 0.02, np.random.default_rng(6))
    with pytest.warns(UselessWarning, match="the whole line"):
        answer = loud.glm("voted ~ sex + school", family="binomial")
    refuses("leaves its numbers open", lambda: answer.posterior)
    assert (~np.isfinite(answer.summary()["lower"])).all()


@pytest.mark.slow
def test_loud_noise_on_a_rare_outcome_leaves_an_interval_that_holds_the_truth(
    monkeypatch,
):
    # an outcome of 2 %; 15 tables of 5 numbers each: .95 has a standard error of at
    # most .056, so below .78 is rare. The twin believes in a hundredth of the noise's
    # variance.
    monkeypatch.setattr(noisy_margins, "N_REPLICATES", 60)
    monkeypatch.setattr(
        sys.modules[__name__], "CHANCE", 1 / (1 + np.exp(-(LINEAR - 3.6)))
    )
    truth, asked = TRUE_LOGIT - [3.6, 0, 0, 0, 0], []

    def ask(margins):
        asked.append(margins.glm("voted ~ sex + school + age", family="binomial"))
        return asked[-1]

    assert coverage(ask, truth, 15, 5_000, 0.25) > 0.78
    assert all(
        "under a normal prior" in answer.basis and np.isfinite(answer.covariance).all()
        for answer in asked
    )
    np.testing.assert_allclose(
        asked[0].summary()["upper"], asked[0].draws.quantile(0.975)
    )
    assert coverage(ask, truth, 15, 5_000, 0.25, noise=0.01) < 0.78


def test_a_separated_outcome_has_a_finite_posterior():
    schema = Schema(columns={name: {"levels": [0, 1]} for name in ("x", "z", "y")})
    rng = np.random.default_rng(10)
    x, z = rng.integers(0, 2, (2, 2_000))
    release, _ = of_pairs(epsilon=1_000).release(
        Table(pd.DataFrame({"x": x, "z": z, "y": x}), schema), rng=rng
    )
    answer = NoisyMargins.of(release).glm("y ~ x + z", family="binomial")
    found = answer.summary()
    assert "under a normal prior" in answer.basis
    assert 3 < found.loc["x[1]", "lower"] < found.loc["x[1]", "upper"] < 40
    assert found.loc["z[1]", "lower"] < 0 < found.loc["z[1]", "upper"]


@pytest.mark.parametrize("name", ["margins", "synthetic_1"])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_file_that_was_edited_after_it_was_published_is_refused(
    tmp_path, name, suffix
):
    schema = Schema(columns={column: {"levels": [0, 1]} for column in "ab"})
    release, _ = of_pairs(epsilon=1).release(
        Table(pd.DataFrame({"a": [0, 1] * 50, "b": [1] * 100}), schema)
    )
    release.publish(tmp_path / "out", file_format=suffix)
    before = NoisyMargins.read(tmp_path / "out").share(["a"]).summary()
    assert before.equals(NoisyMargins.of(release).share(["a"]).summary())
    path = tmp_path / "out" / f"{name}.{suffix}"
    if suffix == "csv":
        path.write_text(path.read_text().replace("1", "2", 1))
    else:
        pd.read_parquet(path).iloc[:-1].to_parquet(path)
    refuses("isn't the file that was published", NoisyMargins.read, tmp_path / "out")


COUNTING = {
    "pairs": lambda relation: of_pairs(epsilon=1, neighbours=relation),
    "differences": lambda relation: of_pairs(
        epsilon=1, neighbours=relation, delta="1e-6"
    ),
    "views": lambda relation: Margins(epsilon=1, neighbours=relation),
    "views, two answers": lambda relation: Margins(
        epsilon=1, neighbours=relation, n_sets=2, split="per-set"
    ),
    "a tree": lambda relation: Steps(
        epsilon=1, neighbours=relation, order=("sex", "voted"), layers=2
    ),
    "cells": lambda relation: LaplaceSanitizer(epsilon=1, neighbours=relation),
    "columns in random order": lambda relation: UniversalHistogram(
        epsilon=1, neighbours=relation
    ),
    "networks": lambda _: PrivBayes(epsilon=1, n_sets=2, split="per-set", degree=1),
    "a model": lambda relation: Modips(
        epsilon=1, neighbours=relation, model="multinomial", n_records=400
    ),
}
SMALL = Schema(
    columns={
        "sex": {"levels": [0, 1]},
        "school": {"levels": [0, 1, 2]},
        "voted": {"levels": [0, 1]},
    }
)
CUBE = np.indices((2, 3, 2)).reshape(3, -1)


def least_squares(release, n_records: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts of all cells by generalised least squares, cell by cell, and
    their covariance.
    """
    names, rows, seen = list(SMALL.columns), [], []
    for margin in unstacked(release.margins, release.tables["margins"]):
        matrix, covariance = np.ones((1, 12)), np.eye(1)
        if margin.law.axes:
            shape = [axis.size for axis in margin.law.axes]
            codes = [CUBE[names.index(axis.columns[0])] for axis in margin.law.axes]
            matrix = np.equal.outer(
                np.arange(np.prod(shape)), np.ravel_multi_index(codes, shape)
            ).astype(float)
            shown = np.eye(1)
            for size in shape:
                shown = np.kron(
                    shown,
                    np.diff(np.eye(size), axis=0)
                    if margin.law.differences
                    else np.eye(size),
                )
            matrix, covariance = (
                (shown @ matrix)[margin.cells],
                (shown @ shown.T)[np.ix_(margin.cells, margin.cells)],
            )
        white = np.linalg.inv(np.linalg.cholesky(covariance * margin.law.variance))
        rows.append(white @ matrix)
        seen.append(white @ margin.noisy)
    exact = 1e4 if release.loss.neighbours == "replace-one" else 0.0
    rows.append(np.full((1, 12), exact))
    seen.append(np.array([exact * n_records]))
    system = np.concatenate(rows)
    inverse = np.linalg.pinv(system.T @ system, rcond=1e-15, hermitian=True)
    return inverse @ system.T @ np.concatenate(seen), inverse


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "relation"),
    [
        pair
        for pair in product(COUNTING, RELATIONS)
        if pair != ("networks", "add-remove")
    ],
)
def test_what_margins_say_together_is_generalised_least_squares(
    name, relation, monkeypatch
):
    monkeypatch.setattr(noisy_margins, "N_REPLICATES", 4_000)
    rng = np.random.default_rng(8)
    frame = pd.DataFrame(
        {
            column: rng.integers(0, SMALL.columns[column].n_levels, 400)
            for column in SMALL.columns
        }
    )
    release, _ = COUNTING[name](relation).release(Table(frame, SMALL), rng=rng)
    margins = NoisyMargins.of(release)
    counts, covariance = least_squares(release, 400)
    held = margins.found.variance
    for one, other in (
        (one, other)
        for one, other in ((0, 1), (0, 2), (1, 2))
        if np.isfinite(held[one, other])
    ):
        names = [list(SMALL.columns)[k] for k in (one, other)]
        answer = margins.total(names)
        codes = np.ravel_multi_index(
            CUBE[[one, other]], [len(SMALL.columns[n].levels) for n in names]
        )
        sums = np.equal.outer(np.arange(len(answer.names)), codes).astype(float)
        np.testing.assert_allclose(answer.estimate, sums @ counts, atol=1e-2)
        error = np.sqrt(np.diagonal(expected := sums @ covariance @ sums.T))
        # a covariance of 4,000 replicates: standard errors of 1.1 to 2.3 %; six of them
        assert np.abs(answer.covariance - expected).max() < 0.14 * error.max() ** 2
    if np.isfinite(held).all():
        design = np.column_stack([np.ones(12), CUBE[0] == 1, CUBE[1]])
        expected = np.linalg.solve(
            design.T @ (counts[:, None] * design), design.T @ (counts * CUBE[2])
        )
        np.testing.assert_allclose(
            margins.ols("voted ~ sex + school").estimate, expected, atol=1e-3
        )


def test_numeric_columns_without_bins_are_read(tmp_path):
    schema = Schema(
        columns={
            "sex": {"levels": ["f", "m"]},
            "pay": {"lower": 0, "upper": 1000, "integer": True},
        }
    )
    rng = np.random.default_rng(9)
    sex = rng.integers(0, 2, 4_000)
    pay = np.clip(np.round(rng.gamma(4, 60, 4_000) + 80 * sex), 0, 1000).astype(int)
    table = Table(pd.DataFrame({"sex": np.array(["f", "m"])[sex], "pay": pay}), schema)
    release, _ = of_pairs(epsilon=1_000).release(table, rng=rng)
    release.write(tmp_path / "public")
    margins = NoisyMargins.read(tmp_path)
    (axis,) = [
        a
        for law in release.margins
        for a in law.axes
        if a.columns == ("pay",) and law.law == "estimate"
    ]
    edges = np.append(axis.lower, 1001)
    expected = (
        pd.crosstab(sex, pd.cut(pay, edges, right=False, labels=False))
        .to_numpy()
        .ravel()
    )
    np.testing.assert_allclose(margins.total(["sex", "pay"]).estimate, expected, atol=3)
    assert margins.share("pay").basis == (
        "measured; counts of pay estimated, with errors about right"
    )


@pytest.mark.parametrize("name", ["pairs", "views", "cells", "networks"])
@pytest.mark.parametrize("twice", [("scale",), ("scale", "variance")])
def test_a_law_of_noise_that_was_edited_is_refused(tmp_path, name, twice):
    frame = pd.DataFrame({column: [0, 1] * 50 for column in SMALL.columns})
    release, _ = COUNTING[name]("replace-one").release(Table(frame, SMALL))
    release.publish(tmp_path / "out")
    NoisyMargins.read(tmp_path / "out")
    path = tmp_path / "out/privacy.json"
    stated = json.loads(path.read_text())
    law = next(each for each in stated["margins"] if each["law"] != "estimate")
    law["scale"] *= 2
    if "variance" in twice:
        r = np.exp(-1 / law["scale"])
        law["variance"] = 2 * r / (1 - r) ** 2
    path.write_text(json.dumps(stated))
    refuses("isn't that of its settings", NoisyMargins.read, tmp_path / "out")


@pytest.mark.slow_cases(
    "add-remove",
    "replace-one",
)
def test_a_factor_has_the_covariance_of_noise_and_sampling(neighbours):
    # 300 tables, each a sum of squares over its expected law; the mean has a standard
    # error of 2.2 %, so 9 % is four. The twin takes the margins to be of the table
    # itself.
    n, names = 2_000, ["sex", "school", "age"]
    mechanism = of_pairs(epsilon=0.5, delta="1e-6", neighbours=neighbours)
    plan, found = mechanism.plan(SCHEMA), {"population": [], "table": []}
    for number in range(300):
        rng = np.random.default_rng([9, number])
        table = drawn(n if neighbours == "replace-one" else rng.poisson(n), rng)
        margins = measured_in(table, plan, rng)
        contrasts, seen, _ = margins._coordinates(names)
        if not number:
            for target in found:
                with pm.Model():
                    law = margins.factor(names, n * LAW, target=target).owner.inputs[
                        -2:
                    ]
                found[target] = [each.eval() for each in law]
            covariances, squares = (
                {target: law[1] for target, law in found.items()},
                {target: [] for target in found},
            )
            np.testing.assert_allclose(found["table"][0], n * LAW @ contrasts)
        off = seen - n * LAW @ contrasts
        for target, covariance in covariances.items():
            squares[target].append(off @ np.linalg.solve(covariance, off) / len(off))
    assert (
        abs(np.mean(squares["population"]) - 1) < 0.09 < np.mean(squares["table"]) - 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("neighbours", RELATIONS)
def test_noise_on_counts_is_that_of_fresh_draws(neighbours):
    # 20,000 draws: a correlation has a standard error of .007 at most, so that .05 is
    # never reached by chance
    columns = {
        "a": {"levels": ["x", "y", "z"]},
        "b": {"levels": ["u", "v"]},
        "c": {"levels": ["p", "q", "r", "s"]},
    }
    schema = Schema(columns=columns, impossible=({"a": "x", "b": "v"},))
    rng = np.random.default_rng(11)
    frame = pd.DataFrame(
        {name: rng.choice(each["levels"], 500) for name, each in columns.items()}
    )
    frame.loc[frame["a"] == "x", "b"] = "u"
    mechanism = of_pairs(epsilon=1, neighbours=neighbours)
    release, _ = mechanism.release(Table(frame, schema), rng=rng)
    margins = NoisyMargins.of(release)
    for named in (["a"], ["c"], ["a", "b"], ["c", "b"]):
        chosen = margins._alone(named)
        drawn = [
            replace(chosen, pairs=chosen.pairs.again(rng)).cells(named)
            for _ in range(20_000)
        ]
        noise = chosen.noise(named)
        off = np.cov(np.array(drawn).T) - noise
        scale = np.sqrt(np.maximum(np.diagonal(noise), 1e-9))
        assert np.abs(off / np.outer(scale, scale)).max() < 0.05
        # the broken twin: noise that knows nothing of that on levels
        variance = chosen.pairs.variance.copy()
        np.fill_diagonal(variance, 0.0)
        alone = replace(chosen.pairs, variance=variance, total_variance=0.0)
        silent = replace(chosen, pairs=alone).noise(named)
        gap = np.cov(np.array(drawn).T) - silent
        assert np.abs(gap / np.outer(scale, scale)).max() > 0.05
