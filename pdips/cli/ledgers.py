"""The commands ``ledger ...``."""

import typing
from typing import Any

import click

from pdips.cli.common import ledger_line
from pdips.privacy import spell


@click.group()
def ledger() -> None:
    """Show and govern what a table has spent."""


@ledger.command("show")
@click.argument("path", metavar="L.sqlite")
def ledger_show(path: str) -> None:
    """Print every spend on record, itemised, and what is left."""
    from pdips.ledger import Ledger

    account = Ledger(path)
    entries = account.entries()
    for entry in entries:
        delta = f", delta {spell(entry.delta)}" if entry.delta else ""
        click.echo(
            f"{entry.number:>4}  {entry.time}  {entry.mechanism}: "
            f"epsilon {spell(entry.epsilon)}{delta} ({entry.kind}, {entry.neighbours})"
        )
        for spend in entry.spends:
            click.echo(f"        {float(spend.epsilon):<10.6g} {spend.step}")
        if entry.charged_epsilon != entry.epsilon:
            click.echo(f"        charged as {spell(entry.charged_epsilon)}: converted to replace-one neighbours")
    click.echo(ledger_line(account))


@ledger.command("set-total", context_settings={"ignore_unknown_options": True})
@click.argument("path", metavar="L.sqlite")
@click.argument("epsilon", metavar="EPSILON")
@click.option("--delta", default="0", show_default=True, metavar="D")
@click.option("--neighbours", default="replace-one", show_default=True, metavar="RELATION")
def ledger_set_total(path: str, epsilon: str, delta: str, neighbours: str) -> None:
    """Set what the table may spend in all."""
    from pdips.ledger import Ledger

    account = Ledger(path)
    account.set_total(epsilon, delta=delta, neighbours=typing.cast(Any, neighbours))
    click.echo(ledger_line(account))


@ledger.command("adopt")
@click.argument("path", metavar="L.sqlite")
@click.argument("table", metavar="TABLE")
@click.option("--schema", "schema_path", required=True, metavar="S.toml")
def ledger_adopt(path: str, table: str, schema_path: str) -> None:
    """Let a corrected or re-saved version of the table share this account: all earlier spends go on counting."""
    from pdips.ledger import Ledger
    from pdips.schema import Schema
    from pdips.table import Table

    account = Ledger(path)
    account.adopt(Table.read(table, Schema.load(schema_path)).fingerprint)
    click.echo(ledger_line(account))
