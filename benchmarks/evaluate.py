"""Print how long an evaluation of the youth survey takes, whole and by measure:
``python -m benchmarks.evaluate``.
"""

import platform
import tempfile
import time
from datetime import date
from pathlib import Path

from benchmarks.__main__ import EXAMPLES, row
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.evaluation.evaluate import evaluate
from pdips.evaluation.margins import compare
from pdips.fields.margins import Margins
from pdips.privacy.curator import Clock
from pdips.release.documents import Diagnostics, RunDocument
from pdips.report.pages import rewrite_report

FORMULA = "own_business ~ age * sex + education + race"


def measured(table: Path, folder: Path) -> None:
    """Time the general measures, then the same with an analysis."""
    for what, formula, goal in (
        ("general measures", None, "<= 60 s on 2 cores"),
        ("and an analysis", FORMULA, ""),
    ):
        clock, wall, processor = Clock(), time.perf_counter(), time.process_time()
        found = evaluate(table, folder, formula=formula, clock=clock)
        spent = time.perf_counter() - wall, time.process_time() - processor
        row(
            f"48,371 x 15, m = 5: {what}",
            f"{spent[0]:.1f} s, of a processor {spent[1]:.1f} s",
            goal,
        )
    for name, seconds in clock.seconds.items():
        row(name, f"{seconds:.1f} s")
    found.write(folder / "confidential")
    processor = time.process_time()
    rewrite_report(folder)
    row(
        "the report with all pictures",
        f"of a processor {time.process_time() - processor:.1f} s",
        "<= 10 s",
    )
    for measure in found.general:
        row(measure.name, f"{measure.mean:.4g} (reference {measure.reference:.4g})")


def main() -> None:
    """Print the table for a release of steps at epsilon 1, five sets."""
    print(
        f"Python {platform.python_version()}, {platform.machine()}, "
        f"{date.today().isoformat()}\n"
    )
    print("| what | found | goal |\n| --- | --- | --- |")
    path = EXAMPLES / "youth.parquet"
    table = Table.read(path, Schema.load(EXAMPLES / "youth.toml"), counted=False)
    release, run = Margins(epsilon=1, n_sets=5).release(table)
    with tempfile.TemporaryDirectory() as folder:
        release.publish(Path(folder) / "public")
        inside = Path(folder) / "confidential"
        inside.mkdir()
        RunDocument(
            release=release.identifier,
            table=None,
            published=True,
            seconds=dict(run.seconds),
            peak_memory_mib=run.peak_memory,
            ledger=None,
            n_records=table.n_records,
            diagnostics=Diagnostics(),
            comparison=compare(table, release.sets),
        ).write(inside)
        measured(path, Path(folder))


if __name__ == "__main__":
    main()
