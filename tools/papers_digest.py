"""Whether the tests of papers have passed on what stands here: ``python
tools/papers_digest.py`` prints the option by which pytest leaves them out, if so.

What they run is ``papers/``, their own files, and the modules of ``pdips`` that these
import, by any way round. Whenever one of them has changed since ``make papers`` wrote
the digest, nothing is printed, and the tests run.
"""

import ast
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTED = "papers/tested.sha256"
TESTS = "tests/papers"
SOURCES = {
    "pdips": ".",
    "papers/pdips_papers": "papers",
    "tests": "tests",
    TESTS: TESTS,
}
"""Folders of modules, and the folders that their names begin in."""

WHOLE = ("papers", TESTS, "models", "requirements.lock")
"""Folders and files all of which counts."""

PREFIXES = ("", "pdips.", "pdips.audit.cases.")
"""What the registry puts before the names of homes."""


def modules(root: Path) -> dict[str, Path]:
    """Return the modules of the sources by name."""
    by_name = dict[str, Path]()
    for folder, base in SOURCES.items():
        pattern = "*.py" if folder == "tests" else "**/*.py"
        for path in sorted((root / folder).glob(pattern)):
            name = path.relative_to(root / base).with_suffix("").as_posix()
            name = name.replace("/", ".").removesuffix(".__init__")
            if name in by_name:  # a second conftest.py, which nobody imports
                name = str(path)
            by_name[name] = path
    return by_name


def named(path: Path) -> Iterator[str]:
    """Yield what a module may import: by statements, wherever they stand, and by texts
    such as ``"fields.margins:Margins"``, which a registry imports when it is asked.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            home = re.fullmatch(r"([\w.]+)(:\w+)?", node.value)
            # a module that asks whether it is run says so, too
            if home and home[1] != "__main__":
                yield from (prefix + home[1] for prefix in PREFIXES)


def closure(root: Path) -> set[Path]:
    """Return the files of all modules that papers and their tests import."""
    by_name = modules(root)
    starts = {root / "papers", root / TESTS}
    waiting = [name for name, path in by_name.items() if starts & {*path.parents}]
    reached = set[str]()
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for imported in named(by_name[name]):
            parts = imported.split(".")
            packages = [".".join(parts[: k + 1]) for k in range(len(parts))]
            waiting += [each for each in packages if each in by_name]
    return {by_name[name] for name in reached}


def digest(root: Path) -> str:
    """Return the SHA-256 of all that the tests of papers depend on, by name and
    content.
    """
    paths = closure(root)
    # tables and templates lie beside the modules that read them
    for folder in {path.parent for path in paths if root / "pdips" in path.parents}:
        beside = (folder, folder / "templates")
        paths |= {each for place in beside for each in place.glob("*.*")}
    for whole in WHOLE:
        place = root / whole
        paths |= {place} if place.is_file() else {*place.rglob("*")}
    paths -= {root / TESTED}
    total = hashlib.sha256()
    for path in sorted(paths):
        is_source = path.is_file() and "__pycache__" not in path.parts
        if is_source and path.suffix not in (".pyc", ".nbi", ".nbc"):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return total.hexdigest()


def left_out(root: Path) -> bool:
    """Whether the tests have passed on what stands here."""
    path = root / TESTED
    return path.is_file() and path.read_text(encoding="utf-8").strip() == digest(root)


def main(words: list[str], root: Path = ROOT) -> None:
    """Print pytest's option, if any; with ``--write`` note that the tests passed."""
    if words == ["--write"]:
        (root / TESTED).write_text(f"{digest(root)}\n", encoding="utf-8")
    elif left_out(root):
        sys.stderr.write(
            f"{TESTS} is left out: neither papers/ nor what it calls has changed since "
            "`make papers`\n"
        )
        sys.stdout.write(f"--ignore={TESTS}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
