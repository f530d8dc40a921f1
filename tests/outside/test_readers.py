"""Noisy tables of others: read as their formats say, with intervals that hold; refused
where that is too little.
"""

import math

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from tables import cases, refuses

from pdips import NoisyCounts
from pdips.outside import noisy_margins, read_nmf, read_opendp

LEVELS = {"sex": ["f", "m"], "age": [20, 35, 50], "voted": ["no", "yes"]}
TRUE = np.array([[[40, 22], [31, 60], [18, 75]], [[52, 11], [44, 35], [29, 48]]])
WHOLE = np.arange(-60, 61)


def noise_of(law: str, scale: float, n: int, rng: np.random.Generator) -> np.ndarray:
    weights = np.exp(
        -(abs(WHOLE) / scale)
        if law.endswith("Laplace")
        else -(WHOLE**2) / (2 * scale**2)
    )
    return rng.choice(WHOLE, n, p=weights / weights.sum())


def released(
    keys: str,
    *,
    law: str = "Integer Laplace",
    scale: float = 2,
    noise: float = 0,
    rng=None,
    **summary,
):
    """Return what OpenDP gives for a query: rows in any order, and the summary."""
    counts = TRUE.sum(
        axis=tuple(k for k, key in enumerate(LEVELS) if key not in keys.split())
    ).ravel()
    if noise:
        counts = counts + noise_of(law, noise, len(counts), rng)
    index = pd.MultiIndex.from_product(
        [LEVELS[key] for key in LEVELS if key in keys.split()], names=keys.split()
    )
    frame = (
        index.to_frame(index=False).assign(len=counts).sample(frac=1, random_state=1)
    )
    stated = {
        "column": "len",
        "aggregate": "Frame Length",
        "distribution": law,
        "scale": float(scale),
    }
    return frame, pd.DataFrame([stated | summary])


AXES = ("hhgq", "votingage", "hispanic", "cenrace")
SHAPE = (8, 2, 2, 63)
PERSONS = np.random.default_rng(3).poisson(0.5, SHAPE)
GROUPS = [[0], [1, 2, 3, 4], [5, 6, 7]]
QUERIES = cases(__file__, "queries")


def measurement_file(
    variance: float = 4.0, rng=None, geocode: str = "05001"
) -> pd.DataFrame:
    """Return the rows of a geocode as the files of 2020 have them: attributes, shape,
    flat values, one variance.
    """
    rows = []
    for query, spec in QUERIES.items():
        table = PERSONS.sum(
            axis=tuple(k for k, kind in enumerate(spec) if kind == "*"), keepdims=True
        )
        if spec[0] == "i":
            table = np.stack([table[group].sum(axis=0) for group in GROUPS])
        noise = (
            0
            if rng is None
            else noise_of("Integer Gaussian", variance**0.5, table.size, rng)
        )
        kinds = {"*": "*", "d": "detailed", "i": "hhinstlevels"}
        attributes = {
            axis: kinds.get(kind, axis) for axis, kind in zip(AXES, spec, strict=True)
        }
        rows.append(
            {
                "geocode": geocode,
                "query_name": query,
                **attributes,
                "query_shape": list(table.shape),
            }
            | {
                "value": (table.ravel() + noise).tolist(),
                "variance": np.float32(variance),
                "plb": 0.01,
            }
        )
    return pd.DataFrame(rows)


def by_hand(table: np.ndarray, *kept: int) -> np.ndarray:
    return table.sum(axis=tuple(k for k in range(table.ndim) if k not in kept)).ravel()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_counts_of_opendp_are_those_of_the_table(tmp_path, suffix):
    pairs = []
    for k, keys in enumerate(["sex age", "sex voted", "age voted"]):
        paths = [tmp_path / f"{name}_{k}.{suffix}" for name in ("counts", "summary")]
        for frame, path in zip(released(keys, scale=1e-3), paths, strict=True):
            frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(
                path
            )
        pairs.append(tuple(paths))
    margins = read_opendp(*pairs)
    np.testing.assert_allclose(
        margins.total(["age", "voted"]).estimate, by_hand(TRUE, 1, 2)
    )
    np.testing.assert_allclose(
        margins.share("age").estimate, by_hand(TRUE, 1) / TRUE.sum()
    )
    assert margins.total("age").names == ("20", "35", "50")
    cells = np.indices(TRUE.shape).reshape(3, -1)
    design = np.column_stack([np.ones(12), cells[0], np.array(LEVELS["age"])[cells[1]]])
    weights = TRUE.ravel()[:, None]
    fit = np.linalg.solve(
        design.T @ (weights * design), design.T @ (weights[:, 0] * cells[2])
    )
    np.testing.assert_allclose(
        margins.ols("voted ~ sex + age").estimate, fit, rtol=1e-9
    )


def test_a_null_key_and_other_aggregates():
    frame, summary = released("sex voted")
    frame["sex"] = frame["sex"].where(frame["sex"] == "f")
    frame["age"] = 1.5
    summary = pd.concat(
        [summary, summary.assign(column="age", aggregate="Sum", scale=7.0)]
    ).assign(accuracy=6.0)
    margins = read_opendp((frame, summary))
    assert margins.total("sex").names == ("f", "missing")
    np.testing.assert_allclose(margins.total("sex").estimate, by_hand(TRUE, 0))
    assert [each.law.scale for each in margins.margins] == [2.0]


def test_a_measurement_file_is_read_by_its_layout(tmp_path):
    folder = tmp_path / "County.parquet" / "DPQuery"
    for state in ("001", "005"):
        (folder / f"State={state}").mkdir(parents=True)
        measurement_file(geocode=f"0{state[1:]}01").to_parquet(
            folder / f"State={state}" / "part-0.parquet"
        )
    constraint = (
        measurement_file()
        .iloc[:1]
        .assign(query_name="total_con", sign="=", value=[[1]], variance=0.0)
    )
    frame = pd.concat([measurement_file(), constraint], ignore_index=True)
    ages = {"votingage": ["under 18", "18 and over"]}
    for margins in (
        read_nmf(folder, "00501", levels=ages),
        read_nmf(frame, "05001", levels=ages),
    ):
        assert margins.total("votingage").names == ("under 18", "18 and over")
        for columns, kept in (
            (["hhgq"], [0]),
            (["votingage", "hispanic"], [1, 2]),
            (["hhgq", "cenrace"], [0, 3]),
        ):
            np.testing.assert_allclose(
                margins.total(columns).estimate, by_hand(PERSONS, *kept), atol=1e-6
            )
        institutions = [by_hand(PERSONS, 0)[group].sum() for group in GROUPS]
        np.testing.assert_allclose(
            margins.total("hhinstlevels").estimate, institutions, atol=1e-6
        )
        assert len(margins.margins) == len(QUERIES)
        refuses(
            "no measured margin holds each two of hhgq, hhinstlevels",
            margins.share,
            ["hhgq", "hhinstlevels"],
        )
    refuses("isn't there, or isn't of this format", read_nmf, folder, 501)


def test_measured_counts_go_into_a_model():
    margins = read_nmf(measurement_file(variance=9.0), "05001")
    one = next(
        each
        for each in margins.margins
        if [axis.columns for axis in each.law.axes] == [("hhgq",)]
    )
    assert (one.law.law, one.law.scale) == ("gaussian", 3.0)
    with pm.Model() as model:
        NoisyCounts(
            "noisy", by_hand(PERSONS, 0) + 0.5, noise=one.law, observed=one.noisy
        )
    assert np.isfinite(model.compile_logp()({}))


def opendp_covers(law: str, stated: float, rng: np.random.Generator) -> np.ndarray:
    noise = 3
    pairs = [
        released(keys, law=law, scale=stated * noise, noise=noise, rng=rng)
        for keys in ("sex age", "age voted")
    ]
    answer = read_opendp(*pairs).total(["sex", "age"], target="table")
    return abs(answer.estimate - by_hand(TRUE, 0, 1)) < 1.96 * np.sqrt(
        np.diagonal(answer.covariance)
    )


def nmf_covers(law: str, stated: float, rng: np.random.Generator) -> np.ndarray:
    frame = measurement_file(9.0, rng).assign(variance=9.0 * stated**2)
    answer = read_nmf(frame, "05001").total("hhgq", target="table")
    return abs(answer.estimate - by_hand(PERSONS, 0)) < 1.96 * np.sqrt(
        np.diagonal(answer.covariance)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("covers", "law"),
    [
        (opendp_covers, "Integer Laplace"),
        (opendp_covers, "Integer Gaussian"),
        (nmf_covers, ""),
    ],
)
def test_intervals_hold_the_table(covers, law, monkeypatch):
    # 60 tables of 6 or 8 numbers each: .95 has a standard error of at most .028, were a
    # table's numbers one; Laplace noise leaves about as much beyond 1.96 standard
    # deviations. Below .87 is rarer than .005. The twin believes half.
    monkeypatch.setattr(noisy_margins, "N_REPLICATES", 100)
    rng = np.random.default_rng(4)
    assert np.mean([covers(law, 1.0, rng) for _ in range(60)]) > 0.87
    assert np.mean([covers(law, 0.5, rng) for _ in range(60)]) < 0.87


COUNTS, SUMMARY = released("sex voted")
ROWS = measurement_file()
SCALE, WHOLE_NUMBERS = (
    ("scale of the noise on counts by .* must be a number above 0"),
    "noisy counts are whole numbers",
)
COMBINATIONS, NONE = "one count for each combination of ", "no noisy counts by columns"
OPENDP = [
    ((), NONE),
    ((COUNTS, SUMMARY), "give pairs"),
    ((("nowhere.csv", SUMMARY),), "nowhere.csv isn't there"),
    (
        ((COUNTS, SUMMARY.drop(columns="scale")),),
        "has a column 'scale', and this has none",
    ),
    (((COUNTS, SUMMARY.assign(scale=math.nan)),), SCALE),
    (((COUNTS, SUMMARY.assign(scale="two")),), SCALE),
    (
        ((COUNTS, SUMMARY.assign(distribution="Float Laplace")),),
        "distribution must be one of",
    ),
    (
        ((COUNTS, pd.concat([SUMMARY, SUMMARY.assign(scale=3.0)])),),
        "must state one noise",
    ),
    (((COUNTS, SUMMARY.assign(aggregate="Sum")),), "must state one noise"),
    (
        ((COUNTS, SUMMARY.assign(column="n")),),
        "of one column of counts that is in the table",
    ),
    (
        ((COUNTS, SUMMARY.assign(threshold=14)),),
        "groups below a threshold were left out",
    ),
    (((COUNTS.astype({"len": "uint32"}), SUMMARY),), "unsigned"),
    (((COUNTS.assign(len=COUNTS["len"] + 0.5), SUMMARY),), WHOLE_NUMBERS),
    (((COUNTS.assign(len="many"), SUMMARY),), WHOLE_NUMBERS),
    (((COUNTS.iloc[1:], SUMMARY),), f"{COMBINATIONS}sex, voted"),
    (((pd.concat([COUNTS, COUNTS]), SUMMARY),), f"{COMBINATIONS}sex, voted"),
]
NMF = [
    (ROWS.drop(columns="variance"), "has columns variance"),
    (ROWS.drop(columns="hhgq"), "has columns hhgq"),
    (ROWS.assign(geocode="05003"), NONE),
    ("nowhere.parquet", "nowhere.parquet isn't there"),
    (pd.concat([ROWS, ROWS.iloc[1:2].assign(variance=9.0)]), "hhgq_dpq is there twice"),
]


@pytest.mark.parametrize(("tables", "message"), OPENDP)
def test_what_tables_of_opendp_must_say(tables, message):
    refuses(message, read_opendp, *tables)


@pytest.mark.parametrize(("file", "message"), NMF)
def test_what_a_measurement_file_must_hold(file, message):
    refuses(message, read_nmf, file, "05001")


@pytest.mark.parametrize(
    ("change", "message"), cases(__file__, "rows_of_a_measurement_file")
)
def test_what_rows_of_a_measurement_file_must_say(change, message):
    ((name, value),) = change.items()
    first, _, *others = ROWS[name]
    refuses(message, read_nmf, ROWS.assign(**{name: [first, value, *others]}), "05001")


def test_levels_and_columns_that_arent_there_are_refused():
    refuses(NONE, read_nmf, ROWS, "05003", levels={"hhgq": ["a"]})
    refuses(
        "levels must be those of columns",
        read_nmf,
        ROWS,
        "05001",
        levels={"hhgq": ["a"]},
    )
    refuses("no column of the release", read_opendp((COUNTS, SUMMARY)).share, "income")
