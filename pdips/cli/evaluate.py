"""The command ``evaluate``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdips.cli.common import QUIET
from pdips.errors import InputError
from pdips.html import show_progress

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
@QUIET
def evaluate(**options: Any) -> None:
    """Compare the release in DIR with the TABLE that it came from.

    For internal use: figures go to DIR/confidential/evaluation.json and into the
    curator's report.
    """
    _inside(EvaluationOptions(**options))


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The options of ``pdips evaluate``."""

    table: str
    directory: str
    members: str | None
    formula: str | None
    family: "Family | None"
    json_path: str | None
    quiet: bool

    @property
    def tables(self) -> Any:
        """The table, or the two of households and of members."""
        return self.table if self.members is None else (self.table, self.members)


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
