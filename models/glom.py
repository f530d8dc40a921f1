"""The general location model: columns with levels, and numeric columns that are normal
within their cells (for modips).

Olkin & Tate, Multivariate correlation models with mixed discrete and continuous
variables, Annals of Mathematical Statistics 32 (1961); Schafer, Analysis of Incomplete
Multivariate Data (1997), chapter 9; simulation 3 of Bowen & Liu, Comparative study of
differentially private data synthesis methods, Statistical Science 35 (2020).

    counts n_k ~ multinomial(n, pi)                       over all cells k of the
    columns with levels y of a record of cell k ~ normal(mu_k, Sigma)         all
    numeric columns together, one Sigma for all cells mu_k ~ normal(m, diag(tau^2))
    cells with few records borrow from the others

What is given are noisy counts, noisy sums T_k of each cell, and noisy sums of squares
and products Q of all records:

    T_k given n_k ~ normal(n_k m, n_k Sigma + n_k^2 diag(tau^2))      mu_k integrated
    out Q - sum_k T_k T_k' / n_k ~ Wishart(n - K, Sigma)

Schema: at least one column with levels and at least one numeric column, none of them
public. With scale = "log" the logarithm is normal.
"""

import numpy as np
import pymc as pm

from pdips.errors import InputError
from pdips.statistics.laws import cell_means, correlation_factor
from pdips.statistics.statistic import Counts, Products, Sums, unit_of

ALPHA = 0.5
"""Each cell's prior records: Jeffreys' prior, that of the paper's simulation 3."""


def columns(schema):
    """Names of the columns with levels, and of the numeric ones."""
    levels = [name for name, column in schema.columns.items() if column.is_categorical]
    numeric = [name for name in schema.columns if name not in levels]
    if not levels or not numeric or schema.public_columns:
        raise InputError(
            "glom.py describes columns with levels and numeric columns, at least one "
            "of each and none public; "
            "linear_regression.py has public columns"
        )
    return tuple(levels), tuple(numeric)


def sizes(schema):
    return tuple(schema.columns[name].n_levels for name in columns(schema)[0])


def statistics(schema):
    levels, numeric = columns(schema)
    found = {"counts": Counts(by=levels)}
    found |= {f"sums of {y}": Sums(of=y, by=levels) for y in numeric}
    return found | {
        f"{x} times {y}": Products(of=(x, y))
        for i, x in enumerate(numeric)
        for y in numeric[: i + 1]
    }


def build_model(given, schema):
    _, numeric = columns(schema)
    d = len(numeric)
    cells = int(np.prod(sizes(schema)))
    products = [
        f"{x} times {y}" for i, x in enumerate(numeric) for y in numeric[: i + 1]
    ]
    with pm.Model() as model:
        # In units of half the range, counted from its middle. The mean over cells lies
        # within the bounds with probability .95, and neither cell means nor records
        # within a cell spread by more than half of the range.
        m = pm.Normal("m", 0, 0.5, shape=d)
        # Zero is avoided (Chung et al., Psychometrika 78, 2013): with loud noise chains
        # would get stuck there.
        tau = pm.Gamma("tau", 2, 4, shape=d)
        sd = pm.Gamma("sd", 2, 4, shape=d)
        # All correlation matrices are as likely (Lewandowski, Kurowicka & Joe, 2009).
        chol = sd[:, None] * correlation_factor("correlation", d)
        counts = pm.Deterministic(
            "counts", given.dirichlet_multinomial("counts", ALPHA)
        )
        sums = given.normal(
            [f"sums of {y}" for y in numeric],
            counts[:, None] * m,
            chol,
            times=counts,
            between=tau,
        )
        pm.Deterministic("sums", sums)
        df = pm.math.maximum(given.n - cells, d)
        given.wishart(
            products, df=df, chol=chol, about=sums.T @ (sums / counts[:, None])
        )
        pm.Deterministic("Sigma", chol @ chol.T)
    return model


def draw_rest(given, draws, schema, rng):
    """Shares and cell means, which are integrated out: draws given counts, sums and
    Sigma.
    """
    shares = rng.standard_gamma(
        given.law("dirichlet_multinomial").arguments["alpha"] + draws["counts"]
    )
    return {
        "pi": shares / shares.sum(axis=1, keepdims=True),
        "mu": cell_means(draws, draws["counts"], rng),
    }


def draw_records(draw, records, schema, rng):
    levels, numeric = columns(schema)
    cell = rng.choice(len(draw["pi"]), size=records.n, p=draw["pi"])
    codes = np.unravel_index(cell, sizes(schema))
    root = np.linalg.cholesky(draw["Sigma"])
    u = draw["mu"][cell] + rng.standard_normal((records.n, len(numeric))) @ root.T
    drawn = {
        name: unit_of(schema, name).back(u[:, i]) for i, name in enumerate(numeric)
    }
    return {**dict(zip(levels, codes, strict=True)), **drawn}
