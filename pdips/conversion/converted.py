"""A model as people write it, turned into one of any number of records that reads its
columns as symbols.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Shape

from pdips.conversion.censored_times import Censoring, censored
from pdips.conversion.latents import as_vector, is_column, with_latents
from pdips.conversion.leaves import held, leaves_of, roots_of
from pdips.conversion.matching import ColumnExpression, ColumnProduct, Reading
from pdips.conversion.rebuild import ALL_RECORDS, RECORD_OF_ROW, Memo, rebuilt
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.posterior.columns import RECORD, SUFFIX, Columns, model_columns
from pdips.posterior.derived import DerivedColumns

# Of the dimension that lists the columns of a matrix that is observed
COLUMN = "column of "


@dataclass(frozen=True, eq=False)
class ColumnPart:
    """An array with one row a record, and what each of its entries is made of: a
    reading of a column, or one number for all records.
    """

    axis: int  # of the records
    shape: tuple[int, ...]  # as it was built
    dtype: str
    made_of: Sequence[Reading | float]

    @property
    def columns(self) -> set[str]:
        """The columns that are read."""
        return {name for one in self.readings for name in one.columns}

    def symbol(self, entries: Sequence[Any], n_records: Any) -> Any:
        """Return the array as a graph: ``entries`` of a reading are vectors, others are
        left out.
        """
        given = iter(entries)
        parts = []
        for one in self.made_of:
            if isinstance(one, float):
                parts.append(pt.full((n_records,), np.asarray(one, self.dtype)))
            else:
                parts.append(pt.cast(next(given), self.dtype))
        if len(self.shape) == 1:
            return parts[0]
        others = [size for axis, size in enumerate(self.shape) if axis != self.axis]
        whole = pt.stack(parts, axis=1).reshape((n_records, *others))
        whole = pt.moveaxis(whole, 0, self.axis)
        known: list[int | None] = [*self.shape]
        known[self.axis] = None
        return pt.specify_shape(whole, known)

    @property
    def readings(self) -> list[Reading]:
        return [one for one in self.made_of if not isinstance(one, float)]


@dataclass(frozen=True, eq=False)
class Observed:
    """An observed variable, and the columns that it observes, in order."""

    variable: Any
    readings: Sequence[ColumnExpression]
    is_matrix: bool
    # where several variables observe some of the records each: all of them, and which
    # one observes a record
    members: tuple[Any, ...] = ()
    which: ColumnExpression | float = 0.0
    # where these are times that may be cut off
    censoring: Censoring | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        names = [reading.column for reading in self.readings]
        if self.censoring is not None:
            names.append(self.censoring.column)
        return tuple(names)

    @property
    def name(self) -> str:
        """What mechanisms call it: as its column."""
        return str(self.variable.name) if self.is_matrix else self.columns[0]


@dataclass(frozen=True, eq=False)
class ConvertedModel:
    """A model that was built on made-up records, and what of it stands for records.

    Parameters
    ----------
    model : pymc.Model
        As it was built.
    parts : mapping of variable to ColumnPart
        What has one row a record.
    sizes : mapping of variable to ndarray of int
        Whole numbers that tell how many records there are: how many times that many
        each is, 0 where it is another number.
    all_records : tuple of variable
        Places of some records, where all are read now.
    numbering : tuple of variable
        The record of each row of a frame in long form.
    observed : tuple of Observed
        In the order of the model.
    derived : DerivedColumns
        What the model makes of public columns.
    record_dims : set of str
        Dimensions that number records.
    latents : tuple of variable
        Free variables with an entry for each record, which are integrated out.
    """

    model: pm.Model = field(repr=False)
    parts: Mapping[Any, ColumnPart] = field(repr=False)
    sizes: Mapping[Any, NDArray[np.int64]] = field(repr=False)
    all_records: tuple[Any, ...] = field(repr=False)
    numbering: tuple[Any, ...] = field(repr=False)
    observed: tuple[Observed, ...] = field(repr=False)
    derived: DerivedColumns = field(repr=False)
    record_dims: frozenset[str] = frozenset()
    latents: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The confidential columns that the model describes."""
        return tuple(name for one in self.observed for name in one.columns)

    @cached_property
    def covariates(self) -> tuple[str, ...]:
        """The other columns that the model reads, public or not."""
        read = set(ancestors([*self.model.basic_RVs, *self.model.potentials]))
        found = dict.fromkeys(
            name
            for variable, part in self.parts.items()
            if variable in read
            for name in part.columns
            if name not in self.columns
        )
        return tuple(found)

    def narrowed(self, schema: Schema) -> Schema:
        """Return a schema with the columns that the model reads, and the public
        ones.
        """
        read = {*self.columns, *self.covariates, *schema.public_columns}
        return schema.only([name for name in schema.columns if name in read])

    @cached_property
    def digest(self) -> str:
        """A digest of the model's graph and constants: of what has one row a record,
        and of observed values, only how they are read. It isn't published, for whoever
        has it could try constants.
        """
        parts = [self.model.str_repr(formatting="plain", include_params=False)]
        parts += [repr((one.readings, one.censoring)) for one in self.observed]
        values = [self.model.rvs_to_values[each] for each in self.model.observed_RVs]
        hidden = {*leaves_of(values), *self.sizes}
        for leaf in leaves_of(roots_of(self.model)):
            known = self.parts.get(leaf)
            if known is not None:
                parts.append(repr(known))
            elif leaf not in hidden:
                parts.append(repr(held(leaf).tolist()))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]

    @cached_property
    def taken(self) -> frozenset[str]:
        """Names that variables and dimensions can't have inside."""
        return frozenset({*self.columns, *(one.name for one in self.observed), RECORD})

    @cached_property
    def renamed(self) -> dict[str, str]:
        """What variables and dimensions of the author's are called inside, where names
        of columns and of their data are taken.
        """
        own = {*self.model.named_vars, *self.model.coords}
        renamed = dict[str, str]()
        for name in sorted(own):
            other = name
            while other in self.taken or other.endswith(SUFFIX):
                other = f"{other}_"
            while other != name and other in own:
                other = f"{other}_"
            if other != name:
                renamed[name] = other
        return renamed

    def inside(self, name: str) -> str:
        """Return what a variable or dimension of the author's is called inside."""
        return self.renamed.get(name, name)

    def outside(self, name: str) -> str:
        """Return what the author calls a variable or dimension."""
        back = {other: own for own, other in self.renamed.items()}
        return back.get(name, name)

    def build(self, data: Columns, schema: Schema) -> pm.Model:
        """Return the model of as many records as ``data`` has."""
        coords = {
            self.inside(dim): labels
            for dim, labels in self.model.coords.items()
            if dim not in self.record_dims and labels is not None
        }
        with pm.Model(coords=coords) as made:
            _Making(self, data, made).run()
        return made


class _Making:
    """One model being made of another."""

    def __init__(
        self, converted: ConvertedModel, data: Columns, made: pm.Model
    ) -> None:
        self.converted = converted
        self.data = data
        self.made = made
        self.n_records = data[converted.columns[0]].shape[0]
        self.observed = {one.variable: one for one in converted.observed}
        # random variables of described columns, each with how it reads the column
        self.described: dict[str, tuple[Any, ColumnExpression]] = {}
        # parts that hold confidential columns, which wait for these variables
        self.waiting = dict[Any, ColumnPart]()
        self.memo: Memo = dict.fromkeys(converted.all_records, ALL_RECORDS)
        self.memo |= dict.fromkeys(converted.numbering, RECORD_OF_ROW)
        # numbers of records and what reads them, until all of it is there
        self.unread = dict[Any, Any]()
        # what observes some of the records only, until the last of them is made
        self.partial = {member for one in converted.observed for member in one.members}
        self.columns = model_columns(data.schema)
        self.covariates = {*converted.covariates}
        self._replace()

    def _register(self, variable: Any, new: Any) -> None:
        """Register a free variable under its own name."""
        model = self.converted.model
        transform = model.rvs_to_transforms[variable]
        start = model.rvs_to_initial_values.get(variable)
        self.memo[variable] = self.made.register_rv(
            new,
            self.converted.inside(variable.name),
            transform=transform,
            default_transform=None,
            dims=self._dims(variable.name),
            initval=start,
        )

    def _replace(self) -> None:
        """Note what takes the place of lengths, of public columns and of random
        generators.
        """
        converted = self.converted
        for variable, times in converted.sizes.items():
            self.memo[variable] = self._size(variable, times)
        for variable, part in converted.parts.items():
            if all(map(self._is_public, part.columns)):
                entries = [
                    reading.symbol(*(self.data[name] for name in reading.columns))
                    for reading in part.readings
                ]
                self.memo[variable] = part.symbol(entries, self.n_records)
            else:
                self.waiting[variable] = part
        self._replace_lengths_of_waiting()
        for variable in ancestors(roots_of(converted.model)):
            if isinstance(variable.type, RandomType) and variable.owner is None:
                self.memo[variable] = pytensor.shared(np.random.default_rng())

    def _replace_lengths_of_waiting(self) -> None:
        """Note how long confidential columns are: PyMC gives a variable without dims
        the shape of what it observes, and so reads the length of a column that the
        variable itself describes.
        """
        for node in toposort(roots_of(self.converted.model)):
            if not isinstance(node.op, Shape):
                continue
            array = _changed_by_element(node.inputs[0])
            part = self.waiting.get(array)
            if part is None:
                continue
            sizes = [pt.constant(size, dtype="int64") for size in part.shape]
            sizes[part.axis] = pt.cast(self.n_records, "int64")
            self.memo[node.outputs[0]] = pt.stack(sizes)

    def run(self) -> None:
        """Make the variables, each after those that it follows from."""
        model = self.converted.model
        for variable in in_order(model):
            new = self._rebuilt(variable)
            if variable in self.partial:
                self.memo[variable] = new
            if variable in self.observed:
                self._observe(self.observed[variable], new)
            elif variable in self.converted.latents:
                self.unread[variable] = new
                if is_column(variable):
                    self.unread[variable] = as_vector(new)
                    new = self.unread[variable][:, None]
                self.memo[variable] = new
            elif variable not in self.partial:
                self._register(variable, new)
        self._integrate()
        for potential in model.potentials:
            pm.Potential(
                self.converted.inside(potential.name), self._rebuilt(potential)
            )
        for variable in model.deterministics:
            if self._has_records(variable):
                continue
            name = self.converted.inside(variable.name)
            graph = self._rebuilt(variable)
            pm.Deterministic(name, graph, dims=self._dims(variable.name))

    def _is_public(self, name: str) -> bool:
        """Whether a column is public; one that the model doesn't describe is not even
        in the schema.
        """
        return name in self.columns and self.columns[name].public

    def _size(self, variable: Any, times: NDArray[np.int64]) -> Any:
        """Return lengths of which some are the number of records, or a multiple of it:
        there an axis of rows turns into two, of records and of their entries.
        """
        size = pt.cast(self.n_records, variable.dtype)
        if variable.ndim == 0:
            return size if times == 1 else size * times
        parts = []
        for place, each in enumerate(times):
            parts.append(size if each else variable[place])
            if each > 1:
                parts.append(pt.constant(each, dtype=variable.dtype))
        return pt.stack(parts)

    def _rebuilt(self, variable: Any) -> Any:
        """Return a variable of the model that is being made, from one of the other."""
        behind = set(ancestors([variable], blockers=list(self.memo)))
        for leaf in [leaf for leaf in self.waiting if leaf in behind]:
            self.memo[leaf] = self._of_described(leaf, variable.name)
            del self.waiting[leaf]
        [new] = rebuilt([variable], self.memo)
        return (
            variable.owner.clone().outputs[variable.index] if new is variable else new
        )

    def _of_described(self, leaf: Any, reader: str) -> Any:
        """Return an array of confidential columns as a graph of the random variables
        that describe these.
        """
        part = self.waiting[leaf]
        entries = []
        for reading in part.readings:
            if isinstance(reading, ColumnProduct):
                both = [self._column(name, reader) for name in reading.columns]
                entries.append(reading.symbol(*both))
            else:
                entries.append(self._read(reading, reader))
        return part.symbol(entries, self.n_records)

    def _read(self, reading: ColumnExpression, reader: str) -> Any:
        """Return a reading of one column, which may be described."""
        name = reading.column
        if self._is_public(name) or name in self.covariates:
            return reading.symbol(self.data[name])
        if name not in self.described:
            raise InputError(_undescribed_yet(name, reader))
        variable, observed = self.described[name]
        return _through(variable, observed, reading, reader)

    def _column(self, name: str, reader: str) -> Any:
        return self._read(ColumnExpression(name), reader)

    def _observe(self, observed: Observed, new: Any) -> None:
        """Register an observed variable, or keep it until what it reads of records can
        be integrated out.
        """
        if observed.members:
            new = self._chosen(observed)
        if observed.censoring is not None:
            new = self._cut_off(observed, observed.censoring, new)
        if not set(self.unread.values()).isdisjoint(ancestors([new])):
            self.unread[observed.variable] = new
            self._describe(observed, new)
        else:
            self._register_observed(observed, new)

    def _cut_off(self, observed: Observed, censoring: Censoring, law: Any) -> Any:
        """Register whether times ended, and return the times as they are observed."""
        hazard, name = censoring.hazard(observed.name)
        hazard = self.made.register_rv(hazard, name)
        parameters = self.made.basic_RVs
        n = self.n_records
        time, ended = censored(law, hazard, censoring, n, parameters)
        code = pt.cast(self.data[censoring.column], ended.dtype)
        ended = self.made.register_rv(ended, censoring.column, observed=code)
        self.described[censoring.column] = (ended, ColumnExpression(censoring.column))
        return time

    def _integrate(self) -> None:
        """Register the observed variables that read numbers of records."""
        latents = [self.unread.pop(one) for one in self.converted.latents]
        if not latents:
            return
        drawn = with_latents([*self.unread.values()], latents, self.made.basic_RVs)
        for variable, new in zip(self.unread, drawn, strict=True):
            self._register_observed(self.observed[variable], new)

    def _register_observed(self, observed: Observed, new: Any) -> None:
        """Register an observed variable under the name of its column."""
        columns = []
        for reading in observed.readings:
            column = self.data[reading.column]
            if not reading.is_column:
                column = pt.cast(reading.symbol(column), new.dtype)
            columns.append(column)
        dims = None
        values = columns[0]
        if observed.is_matrix:
            values = pt.stack(columns, axis=1)
            dims = (RECORD, COLUMN + observed.name)
            self.made.add_coord(COLUMN + observed.name, observed.columns)
        if values.dtype != new.dtype and new.dtype.startswith("float"):
            values = pt.cast(values, new.dtype)
        made = self.made.register_rv(new, observed.name, observed=values, dims=dims)
        self._describe(observed, made)

    def _describe(self, observed: Observed, made: Any) -> None:
        """Note what stands for columns that are described."""
        self.memo[observed.variable] = made
        for place, reading in enumerate(observed.readings):
            each = made[:, place] if observed.is_matrix else made
            self.described[reading.column] = (each, reading)

    def _chosen(self, observed: Observed) -> Any:
        """Return a variable that is for each record that which observes it."""
        first, *others = [self.memo[member] for member in observed.members]
        chosen = first
        which = observed.which
        assert isinstance(which, ColumnExpression)
        number = which.symbol(self.data[which.column])
        for place, each in enumerate(others, start=1):
            chosen = pt.switch(pt.eq(number, place), each, chosen)
        return chosen

    def _dims(self, name: str) -> tuple[str | None, ...] | None:
        dims = self.converted.model.named_vars_to_dims.get(name)
        if dims is None:
            return None
        records = self.converted.record_dims
        return tuple(
            dim and (RECORD if dim in records else self.converted.inside(dim))
            for dim in dims
        )

    def _has_records(self, variable: Any) -> bool:
        """Whether a variable has a value for each record, or follows from what was
        observed.
        """
        converted = self.converted
        sources = {*converted.parts, *converted.sizes, *converted.latents}
        sources.update(self.observed)
        return not sources.isdisjoint(ancestors([variable]))


def _changed_by_element(variable: Any) -> Any:
    """Return the array of which a variable is a function, element by element, such as
    another type of its numbers; or itself.
    """
    while variable.owner is not None:
        is_by_element = isinstance(variable.owner.op, Elemwise)
        if not is_by_element or len(variable.owner.inputs) != 1:
            break
        [variable] = variable.owner.inputs
    return variable


def in_order(model: pm.Model) -> list[Any]:
    """Return the random variables of a model in its own order, but each after those
    that it follows from.
    """
    ordered = dict[Any, None]()

    def visit(variable: Any) -> None:
        if variable in ordered:
            return
        behind = set(ancestors([variable])) - {variable}
        for parent in model.basic_RVs:
            if parent in behind:
                visit(parent)
        ordered[variable] = None

    for variable in model.basic_RVs:
        visit(variable)
    return list(ordered)


def _through(
    variable: Any, observed: ColumnExpression, reading: ColumnExpression, reader: str
) -> Any:
    """Return a reading of a column as a graph of the random variable that describes
    the column, perhaps on another scale.
    """
    if observed.is_affine:
        return reading.symbol(observed.back(variable))
    if observed.by_code is None and reading.function == observed.function:
        scaled = (variable - observed.offset) / observed.slope
        return reading.offset + reading.slope * scaled
    raise InputError(
        f"{reader!r} reads column {reading.column!r} on another scale than the "
        f"variable that describes it: use that random variable in its place"
    )


def _undescribed_yet(column: str, reader: str) -> str:
    return (
        f"{reader!r} reads the confidential column {column!r}, which the model "
        f"describes only after it: describe it before, by a random variable with "
        f"observed=df[{column!r}], or don't describe it at all"
    )
