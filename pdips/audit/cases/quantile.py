"""The pairs and events on which the K-norm gradient mechanisms are audited."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from pdips.audit.cases.margins import by_both, exactly, filled, toward
from pdips.audit.neighbour_pairs import Case, Pair, either, sized, table_of, where_allowed, with_event, worst_pairs
from pdips.data.schema import Schema
from pdips.privacy.loss import Neighbours
from pdips.quantile.gradient import LineRegression, RegressionRecords
from pdips.quantile.kng import KNG, KNGResidual
from pdips.quantile.line_search import Fitter
from pdips.quantile.quantile_plan import SCHEMES

COLOURS = Schema.model_validate({"columns": {"colour": {"levels": ["blue", "green", "red"]}}})  # A histogram
WAGES = Schema.model_validate({"columns": {"wage": {"lower": 0, "upper": 1000, "bins": 100}}})  # Without predictors
AGES = Schema.model_validate({"columns": {"age": {"lower": 0, "upper": 100, "integer": True}}})  # Intervals in layers

ABSENT = Schema.model_validate({"columns": {"wage": {"lower": 0, "upper": 1000, "bins": 100, "missing": True}}})
"""A numeric column that may be missing: a histogram, then quantiles."""

_of_wages = partial(table_of, schema=WAGES)
SIZE = {"lower": 0, "upper": 10, "bins": 10, "public": True}
FIRMS = Schema.model_validate({"columns": {"size": SIZE, "wage": {"lower": 0, "upper": 1000, "bins": 100}}})
"""A numeric column that depends on a public one: lines with slopes."""

MEDIAN = ("1/2",)
HALVES = ("1/2", "3/4")
QUARTILES = ("1/4", "1/2", "3/4")


def quantile(build: Callable[..., KNG]) -> Iterator[Case]:
    """Yield the cases of quantile lines: levels, one quantile, several, lines on a predictor, the top percentile."""
    build = partial(sized, build, 9)
    asked = build()
    yield from by_both(asked, worst_pairs(COLOURS, asked.neighbours))
    median = where_allowed(build, quantiles=MEDIAN, scheme="stepwise", n_candidates=64)
    if median is not None:
        yield from (Case(median, _turning(median), engine) for engine in ("exact", "counts"))
    for scheme in SCHEMES:
        taus = HALVES if scheme in ("joint", "recursive") else QUARTILES
        several = where_allowed(build, quantiles=taus, main=MEDIAN, scheme=scheme, n_candidates=4)
        yield from exactly(several, [worst_pairs(WAGES, asked.neighbours)[1], _missing_pair(asked.neighbours)])
    if asked.neighbours == "replace-one":
        for slopes in ("fixed", "varying"):
            lines = where_allowed(build, quantiles=HALVES, scheme="stepwise", slopes=slopes, n_candidates=8)
            yield from exactly(lines, [_steep()])
    yield from _top(build)


def residual(build: Callable[..., KNGResidual]) -> Iterator[Case]:
    """Yield the cases of a median line with a histogram: levels, a histogram alone, lines on a predictor."""
    build = partial(sized, build, 9)
    asked = build()
    yield from by_both(asked, worst_pairs(COLOURS, asked.neighbours))
    alone, pairs = where_allowed(build, bins=4), worst_pairs(WAGES, asked.neighbours)
    yield from exactly(alone, [*pairs, _missing_pair(asked.neighbours)])
    if alone is not None:
        yield Case(alone, toward(alone, pairs[1]))
        name = "intervals: the oldest of three becomes the youngest, or leaves"
        yield Case(alone, either(name, partial(filled, AGES), [(20,), (30,)], (100,), (0,), alone.neighbours))
    lines = where_allowed(build, bins=4, n_candidates=8)
    if lines is not None and lines.neighbours == "replace-one":
        yield from (Case(lines, _steep(), engine) for engine in ("exact", "counts"))


def _above(mechanism: KNG, value: float) -> int:
    """Return the first candidate of a single quantile of wages that is above a value."""
    empty = RegressionRecords.of(np.zeros(0), np.zeros((0, 0)))
    wages = LineRegression(read=lambda table: empty, n_predictors=0, lower=0.0, upper=1000.0)
    fitter = Fitter(n_intercepts=mechanism.n_candidates)
    return int(np.argmax(fitter.beside(wages, wages.start(), upwards=True).intercepts > value))


def _turning(mechanism: KNG) -> Pair:
    """Return the pair on which one candidate's score rises and the others' fall: all wages beside the one are low."""
    leaves = mechanism.neighbours == "add-remove"
    name = f"turning: one {'above the crowd leaves' if leaves else 'moves from above the crowd to below'}"
    pair = either(name, _of_wages, [(10,), (20,)], (99,), (0,), mechanism.neighbours)
    first = _above(mechanism, 200.0)
    return with_event(pair, lambda rows: rows[:, 0] >= first, "the median is above the crowd")


def _steep() -> Pair:
    """Return the pair in which the wage of the largest firm falls from the highest to the lowest."""
    name, of_firms = "leverage: the outcome at the end of a predictor's range falls", partial(table_of, schema=FIRMS)
    return either(name, of_firms, [(0, 10), (5, 50)], (9, 99), (9, 0), "replace-one")


def _missing_pair(neighbours: Neighbours) -> Pair:
    name, of_absent = "missing: the highest value is no longer there", partial(table_of, schema=ABSENT)
    return either(name, of_absent, [(10,), (20,)], (99,), (100,), neighbours)


def _top(build: Callable[..., KNG]) -> Iterator[Case]:
    """Yield the 99th percentile by itself: twice 1 - tau is not what one record changes (docs/proofs/kng.md)."""
    wanted: dict[str, Any] = {"scheme": "plain", "slopes": "varying", "base": "uniform", "n_candidates": 400}
    wanted |= {"quantiles": ("99/100",)}
    top = where_allowed(build, epsilon="1/10", **wanted) or where_allowed(build, **wanted)
    if top is not None and top.neighbours == "replace-one":
        name = "percentile: the highest of a hundred falls to the lowest"
        pair = either(name, _of_wages, [(1,)] * 98 + [(50,)], (90,), (1,), "replace-one")
        first = _above(top, 500.0)
        for engine in ("exact", "counts"):
            yield Case(top, with_event(pair, lambda rows: rows[:, 0] >= first, "the percentile is above 500"), engine)
