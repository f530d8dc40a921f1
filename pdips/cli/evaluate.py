"""The command ``evaluate``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdips.cli.common import (
    ALLOW_REFUSALS,
    EXPLAIN,
    QUIET,
    command_of,
    ledger_at,
    one_refusal,
    tell_paid,
)
from pdips.errors import InputError
from pdips.html import show_progress, spelt

if TYPE_CHECKING:
    from pdips.evaluation.regression import Family


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("directory", metavar="DIR")
@click.option(
    "--members",
    metavar="TABLE",
    help="The members of the households in the first TABLE.",
)
@click.option(
    "--analysis",
    "formula",
    metavar="FORMULA",
    help='Such as "voted ~ age + college * prereg".',
)
@click.option(
    "--family",
    type=click.Choice(["linear", "logistic", "poisson"]),
    help="Of the analysis. By default logistic for an outcome with two levels, else "
    "linear.",
)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the evaluation to this file too."
)
@click.option(
    "--paid-epsilon",
    "epsilon",
    metavar="E",
    help="Measure privately at this price instead: two figures that may be published.",
)
@click.option(
    "--ledger", "ledger_path", metavar="L.sqlite", help="Charged for --paid-epsilon."
)
@click.option("--explain", is_flag=True, help=f"With --paid-epsilon. {EXPLAIN}")
@ALLOW_REFUSALS
@QUIET
def evaluate(**options: Any) -> None:
    """Compare the release in DIR with the TABLE that it came from.

    For internal use, except with a price: figures go to
    DIR/confidential/evaluation.json and into the curator's report; with --paid-epsilon
    two private ones go to DIR/public/evaluation.json.
    """
    asked = EvaluationOptions(**options)
    if asked.epsilon is None:
        asked.refuse_paid_options()
        _inside(asked)
        return
    if asked.has_analysis or asked.json_path is not None:
        raise InputError(
            "--paid-epsilon goes with --ledger and --members only: no "
            "analysis is measured so"
        )
    paid(
        asked.tables,
        asked.directory,
        asked.epsilon,
        asked.ledger_path,
        explain=asked.explain,
        allow=asked.allow,
        quiet=asked.quiet,
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The options of ``pdips evaluate``."""

    table: str
    directory: str
    members: str | None
    formula: str | None
    family: "Family | None"
    json_path: str | None
    epsilon: str | None
    ledger_path: str | None
    explain: bool
    allow: tuple[str, ...]
    quiet: bool

    @property
    def tables(self) -> Any:
        """The table, or the two of households and of members."""
        return self.table if self.members is None else (self.table, self.members)

    @property
    def has_analysis(self) -> bool:
        """Whether an analysis is asked for."""
        return self.formula is not None or self.family is not None

    def refuse_paid_options(self) -> None:
        """Refuse what says nothing without a price."""
        if self.ledger_path is not None:
            raise InputError(
                "--ledger belongs to --paid-epsilon: without it nothing is charged"
            )
        if self.explain:
            raise InputError(
                "--explain belongs to --paid-epsilon: without it "
                "messages name the rule that was broken"
            )
        if self.allow:
            raise InputError(
                "--allow belongs to --paid-epsilon: without it nothing is on record"
            )


def _inside(asked: EvaluationOptions) -> None:
    from pdips.evaluation.document import inside_paths
    from pdips.evaluation.evaluate import evaluate
    from pdips.privacy.curator import Clock
    from pdips.report.pages import rewrite_report

    paths = inside_paths(asked.directory, asked.json_path)
    with show_progress(quiet=asked.quiet) as progress:
        found = evaluate(
            asked.tables,
            asked.directory,
            formula=asked.formula,
            family=asked.family,
            clock=Clock(progress),
        )
    found.write_inside(paths)
    click.echo(found)
    try:
        report = rewrite_report(Path(asked.directory))
    except InputError as error:
        raise InputError(
            f"{error}; the evaluation is written: mend it, then `pdips report DIR`"
        ) from None
    if report is not None:
        paths = [*paths, report]
    click.echo(f"inside    {', '.join(map(str, paths))}")


def paid(
    table: Any,
    directory: str,
    epsilon: str,
    ledger_path: str | None,
    *,
    explain: bool,
    quiet: bool,
    allow: tuple[str, ...] = (),
    resume: int | None = None,
) -> None:
    """Measure a release at a price and print the figures; ``resume`` is the charge to
    be finished.
    """
    from pdips.evaluation.paid import FILE, evaluate_paid
    from pdips.privacy.curator import Clock

    alone, members = (table, None) if isinstance(table, str) else table
    options = {
        "table": alone,
        "members": members,
        "directory": directory,
        "epsilon": epsilon,
        "explain": explain,
    }
    ledger = ledger_at(ledger_path, directory)
    with show_progress(quiet=quiet) as progress, one_refusal(ledger, explain=explain):
        found = evaluate_paid(
            table,
            directory,
            epsilon=epsilon,
            ledger=ledger,
            explain=explain,
            clock=Clock(progress),
            allow=allow,
            resume=resume,
            command=command_of("evaluate", options),
        )
    lines = [f"{'measure':<36} {'value':>10} {'+- noise':>10} {'reference':>10}"]
    for one in found.measures:
        values = (one.value, one.standard_deviation_of_noise, one.reference)
        figures = " ".join(f"{spelt(value):>10}" for value in values)
        lines.append(f"{one.measure:<36} {figures}  {one.reading}")
    published = f"{Path(directory) / 'public' / FILE}"
    tell_paid(Path(directory), lines, epsilon, "pure", ledger, published)
