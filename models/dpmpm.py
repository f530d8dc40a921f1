"""A Dirichlet process mixture of products of multinomials for columns with levels,
truncated.

Dunson & Xing, Nonparametric Bayes modeling of multivariate categorical data, JASA 104
(2009); Si & Reiter, Nonparametric Bayesian multiple imputation for incomplete
categorical variables, Journal of Educational and Behavioral Statistics 38 (2013); Hu,
Reiter & Wang, Disclosure risk evaluation for fully synthetic categorical data, Privacy
in Statistical Databases (2014). The class of a record is summed out.

Schema: columns with levels only. Public ones steer in which class a record is, the
others are described. No impossible combinations: the model gives each some probability.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pdips.errors import InputError

CLASSES = 10  # enough if the last one holds next to nobody

WATCH = ("margins",)  # classes can be relabelled, margins can't


def build_model(data, schema):
    numeric = [
        name for name, column in schema.columns.items() if not column.is_categorical
    ]
    names = [name for name, column in schema.columns.items() if not column.public]
    if numeric or not names:
        raise InputError(
            f"dpmpm.py describes columns with levels, not all of them "
            f"public; numeric: {numeric}"
        )
    with pm.Model(
        coords={
            "record": range(data.n_records),
            "column": names,
            "class": range(CLASSES),
        }
    ) as model:
        # The classes' shares, by breaking a stick: class k takes 1 - exp(-breaks[k] /
        # concentration), which is beta(1, concentration) distributed, of what the
        # classes before it left.
        concentration = pm.Gamma("concentration", 1, 1)
        breaks = pm.Exponential("breaks", 1, shape=CLASSES - 1)
        log_kept = -breaks / concentration
        log_left = pt.concatenate([[0.0], pt.cumsum(log_kept)])
        log_shares = log_left + pt.concatenate([pt.log1mexp(log_kept), [0.0]])
        # In each class a distribution over the levels of each column; all distributions
        # are as likely.
        levels = {
            name: pm.Dirichlet(
                f"{name}_levels",
                np.ones(column.n_levels),
                shape=(CLASSES, column.n_levels),
            )
            for name, column in schema.columns.items()
        }
        pm.Deterministic(
            "margins",
            pt.concatenate([pt.exp(log_shares) @ levels[name] for name in names]),
        )
        log_weights = log_shares
        for name in schema.public_columns:
            log_weights += pt.log(levels[name]).T[data[name]]
        most = max(schema.columns[name].n_levels for name in names)
        pm.CustomDist(
            "records",
            log_weights,
            pt.stack([padded(pt.log(levels[name]).T, most) for name in names]),
            logp=log_probability,
            random=draw_records,
            signature="(k),(c,l,k)->(c)",
            dtype="int64",
            dims=("record", "column"),
            observed=data.matrix(names),
        )
    return model


def padded(log_levels, most):
    """Add levels that don't occur, so that all columns have as many; shape (most,
    classes).
    """
    return pt.concatenate(
        [log_levels, pt.full((most - log_levels.shape[0], CLASSES), -np.inf)]
    )


def log_probability(records, log_weights, log_levels):
    """Log probability of each record, given its public columns: log sum_k share_k
    prod_j levels_j[k, x_j].
    """
    # PyMC puts an axis in front if there are public columns
    by_column = log_levels.reshape(log_levels.shape[-3:])
    in_class = sum(
        by_column[j, records[:, j]] for j in range(log_levels.type.shape[-3])
    )
    return pt.logsumexp(log_weights + in_class, axis=-1) - pt.logsumexp(
        log_weights, axis=-1
    )


def draw_records(log_weights, log_levels, rng, size):
    """Draw a class for each record, then each column given the class."""
    classes = choose(np.broadcast_to(log_weights, (*size, CLASSES)), rng)
    by_column = log_levels.reshape(log_levels.shape[-3:])
    return np.stack([choose(levels.T[classes], rng) for levels in by_column], axis=-1)


def choose(log_weights, rng):
    """Draw one place a row, with probability proportional to exp(log_weights)."""
    cumulated = np.exp(log_weights).cumsum(axis=-1)
    return (rng.random((len(cumulated), 1)) * cumulated[:, -1:] >= cumulated).sum(
        axis=-1
    )
