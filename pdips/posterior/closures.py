"""What a function holds beside its code: small public constants, which are written down, or data, which are refused."""

import ast
import dis
import functools
import inspect
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from re import Pattern
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from pdips.data.schema import Column, Schema
from pdips.errors import InputError

MOST = 50  # Numbers and words that one name may hold: knots, names of columns, labels of levels, but no table
PLAIN = (int, float, complex, str, bytes, type(None), np.generic, Fraction, Decimal, date, Enum, Path, Pattern)
CODE = (BuiltinFunctionType, type, ModuleType, np.ufunc, Schema, Column, type(Ellipsis), type(NotImplemented))
DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
LIBRARIES = ("numpy", "numba", "pytensor", "pymc", "functools", "operator")  # Whose callables are no data
COLLECTIONS = (list, tuple, set, frozenset, range)
STANDARD = sysconfig.get_paths()["stdlib"]
PACKAGE = Path(__file__).parents[1]
READS_NAME = ("LOAD_GLOBAL", "LOAD_NAME")
READS_CELL = ("LOAD_DEREF", "LOAD_CLASSDEREF")


def check_closed(function: Any, what: str, text: str = "") -> dict[str, str]:
    """Refuse a function that holds arrays, tables or other objects which could be records.

    Looked at are the variables that it takes from around it or from its module, default arguments, what
    ``functools.partial`` and methods are bound to, and the same of the functions that it uses, down to libraries.
    """
    return _looked_at(function, what, _written_out(text))[0]


def source_of(function: Any, what: str) -> str:
    """Return the source of a function and of the analyst's own functions that it uses, with the constants they read."""
    held, functions = _looked_at(function, what)
    if any(each.__code__.co_filename == "<string>" for each in functions):
        return ""  # what Python keeps of these is another text: the command line of `python -c`
    try:
        sources = [inspect.cleandoc("\n" + inspect.getsource(each)) for each in functions]
    except (OSError, TypeError):
        return ""
    constants = "\n".join(f"{name} = {value}" for name, value in held.items())
    return "\n\n\n".join([*([constants] if constants else []), *sources]) + "\n" if sources else ""


def _written_out(text: str) -> set[str]:
    """Return the names that a file gives values which are written out in it."""
    found = set()
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign):
            try:
                ast.literal_eval(statement.value)
            except ValueError:
                continue
            found |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return found


def _looked_at(function: Any, what: str, written: Collection[str] = ()) -> tuple[dict[str, str], list[FunctionType]]:
    """Return the small constants that a function holds, as Python writes them, and the analyst's own functions in it.

    Names that are ``written`` out in a recorded file may hold anything.
    """
    constants: dict[str, str] = {}
    functions: dict[str, FunctionType] = {}
    seen: dict[int, Any] = {}  # held, so that no two have one id
    waiting: list[tuple[str, Any]] = [(getattr(function, "__name__", type(function).__name__), function)]
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen and not isinstance(value, PLAIN):
            continue
        seen[id(value)] = value
        if callable(value) and not isinstance(value, CODE):
            value = inspect.unwrap(value)
        inner: list[tuple[str, Any]] = []
        if isinstance(value, functools.partial):
            inner = [(name, each) for each in (value.func, *value.args, *value.keywords.values())]
        elif isinstance(value, MethodType):
            inner = [(name, value.__func__), (name, value.__self__)]
        elif isinstance(value, FunctionType):
            if _is_own(value.__code__.co_filename):
                functions[value.__qualname__] = value
                defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
                inner = [(f"a default of {value.__name__}", each) for each in defaults]
                inner += _names_read(value)
        elif isinstance(value, type) and _is_own_class(value) and not issubclass(value, Enum):
            for attribute, each in vars(value).items():
                code = getattr(each, "__func__", getattr(each, "fget", getattr(each, "func", each)))
                if isinstance(code, FunctionType) or not (attribute.startswith("__") or isinstance(code, DESCRIPTORS)):
                    inner.append((f"{name}.{attribute}", code))
        elif isinstance(value, CODE) or (callable(value) and type(value).__module__.partition(".")[0] in LIBRARIES):
            continue
        else:
            size = 1 if name in written else _size(value)
            held = _held_by(name, value) if size is None else None
            if held is None and (size is None or size > MOST):
                raise InputError(
                    f"{what} reads {name!r} from outside of its code: {type(value).__name__} that could hold records, "
                    "which enter a model as data[...] only. If it is public, write it into the function or the model's "
                    f"file as numbers, lists or small arrays (up to {MOST} numbers or words a name)"
                )
            if held is None:
                constants[name] = repr(value)
            inner = held or []
        waiting += reversed(inner)
    return constants, list(functions.values())


def _held_by(name: str, value: Any) -> list[tuple[str, Any]] | None:
    """Return what an object of the analyst's own, of pdips, or a short collection is made of; None for any other."""
    if _is_own_class(type(value)) and hasattr(value, "__dict__"):
        return [(name, type(value)), *[(f"{name}.{attribute}", each) for attribute, each in vars(value).items()]]
    if is_dataclass(value) and type(value).__module__.partition(".")[0] == "pdips":  # settings, such as a statistic
        return [(f"{name}.{each.name}", getattr(value, each.name)) for each in fields(value)]
    if type(value) in (list, tuple, dict) and len(value) <= MOST:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [(f"{name}[{key!r}]", each) for key, each in items]
    return None


def _names_read(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function's code takes from around it and from its module, by name; ``module.name`` too."""
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a function may refer to what is not defined yet
            cells[name] = cell.cell_contents
    for code in _codes(function.__code__):
        held, path = None, ""
        for step in dis.get_instructions(code):
            if step.opname in READS_NAME and step.argval in function.__globals__:
                held, path = function.__globals__[step.argval], str(step.argval)
            elif step.opname in READS_CELL and step.argval in cells:
                held, path = cells[step.argval], str(step.argval)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(held, ModuleType) and _is_own_module(held):
                held, path = getattr(held, step.argval, None), f"{path}.{step.argval}"
            else:
                held = None
                continue
            if not isinstance(held, ModuleType):
                yield path, held


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _size(value: Any) -> int | None:
    """Return how many numbers and words a constant holds; None for what isn't made of these."""
    if isinstance(value, PLAIN):
        return max(1, len(value) // 100) if isinstance(value, (str, bytes)) else 1
    if isinstance(value, np.ndarray):
        return value.size if value.dtype.kind in "biufcSU" else None
    if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "types", "collections"):
        sizes = [_size(each) for each in (*value.keys(), *value.values())]
    elif isinstance(value, COLLECTIONS):
        sizes = [_size(each) for each in value] if len(value) <= MOST else [MOST + 1]
    else:
        return None
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _is_own_class(kind: type) -> bool:
    module = inspect.getmodule(kind)
    return module is None or _is_own_module(module)


def _is_own_module(module: ModuleType) -> bool:
    return module.__name__ not in sys.builtin_module_names and _is_own(getattr(module, "__file__", None))


def _is_own(file: str | None) -> bool:
    """Whether code is the analyst's, not a library's or Python's own; what has no file was typed."""
    if not file or file.startswith("<"):
        return not file or not file.startswith(("<frozen", "<__array_function__"))
    path = Path(file)
    library = {"site-packages", "dist-packages"} & set(path.parts)
    return not (library or path.is_relative_to(STANDARD) or path.is_relative_to(PACKAGE))
