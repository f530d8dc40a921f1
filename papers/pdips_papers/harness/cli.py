"""The command ``study``."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pdips.errors import InputError
from pdips_papers import find, names

if TYPE_CHECKING:
    import pandas as pd

    from pdips_papers.harness.study import Study

WIDEST = 1_000


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--replicates",
    type=int,
    metavar="R",
    help="Repetitions of each case; the study's own number if left out.",
)
@click.option(
    "--data",
    metavar="T",
    help="A table to use in place of simulated data, where the study can.",
)
@click.option(
    "--out",
    metavar="DIR",
    help="Folder for the table, the page and the replicates; study-NAME if left out.",
)
@click.option(
    "--epsilon",
    "epsilons",
    multiple=True,
    metavar="E",
    help="In place of the study's own; repeatable.",
)
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="Number of processes; all cores if left out, 0 for this process.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="A dask scheduler to use in place of processes on this machine.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, metavar="N"
)
def study(
    name: str | None,
    replicates: int | None,
    data: str | None,
    out: str | None,
    epsilons: tuple[str, ...],
    workers: int | None,
    scheduler: str | None,
    seed: int,
) -> None:
    """Recompute a paper's table or figure: DIR/table.csv and DIR/study.html, the
    paper's figures beside ours.

    A run that was stopped goes on with the same command. For research: nothing here is
    fit for publication.
    """
    if name is None:
        raise InputError(f"name a study: {', '.join(names())}")
    found = find(name)

    from pdips_papers.harness.page import write
    from pdips_papers.harness.run import measure, seconds
    from pdips_papers.harness.study import Options

    options = Options(
        replicates=found.default_replicates if replicates is None else replicates,
        data=None if data is None else Path(data),
        epsilons=epsilons,
    )
    folder = Path(out or f"study-{name}")
    start = time.perf_counter()
    try:
        with _task_bar() as tell:
            measurements = measure(
                found,
                options,
                folder,
                seed=seed,
                workers=workers,
                scheduler=scheduler,
                tell=tell,
            )
    except KeyboardInterrupt:
        click.echo(
            "pdips: interrupted; what is done is kept, and the same command "
            "goes on from there",
            err=True,
        )
        raise click.exceptions.Exit(130) from None
    command = shlex.join(["pdips", *sys.argv[1:]])
    table = write(
        found,
        options,
        measurements,
        folder,
        seed=seed,
        seconds=seconds(folder),
        command=command,
    )
    _print(found, table)
    click.echo(f"table     {folder / 'table.csv'}: {len(table):,} figures")
    where = "" if data is None else ": inside only"
    click.echo(f"page      {folder / 'study.html'}{where}")
    click.echo(f"time      {time.perf_counter() - start:,.0f} s")


@contextmanager
def _task_bar() -> Iterator[Callable[[int, int], None]]:
    """Show how many tasks are done, if somebody is watching."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("tasks", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(found: "Study", table: "pd.DataFrame") -> None:
    """Print the headline blocks of a study's table."""
    from rich.console import Console
    from rich.table import Table

    from pdips_papers.harness.page import lines, spread

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140)
    for block in found.layout(table):
        if not block.headline:
            continue
        content = spread(block, table)
        shown = Table(title=block.title, title_justify="left", box=None, pad_edge=False)
        shown.add_column("")
        for column in content["columns"]:
            shown.add_column(column["label"], justify="right", no_wrap=True)
            if column["has_paper"]:
                shown.add_column("paper", justify="right", no_wrap=True, style="dim")
        has_paper = [column["has_paper"] for column in content["columns"]]
        for label, cells in content["rows"]:
            shown.add_row(label, *lines(cells, has_paper))
        # A terminal that is too narrow wraps lines; figures cut short would be worse.
        needed = console.measure(
            shown, options=console.options.update(max_width=WIDEST)
        ).maximum
        Console(file=sys.stdout, width=max(console.width, needed)).print(shown)
