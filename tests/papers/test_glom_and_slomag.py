"""Simulations 3 and 4 of Bowen and Liu (2020): data, statistics, fits and noise against
independent ways to the same.

Each check of laws accepts a true one but once in a million (seeds are fixed) and comes
with a broken twin.
"""

import math
import re
from fractions import Fraction
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from firthmodels import FirthLogisticRegression
from scipy import stats
from tables import bits

from pdips.data.table import Table
from pdips_papers import find as find_study
from pdips_papers.harness.curves import epsilons_of
from pdips_papers.harness.measures import (
    draw_covariances,
    draw_normal,
    draw_shares,
    nearest_covariance,
)
from pdips_papers.harness.study import Options
from pdips_papers.modips import (
    cell_estimates,
    cell_histograms,
    glom,
    location_model,
    sequential_model,
    slomag,
)
from pdips_papers.modips.location_model import N_SETS

Z = stats.norm.isf(0.5e-6)
"""Standard errors that a mean stays within but once in a million."""


def off(values, expected):
    """How many standard errors the mean over the first axis is from what is expected,
    at most.
    """
    error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
    return np.abs((values.mean(axis=0) - expected) / error).max()


def shares_of(records, cells):
    return location_model.cell_moments(records, cells)[0][:, 0] / records.n


def test_data_of_simulation_3_have_their_moments():
    data = glom.simulated(300, np.random.default_rng(1))
    counts, means, spread = (
        found[:, 0] for found in location_model.cell_moments(data, 24)
    )
    assert off(shares_of(data, 24), glom.SHARES) < Z + 1  # the most of 24
    assert off(shares_of(data, 24), glom.SHARES[::-1]) > 2 * Z
    assert glom.SHARES.min() == pytest.approx(0.012)
    assert glom.SHARES.sum() == pytest.approx(1)
    there = counts.min(axis=1) > 0
    assert off(means[there].reshape(there.sum(), -1), glom.MEANS.ravel()) < Z + 1
    assert (
        off(means[there].reshape(there.sum(), -1), glom.MEANS[:, ::-1].ravel()) > 2 * Z
    )
    entries = spread[:, (0, 1, 0), (0, 1, 1)] * 1000 / 976
    assert off(entries, [1, 1, 0.5]) < Z
    assert off(entries, [1, 1, 0.4]) > 2 * Z
    assert np.abs(data.z - glom.MEANS[data.cell]).max() <= 4
    assert [glom.MEANS[k, 0] for k in glom.SHOWN[0].values()] == sorted(
        glom.MEANS[k, 0] for k in glom.SHOWN[0].values()
    )


def test_data_of_simulation_4_have_their_moments():
    data = slomag.simulated(200, np.random.default_rng(2))
    z = data.z[:, 0]
    moments = np.stack(
        [
            z[..., 0].mean(axis=1),
            (z[..., 0] ** 2).mean(axis=1),
            z.prod(axis=2).mean(axis=1),
        ],
        axis=1,
    )
    assert off(moments, [0, 1, 0.5]) < Z
    assert off(moments, [0, 1, 0.4]) > 2 * Z
    assert off(shares_of(data, 12), twelve_shares()) < Z + 1
    assert off(shares_of(data, 12), twelve_shares()[::-1]) > 2 * Z


def twelve_shares():
    """The shares of the 12 cells, by quadrature over z."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    a, b = (grid.ravel() for grid in np.meshgrid(nodes, nodes))
    weight = np.outer(weights, weights).ravel() / (2 * math.pi)
    z1, z2 = a, 0.5 * a + math.sqrt(0.75) * b
    found = []
    for w1, w2, w3 in product((0, 1), (0, 1), (0, 1, 2)):
        one = 1 / (1 + np.exp(-(-1 + 0.5 * z1 - z2)))
        two = 1 / (1 + np.exp(-(-2 - z1 + 1.5 * z2 + 0.5 * w1)))
        up, high = (
            np.exp(-2.5 * z1 + z2 + 0.5 * w1 + 0.4 * w2),
            np.exp(0.1 - z1 - 0.5 * z2 + 1.5 * w2),
        )
        three = np.array([np.ones_like(up), up, high])[w3] / (1 + up + high)
        found.append(
            weight @ ((one if w1 else 1 - one) * (two if w2 else 1 - two) * three)
        )
    return np.array(found)


def test_conjugate_draws_have_their_means():
    rng, scale = np.random.default_rng(3), np.array([[3.0, 1.0], [1.0, 2.0]])
    drawn = draw_covariances(np.tile(scale, (20_000, 1, 1)), 12.0, rng).reshape(-1, 4)
    assert off(drawn[:, (0, 1, 3)], (scale / 9).ravel()[[0, 1, 3]]) < Z
    assert off(drawn[:, (0, 1, 3)], (scale / 10).ravel()[[0, 1, 3]]) > 2 * Z
    law = stats.invgamma(11 / 2, scale=3 / 2)  # the first entry on its own
    assert stats.kstest(drawn[:, 0], law.cdf).pvalue > 1e-6
    assert stats.kstest(drawn[:, 3], law.cdf).pvalue < 1e-9
    shares = draw_shares(np.tile([0.5, 1.5, 3.0], (20_000, 1)), rng)
    assert off(shares, [0.1, 0.3, 0.6]) < Z
    assert off(shares, [0.2, 0.2, 0.6]) > 2 * Z
    normal = draw_normal(
        np.tile([1.0, 2.0], (20_000, 1)), np.tile(scale, (20_000, 1, 1)), rng
    ) - [1, 2]
    assert off(normal.prod(axis=1), 1.0) < Z
    assert off(normal.prod(axis=1), 1.5) > 2 * Z


def test_covariances_are_moved_into_their_eigenvalues():
    kept = nearest_covariance(
        np.array([[[2.0, 0.5], [0.5, 1.0]], [[-1.0, 0.0], [0.0, 9.0]]]), 0.1, 5.0
    )
    np.testing.assert_allclose(
        kept, [[[2.0, 0.5], [0.5, 1.0]], [[0.1, 0.0], [0.0, 5.0]]]
    )


@pytest.mark.parametrize(
    "bounds", [glom.BY_CELL, glom.COMMON], ids=["by cell", "common"]
)
def test_statistics_of_a_batch_are_those_of_the_plan(bounds):
    data = glom.simulated(2, np.random.default_rng(4))
    plan = location_model.plan_of(bounds, Fraction(3))
    found = location_model.observe(data, bounds, plan.schema)
    for i in range(2):
        apart = (data.z - bounds.middle[data.cell])[i, 0]
        table = Table(
            pd.DataFrame(
                {"cell": data.cell[i, 0], "z1": apart[:, 0], "z2": apart[:, 1]}
            ),
            plan.schema,
        )
        for part in plan.parts:
            np.testing.assert_array_equal(
                found[part.name][i], part.statistic.measure(table).ravel()
            )
    noisy = location_model.sanitised(data, bounds, Fraction(10**9), bits())
    np.testing.assert_allclose(noisy.counts, found["counts"], atol=1e-6)
    # the variance of noise on a sum: two sums, each a sixth of epsilon; a record that
    # changes cell moves each by 2
    assert location_model.sanitised(
        data, bounds, Fraction(6), bits()
    ).noise == pytest.approx(2 * 2**2, rel=1e-3)


def test_published_histograms_have_half_the_noise_of_sound_ones(monkeypatch):
    real, seen = cell_histograms.discrete_laplace, set()

    def spy(scale, n, source):
        seen.add(scale)
        return real(scale, n, source)

    monkeypatch.setattr(cell_histograms, "discrete_laplace", spy)
    data = glom.simulated(2, np.random.default_rng(6))
    sample = slomag.SlomagSample(slomag.simulated(2, np.random.default_rng(6)), ())
    for method, given, scale in (
        (glom.np_dips_published, data, Fraction(1, 4)),
        (glom.np_dips, data, Fraction(1, 2)),
        (slomag.np_dips_published, sample, Fraction(1, 8)),
        (slomag.np_dips, sample, Fraction(1, 4)),
    ):
        seen.clear()
        sets = method(given, Fraction(40), bits())
        assert seen == {scale}
        assert sets.cell.shape == (2, N_SETS, 1000)
        assert (
            np.abs(sets.z - (glom.MEANS[sets.cell] if given is data else 0)).max() <= 4
        )


def test_histograms_without_noise_give_back_their_cells_and_bins():
    data = glom.simulated(3, np.random.default_rng(7))
    bins = np.random.default_rng(0).integers(1, 8, (3, 24, 2))
    sets = cell_histograms.two_steps(
        data, glom.BY_CELL, bins, Fraction(1, 1000), bits()
    )
    shapes = bins.reshape(-1, 2)

    def taken(records, number):
        home = records.cell[:, number] + 24 * np.arange(3)[:, None]
        index = cell_histograms._bin_index(
            records.z[:, number], records.cell[:, number], glom.BY_CELL, shapes[home]
        )
        return set(zip(home.ravel().tolist(), index.ravel().tolist(), strict=True))

    for number in range(N_SETS):
        assert taken(sets, number) <= taken(data, 0)
    gaps = shares_of(sets, 24) - shares_of(data, 24)
    assert np.abs(gaps).max() < Z * math.sqrt(0.12 / 1000)
    assert np.abs(gaps).max() > 0


def test_published_means_are_noised_at_a_scale_that_the_true_count_sets(monkeypatch):
    seen = {}

    def keep(counts, means, spread, n, n_sets, rng):
        seen.update(counts=counts, means=means)
        return location_model.Parameters(counts / n, means, spread)

    monkeypatch.setattr(location_model, "conjugate", keep)
    data = glom.simulated(400, np.random.default_rng(8))
    epsilon = Fraction(3000)
    location_model.as_printed(data, glom.BY_CELL, epsilon, bits())
    counts, means, _ = location_model.cell_moments(data, 24)
    there = (counts > 0).all(axis=(1, 2))
    size = (
        np.abs(seen["means"] - means)[there]
        * counts[there][..., None]
        / (8 * 30 / float(epsilon))
    )
    # a Laplace variable of scale 1 is 1 from 0 on average
    assert off(size.reshape(-1, 1), 1.0) < Z
    assert off(size.reshape(-1, 1), 0.9) > 2 * Z
    assert (seen["counts"] == counts).all()  # the confidential counts, as printed


def test_at_a_large_epsilon_models_find_the_data():
    data = glom.simulated(20, np.random.default_rng(9))
    for method in ("modips-published", "modips-plug-in", "modips-plug-in-common"):
        sets = glom.METHODS[method](data, Fraction(10**6), bits())
        for name, (estimate, variance) in cell_estimates.covariance_estimates(
            sets, 24
        ).items():
            own = cell_estimates.covariance_estimates(data, 24)[name][0]
            assert (np.abs(estimate - own) < Z * np.sqrt(3 * variance)).all()
        assert np.abs(shares_of(sets, 24) - shares_of(data, 24)).max() < Z * math.sqrt(
            2 * 0.12 / 1000
        )


def firths_by_package(x, y, tolerance=1e-7):
    kept, options = y >= 0, {"gtol": tolerance, "xtol": tolerance, "max_iter": 200}
    model = FirthLogisticRegression(fit_intercept=False, backend="numpy", **options)
    model.fit(x[kept], y[kept])
    return model.coef_, model.bse_**2


@pytest.mark.slow
def test_firths_fits_are_level_by_level():
    data = slomag.simulated(2, np.random.default_rng(10))
    found = sequential_model.firth_estimates(data)
    w = sequential_model.levels(data.cell[:, 0])
    for i in range(2):
        x = sequential_model.design(data.z[i, 0], [column[i] for column in w])
        outcomes = {
            "1": (w[0], 3),
            "2": (w[1], 4),
            "3": (np.choose(w[2], [0, 1, -1]), 5),
        }
        outcomes["4"] = (np.choose(w[2], [0, -1, 1]), 5)
        for number, (y, p) in outcomes.items():
            wanted = firths_by_package(x[:, :p], y[i])
            np.testing.assert_allclose(found[number][0][i, 0], wanted[0], atol=1e-4)
            np.testing.assert_allclose(found[number][1][i, 0], wanted[1], rtol=1e-3)


@pytest.mark.slow
def test_firths_fits_under_separation_and_where_there_are_none():
    from pdips_papers.modips.sequential_model import firth

    rng = np.random.default_rng(11)
    x = np.stack(
        [np.column_stack([np.ones(40), rng.standard_normal(40)]) for _ in range(3)]
    )
    y = (x[..., 1] > 0).astype(np.int64)
    y[1] = 0
    x[2, :, 1] = 2.0
    estimates, errors = firth(x, y, 2, 1e-6)
    wanted = firths_by_package(x[0], y[0], 1e-5)
    np.testing.assert_allclose(estimates[0], wanted[0], atol=1e-3)
    np.testing.assert_allclose(errors[0], wanted[1], rtol=1e-3)
    assert np.isnan(estimates[1:]).all()
    assert np.isnan(errors[1:]).all()


def test_plug_in_has_the_information_of_the_design():
    rng = np.random.default_rng(3)
    x, beta = rng.standard_normal((1, 40, 2)), rng.standard_normal((1, 4)) / 2
    found = sequential_model.information(x, beta, 0.7)[0]

    def loss(flat):
        score = np.column_stack([np.zeros(40), x[0] @ flat.reshape(2, 2).T])
        return np.logaddexp.reduce(score, axis=1).sum() + 0.35 * flat @ flat

    h, at = 1e-3, beta[0]

    def curvature(a, b):
        return (
            loss(at + a + b) - loss(at + a - b) - loss(at - a + b) + loss(at - a - b)
        ) / (4 * h**2)

    steps = h * np.eye(4)
    np.testing.assert_allclose(
        found, [[curvature(a, b) for b in steps] for a in steps], atol=1e-3
    )


def test_noisy_modes_are_those_that_modips_sanitizes():
    data = slomag.simulated(2, np.random.default_rng(12))
    sample = slomag.SlomagSample(data, ())
    parts = {part.name: part for part in slomag.plan_of(Fraction(10**6)).parts}
    assert {part.step.price for part in parts.values()} == {
        Fraction(10**6, slomag.COMPONENTS)
    }
    fit = parts["fit 0"]
    w = sequential_model.levels(data.cell[:, 0])
    x = (
        sequential_model.design(data.z[0, 0], [column[0] for column in w])[:, :3]
        * sequential_model.SEQUENCE[0].unit
    )
    b = (sample.exact["fit 0"][0] + fit.noise(1, bits())[0]) * fit.statistic.unit(
        slomag.SCHEMA
    )
    slope = x.T @ (w[0][0] - 1 / (1 + np.exp(-x @ b))) - slomag.RIDGE * b
    # the ridge fit of the unit ball's predictors, with next to no noise
    assert np.abs(slope).max() < 0.05


def test_printed_noise_on_coefficients_has_its_length():
    noise = slomag.grown_noise((4000 * 5, 10), 0.25, np.random.default_rng(15))
    length = np.linalg.norm(noise, axis=1)[:, None]
    assert off(length, 2.5) < Z
    assert off(length, 2.25) > 2 * Z
    assert off(noise, 0.0) < Z


SMALL = {
    "proportions": (30, "0.5", "2"),
    "normal-moments": (5, "0.5", "2"),
    "glom": (3, "60"),
    "slomag": (3, "60"),
}
"""Replicates and epsilons."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_small_run_from_end_to_end(name, monkeypatch):
    # sets alone are read of its releases, whose chains take a minute each: copies of
    # the tables
    if name == "slomag":
        data = slomag.simulated(1, np.random.default_rng(13))
        tables = location_model.tables(
            data, sequential_model.LEVELS, sequential_model.ONE_CELL.half
        )
        copies = [SimpleNamespace(sets=[table.frame] * N_SETS) for table in tables]
        monkeypatch.setattr(location_model, "releases", lambda *_: copies)
    study, (replicates, *epsilons), cells = (
        find_study(name),
        SMALL[name],
        name in ("glom", "slomag"),
    )
    tasks = study.tasks(Options(replicates=replicates, epsilons=tuple(epsilons)))
    measurements = pd.DataFrame(
        [row for task in tasks for row in study.run(task.arguments, 7)]
    )
    table = study.table(measurements)
    assert epsilons_of(table) == epsilons
    assert not table.duplicated(["row", "column"]).any()
    few = table["column"].str.startswith(("coverage", "width", "bias", "rmse"))
    assert few.all() or cells
    assert (
        table.loc[few & ~table["row"].str.contains("noise-aware"), "ours"].notna().all()
    )
    ours = (
        ("modips-noise-aware", "wrong-noise-aware") if cells else ("modips-posterior",)
    )
    assert table["row"].str.startswith(ours).any()
    assert table["paper"].isna().all()
    blocks = study.layout(table)
    assert sum(block.headline for block in blocks) == (4 if cells else 2)
    shown = {
        (row, column)
        for block in blocks
        for row in block.rows
        for column in block.columns
    }
    assert shown == set(zip(table["row"], table["column"], strict=True))
    pictures = study.pictures(measurements, table)
    assert {len(picture.panels) for picture in pictures} <= (
        {8, 12, 16, 20, 24} if cells else {4}
    )
    assert len(pictures) == {"glom": 4, "slomag": 6}.get(name, len(pictures)) > 0
    findings = study.findings(table)
    assert len(findings) >= 7
    assert not any(
        re.search(r"\b(nan|inf|none)\b", finding.found) for finding in findings
    )
