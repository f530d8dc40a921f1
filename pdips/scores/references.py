"""Where centred scores are taken, and how they are whitened and clipped: from noisy
answers and public facts alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pdips.arrays import FloatArray
from pdips.posterior.columns import Values
from pdips.posterior.model import initial, most_probable
from pdips.scores.centred_sums import CentredSums
from pdips.scores.centring import Centring
from pdips.scores.column_cells import inside_cells
from pdips.scores.pseudo_table import NOTABLE, likely_shares, merged_shares
from pdips.scores.record_score import Norm

# Records that noisy counts are taken to stand for in the first search, and from how
# many draws of the prior it starts
MADE_UP = 4_096
STARTS = 4
MOST_CLIMBED = 150
# Searches one after the other, each in units of the place where it begins
CLIMBS = 2
# Longest way to the next reference, in whitened units of the last one
REACH = 5.0
# Radii in units of the norm that whitened scores have about: of the first round, and
# the least and the largest of the last one
FIRST = 1.0
LEAST = 1.2
WIDEST = 32.0
# Noise of the last scores, over the sampling error of a model that is right, up to
# which long tails may ask for a wider radius: chosen on rwm5yr and diamonds of `python
# -m benchmarks.regressions` (2026-12-01), whose intervals it makes twice as wide
LOUDEST = 3.0
# The least where outcomes are numbers: fewer of wrong errors are clipped than at LEAST.
# `python -m benchmarks.score_parts constants` (2026-12-01, 60 releases) compares both:
# coefficients are as near, and scales, whose intervals are shorter, farther
LEAST_OF_NUMBERS = 2.0
# Share of the sampling variance that the noise of the last sums of scores may have,
# where outcomes have levels
AFFORDED = 0.2
# Radius of curvatures over the norm that they have about
CURVED = 1.5
# Largest eigenvalue of the noise on a curvature, as a share of the curvature: what
# radii are kept to, and what is refused
FINE_EDGE = 0.25
LARGEST_EDGE = 0.5
# Least eigenvalue of the correlations that scores are whitened by
LEAST_EIGENVALUE = 1e-4
# Fourth moment of a score given covariates, over the square of the second, from which
# on it has a long tail, as that of a standard deviation; and how it is scaled then
LONG_TAIL = 8.0
HALF = 0.5
# Of lengths of scores: edges of cells in units of their usual norm
LENGTHS = np.geomspace(1, 32, 11)
# Records beyond the radius that aren't where the model says, in roots of the number of
# records; in deviations of noise; and as a share of those that it says, which the
# reference may be off by
BEYOND = 0.3
SURE = 2.5
OFF = 0.15


@dataclass(frozen=True)
class RoundNoise:
    """Standard deviations of the noise of one round, in units of the largest that one
    record adds.
    """

    scores: float
    curvature: float


def usual_norm(d: int, norm: Norm) -> float:
    """Return what whitened scores of so many parameters have as their norm, about."""
    return float(np.sqrt(d)) if norm == "l2" else 0.8 * d


def usual_curvature(d: int, norm: Norm) -> float:
    """Return what the curvature of a record has as its norm, about."""
    return float(d) if norm == "l2" else 0.4 * d * d


def edge_of(curvature_radius: float, d: int, noise: RoundNoise, n: float) -> float:
    """Return the largest eigenvalue of the noise on the curvature of n records, about,
    as a share of the curvature, which is 1 a record.
    """
    return curvature_radius * noise.curvature * float(np.sqrt(2 * d)) / n


def opening_place(sums: CentredSums) -> FloatArray:
    """Return the parameters that are most probable where outcomes have the noisy counts
    of their cells, and covariates say nothing of them.
    """
    space = sums.space
    law = sums.points.law
    records = law.observed(_made_up(sums))

    def log_density(place: FloatArray) -> tuple[float, FloatArray]:
        value, slope = law.score.mean_of_public(place, records)
        pull = sums.prior.precision @ (sums.prior.mean - place)
        height = sums.n_records * value + sums.prior.log_density(place)
        return height, sums.n_records * slope + pull

    def climbed(start: FloatArray) -> FloatArray:
        for _ in range(CLIMBS):
            scale = _scale_at(sums, start, records)
            uphill = partial(_in_units, log_density, start, scale)
            start = start + scale * most_probable(uphill, 0 * start, MOST_CLIMBED)
        return start

    starts = [
        initial(space.model),
        np.median(space.prior, axis=0),
        *space.prior[:STARTS],
    ]
    ends = [climbed(start) for start in starts]
    heights = [log_density(end)[0] for end in ends]
    return ends[int(np.argmax(np.where(np.isfinite(heights), heights, -np.inf)))]


def _in_units(
    log_density: Callable[[FloatArray], tuple[float, FloatArray]],
    start: FloatArray,
    scale: FloatArray,
    steps: FloatArray,
) -> tuple[float, FloatArray]:
    """Return a log density and its slope some steps from a start, in their units."""
    height, slope = log_density(start + scale * steps)
    return height, scale * slope


def _scale_at(sums: CentredSums, place: FloatArray, records: Values) -> FloatArray:
    """Return what a step of the search is worth of each parameter: as much as one
    record tells of it at some parameters, or the prior.

    A search that is blind to units ends where it began where an outcome is in
    thousands, and its deviation on the scale of logarithms.
    """
    scores = sums.points.law.score.of_public(place, records)
    squares = np.where(np.isfinite(scores), scores, 0.0) ** 2
    precision = squares.mean(axis=0) + sums.prior.deviation**-2
    return np.asarray(1 / np.sqrt(precision))


def _made_up(sums: CentredSums) -> Values:
    """Return records whose outcomes have the noisy counts of their cells, beside rows
    of the pseudo table.
    """
    rng = np.random.default_rng(0)
    rows = rng.choice(sums.rows.n, MADE_UP, p=sums.rows.weights)
    values = {name: np.asarray(each)[rows] for name, each in sums.rows.values.items()}
    by_column = np.split(sums.counts, np.cumsum(sums.cells.sizes)[:-1])
    for (name, edges), noisy in zip(sums.cells.edges.items(), by_column, strict=True):
        if name in sums.space.synthesized:
            column = sums.space.columns[name]
            if column.is_categorical:
                shares = likely_shares(noisy, NOTABLE * sums.counts_deviation)
            else:
                shares = merged_shares(noisy, sums.counts_deviation, sums.n_records)
            cell = rng.choice(len(shares), MADE_UP, p=shares)
            values[name] = inside_cells(column, edges[cell], edges[cell + 1], rng)
    return sums.space.beside(values)


def whitened_at(sums: CentredSums, place: FloatArray, norm: Norm) -> Centring:
    """Return how scores are whitened at some parameters, with radii of 1: by the
    information of the pseudo table, beside the prior's share.

    Rows of the whitening are near the parameters one by one: it is the symmetric root
    of the inverse correlation.
    """
    d = len(place)
    plain = Centring(place, np.eye(d), 1.0, 1.0, norm)
    at, _ = sums.at_rows(plain)
    scores = np.where(np.isfinite(at.scores[:, 1:]), at.scores[:, 1:], 0.0)
    weights = (sums.weights[:, None] * at.weights)[..., None]
    flat = scores.reshape(-1, d)
    information = (weights * scores).reshape(-1, d).T @ flat
    information += sums.prior.precision / sums.n_records
    scale = 1 / np.sqrt(np.diag(information))
    values, vectors = np.linalg.eigh(information * np.outer(scale, scale))
    values = np.maximum(values, LEAST_EIGENVALUE * values.max())
    root = (vectors / np.sqrt(values)) @ vectors.T
    return replace(plain, whitening=root * scale)


def first_centring(sums: CentredSums, norm: Norm) -> Centring:
    """Return where scores are taken first, and how they are clipped."""
    place = opening_place(sums)
    at = whitened_at(sums, place, norm)
    d = len(place)
    return replace(
        at,
        radius=FIRST * usual_norm(d, norm),
        curvature_radius=CURVED * usual_curvature(d, norm),
    )


def next_whitening(sums: CentredSums, norm: Norm, *, is_last: bool) -> Centring:
    """Return where scores are taken after a round, whitened, with radii of 1.

    In the last round parameters whose scores have long tails are scaled down, so that
    fewer of the records are clipped for their sake.
    """
    before = sums.last.centring
    mode = sums.mode(before.place).place
    move = sums.means.whitened(mode)
    length = float(np.abs(move).max())
    place = before.place + (mode - before.place) * min(1.0, REACH / max(length, 1e-300))
    at = whitened_at(sums, place, norm)
    if not is_last or sums.points.by_levels:
        return at
    return _tails_scaled(sums, at, HALF)


def _tails_scaled(sums: CentredSums, at: Centring, factor: float) -> Centring:
    """Return the whitening with scores that have long tails in other units."""
    scale = np.where(_long_tailed(sums, at), factor, 1.0)
    return replace(at, whitening=at.whitening * scale[:, None])


def _long_tailed(sums: CentredSums, at: Centring) -> FloatArray:
    """Return which whitened scores have long tails given covariates."""
    points, _ = sums.at_rows(at)
    scores = points.scores[:, 1:] @ at.whitening.T
    scores = np.where(np.isfinite(scores), scores, 0.0)
    weights = points.weights[..., None]
    squares = (weights * scores**2).sum(axis=1)
    fourth = sums.weights @ (weights * scores**4).sum(axis=1)
    return np.asarray(fourth > LONG_TAIL * (sums.weights @ squares**2))


def last_radii(
    sums: CentredSums, at: Centring, noise: RoundNoise, tail: float | None
) -> Centring:
    """Return the centring of the last round with its radii.

    The radius is as large as the noise that it costs is AFFORDED, or as noisy lengths
    of scores say if that is more, while the noise isn't LOUDEST; at least LEAST and at
    most WIDEST times the usual norm of scores. That of curvatures grows with it as long
    as their noise stays fine: a curvature has no tail, for it is of covariates alone.
    """
    d = len(at.place)
    n = sums.n_records
    usual = usual_norm(d, at.norm)
    least = LEAST * usual
    curvature = CURVED * usual_curvature(d, at.norm)
    radius = float(np.sqrt(AFFORDED * n)) / noise.scores
    if tail is not None:
        # as long as the noise isn't louder than the sampling error
        wider = min(LEAST_OF_NUMBERS * usual, float(np.sqrt(n)) / noise.scores)
        loudest = LOUDEST * float(np.sqrt(n)) / noise.scores
        radius = max(radius, min(tail, loudest), wider)
        if tail > loudest:
            # the longest scores are those of a deviation, squares of residuals: in
            # smaller units the ball holds them, and the residuals too
            at = _tails_scaled(sums, at, loudest / tail)
    finest = max(1.0, FINE_EDGE / edge_of(curvature, d, noise, n))
    if tail is None:
        radius = min(radius, least * finest)
    radius = max(min(radius, WIDEST * usual), least)
    if sums.points.by_levels:
        # nothing is gained beyond the longest score
        points, _ = sums.at_rows(at)
        lengths = np.where(points.weights > 0, at.lengths(points), 0.0)
        radius = min(radius, float(lengths.max()))
    curvature *= min(radius / least, finest)
    return replace(at, radius=radius, curvature_radius=curvature)


def length_edges(d: int, norm: Norm) -> FloatArray:
    """Return the edges of cells in which lengths of whitened scores are counted; the
    last cell has no upper end.
    """
    return usual_norm(d, norm) * LENGTHS


def expected_beyond(sums: CentredSums, at: Centring, edges: FloatArray) -> FloatArray:
    """Return how many records have longer scores than each edge, if the model is right
    at the reference.
    """
    points, _ = sums.at_rows(at)
    weights = sums.n_records * sums.weights[:, None] * points.weights
    lengths = at.lengths(points)
    return np.array([float(weights[lengths >= edge].sum()) for edge in edges])


def radius_by_tail(
    counts: FloatArray,
    deviation: float,
    edges: FloatArray,
    expected: FloatArray,
    n: float,
) -> float:
    """Return the first edge beyond which, and beyond all further ones, about as many
    records lie as the model expects, by noisy counts: what clipping takes from these is
    known. Where tails are longer fewer lie in between, so that beyond some edge there
    are as many by chance.
    """
    beyond = np.cumsum(counts[::-1])[::-1] - expected
    # the sum of more cells has more noise
    deviations = deviation * np.sqrt(np.arange(len(counts), 0, -1))
    few = np.maximum(BEYOND * np.sqrt(n), SURE * deviations) + OFF * expected
    # fewer than none are noise
    is_off = (beyond > few) | (np.minimum(-beyond, expected) > few)
    n_edges = int(np.flatnonzero(is_off).max(initial=-1)) + 1
    return float(edges[min(n_edges, len(edges) - 1)])
