"""Files that are written from the signed ones: worked out again, and compared."""

import re
from pathlib import Path

from pdips.errors import InputError, RefusedError
from pdips.evaluation.claim import ClaimAnswer
from pdips.evaluation.document import EvaluationDocument
from pdips.release.certificate import Certificate
from pdips.release.documents import (
    PaidDocument,
    PrivacyDocument,
    json_text,
    read_bytes,
)
from pdips.release.folder import file_digest
from pdips.release.integrity import CARD, CLAIMS, Remark
from pdips.report.pages import card_of, render

# What a card shows as a figure: at a glance, and in tables
FIGURE = re.compile(
    rb'<(dd|td)[^>]*class="[^"]*(?:figure|n r)[^"]*"[^>]*>(.*?)</\1>', re.DOTALL
)
PICTURE = re.compile(rb"(<svg[^>]*>).*?</svg>", re.DOTALL)
WRITER = re.compile(rb"This page was written by ((pdips \S{1,40}), .{1,60}), from")


def examine_derived(home: Path, release: PrivacyDocument) -> list[Remark]:
    """Return what is wrong with card, certificate, paid evaluation and answers to
    claims of a public folder.
    """
    found = [
        *_document(home / Certificate.file, home, release),
        *_document(home / PaidDocument.file, home, release),
        *_claims(home / CLAIMS, home),
    ]
    # The card can't be written as long as one of them is at fault
    return found or _card(home / CARD, home, release)


def examine_evaluation(inside: Path, release: PrivacyDocument) -> list[Remark]:
    """Return what is wrong with the evaluation in a confidential folder."""
    path = inside / EvaluationDocument.file
    if not path.is_file():
        return []
    try:
        evaluation = EvaluationDocument.read(inside)
    except InputError as error:
        return [_damaged(path, error)]
    if evaluation.release.differs(release):
        return [Remark(path=path, said="is of another release than privacy.json")]
    return []


def _damaged(path: Path, error: Exception) -> Remark:
    return Remark(path=path, said=str(error).removeprefix(f"{path} "))


def _document(path: Path, home: Path, release: PrivacyDocument) -> list[Remark]:
    """Read a certificate or a paid evaluation as the card does."""
    try:
        if path.name == Certificate.file:
            Certificate.beside(home)
        else:
            PaidDocument.beside(home, release)
    except InputError as error:
        return [_damaged(path, error)]
    return []


def _claims(folder: Path, home: Path) -> list[Remark]:
    """Return what is wrong with answers to claims: each is a document and its page."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        return [Remark(path=folder, said="is no folder of answers to claims")]
    found: list[Remark] = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json":
            found += _answer(path, home)
        elif path.suffix != ".html" or not path.with_suffix(".json").is_file():
            found.append(
                Remark(path=path, said="is no answer to a claim, nor its page")
            )
    return found


def _answer(path: Path, home: Path) -> list[Remark]:
    page = path.with_suffix(".html")
    try:
        content = read_bytes(path)
        answer = ClaimAnswer.parse(content, path)
        if answer.release_digest != file_digest(home / PrivacyDocument.file):
            return [Remark(path=path, said="is about another release")]
        if json_text(answer.contents()).encode() != content:
            return [Remark(path=path, said="was edited: it isn't as pdips writes it")]
        written = read_bytes(page)
    except InputError as error:
        return [_damaged(path, error)]
    if render("claim.html.j2", found=answer).encode() != written:
        return [Remark(path=page, said=f"isn't the page of {path.name}")]
    return []


def _card(path: Path, home: Path, release: PrivacyDocument) -> list[Remark]:
    """Write the card again, and compare it with the one that is there.

    Another version of pdips writes other words, so then its figures are compared alone.
    """
    write_again = "`pdips report DIR` writes it"
    if not path.is_file():
        return [Remark(path=path, said=f"is missing: {write_again}")]
    try:
        written = read_bytes(path)
        right = card_of(release, home).encode()
    except (InputError, RefusedError) as error:
        return [_damaged(path, error)]
    if written == right:
        return []
    compared = _compared(written, right)
    if compared:
        said = f"was written by other versions of packages; {compared}"
        return [Remark(path=path, said=said, fault=False)]
    said = f"doesn't say what the files beside it say: {write_again} again"
    return [Remark(path=path, said=said)]


def _compared(written: bytes, right: bytes) -> str:
    """Return which parts of a card, by other versions of packages, are right; nothing
    where they aren't.
    """
    ours = WRITER.search(right)
    theirs = WRITER.search(written)
    if ours is None or theirs is None or ours[1] == theirs[1]:
        return ""
    if ours[2] == theirs[2]:  # another matplotlib draws other pictures
        same = _plain(written, theirs[1]) == _plain(right, ours[1])
        return "all but its picture is right" if same else ""
    same = FIGURE.findall(written) == FIGURE.findall(right)
    return "its figures are right, its words were not compared" if same else ""


def _plain(page: bytes, writer: bytes) -> bytes:
    """Return a card without its pictures, and without what it was written by."""
    return PICTURE.sub(rb"\1", page).replace(writer, b"")
