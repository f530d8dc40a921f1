"""Simulated tables for the study of mechanisms that take a model: their schemas, models, and true parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.posterior.columns import SUFFIX, Parameters, Values, stand_ins, to_frame
from pdips.posterior.inspection import published_draws, tree_of
from pdips.posterior.model import Blueprint, blueprint_of
from pdips.posterior.model_file import BuildModel, as_source
from pdips_papers.pseudo.censored_beta import N_RECORDS
from pdips_papers.pseudo.synthesizers import SCHEMA

GROUPS = 20
SLOPES = (0.8, -0.6, 0.5, -0.4, 0.3, -0.2, 0.1)

type Draw = Callable[[np.random.Generator, int], dict[str, NDArray[Any]]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Design:
    """Tables drawn from a model at known parameters, and what each mechanism is given to describe them."""

    name: str
    n: int
    schema: Schema
    model: str | BuildModel
    truth: Parameters  # of the free variables, in the model's own units
    public: Draw = field(default=lambda rng, n: {})
    moments: Any = None  # the model of noisy statistics, for modips; that of records if there is none
    measured: Mapping[str, tuple[str, float, float]] = field(default_factory=dict)
    """By parameter: what modips calls it, and the factor and shift that turn it into the same units."""

    guarantees: tuple[str, ...] = ("1",)
    seldom: int = (
        1  # where censored-posterior takes a minute or two, one in so many replicates has it, at one guarantee
    )

    @cached_property
    def labels(self) -> list[str]:
        """What posterior draws call the parameters."""
        return list(published_draws(tree_of([self.truth])).columns)

    @cached_property
    def true(self) -> FloatArray:
        """The true parameters, shape (parameters,)."""
        return np.concatenate([np.ravel(value) for value in self.truth.values()])

    @cached_property
    def number(self) -> str | None:
        """The confidential column, if it is a number."""
        [name] = [name for name, column in self.schema.columns.items() if not column.public]
        column = self.schema.columns[name]
        return None if column.is_categorical or column.integer else name

    def parameters(self, values: FloatArray) -> dict[str, NDArray[Any]]:
        """Return parameters, shape (parameters,), as values of the free variables."""
        parts = np.split(values, np.cumsum([value.size for value in self.truth.values()])[:-1])
        return {name: part.reshape(self.truth[name].shape) for name, part in zip(self.truth, parts, strict=True)}

    def in_units(self, draws: pd.DataFrame) -> pd.DataFrame:
        """Return draws of the model of statistics in the units of the model of records."""
        return pd.DataFrame({name: factor * draws[of] + shift for name, (of, factor, shift) in self.measured.items()})

    @cached_property
    def space(self) -> Blueprint:
        """The model, compiled once."""
        return blueprint_of(as_source(self.model), self.schema)

    @cached_property
    def joint(self) -> pm.Model:
        """The model of a whole table, whose records are set later."""
        return self.space.build(stand_ins(self.schema, self.n))

    @cached_property
    def log_density(self) -> Any:
        """The log posterior density of the joint model, and its gradient, at unconstrained parameters."""
        return self.joint.logp_dlogp_function(ravel_inputs=True)

    @cached_property
    def centre(self) -> FloatArray:
        """The true parameters, unconstrained."""
        return self.space.parameters_of(dict(self.truth))

    def observe(self, values: Values) -> None:
        """Put records into the joint model."""
        for name, column in values.items():
            if name + SUFFIX in self.joint.named_vars:
                self.joint[name + SUFFIX].set_value(np.asarray(column, self.joint[name + SUFFIX].dtype))

    def table(self, rng: np.random.Generator) -> Table:
        """Draw a table at the true parameters."""
        return self.drawn(self.truth, self.public(rng, self.n), rng)

    def drawn(self, parameters: Parameters, public: Values, rng: np.random.Generator) -> Table:
        """Draw a table at some parameters, beside public columns as models read them."""
        values = self.space.draw(parameters, self.n, public, rng) | public
        return Table(to_frame(self.schema, values, pd.DataFrame(), rng), self.schema)


def logit(data: Any, schema: Schema) -> pm.Model:
    """Return a logistic regression on all public columns."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=1 + len(schema.public_columns))
        pm.Bernoulli("ill", logit_p=beta[0] + data.matrix(list(schema.public_columns)) @ beta[1:], observed=data["ill"])
    return model


def counts_by_group(data: Any, schema: Schema) -> pm.Model:
    """Return a Poisson model with an effect for each public group."""
    with pm.Model() as model:
        level = pm.Normal("level", 0, 1)
        effect = pm.Normal("effect", 0, 0.5, shape=schema.columns["group"].n_levels)
        pm.Poisson("visits", pm.math.exp(level + effect[data["group"]]), observed=data["visits"])
    return model


def _schema(public: Mapping[str, Any], **columns: Any) -> Schema:
    known = {name: {**column, "public": True} for name, column in public.items()}
    return Schema.model_validate({"columns": known | columns})


STAFF = {
    "sex": {"levels": ["f", "m"]},
    "age": {"levels": ["to 29", "30 to 39", "40 to 49", "50 to 59", "60 on"]},
    "weeks": {"lower": 1, "upper": 52},
}


def _staff(rng: np.random.Generator, n: int) -> dict[str, NDArray[Any]]:
    """Return gender, age group and weeks worked, as the public columns of paper 004 are called."""
    return {
        "sex": rng.integers(2, size=n),
        "age": rng.choice(5, n, p=[0.15, 0.3, 0.25, 0.2, 0.1]),
        "weeks": np.where(rng.random(n) < 0.7, 52.0, rng.uniform(1, 52, n)),
    }


DESIGNS = {
    design.name: design
    for design in (
        Design(
            name="beta",
            n=N_RECORDS,
            schema=SCHEMA,
            model="beta",
            truth={"phi": np.array(0.5 / 3.5), "lambda": np.array(3.5)},
            guarantees=("5", "4", "3", "1"),
        ),
        Design(
            name="salary",
            n=1_601,
            schema=_schema(STAFF, salary={"lower": 0, "upper": 300}),
            model="beta_regression",
            truth={
                "intercept": np.array(-1.0),
                "coefficients": np.array([0.2, 0.2, 0.4, 0.5, 0.4, 0.3]),
                "lambda": np.array(15.0),
            },
            public=_staff,
            seldom=5,
        ),
        Design(
            name="normal",
            n=1_000,
            schema=_schema({}, y={"lower": -4, "upper": 4}),
            model="normal",
            truth={"location": np.array(0.5), "spread": np.array(0.125)},
            moments="normal_moments",
            measured={"location": ("mean", 0.5, 0.5), "spread": ("sd", 0.5, 0.0)},
        ),
        Design(
            name="claims",
            n=2_000,
            schema=_schema({"value": {"lower": 0, "upper": 1}}, claim={"lower": 1, "upper": 1e6, "scale": "log"}),
            model="lognormal_regression",
            truth={"location": np.array(0.47), "coefficients": np.array([0.05]), "spread": np.array(0.09)},
            public=lambda rng, n: {"value": rng.beta(2, 3, n)},
            seldom=5,
            moments="linear_regression",
            measured={
                "location": ("beta[0]", 0.5, 0.5),
                "coefficients[0]": ("beta[1]", 0.5, 0.0),
                "spread": ("sd", 0.5, 0.0),
            },
        ),
        Design(
            name="logit",
            n=2_000,
            schema=_schema(
                {f"x{i}": {"lower": -2, "upper": 2, "bins": 2} for i in range(1, 8)}, ill={"levels": [0, 1]}
            ),
            model=logit,
            truth={"beta": np.array([-0.5, *SLOPES])},
            public=lambda rng, n: {f"x{i}": np.clip(rng.standard_normal(n), -2, 2) for i in range(1, 8)},
            guarantees=("1", "1 at 1e-6"),
            seldom=5,
        ),
        Design(
            name="Poisson",
            n=2_000,
            schema=_schema(
                {"group": {"levels": [f"g{i:02}" for i in range(GROUPS)]}},
                visits={"lower": 0, "upper": 40, "integer": True},
            ),
            model=counts_by_group,
            truth={"level": np.array(0.7), "effect": np.linspace(-0.6, 0.6, GROUPS)},
            public=lambda rng, n: {"group": rng.integers(GROUPS, size=n)},
            guarantees=("1", "1 at 1e-6"),
            seldom=5,
        ),
    )
}
