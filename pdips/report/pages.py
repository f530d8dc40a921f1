"""Write the pages of a release: ``card.html`` for users outside, ``report.html`` for
its curator.

The card is written from the release's published files and nothing else, so that nothing
unpaid can get into it.
"""

import base64
import hashlib
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdips.errors import InputError, RefusedError
from pdips.evaluation.document import EvaluationDocument
from pdips.extras import require
from pdips.release.documents import (
    PrivacyDocument,
    RunDocument,
    home_of,
    release_home,
)
from pdips.release.integrity import CARD
from pdips.release.public_draws import held_back_by_priors
from pdips.report import card, checklist, diagnostics, formats, price, utility
from pdips.report.coefficients import (
    MOST_LISTED,
    coefficients,
    contradicted,
    figures_of_priors,
    question,
)
from pdips.report.noisy_numbers import figures_of_furthest
from pdips.report.verdict import SIGNS, WORDS, Verdict

if TYPE_CHECKING:
    from jinja2 import Environment

Tell = Callable[[Mapping[str, Verdict]], None]


def write_card(public: Path) -> Path:
    """Write the privacy card of a published release."""
    return _write(public / CARD, card_of(PrivacyDocument.read(public), public))


def write_report(
    confidential: Path, release: PrivacyDocument, tell: Tell | None = None
) -> Path:
    """Write the curator's report."""
    return _write(confidential / "report.html", _report(confidential, release, tell))


def rewrite(directory: Path, tell: Tell | None = None) -> list[Path]:
    """Write the pages of a release folder, as far as it has what they are written from.

    A folder with nothing but ``public``, as users outside have it, or that folder
    itself, gets the card only; one of a release that may not be published, the report
    only. Nothing is written
    unless all pages can be. ``tell`` is that of :func:`write_report`.
    """
    home = release_home(directory, received=True)
    confidential = directory / "confidential"
    release = PrivacyDocument.read(home)
    pages: dict[Path, str] = {}
    if home != confidential:
        pages[home / CARD] = card_of(release, home)
    if home == confidential or _has_run(confidential):
        pages[confidential / "report.html"] = _report(confidential, release, tell)
    return [_write(path, page) for path, page in pages.items()]


def rewrite_report(directory: Path) -> Path | None:
    """Write the curator's report of a release folder anew, and nothing else; None if
    the folder holds no run.
    """
    confidential = directory / "confidential"
    home = home_of(directory)
    if home is None or not _has_run(confidential):
        return None
    return write_report(confidential, PrivacyDocument.read(home))


def render(template: str, folder: Path | None = None, /, **context: Any) -> str:
    """Fill one of the templates of this room, or of another folder, which may extend
    them.
    """
    require("report", "pages need")
    return _environment(folder).get_template(template).render(context)


def content_policy(style: str, script: str) -> str:
    """Return what a page may do: use its own style and script, and data in pictures.

    Attributes may have styles, as those of pictures do; no style can load anything.

    Examples
    --------
    >>> content_policy("p {}", "")[:50]
    "default-src 'none'; img-src data:; style-src 'sha2"
    """
    allowed = ["default-src 'none'", "img-src data:", f"style-src {_source(style)}"]
    allowed.append("style-src-attr 'unsafe-inline'")
    if script:
        allowed.append(f"script-src {_source(script)}")
    allowed += ["base-uri 'none'", "form-action 'none'"]
    return "; ".join(allowed)


def _source(text: str) -> str:
    """Return the hash of an inline style or script, as policies spell it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _has_run(confidential: Path) -> bool:
    """Whether a folder is of a run, or holds at most the evaluation of a release that
    came without its run.
    """
    return confidential.is_dir() and {
        entry.name for entry in confidential.iterdir()
    } != {EvaluationDocument.file}


def _write(path: Path, page: str) -> Path:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror}") from None
    return path


def card_of(release: PrivacyDocument, public: Path = Path("nowhere", "public")) -> str:
    """Return the card of a release in a public folder, or of one that is in none."""
    if release.privacy.kind == "none":
        raise RefusedError(
            "a release of kind 'none' is never published, so it has no card"
        )
    require("report", "a card needs")
    return render("card.html.j2", **card.context(public, release))


def _report(
    confidential: Path, release: PrivacyDocument, tell: Tell | None = None
) -> str:
    require("report", "a report needs")
    run = RunDocument.read(confidential)
    public = confidential.parent / "public"
    losses = price.published(confidential.parent, release)
    sections: dict[str, Any] = {
        "price": price.section(release, run, losses),
        "diagnostics": diagnostics.section(confidential, release, run),
        "utility": utility.section(confidential, release, run),
        "checklist": checklist.section(release, run, losses),
    }
    home = confidential if release.privacy.kind == "none" else public
    listed, tree = coefficients(home, release)
    verdicts = {name: section["verdict"] for name, section in sections.items()}
    detection = ""
    if release.privacy.kind in checklist.BOUNDED:
        detection = card.guarantee(price.together(losses))["detection"]
    if tell is not None:
        tell(verdicts)
    return render(
        "report.html.j2",
        facts=release,
        schema=release.table_schema,
        run=run,
        detection=detection,
        total_seconds=math.fsum(run.seconds.values()),
        verdicts=verdicts,
        coefficients=listed[:MOST_LISTED],
        contradicted=contradicted(tree),
        question=question(tree),
        more_coefficients=max(len(listed) - MOST_LISTED, 0),
        unlearned=[each.name for each in listed if each.is_prior],
        held_back=held_back_by_priors(tree),
        unlearned_figures=figures_of_priors(listed, tree),
        furthest=figures_of_furthest(tree),
        **sections,
    )


@cache
def _environment(folder: Path | None = None) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folders = [Path(__file__).parent / "templates"]
    if folder is not None:
        folders.insert(0, folder)
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    named = {
        "number": formats.number,
        "percent": formats.percent,
        "price": formats.price,
    }
    environment.filters.update(
        named, agreement=diagnostics.agreement, word=WORDS.get, sign=SIGNS.get
    )
    environment.globals.update(plural=formats.plural, policy=content_policy)
    return environment
