"""Mechanisms whose error is known in closed form, from the schema and the settings."""

import math
from collections.abc import Callable
from typing import Any

from pdips.calibration.margins import Columns, Request, label, margin_of
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.margins.counts import Given, Plan
from pdips.margins.domain import Domain, columns_of
from pdips.margins.intervals import IntervalPlan, interval_counts, interval_parents
from pdips.margins.margin_error import ColumnTree, OrderedTree, view_error
from pdips.margins.synthesis import tree_plan
from pdips.margins.tree import Tree as CountTree
from pdips.mechanism import Mechanism
from pdips.privacy import plan as privacy_plan
from pdips.privacy.noise_sum import NoiseSum, Terms

Form = Callable[[Mechanism], dict[str, NoiseSum]]

REDRAWN = ("perturbed-histogram",)
"""Mechanisms with such counts whose sets are drawn from them with replacement, which adds an error of its own."""


class NoFormError(Exception):
    """There is no closed form; the message says why."""


def errors_of(mechanism: Mechanism, schema: Schema, request: Request) -> dict[str, NoiseSum]:
    """Return the error of the mean over all sets that the noise gives to a cell of each margin that is asked for.

    Parameters
    ----------
    mechanism : Mechanism
        With its epsilon.
    schema : Schema
        What is public about the table.
    request : Request
        Margins; or statistics, in the unit that the model gives them.

    Returns
    -------
    dict of str to NoiseSum
        In records, but for sums of a model's units. Of the least exact cell of each margin.

    Raises
    ------
    NoFormError
        If the error isn't known in closed form.
    InputError
        If a margin or a statistic isn't there.
    """
    plan_of: Any = getattr(mechanism, "plan", None)
    if not callable(plan_of) or mechanism.name in REDRAWN:
        raise NoFormError(f"{mechanism.name} has more between its noise and its records than a sum")
    plan = plan_of(schema)
    if isinstance(plan, privacy_plan.Plan) and isinstance(plan.design, CountTree):
        plan = tree_plan(plan.design, plan)
    if hasattr(getattr(plan, "design", None), "parts"):
        found, n_averaged = _of_statistics(plan.design, request), plan.repeats
    elif isinstance(plan, (Plan, IntervalPlan)):
        margins, domain = request.margins(schema), columns_of(schema)
        form = _intervals(plan, domain) if isinstance(plan, IntervalPlan) else _counts(plan, domain)
        found = {label(columns): form([domain.names.index(name) for name in columns]) for columns in margins}
        n_averaged = plan.n_trees
    else:
        raise NoFormError(f"what {mechanism.name} counts isn't known to be a tree or margins")
    return found if n_averaged == 1 else {name: each.averaged(n_averaged) for name, each in found.items()}


def _counts(plan: Plan, domain: Domain) -> Callable[[list[int]], NoiseSum]:
    if plan.views:
        return lambda columns: _on_views(plan, domain, columns)
    if plan.groups is not None or not isinstance(plan.chooser, Given):
        raise NoFormError(
            "which columns split is elected, or drawn, for each release: no margin's error is known before"
        )
    last = len(plan.scales)
    split = {column: number for number, column in enumerate(plan.chooser.columns[: last - 1], start=1)}
    known = split | dict.fromkeys(domain.public.tolist(), 0)
    tree = ColumnTree(domain, tuple(known.get(j, last) for j in range(len(domain.names))), plan.n_public)
    return lambda columns: tree.margin(columns, plan.scales)


def _on_views(plan: Plan, domain: Domain, columns: list[int]) -> NoiseSum:
    found = view_error(domain, plan.views, columns)
    if found is None:
        names = label(tuple(domain.names[j] for j in columns))
        raise NoFormError(f"no margin that is counted holds {names}: it follows from others by maximum entropy")
    return found


def _intervals(plan: IntervalPlan, domain: Domain) -> Callable[[list[int]], NoiseSum]:
    ordered, public = domain.names.index(plan.attribute), domain.public.tolist()
    below = [j for j in range(len(domain.names)) if j != ordered and j not in public]

    def product(columns: list[int]) -> int:
        return math.prod(int(domain.sizes[j]) for j in columns)

    tree = OrderedTree(
        parents=tuple(interval_parents(interval_counts(int(domain.sizes[ordered]), plan.fan_out))),
        n_below=product(below),
        has_cells=bool(below),
        n_trees=product(public),
        scale=plan.scales[0],
        n_public=plan.n_public,
    )

    def margin(columns: list[int]) -> NoiseSum:
        inside = [j for j in columns if j in below]
        return tree.margin(ordered in columns, product(inside), product([j for j in columns if j in public]))

    return margin


def _of_statistics(plan: Any, request: Request) -> dict[str, NoiseSum]:
    """Return the errors of noisy statistics by name, and of margins of those that are counts."""
    parts = {part.name: part for part in plan.parts}
    if request.named:
        found = {}
        for item in request.named:
            if isinstance(item, str) and item in parts:
                found[item] = _statistic(parts[item], plan.schema)
            else:
                columns = _known_margin(plan, item)
                found[label(columns)] = _counted(plan, columns)
        return found
    margins = [columns for columns in request.margins(plan.schema) if _holding(plan, columns)]
    if not margins:
        raise InputError(f"of: the model counts no such margin; name statistics of it: {', '.join(parts)}")
    return {label(columns): _counted(plan, columns) for columns in margins}


def _known_margin(plan: Any, item: str | Columns) -> Columns:
    try:
        columns = margin_of(plan.schema, item)
    except InputError as error:
        raise InputError(f"{error}, nor a statistic of the model: {', '.join(p.name for p in plan.parts)}") from None
    if not _holding(plan, columns):
        raise InputError(
            f"of: no statistic of the model counts the margin {label(columns)}; "
            f"it has {', '.join(part.name for part in plan.parts)}"
        )
    return columns


def _statistic(part: Any, schema: Schema) -> NoiseSum:
    if not part.n_noised:
        raise InputError(f"of: statistic {part.name!r} has no noise: it is exact at any epsilon")
    return NoiseSum((Terms(part.statistic.unit(schema), 1, part.scale, part.law),))


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
