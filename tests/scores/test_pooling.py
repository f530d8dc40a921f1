"""Noisy sums of several releases of one table: their noise is averaged, the sampling
error of the records is not.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from pdips import Schema, Scores, Table
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits
from pdips.scores.centred_answers import PooledAnswers
from pdips.scores.centred_questions import RoundTotals
from pdips.scores.centred_sums import CentredRound, CentredSums, pooled
from pdips.scores.published import parameter_labels
from pdips.scores.sums import Linearised

N = 300
TABLES = 60
PARTS = 4
SLOPE = 0.5
# Variance of the noise of one release, over that of the sampling of records
LOUDNESS = 0.3
SCHEMA = Schema.model_validate(
    {"columns": {"x": {"lower": -4, "upper": 4}, "y": {"lower": -9, "upper": 9}}}
)


def build_model(data, schema):
    import pymc as pm

    with pm.Model() as model:
        start = pm.Normal("start", 0, 10)
        slope = pm.Normal("slope", 0, 10)
        spread = pm.HalfNormal("spread", 5)
        pm.Normal("y", start + slope * data["x"], spread, observed=data["y"])
    return model


def table(seed: int) -> Table:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=N).clip(-4, 4)
    y = (1 + SLOPE * x + rng.normal(size=N)).clip(-9, 9)
    return Table(pd.DataFrame({"x": x, "y": y}), SCHEMA)


@pytest.fixture(scope="module")
def templates() -> list[CentredSums]:
    """Sums of several releases, each at a reference of its own."""
    mechanism = Scores(epsilon=40, delta="1e-6", model=build_model)
    plan = mechanism.plan(SCHEMA)
    sums = []
    for seed in range(PARTS):
        bits = RandomBits(np.random.default_rng(seed))
        curator = Drawing(plan, table(1_000 + seed), bits)
        sums.append(mechanism.ask(plan, curator).sums)
    return sums


def asked_of(
    template: CentredSums, asked: Table, rng: np.random.Generator, loudness: float
) -> CentredSums:
    """Return the sums of a table, where a template was asked, with normal noise."""
    at = template.last.centring
    totals = RoundTotals(template.points, at, float(N))
    variance = np.trace(template.sampling) / len(at.place)
    noisy = {}
    deviations = {}
    for kind in template.last.noisy:
        exact = totals.of(asked, kind) * at.unit(kind)
        share = loudness if kind == "scores" else 0.01
        deviations[kind] = float(np.sqrt(share * variance))
        noisy[kind] = exact + deviations[kind] * rng.standard_normal(len(exact))
    rounds = (*template.rounds[:-1], CentredRound(at, noisy, deviations))
    return replace(template, rounds=rounds)


def interval(near: Linearised, noise_alone: bool = False) -> tuple[float, float]:
    """Return the slope that sums make most probable, without a prior, and its standard
    deviation.
    """
    covariance = near.noise if noise_alone else near.noise + near.sampling
    precise = np.linalg.solve(covariance, near.slopes)
    inverse = np.linalg.inv(near.slopes.T @ precise)
    place = near.place + inverse @ (precise.T @ near.residual)
    return place[1], float(np.sqrt(inverse[1, 1]))


def as_independent(near: list[Linearised]) -> tuple[float, float]:
    """The broken twin: as if every release were of other records."""
    estimates, deviations = np.transpose([interval(each) for each in near])
    precision = deviations**-2.0
    mean = float(precision @ estimates / precision.sum())
    return mean, float(precision.sum() ** -0.5)


@pytest.fixture(scope="module")
def simulated(templates: list[CentredSums]) -> NDArray[np.float64]:
    """By table: standardised errors of the pooled slope, of the twin's and, by the
    noise alone, of the pooled one from the table's; and deviations pooled and alone.
    """
    assert parameter_labels(templates[0].space)[1] == "slope"
    rows = []
    for seed in range(TABLES):
        rng = np.random.default_rng(5_000 + seed)
        asked = table(seed)
        parts = [asked_of(each, asked, rng, LOUDNESS) for each in templates]
        together = pooled(parts).mode_of_last()
        mean, deviation = interval(together)
        of_table, by_noise = interval(together, noise_alone=True)
        own = np.polyfit(asked.frame["x"], asked.frame["y"], 1)[0]
        each_alone = [each.linearised(together.place) for each in parts]
        twin, too_sure = as_independent(each_alone)
        alone = interval(each_alone[0])[1]
        errors = (mean - SLOPE) / deviation, (twin - SLOPE) / too_sure
        rows.append([*errors, (of_table - own) / by_noise, deviation, alone])
    return np.array(rows)


def spread(errors: NDArray[np.float64]) -> float:
    return float(np.sqrt((errors**2).mean()))


@pytest.mark.slow
def test_pooled_intervals_are_as_wide_as_errors_and_the_twins_arent(simulated):
    # of 60 standardised errors: 1 if the intervals are right, above 1.35 with a
    # probability of .0002; the twin's is 1.82, and below 1.35 with one of .002
    assert spread(simulated[:, 0]) < 1.35
    assert spread(simulated[:, 1]) > 1.35


@pytest.mark.slow
def test_pooled_noise_is_that_of_all(simulated):
    # for the table itself nothing but noise lies between
    assert 0.7 < spread(simulated[:, 2]) < 1.35
    ratio = np.median(simulated[:, 3] / simulated[:, 4])
    expected = np.sqrt((1 + LOUDNESS / PARTS) / (1 + LOUDNESS))
    assert ratio == pytest.approx(expected, rel=0.05)


def test_one_part_is_itself_and_a_loud_one_adds_nothing(templates):
    rng = np.random.default_rng(1)
    quiet = asked_of(templates[0], table(1), rng, 0.1)
    loud = asked_of(templates[1], table(1), rng, 1e6)
    assert pooled([quiet]) is quiet
    together = pooled([loud, quiet])
    assert together.last is quiet.last
    assert together.scores == pytest.approx(quiet.scores, abs=1e-2 * np.sqrt(N))
    near, of_quiet = (interval(each.mode_of_last()) for each in (together, quiet))
    assert near == pytest.approx(of_quiet, rel=0.01)


def test_what_is_published_is_of_the_fresh_release_alone(templates):
    rng = np.random.default_rng(2)
    loud, quiet = (asked_of(templates[0], table(1), rng, share) for share in (2.0, 0.1))
    together = pooled([loud, quiet])
    answers = PooledAnswers(together, together.mode_of_last(), loud)
    sums = answers.tables()["sums"]
    last = loud.last.noisy["scores"]
    assert sums[sums["of"] == "slope"]["noisy"].iloc[-1] == last[1]
    assert not (together.scores == last).any()
