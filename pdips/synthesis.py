"""The front door: from a table, a schema and a price to a release and the record of its
run.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pdips.data.analyses import as_list
from pdips.data.counted import countable
from pdips.data.databases import in_database, is_stored, snapshot
from pdips.data.partitions import PartitionedTable
from pdips.data.readers import is_large, open_batches
from pdips.data.schema import Schema
from pdips.data.table import Table, are_two
from pdips.errors import InputError
from pdips.html import show_progress
from pdips.margins.planning import suited
from pdips.mechanism import Mechanism
from pdips.privacy.charge import Charging, reserved
from pdips.privacy.curator import CHECKING, Clock
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Number
from pdips.privacy.plan import Plan
from pdips.registry import load, variant_class
from pdips.release.release import Release, RunRecord

# Imports PyMC, which a release without a model does without
WITH_ANALYSES = "pdips.analyses.declarations:with_analyses"
SEVERAL = 10
"""Sets, where they cost nothing more: their variance is estimated with nine degrees of
freedom.
"""
FEW_COLUMNS = 60
"""Of a table of which ten sets are drawn in minutes (``docs/results/scale.md``)."""


def synthesize(
    table: Any,
    schema: Schema | Mapping[str, Any] | str | Path,
    *,
    epsilon: Number,
    delta: Number | None = None,
    mechanism: str | None = None,
    ledger: Ledger | str | Path | None = None,
    n_sets: int | None = None,
    analyses: Sequence[Any] = (),
    seed: int | np.random.Generator | None = None,
    scheduler: str | None = None,
    allow: Collection[str] = (),
    resume: int | None = None,
    progress: bool = True,
    **options: Any,
) -> tuple[Release, RunRecord]:
    """Release synthetic sets of a table: what the command ``pdips synthesize`` does,
    with the sets in memory.

    Parameters
    ----------
    table : DataFrame, dict, pyarrow.Table, Ibis table, path, address, or Table
        The confidential table. Files, folders of Parquet files and databases are read
        after the price is reserved. Two of these where the schema has ``members``:
        households and members.
    schema : Schema, dict or path
        What is public about it.
    epsilon : int, float, str or Fraction
        Privacy loss in total, over all sets, in nats.
    delta : int, float, str or Fraction, optional
        For Gaussian noise, read at this delta; left out, Laplace noise and a delta
        of 0.
    mechanism : str, optional
        Its name. Left out, the schema decides, and whether there is a ``model``: see
        ``pdips synthesize``.
    ledger : Ledger or path, optional
        The account that is charged.
    n_sets : int, optional
        How many synthetic sets. Left out: what :func:`usual_sets` says.
    analyses : sequence of str, dict, bambi.Model, callable or path
        Regressions that are answered beside the sets, with half of the budget:
        formulas, such as ``"log(wage) ~ educ"``, with their settings behind them,
        ``"ill ~ age; family=bernoulli"``, and models as :func:`pdips.answer` takes
        them. Those of the schema come first. Each is a release in ``release.analyses``.
    seed : int or numpy.random.Generator, optional
        For tests and studies: the release is marked, and isn't published unless
        ``allow=["seeded"]``.
    scheduler : str, optional
        What counts a folder of Parquet files, as in
        :class:`pdips.data.partitions.PartitionedTable`.
    allow : collection of {"refusals", "charged-refusals"}
        What a further refusal is to cost once records have refused three requests: see
        :meth:`pdips.privacy.ledger.Ledger.reserve`.
    resume : int, optional
        Number of a charge of the ledger whose release is to be finished, at no further
        price, by the same call.
    progress : bool
        Show the running step: a bar on a terminal or in a notebook, elsewhere a line
        every ten seconds.
    **options
        ``neighbours``, ``model`` and whatever else the mechanism takes.

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
    >>> release, record = synthesize(
    ...     "examples/youth.parquet", "examples/youth.toml", epsilon=1, n_sets=2
    ... )
    >>> release
    Release(mechanism='margins', n_sets=2, epsilon=1)
    """
    known = as_schema(schema)
    declared = [*known.analysis, *as_list(analyses)]
    if known.analysis:
        known, table = without_analyses(known, table)
    name = mechanism
    if not name:
        found = suited(known, has_model="model" in options, in_files=in_files(table))
        name = found.name
        options = {**found.settings, **options}
    if not isinstance(name, str):
        raise InputError(
            f"mechanism must be a name, such as 'margins'; got {type(name).__name__}"
        )
    kind, choosing = variant_class(name, options.pop("variant", "sound"))
    if ledger is not None and not isinstance(ledger, Ledger):
        ledger = Ledger(ledger)
    if delta is not None:
        options["delta"] = delta
    if n_sets is not None:
        options["n_sets"] = n_sets
    configured = kind(epsilon=epsilon, **options | choosing)
    if n_sets is None:
        in_one_file = not is_spread(table)
        n_sets = usual_sets(configured, known, in_one_file=in_one_file)
        configured = replace(configured, n_sets=n_sets)
    if declared:
        configured = load(WITH_ANALYSES)(
            configured, declared, known, table, ledger, allow=allow
        )
    with show_progress(quiet=not progress) as told:
        job = ReleaseJob(
            mechanism=configured,
            schema=known,
            table=table,
            seed=seed,
            ledger=ledger,
            explain=True,
            allow=allow,
            scheduler=scheduler,
            clock=Clock(told),
            resume=resume,
        )
        return job.run()[1:]


def without_analyses(schema: Schema, table: Any) -> tuple[Schema, Any]:
    """Return a schema without the analyses that it names, and a table that was read
    with it as one of that schema.
    """
    known = schema.model_copy(update={"analysis": ()})
    if isinstance(table, Table) and not table.partitioned and table.schema == schema:
        table = table.viewed(known)
    return known, table


def usual_sets(
    mechanism: Mechanism, schema: Schema | None = None, *, in_one_file: bool = True
) -> int:
    """Return how many sets a release has where the number is left out.

    Ten, where further sets are post-processing of what was paid for once and differ by
    what the noise makes unsure, so that an analysis of all of them has standard errors.
    One where several sets would say nothing more than one does, where each would take
    its part of the budget, of folders of files and databases, whose tables may be too
    large to be written ten times, and of tables with more than ``FEW_COLUMNS``: each
    set is a fit of its own, and ten would take many minutes.

    Parameters
    ----------
    mechanism : Mechanism
        With its settings.
    schema : Schema, optional
        Of the table.
    in_one_file : bool
        Whether the table is one file, or in memory. The number of records isn't asked:
        it may be confidential, and the plan is made before the table is read.

    Examples
    --------
    >>> usual_sets(Margins(epsilon=1)), usual_sets(Steps(epsilon=1))
    (10, 1)
    """
    is_wide = schema is not None and len(schema.columns) > FEW_COLUMNS
    if is_wide or not in_one_file or mechanism.most_sets < SEVERAL:
        return 1
    try:
        several = replace(mechanism, n_sets=SEVERAL)
    except InputError:  # with these settings there is one set
        return 1
    show_noise = several.sets_share() in ("fresh noise", "posterior")
    reads_answers = several.offers.posterior_of != "records"
    return SEVERAL if show_noise and reads_answers and several.rounds == 1 else 1


@dataclass(frozen=True, kw_only=True)
class ReleaseJob:
    """One release, from a table to its sets: what :func:`synthesize` and the command
    line do.

    Parameters
    ----------
    mechanism : Mechanism
        With its settings.
    schema : Schema
        What is public about the table.
    table : object
        As in :func:`synthesize`.
    ledger : Ledger, optional
        The account that is charged.
    explain : bool
        Record that details of a refusal are shown.
    allow : collection of str
        As in :meth:`pdips.privacy.ledger.Ledger.reserve`.
    seed : int or numpy.random.Generator, optional
        For tests and studies.
    scheduler : str, optional
        What counts a folder of Parquet files.
    clock : Clock
        Times the steps.
    resume : int, optional
        Number of the charge whose release is to be finished.
    command : dict, optional
        Kept with the answers, for ``pdips resume``.
    prepare : callable, optional
        Called with the table before the charge; if it raises, nothing is charged.
    """

    mechanism: Mechanism
    schema: Schema
    table: Any
    ledger: Ledger | None = None
    explain: bool = False
    allow: Collection[str] = ()
    seed: int | np.random.Generator | None = None
    scheduler: str | None = None
    clock: Clock = field(default_factory=Clock)
    resume: int | None = None
    command: Mapping[str, Any] | None = None
    prepare: Callable[[Table], None] | None = None

    def run(self) -> tuple[Table, Release, RunRecord]:
        """Make the plan, reserve its price, read the table and release."""
        mechanism = self.mechanism
        clock = self.clock
        if in_files(self.table):
            mechanism.check_adds_up()
        elif self.scheduler is not None:
            raise InputError(
                "a scheduler is for a folder of .parquet files, and the table is none"
            )
        if clock.progress is not None and getattr(mechanism, "model", None) is not None:
            clock.progress(CHECKING)  # for the price
        with clock.watched():
            plan = mechanism.plan(self.schema)
        with self._reserved(plan), snapshot(self.table) as lent:
            with clock.step("reading the table"):
                counted = None if mechanism.offers.counted_tables else False
                table = as_table(
                    lent,
                    self.schema,
                    counted=counted,
                    scheduler=self.scheduler,
                    adds_up=mechanism.offers.partitions,
                )
            rng = self.seed
            if isinstance(rng, int):
                rng = np.random.default_rng(rng)
            prepare = self.prepare
            if prepare is not None:
                prepare = partial(prepare, table)
            charging = Charging(
                ledger=self.ledger,
                resume=self.resume,
                command=self.command,
                prepare=prepare,
            )
            release, record = mechanism.release_planned(
                plan, table, charging, rng=rng, progress=clock.progress
            )
            return table, release, record

    def _reserved(self, plan: Plan) -> AbstractContextManager[None]:
        return reserved(
            self.ledger,
            self.mechanism.request_of(plan),
            explain=self.explain,
            allow=self.allow,
            resume=self.resume,
        )


def as_schema(schema: Any) -> Schema:
    """Return a schema that is given as one, as a dict or as a file."""
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, Mapping):
        if "columns" not in schema:
            raise InputError(
                "a schema that is a dict has its columns under 'columns', such as "
                "{'columns': {'age': {'lower': 0, 'upper': 120}}}"
            )
        return Schema(**schema)
    if isinstance(schema, (str, Path)):
        return Schema.load(schema)
    raise InputError(
        f"schema must be a Schema, a dict or the path of a TOML file, "
        f"got {type(schema).__name__}"
    )


def in_files(table: Any) -> bool:
    """Whether a table is given as a folder of files."""
    return isinstance(table, (str, Path)) and Path(table).is_dir()


def is_spread(table: Any) -> bool:
    """Whether a table is a folder of files or in a database."""
    is_partitioned = isinstance(table, Table) and table.partitioned
    return is_partitioned or in_files(table) or in_database(table)


def as_table(
    table: Any,
    schema: Schema,
    *,
    counted: bool | None = None,
    scheduler: str | None = None,
    adds_up: bool = False,
) -> Table:
    """Return a table that is given as one, as records, as a file or by Ibis, checked
    against the schema.

    ``adds_up``: a large one in a database that can't be counted may be read as sums
    over records only.
    """
    if isinstance(table, Table):
        if table.schema != schema:
            raise InputError(
                "the Table was read with another schema; give the schema that it has"
            )
        return table
    if are_two(table, schema):
        return Table.of_households(table[0], table[1], schema)
    if in_files(table):
        return PartitionedTable(table, schema, scheduler=scheduler)
    can_be_summed = adds_up and not (schema.public_columns or schema.records.person)
    is_sum = can_be_summed and is_stored(table) and is_large(table)
    if is_sum and (counted is False or not countable(open_batches(table), schema)):
        return PartitionedTable(table, schema)
    if is_stored(table) or isinstance(table, (str, Path)):
        return Table.read(table, schema, counted=counted)
    return Table(table, schema)
