"""What stands beside a formula: family, link, priors and the like, as ``bmb.Model``
takes them, or as ``name=value`` on the command line.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, Self

import numpy as np

from pdips.conversion.bambi_package import bambi
from pdips.conversion.formula_priors import (
    TOO_LONG,
    check_priors,
    check_typed,
    is_short,
    spelt_priors,
)
from pdips.data.schema import Schema, has_number_levels
from pdips.errors import InputError, hint
from pdips.posterior.closures import MOST, check_closed

TRUTHS = {"true": True, "false": False}
TRUTH_SETTINGS = ("auto_scale", "center_predictors", "noncentered")
EXAMPLE = "prior.age=Normal(mu=0, sigma=2)"
SETTING = re.compile(r"(?P<name>.+?)=(?P<value>[A-Za-z]\w*(\(.*\))?|[-+\d.eE]+)", re.S)
"""A term's name may have "=" in it, such as ``bs(age, df=4)``."""
SEVERAL_OUTCOMES = ("multinomial", "dirichlet_multinomial")


@dataclass(frozen=True, kw_only=True)
class FormulaSettings:
    """Settings of a model beside its formula, each as ``bmb.Model`` has it.

    Parameters
    ----------
    family : str or bambi.Family
        Of the outcome's distribution.
    priors : dict of str to bambi.Prior, str, number or dict, optional
        By term or by parameter of the family; a text is written as
        ``"Normal(mu=0, sigma=2)"``.
    link : str or dict of str to str, optional
        Of the mean, or of several parameters.
    categorical : str or sequence of str
        Columns of numbers that are read as levels.
    potentials : sequence of pairs, optional
        Names of parameters, and the function of them that is added to the log density.
    auto_scale, center_predictors : bool
        As in Bambi.
    noncentered : bool or dict of str to bool
        As in Bambi, but false if left out: where groups are drawn as offsets times
        their spread, what noisy scores say of them depends on the spread at which they
        were asked.
    extra_namespace : dict, optional
        Own functions and constants that the formula reads.
    public_constants : bool
        Says that numbers in priors, in the namespace and on the left of the formula
        come from public sources alone; they may then have many digits.

    Examples
    --------
    >>> FormulaSettings(
    ...     family="poisson", priors={"age": "Normal(mu=0, sigma=1)"}
    ... ).priors
    {'age': Normal(mu: 0.0, sigma: 1.0)}
    """

    family: Any = "gaussian"
    priors: Mapping[str, Any] | None = None
    link: Any = None
    categorical: str | Sequence[str] = ()
    potentials: Any = None
    auto_scale: bool = True
    noncentered: Any = False
    center_predictors: bool = True
    extra_namespace: Mapping[str, Any] | None = None
    public_constants: bool = False

    def __post_init__(self) -> None:
        priors = spelt_priors(self.priors)
        namespace = {**(self.extra_namespace or {})}
        object.__setattr__(self, "priors", priors)
        object.__setattr__(self, "extra_namespace", namespace)
        if isinstance(self.categorical, str):
            object.__setattr__(self, "categorical", (self.categorical,))
        self._check_family()
        check_priors(priors, digits=not self.public_constants)
        for name, value in namespace.items():
            _check_name(name, value, digits=not self.public_constants)
        for _, function in self.potentials or ():
            check_closed(function, "a potential of the formula's model")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return settings given by name, or refuse a name that there isn't.

        Examples
        --------
        >>> FormulaSettings.of({"family": "t"}).family
        't'
        """
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                raise InputError(
                    f"{name!r} is no setting of a formula{hint(name, known)}; there "
                    f"are {', '.join(known)}"
                )
        return cls(**settings)

    @property
    def family_name(self) -> str:
        """The family in a word.

        Examples
        --------
        >>> FormulaSettings(family="gamma").family_name
        'gamma'
        """
        return str(getattr(self.family, "name", self.family))

    def _check_family(self) -> None:
        package = bambi()
        if isinstance(self.link, Mapping):
            _check_links(self.link)
        if isinstance(self.family, package.Family):
            check_priors(self.family.default_priors, digits=not self.public_constants)
            _check_function(self.family.likelihood.dist, "the family")
            _check_links(self.family.link)
        elif not isinstance(self.family, str):
            raise InputError("family must be the name of one, or a bambi.Family")
        else:
            _check_family_name(self.family)
        if self.family_name in SEVERAL_OUTCOMES:
            raise InputError(
                f"the family {self.family_name!r} has an outcome of several columns, "
                "which can't be measured: write a formula for one column, such as one "
                "with family='categorical'"
            )


def _check_family_name(name: str) -> None:
    from bambi.defaults.families import BUILTIN_FAMILIES

    known = [*BUILTIN_FAMILIES]
    if name not in known:
        raise InputError(f"Bambi has no family {name!r}{hint(name, known)}")


def _check_links(links: Mapping[str, Any]) -> None:
    """Refuse links of one's own that hold data."""
    for name, link in links.items():
        for part in ("link", "linkinv", "linkinv_backend"):
            _check_function(getattr(link, part, None), f"the link of {name!r}")


def _check_function(function: Any, what: str) -> None:
    if function is not None:
        check_closed(function, what)


def _check_name(name: str, value: Any, *, digits: bool) -> None:
    """Refuse what a formula reads beside columns, if it could be records."""
    if isinstance(value, ModuleType):
        return
    if callable(value):
        what = f"the formula's function {name!r}"
        check_typed(check_closed(value, what), what, public_constants=not digits)
        return
    is_plain = isinstance(value, str | int | float | list | tuple | np.ndarray)
    values = np.ravel(np.asarray(value)) if is_plain else np.array([None])
    if values.dtype == object or values.size > MOST:
        raise InputError(
            f"the formula reads {name!r}, {type(value).__name__} that could hold "
            f"records: hand over a function, or up to {MOST} numbers or words"
        )
    is_number = np.issubdtype(values.dtype, np.number)
    if digits and is_number and not all(map(is_short, values.astype(float))):
        raise InputError(f"the formula reads {name!r}, which has {TOO_LONG}")


def formula_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return settings of a formula that were written as ``name=value``.

    Parameters
    ----------
    texts : sequence of str
        ``family=poisson``; ``link=log``, or ``link.sigma=log`` for one parameter;
        ``prior.age=Normal(mu=0, sigma=2)`` for a term, or a parameter of the family;
        ``categorical=region``, which may come several times; ``auto_scale``,
        ``center_predictors`` and ``noncentered`` are ``true`` or ``false``.

    Returns
    -------
    dict
        Settings as :func:`~pdips.conversion.formulas.maker_of` takes them.

    Examples
    --------
    >>> formula_settings(["family=t", "prior.nu=Gamma(alpha=2, beta=0.1)"])
    {'family': 't', 'priors': {'nu': 'Gamma(alpha=2, beta=0.1)'}}
    """
    settings: dict[str, Any] = {}
    for text in texts:
        match = SETTING.fullmatch(text.strip())
        if match is None:
            raise InputError(f"a setting is written as 'family=poisson' or '{EXAMPLE}'")
        _add_setting(settings, match["name"].strip(), match["value"])
    return settings


def of_two_levels(
    formula: str, settings: dict[str, Any], schema: Schema
) -> tuple[str, dict[str, Any]]:
    """Return a formula about a column of two levels as the logit of its second one,
    which is how :meth:`~pdips.release.opening.PublishedRelease.ask` reads it, where no
    other family is named.

    Parameters
    ----------
    formula : str
        As it was asked.
    settings : dict
        What stands beside it.
    schema : Schema
        Of the table.

    Examples
    --------
    >>> from pdips import Column, Schema
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> of_two_levels("ill ~ age", {}, schema)
    ("ill['yes'] ~ age", {'family': 'bernoulli'})
    >>> of_two_levels("ill ~ age", {"family": "t"}, schema)
    ('ill ~ age', {'family': 't'})
    """
    left, sign, right = formula.partition("~")
    column = schema.columns.get(left.strip())
    family = settings.get("family", "bernoulli")
    if not sign or column is None or column.levels is None:
        return formula, settings
    if family != "bernoulli" or len(column.levels) != 2:
        return formula, settings
    with_family = {**settings, "family": family}
    if not has_number_levels(column):
        return f"{left.strip()}[{column.levels[1]!r}] ~{right}", with_family
    is_binary = [float(level) for level in column.levels] == [0, 1]
    return formula, with_family if is_binary else settings


def _add_setting(settings: dict[str, Any], name: str, value: str) -> None:
    kind, _, part = name.partition(".")
    if kind == "prior" and part:
        _add_part(settings, "priors", part, value)
    elif kind == "link" and part:
        _add_part(settings, "link", part, value)
    elif name == "categorical":
        settings[name] = (*settings.get(name, ()), value)
    elif name in settings:
        raise InputError(f"the setting {name!r} is there twice")
    elif name in TRUTH_SETTINGS:
        if value.lower() not in TRUTHS:
            raise InputError(f"{name} must be true or false")
        settings[name] = TRUTHS[value.lower()]
    elif name in ("family", "link"):
        settings[name] = value
    else:
        known = ("family", "link", "prior.TERM", *TRUTH_SETTINGS)
        raise InputError(
            f"{name!r} is no setting of a formula{hint(name, known)}; there are "
            f"{', '.join(known)}"
        )


def _add_part(settings: dict[str, Any], kind: str, part: str, value: str) -> None:
    parts = settings.setdefault(kind, {})
    if not isinstance(parts, dict) or part in parts:
        raise InputError(f"the setting of {part!r} in {kind} is there twice")
    parts[part] = value
