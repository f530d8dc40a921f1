"""The PyMC step for K-norm gradient potentials against brute force; error rates as in
test_hit_and_run.
"""

import itertools
import pickle
import subprocess
import sys

import cloudpickle
import knorm_tables as by_hand
import numpy as np
import nutpie
import pymc as pm
import pytest
from laws import ACCEPT, REJECT
from pymc.sampling.mcmc import assign_step_methods
from pymc.step_methods.state import equal_dataclass_values
from pytensor.compile.mode import Mode
from scipy import stats
from tables import refuses

from pdips.errors import InputError
from pdips.posterior.nuts import converged
from pdips.quantile.gradient import DENSITY_NORMS as NORMS
from pdips.quantile.gradient import KNormGradient
from pdips.quantile.pymc_step import KNormGradientStep, knorm_gradient

QUIET = {
    "progressbar": False,
    "quiet": True,
    "compute_convergence_checks": False,
    "cores": 1,
}
FREE = {"shape": 2, "default_transform": None}


def model(density):
    """Return a model of two parameters with the potential."""
    with pm.Model() as made:
        beta = pm.Uniform("beta", by_hand.LOWER, by_hand.UPPER, **FREE, initval="prior")
        settings = {
            "floors": density.floors,
            "ceilings": density.ceilings,
            "norm": density.norm,
        }
        knorm_gradient(
            "kng",
            beta,
            density.x,
            density.y,
            tau=density.tau,
            scale=density.scale,
            **settings,
        )
    return made


def sampled(made, *, moves=25, **settings):
    with made:
        step = KNormGradientStep([made["beta"]], moves=moves)
        return pm.sample(
            step=step, **{"chains": 2, "random_seed": 4, **QUIET, **settings}
        )


def test_chains_have_the_law_of_a_fine_grid():
    density = by_hand.skewed()
    tree = sampled(model(density), draws=5000, tune=200)
    posterior = tree["posterior"]["beta"].to_numpy()
    assert max(by_hand.lag_one(draws) for draws in posterior) < 0.06
    draws = posterior.reshape(-1, 2)
    assert by_hand.p_value(draws, by_hand.cells(density)) > ACCEPT
    assert by_hand.p_value(draws, by_hand.cells(by_hand.skewed(scale=0.6))) < REJECT
    assert by_hand.p_value(draws, by_hand.cells(by_hand.skewed(norm="l1"))) < REJECT
    assert converged(tree).passed
    assert tree["sample_stats"]["knorm"].dtype == np.float64
    np.testing.assert_allclose(
        tree["sample_stats"]["knorm"], by_hand.norm_at(density, posterior)
    )


def test_other_variables_are_sampled_beside_it():
    made = model(by_hand.skewed())
    with made:
        pm.Binomial("seen", 10, pm.Beta("rate", 2, 2), observed=7)
    # NUTS compiles the gradient of the potential too, which takes a minute otherwise
    quick = {"compile_kwargs": {"mode": Mode("py", "fast_compile")}}
    tree = sampled(made, draws=400, tune=200, moves=3, **quick)
    assert set(tree["posterior"].data_vars) == {"beta", "rate"}
    # six standard errors
    assert float(tree["posterior"]["rate"].mean()) == pytest.approx(9 / 14, abs=0.05)
    assert set(tree["observed_data"].data_vars) == {"seen"}


def test_a_seed_gives_the_same_draws_on_one_core_and_on_two():
    made = model(by_hand.skewed())
    settings = {"draws": 20, "tune": 10, "moves": 1}
    one, two, other = (
        sampled(made, **settings, **more)["posterior"]["beta"].to_numpy()
        for more in ({}, {"cores": 2}, {"random_seed": 5})
    )
    assert (one == two).all()
    assert (one != other).any()
    assert (one[0] != one[1]).any()


@pytest.mark.parametrize("norm", NORMS)
def test_the_potential_is_the_log_density(norm):
    rng = np.random.default_rng(6)
    density = by_hand.skewed(norm=norm, **by_hand.LINES)
    made = model(density)
    evaluate = made.compile_logp(vars=made.potentials, mode=Mode("py", "fast_compile"))
    points = rng.uniform([0, -1], [5, 1], (40, 2))
    direct = by_hand.log_density(density, points)
    assert 0 < np.isinf(direct).sum() < 40
    np.testing.assert_allclose([evaluate({"beta": theta}) for theta in points], direct)


def test_lines_are_kept_in_every_draw():
    density = by_hand.skewed(**by_hand.LINES)
    made = model(density)
    tree = sampled(
        made, draws=300, tune=10, moves=2, initvals={"beta": np.array([2.0, 0.5])}
    )
    assert by_hand.heights(density, tree["posterior"]["beta"].to_numpy()).min() >= 0
    with made:
        step = KNormGradientStep([made["beta"]])
    refuses("start must lie", step.step, {"beta": np.array([6.0, 4.0])})


@pytest.mark.slow
def test_pm_sample_assigns_the_step_by_itself():
    made = model(by_hand.skewed())
    density = made.potentials[0].tag.knorm_gradient
    settings = {"draws": 200, "tune": 50, "chains": 2, "random_seed": 4}
    # without a context: what a variable is known by goes with the model
    tree = pm.sample(model=made, knorm_gradient={"moves": 3}, **settings, **QUIET)
    posterior = tree["posterior"]["beta"].to_numpy()
    np.testing.assert_allclose(
        tree["sample_stats"]["knorm"], by_hand.norm_at(density, posterior)
    )
    assert np.unique(posterior[..., 0]).size > 300
    # and of several lines each has its own step
    lines = two_lines()
    tree = pm.sample(model=lines, **settings, **QUIET)
    low, high = (tree["posterior"][name].to_numpy() for name in ("b0.3", "b0.7"))
    assert (low <= high).all()
    assert tree["sample_stats"]["knorm"].ndim == 3


def test_a_model_that_is_unpickled_elsewhere_is_known_again():
    code = (
        "import pickle, sys; from pymc.sampling.mcmc import assign_step_methods; "
        "made = pickle.loads(sys.stdin.buffer.read()); "
        "print([each.__name__ for each in assign_step_methods(made)[1]])"
    )
    sent = cloudpickle.dumps(model(by_hand.skewed()))
    done = subprocess.run(
        [sys.executable, "-c", code], input=sent, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "['KNormGradientStep']"


def test_no_other_variable_gets_the_step():
    with pm.Model() as made:
        pm.Uniform("u", 0, 1, default_transform=None)
        pm.Normal("z", shape=2)
    _, steps = assign_step_methods(made)
    assert KNormGradientStep not in steps


def test_a_line_that_it_cannot_draw_is_refused_by_pm_sample():
    with pm.Model() as made:
        known(pm.Uniform("beta", -9, 9, shape=2))
    with pytest.raises(InputError, match="default_transform=None"):
        pm.sample(10, tune=10, model=made, **QUIET)


def test_samplers_that_follow_gradients_do_not_stand_still():
    made = model(by_hand.skewed())
    with made, pytest.raises(NotImplementedError, match="leave step and nuts_sampler"):
        pm.NUTS([made["beta"]])
    with pytest.raises(NotImplementedError, match="samplers that follow gradients"):
        nutpie.compile_pymc_model(made)
    # other variables have theirs
    with made:
        pm.Binomial("seen", 10, pm.Beta("rate", 2, 2), observed=7)
    gradient = made.dlogp(vars=[made["rate"]])
    assert gradient.ndim == 1


def test_a_step_survives_being_sent_to_another_process():
    made = model(by_hand.skewed())
    with made:
        step = KNormGradientStep([made["beta"]], rng=1)
    copy = pickle.loads(cloudpickle.dumps(step))
    point = {"beta": np.array([2.0, 0.5])}
    assert (step.step(point)[0]["beta"] == copy.step(point)[0]["beta"]).all()
    copy.sampling_state = step.sampling_state
    assert equal_dataclass_values(copy.sampling_state, step.sampling_state)
    assert (step.step(point)[0]["beta"] == copy.step(point)[0]["beta"]).all()


def test_each_chain_learns_its_directions_anew():
    made = model(by_hand.skewed())
    with made:
        step = KNormGradientStep([made["beta"]], moves=5)
    for _ in range(2):
        step.setup_chain(np.random.default_rng(1), tune=100, draws=10)
        assert step.shape.shape == (0, 2)
        point = {"beta": np.array([2.0, 0.5])}
        for _ in range(100):
            point, _ = step.step(point)
        step.stop_tuning()
        assert step.shape.shape == (2, 2)
        assert step.seen == []
        learnt = step.shape
        step.step(point)
        assert (step.shape == learnt).all()


def test_few_records_mean_many_moves():
    rng = np.random.default_rng(0)
    for n, moves in ((9, 2223), (4000, 10)):
        made = model(
            KNormGradient(
                np.column_stack([np.ones(n), rng.random(n)]), rng.random(n), 0.5, 1.0
            )
        )
        with made:
            assert KNormGradientStep([made["beta"]]).moves == moves


def known(beta):
    """The potential of nine records."""
    table = by_hand.skewed()
    return knorm_gradient("kng", beta, table.x, table.y, tau=0.5, scale=1)


def flat(upper=9.0):
    return pm.Uniform("beta", -9, upper, **FREE)


UNFIT = {
    "a transform": (lambda: pm.Uniform("beta", -9, 9, shape=2), known),
    "another base measure": (lambda: pm.Normal("beta", **FREE), known),
    "bounds to sample": (lambda: flat(pm.HalfNormal("most")), known),
    "no potential": (flat, lambda beta: None),
    "another potential": (
        flat,
        lambda beta: (known(beta), pm.Potential("more", beta.sum())),
    ),
    "another term": (
        flat,
        lambda beta: (known(beta), pm.Normal("y", beta[0], 1, observed=0.0)),
    ),
}


@pytest.mark.parametrize("unfit", UNFIT)
def test_models_whose_lines_it_cannot_draw_are_refused(unfit):
    prior, more = UNFIT[unfit]
    with pm.Model():
        beta = prior()
        more(beta)
        refuses(
            "draws lines of the K-norm gradient density alone",
            KNormGradientStep,
            [beta],
        )


def test_settings_are_checked():
    table = by_hand.skewed()
    common = {"x": table.x, "y": table.y, "tau": 0.5, "scale": 1}
    with pm.Model():
        beta = flat()
        bounded = pm.Uniform("bounded", -9, 9, shape=2)
        short = pm.Uniform("short", -9, 9, shape=1, default_transform=None)
        refuses("use shape=2", knorm_gradient, "kng", short, **common)
        for wrong in (bounded, short, beta + 1, beta):
            refuses(
                "another free variable of the model",
                knorm_gradient,
                "kng",
                beta,
                floors=wrong,
                **common,
            )
        other = pm.Uniform("other", -9, 9, **FREE)
        knorm_gradient("one", beta, covariates=(0.0, 1.0), **common)
        refuses("moves must be at least 1", KNormGradientStep, [beta], moves=0)
        refuses(
            "takes one free variable", KNormGradientStep, [beta, other], blocked=True
        )
        knorm_gradient("two", other, floors=beta, **common)
        refuses("same box of covariates", KNormGradientStep, [beta])


def two_lines(*, base=None, order=True, scale=0.4):
    """Return a model of two intercepts, for quantiles .3 and .7 of nine skewed
    outcomes, the second above the first.
    """
    y = by_hand.skewed().y
    with pm.Model() as made:
        below = None
        for tau in (0.3, 0.7):
            box = {"lower": -1.0, "upper": 9.0, "shape": 1, "default_transform": None}
            beta = (
                pm.Uniform(f"b{tau}", **box)
                if base is None
                else pm.TruncatedNormal(f"b{tau}", *base, **box)
            )
            knorm_gradient(
                f"k{tau}", beta, np.ones((9, 1)), y, tau=tau, scale=scale, floors=below
            )
            below = beta if order else None
    return made


def law_of_two_lines(*, base=None, scale=0.4):
    """Return the ends of cells between outcomes, and the probability that each line
    lies in each pair of them.
    """
    ends = np.concatenate([[-1.0], np.sort(by_hand.skewed().y), [9.0]])
    mass = np.diff(ends if base is None else stats.norm(*base).cdf(ends))
    of = [np.exp(-scale * np.abs(np.arange(10) - 9 * tau)) * mass for tau in (0.3, 0.7)]
    # in one cell each order is as likely
    law = np.triu(np.outer(*of)) - np.diag(of[0] * of[1]) / 2
    return ends, law / law.sum()


@pytest.mark.slow
@pytest.mark.parametrize("base", [None, (2.0, 1.5)])
def test_lines_that_may_not_cross_have_their_exact_joint_law(base):
    made = two_lines(base=base)
    with made:
        steps = [KNormGradientStep([each], moves=10) for each in made.free_RVs]
        tree = pm.sample(6000, tune=100, step=steps, chains=2, random_seed=3, **QUIET)
    pair = np.stack(
        [tree["posterior"][name].to_numpy().ravel() for name in ("b0.3", "b0.7")]
    )
    assert (pair[0] <= pair[1]).all()

    def compared(ends, law):
        places = np.clip(np.searchsorted(ends, pair) - 1, 0, 9)
        counts, expected = (
            np.bincount(places[0] * 10 + places[1], minlength=100),
            law.ravel() * pair.shape[1],
        )
        distance = np.abs(counts - expected).sum() / 2 / pair.shape[1]
        many = expected >= 20
        pools = [
            np.append(each[many], each[~many].sum()) for each in (counts, expected)
        ]
        return distance, stats.chisquare(*pools).pvalue

    # 12,000 draws, hardly correlated, of 55 cells: a distance of .027 by chance
    distance, p_value = compared(*law_of_two_lines(base=base))
    assert distance < 0.05
    assert p_value > ACCEPT
    other = (2.0, 1.5) if base is None else None
    for wrong in (law_of_two_lines(base=base, scale=0.5), law_of_two_lines(base=other)):
        distance, p_value = compared(*wrong)
        assert distance > 0.05
        assert p_value < REJECT
    ends, law = law_of_two_lines(base=base)
    free = np.outer(law.sum(1), law.sum(0))  # lines that know nothing of each other
    assert compared(ends, free)[1] < REJECT


def test_a_floor_knows_the_line_above_it():
    made = two_lines()
    with made:
        below, above = (KNormGradientStep([each]) for each in made.free_RVs)
    assert below.beside == ["b0.7"]
    assert above.beside == ["b0.3"]
    assert (below.signs[0], above.signs[0]) == (-1, 1)
    point = {"b0.3": np.array([2.0]), "b0.7": np.array([2.5])}
    assert all(below.step(point)[0]["b0.3"] <= 2.5 for _ in range(50))
    assert all(above.step(point)[0]["b0.7"] >= 2.0 for _ in range(50))
    # the broken twin, which nobody told of the line above, crosses it
    below.beside = []
    assert any(below.step(point)[0]["b0.3"] > 2.5 for _ in range(50))


@pytest.mark.slow
def test_sloped_lines_keep_apart_everywhere_on_the_box():
    lower, upper = (
        by_hand.skewed(scale=0.6, tau=0.2),
        by_hand.skewed(scale=0.6, tau=0.6),
    )
    with pm.Model():
        box = {
            "lower": by_hand.LOWER,
            "upper": by_hand.UPPER,
            "shape": 2,
            "default_transform": None,
        }
        high = pm.Uniform("high", **box)
        low = pm.Uniform("low", **box)
        knorm_gradient("k high", high, upper.x, upper.y, tau=0.6, scale=0.6)
        knorm_gradient(
            "k low", low, lower.x, lower.y, tau=0.2, scale=0.6, ceilings=high
        )
        steps = [KNormGradientStep([each], moves=25) for each in (high, low)]
        tree = pm.sample(4000, tune=200, step=steps, chains=2, random_seed=8, **QUIET)
    found = {
        name: tree["posterior"][name].to_numpy().reshape(-1, 2)
        for name in ("low", "high")
    }
    apart = found["high"] - found["low"]
    assert (apart[:, 0] >= np.abs(apart[:, 1]) - 1e-12).all()
    # exact draws: of each density by itself from fine cells, of which those are kept
    # that don't cross
    rng = np.random.default_rng(9)
    drawn = {
        name: by_hand.fine_draws(each, 60_000, rng)
        for name, each in (("low", lower), ("high", upper))
    }
    apart = drawn["high"] - drawn["low"]
    kept = apart[:, 0] >= np.abs(apart[:, 1])
    for name, column in itertools.product(found, (0, 1)):
        chain, exact = found[name][:, column], drawn[name][kept, column]
        assert stats.ks_2samp(chain[::2], exact).pvalue > ACCEPT
    assert stats.ks_2samp(found["low"][::2, 0], drawn["low"][:, 0]).pvalue < REJECT
