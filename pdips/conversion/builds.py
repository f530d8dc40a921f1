"""A model built on several made-up frames, and what its constants say when they are
compared.
"""

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pymc as pm
from numpy.typing import NDArray
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from pdips.conversion.frames import MadeUp
from pdips.conversion.leaves import (
    OTHER_GRAPH,
    Build,
    check_alike,
    evaluated,
    held,
    is_whole,
    roots_of,
    without_random,
)
from pdips.conversion.matching import is_record_of_row, laid_out, places_of_rows
from pdips.conversion.moving import numbers_of, refuse_moving
from pdips.data.schema import Column
from pdips.errors import InputError, hint
from pdips.posterior.columns import Values
from pdips.posterior.model_checks import check_no_series, parameter_shapes

# Further builds by which records are known again; more where what is observed has so
# few values that each tells little
MORE_BUILDS = 22
FEW_VALUES = 8
MORE_OF_FEW_VALUES = 60

# What is raised where words are taken for numbers
MISREAD = (IndexError, NotImplementedError, RecursionError, TypeError, ValueError)

LACKING = re.compile(r"\['(?P<name>[^']+)'.*\bin (the )?(index|\[columns\])")
"""What pandas says of a list of columns of which some aren't there."""

Make = Callable[[pd.DataFrame], pm.Model]


@dataclass(frozen=True, eq=False)
class Builds:
    """A model built four times: on made-up records, on the same where every second one
    has other confidential values, on each record twice, and in another order.

    Parameters
    ----------
    make : callable
        ``make(df)`` returns a ``pm.Model``.
    name : str
        What messages call it.
    made_up : MadeUp
        The frames.
    takes_all : bool
        Says that places of all records in their order are those of a selection that
        all belong to.
    """

    make: Make = field(repr=False)
    name: str
    made_up: MadeUp
    takes_all: bool = False

    @cached_property
    def n(self) -> int:
        """Number of made-up records."""
        return self.made_up.n

    @property
    def columns(self) -> dict[str, Column]:
        """The columns as models read them."""
        return self.made_up.columns

    @property
    def public_values(self) -> Values:
        """The public columns, one value a record."""
        return self.made_up.public_values

    @cached_property
    def values(self) -> Values:
        """Confidential values of the first frame."""
        return self.made_up.values(0)

    @cached_property
    def other_values(self) -> Values:
        """Those of the second: the first record, and every second one after it, are the
        same.
        """
        others = self.made_up.values(1)
        same = self.same
        return {
            name: np.where(same, values, others[name]).astype(values.dtype)
            for name, values in self.values.items()
        }

    @cached_property
    def same(self) -> NDArray[np.bool_]:
        """Which records are the same in both."""
        return np.asarray(np.arange(self.n) % 2 == 0)

    @cached_property
    def first(self) -> Build:
        return self.built(self.made_up.frame(self.values))

    @cached_property
    def second(self) -> Build:
        build = self.built(self.made_up.frame(self.other_values))
        check_alike(self.first, build)
        return build

    @cached_property
    def longer(self) -> Build:
        rows = np.repeat(np.arange(self.n), 2)
        build = self.built(self.made_up.frame(self.values, rows))
        check_alike(self.first, build)
        return build

    @cached_property
    def permuted(self) -> Build:
        """The first build's records in another order."""
        rows = self.made_up.permuted
        build = self.built(self.made_up.frame(self.values, rows))
        check_alike(self.first, build)
        return build

    def check_order(
        self,
        name: str,
        array: NDArray[Any],
        permuted: NDArray[Any],
        axis: int,
        rows: NDArray[np.int64],
    ) -> None:
        """Refuse an array with one row for each of some records that follows from
        their order.
        """
        order = self.made_up.permuted
        place = np.full(self.n, -1)
        place[rows] = np.arange(len(rows))
        wanted = place[order][np.isin(order, rows)]
        expected = np.moveaxis(array, axis, 0)[wanted]
        found = np.moveaxis(permuted, axis, 0)
        if expected.shape == found.shape and are_close(expected, found):
            return
        raise InputError(
            f"{name!r} reads an array that follows from the order of records, such as "
            f"their place, a lag, a cumulative sum or random numbers: records have no "
            f"order here; name a public column for time"
        )

    def built(self, frame: pd.DataFrame) -> Build:
        try:
            model = self.make(frame)
        except (InputError, KeyboardInterrupt):
            raise
        except (AttributeError, KeyError) as error:
            wanted = _column_of(error)
            if wanted is not None and wanted not in frame.columns:
                raise InputError(self._not_there(wanted)) from None
            raise _failed(self.name, error) from None
        except BaseException as error:  # noqa: BLE001 - the analyst's own code, on made-up records
            words = self._words_as_numbers(frame, error)
            if words is not None:
                raise InputError(words) from None
            raise _failed(self.name, error) from None
        if not isinstance(model, pm.Model):
            raise InputError(
                f"{self.name} must return a pm.Model, and returns "
                f"{type(model).__name__}; end it with `return model`"
            )
        if not model.observed_RVs:
            raise InputError(
                f"{self.name} makes a model without an observed variable: give one "
                f"observed=df[...], or condition it by pm.observe (a pm.Potential "
                f"doesn't say how records come about)"
            )
        check_no_series(model)
        return Build.of(model)

    def _words_as_numbers(
        self, frame: pd.DataFrame, error: BaseException
    ) -> str | None:
        """Return what is said of a column of words that is taken for numbers; None if
        the error isn't one that codes in its place mend.
        """
        if not isinstance(error, MISREAD):
            return None
        names = [
            name
            for name in frame.columns
            if not pd.api.types.is_numeric_dtype(frame[name])
        ]
        for replaced in [*([name] for name in names), names]:
            coded = frame.assign(**{name: codes_of(frame[name]) for name in replaced})
            if not replaced or not self._is_made(coded):
                continue
            name = replaced[0]
            levels = self.columns[name].levels or ()
            level = f"df[{name!r}] == {levels[-1]!r}" if levels else "a condition"
            return (
                f"{self.name} takes the words of column {name!r} for numbers: write "
                f"({level}).astype(int).values in their place, or codes, "
                f"pd.Categorical(df[{name!r}], categories=[...]).codes"
            )
        return None

    def _is_made(self, frame: pd.DataFrame) -> bool:
        """Whether the function makes a model of a frame."""
        try:
            return isinstance(self.make(frame), pm.Model)
        except Exception:  # noqa: BLE001 - the analyst's own code, on made-up records
            return False

    def _not_there(self, wanted: Any) -> str:
        """Return what is said of a column that the frame lacks."""
        guess = hint(wanted, self.made_up.schema.columns)
        said = (
            f"{self.name} reads column {wanted!r}, which the schema doesn't have{guess}"
        )
        if wanted == self.made_up.schema.records.person:
            said = (
                f"{self.name} reads column {wanted!r}, which says whose a record is "
                f"and is in no model: where persons have several records, give the "
                f"frame one row a person and one column a measurement"
            )
        return said

    @cached_property
    def observed(self) -> list[tuple[Any, NDArray[Any], NDArray[Any]]]:
        """The observed variables, each with its value in the first and the second
        build.
        """
        arrays = []
        for build in (self.first, self.second):
            model = build.model
            values = [model.rvs_to_values[each] for each in model.observed_RVs]
            arrays.append(evaluated(values))
        return list(zip(self.first.model.observed_RVs, *arrays, strict=True))

    @cached_property
    def subsets(self) -> dict[Any, NDArray[np.int64]]:
        """The records of each observed variable that observes some of them only, by
        what is public.
        """
        found = {}
        for variable, array, other in self.observed:
            if array.ndim and array.shape == other.shape and len(array) < self.n:
                rows = rows_of(self, variable, array, other)
                if rows is not None:
                    found[variable] = rows
        return found

    @cached_property
    def places(self) -> dict[Any, NDArray[np.int64]]:
        """For each observed variable in long form: where the rows of each record are,
        shape (records, entries of a record).
        """
        found = {}
        for variable, array, other in self.observed:
            is_long = array.ndim == 1 and len(array) > self.n
            if is_long and array.shape == other.shape and len(array) % self.n == 0:
                places = places_of(self, variable, array, other)
                if places is not None:
                    found[variable] = places
        return found

    @cached_property
    def places_by_leaf(self) -> dict[Any, NDArray[np.int64]]:
        """The same for what is behind these variables."""
        found = dict[Any, NDArray[np.int64]]()
        for variable, places in self.places.items():
            value = self.first.model.rvs_to_values[variable]
            others = [each for each in self.places if each is not variable]
            for behind in ancestors([variable, value], blockers=others):
                found.setdefault(behind, places)
        return found

    def places_in(self, variable: Any, array: NDArray[Any]) -> NDArray[np.int64] | None:
        """Return where the rows of each record are in an array in long form, None where
        it isn't in that form.
        """
        places = self.places_by_leaf.get(variable)
        if places is None or not array.ndim or len(array) != places.size:
            return None
        return places

    @cached_property
    def numbering(self) -> list[Any]:
        """Arrays in long form that say which record each row belongs to."""
        found = []
        for variable, array, *_ in self._constants:
            places = self.places_in(variable, array)
            if places is not None and is_record_of_row(array, places):
                found.append(variable)
        return found

    @cached_property
    def rows_by_leaf(self) -> dict[Any, NDArray[np.int64]]:
        """For leaves and what is worked out of them: the records of the variable that
        they are behind, where these are some only.
        """
        found = dict[Any, NDArray[np.int64]]()
        for variable, rows in self.subsets.items():
            value = self.first.model.rvs_to_values[variable]
            others = [each for each in self.subsets if each is not variable]
            for behind in ancestors([variable, value], blockers=others):
                found.setdefault(behind, rows)
        return found

    def rows(self, variable: Any, length: int) -> NDArray[np.int64] | None:
        """Return the records that the entries of an axis of some length belong to; None
        if that isn't known.
        """
        if length == self.n:
            return np.arange(self.n)
        rows = self.rows_by_leaf.get(variable)
        return rows if rows is not None and len(rows) == length else None

    def selects(self, variable: Any, array: NDArray[Any]) -> bool:
        """Whether an array, places or a mask, selects the records of the observed
        variable that it is behind.
        """
        rows = self.rows_by_leaf.get(variable)
        if rows is None and self.takes_all:
            rows = np.arange(self.n)
        if rows is None or array.ndim != 1:
            return False
        if array.dtype == bool and len(array) == self.n:
            array = np.flatnonzero(array)
        return _is_whole_array(array) and np.array_equal(rows, array)

    @cached_property
    def confidential(self) -> list[tuple[Any, NDArray[Any], NDArray[Any], int]]:
        """Leaves of the first build that hold confidential columns, one row a record:
        each with its values in both builds and the axis of the records.

        Raises
        ------
        InputError
            If a constant follows from several records.
        """
        moving = []
        leaves = zip(
            self.first.leaves,
            self.second.leaves,
            self.longer.leaves,
            self.permuted.leaves,
            strict=True,
        )
        for leaf, other, longer, permuted in leaves:
            before = held(leaf)
            after = held(other)
            if before.shape == after.shape and are_equal(before, after):
                continue
            axis = self.axis(before.shape, held(longer).shape)
            if before.shape != after.shape or axis is None:
                self._refuse(leaf, before, after)
            places = self.places_in(leaf, before)
            before = laid_out(before, places)
            after = laid_out(after, places)
            rows = self.rows(leaf, before.shape[axis])
            if rows is None:
                raise InputError(_of_other_length(self.first.named(leaf)))
            same = self.same[rows]
            unchanged = np.moveaxis(before, axis, 0)[same]
            if not are_equal(unchanged, np.moveaxis(after, axis, 0)[same]):
                self._refuse(leaf, before, after, axis)
            name = self.first.named(leaf)
            in_other_order = laid_out(held(permuted), places)
            self.check_order(name, before, in_other_order, axis, rows)
            moving.append((leaf, before, after, axis))
        self._check_density()
        return moving

    def _refuse(
        self,
        leaf: Any,
        before: NDArray[Any],
        after: NDArray[Any],
        axis: int | None = None,
    ) -> NoReturn:
        """Refuse a leaf that differs between the first build and the second."""
        numbers = numbers_of(self.columns, self.values, self.other_values)
        refuse_moving(self.first.named(leaf), numbers, before, after, axis)

    def _check_density(self) -> None:
        """Refuse numbers inside of log densities that follow from several records."""
        pairs = zip(
            self.first.of_density,
            self.second.of_density,
            self.longer.of_density,
            strict=True,
        )
        for leaf, other, longer in pairs:
            before = held(leaf)
            after = held(other)
            if before.shape == after.shape and are_equal(before, after):
                continue
            if self.axis(before.shape, held(longer).shape) is None:
                self._refuse(leaf, before, after)

    def axis(self, shape: Sequence[int], longer: Sequence[int]) -> int | None:
        """Return the axis of an array that has the records, by its shape in the first
        build and in the longer one; None if there is none.
        """
        if len(shape) != len(longer):
            raise InputError(OTHER_GRAPH)
        axes = [axis for axis in range(len(shape)) if shape[axis] != longer[axis]]
        if not axes:
            return None
        is_doubled = all(longer[axis] == 2 * shape[axis] for axis in axes)
        if len(axes) > 1 and is_doubled:
            raise InputError(
                f"{self.name} holds a matrix with a row and a column for each record, "
                f"such as a covariance of records: no record has a term of its own; "
                f"take pm.gp.HSGP in place of pm.gp.Latent or pm.gp.Marginal"
            )
        return axes[0] if is_doubled else None

    @cached_property
    def constants(self) -> list[tuple[Any, NDArray[Any], int | None]]:
        """What follows from no random variable and no confidential column: each with
        its value in the first build and the axis of the records, if it has one.

        Raises
        ------
        InputError
            If an array follows from the order of records, or a number from how many
            there are where that isn't known.
        """
        axes = [
            self.axis(array.shape, longer.shape)
            for _, array, longer, _ in self._constants
        ]
        found = []
        for constant, axis in zip(self._constants, axes, strict=True):
            variable, array, longer, permuted = constant
            name = self.first.named(variable)
            if axis is not None and variable not in self.numbering:
                places = self.places_in(variable, array)
                array = laid_out(array, places)
                permuted = laid_out(permuted, places)
            rows = None if axis is None else self.rows(variable, array.shape[axis])
            if axis is not None and rows is not None:
                if not self.selects(variable, array):
                    self.check_order(name, array, permuted, axis, rows)
            elif axis is None and not are_close(array, longer):
                self._check_number(variable, name)
            found.append((variable, array, axis))
        return found

    def _check_number(self, variable: Any, name: str) -> None:
        """Refuse a number that follows from how many records there are, where these are
        made up.
        """
        if self.made_up.public is None and variable not in self.sizes:
            raise InputError(
                f"{name!r} holds a number that follows from how many records there "
                f"are, which isn't known before the table is read: write a public "
                f"number in its place (len(df) may stand in shapes alone)"
            )

    @cached_property
    def _constants(self) -> list[tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """Each constant with its value in the first build, in the longer one and in the
        permuted one.
        """
        index = {leaf: place for place, leaf in enumerate(self.first.leaves)}
        places = [index[leaf] for leaf, *_ in self.confidential]
        fronts = []
        values = []
        for build in (self.first, self.longer, self.permuted):
            leaves = [build.leaves[place] for place in places]
            roots = roots_of(build.model)
            front, _ = without_random(roots, [*leaves, *generators_of(roots)])
            fronts.append(front)
            values.append(evaluated(front))
        if len({len(front) for front in fronts}) > 1:
            raise InputError(OTHER_GRAPH)
        return list(zip(fronts[0], *values, strict=True))

    @cached_property
    def sizes(self) -> dict[Any, NDArray[np.int64]]:
        """Whole numbers that tell how many records there are: how many times that many
        each is, 0 where it is another number.
        """
        found = {}
        for variable, array, longer, _ in self._constants:
            if not is_whole(variable) or array.shape != longer.shape or array.ndim > 1:
                continue
            rows = self.rows_by_leaf.get(variable)
            lengths = [self.n] if rows is None else [self.n, len(rows)]
            is_size = np.isin(array, lengths) & (longer == 2 * array)
            times = is_size.astype(np.int64)
            places = self.places_by_leaf.get(variable)
            if places is not None:
                is_long = (array == places.size) & (longer == 2 * array)
                times = np.where(is_long, places.shape[1], times)
            if times.any():
                found[variable] = times
        return found

    @cached_property
    def latents(self) -> list[Any]:
        """The free variables with an entry for each record."""
        first = self.first.model
        shapes = parameter_shapes(first)
        longer = parameter_shapes(self.longer.model)
        return [
            variable
            for variable in first.free_RVs
            if self.axis(shapes[variable.name], longer[variable.name]) is not None
        ]

    @cached_property
    def record_dims(self) -> set[str]:
        """Names of the dimensions that number records."""
        found = set()
        longer = _lengths(self.longer.model)
        for dim, length in _lengths(self.first.model).items():
            if length > 0 and longer.get(dim) == 2 * length:
                found.add(dim)
        return found


def rows_of(
    builds: Builds, variable: Any, array: NDArray[Any], other: NDArray[Any]
) -> NDArray[np.int64] | None:
    """Return which records a variable observes, some of them only; None if that can't
    be told.
    """
    signature, known = _seen(builds, variable, array, other)
    if signature is None:
        return None
    for name in builds.values:
        for spell in builds.made_up.spellings(name):
            whole = np.stack([spell(values[name]) for values in known], axis=1)
            rows = _found_in(signature, whole)
            if rows is not None:
                return rows
    return None


def places_of(
    builds: Builds, variable: Any, array: NDArray[Any], other: NDArray[Any]
) -> NDArray[np.int64] | None:
    """Return where each record's rows are in what a variable observes in long form,
    shape (records, entries of a record); None if it isn't whole columns.
    """
    signature, known = _seen(builds, variable, array, other)
    if signature is None:
        return None
    spellings = {name: builds.made_up.spellings(name) for name in builds.values}
    return places_of_rows(signature, known, spellings)


def _seen(
    builds: Builds, variable: Any, array: NDArray[Any], other: NDArray[Any]
) -> tuple[NDArray[Any] | None, list[Values]]:
    """Return what a variable observes in several builds, shape (rows, builds), None if
    its length differs, and the columns in the same.

    Records are known again by their made-up values in several builds.
    """
    place = builds.first.model.observed_RVs.index(variable)
    known = [builds.values, builds.other_values]
    seen = [array, other]
    has_few = len(np.unique(array)) <= FEW_VALUES
    for number in range(2, 2 + (MORE_OF_FEW_VALUES if has_few else MORE_BUILDS)):
        values = builds.made_up.values(number)
        model = builds.built(builds.made_up.frame(values)).model
        if len(model.observed_RVs) <= place:
            raise InputError(OTHER_GRAPH)
        value = model.rvs_to_values[model.observed_RVs[place]]
        known.append(values)
        seen.extend(evaluated([value]))
        if seen[-1].shape != array.shape:
            return None, known
    rows = [each.reshape(len(array), -1)[:, 0] for each in seen]
    return np.stack(rows, axis=1), known


def _found_in(some: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return the place of each row in a matrix without equal rows, None if one isn't
    there.
    """
    places = {tuple(row): place for place, row in enumerate(whole.tolist())}
    if len(places) < len(whole):
        return None
    found = [places.get(tuple(row)) for row in some.tolist()]
    if any(place is None for place in found):
        return None
    return np.array(found, dtype=np.int64)


def _of_other_length(name: str) -> str:
    return (
        f"{name!r} reads confidential values, but not one of each record in the order "
        f"of the frame: observe whole columns, or those of records that public "
        f"columns select"
    )


def _is_whole_array(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "iu"


def _lengths(model: pm.Model) -> dict[str, int]:
    lengths = {}
    for dim, length in model.dim_lengths.items():
        labels = model.coords.get(dim)
        lengths[dim] = int(length.eval()) if labels is None else len(labels)
    return lengths


def generators_of(roots: Sequence[Any]) -> list[Any]:
    """Return what randomness graphs start from: generators, and laws that need none,
    such as that all is 0 in a zero-inflated one.
    """
    return [
        variable
        for variable in ancestors(roots)
        if (isinstance(variable.type, RandomType) and variable.owner is None)
        or _is_law_without_generator(variable)
    ]


def _is_law_without_generator(variable: Any) -> bool:
    """Whether a variable has a distribution though no generator is behind it."""
    node = variable.owner
    if node is None or not isinstance(node.op, SymbolicRandomVariable):
        return False
    return not any(isinstance(each.type, RandomType) for each in node.inputs)


def are_equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.dtype.kind in "biuf":
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return np.array_equal(one, other)


def are_close(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether arrays are alike up to rounding."""
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    return np.allclose(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)


def _column_of(error: BaseException) -> Any:
    """Return the column that an error says a frame doesn't have; None of others."""
    if isinstance(error, KeyError):
        wanted = error.args[0] if error.args else None
        if _is_of_pymc(error):  # of a dim or a variable
            return None
        # of several that are looked up at once pandas says which aren't there
        listed = LACKING.search(wanted) if isinstance(wanted, str) else None
        return listed["name"] if listed else wanted
    is_of_frame = isinstance(getattr(error, "obj", None), pd.DataFrame)
    return getattr(error, "name", None) if is_of_frame else None


def _is_of_pymc(error: BaseException) -> bool:
    """Whether it was PyMC that raised an error."""
    raised = [*traceback.walk_tb(error.__traceback__)]
    return bool(raised) and raised[-1][0].f_globals["__name__"].startswith("pymc.")


def codes_of(values: pd.Series) -> pd.Series:
    """Return whole numbers in place of words."""
    return values.astype("category").cat.codes.astype(np.int64)


def _failed(name: str, error: BaseException) -> InputError:
    line = next(iter(str(error).splitlines()), "")
    return InputError(
        f"{name} failed on made-up records, which have the columns of the schema: "
        f"{type(error).__name__}: {line}"
    )
