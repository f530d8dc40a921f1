"""Noisy sums of weights and of products in ``margins``: what a person moves, the law,
sets, and regressions.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from margin_tables import of_pairs
from tables import cases, refuses

from pdips import Schema, Table, more_sets
from pdips.calibration.closed_form import prospects
from pdips.errors import UselessWarning
from pdips.fields import products
from pdips.fields.products import (
    PARTS,
    PRODUCTS,
    NoisyProducts,
    SecondMoments,
    exchanged,
)
from pdips.fields.weighted_sums import SUMS_OF_WEIGHTS, UNITS, WeightedSums
from pdips.outside import NoisyMargins
from pdips.outside.regression import least_squares

DELTAS = {"pure": None, "zcdp": "1e-6"}
"""For each kind of loss the delta that chooses it."""

N = 2_000
W = {"lower": 0, "upper": 1_000}


def schema_of(**records) -> Schema:
    columns = {
        "sex": {"levels": ["f", "m"]},
        "job": {"levels": ["a", "b", "c"], "missing": True},
        "w": W,
    }
    return Schema.model_validate(
        {"columns": columns, "records": {"weight": "w", **records}}
    )


def survey(schema: Schema | None = None, n: int = N) -> Table:
    # heavy weights, and those of women are three times as large
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {"sex": rng.choice(["f", "m"], n), "job": rng.choice(["a", "b", "c", None], n)}
    )
    frame["w"] = np.round(
        np.exp(rng.normal(3, 1, n)) * np.where(frame["sex"] == "f", 3, 1), 2
    ).clip(0, 1_000)
    return Table(frame, schema or schema_of())


@pytest.mark.parametrize("cap", [1, 2], ids=["one record", "two records a person"])
def test_a_person_moves_the_sums_by_the_sensitivity_at_most(cap, neighbours):
    # by enumeration of weights at, within and beyond the cap; the worst pair uses all
    # of it
    schema = schema_of(max_per_person=cap)
    sums, limit = WeightedSums(schema, ("sex", "job")), 50.0
    moved = sums.step(1, neighbours, "gaussian").sensitivity
    records = [
        (sex, job, w)
        for sex in "fm"
        for job in ("a", None)
        for w in (0.0, 3.3, 50.0, 900.0)
    ]

    others = [[row] * cap for row in records] + (
        [[]] if neighbours == "add-remove" else []
    )
    frames = [
        pd.DataFrame([("f", "b", 20.0), *other], columns=["sex", "job", "w"])
        for other in others
    ]
    left = np.array([sums.count(Table(frame, schema), limit) for frame in frames])
    apart = left[:, None] - (left[-1:] if neighbours == "add-remove" else left)
    assert np.abs(apart).sum(axis=2).max() == moved.l1
    # all of a person's records in one place; a replaced one leaves another
    assert (apart**2).sum(axis=2).max() == moved.l2_squared
    # the broken twin: weights that no cap holds back
    assert np.abs(sums.count(survey(schema, 5), 1e-9)).max() <= 5 * UNITS
    assert 900 / limit * UNITS * cap > moved.l1


def test_weights_are_read_like_other_numbers():
    table = survey(n=50)
    text = Table(
        table.frame.assign(w=" " + table.frame["w"].astype(str) + "e0"), table.schema
    )
    sums = WeightedSums(table.schema, ("sex", "job"))
    np.testing.assert_array_equal(sums.count(text, 30.0), sums.count(table, 30.0))


@pytest.mark.slow
def test_sets_without_records_fail_nothing_after_the_charge():
    made, sizes = (
        of_pairs(
            epsilon="0.2",
            neighbours="add-remove",
            weighted=("sex",),
            sets="posterior",
            n_sets=2,
        ),
        set(),
    )
    for seed in range(12):
        release, _ = made.release(survey(n=1), rng=np.random.default_rng(seed))
        sizes |= {len(frame) for frame in release.sets}
    assert min(sizes) == 0 < max(sizes)


@pytest.mark.slow
def test_published_sums_are_the_capped_ones_with_the_noise_that_is_stated():
    # 4 numbers in 150 releases: mean and variance of errors in standard errors, error
    # rate about 10^-4
    table, found = survey(), []
    schema, design = table.schema, WeightedSums(table.schema, ("sex",))
    made = of_pairs(epsilon=8, delta="1e-6", weighted=("sex",))
    for seed in range(25):
        rows = made.release(table, rng=np.random.default_rng(seed))[0].tables[
            "weighted_sums"
        ]
        true = design.count(table, rows["cap"][0]) * rows["cap"][0] / UNITS
        found.append((rows["noisy"] - true) / rows["standard_error"])
        weights = table.frame["w"].clip(upper=rows["cap"][0])
        assert true == pytest.approx(
            weights.groupby(table.frame["sex"]).sum().to_numpy(), rel=1e-3
        )
    errors = np.concatenate(found)
    assert abs(errors.mean()) < 4 / np.sqrt(len(errors))
    assert 0.4 < errors.var() < 1.9
    assert rows["level"].tolist() == schema.columns["sex"].names()
    (told,) = (
        each for each in prospects(made.plan(schema), None) if each.kind == "sum"
    )
    assert rows["standard_error"].tolist() == pytest.approx(
        [told.standard_error * rows["cap"][0]] * 2
    )


def shares(frame: pd.DataFrame) -> float:
    return float(frame.loc[frame["sex"] == "f", "w"].sum())


def test_sets_have_weights_with_these_sums():
    # up to what weights are beyond the cap, which all levels share
    table = survey()
    release, _ = of_pairs(epsilon=1, delta="1e-6", weighted=("sex",)).release(
        table, rng=np.random.default_rng(1)
    )
    (made,), wanted = release.sets, release.tables["weighted_sums"]["noisy"].to_numpy()
    # the broken twin: weights as pairs alone make them
    (twin,) = (
        of_pairs(epsilon=1, delta="1e-6")
        .release(table, rng=np.random.default_rng(1))[0]
        .sets
    )
    sums, of_twin = (each.groupby("sex")["w"].sum().to_numpy() for each in (made, twin))
    assert made["w"].between(0, 1_000).all()
    assert sums / sums.sum() == pytest.approx(wanted / wanted.sum())
    assert 1 <= sums.sum() / wanted.sum() < 1.2
    assert abs(of_twin / of_twin.sum() - wanted / wanted.sum()).max() > 0.01


@pytest.mark.slow
def test_posterior_sets_carry_the_noise_of_the_sums():
    table = survey()
    made = of_pairs(epsilon=1, delta="1e-6", weighted=("sex",), n_sets=20)
    release, _ = made.release(table, rng=np.random.default_rng(1))
    rows = release.tables["weighted_sums"]
    spread = np.std([shares(frame) for frame in release.sets], ddof=1)
    # 19 degrees of freedom, error rate about 0.003
    assert 0.6 < spread / rows["standard_error"][0] < 1.6
    # the broken twin: all sets have the published sums
    same = (
        replace(made, sets="fitted")
        .release(table, rng=np.random.default_rng(1))[0]
        .sets
    )
    assert np.std([shares(frame) for frame in same], ddof=1) < 0.01 * spread


@pytest.mark.parametrize(("weighted", "change", "match"), cases(__file__, "weighted"))
def test_what_cannot_be_weighted_is_refused_with_the_plan(weighted, change, match):
    content = schema_of().to_dict()
    content["columns"] |= {
        name: W | value for name, value in change.items() if name == "w"
    }
    content |= {name: value for name, value in change.items() if name == "records"}
    refuses(
        match,
        of_pairs(epsilon=1, weighted=weighted).plan,
        Schema.model_validate(content),
    )


def test_loud_noise_leaves_the_weights_of_sets_alone():
    table = survey(n=20)
    made = (
        of_pairs(epsilon="0.01", weighted=("sex",))
        .release(table, rng=np.random.default_rng(1))[0]
        .sets[0]
    )
    assert made["w"].between(0, 1_000).all()
    assert np.isfinite(made["w"]).all()


NUMBERS = {
    "pay": {"lower": 0, "upper": 1_000},
    "age": {"lower": 0, "upper": 100, "integer": True, "missing": True},
}
JOBS = {"job": {"levels": ["a", "b", "c"]}}
CAPS = {"pay": (0.0, 400.0), "age": (20.0, 80.0)}


def workers(n: int = 4_000, seed: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    job, age = (
        rng.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2]),
        rng.integers(20, 81, n),
    )
    pay = 40 + 2.5 * age + 60 * (job == "c") + rng.normal(0, 40, n)
    frame = pd.DataFrame(
        {"pay": pay.round(1).clip(0, 1_000), "age": age.astype(float), "job": job}
    )
    return frame.mask(
        pd.DataFrame({"pay": False, "age": rng.random(n) < 0.2, "job": False})
    )


def moments(job: str = "job", **records) -> SecondMoments:
    columns = NUMBERS | {job: JOBS["job"]}
    return SecondMoments(
        Schema.model_validate({"columns": columns, "records": records}),
        ("pay", "age", job),
    )


@pytest.mark.parametrize("job", ["job", ""], ids=["named", "without a name"])
@pytest.mark.parametrize("cap", [1, 2], ids=["one record", "two records a person"])
def test_a_person_moves_products_by_the_sensitivity_at_most(cap, job, neighbours):
    # by enumeration of numbers at the caps, beyond them, between, missing, in each job
    design = moments(job, max_per_person=cap)
    moved = design.step(1, neighbours, "gaussian").sensitivity
    records = product((0.0, 100.0, 200.0, 900.0), (0.0, 35.0, 50.0, 80.0, None), "abc")
    frames = [pd.DataFrame([row] * cap, columns=[*CAPS, job]) for row in records]
    left = (
        np.array([design.count(Table(frame, design.schema), CAPS) for frame in frames])
        / PARTS**2
    )
    left = np.vstack([left, 0 * left[:1]])
    apart = left[:, None] - (left[-1:] if neighbours == "add-remove" else left)
    assert (apart**2).sum(axis=2).max() == pytest.approx(
        float(moved.l2_squared) / PARTS**4
    )
    assert (
        0.7 * float(moved.l1)
        <= np.abs(apart).sum(axis=2).max() * PARTS**2
        <= float(moved.l1)
    )
    # the broken twin: numbers that no cap holds back
    free = {name: (low, low + (high - low) / 2) for name, (low, high) in CAPS.items()}
    wide = [
        (2 * at - low - high) / (high - low)
        for (low, high), at in zip(free.values(), (400, 80), strict=True)
    ]
    assert (2 * np.prod(wide) * cap) ** 2 > float(moved.l2_squared) / PARTS**4


def test_sums_are_those_of_the_records_that_have_all_columns():
    frame, design = workers(300), moments()
    whole = frame.dropna()
    pay, age = (
        (2 * whole[name] - low - high).clip(low - high, high - low) / (high - low)
        for name, (low, high) in CAPS.items()
    )
    vectors = np.column_stack(
        [np.ones(len(whole)), pay, age, whole["job"] == "b", whole["job"] == "c"]
    )
    found = NoisyProducts(
        design,
        design.step(1, "add-remove", "laplace"),
        design.count(Table(frame, design.schema), CAPS),
        CAPS,
    )
    np.testing.assert_allclose(
        found.matrices()[0], vectors.T @ vectors, atol=len(whole) / PARTS
    )
    terms = (
        found.tables()["products"][["first", "second"]].agg(" ".join, axis=1).tolist()
    )
    assert len(terms) == len({*terms}) == 12
    assert {"1 1", "1 job[b]", "pay pay", "pay age", "age job[c]"} < {*terms}
    assert not {"job[b] job[b]", "job[b] job[c]"} & {*terms}


SUMS = {"weighted": SUMS_OF_WEIGHTS, "products": PRODUCTS}
"""The name of the step that each setting asks for."""


@pytest.mark.parametrize(
    "asked", [("weighted",), ("products",), ("weighted", "products")], ids=str
)
@pytest.mark.parametrize("kind", ["pure", "zcdp"])
def test_sums_of_weights_get_a_tenth_of_the_price_and_products_a_quarter(kind, asked):
    schema = Schema.model_validate(
        {"columns": NUMBERS | JOBS, "records": {"weight": "pay"}}
    )
    made = {"weighted": ("job",), "products": ("pay", "age", "job")}
    made = replace(
        plain := of_pairs(epsilon=1, delta=DELTAS[kind]),
        **{name: made[name] for name in asked},
    )
    plan, parts = (
        made.plan(schema),
        {"weighted": Fraction(1, 10), "products": Fraction(1, 4)},
    )
    assert sum(step.price for step in plan.steps) <= made.total
    sums = [plan.named(name) for setting, name in SUMS.items() if setting in asked]
    assert [step.price for step in sums] == [
        made.total * parts[setting] for setting in SUMS if setting in asked
    ]
    left = plan.steps[0].price / plain.plan(schema).steps[0].price
    assert float(left) == pytest.approx(1 - sum(parts[setting] for setting in asked))
    for setting, said in {
        "weighted": "Sums of capped weights",
        "products": "Sums of products of pay, age, job",
    }.items():
        assert (said in plan.loss.statement) == (setting in asked)
    told = [
        step.standard_deviation / (UNITS if step.name == SUMS_OF_WEIGHTS else PARTS**2)
        for step in sums
    ]
    assert [
        each.standard_error for each in prospects(plan, None) if each.kind == "sum"
    ] == pytest.approx(told)


@pytest.mark.slow
def test_intervals_of_slopes_hold_the_tables_slopes_and_the_populations():
    # 400 draws of the noise, intervals of three slopes: 95 % of 1,200 within four
    # standard errors
    frame, design = workers(), moments()
    step = design.step(0.02, "replace-one", "gaussian")
    exact, rng = (
        design.count(Table(frame, design.schema), CAPS),
        np.random.default_rng(4),
    )
    formula, names = "pay ~ age + job", ["age", "job[b]", "job[c]"]
    capped = frame.assign(
        pay=frame["pay"].clip(*CAPS["pay"]), age=frame["age"].clip(*CAPS["age"])
    )
    true = (
        smf.ols(formula, capped)
        .fit()
        .params.rename(lambda name: name.replace("[T.", "["))[names]
    )

    def held(target, noise):
        found = []
        for _ in range(400):
            noisy = exact + np.rint(
                noise * step.standard_deviation * rng.standard_normal(len(exact))
            ).astype(np.int64)
            answer = least_squares(
                NoisyProducts(design, step, noisy, CAPS), "pay", ["age", "job"], target
            ).summary()
            found.append(
                (answer["lower"][names] <= true) & (true <= answer["upper"][names])
            )
        return np.mean(found)

    assert 0.925 < held("table", 1) < 0.975
    # the broken twin: noise that is half as loud again as stated
    assert held("table", 1.5) < 0.9
    wide, narrow = (
        least_squares(
            NoisyProducts(design, step, exact, CAPS), "pay", ["age", "job"], each
        )
        for each in ("population", "table")
    )
    more = np.sqrt(np.diag(wide.covariance - narrow.covariance))
    own = (
        smf.ols(formula, capped).fit().bse.rename(lambda name: name.replace("[T.", "["))
    )
    assert more.tolist() == pytest.approx(own[list(wide.names)].tolist(), rel=0.02)
    assert wide.estimate[1:].tolist() == pytest.approx(true.tolist(), rel=0.01)


def test_noise_that_is_louder_than_the_sums_leaves_slopes_open():
    design = moments()
    step = design.step(0.001, "replace-one", "gaussian")
    found = NoisyProducts(
        design, step, -design.count(Table(workers(10), design.schema), CAPS), CAPS
    )
    with pytest.warns(UselessWarning, match="whole line"):
        answer = least_squares(found, "pay", ["age", "job"], "population").summary()
    assert np.isinf(answer["standard_error"]).all()
    assert (answer["lower"] == -np.inf).all()


def released(n_sets: int = 1, **settings):
    made = of_pairs(**{"epsilon": 4, "delta": "1e-6", "n_sets": n_sets, **settings})
    return made.release(
        Table(workers(), moments().schema), rng=np.random.default_rng(5)
    )[0]


def slopes(frame: pd.DataFrame) -> pd.Series:
    return smf.ols("pay ~ age + job", frame.astype({"age": float})).fit().params


@pytest.mark.slow
def test_a_release_answers_regressions_on_numbers_without_bins(tmp_path):
    release = released(products=("pay", "age", "job"))
    answer = NoisyMargins.of(release).ols("pay ~ age + job").summary()
    true = slopes(workers()).rename(lambda name: name.replace("[T.", "["))
    assert (
        np.abs(answer["estimate"] - true[answer.index]) < 4 * answer["standard_error"]
    ).all()
    assert answer["standard_error"]["age"] < 0.5
    for kind in ("csv", "parquet"):
        release.write(tmp_path / kind, file_format=kind)
        again = NoisyMargins.read(tmp_path / kind).ols("pay ~ age + job").summary()
        pd.testing.assert_frame_equal(again, answer)
    frames = more_sets(tmp_path / "csv", 2, rng=np.random.default_rng(0))
    assert all(frame.shape == (4_000, 3) for frame in frames)
    caps = release.tables["caps"]
    broken = replace(release, tables={**release.tables, "caps": caps.iloc[:1]})
    refuses("don't belong together", NoisyMargins.of, broken)
    # the other way, by pairs alone, has no value for an interval
    refuses("products of all columns", NoisyMargins.of(released()).ols, "pay ~ job")


@pytest.mark.parametrize(
    "together", [products.MOST_TOGETHER, 900], ids=["at once", "in parts"]
)
def test_sets_come_near_the_products_and_keep_what_columns_hold(together, monkeypatch):
    monkeypatch.setattr(products, "MOST_TOGETHER", together)
    with_products = released(products=("pay", "age", "job"))
    (made,), found = with_products.sets, NoisyMargins.of(with_products).moments
    design = found.design

    def off(frame):
        own = NoisyProducts(
            design,
            found.step,
            design.count(Table(frame, design.schema), found.caps),
            found.caps,
        ).matrices()[0]
        (noisy,) = found.matrices()
        covariance = [
            each / each[0, 0] - np.outer(each[0], each[0]) / each[0, 0] ** 2
            for each in (own, noisy)
        ]
        return (
            np.abs(covariance[0] - covariance[1])[1, 2:].max()
            * noisy[0, 0]
            / found.error
        )

    assert off(made) < 1.5
    # the broken twin: the set as pairs make it, one number given to records at random
    shuffled = made.assign(
        pay=made["pay"].sample(frac=1, random_state=0, ignore_index=True)
    )
    assert off(shuffled) > 10
    assert made.index.equals(pd.RangeIndex(4_000))
    assert made["age"].isna().mean() == pytest.approx(0.2, abs=0.05)
    # values are exchanged, and none is lost
    with monkeypatch.context() as patch:
        patch.setattr(
            products.NoisyProducts, "meet", lambda self, frame, *args, **kwargs: frame
        )
        (before,) = released(products=("pay", "age", "job")).sets
    assert not before["pay"].equals(made["pay"])
    assert before["pay"].sort_values().tolist() == made["pay"].sort_values().tolist()


def test_exchanges_keep_what_other_columns_say_of_a_number(monkeypatch):
    # the products want pay to rise with age; in the set it hangs on the job alone
    frame = workers().dropna(ignore_index=True)
    design = SecondMoments(moments().schema, ("pay", "age"))
    step = design.step(1, "replace-one", "gaussian")
    found = NoisyProducts(
        design, step, design.count(Table(frame, design.schema), CAPS), CAPS
    )
    made = frame.assign(pay=frame["pay"] - frame["age"] + 40)
    codes = np.column_stack(
        [
            *(pd.qcut(made[n], 4, labels=False) for n in ("pay", "age")),
            made["job"].factorize()[0],
        ]
    )
    pairs, noisy = (
        SimpleNamespace(home={"pay": (0, 0), "age": (1, 0)}),
        SimpleNamespace(variance=np.full((3, 3), 1e4)),
    )

    def told():
        again = found.meet(
            made, codes, pairs, noisy, np.random.default_rng(0), posterior=False
        )
        pay = again.groupby("job")["pay"].mean()
        return again["pay"].corr(again["age"]), pay["c"] - pay["a"]

    strength, apart = told()
    before = made.groupby("job")["pay"].mean()
    assert strength > 0.6
    assert apart == pytest.approx(before["c"] - before["a"], rel=0.05)
    # the broken twin: exchanges that don't look at other columns
    monkeypatch.setattr(
        products, "_means", lambda values, levels: np.zeros(len(values))
    )
    assert told()[1] < 0.9 * (before["c"] - before["a"])


@pytest.mark.slow
def test_where_sets_carry_the_noise_products_of_numbers_are_measured_unless_told_otherwise():  # noqa: E501
    schema = moments().schema
    asked = of_pairs(epsilon=1, n_sets=5).moments(schema)
    assert asked.names == ("pay", "age")
    assert of_pairs(epsilon=1, n_sets=5, products=("age", "job")).moments(
        schema
    ).names == ("age", "job")
    one = Schema.model_validate({"columns": {"pay": NUMBERS["pay"]} | JOBS})
    others = [
        {},
        {"n_sets": 5, "products": ()},
        {"n_sets": 5, "sets": "fitted"},
        {"chosen": 1},
    ]
    for settings, given in [*((each, schema) for each in others), ({"n_sets": 5}, one)]:
        made = of_pairs(epsilon=1, **settings)
        assert made.moments(given) is None
        assert all(step.name != PRODUCTS for step in made.plan(given).steps)
    for settings in ({"delta": None}, {"neighbours": "add-remove"}):
        release = released(2, **settings)
        document = release.document()
        assert document.settings["products"] is None
        answer = NoisyMargins.of(release).ols("pay ~ age").summary()
        assert np.isfinite(answer["standard_error"]).all()
    fitted = released()
    stray = replace(fitted, tables={**release.tables, **fitted.tables})
    assert NoisyMargins.of(stray).moments is None


@pytest.mark.slow
def test_posterior_sets_have_slopes_that_differ_as_much_as_the_noise_and_the_sample_leave_open():  # noqa: E501
    # of 12 sets: 11 degrees of freedom, each within a factor that fails in one of a
    # thousand
    release = released(12, products=("pay", "age", "job"))
    fits = pd.DataFrame([slopes(frame) for frame in release.sets])
    stated = NoisyMargins.of(release).ols("pay ~ age + job").summary()["standard_error"]
    spread = fits.std().rename(lambda name: name.replace("[T.", "["))
    assert (
        (spread[["age", "job[c]"]] / stated[["age", "job[c]"]]).between(0.35, 2).all()
    )


def test_exchanging_moves_products_and_loses_no_value():
    rng = np.random.default_rng(0)
    values, given = np.sort(rng.normal(size=2_000)), rng.normal(size=(2_000, 2))
    holder, short = rng.permutation(2_000), np.array([400.0, -300.0])
    begun = np.array([values @ given[holder]])
    some = rng.integers(0, 2_000, 60_000)
    exchanged(values, holder, given, short, some, some + rng.integers(1, 200, 60_000))
    assert sorted(holder) == [*range(2_000)]
    np.testing.assert_allclose(
        values @ given[holder] - begun[0] + short, [400, -300], atol=1e-6
    )
    assert np.abs(short).max() < 5


@pytest.mark.slow_cases(
    "add-remove-1",
    "add-remove-30",
    "replace-one-1",
)
@pytest.mark.parametrize("n", [1, 30])
def test_products_of_any_table_are_asked_without_a_failure(n, neighbours):
    # levels out of order, bounds as far as numbers go, a column that is all missing, a
    # column of one value
    far = {"lower": -1e100, "upper": 1e100}
    columns = NUMBERS | JOBS | {"shoe": {"levels": [3, 1, 2]}, "far": far}
    frame = workers(n).assign(shoe=2, far=1e100, age=np.nan)
    table = Table(frame, Schema.model_validate({"columns": columns}))
    made, sizes = (
        of_pairs(
            epsilon=1,
            neighbours=neighbours,
            products=("pay", "shoe", "job"),
            sets="posterior",
        ),
        set(),
    )
    for seed, names in enumerate(
        [made.products, (*made.products, "age"), ("far", "job")] * 2
    ):
        release, _ = replace(made, products=names).release(
            table, rng=np.random.default_rng(seed)
        )
        assert np.isfinite(release.tables["products"]["noisy"]).all()
        assert (release.tables["caps"]["lower"] < release.tables["caps"]["upper"]).all()
        sizes.add(len(release.sets[0]))
    assert 0 in sizes or n > 1 or neighbours == "replace-one"
    design = SecondMoments(table.schema, ("far", "shoe"))
    _, vectors = design.vectors(table, {"far": (-1e100, 1e100), "shoe": (1.0, 3.0)})
    assert vectors.tolist() == [[PARTS, PARTS, 0]] * n


@pytest.mark.parametrize(("names", "match"), cases(__file__, "products"))
def test_products_of_what_is_no_regression_are_refused_with_the_plan(names, match):
    columns = NUMBERS | JOBS | {"code": {"levels": [f"c{k}" for k in range(400)]}}
    refuses(
        match,
        of_pairs(epsilon=1, products=names).plan,
        Schema.model_validate({"columns": columns}),
    )
