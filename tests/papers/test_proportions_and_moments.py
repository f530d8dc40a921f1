"""Simulations 1 and 2 of Bowen and Liu (2020): laws and prices of rows that no
mechanism ships, and small runs.

Each check of laws accepts a true one but once in a million (seeds are fixed) and comes
with a broken twin.
"""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from laws import ACCEPT, REJECT, chi_square, two_samples
from scipy import stats
from tables import bits, cases

from pdips import Schema, Table, registry
from pdips.registry import find
from pdips_papers import find as find_study
from pdips_papers.harness.batch import release_each, stacked
from pdips_papers.harness.curves import EPSILONS, batches, short
from pdips_papers.harness.study import Options
from pdips_papers.modips import normal_moments, proportions
from pdips_papers.modips.normal_moments import STEPS, Sample
from pdips_papers.modips.proportions import N_SETS, repaired_scale

N, ONES, RUNS = 6, 2, 3000
EPSILON = Fraction(3)
"""Of one set; the studies get five times as much for their five."""

X = np.array([-2.9, -2.0, -1.1, 0.3, 0.9, 3.9])


def truncated(ones, n, scale):
    """The law of discrete Laplace noise drawn again until the count is in [0, n]."""
    weight = np.exp(-np.abs(np.arange(n + 1) - ones) / float(scale))
    return weight / weight.sum()


def test_redrawn_counts_have_their_exact_law():
    for method, scale in (
        ("laplace-redrawn-published", 1 / EPSILON),
        ("laplace-redrawn", repaired_scale(EPSILON)),
    ):
        ones = proportions.METHODS[method](
            np.full(RUNS, ONES), N, N_SETS * EPSILON, bits(1)
        ).ravel()
        law, wrong = truncated(ONES, N, scale), truncated(ONES, N, 1.3 * float(scale))
        padded = [
            lambda k, law=law: np.where((k >= 0) & (k <= N), law[np.clip(k, 0, N)], 0.0)
            for law in (law, wrong)
        ]
        assert chi_square(ones, padded[0]) > ACCEPT
        assert chi_square(ones, padded[1]) < REJECT


@pytest.mark.parametrize("n", [2, 40])
@pytest.mark.parametrize("epsilon", [Fraction(1, 100), Fraction(1, 5), Fraction(3)])
def test_redrawing_costs_what_the_page_says(n, epsilon):
    def loss(scale):
        return np.abs(
            np.diff(
                np.log([truncated(ones, n, scale) for ones in range(n + 1)]), axis=0
            )
        ).max()

    assert loss(repaired_scale(epsilon)) <= epsilon * (1 + 1e-9)
    bound = float(epsilon) + math.log(2 - math.exp(-epsilon))
    # the published scale overspends
    assert epsilon < loss(1 / epsilon) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("n", [2, 5, 20])
def test_sensitivities_of_the_moments_are_tight(n):
    # sums of one record at the ends against the other, whatever the rest: corners
    # suffice, as all three are convex
    half, most = STEPS // 2, np.zeros(3)
    for n_high in range(n):
        rest = np.array([half] * n_high + [-half] * (n - 1 - n_high))
        for a in (-half, 0, half):
            for b in (-half, 0, half):
                old, new = (np.append(rest, value).astype(object) for value in (a, b))
                change = [
                    abs(new.sum() - old.sum()),
                    abs(
                        (n * (new**2).sum() - new.sum() ** 2)
                        - (n * (old**2).sum() - old.sum() ** 2)
                    ),
                    abs((new**2).sum() - (old**2).sum()),
                ]
                most = np.maximum(most, np.array(change, dtype=float))
    assert most[0] == STEPS
    assert most[1] == (n - 1) * STEPS**2
    assert most[2] == half**2


def test_noise_on_the_moments_has_the_stated_size(monkeypatch):
    monkeypatch.setattr(
        normal_moments,
        "_from_moments",
        lambda sample, mean, variance, bits: (mean, variance),
    )
    share = 1 / (2 * N_SETS)
    for method, spread in (
        (normal_moments.moments_as_printed, 7**2 / N / share),
        (normal_moments.moments_about_the_middle, None),
    ):
        mean, variance = method(
            Sample(np.tile(X, (RUNS, 1)), -3, 4, 3), Fraction(1), bits()
        )
        size = math.sqrt(2) * 7 / N / share
        assert mean.std() == pytest.approx(size, rel=0.05)
        if spread is not None:
            assert variance.std() == pytest.approx(math.sqrt(2) * spread, rel=0.05)
        # unbiased, to within five standard errors
        assert abs(variance.mean() - X.var(ddof=1)) < 5 * variance.std() / math.sqrt(
            variance.size
        )


def test_epsilons_are_those_of_the_paper():
    assert [round(math.log(float(epsilon)), 4) for epsilon in EPSILONS] == list(
        range(-4, 5)
    )
    assert short(EPSILONS[0]) == "e⁻⁴"
    assert short("0.5") == "0.5"
    assert batches(2500, 1000) == [1000, 1000, 500]
    assert batches(1000, 1000) == [1000]


@pytest.mark.parametrize(("n", "median"), normal_moments.PUBLIC_BINS.items())
def test_rules_for_bins_have_the_papers_medians_and_numpys_numbers(n, median):
    x = np.clip(np.random.default_rng(4).standard_normal((400, n)), -4, 4)
    sample = Sample(x, -4, 4, median)
    for rule, other in (("sturges", "sturges"), ("freedman-diaconis", "fd")):
        widths = [
            np.ptp(row) / (len(np.histogram_bin_edges(row, other)) - 1) for row in x
        ]
        # numpy rounds the number of bins of the sample's range up
        if rule == "freedman-diaconis":
            widths = [
                2 * np.subtract(*np.percentile(row, [75, 25])) * n ** (-1 / 3)
                for row in x
            ]
            expected = np.ceil(8 / np.array(widths))
        else:
            expected = np.ptp(x, axis=1) / np.array(widths)
        assert (
            normal_moments.numbers_of_bins(sample, rule).tolist()
            == np.rint(expected).tolist()
        )
    narrow = Sample(np.clip(x, -3, 4), -3, 4, median)
    both = np.concatenate(
        [normal_moments.numbers_of_bins(each) for each in (sample, narrow)]
    )
    assert abs(np.median(both) - median) <= 1  # Scott's, over both pairs of bounds


@pytest.mark.parametrize(
    ("method", "wide"), [("modips-published-wide", True), ("modips-published", False)]
)
def test_with_wide_bounds_a_negative_count_leaves_no_ones(method, wide):
    made = proportions.METHODS[method](
        np.zeros(RUNS, dtype=np.int64), 1000, Fraction(1, 2), bits(3)
    )
    # probability of a noisy count from 0 on
    from_zero = 1 / (1 + math.exp(-1 / (2 * N_SETS)))
    error = math.sqrt(from_zero * (1 - from_zero) / made.size)
    # bounded at 0, Beta(1/3, n) still gives ones
    assert ((made > 0).mean() < from_zero + 4 * error) == wide


# Rows of studies that bear the name of a shipped mechanism are releases of it, one by
# one or in batches


SINGLE = 400


class ReachedError(Exception):
    """The study asked for the mechanism."""


STUDIES = cases(__file__, "studies")


@pytest.mark.parametrize(
    ("study", "name"),
    [(study, name) for study, names in STUDIES.items() for name in names],
)
def test_a_study_calls_the_mechanism_that_its_rows_are_named_after(
    study, name, monkeypatch
):
    class Stub:
        variants = find(name).variants
        __dataclass_fields__ = find(name).__dataclass_fields__

        def __init__(self, **settings):
            raise ReachedError

    monkeypatch.setitem(registry.MECHANISMS, name, Stub)
    found = find_study(study)
    if study == "heavy-tailed":
        found = type(found)(rows=("kng-residual",), n=50, n_resplits=2)
    arguments = dict(found.tasks(Options(replicates=1, epsilons=("1",)))[0].arguments)
    if study == "censored-beta":
        arguments |= {"n": 20, "draws": 10, "claimed": []}
    if study == "model-mechanisms" and name != "censored-posterior":
        arguments["censored"] = []
    with pytest.raises(ReachedError):
        found.run(arguments, 1)


def in_first_bin(values):
    return np.sum(np.asarray(values) < -3 + 7 / 3, axis=-1)


def batch(study, row, epsilon, module=None):
    """What a study's batch makes of many copies of one table: ones, or records in the
    first of three bins.
    """
    n_sets = dict(study.SHIPPED[row][1]).get("n_sets", 1)
    values, column = one_table(study)
    made = study.shipped(
        row,
        stacked(np.tile(values, (RUNS // n_sets, 1)), column),
        n_sets * epsilon,
        bits(1),
    )
    return (made if study is proportions else in_first_bin(made)).ravel()


def one_table(study):
    if study is proportions:
        return (np.arange(N) < ONES).astype(float), {"levels": [0, 1]}
    return X, {"lower": -3, "upper": 4, "bins": 3}


def one_by_one(study, row):
    """The same of releases of that table by the mechanism that the row is named
    after.
    """
    values, column = one_table(study)
    table = Table(pd.DataFrame({"x": values}), Schema(columns={"x": column}))
    mechanism, rng = find(NAMED[row])(epsilon=EPSILON), np.random.default_rng(2)
    sets = [
        mechanism.release(table, rng=rng)[0].sets[0]["x"].to_numpy(dtype=float)
        for _ in range(SINGLE)
    ]
    return in_first_bin(sets) if study is normal_moments else np.sum(sets, axis=1)


NAMED = cases(__file__, "named")
"""What rows are named after, written out here once more: a row that calls another
mechanism fails.
"""

ROWS = [
    (study, row) for study in (proportions, normal_moments) for row in study.SHIPPED
]


@pytest.mark.slow_cases(
    "laplace-both-counts",
    "multinomial-dirichlet",
    "perturbed-histogram",
    "sanitizer-on-bins",
)
@pytest.mark.parametrize(("study", "row"), ROWS, ids=[row for _, row in ROWS])
def test_a_batch_has_the_law_of_single_releases(study, row, monkeypatch):
    single = one_by_one(study, row)
    assert two_samples(batch(study, row, EPSILON), single) > ACCEPT
    # the broken twin: a thirtieth of the epsilon
    assert two_samples(batch(study, row, EPSILON / 30), single) < REJECT
    other = "mcclure-reiter" if NAMED[row] != "mcclure-reiter" else "laplace-sanitizer"
    settings = {} if other == "mcclure-reiter" else {"n_sets": 1}
    # another mechanism under the name of the row
    monkeypatch.setitem(study.SHIPPED, row, (other, settings))
    assert (
        NAMED[row] == "smoothed-histogram"
        or two_samples(batch(study, row, EPSILON), single) < REJECT
    )


def test_tables_of_a_batch_are_apart():
    # the broken twin: tables that shared noise or records would move together
    records = np.repeat([[0.0] * 4, [1.0] * 4], 50, axis=0)
    mechanism = find("laplace-sanitizer")(epsilon=10_000, n_sets=3, split="per-set")
    made = release_each(
        mechanism, stacked(records, {"levels": [0, 1]}), np.random.default_rng(0)
    )
    assert made.shape == (100, 3, 4)
    np.testing.assert_array_equal(made, np.repeat(records[:, None], 3, axis=1))
    alike = stacked(records[:50], {"levels": [0, 1]})
    loud = release_each(
        find("laplace-sanitizer")(epsilon="0.5"), alike, np.random.default_rng(0)
    )
    assert len(np.unique(loud.sum(axis=2))) > 2


def test_laws_of_urns_are_exact_in_batches():
    alpha = N / np.expm1(float(EPSILON))
    ones = batch(proportions, "multinomial-dirichlet", EPSILON)
    assert (
        chi_square(ones, stats.betabinom(N, alpha + ONES, alpha + N - ONES).pmf)
        > ACCEPT
    )
    # a twin of 10 times the prior scores above REJECT with probability below 1e-40
    assert (
        chi_square(
            ones, stats.betabinom(N, 10 * alpha + ONES, 10 * alpha + N - ONES).pmf
        )
        < REJECT
    )
    a = 1 / np.expm1(float(EPSILON) / N)
    ones = batch(proportions, "mcclure-reiter", EPSILON)
    assert chi_square(ones, stats.binom(N, (ONES + a) / (N + 2 * a)).pmf) > ACCEPT
    assert chi_square(ones, stats.binom(N, ONES / N).pmf) < REJECT
