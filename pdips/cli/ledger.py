"""The commands ``ledger ...``."""

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import pdips
from pdips.cli.common import EXPLAIN, ledger_line, one_refusal, receipts_in
from pdips.errors import InputError, RefusedError
from pdips.privacy.budget import ALLOWED
from pdips.privacy.loss import spell

if TYPE_CHECKING:
    from pdips.privacy.account import Attempt, Entry


@click.group()
def ledger() -> None:
    """Show and govern what the tables of the same persons have spent."""


@ledger.command("show")
@click.argument("path", metavar="L.sqlite")
def ledger_show(path: str) -> None:
    """Print every spend on record, itemised, the attempts that came to none, and what
    is left.
    """
    account = pdips.Ledger(path)
    summary = account.summary()
    resumable = {entry.number for entry in account.resumable()}
    for entry in account.entries():
        for line in _entry_lines(entry, in_rho=summary.total_rho is not None):
            click.echo(line)
        if entry.number in resumable:
            click.echo(f"        not published yet: pdips resume {path} {entry.number}")
    for attempt in account.attempts():
        if attempt.outcome != "charged":
            click.echo(_attempt_line(attempt, path))
    tables = [f"{role} ({time})" for time, role in account.tables()]
    click.echo(f"tables    {', '.join(tables) or 'none yet'}")
    click.echo(f"unit      {summary.unit or 'none yet: the first charge fixes it'}")
    if summary.refusals:
        click.echo(f"refusals  {summary.refusals} for what records contain")
    click.echo(ledger_line(account))


def _entry_lines(entry: "Entry", *, in_rho: bool) -> Iterator[str]:
    """Yield what is shown of a charge."""
    price = entry.price
    delta = f", delta {spell(price.delta)}" if price.delta else ""
    rho = f", rho {float(price.rho):.6g}" if price.rho else ""
    yield (
        f"{entry.number:>4}  {entry.time}  {entry.mechanism}: epsilon "
        f"{spell(price.epsilon)}{delta}{rho} ({price.kind}, {price.neighbours})"
    )
    for spend in entry.spends:
        yield f"        {float(spend.epsilon):<10.6g} {spend.step}"
    if in_rho:
        yield f"        charged as rho {float(price.charged_rho or 0):.6g}"
    elif price.charged_epsilon != price.epsilon:
        charged = spell(price.charged_epsilon)
        yield f"        charged as {charged}: converted to replace-one neighbours"
    yield f"        unit: {entry.unit}"
    if entry.origin:
        yield f"        adopted from account {entry.origin}"
    if entry.end == "not converged":
        yield "        its chains did not converge: charged, nothing released"


def _attempt_line(attempt: "Attempt", path: str) -> str:
    """Say what came of an attempt to read a table that isn't a charge."""
    what = f"{attempt.time}  {attempt.mechanism}, schema {attempt.schema}"
    if attempt.outcome is None:
        price = "nothing reserved"
        if attempt.price is not None:
            price = f"epsilon {spell(attempt.price.charged_epsilon)} reserved"
        strike = f"pdips ledger strike {path} {attempt.number}"
        return f"open      {what}: {price}; if its run was killed: {strike}"
    asked = ", details asked for" if attempt.explained else ""
    return f"{attempt.outcome:<9} {what}: nothing charged{asked}"


@ledger.command("set-total", context_settings={"ignore_unknown_options": True})
@click.argument("path", metavar="L.sqlite")
@click.argument("epsilon", metavar="[EPSILON]", required=False)
@click.option(
    "--rho",
    metavar="R",
    help="Keep the account in rho: zero-concentrated losses "
    "add up, pure ones join them.",
)
@click.option(
    "--delta",
    metavar="D",
    help="Of EPSILON (by default 0), or at which R is read (by default 1e-6).",
)
@click.option(
    "--neighbours", default="replace-one", show_default=True, metavar="RELATION"
)
def ledger_set_total(
    path: str, epsilon: str | None, rho: str | None, delta: str | None, neighbours: str
) -> None:
    """Set what the table may spend in all, in epsilon or in rho."""
    account = pdips.Ledger(path)
    account.set_total(
        epsilon, rho=rho, delta=delta, neighbours=typing.cast(Any, neighbours)
    )
    click.echo(ledger_line(account))


@ledger.command("adopt-account")
@click.argument("path", metavar="L.sqlite")
@click.argument("other", metavar="OTHER.sqlite")
def ledger_adopt_account(path: str, other: str) -> None:
    """Count the charges of OTHER.sqlite in this account too: both protect the same
    persons. Later charges there aren't counted.
    """
    account = pdips.Ledger(path)
    account.adopt_account(pdips.Ledger(other))
    click.echo(ledger_line(account))


@ledger.command("adopt")
@click.argument("path", metavar="L.sqlite")
@click.argument("table", metavar="TABLE")
@click.option(
    "--members",
    metavar="TABLE",
    help="The members of the households in the first TABLE.",
)
@click.option("--schema", "schema_path", required=True, metavar="S.toml")
@click.option(
    "--as",
    "role",
    type=click.Choice(["version", "other-table"]),
    default="version",
    show_default=True,
    help="A corrected or re-saved version of the table, or another table of the same "
    "persons, such as another year's.",
)
@click.option("--explain", is_flag=True, help=EXPLAIN)
@click.option(
    "--allow",
    type=click.Choice(ALLOWED[:1]),
    multiple=True,
    help="Needed once records have refused three requests.",
)
def ledger_adopt(
    path: str,
    table: str,
    members: str | None,
    schema_path: str,
    role: str,
    explain: bool,
    allow: tuple[str, ...],
) -> None:
    """Let TABLE share this account: all spends on all tables of the account add up."""
    from pdips.data.schema import Schema
    from pdips.synthesis import as_table

    account = pdips.Ledger(path)
    schema = Schema.load(schema_path)
    both = table if members is None else (table, members)
    with (
        one_refusal(account, explain=explain),
        account.reading(schema, explain=explain, allow=allow),
    ):
        account.adopt(as_table(both, schema).fingerprint, role=typing.cast(Any, role))
    click.echo(ledger_line(account))


@ledger.command("strike")
@click.argument("path", metavar="L.sqlite")
@click.argument("number", type=int, metavar="NUMBER")
def ledger_strike(path: str, number: int) -> None:
    """Strike the open reservation NUMBER of a run that was killed: no noise was drawn
    for it.
    """
    account = pdips.Ledger(path)
    account.strike(number)
    click.echo(ledger_line(account))


@ledger.command("check")
@click.argument("path", metavar="L.sqlite")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True)
def ledger_check(path: str, folders: tuple[str, ...]) -> None:
    """Check that the account holds the charges of the releases in each DIR, which an
    older copy of it wouldn't.
    """
    account = pdips.Ledger(path)
    wrong = 0
    account.summary()
    for folder in folders:
        found = receipts_in(Path(folder))
        if not found:
            raise InputError(f"{folder} is no folder of a pdips release")
        for file, receipt in found:
            complaint = None if receipt is None else account.compare(receipt)
            wrong += complaint is not None
            if receipt is None:
                outcome = "unknown"
                said = (
                    "carries no receipt: made without a ledger; whether it is charged "
                    "isn't known"
                )
            else:
                outcome = "MISSING" if complaint else "ok"
                said = complaint or f"charge {receipt.number} of this account"
            click.echo(f"{outcome:<9} {file}: {said}")
    if wrong:
        are = "are" if wrong > 1 else "is"
        raise RefusedError(
            f"{wrong} of these charges {are} not in ledger {path}; put its newest copy "
            "back, or lower its total by what is missing (pdips ledger set-total)"
        )
