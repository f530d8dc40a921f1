"""Models of one to four parameters that tests fit, and the schemas of their tables."""

import numpy as np
import pymc as pm

from pdips.bayes.model_file import Blueprint, Source
from pdips.schema import Schema

UNIT = Schema.model_validate({"columns": {"y": {"lower": 0, "upper": 1}}})
WIDE = Schema.model_validate({"columns": {"y": {"lower": -1000, "upper": 1000}}})
PAIRS = Schema.model_validate(
    {"columns": {"x": {"lower": -10, "upper": 10, "public": True}, "y": {"lower": -100, "upper": 100}}}
)


def normal(data, schema):
    """Known deviation 1: the posterior of theta is normal."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 10)
        pm.Normal("y", theta, 1, observed=data["y"])
    return model


def beta(data, schema):
    """The synthesizer of paper 004."""
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
        sigma = pm.HalfNormal("sigma", 3)
        pm.Normal("y", b[0] + b[1] * data["x"] + b[2] * data["x"] ** 2, sigma, observed=data["y"])
    return model


def blueprint(build, schema: Schema) -> Blueprint:
    return Blueprint(Source(build, build.__name__), schema)


def beta_records(n: int, seed: int = 1) -> np.ndarray:
    """Records of the simulation of paper 004."""
    return np.clip(np.random.default_rng(seed).beta(0.5, 3, n), 1e-12, 1 - 1e-12)
