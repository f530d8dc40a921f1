"""Sequential regressions with a marginal normal law: numbers first, then columns with levels one by one (for modips).

SLOMAG, simulation 4 of Bowen & Liu, Comparative study of differentially private data synthesis methods, Statistical
Science 35 (2020), with noise on a ridge fit whose sensitivity is right (Chaudhuri & Monteleoni, Privacy-preserving
logistic regression, 2009; ``docs/proofs/modips.md``).

    z ~ normal(mu, Sigma)                                             all numeric columns together
    w_j given z and earlier w ~ levels with logits x_j' beta_j        the first level is the baseline

What is given are noisy sums, squares and products of z, and for each w_j a noisy ridge fit b_j of precision KAPPA:

    b_j ~ normal about the ridge fit of a population with coefficients beta_j, to first order in beta_j

Schema: one numeric column at least and one column with levels at least, none public. Columns with levels depend on all
numeric ones and on those before them.
"""

import numpy as np
import pymc as pm

from pdips.bayes.logistic_fit import Logistic
from pdips.bayes.normal_cells import draw_cells
from pdips.bayes.ridge_posterior import Rows, draw_coefficients, level_shares, nodes
from pdips.bayes.statistic_fit import NOT_AGREED
from pdips.bayes.statistics import Counts, Products, Sums
from pdips.bayes.units import unit_of
from pdips.errors import InputError, RefusedError

KAPPA = 30  # less leaves more noise, more shrinks coefficients further before noise comes: see docs/studies.md
PRIOR = 10.0  # of coefficients of predictors within the unit ball: logits of 5 are not unheard of, of 30 they are


def columns(schema):
    levels = [name for name, column in schema.columns.items() if column.is_categorical]
    numeric = [name for name in schema.columns if name not in levels]
    if not levels or not numeric or schema.public_columns:
        raise InputError(
            "slomag.py describes numeric columns and columns with levels, at least one of each, none public"
        )
    return levels, numeric


def pairs(schema):
    _, numeric = columns(schema)
    return {f"{x} times {y}": (x, y) for i, x in enumerate(numeric) for y in numeric[: i + 1]}


def regressions(schema):
    levels, numeric = columns(schema)
    return {
        f"fit of {w}": Logistic(outcome=w, predictors=(*numeric, *levels[:place]), kappa=KAPPA)
        for place, w in enumerate(levels)
    }


def statistics(schema):
    _, numeric = columns(schema)
    sums = {f"sum of {z}": Sums(of=z) for z in numeric}
    products = {name: Products(of=pair) for name, pair in pairs(schema).items()}
    return {"records": Counts(), **sums, **products, **regressions(schema)}


def build_model(given, schema):
    _, numeric = columns(schema)
    if given.measured.n_records is None or not given.aware:
        raise InputError("slomag.py is for neighbours = replace-one and likelihood = noise-aware")
    with pm.Model() as model:
        # In units of half the range. The fits enter in draw_posterior: their law needs sums over a population.
        m = pm.Normal("m", 0, 0.5, shape=len(numeric))
        sd = pm.Gamma("sd", 2, 4, shape=len(numeric))
        for place, name in enumerate(numeric):
            total = given.normal(f"sum of {name}", given.n * m[place : place + 1], sd[place], times=given.n)
            given.wishart([f"{name} times {name}"], df=given.n - 1, chol=sd[place], about=total[0] ** 2 / given.n)
    return model


def draw_posterior(given, n_draws, schema, rng):
    """Numbers by chains, then each regression given the population that the columns before it make."""
    _, numeric = columns(schema)
    measured = given.measured
    sums = [f"sum of {z}" for z in numeric]
    tree, agreed = draw_cells(given, "records", sums, list(pairs(schema)), 0.5, rng)
    if not agreed.passed:
        raise RefusedError(NOT_AGREED.format("slomag.py"))
    stacked = tree["posterior"].to_dataset().stack(sample=("chain", "draw")).transpose("sample", ...)
    taken = np.linspace(0, stacked.sizes["sample"] - 1, n_draws).astype(int)
    total, spread = stacked["sums"].to_numpy()[taken, 0], stacked["Sigma"].to_numpy()[taken]
    noise = np.linalg.cholesky(spread) @ rng.standard_normal((n_draws, len(numeric), 1))
    found = {"mean": total / measured.n_records + noise[..., 0] / np.sqrt(measured.n_records), "covariance": spread}
    u = nodes(found["mean"].mean(axis=0), spread.mean(axis=0))
    rows = Rows.of(numeric, np.column_stack([unit_of(schema, z).back(u[:, i]) for i, z in enumerate(numeric)]))
    for name, fit in regressions(schema).items():
        law = (measured.scale(name), measured.part(name).law == "gaussian", measured.n_records, PRIOR)
        draws, shares = draw_coefficients(fit, schema, rows, given.noisy(name), *law, n_draws, rng)
        found[f"coefficients of {fit.outcome}"] = draws
        rows = rows.with_levels(fit.outcome, shares)
    return found


def draw_records(draw, records, schema, rng):
    _, numeric = columns(schema)
    u = draw["mean"] + rng.standard_normal((records.n, len(numeric))) @ np.linalg.cholesky(draw["covariance"]).T
    made = {z: unit_of(schema, z).back(u[:, i]) for i, z in enumerate(numeric)}
    for fit in regressions(schema).values():
        shares = level_shares(fit.design(made, schema), draw[f"coefficients of {fit.outcome}"])
        made[fit.outcome] = (rng.random((records.n, 1)) >= shares.cumsum(axis=1)).sum(axis=1)
    return made
