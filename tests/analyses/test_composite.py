"""Analyses that are named before a release: one charge, one folder, the answer that is
found first, and what is refused.
"""

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from tables import cases

import pdips
from pdips import Ledger, Margins, Schema, Table
from pdips.analyses.composite import (
    PREFIX,
    SHARE_OF_ANALYSES,
    WithAnalyses,
    at_share,
)
from pdips.analyses.declarations import planned_with, sources_of, with_analyses
from pdips.cli.check import examine
from pdips.errors import InputError, PlanError, ResumableError
from pdips.privacy.charge import Charging
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits
from pdips.release.documents import PrivacyDocument
from pdips.release.release import Release
from pdips.scores import centred_questions
from pdips.scores.scores import Scores

REFUSED = cases(__file__, "refused")
WRONG_WORDS = cases(__file__, "wrong_words")
N = 3_000
FORMULA = "ill ~ x; family=bernoulli"
CALLED = "ill ~ x; family = 'bernoulli'"
COLUMNS = {
    "x": {"lower": -4, "upper": 4},
    "ill": {"levels": [0, 1]},
    "sex": {"levels": ["f", "m"]},
}
SCHEMA = Schema.model_validate({"columns": COLUMNS})


def records(n: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    x = rng.uniform(-4, 4, n).round(2)
    ill = (rng.uniform(size=n) < 1 / (1 + np.exp(-x))).astype(int)
    return pd.DataFrame({"x": x, "ill": ill, "sex": rng.choice(["f", "m"], n)})


@pytest.fixture(scope="module")
def mechanism() -> WithAnalyses:
    margins = Margins(epsilon=2, delta="1e-6", n_sets=2)
    return with_analyses(margins, [FORMULA], SCHEMA)


@pytest.fixture(scope="module")
def home(mechanism, tmp_path_factory) -> Path:
    """A folder with a ledger and a release that was charged to it."""
    folder = tmp_path_factory.mktemp("named")
    release, _ = mechanism.release(
        Table(records(), SCHEMA),
        ledger=folder / "l.sqlite",
        rng=np.random.default_rng(1),
    )
    release.publish(folder / "out/public", allow=["seeded"])
    return folder


@pytest.fixture
def copied(home, tmp_path) -> Path:
    shutil.copytree(home / "out", tmp_path / "out")
    return tmp_path / "out"


def test_one_charge_one_receipt_and_a_statement_that_says_the_split(home):
    account = Ledger(home / "l.sqlite")
    assert account.summary().spent_epsilon == 2
    assert len(account.entries()) == 1
    document = PrivacyDocument.read(home / "out/public")
    assert document.privacy.epsilon == 2
    said = document.privacy.statement
    assert "The budget is split: 0.5 of it, in rho, buys the tables" in said
    assert f"Of analysis 1, {CALLED}: Records are counted" in said
    [stated] = document.analyses
    part = PrivacyDocument.read(home / "out/public" / stated.folder)
    assert part.receipt == document.receipt
    assert f"A PART of release {document.release}, whose price" in (
        part.privacy.statement
    )
    assert part.release != document.release
    whole = document.privacy.rho
    assert np.isclose(part.privacy.rho, whole / 2, rtol=1e-6)
    steps = [spend.step for spend in document.spends]
    of_analysis = [step for step in steps if step.startswith(PREFIX.format(1))]
    assert 0 < len(of_analysis) < len(steps)


def test_asking_finds_the_answer_to_the_named_analysis_first(home):
    opened = pdips.open(home / "out")
    assert [*opened.analyses] == [CALLED]
    answer = opened.ask("ill ~ x", family="bernoulli")
    assert answer.source == "posterior"
    rows = pd.read_parquet(home / "out/public/analysis_1/answer.parquet")
    row = rows.set_index("coefficient").loc["x"]
    assert np.isclose(answer.summary().loc["x", "estimate"], row["estimate"])
    # the noise is fixed: the truth is 1
    assert row["lower"] < 1 < row["upper"]
    assert row["table_lower"] < row["table_estimate"] < row["table_upper"]
    other = opened.ask("ill ~ sex", family="bernoulli")
    assert other.source != "posterior"


@pytest.mark.slow
def test_answers_are_found_as_the_card_writes_them_and_by_other_levels(tmp_path):
    """``sex['f']`` is what is asked of a column of two levels. Bambi compares with the
    first level of the alphabet, and ``ask`` with the schema's.
    """
    columns = {**COLUMNS, "sex": {"levels": ["m", "f"]}}
    schema = Schema.model_validate({"columns": columns})
    named = ["sex ~ x", "x ~ sex"]
    both = with_analyses(Margins(epsilon=4, delta="1e-6"), named, schema)
    rng = np.random.default_rng(1)
    release, _ = both.release(Table(records(), schema), rng=rng)
    release.publish(tmp_path / "out/public", allow=["seeded"])
    opened = pdips.open(tmp_path / "out")
    for text in ("sex['f'] ~ x", "sex ~ x", "x ~ sex"):
        assert opened.ask(text).source == "posterior", text
    # the broken twin: another question
    assert opened.ask("sex ~ ill").source != "posterior"
    assert "sex[m]" in opened.ask("x ~ sex").names


def test_tables_have_their_part_of_the_budget_and_more_sets_from_it(home):
    document = PrivacyDocument.read(home / "out/public")
    assert document.settings["epsilon"] == 2
    assert document.settings["analyses"] == ["ill ~ x\nfamily = 'bernoulli'"]
    own = document.mechanism_settings
    assert own["epsilon"] < 2
    assert "analyses" not in own
    opened = pdips.open(home / "out")
    assert [len(frame) for frame in opened.more_sets(2)] == [N, N]


def test_a_release_is_whole_and_its_card_names_the_analysis(home, mechanism):
    from pdips.report.pages import write_card

    write_card(home / "out/public")
    remarks = examine(home / "out", [Ledger(home / "l.sqlite")])
    assert [remark.said for remark in remarks if remark.fault] == []
    page = " ".join((home / "out/public/card.html").read_text().split())
    assert "Answers to analyses that were named" in page
    assert "take the interval that is here" in page
    assert '<th scope="row">x</th>' in page


@pytest.mark.parametrize(
    "what", ["changed", "removed", "added", "card", "forged", "linked", "replaced"]
)
def test_an_analysis_that_isnt_as_it_was_published_is_noticed(copied, what):
    own = copied / "public/analysis_1"
    if what == "changed":
        rows = pd.read_parquet(own / "answer.parquet")
        rows.assign(estimate=0.0).to_parquet(own / "answer.parquet")
    elif what == "removed":
        shutil.rmtree(own)
    elif what == "added":
        (own / "more.txt").write_text("more")
    elif what == "card":
        (own / "card.html").write_text("<p>All is well.</p>")
    elif what == "forged":
        (own / "signature.json").write_text((own / "privacy.json").read_text())
    elif what == "linked":
        own.rename(copied / "elsewhere")
        own.symlink_to(copied / "elsewhere")
    else:
        path = own / "privacy.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"n_sets": 1, "reproducible": False}))
    assert [remark for remark in examine(copied) if "analysis_1" in str(remark)]
    with pytest.raises(InputError, match="analysis_1"):
        pdips.open(copied)


class Stop(BaseException):
    """What no code of ours catches."""


def stopped_after(n_answers: int, monkeypatch) -> None:
    """Stop a run when so many answers were given."""
    answered = Drawing._answered
    given = []

    def counted(self, step, draw):
        if len(given) == n_answers:
            raise Stop
        given.append(step.name)
        return answered(self, step, draw)

    monkeypatch.setattr(Drawing, "_answered", counted)


@pytest.mark.slow
def test_a_run_that_stops_between_parts_is_charged_once_and_finished(
    mechanism, tmp_path, monkeypatch
):
    table = Table(records(), SCHEMA)
    plan = mechanism.plan(SCHEMA)
    ledger = Ledger(tmp_path / "l.sqlite")
    names = [step.name for step in plan.steps]
    n_tables = len(plan.design.tables.steps)
    assert names[n_tables].startswith(PREFIX.format(1))
    with monkeypatch.context() as patched:
        # after the tables' steps, and one of the analysis
        stopped_after(n_tables + 1, patched)
        with pytest.raises(ResumableError):
            mechanism.release_planned(plan, table, Charging(ledger=ledger))
    assert ledger.summary().spent_epsilon == 2
    other = replace(mechanism, analyses=tuple(sources_of(["ill ~ sex"], SCHEMA)))
    with pytest.raises(InputError, match="another plan"):
        other.release(table, ledger=ledger, resume=1)
    release, _ = mechanism.release(table, ledger=ledger, resume=1)
    assert ledger.summary().spent_epsilon == 2
    assert [part.receipt.number for part in release.analyses] == [1]


@pytest.mark.slow
def test_an_analysis_that_ends_early_leaves_the_next_one_its_turn(monkeypatch):
    """Its second round can't be placed: what it priced further is passed over."""
    named = ["ill ~ x; family=bernoulli", "ill ~ sex; family=bernoulli"]
    both = planned_with(Margins(epsilon=4, delta="1e-6"), named, SCHEMA)
    real = centred_questions.next_whitening
    failed = []

    def failing(*given, **settings):
        if not failed:
            failed.append(True)
            raise np.linalg.LinAlgError("nothing to solve")
        return real(*given, **settings)

    plan = both.plan(SCHEMA)
    monkeypatch.setattr(centred_questions, "next_whitening", failing)
    rng = np.random.default_rng(1)
    release, _ = both.release_planned(plan, Table(records(), SCHEMA), rng=rng)
    assert failed
    assert len(release.analyses) == 2
    draws = [part.posterior_draws for part in release.analyses]
    assert all(each is not None for each in draws)


def test_a_step_that_is_passed_over_is_not_asked_later(mechanism):
    plan = mechanism.plan(SCHEMA)
    bits = RandomBits(np.random.default_rng(1))
    curator = Drawing(plan, Table(records(), SCHEMA), bits)
    first = curator.due
    curator.pass_over(first)
    with pytest.raises(PlanError, match="was asked where"):
        curator.pass_over(first)
    for step in plan.steps[1:]:
        curator.pass_over(step)
    assert curator.due is None


def spent(ledger: Ledger) -> Fraction:
    """What an account has spent, which there may not be yet."""
    if not ledger.path.exists():
        return Fraction(0)
    return ledger.summary().spent_epsilon


def test_nothing_is_charged_if_the_first_answer_isnt_given(
    mechanism, tmp_path, monkeypatch
):
    ledger = Ledger(tmp_path / "l.sqlite")
    stopped_after(0, monkeypatch)
    with pytest.raises(Stop):
        mechanism.release(Table(records(), SCHEMA), ledger=ledger)
    assert spent(ledger) == 0


@pytest.mark.slow
def test_a_folder_that_cant_be_written_publishes_nothing_and_is_resumed(
    pdips, tmp_path, monkeypatch
):
    records().to_parquet(tmp_path / "t.parquet")
    (tmp_path / "s.toml").write_text(
        SCHEMA.to_toml() + '\n[[analysis]]\nformula = "ill ~ x"\nfamily = "bernoulli"\n'
    )
    words = ["synthesize", tmp_path / "t.parquet", "--schema", tmp_path / "s.toml"]
    words += ["--epsilon", 2, "--delta", "1e-6", "--sets", 1, "--quiet"]
    words += ["--ledger", tmp_path / "l.sqlite", "--out", tmp_path / "out"]
    words += ["--analysis", "x ~ sex", "--mechanism", "margins"]
    write = Release.write

    def failing(self, directory, **settings):
        if self.settings.get("model_source") and "sex" in self.settings["model_source"]:
            raise OSError(28, "No space left on device")
        write(self, directory, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(Release, "write", failing)
        pdips.fails("", *words, code=4)
    assert not (tmp_path / "out").exists()
    pdips.ok("resume", tmp_path / "l.sqlite", "--quiet")
    assert Ledger(tmp_path / "l.sqlite").summary().spent_epsilon == 2
    for number in (1, 2):
        assert (tmp_path / f"out/public/analysis_{number}/posterior.nc").is_file()
    pdips.ok("check", tmp_path / "out", "--ledger", tmp_path / "l.sqlite")


@pytest.mark.parametrize("delta", [None, "1e-6", "1e-9"])
@pytest.mark.parametrize("share", [Fraction(1, 2), Fraction(1, 6), Fraction(1, 40)])
def test_a_share_of_the_budget_is_never_above_it_and_hardly_below(delta, share):
    for build in (Margins, Scores):
        whole = build(epsilon="1.3", delta=delta)
        part = at_share(whole, share)
        assert part.total <= whole.total * share
        assert part.total > whole.total * share * (1 - Fraction(1, 10**8))


@pytest.mark.slow_cases("3")
@pytest.mark.parametrize("n_analyses", [1, 3])
def test_all_parts_together_cost_what_was_asked_for(n_analyses):
    formulas = ["ill ~ x", "x ~ sex", "x ~ ill"][:n_analyses]
    sources = sources_of(formulas, SCHEMA)
    for delta in (None, "1e-6"):
        whole = WithAnalyses.of(Margins(epsilon=1, delta=delta), sources)
        plan = whole.plan(SCHEMA)
        assert plan.loss.epsilon == 1
        unit = "epsilon" if delta is None else "rho"
        amounts = [getattr(each.loss, unit) for each in plan.design.analyses]
        share = sum(amounts) / getattr(plan.loss, unit)
        assert np.isclose(float(share), float(SHARE_OF_ANALYSES), rtol=1e-6)


def test_a_part_asks_nothing_that_the_whole_doesnt_price(mechanism):
    # the broken twin: an analysis whose last step nobody pays for
    plan = mechanism.plan(SCHEMA)
    short = replace(plan, steps=plan.steps[:-1])
    bits = RandomBits(np.random.default_rng(1))
    with pytest.raises(PlanError, match="after all that the plan"):
        mechanism.ask(short, Drawing(short, Table(records(), SCHEMA), bits))


@pytest.mark.slow
def test_analyses_of_a_schema_and_a_table_that_was_read_with_it(tmp_path):
    declared = Schema.model_validate(
        {"columns": COLUMNS, "analysis": [{"formula": "x ~ sex"}]}
    )
    assert Schema.from_toml(declared.to_toml()) == declared
    table = Table(records(), declared)
    with pytest.raises(InputError, match=r"by itself answers no \[\[analysis\]\]"):
        Margins(epsilon=1).release(table)
    release, _ = pdips.synthesize(
        table, declared, epsilon=4, n_sets=1, seed=1, progress=False
    )
    [part] = release.analyses
    assert part.settings["model_source"].split() == ["x", "~", "sex"]
    assert not release.schema.analysis


@pytest.mark.parametrize(("analyses", "settings", "said"), REFUSED)
def test_what_cant_be_answered_is_refused_before_the_charge(
    analyses, settings, said, tmp_path
):
    ledger = Ledger(tmp_path / "l.sqlite")
    given = {"epsilon": 1, **settings}
    with pytest.raises(InputError, match=said):
        pdips.synthesize(
            records(500),
            SCHEMA,
            analyses=list(analyses),
            ledger=ledger,
            progress=False,
            **given,
        )
    assert spent(ledger) == 0


def test_households_are_refused():
    schema = Schema.model_validate(
        {
            "columns": {"x": {"levels": [0, 1]}, "y": {"levels": [0, 1]}},
            "members": {
                "key": "h",
                "most": 2,
                "columns": {"sex": {"levels": ["f", "m"]}},
            },
        }
    )
    with pytest.raises(InputError, match="this schema has households"):
        planned_with(Margins(epsilon=1), ["y ~ x"], schema).plan(schema)


@pytest.mark.parametrize(("words", "said"), WRONG_WORDS)
def test_wrong_words_on_the_command_line(pdips, tmp_path, words, said):
    records(100).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml())
    command, *more = [word.format(here=tmp_path) for word in words]
    if command == "synthesize":
        more = [f"{tmp_path}/t.parquet", "--schema", f"{tmp_path}/s.toml", *more]
        more += ["--out", f"{tmp_path}/out", "--quiet", "--mechanism", "margins"]
        more += ["--ledger", f"{tmp_path}/l.sqlite"]
    else:
        more = [f"{tmp_path}/s.toml", *more]
    pdips.fails(said, command, *more, "--epsilon", "1")
    assert spent(Ledger(tmp_path / "l.sqlite")) == 0
    assert not (tmp_path / "out").exists()


def line(df: pd.DataFrame) -> pm.Model:
    """A regression as people write it."""
    with pm.Model(coords={"sex": ["f", "m"]}) as model:
        level = pm.Normal("level", 0, 2, dims="sex")
        slope = pm.Normal("slope", 0, 1)
        codes = (df["sex"] == "m").astype(int).values
        eta = level[codes] + slope * df["x"].values
        pm.Bernoulli("y", logit_p=eta, observed=df["ill"].values)
    return model


@pytest.mark.slow
def test_a_bambi_model_and_a_function_are_answered_by_their_names(tmp_path):
    """The model's own data is nowhere: it is named, and found, as its formula."""
    bmb = pytest.importorskip("bambi")
    own = bmb.Model("ill ~ x", records(400)[["x", "ill"]], family="bernoulli")
    both = with_analyses(Margins(epsilon=8, delta="1e-6"), [own, line], SCHEMA)
    rng = np.random.default_rng(1)
    release, _ = both.release(Table(records(), SCHEMA), rng=rng)
    release.publish(tmp_path / "out/public", allow=["seeded"])
    opened = pdips.open(tmp_path / "out")
    assert [*opened.analyses] == [CALLED, "line"]
    answer = opened.ask("ill ~ x", family="bernoulli")
    assert answer.source == "posterior"
    # the noise is fixed: the truth is 1, without a level
    assert answer.summary().loc["x", "lower"] < 1 < answer.summary().loc["x", "upper"]
    rows = release.analyses[1].tables["answer"].set_index("coefficient")
    assert [*rows.index] == ["level[f]", "level[m]", "slope"]
    assert rows.loc["slope", "lower"] < 1 < rows.loc["slope", "upper"]


def test_a_named_family_asks_for_the_second_level_too():
    """Whether ``ask`` finds the answer or fits sets, it is of the same level."""
    schema = Schema(columns={**COLUMNS, "ill": {"levels": ["no", "yes"]}})
    [source] = sources_of([FORMULA], schema)
    assert source.text.startswith("ill['yes'] ~ x")
    # the broken twin: a level that is named stays
    [source] = sources_of(["ill['no'] ~ x; family=bernoulli"], schema)
    assert source.text.startswith("ill['no'] ~ x")


@pytest.mark.parametrize(
    ("analyses", "said"),
    [
        (line, "analyses are a list, of one too"),
        ("ill ~ x", "analyses are a list, of one too"),
        ({"formula": "ill ~ x"}, "analyses are a list, of one too"),
        ([line, line], "the analysis 'line' is there twice"),
        ([lambda data, schema: None], "or a function make"),
        ([line(records(50))], "a pm.Model holds the records"),
        ([None], "a model is a function make"),
    ],
)
def test_analyses_of_other_forms_are_refused_before_the_charge(
    analyses, said, tmp_path
):
    ledger = Ledger(tmp_path / "l.sqlite")
    with pytest.raises(InputError, match=said):
        pdips.synthesize(
            records(500),
            SCHEMA,
            epsilon=1,
            analyses=analyses,
            ledger=ledger,
            progress=False,
        )
    assert spent(ledger) == 0


def test_a_file_is_called_by_its_name(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import pymc as pm\n\n\ndef make(df):\n    return pm.Model()\n"
    )
    with pytest.raises(InputError, match=r"^the analysis 'mine\.py': mine\.py makes"):
        sources_of([tmp_path / "mine.py"], SCHEMA)
