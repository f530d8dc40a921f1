#!/bin/sh
# Builds the virtual environment $1 with the first Python that is new enough; uv, where it works, brings one along.
set -u
venv=$1
for python in python3.13 python3.12 python3; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then
        exec "$python" -m venv --clear "$venv"
    fi
done
if command -v uv >/dev/null 2>&1 && uv venv --quiet --seed --clear --python 3.13 "$venv"; then
    exit 0
fi
echo "pdips needs Python 3.12 or newer (or uv): none of python3.13, python3.12, python3 is; install one and run make again" >&2
exit 1
