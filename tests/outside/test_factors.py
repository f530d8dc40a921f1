"""Noisy margins as a term of a PyMC model: what it says, and what doesn't fit."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy import stats
from tables import refuses

import pdips
from pdips import Margins, NoisyMargins, Schema, Table
from pdips.own_models import margin_factor

SCHEMA = Schema.model_validate(
    {
        "columns": {
            "sex": {"levels": ["f", "m"]},
            "school": {"levels": ["low", "middle", "high"], "missing": True},
            "grade": {"levels": [3, 1, 2]},
            "age": {"lower": 20, "upper": 80, "bins": 3},
        }
    }
)
COORDS = {
    "sex": ["f", "m"],
    "school": ["low", "middle", "high", "missing"],
    "grade": [3, 1, 2],
    "age": ["young", "middle-aged", "old"],
}
N = 800


@pytest.fixture(scope="module")
def release():
    rng = np.random.default_rng(4)
    columns = {
        "sex": np.array(["f", "m"])[rng.integers(2, size=N)],
        "school": np.array(["low", "middle", "high", None])[rng.integers(4, size=N)],
        "grade": rng.integers(1, 4, size=N),
        "age": rng.uniform(20, 80, N),
    }
    table = Table(pd.DataFrame(columns), SCHEMA)
    made, _ = Margins(epsilon=4).release(table, rng=rng)
    return made


@pytest.fixture(scope="module")
def margins(release):
    return NoisyMargins.of(release)


def flat(*names):
    shape = tuple(SCHEMA.columns[name].n_levels for name in names)
    return np.full(shape, N / np.prod(shape))


def test_the_factor_is_the_normal_law_of_noisy_contrasts(margins):
    names = ["sex", "school"]
    with pm.Model(coords=COORDS) as model:
        expected = pm.Data("expected", flat(*names), dims=names)
        margins.factor(names, expected, name="counts", target="table")
    contrasts, seen, variances = margins._coordinates(names)
    direct = stats.norm.logpdf(seen, flat(*names).ravel() @ contrasts, variances**0.5)
    logp = model.compile_logp(mode="FAST_COMPILE")({})
    assert logp == pytest.approx(direct.sum())
    assert [*model.coords["counts_contrast"]] == [
        "sex[m]",
        "school[middle]",
        "school[high]",
        "school[missing]",
        *(f"sex:school[m, {name}]" for name in ("middle", "high", "missing")),
    ]
    assert model.named_vars_to_dims["counts"] == ("counts_contrast",)


def test_labels_say_which_columns_a_contrast_depends_on(margins):
    names = ["sex", "school", "grade"]
    with pm.Model() as model:
        margins.factor(names, flat(*names))
    contrasts, _, _ = margins._coordinates(names)
    for label, contrast in zip(
        model.coords["margins_contrast"], contrasts.T, strict=True
    ):
        cells = contrast.reshape(flat(*names).shape)
        moves = [
            name
            for axis, name in enumerate(names)
            if np.ptp(cells, axis=axis).max() > 1e-9
        ]
        name, _, levels = label.removesuffix("]").partition("[")
        assert name == ":".join(moves)
        # and which level of each is above 0
        at = np.unravel_index(cells.argmax(), cells.shape)
        own = [
            SCHEMA.columns[name].names()[place]
            for name, place in zip(names, at, strict=True)
            if name in moves
        ]
        assert levels == ", ".join(own)


def test_every_form_of_a_release_gives_the_same_factor(release, margins, tmp_path):
    release.publish(tmp_path / "public", allow=["seeded"])
    with pm.Model() as model:
        for number, given in enumerate(
            (release, margins, tmp_path, pdips.open(tmp_path))
        ):
            margin_factor(given, "sex", flat("sex"), name=f"of {number}")
    terms = [each.eval() for each in model.observed_RVs]
    means = [each.owner.inputs[-2].eval() for each in model.observed_RVs]
    for mean, value in zip(means, terms, strict=True):
        assert mean.shape == value.shape == (1,)
    observed = [
        model.rvs_to_values[each].eval().tolist() for each in model.observed_RVs
    ]
    assert observed.count(observed[0]) == 4


def test_under_add_remove_the_number_of_records_is_a_contrast():
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"sex": np.array(["f", "m"])[rng.integers(2, size=200)]})
    only = SCHEMA.only(["sex"])
    mechanism = Margins(epsilon=2, neighbours="add-remove")
    made, _ = mechanism.release(Table(frame, only), rng=rng)
    with pm.Model() as model:
        margin_factor(made, ["sex"], [100.0, 100.0])
    assert [*model.coords["margins_contrast"]] == ["number of records", "sex[m]"]


def with_dims(names, *, columns=None, coords=COORDS, dims=None, given=None):
    """Return what adds a factor to a model with these coords."""

    def add(margins):
        with pm.Model(coords=coords):
            expected = flat(*names) if given is None else given
            margins.factor(columns or names, expected, dims=dims or names)

    return add


UNFIT = {
    "'place' is no dimension of the model; it has 'sex', 'school'": with_dims(
        ["sex", "school"], dims=["sex", "place"]
    ),
    "has the dims school, sex, and the columns are sex, school": with_dims(
        ["school", "sex"], columns=["sex", "school"], given=flat("sex", "school")
    ),
    "'school' has another order than .* schema low, middle, high, missing": with_dims(
        ["sex", "school"],
        coords=COORDS | {"school": ["high", "middle", "low", "missing"]},
    ),
    "'grade' has another order .* 3, 1, 2": with_dims(
        ["sex", "grade"], coords=COORDS | {"grade": [1, 2, 3]}
    ),
    "'sex' has other labels than the levels": with_dims(
        ["sex", "grade"], coords=COORDS | {"sex": ["man", "woman"]}
    ),
    "'school' has 3 labels, and column 'school' 4 levels": with_dims(
        ["sex", "school"], coords=COORDS | {"school": ["low", "middle", "high"]}
    ),
    "expected has 2 axes, and dims names 1": with_dims(
        ["sex", "school"], dims=["sex"], given=flat("sex", "school")
    ),
    "axis of 'school' in expected has 3 entries, and the column has 4 levels: low": (
        with_dims(["sex", "school"], given=np.ones((2, 3)))
    ),
    "7 entries, and sex, school have 2 x 4 = 8 cells": with_dims(
        ["sex", "school"], given=np.ones(7)
    ),
    "expected has 3 axes, and there are 2 columns": with_dims(
        ["sex", "school"], given=np.ones((2, 4, 1))
    ),
    "is no column of the release": with_dims(["sex", "school"], columns=["sex", "pay"]),
    "columns that differ": with_dims(["sex", "sex"]),
}


@pytest.mark.parametrize("says", UNFIT)
def test_what_is_about_other_cells_is_refused(says, margins):
    refuses(says, UNFIT[says], margins)


def test_what_fits(margins):
    with_dims(["school", "grade"])(margins)
    with_dims(["sex", "age"])(margins)  # intervals may be called as you like
    with_dims(["sex", "grade"], coords=COORDS | {"grade": ["3", "1", "2"]})(margins)
    with pm.Model(coords=COORDS) as model:
        model.add_coord("cell", length=8)
        share = pm.Dirichlet("share", np.ones(8), dims="cell")
        expected = pm.Deterministic("expected", N * share, dims="cell")
        margins.factor(["sex", "school"], expected)
    assert np.isfinite(model.compile_logp(mode="FAST_COMPILE")(model.initial_point()))


def test_dims_of_a_named_variable_are_read(margins):
    with pm.Model(coords=COORDS | {"school": ["high", "low", "middle", "missing"]}):
        expected = pm.Data("expected", flat("sex", "school"), dims=["sex", "school"])
        refuses("another order", margins.factor, ["sex", "school"], expected)


def test_a_name_twice_and_no_model_are_refused(margins):
    refuses("inside of with pm.Model", margins.factor, ["sex"], flat("sex"))
    with pm.Model():
        margins.factor(["sex"], flat("sex"))
        refuses("'margins' already", margins.factor, ["sex"], flat("sex"))
    refuses("is of type int", margin_factor, 3, ["sex"], flat("sex"))
