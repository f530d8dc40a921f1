"""The files of a release: what is written is read back, and files of version 0.2.0 still are."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import filled, refuses

from pdips.convergence import ESS, RHAT, Convergence
from pdips.release.documents import Diagnostics, PrivacyDocument, RunDocument, home_of
from pdips.report.pages import rewrite

OLD = sorted((Path(__file__).parent / "version_0_2_0").glob("*.json"))
"""One release of each kind as version 0.2.0 wrote it, with the verdicts of that version's report."""


def unpacked(path: Path, folder: Path) -> dict[str, Any]:
    """Put the files of an old release in their places; return them."""
    held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    places = {"privacy": f"{held['home']}/privacy.json", "paid": "public/evaluation.json"}
    places |= {name: f"confidential/{name}.json" for name in ("run", "evaluation")}
    for name, place in places.items():
        if name in held:
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text(json.dumps(held[name]), encoding="utf-8")
    return held


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_a_release_of_version_0_2_0_is_reported_as_it_was(path, tmp_path):
    held = unpacked(path, tmp_path)
    verdicts: dict[str, Any] = {}
    assert len(rewrite(tmp_path, tell=verdicts.update)) == (2 if held["home"] == "public" else 1)
    assert {name: [found.level, found.line] for name, found in verdicts.items()} == held["verdicts"]


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_files_of_version_0_2_0_lose_nothing_when_they_are_written_again(path, tmp_path):
    held = unpacked(path, tmp_path)
    home = home_of(tmp_path)
    assert home is not None
    assert PrivacyDocument.read(home).contents() == held["privacy"]
    run = RunDocument.read(tmp_path / "confidential")
    run.write(tmp_path)
    assert RunDocument.read(tmp_path) == run
    again, before = run.contents(), held["run"]
    for found in (again["diagnostics"], before["diagnostics"]):
        found.pop("convergence", None)
        (found.get("posterior") or {}).pop("convergence", None)
    assert keys_of(before) <= keys_of(again)


def keys_of(content: Any, above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the paths of all keys."""
    if isinstance(content, list):
        return set().union(*(keys_of(one, above) for one in content))
    if not isinstance(content, dict):
        return set()
    return set().union(*({(*above, key)} | keys_of(one, (*above, key)) for key, one in content.items()))


def test_a_release_of_version_0_2_0_is_evaluated(pdips, tmp_path):
    held = unpacked(next(path for path in OLD if path.stem == "steps"), tmp_path / "out")
    schema = PrivacyDocument.model_validate(held["privacy"]).table_schema
    rng = np.random.default_rng(2)
    frames = [filled(schema, 80, rng) for _ in range(3)]
    frames[0].to_parquet(tmp_path / "t.parquet")
    for number, frame in enumerate(frames[1:], start=1):
        frame.to_parquet(tmp_path / "out" / "public" / f"synthetic_{number}.parquet")
    assert "report.html" in pdips.ok("evaluate", tmp_path / "t.parquet", tmp_path / "out")
    assert "General measures" in (tmp_path / "out" / "confidential" / "report.html").read_text(encoding="utf-8")


def said(passed: bool, rhat: float, ess: float, divergences: int = 0, more: str = "") -> str:
    """Return a line of ``run.json`` as version 0.2.0 wrote it."""
    return (
        f"{'passed' if passed else 'failed'}: R-hat at most {rhat:.4f} (below 1.01 asked for), effective draws at "
        f"least {ess:.0f} for the centre and {ess + 50:.0f} for the tails (above 400), {divergences} divergences "
        f"(none){more}"
    )


@pytest.mark.parametrize(
    ("line", "passed"),
    [
        (said(True, 1.001, 900), True),
        (said(True, RHAT - 1e-6, ESS + 0.1), True),  # rounded to the limits
        (said(False, RHAT - 1e-6, 900), False),
        (said(False, 1.001, 300), False),
        (said(False, 1.001, 900, divergences=1), False),
        (said(True, 1.0, math.inf), True),
    ],
)
def test_sentences_on_chains_of_version_0_2_0_become_numbers(line, passed):
    (found,) = Diagnostics.model_validate({"convergence": {"chains": line}}).convergence
    assert found.passed is passed
    (again,) = Diagnostics.model_validate({"convergence": [line, "independent draws"]}).convergence
    assert again == found


def test_rounds_and_the_worst_numbers_are_read_from_sentences():
    lines = [said(True, 1.002, 700), said(False, 1.2, 600, 2, ", in round 3")]
    first, second = Diagnostics.model_validate({"convergence": lines}).convergence
    assert (first.largest_rhat, first.smallest_ess_bulk, first.smallest_ess_tail, first.rounds) == (1.002, 700, 750, 1)
    assert (second.largest_rhat, second.divergences, second.rounds) == (1.2, 2, 3)
    for words in ("independent draws", [], {"total variation distance to half the lattice": 0.1}):
        assert Diagnostics.model_validate({"convergence": words}).convergence == []
    found = Convergence({"a": math.inf}, {"a": 1.0}, {"a": math.inf}, 0)
    written = Diagnostics(convergence=[found]).model_dump_json()
    json.loads(written, parse_constant=lambda word: pytest.fail(word))
    assert Diagnostics.model_validate_json(written).convergence == [found]


@pytest.mark.parametrize("document", [PrivacyDocument, RunDocument])
def test_a_missing_file_is_named(document, tmp_path):
    refuses(f"can't read .*{document.file}", document.read, tmp_path)
