"""Whatever a mechanism offers, all that speaks of it is right, or refuses: pages, rules
and programs ask for offers, never for a name. So a mechanism that nobody knows is
made up for each combination of offers that is in use.
"""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from small_models import ready
from tables import refuses

from pdips import Schema
from pdips import open as open_release
from pdips.audit.cases.margins import sanitizer
from pdips.data.table import decode
from pdips.inference import rule_for
from pdips.mechanism import Drawn, Mechanism
from pdips.outside import NoisyMargins
from pdips.privacy.plan import Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.registry import AUDITS, MECHANISMS
from pdips.release.offers import Offers

NAME = "made-up"
COLUMNS = {
    "a": {"levels": [0, 1]},
    "x": {"lower": 0, "upper": 4, "bins": 4},
}
SCHEMA = Schema.model_validate({"columns": COLUMNS})
N_RECORDS = 60


@dataclass(frozen=True, kw_only=True)
class NoisyCells(Mechanism):
    """Records drawn from noisy counts of all cells."""

    name: ClassVar[str] = NAME

    def plan(self, schema):
        price = self.per_round(self.rounds)
        cells = Step(
            name="cells",
            counts="each cell",
            sensitivity=Sensitivity.of_counts(schema, self.neighbours),
            price=price,
        )
        return self.planned(schema, [cells], "Noisy cells.", repeats=self.rounds)

    @property
    def rounds(self):
        return self.n_sets if self.sets_share() == "own noise" else 1

    def ask(self, plan, curator):
        def counts(table):
            cell = np.ravel_multi_index([table.codes["a"], table.codes["x"]], (2, 4))
            return table.count(cell, 8)

        return [curator.count(plan.steps[0], counts) for _ in range(plan.repeats)]

    def draw(self, plan, measured, n_sets, rng, public):
        sets = []
        for number in range(n_sets):
            weights = np.maximum(measured[number % len(measured)], 0) + 1e-9
            cells = rng.choice(8, N_RECORDS, p=weights / weights.sum())
            a, x = np.unravel_index(cells, (2, 4))
            sets.append(decode(plan.schema, {"a": a, "x": x}, rng))
        return Drawn(sets=sets)


def offers_in_use() -> list[Offers]:
    """Each combination that a registered mechanism has with the settings that a user
    is likely to give.
    """
    combinations = list[Offers]()
    for name in sorted(MECHANISMS):
        mechanism = ready(name)(epsilon=1)
        shared = {mechanism.offers.sets_share, mechanism.sets_share()}
        if "sets" in mechanism.settings():
            shared.add("fresh noise")
        for each in sorted(shared):
            offers = replace(mechanism.offers, sets_share=each)
            if offers not in combinations and "pure" in offers.kinds:
                combinations.append(offers)
    return combinations


def label(offers: Offers) -> str:
    kept = [name for name, value in vars(offers).items() if value is True]
    return ", ".join([*kept, offers.sets_share, offers.posterior_of])


@pytest.fixture(params=offers_in_use(), ids=label)
def made_up(request, monkeypatch):
    """A mechanism with these offers, registered."""
    shared = request.param.sets_share

    @dataclass(frozen=True, kw_only=True)
    class MadeUp(NoisyCells):
        offers: ClassVar[Offers] = request.param

        def sets_share(self):
            return shared

    monkeypatch.setitem(MECHANISMS, NAME, MadeUp)
    monkeypatch.setitem(AUDITS, NAME, sanitizer)
    return MadeUp


@pytest.fixture
def folder(made_up, pdips, tmp_path):
    """A release of two sets by the program, with card and report."""
    rng = np.random.default_rng(3)
    columns = {"a": np.arange(N_RECORDS) % 2, "x": rng.uniform(0, 4, N_RECORDS)}
    pd.DataFrame(columns).to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    ledger = tmp_path / "ledger.sqlite"
    pdips.ok("ledger", "set-total", ledger, 10)
    words = ("--mechanism", NAME, "--epsilon", 1, "--sets", 2, "--ledger", ledger)
    source = (tmp_path / "table.csv", "--schema", tmp_path / "schema.toml")
    pdips.ok("synthesize", *source, *words, "--out", tmp_path / "made", "--report")
    return tmp_path / "made"


RULES = {
    "own noise": "sanitized",
    "fresh noise": "between",
    "posterior": "posterior-predictive",
}


def test_the_rule_is_that_of_what_the_sets_share(made_up, folder):
    card = (folder / "public/card.html").read_text(encoding="utf-8")
    card = " ".join(card.split())
    shared = made_up.offers.sets_share
    if shared in RULES:
        assert rule_for(folder) == RULES[shared]
        assert "combine(lambda one" in card
        assert "does not show the noise" not in card
        return
    with pytest.warns(UserWarning, match="too short"):
        rule_for(folder)
    assert "does not show the noise" in card


def test_a_release_that_says_nothing_has_no_rule(folder):
    facts = json.loads((folder / "public/privacy.json").read_text(encoding="utf-8"))
    assert rule_for(facts | {"offers": {"sets_share": "posterior"}})
    for offers in ({}, {"sets_share": "everything"}, None):
        refuses("name the rule yourself", rule_for, facts | {"offers": offers})


def test_the_codebook_says_how_numbers_were_drawn(made_up, folder):
    file = folder / "public/datapackage.json"
    described = json.loads(file.read_text(encoding="utf-8"))
    [fields] = [
        each["schema"]["fields"]
        for each in described["resources"]
        if each["path"] == "synthetic_1.parquet"
    ]
    [x] = [each for each in fields if each["name"] == "x"]
    is_even = "evenly inside its bin" in x["description"]
    assert is_even == made_up.offers.even_in_cells


def test_errors_that_nobody_knows_are_not_told(made_up, folder, pdips):
    schema = folder.parent / "schema.toml"
    words = (schema, "--mechanism", NAME, "--epsilon", 1, "--records", N_RECORDS)
    assert f"none known in closed form for {NAME}" in pdips.ok("plan", *words)
    card = (folder / "public/card.html").read_text(encoding="utf-8")
    assert "standard error" not in card


def test_the_folder_is_whole_and_the_report_says_what_ran(folder, pdips):
    pdips.ok("check", folder)
    report = (folder / "confidential/report.html").read_text(encoding="utf-8")
    assert NAME in report
    assert "R-hat" not in report


def test_intervals_need_counts_that_are_published(folder):
    refuses("no noisy", NoisyMargins.read, folder)


def test_more_sets_are_drawn_or_refused(made_up, folder):
    opened = open_release(folder)
    if made_up.offers.sets_share == "own noise":
        refuses("noise of its own", opened.more_sets, 1)
        return
    rng = np.random.default_rng(1)
    [drawn] = opened.more_sets(1, rng=rng)
    assert list(drawn) == ["a", "x"]
    assert len(drawn) == N_RECORDS
