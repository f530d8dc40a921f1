"""Proposals of the exact samplers: words of the system behind numpy's samplers, and priors drawn row by row.

Kolmogorov-Smirnov checks: seed fixed, false alarm 1e-6; each broken twin must score below 1e-9.
"""

from fractions import Fraction

import numpy as np
import pymc as pm
import pytest
from laws import ACCEPT, REJECT
from pytensor.tensor.random.utils import custom_rng_deepcopy
from scipy import stats

from pdips.bayes.prior import prior_of
from pdips.bayes.rejection import reject
from pdips.bayes.words import generator_of
from pdips.errors import InputError
from pdips.noise import RandomBits


def bits(seed: int = 0) -> RandomBits:
    return RandomBits(np.random.default_rng(seed))


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
    assert stats.kstest(generator.gamma(0.5, size=20_000), stats.gamma(0.5).cdf).pvalue > ACCEPT
    assert stats.kstest(generator.random(20_000), "uniform").pvalue > ACCEPT
    assert stats.kstest(generator.random(20_000) ** 1.1, "uniform").pvalue < REJECT


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


@pytest.fixture(scope="module")
def drawn_prior():
    with pm.Model() as model:
        a = pm.Normal("a", 1.0, 2.0)
        pm.Normal("b", 1.0, 2.0)
        scale = pm.Exponential("scale", 1.0)
        pm.Normal("c", a, scale, shape=3)
        pm.Uniform("u", a, a + 1)
        pm.Normal("y", a, scale, observed=[0.0, 1.0])
    generator, _ = generator_of(bits())
    drawn = prior_of(model)(8000, generator)
    return dict(zip((value.name for value in model.value_vars), drawn, strict=True))


def test_a_prior_is_drawn_in_value_space(drawn_prior):
    assert {name: values.shape for name, values in drawn_prior.items()} == {
        "a": (8000,), "b": (8000,), "scale_log__": (8000,), "c": (8000, 3), "u_interval__": (8000,)
    }  # fmt: skip
    scale = np.exp(drawn_prior["scale_log__"])
    assert stats.kstest(drawn_prior["a"], stats.norm(1, 2).cdf).pvalue > ACCEPT
    assert stats.kstest(scale, "expon").pvalue > ACCEPT
    assert stats.kstest(1.15 * scale, "expon").pvalue < REJECT
    assert stats.kstest(drawn_prior["u_interval__"], "logistic").pvalue > ACCEPT


def test_children_follow_their_own_parents(drawn_prior):
    # rows of c are normal given the parents of their row; with the parents of another row they aren't
    def standard(shift):
        parents = np.roll(drawn_prior["a"], shift), np.exp(np.roll(drawn_prior["scale_log__"], shift))
        return ((drawn_prior["c"] - parents[0][:, None]) / parents[1][:, None]).ravel()

    assert stats.kstest(standard(0), "norm").pvalue > ACCEPT
    assert stats.kstest(standard(1), "norm").pvalue < REJECT


def test_variables_of_one_law_are_not_one_variable(drawn_prior):
    # two nodes with the same generator would be merged; correlation of independent draws: |r| < 5.5 sd = 0.0615
    pairs = [(drawn_prior["a"], drawn_prior["b"]), tuple((drawn_prior["c"] - drawn_prior["a"][:, None]).T[:2] > 0)]
    assert all(abs(np.corrcoef(one, other)[0, 1]) < 0.0615 for one, other in pairs)


def test_rows_of_a_distribution_that_knows_no_rows():
    with pm.Model() as model:
        weight = pm.Beta("weight", 2.0, 2.0)
        pm.Mixture("m", w=pm.math.stack([weight, 1 - weight]), comp_dists=pm.Normal.dist([-5.0, 5.0], 1.0))
    generator, _ = generator_of(bits())
    drawn = prior_of(model)(500, generator)
    assert [each.shape for each in drawn] == [(500,), (500,)]
    weight = 1 / (1 + np.exp(-drawn[0]))
    assert np.corrcoef(weight, drawn[1] < 0)[0, 1] > 0.2
    assert len(np.unique(drawn[1])) == 500


def test_priors_that_cannot_be_drawn():
    with pm.Model() as with_potential:
        a = pm.Normal("a")
        pm.Potential("p", -(a**2))
    with pytest.raises(InputError, match="Potential, 'p'"):
        prior_of(with_potential)
    with pm.Model() as reads_data:
        wage = pm.Data("wage_data", np.zeros(3))
        pm.Normal("a", wage.mean())
    with pytest.raises(InputError, match="reads column 'wage'"):
        prior_of(reads_data)
    with pm.Model() as improper:
        pm.Flat("a")
    with pytest.raises(InputError, match="proper prior"):
        prior_of(improper)(3, generator_of(bits())[0])
