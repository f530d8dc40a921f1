"""Mechanisms whose error is known in closed form, and the margins that it is asked for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Literal

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.margins.margin_error import ColumnTree, view_error
from pdips.margins.residuals import ResidualDesign
from pdips.margins.tree import GivenColumns, TreeDesign
from pdips.margins.universal_histogram import IntervalTree
from pdips.mechanism import Mechanism
from pdips.privacy.noise_sum import NoiseSum, Terms
from pdips.privacy.plan import Plan

REDRAWN = ("perturbed-histogram",)
"""Mechanisms with such counts whose sets are drawn from them with replacement, which adds an error of its own."""

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
    """Return what to call a margin."""
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
        blocks, step = tree.own_block, plan.steps[-1]

        def on_residuals(columns: list[int]) -> NoiseSum:
            if not blocks.keys() >= {*columns}:
                raise NoFormError("a column that structural zeros tie to others, or without bins, has no margin alone")
            return tree.noise(tuple(blocks[column] for column in columns), step)

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
    columns_alike = ColumnTree(tree.domain, depth, plan.n_public)
    scales = tree.scales
    return lambda columns: columns_alike.margin(columns, scales)


def _of_statistics(plan: Any, request: MarginRequest) -> dict[str, NoiseSum]:
    """Return the errors of noisy statistics by name, and of margins of those that are counts."""
    parts, found = {part.name: part for part in plan.parts}, {}
    if not request.named:
        margins = [columns for columns in request.margins(plan.schema) if _holding(plan, columns)]
        if not margins:
            raise InputError(f"of: the model counts no such margin; name statistics of it: {', '.join(parts)}")
        return {label(columns): _counted(plan, columns) for columns in margins}
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
        if not _holding(plan, columns):
            raise InputError(
                f"of: no statistic of the model counts the margin {label(columns)}; it has {', '.join(parts)}"
            )
        found[label(columns)] = _counted(plan, columns)
    return found


def _holding(plan: Any, columns: Columns) -> list[Any]:
    """Return the statistics that are counts of these columns, or of these and others, with noise on every count."""
    found = []
    for part in plan.parts:
        by, counts = getattr(part.statistic, "by", ()), not hasattr(part.statistic, "of")
        whole = part.n_noised == math.prod(part.statistic.shape(plan.schema)) or set(by) == set(columns)
        if counts and part.n_noised and set(columns) <= set(by) and whole:
            found.append(part)
    return found


def _counted(plan: Any, columns: Columns) -> NoiseSum:
    """Return the error of a cell of a margin by the statistic that says most of it."""
    size = math.prod(plan.schema.columns[name].n_levels for name in columns)
    sums = [
        NoiseSum((Terms(1.0, math.prod(part.statistic.shape(plan.schema)) // size, part.scale, part.law),))
        for part in _holding(plan, columns)
    ]
    return min(sums, key=lambda found: found.variance)
