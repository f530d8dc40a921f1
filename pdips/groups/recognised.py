"""A mixed model that a person wrote, recognised: its outcome, its group, its family,
and what it says of the groups.

The model is looked at as it was built on made-up records of few levels, and by numbers:
the linear predictor of a record is what is found to be one number for each combination
of covariates plus another number times the entry of its group, at parameters drawn
anew. So it doesn't matter how it is spelt.
"""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from scipy.special import logit

from pdips.arrays import FloatArray
from pdips.data.column import Column
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.groups.compiled_models import (
    CompiledMixedModel,
    GroupVector,
    vectors_by_group,
)
from pdips.groups.design import Family, n_values
from pdips.groups.hierarchy import Hierarchy, Slopes, Spread
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

COUNTED = (
    "group-sums takes an intercept that differs by group, outcome ~ x + (1 | group), "
    "where each x has levels or is a whole number in a short range, since records are "
    "counted by group and by x; a slope times any other number isn't linear in a "
    "group's noisy sums, so that its interval would be wrong however many records "
    "there are: take a model without it, give the column levels, or take a model of up "
    "to 400 parameters, by scores"
)
IDENTITY_ALONE = (
    "slopes that differ by group are taken with the identity link alone: with the "
    "{link} link a group's mean isn't linear in its effects, so that their interval "
    "would be wrong however many groups there are"
)
CROSSED = (
    "effects of {groups} are crossed: sums by one of them depend on which levels of "
    "the others its records have, which their cross table alone tells, and that would "
    "have {cells:,} cells in each level of {largest!r}, of at most {most}: leave one "
    "out"
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


def check_crossed(schema: Schema, groups: Sequence[str]) -> None:
    """Refuse effects of several columns whose cross table is too large to be
    counted.
    """
    sizes = {
        name: n_values(schema.columns[name])
        for name in groups
        if name in schema.columns
    }
    largest = max(sizes, key=sizes.__getitem__, default="")
    cells = math.prod(size for name, size in sizes.items() if name != largest)
    if cells > MOST_WITHIN:
        named = " and ".join(map(repr, sizes))
        raise InputError(
            CROSSED.format(groups=named, cells=cells, largest=largest, most=MOST_WITHIN)
        )


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
    """A mixed model of one outcome with an intercept that differs by group, or slopes,
    too.

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
    compiled : CompiledMixedModel
        What is worked out at given parameters.
    has_slopes : bool
        Whether a group has other effects than an intercept.
    """

    outcome: str
    group: str
    within: tuple[str, ...]
    family: Family
    model: pm.Model
    compiled: "CompiledMixedModel"
    has_slopes: bool

    @property
    def start(self) -> FloatArray:
        return self.compiled.start

    def spread(self, place: FloatArray) -> Spread:
        laws = self.compiled.laws(place)
        loadings = laws.factors @ laws.root
        base = laws.base + laws.factors @ laws.means
        mean = float(base.mean())
        slopes = None
        if self.has_slopes:
            slopes = Slopes(loadings, laws.means, laws.root)
        # of one effect, which counts for as much in all cells
        spread = abs(float(loadings[0, 0]))
        return Spread(mean, spread, laws.deviation, base - mean, slopes)

    def log_prior(self, place: FloatArray) -> float:
        return float(self.compiled.log_prior(*self.compiled.split(place)))

    @property
    def effects(self) -> Mapping[str, int]:
        return {one.name: one.axis for one in self.compiled.vectors}

    @property
    def terms(self) -> tuple[str, ...]:
        if not self.has_slopes:
            return ()
        names = [one.terms(self.model) for one in self.compiled.vectors]
        return tuple(name for some in names for name in some)

    def named(
        self, places: FloatArray, predictors: FloatArray
    ) -> Mapping[str, FloatArray]:
        rows = []
        entries = []
        for number, place in enumerate(places):
            rows.append(self.compiled.natural(*self.compiled.split(place)))
            laws = self.compiled.laws(place)
            some = predictors[number]
            if self.has_slopes:
                entries.append(laws.means + some @ laws.root.T)
            else:
                off = some - laws.base.mean()
                entries.append(off[:, None] / laws.factors[0])
        names = [one.name for one in self.compiled.named]
        draws = {}
        for name, values in zip(names, zip(*rows, strict=True), strict=True):
            draws[str(name)] = np.asarray(values, np.float64)
        of_vectors = self.compiled.of_vectors(np.array(entries))
        for vector, effects in zip(self.compiled.vectors, of_vectors, strict=True):
            draws[vector.name] = vector.drawn(effects)
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
    refused = InputError(COUNTED)
    for group, n_entries, is_coded in _candidates(converted, schema):
        within = tuple(one for one in converted.covariates if one != group)
        lattice = _Lattice(schema, reading.column, group, within, n_entries, is_coded)
        try:
            _check_within(schema, within)
            model = lattice.build(converted)
            vectors = vectors_by_group(model, n_entries)
            if not vectors:
                continue
            _check_normal(vectors)
            compiled = CompiledMixedModel(model, vectors, LINKS[family])
            has_slopes = _check_linear(compiled, family)
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
            compiled=compiled,
            has_slopes=has_slopes,
        )
    raise refused


def _check_normal(vectors: list[GroupVector]) -> None:
    """Refuse effects of groups that aren't normal, or depend on those of others."""
    for vector in vectors:
        law = vector.variable.owner.op.name
        is_joint = law == "multivariate_normal" and (len(vector.shape), vector.axis)
        if law != "normal" and is_joint != (2, 0):
            raise InputError(
                f"the effects of groups are normal in a model that group-sums takes, "
                f"and {vector.name!r} is {law}"
            )


def _candidates(converted: Any, schema: Schema) -> list[tuple[str, int, bool]]:
    """Return columns that may be the group, with the numbers of their levels in the
    model, and whether it reads the column by codes of levels: columns of many levels
    first.
    """
    shapes = [one.shape.eval() for one in converted.model.free_RVs]
    sizes = {int(size) for shape in shapes if len(shape) < 3 for size in shape}
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
        for size in sorted(sizes & {n_levels, few}):
            if size < 2:
                continue
            # a number that is named as the group was made a column with levels
            if schema.columns[name].is_categorical or size == few:
                found.append((name, size, True))
            if not schema.columns[name].is_categorical and size == n_levels:
                found.append((name, size, False))
    return found


def _check_within(schema: Schema, within: tuple[str, ...]) -> None:
    """Refuse covariates of which records can't be counted by group."""
    cells = 1
    for name in within:
        column = schema.columns[name]
        if not (column.is_categorical or column.integer):
            raise InputError(COUNTED)
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


def _check_linear(compiled: CompiledMixedModel, family: Family) -> bool:
    """Refuse a model whose linear predictor isn't a number that the covariates give
    plus others times the entries of a record's group; return whether these others
    differ by covariates, or are several.
    """
    rng = np.random.default_rng(0)
    has_slopes = compiled.n_terms > 1
    for _ in range(TRIED):
        place = compiled.start + 0.3 * rng.standard_normal(len(compiled.start))
        shape = (compiled.n_entries, compiled.n_terms)
        entries = 0.7 * rng.standard_normal(shape)
        laws = compiled.laws(place)
        predictors, deviation = compiled.record(place, entries)
        off = np.abs(predictors - laws.base - entries @ laws.factors.T)
        if not np.isfinite(off).all():
            raise InputError(_other_link(family))
        is_linear = off.max() <= NEAR * (1 + np.abs(predictors).max())
        if not is_linear or not laws.factors.any(axis=0).all():
            raise InputError(f"{_other_link(family)} {COUNTED}")
        has_slopes |= bool(np.ptp(laws.factors, axis=0).max() > NEAR)
        for law in (*compiled.law(place), np.reshape(deviation, (-1, 1))):
            if not np.isfinite(law).all() or np.ptp(law, axis=0).max() > NEAR:
                raise InputError(COUNTED)
    if has_slopes and family != "normal":
        raise InputError(IDENTITY_ALONE.format(link=LINK_NAMES[family]))
    return has_slopes


def _other_link(family: Family) -> str:
    return (
        f"the model's mean isn't one of an intercept by group with the "
        f"{LINK_NAMES[family]} link."
    )
