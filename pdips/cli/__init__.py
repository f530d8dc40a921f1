"""The program ``pdips``. Exit codes: 0 done, 1 a bug, 2 bad input, 3 refused, or found at fault (check, certify)."""

import os
import signal
import sys
import typing

import click

from pdips import __version__
from pdips.cli.audit import audit
from pdips.cli.calibrate import calibrate
from pdips.cli.check import bounds, certify, check
from pdips.cli.evaluate import evaluate
from pdips.cli.ledger import ledger
from pdips.cli.models import models
from pdips.cli.plan import plan
from pdips.cli.schema import schema
from pdips.cli.synthesize import report, synthesize
from pdips.cli.verify import verify
from pdips.errors import InputError, RefusedError
from pdips.registry import GET_PAPERS
from pdips.release.folder import UnfinishedError

INTERRUPTED = "interrupted; a spend that is on record stays charged", 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="pdips")
def program() -> None:
    """Differentially private data synthesis with a privacy statement that is true."""


for _command in (synthesize, report, evaluate, verify, check, certify, bounds, plan, calibrate, audit, ledger, schema):
    program.add_command(_command)
program.add_command(models)


@program.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
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
    """Run the program and turn every way it can end into an exit code and at most one line."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # matrices are small, idle threads cost
        os.environ.setdefault(name, "1")
    for number in (signal.SIGTERM, signal.SIGALRM):  # so that a hidden folder is cleared away
        signal.signal(number, signal.default_int_handler)
    try:
        program.main(standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else str(error), err=True)
        sys.exit(2)
    except (InputError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        if isinstance(error, click.MissingParameter) and error.param and error.param.name == "schema_path":
            message += " `pdips schema draft TABLE` prints a first guess at one."
        _stop(" ".join(message.split()), 2)
    except RefusedError as error:
        _stop(f"refused: {error}", 3)
    except UnfinishedError as error:
        if os.environ.get("PDIPS_TRACEBACK"):
            raise
        _stop(str(error), error.code)
    except OSError as error:
        what = error.strerror or "a file could not be written"
        _stop(f"{what}; nothing was released, a spend on record stays charged", 2)
    except (KeyboardInterrupt, click.Abort):
        _stop(*INTERRUPTED)
    except Exception as error:
        if os.environ.get("PDIPS_TRACEBACK"):
            raise
        # A message from deep inside may quote a value of the table, so only its type is shown.
        hint = "Run again with PDIPS_TRACEBACK=1 to see where; what it prints may quote confidential values"
        _stop(f"a bug: {type(error).__name__}. {hint}", 1)


def run() -> None:
    """Run :func:`main` as a whole process: an interrupt that comes while it ends otherwise is one, too."""
    sys.unraisablehook = _send_again
    try:
        main()
    except KeyboardInterrupt:
        _stop(*INTERRUPTED)


def _send_again(dropped: typing.Any) -> None:  # typeshed's UnraisableHookArgs can't be imported
    """Interrupt once more where Python has dropped an interrupt, as in the callback of a weak reference."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    elif os.environ.get("PDIPS_TRACEBACK"):  # a message may quote a value of the table
        sys.__unraisablehook__(dropped)


def _stop(message: str, code: int) -> typing.NoReturn:
    click.echo(f"pdips: {message}", err=True)
    sys.exit(code)
