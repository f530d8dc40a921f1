"""What a person wrote in a ``bmb.Model``, without the data that it holds."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pdips.conversion.bambi_package import bambi
from pdips.conversion.formula_settings import FormulaSettings
from pdips.conversion.formula_terms import described, functions_of
from pdips.data.schema import Schema, has_number_levels
from pdips.errors import InputError


@dataclass(frozen=True)
class Alias:
    """A name that ``set_alias`` gave.

    Parameters
    ----------
    parameter : str
        Of the family.
    term : str, optional
        Of the parameter's formula; without it the name is the parameter's.
    argument : str, optional
        Of the prior of a term of groups, such as "sigma".
    name : str
        The name given.
    """

    parameter: str
    term: str | None
    argument: str | None
    name: str


@dataclass(frozen=True)
class WrittenModel:
    """What a ``bmb.Model`` is rebuilt from, on any frame.

    Parameters
    ----------
    formulas : tuple of str
        The first is the outcome's.
    settings : FormulaSettings
        With the priors that were given; automatic ones are made anew.
    aliases : tuple of Alias
        Names given to terms and parameters.
    categories : dict of str to pandas.CategoricalDtype
        Of the public columns that the model reads as levels.
    ordered : bool
        Whether the outcome's levels have an order of their own.
    """

    formulas: tuple[str, ...]
    settings: FormulaSettings
    aliases: tuple[Alias, ...]
    categories: Mapping[str, pd.CategoricalDtype]
    ordered: bool


def is_bambi_model(model: Any) -> bool:
    """Whether an object is a ``bmb.Model``; Bambi isn't imported for any other.

    Examples
    --------
    >>> is_bambi_model("pay ~ age")
    False
    """
    kinds = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    return "bambi" in kinds and isinstance(model, bambi().Model)


def written_model(
    model: Any, schema: Schema, settings: Mapping[str, Any]
) -> WrittenModel:
    """Return what a person wrote in a Bambi model.

    Only public columns' levels are taken of its data.

    Parameters
    ----------
    model : bambi.Model
        Built or not.
    schema : Schema
        Of the table.
    settings : dict
        ``public_constants`` and ``extra_namespace``; all else is the model's.
    """
    if any(given is not None for given in model._added_priors.values()):
        raise InputError(
            "after set_priors() Bambi no longer says which priors read the data: pass "
            "them to bmb.Model(..., priors={...})"
        )
    for name in settings:
        if name not in ("public_constants", "extra_namespace"):
            raise InputError(
                f"{name} is set in the Bambi model: pass it to bmb.Model(...), or hand "
                "over the formula"
            )
    formulas = tuple(model.formula.get_all_formulas())
    levels = {
        name: dtype
        for name, dtype in model.data.dtypes.items()
        if name in schema.columns and isinstance(dtype, pd.CategoricalDtype)
    }
    public = {name: of for name, of in levels.items() if schema.columns[name].public}
    confidential = {name: of for name, of in levels.items() if name not in public}
    family, link = _family_and_link(model.family)
    namespace = dict(_session(model, formulas, schema))
    namespace |= settings.get("extra_namespace") or {}
    written = FormulaSettings(
        family=family,
        link=link,
        priors=_given_priors(model),
        categorical=_numbers_as_levels(levels, formulas, schema),
        potentials=model.potentials,
        auto_scale=model.auto_scale,
        # the same law, written as noisy scores can tell more of it
        noncentered=False,
        center_predictors=model.center_predictors,
        extra_namespace=namespace,
        public_constants=bool(settings.get("public_constants", False)),
    )
    ordered = any(dtype.ordered for dtype in confidential.values())
    return WrittenModel(formulas, written, tuple(_aliases(model)), public, ordered)


def _family_and_link(family: Any) -> tuple[Any, Any]:
    """Return a family and its links as they are written beside a formula: one of
    Bambi's by its name, with links where they aren't its usual ones; another as it is.
    """
    from bambi.defaults.families import BUILTIN_FAMILIES, get_builtin_family

    name = family.name
    if name not in BUILTIN_FAMILIES:
        return deepcopy(family), None
    usual = get_builtin_family(name)
    links = {key: link.name for key, link in family.link.items()}
    parent = usual.likelihood.parent
    written = {parent: links.pop(parent)} | links
    try:
        same = get_builtin_family(name)
        same.link = written
    except ValueError:  # a link of the person's own
        return deepcopy(family), None
    if not _is_same_family(family, same):
        return deepcopy(family), None
    others = [key for key, link in written.items() if link != usual.link[key].name]
    if not others:
        return name, None
    return name, written[parent] if others == [parent] else written


def _is_same_family(family: Any, other: Any) -> bool:
    """Whether two families are the same in all that a model is built of."""
    links = {key: vars(link) for key, link in family.link.items()}
    other_links = {key: vars(link) for key, link in other.link.items()}
    is_same_law = vars(family.likelihood) == vars(other.likelihood)
    has_same_priors = family.default_priors == other.default_priors
    is_same_kind = type(family) is type(other)
    return is_same_kind and is_same_law and has_same_priors and links == other_links


def _numbers_as_levels(
    columns: Mapping[str, pd.CategoricalDtype],
    formulas: tuple[str, ...],
    schema: Schema,
) -> tuple[str, ...]:
    """Return the columns of numbers that a model reads as levels: those of words are
    read so anyhow.
    """
    read = {name for formula in formulas for name in described(formula).var_names}
    numbers = {
        name
        for name, column in schema.columns.items()
        if not column.is_categorical or has_number_levels(column)
    }
    return tuple(name for name in columns if name in read & numbers)


def _given_priors(model: Any) -> dict[str, Any]:
    """Return the priors that were passed to a model: Bambi scales no other."""
    priors: dict[str, Any] = {}
    for name, parameter in model.conditional_parameters.items():
        given = {
            key: deepcopy(term.prior)
            for key, term in parameter.terms.items()
            if _is_given(term)
        }
        if given:
            priors[name] = given
    for name, parameter in model.marginal_parameters.items():
        # what isn't a distribution is a fixed number
        if not getattr(parameter.prior, "auto_scale", False):
            priors[name] = deepcopy(parameter.prior)
    return priors


def _is_given(term: Any) -> bool:
    if getattr(term, "kind", None) == "offset":
        return False
    if hasattr(term, "automatic_priors"):
        return not term.automatic_priors
    return not term.prior.auto_scale


def _session(
    model: Any, formulas: tuple[str, ...], schema: Schema
) -> Iterator[tuple[str, Any]]:
    """Yield the functions and constants of the person's own that a model's formulas
    read, where Bambi found them.
    """
    from formulae.categorical import ENCODINGS
    from formulae.transforms import TRANSFORMS

    parameters = [*model.conditional_parameters.values()]
    names = parameters[0].design.env.namespace
    for formula in formulas:
        description = described(formula)
        read = {*description.var_names} - {*schema.columns, ""}
        # on the left of the others stand parameters of the family
        read -= {*model.conditional_parameters}
        for term in (*description.terms, description.response):
            read |= {function.partition(".")[0] for function in functions_of(term)}
        for name in sorted(read - {*ENCODINGS, *TRANSFORMS}):
            if name in names:
                yield name, names[name]


def _aliases(model: Any) -> Iterator[Alias]:
    for name, parameter in model.parameters.items():
        if parameter.alias:
            yield Alias(name, None, None, parameter.alias)
        for key, term in getattr(parameter, "terms", {}).items():
            if term.alias:
                yield Alias(name, key, None, term.alias)
            for argument, alias in getattr(term, "hyperprior_alias", {}).items():
                yield Alias(name, key, argument, alias)
