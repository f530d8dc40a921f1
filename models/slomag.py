"""Sequential regressions with a marginal normal law: numbers first, then columns with
levels one by one (for modips).

SLOMAG, simulation 4 of Bowen & Liu, Comparative study of differentially private data
synthesis methods, Statistical Science 35 (2020), with noise on a ridge fit whose
sensitivity is right (Chaudhuri & Monteleoni, Privacy-preserving logistic regression,
2009; ``docs/proofs/modips.md``).

    z ~ normal(mu, Sigma)                                             all numeric
    columns together w_j given z and earlier w ~ levels with logits x_j' beta_j
    the first level is the baseline

What is given are noisy sums, squares and products of z, and for each w_j a noisy ridge
fit b_j of precision KAPPA:

    b_j ~ normal about the ridge fit of a population with coefficients beta_j, to first
    order in beta_j

Schema: one numeric column at least and one column with levels at least, none public.
Columns with levels depend on all numeric ones and on those before them.
"""

import numpy as np
import pymc as pm

from pdips.errors import InputError
from pdips.statistics.laws import cell_means, correlation_factor
from pdips.statistics.logistic import Logistic
from pdips.statistics.regression import level_shares
from pdips.statistics.statistic import Counts, Products, Sums, unit_of

# less leaves more noise, more shrinks coefficients further before noise comes: see
# docs/papers.md
KAPPA = 30
# of coefficients of predictors within the unit ball: logits of 5 are not unheard of, of
# 30 they are
PRIOR = 10.0


def columns(schema):
    levels = [name for name, column in schema.columns.items() if column.is_categorical]
    numeric = [name for name in schema.columns if name not in levels]
    if not levels or not numeric or schema.public_columns:
        raise InputError(
            "slomag.py describes numeric columns and columns with levels, at least "
            "one of each, none public"
        )
    return levels, numeric


def pairs(schema):
    _, numeric = columns(schema)
    return {
        f"{x} times {y}": (x, y)
        for i, x in enumerate(numeric)
        for y in numeric[: i + 1]
    }


def regressions(schema):
    levels, numeric = columns(schema)
    return {
        f"fit of {w}": Logistic(
            outcome=w, predictors=(*numeric, *levels[:place]), kappa=KAPPA
        )
        for place, w in enumerate(levels)
    }


def statistics(schema):
    _, numeric = columns(schema)
    sums = {f"sum of {z}": Sums(of=z) for z in numeric}
    products = {name: Products(of=pair) for name, pair in pairs(schema).items()}
    return {"records": Counts(), **sums, **products, **regressions(schema)}


def build_model(given, schema):
    _, numeric = columns(schema)
    d = len(numeric)
    if given.measured.n_records is None or not given.aware:
        raise InputError(
            "slomag.py is for neighbours = replace-one and likelihood = noise-aware"
        )
    with pm.Model() as model:
        # In units of half the range, with the priors of glom.py for a single cell.
        m = pm.Normal("m", 0, 0.5, shape=d)
        tau = pm.Gamma("tau", 2, 4, shape=d)
        sd = pm.Gamma("sd", 2, 4, shape=d)
        chol = sd[:, None] * correlation_factor("correlation", d)
        sums = given.normal(
            [f"sum of {z}" for z in numeric],
            given.n * m[None],
            chol,
            times=given.n,
            between=tau,
        )
        given.wishart(
            list(pairs(schema)),
            df=max(given.n - 1, d),
            chol=chol,
            about=sums.T @ sums / given.n,
        )
        pm.Deterministic("sums", sums)
        average = pm.Deterministic("average", sums[0] / given.n)
        given.population(numeric, average, pm.Deterministic("Sigma", chol @ chol.T))
        # Their law needs sums over the population that the columns before them make:
        # they are drawn after all else.
        for name, fit in regressions(schema).items():
            beta = pm.Normal(
                f"coefficients of {fit.outcome}", 0, PRIOR, shape=fit.shape(schema)
            )
            given.ridge_fit(name, beta)
    return model


def draw_rest(given, draws, schema, rng):
    """The means of numeric columns, which are integrated out: draws given their sums
    and Sigma.
    """
    counts = np.full((len(draws["m"]), 1), given.n)
    return {"mean": cell_means(draws, counts, rng)[:, 0]}


def draw_records(draw, records, schema, rng):
    _, numeric = columns(schema)
    u = (
        draw["mean"]
        + rng.standard_normal((records.n, len(numeric)))
        @ np.linalg.cholesky(draw["Sigma"]).T
    )
    made = {z: unit_of(schema, z).back(u[:, i]) for i, z in enumerate(numeric)}
    for fit in regressions(schema).values():
        shares = level_shares(
            fit.design(made, schema), draw[f"coefficients of {fit.outcome}"]
        )
        made[fit.outcome] = (rng.random((records.n, 1)) >= shares.cumsum(axis=1)).sum(
            axis=1
        )
    return made
