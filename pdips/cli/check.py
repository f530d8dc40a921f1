"""The commands ``check``, are there known faults; ``certify``, do intervals hold; ``bounds``, how far records move."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import click

from pdips.errors import InputError
from pdips.html import show_progress, spelt

WIDTH = 110
TOUCHED = 3


@click.command()
@click.argument("directory", metavar="DIR")
def check(directory: str) -> None:
    """List known faults of the version that made the release in DIR, if they may affect it.

    DIR is the folder of a release, or its public folder alone. Nothing but privacy.json is read. Exit code: 0 no known
    fault touches it, 3 one does or may, 2 no release.
    """
    from pdips.release.documents import PrivacyDocument, read_json, release_home
    from pdips.release.known_faults import examine

    found = examine(read_json(release_home(directory, received=True) / PrivacyDocument.file))
    click.echo(f"release   {found.mechanism}, made by {found.described}")
    for fault in found.faults:
        _show(f"{fault.identifier:<4}      {fault.severity.upper()}: {fault.wrong}")
        if fault.when:
            _show(f"          Touched if {fault.when}.")
        _show(f"          {fault.do}")
    if not found.faults:
        click.echo("known     no known fault touches it (faults found later are not known to this version)")
        return
    _show(f"known     {len(found.faults)} known fault(s) touch it or may; docs/changelog.md describes each")
    sys.exit(TOUCHED)


@click.command()
@click.argument("directory", metavar="DIR")
@click.option("--replays", type=int, default=200, show_default=True, metavar="R", help="At least 2.")
@click.option("--analysis", "formula", metavar="FORMULA", help='A regression too, such as "voted ~ age + college".')
@click.option("--scheduler", metavar="ADDRESS", help="A dask scheduler, or local: runs replays side by side.")
def certify(directory: str, replays: int, formula: str | None, scheduler: str | None) -> None:
    """Measure the coverage of intervals from the sets of the release in DIR on replays. It reads public files only.

    Writes certificate.json beside privacy.json, and the card again. Exit code: 0 they hold, 3 some don't, 2 no such
    release.
    """
    from pdips.outside.replays import certify as replayed
    from pdips.release.certificate import SILENT
    from pdips.release.documents import release_home
    from pdips.report.pages import write_card

    with show_progress() as progress:
        found = replayed(directory, replays=replays, formula=formula, scheduler=scheduler, progress=progress)
    home = release_home(directory, received=True)
    path = found.write(home)
    click.echo(f"rule      {found.rule}; {found.replays} replays from public files, at no further price")
    for row in found.rows:
        held = f"{row.covered:.1%} of 95 % intervals held (± {row.standard_error:.1%}; {row.numbers:,} numbers)"
        _show(f"{'FAILS' if row.fails else 'holds':<9} {row.what}: {held}")
    if found.agreement is not None:
        agree = f"the sets agree with {found.agreement.covered:.1%} of the noisy counts of levels and pairs"
        _show(f"{'FAILS' if found.agreement.fails else 'holds':<9} {agree}")
    _show(f"silent    {SILENT}")
    click.echo(
        f"public    {path}: may be published" + ("" if home.name == "confidential" else f", as may {write_card(home)}")
    )
    if found.failing:
        sys.exit(TOUCHED)


@click.command()
@click.argument("draws", metavar="IDATA")
@click.option("--model", metavar="FILE", help="A Python file that leaves the pm.Model with its data in `model`.")
@click.option("--variable", metavar="NAME", help="Of the group log_likelihood; all by default.")
@click.option("--record-dim", metavar="DIM", help="Which of its dims counts records, if there are several.")
@click.option("--limit", type=float, metavar="NATS", help="Where a censored posterior would cut.")
@click.option("--independent", is_flag=True, help="The draws are independent, no Markov chain's.")
@click.option("--out", metavar="DIR", help="Write bounds.html, bounds.json and, by record, bounds.csv: inside.")
def bounds(draws: str, model: str | None, out: str | None, **settings: Any) -> None:
    """Bound each record's log-likelihood over the draws of a posterior in IDATA, a netCDF file or zarr folder.

    Any posterior: a group log_likelihood is sufficient, else use --model. For internal use only.
    """
    from pdips.posterior.inspection import check_bounds

    found = check_bounds(draws, model, **settings)
    said = found.describe()
    click.echo("INSIDE ONLY: computed from the confidential records, nothing pays for it\n")
    click.echo(f"records   {said['records']:,}; {said['draws']:,} draws in {said['chains']} chain(s)")
    overall, *by_chain = (f"{value:.4g}" for value in (found.overall, *found.largest_by_draw.max(axis=1)))
    five = ", ".join("inf" if value is None else spelt(value) for value in said["bounds_of_records"].values())
    spread, upper = said["spread_over_chains"], said["upper_draws"]
    rows = {
        "bound": f"{overall} nats; by chain {', '.join(by_chain)}",
        "each": f"{five} nats (least, quarter, median, three quarters, largest bound of a record)",
        "chains": f"bounds of records differ between chains by {spelt(spread['median'])} of themselves in the middle, "
        f"{spelt(spread['max'])} at most; R-hat of the bound {spelt(said['rhat'])}"
        if said["chains"] > 1
        else "one chain: nothing tells whether another one would agree",
        "error": f"95 % of draws have a bound of at most {spelt(upper['quantile_95'])} nats, Monte Carlo standard "
        f"error {spelt(upper['monte_carlo_error'])}; effective draws {spelt(said['ess_bulk'])}, of the tail "
        f"{spelt(said['ess_tail'])}",
    }
    if "limit" in said:
        rows["limit"] = f"{said['censored']['records']:,} records go beyond {said['limit']:g} nats in some draw"
    for name, text in (rows | {"certifies": said["certifies"]}).items():
        _show(f"{name:<10}{text}")
    if out is not None:
        _write(Path(out), said, found, rows)


def _write(folder: Path, said: dict[str, Any], found: Any, rows: dict[str, str]) -> None:
    import pandas as pd

    from pdips.release.documents import write_json
    from pdips.report.pages import render
    from pdips.report.posterior_figures import against_value

    columns = {name: getattr(found, name) for name in ("largest", "lowest", "highest", "mean")}
    columns |= {f"largest in chain {k}": each for k, each in enumerate(found.by_chain, start=1)}
    across = {"rank": found.largest.argsort().argsort(), "least bound of a chain": found.by_chain.min(axis=0)}
    figures = {
        name: against_value(found.largest, values, name, name, "bound of the record (nats)", found.limit)
        for name, values in across.items()
    }
    try:
        folder.mkdir(mode=0o700)
        write_json(folder / "bounds.json", {"confidential": "from the records, and no epsilon pays for it", **said})
        (folder / "bounds.html").write_text(render("bounds.html.j2", said=said, rows=rows, figures=figures), "utf-8")
        pd.DataFrame(columns).rename_axis("record").to_csv(folder / "bounds.csv")
    except OSError as error:
        raise InputError(f"can't write {folder}: {error.strerror}; name a folder that isn't there yet") from None
    click.echo(f"inside    {folder}: bounds.html, bounds.json and, by record, bounds.csv")


def _show(text: str) -> None:
    click.echo(textwrap.fill(text, WIDTH, subsequent_indent=" " * 10))
