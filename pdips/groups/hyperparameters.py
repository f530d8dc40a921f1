"""Parameters that groups have in common, integrated over: importance draws from the
evidence of the groups and the analyst's priors.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp

from pdips.arrays import FloatArray
from pdips.groups.hierarchy import Hierarchy
from pdips.groups.noisy_groups import NoisyGroups
from pdips.groups.quadrature import Common, GroupQuadrature, SizeLaw


@dataclass(frozen=True)
class Search:
    """How hyperparameters are searched and drawn: tuned on ``benchmarks.groups``."""

    # numbers of groups whose evidence is worked out: by whether the outcome is normal
    most_groups: tuple[int, int] = (50_000, 10_000)
    searched_on: int = 3_000
    # effects that are read, however many groups have each in common
    fewest_effects: int = 500
    rounds: int = 4
    # rounds at most, where few draws count, and how many have to count
    most_rounds: int = 30
    enough: float = 60.0
    draws_a_round: int = 80
    degrees: float = 5.0
    inflated: float = 1.2
    difference: float = 0.05
    # prior deviations of the logs of mean and shape of sizes
    size_spread: float = 1.5
    shape_spread: float = 1.0
    # prior middle and deviation of the log of how uneven the shares of groups are that
    # have an effect in common
    unevenness: float = 0.05
    unevenness_spread: float = 1.5


SEARCH = Search()
# Log densities this far below the best are as good as none
FAR_BELOW = 1e10


@dataclass(frozen=True, eq=False)
class HyperDraws:
    """Weighted draws of what groups have in common.

    Parameters
    ----------
    places : ndarray
        Shape (draws, parameters): the hierarchy's, then those of sizes.
    weights : ndarray
        Adding up to 1, shape (draws,).
    n_own : int
        How many parameters are the hierarchy's.
    """

    places: FloatArray
    weights: FloatArray
    n_own: int

    @property
    def effective(self) -> float:
        """The number of draws without weights that they are worth."""
        return float(1 / (self.weights**2).sum())

    def resampled(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Return draws without weights, shape (n, parameters), systematically, so that
        few are alike.
        """
        at = (rng.random() + np.arange(n)) / n
        below = np.cumsum(self.weights)
        chosen = np.searchsorted(below / below[-1], at)
        return self.places[np.minimum(chosen, len(self.places) - 1)]


class HyperPosterior:
    """The posterior of what groups have in common.

    Parameters
    ----------
    noisy : NoisyGroups
        What was measured; of very many groups a random part is read.
    hierarchy : Hierarchy
        The model's.
    rng : numpy.random.Generator
        Chooses that part, and draws.
    """

    def __init__(
        self, noisy: NoisyGroups, hierarchy: Hierarchy, rng: np.random.Generator
    ) -> None:
        self.hierarchy = hierarchy
        self.rng = rng
        self.n_own = len(hierarchy.start)
        self.has_sizes = noisy.size_variance > 0
        self.size_guess = max(noisy.total / noisy.n_groups, 0.1)
        is_normal = noisy.design.family == "normal"
        most = SEARCH.most_groups[0 if is_normal else 1]
        most = max(most // noisy.n_within, SEARCH.fewest_effects)
        self.read = noisy
        if noisy.n_effects > most:
            rows = rng.choice(noisy.n_effects, most, replace=False)
            self.read = _scaled(noisy, rows)
        self.quadrature = GroupQuadrature(self.read)

    @property
    def _size_middles(self) -> FloatArray:
        """Where the prior of parameters of sizes lies, on the log scale."""
        middles = np.log([self.size_guess, 1.0, SEARCH.unevenness])
        return np.asarray(middles[: self._n_of_sizes])

    @property
    def _size_spreads(self) -> FloatArray:
        """Its deviations."""
        spreads = (SEARCH.size_spread, SEARCH.shape_spread, SEARCH.unevenness_spread)
        return np.array(spreads[: self._n_of_sizes])

    @property
    def _n_of_sizes(self) -> int:
        return 3 if self.read.n_within > 1 else 2

    def common(self, place: FloatArray) -> Common:
        """Return what parameters say."""
        spread = self.hierarchy.spread(place[: self.n_own])
        if not self.has_sizes:
            return Common(spread, None)
        return Common(spread, SizeLaw(*np.exp(place[self.n_own :])))

    def log_density(self, quadrature: GroupQuadrature, place: FloatArray) -> float:
        """Return the log posterior density, up to a constant."""
        if np.max(np.abs(place)) > 1e6:
            return -FAR_BELOW
        with np.errstate(all="ignore"):
            total = self.hierarchy.log_prior(place[: self.n_own])
            if self.has_sizes:
                off = (place[self.n_own :] - self._size_middles) / self._size_spreads
                total -= (off**2).sum() / 2
            if np.isfinite(total):
                try:
                    total += quadrature.evidence(self.common(place))
                except OverflowError:  # where a search goes too far: the noise is paid
                    return -FAR_BELOW
        return float(total) if np.isfinite(total) else -FAR_BELOW

    def _negative(self, quadrature: GroupQuadrature) -> Callable[[FloatArray], float]:
        return lambda place: -self.log_density(quadrature, place)

    def start(self) -> FloatArray:
        """Return parameters at which the search begins."""
        own = self.hierarchy.start
        if not self.has_sizes:
            return own
        return np.array([*own, *self._size_middles])

    def mode(self) -> FloatArray:
        """Return the most probable parameters, first of some groups, then of all."""
        place = self.start()
        few = self.read
        searched_on = max(SEARCH.searched_on // few.n_within, SEARCH.fewest_effects)
        if few.n_effects > searched_on:
            rows = self.rng.choice(few.n_effects, searched_on, replace=False)
            few = _scaled(few, rows)
        quadratures = [GroupQuadrature(few)]
        if few is not self.read:
            quadratures.append(self.quadrature)
        for quadrature in quadratures:
            for _ in range(2):  # grids follow the place that was found
                quadrature.locate(self.common(place))
                place = _lowest(self._negative(quadrature), place)
        self.quadrature.locate(self.common(place))
        return place

    def draws(self) -> HyperDraws:
        """Return draws by adaptive importance sampling: proposals are t about the mode,
        then about the weighted draws so far (Cornuet et al. 2012).
        """
        centre = self.mode()
        covariance = _covariance(
            lambda at: self.log_density(self.quadrature, at), centre
        )
        places = np.empty((0, len(centre)))
        logs = np.empty(0)
        proposals = list[tuple[FloatArray, FloatArray]]()
        weights = np.empty(0)
        for number in range(1, SEARCH.most_rounds + 1):
            root = np.linalg.cholesky(covariance)
            proposals.append((centre, root))
            new = _t_draws(centre, root, SEARCH.draws_a_round, self.rng)
            added = [self.log_density(self.quadrature, place) for place in new]
            places = np.concatenate([places, new])
            logs = np.concatenate([logs, added])
            proposed = [_log_t(places, *proposal) for proposal in proposals]
            log_weights = logs - logsumexp(proposed, axis=0)
            weights = np.exp(log_weights - logsumexp(log_weights))
            centre, covariance = _adapted(places, weights, covariance)
            drawn = HyperDraws(places, weights, self.n_own)
            if number >= SEARCH.rounds and drawn.effective >= SEARCH.enough:
                break
        return drawn


def _scaled(noisy: NoisyGroups, rows: np.ndarray) -> NoisyGroups:
    """Return the groups of some effects; the sum of squares is that of all groups,
    scaled to them, with the variance of what a random part has.
    """
    some = noisy.some(rows)
    if noisy.squares is None:
        return some
    share = len(rows) / noisy.n_effects
    squares = noisy.squares * share
    spread = noisy.squares / noisy.n_effects
    # sizes of groups differ about as much as an exponential law has it
    sampling = len(rows) * (1 - share) * spread**2
    variance = sampling + share**2 * noisy.squares_variance
    return replace(some, squares=squares, squares_variance=variance)


def _lowest(function: Callable[[FloatArray], float], start: FloatArray) -> FloatArray:
    found = minimize(
        function,
        start,
        method="L-BFGS-B",
        options={"maxiter": 30, "eps": 1e-4, "ftol": 1e-7},
    )
    if found.success:
        return np.asarray(found.x, np.float64)
    # differences were too rough for a gradient
    simplex = minimize(
        function,
        found.x,
        method="Nelder-Mead",
        options={"maxfev": 150, "xatol": 1e-3, "fatol": 1e-2},
    )
    return np.asarray(simplex.x, np.float64)


def _covariance(
    function: Callable[[FloatArray], float], mode: FloatArray
) -> FloatArray:
    """Return the inverse of the negative second derivatives at a mode, by differences;
    directions in which the density hardly falls are given a deviation of 1.
    """
    n = len(mode)
    steps = np.full(n, SEARCH.difference)
    at_mode = function(mode)
    for axis in range(n):
        # as far as the log density falls by about a half
        step = np.zeros(n)
        for _ in range(6):
            step[axis] = steps[axis]
            fall = at_mode - (function(mode + step) + function(mode - step)) / 2
            if 0.1 < fall < 2:
                break
            steps[axis] *= np.clip(np.sqrt(0.5 / max(fall, 1e-3)), 0.05, 4)
            steps[axis] = np.clip(steps[axis], 1e-5, 2.0)
    hessian = np.empty((n, n))
    for row in range(n):
        for column in range(row + 1):
            one = np.zeros(n)
            one[row] = steps[row]
            other = np.zeros(n)
            other[column] = steps[column]
            alike = function(mode + one + other) + function(mode - one - other)
            opposed = function(mode + one - other) + function(mode - one + other)
            value = (opposed - alike) / (4 * steps[row] * steps[column])
            hessian[row, column] = value
            hessian[column, row] = value
    values, vectors = np.linalg.eigh(hessian)
    return (vectors / np.maximum(values, 1.0)) @ vectors.T


def _adapted(
    places: FloatArray, weights: FloatArray, before: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and covariance of weighted draws, drawn towards the ones before as
    far as few draws count.
    """
    centre = weights @ places
    off = places - centre
    covariance = (off * weights[:, None]).T @ off
    effective = 1 / (weights**2).sum()
    n = places.shape[1]
    trust = effective / (effective + 4 * n)
    mixed = trust * covariance + (1 - trust) * before
    return centre, mixed + 1e-12 * np.eye(n)


def _t_draws(
    centre: FloatArray, root: FloatArray, n: int, rng: np.random.Generator
) -> FloatArray:
    normal = rng.standard_normal((n, len(centre)))
    chi = rng.chisquare(SEARCH.degrees, (n, 1)) / SEARCH.degrees
    return centre + SEARCH.inflated * (normal / np.sqrt(chi)) @ root.T


def _log_t(places: FloatArray, centre: FloatArray, root: FloatArray) -> FloatArray:
    n = len(centre)
    nu = SEARCH.degrees
    scaled = SEARCH.inflated * root
    whitened = np.linalg.solve(scaled, (places - centre).T)
    constant = gammaln((nu + n) / 2) - gammaln(nu / 2)
    constant -= n / 2 * np.log(nu * np.pi)
    constant -= np.log(np.abs(np.diag(scaled))).sum()
    distance = (whitened**2).sum(axis=0)
    return np.asarray(constant - (nu + n) / 2 * np.log1p(distance / nu))
