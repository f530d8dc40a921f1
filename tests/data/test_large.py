"""Tables counted batch by batch give what whole tables give: records, releases,
fingerprints and messages.
"""

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import cases, refuses, schema_in, unread

from pdips import InputError, LaplaceSanitizer, Schema, Steps, Table
from pdips.data import counted as counting
from pdips.data import readers as files
from pdips.evaluation.margins import compare
from pdips.margins import synthesis
from pdips.release.large_set import LargeSet

SCHEMA = schema_in("large")
N_TABLES = 12


@pytest.fixture(autouse=True)
def many_batches(monkeypatch):
    monkeypatch.setattr(files, "BATCH_RECORDS", 7)
    monkeypatch.setattr(files, "CSV_BLOCK_BYTES", 600)
    monkeypatch.setattr(counting, "MERGE_RECORDS", 10)


def random_frame(seed: int, n: int = 60) -> pd.DataFrame:
    """Records of all types that are counted, with and without missing values, spelt in
    several ways.
    """
    rng = np.random.default_rng(seed)

    def some_missing(values: np.ndarray, dtype: object = None) -> pd.Series:
        holes = rng.random(n) < 0.2 if rng.random() < 0.7 else np.zeros(n, dtype=bool)
        return (
            pd.Series(np.where(holes, None, values.astype(object)))
            .convert_dtypes()
            .astype(dtype or "object")
        )

    text = some_missing(rng.choice(["a", "b", "1"], n))
    flag = some_missing(rng.random(n) < 0.5)
    flag[text == "b"] = False
    wage = rng.choice([0.0, -0.0, 12.5, 25, 49.99, 75, 100, -9, np.nan], n)
    frame = pd.DataFrame(
        {
            "text": text.astype(rng.choice(["str", "category"])),
            "year": some_missing(
                rng.choice([1994, 1995, -1], n),
                rng.choice(["Int64", "float64", "Float32"]),
            ),
            "flag": flag,
            "wage": wage.astype(rng.choice(["float64", "float32"])),
            "kids": rng.integers(0, 10, n).astype(
                rng.choice(["int64", "int8", "float32", "uint16"])
            ),
            "rent": rng.choice([1, 9.999, 10, 99.5, 100, 1000], n),
            "zone": some_missing(rng.choice([-5.0, -0.0, 0.0, 0.25, 5], n), "Float64"),
            "age": rng.choice([18, 58, 59, 99], n),
        }
    )
    return frame[list(rng.permutation(list(frame)))]


def write(frame: pd.DataFrame, path: Path, *, statistics: bool = True) -> Path:
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, row_group_size=23, write_statistics=statistics)
    return path


def both(path: Path, schema: Schema = SCHEMA) -> tuple[Table, Table]:
    whole, counted = (
        Table.read(path, schema, counted=counted) for counted in (False, True)
    )
    assert whole.counts is None
    assert counted.counts is not None
    return whole, counted


def records(table: Table) -> pd.Series:
    """Distinct records as the schema spells them, and how often each occurs."""
    frame = pd.DataFrame(
        {name: table.sort_key(name) for name in table.schema.public_columns}
        | table.codes
    )
    weighed = frame.fillna(-99).assign(n=1 if table.counts is None else table.counts)
    return weighed.groupby(list(frame))["n"].sum().sort_index()


@pytest.mark.slow_cases(
    "parquet",
)
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_counted_table_has_the_records_and_the_fingerprint_of_the_whole(
    tmp_path, suffix
):
    for seed in range(N_TABLES):
        whole, counted = both(
            write(
                random_frame(seed),
                tmp_path / f"{seed}.{suffix}",
                statistics=bool(seed % 2),
            )
        )
        pd.testing.assert_series_equal(records(whole), records(counted))
        assert counted.n_records == whole.n_records == 60
        assert counted.fingerprint == whole.fingerprint


def test_the_fingerprint_is_the_one_that_ledgers_hold_and_zero_has_one_sign_there():
    # computed record by record, by the definition
    frame = pd.DataFrame(
        {"x": ["a", "b", None, "a"], "y": [1.0, 2.5, 3.0, np.nan], "z": [1, 2, 3, 4]}
    )
    numbers = {
        "y": {"lower": 0, "upper": 9, "missing": True},
        "z": {"lower": 0, "upper": 9},
    }
    schema = Schema(columns={"x": {"levels": ["a", "b"], "missing": True}} | numbers)
    assert Table(frame, schema).fingerprint == "4-1d39bbec4e555927-e6e8a513ba76a869"
    schema = Schema.from_toml("[columns.x]\nlower = -1\nupper = 1")
    spelt = [
        pd.DataFrame({"x": values}) for values in ([0.0, -0.0], [-0.0, 0.0], [0.0] * 2)
    ]
    assert len({Table(frame, schema).fingerprint for frame in spelt}) == 1


def test_other_records_have_another_fingerprint(tmp_path):
    frame = random_frame(1)
    known = Table.read(
        write(frame, tmp_path / "a.parquet"), SCHEMA, counted=True
    ).fingerprint
    others = [
        frame.iloc[[*range(59), 0]],
        frame.iloc[[*range(58), 0, 0]],
        frame.iloc[:59],
        pd.concat([frame] * 3),
    ]
    within_a_bin = frame.assign(rent=frame["rent"].replace(9.999, 9.998))
    for i, other in enumerate([*others, within_a_bin]):
        assert (
            Table.read(
                write(other, tmp_path / f"{i}.parquet"), SCHEMA, counted=True
            ).fingerprint
            != known
        )
    shuffled = write(
        frame.sample(frac=1, random_state=0), tmp_path / "shuffled.parquet"
    )
    assert Table.read(shuffled, SCHEMA, counted=True).fingerprint == known


@pytest.mark.parametrize(
    "mechanism",
    [
        LaplaceSanitizer(epsilon=1, n_sets=2),
        LaplaceSanitizer(epsilon=1, n_sets=2, split="per-set"),
        Steps(epsilon=1, layers=2),
        Steps(epsilon=1, order=("text", "flag")),
    ],
)
def test_the_same_seed_gives_the_same_release(tmp_path, mechanism):
    tables = both(
        write(random_frame(0), tmp_path / "t.parquet"),
        SCHEMA.only({*SCHEMA.columns} - {"zone"}),
    )
    releases = [
        mechanism.release(table, rng=np.random.default_rng(5))[0] for table in tables
    ]
    for whole, counted in zip(releases[0].sets, releases[1].sets, strict=True):
        pd.testing.assert_frame_equal(whole, counted)
    for name, noisy in releases[0].statistics.items():
        pd.testing.assert_frame_equal(noisy, releases[1].statistics[name])


PAIR = SCHEMA.only(["text", "flag"])


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize(("changes", "types", "message"), cases(__file__, "bad_values"))
def test_a_bad_value_is_refused_in_the_same_words_without_showing_it(
    tmp_path, changes, types, message, suffix
):
    frame = random_frame(3).astype({"text": "str", "kids": "float64"} | types)
    for name, value in changes.items():
        frame.loc[40, name] = value
    [said] = unread(message, write(frame, tmp_path / f"t.{suffix}"), SCHEMA, InputError)
    assert not re.search(r"SECRET|100\.5|2\.5", said)


def test_damaged_and_empty_files(tmp_path):
    path = write(pd.concat([random_frame(0)] * 10), tmp_path / "t.csv")
    path.write_text(path.read_text() + "SECRET,1\n")
    unread("is damaged, or no csv file", path, SCHEMA)
    path = write(
        random_frame(0).iloc[:0].astype({"flag": "bool"}), tmp_path / "empty.parquet"
    )
    unread("has no records", path, SCHEMA)


PERSONS = PAIR.model_validate(
    PAIR.to_dict() | {"records": {"person": "id", "max_per_person": 2}}
)


@pytest.mark.parametrize("ids", ["str", "int64", "float64", "Int64"])
def test_the_cap_on_records_of_a_person(tmp_path, ids):
    keys = pd.Series(
        np.random.default_rng(0).permutation(
            [*np.repeat(range(20), 2), *range(100, 120)]
        )
    )
    alone, keys = (
        keys >= 100,
        "p" + keys.astype("str") if ids == "str" else keys.astype(ids),
    )
    frame = random_frame(0)[["text", "flag"]].assign(
        id=keys if ids == "int64" else keys.mask(alone)
    )
    whole, counted = both(write(frame, tmp_path / "t.parquet"), PERSONS)
    assert list(counted.codes) == ["text", "flag"]
    assert whole.fingerprint == counted.fingerprint
    frame.loc[alone, "id"] = keys[~alone].iloc[0]
    unread(
        r"more records than records\.max_per_person = 2 "
        r"allows",
        write(frame, tmp_path / "u.parquet"),
        PERSONS,
    )


def test_who_is_counted(tmp_path, monkeypatch):
    for name, limit in (("t.parquet", "LARGE_RECORDS"), ("t.csv", "LARGE_CSV_BYTES")):
        path = write(random_frame(0), tmp_path / name)
        assert Table.read(path, SCHEMA).counts is None
        monkeypatch.setattr(files, limit, 59)
        assert Table.read(path, SCHEMA).counts is not None


@pytest.mark.parametrize(
    ("columns", "frame"),
    [
        # a number without bins that isn't copied
        ({"x": {"lower": 0, "upper": 1}}, {"x": [0.5, 0.25]}),
        # a type that is not plain
        ({"x": {"levels": [1, 2]}}, {"x": [Decimal(1), Decimal(2)]}),
        (
            {f"x{i}": {"lower": 0, "upper": 1, "bins": 1_000_000} for i in range(4)},
            {f"x{i}": [0, 1] for i in range(4)},
        ),
    ],
)
def test_what_cannot_be_counted_is_read_whole(tmp_path, columns, frame):
    path = write(pd.DataFrame(frame), tmp_path / "t.parquet")
    assert Table.read(path, Schema(columns=columns), counted=True).counts is None


@dataclass(frozen=True, kw_only=True)
class OneByOne(LaplaceSanitizer):
    """A mechanism that doesn't say that it weighs records."""

    offers = replace(LaplaceSanitizer.offers, counted_tables=False)


def test_both_ways_of_reading_share_a_ledger(tmp_path, ledger):
    whole, counted = both(
        write(random_frame(0)[["text", "flag"]], tmp_path / "t.parquet"), PAIR
    )
    # the broken twin: a mechanism that takes distinct records for records
    assert (
        np.bincount(counted.codes["text"]).tolist()
        != counted.count(counted.codes["text"], 4).tolist()
    )
    assert counted.count(counted.codes["text"], 4).sum() == 60
    refuses(
        "laplace-sanitizer reads records one by one",
        lambda: OneByOne(epsilon=1).release(counted, ledger=ledger),
    )
    assert not ledger.path.exists()  # refused before the spend
    for table in (whole, counted):
        LaplaceSanitizer(epsilon=1).release(table, ledger=ledger)
    assert len(ledger.entries()) == 2


ZONED = schema_in("large_zoned")


def large_and_small(monkeypatch, tmp_path) -> tuple[pd.DataFrame, LargeSet, Table]:
    rng = np.random.default_rng(0)
    levels = {
        name: [str(level) for level in column.levels or ("5", "60")]
        for name, column in ZONED.columns.items()
    }
    frame = pd.DataFrame({name: rng.choice(each, 400) for name, each in levels.items()})
    frame.loc[:50, "text"] = None
    frame.loc[30:90, ["year", "flag", "wage"]] = None
    frame.loc[80:120, "code"] = "?"
    table = Table.read(write(frame, tmp_path / "t.csv"), ZONED, counted=True)
    small = (
        LaplaceSanitizer(epsilon=1)
        .release(table, rng=np.random.default_rng(1))[0]
        .sets[0]
    )
    monkeypatch.setattr(synthesis, "LARGE_SET_RECORDS", 10)
    release = LaplaceSanitizer(epsilon=1).release(table, rng=np.random.default_rng(1))[
        0
    ]
    assert (release.n_sets, release.sets) == (1, ())
    release.write(tmp_path / "p")
    release.write(tmp_path / "c", file_format="csv")
    return small, release.large_sets[0], table


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(wage=frame["wage"] // 25).sort_values(
        list(frame), ignore_index=True
    )


def test_a_large_set_is_the_small_one_in_another_order(monkeypatch, tmp_path):
    small, large, table = large_and_small(monkeypatch, tmp_path)
    assert len(large) == len(small) == 400
    read = pd.read_parquet(tmp_path / "p" / "synthetic_1.parquet")
    pd.testing.assert_frame_equal(in_order(read), in_order(small))
    pd.testing.assert_frame_equal(
        pd.concat(large.frames(33), ignore_index=True)[["zone"]], read[["zone"]]
    )
    assert records(Table(read, ZONED)).equals(records(Table(small, ZONED)))
    text = Table.read(tmp_path / "c" / "synthetic_1.csv", ZONED)
    # public, exact
    assert (
        records(text).groupby("zone").sum().equals(records(table).groupby("zone").sum())
    )
    pd.testing.assert_series_equal(
        pd.DataFrame(text.codes).value_counts().sort_index(),
        pd.DataFrame(Table(small, ZONED).codes).value_counts().sort_index(),
    )


def test_chunks_join_without_a_seam():
    schema = Schema.from_toml(
        "[columns.x]\nlevels = [0, 1, 2]\n[columns.y]\nlower = 0\nupper = 9\nbins = 3"
    )
    codes = {
        "x": np.array([2, 0, 1], dtype=np.int32),
        "y": np.array([0, 1, 2], dtype=np.int32),
    }
    large = LargeSet(schema=schema, codes=codes, counts=np.array([3, 1, 6]), seed=1)
    for size in range(1, 12):
        frames = list(large.frames(size))
        assert max(map(len, frames)) <= size
        assert pd.concat(frames)["x"].tolist() == [2] * 3 + [0] + [1] * 6


def test_large_and_counted_compare_as_whole_ones_do(monkeypatch, tmp_path):
    small, large, table = large_and_small(monkeypatch, tmp_path)
    a, b = (
        compare(Table.read(tmp_path / "t.csv", ZONED, counted=False), [small]),
        compare(table, [large]),
    )
    assert a.l1.mean == pytest.approx(b.l1.mean, rel=1e-12)
    assert a.two_way.distance == [
        pytest.approx(row, rel=1e-9, abs=1e-12) for row in b.two_way.distance
    ]
    for ours, theirs in zip(a.one_way, b.one_way, strict=True):
        assert ours.table == pytest.approx(theirs.table)
        assert ours.synthetic == pytest.approx(theirs.synthetic)
    # the reference is one resample of 400: its L1 has mean 0.48 and standard deviation
    # below 0.05; twin: unweighed
    assert 0.2 < b.l1.reference < 0.8
    assert abs(a.l1.reference - b.l1.reference) < 0.3


STORED = (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()))


@pytest.mark.parametrize("kind", STORED, ids=str)
def test_text_is_counted_however_it_is_stored(tmp_path, kind):
    table = pa.table(
        {
            "text": pa.array(["a", None, "b"] * 9).cast(kind),
            "flag": pa.array([False] * 27),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    whole, counted = both(tmp_path / "t.parquet", PAIR)
    assert whole.fingerprint == counted.fingerprint


@pytest.mark.parametrize("missing", [False, True])
def test_categories_that_are_numbers(tmp_path, missing):
    schema = Schema.from_toml("[columns.x]\nlevels = [1, 2]\nmissing = true")
    path = write(
        pd.DataFrame({"x": pd.Categorical([1, None if missing else 1, 2] * 20)}),
        tmp_path / "t.parquet",
    )
    whole, counted = (
        Table.read(path, schema, counted=counted) for counted in (False, True)
    )
    assert whole.fingerprint == counted.fingerprint
