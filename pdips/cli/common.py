"""What the commands share."""

import dataclasses
import logging
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from pdips.errors import InputError
from pdips.privacy import spell

if TYPE_CHECKING:
    from pdips.ledger import Ledger
    from pdips.report.verdicts import Verdict

COMMON = ("epsilon", "n_sets", "neighbours")


def settings_of(mechanism: type[Any], options: tuple[str, ...], common: dict[str, Any]) -> dict[str, Any]:
    """Read the settings of a mechanism from the words of the command line."""
    hints = {
        field.name: hint
        for field in dataclasses.fields(mechanism)
        for name, hint in typing.get_type_hints(mechanism).items()
        if field.name == name and name not in COMMON
    }
    settings = dict(common)
    for option in options:
        key, equals, text = option.partition("=")
        if not equals:
            raise InputError(f"--option {option!r} must have the form key=value")
        if key in settings:
            raise InputError(f"option {key} is given twice")
        if key not in hints:
            raise InputError(f"{mechanism.name} has no option {key!r}; it has {', '.join(hints) or 'none'}")
        settings[key] = _parse(key, text, hints[key])
    return settings


def _parse(key: str, text: str, hint: Any) -> Any:
    """Read the text of an option as what its annotation asks for."""
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)  # a union with a Literal is the latter
    kinds = typing.get_args(hint) if is_union else (hint,)
    if any(typing.get_origin(kind) is tuple for kind in kinds):
        return tuple(part.strip() for part in text.split(","))
    if int in kinds and str not in kinds:
        try:
            return int(text)
        except ValueError:
            raise InputError(f"option {key} must be a whole number, got {text!r}") from None
    return text


@contextmanager
def show_progress() -> Iterator[Callable[[str], None]]:
    """Show the current step while it lasts, if somebody is watching."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns, console = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()), Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda step: bar.update(task, description=step)


@contextmanager
def notes_in_a_line() -> Iterator[None]:
    """Show what the library logs for the curator, such as further rounds of chains, as one line each."""
    logger, handler = logging.getLogger("pdips"), _Notes()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"NOTE      {record.getMessage()}", err=True)


def show_verdicts(verdicts: "Mapping[str, Verdict]") -> None:
    """Print the verdict of each section of the curator's report; nothing where there is no report."""
    if not verdicts:
        return
    click.echo("verdicts  FOR THE CURATOR ONLY: from the confidential table; acting on them is not covered by epsilon")
    for name, verdict in verdicts.items():
        click.echo(f"          {name:<11}  {verdict.short}")


def ledger_line(ledger: "Ledger | None") -> str:
    if ledger is None:
        return "none named (--ledger): nobody adds up what this table has spent"
    account = ledger.summary()
    if account.total_epsilon is None or account.remaining_epsilon is None:
        return f"epsilon {spell(account.spent_epsilon)} spent, no total set (pdips ledger set-total)"
    return (
        f"epsilon {spell(account.spent_epsilon)} of {spell(account.total_epsilon)} spent, "
        f"{spell(account.remaining_epsilon)} left"
    )
