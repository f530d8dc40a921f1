"""The front door: from a table, a schema and a price to a release and the record of its run."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from pdips.data.counted import countable
from pdips.data.databases import is_stored, snapshot
from pdips.data.partitions import PartitionedTable
from pdips.data.readers import is_large, open_batches
from pdips.data.schema import Schema
from pdips.data.table import Table, are_two
from pdips.errors import InputError
from pdips.html import show_progress
from pdips.margins.planning import suited
from pdips.mechanism import Mechanism
from pdips.privacy.curator import COMPILING, Clock
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Number
from pdips.registry import variant_class
from pdips.release.release import Release, RunRecord


def synthesize(
    table: Any,
    schema: Schema | Mapping[str, Any] | str | Path,
    *,
    epsilon: Number,
    mechanism: str | None = None,
    ledger: Ledger | str | Path | None = None,
    seed: int | np.random.Generator | None = None,
    scheduler: str | None = None,
    progress: bool = True,
    **options: Any,
) -> tuple[Release, RunRecord]:
    """Release synthetic sets of a table: what the command ``pdips synthesize`` does, with the sets in memory.

    Parameters
    ----------
    table : DataFrame, dict of columns, pyarrow.Table, Ibis table, path, address in a database, or Table
        The confidential table. Files, folders of Parquet files and databases are read after the price is reserved. Two
        of these where the schema has ``members``: households and members.
    schema : Schema, dict or path
        What is public about it.
    epsilon : int, float, str or Fraction
        Privacy loss in total, over all sets, in nats.
    mechanism : str, optional
        Its name. Left out, the schema decides, and whether there is a ``model``: see ``pdips synthesize``.
    ledger : Ledger or path, optional
        The account that is charged.
    seed : int or numpy.random.Generator, optional
        For tests and studies: the release is marked, and isn't published unless ``allow=["seeded"]``.
    scheduler : str, optional
        What counts a folder of Parquet files, as in :class:`pdips.data.partitions.PartitionedTable`.
    progress : bool
        Show the running step: a bar on a terminal or in a notebook, elsewhere a line every ten seconds.
    **options
        ``n_sets``, ``neighbours``, ``model`` and whatever else the mechanism takes.

    Returns
    -------
    Release, RunRecord
        What may be published, and what stays inside.

    Raises
    ------
    InputError
        If a setting, the schema, the table or the account is not as it must be.
    RefusedError
        If the ledger's total would be overspent.

    Examples
    --------
    >>> release, record = synthesize("examples/youth.parquet", "examples/youth.toml", epsilon=1, n_sets=2)
    >>> release
    Release(mechanism='steps', n_sets=2, epsilon=1)
    """
    known = as_schema(schema)
    name = mechanism or suited(known, has_model="model" in options, in_files=in_files(table))[0]
    if not isinstance(name, str):
        raise InputError(f"mechanism must be a name, such as 'steps'; got {type(name).__name__}")
    kind, choosing = variant_class(name, options.pop("variant", "sound"))
    account = ledger if ledger is None or isinstance(ledger, Ledger) else Ledger(ledger)
    made = kind(epsilon=epsilon, **options | choosing)
    with show_progress(quiet=not progress) as told:
        return release_of(
            made, known, table, seed=seed, ledger=account, explain=True, scheduler=scheduler, clock=Clock(told)
        )[1:]


def release_of(
    mechanism: Mechanism,
    schema: Schema,
    table: Any,
    *,
    seed: int | np.random.Generator | None,
    ledger: Ledger | None,
    explain: bool,
    clock: Clock | None = None,
    scheduler: str | None = None,
) -> tuple[Table, Release, RunRecord]:
    """Reserve the price, read the table and release; ``explain`` records that the reason of a refusal is shown."""
    clock = clock or Clock()
    if in_files(table):
        mechanism.check_adds_up()
    elif scheduler is not None:
        raise InputError("a scheduler is for a folder of .parquet files, and the table is none")
    if clock.progress is not None and getattr(mechanism, "model", None) is not None:
        clock.progress(COMPILING)  # for the price
    if ledger is None:
        mechanism.spends(schema)  # refuses what the schema rules out; with a ledger the reservation does
    reserved = nullcontext() if ledger is None else ledger.reserve(mechanism, schema, explain=explain)
    with reserved, snapshot(table) as lent:
        with clock.step("reading the table"):
            counted = None if mechanism.weighs_records else False
            checked = as_table(lent, schema, counted=counted, scheduler=scheduler, adds_up=mechanism.adds_up)
        rng = np.random.default_rng(seed) if isinstance(seed, int) else seed
        return checked, *mechanism.release(checked, rng=rng, ledger=ledger, progress=clock.progress)


def as_schema(schema: Any) -> Schema:
    """Return a schema that is given as one, as a dict or as a file."""
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, Mapping):
        return Schema(**schema)
    if isinstance(schema, (str, Path)):
        return Schema.load(schema)
    raise InputError(f"schema must be a Schema, a dict or the path of a TOML file, got {type(schema).__name__}")


def in_files(table: Any) -> bool:
    """Whether a table is given as a folder of files."""
    return isinstance(table, (str, Path)) and Path(table).is_dir()


def as_table(
    table: Any, schema: Schema, *, counted: bool | None = None, scheduler: str | None = None, adds_up: bool = False
) -> Table:
    """Return a table that is given as one, as records, as a file or by Ibis, checked against the schema.

    ``adds_up``: a large one in a database that can't be counted may be read as sums over records only.
    """
    if isinstance(table, Table):
        if table.schema != schema:
            raise InputError("the Table was read with another schema; give the schema that it has")
        return table
    if are_two(table, schema):
        return Table.of_households(table[0], table[1], schema)
    if in_files(table):
        return PartitionedTable(table, schema, scheduler=scheduler)
    is_sum = is_stored(table) and adds_up and not (schema.public_columns or schema.records.person) and is_large(table)
    if is_sum and (counted is False or not countable(open_batches(table), schema)):
        return PartitionedTable(table, schema)
    if is_stored(table) or isinstance(table, (str, Path)):
        return Table.read(table, schema, counted=counted)
    return Table(table, schema)
