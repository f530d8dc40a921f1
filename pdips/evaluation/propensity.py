"""Propensity scores: how well a classifier tells synthetic records from confidential ones. For inside use only."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.special import expit

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.distribution import distances
from pdips.evaluation.encoding import (
    ColumnPair,
    TableLike,
    coded_columns,
    codes_of,
    grouped,
    indicators,
    paired,
    resampled,
    sizes_of,
    table_codes,
)
from pdips.evaluation.logistic import (
    cross_validated,
    indicators_at,
    maximum_likelihood,
    orthonormal,
    places_of,
    ridge_logistic,
    standardised,
)

Penalty = Literal["lasso", "ridge"] | None

NULLS = ("formula", "permutation", "resample")
MOST_PMSE_COEFFICIENTS = 2_000
CLASSIFIERS = ("logistic", "main-effects", "tree")
MOST_SPECKS_COEFFICIENTS = 5_000
TREE_DEPTH, TREE_LEAF = 20, 20  # Levels of a tree at most, and records in a leaf at least
N_CELLS = 100  # Parts of [0, 1] in which scores are counted
TIE_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class StandardisedPmse:
    """pMSE, and its mean ``expected`` and ``standard_deviation`` under the null hypothesis that the set is right.

    ``ratio`` is ``pmse / expected`` (about 1 for a right set), ``z`` ``(pmse - expected) / standard_deviation``: NaN
    where no column varies, infinite under a LASSO null with nothing selected. ``n_coefficients`` are those of the
    logistic regression, the intercept and only independent ones counted.
    """

    pmse: float
    expected: float
    standard_deviation: float
    ratio: float
    z: float
    n_coefficients: int


def pmse(
    original: TableLike,
    synthetic: TableLike,
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
        their mean and an indicator), all others as indicators; see :func:`pdips.evaluation.encoding.indicators`.
    interactions : bool
        Whether products of every two columns enter too, as R's ``. ^ 2``: pMSE WI of Tran et al. (2023), else pMSE WOI.
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
    ``docs/utility.md#pmse``. Columns are standardised, products are of standardised columns, and dependent columns are
    dropped: none of it changes an unpenalised fit. Under separation chances converge, to 0 and 1, and are used.

    Examples
    --------
    >>> original = pd.DataFrame({"x": range(100)})
    >>> pmse(original, original), pmse(original, original + 50) > 0.1
    (0.0, True)
    """
    return _Comparison(original, synthetic, interactions, penalty).score(rng)


def standardised_pmse(
    original: TableLike,
    synthetic: TableLike,
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

    Raises
    ------
    InputError
        As :func:`pmse`, or if there is no such null, or ``n_draws`` is below 2.

    Notes
    -----
    The formula, see :func:`null_moments`, is for large N and columns with moments (``docs/utility.md#pmse``); with
    heavy tails and interactions, the simulated nulls are safer.

    Examples
    --------
    >>> original = pd.DataFrame({"x": range(100)})
    >>> standardised_pmse(original, original + 50).ratio > 10
    True
    """
    chosen = null or ("formula" if penalty is None else "resample")
    if chosen not in NULLS or (chosen == "formula" and penalty is not None):
        raise InputError(f"null must be one of {', '.join(NULLS)}, and no formula is known for penalised fits")
    if n_draws < 2:
        raise InputError("n_draws must be at least 2")
    rng = np.random.default_rng(rng)
    comparison = _Comparison(original, synthetic, interactions, penalty)
    score = comparison.score(rng)
    if chosen == "formula":
        expected, deviation = null_moments(comparison.n_coefficients, *comparison.sizes)
    else:
        draws = comparison.null_scores(chosen, n_draws, rng)
        expected, deviation = float(np.mean(draws)), float(np.std(draws, ddof=1))
    return StandardisedPmse(
        pmse=score,
        expected=expected,
        standard_deviation=deviation,
        ratio=_ratio(score, expected),
        z=_ratio(score - expected, deviation),
        n_coefficients=comparison.n_coefficients,
    )


def null_moments(n_coefficients: int, n_original: int, n_synthetic: int) -> tuple[float, float]:
    """Return mean and standard deviation of pMSE for a right synthetic set, the original fixed.

    With k coefficients of an unpenalised logistic regression, the intercept among them, and N records of which a share
    c is synthetic, they are ``(k - 1) (1 - c)^2 c / N`` and ``sqrt(2 (k - 1)) (1 - c)^2 c / N`` (Snoke et al. 2018).
    """
    n = n_original + n_synthetic
    share = n_synthetic / n
    unit = (1 - share) ** 2 * share / n
    return (n_coefficients - 1) * unit, float(np.sqrt(2 * (n_coefficients - 1))) * unit


class _Comparison:
    """Two tables, their design built once; scores are of all records, or of some in the place of the tables."""

    def __init__(self, original: TableLike, synthetic: TableLike, interactions: bool, penalty: Penalty) -> None:
        if penalty not in (None, "lasso", "ridge"):
            raise InputError(f"penalty must be None, 'lasso' or 'ridge', not {penalty!r}")
        pairs = paired(original, synthetic)
        self.sizes = len(pairs[0].original), len(pairs[0].synthetic)
        self._penalty = penalty
        self._columns = _design(pairs, sum(self.sizes), interactions=interactions)
        self._orthonormal = orthonormal(standardised(self._columns))
        self.n_coefficients = self._orthonormal.shape[1] + 1

    def score(self, rng: np.random.Generator | None, rows: IntArray | None = None) -> float:
        y = np.repeat([0.0, 1.0], self.sizes)
        if self._penalty is None:
            z = self._orthonormal if rows is None else orthonormal(standardised(self._columns[rows]))
            chance = maximum_likelihood(z, y)
        else:
            x = standardised(self._columns if rows is None else self._columns[rows])
            chance = cross_validated(x, y, self._penalty, np.random.default_rng(rng))
        return float(np.mean((chance - y.mean()) ** 2))

    def null_scores(self, null: str, n_draws: int, rng: np.random.Generator) -> list[float]:
        n_original, n_synthetic = self.sizes
        rows = [
            rng.permutation(n_original + n_synthetic)
            if null == "permutation"
            else np.concatenate([np.arange(n_original), rng.integers(n_original, size=n_synthetic)])
            for _ in range(n_draws)
        ]
        return [self.score(rng, each) for each in rows]


def _design(pairs: list[ColumnPair], n: int, *, interactions: bool) -> FloatArray:
    """Return the columns of the logistic regression, original records first; products are of standardised columns."""
    blocks = [[np.concatenate(both) for both in indicators(pair).values()] for pair in pairs]
    widths = [len(block) for block in blocks]
    size = sum(widths) + (sum(a * b for a, b in combinations(widths, 2)) if interactions else 0)
    if size > MOST_PMSE_COEFFICIENTS:
        raise InputError(
            f"these columns make {size:,} coefficients, above {MOST_PMSE_COEFFICIENTS:,}; "
            "leave out columns with many levels, or interactions"
        )
    main = [standardised(np.column_stack(block)) if block else np.empty((n, 0)) for block in blocks]
    if interactions:
        main += [(a[:, :, None] * b[:, None, :]).reshape(n, -1) for a, b in combinations(main, 2)]
    return np.hstack(main)


def _ratio(a: float, b: float) -> float:
    if b > 0:
        return a / b
    return float("nan") if a == 0 else float(np.copysign(np.inf, a))


@dataclass(frozen=True, kw_only=True)
class PropensityScores:
    """Shares of the records of a table and of one set whose score, ``P(synthetic | record)``, lies in each hundredth.

    ``distance`` is the Kolmogorov-Smirnov distance of the scores, found at the score ``at``.
    """

    table: tuple[float, ...]
    synthetic: tuple[float, ...]
    distance: float
    at: float


@dataclass(frozen=True, kw_only=True)
class Specks:
    """Kolmogorov-Smirnov distances of propensity scores, from 0 (can't be told apart) to 1 (wholly apart).

    ``by_set`` has 1 for a set without records, ``mean`` is the figure that the paper reports, ``reference`` is of a
    sample of the table's size drawn with replacement from the table itself, and ``scores`` are of the sets that have
    records.
    """

    by_set: tuple[float, ...]
    mean: float
    reference: float
    scores: tuple[PropensityScores, ...]


def specks(
    table: Table, sets: Sequence[pd.DataFrame], *, classifier: Any = "logistic", rng: np.random.Generator | None = None
) -> Specks:
    """Measure how well a classifier tells each synthetic set from the table (SPECKS).

    Parameters
    ----------
    table, sets : Table and sequence of DataFrame
        The confidential table, and synthetic sets of its schema. Binned numeric columns count as categories of their
        bins, numeric columns without bins are left out, missing is a level of its own.
    classifier : {"logistic", "main-effects", "tree"} or object
        ``"logistic"``: logistic regression on all columns and all their first-order interactions, as in the paper;
        ``"main-effects"``: without interactions; ``"tree"``: scikit-learn's CART of depth at most 20 with at least 20
        records in a leaf. Or a classifier with scikit-learn's ``fit(X, y, sample_weight)`` and ``predict_proba``: it
        is given an indicator for each level of a categorical column and the number of the bin of a numeric one.
    rng : numpy.random.Generator, optional
        For the resample that gives the reference value.

    Raises
    ------
    InputError
        If there is no set, no such classifier, or ``"logistic"`` would need more than 5,000 coefficients.

    Notes
    -----
    Bowen, Liu and Su (2021), section 2.4; ``docs/utility.md#specks``. Scores whose log odds agree to 6 decimals
    (probabilities to 6 for other classifiers) count as tied. The logistic log-likelihood carries a ridge penalty of
    0.01 / 2 times the sum of squared coefficients (the intercept has none; the commonest level of a column is its
    reference), so that an answer exists and is unique even where levels occur in one table only.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Steps(epsilon=1, n_sets=2).release(table)
    >>> found = specks(table, release.sets)
    >>> len(found.by_set), 0 <= found.mean <= 1
    (2, True)
    """
    if not len(sets):
        raise InputError("a measure of utility needs at least one synthetic set")
    schema, original = table.schema, table_codes(table)
    _check_classifier(classifier, sizes_of(schema))
    found = [_compared(original, codes_of(frame, schema), schema, classifier) for frame in sets]
    reference = _compared(original, resampled(original, rng), schema, classifier)
    by_set = tuple(1.0 if one is None else one.distance for one in found)
    return Specks(
        by_set=by_set,
        mean=float(np.mean(by_set)),
        reference=1.0 if reference is None else reference.distance,
        scores=tuple(one for one in found if one is not None),
    )


def _check_classifier(classifier: Any, sizes: Sequence[int]) -> None:
    if not isinstance(classifier, str):
        if not (hasattr(classifier, "fit") and hasattr(classifier, "predict_proba")):
            raise InputError("a classifier needs scikit-learn's fit and predict_proba")
        return
    if classifier not in CLASSIFIERS:
        raise InputError(f"classifier must be one of {', '.join(CLASSIFIERS)} or an object, not {classifier!r}")
    main = [size - 1 for size in sizes]
    size = sum(main) + (sum(a * b for a, b in combinations(main, 2)) if classifier == "logistic" else 0)
    if size > MOST_SPECKS_COEFFICIENTS and classifier != "tree":
        raise InputError(
            f"this schema makes {size:,} coefficients, above {MOST_SPECKS_COEFFICIENTS:,}; "
            "choose another classifier or coarser bins"
        )


def _compared(original: IntArray, synthetic: IntArray, schema: Schema, classifier: Any) -> PropensityScores | None:
    """Return how the scores of two tables are spread; None if the synthetic one has no records."""
    if not len(synthetic):
        return None
    sizes = sizes_of(schema)
    rows, n_original, n_synthetic = grouped(original, synthetic, sizes)
    if log_odds := isinstance(classifier, str) and classifier != "tree":
        features = indicator_matrix(rows, sizes, n_original + n_synthetic, interactions=classifier == "logistic")
        _, scores = ridge_logistic(features, n_original, n_synthetic)
    else:
        from sklearn.base import clone
        from sklearn.tree import DecisionTreeClassifier

        columns = [schema.columns[name] for name in coded_columns(schema)]
        coded = [
            rows[:, [j]] == np.arange(c.n_levels) if c.is_categorical else rows[:, [j]] for j, c in enumerate(columns)
        ]
        features, both = np.hstack(coded).astype(np.float64), np.concatenate([n_original, n_synthetic])
        if isinstance(classifier, str):
            leaf = min(0.5, TREE_LEAF / both.sum())
            classifier = DecisionTreeClassifier(max_depth=TREE_DEPTH, min_weight_fraction_leaf=leaf, random_state=0)
        twice, labels, there = np.vstack([features, features]), np.repeat([0, 1], len(features)), both > 0
        fitted = clone(classifier).fit(twice[there], labels[there], sample_weight=both[there])  # a fresh copy
        scores = fitted.predict_proba(features)[:, 1]
    scores = np.round(scores, TIE_DIGITS)
    distance, at, _ = distances(scores, scores, n_original, n_synthetic)
    cells = np.clip(np.floor((expit(scores) if log_odds else scores) * N_CELLS), 0, N_CELLS - 1).astype(np.int64)
    shares = [np.bincount(cells, n, minlength=N_CELLS) / n.sum() for n in (n_original, n_synthetic)]
    return PropensityScores(
        table=tuple(shares[0].tolist()),
        synthetic=tuple(shares[1].tolist()),
        distance=distance,
        at=float(expit(at)) if log_odds else at,
    )


def indicator_matrix(rows: IntArray, sizes: Sequence[int], weights: FloatArray, *, interactions: bool) -> Any:
    """Return sparse indicators of all levels but the commonest by weight, and products of those of two columns.

    Indicators that are 0 throughout are left out.
    """
    commonest = np.array([np.bincount(column, weights).argmax() for column in rows.T])
    ranks = np.where(rows == commonest, -1, rows - (rows > commonest))
    return indicators_at(places_of(ranks, [size - 1 for size in sizes], interactions=interactions))
