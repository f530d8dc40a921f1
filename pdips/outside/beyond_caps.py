"""What caps on numbers hide from noisy products: of a mean by noisy counts of intervals
beyond the caps, of other answers as the synthetic sets have it.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy.optimize import isotonic_regression

from pdips.arrays import BoolArray, FloatArray
from pdips.outside.answer import OF_SPAN, Answer
from pdips.outside.cells import Missing
from pdips.outside.questions import Question, Summary
from pdips.outside.sets.analyses import analysed
from pdips.outside.sets.records import SetRecords
from pdips.release.folder import read_tables
from pdips.release.opening import PublishedRelease

BY_SETS = (
    "products know numbers between their caps alone: what lies beyond is added as the "
    "synthetic sets have it"
)
BY_COUNTS = (
    "products know numbers between their caps alone: what lies beyond is added by "
    "noisy counts of intervals there"
)
N_AGAIN = 200  # times that noise is drawn afresh


def with_what_caps_hide(
    answer: Answer,
    public: PublishedRelease,
    asked: Question,
    missing: Missing,
    caps: Mapping[str, tuple[float, float]],
) -> Answer:
    """Return an answer of noisy products as one about numbers without caps.

    Each synthetic set is analysed twice, as it is and with its numbers moved to the
    caps. The mean of the difference is added to the answer. Its variance between sets,
    which differ by what the noise makes unsure, is added to that of the noise; a single
    set doesn't tell it, and the square of the difference stands in.

    Parameters
    ----------
    answer : Answer
        Of noisy products.
    public : PublishedRelease
    asked : Formula or Summary
        A mean, a correlation or a linear regression.
    missing : {"level", "drop"}
    caps : mapping of str to tuple of float
        Of each number, the lower and the upper.

    Returns
    -------
    Answer
        The same numbers in the same order.
    """
    of_counts = _beyond_by_counts(public, asked, caps)
    if of_counts is not None:
        return _with(answer, *of_counts, BY_COUNTS)
    schema = public.privacy.table_schema
    differences = list[FloatArray]()
    for frame in public.sets:
        records = SetRecords.of(frame, schema, [*asked.columns], missing)
        differences.append(_hidden(records, asked, caps, answer))
    hidden = np.stack(differences)
    shift = hidden.mean(axis=0)
    n_sets = len(hidden)
    spread = shift**2
    if n_sets > 1:
        spread = (1 + 1 / n_sets) * hidden.var(axis=0, ddof=1)
    return _with(answer, shift, spread, BY_SETS)


def _with(answer: Answer, shift: FloatArray, spread: FloatArray, remark: str) -> Answer:
    """Return an answer with what was hidden from it, and the variance of that."""
    noise = answer.covariance if answer.noise is None else answer.noise
    return replace(
        answer,
        estimate=answer.estimate + shift,
        covariance=answer.covariance + np.diag(spread),
        noise=noise + np.diag(spread),
        remarks=(*answer.remarks, remark),
    )


def _beyond_by_counts(
    public: PublishedRelease, asked: Question, caps: Mapping[str, tuple[float, float]]
) -> tuple[FloatArray, FloatArray] | None:
    """Return how far the mean of a column is from that between its caps, and the
    variance of that; None where that isn't asked, or no intervals were counted.
    """
    if not isinstance(asked, Summary) or asked.kind != "mean" or asked.by:
        return None
    name = asked.of[0].text
    _, tables = read_tables(public.home, "intervals")
    if "intervals" not in tables or name not in caps:
        return None
    rows = tables["intervals"].dropna(subset=["lower", "upper"])
    rows = rows[(rows["column"] == name) & (rows["layer"] == 1)].sort_values("lower")
    if rows.empty:  # it has levels or bins, and may be missing
        return None
    lower, upper = (rows[end].to_numpy(np.float64) for end in ("lower", "upper"))
    noisy = rows["noisy"].to_numpy(np.float64)
    error = float(np.sqrt(rows["variance"].iloc[0]))
    low, high = caps[name]
    above = tail(noisy, lower, upper, high, error)
    # numbers below the lower cap, from there on downwards
    under = tail(noisy[::-1], -upper[::-1], -lower[::-1], -low, error)
    n = max(float(noisy.sum()), 1.0)
    shift = np.array([above[0] - under[0]]) / n
    return shift, np.array([above[1] + under[1]]) / n**2


def tail(
    noisy: FloatArray, lower: FloatArray, upper: FloatArray, cap: float, error: float
) -> tuple[float, float]:
    """Return by how much all numbers together are above a cap, and the variance of
    that, from noisy counts of intervals.

    Counts beyond the cap are taken to fall the farther away it is, and never below 0:
    noise in long empty tails would weigh too much. So they are too many on average. The
    last interval, of the upper bound alone, may hold many, and is taken as counted. The
    variance is that which fresh noise makes, with the square of what noise adds to
    counts that can't be below 0, and that of numbers anywhere in their interval.

    Parameters
    ----------
    noisy, lower, upper : ndarray, shape (intervals,)
        In order.
    cap : float
    error : float
        The standard deviation of the noise on each count.

    Examples
    --------
    >>> lower, upper = np.arange(0.0, 10), np.arange(1.0, 11)
    >>> noisy = np.array([90.0, 80, 60, 40, 20, 10, 4, 2, -2, 2])
    >>> above, variance = tail(noisy, lower, upper, 5.0, error=2.0)
    >>> round(above, 1), variance > 0
    (16.0, True)
    """
    start = np.maximum(lower, cap)
    widths = np.maximum(upper - lower, np.finfo(float).tiny)
    reach = np.where(upper > cap, (upper - cap) ** 2 - (start - cap) ** 2, 0.0)
    weights = np.where(upper > lower, reach / 2 / widths, np.maximum(upper - cap, 0))
    is_beyond = weights > 0
    weights = weights[is_beyond]
    counts = noisy[is_beyond]
    is_point = (upper <= lower)[is_beyond]
    rng = np.random.default_rng(0)
    drawn = counts + error * rng.standard_normal((N_AGAIN, len(counts)))
    above, *again = (_above(each, weights, is_point) for each in [counts, *drawn])
    # what noise adds grows by its standard deviation, and fresh noise takes that from 1
    # to the root of 2
    added = (float(np.mean(again)) - above) / (math.sqrt(2) - 1)
    span = max(float(counts @ (upper - start)[is_beyond]), 0.0)
    return above, float(np.var(again)) + added**2 + span**2 / OF_SPAN


def _above(counts: FloatArray, weights: FloatArray, is_point: BoolArray) -> float:
    falling = isotonic_regression(counts[~is_point], increasing=False).x
    of_intervals = float(np.maximum(falling, 0.0) @ weights[~is_point])
    return of_intervals + float(counts[is_point] @ weights[is_point])


def _hidden(
    records: SetRecords,
    asked: Question,
    caps: Mapping[str, tuple[float, float]],
    answer: Answer,
) -> FloatArray:
    """Return by how much the answers of one set differ from those between caps."""
    estimates = []
    for some in (records, records.capped(caps)):
        names, estimate, _ = analysed(some, asked, "gaussian")
        of_name = dict(zip(names, estimate, strict=True))
        estimates.append(np.array([of_name[name] for name in answer.names]))
    whole, between_caps = estimates
    return np.asarray(whole - between_caps)
