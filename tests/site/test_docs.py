"""Every block of code in the pages runs, or says why not; the pages and the site hold
together.
"""

import json
import re
import shutil
from importlib.metadata import entry_points
from pathlib import Path

import pages
import pytest

from benchmarks import pictures_choosing
from pdips import InputError, registry

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path for path in pages.pages()}
LONG = ("README.md", "docs/audit.md", "docs/diagnostics.md", "docs/index.md")
LONG += (
    "docs/mechanisms/kng.md",
    "docs/model_contract.md",
    "docs/models.md",
    "docs/studies.md",
)


def parsed(name: str) -> list[pages.Block]:
    return list(pages.blocks(PAGES[name].read_text(encoding="utf-8")))


WITH_CODE = [
    name for name in PAGES if any(pages.is_code(block) for block in parsed(name))
]


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(
        ROOT / "models",
        tmp_path / "models",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "MECHANISMS", dict(registry.MECHANISMS))
    monkeypatch.setattr(registry, "AUDITS", dict(registry.AUDITS))
    return tmp_path


def run_page(text: str) -> int:
    """Check the blocks of a page, run those that are to be run, and return how many
    there are.
    """
    names, found = {"__name__": "page"}, list(pages.blocks(text))
    for block in found:
        pages.check(block)
        if pages.is_code(block) and not block.not_run:
            pages.run(block, names)
    return len(found)


@pytest.mark.slow_cases(
    "docs/evaluate.md",
    "docs/inference.md",
)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in WITH_CODE]
)
# Noise is new in each run: now and then one noisy count weighs so much that `az.loo`
# warns of it, as it should.
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto:UserWarning")
def test_code_on_the_page_runs(name, scratch):
    assert run_page(PAGES[name].read_text(encoding="utf-8")) > 0


NOT_RUN = {
    "README.md": 1,
    "docs/audit.md": 1,
    "docs/inference.md": 1,
    "docs/ledger.md": 1,
    "docs/studies.md": 1,
    "docs/testing.md": 2,
}
"""Blocks that aren't run, by page; each says why, in a comment above it."""


def test_few_blocks_are_not_run_and_each_says_why():
    reasons = {
        name: [block.not_run for block in parsed(name) if block.not_run]
        for name in WITH_CODE
    }
    assert {name: len(said) for name, said in reasons.items() if said} == NOT_RUN
    assert min(len(reason.split()) for said in reasons.values() for reason in said) >= 4
    assert not [
        name
        for name in WITH_CODE
        for block in parsed(name)
        if block.not_run and block.language == "python"
    ]


@pytest.mark.parametrize(
    ("flaw", "error"),
    [
        ("```python\nnothing_of_this_name\n```", NameError),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```", AssertionError),
        ("<!-- setup\nimport warnings\n\nwarnings.warn('a warning')\n-->", UserWarning),
        ("```\npdips --help\n```", AssertionError),
        ("Text\n\n    pdips --help\n", AssertionError),
        ("```bash\npdips synthesize --no-such-option\n```", AssertionError),
        (
            "<!-- not run: it would fail -->\n```bash\npdips report "
            "--no-such-option\n```",
            AssertionError,
        ),
        ("```bash\npdips schema check gone.toml\n```", InputError),
        ("```bash\nmake gone\n```", AssertionError),
        ("```bash\nmake test\n```", AssertionError),
        ("```bash\nrm -r x\n```", AssertionError),
        ('```toml\n[columns.x]\nlevel = ["misspelt"]\n```', InputError),
        ("<!-- file: x.py -->", AssertionError),
    ],
)
def test_a_block_that_fails_is_seen(scratch, flaw, error):
    # the broken twins of the test above
    with pytest.raises(error):
        run_page(f"# Page\n\n{flaw}\n")


def test_hidden_blocks_prepare_and_write_files(scratch):
    run_page(
        "<!-- setup\nx = 1\n-->\n\n<!-- file: s.toml "
        "-->\n```toml\n[columns.x]\nlevels = [1]\n```\n"
    )
    run_page(
        "```bash\npdips schema check examples/hours.toml  # a "
        "comment\n```\n\n```text\nnot code\n```\n"
    )
    assert (scratch / "s.toml").read_text() == "[columns.x]\nlevels = [1]\n"


OTHERS = ("examples/README.md", "notebooks/README.md")
# Of a page; the changelog is a list
MOST_WORDS, MOST_COLUMNS = 2_500, 88
LISTS = {"docs/changelog.md"}


def prose(text: str) -> int:
    """Count the words of a page: no code, formulas, hidden comments or rows of tables;
    a glossary is prose.
    """
    text = re.sub(r"(?s)<!--.*?-->", "", text)
    text = re.sub(r"(?ms)^```\{glossary\}$(.*?)^```$", r"\1", text)
    text = re.sub(r"(?ms)^( *```+|\$\$).*?^\1$", "", text)
    return sum(
        len(line.split())
        for line in text.splitlines()
        if not line.lstrip().startswith("|")
    )


def wide(text: str) -> list[str]:
    """Return the lines of a page's code that are longer than allowed."""
    shown = (
        b.text
        for b in pages.blocks(text)
        if b.language != "setup" and not b.language.startswith("{")
    )
    return [
        line
        for block in shown
        for line in block.splitlines()
        if len(line) > MOST_COLUMNS
    ]


def test_the_pages_are_short_and_their_code_is_narrow():
    texts = {
        name: path.read_text(encoding="utf-8")
        for name, path in PAGES.items()
        if "proofs" not in path.parts
    }
    texts |= {name: (ROOT / name).read_text(encoding="utf-8") for name in OTHERS}
    long = {name for name, text in texts.items() if prose(text) > MOST_WORDS}
    assert long <= LISTS
    assert {name: found for name, text in texts.items() if (found := wide(text))} == {}
    # the broken twins
    page = (
        f"One two.\n\n<!-- setup\nx = 1\n-->\n```python\n{'x' * 89}\n```\n\n| a | "
        f"b |\n\n"
    )
    assert prose(page + "three " * 45_000) == 45_002
    assert prose("```{glossary}\nterm\n  its meaning\n```\n") == 3
    assert wide(page) == ["x" * 89]
    assert not wide(page.replace("x" * 89, "x" * 88))


# Words of all pages and of the Markdown of notebooks, proofs and the changelog apart.
# The goal is 45,000. Lower this when pages become shorter; never raise it for a page
# that repeats another one.
MOST_WORDS_OF_ALL = 45_110


def text_of(path: Path) -> str:
    """Return the text of a page or of the Markdown of a notebook. Rows of tables in
    ``docs/results`` are left out: scripts write them, and nobody reads them through.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        marked = [cell for cell in cells if cell["cell_type"] == "markdown"]
        return "\n\n".join("".join(cell["source"]) for cell in marked)
    if path.parent.name == "results":
        text = re.sub(r"(?m)^\|.*$", "", text)
    return text


def words_of_all(paths: list[Path]) -> int:
    """Count the words of pages and notebooks: code, tables and comments included."""
    return sum(len(text_of(path).split()) for path in paths)


def test_the_pages_and_notebooks_together_are_short(tmp_path):
    pages_read = [
        path
        for name, path in PAGES.items()
        if "proofs" not in path.parts and name not in ("README.md", *LISTS)
    ]
    notebooks = [
        *(ROOT / "notebooks").glob("*.ipynb"),
        ROOT / "notebooks" / "README.md",
    ]
    assert len(pages_read) > 80
    assert len(notebooks) > 15
    found = words_of_all(pages_read + notebooks)
    assert found <= MOST_WORDS_OF_ALL
    # the broken twin: pages that are longer by what is left, and one word
    longer = tmp_path / "page.md"
    longer.write_text("word " * (MOST_WORDS_OF_ALL - found + 1), encoding="utf-8")
    assert words_of_all([*pages_read, *notebooks, longer]) > MOST_WORDS_OF_ALL
    table = tmp_path / "results" / "page.md"
    table.parent.mkdir()
    table.write_text("Two words\n\n| a | row |\n", encoding="utf-8")
    assert words_of_all([table]) == 2


def documented() -> set[str]:
    text = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "docs" / "api").glob("*.md")
    )
    return set(re.findall(r"(?m)^\.\. auto\w+:: (\S+)$", text))


def test_all_public_names_are_in_the_reference():
    import pdips
    import pdips.audit
    import pdips.inference

    elsewhere = {
        "pdips.audit.Case",
        "pdips.audit.Pair",
        "pdips.audit.AUDITS",
        "pdips.inference.Rule",
    }
    public = {
        f"{m.__name__}.{name}"
        for m in (pdips, pdips.audit, pdips.inference)
        for name in m.__all__
    }
    assert len(public) > 35
    assert public - documented() == elsewhere
    assert {
        "pdips.audit.neighbour_pairs.Case",
        "pdips.audit.neighbour_pairs.Pair",
    } <= documented()


def terms() -> dict[str, str]:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    lists = "\n\n".join(re.findall(r"(?s)```\{glossary\}\n(.*?)```", text))
    return {
        entry.split("\n", 1)[0]: entry.split("\n", 1)[1]
        for entry in re.split(r"\n\n+(?=\S)", lists.strip())
    }


def test_the_glossary_says_where_each_term_is_explained():
    found = terms()
    assert len(found) >= 60
    links = {term: re.findall(r"\]\(([^)#]+)", text) for term, text in found.items()}
    assert [term for term, there in links.items() if not there] == []
    gone = [
        link
        for there in links.values()
        for link in there
        if not (ROOT / "docs" / link).exists()
    ]
    assert [link for link in gone if link != "README.md"] == []
    wanted = {
        "epsilon",
        "sensitivity",
        "structural zeros",
        "R-hat",
        "pseudo posterior",
        "SPECKS",
        "suppression",
    }
    assert wanted | {"PUMS", "not covered by the guarantee"} <= set(found)


def test_decisions_are_whole_and_listed():
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text(encoding="utf-8")
    assert re.search(r"(?s)```\{toctree\}\n:glob:\n[^`]*\n\[0-9\]\*\n```", index)
    paths = sorted(folder.glob("[0-9]*.md"))
    assert len(paths) >= 10
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {int(path.name[:2])}. "), path.name
        heads = re.findall(r"(?m)^(?:## (.*)|(\d{4}-\d\d), in force\.)$", text)
        assert [head or "date" for head, _ in heads] == [
            "date",
            "Context",
            "Decision",
            "Consequences",
        ], path.name


def test_the_page_of_the_papers_names_every_study_and_knows_every_name():
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    studies = {entry.name for entry in entry_points(group="pdips.studies")}
    assert (
        set(
            re.findall(
                r"pdips study "
                r"([\w-]+)",
                text,
            )
        )
        | {"model-mechanisms"}
        == studies
    )
    assert "`model-mechanisms`" in text
    named = set(
        re.findall(
            r"--mechanism "
            r"([a-z-]+)",
            text,
        )
    ) | set(re.findall(r"\[`([a-z-]+)`\]\(mechanisms/", text))
    assert named <= set(registry.MECHANISMS)
    # the others are of a paper, or compared with one
    assert set(registry.MECHANISMS) - named == {"group-sums", "margins"}


def test_each_version_in_the_changelog_begins_with_privacy():
    text = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    versions = re.split(r"(?m)^## ", text)[1:]
    assert versions
    assert [re.search(r"(?m)^### (.*)$", version)[1] for version in versions] == [
        "Privacy"
    ] * len(versions)


def test_the_decision_picture_is_drawn_from_its_questions():
    drawn = (ROOT / "docs" / "choosing.svg").read_text(encoding="utf-8")
    assert drawn == pictures_choosing.picture()
    assert "<title" in drawn
    assert "<desc" in drawn
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    answers = {name.split()[0] for _, name in pictures_choosing.QUESTIONS}
    assert answers <= set(registry.MECHANISMS)
    assert [name for name in answers if f"](mechanisms/{name}.md)" not in page] == []


CITED = re.compile(
    r"([A-Z][a-z]\w+)(?:, [A-Z][a-z]\w+)*(?:,? and [A-Z][a-z]\w+| et al\.)(?:'s)?,? "
    r"\(?((?:19[5-9]|20[0-2])\d)\b"
)


def uncited(text: str, bibliography: str) -> set[tuple[str, str]]:
    """Authors and years of a text that the bibliography doesn't hold."""
    entries = re.findall(
        r"author = \{(.*?)\},\n.*?year = "
        r"\{(\d+)\}",
        bibliography,
        re.DOTALL,
    )
    held = {
        (name, year)
        for authors, year in entries
        for name in re.findall(r"\w+", authors)
    }
    return {
        found.groups() for found in CITED.finditer(re.sub(r"\s+", " ", text))
    } - held


def test_what_is_cited_is_in_the_bibliography():
    bibliography = (ROOT / "docs" / "references.bib").read_text("utf-8")
    sources = [*(ROOT / "pdips").rglob("*.py"), *PAGES.values()]
    for path in sources:
        text = path.read_text("utf-8")
        assert not uncited(text, bibliography), path.name
        assert "changelog" in path.name or not re.search(
            r"(?<!\[)\b[Pp]aper "
            r"00\d",
            text,
        ), path.name
    # the broken twin
    assert uncited("Nobody and Noone (2020)", bibliography) == {("Nobody", "2020")}
