"""The analyst's model: where it comes from, which columns it describes, and records drawn from it."""

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray
from pytensor.graph.traversal import ancestors
from pytensor.tensor.shape import Shape, Shape_i

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.posterior import gallery
from pdips.posterior.builds import OTHER_NUMBER, OTHER_RECORDS, check_same
from pdips.posterior.closed import check_closed, source_of
from pdips.posterior.columns import Columns, Values, check_column, stand_ins
from pdips.posterior.observed import Transformation, transformations
from pdips.posterior.prior import check_potentials, check_proper
from pdips.posterior.record_likelihood import inputs_of


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PyMC's log lines from the terminal."""
    logger = logging.getLogger("pymc")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


BuildModel = Callable[[Columns, Schema], pm.Model]

STAND_INS = 24
"""Records of the stand-in table on which a model is built to be looked at."""


@dataclass(frozen=True)
class Source:
    """A model: a function ``build_model(data, schema)`` that returns a ``pm.Model``, and its text.

    Parameters
    ----------
    build : callable
        Takes :class:`Columns` and the schema.
    name : str
        For people and ``privacy.json``.
    text : str
        The Python source, which is public.
    watch : tuple of str
        Variables whose convergence is asked for in place of the free ones: what a model says in ``WATCH`` if its
        parameters can be relabelled.
    public_potentials : tuple of str
        Potentials that are no likelihood: what a model says in ``PUBLIC_POTENTIALS``. The analyst vouches that prior
        times potential can be integrated.
    is_file : bool
        Whether ``text`` is all there is to know of the model, so that equal texts are equal models.
    """

    build: BuildModel = field(repr=False)
    name: str
    text: str = field(default="", repr=False)
    watch: tuple[str, ...] = ()
    public_potentials: tuple[str, ...] = ()
    is_file: bool = False

    @property
    def key(self) -> Any:
        """What differs wherever models do."""
        return self.text if self.is_file else self.build

    def __str__(self) -> str:
        return self.name


def as_source(model: "str | Path | BuildModel | Source") -> Source:
    """Return a model given as a file, the name of one that comes with pdips, a function or a :class:`Source`.

    Raises
    ------
    InputError
        If there is no such file or model, it can't be run, has no ``build_model``, or this holds data.
    """
    if isinstance(model, Source):
        return model
    if not isinstance(model, (str, Path)) and not callable(model):
        raise InputError(
            "model must be a file, a name or a function build_model(data, schema), and is of type "
            f"{type(model).__name__}; let a function of that name make and return the pm.Model"
        )
    if not isinstance(model, (str, Path)):
        name = getattr(model, "__name__", "model")
        return Source(model, name, source_of(model, name), **_said(model))
    module, path = load(model)
    if callable(getattr(module, "statistics", None)):
        raise InputError(f"{path.name} is a model of noisy statistics, not of records: it is for --mechanism modips")
    if not callable(getattr(module, "build_model", None)):
        raise InputError(f"{path.name} has no function build_model(data, schema)")
    return Source(module.build_model, path.name, path.read_text(encoding="utf-8"), is_file=True, **_said(module))


def _said(model: Any) -> dict[str, Any]:
    """Return what a file, or a function by its attributes, says of its model."""
    watch, potentials = getattr(model, "WATCH", ()), getattr(model, "PUBLIC_POTENTIALS", ())
    return {"watch": tuple(watch), "public_potentials": tuple(potentials)}


def load(model: str | Path) -> tuple[ModuleType, Path]:
    """Return the module of a model file, or of one that comes with pdips, and its path.

    Raises
    ------
    InputError
        If there is no such file or model, or it can't be run.
    """
    path = Path(model)
    if not path.is_file():
        if path.suffix == ".py" or len(path.parts) != 1:
            raise InputError(f"there is no model file {path}; `pdips models list` shows those that come with pdips")
        path = gallery.path(path.name)
    spec = importlib.util.spec_from_file_location(f"pdips_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 - whatever the file does wrong, and it has seen no record
        raise InputError(f"{path.name} can't be run: {type(error).__name__}: {error}") from None
    return module, path


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A model of tables of one schema, built on stand-ins: what can be known before a table is read.

    Parameters
    ----------
    source : Source
        The model.
    schema : Schema
        The schema.

    Raises
    ------
    InputError
        If the model can't be built, has no observed variable, or one that is no column; if a column is neither public
        nor observed, or synthetic records can't be brought back to it; if the model is another one for other records;
        or if a prior is improper, or a potential not public.
    """

    source: Source
    schema: Schema

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
        """Draw records from the model at one value of its parameters.

        Parameters
        ----------
        parameters : mapping of str to ndarray
            Values of the free variables, in the model's own units.
        n : int
            Number of records.
        public : mapping of str to ndarray, shape (n,)
            The public columns.
        rng : numpy.random.Generator
            Randomness of the records.

        Returns
        -------
        dict of str to ndarray, shape (n,)
            One column each in the unit of the schema, also where the model observes a function of it: codes, whole
            numbers, doubles.
        """
        one = {name: np.asarray(value)[None] for name, value in parameters.items()}
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
