"""The form of the card: its answers are Python's, hostile names stay text, and it fits
a phone; what the label says is what the noise does.
"""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from tables import CHROMIUM
from test_browser import complaints
from test_card import words_of

import pdips
from pdips import Margins, Schema, Table
from pdips.outside.answer import NOISY_MARGINS
from pdips.release.documents import PrivacyDocument
from pdips.report.derived_files import examine_derived
from pdips.report.label import REACH, label
from pdips.report.pages import write_card

in_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
MOST_BYTES = 1_000_000
NEAR = 1e-9
COLUMNS: dict[str, Any] = {
    "sex": {"levels": ["f", "m"]},
    "class": {"levels": ["low", "middle", "high"], "missing": True},
    "age": {"lower": 20, "upper": 80, "bins": 6, "unit": "years"},
    "rooms": {"levels": [1, 2, 3], "missing": True},
    "home town": {"levels": ["A", "it's"]},
}
NO_MOTHERS = ({"sex": "m", "home town": "it's"},)


def people(n: int = 1_500, *, apart: bool = False) -> pd.DataFrame:
    """Return persons; ``apart``, of whom no man lives in one of the towns."""
    rng = np.random.default_rng(4)
    frame = pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], n),
            "class": rng.choice(["low", "middle", "high", None], n),
            "age": rng.uniform(20, 80, n),
            "rooms": rng.choice([1, 2, 3, None], n),
            "home town": rng.choice(["A", "it's"], n, p=[0.8, 0.2]),
        }
    )
    if apart:
        frame.loc[frame["sex"] == "m", "home town"] = "A"
    return frame


def card_of(mechanism: Any, frame: pd.DataFrame, schema: Schema, folder: Path) -> Path:
    """Publish a release with fixed noise, and return its card."""
    release, _ = mechanism.release(Table(frame, schema), rng=np.random.default_rng(2))
    release.publish(folder / "public", allow=["seeded"])
    return write_card(folder / "public")


RELEASES = {
    "pairs": (of_pairs(epsilon=2, delta="1e-6", n_sets=2), ()),
    "views": (Margins(epsilon=2, n_sets=2, neighbours="add-remove"), ()),
    "zeros": (of_pairs(epsilon=2, n_sets=2, neighbours="add-remove"), NO_MOTHERS),
}


@pytest.fixture(scope="module", params=RELEASES)
def card(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Path:
    mechanism, zeros = RELEASES[request.param]
    schema = Schema(columns=COLUMNS, impossible=zeros)
    frame = people(apart=bool(zeros))
    return card_of(mechanism, frame, schema, tmp_path_factory.mktemp(request.param))


def told(page: Any) -> list[list[float] | None]:
    """Return the numbers that a page shows: of each row the estimate and the ends of
    its interval, None where it says that they are open.
    """
    rows = page.eval_on_selector_all(
        "#ask-answer tbody tr",
        "rows => rows.map(row => [...row.querySelectorAll('data')].map(x => x.value))",
    )
    return [[float(each) for each in row] or None for row in rows]


def chosen(page: Any, field: str) -> list[str]:
    """Return what may be chosen in a field; nothing where it isn't shown."""
    if not page.is_visible(f"#ask-{field}"):
        return [""]
    values: list[str] = page.eval_on_selector_all(
        f"#ask-{field} option", "options => options.map(option => option.value)"
    )
    return values


def question_of(page: Any) -> str:
    """Return the question in Python's grammar that a page shows."""
    text = page.text_content("#ask-same")
    simple = re.fullmatch(r'public\.ask\("(.*)"\)', text, re.DOTALL)
    return simple[1] if simple else text.split("\n", 1)[1]


def compared(browser: Any, path: Path) -> tuple[int, int]:
    """Ask a card all that its form offers, and Python the same; return how many answers
    there were, and how many that differ.
    """
    public = pdips.open(path.parent)
    n_asked = 0
    n_wrong = 0
    with browser.new_page() as page:
        page.goto(path.as_uri())
        for what in chosen(page, "what"):
            page.select_option("#ask-what", what)
            for of in chosen(page, "of"):
                page.select_option("#ask-of", of)
                for level, by in product(chosen(page, "level"), chosen(page, "by")):
                    if level:
                        page.select_option("#ask-level", level)
                    page.select_option("#ask-by", by)
                    n_asked += 1
                    n_wrong += not is_pythons(page, public)
    return n_asked, n_wrong


def is_pythons(page: Any, public: Any) -> bool:
    """Whether a page's answer is that of ``ask``, or leaves open what noisy counts
    leave open there too.
    """
    shown = told(page)
    answer = public.ask(question_of(page))
    if answer.source != NOISY_MARGINS:
        return None in shown or not shown
    rows = answer.summary()
    # of a number, the page has no level for missing
    rows = rows[~rows.index.str.match(r"rooms\[missing\]")]
    numbers = rows[["estimate", "lower", "upper"]].to_numpy()
    if None in shown or numbers.shape != np.shape(shown):
        return False
    return bool(np.allclose(numbers, np.array(shown), rtol=NEAR, atol=NEAR))


class TestTheForm:
    pytestmark = in_browser

    @pytest.mark.slow
    def test_it_answers_as_python_does(self, browser: Any, card: Path) -> None:
        n_asked, n_wrong = compared(browser, card)
        assert n_asked > 40
        assert n_wrong == 0

    @pytest.mark.slow
    def test_a_card_with_another_variance_is_seen(
        self, browser: Any, card: Path, tmp_path: Path
    ) -> None:
        # the broken twin: its folder is another, so that Python reads the right one
        text = card.read_text(encoding="utf-8")
        [data] = re.findall(r'id="card-data">(.*?)</script>', text)
        changed = json.loads(data)
        changed["pairs"] = [[*pair[:2], pair[2] * 1.001] for pair in changed["pairs"]]
        wrong = text.replace(data, json.dumps(changed))
        for path in card.parent.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        broken = tmp_path / card.name
        broken.write_text(wrong, encoding="utf-8")
        _, n_wrong = compared(browser, broken)
        assert n_wrong > 0
        document = PrivacyDocument.read(tmp_path)
        assert len(examine_derived(tmp_path, document)) == 1
        # but for the last digits it is the same
        changed["pairs"] = [[*pair[:2], pair[2] / 1.001] for pair in changed["pairs"]]
        text = text.replace(data, json.dumps(changed, separators=(",", ":")))
        broken.write_text(text, encoding="utf-8")
        assert examine_derived(tmp_path, document) == []

    @pytest.mark.slow
    def test_hostile_names_stay_text(self, browser: Any, tmp_path: Path) -> None:
        # half of them as names of levels, half as names of columns
        columns = {"a": {"levels": [*PAYLOADS[::2], "plain"]}}
        columns |= {name: {"levels": ["no", name]} for name in PAYLOADS[1::2]}
        rng = np.random.default_rng(6)
        drawn = {
            name: rng.choice(each["levels"], 300) for name, each in columns.items()
        }
        path = card_of(
            of_pairs(epsilon=1), pd.DataFrame(drawn), Schema(columns=columns), tmp_path
        )
        assert complaints(browser, path, width=390, scheme="dark") == []
        happened: set[str] = set()
        with browser.new_page() as page:
            page.on("console", lambda said: happened.add(said.text))
            page.on("pageerror", lambda error: happened.add(str(error)))
            page.on("request", lambda asked: happened.add(asked.url))
            page.on("dialog", lambda dialog: happened.add(dialog.message))
            page.goto(path.as_uri())
            title = page.title()
            public = pdips.open(path.parent)
            shown = ""
            for of, by in product(chosen(page, "of"), ("", "0", "3")):
                if by in chosen(page, "by"):
                    page.select_option("#ask-of", of)
                    page.select_option("#ask-by", by if by != of else "")
                    shown += page.inner_text("#ask-answer")
                    if page.is_visible("#ask-same") and "\\" not in question_of(page):
                        public.ask(question_of(page))
            assert page.title() == title
            n_scripts = page.eval_on_selector_all("script", "found => found.length")
            assert page.is_visible("h1")
        assert n_scripts == 2
        assert happened == {path.as_uri()}
        # the twin: they were there to be seen
        for payload in (PAYLOADS[0], PAYLOADS[2], PAYLOADS[4]):
            assert payload in shown

    @pytest.mark.slow
    def test_quoted_levels_are_asked_of_python_as_they_are(
        self, browser: Any, tmp_path: Path
    ) -> None:
        levels = ["it's", 'so "called"', "back\\slash", "`tick`", "a:b~c", "né 🙂"]
        frame = pd.DataFrame({"a'b": levels * 50, "b": ["x", "y"] * 150})
        schema = Schema(
            columns={"a'b": {"levels": levels}, "b": {"levels": ["x", "y"]}}
        )
        path = card_of(of_pairs(epsilon=50), frame, schema, tmp_path)
        n_asked, n_wrong = compared(browser, path)
        assert (n_asked, n_wrong) == (20, 0)

    @pytest.mark.slow
    def test_a_large_release_fits_a_page_and_a_phone(
        self, browser: Any, tmp_path: Path
    ) -> None:
        columns = {f"question {k}": {"levels": list("abcdef")} for k in range(50)}
        columns["place"] = {"levels": [f"town number {k}" for k in range(200)]}
        rng = np.random.default_rng(7)
        frame = pd.DataFrame(
            {name: rng.choice(each["levels"], 400) for name, each in columns.items()}
        )
        path = card_of(of_pairs(epsilon=200), frame, Schema(columns=columns), tmp_path)
        assert 500_000 < path.stat().st_size < MOST_BYTES
        assert complaints(browser, path, width=390, axe=False) == []
        with browser.new_page() as page:
            page.goto(path.as_uri())
            page.select_option("#ask-of", "50")
            assert len(told(page)) == 200
            # the largest pairs are left to Python
            page.select_option("#ask-by", "0")
            assert told(page) == []
            assert "aren't on this page" in page.inner_text("#ask-notes")


PAYLOADS = [
    "<script>document.title='ran'</script>",
    "</script><script>document.title='ran'</script>",
    "<img src=x onerror=\"document.title='ran'\">",
    "\"><svg onload=document.title='ran'>",
    "' onmouseover='document.title=1",
    "javascript:document.title='ran'",
    "http://127.0.0.1:9/x.png",
    "{{ 7 * 7 }}{% raw %}",
    "${document.title='ran'}",
    "<!--",
    "]]>",
    "\u202eevil\u202c",
    "a\u2028b",
    "x" * 3_000,
    "</style><style>h1{display:none}</style>",
    "__proto__",
    "`'\"\\~:",
    "Z\u0351\u036b\u0343 \U0001f642",
]


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_named_analysis_is_that_of_its_posterior(
    browser: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(9)
    age = rng.uniform(20, 60, 800).round()
    pay = (age / 2 + rng.normal(20, 4, 800)).clip(0, 80)
    schema = Schema(
        columns={"age": {"lower": 20, "upper": 60}, "pay": {"lower": 0, "upper": 80}}
    )
    frame = pd.DataFrame({"age": age, "pay": pay})
    tree = pdips.sample("pay ~ age", frame, schema=schema, epsilon=4, progress=False)
    tree.pdips.release.publish(tmp_path / "public")
    path = write_card(tmp_path / "public")
    answer = pdips.open(tmp_path).ask("pay ~ age")
    with browser.new_page() as page:
        page.goto(path.as_uri())
        assert question_of(page) == "pay ~ age"
        shown = told(page)
    expected = answer.summary()[["estimate", "lower", "upper"]].to_numpy()
    np.testing.assert_allclose(expected, np.array(shown), rtol=NEAR)
    words = words_of(path.read_text(encoding="utf-8"))
    assert "Named analysis pay ~ age" in words


def test_the_label_is_first_and_says_what_is_kept(card: Path) -> None:
    page = card.read_text(encoding="utf-8")
    marks = ['id="label"', 'id="ask"', "At a glance", 'id="use"']
    order = [page.index(mark) for mark in marks]
    assert order == sorted(order)
    words = words_of(page)
    assert "by a rule" not in words
    assert "One person's record not kept" in words
    document = PrivacyDocument.read(card.parent)
    rows = {row.asked: row for row in label(document, 1_500.0, 0)}
    assert rows["Shares of a column"].kept == "all 5 columns"
    assert rows["Two columns together"].kept == "all 10 pairs"
    assert rows["Means by group"].kept == "age, rooms"
    # without the number of records, errors are in records
    assert "records" in label(document, None, 0)[0].error


def test_the_label_states_the_noise_of_answers(card: Path) -> None:
    # the middle of what it says is within a factor of that of answers; the table alone
    document = PrivacyDocument.read(card.parent)
    public = pdips.open(card.parent)
    n = public.ask("count()").estimate[0]
    rows = {row.asked: row for row in label(document, n, 0)}

    def first(asked: str) -> float:
        found = re.search(r"± ([\d.]+)", rows[asked].error)
        assert found is not None
        return float(found[1])

    def reach(question: str) -> float:
        errors = public.ask(question, target="table").summary()["standard_error"]
        return REACH * float(errors[errors > 0].median())

    columns = [f"`{name}`" for name in COLUMNS]
    single = np.median([100 * reach(f"share({name})") for name in columns])
    assert single == pytest.approx(first("Shares of a column"), rel=0.4)
    # a group by sex has about half of the records, not a tenth
    means = reach("mean(age, by=['sex'])") * 5
    assert means == pytest.approx(first("Means by group"), rel=0.6)
