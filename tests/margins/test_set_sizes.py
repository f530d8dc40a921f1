"""Sets with a number of records of their own, drawn in chunks, and what these are
worth.
"""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from pdips import InputError, Margins, Schema, Table, more_sets
from pdips import open as open_release
from pdips.fields.chains import PairField
from pdips.fields.pair_sets import FittedPairs
from pdips.fields.set_sizes import set_size
from pdips.margins.pair_tables import pair_counts
from pdips.outside import NoisyMargins
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits
from pdips.release import large_set

N = 3_000
COLUMNS = {name: {"levels": [0, 1, 2]} for name in "abcd"}
SETTINGS = {"epsilon": 2, "delta": "1e-6", "measure": "pairs"}


def tied_records(n=N, seed=5):
    """Columns that nearly copy each other: chains move on slowly."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 3, n)
    copies = [
        np.where(rng.random(n) < 0.9, first, rng.integers(0, 3, n)) for _ in range(3)
    ]
    return pd.DataFrame(dict(zip("abcd", [first, *copies], strict=True)))


@pytest.fixture
def table():
    return Table(tied_records(), Schema.model_validate({"columns": COLUMNS}))


def settled_nowhere(self, noisy, target, groups, sweeps, first, rng):
    """The broken twin: chains move on, and parameters stay as few chains left them."""
    self.moved(noisy, groups, sweeps, rng)
    return self


def fitted_pairs():
    """Pairs with next to no noise: what sets should agree with is known."""
    table = Table(tied_records(20_000), Schema.model_validate({"columns": COLUMNS}))
    mechanism = Margins(epsilon=1_000, delta="1e-6", measure="pairs", sets="fitted")
    plan = mechanism.plan(table.schema)
    curator = Drawing(plan, table, RandomBits(np.random.default_rng(1)))
    measured = mechanism.ask(plan, curator)
    return FittedPairs.of(measured, None, np.random.default_rng(2))


def worth(fitted, n_chains, n, seed):
    """Return the mean square of how far pairs of a set are off, in parts of the
    variance among independent records.
    """
    noisy = fitted.measured.pairs
    rng = np.random.default_rng(seed)
    given = (noisy, fitted.target, fitted.groups, rng)
    field = PairField.start(*given, n_chains).fitted(*given)
    codes = field.records(noisy, fitted.target, fitted.groups, n, rng, kept=True)
    block = np.repeat(np.arange(len(noisy.sizes)), noisy.sizes)
    is_pair = block[:, None] < block
    shares = pair_counts(codes, None, noisy.offsets)[is_pair] / n
    wanted = fitted.target.pairs[is_pair] / noisy.n
    variance = wanted * (1 - wanted) / n
    return float(((shares - wanted) ** 2 / variance).mean())


def test_a_set_is_worth_the_records_that_it_has(monkeypatch):
    # a hundred records for each chain of the fit; fixed seeds: 1.1, 2.0 and 1.1
    fitted = fitted_pairs()
    of_seeds = [worth(fitted, 500, 50_000, seed) for seed in range(3)]
    assert np.mean(of_seeds) < 3
    # the broken twin: 1.1, 41 and 12 (2026-12-01)
    monkeypatch.setattr(PairField, "settled", settled_nowhere)
    of_seeds = [worth(fitted, 500, 50_000, seed) for seed in range(3)]
    assert np.mean(of_seeds) > 3


def test_sets_have_as_many_records_as_is_said(table):
    release, _ = Margins(**SETTINGS, records=70_000).release(table)
    assert not release.sets
    (made,) = release.large_sets
    assert len(made) == 70_000
    chunks = list(made.frames(30_000))
    assert [len(chunk) for chunk in chunks] == [30_000, 30_000, 10_000]
    shares = pd.crosstab(chunks[0]["a"], chunks[0]["b"], normalize=True)
    wanted = pd.crosstab(table.frame["a"], table.frame["b"], normalize=True)
    assert np.abs(shares - wanted).to_numpy().sum() / 2 < 0.1
    # the same set is written twice
    assert chunks[0].equals(next(made.frames(30_000)))


@pytest.mark.parametrize(
    ("records", "expected"),
    [("all", 1_000), ("0.25", 250), ("1/3", 333), (5, 5), ("1e6", 10**6), (1e-9, 1)],
)
def test_a_size_is_a_number_or_a_share(records, expected):
    assert set_size(records, 1_000) == expected
    Margins(**SETTINGS, records=records)


@pytest.mark.parametrize("records", [0, -1, 1.5, "some", "2e9", float("nan")])
def test_other_sizes_are_refused(records):
    with pytest.raises(InputError, match="records must be"):
        Margins(**SETTINGS, records=records)


def test_what_holds_for_a_set_as_a_whole_is_refused(table):
    with pytest.raises(InputError, match="sets=fitted"):
        Margins(**SETTINGS, records=10, sets="posterior")
    with pytest.raises(InputError, match="asks for pairs"):
        Margins(epsilon=1, measure="views", records=10)
    public = {**COLUMNS, "a": {"levels": [0, 1, 2], "public": True}}
    schema = Schema.model_validate({"columns": public})
    with pytest.raises(InputError, match="public columns"):
        Margins(**SETTINGS, records=10).plan(schema)
    # the twins
    Margins(**SETTINGS, records=10).plan(table.schema)
    Margins(**SETTINGS).plan(schema)


def test_a_share_under_add_remove_is_one_of_the_noisy_number(table):
    sizes = set()
    for seed in range(6):
        mechanism = Margins(
            epsilon="0.01", measure="pairs", neighbours="add-remove", records="all"
        )
        release, _ = mechanism.release(table, rng=np.random.default_rng(seed))
        sizes.add(len(release.large_sets[0]))
        assert release.document().n_records is None
    # noise of hundreds: the true number six times has a probability below 10^-10
    assert len(sizes) > 1


def test_a_folder_keeps_the_number_of_records_of_the_table(
    table, tmp_path, monkeypatch, pdips
):
    monkeypatch.setattr(large_set, "DRAWN_RECORDS", 2_000)
    path = tmp_path / "t.parquet"
    table.frame.to_parquet(path)
    schema = tmp_path / "t.toml"
    lines = [f"[columns.{name}]\nlevels = [0, 1, 2]\n" for name in "abcd"]
    schema.write_text("".join(lines))
    pdips.ok(
        *("synthesize", path, "--schema", schema, "--records", 9_000, "--quiet"),
        *("--epsilon", 2, "--delta", "1e-6", "--out", tmp_path / "out"),
    )
    home = tmp_path / "out" / "public"
    assert pq.ParquetFile(home / "synthetic_1.parquet").metadata.num_rows == 9_000
    document = json.loads((home / "privacy.json").read_text())
    assert document["n_records"] == N
    _, out, err = pdips("check", tmp_path / "out")
    assert "FAULT" not in out + err
    assert len(more_sets(home, 1)[0]) == N
    assert NoisyMargins.read(home).found.n_records == N
    assert len(open_release(tmp_path / "out").sets[0]) == 9_000
    # the twin: without it, the set would be taken for as large as the table
    del document["n_records"]
    (home / "privacy.json").write_text(json.dumps(document))
    assert len(more_sets(home, 1)[0]) == 9_000


def test_chunks_are_written_one_by_one(table, tmp_path):
    release, _ = Margins(**SETTINGS, records=10_000).release(table)
    (made,) = release.large_sets
    sizes = []

    def draw(n, rng, size):
        for frame in made.draw(n, rng, 4_000):
            sizes.append(len(frame))
            yield frame.assign(a=pd.Series([None] * len(frame), dtype=object))

    replace(made, draw=draw).write(tmp_path / "a.parquet", "parquet")
    written = pq.ParquetFile(tmp_path / "a.parquet")
    assert sizes == [4_000, 4_000, 2_000]
    assert written.num_row_groups == 3
    assert written.read().column("a").null_count == 10_000
    made.write(tmp_path / "a.csv", "csv")
    assert len(pd.read_csv(tmp_path / "a.csv")) == 10_000
