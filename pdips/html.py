"""What a notebook shows of an object, a title and a small table, and the progress of a running step."""

import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

SILENCE = 10.0  # Seconds between lines about a running step, outside terminals and notebooks


def small_table(title: str, rows: Iterable[tuple[Any, ...]]) -> str:
    """Return a title and rows, their first entry as a header, as HTML."""
    cells = "".join(
        f"<tr><th>{escape(str(first))}</th>{''.join(f'<td>{escape(str(each))}</td>' for each in rest)}</tr>"
        for first, *rest in rows
    )
    return f"<b>{escape(title)}</b><table>{cells}</table>"


def spelt(value: float | None, digits: int = 4) -> str:
    """Return a number in so many digits, or a dash."""
    return "-" if value is None else f"{value:.{digits}g}"


def columns_table(schema: Any) -> str:
    """Return a table of a schema's columns: their names, whether they are public, and their levels or bins."""
    rows = ((name, "public" if c.public else "", ", ".join(c.names()[:12])) for name, c in schema.columns.items())
    return small_table(schema.title or "Schema", rows)


@contextmanager
def show_progress(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show the running step: a bar on a terminal or in a notebook, elsewhere a line every ten seconds."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet:
        yield lambda step: None
    elif console.is_jupyter:
        from IPython.display import HTML, display

        shown = display(HTML(""), display_id=True)
        try:
            yield lambda step: shown.update(
                HTML(f"<progress max=1 value={_share(step) or 0}></progress> {escape(step)}")
            )
        finally:
            shown.update(HTML(""))
    elif console.is_terminal:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), BarColumn(24), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=None)
            yield lambda step: bar.update(task, description=step, total=_share(step) and 1, completed=_share(step) or 0)
    else:
        said, done, begun = ["starting"], threading.Event(), time.monotonic()

        def talk() -> None:
            while not done.wait(SILENCE):
                sys.stderr.write(f"working   {said[-1]} ({time.monotonic() - begun:.0f} s)\n")

        threading.Thread(target=talk, daemon=True).start()
        try:
            yield said.append
        finally:
            done.set()


def _share(step: str) -> float | None:
    """Return the share done that a step names, as a percentage or as a set of so many."""
    found = re.search(r"(\d+)%|set (\d+) of (\d+)", step)
    if found is None:
        return None
    return int(found[1]) / 100 if found[1] else (int(found[2]) - 1) / int(found[3])
