"""Mechanisms whose error is known in closed form, and what a release will be worth, all from public facts."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import Any, Literal

import numpy as np

from pdips.arrays import FloatArray
from pdips.data.schema import Column, Schema, has_number_levels
from pdips.errors import InputError
from pdips.margins.intervals import IntervalColumn, IntervalDesign
from pdips.margins.margin_error import ColumnTree, view_error, view_noises
from pdips.margins.pairs import MARGINS
from pdips.margins.residuals import ResidualDesign
from pdips.margins.sums import PARTS, PRODUCTS, SUMS_OF_WEIGHTS, UNITS
from pdips.margins.tree import GivenColumns, TreeDesign
from pdips.margins.universal_histogram import IntervalTree
from pdips.mechanism import LaplaceOrGaussian, Mechanism
from pdips.privacy.noise_sum import NoiseSum, Terms
from pdips.privacy.plan import NOISY, Plan
from pdips.registry import MECHANISMS, find

REDRAWN = ("perturbed-histogram",)  # Sets are drawn from their counts with replacement, which adds an error of its own

Margins = Literal["one-way", "two-way", "all"]
MarginNames = Margins | str | Sequence[str | Sequence[str]]
Columns = tuple[str, ...]

SIZES: dict[str, tuple[int, ...]] = {"one-way": (1,), "two-way": (2,), "all": (1, 2)}


@dataclass(frozen=True)
class MarginRequest:
    """What an accuracy is asked for: margins by their columns or statistics by name, or all margins of some sizes."""

    named: tuple[str | Columns, ...] = ()
    sizes: tuple[int, ...] = ()

    def margins(self, schema: Schema) -> list[Columns]:
        """Return the margins as columns in the order of the schema, those of public columns alone left out."""
        if self.named:
            return [margin_of(schema, item) for item in self.named]
        names = [name for name, column in schema.columns.items() if column.is_categorical or column.is_binned]
        found = [columns for size in self.sizes for columns in combinations(names, size)]
        found = [columns for columns in found if not all(schema.columns[name].public for name in columns)]
        if not found:
            raise InputError("of: the schema has no such margin of columns with levels or bins that aren't public")
        return found


def margin_of(schema: Schema, item: str | Columns) -> Columns:
    """Return the columns of one margin, which may be given as "sex,age"."""
    parts = [part.strip() for part in item.split(",")] if isinstance(item, str) else item
    names = (item,) if isinstance(item, str) and item in schema.columns else tuple(parts)
    for name in names:
        if name not in schema.columns:
            raise InputError(f"of: {name!r} is no column of the schema")
        if not schema.columns[name].is_categorical and not schema.columns[name].is_binned:
            raise InputError(f"of: column {name!r} has neither levels nor bins: it has no margin")
    if len(set(names)) < len(names) or not names:
        raise InputError("of: a margin must name at least one column, and none twice")
    if all(schema.columns[name].public for name in names):
        raise InputError(f"of: the margin {label(names)} is of public columns alone: it is exact at any epsilon")
    return tuple(name for name in schema.columns if name in names)


def read(of: MarginNames) -> MarginRequest:
    """Return a request as it is given: "one-way", "two-way", "all", one margin or statistic, or several."""
    if isinstance(of, str):
        return MarginRequest(sizes=SIZES[of]) if of in SIZES else MarginRequest(named=(of,))
    if not isinstance(of, Sequence) or not of:
        raise InputError("of must be one-way, two-way, all, or name margins")
    if len(of) == 1 and isinstance(of[0], str):  # ("age",) is one margin
        return read(of[0])
    return MarginRequest(named=tuple(item if isinstance(item, str) else tuple(item) for item in of))


def label(columns: Columns) -> str:
    return " x ".join(columns)


class NoFormError(Exception):
    """There is no closed form; the message says why."""


def errors_of(mechanism: Mechanism, schema: Schema, request: MarginRequest) -> dict[str, NoiseSum]:
    """Return the error of the mean over all sets that the noise gives to a cell of each margin that is asked for.

    In records, but for sums of a model's units; of the least exact cell of each margin, or of a statistic. Where it
    isn't known in closed form, :class:`NoFormError` says why.
    """
    if mechanism.name in REDRAWN:
        raise NoFormError(f"{mechanism.name} has more between its noise and its records than a sum")
    plan = mechanism.plan(schema)
    if hasattr(plan.design, "statistics"):
        found = _of_statistics(plan.design, request)
    else:
        names, form = [*schema.columns], form_of(plan)
        found = {label(each): form([names.index(name) for name in each]) for each in request.margins(schema)}
    return found if plan.repeats == 1 else {name: each.averaged(plan.repeats) for name, each in found.items()}


def form_of(plan: Plan) -> Callable[[list[int]], NoiseSum]:
    """Return the error of one round in a cell of a margin, from the positions of its columns.

    The function that is returned raises :class:`NoFormError` for a margin whose error isn't known.
    """
    tree = plan.design
    if isinstance(tree, IntervalTree):
        return partial(tree.margin, n_public=plan.n_public)
    if isinstance(tree, ResidualDesign):
        coded = {tree.domain.names.index(column.name) for column in IntervalDesign.of(plan.schema, 2).columns}
        blocks, step = {k: block for k, block in tree.own_block.items() if k not in coded}, plan.named(MARGINS)
        error = tree.errors(step)

        def on_residuals(columns: list[int]) -> NoiseSum:
            if not blocks.keys() >= {*columns}:
                raise NoFormError(
                    "a column that structural zeros tie to others, without bins or with groups, has no margin alone"
                )
            margin = tuple(blocks[column] for column in columns)
            if len(margin) == 2 and not tree.pairs:
                raise NoFormError("which pairs are counted is chosen when the table is read: leave chosen out")
            if len(margin) < 3:
                return error(margin)
            if margin not in tree.also:
                names = label(tuple(tree.domain.names[k] for k in columns))
                raise NoFormError(f"{names} isn't counted: name its columns in also")
            return NoiseSum((Terms(1.0, 1, tree.image.scale(step, int(tree.weights[tree.place[margin]])), tree.law),))

        return on_residuals
    if not isinstance(tree, TreeDesign):
        raise NoFormError(f"what {plan.mechanism} counts isn't known to be a tree or margins")
    if tree.views:

        def on_views(columns: list[int]) -> NoiseSum:
            found = view_error(tree.views, columns)
            if found is None:
                names = label(tuple(tree.domain.names[j] for j in columns))
                raise NoFormError(f"no margin that is counted holds {names}: it follows from others by maximum entropy")
            return found

        return on_views
    if tree.groups is not None or not isinstance(tree.splitter, GivenColumns):
        raise NoFormError(
            "which columns split is elected, or drawn, for each release: no margin's error is known before"
        )
    last = len(tree.layers)
    split = {column: number for number, column in enumerate(tree.splitter.order[: last - 1], start=1)}
    known = split | dict.fromkeys(tree.domain.public.tolist(), 0)
    depth = tuple(known.get(j, last) for j in range(len(tree.domain.names)))
    return partial(ColumnTree(tree.domain, depth, plan.n_public).margin, scales=tree.scales)


def _of_statistics(plan: Any, request: MarginRequest) -> dict[str, NoiseSum]:
    """Return the errors of noisy statistics by name, and of margins of those that are counts."""
    parts, found = {part.name: part for part in plan.parts}, {}
    if not request.named:
        margins = {label(columns): _counted(plan, columns) for columns in request.margins(plan.schema)}
        found = {name: error for name, error in margins.items() if error is not None}
        if not found:
            raise InputError(f"of: the model counts no such margin; name statistics of it: {', '.join(parts)}")
        return found
    for item in request.named:
        if isinstance(item, str) and item in parts:
            part = parts[item]
            if not part.n_noised:
                raise InputError(f"of: statistic {item!r} has no noise: it is exact at any epsilon")
            found[item] = NoiseSum((Terms(part.statistic.unit(plan.schema), 1, part.scale, part.law),))
            continue
        try:
            columns = margin_of(plan.schema, item)
        except InputError as error:
            raise InputError(f"{error}, nor a statistic of the model: {', '.join(parts)}") from None
        counted = _counted(plan, columns)
        if counted is None:
            raise InputError(
                f"of: no statistic of the model counts the margin {label(columns)}; it has {', '.join(parts)}"
            )
        found[label(columns)] = counted
    return found


def _counted(plan: Any, columns: Columns) -> NoiseSum | None:
    """Return the error of a cell of a margin by the statistic that says most of it, None where none does.

    It must count these columns, or these and others, with noise on every count.
    """
    sums = []
    for part in plan.parts:
        by, counts = getattr(part.statistic, "by", ()), not hasattr(part.statistic, "of")
        cells = math.prod(part.statistic.shape(plan.schema))
        whole = part.n_noised == cells or set(by) == set(columns)
        if counts and part.n_noised and set(columns) <= set(by) and whole:
            size = math.prod(plan.schema.columns[name].n_levels for name in columns)
            sums.append(NoiseSum((Terms(1.0, cells // size, part.scale, part.law),)))
    return min(sums, key=lambda found: found.variance, default=None)


# ---- what a release will be worth ----

GROUPS = (50, 200, 1000)  # Records of the small groups that are told of

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
    kind : {"margin", "sum", "mean", "coefficient"}
        The count of a cell of a margin; the sum of weights of a level, or of products; the mean of a column; the
        standardised coefficient of one column on another.
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
    columns: Columns
    cells: int
    parts: tuple[NoiseSum, ...]
    factor: float = 1.0
    unit: str = "records"

    @property
    def standard_error(self) -> float:
        """The standard error that noise alone gives: 0 for what is known, as the one level of a column."""
        variances = [part.variance for part in self.parts]
        return self.factor / math.sqrt(sum(1 / variance for variance in variances)) if all(variances) else 0.0


def prospects(plan: Plan, n_records: int | None) -> list[Prospect]:
    """Return what is known in closed form: margins, and with a number of records means and coefficients.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"]), "age": Column(levels=[20, 30, 40])})
    >>> for each in prospects(Steps(epsilon=1).plan(schema), 1000):
    ...     print(each.kind, each.columns, f"{each.standard_error:.3f} {each.unit}".strip())
    margin ('ill',) 4.848 records
    margin ('age',) 3.959 records
    margin ('ill', 'age') 2.799 records
    mean ('age',) 0.056
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
    asked = IntervalDesign.of(schema, 2) if isinstance(design, ResidualDesign) else IntervalDesign(())
    for column, steps in zip(asked.columns, asked.asking(plan.steps).steps, strict=True):
        if column not in asked.numeric:
            alone = (NoiseSum((Terms(1.0, 1, steps[0].parameter, design.law),)),)
            yield Prospect(kind="margin", columns=(column.name,), cells=column.column.n_levels, parts=alone)
    free = [k for k, column in enumerate(schema.columns.values()) if column.is_categorical or column.is_binned]
    also = [tuple(design.blocks[k].columns[0] for k in each) for each in getattr(design, "also", ())]
    for places in (*combinations(free, 1), *combinations(free, 2), *also):
        columns = tuple(names[k] for k in places)
        if {*columns} <= {*schema.public_columns}:
            continue
        try:
            parts = tuple(view_noises(getattr(design, "views", ()), places)) or (form([*places]),)
        except NoFormError:
            continue
        yield Prospect(kind="margin", columns=columns, cells=design.domain.size_of(places), parts=parts)
    for step in plan.steps:
        told = {
            SUMS_OF_WEIGHTS: ((str(schema.records.weight),), 1 / UNITS, "times the largest weight counted"),
            PRODUCTS: (("products",), 1 / PARTS**2, "for numbers between -1 and 1"),
        }
        if step.name in told:
            (own, factor, unit), sums = told[step.name], (NoiseSum((Terms(1.0, 1, step.parameter, design.law),)),)
            yield Prospect(kind="sum", columns=own, cells=1, parts=sums, factor=factor, unit=unit)


def _moments(plan: Plan, n_records: int) -> Iterator[Prospect]:
    """Yield what noise on counts of unit variance does to contrasts of levels: all other noise cancels in them."""
    design, schema, names = plan.design, plan.schema, [*plan.schema.columns]
    told, fine = dict[Columns, tuple[NoiseSum, ...]](), dict[str, IntervalColumn]()
    if isinstance(design, ResidualDesign):
        step, block = plan.named(MARGINS), {k: at for k, each in enumerate(design.blocks) for at in each.columns}
        single = {k for k, each in enumerate(design.blocks) if len(each.columns) == 1}
        for part, noise in design.part_noises(step).items():
            if part and single >= {*part}:
                told[tuple(names[block[k]] for k in part)] = (noise,)
        asked = IntervalDesign.of(schema, 2)
        for column, steps in zip(asked.columns, asked.asking(plan.steps).steps, strict=True):
            fine[column.name] = column
            if steps and column in asked.numeric:
                told[column.name,] = (NoiseSum((Terms(1.0, 1, steps[0].parameter, design.law),)),)
    elif getattr(design, "views", ()):
        for size in (1, 2):
            for places in combinations(range(len(names)), size):
                told[tuple(names[k] for k in places)] = tuple(view_noises(design.views, places))
    ordered = {name: _values(column, fine.get(name)) for name, column in schema.columns.items()}
    ordered = {name: values for name, values in ordered.items() if len(values)}
    for name, values in ordered.items():
        own = schema.columns[name]  # of two words the mean is a share, which the margin tells
        of_words = own.is_categorical and not has_number_levels(own)
        if (name,) in told and not of_words and not own.public:
            spread = math.sqrt(float(((values - values.mean()) ** 2).sum())) / n_records
            unit = own.unit or ""
            yield Prospect(kind="mean", columns=(name,), cells=len(values), parts=told[name,], factor=spread, unit=unit)
    for pair in combinations(ordered, 2):
        if pair in told and not {*pair} <= {*schema.public_columns}:
            cells = design.domain.size_of(names.index(name) for name in pair)
            factor, unit = math.sqrt(cells) / n_records, "standard deviations"
            yield Prospect(kind="coefficient", columns=pair, cells=cells, parts=told[pair], factor=factor, unit=unit)


def _values(column: Column, fine: IntervalColumn | None) -> FloatArray:
    """Return the number that each level of a column stands for; none where levels have no order."""
    if fine is not None and column.is_categorical:
        return np.array([])
    if fine is not None:
        edges = fine.fine.edges[np.flatnonzero(np.diff(fine.nodes[0], prepend=-1))]
        return np.asarray((edges + np.append(edges[1:], float(column.upper or 0))) / 2)
    if column.is_binned:
        return np.asarray((column.edges[1:] + column.edges[:-1]) / 2)
    if has_number_levels(column) and len(column.levels or ()) > 1:
        return np.array(column.levels, dtype=float)
    return np.arange(2.0) if column.is_categorical and column.n_values == 2 else np.array([])


def fits(schema: Schema, settings: Mapping[str, Any], n_records: int | None) -> Iterator[tuple[str, float | None, str]]:
    """Yield each mechanism with the seconds that a release takes, about; or None, and why it can't be made."""
    n_cells = math.prod(each.n_levels for each in schema.columns.values() if each.is_categorical or each.is_binned)
    for name in sorted(MECHANISMS):
        try:
            plan = find(name)(**settings).plan(schema)
        except InputError as error:
            yield name, None, str(error)
            continue
        about = SECONDS[name](n_cells, n_records or 0, schema) if name in SECONDS else 5.0
        yield name, about * plan.n_sets, ""


def page_form(mechanism: Mechanism, schema: Schema, n_records: int | None, most: int) -> dict[str, Any]:
    """Return what a script needs to work out all prospects at other settings: variances at epsilon 1 and a cap of 1.

    Each prospect is an inverse-variance average over parts, each a sum of c V(r b), with V the variance of the law at
    a parameter. The base b is cap / epsilon for Laplace noise and cap^2 / (2 rho) for Gaussian; of margins that are
    shown as differences it is at least ``least``, and more if all counts are shown (``whole``, and so are the
    parts of a row then).
    """
    records = schema.records.model_copy(update={"max_per_person": 1})
    alike = replace(mechanism, epsilon=1)
    plan = alike.plan(schema.model_copy(update={"records": records}))
    gaussian, design = plan.kind == "zcdp", plan.design
    price = alike.total if isinstance(alike, LaplaceOrGaussian) else Fraction(1)
    noisy = {each.parameter for each in plan.steps if each.law in NOISY}
    if len(noisy) > 1 and not getattr(design, "views", ()) and not isinstance(design, ResidualDesign):
        raise InputError("--html takes no tree whose layers differ in noise: leave order and layers out")
    per, floor, shapes = (2 * price if gaussian else Fraction(1)), None, {"parts": design}
    is_pairs = isinstance(design, ResidualDesign)
    step = plan.named(MARGINS) if is_pairs else plan.steps[-1]
    if is_pairs and gaussian:
        part = 1 - sum((each.rho for each in plan.steps if each is not step), Fraction(0)) / price
        shapes = {"parts": replace(design, whole=False), "whole": replace(design, whole=True)}
        floor = {"whole": float(shapes["whole"].squared), "differences": float(shapes["parts"].squared)}
        floor |= {"part": float(part), "least": float(shapes["parts"].smooth(Fraction(0)))}

    def shown(scale: Fraction) -> list[float | int]:
        if floor is not None and scale not in fine:
            return [float(scale / step.variance), 1]
        return [float(scale * per)]

    fine = {each.parameter for each in plan.steps if each is not step} if is_pairs else set[Fraction]()
    found = [
        sorted(prospects(replace(plan, design=shape), n_records), key=lambda each: len(each.columns))
        for shape in shapes.values()
    ]
    rows = [
        {
            "kind": each.kind,
            "columns": list(each.columns),
            "cells": each.cells,
            "unit": each.unit,
            "factor": each.factor,
            **{
                name: [[[t.n * t.weight**2, *shown(t.scale)] for t in _merged(part)] for part in one.parts]
                for name, one in zip(shapes, (each, *others), strict=True)
            },
        }
        for each, *others in [*zip(*found, strict=True)][:most]
    ]
    return {"law": "gaussian" if gaussian else "laplace", "floor": floor, "rows": rows, "all": len(found[0])}


def _merged(noise: NoiseSum) -> list[Terms]:
    """Return the terms of a sum, those of one scale as one draw."""
    found = dict[Fraction, float]()
    for term in noise.terms:
        found[term.scale] = found.get(term.scale, 0.0) + term.n * term.weight**2
    return [Terms(math.sqrt(value), 1, scale) for scale, value in found.items()]
