"""The program ``pdips``.

Exit codes: 0 done; 1 a bug; 2 bad input; 3 refused (budget, convergence), or found at
fault (check, certify); 4 charged and not finished, which the message says how to mend;
130 interrupted before a charge.
"""

import os
import signal
import sys
import typing
from contextlib import suppress

import click

from pdips import __version__
from pdips.cli.answer import answer
from pdips.cli.audit import audit
from pdips.cli.check import bounds, certify, check
from pdips.cli.common import (
    BAD_INPUT,
    BUG,
    INTERRUPTED,
    REFUSED_OR_AT_FAULT,
    RESUMABLE,
    STATE,
    decisive,
)
from pdips.cli.evaluate import evaluate
from pdips.cli.ledger import ledger
from pdips.cli.models import models
from pdips.cli.plan import plan
from pdips.cli.resume import resume
from pdips.cli.schema import schema
from pdips.cli.synthesize import report, synthesize
from pdips.errors import (
    ChangedTableError,
    InputError,
    RefusedError,
    ResumableError,
)
from pdips.registry import GET_PAPERS
from pdips.release.folder import UnfinishedError

INTERRUPTED_LINE = "interrupted; nothing was charged, nothing was released"


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="pdips")
def program() -> None:
    """Differentially private data synthesis with a privacy statement that is true."""


for _command in (
    synthesize,
    resume,
    report,
    evaluate,
    answer,
    check,
    certify,
    bounds,
    plan,
    audit,
    ledger,
    schema,
):
    program.add_command(_command)
program.add_command(models)


@program.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []}
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def study(context: click.Context, words: tuple[str, ...]) -> None:
    """Recompute a paper's table or figure, by the package of the studies."""
    from importlib.metadata import entry_points

    for entry in entry_points(group="pdips.commands", name="study"):
        command: click.Command = entry.load()
        with command.make_context("study", [*words], parent=context.parent) as inner:
            command.invoke(inner)
        return
    raise InputError(f"the studies are in a package of their own: {GET_PAPERS}")


def main() -> None:
    """Run the program and turn every way it can end into an exit code and at most one
    line.
    """
    # matrices are small, idle threads cost
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    # so that what a run leaves behind is cleared away
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.default_int_handler)
    STATE.begin()
    try:
        # None, or the code of a command that ended by Exit
        code = program.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else str(error), err=True)
        sys.exit(BAD_INPUT)
    except BaseException as error:
        if os.environ.get("PDIPS_TRACEBACK") and not isinstance(error, _FORESEEN):
            raise
        told = decisive(error)
        ending = STATE.ending(told)
        if ending is None and _has_no_reader(error):
            sys.exit(error.code)
        _stop(*(ending or _ending(told)))
    if code:
        sys.exit(code)


def _has_no_reader(error: BaseException) -> typing.TypeGuard[SystemExit]:
    """Whether whoever read what is printed has gone, as ``head`` does: click ends the
    program, and there is nobody to be told.
    """
    is_muted = type(sys.stdout).__name__.endswith("PacifyFlushWrapper")  # by click
    return is_muted and isinstance(error, SystemExit)


_FORESEEN = (
    InputError,
    RefusedError,
    ResumableError,
    click.ClickException,
    click.Abort,
)


def _ending(error: BaseException) -> tuple[str, int]:
    """Return the line and the exit code for an exception that ends the program."""
    match error:
        case click.ClickException():
            return _complaint(error), BAD_INPUT
        case InputError():
            return str(error), BAD_INPUT
        case RefusedError():
            return f"refused: {error}", REFUSED_OR_AT_FAULT
        case ResumableError():
            return str(error), RESUMABLE
        case UnfinishedError():
            return str(error), error.code
        case ChangedTableError():
            return f"{error}; nothing was charged", BAD_INPUT
        case OSError():
            what = error.strerror or "a file could not be written"
            return f"{what}; nothing was charged, nothing was released", BAD_INPUT
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED_LINE, INTERRUPTED
        case SystemExit():
            return _left(), BAD_INPUT
    # A message from deep inside may quote a value of the table, so only its type is
    # shown.
    hint = (
        "Run again with PDIPS_TRACEBACK=1 to see where; what it prints may quote "
        "confidential values"
    )
    return f"a bug: {type(error).__name__}. {hint}", BUG


def _complaint(error: click.ClickException) -> str:
    message = error.format_message()
    if isinstance(error, click.MissingParameter):
        parameter = error.param
        if parameter is not None and parameter.name == "schema_path":
            message += " `pdips schema draft TABLE` prints a first guess at one."
    return message


def _left() -> str:
    """Say who asked the program to end."""
    return (
        "a model, or a package that it uses, asked the program to end; nothing was "
        "charged, nothing was released"
    )


def run() -> None:
    """Run :func:`main` as a whole process: an interrupt that comes while it ends
    otherwise is one, too.
    """
    sys.unraisablehook = _send_again
    try:
        main()
    except KeyboardInterrupt:
        _stop(INTERRUPTED_LINE, INTERRUPTED)


def _send_again(dropped: typing.Any) -> None:  # typeshed's UnraisableHookArgs
    """Interrupt once more where Python has dropped an interrupt, as in the callback of
    a weak reference.
    """
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    elif os.environ.get("PDIPS_TRACEBACK"):  # a message may quote a value of the table
        sys.__unraisablehook__(dropped)


def _stop(message: str, code: int) -> typing.NoReturn:
    """Print a line, if there is somewhere to print it, and leave."""
    with suppress(OSError):
        click.echo(f"pdips: {' '.join(message.split())}", err=True)
    sys.exit(code)
