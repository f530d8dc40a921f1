"""Nothing confidential reaches ``public/``: a table full of values that nobody else
has, and a search for them.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from small_models import HAVE_MODELS, sound_relations
from tables import (
    N_SENTINELS,
    SENTINEL_SCHEMA,
    confidential_table,
    sentinels,
    shown,
    text_of,
)

from pdips import LaplaceSanitizer, Ledger, Table, cli
from pdips.privacy import noise
from pdips.registry import find
from pdips.release.documents import PrivacyDocument, write_json
from pdips.report.card import DEFAULT
from pdips.report.pages import write_card, write_report


def words_for(mechanism: str, neighbours: str, folder: Path) -> list[str]:
    """Two sets where there may be two, and a model or a public number of synthetic
    records where it must be given.
    """
    known = find(mechanism).__dataclass_fields__
    words = ["--sets", str(min(2, find(mechanism).most_sets))]
    if "model" in known and mechanism not in HAVE_MODELS:
        text = "from small_models import generic as build_model\n"
        if mechanism == "modips":
            parts = (
                "cells_of as statistics, shares_of_cells as build_model, "
                "draw_cells as draw_records"
            )
            text = f"from small_models import {parts}\n"
        (folder / "model.py").write_text(text, encoding="utf-8")
        words += ["--model", str(folder / "model.py")]
    if mechanism in HAVE_MODELS:
        # births would be a million groups
        words += ["--columns", "colour,wage"]
    return [
        *words,
        *(
            ["--option", "n_records=30"]
            if neighbours == "add-remove" and "n_records" in known
            else []
        ),
    ]


# of 30 synthetic records
@pytest.mark.slow_cases(
    "censored-posterior-add-remove",
    "censored-posterior-replace-one",
    "modips-add-remove",
    "modips-replace-one",
    "scores-add-remove",
    "scores-replace-one",
)
@pytest.mark.filterwarnings("ignore:epsilon is so small:UserWarning")
@pytest.mark.parametrize(("mechanism", "neighbours"), sound_relations())
def test_nothing_confidential_reaches_the_public_folder(
    tmp_path, monkeypatch, mechanism, neighbours, capsys
):
    # a noisy number of records may be the true one: about once in 200 releases of
    # scores, but not with these bits
    # effects of groups in the unit of wages have digits of planted words by chance, but
    # not with these
    seed = 3 if mechanism in HAVE_MODELS else 1
    monkeypatch.setattr(noise.os, "urandom", np.random.default_rng(seed).bytes)
    frame = confidential_table()
    frame.to_parquet(tmp_path / "t.parquet")
    (tmp_path / "s.toml").write_text(SENTINEL_SCHEMA.to_toml())
    arguments = (
        f"synthesize {tmp_path}/t.parquet --schema {tmp_path}/s.toml "
        f"--mechanism {mechanism} --epsilon 1"
    )
    words = [
        *arguments.split(),
        *words_for(mechanism, neighbours, tmp_path),
        "--neighbours",
        neighbours,
    ]
    monkeypatch.setattr("sys.argv", ["pdips", *words, "--out", str(tmp_path / "out")])
    cli.main()
    public = {
        path.name: text_of(path) for path in (tmp_path / "out" / "public").iterdir()
    }
    # a synthetic file may have as many rows as the table by chance, and numbers them
    if neighbours == "add-remove":
        public = {
            name: text for name, text in public.items() if not name.endswith("parquet")
        }
    for name, text in {**public, "terminal": capsys.readouterr().out}.items():
        assert not shown(
            sentinels(frame, neighbours), text, synthetic=name.endswith("parquet")
        ), name
    run = (tmp_path / "out" / "confidential" / "run.json").read_text()
    for value in (
        json.loads(run)["peak_memory_mib"],
        *json.loads(run)["seconds"].values(),
    ):
        assert not any(repr(value) in text for text in public.values())
    # the same search must find what does hold confidential figures
    assert shown(sentinels(frame, neighbours), run)
    card = check_that_planted_words_stay_inside(tmp_path / "out")
    assert ("standard deviation" in card) != ("None are known." in card)
    assert DEFAULT not in card


def check_that_planted_words_stay_inside(out: Path) -> str:
    """Write the pages again with sentinels in all that stays inside; return the card,
    which must be as it was.
    """
    public, inside = out / "public", out / "confidential"
    run, before = (
        json.loads((inside / "run.json").read_text()),
        (public / "card.html").read_text(),
    )
    entry = {
        "number": 1,
        "time": "1999-09-09",
        "mechanism": "sentinel-ledger",
        "epsilon": 0.123456789,
        "delta": 0.0,
        "rho": None,
    }
    account = {
        "neighbours": "replace-one",
        "total_epsilon": 77.125,
        "spent_epsilon": 5.5,
        "remaining_epsilon": 71.625,
        "total_delta": 0.0,
        "spent_delta": 0.0,
        "charged_epsilon": 5.5,
        "charged_delta": 0.0,
        "total_rho": None,
        "spent_rho": None,
        "remaining_rho": None,
        "charged_rho": None,
    }
    run["ledger"] = account | {"entries": [entry]}
    run["seconds"], run["n_records"] = {"sentinel-step": 741.25}, 987_654_321
    run["diagnostics"]["sentinel-diagnostic"] = "sentinel-value"
    write_json(inside / "run.json", run)
    report = write_report(inside, PrivacyDocument.read(public)).read_text()
    write_json(
        inside / "evaluation.json", {"formula": "sentinel-formula", "general": []}
    )
    card = write_card(public).read_text()
    assert card == before
    # pictures, and the digests of public files, have such digits by chance
    text = re.sub(r"<svg.*?</svg>|\b[0-9a-f]{64}\b", "", card, flags=re.DOTALL)
    for word in ("sentinel", "77.1", "71.6", "741", "1999-09-09", "987"):
        # other numbers end in such digits by chance
        assert not re.search(rf"(?<![\d.,]){re.escape(word)}", text), word
    assert "sentinel-step" in report
    assert "sentinel-ledger" in report
    return card


def test_neither_synthetic_files_nor_a_ledger_have_any_of_the_exact_values(tmp_path):
    frame = confidential_table()
    table = Table(frame, SENTINEL_SCHEMA)
    release, _ = LaplaceSanitizer(epsilon=50, n_sets=3).release(
        table, ledger=Ledger(tmp_path / "l.sqlite")
    )
    for made in release.sets:
        assert "person_id" not in made
        assert not set(made["wage"]) & set(frame["wage"])
    content = (tmp_path / "l.sqlite").read_bytes()
    assert table.fingerprint.encode() not in content
    assert b"sentinel" not in content
    assert str(N_SENTINELS).encode() not in content
