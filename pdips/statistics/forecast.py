"""Errors of noisy statistics in closed form, and of margins that they count."""

import math
from typing import Any

from pdips.errors import InputError
from pdips.margins.forecast import ColumnNames, label, margins_of
from pdips.privacy.noise_sum import NoiseSum, Terms


def statistic_errors(plan: Any, words: str) -> dict[str, NoiseSum]:
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


def _error_of_count(plan: Any, columns: ColumnNames) -> NoiseSum | None:
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
