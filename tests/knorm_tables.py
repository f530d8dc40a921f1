"""Small tables for K-norm gradient densities, and cells of their laws by brute
force.
"""

import itertools

import numpy as np
from scipy import stats

from pdips.quantile.gradient import DensityNorm, KNormGradient

LOWER, UPPER = np.array([-1.0, -4.0]), np.array([7.0, 5.0])
SIDE = 8
FINE = 90
LINES = {"floors": [[0.2, 0.5], [-0.5, 0.0]], "ceilings": [5.0, 0.4]}


def skewed(
    scale: float = 0.5, tau: float = 0.3, norm: DensityNorm = "hull", **lines
) -> KNormGradient:
    """Nine records with a long upper tail: a symmetric target would hide a wrong
    sign.
    """
    rng = np.random.default_rng(5)
    x = np.minimum(rng.exponential(0.5, 9), 2.0) - 1
    return KNormGradient(
        np.column_stack([np.ones(9), x]),
        1 + 2 * x + rng.exponential(2, 9),
        tau,
        scale,
        norm,
        **lines,
    )


def norm_of(density: KNormGradient, gradients: np.ndarray) -> np.ndarray:
    """Return the norm of gradients, shape (..., p), by its definition."""
    sizes = np.abs(gradients)
    beyond = np.max(sizes[..., 1:] - sizes[..., :1], axis=-1, initial=0.0) / (
        2 * max(density.tau, 1 - density.tau)
    )
    norms = {
        "l1": sizes.sum(-1),
        "l2": np.sqrt((sizes**2).sum(-1)),
        "linf": sizes.max(-1),
    }
    return norms.get(density.norm, sizes[..., 0] + beyond)


def norm_at(density: KNormGradient, theta: np.ndarray) -> np.ndarray:
    """Return the norm of the gradient at each theta, shape (..., p)."""
    return norm_of(
        density, ((density.y <= theta @ density.x.T) - density.tau) @ density.x
    )


def heights(density: KNormGradient, theta: np.ndarray) -> np.ndarray:
    """Return by how much each floor and ceiling is kept at the worst vertex of the box
    of covariates.
    """
    lines, signs = density.lines
    vertices = np.array(
        [[1, *each] for each in itertools.product(*np.transpose(density.covariates))]
    )
    return (signs[:, None] * ((theta[..., None, :] - lines) @ vertices.T)).min(axis=-1)


def log_density(density: KNormGradient, theta: np.ndarray) -> np.ndarray:
    """Return the log density up to a constant; minus infinity across a line."""
    kept = (heights(density, theta) >= 0).all(axis=-1)
    return np.where(kept, -density.scale * norm_at(density, theta), -np.inf)


def masses(density: KNormGradient, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the middles of n x n cells of the box, the first coordinate fastest, and
    their probabilities.
    """
    steps = (np.arange(n) + 0.5) / n
    grid = LOWER + (UPPER - LOWER) * np.stack(np.meshgrid(steps, steps), -1).reshape(
        -1, 2
    )
    mass = np.exp(log_density(density, grid))
    return grid, mass / mass.sum()


def cells(density: KNormGradient) -> np.ndarray:
    """Return the probability of each of SIDE x SIDE cells of the box, by FINE x FINE
    midpoints in each of them.
    """
    return masses(density, SIDE * FINE)[1].reshape(SIDE, FINE, SIDE, FINE).sum((1, 3)).T


def fine_draws(density: KNormGradient, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return draws of a density of two parameters, shape (n, 2), to a 400th of
    the box.
    """
    grid, mass = masses(density, 400)
    return (
        grid[rng.choice(len(grid), n, p=mass)]
        + rng.uniform(-0.5, 0.5, (n, 2)) * (UPPER - LOWER) / 400
    )


def p_value(draws: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the p-value of draws, shape (draws, 2), in cells; those that expect fewer
    than 20 are pooled.
    """
    places = np.clip(
        ((draws - LOWER) / (UPPER - LOWER) * SIDE).astype(int), 0, SIDE - 1
    )
    counts = np.bincount(places @ [SIDE, 1], minlength=SIDE * SIDE)
    expected = probabilities.ravel() * len(draws)
    if counts[expected == 0].any():
        return 0.0
    few = expected < 20
    pools = [np.append(each[~few], each[few].sum()) for each in (counts, expected)]
    kept = pools[1] > 0
    return float(stats.chisquare(pools[0][kept], pools[1][kept]).pvalue)


def lag_one(draws: np.ndarray) -> float:
    """Return the largest autocorrelation of neighbouring draws."""
    return max(abs(np.corrcoef(column[1:], column[:-1])[0, 1]) for column in draws.T)


def slow_chain(
    density: KNormGradient,
    n_draws: int,
    thin: int,
    rng: np.random.Generator,
    *,
    broken: str = "",
):
    """Hit-and-run, written plainly; ``broken`` says what is wrong with it."""
    theta, kept = (LOWER + UPPER) / 2, np.empty((n_draws, 2))
    for row in range(n_draws * thin):
        direction = rng.standard_normal(2)
        stops = np.sort(
            [(LOWER - theta) / direction, (UPPER - theta) / direction], axis=0
        )
        low, high = stops[0].max(), stops[1].min()
        speeds = density.x @ direction
        times = (density.y - density.x @ theta) / speeds
        ends = np.concatenate(
            [[low], np.sort(times[(times > low) & (times < high)]), [high]]
        )
        middles = (ends[1:] + ends[:-1]) / 2
        counts = times <= middles[:, None]
        if broken != "every record comes in":
            counts = np.where(speeds > 0, counts, ~counts)
        norms = norm_of(density, (counts - density.tau) @ density.x)
        weights = np.exp(-density.scale * (norms - norms.min()))
        if broken != "pieces without their lengths":
            weights = weights * np.diff(ends)
        masses = np.cumsum(weights)
        k = np.searchsorted(masses, rng.random() * masses[-1])
        theta = np.clip(
            theta + rng.uniform(ends[k], ends[k + 1]) * direction, LOWER, UPPER
        )
        kept[row // thin] = theta
    return kept
