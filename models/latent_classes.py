"""Classes of records in which columns are independent, from the noisy margins that a release has published.

Nixon, Barrientos, Reiter & Slavkovic, A latent class modeling approach for differentially private synthetic data for
contingency tables, Journal of Privacy and Confidentiality 12 (2022).

    share of level a of a column                =  sum_k weight_k level_k[a]
    share of a together with b of another one   =  sum_k weight_k level_k[a] level_k[b]

Not for --model: no confidential table is read and nothing is spent. The pm.Model is of the population that the table is
a sample of, so sets are posterior predictive: combine them by the rule of that name.

    margins, records = NoisyMargins.read("DIR"), pd.read_parquet("DIR/public/synthetic_1.parquet")
    with margins_model(margins, records):
        idata = pm.sample(nuts_sampler="nutpie")
    sets = [draw(idata, margins, len(records), rng) for _ in range(20)]

Data: differences of counts, and margins that overlap, share their noise. What is independent, with known variances, is
the noise on orthonormal contrasts of the levels of a column and on products of those of two columns, which say all that
the margins say (docs/proofs/pairs.md, section 5). That the table is a sample adds the covariance of n records'
contrasts, which is taken from the synthetic set, whose margins are about those of the table. Both laws count as normal.
Intervals leave out what so many classes can't describe. Look at R-hat of "pairs" first: chains may stay in different
modes, as they did on a survey of eight columns.

Schema: columns with levels or bins, none of them public, without impossible combinations.
"""

import numpy as np
import pymc as pm
from scipy.linalg import block_diag, solve_triangular
from scipy.special import softmax

from pdips.data.table import Table, decode
from pdips.errors import InputError


def margins_model(margins, records, n_classes=10):
    """The population, from `margins` (pdips.outside.NoisyMargins) and the `records` of a synthetic set beside them.

    Classes may be numbered differently in each chain; "pairs", shape (levels, levels) over the levels of all columns,
    doesn't change with the numbering, and has the shares of levels on its diagonal.
    """
    noisy, schema, names = margins.found, margins.schema, margins.design.domain.names
    tied = len(margins.design.blocks) < len(names)
    if margins.estimated or schema.public_columns or tied or not np.isfinite(noisy.variance).all():
        raise InputError(
            "latent_classes.py describes columns with levels or bins, each two measured together, none of them public "
            "or part of an impossible combination"
        )
    # Contrasts of each column, orthonormal and orthogonal to the sum; `first` and `second` are of different columns.
    basis = block_diag(*[np.linalg.qr(np.eye(size)[:, 1:] - 1 / size)[0] for size in noisy.sizes])
    column = np.repeat(np.arange(len(names)), noisy.sizes - 1)
    first, second = np.nonzero(column[:, None] < column)
    seen = np.concatenate([np.diagonal(noisy.counts) @ basis, (basis.T @ noisy.counts @ basis)[first, second]])
    noise = np.concatenate([noisy.variance[column, column], noisy.variance[column[first], column[second]]])
    # What records add to the contrasts, for the sampling error; a protected number of records has noise as well.
    codes = Table(records, schema).codes
    held = np.eye(len(basis))[np.column_stack([codes[name] for name in names]) + noisy.offsets[:-1]].sum(axis=1)
    one = held @ basis
    each = np.hstack([one, one[:, first] * one[:, second]])
    total = noisy.total_variance * np.outer(each.mean(axis=0), each.mean(axis=0))
    spread = np.linalg.cholesky(np.diag(noise) + noisy.n * np.cov(each.T) + total)
    whiten = solve_triangular(spread, np.eye(len(spread)), lower=True)  # leaves standard normal errors
    with pm.Model(coords={"class": range(n_classes)}) as model:
        # All weights, and all distributions over the levels of a column, are as likely.
        shares, each = start(held, noisy.offsets, n_classes)
        weights = pm.Dirichlet("weights", np.ones(n_classes), dims="class", initval=shares)
        levels = [
            pm.Dirichlet(f"{name}_levels", np.ones(begun.shape), initval=begun)
            for name, begun in zip(names, np.split(each, noisy.offsets[1:-1], axis=1), strict=True)
        ]
        levels = pm.math.concatenate(levels, axis=1)
        same = block_diag(*[np.ones((size, size)) for size in noisy.sizes]) > 0
        both = pm.math.dot(levels.T * weights, levels)
        alone = pm.math.dot(weights, levels)
        pm.Deterministic("pairs", pm.math.where(same, np.eye(len(same)) * alone, both))
        contrasts = pm.math.dot(levels, basis)
        products = pm.math.dot(contrasts.T * weights, contrasts)[first, second]
        mean = pm.math.concatenate([pm.math.dot(weights, contrasts), products])  # of a record
        data = {"whiten": pm.Data("whiten", noisy.n * whiten), "seen": pm.Data("seen", whiten @ seen)}
        pm.Normal("margins", pm.math.dot(data["whiten"], mean), 1, observed=data["seen"])
    return model


def start(held, offsets, n_classes):
    """Where chains start, so that they agree: weights and levels by the EM algorithm from the synthetic records."""
    inside = np.random.default_rng(0).dirichlet(np.ones(n_classes), len(held))
    for _ in range(100):
        counts = inside.T @ held + 1
        each = counts / np.repeat(np.add.reduceat(counts, offsets[:-1], axis=1), np.diff(offsets), axis=1)
        weights = (inside.sum(axis=0) + 1) / (len(held) + n_classes)
        inside = softmax(np.log(weights) + held @ np.log(each).T, axis=1)
    return weights, each


def draw(idata, margins, n, rng):
    """A synthetic set of `n` records at a random draw of the posterior: a class for each, then its levels."""
    at = {"chain": rng.integers(idata.posterior.sizes["chain"]), "draw": rng.integers(idata.posterior.sizes["draw"])}
    here, codes = idata.posterior.isel(at), {}
    classes = rng.choice(here.sizes["class"], n, p=here["weights"].to_numpy())
    for name in margins.design.domain.names:
        ends = here[f"{name}_levels"].to_numpy().cumsum(axis=1)[classes]
        codes[name] = (rng.random((n, 1)) * ends[:, -1:] >= ends).sum(axis=1)
    return decode(margins.schema, codes, rng)
