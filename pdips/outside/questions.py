"""The grammar of questions to a public folder: formulas, and summaries by group. They
are read, and never evaluated as Python.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NoReturn, Self, get_args

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.column import Column, has_number_levels
from pdips.data.schema import Schema
from pdips.errors import InputError, hint
from pdips.outside.spellings import (
    OTHER_SUMMARIES,
    PIECES,
    pieces,
    refuse_other_spellings,
    refuse_setting,
    text_without_quotes,
)

type SummaryKind = Literal[
    "mean", "share", "total", "count", "quantile", "sd", "correlation"
]
type Terms = tuple[list[str], FloatArray]
"""Names of the terms that stand for a factor, and their values for each record, or each
cell, shape (records, terms).
"""

SUMMARIES: tuple[str, ...] = get_args(SummaryKind.__value__)
OF_RECORDS = {"max", "min", "first", "head", "tail", "row", "record", "records", "list"}
MOST_LETTERS = 2_000  # of a question
MOST_FACTORS = 6  # joined by ``*``: they are all combinations
FORMULA_HELP = (
    "a formula names columns, as in 'income ~ age * sex + log(wage)': their levels may "
    "be compared with ==, !=, in, <, >, and numbers taken by log, sqrt, exp, **"
)
SUMMARY_HELP = (
    "ask a formula, as 'income ~ age + sex', or a summary, as \"mean(wage, "
    "by=['sex'])\", share, total, count, quantile(wage, .9), median, sd or correlation"
)
COMPARED_WITH = "a column is compared with a level, a number, or a list of them"
FUNCTIONS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "log": np.log,
    "log10": np.log10,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "exp": np.exp,
}
ARITHMETIC: dict[type[ast.operator], Callable[..., FloatArray]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
COMPARISONS: dict[type[ast.cmpop], Callable[..., BoolArray]] = {
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}


@dataclass(frozen=True, eq=False)
class ColumnValues:
    """A column of some records, or of cells: the number of each level, missing last,
    and numbers, NaN where they are missing; None for what the column hasn't.
    """

    codes: IntArray | None
    numbers: FloatArray | None


def is_number(column: Column) -> bool:
    """Whether a column's values are numbers; dates are none."""
    if column.is_categorical:
        return has_number_levels(column)
    return column.type == "number"


@dataclass(frozen=True, kw_only=True, eq=False)
class Expression:
    """What is taken of a record: a column, a number made of one, or a condition.

    Parameters
    ----------
    text : str
        As it was written; the name of its term.
    node : ast.expr
        Its parts, of the kinds that the grammar has.
    columns : mapping of str to Column
        That it reads, by the names in ``node``.
    """

    text: str
    node: ast.expr
    columns: Mapping[str, Column]

    @property
    def is_plain(self) -> bool:
        """Whether it is a column as it is."""
        return isinstance(self.node, ast.Name)

    @property
    def is_levels(self) -> bool:
        """Whether it is a column whose levels have a term each, but for the first; a
        number with two levels is one.
        """
        if not isinstance(self.node, ast.Name):
            return False
        column = self.columns[self.text]
        few = column.levels is not None and len(column.levels) <= 2
        return few or not is_number(column)

    @property
    def is_condition(self) -> bool:
        """Whether it is true or false of a record."""
        return _is_condition(self.node)

    @property
    def constants(self) -> list[float]:
        """The numbers that it compares columns of numbers with."""
        compared = (
            node for node in ast.walk(self.node) if isinstance(node, ast.Compare)
        )
        constants = list[float]()
        for node in compared:
            is_plain = isinstance(node.left, ast.Name)
            others = _constants(node.comparators[0]) if is_plain else []
            constants += [float(each) for each in others if not isinstance(each, str)]
        return constants

    def values(self, records: Mapping[str, ColumnValues]) -> FloatArray:
        """Return the number of each record, 0 or 1 for a condition."""
        with np.errstate(all="ignore"):
            return np.asarray(self._value(self.node, records), dtype=np.float64)

    def terms(self, records: Mapping[str, ColumnValues]) -> Terms:
        """Return the terms that stand for it, as Bambi names them."""
        if not self.is_levels:
            return [self.text], self.values(records)[:, None]
        names = self.columns[self.text].names()
        codes = np.asarray(records[self.text].codes)
        held = np.equal.outer(codes, np.arange(1, len(names)))
        return [f"{self.text}[{name}]" for name in names[1:]], held.astype(np.float64)

    def _value(self, node: ast.expr, records: Mapping[str, ColumnValues]) -> FloatArray:
        match node:
            case ast.Name(id=name):
                return np.asarray(records[name].numbers)
            case ast.Constant(value=int() | float() as constant):
                return np.array(constant, dtype=np.float64)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self._value(inner, records)
            case ast.UnaryOp(operand=inner):
                return 1 - self._value(inner, records)
            case ast.Call(func=ast.Name(id=name), args=[inner]):
                value = self._value(inner, records)
                return value if name == "I" else FUNCTIONS[name](value)
            case ast.BoolOp(op=op, values=parts):
                inside = [self._value(part, records) for part in parts]
                join = np.minimum if isinstance(op, ast.And) else np.maximum
                return np.asarray(join.reduce(np.broadcast_arrays(*inside)))
            case ast.BinOp(left=left, op=sign, right=right):
                first = self._value(left, records)
                return ARITHMETIC[type(sign)](first, self._value(right, records))
            case ast.Compare(left=left, ops=[comparison], comparators=[other]):
                return self._compared(left, comparison, other, records)
        raise InputError(FORMULA_HELP)

    def _compared(
        self,
        left: ast.expr,
        comparison: ast.cmpop,
        other: ast.expr,
        records: Mapping[str, ColumnValues],
    ) -> FloatArray:
        constants = _constants(other)
        if isinstance(left, ast.Name) and not is_number(self.columns[left.id]):
            names = self.columns[left.id].names()
            own = np.asarray(records[left.id].codes, dtype=np.float64)
            wanted = [float(names.index(str(each))) for each in constants]
        else:
            own = self._value(left, records)
            wanted = [float(each) for each in constants]
        if isinstance(comparison, ast.In | ast.NotIn):
            held = np.isin(own, wanted)
            is_true = held if isinstance(comparison, ast.In) else ~held
        else:
            is_true = COMPARISONS[type(comparison)](own, wanted[0])
        return is_true.astype(np.float64)


def _arguments(node: ast.expr) -> list[ast.expr]:
    """Return what a number is made of, by arithmetic or a function that is known."""
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        return [node.left, node.right]
    match node:
        case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]):
            if name in FUNCTIONS or name == "I":
                return [inner]
    raise InputError(FORMULA_HELP)


def _is_condition(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not | ast.Invert)
    return isinstance(node, ast.Compare | ast.BoolOp)


def _elements(node: ast.expr) -> list[ast.expr]:
    """Return what a list holds, or what stands alone."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return node.elts
    return [node]


def _constants(node: ast.expr) -> list[str | float]:
    """Return what a column is compared with."""
    constants: list[str | float] = []
    for part in _elements(node):
        match part:
            case ast.Constant(value=str() | int() | float() as value):
                constants.append(value)
            case ast.UnaryOp(
                op=ast.USub(), operand=ast.Constant(value=int() | float() as value)
            ):
                constants.append(-value)
            case _:
                raise InputError(COMPARED_WITH)
    if not constants:
        raise InputError(COMPARED_WITH)
    return constants


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Reads the parts of a question, for a schema."""

    schema: Schema
    quoted: Mapping[str, str]  # names in backticks, by what stands for them

    @classmethod
    def parsed(cls, text: str, schema: Schema) -> tuple[Self, ast.expr]:
        """Return a reader, and the syntax tree of a text that it reads."""
        quoted = dict[str, str]()

        def as_python(piece: re.Match[str]) -> str:
            part = piece[0]
            if part == ":":
                return "@"  # as strong as ``*``, and nothing else in the grammar
            if part.startswith(("'", '"')):
                return part
            name = f"column_{len(quoted)}_"
            quoted[name] = part.strip("`")
            return name

        if len(text) > MOST_LETTERS:
            raise InputError(f"a question has at most {MOST_LETTERS:,} letters")
        try:
            spelled = pieces(schema.columns).sub(as_python, text)
            tree = ast.parse(spelled.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise InputError(
                f"the question can't be read: {SUMMARY_HELP}; {FORMULA_HELP}"
            ) from None
        refuse_other_spellings(tree.body)
        unquoted = text_without_quotes(tree.body, [*schema.columns, *quoted])
        if unquoted:
            raise InputError(unquoted)
        return cls(schema=schema, quoted=quoted), tree.body

    def expression(self, node: ast.expr) -> Expression:
        """Return an expression, or refuse what the grammar doesn't have."""
        columns = dict[str, Column]()
        named = self._named(node, columns)
        self._check(named, columns)
        if not columns:
            raise InputError(FORMULA_HELP)
        text = named.id if isinstance(named, ast.Name) else ast.unparse(named)
        return Expression(text=text, node=named, columns=columns)

    def _named(self, node: ast.expr, columns: dict[str, Column]) -> ast.expr:
        """Return a node with the columns' own names, which are noted."""
        signs = (ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context)
        for field, value in ast.iter_fields(node):
            if isinstance(node, ast.Call) and field == "func":
                continue
            several = isinstance(value, list)
            for place, part in enumerate(value if several else [value]):
                if not isinstance(part, ast.expr) or isinstance(part, signs):
                    continue
                named = self._named(part, columns)
                if several:
                    value[place] = named
                else:
                    setattr(node, field, named)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            join = ast.And() if isinstance(node.op, ast.BitAnd) else ast.Or()
            return ast.BoolOp(op=join, values=[node.left, node.right])
        if isinstance(node, ast.Name):
            node = ast.Name(id=self.column(node.id), ctx=ast.Load())
            columns[node.id] = self.schema.columns[node.id]
        return node

    def column(self, name: str) -> str:
        """Return the name of a column, or say which there are."""
        own = self.quoted.get(name, name)
        if own not in self.schema.columns:
            names = ", ".join(self.schema.columns)
            raise InputError(
                f"{own!r} is no column of the release{hint(own, self.schema.columns)}; "
                f"it has {names}"
            )
        return own

    def _check(self, node: ast.expr, columns: Mapping[str, Column]) -> None:
        """Refuse what the grammar doesn't have, and numbers made of text."""
        match node:
            case ast.Name() | ast.Constant(value=int() | float()):
                return
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                self._check_number(inner, columns)
            case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=inner):
                self._check_condition(inner, columns)
            case ast.BoolOp(values=parts):
                for part in parts:
                    self._check_condition(part, columns)
            case ast.Compare(left=left, ops=[_], comparators=[other]):
                self._check_comparison(node, left, other, columns)
            case _:
                for part in _arguments(node):
                    self._check_number(part, columns)

    def _check_condition(self, node: ast.expr, columns: Mapping[str, Column]) -> None:
        if not _is_condition(node):
            raise InputError(
                "'and', 'or' and 'not' take comparisons, each in brackets; groups "
                "(1 | column) take `pdips answer`"
            )
        self._check(node, columns)

    def _check_number(self, node: ast.expr, columns: Mapping[str, Column]) -> None:
        self._check(node, columns)
        if isinstance(node, ast.Name) and not is_number(columns[node.id]):
            raise InputError(
                f"{node.id!r} isn't a number: compare it with a level, as in "
                f"{node.id} == {columns[node.id].names()[0]!r}"
            )
        if _is_condition(node):
            raise InputError("a condition is a term of its own, in brackets")

    def _check_comparison(
        self,
        node: ast.Compare,
        left: ast.expr,
        other: ast.expr,
        columns: Mapping[str, Column],
    ) -> None:
        constants = _constants(other)
        comparison = node.ops[0]
        is_member = isinstance(comparison, ast.In | ast.NotIn)
        if type(comparison) not in COMPARISONS and not is_member:
            raise InputError(FORMULA_HELP)
        if is_member != isinstance(other, ast.List | ast.Tuple | ast.Set):
            raise InputError("'in' takes a list of levels, other comparisons take one")
        if isinstance(left, ast.Name) and not is_number(columns[left.id]):
            names = columns[left.id].names()
            if not is_member and not isinstance(comparison, ast.Eq | ast.NotEq):
                raise InputError(
                    f"{left.id!r} has levels: compare it with ==, != or in"
                )
            for each in map(str, constants):
                if each not in names:
                    raise InputError(
                        f"{each!r} is no level of {left.id!r}{hint(each, names)}; it "
                        f"has {', '.join(names)}"
                    )
            return
        self._check_number(left, columns)
        if any(isinstance(each, str) for each in constants):
            raise InputError(f"{ast.unparse(left)!r} is a number: compare it with one")

    def terms(self, node: ast.expr) -> list[tuple[Expression, ...]]:
        """Return the terms on the right of a formula: factors whose product each is."""
        match node:
            case ast.Constant(value=1):
                return []
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return [*self.terms(left), *self.terms(right)]
            case ast.BinOp(op=ast.Mult() | ast.MatMult() as sign):
                factors = list(_joined(node, type(sign)))
                own = [self.expression(factor) for factor in factors]
                if len(own) > MOST_FACTORS:
                    raise InputError(f"an interaction has at most {MOST_FACTORS} parts")
                if isinstance(sign, ast.MatMult):
                    return [tuple(own)]
                sizes = range(1, len(own) + 1)
                return [some for size in sizes for some in combinations(own, size)]
            case ast.BinOp(op=ast.Sub()) | ast.Constant():
                raise InputError("a formula's intercept stays: write no 0 and no -")
        return [(self.expression(node),)]


def _joined(node: ast.expr, sign: type[ast.operator]) -> Iterator[ast.expr]:
    """Yield what one sign joins."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.MatMult):
        if not isinstance(node.op, sign):
            raise InputError("write * and : in terms of their own, joined by +")
        yield from _joined(node.left, sign)
        yield from _joined(node.right, sign)
    else:
        yield node


@dataclass(frozen=True, kw_only=True, eq=False)
class Formula:
    """A regression: the outcome, and terms in the order of Bambi's coefficients.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={"sex": {"levels": ["f", "m"]}, "pay": {"lower": 0, "upper": 9}}
    ... )
    >>> read = Formula.read("sex ~ pay + log(pay + 1)", schema)
    >>> [factor.text for factor in read.factors]
    ['pay', 'log(pay + 1)']
    """

    text: str
    outcome: Expression
    terms: tuple[tuple[Expression, ...], ...]

    @classmethod
    def read(cls, text: str, schema: Schema) -> Self:
        """Read ``"outcome ~ term + term"``.

        Raises
        ------
        InputError
            If it isn't in the grammar, or names what the release doesn't have.
        """
        left, tilde, right = text.partition("~")
        if not tilde or "~" in right:
            raise InputError(FORMULA_HELP)
        outcome_reader, outcome_node = _Reader.parsed(left, schema)
        reader, node = _Reader.parsed(right, schema)
        outcome = outcome_reader.expression(outcome_node)
        unique = dict[frozenset[str], tuple[Expression, ...]]()
        for term in reader.terms(node):
            unique.setdefault(frozenset(factor.text for factor in term), term)
        terms = tuple(sorted(unique.values(), key=len))
        formula = cls(text=text, outcome=outcome, terms=terms)
        formula._check()
        return formula

    def _check(self) -> None:
        alone = {term[0].text for term in self.terms if len(term) == 1}
        read = {name for factor in self.factors for name in factor.columns}
        if {*self.outcome.columns} & read:
            if len(alone) < len(self.terms):
                raise InputError("the outcome can't be in an interaction")
            raise InputError("a formula needs predictors that differ from the outcome")
        if not self.terms:
            raise InputError("a formula needs an outcome and one or more predictors")
        for factor in self.factors:
            if factor.text not in alone:
                raise InputError(
                    f"{factor.text!r} is in an interaction, so it must be in the "
                    f"formula by itself too"
                )
            if len(factor.columns) > 1:
                raise InputError(
                    f"{factor.text!r} reads several columns: a term of a formula reads "
                    f"one, and terms are joined by * or :"
                )
        levels = self.outcome.columns.get(self.outcome.text)
        if self.outcome.is_levels and levels and levels.n_levels > 2:
            raise InputError(
                f"{self.outcome.text!r} has more than two levels: an outcome is a "
                f"number, or has two levels, as {self.outcome.text} == "
                f"{levels.names()[0]!r} has"
            )

    @property
    def factors(self) -> list[Expression]:
        """Of all terms, each once."""
        by_text = {factor.text: factor for term in self.terms for factor in term}
        return list(by_text.values())

    @property
    def interactions(self) -> list[tuple[str, ...]]:
        """The terms of several factors."""
        several = [term for term in self.terms if len(term) > 1]
        return [tuple(factor.text for factor in term) for term in several]

    @property
    def columns(self) -> dict[str, Column]:
        """That it reads, the outcome's first."""
        read = dict(self.outcome.columns)
        for factor in self.factors:
            read |= factor.columns
        return read

    @property
    def joined(self) -> int:
        """How many columns it takes together at most."""
        sizes = [len(self.outcome.columns) + len(term) for term in self.terms]
        return max(sizes) if self.interactions else 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Summary:
    """A number of some records, or one for each group: a mean, a share, a total, a
    count, a quantile, a standard deviation (``sd``) or a correlation.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={"sex": {"levels": ["f", "m"]}, "pay": {"lower": 0, "upper": 9}}
    ... )
    >>> Summary.read("quantile(pay, .9, by=['sex'])", schema).by
    ('sex',)
    """

    text: str
    kind: SummaryKind
    of: tuple[Expression, ...]
    by: tuple[str, ...]
    schema: Schema
    part: float | None = None  # of the records that are below a quantile

    @classmethod
    def read(cls, text: str, schema: Schema) -> Self:
        """Read ``"mean(number, by=['column'])"``.

        Raises
        ------
        InputError
            If it isn't in the grammar, or names what the release doesn't have.
        """
        reader, node = _Reader.parsed(text, schema)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            _refuse_records(node)
        name = node.func.id
        arguments = node.args
        part = 0.5 if name == "median" else None
        kind = OTHER_SUMMARIES.get(name, name)
        if name in OF_RECORDS:
            _refuse_records(node)
        if kind not in SUMMARIES:
            guess = hint(name, (*SUMMARIES, "median"))
            raise InputError(f"{name!r} is no summary{guess}; {SUMMARY_HELP}")
        if name == "quantile":
            part = _part(arguments[1:])
            arguments = arguments[:1]
        by = _by(node.keywords, reader)
        of = tuple(reader.expression(argument) for argument in arguments)
        summary = cls(
            text=text,
            kind=kind,  # type: ignore[arg-type]
            of=of,
            by=by,
            schema=schema,
            part=part,
        )
        summary._check()
        return summary

    def _check(self) -> None:
        n_wanted = {"correlation": {2}, "count": {0, 1}}.get(self.kind, {1})
        if len(self.of) not in n_wanted:
            raise InputError(f"{self.kind} takes {max(n_wanted)} of a record's numbers")
        if self.kind in ("mean", "total", "quantile", "sd", "correlation"):
            for each in self.of:
                if each.is_plain and not is_number(each.columns[each.text]):
                    names = each.columns[each.text].names()
                    raise InputError(
                        f"{each.text!r} isn't a number: ask for "
                        f"share({each.text} == {names[0]!r})"
                    )
        if self.kind == "count" and self.of and not self.of[0].is_condition:
            raise InputError("count takes a condition, as in count(sex == 'male')")
        is_part = all(each.is_condition or each.is_plain for each in self.of)
        if self.kind == "share" and not is_part:
            raise InputError("share takes a column or a condition")
        for name in self.by:
            if name in self.measured:
                raise InputError(f"{name!r} is what is asked for: it makes no groups")
            column = self.schema.columns[name]
            if not column.is_categorical and not column.is_binned:
                raise InputError(
                    f"{name!r} has no levels or bins to group by: compare it with a "
                    f"number, as in share({name} > ...)"
                )

    @property
    def measured(self) -> dict[str, Column]:
        """The columns that it reads beside those of its groups."""
        read = dict[str, Column]()
        for each in self.of:
            read |= each.columns
        return read

    @property
    def columns(self) -> dict[str, Column]:
        """All columns that it reads."""
        return self.measured | {name: self.schema.columns[name] for name in self.by}

    @property
    def joined(self) -> int:
        """How many columns it takes together."""
        return len(self.columns)


type Question = Formula | Summary


def read_question(text: str, schema: Schema) -> Question:
    """Read a formula or a summary, in the grammar of ``docs/asking.md``."""
    if not isinstance(text, str):
        raise InputError(f"a question is text: {SUMMARY_HELP}")
    if "~" in re.sub(PIECES, "", text):
        return Formula.read(text, schema)
    return Summary.read(text, schema)


def _refuse_records(node: ast.expr) -> NoReturn:
    """Refuse a question that isn't about many records."""
    if isinstance(node, ast.Call | ast.Subscript | ast.Attribute):
        raise InputError(
            "this asks for individual records, and what is published is of many: "
            f"{SUMMARY_HELP}"
        )
    raise InputError(SUMMARY_HELP)


def _part(arguments: Sequence[ast.expr]) -> float:
    match arguments:
        case [ast.Constant(value=int() | float() as part)] if 0 < part < 1:
            return float(part)
    raise InputError("quantile takes a part between 0 and 1, as in quantile(wage, .9)")


def _by(keywords: Sequence[ast.keyword], reader: _Reader) -> tuple[str, ...]:
    names = list[str]()
    for keyword in keywords:
        if keyword.arg != "by":
            refuse_setting(keyword.arg, reader.schema.columns)
        for part in _elements(keyword.value):
            match part:
                case ast.Name(id=name) | ast.Constant(value=str() as name):
                    names.append(reader.column(name))
                case _:
                    raise InputError("by takes names of columns, as in by=['region']")
    if len({*names}) < len(names):
        raise InputError("by names a column twice")
    return tuple(names)
