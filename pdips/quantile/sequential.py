"""What the mechanisms that synthesize column by column share: settings by column, the release, the audit's view."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import to_frame, values_of
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.margins.synthesis import public_order, public_records
from pdips.mechanism import Drawn
from pdips.privacy.curator import Clock
from pdips.privacy.loss import Neighbours, Number, Spend, as_float, exact, positive
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import ExactLaw as Law
from pdips.quantile.choosing import Chooser, Exact, Recording, many, outcomes
from pdips.quantile.column_plan import ColumnPlan, FitNumbers, plan
from pdips.quantile.conditional import Draw
from pdips.quantile.line_search import MOST_RECORDS
from pdips.quantile.panel import check_settings as check_panel
from pdips.quantile.panel import panel_of

SMALLEST_EPSILON = Fraction(1, 10**9)
"""For a column and record; below it noise would have more digits than its samplers."""

ByColumn = Mapping[str, Any] | tuple[str, ...]


COARSE = 20_000
"""About so many records are read by the coarse rounds of a search for a line."""


def column_plan(
    schema: Schema,
    *,
    epsilon: Number,
    neighbours: Neighbours,
    order: tuple[str, ...] | None,
    predictors: ByColumn | None,
    caps: ByColumn | None,
    budget: ByColumn | None,
    by: tuple[str, ...],
    n_records: int | None,
    panel: tuple[str, ...] | None = None,
    panel_columns: tuple[str, ...] | None = None,
    births_share: Number = "parallel",
) -> ColumnPlan:
    """Return the plan of a table from the settings as they are written; the errors are those of :func:`plan`."""
    if schema.public_columns and (neighbours == "add-remove" or n_records is not None):
        raise InputError(
            "public columns show the number of records, so neighbours = add-remove and n_records don't go with them"
        )
    return plan(
        schema,
        epsilon=exact(epsilon, "epsilon"),
        neighbours=neighbours,
        order=order,
        predictors={
            name: tuple(each.strip() for each in words.split("+") if each.strip())
            for name, words in named(predictors, "predictors").items()
        },
        caps={name: float(exact(value, f"caps of {name!r}")) for name, value in named(caps, "caps").items()},
        budget={name: positive(value, f"budget of {name!r}") for name, value in named(budget, "budget").items()},
        by=by,
        panel=panel_of(schema, panel, panel_columns, births_share),
    )


def check_by_column(mechanism: Any) -> None:
    """Check the spelling of the settings by column, before there is a schema."""
    for setting in ("predictors", "caps", "budget"):
        named(getattr(mechanism, setting), setting)
    check_panel(mechanism.panel, mechanism.panel_columns, mechanism.births_share)


def check_years(columns: ColumnPlan, table: Table) -> None:
    """Hold a panel against its public years, before anything is spent."""
    if columns.panel:
        columns.panel.check(values_of(table, (columns.panel.first, columns.panel.last, *columns.panel.years)))


PANEL = (
    " Births and continuers of a year are synthesized apart, each from its own records. Which is which, and in which "
    "years a record has values at all, follows from public columns."
)
"""What the statement of a panel adds."""


def words(schema: Schema | None, numbers: str) -> str:
    """Return what a statement says of columns drawn one after the other.

    Parameters
    ----------
    schema : Schema, optional
        Says which kinds of columns there are; without one both are described.
    numbers : str
        What numeric columns are drawn from.
    """
    drawn = [] if schema is None else [column for column in schema.columns.values() if not column.public]
    parts = []
    if schema is None or any(column.is_categorical or column.missing for column in drawn):
        parts.append("levels, and whether a number is missing, from counts with exact discrete Laplace noise")
    if schema is None or any(not column.is_categorical for column in drawn):
        parts.append(f"numbers from {numbers}")
    return f"Column by column: {'; '.join(parts)}. All synthetic records are drawn from these released numbers."


def settings(mechanism: Any) -> dict[str, Any]:
    """Return the settings of a mechanism as plain values."""
    plain = {field.name: getattr(mechanism, field.name) for field in dataclasses.fields(mechanism)}
    plain |= {setting: named(plain[setting], setting) or None for setting in ("predictors", "caps", "budget")}
    plain = {name: str(value) if isinstance(value, Fraction) else value for name, value in plain.items()}
    plain = {
        name: [str(each) for each in value] or None if isinstance(value, tuple) else value
        for name, value in plain.items()
    }
    return plain | {"epsilon": as_float(exact(mechanism.epsilon, "epsilon"))}


def spends(columns: ColumnPlan) -> tuple[Spend, ...]:
    """Return the items of a price: one a column, its strata together.

    Raises
    ------
    InputError
        If a column's share is so small that its noise would be out of range.
    """
    for name in columns.order:
        if columns.least(name) / columns.schema.records.max_per_person < SMALLEST_EPSILON:
            births = " or more even, or births_share = parallel" if columns.panel and columns.panel.births_share else ""
            raise InputError(
                f"epsilon is too small: a step of column {name!r} would have less than 1e-9 for each record; take a "
                f"larger epsilon, or shares that are larger for it{births}"
            )
    return tuple(
        Spend(
            step=f"column {name}{_of(columns, name)}{', all strata' if columns.by else ''}",
            epsilon=columns.epsilon * columns.shares[name],
        )
        for name in columns.order
    )


def check_size(table: Table) -> None:
    """Refuse tables whose gradients might not fit into 64 bits: they are outside the universe of the guarantee."""
    if table.n_records > MOST_RECORDS:
        raise InputError(f"quantile regressions are made for tables of at most {MOST_RECORDS:,} records")


def _of(columns: ColumnPlan, name: str) -> str:
    return ", births and continuers" if columns.panel and name in columns.panel.before else ""


def fitting(columns: ColumnPlan, table: Table, fit_numbers: FitNumbers) -> Callable[..., dict[str, Draw]]:
    """Return a function that makes all private choices for a table, ``chooser`` and ``rng`` given, any number of times;
    it gives what draws the columns."""
    public = list(columns.schema.public_columns)
    pilot = values_of(table, public)
    order = public_order(table, public) if public else None
    on_the_way = {name: each[order] for name, each in pilot.items()}
    values = values_of(table, list(columns.schema.columns))

    def fit(chooser: Chooser, rng: np.random.Generator | None = None) -> dict[str, Draw]:
        """Without ``rng`` records on the way are always the same, which is as private and easier to audit."""
        return columns.fit(values, dict(on_the_way), fit_numbers, chooser, rng or np.random.default_rng(0))

    return fit


def release(
    columns: ColumnPlan,
    table: Table,
    fit_numbers: FitNumbers,
    n_sets: int,
    n_records: int,
    bits: RandomBits,
    clock: Clock,
) -> Drawn:
    """Spend the budget once and draw all sets from what that released."""
    schema, rng = columns.schema, bits.generator()
    with clock.step("fitting the columns"):
        draws = fitting(columns, table, fit_numbers)(Exact(bits, min(1.0, COARSE / n_records)), rng)
    public = list(schema.public_columns)
    beside = public_records(table, public) if public else pd.DataFrame()
    known = values_of(table, public)
    order = public_order(table, public) if public else None
    sets = []
    for number in range(1, n_sets + 1):
        with clock.step(f"drawing synthetic set {number} of {n_sets}"):
            values: dict[str, FloatArray] = {name: each[order] for name, each in known.items()}
            for name in columns.order:
                values[name] = draws[name].draw(values, n_records, rng)
            sets.append(to_frame(schema, values, beside, rng))
    return Drawn(sets=sets)


def observe(columns: ColumnPlan, table: Table, fit_numbers: FitNumbers, n_runs: int, bits: RandomBits) -> IntArray:
    """Return all private choices and noisy counts of independent releases, shape (runs, numbers), for audits."""
    fit = fitting(columns, table, fit_numbers)
    if len(columns.order) == 1:
        return many(fit, n_runs, bits)
    runs = []
    for _ in range(n_runs):
        recording = Recording(Exact(bits))
        fit(recording)
        runs.append(recording.seen)
    longest = max(map(len, runs))  # groups of levels are cut where released numbers say
    return np.array([seen + [0] * (longest - len(seen)) for seen in runs], dtype=np.int64)


def law(columns: ColumnPlan, table: Table, fit_numbers: FitNumbers) -> Law:
    """Return the exact law of all private choices and noisy counts, for audits of tables with one free column."""
    if len(columns.order) > 1:
        raise InputError("the exact law is spelt out for tables with one column that isn't public")
    return Law(outcomes=list(outcomes(fitting(columns, table, fit_numbers))))


def quantiles_of(given: int | Sequence[Number]) -> list[Any]:
    """Return quantiles as exact rationals, increasing.

    Raises
    ------
    InputError
        If one isn't in (0, 1), they aren't increasing, or one has more than three decimals.
    """
    if isinstance(given, int):
        if isinstance(given, bool) or not 1 <= given <= 499:
            raise InputError(f"quantiles must be a number from 1 to 499, or a list, got {given}")
        return [Fraction(k, given + 1) for k in range(1, given + 1)]
    found = [exact(each, "quantiles") for each in given]
    if len(found) == 1 and found[0] >= 1 and found[0].denominator == 1:  # a number, as the command line spells it
        return quantiles_of(int(found[0]))
    if not found:
        raise InputError("quantiles must name at least one")
    if not all(0 < tau < 1 for tau in found):
        raise InputError("quantiles must be above 0 and below 1")
    if any(b <= a for a, b in itertools.pairwise(found)):
        raise InputError("quantiles must increase: sort them, and give each once")
    if any(tau.denominator > 1_000 for tau in found):
        raise InputError("quantiles must be whole thousandths, or fractions with a denominator of at most 1,000")
    return found


def named(given: Mapping[str, object] | Sequence[str] | None, setting: str) -> dict[str, str]:
    """Return a setting by column, given as a mapping or as words ``column=value``.

    Raises
    ------
    InputError
        If a word has no equals sign, or a column comes twice.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(name): _spelt(value) for name, value in given.items()}
    found: dict[str, str] = {}
    for word in [given] if isinstance(given, str) else given:
        name, equals, value = str(word).partition("=")
        if not equals or name.strip() in found:
            raise InputError(f"{setting} is a list of column=value, each column once; got {word!r}")
        found[name.strip()] = value.strip()
    return found


def _spelt(value: object) -> str:
    return str(value) if isinstance(value, str) or not isinstance(value, Sequence) else "+".join(map(str, value))
