"""The analyst's model on tables of one schema, tried on stand-ins, with all that is
compiled of it.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.pytensorf import reseed_rngs
from pytensor.graph.replace import clone_replace
from scipy.optimize import minimize

from pdips.arrays import FloatArray
from pdips.data.schema import Column, Schema
from pdips.errors import InputError
from pdips.mechanism import Mechanism
from pdips.posterior.censoring import Censored, censor_records
from pdips.posterior.closures import check_closed
from pdips.posterior.columns import (
    Columns,
    Relabelling,
    Transformation,
    Values,
    fixed_numbers,
    model_columns,
    public_stand_ins,
    settled,
    stand_ins,
    to_frame,
    transformations,
)
from pdips.posterior.interpreted import LIGHT
from pdips.posterior.model_checks import (
    Tried,
    check_columns,
    check_company,
    check_covariates,
    check_described,
    check_gradient,
    check_own,
    check_potentials,
    check_proper,
    on_stand_ins,
    undescribed,
)
from pdips.posterior.model_file import BuildModel, Source, as_source
from pdips.posterior.record_likelihood import (
    RecordLikelihood,
    count_known,
    inputs_of,
    observed_columns,
)

# Records of the stand-in table on which a model is built to be looked at
STAND_INS = 24
# Blueprints that are kept; and, of each, functions that draw records
MOST_BLUEPRINTS = 16
MOST_KEPT = 4
# Records of the largest table for which such a function is kept
MOST_DRAWN_AGAIN = 10_000
# Draws from the prior at which records are compared, and from which NUTS is tried to
# start
N_POINTS = 3
N_STARTS = 16
PRIOR_DRAWS = 2_000
# Seed of draws that depend on nothing but public facts, so that anybody can draw them
# again
PUBLIC_SEED = 20240229

# What draws records, its generators' states, its parameters' names
Forward = tuple[Any, list[Any], list[str]]

UNRECORDED = (
    "The model is a function whose source is not recorded with this release, so "
    "nobody can check it against the model "
    "that is described."
)
"""What a disclosure board is told where that is so."""

# Compiled functions hold points, which threads can't share; audits run side by side
ONE_AT_A_TIME = threading.RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PyMC's log lines from the terminal: those of samplers describe the
    posterior.
    """
    logger = logging.getLogger("pymc")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@lru_cache(maxsize=16)
def start(model: pm.Model) -> tuple[FloatArray, ...]:
    """Return the model's own starting point, one array for each value variable; found
    once for each model.
    """
    point = model.initial_point()
    return tuple(
        np.asarray(point[value.name], dtype=np.float64) for value in model.value_vars
    )


def initial(model: pm.Model) -> FloatArray:
    """Return the model's own starting point as a vector of unconstrained numbers, shape
    (parameters,).
    """
    return np.asarray(join([each[None] for each in start(model)])[0])


def split(model: pm.Model, flat: FloatArray) -> list[FloatArray]:
    """Cut parameter vectors, shape (points, parameters), into one array for each value
    variable.
    """
    point = start(model)
    ends = np.cumsum([value.size for value in point])
    parts = np.split(flat, ends[:-1], axis=1)
    return [
        part.reshape(len(flat), *value.shape)
        for part, value in zip(parts, point, strict=True)
    ]


def join(points: Sequence[Any]) -> FloatArray:
    """Return arrays of value variables as parameter vectors, shape (points,
    parameters).
    """
    vectors = [np.reshape(values, (len(values), -1)) for values in points]
    return np.concatenate(vectors, axis=1)


def at_each(function: Any, columns: Sequence[Any]) -> list[NDArray[Any]]:
    """Return what a compiled function gives for each row of its inputs, one column an
    input: an array (rows, ...) for each of its outputs.
    """
    rows = [function(*row) for row in zip(*columns, strict=True)]
    return [np.stack(values) for values in zip(*rows, strict=True)]


def most_probable(
    log_density: Callable[[FloatArray], tuple[Any, FloatArray]],
    start: FloatArray,
    most_steps: int,
) -> FloatArray:
    """Climb to where a log density, given with its slope, is largest; in places it may
    be no finite number.
    """

    def downhill(place: FloatArray) -> tuple[float, FloatArray]:
        value, slope = log_density(place)
        fine = np.isfinite(value) and np.isfinite(slope).all()
        return (-float(value), -slope) if fine else (1e300, np.zeros_like(place))

    options = {"maxiter": most_steps}
    climbed = minimize(downhill, start, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(climbed.x)


def constrained(model: pm.Model, flat: FloatArray) -> list[dict[str, FloatArray]]:
    """Return parameter vectors as values of the free variables, in the model's own
    units.
    """
    names = [variable.name for variable in model.free_RVs]
    function = _constrain(model)
    rows = zip(*split(model, flat), strict=True)
    return [
        dict(zip(names, map(np.asarray, function(*row)), strict=True)) for row in rows
    ]


@lru_cache(maxsize=16)
def _constrain(model: pm.Model) -> Any:
    graphs = model.replace_rvs_by_values(model.free_RVs)
    return model.compile_fn(
        graphs, inputs=model.value_vars, point_fn=False, mode="FAST_COMPILE"
    )


def unconstrained(model: pm.Model, draws: Mapping[str, Any]) -> list[FloatArray]:
    """Return draws of the free variables, shape (draws, ...) each, as the model's value
    variables have them.
    """
    function = _unconstrain(model)
    columns = [
        np.asarray(draws[variable.name], variable.dtype) for variable in model.free_RVs
    ]
    with np.errstate(all="ignore"):
        return at_each(function, columns)


@lru_cache(maxsize=16)
def _unconstrain(model: pm.Model) -> Any:
    given = {variable: variable.type(name=variable.name) for variable in model.free_RVs}
    graphs = [
        transformed(
            model,
            variable,
            given[variable],
            clone_replace(variable.owner.inputs, given, rebuild_strict=False),
        )
        for variable in model.free_RVs
    ]
    return pytensor.function(
        list(given.values()), graphs, mode="FAST_COMPILE", on_unused_input="ignore"
    )


def transformed(
    model: pm.Model, variable: Any, value: Any, inputs: Sequence[Any]
) -> Any:
    """Return a value of a free variable, given its distribution's inputs, as the
    model's value variable has it.
    """
    transform = model.rvs_to_transforms[variable]
    return value if transform is None else transform.forward(value, *inputs)


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A model of tables of one schema, built on stand-ins, and what is compiled of it:
    what is known before a table is.

    It refuses a model that can't be built, that observes what is no column or leaves
    out a column that isn't public, that is another one for other records, or whose
    prior is improper or potentials not public.
    """

    source: Source
    schema: Schema
    # what was tried, or made from public settings
    tried: Tried = field(default_factory=Tried, repr=False)
    # what draws so many records
    _compiled: Tried = field(default_factory=lambda: Tried(MOST_KEPT), repr=False)

    def __post_init__(self) -> None:
        self.schema.refuse_rules()
        if self.source.converted is None:
            check_closed(
                self.source.build,
                self.source.name,
                self.source.text if self.source.is_file else "",
            )
        check_columns(self.observed, self.schema)
        check_described(self.observed, self.schema, inputs_of(self.model))
        check_proper(self.model)
        check_covariates(self.model, self.synthesized)
        self.transformations  # noqa: B018 - refuses what can't be inverted
        check_potentials(self.model, self.source.public_potentials, self.columns)

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns that the model reads: see
        :func:`pdips.posterior.columns.model_columns`.
        """
        return model_columns(self.schema)

    @cached_property
    def model(self) -> pm.Model:
        """The model of one stand-in record. Its data are shared variables named as
        ``columns.SUFFIX`` says.
        """
        return self.build(stand_ins(self.schema, 1))

    @cached_property
    def _several(self) -> pm.Model:
        """The model of stand-ins spread over what the schema allows."""
        return self.build(stand_ins(self.schema, STAND_INS))

    @cached_property
    def transformations(self) -> dict[str, Transformation | Relabelling]:
        """How the columns are transformed that the model doesn't observe as they
        are.
        """
        return transformations(self._several, self.observed, self.columns)

    @cached_property
    def observed(self) -> dict[str, tuple[str, ...]]:
        """The columns of each observed variable: its own name, or the coordinates of
        its last dimension.
        """
        return observed_columns(self.model)

    @property
    def synthesized(self) -> tuple[str, ...]:
        """The columns that the model describes."""
        return tuple(name for names in self.observed.values() for name in names)

    @cached_property
    def covariates(self) -> tuple[str, ...]:
        """The confidential columns that the model reads and doesn't describe."""
        return tuple(
            name
            for name in inputs_of(self.model, self.columns)
            if name not in self.synthesized and not self.columns[name].public
        )

    @cached_property
    def n_parameters(self) -> int:
        """Number of unconstrained real parameters."""
        return sum(each.size for each in start(self.model))

    @property
    def discrete(self) -> list[str]:
        """Names of the parameters that are no real numbers."""
        return [
            value.name
            for value in self.model.value_vars
            if not value.dtype.startswith("float")
        ]

    @cached_property
    def likelihood(self) -> RecordLikelihood:
        """The log-likelihood of one record, compiled when it is first asked for."""
        return RecordLikelihood(self.model, columns=self.columns)

    @cached_property
    def prior(self) -> FloatArray:
        """Draws from the prior, shape (draws, parameters), unconstrained, always the
        same, none out of range.
        """
        model = self.model
        with on_stand_ins("the prior"):
            graphs = [
                transformed(model, variable, variable, variable.owner.inputs)
                for variable in model.free_RVs
            ]
            drawn = pm.draw(
                graphs, draws=PRIOR_DRAWS, random_seed=PUBLIC_SEED, mode="FAST_COMPILE"
            )
            points = join(drawn)
        inside = np.flatnonzero(np.isfinite(points).all(axis=1))
        return points[np.resize(inside, PRIOR_DRAWS)] if len(inside) else points

    def build(self, values: Values) -> pm.Model:
        columns = Columns(self.schema, values)
        try:
            with columns.unread():
                model = self.source.build(columns, self.schema)
        except InputError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the analyst's own code; it is first run on stand-ins
            raise InputError(
                f"{self.source.name}: build_model failed: "
                f"{type(error).__name__}: {error}"
            ) from None
        if not isinstance(model, pm.Model):
            raise InputError(f"{self.source.name}: build_model must return a pm.Model")
        columns.check_names(model)
        columns.take_over(model)
        count_known(model, fixed_numbers(self.schema))
        return model

    def outside(self, name: str) -> str:
        """Return what the author of the model calls a variable or dimension."""
        converted = self.source.converted
        return name if converted is None else str(converted.outside(name))

    def beside(self, values: Values) -> Values:
        """Return columns of records with those that the model derives from public
        ones.
        """
        converted = self.source.converted
        return values if converted is None else converted.derived.beside(values)

    def draw(
        self,
        parameters: Mapping[str, NDArray[Any]],
        n: int,
        public: Values,
        rng: np.random.Generator,
    ) -> dict[str, NDArray[Any]]:
        """Draw ``n`` records, beside their public columns, at one value of the free
        variables in the model's own units.

        Columns, shape (n,), are in the unit of the schema (codes, whole numbers,
        doubles), also where the model observes a function of them.
        """
        one = {
            variable.name: np.asarray(parameters[variable.name])[None]
            for variable in self.model.free_RVs
        }
        return {
            name: values[0]
            for name, values in self.draw_several(one, n, public, rng).items()
        }

    def draw_several(
        self,
        parameters: Mapping[str, NDArray[Any]],
        n: int,
        public: Values,
        rng: np.random.Generator,
    ) -> dict[str, NDArray[Any]]:
        """Draw records as :meth:`draw` does at several values, one a row of each
        parameter: columns (values, n).
        """
        with ONE_AT_A_TIME, np.errstate(all="ignore"):
            function, states, free = self._forward(n, public)
            reseed_rngs(states, int(rng.integers(2**30)))
            values = [np.asarray(parameters[name]) for name in free]
            drawn = at_each(function, values)
        return self.by_column(drawn)

    def by_column(self, drawn: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return draws of the observed variables, records last but for labels, as
        columns, missing numbers fixed.
        """
        columns: dict[str, NDArray[Any]] = {}
        for (variable, names), values in zip(self.observed.items(), drawn, strict=True):
            is_one_column = names == (variable,)
            by_name = [values] if is_one_column else np.moveaxis(values, -1, 0)
            columns |= dict(zip(names, by_name, strict=True))
        for name, transformation in self.transformations.items():
            columns[name] = transformation.back(columns[name])
        return settled(self.schema, columns)

    def _forward(self, n: int, public: Values) -> Forward:
        """Return what draws ``n`` records: for a few it is compiled once, and then
        reads other public columns.
        """
        public = self.beside(public) if public else public
        values = stand_ins(self.schema, n, known=public)

        def make() -> tuple[pm.Model, Forward]:
            model = self.build(values)
            with model:
                function, updates = pm.compile(
                    model.free_RVs,
                    [model[name] for name in self.observed],
                    mode=LIGHT,
                    on_unused_input="ignore",
                    allow_input_downcast=True,
                    accept_inplace=True,
                    return_updates=True,
                )
            free = [variable.name for variable in model.free_RVs]
            return model, (function, list(updates), free)

        if n > MOST_DRAWN_AGAIN:
            model, forward = make()
        else:
            model, forward = self._compiled.once(n, make)
        for name, shared in inputs_of(model, public).items():
            shared.set_value(np.asarray(values[name], shared.dtype))
        return forward

    def values_of(self, flat: FloatArray) -> list[dict[str, FloatArray]]:
        """Return parameters as values of the free variables, in the model's own
        units.
        """
        return constrained(self.model, flat)

    def parameters_of(self, values: dict[str, Any]) -> FloatArray:
        """Return values of the free variables as parameters in unconstrained space."""
        wanted = [variable.name for variable in self.model.free_RVs]
        if sorted(values) != sorted(wanted):
            raise InputError(
                f"the reference must give values for "
                f"{', '.join(wanted)}; it gives {', '.join(values)}"
            )
        given = {name: np.asarray(value)[None] for name, value in values.items()}
        parameters = np.asarray(join(unconstrained(self.model, given))[0])
        if not np.isfinite(parameters).all():
            raise InputError("the reference has values that the model's priors exclude")
        return parameters

    def check(self, *, discrete: bool = False) -> None:
        """Refuse, on stand-ins, what would fail or mislead once records are there;
        tried once for each blueprint.

        That is a discrete parameter (unless ``discrete``), one for each record or
        without prior draws, a model of many records that isn't that of one repeated,
        and records that can't be drawn.
        """
        if not self.model.free_RVs:
            raise InputError(
                "the model has no parameters, so a table has nothing to say about it; "
                "give what isn't known a prior"
            )
        with on_stand_ins("the prior"):
            check_own(self.model, self._several)
        if self.discrete and not discrete:
            raise InputError(
                f"parameter {self.discrete[0]!r} is discrete, and grids and NUTS "
                f"take real numbers; sum it out, as "
                "pm.Mixture does"
            )
        with ONE_AT_A_TIME:
            self.tried.once("checked", self._check)

    def _check(self) -> None:
        schema = self.schema
        # refuses series: their terms are those of all records together
        censored = self._censored
        middle = np.median(self.prior, axis=0)
        check_company(
            self.model,
            self.build,
            schema,
            self._points(np.stack([middle, *self.prior[:N_POINTS]])),
        )
        with on_stand_ins("the log-likelihood"):
            parameters = self.values_of(middle[None])[0]
            censored.log_likelihood(
                {name: [value] for name, value in parameters.items()}
            )
        rng = np.random.default_rng(0)
        public = public_stand_ins(schema, STAND_INS)
        with on_stand_ins("the observed variables"):
            drawn = self.draw(parameters, STAND_INS, public, rng)
            wrong = [
                name
                for name, values in drawn.items()
                if np.shape(values) != (STAND_INS,)
            ]
            if wrong:
                raise InputError(
                    f"what the model draws of {wrong[0]!r} isn't one value a record"
                )
            beside = stand_ins(schema, STAND_INS, known=public)
            read = {name: beside[name] for name in self.covariates}
            to_frame(schema, drawn | read, pd.DataFrame(public), rng)

    def check_gradient(self) -> None:
        """Refuse, on stand-ins, a model without a finite log density and gradient
        anywhere that NUTS could start.
        """
        with ONE_AT_A_TIME:
            starts = np.stack(
                [
                    np.median(self.prior, axis=0),
                    initial(self.model),
                    *self.prior[:N_STARTS],
                ]
            )
            name = self.source.name
            points = self._points(starts)
            self.tried.once(
                "gradient", lambda: check_gradient(name, self._censored.model, points)
            )

    @cached_property
    def _censored(self) -> Censored:
        with on_stand_ins("the log-likelihood"):
            return censor_records(
                self.model,
                self.columns,
                window=1.0,
                public_potentials=self.source.public_potentials,
            )

    def _points(self, flat: FloatArray) -> list[dict[str, Any]]:
        columns = {}
        parts = split(self.model, flat)
        for value, part in zip(self.model.value_vars, parts, strict=True):
            columns[value.name] = part.astype(value.dtype)
        rows = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]


_blueprints = Tried(MOST_BLUEPRINTS)


def blueprint_of(source: Source, schema: Schema) -> Blueprint:
    """Return the blueprint of a model and a schema, made once."""
    with ONE_AT_A_TIME:
        return _blueprints.once(
            (source.key, schema.to_toml()), lambda: Blueprint(source, schema)
        )


@dataclass(frozen=True, kw_only=True)
class ModelMechanism(Mechanism):
    """A mechanism that draws records from the analyst's model of one record.

    ``model`` is a file with ``build_model(data, schema)``, the name of one that comes
    with pdips, or that function.
    """

    # whether a confidential column may be read that the model doesn't describe
    takes_covariates: ClassVar[bool] = False

    model: str | Path | BuildModel | Source | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None:
            object.__setattr__(self, "model", as_source(self.model))

    @property
    def source(self) -> Source:
        """The model, once it has been read from wherever it was given."""
        if self.model is None:
            raise InputError(
                f"{self.name} needs a model: --model with a file or the "
                f"name of one (pdips models list)"
            )
        return as_source(self.model)

    def space(self, schema: Schema) -> Blueprint:
        """Return the model of tables of a schema; none reads who has how many
        records.
        """
        source = self.source
        alone = schema.without_person()
        if source.converted is not None:
            alone = source.converted.derived.widened(alone)
        space = blueprint_of(source, alone)
        if space.covariates and not self.takes_covariates:
            raise undescribed(space.covariates[0])
        return space

    def shown(self) -> dict[str, Any]:
        """Return settings that are published otherwise than given: the model with its
        text, which is public.
        """
        known = self.model is not None
        text = {
            "model": self.source.name if known else None,
            "model_source": (known and self.source.text) or None,
        }
        return super().shown() | text
