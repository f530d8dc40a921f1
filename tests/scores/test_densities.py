"""Densities of noisy sums are those of the sums themselves, so that models may be
compared by them.
"""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pdips.scores.noisy_likelihood import numbers_of, observe_sums
from pdips.scores.sums import Linearised

PLACE = np.array([0.3])
AT = np.array([0.5])
MEAN = np.array([4.0, -1.0])
SLOPES = np.array([[2.0], [-1.0]])
COVARIANCE = np.array([[4.0, 1.5], [1.5, 9.0]])
LOUDER = COVARIANCE + np.diag([3.0, 20.0])
NOISES = {
    "normal": [],
    "a mixture": [
        (np.zeros((2, 2)), np.log(0.3)),
        (LOUDER - COVARIANCE, np.log(0.7)),
    ],
}


def linearised(noisy) -> Linearised:
    return Linearised(
        place=PLACE,
        residual=noisy - MEAN,
        slopes=SLOPES,
        sampling=COVARIANCE,
        noise=np.zeros((2, 2)),
        laplace=np.zeros(2),
        information=np.eye(1),
    )


class Densities:
    """Log densities of two noisy sums at some parameter."""

    def __init__(self, here: Linearised, noises) -> None:
        self.noises = noises
        with pm.Model() as self.model:
            value = pm.Normal("value", shape=1)
            held = {
                name: pm.Data(name, number)
                for name, number in numbers_of(here, noises).items()
            }
            observe_sums("sums", [value], held)
        variables = [self.model["sums"]]
        self.function = self.model.compile_logp(vars=variables, mode="FAST_COMPILE")

    def of(self, here: Linearised, at=AT) -> float:
        pm.set_data(numbers_of(here, self.noises), model=self.model)
        return float(self.function({"value": at}))


def exact(noisy, noises) -> float:
    mean = MEAN + SLOPES @ (AT - PLACE)
    normal = stats.multivariate_normal
    if not noises:
        return float(normal(mean, COVARIANCE).logpdf(noisy))
    parts = [
        share + normal(mean, COVARIANCE + noise).logpdf(noisy)
        for noise, share in noises
    ]
    return float(np.logaddexp(*parts))


@pytest.mark.parametrize("name", NOISES)
def test_densities_are_those_of_the_sums(name):
    noises = NOISES[name]
    densities = Densities(linearised(MEAN), noises)
    for noisy in (MEAN, MEAN + np.array([3.0, 1.0]), MEAN - 2):
        found = densities.of(linearised(noisy))
        assert found == pytest.approx(exact(noisy, noises), abs=1e-6)
        # the broken twin: as if the sums had been made independent with variance 1
        determinant = np.linalg.slogdet(COVARIANCE)[1] / 2
        assert found + determinant != pytest.approx(exact(noisy, noises), abs=0.1)


@pytest.mark.parametrize("name", NOISES)
def test_densities_integrate_to_1(name):
    densities = Densities(linearised(MEAN), NOISES[name])
    centre = MEAN + SLOPES @ (AT - PLACE)
    steps = np.array([2.5, 4.0])
    total = 0.0
    for i in range(-8, 9):
        for j in range(-8, 9):
            noisy = centre + steps * [i, j]
            total += np.exp(densities.of(linearised(noisy))) * steps.prod()
    assert total == pytest.approx(1, abs=1e-3)


def test_a_covariance_that_is_wider_costs_its_volume():
    here = linearised(MEAN)
    wider = replace(here, sampling=4 * COVARIANCE)
    densities = Densities(here, [])
    lost = densities.of(here, PLACE) - densities.of(wider, PLACE)
    assert lost == pytest.approx(2 * np.log(2), abs=1e-6)
