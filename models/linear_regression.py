"""A linear regression of one bounded numeric column on all public columns, from noisy
sums (for modips).

Bernstein & Sheldon, Differentially private Bayesian linear regression (2019). The
records of the public columns are known, X'X with them; what is noisy are sums of the
outcome y and of its products, of which X'y and y'y are made.

    y of a record ~ normal(x'beta, sd) b = (X'X)^-1 X'y ~ normal(beta, sd^2 (X'X)^-1),
    y'y - b'X'X b ~ sd^2 chi-squared(n - p)

Schema: one numeric column that isn't public, and at least one public column. A public
column with levels has an effect for each level but the first; a numeric one is moved to
[-1, 1] by its bounds. With scale = "log" the outcome's logarithm is regressed. Where no
column is public, glom.py is the model.
"""

import numpy as np
import pymc as pm

from pdips.errors import InputError
from pdips.statistics.plan import LEAST_VARIANCE
from pdips.statistics.statistic import Products, Sums, unit_of

WIDTH = 1.0
"""Prior standard deviation of intercept and effects, in half ranges of the outcome."""

SD = 0.5
"""The standard deviation is half-normal with this scale."""


def outcome(schema):
    names = [name for name, column in schema.columns.items() if not column.public]
    if (
        len(names) != 1
        or schema.columns[names[0]].is_categorical
        or not schema.public_columns
    ):
        raise InputError(
            f"linear_regression.py describes one numeric column, all others public; "
            f"those that aren't are {names}; "
            "glom.py describes several, without public ones"
        )
    return names[0]


def statistics(schema):
    y = outcome(schema)
    found = {"squares": Products(of=(y, y)), "total": Sums(of=y)}
    for name in schema.public_columns:
        levels = schema.columns[name].is_categorical
        found[f"sums by {name}" if levels else f"products with {name}"] = (
            Sums(of=y, by=(name,)) if levels else Products(of=(name, y))
        )
    if any(schema.columns[name].is_categorical for name in schema.public_columns):
        del found["total"]  # sums by level say it
    return found


def indicators(public, schema):
    """What each statistic of X'y multiplies the outcome by, by its name: shape
    (records, entries).
    """
    found = {"total": np.ones((len(next(iter(public.values()))), 1))}
    for name in schema.public_columns:
        if schema.columns[name].is_categorical:
            found[f"sums by {name}"] = np.eye(schema.columns[name].n_levels)[
                public[name]
            ]
        else:
            found[f"products with {name}"] = unit_of(schema, name).of(
                np.asarray(public[name], dtype=float)
            )[:, None]
    return found


def design(public, schema):
    """The matrix X: 1, levels but the first, numeric columns; shape (records, p)."""
    columns = indicators(public, schema)
    return np.hstack(
        [
            each[:, 1:] if name.startswith("sums by ") else each
            for name, each in columns.items()
        ]
    )


def linear(given, schema):
    """X'X, what sums are of the least-squares coefficients, and these coefficients'
    covariance for sd = 1.
    """
    x = design(given.public, schema)
    wanted = statistics(schema)
    loads = {
        name: each.T @ x
        for name, each in indicators(given.public, schema).items()
        if name in wanted
    }
    # A level that no record has leaves its effect to the prior.
    return x.T @ x, loads, np.linalg.inv(x.T @ x + 1e-3 * np.eye(x.shape[1]))


def build_model(given, schema):
    gram, loads, covariance = linear(given, schema)
    p = len(gram)
    with pm.Model() as model:
        # values within bounds never spread by more than half of their range
        sd = pm.HalfNormal("sd", SD)
        b = given.solved("least squares", loads, spread=WIDTH)
        root = given.fixed("root", np.linalg.cholesky(covariance))
        beta = pm.Deterministic(
            "beta", b + sd * (root @ pm.Normal("error", 0, 1, shape=p))
        )
        given.prior("beta", beta, pm.Normal.dist(0, WIDTH))
        explained = b @ (given.fixed("gram", gram) @ b)
        if not given.aware:  # something is left unexplained
            most = given["squares"][0] - LEAST_VARIANCE * given.n
            explained = pm.math.minimum(explained, given.fixed("most", most))
        given.wishart(["squares"], df=given.n - p, chol=sd, about=explained)
    return model


def draw_records(draw, records, schema, rng):
    y = outcome(schema)
    u = design(records.public, schema) @ draw["beta"] + draw[
        "sd"
    ] * rng.standard_normal(records.n)
    return {y: unit_of(schema, y).back(u)}
