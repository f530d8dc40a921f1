"""The command ``calibrate``."""

from typing import TYPE_CHECKING, Any, Literal

import click

from pdips.cli.common import MODEL, NEIGHBOURS, OPTIONS, SCHEMA, SETS, chosen
from pdips.html import show_progress
from pdips.privacy.loss import spell

if TYPE_CHECKING:
    from pdips.calibration.calibrate import Calibration

SHOWN = 5


@click.command()
@click.argument("mechanism_name", metavar="MECHANISM")
@SCHEMA
@click.option(
    "--margin",
    "margins",
    multiple=True,
    metavar="COLUMNS",
    help='A margin such as age or "sex,age", or one-way, two-way, all (the default); of modips also a statistic of its '
    "model; repeatable.",
)
@click.option("--standard-error", type=float, metavar="X", help="Of every count, at most.")
@click.option("--interval-width", type=float, metavar="X", help="Full width of an interval about every count, at most.")
@click.option("--level", type=float, default=0.95, show_default=True, metavar="P", help="Of the interval.")
@click.option("--share", is_flag=True, help="The target is a share of the records, from 0 to 1.")
@click.option("--records", "n_records", type=int, metavar="N", help="Public number of records, or a public guess.")
@click.option(
    "--sampling-share",
    type=float,
    metavar="P",
    help="Add the error of a sample, for a cell of this share (0.5: worst).",
)
@click.option(
    "--public-table", metavar="T", help="A PUBLIC or SYNTHETIC table to simulate on, never the confidential one."
)
@click.option("--simulate", is_flag=True, help="Simulate even where there is a closed form.")
@click.option("--replicates", type=int, default=40, show_default=True, metavar="R", help="Releases at each epsilon.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Of a simulation.")
@click.option("--largest-epsilon", default="100", show_default=True, metavar="E", help="The largest that is tried.")
@SETS
@NEIGHBOURS
@MODEL
@OPTIONS
@click.option("--json", "json_path", metavar="FILE", help="Write the result to this file too.")
def calibrate(
    mechanism_name: str,
    schema_path: str,
    margins: tuple[str, ...],
    share: bool,
    public_table: str | None,
    simulate: bool,
    n_sets: int,
    neighbours: str,
    model: str | None,
    options: tuple[str, ...],
    json_path: str | None,
    **asked: Any,
) -> None:
    """Find the smallest epsilon at which counts have a required accuracy, from public facts only.

    MECHANISM is one of those that `pdips synthesize` takes. No confidential table is read, and nothing is spent.
    """
    from pdips.calibration import calibrate as smallest
    from pdips.data.schema import Schema
    from pdips.data.table import Table
    from pdips.release.documents import write_json
    from pdips.release.folder import output_file

    target = None if json_path is None else output_file(json_path)
    common = {"epsilon": 1, "n_sets": n_sets, "neighbours": neighbours}
    build, settings = chosen(mechanism_name, options, common, model)
    configured = build(**settings)
    schema = Schema.load(schema_path)
    method: Literal["simulation"] | None = "simulation" if simulate else None
    with show_progress() as progress:
        found = smallest.calibrate(
            configured,
            schema,
            of=margins or "all",
            in_="share" if share else "records",
            public_table=None if public_table is None else Table.read(public_table, schema, counted=False),
            method=method,
            progress=progress,
            **asked,
        )
    _tell(found)
    if target is not None:
        write_json(target, found.describe())


def _tell(found: "Calibration") -> None:
    made = found.mechanism
    price = f"epsilon = {spell(found.epsilon)} in total over {made.n_sets} set{'s' if made.n_sets > 1 else ''}"
    click.echo(f"smallest  {price}, {made.neighbours} neighbours ({found.method})")
    error = f", Monte Carlo standard error {found.monte_carlo_error:.2g}" if found.monte_carlo_error else ""
    click.echo(f"reached   {found.goal} {found.reached:.4g} of at most {found.target:g}, {found.unit}{error}")
    rows = list(found.by_margin.itertuples(index=False))
    for number, row in enumerate(rows[:SHOWN]):
        click.echo(f"{'worst' if not number else '':<9} {row.margin}: {row.reached:.4g}")
    if len(rows) > SHOWN:
        click.echo(f"{'':<9} ... and {len(rows) - SHOWN} margins with less (--json has all)")
    click.echo("tried     " + ", ".join(f"{row.epsilon:g}: {row.reached:.4g}" for row in found.by_epsilon.itertuples()))
    click.echo(f"NOTE      {found.statement}")
