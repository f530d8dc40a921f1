"""The likelihood of noisy sums: jointly normal, with the mean and covariance that simulated records have."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from arviz_stats.base import array_stats
from pymc.model.fgraph import ModelDeterministic, ModelFreeRV, ModelPotential, model_from_fgraph
from pytensor.graph.fg import FunctionGraph
from scipy.linalg import cho_factor, cho_solve

from pdips.arrays import FloatArray
from pdips.posterior.censoring import Axis, _reads_records, take_apart
from pdips.posterior.columns import Values
from pdips.posterior.model import Blueprint, split, transformed
from pdips.scores.record_score import Clipping, Norm, RecordScore
from pdips.scores.simulation import Simulator

PLACE, SLOPE, CURVATURE = "pdips_place", "pdips_slope", "pdips_curvature"
LIKELIHOOD = "pdips_noisy_likelihood"

MOST_MOVES = 40
"""Steps towards the most probable parameters."""

NEAR = 0.05
"""The search ends with a step so short, in standard deviations of the posterior."""

QUARTILES = 1.349
"""Distance of the quartiles of a standard normal distribution."""

FREEDOM = 5
"""Degrees of freedom of the t distribution from which draws are proposed."""

REACH = 1.0
"""Longest step, in standard deviations of what one record says."""


QUANTILES = np.linspace(0.05, 0.99, 12)
"""Of the norms of simulated scores: the radii among which one is chosen."""


@dataclass(frozen=True, eq=False)
class Measurement:
    """Noisy sums over records of a public function of one record, and the variance of the noise on each."""

    function: Callable[[Values], FloatArray]  # of public records, shape (records, sums)
    sums: FloatArray  # shape (sums,)
    variance: FloatArray  # shape (sums,)


@dataclass(frozen=True, eq=False)
class Linearised:
    """What the noisy sums say near some parameters: their expectation, its derivative, and their covariance there."""

    place: FloatArray
    residual: FloatArray  # (sums,): sums minus their expectation
    slopes: FloatArray  # (sums, parameters)
    covariance: FloatArray  # (sums, sums)
    information: FloatArray  # (parameters, parameters): of one record

    def __post_init__(self) -> None:
        covariance = self.covariance + np.eye(len(self.covariance)) * 1e-12 * np.trace(self.covariance)
        factor = cho_factor(covariance)
        weighted = cho_solve(factor, np.column_stack([self.slopes, self.residual]))
        object.__setattr__(self, "curvature", self.slopes.T @ weighted[:, :-1])
        object.__setattr__(self, "slope", self.slopes.T @ weighted[:, -1])
        object.__setattr__(self, "misfit", float(self.residual @ weighted[:, -1]))
        object.__setattr__(self, "log_determinant", 2 * float(np.log(np.diag(factor[0])).sum()))

    curvature: FloatArray = field(init=False)  # (parameters, parameters): minus the second derivative
    slope: FloatArray = field(init=False)
    misfit: float = field(init=False)
    log_determinant: float = field(init=False)


@dataclass(frozen=True, eq=False)
class Sums:
    """The noisy sums of one table, and what simulates their law at any parameters."""

    space: Blueprint
    score: RecordScore
    prior: "NormalPrior"
    simulator: Simulator
    n_records: float
    n_variance: float = 0.0  # of the noise on the number of records
    measurements: tuple[Measurement, ...] = ()

    def linearised(self, place: FloatArray, passes: int = 1) -> Linearised:
        """Return what the sums say near some parameters, by simulation there.

        Where public columns are known they are conditioned on: what varies between their rows is no variance of the
        sums, unless only some of the rows were simulated.
        """
        n, simulator = self.n_records, self.simulator
        moments, within, between = 0.0, 0.0, 0.0
        for number in range(passes):
            drawn, inside = simulator(place, number)
            scores = self.score.of_public(place, drawn)
            scores = np.where(np.isfinite(scores).all(axis=1)[:, None], scores, 0.0)
            found = np.concatenate([each.function(inside) for each in self.measurements], axis=1)
            one = np.concatenate([np.ones((len(found), 1)), found, scores], axis=1)
            moments = moments + one.T @ one / len(one) / passes
            if simulator.n_public:
                blocks = found.reshape(simulator.replicates, simulator.rows, -1)
                middle = blocks.mean(axis=0)
                apart = (blocks - middle).reshape(found.shape)
                within = within + apart.T @ apart / (simulator.rows * (simulator.replicates - 1)) / passes
                between = between + np.cov(middle.T).reshape(found.shape[1:] * 2) / passes
        size, total = found.shape[1], passes * simulator.n
        mean, products = moments[0, 1 : size + 1], moments[1 : size + 1]
        whole = products[:, 1 : size + 1] - np.outer(mean, mean)
        slopes = products[:, size + 1 :] - np.outer(mean, moments[0, size + 1 :])
        if simulator.n_public:
            error = within / total
            if passes * simulator.rows < simulator.n_public:
                error = between / (passes * simulator.rows)
        else:
            within, error = whole, whole / total
        covariance = n * within + n**2 * error + self.n_variance * np.outer(mean, mean)
        covariance += np.diag(np.concatenate([each.variance for each in self.measurements]))
        sums = np.concatenate([each.sums for each in self.measurements])
        return Linearised(place, sums - n * mean, n * slopes, covariance, moments[size + 1 :, size + 1 :])

    def objective(self, found: Linearised) -> float:
        """Return minus the log posterior density there, up to a constant."""
        return (found.misfit + found.log_determinant) / 2 - self.prior.log_density(found.place)

    def mode(self, start: FloatArray) -> Linearised:
        """Return the sums near the most probable parameters, searched from a start by simulated Gauss-Newton steps."""
        here = self.linearised(start)
        best, reach = self.objective(here), REACH
        for _ in range(MOST_MOVES):
            move = self.move(here)
            length = float(np.sqrt(move @ here.information @ move))
            move = move * min(1.0, reach / max(length, 1e-300))
            if float(np.sqrt(move @ (here.curvature + self.prior.precision) @ move)) < NEAR:
                break
            try:
                there = self.linearised(here.place + move)
                value = self.objective(there)
            except (ValueError, FloatingPointError, np.linalg.LinAlgError):  # parameters that nothing is drawn at
                value = np.inf
            if value <= best + 0.5:
                here, best, reach = there, min(value, best), min(2 * reach, REACH)
            else:
                reach = min(length, reach) / 4
                if reach < 1e-6:
                    break
        return here

    def move(self, here: Linearised) -> FloatArray:
        """Return the way from here to the mode of the normal prior times what the sums say near here."""
        pull = here.slope + self.prior.precision @ (self.prior.mean - here.place)
        return np.asarray(np.linalg.solve(here.curvature + self.prior.precision, pull))


@dataclass(frozen=True, eq=False)
class NormalPrior:
    """Independent normal distributions as wide as the prior's own draws: with these references are searched.

    A hierarchy's own prior has no mode where all groups are alike; the posterior is drawn under the analyst's prior.
    """

    mean: FloatArray  # shape (parameters,), unconstrained
    deviation: FloatArray

    @classmethod
    def of(cls, draws: FloatArray) -> "NormalPrior":
        """Return the distributions that have the middle half of each parameter's draws where it is."""
        low, middle, high = np.quantile(draws, [0.25, 0.5, 0.75], axis=0)
        return cls(middle, np.maximum((high - low) / QUARTILES, 1e-9))

    @property
    def precision(self) -> FloatArray:
        """The inverse covariance, shape (parameters, parameters)."""
        return np.diag(self.deviation**-2)

    def log_density(self, place: FloatArray) -> float:
        """Return the log density up to a constant."""
        return -float((((place - self.mean) / self.deviation) ** 2).sum()) / 2


def clipping_at(sums: Sums, place: FloatArray, norm: Norm, step_variance: float) -> Clipping:
    """Return how scores at some public parameters are whitened, and the radius that leaves most information.

    The whitening is the inverse root of the information of one record there, beside the prior's share; the radius is
    chosen among quantiles of simulated norms so that the mean variance of the posterior is least. ``step_variance`` is
    that of the noise in whole steps.
    """
    _, inside = sums.simulator(place)
    scores = sums.score.of_public(place, inside)
    scores = scores[np.isfinite(scores).all(axis=1)]
    n, share = sums.n_records, sums.prior.precision / sums.n_records
    values, vectors = np.linalg.eigh(scores.T @ scores / max(len(scores), 1) + share)
    whitening = (vectors / np.sqrt(np.maximum(values, values.max() * 1e-12))) @ vectors.T
    whitened = scores @ whitening.T
    norms = np.abs(whitened).sum(axis=1) if norm == "l1" else np.sqrt((whitened**2).sum(axis=1))
    prior = whitening @ share @ whitening.T * n
    best: tuple[float, Clipping] | None = None
    for radius in np.unique(np.quantile(norms[norms > 0], QUANTILES)) if (norms > 0).any() else [1.0]:
        made = Clipping(place, whitening, float(radius), norm)
        clipped = made.clipped(scores)
        slopes = n * clipped.T @ whitened / len(scores)
        noise = step_variance * made.unit**2
        covariance = n * np.cov(clipped.T).reshape(slopes.shape) + noise * np.eye(len(slopes))
        left = float(np.trace(np.linalg.inv(slopes.T @ np.linalg.solve(covariance, slopes) + prior)))
        if best is None or left < best[0]:
            best = left, made
    assert best is not None
    return best[1]


@dataclass(frozen=True, eq=False)
class ImportanceDraws:
    """Draws from the posterior of noisy sums: of a multivariate t distribution at its mode, chosen by their weights."""

    places: FloatArray  # shape (draws, parameters), unconstrained
    pareto_k: float  # shape of the weights' tail: above .7 they are not to be relied on
    effective: float  # number of independent draws that the weights are worth


def importance_draws(sums: Sums, here: Linearised, rng: np.random.Generator, n: int, *, tried: int) -> ImportanceDraws:
    """Draw from prior times likelihood by Pareto-smoothed importance sampling (Vehtari et al. 2024)."""
    mode = here.place + sums.move(here)
    values, vectors = np.linalg.eigh(here.curvature + sums.prior.precision)
    root, d = vectors / np.sqrt(np.maximum(values, values.max() * 1e-14)), len(mode)
    steps = rng.standard_normal((tried, d)) / np.sqrt(rng.chisquare(FREEDOM, (tried, 1)) / FREEDOM)
    places = mode + steps @ root.T
    moves = places - here.place
    likely = moves @ here.slope - ((moves @ here.curvature) * moves).sum(axis=1) / 2
    with np.errstate(all="ignore"):
        prior = sums.space.likelihood.log_prior(split(sums.space.model, places))
    proposed = -(FREEDOM + d) / 2 * np.log1p((steps**2).sum(axis=1) / FREEDOM)
    weights = np.where(np.isfinite(prior), prior, -np.inf) + likely - proposed
    fine = np.isfinite(weights)
    logs, pareto_k = array_stats.psislw(-weights[fine])  # it takes log-likelihoods, whose inverses are weights
    shares = np.zeros(tried)
    shares[fine] = np.exp(logs - logs.max())
    shares /= shares.sum()
    chosen = rng.choice(tried, n, p=shares)
    return ImportanceDraws(places[chosen], float(pareto_k), float(1 / (shares**2).sum()))


class NoisyLikelihood:
    """A PyMC model of noisy sums: the analyst's priors, and one potential for what the sums say of the parameters."""

    record_parameters: tuple[str, ...] = ()

    def __init__(self, space: Blueprint) -> None:
        parts = take_apart(space.model, Axis())
        kept = [
            each
            for each in parts.fgraph.outputs
            if isinstance(each.owner.op, ModelFreeRV | ModelPotential)
            or (isinstance(each.owner.op, ModelDeterministic) and not _reads_records(each.owner, (), 1))
        ]
        fgraph = FunctionGraph(outputs=kept, clone=True)
        fgraph._coords, fgraph._dim_lengths = parts.fgraph._coords, parts.fgraph._dim_lengths
        self.model, self.compiled = model_from_fgraph(fgraph, mutate_fgraph=True), dict[str, Any]()
        d = space.n_parameters
        with self.model:
            place, slope = pm.Data(PLACE, np.zeros(d)), pm.Data(SLOPE, np.zeros(d))
            curvature = pm.Data(CURVATURE, np.eye(d))
            values = [
                transformed(self.model, self.model[v.name], self.model[v.name], self.model[v.name].owner.inputs).ravel()
                for v in space.model.free_RVs
            ]
            move = pt.concatenate(values) - place
            pm.Potential(LIKELIHOOD, (slope * move).sum() - (move * (curvature @ move)).sum() / 2)

    def update(self, found: Linearised) -> None:
        """Take what other sums say near other parameters; nothing is recompiled."""
        for name, value in ((PLACE, found.place), (SLOPE, found.slope), (CURVATURE, found.curvature)):
            self.model[name].set_value(np.asarray(value, dtype=np.float64))
