"""What no pair tells is in the intervals of ``ask``: of interactions and groups of two
columns, logits and logarithms of numbers that pairs know by intervals, and means of
numbers of which noise hides the largest. Tables and noise have fixed seeds.
"""

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from scipy.special import expit

import pdips
from pdips import Schema, Table
from pdips.outside import hidden_tails
from pdips.outside.interval_counts import IntervalCounts
from pdips.outside.questions import Formula, Summary
from pdips.outside.sets import beyond_pairs as allowance
from pdips.outside.sets.analyses import analysed, summary
from pdips.outside.sets.beyond_pairs import beyond_pairs, is_held, pairs_alone
from pdips.outside.sets.calibration import PairIntervals, calibrated
from pdips.outside.sets.records import SetRecords

SCHEMA = Schema.model_validate(
    {
        "columns": {
            "sex": {"levels": ["f", "m"]},
            "region": {"levels": ["north", "south"]},
            "area": {"levels": ["rural", "urban"]},
            "ill": {"levels": ["no", "yes"]},
        }
    }
)
N_RECORDS = 8_000
N_RELEASES = 6
AGED = Schema.model_validate(
    {
        "columns": {
            "age": {"lower": 0, "upper": 100},
            "ill": {"levels": ["no", "yes"]},
            "spent": {"lower": 0, "upper": 1_000},
        }
    }
)
CUTS = {
    "age": PairIntervals(np.array([0.0, 30, 50, 70])),
    "spent": PairIntervals(np.array([0.0, 5, 10, 20])),
}


def interacting() -> pd.DataFrame:
    """Region matters for men alone: no pair tells."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], N_RECORDS),
            "region": rng.choice(["north", "south"], N_RECORDS),
            "area": rng.choice(["rural", "urban"], N_RECORDS),
        }
    )
    both = (frame["sex"] == "m") & (frame["region"] == "south")
    ill = rng.random(N_RECORDS) < 0.2 + 0.08 * both
    return frame.assign(ill=np.where(ill, "yes", "no"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    table = Table(interacting(), SCHEMA)
    opened = []
    for seed in range(N_RELEASES):
        folder = tmp_path_factory.mktemp("pairs")
        mechanism = of_pairs(epsilon=4, delta="1e-6", n_sets=5)
        release, _ = mechanism.release(table, rng=np.random.default_rng(seed))
        release.publish(folder / "public", allow=["seeded"])
        opened.append(pdips.open(folder))
    return opened


def test_interactions_allow_for_what_no_pair_tells(folders, monkeypatch):
    # the interaction is .08, with a standard error of .019 in the table, and 0 by the
    # sets. Of six intervals of 95 % that are right four or fewer hold with probability
    # .03; the twin allows for nothing
    text = "(ill == 'yes') ~ sex * region"
    frame = interacting()
    records = SetRecords.of(frame, SCHEMA, ["ill", "sex", "region"], "level")
    truth = analysed(records, Formula.read(text, SCHEMA), "gaussian")[1]
    held = []
    for part in (allowance.OF_PRODUCTS, 0.0):
        monkeypatch.setattr(allowance, "OF_PRODUCTS", part)
        rows = [folder.ask(text).summary() for folder in folders]
        held.append(
            sum(
                (own["lower"] <= truth).iloc[-1] and (own["upper"] >= truth).iloc[-1]
                for own in rows
            )
        )
    assert held[0] >= 5
    assert held[1] <= 3


def test_what_pairs_tell_is_no_wider(folders):
    asked = Formula.read("(ill == 'yes') ~ sex * region + area", SCHEMA)
    folder = folders[0]
    part = pairs_alone(folder, asked, None)
    assert [len(term) for term in part.terms] == [1, 1, 1]
    records = SetRecords.of(folder.sets[0], SCHEMA, [*asked.columns], "level")
    names, _, variances = analysed(records, asked, "gaussian")
    allowed = dict(
        zip(names, beyond_pairs([records], asked, part, "gaussian"), strict=True)
    )
    # columns that have no part in the interaction aren't left open
    assert allowed["area[urban]"] < 0.1 * allowed[names[-1]]
    whole = allowance.OF_PRODUCTS * np.sqrt(N_RECORDS * variances[-1])
    assert allowed[names[-1]] == pytest.approx(whole, rel=1e-2)
    assert pairs_alone(folder, Formula.read("ill ~ sex + area", SCHEMA), None) is None
    assert (
        pairs_alone(folder, Summary.read("share(ill, by='sex')", SCHEMA), None) is None
    )
    # all terms go together with a column of weights, which no count does
    weighted = Formula.read("ill ~ sex", SCHEMA)
    assert pairs_alone(folder, weighted, "area") is weighted


def test_a_triple_that_was_counted_is_no_wider(tmp_path):
    mechanism = of_pairs(
        epsilon=4, delta="1e-6", n_sets=2, also=("sex", "region", "ill")
    )
    rng = np.random.default_rng(0)
    release, _ = mechanism.release(Table(interacting(), SCHEMA), rng=rng)
    release.publish(tmp_path / "public", allow=["seeded"])
    folder = pdips.open(tmp_path)
    assert is_held(folder, ["sex", "region", "ill"])
    assert not is_held(folder, ["sex", "area", "ill"])
    asked = Formula.read("ill ~ sex * region", SCHEMA)
    assert pairs_alone(folder, asked, None) is None


def aged(n: int = 40_000) -> tuple[SetRecords, SetRecords]:
    """Return records, and those of a set that knows age and spending by intervals."""
    rng = np.random.default_rng(3)
    age = rng.uniform(10, 100, n)
    ill = np.where(rng.random(n) < expit(0.12 * (age - 65)), "yes", "no")
    spent = np.exp(0.5 + 0.02 * age + rng.normal(0, 0.5, n)).clip(0, 1_000)
    columns = {"age": age, "ill": ill, "spent": spent}
    shuffled = dict(columns)
    for name, cuts in CUTS.items():
        own = columns[name]
        interval = np.searchsorted(cuts.lower, own, side="right")
        mixed = np.empty(n)
        mixed[np.argsort(interval, kind="stable")] = own[
            np.lexsort([rng.random(n), interval])
        ]
        shuffled[name] = mixed
    whole, of_set = (
        SetRecords.of(pd.DataFrame(one), AGED, [*AGED.columns], "level")
        for one in (columns, shuffled)
    )
    return whole, of_set


@pytest.mark.parametrize(
    ("text", "family", "slope", "bearable"),
    [
        # standard errors of .001 and .0002, of 20 to 50 more within intervals
        ("ill ~ age", "binomial", 0.12, 0.006),
        ("log(spent + 1) ~ age", "gaussian", None, 0.001),
    ],
)
def test_slopes_of_logits_and_logarithms_are_not_lost(text, family, slope, bearable):
    whole, of_set = aged()
    asked = Formula.read(text, AGED)
    truth = analysed(whole, asked, family)[1][1]
    assert slope is None or abs(truth - slope) < bearable
    assert abs(calibrated(of_set, asked, family, CUTS)[1][1] - truth) < bearable
    # the twin puts the means of intervals in place of numbers
    means = {}
    for name in {*asked.columns} & {"age"}:
        numbers = of_set.values[name].numbers
        own = CUTS[name].means_of(numbers, numbers, of_set.complete)
        means[name] = own.tilted
    twin = analysed(of_set.with_numbers(means), asked, family)[1][1]
    assert abs(twin - truth) > bearable


@pytest.mark.parametrize(("error", "is_held"), [(40.0, True), (1.0, False)])
def test_means_allow_for_records_that_noise_hides(monkeypatch, error, is_held):
    # 20 of 3,000 records spend 900, others 40: a set has none of the 20. Noise of 40
    # hides them, and the twin believes that noise of 1 did
    rng = np.random.default_rng(7)
    spent = rng.gamma(2, 20, 3_000).clip(0, 1_000)
    ill = rng.choice(["no", "yes"], 3_000)
    frame = pd.DataFrame({"age": 40.0, "ill": ill, "spent": spent})
    far = frame.copy()
    far.loc[:19, "spent"] = 900
    lower = np.arange(0.0, 1_000, 50)
    rows = pd.DataFrame({"lower": lower, "upper": lower + 50})
    rows["noisy"] = np.histogram(spent, np.append(lower, 1_000))[0]
    counts = IntervalCounts.of_rows(
        "spent", AGED.columns["spent"], rows.assign(variance=error**2), (3_000.0, 0.0)
    )
    monkeypatch.setattr(hidden_tails.IntervalCounts, "of", lambda *_given: counts)
    for text in ("mean(spent)", "mean(spent, by=['ill'])", "sd(spent)", "total(spent)"):
        asked = Summary.read(text, AGED)
        of_set, whole = (
            SetRecords.of(one, AGED, [*asked.columns], "level") for one in (frame, far)
        )
        less, more = hidden_tails.untold_by_tails(None, of_set, asked, "gaussian")
        estimate = summary(of_set, asked)[1]
        truth = summary(whole, asked)[1]
        holds = (estimate - less <= truth) & (truth <= estimate + more)
        assert holds.all() == is_held


def test_deviations_of_sets_are_those_of_their_records():
    rng = np.random.default_rng(5)
    values = rng.gamma(2, 20, 4_000).clip(0, 1_000)
    ill = rng.choice(["no", "yes"], 4_000)
    frame = pd.DataFrame({"age": 40.0, "ill": ill, "spent": values})
    asked = Summary.read("sd(spent, by=['ill'])", AGED)
    records = SetRecords.of(frame, AGED, [*asked.columns], "level")
    names, estimates, variances = summary(records, asked)
    grouped = frame.groupby("ill")["spent"]
    assert names == ["ill[no]", "ill[yes]"]
    np.testing.assert_allclose(estimates, grouped.std(ddof=0), rtol=1e-12)
    # the error of a deviation by 300 bootstrap samples, right within 4 % each (95 %)
    own = values[ill == "no"]
    drawn = [rng.choice(own, len(own)).std() for _ in range(300)]
    assert np.sqrt(variances[0]) == pytest.approx(np.std(drawn), rel=0.2)
