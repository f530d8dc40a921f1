"""Posterior draws for normal columns within cells, given noisy counts, sums and products: what ``glom.py`` is about.

NUTS finds this posterior hard: exact counts and sums hang together with cells' means, the scatter with the covariance,
loosely where the noise is loud and tightly where it is not. Here cells' shares and means are integrated out, sums are
drawn at once given noise that is a scale mixture of normals, and the covariance moves both alone and together
with the scatter, so that chains are quick whatever the noise is (Yu and Meng, 2011, *To center or not to center*).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pdips.bayes.given import Given
from pdips.convergence import ROUNDS, Convergence, announce, converged

FloatArray = NDArray[np.float64]

CHAINS, TUNE, DRAWS, THIN = 4, 1_000, 1_000, 4
WATCH = ("m", "tau", "Sigma")
LEAST = 1e-3


def draw_cells(
    given: Given,
    counts: str,
    sums: Sequence[str],
    products: Sequence[str],
    alpha: float,
    rng: np.random.Generator,
    *,
    rounds: int = ROUNDS,
) -> tuple[xr.DataTree, Convergence]:
    """Run chains until they agree, or ``rounds`` times, four times as long each time.

    Parameters
    ----------
    given : Given
        Noise-aware, with a public number of records.
    counts, sums, products : str, sequences of str
        Names of the statistics: counts by cell, sums of each column by cell, and products of columns, those of the
        lower triangle row by row.
    alpha : float
        Of the Dirichlet prior of the cells' shares.
    rng : numpy.random.Generator
        Randomness, which protects nothing here.
    rounds : int
        Most rounds.

    Returns
    -------
    DataTree
        Group ``posterior``: ``counts`` (chain, draw, cells), ``sums`` (chain, draw, cells, columns), ``m``, ``tau``
        (chain, draw, columns), ``sd`` and ``Sigma``, all in units of half the range.
    Convergence
        How well the last chains agree.

    Notes
    -----
    Priors: shares Dirichlet(alpha), cells' means normal(m, tau^2) with m normal(0, 1/2), tau and the standard
    deviations Gamma(2, 4), all correlation matrices as likely. An empty cell counts as half a record in the law of its
    sums.
    """
    for number in range(rounds):
        if number:
            announce(number + 1, confidential=False)
        longer = 4**number
        chains = [_chain(given, counts, sums, products, alpha, longer, each) for each in rng.spawn(CHAINS)]
        tree = xr.DataTree.from_dict({"posterior": _dataset(chains)})
        found = replace(converged(tree, WATCH), rounds=number + 1)
        if found.passed:
            break
    return tree, found


def _chain(
    given: Given,
    counts: str,
    sums: Sequence[str],
    products: Sequence[str],
    alpha: float,
    longer: int,
    rng: np.random.Generator,
) -> list[FloatArray]:
    from pdips.bayes.normal_cells_chain import run

    measured, d = given.measured, len(sums)
    n, cells = int(measured.n_records or 0), len(given[counts])
    part = measured.part(counts)
    count_scales = np.where(np.arange(cells) < part.n_noised, measured.scale(counts), 0.0)
    noisy, scales = np.zeros((d, d)), np.ones((d, d))
    for name, row, column in zip(products, *np.tril_indices(d), strict=True):
        noisy[row, column] = noisy[column, row] = given.noisy(name)[0]
        scales[row, column] = scales[column, row] = measured.scale(name)
    start = starting_counts(given[counts], measured.deviation(counts), n, rng)
    sd = np.exp(rng.uniform(np.log(0.1), np.log(0.5), d))
    rest = max(n - cells, d)
    found = run(
        given.noisy(counts),
        count_scales,
        np.column_stack([given.noisy(name) for name in sums]),
        np.array([measured.scale(name) for name in sums]),
        noisy,
        scales,
        part.law == "gaussian",
        alpha,
        float(rest),
        start,
        np.column_stack([np.clip(given.noisy(name), -start, start) for name in sums]),
        np.diag(sd),
        TUNE * longer,
        DRAWS,
        THIN * longer,
        rng,
    )
    return list(found)


def starting_counts(near: FloatArray, deviation: float, n: int, rng: np.random.Generator) -> FloatArray:
    """Return whole counts that add up to n, as far from given ones as their noise may have moved them.

    Parameters
    ----------
    near : ndarray, shape (cells,)
        Noisy counts, or what was made of them.
    deviation : float
        Standard deviation of their noise.
    n : int
        Number of records.
    rng : numpy.random.Generator
        Randomness.

    Notes
    -----
    Where the noise is small chains that start further away stay there: counts, sums and products hold each other.
    """
    moved = np.maximum(near + deviation * rng.standard_normal(len(near)), 0) + 1e-3
    whole = np.floor(n * moved / moved.sum())
    return np.asarray(whole + rng.multinomial(int(n - whole.sum()), moved / moved.sum()))


def _dataset(chains: Sequence[Sequence[FloatArray]]) -> xr.Dataset:
    n, sums, m, tau, chol = (np.stack(each) for each in zip(*chains, strict=True))
    covariance = chol @ np.swapaxes(chol, -1, -2)
    made = {
        "counts": n,
        "sums": sums,
        "m": m,
        "tau": tau,
        "sd": np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1)),
        "Sigma": covariance,
    }
    return xr.Dataset(
        {
            name: (("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(values.ndim - 2))), values)
            for name, values in made.items()
        }
    )
