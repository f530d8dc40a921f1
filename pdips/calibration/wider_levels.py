"""What wider levels of a column would buy, before a release: from the noise alone."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pdips.calibration.closed_form import Prospect, prospects
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.mechanism import Mechanism

# Levels from which on some can be merged two by two
LEAST_LEVELS = 4


@dataclass(frozen=True, kw_only=True)
class WiderLevels:
    """What merging the levels of a column two by two, in the schema, would do to
    standard errors.

    Parameters
    ----------
    column : str
        The one with the most levels.
    n_levels, n_merged : int
        How many levels it has, and would have.
    merged : float
        Errors of counts of a merged level, as a share of those of two levels' counts
        that are added up after the release; their median.
    others : float
        Errors of counts of other columns, as a share of those without merging; their
        median. 1 where there are no others.
    """

    column: str
    n_levels: int
    n_merged: int
    merged: float
    others: float

    @classmethod
    def of(
        cls, mechanism: Mechanism, schema: Schema, rows: Sequence[Prospect]
    ) -> "WiderLevels | None":
        """Return what it would do to the errors ``rows``; None if no column can be
        merged, or the errors aren't known in closed form.

        Examples
        --------
        >>> schema = Schema(
        ...     columns={
        ...         "ill": {"levels": ["no", "yes"]},
        ...         "site": {"levels": ["a", "b", "c", "d"]},
        ...     }
        ... )
        >>> mechanism = Margins(epsilon=1)
        >>> rows = prospects(mechanism.plan(schema), 1000)
        >>> wider = WiderLevels.of(mechanism, schema, rows)
        >>> wider.column, wider.n_merged
        ('site', 2)
        """
        name = _widest(schema)
        if name is None:
            return None
        column = schema.columns[name]
        levels = column.levels or ()
        wider = column.model_copy(update={"levels": levels[: (len(levels) + 1) // 2]})
        columns = {**schema.columns, name: wider}
        try:
            plan = mechanism.plan(schema.model_copy(update={"columns": columns}))
            after = _errors(prospects(plan, None))
        except InputError:
            return None
        before = _errors(rows)
        merged = []
        others = []
        for names in before.keys() & after.keys():
            ratio = after[names] / before[names]
            if name in names:
                merged.append(ratio / 2**0.5)
            else:
                others.append(ratio)
        if not merged:
            return None
        return cls(
            column=name,
            n_levels=len(levels),
            n_merged=len(wider.levels or ()),
            merged=statistics.median(merged),
            others=statistics.median(others or [1.0]),
        )


def _widest(schema: Schema) -> str | None:
    """Return the column with the most levels that nothing else in the schema speaks of;
    None if none has enough.
    """
    if schema.impossible or schema.rule or schema.total:
        return None
    n_levels = {
        name: 0 if column.public else len(column.levels or ())
        for name, column in schema.columns.items()
    }
    name = max(n_levels, key=n_levels.__getitem__)
    return name if n_levels[name] >= LEAST_LEVELS else None


def _errors(rows: Sequence[Prospect]) -> dict[tuple[str, ...], float]:
    """Return the standard errors of counts that noise reaches, by margin."""
    margins = (row for row in rows if row.kind == "margin")
    return {row.columns: row.standard_error for row in margins if row.standard_error}
