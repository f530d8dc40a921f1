"""The folder of a release: made beside its place by one run at a time, and moved there
part by part, each complete or not at all.
"""

import errno
import hashlib
import io
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdips.disk import exchange, rename_new, sync, sync_tree
from pdips.errors import InputError
from pdips.file_lock import FileLock

if TYPE_CHECKING:
    import pandas as pd

    from pdips.data.schema import Schema
    from pdips.release.documents import PrivacyDocument

PARTS = {"public", "confidential"}
# Seconds: `pdips check` holds the lock for an instant, a run for much longer
PATIENCE = 0.25
_NO_ALLOCATION = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class UnfinishedError(Exception):
    """A release is in its place, and what was to come beside it is not."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Staging:
    """A hidden folder whose parts move to their place in another folder."""

    def __init__(self, out: Path, hidden: Path, *, overwrite: bool = False) -> None:
        self.out = out
        self._hidden = hidden
        self._reserved = hidden / "reserved"
        self._replaces = overwrite

    def reserve(self, n_bytes: int, *, is_public: bool = True) -> None:
        """Take so much space, until the first part is made; refuse if the disk hasn't
        that much. A size that isn't public, as it follows from a protected number of
        records, isn't said.
        """
        if n_bytes <= 0:
            return
        try:
            with self._reserved.open("xb") as file:
                _allocate(file.fileno(), n_bytes, self._hidden)
        except (OSError, OverflowError) as error:
            self._reserved.unlink(missing_ok=True)
            reason = getattr(error, "strerror", None) or "too large a number"
            size = f" ({n_bytes / 1e6:,.1f} MB)" if is_public else ""
            raise InputError(
                f"the release{size} doesn't fit where {self.out} would be ({reason}); "
                f"free space there, or name a folder on another disk"
            ) from None

    def part(self, name: str) -> Path:
        """Return where to make ``public`` or ``confidential``; the latter is closed to
        others.
        """
        self._reserved.unlink(missing_ok=True)
        folder = self._hidden / name
        folder.mkdir(mode=0o755 if name == "public" else 0o700)
        return folder

    def place(self, name: str) -> None:
        """Move a part, complete and on the disk, to its place. The first one takes the
        place of an earlier release if that may be overwritten.

        Nothing else is ever replaced: if there is something, the part is kept in a
        folder beside it, which the error names.
        """
        part = self._hidden / name
        sync_tree(part)
        if self._replaces and self.out.is_dir() and any(self.out.iterdir()):
            self._replace(part)
        else:
            self._add(part)
        self._replaces = False

    def _add(self, part: Path) -> None:
        """Move a part into the folder, which is made if it isn't there."""
        try:
            self.out.mkdir(mode=0o755, exist_ok=True)
            rename_new(part, self.out / part.name)
        except FileExistsError:
            kept = self.out.with_name(f"{self.out.name}-{secrets.token_hex(4)}")
            kept.mkdir(mode=0o755)
            rename_new(part, kept / part.name)
            sync(kept)
            sync(kept.parent)
            raise UnfinishedError(
                f"{self.out / part.name} was made by another program during the run; "
                f"this release's {part.name} is kept in {kept}",
                1,
            ) from None
        sync(self.out)
        sync(self.out.parent)

    def _replace(self, part: Path) -> None:
        """Put a folder with this part alone in the place of an earlier release.

        The earlier one is deleted with the hidden folder, so only once the new one is
        there. Files that came into the folder during the run are kept.
        """
        new = self._hidden / "new"
        old = self._hidden / "old"
        new.mkdir(mode=0o755)
        rename_new(part, new / part.name)
        sync(new)
        sync(self._hidden)
        if exchange(new, self.out):
            rename_new(new, old)
        else:
            rename_new(self.out, old)
            try:
                rename_new(new, self.out)
            except BaseException:
                if not self.out.exists():
                    rename_new(old, self.out)
                raise
        for entry in old.iterdir():
            if entry.name not in PARTS:
                rename_new(entry, self.out / entry.name)
        sync(self.out)
        sync(self.out.parent)


def _allocate(descriptor: int, n_bytes: int, folder: Path) -> None:
    """Take space on the disk for a file; OSError if there isn't enough."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, n_bytes)
            return
    except OSError as error:
        if error.errno not in _NO_ALLOCATION:
            raise
    if shutil.disk_usage(folder).free < n_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def staging(out: Path, overwrite: bool) -> Iterator[Staging]:
    """Lend a :class:`Staging` for a folder that may take a release, and lock it for as
    long.
    """
    place = _place_of(out)
    out = place if out.is_symlink() else out
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a folder")
    with _parents(place, out), _locked(place, out):
        _refuse_content(out, overwrite)
        hidden = place.with_name(f".{place.name}-{secrets.token_hex(8)}")
        try:  # an interrupt may come as soon as the folder is there
            try:
                hidden.mkdir(mode=0o700)
                if out.is_dir():
                    _try_to_move(hidden / "probe", out / hidden.name)
            except OSError:
                raise _unwritable(place, out) from None
            yield Staging(out, hidden, overwrite=overwrite)
        finally:
            _remove(hidden)


def _remove(folder: Path) -> None:
    """Delete a folder; once more where an interrupt or an error stopped it."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)


def _try_to_move(probe: Path, to: Path) -> None:
    """Move an empty folder into another one, as parts will be after hours of work:
    OSError if that folder is on another disk, or closed.
    """
    probe.mkdir()
    rename_new(probe, to)
    to.rmdir()


def leftovers(out: Path) -> list[Path]:
    """Return what killed runs left beside a folder: hidden folders, and a lock file
    that no run holds. Nothing while a run is writing to it.
    """
    place = _place_of(out)
    if is_locked(out):
        return []
    found = _hidden_of(place)
    lock = _lock_of(place)
    if lock.is_file():
        found.append(lock)
    # a run may have begun in between
    return [] if is_locked(out) else found


def clear_leftovers(out: Path) -> list[Path]:
    """Delete what killed runs left beside a folder, and return it.

    If a run was killed while it moved an earlier release aside, that is put back first.
    """
    place = _place_of(out)
    before = leftovers(out)
    if not before:
        return []
    with _locked(place, out):
        for folder in _hidden_of(place):
            earlier = folder / "old"
            if earlier.is_dir() and not place.exists():
                rename_new(earlier, place)
                sync(place.parent)
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                raise InputError(f"can't delete {folder}: delete it by hand")
    return before


def is_locked(out: Path) -> bool:
    """Whether a run is writing to a folder now."""
    return FileLock.is_held(_lock_of(_place_of(out)))


def _place_of(out: Path) -> Path:
    """Return the path by which every run knows a folder."""
    try:
        place = out.resolve()
        is_link = place.is_symlink()
        place.exists()
    except OSError as error:
        raise InputError(
            f"{str(out)[:80]!r} is no path of a folder: {error.strerror}"
        ) from None
    if not place.name:
        raise InputError(f"{out} can't hold a release; name a folder inside it")
    if is_link:
        raise InputError(f"{out} is a link that leads nowhere; name a folder")
    return place


def _lock_of(place: Path) -> Path:
    return place.with_name(f".{place.name}.lock")


def _hidden_of(place: Path) -> list[Path]:
    name = re.compile(rf"\.{re.escape(place.name)}-[0-9a-f]{{16}}")
    try:
        entries = sorted(place.parent.iterdir())
    except OSError:
        return []
    return [
        entry
        for entry in entries
        if name.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink()
    ]


def _unwritable(place: Path, out: Path) -> InputError:
    return InputError(f"can't write in {place.parent}, where {out} would be")


@contextmanager
def _parents(place: Path, out: Path) -> Iterator[None]:
    """Make the folders above a place, and remove those that are empty at the end."""
    home = next(folder for folder in place.parents if folder.exists())
    if not home.is_dir():
        raise InputError(f"{home} is no folder, so {out} can't be made")
    missing = [folder for folder in place.parents if not folder.exists()]
    try:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            raise InputError(f"can't write in {home}, where {out} would be") from None
        yield
    finally:
        for folder in missing:
            with suppress(OSError):  # it isn't empty
                folder.rmdir()


@contextmanager
def _locked(place: Path, out: Path) -> Iterator[None]:
    """Hold the lock of a folder, a file beside it, or refuse if another run holds
    it.
    """
    try:
        lock = FileLock.taken(_lock_of(place), patience=PATIENCE)
    except PermissionError:
        raise _unwritable(place, out) from None
    except OSError as error:
        raise InputError(
            f"{place.parent} can't be locked ({error.strerror}), so another run could "
            f"write to {out} at the same time; name a folder on a local disk"
        ) from None
    if lock is None:
        raise _busy(out)
    try:
        yield
    finally:
        lock.release()


def _busy(out: Path) -> InputError:
    return InputError(
        f"another run is writing to {out}; wait for its end, or name another folder"
    )


def _refuse_content(out: Path, overwrite: bool) -> None:
    """Refuse a folder that is not empty, unless it holds a release that may be
    overwritten.
    """
    if not (out.is_dir() and any(out.iterdir())):
        return
    if not overwrite:
        raise InputError(
            f"{out} is not empty; name another folder, or say "
            f"--overwrite to replace a release there"
        )
    if not {entry.name for entry in out.iterdir()} <= PARTS:
        raise InputError(
            f"{out} holds more than a release; --overwrite won't replace it"
        )


def output_file(path: str | Path, option: str = "--json") -> Path:
    """Return the path that an option names, or refuse one that can't be written: said
    before minutes of work.
    """
    if not Path(path).absolute().parent.is_dir():
        raise InputError(
            f"{option} names a folder that doesn't exist: {Path(path).parent}"
        )
    if Path(path).is_dir():
        raise InputError(f"{option} must name a file, and {path} is a folder")
    return Path(path)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bytes_digest(content: bytes) -> str:
    """Return the SHA-256 of what a file holds, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def read_tables(
    folder: str | Path, *names: str
) -> "tuple[PrivacyDocument, dict[str, pd.DataFrame]]":
    """Read a public folder and those of some tables that it has: see
    :func:`read_table`.

    Refused if it holds no release.
    """
    from pdips.release.documents import PrivacyDocument

    home = Path(folder)
    if (home / "public").is_dir():
        home = home / "public"
    document = PrivacyDocument.read(home)
    tables = {}
    for name in names:
        table = read_table(home, document, name)
        if table is not None:
            tables[name] = table
    return document, tables


def read_table(
    home: Path, document: "PrivacyDocument", name: str
) -> "pd.DataFrame | None":
    """Return a table that a public folder has, in either format; None where it has none
    of that name.

    What is read is what was compared with its digest. Refused if it isn't the file that
    was published.
    """
    from pdips.release.documents import read_bytes

    paths = [home / f"{name}.{suffix}" for suffix in ("parquet", "csv")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    content = read_bytes(path)
    digests = document.digests
    if digests is not None and digests.get(path.name) != bytes_digest(content):
        raise InputError(
            f"{path} isn't the file that was published: its digest in privacy.json is "
            f"another"
        )
    return parsed_table(content, path.name, document.table_schema)


def parsed_table(content: bytes, file_name: str, schema: "Schema") -> "pd.DataFrame":
    """Return the table that a file of a release holds."""
    import pandas as pd

    if file_name.endswith(".parquet"):
        return pd.read_parquet(io.BytesIO(content))
    as_text: dict[Any, str] = {}  # levels such as "01" are no numbers
    for name, column in schema.columns.items():
        if any(isinstance(level, str) for level in column.levels or ()):
            as_text[name] = "str"
    return pd.read_csv(
        io.BytesIO(content), keep_default_na=False, na_values=[""], dtype=as_text
    )
