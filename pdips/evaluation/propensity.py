"""Propensity scores: how well a classifier tells synthetic records from confidential
ones. For inside use only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

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
    indicators_at,
    maximum_likelihood,
    orthonormal,
    places_of,
    ridge_logistic,
    standardised,
)

MOST_PMSE_COEFFICIENTS = 2_000
CLASSIFIERS = ("logistic", "main-effects", "tree")
MOST_SPECKS_COEFFICIENTS = 5_000
# Levels of a tree at most, and records in a leaf at least
TREE_DEPTH = 20
TREE_LEAF = 20
TIE_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class StandardisedPmse:
    """pMSE, and its mean ``expected`` and ``standard_deviation`` under the null
    hypothesis that the set is right.

    ``ratio`` is ``pmse / expected`` (about 1 for a right set), ``z`` ``(pmse -
    expected) / standard_deviation``: NaN where no column varies. ``n_coefficients`` are
    those of the logistic regression, the intercept and only independent ones counted.
    """

    pmse: float
    expected: float
    standard_deviation: float
    ratio: float
    z: float
    n_coefficients: int


def pmse(
    original: TableLike, synthetic: TableLike, *, interactions: bool = False
) -> float:
    """Measure how well logistic regression tells synthetic records from confidential
    ones.

    Parameters
    ----------
    original, synthetic : DataFrame or array_like, shape (records, columns)
        The confidential table and a synthetic set. Numeric columns enter as numbers
        (where values are missing, with their mean and an indicator), all others as
        indicators; see :func:`pdips.evaluation.encoding.indicators`.
    interactions : bool
        Whether products of every two columns enter too, as R's ``. ^ 2``: pMSE WI of
        Tran et al. (2023), else pMSE WOI.

    Returns
    -------
    float
        ``mean((p - c) ** 2)`` over the records of both tables, ``p`` a record's chance
        of being synthetic and ``c`` the share of synthetic records: 0 can't be told
        apart, c (1 - c) (0.25 for tables of one size) wholly apart.

    Raises
    ------
    InputError
        If tables don't match or are empty, or there are more than 2,000 coefficients.

    Notes
    -----
    ``docs/evaluate.md#measures``. Columns are standardised, products are of
    standardised columns, and dependent columns are dropped: none changes the fit. Under
    separation chances converge, to 0 and 1, and are used.

    Examples
    --------
    >>> original = pd.DataFrame({"x": range(100)})
    >>> pmse(original, original), pmse(original, original + 50) > 0.1
    (0.0, True)
    """
    return standardised_pmse(original, synthetic, interactions=interactions).pmse


def standardised_pmse(
    original: TableLike, synthetic: TableLike, *, interactions: bool = False
) -> StandardisedPmse:
    """Compare pMSE with what it would be under the null hypothesis that the synthetic
    set is right: drawn from a right model that was fitted to the original.

    Parameters
    ----------
    original, synthetic, interactions
        As in :func:`pmse`.

    Raises
    ------
    InputError
        As :func:`pmse`.

    Notes
    -----
    The formula, see :func:`null_moments`, is for large N and columns with moments
    (``docs/evaluate.md#measures``).

    Examples
    --------
    >>> original = pd.DataFrame({"x": range(100)})
    >>> standardised_pmse(original, original + 50).ratio > 10
    True
    """
    pairs = paired(original, synthetic)
    sizes = len(pairs[0].original), len(pairs[0].synthetic)
    columns = design_of(pairs, sum(sizes), interactions=interactions)
    independent = orthonormal(standardised(columns))
    y = np.repeat([0.0, 1.0], sizes)
    chance = maximum_likelihood(independent, y)
    score = float(np.mean((chance - y.mean()) ** 2))
    n_coefficients = independent.shape[1] + 1
    expected, deviation = null_moments(n_coefficients, *sizes)
    return StandardisedPmse(
        pmse=score,
        expected=expected,
        standard_deviation=deviation,
        ratio=_ratio(score, expected),
        z=_ratio(score - expected, deviation),
        n_coefficients=n_coefficients,
    )


def null_moments(
    n_coefficients: int, n_original: int, n_synthetic: int
) -> tuple[float, float]:
    """Return mean and standard deviation of pMSE for a right synthetic set, the
    original fixed.

    With k coefficients of an unpenalised logistic regression, the intercept among them,
    and N records of which a share c is synthetic, they are ``(k - 1) (1 - c)^2 c / N``
    and ``sqrt(2 (k - 1)) (1 - c)^2 c / N`` (Snoke et al. 2018).
    """
    n = n_original + n_synthetic
    share = n_synthetic / n
    unit = (1 - share) ** 2 * share / n
    free = n_coefficients - 1
    return free * unit, float(np.sqrt(2 * free)) * unit


def design_of(pairs: list[ColumnPair], n: int, *, interactions: bool) -> FloatArray:
    """Return the columns of the logistic regression, original records first; products
    are of standardised columns.
    """
    blocks = [
        [np.concatenate(both) for both in indicators(pair).values()] for pair in pairs
    ]
    widths = [len(block) for block in blocks]
    size = sum(widths)
    if interactions:
        size += sum(a * b for a, b in combinations(widths, 2))
    if size > MOST_PMSE_COEFFICIENTS:
        raise InputError(
            f"these columns make {size:,} coefficients, above "
            f"{MOST_PMSE_COEFFICIENTS:,}; "
            "leave out columns with many levels, or interactions"
        )
    main = [
        standardised(np.column_stack(block)) if block else np.empty((n, 0))
        for block in blocks
    ]
    if interactions:
        for a, b in [*combinations(main, 2)]:
            products = a[:, :, None] * b[:, None, :]
            main.append(products.reshape(n, -1))
    return np.hstack(main)


def _ratio(a: float, b: float) -> float:
    if b > 0:
        return a / b
    return float("nan") if a == 0 else float(np.copysign(np.inf, a))


@dataclass(frozen=True, kw_only=True)
class Specks:
    """Kolmogorov-Smirnov distances of propensity scores, from 0 (can't be told apart)
    to 1 (wholly apart).

    ``by_set`` has 1 for a set without records, ``mean`` is the figure that the paper
    reports, and ``reference`` is of a sample of the table's size drawn with replacement
    from the table itself.
    """

    by_set: tuple[float, ...]
    mean: float
    reference: float


def specks(
    table: Table,
    sets: Sequence[pd.DataFrame],
    *,
    classifier: Any = "logistic",
    rng: np.random.Generator | None = None,
) -> Specks:
    """Measure how well a classifier tells each synthetic set from the table (SPECKS).

    Parameters
    ----------
    table, sets : Table and sequence of DataFrame
        The confidential table, and synthetic sets of its schema. Binned numeric columns
        count as categories of their bins, numeric columns without bins are left out,
        missing is a level of its own.
    classifier : {"logistic", "main-effects", "tree"} or object
        ``"logistic"``: logistic regression on all columns and all their first-order
        interactions, as in the paper; ``"main-effects"``: without interactions;
        ``"tree"``: scikit-learn's CART of depth at most 20 with at least 20 records in
        a leaf. Or a classifier with scikit-learn's ``fit(X, y, sample_weight)`` and
        ``predict_proba``: it is given an indicator for each level of a categorical
        column and the number of the bin of a numeric one.
    rng : numpy.random.Generator, optional
        For the resample that gives the reference value.

    Raises
    ------
    InputError
        If there is no set, no such classifier, or ``"logistic"`` would need more than
        5,000 coefficients.

    Notes
    -----
    Bowen, Liu and Su (2021), section 2.4; ``docs/evaluate.md#measures``. Scores whose
    log odds agree to 6 decimals (probabilities to 6 for other classifiers) count as
    tied.
    The logistic log-likelihood carries a ridge penalty of 0.01 / 2 times the sum of
    squared coefficients (the intercept has none; the commonest level of a column is its
    reference), so that an answer exists and is unique even where levels occur in one
    table only.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Margins(epsilon=1, n_sets=2).release(table)
    >>> found = specks(table, release.sets)
    >>> len(found.by_set), 0 <= found.mean <= 1
    (2, True)
    """
    if not len(sets):
        raise InputError("a measure of utility needs at least one synthetic set")
    schema = table.schema
    original = table_codes(table)
    _check_classifier(classifier, sizes_of(schema))
    by_set = tuple(
        _distance_of_scores(original, codes_of(frame, schema), schema, classifier)
        for frame in sets
    )
    resample = resampled(original, rng)
    return Specks(
        by_set=by_set,
        mean=float(np.mean(by_set)),
        reference=_distance_of_scores(original, resample, schema, classifier),
    )


def _check_classifier(classifier: Any, sizes: Sequence[int]) -> None:
    if not isinstance(classifier, str):
        if not (hasattr(classifier, "fit") and hasattr(classifier, "predict_proba")):
            raise InputError("a classifier needs scikit-learn's fit and predict_proba")
        return
    if classifier not in CLASSIFIERS:
        raise InputError(
            f"classifier must be one of {', '.join(CLASSIFIERS)} or an "
            f"object, not {classifier!r}"
        )
    main = [size - 1 for size in sizes]
    size = sum(main)
    if classifier == "logistic":
        size += sum(a * b for a, b in combinations(main, 2))
    if size > MOST_SPECKS_COEFFICIENTS and classifier != "tree":
        raise InputError(
            f"this schema makes {size:,} coefficients, above "
            f"{MOST_SPECKS_COEFFICIENTS:,}; "
            "choose another classifier or coarser bins"
        )


def _distance_of_scores(
    original: IntArray, synthetic: IntArray, schema: Schema, classifier: Any
) -> float:
    """Return how far the scores of two tables are apart; 1 if the synthetic one has no
    records.
    """
    if not len(synthetic):
        return 1.0
    sizes = sizes_of(schema)
    rows, n_original, n_synthetic = grouped(original, synthetic, sizes)
    if isinstance(classifier, str) and classifier != "tree":
        weights = n_original + n_synthetic
        interactions = classifier == "logistic"
        features = indicator_matrix(rows, sizes, weights, interactions=interactions)
        _, scores = ridge_logistic(features, n_original, n_synthetic)
    else:
        scores = _scores_of(classifier, rows, n_original, n_synthetic, schema)
    scores = np.round(scores, TIE_DIGITS)
    distance, _ = distances(scores, scores, n_original, n_synthetic)
    return distance


def _scores_of(
    classifier: Any,
    rows: IntArray,
    n_original: FloatArray,
    n_synthetic: FloatArray,
    schema: Schema,
) -> FloatArray:
    """Return the chances of a tree, or of a classifier with scikit-learn's
    interface.
    """
    from sklearn.base import clone
    from sklearn.tree import DecisionTreeClassifier

    coded = []
    for j, name in enumerate(coded_columns(schema)):
        column = schema.columns[name]
        values = rows[:, [j]]
        if column.is_categorical:
            values = values == np.arange(column.n_levels)
        coded.append(values)
    features = np.hstack(coded).astype(np.float64)
    both = np.concatenate([n_original, n_synthetic])
    if isinstance(classifier, str):
        leaf = min(0.5, TREE_LEAF / both.sum())
        classifier = DecisionTreeClassifier(
            max_depth=TREE_DEPTH, min_weight_fraction_leaf=leaf, random_state=0
        )
    twice = np.vstack([features, features])
    labels = np.repeat([0, 1], len(features))
    there = both > 0
    # a fresh copy
    fitted = clone(classifier).fit(
        twice[there], labels[there], sample_weight=both[there]
    )
    return np.asarray(fitted.predict_proba(features)[:, 1])


def indicator_matrix(
    rows: IntArray, sizes: Sequence[int], weights: FloatArray, *, interactions: bool
) -> Any:
    """Return sparse indicators of all levels but the commonest by weight, and products
    of those of two columns.

    Indicators that are 0 throughout are left out.
    """
    commonest = np.array([np.bincount(column, weights).argmax() for column in rows.T])
    ranks = np.where(rows == commonest, -1, rows - (rows > commonest))
    return indicators_at(
        places_of(ranks, [size - 1 for size in sizes], interactions=interactions)
    )
