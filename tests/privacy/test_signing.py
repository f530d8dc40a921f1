"""The key of an account: made once, closed to others, and ed25519 as others have it."""

import os
import stat
import subprocess

import pytest
from tables import refuses

from pdips.privacy.signing import AccountKey, public_key, verified

# RFC 8032, section 7.1, test 2
RFC_PRIVATE = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"
RFC_PUBLIC = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
RFC_SIGNATURE = (
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)
MESSAGE = b"\x72"


@pytest.fixture
def key(tmp_path) -> AccountKey:
    return AccountKey.create(tmp_path / "t.sqlite.key")


def test_it_is_the_algorithm_of_the_standard():
    assert verified(RFC_PUBLIC, MESSAGE, RFC_SIGNATURE)
    private = AccountKey.__annotations__["private"].from_private_bytes(
        bytes.fromhex(RFC_PRIVATE)
    )
    assert AccountKey(private).public == RFC_PUBLIC
    assert AccountKey(private).sign(MESSAGE) == RFC_SIGNATURE


def test_a_key_is_read_back_and_closed_to_others(key, tmp_path):
    path = tmp_path / "t.sqlite.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = AccountKey.read(path)
    assert again.public == key.public
    assert verified(key.public, b"x", again.sign(b"x"))
    assert RFC_PRIVATE not in repr(key)
    assert repr(key) == f"AccountKey({key.public})"
    assert [each.name for each in tmp_path.iterdir()] == ["t.sqlite.key"]


def test_a_key_is_never_replaced(key, tmp_path):
    path = tmp_path / "t.sqlite.key"
    before = path.read_bytes()
    refuses("never replaced", AccountKey.create, path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["t.sqlite.key"]
    refuses("can't write the key", AccountKey.create, tmp_path / "no" / "k.key")


@pytest.mark.parametrize(
    ("public", "message", "signature"),
    [
        (RFC_PUBLIC, b"other", RFC_SIGNATURE),
        (RFC_PUBLIC, MESSAGE, "0" * 128),
        (RFC_PUBLIC, MESSAGE, RFC_SIGNATURE[:-2]),
        (RFC_PUBLIC, MESSAGE, RFC_SIGNATURE + "00"),
        (RFC_PUBLIC, MESSAGE, "no digits"),
        (RFC_PUBLIC, MESSAGE, ""),
        ("0" * 64, MESSAGE, RFC_SIGNATURE),
        ("f" * 64, MESSAGE, RFC_SIGNATURE),
        ("", MESSAGE, RFC_SIGNATURE),
        ("3d40", MESSAGE, RFC_SIGNATURE),
        ("\N{SNOWMAN}" * 64, MESSAGE, RFC_SIGNATURE),
        (None, MESSAGE, RFC_SIGNATURE),
        (RFC_PUBLIC, MESSAGE, None),
    ],
)
def test_what_is_no_signature_is_no_error(public, message, signature):
    assert verified(public, message, signature) is False


@pytest.mark.parametrize(
    "content",
    [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", b"\xff"],
)
def test_a_damaged_key_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "k.key"
    path.write_bytes(content)
    path.chmod(0o600)
    refuses("damaged", AccountKey.read, path)
    refuses("can't read the key", AccountKey.read, tmp_path / "none.key")
    refuses("can't read the key", AccountKey.read, tmp_path)


def test_a_key_of_another_kind_is_refused(tmp_path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    content = X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = tmp_path / "k.key"
    path.write_bytes(content)
    path.chmod(0o600)
    refuses("no key of an account", AccountKey.read, path)


def test_a_key_that_others_may_read_is_refused(key, tmp_path):
    path = tmp_path / "t.sqlite.key"
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        refuses("chmod 600", AccountKey.read, path)


def test_the_public_half_is_given_in_digits_or_in_a_file(key, tmp_path):
    from cryptography.hazmat.primitives import serialization

    pem = key.private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "k.pem").write_bytes(pem)
    (tmp_path / "k.txt").write_text(f"{key.public.upper()}\n")
    given = [key.public, key.public.upper(), f" {key.public}\n"]
    given += [tmp_path / "k.pem", str(tmp_path / "k.txt"), tmp_path / "t.sqlite.key"]
    assert {public_key(each) for each in given} == {key.public}
    (tmp_path / "bad.txt").write_bytes(b"\xffkey")
    (tmp_path / "bad.pem").write_bytes(b"-----BEGIN PUBLIC KEY-----\nAA")
    wrong = ["", "abc", key.public[:-1], "g" * 64, "a\0b", "x" * 5000, tmp_path]
    for each in [*wrong, tmp_path / "bad.txt", tmp_path / "bad.pem", tmp_path / "no"]:
        said = refuses("is no public key", public_key, each)
        assert len(said) < 300


def test_a_process_that_is_killed_leaves_a_whole_key_or_none(tmp_path):
    # killed in the middle of writing: the name isn't there yet
    code = f"""
import os, signal
from pdips import disk
from pdips.privacy.signing import AccountKey
disk.sync_open = lambda _: os.kill(os.getpid(), signal.SIGKILL)
AccountKey.create({str(tmp_path / "k.key")!r})
"""
    import sys

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert not (tmp_path / "k.key").exists()
    AccountKey.create(tmp_path / "k.key")
    assert os.path.exists(tmp_path / "k.key")
