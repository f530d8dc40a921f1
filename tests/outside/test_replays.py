"""The replay certificate: it passes good releases, and catches fits and rules that don't do what they should.

Seeds are fixed. Of 30 replays the mean coverage of pairs has a standard error of about .005, so a true 95 % is below
.93 + 2 standard errors with probability about 3e-5; the twins lie beyond .90.
"""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from tables import refuses, schema_in

from pdips import LaplaceSanitizer, Modips, Pairs, Table
from pdips.inference import rule_for
from pdips.margins import chains
from pdips.outside.noisy_margins import NoisyMargins
from pdips.outside.replays import Population, agreement, certify, coded, coverage, raked
from pdips.release.certificate import Certificate
from pdips.report.pages import write_card

SCHEMA = schema_in("replays")


def frame(n=2_000):
    rng = np.random.default_rng(0)
    a = rng.integers(0, 3, n)
    b = (a + rng.integers(0, 2, n)) % 4
    return pd.DataFrame(
        {"a": a, "b": b, "c": ((b > 1) ^ (rng.random(n) < 0.2)) * 1, "d": rng.gamma(2, 1, n).clip(0, 10)}
    )


GOOD = Pairs(epsilon=2, n_sets=4)


def release_in(folder, mechanism=GOOD, seed=1):
    release, _ = mechanism.release(Table(frame(), SCHEMA), rng=np.random.default_rng(seed))
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


def test_a_good_release_passes(released):
    certificate = found(released, formula="c ~ a + d")
    rows = {row.what: row for row in certificate.rows}
    assert list(rows) == ["levels", "pairs", "triples", "c ~ a + d"]
    assert not certificate.failing
    assert certificate.refusal is None
    assert certificate.rule == "between"
    assert not certificate.agreement.fails
    assert all(0.92 < rows[name].covered < 0.985 for name in ("levels", "pairs", "triples"))
    assert rows["c ~ a + d"].numbers == 3


def test_sets_that_share_their_noise_fail(tmp_path):
    failed = found(release_in(tmp_path, Pairs(epsilon=0.5, n_sets=4, sets="fitted")))
    assert [row.what for row in failed.rows if row.fails][:2] == ["levels", "pairs"]
    assert "levels" in failed.refusal


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


@pytest.mark.parametrize("kind", ["pure", "zcdp"])  # all counts, and differences of neighbouring ones
def test_the_population_agrees_with_the_noisy_pairs(kind):
    rng = np.random.default_rng(4)
    release, _ = replace(GOOD, kind=kind).release(Table(frame(), SCHEMA), rng=rng)
    margins = NoisyMargins.of(release)
    poor = coded(margins, [each.apply(lambda column: rng.permutation(column)) for each in release.sets])
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
        rows = [row.model_copy(update={"covered": covered, "standard_error": 0.01}) for row in certificate.rows]
        certificate.model_copy(update={"rows": rows}).write(public)
        card = write_card(public).read_text()
        assert "95 % intervals covered, in 2 replays" in card
        assert ("none valid" in card and "Not to be relied on" in card) == (covered == 0.8)
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
    # two equal sets have intervals without width: a sample hardly ever hits a share exactly
    assert all(row.covered < 0.2 for row in found)


def test_only_public_files_are_read(here):
    (here / "public").rename(here / "elsewhere")
    rows = found(here / "elsewhere", replays=2, formula="c ~ a").rows
    both = [row for row in rows if row.covered == 1]
    assert 0.1 < both[0].standard_error < 0.2  # though both replays say the same


def test_processes_beside_give_as_many_replays(released):
    assert found(released, replays=2, scheduler="local").replays == 2


def test_what_cant_be_replayed(released, tmp_path):
    for replays in (1, True, 2.5):
        refuses("at least 2", certify, released, replays=replays)
    refuses("one synthetic set", certify, release_in(tmp_path / "one", Pairs(epsilon=1)))
    path = release_in(tmp_path / "two", LaplaceSanitizer(epsilon=1, n_sets=2)) / "public" / "privacy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mechanism": Modips.name}))
    refuses("can't be replayed", certify, tmp_path / "two")


def test_the_command_writes_and_says_what_holds(here, pdips):
    code, said, _ = pdips("certify", here, "--replays", 3)
    assert "holds     pairs" in said or "FAILS     pairs" in said
    written = Certificate.read(here / "public")
    assert written.replays == 3
    assert code == (3 if written.failing else 0)
    pdips.fails("nowhere", "certify", here / "nowhere")
    pdips.fails("wage", "certify", here, "--analysis", "c ~ wage")
