"""Replays from public files: certificates pass good releases and catch poor ones, and
more sets differ as they should.

Seeds are fixed. Of 30 replays the mean coverage of pairs has a standard error of about
.005, so a true 95 % is below .93 + 2 standard errors with probability about 3e-5; the
twins lie beyond .90.
"""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from tables import refuses, schema_in

from pdips import (
    LaplaceSanitizer,
    Margins,
    McClureReiter,
    Modips,
    MultinomialDirichlet,
    Schema,
    Table,
    more_sets,
    synthesize,
)
from pdips.fields import chains
from pdips.inference import rule_for
from pdips.outside.noisy_margins import NoisyMargins
from pdips.outside.replays import Population, agreement, certify, coded, coverage, raked
from pdips.privacy.curator import PublishedAnswers
from pdips.release.certificate import Certificate
from pdips.release.noisy_margins import unstacked
from pdips.report.pages import write_card

DELTAS = {"pure": None, "zcdp": "1e-6"}
"""For each kind of loss the delta that chooses it."""

SCHEMA = schema_in("replays")


def frame():
    rng, n = np.random.default_rng(0), 2_000
    a = rng.integers(0, 3, n)
    b = (a + rng.integers(0, 2, n)) % 4
    c = ((b > 1) ^ (rng.random(n) < 0.2)) * 1
    return pd.DataFrame({"a": a, "b": b, "c": c, "d": rng.gamma(2, 1, n).clip(0, 10)})


GOOD = of_pairs(epsilon=2, n_sets=4)


def release_in(folder, mechanism=GOOD, seed=1):
    release, _ = mechanism.release(
        Table(frame(), SCHEMA), rng=np.random.default_rng(seed)
    )
    release.write(folder / "public")
    return folder


def found(folder, **settings):
    return certify(folder, rng=np.random.default_rng(2), **{"replays": 30, **settings})


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    return release_in(tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def certificate(released):
    """Of two replays."""
    return found(released, replays=2)


@pytest.mark.slow
def test_a_good_release_passes(released):
    certificate = found(released, formula="c ~ a + d")
    rows = {row.what: row for row in certificate.rows}
    assert list(rows) == ["levels", "pairs", "triples", "c ~ a + d"]
    assert not certificate.failing
    assert certificate.refusal is None
    assert certificate.rule == "between"
    assert not certificate.agreement.fails
    assert all(
        0.92 < rows[name].covered < 0.985 for name in ("levels", "pairs", "triples")
    )
    assert rows["c ~ a + d"].numbers == 3


@pytest.mark.slow
def test_sets_that_share_their_noise_fail(tmp_path):
    failed = found(release_in(tmp_path, of_pairs(epsilon=0.5, n_sets=4, sets="fitted")))
    assert [row.what for row in failed.rows if row.fails][:2] == ["levels", "pairs"]
    assert "levels" in failed.refusal


@pytest.mark.slow
def test_a_fit_that_leaves_out_what_pairs_say_fails(tmp_path, monkeypatch):
    whole = chains.PairField.fitted

    def poor(self, *settings, **more):
        fitted = whole(self, *settings, **more)
        return replace(fitted, theta=np.zeros_like(fitted.theta))

    monkeypatch.setattr(chains.PairField, "fitted", poor)
    failed = found(release_in(tmp_path), replays=20)
    assert failed.agreement.fails
    assert "noisy counts" in failed.refusal
    # the population agrees with the noisy pairs, which this fit misses
    assert next(row for row in failed.rows if row.what == "pairs").fails


# all counts, and differences of neighbouring ones
@pytest.mark.parametrize("kind", ["pure", "zcdp"])
def test_the_population_agrees_with_the_noisy_pairs(kind):
    rng = np.random.default_rng(4)
    release, _ = replace(GOOD, delta=DELTAS[kind]).release(
        Table(frame(), SCHEMA), rng=rng
    )
    margins = NoisyMargins.of(release)
    poor = coded(
        margins,
        [each.apply(lambda column: rng.permutation(column)) for each in release.sets],
    )
    assert not agreement(margins, coded(margins, release.sets), 4).fails
    assert agreement(margins, poor, 4).fails
    assert not agreement(margins, poor[raked(margins, poor, rng)], 4).fails


def test_a_set_that_was_changed_is_refused(here):
    path = here / "public" / "synthetic_2.parquet"
    pd.read_parquet(path).assign(a=0).to_parquet(path)
    refuses(r"synthetic_2.parquet isn't the file that was published", certify, here)


def test_a_certificate_decides_which_rule_fits(here, certificate):
    public = here / "public"
    for covered in (0.95, 0.8):
        rows = [
            row.model_copy(update={"covered": covered, "standard_error": 0.01})
            for row in certificate.rows
        ]
        certificate.model_copy(update={"rows": rows}).write(public)
        card = write_card(public).read_text()
        assert "95 % intervals covered, in 2 replays" in card
        assert (
            "No valid interval can be had" in card and "Not to be relied on" in card
        ) == (covered == 0.8)
        if covered == 0.95:
            assert rule_for(public) == "between"
    refuses("no rule fits these sets: in 2 replays", rule_for, public / "privacy.json")


def test_a_certificate_of_another_release_is_refused(certificate, tmp_path):
    other = release_in(tmp_path, seed=3) / "public"
    certificate.write(other)
    refuses("another release", Certificate.beside, other)


def test_tables_of_replays_are_samples_of_the_population():
    class Copies:
        def release(self, table, rng):
            return SimpleNamespace(sets=[table.frame, table.frame]), None

    population = Population.of(frame(), SCHEMA, 2_000, None, np.random.default_rng(1))
    found = coverage(Copies(), population, "between", 3, rng=np.random.default_rng(1))
    # two equal sets have intervals without width: a sample hardly ever hits a share
    # exactly
    assert all(row.covered < 0.2 for row in found)


def test_only_public_files_are_read(here):
    (here / "public").rename(here / "elsewhere")
    rows = found(here / "elsewhere", replays=2, formula="c ~ a").rows
    both = [row for row in rows if row.covered == 1]
    assert 0.1 < both[0].standard_error < 0.2  # though both replays say the same


@pytest.mark.slow
def test_processes_beside_give_as_many_replays(released):
    assert found(released, replays=2, scheduler="local").replays == 2


def test_what_cant_be_replayed(released, tmp_path):
    for replays in (1, True, 2.5):
        refuses("at least 2", certify, released, replays=replays)
    refuses(
        "one synthetic set",
        certify,
        release_in(tmp_path / "one", of_pairs(epsilon=1)),
    )
    path = (
        release_in(tmp_path / "two", LaplaceSanitizer(epsilon=1, n_sets=2))
        / "public"
        / "privacy.json"
    )
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"mechanism": Modips.name})
    )
    refuses("can't be replayed", certify, tmp_path / "two")


@pytest.mark.slow
def test_the_command_writes_and_says_what_holds(here, pdips):
    code, said, _ = pdips("certify", here, "--replays", 3)
    assert "holds     pairs" in said or "FAILS     pairs" in said
    written = Certificate.read(here / "public")
    assert written.replays == 3
    assert code == (3 if written.failing else 0)
    pdips.fails("nowhere", "certify", here / "nowhere")
    pdips.fails("wage", "certify", here, "--analysis", "c ~ wage")


# ---- more sets ----

N = 1_000


def survey(*, public: bool = False, plain: bool = False) -> Table:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"sex": rng.choice(["f", "m"], N), "job": rng.choice([11, 12, 21, 22, 23], N)}
    )
    frame["ill"] = rng.random(N) < np.where(frame["sex"] == "f", 0.2, 0.4)
    columns = {
        "sex": {"levels": ["f", "m"]},
        "job": {"levels": [11, 12, 21, 22, 23]},
        "ill": {"levels": [False, True]},
    }
    if public:
        columns["sex"]["public"] = True
    if plain:
        return Table(frame, Schema(columns=columns))
    frame["money"] = np.where(
        rng.random(N) < 0.3,
        np.nan,
        np.round(np.exp(rng.normal(6, 1, N))).clip(0, 9_000),
    )
    frame["w"] = np.exp(rng.normal(3, 1, N)).clip(1, 5_000)
    columns["job"]["groups"] = {"1": [11, 12], "2": [21, 22, 23]}
    columns |= {
        "money": {"lower": 0, "upper": 10_000, "integer": True, "missing": True}
    }
    columns |= {"w": {"lower": 1, "upper": 5_000}}
    return Table(frame, Schema(columns=columns, records={"weight": "w"}))


@pytest.mark.slow_cases(
    "1e-6 ('sex', 'job')-False",
    "1e-6 2-False",
    "1e-6 add-remove ('ill',)-False",
    "1e-6-True",
    "None add-remove-False",
    "None-False",
)
@pytest.mark.parametrize(
    ("settings", "public"),
    [
        ({"delta": None}, False),
        ({"delta": "1e-6", "weighted": ("sex", "job")}, False),
        ({"delta": "1e-6", "neighbours": "add-remove", "weighted": ("ill",)}, False),
        ({"delta": None, "neighbours": "add-remove"}, False),
        ({"delta": "1e-6"}, True),
        ({"delta": "1e-6", "n_sets": 2}, False),
    ],
    ids=lambda value: (
        " ".join(map(str, value.values())) if isinstance(value, dict) else None
    ),
)
@pytest.mark.filterwarnings("ignore::pdips.errors.UselessWarning")
def test_all_noisy_numbers_are_those_that_were_published(
    settings, public, tmp_path, monkeypatch
):
    table = survey(public=public)
    release, _ = of_pairs(epsilon=2, **settings).release(
        table, rng=np.random.default_rng(3)
    )
    release.write(tmp_path)
    seen = list[pd.DataFrame]()
    asked, drawn_by = Margins.ask, Margins.draw

    def watched_ask(mechanism, plan, curator):
        assert isinstance(curator, PublishedAnswers)
        measured = asked(mechanism, plan, curator)
        assert curator.finished
        return measured

    def watched_draw(mechanism, *given):
        drawn = drawn_by(mechanism, *given)
        both = drawn.margins, unstacked(release.margins, release.tables["margins"])
        measured, told = (
            [(m.law, m.noisy.tolist()) for m in each if m.law.law != "estimate"]
            for each in both
        )
        assert measured == told
        for name in ("intervals", "weighted_sums", "cuts", "products", "caps"):
            if name in release.tables:
                pd.testing.assert_frame_equal(drawn.tables[name], release.tables[name])
        seen.extend(drawn.sets)
        return drawn

    monkeypatch.setattr(Margins, "ask", watched_ask)
    monkeypatch.setattr(Margins, "draw", watched_draw)
    for source in (release, tmp_path):
        found = more_sets(source, 2, rng=np.random.default_rng(4))
        assert [list(frame) for frame in found] == [list(table.schema.columns)] * 2
        assert not found[0].equals(found[1])
        for frame in found:
            Table(frame, table.schema.without_person())
    assert len(seen) == 4
    assert ("products" in release.tables) == ("n_sets" in settings)
    if public:
        assert found[0]["sex"].tolist() == release.sets[0]["sex"].tolist()


@pytest.mark.slow_cases(
    "pairs",
)
@pytest.mark.parametrize(
    "build", [partial(of_pairs, delta="1e-6"), Margins], ids=["pairs", "views"]
)
def test_later_sets_differ_as_much_as_noise_and_sampling_say(build):
    # of 40 sets the variance of a count is within .4 and 2 times noise + sampling,
    # error rate below 10^-4
    table = survey(plain=True)
    release, _ = build(epsilon=1).release(table, rng=np.random.default_rng(5))
    noise = {each.columns: each.standard_error**2 for each in release.margin_errors}[
        ("ill",)
    ]
    expected = noise + N * 0.3 * 0.7
    sets = more_sets(release, 40, rng=np.random.default_rng(6))
    assert (
        0.4 * expected
        < np.var([frame["ill"].sum() for frame in sets], ddof=1)
        < 2 * expected
    )
    mean = np.mean([frame["ill"].sum() for frame in sets])
    assert abs(mean - release.sets[0]["ill"].sum()) < 5 * np.sqrt(expected / 40 + noise)
    # the broken twin: sets of the field that fits best
    fitted, _ = build(epsilon=1, n_sets=40, sets="fitted").release(
        table, rng=np.random.default_rng(6)
    )
    assert (
        np.var([frame["ill"].sum() for frame in fitted.sets], ddof=1) < 0.4 * expected
    )


def test_public_totals_and_weights_hold_in_later_sets():
    table, total = (
        survey(),
        {"columns": ["sex"], "counts": {"f": 50_000, "m": 60_000}, "weighted": True},
    )
    table = Table(
        table.frame, Schema.model_validate(table.schema.to_dict() | {"total": [total]})
    )
    release, _ = of_pairs(epsilon=4, delta="1e-6").release(
        table, rng=np.random.default_rng(7)
    )
    for frame in more_sets(release, 2, rng=np.random.default_rng(8)):
        assert frame.groupby("sex")["w"].sum().to_numpy() == pytest.approx(
            [50_000, 60_000]
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pdips.errors.UselessWarning")
def test_a_folder_whose_settings_do_not_give_its_noise_is_refused(tmp_path):
    for setting, share, name in (
        ("second", 0, "once"),
        ("second", "1/5", "twice"),
        ("single", "1/7", "other"),
    ):
        made = of_pairs(epsilon=2, delta="1e-6", **{f"{setting}_share": share})
        made.release(survey(), rng=np.random.default_rng(3))[0].write(tmp_path / name)
        file = tmp_path / name / "privacy.json"
        document = json.loads(file.read_text(encoding="utf-8"))
        assert document["settings"].pop(f"{setting}_share") == str(share)
        file.write_text(json.dumps(document), encoding="utf-8")
        refuses("aren.t those of margins", more_sets, tmp_path / name, 1)


def test_what_no_more_sets_can_be_drawn_of_is_refused(tmp_path):
    table = survey(plain=True)
    for mechanism, n_sets, message in (
        (MultinomialDirichlet(epsilon=1), 2, "noise of its own"),
        (McClureReiter(epsilon=1), 2, "would be a copy"),
        (LaplaceSanitizer(epsilon=1, n_sets=2, split="per-set"), 2, "of its own"),
        (of_pairs(epsilon=1), 0, "n_sets"),
    ):
        refuses(
            message,
            more_sets,
            mechanism.release(table, rng=np.random.default_rng(1))[0],
            n_sets,
        )
    synthesize(table.frame, table.schema, epsilon=1, mechanism="margins")[0].write(
        tmp_path
    )
    (answers,) = tmp_path.rglob("answers.*")
    frame = pd.read_parquet(answers)
    frame.assign(whole=frame["whole"] + 1).to_parquet(answers)
    refuses("isn't the file that was published", more_sets, tmp_path, 2)
