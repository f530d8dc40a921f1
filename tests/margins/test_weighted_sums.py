"""Noisy sums of weights by level in ``pairs``: what a person moves, the law, and the weights of sets."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tables import refuses

from pdips import Pairs, Schema, Table
from pdips.calibration.closed_form import prospects
from pdips.margins.weighted_sums import UNITS, WeightedSums

N = 2_000
W = {"lower": 0, "upper": 1_000}


def schema_of(**records) -> Schema:
    columns = {"sex": {"levels": ["f", "m"]}, "job": {"levels": ["a", "b", "c"], "missing": True}, "w": W}
    return Schema.model_validate({"columns": columns, "records": {"weight": "w", **records}})


def survey(schema: Schema | None = None, n: int = N) -> Table:
    # heavy weights, and those of women are three times as large
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"sex": rng.choice(["f", "m"], n), "job": rng.choice(["a", "b", "c", None], n)})
    frame["w"] = np.round(np.exp(rng.normal(3, 1, n)) * np.where(frame["sex"] == "f", 3, 1), 2).clip(0, 1_000)
    return Table(frame, schema or schema_of())


@pytest.mark.parametrize("cap", [1, 2], ids=["one record", "two records a person"])
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_a_person_moves_the_sums_by_the_sensitivity_at_most(law, cap, neighbours):
    # by enumeration of weights at, within and beyond the cap; the worst pair uses all of it
    schema = schema_of(max_per_person=cap)
    sums, limit = WeightedSums(schema, ("sex", "job")), 50.0
    moved = sums.step(1, neighbours, law).sensitivity
    records = [(sex, job, w) for sex in "fm" for job in ("a", None) for w in (0.0, 3.3, 50.0, 900.0)]

    def counts(rows):
        return sums.count(Table(pd.DataFrame(rows, columns=["sex", "job", "w"]), schema), limit)

    base = [("f", "b", 20.0)]
    others = [[row] * cap for row in records] + ([[]] if neighbours == "add-remove" else [])
    left = [counts(base + other) for other in others]
    ends = [left[-1]] if neighbours == "add-remove" else left
    squares = [float(((a - b) ** 2).sum()) for a in left for b in ends]
    assert max(np.abs(a - b).sum() for a in left for b in ends) == moved.l1
    # all of a person's records in one place; a replaced one leaves another
    assert max(squares) == moved.l2_squared
    # the broken twin: weights that no cap holds back
    assert np.abs(sums.count(survey(schema, 5), 1e-9) - 0).max() <= 5 * UNITS
    free = [float(row[2]) / limit * UNITS for row in records]
    assert max(free) * cap > moved.l1


def test_weights_are_read_like_other_numbers():
    table = survey(n=50)
    text = Table(table.frame.assign(w=" " + table.frame["w"].astype(str) + "e0"), table.schema)
    sums = WeightedSums(table.schema, ("sex", "job"))
    np.testing.assert_array_equal(sums.count(text, 30.0), sums.count(table, 30.0))


def test_sets_without_records_fail_nothing_after_the_charge():
    made, sizes = Pairs(epsilon="0.2", neighbours="add-remove", weighted=("sex",), sets="posterior", n_sets=2), set()
    for seed in range(12):
        release, _ = made.release(survey(n=1), rng=np.random.default_rng(seed))
        sizes |= {len(frame) for frame in release.sets}
    assert min(sizes) == 0 < max(sizes)


@pytest.mark.parametrize("kind", ["pure", "zcdp"])
def test_the_price_is_the_tenth_and_all_that_is_charged_is_asked(kind):
    made = Pairs(epsilon=1, kind=kind, weighted=("sex",))
    plan = made.plan(schema_of())
    assert sum(step.price for step in plan.steps) <= made.total
    (of_weights,) = [step for step in plan.steps if "weights" in step.name]
    assert of_weights.price == made.total / 10
    other = replace(made, weighted=()).plan(schema_of())
    assert float(plan.steps[0].price / other.steps[0].price) == pytest.approx(0.9)
    assert "Sums of capped weights" in plan.loss.statement
    # the broken twin: a sensitivity that forgets that a record is in a sum of each column
    two = Pairs(epsilon=1, kind=kind, weighted=("sex", "job")).plan(schema_of())
    assert two.steps[-2].standard_deviation > 1.3 * plan.steps[-2].standard_deviation


def test_published_sums_are_the_capped_ones_with_the_noise_that_is_stated():
    # 4 numbers in 150 releases: mean and variance of errors in standard errors, error rate about 10^-4
    table, found = survey(), []
    schema, design = table.schema, WeightedSums(table.schema, ("sex",))
    made = Pairs(epsilon=8, kind="zcdp", weighted=("sex",))
    for seed in range(25):
        rows = made.release(table, rng=np.random.default_rng(seed))[0].tables["weighted_sums"]
        true = design.count(table, rows["cap"][0]) * rows["cap"][0] / UNITS
        found.append((rows["noisy"] - true) / rows["standard_error"])
        weights = table.frame["w"].clip(upper=rows["cap"][0])
        assert true == pytest.approx(weights.groupby(table.frame["sex"]).sum().to_numpy(), rel=1e-3)
    errors = np.concatenate(found)
    assert abs(errors.mean()) < 4 / np.sqrt(len(errors))
    assert 0.4 < errors.var() < 1.9
    assert rows["level"].tolist() == schema.columns["sex"].names()
    (told,) = (each for each in prospects(made.plan(schema), None) if each.kind == "sum")
    assert rows["standard_error"].tolist() == pytest.approx([told.standard_error * rows["cap"][0]] * 2)


def shares(frame: pd.DataFrame) -> float:
    return float(frame.loc[frame["sex"] == "f", "w"].sum())


def test_sets_have_weights_with_these_sums():
    # up to what weights are beyond the cap, which all levels share
    table = survey()
    release, _ = Pairs(epsilon=1, kind="zcdp", weighted=("sex",)).release(table, rng=np.random.default_rng(0))
    (made,), wanted = release.sets, release.tables["weighted_sums"]["noisy"].to_numpy()
    sums = made.groupby("sex")["w"].sum().to_numpy()
    assert made["w"].between(0, 1_000).all()
    assert sums / sums.sum() == pytest.approx(wanted / wanted.sum())
    assert 1 <= sums.sum() / wanted.sum() < 1.2
    # the broken twin: weights as pairs alone make them
    (twin,) = Pairs(epsilon=1, kind="zcdp").release(table, rng=np.random.default_rng(0))[0].sets
    sums = twin.groupby("sex")["w"].sum().to_numpy()
    assert abs(sums / sums.sum() - wanted / wanted.sum()).max() > 0.01


def test_posterior_sets_carry_the_noise_of_the_sums():
    table = survey()
    made = Pairs(epsilon=1, kind="zcdp", weighted=("sex",), n_sets=20)
    release, _ = made.release(table, rng=np.random.default_rng(0))
    rows = release.tables["weighted_sums"]
    spread = np.std([shares(frame) for frame in release.sets], ddof=1)
    assert 0.6 < spread / rows["standard_error"][0] < 1.6  # 19 degrees of freedom, error rate about 0.003
    # the broken twin: all sets have the published sums
    same = replace(made, sets="fitted").release(table, rng=np.random.default_rng(0))[0].sets
    assert np.std([shares(frame) for frame in same], ddof=1) < 0.01 * spread


@pytest.mark.parametrize(
    ("weighted", "change", "match"),
    [
        (("sex",), {"records": {}}, "need records.weight"),
        (("sex",), {"w": W | {"integer": True}}, "need records.weight"),
        (("sex",), {"w": W | {"bins": 5}}, "without bins"),
        (("w",), {}, "'w' is no column with levels or bins"),
        (("age",), {}, "'age' is no column"),
        (("sex", "sex"), {}, "a column twice"),
    ],
)
def test_what_cannot_be_weighted_is_refused_with_the_plan(weighted, change, match):
    content = schema_of().to_dict()
    content["columns"] |= {name: value for name, value in change.items() if name == "w"}
    content |= {name: value for name, value in change.items() if name == "records"}
    refuses(match, Pairs(epsilon=1, weighted=weighted).plan, Schema.model_validate(content))


def test_loud_noise_leaves_the_weights_of_sets_alone():
    table = survey(n=20)
    made = Pairs(epsilon="0.01", weighted=("sex",)).release(table, rng=np.random.default_rng(1))[0].sets[0]
    assert made["w"].between(0, 1_000).all()
    assert np.isfinite(made["w"]).all()
