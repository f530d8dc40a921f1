"""Simulated tables for the study of mechanisms that take a model: their schemas,
models, and true parameters.
"""

from collections.abc import Callable, Mapping, Sequence
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
from pdips_papers.harness.printed import data

type Draw = Callable[[np.random.Generator, int], Values]


@dataclass(frozen=True, eq=False, kw_only=True)
class Design:
    """Tables drawn from a model at known parameters, and what each mechanism is given
    to describe them.
    """

    name: str
    n: int
    schema: Schema
    model: str | BuildModel
    truth: Parameters  # of the free variables, in the model's own units
    public: Draw | None = None  # of public columns, as models read them
    # the model of noisy statistics, for modips; that of records if there is none
    moments: Any = None
    # by parameter: see the data file
    measured: Mapping[str, tuple[str, float, float]] = field(default_factory=dict)
    guarantees: Sequence[str] = ("1",)
    # how many replicates there are for each that censored-posterior has
    seldom: int = 1

    @cached_property
    def labels(self) -> list[str]:
        """What posterior draws call the parameters."""
        return list(published_draws(tree_of([self.truth])).columns)

    @cached_property
    def true(self) -> FloatArray:
        """The true parameters, shape (parameters,)."""
        return np.concatenate([np.ravel(value) for value in self.truth.values()])

    @cached_property
    def numbers(self) -> list[str]:
        """The confidential columns that are numbers, but not whole ones."""
        return [
            name
            for name, column in self.schema.columns.items()
            if not (column.public or column.is_categorical or column.integer)
        ]

    def parameters(self, values: FloatArray) -> dict[str, NDArray[Any]]:
        """Return parameters, shape (parameters,), as values of the free variables."""
        sizes = [value.size for value in self.truth.values()]
        parts = np.split(values, np.cumsum(sizes)[:-1])
        return {
            name: part.reshape(self.truth[name].shape)
            for name, part in zip(self.truth, parts, strict=True)
        }

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
        """The log posterior density of the joint model, and its gradient, at
        unconstrained parameters.
        """
        return self.joint.logp_dlogp_function(ravel_inputs=True)

    def observe(self, values: Values) -> None:
        """Put records into the joint model."""
        for name, column in values.items():
            held = self.joint.named_vars.get(name + SUFFIX)
            if held is not None:
                held.set_value(np.asarray(column, held.dtype))

    def table(self, rng: np.random.Generator) -> Table:
        """Draw a table at the true parameters."""
        public = self.public(rng, self.n) if self.public else {}
        return self.drawn(self.truth, public, rng)

    def drawn(
        self, parameters: Parameters, public: Values, rng: np.random.Generator
    ) -> Table:
        """Draw a table at some parameters, beside public columns as models read
        them.
        """
        values = self.space.draw(parameters, self.n, public, rng) | dict(public)
        return Table(to_frame(self.schema, values, pd.DataFrame(), rng), self.schema)


def logit(data: Any, schema: Schema) -> pm.Model:
    """Return a logistic regression on all public columns."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=1 + len(schema.public_columns))
        slopes = data.matrix(list(schema.public_columns)) @ beta[1:]
        pm.Bernoulli("ill", logit_p=beta[0] + slopes, observed=data["ill"])
    return model


def counts_by_group(data: Any, schema: Schema) -> pm.Model:
    """Return a Poisson model with an effect for each public group."""
    with pm.Model() as model:
        level = pm.Normal("level", 0, 1)
        effect = pm.Normal("effect", 0, 0.5, shape=schema.columns["group"].n_levels)
        rate = pm.math.exp(level + effect[data["group"]])
        pm.Poisson("visits", rate, observed=data["visits"])
    return model


def _staff(rng: np.random.Generator, n: int) -> Values:
    """Return gender, age group and weeks worked, as the public columns of paper 004 are
    called.
    """
    age = rng.choice(5, n, p=[0.15, 0.3, 0.25, 0.2, 0.1])
    return {
        "sex": rng.integers(2, size=n),
        "age": age,
        "weeks": np.where(rng.random(n) < 0.7, 52, rng.uniform(1, 52, n)),
    }


MODELS: dict[str, BuildModel] = {"logit": logit, "Poisson": counts_by_group}

PUBLIC: dict[str, Draw] = {
    "salary": _staff,
    "claims": lambda rng, n: {"value": rng.beta(2, 3, n)},
    "logit": lambda rng, n: {
        f"x{i}": np.clip(rng.standard_normal(n), -2, 2) for i in range(1, 8)
    },
    "Poisson": lambda rng, n: {"group": rng.integers(20, size=n)},
}


def _read() -> dict[str, Design]:
    """Return the designs of ``data/model_mechanisms.toml``."""
    found = {}
    for name, facts in data("model_mechanisms.toml").items():
        schema = Schema.model_validate({"columns": facts.pop("columns")})
        truth = {key: np.array(value) for key, value in facts.pop("truth").items()}
        model = facts.pop("model", MODELS.get(name))
        found[name] = Design(
            name=name,
            schema=schema,
            truth=truth,
            model=model,
            public=PUBLIC.get(name),
            **facts,
        )
    return found


DESIGNS = _read()
