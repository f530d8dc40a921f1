"""Posterior draws of regression coefficients given a noisy ridge fit: a linear law, and noise that mixes normals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.statistics.logistic import Logistic
from pdips.statistics.noisy_model import Evidence
from pdips.statistics.samplers import Prior, prior_of
from pdips.statistics.statistic import unit_of

NODES = 256
"""Public points at which numbers are taken: a Halton sequence, which is fixed."""

TUNE, THIN = 500, 2
NEWTON = 12
PASSES = 5
"""How often the information is worked out again at the coefficients found."""


@dataclass(frozen=True)
class Population:
    """Records that stand for a population: columns as models read them, each row with its weight.

    Parameters
    ----------
    values : mapping of str to ndarray, shape (rows,)
        Numbers and codes of levels.
    weights : ndarray, shape (rows,)
        Their sum is 1.
    """

    values: Mapping[str, NDArray[np.float64]]
    weights: FloatArray

    @classmethod
    def of(cls, names: Sequence[str], numbers: FloatArray) -> "Population":
        """Return equally weighed rows of numbers, shape (rows, columns)."""
        return cls(dict(zip(names, numbers.T, strict=True)), np.full(len(numbers), 1 / len(numbers)))

    def with_levels(self, name: str, shares: FloatArray) -> "Population":
        """Return each row once for each level of a column, weighed by its probability, shape (rows, levels)."""
        rows, levels = shares.shape
        values = {column: np.repeat(each, levels) for column, each in self.values.items()}
        values[name] = np.tile(np.arange(levels, dtype=np.float64), rows)
        return Population(values, np.repeat(self.weights, levels) * shares.ravel())


def priors_of_fits(given: Evidence, name: str) -> list[Prior]:
    """Return the prior of each ridge fit's coefficients, checked.

    Parameters
    ----------
    given : Evidence
        On which a model was built that states ridge fits, or none.
    name : str
        Of the model, for refusals.

    Raises
    ------
    InputError
        If coefficients have no single normal prior about 0, or a predictor isn't one of the population's columns.
    """
    columns, found = list(given.population_columns), []
    for each in given.ridge_fits:
        fit = given.measured.part(each.names[0]).statistic
        prior = prior_of(each.arguments["coefficients"])
        if prior is None or prior.law != "normal" or np.any(prior.constants[0]) or np.ptp(prior.constants[1]):
            raise InputError(
                f"{name}: {each.names[0]!r} has a law without density (given.ridge_fit): its coefficients must be a "
                "free variable with one normal prior about 0"
            )
        if not isinstance(fit, Logistic) or not set(fit.predictors) <= set(columns):
            raise InputError(
                f"{name}: {each.names[0]!r} must be a logistic regression on columns of given.population and on the "
                "outcomes of ridge fits before it"
            )
        columns.append(fit.outcome)
        found.append(prior)
    return found


def draw_fits(
    given: Evidence, name: str, draws: Mapping[str, NDArray[Any]], rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """Return posterior draws with those of the coefficients of ridge fits, each given the population before it.

    Parameters
    ----------
    given : Evidence
        On which the model was built.
    name : str
        Of the model.
    draws : mapping of str to ndarray, shape (draws, ...)
        Of everything else; the coefficients among them are from their prior.
    rng : numpy.random.Generator
        Randomness, which protects nothing here.
    """
    found, priors = dict(draws), priors_of_fits(given, name)
    if not priors:
        return found
    measured, schema, columns = given.measured, given.schema, given.population_columns
    mean, covariance = (found[each].mean(axis=0) for each in given.population_law)
    u = nodes(mean, covariance)
    rows = Population.of(columns, np.column_stack([unit_of(schema, z).back(u[:, i]) for i, z in enumerate(columns)]))
    n_draws = len(next(iter(found.values())))
    for each, prior in zip(given.ridge_fits, priors, strict=True):
        [fitted] = each.names
        part, size = measured.part(fitted), float(np.ravel(prior.constants[1])[0])
        noise = (measured.scale(fitted), part.law == "gaussian")
        fit: Logistic = part.statistic  # type: ignore[assignment]
        law = (given.noisy(fitted), *noise, round(float(given.n)), size, n_draws)
        found[prior.name], shares = draw_coefficients(fit, schema, rows, *law, rng)
        rows = rows.with_levels(fit.outcome, shares)
    return found


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
    rows: Population,
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
    rows : Population
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
