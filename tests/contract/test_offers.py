"""What a mechanism offers to keep to is kept, and what it doesn't offer is refused."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from small_models import ready
from tables import refuses

import pdips
from pdips import Ledger, Margins, Schema, Table
from pdips.data.table import decode
from pdips.errors import PlanError
from pdips.inference import rule_for
from pdips.mechanism import Drawn, Mechanism
from pdips.privacy.plan import Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.registry import MECHANISMS, find
from pdips.release.offers import Offers
from pdips.synthesis import FEW_COLUMNS, is_spread, usual_sets

ALL = sorted(MECHANISMS)
LEVELS = {
    name: {"levels": list(range(n))} for name, n in zip("abc", (2, 3, 2), strict=True)
}
BINS = {name: {"lower": 0, "upper": 4, "bins": 4} for name in "xy"}
WITH = {
    "zeros": {"columns": LEVELS, "impossible": [{"a": 1, "b": 2}]},
    "rules": {
        "columns": LEVELS,
        "rule": [{"if": {"a": 1}, "then": {"b": [0, 1]}}],
    },
    "ordered": {"columns": BINS, "rule": [{"ordered": ["x", "y"]}]},
    "public_columns": {"columns": LEVELS | {"a": {"levels": [0, 1], "public": True}}},
    "totals": {
        "columns": LEVELS,
        "total": [{"columns": ["a"], "counts": {"0": 30, "1": 30}}],
    },
}
"""Schemas that ask for something, by what they ask for."""

pytestmark = [
    pytest.mark.usefixtures("few_simulated"),
    pytest.mark.filterwarnings("ignore:epsilon is so small:UserWarning"),
]


def records(n: int = 60) -> pd.DataFrame:
    """Records that keep to all of the schemas above."""
    rng = np.random.default_rng(0)
    a = np.arange(n) % 2
    low, high = np.sort(rng.uniform(0, 4, (2, n)), axis=0)
    return pd.DataFrame(
        {
            "a": a,
            "b": rng.integers(0, 3 - a),
            "c": rng.integers(0, 2, n),
            "x": low,
            "y": high,
        }
    )


def is_kept(asked: str, made: pd.DataFrame, table: pd.DataFrame) -> bool:
    """Whether a set keeps to what was asked for."""
    if asked in ("zeros", "rules"):
        return not ((made["a"] == 1) & (made["b"] == 2)).any()
    if asked == "ordered":
        return bool((made["x"] <= made["y"]).all())
    return sorted(made["a"]) == sorted(table["a"])


def with_schema(asked: str) -> Table:
    schema = Schema.model_validate(WITH[asked])
    return Table(records()[list(schema.columns)], schema)


CASES = [(name, asked) for name in ALL for asked in WITH]


@pytest.mark.parametrize(("name", "asked"), CASES)
def test_what_is_offered_is_kept_and_all_else_refused(name, asked, tmp_path):
    # noise as loud as this breaks what isn't kept to: see the twin below
    mechanism = ready(name)(epsilon="1/10")
    offer = "rules" if asked == "ordered" else asked
    table = with_schema(asked)
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.set_total(1)
    if not getattr(mechanism.offers, offer):
        refuses("", mechanism.release, table, ledger=ledger)
        assert ledger.entries() == []
        return
    release, _ = mechanism.release(table)
    assert is_kept(asked, release.sets[0], table.frame)
    assert getattr(release.document().offers, offer)


@dataclass(frozen=True, kw_only=True)
class Careless(Mechanism):
    """Counts cells, and draws records from the noisy counts, whatever the schema says
    beside levels; it offers nothing.
    """

    name: ClassVar[str] = "careless"

    def plan(self, schema):
        cells = Step(
            name="cells",
            counts="each cell",
            sensitivity=Sensitivity.of_counts(schema, self.neighbours),
            price=self.per_round(1),
        )
        sizes = tuple(column.n_levels for column in schema.columns.values())
        return self.planned(schema, [cells], "Noisy cells.", design=sizes)

    def ask(self, plan, curator):
        def counts(table):
            codes = tuple(table.codes[name] for name in plan.schema.columns)
            cell = np.ravel_multi_index(codes, plan.design)
            return table.count(cell, int(np.prod(plan.design)))

        return curator.count(plan.steps[0], counts)

    def draw(self, plan, measured, n_sets, rng, public):
        shares = np.maximum(measured, 0) + 1e-9
        sets = []
        for _ in range(n_sets):
            cells = rng.choice(len(shares), public.n_records, p=shares / shares.sum())
            codes = np.unravel_index(cells, plan.design)
            by_name = dict(zip(plan.schema.columns, codes, strict=True))
            sets.append(decode(plan.schema, by_name, rng))
        return Drawn(sets=sets)


@dataclass(frozen=True, kw_only=True)
class Boasting(Careless):
    """The broken twin: offers all, and keeps to nothing."""

    offers: ClassVar[Offers] = Offers(
        zeros=True, rules=True, public_columns=True, totals=True
    )


@pytest.mark.parametrize("asked", WITH)
def test_a_mechanism_that_says_nothing_is_refused_what_it_would_break(asked):
    table = with_schema(asked)
    refuses("careless", Careless(epsilon="1/10").plan, table.schema)
    if asked != "ordered":  # which records that are drawn within bins keep anyway
        rng = np.random.default_rng(1)
        release, _ = Boasting(epsilon="1/10").release(table, rng=rng)
        assert not is_kept(asked, release.sets[0], table.frame)


def test_by_default_nothing_is_offered():
    default = Offers()
    said = {each.name: getattr(default, each.name) for each in fields(default)}
    facts = {name: value for name, value in said.items() if isinstance(value, bool)}
    assert not any(facts.values())
    assert said["relations"] == ("replace-one",)
    assert said["kinds"] == ("pure",)
    assert said["sets_share"] == "noise"
    refuses("neighbours", Careless, epsilon=1, neighbours="add-remove")


def test_a_loss_of_a_kind_that_is_not_offered_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Loud(Careless):
        def plan(self, schema):
            plan = super().plan(schema)
            return self.planned(schema, plan.steps, "", kind="asymptotic")

    plain = Schema(columns=LEVELS)
    refuses("offers no loss", Loud(epsilon=1).plan, plain, error=PlanError)


@pytest.mark.parametrize("name", ALL)
def test_offers_are_published(name):
    mechanism = ready(name)(epsilon=1)
    table = Table(records()[["a", "b"]], Schema(columns={k: LEVELS[k] for k in "ab"}))
    published = mechanism.release(table)[0].document().offers
    for each in fields(Offers):
        if each.name != "sets_share":
            assert getattr(published, each.name) == getattr(
                find(name).offers, each.name
            )
    assert published.sets_share == mechanism.sets_share()


MORE = [
    name
    for name in ALL
    if ready(name)(epsilon=1).sets_share() != "own noise" and find(name).most_sets > 1
]


@pytest.mark.parametrize("name", MORE)
def test_more_sets_are_drawn_of_the_answers_of_a_release(name):
    table = Table(records()[["a", "b"]], Schema(columns={k: LEVELS[k] for k in "ab"}))
    release, _ = ready(name)(epsilon=1).release(table)
    made = release.more_sets(2, rng=np.random.default_rng(1))
    assert len(made) == 2
    for frame in made:
        assert list(frame) == list(release.sets[0])
        assert [*frame.dtypes] == [*release.sets[0].dtypes]
        assert len(frame) == 60


@pytest.mark.parametrize("name", sorted({*ALL} - {*MORE}))
def test_sets_with_noise_of_their_own_are_not_added_to(name):
    table = Table(records()[["a", "b"]], Schema(columns={k: LEVELS[k] for k in "ab"}))
    release, _ = ready(name)(epsilon=1).release(table)
    refuses("noise of its own|a copy", release.more_sets, 1)


SEVERAL = {"group-sums", "margins", "modips", "scores"}
"""Whose sets are drawn of one paid answer and show its noise."""


@pytest.mark.parametrize("name", ALL)
def test_ten_sets_are_usual_where_they_cost_nothing_and_show_the_noise(name):
    mechanism = ready(name)(epsilon=1)
    n_sets = usual_sets(mechanism)
    assert n_sets == (10 if name in SEVERAL else 1)
    assert usual_sets(mechanism, in_one_file=False) == 1
    columns = {f"c{number}": {"levels": [0, 1]} for number in range(FEW_COLUMNS + 1)}
    assert usual_sets(mechanism, Schema(columns=columns)) == 1
    del columns["c0"]
    assert usual_sets(mechanism, Schema(columns=columns)) == n_sets
    schema = Schema(columns={k: LEVELS[k] for k in "ab"})
    one = mechanism.plan(schema)
    usual = replace(mechanism, n_sets=n_sets).plan(schema)
    assert (usual.loss.epsilon, usual.loss.delta, usual.repeats) == (
        one.loss.epsilon,
        one.loss.delta,
        1 if name in SEVERAL else one.repeats,
    )
    # the broken twin: each set of another way to pay takes its part of the budget
    if name in SEVERAL and "per-set" in mechanism.splits:
        paid_each = replace(mechanism, split="per-set", n_sets=n_sets)
        assert paid_each.plan(schema).repeats == 10
        assert usual_sets(replace(paid_each, n_sets=1)) == 1


@pytest.mark.parametrize(
    "settings",
    [{"sets": "fitted"}, {"split": "per-set"}, {"chosen": 0}],
)
def test_one_set_is_usual_where_settings_make_all_sets_alike_or_paid(settings):
    assert usual_sets(Margins(epsilon=1, **settings)) == 1
    with_noise = {"sets": "posterior"}
    assert usual_sets(Margins(epsilon=1, **with_noise)) == 10
    # plug-in posteriors know of no noise
    assert usual_sets(ready("modips")(epsilon=1, likelihood="plug-in")) == 1


def test_a_release_of_a_frame_has_the_usual_sets_and_that_of_a_folder_one(tmp_path):
    frame = records()[["a", "b"]]
    schema = Schema(columns={k: LEVELS[k] for k in "ab"})
    (tmp_path / "parts").mkdir()
    frame.to_parquet(tmp_path / "parts/1.parquet", index=False)
    frame.to_parquet(tmp_path / "one.parquet", index=False)
    for table, n_sets in (
        (frame, 10),
        (tmp_path / "one.parquet", 10),
        (tmp_path / "parts", 1),
        (Table(frame, schema), 10),
    ):
        release, _ = pdips.synthesize(table, schema, epsilon=1, progress=False)
        assert len(release.sets) == n_sets
        if n_sets > 1:
            assert rule_for(release) == "between"
        else:
            refuses("more sets cost nothing", rule_for, release)
    release, _ = pdips.synthesize(frame, schema, epsilon=1, n_sets=2, progress=False)
    assert len(release.sets) == 2
    assert is_spread("people.duckdb#people")
    assert is_spread("postgresql://host/db#people")
    assert not is_spread("people.parquet")


def is_told_by_a_folder(name: str) -> bool:
    """Whether a folder tells all that a mechanism draws more sets by."""
    kind = find(name)
    has_model = "model" in kind.__dataclass_fields__
    return (
        not has_model
        or kind.of_published.__func__ is not Mechanism.of_published.__func__
    )


COUNTING = [name for name in MORE if is_told_by_a_folder(name)]


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
@pytest.mark.parametrize("name", COUNTING)
def test_more_sets_are_drawn_of_a_public_folder_alone(name, file_format, tmp_path):
    columns = {
        "a": {"levels": [0, 1], "public": True},
        "b": LEVELS["b"],
        "x": BINS["x"],
    }
    table = Table(records()[list(columns)], Schema.model_validate({"columns": columns}))
    release, _ = find(name)(epsilon=1).release(table)
    release.publish(tmp_path / "public", file_format=file_format)
    opened = pdips.open(tmp_path)
    assert len(opened.answers) == len(release.answers) > 0
    first = release.more_sets(2, rng=np.random.default_rng(1))
    second = opened.more_sets(2, rng=np.random.default_rng(1))
    for one, other in zip(first, second, strict=True):
        pd.testing.assert_frame_equal(one, other)


def test_answers_that_were_changed_are_refused(tmp_path):
    table = Table(records()[["a", "b"]], Schema(columns={k: LEVELS[k] for k in "ab"}))
    release, _ = find("laplace-sanitizer")(epsilon=1).release(table)
    release.publish(tmp_path / "public")
    rows = pd.read_parquet(tmp_path / "public/answers.parquet")
    rows.assign(whole=rows["whole"] + 1).to_parquet(tmp_path / "public/answers.parquet")
    refuses("isn't the file", pdips.more_sets, tmp_path, 1)
    refuses("answers.parquet", pdips.open, tmp_path)


PAGE = Path(__file__).parents[2] / "docs/results/offers.md"
TITLES = {
    "zeros": "impossible combinations",
    "rules": "rules",
    "public_columns": "public columns",
    "totals": "totals",
    "households": "households",
    "counted_tables": "counted tables",
    "partitions": "many files",
}


def more_from(name: str) -> str:
    """From where more sets of a mechanism with its default settings can be drawn."""
    if name in COUNTING:
        return "public folder"
    if find(name).most_sets == 1:
        return "no: the answer is the set"
    return "release in memory" if name in MORE else "no: noise of their own"


def table_of_offers() -> str:
    """Return the table of the page of results."""
    heads = ["mechanism", *TITLES.values(), "kinds", "sets share", "more sets"]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    for name in ALL:
        offers = find(name).offers
        kept = ["yes" if getattr(offers, offer) else "" for offer in TITLES]
        shared = ready(name)(epsilon=1).sets_share()
        cells = [f"`{name}`", *kept, ", ".join(offers.kinds), shared]
        lines.append(f"| {' | '.join([*cells, more_from(name)])} |")
    return "\n".join(lines)


def test_the_page_says_what_each_mechanism_keeps_to():
    assert table_of_offers() in PAGE.read_text(encoding="utf-8"), table_of_offers()
