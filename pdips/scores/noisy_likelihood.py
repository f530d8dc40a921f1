"""The likelihood of noisy sums: jointly normal, with the mean and covariance that
simulated records have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model.fgraph import (
    ModelDeterministic,
    ModelFreeRV,
    ModelPotential,
    model_from_fgraph,
)
from pytensor.graph.fg import FunctionGraph
from scipy.linalg import cholesky, solve_triangular

from pdips.arrays import FloatArray
from pdips.posterior.columns import Values
from pdips.posterior.model import Blueprint, initial, transformed
from pdips.posterior.parts import Axis, reads_records, take_apart
from pdips.scores.column_cells import ColumnCells
from pdips.scores.record_score import Clipping, Norm, RecordScore
from pdips.scores.simulator import Simulator

# Covariances of normal noises, and the log of each one's share in them
Noises = Sequence[tuple[FloatArray, float]]

PLACE = "pdips_place"
SLOPES = "pdips_slopes"
RESIDUAL = "pdips_residual"
LOGS = "pdips_log_shares"
NOISY_SUMS = "noisy_sums"

# Sums up to which Laplace noise is mixed of normal ones; on more it counts as one
# normal
MOST_MIXED = 300
MOST_MOVES = 40  # Steps towards the most probable parameters
# The search ends with a step so short, in standard deviations of the posterior
NEAR = 0.05
# A simulated score beyond, or no number, is left out of products that doubles can't
# hold
LARGEST = 1e100
# Standard deviations of the posterior from which on the last step is taken before the
# last simulation
CLOSE = 1.0
QUARTILES = 1.349  # Distance of the quartiles of a standard normal distribution
REACH = 1.0  # Longest step, in standard deviations of what one record says
# Simulated records for each record at the end, and in all
ENOUGH = 60
MOST_SIMULATED = 4_000_000
# Least information in a direction, over the largest, by which expectations are
# corrected along it
CERTAIN = 1e-12
# Share of a covariance's trace that is added to its diagonal for the sake of doubles
LITTLE = 1e-12
# What the log posterior may fall by in a step of the search: simulation is noisy
TOLERATED = 0.5
SHORTEST = 1e-6  # Reach at which the search ends
# Least information in a direction, over the largest, by which scores are whitened
LEAST_INFORMATION = 1e-12
# Of the norms of simulated scores: the radii among which one is chosen
QUANTILES = np.linspace(0.05, 0.99, 12)


@dataclass(frozen=True, eq=False)
class Measurement:
    """Noisy sums over records of a public function of one record, and the standard
    deviation of the noise on each.
    """

    step: str  # of the plan
    question: ColumnCells | Clipping
    noisy: FloatArray  # shape (sums,): records, or whitened scores
    deviation: float


@dataclass(frozen=True, eq=False)
class Linearised:
    """What the noisy sums say near some parameters: their expectation, its derivative,
    and their covariance there.
    """

    place: FloatArray
    residual: FloatArray  # (sums,): sums minus their expectation
    slopes: FloatArray  # (sums, parameters)
    # (sums, sums): covariance of the exact sums, and that of the simulated expectation
    sampling: FloatArray
    noise: FloatArray  # (sums, sums): covariance of what was added
    laplace: FloatArray  # (sums,): the variances in it that are those of Laplace noise
    information: FloatArray  # (parameters, parameters): of one record

    @property
    def mixed(self) -> bool:
        """Whether Laplace noise is taken as normal noise of variances that are
        exponential.
        """
        return bool(self.laplace.any()) and len(self.laplace) <= MOST_MIXED

    @property
    def other_noise(self) -> FloatArray:
        """Covariance of the noise that is no Laplace noise, and a little for the sake
        of doubles.
        """
        little = LITTLE * np.trace(self.sampling + self.noise)
        return self.noise + np.diag(little - self.laplace)

    @cached_property
    def whitened(self) -> tuple[FloatArray, FloatArray, float]:
        """Slopes and residuals of sums made independent with variance 1, and the log
        determinant of the covariance.
        """
        covariance = regular(self.sampling + self.noise)
        root = cholesky(covariance, lower=True)
        both = np.column_stack([self.slopes, self.residual])
        whitened = solve_triangular(root, both, lower=True)
        log_determinant = 2 * float(np.log(np.diag(root)).sum())
        return whitened[:, :-1], whitened[:, -1], log_determinant

    @cached_property
    def curvature(self) -> FloatArray:
        """Minus the second derivative of the log-likelihood, shape (parameters,
        parameters).
        """
        return self.whitened[0].T @ self.whitened[0]

    @cached_property
    def slope(self) -> FloatArray:
        """The derivative of the log-likelihood, shape (parameters,)."""
        return self.whitened[0].T @ self.whitened[1]

    @property
    def log_likelihood(self) -> float:
        """Log density of the sums, up to a constant, under normal noise."""
        _, residual, log_determinant = self.whitened
        return -(float(residual @ residual) + log_determinant) / 2


def regular(covariance: FloatArray) -> FloatArray:
    """Return a covariance with so little more on its diagonal that it has a root."""
    little = LITTLE * np.trace(covariance)
    return np.asarray(covariance + np.eye(len(covariance)) * little)


@dataclass(frozen=True, eq=False)
class NoisySums:
    """The noisy sums of one table, and what simulates their law at any parameters."""

    space: Blueprint
    score: RecordScore
    prior: "NormalPrior"
    simulator: Simulator
    n_records: float
    n_variance: float = 0.0  # of the noise on the number of records
    measurements: tuple[Measurement, ...] = ()
    laplace: bool = False  # whether noise is Laplace noise, and not Gaussian noise

    @property
    def noisy(self) -> FloatArray:
        """All noisy sums, shape (sums,)."""
        return np.concatenate([each.noisy for each in self.measurements])

    @property
    def deviations(self) -> FloatArray:
        """Standard deviations of the noise on each, shape (sums,)."""
        return np.concatenate(
            [np.full(len(each.noisy), each.deviation) for each in self.measurements]
        )

    @property
    def last_reference(self) -> FloatArray:
        """The parameters at which scores were taken last; those at which the model
        starts if none were.
        """
        places = [
            measured.question.place
            for measured in self.measurements
            if isinstance(measured.question, Clipping)
        ]
        return places[-1] if places else initial(self.space.model)

    def functions(self, values: Values) -> FloatArray:
        """Return what is summed of public records, shape (records, sums)."""
        parts = []
        for measured in self.measurements:
            question = measured.question
            if isinstance(question, Clipping):
                scores = self.score.of_public(question.place, values)
                parts.append(question.clipped(scores))
            else:
                parts.append(question.indicators(values))
        return np.concatenate(parts, axis=1)

    def linearised(self, place: FloatArray, passes: int = 1) -> Linearised:
        """Return what the sums say near some parameters, by simulation there.

        The expectation of what is summed is corrected by the mean of the simulated
        records' scores, which would be 0 if there were infinitely many (a control
        variate). Where public columns are known they are conditioned on: what varies
        between their rows is no variance of the sums, unless only some of the rows were
        simulated.
        """
        n = self.n_records
        simulator = self.simulator
        n_sums = len(self.noisy)
        summed = slice(1, n_sums + 1)
        scored = slice(n_sums + 1, None)
        moments, within, between = self._moments(place, passes)
        mean = moments[0, summed]
        mean_score = moments[0, scored]
        slopes = moments[summed, scored] - np.outer(mean, mean_score)
        information = moments[scored, scored]
        by_score = slopes @ np.linalg.pinv(information, CERTAIN, hermitian=True)
        if not simulator.n_public:
            within = moments[summed, summed] - np.outer(mean, mean)
        mean = mean - by_score @ mean_score
        error = (within - by_score @ slopes.T) / (passes * simulator.n)
        if simulator.n_public and passes < simulator.cycle:
            error = between / (passes * simulator.rows)
        variances = self.deviations**2
        noise = self.n_variance * np.outer(mean, mean) + np.diag(variances)
        return Linearised(
            place=place,
            residual=self.noisy - n * mean,
            slopes=n * slopes,
            sampling=n * within + n**2 * error,
            noise=noise,
            laplace=self.laplace * variances,
            information=information,
        )

    def _moments(
        self, place: FloatArray, passes: int
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return mean products of what :meth:`_simulated` returns and, beside public
        columns, covariances of the sums within and between their rows.
        """
        n_sums = len(self.noisy)
        width = 1 + n_sums + len(place)
        moments = np.zeros((width, width))
        within = np.zeros((n_sums, n_sums))
        between = np.zeros((n_sums, n_sums))
        for number in range(passes):
            simulated = self._simulated(place, number)
            moments += simulated.T @ simulated / len(simulated) / passes
            if self.simulator.n_public:
                summed = simulated[:, 1 : n_sums + 1]
                of_draws, of_rows = _variances(summed, self.simulator)
                within += of_draws / passes
                between += of_rows / passes
        return moments, within, between

    def _simulated(self, place: FloatArray, number: int) -> FloatArray:
        """Return 1, what is summed, and the scores of simulated records side by side:
        shape (records, 1 + sums + parameters).
        """
        drawn, inside = self.simulator(place, number)
        scores = self.score.of_public(place, drawn)
        # outside of the support, as a weight below 0 that no transform keeps there,
        # slopes are no numbers, or 0 as those of a constant
        fine = (np.abs(scores) < LARGEST).all(axis=1)
        if not scores[fine].any():
            raise ValueError("no record has a score at these parameters")
        scores = np.where(fine[:, None], scores, 0.0)
        summed = self.functions(inside)
        return np.concatenate([np.ones((len(summed), 1)), summed, scores], axis=1)

    def precise(self, place: FloatArray) -> Linearised:
        """Return what the sums say near the most probable parameters, by a step from
        some that are nearly so.

        So many records are simulated that the table's own sampling error is much
        larger.
        """
        wanted = min(ENOUGH * self.n_records, MOST_SIMULATED)
        cycle = self.simulator.cycle
        passes = cycle * max(1, round(wanted / (cycle * self.simulator.n)))
        here = self.linearised(place, passes)
        move = self.move(here)
        is_far = self._length(move, here) > CLOSE
        if passes == 1 or not is_far:
            return here
        try:
            return min(here, self.linearised(place + move, passes), key=self.objective)
        # parameters that nothing is drawn at
        except (ValueError, np.linalg.LinAlgError):
            return here

    def _length(self, move: FloatArray, here: Linearised) -> float:
        """Return the length of a move in standard deviations of the posterior."""
        return float(np.sqrt(move @ (here.curvature + self.prior.precision) @ move))

    def objective(self, found: Linearised) -> float:
        """Return minus the log posterior density there, up to a constant."""
        return -found.log_likelihood - self.prior.log_density(found.place)

    def mode(self, start: FloatArray) -> Linearised:
        """Return the sums near the most probable parameters, searched from a start by
        simulated Gauss-Newton steps.
        """
        here = self.linearised(start)
        best = self.objective(here)
        reach = REACH
        for _ in range(MOST_MOVES):
            move = self.move(here)
            length = float(np.sqrt(move @ here.information @ move))
            move = move * min(1.0, reach / max(length, 1e-300))
            if self._length(move, here) < NEAR:
                break
            try:
                there = self.linearised(here.place + move)
                value = self.objective(there)
            # parameters that nothing is drawn at
            except (ValueError, FloatingPointError, np.linalg.LinAlgError):
                value = np.inf
            if value <= best + TOLERATED:
                here = there
                best = min(value, best)
                reach = min(2 * reach, REACH)
            else:
                reach = min(length, reach) / 4
                if reach < SHORTEST:
                    break
        return here

    def move(self, here: Linearised) -> FloatArray:
        """Return the way from here to the mode of the normal prior times what the sums
        say near here.
        """
        precision = self.prior.precision
        pull = here.slope + precision @ (self.prior.mean - here.place)
        return np.asarray(np.linalg.solve(here.curvature + precision, pull))


def _variances(
    summed: FloatArray, simulator: Simulator
) -> tuple[FloatArray, FloatArray]:
    """Return the covariances of what is summed among draws beside the same public row,
    and among the means of rows.
    """
    blocks = summed.reshape(simulator.replicates, simulator.rows, -1)
    middle = blocks.mean(axis=0)
    apart = (blocks - middle).reshape(summed.shape)
    freedom = simulator.rows * (simulator.replicates - 1)
    shape = (summed.shape[1], summed.shape[1])
    return apart.T @ apart / freedom, np.cov(middle.T).reshape(shape)


@dataclass(frozen=True, eq=False)
class NormalPrior:
    """Independent normal distributions as wide as the prior's own draws: with these
    references are searched.

    A hierarchy's own prior has no mode where all groups are alike; the posterior is
    drawn under the analyst's prior.
    """

    mean: FloatArray  # shape (parameters,), unconstrained
    deviation: FloatArray

    @classmethod
    def of(cls, draws: FloatArray) -> "NormalPrior":
        """Return the distributions that have the middle half of each parameter's draws
        where it is.
        """
        low, middle, high = np.quantile(draws, [0.25, 0.5, 0.75], axis=0)
        return cls(middle, np.maximum((high - low) / QUARTILES, 1e-9))

    @property
    def precision(self) -> FloatArray:
        """The inverse covariance, shape (parameters, parameters)."""
        return np.diag(self.deviation**-2)

    def log_density(self, place: FloatArray) -> float:
        """Return the log density up to a constant."""
        standard = (place - self.mean) / self.deviation
        return -float((standard**2).sum()) / 2


def clipping_at(
    sums: NoisySums, place: FloatArray, norm: Norm, step_variance: float
) -> Clipping:
    """Return how scores at some public parameters are whitened, and the radius that
    leaves most information.

    The whitening is the inverse root of the information of one record there, beside the
    prior's share; the radius is chosen among quantiles of simulated norms so that the
    mean variance of the posterior is least. ``step_variance`` is that of the noise in
    whole steps.
    """
    _, inside = sums.simulator(place)
    scores = sums.score.of_public(place, inside)
    scores = scores[(np.abs(scores) < LARGEST).all(axis=1)]
    share = sums.prior.precision / sums.n_records
    whitening = _whitening(scores.T @ scores / max(len(scores), 1) + share)
    whole = Clipping(place, whitening, 1.0, norm)
    whitened = whole.whitened(scores)
    norms = whole.lengths(whitened)
    radii = np.ones(1)
    if (norms > 0).any():
        radii = np.unique(np.quantile(norms[norms > 0], QUANTILES))
    n = sums.n_records
    prior = whitening @ share @ whitening.T * n
    by_variance = dict[float, Clipping]()
    for radius in radii:
        clipping = Clipping(place, whitening, float(radius), norm)
        clipped = clipping.clipped(scores)
        noise = step_variance * clipping.unit**2
        precision = prior + _information(clipped, whitened, n, noise)
        variance = float(np.trace(np.linalg.inv(precision)))
        by_variance.setdefault(variance, clipping)
    return by_variance[min(by_variance)]


def _information(
    clipped: FloatArray, whitened: FloatArray, n: float, noise: float
) -> FloatArray:
    """Return what a noisy sum of clipped scores of n records says of whitened
    parameters.
    """
    slopes = n * clipped.T @ whitened / len(clipped)
    sampling = n * np.cov(clipped.T).reshape(slopes.shape)
    covariance = sampling + noise * np.eye(len(slopes))
    return np.asarray(slopes.T @ np.linalg.solve(covariance, slopes))


def _whitening(information: FloatArray) -> FloatArray:
    """Return the symmetric inverse root of the information of one record."""
    values, vectors = np.linalg.eigh(information)
    values = np.maximum(values, values.max() * LEAST_INFORMATION)
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)


class NoisyLikelihood:
    """A PyMC model of noisy sums: the analyst's priors, and the sums near some
    parameters, made independent.

    ``noisy_sums`` are observed: the whitened residuals of a :class:`Linearised`, normal
    with variance 1 about its whitened slopes times the way from its place. Under
    Laplace noise there is a row for each normal noise that is mixed to it.
    """

    record_parameters: tuple[str, ...] = ()

    def __init__(self, space: Blueprint, here: Linearised, noises: Noises = ()) -> None:
        self.model = prior_model(space)
        self.compiled = dict[str, Any]()
        with self.model:
            free = [self.model[variable.name] for variable in space.model.free_RVs]
            values = [
                transformed(self.model, variable, variable, variable.owner.inputs)
                for variable in free
            ]
            held = {
                name: pm.Data(name, number)
                for name, number in numbers_of(here, noises).items()
            }
            observe_sums(NOISY_SUMS, values, held)

    @classmethod
    def kept(
        cls, space: Blueprint, here: Linearised, noises: Noises = ()
    ) -> "NoisyLikelihood":
        """Return the likelihood of these sums; its model is built and compiled once for
        each blueprint.
        """
        made: NoisyLikelihood = space.tried.once(
            ("noisy sums", len(noises) > 1), lambda: cls(space, here, noises)
        )
        pm.set_data(numbers_of(here, noises), model=made.model)
        return made


def observe_sums(name: str, values: Sequence[Any], held: Mapping[str, Any]) -> Any:
    """Observe noisy sums in the model in context, given its unconstrained parameters
    and what :func:`numbers_of` returns.
    """
    place = pt.concatenate([value.ravel() for value in values])
    expected = (held[SLOPES] * (place - held[PLACE])).sum(axis=-1)
    observed = held[RESIDUAL]
    if LOGS not in held:
        return pm.Normal(name, expected, 1.0, observed=observed)
    return pm.CustomDist(
        name,
        expected,
        held[LOGS],
        observed=observed,
        logp=_mixed,
        signature="(m,k),(m)->(m,k)",
    )


def prior_model(space: Blueprint) -> pm.Model:
    """Return the model without what reads a record: its priors, potentials and
    deterministic variables.
    """
    parts = take_apart(space.model, Axis())
    kept = [output for output in parts.fgraph.outputs if _is_of_prior(output.owner)]
    fgraph = FunctionGraph(outputs=kept, clone=True)
    fgraph._coords = parts.fgraph._coords
    fgraph._dim_lengths = parts.fgraph._dim_lengths
    return model_from_fgraph(fgraph, mutate_fgraph=True)


def _is_of_prior(node: Any) -> bool:
    if isinstance(node.op, ModelFreeRV | ModelPotential):
        return True
    is_deterministic = isinstance(node.op, ModelDeterministic)
    return is_deterministic and not reads_records(node)


def numbers_of(here: Linearised, noises: Noises) -> dict[str, FloatArray]:
    """Return what the model of noisy sums reads, by name; with a row for each of
    several noises.
    """
    mixed = [here]
    if noises:
        mixed = [replace(here, noise=noise) for noise, _ in noises]
    whitened = [linearised.whitened for linearised in mixed]
    slopes, residuals, determinants = map(np.array, zip(*whitened, strict=True))
    if len(mixed) == 1:
        return {PLACE: here.place, SLOPES: slopes[0], RESIDUAL: residuals[0]}
    logs = np.array([share for _, share in noises]) - determinants / 2
    return {PLACE: here.place, SLOPES: slopes, RESIDUAL: residuals, LOGS: logs}


def _mixed(value: Any, expected: Any, logs: Any) -> Any:
    """Return the log density of sums that one of several ways makes independent with
    variance 1.
    """
    distance = ((value - expected) ** 2).sum(axis=-1)
    return pt.logsumexp(logs - distance / 2, axis=-1)
