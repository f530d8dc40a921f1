"""Compiled code, where no folder of the user or of the library can be written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pdips import caches

ROOT = Path(__file__).parents[2]

COMPILE = """
import os, stat, sys
import numpy as np
import pdips
from pdips.quantile.line_search import _guesses
import pytensor
import pytensor.tensor as pt

folder = os.environ["NUMBA_CACHE_DIR"]
assert pdips.__file__.startswith(sys.argv[1])
assert str(pytensor.config.base_compiledir) == folder == os.environ["MPLCONFIGDIR"]
assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
_guesses(np.array([1.0, 2.0, 3.0]), np.array([0.0]), np.array([4.0]))
x = pt.vector("x")
assert pytensor.function([x], 2 * x)(np.array([1.0]))[0] == 2
print(folder)
"""


def unwritable_copy(folder: Path) -> Path:
    """Copy the library; nothing can be kept in its folders, not even by root."""
    package = folder / "pdips"
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pdips", package, ignore=skipped)
    for path in [package, *package.rglob("*")]:
        if path.is_dir():
            (path / "__pycache__").write_text("in the way")
    return folder


@pytest.mark.parametrize("home", ["/dev/null", "read-only"])
def test_compiled_code_goes_elsewhere_where_no_home_can_be_written(tmp_path, home):
    package = unwritable_copy(tmp_path)
    if home == "read-only":
        home = tmp_path / "home"
        home.mkdir()
        for name in (".cache", ".config", ".pytensor"):
            (home / name).write_text("in the way")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NUMBA_CACHE_DIR", "MPLCONFIGDIR", "PYTHONPATH")
        and not name.startswith(("XDG_", "PYTENSOR"))
    }
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, package],
        cwd=package,
        env=kept | {"HOME": str(home), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    folder = Path(done.stdout.strip())
    assert folder.parent == tmp_path
    assert not folder.exists()


def test_settings_of_the_user_are_left_alone(tmp_path):
    environment = {
        "HOME": "/dev/null",
        "NUMBA_CACHE_DIR": "/n",
        "PYTENSOR_FLAGS": "base_compiledir=/p",
        "MPLCONFIGDIR": "/m",
    }
    before = dict(environment)
    caches.settle(environment)
    assert environment == before
    writable = {"HOME": str(tmp_path)}
    caches.settle(writable)
    assert writable == {"HOME": str(tmp_path)}
    assert not list(tmp_path.iterdir())


def test_other_flags_of_pytensor_are_kept(tmp_path):
    environment = {"HOME": "/dev/null", "PYTENSOR_FLAGS": "floatX=float64"}
    caches.settle(environment)
    first, second = environment["PYTENSOR_FLAGS"].split(",")
    assert first == "floatX=float64"
    assert second == f"base_compiledir={environment['MPLCONFIGDIR']}"


def test_without_any_folder_nothing_is_named(monkeypatch, tmp_path):
    def refuse(**_):
        raise OSError

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    environment = {"HOME": "/dev/null"}
    caches.settle(environment)
    assert environment == {"HOME": "/dev/null"}
