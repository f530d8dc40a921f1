"""Write the pages of a release: ``card.html`` for users outside, ``report.html`` for its curator.

The card is written from what is published and paid for, ``privacy.json`` and the paid ``evaluation.json``, and nothing
else, so that nothing unpaid can get into it.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdips.errors import InputError, RefusedError
from pdips.evaluation.document import EvaluationDocument
from pdips.release.documents import PaidDocument, PrivacyDocument, RunDocument, home_of, release_home
from pdips.report import card, checklist, diagnostics, formats, price, utility
from pdips.report.verdict import SIGNS, WORDS, Verdict

if TYPE_CHECKING:
    from jinja2 import Environment

Tell = Callable[[Mapping[str, Verdict]], None]


def write_card(public: Path) -> Path:
    """Write the privacy card of a published release."""
    return _write(public / "card.html", card_of(PrivacyDocument.read(public), public))


def write_report(confidential: Path, release: PrivacyDocument, tell: Tell | None = None) -> Path:
    """Write the curator's report."""
    return _write(confidential / "report.html", _report(confidential, release, tell))


def rewrite(directory: Path, tell: Tell | None = None) -> list[Path]:
    """Write the pages of a release folder, as far as it has what they are written from.

    A folder with nothing but ``public``, as users outside have it, gets the card only; one of a release that may not be
    published, the report only. Nothing is written unless all pages can be. ``tell`` is that of :func:`write_report`.
    """
    public, confidential, home = directory / "public", directory / "confidential", release_home(directory)
    release, pages = PrivacyDocument.read(home), {}
    if home == public:
        pages[public / "card.html"] = card_of(release, public)
    if home == confidential or _has_run(confidential):
        pages[confidential / "report.html"] = _report(confidential, release, tell)
    return [_write(path, page) for path, page in pages.items()]


def rewrite_report(directory: Path) -> Path | None:
    """Write the curator's report of a release folder anew, and nothing else; None if the folder holds no run."""
    confidential, home = directory / "confidential", home_of(directory)
    if home is None or not _has_run(confidential):
        return None
    return write_report(confidential, PrivacyDocument.read(home))


def render(template: str, folder: Path | None = None, /, **context: Any) -> str:
    """Fill one of the templates of this room, or of another folder, which may extend them."""
    return _environment(folder).get_template(template).render(context)


def _has_run(confidential: Path) -> bool:
    """Whether a folder is of a run, or holds at most the evaluation of a release that came without its run."""
    return confidential.is_dir() and {entry.name for entry in confidential.iterdir()} != {EvaluationDocument.file}


def _write(path: Path, page: str) -> Path:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror}") from None
    return path


def card_of(release: PrivacyDocument, public: Path = Path("nowhere", "public")) -> str:
    """Return the card of a release in a public folder, or of one that is in none."""
    if release.privacy.kind == "none":
        raise RefusedError("a release of kind 'none' is never published, so it has no card")
    return render("card.html.j2", **card.context(public, release, PaidDocument.beside(public, release)))


def _report(confidential: Path, release: PrivacyDocument, tell: Tell | None = None) -> str:
    run = RunDocument.read(confidential)
    public = confidential.parent / "public"
    paid = PaidDocument.beside(public, release)
    losses = price.published(public, release, paid)
    sections: dict[str, Any] = {
        "price": price.section(release, run, losses),
        "diagnostics": diagnostics.section(confidential, release, run),
        "utility": utility.section(confidential, release, run),
        "checklist": checklist.section(release, run, losses),
    }
    verdicts = {name: found["verdict"] for name, found in sections.items()}
    if tell is not None:
        tell(verdicts)
    return render(
        "report.html.j2",
        facts=release,
        schema=release.table_schema,
        run=run,
        paid=paid,
        detection=release.privacy.kind in checklist.BOUNDED and card.guarantee(price.together(losses))["detection"],
        total_seconds=math.fsum(run.seconds.values()),
        verdicts=verdicts,
        **sections,
    )


@cache
def _environment(folder: Path | None = None) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([*([folder] if folder else []), Path(__file__).parent / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    named = {"number": formats.number, "percent": formats.percent, "price": formats.price}
    environment.filters.update(named, agreement=diagnostics.agreement, word=WORDS.get, sign=SIGNS.get)
    environment.globals.update(plural=formats.plural)
    return environment
