"""The files of a release: what is written is read back."""

import json
import math

import pandas as pd
import pytest
from margin_tables import of_pairs
from tables import refuses

from pdips import Margins, Schema, Table
from pdips.convergence import Convergence
from pdips.evaluation.margins import no_comparison
from pdips.release.documents import (
    Diagnostics,
    Document,
    PrivacyDocument,
    ReleaseIdentity,
    RunDocument,
    Signature,
)

SCHEMA = Schema.model_validate(
    {"columns": {name: {"levels": ["no", "yes"]} for name in ("ill", "old")}}
)
FRAME = pd.DataFrame({"ill": ["no", "yes"] * 30, "old": ["no"] * 60})
CHAINS = Convergence({"a": 1.002}, {"a": 700.0}, {"a": 750.0}, 2, 3)


def run(**changes: object) -> RunDocument:
    whole = {
        "release": "0" * 16,
        "table": None,
        "published": True,
        "seconds": {"counting": 0.5},
        "peak_memory_mib": 300.0,
        "ledger": None,
        "n_records": 60,
        "diagnostics": {},
        "comparison": no_comparison(),
    }
    return RunDocument.model_validate(whole | changes)


@pytest.mark.parametrize(
    "mechanism", [Margins(epsilon=1), of_pairs(epsilon=1, n_sets=2)]
)
def test_a_release_loses_nothing_when_it_is_written_again(tmp_path, mechanism):
    release, _ = mechanism.release(Table(FRAME, SCHEMA))
    release.publish(tmp_path / "public")
    document = PrivacyDocument.read(tmp_path / "public")
    before = (tmp_path / "public/privacy.json").read_bytes()
    document.write(tmp_path)
    assert (tmp_path / "privacy.json").read_bytes() == before
    assert document.release == release.identifier
    assert {**document.contents(), "digests": None} == {
        **release.describe(),
        "digests": None,
    }


def test_each_release_has_an_identifier_of_its_own():
    both = [Margins(epsilon=1).release(Table(FRAME, SCHEMA))[0] for _ in range(2)]
    documents = [release.document() for release in both]
    assert documents[0].release != documents[1].release
    identity = ReleaseIdentity.of(documents[0])
    assert identity.differs(documents[0]) == []
    assert identity.differs(documents[1]) == ["identifier"]


@pytest.mark.parametrize(
    "wrong", ["", "0" * 15, "0" * 17, "G" * 16, "0" * 16 + "\n", "A" * 16]
)
def test_an_identifier_has_sixteen_digits(wrong):
    facts = Margins(epsilon=1).release(Table(FRAME, SCHEMA))[0].describe()
    with pytest.raises(ValueError, match="pattern"):
        PrivacyDocument.model_validate(facts | {"release": wrong})


def test_a_run_is_read_as_it_was_written(tmp_path):
    made = run(table="1-2-3", diagnostics={"convergence": [CHAINS]})
    made.write(tmp_path)
    again = RunDocument.read(tmp_path)
    assert again == made
    (chains,) = again.diagnostics.convergence
    assert (chains.largest_rhat, chains.smallest_ess_bulk) == (1.002, 700)
    assert (chains.smallest_ess_tail, chains.divergences, chains.rounds) == (750, 2, 3)
    assert chains.passed is False


def test_what_mechanisms_say_of_chains_is_read_once_or_several_times():
    for said in (CHAINS, [CHAINS], {"one": CHAINS}, [CHAINS, "independent draws"]):
        assert Diagnostics.model_validate({"convergence": said}).convergence == [CHAINS]
    for words in (
        "independent draws",
        [],
        {"total variation distance to half the lattice": 0.1},
    ):
        assert Diagnostics.model_validate({"convergence": words}).convergence == []


def test_infinite_figures_of_chains_are_written_as_json_has_them():
    found = Convergence({"a": math.inf}, {"a": 1.0}, {"a": math.inf}, 0)
    written = Diagnostics(convergence=[found]).model_dump_json()
    json.loads(written, parse_constant=lambda word: pytest.fail(word))
    assert Diagnostics.model_validate_json(written).convergence == [found]


@pytest.mark.parametrize("document", [PrivacyDocument, RunDocument, Signature])
def test_a_missing_file_is_named(document: type[Document], tmp_path):
    refuses(f"can't read .*{document.file}", document.read, tmp_path)
    (tmp_path / document.file).mkdir()
    refuses("it is no file", document.read, tmp_path)
