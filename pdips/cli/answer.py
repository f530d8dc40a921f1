"""The command ``answer``."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdips.cli.common import (
    ALLOW_REFUSALS,
    DELTA,
    EXPLAIN,
    QUIET,
    beside_a_release,
    command_of,
    epsilon_in_words,
    kind_in_words,
    ledger_at,
    ledger_line,
    notes_in_a_line,
    one_refusal,
    printing,
)
from pdips.cli.synthesize import (
    FileFormat,
    SynthesisRun,
    finish,
    redeemable,
    reserve_space,
)
from pdips.extras import require
from pdips.html import show_progress
from pdips.release.folder import staging

if TYPE_CHECKING:
    from pdips.answering import PricedQuestion, TableAnswer, TableQuestion
    from pdips.privacy.ledger import Ledger


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("directory", metavar="DIR")
@click.option(
    "--analysis",
    required=True,
    metavar="F",
    help='A regression as a formula, such as "pay ~ age + (1 | region)", or a file '
    "with make(df). No column need be public.",
)
@click.option(
    "--formula-setting",
    "formula_settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="As of `pdips synthesize`: family=poisson, or prior.age=Normal(mu=0, "
    "sigma=2); repeatable.",
)
@click.option(
    "--claim",
    metavar="CLAIM",
    help='What is said of a coefficient: "age in [0.1, 0.3]", or "age > 0".',
)
@click.option(
    "--epsilon",
    required=True,
    metavar="E",
    help="What the answer costs, beside the release.",
)
@DELTA
@click.option(
    "--ledger",
    "ledger_path",
    metavar="L.sqlite",
    help="The account of all that this table has spent.",
)
@click.option(
    "--plan",
    "only_planned",
    is_flag=True,
    help="Print the widths to expect, from the published set; TABLE isn't read, and "
    "nothing is spent.",
)
@click.option("--explain", is_flag=True, help=EXPLAIN)
@ALLOW_REFUSALS
@QUIET
def answer(**options: Any) -> None:
    """Answer one more question from the TABLE of the release in DIR, at a price.

    The answer is the posterior of a regression, pooled with what DIR publishes of the
    same regression. It goes to DIR/answers/1, /2, ..., each a release with a card.
    """
    run(AnswerOptions(**options))


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """The options of ``pdips answer``, and the charge that is resumed, if any."""

    table: str
    directory: str
    analysis: str
    formula_settings: tuple[str, ...]
    claim: str | None
    epsilon: str
    delta: str | None
    explain: bool
    quiet: bool
    ledger_path: str | None = None
    only_planned: bool = False
    allow: tuple[str, ...] = ()
    resume: int | None = None
    # of the answer, if it is being finished
    number: int | None = None

    def question(self) -> "TableQuestion":
        """Return the question, of which nothing confidential is known."""
        from pdips.answering import TableQuestion
        from pdips.conversion.formula_settings import formula_settings

        settings = formula_settings(self.formula_settings)
        return TableQuestion.of(self.directory, self.analysis, self.claim, settings)

    @property
    def prices(self) -> dict[str, str]:
        """What a mechanism is told of the price."""
        prices = {"epsilon": self.epsilon}
        if self.delta is not None:
            prices["delta"] = self.delta
        return prices

    def command(self, number: int) -> dict[str, Any]:
        """Return what ``pdips resume`` needs to repeat this command."""
        left_out = {"ledger_path": None, "resume": None, "number": number}
        return command_of("answer", {**vars(self), **left_out})


@dataclass(frozen=True)
class AnswerFolder:
    """The folder of an answer, beside the release that it is about."""

    out: str
    file_format: FileFormat = "parquet"
    allow: tuple[str, ...] = ()
    report: bool = False
    is_usual: bool = False


def run(options: AnswerOptions) -> None:
    """Ask, answer, and place the answer beside the release."""
    question = options.question()
    if options.only_planned:
        _tell_expected(options, question)
        return
    require("report", "the card of an answer needs")
    ledger = ledger_at(options.ledger_path, options.directory)
    with one_refusal(ledger, explain=options.explain):
        source = question.source(
            options.table, ledger, explain=options.explain, allow=options.allow
        )
    asked = question.asked(source, **options.prices)
    number = options.number or question.number
    found, synthesis = _answered(options, asked, ledger, number)
    with printing(synthesis.placed):
        _tell(found, synthesis, ledger)


def _answered(
    options: AnswerOptions,
    asked: "PricedQuestion",
    ledger: "Ledger | None",
    number: int,
) -> "tuple[TableAnswer, SynthesisRun]":
    """Charge, ask the table, and put the answer into its folder."""
    from pdips.privacy.curator import Clock
    from pdips.release.documents import ANSWERS_FOLDER
    from pdips.sampling import tell_of
    from pdips.synthesis import ReleaseJob

    folder = AnswerFolder(str(Path(options.directory) / ANSWERS_FOLDER / str(number)))
    with (
        staging(Path(folder.out), overwrite=False) as staged,
        show_progress(quiet=options.quiet) as progress,
        notes_in_a_line(),
    ):
        clock = Clock(progress)
        job = ReleaseJob(
            mechanism=asked.mechanism,
            schema=asked.schema,
            table=options.table,
            ledger=ledger,
            explain=options.explain,
            allow=options.allow,
            clock=clock,
            resume=options.resume,
            command=options.command(number),
            prepare=partial(reserve_space, staged, asked.mechanism, folder.file_format),
        )
        with one_refusal(ledger, explain=options.explain):
            table, release, record = job.run()
        with redeemable(release), clock.step("pooling"):
            found = asked.answered(release, record, ledger)
        synthesis = SynthesisRun(folder, ledger, table, found.release, found.record)
        synthesis.place(staged, clock)
        with beside_a_release(synthesis.home, synthesis.release):
            finish(synthesis.release)
            tell_of(found.tree)
            synthesis.write_beside(staged, clock)
    return found, synthesis


def _tell(
    found: "TableAnswer", synthesis: SynthesisRun, ledger: "Ledger | None"
) -> None:
    loss = found.release.loss
    said = kind_in_words(loss.kind, is_noisy=True)
    click.echo(found)
    click.echo(
        f"price     {epsilon_in_words(loss)}, beside what the release cost; {said}"
    )
    click.echo(f"ledger    {ledger_line(ledger)}")
    click.echo(f"public    {synthesis.home}: may be published")
    click.echo(f"inside    {synthesis.inside}: for the curator only")


def _tell_expected(options: AnswerOptions, question: "TableQuestion") -> None:
    """Print the widths that the published set would give; the table isn't read."""
    from pdips.evaluation.document import open_release

    released = open_release(options.directory)
    source = question.written.source(released.sets[0], question.schema)
    asked = question.asked(source, **options.prices)
    ledger = ledger_at(options.ledger_path, options.directory)
    found = asked.expected(ledger, progress=not options.quiet)
    for name, row in found.estimates.iterrows():
        half = (row["upper"] - row["lower"]) / 2
        of_table = (row["table_upper"] - row["table_lower"]) / 2
        click.echo(
            f"expected  {name}: 95 % interval +- {half:.3g}, by the fresh noise alone "
            f"+- {of_table:.3g}"
        )
    loss = found.release.loss
    click.echo(
        f"price     {epsilon_in_words(loss)} if it is asked; nothing was spent, and "
        f"TABLE wasn't read"
    )
