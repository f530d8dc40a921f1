"""Evaluation inside: measures by hand and by their own functions, a release on disk,
and every bad input.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tables import cases, refuses, schema_in, schema_text, voters

from pdips import Margins, Schema, Table
from pdips.data.schema import Records
from pdips.evaluation.distribution import distances, ecdf_distances
from pdips.evaluation.document import open_release
from pdips.evaluation.encoding import with_decile_bins
from pdips.evaluation.evaluate import (
    SEED,
    SUMMARIES,
    basics,
    general_utility,
    resample,
    specific_utility,
    summary,
)
from pdips.evaluation.formula import read_analysis
from pdips.evaluation.margins import k_way
from pdips.evaluation.propensity import specks, standardised_pmse
from pdips.evaluation.regression import ci_overlap
from pdips.inference import combine

SCHEMA = schema_in("evaluate")
N = 400


# ---- measures ----


def test_ecdf_distances_by_hand_and_scipys():
    # at 1, 2, 3, 4, 5 the functions differ by 1/4, 1/4, 0, 1/4, 0; of the eight records
    # 3, 2, 1, 1, 1 lie there
    largest, average = distances(np.array([1.0, 2, 3, 4]), np.array([1.0, 1, 2, 5]))
    assert largest == 0.25
    assert average == pytest.approx((3 + 2 + 1) / 16 / 8)
    a, b = voters(), voters(300, 2)
    found = ecdf_distances(Table(a, SCHEMA), b)
    coded = [
        frame.replace({"region": {"north": 0, "south": 1, "west": 2}}).fillna(
            {"region": 3}
        )
        for frame in (a, b)
    ]
    for name in ("income", "visits", "region"):
        wanted = stats.ks_2samp(
            *(frame[name].astype(float) for frame in coded)
        ).statistic
        assert found.largest[name] == pytest.approx(wanted)
    assert set(ecdf_distances(Table(a, SCHEMA), a).largest.values()) == {0.0}


def test_every_measure_is_what_its_own_function_says():
    table, sets = Table(voters(), SCHEMA), [voters(seed=2), voters(seed=3)]
    found = {measure.name: measure for measure in general_utility(table, sets)}
    assert all(
        measure.reason is None and len(measure.by_set) == 2
        for measure in found.values()
    )
    again = resample(table, np.random.default_rng(SEED))
    three = [k_way(with_decile_bins(table), [frame], 3) for frame in (*sets, again)]
    assert found["TVD of 3-way margins"].by_set == tuple(
        one["mean"] for one in three[:2]
    )
    assert found["TVD of 3-way margins"].reference == three[2]["mean"]
    # one resample for all
    assert found["SPECKS"].reference == specks(with_decile_bins(table), [again]).mean
    assert general_utility(table, sets) == [*found.values()]  # references repeat
    assert found["TVD of 3-way margins, largest"].mean == pytest.approx(
        np.mean([one["max"] for one in three[:2]])
    )
    number = standardised_pmse(*[frame[["age"]] for frame in (table.frame, sets[0])])
    alone = Schema(columns={"age": SCHEMA.columns["age"]})
    only = {
        m.name: m
        for m in general_utility(Table(table.frame[["age"]], alone), [sets[0][["age"]]])
    }
    assert (only["pMSE"].mean, only["pMSE over its null"].mean) == pytest.approx(
        (number.pmse, number.ratio)
    )
    assert re.search(
        "needs 2 columns with levels or bins.*k must be",
        only["TVD of 2-way margins"].reason,
    )


def test_the_table_itself_scores_best_and_nonsense_scores_badly():
    names = ["voted", "age", "college"]
    table = Table(
        voters()[names], Schema(columns={name: SCHEMA.columns[name] for name in names})
    )
    nonsense = table.frame.assign(
        voted="no", age=np.random.default_rng(4).integers(18, 60, N), college=True
    )
    equal, bad = (
        general_utility(table, [table.frame]),
        general_utility(table, [nonsense]),
    )
    for measure, worse in zip(equal, bad, strict=True):
        assert measure.mean == pytest.approx(0.0, abs=1e-9), measure.name
        assert abs(worse.mean - measure.mean) > abs(measure.reference - measure.mean), (
            measure.name
        )


def test_a_set_without_records_has_reasons_not_figures_where_there_are_none():
    found = {
        measure.name: measure
        for measure in general_utility(
            Table(voters(100), SCHEMA), [voters(100).iloc[:0]]
        )
    }
    assert (found["SPECKS"].mean, found["TVD of 2-way margins"].mean) == (1.0, 1.0)
    assert "no records" in found["pMSE"].reason


# ---- survey weights ----

WEIGHED = schema_text("evaluate_weighed")


def test_weighted_margins_and_ecdf_by_hand():
    table = Table(
        pd.DataFrame({"a": ["x", "x", "y"], "w": [1.0, 1.0, 2.0]}),
        Schema.from_toml(WEIGHED),
    )
    made = pd.DataFrame({"a": ["x", "y", "y"], "w": [3.0, 0.5, 0.5]})
    # 1/2 against 3/4
    assert k_way(table, [made], 1, weighted=True)["by_margin"] == {
        ("a",): pytest.approx(0.25)
    }
    assert k_way(table, [made], 1)["by_margin"] == {("a",): pytest.approx(1 / 3)}
    assert ecdf_distances(table, made, weighted=True).largest["a"] == pytest.approx(
        0.25
    )
    found = {measure.name: measure for measure in general_utility(table, [made])}
    assert found["TVD of 1-way margins"].weighted
    assert not found["SPECKS"].weighted


@pytest.mark.parametrize(
    ("change", "message"), cases(__file__, "a_column_that_cant_hold_weights_is_refused")
)
def test_a_column_that_cant_hold_weights_is_refused(change, message):
    refuses(message, Schema.from_toml, WEIGHED.replace(*change))


def test_the_schema_of_sets_keeps_the_weight_and_weights_of_0_are_refused():
    schema = Schema.from_toml(WEIGHED.replace("[records]", '[records]\nperson = "who"'))
    assert schema.without_person().records.weight == "w"
    assert Schema.from_toml(schema.to_toml()) == schema
    table = Table(pd.DataFrame({"a": ["x"], "w": [0.0]}), Schema.from_toml(WEIGHED))
    refuses("must not all be 0", k_way, table, [table.frame], 1, weighted=True)
    refuses(
        "names no column of weights",
        k_way,
        Table(voters(10), SCHEMA),
        [voters(10)],
        1,
        weighted=True,
    )


# ---- a release on disk ----


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("released")
    names = [name for name in SCHEMA.columns if name != "income"]
    table = Table(
        voters()[names], Schema(columns={name: SCHEMA.columns[name] for name in names})
    )
    table.frame.to_parquet(folder / "t.parquet")
    release, _ = Margins(epsilon=5, n_sets=2).release(table)
    release.publish(folder / "out" / "public")
    return folder


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_evaluation_from_end_to_end_stays_inside(pdips, here):
    before, formula = contents(here / "out" / "public"), "voted ~ age + college"
    words = [
        "evaluate",
        here / "t.parquet",
        here / "out",
        "--analysis",
        formula,
        "--json",
        here / "more.json",
    ]
    out = pdips.ok(*words)
    for word in (
        "INSIDE ONLY",
        "SPECKS",
        "avg-ECDF",
        "overlap",
        "coverage",
        "reference",
        formula,
    ):
        assert word in out
    assert contents(here / "out" / "public") == before
    inside = (here / "out" / "confidential" / "evaluation.json").read_text()
    assert inside == (here / "more.json").read_text()
    found = json.loads(inside)
    assert "leaks" in found["inside_only"]
    assert len(found["general"]) == 11
    assert list(found).index("basics") < list(found).index("general")
    assert out.index("mean of age") < out.index("SPECKS")
    assert (len(found["pictures"]["densities"]), len(found["pictures"]["pairs"])) == (
        1,
        4,
    )
    assert (
        set(found["specific"]["summary"])
        == set(found["specific"]["reference"])
        == set(SUMMARIES)
    )
    assert found["specific"]["rule"] == "between"
    assert found["specific"]["note"] is None


def test_specific_utility_is_that_of_the_combining_rule(here):
    opened, frame = open_release(here / "out"), pd.read_parquet(here / "t.parquet")
    analysis = read_analysis("voted ~ age", opened.schema)
    found = specific_utility(Table(frame, opened.schema), opened, analysis)
    original, *fits = [analysis.fit(each) for each in (frame, *opened.sets)]
    pooled = combine(
        [fit.estimates for fit in fits],
        [fit.standard_errors**2 for fit in fits],
        rule="between",
    )
    np.testing.assert_allclose(
        [one.combined for one in found.coefficients], pooled.estimate
    )
    overlap = ci_overlap(*original.interval(), *pooled.interval)
    assert found.summary["overlap of intervals"] == pytest.approx(overlap.mean())
    inside = (pooled.interval[0] <= original.estimates) & (
        original.estimates <= pooled.interval[1]
    )
    assert found.summary["coverage"] == inside.mean()
    # |N(0, 1)| has mean 0.8
    assert 0.4 < found.reference["standardised difference"] < 1.6


def test_summaries_by_hand():
    rows = pd.DataFrame(
        {"original": [1.0, 2.0, np.nan], "ci_overlap": [0.5, 0.0, np.nan]}
    )
    rows = rows.assign(
        standardized_difference=[-2.0, np.nan, 1.0], same_sign=[True, False, False]
    )
    rows["covered"] = rows["same_sign"]
    assert list(summary(rows).values()) == [0.25, 2.0, 0.5, 0.5]
    assert np.isnan(list(summary(rows.iloc[2:]).values())).all()


def test_a_single_set_has_an_interval_with_a_warning(here):
    facts = json.loads((here / "out/public/privacy.json").read_text())
    (here / "out/public/synthetic_2.parquet").unlink()
    (here / "out/public/privacy.json").write_text(json.dumps({**facts, "n_sets": 1}))
    opened = open_release(here / "out")
    table = Table(pd.read_parquet(here / "t.parquet"), opened.schema)
    found = specific_utility(
        table, opened, read_analysis("visits ~ age", opened.schema, "poisson")
    )
    assert found.rule == "raab-nowok-dibben"
    assert "too short" in found.note


def test_bad_input_has_one_line_each(pdips, here):
    pd.DataFrame({"other": [1]}).to_parquet(here / "other.parquet")
    pd.read_parquet(here / "t.parquet").assign(age=17).to_parquet(
        here / "young.parquet"
    )
    for words, message in cases(__file__, "bad_input_has_one_line_each"):
        found = pdips.fails("", "evaluate", *shlex.split(words.format(here=here)))
        assert re.search(message, found), message
    assert not (here / "out/confidential").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda frame: frame.drop(columns="age"),
            "column 'age' of the schema is not in the table",
        ),
        (lambda frame: frame.assign(voted="perhaps"), "values outside the levels"),
        (
            lambda frame: frame.assign(extra=1),
            "'extra' of the table is not in the schema",
        ),
        (
            lambda frame: frame.iloc[:0].drop(columns="age"),
            "its columns are not those of the schema",
        ),
    ],
)
def test_sets_edited_by_hand_are_called_so(pdips, here, change, message):
    path = here / "out/public/synthetic_2.parquet"
    change(pd.read_parquet(path)).to_parquet(path)
    err = pdips.fails(message, "evaluate", here / "t.parquet", here / "out")
    assert "synthetic_2.parquet doesn't fit the schema" in err
    assert "edited by hand" in err


def test_a_set_that_is_missing_or_in_excess_is_called_so(pdips, here):
    words, first = (
        ("evaluate", here / "t.parquet", here / "out"),
        here / "out/public/synthetic_1.parquet",
    )
    third = shutil.copy(first, first.with_name("synthetic_3.parquet"))
    pdips.fails("not of this release", *words)
    Path(third).unlink()
    pd.read_parquet(first).to_csv(first.with_suffix(".csv"), index=False)
    pdips.fails("synthetic_1.parquet are both there", *words)
    first.with_suffix(".csv").unlink()
    first.unlink()
    pdips.fails("synthetic set 1 of 2 is missing", *words)


def test_analyses_without_an_answer_counted_tables_and_no_sets_are_refused(here):
    opened = open_release(here / "out")
    few = Table(pd.read_parquet(here / "t.parquet").iloc[:3], opened.schema)
    refuses(
        "doesn't fit the table",
        specific_utility,
        few,
        opened,
        read_analysis("voted ~ age + college", few.schema),
    )
    table = Table(voters(20), SCHEMA)
    refuses("at least one synthetic set", general_utility, table, [])
    table.counts = np.ones(20, dtype=np.int64)
    refuses("counted=False", general_utility, table, [voters(20)])


@pytest.mark.parametrize("weighted", [False, True])
def test_what_people_compare_first_is_what_numpy_says(weighted):
    rng, n = np.random.default_rng(0), 400
    frame = pd.DataFrame(
        {
            "x": rng.uniform(0, 100, n),
            "y": rng.uniform(0, 50, n),
            "w": rng.integers(0, 4, n),
        }
    )
    frame["y"] += frame["x"] / 2
    frame.loc[rng.random(n) < 0.2, "x"] = np.nan
    frame["none"] = np.nan
    schema = schema_in("evaluate_basic")
    schema = schema if weighted else schema.model_copy(update={"records": Records()})
    far = frame.assign(x=frame["x"] / 2)
    found = {
        one.name: one
        for one in basics(Table(frame, schema), [frame, far, frame.iloc[:0]])
    }
    known = frame.dropna(subset="x")
    weights = known["w"].to_numpy(float) if weighted else np.ones(len(known))
    covariance = np.cov(known["x"], known["y"], aweights=weights, ddof=0)
    sd = np.sqrt(covariance[0, 0])
    levels = [0.1, 0.25, 0.5, 0.75, 0.9]
    quantiles = np.quantile(
        known["x"], levels, weights=weights, method="inverted_cdf"
    ).tolist()
    assert [found[f"{level:.0%} quantile of x"].table for level in levels] == quantiles
    wanted = {
        "mean of x": np.average(known["x"], weights=weights),
        "standard deviation of x": sd,
    }
    wanted["correlation of x and y"] = covariance[0, 1] / sd / np.sqrt(covariance[1, 1])
    assert {name: found[name].table for name in wanted} == pytest.approx(wanted)
    assert found["mean of none"].table is None
    assert found["records"].by_set == (400, 400, 0)
    assert ("total of the weights" in found) == weighted
    # 200 resamples: the width of their middle 95 % has a standard error of about 7 %
    low, high = found["mean of x"].resamples
    effective = weights.sum() ** 2 / (weights**2).sum()
    assert high - low == pytest.approx(2 * 1.96 * sd / np.sqrt(effective), rel=0.3)
    near, other, nothing = found["mean of x"].by_set
    assert low < near < high
    assert nothing is None
    assert not low < other < high  # the twin: half of each number
