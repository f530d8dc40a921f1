"""Coordinates of unknown statistics against the laws they stand for, and the models
that use them.
"""

import json
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from gallery_tables import EXAMPLE
from margin_tables import of_pairs
from scipy import stats
from tables import cases, refuses, schema_of

from pdips import Margins, Modips, Schema, Table, cli
from pdips.outside import NoisyMargins
from pdips.posterior import model_file
from pdips.posterior.nuts import sample
from pdips.privacy.noise import RandomBits
from pdips.statistics import laws
from pdips.statistics.model import as_statistic_model
from pdips.statistics.noisy_model import Evidence


def value(*graphs):
    return [
        np.asarray(each)
        for each in pytensor.function([], list(graphs), mode="FAST_COMPILE")()
    ]


def slope(f, x):
    """Log of the absolute determinant of the derivative, by central differences."""
    steps = 1e-5 * np.eye(len(x))
    return np.linalg.slogdet(
        np.array([(f(x + step) - f(x - step)) / 2e-5 for step in steps])
    )[1]


@pytest.mark.parametrize(("d", "follow"), [(1, 0.4), (2, 1.0), (3, 0.0), (3, 0.4)])
def test_unknown_scatter_has_the_wishart_law(d, follow):
    rng = np.random.default_rng(d)
    rows, columns = np.tril_indices(d)
    root = np.linalg.cholesky(
        stats.wishart(d + 3, np.eye(d) / 5).rvs(random_state=rng).reshape(d, d)
    )
    centre = np.linalg.cholesky(
        stats.wishart(d + 3, np.eye(d)).rvs(random_state=rng).reshape(d, d)
    )
    steps, df, x = rng.uniform(0.1, 0.5, len(rows)), 9.5, pt.dvector("x")
    factor, density = laws.scatter_given(
        x, pt.as_tensor(root), df, centre, np.full(len(rows), follow), steps, d
    )
    known = pytensor.function(
        [x], [pt.dot(factor, factor.T), density], mode="FAST_COMPILE"
    )
    found = []
    for _ in range(3):
        moved = rng.standard_normal(len(rows))
        scatter, logs = known(moved)
        law = stats.wishart.logpdf(scatter, df, root @ root.T)
        jacobian = slope(lambda at: known(at)[0][rows, columns], moved)
        found.append(float(logs + stats.norm.logpdf(moved).sum() - law - jacobian))
    # constants don't matter, what depends on moves does
    np.testing.assert_allclose(found, found[0], atol=1e-6)


def test_unknown_sums_are_integrated_out_where_noise_is_normal():
    noisy, deviation, mean, sd = (
        np.array([3.0, -1.0]),
        2.0,
        np.array([1.0, 0.5]),
        np.array([0.7, 5.0]),
    )
    for moved in (np.zeros(2), np.array([1.3, -2.0])):
        standard, density = value(
            *laws.sum_given(
                pt.as_tensor(noisy), deviation, pt.as_tensor(moved), mean, sd
            )
        )
        noise = stats.norm.logpdf(noisy, mean + sd * standard, deviation).sum()
        law = density + stats.norm.logpdf(moved).sum() + noise
        marginal = stats.norm.logpdf(noisy, mean, np.hypot(sd, deviation)).sum()
        # Normal noise: what is left is the marginal law of the noisy sums times a
        # standard normal of the moves.
        constant = -len(noisy) * np.log(deviation)
        assert float(law - marginal - stats.norm.logpdf(moved).sum()) == pytest.approx(
            constant
        )


@pytest.mark.parametrize("d", [1, 2, 3])
def test_factors_of_the_covariance_of_sums(d):
    rng = np.random.default_rng(d)
    chol = np.linalg.cholesky(
        stats.wishart(d + 3, np.eye(d)).rvs(random_state=rng).reshape(d, d)
    )
    times, between = np.array([0.5, 20.0]), rng.uniform(0.1, 2, d)
    for given in (None, between):
        flat = value(
            *(
                each
                for row in laws.factors(
                    pt.as_tensor(chol), d, pt.as_tensor(times), given
                )
                for each in row
            )
        )
        for k, t in enumerate(times):
            root = np.zeros((d, d))
            root[np.tril_indices(d)] = [each[k] for each in flat]
            wanted = t * chol @ chol.T + (
                0 if given is None else t**2 * np.diag(given**2)
            )
            np.testing.assert_allclose(root @ root.T, wanted)


def test_numbers_that_add_up_to_nothing_keep_their_lengths():
    moved = np.array([0.3, -1.0, 2.0])
    [found] = value(laws.adding_up(pt.as_tensor(moved)))
    assert found.sum() == pytest.approx(0, abs=1e-12)
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(moved))


MIXED = Schema(
    columns={
        "g": {"levels": ["a", "b"]},
        "y": {"lower": 0, "upper": 10},
        "z": {"lower": -1, "upper": 1},
    }
)


def test_what_the_general_location_model_integrates_out_is_drawn():
    model = as_statistic_model("glom")
    counts, sums = np.array([400.0, 100.0]), np.array([[80.0, -40.0], [10.0, 30.0]])
    one = {
        "counts": counts,
        "sums": sums,
        "m": np.zeros(2),
        "tau": np.full(2, 0.3),
        "Sigma": np.diag([0.04, 0.09]),
    }
    draws = {
        name: np.broadcast_to(each, (4000, *each.shape)) for name, each in one.items()
    }
    given = Evidence(Modips(epsilon=1, model="glom").design(MIXED).tried())
    model.built(given)
    found = model.completed(given, draws, np.random.default_rng(1))
    # 6 standard errors
    np.testing.assert_allclose(
        found["pi"].mean(axis=0), (counts + 0.5) / 501, atol=0.002
    )
    precision = 1 / 0.3**2 + counts[:, None] / np.array([0.04, 0.09])
    mean, sd = sums / np.array([0.04, 0.09]) / precision, precision**-0.5
    # 1 in 400,000 each
    assert (np.abs(found["mu"].mean(axis=0) - mean) < 5 * sd / 4000**0.5).all()
    np.testing.assert_allclose(found["mu"].std(axis=0), sd, rtol=0.06)


PARTS = cases(__file__, "parts")


@pytest.mark.parametrize(
    "lacking", [some for size in (1, 2) for some in combinations(PARTS, size)]
)
def test_a_file_that_lacks_a_part_is_told_which(lacking, tmp_path):
    path = tmp_path / "model.py"
    path.write_text(
        "".join(text for name, text in PARTS.items() if name not in lacking),
        encoding="utf-8",
    )
    said = refuses("", as_statistic_model, path)
    for name in PARTS:
        assert (f"{name}(" in said) == (name in lacking)


def test_draws_of_the_rest_must_be_one_for_each_draw():
    model = replace(
        as_statistic_model("glom"),
        draw_rest=lambda given, draws, schema, rng: {"pi": np.zeros(3)},
    )
    given = Evidence(Modips(epsilon=1, model="glom").design(MIXED).tried())
    said = "draw_rest must return one value for each draw"
    refuses(said, model.completed, given, {"m": np.zeros(10)}, np.random.default_rng(1))


def test_public_columns_reach_the_model_and_fix_its_least_squares():
    known = {
        "g": {"levels": ["a", "b"], "public": True},
        "x": {"lower": 0, "upper": 4, "public": True},
    }
    schema = Schema(columns={**known, "y": {"lower": -10, "upper": 10}})
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"g": rng.choice(["a", "b"], 400), "x": rng.uniform(0, 4, 400)}
    )
    frame["y"] = 1 + 2 * (frame["g"] == "b") - frame["x"] + rng.normal(0, 0.5, 400)
    made = Modips(epsilon=10_000, model="linear_regression", likelihood="plug-in")
    measured = made.design(schema).sanitize(Table(frame, schema), RandomBits(rng))
    assert set(measured.public) == {"g", "x"}
    model = made.model.built(Evidence(measured, "plug-in"))
    x = np.column_stack([np.ones(400), frame["g"] == "b", frame["x"] / 2 - 1])
    exact = np.linalg.lstsq(x, frame["y"] / 10, rcond=None)[0]
    np.testing.assert_allclose(
        model["centre of least squares"].get_value(), exact, atol=2e-3
    )


# Each model of the gallery from the command line on a real table, down to files that
# keep the schema


BY_CHAINS = sorted(set(EXAMPLE) - {"beta", "normal"})  # the others are drawn on a grid
RECORDS = 200  # Of the tables for models that need chains, where these are left out


def run(
    monkeypatch, folder: Path, name: str, *more: str, n_records: int | None = None
) -> None:
    """Release a real table, or so many records of it; check what there is, and that the
    set has the same schema.
    """
    schema, given = EXAMPLE[name].schema, EXAMPLE[name].load()
    if n_records is not None:
        given = given.sample(min(n_records, len(given)), random_state=5).reset_index(
            drop=True
        )
    given.to_parquet(folder / "t.parquet")
    (folder / "s.toml").write_text(EXAMPLE[name].schema_text)
    words = (
        f"synthesize {folder}/t.parquet --schema {folder}/s.toml --mechanism "
        f"censored-posterior --model {name} --report"
    )
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "pdips",
            *words.split(),
            "--epsilon",
            "2",
            "--out",
            str(folder / "out"),
            *more,
        ],
    )
    cli.main()
    public, confidential = folder / "out/public", folder / "out/confidential"
    made = Table.read(public / "synthetic_1.parquet", schema.without_person())
    assert made.n_records == len(given)
    for column in schema.public_columns:
        np.testing.assert_array_equal(
            np.sort(made.codes[column]), np.sort(Table(given, schema).codes[column])
        )
    facts = json.loads((public / "privacy.json").read_text())
    assert facts["settings"]["model"] == f"{name}.py"
    assert "build_model" in facts["settings"]["model_source"]
    posterior = json.loads((confidential / "run.json").read_text())["diagnostics"][
        "posterior"
    ]
    assert posterior["parameters"]
    assert posterior["bounds"].get("failed") is None
    assert posterior["bounds"]["bound"] > 0
    assert "The posterior" in (confidential / "report.html").read_text()


@pytest.mark.long
@pytest.mark.parametrize("name", BY_CHAINS)
def test_a_model_by_chains_end_to_end(monkeypatch, tmp_path, name):
    """The real sampler, compiler and gate, on the whole table where it is small."""
    run(
        monkeypatch,
        tmp_path,
        name,
        "--option",
        "draws=800",
        "--option",
        "tune=500",
        n_records=1000,
    )


@pytest.mark.slow
@pytest.mark.long_cases(
    "dpmpm", "beta_regression", "lognormal_regression", "negative_binomial"
)
@pytest.mark.usefixtures("few_simulated")
@pytest.mark.parametrize("name", sorted(EXAMPLE))
def test_a_model_end_to_end_without_a_sampler(monkeypatch, tmp_path, name):
    """All but the sampler: draws near the private reference stand in for its chains."""
    from pdips.convergence import converged
    from pdips.posterior import nuts as chains
    from pdips.posterior.inspection import tree_of
    from pdips.posterior.model import constrained

    def near(model, *, chains, rng, start, **_):
        place = np.concatenate(
            [np.ravel(start[value.name]) for value in model.model.value_vars]
        )
        return tree_of(
            constrained(
                model.model,
                place + 0.01 * rng.standard_normal((chains * 50, len(place))),
            )
        )

    monkeypatch.setattr(chains, "sample", near)
    monkeypatch.setattr(chains, "converged", lambda tree, *_: converged(tree))
    monkeypatch.setattr(chains, "require", lambda _: None)
    run(monkeypatch, tmp_path, name, n_records=RECORDS if name in BY_CHAINS else None)


# Latent classes from published margins: the law of what is seen, intervals for the
# population, sets, refusals


latent = model_file.load(model_file.path("latent_classes"))[0]
SIZES = (3, 2, 3, 2, 2)
NAMES = tuple("abcde")
SCHEMA = schema_of(*SIZES)
OFFSETS = np.cumsum([0, *SIZES])
OF = np.repeat(np.arange(len(SIZES)), SIZES)
ACROSS = OF[:, None] < OF
WEIGHTS = np.array([0.5, 0.3, 0.2])
SETTINGS = {
    "differences": of_pairs(epsilon=1, delta="1e-6"),
    "counts, records protected": of_pairs(epsilon=2, neighbours="add-remove"),
    "margins of three columns": Margins(epsilon=1),
}


def population(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of the levels by class, and those of two levels, of one on
    the diagonal.
    """
    levels = np.hstack([rng.dirichlet(np.ones(size), len(WEIGHTS)) for size in SIZES])
    both = (levels.T * WEIGHTS) @ levels
    return levels, np.where(OF[:, None] == OF, np.diag(WEIGHTS @ levels), both)


def released(mechanism, levels: np.ndarray, n: int, rng: np.random.Generator):
    """Return the noisy margins and a set of a sample of the population."""
    of, codes = rng.choice(len(WEIGHTS), n, p=WEIGHTS), {}
    for name, first, end in zip(NAMES, OFFSETS[:-1], OFFSETS[1:], strict=True):
        codes[name] = (
            rng.random((n, 1)) > levels[of, first : end - 1].cumsum(axis=1)
        ).sum(axis=1)
    release, _ = mechanism.release(Table(pd.DataFrame(codes), SCHEMA), rng=rng)
    return NoisyMargins.of(release), release.sets[0]


def without_noise(margins: NoisyMargins) -> NoisyMargins:
    """The broken twin: noisy counts taken for exact ones."""
    return replace(
        margins,
        found=replace(
            margins.found, variance=margins.found.variance * 1e-6, total_variance=0.0
        ),
    )


def parameters(levels: np.ndarray) -> dict[str, np.ndarray]:
    columns = zip(NAMES, OFFSETS[:-1], OFFSETS[1:], strict=True)
    return {"weights": WEIGHTS} | {
        f"{name}_levels": levels[:, first:end] for name, first, end in columns
    }


def given(model: pm.Model) -> dict[str, np.ndarray]:
    return {key: model[key].get_value() for key in ("whiten", "seen")}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_seen_has_the_law_that_the_model_states(name: str) -> None:
    # a mean of 20 * 26 squares of standard normal errors; the seed is fixed, otherwise
    # wrong once in 10,000 runs
    rng, squares, errors = np.random.default_rng(1), [], None
    for _ in range(20):
        levels, _ = population(rng)
        margins, records = released(SETTINGS[name], levels, 1_000, rng)
        squares.append([])
        for each in (margins, without_noise(margins)):
            model = latent.margins_model(each, records, len(WEIGHTS))
            if errors is None:
                first, law = model, model["margins"].owner.inputs[2]
                errors = pytensor.function(
                    model.free_RVs, first["seen"] - law, mode="FAST_COMPILE"
                )
            pm.set_data(given(model), model=first)
            point = parameters(levels)
            squares[-1].append(
                (errors(*(point[rv.name] for rv in first.free_RVs)) ** 2).mean()
            )
    right, twin = np.mean(squares, axis=0)
    assert abs(right - 1) < 4 * np.sqrt(2 / (20 * 26))
    assert twin > 1.5


@pytest.mark.long
@pytest.mark.usefixtures("quiet")
def test_intervals_hold_pairs_of_the_population() -> None:
    # 3 tables of 58 pairs of levels, worth about 3 * 19 that are independent: below .84
    # once in 1,000 runs
    rng, held, made = np.random.default_rng(2), [], None
    for _ in range(3):
        levels, true = population(rng)
        margins, records = released(
            of_pairs(epsilon="1/4", delta="1e-6"), levels, 5_000, rng
        )
        found = []
        for each in (margins, without_noise(margins)):
            model = latent.margins_model(each, records, 4)
            made = made or SimpleNamespace(
                model=model, compiled={}, record_parameters=()
            )
            pm.set_data(given(model), model=made.model)
            pairs = (
                sample(made, draws=400, tune=400, chains=2, rng=rng)
                .posterior["pairs"]
                .to_numpy()[:, :, ACROSS]
            )
            assert (
                each is not margins or az.rhat({"pairs": pairs})["pairs"].max() < 1.05
            )
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
    one = np.eye(OFFSETS[-1])[
        np.column_stack([table.codes[n] for n in NAMES]) + OFFSETS[:-1]
    ].sum(axis=1)
    shares = one.T @ one / len(made)
    kept, alone = (
        ACROSS | np.eye(OFFSETS[-1], dtype=bool),
        np.outer(np.diag(true), np.diag(true)),
    )
    spread = np.sqrt(true * (1 - true) / len(made))[kept]
    assert np.abs((shares - true)[kept] / spread).max() < 4.5
    # the broken twin: one class
    assert np.abs((shares - np.where(ACROSS, alone, true))[kept] / spread).max() > 10


@pytest.mark.parametrize(
    ("columns", "more"), cases(__file__, "columns_that_do_not_suit_are_refused")
)
def test_columns_that_do_not_suit_are_refused(columns, more) -> None:
    schema = Schema.model_validate({"columns": columns, **more})
    table = Table(pd.DataFrame({"a": [0, 1] * 50, "b": [1, 0] * 50}), schema)
    release, _ = of_pairs(epsilon=1).release(table)
    said = "columns with levels or bins, each two measured together"
    refuses(said, latent.margins_model, NoisyMargins.of(release), release.sets[0])


# The saturated model for modips: both likelihoods, both neighbours, all columns,
# refusals


COLUMNS = cases(__file__, "columns")
COIN_AND_DIE = Schema(columns=COLUMNS)


def table(n=2_000):
    rng = np.random.default_rng(0)
    levels = {
        "a": rng.choice(["x", "y", "z"], n, p=[0.6, 0.3, 0.1]),
        "b": (rng.random(n) < 0.2).astype(int),
    }
    frame = pd.DataFrame(levels | {"c": 5 * rng.random(n), "k": rng.integers(5, 10, n)})
    frame.loc[: n // 4, "a"] = None
    return Table(frame, COIN_AND_DIE)


@pytest.mark.parametrize("settings", cases(__file__, "sets_are_like_the_table"))
def test_sets_are_like_the_table(settings):
    mechanism = Modips(epsilon=20, model="multinomial", n_sets=2, draws=20, **settings)
    release, record = mechanism.release(table(), rng=np.random.default_rng(1))
    assert record.diagnostics["convergence"] == "independent draws"
    assert len(release.sets) == 2
    for made in release.sets:
        assert len(made) == 2_000
        assert abs(made["a"].isna().mean() - 0.25) < 0.06  # 6 standard errors
        assert abs(made["b"].mean() - 0.2) < 0.06
        assert (made["c"] <= 5).mean() > 0.95
        assert made["k"].dtype == np.int64
        assert (made["k"] >= 4.5).mean() > 0.9
    assert not release.sets[0].equals(release.sets[1])
