"""Posterior draws of regression coefficients given a noisy ridge fit: a linear law, and noise that mixes normals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.statistics.logistic import Logistic
from pdips.statistics.noisy_model import Given, Stated
from pdips.statistics.normal_cells import Cells, draw_cells, recognised
from pdips.statistics.reading import Prior, Reading
from pdips.statistics.samplers import Drawn, Lengths, Sampler
from pdips.statistics.statistic import Sums
from pdips.statistics.units import unit_of

NODES = 256
"""Public points at which numbers are taken: a Halton sequence, which is fixed."""

TUNE, THIN = 500, 2
NEWTON = 12
PASSES = 5
"""How often the information is worked out again at the coefficients found."""


@dataclass(frozen=True)
class Rows:
    """Records that stand for a population: columns as models read them, each row with its weight.

    Parameters
    ----------
    values : mapping of str to ndarray, shape (rows,)
        Numbers and codes of levels.
    weights : ndarray, shape (rows,)
        Their sum is 1.
    """

    values: Mapping[str, FloatArray]
    weights: FloatArray

    @classmethod
    def of(cls, names: Sequence[str], numbers: FloatArray) -> "Rows":
        """Return equally weighed rows of numbers, shape (rows, columns)."""
        return cls(dict(zip(names, numbers.T, strict=True)), np.full(len(numbers), 1 / len(numbers)))

    def with_levels(self, name: str, shares: FloatArray) -> "Rows":
        """Return each row once for each level of a column, weighed by its probability, shape (rows, levels)."""
        rows, levels = shares.shape
        values = {column: np.repeat(each, levels) for column, each in self.values.items()}
        values[name] = np.tile(np.arange(levels, dtype=np.float64), rows)
        return Rows(values, np.repeat(self.weights, levels) * shares.ravel())


def sequence(reading: Reading) -> Sampler | None:
    """Return draws of numeric columns by chains, then of each regression given the population that these make.

    For models that are normal columns of one cell and any number of ridge fits, whose coefficients are free variables
    with one normal prior each.
    """
    fits = [each for each in reading.given.stated if each.law == "ridge_fit"]
    others = [each for each in reading.given.stated if each.law != "ridge_fit"]
    named = {prior.variable: prior for prior in reading.priors.values()}
    known = [named.get(each.arguments["coefficients"]) for each in fits]
    of_fits = [each for each in known if each is not None and _is_centred(each)]
    if not fits or len(of_fits) < len(fits) or reading.given.undensified != [each.names[0] for each in fits]:
        return None
    rest = {name: prior for name, prior in reading.priors.items() if prior not in of_fits}
    spec = recognised(reading, others, rest)
    if spec is None or spec.counts is not None or not _is_sequence(reading, spec, fits):
        return None
    numbers = spec

    def draw(given: Given, lengths: Lengths, rng: np.random.Generator) -> Drawn:
        pairs = [(each.names[0], prior) for each, prior in zip(fits, of_fits, strict=True)]
        return _draw_sequence(given, numbers, pairs, lengths, rng)

    drawn = {name: prior.variable for name, prior in reading.priors.items()}
    [sums] = [each.exact for each in others if each.law == "normal"]
    options = ("draws", "tune", "n_chains")
    return Sampler(name="chains, then Gibbs", draw=draw, drawn=drawn | {"sums": sums}, options=options)


def _is_centred(prior: Prior) -> bool:
    return prior.law == "normal" and not np.any(prior.constants[0]) and not np.ptp(prior.constants[1])


def _is_sequence(reading: Reading, spec: Cells, fits: Sequence[Stated]) -> bool:
    """Whether each fit's outcome depends on the numeric columns and on the outcomes before it."""
    measured = reading.given.measured
    before = [_of(measured.part(name).statistic) for name in spec.sums]
    for each in fits:
        fit = measured.part(each.names[0]).statistic
        if not isinstance(fit, Logistic) or not set(fit.predictors) <= set(before):
            return False
        before.append(fit.outcome)
    return True


def _of(statistic: object) -> str:
    return statistic.of if isinstance(statistic, Sums) else ""


def _draw_sequence(
    given: Given, spec: Cells, fits: Sequence[tuple[str, Prior]], lengths: Lengths, rng: np.random.Generator
) -> Drawn:
    measured, schema = given.measured, given.schema
    found = draw_cells(given, spec, lengths, rng)
    taken = np.linspace(0, len(found.values["sd"]) - 1, lengths.draws).astype(int)
    values, n = {name: each[taken] for name, each in found.values.items()}, int(measured.n_records or 0)
    names = [_of(measured.part(name).statistic) for name in spec.sums]
    u = nodes(values["sums"][:, 0].mean(axis=0) / n, values["covariance"].mean(axis=0))
    rows = Rows.of(names, np.column_stack([unit_of(schema, z).back(u[:, i]) for i, z in enumerate(names)]))
    for name, prior in fits:
        part = measured.part(name)
        fit: Logistic = part.statistic  # type: ignore[assignment]
        law = (measured.scale(name), part.law == "gaussian", n, float(np.ravel(prior.constants[1])[0]))
        draws, shares = draw_coefficients(fit, schema, rows, given.noisy(name), *law, lengths.draws, rng)
        values[prior.name] = draws
        rows = rows.with_levels(fit.outcome, shares)
    return Drawn(values=values, convergence=found.convergence)


def nodes(mean: FloatArray, covariance: FloatArray) -> FloatArray:
    """Return points that stand for a normal law, shape (NODES, d)."""
    points = stats.qmc.Halton(len(mean), scramble=False).random(NODES + 1)[1:]
    return np.asarray(mean + special.ndtri(points) @ np.linalg.cholesky(covariance).T)


def level_shares(design: FloatArray, coefficients: FloatArray) -> FloatArray:
    """Return probabilities of all levels, shape (rows, levels), the first one being the baseline."""
    logits = design @ coefficients.T
    return np.asarray(special.softmax(np.column_stack([np.zeros(len(logits)), logits]), axis=1))


def information(design: FloatArray, shares: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the information of one record about the coefficients, logit by logit, shape (p, p)."""
    inner = shares[:, 1:]
    spread = np.einsum("ra,ab->rab", inner, np.eye(inner.shape[1])) - inner[:, :, None] * inner[:, None, :]
    whole = np.einsum("r,rab,ri,rj->aibj", weights, spread, design, design)
    size = inner.shape[1] * design.shape[1]
    return np.asarray(whole.reshape(size, size))


def draw_coefficients(
    statistic: Logistic,
    schema: Schema,
    rows: Rows,
    noisy: FloatArray,
    scale: float,
    gaussian: bool,
    n: int,
    prior_scale: float,
    n_draws: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    """Draw coefficients given a noisy ridge fit, and say what shares of levels they mean.

    Parameters
    ----------
    statistic : Logistic
        The fit.
    schema : Schema
        Of the table.
    rows : Rows
        The population: numbers, and columns with levels before this one.
    noisy : ndarray, shape (coefficients,)
        The noisy fit.
    scale : float
        Of its noise; 0 to take it as if exact.
    gaussian : bool
        Whether the noise is normal.
    n : int
        Number of records.
    prior_scale : float
        Standard deviation of the normal prior of each coefficient.
    n_draws : int
        Number of draws.
    rng : numpy.random.Generator
        Randomness, which protects nothing here.

    Returns
    -------
    draws : ndarray, shape (n_draws, logits, coefficients)
    shares : ndarray, shape (rows, levels)
        At the mean of the draws.

    Notes
    -----
    The fit of many records with coefficients beta is b(beta), where n E[(p(beta) - p(b)) x] = kappa b. To first order
    about beta_0 the fit of n records is normal(b(beta_0) + S I (beta - beta_0), S I S) with I the information at beta_0
    and S the inverse of kappa plus that at b(beta_0); beta_0 is the posterior mean, found in ``PASSES`` rounds.
    """
    shape, design = statistic.shape(schema), statistic.design(rows.values, schema)
    kappa, centre = float(statistic.kappa), np.zeros(noisy.shape)
    for last in range(PASSES):
        shares = level_shares(design, centre.reshape(shape))
        fit, shrunk = population_fit(design, shares, rows.weights, n, kappa)
        whole = n * information(design, shares, rows.weights) + 1e-9 * np.eye(len(noisy))
        matrix = shrunk @ whole
        wanted = n_draws if last == PASSES - 1 else max(n_draws // 4, 100)
        moved = noisy - fit + matrix @ centre
        draws = _gibbs(matrix, matrix @ shrunk, moved, scale, gaussian, prior_scale, wanted, rng)
        centre = draws.mean(axis=0)
    return draws.reshape(-1, *shape), level_shares(design, centre.reshape(shape))


def population_fit(
    design: FloatArray, shares: FloatArray, weights: FloatArray, n: int, kappa: float
) -> tuple[FloatArray, FloatArray]:
    """Return the ridge fit of n records that are as the population is, and the inverse of its curvature.

    Parameters
    ----------
    design : ndarray, shape (rows, coefficients)
    shares : ndarray, shape (rows, levels)
        Probabilities of the outcome's levels.
    weights : ndarray, shape (rows,)
        Of the rows; they add up to 1.
    n : int
        Number of records.
    kappa : float
        Strength of the ridge.
    """
    logits, d = shares.shape[1] - 1, design.shape[1]
    fit = np.zeros(logits * d)
    for _ in range(NEWTON):
        now = level_shares(design, fit.reshape(logits, d))
        score = n * ((weights[:, None] * (shares - now)[:, 1:]).T @ design).ravel() - kappa * fit
        shrunk = np.linalg.inv(n * information(design, now, weights) + kappa * np.eye(logits * d))
        fit = fit + shrunk @ score
    return fit, shrunk


def _gibbs(
    matrix: FloatArray,
    covariance: FloatArray,
    noisy: FloatArray,
    scale: float,
    gaussian: bool,
    prior_scale: float,
    n_draws: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Draw beta given noisy = b + noise, b normal(matrix beta, covariance), beta normal(0, prior_scale^2).

    Laplace noise is normal with an exponential variance (Park and Casella, 2008). Given the variances beta is drawn
    with b integrated out, and b given beta.
    """
    d, kept = len(noisy), []
    variance = np.full(d, max(2 * scale**2, 1e-12) if not gaussian else max(scale**2, 1e-12))
    draws = TUNE + THIN * n_draws if scale and not gaussian else n_draws
    for step in range(draws):
        inverse = np.linalg.inv(covariance + np.diag(variance))
        precision = matrix.T @ inverse @ matrix + np.eye(d) / prior_scale**2
        root = np.linalg.cholesky(precision)
        mean = np.linalg.solve(precision, matrix.T @ inverse @ noisy)
        beta = mean + np.linalg.solve(root.T, rng.standard_normal(d))
        if draws == n_draws or (step >= TUNE and (step - TUNE) % THIN == 0):
            kept.append(beta)
        if draws > n_draws:
            gain = covariance @ inverse
            exact = matrix @ beta + gain @ (noisy - matrix @ beta)
            rest = covariance - gain @ covariance
            values, vectors = np.linalg.eigh((rest + rest.T) / 2)
            exact = exact + vectors @ (np.sqrt(np.maximum(values, 0)) * rng.standard_normal(d))
            off = np.maximum(np.abs(noisy - exact), 1e-12 * scale)
            variance = 1 / np.maximum(rng.wald(1 / (scale * off), 1 / scale**2), 1e-300)
    return np.array(kept)
