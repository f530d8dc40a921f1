"""The commands ``ledger ...``."""

import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import pdips
from pdips.cli.common import EXPLAIN, ledger_line, one_refusal, receipts_in
from pdips.errors import InputError, RefusedError
from pdips.privacy.loss import spell

if TYPE_CHECKING:
    from pdips.privacy.account import Account, Attempt


@click.group()
def ledger() -> None:
    """Show and govern what the tables of the same persons have spent."""


@ledger.command("show")
@click.argument("path", metavar="L.sqlite")
def ledger_show(path: str) -> None:
    """Print every spend on record, itemised, the attempts that came to none, and what is left."""
    account = pdips.Ledger(path)
    in_rho = account.summary().total_rho is not None
    for entry in account.entries():
        delta = f", delta {spell(entry.delta)}" if entry.delta else ""
        delta += f", rho {float(entry.rho):.6g}" if entry.rho else ""
        click.echo(
            f"{entry.number:>4}  {entry.time}  {entry.mechanism}: "
            f"epsilon {spell(entry.epsilon)}{delta} ({entry.kind}, {entry.neighbours})"
        )
        for spend in entry.spends:
            click.echo(f"        {float(spend.epsilon):<10.6g} {spend.step}")
        if in_rho:
            click.echo(f"        charged as rho {float(entry.charged_rho or 0):.6g}")
        elif entry.charged_epsilon != entry.epsilon:
            click.echo(f"        charged as {spell(entry.charged_epsilon)}: converted to replace-one neighbours")
        click.echo(f"        unit: {entry.unit or 'not recorded by version 0.1'}")
    for attempt in account.attempts():
        if attempt.outcome != "charged":
            click.echo(_attempt_line(attempt, path))
    tables = [f"{role} ({time})" for time, role in account.tables()]
    click.echo(f"tables    {', '.join(tables) or 'none yet'}")
    click.echo(f"unit      {_unit_line(account.summary())}")
    click.echo(ledger_line(account))


def _attempt_line(attempt: "Attempt", path: str) -> str:
    """Say what came of an attempt to read a table that isn't a charge."""
    what = f"{attempt.time}  {attempt.mechanism}, schema {attempt.schema}"
    if attempt.outcome is None:
        price = f"epsilon {spell(attempt.charged_epsilon)} reserved" if attempt.charged_epsilon else "nothing reserved"
        return f"open      {what}: {price}; if its run was killed: pdips ledger strike {path} {attempt.number}"
    asked = ", details asked for" if attempt.explained else ""
    return f"{attempt.outcome:<9} {what}: nothing charged{asked}"


def _unit_line(account: "Account") -> str:
    """Say whom the sums protect."""
    if account.unit is None:
        return "not on record: the first charge fixes it (for charges of version 0.1: pdips ledger declare-unit)"
    return f"{account.unit}{' (the charges of version 0.1 by declaration)' if account.unit_declared else ''}"


@ledger.command("set-total", context_settings={"ignore_unknown_options": True})
@click.argument("path", metavar="L.sqlite")
@click.argument("epsilon", metavar="[EPSILON]", required=False)
@click.option(
    "--rho", metavar="R", help="Keep the account in rho: zero-concentrated losses add up, pure ones join them."
)
@click.option("--delta", metavar="D", help="Of EPSILON (by default 0), or at which R is read (by default 1e-6).")
@click.option("--neighbours", default="replace-one", show_default=True, metavar="RELATION")
def ledger_set_total(path: str, epsilon: str | None, rho: str | None, delta: str | None, neighbours: str) -> None:
    """Set what the table may spend in all, in epsilon or in rho."""
    account = pdips.Ledger(path)
    account.set_total(epsilon, rho=rho, delta=delta, neighbours=typing.cast(Any, neighbours))
    click.echo(ledger_line(account))


@ledger.command("adopt")
@click.argument("path", metavar="L.sqlite")
@click.argument("table", metavar="TABLE")
@click.option("--members", metavar="TABLE", help="The members of the households in the first TABLE.")
@click.option("--schema", "schema_path", required=True, metavar="S.toml")
@click.option(
    "--as",
    "role",
    type=click.Choice(["version", "other-table"]),
    default="version",
    show_default=True,
    help="A corrected or re-saved version of the table, or another table of the same persons, such as another year's.",
)
@click.option("--explain", is_flag=True, help=EXPLAIN)
def ledger_adopt(path: str, table: str, members: str | None, schema_path: str, role: str, explain: bool) -> None:
    """Let TABLE share this account: all spends on all tables of the account add up."""
    from pdips.data.schema import Schema
    from pdips.synthesis import as_table

    account, schema = pdips.Ledger(path), Schema.load(schema_path)
    both = table if members is None else (table, members)
    with one_refusal(account, explain=explain), account.reading(schema, explain=explain):
        account.adopt(as_table(both, schema).fingerprint, role=typing.cast(Any, role))
    click.echo(ledger_line(account))


@ledger.command("strike")
@click.argument("path", metavar="L.sqlite")
@click.argument("number", type=int, metavar="NUMBER")
def ledger_strike(path: str, number: int) -> None:
    """Strike the open reservation NUMBER of a run that was killed: no noise was drawn for it."""
    account = pdips.Ledger(path)
    account.strike(number)
    click.echo(ledger_line(account))


@ledger.command("declare-unit")
@click.argument("path", metavar="L.sqlite")
@click.option("--schema", "schema_path", required=True, metavar="S.toml", help="Its records and public columns count.")
def ledger_declare_unit(path: str, schema_path: str) -> None:
    """Declare the unit of privacy of the charges that version 0.1 made, which didn't record it."""
    from pdips.data.schema import Schema

    account = pdips.Ledger(path)
    account.declare_unit(Schema.load(schema_path))
    click.echo(f"unit      {_unit_line(account.summary())}")


@ledger.command("check")
@click.argument("path", metavar="L.sqlite")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True)
def ledger_check(path: str, folders: tuple[str, ...]) -> None:
    """Check that the account holds the charges of the releases in each DIR, which an older copy of it wouldn't."""
    account, wrong = pdips.Ledger(path), 0
    account.summary()
    for folder in folders:
        found = receipts_in(Path(folder))
        if not found:
            raise InputError(f"{folder} is no folder of a pdips release")
        for file, receipt in found:
            complaint = None if receipt is None else account.compare(receipt)
            wrong += complaint is not None
            held = "carries no receipt: made without a ledger, or by version 0.1; whether it is charged isn't known"
            if receipt is not None:
                held = f"charge {receipt.number} of this account"
            click.echo(f"{'MISSING' if complaint else 'ok' if receipt else 'unknown':<9} {file}: {complaint or held}")
    if wrong:
        raise RefusedError(
            f"{wrong} of these charges {'are' if wrong > 1 else 'is'} not in ledger {path}; put its newest copy back, "
            "or lower its total by what is missing (pdips ledger set-total)"
        )
