"""A mixed model that a person wrote, recognised: its outcome, its group, its family,
and what it says of the groups.

The model is looked at as it was built on made-up records of few levels, and by numbers:
the linear predictor of a record is what is found to be one number plus another times
the entry of its group, at parameters drawn anew. So it doesn't matter how it is spelt.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from scipy.special import logit

from pdips.arrays import FloatArray
from pdips.data.column import Column
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.groups.design import Family, n_values
from pdips.groups.hierarchy import Hierarchy, Spread
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

INTERCEPT_ALONE = (
    "group-sums takes an intercept that differs by group, outcome ~ 1 + (1 | group), "
    "and nothing else on the right: a slope times a confidential number isn't linear "
    "in a group's noisy sums, so that its interval would be wrong however many records "
    "there are; take a model without it, or one that scores takes, of up to 400 "
    "parameters"
)


def template_of(schema: Schema, group: str | None = None) -> Schema:
    """Return a schema on which a model of many groups can be built: of columns of many
    levels only some, none of them public, so that no record is read.

    A number is a group only if it is named.
    """
    columns = {}
    for name, column in schema.columns.items():
        columns[name] = _few(column, name, group)
    return Schema(columns=columns)


def _few(column: Column, name: str, group: str | None) -> Column:
    """Return a column that isn't public, of few levels if it is a group."""
    if not column.is_categorical:
        if name != group:
            return column.model_copy(update={"public": False})
        first = int(column.lower or 0)
        n = min(n_values(column), FEW_LEVELS)
        return Column(levels=[*range(first, first + n)])
    changed: dict[str, Any] = {"public": False}
    if column.n_levels > AS_THEY_ARE:
        levels = column.levels[:FEW_LEVELS]
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
        The column whose levels are the groups.
    family : {"normal", "bernoulli", "poisson"}
        With the identity, logit and log link.
    model : pymc.Model
        As it was built on made-up records.
    vector : variable
        Has one entry for each group.
    compiled : CompiledMixedModel
        What is worked out at given parameters.
    """

    outcome: str
    group: str
    family: Family
    model: pm.Model
    vector: Any
    compiled: "CompiledMixedModel"

    @property
    def start(self) -> FloatArray:
        return self.compiled.start

    def spread(self, place: FloatArray) -> Spread:
        base, factor, mean, spread, deviation = self.compiled.laws(place)
        return Spread(base + factor * mean, abs(factor) * spread, deviation)

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
            bases.append((base, factor))
        names = [one.name for one in self.compiled.scalars]
        draws = {}
        for name, values in zip(names, zip(*rows, strict=True), strict=True):
            draws[str(name)] = np.asarray(values, np.float64)
        moved = np.array(bases)
        draws[self.effects] = (predictors - moved[:, :1]) / moved[:, 1:]
        return draws


class CompiledMixedModel:
    """What is worked out of a model at the parameters that groups have in common.

    Parameters
    ----------
    model : pymc.Model
        As it was built.
    scalars : list of variable
        Free variables that aren't by group.
    vector : variable
        The one that is, with a normal prior.
    observed : variable
        The outcome.
    """

    def __init__(
        self, model: pm.Model, scalars: list[Any], vector: Any, observed: Any
    ) -> None:
        self.scalars = scalars
        self.values = [model.rvs_to_values[one] for one in scalars]
        self.vector_value = model.rvs_to_values[vector]
        initial = model.initial_point()
        parts = [np.asarray(initial[value.name], np.float64) for value in self.values]
        self.shapes = [part.shape for part in parts]
        self.dtypes = [value.dtype for value in self.values]
        flat = [part.ravel() for part in parts]
        self.start = np.concatenate(flat) if flat else np.empty(0)
        self.n_entries = int(np.prod(initial[self.vector_value.name].shape))
        prior = model.logp(vars=scalars, sum=True) if scalars else pm.math.constant(0.0)
        self.log_prior = _function(self.values, [prior])
        natural = model.replace_rvs_by_values(list(scalars))
        self.natural = _function(self.values, natural, several=True)
        mean, deviation = _parameters_of(observed)
        asked = model.replace_rvs_by_values([mean, deviation])
        self._record = _function([*self.values, self.vector_value], asked, several=True)
        loc, scale = vector.owner.op.dist_params(vector.owner)
        law = model.replace_rvs_by_values([loc, scale])
        self._law = _function(self.values, law, several=True)
        self.link = LINKS["normal"]

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
        """Return the linear predictor and the deviation of each made-up record."""
        given = entries.astype(self.vector_value.dtype)
        mean, deviation = self._record(*self.split(place), given)
        with np.errstate(all="ignore"):
            return self.link(np.asarray(mean, np.float64)), np.asarray(deviation)

    def law(self, place: FloatArray) -> FloatArray:
        """Return all means and deviations of the prior of entries."""
        parts = self._law(*self.split(place))
        return np.concatenate([np.ravel(part) for part in parts])

    def laws(self, place: FloatArray) -> tuple[float, float, float, float, float]:
        """Return the predictor where a group's entry is 0, how much an entry counts,
        its prior's mean and deviation, and the deviation of records.
        """
        zero, deviation = self.record(place, np.zeros(self.n_entries))
        one, _ = self.record(place, np.ones(self.n_entries))
        loc, scale = self._law(*self.split(place))
        base = float(zero.ravel()[0])
        factor = float(one.ravel()[0]) - base
        numbers = (np.ravel(loc)[0], np.ravel(scale)[0], np.ravel(deviation)[0])
        mean, spread, within = map(float, numbers)
        return base, factor, mean, spread, within


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


def recognised_in(source: Source) -> RecognisedModel:
    """Return the mixed model that was written, or refuse a model that is another.

    Parameters
    ----------
    source : Source
        The model, converted.

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
        _RECOGNISED[source] = recognise(source.converted)
    return _RECOGNISED[source]


def recognise(converted: Any) -> RecognisedModel:
    """Return the mixed model in a converted one."""
    model = converted.model
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
    group = _group_of(converted)
    vector = _vector_of(model)
    scalars = [one for one in model.free_RVs if one is not vector]
    compiled = CompiledMixedModel(model, scalars, vector, observed.variable)
    compiled.link = LINKS[family]
    _check_linear(compiled, family)
    return RecognisedModel(
        outcome=reading.column,
        group=group,
        family=family,
        model=model,
        vector=vector,
        compiled=compiled,
    )


def _group_of(converted: Any) -> str:
    """Return the only column that the model reads beside its outcome, of which it tells
    all levels apart.
    """
    if len(converted.covariates) != 1:
        raise InputError(INTERCEPT_ALONE)
    [group] = converted.covariates
    for part in converted.parts.values():
        for reading in part.readings:
            if group not in reading.columns:
                continue
            by_code = getattr(reading, "by_code", None)
            is_apart = by_code is not None and len({*by_code}) == len(by_code)
            if reading.columns != (group,) or not (reading.is_affine or is_apart):
                raise InputError(
                    f"the model doesn't tell all levels of {group!r} apart: let each "
                    f"be a group of its own, or merge them in the schema"
                )
    return str(group)


def _vector_of(model: pm.Model) -> Any:
    """Return the only free variable that has entries."""
    vectors = [one for one in model.free_RVs if one.type.ndim > 0]
    sizes = [int(np.prod(one.shape.eval())) for one in vectors]
    several = [one for one, size in zip(vectors, sizes, strict=True) if size > 1]
    if len(several) != 1 or several[0].type.ndim != 1:
        raise InputError(INTERCEPT_ALONE)
    [vector] = several
    if vector.owner.op.name != "normal":
        raise InputError(
            f"the effects of groups are normal in a model that group-sums takes, and "
            f"{vector.name!r} is {vector.owner.op.name}"
        )
    return vector


def _check_linear(compiled: CompiledMixedModel, family: Family) -> None:
    """Refuse a model whose linear predictor isn't a number plus another times the entry
    of a record's group, the same for all groups.
    """
    rng = np.random.default_rng(0)
    for _ in range(TRIED):
        place = compiled.start + 0.3 * rng.standard_normal(len(compiled.start))
        entries = 0.7 * rng.standard_normal(compiled.n_entries)
        base, factor, *_ = compiled.laws(place)
        predictors, deviation = compiled.record(place, entries)
        laws = compiled.law(place)
        off = np.abs(predictors.ravel()[:, None] - base - factor * entries)
        if not np.isfinite(off).all() or factor == 0:
            raise InputError(_other_link(family))
        if off.min(axis=1).max() > NEAR * (1 + np.abs(predictors).max()):
            raise InputError(f"{_other_link(family)} {INTERCEPT_ALONE}")
        is_like = np.ptp(np.ravel(deviation)) <= NEAR
        if not np.isfinite(laws).all() or not is_like:
            raise InputError(INTERCEPT_ALONE)


def _other_link(family: Family) -> str:
    return (
        f"the model's mean isn't one of an intercept by group with the "
        f"{LINK_NAMES[family]} link."
    )
