"""The README as a newcomer follows it: a clean clone, a fresh environment, its commands
and Python word for word.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pages
import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MECHANISMS = (ROOT / "docs/mechanisms/index.md").read_text(encoding="utf-8")
MOST_WORDS = 900


def shown(language: str, begins: str) -> str:
    """Return the one block of the README in a language that begins with the given
    text.
    """
    (found,) = [
        b
        for b in pages.blocks(README)
        if b.language == language and b.text.startswith(begins)
    ]
    return found.text


def test_links_lead_somewhere_and_the_schema_of_the_docs_is_valid():
    from pdips import Schema

    links = re.findall(r"\]\((?!http)([^)]+)\)", README)
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []
    block = re.search(
        r"(?s)```toml\n(.*?)```",
        (ROOT / "docs" / "schema.md").read_text(encoding="utf-8"),
    )
    assert block is not None
    schema = Schema.from_toml(block.group(1))
    assert schema.columns["salary"].n_levels == 21
    assert schema.public_columns == ("region",)


def test_it_is_short():
    words = re.sub(r"(?s)<!--.*?-->", "", README).split()
    assert len(words) <= MOST_WORDS


def test_the_model_shown_can_be_built():
    from pdips import Schema
    from pdips.sampling import written_model

    names = {}
    exec(shown("python", "import pymc as pm\n\n\ndef make"), names)
    survey = (ROOT / "examples/youth.toml").read_text(encoding="utf-8")
    schema = Schema.from_toml(survey)
    source = written_model(names["make"], schema, {}).source(None, schema)
    assert source.converted.columns == ("enrolled",)


def test_the_lock_file_names_no_host():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 20
    assert [
        line
        for line in lines
        if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)
    ] == []


LOST = dict(
    re.findall(
        r"(?m)^\| \[`([a-z-]+)`\].*\| (?:at least "
        r")?([0-9.]+)[^|]*\|$",
        MECHANISMS,
    )
)
"""What the table of guarantees says that a mechanism loses as printed."""

EXACT = (
    "censored-posterior",
    "kng",
    "laplace-sanitizer",
    "perturbed-histogram",
    "privbayes",
    "steps",
)
COUNTED = {
    "modips": "printed: cell means",
    "pseudo-posterior": "pseudo-posterior (Weighted)",
}


@pytest.mark.slow_cases(
    "censored-posterior",
    "privbayes",
    "steps",
)
@pytest.mark.parametrize("name", [*EXACT, "universal-histogram"])
def test_what_a_printed_form_loses_is_what_its_audit_finds(name):
    from pdips.audit import audit_cases, registered_cases

    exact = [
        case
        for case in registered_cases(name, variant="published")
        if case.engine == "exact"
    ]
    assert f"{max(found.bound for found in audit_cases(exact)):.2f}" == LOST[name]


def test_one_attack_has_one_figure():
    page = (ROOT / "docs" / "results" / "audit.md").read_text(encoding="utf-8")
    rows = {
        row.split(" | ")[0].lstrip("| "): row
        for row in page.splitlines()
        if row.startswith("| ")
    }
    assert set(LOST) == {*EXACT, *COUNTED, "universal-histogram"}
    for name, row in {
        **COUNTED,
        "kng": "kng, published",
        "censored-posterior": "censored-posterior, published",
    }.items():
        (found,) = [rows[each] for each in rows if each.startswith(row)]
        assert LOST[name] in found
    for name, notebook in (
        ("kng", "what_the"),
        ("modips", "what_the"),
        ("pseudo-posterior", "what_the"),
    ):
        (path,) = (ROOT / "notebooks").glob(f"{notebook}*.ipynb")
        assert LOST[name] in path.read_text(encoding="utf-8")


def shell(folder: Path, command: str) -> str:
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS")
    }
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.clone
def test_a_newcomer_gets_through_the_readme(tmp_path):
    shell(tmp_path, f"git clone --quiet {ROOT} clone")
    clone = tmp_path / "clone"
    printed = shell(clone, "make demo")
    promised = re.search(r"(?ms)^released .*?for the curator only$", README)
    assert promised is not None
    for line in promised.group().splitlines():
        assert line.strip() in printed
    assert (clone / "demo/youth/public/card.html").exists()
    assert (clone / "demo/youth/confidential/report.html").exists()
    assert "released  20 synthetic sets of 5 columns by modips" in printed
    assert (
        "The posterior"
        in (clone / "demo/earnings/confidential/report.html").read_text()
    )
    assert "INSIDE ONLY" in printed
    evaluation = json.loads(
        (clone / "demo/youth/confidential/evaluation.json").read_text()
    )["specific"]
    names = [row["coefficient"] for row in evaluation["coefficients"]]
    assert (
        re.findall(
            r"(?m)^\| `([^`]+)` \| -?[0-9.]+ \| -?[0-9.]+ "
            r"\|",
            README,
        )
        == names
    )
    assert (
        "General measures"
        in (clone / "demo/youth/confidential/report.html").read_text()
    )
    shell(clone, "make demo EPSILON=3")
    assert (
        json.loads((clone / "demo/youth/public/privacy.json").read_text())["privacy"][
            "epsilon"
        ]
        == 3
    )
    assert "epsilon 4 of 10 spent, 6 left" in shell(
        clone, ".venv/bin/pdips ledger show demo/youth.sqlite"
    )
    python = [b.text for b in pages.blocks(README) if b.language == "python"]
    assert len(python) == 4
    (clone / "snippet.py").write_text("\n".join(python))
    printed = shell(clone, ".venv/bin/python snippet.py")
    assert "at_home" in printed
    assert "female" in printed
    assert (clone / "demo/survey/synthetic_5.parquet").exists()
    shell(clone, ".venv/bin/pdips schema check examples/hours.toml")
