"""The pages: what is on them, what must never be, and what they do with hostile names
and damaged files.
"""

import copy
import json
import math
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tables import cases, filled, refuses

from pdips import PrivacyLoss, RefusedError, Release, Schema, Spend, Table
from pdips.evaluation.margins import compare
from pdips.release.documents import Margin, write_json
from pdips.report import figures
from pdips.report.card import belief_bound, detection_bound, odds_factor, round_up
from pdips.report.formats import ABSENT, MINUS, number, percent, plural, price
from pdips.report.pages import rewrite, write_card

IDENTIFIER = "0123456789abcdef"
STATEMENT = 'For a test: "x" < y & z, e^epsilon.'
COLUMNS: dict[str, Any] = {
    "voted": {"levels": ["no", "yes"]},
    "registered": {"levels": ["no", "yes"]},
    "age": {"lower": 18, "upper": 97, "integer": True, "bins": 40, "unit": "years"},
    "region": {"levels": ["north", "south", "$5-$10"], "public": True},
}
IMPOSSIBLE = ({"voted": "yes", "registered": "no"},)
VOID = {"meta", "br", "col", "hr", "img", "input", "link"}
ACCOUNT = {
    "neighbours": "replace-one",
    "total_epsilon": 3.0,
    "spent_epsilon": 1.0,
    "remaining_epsilon": 2.0,
    "total_delta": 0.0,
    "spent_delta": 0.0,
    "charged_epsilon": 1.0,
    "charged_delta": 0.0,
    "total_rho": None,
    "spent_rho": 0.5,
    "remaining_rho": None,
    "charged_rho": 0.5,
    "entries": [],
}
"""Where a ledger stands after a release, as ``run.json`` has it."""


def facts_of(
    columns: Mapping[str, Any] = COLUMNS, impossible: Any = IMPOSSIBLE, **changes: Any
) -> dict[str, Any]:
    """Return the contents of ``privacy.json`` as the library writes them, with
    ``changes`` where the file has them.
    """
    release = Release(
        identifier=IDENTIFIER,
        mechanism="margins",
        settings={"epsilon": 1.0, "n_sets": 2, "split": "once", "order": None},
        schema=Schema(columns=columns, impossible=impossible, title="Voters"),
        loss=PrivacyLoss(
            epsilon=Fraction(1),
            neighbours="replace-one",
            kind="pure",
            statement=STATEMENT,
        ),
        spends=(
            Spend(step="layer 1", epsilon=Fraction(1, 4)),
            Spend(step="all cells", epsilon=Fraction(3, 4)),
        ),
        sets=(pd.DataFrame(), pd.DataFrame()),
    )
    facts: dict[str, Any] = json.loads(json.dumps(release.describe()))
    for key, value in changes.items():
        home = (
            facts["schema"]
            if key == "records"
            else facts
            if key in facts
            else facts["privacy"]
        )
        home[key] = value
    return facts


def run_of(facts: Mapping[str, Any], n_sets: int = 2) -> dict[str, Any]:
    """Return the contents of ``run.json`` for a small table and sets drawn like it."""
    rng = np.random.default_rng(5)
    schema = Schema.model_validate({**facts["schema"], "impossible": ()})
    frames = [
        filled(schema, 60, rng, lambda _: rng.integers(18, 97, 60))
        for _ in range(n_sets + 1)
    ]
    comparison = compare(Table(frames[0], schema), frames[1:], rng).model_dump()
    return {
        "release": IDENTIFIER,
        "table": None,
        "seconds": {"counting": 0.5},
        "peak_memory_mib": 300.0,
        "ledger": ACCOUNT,
        "n_records": 60,
        "diagnostics": {},
        "published": True,
        "comparison": comparison,
    }


def write_folder(folder: Path, facts: Any, run: Any, *, published: bool = True) -> Path:
    (folder / "confidential").mkdir(parents=True)
    home = folder / ("public" if published else "confidential")
    home.mkdir(exist_ok=True)
    write_json(home / "privacy.json", facts)
    write_json(folder / "confidential" / "run.json", run)
    return folder


def changed(content: Any, keys: Sequence[Any], value: Any) -> Any:
    """Return a copy of what a file holds with another value in one place, which
    "deleted" takes away.
    """
    found = place = copy.deepcopy(content)
    for key in keys[:-1]:
        place = place[key]
    if value == "deleted":
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return found


def pages(folder: Path) -> tuple[str, str]:
    card, report = (path.read_text(encoding="utf-8") for path in rewrite(folder))
    return card, report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "release", facts_of(), run_of(facts_of()))


class Reader(HTMLParser):
    """Checks that tags are closed in order, and collects what the tests ask about."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def parse(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_the_policy_of_a_page_allows_its_own_style_alone(folder: Path) -> None:
    for page in pages(folder):
        [policy] = [
            meta["content"] or ""
            for meta in parse(page).all("meta")
            if meta.get("http-equiv") == "Content-Security-Policy"
        ]
        [style] = re.findall(r"(?s)<style>(.*?)</style>", page)
        digest = b64encode(sha256(style.encode()).digest()).decode()
        allowed = dict(part.split(" ", 1) for part in policy.split("; "))
        assert allowed == {
            "default-src": "'none'",
            "img-src": "data:",
            "style-src": f"'sha256-{digest}'",
            "style-src-attr": "'unsafe-inline'",
            "base-uri": "'none'",
            "form-action": "'none'",
        }


def test_both_pages_are_whole_accessible_and_load_nothing(folder: Path) -> None:
    for page in pages(folder):
        reader = parse(page)
        without_hashes = re.sub(r"sha256-[\w+/=]+", "", page)
        assert not re.search(
            r"https?://|//[a-z]|url\(|@import|<script|<link|src=",
            without_hashes,
            re.IGNORECASE,
        )
        assert reader.all("html") == [{"lang": "en"}]
        assert len(reader.all("table")) == len(reader.all("caption")) > 0
        assert all(cell.get("scope") in ("row", "col") for cell in reader.all("th"))
        assert all(
            svg["role"] == "img" and svg["aria-label"] for svg in reader.all("svg")
        )
        headings = [
            int(tag[1]) for tag, _ in reader.tags if re.fullmatch("h[1-6]", tag)
        ]
        assert headings[0] == 1
        assert headings.count(1) == 1
        assert max(b - a for a, b in pairwise(headings)) <= 1
        ids = Counter(
            attributes["id"] for _, attributes in reader.tags if "id" in attributes
        )
        assert set(ids.values()) <= {1}


def test_card_says_what_was_released(folder: Path) -> None:
    text = " ".join(unescape(re.sub(r"<[^>]+>", " ", pages(folder)[0])).split())
    assert STATEMENT in text
    assert "whole numbers from 18 to 97 years, in 40 bins of about equal width" in text
    assert "1 rule (structural zeros)" in text
    assert "voted yes together with registered no" in text
    assert "public: copied as it is" in text
    assert "Sum: the total over all sets 1 " in text
    assert "the variance between sets does not show the noise of the mechanism" in text
    assert 'pd.read_parquet(f"synthetic_{i}.parquet") for i in range(1, 3)' in text
    assert "at most 2.72 (e ε )" in text
    assert "detects at most 13.6 % of the true cases" in text
    assert "Made from a seed" not in text


def test_nothing_of_the_run_is_on_the_card(folder: Path, tmp_path: Path) -> None:
    path = folder / "confidential" / "run.json"
    run = json.loads(path.read_text())
    run["seconds"] = {"sentinel step": 741.0}
    run["peak_memory_mib"] = 98765.0
    run["ledger"].update(total_epsilon=91.75, remaining_epsilon=90.75)
    run["comparison"]["l1"].update(mean=1.89, by_set=[1.87, 1.91], reference=0.777)
    run["comparison"]["one_way"][0]["distance"] = 0.6789
    run["comparison"]["two_way"]["distance"][0][1] = 0.8642
    write_json(path, run)
    card, report = pages(folder)
    for sentinel in (
        "sentinel",
        "741",
        "98,765",
        "91.75",
        "90.75",
        "1.89",
        "1.87",
        "0.777",
        "0.679",
        "0.864",
    ):
        assert sentinel in report
    (tmp_path / "privacy.json").write_bytes(
        (folder / "public" / "privacy.json").read_bytes()
    )
    assert write_card(tmp_path).read_text(encoding="utf-8") == card


def test_report_shows_overview_pictures_and_tables(folder: Path) -> None:
    report = pages(folder)[1]
    assert "Inside only: computed from the confidential table." in report
    assert "&epsilon; = 2 left" in report
    assert [svg["class"] for svg in parse(report).all("svg")].count("picture") == len(
        COLUMNS
    ) + 1
    assert "The 5 pairs furthest apart" in report
    assert "<text" in report
    assert "var(--accent)" in report
    assert not re.search(r"#01020\d|matplotlib|metadata", report, re.IGNORECASE)


def test_the_first_screen_names_what_holds_and_what_must_not_be_used(
    folder: Path,
) -> None:
    path = folder / "confidential" / "run.json"
    run = json.loads(path.read_text()) | {"n_records": 1000}
    for one in run["comparison"]["one_way"]:
        one.update(distance=0.01, reference=0.01)
    run["comparison"]["one_way"][0].update(distance=0.3)
    write_json(path, run)
    board = pages(folder)[1].partition('id="board"')[2].partition("</section>")[0]
    holds, avoid = board.split("What holds")[1].split("What must not be used")
    worst, other = (one["column"] for one in run["comparison"]["one_way"][:2])
    assert (worst in avoid, worst in holds, other in avoid, other in holds) == (
        True,
        False,
        False,
        True,
    )
    assert re.search(r">300<br>", board)


def test_names_and_levels_are_escaped(tmp_path: Path) -> None:
    nasty = "<b>bold</b>"
    facts = facts_of(
        {
            nasty: {"levels": ["<i>&", 'a"b\n</svg>'], "label": "<u>x"},
            "b": COLUMNS["voted"],
        },
        (),
    )
    facts["schema"]["title"] = "<script>"
    for page in pages(write_folder(tmp_path / "release", facts, run_of(facts))):
        parse(page)
        assert not re.search(r"<b>|<i>|<u>|<script>|\n</svg>&", page)
        assert "&lt;b&gt;bold&lt;/b&gt;" in page


def test_seeded_release_has_a_loud_banner(tmp_path: Path) -> None:
    facts = facts_of(reproducible=True)
    for page in pages(write_folder(tmp_path / "release", facts, run_of(facts))):
        assert "Made from a seed: not fit for publication" in page


def test_release_without_guarantee_gets_only_the_report(tmp_path: Path) -> None:
    facts = facts_of(kind="none")
    folder = write_folder(
        tmp_path / "release",
        facts,
        {**run_of(facts), "published": False},
        published=False,
    )
    assert rewrite(folder) == [folder / "confidential" / "report.html"]
    assert sorted(path.name for path in folder.rglob("*.html")) == ["report.html"]
    assert "no guarantee" in (folder / "confidential" / "report.html").read_text(
        encoding="utf-8"
    )
    refuses("never published", write_card, folder / "confidential", error=RefusedError)


@pytest.mark.parametrize(
    ("file", "keys", "value", "message"), cases(__file__, "damaged_files")
)
def test_damage_is_named_without_its_value(
    folder: Path, file: str, keys: Any, value: Any, message: str
) -> None:
    write_json(
        folder / file, changed(json.loads((folder / file).read_text()), keys, value)
    )
    assert "sentinel" not in refuses(rf"{file} is {message}", rewrite, folder)
    assert not list(folder.rglob("*.html"))


@pytest.mark.parametrize("file", ["public/privacy.json", "confidential/run.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\udcff"])
def test_damaged_json(folder: Path, file: str, text: str) -> None:
    (folder / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    refuses(rf"{file} is damaged: it", rewrite, folder)


def test_no_release_folder(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        refuses("no folder of a pdips release", rewrite, folder)
    write_json(tmp_path / "privacy.json", facts_of())
    (tmp_path / "card.html").mkdir()
    refuses("can't write", write_card, tmp_path)


def test_one_column_two_columns_and_no_distance(tmp_path: Path) -> None:
    facts = facts_of({"voted": COLUMNS["voted"]}, ())
    _, report = pages(write_folder(tmp_path / "one", facts, run_of(facts)))
    assert "There are no two columns to compare." in report
    assert [svg["class"] for svg in parse(report).all("svg")].count("picture") == 1
    facts = facts_of({name: COLUMNS[name] for name in ("voted", "registered")}, ())
    run = run_of(facts)
    run["comparison"]["two_way"].update(
        distance=[[0.0, 0.0]] * 2, reference=[[0.0, 0.0]] * 2
    )
    run["comparison"]["l1"].update(mean=0.0, reference=0.0)
    _, report = pages(write_folder(tmp_path / "two", facts, run))
    parse(report)
    assert "The pair furthest apart" in report
    assert not re.search(r"\b(nan|inf)\b", report.lower())


@pytest.mark.parametrize("as_nan", [False, True])
def test_empty_sets(tmp_path: Path, as_nan: bool) -> None:
    facts = facts_of()
    run = run_of(facts, n_sets=0)
    if as_nan:
        two_way = run["comparison"]["two_way"]
        two_way["distance"] = [
            [math.nan if d is None else d for d in row] for row in two_way["distance"]
        ]
    _, report = pages(write_folder(tmp_path / "release", facts, run))
    parse(report)
    assert "No synthetic set has records, so there is nothing to compare." in report
    assert "nan" not in report.lower()


def test_code_for_csv_reads_levels_back_as_they_are(tmp_path: Path) -> None:
    columns = {
        "zip": {"levels": ["01", "02"]},
        "answer": {"levels": ["NA", "yes"], "missing": True},
    }
    write_json(tmp_path / "privacy.json", facts_of(columns, ()))
    frame = pd.DataFrame({"zip": ["01", "02", "01"], "answer": ["NA", "yes", None]})
    for i in (1, 2):
        frame.to_csv(tmp_path / f"synthetic_{i}.csv", index=False)
    found = re.search(
        r"<pre><code>(.*?)</code>",
        write_card(tmp_path).read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert found
    code = unescape(found[1]).replace('f"synthetic', f'f"{tmp_path}/synthetic')
    names: dict[str, Any] = {}
    exec(code, names)
    pd.testing.assert_frame_equal(names["sets"][1], frame)
    assert [len(each) for each in names["sets"]] == [3, 3]


def test_a_test_detects_no_more_than_the_bound_which_randomized_response_attains() -> (
    None
):
    assert detection_bound(1, 0, 0.05) == pytest.approx(0.05 * math.e)
    assert detection_bound(5, 0, 0.05) == pytest.approx(1 - 0.95 * math.exp(-5))
    assert detection_bound(1, 1e-3, 0.05) == pytest.approx(0.05 * math.e + 1e-3)
    assert detection_bound(1, 0.01, 0.9) == pytest.approx(
        1 - math.exp(-1) * (1 - 0.01 - 0.9)
    )
    assert detection_bound(1000, 0, 0.05) == detection_bound(5000, 0, 0.1) == 1
    assert [
        detection_bound(epsilon, 0, 0.05) for epsilon in (0, 1e-9)
    ] == pytest.approx([0.05, 0.05])
    assert detection_bound(1, 0.5, 0.99) == 1
    epsilon = 1.3
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert detection_bound(epsilon, 0, 1 - keep) == pytest.approx(keep)
    assert belief_bound(epsilon, 0.5) == pytest.approx(keep)
    assert odds_factor(epsilon) == pytest.approx(keep / (1 - keep))
    assert odds_factor(5000) == math.inf
    assert belief_bound(5000, 0.01) == 1


def test_bounds_are_rounded_up() -> None:
    for value, up in (
        (2.7182818, 2.72),
        (0.13501, 0.136),
        (0.135, 0.135),
        (9.991, 10.0),
        (0, 0),
    ):
        assert round_up(value) == pytest.approx(up, rel=1e-12)


def test_numbers_have_three_digits() -> None:
    shown = [
        number(value)
        for value in (
            1.7,
            0.00123456,
            327.98,
            48371,
            9.996,
            0,
            None,
            math.nan,
            math.inf,
            -1.5,
        )
    ]
    assert shown == [
        "1.70",
        "0.00123",
        "328",
        "48,371",
        "10.0",
        "0",
        ABSENT,
        ABSENT,
        "∞",
        f"{MINUS}1.50",
    ]
    assert number(5.38e-05).split("\N{NO-BREAK SPACE}") == [
        "5.38",
        "\N{MULTIPLICATION SIGN}",
        "10⁻⁵",
    ]
    assert percent(0.5, short=True) == "50\N{NARROW NO-BREAK SPACE}%"
    assert (percent(None), price(None), price(0.25), price(1e-6)) == (
        ABSENT,
        ABSENT,
        "0.25",
        "10⁻⁶",
    )
    assert (plural(1, "set"), plural(1200, "set")) == ("1 set", "1,200 sets")


def test_panel_of_many_levels_draws_those_that_differ_most() -> None:
    levels = [f"level {i}" for i in range(100)]
    known = {
        "column": "a",
        "label": "a",
        "unit": "kg",
        "levels": levels,
        "table": [0.01] * 100,
        "distance": 0.01,
        "reference": 0.01,
    }
    drawn = figures.one_way(Margin(**known, synthetic=[0.01] * 98 + [0.0, 0.02]), "key")
    assert drawn.count(">level ") == figures.MOST_ROWS
    assert ">level 98<" in drawn
    assert 'aria-label="a (kg): shares of 100 levels' in drawn


def test_pictures_are_the_same_every_time_and_warn_of_no_letter() -> None:
    known = {
        "column": "a",
        "label": "a",
        "unit": None,
        "levels": ["水" * 40, "$x$\x00"],
        "table": [0.5, 0.5],
        "reference": 0.01,
    }
    drawn, again = (
        figures.one_way(Margin(**known, synthetic=[], distance=None), "key")
        for _ in range(2)
    )
    assert drawn == again
    assert "水…水" in drawn
    assert "$x$ <" in drawn
