"""Posterior draws for normal columns within cells, given noisy counts, sums and products: what ``glom.py`` is about.

NUTS finds this posterior hard: exact counts and sums hang together with cells' means, the scatter with the covariance,
loosely where the noise is loud and tightly where it is not. Here cells' shares and means are integrated out, sums are
drawn at once, and the covariance moves both alone and together with the scatter (Yu and Meng, 2011). All is in units of
half the range.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import arviz as az
import numpy as np
from numba import njit

from pdips.arrays import FloatArray
from pdips.convergence import Convergence, announce, converged
from pdips.statistics.noisy_model import Evidence, StatisticLaw
from pdips.statistics.normal_cells import (
    CENTRE,
    CENTRE_SD,
    HALF,
    Known,
    State,
    about,
    add_outer,
    backward,
    cholesky,
    forward,
    inverted,
    log_all_sums,
    log_covariance,
    log_deviations,
    log_noise,
    log_products,
    log_spread,
    log_sums,
    log_wishart,
    moved,
    product,
    reciprocal_variance,
    solved,
    spread,
    square,
)

THIN = 4  # Steps of a chain for each draw that is kept; four times as many in each further round
WANTED = 0.35  # Share of accepted moves that step sizes are tuned to
CENTRE_TOO, SPREAD_TOO, SPREAD, COVARIANCE, BOTH, SCATTER, COUNTS, SUMS = range(8)
"""Places of step sizes: of the centre and the spread of cells' means, moved with all sums; of what is moved alone."""

STEPS = (0.1, 0.3, 0.3, 0.1, 0.1, 0.1, 3.0, 0.5)

TRIES = 3  # Moves of each kind of the covariance and the scatter in one step


def draw_cells(
    given: Evidence,
    counted: StatisticLaw | None,
    sums_of: Sequence[str],
    products: Sequence[str],
    df: float,
    priors: FloatArray,
    lengths: tuple[int, int, int, int],
    rng: np.random.Generator,
) -> tuple[dict[str, FloatArray], Convergence]:
    """Run chains until they agree, or so many rounds, four times as long each time; return draws, and how they agree.

    Draws are ``counts`` (draws, cells), ``sums`` (draws, cells, columns), ``m``, ``tau``, ``sd`` (draws, columns), and
    for several columns ``correlation``, the partial correlations (1 + r) / 2; chains one after the other.

    ``given`` is noise-aware, with a public number of records; ``counted`` the Dirichlet-multinomial law of the counts,
    None where all records are in one cell. ``sums_of`` and ``products`` name the sums of each column by cell, and the
    products of columns, lower triangle row by row. ``df`` are the degrees of freedom of the scatter within cells,
    ``priors``, shape (6, columns), those of :class:`Known`, ``lengths`` the draws of each chain, steps before them,
    chains, and rounds.

    Priors: shares Dirichlet(alpha), cells' means normal(m, tau^2) with m normal, tau and the standard deviations gamma
    distributed, all correlation matrices as likely. An empty cell counts as half a record in the law of its sums.
    """
    measured, d = given.measured, len(sums_of)
    noisy, scales = np.zeros((d, d)), np.ones((d, d))
    for name, row, column in zip(products, *np.tril_indices(d), strict=True):
        noisy[row, column] = noisy[column, row] = given.noisy(name)[0]
        scales[row, column] = scales[column, row] = measured.scale(name)
    counts = near = np.array([float(measured.n_records or 0)])
    count_scales, alpha, deviation = np.zeros(1), 1.0, 0.0
    if counted is not None:
        [name] = counted.names
        counts, near, deviation = given.noisy(name), given[name], measured.deviation(name)
        count_scales = np.where(np.arange(len(counts)) < measured.part(name).n_noised, measured.scale(name), 0.0)
        alpha = float(counted.arguments["alpha"])
    known = Known(
        counts=counts,
        count_scales=count_scales,
        sums=np.column_stack([given.noisy(name) for name in sums_of]),
        sum_scales=np.array([measured.scale(name) for name in sums_of]),
        products=noisy,
        product_scales=scales,
        gaussian=measured.part(sums_of[0]).law == "gaussian",
        alpha=alpha,
        priors=priors,
        df=df,
    )
    draws, tune, chains, rounds = lengths
    for number in range(rounds):
        if number:
            announce(number + 1, confidential=False)
        steps = (tune * 4**number, draws, THIN * 4**number)
        found = [run(known, starting_counts(near, deviation, each), *steps, each) for each in rng.spawn(chains)]
        n, sums, m, tau, chol = (np.stack(each) for each in zip(*found, strict=True))
        watched = {"m": m, "tau": tau, "Sigma": chol @ np.swapaxes(chol, -1, -2)}
        convergence = replace(converged(az.from_dict({"posterior": watched}), tuple(watched)), rounds=number + 1)
        if convergence.passed:
            break
    sd = np.sqrt((chol**2).sum(axis=-1))
    values = {"counts": n, "sums": sums, "m": m, "tau": tau, "sd": sd}
    if d > 1:
        values["correlation"] = shares_of(chol / sd[..., None])
    return {name: each.reshape((-1, *each.shape[2:])) for name, each in values.items()}, convergence


def starting_counts(near: FloatArray, deviation: float, rng: np.random.Generator) -> FloatArray:
    """Return whole counts that add up to the number of records, as far from settled ones as noise may have moved them.

    Where the noise is small chains that start further away stay there: counts, sums and products hold each other.
    """
    n = round(float(near.sum()))
    moved = np.maximum(near + deviation * rng.standard_normal(len(near)), 0) + 1e-3
    whole = np.floor(n * moved / moved.sum())
    return np.asarray(whole + rng.multinomial(int(n - whole.sum()), moved / moved.sum()))


def shares_of(factor: FloatArray) -> FloatArray:
    """Return (1 + r) / 2 for the partial correlations r of lower factors, shape (..., d (d - 1) / 2).

    It is what :func:`pdips.statistics.laws.correlation_factor` makes the factor of.
    """
    found = []
    for i in range(factor.shape[-1]):
        left = np.ones(factor.shape[:-2])
        for j in range(i):
            found.append((1 + np.clip(factor[..., i, j] / np.sqrt(left), -1, 1)) / 2)
            left = np.maximum(left - factor[..., i, j] ** 2, 1e-300)
    return np.stack(found, axis=-1)


# compiled


@njit(cache=True, error_model="numpy")
def run(
    known: Known, start: FloatArray, tune: int, draws: int, thin: int, rng: Any
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Run one chain from counts that add up to n; standard deviations start anywhere from .1 to .5.

    Returns counts, sums, m, tau and chol after every ``thin``-th step that follows the first ``tune``; draws first.
    """
    cells, d = known.sums.shape
    chol = np.zeros((d, d))
    for j in range(d):
        chol[j, j] = math.exp(rng.uniform(math.log(0.1), math.log(0.5)))
    sums = np.empty((cells, d))
    for k in range(cells):
        for j in range(d):
            sums[k, j] = min(max(known.sums[k, j], -start[k]), start[k])
    steps = np.array(STEPS)
    state = State(start.copy(), sums, np.zeros(d), np.full(d, 0.3), chol, math.sqrt(known.df) * chol, steps)
    kept_n, kept_sums = np.empty((draws, cells)), np.empty((draws, cells, d))
    kept_m, kept_tau, kept_chol = np.empty((draws, d)), np.empty((draws, d)), np.empty((draws, d, d))
    for step in range(tune + draws * thin):
        pace = 0.0 if step >= tune else (step + 1.0) ** -0.6
        move_counts(known, state, pace, rng)
        move_sums(known, state, rng)
        move_sums_and_scale(known, state, pace, rng)
        for _ in range(TRIES):
            move_means_with_sums(known, state, pace, rng)
        draw_centre(known, state, rng)
        move_spread(known, state, pace, rng)
        rest = about(state.n, state.sums)
        for _ in range(TRIES):
            move_covariance(known, state, rest, COVARIANCE, pace, rng)
            move_covariance(known, state, rest, BOTH, pace, rng)
            move_scatter(known, state, rest, pace, rng)
        if step >= tune and (step - tune) % thin == 0:
            row = (step - tune) // thin
            kept_n[row], kept_sums[row], kept_m[row] = state.n, state.sums, state.m
            kept_tau[row], kept_chol[row] = state.tau, state.chol
    return kept_n, kept_sums, kept_m, kept_tau, kept_chol


@njit(cache=True, error_model="numpy")
def move_counts(known: Known, state: State, pace: float, rng: Any) -> None:
    """Move records between pairs of cells."""
    n, sums, cov = state.n, state.sums, square(state.chol)
    cells, accepted = len(n), 0
    whole = square(state.root) + about(n, sums)
    for _ in range(cells):
        a = rng.integers(0, cells)
        b = rng.integers(0, cells)
        by = math.floor(state.steps[COUNTS] * abs(rng.standard_normal())) + 1
        if a == b or n[a] < by:
            continue
        change = whole.copy()
        ratio = 0.0
        for k, new in ((a, n[a] - by), (b, n[b] + by)):
            ratio += math.lgamma(new + known.alpha) - math.lgamma(new + 1)
            ratio -= math.lgamma(n[k] + known.alpha) - math.lgamma(n[k] + 1)
            if known.count_scales[k] > 0:
                ratio += log_noise(known.counts[k] - new, known.count_scales[k], known.gaussian)
                ratio -= log_noise(known.counts[k] - n[k], known.count_scales[k], known.gaussian)
            ratio += log_sums(new, sums[k], state.m, cov, state.tau) - log_sums(n[k], sums[k], state.m, cov, state.tau)
            add_outer(change, sums[k], 1 / max(new, HALF))
            add_outer(change, sums[k], -1 / max(n[k], HALF))
        ratio += log_products(known, change) - log_products(known, whole)
        if math.log(rng.random()) < ratio:
            n[a] -= by
            n[b] += by
            whole = change
            accepted += 1
    state.steps[COUNTS] = min(max(state.steps[COUNTS] * math.exp(pace * (accepted / cells - 0.3)), 0.5), 1e6)


@njit(cache=True, error_model="numpy")
def move_sums(known: Known, state: State, rng: Any) -> None:
    """Draw each cell's sums, either with the scatter or with the products held fixed; the scatter follows."""
    n, sums, root = state.n, state.sums, state.root
    d, cov, whole = len(state.m), square(state.chol), about(n, sums)
    new_root = np.zeros((d, d))
    for k in range(len(n)):
        drawn = draw_sums(known, state, k, cov, rng)
        change = np.zeros((d, d))
        add_outer(change, drawn, 1 / max(n[k], HALF))
        add_outer(change, sums[k], -1 / max(n[k], HALF))
        scatter = square(root)
        if rng.random() < 0.5:
            ratio = log_products(known, scatter + whole + change) - log_products(known, scatter + whole)
            accepted = math.log(rng.random()) < ratio
        elif cholesky(scatter - change, new_root):
            ratio = log_wishart(state.chol, new_root, known.df) - log_wishart(state.chol, root, known.df)
            for i in range(d):
                ratio += (known.df - d - 1) * math.log(new_root[i, i] / root[i, i])
            accepted = math.log(rng.random()) < ratio
            if accepted:
                root[:] = new_root
        else:
            accepted = False
        if accepted:
            sums[k] = drawn
            whole += change


@njit(cache=True, error_model="numpy")
def draw_sums(known: Known, state: State, k: int, cov: FloatArray, rng: Any) -> FloatArray:
    """Draw a cell's sums given its noise, normal with variances that are drawn first; products are left aside."""
    d = len(state.m)
    chol, factor = np.zeros((d, d)), np.zeros((d, d))
    spread(state.n[k], cov, state.tau, chol)
    inverse = inverted(chol)
    place = max(state.n[k], HALF) * backward(chol, forward(chol, state.m))
    for j in range(d):
        if known.gaussian:
            precision = 1 / known.sum_scales[j] ** 2
        else:
            precision = reciprocal_variance(known.sums[k, j] - state.sums[k, j], known.sum_scales[j], rng)
        inverse[j, j] += precision
        place[j] += precision * known.sums[k, j]
    cholesky(inverse, factor)
    return backward(factor, forward(factor, place) + rng.standard_normal(d))


@njit(cache=True, error_model="numpy")
def move_sums_and_scale(known: Known, state: State, pace: float, rng: Any) -> None:
    """Move each cell's sums with the products held, so that the scatter takes what they leave, and the covariance too.

    Held too is the scatter in units of the covariance. From the scatter to the factor, and from that to its
    coordinates, the Jacobians cancel those in the prior of a covariance.
    """
    sums, scales, tau, step = state.sums, known.sum_scales, state.tau, state.steps[SUMS]
    cells, d = sums.shape
    new_root, accepted = np.zeros((d, d)), 0
    cov = square(state.chol)
    density = log_all_sums(state, state.m, tau, cov)
    for k in range(cells):
        size = max(state.n[k], HALF)
        old, new, ratio = sums[k].copy(), sums[k].copy(), 0.0
        for j in range(d):
            here = 1 / (size * cov[j, j] + (size * tau[j]) ** 2) + 1 / (2 * scales[j] ** 2)
            new[j] += step * rng.standard_normal() / math.sqrt(here)
        scatter = square(state.root)
        add_outer(scatter, new, -1 / size)
        add_outer(scatter, old, 1 / size)
        if not cholesky(scatter, new_root):
            continue
        new_chol = product(new_root, solved(state.root, state.chol))
        new_cov = square(new_chol)
        # Steps are as long on the way back as the covariance there makes them.
        for j in range(d):
            there = 1 / (size * new_cov[j, j] + (size * tau[j]) ** 2) + 1 / (2 * scales[j] ** 2)
            here = 1 / (size * cov[j, j] + (size * tau[j]) ** 2) + 1 / (2 * scales[j] ** 2)
            by = (new[j] - old[j]) ** 2 / (2 * step**2)
            ratio += (math.log(there) - math.log(here)) / 2 - by * (there - here)
            ratio += log_noise(known.sums[k, j] - new[j], scales[j], known.gaussian)
            ratio -= log_noise(known.sums[k, j] - old[j], scales[j], known.gaussian)
        sums[k] = new
        total = log_all_sums(state, state.m, tau, new_cov)
        ratio += total - density + log_deviations(new_chol, known.priors) - log_deviations(state.chol, known.priors)
        if math.log(rng.random()) < ratio:
            accepted += 1
            density, cov = total, new_cov
            state.chol[:] = new_chol
            state.root[:] = new_root
        else:
            sums[k] = old
    state.steps[SUMS] = min(max(step * math.exp(pace * (accepted / cells - 0.3)), 1e-3), 3.0)


@njit(cache=True, error_model="numpy")
def move_means_with_sums(known: Known, state: State, pace: float, rng: Any) -> None:
    """Move the centre of the cells' means, or their spread, and all sums with it.

    Held are the sums in units of their own law given centre and spread.
    """
    sums, m, tau, priors = state.sums, state.m, state.tau, known.priors
    cells, d = sums.shape
    cov, scatter = square(state.chol), square(state.root)
    old, new, drawn = np.zeros((d, d)), np.zeros((d, d)), np.empty((cells, d))
    for kind in (CENTRE_TOO, SPREAD_TOO):
        for j in range(d):
            new_m, new_tau = m.copy(), tau.copy()
            if kind == CENTRE_TOO:
                new_m[j] += state.steps[kind] * rng.standard_normal()
                off = (m[j] - priors[CENTRE, j]) ** 2 - (new_m[j] - priors[CENTRE, j]) ** 2
                ratio = off / (2 * priors[CENTRE_SD, j] ** 2)
            else:
                new_tau[j] *= math.exp(state.steps[kind] * rng.standard_normal())
                ratio = log_spread(new_tau[j], tau[j], j, priors)
            for k in range(cells):
                size = max(state.n[k], HALF)
                spread(state.n[k], cov, tau, old)
                spread(state.n[k], cov, new_tau, new)
                z = forward(old, sums[k] - size * m)
                for i in range(d):
                    drawn[k, i] = size * new_m[i]
                    for h in range(i + 1):
                        drawn[k, i] += new[i, h] * z[h]
                    ratio += log_noise(known.sums[k, i] - drawn[k, i], known.sum_scales[i], known.gaussian)
                    ratio -= log_noise(known.sums[k, i] - sums[k, i], known.sum_scales[i], known.gaussian)
            ratio += log_products(known, scatter + about(state.n, drawn))
            ratio -= log_products(known, scatter + about(state.n, sums))
            if taken(state.steps, kind, ratio, pace / d, rng):
                sums[:] = drawn
                m[:] = new_m
                tau[:] = new_tau


@njit(cache=True, error_model="numpy")
def draw_centre(known: Known, state: State, rng: Any) -> None:
    """Draw the mean of the cells' means."""
    d, cov = len(state.tau), square(state.chol)
    chol, factor = np.zeros((d, d)), np.zeros((d, d))
    precision = np.diag(1 / known.priors[CENTRE_SD] ** 2)
    place = known.priors[CENTRE] / known.priors[CENTRE_SD] ** 2
    for k in range(len(state.n)):
        size = max(state.n[k], HALF)
        spread(state.n[k], cov, state.tau, chol)
        place += size * backward(chol, forward(chol, state.sums[k]))
        precision += size * size * inverted(chol)
    cholesky(precision, factor)
    state.m[:] = backward(factor, forward(factor, place) + rng.standard_normal(d))


@njit(cache=True, error_model="numpy")
def move_spread(known: Known, state: State, pace: float, rng: Any) -> None:
    """Move the spread of the cells' means with the sums held."""
    d, cov = len(state.tau), square(state.chol)
    density = log_all_sums(state, state.m, state.tau, cov)
    for _ in range(TRIES):
        for j in range(d):
            new_tau = state.tau.copy()
            new_tau[j] *= math.exp(state.steps[SPREAD] * rng.standard_normal())
            new = log_all_sums(state, state.m, new_tau, cov)
            ratio = new - density + log_spread(new_tau[j], state.tau[j], j, known.priors)
            if taken(state.steps, SPREAD, ratio, pace / (TRIES * d), rng):
                state.tau[:] = new_tau
                density = new


@njit(cache=True, error_model="numpy")
def move_covariance(known: Known, state: State, rest: FloatArray, kind: int, pace: float, rng: Any) -> None:
    """Move the covariance with the scatter held, or in units of it; ``rest`` is what the means add to products."""
    chol, root = state.chol, state.root
    new_chol, new_root = moved(chol, state.steps[kind], rng), root
    ratio = log_covariance(known, state, new_chol) - log_covariance(known, state, chol)
    if kind == BOTH:
        new_root = product(new_chol, solved(chol, root))
        ratio += log_products(known, square(new_root) + rest) - log_products(known, square(root) + rest)
    else:
        ratio += log_wishart(new_chol, root, known.df) - log_wishart(chol, root, known.df)
    if taken(state.steps, kind, ratio, pace / TRIES, rng):
        chol[:] = new_chol
        root[:] = new_root


@njit(cache=True, error_model="numpy")
def move_scatter(known: Known, state: State, rest: FloatArray, pace: float, rng: Any) -> None:
    """Move the scatter with the covariance held; ``rest`` is what the means add to products."""
    root, step = state.root, state.steps[SCATTER]
    inside = solved(state.chol, root)
    new_inside, ratio = inside.copy(), 0.0  # a standard Wishart factor, in the logs of its diagonal and the rest
    for i in range(len(root)):
        by = step * rng.standard_normal()
        new_inside[i, i] *= math.exp(by)
        ratio += (known.df - i) * by
        for j in range(i):
            new_inside[i, j] += step * math.sqrt(known.df) * rng.standard_normal()
    new_root = product(state.chol, new_inside)
    ratio -= ((new_inside**2).sum() - (inside**2).sum()) / 2
    ratio += log_products(known, square(new_root) + rest) - log_products(known, square(root) + rest)
    if taken(state.steps, SCATTER, ratio, pace / TRIES, rng):
        root[:] = new_root


@njit(cache=True, error_model="numpy")
def taken(steps: FloatArray, kind: int, ratio: float, pace: float, rng: Any) -> bool:
    """Return whether a move is accepted, and tune the size of its steps."""
    found = math.log(rng.random()) < ratio
    steps[kind] *= math.exp(pace * ((1.0 if found else 0.0) - WANTED))
    return found
