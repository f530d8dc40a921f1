"""Hit-and-run on the K-norm gradient density of quantile regression, with exact draws
on each line (Smith 1984).

The density of theta in a public box, and optionally between public lines, is
proportional to exp(-scale * norm(G)). On a line through theta each record changes sides
at most once, so the exponent is a step function of at most n + 1 pieces: sorted and
added up, they give an exact draw on the line. How far a finite number of moves is from
a draw of the density, nothing here bounds: no mechanism uses it, only the step of
``pymc_step.py``.
"""

from collections import namedtuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray
from pdips.compiled import compiled
from pdips.errors import InputError
from pdips.quantile.gradient import DENSITY_NORMS, KNormGradient, finite_vector

# What compiled code calls the norms of ``DENSITY_NORMS``, in their order
L1, L2, LINF, HULL = range(4)

# How often a direction that changes a slope does not turn the plane about a point
WITHOUT_PIVOT = 1 / 3
SHAPED = 0.75  # How often a direction has the covariance that was learnt
BINS = 1024
NARROW_FROM = 20_000  # Records from which far ends of a line are left out
# Nats by which the far ends of a line are below where the chain is, for them to be left
# out
NEGLIGIBLE = 60.0
# Of the mass of a line: what rounding takes from it
ROUNDING = 1e-17
DIGIT_BITS = 12
MOST_SHIFTS = 40  # A number, on average, by insertion
WITHIN = 1 - 1e-12  # Keeps a number's bin among those that there are
DIGITS_FROM = 128  # Up to so many numbers insertion is as quick

DensityArrays = namedtuple("DensityArrays", "x y tau scale norm spread")
"""Records, the quantile, nats a unit of norm, which norm, and the hull's 2 max(tau, 1 -
tau).
"""

Region = namedtuple("Region", "lower upper lines signs low high shape centre precision")
"""Where the parameters may be: a box, and above (sign 1) or below (sign -1) lines on a
box of covariates.

The columns of ``shape`` are how directions are spread that suit the density; none
before warming up. ``centre`` and ``precision`` are those of a normal base measure; none
of an even one.
"""

LineWorkspace = namedtuple(
    "LineWorkspace",
    "times flips spare_times spare_flips counts bins ends norms "
    "masses gradient direction",
)
"""Memory that every move uses again."""


class HitAndRun:
    """Hit-and-run on a K-norm gradient density in a public box with sides of shape (p,)
    or (), compiled.

    Half of the moves change one parameter, the others all; most that change a slope
    turn the plane about a random point of the box of covariates. After warming up three
    in four directions have the covariance that was learnt. No direction depends on
    where the chain is, so a move leaves the density as it is (docs/proofs/kng.md,
    section 8). Under a normal ``base`` (means and standard deviations) a move is
    accepted with the ratio of base measures.
    """

    def __init__(
        self,
        density: KNormGradient,
        lower: ArrayLike,
        upper: ArrayLike,
        base: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> None:
        self.lower = finite_vector(lower, density.p, "lower")
        self.upper = finite_vector(upper, density.p, "upper")
        if not np.all(self.lower < self.upper):
            raise InputError(
                "lower must be below upper for every parameter; give the box a width"
            )
        self._density = DensityArrays(
            x=density.x,
            y=density.y,
            tau=float(density.tau),
            scale=float(density.scale),
            norm=DENSITY_NORMS.index(density.norm),
            spread=float(density.width),
        )
        centre = np.empty(0)
        precision = np.empty(0)
        if base is not None:
            mean, deviation = base
            centre = finite_vector(mean, density.p, "the base measure")
            precision = finite_vector(deviation, density.p, "the base measure") ** -2
        lines, signs = density.lines
        n, p = density.x.shape
        low, high = (np.asarray(side, dtype=np.float64) for side in density.covariates)
        self._region = Region(
            lower=self.lower,
            upper=self.upper,
            lines=lines,
            signs=signs,
            low=low,
            high=high,
            shape=np.empty((0, p)),
            centre=centre,
            precision=precision,
        )
        times, spare_times, ends, norms, masses = np.empty((5, n + 2))
        flips, spare_flips = np.empty((2, n + 1), np.int64)
        gradient, direction = np.empty((2, p))
        self._work = LineWorkspace(
            times=times,
            flips=flips,
            spare_times=spare_times,
            spare_flips=spare_flips,
            counts=np.empty(1 << DIGIT_BITS, np.int64),
            bins=np.empty(BINS),
            ends=ends,
            norms=norms,
            masses=masses,
            gradient=gradient,
            direction=direction,
        )

    def check_start(self, start: ArrayLike) -> FloatArray:
        """Return where a chain starts, shape (p,), or refuse a start outside of the box
        or across a line.
        """
        theta = finite_vector(start, len(self.lower), "start")
        inside = np.all((self.lower <= theta) & (theta <= self.upper))
        if not inside or not keeps_lines(theta, self._region):
            raise InputError(
                "start must lie in the box and between floors and "
                "ceilings; choose it from public facts"
            )
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
        """Return draws, shape (n_draws, p), each ``thin`` moves after the one before;
        theta isn't checked.

        ``smooth`` takes the l2 norm at the same scale, for warming up only; ``shape``
        has directions that suit, by :func:`pdips.quantile.pymc_step.learn_directions`;
        ``beside`` are further lines that hold for these draws, with their signs.
        """
        draws = np.empty((n_draws, len(self.lower)))
        density = self._density
        if smooth:
            density = density._replace(norm=L2)
        region = self._region
        if shape is not None:
            region = region._replace(shape=shape)
        if beside is not None:
            more_lines, more_signs = beside
            lines = np.vstack([region.lines, more_lines])
            signs = np.concatenate([region.signs, more_signs])
            region = region._replace(lines=lines, signs=signs)
        walk(theta.copy(), density, region, self._work, thin, rng, draws)
        return draws

    def norm_at(self, theta: FloatArray) -> float:
        """Return the norm of the gradient at theta."""
        return float(norm_at(theta, self._density))


# compiled


@compiled
def norm_of(gradient, norm, spread):  # type: ignore[no-untyped-def]
    size = 0.0
    if norm == L1:
        for value in gradient:
            size += abs(value)
        return size
    if norm == L2:
        for value in gradient:
            size += value * value
        return np.sqrt(size)
    if norm == LINF:
        for value in gradient:
            size = max(size, abs(value))
        return size
    first = abs(gradient[0])
    for value in gradient[1:]:
        size = max(size, abs(value) - first)
    return first + size / spread


@compiled
def dual_norm(direction, density):  # type: ignore[no-untyped-def]
    """Return the largest inner product of a direction with gradients of norm 1."""
    sizes = np.abs(direction)
    if density.norm == L1:
        return sizes.max()
    if density.norm == L2:
        return np.sqrt((direction * direction).sum())
    width = density.spread if density.norm == HULL else 1.0
    return sizes[0] + sizes[1:].sum() * width


@njit(cache=True, error_model="numpy", inline="always")
def cross(gradient, flip, x):  # type: ignore[no-untyped-def]
    """Move the gradient past the point where a record changes sides."""
    record = flip
    way = 1.0
    if flip < 0:
        record = ~flip
        way = -1.0
    for j in range(len(gradient)):
        gradient[j] += way * x[record, j]


@compiled
def norm_at(theta, density):  # type: ignore[no-untyped-def]
    p = len(theta)
    gradient = np.zeros(p)
    for i in range(len(density.y)):
        residual = density.y[i]
        for j in range(p):
            residual -= density.x[i, j] * theta[j]
        counts = 1.0 if residual <= 0.0 else 0.0
        part = counts - density.tau
        for j in range(p):
            gradient[j] += density.x[i, j] * part
    return norm_of(gradient, density.norm, density.spread)


@compiled
def least_height(theta, direction, k, region):  # type: ignore[no-untyped-def]
    """Return how far theta keeps line k where they are nearest in the box of
    covariates, and its rate on the way.
    """
    sign = region.signs[k]
    line = region.lines[k]
    height = sign * (theta[0] - line[0])
    rate = sign * direction[0]
    for j in range(1, len(theta)):
        slope = sign * (theta[j] - line[j])
        end = region.low[j - 1] if slope > 0.0 else region.high[j - 1]
        height += slope * end
        rate += sign * direction[j] * end
    return height, rate


@compiled
def keeps_lines(theta, region):  # type: ignore[no-untyped-def]
    """Return whether no line is crossed anywhere on the box of covariates."""
    kept = True
    for k in range(len(region.signs)):
        kept &= least_height(theta, theta, k, region)[0] >= 0.0
    return kept


@compiled
def reach(theta, direction, end, region):  # type: ignore[no-untyped-def]
    """Return the t furthest from 0 on the way to ``end`` for which theta + t *
    direction crosses no line.

    The least height is concave and piecewise linear in t, so Newton's method from the
    end stops at its root.
    """
    for k in range(len(region.signs)):
        while end != 0.0:
            height, rate = least_height(theta + end * direction, direction, k, region)
            nearer = end - height / rate
            if height >= 0.0 or not abs(nearer) < abs(end):
                break
            end = nearer if nearer * end > 0.0 else 0.0
    return end


@compiled
def feasible(theta, direction, region):  # type: ignore[no-untyped-def]
    """Return the interval of t, which holds 0, for which theta + t * direction is in
    the region.
    """
    start = -np.inf
    stop = np.inf
    for j in range(len(theta)):
        if direction[j] == 0.0:
            continue
        one = (region.lower[j] - theta[j]) / direction[j]
        other = (region.upper[j] - theta[j]) / direction[j]
        start = max(start, min(one, other))
        stop = min(stop, max(one, other))
    start = reach(theta, direction, min(0.0, start), region)
    stop = reach(theta, direction, max(0.0, stop), region)
    return start, stop


@compiled
def sort(m, start, stop, work):  # type: ignore[no-untyped-def]
    """Sort the first m times with their flips: by two digits, and then by insertion for
    what is left.

    Where records lie so close together that insertion would take long, a comparison
    sort does it.
    """
    times = work.times
    flips = work.flips
    if m > DIGITS_FROM:
        factor = (1 << (2 * DIGIT_BITS)) / (stop - start) * WITHIN
        there = (work.spare_times, work.spare_flips)
        by_digit(m, start, factor, 0, (times, flips), there, work.counts)
        by_digit(m, start, factor, DIGIT_BITS, there, (times, flips), work.counts)
    if not by_insertion(m, times, flips):
        order = np.argsort(times[:m])
        times[:m] = times[order]
        flips[:m] = flips[order]


@compiled
def by_digit(m, start, factor, shift, here, there, counts):  # type: ignore[no-untyped-def]
    """Copy the first m times with their flips, in the order of one of their digits."""
    times, flips = here
    sorted_times, sorted_flips = there
    last = len(counts) - 1
    counts[:] = 0
    for i in range(m):
        number = np.int64((times[i] - start) * factor)
        counts[(number >> shift) & last] += 1
    total = 0
    for digit in range(len(counts)):
        size = counts[digit]
        counts[digit] = total
        total += size
    for i in range(m):
        number = np.int64((times[i] - start) * factor)
        digit = (number >> shift) & last
        place = counts[digit]
        sorted_times[place] = times[i]
        sorted_flips[place] = flips[i]
        counts[digit] += 1


@compiled
def by_insertion(m, times, flips):  # type: ignore[no-untyped-def]
    """Sort times that nearly are; return whether it is done, or would take long."""
    left = MOST_SHIFTS * m
    for i in range(1, m):
        time = times[i]
        flip = flips[i]
        k = i
        while k > 0 and times[k - 1] > time and left >= 0:
            times[k] = times[k - 1]
            flips[k] = flips[k - 1]
            k -= 1
            left -= 1
        times[k] = time
        flips[k] = flip
        if left < 0:
            return False
    return True


@compiled
def first_piece(theta, direction, start, stop, density, work):  # type: ignore[no-untyped-def]
    """Write when records change sides between ``start`` and ``stop``, and the gradient
    just after ``start``.

    A record counts where y <= x'theta: from its time on if x'direction > 0, until its
    time if x'direction < 0, and always or never if it is 0. Returns how many change
    sides. No branches on records: they can't be foreseen.
    """
    x = density.x
    y = density.y
    gradient = work.gradient
    p = len(theta)
    m = 0
    gradient[:] = 0.0
    for i in range(len(y)):
        residual = y[i]
        speed = 0.0
        for j in range(p):
            residual -= x[i, j] * theta[j]
            speed += x[i, j] * direction[j]
        time = residual / speed
        still = speed == 0.0
        up = speed > 0.0
        moved = (time <= start) == up
        counts = (still & (residual <= 0.0)) | (~still & moved)
        work.times[m] = time
        work.flips[m] = i if up else ~i
        m += ~still & (time > start) & (time < stop)
        part = np.float64(counts) - density.tau
        for j in range(p):
            gradient[j] += x[i, j] * part
    return m


@compiled
def narrow(m, start, stop, direction, most, density, work):  # type: ignore[no-untyped-def]
    """Leave out the two ends of a line where the norm is at least ``most``; the
    gradient moves to the new start.

    Along the line gradient'direction never falls (a record's change of sides raises it
    by |x'direction|), and it is at most the dual norm of the direction times the norm.
    Returns how many records change sides in between, and the ends.
    """
    bins = work.bins
    gradient = work.gradient
    x = density.x
    last = len(bins)
    factor = last / (stop - start) * WITHIN
    bins[:] = 0.0
    for i in range(m):
        speed = 0.0
        record = max(work.flips[i], ~work.flips[i])
        for j in range(len(direction)):
            speed += x[record, j] * direction[j]
        bins[np.int64((work.times[i] - start) * factor)] += abs(speed)
    slope = (gradient * direction).sum()
    first, end = steep_ends(bins, slope, most * dual_norm(direction, density))
    if end <= first or (first == 0 and end == last):
        return m, start, stop
    kept = 0
    for i in range(m):
        place = np.int64((work.times[i] - start) * factor)
        if place < first:
            cross(gradient, work.flips[i], x)
        work.times[kept] = work.times[i]
        work.flips[kept] = work.flips[i]
        kept += 1 if first <= place < end else 0
    new_start = max(start, start + first / factor)
    new_stop = min(stop, start + end / factor)
    return kept, new_start, new_stop


@compiled
def steep_ends(bins, slope, bound):  # type: ignore[no-untyped-def]
    """Return the first bin, and the end of those, between which a slope that grows by
    bins is within a bound.
    """
    first = 0
    for k in range(len(bins)):
        if slope >= bound:
            return first, k
        slope += bins[k]
        if slope <= -bound:
            first = k + 1
    return first, len(bins)


@compiled
def pieces(theta, direction, start, stop, most, density, work):  # type: ignore[no-untyped-def]
    """Write where pieces of constant exponent end (``ends``, the first is their start)
    and the norm on each.

    Returns how many pieces there are; some may have no length. Ends of the line with a
    norm of at least ``most`` may be left out.
    """
    m = first_piece(theta, direction, start, stop, density, work)
    if most < np.inf:
        m, start, stop = narrow(m, start, stop, direction, most, density, work)
    sort(m, start, stop, work)
    gradient = work.gradient
    x = density.x
    work.ends[0] = start
    for k in range(m):
        work.norms[k] = norm_of(gradient, density.norm, density.spread)
        work.ends[k + 1] = work.times[k]
        cross(gradient, work.flips[k], x)
    work.norms[m] = norm_of(gradient, density.norm, density.spread)
    work.ends[m + 1] = stop
    return m + 1


@compiled
def weigh(n_pieces, scale, work):  # type: ignore[no-untyped-def]
    """Write the cumulative mass of pieces, length * exp(-scale * (norm - least)), and
    return the least norm.
    """
    ends = work.ends
    norms = work.norms
    masses = work.masses
    least = np.inf
    total = 0.0
    for k in range(n_pieces):
        if ends[k + 1] > ends[k] and norms[k] < least:
            least = norms[k]
    for k in range(n_pieces):
        length = max(0.0, ends[k + 1] - ends[k])
        total += length * np.exp(-scale * (norms[k] - least))
        masses[k] = total
    return least


@compiled
def weighed_line(theta, direction, start, stop, near, density, work):  # type: ignore[no-untyped-def]
    """Write the pieces of a line and their masses; return how many there are.

    ``near`` is the norm at theta, from which far ends of the line are judged. They are
    left out only if all that could be there is less than what rounding takes from the
    rest; else the line is worked out whole.
    """
    most = np.inf
    if len(density.y) >= NARROW_FROM:
        most = near + NEGLIGIBLE / density.scale
    n_pieces = pieces(theta, direction, start, stop, most, density, work)
    least = weigh(n_pieces, density.scale, work)
    left_out = (stop - start) * np.exp(-density.scale * (most - least))
    rounding = ROUNDING * work.masses[n_pieces - 1]
    if most < np.inf and not left_out <= rounding:
        n_pieces = pieces(theta, direction, start, stop, np.inf, density, work)
        weigh(n_pieces, density.scale, work)
    return n_pieces


@compiled
def point_somewhere(region, direction, rng):  # type: ignore[no-untyped-def]
    """Write a direction, from public facts alone: half of the time one coordinate, else
    all, scaled by the box.

    Of those that change a slope, two in three then turn the plane about a point of the
    box of covariates, each of its coordinates at the low end, at the high end or
    uniform.
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
        low = region.low[j - 1]
        high = region.high[j - 1]
        which = rng.random() * 3
        pivot = low
        if which >= 2.0:
            pivot = low + (which - 2.0) * (high - low)
        elif which >= 1.0:
            pivot = high
        direction[0] -= pivot * direction[j]


@compiled
def drawn_time(n_pieces, work, rng):  # type: ignore[no-untyped-def]
    """Draw a piece by its mass, and a point on it evenly."""
    masses = work.masses[:n_pieces]
    position = rng.random() * masses[-1]
    piece = min(np.searchsorted(masses, position, side="right"), n_pieces - 1)
    start = work.ends[piece]
    return piece, start + rng.random() * (work.ends[piece + 1] - start)


@compiled
def base_gain(theta, there, region):  # type: ignore[no-untyped-def]
    """Return by how much the log of a normal base measure is higher there; 0 of an even
    one.
    """
    gain = 0.0
    for j in range(len(region.precision)):
        after = there[j] - region.centre[j]
        before = theta[j] - region.centre[j]
        gain += region.precision[j] * (before * before - after * after) / 2
    return gain


@compiled
def walk(theta, density, region, work, thin, rng, draws):  # type: ignore[no-untyped-def]
    """Fill ``draws``, shape (draws, p), each ``thin`` moves after the one before; theta
    ends at the last.

    A move draws from the density on a random line through theta, and goes there, or
    stays if a normal base measure, with the probability by which it is lower there,
    says so.
    """
    near = norm_at(theta, density)
    direction = work.direction
    for step in range(len(draws) * thin):
        point_somewhere(region, direction, rng)
        start, stop = feasible(theta, direction, region)
        if stop > start:
            n_pieces = weighed_line(theta, direction, start, stop, near, density, work)
            piece, time = drawn_time(n_pieces, work, rng)
            there = np.maximum(theta + time * direction, region.lower)
            there = np.minimum(there, region.upper)
            gain = base_gain(theta, there, region)
            accepted = gain >= 0.0 or rng.random() < np.exp(gain)
            # but for rounding, at an end of the interval
            if accepted and keeps_lines(there, region):
                theta[:] = there
                near = work.norms[piece]
        draws[step // thin] = theta
