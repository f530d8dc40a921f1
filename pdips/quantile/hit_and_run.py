"""Hit-and-run on the K-norm gradient density of quantile regression, with exact draws on each line (Smith 1984).

The density of theta in a public box, and optionally between public lines, is proportional to exp(-scale * norm(G)). On
a line through theta each record changes sides at most once, so the exponent is a step function of at most n + 1 pieces:
sorted and added up, they give an exact draw on the line. How far a finite number of moves is from a draw of the
density, nothing here bounds: no mechanism uses it, only the step of ``pymc_step.py``.
"""

from collections import namedtuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.quantile.gradient import DENSITY_NORMS, KNormGradient, finite_vector

L1, L2, LINF, HULL = range(4)  # What compiled code calls the norms of ``DENSITY_NORMS``, in their order

WITHOUT_PIVOT = 1 / 3  # How often a direction that changes a slope does not turn the plane about a point
SHAPED = 0.75  # How often a direction has the covariance that was learnt
BINS = 1024
NARROW_FROM = 20_000  # Records from which far ends of a line are left out
NEGLIGIBLE = 60.0  # Nats by which the far ends of a line are below where the chain is, for them to be left out
DIGIT_BITS = 12
DIGITS_FROM = 128  # Up to so many numbers insertion is as quick

DensityArrays = namedtuple("DensityArrays", "x y tau scale norm spread")
"""Records, the quantile, nats a unit of norm, which norm, and the hull's 2 max(tau, 1 - tau)."""

Region = namedtuple("Region", "lower upper lines signs low high shape centre precision")
"""Where the parameters may be: a box, and above (sign 1) or below (sign -1) lines on a box of covariates.

The columns of ``shape`` are how directions are spread that suit the density; none before warming up. ``centre`` and
``precision`` are those of a normal base measure; none of an even one.
"""

LineWorkspace = namedtuple(
    "LineWorkspace", "times flips spare_times spare_flips counts bins ends norms masses gradient direction"
)
"""Memory that every move uses again."""


class HitAndRun:
    """Hit-and-run on a K-norm gradient density in a public box with sides of shape (p,) or (), compiled.

    Half of the moves change one parameter, the others all; most that change a slope turn the plane about a random point
    of the box of covariates. After warming up three in four directions have the covariance that was learnt. No
    direction depends on where the chain is, so a move leaves the density as it is (docs/proofs/kng.md, section 9).
    Under a normal ``base`` (means and standard deviations) a move is accepted with the ratio of base measures.
    """

    def __init__(
        self,
        density: KNormGradient,
        lower: ArrayLike,
        upper: ArrayLike,
        base: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> None:
        self.lower, self.upper = (
            finite_vector(side, density.p, name) for side, name in ((lower, "lower"), (upper, "upper"))
        )
        if not np.all(self.lower < self.upper):
            raise InputError("lower must be below upper for every parameter; give the box a width")
        lines, signs = density.lines
        settings = float(density.tau), float(density.scale), DENSITY_NORMS.index(density.norm), float(density.width)
        self._density = DensityArrays(density.x, density.y, *settings)
        low, high = (np.asarray(side, dtype=np.float64) for side in density.covariates)
        even = base is None
        centre, sd = (finite_vector(side, 0 if even else density.p, "the base measure") for side in base or (0, 1))
        self._region = Region(self.lower, self.upper, lines, signs, low, high, np.empty((0, density.p)), centre, sd**-2)
        n, p = density.x.shape
        flips, spare_flips = np.empty((2, n + 1), np.int64)
        times, spare_times, ends, norms, masses = np.empty((5, n + 2))
        sides = (times, flips, spare_times, spare_flips, np.empty(1 << DIGIT_BITS, np.int64), np.empty(BINS))
        self._work = LineWorkspace(*sides, ends, norms, masses, np.empty(p), np.empty(p))

    def check_start(self, start: ArrayLike) -> FloatArray:
        """Return where a chain starts, shape (p,), or refuse a start outside of the box or across a line."""
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
        beside: tuple[FloatArray, FloatArray] | None = None,
    ) -> FloatArray:
        """Return draws, shape (n_draws, p), each ``thin`` moves after the one before; theta isn't checked.

        ``smooth`` takes the l2 norm at the same scale, for warming up only; ``shape`` has directions that suit, by
        :func:`pdips.quantile.pymc_step.learn_directions`; ``beside`` are further lines that hold for these draws, with
        their signs.
        """
        draws = np.empty((n_draws, len(self.lower)))
        density = self._density._replace(norm=L2) if smooth else self._density
        region = self._region if shape is None else self._region._replace(shape=shape)
        if beside is not None:
            lines, signs = np.vstack([region.lines, beside[0]]), np.concatenate([region.signs, beside[1]])
            region = region._replace(lines=lines, signs=signs)
        walk(theta.copy(), density, region, self._work, thin, rng, draws)
        return draws

    def norm_at(self, theta: FloatArray) -> float:
        """Return the norm of the gradient at theta."""
        return float(norm_at(theta, self._density))


# compiled


@njit(cache=True, error_model="numpy")
def norm_of(gradient, norm, spread):  # type: ignore[no-untyped-def]
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
def least_height(theta, direction, k, region):  # type: ignore[no-untyped-def]
    """Return how far theta keeps line k where they are nearest in the box of covariates, and its rate on the way."""
    sign, line = region.signs[k], region.lines[k]
    height, rate = sign * (theta[0] - line[0]), sign * direction[0]
    for j in range(1, len(theta)):
        slope = sign * (theta[j] - line[j])
        end = region.low[j - 1] if slope > 0.0 else region.high[j - 1]
        height += slope * end
        rate += sign * direction[j] * end
    return height, rate


@njit(cache=True, error_model="numpy")
def keeps_lines(theta, region):  # type: ignore[no-untyped-def]
    """Return whether no line is crossed anywhere on the box of covariates."""
    kept = True
    for k in range(len(region.signs)):
        kept &= least_height(theta, theta, k, region)[0] >= 0.0
    return kept


@njit(cache=True, error_model="numpy")
def reach(theta, direction, end, region):  # type: ignore[no-untyped-def]
    """Return the t furthest from 0 on the way to ``end`` for which theta + t * direction crosses no line.

    The least height is concave and piecewise linear in t, so Newton's method from the end stops at its root.
    """
    for k in range(len(region.signs)):
        while end != 0.0:
            height, rate = least_height(theta + end * direction, direction, k, region)
            nearer = end - height / rate
            if height >= 0.0 or not abs(nearer) < abs(end):
                break
            end = nearer if nearer * end > 0.0 else 0.0
    return end


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
    return reach(theta, direction, min(0.0, start), region), reach(theta, direction, max(0.0, stop), region)


@njit(cache=True, error_model="numpy")
def sort(m, start, stop, work):  # type: ignore[no-untyped-def]
    """Sort the first m times with their flips: by two digits, and then by insertion for what is left.

    Where records lie so close together that insertion would take long, a comparison sort does it.
    """
    times, flips, counts = work.times, work.flips, work.counts
    spare_times, spare_flips = work.spare_times, work.spare_flips
    shifts, most, last = 0, 40 * m, len(counts) - 1
    factor = (1 << (2 * DIGIT_BITS)) / (stop - start) * (1 - 1e-12)
    for shift in range(0, 2 * DIGIT_BITS if m > DIGITS_FROM else 0, DIGIT_BITS):
        counts[:] = 0
        for i in range(m):
            counts[(np.int64((times[i] - start) * factor) >> shift) & last] += 1
        total = 0
        for place in range(len(counts)):
            total, counts[place] = total + counts[place], total
        for i in range(m):
            digit = (np.int64((times[i] - start) * factor) >> shift) & last
            spare_times[counts[digit]], spare_flips[counts[digit]] = times[i], flips[i]
            counts[digit] += 1
        times, flips, spare_times, spare_flips = spare_times, spare_flips, times, flips
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
def narrow(m, start, stop, direction, most, density, work):  # type: ignore[no-untyped-def]
    """Leave out the two ends of a line where the norm is at least ``most``; the gradient moves to the new start.

    Along the line gradient'direction never falls (a record's change of sides raises it by |x'direction|), and it is at
    most the dual norm of the direction times the norm. Returns how many records change sides in between, and the ends.
    """
    bins, last, sizes = work.bins, len(work.bins), np.abs(direction)
    if density.norm == L1:
        bound = most * sizes.max()
    elif density.norm == L2:
        bound = most * np.sqrt((direction * direction).sum())
    else:
        bound = most * (sizes[0] + sizes[1:].sum() * (density.spread if density.norm == HULL else 1.0))
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
def walk(theta, density, region, work, thin, rng, draws):  # type: ignore[no-untyped-def]
    """Fill ``draws``, shape (draws, p), each ``thin`` moves after the one before; theta ends at the last.

    A move draws from the density on a random line through theta, and goes there, or stays if a normal base measure,
    with the probability by which it is lower there, says so.
    """
    near, direction, ends = norm_at(theta, density), work.direction, work.ends
    for step in range(len(draws) * thin):
        point_somewhere(region, direction, rng)
        start, stop = feasible(theta, direction, region)
        if stop > start:
            n_pieces = weighed_line(theta, direction, start, stop, near, density, work)
            masses = work.masses[:n_pieces]
            k = min(np.searchsorted(masses, rng.random() * masses[-1], side="right"), n_pieces - 1)
            time = ends[k] + rng.random() * (ends[k + 1] - ends[k])
            there = np.minimum(np.maximum(theta + time * direction, region.lower), region.upper)
            gain = 0.0
            for j in range(len(region.precision)):
                apart, before = there[j] - region.centre[j], theta[j] - region.centre[j]
                gain += region.precision[j] * (before * before - apart * apart) / 2
            accepted = gain >= 0.0 or rng.random() < np.exp(gain)
            if accepted and keeps_lines(there, region):  # but for rounding, at an end of the interval
                theta[:] = there
                near = work.norms[k]
        draws[step // thin] = theta
