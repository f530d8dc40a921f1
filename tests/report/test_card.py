"""The card: what an attacker gains, which errors are known, how sets are combined."""

import math
import re
from html import unescape
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from scipy.stats import norm
from small_models import cells_of, draw_cells, shares_of_cells
from tables import cases, schema_in
from test_report import facts_of

from pdips import KNG, LaplaceSanitizer, Margins, Modips, Schema, Table
from pdips.inference import Combined
from pdips.registry import MECHANISMS
from pdips.release.documents import PrivacyDocument, write_json
from pdips.report.card import (
    DEFAULT,
    WHY_NONE,
    detection_bound,
    detection_bound_zcdp,
    formula,
    power_bound,
    standard_errors,
)
from pdips.report.pages import write_card
from pdips.statistics.model import StatisticModel

RHO = "\N{GREEK SMALL LETTER RHO}"
LEVELS = (0.0005, 0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.9)
SCHEMA = schema_in("card")


def gaussian_power(rho: float, level: float) -> float:
    """The largest power against the Gaussian mechanism, which is rho-zCDP and attains
    it: Phi(Phi^-1(a) + mu).
    """
    return float(norm.cdf(norm.ppf(level) + math.sqrt(2 * rho)))


def card_of(folder: Path, facts: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    write_json(folder / "privacy.json", facts)
    return write_card(folder).read_text(encoding="utf-8")


def words_of(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_no_test_of_a_gaussian_release_beats_the_zcdp_bound_which_tightens_what_epsilon_and_delta_say() -> (  # noqa: E501
    None
):
    for rho, level in product((0.001, 0.02, 0.3, 1.0, 5.0), LEVELS):
        assert gaussian_power(rho, level) <= detection_bound_zcdp(rho, level) <= 1
    for rho in (0.01, 0.1, 0.5, 2.0):
        for level in (0.01, 0.05, 0.1):
            assert detection_bound_zcdp(rho, level) < 1.5 * gaussian_power(rho, level)
    assert [detection_bound_zcdp(0.5, level) for level in (0.0, 1.0)] == [0.0, 1.0]
    assert detection_bound_zcdp(1e6, 0.01) == pytest.approx(1)
    assert detection_bound_zcdp(50, 0.95) == 1
    # the broken twin
    assert any(
        gaussian_power(0.3, level) > detection_bound_zcdp(0.3 / 4, level)
        for level in LEVELS
    )
    rho, delta = 0.05, 1e-6
    epsilon = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert power_bound(epsilon, delta, 0.05, rho=rho) < 0.8 * detection_bound(
        epsilon, delta, 0.05
    )
    assert all(
        power_bound(epsilon, delta, a, rho=rho) <= detection_bound(epsilon, delta, a)
        for a in LEVELS
    )


def test_replacing_is_removing_and_adding() -> None:
    for level in LEVELS:
        assert power_bound(0.7, 0, level, replacing=True) == detection_bound(
            1.4, 0, level
        )
        far = detection_bound(1.4, (1 + math.exp(0.7)) * 1e-5, level)
        assert power_bound(0.7, 1e-5, level, replacing=True) == pytest.approx(far)
        assert power_bound(
            50, 1e-6, level, rho=0.1, replacing=True
        ) == detection_bound_zcdp(0.4, level)
    assert power_bound(1000, 0.5, 0.1, replacing=True) == 1


@pytest.mark.parametrize(
    ("changes", "words", "never"), cases(__file__, "what_the_card_says")
)
def test_what_the_card_says(
    tmp_path: Path, changes: Any, words: list[str], never: list[str]
) -> None:
    card = words_of(
        card_of(tmp_path / "public", facts_of(**changes)).replace(
            "\N{NARROW NO-BREAK SPACE}", " "
        )
    )
    assert [each for each in words if each not in card] == []
    assert [each for each in never if each in card] == []


def test_every_mechanism_without_noise_has_its_reason() -> None:
    facts = PrivacyDocument.model_validate(facts_of())
    silent = {
        name
        for name in MECHANISMS
        if standard_errors(facts.model_copy(update={"mechanism": name})) == DEFAULT
    }
    # these list their noise, as test_sentinel.py sees on their cards
    noisy = (
        "group-sums laplace-sanitizer margins modips perturbed-histogram privbayes "
        "scores steps universal-histogram"
    )
    assert silent == set(noisy.split())
    assert set(WHY_NONE) | silent == set(MECHANISMS)


def published(folder: Path, mechanism: Any) -> Path:
    rng = np.random.default_rng(8)
    frame = pd.DataFrame(
        {
            "home colour": rng.choice(["blue", "red"], 300),
            "wage": rng.uniform(0, 100, 300),
        }
    )
    release, _ = mechanism.release(
        Table(frame.assign(**{"class": rng.choice([1, 2, 3], 300)}), SCHEMA)
    )
    release.publish(folder)
    return folder


@pytest.mark.parametrize(
    ("mechanism", "rule"),
    [
        (LaplaceSanitizer(epsilon=20, n_sets=3, split="per-set"), "sanitized"),
        (of_pairs(epsilon=20, n_sets=3, sets="posterior"), "between"),
        (Margins(epsilon=20, n_sets=3, split="per-set"), "sanitized"),
        (
            Modips(
                epsilon=20,
                n_sets=3,
                model=StatisticModel(cells_of, shares_of_cells, draw_cells, "cells"),
            ),
            None,
        ),
    ],
)
def test_the_three_lines_of_the_card_run(tmp_path, mechanism, rule, monkeypatch):
    folder = published(tmp_path / "public", mechanism)
    card = write_card(folder).read_text(encoding="utf-8")
    blocks = [
        unescape(code)
        for code in re.findall(r"<pre><code>(.*?)</code>", card, re.DOTALL)
    ]
    assert [block.split()[1] for block in blocks[:3]] == [
        "pdips",
        "pandas",
        "statsmodels.formula.api",
    ]
    noisy, reading, combined = blocks[:3]
    assert combined.count("\n") == 3
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(reading, names)
    # apart, not one below the other
    assert [len(each) for each in names["sets"]] == [300] * 3
    asks, question = noisy.strip().splitlines()
    exec(asks, names)
    assert np.isfinite(eval(question, names)["estimate"]).all()
    *imports, last = combined.strip().splitlines()
    exec("\n".join(imports), names)
    assert names["rule_for"]("privacy.json") == (rule or "posterior-predictive")
    found = eval(last.removesuffix(".summary()"), names)
    assert len(found.summary()) == 2
    assert isinstance(found, Combined)
    assert rule is None or np.all(np.isfinite(found.interval))


def test_an_analysis_for_any_schema() -> None:
    assert formula(SCHEMA) == "wage ~ C(Q('home colour'))"
    day = {"type": "date", "lower": "2014-01-01", "upper": "2015-01-01"}
    assert (
        formula(Schema(columns={"day": day, "pay": {"lower": 0, "upper": 1}}))
        == "pay ~ 1"
    )
    two = {
        "a b": {"levels": ["x", "it's"]},
        "p": {"levels": ["y", "n"], "public": True},
    }
    assert formula(Schema(columns=two)) == "I((Q('a b') == \"it's\") * 1.0) ~ C(p)"
    assert (
        formula(
            Schema(columns={name: {"lower": 0, "upper": 1} for name in ("lambda", "y")})
        )
        == "Q('lambda') ~ y"
    )


@pytest.mark.parametrize(
    ("mechanism", "kept", "there", "never"),
    [
        (
            Margins(epsilon=1),
            [
                "Shares of a column all 3 columns ±",
                "Two columns together all 3 pairs ±",
            ],
            ["No interval of an", "The noisy counts give"],
            "the mean of the",
        ),
        (
            Margins(epsilon=1, n_sets=2, sets="posterior"),
            ["Means by group wage, class about ±"],
            ["the mean of the 2 estimates", "all sets together: three lines"],
            "No interval",
        ),
        (
            KNG(epsilon=1),
            ["Shares of a column as the sets have them not published"],
            ["No interval of an analysis", "datapackage.json is the codebook"],
            "noisy counts",
        ),
    ],
)
def test_what_is_kept_and_can_be_asked_comes_before_the_guarantee(
    tmp_path, mechanism, kept, there, never
):
    page = write_card(published(tmp_path / "public", mechanism)).read_text(
        encoding="utf-8"
    )
    order = [
        page.index(f"<h2>{title}")
        for title in (
            "What is kept",
            "What you can",
            "Before you",
            "What the guarantee",
            "The price",
        )
    ]
    assert order == sorted(order)
    said = words_of(page[order[0] : order[1]])
    assert [words for words in kept if words not in said] == []
    use = words_of(page[order[1] : order[2]]).replace(" ,", ",")
    for words in there:
        assert words in use
    assert never not in use
    has_form = 'id="ask-form"' in page
    assert has_form == ("noisy counts" in use) == ("<h2>Ask" in page)
    # as of a release of an earlier version
    (tmp_path / "public/datapackage.json").unlink()
    assert "is the codebook" not in write_card(tmp_path / "public").read_text(
        encoding="utf-8"
    )
