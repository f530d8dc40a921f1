"""Regressions with confidential covariates: what is summed of a record, the posterior
of the noisy sums, and what is refused.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
import statsmodels.api as sm
from scipy import stats
from scipy.special import expit
from small_models import written
from tables import refuses

import pdips
from pdips import Schema, Scores, Table
from pdips.posterior.model import blueprint_of, initial
from pdips.posterior.model_file import as_source
from pdips.privacy.curator import Clock, Drawing
from pdips.privacy.noise import RandomBits
from pdips.release.public_draws import CONTRADICTED, contradiction
from pdips.scores import centred_questions
from pdips.scores.centred_answers import restored_centred
from pdips.scores.centring import Centring
from pdips.scores.inner_points import InnerPoints, quantiles_of
from pdips.scores.published import read_published
from pdips.scores.sums import share_above

SCHEMA = Schema(
    columns={
        "x": {"levels": [0, 1]},
        "z": {"lower": -2, "upper": 2},
        "y": {"levels": [0, 1]},
    }
)
NUMBERS = Schema(
    columns={
        "x": {"levels": [0, 1]},
        "z": {"lower": -2, "upper": 2},
        "y": {"lower": -12, "upper": 12},
    }
)
COUNTS = Schema(
    columns={
        "z": {"lower": -2, "upper": 2},
        "y": {"lower": 0, "upper": 12, "integer": True},
    }
)
N = 6_000
TRUTH = np.array([-0.5, 1.0, 0.7])


@written
def logit(data):
    b = pm.Normal("b", 0, 2.5, shape=3)
    eta = b[0] + b[1] * data["x"] + b[2] * data["z"]
    pm.Bernoulli("y", logit_p=eta, observed=data["y"])


@written
def normal(data):
    b = pm.Normal("b", 0, 5, shape=3)
    eta = b[0] + b[1] * data["x"] + b[2] * data["z"]
    pm.Normal("y", eta, pm.HalfNormal("sd", 5), observed=data["y"])


@written
def counts(data):
    b = pm.Normal("b", 0, 1, shape=2)
    pm.Poisson("y", pm.math.exp(b[0] + b[1] * data["z"]), observed=data["y"])


def covariates(n: int, seed: int) -> tuple[np.random.Generator, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = (rng.random(n) < 0.3).astype(int)
    z = np.clip(rng.normal(0.3 * x, 0.7), -2, 2)
    return rng, np.column_stack([np.ones(n), x, z])


def sick(n: int = N, seed: int = 3) -> pd.DataFrame:
    rng, design = covariates(n, seed)
    y = (rng.random(n) < expit(design @ TRUTH)).astype(int)
    return pd.DataFrame({"x": design[:, 1].astype(int), "z": design[:, 2], "y": y})


def measured(errors, n: int = N, seed: int = 3) -> pd.DataFrame:
    rng, design = covariates(n, seed)
    y = np.clip(design @ TRUTH + errors(rng, n), -12, 12)
    return pd.DataFrame({"x": design[:, 1].astype(int), "z": design[:, 2], "y": y})


def points_of(model, schema: Schema) -> InnerPoints:
    return InnerPoints.of(blueprint_of(as_source(model), schema))


def summed(points: InnerPoints, frame: pd.DataFrame, schema: Schema, radius=0.6):
    """Return what records add near the model's start, and how they are centred."""
    space = points.law.space
    place = initial(space.model) + 0.7
    at = Centring(place, np.eye(len(place)), radius, 4.0, "l2")
    table = Table(frame, schema)
    [of_records] = centred_questions.blocks_of(points, at, table, 0.0)
    return at.of(of_records), of_records


@pytest.fixture(scope="module")
def run():
    made = Scores(epsilon=1, delta="1e-6", model=logit, n_sets=2)
    return made.release(Table(sick(), SCHEMA), rng=np.random.default_rng(5))


@pytest.mark.parametrize(
    ("model", "schema", "frame"),
    [
        (logit, SCHEMA, sick(50)),
        (normal, NUMBERS, measured(lambda rng, n: rng.normal(size=n), 50)),
        (counts, COUNTS, sick(50)[["z", "y"]]),
    ],
)
def test_centred_scores_have_mean_0_whatever_the_covariates(model, schema, frame):
    points = points_of(model, schema)
    found, at = summed(points, frame, schema)
    centred = (at.weights[..., None] * found.at_points).sum(axis=1)
    assert np.abs(centred).max() < 1e-9
    lengths = np.sqrt((found.at_points**2).sum(axis=2))
    assert lengths.max() <= found.centring.radius * (1 + 1e-9)
    # a twin that doesn't subtract the mean
    clipped = (at.weights[..., None] * found.clipped[:, 1:]).sum(axis=1)
    assert np.abs(clipped).max() > 0.05


def test_the_curvature_is_the_slope_of_the_mean(run):
    _, tables, (_, public) = read_published(run[0])
    space = blueprint_of(as_source(logit), SCHEMA)
    sums = restored_centred(space, tables, public)
    means = sums.means
    place = means.place
    step = 1e-5

    def mean(where):
        inner = means.inner_weights(means.logs(where[None]))[0]
        return means.mean(inner, means.whitened(where))

    slopes = [
        (mean(place + move) - mean(place - move)) / (2 * step)
        for move in step * np.eye(len(place))
    ]
    inner = means.inner_weights(means.logs(place[None]))[0]
    assert np.allclose(np.array(slopes).T, means.slopes(place, inner), atol=1e-3)
    # per whitened move that is what the rows add to the sum of curvatures
    _, of_rows = sums.at_rows(sums.last.centring)
    curvature = sums.last.centring.matrix(of_rows.curvature)
    expected = np.einsum("i,ijk->jk", means.weights, curvature)
    assert np.allclose(
        means.slopes(place, inner) @ np.linalg.inv(means.root), expected, rtol=1e-6
    )


def test_a_posterior_with_nothing_public_is_near_the_ordinary_estimate(run):
    frame = sick()
    design = sm.add_constant(frame[["x", "z"]])
    ordinary = sm.Logit(frame["y"], design).fit(disp=0)
    draws = run[0].posterior_draws.posterior["b"]
    mean = draws.mean(("chain", "draw")).to_numpy()
    sd = draws.std(("chain", "draw")).to_numpy()
    # 4 deviations of the posterior, which has noise and sampling: one in 5,000
    assert (np.abs(mean - ordinary.params) < 4 * sd).all()
    assert (sd < 2.5 * ordinary.bse).all()
    assert (sd > ordinary.bse).all()


@pytest.mark.slow
def test_chains_agree_with_weighted_draws(run):
    model = pdips.noisy_likelihood(logit, run[0])
    with model:
        tree = pm.sample(600, tune=600, chains=2, progressbar=False, random_seed=4)
    weighted = run[0].posterior_draws.posterior["b"]
    chains = tree["posterior"]["b"]
    sample = ("chain", "draw")
    sd = weighted.std(sample)
    # means of 1,000 and of some 600 draws: .06 deviations together
    assert float((abs(chains.mean(sample) - weighted.mean(sample)) / sd).max()) < 0.3
    assert float(abs(np.log(chains.std(sample) / sd)).max()) < 0.25


def test_more_sets_come_from_the_published_sums(run):
    release, _ = run
    more = release.more_sets(2, rng=np.random.default_rng(1))
    frame = sick()
    for made_up in (*release.sets, *more):
        assert [*made_up.columns] == ["x", "z", "y"]
        assert len(made_up) == N
        # shares of 6,000 records, with noise of a few records: 5 deviations
        assert abs(made_up["x"].mean() - frame["x"].mean()) < 0.05
        assert made_up["z"].between(-2, 2).all()
    tree = release.posterior
    assert {"prior", "log_prior", "observed_data", "log_likelihood"} <= {*tree.children}
    assert tree["observed_data"]["curvature_2"].shape == (3, 3)


@pytest.mark.parametrize("delta", [None, "1e-6"])
def test_a_noisy_number_of_records_does_as_well(delta):
    made = Scores(epsilon=2, delta=delta, model=logit, neighbours="add-remove")
    release, record = made.release(Table(sick(), SCHEMA), rng=np.random.default_rng(2))
    draws = release.posterior_draws.posterior["b"]
    off = draws.mean(("chain", "draw")) - TRUTH
    assert float(abs(off / draws.std(("chain", "draw"))).max()) < 5
    assert record.diagnostics["noisy_sums"]["parameters"] == 3


def test_too_few_records_are_refused_before_the_charge(tmp_path):
    ledger = pdips.Ledger(tmp_path / "l.sqlite")
    ledger.set_total(3)
    said = refuses(
        "too few records for 3 parameters",
        pdips.sample,
        logit,
        sick(200),
        SCHEMA,
        epsilon=0.5,
        ledger=ledger,
        progress=False,
    )
    assert "It takes about" in said
    assert not ledger.entries()


def test_too_many_parameters_are_refused():
    columns = {f"x{i}": {"lower": -1, "upper": 1} for i in range(63)}

    @written
    def wide(data):
        b = pm.Normal("b", 0, 1, shape=63)
        eta = sum(b[i] * data[f"x{i}"] for i in range(63))
        pm.Bernoulli("y", logit_p=eta, observed=data["y"])

    schema = Schema(columns={**columns, "y": {"levels": [0, 1]}})
    made = Scores(epsilon=1, model=wide)
    refuses("63 parameters, and at most 62", made.plan, schema)


def test_other_mechanisms_say_that_covariates_are_confidential():
    made = pdips.CensoredPosterior(epsilon=1, model=logit)
    refuses("neither public nor observed", made.plan, SCHEMA)


def test_two_numeric_outcomes_are_refused():
    schema = Schema(
        columns={name: {"lower": -1, "upper": 1} for name in ("z", "y1", "y2")}
    )

    @written
    def two(data):
        b = pm.Normal("b", 0, 1, shape=2)
        pm.Normal("y1", b[0] * data["z"], 1, observed=data["y1"])
        pm.Normal("y2", b[1] * data["z"], 1, observed=data["y2"])

    made = Scores(epsilon=1, model=two)
    refuses("one outcome at a time", made.plan, schema)


def test_an_outcome_without_quantiles_is_refused():
    @written
    def skewed(data):
        b = pm.Normal("b", 0, 1, shape=2)
        mu = b[0] + b[1] * data["z"]
        pm.SkewNormal("y", mu=mu, sigma=1, alpha=2, observed=data["y"])

    schema = Schema(columns={name: {"lower": -9, "upper": 9} for name in ("z", "y")})
    refuses("no quantiles are known", Scores(epsilon=1, model=skewed).plan, schema)


@pytest.mark.slow
def test_the_check_of_the_model_alarms_where_errors_are_skewed_and_not_else():
    """Of 20 tables each: where the model is right an alarm has probability .05 (at most
    4 alarms: 99.7 %); where it is wrong, most must alarm.
    """
    made = Scores(epsilon=1, delta="1e-6", model=normal)

    def skewed(rng, n):
        return (rng.exponential(size=n) - 1) * 1.0

    alarms = {}
    for name, errors in {
        "right": lambda rng, n: rng.normal(size=n),
        "skewed": skewed,
    }.items():
        shares = []
        for seed in range(20):
            frame = measured(errors, 15_000, seed)
            rng = np.random.default_rng(seed)
            _, record = made.release(Table(frame, NUMBERS), rng=rng)
            shares.append(record.diagnostics["noisy_sums"]["misfit"])
        alarms[name] = sum(share < 0.05 for share in shares)
    assert alarms["right"] <= 4
    assert alarms["skewed"] >= 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("freedom", "against"), [(np.inf, None), (4.0, "tails")], ids=["right", "t(4)"]
)
def test_long_tails_are_found_in_a_pure_release(freedom, against):
    """Squares of scores alone, the broken twin, don't notice the tails.

    Of six releases three alarms at 5 % come by chance with probability .002, of a right
    model and of the twin.
    """

    def errors(rng, n):
        return rng.standard_t(freedom, n) if against else rng.normal(size=n)

    made = Scores(epsilon=1, model=normal)
    plan = made.plan(NUMBERS)
    said = []
    of_squares = []
    for seed in range(6):
        table = Table(measured(errors, 15_000, seed), NUMBERS)
        noise = RandomBits(np.random.default_rng(seed))
        answers = made.ask(plan, Drawing(plan, table, noise, Clock(), None))
        place = answers.near.place
        share, by = answers.sums.misfit(place)
        if share < CONTRADICTED:
            said.append(by)
            assert contradiction({"misfit": share, "misfit_by": by}).reason
        of_squares.append(answers.sums.misfits(place)["spread"])
    assert sum(share < CONTRADICTED for share in of_squares) <= 2
    if against:
        assert said == [against] * 6
    else:
        assert len(said) <= 2


def test_more_of_the_first_number_is_judged_by_what_the_others_know():
    """Shares of 400 draws of numbers that parameters move are uniform (Kolmogorov and
    Smirnov, 1 %); those of the first number for itself, the broken twin, are not.
    """
    rng = np.random.default_rng(3)
    slopes = rng.normal(size=(4, 3))
    root = rng.normal(size=(4, 4))
    laplace = np.array([2.0, 0.5, 0.5, 0.0])
    shares = []
    alone = []
    for _ in range(400):
        numbers = slopes @ rng.normal(0, 3, 3) + root @ rng.normal(size=4)
        numbers += rng.laplace(0, np.sqrt(laplace / 2))
        covariance = root @ root.T
        shares.append(share_above(numbers, slopes, covariance, laplace))
        deviation = np.sqrt(covariance[0, 0] + laplace[0])
        alone.append(stats.norm.sf(numbers[0] / deviation))
    assert stats.kstest(shares, "uniform").pvalue > 0.01
    assert stats.kstest(alone, "uniform").pvalue < 1e-4
    # from above alone
    more = slopes @ np.ones(3) + np.array([1e3, 0, 0, 0])
    assert share_above(more, slopes, root @ root.T, laplace) < 1e-3
    assert share_above(-more, slopes, root @ root.T, laplace) > 0.999


def test_the_error_of_the_curvature_ends_where_the_sums_end(run):
    """Near the reference it is that of the move; far out that of the largest mean."""
    _, tables, (_, public) = read_published(run[0])
    space = blueprint_of(as_source(logit), SCHEMA)
    sums = restored_centred(space, tables, public)
    means = sums.means

    def mean(place):
        inner = means.inner_weights(means.logs(place[None]))[0]
        return means.mean(inner, means.whitened(place))

    direction = np.array([0.5, -1.0, 0.3])
    near = means.place + 1e-4 * direction
    assert np.allclose(means.straight(mean(near)), means.whitened(near), rtol=2e-3)
    noise = []
    linear = []
    for far in (20.0, 2_000.0):
        place = means.place + far * direction
        noise.append(np.trace(sums.noise_at(means.straight(mean(place)))))
        linear.append(np.trace(sums.noise_at(means.whitened(place))))
    assert noise[1] < 1.1 * noise[0]
    # the broken twin: moves themselves
    assert linear[1] > 1_000 * linear[0]
    # what doesn't depend on covariates may be off by a wrong model alone
    largest = sums.last.deviations["curvature"] ** 2
    assert (sums.curvature_error <= largest * (1 + 1e-9)).all()


@pytest.mark.slow
def test_a_small_budget_gives_a_wide_posterior_and_not_the_prior():
    """Three fixed releases: without noise the slope has a standard error of .02, and
    its prior one of 5.
    """
    frame = measured(lambda rng, n: rng.normal(0, 1.5, n), 20_000)
    for seed in range(3):
        made = Scores(epsilon=0.2, model=normal)
        rng = np.random.default_rng(seed)
        release, _ = made.release(Table(frame, NUMBERS), rng=rng)
        b = release.posterior_draws.posterior["b"].to_numpy().reshape(-1, 3)
        assert b.std(axis=0).max() < 0.3
        assert (np.abs(b.mean(axis=0) - TRUTH) < 4 * b.std(axis=0)).all()


def test_a_pseudo_table_that_is_off_doesn_t_contradict_the_model():
    """Weights of its rows move the curvature by twenty deviations of its noise. A twin
    that takes the pseudo table's curvature for the noisy one alarms.
    """
    made = Scores(epsilon=6, delta="1e-6", model=logit)
    release, _ = made.release(Table(sick(20_000), SCHEMA), rng=np.random.default_rng(5))
    _, tables, (_, public) = read_published(release)
    sums = restored_centred(blueprint_of(as_source(logit), SCHEMA), tables, public)
    place = sums.mode_of_last().place

    def tilted(noisy):
        last = replace(sums.last, noisy={**sums.last.noisy, **noisy})
        moved = replace(sums, rounds=(*sums.rounds[:-1], last), held={})
        weights = sums.weights * np.exp(0.2 * np.abs(sums.rows.values["z"]))
        moved.__dict__["weights"] = weights / weights.sum()
        return moved

    off = tilted({})
    assert off.curvature_gap > 10
    assert off.misfits(place)["spread"] > 0.3
    assert sums.misfits(place)["spread"] > 0.3
    smooth = off.n_records * off.weights @ off.at_rows(sums.last.centring)[1].curvature
    assert tilted({"curvature": smooth}).misfits(place)["spread"] < 0.001


def test_what_can_t_be_worked_out_after_the_charge_ends_no_release(monkeypatch):
    def broken(*_, **__):
        raise np.linalg.LinAlgError("nothing to solve")

    made = Scores(epsilon=1, delta="1e-6", model=logit)
    plan = made.plan(SCHEMA)
    for name in ("first_centring", "next_whitening"):
        with monkeypatch.context() as patched:
            patched.setattr(centred_questions, name, broken)
            release, record = made.release_planned(
                plan, Table(sick(500), SCHEMA), rng=np.random.default_rng(1)
            )
        assert len(release.sets[0]) == 500
        assert record.diagnostics["noisy_sums"]["parameters"] == 3


def test_a_transformation_of_the_outcome_is_that_of_each_record():
    """A function that looks at all records would move every score by one record's
    value: the graph of one record hasn't any other.
    """

    @written
    def looking(data):
        y = data["y"]
        seen = 3.0 * pm.math.any(pm.math.eq(y, 7.123456789))
        b = pm.Normal("b", 0, 5, shape=2)
        pm.Normal("y", b[0] + b[1] * data["z"], 1, observed=pm.math.log(y) + seen)

    schema = Schema(
        columns={"z": {"lower": -2, "upper": 2}, "y": {"lower": 0.1, "upper": 20}}
    )
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"z": rng.uniform(-1, 1, 30), "y": rng.uniform(1, 5, 30)})
    points = points_of(looking, schema)
    alone, _ = summed(points, frame, schema)
    frame.loc[0, "y"] = 7.123456789
    beside, _ = summed(points, frame, schema)
    assert np.array_equal(alone.scores[1:], beside.scores[1:])
    assert not np.array_equal(alone.scores[0], beside.scores[0])


def test_a_model_may_have_one_parameter():
    @written
    def proportional(data):
        pm.Normal("y", pm.Normal("b", 0, 2) * data["z"], 1, observed=data["y"])

    frame = measured(lambda rng, n: rng.normal(size=n))
    frame["y"] = np.clip(0.7 * frame["z"] + np.sin(1e6 * frame["z"]), -12, 12)
    made = Scores(epsilon=1, model=proportional)
    schema = NUMBERS.only(["z", "y"])
    table = Table(frame[["z", "y"]], schema)
    release, _ = made.release(table, rng=np.random.default_rng(2))
    draws = release.posterior_draws.posterior["b"]
    ordinary = (frame.y * frame.z).sum() / (frame.z**2).sum()
    # 5 deviations, of noise and sampling
    assert abs(float(draws.mean()) - ordinary) < 5 * float(draws.std())


def test_rounds_may_be_more():
    made = Scores(epsilon=2, delta="1e-6", model=logit, score_rounds=3)
    release, _ = made.release(Table(sick(), SCHEMA), rng=np.random.default_rng(2))
    _, tables, (_, public) = read_published(release)
    space = blueprint_of(as_source(logit), SCHEMA)
    sums = restored_centred(space, tables, public)
    radii = [each.centring.radius for each in sums.rounds]
    assert len(radii) == 3
    assert min(radii) > 1.2
    assert replace(sums, rounds=sums.rounds[:2]).last.centring.radius == radii[1]


def test_a_lookup_beyond_in_a_transformation_is_that_of_no_record():
    """Compiled code checks no bounds: the place would be read from elsewhere."""

    @written
    def beyond(data):
        y = data["y"]
        place = pm.math.switch(pm.math.eq(y, 7.123456789), 10**6, 0)
        b = pm.Normal("b", 0, 5, shape=2)
        mu = b[0] + b[1] * data["z"]
        added = pt.as_tensor(np.zeros(3))[place.astype("int64")]
        pm.Normal("y", mu, 1, observed=pm.math.log(y) + added)

    schema = Schema(
        columns={"z": {"lower": -2, "upper": 2}, "y": {"lower": 0.1, "upper": 20}}
    )
    points = points_of(beyond, schema)
    points.given(initial(points.law.space.model))
    values = {"z": np.array([0.5, 0.5]), "y": np.array([2.0, 7.123456789])}
    for expected in (0.0, 9_000.0):  # by numpy, and compiled
        found = points.matrices(values, expected)
        assert np.isfinite(found[0]).all()
        assert np.isnan(found[1, 0, 1:3]).all()


SHARES = np.array([1e-6, 0.2, 0.5, 0.9, 1 - 1e-6])
TRUNCATED = {
    "normal": (pm.Normal.dist(1.0, 2.0), stats.norm(1, 2), 0, 3),
    "normal from below": (pm.Normal.dist(1.0, 2.0), stats.norm(1, 2), 0, None),
    "normal from above": (pm.Normal.dist(1.0, 2.0), stats.norm(1, 2), None, 3),
    "logistic": (pm.Logistic.dist(1.0, 2.0), stats.logistic(1, 2), 0, 3),
    "logistic from below": (pm.Logistic.dist(1.0, 2.0), stats.logistic(1, 2), 0, None),
    "gamma": (pm.Gamma.dist(2.0, 1.0), stats.gamma(2), None, 3),
    "Student": (pm.StudentT.dist(4.0, mu=1.0, sigma=2.0), stats.t(4, 1, 2), 0, None),
}


@pytest.mark.parametrize("name", TRUNCATED)
def test_a_truncated_law_has_the_quantiles_between_its_bounds(name):
    law, exact, lower, upper = TRUNCATED[name]
    truncated = pm.Truncated.dist(law, lower=lower, upper=upper, shape=(1,))
    found = quantiles_of(truncated, pt.as_tensor(SHARES[:, None])).eval()[:, 0]
    below = 0.0 if lower is None else exact.cdf(lower)
    above = 1.0 if upper is None else exact.cdf(upper)
    wanted = exact.ppf(below + SHARES * (above - below))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    # the broken twin: those of the law without bounds
    assert np.abs(exact.ppf(SHARES) - wanted).max() > 0.1


def test_a_truncated_count_has_none():
    truncated = pm.Truncated.dist(pm.Poisson.dist(2.0), lower=1, shape=(1,))
    with pytest.raises(NotImplementedError):
        quantiles_of(truncated, pt.as_tensor(SHARES[:, None]))


@pytest.mark.slow
@pytest.mark.parametrize("upper", [None, 10])
def test_truncated_outcomes_are_accepted(upper):
    @written
    def truncated(data):
        b = pm.Normal("b", 0, 1, shape=2)
        law = pm.Normal.dist(b[0] + b[1] * data["z"], 1)
        pm.Truncated("y", law, lower=0, upper=upper, observed=data["y"])

    columns = {"z": {"lower": -2, "upper": 2}, "y": {"lower": 0, "upper": 10}}
    schema = Schema(columns=columns)
    for known in (schema, schema.known(["z"])):
        assert Scores(epsilon=1, model=truncated).plan(known).steps
