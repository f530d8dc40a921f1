"""How questions are spelled: names that Python would read otherwise, and what is said
of spellings that other programs have.
"""

import ast
import keyword
import re
from collections.abc import Iterable

from pdips.errors import InputError

# Text, names in backticks, and the sign of an interaction, which Python reads otherwise
PIECES = r"'[^']*'|\"[^\"]*\"|`[^`]+`|:"
NO_WORD = re.compile(r"[A-Za-z_]\w*(\.\w+)+")
OTHER_SUMMARIES = {
    "median": "quantile",
    "std": "sd",
    "average": "mean",
    "sum": "total",
    "cor": "correlation",
    "corr": "correlation",
    "prop": "share",
    "proportion": "share",
}
BESIDE = ("missing", "weights", "family", "target")
OTHER_FUNCTIONS = {
    "C": "a column with levels needs no C(...): write its name alone",
    "factor": "a column with levels needs no factor(...): write its name alone",
    "scale": "numbers aren't scaled by what they come to: divide, as in age / 10",
    "center": "numbers aren't centred by what they come to: subtract, as in age - 40",
    "poly": "write powers one by one, as in age + age ** 2",
}


def pieces(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of what isn't read as Python does: text, names in backticks, the
    sign of an interaction, and columns such as ``flc.grp`` and ``lambda``.
    """
    odd = [name for name in names if NO_WORD.fullmatch(name) or keyword.iskeyword(name)]
    if not odd:
        return re.compile(PIECES)
    either = "|".join(map(re.escape, sorted(odd, key=len, reverse=True)))
    return re.compile(rf"{PIECES}|(?<![\w.])(?:{either})(?![\w.(])")


def refuse_other_spellings(node: ast.expr) -> None:
    """Refuse what other programs write otherwise, with the way it is written here."""
    for part in ast.walk(node):
        match part:
            case ast.BinOp(op=ast.BitXor()):
                raise InputError("powers are written with **, as in age ** 2")
            case ast.Compare(ops=[_, _, *_]):
                raise InputError(
                    "comparisons stand in brackets, joined by & or |: (age >= 60) & "
                    "(age < 70)"
                )
            case ast.Call(func=ast.Attribute(attr=name)) if name in ("log", "sqrt"):
                raise InputError(f"functions have no prefix: write {name}(...)")
            case ast.Call(func=ast.Name(id=name)) if name in OTHER_FUNCTIONS:
                raise InputError(OTHER_FUNCTIONS[name])


def refuse_setting(name: str | None, columns: Iterable[str | None]) -> None:
    """Refuse a setting of a summary, with where it is written or what it may mean."""
    if name in BESIDE:
        raise InputError(
            f'{name} is written beside the question: ask("...", {name}=...)'
        )
    if name in columns:
        raise InputError(f"a comparison is written ==, as in share({name} == ...)")
    raise InputError(
        f"{name!r} is no setting of a summary; it has by, as in "
        f"\"mean(wage, by=['region'])\""
    )


def text_without_quotes(node: ast.expr, columns: Iterable[str]) -> str:
    """Return what is said where text that a column is compared with may lack quotes."""
    known = {*columns}
    for part in ast.walk(node):
        match part:
            case ast.Compare(comparators=[ast.Name(id=name)]) if name not in known:
                return f"text stands in quotes, as in == '{name}'"
    return ""
