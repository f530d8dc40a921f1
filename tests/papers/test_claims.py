"""What pages and notebooks say of a paper's figures has a source: the register
``pdips_papers/data/claims.toml``.
"""

import csv
import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from pdips.registry import MECHANISMS
from pdips_papers import names, refutations
from pdips_papers.harness.printed import data
from pdips_papers.harness.stored import stored_table

ROOT = Path(__file__).parents[2]
REGISTER: dict[str, dict[str, str]] = data("claims.toml")
PAGES = [
    "docs/papers.md",
    "docs/studies.md",
    "docs/results/margins.md",
    "docs/results/studies.md",
    *(f"docs/mechanisms/{path.name}" for path in ROOT.glob("docs/mechanisms/*.md")),
    *(f"notebooks/{path.name}" for path in ROOT.glob("notebooks/*.ipynb")),
]
OF_A_PAPER = re.compile(r"(?i)\b(papers?|printed|prints)\b")
NO_FIGURES = (
    r"\]\([^)]*\)",  # targets of links
    r"`[^`]*`",
    r"<[^>]*>",
    r"\b(19|20)\d\d(-\d\d-\d\d)?\b",  # years and dates
    r"(?i)\b(figures?|tables?|sections?|equations?|simulations?|algorithms?|lemma"
    r"|supplement|layers?|STEPS-|Partition-)\s*[\d.,\- and]+(to \d+)?",
)
NUMBER = r"(?<![\w^.])\.?\d[\d.,]*"


def text_of(path: Path) -> str:
    """Return the prose of a page or a notebook: no code, no comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        marked = [cell for cell in cells if cell["cell_type"] == "markdown"]
        return "\n\n".join("".join(cell["source"]) for cell in marked)
    text = re.sub(r"(?s)<!--.*?-->", "", text)
    return re.sub(r"(?ms)^```.*?^```", "", text)


def sentences(text: str) -> Iterator[str]:
    """Yield sentences, and rows of tables, each on one line."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        rows = [line for line in lines if line.lstrip().startswith("|")]
        yield from rows
        prose = "\n".join(line.strip() for line in lines if line not in rows)
        for item in re.split(r"(?m)^- ", prose):
            one_line = " ".join(item.split())
            yield from re.split(r"(?<=[.:?])\s+(?=[A-Z*`(\[])", one_line)


def numbers(text: str) -> list[float]:
    """Return the figures of a sentence: no years, numbers of tables or code."""
    for pattern in NO_FIGURES:
        text = re.sub(pattern, " ", text)
    found = [each.strip(".,").replace(",", "") for each in re.findall(NUMBER, text)]
    return [float(each) for each in found if re.fullmatch(r"\d*\.?\d+", each)] + [
        float(f"0.{each}")
        for each in re.findall(r"(?<![\w.])\.(\d+)", text)
        if f".{each}" not in found
    ]


def stating(text: str) -> list[str]:
    """Return the sentences that are about a paper and state a figure."""
    return [one for one in sentences(text) if OF_A_PAPER.search(one) and numbers(one)]


def unregistered(text: str, says: dict[str, str]) -> list[str]:
    """Return the sentences without a source."""
    return [
        one for one in stating(text) if not any(fragment in one for fragment in says)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_what_is_said_of_a_papers_figures_is_registered(page):
    text = text_of(ROOT / page)
    says = REGISTER.get(page, {})
    assert unregistered(text, says) == []
    # nothing stale
    whole = " ".join(text.split())
    assert [fragment for fragment in says if fragment not in whole] == []


def test_a_sentence_without_a_source_is_found():
    # the broken twins
    text = "The paper prints a distance of .27, ours is .33.\n\n| the paper | 0.5 |\n"
    assert len(unregistered(text, {})) == 2
    assert len(unregistered(text, {"a distance of .27": "x"})) == 1
    assert unregistered("Table 3 of the paper (2021) has `x = 1`.", {}) == []
    assert unregistered("Ours is .33.", {}) == []


def printed_figures(place: str) -> list[float]:
    """Return the figures of a row of ``printed.toml``, or a cell of a CSV file."""
    if place.startswith("voter_table3.csv, "):
        _, power, method, column = place.split(", ")
        content = files("pdips_papers").joinpath("data", "voter_table3.csv")
        rows = csv.DictReader(content.read_text(encoding="utf-8").splitlines())
        [row] = [
            each
            for each in rows
            if (each["log_epsilon"], each["method"]) == (power, method)
        ]
        return [float(row[column])]
    study, table, row = place.split(".", 2)
    return [float(each) for each in data("printed.toml")[study][table][row]]


def agrees(said: float, printed: float) -> bool:
    """Return whether a figure is a printed one, rounded or not."""
    return any(abs(said - round(printed, digits)) < 1e-9 for digits in range(5))


def missing(source: str, sentence: str) -> str:
    """Return what is wrong with the source of a sentence; empty if nothing is."""
    kind, _, place = source.partition(" ")
    said = numbers(sentence)
    if kind == "printed":
        known = printed_figures(place)
        named = [one for one in said if any(agrees(one, each) for each in known)]
        return "" if named else f"none of {known} is said"
    if kind == "stored":
        name, row, column = place.split(" | ")
        kept = stored_table(name).set_index(["row", "column"])["ours"]
        known = float(kept[row, column])
        named = [one for one in said if agrees(one, known)]
        return "" if named else f"{known} is not said"
    if kind == "finding":
        study, _, name = place.partition(".")
        path = files("pdips_papers").joinpath("texts", f"{study}.toml")
        texts = tomllib.loads(path.read_text(encoding="utf-8"))
        return "" if name in texts else f"{study} has no finding {name}"
    if kind == "refuted":
        _, worked_out = refutations.TABLE[place]
        known = [float(each) for each in re.findall(r"\d+\.\d+", worked_out())]
        named = [one for one in said if any(agrees(one, each) for each in known)]
        return "" if named or place in NOT_NAMED else f"none of {known} is said"
    if kind == "proof":
        return "" if (ROOT / f"docs/proofs/{place}.md").exists() else "no such proof"
    if kind == "run":
        module = place.removeprefix("python -m ")
        return "" if importlib.util.find_spec(module) else f"no module {module}"
    if kind == "setting":
        where = r"^.*, (section|table|equation|figure|algorithm) \d|table of this"
        return "" if re.search(where, place) else "no place in the paper"
    return f"no kind of source: {kind}"


NOT_NAMED = (
    "KNG at the 99th percentile, 100 records",
    "KNG, 49 quantiles of three columns",
)
"""Rows whose figures stand in a table below the sentence."""


@pytest.mark.parametrize(
    ("page", "fragment"),
    [(page, fragment) for page, says in REGISTER.items() for fragment in says],
)
def test_each_source_is_there_and_has_the_figure(page, fragment):
    [sentence] = [one for one in sentences(text_of(ROOT / page)) if fragment in one]
    assert missing(REGISTER[page][fragment], sentence) == ""


def test_a_source_that_says_something_else_is_found():
    row = "printed heavy-tailed.means.KNG"
    assert missing(row, "the paper prints 49.3") == ""
    assert "is said" in missing(row, "the paper prints 49.4")
    assert "is said" in missing("refuted Sandwich", "the paper's row spends 4.9")
    assert "has no finding" in missing("finding heavy-tailed.nothing", "the paper: 1")
    assert "no place" in missing("setting Bowen and Liu (2018)", "the paper has 24")
    assert "no kind" in missing("somewhere", "the paper has 24")
    assert missing("run python -m benchmarks.nothing", "the paper has 24")
    assert missing("proof nothing", "the paper has 24")


def rows_of_papers() -> list[list[str]]:
    """Return the rows of tables of the page of papers, cell by cell."""
    lines = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    return [row for row in cells if row[0] not in ("---", "in the paper")]


def not_there(cell: str) -> list[str]:
    """Return the studies, mechanisms and modules of a cell that don't exist."""
    studies = re.findall(r"`pdips study ([\w-]+)", cell)
    mechanisms = re.findall(r"\[`([\w-]+)`\]\(mechanisms/", cell)
    modules = re.findall(r"`python -m ([\w.]+)", cell)
    wrong = [name for name in studies if name not in names()]
    wrong += [name for name in mechanisms if name not in MECHANISMS]
    return wrong + [each for each in modules if not importlib.util.find_spec(each)]


@pytest.mark.parametrize("row", rows_of_papers(), ids=lambda row: row[0][:40])
def test_each_line_of_the_page_of_papers_is_true(row):
    whole = f"| {' | '.join(row)} |"
    assert len(row) == 3
    assert not_there(row[1]) == []
    # a figure has a source, and the source says it: see above
    says = REGISTER["docs/papers.md"]
    assert not numbers(row[2]) or any(fragment in whole for fragment in says)


def test_a_line_with_what_is_not_there_is_found():
    assert not_there("`pdips study nothing`, [`none`](mechanisms/none.md)") == [
        "nothing",
        "none",
    ]
    assert not_there("`python -m pdips_papers.nothing`") == ["pdips_papers.nothing"]
    assert not_there("[`steps`](mechanisms/steps.md), `pdips study glom`") == []


def test_all_studies_are_on_the_page_of_papers():
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"`pdips study ([\w-]+)", text))
    assert shown == set(names()) - {"model-mechanisms"}
    assert "`model-mechanisms` is not from a paper" in text


def test_only_pages_that_are_looked_at_are_registered():
    assert set(REGISTER) <= set(PAGES)
