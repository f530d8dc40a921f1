"""Posterior draws for normal columns within cells, given noisy counts, sums and
products: what ``glom.py`` is about.

NUTS finds this posterior hard: exact counts and sums hang together with cells' means,
the scatter with the covariance, loosely where the noise is loud and tightly where it is
not. Here cells' shares and means are integrated out, sums are drawn at once, and the
covariance moves both alone and together with the scatter (Yu and Meng, 2011). All is in
units of half the range.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import arviz as az
import numpy as np

from pdips.arrays import FloatArray
from pdips.compiled import compiled
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

CellDraws = tuple[dict[str, FloatArray], Convergence]

# Steps of a chain for each draw that is kept; four times as many in each further round
THIN = 4
# Shares of accepted moves that step sizes are tuned to
WANTED = 0.35
WANTED_OF_CELLS = 0.3
CENTRE_TOO, SPREAD_TOO, SPREAD, COVARIANCE, BOTH, SCATTER, COUNTS, SUMS = range(8)
"""Places of step sizes: of the centre and the spread of cells' means, moved with all
sums; of what is moved alone.
"""

STEPS = (0.1, 0.3, 0.3, 0.1, 0.1, 0.1, 3.0, 0.5)

TRIES = 3  # Moves of each kind of the covariance and the scatter in one step


def draw_cells(
    given: Evidence,
    counted: StatisticLaw | None,
    sums_of: Sequence[str],
    products: Sequence[str],
    df: float,
    priors: FloatArray,
    lengths: tuple[int, ...],
    rng: np.random.Generator,
) -> CellDraws:
    """Run chains until they agree, or so many rounds, four times as long each time;
    return draws, and how they agree.

    Draws are ``counts`` (draws, cells), ``sums`` (draws, cells, columns), ``m``,
    ``tau``, ``sd`` (draws, columns), and for several columns ``correlation``, the
    partial correlations (1 + r) / 2; chains one after the other.

    ``given`` is noise-aware, with a public number of records; ``counted`` the
    Dirichlet-multinomial law of the counts, None where all records are in one cell.
    ``sums_of`` and ``products`` name the sums of each column by cell, and the products
    of columns, lower triangle row by row. ``df`` are the degrees of freedom of the
    scatter within cells, ``priors``, shape (6, columns), those of :class:`Known`,
    ``lengths`` the draws of each chain, steps before them, chains, and rounds.

    Priors: shares Dirichlet(alpha), cells' means normal(m, tau^2) with m normal, tau
    and the standard deviations gamma distributed, all correlation matrices as likely.
    An empty cell counts as half a record in the law of its sums.
    """
    known, near, deviation = _known(given, counted, sums_of, products, df, priors)
    draws, tune, chains, rounds = lengths
    for number in range(rounds):
        if number:
            announce(number + 1, confidential=False)
        longer = 4**number
        steps = (tune * longer, draws, THIN * longer)
        values, covariance = _run_chains(known, near, deviation, steps, chains, rng)
        watched = {"m": values["m"], "tau": values["tau"], "Sigma": covariance}
        chain_draws = az.from_dict({"posterior": watched})
        agreement = converged(chain_draws, tuple(watched))
        if agreement.passed:
            break
    joined = {
        name: by_chain.reshape((-1, *by_chain.shape[2:]))
        for name, by_chain in values.items()
    }
    return joined, replace(agreement, rounds=number + 1)


def _run_chains(
    known: Known,
    near: FloatArray,
    deviation: float,
    steps: tuple[int, int, int],
    chains: int,
    rng: np.random.Generator,
) -> tuple[dict[str, FloatArray], FloatArray]:
    """Return draws of chains as :func:`draw_cells` names them, shape (chains, draws,
    ...), and covariances.
    """
    results = []
    for chain_rng in rng.spawn(chains):
        start = starting_counts(near, deviation, chain_rng)
        results.append(run(known, start, *steps, chain_rng))
    n, sums, m, tau, chol = (np.stack(kept) for kept in zip(*results, strict=True))
    sd = np.sqrt((chol**2).sum(axis=-1))
    values = {"counts": n, "sums": sums, "m": m, "tau": tau, "sd": sd}
    if len(known.sum_scales) > 1:
        values["correlation"] = shares_of(chol / sd[..., None])
    return values, chol @ np.swapaxes(chol, -1, -2)


def _known(
    given: Evidence,
    counted: StatisticLaw | None,
    sums_of: Sequence[str],
    products: Sequence[str],
    df: float,
    priors: FloatArray,
) -> tuple[Known, FloatArray, float]:
    """Return what chains are given; settled counts, near which they start, and the
    standard deviation of the noise on these.
    """
    measured = given.measured
    d = len(sums_of)
    noisy = np.zeros((d, d))
    scales = np.ones((d, d))
    for name, row, column in zip(products, *np.tril_indices(d), strict=True):
        noisy[row, column] = noisy[column, row] = given.noisy(name)[0]
        scales[row, column] = scales[column, row] = measured.scale(name)
    counts = settled = np.array([float(measured.n_records or 0)])
    count_scales = np.zeros(1)
    alpha = 1.0
    deviation = 0.0
    if counted is not None:
        [name] = counted.names
        counts = given.noisy(name)
        settled = given[name]
        deviation = measured.deviation(name)
        noised = np.arange(len(counts)) < measured.part(name).n_noised
        count_scales = np.where(noised, measured.scale(name), 0.0)
        alpha = float(counted.arguments["alpha"])
    sums = [given.noisy(name) for name in sums_of]
    sum_scales = [measured.scale(name) for name in sums_of]
    gaussian = measured.part(sums_of[0]).law == "gaussian"
    known = Known(
        counts=counts,
        count_scales=count_scales,
        sums=np.column_stack(sums),
        sum_scales=np.array(sum_scales),
        products=noisy,
        product_scales=scales,
        gaussian=gaussian,
        alpha=alpha,
        priors=priors,
        df=df,
    )
    return known, settled, deviation


def starting_counts(
    near: FloatArray, deviation: float, rng: np.random.Generator
) -> FloatArray:
    """Return whole counts that add up to the number of records, as far from settled
    ones as noise may have moved them.

    Where the noise is small chains that start further away stay there: counts, sums and
    products hold each other.
    """
    n = round(float(near.sum()))
    moved = near + deviation * rng.standard_normal(len(near))
    positive = np.maximum(moved, 0) + 1e-3
    shares = positive / positive.sum()
    whole = np.floor(n * shares)
    left = int(n - whole.sum())
    return whole + rng.multinomial(left, shares)


def shares_of(factor: FloatArray) -> FloatArray:
    """Return (1 + r) / 2 for the partial correlations r of lower factors, shape (..., d
    (d - 1) / 2).

    It is what :func:`pdips.statistics.laws.correlation_factor` makes the factor of.
    """
    shares = []
    for i in range(factor.shape[-1]):
        left = np.ones(factor.shape[:-2])
        for j in range(i):
            entry = factor[..., i, j]
            partial = np.clip(entry / np.sqrt(left), -1, 1)
            shares.append((1 + partial) / 2)
            left = np.maximum(left - entry**2, 1e-300)
    return np.stack(shares, axis=-1)


# compiled


@compiled
def run(
    known: Known, start: FloatArray, tune: int, draws: int, thin: int, rng: Any
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Run one chain from counts that add up to n; standard deviations start anywhere
    from .1 to .5.

    Returns counts, sums, m, tau and chol after every ``thin``-th step that follows the
    first ``tune``; draws first.
    """
    cells, d = known.sums.shape
    state = starting_state(known, start, rng)
    kept_n = np.empty((draws, cells))
    kept_sums = np.empty((draws, cells, d))
    kept_m = np.empty((draws, d))
    kept_tau = np.empty((draws, d))
    kept_chol = np.empty((draws, d, d))
    for step in range(tune + draws * thin):
        pace = 0.0 if step >= tune else (step + 1.0) ** -0.6
        sweep(known, state, pace, rng)
        if step >= tune and (step - tune) % thin == 0:
            row = (step - tune) // thin
            kept_n[row] = state.n
            kept_sums[row] = state.sums
            kept_m[row] = state.m
            kept_tau[row] = state.tau
            kept_chol[row] = state.chol
    return kept_n, kept_sums, kept_m, kept_tau, kept_chol


@compiled
def starting_state(known: Known, start: FloatArray, rng: Any) -> State:
    """Return where a chain starts from some counts."""
    cells, d = known.sums.shape
    chol = np.zeros((d, d))
    for j in range(d):
        chol[j, j] = math.exp(rng.uniform(math.log(0.1), math.log(0.5)))
    sums = np.empty((cells, d))
    for k in range(cells):
        for j in range(d):
            sums[k, j] = min(max(known.sums[k, j], -start[k]), start[k])
    root = math.sqrt(known.df) * chol
    steps = np.array(STEPS)
    return State(start.copy(), sums, np.zeros(d), np.full(d, 0.3), chol, root, steps)


@compiled
def sweep(known: Known, state: State, pace: float, rng: Any) -> None:
    """Make one step of a chain: moves of every kind."""
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


@compiled
def move_counts(known: Known, state: State, pace: float, rng: Any) -> None:
    """Move records between pairs of cells."""
    n = state.n
    sums = state.sums
    cov = square(state.chol)
    cells = len(n)
    accepted = 0
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
            ratio += log_count(known, state, cov, k, new)
            ratio -= log_count(known, state, cov, k, n[k])
            add_outer(change, sums[k], 1 / max(new, HALF))
            add_outer(change, sums[k], -1 / max(n[k], HALF))
        ratio += log_products(known, change) - log_products(known, whole)
        if math.log(rng.random()) < ratio:
            n[a] -= by
            n[b] += by
            whole = change
            accepted += 1
    tune_step(state.steps, COUNTS, pace, accepted / cells, 0.5, 1e6)


@compiled
def log_count(
    known: Known, state: State, cov: FloatArray, k: int, count: float
) -> float:
    """Return the log density of a cell's count, of its noise and of its sums given
    it.
    """
    density = math.lgamma(count + known.alpha) - math.lgamma(count + 1)
    scale = known.count_scales[k]
    if scale > 0:
        density += log_noise(known.counts[k] - count, scale, known.gaussian)
    return density + log_sums(count, state.sums[k], state.m, cov, state.tau)


@compiled
def tune_step(
    steps: FloatArray,
    kind: int,
    pace: float,
    accepted: float,
    least: float,
    most: float,
) -> None:
    """Tune the size of steps that are made once for each cell."""
    size = steps[kind] * math.exp(pace * (accepted - WANTED_OF_CELLS))
    steps[kind] = min(max(size, least), most)


@compiled
def move_sums(known: Known, state: State, rng: Any) -> None:
    """Draw each cell's sums, either with the scatter or with the products held fixed;
    the scatter follows.
    """
    n = state.n
    sums = state.sums
    root = state.root
    d = len(state.m)
    cov = square(state.chol)
    whole = about(n, sums)
    new_root = np.zeros((d, d))
    for k in range(len(n)):
        drawn = draw_sums(known, state, k, cov, rng)
        change = np.zeros((d, d))
        add_outer(change, drawn, 1 / max(n[k], HALF))
        add_outer(change, sums[k], -1 / max(n[k], HALF))
        scatter = square(root)
        ratio = -np.inf
        scatter_held = rng.random() < 0.5
        if scatter_held:
            before = scatter + whole
            ratio = log_products(known, before + change) - log_products(known, before)
        elif cholesky(scatter - change, new_root):
            ratio = log_wishart(state.chol, new_root, known.df)
            ratio -= log_wishart(state.chol, root, known.df)
            for i in range(d):
                growth = math.log(new_root[i, i] / root[i, i])
                ratio += (known.df - d - 1) * growth
        if ratio > -np.inf and math.log(rng.random()) < ratio:
            sums[k] = drawn
            whole += change
            if not scatter_held:
                root[:] = new_root


@compiled
def draw_sums(
    known: Known, state: State, k: int, cov: FloatArray, rng: Any
) -> FloatArray:
    """Draw a cell's sums given its noise, normal with variances that are drawn first;
    products are left aside.
    """
    d = len(state.m)
    chol = np.zeros((d, d))
    factor = np.zeros((d, d))
    spread(state.n[k], cov, state.tau, chol)
    inverse = inverted(chol)
    place = max(state.n[k], HALF) * backward(chol, forward(chol, state.m))
    for j in range(d):
        if known.gaussian:
            precision = 1 / known.sum_scales[j] ** 2
        else:
            precision = reciprocal_variance(
                known.sums[k, j] - state.sums[k, j], known.sum_scales[j], rng
            )
        inverse[j, j] += precision
        place[j] += precision * known.sums[k, j]
    cholesky(inverse, factor)
    return backward(factor, forward(factor, place) + rng.standard_normal(d))


@compiled
def move_sums_and_scale(known: Known, state: State, pace: float, rng: Any) -> None:
    """Move each cell's sums with the products held, so that the scatter takes what they
    leave, and the covariance too.

    Held too is the scatter in units of the covariance. From the scatter to the factor,
    and from that to its coordinates, the Jacobians cancel those in the prior of a
    covariance.
    """
    sums = state.sums
    step = state.steps[SUMS]
    cells, d = sums.shape
    new_root = np.zeros((d, d))
    accepted = 0
    cov = square(state.chol)
    density = log_all_sums(state, state.m, state.tau, cov)
    for k in range(cells):
        size = max(state.n[k], HALF)
        old = sums[k].copy()
        new = sums[k].copy()
        for j in range(d):
            precision = step_precision(known, state, size, cov, j)
            new[j] += step * rng.standard_normal() / math.sqrt(precision)
        scatter = square(state.root)
        add_outer(scatter, new, -1 / size)
        add_outer(scatter, old, 1 / size)
        if not cholesky(scatter, new_root):
            continue
        new_chol = product(new_root, solved(state.root, state.chol))
        new_cov = square(new_chol)
        sums[k] = new
        total = log_all_sums(state, state.m, state.tau, new_cov)
        ratio = total - density
        ratio += log_deviations(new_chol, known.priors)
        ratio -= log_deviations(state.chol, known.priors)
        ratio += log_way_back(known, state, k, old, cov, new_cov)
        if math.log(rng.random()) < ratio:
            accepted += 1
            density = total
            cov = new_cov
            state.chol[:] = new_chol
            state.root[:] = new_root
        else:
            sums[k] = old
    tune_step(state.steps, SUMS, pace, accepted / cells, 1e-3, 3.0)


@compiled
def log_way_back(
    known: Known,
    state: State,
    k: int,
    old: FloatArray,
    cov: FloatArray,
    new_cov: FloatArray,
) -> float:
    """Return what noise says for a cell's moved sums against old ones, and how much
    likelier the way back is, on which steps are as long as the new covariance makes
    them.
    """
    size = max(state.n[k], HALF)
    new = state.sums[k]
    ratio = 0.0
    for j in range(len(old)):
        here = step_precision(known, state, size, cov, j)
        there = step_precision(known, state, size, new_cov, j)
        by = (new[j] - old[j]) ** 2 / (2 * state.steps[SUMS] ** 2)
        ratio += (math.log(there) - math.log(here)) / 2 - by * (there - here)
        ratio += log_sum_noise(known, k, j, new[j])
        ratio -= log_sum_noise(known, k, j, old[j])
    return ratio


@compiled
def step_precision(
    known: Known, state: State, size: float, cov: FloatArray, j: int
) -> float:
    """Return the precision of a cell's sum, given its law and its noise alone, to
    which steps are scaled.
    """
    of_law = size * cov[j, j] + (size * state.tau[j]) ** 2
    of_noise = 2 * known.sum_scales[j] ** 2
    return float(1 / of_law + 1 / of_noise)


@compiled
def log_sum_noise(known: Known, k: int, j: int, exact: float) -> float:
    """Return the log density of the noise on a cell's sum."""
    noise = known.sums[k, j] - exact
    return log_noise(noise, known.sum_scales[j], known.gaussian)


@compiled
def move_means_with_sums(known: Known, state: State, pace: float, rng: Any) -> None:
    """Move the centre of the cells' means, or their spread, and all sums with it.

    Held are the sums in units of their own law given centre and spread.
    """
    sums = state.sums
    priors = known.priors
    cells, d = sums.shape
    cov = square(state.chol)
    scatter = square(state.root)
    drawn = np.empty((cells, d))
    for kind in (CENTRE_TOO, SPREAD_TOO):
        for j in range(d):
            new_m = state.m.copy()
            new_tau = state.tau.copy()
            if kind == CENTRE_TOO:
                new_m[j] += state.steps[kind] * rng.standard_normal()
                off = state.m[j] - priors[CENTRE, j]
                new_off = new_m[j] - priors[CENTRE, j]
                ratio = (off**2 - new_off**2) / (2 * priors[CENTRE_SD, j] ** 2)
            else:
                new_tau[j] *= math.exp(state.steps[kind] * rng.standard_normal())
                ratio = log_spread(new_tau[j], state.tau[j], j, priors)
            carry_sums(state, cov, new_m, new_tau, drawn)
            for k in range(cells):
                for i in range(d):
                    ratio += log_sum_noise(known, k, i, drawn[k, i])
                    ratio -= log_sum_noise(known, k, i, sums[k, i])
            ratio += log_products(known, scatter + about(state.n, drawn))
            ratio -= log_products(known, scatter + about(state.n, sums))
            if taken(state.steps, kind, ratio, pace / d, rng):
                sums[:] = drawn
                state.m[:] = new_m
                state.tau[:] = new_tau


@compiled
def carry_sums(
    state: State,
    cov: FloatArray,
    new_m: FloatArray,
    new_tau: FloatArray,
    out: FloatArray,
) -> None:
    """Write where all sums are at another centre and spread of the cells' means, in
    units of their own law.
    """
    cells, d = out.shape
    old = np.zeros((d, d))
    new = np.zeros((d, d))
    for k in range(cells):
        size = max(state.n[k], HALF)
        spread(state.n[k], cov, state.tau, old)
        spread(state.n[k], cov, new_tau, new)
        z = forward(old, state.sums[k] - size * state.m)
        for i in range(d):
            out[k, i] = size * new_m[i]
            for h in range(i + 1):
                out[k, i] += new[i, h] * z[h]


@compiled
def draw_centre(known: Known, state: State, rng: Any) -> None:
    """Draw the mean of the cells' means."""
    d = len(state.tau)
    cov = square(state.chol)
    chol = np.zeros((d, d))
    factor = np.zeros((d, d))
    precision = np.diag(1 / known.priors[CENTRE_SD] ** 2)
    place = known.priors[CENTRE] / known.priors[CENTRE_SD] ** 2
    for k in range(len(state.n)):
        size = max(state.n[k], HALF)
        spread(state.n[k], cov, state.tau, chol)
        place += size * backward(chol, forward(chol, state.sums[k]))
        precision += size * size * inverted(chol)
    cholesky(precision, factor)
    state.m[:] = backward(factor, forward(factor, place) + rng.standard_normal(d))


@compiled
def move_spread(known: Known, state: State, pace: float, rng: Any) -> None:
    """Move the spread of the cells' means with the sums held."""
    d = len(state.tau)
    cov = square(state.chol)
    density = log_all_sums(state, state.m, state.tau, cov)
    for _ in range(TRIES):
        for j in range(d):
            new_tau = state.tau.copy()
            new_tau[j] *= math.exp(state.steps[SPREAD] * rng.standard_normal())
            new = log_all_sums(state, state.m, new_tau, cov)
            ratio = (
                new - density + log_spread(new_tau[j], state.tau[j], j, known.priors)
            )
            if taken(state.steps, SPREAD, ratio, pace / (TRIES * d), rng):
                state.tau[:] = new_tau
                density = new


@compiled
def move_covariance(
    known: Known, state: State, rest: FloatArray, kind: int, pace: float, rng: Any
) -> None:
    """Move the covariance with the scatter held, or in units of it; ``rest`` is what
    the means add to products.
    """
    chol = state.chol
    root = state.root
    new_chol = moved(chol, state.steps[kind], rng)
    new_root = root
    ratio = log_covariance(known, state, new_chol) - log_covariance(known, state, chol)
    if kind == BOTH:
        new_root = product(new_chol, solved(chol, root))
        ratio += log_products(known, square(new_root) + rest)
        ratio -= log_products(known, square(root) + rest)
    else:
        ratio += log_wishart(new_chol, root, known.df)
        ratio -= log_wishart(chol, root, known.df)
    if taken(state.steps, kind, ratio, pace / TRIES, rng):
        chol[:] = new_chol
        root[:] = new_root


@compiled
def move_scatter(
    known: Known, state: State, rest: FloatArray, pace: float, rng: Any
) -> None:
    """Move the scatter with the covariance held; ``rest`` is what the means add to
    products.
    """
    root = state.root
    step = state.steps[SCATTER]
    inside = solved(state.chol, root)
    # a standard Wishart factor, in the logs of its diagonal and the rest
    new_inside = inside.copy()
    ratio = 0.0
    for i in range(len(root)):
        by = step * rng.standard_normal()
        new_inside[i, i] *= math.exp(by)
        ratio += (known.df - i) * by
        for j in range(i):
            new_inside[i, j] += step * math.sqrt(known.df) * rng.standard_normal()
    new_root = product(state.chol, new_inside)
    ratio -= ((new_inside**2).sum() - (inside**2).sum()) / 2
    ratio += log_products(known, square(new_root) + rest)
    ratio -= log_products(known, square(root) + rest)
    if taken(state.steps, SCATTER, ratio, pace / TRIES, rng):
        root[:] = new_root


@compiled
def taken(steps: FloatArray, kind: int, ratio: float, pace: float, rng: Any) -> bool:
    """Return whether a move is accepted, and tune the size of its steps."""
    found = math.log(rng.random()) < ratio
    steps[kind] *= math.exp(pace * ((1.0 if found else 0.0) - WANTED))
    return found
