"""The likelihood of noisy sums: jointly normal, with the mean and covariance that simulated records have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.model.fgraph import ModelDeterministic, ModelFreeRV, ModelPotential, model_from_fgraph
from pymc.pytensorf import compile as compile_graph
from pymc.pytensorf import reseed_rngs
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from scipy.linalg import cholesky, solve_triangular

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Column
from pdips.data.table import Table
from pdips.posterior.censoring import Axis, _reads_records, take_apart
from pdips.posterior.columns import Values, bounds_of, record_values, stand_ins
from pdips.posterior.model import PUBLIC_SEED, Blueprint, initial, split, transformed
from pdips.posterior.record_likelihood import inputs_of
from pdips.scores.record_score import Clipping, Norm, RecordScore

AT_ONCE = 10_000  # Records drawn in one pass
MOST_PASSES = 1_000  # Passes of one simulator, before those of another seed would come again
EVEN, LIKELY = 32, 32  # Cells of a numeric column that are equally wide, and equally likely by public facts

Records = dict[str, NDArray[Any]]

Noises = Sequence[tuple[FloatArray, float]]  # Covariances of normal noises, and the log of each one's share in them

LOG_SPREAD = 100  # From this ratio of its bounds on, cells of a positive column are equally wide on the log scale
SURE = 3  # Standard deviations of the noise from which on a count is hardly noise alone
MOST_CELLS = 200  # Cells of a column; of one with more levels or whole numbers neighbours are counted together


class Simulator:
    """Draws records from a model at any parameters, a fixed number at a time, beside public columns if there are any.

    Compiled once. The same pass gives the same draws at the same parameters. In a pass every row of public columns that
    takes part is there ``replicates`` times, one block of rows after the other; so many passes as ``cycle`` says go
    through all rows, each taking rows from all over their order. ``seed`` follows from what is published.
    """

    def __init__(self, space: Blueprint, public: Values, least: int = AT_ONCE, *, seed: int = 0) -> None:
        self.space, self.public, self.seed = space, public, seed
        self.n_public = len(next(iter(public.values()))) if public else 0
        self.cycle = max(-(-self.n_public // max(least // 4, 1)), 1)
        self.rows = -(-self.n_public // self.cycle) or least
        self.replicates = -(-least // self.rows) if public else 1
        self.n = self.rows * self.replicates
        self._model = model = space.build(stand_ins(space.schema, self.n, known=self._beside(0)))
        given = dict(zip(model.free_RVs, model.replace_rvs_by_values(model.free_RVs), strict=True))
        graphs = clone_replace(list(model.observed_RVs), given, rebuild_strict=False)
        settings: dict[str, Any] = {"on_unused_input": "ignore", "mode": "FAST_COMPILE", "random_seed": False}
        self._function, updates = compile_graph(model.value_vars, graphs, return_updates=True, **settings)
        self._rngs = list(updates)

    def _beside(self, number: int) -> Records:
        """Return the public columns of a pass."""
        rows = (np.arange(self.rows) * self.cycle + number % self.cycle) % max(self.n_public, 1)
        return {name: np.tile(np.asarray(values)[rows], self.replicates) for name, values in self.public.items()}

    def __call__(self, place: FloatArray, number: int = 0) -> tuple[Records, Records]:
        """Return records as the model draws them, and as a table has them: whole codes, inside of the bounds."""
        public = self._beside(number)
        if self.rows < self.n_public:
            for name, held in inputs_of(self._model, public).items():
                held.set_value(public[name].astype(held.dtype))
        reseed_rngs(self._rngs, PUBLIC_SEED + MOST_PASSES * self.seed + number)
        with np.errstate(all="ignore"):
            drawn = self._function(*(part[0] for part in split(self.space.model, np.asarray(place)[None])))
        whole = [np.broadcast_to(values, (self.n, *np.shape(values)[1:])) for values in drawn]
        found: Records = public | self.space.by_column(whole)
        inside = dict(found)
        for name in self.space.synthesized:
            column, values = self.space.columns[name], np.asarray(found[name], dtype=np.float64)
            lower, upper = bounds_of(column)
            values = np.clip(np.where(np.isnan(values), lower, values), lower, upper)
            inside[name] = np.rint(values).astype(np.int64) if column.is_categorical or column.integer else values
        return found, inside


@dataclass(frozen=True, eq=False)
class ColumnCells:
    """One histogram of each column that a model describes: the edges of its cells, from public facts alone."""

    columns: Mapping[str, Column]
    edges: Mapping[str, FloatArray]

    @classmethod
    def of(cls, space: Blueprint, likely: Mapping[str, NDArray[Any]]) -> "ColumnCells":
        """Return cells half of which are equally wide, and half equally likely for some public records."""
        return cls(space.columns, {name: cell_edges(space.columns[name], likely[name]) for name in space.synthesized})

    @property
    def sizes(self) -> list[int]:
        """Number of cells of each column."""
        return [len(edges) - 1 for edges in self.edges.values()]

    def places(self, values: Values) -> list[IntArray]:
        """Return the cell of each record, by column, shape (records,)."""
        return [
            np.clip(np.searchsorted(edges, np.asarray(values[name], float), side="right") - 1, 0, len(edges) - 2)
            for name, edges in self.edges.items()
        ]

    def count(self, table: Table) -> IntArray:
        """Return the number of records in each cell of each column, shape (cells,)."""
        places = self.places(record_values(table, self.edges))
        return np.concatenate([table.count(place, size) for place, size in zip(places, self.sizes, strict=True)])

    def indicators(self, values: Values) -> FloatArray:
        """Return which cells records are in, shape (records, cells)."""
        parts = [np.eye(size)[place] for place, size in zip(self.places(values), self.sizes, strict=True)]
        return np.concatenate(parts, axis=1)

    def draw(self, counts: FloatArray, noise: float, n: int, rng: np.random.Generator) -> Records:
        """Return values as noisy counts have them, each column by itself, leaving out what noise alone may make."""
        found: Records = {}
        for (name, edges), noisy in zip(self.edges.items(), np.split(counts, np.cumsum(self.sizes)[:-1]), strict=True):
            sure = np.where(noisy > SURE * noise, noisy, 0.0)
            sure = sure if sure.any() else np.maximum(noisy, 0.0) + 1e-9
            place, column = rng.choice(len(sure), n, p=sure / sure.sum()), self.columns[name]
            low, high = edges[place], edges[place + 1]
            values = low + (high - low) * rng.random(n)
            if column.is_categorical or column.integer:
                found[name] = np.clip(
                    np.ceil(low) + np.floor((np.ceil(high) - np.ceil(low)) * rng.random(n)), *bounds_of(column)
                ).astype(np.int64)
            else:
                found[name] = np.clip(values, *bounds_of(column))
        return found


def cell_edges(column: Column, likely: NDArray[Any]) -> FloatArray:
    """Return the edges of a column's cells: those of its levels, or even ones and likely ones between its bounds."""
    lower, upper = bounds_of(column)
    if column.is_categorical or column.integer:
        lower, upper = lower - 0.5, upper + 0.5
        if upper - lower <= MOST_CELLS // 2:
            return np.arange(lower, upper + 1)
    spread = np.geomspace if lower > 0 and upper / lower >= LOG_SPREAD else np.linspace
    inner = np.quantile(np.clip(likely, lower, upper), np.arange(1, LIKELY) / LIKELY)
    edges = np.unique(np.concatenate([spread(lower, upper, EVEN + 1), inner]))
    if column.integer or column.is_categorical:
        edges = np.unique(np.clip(np.floor(edges) + 0.5, lower, upper))
    kept = np.concatenate([[True], np.diff(edges) > 1e-9 * (upper - lower)])
    edges = edges[kept]
    edges[0], edges[-1] = lower, upper
    return np.asarray(edges, dtype=np.float64)


PLACE, SLOPES, RESIDUAL, LOGS = "pdips_place", "pdips_slopes", "pdips_residual", "pdips_log_shares"
NOISY_SUMS = "noisy_sums"

MOST_MIXED = 300  # Sums up to which Laplace noise is mixed of normal ones; on more it counts as one normal
MOST_MOVES = 40  # Steps towards the most probable parameters
NEAR = 0.05  # The search ends with a step so short, in standard deviations of the posterior
LARGEST = 1e100  # A simulated score beyond, or no number, is left out of products that doubles can't hold
CLOSE = 1.0  # Standard deviations of the posterior from which on the last step is taken before the last simulation
QUARTILES = 1.349  # Distance of the quartiles of a standard normal distribution
REACH = 1.0  # Longest step, in standard deviations of what one record says
ENOUGH, MOST_SIMULATED = 60, 4_000_000  # Simulated records for each record at the end, and in all
CERTAIN = 1e-12  # Least information in a direction, over the largest, by which expectations are corrected along it
QUANTILES = np.linspace(0.05, 0.99, 12)  # Of the norms of simulated scores: the radii among which one is chosen


@dataclass(frozen=True, eq=False)
class Measurement:
    """Noisy sums over records of a public function of one record, and the standard deviation of the noise on each."""

    step: str  # of the plan
    question: ColumnCells | Clipping
    noisy: FloatArray  # shape (sums,): records, or whitened scores
    deviation: float


@dataclass(frozen=True, eq=False)
class Linearised:
    """What the noisy sums say near some parameters: their expectation, its derivative, and their covariance there."""

    place: FloatArray
    residual: FloatArray  # (sums,): sums minus their expectation
    slopes: FloatArray  # (sums, parameters)
    sampling: FloatArray  # (sums, sums): covariance of the exact sums, and that of the simulated expectation
    noise: FloatArray  # (sums, sums): covariance of what was added
    laplace: FloatArray  # (sums,): the variances in it that are those of Laplace noise
    information: FloatArray  # (parameters, parameters): of one record

    @property
    def mixed(self) -> bool:
        """Whether Laplace noise is taken as normal noise of variances that are exponential."""
        return bool(self.laplace.any()) and len(self.laplace) <= MOST_MIXED

    @property
    def other_noise(self) -> FloatArray:
        """Covariance of the noise that is no Laplace noise, and a little for the sake of doubles."""
        return self.noise + np.diag(1e-12 * np.trace(self.sampling + self.noise) - self.laplace)

    @cached_property
    def whitened(self) -> tuple[FloatArray, FloatArray, float]:
        """Slopes and residuals of sums made independent with variance 1, and the log determinant of the covariance."""
        covariance = self.sampling + self.noise
        root = cholesky(covariance + np.eye(len(covariance)) * 1e-12 * np.trace(covariance), lower=True)
        found = solve_triangular(root, np.column_stack([self.slopes, self.residual]), lower=True)
        return found[:, :-1], found[:, -1], 2 * float(np.log(np.diag(root)).sum())

    @cached_property
    def curvature(self) -> FloatArray:
        """Minus the second derivative of the log-likelihood, shape (parameters, parameters)."""
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
        return np.concatenate([np.full(len(each.noisy), each.deviation) for each in self.measurements])

    @property
    def last_reference(self) -> FloatArray:
        """The parameters at which scores were taken last; those at which the model starts if none were."""
        places = [each.question.place for each in self.measurements if isinstance(each.question, Clipping)]
        return places[-1] if places else initial(self.space.model)

    def functions(self, values: Values) -> FloatArray:
        """Return what is summed of public records, shape (records, sums)."""
        asked, score = [each.question for each in self.measurements], self.score.of_public
        parts = [
            at.clipped(score(at.place, values)) if isinstance(at, Clipping) else at.indicators(values) for at in asked
        ]
        return np.concatenate(parts, axis=1)

    def linearised(self, place: FloatArray, passes: int = 1) -> Linearised:
        """Return what the sums say near some parameters, by simulation there.

        The expectation of what is summed is corrected by the mean of the simulated records' scores, which would be 0 if
        there were infinitely many (a control variate). Where public columns are known they are conditioned on: what
        varies between their rows is no variance of the sums, unless only some of the rows were simulated.
        """
        n, simulator = self.n_records, self.simulator
        n_sums, n_parameters = len(self.noisy), len(place)
        moments = np.zeros((1 + n_sums + n_parameters, 1 + n_sums + n_parameters))
        within, between = np.zeros((n_sums, n_sums)), np.zeros((n_sums, n_sums))
        for number in range(passes):
            drawn, inside = simulator(place, number)
            scores = self.score.of_public(place, drawn)
            fine = (np.abs(scores) < LARGEST).all(axis=1)
            if not fine.any():  # outside of the support, as a weight below 0 that no transform keeps there
                raise ValueError("no record has a score at these parameters")
            scores = np.where(fine[:, None], scores, 0.0)
            found = self.functions(inside)
            one = np.concatenate([np.ones((len(found), 1)), found, scores], axis=1)
            moments += one.T @ one / len(one) / passes
            if simulator.n_public:
                blocks = found.reshape(simulator.replicates, simulator.rows, -1)
                middle = blocks.mean(axis=0)
                apart = (blocks - middle).reshape(found.shape)
                within += apart.T @ apart / (simulator.rows * (simulator.replicates - 1)) / passes
                between += np.cov(middle.T).reshape(between.shape) / passes
        total = passes * simulator.n
        mean, products = moments[0, 1 : n_sums + 1], moments[1 : n_sums + 1]
        whole = products[:, 1 : n_sums + 1] - np.outer(mean, mean)
        slopes = products[:, n_sums + 1 :] - np.outer(mean, moments[0, n_sums + 1 :])
        information = moments[n_sums + 1 :, n_sums + 1 :]
        by_score = slopes @ np.linalg.pinv(information, CERTAIN, hermitian=True)
        mean = mean - by_score @ moments[0, n_sums + 1 :]
        within = within if simulator.n_public else whole
        error = (within - by_score @ slopes.T) / total
        if simulator.n_public and passes < simulator.cycle:
            error = between / (passes * simulator.rows)
        sampling = n * within + n**2 * error
        variances = self.deviations**2
        noise, laplace = self.n_variance * np.outer(mean, mean) + np.diag(variances), self.laplace * variances
        return Linearised(place, self.noisy - n * mean, n * slopes, sampling, noise, laplace, information)

    def precise(self, place: FloatArray) -> Linearised:
        """Return what the sums say near the most probable parameters, by a step from some that are nearly so.

        So many records are simulated that the table's own sampling error is much larger.
        """
        wanted, cycle = min(ENOUGH * self.n_records, MOST_SIMULATED), self.simulator.cycle
        passes = cycle * max(1, round(wanted / (cycle * self.simulator.n)))
        here = self.linearised(place, passes)
        move = self.move(here)
        if not (passes > 1 and float(move @ (here.curvature + self.prior.precision) @ move) > CLOSE**2):
            return here
        try:
            return min(here, self.linearised(place + move, passes), key=self.objective)
        except (ValueError, np.linalg.LinAlgError):  # parameters that nothing is drawn at
            return here

    def objective(self, found: Linearised) -> float:
        """Return minus the log posterior density there, up to a constant."""
        return -found.log_likelihood - self.prior.log_density(found.place)

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


def clipping_at(sums: NoisySums, place: FloatArray, norm: Norm, step_variance: float) -> Clipping:
    """Return how scores at some public parameters are whitened, and the radius that leaves most information.

    The whitening is the inverse root of the information of one record there, beside the prior's share; the radius is
    chosen among quantiles of simulated norms so that the mean variance of the posterior is least. ``step_variance`` is
    that of the noise in whole steps.
    """
    _, inside = sums.simulator(place)
    scores = sums.score.of_public(place, inside)
    scores = scores[(np.abs(scores) < LARGEST).all(axis=1)]
    n, share = sums.n_records, sums.prior.precision / sums.n_records
    values, vectors = np.linalg.eigh(scores.T @ scores / max(len(scores), 1) + share)
    whitening = (vectors / np.sqrt(np.maximum(values, values.max() * 1e-12))) @ vectors.T
    whole = Clipping(place, whitening, 1.0, norm)
    whitened = whole.whitened(scores)
    norms = whole.lengths(whitened)
    prior = whitening @ share @ whitening.T * n
    found = dict[float, Clipping]()
    for radius in np.unique(np.quantile(norms[norms > 0], QUANTILES)) if (norms > 0).any() else [1.0]:
        made = Clipping(place, whitening, float(radius), norm)
        clipped = made.clipped(scores)
        slopes = n * clipped.T @ whitened / len(scores)
        noise = step_variance * made.unit**2
        covariance = n * np.cov(clipped.T).reshape(slopes.shape) + noise * np.eye(len(slopes))
        left = float(np.trace(np.linalg.inv(slopes.T @ np.linalg.solve(covariance, slopes) + prior)))
        found.setdefault(left, made)
    return found[min(found)]


class NoisyLikelihood:
    """A PyMC model of noisy sums: the analyst's priors, and the sums near some parameters, made independent.

    ``noisy_sums`` are observed: the whitened residuals of a :class:`Linearised`, normal with variance 1 about its
    whitened slopes times the way from its place. Under Laplace noise there is a row for each normal noise that is mixed
    to it.
    """

    record_parameters: tuple[str, ...] = ()

    def __init__(self, space: Blueprint, here: Linearised, noises: Noises = ()) -> None:
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
        with self.model:
            free = [self.model[variable.name] for variable in space.model.free_RVs]
            values = [transformed(self.model, each, each, each.owner.inputs).ravel() for each in free]
            held = {name: pm.Data(name, number) for name, number in _numbers(here, noises).items()}
            expected = (held[SLOPES] * (pt.concatenate(values) - held[PLACE])).sum(axis=-1)
            if LOGS in held:
                given, settings = (expected, held[LOGS]), {"logp": _mixed, "signature": "(m,k),(m)->(m,k)"}
                pm.CustomDist(NOISY_SUMS, *given, observed=held[RESIDUAL], **settings)
            else:
                pm.Normal(NOISY_SUMS, expected, 1.0, observed=held[RESIDUAL])

    @classmethod
    def kept(cls, space: Blueprint, here: Linearised, noises: Noises = ()) -> "NoisyLikelihood":
        """Return the likelihood of these sums; its model is built and compiled once for each blueprint."""
        made: NoisyLikelihood = space.tried.once(("noisy sums", len(noises) > 1), lambda: cls(space, here, noises))
        pm.set_data(_numbers(here, noises), model=made.model)
        return made


def _numbers(here: Linearised, noises: Noises) -> dict[str, FloatArray]:
    """Return what the model of noisy sums reads, by name; with a row for each of several noises."""
    mixed = [replace(here, noise=noise) for noise, _ in noises] or [here]
    slopes, residuals, determinants = map(np.array, zip(*(each.whitened for each in mixed), strict=True))
    if len(mixed) == 1:
        return {PLACE: here.place, SLOPES: slopes[0], RESIDUAL: residuals[0]}
    logs = np.array([share for _, share in noises]) - determinants / 2
    return {PLACE: here.place, SLOPES: slopes, RESIDUAL: residuals, LOGS: logs}


def _mixed(value: Any, expected: Any, logs: Any) -> Any:
    """Return the log density of sums that one of several ways makes independent with variance 1."""
    return pt.logsumexp(logs - ((value - expected) ** 2).sum(axis=-1) / 2, axis=-1)
