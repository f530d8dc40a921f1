"""Proposals of the exact samplers: words of the system behind numpy's samplers, and
priors drawn row by row.

Kolmogorov-Smirnov checks: seed fixed, false alarm 1e-6; each broken twin must score
below 1e-9.
"""

from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from laws import ACCEPT, REJECT
from pytensor.tensor.random.utils import custom_rng_deepcopy
from scipy import stats
from small_models import WIDE, blueprint, grid_of, written
from tables import bits, refuses

from pdips import CensoredPosterior, Column, InputError, Schema, Table
from pdips.posterior import private_reference as stages
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import Source, as_source
from pdips.posterior.rejection import WordGenerator, WordSource, prior_of, reject
from pdips.posterior.target import Target


def generator_of(bits):
    """Return a Generator that draws every word from some bits, and the source to be
    checked after each use.
    """
    source = WordSource(bits)
    return np.random.Generator(WordGenerator(source)), source


def test_a_generator_hands_out_the_words_of_its_bits_and_none_twice():
    generator, source = generator_of(bits())
    found = generator.integers(0, 2**64, 100, dtype=np.uint64)
    again = custom_rng_deepcopy(generator).integers(0, 2**64, 100, dtype=np.uint64)
    words = bits().words(1024, np.uint64)[::-1]
    assert np.array_equal(np.concatenate([found, again]), words[:200])
    source.check()


def test_a_generator_draws_from_the_laws_of_numpy():
    generator, _ = generator_of(bits())
    assert stats.kstest(generator.normal(size=20_000), "norm").pvalue > ACCEPT
    assert (
        stats.kstest(generator.gamma(0.5, size=20_000), stats.gamma(0.5).cdf).pvalue
        > ACCEPT
    )
    assert stats.kstest(generator.random(20_000), "uniform").pvalue > ACCEPT
    assert stats.kstest(generator.random(20_000) ** 1.1, "uniform").pvalue < REJECT


@pytest.mark.slow
def test_cutpoints_out_of_order_are_no_draws_from_a_prior():
    @written
    def ordinal(data):
        cuts = pm.Normal(
            "cuts", [0, 1], 2, transform=pm.distributions.transforms.ordered, shape=2
        )
        pm.OrderedLogistic("y", eta=0.0, cutpoints=cuts, observed=data["y"])

    space = Blueprint(
        as_source(ordinal), Schema(columns={"y": Column(levels=[0, 1, 2])})
    )
    assert np.isfinite(space.prior).all()
    space.check()


def normal(m, generator):
    return [generator.normal(size=m)]


def no_score(points):
    return np.zeros(len(points[0]), dtype=np.int64)


class Broken:
    def words(self, n, dtype):
        raise OSError("no entropy")


def test_a_source_that_fails_is_noticed():
    generator, source = generator_of(Broken())
    generator.normal(size=3)
    with pytest.raises(OSError, match="entropy"):
        source.check()
    with pytest.raises(OSError, match="entropy"):
        reject(no_score, normal, n_draws=1, bound=0, unit=Fraction(1), bits=Broken())


def test_a_prior_is_drawn_in_value_space_and_children_follow_their_own_parents():
    with pm.Model() as model:
        a = pm.Normal("a", 1.0, 2.0)
        pm.Normal("b", 1.0, 2.0)
        scale = pm.Exponential("scale", 1.0)
        pm.Normal("c", a, scale, shape=3)
        pm.Uniform("u", a, a + 1)
        pm.Normal("y", a, scale, observed=[0.0, 1.0])
    generator, _ = generator_of(bits())
    drawn = dict(
        zip(
            (value.name for value in model.value_vars),
            prior_of(model)(8000, generator),
            strict=True,
        )
    )
    assert {name: values.shape for name, values in drawn.items()} == {
        "a": (8000,), "b": (8000,), "scale_log__": (8000,), "c": (8000, 3), "u_interval__": (8000,)  # noqa: E501
    }  # fmt: skip
    scale = np.exp(drawn["scale_log__"])
    assert stats.kstest(drawn["a"], stats.norm(1, 2).cdf).pvalue > ACCEPT
    assert stats.kstest(scale, "expon").pvalue > ACCEPT
    assert stats.kstest(1.15 * scale, "expon").pvalue < REJECT
    assert stats.kstest(drawn["u_interval__"], "logistic").pvalue > ACCEPT

    # rows of c are normal given the parents of their row; with the parents of another
    # row they aren't
    def standard(shift):
        parents = (
            np.roll(drawn["a"], shift),
            np.exp(np.roll(drawn["scale_log__"], shift)),
        )
        return ((drawn["c"] - parents[0][:, None]) / parents[1][:, None]).ravel()

    assert stats.kstest(standard(0), "norm").pvalue > ACCEPT
    assert stats.kstest(standard(1), "norm").pvalue < REJECT
    # two nodes with the same generator would be merged; correlation of independent
    # draws: |r| < 5.5 sd = 0.0615
    pairs = [
        (drawn["a"], drawn["b"]),
        tuple((drawn["c"] - drawn["a"][:, None]).T[:2] > 0),
    ]
    assert all(abs(np.corrcoef(one, other)[0, 1]) < 0.0615 for one, other in pairs)


def test_rows_of_a_distribution_that_knows_no_rows():
    with pm.Model() as model:
        weight = pm.Beta("weight", 2.0, 2.0)
        pm.Mixture(
            "m",
            w=pm.math.stack([weight, 1 - weight]),
            comp_dists=pm.Normal.dist([-5.0, 5.0], 1.0),
        )
    generator, _ = generator_of(bits())
    drawn = prior_of(model)(500, generator)
    assert [each.shape for each in drawn] == [(500,), (500,)]
    weight = 1 / (1 + np.exp(-drawn[0]))
    assert np.corrcoef(weight, drawn[1] < 0)[0, 1] > 0.2
    assert len(np.unique(drawn[1])) == 500


def test_priors_that_cannot_be_drawn():
    with pm.Model() as reads_data:
        pm.Normal("a", pm.Data("wage_data", np.zeros(3)).mean())
    refuses("reads column 'wage'", prior_of, reads_data)
    with pm.Model() as improper:
        pm.Flat("a")
    refuses("proper prior", lambda: prior_of(improper)(3, generator_of(bits())[0]))


W = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])


def with_prior(prior, potential=None):
    """A normal law of y whose mean has some prior, and perhaps a potential ``known`` of
    it.
    """

    @written
    def build(data):
        mean = prior()
        pm.Normal("y", mean if mean.ndim == 0 else mean[0], 5, observed=data["y"])
        if potential is not None:
            pm.Potential("known", potential(mean, data))

    return build


def bell(value, *_):
    return -(value**2)


def standard(size):
    return pm.Normal.dist(0, 1, size=size)


@pytest.mark.parametrize(
    ("prior", "says"),
    [
        (lambda: pm.Flat("m"), "'m' is improper.*pm.Normal"),
        (lambda: pm.HalfFlat("m"), "'m' is improper.*pm.HalfNormal"),
        (
            lambda: pm.ICAR("m", W=W),
            "'m' is improper .*autoregression.*pm.CAR with "
            "alpha below 1, or pm.ZeroSumNormal",
        ),
        (lambda: pm.CAR("m", np.zeros(3), W, alpha=1.0, tau=1.0), "autoregression"),
        (
            lambda: pm.CustomDist("m", logp=bell),
            "'m' is a log density of its own.*dist=...",
        ),
        (
            lambda: pm.CustomDist("m", dist=standard, logp=bell),
            "'m' is a log density of its own",
        ),
        (
            lambda: pm.CustomDist("m", dist=lambda size: 2 * pm.Flat.dist(size=size)),
            "'m' is improper",
        ),
    ],
)
def test_improper_priors_are_refused_with_what_to_write(prior, says):
    refuses(says, blueprint, with_prior(prior), WIDE)


@pytest.mark.parametrize(
    "prior",
    [
        lambda: pm.CAR("m", np.zeros(3), W, alpha=0.9, tau=1.0),
        lambda: pm.ZeroSumNormal("m", 1, shape=3),
        lambda: pm.CustomDist("m", dist=lambda size: 2 * standard(size)),
        lambda: pm.Truncated("m", pm.Normal.dist(0, 1), lower=0),
        lambda: pm.GaussianRandomWalk("m", init_dist=pm.Normal.dist(0, 1), shape=3),
    ],
)
def test_proper_priors_of_many_kinds_are_taken(prior):
    assert blueprint(with_prior(prior), WIDE).n_parameters in (1, 2, 3)


def wide():
    return pm.Normal("m", 0, 10)


def about_three(value, _):
    return pm.logp(pm.Normal.dist(3, 2), value)


KNOWN = Source(with_prior(wide, about_three), "known", public_potentials=("known",))
PRECISION = 1 / 100 + 1 / 4
AS_A_PRIOR = with_prior(lambda: pm.Normal("m", (3 / 4) / PRECISION, PRECISION**-0.5))


def test_potentials_are_refused_unless_the_file_calls_them_public():
    says = (
        r"PUBLIC_POTENTIALS = \('known',\) at the top of the model's file, or "
        r"make.PUBLIC_POTENTIALS = \('known',\) of a function make"
    )
    refuses(says, blueprint, with_prior(wide, about_three), WIDE)
    reads = with_prior(wide, lambda value, data: -((value - data["y"].mean()) ** 2))
    for named in ((), ("known",)):
        with pytest.raises(InputError, match="'known' reads column 'y', and no window"):
            Blueprint(Source(reads, "reads", public_potentials=named), WIDE)
    refuses(
        "names 'gone', which is no",
        Blueprint,
        Source(with_prior(wide), "none", public_potentials=("gone",)),
        WIDE,
    )


def test_a_file_or_a_function_says_which_potentials_are_public(tmp_path):
    (tmp_path / "m.py").write_text(
        "PUBLIC_POTENTIALS = ['known']\nWATCH = ['m']\ndef build_model(data, "
        "schema): pass\n"
    )
    made = as_source(tmp_path / "m.py")
    assert (made.public_potentials, made.watch) == (("known",), ("m",))
    build = with_prior(wide, about_three)
    build.PUBLIC_POTENTIALS = ("known",)
    assert Blueprint(as_source(build), WIDE).n_parameters == 1


def cells(model, monkeypatch):
    monkeypatch.setattr(stages, "SIMULATED", 64)
    table = Table(pd.DataFrame({"y": np.random.default_rng(0).normal(4, 5, 40)}), WIDE)
    made = CensoredPosterior(epsilon=4, model=model, reference={"m": 2.0})
    return np.exp(grid_of(made, table)[1].log_probabilities())


@pytest.mark.slow
def test_a_public_potential_counts_as_part_of_the_prior_on_a_grid(monkeypatch):
    found, wanted = cells(KNOWN, monkeypatch), cells(AS_A_PRIOR, monkeypatch)
    # scores are whole steps of a millionth of the window
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    # the broken twin: no potential
    assert np.abs(cells(with_prior(wide), monkeypatch) - wanted).sum() > 0.01


def test_a_public_potential_counts_as_part_of_the_prior_for_nuts(monkeypatch):
    def difference(model):
        space = Blueprint(as_source(model), WIDE)
        stage = stages.referenced(space, {"m": 2.0}, 40)
        made = Target(space=space, stage=stage, window=Fraction(1)).model_of(
            {"y": np.linspace(-9, 9, 40)}
        )
        density = made.model.compile_logp(mode="FAST_COMPILE")
        return float(density({"m": 1.0}) - density({"m": 4.0}))

    monkeypatch.setattr(stages, "SIMULATED", 64)
    assert difference(KNOWN) == pytest.approx(difference(AS_A_PRIOR), abs=1e-9)
    assert difference(with_prior(wide)) != pytest.approx(
        difference(AS_A_PRIOR), abs=0.1
    )


def test_samplers_that_begin_with_the_prior_refuse_potentials_before_the_spend():
    with pytest.raises(
        InputError,
        match=r"Potential, 'known', .*sampler = grid or "
        r"nuts",
    ):
        CensoredPosterior(
            epsilon=1, model=KNOWN, sampler="rejection", reference={"m": 2.0}
        ).spends(WIDE)
    drawn = Blueprint(KNOWN, WIDE).draw(
        {"m": np.array(0.0)}, 9, {}, np.random.default_rng(0)
    )
    assert drawn["y"].shape == (9,)
    assert CensoredPosterior(epsilon=1, model=KNOWN, reference="prior").spends(WIDE)
