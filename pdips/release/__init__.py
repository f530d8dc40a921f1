"""What a release is and how it is written."""

import hashlib
from functools import cache
from pathlib import Path

# Of pdips: releases name it, and ``pyproject.toml`` has the same
VERSION = "1.0.0rc1"


@cache
def code_version() -> str:
    """Return the version with a digest of the package's source: a release is resumed by
    the very code that began it.
    """
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{VERSION}+{digest.hexdigest()[:12]}"
