"""The studies' fast loops against the mechanisms that they stand for, and their prices.

Each check of laws accepts a true one but once in a million (seeds are fixed) and comes with a broken twin.
"""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from laws import ACCEPT, REJECT, chi_square, two_samples
from scipy import stats
from tables import bits, schema_of, table_of

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.margins.consistency import nonnegative
from pdips.registry import MECHANISMS, find
from pdips_papers import find as find_study
from pdips_papers.harness.epsilon_curves import EPSILONS, batches, epsilons_of, short
from pdips_papers.harness.framework import Options
from pdips_papers.modips import normal_moments, proportions
from pdips_papers.modips.normal_moments import PUBLIC_BINS, STEPS, Sample, nearest_shares, rounded
from pdips_papers.modips.proportions import N_SETS, repaired_scale

N, ONES, RUNS = 6, 2, 3000
EPSILON = Fraction(3)
"""Of one set; the studies get five times as much for their five."""


def fast_ones(method, epsilon=N_SETS * EPSILON, ones=ONES, seed=1):
    """Ones in the sets of many replicates of one table, by a study's loop."""
    return proportions.METHODS[method](np.full(RUNS, ones), N, epsilon, bits(seed)).ravel()


def binary_table():
    return table_of([(int(i < ONES),) for i in range(N)], schema_of(2))


def released(mechanism, table, count, runs=600):
    """What ``count`` finds in the sets of as many releases."""
    rng = np.random.default_rng(2)
    return np.array([count(mechanism.release(table, rng=rng)[0].sets[0]) for _ in range(runs)])


def test_multinomial_dirichlet_has_its_exact_law():
    alpha = N / math.expm1(EPSILON)
    ones = fast_ones("multinomial-dirichlet")
    assert chi_square(ones, stats.betabinom(N, alpha + ONES, alpha + N - ONES).pmf) > ACCEPT
    assert chi_square(ones, stats.betabinom(N, 3 * alpha + ONES, 3 * alpha + N - ONES).pmf) < REJECT


def test_mcclure_reiter_has_its_exact_law():
    alpha = 1 / math.expm1(EPSILON / N)
    ones = fast_ones("mcclure-reiter", EPSILON)
    assert chi_square(ones, stats.binom(N, (ONES + alpha) / (N + 2 * alpha)).pmf) > ACCEPT
    assert chi_square(ones, stats.binom(N, ONES / N).pmf) < REJECT


def truncated(ones, n, scale):
    """The law of discrete Laplace noise drawn again until the count is in [0, n]."""
    weight = np.exp(-np.abs(np.arange(n + 1) - ones) / float(scale))
    return weight / weight.sum()


def test_redrawn_counts_have_their_exact_law():
    for method, scale in (
        ("laplace-redrawn-published", 1 / EPSILON),
        ("laplace-redrawn", repaired_scale(EPSILON)),
    ):
        ones = fast_ones(method)
        law, wrong = truncated(ONES, N, scale), truncated(ONES, N, 1.3 * float(scale))
        padded = [lambda k, law=law: np.where((k >= 0) & (k <= N), law[np.clip(k, 0, N)], 0.0) for law in (law, wrong)]
        assert chi_square(ones, padded[0]) > ACCEPT
        assert chi_square(ones, padded[1]) < REJECT


@pytest.mark.parametrize("n", [2, 40])
@pytest.mark.parametrize("epsilon", [Fraction(1, 100), Fraction(1, 5), Fraction(3)])
def test_redrawing_costs_what_the_page_says(n, epsilon):
    def loss(scale):
        logs = np.log([truncated(ones, n, scale) for ones in range(n + 1)])
        return np.abs(np.diff(logs, axis=0)).max()

    assert loss(repaired_scale(epsilon)) <= epsilon * (1 + 1e-9)
    bound = float(epsilon) + math.log(2 - math.exp(-epsilon))
    assert epsilon < loss(1 / epsilon) <= bound * (1 + 1e-9)  # the published scale overspends


def test_one_count_costs_epsilon_and_its_broken_twin_more():
    counts, scale = np.arange(-200, 300), N_SETS / Fraction(1)
    logs = [-np.abs(counts - ones) / float(scale) for ones in (ONES, ONES + 1)]
    assert N_SETS * np.abs(logs[0] - logs[1]).max() == pytest.approx(1)
    assert np.abs(2 * (logs[0] - logs[1])).max() * N_SETS == pytest.approx(
        2
    )  # noise on both: one set of epsilon / 5 each


X = np.array([-2.9, -2.0, -1.1, 0.3, 0.9, 3.9])
THREE_BINS = {"columns": {"x": {"lower": -3, "upper": 4, "bins": 3}}}


def in_first_bin(values):
    return np.sum(np.asarray(values) < -3 + 7 / 3, axis=-1)


def sample_of(x=X, n_bins=3):
    return Sample(np.tile(x, (RUNS, 1)), -3, 4, n_bins)


def fast_first_bin(method, epsilon, x=X):
    return in_first_bin(normal_moments.METHODS[method](sample_of(x), epsilon, bits(3))).ravel()


def numbers_table():
    import pandas as pd

    return Table(pd.DataFrame({"x": X}), Schema.model_validate(THREE_BINS))


def ones_of(frame):
    return int(frame["a"].sum())


def first_of(frame):
    return int(in_first_bin(frame["x"]))


def of_releases(table, count):
    """How to draw from a mechanism by whole releases."""
    return lambda mechanism: released(mechanism, table(), count)


def of_runs(table, cell):
    """How to draw from a mechanism whose raw output is the synthetic counts."""
    return lambda mechanism: mechanism.observe(table(), RUNS, bits(2))[:, cell]


STAND_INS = [
    ("laplace-sanitizer", of_releases(binary_table, ones_of), partial(fast_ones, "laplace-both-counts"), N_SETS),
    ("multinomial-dirichlet", of_runs(binary_table, 1), partial(fast_ones, "multinomial-dirichlet"), N_SETS),
    ("mcclure-reiter", of_runs(binary_table, 1), partial(fast_ones, "mcclure-reiter"), 1),
    ("laplace-sanitizer", of_releases(numbers_table, first_of), partial(fast_first_bin, "sanitizer-on-bins"), N_SETS),
    (
        "perturbed-histogram",
        of_releases(numbers_table, first_of),
        partial(fast_first_bin, "perturbed-histogram"),
        N_SETS,
    ),
    ("smoothed-histogram", of_runs(numbers_table, 0), partial(fast_first_bin, "smoothed-histogram"), 1),
]
"""A mechanism, how to draw from it, the loop that stands in for it, and how many sets share the loop's epsilon."""


@pytest.mark.parametrize(
    ("name", "draw", "loop", "n_sets"),
    [pytest.param(*case, id=f"{case[2].args[0]}") for case in STAND_INS if case[0] in MECHANISMS],
)
def test_the_loop_has_the_law_of_the_mechanism(name, draw, loop, n_sets):
    real = draw(find(name)(epsilon=EPSILON))
    assert two_samples(loop(n_sets * EPSILON), real) > ACCEPT
    assert two_samples(loop(n_sets * EPSILON / 8), real) < REJECT  # the broken twin: an eighth of the epsilon


def test_smoothing_has_its_exact_law():
    a = 1 / math.expm1(EPSILON / N)
    ones = fast_first_bin("smoothed-histogram", EPSILON)
    assert chi_square(ones, stats.binom(N, (3 + a) / (N + 3 * a)).pmf) > ACCEPT
    assert chi_square(ones, stats.binom(N, 3 / N).pmf) < REJECT


def test_a_histogram_without_counts_is_drawn_evenly():
    ones = in_first_bin(
        normal_moments._perturbed(sample_of(), np.full((RUNS, 3), -(10**6)), Fraction(1), bits())
    ).ravel()
    assert chi_square(ones, stats.binom(N, 1 / 3).pmf) > ACCEPT
    assert chi_square(ones, stats.binom(N, 0.4).pmf) < REJECT


def test_records_lie_evenly_in_their_bins_and_in_bounds():
    sets = normal_moments.perturbed(sample_of(), Fraction(10**6), bits())
    assert sets.shape == (RUNS, N_SETS, N)
    assert sets.min() >= -3
    assert sets.max() <= 4
    inside = ((sets.ravel() + 3) / (7 / 3)) % 1
    assert stats.kstest(inside, "uniform").pvalue > ACCEPT
    assert stats.kstest(inside**1.05, "uniform").pvalue < REJECT


def test_scotts_bins_differ_with_the_sample_and_public_ones_do_not():
    rng = np.random.default_rng(0)
    sample = Sample(np.clip(rng.standard_normal((200, 20)), -3, 4), -3, 4, PUBLIC_BINS[20])
    bins = {counts.shape[1] for _, counts in normal_moments._by_bins(sample)}
    assert len(bins) > 2
    groups = [(chosen, counts) for chosen, counts in normal_moments._by_bins(sample)]
    assert sorted(np.concatenate([chosen for chosen, _ in groups])) == list(range(200))
    assert all((counts.sum(axis=1) == 20).all() for _, counts in groups)


def test_the_nearest_shares_are_those_of_the_library():
    rng = np.random.default_rng(0)
    noisy = rng.integers(-30, 60, (50, 5, 7))
    nearest = nearest_shares(noisy, 100)
    np.testing.assert_allclose(nearest.sum(axis=-1), 100)
    parent, top = np.zeros(7, dtype=np.int64), np.array([100.0])
    for counts, found in zip(noisy[:, 0], nearest[:, 0], strict=True):
        wanted = nonnegative([parent], [top, counts.astype(float)], [np.ones(1), np.ones(7)])
        np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_rounding_keeps_the_total_and_is_unbiased():
    values = np.array([0.25, 1.5, 0.0, 4.25])
    counts = rounded(np.tile(values, (20_000, 1)), np.random.default_rng(0))
    assert (counts.sum(axis=1) == 6).all()
    assert (np.abs(counts - values) < 1).all()
    errors = np.abs(counts.mean(axis=0) - values) / (0.5 / math.sqrt(20_000))
    assert (errors < 5).all()
    assert (np.abs(np.floor(values) - values) / (0.5 / math.sqrt(20_000))).max() > 50  # the broken twin: rounding down


@pytest.mark.parametrize("n", [2, 5, 20])
def test_sensitivities_of_the_moments_are_tight(n):
    # sums of one record at the ends against the other, whatever the rest: corners suffice, as all three are convex
    half, most = STEPS // 2, np.zeros(3)
    for n_high in range(n):
        rest = np.array([half] * n_high + [-half] * (n - 1 - n_high))
        for a in (-half, 0, half):
            for b in (-half, 0, half):
                old, new = (np.append(rest, value).astype(object) for value in (a, b))
                change = [
                    abs(new.sum() - old.sum()),
                    abs((n * (new**2).sum() - new.sum() ** 2) - (n * (old**2).sum() - old.sum() ** 2)),
                    abs((new**2).sum() - (old**2).sum()),
                ]
                most = np.maximum(most, np.array(change, dtype=float))
    assert most[0] == STEPS
    assert most[1] == (n - 1) * STEPS**2
    assert most[2] == half**2


def test_noisy_moments_find_the_true_ones_at_a_large_epsilon():
    rng = np.random.default_rng(0)
    sample = Sample(np.clip(rng.standard_normal((50, 2000)), -4, 4), -4, 4, 21)
    for method in ("moments-as-printed", "moments-about-the-middle"):
        sets = normal_moments.METHODS[method](sample, Fraction(10**6), bits())
        gap = sets.mean(axis=(1, 2)) - sample.x.mean(axis=1)
        assert np.abs(gap).max() < 5 / math.sqrt(2000 * N_SETS)
        ratio = sets.var(axis=2, ddof=1).mean(axis=1) / sample.x.var(axis=1, ddof=1)
        assert np.abs(ratio - 1).max() < 5 * math.sqrt(2 / (2000 * N_SETS))


def test_noise_on_the_moments_has_the_stated_size(monkeypatch):
    monkeypatch.setattr(normal_moments, "_from_moments", lambda sample, mean, variance, bits: (mean, variance))
    share = 1 / (2 * N_SETS)
    for method, spread in (
        (normal_moments.moments_as_printed, 7**2 / N / share),
        (normal_moments.moments_about_the_middle, None),
    ):
        mean, variance = method(sample_of(), Fraction(1), bits())
        size = math.sqrt(2) * 7 / N / share
        assert mean.std() == pytest.approx(size, rel=0.05)
        if spread is not None:
            assert variance.std() == pytest.approx(math.sqrt(2) * spread, rel=0.05)
        # unbiased, to within five standard errors
        assert abs(variance.mean() - X.var(ddof=1)) < 5 * variance.std() / math.sqrt(variance.size)


SMALL = {"proportions": 30, "normal-moments": 5}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_run_from_end_to_end(name):
    import pandas as pd

    study, options = find_study(name), Options(replicates=SMALL[name], epsilons=("0.5", "2"))
    rows = [row for task in study.tasks(options) for row in study.run(task.arguments, 7)]
    table = study.table(pd.DataFrame(rows))
    assert set(epsilons_of(table)) == {"0.5", "2"}
    assert not table.duplicated(["row", "column"]).any()
    assert table["ours"].notna().all()
    assert table["row"].str.startswith("modips-posterior").any()
    assert table["paper"].isna().all()
    blocks = study.layout(table)
    assert sum(block.headline for block in blocks) == 2
    shown = {(row, column) for block in blocks for row in block.rows for column in block.columns}
    assert shown == set(zip(table["row"], table["column"], strict=True))
    pictures = study.pictures(pd.DataFrame(rows), table)
    assert all(len(picture.panels) == 4 for picture in pictures)
    findings = study.findings(table)
    assert len(findings) >= 7
    assert not any("nan" in finding.found for finding in findings)


def test_epsilons_are_those_of_the_paper():
    assert [round(math.log(float(epsilon)), 4) for epsilon in EPSILONS] == list(range(-4, 5))
    assert short(EPSILONS[0]) == "e⁻⁴"
    assert short("0.5") == "0.5"
    assert batches(2500, 1000) == [1000, 1000, 500]
    assert batches(1000, 1000) == [1000]
