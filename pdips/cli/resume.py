"""The command ``resume``."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import pdips
from pdips.cli.common import QUIET, is_charged_by
from pdips.errors import InputError

if TYPE_CHECKING:
    from pdips.privacy.account import Entry
    from pdips.privacy.ledger import Ledger


@click.command()
@click.argument("ledger_path", metavar="L.sqlite")
@click.argument("number", metavar="[NUMBER]", type=int, required=False)
@click.option(
    "--table",
    metavar="TABLE",
    help="Where the table is, if it has moved or its address has a password.",
)
@click.option(
    "--members",
    metavar="TABLE",
    help="Where the table of members is, likewise.",
)
@click.option("--out", metavar="DIR", help="Another folder for the release.")
@click.option(
    "--allow",
    type=click.Choice(["refusals"]),
    multiple=True,
    help="Go on although three refusals are on record.",
)
@QUIET
def resume(
    ledger_path: str,
    number: int | None,
    table: str | None,
    members: str | None,
    out: str | None,
    allow: tuple[str, ...],
    quiet: bool,
) -> None:
    """Finish a charged release whose run was stopped, at no further price.

    NUMBER is that of the charge; it may be left out if only one is open. Table, plan
    and code have to be what they were: the noisy answers that were paid for are read
    back, and no answer is drawn twice.
    """
    ledger = pdips.Ledger(Path(ledger_path).absolute())
    entry = _chosen(ledger, number)
    facts, _ = ledger.journal_of(entry).read()
    command: dict[str, Any] | None = facts.get("command")
    if command is None:
        raise InputError(
            f"charge {entry.number} was made from Python: repeat the call there with "
            f"resume={entry.number}"
        )
    folder = Path(command["directory"])
    if not folder.is_dir():
        raise InputError(
            f"charge {entry.number} was made in {folder}, which is gone: make that "
            "folder again, with what the command named in it"
        )
    given = {"table": table, "members": members, "out": out}
    options = _completed(command, given)
    options["allow"] = [*options.get("allow", ()), *allow]
    with contextlib.chdir(folder):
        _RUNS[command["name"]](options, ledger, entry, quiet=quiet)


def _completed(command: dict[str, Any], given: dict[str, str | None]) -> dict[str, Any]:
    """Return the options of a command, with those that are given now in their place."""
    options: dict[str, Any] = command["options"]
    for said, value in given.items():
        option = said
        if said == "out" and "out" not in options:
            option = "directory"  # of the release that is measured
        if value is None and option in command["withheld"]:
            raise InputError(
                "the address of the table has a password, which isn't kept: give it "
                f"with --{said}"
            )
        if value is None:
            continue
        if option not in options:
            raise InputError(f"the command of this charge has no --{said}")
        options[option] = value if "://" in value else str(Path(value).absolute())
    return options


def _chosen(ledger: "Ledger", number: int | None) -> "Entry":
    """Return the charge of a number, or the only one that is open."""
    entries = ledger.resumable()
    if number is None and len(entries) == 1:
        return entries[0]
    for entry in entries:
        if entry.number == number:
            return entry
    numbers = ", ".join(str(entry.number) for entry in entries)
    if number is None and entries:
        raise InputError(f"several charges can be resumed, name one: {numbers}")
    which = "no charge" if number is None else f"no charge {number}"
    have = f"; open are: {numbers}" if entries else ""
    raise InputError(f"ledger {ledger.path} has {which} that can be resumed{have}")


def _synthesis(
    options: dict[str, Any], ledger: "Ledger", entry: "Entry", *, quiet: bool
) -> None:
    """Finish ``pdips synthesize``."""
    from pdips.cli.synthesize import SynthesisOptions, run
    from pdips.release.documents import PrivacyDocument, home_of

    home = home_of(Path(options["out"]))
    if home is not None and _is_in_place(home / PrivacyDocument.file, ledger, entry):
        return
    names = ("options", "allow", "formula_settings", "analyses")
    listed = {name: tuple(options[name]) for name in names if name in options}
    known = SynthesisOptions(**{**options, **listed})
    run(replace(known, ledger_path=str(ledger.path), resume=entry.number, quiet=quiet))


def _answer(
    options: dict[str, Any], ledger: "Ledger", entry: "Entry", *, quiet: bool
) -> None:
    """Finish ``pdips answer``."""
    from pdips.cli.answer import AnswerOptions, run
    from pdips.release.documents import ANSWERS_FOLDER, PrivacyDocument

    folder = Path(options["directory"]) / ANSWERS_FOLDER / str(options["number"])
    if _is_in_place(folder / "public" / PrivacyDocument.file, ledger, entry):
        return
    listed = {name: tuple(options[name]) for name in ("formula_settings", "allow")}
    known = AnswerOptions(**{**options, **listed})
    run(replace(known, ledger_path=str(ledger.path), resume=entry.number, quiet=quiet))


def _is_in_place(file: Path, ledger: "Ledger", entry: "Entry") -> bool:
    """Whether what was charged is published; then tell the ledger so."""
    if not is_charged_by(file, entry):
        return False
    ledger.end(entry.number, "finished")
    click.echo(f"finished  {file.parent} holds the whole release already")
    return True


_RUNS = {"synthesize": _synthesis, "answer": _answer}
