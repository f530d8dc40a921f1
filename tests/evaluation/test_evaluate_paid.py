"""The paid evaluation: its price by enumeration, exact figures against other code, the
ledger, nothing confidential.
"""

import itertools
import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tables import (
    N_SENTINELS,
    SENTINEL_SCHEMA,
    cases,
    confidential_table,
    refuses,
    sentinels,
    shown,
    text_of,
)

from pdips import LaplaceSanitizer, Ledger, Margins, Schema, Table
from pdips.evaluation.document import open_release
from pdips.evaluation.encoding import codes_of, table_codes
from pdips.evaluation.margins import k_way
from pdips.evaluation.paid import (
    FILE,
    PaidEvaluation,
    evaluate_paid,
    fit_public_score,
    ks_steps,
    margins_steps,
    rounded,
    steps_of,
)
from pdips.privacy.account import Receipt
from pdips.privacy.replay import exact_law
from pdips.report.pages import write_card

TINY = Schema.from_toml(
    '[columns.a]\nlevels = ["x", "y"]\n[columns.b]\nlevels = [1, 2, 3]\n'
)
RECORDS = list(itertools.product(range(2), range(3)))


def decoded(codes) -> pd.DataFrame:
    return pd.DataFrame(
        {"a": [("x", "y")[a] for a, _ in codes], "b": [b + 1 for _, b in codes]}
    )


SETS = (decoded([(0, 0), (1, 2), (1, 1), (0, 0)]), decoded([(1, 0), (0, 2), (0, 1)]))
"""Of four and of three records, while the tables have three: shares don't come out
even.
"""


SCORE = fit_public_score(SETS, TINY)
OTHERS = [codes_of(frame, TINY) for frame in SETS]


@pytest.mark.parametrize("cap", [1, 2])
def test_the_price_by_enumeration(cap):
    # any tables of three records, up to ``cap`` of them apart; discrete Laplace noise
    # of one scale: the worst log ratio over all outputs is the l1 distance over the
    # scale
    tables = list(itertools.combinations_with_replacement(RECORDS, 3))
    measured = {
        table: np.array(steps_of(np.array(table), OTHERS, SCORE)) for table in tables
    }
    pairs = [
        pair
        for pair in itertools.combinations(tables, 2)
        if (Counter(pair[1]) - Counter(pair[0])).total() <= cap
    ]
    moves = np.array(
        [np.abs(measured[first] - measured[second]) for first, second in pairs]
    )
    schema = TINY.model_copy(
        update={"records": TINY.records.model_copy(update={"max_per_person": cap})}
    )
    scale = PaidEvaluation(epsilon="0.7", n_sets=2).plan(schema).steps[0].scale
    worst = int(moves.sum(axis=1).max())
    assert worst / scale <= Fraction("0.7")
    assert moves.max() == cap
    # the broken twin: noise for one measure only
    assert worst / (scale / 2) > Fraction("0.7")


def test_the_price_is_nearly_attained():
    # tables of 40 records: one that moves both measures by a whole step, so that no
    # smaller scale would do
    rng, found = np.random.default_rng(0), 0
    for _ in range(200):
        table = np.array([RECORDS[j] for j in rng.integers(6, size=40)])
        neighbour = table.copy()
        neighbour[0] = RECORDS[rng.integers(6)]
        moved = np.abs(
            np.subtract(*(steps_of(each, OTHERS, SCORE) for each in (table, neighbour)))
        )
        assert moved.max() <= 1
        found = max(found, int(moved.sum()))
    assert found == 2


def test_rounding_moves_by_whole_steps_where_half_to_even_doesnt():
    assert [rounded(Fraction(k, 20), 10) for k in (1, 3, 5)] == [1, 2, 3]
    for numerator in range(200):
        distance = Fraction(numerator, 300)
        assert abs(rounded(distance + Fraction(1, 10), 10) - rounded(distance, 10)) == 1
    # the broken twin: half-to-even takes 1/2 to 0 and 3/2 to 2, two steps for one
    assert round(1.5) - round(0.5) == 2


def test_exact_figures_are_those_of_other_code_and_by_hand():
    rng, n = np.random.default_rng(1), 37
    table = Table(decoded([RECORDS[j] for j in rng.integers(6, size=n)]), TINY)
    ks, tvd = steps_of(table_codes(table), OTHERS, SCORE)
    ours, theirs = SCORE.of(table_codes(table)), [SCORE.of(other) for other in OTHERS]
    assert ks == math.floor(
        n * np.mean([stats.ks_2samp(ours, other).statistic for other in theirs]) + 0.5
    )
    margins = [
        *k_way(table, SETS, 1)["by_margin"].values(),
        *k_way(table, SETS, 2)["by_margin"].values(),
    ]
    assert tvd == math.floor(n * np.mean(margins) + 0.5)
    first, second = np.array([0, 0, 1, 2]), np.array([0, 2])
    assert ks_steps(first, [second]) == 1  # 3/4 against 1/2
    # the mean of 1/4 and 1, 2.5 steps, rounded up
    assert ks_steps(first, [second, first[:0]]) == 3
    codes, other = np.array([[0, 0], [1, 0]]), np.array([[0, 1]])
    # 1/2, 1, 1: 5/6, of 2 records 1.67
    assert margins_steps(codes, [other], [2, 2]) == 2
    assert margins_steps(codes, [codes], [2, 2]) == 0


def test_the_score_is_of_the_sets_alone_and_of_one_record_at_a_time():
    codes = np.array(RECORDS)
    np.testing.assert_array_equal(SCORE.of(codes[::-1])[::-1], SCORE.of(codes))
    np.testing.assert_array_equal(SCORE.of(codes[2:3]), SCORE.of(codes)[2:3])
    np.testing.assert_array_equal(
        fit_public_score(SETS, TINY).coefficients, SCORE.coefficients
    )
    # it is about the log density of the sets: what they have most has the highest score
    many = decoded([(0, 0)] * 60 + [(1, 2)] * 30 + [(1, 0)] * 6 + [(0, 2)] * 3)
    assert (
        np.diff(
            fit_public_score([many], TINY).of(
                np.array([(0, 0), (1, 2), (1, 0), (0, 2)])
            )
        )
        < 0
    ).all()


def test_what_a_score_cant_be_made_of_is_refused():
    refuses("at least one synthetic record", fit_public_score, [SETS[0].iloc[:0]], TINY)
    wide = Schema.from_toml("[columns.a]\nlower = 0\nupper = 1\nbins = 5001\n")
    refuses(
        "at most 5,000 levels", fit_public_score, [pd.DataFrame({"a": [0.5]})], wide
    )
    middling = Schema.from_toml(
        "".join(f"[columns.c{i}]\nlower = 0\nupper = 1\nbins = 70\n" for i in range(3))
    )
    frame = pd.DataFrame(
        np.random.default_rng(0).random((50, 3)), columns=["c0", "c1", "c2"]
    )
    assert not fit_public_score([frame], middling).interactions


# ---- a release on disk ----


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("released")
    table = Table(confidential_table(), SENTINEL_SCHEMA)
    table.frame.to_parquet(folder / "t.parquet")
    release, _ = Margins(epsilon=1, n_sets=2).release(table)
    release.publish(folder / "out" / "public")
    return folder


def paid(here, *more: object, epsilon: object = 1, ledger: str = ""):
    found = [
        "evaluate",
        here / "t.parquet",
        here / "out",
        "--paid-epsilon",
        epsilon,
        *more,
    ]
    return [*found, "--ledger", here / ledger] if ledger else found


@pytest.fixture
def ledger(here):
    ledger = Ledger(here / "l.sqlite")
    ledger.set_total(2)
    return ledger


def test_a_paid_evaluation_is_charged_and_published(pdips, here, ledger):
    out = pdips.ok(*paid(here, ledger="l.sqlite"))
    assert "may be published" in out
    assert "1 of 2 spent" in out
    (entry,) = ledger.entries()
    price = entry.price
    assert (entry.mechanism, price.epsilon, price.kind) == ("evaluate", 1, "pure")
    assert (entry.end, ledger.resumable()) == ("finished", [])
    assert [spend.epsilon for spend in entry.spends] == [Fraction(1, 2)] * 2
    before = (here / "out/public" / FILE).read_text()
    found = json.loads(before)
    assert found["privacy"]["epsilon"] == 1
    assert Receipt(**found["receipt"]) == entry.receipt(ledger.name())
    # 2 measures x 2 records / 1
    assert "discrete Laplace noise of scale 4 parts" in found["privacy"]["statement"]
    assert len(found["measures"]) == 2
    assert all(0 <= one["value"] <= 1 for one in found["measures"])
    assert {path.name for path in (here / "out").iterdir()} == {"public"}
    pdips.fails("pays again", *paid(here, ledger="l.sqlite"))  # and replaces nothing
    assert len(ledger.entries()) == 1
    assert (here / "out/public" / FILE).read_text() == before


def test_pages_that_cant_be_written_leave_figures_charged_and_say_so(
    pdips, here, ledger
):
    (here / "out/confidential").mkdir()
    (here / "out/confidential/run.json").write_text("{")
    (here / "out/confidential/report.html").touch()
    write_card(here / "out/public")
    code, out, err = pdips(*paid(here, epsilon="0.25", ledger="l.sqlite"))
    assert (code, err.count("\n")) == (2, 1)
    assert "run.json is damaged" in err
    assert "published and charged: mend it, then `pdips report DIR`" in err
    assert "may be published" in out
    assert (
        json.loads((here / "out/public" / FILE).read_text())["privacy"]["epsilon"]
        == 0.25
    )
    assert "1.25" in (here / "out/public/card.html").read_text()
    assert len(ledger.entries()) == 1


def test_nothing_confidential_is_published_by_either_evaluation(pdips, here):
    frame = confidential_table()
    out = pdips.ok(*paid(here))
    assert pdips("evaluate", here / "t.parquet", here / "out")[0] == 0
    words = sentinels(frame, "replace-one")
    for path in (here / "out/public").iterdir():
        assert not shown(words, text_of(path), synthetic=path.suffix == ".parquet"), (
            path.name
        )
    assert not shown(words, out)
    inside = json.loads((here / "out/confidential/evaluation.json").read_text())
    public = (here / "out/public" / FILE).read_text()
    values = {
        repr(value)
        for measure in inside["general"]
        for value in (measure["mean"], measure["reference"], *measure["by_set"])
        # noisy figures are whole parts of the number of records
        if value is not None
        and abs(value * N_SENTINELS - round(value * N_SENTINELS)) > 1e-6
    }
    assert len(values) > 10  # sets are random
    assert not [value for value in values if value in public]
    # the same search must find what does hold confidential figures
    assert [
        value
        for value in values
        if value in (here / "out/confidential/evaluation.json").read_text()
    ]


def test_the_noise_has_the_scale_of_the_statement(here):
    opened, table = (
        open_release(here / "out"),
        Table(confidential_table(), SENTINEL_SCHEMA),
    )
    others = [codes_of(frame, opened.schema) for frame in opened.sets]
    exact = steps_of(
        table_codes(table), others, fit_public_score(opened.sets, opened.schema)
    )
    (outcome,) = exact_law(
        PaidEvaluation(epsilon=1, n_sets=2, published=opened), table
    ).outcomes
    # 2 measures x 2 records / 1
    assert (outcome.statistics, outcome.scales) == (exact, (4, 4))
    seeded, again = (
        evaluate_paid(
            here / "t.parquet", here / "out", epsilon=1, rng=np.random.default_rng(5)
        )
        for _ in range(2)
    )
    assert seeded.measures == again.measures
    # e^-20
    assert all(
        abs(one.noisy_steps - true) < 4 * 20
        for one, true in zip(seeded.measures, exact, strict=True)
    )
    assert "MADE FROM A SEED" in seeded.privacy.statement
    assert not (here / "out/public" / FILE).exists()


def test_an_evaluation_without_a_release_has_a_price_and_no_figures():
    price = PaidEvaluation(epsilon=1, n_sets=2)
    assert [spend.epsilon for spend in price.spends(TINY)] == [Fraction(1, 2)] * 2
    refuses("needs the published release", price.release, Table(SETS[0], TINY))


def test_another_table_or_other_neighbours_in_the_ledger_are_refused(pdips, here):
    other = Table(confidential_table().iloc[:-1], SENTINEL_SCHEMA)
    LaplaceSanitizer(epsilon=1).release(other, ledger=Ledger(here / "l.sqlite"))
    assert "the table is refused" in pdips(*paid(here, ledger="l.sqlite"))[2]
    assert ("belongs to another table") in pdips(
        *paid(here, "--explain", ledger="l.sqlite")
    )[2]
    attempts = [
        (one.mechanism, one.outcome, one.explained)
        for one in Ledger(here / "l.sqlite").attempts()[1:]
    ]
    assert attempts == [("evaluate", "refused", False), ("evaluate", "refused", True)]
    Ledger(here / "m.sqlite").set_total(5, neighbours="add-remove")
    assert "can't hold a replace-one loss" in pdips(*paid(here, ledger="m.sqlite"))[2]
    assert not (here / "out/public" / FILE).exists()


@pytest.mark.parametrize("blocked", ["ledger", f".{FILE}", f"public/{FILE}"])
def test_what_cant_be_paid_or_written_is_never_charged(
    pdips, here, ledger, monkeypatch, blocked
):
    write = Path.write_text

    def full(path, *args, **kwargs):
        if path == here / "out" / blocked:
            raise OSError(28, "No space left on device")
        return write(path, *args, **kwargs)

    if blocked == "ledger":
        ledger.set_total("0.5")
    elif blocked.startswith("public"):
        monkeypatch.setattr(Path, "write_text", full)
    else:
        (here / "out" / blocked).mkdir()
    message, code = (
        ("would be overspent", 3) if blocked == "ledger" else ("nothing was charged", 2)
    )
    pdips.fails(message, *paid(here, ledger="l.sqlite"), code=code)
    assert ledger.entries() == []
    assert not (here / "out/public" / FILE).exists()


@pytest.mark.parametrize("epsilon", ["0", "-1", "nan", "much", "1e7", "1e-16"])
def test_prices_that_are_none_are_refused(pdips, here, epsilon):
    pdips.fails("--paid-epsilon", *paid(here, epsilon=epsilon))
    assert not (here / "out/public" / FILE).exists()


@pytest.mark.parametrize(
    ("changes", "message"), cases(__file__, "releases_that_stay_inside")
)
def test_releases_whose_evaluation_couldnt_be_published_are_refused(
    pdips, here, changes, message
):
    path = here / "out/public/privacy.json"
    facts = json.loads(path.read_text())
    for part in (facts["privacy"], facts):
        part |= {key: value for key, value in changes.items() if key in part}
    path.write_text(json.dumps(facts))
    pdips.fails(message, *paid(here), code=3)


def test_sets_that_stayed_inside_are_refused(pdips, here):
    (here / "out/public").rename(here / "out/confidential")
    assert pdips(*paid(here))[0] == 3
    refuses("replace-one", PaidEvaluation, epsilon=1, n_sets=1, neighbours="add-remove")
