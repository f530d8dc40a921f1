"""The pairs and events on which the K-norm gradient mechanisms are audited."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from pdips.audit.cases.margins import by_both, exactly, filled, toward
from pdips.audit.neighbour_pairs import (
    Case,
    Pair,
    either,
    sized,
    table_of,
    where_allowed,
    with_event,
    worst_pairs,
)
from pdips.data.schema import Schema
from pdips.privacy.loss import Neighbours
from pdips.quantile.gradient import LineRegression, RegressionRecords
from pdips.quantile.kng import KNG, KNGResidual
from pdips.quantile.line_search import Fitter
from pdips.quantile.quantile_plan import SCHEMES

# A histogram
COLOURS = Schema.model_validate(
    {"columns": {"colour": {"levels": ["blue", "green", "red"]}}}
)
# Without predictors
WAGES = Schema.model_validate(
    {"columns": {"wage": {"lower": 0, "upper": 1000, "bins": 100}}}
)
# Intervals in layers
AGES = Schema.model_validate(
    {"columns": {"age": {"lower": 0, "upper": 100, "integer": True}}}
)

ABSENT = Schema.model_validate(
    {"columns": {"wage": {"lower": 0, "upper": 1000, "bins": 100, "missing": True}}}
)
"""A numeric column that may be missing: a histogram, then quantiles."""

_of_wages = partial(table_of, schema=WAGES)
SIZE = {"lower": 0, "upper": 10, "bins": 10, "public": True}
FIRMS = Schema.model_validate(
    {"columns": {"size": SIZE, "wage": {"lower": 0, "upper": 1000, "bins": 100}}}
)
"""A numeric column that depends on a public one: lines with slopes."""

MEDIAN = ("1/2",)
HALVES = ("1/2", "3/4")
QUARTILES = ("1/4", "1/2", "3/4")


def quantile(build: Callable[..., KNG]) -> Iterator[Case]:
    """Yield the cases of quantile lines: levels, one quantile, several, lines on a
    predictor, the top percentile.
    """
    build = partial(sized, build, 9)
    asked = build()
    yield from by_both(asked, worst_pairs(COLOURS, asked.neighbours))
    median = where_allowed(build, quantiles=MEDIAN, scheme="stepwise", n_candidates=64)
    if median is not None:
        yield Case(median, _turning(median), "exact")
        yield Case(median, _turning(median), "counts")
    for scheme in SCHEMES:
        several = where_allowed(
            build, quantiles=QUARTILES, main=MEDIAN, scheme=scheme, n_candidates=4
        )
        boundary = worst_pairs(WAGES, asked.neighbours)[1]
        yield from exactly(several, [boundary, _missing_pair(asked.neighbours)])
    if asked.neighbours == "replace-one":
        for slopes in ("fixed", "varying"):
            lines = where_allowed(
                build,
                quantiles=HALVES,
                scheme="stepwise",
                slopes=slopes,
                n_candidates=8,
            )
            yield from exactly(lines, [_steep()])
    yield from _top(build)


def residual(build: Callable[..., KNGResidual]) -> Iterator[Case]:
    """Yield the cases of a median line with a histogram: levels, a histogram alone,
    lines on a predictor.
    """
    build = partial(sized, build, 9)
    asked = build()
    yield from by_both(asked, worst_pairs(COLOURS, asked.neighbours))
    alone = where_allowed(build, bins=4)
    pairs = worst_pairs(WAGES, asked.neighbours)
    yield from exactly(alone, [*pairs, _missing_pair(asked.neighbours)])
    if alone is not None:
        yield Case(alone, toward(alone, pairs[1]))
        name = "intervals: the oldest of three becomes the youngest, or leaves"
        of_ages = partial(filled, AGES)
        rest = [(20,), (30,)]
        pair = either(name, of_ages, rest, (100,), (0,), alone.neighbours)
        yield Case(alone, pair)
    lines = where_allowed(build, bins=4, n_candidates=8)
    if lines is not None and lines.neighbours == "replace-one":
        yield Case(lines, _steep(), "exact")
        yield Case(lines, _steep(), "counts")


def _above(mechanism: KNG, value: float) -> int:
    """Return the first candidate of a single quantile of wages that is above a
    value.
    """
    empty = RegressionRecords.of(np.zeros(0), np.zeros((0, 0)))
    wages = LineRegression(
        read=lambda table: empty, n_predictors=0, lower=0.0, upper=1000.0
    )
    fitter = Fitter(n_intercepts=mechanism.n_candidates)
    candidates = fitter.beside(wages, wages.start(), upwards=True)
    return int(np.argmax(candidates.intercepts > value))


def _turning(mechanism: KNG) -> Pair:
    """Return the pair on which one candidate's score rises and the others' fall: all
    wages beside the one are low.
    """
    leaves = mechanism.neighbours == "add-remove"
    moves = (
        "above the crowd leaves" if leaves else "moves from above the crowd to below"
    )
    name = f"turning: one {moves}"
    pair = either(name, _of_wages, [(10,), (20,)], (99,), (0,), mechanism.neighbours)
    first = _above(mechanism, 200.0)
    return with_event(
        pair, lambda rows: rows[:, 0] >= first, "the median is above the crowd"
    )


def _steep() -> Pair:
    """Return the pair in which the wage of the largest firm falls from the highest to
    the lowest.
    """
    name = "leverage: the outcome at the end of a predictor's range falls"
    of_firms = partial(table_of, schema=FIRMS)
    return either(name, of_firms, [(0, 10), (5, 50)], (9, 99), (9, 0), "replace-one")


def _missing_pair(neighbours: Neighbours) -> Pair:
    name = "missing: the highest value is no longer there"
    of_absent = partial(table_of, schema=ABSENT)
    return either(name, of_absent, [(10,), (20,)], (99,), (100,), neighbours)


def _top(build: Callable[..., KNG]) -> Iterator[Case]:
    """Yield the 99th percentile by itself: twice 1 - tau is not what one record changes
    (docs/proofs/kng.md).
    """
    wanted: dict[str, Any] = {
        "scheme": "plain",
        "slopes": "varying",
        "base": "uniform",
        "n_candidates": 400,
    }
    wanted |= {"quantiles": ("99/100",)}
    top = where_allowed(build, epsilon="1/10", **wanted)
    if top is None:
        top = where_allowed(build, **wanted)
    if top is not None and top.neighbours == "replace-one":
        name = "percentile: the highest of a hundred falls to the lowest"
        crowd = [(1,)] * 98 + [(50,)]
        pair = either(name, _of_wages, crowd, (90,), (1,), "replace-one")
        first = _above(top, 500.0)
        event_name = "the percentile is above 500"
        pair = with_event(pair, lambda rows: rows[:, 0] >= first, event_name)
        yield Case(top, pair, "exact")
        yield Case(top, pair, "counts")
