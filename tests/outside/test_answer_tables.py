"""A public folder says every number once, or the same twice: `pdips check` works tables
out again from the answers.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pdips import Schema, Table
from pdips.outside.answer_tables import examine_answers
from pdips.registry import find
from pdips.release.documents import PrivacyDocument
from pdips.release.folder import file_digest

CODES = {
    "levels": ["a1", "a2", "b1", "b2"],
    "groups": {"a": ["a1", "a2"], "b": ["b1", "b2"]},
}
COLUMNS = {
    "sex": {"levels": ["f", "m"]},
    "ill": {"levels": [False, True]},
    "age": {"lower": 0, "upper": 90, "bins": 3},
}
NUMBERS = {"pay": {"lower": 0, "upper": 10}, "rent": {"lower": 0, "upper": 5}}
CASES = {
    "views": ("margins", {}, COLUMNS),
    "views with noise of their own": (
        "margins",
        {"n_sets": 2, "split": "per-set"},
        COLUMNS,
    ),
    "pairs and products": ("margins", {"n_sets": 2}, COLUMNS | NUMBERS),
    "Gaussian pairs": ("margins", {"delta": "1e-6", "measure": "pairs"}, COLUMNS),
    "add-remove": ("margins", {"neighbours": "add-remove"}, COLUMNS | NUMBERS),
    "public columns": (
        "margins",
        {},
        COLUMNS | {"sex": {"levels": ["f", "m"], "public": True}},
    ),
    "an elected tree": ("steps", {}, COLUMNS),
    "all cells": ("laplace-sanitizer", {}, COLUMNS),
    "intervals": ("universal-histogram", {}, COLUMNS),
    "a network": ("privbayes", {}, COLUMNS),
}


def table_of(columns) -> Table:
    """Return 400 records whose columns hang together."""
    rng = np.random.default_rng(0)
    ill = rng.random(400) < 0.3
    pay = rng.uniform(0, 10, 400)
    values = {
        "sex": rng.choice(["f", "m"], 400),
        "ill": ill,
        "age": rng.uniform(0, 90, 400) * np.where(ill, 1, 0.5),
        "pay": pay,
        "rent": pay / 2,
    }
    frame = pd.DataFrame({name: values[name] for name in columns})
    return Table(frame, Schema.model_validate({"columns": columns}))


def published(case, home, file_format="parquet") -> PrivacyDocument:
    """Publish a release; return what it says of itself."""
    name, settings, columns = CASES[case]
    release, _ = find(name)(epsilon=2, **settings).release(table_of(columns))
    release.publish(home, file_format=file_format)
    return PrivacyDocument.read(home)


def with_digest(document, path) -> PrivacyDocument:
    """Return a document that holds the digest of a file as it is now."""
    digests = {**document.digests, path.name: file_digest(path)}
    return document.model_copy(update={"digests": digests})


def written_again(document, home) -> None:
    """Put a document in the place of that of a release."""
    path = home / PrivacyDocument.file
    path.unlink()
    document.write(home)


def remarked(home, document) -> list[tuple[str, str]]:
    """Return the names of the files that are remarked on, and what is said."""
    return [(each.path.name, each.said) for each in examine_answers(home, document)]


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
@pytest.mark.parametrize("case", CASES)
def test_tables_follow_from_the_answers(case, file_format, tmp_path):
    home = tmp_path / "public"
    document = published(case, home, file_format)
    assert document.answers
    assert document.margins
    assert remarked(home, document) == []


@pytest.mark.parametrize("case", CASES)
def test_a_number_that_differs_from_its_answer_is_a_fault(case, tmp_path):
    # the broken twin: signed, and says two things
    home = tmp_path / "public"
    document = published(case, home)
    path = home / "margins.parquet"
    rows = pd.read_parquet(path)
    rows.loc[0, "noisy"] += 1
    rows.to_parquet(path, index=False)
    document = with_digest(document, path)
    written_again(document, home)
    [(name, said)] = remarked(home, document)
    assert name == "margins.parquet"
    assert "other numbers than the answers" in said


def test_every_table_beside_the_margins_is_compared(tmp_path):
    home = tmp_path / "public"
    document = published("pairs and products", home)
    names = {path.stem for path in home.glob("*.parquet")}
    names -= {"answers", "margins", "synthetic_1", "synthetic_2"}
    assert names == {"caps", "cuts", "intervals", "products"}
    for name in sorted(names):
        path = home / f"{name}.parquet"
        content = path.read_bytes()
        rows = pd.read_parquet(path)
        number = rows.select_dtypes("number").columns[-1]
        rows[number] += 1
        rows.to_parquet(path, index=False)
        changed = with_digest(document, path)
        written_again(changed, home)
        assert [each for each, _ in remarked(home, changed)] == [f"{name}.parquet"]
        path.write_bytes(content)


def test_laws_answers_and_offers_that_settings_contradict_are_faults(tmp_path):
    home = tmp_path / "public"
    document = published("views", home)
    louder = replace(document.margins[0], scale=document.margins[0].scale * 2)
    laws = (louder, *document.margins[1:])
    changed = document.model_copy(update={"margins": laws})
    assert "other noise" in remarked(home, changed)[0][1]
    offers = replace(document.offers, sets_share="posterior")
    changed = document.model_copy(update={"offers": offers})
    [(name, said)] = remarked(home, changed)
    assert (name, "offers what margins" in said) == ("privacy.json", True)
    twice = document.answers * 2
    changed = document.model_copy(update={"answers": twice})
    [(name, said)] = remarked(home, changed)
    assert (name, "don't ask for" in said) == ("answers.parquet", True)


@pytest.mark.parametrize(
    "settings", [{"epsilon": "much"}, {"split": 3}, {"n_sets": 0}, {"measure": "pairs"}]
)
def test_settings_that_did_not_make_the_answers_are_faults(settings, tmp_path):
    home = tmp_path / "public"
    document = published("views", home)
    changed = document.model_copy(update={"settings": document.settings | settings})
    [(name, said)] = remarked(home, changed)
    assert (name, "don't ask for" in said) == ("answers.parquet", True)


def test_offers_of_a_mechanism_with_a_model_are_compared(tmp_path):
    home = tmp_path / "public"
    schema = Schema.model_validate({"columns": {"ill": COLUMNS["ill"]}})
    table = Table(pd.DataFrame({"ill": [False, True] * 100}), schema)
    release, _ = find("modips")(epsilon=2, model="bernoulli").release(table)
    release.publish(home)
    document = PrivacyDocument.read(home)
    assert remarked(home, document) == []
    offers = replace(document.offers, zeros=True)
    changed = document.model_copy(update={"offers": offers})
    assert [name for name, _ in remarked(home, changed)] == ["privacy.json"]


def test_a_release_of_another_version_is_not_worked_out(tmp_path):
    home = tmp_path / "public"
    document = published("views", home)
    software = {**document.software, "pdips": "0.0.1"}
    louder = replace(document.margins[0], scale=document.margins[0].scale * 2)
    laws = (louder, *document.margins[1:])
    changed = document.model_copy(update={"software": software, "margins": laws})
    assert remarked(home, changed) == []
