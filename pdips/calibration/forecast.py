"""What a release will be worth, from public facts alone: what noise does to margins, means and coefficients."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any, Literal

import numpy as np

from pdips.arrays import FloatArray
from pdips.calibration.closed_form import REDRAWN, Columns, NoFormError, form_of
from pdips.data.schema import Column, Schema, has_number_levels
from pdips.errors import InputError
from pdips.margins.intervals import IntervalColumn, IntervalDesign
from pdips.margins.margin_error import view_noises
from pdips.margins.residuals import ResidualDesign
from pdips.mechanism import LaplaceOrGaussian, Mechanism
from pdips.privacy.noise_sum import NoiseSum, Terms
from pdips.privacy.plan import NOISY, Plan, Step
from pdips.registry import MECHANISMS, find

GROUPS = (50, 200, 1000)
"""Records of the small groups that are told of."""

SECONDS: dict[str, Callable[[int, int, Schema], float]] = {
    "steps": lambda cells, n, schema: 15 + 1.7e-5 * cells,
    "pairs": lambda cells, n, schema: 10 + 1.5e-6 * n * len(schema.columns) ** 2,
    "kng": lambda cells, n, schema: 5 + 40 * sum(not each.is_categorical for each in schema.columns.values()),
}
"""About, of a set, by cells and records; others take few. On two busy cores, compiling included (2026-11-24)."""


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """What noise does to one number that is worked out from a release; no table is read.

    Parameters
    ----------
    kind : {"margin", "mean", "coefficient"}
        The count of a cell of a margin; the mean of a column; the standardised coefficient of one column on another.
    columns : tuple of str
        One or two.
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

    kind: Literal["margin", "mean", "coefficient"]
    columns: Columns
    cells: int
    parts: tuple[NoiseSum, ...]
    factor: float = 1.0
    unit: str = "records"

    @property
    def standard_error(self) -> float:
        """The standard error that noise alone gives."""
        return self.factor / math.sqrt(sum(1 / part.variance for part in self.parts))


def prospects(plan: Plan, n_records: int | None) -> list[Prospect]:
    """Return what is known in closed form: margins, and with a number of records means and coefficients.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"]), "age": Column(levels=[20, 30, 40])})
    >>> for each in prospects(Steps(epsilon=1).plan(schema), 1000):
    ...     print(each.kind, each.columns, round(each.standard_error, 3), each.unit)
    margin ('ill',) 4.848 records
    margin ('age',) 3.959 records
    margin ('ill', 'age') 2.799 records
    mean ('age',) 0.056 its unit
    coefficient ('ill', 'age') 0.007 standard deviations
    """
    return [
        replace(each, parts=tuple(part.averaged(plan.repeats) for part in each.parts))
        for each in (*_margins(plan), *(_moments(plan, n_records) if n_records else ()))
    ]


def _margins(plan: Plan) -> Iterator[Prospect]:
    schema, design = plan.schema, plan.design
    try:
        form, names = form_of(plan), [*schema.columns]
    except NoFormError:
        return
    if plan.mechanism in REDRAWN:
        return
    free = [k for k, column in enumerate(schema.columns.values()) if column.is_categorical or column.is_binned]
    for size in (1, 2):
        for places in combinations(free, size):
            columns = tuple(names[k] for k in places)
            if {*columns} <= {*schema.public_columns}:
                continue
            try:
                parts = _parts(plan, places) or (form([*places]),)
            except NoFormError:
                continue
            yield Prospect(kind="margin", columns=columns, cells=design.domain.size_of(places), parts=parts)


def _parts(plan: Plan, places: Sequence[int]) -> tuple[NoiseSum, ...]:
    return tuple(view_noises(getattr(plan.design, "views", ()), places))


def _moments(plan: Plan, n_records: int) -> Iterator[Prospect]:
    """Yield what noise on counts of unit variance does to contrasts of levels: all other noise cancels in them."""
    design, schema, names = plan.design, plan.schema, [*plan.schema.columns]
    told, fine = dict[Columns, tuple[NoiseSum, ...]](), dict[str, IntervalColumn]()
    if isinstance(design, ResidualDesign):
        step, block = plan.steps[-1], {k: at for k, each in enumerate(design.blocks) for at in each.columns}
        scale = {k: design.image.scale(step, int(w)) for k, w in zip(design.margins, design.weights, strict=True)}
        single = {k for k, each in enumerate(design.blocks) if len(each.columns) == 1}
        for margin in (m for m in design.margins if m and single >= {*m}):
            columns = tuple(names[block[k]] for k in margin)
            told[columns] = (NoiseSum((Terms(1.0, 1, scale[margin], design.law),)),)
        asked = IntervalDesign.of(schema, 2)
        for column, steps in zip(asked.columns, asked.asking(plan.steps).steps, strict=True):
            fine[column.name] = column
            if steps:
                told[column.name,] = (NoiseSum((Terms(1.0, 1, _scale(steps[0]), design.law),)),)
    elif getattr(design, "views", ()):
        for size in (1, 2):
            for places in combinations(range(len(names)), size):
                told[tuple(names[k] for k in places)] = _parts(plan, places)
    ordered = {name: _values(column, fine.get(name)) for name, column in schema.columns.items()}
    ordered = {name: values for name, values in ordered.items() if len(values)}
    for name, values in ordered.items():
        of_words = schema.columns[name].is_categorical and not has_number_levels(schema.columns[name])
        if (name,) in told and not (
            of_words or schema.columns[name].public
        ):  # of two words the mean is a share, which the margin tells
            spread = math.sqrt(float(((values - values.mean()) ** 2).sum())) / n_records
            unit = schema.columns[name].unit or "its unit"
            yield Prospect(kind="mean", columns=(name,), cells=len(values), parts=told[name,], factor=spread, unit=unit)
    for pair in combinations(ordered, 2):
        if pair in told and not {*pair} <= {*schema.public_columns}:
            cells = design.domain.size_of(names.index(name) for name in pair)
            factor, unit = math.sqrt(cells) / n_records, "standard deviations"
            yield Prospect(kind="coefficient", columns=pair, cells=cells, parts=told[pair], factor=factor, unit=unit)


def _scale(step: Step) -> Fraction:
    return step.variance if step.law == "gaussian" else step.scale


def _values(column: Column, fine: IntervalColumn | None) -> FloatArray:
    """Return the number that each level of a column stands for; none where levels have no order."""
    if fine is not None:
        edges = fine.fine.edges[np.flatnonzero(np.diff(fine.nodes[0], prepend=-1))]
        return np.asarray((edges + np.append(edges[1:], float(column.upper or 0))) / 2)
    if column.is_binned:
        return np.asarray((column.edges[1:] + column.edges[:-1]) / 2)
    if has_number_levels(column) and len(column.levels or ()) > 1:
        return np.array(column.levels, dtype=float)
    return np.arange(2.0) if column.n_values == 2 else np.array([])


def fits(schema: Schema, settings: Mapping[str, Any], n_records: int | None) -> Iterator[tuple[str, float | None, str]]:
    """Yield each mechanism with the seconds that a release takes, about; or None, and why it can't be made."""
    binned = (each.n_levels for each in schema.columns.values() if each.is_categorical or each.is_binned)
    n_cells = math.prod(binned)
    for name in sorted(MECHANISMS):
        try:
            plan = find(name)(**settings).plan(schema)
        except InputError as error:
            yield name, None, str(error)
            continue
        about = SECONDS[name](n_cells, n_records or 0, schema) if name in SECONDS else 5.0
        yield name, about * plan.n_sets, ""


# ---- what the page works with ----


def page_form(mechanism: Mechanism, schema: Schema, n_records: int | None, most: int) -> dict[str, Any]:
    """Return what a script needs to work out all prospects at other settings: variances at epsilon 1 and a cap of 1.

    Each prospect is an inverse-variance average over parts, each a sum of c V(r b), with V the variance of the law at
    a parameter. The base b is cap / epsilon for Laplace noise and cap^2 / (2 rho) for Gaussian; of margins that are
    shown as differences it is at least ``least``, and more if all counts are shown (``whole``).
    """
    records = schema.records.model_copy(update={"max_per_person": 1})
    alike = replace(mechanism, epsilon=1)
    plan = alike.plan(schema.model_copy(update={"records": records}))
    gaussian, design = plan.kind == "zcdp", plan.design
    price = alike.total if isinstance(alike, LaplaceOrGaussian) else Fraction(1)
    noisy = {_scale(each) for each in plan.steps if each.law in NOISY}
    if len(noisy) > 1 and not getattr(design, "views", ()) and not isinstance(design, ResidualDesign):
        raise InputError("--html takes no tree whose layers differ in noise: leave order and layers out")
    per, floor = (2 * price if gaussian else Fraction(1)), None
    step = plan.steps[-1]
    if isinstance(design, ResidualDesign) and gaussian:
        part = 1 - sum((each.price for each in plan.steps[:-1]), Fraction(0)) / price
        own = {"whole": replace(design, whole=True).squared, "differences": replace(design, whole=False).squared}
        floor = {name: float(value) for name, value in own.items()}
        floor |= {"part": float(part), "least": float(replace(design, whole=False).smooth(Fraction(0)))}

    def shown(scale: Fraction) -> list[float | int]:
        if floor is not None and scale not in fine:
            return [float(scale / step.variance), 1]
        return [float(scale * per)]

    fine = {_scale(each) for each in plan.steps[:-1]} if isinstance(design, ResidualDesign) else set[Fraction]()
    found = prospects(plan, n_records)
    order = sorted(found, key=lambda each: len(each.columns))
    rows = [
        {
            "kind": each.kind,
            "columns": list(each.columns),
            "cells": each.cells,
            "unit": each.unit,
            "factor": each.factor,
            "parts": [[[t.n * t.weight**2, *shown(t.scale)] for t in _merged(part)] for part in each.parts],
        }
        for each in order[:most]
    ]
    return {"law": "gaussian" if gaussian else "laplace", "floor": floor, "rows": rows, "all": len(order)}


def _merged(noise: NoiseSum) -> list[Terms]:
    """Return the terms of a sum, those of one scale as one draw."""
    found = dict[Fraction, float]()
    for term in noise.terms:
        found[term.scale] = found.get(term.scale, 0.0) + term.n * term.weight**2
    return [Terms(math.sqrt(value), 1, scale) for scale, value in found.items()]
