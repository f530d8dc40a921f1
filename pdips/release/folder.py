"""The folder of a release: made beside its place, and moved there part by part, each complete or not at all."""

import hashlib
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pdips.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from pdips.release.documents import PrivacyDocument

PARTS = {"public", "confidential"}


class UnfinishedError(Exception):
    """A release is in its place, and what was to come beside it is not."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Staging:
    """A hidden folder whose parts move to their place in another folder."""

    def __init__(self, out: Path, hidden: Path) -> None:
        self.out = out
        self._hidden = hidden
        self._placed = False

    def part(self, name: str) -> Path:
        """Return where to make ``public`` or ``confidential``; the latter is closed to others."""
        folder = self._hidden / name
        folder.mkdir(mode=0o755 if name == "public" else 0o700)
        return folder

    def place(self, name: str) -> None:
        """Move a part, complete, to its place. The first one takes the place of an earlier release."""
        if self._placed:
            (self._hidden / name).rename(self.out / name)
            return
        new, out = self._hidden / "new", self.out
        new.mkdir()
        (self._hidden / name).rename(new / name)
        new.chmod(0o755)
        out.parent.mkdir(parents=True, exist_ok=True)
        self._placed = True
        if not (out.is_dir() and any(out.iterdir())):
            new.rename(out)
            return
        old = self._hidden / "old"
        try:
            out.rename(old)
            new.rename(out)
        except BaseException:
            if not out.exists():
                old.rename(out)
            raise

    @contextmanager
    def besides(self) -> Iterator[None]:
        """Say of anything that goes wrong inside that the public part is in its place all the same."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            there = f"{self.out / 'public'} holds the whole release, which is paid for, and its card; missing is"
            what = f"{self.out / 'confidential'} with the report"
            if isinstance(error, KeyboardInterrupt):
                raise UnfinishedError(f"interrupted; {there} {what}", 130) from error
            # A message from deep inside may quote a value of the table, so only its type is shown.
            raise UnfinishedError(f"{there} {what}, which failed by {type(error).__name__}", 1) from error


@contextmanager
def staging(out: Path, overwrite: bool) -> Iterator[Staging]:
    """Lend a :class:`Staging` for a folder that may take a release."""
    out = out.resolve() if out.is_symlink() else out
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a folder")
    if out.is_dir() and any(out.iterdir()):
        if not overwrite:
            raise InputError(f"{out} is not empty; name another folder, or say --overwrite to replace a release there")
        if not {entry.name for entry in out.iterdir()} <= PARTS:
            raise InputError(f"{out} holds more than a release; --overwrite won't replace it")
    home = next(folder for folder in out.absolute().parents if folder.exists())
    if not home.is_dir():
        raise InputError(f"{home} is no folder, so {out} can't be made")
    hidden = home / f".{out.name}-{secrets.token_hex(8)}"
    try:  # an interrupt may come as soon as the folder is there
        try:
            hidden.mkdir(mode=0o700)
        except OSError:
            raise InputError(f"can't write in {home}, where {out} would be") from None
        yield Staging(out, hidden)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def output_file(path: str | Path, option: str = "--json") -> Path:
    """Return the path that an option names, or refuse one that can't be written: said before minutes of work."""
    if not Path(path).absolute().parent.is_dir():
        raise InputError(f"{option} names a folder that doesn't exist: {Path(path).parent}")
    if Path(path).is_dir():
        raise InputError(f"{option} must name a file, and {path} is a folder")
    return Path(path)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_tables(folder: str | Path, *names: str) -> "tuple[PrivacyDocument, dict[str, pd.DataFrame]]":
    """Read a public folder and those of some tables that it has, in either format.

    Refused if it holds no release, or a file isn't the one that was published.
    """
    import pandas as pd

    from pdips.release.documents import PrivacyDocument

    home = Path(folder) / "public" if (Path(folder) / "public").is_dir() else Path(folder)
    document, frames = PrivacyDocument.read(home), dict[str, pd.DataFrame]()
    for name in names:
        path = next((path for end in ("parquet", "csv") if (path := home / f"{name}.{end}").is_file()), None)
        if path is not None:
            if (document.digests or {}).get(path.name, digest := file_digest(path)) != digest:
                raise InputError(f"{path} isn't the file that was published: its digest in privacy.json is another")
            csv = path.suffix == ".csv"
            frames[name] = pd.read_csv(path, keep_default_na=False, na_values=[""]) if csv else pd.read_parquet(path)
    return document, frames
