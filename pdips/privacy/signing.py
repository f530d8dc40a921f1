"""The key of an account, which signs its releases: ed25519 (RFC 8032).

The private half lies beside the ledger, closed to others. A public half that is printed
in a release proves nothing, because who changes the release can sign it with another
key: users get it from the office another way (``docs/card.md``).
"""

import binascii
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from pdips.disk import write_new
from pdips.errors import InputError

PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, repr=False, eq=False)
class AccountKey:
    """The key of an account: whoever has its public half can tell what it signed.

    Parameters
    ----------
    private : Ed25519PrivateKey
        The private half.

    Examples
    --------
    >>> key = AccountKey.create("table.sqlite.key")
    >>> verified(key.public, b"a release", key.sign(b"a release"))
    True
    >>> verified(key.public, b"another one", key.sign(b"a release"))
    False
    """

    private: Ed25519PrivateKey

    @classmethod
    def create(cls, path: str | Path) -> Self:
        """Make a key, and write its private half into a new file that only its owner
        may read.

        Raises
        ------
        InputError
            If there is a file already, which is never replaced, or none can be
            written.
        """
        private = Ed25519PrivateKey.generate()
        content = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        try:
            write_new(Path(path), content)
        except FileExistsError:
            raise InputError(
                f"{path} is there already, and a key is never replaced: releases that "
                f"it signed would lose their proof"
            ) from None
        except OSError as error:
            raise InputError(f"can't write the key {path}: {error.strerror}") from None
        return cls(private)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read the private half of a key.

        Raises
        ------
        InputError
            If the file can't be read, holds no such key, or is open to others.
        """
        content = _content(Path(path))
        if Path(path).stat().st_mode & OTHERS:
            raise InputError(
                f"the key {path} may be read by others, who could sign with it: "
                f"chmod 600 it, and make sure that nobody has copied it"
            )
        try:
            private = serialization.load_pem_private_key(content, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise InputError(
                f"the key {path} is damaged, or is no key of an account: put it back "
                f"from a copy"
            )
        return cls(private)

    @property
    def public(self) -> str:
        """The public half, as 64 hexadecimal digits."""
        return self.private.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> str:
        """Return the signature of a message, as 128 hexadecimal digits."""
        return self.private.sign(message).hex()

    def __repr__(self) -> str:
        return f"AccountKey({self.public})"


def verified(public: str, message: bytes, signature: str) -> bool:
    """Return whether the key with a public half has signed a message; False for what
    is no key or no signature.
    """
    try:
        key = Ed25519PublicKey.from_public_bytes(binascii.unhexlify(public))
        key.verify(binascii.unhexlify(signature), message)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def public_key(given: str | Path) -> str:
    """Return the public half that is given as 64 hexadecimal digits, or as a file that
    holds them or is a key in PEM.

    Raises
    ------
    InputError
        If it is neither.
    """
    text = str(given).strip().lower()
    if PUBLIC_KEY.fullmatch(text):
        return text
    wrong = (
        f"--key {_short(str(given))!r} is no public key: give its 64 hexadecimal "
        f"digits, or a file that holds them"
    )
    try:
        is_file = Path(given).is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        raise InputError(wrong)
    content = _content(Path(given))
    if b"PRIVATE KEY" in content:
        return AccountKey.read(given).public
    if b"PUBLIC KEY" in content:
        try:
            key = serialization.load_pem_public_key(content)
        except (ValueError, UnsupportedAlgorithm):
            raise InputError(wrong) from None
        if isinstance(key, Ed25519PublicKey):
            return key.public_bytes_raw().hex()
        raise InputError(wrong)
    text = content.decode("ascii", errors="replace").strip().lower()
    if PUBLIC_KEY.fullmatch(text):
        return text
    raise InputError(wrong)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(10_000)  # a key is far shorter
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such path"
        raise InputError(f"can't read the key {path}: {reason}") from None
