"""Common parameters where noise or records aren't as the model has them: the slope of
the evidence varies as groups show it, and not as its curvature says.
"""

from dataclasses import replace

import numpy as np
import pytest
from group_tables import DEVIATION, design_of
from scipy.stats import chi2

from pdips.groups.hierarchy import PlainHierarchy
from pdips.groups.hyperparameters import HyperPosterior
from pdips.groups.noisy_groups import NoisyGroups
from pdips.groups.sandwich import slope_and_curvature, widened

N_GROUPS = 150
AVERAGE = 15.0
NOISE = 4.0
MEAN = 1.0
SPREAD = 1.0
SHAPE = 20.0
TRUTH = np.array(
    [MEAN, *np.log([SPREAD, DEVIATION, AVERAGE, 1 / (1 / SHAPE + 1 / AVERAGE)])]
)
OF_SPREAD = 1


def posterior_of(law, rng, n_groups=N_GROUPS):
    """Normal groups whose noise has a law."""
    design = design_of("normal", n_groups)
    sizes = rng.poisson(rng.gamma(SHAPE, AVERAGE / SHAPE, n_groups))
    group = np.repeat(np.arange(n_groups), sizes)
    at = rng.normal(MEAN, SPREAD, n_groups)[group]
    upper = design.upper_steps(rng.normal(at, DEVIATION))
    steps = design.steps
    parts = (steps - upper, upper)
    ends = [np.bincount(group, part, minlength=n_groups) for part in parts]
    noise = rng.laplace(0, NOISE / np.sqrt(2), 2 * n_groups)
    if law == "normal":
        noise = rng.normal(0, NOISE, 2 * n_groups)
    squares = ((2 * upper / steps - 1) ** 2).sum()
    noisy = NoisyGroups.of_ends(
        design,
        np.rint(np.concatenate(ends) + noise * steps).astype(np.int64),
        (NOISE * steps) ** 2,
        squares=(float(squares + rng.normal(0, 10)), 100.0),
        n_records=int(sizes.sum()),
        public_sizes=None,
    )
    hierarchy = replace(PlainHierarchy.of(design), is_correlated=False)
    return HyperPosterior(noisy, hierarchy, rng)


@pytest.mark.parametrize("law", ["laplace", "normal"])
def test_a_slope_varies_as_groups_show_it(law):
    """400 tables: sums of squares are near a chi-square with 400 degrees of freedom,
    which leaves the range once in 1,000 tests.
    """
    n_tables = 400
    numbers = []
    along = np.eye(len(TRUTH))[OF_SPREAD] * 0.2
    for number in range(n_tables):
        hyper = posterior_of(law, np.random.default_rng([number, 61]))
        evidences = hyper.quadrature.log_evidences
        above, below = (
            evidences(hyper.common(TRUTH + sign * along / 2)).sum() for sign in (1, -1)
        )
        told = slope_and_curvature(hyper, TRUTH, along)
        numbers.append([(above - below) ** 2, *told])
    squares, variance, curvature = np.mean(numbers, axis=0)
    lower, upper = chi2.ppf([0.0005, 0.9995], n_tables) / n_tables
    assert lower < squares / variance < upper
    # the broken twin: the curvature, which is right for normal noise alone
    assert (squares / curvature < upper) == (law == "normal")


def test_laplace_noise_widens_the_spread_and_normal_noise_hardly():
    factors = {}
    for law in ("laplace", "normal"):
        some = []
        for number in range(4):
            hyper = posterior_of(law, np.random.default_rng([number, 62]), 600)
            draws = hyper.draws()
            wide = widened(hyper, draws)
            deviations = [
                np.sqrt(one.weights @ (one.places - one.weights @ one.places) ** 2)
                for one in (draws, wide)
            ]
            some.append((deviations[1] / deviations[0]) ** 2)
            # nothing is moved, and nothing made narrower
            middle = [one.weights @ one.places for one in (draws, wide)]
            assert middle[1] == pytest.approx(middle[0])
            assert (deviations[1] >= deviations[0] - 1e-12).all()
        factors[law] = np.mean(some, axis=0)
    # .17 and .02 on average
    assert factors["laplace"][OF_SPREAD] > 1.1
    assert factors["normal"].max() < 1.1
