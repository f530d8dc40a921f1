"""SPECKS: how well a classifier can tell synthetic records from confidential ones. For inside use only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.codes import coded_columns, codes_of, grouped, resampled, sizes_of, table_codes
from pdips.evaluation.ridge import ridge_logistic

NAMED = ("logistic", "main-effects", "tree")
MOST_COEFFICIENTS = 5_000
TREE_DEPTH, TREE_LEAF = 20, 20
_TIE_DIGITS = 6
CELLS = 100


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How the propensity scores of a table and of one synthetic set are spread.

    Attributes
    ----------
    table, synthetic : tuple of float, length 100
        Shares of the records whose score, ``P(synthetic | record)``, lies in each hundredth of [0, 1]; the last one has
        1 in it.
    distance : float
        The Kolmogorov-Smirnov distance of the scores.
    at : float
        The score up to which the shares of the two tables differ by that much.
    """

    table: tuple[float, ...]
    synthetic: tuple[float, ...]
    distance: float
    at: float


@dataclass(frozen=True, kw_only=True)
class Specks:
    """Kolmogorov-Smirnov distances of propensity scores, from 0 (can't be told apart) to 1 (wholly apart).

    Attributes
    ----------
    by_set : tuple of float
        One a synthetic set; 1 for a set without records.
    mean : float
        Over the sets: the figure that the paper reports.
    standard_deviation : float or None
        Over the sets, with m - 1 below; None for a single set.
    reference : float
        The same for a sample of the table's size drawn with replacement from the table itself.
    scores : tuple of Scores
        One a synthetic set that has records.
    """

    by_set: tuple[float, ...]
    mean: float
    standard_deviation: float | None
    reference: float
    scores: tuple[Scores, ...]


@dataclass(frozen=True)
class _Score:
    """A function of rows and their two counts that gives a score for each row: log odds, or a chance."""

    of: Any
    log_odds: bool = False


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
    table : Table
        The confidential table. Binned numeric columns count as categories of their bins, numeric columns without bins
        are left out, missing is a level of its own.
    sets : sequence of DataFrame
        Synthetic sets of the same schema.
    classifier : {"logistic", "main-effects", "tree"} or object
        ``"logistic"``: logistic regression on all columns and all their first-order interactions, as in the paper;
        ``"main-effects"``: without interactions; ``"tree"``: scikit-learn's CART of depth at most 20 with at least 20
        records in a leaf. Or a classifier with scikit-learn's ``fit(X, y, sample_weight)`` and ``predict_proba``: it
        is given an indicator for each level of a categorical column and the number of the bin of a numeric one.
    rng : numpy.random.Generator, optional
        For the resample that gives the reference value.

    Returns
    -------
    Specks
        Distances by set, their mean and the reference's.

    Raises
    ------
    InputError
        If there is no set, no such classifier, or ``"logistic"`` would need more than 5,000 coefficients.

    Notes
    -----
    Section 2.4 of Bowen, Liu and Su (2021), *Differentially private data release via statistical election to partition
    sequentially*: pool table and set, estimate ``e = P(synthetic | record)``, and take the largest distance between
    the empirical distribution functions of ``e`` in the two. It is computed on groups of equal records, which changes
    nothing. Scores whose log odds agree to 6 decimals (probabilities to 6 for other classifiers) count as tied.

    The logistic log-likelihood carries a ridge penalty of 0.01 / 2 times the sum of squared coefficients (a normal
    prior of standard deviation 10; the intercept has none; the commonest level of a column is its reference). So an
    answer exists and is unique even where levels or combinations occur in one table only, which sends maximum
    likelihood to infinity. Newton's method stops when a further step promises a gain below 1e-8 nats.
    """
    if not len(sets):
        raise InputError("a measure of utility needs at least one synthetic set")
    schema, original = table.schema, table_codes(table)
    score = _scorer(classifier, schema)
    found = [_compared(original, codes_of(frame, schema), schema, score) for frame in sets]
    reference = _compared(original, resampled(original, rng), schema, score)
    by_set = tuple(1.0 if one is None else one.distance for one in found)
    return Specks(
        by_set=by_set,
        mean=float(np.mean(by_set)),
        standard_deviation=float(np.std(by_set, ddof=1)) if len(by_set) > 1 else None,
        reference=1.0 if reference is None else reference.distance,
        scores=tuple(one for one in found if one is not None),
    )


def ks_distance(scores: FloatArray, n_original: FloatArray, n_synthetic: FloatArray) -> float:
    """Return the largest distance of two empirical distribution functions given as counts of scores.

    Parameters
    ----------
    scores : ndarray of float64, shape (groups,)
        Equal scores are one point of both functions.
    n_original, n_synthetic : ndarray of float64, shape (groups,)
        How many records of each table have the score.
    """
    return _widest_gap(scores, n_original, n_synthetic)[0]


def _widest_gap(scores: FloatArray, n_original: FloatArray, n_synthetic: FloatArray) -> tuple[float, float]:
    """Return the Kolmogorov-Smirnov distance and the score where it is reached."""
    points, place = np.unique(scores, return_inverse=True)
    shares = [np.bincount(place, n, minlength=len(points)) / n.sum() for n in (n_original, n_synthetic)]
    gaps = np.abs(np.cumsum(shares[0] - shares[1]))
    widest = int(gaps.argmax())
    return min(1.0, float(gaps[widest])), float(points[widest])


def _compared(original: IntArray, synthetic: IntArray, schema: Schema, score: _Score) -> Scores | None:
    """Return how the scores of two tables are spread; None if the synthetic one has no records."""
    if not len(synthetic):
        return None
    rows, n_original, n_synthetic = grouped(original, synthetic, sizes_of(schema))
    scores = np.round(score.of(rows, n_original, n_synthetic), _TIE_DIGITS)
    distance, at = _widest_gap(scores, n_original, n_synthetic)
    chances = _chances(scores) if score.log_odds else scores
    cells = np.clip(np.floor(chances * CELLS), 0, CELLS - 1).astype(np.int64)
    shares = [np.bincount(cells, n, minlength=CELLS) / n.sum() for n in (n_original, n_synthetic)]
    return Scores(
        table=tuple(shares[0].tolist()),
        synthetic=tuple(shares[1].tolist()),
        distance=distance,
        at=float(_chances(at)) if score.log_odds else at,
    )


def _chances(log_odds: Any) -> Any:
    from scipy.special import expit

    return expit(log_odds)


def _scorer(classifier: Any, schema: Schema) -> _Score:
    sizes = sizes_of(schema)
    if isinstance(classifier, str):
        if classifier not in NAMED:
            raise InputError(f"classifier must be one of {', '.join(NAMED)} or an object, not {classifier!r}")
        if classifier == "tree":
            return _Score(lambda rows, a, b: _classified(_tree(float((a + b).sum())), _features(rows, schema), a, b))
        interactions = classifier == "logistic"
        _check_size(sizes, interactions)
        return _Score(
            lambda rows, a, b: ridge_logistic(design(rows, sizes, a + b, interactions=interactions), a, b),
            log_odds=True,
        )
    if not hasattr(classifier, "fit") or not hasattr(classifier, "predict_proba"):
        raise InputError("a classifier needs scikit-learn's fit and predict_proba")
    return _Score(lambda rows, a, b: _classified(classifier, _features(rows, schema), a, b))


def _check_size(sizes: Sequence[int], interactions: bool) -> None:
    main = [size - 1 for size in sizes]
    pairs = (sum(main) ** 2 - sum(size**2 for size in main)) // 2 if interactions else 0
    if sum(main) + pairs > MOST_COEFFICIENTS:
        raise InputError(
            f"this schema makes {sum(main) + pairs:,} coefficients, above {MOST_COEFFICIENTS:,}; "
            "choose another classifier or coarser bins"
        )


def design(rows: IntArray, sizes: Sequence[int], weights: FloatArray, *, interactions: bool) -> Any:
    """Return indicators of all levels but the commonest, and products of those of two columns.

    Parameters
    ----------
    rows : ndarray of int64, shape (groups, columns)
        Codes.
    sizes : sequence of int
        Levels of each column.
    weights : ndarray of float64, shape (groups,)
        Records in each group: they say which level is the commonest.
    interactions : bool
        Whether to add the products.

    Returns
    -------
    scipy.sparse.csr_array, shape (groups, coefficients)
        Without an intercept, nor indicators that are 0 throughout.
    """
    from scipy.sparse import csr_array

    ranks = [_rank(rows[:, j], size, weights) for j, size in enumerate(sizes)]
    terms = [(np.flatnonzero(rank >= 0), rank[rank >= 0], size - 1) for rank, size in zip(ranks, sizes, strict=True)]
    if interactions:
        for j, a in enumerate(ranks):
            for i in range(j):
                where = np.flatnonzero((a >= 0) & (ranks[i] >= 0))
                width = sizes[i] - 1
                terms.append((where, a[where] * width + ranks[i][where], (sizes[j] - 1) * width))
    starts = np.cumsum([0, *(width for _, _, width in terms)])
    row = np.concatenate([where for where, _, _ in terms])
    column = np.concatenate([start + place for start, (_, place, _) in zip(starts[:-1], terms, strict=True)])
    used, column = np.unique(column, return_inverse=True)
    return csr_array((np.ones(len(row)), (row, column)), shape=(len(rows), len(used)))


def _rank(codes: IntArray, size: int, weights: FloatArray) -> IntArray:
    """Return codes with the commonest as -1 and the others counted from 0."""
    commonest = int(np.bincount(codes, weights, minlength=size).argmax())
    return np.where(codes == commonest, -1, codes - (codes > commonest))


def _features(rows: IntArray, schema: Schema) -> FloatArray:
    """Return indicators of every level of categorical columns and bin numbers of numeric ones."""
    blocks = [
        rows[:, [j]] == np.arange(schema.columns[name].n_levels)
        if schema.columns[name].is_categorical
        else rows[:, [j]]
        for j, name in enumerate(coded_columns(schema))
    ]
    return np.hstack(blocks).astype(np.float64)


def _tree(n_records: float) -> Any:
    from sklearn.tree import DecisionTreeClassifier

    leaf = min(0.5, TREE_LEAF / n_records)
    return DecisionTreeClassifier(max_depth=TREE_DEPTH, min_weight_fraction_leaf=leaf, random_state=0)


def _classified(classifier: Any, features: FloatArray, n_original: FloatArray, n_synthetic: FloatArray) -> FloatArray:
    """Fit a fresh copy of a classifier on weighted groups; return each group's chance of being synthetic."""
    from sklearn.base import clone

    both = np.concatenate([n_original, n_synthetic])
    labels = np.repeat([0, 1], len(features))
    fitted = clone(classifier).fit(
        np.vstack([features, features])[both > 0], labels[both > 0], sample_weight=both[both > 0]
    )
    chances: FloatArray = fitted.predict_proba(features)[:, 1]
    return chances
