"""The commands ``synthesize`` and ``report``."""

import typing
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pdips.cli.common import (
    EXPLAIN,
    MODEL,
    NEIGHBOURS,
    OPTIONS,
    QUIET,
    SCHEMA,
    SETS,
    chosen,
    ledger_at,
    ledger_line,
    notes_in_a_line,
    one_refusal,
    show_verdicts,
)
from pdips.html import show_progress
from pdips.privacy.loss import spell
from pdips.registry import MECHANISMS
from pdips.release.folder import staging

if TYPE_CHECKING:
    from pdips.data.table import Table
    from pdips.mechanism import Mechanism
    from pdips.privacy.curator import Clock
    from pdips.privacy.ledger import Ledger
    from pdips.release.release import Release, RunRecord
    from pdips.report.verdict import Verdict

FileFormat = typing.Literal["parquet", "csv", "sav", "dta"]


@click.command()
@click.argument("table", metavar="TABLE")
@click.option("--members", metavar="TABLE", help="The members of the households in the first TABLE, each a record.")
@SCHEMA
@click.option(
    "--mechanism",
    "mechanism_name",
    metavar="NAME",
    help=f"One of {', '.join(MECHANISMS)}. Left out: chosen by the schema, and by whether there is a model.",
)
@click.option("--columns", "names", metavar="A,B,C", help="Only these columns of the schema; the others are left out.")
@click.option("--epsilon", required=True, metavar="E", help="Privacy loss in total, over all sets.")
@SETS
@NEIGHBOURS
@MODEL
@OPTIONS
@click.option("--ledger", "ledger_path", metavar="L.sqlite", help="The account of all that this table has spent.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="For tests and studies only: makes the release unfit to publish, and keeps it inside.",
)
@click.option(
    "--allow",
    type=click.Choice(["asymptotic", "seeded"]),
    multiple=True,
    help="Write sets to public/ although their guarantee is only asymptotic, which bounds nothing, or although they "
    "are made from a seed. By default both stay inside.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="For a folder: the dask scheduler whose workers count its files, or local, for processes of this machine.",
)
@click.option("--explain", is_flag=True, help=EXPLAIN)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(typing.get_args(FileFormat)),
    default="parquet",
    show_default=True,
    help="sav and dta (SPSS, Stata) are written beside parquet, with labels.",
)
@click.option("--out", required=True, metavar="DIR", help="Folder for public/ and confidential/.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier release in DIR.")
@QUIET
def synthesize(
    table: str,
    members: str | None,
    schema_path: str,
    mechanism_name: str | None,
    names: str | None,
    epsilon: str,
    n_sets: int,
    neighbours: str,
    model: str | None,
    options: tuple[str, ...],
    ledger_path: str | None,
    seed: int | None,
    allow: tuple[str, ...],
    scheduler: str | None,
    explain: bool,
    file_format: FileFormat,
    out: str,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Make synthetic sets of TABLE (.csv, .csv.gz, .parquet or a folder of it, .dta, .sav, .sas7bdat) and their pages.

    Tables in databases are named as people.duckdb#people or postgresql://host/db#people.
    With --ledger the price is reserved before TABLE is read.
    """
    from pdips.data.schema import Schema
    from pdips.privacy.curator import Clock
    from pdips.release.release import check_format
    from pdips.report import pages
    from pdips.synthesis import in_files, release_of

    given = table if members is None else (table, members)
    common = {"epsilon": epsilon, "n_sets": n_sets, "neighbours": neighbours}
    schema = Schema.load(schema_path)
    if names is not None:
        schema = schema.only(name.strip() for name in names.split(","))
    if mechanism_name is None:
        from pdips.margins.planning import suited

        mechanism_name, why = suited(schema, has_model=model is not None, in_files=in_files(table))
        quieter = mechanism_name == "pairs" and not any(each.startswith("kind=") for each in options)
        click.echo(f"mechanism {mechanism_name}: {why}{'; kind=zcdp often has far less noise: pdips plan' * quieter}")
    build, settings = chosen(mechanism_name, options, common, model)
    mechanism: Mechanism = build(**settings)
    check_format(schema, file_format)
    ledger = ledger_at(ledger_path, out)
    verdicts: dict[str, Verdict] = {}
    with staging(Path(out), overwrite) as place, show_progress(quiet=quiet) as progress, notes_in_a_line():
        clock = Clock(progress)
        with one_refusal(ledger, explain=explain):
            checked, release, record = release_of(
                mechanism, schema, given, seed=seed, ledger=ledger, explain=explain, clock=clock, scheduler=scheduler
            )
        named = {"asymptotic": release.loss.kind == "asymptotic", "seeded": release.reproducible}
        needed = [word for word, is_needed in named.items() if is_needed]
        published = release.loss.kind != "none" and {*needed} <= {*allow}
        with clock.step("writing the synthetic sets"):
            if published:
                public = place.part("public")
                public.rmdir()  # publish makes it
                release.publish(public, file_format=file_format, allow=allow)
                pages.write_card(public)
                place.place("public")
        with place.besides() if published else nullcontext():
            inside = place.part("confidential")
            if not published:
                release.write(inside, file_format=file_format)
            _write_inside(inside, checked, release, record, ledger, clock, verdicts, published=published)
            place.place("confidential")
    _tell(Path(out), release, ledger, needed, published=published, file_format=file_format)
    show_verdicts(verdicts)


def _write_inside(
    folder: Path,
    table: "Table",
    release: "Release",
    record: "RunRecord",
    ledger: "Ledger | None",
    clock: "Clock",
    verdicts: "dict[str, Verdict]",
    *,
    published: bool,
) -> None:
    from pdips.evaluation.encoding import with_decile_bins
    from pdips.evaluation.margins import compare, no_comparison
    from pdips.release.documents import AccountState, Diagnostics, RunDocument
    from pdips.report.pages import write_report
    from pdips.report.posterior_figures import write_tree

    with clock.step("comparing with the confidential table"):
        if table.partitioned:
            comparison = no_comparison()
        else:
            comparison = compare(with_decile_bins(table), [*release.sets, *release.large_sets])
    with clock.step("looking closer at the run"):
        diagnostics, tree = record.look_closer()
    if tree is not None:
        write_tree(tree, folder / "diagnostics")
    RunDocument(
        published=published,
        seconds={**clock.seconds, **record.seconds},
        peak_memory_mib=record.peak_memory,
        ledger=None if ledger is None else AccountState.of(ledger, release.loss),
        n_records=table.n_records,
        diagnostics=Diagnostics.model_validate(diagnostics),
        comparison=comparison,
    ).write(folder)
    write_report(folder, release.document(), tell=verdicts.update)


def _tell(
    out: Path, release: "Release", ledger: "Ledger | None", needed: list[str], *, published: bool, file_format: str
) -> None:
    """Print what was released, at which price, and where the pages are."""
    loss, n_sets = release.loss, release.n_sets
    plural = "s" if n_sets > 1 else ""
    click.echo(
        f"released  {n_sets} synthetic set{plural} of {len(release.schema.columns)} columns by {release.mechanism}"
    )
    if loss.is_finite:
        seeded = " (from a seed: not to be published)" if release.reproducible else ""
        price = f"epsilon = {spell(loss.epsilon)} in total, {loss.neighbours} neighbours, kind {loss.kind}"
        click.echo(f"price     {price}{seeded}")
    elif loss.kind == "asymptotic":
        figure = f"the paper's epsilon = {spell(loss.epsilon)} bounds nothing"
        click.echo(f"price     NO BOUND (kind asymptotic): {figure}")
    else:
        click.echo(f"price     NO GUARANTEE (kind {loss.kind}): for studies, kept inside")
    click.echo(f"ledger    {ledger_line(ledger)}")
    if published:
        kinds = ["synthetic", *(("households", "members") if release.schema.members else ())]
        sets = [f"{kind}_1.{file_format}{f' ... _{n_sets}' if n_sets > 1 else ''}" for kind in kinds]
        files = ", ".join([*sets, *(f"{name}.{file_format}" for name in release.tables)])
        click.echo(f"public    {out / 'public'}: card.html, datapackage.json, privacy.json, {files}")
    elif loss.kind != "none":
        allow = " ".join(f"--allow {word}" for word in needed)
        click.echo(f"public    nothing: the synthetic sets stay inside unless you say {allow}")
    click.echo(f"inside    {out / 'confidential' / 'report.html'}: for the curator only")
    if release.reproducible:
        click.echo("WARNING   made from a seed: anyone who knows it can subtract the noise. Do not publish.", err=True)


@click.command()
@click.argument("directory", metavar="DIR")
def report(directory: str) -> None:
    """Write the HTML pages of the release in DIR again, and print the report's verdicts."""
    from pdips.report.pages import rewrite

    verdicts: dict[str, Verdict] = {}
    for path in rewrite(Path(directory), tell=verdicts.update):
        click.echo(str(path))
    show_verdicts(verdicts)
