"""What regressions on sets of a GLOM tend to when records follow the sequential
logistic model of simulation 4 of Bowen and Liu (2020): without noise, with all records
there could be.

Run ``python -m pdips_papers.modips.glom_limit``. Integrals are by Gauss and Hermite, so
there is no seed. The bounds -4 and 4, which one record in 8,000 is moved to, are left
out.
"""

from dataclasses import dataclass

import click
import numpy as np
import pandas as pd
from numpy.polynomial.hermite_e import hermegauss

from pdips.arrays import FloatArray, IntArray
from pdips_papers.modips.sequential_model import CELLS, LEVELS, SEQUENCE, design

NODES = 61
"""Of the rule, for each of the two numbers."""

CORRELATION = 0.5
N_RECORDS = 1_000
"""Of a table of the paper, at which standard errors are stated."""

STEPS = 30
"""Newton steps of a regression: ten are enough for twelve digits."""


def standard_nodes() -> tuple[FloatArray, FloatArray]:
    """Return points of two independent standard normal numbers, shape (nodes, 2), and
    their weights, which add up to 1.
    """
    places, weights = hermegauss(NODES)
    both = np.array(np.meshgrid(places, places)).reshape(2, -1).T
    products = np.outer(weights, weights).ravel()
    return both, products / products.sum()


def cell_levels() -> list[IntArray]:
    """Return the levels of the three variables by cell."""
    return list(np.unravel_index(np.arange(CELLS), LEVELS))


def cell_shares(z: FloatArray) -> FloatArray:
    """Return the probabilities of the cells at each of some numbers, shape (nodes,
    cells).
    """
    w = cell_levels()
    shares = np.ones((len(z), CELLS))
    for regression in SEQUENCE:
        cells = [np.broadcast_to(column, shares.shape) for column in w]
        x = design(np.repeat(z[:, None], CELLS, axis=1), cells[: regression.outcome])
        scores = x[..., : regression.p] @ regression.truth.T
        scores = np.concatenate([np.zeros((*shares.shape, 1)), scores], axis=-1)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        laws = powers / powers.sum(axis=-1, keepdims=True)
        outcome = cells[regression.outcome][..., None]
        shares *= np.take_along_axis(laws, outcome, axis=-1)[..., 0]
    return shares


def logistic_limit(
    x: FloatArray, is_one: FloatArray, weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the coefficients that a logistic regression tends to, and the covariance
    of those of one record.
    """
    beta = np.zeros(x.shape[1])
    for _ in range(STEPS):
        fitted = 1 / (1 + np.exp(-x @ beta))
        slopes = weights * fitted * (1 - fitted)
        information = (x * slopes[:, None]).T @ x
        beta = beta + np.linalg.solve(information, x.T @ (weights * (is_one - fitted)))
    return beta, np.linalg.inv(information)


def regressions(z: FloatArray, weights: FloatArray) -> list[list[FloatArray]]:
    """Return coefficients and covariances of the regressions of the paper, level by
    level against the first one.

    ``z`` has the numbers by node and cell, shape (nodes, cells, 2), ``weights`` how
    much there is of each.
    """
    w = [np.broadcast_to(column, weights.shape) for column in cell_levels()]
    found = []
    for regression in SEQUENCE:
        x = design(z, list(w[: regression.outcome]))[..., : regression.p]
        outcome = w[regression.outcome]
        for level in range(1, regression.classes):
            kept = (outcome == 0) | (outcome == level)
            is_one = (outcome[kept] == level).astype(float)
            found.append([*logistic_limit(x[kept], is_one, weights[kept])])
    return found


@dataclass(frozen=True)
class Limit:
    """A law of records, at nodes by cell: ``numbers`` there, shape (nodes, cells, 2),
    and how much there is of each.
    """

    numbers: FloatArray
    weights: FloatArray


def laws() -> tuple[Limit, Limit]:
    """Return the law of the records, and that of sets of a GLOM that is fitted to all
    records there could be.
    """
    standard, weights = standard_nodes()
    root = np.linalg.cholesky(np.array([[1, CORRELATION], [CORRELATION, 1]]))
    z = standard @ root.T
    joint = weights[:, None] * cell_shares(z)
    by_cell = joint.sum(axis=0)
    means = (joint.T @ z) / by_cell[:, None]
    about = z[:, None] - means
    covariance = np.einsum("nk,nki,nkj->ij", joint, about, about)
    spread = standard @ np.linalg.cholesky(covariance).T
    records = Limit(np.broadcast_to(z[:, None], about.shape), joint)
    return records, Limit(means + spread[:, None], weights[:, None] * by_cell)


def limits() -> pd.DataFrame:
    """Return, by coefficient, the truth, what sets of a GLOM tend to, and how far off
    that is in standard errors of 1,000 records.
    """
    of_records, of_sets = (regressions(law.numbers, law.weights) for law in laws())
    rows = []
    for number, (exact, limit) in enumerate(
        zip(of_records, of_sets, strict=True), start=1
    ):
        true, covariance = exact
        errors = np.sqrt(np.diag(covariance) / N_RECORDS)
        for place, name in enumerate(("1", "z1", "z2", "w1", "w2")[: len(true)]):
            found = limit[0][place]
            off = (found - true[place]) / errors[place]
            rows.append((f"beta {number}, {name}", true[place], found, off))
    columns = ["coefficient", "truth", "limit", "standard errors off"]
    return pd.DataFrame(rows, columns=columns).set_index("coefficient")


def main() -> None:
    """Print the limits."""
    click.echo(limits().round(3).to_string())


if __name__ == "__main__":
    main()
