"""The models that come with pdips: densities against scipy by hand, draws, refusals,
and the commands.
"""

import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from click.testing import CliRunner
from gallery_tables import EXAMPLE
from scipy import special, stats
from tables import cases, refuses

from pdips import InputError, Schema, Table
from pdips.cli import program
from pdips.posterior import model_file
from pdips.posterior.columns import public_stand_ins, record_values, stand_ins
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import as_source
from pdips.statistics.model import as_statistic_model

MODELS = sorted(EXAMPLE)
OF_STATISTICS = [
    "bernoulli",
    "glom",
    "linear_regression",
    "multinomial",
    "normal_moments",
    "slomag",
]
"""Models for modips, which have tests of their own."""
ALONE = ["kng_quantile_regression", "latent_classes"]
"""Sampled by themselves; see test_model_kng.py and test_statistic_models.py."""

pytestmark = pytest.mark.usefixtures("quiet")


LOCATION, SPREAD = stats.norm(0.5, 0.25).logpdf, stats.halfnorm(scale=0.25).logpdf
"""Log priors of a location and of standard deviations, in units of the range."""

PRECISION = stats.pareto(1.5, scale=0.1).logpdf


def observed_of(schema: Schema):
    return next(
        (name, column) for name, column in schema.columns.items() if not column.public
    )


def effects_by_hand(values, schema: Schema, coefficients):
    """Sum of the effects of the public columns: indicators of all levels but the first,
    numbers from -1 to 1.
    """
    parts = []
    for name in schema.public_columns:
        column = schema.columns[name]
        if column.is_categorical:
            parts += [values[name] == level for level in range(1, column.n_levels)]
        else:
            middle, half = (
                (column.upper + column.lower) / 2,
                (column.upper - column.lower) / 2,
            )
            parts.append((values[name] - middle) / half)
    return np.column_stack(parts) @ coefficients


@dataclass(frozen=True)
class ByHand:
    """Records and parameters of a model; the method of its name returns
    (log-likelihoods, log prior, means).
    """

    schema: Schema
    values: dict
    theta: dict

    @property
    def y(self):
        return self.values[observed_of(self.schema)[0]]

    @property
    def bounds(self):
        column = observed_of(self.schema)[1]
        return column.lower, column.upper

    def normal(self):
        lower, upper = self.bounds
        law = stats.norm(
            lower + (upper - lower) * self.theta["location"],
            (upper - lower) * self.theta["spread"],
        )
        prior = LOCATION(self.theta["location"]) + SPREAD(self.theta["spread"])
        return law.logpdf(self.y), prior, np.full(len(self.y), law.mean())

    def beta(self):
        lower, upper = self.bounds
        phi, precision = self.theta["phi"], self.theta["lambda"]
        law = stats.beta(
            precision * phi, precision * (1 - phi), loc=lower, scale=upper - lower
        )
        return (
            law.logpdf(self.y),
            PRECISION(precision),
            np.full(len(self.y), lower + (upper - lower) * phi),
        )

    def beta_regression(self):
        lower, upper = self.bounds
        theta, precision = self.theta, self.theta["lambda"]
        mean = special.expit(
            theta["intercept"]
            + effects_by_hand(self.values, self.schema, theta["coefficients"])
        )
        law = stats.beta(
            precision * mean, precision * (1 - mean), loc=lower, scale=upper - lower
        )
        prior = (
            stats.norm.logpdf(theta["intercept"], 0, 1.5)
            + stats.norm.logpdf(theta["coefficients"]).sum()
        )
        return (
            law.logpdf(self.y),
            prior + PRECISION(precision),
            lower + (upper - lower) * mean,
        )

    def lognormal_regression(self):
        lower, upper = np.log(self.bounds)
        theta = self.theta
        effects = effects_by_hand(self.values, self.schema, theta["coefficients"])
        middle = lower + (upper - lower) * (theta["location"] + effects)
        law = stats.lognorm(s=(upper - lower) * theta["spread"], scale=np.exp(middle))
        prior = (
            LOCATION(theta["location"])
            + stats.norm.logpdf(theta["coefficients"], 0, 0.25).sum()
        )
        return law.logpdf(self.y), prior + SPREAD(theta["spread"]), law.mean()

    def negative_binomial(self):
        theta, width = self.theta, np.log(self.bounds[1] + 1)
        mean = np.exp(
            theta["intercept"]
            + effects_by_hand(self.values, self.schema, theta["coefficients"])
        )
        size = 1 / theta["dispersion"] ** 2
        prior = stats.norm.logpdf(
            theta["intercept"], width / 2, width / 4
        ) + stats.halfnorm.logpdf(theta["dispersion"])
        prior += stats.norm.logpdf(theta["coefficients"]).sum()
        return stats.nbinom.logpmf(self.y, size, size / (size + mean)), prior, mean

    def hierarchical_normal(self):
        lower, upper = self.bounds
        theta, [group] = self.theta, self.schema.public_columns
        means = lower + (upper - lower) * (
            theta["location"] + theta["between"] * theta["offset"]
        )
        law = stats.norm(means[self.values[group]], (upper - lower) * theta["within"])
        # nine offsets that sum to zero have eight dimensions
        offsets = stats.norm.logpdf(theta["offset"]).sum() - stats.norm.logpdf(0)
        prior = (
            LOCATION(theta["location"])
            + SPREAD(theta["between"])
            + SPREAD(theta["within"])
        )
        return law.logpdf(self.y), prior + offsets, law.mean()

    def mixture(self):
        theta = self.theta
        is_log = observed_of(self.schema)[1].scale == "log"
        lower, upper = np.log(self.bounds) if is_log else self.bounds
        y = np.log(self.y) if is_log else self.y
        means = [
            lower + (upper - lower) * theta["gaps"][: k + 1].sum() for k in range(3)
        ]
        spreads = (upper - lower) * theta["spreads"]
        terms = [
            np.log(w) + stats.norm.logpdf(y, m, s)
            for w, m, s in zip(theta["weights"], means, spreads, strict=True)
        ]
        likelihood = special.logsumexp(terms, axis=0) - (y if is_log else 0)
        # Dirichlet densities of ones: the factorial of the number of parts less one
        prior = (
            np.log(2)
            + np.log(6)
            + stats.invgamma.logpdf(theta["spreads"], 2, scale=0.2).sum()
        )
        return likelihood, prior, np.full(len(y), float(theta["weights"] @ means))

    def class_weights(self):
        """Shares of the classes for each record, given its public columns; shape
        (records, classes).
        """
        broken = 1 - np.exp(-self.theta["breaks"] / self.theta["concentration"])
        shares = np.array(
            [
                *(broken[k] * np.prod(1 - broken[:k]) for k in range(9)),
                np.prod(1 - broken),
            ]
        )
        weights = np.tile(shares, (len(next(iter(self.values.values()))), 1))
        for name in self.schema.public_columns:
            weights *= self.theta[f"{name}_levels"][:, self.values[name]].T
        return weights / weights.sum(axis=1, keepdims=True)

    def dpmpm(self):
        products = self.class_weights()
        for name, column in self.schema.columns.items():
            if not column.public:
                products = (
                    products * self.theta[f"{name}_levels"][:, self.values[name]].T
                )
        prior = (
            stats.gamma.logpdf(self.theta["concentration"], 1)
            + stats.expon.logpdf(self.theta["breaks"]).sum()
        )
        prior += 10 * sum(
            special.gammaln(column.n_levels) for column in self.schema.columns.values()
        )
        return np.log(products.sum(axis=1)), prior, None


def log_likelihoods(made: Blueprint, values, point) -> np.ndarray:
    """Return the log-likelihood of each record at one value of the model's value
    variables, shape (records,).
    """
    places = [np.asarray(point[value.name])[None] for value in made.model.value_vars]
    return np.concatenate(
        [found for _, found in made.likelihood.blocks(values, places)], axis=1
    )[0]


@cache
def blueprint(name: str) -> Blueprint:
    return Blueprint(as_source(name), EXAMPLE[name].schema)


@cache
def table_of(name: str) -> Table:
    return Table(EXAMPLE[name].load(), EXAMPLE[name].schema)


def compiled(model: pm.Model, outputs):
    return model.compile_fn(
        outputs, inputs=model.value_vars, mode="FAST_COMPILE", on_unused_input="ignore"
    )


def points(model: pm.Model, n: int):
    """Points in the unconstrained space, near the initial one, with the values of the
    free variables there.
    """
    to_natural = compiled(model, model.replace_rvs_by_values(model.free_RVs))
    rng = np.random.default_rng(20)
    start = model.initial_point()
    for _ in range(n):
        point = {
            name: value + rng.uniform(-0.7, 0.7, np.shape(value))
            for name, value in start.items()
        }
        yield (
            point,
            dict(
                zip((rv.name for rv in model.free_RVs), to_natural(point), strict=True)
            ),
        )


@pytest.mark.parametrize("name", MODELS)
def test_log_likelihood_and_prior_are_those_by_hand(name: str) -> None:
    made = blueprint(name)
    values = {
        column: found[:40] for column, found in record_values(table_of(name)).items()
    }
    prior = compiled(
        made.model, made.model.logp(vars=made.model.free_RVs, jacobian=False)
    )
    for point, theta in points(made.model, 3):
        likelihood, log_prior, _ = getattr(ByHand(made.schema, values, theta), name)()
        found = log_likelihoods(made, values, point)
        assert found.shape == (40,)
        np.testing.assert_allclose(found, likelihood, rtol=1e-9, atol=1e-9)
        # PyMC has constants of single precision
        assert prior(point) == pytest.approx(log_prior, abs=1e-7)
        if name not in ("dpmpm", "negative_binomial"):
            y, column = observed_of(made.schema)
            edge = stand_ins(made.schema, 2) | {
                y: np.array([column.lower, column.upper])
            }
            assert not np.isnan(log_likelihoods(made, edge, point)).any()


@pytest.mark.parametrize("name", [name for name in MODELS if name != "dpmpm"])
def test_records_drawn_have_the_mean_by_hand(name: str) -> None:
    # z is nearly standard normal: each model fails by chance with probability 7e-6,
    # whatever the seed
    made, n, rng = blueprint(name), 6000, np.random.default_rng(7)
    public = public_stand_ins(made.schema, n)
    *_, (_, theta), (_, other) = points(made.model, 2)
    if name == "lognormal_regression":
        # light tails, so that z is nearly normal
        theta, other = theta | {"spread": 0.05}, other | {"spread": 0.05}
    drawn = made.draw(theta, n, public, rng)
    assert set(drawn) == {
        column for column, found in made.schema.columns.items() if not found.public
    }
    y = drawn[observed_of(made.schema)[0]]
    assert y.shape == (n,)

    def z(parameters) -> float:
        residuals = (
            y - getattr(ByHand(made.schema, {**public, **drawn}, parameters), name)()[2]
        )
        return float(residuals.mean() / residuals.std() * np.sqrt(n))

    assert abs(z(theta)) < 4.5
    assert abs(z(other)) > 4.5  # the broken twin: other parameters


def test_records_of_the_mixture_of_products_have_the_law_by_hand() -> None:
    # chi-square with a fixed seed: fails by chance with probability 1e-5
    made, n = blueprint("dpmpm"), 6000
    (_, theta), (_, other) = points(made.model, 2)
    drawn = made.draw(theta, n, {"sex": np.arange(n) % 2}, np.random.default_rng(8))
    assert list(drawn) == ["education", "marital_status", "tax_filer"]
    counts = np.zeros((2, 4, 3, 3))
    np.add.at(counts, (np.arange(n) % 2, *drawn.values()), 1)
    cells = dict(
        zip(["sex", *drawn], np.indices(counts.shape).reshape(4, -1), strict=True)
    )

    def p_value(parameters) -> float:
        law = np.exp(ByHand(made.schema, cells, parameters).dpmpm()[0])
        assert law.sum() == pytest.approx(2)  # one for each sex
        return stats.chisquare(counts.ravel(), n / 2 * law).pvalue

    assert p_value(theta) > 1e-5
    assert p_value(other) < 1e-5  # the broken twin: other parameters


def test_margins_of_classes_that_are_relabelled_are_the_same_and_are_watched() -> None:
    made = blueprint("dpmpm")
    assert made.source.watch == ("margins",)
    margins = compiled(
        made.model, made.model.replace_rvs_by_values([made.model["margins"]])[0]
    )
    start = made.model.initial_point()
    rng = np.random.default_rng(3)
    point = {
        name: value + rng.uniform(-1, 1, np.shape(value))
        for name, value in start.items()
    }
    # ten shares of a tenth: any relabelling keeps them
    kept = np.arange(9, 0, -1) / np.arange(10, 1, -1)
    point["breaks_log__"] = np.log(-np.log(kept)) + point["concentration_log__"]
    order = rng.permutation(10)
    other = {
        name: value[order] if np.ndim(value) == 2 else value
        for name, value in point.items()
    }
    np.testing.assert_allclose(margins(point), margins(other))
    assert len(margins(point)) == 4 + 3 + 3
    assert margins(point).sum() == pytest.approx(3)


def test_a_mixture_on_the_log_scale_is_of_lognormals() -> None:
    schema = Schema.from_toml(
        "[columns.income]\nlower = 10\nupper = 1e6\nscale = 'log'"
    )
    made = Blueprint(as_source("mixture"), schema)
    values = stand_ins(schema, 25)
    [(point, theta)] = points(made.model, 1)
    expected, _, _ = ByHand(schema, values, theta).mixture()
    np.testing.assert_allclose(
        log_likelihoods(made, values, point), expected, rtol=1e-9
    )


LEVELS = "[columns.a]\nlevels = ['x', 'y']\n"


@pytest.mark.parametrize(
    ("name", "content", "message"), cases(__file__, "schemas_that_do_not_suit")
)
def test_schemas_that_do_not_suit_are_refused(
    name: str, content: dict, message: str
) -> None:
    schema = Schema.model_validate(content)
    if name in OF_STATISTICS:
        refuses(message, as_statistic_model(name).declared, schema, "replace-one")
    else:
        refuses(message, Blueprint, as_source(name), schema)


def test_covariates_are_optional() -> None:
    for name, column in (
        ("lognormal_regression", {"lower": 1}),
        ("negative_binomial", {"lower": 0, "integer": True}),
    ):
        assert (
            Blueprint(
                as_source(name), Schema(columns={"y": column | {"upper": 9}})
            ).n_parameters
            == 2
        )


def test_numbers_that_may_be_missing_add_a_term_of_their_own() -> None:
    schema = Schema.from_toml(
        EXAMPLE["lognormal_regression"].schema_text + "missing = true\n"
    )
    made, frame = (
        Blueprint(as_source("lognormal_regression"), schema),
        EXAMPLE["lognormal_regression"].load().head(40),
    )
    values = record_values(
        Table(frame.assign(wage=frame["wage"].where(np.arange(40) % 3 > 0)), schema)
    )
    gone = values["wage_missing"]
    assert gone.sum() == 14
    for point, theta in points(made.model, 2):
        odds = theta["odds"] + effects_by_hand(
            values, schema, theta["odds_coefficients"]
        )
        told = stats.bernoulli.logpmf(gone, special.expit(odds))
        expected = told + np.where(
            gone, 0, ByHand(schema, values, theta).lognormal_regression()[0]
        )
        np.testing.assert_allclose(
            log_likelihoods(made, values, point), expected, rtol=1e-9
        )


def test_products_need_no_public_column() -> None:
    made = Blueprint(
        as_source("dpmpm"),
        Schema.from_toml(LEVELS + "missing = true\n" + LEVELS.replace("a", "b", 1)),
    )
    [(point, theta)] = points(made.model, 1)
    drawn = made.draw(theta, 31, {}, np.random.default_rng(1))
    assert {
        name: (len(found), set(found) <= {0, 1, 2}) for name, found in drawn.items()
    } == dict.fromkeys("ab", (31, True))
    expected, _, _ = ByHand(made.schema, drawn, theta).dpmpm()
    np.testing.assert_allclose(log_likelihoods(made, drawn, point), expected, rtol=1e-9)


def test_every_model_has_an_example_and_a_reference() -> None:
    texts = {
        name: model_file.path(name).read_text(encoding="utf-8")
        for name in model_file.names()
    }
    assert (
        sorted(name for name, text in texts.items() if "def build_model(" not in text)
        == ALONE
    )
    assert sorted(
        name for name, text in texts.items() if "def statistics(" not in text
    ) == sorted(MODELS + ALONE)
    assert (
        sorted(name for name, text in texts.items() if "def statistics(" in text)
        == OF_STATISTICS
    )
    for text in texts.values():
        assert '"""' in text
        assert "\nSchema: " in text
        assert "(19" in text or "(20" in text or "Supplement" in text


def test_a_name_is_a_file_or_one_of_the_gallery(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_source("beta").name == "beta.py"
    assert as_source("beta").text == model_file.path("beta").read_text(encoding="utf-8")
    refuses(
        r"there is no model 'bety' \(did you mean 'beta'\?\); pdips comes with "
        "bernoulli, beta, beta_regression",
        as_source,
        "bety",
    )
    for model in ("models/beta", "beta.py"):
        refuses("no model file", as_source, model)
    (tmp_path / "beta").write_text("nonsense")  # a file of that name comes first
    refuses("no Python file", as_source, "beta")


def test_the_gallery_ships_with_the_wheel_and_is_found_there(
    tmp_path, monkeypatch
) -> None:
    root = Path(__file__).parents[2]
    wheel = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))[
        "tool"
    ]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"models": "pdips/gallery"}
    assert model_file.folder() in (root / "models", model_file.PACKAGE / "gallery")
    (tmp_path / "pdips" / "gallery").mkdir(parents=True)
    (tmp_path / "pdips" / "gallery" / "mine.py").write_text(
        '"""A model.\n\nMore on it."""\n'
    )
    monkeypatch.setattr(model_file, "PACKAGE", tmp_path / "pdips")
    assert model_file.names() == {"mine": "A model."}


def test_to_list_all_models_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from pdips.posterior import model_file; model_file.names(); "
        "print(*({'pymc', 'numpy'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "\n"
    )
    found = CliRunner().invoke(program, ["models", "list"])
    assert found.exit_code == 0
    assert [line.split()[0] for line in found.output.splitlines()] == sorted(
        [*MODELS, *OF_STATISTICS, *ALONE]
    )
    assert f"{'dpmpm':{len(ALONE[0])}}  A Dirichlet process mixture" in found.output


def test_copy_writes_the_file_and_never_overwrites(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    for arguments in (
        ["normal"],
        ["normal", "--to", "mine.py"],
        ["beta", "--to", str(tmp_path)],
    ):
        assert run(program, ["models", "copy", *arguments]).exit_code == 0
    assert (
        (tmp_path / "mine.py").read_text()
        == (tmp_path / "normal.py").read_text()
        == as_source("normal").text
    )
    (tmp_path / "mine.py").write_text("changed")
    again = run(program, ["models", "copy", "beta", "--to", "mine.py"])
    assert isinstance(again.exception, InputError)
    assert str(again.exception) == "mine.py exists; name another file with --to"
    assert (tmp_path / "mine.py").read_text() == "changed"
    assert ("can't write nowhere/x.py") in str(
        run(program, ["models", "copy", "beta", "--to", "nowhere/x.py"]).exception
    )
    assert ("there is no model 'x'") in str(
        run(program, ["models", "copy", "x"]).exception
    )
