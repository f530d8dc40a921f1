"""Nothing confidential reaches ``public/``: a table full of values that nobody else has, and a search for them."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from pdips import LaplaceSanitizer, Ledger, Schema, Table, cli
from pdips.registry import MECHANISMS, find
from pdips.release.documents import PrivacyDocument, write_json
from pdips.report.card import DEFAULT
from pdips.report.pages import write_card, write_report

SCHEMA = Schema.from_toml("""
[columns.colour]
levels = ["blue", "red", "green"]
[columns.wage]
lower = 0
upper = 1000000
bins = 5
[columns.births]
lower = 0
upper = 1000000
bins = 4
integer = true
[records]
person = "person_id"
max_per_person = 2
""")
N = 1237
SEED_FOR_TABLE = 5


def confidential_table() -> pd.DataFrame:
    rng = np.random.default_rng(SEED_FOR_TABLE)
    return pd.DataFrame(
        {
            "colour": rng.choice(["blue", "red"], N, p=[0.713, 0.287]),
            "wage": rng.uniform(0, 1_000_000, N),
            "births": rng.integers(0, 1_000_000, N),
            "person_id": [f"sentinel-{i}" for i in range(N)],
        }
    )


def sentinels(frame: pd.DataFrame, neighbours: str) -> set[str]:
    """Every number, key and count of the table as text; the number of records where it isn't public."""
    found = {repr(float(x)) for x in frame["wage"]} | set(frame["person_id"]) | {"sentinel"}
    found |= {f"{share:.6f}" for share in frame["colour"].value_counts(normalize=True)}
    found |= {repr(float(share)) for share in frame["colour"].value_counts(normalize=True)}
    if neighbours == "add-remove":
        found |= {str(N), f"{N:,}"}
    return found


def shown(words: set[str], text: str, *, synthetic: bool = False) -> list[str]:
    """Return the words that a text has.

    Synthetic values have 16 digits, which can hold a share of eight characters by chance: in their files such a short
    word counts only where no longer number ends in it.
    """
    found = [word for word in words if word in text]
    if not synthetic:
        return found
    return [word for word in found if len(word) > 8 or re.search(rf"(?<![\d.]){re.escape(word)}", text)]


def text_of(path: Path) -> str:
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return table.to_pandas().to_csv() + str(table.schema.metadata) + str(pq.ParquetFile(path).metadata)
    return path.read_text(encoding="utf-8")


def every_relation():
    found = {name: find(name) for name in sorted(MECHANISMS)}
    return [(name, relation) for name, made in found.items() if "sound" in made.variants for relation in made.relations]


def words_for(mechanism: str, neighbours: str, folder: Path) -> list[str]:
    """Two sets where there may be two, and a model or a public number of synthetic records where it must be given."""
    known = find(mechanism).__dataclass_fields__
    words = ["--sets", str(min(2, find(mechanism).most_sets))]
    if "model" in known:
        text = "from small_models import generic as build_model\n"
        if mechanism == "modips":
            parts = "cells_of as statistics, shares_of_cells as build_model, draw_cells as draw_records"
            text = f"from small_models import {parts}\n"
        (folder / "model.py").write_text(text, encoding="utf-8")
        words += ["--model", str(folder / "model.py")]
    return [*words, *(["--option", "n_records=30"] if neighbours == "add-remove" and "n_records" in known else [])]


@pytest.mark.filterwarnings("ignore:epsilon is so small:UserWarning")  # of 30 synthetic records
@pytest.mark.parametrize(("mechanism", "neighbours"), every_relation())
def test_nothing_confidential_reaches_the_public_folder(tmp_path, monkeypatch, mechanism, neighbours, capsys):
    frame = confidential_table()
    frame.to_parquet(tmp_path / "t.parquet")
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml())
    arguments = f"synthesize {tmp_path}/t.parquet --schema {tmp_path}/s.toml --mechanism {mechanism} --epsilon 1"
    words = [*arguments.split(), *words_for(mechanism, neighbours, tmp_path), "--neighbours", neighbours]
    monkeypatch.setattr("sys.argv", ["pdips", *words, "--out", str(tmp_path / "out")])
    cli.main()
    public = {path.name: text_of(path) for path in (tmp_path / "out" / "public").iterdir()}
    if neighbours == "add-remove":  # a synthetic file may have as many rows as the table by chance, and numbers them
        public = {name: text for name, text in public.items() if not name.endswith("parquet")}
    for name, text in {**public, "terminal": capsys.readouterr().out}.items():
        assert not shown(sentinels(frame, neighbours), text, synthetic=name.endswith("parquet")), name
    run = (tmp_path / "out" / "confidential" / "run.json").read_text()
    for value in (json.loads(run)["peak_memory_mib"], *json.loads(run)["seconds"].values()):
        assert not any(repr(value) in text for text in public.values())
    # the same search must find what does hold confidential figures
    assert shown(sentinels(frame, neighbours), run)
    card = check_that_planted_words_stay_inside(tmp_path / "out")
    assert ("standard deviation" in card) != ("None are known." in card)
    assert DEFAULT not in card


def check_that_planted_words_stay_inside(out: Path) -> str:
    """Write the pages again with sentinels in all that stays inside; return the card, which must be as it was."""
    public, inside = out / "public", out / "confidential"
    run, before = json.loads((inside / "run.json").read_text()), (public / "card.html").read_text()
    entry = {"number": 1, "time": "1999-09-09", "mechanism": "sentinel-ledger", "epsilon": 0.123456789}
    run["ledger"] = {
        "total_epsilon": 77.125,
        "spent_epsilon": 5.5,
        "remaining_epsilon": 71.625,
        "neighbours": "replace-one",
        "entries": [entry],
    }
    run["seconds"], run["n_records"] = {"sentinel-step": 741.25}, 987_654_321
    run["diagnostics"]["sentinel-diagnostic"] = "sentinel-value"
    write_json(inside / "run.json", run)
    report = write_report(inside, PrivacyDocument.read(public)).read_text()
    write_json(inside / "evaluation.json", {"formula": "sentinel-formula", "general": []})
    card = write_card(public).read_text()
    assert card == before
    for word in ("sentinel", "77.1", "71.6", "741", "1999-09-09", "987"):
        assert word not in re.sub(r"<svg.*?</svg>", "", card, flags=re.DOTALL)
    assert "sentinel-step" in report
    assert "sentinel-ledger" in report
    return card


def test_neither_synthetic_files_nor_a_ledger_have_any_of_the_exact_values(tmp_path):
    frame = confidential_table()
    table = Table(frame, SCHEMA)
    release, _ = LaplaceSanitizer(epsilon=50, n_sets=3).release(table, ledger=Ledger(tmp_path / "l.sqlite"))
    for made in release.sets:
        assert "person_id" not in made
        assert not set(made["wage"]) & set(frame["wage"])
    content = (tmp_path / "l.sqlite").read_bytes()
    assert table.fingerprint.encode() not in content
    assert b"sentinel" not in content
    assert str(N).encode() not in content
