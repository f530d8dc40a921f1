"""The label of a release: what is kept of the table, and how well, from the design and
the public law of its noise alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median

import numpy as np

from pdips.data.column import Column, has_number_levels
from pdips.release.documents import PrivacyDocument
from pdips.release.noisy_margins import MarginLaw
from pdips.release.release import MarginError
from pdips.report.formats import plural, price

REACH = 1.96  # standard errors in which 19 of 20 errors are
GROUP = 0.1  # share of the records that a group has, as an example
MOST_NAMED = 4
BY_INTERVALS = "not stated: numbers are counted by intervals"
BY_MODEL = "not known: the sets follow a model"
PRODUCTS = "products"


@dataclass(frozen=True, kw_only=True)
class LabelRow:
    """One kind of question: how much of it is kept, and how far noise moves it."""

    asked: str
    kept: str
    error: str


def label(
    release: PrivacyDocument, n_records: float | None, n_coefficients: int
) -> list[LabelRow]:
    """Return what is kept and how well.

    Parameters
    ----------
    release : PrivacyDocument
    n_records : float, optional
        Public, or itself noisy: then errors are points of a percentage, else records.
    n_coefficients : int
        Of a posterior that is published.
    """
    rows = [
        _of_columns(release, n_records),
        _of_pairs(release, n_records),
        _of_means(release, n_records),
        _of_open_numbers(release),
        _of_more(release),
    ]
    rows += _of_analyses(release, n_coefficients)
    invented = "every row of the sets is invented"
    whose = "person" if release.table_schema.members is None else "household"
    one = LabelRow(asked=f"One {whose}'s record", kept="not kept", error=invented)
    rows.append(one)
    return [row for row in rows if row is not None]


def _errors(release: PrivacyDocument, n_columns: int) -> list[MarginError]:
    return [each for each in release.margin_errors if len(each.columns) == n_columns]


def _spelt(errors: Sequence[MarginError], n_records: float | None) -> str:
    """Return the errors of margins in words: the middle one, and the largest."""
    reaches = {each.columns: REACH * each.standard_error for each in errors}
    typical = median(reaches.values())
    worst = max(reaches, key=lambda columns: reaches[columns])
    said = _reach(typical, n_records)
    if reaches[worst] > 1.2 * typical:
        named = " by ".join(worst)
        said += f"; at most {_reach(reaches[worst], n_records)} ({named})"
    return said


def _reach(records: float, n_records: float | None) -> str:
    if records == 0:
        return "exact"
    if n_records is None:
        return f"± {_short(records)} records"
    if records >= n_records:
        return "nothing: noise is larger than the table"
    return f"± {_short(100 * records / n_records)} points"


def _short(value: float) -> str:
    """Return a number in two digits: what is known of an error is no more."""
    return price(float(f"{value:.2g}"))


def _of_columns(release: PrivacyDocument, n_records: float | None) -> LabelRow:
    n_columns = len(release.table_schema.columns)
    errors = _errors(release, 1)
    if not errors:
        return LabelRow(
            asked="Shares of a column",
            kept="as the sets have them",
            error="not published: see “Standard errors”",
        )
    columns = release.table_schema.columns
    counted = _counted(release, 1)
    left = [name for name in columns if frozenset([name]) not in counted]
    kept = _part(n_columns - len(left), n_columns, "column")
    if 0 < len(left) <= MOST_NAMED:
        kept = f"all but {', '.join(left)}"
    if public := release.table_schema.public_columns:
        kept += f"; {', '.join(public)} without noise"
    return LabelRow(
        asked="Shares of a column", kept=kept, error=_spelt(errors, n_records)
    )


def _of_pairs(release: PrivacyDocument, n_records: float | None) -> LabelRow | None:
    n_columns = len(release.table_schema.columns)
    if n_columns < 2 or not release.margin_errors:
        return None
    n_pairs = math.comb(n_columns, 2)
    errors = _errors(release, 2)
    if errors:
        kept = _part(len(_counted(release, 2)), n_pairs, "pair")
        error = _spelt(errors, n_records)
    elif held := _pairs_of_margins(release):
        kept = _part(len(held), n_pairs, "pair")
        error = BY_INTERVALS
    else:
        kept = "not counted"
        error = BY_MODEL
    return LabelRow(asked="Two columns together", kept=kept, error=error)


def _pairs_of_margins(release: PrivacyDocument) -> set[frozenset[str]]:
    """Return the pairs of columns that were counted, by levels or intervals."""
    pairs = set[frozenset[str]]()
    for law in release.margins:
        names = [name for axis in law.axes for name in axis.columns]
        pairs |= {frozenset(some) for some in combinations(names, 2)}
    return pairs


def _counted(release: PrivacyDocument, n_columns: int) -> set[frozenset[str]]:
    """Return the columns, or pairs of them, that were counted by all their levels."""
    counted = {frozenset(each.columns) for each in _errors(release, n_columns)}
    for law in release.margins:
        whole = [axis for axis in law.axes if not axis.lower and not axis.first]
        names = [name for axis in whole for name in axis.columns if not axis.groups]
        counted |= {frozenset(some) for some in combinations(names, n_columns)}
    return counted


def _part(kept: int, there_are: int, noun: str) -> str:
    if kept >= there_are:
        return "it" if there_are == 1 else f"all {plural(there_are, noun)}"
    return f"{kept:,} of {plural(there_are, noun)}"


def _of_means(release: PrivacyDocument, n_records: float | None) -> LabelRow | None:
    """Return how far noise moves means of numbers in a group that has a tenth of the
    records, if there are numbers with levels or bins.
    """
    columns = release.table_schema.columns
    binned = [name for name, each in columns.items() if _has_middles(each)]
    pairs = _errors(release, 2)
    said = list[str]()
    kept = list[str]()
    for name in binned:
        own = [each.standard_error for each in pairs if name in each.columns]
        if not own:
            continue
        kept.append(name)
        if n_records and len(said) < MOST_NAMED:
            reach = REACH * median(own) * _spread(columns[name]) / (GROUP * n_records)
            unit = f" {columns[name].unit}" if columns[name].unit else ""
            said.append(f"± {_short(reach)}{unit} ({name})")
    if not kept:
        return None
    error = "as their counts"
    if said:
        error = f"about {', '.join(said)}, in a group of a tenth of the records"
    return LabelRow(asked="Means by group", kept=_named(kept), error=error)


def _has_middles(column: Column) -> bool:
    """Whether a column has numbers for levels, or bins."""
    if column.is_categorical:
        return has_number_levels(column)
    return column.type == "number" and column.is_binned


def _spread(column: Column) -> float:
    """Return the root of the sum of squares of a column's numbers, or middles of bins,
    less their mean: what independent noise on their counts comes to in a sum.
    """
    if column.levels is not None:
        numbers = np.array(column.levels, dtype=np.float64)
    else:
        numbers = np.array([(low + high) / 2 for low, high in pairwise(column.edges)])
    return float(np.sqrt(((numbers - numbers.mean()) ** 2).sum()))


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMED])
    left = len(names) - MOST_NAMED
    return f"{shown} and {left} more" if left > 0 else shown


def _of_open_numbers(release: PrivacyDocument) -> LabelRow | None:
    """Return how numbers without bins are kept, if there are some and counts of the
    others.
    """
    columns = release.table_schema.columns
    names = []
    for name, column in columns.items():
        is_number = column.type == "number" and not column.is_categorical
        if is_number and not column.is_binned:
            names.append(name)
    if not names or not release.margin_errors:
        return None
    error = "as the sets have them, which know a number by a few intervals"
    if any(file.startswith(f"{PRODUCTS}.") for file in release.digests or ()):
        error = "means and regressions by noisy products, with intervals"
    return LabelRow(asked="Numbers without bins", kept=_named(names), error=error)


def _of_more(release: PrivacyDocument) -> LabelRow:
    """Return which columns were counted three and more at once."""
    together = dict.fromkeys(_wide(release.margins))
    if together:
        kept = _named([" by ".join(columns) for columns in together])
        error = "as noisy as their counts; others follow a model"
    else:
        kept = "not counted" if release.margin_errors else "as the sets have them"
        error = BY_MODEL
    return LabelRow(asked="Three columns and more", kept=kept, error=error)


def _wide(laws: Sequence[MarginLaw]) -> Iterator[tuple[str, ...]]:
    for law in laws:
        columns = tuple(name for axis in law.axes for name in axis.columns)
        if len(columns) > 2:
            yield columns


def _of_analyses(release: PrivacyDocument, n_coefficients: int) -> Iterator[LabelRow]:
    settings = release.settings
    error = "an interval for each coefficient, which includes the noise"
    if release.analyses:
        kept = _named([each.question for each in release.analyses])
        yield LabelRow(asked="Named analyses", kept=kept, error=error)
    if n_coefficients:
        model = str(settings.get("model_source", "")).splitlines()
        is_formula = settings.get("model") == "formula" and model
        kept = model[0] if is_formula else plural(n_coefficients, "number")
        yield LabelRow(asked="Named analysis", kept=kept, error=error)
