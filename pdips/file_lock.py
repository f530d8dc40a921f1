"""Locks between processes that a dead process can't hold: ``flock`` on a file."""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Self
from weakref import WeakSet

POLL = 0.025  # Seconds between two tries to take a lock


class FileLock:
    """A lock that this process holds until :meth:`release` or its end.

    A child that is forked doesn't hold it.

    Parameters
    ----------
    path : Path
        The file that stands for the lock; made where it isn't there.

    Examples
    --------
    >>> lock = FileLock.taken(Path("release.lock"))
    >>> FileLock.taken(Path("release.lock")) is None
    True
    >>> lock.release()
    """

    _descriptor: int | None = None
    _has_lock = False

    def __init__(self, path: Path) -> None:
        self.path = path
        _HELD.add(self)

    def __del__(self) -> None:
        self.release()  # one that an interrupt lost isn't held for ever

    @classmethod
    def taken(cls, path: Path, *, patience: float = 0.0) -> Self | None:
        """Take a lock, or return None if another holder has it for longer than some
        seconds.
        """
        until = time.monotonic() + patience
        while True:
            lock = cls._taken_now(path)
            if lock is not None or time.monotonic() >= until:
                return lock
            time.sleep(POLL)

    @classmethod
    def _taken_now(cls, path: Path) -> Self | None:
        while True:
            # The object alone closes its descriptor, whenever an interrupt comes.
            lock = cls(path)
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            lock._descriptor = os.open(path, flags, 0o600)
            try:
                fcntl.flock(lock._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                return None
            # Its last holder may have removed the file between our two calls: the next
            # one would lock another file of that name.
            if _is_file_at(lock._descriptor, path):
                lock._has_lock = True
                return lock
            lock.close()

    @classmethod
    def is_held(cls, path: Path) -> bool:
        """Whether some process holds the lock; no file is made for the question.

        A lock of another user, which can't be looked at, counts as held.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            return True
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def release(self) -> None:
        """Give the lock back and remove its file; a second time it does nothing."""
        if self._descriptor is None:
            return
        # Removed while it is still held: whoever opens the path next makes a new file.
        if self._holds() and _is_file_at(self._descriptor, self.path):
            with suppress(OSError):
                self.path.unlink()
        self.close()

    def _holds(self) -> bool:
        """Whether this object has the lock; an interrupt may have come between opening
        the file and noting that.
        """
        if self._has_lock or self._descriptor is None:
            return self._has_lock
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the descriptor and leave the file."""
        descriptor = self._descriptor
        self._descriptor = None
        if descriptor is not None:
            os.close(descriptor)


_HELD: "WeakSet[FileLock]" = WeakSet()


def _close_in_child() -> None:
    for lock in list(_HELD):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
