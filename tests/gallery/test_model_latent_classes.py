"""Latent classes from published margins: the law of what is seen, intervals for the population, sets, refusals."""

from dataclasses import replace
from types import SimpleNamespace

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytest

from pdips import InputError, Pairs, Schema, Steps, Table
from pdips.outside import NoisyMargins
from pdips.posterior import model_file
from pdips.posterior.nuts import sample

latent = model_file.load(model_file.path("latent_classes"))[0]
SIZES = (3, 2, 3, 2, 2)
NAMES = tuple("abcde")
SCHEMA = Schema.model_validate({"columns": {n: {"levels": list(range(k))} for n, k in zip(NAMES, SIZES, strict=True)}})
OFFSETS = np.cumsum([0, *SIZES])
OF = np.repeat(np.arange(len(SIZES)), SIZES)
ACROSS = OF[:, None] < OF
WEIGHTS = np.array([0.5, 0.3, 0.2])
SETTINGS = {
    "differences": Pairs(epsilon=1, kind="zcdp", delta="1e-6"),
    "counts, records protected": Pairs(epsilon=2, neighbours="add-remove"),
    "margins of three columns": Steps(epsilon=1),
}


def population(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of the levels by class, and those of two levels, of one on the diagonal."""
    levels = np.hstack([rng.dirichlet(np.ones(size), len(WEIGHTS)) for size in SIZES])
    both = (levels.T * WEIGHTS) @ levels
    return levels, np.where(OF[:, None] == OF, np.diag(WEIGHTS @ levels), both)


def released(mechanism, levels: np.ndarray, n: int, rng: np.random.Generator):
    """Return the noisy margins and a set of a sample of the population."""
    of, codes = rng.choice(len(WEIGHTS), n, p=WEIGHTS), {}
    for name, first, end in zip(NAMES, OFFSETS[:-1], OFFSETS[1:], strict=True):
        codes[name] = (rng.random((n, 1)) > levels[of, first : end - 1].cumsum(axis=1)).sum(axis=1)
    release, _ = mechanism.release(Table(pd.DataFrame(codes), SCHEMA), rng=rng)
    return NoisyMargins.of(release), release.sets[0]


def without_noise(margins: NoisyMargins) -> NoisyMargins:
    """The broken twin: noisy counts taken for exact ones."""
    return replace(margins, found=replace(margins.found, variance=margins.found.variance * 1e-6, total_variance=0.0))


def parameters(levels: np.ndarray) -> dict[str, np.ndarray]:
    columns = zip(NAMES, OFFSETS[:-1], OFFSETS[1:], strict=True)
    return {"weights": WEIGHTS} | {f"{name}_levels": levels[:, first:end] for name, first, end in columns}


def given(model: pm.Model) -> dict[str, np.ndarray]:
    return {key: model[key].get_value() for key in ("whiten", "seen")}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_seen_has_the_law_that_the_model_states(name: str) -> None:
    # a mean of 20 * 26 squares of standard normal errors; the seed is fixed, otherwise wrong once in 10,000 runs
    rng, squares, errors = np.random.default_rng(1), [], None
    for _ in range(20):
        levels, _ = population(rng)
        margins, records = released(SETTINGS[name], levels, 1_000, rng)
        squares.append([])
        for each in (margins, without_noise(margins)):
            model = latent.margins_model(each, records, len(WEIGHTS))
            if errors is None:
                first, law = model, model["margins"].owner.inputs[2]
                errors = pytensor.function(model.free_RVs, first["seen"] - law, mode="FAST_COMPILE")
            pm.set_data(given(model), model=first)
            point = parameters(levels)
            squares[-1].append((errors(*(point[rv.name] for rv in first.free_RVs)) ** 2).mean())
    right, twin = np.mean(squares, axis=0)
    assert abs(right - 1) < 4 * np.sqrt(2 / (20 * 26))
    assert twin > 1.5


@pytest.mark.usefixtures("quiet")
def test_intervals_hold_pairs_of_the_population() -> None:
    # 3 tables of 58 pairs of levels, worth about 3 * 19 that are independent: below .84 once in 1,000 runs
    rng, held, made = np.random.default_rng(2), [], None
    for _ in range(3):
        levels, true = population(rng)
        margins, records = released(Pairs(epsilon="1/4", kind="zcdp", delta="1e-6"), levels, 5_000, rng)
        found = []
        for each in (margins, without_noise(margins)):
            model = latent.margins_model(each, records, 4)
            made = made or SimpleNamespace(model=model, compiled={}, record_parameters=())
            pm.set_data(given(model), model=made.model)
            tree = sample(made, draws=400, tune=400, chains=2, rng=rng)
            pairs = tree.posterior["pairs"].to_numpy()[:, :, ACROSS]
            assert each is not margins or az.rhat({"pairs": pairs})["pairs"].max() < 1.05
            low, high = np.quantile(pairs, [0.025, 0.975], axis=(0, 1))
            found.append(((low <= true[ACROSS]) & (true[ACROSS] <= high)).mean())
        held.append(found)
    right, twin = np.mean(held, axis=0)
    assert right > 0.84 > twin


def test_a_set_is_drawn_from_a_draw() -> None:
    # the largest of 12 + 58 standardised differences is above 4.5 once in 2,000 runs
    rng = np.random.default_rng(3)
    levels, true = population(rng)
    posterior = {key: value[None, None] for key, value in parameters(levels).items()}
    tree = az.from_dict({"posterior": posterior}, dims={"weights": ["class"]})
    margins, _ = released(SETTINGS["differences"], levels, 100, rng)
    made = latent.draw(tree, margins, 20_000, rng)
    table = Table(made, SCHEMA)
    one = np.eye(OFFSETS[-1])[np.column_stack([table.codes[n] for n in NAMES]) + OFFSETS[:-1]].sum(axis=1)
    shares = one.T @ one / len(made)
    kept, alone = ACROSS | np.eye(OFFSETS[-1], dtype=bool), np.outer(np.diag(true), np.diag(true))
    spread = np.sqrt(true * (1 - true) / len(made))[kept]
    assert np.abs((shares - true)[kept] / spread).max() < 4.5
    assert np.abs((shares - np.where(ACROSS, alone, true))[kept] / spread).max() > 10  # the broken twin: one class


@pytest.mark.parametrize(
    ("columns", "more"),
    [
        ({"a": {"levels": [0, 1], "public": True}, "b": {"levels": [0, 1]}}, {}),
        ({"a": {"lower": 0, "upper": 9}, "b": {"levels": [0, 1]}}, {}),
        ({"a": {"levels": [0, 1]}, "b": {"levels": [0, 1]}}, {"impossible": [{"a": 1, "b": 1}]}),
    ],
)
def test_columns_that_do_not_suit_are_refused(columns, more) -> None:
    schema = Schema.model_validate({"columns": columns, **more})
    table = Table(pd.DataFrame({"a": [0, 1] * 50, "b": [1, 0] * 50}), schema)
    release, _ = Pairs(epsilon=1).release(table)
    with pytest.raises(InputError, match="columns with levels or bins, each two measured together"):
        latent.margins_model(NoisyMargins.of(release), release.sets[0])
