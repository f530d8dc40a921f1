"""The commands ``synthesize`` and ``report``."""

import shutil
import tempfile
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdips.cli.common import ledger_line, settings_of, show_progress
from pdips.errors import InputError
from pdips.privacy import spell
from pdips.registry import MECHANISMS, find

if TYPE_CHECKING:
    from pdips.ledger import Ledger
    from pdips.mechanism import Clock, Mechanism
    from pdips.release import Release, RunRecord
    from pdips.table import Table


@click.command()
@click.argument("table", metavar="TABLE")
@click.option("--schema", "schema_path", required=True, metavar="S.toml", help="What is public about the table.")
@click.option("--mechanism", "mechanism_name", required=True, metavar="NAME", help=f"One of {', '.join(MECHANISMS)}.")
@click.option("--epsilon", required=True, metavar="E", help="Privacy loss in total, over all sets.")
@click.option("--sets", "n_sets", type=int, default=1, show_default=True, metavar="M", help="Number of synthetic sets.")
@click.option(
    "--neighbours",
    default="replace-one",
    show_default=True,
    metavar="RELATION",
    help="replace-one (the number of records is public) or add-remove.",
)
@click.option("--model", metavar="FILE", help="A PyMC model (a file, or a name from `pdips models list`).")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="A setting of the mechanism; repeatable.")
@click.option("--ledger", "ledger_path", metavar="L.sqlite", help="The account of all that this table has spent.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="For tests and studies only: makes the release unfit to publish.",
)
@click.option("--format", "file_format", type=click.Choice(["parquet", "csv"]), default="parquet", show_default=True)
@click.option("--out", required=True, metavar="DIR", help="Folder for public/ and confidential/.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier release in DIR.")
def synthesize(
    table: str,
    schema_path: str,
    mechanism_name: str,
    epsilon: str,
    n_sets: int,
    neighbours: str,
    model: str | None,
    options: tuple[str, ...],
    ledger_path: str | None,
    seed: int | None,
    file_format: typing.Literal["parquet", "csv"],
    out: str,
    overwrite: bool,
) -> None:
    """Make synthetic sets of TABLE (.csv or .parquet) and the pages about them."""
    import numpy as np

    from pdips.ledger import Ledger
    from pdips.mechanism import Clock, takes_counts
    from pdips.schema import Schema
    from pdips.table import Table

    common = {"epsilon": epsilon, "n_sets": n_sets, "neighbours": neighbours}
    build = find(mechanism_name)
    if model is not None:
        options = (f"model={model}", *options)
    mechanism: Mechanism = build(**settings_of(build, options, common))
    schema = Schema.load(schema_path)
    mechanism.spends(schema)
    with _staging(Path(out), overwrite) as folder, show_progress() as progress:
        clock = Clock(progress)
        with clock.step("reading the table"):
            checked = Table.read(table, schema, counted=None if takes_counts(mechanism) else False)
        ledger = None if ledger_path is None else Ledger(ledger_path)
        rng = None if seed is None else np.random.default_rng(seed)
        release, record = mechanism.release(checked, rng=rng, ledger=ledger, progress=progress)
        published = _write_release(folder, release, file_format, clock)
        _write_inside(folder, checked, release, record, ledger, clock, published=published)
    _tell(Path(out), release, ledger, published=published, file_format=file_format)


@contextmanager
def _staging(out: Path, overwrite: bool) -> Iterator[Path]:
    """Lend a folder that becomes ``out`` when all went well, and vanishes when not."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a folder")
    if out.is_dir() and any(out.iterdir()):
        if not overwrite:
            raise InputError(f"{out} is not empty; name another folder, or say --overwrite to replace a release there")
        if not {entry.name for entry in out.iterdir()} <= {"public", "confidential"}:
            raise InputError(f"{out} holds more than a release; --overwrite won't replace it")
    home = next(folder for folder in out.absolute().parents if folder.exists())
    if not home.is_dir():
        raise InputError(f"{home} is no folder, so {out} can't be made")
    try:
        staged = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=home))
    except OSError:
        raise InputError(f"can't write in {home}, where {out} would be") from None
    try:
        yield staged
        _replace(out, staged)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _replace(out: Path, staged: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    staged.chmod(0o755)
    if out.is_dir() and any(out.iterdir()):
        old = Path(tempfile.mkdtemp(prefix=f".{out.name}-old-", dir=out.absolute().parent))
        out.rename(old)
        staged.rename(out)
        shutil.rmtree(old)
    else:
        staged.rename(out)


def _write_release(
    folder: Path, release: "Release", file_format: typing.Literal["parquet", "csv"], clock: "Clock"
) -> bool:
    """Write the synthetic sets where they belong, and return whether that is the public folder."""
    published = release.loss.is_finite
    inside = folder / "confidential"
    inside.mkdir(mode=0o700)
    with clock.step("writing the synthetic sets"):
        if published:
            release.publish(folder / "public", file_format=file_format, allow=["reproducible"])
        else:
            release.write(inside, file_format=file_format)
    return published


def _write_inside(
    folder: Path,
    table: "Table",
    release: "Release",
    record: "RunRecord",
    ledger: "Ledger | None",
    clock: "Clock",
    *,
    published: bool,
) -> None:
    from pdips.release import write_json
    from pdips.report.pages import rewrite
    from pdips.utility.margins import compare

    with clock.step("comparing with the confidential table"):
        comparison = compare(table, [*release.sets, *release.large_sets])
    run = {
        "published": published,
        "seconds": {**clock.seconds, **record.seconds},
        "peak_memory_mib": record.peak_memory,
        "ledger": None if ledger is None else _account(ledger),
        "diagnostics": dict(record.diagnostics),
        "comparison": comparison,
    }
    write_json(folder / "confidential" / "run.json", run)
    with clock.step("writing the pages"):
        rewrite(folder)


def _account(ledger: "Ledger") -> dict[str, Any]:
    account = ledger.summary()
    amounts = {
        "total_epsilon": account.total_epsilon,
        "spent_epsilon": account.spent_epsilon,
        "remaining_epsilon": account.remaining_epsilon,
    }
    return {
        "neighbours": account.neighbours,
        **{name: None if amount is None else float(amount) for name, amount in amounts.items()},
    }


def _tell(out: Path, release: "Release", ledger: "Ledger | None", *, published: bool, file_format: str) -> None:
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
    else:
        click.echo(f"price     NO GUARANTEE (kind {loss.kind}): for studies, kept inside")
    click.echo(f"ledger    {ledger_line(ledger)}")
    if published:
        files = f"card.html, privacy.json, synthetic_1.{file_format}{f' ... _{n_sets}' if n_sets > 1 else ''}"
        click.echo(f"public    {out / 'public'}: {files}")
    click.echo(f"inside    {out / 'confidential' / 'report.html'}: for the curator only")
    if release.reproducible:
        click.echo("WARNING   made from a seed: whoever knows it can subtract the noise. Do not publish.", err=True)


@click.command()
@click.argument("directory", metavar="DIR")
def report(directory: str) -> None:
    """Write the HTML pages of the release in DIR again."""
    from pdips.report.pages import rewrite

    for path in rewrite(Path(directory)):
        click.echo(str(path))
