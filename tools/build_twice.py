"""Build the wheel and the source archive twice, in two folders: the bytes must be the
same, and the archive must build the wheel.

    python tools/build_twice.py dist

writes both into a folder, with their SHA-256. ``SOURCE_DATE_EPOCH`` is the time that
the files get; left out, hatchling takes one that never changes.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]


def built(source: Path, target: Path) -> dict[str, str]:
    """Build both archives of a source folder into another; return their digests."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(target.iterdir())
    }


def unpacked(archive: Path, folder: Path) -> Path:
    """Unpack a source archive; return the one folder that is in it."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def different(source: Path, target: Path) -> list[str]:
    """Build a source folder into another one, then what its source archive holds;
    return the names of archives that differ.
    """
    first = built(source, target)
    with TemporaryDirectory() as folder:
        (archive,) = target.glob("*.tar.gz")
        again = unpacked(archive, Path(folder, "source"))
        second = built(again, Path(folder, "dist"))
    return [name for name in first | second if first.get(name) != second.get(name)]


def main(target: Path) -> None:
    """Build into a new folder, or say what differs."""
    shutil.rmtree(target, ignore_errors=True)
    differing = different(ROOT, target)
    if differing:
        sys.exit(f"a second build differs: {', '.join(differing)}")
    for path in sorted(target.iterdir()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        sys.stdout.write(f"{digest}  {path}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
