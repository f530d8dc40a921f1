"""From ``make(df)`` to a model that mechanisms take."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from numpy.typing import NDArray

from pdips.conversion.builds import Builds, are_equal
from pdips.conversion.censored_times import (
    censoring_of,
    check_same,
    confidential_potentials,
    of_ended,
)
from pdips.conversion.conditioned import Conditioned
from pdips.conversion.converted import ColumnPart, ConvertedModel, Observed
from pdips.conversion.frames import MadeUp, refuse_too_few
from pdips.conversion.latents import check_latents
from pdips.conversion.matching import (
    ColumnExpression,
    ColumnProduct,
    Reading,
    laid_out,
    product_of,
    reading_of,
)
from pdips.conversion.only_readings import is_typed
from pdips.data.schema import Column
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior.columns import Values
from pdips.posterior.derived import DerivedColumns

# A model as it was looked at
Looked = Builds | Conditioned

# Numbers a record that a model may make of public columns
MOST_DERIVED = 300
DERIVED = "derived "


def converted_model(
    make: Callable[[pd.DataFrame], pm.Model], made_up: MadeUp, name: str
) -> ConvertedModel:
    """Build a model on made-up records and turn it into one of any records.

    Parameters
    ----------
    make : callable
        ``make(df)`` returns a ``pm.Model``; ``df`` has the columns of the schema, of
        which only the public ones are real.
    made_up : MadeUp
        The frames that it is built on.
    name : str
        What messages call it.

    Raises
    ------
    InputError
        If a constant follows from confidential records, an observed value is no
        column, or a confidential column is read that the model doesn't describe.
    """
    refuse_too_few(made_up)
    builds = Builds(make, name, made_up)
    potentials = confidential_potentials(builds)
    return _of_times(builds, potentials) if potentials else _converted(builds)


def converted_conditioned(model: pm.Model, table: Table) -> ConvertedModel:
    """Turn a model that is conditioned on a table into one of any records.

    Parameters
    ----------
    model : pymc.Model
        With observed variables; its constants are public, as its author says.
    table : Table
        Its records, in the order in which the model has them.

    Raises
    ------
    InputError
        As :func:`converted_model`, and where a constant looks worked out of the
        records.
    """
    return _converted(Conditioned(model, table))


def _converted(builds: Looked) -> ConvertedModel:
    check_latents(builds.first.model, builds.latents, builds.numbering)
    derived = _Derived(builds.public_values)
    parts = {}
    all_records = []
    for leaf, before, after, records in builds.confidential:
        parts[leaf] = _part(builds, derived, leaf, (before, after), records)
    for variable, array, axis in builds.constants:
        if variable in builds.numbering:
            continue
        if builds.selects(variable, array):
            all_records.append(variable)
        elif axis is not None and variable not in builds.sizes:
            parts[variable] = _part(builds, derived, variable, (array, array), axis)
    observed = tuple(_observed(builds, derived))
    _check_once(observed)
    return ConvertedModel(
        model=builds.first.model,
        parts=parts,
        sizes=builds.sizes,
        all_records=tuple(all_records),
        numbering=tuple(builds.numbering),
        observed=observed,
        latents=tuple(builds.latents),
        derived=derived.columns(),
        record_dims=frozenset(builds.record_dims),
    )


def _of_times(builds: Builds, potentials: Sequence[str]) -> ConvertedModel:
    """Return a model of times of which some are cut off, as its potentials say; others
    are refused, since potentials don't say how records come about.
    """
    alone = of_ended(builds.make, builds.made_up, builds.name)
    partial = [
        variable.name
        for variable, array, _ in builds.observed
        if array.ndim == 1 and len(array) != builds.n
    ]
    if alone is None or len(partial) != 1:
        raise InputError(
            f"potential {potentials[0]!r} reads confidential columns, and doesn't say "
            f"how records come about: write it as the law of an observed variable, by "
            f"pm.Censored for censored times, or by pm.CustomDist(..., logp=..., "
            f"random=...)"
        )
    alone = replace(alone, dropped=tuple(potentials))
    check_same(builds.make, alone, builds.made_up, partial[0])
    made = _converted(Builds(alone, builds.name, builds.made_up, takes_all=True))
    if made.latents:
        raise InputError(
            f"numbers that each record has of its own can't be integrated out beside "
            f"times that a potential cuts off: take pm.Censored in place of "
            f"{potentials[0]!r}"
        )
    observed = []
    for one in made.observed:
        if one.variable.name == partial[0]:
            times = builds.columns[one.columns[0]]
            censoring = censoring_of(one.readings[0], times, alone)
            one = replace(one, censoring=censoring)
        observed.append(one)
    return replace(made, observed=tuple(observed))


def _part(
    builds: Looked,
    derived: "_Derived",
    variable: Any,
    arrays: tuple[NDArray[Any], NDArray[Any]],
    axis: int,
) -> ColumnPart:
    """Return what an array with one row a record is made of, given in both builds."""
    before, after = arrays
    rows = builds.rows(variable, before.shape[axis])
    if rows is None:
        raise InputError(_of_several(builds.first.named(variable)))
    by_entry = np.moveaxis(before, axis, 0).reshape(len(rows), -1).T
    by_entry_after = np.moveaxis(after, axis, 0).reshape(len(rows), -1).T
    made_of = list[Reading | float]()
    for numbers, others in zip(by_entry, by_entry_after, strict=True):
        found: Reading | None = _reading(builds, numbers, others, rows)
        if found is None and not are_equal(numbers, others):
            found = _product(builds, numbers, others, rows)
            if found is None:
                raise InputError(_unreadable(builds.first.named(variable)))
        if found is None and isinstance(builds, Conditioned):
            _check_public(builds, numbers, builds.first.named(variable))
        made_of.append(found or derived.entry(_of_all(numbers, rows, builds.n)))
    return ColumnPart(axis, before.shape, str(before.dtype), made_of)


def _of_all(numbers: NDArray[Any], rows: NDArray[np.int64], n: int) -> NDArray[Any]:
    """Return numbers of some records as an array of all: what others have doesn't
    matter.
    """
    whole = np.full(n, numbers[0])
    whole[rows] = numbers
    return whole


def _reading(
    builds: Looked,
    numbers: NDArray[Any],
    others: NDArray[Any],
    rows: NDArray[np.int64],
) -> ColumnExpression | None:
    """Return which function of which confidential column numbers of some records are,
    in both builds.
    """
    if isinstance(builds, Conditioned):
        return builds.reading(numbers)
    if any(
        np.array_equal(numbers, each[rows]) for each in builds.public_values.values()
    ):
        return None
    both = {
        name: np.concatenate([values[rows], builds.other_values[name][rows]])
        for name, values in builds.values.items()
    }
    whole = np.concatenate([numbers, others])
    return reading_of(whole, both, builds.columns)


def _product(
    builds: Looked,
    numbers: NDArray[Any],
    others: NDArray[Any],
    rows: NDArray[np.int64],
) -> ColumnProduct | None:
    """Return of which two columns numbers of some records are a product, in both
    builds. Of a conditioned model none is looked for: its factors might be worked out
    of records.
    """
    if isinstance(builds, Conditioned):
        return None
    both = {
        name: np.concatenate([values[rows], builds.other_values[name][rows]])
        for name, values in builds.values.items()
    }
    both |= {
        name: np.tile(np.asarray(values)[rows], 2)
        for name, values in builds.public_values.items()
    }
    return product_of(np.concatenate([numbers, others]), both, builds.columns)


def _check_public(builds: Conditioned, numbers: NDArray[Any], name: str) -> None:
    """Refuse an array of a conditioned model that is no known function of public
    columns: it may be worked out of confidential ones, as group means are.
    """
    public = builds.public_values
    known = {each: builds.columns[each] for each in public}
    if (numbers == numbers[0]).all():
        return
    found: Reading | None = reading_of(numbers, public, known)
    if isinstance(found, ColumnExpression) and found.by_code is not None:
        # any number by level can be worked out of records, such as their mean there
        found = found if all(map(is_typed, found.by_code)) else None
    elif found is None:
        found = product_of(numbers, public, known)
    if found is None:
        raise InputError(
            f"{name!r} holds an array with one number a record that isn't known as a "
            f"function of public columns, and may be worked out of confidential ones, "
            f"as interactions, ranks and group means are: hand over the function that "
            f"makes the model, make(df), which is called with made-up records"
        )


def _observed(builds: Looked, derived: "_Derived") -> Iterator[Observed]:
    """Yield what the observed variables observe."""
    groups = dict[tuple[str, ...], list[Observed]]()
    for variable, array, other in builds.observed:
        name = variable.name
        places = builds.places_in(variable, array)
        array = laid_out(array, places)
        other = laid_out(other, places)
        rows = builds.rows(variable, len(array)) if array.ndim else None
        if rows is None or array.shape != other.shape:
            raise InputError(
                f"{name!r} doesn't observe one value a record on its first axis: "
                f"observe whole columns, such as observed=df['x'], or those of records "
                f"that public columns select"
            )
        if array.ndim > 2:
            raise InputError(f"{name!r} observes an array of more than two axes")
        readings = []
        by_column = array.reshape(len(rows), -1).T
        by_column_after = other.reshape(len(rows), -1).T
        for numbers, others in zip(by_column, by_column_after, strict=True):
            found = _reading(builds, numbers, others, rows)
            if found is None:
                raise InputError(_unobservable(name, numbers, others))
            readings.append(found)
        observed = Observed(variable, tuple(readings), is_matrix=array.ndim == 2)
        if variable in builds.subsets:
            groups.setdefault(observed.columns, []).append(observed)
        else:
            yield observed
    for columns, members in groups.items():
        yield _joined(builds, derived, columns, members)


def _joined(
    builds: Looked,
    derived: "_Derived",
    columns: tuple[str, ...],
    members: Sequence[Observed],
) -> Observed:
    """Return several observed variables, each of some records, as one of all."""
    first = members[0]
    number = np.full(builds.n, -1)
    for place, member in enumerate(members):
        rows = builds.subsets[member.variable]
        if (number[rows] >= 0).any() or member.readings != first.readings:
            raise InputError(
                f"column {columns[0]!r} is observed twice for some of the records, or "
                f"on different scales"
            )
        number[rows] = place
    if (number < 0).any() or first.is_matrix:
        raise InputError(
            f"{first.variable.name!r} observes column {columns[0]!r} of some of the "
            f"records only: say how the others come about too"
        )
    which = derived.entry(number)
    variables = [member.variable for member in members]
    return replace(first, variable=variables[-1], members=tuple(variables), which=which)


def _check_once(observed: Sequence[Observed]) -> None:
    """Refuse a column that two variables observe: its records would count twice."""
    by_column = dict[str, str]()
    for one in observed:
        for column in one.columns:
            if column in by_column:
                raise InputError(
                    f"column {column!r} is observed by {by_column[column]!r} and by "
                    f"{one.variable.name!r}: each column is observed once"
                )
            by_column[column] = one.variable.name


def _of_several(name: str) -> str:
    return (
        f"{name!r} reads an array with several entries a record, or entries of some "
        f"records only, as a frame in long form has: give the frame one row a record "
        f"and one column a measurement, and observe them together, as in "
        f"pm.MvNormal(..., observed=df[['w1', 'w2']])"
    )


def _unobservable(name: str, numbers: NDArray[Any], others: NDArray[Any]) -> str:
    if np.array_equal(numbers, others):
        return (
            f"{name!r} observes what is public, or no column at all: what is observed "
            f"must be confidential, such as observed=df['x'] of a column that isn't "
            f"in public"
        )
    return (
        f"the observed value of {name!r} is no column, nor a function of one by which "
        f"synthetic records could be brought back: observe the column itself, or its "
        f"logarithm, root or a linear function of it with public numbers"
    )


def _unreadable(name: str) -> str:
    return (
        f"{name!r} reads a function of confidential columns that isn't understood: "
        f"read the columns themselves, as random variables that describe them, and "
        f"work the function out in the model"
    )


@dataclass(eq=False)
class _Derived:
    """Columns that are collected while a model is looked at."""

    public: Values
    found: dict[str, NDArray[Any]] = field(default_factory=dict)

    def entry(self, numbers: NDArray[Any]) -> ColumnExpression | float:
        """Return one number a record that is public: a public column, one number for
        all, or a further column.
        """
        if numbers.dtype.kind not in "biuf" or not np.isfinite(numbers).all():
            raise InputError(
                "the model holds values of public columns that are missing or no "
                "numbers: fill them before they are read"
            )
        if numbers.dtype == bool:
            numbers = numbers.astype(np.int64)
        if (numbers == numbers[0]).all():
            return float(numbers[0])
        for name, values in {**self.public, **self.found}.items():
            if np.array_equal(values, numbers):
                return ColumnExpression(name)
        if len(self.found) >= MOST_DERIVED:
            raise InputError(
                f"the model reads more than {MOST_DERIVED} numbers a record that "
                f"follow from public columns: take fewer basis functions or dummies"
            )
        name = f"{DERIVED}{len(self.found) + 1}"
        self.found[name] = numbers
        return ColumnExpression(name)

    def columns(self) -> DerivedColumns:
        """Return all of them."""
        described = {name: _column(values) for name, values in self.found.items()}
        return DerivedColumns.of(described, self.public, self.found)


def _column(values: NDArray[Any]) -> Column:
    whole = values.dtype.kind in "iu"
    return Column(
        lower=float(values.min()),
        upper=float(values.max()),
        integer=bool(whole),
        public=True,
    )
