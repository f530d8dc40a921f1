"""The commands ``synthesize`` and ``report``."""

import typing
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from pdips.cli.common import (
    ANALYSES,
    DELTA,
    EXPLAIN,
    MODEL,
    NEIGHBOURS,
    OPTIONS,
    QUIET,
    SCHEMA,
    SETS,
    STATE,
    beside_a_release,
    chosen,
    command_of,
    epsilon_in_words,
    kind_in_words,
    ledger_at,
    ledger_line,
    notes_in_a_line,
    one_refusal,
    printing,
    show_verdicts,
    with_usual_sets,
)
from pdips.errors import InputError
from pdips.extras import require
from pdips.html import show_progress
from pdips.privacy.budget import ALLOWED
from pdips.privacy.loss import spell
from pdips.registry import MECHANISMS, find
from pdips.release.folder import staging
from pdips.report.formats import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdips.data.schema import Schema
    from pdips.data.table import Table
    from pdips.evaluation.margins import SyntheticSet
    from pdips.mechanism import Mechanism
    from pdips.posterior.model_file import Source
    from pdips.privacy.curator import Clock
    from pdips.privacy.ledger import Ledger
    from pdips.release.documents import Comparison
    from pdips.release.folder import Staging
    from pdips.release.release import Release, RunRecord
    from pdips.report.verdict import Verdict
    from pdips.synthesis import ReleaseJob

FileFormat = typing.Literal["parquet", "csv", "sav", "dta"]


@click.command()
@click.argument("table", metavar="TABLE")
@click.option(
    "--members",
    metavar="TABLE",
    help="The members of the households in the first TABLE, each a record.",
)
@SCHEMA
@click.option(
    "--mechanism",
    "mechanism_name",
    metavar="NAME",
    help=f"One of {', '.join(MECHANISMS)}. Left out: chosen by the schema, and by "
    f"whether there is a model.",
)
@click.option(
    "--columns",
    "names",
    metavar="A,B,C",
    help="Only these columns of the schema; the others are left out.",
)
@click.option(
    "--epsilon",
    required=True,
    metavar="E",
    help="Privacy loss in total, over all sets.",
)
@DELTA
@SETS
@click.option(
    "--records",
    metavar="N",
    help="Of margins: how many records a set has: a number, a share such as 0.1 (under "
    "add-remove of the noisy number), or all. Drawn in chunks as it is written.",
)
@NEIGHBOURS
@MODEL
@click.option(
    "--formula",
    metavar="F",
    help='A model as a formula, such as "pay ~ age + (1 | region)": pdips[bambi].',
)
@click.option(
    "--formula-setting",
    "formula_settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Beside --formula: family=poisson, or prior.age=Normal(mu=0, sigma=2); "
    "repeatable.",
)
@ANALYSES
@click.option(
    "--public",
    metavar="A,B,C",
    help="Columns that everybody may know, beside those that the schema calls public.",
)
@OPTIONS
@click.option(
    "--ledger",
    "ledger_path",
    metavar="L.sqlite",
    help="The account of all that this table has spent.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="For tests and studies only: makes the release unfit to publish, and keeps "
    "it inside.",
)
@click.option(
    "--allow",
    type=click.Choice(["asymptotic", "seeded", *ALLOWED]),
    multiple=True,
    help="asymptotic, seeded: write sets to public/ although their guarantee is only "
    "asymptotic, which bounds nothing, or although they are made from a seed; by "
    "default both stay inside. refusals, charged-refusals: needed once records have "
    "refused three requests; further refusals are free, or charged what is reserved.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="For a folder: the dask scheduler whose workers count its files, or local, "
    "for processes of this machine.",
)
@click.option("--explain", is_flag=True, help=EXPLAIN)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(typing.get_args(FileFormat)),
    default="parquet",
    show_default=True,
    help="sav and dta (SPSS, Stata) are written beside parquet, with labels.",
)
@click.option(
    "--out", required=True, metavar="DIR", help="Folder for public/ and confidential/."
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier release in DIR.")
@click.option(
    "--report",
    is_flag=True,
    help="Write the curator's report too, as `pdips report DIR` does later.",
)
@QUIET
def synthesize(**options: Any) -> None:
    """Make synthetic sets of TABLE (.csv, .csv.gz, .parquet or a folder of it, .dta,
    .sav, .sas7bdat), and their card; `pdips report DIR` writes the curator's report.

    Tables in databases are named as people.duckdb#people or
    postgresql://host/db#people. With --ledger the price is reserved before TABLE is
    read, and a run that is stopped after the charge is finished by `pdips resume`.
    """
    run(SynthesisOptions(**options))


@dataclass(frozen=True, kw_only=True)
class SynthesisOptions:
    """The options of ``pdips synthesize``, and the charge that is resumed, if any."""

    table: str
    members: str | None
    schema_path: str
    mechanism_name: str | None
    names: str | None
    epsilon: str
    delta: str | None
    n_sets: int | None
    is_usual: bool = False  # Whether it was left out
    neighbours: str
    model: str | None
    options: tuple[str, ...]
    ledger_path: str | None
    seed: int | None
    allow: tuple[str, ...]
    scheduler: str | None
    explain: bool
    file_format: FileFormat
    out: str
    overwrite: bool
    quiet: bool
    report: bool = False
    resume: int | None = None
    formula: str | None = None
    formula_settings: tuple[str, ...] = ()
    public: str | None = None
    analyses: tuple[str, ...] = ()
    records: str | None = None

    @property
    def given(self) -> Any:
        """The table, or the two of households and of members."""
        return self.table if self.members is None else (self.table, self.members)

    def schema(self) -> "Schema":
        """Return the schema, of the chosen columns."""
        from pdips.data.schema import Schema

        schema = Schema.load(self.schema_path)
        if self.names is not None:
            schema = schema.only(_listed(self.names))
        return schema if self.public is None else schema.known(_listed(self.public))

    def written(self, schema: "Schema", ledger: "Ledger | None") -> "Source | None":
        """Return the model where it is a formula, or written as ``make(df)``, made with
        the public columns of the table; None where it is of another form.
        """
        if self.formula is None:
            if self.formula_settings:
                raise InputError("--formula-setting is for a --formula")
            if self.model is None:
                return None
        elif self.model is not None:
            raise InputError("--formula is a model of its own: leave --model out")
        elif "~" not in self.formula:
            raise InputError(
                "--formula has no outcome: write outcome ~ covariates, such as "
                "'pay ~ age'"
            )
        from pdips.conversion.formula_settings import formula_settings
        from pdips.privacy.account import request_to_read
        from pdips.privacy.charge import reserved
        from pdips.sampling import source_of_groups, written_model

        settings = formula_settings(self.formula_settings)
        if self.is_by_group(schema):
            return source_of_groups(self.formula or self.model, schema, settings)
        written = written_model(self.formula or self.model, schema, settings)
        if written is None:
            return None
        # the table's public columns are read: what goes wrong there is on record
        reading = request_to_read(schema, self.neighbours)
        refusals = [word for word in self.allow if word in ALLOWED]
        with reserved(ledger, reading, explain=self.explain, allow=refusals):
            return written.source(self.table, schema)

    def is_by_group(self, schema: "Schema") -> bool:
        """Whether group sums are asked for, or the model is a formula of more groups
        than scores takes.
        """
        if self.formula is None and self.model is None:
            return False
        from pdips.groups.group_sums import GroupSums
        from pdips.sampling import mechanism_of

        if self.mechanism_name is not None:
            return find(self.mechanism_name) is GroupSums
        return mechanism_of(self.formula or self.model, schema) is GroupSums

    def mechanism(
        self, schema: "Schema", source: "Source | None" = None
    ) -> "Mechanism":
        """Return the mechanism with its settings."""
        common: dict[str, Any] = {
            "epsilon": self.epsilon,
            "neighbours": self.neighbours,
        }
        if self.n_sets is not None:
            common["n_sets"] = self.n_sets
        if self.delta is not None:
            common["delta"] = self.delta
        name = str(self.mechanism_name)
        model = self.model if source is None else None
        options = self.options
        if self.records is not None:
            options = (*options, f"records={self.records}")
        build, settings = chosen(name, options, common, model)
        if source is not None:
            if "model" not in build.__dataclass_fields__:
                raise InputError(f"{name} takes no model: leave --formula out")
            settings["model"] = source
        from pdips.synthesis import is_spread

        mechanism: Mechanism = build(**settings)
        in_one_file = not is_spread(self.table)
        return with_usual_sets(mechanism, self.n_sets, schema, in_one_file=in_one_file)

    def with_analyses(
        self,
        mechanism: "Mechanism",
        declared: list[Any],
        schema: "Schema",
        ledger: "Ledger | None",
    ) -> "Mechanism":
        """Return the mechanism with the analyses that are named, if there are any."""
        if not declared:
            return mechanism
        from pdips.analyses.declarations import with_analyses

        refusals = [word for word in self.allow if word in ALLOWED]
        with one_refusal(ledger, explain=self.explain):
            return with_analyses(
                mechanism,
                declared,
                schema,
                self.table,
                ledger,
                explain=self.explain,
                allow=refusals,
            )

    def command(self) -> dict[str, Any]:
        """Return what ``pdips resume`` needs to repeat this command: no seed, and no
        address with a password.
        """
        kept = {**vars(self), "ledger_path": None, "seed": None, "resume": None}
        return command_of("synthesize", kept)

    def job(
        self,
        mechanism: "Mechanism",
        schema: "Schema",
        ledger: "Ledger | None",
        clock: "Clock",
        staged: "Staging",
    ) -> "ReleaseJob":
        """Return the release that is asked for; its folder keeps space for it."""
        from pdips.synthesis import ReleaseJob

        refusals = [word for word in self.allow if word in ALLOWED]
        file_format = self.file_format
        return ReleaseJob(
            mechanism=mechanism,
            schema=schema,
            table=self.given,
            ledger=ledger,
            explain=self.explain,
            allow=refusals,
            seed=self.seed,
            scheduler=self.scheduler,
            clock=clock,
            resume=self.resume,
            command=self.command(),
            prepare=partial(reserve_space, staged, mechanism, file_format),
        )

    def with_mechanism(self, schema: "Schema") -> "tuple[SynthesisOptions, str]":
        """Return the options with a mechanism, and why one that wasn't named is
        chosen.
        """
        if self.mechanism_name is not None:
            return self, ""
        from pdips.groups.group_sums import GroupSums
        from pdips.margins.planning import suited
        from pdips.synthesis import in_files

        if self.is_by_group(schema):
            why = f"mechanism {GroupSums.name}: the model has very many groups"
            return replace(self, mechanism_name=GroupSums.name), why
        has_model = self.model is not None or self.formula is not None
        found = suited(schema, has_model=has_model, in_files=in_files(self.table))
        given = [option.partition("=")[0] for option in self.options]
        has_delta = self.delta is not None or "delta" in given
        more = ""
        if not has_delta and "delta" in find(found.name).__dataclass_fields__:
            more = "; with --delta it may have far less noise: pdips plan"
        why = f"mechanism {found.name}: {found.why}{more}"
        usual = [
            f"{name}={value}"
            for name, value in found.settings.items()
            if name not in given
        ]
        options = (*self.options, *usual)
        return replace(self, mechanism_name=found.name, options=options), why


def run(options: SynthesisOptions) -> None:
    """Release, place the sets and their card, and keep what the report needs."""
    from pdips.privacy.curator import Clock
    from pdips.release.release import check_format

    require("report", "the card of a release needs")
    schema = options.schema()
    declared = [*schema.analysis, *options.analyses]
    if declared and (options.formula or options.model):
        raise InputError(
            "analyses go with mechanisms of tables, such as margins: leave --formula "
            "and --model out, or name the model with --analysis"
        )
    schema = schema.model_copy(update={"analysis": ()})
    ledger = ledger_at(options.ledger_path, options.out)
    with one_refusal(ledger, explain=options.explain):
        source = options.written(schema, ledger)
    if source is not None:
        schema = source.converted.narrowed(schema)
    options, why_chosen = options.with_mechanism(schema)
    mechanism = options.mechanism(schema, source)
    if options.n_sets is None:
        # kept with the charge: a release is resumed with as many sets
        options = replace(options, n_sets=mechanism.n_sets, is_usual=True)
    mechanism = options.with_analyses(mechanism, declared, schema, ledger)
    check_format(schema, options.file_format)
    verdicts: dict[str, Verdict] = {}
    with (
        staging(Path(options.out), options.overwrite) as staged,
        show_progress(quiet=options.quiet) as progress,
        notes_in_a_line(),
    ):
        clock = Clock(progress)
        job = options.job(mechanism, schema, ledger, clock, staged)
        with one_refusal(ledger, explain=options.explain):
            synthesis = SynthesisRun(options, ledger, *job.run())
        synthesis.place(staged, clock)
        with beside_a_release(synthesis.home, synthesis.release):
            finish(synthesis.release)
            synthesis.write_beside(staged, clock)
            if options.report:
                verdicts = synthesis.write_report()
    with printing(synthesis.placed):
        if why_chosen:  # nothing is told before the release is in its place
            click.echo(why_chosen)
        synthesis.tell()
        show_verdicts(verdicts)


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


class FolderOptions(Protocol):
    """What is said of a folder that takes a release."""

    @property
    def out(self) -> str: ...
    @property
    def file_format(self) -> FileFormat: ...
    @property
    def allow(self) -> tuple[str, ...]: ...
    @property
    def report(self) -> bool: ...
    @property
    def is_usual(self) -> bool: ...  # whether the number of sets was left out


@dataclass(frozen=True)
class SynthesisRun:
    """A release on its way to its folder, and what was seen while it was made."""

    options: FolderOptions
    ledger: "Ledger | None"
    table: "Table"
    release: "Release"
    record: "RunRecord"

    @property
    def needed(self) -> list[str]:
        """What a publisher has to allow by name."""
        needed = {
            "asymptotic": self.release.loss.kind == "asymptotic",
            "seeded": self.release.reproducible,
        }
        return [word for word, is_needed in needed.items() if is_needed]

    @property
    def published(self) -> bool:
        """Whether the sets go to ``public``."""
        has_bound = self.release.loss.kind != "none"
        return has_bound and {*self.needed} <= {*self.options.allow}

    @property
    def part(self) -> str:
        """The half of the folder that the sets go to."""
        return "public" if self.published else "confidential"

    @property
    def home(self) -> Path:
        """The folder that the sets go to."""
        return Path(self.options.out) / self.part

    @property
    def inside(self) -> Path:
        """The folder of what only the curator sees."""
        return Path(self.options.out) / "confidential"

    @property
    def placed(self) -> str:
        """That the release is in its place, in words."""
        return f"{self.home} holds the whole release"

    def place(self, staged: "Staging", clock: "Clock") -> None:
        """Write the sets and move them to their place."""
        release = self.release
        with redeemable(release), clock.step("writing the synthetic sets"):
            release.write(staged.part(self.part), file_format=self.options.file_format)
            STATE.placing = self.home, release
            staged.place(self.part)
        STATE.placed = self.placed

    def write_beside(self, staged: "Staging", clock: "Clock") -> None:
        """Write the card, and what the report is made from, which needs the table."""
        from pdips.report.pages import write_card

        if not self.published:
            self._write_inside(self.inside, clock)
            return
        write_card(self.home)
        self._write_inside(staged.part("confidential"), clock)
        staged.place("confidential")

    def _write_inside(self, folder: Path, clock: "Clock") -> None:
        from pdips.release.documents import AccountState, Diagnostics, RunDocument
        from pdips.report.posterior_figures import write_tree

        release = self.release
        record = self.record
        ledger = self.ledger
        with clock.step("comparing with the confidential table"):
            comparison = self._comparison()
        with clock.step("looking closer at the run"):
            diagnostics, tree = record.look_closer()
        if tree is not None:
            write_tree(tree, folder / "diagnostics")
        account = None
        fingerprint = None
        if ledger is not None:
            account = AccountState.of(ledger, release.loss)
            fingerprint = self.table.fingerprint
        RunDocument(
            release=release.identifier,
            table=fingerprint,
            published=self.published,
            seconds={**clock.seconds, **record.seconds},
            peak_memory_mib=record.peak_memory,
            ledger=account,
            n_records=self.table.n_records,
            diagnostics=Diagnostics.model_validate(diagnostics),
            comparison=comparison,
        ).write(folder)

    def _comparison(self) -> "Comparison":
        from pdips.evaluation.encoding import with_decile_bins
        from pdips.evaluation.margins import compare, no_comparison
        from pdips.release.large_set import ChunkedSet

        if self.table.partitioned:
            return no_comparison()
        release = self.release
        sets: list[SyntheticSet] = [*release.sets]
        for large in release.large_sets:
            # the records of a chunk are a sample
            sets.append(large.first() if isinstance(large, ChunkedSet) else large)
        return compare(with_decile_bins(self.table), sets)

    def write_report(self) -> "dict[str, Verdict]":
        """Write the curator's report, and return its verdicts."""
        from pdips.report.pages import write_report

        verdicts: dict[str, Verdict] = {}
        write_report(self.inside, self.release.document(), tell=verdicts.update)
        return verdicts

    def tell(self) -> None:
        """Print what was released, at which price, and where it is."""
        release = self.release
        sets = plural(release.n_sets, "synthetic set")
        n_columns = len(release.schema.columns)
        click.echo(f"released  {sets} of {n_columns} columns by {release.mechanism}")
        if self.options.is_usual and release.n_sets > 1:
            click.echo(
                "sets      at no further price: they differ by what the noise makes "
                "unsure; --sets 1 makes one"
            )
        for line in self._analysis_lines():
            click.echo(line)
        click.echo(f"price     {self._price()}")
        click.echo(f"ledger    {ledger_line(self.ledger)}")
        if self.published:
            click.echo(f"public    {self.home}: {', '.join(self._files())}")
        elif release.loss.kind != "none":
            allow = " ".join(f"--allow {word}" for word in self.needed)
            click.echo(
                "public    nothing: the synthetic sets stay inside unless you say "
                f"{allow}"
            )
        click.echo(f"inside    {self._inside_line()}")
        if release.reproducible:
            click.echo(
                "WARNING   made from a seed: anyone who knows it can subtract the "
                "noise. Do not publish.",
                err=True,
            )

    def _analysis_lines(self) -> "Iterator[str]":
        """Yield the answer to each analysis that was named."""
        from pdips.analyses.estimates import told_of

        for number, part in enumerate(self.release.analyses, start=1):
            yield from told_of(number, part)

    def _price(self) -> str:
        release = self.release
        loss = release.loss
        if loss.kind == "asymptotic":
            figure = f"the paper's epsilon = {spell(loss.epsilon)} bounds nothing"
            return f"NO BOUND (kind asymptotic): {figure}"
        if not loss.is_finite:
            return f"NO GUARANTEE (kind {loss.kind}): for studies, kept inside"
        seeded = " (from a seed: not to be published)" if release.reproducible else ""
        said = kind_in_words(loss.kind, is_noisy=bool(release.noise))
        return (
            f"{epsilon_in_words(loss)} in total, {loss.neighbours} neighbours, "
            f"{said}{seeded}"
        )

    def _files(self) -> list[str]:
        from pdips.release.documents import ANALYSIS_FOLDER

        release = self.release
        suffix = self.options.file_format
        kinds = ["synthetic"]
        if release.schema.members:
            kinds += ["households", "members"]
        more = f" ... _{release.n_sets}" if release.n_sets > 1 else ""
        sets = [f"{kind}_1.{suffix}{more}" for kind in kinds]
        tables = [f"{name}.{suffix}" for name in release.tables]
        if release.posterior_draws is not None:
            tables.append("posterior.nc")
        for number, _ in enumerate(release.analyses, start=1):
            tables.append(f"{ANALYSIS_FOLDER.format(number)}/")
        return ["card.html", "datapackage.json", "privacy.json", *sets, *tables]

    def _inside_line(self) -> str:
        if self.options.report:
            return f"{self.inside / 'report.html'}: for the curator only"
        write = f"`pdips report {self.options.out}` writes the report"
        return f"{self.inside}: for the curator only; {write}"


def reserve_space(
    staged: "Staging", mechanism: "Mechanism", file_format: FileFormat, table: "Table"
) -> None:
    """Ask the disk for the space that the sets will take, before anything is charged.

    Where the number of records is protected, a refusal for want of space says something
    of it to the curator alone, as the memory and the time of the run do; its message
    says no number.
    """
    from pdips.release.release import expected_bytes

    n_records = mechanism.set_records(table.n_records) * mechanism.n_sets
    n_bytes = expected_bytes(table.schema, n_records, file_format)
    staged.reserve(n_bytes, is_public=mechanism.neighbours == "replace-one")


def redeemable(release: "Release") -> AbstractContextManager[None]:
    """Say of what goes wrong in the body how a charged release is finished."""
    return nullcontext() if release.charge is None else release.charge.redeemable()


def finish(release: "Release") -> None:
    """Tell the ledger that the release is in its place, or warn that it can't be."""
    try:
        release.finish()
    except InputError as error:
        click.echo(
            f"WARNING   {error}. The release is in its place; the ledger is told by "
            "`pdips resume`",
            err=True,
        )


@click.command()
@click.argument("directory", metavar="DIR")
def report(directory: str) -> None:
    """Write the pages of the release in DIR: the curator's report, whose verdicts are
    printed, and the card once more.
    """
    from pdips.report.pages import rewrite

    verdicts: dict[str, Verdict] = {}
    for path in rewrite(Path(directory), tell=verdicts.update):
        click.echo(str(path))
    show_verdicts(verdicts)
