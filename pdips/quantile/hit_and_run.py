"""Hit-and-run on the K-norm gradient density of quantile regression, with exact draws on each line.

For parameters theta in a public box, and optionally between public lines, the density f(theta) is proportional to
exp(-scale * norm(G(theta))), G the gradient of a quantile regression (:mod:`pdips.quantile.gradient`). On a line
through theta a record changes sides at most once, so the exponent is a step function of at most n + 1 pieces: sorted
and added up, they give an exact draw on the line. There is no step size. A finite number of moves is not a draw from f,
and nothing here bounds how far it is from one: no mechanism uses it, only the PyMC step of ``pymc_step.py``
(Smith 1984, Operations Research 32(6)).
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.quantile.gradient import DENSITY_NORMS, KNormGradient, finite_vector

L1, L2, LINF, HULL = range(4)
"""What compiled code calls the norms of ``DENSITY_NORMS``, in their order."""

WITHOUT_PIVOT = 1 / 3
"""How often a direction that changes a slope does not turn the plane about a point."""

SHAPED = 0.75
"""How often a direction has the covariance that was learnt."""

BINS = 1024
NARROW_FROM = 20_000
"""Records from which far ends of a line are left out."""

NEGLIGIBLE = 60.0
"""Nats by which the far ends of a line are below where the chain is, for them to be left out."""

DIGIT_BITS = 12
DIGITS_FROM = 128
"""Up to so many numbers insertion is as quick."""


class HitAndRun:
    """Hit-and-run on a K-norm gradient density in a box, compiled (seconds, once a machine).

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
    line is drawn from exactly, so a move leaves the density as it is (``docs/proofs/kng.md``, section 9).
    O(n log n + n p) a move.
    """

    def __init__(self, density: KNormGradient, lower: ArrayLike, upper: ArrayLike) -> None:
        self.lower, self.upper = (
            finite_vector(side, density.p, name) for side, name in ((lower, "lower"), (upper, "upper"))
        )
        if not np.all(self.lower < self.upper):
            raise InputError("lower must be below upper for every parameter; give the box a width")
        lines, signs = density.lines
        settings = float(density.tau), float(density.scale), DENSITY_NORMS.index(density.norm), float(density.width)
        self._density = DensityArrays(density.x, density.y, *settings)
        self._smooth = self._density._replace(norm=L2)
        low, high = (np.asarray(side, dtype=np.float64) for side in density.covariates)
        self._region = Region(self.lower, self.upper, lines, signs, low, high, np.empty((0, density.p)))
        self._work = LineWorkspace.of(*density.x.shape)

    def check_start(self, start: ArrayLike) -> FloatArray:
        """Return where a chain starts, shape (p,), or say that it can't.

        Raises
        ------
        InputError
            If the start isn't in the box or crosses a line.
        """
        theta = finite_vector(start, len(self.lower), "start")
        inside = np.all(self.lower <= theta) and np.all(theta <= self.upper)
        if not (inside and keeps_lines(theta, self._region)):
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
            Directions that suit, by :func:`pdips.quantile.pymc_step.learn_directions`.

        Returns
        -------
        ndarray, shape (n_draws, p)
        """
        draws = np.empty((n_draws, len(self.lower)))
        density = self._smooth if smooth else self._density
        region = self._region if shape is None else self._region._replace(shape=shape)
        walk(theta.copy(), density, region, self._work, thin, rng, draws)
        return draws

    def norm_at(self, theta: FloatArray) -> float:
        """Return the norm of the gradient at theta."""
        return float(norm_at(theta, self._density))


# compiled


class DensityArrays(NamedTuple):
    """Records, the quantile, nats a unit of norm, which norm, and the hull's 2 max(tau, 1 - tau)."""

    x: Any
    y: Any
    tau: float
    scale: float
    norm: int
    spread: float


class Region(NamedTuple):
    """Where the parameters may be: a box, and above (sign 1) or below (sign -1) lines on a box of covariates.

    The columns of ``shape`` are how directions are spread that suit the density; none before warming up.
    """

    lower: Any
    upper: Any
    lines: Any
    signs: Any
    low: Any
    high: Any
    shape: Any


class LineWorkspace(NamedTuple):
    """Memory that every move uses again."""

    times: Any
    flips: Any
    spare_times: Any
    spare_flips: Any
    counts: Any
    bins: Any
    ends: Any
    norms: Any
    masses: Any
    gradient: Any
    direction: Any

    @classmethod
    def of(cls, n: int, p: int) -> "LineWorkspace":
        """Return memory for n records and p parameters."""
        flips, spare_flips = np.empty((2, n + 1), np.int64)
        times, spare_times, ends, norms, masses = np.empty((5, n + 2))
        counts, bins = np.empty(1 << DIGIT_BITS, np.int64), np.empty(BINS)
        sides = (times, flips, spare_times, spare_flips, counts, bins)
        return cls(*sides, ends, norms, masses, np.empty(p), np.empty(p))


@njit(cache=True, error_model="numpy")
def norm_of(gradient, norm, spread):  # type: ignore[no-untyped-def]
    """Return the norm of a gradient."""
    found = 0.0
    if norm == L1:
        for value in gradient:
            found += abs(value)
        return found
    if norm == L2:
        for value in gradient:
            found += value * value
        return np.sqrt(found)
    if norm == LINF:
        for value in gradient:
            found = max(found, abs(value))
        return found
    first = abs(gradient[0])
    for value in gradient[1:]:
        found = max(found, abs(value) - first)
    return first + found / spread


@njit(cache=True, error_model="numpy")
def norm_at(theta, density):  # type: ignore[no-untyped-def]
    """Return the norm of the gradient at theta."""
    p = len(theta)
    gradient = np.zeros(p)
    for i in range(len(density.y)):
        residual = density.y[i]
        for j in range(p):
            residual -= density.x[i, j] * theta[j]
        part = (1.0 if residual <= 0.0 else 0.0) - density.tau
        for j in range(p):
            gradient[j] += density.x[i, j] * part
    return norm_of(gradient, density.norm, density.spread)


@njit(cache=True, error_model="numpy")
def least_height(theta, line, sign, low, high):  # type: ignore[no-untyped-def]
    """Return the least of sign * (theta - line) over the box of covariates: the closed form, separable in them."""
    height = sign * (theta[0] - line[0])
    for j in range(1, len(theta)):
        slope = sign * (theta[j] - line[j])
        height += min(slope * low[j - 1], slope * high[j - 1])
    return height


@njit(cache=True, error_model="numpy")
def keeps_lines(theta, region):  # type: ignore[no-untyped-def]
    """Return whether no line is crossed anywhere on the box of covariates."""
    for k in range(len(region.signs)):
        if not least_height(theta, region.lines[k], region.signs[k], region.low, region.high) >= 0.0:
            return False
    return True


@njit(cache=True, error_model="numpy")
def reach(theta, direction, way, region, furthest):  # type: ignore[no-untyped-def]
    """Return the largest t up to ``furthest`` such that theta + way * t * direction crosses no line.

    The least height over the covariates is concave and piecewise linear in t, with a kink where a slope's difference
    changes its sign; so the feasible t form an interval, found by passing over the kinks in order.
    """
    for k in range(len(region.signs)):
        sign, line = region.signs[k], region.lines[k]
        height = max(0.0, least_height(theta, line, sign, region.low, region.high))
        at = 0.0
        while at < furthest:
            rate, following = sign * way * direction[0], furthest
            for j in range(1, len(theta)):
                pace = sign * way * direction[j]
                if pace == 0.0:
                    continue
                kink = -sign * (theta[j] - line[j]) / pace
                positive = (pace > 0.0) == (kink <= at)
                rate += pace * (region.low[j - 1] if positive else region.high[j - 1])
                if at < kink < following:
                    following = kink
            if rate < 0.0 and height + rate * (following - at) < 0.0:
                furthest = at - height / rate
                break
            height += rate * (following - at)
            at = following
    return furthest


@njit(cache=True, error_model="numpy")
def feasible(theta, direction, region):  # type: ignore[no-untyped-def]
    """Return the interval of t, which holds 0, for which theta + t * direction is in the region."""
    start, stop = -np.inf, np.inf
    for j in range(len(theta)):
        if direction[j] == 0.0:
            continue
        one = (region.lower[j] - theta[j]) / direction[j]
        other = (region.upper[j] - theta[j]) / direction[j]
        start, stop = max(start, min(one, other)), min(stop, max(one, other))
    stop = reach(theta, direction, 1.0, region, max(0.0, stop))
    return -reach(theta, direction, -1.0, region, max(0.0, -start)), stop


@njit(cache=True, error_model="numpy")
def by_digit(times, flips, m, shift, start, factor, to_times, to_flips, counts):  # type: ignore[no-untyped-def]
    """Sort by one digit of how far a time is from the start, in whole parts of the interval, keeping the order else."""
    counts[:] = 0
    last = len(counts) - 1
    for i in range(m):
        counts[(np.int64((times[i] - start) * factor) >> shift) & last] += 1
    total = 0
    for digit in range(len(counts)):
        total, counts[digit] = total + counts[digit], total
    for i in range(m):
        digit = (np.int64((times[i] - start) * factor) >> shift) & last
        to_times[counts[digit]], to_flips[counts[digit]] = times[i], flips[i]
        counts[digit] += 1


@njit(cache=True, error_model="numpy")
def sort(m, start, stop, work):  # type: ignore[no-untyped-def]
    """Sort the first m times with their flips: by two digits, and then by insertion for what is left.

    Where records lie so close together that insertion would take long, a comparison sort does it.
    """
    times, flips = work.times, work.flips
    shifts, most = 0, 40 * m
    if m > DIGITS_FROM:
        factor = (1 << (2 * DIGIT_BITS)) / (stop - start) * (1 - 1e-12)
        by_digit(times, flips, m, 0, start, factor, work.spare_times, work.spare_flips, work.counts)
        by_digit(work.spare_times, work.spare_flips, m, DIGIT_BITS, start, factor, times, flips, work.counts)
    for i in range(1, m):
        time, flip, k = times[i], flips[i], i
        while k > 0 and times[k - 1] > time and shifts <= most:
            times[k], flips[k] = times[k - 1], flips[k - 1]
            k -= 1
            shifts += 1
        times[k], flips[k] = time, flip
        if shifts > most:
            order = np.argsort(times[:m])
            times[:m], flips[:m] = times[order], flips[order]
            return


@njit(cache=True, error_model="numpy")
def first_piece(theta, direction, start, stop, density, work):  # type: ignore[no-untyped-def]
    """Write when records change sides between ``start`` and ``stop``, and the gradient just after ``start``.

    A record counts where y <= x'theta: from its time on if x'direction > 0, until its time if x'direction < 0, and
    always or never if it is 0. Returns how many change sides. No branches on records: they can't be foreseen.
    """
    x, y, gradient = density.x, density.y, work.gradient
    p, m = len(theta), 0
    gradient[:] = 0.0
    for i in range(len(y)):
        residual, speed = y[i], 0.0
        for j in range(p):
            residual -= x[i, j] * theta[j]
            speed += x[i, j] * direction[j]
        time = residual / speed
        still, up = speed == 0.0, speed > 0.0
        counts = (still & (residual <= 0.0)) | (~still & ((time <= start) == up))
        work.times[m], work.flips[m] = time, i if up else ~i
        m += ~still & (time > start) & (time < stop)
        part = np.float64(counts) - density.tau
        for j in range(p):
            gradient[j] += x[i, j] * part
    return m


@njit(cache=True, error_model="numpy")
def dual_norm(direction, norm, spread):  # type: ignore[no-untyped-def]
    """Return a bound of |gradient'direction| for gradients of norm 1."""
    if norm == L1:
        return np.abs(direction).max()
    if norm == L2:
        return np.sqrt((direction * direction).sum())
    first = abs(direction[0])
    return first + (np.abs(direction).sum() - first) * (spread if norm == HULL else 1.0)


@njit(cache=True, error_model="numpy")
def narrow(m, start, stop, direction, most, density, work):  # type: ignore[no-untyped-def]
    """Leave out the two ends of a line where the norm is at least ``most``; the gradient moves to the new start.

    Along the line gradient'direction never falls (a record's change of sides raises it by |x'direction|), and it bounds
    the norm from below. Ends are whole bins. Returns how many records change sides in between, from where, to where.
    """
    bins, last, bound = work.bins, len(work.bins), most * dual_norm(direction, density.norm, density.spread)
    factor = last / (stop - start) * (1 - 1e-12)
    bins[:] = 0.0
    for i in range(m):
        speed, which = 0.0, max(work.flips[i], ~work.flips[i])
        for j in range(len(direction)):
            speed += density.x[which, j] * direction[j]
        bins[np.int64((work.times[i] - start) * factor)] += abs(speed)
    slope, first, end = (work.gradient * direction).sum(), 0, last
    for k in range(last):
        if slope >= bound:
            end = k
            break
        slope += bins[k]
        if slope <= -bound:
            first = k + 1
    if end <= first or (first == 0 and end == last):
        return m, start, stop
    kept = 0
    for i in range(m):
        place = np.int64((work.times[i] - start) * factor)
        if place < first:
            way = 1.0 if work.flips[i] >= 0 else -1.0
            which = max(work.flips[i], ~work.flips[i])
            for j in range(len(direction)):
                work.gradient[j] += way * density.x[which, j]
        work.times[kept], work.flips[kept] = work.times[i], work.flips[i]
        kept += 1 if first <= place < end else 0
    return kept, max(start, start + first / factor), min(stop, start + end / factor)


@njit(cache=True, error_model="numpy")
def pieces(theta, direction, start, stop, most, density, work):  # type: ignore[no-untyped-def]
    """Write where pieces of constant exponent end (``ends``, the first is their start) and the norm on each.

    Returns how many pieces there are; some may have no length. Ends of the line with a norm of at least ``most`` may be
    left out.
    """
    m = first_piece(theta, direction, start, stop, density, work)
    if most < np.inf:
        m, start, stop = narrow(m, start, stop, direction, most, density, work)
    sort(m, start, stop, work)
    gradient, x = work.gradient, density.x
    work.ends[0] = start
    for k in range(m):
        work.norms[k] = norm_of(gradient, density.norm, density.spread)
        work.ends[k + 1] = work.times[k]
        i, way = work.flips[k], 1.0
        if i < 0:
            i, way = ~i, -1.0
        for j in range(len(gradient)):
            gradient[j] += way * x[i, j]
    work.norms[m] = norm_of(gradient, density.norm, density.spread)
    work.ends[m + 1] = stop
    return m + 1


@njit(cache=True, error_model="numpy")
def weigh(n_pieces, scale, work):  # type: ignore[no-untyped-def]
    """Write the cumulative mass of pieces, length * exp(-scale * (norm - least)), and return the least norm."""
    ends, norms, masses = work.ends, work.norms, work.masses
    least, total = np.inf, 0.0
    for k in range(n_pieces):
        if ends[k + 1] > ends[k] and norms[k] < least:
            least = norms[k]
    for k in range(n_pieces):
        total += max(0.0, ends[k + 1] - ends[k]) * np.exp(-scale * (norms[k] - least))
        masses[k] = total
    return least


@njit(cache=True, error_model="numpy")
def weighed_line(theta, direction, start, stop, near, density, work):  # type: ignore[no-untyped-def]
    """Write the pieces of a line and their masses; return how many there are.

    ``near`` is the norm at theta, from which far ends of the line are judged. They are left out only if all that could
    be there is less than what rounding takes from the rest; else the line is worked out whole.
    """
    most = near + NEGLIGIBLE / density.scale if len(density.y) >= NARROW_FROM else np.inf
    n_pieces = pieces(theta, direction, start, stop, most, density, work)
    least = weigh(n_pieces, density.scale, work)
    left_out = (stop - start) * np.exp(-density.scale * (most - least))
    if most < np.inf and not left_out <= 1e-17 * work.masses[n_pieces - 1]:
        n_pieces = pieces(theta, direction, start, stop, np.inf, density, work)
        weigh(n_pieces, density.scale, work)
    return n_pieces


@njit(cache=True, error_model="numpy")
def point_somewhere(region, direction, rng):  # type: ignore[no-untyped-def]
    """Write a direction, from public facts alone: half of the time one coordinate, else all, scaled by the box.

    Of those that change a slope, two in three then turn the plane about a point of the box of covariates, each of its
    coordinates at the low end, at the high end or uniform.
    """
    p = len(direction)
    direction[:] = 0.0
    if len(region.shape) and rng.random() < SHAPED:
        for k in range(p):
            size = rng.standard_normal()
            for j in range(p):
                direction[j] += region.shape[j, k] * size
        return
    if p == 1 or rng.random() < 0.5:
        direction[min(int(rng.random() * p), p - 1)] = 1.0
    else:
        for j in range(p):
            direction[j] = rng.standard_normal() * (region.upper[j] - region.lower[j])
    if direction[0] == 1.0 or rng.random() < WITHOUT_PIVOT:
        return
    direction[0] = 0.0
    for j in range(1, p):
        low, high, which = region.low[j - 1], region.high[j - 1], rng.random() * 3
        pivot = low if which < 1.0 else high if which < 2.0 else low + (which - 2.0) * (high - low)
        direction[0] -= pivot * direction[j]


@njit(cache=True, error_model="numpy")
def move(theta, near, density, region, work, rng):  # type: ignore[no-untyped-def]
    """Draw from the density on a random line through theta, and go there; return the norm there, ``near`` at first."""
    direction, ends = work.direction, work.ends
    point_somewhere(region, direction, rng)
    start, stop = feasible(theta, direction, region)
    if not stop > start:
        return near
    n_pieces = weighed_line(theta, direction, start, stop, near, density, work)
    masses = work.masses[:n_pieces]
    k = min(np.searchsorted(masses, rng.random() * masses[-1], side="right"), n_pieces - 1)
    time = ends[k] + rng.random() * (ends[k + 1] - ends[k])
    there = np.empty_like(theta)
    for j in range(len(theta)):
        there[j] = min(max(theta[j] + time * direction[j], region.lower[j]), region.upper[j])
    if not keeps_lines(there, region):  # by rounding only, at an end of the interval
        return near
    theta[:] = there
    return work.norms[k]


@njit(cache=True, error_model="numpy")
def walk(theta, density, region, work, thin, rng, draws):  # type: ignore[no-untyped-def]
    """Fill ``draws``, shape (draws, p), each ``thin`` moves after the one before; theta ends at the last."""
    near = norm_at(theta, density)
    for row in range(len(draws)):
        for _ in range(thin):
            near = move(theta, near, density, region, work, rng)
        draws[row] = theta
