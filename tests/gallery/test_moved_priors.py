"""A model is read, never written twice: each constant of a shipped model of noisy
statistics moves its posterior.

Twins are made of the model file's text with one constant changed, as an analyst would
after ``pdips models copy``. All draws of one model have one seed, so a sampler that
took nothing from the change would give them back to the last bit; what must move moves
by a quarter of the middle half of its draws. Noise is large, so that priors have the
say.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tables import cases, refuses

from pdips import Modips, Schema
from pdips.statistics import model as statistic_fit
from pdips.statistics.model import (
    Options,
    StatisticModel,
    as_statistic_model,
    by_own,
    prepared,
)
from pdips.statistics.noisy_model import Evidence
from pdips.statistics.regression import draw_fits
from pdips.statistics.samplers import Lengths, priors_of_fits, recognise

COLUMNS = cases(__file__, "described")
"""By model, the columns of a schema that suits it."""

MOVED = cases(__file__, "moved")
"""Model, text in its file, what takes its place, and a variable whose posterior is
another then.
"""

UNKNOWN = cases(__file__, "unknown")
"""Changes to a model that its sampler doesn't know, so that it steps aside."""


def text_of(name: str) -> str:
    return as_statistic_model(name).text


def twin(name: str, old: str, new: str, folder) -> StatisticModel:
    text = text_of(name)
    assert text.count(old) >= 1, "the file has other text now: change the twin with it"
    path = folder / f"{name}.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return as_statistic_model(path)


def given_of(name: str) -> Evidence:
    schema = Schema(columns=COLUMNS[name])
    return Evidence(Modips(epsilon="1/5", model=name).design(schema).tried(60))


def drawn(model: StatisticModel, given: Evidence):
    """Some draws of the sampler made for the model; its chains needn't agree."""
    given = Evidence(given.measured)
    built, kept = prepared(model, given)
    lengths, rng = (
        Lengths(draws=150, tune=150, chains=1, rounds=1),
        np.random.default_rng(1),
    )
    found = by_own(built, kept, given, lengths, rng).values
    return model.completed(
        given, draw_fits(given, priors_of_fits(given, model.name), found, rng), rng
    )


def moved(one, other) -> bool:
    """Whether a quartile of some element moved by more than a quarter of the wider
    middle half of draws.
    """
    quartiles = np.quantile(np.stack([one, other]), [0.25, 0.5, 0.75], axis=1)
    widest = (quartiles[2] - quartiles[0]).max(axis=0)
    return bool((np.abs(quartiles[:, 0] - quartiles[:, 1]) > widest / 4).any())


@pytest.fixture(scope="module")
def as_shipped():
    return {name: drawn(as_statistic_model(name), given_of(name)) for name in COLUMNS}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "old", "new", "variable"), MOVED)
def test_a_moved_prior_moves_the_posterior(
    name, old, new, variable, tmp_path, as_shipped
):
    assert moved(
        as_shipped[name][variable],
        drawn(twin(name, old, new, tmp_path), given_of(name))[variable],
    )


@pytest.mark.slow
def test_every_free_variable_of_a_sampler_has_a_twin():
    for name in COLUMNS:
        given = given_of(name)
        built = as_statistic_model(name).built(given)
        for prior in (
            each.name for each in built.free_RVs if each.name not in given.latents
        ):
            # these have no constant to move: see UNKNOWN
            fixed = prior in ("correlation", "error")
            seen = {variable for model, _, _, variable in MOVED if model == name}
            assert fixed or prior in seen


def test_a_sampler_that_ignores_the_prior_is_seen(tmp_path, as_shipped, monkeypatch):
    # the broken twin: constants as they were when the sampler was written
    given = given_of("normal_moments")
    first = recognise(as_statistic_model("normal_moments").built(given), given)

    def recognised(model, given):
        return replace(recognise(model, given), draw=first.draw)

    monkeypatch.setattr(statistic_fit, "recognise", recognised)
    monkeypatch.setattr(statistic_fit, "_compiled", statistic_fit.Tried())
    for _, old, new, variable in [
        each for each in MOVED if each[0] == "normal_moments"
    ]:
        found = drawn(
            twin("normal_moments", old, new, tmp_path), given_of("normal_moments")
        )
        assert not moved(as_shipped["normal_moments"][variable], found[variable])


@pytest.mark.parametrize(("name", "old", "new"), UNKNOWN)
def test_a_sampler_steps_aside_from_what_it_does_not_know(name, old, new, tmp_path):
    given = given_of(name)
    assert recognise(twin(name, old, new, tmp_path).built(given), given) is None


@pytest.mark.parametrize("likelihood", ["noise-aware", "plug-in"])
@pytest.mark.parametrize(
    "name", ["bernoulli", "multinomial", "normal_moments", "linear_regression"]
)
def test_samplers_recognise_what_ships(name, likelihood):
    for n in (20, 5_000):
        schema = Schema(columns=COLUMNS[name])
        given = Evidence(
            Modips(epsilon=2, model=name).design(schema).tried(n), likelihood
        )
        assert recognise(as_statistic_model(name).built(given), given) is not None


def test_files_with_another_prior_of_coefficients_or_draws_of_their_own_are_refused(
    tmp_path,
):
    model = twin("slomag", "0, PRIOR, shape", "1, PRIOR, shape", tmp_path)
    refuses(
        "law without density",
        Modips(epsilon=2, model=model).spends,
        Schema(columns=COLUMNS["slomag"]),
    )
    path = tmp_path / "model.py"
    path.write_text(
        text_of("bernoulli") + "\n\ndef draw_posterior(given, n_draws, "
        "schema, rng):\n    return {}\n"
    )
    refuses("the posterior is that of build_model", as_statistic_model, path)


@pytest.mark.parametrize(
    ("name", "options", "unused"), cases(__file__, "options_that_a_sampler_lacks")
)
def test_options_that_a_sampler_lacks_are_refused_before_the_charge(
    name, options, unused
):
    made = Modips(epsilon=2, model=name, **options)
    refuses(
        f"{unused} would have no effect", made.spends, Schema(columns=COLUMNS[name])
    )


@pytest.mark.slow
def test_options_that_a_sampler_has_are_used():
    given = given_of("glom")
    lengths = Options(draws=30, tune=20, chains=3).lengths(5, 10)
    assert (lengths.draws, lengths.tune, lengths.chains) == (30, 20, 3)
    sampler = recognise(as_statistic_model("glom").built(given), given)
    assert set(sampler.options) == {"draws", "tune", "n_chains"}
    found = sampler.draw(given, replace(lengths, rounds=1), np.random.default_rng(0))
    assert (found.chains, len(found.values["m"])) == (3, 90)
    assert Fraction(len(found.values["m"]), found.chains) == 30
