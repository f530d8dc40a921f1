"""Quantiles from sets: the values at which their shares below don't differ from the
part asked for.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from scipy.special import ndtri

from pdips.arrays import FloatArray
from pdips.inference.combine import Combined, combine
from pdips.inference.rules import Rule
from pdips.outside.answer import SETS, Inverted, beside
from pdips.outside.cells import answer_names
from pdips.outside.questions import Summary
from pdips.outside.sets.beyond_pairs import OF_CELLS
from pdips.outside.sets.interval_ends import ends_of_values
from pdips.outside.sets.records import SetRecords, basis_of
from pdips.release.opening import PublishedRelease

MOST_PLACES = 400  # at which the share of records below is worked out


def quantiles_of_sets(
    public: PublishedRelease,
    sets: Sequence[SetRecords],
    asked: Summary,
    rule: Rule,
    is_of_pairs: bool = True,
) -> Inverted:
    """Return quantiles, and intervals of the values at which the sets' shares below
    don't differ from the part asked for: quantiles of whole numbers are often the same
    in all sets, so that their variance says nothing. Where a number is within a counted
    interval nothing tells, so intervals end where those do. Shares of records that no
    pair holds (not ``is_of_pairs``) may differ for what no pair tells.
    """
    wanted = asked.part or 0.5
    values = [records.numbers(asked.of[0]) for records in sets]
    ends = [ends_of_values(public, records, asked.of[0]) for records in sets]
    low, high = (np.concatenate(end) for end in zip(*ends, strict=True))
    places, lows = _places(low, high)
    shares = [
        _shares_below(records, asked, largest, places)
        for records, (_, largest) in zip(sets, ends, strict=True)
    ]
    combined = _combined(shares, wanted, rule)
    shape = shares[0][0].shape
    part = 0.0 if is_of_pairs else OF_CELLS
    spread = len(values[0]) * np.asarray(combined.within)
    estimates = np.asarray(combined.estimate).reshape(shape)
    estimate = _pooled_quantiles(sets, values, asked)
    return Inverted(
        tuple(answer_names(asked)),
        estimate,
        np.diag(np.full(len(estimate), np.nan)),
        basis_of(sets, rule),
        source=SETS,
        below=_after_none(estimates, -wanted),
        half_widths=partial(
            _half_widths, combined, part * np.sqrt(spread).reshape(shape)
        ),
        lows=np.append(lows[0], lows),
        highs=np.append(places, places[-1]),
    )


def _combined(
    shares: Sequence[tuple[FloatArray, FloatArray]], wanted: float, rule: Rule
) -> Combined:
    """Return what the sets' shares below places, with their variances, say together:
    how far they are above the part that is wanted.
    """
    below = [(share - wanted).ravel() for share, _ in shares]
    variances = [variance.ravel() for _, variance in shares]
    return combine(np.stack(below), np.stack(variances), rule=rule)


def _places(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return places at which shares below are worked out, and the least number up to
    each of them that is above the one before; values are from ``low`` to ``high``.
    """
    places = np.unique(high)
    if len(places) > MOST_PLACES:
        parts = np.linspace(0, 1, MOST_PLACES)
        places = np.unique(np.quantile(high, parts, method="inverted_cdf"))
    lows = np.full(len(places), np.inf)
    np.minimum.at(lows, np.searchsorted(places, high), low)
    return places, lows


def _half_widths(combined: Combined, beyond: FloatArray, level: float) -> FloatArray:
    """Return half of the widths of intervals of shares below places, shape (groups,
    places), which may be so far off ``beyond`` what pairs tell.
    """
    half = combined.half_width(level).reshape(beyond.shape)
    reach = float(ndtri((1 + level) / 2))
    return _after_none(beside(half, beyond, reach), 0.0)


def _after_none(of_places: FloatArray, at_none: float) -> FloatArray:
    """Return numbers of places, shape (groups, places), after that of a place below all
    values.
    """
    first = np.full((len(of_places), 1), at_none)
    return np.hstack([first + 0 * of_places[:, :1], of_places])


def _pooled_quantiles(
    sets: Sequence[SetRecords], values: Sequence[FloatArray], asked: Summary
) -> FloatArray:
    """Return the quantile of each group in all sets together."""
    part = asked.part or 0.5
    quantiles = list[float]()
    for members in zip(*(records.groups(asked.by) for records in sets), strict=True):
        of_group = [some[which] for some, which in zip(values, members, strict=True)]
        is_empty = any(len(some) == 0 for some in of_group)
        quantile = np.nan
        if not is_empty:
            together = np.concatenate(of_group)
            quantile = np.quantile(together, part, method="inverted_cdf")
        quantiles.append(float(quantile))
    return np.array(quantiles)


def _shares_below(
    records: SetRecords, asked: Summary, values: FloatArray, places: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the share of each group that is at most each value, in one set, and its
    variance, shape (groups, values).
    """
    shares = []
    variances = []
    for members in records.groups(asked.by):
        below = np.full(len(places), np.nan)
        if members.any():
            ordered = np.sort(values[members])
            below = np.searchsorted(ordered, places, "right") / len(ordered)
        shares.append(below)
        variances.append(below * (1 - below) / max(members.sum(), 1))
    return np.stack(shares), np.stack(variances)
