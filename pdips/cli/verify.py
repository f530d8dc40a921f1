"""The command ``verify``."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdips.cli.common import (
    ALLOW_REFUSALS,
    DELTA,
    EXPLAIN,
    command_of,
    is_charged_by,
    ledger_at,
    one_refusal,
    tell_paid,
)
from pdips.errors import InputError
from pdips.html import show_progress

if TYPE_CHECKING:
    from pdips.privacy.account import Entry


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("directory", metavar="DIR")
@click.argument("claim_path", metavar="CLAIM.toml")
@click.option(
    "--epsilon",
    required=True,
    metavar="E",
    help="What the answer costs, beside the release.",
)
@DELTA
@click.option(
    "--ledger",
    "ledger_path",
    metavar="L.sqlite",
    help="Charged before anything is drawn.",
)
@click.option("--explain", is_flag=True, help=EXPLAIN)
@ALLOW_REFUSALS
def verify(**options: Any) -> None:
    """Answer a claim about a linear regression from the TABLE of the release in DIR,
    with fresh noise and at a price.

    CLAIM.toml has a formula, a coefficient, and a sign or an interval. The answer goes
    to DIR/public/claims and may be published. Whether a claim is answered depends on
    what is public alone.
    """
    answer(ClaimOptions(**options))


@dataclass(frozen=True, kw_only=True)
class ClaimOptions:
    """The options of ``pdips verify``, and the charge that is resumed, if any."""

    table: str
    directory: str
    claim_path: str
    epsilon: str
    delta: str | None
    explain: bool
    ledger_path: str | None = None
    allow: tuple[str, ...] = ()
    resume: "Entry | None" = None

    def page(self) -> Path:
        """Return where the page of the answer goes; beside it is a ``.json`` file."""
        from pdips.evaluation.claim import FOLDER
        from pdips.release.documents import release_home

        name = Path(self.claim_path).stem
        if not re.fullmatch(r"[\w-]+", name):
            raise InputError(
                "the name of a claim's file may have letters, digits, - and "
                "_ only: its answer is called so"
            )
        return release_home(self.directory) / FOLDER / f"{name}.html"

    def command(self) -> dict[str, Any]:
        """Return what ``pdips resume`` needs to repeat this command."""
        names = ("table", "directory", "claim_path", "epsilon", "delta", "explain")
        return command_of("verify", {name: getattr(self, name) for name in names})


def answer(options: ClaimOptions) -> None:
    """Answer a claim and print the answer."""
    from pdips.evaluation.claim import Claim, ClaimAnswer, verify_claim
    from pdips.privacy.curator import Clock
    from pdips.release.documents import write_json
    from pdips.report.pages import render

    claim = Claim.load(options.claim_path)
    page = options.page()
    refuse_second_answer(page, options.resume)
    ledger = ledger_at(options.ledger_path, options.directory)
    number = None if options.resume is None else options.resume.number

    def write(found: ClaimAnswer) -> None:
        write_json(page.with_suffix(".json"), found.contents())
        page.write_text(render("claim.html.j2", found=found), encoding="utf-8")

    with (
        held(page),
        show_progress() as progress,
        one_refusal(ledger, explain=options.explain),
    ):
        found = verify_claim(
            options.table,
            options.directory,
            claim,
            epsilon=options.epsilon,
            delta=options.delta,
            ledger=ledger,
            explain=options.explain,
            clock=Clock(progress),
            write=write,
            resume=number,
            command=options.command(),
            allow=options.allow,
        )
    lower = "-inf" if found.lower is None else f"{found.lower:.6g}"
    upper = "inf" if found.upper is None else f"{found.upper:.6g}"
    lines = [
        f"claim     {claim.coefficient} of {claim.formula}: from "
        f"{claim.interval[0]:g} to {claim.interval[1]:g}",
        f"answer    {found.verdict}: {found.said}",
        f"interval  {lower} to {upper}, 95 %, of this table's coefficient, "
        f"by fresh noise alone",
    ]
    published = f"{page} and {page.with_suffix('.json').name}"
    kind = found.privacy.kind
    tell_paid(Path(options.directory), lines, options.epsilon, kind, ledger, published)


def refuse_second_answer(page: Path, resume: "Entry | None") -> None:
    """Refuse to write over an answer, unless it is the one that is being finished. An
    empty page is what a killed run leaves.
    """
    facts = page.with_suffix(".json")
    if resume is not None and is_charged_by(facts, resume):
        return
    if facts.exists() or (page.exists() and page.stat().st_size):
        raise InputError(
            f"{page} is there already, and each answer pays again: call "
            f"the claim's file otherwise"
        )


@contextmanager
def held(page: Path) -> Iterator[None]:
    """See, before anything is charged, whether a page can be written; remove it if the
    body doesn't write it.
    """
    is_new = not page.parent.is_dir()
    try:
        page.parent.mkdir(exist_ok=True)
        page.write_text("", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"can't write {page}: {error.strerror}; nothing was charged"
        ) from None
    try:
        yield
    finally:
        if not page.stat().st_size:
            page.unlink()
            if is_new and not any(page.parent.iterdir()):
                page.parent.rmdir()
