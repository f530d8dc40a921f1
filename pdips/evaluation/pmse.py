"""Propensity score mean squared error (pMSE) on numeric and mixed tables. For inside use only."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.evaluation.frames import Pair, Records, indicators, paired
from pdips.evaluation.logit import cross_validated, maximum_likelihood, orthonormal, standardised

Penalty = Literal["lasso", "ridge"] | None

NULLS = ("formula", "permutation", "resample")
MOST_COEFFICIENTS = 2_000


@dataclass(frozen=True, kw_only=True)
class StandardisedPmse:
    """pMSE against what it would be if the synthetic set were right.

    Attributes
    ----------
    pmse : float
        From 0 to c (1 - c).
    expected, standard_deviation : float
        Of pMSE under the null hypothesis.
    ratio, z : float
        ``pmse / expected`` (about 1 for a right set) and ``(pmse - expected) / standard_deviation``. NaN where no
        column varies; under a LASSO null with nothing selected, infinite.
    n_coefficients : int
        Of the logistic regression, the intercept and only independent ones counted.
    """

    pmse: float
    expected: float
    standard_deviation: float
    ratio: float
    z: float
    n_coefficients: int


def pmse(
    original: Records,
    synthetic: Records,
    *,
    interactions: bool = False,
    penalty: Penalty = None,
    rng: np.random.Generator | None = None,
) -> float:
    """Measure how well logistic regression tells synthetic records from confidential ones.

    Parameters
    ----------
    original, synthetic : DataFrame or array_like, shape (records, columns)
        The confidential table and a synthetic set. Numeric columns enter as numbers (where values are missing, with
        their mean and an indicator), all others as indicators; see :func:`pdips.evaluation.frames.indicators`.
    interactions : bool
        Whether products of every two columns enter too, as R's ``. ^ 2``: pMSE WI of paper 002, else pMSE WOI.
    penalty : {None, "lasso", "ridge"}
        None: maximum likelihood. Otherwise a penalty whose size has the smallest deviance in cross-validation with ten
        folds, as ``cv.glmnet`` with ``lambda.min``: for wide or sparse tables.
    rng : numpy.random.Generator, optional
        Deals records out to the folds.

    Returns
    -------
    float
        ``mean((p - c) ** 2)`` over the records of both tables, ``p`` a record's chance of being synthetic and ``c``
        the share of synthetic records: 0 can't be told apart, c (1 - c) (0.25 for tables of one size) wholly apart.

    Raises
    ------
    InputError
        If tables don't match or are empty, there is no such penalty, or more than 2,000 coefficients.

    Notes
    -----
    Snoke, Raab, Nowok, Dibben and Slavkovic (2018), *General and specific utility measures for synthetic data*, JRSS A
    181, 663-688; section 4.2 of paper 002. Columns are standardised, products are of standardised columns, and
    dependent columns are dropped: none of it changes an unpenalised fit. Newton's method stops as R's ``glm`` does.
    Under separation likelihood has no maximum, but chances converge, to 0 and 1 where the tables are apart: they are
    used (:func:`pdips.evaluation.logit.maximum_likelihood`).
    """
    return _Comparison(original, synthetic, interactions, penalty).score(rng)


def standardised_pmse(
    original: Records,
    synthetic: Records,
    *,
    interactions: bool = False,
    penalty: Penalty = None,
    null: str | None = None,
    n_draws: int = 100,
    rng: np.random.Generator | None = None,
) -> StandardisedPmse:
    """Compare pMSE with what it would be under the null hypothesis that the synthetic set is right.

    Parameters
    ----------
    original, synthetic, interactions, penalty
        As in :func:`pmse`.
    null : {"formula", "permutation", "resample"}, optional
        ``"formula"`` (the default without a penalty, and only then): the set is drawn from a right model that was
        fitted to the original, which is fixed. ``"resample"`` (the default with a penalty): the same by simulation, the
        synthetic set replaced by draws from the original with replacement. ``"permutation"``: both tables are
        independent samples of one population, records dealt out anew; its mean is 1 / (1 - c) times the formula's,
        twice for tables of one size, for it has the sampling error of both tables. Use it against a hold-out.
    n_draws : int
        Permutations or resamples, at least 2. Mean and standard deviation have relative standard errors of
        sqrt(2 / ((k - 1) n_draws)) and about sqrt(1 / (2 n_draws)) for k coefficients.
    rng : numpy.random.Generator, optional
        For them, and for the folds of a penalty.

    Returns
    -------
    StandardisedPmse
        pMSE, its mean and standard deviation under the null, ratio and z.

    Raises
    ------
    InputError
        As :func:`pmse`, or if there is no such null, or ``n_draws`` is below 2.

    Notes
    -----
    Snoke et al. (2018), section 3: for unpenalised logistic regression with k independent coefficients, the intercept
    among them, and N records of which a share c is synthetic,

        E(pMSE) = (k - 1) (1 - c)^2 c / N,   sd(pMSE) = sqrt(2 (k - 1)) (1 - c)^2 c / N

    for large N: N pMSE / ((1 - c)^2 c) is chi-square with k - 1 degrees of freedom. It takes columns with moments; with
    heavy tails and interactions, the simulated nulls are safer.
    """
    chosen = null or ("formula" if penalty is None else "resample")
    if chosen not in NULLS or (chosen == "formula" and penalty is not None):
        raise InputError(f"null must be one of {', '.join(NULLS)}, and no formula is known for penalised fits")
    if n_draws < 2:
        raise InputError("n_draws must be at least 2")
    rng = np.random.default_rng() if rng is None else rng
    comparison = _Comparison(original, synthetic, interactions, penalty)
    score = comparison.score(rng)
    if chosen == "formula":
        expected, deviation = null_moments(comparison.n_coefficients, *comparison.sizes)
    else:
        draws = [comparison.score(rng, rows) for rows in comparison.null_rows(chosen, n_draws, rng)]
        expected, deviation = float(np.mean(draws)), float(np.std(draws, ddof=1))
    return StandardisedPmse(
        pmse=score,
        expected=expected,
        standard_deviation=deviation,
        ratio=_over(score, expected),
        z=_over(score - expected, deviation),
        n_coefficients=comparison.n_coefficients,
    )


def null_moments(n_coefficients: int, n_original: int, n_synthetic: int) -> tuple[float, float]:
    """Return mean and standard deviation of pMSE for a right synthetic set, the original fixed.

    Parameters
    ----------
    n_coefficients : int
        Of an unpenalised logistic regression, with the intercept.
    n_original, n_synthetic : int
        Records.

    Returns
    -------
    tuple of float
        ``(k - 1) (1 - c)^2 c / N`` and ``sqrt(2 (k - 1)) (1 - c)^2 c / N``; see :func:`standardised_pmse`.
    """
    n = n_original + n_synthetic
    share = n_synthetic / n
    unit = (1 - share) ** 2 * share / n
    return (n_coefficients - 1) * unit, float(np.sqrt(2 * (n_coefficients - 1))) * unit


class _Comparison:
    """Two tables, their design built once; scores are of all records, or of some in the place of the tables."""

    def __init__(self, original: Records, synthetic: Records, interactions: bool, penalty: Penalty) -> None:
        if penalty not in (None, "lasso", "ridge"):
            raise InputError(f"penalty must be None, 'lasso' or 'ridge', not {penalty!r}")
        pairs = paired(original, synthetic)
        self.sizes = len(pairs[0].original), len(pairs[0].synthetic)
        self._penalty = penalty
        self._columns = design(pairs, interactions=interactions)
        self._orthonormal = orthonormal(standardised(self._columns))
        self.n_coefficients = self._orthonormal.shape[1] + 1

    def score(self, rng: np.random.Generator | None, rows: IntArray | None = None) -> float:
        y = np.repeat([0.0, 1.0], self.sizes)
        if self._penalty is None:
            z = self._orthonormal if rows is None else orthonormal(standardised(self._columns[rows]))
            chance = maximum_likelihood(z, y)
        else:
            x = standardised(self._columns if rows is None else self._columns[rows])
            chance = cross_validated(x, y, self._penalty, np.random.default_rng() if rng is None else rng)
        return float(np.mean((chance - y.mean()) ** 2))

    def null_rows(self, null: str, n_draws: int, rng: np.random.Generator) -> list[IntArray]:
        n_original, n_synthetic = self.sizes
        first = np.arange(n_original)
        draw: Callable[[], IntArray] = {
            "permutation": lambda: rng.permutation(n_original + n_synthetic),
            "resample": lambda: np.concatenate([first, rng.integers(n_original, size=n_synthetic)]),
        }[null]
        return [draw() for _ in range(n_draws)]


def design(pairs: list[Pair], *, interactions: bool) -> FloatArray:
    """Return the columns of the logistic regression, original records first, without an intercept.

    Parameters
    ----------
    pairs : list of Pair
        Columns of both tables.
    interactions : bool
        Whether products of every two columns enter, of columns that are standardised first: they span the same.

    Returns
    -------
    ndarray of float64, shape (records of both tables, coefficients)
        Not standardised.

    Raises
    ------
    InputError
        If there are more than 2,000.
    """
    blocks = [[np.concatenate(both) for both in indicators(pair).values()] for pair in pairs]
    widths = [len(block) for block in blocks]
    n_products = sum(a * b for a, b in combinations(widths, 2)) if interactions else 0
    if sum(widths) + n_products > MOST_COEFFICIENTS:
        raise InputError(
            f"these columns make {sum(widths) + n_products:,} coefficients, above {MOST_COEFFICIENTS:,}; "
            "leave out columns with many levels, or interactions"
        )
    n = len(pairs[0].original) + len(pairs[0].synthetic)
    main = [standardised(np.column_stack(block)) if block else np.empty((n, 0)) for block in blocks]
    if interactions:
        main += [(a[:, :, None] * b[:, None, :]).reshape(n, -1) for a, b in combinations(main, 2)]
    return np.hstack(main)


def _over(a: float, b: float) -> float:
    if b > 0:
        return a / b
    return float("nan") if a == 0 else float(np.copysign(np.inf, a))
