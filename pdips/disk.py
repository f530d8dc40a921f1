"""Files that are there whole or not at all: renames that replace nothing, and what is
on the disk before it is relied on.
"""

import ctypes
import errno
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

# For renameat2 of Linux (linux/fs.h) and renamex_np of macOS (sys/stdio.h)
_LINUX = {"no replace": 1, "exchange": 2}
_MACOS = {"no replace": 4, "exchange": 2}
_HERE = -100  # AT_FDCWD: paths count from the working folder
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR}


def rename_new(old: Path, new: Path) -> None:
    """Rename a file or a folder; FileExistsError if there is something at the new
    place.
    """
    if _renamed(old, new, "no replace"):
        return
    try:
        if old.is_dir():
            # rename(2) puts a folder in the place of an empty folder at most: anything
            # else there makes it fail. So nothing can be lost.
            os.rename(old, new)
        else:
            os.link(old, new)
            old.unlink()
    except OSError as error:
        if error.errno in _TAKEN:
            raise FileExistsError(error.errno, error.strerror, str(new)) from None
        raise


def exchange(one: Path, other: Path) -> bool:
    """Let two files or folders change places in one step; False where the system can't
    do that.
    """
    return _renamed(one, other, "exchange")


def _renamed(old: Path, new: Path, how: str) -> bool:
    """Rename by the call of the system that takes flags; False if there is none."""
    call = _rename_call()
    if call is None or call(os.fsencode(old), os.fsencode(new), how) == 0:
        return call is not None
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    if how == "no replace" and number in _TAKEN:
        number = errno.EEXIST
    raise OSError(number, os.strerror(number), str(old), None, str(new))


@cache
def _rename_call() -> Callable[[bytes, bytes, str], int] | None:
    library = ctypes.CDLL(None, use_errno=True)
    function: Any = None
    if sys.platform == "linux":
        with suppress(AttributeError):
            function = library.renameat2
            return lambda old, new, how: int(
                function(_HERE, old, _HERE, new, ctypes.c_uint(_LINUX[how]))
            )
    elif sys.platform == "darwin":
        with suppress(AttributeError):
            function = library.renamex_np
            return lambda old, new, how: int(
                function(old, new, ctypes.c_uint(_MACOS[how]))
            )
    return None


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_open(descriptor)
    finally:
        os.close(descriptor)


def sync_open(descriptor: int) -> None:
    """Wait until an open file is on the disk."""
    if sys.platform == "darwin":  # where fsync may stop at the drive's cache
        import fcntl

        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_tree(folder: Path) -> None:
    """Wait until all that is in a folder is on the disk, and the folder."""
    for entry in folder.iterdir():
        if entry.is_symlink():
            continue
        if entry.is_dir():
            sync_tree(entry)
        elif entry.is_file():
            sync(entry)
    sync(folder)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that wasn't there; FileExistsError if it is.

    It is there whole and on the disk, or not at all.
    """
    hidden = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(hidden, flags, 0o600)  # for nobody else
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            sync_open(descriptor)
        rename_new(hidden, path)
        sync(path.parent)
    finally:
        hidden.unlink(missing_ok=True)
