"""Where compiled code is kept: by numba beside its source or in the user's cache, by
PyTensor in the user's home.

Both refuse to compile, or even to be imported, where these folders can't be written:
in a container with a read-only home, or as a user without one. That must not be found
out after the charge.
"""

import atexit
import os
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path

PACKAGE = Path(__file__).parent


def settle(environment: MutableMapping[str, str] = os.environ) -> None:
    """Name a temporary folder to numba, PyTensor and Matplotlib, where theirs can't be
    written.

    It is private to this process, for code that is read from it is run, and is
    deleted at the end. Settings of the user are left alone. Called before any of the
    three is imported.
    """
    wanted = list(_unwritable(environment))
    if not wanted:
        return
    import tempfile  # slow to import, and seldom needed

    try:
        folder = tempfile.mkdtemp(prefix="pdips-compiled-")
    except OSError:  # compiling will fail, before any table is read
        return
    atexit.register(_remove, folder, os.getpid())
    for name in wanted:
        environment[name] = folder
    if "base_compiledir" in wanted:
        flags = environment.get("PYTENSOR_FLAGS")
        here = f"base_compiledir={environment.pop('base_compiledir')}"
        environment["PYTENSOR_FLAGS"] = f"{flags},{here}" if flags else here
    if "NUMBA_CACHE_DIR" in wanted and "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = folder


def _unwritable(environment: MutableMapping[str, str]) -> Iterator[str]:
    """Yield the settings of folders that can't be written where they would be."""
    home = Path(environment.get("HOME") or os.path.expanduser("~"))
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    if not environment.get("NUMBA_CACHE_DIR") and not _is_writable(cache / "numba"):
        folders = {path.parent for path in PACKAGE.rglob("*.py")}
        if not all(_is_writable(folder / "__pycache__") for folder in folders):
            yield "NUMBA_CACHE_DIR"
    is_named = "compiledir" in environment.get("PYTENSOR_FLAGS", "")
    if not is_named and not _is_writable(home / ".pytensor"):
        yield "base_compiledir"
    if not environment.get("MPLCONFIGDIR") and not _is_writable(config / "matplotlib"):
        yield "MPLCONFIGDIR"


def _is_writable(folder: Path) -> bool:
    """Whether a folder may be written, or be made where it would be."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _remove(folder: str, owner: int) -> None:
    """Delete the folder when the process that made it ends, not its children."""
    import shutil

    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
