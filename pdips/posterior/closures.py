"""What a function holds beside its code: small public constants, which are written
down, or data, which are refused.
"""

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

# Numbers and words that one name may hold: knots, names of columns, labels of levels,
# but no table
MOST = 50
PLAIN = (
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    np.generic,
    Fraction,
    Decimal,
    date,
    Enum,
    Path,
    Pattern,
)
CODE = (
    BuiltinFunctionType,
    type,
    ModuleType,
    np.ufunc,
    Schema,
    Column,
    type(Ellipsis),
    type(NotImplemented),
)
DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
# Whose callables are no data
LIBRARIES = ("numpy", "numba", "pytensor", "pymc", "functools", "operator")
COLLECTIONS = (list, tuple, set, frozenset, range)
STANDARD = sysconfig.get_paths()["stdlib"]
PACKAGE = Path(__file__).parents[1]
READS_NAME = ("LOAD_GLOBAL", "LOAD_NAME")
READS_CELL = ("LOAD_DEREF", "LOAD_CLASSDEREF")
READS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
# Modules of mappings that hold nothing beside their keys and values
MAPPINGS = ("builtins", "types", "collections")

# A name, and what it holds
Held = tuple[str, Any]


def check_closed(function: Any, what: str, text: str = "") -> dict[str, str]:
    """Refuse a function that holds arrays, tables or other objects which could be
    records.

    Looked at are the variables that it takes from around it or from its module, default
    arguments, what ``functools.partial`` and methods are bound to, and the same of the
    functions that it uses, down to libraries.
    """
    return _looked_at(function, what, _written_out(text))[0]


def source_of(function: Any, what: str) -> str:
    """Return the source of a function and of the analyst's own functions that it uses,
    with the constants they read.
    """
    held, functions = _looked_at(function, what)
    if any(own.__code__.co_filename == "<string>" for own in functions):
        # what Python keeps of these is another text: the command line of `python -c`
        return ""
    try:
        texts = ["\n" + inspect.getsource(own) for own in functions]
    except (OSError, TypeError):
        return ""
    if not texts:
        return ""
    sources = [inspect.cleandoc(text) for text in texts]
    if held:
        constants = [f"{name} = {value}" for name, value in held.items()]
        sources.insert(0, "\n".join(constants))
    return "\n\n\n".join(sources) + "\n"


def _written_out(text: str) -> set[str]:
    """Return the names that a file gives values which are written out in it."""
    names = set()
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Assign):
            continue
        try:
            ast.literal_eval(statement.value)
        except ValueError:
            continue
        for target in statement.targets:
            if isinstance(target, ast.Name):
                names.add(target.id)
    return names


def _looked_at(
    function: Any, what: str, written: Collection[str] = ()
) -> tuple[dict[str, str], list[FunctionType]]:
    """Return the small constants that a function holds, as Python writes them, and the
    analyst's own functions in it.

    Names that are ``written`` out in a recorded file may hold anything.
    """
    constants: dict[str, str] = {}
    functions: dict[str, FunctionType] = {}
    seen: dict[int, Any] = {}  # held, so that no two have one id
    first = getattr(function, "__name__", type(function).__name__)
    waiting: list[Held] = [(first, function)]
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen and not isinstance(value, PLAIN):
            continue
        seen[id(value)] = value
        if callable(value) and not isinstance(value, CODE):
            value = inspect.unwrap(value)
        if isinstance(value, FunctionType) and _is_own(value.__code__.co_filename):
            functions[value.__qualname__] = value
        inner = _held_by_code(name, value)
        if inner is None:
            size = 1 if name in written else _size(value)
            inner = _held_by(name, value) if size is None else None
            if inner is None:
                _check_size(name, value, size, what)
                constants[name] = repr(value)
        waiting += reversed(inner or [])
    return constants, list(functions.values())


def _check_size(name: str, value: Any, size: int | None, what: str) -> None:
    """Refuse what is no small constant."""
    if size is None or size > MOST:
        raise InputError(
            f"{what} reads {name!r} from outside of its code: "
            f"{type(value).__name__} that could hold records, "
            "which enter a model as data[...] only. If it is public, write "
            "it into the function or the model's "
            f"file as numbers, lists or small arrays (up to {MOST} numbers "
            f"or words a name)"
        )


def _held_by_code(name: str, value: Any) -> list[Held] | None:
    """Return what a function, a class or what is bound to one holds; nothing of a
    library's, and None for what is no code.
    """
    if isinstance(value, functools.partial):
        held = (value.func, *value.args, *value.keywords.values())
        return [(name, part) for part in held]
    if isinstance(value, MethodType):
        return [(name, value.__func__), (name, value.__self__)]
    if isinstance(value, FunctionType):
        return _held_by_function(value)
    if isinstance(value, type) and _is_own_class(value) and not issubclass(value, Enum):
        return _held_by_class(name, value)
    is_library = type(value).__module__.partition(".")[0] in LIBRARIES
    if isinstance(value, CODE) or (callable(value) and is_library):
        return []
    return None


def _held_by_function(function: FunctionType) -> list[Held]:
    """Return the defaults and the names read of a function of the analyst's own."""
    if not _is_own(function.__code__.co_filename):
        return []
    defaults = [*(function.__defaults__ or ())]
    defaults += (function.__kwdefaults__ or {}).values()
    name = f"a default of {function.__name__}"
    held = [(name, default) for default in defaults]
    return [*held, *_names_read(function)]


def _held_by_class(name: str, kind: type) -> list[Held]:
    """Return the functions and the attributes of a class of the analyst's own."""
    held = []
    for attribute, value in vars(kind).items():
        # of a class method, a property, a cached property
        for wrapped in ("__func__", "fget", "func"):
            if hasattr(value, wrapped):
                value = getattr(value, wrapped)
                break
        is_special = attribute.startswith("__") or isinstance(value, DESCRIPTORS)
        if isinstance(value, FunctionType) or not is_special:
            held.append((f"{name}.{attribute}", value))
    return held


def _held_by(name: str, value: Any) -> list[Held] | None:
    """Return what an object of the analyst's own, of pdips, or a short collection is
    made of; None for any other.
    """
    if _is_own_class(type(value)) and hasattr(value, "__dict__"):
        attributes = vars(value).items()
        held = [(f"{name}.{attribute}", inner) for attribute, inner in attributes]
        return [(name, type(value)), *held]
    # settings, such as a statistic
    if is_dataclass(value) and type(value).__module__.partition(".")[0] == "pdips":
        names = [field.name for field in fields(value)]
        return [(f"{name}.{inner}", getattr(value, inner)) for inner in names]
    if type(value) in (list, tuple, dict) and len(value) <= MOST:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [(f"{name}[{key!r}]", item) for key, item in items]
    return None


def _names_read(function: FunctionType) -> Iterator[Held]:
    """Yield what a function's code takes from around it and from its module, by name;
    ``module.name`` too.
    """
    cells = _cells_of(function)
    for code in _codes(function.__code__):
        held = None
        path = ""
        for step in dis.get_instructions(code):
            name = step.argval
            if step.opname in READS_NAME and name in function.__globals__:
                held = function.__globals__[name]
                path = str(name)
            elif step.opname in READS_CELL and name in cells:
                held = cells[name]
                path = str(name)
            elif step.opname in READS_ATTRIBUTE and _is_own_module(held):
                held = getattr(held, name, None)
                path = f"{path}.{name}"
            else:
                held = None
                continue
            if not isinstance(held, ModuleType):
                yield path, held


def _cells_of(function: FunctionType) -> dict[str, Any]:
    names = function.__code__.co_freevars
    cells = {}
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a function may refer to what is not defined yet
            cells[name] = cell.cell_contents
    return cells


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _size(value: Any) -> int | None:
    """Return how many numbers and words a constant holds; None for what isn't made of
    these.
    """
    if isinstance(value, PLAIN):
        if isinstance(value, (str, bytes)):
            return max(1, len(value) // 100)
        return 1
    if isinstance(value, np.ndarray):
        return value.size if value.dtype.kind in "biufcSU" else None
    parts: Collection[Any]
    if isinstance(value, Mapping) and type(value).__module__ in MAPPINGS:
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, COLLECTIONS):
        if len(value) > MOST:
            return MOST + 1
        parts = value
    else:
        return None
    sizes = [_size(part) for part in parts]
    if any(size is None for size in sizes):
        return None
    return sum(filter(None, sizes))


def _is_own_class(kind: type) -> bool:
    module = inspect.getmodule(kind)
    return module is None or _is_own_module(module)


def _is_own_module(module: Any) -> bool:
    if not isinstance(module, ModuleType):
        return False
    file = getattr(module, "__file__", None)
    return module.__name__ not in sys.builtin_module_names and _is_own(file)


def _is_own(file: str | None) -> bool:
    """Whether code is the analyst's, not a library's or Python's own; what has no file
    was typed.
    """
    if not file or file.startswith("<"):
        return not file or not file.startswith(("<frozen", "<__array_function__"))
    path = Path(file)
    is_library = {"site-packages", "dist-packages"} & set(path.parts)
    return not (
        is_library or path.is_relative_to(STANDARD) or path.is_relative_to(PACKAGE)
    )
