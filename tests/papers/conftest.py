"""What tests of studies share: a study that is run and written down, and a mechanism
that withholds its releases.
"""

from types import SimpleNamespace

import pytest

from pdips import RefusedError
from pdips.registry import MECHANISMS
from pdips_papers.harness.page import write
from pdips_papers.harness.run import measure
from pdips_papers.harness.study import COLUMNS


@pytest.fixture(scope="session")
def studied(tmp_path_factory):
    """Run a study and write it down; return its measurements, its table and its
    page.
    """

    def run(study, options):
        out = tmp_path_factory.mktemp("study") / "out"
        measurements = measure(study, options, out, workers=0)
        command = f"pdips study {study.name}"
        table = write(
            study, options, measurements, out, seed=1, seconds=2.5, command=command
        )
        assert tuple(table.columns) == COLUMNS
        assert not table.duplicated(["row", "column"]).any()
        return measurements, table, (out / "study.html").read_text(encoding="utf-8")

    return run


@pytest.fixture
def withheld(monkeypatch):
    """The censored posterior's chains never agree."""

    def release(table, *, rng):
        raise RefusedError("the chains don't agree; more advice")

    made = SimpleNamespace(plan=lambda schema: None, release=release)
    monkeypatch.setitem(MECHANISMS, "censored-posterior", lambda **settings: made)
