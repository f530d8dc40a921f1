"""Whether the files of a release are those that were published together: digests, the
signature, and the two halves of a folder.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdips.errors import InputError
from pdips.privacy.signing import verified
from pdips.release.certificate import Certificate
from pdips.release.codebook import CODEBOOK
from pdips.release.documents import (
    PrivacyDocument,
    RunDocument,
    Signature,
    json_text,
    read_bytes,
    read_json,
)
from pdips.release.folder import file_digest

CARD = "card.html"
EVALUATION = "evaluation.json"  # in the confidential half
# What is written from the signed files, and checked by working it out again
DERIVED = {CARD, Certificate.file}
SETS = re.compile(
    r"(?:synthetic|households|members)_([1-9]\d*)\.(?:parquet|csv|sav|dta)"
)
MAIN_SUFFIXES = ("parquet", "csv")  # every set is in one of them
LONGEST = 255  # Bytes of a file's name


@dataclass(frozen=True, kw_only=True)
class Remark:
    """What a check found in one file of a release; ``fault``: it must not be so."""

    path: Path
    said: str
    fault: bool = True

    def __str__(self) -> str:
        return f"{self.path}: {self.said}"


@dataclass(frozen=True, kw_only=True)
class ExaminedRelease:
    """What a check of a public folder found: its documents, where they can be read,
    and remarks.
    """

    document: PrivacyDocument | None
    remarks: list[Remark]

    @property
    def faults(self) -> list[Remark]:
        """What must not be so."""
        return [remark for remark in self.remarks if remark.fault]


def examine_public(home: Path, key: str | None = None) -> ExaminedRelease:
    """Return what is wrong with the files of a public folder, or worth saying; ``key``
    is the public half that its signature must verify by.

    The bytes of ``privacy.json`` that the signature is verified on are those that the
    document is read from.
    """
    path = home / PrivacyDocument.file
    try:
        content = read_bytes(path)
        document = PrivacyDocument.parse(content, path)
    except InputError as error:
        damaged = Remark(path=path, said=_after(path, error))
        return ExaminedRelease(document=None, remarks=[damaged])
    remarks = [
        *_signature(home, document, content, key),
        *_price(path, document),
        *examine_files(home, document),
        *examine_analyses(home, document, key),
        *_others(home, document),
    ]
    return ExaminedRelease(document=document, remarks=remarks)


def examine_inside(
    directory: Path, release: PrivacyDocument, home: Path
) -> list[Remark]:
    """Return what is wrong with the confidential half of a folder, of which ``home``
    holds the sets.
    """
    inside = directory / "confidential"
    found: list[Remark] = []
    if home == inside:
        found += examine_files(home, release)
        found += examine_analyses(home, release)
    elif (inside / PrivacyDocument.file).exists():
        found.append(
            Remark(
                path=inside / PrivacyDocument.file,
                said="a release that stays inside lies beside a published one: two "
                "releases are mixed",
            )
        )
    path = inside / RunDocument.file
    if not path.exists():
        # an evaluation may have come without its run
        if inside.is_dir() and {each.name for each in inside.iterdir()} - {EVALUATION}:
            found.append(Remark(path=path, said="is missing"))
        return found
    try:
        run = RunDocument.read(inside)
    except InputError as error:
        return [*found, Remark(path=path, said=_after(path, error))]
    if run.release != release.release or run.published is (home == inside):
        said = (
            f"is of another release than {home / PrivacyDocument.file}: two releases "
            f"are mixed"
        )
        found.append(Remark(path=path, said=said))
    return found


def _after(path: Path, error: InputError) -> str:
    """Return a message without the path that it begins with."""
    return str(error).removeprefix(f"{path} ").removeprefix("is damaged: ")


def examine_files(home: Path, document: PrivacyDocument) -> list[Remark]:
    """Return what is wrong with the files that a release names with their digests."""
    path = home / PrivacyDocument.file
    if not document.digests:
        return [Remark(path=path, said="holds no digests, so no file can be checked")]
    found: list[Remark] = []
    for name, digest in document.digests.items():
        if not _is_name(name):
            found.append(Remark(path=path, said=f"{name!r} is no name of a file"))
        elif not (home / name).is_file():
            found.append(Remark(path=home / name, said="is missing"))
        elif _digest(home / name) != digest:
            said = "isn't the file that was published: its digest is another"
            found.append(Remark(path=home / name, said=said))
    for number in range(1, document.n_sets + 1):
        stem = f"synthetic_{number}"
        if not any(f"{stem}.{suffix}" in document.digests for suffix in MAIN_SUFFIXES):
            found.append(Remark(path=path, said=f"has no digest of {stem}"))
            break
    return found + _codebook(home, document, document.digests)


def examine_analyses(
    home: Path, document: PrivacyDocument, key: str | None = None
) -> list[Remark]:
    """Return what is wrong with the folders of the analyses that are parts of a
    release, which has the digests of all that they hold but their signatures.
    """
    found: list[Remark] = []
    for stated in document.analyses:
        own = home / stated.folder
        path = own / PrivacyDocument.file
        if own.is_symlink() or not path.is_file():
            found.append(Remark(path=path, said="is missing"))
            continue
        if _digest(path) != stated.digest:
            said = "isn't the file that was published: its digest is another"
            found.append(Remark(path=path, said=said))
            continue
        try:
            content = read_bytes(path)
            part = PrivacyDocument.parse(content, path)
        except InputError as error:
            found.append(Remark(path=path, said=_after(path, error)))
            continue
        if part.analyses:
            found.append(Remark(path=path, said="a part of a release has no parts"))
            continue
        if (own / Signature.file).exists():
            signed = _signature(own, part, content, key)
            found += [remark for remark in signed if remark.fault]
        found += _price(path, part)
        found += examine_files(own, part)
        found += _others(own, part, derived=False)
    return found


def _is_name(name: str) -> bool:
    """Whether a text is the name of a file that a release may hold."""
    others = {*DERIVED, PrivacyDocument.file, Signature.file}
    plain = re.fullmatch(r"[\w-][\w. -]*", name) is not None
    return plain and len(os.fsencode(name)) <= LONGEST and name not in others


def _digest(path: Path) -> str | None:
    try:
        return file_digest(path)
    except OSError:
        return None


def _codebook(
    home: Path, document: PrivacyDocument, digests: Mapping[str, str]
) -> list[Remark]:
    """Return whether the codebook describes the files that have digests, and no other,
    and states the same guarantee.
    """
    path = home / CODEBOOK
    if CODEBOOK not in digests:
        said = f"has no digest of {CODEBOOK}"
        return [Remark(path=home / PrivacyDocument.file, said=said)]
    if not path.is_file():
        return []  # said before
    try:
        content = read_json(path)
        described = {each["path"]: each["hash"] for each in content["resources"]}
        states = document.privacy.statement in content["description"]
    except (InputError, KeyError, TypeError):
        return [Remark(path=path, said="is damaged: it is no codebook of a release")]
    wanted = {name: f"sha256:{digest}" for name, digest in digests.items()}
    del wanted[CODEBOOK]
    found = [
        Remark(
            path=path,
            said=f"{name!r} is described here or has a digest in privacy.json, not "
            f"both",
        )
        for name in sorted({*described} ^ {*wanted})
    ]
    both = {*described} & {*wanted}
    if any(described[name] != wanted[name] for name in both):
        found.append(Remark(path=path, said="has other digests than privacy.json"))
    if not states:
        said = "states another guarantee than privacy.json"
        found.append(Remark(path=path, said=said))
    return found


def _price(path: Path, document: PrivacyDocument) -> list[Remark]:
    """Return whether the items of a pure price add up to it."""
    privacy = document.privacy
    spends = document.spends
    plain = privacy.kind == "pure" and {spend.composition for spend in spends} <= {
        "sequential"
    }
    summed = math.fsum(spend.epsilon for spend in spends)
    if plain and not math.isclose(summed, privacy.epsilon, rel_tol=1e-9):
        return [Remark(path=path, said="its spends don't add up to its epsilon")]
    return []


def _signature(
    home: Path, document: PrivacyDocument, message: bytes, key: str | None
) -> list[Remark]:
    """Return whether a release is signed, and by which key."""
    path = home / Signature.file
    of = home / PrivacyDocument.file
    if not path.exists():
        return [_unsigned(path, of, key, charged=document.receipt is not None)]
    try:
        content = read_bytes(path)
        signature = Signature.parse(content, path)
    except InputError as error:
        return [Remark(path=path, said=_after(path, error))]
    exact = json_text(signature.contents()).encode() == content
    if not exact or not verified(signature.key, message, signature.signature):
        return [Remark(path=path, said="doesn't fit privacy.json: one was changed")]
    if key is not None and signature.key != key:
        return [Remark(path=path, said=f"is by another key: {signature.key}")]
    said = f"signed by the key {signature.key}"
    if key is None:
        said += (
            ", which proves nothing until it is compared with the one that the office "
            "names elsewhere (--key)"
        )
    return [Remark(path=of, said=said, fault=False)]


def _unsigned(path: Path, of: Path, key: str | None, *, charged: bool) -> Remark:
    """Say that there is no signature, which is a fault where there should be one."""
    if key is not None:
        said = "is missing: nothing shows that the key has signed this release"
        return Remark(path=path, said=said)
    if charged:
        said = (
            "is missing: the release is charged to an account, which signs its releases"
        )
        return Remark(path=path, said=said)
    said = "unsigned: nothing shows who published it, or that it is unchanged"
    return Remark(path=of, said=said, fault=False)


def _others(
    home: Path, document: PrivacyDocument, *, derived: bool = True
) -> list[Remark]:
    """Return what lies in a public folder and is not of the release, which may have
    ``derived`` files, without a digest.
    """
    found: list[Remark] = []
    known = {*(document.digests or ()), PrivacyDocument.file, Signature.file}
    known |= DERIVED if derived else set()
    known |= {stated.folder for stated in document.analyses}
    for entry in sorted(home.iterdir()):
        if entry.name in known:
            # files that have a digest are read elsewhere
            if entry.name in DERIVED and entry.is_dir():
                found.append(Remark(path=entry, said="is no file of a release"))
            continue
        number = SETS.fullmatch(entry.name)
        if number and int(number[1]) > document.n_sets and entry.is_file():
            said = "unsigned post-processing, added later; not checked"
            found.append(Remark(path=entry, said=said, fault=False))
        else:
            said = "is not of this release: privacy.json has no digest of it"
            found.append(Remark(path=entry, said=said))
    return found
