"""What tests of margins share: tables of all sorts of columns, distances between
tables, and dense least squares.
"""

from functools import partial

import numpy as np
import pandas as pd
from scipy.linalg import null_space
from tables import schema_in

from pdips import Margins, Table

ALL_SORTS = schema_in("all_sorts")

# views would be measured of small tables
of_pairs = partial(Margins, measure="pairs")


def people(n: int = 3001) -> Table:
    """Records of all sorts: one column is public, numbers may be missing, and a
    combination can't occur.
    """
    rng = np.random.default_rng(0)
    region = rng.choice(["n", "s", "w"], n, p=[0.6, 0.3, 0.1])
    works = (rng.random(n) < np.where(region == "n", 0.9, 0.2)) & (region != "w")
    age = np.where(rng.random(n) < 0.1, np.nan, rng.uniform(0, 100, n))
    # missing for all who do not work
    wage = np.where(works, rng.uniform(0, 1000, n), np.nan)
    return Table(
        pd.DataFrame({"region": region, "age": age, "works": works, "wage": wage}),
        ALL_SORTS,
    )


def released(mechanism, table: Table, seed: int = 0):
    """Return a release from a seed."""
    return mechanism.release(table, rng=np.random.default_rng(seed))[0]


def apart(table: Table, made: pd.DataFrame) -> float:
    """Return how many records one table has in a cell and the other hasn't, added up
    over cells.
    """
    both = (
        pd.DataFrame(each.codes).value_counts()
        for each in (table, Table(made, table.schema.without_person()))
    )
    return next(both).sub(next(both), fill_value=0).abs().sum()


def counted_by_pandas(measured, table: Table) -> list[int]:
    """Return the exact count of each cell of a tree."""
    levels = [
        measured.levels(np.arange(measured.layers[-1].n_nodes), j)
        for j in range(len(table.codes))
    ]
    return (
        pd.DataFrame(table.codes)
        .value_counts()
        .reindex(pd.MultiIndex.from_arrays(levels), fill_value=0)
        .tolist()
    )


def groups_of(codes: np.ndarray) -> np.ndarray:
    """Return which rows of codes have each combination that occurs: a row of zeros and
    ones for each.
    """
    key = np.unique(codes @ 100 ** np.arange(codes.shape[1]), return_inverse=True)[1]
    return np.eye(key.max() + 1)[:, key]


def dense_covariance(
    rows: np.ndarray, variances: np.ndarray, exact: np.ndarray
) -> np.ndarray:
    """Return the covariance of least squares cells by the normal equations, of noisy
    sums of cells and exact ones.
    """
    null = null_space(exact) if len(exact) else np.eye(rows.shape[1])
    design = rows @ null
    return (
        null
        @ np.linalg.inv(design.T @ (design / np.asarray(variances)[:, None]))
        @ null.T
    )
