"""The program ``pdips``. Exit codes: 0 done, 1 a bug, 2 bad input, 3 refused."""

import dataclasses
import os
import shutil
import signal
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdips import __version__
from pdips.errors import InputError, RefusedError
from pdips.privacy import spell
from pdips.registry import MECHANISMS, find

if TYPE_CHECKING:
    import pandas as pd

    from pdips.ledger import Ledger
    from pdips.mechanism import Clock, Mechanism
    from pdips.pairs import Case
    from pdips.release import Release, RunRecord
    from pdips.table import Table

COMMON = ("epsilon", "n_sets", "neighbours")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="pdips")
def program() -> None:
    """Differentially private data synthesis with a privacy statement that is true."""


@program.command()
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
    mechanism: Mechanism = build(**_settings(build, options, common))
    schema = Schema.load(schema_path)
    mechanism.spends(schema)
    with _staging(Path(out), overwrite) as folder, _progress() as progress:
        clock = Clock(progress)
        with clock.step("reading the table"):
            checked = Table.read(table, schema, counted=None if takes_counts(mechanism) else False)
        ledger = None if ledger_path is None else Ledger(ledger_path)
        rng = None if seed is None else np.random.default_rng(seed)
        release, record = mechanism.release(checked, rng=rng, ledger=ledger, progress=progress)
        published = _write_release(folder, release, file_format, clock)
        _write_inside(folder, checked, release, record, ledger, clock, published=published)
    _tell(Path(out), release, ledger, published=published, file_format=file_format)


def _settings(mechanism: type[Any], options: tuple[str, ...], common: dict[str, Any]) -> dict[str, Any]:
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
            raise InputError(f"{mechanism.name} has no option {key!r}; it has {', '.join(hints)}")
        settings[key] = _parse(key, text, hints[key])
    return settings


def _parse(key: str, text: str, hint: Any) -> Any:
    """Read the text of an option as what its annotation asks for."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if any(typing.get_origin(kind) is tuple for kind in kinds):
        return tuple(part.strip() for part in text.split(","))
    if int in kinds and str not in kinds:
        try:
            return int(text)
        except ValueError:
            raise InputError(f"option {key} must be a whole number, got {text!r}") from None
    return text


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


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show the current step while it lasts, if somebody is watching."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns, console = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()), Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda step: bar.update(task, description=step)


def _write_release(
    folder: Path, release: "Release", file_format: typing.Literal["parquet", "csv"], clock: "Clock"
) -> bool:
    """Write the synthetic sets where they belong, and return whether that is the public folder."""
    published = release.loss.kind != "none"
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
        click.echo(f"price     NO GUARANTEE (kind {loss.kind}): for studies, never to be published")
    click.echo(f"ledger    {_ledger_line(ledger)}")
    if published:
        files = f"card.html, privacy.json, synthetic_1.{file_format}{f' ... _{n_sets}' if n_sets > 1 else ''}"
        click.echo(f"public    {out / 'public'}: {files}")
    click.echo(f"inside    {out / 'confidential' / 'report.html'}: for the curator only")
    if release.reproducible:
        click.echo("WARNING   made from a seed: whoever knows it can subtract the noise. Do not publish.", err=True)


def _ledger_line(ledger: "Ledger | None") -> str:
    if ledger is None:
        return "none named (--ledger): nobody adds up what this table has spent"
    account = ledger.summary()
    if account.total_epsilon is None or account.remaining_epsilon is None:
        return f"epsilon {spell(account.spent_epsilon)} spent, no total set (pdips ledger set-total)"
    return (
        f"epsilon {spell(account.spent_epsilon)} of {spell(account.total_epsilon)} spent, "
        f"{spell(account.remaining_epsilon)} left"
    )


@program.command()
@click.argument("directory", metavar="DIR")
def report(directory: str) -> None:
    """Write the HTML pages of the release in DIR again."""
    from pdips.report.pages import rewrite

    for path in rewrite(Path(directory)):
        click.echo(str(path))


@program.command()
@click.argument("mechanism_name", metavar="[MECHANISM]", required=False)
@click.option("--all", "every", is_flag=True, help="Audit every registered mechanism, sound and as published.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="A setting of the mechanism; repeatable.")
@click.option("--variant", metavar="VARIANT", help="sound or published; short for --option variant=...")
@click.option("--epsilon", default="1", show_default=True, metavar="E")
@click.option("--sets", "n_sets", type=int, default=1, show_default=True, metavar="M", help="Number of synthetic sets.")
@click.option("--neighbours", default="replace-one", show_default=True, metavar="RELATION")
@click.option(
    "--confidence",
    type=float,
    default=0.95,
    show_default=True,
    metavar="C",
    help="For all bounds of a mechanism together.",
)
@click.option("--runs", "n_runs", type=int, default=100_000, show_default=True, metavar="N", help="On each table.")
@click.option("--membership", is_flag=True, help="Also attack whole releases, and print true positive rates.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")
def audit(
    mechanism_name: str | None,
    every: bool,
    options: tuple[str, ...],
    variant: str | None,
    epsilon: str,
    n_sets: int,
    neighbours: str,
    confidence: float,
    n_runs: int,
    membership: bool,
    as_json: bool,
) -> None:
    """Bound the epsilon of MECHANISM from below on neighbouring tables, and say whether it spends more than it claims.

    Exit code 1 if a mechanism that claims a guarantee violates it; a published variant, which claims none, may.
    """
    import json

    from pdips.audit import audit_cases, registered_cases, worst_by_pair
    from pdips.registry import AUDITS

    if every == (mechanism_name is not None):
        raise InputError("name one mechanism to audit, or --all")
    extra = (f"variant={variant}",) if variant is not None else ()
    common = {"epsilon": epsilon, "n_sets": n_sets, "neighbours": neighbours}
    both = every and variant is None and neighbours == "replace-one"
    names = list(AUDITS) if every else [mechanism_name or ""]
    findings, attacks = [], []
    with _progress() as progress:
        for name in names:
            for more in [("variant=sound",), ("variant=published",)] if both else [extra]:
                settings = _settings(find(name), (*options, *more), common)
                cases = registered_cases(name, **settings)
                found = audit_cases(cases, n_runs=n_runs, confidence=confidence, progress=progress)
                findings += worst_by_pair(found)
                if membership:
                    progress(f"attacking whole releases of {name}")
                    attacks += _attacks(cases[0])
    if as_json:
        content = {"findings": [finding.describe() for finding in findings], "membership": attacks}
        click.echo(json.dumps(content, indent=2))
    else:
        _print_findings([finding.describe() for finding in findings], attacks)
    if any(finding.verdict == "VIOLATION" and finding.kind != "none" for finding in findings):
        sys.exit(1)


def _attacks(case: "Case") -> list[dict[str, Any]]:
    from pdips.audit.membership import attack

    named = {"mechanism": case.mechanism.name, "variant": getattr(case.mechanism, "variant", "sound")}
    return [{**named, **found.describe()} for found in attack(case.mechanism, case.pair)]


def _print_findings(findings: list[dict[str, Any]], attacks: list[dict[str, Any]]) -> None:
    """Print one line a finding, widest column first in what matters: the verdict."""
    for found in findings:
        runs = "exact" if found["engine"] == "exact" else f"{found['engine']}, {found['n_runs']:,} runs"
        settings = f" {found['settings']}" if found["settings"] else ""
        click.echo(
            f"{found['verdict']:<10}  claim {found['claim']:g}  bound {found['bound']:.3f}  "
            f"{found['mechanism']} ({found['variant']}, {found['neighbours']}{settings})  {runs}"
        )
        click.echo(f"            {found['pair']}; event: {found['event']}")
    for found in attacks:
        click.echo(
            f"membership  {found['mechanism']} ({found['variant']})  {found['score']}: true positive rate "
            f"{found['true_positive_rate']:.3f} ({found['lower']:.3f} to {found['upper']:.3f}) at false positive rate "
            f"{found['measured_false_positive_rate']:.3f}; epsilon permits {found['permitted']:.3f}"
        )


@program.group()
def ledger() -> None:
    """Show and govern what a table has spent."""


@ledger.command("show")
@click.argument("path", metavar="L.sqlite")
def ledger_show(path: str) -> None:
    """Print every spend on record, itemised, and what is left."""
    from pdips.ledger import Ledger

    account = Ledger(path)
    entries = account.entries()
    for entry in entries:
        delta = f", delta {spell(entry.delta)}" if entry.delta else ""
        click.echo(
            f"{entry.number:>4}  {entry.time}  {entry.mechanism}: "
            f"epsilon {spell(entry.epsilon)}{delta} ({entry.kind}, {entry.neighbours})"
        )
        for spend in entry.spends:
            click.echo(f"        {float(spend.epsilon):<10.6g} {spend.step}")
        if entry.charged_epsilon != entry.epsilon:
            click.echo(f"        charged as {spell(entry.charged_epsilon)}: converted to replace-one neighbours")
    click.echo(_ledger_line(account))


@ledger.command("set-total", context_settings={"ignore_unknown_options": True})
@click.argument("path", metavar="L.sqlite")
@click.argument("epsilon", metavar="EPSILON")
@click.option("--delta", default="0", show_default=True, metavar="D")
@click.option("--neighbours", default="replace-one", show_default=True, metavar="RELATION")
def ledger_set_total(path: str, epsilon: str, delta: str, neighbours: str) -> None:
    """Set what the table may spend in all."""
    from pdips.ledger import Ledger

    account = Ledger(path)
    account.set_total(epsilon, delta=delta, neighbours=typing.cast(Any, neighbours))
    click.echo(_ledger_line(account))


@ledger.command("adopt")
@click.argument("path", metavar="L.sqlite")
@click.argument("table", metavar="TABLE")
@click.option("--schema", "schema_path", required=True, metavar="S.toml")
def ledger_adopt(path: str, table: str, schema_path: str) -> None:
    """Let a corrected or re-saved version of the table share this account: all earlier spends go on counting."""
    from pdips.ledger import Ledger
    from pdips.schema import Schema
    from pdips.table import Table

    account = Ledger(path)
    account.adopt(Table.read(table, Schema.load(schema_path)).fingerprint)
    click.echo(_ledger_line(account))


@program.group()
def schema() -> None:
    """Help with schema files."""


@schema.command("draft")
@click.argument("table", metavar="TABLE")
def schema_draft(table: str) -> None:
    """Print a first guess at a schema of TABLE. What it reads off a confidential table is a leak: correct it."""
    from pdips.files import read_frame
    from pdips.schema import Schema

    click.echo(Schema.draft(_as_typed(read_frame(table))), nl=False)
    click.echo("the draft was read off the table: replace its levels and bounds by public ones before use", err=True)


def _as_typed(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Turn the columns of a text file that hold only numbers into numbers."""
    import pandas as pd

    def typed(column: "pd.Series[Any]") -> "pd.Series[Any]":
        numbers = pd.to_numeric(column, errors="coerce")
        return numbers if numbers.notna().sum() == column.notna().sum() else column

    return frame.apply(typed)


@schema.command("check")
@click.argument("path", metavar="S.toml")
def schema_check(path: str) -> None:
    """Check a schema file and say what a histogram mechanism would make of it."""
    from pdips.mechanisms.layers import domain_of
    from pdips.schema import Schema

    checked = Schema.load(path)
    for name, column in checked.columns.items():
        if column.is_categorical:
            what = f"{column.n_values} levels"
        else:
            bins = f"{column.n_values} bins" if column.is_binned else "no bins"
            what = f"{column.lower:g} to {column.upper:g}{f' {column.unit}' if column.unit else ''}, {bins}"
        extras = [word for word, on in (("missing allowed", column.missing), ("public", column.public)) if on]
        click.echo(f"{name}: {', '.join([what, *extras])}")
    click.echo(f"records a person: at most {checked.records.max_per_person}")
    if all(column.is_categorical or column.is_binned for column in checked.columns.values()):
        rules = len(checked.impossible)
        click.echo(
            f"cells: {domain_of(checked).n_cells:,} before {rules} rule{'s' if rules != 1 else ''} on impossible ones"
        )


def main() -> None:
    """Run the program and turn every way it can end into an exit code and at most one line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a hidden folder is cleared away
    try:
        program.main(standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else str(error), err=True)
        sys.exit(2)
    except (InputError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        _stop(" ".join(message.split()), 2)
    except RefusedError as error:
        _stop(f"refused: {error}", 3)
    except OSError as error:
        _stop(
            f"{error.strerror or 'a file could not be written'}; nothing was released, a spend on record stays charged",
            2,
        )
    except (KeyboardInterrupt, click.Abort):
        _stop("interrupted; a spend that is on record stays charged", 130)
    except Exception as error:
        if os.environ.get("PDIPS_TRACEBACK"):
            raise
        # A message from deep inside may quote a value of the table, so only its type is shown.
        _stop(
            f"a bug: {type(error).__name__}. Run again with PDIPS_TRACEBACK=1 to see where; what it prints may quote "
            "confidential values",
            1,
        )


def _stop(message: str, code: int) -> typing.NoReturn:
    click.echo(f"pdips: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
