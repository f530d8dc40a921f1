"""What the noise of a plan comes to, in closed form and before a table is read: the
design of a plan says it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

from pdips.data.schema import Schema
from pdips.errors import InputError, hint
from pdips.margins.intervals import IntervalColumn
from pdips.privacy.noise_sum import NoiseSum
from pdips.privacy.plan import NOISY, Plan, Step

SIZES: dict[str, tuple[int, ...]] = {"one-way": (1,), "two-way": (2,), "all": (1, 2)}

ColumnNames = tuple[str, ...]
MarginForm = Callable[[Sequence[int]], NoiseSum]
"""The error of one round in a cell of a margin, from the positions of its columns."""


class NoFormError(Exception):
    """There is no closed form; the message says why."""


@dataclass(frozen=True, kw_only=True)
class PageShapes:
    """What a page needs to work out errors at other prices than those of a plan.

    Parameters
    ----------
    step : Step
        Whose noise the floor may bound from below.
    shapes : mapping of str to object
        Designs, by the name that their parts have in a row of the page.
    floor : mapping of str to float, optional
        The least noise, where there is one.
    """

    step: Step
    shapes: Mapping[str, Any]
    floor: Mapping[str, float] | None = None


class Forecast:
    """What a design says of the noise in what follows from its answers. A design that
    says nothing has no closed forms; one that knows more inherits, and overrides.
    """

    def errors_of(self, plan: Plan, words: str) -> dict[str, NoiseSum]:
        """Return the error of a cell of each margin that words name, in one round."""
        names = [*plan.schema.columns]
        form = self.margin_form(plan)
        return {
            label(columns): form([names.index(name) for name in columns])
            for columns in margins_of(plan.schema, words)
        }

    def margin_form(self, plan: Plan) -> MarginForm:
        """Return the error of the least exact cell of a margin, as a function that
        raises :class:`NoFormError` where it isn't known.
        """
        raise NoFormError(
            f"what {plan.mechanism} counts isn't known to be a tree or margins"
        )

    def answers_to(self, columns: Sequence[int]) -> list[NoiseSum]:
        """Return the errors of independent answers, each of which holds a margin."""
        return []

    def coded_noises(self, plan: Plan) -> dict[str, NoiseSum]:
        """Return the noise on a count of a level, by column, where the levels of a
        column are counted by themselves and margins hold groups of them.
        """
        return {}

    def larger_margins(self) -> list[tuple[int, ...]]:
        """Return the margins of more than two columns that are counted."""
        return []

    def contrast_noises(self, plan: Plan) -> dict[ColumnNames, tuple[NoiseSum, ...]]:
        """Return the noise on contrasts of levels of one or two columns, where it is
        known.
        """
        return {}

    def interval_columns(self, schema: Schema) -> dict[str, IntervalColumn]:
        """Return the columns that are counted finer than in margins."""
        return {}

    def page_shapes(self, plan: Plan, price: Fraction) -> PageShapes:
        """Return what a page needs to work out errors at other prices."""
        noisy = {step.parameter for step in plan.steps if step.law in NOISY}
        if len(noisy) > 1:
            raise InputError(
                "--html takes no tree whose layers differ in noise: leave "
                "order and layers out"
            )
        return PageShapes(step=plan.steps[-1], shapes={"parts": plan.design})


def forecast_of(plan: Plan) -> Forecast:
    """Return what the design of a plan says of noise; nothing, for other designs."""
    return plan.design if isinstance(plan.design, Forecast) else Forecast()


def errors_of(plan: Plan, words: str) -> dict[str, NoiseSum]:
    """Return the error of the mean over all sets that the noise gives to a cell of each
    margin that words name; of a model of statistics also one of them by name.

    In records, but for sums of a model's units; of the least exact cell of each margin,
    or of a statistic. ``words`` are "one-way", "two-way", "all" or the columns of a
    margin, as "age x sex". Making counts nonnegative comes after and moves them too: by
    more than that on trees with far more cells than records. Structural zeros are left
    out of account: with them errors are at most as large (Gauss and Markov: knowing
    more never hurts).

    Raises
    ------
    NoFormError
        If it isn't known in closed form.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "sex": Column(levels=["f", "m"]),
    ...     }
    ... )
    >>> [*errors_of(Steps(epsilon=1, order=("sex",)).plan(schema), "all")]
    ['ill', 'sex', 'ill x sex']
    """
    if plan.is_redrawn:
        raise NoFormError(
            f"{plan.mechanism} has more between its noise and its records than a sum"
        )
    errors = forecast_of(plan).errors_of(plan, words)
    if plan.repeats == 1:
        return errors
    return {name: error.averaged(plan.repeats) for name, error in errors.items()}


def label(columns: Sequence[str]) -> str:
    return " x ".join(columns)


def margins_of(schema: Schema, words: str) -> list[ColumnNames]:
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
            known = (*SIZES, *schema.columns)
            raise InputError(f"{name!r} is no column of the schema{hint(name, known)}")
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


def _margins_of_sizes(schema: Schema, sizes: Sequence[int]) -> list[ColumnNames]:
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
