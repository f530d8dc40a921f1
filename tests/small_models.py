"""Models of one to four parameters that tests fit, and the schemas of their tables."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pymc as pm

from pdips.data.schema import Column, Schema
from pdips.posterior.model import ONE_AT_A_TIME, Blueprint
from pdips.posterior.model_file import Source
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits
from pdips.registry import MECHANISMS, find
from pdips.statistics.model import StatisticModel
from pdips.statistics.statistic import Counts, Sums

UNIT = Schema(columns={"y": {"lower": 0, "upper": 1}})
WIDE = Schema(columns={"y": {"lower": -1000, "upper": 1000}})
PAIRS = Schema(
    columns={
        "x": {"lower": -10, "upper": 10, "public": True},
        "y": {"lower": -100, "upper": 100},
    }
)


CLIPPED = {
    "hard": lambda u, w: np.clip(u, -w, w),
    "tanh": lambda u, w: w * np.tanh(u / w),
    "algebraic": lambda u, w: w * u / (w + np.abs(u)),
}
"""What clips of the width w do to u."""


def normal(data, schema):
    """Known deviation 1: the posterior of theta is normal."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("theta", 0, 10), 1, observed=data["y"])
    return model


def beta(data, schema):
    """The synthesizer of Hu et al. (2022)."""
    with pm.Model() as model:
        phi = pm.Uniform("phi", 0, 1)
        lam = pm.Pareto("lam", alpha=1.5, m=0.1)
        pm.Beta("y", lam * phi, lam * (1 - phi), observed=data["y"])
    return model


def line(data, schema):
    """Coefficients as one variable, known deviation 2: their posterior is normal."""
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5, shape=2)
        pm.Normal("y", b[0] + data["x"] * b[1], 2, observed=data["y"])
    return model


def four(data, schema):
    """Too many parameters for a lattice."""
    with pm.Model() as model:
        b = pm.Normal("b", 0, 5, shape=3)
        pm.Normal(
            "y",
            b[0] + b[1] * data["x"] + b[2] * data["x"] ** 2,
            pm.HalfNormal("sigma", 3),
            observed=data["y"],
        )
    return model


def written(write):
    """Return a model of what a function writes down, given the columns."""

    def build(data, schema):
        with pm.Model() as model:
            write(data)
        return model

    build.__name__ = write.__name__
    return build


def about(
    mean=lambda theta, data: theta,
    parameter=lambda data: pm.Normal("theta", 0, 1),
    *,
    name="y",
    observed=lambda data: data["y"],
    sd=1,
    **settings,
):
    """A column with a normal law about what is made of a parameter and of columns."""
    return written(
        lambda data: pm.Normal(
            name, mean(parameter(data), data), sd, observed=observed(data), **settings
        )
    )


def blueprint(build, schema: Schema) -> Blueprint:
    return Blueprint(Source(build, build.__name__), schema)


def beta_records(n: int, seed: int = 1) -> np.ndarray:
    """Records of the simulation of Hu et al. (2022)."""
    return np.clip(np.random.default_rng(seed).beta(0.5, 3, n), 1e-12, 1 - 1e-12)


def generic(data, schema):
    """One parameter for any schema: with it rise the levels and numbers of all columns
    that aren't public.
    """
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        for name, column in schema.columns.items():
            if column.public:
                continue
            if column.is_categorical:
                pm.Binomial(
                    name, n=column.n_levels - 1, logit_p=theta, observed=data[name]
                )
            elif column.integer:
                pm.BetaBinomial(
                    name,
                    n=int(column.upper),
                    alpha=pm.math.exp(theta),
                    beta=1,
                    observed=data[name],
                )
            else:
                low, high = float(column.lower), float(column.upper)
                middle = (low + high) / 2 + theta * (high - low) / 4
                pm.TruncatedNormal(
                    name, middle, high - low, lower=low, upper=high, observed=data[name]
                )
    return model


def described(schema: Schema) -> dict[str, Column]:
    return {
        name: column for name, column in schema.columns.items() if not column.public
    }


def cells_of(schema: Schema) -> dict[str, Any]:
    """Counts by all columns with cells, and sums of all other numbers."""
    columns = described(schema)
    counted = tuple(
        name
        for name, column in columns.items()
        if column.is_categorical or column.is_binned
    )
    sums = {f"sum of {name}": Sums(of=name) for name in columns if name not in counted}
    return {"cells": Counts(by=counted), **sums}


def shares_of_cells(given, schema):
    """A saturated model of the counts; sums say nothing."""
    with pm.Model() as model:
        shares = pm.Dirichlet("shares", np.ones(max(len(given["cells"]), 2)))
        if len(given["cells"]) > 1:
            given.multinomial("cells", shares)
    return model


def draw_cells(draw, records, schema, rng):
    columns = described(schema)
    counted = [
        name
        for name, column in columns.items()
        if column.is_categorical or column.is_binned
    ]
    cells = rng.choice(len(draw["shares"]), size=records.n, p=draw["shares"])
    codes = (
        np.unravel_index(cells, [columns[name].n_levels for name in counted])
        if counted
        else ()
    )
    made = dict(zip(counted, codes, strict=True))
    for name in counted:
        if not columns[name].is_categorical:
            made[name] = columns[name].edges[made[name]]
    return made | {
        name: np.full(records.n, float(columns[name].lower))
        for name in columns
        if name not in counted
    }


OF_STATISTICS = StatisticModel(cells_of, shares_of_cells, draw_cells, "cells")
"""A model of noisy statistics for any schema, whose draws need no chains."""


HAVE_MODELS = ("group-sums",)
"""Mechanisms that take a model and have one of their own."""


@cache
def with_model(mechanism: type, build=None) -> type:
    """Return a mechanism that has a model unless told otherwise; one that needs none as
    it is.
    """
    if "model" not in mechanism.__dataclass_fields__:
        return mechanism
    if build is None and mechanism.name in HAVE_MODELS:
        return mechanism
    build = build or (OF_STATISTICS if mechanism.name == "modips" else generic)

    @dataclass(frozen=True, kw_only=True)
    class WithModel(mechanism):
        model: Any = build

    return WithModel


def ready(name: str) -> type:
    """Return a registered mechanism that can be built from epsilon alone."""
    return with_model(find(name))


def sound_relations() -> list[tuple[str, str]]:
    """Every registered mechanism with a guarantee, with each relation that it takes."""
    found = {name: find(name) for name in sorted(MECHANISMS)}
    return [
        (name, relation)
        for name, made in found.items()
        if "sound" in made.variants
        for relation in made.offers.relations
    ]


def grid_of(mechanism, table, seed: int = 1, stage=None):
    """Return what a censored posterior knows before its draw, and the cells of its grid
    with their scores.
    """
    plan = mechanism.plan(table.schema)
    curator = Drawing(plan, table, RandomBits(np.random.default_rng(seed)))
    stage = stage or mechanism.stage(plan, curator)
    with ONE_AT_A_TIME:
        return stage, mechanism.draws_from(mechanism.target(table.schema, stage))(
            table
        ).scored
