"""Independent posterior draws of the shares of cells, given their noisy counts."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray
from pdips.statistics.exact_counts import draw_counts, draw_first_of_two, draw_proportions
from pdips.statistics.noise_laws import GaussianLaw, LaplaceLaw

if TYPE_CHECKING:
    from pdips.statistics.noisy_model import Given


def draw_shares(given: "Given", name: str, alpha: ArrayLike, n_draws: int, rng: np.random.Generator) -> FloatArray:
    """Draw the probabilities of cells under a Dirichlet prior from their posterior, each draw by itself.

    Parameters
    ----------
    given : Given
        Noisy statistics, and whether the noise is allowed for.
    name : str
        A :class:`pdips.statistics.statistic.Counts`.
    alpha : float or array-like, shape (cells,)
        Parameters of the prior, above 0.
    n_draws : int
        Number of draws.
    rng : numpy.random.Generator
        Randomness, which protects nothing here.

    Returns
    -------
    ndarray, shape (draws, cells)

    Raises
    ------
    InputError
        If the noise is too wide to list what counts can be, see :func:`pdips.statistics.exact_counts.draw_counts`.

    Notes
    -----
    Noise-aware: exact counts from their posterior given the noisy ones, then shares given the counts; where the
    number of records is protected it has a flat prior. Plug-in: shares given noisy counts after post-processing.
    """
    measured, part = given.measured, given.measured.part(name)
    noisy, n = measured.values[name], measured.n_records
    if not given.aware or not part.n_noised:
        return draw_proportions(np.broadcast_to(given[name], (n_draws, len(noisy))), alpha, rng)
    law = LaplaceLaw(part.scale) if part.law == "laplace" else GaussianLaw(part.scale)
    if n is None or part.n_noised == len(noisy):
        return draw_proportions(draw_counts(noisy, law, n, alpha, n_draws, rng), alpha, rng)
    first, second = np.broadcast_to(np.asarray(alpha, dtype=np.float64), 2).tolist()
    counts = draw_first_of_two(noisy[:1], law, n, (first, second), n_draws, rng)[0]
    return draw_proportions(np.column_stack([counts, n - counts]), alpha, rng)
