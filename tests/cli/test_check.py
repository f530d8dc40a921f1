"""`pdips check`: what it prints, its exit codes, and bad input."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pdips import Ledger, Margins, Schema, Table
from pdips.evaluation.margins import no_comparison
from pdips.privacy.account import Receipt
from pdips.privacy.signing import AccountKey
from pdips.release.documents import RunDocument
from pdips.release.folder import staging
from pdips.report.pages import write_card

SCHEMA = Schema.model_validate(
    {"columns": {name: {"levels": ["no", "yes"]} for name in ("ill", "old")}}
)


def charged(home: Path, name: str, ledger: Ledger) -> Path:
    """A release that is charged to a ledger and signed by its key, as a folder."""
    rng = np.random.default_rng(4)
    frame = pd.DataFrame(
        {each: rng.choice(["no", "yes"], 40) for each in ("ill", "old")}
    )
    key_file = Path(f"{ledger.path}.key")
    key = (
        AccountKey.read(key_file) if key_file.exists() else AccountKey.create(key_file)
    )
    release, _ = Margins(epsilon=1).release(Table(frame, SCHEMA), ledger=ledger)
    assert release.receipt is not None
    release = replace(release, identifier=release.receipt.token)
    out = home / name
    with staging(out, False) as place:
        public = place.part("public")
        public.rmdir()
        release.publish(public, sign=lambda text: (key.public, key.sign(text)))
        place.place("public")
        write_card(out / "public")
        RunDocument.model_validate(
            {
                "release": release.identifier,
                "table": "a table",
                "published": True,
                "seconds": {},
                "peak_memory_mib": 1.0,
                "ledger": None,
                "n_records": 40,
                "diagnostics": {},
                "comparison": no_comparison(),
            }
        ).write(place.part("confidential"))
        place.place("confidential")
    return out


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Path:
    """A folder with two ledgers and a release of each."""
    home = tmp_path_factory.mktemp("released")
    for name in ("one", "two"):
        charged(home, name, Ledger(home / f"{name}.sqlite"))
    return home


@pytest.fixture(autouse=True)
def held(monkeypatch) -> set[str]:
    """The names of ledgers that hold the table of the releases: the ledger says so."""
    names = {"one.sqlite"}
    monkeypatch.setattr(
        Ledger,
        "holds",
        lambda self, fingerprint: fingerprint == "a table" and self.path.name in names,
        raising=False,
    )
    return names


def key_of(here: Path, name: str = "one") -> str:
    return AccountKey.read(here / f"{name}.sqlite.key").public


def test_all_is_well(pdips, here):
    (here / "key.txt").write_text(f"{key_of(here)}\n")
    for key in (key_of(here), here / "key.txt"):
        out = pdips.ok(
            "check", here / "one", "--ledger", here / "one.sqlite", "--key", key
        )
        assert f"signed by the key {key_of(here)}" in " ".join(out.split())
        assert f"ok        {here / 'one'}\n" in out
        assert "FAULT" not in out
    out = pdips.ok("check", here / "one", here / "two/public")
    assert out.count("ok        ") == 2
    assert "proves nothing until it is compared" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 130


def test_every_fault_has_a_line(pdips, here):
    public = here / "one/public"
    (public / "notes.txt").write_text("")
    (public / "synthetic_2.csv").write_text("")
    (public / "synthetic_1.parquet").write_bytes(b"")
    (public / "card.html").unlink()
    shutil.rmtree(here / "one/confidential")
    shutil.copytree(here / "two/confidential", here / "one/confidential")
    code, out, err = pdips("check", here / "one", here / "two")
    assert (code, err) == (3, "")
    said = " ".join(out.split())
    for words in (
        "notes.txt: is not of this release",
        "synthetic_2.csv: unsigned post-processing",
        "synthetic_1.parquet: isn't the file that was published",
        "card.html: is missing: `pdips report DIR` writes it",
        "run.json: is of another release",
        f"ok {here / 'two'}",
    ):
        assert words in said
    assert out.count("FAULT") == 4
    assert f"ok        {here / 'one'}" not in out
    assert str(public / "card.html") in pdips.ok("report", public)


def test_an_epsilon_of_a_hundredth_is_found(pdips, here):
    path = here / "one/public/privacy.json"
    facts = json.loads(path.read_text())
    facts["privacy"]["epsilon"] = 0.01
    facts["spends"] = [{**facts["spends"][0], "epsilon": 0.01}]
    path.write_text(json.dumps(facts))
    write_card(here / "one/public")
    code, out, _ = pdips("check", here / "one/public")
    assert code == 3
    assert "signature.json: doesn't fit privacy.json" in " ".join(out.split())


def test_charges_are_looked_up_in_the_ledgers(pdips, here, held):
    one, two = (here / f"{name}.sqlite" for name in ("one", "two"))
    assert pdips("check", here / "one", "--ledger", two)[0] == 3
    pdips.ok("check", here / "one", here / "two", "--ledger", one, "--ledger", two)
    held.add("two.sqlite")
    code, out, _ = pdips("check", here / "one", "--ledger", one, "--ledger", two)
    assert code == 3
    assert "its table is held by 2 ledgers" in " ".join(out.split())
    facts = json.loads((here / "one/public/privacy.json").read_text())
    assert Receipt(**facts["receipt"]).token == facts["release"]


def test_what_killed_runs_left_is_found_and_cleared_on_request(pdips, here):
    hidden, lock = here / ".one-0123456789abcdef", here / ".one.lock"
    (hidden / "public").mkdir(parents=True)
    lock.write_text("")
    code, out, _ = pdips("check", here / "one")
    said = " ".join(out.split())
    assert (code, said.count("left by a run that was killed")) == (3, 2)
    assert pdips.ok("check", here / "two").startswith("note")
    out = pdips.ok("check", here / "one", "--clear")
    assert out.count("cleared   ") == 2
    assert not hidden.exists()
    assert not lock.exists()
    with staging(here / "one", True):
        out = pdips.ok("check", here / "one", "--clear")
        assert "a run is writing" in out
        assert [path for path in here.iterdir() if path.name.startswith(".one-")]


def test_what_is_no_release_is_refused(pdips, here):
    (here / "empty").mkdir()
    (here / "file").write_text("")
    for name in ("empty", "file", "none", "one/public/card.html"):
        pdips.fails("no folder of a pdips release", "check", here / name)
    code, out, err = pdips("check", here / "empty", here / "one")
    assert (code, err.count("\n")) == (2, 1)
    assert f"ok        {here / 'one'}" in out
    (here / "one/public/privacy.json").write_text("{")
    code, out, err = pdips("check", here / "empty", here / "one")
    assert (code, err.count("\n")) == (3, 1)
    assert "it is no valid JSON" in " ".join(out.split())
    pdips.fails("doesn't exist", "check", here / "two", "--ledger", here / "none")
    pdips.fails("is empty", "check", here / "two", "--ledger", here / "file")
    for key in ("", "abc", "0" * 63, here / "none", here / "empty", "\N{SNOWMAN}"):
        pdips.fails("is no public key", "check", here / "two", "--key", key)
    code, out, _ = pdips("check", here / "two", "--key", "0" * 64)
    assert code == 3
    assert "is by another key" in " ".join(out.split())
    pdips.fails("Missing argument", "check")


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"release": 1}',
        "[" * 100_000,
        "9" * 10_000,
        "\ud800".encode("utf-8", "surrogatepass"),
        b"\xff\xfe",
        "",
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "public/privacy.json",
        "public/signature.json",
        "public/datapackage.json",
        "public/certificate.json",
        "confidential/run.json",
        "confidential/evaluation.json",
    ],
)
def test_damaged_files_are_faults_and_no_traces(pdips, here, name, content):
    content = content.encode() if isinstance(content, str) else content
    (here / "one" / name).write_bytes(content)
    code, out, err = pdips("check", here / "one", "--ledger", here / "one.sqlite")
    assert (code, err) == (3, "")
    assert "FAULT" in out


def test_fifos_and_folders_in_place_of_files_are_faults(pdips, here):
    names = ["synthetic_1.parquet", "signature.json", "certificate.json"]
    names += ["card.html", "datapackage.json", "evaluation.json", "synthetic_7.csv"]
    for make in (os.mkfifo, os.mkdir):
        for name in names:
            path = here / "one/public" / name
            path.unlink(missing_ok=True)
            make(path)
        code, out, err = pdips("check", here / "one")
        assert (code, err) == (3, "")
        assert out.count("FAULT") >= 6
        for path in (here / "one/public").iterdir():
            if path.name != "privacy.json" and make is os.mkfifo:
                path.unlink()


def test_a_release_from_python_lacks_its_card_alone(pdips, tmp_path):
    frame = pd.DataFrame({"ill": ["no", "yes"] * 20, "old": ["no"] * 40})
    release, _ = Margins(epsilon=1).release(Table(frame, SCHEMA))
    release.publish(tmp_path / "public")
    code, out, _ = pdips("check", tmp_path)
    assert (code, out.count("FAULT")) == (3, 1)
    pdips.ok("report", tmp_path)
    out = pdips.ok("check", tmp_path)
    assert "unsigned: nothing shows who published it" in " ".join(out.split())
