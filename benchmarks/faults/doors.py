"""The doors by which a table comes in, the mechanisms, and their command lines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

Place = Literal["parquet", "csv", "folder", "dask", "duckdb", "postgres"]

N_RECORDS = 240
N_FILES = 3

# The values of wage and hours are told from all other numbers by their digits.
SCHEMA = """\
[columns.sex]
levels = ["f", "m"]

[columns.town]
levels = ["north", "south", "east"]

[columns.wage]
lower = 0
upper = 10000
bins = 4

[columns.hours]
lower = 0
upper = 60
bins = 4
"""


@dataclass(frozen=True, kw_only=True)
class Door:
    """One way to ask for a release.

    Parameters
    ----------
    name : str
        In tables of results.
    place : str
        Where the table is.
    mechanism : str
        Its name.
    options : tuple of str
        More words of the command line.
    reads_records : bool
        Whether chains read records, so that a charge may end without a release.
    converges : bool
        Whether they converge: otherwise every run is charged and refused.
    """

    name: str
    place: Place
    mechanism: str
    options: tuple[str, ...] = ()
    reads_records: bool = False
    converges: bool = True

    def words(self, address: str, ledger: Path, out: Path) -> list[str]:
        """Return the command line, after ``pdips``."""
        scheduler = ["--scheduler", "local"] if self.place == "dask" else []
        return [
            "synthesize",
            address,
            *("--schema", "data/s.toml"),
            *("--mechanism", self.mechanism),
            *("--epsilon", "2"),
            *("--sets", "1"),
            *("--ledger", str(ledger)),
            *("--out", str(out)),
            "--quiet",
            *scheduler,
            *self.options,
        ]


def _options(*options: str, columns: str = "") -> tuple[str, ...]:
    chosen = ("--columns", columns) if columns else ()
    pairs = (("--option", option) for option in options)
    return (*chosen, *(word for pair in pairs for word in pair))


DOORS = (
    Door(name="parquet", place="parquet", mechanism="margins"),
    Door(
        name="csv",
        place="csv",
        mechanism="steps",
        # an election and a tree for each set: six answers, each committed by itself
        options=(*_options("layers=1", "split=per-set"), "--sets", "2"),
    ),
    Door(name="folder", place="folder", mechanism="margins"),
    Door(name="duckdb", place="duckdb", mechanism="laplace-sanitizer"),
    Door(name="postgres", place="postgres", mechanism="laplace-sanitizer"),
    Door(name="dask", place="dask", mechanism="margins"),
)
"""One counting mechanism a door: what the build server tries."""

_LEVELS = "sex,town"
_NUMBERS = "wage,hours,sex"

MECHANISMS = (
    Door(
        name="kng", place="parquet", mechanism="kng", options=_options(columns=_NUMBERS)
    ),
    Door(
        name="kng-residual",
        place="parquet",
        mechanism="kng-residual",
        options=_options("bins=4", columns=_NUMBERS),
    ),
    *(
        Door(
            name=name,
            place="parquet",
            mechanism=name,
            options=_options(*options, columns=_LEVELS),
        )
        for name, options in {
            "mcclure-reiter": (),
            "multinomial-dirichlet": (),
            "perturbed-histogram": (),
            "privbayes": ("degree=1",),
            "smoothed-histogram": (),
            "universal-histogram": ("layers=2",),
        }.items()
    ),
    Door(
        name="modips",
        place="parquet",
        mechanism="modips",
        options=(*_options(columns=_LEVELS), "--model", "multinomial"),
    ),
    Door(
        name="scores",
        place="parquet",
        mechanism="scores",
        options=(*_options(columns="wage"), "--model", "normal"),
    ),
    Door(
        name="censored-posterior",
        place="parquet",
        mechanism="censored-posterior",
        options=(*_options(columns="wage"), "--model", "beta"),
        reads_records=True,
    ),
    Door(
        name="censored-posterior, few draws",
        place="parquet",
        mechanism="censored-posterior",
        options=(
            *_options("sampler=nuts", "draws=4", "tune=10", columns="wage"),
            *("--model", "beta"),
        ),
        reads_records=True,
        converges=False,
    ),
)
"""The other registered mechanisms that a ledger can hold, models included: they are
tried in the long form.
"""


def records() -> pd.DataFrame:
    """Return the table, the same each time."""
    rng = np.random.default_rng(46)
    return pd.DataFrame(
        {
            "sex": rng.choice(["f", "m"], N_RECORDS),
            "town": rng.choice(["north", "south", "east"], N_RECORDS),
            "wage": np.round(rng.uniform(1000, 10000, N_RECORDS), 4),
            "hours": np.round(rng.uniform(10, 60, N_RECORDS), 6),
        }
    )


def secrets_of(frame: pd.DataFrame) -> set[str]:
    """Return texts of the table's values that nothing may print."""
    return {str(value) for name in ("wage", "hours") for value in frame[name]}


def write_data(folder: Path) -> None:
    """Write the schema and the table, as all the files that it comes in."""
    import duckdb

    folder.mkdir()
    (folder / "s.toml").write_text(SCHEMA, encoding="utf-8")
    frame = records()
    frame.to_parquet(folder / "t.parquet", index=False)
    frame.to_csv(folder / "t.csv", index=False)
    (folder / "parts").mkdir()
    for number in range(N_FILES):
        part = pa.Table.from_pandas(frame[number::N_FILES], preserve_index=False)
        pq.write_table(part, folder / "parts" / f"{number}.parquet")
    with duckdb.connect(folder / "t.duckdb") as database:
        database.execute("CREATE TABLE people AS SELECT * FROM frame")


def address_of(door: Door, server: str | None) -> str:
    """Return where a door's table is, for the command line."""
    match door.place:
        case "folder" | "dask":
            return "data/parts"
        case "duckdb":
            return "data/t.duckdb#people"
        case "postgres":
            if server is None:
                raise ValueError("the door needs a server")
            return f"{server}#people"
    return f"data/t.{door.place}"
