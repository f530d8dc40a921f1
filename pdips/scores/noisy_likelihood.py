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

from pdips.arrays import FloatArray
from pdips.posterior.columns import Values
from pdips.posterior.model import Blueprint, initial, transformed
from pdips.posterior.parts import Axis, reads_records, take_apart
from pdips.release.public_draws import CONTRADICTED, REFERENCE_FAR, Misfit
from pdips.scores.column_cells import ColumnCells
from pdips.scores.record_score import STEPS, Clipping, Norm, RecordScore
from pdips.scores.simulator import Reweighted, Simulator
from pdips.scores.sums import (
    Density,
    Linearised,
    MeasuredSums,
    Noises,
    NormalPrior,
    share_further,
)

PLACE = "pdips_place"
SLOPES = "pdips_slopes"
RESIDUAL = "pdips_residual"
DEVIATIONS = "pdips_deviations"
LOGS = "pdips_log_shares"
NOISY_SUMS = "noisy_sums"

# A simulated score beyond, or no number, is left out of products that doubles can't
# hold
LARGEST = 1e100
# Standard deviations of the posterior from which on the last step is taken before the
# last simulation
CLOSE = 1.0
# Simulated records for each record at the end, and in all
ENOUGH = 60
MOST_SIMULATED = 4_000_000
# Least information in a direction, over the largest, by which expectations are
# corrected along it
CERTAIN = 1e-12
# Least information in a direction, over the largest, by which scores are whitened
LEAST_INFORMATION = 1e-12
# Of the norms of simulated scores: the radii among which one is chosen
QUANTILES = np.linspace(0.05, 0.99, 12)
# The noise on a sum of scores may have this share of the sampling variance of the sum,
# so that few records are clipped, whatever law they have: what clipping leaves of
# scores depends on their tails, about which a model may be wrong
AFFORDED = 0.5
# The radius that this leads to is at most so many times the norm that whitened scores
# have about
WIDEST = 6.0


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
class NoisySums(MeasuredSums):
    """The noisy sums of one table, and what simulates their law at any parameters."""

    space: Blueprint
    score: RecordScore
    prior: NormalPrior
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

    @property
    def last_scores(self) -> "NoisySums":
        """The last sums of scores alone, from which the posterior is drawn; all that
        there is where no scores were asked for.

        Earlier sums and counts of cells served to find where to ask. Under a model that
        is wrong each of them would be most probable at other parameters, and a joint
        likelihood would be sure of something in between.
        """
        last = self.measurements[-1]
        if not isinstance(last.question, Clipping):
            return self
        return replace(self, measurements=(last,))

    @cached_property
    def alone(self) -> Linearised:
        """The last sums of scores near the parameters that they alone make most
        probable, not much farther than they reach.

        Where nearly all scores of a group are clipped they say on which side of the
        reference it is, and a wide prior would lead from there to anywhere.
        """
        last = self.last_scores
        start = last.linearised(self.last_reference)
        reach = REFERENCE_FAR * np.sqrt(np.diag(np.linalg.pinv(start.information)))
        reach[reach == 0] = np.inf  # nothing is told of such a parameter
        near = last.prior.times(NormalPrior(start.place, reach))
        return replace(last, prior=near).mode(self.last_reference)

    @cached_property
    def together(self) -> Linearised:
        """All sums near the parameters that they make most probable.

        The search begins at two places: beside public columns noisy counts are as
        probable where groups of a covariate have changed places, and it may end there.
        """
        ends = [self.mode(self.alone.place), self.mode(self.last_reference)]
        return min(ends, key=self.objective)

    @cached_property
    def is_contradicted(self) -> bool:
        """Whether all sums contradict each other where they are most probable."""
        found = self.misfit(self.last_reference)
        return found is not None and found[0] < CONTRADICTED

    @property
    def apart(self) -> float:
        """How far the last scores were taken from the parameters that all sums make
        most probable, in standard deviations of one record. Beyond
        :data:`~pdips.release.public_draws.REFERENCE_FAR` what they say may be far off.

        """
        together = self.together
        move = together.place - self.last_reference
        return float(np.sqrt(move @ together.information @ move))

    def density(self, here: Linearised, anchors: FloatArray, noises: Noises) -> Density:
        """Return the likelihood at any parameters near some."""
        return Reweighted(self, here, anchors, noises)

    def misfits(self, place: FloatArray) -> dict[Misfit, float]:
        """Return how often all noisy numbers would contradict each other as much.

        What is left of them is compared with what is left of simulated ones, once the
        parameters that they make most probable explain what they can: counts of cells
        and earlier sums have no part in the posterior, but they know the model's law.
        """
        if len(self.measurements) == 1:
            return {}
        here = self.linearised(self.together.place, self.simulator.cycle)
        covariance = here.sampling + here.other_noise + np.diag(self._unseen)
        share = share_further(here.residual, here.slopes, covariance, here.laplace)
        return {"spread": share}

    @property
    def _unseen(self) -> FloatArray:
        """What counts vary by, beside what simulated records show: as if one more of
        these were in each cell. In one that none fell into a single record of the table
        would be impossible. Shape (sums,).
        """
        records = self.n_records / (self.simulator.cycle * self.simulator.n)
        variances = [
            np.full(len(measured.noisy), isinstance(measured.question, ColumnCells))
            for measured in self.measurements
        ]
        return np.concatenate(variances) * (records + records**2)

    def likelihood(self, here: Linearised, noises: Noises) -> "NoisyLikelihood":
        """Return the likelihood near some parameters as a PyMC model."""
        return NoisyLikelihood.kept(self.space, here, noises)

    @property
    def clipped(self) -> list[float]:
        """The share of simulated records that each round pulls into its ball."""
        shares = []
        for measured in self.measurements:
            clipping = measured.question
            if isinstance(clipping, Clipping):
                drawn, _ = self.simulator(clipping.place)
                scores = self.score.of_public(clipping.place, drawn)
                lengths = clipping.lengths(clipping.whitened(scores))
                shares.append(float((lengths > clipping.radius).mean()))
        return shares

    def functions(self, drawn: Values, inside: Values) -> FloatArray:
        """Return what is summed of public records, shape (records, sums).

        Scores are those of records as the model draws them (``drawn``): the model as
        written knows nothing of a column's bounds. Cells are those of records as a
        table has them (``inside``).
        """
        parts = []
        for measured in self.measurements:
            question = measured.question
            if isinstance(question, Clipping):
                scores = self.score.of_public(question.place, drawn)
                parts.append(question.clipped(scores))
            else:
                parts.append(question.indicators(inside))
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
        unexplained = nearest_covariance(within - by_score @ slopes.T)
        error = unexplained / (passes * simulator.n)
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
        summed = self.functions(drawn, inside)
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


def nearest_covariance(estimate: FloatArray) -> FloatArray:
    """Return the nearest matrix that is a covariance to a symmetric one.

    What simulated scores explain of a sum may come out larger than its variance between
    draws beside the same public row, and times the square of the number of records that
    is more than all else: without this nothing would be searched or checked there.
    """
    values, vectors = np.linalg.eigh((estimate + estimate.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


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


def clipping_at(
    sums: NoisySums, place: FloatArray, norm: Norm, step_variance: float
) -> Clipping:
    """Return how scores at some public parameters are whitened, and the radius of the
    ball that they are pulled into.

    The whitening is the inverse root of the information of one record there, beside the
    prior's share. The radius is as large as noise allows that is :data:`AFFORDED`,
    and no smaller than the one among quantiles of simulated norms with which the mean
    variance of the posterior is least; where all that is described has levels, no
    larger than the longest score. ``step_variance`` is that of the noise in whole
    steps.
    """
    drawn, _ = sums.simulator(place)
    scores = sums.score.of_public(place, drawn)
    scores = scores[(np.abs(scores) < LARGEST).all(axis=1)]
    share = sums.prior.precision / sums.n_records
    whitening = _whitening(scores.T @ scores / max(len(scores), 1) + share)
    n = sums.n_records
    prior = whitening @ share @ whitening.T * n
    whole = Clipping(place, whitening, 1.0, norm)
    sharpest = _sharpest(whole, scores, prior, (n, step_variance))
    affordable = STEPS * np.sqrt(AFFORDED * n / step_variance)
    usual = np.sqrt(len(place)) if norm == "l2" else len(place)
    widest = min(affordable, WIDEST * usual)
    columns = sums.space.columns
    if all(columns[name].is_categorical for name in sums.space.synthesized):
        # whatever the law of levels, no record has a longer score
        widest = min(widest, whole.lengths(whole.whitened(scores)).max(initial=0.0))
    return replace(sharpest, radius=max(sharpest.radius, float(widest)))


def _sharpest(
    whole: Clipping, scores: FloatArray, prior: FloatArray, price: tuple[float, float]
) -> Clipping:
    """Return the clipping with the radius, among quantiles of simulated norms, that
    leaves most information; ``price`` is the number of records, and the variance of the
    noise in whole steps.
    """
    n, step_variance = price
    whitened = whole.whitened(scores)
    norms = whole.lengths(whitened)
    radii = np.ones(1)
    lengths = norms[(norms > 0) & np.isfinite(norms)]  # a simulated record may be odd
    if len(lengths):
        radii = np.unique(np.quantile(lengths, QUANTILES))
    by_variance = dict[float, Clipping]()
    for radius in radii:
        clipping = replace(whole, radius=float(radius))
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

    ``noisy_sums`` are observed: the residuals of a :class:`Linearised`, each less what
    those before it say of it, normal about slopes times the way from its place. To take
    this off leaves volumes as they are, so densities are those of the sums themselves
    and may be compared between models. Under Laplace noise there is a row for each
    normal noise that is mixed to it, with variance 1.
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
        return pm.Normal(name, expected, held[DEVIATIONS], observed=observed)
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
        deviations = mixed[0].deviations
        return {
            PLACE: here.place,
            SLOPES: slopes[0] * deviations[:, None],
            RESIDUAL: residuals[0] * deviations,
            DEVIATIONS: deviations,
        }
    shares = np.array([share for _, share in noises])
    logs = shares - (determinants + len(here.residual) * np.log(2 * np.pi)) / 2
    return {PLACE: here.place, SLOPES: slopes, RESIDUAL: residuals, LOGS: logs}


def _mixed(value: Any, expected: Any, logs: Any) -> Any:
    """Return the log density of sums that one of several ways makes independent with
    variance 1; ``logs`` has the factors of the normal densities.
    """
    distance = ((value - expected) ** 2).sum(axis=-1)
    return pt.logsumexp(logs - distance / 2, axis=-1)
