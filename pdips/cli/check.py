"""The commands ``check``, is a release whole and unchanged; ``certify``, do intervals
hold; ``bounds``, how far records move.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdips.cli.common import receipts_in
from pdips.errors import InputError
from pdips.html import show_progress, spelt

if TYPE_CHECKING:
    from pdips.privacy.account import Receipt
    from pdips.release.integrity import Remark

WIDTH = 110
TOUCHED = 3


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@click.option(
    "--ledger",
    "ledgers",
    multiple=True,
    metavar="L.sqlite",
    help="An account that must hold the charges of the releases; repeatable.",
)
@click.option(
    "--key",
    metavar="K",
    help="The publisher's public key, from the publisher: 64 hexadecimal digits, or a "
    "file.",
)
@click.option(
    "--clear",
    is_flag=True,
    help="Delete what killed runs left beside each DIR and each ledger.",
)
def check(
    directories: tuple[str, ...],
    ledgers: tuple[str, ...],
    key: str | None,
    clear: bool,
) -> None:
    """Check that the release in each DIR is whole, unchanged, signed and charged.

    DIR is the folder of a release, or its public folder alone. Exit code: 0 all is
    well, 3 something is at fault, 2 no release.
    """
    from pdips.privacy.ledger import Ledger
    from pdips.privacy.signing import public_key

    wanted = None if key is None else public_key(key)
    accounts: list[Any] = [Ledger(path) for path in ledgers]
    for account in accounts:
        account.summary()  # refused before any folder is read
        if clear:
            for path in account.clear_leftovers():
                _show(f"cleared   {path}")
    at_fault = False
    refused: list[str] = []
    for directory in map(Path, directories):
        at_fault |= _leftovers(directory, clear=clear)
        try:
            at_fault |= _show_remarks(directory, examine(directory, accounts, wanted))
        except InputError as error:
            refused.append(str(error))
    if refused and not at_fault:
        raise InputError("; ".join(refused))
    for said in refused:
        click.echo(f"pdips: {said}", err=True)
    if at_fault:
        raise click.exceptions.Exit(TOUCHED)


def _show_remarks(directory: Path, remarks: list["Remark"]) -> bool:
    """Print what was found in a folder; return whether anything is at fault."""
    for remark in remarks:
        _show(f"{'FAULT' if remark.fault else 'note':<9} {remark}")
    at_fault = any(remark.fault for remark in remarks)
    if not at_fault:
        click.echo(f"ok        {directory}")
    return at_fault


def _leftovers(directory: Path, *, clear: bool) -> bool:
    """Show what killed runs left beside a folder, or delete it; whether it is there
    still.
    """
    from pdips.release.folder import clear_leftovers, is_locked, leftovers

    if is_locked(directory):
        click.echo(f"note      a run is writing to {directory} now")
    found = clear_leftovers(directory) if clear else leftovers(directory)
    for path in found:
        if clear:
            _show(f"cleared   {path}")
        else:
            _show(
                f"FAULT     {path}: left by a run that was killed (--clear deletes it)"
            )
    return bool(found) and not clear


def examine(
    directory: Path, ledgers: Sequence[Any] = (), key: str | None = None
) -> list["Remark"]:
    """Return all that is wrong with the release in a folder, or worth saying.

    Raises
    ------
    InputError
        If the folder holds no release.
    """
    from pdips.outside.answer_tables import examine_answers
    from pdips.release.documents import PrivacyDocument, release_home
    from pdips.release.integrity import (
        Remark,
        examine_files,
        examine_inside,
        examine_public,
    )
    from pdips.report.derived_files import examine_derived, examine_evaluation

    home = release_home(directory, received=True)
    inside = directory / "confidential"
    if home == inside:
        try:
            document = PrivacyDocument.read(home)
        except InputError as error:
            return [Remark(path=home, said=str(error))]
        said = "stays inside: it isn't published, and isn't signed"
        found = [Remark(path=home, said=said, fault=key is not None)]
        found += examine_files(home, document)
    else:
        examined = examine_public(home, key)
        found = examined.remarks
        if examined.document is None:
            return found
        document = examined.document
        found += examine_derived(home, document)
        if not examined.faults:  # what was changed can't be compared
            found += examine_answers(home, document)
    found += examine_inside(directory, document, home)
    found += examine_evaluation(inside, document)
    return found + (_accounts(directory, ledgers) if ledgers else [])


def _accounts(directory: Path, ledgers: Sequence[Any]) -> list["Remark"]:
    """Return which charges of a release no ledger holds, and whether two ledgers are
    kept for its table.
    """
    from pdips.release.documents import RunDocument
    from pdips.release.integrity import Remark

    inside = directory / "confidential"
    try:
        receipts = receipts_in(directory)
        run = RunDocument.found(inside)
    except InputError as error:
        return [Remark(path=directory, said=str(error))]
    remarks = []
    for path, receipt in receipts:
        complaint = _complaint(receipt, ledgers)
        if complaint:
            remarks.append(Remark(path=path, said=complaint))
    if run is None or run.table is None:
        return remarks
    holding = [str(ledger.path) for ledger in ledgers if ledger.holds(run.table)]
    if len(holding) > 1:
        said = (
            f"its table is held by {len(holding)} ledgers, {', '.join(holding)}: "
            f"neither total counts what the other has spent; keep one"
        )
        remarks.append(Remark(path=inside / RunDocument.file, said=said))
    return remarks


def _complaint(receipt: "Receipt | None", ledgers: Sequence[Any]) -> str | None:
    """Return why a charge is in none of the ledgers, or None if it is in one."""
    if receipt is None:
        return "carries no receipt: it was charged to no account"
    complaints: list[str | None] = [ledger.compare(receipt) for ledger in ledgers]
    if None in complaints:
        return None
    # that of its own account says more than those of others
    said = [each for each in complaints if each is not None]
    return max(said, key=lambda each: "of this account" in each)


@click.command()
@click.argument("directory", metavar="DIR")
@click.option(
    "--replays",
    type=int,
    default=200,
    show_default=True,
    metavar="R",
    help="At least 2.",
)
@click.option(
    "--analysis",
    "formula",
    metavar="FORMULA",
    help='A regression too, such as "voted ~ age + college".',
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="A dask scheduler, or local: runs replays side by side.",
)
def certify(
    directory: str, replays: int, formula: str | None, scheduler: str | None
) -> None:
    """Measure the coverage of intervals from the sets of the release in DIR on replays.
    It reads public files only.

    Writes certificate.json beside privacy.json, and the card again. Exit code: 0 they
    hold, 3 some don't, 2 no such release.
    """
    from pdips.outside.replays import certify as replayed
    from pdips.release.certificate import SILENT
    from pdips.release.documents import release_home
    from pdips.report.pages import write_card

    with show_progress() as progress:
        certificate = replayed(
            directory,
            replays=replays,
            formula=formula,
            scheduler=scheduler,
            progress=progress,
        )
    home = release_home(directory, received=True)
    path = certificate.write(home)
    click.echo(
        f"rule      {certificate.rule}; {certificate.replays} replays from public "
        f"files, at no further price"
    )
    for row in certificate.rows:
        held = (
            f"{row.covered:.1%} of 95 % intervals held (± "
            f"{row.standard_error:.1%}; {row.numbers:,} numbers)"
        )
        _show_outcome(f"{row.what}: {held}", fails=row.fails)
    agreement = certificate.agreement
    if agreement is not None:
        said = (
            f"the sets agree with {agreement.covered:.1%} of the noisy "
            f"counts of levels and pairs"
        )
        _show_outcome(said, fails=agreement.fails)
    _show(f"silent    {SILENT}")
    too = ""
    if home.name != "confidential":
        too = f", as may {write_card(home)}"
    click.echo(f"public    {path}: may be published{too}")
    if certificate.failing:
        raise click.exceptions.Exit(TOUCHED)


def _show_outcome(said: str, *, fails: bool) -> None:
    _show(f"{'FAILS' if fails else 'holds':<9} {said}")


@click.command()
@click.argument("draws", metavar="IDATA")
@click.option(
    "--model",
    metavar="FILE",
    help="A Python file that leaves the pm.Model with its data in `model`; with "
    "--table one with make(df) or build_model(data, schema), or a name from `pdips "
    "models list`.",
)
@click.option(
    "--formula",
    metavar="FORMULA",
    help='With --table, a model as a formula, such as "pay ~ age + (1 | region)".',
)
@click.option("--table", metavar="T", help="The confidential table.")
@click.option(
    "--schema", metavar="S", help="Of the table; a release has that of its own."
)
@click.option(
    "--public", metavar="A,B", help="Columns that everybody may know, beside --schema."
)
@click.option(
    "--variable", metavar="NAME", help="Of the group log_likelihood; all by default."
)
@click.option(
    "--record-dim",
    metavar="DIM",
    help="Which of its dims counts records, if there are several.",
)
@click.option(
    "--limit", type=float, metavar="NATS", help="Where a censored posterior would cut."
)
@click.option(
    "--independent", is_flag=True, help="The draws are independent, no Markov chain's."
)
@click.option(
    "--out",
    metavar="DIR",
    help="Write bounds.html, bounds.json and, by record, bounds.csv: inside.",
)
def bounds(draws: str, out: str | None, **settings: Any) -> None:
    """Bound each record's log-likelihood over the draws of a posterior in IDATA, a
    netCDF file, a zarr folder or the folder of a release.

    Any posterior: a group log_likelihood of records is sufficient, else use --model.
    For internal use only.
    """
    from pdips.influence import bounds as bounds_of

    found = bounds_of(draws, **_models_and_tables(settings))
    said = found.describe()
    rows = _rows(found, said)
    click.echo(
        "INSIDE ONLY: computed from the confidential records, nothing pays for it\n"
    )
    click.echo(
        f"records   {said['records']:,}; {said['draws']:,} draws in "
        f"{said['chains']} chain(s)"
    )
    for name, text in rows.items():
        _show(f"{name:<10}{text}")
    _show(f"{'certifies':<10}{said['certifies']}")
    if out is not None:
        _write(Path(out), said, found, rows)


def _models_and_tables(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the function takes, of what was given on the command line."""
    given = {name: value for name, value in settings.items() if value is not None}
    if "formula" in given:
        if "model" in given:
            raise InputError("--formula is a model of its own: leave --model out")
        given["model"] = given.pop("formula")
    if "table" in given:
        given["data"] = given.pop("table")
    if "public" in given:
        given["public"] = [name.strip() for name in given["public"].split(",")]
    return given


def _rows(found: Any, said: dict[str, Any]) -> dict[str, str]:
    """Return what the bounds are, and how far they can be relied on."""
    by_chain = [f"{value:.4g}" for value in found.largest_by_draw.max(axis=1)]
    five = []
    for value in said["bounds_of_records"].values():
        five.append("inf" if value is None else spelt(value))
    upper = said["upper_draws"]
    between = "one chain: nothing tells whether another one would agree"
    if said["chains"] > 1:
        spread = said["spread_over_chains"]
        between = (
            f"bounds of records differ between chains by {spelt(spread['median'])} of "
            f"themselves in the middle, {spelt(spread['max'])} at most; R-hat of the "
            f"bound {spelt(said['rhat'])}"
        )
    rows = {
        "bound": f"{found.overall:.4g} nats; by chain {', '.join(by_chain)}",
        "each": f"{', '.join(five)} nats (least, quarter, median, three quarters, "
        f"largest bound of a record)",
        "chains": between,
        "error": f"95 % of draws have a bound of at most "
        f"{spelt(upper['quantile_95'])} nats, Monte Carlo standard "
        f"error {spelt(upper['monte_carlo_error'])}; effective draws "
        f"{spelt(said['ess_bulk'])}, of the tail "
        f"{spelt(said['ess_tail'])}",
    }
    if "limit" in said:
        rows["limit"] = (
            f"{said['censored']['records']:,} records go beyond "
            f"{said['limit']:g} nats in some draw"
        )
    return rows


def _write(
    folder: Path, said: dict[str, Any], found: Any, rows: dict[str, str]
) -> None:
    import pandas as pd

    from pdips.release.documents import write_json
    from pdips.report.pages import render
    from pdips.report.posterior_figures import against_value

    names = ("largest", "lowest", "highest", "mean")
    columns = {name: getattr(found, name) for name in names}
    for chain, largest in enumerate(found.by_chain, start=1):
        columns[f"largest in chain {chain}"] = largest
    rank = found.largest.argsort().argsort()
    least = found.by_chain.min(axis=0)
    figures = {}
    for name, values in (("rank", rank), ("least bound of a chain", least)):
        what = "bound of the record (nats)"
        figures[name] = against_value(
            found.largest, values, name, name, what, found.limit
        )
    page = render("bounds.html.j2", said=said, rows=rows, figures=figures)
    try:
        folder.mkdir(mode=0o700)
        write_json(
            folder / "bounds.json",
            {"confidential": "from the records, and no epsilon pays for it", **said},
        )
        (folder / "bounds.html").write_text(page, "utf-8")
        pd.DataFrame(columns).rename_axis("record").to_csv(folder / "bounds.csv")
    except OSError as error:
        raise InputError(
            f"can't write {folder}: {error.strerror}; name a folder "
            f"that isn't there yet"
        ) from None
    click.echo(
        f"inside    {folder}: bounds.html, bounds.json and, by record, bounds.csv"
    )


def _show(text: str) -> None:
    click.echo(textwrap.fill(text, WIDTH, subsequent_indent=" " * 10))
