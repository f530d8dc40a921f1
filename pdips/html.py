"""What a notebook shows of an object, a title and a small table, and the progress of a
running step.
"""

import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from html import escape
from importlib.util import find_spec
from typing import Any

# Seconds between lines about a running step, outside terminals and notebooks
SILENCE = 10.0


def small_table(title: str, rows: Iterable[tuple[Any, ...]]) -> str:
    """Return a title and rows, their first entry as a header, as HTML."""
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td>{escape(str(each))}</td>" for each in rest)
        lines.append(f"<tr><th>{escape(str(first))}</th>{cells}</tr>")
    return f"<b>{escape(title)}</b><table>{''.join(lines)}</table>"


def spelt(value: float | None, digits: int = 4) -> str:
    """Return a number in so many digits, or a dash."""
    return "-" if value is None else f"{value:.{digits}g}"


def columns_table(schema: Any) -> str:
    """Return a table of a schema's columns: their names, whether they are public, and
    their levels or bins.
    """
    rows = []
    for name, column in schema.columns.items():
        public = "public" if column.public else ""
        rows.append((name, public, ", ".join(column.names()[:12])))
    return small_table(schema.title or "Schema", rows)


@contextmanager
def show_progress(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show the running step: a bar on a terminal or in a notebook, elsewhere a line
    every ten seconds.
    """
    if quiet:
        yield lambda step: None
        return
    with _display() as show:
        yield show


def _display() -> AbstractContextManager[Callable[[str], None]]:
    if find_spec("rich") is None:  # it comes with the extra report
        return _lines()
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:
        return _bar_of_a_notebook()
    return _bar_of_a_terminal(console) if console.is_terminal else _lines()


@contextmanager
def _bar_of_a_notebook() -> Iterator[Callable[[str], None]]:
    from IPython.display import HTML, display

    shown = display(HTML(""), display_id=True)

    def show(step: str) -> None:
        bar = f"<progress max=1 value={_share(step) or 0}></progress>"
        shown.update(HTML(f"{bar} {escape(step)}"))

    try:
        yield show
    finally:
        shown.update(HTML(""))


@contextmanager
def _bar_of_a_terminal(console: Any) -> Iterator[Callable[[str], None]]:
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        BarColumn(24),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(step: str) -> None:
            share = _share(step)
            total = share and 1
            bar.update(task, description=step, total=total, completed=share or 0)

        yield show


@contextmanager
def _lines() -> Iterator[Callable[[str], None]]:
    """Write a line about the running step every ten seconds."""
    steps = ["starting"]
    done = threading.Event()
    begun = time.monotonic()

    def talk() -> None:
        while not done.wait(SILENCE):
            seconds = time.monotonic() - begun
            sys.stderr.write(f"working   {steps[-1]} ({seconds:.0f} s)\n")

    threading.Thread(target=talk, daemon=True).start()
    try:
        yield steps.append
    finally:
        done.set()


def _share(step: str) -> float | None:
    """Return the share done that a step names, as a percentage or as a set of so
    many.
    """
    found = re.search(r"(\d+)%|set (\d+) of (\d+)", step)
    if found is None:
        return None
    percentage, number, total = found.groups()
    if percentage:
        return int(percentage) / 100
    return (int(number) - 1) / int(total)
