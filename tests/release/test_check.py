"""Known faults: each touches a release of an earlier version and leaves others alone; the changelog describes each."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tables import cases, refuses

from pdips.release.known_faults import FAULTS, examine

ROOT = Path(__file__).parents[2]
NEW = ROOT / "docs" / "changelog.md"
WITHOUT_RELEASE = ("F", "J")  # a charge without a release, and tests that were missing
CATEGORICAL = {"colour": {"levels": ["blue", "red"]}}
NUMERIC = {"pay": {"lower": 0, "upper": 1}}


def facts_of(
    mechanism: str = "steps", columns: Any = CATEGORICAL, *, version: str | None = "0.1.0", **changes: Any
) -> dict[str, Any]:
    """Return as much of a ``privacy.json`` as is read; ``changes``: settings, records, sampling, reproducible."""
    return {
        "mechanism": mechanism,
        "settings": {"n_sets": 1, **changes.get("settings", {})},
        "reproducible": changes.get("reproducible", False),
        "privacy": {"epsilon": 1.0, "kind": "pure", "sampling": changes.get("sampling", "exact")},
        "schema": {"columns": columns, "records": changes.get("records", {})},
        **({} if version is None else {"software": {"pdips": version}}),
    }


def model(mechanism: str, source: str | None, **changes: Any) -> dict[str, Any]:
    return facts_of(mechanism, settings={"model": "m.py", "model_source": source}, **changes)


SOUND = 'pm.Normal("y", a, 1, observed=data["y"])'
PLAIN = facts_of()
NEWER = facts_of(version="0.2.0")
CENSORED = model("censored-posterior", SOUND)
LARGE = {"id": {"levels": ["9007199254740992", "9007199254740993"], "missing": True}}
CASES: dict[str, tuple[Any, Any]] = {
    "A1": (PLAIN, NEWER),
    "A2": (facts_of(columns=LARGE), facts_of(columns={"id": {"levels": ["9007199254740993"]}})),
    "A3": (PLAIN, facts_of(columns=NUMERIC)),
    "B": (model("modips", "class Mine(Sums):\n    l1 = 0"), model("modips", "def statistics(schema): ...")),
    "C": (model("censored-posterior", SOUND, sampling="mcmc"), CENSORED),
    "D": (model("modips", "def draw_posterior(given): ..."), model("modips", "def build_model(given): ...")),
    "E1": (model("censored-posterior", 'pm.Normal("y", a, 1, observed=np.log(data["y"]))'), CENSORED),
    "E2": (model("pseudo-posterior", f"v = data['x'].get_value()\n{SOUND}"), model("pseudo-posterior", SOUND)),
    "E3": (model("censored-posterior", None), CENSORED),
    "E4": (model("censored-posterior", f'pm.CustomDist("a", logp=f)\n{SOUND}'), CENSORED),
    "G1": (PLAIN, NEWER),
    "G2": (facts_of(records={"person": "id", "max_per_person": 3}), PLAIN),
    "G3": (facts_of(records={"person": "id", "max_per_person": 3}), facts_of(records={"max_per_person": 3})),
    "G4": (PLAIN, NEWER),
    "H1": (facts_of(reproducible=True), PLAIN),
    "H2": (PLAIN, NEWER),
    "H3": (facts_of("kng", settings={"sampler": "hit-and-run"}), facts_of("kng", settings={"sampler": "exact"})),
    "H4": (model("censored-posterior", SOUND, sampling="mcmc"), CENSORED),
    "I": (PLAIN, NEWER),
    "K": (facts_of("kng", settings={"by": ["region"]}), facts_of("kng")),
}


def found_in(facts: Any) -> set[str]:
    return {fault.identifier for fault in examine(facts).faults}


def test_every_fault_has_a_case_and_none_about_models_is_an_alarm_elsewhere():
    assert [fault.identifier for fault in FAULTS] == list(CASES)
    assert found_in(PLAIN) == {"A1", "A3", "G1", "G4", "H2", "I"}


@pytest.mark.parametrize("identifier", CASES)
def test_a_fault_touches_what_it_should_and_nothing_else(identifier):
    touched, untouched = CASES[identifier]
    assert identifier in found_in(touched)
    assert identifier not in found_in(untouched)
    assert found_in({**touched, "software": {"pdips": "0.2.0"}}) == {"K"} & {identifier}
    assert found_in({**touched, "software": {"pdips": "0.3.0"}}) == set()


@pytest.mark.parametrize("path", sorted((ROOT / "models").glob("*.py")), ids=lambda path: path.stem)
def test_models_that_ship_raise_no_alarm_about_their_text(path):
    source = path.read_text(encoding="utf-8")
    mechanism = "modips" if "def statistics(" in source else "censored-posterior"
    assert not found_in(model(mechanism, source)) & {"B", "E1", "E2", "E3", "E4"}


@pytest.mark.parametrize(("version", "touched"), cases(__file__, "versions"))
def test_versions(version, touched):
    facts = facts_of(version=version)
    assert bool(examine(facts).faults) is touched
    if version is None:
        assert "before releases named their version" in examine(facts).described


@pytest.mark.parametrize("change", [{"mechanism": 3}, {"schema": []}, {"schema": {}}, {"schema": {"columns": [1]}}])
def test_a_damaged_file_is_refused(change):
    refuses("damaged", examine, {**PLAIN, **change})


def entry_of(identifier: str) -> str:
    told = [part.split("\n### ")[0] for part in NEW.read_text(encoding="utf-8").split("### Privacy\n")[1:]]
    entries = re.findall(rf"^- \*\*{identifier}\.\*\*.*?(?=^- |\Z)", "\n".join(told), re.MULTILINE | re.DOTALL)
    assert len(entries) == 1, identifier
    return " ".join(entries[0].split())


@pytest.mark.parametrize("identifier", [*CASES, *WITHOUT_RELEASE])
def test_the_changelog_describes_each_fault_and_its_versions_in_the_words_of_the_table(identifier):
    entry = entry_of(identifier)
    for words in ("0.1.0", "Owners:", *(fault.wrong for fault in FAULTS if fault.identifier == identifier)):
        assert words in entry


def test_the_program_tells_the_owner(pdips, tmp_path):
    public = tmp_path / "out" / "public"
    public.mkdir(parents=True)
    (public / "privacy.json").write_text(json.dumps(facts_of(reproducible=True)))
    for place in (tmp_path / "out", public):
        code, out, err = pdips("check", place)
        assert (code, err) == (3, "")
        assert "made by pdips 0.1.0" in out
        assert "GUARANTEE DOES NOT HOLD: Sets made from a seed" in out
        assert "Touched if the table was a CSV file with a blank first line." in out
        assert max(map(len, out.splitlines())) <= 120
    pdips.fails("no folder of a pdips release", "check", tmp_path)
    (public / "privacy.json").write_text("{")
    assert pdips("check", public)[0] == 2
