"""Errors of margins and statistics in closed form, from a plan alone."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.fields.pair_counts import MARGINS
from pdips.margins.fine_columns import IntervalDesign
from pdips.margins.margin_error import ColumnTree, view_error
from pdips.margins.residuals import ResidualDesign
from pdips.margins.tree import GivenColumns, TreeDesign
from pdips.margins.universal_histogram import IntervalTree
from pdips.privacy.noise_sum import NoiseSum, Terms
from pdips.privacy.plan import Plan

SIZES: dict[str, tuple[int, ...]] = {"one-way": (1,), "two-way": (2,), "all": (1, 2)}

Columns = tuple[str, ...]
MarginForm = Callable[[Sequence[int]], NoiseSum]


class NoFormError(Exception):
    """There is no closed form; the message says why."""


def label(columns: Sequence[str]) -> str:
    return " x ".join(columns)


def margins_of(schema: Schema, words: str) -> list[Columns]:
    """Return the margins that words name: "one-way", "two-way", "all", or the columns
    of one, such as "age x sex".

    Columns are in the order of the schema; margins of public columns alone are left out
    of the first three, and refused by name.
    """
    if words in SIZES:
        return _margins_of_sizes(schema, SIZES[words])
    names = [words]
    if words not in schema.columns:
        names = [name.strip() for name in words.split(" x ")]
    for name in names:
        if name not in schema.columns:
            raise InputError(f"{name!r} is no column of the schema")
        column = schema.columns[name]
        if not column.is_categorical and not column.is_binned:
            raise InputError(
                f"column {name!r} has neither levels nor bins: it has no margin"
            )
    if len({*names}) < len(names):
        raise InputError("a margin must name no column twice")
    if all(schema.columns[name].public for name in names):
        raise InputError(
            f"the margin {label(names)} is of public columns alone: "
            f"it is exact at any epsilon"
        )
    return [tuple(name for name in schema.columns if name in names)]


def _margins_of_sizes(schema: Schema, sizes: Sequence[int]) -> list[Columns]:
    names = [
        name
        for name, column in schema.columns.items()
        if column.is_categorical or column.is_binned
    ]
    margins = []
    for size in sizes:
        for columns in combinations(names, size):
            if not all(schema.columns[name].public for name in columns):
                margins.append(columns)
    if not margins:
        raise InputError(
            "the schema has no such margin of columns with "
            "levels or bins that aren't public"
        )
    return margins


def errors_of(plan: Plan, words: str) -> dict[str, NoiseSum]:
    """Return the error of the mean over all sets that the noise gives to a cell of each
    margin that words name; of a model of statistics also one of them by name.

    In records, but for sums of a model's units; of the least exact cell of each margin,
    or of a statistic. Where it isn't known in closed form, :class:`NoFormError` says
    why.
    """
    if plan.is_redrawn:
        raise NoFormError(
            f"{plan.mechanism} has more between its noise and its records than a sum"
        )
    if hasattr(plan.design, "statistics"):
        errors = _errors_of_statistics(plan.design, words)
    else:
        names = [*plan.schema.columns]
        form = form_of(plan)
        errors = {
            label(columns): form([names.index(name) for name in columns])
            for columns in margins_of(plan.schema, words)
        }
    if plan.repeats == 1:
        return errors
    return {name: error.averaged(plan.repeats) for name, error in errors.items()}


def form_of(plan: Plan) -> MarginForm:
    """Return the error of one round in a cell of a margin, from the positions of its
    columns.

    The function that is returned raises :class:`NoFormError` for a margin whose error
    isn't known.
    """
    design = plan.design
    if isinstance(design, IntervalTree):
        return partial(design.margin, n_public=plan.n_public)
    if isinstance(design, ResidualDesign):
        return _form_of_residuals(plan, design)
    if not isinstance(design, TreeDesign):
        raise NoFormError(
            f"what {plan.mechanism} counts isn't known to be a tree or margins"
        )
    if design.views:
        return partial(_view_error, design)
    return _form_of_tree(plan, design)


def _form_of_residuals(plan: Plan, design: ResidualDesign) -> MarginForm:
    names = design.domain.names
    coded = {
        names.index(column.name) for column in IntervalDesign.of(plan.schema, 2).columns
    }
    blocks = {k: block for k, block in design.own_block.items() if k not in coded}
    step = plan.named(MARGINS)
    error = design.errors(step)

    def form(columns: Sequence[int]) -> NoiseSum:
        if not blocks.keys() >= {*columns}:
            raise NoFormError(
                "a column that structural zeros tie to others, without bins or "
                "with groups, has no margin alone"
            )
        margin = tuple(blocks[column] for column in columns)
        if len(margin) == 2 and not design.pairs:
            raise NoFormError(
                "which pairs are counted is chosen when the table "
                "is read: leave chosen out"
            )
        if len(margin) < 3:
            return error(margin)
        if margin not in design.also:
            counted = label([names[k] for k in columns])
            raise NoFormError(f"{counted} isn't counted: name its columns in also")
        weight = int(design.weights[design.place[margin]])
        return NoiseSum((Terms(1.0, 1, design.image.scale(step, weight), design.law),))

    return form


def _view_error(design: TreeDesign, columns: Sequence[int]) -> NoiseSum:
    error = view_error(design.views, columns)
    if error is None:
        names = label([design.domain.names[j] for j in columns])
        raise NoFormError(
            f"no margin that is counted holds {names}: it "
            f"follows from others by maximum entropy"
        )
    return error


def _form_of_tree(plan: Plan, design: TreeDesign) -> MarginForm:
    if design.groups is not None or not isinstance(design.splitter, GivenColumns):
        raise NoFormError(
            "which columns split is elected, or drawn, for each release: no margin's "
            "error is known before"
        )
    last = len(design.layers)
    split = design.splitter.order[: last - 1]
    layer_of = {column: number for number, column in enumerate(split, start=1)}
    layer_of |= dict.fromkeys(design.domain.public.tolist(), 0)
    depth = tuple(layer_of.get(j, last) for j in range(len(design.domain.names)))
    tree = ColumnTree(design.domain, depth, plan.n_public)
    return partial(tree.margin, scales=design.scales)


def _errors_of_statistics(plan: Any, words: str) -> dict[str, NoiseSum]:
    """Return the error of a noisy statistic by name, or of margins of those that are
    counts.
    """
    parts = {part.name: part for part in plan.parts}
    named = ", ".join(parts)
    if words in parts:
        part = parts[words]
        if not part.n_noised:
            raise InputError(
                f"statistic {words!r} has no noise: it is exact at any epsilon"
            )
        unit = part.statistic.unit(plan.schema)
        return {words: NoiseSum((Terms(unit, 1, part.scale, part.law),))}
    try:
        margins = margins_of(plan.schema, words)
    except InputError as error:
        raise InputError(f"{error}, nor a statistic of the model: {named}") from None
    errors = dict[str, NoiseSum]()
    for columns in margins:
        of_count = _error_of_count(plan, columns)
        if of_count is not None:
            errors[label(columns)] = of_count
    if not errors:
        raise InputError(
            f"no statistic of the model counts the margin {words}; it has {named}"
        )
    return errors


def _error_of_count(plan: Any, columns: Columns) -> NoiseSum | None:
    """Return the error of a cell of a margin by the statistic that says most of it,
    None where none does.

    It must count these columns, or these and others, with noise on every count.
    """
    sums = []
    for part in plan.parts:
        by = {*getattr(part.statistic, "by", ())}
        if hasattr(part.statistic, "of") or not part.n_noised or not {*columns} <= by:
            continue
        cells = math.prod(part.statistic.shape(plan.schema))
        if part.n_noised == cells or by == {*columns}:
            size = math.prod(plan.schema.columns[name].n_levels for name in columns)
            sums.append(NoiseSum((Terms(1.0, cells // size, part.scale, part.law),)))
    return min(sums, key=lambda error: error.variance, default=None)
