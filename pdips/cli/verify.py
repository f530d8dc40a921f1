"""The command ``verify``."""

import re
from pathlib import Path

import click

from pdips.cli.common import EXPLAIN, ledger_at, one_refusal, tell_paid
from pdips.errors import InputError
from pdips.html import show_progress


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("directory", metavar="DIR")
@click.argument("claim_path", metavar="CLAIM.toml")
@click.option("--epsilon", required=True, metavar="E", help="What the answer costs, beside the release.")
@click.option("--delta", metavar="D", help="Gaussian noise, read at this delta; left out, Laplace noise and no delta.")
@click.option("--ledger", "ledger_path", metavar="L.sqlite", help="Charged before anything is drawn.")
@click.option("--explain", is_flag=True, help=EXPLAIN)
def verify(
    table: str, directory: str, claim_path: str, epsilon: str, delta: str | None, ledger_path: str | None, explain: bool
) -> None:
    """Answer a claim about a linear regression from the TABLE of the release in DIR, with fresh noise and at a price.

    CLAIM.toml has a formula, a coefficient, and a sign or an interval. The answer goes to DIR/public/claims and may be
    published. Whether a claim is answered depends on what is public alone.
    """
    from pdips.evaluation.claim import FOLDER, Claim, verify_claim
    from pdips.privacy.curator import Clock
    from pdips.release.documents import release_home, write_json
    from pdips.report.pages import render

    claim, name = Claim.load(claim_path), Path(claim_path).stem
    page = release_home(directory) / FOLDER / f"{name}.html"
    if not re.fullmatch(r"[\w-]+", name):
        raise InputError("the name of a claim's file may have letters, digits, - and _ only: its answer is called so")
    if page.exists() or page.with_suffix(".json").exists():
        raise InputError(f"{page} is there already, and each answer pays again: call the claim's file otherwise")
    ledger = ledger_at(ledger_path, directory)
    made = page.parent.is_dir()
    try:
        page.parent.mkdir(exist_ok=True)
        page.write_text("", encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't write {page}: {error.strerror}; nothing was charged") from None
    try:
        with show_progress() as progress, one_refusal(ledger, explain=explain):
            paying = {"epsilon": epsilon, "delta": delta, "ledger": ledger, "explain": explain}
            found = verify_claim(table, directory, claim, **paying, clock=Clock(progress))  # type: ignore[arg-type]
        write_json(page.with_suffix(".json"), found.contents())
        page.write_text(render("claim.html.j2", found=found), encoding="utf-8")
    finally:
        if not page.stat().st_size:
            page.unlink()
            if not (made or any(page.parent.iterdir())):
                page.parent.rmdir()
    ends = [
        "-inf" if found.lower is None else f"{found.lower:.6g}",
        "inf" if found.upper is None else f"{found.upper:.6g}",
    ]
    click.echo(f"claim     {claim.coefficient} of {claim.formula}: from {claim.interval[0]:g} to {claim.interval[1]:g}")
    click.echo(f"answer    {found.verdict}: {found.said}")
    click.echo(f"interval  {' to '.join(ends)}, 95 %, of this table's coefficient, by fresh noise alone")
    published = f"{page} and {page.with_suffix('.json').name}"
    tell_paid(Path(directory), epsilon, found.privacy.kind, ledger, published)
