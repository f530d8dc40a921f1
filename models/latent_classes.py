"""Classes of records in which columns are independent, from the noisy margins that a
release has published.

Nixon, Barrientos, Reiter & Slavkovic, A latent class modeling approach for
differentially private synthetic data for contingency tables, Journal of Privacy and
Confidentiality 12 (2022).

    share of level a of a column                =  sum_k weight_k level_k[a]
    share of a together with b of another one   =  sum_k weight_k level_k[a] level_k[b]

Not for --model: no confidential table is read and nothing is spent. The pm.Model is of
the population that the table is a sample of, so sets are posterior predictive: combine
them by the rule of that name.

    margins, records = NoisyMargins.read("DIR"),
    pd.read_parquet("DIR/public/synthetic_1.parquet") with margins_model(margins,
    records):
        idata = pm.sample(nuts_sampler="nutpie")
    sets = [draw(idata, margins, len(records), rng) for _ in range(20)]

Data: differences of counts, and margins that overlap, share their noise. What is
independent, with known variances, is the noise on orthonormal contrasts of the levels
of a column and on products of those of two columns, which say all that the margins say
(docs/proofs/margins.md, section 5). That the table is a sample adds the covariance of n
records' contrasts, which is taken from the synthetic set, whose margins are about those
of the table. Both laws count as normal. Intervals leave out what so many classes can't
describe. Look at R-hat of "pairs" first: chains may stay in different modes, as they
did on a survey of eight columns.

Schema: columns with levels or bins, none of them public, without impossible
combinations.
"""

import numpy as np
import pymc as pm
from scipy.linalg import block_diag, solve_triangular
from scipy.special import softmax

from pdips.data.table import Table, decode
from pdips.errors import InputError


def margins_model(margins, records, n_classes=10):
    """The population, from `margins` (pdips.outside.NoisyMargins) and the `records` of
    a synthetic set beside them.

    Classes may be numbered differently in each chain; "pairs", shape (levels, levels)
    over the levels of all columns, doesn't change with the numbering, and has the
    shares of levels on its diagonal.
    """
    check(margins)
    noisy = margins.found
    contrasts = Contrasts(noisy)
    held = indicators(margins, records)
    seen = contrasts.of_margins(noisy.counts)
    # leaves standard normal errors
    spread = np.linalg.cholesky(covariance(noisy, contrasts, held))
    whiten = solve_triangular(spread, np.eye(len(spread)), lower=True)
    with pm.Model(coords={"class": range(n_classes)}) as model:
        # All weights, and all distributions over the levels of a column, are as likely.
        shares, level_shares = start(held, noisy.offsets, n_classes)
        weights = pm.Dirichlet(
            "weights", np.ones(n_classes), dims="class", initval=shares
        )
        begun = np.split(level_shares, noisy.offsets[1:-1], axis=1)
        columns = [
            pm.Dirichlet(f"{name}_levels", np.ones(shares.shape), initval=shares)
            for name, shares in zip(margins.design.domain.names, begun, strict=True)
        ]
        levels = pm.math.concatenate(columns, axis=1)
        pm.Deterministic("pairs", pairs(weights, levels, noisy.sizes))
        whitening = pm.Data("whiten", noisy.n * whiten)
        observed = pm.Data("seen", whiten @ seen)
        mean = contrasts.of_classes(weights, levels)
        pm.Normal("margins", pm.math.dot(whitening, mean), 1, observed=observed)
    return model


def check(margins):
    """Refuse margins of which the model isn't one."""
    noisy = margins.found
    tied = len(margins.design.blocks) < len(margins.design.domain.names)
    known = np.isfinite(noisy.variance).all()
    if margins.estimated or margins.schema.public_columns or tied or not known:
        raise InputError(
            "latent_classes.py describes columns with levels or bins, each two "
            "measured together, none of them public "
            "or part of an impossible combination"
        )


class Contrasts:
    """Contrasts of each column, orthonormal and orthogonal to the sum, and products of
    those of two columns: `first` and `second` are of different ones.
    """

    def __init__(self, noisy):
        blocks = [
            np.linalg.qr(np.eye(size)[:, 1:] - 1 / size)[0] for size in noisy.sizes
        ]
        self.basis = block_diag(*blocks)
        self.column = np.repeat(np.arange(len(blocks)), noisy.sizes - 1)
        self.first, self.second = np.nonzero(self.column[:, None] < self.column)

    def of_margins(self, counts):
        """Noisy contrasts, of margins as a matrix over the levels of all columns."""
        alone = np.diagonal(counts) @ self.basis
        products = self.basis.T @ counts @ self.basis
        return np.concatenate([alone, products[self.first, self.second]])

    def of_records(self, held):
        """The contrasts of each record."""
        alone = held @ self.basis
        return np.hstack([alone, alone[:, self.first] * alone[:, self.second]])

    def of_classes(self, weights, levels):
        """The mean contrasts of a record of the population."""
        alone = pm.math.dot(levels, self.basis)
        products = pm.math.dot(alone.T * weights, alone)
        return pm.math.concatenate(
            [pm.math.dot(weights, alone), products[self.first, self.second]]
        )


def indicators(margins, records):
    """Which levels the records of the synthetic set have, shape (records, levels)."""
    codes = Table(records, margins.schema).codes
    offsets = margins.found.offsets
    columns = np.column_stack([codes[name] for name in margins.design.domain.names])
    return np.eye(offsets[-1])[columns + offsets[:-1]].sum(axis=1)


def covariance(noisy, contrasts, held):
    """That of noisy contrasts: their noise, the sampling of records, and the noise on a
    protected number of records.
    """
    column = contrasts.column
    alone = noisy.variance[column, column]
    products = noisy.variance[column[contrasts.first], column[contrasts.second]]
    of_records = contrasts.of_records(held)
    mean = of_records.mean(axis=0)
    of_number = noisy.total_variance * np.outer(mean, mean)
    sampling = noisy.n * np.cov(of_records.T)
    return np.diag(np.concatenate([alone, products])) + sampling + of_number


def pairs(weights, levels, sizes):
    """The shares of pairs of levels, and on the diagonal those of levels."""
    same = block_diag(*[np.ones((size, size)) for size in sizes]) > 0
    both = pm.math.dot(levels.T * weights, levels)
    alone = pm.math.dot(weights, levels)
    return pm.math.where(same, np.eye(len(same)) * alone, both)


def start(held, offsets, n_classes):
    """Where chains start, so that they agree: weights and levels by the EM algorithm
    from the synthetic records.
    """
    inside = np.random.default_rng(0).dirichlet(np.ones(n_classes), len(held))
    for _ in range(100):
        counts = inside.T @ held + 1
        of_columns = np.add.reduceat(counts, offsets[:-1], axis=1)
        levels = counts / np.repeat(of_columns, np.diff(offsets), axis=1)
        weights = (inside.sum(axis=0) + 1) / (len(held) + n_classes)
        inside = softmax(np.log(weights) + held @ np.log(levels).T, axis=1)
    return weights, levels


def draw(idata, margins, n, rng):
    """A synthetic set of `n` records at a random draw of the posterior: a class for
    each, then its levels.
    """
    at = {
        "chain": rng.integers(idata.posterior.sizes["chain"]),
        "draw": rng.integers(idata.posterior.sizes["draw"]),
    }
    here = idata.posterior.isel(at)
    codes = {}
    classes = rng.choice(here.sizes["class"], n, p=here["weights"].to_numpy())
    for name in margins.design.domain.names:
        ends = here[f"{name}_levels"].to_numpy().cumsum(axis=1)[classes]
        reached = rng.random((n, 1)) * ends[:, -1:]
        codes[name] = (reached >= ends).sum(axis=1)
    return decode(margins.schema, codes, rng)
