"""What a notebook shows of an object: a title and a small table."""

from collections.abc import Iterable
from html import escape
from typing import Any


def small_table(title: str, rows: Iterable[tuple[Any, ...]]) -> str:
    """Return a title and rows, their first entry as a header, as HTML."""
    cells = "".join(
        f"<tr><th>{escape(str(first))}</th>{''.join(f'<td>{escape(str(each))}</td>' for each in rest)}</tr>"
        for first, *rest in rows
    )
    return f"<b>{escape(title)}</b><table>{cells}</table>"


def columns_table(schema: Any) -> str:
    """Return a table of a schema's columns: their names, whether they are public, and their levels or bins."""
    rows = ((name, "public" if c.public else "", ", ".join(c.names()[:12])) for name, c in schema.columns.items())
    return small_table(schema.title or "Schema", rows)
