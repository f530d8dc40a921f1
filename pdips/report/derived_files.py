"""Files that are written from the signed ones: worked out again, and compared."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from pdips.errors import InputError, RefusedError
from pdips.evaluation.document import EvaluationDocument
from pdips.extras import require
from pdips.registry import load
from pdips.release.certificate import Certificate
from pdips.release.documents import (
    PrivacyDocument,
    read_bytes,
)
from pdips.release.integrity import CARD, Remark
from pdips.report.pages import card_of

# What a card shows as a figure: at a glance, and in tables
FIGURE = re.compile(
    rb'<(dd|td)[^>]*class="[^"]*(?:figure|n r)[^"]*"[^>]*>(.*?)</\1>', re.DOTALL
)
PICTURE = re.compile(rb"(<svg[^>]*>).*?</svg>", re.DOTALL)
# What a card answers questions from
NUMBERS = re.compile(
    rb'<script type="application/json" id="card-data">(.*?)</script>', re.DOTALL
)
DECODED = "pdips.outside.card_data:decoded"
NEAR = 1e-9
WRITER = re.compile(rb"This page was written by ((pdips \S{1,40}), .{1,60}), from")


def examine_derived(home: Path, release: PrivacyDocument) -> list[Remark]:
    """Return what is wrong with card and certificate of a public folder."""
    try:
        Certificate.beside(home)
    except InputError as error:
        # the card can't be written as long as the certificate is at fault
        return [_damaged(home / Certificate.file, error)]
    return _card(home / CARD, home, release)


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


def _card(path: Path, home: Path, release: PrivacyDocument) -> list[Remark]:
    """Write the card again, and compare it with the one that is there.

    Another version of pdips writes other words, so then its figures are compared alone.
    """
    write_again = "`pdips report DIR` writes it"
    if not path.is_file():
        return [Remark(path=path, said=f"is missing: {write_again}")]
    require("report", "the check of a card needs")
    try:
        written = read_bytes(path)
        right = card_of(release, home).encode()
    except (InputError, RefusedError) as error:
        return [_damaged(path, error)]
    right = _with_numbers_of(written, right)
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


def _with_numbers_of(written: bytes, right: bytes) -> bytes:
    """Return the right card with the numbers that the written one answers from, if
    these are the same but for their last digits: another processor adds up in another
    order.
    """
    ours = NUMBERS.search(right)
    theirs = NUMBERS.search(written)
    if ours is None or theirs is None or ours[1] == theirs[1]:
        return right
    try:
        same = _are_near(json.loads(theirs[1]), json.loads(ours[1]))
    except (ValueError, RecursionError, InputError):
        return right
    return right.replace(ours[1], theirs[1]) if same else right


def _are_near(one: Any, other: Any, name: str = "") -> bool:
    """Whether two contents of JSON are the same, numbers but for their last digits."""
    if isinstance(one, dict) and isinstance(other, dict):
        same_keys = [*one] == [*other]
        return same_keys and all(_are_near(one[key], other[key], key) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        same_length = len(one) == len(other)
        return same_length and all(map(_are_near, one, other))
    if name == "counts" and isinstance(one, str) and isinstance(other, str):
        counts = load(DECODED)(one)
        right = load(DECODED)(other)
        return counts.shape == right.shape and np.allclose(counts, right, NEAR, NEAR)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=NEAR)
    return type(one) is type(other) and bool(one == other)


def _plain(page: bytes, writer: bytes) -> bytes:
    """Return a card without its pictures, and without what it was written by."""
    return PICTURE.sub(rb"\1", page).replace(writer, b"")
