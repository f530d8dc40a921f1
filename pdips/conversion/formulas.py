"""Models written as a formula, or as a ``bmb.Model``: made on any frame of a schema,
with priors that read its bounds in place of the confidential outcome.
"""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from types import FunctionType
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from pdips.conversion.bambi_models import (
    Alias,
    WrittenModel,
    is_bambi_model,
    written_model,
)
from pdips.conversion.bambi_package import bambi, one_line
from pdips.conversion.bambi_variables import (
    add_intercepts,
    centers_of,
    mark_centered,
    name_group_dims,
    read_covariates,
)
from pdips.conversion.formula_settings import FormulaSettings
from pdips.conversion.formula_terms import FormulaTerms, formula_terms
from pdips.conversion.frames import (
    coded_outcome,
    outcome_levels,
    spread_covariate,
    spread_outcome,
)
from pdips.data.column import Column, Level
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.posterior.closures import source_of

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
ORDINAL = ("cumulative", "sratio")
# Records that a formula with confidential covariates is specified on
SPECIFIED = 1_200
# Bambi's slopes have priors by the deviation of their covariate. Of a confidential one
# only the bounds are known, between which people's columns are narrower than if they
# were spread evenly: taken so, the slope of `default ~ balance` (ISLR) lay 4.7 prior
# deviations out, and 4 of 12 intervals held (2026-12-01)
WIDER = 5.0
READ_AS_LEVELS = ("categorical", *ORDINAL)
BINOMIAL = ("binomial", "beta_binomial", "zero_inflated_binomial")


@dataclass(frozen=True, kw_only=True)
class FormulaMaker:
    """Makes the PyMC model of a formula on a frame, as Bambi does.

    Priors and the constants of transforms read public columns, and of the outcome its
    bounds in the schema: the frame's outcome is put in afterwards, record by record.

    Parameters
    ----------
    written : WrittenModel
        Formulas and settings.
    terms : FormulaTerms
        The columns that they read.
    schema : Schema
        Of the table.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "pay": Column(lower=0, upper=12),
    ...         "age": Column(lower=18, upper=99, public=True),
    ...     }
    ... )
    >>> make = maker_of("pay ~ age", schema)
    >>> make(pd.DataFrame({"pay": [1.0, 2, 5], "age": [20, 40, 60]})).observed_RVs
    [pay]
    """

    written: WrittenModel
    terms: FormulaTerms
    schema: Schema

    @property
    def outcome(self) -> str:
        """The confidential column that the formula describes."""
        return self.terms.outcome

    @property
    def text(self) -> str:
        """The formulas, and the settings that aren't Bambi's own: what is public of the
        model.
        """
        settings = self.written.settings
        lines = [*self.written.formulas]
        for each in fields(settings):
            value = getattr(settings, each.name)
            is_left_out = value is None or value == () or value == {}
            if not is_left_out and value != each.default:
                lines.append(f"{each.name} = {_spelt(value)}")
        return "\n".join(lines) + "\n"

    def __call__(self, frame: pd.DataFrame) -> Any:
        """Return the ``pm.Model`` of the formula on a frame.

        Parameters
        ----------
        frame : pandas.DataFrame
            With the columns that the formula reads.
        """
        read = self._covariates(frame)
        levels = self._levels(frame)
        column = self.schema.columns[self.outcome]
        made_up = self._made_up(read)
        made_up[self.outcome] = spread_outcome(column, len(made_up), levels)
        if self.written.settings.family_name in BINOMIAL:
            # at most as many as there were trials; its priors read no outcome
            made_up[self.outcome] = np.ceil(column.lower or 0)
        with one_line("Bambi refuses the model"):
            model = self._specified(made_up)
            self._widen_slopes(model)
            self._name(model)
            term = model.response_term.term
            if column.levels is None and levels is None:
                _check_finite(term, self.outcome, column, made_up)
            read[self.outcome] = coded_outcome(frame[self.outcome].to_numpy(), levels)
            term.data = outcome_data(term, self.outcome, read)
            centers = centers_of(model)
            is_centered = model.center_predictors
            if self.covariates:
                read_covariates(model, read, centers)
                model.center_predictors = False  # at means of records, as Bambi does
            model.build()
            model.center_predictors = is_centered
            add_intercepts(model, centers)
        built = model.backend.model
        name_group_dims(built)
        return built

    @property
    def covariates(self) -> tuple[str, ...]:
        """The confidential columns on the right of the formula."""
        return tuple(
            name
            for name in self.terms.right
            if name in self.schema.columns and not self.schema.columns[name].public
        )

    def _covariates(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the columns that are read beside the outcome, text as levels in
        Bambi's order.
        """
        read = pd.DataFrame(index=pd.RangeIndex(len(frame)))
        names = [*self.terms.left, *self.terms.right]
        for name in names:
            if name not in frame.columns:
                raise InputError(f"the formula reads {name!r}, which the frame lacks")
            if name == self.outcome:
                continue
            values = frame[name]
            if values.isna().any() and name not in self.covariates:
                raise InputError(f"the public column {name!r} has missing values")
            read[name] = self._as_read(name, values)
        return read

    def _made_up(self, read: pd.DataFrame) -> pd.DataFrame:
        """Return the frame that priors, centers and constants of transforms read.

        Confidential covariates are spread over what the schema allows, always in as
        many records, beside public ones at even distances in their own order.
        """
        if not self.covariates:
            return read.copy()
        public = read.drop(columns=[*self.covariates])
        if len(public.columns):
            public = public.sort_values([*public.columns], kind="stable")
        rows = np.linspace(0, len(read) - 1, SPECIFIED).astype(int)
        made_up = public.iloc[rows].reset_index(drop=True)
        for number, name in enumerate(self.covariates):
            column = self.schema.columns[name]
            values = pd.Series(spread_covariate(column, SPECIFIED, number))
            made_up[name] = self._as_read(name, values)
        return made_up

    def _as_read(self, name: str, values: pd.Series) -> pd.Series:
        """Return a covariate as Bambi reads it: numbers, or levels in its order."""
        values = values.reset_index(drop=True)
        is_levels = name in self.written.settings.categorical
        if name in self.written.categories:
            return values.astype(self.written.categories[name])
        if name in self.covariates and (is_levels or not _is_plain(values)):
            levels = sorted(outcome_levels(self.schema.columns[name]))
            return values.astype(pd.CategoricalDtype(levels))
        if is_levels or not _is_plain(values):
            return values.astype("category")
        return values

    def _levels(self, frame: pd.DataFrame) -> list[Any] | None:
        """Return the outcome's levels in the model's order, None if it is numbers.

        Bambi sorts levels, unless their column says that they have an order.
        """
        column = self.schema.columns[self.outcome]
        settings = self.written.settings
        family = settings.family_name
        is_text = column.levels is not None and isinstance(column.levels[0], str)
        as_levels = family in READ_AS_LEVELS or self.outcome in settings.categorical
        if not (as_levels or is_text):
            return None
        levels = outcome_levels(column)
        ordered = _order(frame[self.outcome])
        if ordered and ordered != levels:
            raise InputError(
                f"the levels of {self.outcome!r} have another order than in the "
                "schema: write them there in the model's order"
            )
        if family in ORDINAL or ordered or self.written.ordered:
            return levels
        return sorted(levels)

    def _specified(self, read: pd.DataFrame) -> Any:
        """Return the Bambi model on covariates and a made-up outcome."""
        package = bambi()
        settings = self.written.settings
        return package.Model(
            package.Formula(*self.written.formulas),
            read,
            family=deepcopy(settings.family),
            priors=settings.priors,
            link=settings.link,
            potentials=settings.potentials,
            auto_scale=settings.auto_scale,
            noncentered=settings.noncentered,
            center_predictors=settings.center_predictors,
            extra_namespace={"np": np, **(settings.extra_namespace or {})},
        )

    def _widen_slopes(self, model: Any) -> None:
        """Widen the automatic priors of slopes of confidential numbers."""
        if not self.written.settings.auto_scale:
            return
        for component in model.conditional_parameters.values():
            for term in component.common_terms.values():
                is_confidential = term.term.var_names.intersection(self.covariates)
                kinds = [part.kind for part in term.term.components]
                is_automatic = term.prior.auto_scale and term.prior.name == "Normal"
                if is_confidential and is_automatic and "numeric" in kinds:
                    term.prior.update(sigma=WIDER * term.prior.args["sigma"])

    def _name(self, model: Any) -> None:
        """Give names: those of the person's own, and the outcome its column's."""
        for parameter in model.conditional_parameters.values():
            if not parameter.terms and self.written.settings.family_name not in ORDINAL:
                raise InputError(
                    "the formula has nothing on the right: write outcome ~ 1 for an "
                    "intercept alone"
                )
            for name in (self.outcome, *parameter.terms):
                if name in model.parameters:
                    raise InputError(
                        f"rename the column {name!r}: the family "
                        f"{self.written.settings.family_name!r} has a parameter of "
                        "that name"
                    )
        for alias in self.written.aliases:
            _set_alias(model, alias)
        model.response_term.alias = self.outcome
        mark_centered(model)


def _spelt(value: Any) -> str:
    """Return a setting as text that is the same in each process: functions by their
    source, mappings in order.
    """
    if isinstance(value, Mapping):
        parts = [f"{key!r}: {_spelt(value[key])}" for key in sorted(value, key=str)]
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_spelt, value))}]"
    if isinstance(value, FunctionType):
        return source_of(value, value.__name__).strip() or value.__name__
    return ADDRESS.sub("", repr(value))


def maker_of(model: Any, schema: Schema, **settings: Any) -> FormulaMaker:
    """Return the function that makes the PyMC model of a formula or a Bambi model.

    Parameters
    ----------
    model : str, sequence of str, bambi.Formula or bambi.Model
        A formula; several, of which the others describe parameters of the family; or a
        model that was made on any data, of which only what a person wrote is used.
    schema : Schema
        Of the table.
    settings
        Those of :class:`~pdips.conversion.formula_settings.FormulaSettings`; beside a
        Bambi model ``extra_namespace`` and ``public_constants`` alone.

    Returns
    -------
    FormulaMaker
        ``make(frame)`` returns a ``pm.Model``.

    Raises
    ------
    InputError
        If Bambi isn't installed, or the formula can't be converted.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "visits": Column(lower=0, upper=50, integer=True),
    ...         "age": Column(lower=18, upper=99, public=True),
    ...     }
    ... )
    >>> maker_of("visits ~ age", schema, family="poisson").outcome
    'visits'
    """
    if is_bambi_model(model):
        written = written_model(model, schema, settings)
    else:
        formulas = _formulas(model)
        chosen = FormulaSettings.of(settings)
        written = WrittenModel(formulas, chosen, (), {}, ordered=False)
    names = [*(written.settings.extra_namespace or {})]
    digits = not written.settings.public_constants
    terms = formula_terms(written.formulas, schema, names, digits=digits)
    _check_outcome(terms, schema, written.settings)
    return FormulaMaker(written=written, terms=terms, schema=schema)


def outcome_data(term: Any, outcome: str, read: pd.DataFrame) -> Any:
    """Return what a formula's left side is on a frame, with the constants that its
    transforms took from the made-up outcome.

    Parameters
    ----------
    term : formulae.terms.Term
        Of a design that was made on a made-up outcome.
    outcome : str
        The confidential column.
    read : pandas.DataFrame
        The columns on the left.
    """
    data = _left_side(term.components[0], outcome, read)
    alone = _left_side(term.components[0], outcome, read[::2])
    if not np.array_equal(data[::2], alone, equal_nan=True):
        raise InputError(
            f"{outcome!r} is transformed by what other records are: write public "
            f"numbers in place of its mean and the like, or scale({outcome}), which "
            "takes them from the schema's bounds"
        )
    return data


def _check_finite(term: Any, outcome: str, column: Column, read: pd.DataFrame) -> None:
    """Refuse a transform of the outcome that isn't finite at its bounds."""
    bounds = read.iloc[[0, 0]].copy()
    bounds[outcome] = [column.lower, column.upper]
    values = np.asarray(_left_side(term.components[0], outcome, bounds), float)
    # beside a truncated outcome stand its own bounds, of which one may be infinite
    if not np.isfinite(values.reshape(2, -1)[:, 0]).all():
        raise InputError(
            f"{term.name} isn't finite at the bounds of {outcome!r}: move its bounds "
            f"in the schema, or take another function, such as log({outcome} + 1)"
        )


def _left_side(component: Any, outcome: str, read: pd.DataFrame) -> Any:
    """Return what the left side of a formula is, one row a record."""
    if component.kind == "proportion":
        trials = component.eval_new_data(read)
        return np.column_stack([read[outcome], trials])
    level = getattr(component, "reference", None)
    if level is not None:
        return np.where(read[outcome] == level, 1, 0)
    return np.asarray(component.eval_new_data(read))


def _formulas(model: Any) -> tuple[str, ...]:
    """Return formulas as text."""
    if isinstance(model, str):
        return (model,)
    if hasattr(model, "get_all_formulas"):
        return tuple(model.get_all_formulas())
    if isinstance(model, Sequence) and model:
        return tuple(model)
    raise InputError("a formula is text such as 'pay ~ age + (1 | region)'")


def _check_outcome(
    terms: FormulaTerms, schema: Schema, settings: FormulaSettings
) -> None:
    """Refuse a family that doesn't fit the outcome's column."""
    column = schema.columns[terms.outcome]
    levels: tuple[Level, ...] = column.levels or ()
    has_text = bool(levels) and isinstance(levels[0], str)
    if terms.level is not None:
        if terms.level not in levels:
            raise InputError(
                f"{terms.outcome}[{terms.level!r}]: the schema has no such level"
            )
    elif settings.family_name in READ_AS_LEVELS:
        outcome_levels(column)
    elif settings.family_name == "bernoulli":
        if has_text and len(levels) > 2:
            raise InputError(
                f"{terms.outcome!r} has more than two levels: write "
                f"{terms.outcome}['level'] ~ ..., or take family='categorical'"
            )
    elif has_text and isinstance(settings.family, str):
        raise InputError(
            f"{terms.outcome!r} has levels, and the family {settings.family!r} needs "
            "numbers: take family='bernoulli', 'categorical' or 'cumulative'"
        )


def _order(values: pd.Series) -> list[Any]:
    """Return the levels of a column that says that they have an order, else none."""
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered:
        return dtype.categories.tolist()
    return []


def _is_plain(values: pd.Series) -> bool:
    """Whether Bambi reads a column as it is: numbers, or levels."""
    is_categorical = isinstance(values.dtype, pd.CategoricalDtype)
    return is_categorical or is_numeric_dtype(values)


def _set_alias(model: Any, alias: Alias) -> None:
    parameter = model.parameters[alias.parameter]
    if alias.term is None:
        parameter.alias = alias.name
    elif alias.argument is None:
        parameter.terms[alias.term].alias = alias.name
    else:
        parameter.terms[alias.term].hyperprior_alias = {alias.argument: alias.name}
