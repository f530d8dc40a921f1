"""What a release is and how it is written."""

VERSION = "0.3.0"  # Of pdips: releases name it, and ``pyproject.toml`` has the same
