"""Coordinates of unknown statistics against the laws they stand for, and the models that use them."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats

from pdips import InputError, Modips, Schema, Table
from pdips.privacy.noise import RandomBits
from pdips.statistics import laws
from pdips.statistics.model import StatisticModel, as_statistic_model
from pdips.statistics.noisy_model import Evidence


def value(*graphs):
    return [np.asarray(each) for each in pytensor.function([], list(graphs), mode="FAST_COMPILE")()]


def slope(f, x):
    """Log of the absolute determinant of the derivative, by central differences."""
    steps = 1e-5 * np.eye(len(x))
    return np.linalg.slogdet(np.array([(f(x + step) - f(x - step)) / 2e-5 for step in steps]))[1]


@pytest.mark.parametrize(("d", "follow"), [(1, 0.4), (2, 1.0), (3, 0.0), (3, 0.4)])
def test_unknown_scatter_has_the_wishart_law(d, follow):
    rng = np.random.default_rng(d)
    rows, columns = np.tril_indices(d)
    root = np.linalg.cholesky(stats.wishart(d + 3, np.eye(d) / 5).rvs(random_state=rng).reshape(d, d))
    centre = np.linalg.cholesky(stats.wishart(d + 3, np.eye(d)).rvs(random_state=rng).reshape(d, d))
    steps, df, x = rng.uniform(0.1, 0.5, len(rows)), 9.5, pt.dvector("x")
    factor, density = laws.scatter_given(x, pt.as_tensor(root), df, centre, np.full(len(rows), follow), steps, d)
    known = pytensor.function([x], [pt.dot(factor, factor.T), density], mode="FAST_COMPILE")
    found = []
    for _ in range(3):
        moved = rng.standard_normal(len(rows))
        scatter, logs = known(moved)
        law = stats.wishart.logpdf(scatter, df, root @ root.T)
        jacobian = slope(lambda at: known(at)[0][rows, columns], moved)
        found.append(float(logs + stats.norm.logpdf(moved).sum() - law - jacobian))
    np.testing.assert_allclose(found, found[0], atol=1e-6)  # constants don't matter, what depends on moves does


def test_unknown_sums_are_integrated_out_where_noise_is_normal():
    noisy, deviation, mean, sd = np.array([3.0, -1.0]), 2.0, np.array([1.0, 0.5]), np.array([0.7, 5.0])
    for moved in (np.zeros(2), np.array([1.3, -2.0])):
        standard, density = value(*laws.sum_given(pt.as_tensor(noisy), deviation, pt.as_tensor(moved), mean, sd))
        noise = stats.norm.logpdf(noisy, mean + sd * standard, deviation).sum()
        law = density + stats.norm.logpdf(moved).sum() + noise
        marginal = stats.norm.logpdf(noisy, mean, np.hypot(sd, deviation)).sum()
        # Normal noise: what is left is the marginal law of the noisy sums times a standard normal of the moves.
        constant = -len(noisy) * np.log(deviation)
        assert float(law - marginal - stats.norm.logpdf(moved).sum()) == pytest.approx(constant)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_factors_of_the_covariance_of_sums(d):
    rng = np.random.default_rng(d)
    chol = np.linalg.cholesky(stats.wishart(d + 3, np.eye(d)).rvs(random_state=rng).reshape(d, d))
    times, between = np.array([0.5, 20.0]), rng.uniform(0.1, 2, d)
    for given in (None, between):
        flat = value(*(each for row in laws.factors(pt.as_tensor(chol), d, pt.as_tensor(times), given) for each in row))
        for k, t in enumerate(times):
            root = np.zeros((d, d))
            root[np.tril_indices(d)] = [each[k] for each in flat]
            wanted = t * chol @ chol.T + (0 if given is None else t**2 * np.diag(given**2))
            np.testing.assert_allclose(root @ root.T, wanted)


def test_numbers_that_add_up_to_nothing_keep_their_lengths():
    moved = np.array([0.3, -1.0, 2.0])
    [found] = value(laws.adding_up(pt.as_tensor(moved)))
    assert found.sum() == pytest.approx(0, abs=1e-12)
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(moved))


MIXED = Schema.model_validate(
    {"columns": {"g": {"levels": ["a", "b"]}, "y": {"lower": 0, "upper": 10}, "z": {"lower": -1, "upper": 1}}}
)


def test_what_the_general_location_model_integrates_out_is_drawn():
    model = as_statistic_model("glom")
    counts, sums = np.array([400.0, 100.0]), np.array([[80.0, -40.0], [10.0, 30.0]])
    one = {"counts": counts, "sums": sums, "m": np.zeros(2), "tau": np.full(2, 0.3), "Sigma": np.diag([0.04, 0.09])}
    draws = {name: np.broadcast_to(each, (4000, *each.shape)) for name, each in one.items()}
    given = Evidence(Modips(epsilon=1, model="glom").design(MIXED).tried())
    model.built(given)
    found = model.completed(given, draws, np.random.default_rng(1))
    np.testing.assert_allclose(found["pi"].mean(axis=0), (counts + 0.5) / 501, atol=0.002)  # 6 standard errors
    precision = 1 / 0.3**2 + counts[:, None] / np.array([0.04, 0.09])
    mean, sd = sums / np.array([0.04, 0.09]) / precision, precision**-0.5
    assert (np.abs(found["mu"].mean(axis=0) - mean) < 5 * sd / 4000**0.5).all()  # 1 in 400,000 each
    np.testing.assert_allclose(found["mu"].std(axis=0), sd, rtol=0.06)


def test_models_say_which_schemas_they_are_for():
    only = Schema.model_validate({"columns": {"g": {"levels": ["a", "b"]}}})
    for name in ("glom", "linear_regression"):
        with pytest.raises(InputError, match=f"{name}.py describes"):
            as_statistic_model(name).declared(only, "replace-one")


PARTS = {
    "statistics": "def statistics(schema):\n    return {}\n",
    "build_model": "def build_model(given, schema):\n    return None\n",
    "draw_records": "def draw_records(draw, records, schema, rng):\n    return {}\n",
}


@pytest.mark.parametrize("lacking", [some for size in (1, 2) for some in combinations(PARTS, size)])
def test_a_file_that_lacks_a_part_is_told_which(lacking, tmp_path):
    path = tmp_path / "model.py"
    path.write_text("".join(text for name, text in PARTS.items() if name not in lacking), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        as_statistic_model(path)
    for name in PARTS:
        assert (f"{name}(" in str(refused.value)) == (name in lacking)


def test_draws_of_the_rest_must_be_one_for_each_draw():
    model = StatisticModel(
        statistics=lambda schema: {},
        build_model=lambda given, schema: None,
        draw_records=lambda draw, records, schema, rng: {},
        draw_rest=lambda given, draws, schema, rng: {"pi": np.zeros(3)},
    )
    with pytest.raises(InputError, match="draw_rest must return one value for each draw"):
        model.completed(
            Evidence(Modips(epsilon=1, model="glom").design(MIXED).tried()),
            {"m": np.zeros(10)},
            np.random.default_rng(1),
        )


def test_public_columns_reach_the_model_and_fix_its_least_squares():
    known = {"g": {"levels": ["a", "b"], "public": True}, "x": {"lower": 0, "upper": 4, "public": True}}
    schema = Schema.model_validate({"columns": {**known, "y": {"lower": -10, "upper": 10}}})
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"g": rng.choice(["a", "b"], 400), "x": rng.uniform(0, 4, 400)})
    frame["y"] = 1 + 2 * (frame["g"] == "b") - frame["x"] + rng.normal(0, 0.5, 400)
    made = Modips(epsilon=10_000, model="linear_regression", likelihood="plug-in")
    measured = made.design(schema).sanitize(Table(frame, schema), RandomBits(rng))
    assert set(measured.public) == {"g", "x"}
    model = made.model.built(Evidence(measured, "plug-in"))
    x = np.column_stack([np.ones(400), frame["g"] == "b", frame["x"] / 2 - 1])
    exact = np.linalg.lstsq(x, frame["y"] / 10, rcond=None)[0]
    np.testing.assert_allclose(model["centre of least squares"].get_value(), exact, atol=2e-3)
