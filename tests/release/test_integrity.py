"""Changed releases: whatever is changed, `pdips check` and `pdips.open` find it."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from tables import refuses

import pdips
from pdips import Ledger, Margins, Release, Schema, Table
from pdips.cli.check import examine
from pdips.errors import InputError
from pdips.evaluation.margins import no_comparison
from pdips.privacy.account import Receipt
from pdips.privacy.signing import AccountKey
from pdips.release import VERSION
from pdips.release.certificate import Certificate, Covered
from pdips.release.documents import (
    PrivacyDocument,
    RunDocument,
    write_json,
)
from pdips.release.folder import file_digest
from pdips.report.figures import roc_bound
from pdips.report.pages import card_of, write_card

SCHEMA = Schema.model_validate(
    {
        "title": "A small table",
        "columns": {
            "code": {"levels": ["01", "02", "NA"], "label": "Code of a place"},
            "wage": {"lower": 0, "upper": 100, "bins": 4, "unit": "USD"},
        },
    }
)
N_TAMPERED = 1000


def table(seed: int = 1) -> Table:
    rng = np.random.default_rng(seed)
    frame = {
        "code": rng.choice(["01", "02", "NA"], 200),
        "wage": rng.uniform(0, 99, 200),
    }
    return Table(pd.DataFrame(frame), SCHEMA)


def signer(key: AccountKey) -> Callable[[bytes], tuple[str, str]]:
    return lambda message: (key.public, key.sign(message))


def write_inside(out: Path, release: Release, **changes: Any) -> None:
    inside = out / "confidential"
    inside.mkdir(exist_ok=True)
    stated = {"release": release.identifier, "table": "1-2-3", "published": True}
    RunDocument.model_validate(
        {
            "seconds": {"counting": 1.0},
            "peak_memory_mib": 100.0,
            "ledger": None,
            "n_records": 200,
            "diagnostics": {},
            "comparison": no_comparison(),
            **stated,
            **changes,
        }
    ).write(inside)


def write_derived(out: Path) -> None:
    """A certificate, which the card shows."""
    public = out / "public"
    digest = file_digest(public / PrivacyDocument.file)
    row = Covered(what="levels", covered=0.95, standard_error=0.01, numbers=50)
    Certificate(release=digest, replays=5, rule="between", rows=[row]).write(public)


def made(out: Path, key: AccountKey | None, seed: int, number: int = 1) -> Path:
    """A release as the program writes it; one that is signed is charged, too."""
    release, _ = of_pairs(epsilon=1, n_sets=2).release(table(seed))
    if key is not None:
        receipt = Receipt(
            account="a" * 16,
            number=number,
            token=release.identifier,
            kind="pure",
            neighbours="replace-one",
            epsilon="1",
            delta="0",
            rho="0",
        )
        release = replace(release, receipt=receipt)
    sign = None if key is None else signer(key)
    release.publish(out / "public", file_format="csv", sign=sign)
    write_derived(out)
    write_card(out / "public")
    write_inside(out, release)
    return out


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> AccountKey:
    return AccountKey.create(tmp_path_factory.mktemp("keys") / "l.sqlite.key")


@pytest.fixture(scope="module")
def originals(tmp_path_factory, key) -> dict[str, Path]:
    """Two signed releases of one account, and one that isn't signed."""
    home = tmp_path_factory.mktemp("originals")
    return {
        "signed": made(home / "signed", key, 1),
        "other": made(home / "other", key, 2, number=2),
        "unsigned": made(home / "unsigned", None, 3),
    }


def faults(out: Path, *given: Any) -> list[str]:
    return [str(remark) for remark in examine(out, *given) if remark.fault]


def test_what_is_unchanged_has_no_fault(originals, key):
    for name, out in originals.items():
        signed = name != "unsigned"
        assert faults(out) == []
        assert bool(faults(out, (), key.public)) is not signed
        opened = pdips.open(out)
        assert opened.signed_by is None
        assert opened.privacy.privacy.epsilon == 1
        assert len(opened.sets) == opened.privacy.n_sets == 2
        # text that looks like numbers, or like a missing value, is text
        assert {*opened.sets[0]["code"]} <= {"01", "02", "NA"}
        if signed:
            assert pdips.open(out / "public", key=key.public).signed_by == key.public
        else:
            refuses("is missing", pdips.open, out, key=key.public)


# ---- a thousand changes ----


class Change:
    """Changes one thing in a copy of a release, and can undo it."""

    def __init__(self, out: Path, other: Path, rng: np.random.Generator) -> None:
        self.out, self.other, self.rng = out, other, rng
        self.public = out / "public"

    def choice(self, options: list[Any]) -> Any:
        return options[self.rng.integers(len(options))]

    def files(self, home: Path | None = None) -> list[Path]:
        home = home or self.public
        return sorted(path for path in home.rglob("*") if path.is_file())

    def privacy(self, change: Callable[[dict[str, Any]], None]) -> None:
        path = self.public / "privacy.json"
        content = json.loads(path.read_text())
        change(content)
        write_json(path, content)

    # each of these is one kind of change

    def a_byte_of_a_file(self) -> None:
        path = self.choice([*self.files(), self.out / "confidential/run.json"])
        content = bytearray(path.read_bytes())
        if path.name == "run.json":  # only its release is compared
            place = content.index(b'"release": "') + len(b'"release": "')
            place += int(self.rng.integers(16))
        else:
            place = int(self.rng.integers(len(content)))
        content[place] ^= int(self.rng.integers(1, 256))
        path.write_bytes(bytes(content))

    def a_file_cut_off(self) -> None:
        path = self.choice(self.files())
        content = path.read_bytes()
        path.write_bytes(content[: int(self.rng.integers(len(content)))])

    def a_file_with_more(self) -> None:
        path = self.choice(self.files())
        path.write_bytes(path.read_bytes() + self.choice([b"\n", b" ", b"0", b"\0"]))

    def a_digest_line(self) -> None:
        with_file = bool(self.rng.integers(2))

        def change(content: dict[str, Any]) -> None:
            name = self.choice(sorted(content["digests"]))
            del content["digests"][name]
            if with_file:
                (self.public / name).unlink()

        self.privacy(change)
        if self.rng.integers(2):
            self.card()

    def all_digests(self) -> None:
        self.privacy(lambda content: content.pop("digests"))
        self.card()

    def epsilon(self) -> None:
        value = self.choice([0.01, 0.5, 1e-300, 2, 1.0000001, "0.01", -1, None, True])
        value = 1e999 if self.rng.integers(12) == 0 else value

        def change(content: dict[str, Any]) -> None:
            content["privacy"]["epsilon"] = value

        self.privacy(change)
        if self.rng.integers(2):
            self.card()

    def any_key_of_privacy(self) -> None:
        def change(content: dict[str, Any]) -> None:
            place: Any = content
            while isinstance(place, dict) and place:
                name = self.choice(sorted(place))
                if not isinstance(place[name], dict) or self.rng.integers(3) == 0:
                    if self.rng.integers(2):
                        del place[name]
                    else:
                        values = [0, -1, "x", [], {}, None, 1e400, "9" * 5000, [[]] * 9]
                        place[name] = self.choice(values)
                    return
                place = place[name]

        before = (self.public / "privacy.json").read_bytes()
        self.privacy(change)
        if (self.public / "privacy.json").read_bytes() == before:
            self.a_byte_of_a_file()

    def a_file_of_another_release(self) -> None:
        path = self.choice(self.files())
        source = self.other / "public" / path.relative_to(self.public)
        if not source.is_file() or source.read_bytes() == path.read_bytes():
            source = self.other / "public/privacy.json"
        shutil.copyfile(source, path)

    def a_half_of_another_release(self) -> None:
        half = self.choice(["public", "confidential"])
        shutil.rmtree(self.out / half)
        shutil.copytree(self.other / half, self.out / half)

    def a_file_deleted(self) -> None:
        self.choice(self.files()).unlink()

    def a_file_added(self) -> None:
        names = ["notes.txt", "synthetic_1.parquet", "synthetic_02.csv", ".hidden"]
        names += ["synthetic_0.csv", "evaluation.json", "x/y.csv"]
        names += ["margins.parquet", "run.json", "synthetic_9.txt", "CARD.HTML"]
        path = self.public / self.choice(names)
        path.parent.mkdir(exist_ok=True)
        path.write_text(self.choice(["", "{}", "code,wage\n01,2\n"]))

    def a_folder_in_place_of_a_file(self) -> None:
        path = self.choice(self.files())
        path.unlink()
        path.mkdir()

    def the_card(self) -> None:
        path = self.public / "card.html"
        page = path.read_text()
        figure = self.choice(
            ["2.72", "13.6", "steps", "A small table", "25.0", "epsilon"]
        )
        changed = page.replace(figure, "0.01")
        path.write_text(changed if changed != page else page.replace("<p>", "<p >", 1))

    def the_signature(self) -> None:
        path = self.public / "signature.json"
        if not path.exists():
            path.write_text('{"key": "", "signature": ""}')
            return
        content = json.loads(path.read_text())
        name = self.choice(["key", "signature"])
        values = ["0" * len(content[name]), content[name].upper(), "", None, 7]
        content[name] = self.choice(values)
        write_json(path, content)

    def signed_by_another_key(self) -> None:
        def change(content: dict[str, Any]) -> None:
            content["privacy"]["epsilon"] = 0.01

        self.privacy(change)
        another = AccountKey(AccountKey.__annotations__["private"].generate())
        message = (self.public / "privacy.json").read_bytes()
        signed = {"key": another.public, "signature": another.sign(message)}
        write_json(self.public / "signature.json", signed)
        self.card()

    def a_name_in_the_digests(self) -> None:
        names = ["../confidential/run.json", "/etc/hosts", "", "a\0b", "."]
        names += ["card.html", "privacy.json", "x" * 3000, "synthetic_1.csv/"]
        name = self.choice(names)

        def change(content: dict[str, Any]) -> None:
            content["digests"][name] = "0" * 64

        self.privacy(change)

    def card(self) -> None:
        """Write the card of what was changed, as who hides a change would."""
        try:
            write_card(self.public)
        except Exception:  # noqa: BLE001 - a change that no card can show
            return


KINDS = [
    name
    for name, value in vars(Change).items()
    if name.startswith(("a_", "all_", "any_", "the_", "epsilon", "signed"))
    and callable(value)
]


def changes(
    originals: dict[str, Path], home: Path, n: int
) -> Iterator[tuple[str, Path]]:
    """Yield changed copies one after the other, half of them signed."""
    rng = np.random.default_rng(46)
    out = home / "out"
    for number in range(n):
        kind = KINDS[number % len(KINDS)]
        name = "unsigned" if rng.integers(3) == 0 else "signed"
        shutil.copytree(originals[name], out)
        getattr(Change(out, originals["other"], rng), kind)()
        yield f"{number} {kind} {name}", out
        shutil.rmtree(out)


@pytest.fixture
def one_picture(monkeypatch):
    """Draw the picture of a card once for the figures that it shows: it takes most of
    the time of a check.
    """
    drawn: dict[str, Any] = {}

    def bound(power: Any, levels: Any, label: str) -> Any:
        if label not in drawn:
            drawn[label] = roc_bound(power, levels, label)
        return drawn[label]

    monkeypatch.setattr("pdips.report.card.roc_bound", bound)


@pytest.mark.slow
@pytest.mark.usefixtures("one_picture")
def test_each_of_a_thousand_changed_releases_is_found(originals, tmp_path, key):
    missed, seen = list[str](), set[str]()
    before = {
        name: {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for name, out in originals.items()
    }
    for what, out in changes(originals, tmp_path, N_TAMPERED):
        wanted = key.public if what.endswith(" signed") else None
        try:
            found = faults(out, (), wanted)
        except InputError as error:
            found = [str(error)]
        assert all("\n" not in line for line in found), what
        seen.add(what.split()[1])
        if not found:
            missed.append(what)
    assert missed == []
    assert seen == {*KINDS}
    for name, files in before.items():
        assert {path: path.read_bytes() for path in files} == files, name


def test_who_opens_a_changed_release_is_told(originals, tmp_path, key):
    signed = {"privacy.json", "signature.json", "datapackage.json"}
    for what, out in changes(originals, tmp_path, 8 * len(KINDS)):
        kept = {
            path.name: path.read_bytes()
            for path in (out / "public").iterdir()
            if path.is_file()
        }
        original = originals["signed"] / "public"
        same = all(
            kept.get(path.name) == path.read_bytes()
            for path in original.iterdir()
            if path.name in signed or path.suffix == ".csv"
        )
        # the other release is signed, too, so nothing is wrong with it alone
        if same or "a_half" in what or not what.endswith(" signed"):
            continue
        with pytest.raises(InputError) as caught:
            pdips.open(out, key=key.public)
        assert "\n" not in str(caught.value), what


# ---- one by one ----


@pytest.fixture(params=["signed", "unsigned"])
def out(request, originals, tmp_path) -> Path:
    return Path(shutil.copytree(originals[request.param], tmp_path / request.param))


def edited(public: Path, epsilon: float) -> None:
    content = json.loads((public / "privacy.json").read_text())
    content["privacy"]["epsilon"] = epsilon
    write_json(public / "privacy.json", content)


def test_an_edited_epsilon_is_found_with_its_card_written_again(out):
    edited(out / "public", 0.01)
    assert [line for line in faults(out) if "card.html" in line or "another" in line]
    (out / "public/certificate.json").unlink()
    write_card(out / "public")
    said = faults(out)
    if out.name == "signed":
        assert any("signature.json: doesn't fit privacy.json" in line for line in said)
    # its items still have the right sum
    assert any("spends don't add up to its epsilon" in line for line in said)
    refuses("doesn't fit|add up", pdips.open, out)


def test_a_deleted_digest_line_disarms_nothing(out):
    public = out / "public"
    content = json.loads((public / "privacy.json").read_text())
    del content["digests"]["synthetic_2.csv"]
    write_json(public / "privacy.json", content)
    (public / "synthetic_2.csv").write_text("code,wage\n01,1.0\n")
    assert any("privacy.json has no digest of it" in line for line in faults(out))
    (public / "synthetic_2.csv").unlink()
    assert any("has no digest of synthetic_2" in line for line in faults(out))
    assert any("datapackage.json: 'synthetic_2.csv'" in line for line in faults(out))


def test_sets_that_were_added_are_named_as_unsigned(out):
    for name in ("synthetic_3.csv", "synthetic_12.parquet", "members_3.csv"):
        (out / "public" / name).write_text("x")
    assert faults(out) == []
    notes = [str(one) for one in examine(out) if "unsigned post-processing" in str(one)]
    assert len(notes) == 3
    assert len(pdips.open(out).sets) == 2


def test_a_signature_is_missed_where_there_was_a_charge(out, key):
    (out / "public/signature.json").unlink(missing_ok=True)
    write_card(out / "public")
    signed = out.name == "signed"
    assert any("signs its releases" in line for line in faults(out)) is signed
    if not signed:
        assert any("unsigned:" in str(one) for one in examine(out))
    assert any("key has signed" in line for line in faults(out, (), key.public))


def test_another_key_is_named_and_none_proves_nothing(originals, tmp_path, key):
    another = AccountKey.create(tmp_path / "k.key")
    said = faults(originals["signed"], (), another.public)
    assert any(f"is by another key: {key.public}" in line for line in said)
    notes = [str(one) for one in examine(originals["signed"])]
    assert any("proves nothing until" in line for line in notes)


def test_halves_of_two_releases_are_a_mixture(out, originals, tmp_path):
    shutil.rmtree(out / "confidential")
    assert faults(out) == []
    shutil.copytree(originals["other"] / "confidential", out / "confidential")
    assert any("two releases are mixed" in line for line in faults(out))
    (out / "confidential/run.json").unlink()
    assert faults(out) == []  # nothing is left of it
    (out / "confidential/report.html").write_text("")
    assert any("run.json: is missing" in line for line in faults(out))


@pytest.mark.parametrize("changes", [{"release": "f" * 16}, {"published": False}])
def test_a_run_names_the_release_that_it_made(out, changes):
    path = out / "confidential/run.json"
    write_json(path, json.loads(path.read_text()) | changes)
    assert any("two releases are mixed" in line for line in faults(out))


def test_a_release_that_stays_inside_is_checked_too(tmp_path, key):
    out = tmp_path / "out"
    release, _ = Margins(epsilon=1).release(table(), rng=np.random.default_rng(1))
    release.write(out / "confidential")
    write_inside(out, release, published=False)
    assert faults(out) == []
    assert any("isn't signed" in line for line in faults(out, (), key.public))
    refuses("holds no published release", pdips.open, out)
    (out / "confidential/synthetic_1.parquet").write_bytes(b"")
    assert any("digest is another" in line for line in faults(out))
    release.publish(out / "public", allow=["seeded"])
    assert any("two releases are mixed" in line for line in faults(out))


@pytest.mark.parametrize(
    ("writer", "said"),
    [
        ("pdips 9.8.7, matplotlib 3.10", "its words were not compared"),
        (f"pdips {VERSION}, matplotlib 1.0", "all but its picture is right"),
    ],
)
def test_a_card_by_other_versions_is_compared_as_far_as_it_can_be(
    out, monkeypatch, writer, said
):
    monkeypatch.setattr("pdips.report.card.writer", lambda: writer)
    write_card(out / "public")
    monkeypatch.undo()
    assert faults(out) == []
    assert any(said in str(one) for one in examine(out))
    path = out / "public/card.html"
    page, price = path.read_text(), '<dd class="figure">&epsilon; ='
    path.write_text(re.sub(r"<path[^>]*>", "", page))
    assert faults(out) == []
    assert price in page
    path.write_text(page.replace(price, f"{price} 0.0", 1))
    assert any("doesn't say what the files" in line for line in faults(out))


@pytest.mark.parametrize(
    ("name", "keys", "value", "said"),
    [
        ("certificate.json", ["rows", 0, "covered"], 2, "damaged"),
        ("certificate.json", ["rows", 0, "covered"], 0.99, "doesn't say"),
        ("certificate.json", ["release"], "0" * 64, "another release"),
    ],
)
def test_what_is_written_later_is_checked(out, name, keys, value, said):
    path = out / "public" / name
    content = place = json.loads(path.read_text())
    for one in keys[:-1]:
        place = place[one]
    place[keys[-1]] = value
    write_json(path, content)
    assert any(said in line for line in faults(out)), faults(out)


def test_an_evaluation_inside_is_of_the_release(out):
    path = out / "confidential/evaluation.json"
    path.write_text("{}")
    assert any("damaged" in line for line in faults(out))


class Account:
    """A ledger that holds some charges, and some tables."""

    def __init__(self, path: str, complaint: str | None, *tables: str) -> None:
        self.path, self.complaint, self.tables = path, complaint, tables

    def compare(self, receipt: Receipt) -> str | None:
        return self.complaint

    def holds(self, fingerprint: str) -> bool:
        return fingerprint in self.tables


def test_charges_are_looked_up_and_two_accounts_of_one_table_refused(out):
    signed = out.name == "signed"
    holds = Account("a", None, "1-2-3")
    other, older = Account("b", "it is charged to another account"), "it has forgotten"
    assert (faults(out, [holds]) == []) is signed
    assert (faults(out, [other, holds]) == []) is signed
    if not signed:
        assert any("carries no receipt" in line for line in faults(out, [holds]))
        return
    assert any("another account" in line for line in faults(out, [other]))
    older = Account("c", "charge 1 of this account is another one")
    assert any("of this account" in line for line in faults(out, [other, older]))
    both = [holds, Account("d", "not here", "1-2-3")]
    assert any("held by 2 ledgers, a, d" in line for line in faults(out, both))


def test_a_release_without_digests_or_with_too_many_sets_is_at_fault(out):
    public = out / "public"
    content = json.loads((public / "privacy.json").read_text())
    write_json(public / "privacy.json", content | {"n_sets": 10**12})
    assert any("has no digest of synthetic_3" in line for line in faults(out))
    del content["digests"]
    write_json(public / "privacy.json", content)
    assert any("holds no digests" in line for line in faults(out))
    refuses("doesn't fit|holds no digests", pdips.open, out)


def test_a_set_that_changes_between_opening_and_reading_is_refused(out):
    opened = pdips.open(out)
    (out / "public/synthetic_1.csv").write_text("code,wage\n01,1.0\n")
    with pytest.raises(InputError, match="since it was opened"):
        _ = opened.sets


def test_publishing_with_an_account_signs_the_exact_bytes(tmp_path, key):
    release, _ = Margins(epsilon=1).release(table())
    release.publish(tmp_path / "public", sign=signer(key))
    public = tmp_path / "public"
    content = json.loads((public / "signature.json").read_text())
    message = (public / "privacy.json").read_bytes()
    assert content == {"key": key.public, "signature": key.sign(message)}
    stated = json.loads(message)
    assert stated["release"] == release.identifier
    outside = {path.name for path in public.iterdir()}
    assert {*stated["digests"]} == outside - {"privacy.json", "signature.json"}
    assert "signature.json" in card_of(PrivacyDocument.read(public), public)
    assert Ledger.__name__ in dir(pdips)
