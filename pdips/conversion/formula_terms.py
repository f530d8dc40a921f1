"""What a formula reads: the column that is its outcome, its covariates, and the
functions that it calls.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdips.conversion.bambi_package import bambi, one_line
from pdips.conversion.formula_priors import TOO_LONG, is_short
from pdips.data.schema import Schema
from pdips.errors import InputError, hint

SEVERAL_COLUMNS = (
    "an outcome of several columns can't be measured: write a formula for one column"
)
NO_OUTCOME = "the formula has no outcome: write it as 'outcome ~ covariates'"
ONE_OUTCOME = "the left side of a formula is one column, or a function of one"
NO_OUTCOMES = {
    "C": "C() isn't needed, and Bambi can't read it there: write the column alone, and "
    "its levels in the schema",
    "c": SEVERAL_COLUMNS,
    "counts": SEVERAL_COLUMNS,
    "censored": "the bounds of a censored outcome are values of records: describe the "
    "outcome as it is recorded, or write make(df) with a likelihood of your own",
    "bs": "a spline of the outcome has no likelihood: take the outcome itself",
    "poly": "a polynomial of the outcome has no likelihood: take the outcome itself",
    "hsgp": "a process of the outcome has no likelihood: take the outcome itself",
    "B": "what B() counts as a success depends on the records: write outcome['level']",
    "binary": "what binary() counts as a success depends on the records: write "
    "outcome['level']",
}
"""Functions that an outcome can't be made by, and why."""
OF_SEVERAL = ("bs", "poly", "hsgp", "rank")
"""Functions whose values at one record follow from those of all records."""
OF_NUMBERS = frozenset(
    [
        "clip",
        "where",
        "round",
        "nan_to_num",
        "mean",
        "std",
        "var",
        "median",
        "min",
        "max",
        "sum",
        "quantile",
        "percentile",
        "cumsum",
        "cumprod",
        "diff",
        "roll",
        "sort",
        "argsort",
        "digitize",
    ]
)
"""Functions of numpy that a formula may call beside those of single numbers, its
``ufunc``. Those of several records are refused later, since they move with records.
"""
PROPORTIONS = ("p", "prop", "proportion")


@dataclass(frozen=True)
class FormulaTerms:
    """The columns that formulas read, and the functions that they call.

    Parameters
    ----------
    outcome : str
        The confidential column on the left of the first formula.
    left : tuple of str
        All columns on the left, the outcome among them.
    right : tuple of str
        Covariates and groups, of all formulas.
    level : str, optional
        Of the outcome, whose probability is described: ``ill['yes'] ~ age``.
    """

    outcome: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    level: str | None


def formula_terms(
    formulas: Sequence[str],
    schema: Schema,
    names: Collection[str] = (),
    *,
    digits: bool = True,
) -> FormulaTerms:
    """Return what formulas read, or refuse what can't be converted.

    Parameters
    ----------
    formulas : sequence of str
        The first has the outcome on its left, the others have other parameters of the
        family.
    schema : Schema
        Of the table.
    names : collection of str
        What the formulas may read beside columns: own functions, and constants.
    digits : bool
        Whether to refuse numbers of many digits beside confidential columns.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "pay": Column(lower=1, upper=9),
    ...         "age": Column(lower=18, upper=99, public=True),
    ...     }
    ... )
    >>> formula_terms(["log(pay) ~ center(age)"], schema).outcome
    'pay'
    """
    descriptions = [described(text) for text in formulas]
    main = descriptions[0]
    left = _columns(main.response.var_names, schema, names)
    read_right = set[str]()
    for description in descriptions:
        for term in (*description.common_terms, *description.group_terms):
            read_right |= term.var_names
    right = _columns(read_right, schema, names)
    _check_functions(descriptions, names)
    [component] = main.response.term.components
    level = getattr(component, "reference", None)
    terms = FormulaTerms(_outcome(left, schema), left, right, level)
    _check_covariates(terms)
    _check_right(descriptions, schema)
    _check_values((*left, *right), schema)
    _check_left(component, terms)
    if digits and not all(map(is_short, _numbers_of(component))):
        raise InputError(f"the left side of the formula has {TOO_LONG}")
    is_open = all(schema.columns[name].public for name in right)
    if digits and not is_open and not all(map(is_short, _numbers_right(descriptions))):
        raise InputError(f"the right side of the formula has {TOO_LONG}")
    return terms


def described(formula: str) -> Any:
    """Return what the package formulae reads in a formula.

    Examples
    --------
    >>> [term.name for term in described("pay ~ age").common_terms]
    ['Intercept', 'age']
    """
    bambi()
    from formulae import model_description

    if not isinstance(formula, str):
        raise InputError("a formula is text such as 'pay ~ age + (1 | region)'")
    if not formula.partition("~")[0].strip() or "~" not in formula:
        raise InputError(NO_OUTCOME)
    with one_line("the formula can't be read"):
        try:
            return model_description(formula)
        except ValueError as error:
            # of a sum, which is a model to formulae
            if "response term must" in str(error):
                raise InputError(ONE_OUTCOME) from None
            raise


def functions_of(node: Any) -> Iterator[str]:
    """Yield the functions that a term, or a part of one, calls.

    Examples
    --------
    >>> [*functions_of(described("np.log(scale(pay)) ~ 1").response)]
    ['np.log', 'scale']
    """
    for part in _parts(node):
        callee = getattr(part, "callee", None)
        if callee is not None:
            yield callee


def _numbers_of(node: Any) -> Iterator[float]:
    """Yield the numbers that are written out in a term."""
    for part in _parts(node):
        # of what formulae keeps of a formula, texts that stand for a value have both
        if hasattr(part, "lexeme") and isinstance(part.value, int | float):
            yield part.value


def _numbers_right(descriptions: Sequence[Any]) -> Iterator[float]:
    """Yield the numbers that are written out on the right sides."""
    for description in descriptions:
        for term in (*description.common_terms, *description.group_terms):
            yield from _numbers_of(term)


def _parts(node: Any) -> Iterator[Any]:
    """Yield a term and all that it is made of, from the left."""
    yield node
    keywords = getattr(node, "kwargs", None) or {}
    inner = [*keywords.values()]
    for name in ("args", "components"):
        inner += getattr(node, name, ())
    for name in ("term", "expr", "factor", "call"):
        part = getattr(node, name, None)
        if part is not None:
            inner.append(part)
    for part in inner:
        yield from _parts(part)


def known_functions() -> set[str]:
    """Return the functions that Bambi has for formulas, and ``np``.

    Examples
    --------
    >>> {"np", "log", "scale", "bs"} <= known_functions()
    True
    """
    bambi()
    from bambi.transformations import transformations_namespace
    from formulae.categorical import ENCODINGS
    from formulae.transforms import TRANSFORMS

    return {"np", *transformations_namespace, *ENCODINGS, *TRANSFORMS}


def _columns(
    read: Collection[str], schema: Schema, names: Collection[str]
) -> tuple[str, ...]:
    """Return the columns among what is read, and refuse what is neither a column nor a
    name that was handed over.
    """
    # formulae counts a number in a call as a variable without a name
    variables = {*read} - {""}
    for name in sorted(variables - {*schema.columns, *names}):
        handed_over = (
            "; in Python a constant of your own is handed over by "
            f"extra_namespace={{{name!r}: ...}}"
        )
        raise InputError(
            f"the formula reads {name!r}, which is no column of the schema"
            f"{hint(name, schema.columns) or handed_over}"
        )
    return tuple(name for name in schema.columns if name in variables)


def _check_functions(descriptions: Sequence[Any], names: Collection[str]) -> None:
    known = known_functions() | {*names}
    for description in descriptions:
        parts = [*description.common_terms, *description.group_terms]
        if description.response is not None:
            parts.append(description.response)
        called = [function for part in parts for function in functions_of(part)]
        for function in called:
            root, _, attribute = function.partition(".")
            if root == "np" and "np" not in names and not _is_of_numbers(attribute):
                raise InputError(
                    f"the formula calls {function!r}: of np it may call functions of "
                    f"numbers, such as np.log, np.where or np.clip"
                )
            is_inside = bool(attribute) and root not in {"np", *names}
            if root not in known or is_inside:
                raise InputError(
                    f"the formula calls {function!r}, which Bambi doesn't have"
                    f"{hint(root, known)}; in Python one of your own is handed over by "
                    f"extra_namespace={{{root!r}: {root}}}"
                )


def _is_of_numbers(name: str) -> bool:
    """Whether numpy's function of this name takes numbers and returns some. Others, and
    what its modules hold, read files and run commands, and a formula may come from a
    file of someone else.
    """
    return name in OF_NUMBERS or isinstance(getattr(np, name, None), np.ufunc)


def _outcome(left: Sequence[str], schema: Schema) -> str:
    confidential = [name for name in left if not schema.columns[name].public]
    if not left:
        raise InputError("the left side of the formula reads no column")
    if not confidential:
        raise InputError(
            f"{left[0]!r} is the outcome and declared public, so there is nothing to "
            "protect: take it out of the public columns"
        )
    if len(confidential) > 1:
        names = " and ".join(map(repr, confidential))
        raise InputError(f"the formula's outcome reads {names}: {SEVERAL_COLUMNS}")
    return confidential[0]


def _check_covariates(terms: FormulaTerms) -> None:
    if terms.outcome in terms.right:
        raise InputError(
            f"{terms.outcome!r} is the outcome and stands on the right, too: take it "
            "out of one of the two"
        )


def _check_right(descriptions: Sequence[Any], schema: Schema) -> None:
    """Refuse splines and the like of confidential covariates, and levels of what has
    none in the schema.
    """
    for description in descriptions:
        for term in (*description.common_terms, *description.group_terms):
            hidden = [
                name
                for name in sorted(term.var_names)
                if name in schema.columns and not schema.columns[name].public
            ]
            if not hidden:
                continue
            name = hidden[0]
            for function in functions_of(term):
                if function in OF_SEVERAL:
                    raise InputError(
                        f"{function}() of the confidential column {name!r} would read "
                        f"all of its records: write np.log({name}), np.sqrt({name}) or "
                        f"I({name}**2), or declare the column public if everybody may "
                        f"know it"
                    )
                if function == "C" and not schema.columns[name].is_categorical:
                    raise InputError(
                        f"C({name}) takes the numbers of a confidential column for "
                        f"levels, of which the schema has none: give {name!r} levels "
                        f"there, or take it as a number"
                    )


def _check_left(component: Any, terms: FormulaTerms) -> None:
    """Refuse an outcome that no likelihood of records has."""
    for function in functions_of(component):
        if function in NO_OUTCOMES:
            raise InputError(f"the formula's outcome: {NO_OUTCOMES[function]}")
        if function in PROPORTIONS and str(component.call.args[0]) != terms.outcome:
            raise InputError(
                "the formula's outcome: a proportion is written as p(successes, "
                "trials), of which successes are the confidential column"
            )


def _check_values(names: Sequence[str], schema: Schema) -> None:
    for name in names:
        column = schema.columns[name]
        if column.missing:
            raise InputError(
                f"{name!r} may be missing, for which a formula has no term: take "
                "missing out of the schema, or write make(df)"
            )
        if column.type == "date":
            raise InputError(
                f"{name!r} is a date: write it as a number, in a column of its own"
            )
