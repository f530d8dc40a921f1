"""Public totals: what a schema may say, sets that meet them for no price, conflicts
that are told, raked weights.
"""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs, released
from scipy.stats import binom
from tables import cases, refuses

from pdips import LaplaceSanitizer, Margins, PrivBayes, Schema, Steps, Table
from pdips.margins.residuals import LOUDER, WEIGHT
from pdips.outside import NoisyMargins

N = 600
COLUMNS = {
    "sex": {"levels": ["m", "f"]},
    "age": {"lower": 0, "upper": 39, "bins": 4, "integer": True},
    "region": {"levels": ["A", "B", "C"], "missing": True},
    "income": {"levels": [0, 1, 2]},
    "pregnant": {"levels": ["no", "yes"]},
}
TIED = [{"sex": "m", "pregnant": "yes"}]


def people(seed=0, n=N):
    rng = np.random.default_rng(seed)
    sex, age = rng.integers(0, 2, n), rng.integers(0, 40, n)
    region = pd.Series(
        np.array(["A", "B", "C", None], dtype=object)[rng.integers(0, 4, n)],
        dtype="str",
    )
    frame = pd.DataFrame(
        {"sex": np.array(["m", "f"])[sex], "age": age, "region": region}
    )
    income = np.clip(age // 14 + rng.integers(-1, 2, n), 0, 2)
    return frame.assign(
        income=income,
        pregnant=np.where((sex == 1) & (rng.random(n) < 0.2), "yes", "no"),
    )


def spelt(frame):
    """Return a frame with its cells spelt as totals spell them."""
    bins = pd.cut(
        frame["age"],
        [-1, 9, 19, 29, 39],
        labels=Schema(columns=COLUMNS).columns["age"].names(),
    )
    return frame.assign(
        age=bins.astype(str),
        region=frame["region"].fillna("missing"),
        income=frame["income"].map(str),
    )


def counts_of(frame, names, weights=None):
    """Count all cells by pandas, as a flat mapping."""
    levels = [Schema(columns=COLUMNS).columns[name].names() for name in names]
    told = (
        spelt(frame)
        .assign(one=1 if weights is None else weights)
        .groupby(list(names))["one"]
        .sum()
    )
    return {
        cell: told.get(cell if len(names) > 1 else cell[0], 0)
        for cell in product(*levels)
    }


def total(frame, names, **more):
    counts = {}
    for cell, count in counts_of(frame, names, more.pop("weights", None)).items():
        below = counts
        for level in cell[:-1]:
            below = below.setdefault(level, {})
        below[cell[-1]] = float(count) if "weighted" in more else int(count)
    return {"columns": list(names), "counts": counts, **more}


def schema_with(totals, **more):
    return Schema(
        columns=COLUMNS | more.pop("columns", {}), impossible=TIED, total=totals, **more
    )


def missed(made, frame, names):
    """Return how far the counts of a set are from those of a table, scaled to its
    number of records.
    """
    found, wanted = counts_of(made, names), counts_of(frame, names)
    return max(
        abs(found[cell] - wanted[cell] * len(made) / len(frame)) for cell in wanted
    )


TOTALS = [
    [("sex",)],
    [("sex", "age"), ("pregnant",), ("sex", "region")],
    [("age", "region", "income"), ("sex",)],
]
MECHANISMS = [
    of_pairs(epsilon=1, delta="1e-6"),
    of_pairs(epsilon=1, n_sets=2),
    of_pairs(epsilon=1, delta="1e-6", neighbours="add-remove"),
    Margins(epsilon=1),
    Margins(epsilon=1, delta="1e-6", n_sets=2, sets="posterior"),
    Margins(epsilon=1, neighbours="add-remove"),
]


@pytest.mark.parametrize("names", TOTALS, ids=str)
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_sets_meet_totals_for_the_same_price(mechanism, names):
    frame = people()
    schema, plain = schema_with([total(frame, each) for each in names]), schema_with([])
    release = released(mechanism, Table(frame, schema), 3)
    most = 1e-9 if mechanism.neighbours == "replace-one" else 1.0
    for made in release.sets:
        assert max(missed(made, frame, each) for each in names) <= most
        Table(made, schema.without_person())  # no combination that can't occur
    assert max(check.gap for check in release.totals) <= most
    twin = released(mechanism, Table(frame, plain), 4)  # the broken twin ignores them
    assert (
        min(max(missed(made, frame, each) for each in names) for made in twin.sets) > 2
    )
    assert release.loss.epsilon == twin.loss.epsilon
    assert mechanism.spends(schema) == mechanism.spends(plain)


def test_a_census_beside_a_survey_gives_shares():
    frame, census = people(), people(1, 9_973)
    schema = schema_with([total(census, ("sex", "age")), total(census, ("region",))])
    release = released(of_pairs(epsilon=1, delta="1e-6"), Table(frame, schema), 4)
    assert len(release.sets[0]) == N
    assert missed(release.sets[0], census, ("sex", "age")) < 1
    assert all(check.scaled and check.gap < 1 for check in release.totals)


def wrong(frame, by):
    """Return the table's counts of income with so many records moved from one level to
    another.
    """
    counts = {level: int((frame["income"] == int(level)).sum()) for level in "012"}
    return {
        "columns": ["income"],
        "counts": counts | {"1": counts["1"] + by, "2": counts["2"] - by},
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism",
    [
        of_pairs(epsilon=4, delta="1e-6"),
        of_pairs(epsilon=4, neighbours="add-remove"),
        Margins(epsilon=4, delta="1e-6"),
    ],
    ids=repr,
)
def test_conflicts_are_told_and_noise_alone_is_not_one(mechanism):
    frame, n_runs = people(), 40
    table = Table(
        frame, schema_with([total(frame, ("income",)), total(frame, ("sex", "region"))])
    )
    p = np.array(
        [
            [check.p for check in released(mechanism, table, seed).totals]
            for seed in range(n_runs)
        ]
    )
    # false alarm: 1 in 10,000
    assert (p < 0.05).sum(axis=0).max() <= binom.ppf(1 - 1e-4, n_runs, 0.05)
    release = released(mechanism, Table(frame, schema_with([wrong(frame, 150)])))
    (check,) = release.totals
    assert check.p < 1e-3
    assert check.cell in ("income = 1", "income = 2")
    assert check.difference * (1 if check.cell == "income = 2" else -1) > 0
    assert json.loads(json.dumps(release.describe()))["totals"][0]["z"] == check.z
    assert "disagree" in replace(release, reproducible=False).card()


def test_margins_within_a_total_are_counted_with_more_noise_and_others_with_less():
    schemas = (
        schema_with(totals) for totals in ([], [total(people(), ("age", "region"))])
    )
    designs = [
        of_pairs(epsilon=1, delta="1e-6").plan(schema).design for schema in schemas
    ]
    place = {name: block for name, (block, _) in designs[0].home.items()}
    plain, told = (
        dict(zip(each.margins, each.weights / WEIGHT, strict=True)) for each in designs
    )
    pair = (place["age"], place["region"])
    assert told[pair] < 2 * plain[pair] / LOUDER**2 < plain[pair]
    assert designs[1].weights.max() == WEIGHT  # of a single column that isn't known
    assert told[place["income"],] == 1.0 > told[place["age"],]


def test_outside_knows_totals_of_the_table_itself():
    frame = people()
    schema = schema_with([total(frame, ("income",))])
    release, _ = of_pairs(epsilon=1, delta="1e-6").release(
        Table(frame, schema), rng=np.random.default_rng(5)
    )
    found = NoisyMargins.of(release).total("income")
    np.testing.assert_allclose(
        found.estimate, frame["income"].value_counts().sort_index(), atol=0.1
    )
    assert np.sqrt(np.diagonal(found.covariance)).max() < 0.01


CIRCLE = [
    total(people(), names)
    for names in (("sex", "age"), ("age", "income"), ("sex", "income"))
]


@pytest.mark.parametrize(
    ("totals", "message"), [*cases(__file__, "totals"), (CIRCLE, "in a circle")]
)
def test_what_a_schema_may_not_say(totals, message):
    refuses(
        message,
        schema_with,
        [{"columns": ["sex"], "counts": {"m": 1, "f": 1}} | each for each in totals],
    )


def test_totals_from_a_file_and_back(tmp_path):
    text = Schema(columns=COLUMNS).to_toml()
    (tmp_path / "s.toml").write_text(
        f'{text}\n[[total]]\ncolumns = ["sex", "income"]\nfile = "census.csv"\n'
    )
    rows = [
        "sex,income,count",
        *(f"{sex},{income},{7 * income + 1}" for sex in "mf" for income in range(3)),
    ]
    (tmp_path / "census.csv").write_text("\n".join(rows))
    schema = Schema.load(tmp_path / "s.toml")
    assert schema.total[0].counts["f"] == {"0": 1, "1": 8, "2": 15}
    assert Schema.from_toml(schema.to_toml()) == schema
    assert schema.only(["sex"]).total == ()
    for lines, message in (
        (["sex,count", "m,1"], "must name sex, income and count"),
        ([*rows, rows[1]], "two counts of a cell"),
        ([*rows[:-1], "f,2,many"], "the count of f, 2 must be a number"),
        (rows[:-1], "no count of f, 2"),
    ):
        (tmp_path / "census.csv").write_text("\n".join(lines))
        refuses(message, Schema.load, tmp_path / "s.toml")


def test_other_mechanisms_refuse_before_the_spend():
    frame = people()
    table = Table(frame, schema_with([total(frame, ("sex",))]))
    for mechanism in (
        PrivBayes(epsilon=1),
        LaplaceSanitizer(epsilon=1),
        Steps(epsilon=1, order=("sex", "age")),
    ):
        refuses("public totals", mechanism.privacy_loss, table.schema)


@pytest.mark.parametrize(
    "mechanism",
    [of_pairs(epsilon=2, delta="1e-6"), LaplaceSanitizer(epsilon=2)],
    ids=repr,
)
def test_weights_of_sets_are_raked_to_weighted_totals_within_their_bounds(mechanism):
    frame = people().assign(w=np.random.default_rng(6).uniform(5, 20, N))[
        ["sex", "income", "w"]
    ]
    census = people(1, 8_000)
    columns = {name: COLUMNS[name] for name in ("sex", "income")} | {
        "w": {"lower": 1, "upper": 40, "bins": 4}
    }
    totals = [total(census, (name,), weighted=True) for name in ("sex", "income")]
    schema = Schema(columns=columns, records={"weight": "w"}, total=totals)
    release, _ = mechanism.release(Table(frame, schema), rng=np.random.default_rng(7))
    (made,) = release.sets
    assert made["w"].between(1, 40).all()
    for name, each in (("sex", census["sex"]), ("income", census["income"])):
        wanted = each.value_counts()
        np.testing.assert_allclose(
            made.groupby(name)["w"].sum()[wanted.index], wanted, rtol=1e-6
        )
    assert max(check.gap for check in release.totals) < 0.01
    plain = Schema(columns=columns, records={"weight": "w"})  # the broken twin
    twin, _ = mechanism.release(Table(frame, plain), rng=np.random.default_rng(7))
    assert abs(twin.sets[0]["w"].sum() - 8_000) > 100
    assert twin.loss == release.loss
