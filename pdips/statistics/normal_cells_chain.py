"""One chain for normal columns within cells, given noisy counts, sums and products: a compiled loop over its moves."""

import math
from typing import Any

import numpy as np
from numba import njit

from pdips.arrays import FloatArray
from pdips.statistics import normal_cells_kernels as kernels
from pdips.statistics.normal_cells_kernels import (
    about,
    count_moves,
    draw_centre,
    draw_sums,
    log_all_sums,
    log_bartlett,
    log_prior,
    log_products,
    log_spread,
    log_wishart,
    lower_times,
    moved,
    outer_over,
    reciprocal_variance,
    times_own,
    tuned,
)

HALF, CENTRE, CENTRE_SD = kernels.HALF, kernels.CENTRE, kernels.CENTRE_SD
CENTRE_TOO, SPREAD_TOO, SPREAD, COVARIANCE, BOTH, SCATTER = range(6)
"""Places of step sizes: of the centre and the spread of cells' means, moved with all sums; of what is moved alone."""

TRIES = 3
"""Moves of each kind of the covariance and the scatter in one step."""


@njit(cache=True)
def move_sums(
    n: FloatArray,
    sums: FloatArray,
    noisy: FloatArray,
    precision: FloatArray,
    m: FloatArray,
    cov: FloatArray,
    chol: FloatArray,
    tau: FloatArray,
    root: FloatArray,
    df: float,
    products: FloatArray,
    product_scales: FloatArray,
    gaussian: bool,
    rng: Any,
) -> None:
    """Draw each cell's sums, either with the scatter or with the products held fixed; ``sums`` and ``root`` follow."""
    d = len(m)
    whole = about(n, sums)
    new_root = np.zeros((d, d))
    for k in range(len(n)):
        size = max(n[k], HALF)
        drawn = draw_sums(k, n[k], noisy, precision, m, cov, tau, rng)
        change = outer_over(drawn, size) - outer_over(sums[k], size)
        scatter = times_own(root)
        if rng.random() < 0.5:
            ratio = log_products(scatter + whole + change, products, product_scales, gaussian)
            ratio -= log_products(scatter + whole, products, product_scales, gaussian)
            if math.log(rng.random()) < ratio:
                sums[k] = drawn
                whole += change
        elif kernels.cholesky(scatter - change, new_root):
            ratio = log_wishart(chol, new_root, df) - log_wishart(chol, root, df)
            for i in range(d):
                ratio += (df - d - 1) * math.log(new_root[i, i] / root[i, i])
            if math.log(rng.random()) < ratio:
                sums[k] = drawn
                whole += change
                root[:] = new_root


@njit(cache=True)
def move_sums_and_scale(
    n: FloatArray,
    sums: FloatArray,
    noisy: FloatArray,
    sum_scales: FloatArray,
    gaussian: bool,
    m: FloatArray,
    tau: FloatArray,
    chol: FloatArray,
    root: FloatArray,
    step: float,
    priors: FloatArray,
    rng: Any,
) -> int:
    """Move each cell's sums with the products held, so that the scatter takes what they leave, and the covariance with
    it.

    Held too is the scatter in units of the covariance. ``sums``, ``chol`` and ``root`` follow. From the scatter to the
    factor, and from that to its coordinates, the Jacobians cancel those in the prior of a covariance.
    """
    cells, d = sums.shape
    new_root, accepted = np.zeros((d, d)), 0
    cov = times_own(chol)
    known = log_all_sums(n, sums, m, cov, tau)
    for k in range(cells):
        size = max(n[k], HALF)
        old, new = sums[k].copy(), sums[k].copy()
        ratio = 0.0
        for j in range(d):
            own = size * cov[j, j] + (size * tau[j]) ** 2
            new[j] += step * rng.standard_normal() / math.sqrt(1 / own + 1 / (2 * sum_scales[j] ** 2))
        scatter = times_own(root) - outer_over(new, size) + outer_over(old, size)
        if not kernels.cholesky(scatter, new_root):
            continue
        new_chol = kernels.right_divided(new_root, kernels.inverse_times(chol, root))
        new_cov = times_own(new_chol)
        # Steps are as long on the way back as the covariance there makes them.
        for j in range(d):
            there = 1 / (size * new_cov[j, j] + (size * tau[j]) ** 2) + 1 / (2 * sum_scales[j] ** 2)
            here = 1 / (size * cov[j, j] + (size * tau[j]) ** 2) + 1 / (2 * sum_scales[j] ** 2)
            by = (new[j] - old[j]) ** 2 / (2 * step**2)
            ratio += (math.log(there) - math.log(here)) / 2 - by * (there - here)
            ratio += kernels.log_noise(noisy[k, j] - new[j], sum_scales[j], gaussian)
            ratio -= kernels.log_noise(noisy[k, j] - old[j], sum_scales[j], gaussian)
        sums[k] = new
        total = log_all_sums(n, sums, m, new_cov, tau)
        ratio += total - known + kernels.log_deviations(new_chol, priors)
        ratio -= kernels.log_deviations(chol, priors)
        if math.log(rng.random()) < ratio:
            accepted += 1
            known, cov = total, new_cov
            chol[:] = new_chol
            root[:] = new_root
        else:
            sums[k] = old
    return accepted


@njit(cache=True)
def move_means_with_sums(
    n: FloatArray,
    sums: FloatArray,
    noisy: FloatArray,
    sum_scales: FloatArray,
    gaussian: bool,
    m: FloatArray,
    tau: FloatArray,
    cov: FloatArray,
    root: FloatArray,
    products: FloatArray,
    product_scales: FloatArray,
    steps: FloatArray,
    pace: float,
    priors: FloatArray,
    rng: Any,
) -> None:
    """Move the centre of the cells' means, or their spread, and all sums with it; ``sums``, ``m``, ``tau`` follow.

    Held are the sums in units of their own law given centre and spread. ``steps``, of centre and spread, are tuned.
    """
    cells, d = sums.shape
    scatter = times_own(root)
    old, new = np.zeros((d, d)), np.zeros((d, d))
    for kind in range(2):
        for j in range(d):
            new_m, new_tau, ratio = m.copy(), tau.copy(), 0.0
            if kind == 0:
                new_m[j] += steps[CENTRE_TOO] * rng.standard_normal()
                off = (m[j] - priors[CENTRE, j]) ** 2 - (new_m[j] - priors[CENTRE, j]) ** 2
                ratio += off / (2 * priors[CENTRE_SD, j] ** 2)
            else:
                new_tau[j] *= math.exp(steps[SPREAD_TOO] * rng.standard_normal())
                ratio += log_spread(new_tau[j], tau[j], j, priors)
            drawn = np.empty((cells, d))
            for k in range(cells):
                size = max(n[k], HALF)
                kernels.spread(n[k], cov, tau, old)
                kernels.spread(n[k], cov, new_tau, new)
                z = kernels.forward(old, sums[k] - size * m)
                for i in range(d):
                    drawn[k, i] = size * new_m[i]
                    for h in range(i + 1):
                        drawn[k, i] += new[i, h] * z[h]
                    ratio += kernels.log_noise(noisy[k, i] - drawn[k, i], sum_scales[i], gaussian)
                    ratio -= kernels.log_noise(noisy[k, i] - sums[k, i], sum_scales[i], gaussian)
            ratio += log_products(scatter + about(n, drawn), products, product_scales, gaussian)
            ratio -= log_products(scatter + about(n, sums), products, product_scales, gaussian)
            taken = math.log(rng.random()) < ratio
            if taken:
                sums[:] = drawn
                m[:] = new_m
                tau[:] = new_tau
            steps[kind] = tuned(steps[kind], taken, pace / d)


@njit(cache=True)
def move_spread(
    n: FloatArray,
    sums: FloatArray,
    m: FloatArray,
    cov: FloatArray,
    tau: FloatArray,
    steps: FloatArray,
    pace: float,
    priors: FloatArray,
    rng: Any,
) -> FloatArray:
    """Return the spread of the cells' means after moves with the sums held."""
    known = log_all_sums(n, sums, m, cov, tau)
    for _ in range(TRIES):
        for j in range(len(tau)):
            new_tau = tau.copy()
            new_tau[j] *= math.exp(steps[SPREAD] * rng.standard_normal())
            new = log_all_sums(n, sums, m, cov, new_tau)
            ratio = new - known + log_spread(new_tau[j], tau[j], j, priors)
            taken = math.log(rng.random()) < ratio
            if taken:
                tau, known = new_tau, new
            steps[SPREAD] = tuned(steps[SPREAD], taken, pace / (TRIES * len(tau)))
    return tau


@njit(cache=True)
def move_covariance(
    n: FloatArray,
    sums: FloatArray,
    m: FloatArray,
    tau: FloatArray,
    chol: FloatArray,
    root: FloatArray,
    df: float,
    steps: FloatArray,
    pace: float,
    priors: FloatArray,
    rng: Any,
) -> FloatArray:
    """Return the factor of the covariance after a move with the scatter held."""
    new_chol = moved(chol, steps[COVARIANCE], rng)
    ratio = log_all_sums(n, sums, m, times_own(new_chol), tau) - log_all_sums(n, sums, m, times_own(chol), tau)
    ratio += (
        log_prior(new_chol, priors)
        - log_prior(chol, priors)
        + log_wishart(new_chol, root, df)
        - log_wishart(chol, root, df)
    )
    taken = math.log(rng.random()) < ratio
    steps[COVARIANCE] = tuned(steps[COVARIANCE], taken, pace / TRIES)
    return new_chol if taken else chol


@njit(cache=True)
def move_both(
    n: FloatArray,
    sums: FloatArray,
    m: FloatArray,
    tau: FloatArray,
    chol: FloatArray,
    root: FloatArray,
    rest: FloatArray,
    products: FloatArray,
    product_scales: FloatArray,
    gaussian: bool,
    steps: FloatArray,
    pace: float,
    priors: FloatArray,
    rng: Any,
) -> tuple[FloatArray, FloatArray]:
    """Return both factors after a move with the scatter in units of the covariance held."""
    new_chol = moved(chol, steps[BOTH], rng)
    new_root = lower_times(new_chol, kernels.inverse_times(chol, root))
    ratio = log_all_sums(n, sums, m, times_own(new_chol), tau) - log_all_sums(n, sums, m, times_own(chol), tau)
    ratio += log_prior(new_chol, priors) - log_prior(chol, priors)
    ratio += log_products(times_own(new_root) + rest, products, product_scales, gaussian)
    ratio -= log_products(times_own(root) + rest, products, product_scales, gaussian)
    taken = math.log(rng.random()) < ratio
    steps[BOTH] = tuned(steps[BOTH], taken, pace / TRIES)
    return (new_chol, new_root) if taken else (chol, root)


@njit(cache=True)
def move_scatter(
    chol: FloatArray,
    root: FloatArray,
    df: float,
    rest: FloatArray,
    products: FloatArray,
    product_scales: FloatArray,
    gaussian: bool,
    steps: FloatArray,
    pace: float,
    rng: Any,
) -> FloatArray:
    """Return the factor of the scatter after a move with the covariance held."""
    inside = kernels.inverse_times(chol, root)
    new_inside = inside.copy()
    for i in range(len(chol)):
        new_inside[i, i] *= math.exp(steps[SCATTER] * rng.standard_normal())
        for j in range(i):
            new_inside[i, j] += steps[SCATTER] * math.sqrt(df) * rng.standard_normal()
    new_root = lower_times(chol, new_inside)
    ratio = log_bartlett(new_inside, df) - log_bartlett(inside, df)
    ratio += log_products(times_own(new_root) + rest, products, product_scales, gaussian)
    ratio -= log_products(times_own(root) + rest, products, product_scales, gaussian)
    taken = math.log(rng.random()) < ratio
    steps[SCATTER] = tuned(steps[SCATTER], taken, pace / TRIES)
    return new_root if taken else root


@njit(cache=True)
def run(
    noisy_counts: FloatArray,
    count_scales: FloatArray,
    noisy_sums: FloatArray,
    sum_scales: FloatArray,
    products: FloatArray,
    product_scales: FloatArray,
    gaussian: bool,
    alpha: float,
    priors: FloatArray,
    df: float,
    start_counts: FloatArray,
    start_sums: FloatArray,
    start_chol: FloatArray,
    tune: int,
    draws: int,
    thin: int,
    rng: Any,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Run a chain.

    Returns
    -------
    counts, sums, m, tau, chol : ndarray
        Shapes (draws, cells), (draws, cells, d), (draws, d), (draws, d), (draws, d, d).
    """
    cells, d = noisy_sums.shape
    n, sums, chol = start_counts.copy(), start_sums.copy(), start_chol.copy()
    m, tau = np.zeros(d), np.full(d, 0.3)
    root = math.sqrt(df) * chol
    precision = np.empty((cells, d))
    kept_n, kept_sums = np.empty((draws, cells)), np.empty((draws, cells, d))
    kept_m, kept_tau, kept_chol = np.empty((draws, d)), np.empty((draws, d)), np.empty((draws, d, d))
    steps = np.array([0.1, 0.3, 0.3, 0.1, 0.1, 0.1])
    count_step, sum_step = 3.0, 0.5
    for step in range(tune + draws * thin):
        pace = 0.0 if step >= tune else (step + 1.0) ** -0.6
        cov = times_own(chol)
        whole = times_own(root) + about(n, sums)
        accepted = count_moves(
            n,
            sums,
            noisy_counts,
            count_scales,
            gaussian,
            alpha,
            m,
            cov,
            tau,
            whole,
            products,
            product_scales,
            count_step,
            rng,
        )
        count_step = min(max(count_step * math.exp(pace * (accepted / cells - 0.3)), 0.5), 1e6)
        for k in range(cells):
            for j in range(d):
                if gaussian:
                    precision[k, j] = 1 / sum_scales[j] ** 2
                else:
                    precision[k, j] = reciprocal_variance(noisy_sums[k, j] - sums[k, j], sum_scales[j], rng)
        move_sums(n, sums, noisy_sums, precision, m, cov, chol, tau, root, df, products, product_scales, gaussian, rng)
        chol, root = chol.copy(), root.copy()
        accepted = move_sums_and_scale(
            n, sums, noisy_sums, sum_scales, gaussian, m, tau, chol, root, sum_step, priors, rng
        )
        sum_step = min(max(sum_step * math.exp(pace * (accepted / cells - 0.3)), 1e-3), 3.0)
        cov = times_own(chol)
        for _ in range(TRIES):
            move_means_with_sums(
                n,
                sums,
                noisy_sums,
                sum_scales,
                gaussian,
                m,
                tau,
                cov,
                root,
                products,
                product_scales,
                steps,
                pace,
                priors,
                rng,
            )
        m = draw_centre(n, sums, cov, tau, priors, rng)
        tau = move_spread(n, sums, m, cov, tau, steps, pace, priors, rng)
        rest = about(n, sums)
        for _ in range(TRIES):
            chol = move_covariance(n, sums, m, tau, chol, root, df, steps, pace, priors, rng)
            chol, root = move_both(
                n, sums, m, tau, chol, root, rest, products, product_scales, gaussian, steps, pace, priors, rng
            )
            root = move_scatter(chol, root, df, rest, products, product_scales, gaussian, steps, pace, rng)
        if step >= tune and (step - tune) % thin == 0:
            row = (step - tune) // thin
            kept_n[row], kept_sums[row], kept_m[row], kept_tau[row], kept_chol[row] = n, sums, m, tau, chol
    return kept_n, kept_sums, kept_m, kept_tau, kept_chol
