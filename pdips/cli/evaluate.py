"""The command ``evaluate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdips.cli.common import EXPLAIN, QUIET, ledger_at, one_refusal, tell_paid
from pdips.errors import InputError
from pdips.html import show_progress, spelt

if TYPE_CHECKING:
    from pdips.evaluation.regression import Family


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("directory", metavar="DIR")
@click.option("--members", metavar="TABLE", help="The members of the households in the first TABLE.")
@click.option("--analysis", "formula", metavar="FORMULA", help='Such as "voted ~ age + college * prereg".')
@click.option(
    "--family",
    type=click.Choice(["linear", "logistic", "poisson"]),
    help="Of the analysis. By default logistic for an outcome with two levels, else linear.",
)
@click.option("--json", "json_path", metavar="FILE", help="Write the evaluation to this file too.")
@click.option(
    "--paid-epsilon",
    "epsilon",
    metavar="E",
    help="Measure privately at this price instead: two figures that may be published.",
)
@click.option("--ledger", "ledger_path", metavar="L.sqlite", help="Charged for --paid-epsilon.")
@click.option("--explain", is_flag=True, help=f"With --paid-epsilon. {EXPLAIN}")
@QUIET
def evaluate(
    table: str,
    directory: str,
    members: str | None,
    formula: str | None,
    family: "Family | None",
    json_path: str | None,
    epsilon: str | None,
    ledger_path: str | None,
    explain: bool,
    quiet: bool,
) -> None:
    """Compare the release in DIR with the TABLE that it came from.

    For internal use, except with a price: figures go to DIR/confidential/evaluation.json and into the curator's
    report; with --paid-epsilon two private ones go to DIR/public/evaluation.json.
    """
    both = table if members is None else (table, members)
    if epsilon is None:
        if ledger_path is not None:
            raise InputError("--ledger belongs to --paid-epsilon: without it nothing is charged")
        if explain:
            raise InputError("--explain belongs to --paid-epsilon: without it messages name the rule that was broken")
        _inside(both, directory, formula, family, json_path, quiet=quiet)
        return
    if formula is not None or family is not None or json_path is not None:
        raise InputError("--paid-epsilon goes with --ledger and --members only: no analysis is measured so")
    _paid(both, directory, epsilon, ledger_path, explain=explain, quiet=quiet)


def _inside(
    table: Any, directory: str, formula: str | None, family: "Family | None", json_path: str | None, *, quiet: bool
) -> None:
    from pdips.evaluation.document import inside_paths
    from pdips.evaluation.evaluate import evaluate
    from pdips.privacy.curator import Clock
    from pdips.report.pages import rewrite_report

    paths = inside_paths(directory, json_path)
    with show_progress(quiet=quiet) as progress:
        found = evaluate(table, directory, formula=formula, family=family, clock=Clock(progress))
    found.write_inside(paths)
    click.echo(found)
    try:
        report = rewrite_report(Path(directory))
    except InputError as error:
        raise InputError(f"{error}; the evaluation is written: mend it, then `pdips report DIR`") from None
    click.echo(f"inside    {', '.join(map(str, [*paths, report] if report else paths))}")


def _paid(table: Any, directory: str, epsilon: str, ledger_path: str | None, *, explain: bool, quiet: bool) -> None:
    from pdips.evaluation.paid import FILE, evaluate_paid
    from pdips.privacy.curator import Clock

    ledger = ledger_at(ledger_path, directory)
    with show_progress(quiet=quiet) as progress, one_refusal(ledger, explain=explain):
        found = evaluate_paid(table, directory, epsilon=epsilon, ledger=ledger, explain=explain, clock=Clock(progress))
    click.echo(f"{'measure':<36} {'value':>10} {'+- noise':>10} {'reference':>10}")
    for one in found.measures:
        values = (one.value, one.standard_deviation_of_noise, one.reference)
        click.echo(f"{one.measure:<36} {' '.join(f'{spelt(value):>10}' for value in values)}  {one.reading}")
    tell_paid(Path(directory), epsilon, "pure", ledger, f"{Path(directory) / 'public' / FILE}")
