"""A mixed model that a person wrote, recognised: its outcome, its group, its family,
and what it says of the groups.

The model is looked at as it was built on made-up records of few levels, and by numbers:
the linear predictor of a record is what is found to be one number for each combination
of covariates plus another number times the entry of its group, at parameters drawn
anew. So it doesn't matter how it is spelt.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pytensor.graph.traversal import ancestors
from scipy.special import logit

from pdips.arrays import FloatArray
from pdips.data.column import Column
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.groups.design import Family, n_values
from pdips.groups.hierarchy import Hierarchy, Spread
from pdips.posterior.columns import Columns, bounds_of
from pdips.posterior.model_file import Source

# Levels of a group that stand for all of them where a model is built
FEW_LEVELS = 6
# Up to so many levels a column is taken as it is
AS_THEY_ARE = 12
TRIED = 3
NEAR = 1e-6

LINKS: Mapping[Family, Callable[[FloatArray], FloatArray]] = {
    "normal": lambda mean: mean,
    "bernoulli": lambda mean: np.asarray(logit(mean)),
    "poisson": np.log,
}
LINK_NAMES = {"normal": "identity", "bernoulli": "logit", "poisson": "log"}
DISTRIBUTIONS: Mapping[str, Family] = {
    "normal": "normal",
    "bernoulli": "bernoulli",
    "binomial": "bernoulli",
    "poisson": "poisson",
}

# Combinations of covariates that are counted in each group
MOST_WITHIN = 500

INTERCEPT_ALONE = (
    "group-sums takes an intercept that differs by group, outcome ~ x + (1 | group), "
    "where each x has levels or is a whole number in a short range, since records are "
    "counted by group and by x; a slope times any other number isn't linear in a "
    "group's noisy sums, so that its interval would be wrong however many records "
    "there are: take a model without it, give the column levels, or take a model of up "
    "to 400 parameters, by scores"
)


def template_of(schema: Schema, group: str | None = None) -> Schema:
    """Return a schema on which a model of many groups can be built: of the group's
    column only some levels, and no column public, so that no record is read.

    A number is a group only if it is named. Otherwise the column of most levels is.
    """
    if group not in schema.columns:
        levels = {
            name: column.n_levels
            for name, column in schema.columns.items()
            if column.is_categorical
        }
        group = max(levels, key=levels.__getitem__, default=None)
    columns = {}
    for name, column in schema.columns.items():
        columns[name] = column.model_copy(update={"public": False})
        if name == group:
            columns[name] = _few(column)
    return Schema(columns=columns)


def _few(column: Column, n_levels: int = FEW_LEVELS) -> Column:
    """Return a group's column that isn't public, of few levels."""
    if not column.is_categorical:
        first = int(column.lower or 0)
        n = min(n_values(column), n_levels)
        return Column(levels=[*range(first, first + n)])
    changed: dict[str, Any] = {"public": False}
    if column.n_levels > max(AS_THEY_ARE, n_levels):
        levels = column.levels[:n_levels]
        changed |= {"levels": levels, "labels": {}, "groups": None, "missing": False}
    return column.model_copy(update=changed)


@dataclass(frozen=True, eq=False)
class RecognisedModel(Hierarchy):
    """A mixed model of one outcome with an intercept that differs by group.

    Parameters
    ----------
    outcome : str
        The column that it describes.
    group : str
        The column whose levels have an effect each.
    within : tuple of str
        Covariates.
    family : {"normal", "bernoulli", "poisson"}
        With the identity, logit and log link.
    model : pymc.Model
        As it was built on a record of each combination of group and covariates.
    vector : variable
        Has one entry for each group.
    compiled : CompiledMixedModel
        What is worked out at given parameters.
    """

    outcome: str
    group: str
    within: tuple[str, ...]
    family: Family
    model: pm.Model
    vector: Any
    compiled: "CompiledMixedModel"

    @property
    def start(self) -> FloatArray:
        return self.compiled.start

    def spread(self, place: FloatArray) -> Spread:
        base, factor, mean, spread, deviation = self.compiled.laws(place)
        middle = float(base.mean())
        return Spread(
            middle + factor * mean, abs(factor) * spread, deviation, base - middle
        )

    def log_prior(self, place: FloatArray) -> float:
        return float(self.compiled.log_prior(*self.compiled.split(place)))

    @property
    def effects(self) -> str:
        return str(self.vector.name)

    def named(
        self, places: FloatArray, predictors: FloatArray
    ) -> Mapping[str, FloatArray]:
        rows = []
        bases = []
        for place in places:
            rows.append(self.compiled.natural(*self.compiled.split(place)))
            base, factor, *_ = self.compiled.laws(place)
            bases.append((base.mean(), factor))
        names = [one.name for one in self.compiled.named]
        draws = {}
        for name, values in zip(names, zip(*rows, strict=True), strict=True):
            draws[str(name)] = np.asarray(values, np.float64)
        moved = np.array(bases)
        draws[self.effects] = (predictors - moved[:, :1]) / moved[:, 1:]
        return draws

    @property
    def dims(self) -> Mapping[str, tuple[str, ...]]:
        return {
            name: tuple(map(str, dims))
            for name, dims in self.model.named_vars_to_dims.items()
        }

    @property
    def coords(self) -> Mapping[str, Sequence[Any]]:
        return {
            dim: labels
            for dim, labels in self.model.coords.items()
            if labels is not None
        }


class CompiledMixedModel:
    """What is worked out of a model at the parameters that groups have in common.

    Parameters
    ----------
    model : pymc.Model
        As it was built, on a record of each combination of group and covariates, those
        of a group one after the other.
    vector : variable
        Has one entry for each group, with a normal prior.
    link : callable
        Of the family.
    """

    def __init__(
        self, model: pm.Model, vector: Any, link: Callable[[FloatArray], FloatArray]
    ) -> None:
        self.others = [one for one in model.free_RVs if one is not vector]
        self.link = link
        self.values = [model.rvs_to_values[one] for one in self.others]
        self.vector_value = model.rvs_to_values[vector]
        initial = model.initial_point()
        parts = [np.asarray(initial[value.name], np.float64) for value in self.values]
        self.shapes = [part.shape for part in parts]
        self.dtypes = [value.dtype for value in self.values]
        flat = [part.ravel() for part in parts]
        self.start = np.concatenate(flat) if flat else np.empty(0)
        self.n_entries = int(np.prod(initial[self.vector_value.name].shape))
        prior = pm.math.constant(0.0)
        if self.others:
            prior = model.logp(vars=self.others, sum=True)
        self.log_prior = _function(self.values, [prior])
        # as the author has them, with what follows from them alone
        self.named = [*self.others, *_common(model, vector)]
        natural = model.replace_rvs_by_values(list(self.named))
        self.natural = _function(self.values, natural, several=True)
        mean, deviation = _parameters_of(model.observed_RVs[0])
        asked = model.replace_rvs_by_values([mean, deviation])
        self._record = _function([*self.values, self.vector_value], asked, several=True)
        loc, scale = vector.owner.op.dist_params(vector.owner)
        law = model.replace_rvs_by_values([loc, scale])
        self._law = _function(self.values, law, several=True)

    def split(self, place: FloatArray) -> list[NDArray[Any]]:
        """Return the values of each variable."""
        parts = []
        first = 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            size = int(np.prod(shape))
            part = place[first : first + size].reshape(shape)
            parts.append(part.astype(dtype))
            first += size
        return parts

    def record(
        self, place: FloatArray, entries: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the linear predictor of each record, shape (groups, covariates), and
        its deviation.
        """
        given = entries.astype(self.vector_value.dtype)
        mean, deviation = self._record(*self.split(place), given)
        with np.errstate(all="ignore"):
            predictor = self.link(np.asarray(mean, np.float64))
        # a model without covariates may give one number for all records
        whole = np.broadcast_to(predictor.ravel(), self._length_of(predictor))
        return whole.reshape(self.n_entries, -1), np.asarray(deviation)

    def _length_of(self, predictor: FloatArray) -> int:
        return max(predictor.size, self.n_entries)

    def law(self, place: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return means and deviations of the prior of entries."""
        loc, scale = self._law(*self.split(place))
        return np.ravel(loc), np.ravel(scale)

    def laws(self, place: FloatArray) -> tuple[FloatArray, float, float, float, float]:
        """Return the predictor where a group's entry is 0, shape (covariates,), how
        much an entry counts, its prior's mean and deviation, and the deviation of
        records.
        """
        zero, deviation = self.record(place, np.zeros(self.n_entries))
        one, _ = self.record(place, np.ones(self.n_entries))
        loc, scale = self.law(place)
        base = np.array(zero[0])
        factor = float(one[0, 0] - base[0])
        numbers = (loc[0], scale[0], np.ravel(deviation)[0])
        mean, spread, within = map(float, numbers)
        return base, factor, mean, spread, within


def _common(model: pm.Model, vector: Any) -> list[Any]:
    """Return the deterministic variables that are neither by group nor by record."""
    others = {vector, *model.data_vars, *model.observed_RVs}
    return [
        one
        for one in model.deterministics
        if others.isdisjoint(ancestors([one])) and one.owner is not None
    ]


def _function(inputs: list[Any], outputs: list[Any], several: bool = False) -> Any:
    """Compile a function of value variables; of one output alone if not several."""
    return pytensor.function(
        inputs,
        outputs if several else outputs[0],
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )


def _parameters_of(observed: Any) -> tuple[Any, Any]:
    """Return the mean of an outcome and its deviation, which is 1 where the family
    has none.
    """
    inputs = observed.owner.op.dist_params(observed.owner)
    kind = observed.owner.op.name
    if kind == "normal":
        return inputs[0], inputs[1]
    if kind == "binomial":
        return inputs[1], pm.math.constant(1.0)
    return inputs[0], pm.math.constant(1.0)


_RECOGNISED: "weakref.WeakKeyDictionary[Source, RecognisedModel]"
_RECOGNISED = weakref.WeakKeyDictionary()


def recognised_in(source: Source, schema: Schema) -> RecognisedModel:
    """Return the mixed model that was written, or refuse a model that is another.

    Parameters
    ----------
    source : Source
        The model, converted.
    schema : Schema
        Of the table, with all levels.

    Raises
    ------
    InputError
        If it isn't an intercept that differs by group, with a link that group sums
        take.
    """
    if source.converted is None:
        raise InputError(
            "group-sums takes a formula or a function make(df), in which it can look "
            "for the groups: write the model so"
        )
    if source not in _RECOGNISED:
        _RECOGNISED[source] = recognise(source.converted, schema)
    return _RECOGNISED[source]


def recognise(converted: Any, schema: Schema) -> RecognisedModel:
    """Return the mixed model in a converted one."""
    if len(converted.observed) != 1 or len(converted.observed[0].columns) != 1:
        raise InputError("group-sums takes a model of one outcome")
    [observed] = converted.observed
    [reading] = observed.readings
    kind = observed.variable.owner.op.name
    if kind not in DISTRIBUTIONS:
        raise InputError(
            f"group-sums takes normal, Bernoulli and Poisson outcomes, and the model's "
            f"is {kind}"
        )
    if not reading.is_column:
        raise InputError(
            f"the model describes a transformation of {reading.column!r}: group-sums "
            f"adds up the column itself, so write the transformed column into the "
            f"table, with levels in the model's order"
        )
    family = DISTRIBUTIONS[kind]
    refused = InputError(INTERCEPT_ALONE)
    for group, name, n_entries, is_coded in _candidates(converted, schema):
        within = tuple(one for one in converted.covariates if one != group)
        lattice = _Lattice(schema, reading.column, group, within, n_entries, is_coded)
        try:
            _check_within(schema, within)
            model = lattice.build(converted)
            vector = model[converted.inside(name)]
            if vector.owner.op.name != "normal":
                raise InputError(
                    f"the effects of groups are normal in a model that group-sums "
                    f"takes, and {name!r} is {vector.owner.op.name}"
                )
            compiled = CompiledMixedModel(model, vector, LINKS[family])
            _check_linear(compiled, family)
        except InputError as error:
            refused = error
            continue
        except IndexError:  # the column isn't what the vector is read by
            continue
        return RecognisedModel(
            outcome=reading.column,
            group=group,
            within=within,
            family=family,
            model=model,
            vector=vector,
            compiled=compiled,
        )
    raise refused


def _candidates(converted: Any, schema: Schema) -> list[tuple[str, str, int, bool]]:
    """Return columns that may be the group with vectors that may hold its effects,
    their numbers of entries, and whether the model reads the column by codes of levels:
    columns of many levels first.
    """
    vectors = [one for one in converted.model.free_RVs if one.type.ndim == 1]
    sizes = [int(np.prod(one.shape.eval())) for one in vectors]
    by_levels = [
        name
        for name in converted.covariates
        if schema.columns[name].is_categorical or schema.columns[name].integer
    ]
    by_levels.sort(key=lambda name: -n_values(schema.columns[name]))
    found = []
    for name in by_levels:
        n_levels = n_values(schema.columns[name])
        few = min(n_levels, FEW_LEVELS)
        for vector, size in zip(vectors, sizes, strict=True):
            if size < 2 or size not in (n_levels, few):
                continue
            # a number that is named as the group was made a column with levels
            if schema.columns[name].is_categorical or size == few:
                found.append((name, str(vector.name), size, True))
            if not schema.columns[name].is_categorical and size == n_levels:
                found.append((name, str(vector.name), size, False))
    return found


def _check_within(schema: Schema, within: tuple[str, ...]) -> None:
    """Refuse covariates of which records can't be counted by group."""
    cells = 1
    for name in within:
        column = schema.columns[name]
        if not (column.is_categorical or column.integer):
            raise InputError(INTERCEPT_ALONE)
        cells *= n_values(column)
    if cells > MOST_WITHIN:
        raise InputError(
            f"records would be counted in {cells:,} combinations of "
            f"{', '.join(within)} in each group, and at most {MOST_WITHIN} are: merge "
            f"levels, narrow ranges or leave a covariate out"
        )


@dataclass(frozen=True)
class _Lattice:
    """A made-up record of each combination of group and covariates."""

    schema: Schema
    outcome: str
    group: str
    within: tuple[str, ...]
    n_entries: int
    is_coded: bool  # whether the model reads the group by codes of levels

    def build(self, converted: Any) -> pm.Model:
        """Return the model of these records."""
        columns = {self.outcome: self.schema.columns[self.outcome]}
        of_group = self.schema.columns[self.group]
        if self.is_coded:
            of_group = _few(of_group, self.n_entries)
        columns[self.group] = of_group
        columns |= {name: self.schema.columns[name] for name in self.within}
        ranges = []
        for name in (self.group, *self.within):
            column = columns[name]
            first = 0 if column.is_categorical else int(column.lower or 0)
            ranges.append(first + np.arange(n_values(column)))
        unread = {
            name: column.model_copy(update={"public": False})
            for name, column in columns.items()
        }
        schema = Schema(columns=unread)
        meshed = np.meshgrid(*ranges, indexing="ij")
        names = (self.group, *self.within)
        values = {name: mesh.ravel() for name, mesh in zip(names, meshed, strict=True)}
        column = self.schema.columns[self.outcome]
        lower, _ = bounds_of(column)
        is_whole = column.is_categorical or column.integer
        outcome = np.full(len(values[self.group]), lower)
        values[self.outcome] = outcome.astype(np.int64) if is_whole else outcome
        return converted.build(Columns(schema, values), schema)


def _check_linear(compiled: CompiledMixedModel, family: Family) -> None:
    """Refuse a model whose linear predictor isn't a number that the covariates give
    plus another times the entry of a record's group, the same for all.
    """
    rng = np.random.default_rng(0)
    for _ in range(TRIED):
        place = compiled.start + 0.3 * rng.standard_normal(len(compiled.start))
        entries = 0.7 * rng.standard_normal(compiled.n_entries)
        base, factor, *_ = compiled.laws(place)
        predictors, deviation = compiled.record(place, entries)
        off = np.abs(predictors - base - factor * entries[:, None])
        if not np.isfinite(off).all():
            raise InputError(_other_link(family))
        is_linear = off.max() <= NEAR * (1 + np.abs(predictors).max())
        if factor == 0 or not is_linear:
            raise InputError(f"{_other_link(family)} {INTERCEPT_ALONE}")
        for law in (*compiled.law(place), np.ravel(deviation)):
            if not np.isfinite(law).all() or np.ptp(law) > NEAR:
                raise InputError(INTERCEPT_ALONE)


def _other_link(family: Family) -> str:
    return (
        f"the model's mean isn't one of an intercept by group with the "
        f"{LINK_NAMES[family]} link."
    )
