"""What a release will be worth, in closed form and from public facts alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any, Literal

import numpy as np

from pdips.arrays import FloatArray
from pdips.data.schema import Column, Schema, has_number_levels
from pdips.errors import InputError
from pdips.fields.products import PARTS, PRODUCTS
from pdips.fields.weighted_sums import SUMS_OF_WEIGHTS, UNITS
from pdips.margins.forecast import ColumnNames, NoFormError, PageShapes, forecast_of
from pdips.margins.intervals import IntervalColumn
from pdips.mechanism import LaplaceOrGaussian, Mechanism
from pdips.privacy.noise_sum import NoiseSum, Terms
from pdips.privacy.plan import Plan, Step
from pdips.registry import MECHANISMS, find
from pdips.synthesis import usual_sets

GROUPS = (50, 200, 1000)  # Records of the small groups that are told of


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """What noise does to one number that is worked out from a release; no table is
    read.

    Parameters
    ----------
    kind : {"margin", "sum", "mean", "coefficient"}
        The count of a cell of a margin; the sum of weights of a level, or of products;
        the mean of a column; the standardised coefficient of one column on another.
    columns : tuple of str
        One to three.
    cells : int
        Of their margin.
    parts : tuple of NoiseSum
        Independent answers that are averaged by inverse variance, in records.
    factor : float
        What one record is worth in the unit.
    unit : str
        Records, the column's unit, or standard deviations.

    Examples
    --------
    >>> from pdips.privacy.noise_sum import NoiseSum
    >>> part = NoiseSum((), normal_variance=9.0)
    >>> Prospect(kind="margin", columns=("ill",), cells=2, parts=(part,)).standard_error
    3.0
    """

    kind: Literal["margin", "sum", "mean", "coefficient"]
    columns: ColumnNames
    cells: int
    parts: tuple[NoiseSum, ...]
    factor: float = 1.0
    unit: str = "records"

    @property
    def standard_error(self) -> float:
        """The standard error that noise alone gives: 0 for what is known, as the one
        level of a column.
        """
        variances = [part.variance for part in self.parts]
        if not all(variances):
            return 0.0
        precision = sum(1 / variance for variance in variances)
        return self.factor / math.sqrt(precision)


def prospects(plan: Plan, n_records: int | None) -> list[Prospect]:
    """Return what is known in closed form: margins, and with a number of records means
    and coefficients.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "age": Column(levels=[20, 30, 40]),
    ...     }
    ... )
    >>> for each in prospects(Margins(epsilon=1).plan(schema), 1000):
    ...     print(
    ...         each.kind,
    ...         each.columns,
    ...         f"{each.standard_error:.3f} {each.unit}".strip(),
    ...     )
    margin ('ill',) 4.848 records
    margin ('age',) 3.959 records
    margin ('ill', 'age') 2.799 records
    mean ('age',) 0.056
    coefficient ('ill', 'age') 0.007 standard deviations
    """
    rows = [*_margins(plan)]
    if n_records:
        rows += _moments(plan, n_records)
    averaged = []
    for row in rows:
        parts = tuple(part.averaged(plan.repeats) for part in row.parts)
        averaged.append(replace(row, parts=parts))
    return averaged


def _margins(plan: Plan) -> Iterator[Prospect]:
    if plan.is_redrawn:
        return
    forecast = forecast_of(plan)
    try:
        form = forecast.margin_form(plan)
    except NoFormError:
        return
    for name, noise in forecast.coded_noises(plan).items():
        cells = plan.schema.columns[name].n_levels
        yield Prospect(kind="margin", columns=(name,), cells=cells, parts=(noise,))
    names = [*plan.schema.columns]
    for places in _counted_places(plan):
        columns = tuple(names[k] for k in places)
        if {*columns} <= {*plan.schema.public_columns}:
            continue
        try:
            parts = tuple(forecast.answers_to(places)) or (form(places),)
        except NoFormError:
            continue
        yield Prospect(
            kind="margin",
            columns=columns,
            cells=plan.design.domain.size_of(places),
            parts=parts,
        )
    for step in plan.steps:
        yield from _sums(plan, step)


def _one_draw(scale: Fraction, design: Any) -> NoiseSum:
    return NoiseSum((Terms(1.0, 1, scale, design.law),))


def _counted_places(plan: Plan) -> list[tuple[int, ...]]:
    """Return the positions of the columns of margins of one and two columns, and of
    more that are counted.
    """
    free = [
        k
        for k, column in enumerate(plan.schema.columns.values())
        if column.is_categorical or column.is_binned
    ]
    larger = forecast_of(plan).larger_margins()
    return [*combinations(free, 1), *combinations(free, 2), *larger]


def _sums(plan: Plan, step: Step) -> Iterator[Prospect]:
    """Yield what a step does to sums, if it asks for some."""
    if step.name == SUMS_OF_WEIGHTS:
        columns = (str(plan.schema.records.weight),)
        factor = 1 / UNITS
        unit = "times the largest weight counted"
    elif step.name == PRODUCTS:
        columns = ("products",)
        factor = 1 / PARTS**2
        unit = "for numbers between -1 and 1"
    else:
        return
    yield Prospect(
        kind="sum",
        columns=columns,
        cells=1,
        parts=(_one_draw(step.parameter, plan.design),),
        factor=factor,
        unit=unit,
    )


def _moments(plan: Plan, n_records: int) -> Iterator[Prospect]:
    """Yield what noise on counts of unit variance does to contrasts of levels: all
    other noise cancels in them.
    """
    schema = plan.schema
    noises = forecast_of(plan).contrast_noises(plan)
    fine = forecast_of(plan).interval_columns(schema)
    ordered = dict[str, FloatArray]()
    for name, column in schema.columns.items():
        values = _values(column, fine.get(name))
        if len(values):
            ordered[name] = values
    for name, values in ordered.items():
        # of two words the mean is a share, which the margin tells
        own = schema.columns[name]
        of_words = own.is_categorical and not has_number_levels(own)
        if (name,) in noises and not of_words and not own.public:
            squares = float(((values - values.mean()) ** 2).sum())
            yield Prospect(
                kind="mean",
                columns=(name,),
                cells=len(values),
                parts=noises[name,],
                factor=math.sqrt(squares) / n_records,
                unit=own.unit or "",
            )
    names = [*schema.columns]
    for pair in combinations(ordered, 2):
        if pair in noises and not {*pair} <= {*schema.public_columns}:
            cells = plan.design.domain.size_of(names.index(name) for name in pair)
            yield Prospect(
                kind="coefficient",
                columns=pair,
                cells=cells,
                parts=noises[pair],
                factor=math.sqrt(cells) / n_records,
                unit="standard deviations",
            )


def _values(column: Column, fine: IntervalColumn | None) -> FloatArray:
    """Return the number that each level of a column stands for; none where levels have
    no order.
    """
    if fine is not None and not column.is_categorical:
        edges = fine.fine.edges[np.flatnonzero(np.diff(fine.nodes[0], prepend=-1))]
        upper = np.append(edges[1:], float(column.upper or 0))
        return np.asarray((edges + upper) / 2)
    if fine is not None:
        return np.array([])
    if column.is_binned:
        return np.asarray((column.edges[1:] + column.edges[:-1]) / 2)
    if has_number_levels(column) and len(column.levels or ()) > 1:
        return np.array(column.levels, dtype=float)
    if column.is_categorical and column.n_values == 2:
        return np.arange(2.0)
    return np.array([])


def fits(
    schema: Schema, settings: Mapping[str, Any], n_records: int | None
) -> Iterator[tuple[str, float | None, str]]:
    """Yield each mechanism with the seconds that a release takes, about; or None, and
    why it can't be made.
    """
    for name in sorted(MECHANISMS):
        try:
            mechanism = find(name)(**settings)
            mechanism.plan(schema)
        except InputError as error:
            yield name, None, str(error)
            continue
        n_sets = settings.get("n_sets") or usual_sets(mechanism, schema)
        yield name, mechanism.seconds(schema, n_records or 0) * n_sets, ""


def page_form(
    mechanism: Mechanism, schema: Schema, n_records: int | None, most: int
) -> dict[str, Any]:
    """Return what a script needs to work out all prospects at other settings: variances
    at epsilon 1 and a cap of 1.

    Each prospect is an inverse-variance average over parts, each a sum of c V(r b),
    with V the variance of the law at a parameter. The base b is cap / epsilon for
    Laplace noise and cap^2 / (2 rho) for Gaussian; of margins that are shown as
    differences it is at least ``least``, and more if all counts are shown (``whole``,
    and so are the parts of a row then).
    """
    form = _PageForm.of(mechanism, schema)
    by_shape = []
    for shape in form.page.shapes.values():
        rows = prospects(replace(form.plan, design=shape), n_records)
        by_shape.append(sorted(rows, key=lambda each: len(each.columns)))
    alike = [*zip(*by_shape, strict=True)]
    return {
        "law": "gaussian" if form.is_gaussian else "laplace",
        "floor": form.page.floor,
        "rows": [form.row(each) for each in alike[:most]],
        "all": len(alike),
    }


@dataclass(frozen=True, kw_only=True)
class _PageForm:
    """A plan at epsilon 1 and a cap of 1, and how its variances are told to a
    script.
    """

    plan: Plan
    price: Fraction
    page: PageShapes

    @classmethod
    def of(cls, mechanism: Mechanism, schema: Schema) -> "_PageForm":
        records = schema.records.model_copy(update={"max_per_person": 1})
        unit = replace(mechanism, epsilon=1)
        plan = unit.plan(schema.model_copy(update={"records": records}))
        price = unit.total if isinstance(unit, LaplaceOrGaussian) else Fraction(1)
        shapes = forecast_of(plan).page_shapes(plan, price)
        return cls(plan=plan, price=price, page=shapes)

    @property
    def is_gaussian(self) -> bool:
        return self.plan.kind == "zcdp"

    def row(self, prospects: Sequence[Prospect]) -> dict[str, Any]:
        """Return a prospect, by each of the shapes, as a script reads it."""
        first = prospects[0]
        row: dict[str, Any] = {
            "kind": first.kind,
            "columns": list(first.columns),
            "cells": first.cells,
            "unit": first.unit,
            "factor": first.factor,
        }
        for name, prospect in zip(self.page.shapes, prospects, strict=True):
            row[name] = [self._part(noise) for noise in prospect.parts]
        return row

    def _part(self, noise: NoiseSum) -> list[list[float | int]]:
        """Return the terms of a sum, those of one scale as one draw."""
        squares = dict[Fraction, float]()
        for term in noise.terms:
            square = term.n * term.weight**2
            squares[term.scale] = squares.get(term.scale, 0.0) + square
        return [[square, *self._relative(scale)] for scale, square in squares.items()]

    def _relative(self, scale: Fraction) -> list[float | int]:
        """Return a parameter over what the script multiplies by; with a 1 if that may
        be the floor.
        """
        has_own_step = any(
            each.parameter == scale
            for each in self.plan.steps
            if each is not self.page.step
        )
        if self.page.floor is not None and not has_own_step:
            return [float(scale / self.page.step.variance), 1]
        per = 2 * self.price if self.is_gaussian else Fraction(1)
        return [float(scale * per)]
