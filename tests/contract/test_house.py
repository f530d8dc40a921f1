"""The rules of the house: sizes, names, one meaning a class name, no import circle;
exceptions only become fewer.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tables import cases

from pdips.registry import HOMES

ROOT = Path(__file__).parents[2]
LIBRARY = "pdips"
CODE = (LIBRARY, "papers/pdips_papers")
MOST_FILES, MOST_LINES = 20, 700
NO_NOUN = set(
    re.findall(
        r"\w+",
        """
        asked built closer done drawn evaluated found given held judging looked made measured nobody
        opened pictured predicted reading released seen settling shown spent taken told used wanted words
        """,  # noqa: E501
    )
)
"""Participles, pronouns and the like, which say mood rather than matter: no module, and
no class alone.
"""

EXCEPTIONS: dict[str, set[str]] = {
    "long_files": {"papers/pdips_papers/modips/fertility.py", "pdips/mechanism.py"},
    "crowded_folders": set(),
    "ambiguous_classes": set(),
    "no_nouns": {"Drawn"},
    "large_functions": {
        # what a user calls, with options by name
        "models/kng_quantile_regression.py:lines_model",
        "models/kng_quantile_regression.py:release_lines",
        "pdips/answering.py:answer",
        "pdips/quantile/pymc_step.py:knorm_gradient",
        "pdips/sampling.py:sample",
        "pdips/synthesis.py:synthesize",
        # a kernel: moments of a normal model with noise, whose symbols are its proof's
        "pdips/statistics/noisy_model.py:normal",
    },
    "unknown_documents": set(),
    # where mechanisms live
    "facts_by_name": {"pdips/registry.py"},
    "circles": set(),
}
"""What breaks a rule today, by rule. Whoever mends one takes it out, or the test fails;
none is added.
"""


def files(root: Path, *folders: str) -> Iterator[tuple[str, Path]]:
    """Yield the Python files of some folders, with the path from the root."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix(), path


def n_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def long_files(root: Path) -> set[str]:
    """No file has more than 700 lines."""
    return {name for name, path in files(root, *CODE) if n_lines(path) > MOST_LINES}


def crowded_folders(root: Path) -> set[str]:
    """No folder has more than 20 modules."""
    counts = Counter(
        Path(name).parent.as_posix()
        for name, path in files(root, *CODE)
        if path.stem != "__init__"
    )
    return {folder for folder, count in counts.items() if count > MOST_FILES}


def public_classes(root: Path) -> Iterator[tuple[str, str]]:
    for name, path in files(root, LIBRARY):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, name


def ambiguous_classes(root: Path) -> set[str]:
    """A public class name means one thing in the package."""
    return {
        name
        for name, count in Counter(name for name, _ in public_classes(root)).items()
        if count > 1
    }


def no_nouns(root: Path) -> set[str]:
    """A module or class is called by a noun of the field."""
    modules = {
        name
        for name, path in files(root, *CODE)
        if NO_NOUN & set(path.stem.lower().split("_"))
    }
    return modules | {
        name for name, _ in public_classes(root) if name.lower() in NO_NOUN
    }


def stray_aliases(root: Path) -> set[str]:
    """Aliases of arrays of floats, integers and truth values are in ``pdips/arrays.py``
    alone.
    """
    alias = re.compile(
        r"^(type )?\w+ = "
        r"(np\.typing\.)?NDArray\[np\.(float64|int64|bool_)\]",
        re.MULTILINE,
    )
    found = {
        name
        for name, path in files(root, *CODE)
        if alias.search(path.read_text(encoding="utf-8"))
    }
    return found - {"pdips/arrays.py"}


def packed_assignments(root: Path) -> set[str]:
    """A tuple is assigned to a tuple only to swap values: one statement a line."""
    return {
        name
        for name, path in files(root, *CODE)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Assign) and is_packed(node)
    }


def is_packed(node: ast.Assign) -> bool:
    """Whether values are put side by side of which none reads what another changes."""
    [target, *others] = node.targets
    both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
    if others or not both:
        return False
    changed = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
    read = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
    return not changed & read


def large_functions(root: Path) -> set[str]:
    """A function has at most 250 nodes of syntax, 20 local names and 8 parameters."""
    return {
        f"{name}:{node.name}"
        for name, path in files(root, *CODE, "models")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef) and is_large(node)
    }


def is_large(function: ast.FunctionDef) -> bool:
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    n_nodes = sum(isinstance(node, (ast.expr, ast.stmt)) for node in nodes)
    names = {
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    given = function.args
    n_parameters = len(given.posonlyargs + given.args + given.kwonlyargs)
    return n_nodes > 250 or len(names) > 20 or n_parameters > 8


def dense_statements(root: Path) -> set[str]:
    """A statement has at most 25 expressions outside of literals; a form that is filled
    in by name has so many in each of its fields.
    """
    return {
        name
        for name, path in files(root, *CODE, "models")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.stmt)
        and not isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and max(n_expressions(node)) > 25
    }


def n_expressions(statement: ast.stmt) -> Iterator[int]:
    """Yield how many expressions a statement has, without those of the statements and
    literals in it, and how many each field of a form has.
    """
    literals = (ast.Dict, ast.List, ast.Set, ast.Tuple, ast.JoinedStr)
    fields: list[ast.AST] = [statement]
    for field in fields:
        waiting = list(ast.iter_child_nodes(field))
        found = int(isinstance(field, ast.expr))
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.stmt):
                continue
            found += isinstance(node, ast.expr)
            if isinstance(node, ast.Call) and len(node.keywords) >= 5:
                fields += [keyword.value for keyword in node.keywords]
                waiting += [node.func, *node.args]
            elif not isinstance(node, literals):
                waiting += ast.iter_child_nodes(node)
        yield found


def unknown_documents(root: Path) -> set[str]:
    """No text cites a document that isn't in the repository."""
    texts = [
        path
        for folder in ("pdips", "docs", "models", "papers")
        for path in sorted((root / folder).rglob("*"))
    ]
    texts = [
        path
        for path in texts
        if path.suffix in (".py", ".md")
        and not {"_build", "_notebooks"} & {*path.parts}
    ]
    return {
        p.relative_to(root).as_posix()
        for p in texts
        if "SOUNDNESS" in p.read_text(encoding="utf-8")
    }


def imports(root: Path) -> dict[str, set[str]]:
    """Return which modules of the package each one imports, inside functions too."""
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for name, path in files(root, LIBRARY)
    }
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        named: set[str] = set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                below = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {each if each in modules else node.module for each in below}
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
        graph[module] = named & set(modules) - {module}
    return graph


def facts_by_name(root: Path) -> set[str]:
    """What a mechanism keeps to is asked of its offers, never of its name: outside of
    its own package no module compares with a name, or lists names.
    """
    return {
        name
        for name, path in files(root, LIBRARY)
        for package in (_package(name),)
        if any(_asks_by_name(node, package) for node in ast.walk(parsed(path)))
    }


def _package(name: str) -> str:
    return ".".join(Path(name).with_suffix("").parts[:2])


def _asks_by_name(node: ast.AST, package: str) -> bool:
    """Whether a comparison, a list, a table or a test of a beginning names mechanisms
    that live in another package.
    """
    if isinstance(node, ast.Compare):
        return any(
            _is_stranger(each, package) for each in (node.left, *node.comparators)
        )
    if isinstance(node, ast.Call):
        begins = isinstance(node.func, ast.Attribute) and node.func.attr == "startswith"
        return begins and any(_is_stranger(each, package) for each in node.args)
    # a word such as "margins" may be the key of something else, but not all of them
    listed = list[ast.expr | None]()
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        listed = [*node.elts]
    elif isinstance(node, ast.Dict):
        listed = [*node.keys]
    return len(listed) > 1 and all(_is_stranger(each, package) for each in listed)


def _is_stranger(node: ast.AST | None, package: str) -> bool:
    """Whether it is the name of a mechanism of another package."""
    if not isinstance(node, ast.Constant) or node.value not in HOMES:
        return False
    home, _ = HOMES[node.value]
    return not f"pdips.{home}".startswith(f"{package}.")


def kinds_of_designs(root: Path) -> set[str]:
    """What follows from a design is asked of the design, never of its class: a new one
    falls through a chain of classes. Its own module may ask.
    """
    homes = {
        name: path
        for name, path in public_classes(root)
        if _is_design(root, name, path)
    }
    return {
        name
        for name, path in files(root, LIBRARY)
        for asked in _classes_asked(parsed(path))
        if homes.get(asked, name) != name
    }


def _is_design(root: Path, name: str, path: str) -> bool:
    """Whether a class is a design: it says so, or what its noise comes to."""
    [node] = [
        each
        for each in parsed(root / path).body
        if isinstance(each, ast.ClassDef) and each.name == name
    ]
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    bases = {each.id for each in node.bases if isinstance(each, ast.Name)}
    return (
        name.endswith("Design") or "Forecast" in bases or "measured_margins" in methods
    )


def _classes_asked(tree: ast.Module) -> Iterator[str]:
    """Yield the classes that isinstance is asked for, by their last names."""
    for node in ast.walk(tree):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if is_call and node.func.id == "isinstance":
            for each in ast.walk(node.args[1]):
                if isinstance(each, ast.Name | ast.Attribute):
                    yield each.id if isinstance(each, ast.Name) else each.attr


def circles(root: Path) -> set[str]:
    """No module imports, by any way round, a module that imports it."""
    graph = imports(root)
    return {module for module in graph if module in _reached(graph, module)}


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += graph[module]
    return reached


RULES = {
    rule.__name__: rule
    for rule in (
        long_files,
        crowded_folders,
        ambiguous_classes,
        no_nouns,
        stray_aliases,
        packed_assignments,
        large_functions,
        dense_statements,
        unknown_documents,
        facts_by_name,
        kinds_of_designs,
        circles,
    )
}


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_is_kept(rule):
    found, excepted = RULES[rule](ROOT), EXCEPTIONS.get(rule, set())
    assert found - excepted == set(), RULES[rule].__doc__
    assert excepted - found == set(), "mended: take it out of EXCEPTIONS"


TWINS = cases(__file__, "twins") | {
    "long_files": ({"pdips/data/long.py": "x = 1\n" * 701}, ("pdips/data/long.py",)),
    "crowded_folders": (
        {f"pdips/data/m{i}.py": "" for i in range(21)},
        ("pdips/data",),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_breach_would_be_seen(rule, tmp_path):
    # the broken twins
    texts, breaches = TWINS[rule]
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert RULES[rule](tmp_path) == {*breaches}
