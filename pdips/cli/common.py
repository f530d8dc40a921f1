"""What the commands share."""

import dataclasses
import json
import logging
import types
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import pdips
from pdips.errors import DataError, InputError, UselessWarning
from pdips.privacy.loss import exact, spell
from pdips.registry import find, variant_class

if TYPE_CHECKING:
    from pdips.privacy.account import Receipt
    from pdips.privacy.ledger import Ledger
    from pdips.report.verdict import Verdict

REFUSED = (
    "the table is refused: its records don't fit the schema, or it isn't a table of the ledger. This message is the "
    "same whatever the reason."
)
EXPLAIN = "Name the rule that a refused table breaks. This reveals something of the records, so the ledger records it."

COMMON = ("epsilon", "n_sets", "neighbours")

SCHEMA = click.option(
    "--schema", "schema_path", required=True, metavar="S.toml", help="What is public about the table."
)
SETS = click.option(
    "--sets", "n_sets", type=int, default=1, show_default=True, metavar="M", help="Number of synthetic sets."
)
NEIGHBOURS = click.option(
    "--neighbours",
    default="replace-one",
    show_default=True,
    metavar="RELATION",
    help="replace-one (the number of records is public) or add-remove.",
)
QUIET = click.option("--quiet", is_flag=True, help="Don't show how far it is.")
MODEL = click.option("--model", metavar="FILE", help="A PyMC model (a file, or a name from `pdips models list`).")
OPTIONS = click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE", help="A setting of the mechanism; repeatable."
)


def chosen(
    name: str, options: Sequence[str], common: dict[str, Any], model: str | None = None
) -> tuple[type[Any], dict[str, Any]]:
    """Return the class that a mechanism's name and the option ``variant`` choose, and its settings as typed."""
    options = [*([] if model is None else [f"model={model}"]), *options]
    variants = [option.removeprefix("variant=") for option in options if option.startswith("variant=")]
    if len(variants) > 1:
        raise InputError("option variant is given twice")
    mechanism, choosing = variant_class(name, variants[0]) if variants else (find(name), {})
    types = typing.get_type_hints(mechanism)
    hints = {field.name: types[field.name] for field in dataclasses.fields(mechanism) if field.name not in COMMON}
    settings = dict(common)
    for option in options:
        key, equals, text = option.partition("=")
        if not equals:
            raise InputError(f"--option {option!r} must have the form key=value")
        if key == "variant":
            continue
        if key in settings:
            raise InputError(f"option {key} is given twice")
        if key not in hints:
            raise InputError(f"{mechanism.name} has no option {key!r}; it has {', '.join(hints) or 'none'}")
        settings[key] = _parse(key, text, hints[key])
    return mechanism, settings | choosing


def _parse(key: str, text: str, hint: Any) -> Any:
    """Read the text of an option as what its annotation asks for."""
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)  # a union with a Literal is the latter
    kinds = typing.get_args(hint) if is_union else (hint,)
    if any(typing.get_origin(kind) is tuple for kind in kinds):
        return tuple(part.strip() for part in text.split(",")) if text.strip() else ()
    if int in kinds and str not in kinds:
        try:
            return int(text)
        except ValueError:
            raise InputError(f"option {key} must be a whole number, got {text!r}") from None
    return text


@contextmanager
def one_refusal(ledger: "Ledger | None", *, explain: bool) -> Iterator[None]:
    """Give one message for all that the records of a table can refuse, unless details were asked for."""
    try:
        yield
    except DataError as error:
        where, too = "No ledger was named, so nothing is recorded.", ""
        if ledger is not None:
            where, too = f"The attempt is recorded (pdips ledger show {ledger.path}).", ", which is recorded too"
        more = "" if explain else f" To see the reason, repeat it with --explain{too}."
        raise InputError(f"{f'{error}.' if explain else REFUSED} {where}{more}") from None


def receipts_in(folder: Path) -> list[tuple[Path, "Receipt | None"]]:
    """Return the files of a release that have a price, each with the receipt of its charge, if it carries one."""
    from pdips.privacy.account import Receipt

    names = ("public/privacy.json", "public/evaluation.json", "confidential/privacy.json", "privacy.json")
    found: list[tuple[Path, Receipt | None]] = []
    for path in (*(folder / name for name in names), *sorted(folder.glob("public/claims/*.json"))):
        if path.is_file():
            try:
                carried = json.loads(path.read_text(encoding="utf-8")).get("receipt")
                found.append(
                    (path, None if carried is None else Receipt(**carried | {"number": int(carried["number"])}))
                )
            except (OSError, ValueError, TypeError, AttributeError, KeyError):
                raise InputError(f"{path} is damaged: it can't be compared with a ledger") from None
    return found


def ledger_at(ledger_path: str | None, folder: str) -> "Ledger | None":
    """Return the named ledger; warn if a release in the folder was charged to it and it doesn't know of that."""
    if ledger_path is None:
        return None
    ledger = pdips.Ledger(ledger_path)
    with suppress(InputError):  # a damaged file is reported where it is used
        for path, receipt in receipts_in(Path(folder)) if ledger.path.exists() else ():
            complaint = None if receipt is None else ledger.compare(receipt)
            if complaint is not None:
                click.echo(f"WARNING   {path}: {complaint} (pdips ledger check)", err=True)
    return ledger


@contextmanager
def notes_in_a_line() -> Iterator[None]:
    """Show messages of the library to the curator as one line each, and no warnings of other packages."""
    logger, handler = logging.getLogger("pdips"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("NOTE      %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        if issubclass(category, UselessWarning):
            click.echo(f"WARNING   {message}", err=True)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UselessWarning)
            warnings.showwarning = show  # type: ignore[assignment]
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def show_verdicts(verdicts: "Mapping[str, Verdict]") -> None:
    """Print the verdict of each section of the curator's report; nothing where there is no report."""
    if not verdicts:
        return
    click.echo("verdicts  FOR THE CURATOR ONLY: from the confidential table; acting on them is not covered by epsilon")
    for name, verdict in verdicts.items():
        click.echo(f"          {name:<11}  {verdict.short}")


def ledger_line(ledger: "Ledger | None") -> str:
    if ledger is None:
        return "none named (--ledger): this spend is on no record"
    account = ledger.summary()
    reserved = f", {spell(account.reserved_epsilon)} reserved" if account.reserved_epsilon else ""
    if account.total_epsilon is None or account.remaining_epsilon is None:
        return f"epsilon {spell(account.spent_epsilon)} spent{reserved}, no total set (pdips ledger set-total)"
    line = (
        f"epsilon {spell(account.spent_epsilon)} of {spell(account.total_epsilon)} spent{reserved}, "
        f"{spell(account.remaining_epsilon)} left"
    )
    if account.total_rho is None or account.remaining_rho is None or account.total_delta is None:
        return line
    reserved = f", {float(account.reserved_rho or 0):.6g} reserved" if account.reserved_rho else ""
    return (
        f"rho {float(account.spent_rho or 0):.6g} of {float(account.total_rho):.6g} spent{reserved}, "
        f"{float(account.remaining_rho):.6g} left; read at delta {spell(account.total_delta)}: {line}"
    )


def tell_paid(directory: Path, epsilon: str, kind: str, ledger: "Ledger | None", published: str) -> None:
    """Print the price of figures that were just published, and write the pages again that have them in their totals.

    The card is written whatever becomes of the report after it.
    """
    from pdips.report.pages import rewrite_report, write_card

    click.echo(f"price     epsilon = {spell(exact(epsilon, 'epsilon'))}, beside what the sets cost; kind {kind}")
    click.echo(f"ledger    {ledger_line(ledger)}")
    click.echo(f"public    {published}: may be published")
    try:
        click.echo(f"card      {write_card(directory / 'public')}: written again with these figures")
        report = rewrite_report(directory)
    except InputError as error:
        raise InputError(f"{error}; the figures are published and charged: mend it, then `pdips report DIR`") from None
    if report is not None:
        click.echo(f"report    {report}: written again")
