"""Random legal requests, and how each ends: released, or refused before its charge."""

import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import pdips
from benchmarks.campaign import models
from benchmarks.campaign.chance import Chance
from benchmarks.campaign.options import (
    COUNTING,
    OFTEN,
    Options,
    random_options,
    wishes_of,
)
from benchmarks.campaign.schemas import Content, random_schema, random_table
from pdips.errors import InputError, NotConvergedError, RefusedError, ResumableError

RELEASED, REFUSED = "released", "refused before the charge"
WITHHELD = "charged, chains disagree"
READS_RECORDS = "censored-posterior"  # whose chains may end so; others can be resumed


@dataclass(frozen=True)
class Request:
    """What is asked of a mechanism: plain values that can be printed and pasted."""

    mechanism: str
    schema: Content
    table: Any
    options: Options

    def code(self) -> str:
        """Return the request as code that can be pasted into a test."""
        tables = self.table if isinstance(self.table, tuple) else (self.table,)
        frames = ", ".join(f"pd.DataFrame({table!r})" for table in tables)
        if len(tables) > 1:
            frames = f"({frames})"
        named = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return (
            f"pdips.synthesize({frames}, {self.schema!r}, "
            f"mechanism={self.mechanism!r}, ledger=ledger, progress=False{named})"
        )


@dataclass(frozen=True)
class Ending:
    """How a request ended; ``fault`` is empty where that is allowed."""

    how: str
    fault: str = ""
    said: str = ""  # the message of a refusal


def request_of(
    seed: int,
    number: int,
    *,
    compiled: bool = False,
    mechanisms: Sequence[str] = COUNTING + OFTEN,
) -> Request:
    """Return a request, the same for the same seed, number and mechanisms."""
    chance = Chance(seed, number, int(compiled))
    if compiled:
        mechanism, content, options = models.random_model(chance)
    else:
        mechanism = chance.one(mechanisms)
        content = random_schema(chance, wishes_of(mechanism))
        options = random_options(chance, mechanism, content)
    return Request(mechanism, content, random_table(chance, content), options)


def run(request: Request, *, card: bool = True) -> Ending:
    """Run a request with a ledger of its own, publish its release, with or without its
    card, and judge it.
    """
    tables = request.table if isinstance(request.table, tuple) else (request.table,)
    frames = tuple(pd.DataFrame(table) for table in tables)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ledger = pdips.Ledger(Path(folder) / "ledger.sqlite")
        try:
            release, record = pdips.synthesize(
                frames if len(frames) > 1 else frames[0],
                request.schema,
                mechanism=request.mechanism,
                ledger=ledger,
                progress=False,
                **request.options,
            )
            _published(release, record, Path(folder), card=card)
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            return _judged(request, error, n_charges(ledger))
        charges = n_charges(ledger)
    if charges != 1:
        return Ending(RELEASED, f"released with {charges} charges")
    return Ending(RELEASED)


def n_charges(ledger: pdips.Ledger) -> int:
    """Return how many charges a ledger has; none if it was never made."""
    return len(ledger.entries()) if ledger.path.exists() else 0


def _judged(request: Request, error: Exception, charges: int) -> Ending:
    """Judge what a request ended with, given how many charges its ledger has."""
    if isinstance(error, NotConvergedError) and request.mechanism == READS_RECORDS:
        return Ending(WITHHELD)
    # the cause says what would be the fault; that it can be resumed is no excuse
    can_resume = isinstance(error, ResumableError)
    cause = error.__context__ if can_resume else error
    if can_resume and isinstance(cause, RefusedError):
        return Ending(WITHHELD)
    said = str(cause)
    when = "after" if charges else "before"
    is_refusal = isinstance(error, (InputError, RefusedError))
    if charges or not is_refusal:
        return Ending("error", f"{type(cause).__name__} {when} the charge: {said}")
    if "\n" in said or not said.strip():
        return Ending("error", f"{type(error).__name__} not in one line: {said!r}")
    return Ending(REFUSED, said=said)


def _published(release: Any, record: Any, folder: Path, *, card: bool) -> None:
    """Write what is published, and read the sets by their schema."""
    from pdips.report.pages import write_card

    record.look_closer()
    asymptotic = ["asymptotic"] if release.loss.kind == "asymptotic" else []
    release.publish(folder / "public", allow=asymptotic)
    if card:
        write_card(folder / "public")
    for made in release.sets:
        if len(made):
            pdips.Table(made, release.schema.plain())


def campaign(
    seed: int, n_requests: int, *, first: int = 0, cards: int = 1, **how: Any
) -> Iterator[tuple[int, Request, Ending]]:
    """Yield each request with its number and ending.

    One release in so many ``cards`` has a card, which takes as long as the release;
    ``how`` as in :func:`request_of`.
    """
    for number in range(first, first + n_requests):
        request = request_of(seed, number, **how)
        yield number, request, run(request, card=number % cards == 0)


def summary(endings: Counter[tuple[str, str]]) -> str:
    """Return a table: how the requests of each mechanism ended."""
    ends = {RELEASED: "released", REFUSED: "refused", WITHHELD: "withheld"}
    ends["fault"] = "faults"
    lines = [f"{'mechanism':<22}" + "".join(f"{title:>10}" for title in ends.values())]
    for mechanism in sorted({mechanism for mechanism, _ in endings}):
        counts = [f"{endings[mechanism, how]:10}" for how in ends]
        lines.append(f"{mechanism:<22}" + "".join(counts))
    return "\n".join(lines)
