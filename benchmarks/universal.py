"""Draw the picture of the universal histogram's page and print its numbers: ``python -m
benchmarks.universal``.

Ranges of an ordered column of 1,000 levels on a made-up table, and margins of the youth
survey by random order.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.__main__ import EXAMPLES, ORDER
from benchmarks.pictures import DOCS, distances
from pdips import LaplaceSanitizer, Mechanism, Schema, Steps, Table, UniversalHistogram
from pdips.arrays import FloatArray

N_LEVELS = 1000
N_RECORDS = 20_000
REPEATS = 20
LENGTHS = (1, 3, 10, 30, 100, 300, 700)


def made_up() -> Table:
    """Return a table of one lognormal column in 1,000 bins."""
    schema = Schema.model_validate(
        {"columns": {"income": {"lower": 0, "upper": 200_000, "bins": N_LEVELS}}}
    )
    values = np.random.default_rng(0).lognormal(10.5, 0.6, N_RECORDS).clip(0, 200_000)
    return Table(pd.DataFrame({"income": values}), schema)


def errors(table: Table, mechanism: Mechanism) -> FloatArray:
    """Return the root mean square error of the share in a range, by its length, over
    all ranges and releases.
    """
    found = np.zeros(len(LENGTHS))
    for _ in range(REPEATS):
        (made,) = mechanism.release(table)[0].sets
        counts = [
            np.bincount(t.codes["income"], minlength=N_LEVELS)
            for t in (table, Table(made, table.schema))
        ]
        apart = np.concatenate([[0], np.cumsum(counts[0] - counts[1])]) / N_RECORDS
        found += [
            np.mean((apart[length:] - apart[:-length]) ** 2) for length in LENGTHS
        ]
    return np.sqrt(found / REPEATS)


def main() -> None:
    """Draw the ranges and print the margins."""
    table = made_up()
    figure = Figure(figsize=(6, 3.6))
    axes = figure.add_subplot()
    lines: tuple[tuple[str, Mechanism, str], ...] = (
        ("laplace-sanitizer", LaplaceSanitizer(epsilon="0.1"), "o-"),
        (
            "universal-histogram, fan_out = 2",
            UniversalHistogram(epsilon="0.1", fan_out=2),
            "^--",
        ),
        (
            "universal-histogram, fan_out = 10, the default",
            UniversalHistogram(epsilon="0.1"),
            "s-",
        ),
    )
    for label, mechanism, style in lines:
        values = 100 * errors(table, mechanism)
        print(label, dict(zip(LENGTHS, np.round(values, 3).tolist(), strict=True)))
        axes.plot(
            LENGTHS,
            values,
            style,
            label=label,
            color="black",
            markersize=5,
            linewidth=1,
        )
    axes.set(
        xscale="log",
        xlabel="levels in the range, of 1,000",
        ylabel="error, percentage points",
        ylim=(0, None),
    )
    axes.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / "universal-histogram.svg", metadata={"Date": None})
    youth = Table.read(EXAMPLES / "youth.parquet", Schema.load(EXAMPLES / "youth.toml"))
    for layers in (2, 3, None):
        for label, build in (
            (
                "random order",
                lambda layers: UniversalHistogram(epsilon=1, layers=layers),
            ),
            (
                "order given",
                lambda layers: Steps(epsilon=1, order=ORDER[: layers or len(ORDER)]),
            ),
        ):
            runs = [distances(build(layers), youth) for _ in range(6)]
            print(
                layers,
                label,
                np.round(np.mean(runs, axis=0), 3),
                np.round(np.std(runs, axis=0), 3),
            )


if __name__ == "__main__":
    main()
