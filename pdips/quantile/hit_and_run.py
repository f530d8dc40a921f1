"""Draws from the K-norm gradient density of quantile regression by hit-and-run with exact draws on each line.

For parameters theta in a public box, and optionally between public lines,

    f(theta) is proportional to exp(-scale * ||G(theta)||),   G(theta) = sum_i x_i (1{y_i <= x_i'theta} - tau).

On a line through theta a record changes sides at most once, so the exponent is a step function of at most n + 1 pieces:
sorted and added up, they give an exact draw on the line. There is no step size. A finite number of moves is not a draw
from f, and nothing here bounds how far it is from one: no mechanism uses it, only the PyMC step of ``pymc_step.py``
(Smith 1984, Operations Research 32(6)).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.privacy.loss import choice

if TYPE_CHECKING:
    from pdips.quantile.hit_and_run_kernels import Density, Region, Work

Norm = Literal["l1", "l2", "linf", "hull"]

NORMS = ("l1", "l2", "linf", "hull")
LEAST_TO_LEARN = 20
"""Draws for each parameter."""


@dataclass(frozen=True, eq=False)
class KNormGradient:
    """The log density of the K-norm gradient mechanism for quantile regression, up to a constant.

    Parameters
    ----------
    x : array_like, shape (records, p)
        Covariates, the first column all ones. Confidential.
    y : array_like, shape (records,)
        Outcomes. Confidential.
    tau : float
        The quantile, inside of (0, 1).
    scale : float
        Nats for each unit of the norm, epsilon / (2 * sensitivity) of the caller's norm and neighbours; not negative.
    norm : {"hull", "linf", "l1", "l2"}
        "hull" is ``|g_0| + max_j max(|g_j| - |g_0|, 0) / (2 max(tau, 1 - tau))``, the gauge of the convex hull of what
        a replaced record can change, for covariates in [-1, 1]; it is "linf" at the median.
    floors, ceilings : array_like, shape (lines, p) or (p,), optional
        Coefficients of public lines that x'theta may touch but not cross anywhere on the box of covariates.
    covariates : pair of array_like, shape (p - 1,) or ()
        The public box of covariates without the intercept, for ``floors`` and ``ceilings``.

    Raises
    ------
    InputError
        If shapes, quantile, scale or norm are not what they should be. No message has a record's value in it.

    Notes
    -----
    A line stays above another on a box of covariates if and only if ``d_0 + sum_j min(d_j l_j, d_j u_j) >= 0`` for the
    difference d of their coefficients: it is affine in each covariate. Records don't come into it.
    """

    x: FloatArray = field(repr=False)
    y: FloatArray = field(repr=False)
    tau: float
    scale: float
    norm: Norm = "hull"
    floors: ArrayLike | None = None
    ceilings: ArrayLike | None = None
    covariates: tuple[ArrayLike, ArrayLike] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        """Check everything once and keep arrays."""
        x, y = (np.array(part, dtype=np.float64, order="C") for part in (self.x, self.y))
        _check_records(x, y)
        choice(self.norm, NORMS, "norm")
        if not 0 < self.tau < 1:
            raise InputError(f"tau must lie inside of (0, 1), got {self.tau}")
        if not 0 <= self.scale < np.inf:
            raise InputError(f"scale must be a finite number of nats, not negative, got {self.scale}")
        p = x.shape[1]
        low, high = (_vector(side, p - 1, "covariates") for side in self.covariates)
        if not np.all(low <= high):
            raise InputError("covariates must be a pair (lower, upper) with lower <= upper")
        kept = {"x": x, "y": y, "covariates": (low, high)}
        kept |= {name: _lines(getattr(self, name), p, name) for name in ("floors", "ceilings")}
        for name, value in kept.items():
            object.__setattr__(self, name, value)

    @property
    def p(self) -> int:
        """Number of parameters, the intercept among them."""
        return int(self.x.shape[1])

    def gradient(self, theta: ArrayLike) -> FloatArray:
        """Return G(theta), shape (p,)."""
        counts = self.y <= self.x @ np.asarray(theta, dtype=np.float64)
        found: FloatArray = self.x.T @ (counts - self.tau)
        return found

    def norm_of_gradient(self, theta: ArrayLike) -> float:
        """Return ||G(theta)||."""
        return norm_of(self.gradient(theta), self.norm, self.tau)

    def heights(self, theta: ArrayLike) -> FloatArray:
        """Return by how much each floor and ceiling is kept at the worst of the box of covariates; shape (lines,)."""
        lines, signs = self.lines()
        differences = signs[:, None] * (np.asarray(theta, dtype=np.float64) - lines)
        low, high = (np.asarray(side, dtype=np.float64) for side in self.covariates)
        slopes = differences[:, 1:]
        found: FloatArray = differences[:, 0] + np.minimum(slopes * low, slopes * high).sum(axis=1)
        return found

    def log_density(self, theta: ArrayLike) -> float:
        """Return the log density up to a constant, nats; minus infinity across a line."""
        return -self.scale * self.norm_of_gradient(theta) if np.all(self.heights(theta) >= 0) else -np.inf

    def lines(self) -> tuple[FloatArray, FloatArray]:
        """Return floors and ceilings, shape (lines, p), and 1 for a floor, -1 for a ceiling."""
        floors, ceilings = np.asarray(self.floors), np.asarray(self.ceilings)
        return np.vstack([floors, ceilings]), np.repeat([1.0, -1.0], [len(floors), len(ceilings)])


class HitAndRun:
    """Hit-and-run on a :class:`KNormGradient` in a box, compiled (seconds, once a machine).

    Parameters
    ----------
    density : KNormGradient
        What to draw from.
    lower, upper : array_like, shape (p,) or ()
        The public box of the parameters; their base measure is uniform on it.

    Raises
    ------
    InputError
        If the box has no width somewhere.

    Notes
    -----
    Half of the moves change one parameter, the others all, by a normal direction with the box's widths as scales; most
    that change a slope turn the plane about a random point of the box of covariates, which suits intercepts and slopes
    that go together. After warming up three in four moves have a normal direction with the covariance of its draws
    instead: a fifth of the moves for the same effective draws. No direction depends on where the chain is, and each
    line is drawn from exactly, so a move leaves the density as it is. O(n log n + n p) a move.
    """

    def __init__(self, density: KNormGradient, lower: ArrayLike, upper: ArrayLike) -> None:
        from pdips.quantile import hit_and_run_kernels as kernels

        self.lower, self.upper = _vector(lower, density.p, "lower"), _vector(upper, density.p, "upper")
        if not np.all(self.lower < self.upper):
            raise InputError("lower must be below upper for every parameter; give the box a width")
        low, high = (np.asarray(side, dtype=np.float64) for side in density.covariates)
        lines, signs = density.lines()
        spread = 2 * max(density.tau, 1 - density.tau)
        code = getattr(kernels, density.norm.upper())
        self._density: Density = kernels.Density(
            density.x, density.y, float(density.tau), float(density.scale), code, spread
        )
        self._smooth = self._density._replace(norm=kernels.L2)
        self._region: Region = kernels.Region(self.lower, self.upper, lines, signs, low, high, np.empty((0, density.p)))
        self._work: Work = _memory(kernels, *density.x.shape)

    def check_start(self, start: ArrayLike) -> FloatArray:
        """Return where a chain starts, shape (p,), or say that it can't.

        Raises
        ------
        InputError
            If the start isn't in the box or crosses a line.
        """
        from pdips.quantile import hit_and_run_kernels as kernels

        theta = np.array(_vector(start, len(self.lower), "start"))
        if not (
            np.all(self.lower <= theta) and np.all(theta <= self.upper) and kernels.keeps_lines(theta, self._region)
        ):
            raise InputError("start must lie in the box and between floors and ceilings; choose it from public facts")
        return theta

    def draw(
        self,
        theta: FloatArray,
        n_draws: int,
        thin: int,
        rng: np.random.Generator,
        *,
        smooth: bool = False,
        shape: FloatArray | None = None,
    ) -> FloatArray:
        """Return draws, each ``thin`` moves after the one before.

        Parameters
        ----------
        theta : ndarray, shape (p,)
            Where to start; not checked.
        n_draws, thin : int
            Draws, and moves for each.
        rng : numpy.random.Generator
            Where the randomness comes from.
        smooth : bool
            Whether the norm is l2 at the same scale, whatever the density's is: for warming up only.
        shape : ndarray, shape (p, p) or (0, p), optional
            Directions that suit, by :func:`learn_directions`.

        Returns
        -------
        ndarray, shape (n_draws, p)
        """
        from pdips.quantile import hit_and_run_kernels as kernels

        draws = np.empty((n_draws, len(self.lower)))
        density = self._smooth if smooth else self._density
        region = self._region if shape is None else self._region._replace(shape=shape)
        kernels.walk(theta.copy(), density, region, self._work, thin, rng, draws)
        return draws

    def norm_at(self, theta: FloatArray) -> float:
        """Return ||G(theta)||."""
        from pdips.quantile import hit_and_run_kernels as kernels

        return float(kernels.norm_at(theta, self._density))

    def interval(self, theta: FloatArray, direction: FloatArray) -> tuple[float, float]:
        """Return the interval of t, which holds 0, with theta + t * direction in the box and between the lines."""
        from pdips.quantile import hit_and_run_kernels as kernels

        start, stop = kernels.feasible(theta, direction, self._region)
        return float(start), float(stop)

    def pieces(self, theta: FloatArray, direction: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the exponent along a line: ends of its pieces, shape (pieces + 1,), and the norm on each."""
        from pdips.quantile import hit_and_run_kernels as kernels

        start, stop = self.interval(theta, direction)
        n = kernels.pieces(theta, direction, start, stop, np.inf, self._density, self._work)
        return np.array(self._work.ends[: n + 1]), np.array(self._work.norms[:n])


def learn_directions(draws: FloatArray) -> FloatArray:
    """Return a root of the covariance of draws, shape (draws, p), to spread directions by.

    Only draws before those that are kept may be used: a chain whose directions depend on where it has been since then
    isn't one that leaves the density as it is. Too few draws, or draws that don't move, teach nothing: shape (0, p).
    """
    n, p = draws.shape
    if p == 1 or n < LEAST_TO_LEARN * p:
        return np.empty((0, p))
    values, vectors = np.linalg.eigh(np.cov(draws.T))
    if not values[-1] > 0:
        return np.empty((0, p))
    found: FloatArray = np.ascontiguousarray(vectors * np.sqrt(np.maximum(values, 0)))
    return found


def norm_of(gradient: ArrayLike, norm: Norm, tau: float) -> float:
    """Return a norm of a gradient, shape (p,), whose first element is the intercept's."""
    sizes = np.abs(np.asarray(gradient, dtype=np.float64))
    if norm == "hull":
        beyond = np.max(sizes[1:] - sizes[0], initial=0.0)
        return float(sizes[0] + beyond / (2 * max(tau, 1 - tau)))
    if norm == "l1":
        return float(sizes.sum())
    return float(sizes.max()) if norm == "linf" else float(np.sqrt((sizes**2).sum()))


def _check_records(x: FloatArray, y: FloatArray) -> None:
    if x.ndim != 2 or x.shape[1] < 1 or y.shape != x.shape[:1] or not len(y):
        raise InputError("x must have the shape (records, p) and y the shape (records,), with at least one record")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("x and y must be finite; leave records with missing values out")
    if not (x[:, 0] == 1).all():
        raise InputError("the first column of x must be the intercept's, all ones")


def _vector(values: ArrayLike, size: int, name: str) -> FloatArray:
    try:
        found = np.array(np.broadcast_to(np.asarray(values, dtype=np.float64), (size,)))
    except ValueError:
        raise InputError(f"{name} must be a number or have the shape ({size},)") from None
    if not np.isfinite(found).all():
        raise InputError(f"{name} must be finite")
    return found


def _lines(values: ArrayLike | None, p: int, name: str) -> FloatArray:
    rows: Sequence[Any] | ArrayLike = np.empty((0, p)) if values is None else values
    found = np.atleast_2d(np.array(rows, dtype=np.float64))
    if found.shape[1:] != (p,) or not np.isfinite(found).all():
        raise InputError(f"{name} must be finite and have the shape (lines, {p}): the coefficients of public lines")
    return found


def _memory(kernels: Any, n: int, p: int) -> "Work":
    flips, spare_flips = np.empty((2, n + 1), np.int64)
    times, spare_times, ends, norms, masses = np.empty((5, n + 2))
    counts, bins = np.empty(1 << kernels.DIGIT_BITS, np.int64), np.empty(kernels.BINS)
    sides = (times, flips, spare_times, spare_flips, counts, bins)
    made: Work = kernels.Work(*sides, ends, norms, masses, np.empty(p), np.empty(p))
    return made
