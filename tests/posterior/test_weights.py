"""Record weights of Hu et al. (2022), by hand and as the paper's figures have them."""

import numpy as np
import pytest
from small_models import UNIT, beta, beta_records, blueprint
from tables import cases, refuses

from pdips.posterior.censoring import check_weights
from pdips.posterior.pseudo_posterior import GridFit, linear_weights, lipschitz_bound, weighted_e

F = np.array([2.0, 4.0, 3.0, 10.0])


def test_linear_weights_by_hand():
    np.testing.assert_allclose(linear_weights(F), [1, 0.75, 0.875, 0])
    np.testing.assert_allclose(linear_weights(F, scale=0.8), [0.8, 0.6, 0.7, 0])
    np.testing.assert_allclose(linear_weights(F, scale=1.2, shift=-0.1), [1, 0.8, 0.95, 0])
    np.testing.assert_allclose(linear_weights([*F, np.inf, np.nan]), [1, 0.75, 0.875, 0, 0, 0])
    assert (linear_weights([np.inf, np.inf]) == 0).all()
    np.testing.assert_allclose(linear_weights([3.0, 3.0]), 1)
    np.testing.assert_allclose(linear_weights([3.0, 3.0, np.inf], scale=0.5), [0.5, 0.5, 0])


def test_weighted_e_and_the_local_bound_by_hand():
    np.testing.assert_allclose(weighted_e(linear_weights(F), F, 5), [1, 0, 0, 0])
    np.testing.assert_allclose(weighted_e(linear_weights(F), F, "5.25"), [1, 0, 0.875, 0])
    assert (weighted_e([0, 1], [np.inf, 1], 5) == [0, 1]).all()
    assert lipschitz_bound([1, 0.5, 0], [2, 6, np.inf]) == 3


def test_a_simulated_table_of_the_paper():
    # Hu et al. (2022), section 4.2: over 100 tables the bound is from 7.5 to 15 unweighted and from 2 to 3.5 weighted
    fit = GridFit(blueprint(beta, UNIT), {"y": beta_records(2000, seed=3)}, 1000, np.random.default_rng(0))
    bounds = fit.largest(None)
    weights = linear_weights(bounds)
    weighted = fit.largest(weights)
    assert 6.5 < bounds.max() < 15
    assert 1.9 < lipschitz_bound(weights, weighted) < 3.5
    dropped = [int((weighted_e(weights, bounds, epsilon) == 0).sum()) for epsilon in (5, 4, 3)]
    assert dropped[0] <= dropped[1] <= dropped[2]
    assert 300 < dropped[2] < 800  # the paper's mean is 573
    # the broken twin: the paper's words, 1 / f, as they are
    assert not 1.9 < lipschitz_bound(np.minimum(1, 1 / bounds), weighted) < 3.5


@pytest.mark.parametrize(("weights", "says"), cases(__file__, "weights_out_of_range"))
def test_weights_out_of_range(weights, says):
    refuses(says, check_weights, weights, 2)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: linear_weights([]), "bounds"),
        (lambda: linear_weights([[1.0]]), "bounds"),
        (lambda: linear_weights([-1.0]), "below 0"),
        (lambda: linear_weights(F, scale=0), "scale"),
        (lambda: linear_weights(F, shift=np.nan), "shift"),
        (lambda: weighted_e([1, 1], [1, 1], 0), "epsilon"),
        (lambda: weighted_e([1], [1, 1], 1), "weights"),
    ],
)
def test_arguments_out_of_range(call, says):
    refuses(says, call)
