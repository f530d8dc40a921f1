"""The analyst's model on tables of one schema, tried on stand-ins, with all that is compiled of it."""

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from numpy.typing import NDArray
from pytensor.graph.traversal import ancestors
from pytensor.tensor.shape import Shape, Shape_i

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.posterior.censoring import Censored, censor_records
from pdips.posterior.closures import check_closed
from pdips.posterior.columns import Columns, Transformation, Values, check_column, stand_ins, transformations
from pdips.posterior.model_checks import (
    OTHER_NUMBER,
    OTHER_RECORDS,
    check_company,
    check_potentials,
    check_proper,
    check_same,
)
from pdips.posterior.model_file import Source
from pdips.posterior.parameters import constrained, initial, join, prior_draws, split, unconstrained
from pdips.posterior.record_likelihood import RecordLikelihood, inputs_of
from pdips.posterior.records import to_frame
from pdips.posterior.rehearsal import Tried, check_gradient, on_stand_ins

STAND_INS = 24
"""Records of the stand-in table on which a model is built to be looked at."""

MOST_KEPT = 4
"""Workspaces."""

N_POINTS, N_STARTS = 3, 16
"""Draws from the prior at which records are compared, and from which NUTS is tried to start."""

UNRECORDED = (
    "The model is a function whose source is not recorded with this release, so nobody can check it against the model "
    "that is described."
)
"""What a disclosure board is told where that is so."""

ONE_AT_A_TIME = threading.RLock()
"""Compiled functions hold points between calls, which two threads can't share; audits run side by side."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PyMC's log lines from the terminal: those of samplers describe the posterior."""
    logger = logging.getLogger("pymc")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A model of tables of one schema, built on stand-ins: what can be known before a table is read."""

    source: Source  # the model
    schema: Schema  # the schema

    def __post_init__(self) -> None:
        for name, column in self.schema.columns.items():
            check_column(name, column)
        if self.schema.impossible:
            raise InputError(
                "the schema has [[impossible]] combinations, of which a model knows nothing: it would draw them; take "
                "steps, or describe the combined column by one column with levels"
            )
        check_closed(self.source.build, self.source.name, self.source.text if self.source.is_file else "")
        _check_columns(self.observed, self.schema)
        _check_covariates(self.model, self.synthesized)
        for end in (0, 1):
            other = self.build(stand_ins(self.schema, STAND_INS, end=end))
            check_same(self._several, other, self.schema, OTHER_RECORDS)
        check_same(self._several, self._longer, self.schema, OTHER_NUMBER)
        self.transformations  # noqa: B018 - refuses what can't be inverted
        check_proper(self.model)
        check_potentials(self.model, self.source.public_potentials, self.schema.columns)

    @cached_property
    def model(self) -> pm.Model:
        """The model of one stand-in record. Its data are shared variables named as ``columns.SUFFIX`` says."""
        return self.build(stand_ins(self.schema, 1))

    @cached_property
    def _several(self) -> pm.Model:
        """The model of stand-ins spread over what the schema allows."""
        return self.build(stand_ins(self.schema, STAND_INS))

    @cached_property
    def _longer(self) -> pm.Model:
        """The model of one stand-in more."""
        return self.build(stand_ins(self.schema, STAND_INS + 1))

    @cached_property
    def transformations(self) -> dict[str, Transformation]:
        """How the columns are transformed that the model doesn't observe as they are."""
        return transformations(self._several, self.observed, self.schema)

    @cached_property
    def observed(self) -> dict[str, tuple[str, ...]]:
        """The columns that each observed variable gives values to."""
        return {rv.name: _columns_of(rv.name, self.model) for rv in self.model.observed_RVs}

    @property
    def synthesized(self) -> tuple[str, ...]:
        """The columns that the model describes."""
        return tuple(name for names in self.observed.values() for name in names)

    @cached_property
    def n_parameters(self) -> int:
        """Number of unconstrained real parameters."""
        point = self.model.initial_point()
        return sum(int(np.size(point[value.name])) for value in self.model.value_vars)

    @cached_property
    def has_record_parameters(self) -> bool:
        """Whether there are more parameters the more records there are."""
        return sum(int(np.size(each)) for each in self._several.initial_point().values()) != self.n_parameters

    def build(self, values: Values) -> pm.Model:
        """Build the model of some records."""
        columns = Columns(self.schema, values)
        try:
            with columns.unread():
                model = self.source.build(columns, self.schema)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - the analyst's own code; it is first run on stand-ins
            raise InputError(f"{self.source.name}: build_model failed: {type(error).__name__}: {error}") from None
        if not isinstance(model, pm.Model):
            raise InputError(f"{self.source.name}: build_model must return a pm.Model")
        columns.check_names(model)
        return model

    def draw(
        self, parameters: Mapping[str, NDArray[Any]], n: int, public: Values, rng: np.random.Generator
    ) -> dict[str, NDArray[Any]]:
        """Draw records from the model at one value of its parameters."""
        one = {variable.name: np.asarray(parameters[variable.name])[None] for variable in self.model.free_RVs}
        return {name: values[0] for name, values in self.draw_several(one, n, public, rng).items()}

    def draw_several(
        self, parameters: Mapping[str, NDArray[Any]], n: int, public: Values, rng: np.random.Generator
    ) -> dict[str, NDArray[Any]]:
        """Draw records as :meth:`draw` does at several values, one a row of each parameter: columns (values, n)."""
        model = self.build(stand_ins(self.schema, n, known=public))
        posterior = {name: np.asarray(value)[None] for name, value in parameters.items()}
        tree = xr.DataTree.from_dict({"posterior": _dataset(posterior)})
        with quiet(), model, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The effect of Potentials", UserWarning)  # parameters are given
            drawn = pm.sample_posterior_predictive(
                tree,
                var_names=list(self.observed),
                freeze_vars=list(parameters),
                random_seed=rng,
                progressbar=False,
                predictions=True,
                compile_kwargs={"mode": "FAST_COMPILE"},
            )
        found: dict[str, NDArray[Any]] = {}
        for variable, names in self.observed.items():
            values = drawn["predictions"][variable].to_numpy()[0]
            each = np.moveaxis(values, -1, 0) if names != (variable,) else [values]
            found |= dict(zip(names, each, strict=True))
        return found | {name: made.back(found[name]) for name, made in self.transformations.items()}


def _dataset(posterior: Mapping[str, NDArray[Any]]) -> xr.Dataset:
    return xr.Dataset(
        {
            name: (("chain", "draw", *(f"{name}_dim_{axis}" for axis in range(value.ndim - 2))), value)
            for name, value in posterior.items()
        }
    )


def _columns_of(variable: str, model: pm.Model) -> tuple[str, ...]:
    """Return the columns of an observed variable: its own name, or the coordinates of its last dimension."""
    dims: Sequence[str | None] = model.named_vars_to_dims.get(variable) or ()
    labels = model.coords.get(dims[-1]) if len(dims) > 1 and dims[-1] is not None else None
    return (variable,) if labels is None else tuple(map(str, labels))


def _check_columns(observed: Mapping[str, tuple[str, ...]], schema: Schema) -> None:
    if not observed:
        raise InputError("the model has no observed variable")
    known = [name for names in observed.values() for name in names]
    for name in known:
        if name not in schema.columns:
            raise InputError(f"the model observes {name!r}, which is no column of the schema; give it a column's name")
        if schema.columns[name].public:
            raise InputError(f"the model observes {name!r}, but the schema calls that column public")
        if known.count(name) > 1:
            raise InputError(f"the model observes column {name!r} twice")
    for name in schema.columns:
        if name not in known and not schema.columns[name].public:
            raise InputError(
                f"column {name!r} is neither public nor observed in the model; observe it, or take it out of the schema"
            )


def _check_covariates(model: pm.Model, synthesized: Sequence[str]) -> None:
    """Refuse a column that the model both synthesizes and reads as data for another: that one would see stand-ins."""
    columns = {variable: name for name, variable in inputs_of(model).items() if name in synthesized}
    for variable in model.observed_RVs:
        for read in ancestors(variable.owner.inputs, blockers=_sizes(variable)):
            if read in columns:
                raise InputError(
                    f"the model observes {columns[read]!r} and reads it as data for {variable.name!r}; use the random "
                    "variable there, so that synthetic records hang together"
                )


def _sizes(variable: Any) -> set[Any]:
    """Return what only tells how many records there are."""
    return {each for each in ancestors([variable]) if each.owner and isinstance(each.owner.op, (Shape, Shape_i))}


@dataclass(frozen=True, eq=False)
class Workspace:
    """A model with what is compiled of it; nothing of a table."""

    blueprint: Blueprint  # the model of tables of one schema
    tried: Tried = field(default_factory=Tried, repr=False)  # what was tried of it, or made from public settings

    @property
    def model(self) -> Any:
        """The ``pm.Model`` of stand-ins."""
        return self.blueprint.model

    def check(self, *, discrete: bool = False) -> None:
        """Refuse, on stand-ins, what would fail or mislead once records are there; tried once for each workspace."""
        if self.discrete and not discrete:
            raise InputError(
                f"parameter {self.discrete[0]!r} is discrete, and grids and NUTS take real numbers; sum it out, as "
                "pm.Mixture does"
            )
        self.tried.once("checked", self._check)

    @property
    def discrete(self) -> list[str]:
        """Names of the parameters that are no real numbers."""
        return [value.name for value in self.model.value_vars if not value.dtype.startswith("float")]

    def _check(self) -> None:
        schema, model = self.blueprint.schema, self.model
        censored = self._censored()
        with on_stand_ins("the prior"):
            many = self.blueprint.has_record_parameters
        if many:
            raise InputError("the model has parameters for single records; integrate them out, as a mixture does")
        start = np.median(self.prior, axis=0)
        check_company(model, self.blueprint.build, schema, self._points(np.stack([start, *self.prior[:N_POINTS]])))
        with on_stand_ins("the log-likelihood"):
            censored.log_likelihood({name: [value] for name, value in self.values_of(start[None])[0].items()})
        self._draw(start)

    def _censored(self) -> Censored:
        with on_stand_ins("the log-likelihood"):
            public = self.blueprint.source.public_potentials
            return censor_records(self.model, self.blueprint.schema.columns, window=1.0, public_potentials=public)

    def _points(self, flat: FloatArray) -> list[dict[str, Any]]:
        known = self.model.value_vars
        columns = [part.astype(value.dtype) for value, part in zip(known, split(self.model, flat), strict=True)]
        return [dict(zip([value.name for value in known], row, strict=True)) for row in zip(*columns, strict=True)]

    def _draw(self, flat: FloatArray) -> None:
        """Draw records at some parameters, beside stand-ins for public columns, and bring them into the schema."""
        schema, rng = self.blueprint.schema, np.random.default_rng(0)
        filled = stand_ins(schema, STAND_INS)
        public = {name: filled[name] for name in schema.public_columns}
        with on_stand_ins("the observed variables"):
            drawn = self.blueprint.draw(self.values_of(flat[None])[0], STAND_INS, public, rng)
            wrong = [name for name, values in drawn.items() if np.shape(values) != (STAND_INS,)]
            if wrong:
                raise InputError(f"what the model draws of {wrong[0]!r} isn't one value a record")
            to_frame(schema, drawn, pd.DataFrame(public), rng)

    def check_gradient(self) -> None:
        """Refuse, on stand-ins, a model without a finite log density and gradient anywhere that NUTS could start."""

        def check() -> None:
            starts = np.stack([np.median(self.prior, axis=0), initial(self.model), *self.prior[:N_STARTS]])
            check_gradient(self.blueprint.source.name, self._censored().model, self._points(starts))

        self.tried.once("gradient", check)

    @cached_property
    def likelihood(self) -> RecordLikelihood:
        """The log-likelihood of one record, compiled when it is first asked for."""
        return RecordLikelihood(self.model, columns=self.blueprint.schema.columns)

    @cached_property
    def prior(self) -> FloatArray:
        """Draws from the prior, shape (draws, parameters), in unconstrained space."""
        with on_stand_ins("the prior"):
            return prior_draws(self.model)

    def values_of(self, flat: FloatArray) -> list[dict[str, FloatArray]]:
        """Return parameters as values of the free variables, in the model's own units."""
        return constrained(self.model, flat)

    def parameters_of(self, values: dict[str, Any]) -> FloatArray:
        """Return values of the free variables as parameters in unconstrained space."""
        wanted = [variable.name for variable in self.model.free_RVs]
        if sorted(values) != sorted(wanted):
            raise InputError(f"the reference must give values for {', '.join(wanted)}; it gives {', '.join(values)}")
        given = {name: np.asarray(value)[None] for name, value in values.items()}
        found = np.asarray(join(unconstrained(self.model, given))[0])
        if not np.isfinite(found).all():
            raise InputError("the reference has values that the model's priors exclude")
        return found


_kept: dict[tuple[Any, ...], Workspace] = {}


def workspace(source: Source, schema: Schema) -> Workspace:
    """Return the workspace of a model and a schema, made once."""
    key = (source.key, schema.to_toml())
    with ONE_AT_A_TIME:
        if key not in _kept:
            while len(_kept) >= MOST_KEPT:
                _kept.pop(next(iter(_kept)))
            _kept[key] = Workspace(Blueprint(source, schema))
        return _kept[key]
