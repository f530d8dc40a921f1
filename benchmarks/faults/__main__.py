"""Try releases with faults: ``python -m benchmarks.faults --help``."""

import os
import sys
import tempfile
from pathlib import Path

from benchmarks.faults import shim
from benchmarks.faults.trial import main

if __name__ == "__main__":
    if not shim.is_loaded():
        built = shim.build(Path(tempfile.mkdtemp(prefix="shim")))
        words = [sys.executable, "-m", "benchmarks.faults", *sys.argv[1:]]
        os.execve(sys.executable, words, shim.environment(built))
    main()
