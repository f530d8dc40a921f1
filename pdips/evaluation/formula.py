"""An analysis given as a formula: the same design for the table and for every synthetic
set.
"""

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray
from pdips.data.schema import Column, Schema, has_number_levels
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.encoding import values_of, weights_of
from pdips.evaluation.regression import FAMILIES, Family, Fit, fit_design
from pdips.extras import require

_INTERCEPT = "Intercept"
_LEAST_ROWS = 64
_EXAMPLE = "such as 'voted ~ age + college * prereg'"
_TERMS = frozenset(
    [
        "C",
        "I",
        "Q",
        "Treatment",
        "Poly",
        "Sum",
        "Helmert",
        "Diff",
        "bs",
        "cc",
        "cr",
        "cs",
        "center",
        "scale",
        "standardize",
        "poly",
        "log",
        "log2",
        "log10",
        "exp",
        "exp2",
        "exp10",
    ]
)
_NUMPY = frozenset(
    [
        "abs",
        "ceil",
        "clip",
        "cos",
        "exp",
        "expm1",
        "floor",
        "log",
        "log10",
        "log1p",
        "log2",
        "maximum",
        "minimum",
        "power",
        "round",
        "sign",
        "sin",
        "sqrt",
        "square",
        "tanh",
        "where",
    ]
)
"""The functions that a term may call: formulaic's, and those of np."""
_VALUES = (ast.Expression, ast.Constant, ast.Name, ast.Load, ast.List, ast.Tuple)
_CALLS = (ast.Call, ast.keyword, ast.Attribute)
_ARITHMETIC = (ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop)
_SYNTAX = (*_VALUES, *_CALLS, *_ARITHMETIC, ast.Compare, ast.cmpop)


@dataclass(frozen=True, kw_only=True, repr=False)
class Analysis:
    """A regression that can be fitted to any frame of one schema: its left side, and
    the coefficients' names.

    The intercept is the first of them. ``weighted`` says whether the schema names a
    column of weights.
    """

    formula: str
    family: Family
    outcome: str
    names: tuple[str, ...]
    weighted: bool
    _schema: Schema
    _columns: tuple[str, ...]
    _left: Any
    _right: Any

    def fit(self, frame: pd.DataFrame) -> Fit:
        """Fit the analysis to records, confidential or synthetic, as :meth:`design`
        reads them.
        """
        x, y, weights = self.design(frame)
        return fit_design(x, y, self.names, self.family, weights)

    def design(
        self, frame: pd.DataFrame
    ) -> tuple[FloatArray, FloatArray, FloatArray | None]:
        """Return predictors with the intercept first, the outcome, and weights where
        the schema names some.

        Records with a missing outcome or number are left out; missing is a level of a
        column with levels.
        """
        values, kept = _values(frame, self._schema, self._columns)
        column = self._schema.columns.get(self.outcome)
        if column is not None and _has_words(column) and len(frame):
            kept &= (values[self.outcome].cat.codes < column.n_values).to_numpy()
        values = values[kept]
        if not len(values):
            return np.ones((0, len(self.names))), np.ones(0), None
        weights = None
        if self.weighted:
            weights = weights_of(frame, self._schema)[kept]
        x = _design(self._right, values, self.formula)
        return x, self._outcome_of(values), weights

    def _outcome_of(self, values: pd.DataFrame) -> FloatArray:
        """Return the outcome of records that have one: 1 for the second of two
        levels.
        """
        column = self._schema.columns.get(self.outcome)
        if self._left is not None:
            return _design(self._left, values, self.formula)[:, 0]
        if self.family != "logistic" or column is None:
            return values[self.outcome].to_numpy(dtype=np.float64)
        names = column.levels if has_number_levels(column) else column.names()
        return np.asarray(values[self.outcome] == names[1], dtype=np.float64)


def read_analysis(
    formula: str, schema: Schema, family: Family | None = None
) -> Analysis:
    """Read a formula: coefficients, and whatever a term reads off data (knots,
    centres), come from the schema alone.

    Parameters
    ----------
    formula : str
        ``"outcome ~ predictors"`` in the language of formulaic (that of R and patsy):
        ``+``, ``*``, ``:``, ``C(x)``, ``np.log(x)``, ``poly(x, 2)``. Columns with
        levels enter as indicators against the schema's first level, unless all levels
        are numbers; true and false are levels.
    schema : Schema
        Of the table.
    family : {"linear", "logistic", "poisson"}, optional
        Left out: logistic for an outcome with two levels, else linear.

    Raises
    ------
    InputError
        If it is no formula, names an unknown column, or doesn't fit the schema or the
        family.

    Examples
    --------
    >>> schema = Schema.load("examples/youth.toml")
    >>> analysis = read_analysis("enrolled ~ sex + age", schema)
    >>> analysis.fit(Table.read("examples/youth.parquet", schema).frame).names
    ('Intercept', 'sex[male]', 'age[22-25]', 'age[26-29]')
    """
    require("report", "formulas of analyses need")
    from formulaic import Formula  # type: ignore[import-untyped]

    left, tilde, right = (part.strip() for part in formula.partition("~"))
    if not tilde or not left or not right or "~" in right:
        raise InputError(
            f"the analysis {formula!r} is no formula; write one {_EXAMPLE}"
        )
    plain = left.strip("`")
    try:
        sides = {
            "left": None if plain in schema.columns else Formula(f"0 + {left}"),
            "right": Formula(right),
        }
    except _troubles():  # formulaic's own messages have colours and several lines
        raise InputError(
            f"the analysis {formula!r} can't be read; write one {_EXAMPLE}"
        ) from None
    _check_terms(formula, schema, sides)
    columns = tuple(name for name in schema.columns if _occurs(name, formula))
    if plain in schema.columns and _occurs(plain, right):
        raise InputError(
            f"the analysis {formula!r} has its outcome among the "
            f"predictors; take it out"
        )
    stand_in = _stand_in(schema, columns)
    outcome = None if sides["left"] is None else _spec(sides["left"], stand_in, formula)
    design = _spec(sides["right"], stand_in, formula)
    names = tuple(map(_named, design.column_names))
    if not names or names[0] != _INTERCEPT:
        raise InputError(
            f"the analysis {formula!r} needs its intercept; take out the 0 or -1"
        )
    if outcome is not None and len(outcome.column_names) != 1:
        raise InputError(
            f"the analysis {formula!r} must have one outcome, a column "
            f"or a function of one"
        )
    return Analysis(
        formula=formula,
        family=_family(family, schema.columns.get(plain), plain),
        outcome=plain,
        names=names,
        weighted=schema.records.weight is not None,
        _schema=schema,
        _columns=columns,
        _left=outcome,
        _right=design,
    )


def _has_words(column: Column) -> bool:
    """Whether a column has levels that aren't numbers."""
    return isinstance(column.levels, tuple) and not has_number_levels(column)


def _named(column: Any) -> str:
    """Return what a column of a design is called everywhere here: ``sex[male]``, which
    formulaic spells ``sex[T.male]``.
    """
    return str(column).replace("[T.", "[")


def _troubles() -> tuple[type[Exception], ...]:
    """Return what formulaic raises, and what functions in a formula may raise."""
    from formulaic.errors import FormulaicError  # type: ignore[import-untyped]

    return (
        FormulaicError,
        ArithmeticError,
        AttributeError,
        LookupError,
        NameError,
        SyntaxError,
        TypeError,
        ValueError,
    )


def _occurs(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?![\w(])", text) is not None


def _check_terms(formula: str, schema: Schema, sides: dict[str, Any]) -> None:
    """Refuse unknown columns, and terms that are more than arithmetic: formulaic
    evaluates a term as Python.
    """
    from formulaic.formula import SimpleFormula  # type: ignore[import-untyped]

    needed = {
        str(name)
        for one in sides.values()
        if one is not None
        for name in one.required_variables
    }
    for name in sorted(needed - {*schema.columns}):
        raise InputError(
            f"the analysis {formula!r} names {name!r}, which is no column of the "
            f"schema; those are "
            f"{', '.join(schema.columns)}"
        )
    for side in sides.values():
        if side is not None and not isinstance(side, SimpleFormula):
            raise InputError(
                f"the analysis {formula!r} can't be worked out on columns of this "
                f"schema: it has several parts"
            )
        for factor in (factor for term in side or () for factor in term.factors):
            if factor.eval_method.value == "python" and not _is_arithmetic(factor.expr):
                raise InputError(
                    f"the analysis {formula!r} has a term that isn't allowed, "
                    f"{factor.expr!r}: beside + - * / ** and "
                    f"comparisons there are {', '.join(sorted(_TERMS))}, and of np "
                    f"{', '.join(sorted(_NUMPY))}"
                )


def _is_arithmetic(term: str) -> bool:
    """Whether a term has nothing but arithmetic, comparisons and the functions that are
    allowed.
    """
    try:
        tree = ast.parse(re.sub("`[^`]*`", "column", term), mode="eval")
    except (SyntaxError, ValueError):
        return False
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, _SYNTAX):
            return False
        if isinstance(node, ast.Attribute):
            if not (
                isinstance(node.value, ast.Name)
                and node.value.id == "np"
                and node.attr in _NUMPY
            ):
                return False
        elif id(node) in called and not (
            isinstance(node, ast.Name) and node.id in _TERMS
        ):
            return False
    return True


def _family(family: Family | None, column: Column | None, name: str) -> Family:
    """Return the family, checked against the outcome where that is a column."""
    two = column is not None and column.levels is not None and len(column.levels) == 2
    chosen: Family = family or ("logistic" if two else "linear")
    if chosen not in FAMILIES:
        raise InputError(
            f"--family must be one of {', '.join(FAMILIES)}, not {chosen!r}"
        )
    if column is None:
        if chosen == "logistic":
            raise InputError(
                f"--family logistic needs a column with two levels as "
                f"its outcome, not {name!r}"
            )
        return chosen
    numeric = column.levels is None or has_number_levels(column)
    if chosen == "logistic" and not two:
        raise InputError(
            f"--family logistic needs an outcome with two levels, which {name!r} hasn't"
        )
    if chosen != "logistic" and not numeric:
        raise InputError(
            f"--family {chosen} needs a numeric outcome, which {name!r} isn't"
        )
    least = min(column.levels) if column.levels is not None else column.lower
    if chosen == "poisson" and float(least or 0) < 0:
        raise InputError(
            f"--family poisson needs an outcome that is never below 0, "
            f"and {name!r} may be"
        )
    return chosen


def _stand_in(schema: Schema, columns: Sequence[str]) -> pd.DataFrame:
    """Return public records with every level of every column."""
    n = max(
        [
            _LEAST_ROWS,
            *(
                schema.columns[name].n_levels
                for name in columns
                if schema.columns[name].is_categorical
            ),
        ]
    )
    rows = np.arange(n)
    made: dict[str, Any] = {}
    for name in columns:
        column = schema.columns[name]
        if column.levels is None:
            made[name] = np.linspace(
                float(column.lower or 0), float(column.upper or 0), n
            )
        elif has_number_levels(column):
            made[name] = np.array(column.levels, dtype=np.float64)[
                rows % column.n_values
            ]
        else:
            made[name] = pd.Categorical.from_codes(
                rows % column.n_levels, categories=pd.Index(column.names())
            )
    return pd.DataFrame(made, index=rows)


def _values(
    frame: pd.DataFrame, schema: Schema, columns: Sequence[str]
) -> tuple[pd.DataFrame, BoolArray]:
    """Return records as the formula sees them, and which of them have no missing
    number.
    """
    made: dict[str, Any] = {}
    kept = np.ones(len(frame), dtype=np.bool_)
    for name in columns if len(frame) else ():
        column = schema.columns[name]
        if column.levels is None or has_number_levels(column):
            made[name] = values_of(frame, name, column)
            kept &= ~np.isnan(made[name])
        else:
            codes = Table(frame[[name]], Schema(columns={name: column})).codes[name]
            made[name] = pd.Categorical.from_codes(
                codes, categories=pd.Index(column.names())
            )
    return pd.DataFrame(made, index=np.arange(len(frame))), kept


def _spec(formula: Any, stand_in: pd.DataFrame, text: str) -> Any:
    try:
        with np.errstate(all="ignore"):
            spec = formula.get_model_matrix(stand_in, na_action="ignore").model_spec
            spec.column_names  # noqa: B018 (a formula of several parts has none)
            return spec
    except _troubles():  # whatever a term's functions may raise
        raise InputError(
            f"the analysis {text!r} can't be worked out on columns of this schema"
        ) from None


def _design(spec: Any, values: pd.DataFrame, text: str) -> FloatArray:
    from formulaic.errors import DataMismatchWarning

    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error", DataMismatchWarning)
            found = np.asarray(
                spec.get_model_matrix(values, na_action="ignore"), dtype=np.float64
            )
    except DataMismatchWarning:
        raise InputError(
            f"the analysis {text!r} takes numbers as categories that the schema "
            f"doesn't list; C() is for columns with "
            "levels"
        ) from None
    except _troubles():  # its message could quote a value
        raise InputError(
            f"the analysis {text!r} can't be worked out on these records"
        ) from None
    if not np.isfinite(found).all():
        raise InputError(
            f"the analysis {text!r} gives infinite or undefined numbers "
            f"on these records"
        )
    return found
