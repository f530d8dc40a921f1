"""Posterior draws for normal columns within cells, given noisy counts, sums and products: what ``glom.py`` is about.

NUTS finds this posterior hard: exact counts and sums hang together with cells' means, the scatter with the covariance,
loosely where the noise is loud and tightly where it is not. Here cells' shares and means are integrated out, sums are
drawn at once given noise that is a scale mixture of normals, and the covariance moves both alone and together
with the scatter, so that chains are quick whatever the noise is (Yu and Meng, 2011, *To center or not to center*).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytensor.tensor as pt
import xarray as xr

from pdips.arrays import FloatArray
from pdips.convergence import announce, converged
from pdips.statistics.correlations import evenly, factor_of, shares_of
from pdips.statistics.noisy_model import Given, Stated
from pdips.statistics.reading import Prior, Reading
from pdips.statistics.samplers import Drawn, Lengths, Sampler

THIN = 4
"""Steps of a chain for each draw that is kept; four times as many in each further round."""

WATCH = ("m", "tau", "Sigma")


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """What the posterior of normal columns within cells depends on beside noisy statistics.

    Parameters
    ----------
    counts : str, optional
        Name of the counts by cell; None for one cell of all records.
    sums, products : tuple of str
        Names of the sums of each column by cell, and of the products of columns, lower triangle row by row.
    alpha : float
        Of the Dirichlet prior of the cells' shares.
    priors : ndarray, shape (6, columns)
        As :data:`pdips.statistics.normal_cells_kernels.CENTRE` and those after it number its rows.
    """

    counts: str | None
    sums: tuple[str, ...]
    products: tuple[str, ...]
    alpha: float
    priors: FloatArray


def cells(reading: Reading) -> Sampler | None:
    """Return chains for normal columns within cells, if that is what a model describes."""
    found = recognised(reading, reading.given.stated, reading.priors)
    if found is None or found.counts is None:
        return None
    spec = found

    def draw(given: Given, lengths: Lengths, rng: np.random.Generator) -> Drawn:
        return draw_cells(given, spec, lengths, rng)

    by_law = {each.law: each for each in reading.given.stated}
    exact = {"counts": by_law["dirichlet_multinomial"].exact, "sums": by_law["normal"].exact}
    drawn = {name: prior.variable for name, prior in reading.priors.items()} | exact
    return Sampler(name="chains of moves made for it", draw=draw, drawn=drawn, options=("draws", "tune", "n_chains"))


def recognised(reading: Reading, stated: Sequence[Stated], priors: Mapping[str, Prior]) -> Cells | None:
    """Return what chains need, if these laws and priors are those of normal columns within cells.

    Priors must be called m (normal), tau and sd (gamma) and, for several columns, correlation, evenly distributed;
    their constants are taken from the model. Noise-aware, with a public number of records.
    """
    laws, n, d = {each.law: each for each in stated}, reading.n, len(priors["m"].constants[0]) if "m" in priors else 0
    kinds = {"m": "normal", "tau": "gamma", "sd": "gamma"} | ({"correlation": "beta"} if d > 1 else {})
    counted = laws.pop("dirichlet_multinomial", None)
    if {name: prior.law for name, prior in priors.items()} != kinds or set(laws) != {"normal", "wishart"}:
        return None
    if len(stated) != len(laws) + (counted is not None) or n is None or not reading.given.aware:
        return None
    m, tau, sd = (priors[name] for name in ("m", "tau", "sd"))
    sums, products = laws["normal"], laws["wishart"]
    if {m.shape, tau.shape, sd.shape} != {(d,)} or len(sums.names) != d or sums.arguments["between"] is None:
        return None
    factor = pt.ones((1, 1))
    if d > 1:
        if any(not np.allclose(each, evenly(d)) for each in priors["correlation"].constants):
            return None
        factor = factor_of(priors["correlation"].variable, d)
    counts = np.array([float(n)]) if counted is None else counted.exact
    n_cells = 1 if counted is None else len(reading.given[counted.names[0]])
    chol = sd.variable[:, None] * factor
    if not reading.same(
        (sums.arguments["mean"], counts[:, None] * m.variable),
        (sums.arguments["chol"], chol),
        (sums.arguments["times"], counts),
        (sums.arguments["between"], tau.variable),
        (products.arguments["df"], max(n - n_cells, d)),
        (products.arguments["chol"], chol),
        (products.arguments["about"], sums.exact.T @ (sums.exact / counts[:, None])),
    ):
        return None
    alpha = 1.0 if counted is None else float(counted.arguments["alpha"])
    constants = np.array([each for prior in (m, tau, sd) for each in prior.constants])
    return Cells(
        counts=None if counted is None else counted.names[0],
        sums=sums.names,
        products=products.names,
        alpha=alpha,
        priors=constants,
    )


def draw_cells(given: Given, spec: Cells, lengths: Lengths, rng: np.random.Generator) -> Drawn:
    """Run chains until they agree, or ``lengths.rounds`` times, four times as long each time.

    Parameters
    ----------
    given : Given
        Noise-aware, with a public number of records.
    spec : Cells
        Names and constants.
    lengths : Lengths
        Of chains.
    rng : numpy.random.Generator
        Randomness, which protects nothing here.

    Returns
    -------
    Drawn
        ``counts`` (draws, cells), ``sums`` (draws, cells, columns), ``m``, ``tau``, ``sd`` (draws, columns), and for
        several columns ``correlation``, and ``covariance``, all in units of half the range; chains one after the other.

    Notes
    -----
    Priors: shares Dirichlet(alpha), cells' means normal(m, tau^2) with m normal, tau and the standard deviations gamma
    distributed, all correlation matrices as likely. An empty cell counts as half a record in the law of its sums.
    """
    for number in range(lengths.rounds):
        if number:
            announce(number + 1, confidential=False)
        chains = [_chain(given, spec, lengths, 4**number, each) for each in rng.spawn(lengths.chains)]
        n, sums, m, tau, chol = (np.stack(each) for each in zip(*chains, strict=True))
        covariance = chol @ np.swapaxes(chol, -1, -2)
        watched = {"m": m, "tau": tau, "Sigma": covariance}
        tree = xr.DataTree.from_dict({"posterior": _dataset(watched)})
        found = replace(converged(tree, WATCH), rounds=number + 1)
        if found.passed:
            break
    sd = np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1))
    values = {"counts": n, "sums": sums, "m": m, "tau": tau, "sd": sd, "covariance": covariance}
    if m.shape[-1] > 1:
        values["correlation"] = shares_of(chol / sd[..., None])
    flat = {name: each.reshape((-1, *each.shape[2:])) for name, each in values.items()}
    return Drawn(values=flat, chains=lengths.chains, convergence=found)


def _chain(given: Given, spec: Cells, lengths: Lengths, longer: int, rng: np.random.Generator) -> list[FloatArray]:
    from pdips.statistics.normal_cells_chain import run

    measured, d = given.measured, len(spec.sums)
    n, law = int(measured.n_records or 0), measured.part(spec.sums[0]).law
    if spec.counts is None:
        noisy_counts, count_scales, start = np.array([float(n)]), np.zeros(1), np.array([float(n)])
    else:
        noisy_counts, part = given.noisy(spec.counts), measured.part(spec.counts)
        count_scales = np.where(np.arange(len(noisy_counts)) < part.n_noised, measured.scale(spec.counts), 0.0)
        start = starting_counts(given[spec.counts], measured.deviation(spec.counts), n, rng)
    noisy, scales = np.zeros((d, d)), np.ones((d, d))
    for name, row, column in zip(spec.products, *np.tril_indices(d), strict=True):
        noisy[row, column] = noisy[column, row] = given.noisy(name)[0]
        scales[row, column] = scales[column, row] = measured.scale(name)
    sd = np.exp(rng.uniform(np.log(0.1), np.log(0.5), d))
    found = run(
        noisy_counts,
        count_scales,
        np.column_stack([given.noisy(name) for name in spec.sums]),
        np.array([measured.scale(name) for name in spec.sums]),
        noisy,
        scales,
        law == "gaussian",
        spec.alpha,
        spec.priors,
        float(max(n - len(start), d)),
        start,
        np.column_stack([np.clip(given.noisy(name), -start, start) for name in spec.sums]),
        np.diag(sd),
        lengths.tune * longer,
        lengths.draws,
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


def cell_means(draws: Mapping[str, FloatArray], counts: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw the means of cells, which the law of their sums integrates out, shape (draws, cells, columns).

    Parameters
    ----------
    draws : mapping of str to ndarray
        ``sums`` (draws, cells, columns), ``m`` and ``tau`` (draws, columns), ``Sigma`` (draws, columns, columns).
    counts : ndarray, shape (draws, cells)
        Records of each cell.
    rng : numpy.random.Generator
        Randomness, which protects nothing here.
    """
    prior = np.eye(draws["tau"].shape[-1]) / draws["tau"][:, None, :] ** 2
    inverse = np.linalg.inv(draws["Sigma"])
    precision = prior[:, None] + counts[..., None, None] * inverse[:, None]
    known = (prior @ draws["m"][..., None])[:, None] + inverse[:, None] @ draws["sums"][..., None]
    mean = np.linalg.solve(precision, known)
    root = np.linalg.cholesky(precision)
    moved = np.linalg.solve(np.swapaxes(root, -1, -2), rng.standard_normal(mean.shape))
    return np.asarray((mean + moved)[..., 0])


def _dataset(made: Mapping[str, FloatArray]) -> xr.Dataset:
    return xr.Dataset(
        {
            name: (("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(values.ndim - 2))), values)
            for name, values in made.items()
        }
    )
