"""One more question to the table of a release, at a price: a regression's posterior,
pooled with what is published of the same table.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import xarray as xr

from pdips.analyses.estimates import (
    CONTRADICTED_MODEL,
    ESTIMATES_TABLE,
    as_rows,
    beside_table,
    estimates_of,
)
from pdips.arrays import FloatArray
from pdips.conversion.formula_settings import of_two_levels
from pdips.data.schema import Records, Schema
from pdips.data.table import Table
from pdips.errors import InputError, RefusedError
from pdips.evaluation.document import open_release
from pdips.extras import require
from pdips.html import show_progress
from pdips.posterior.model_file import Source
from pdips.privacy.account import Receipt
from pdips.privacy.charge import reserved_to_read
from pdips.privacy.curator import Clock
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import FINITE_KINDS, Number
from pdips.release.documents import (
    ANSWERS_FOLDER,
    PrivacyDocument,
    analyses_within,
    answered_beside,
    release_home,
)
from pdips.release.public_draws import Contradiction, contradiction
from pdips.release.release import Release, RunRecord
from pdips.release.tree import public_tree
from pdips.report.coefficients import entries
from pdips.report.pages import write_card
from pdips.sampling import WrittenFunction, tell_of, written_model
from pdips.scores.centred_answers import CentredAnswers, PooledAnswers
from pdips.scores.centred_sums import pooled
from pdips.scores.first_search import one_at_a_time
from pdips.scores.posterior import attempt
from pdips.scores.published import parameter_labels
from pdips.scores.scores import Scores
from pdips.scores.tree import prior_draws, table_draws
from pdips.synthesis import ReleaseJob

MODEL_SOURCE = "model_source"
DECIMAL = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
CLAIMED_INTERVAL = re.compile(
    rf"(?P<name>.+?)\s+in\s+\[\s*(?P<lower>{DECIMAL})\s*,\s*(?P<upper>{DECIMAL})\s*\]"
)
CLAIMED_SIDE = re.compile(rf"(?P<name>.+?)\s*(?P<sign>[<>])\s*(?P<end>{DECIMAL})")
MEANING = (
    "The 95 % intervals and the probability are of the population that the table is a "
    "sample of, if the question was fixed before anyone looked at the release. If the "
    "release suggested it, only the table's own estimate is covered, by the interval "
    "from the fresh noise alone."
)


@dataclass(frozen=True, kw_only=True)
class CoefficientClaim:
    """A statement about a coefficient: that it lies in an interval.

    Parameters
    ----------
    name : str
        Of the coefficient, as the posterior has it: ``age``, or ``region[north]``.
    lower, upper : float
        Ends of the interval, which may be infinite.

    Examples
    --------
    >>> CoefficientClaim.read("age in [0.1, 0.3]")
    CoefficientClaim(name='age', lower=0.1, upper=0.3)
    >>> CoefficientClaim.read("age > 0").upper
    inf
    """

    name: str
    lower: float
    upper: float

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the claim that a text states, such as ``"age in [0.1, 0.3]"`` or
        ``"age > 0"``.
        """
        within = CLAIMED_INTERVAL.fullmatch(text.strip())
        beyond = CLAIMED_SIDE.fullmatch(text.strip())
        if within:
            name = within["name"]
            lower = float(within["lower"])
            upper = float(within["upper"])
        elif beyond:
            name = beyond["name"]
            is_above = beyond["sign"] == ">"
            lower = float(beyond["end"]) if is_above else -np.inf
            upper = np.inf if is_above else float(beyond["end"])
        else:
            raise InputError(
                f"the claim {text!r} can't be read: write 'age in [0.1, 0.3]', "
                f"'age > 0' or 'age < 0', with a coefficient's name"
            )
        if not lower < upper:
            raise InputError(
                f"the claim {text!r} holds of no number: write the lower end first"
            )
        return cls(name=name, lower=lower, upper=upper)

    def __str__(self) -> str:
        if self.upper == np.inf:
            return f"{self.name} > {self.lower:g}"
        if self.lower == -np.inf:
            return f"{self.name} < {self.upper:g}"
        return f"{self.name} in [{self.lower:g}, {self.upper:g}]"

    def share(self, draws: FloatArray) -> float:
        """Return the share of draws of which it holds."""
        return float(((draws >= self.lower) & (draws <= self.upper)).mean())


@dataclass(frozen=True, kw_only=True, eq=False)
class TableQuestion:
    """A question to the table of a release, before anything of the table is read.

    Parameters
    ----------
    directory : Path
        The folder of the release.
    document : PrivacyDocument
        What its ``privacy.json`` holds.
    written : WrittenFunction
        The model.
    claim : CoefficientClaim, optional
        What is said of one of its coefficients.
    """

    directory: Path
    document: PrivacyDocument
    written: WrittenFunction
    claim: CoefficientClaim | None = None

    @classmethod
    def of(
        cls,
        directory: str | Path,
        analysis: Any,
        claim: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> Self:
        """Return a question about the table of a release; settings of a formula are
        taken out of the options.

        Raises
        ------
        InputError
            If the folder holds no release, or the analysis doesn't fit its schema.
        RefusedError
            If the release isn't published, or has no guarantee.
        """
        home = release_home(directory)
        document = PrivacyDocument.read(home)
        schema = document.table_schema
        if home.name != "public" or document.privacy.kind not in FINITE_KINDS:
            raise RefusedError(
                "questions are answered beside a published release with a guarantee, "
                "and this one stays inside"
            )
        if schema.members is not None:
            raise RefusedError(
                "questions are answered from tables of one record a row, and this "
                "release has households"
            )
        options = {} if options is None else options
        if isinstance(analysis, str):
            # the caller looks at what is left of the options
            analysis, completed = of_two_levels(analysis, options, schema)
            options.update(completed)
        written = written_model(analysis, schema, options)
        if written is None:
            raise InputError(
                "the analysis must be a formula, such as 'y ~ x', a bambi.Model, or a "
                "function make(df) or its file"
            )
        return cls(
            directory=Path(directory),
            document=document,
            written=written,
            claim=None if claim is None else CoefficientClaim.read(claim),
        )

    @property
    def schema(self) -> Schema:
        """The schema of the release, without what its sets keep to and without weights,
        which the question doesn't use.
        """
        released = self.document.table_schema
        records = released.records.model_copy(update={"weight": None})
        return released.model_copy(
            update={"records": records, "impossible": (), "rule": (), "total": ()}
        )

    def source(
        self,
        table: Any,
        ledger: Ledger | None,
        *,
        explain: bool = True,
        allow: Collection[str] = (),
    ) -> Source:
        """Return the model made with the public columns of a table, of which nothing
        else is read.
        """
        neighbours = self.document.privacy.neighbours
        with reserved_to_read(
            ledger, self.schema, neighbours, explain=explain, allow=allow
        ):
            return self.written.source(table, self.schema)

    def asked(self, source: Source, **settings: Any) -> "PricedQuestion":
        """Return the question with its price.

        Raises
        ------
        InputError
            If the claim is about a coefficient that the model doesn't have.
        """
        schema = self.schema
        if source.converted is not None:
            schema = source.converted.narrowed(schema)
        mechanism = Scores(
            model=source, neighbours=self.document.privacy.neighbours, **settings
        )
        asked = PricedQuestion(question=self, mechanism=mechanism, schema=schema)
        if self.claim is not None and self.claim.name not in asked.names:
            raise InputError(
                f"the claim is about {self.claim.name!r}, and the coefficients of the "
                f"model are {', '.join(asked.names)}"
            )
        return asked

    @property
    def number(self) -> int:
        """The number of the next answer."""
        return max(answered_beside(self.directory), default=0) + 1


@dataclass(frozen=True, kw_only=True, eq=False)
class PricedQuestion:
    """A question with its price."""

    question: TableQuestion
    mechanism: Scores
    schema: Schema

    @cached_property
    def names(self) -> list[str]:
        """The coefficients, by the names that the posterior gives them."""
        space = self.mechanism.space(self.schema)
        with one_at_a_time(space):
            return [name for name, _ in entries(prior_draws(space))]

    def expected(
        self, ledger: Ledger | None = None, *, progress: bool = True
    ) -> "TableAnswer":
        """Return the answer that a published synthetic set would get in the place of
        the table: its widths are those to expect. Nothing confidential is read.

        Raises
        ------
        InputError
            If there are too few records for the question at this price.
        """
        release = open_release(self.question.directory)
        frame = release.sets[0][[*self.schema.columns]].reset_index(drop=True)
        # as the table's, whose persons may have several records
        cap = Records(max_per_person=self.schema.records.max_per_person)
        table = Table(frame, self.schema.plain().model_copy(update={"records": cap}))
        with show_progress(quiet=not progress) as told:
            job = ReleaseJob(
                mechanism=self.mechanism,
                schema=table.schema,
                table=table,
                clock=Clock(told),
            )
            _, released, record = job.run()
        return self.answered(released, record, ledger)

    def answered(
        self, release: Release, record: RunRecord, ledger: Ledger | None = None
    ) -> "TableAnswer":
        """Return the answer: what the table was asked, pooled with what is published
        about the same parameters. Post-processing, in which nothing fails.
        """
        fresh = attempt(self.mechanism.answers_of, release)
        of_table = None
        pool = SumsOfOneTable(release=release)
        if fresh is not None:
            measured, public = fresh
            with one_at_a_time(measured.sums.space):
                rng = np.random.default_rng()
                of_table = attempt(table_draws, measured.sums, rng)
                pool = attempt(self._pool, release, ledger) or pool
                together = attempt(pool.answers, measured)
            drawn = None
            if together is not None:
                redraw = self.mechanism.redrawn
                drawn = attempt(redraw, release, together, public, n_sets=1)
            if drawn is None:
                pool = pool.without_any()
            else:
                release, again = drawn
                record = replace(
                    record, diagnostics=again.diagnostics, closer=again.closer
                )
        return TableAnswer.made(self, release, record, of_table, pool)

    def _pool(self, release: Release, ledger: Ledger | None) -> "SumsOfOneTable":
        """Return what is published of the same question, and why the rest isn't
        pooled.
        """
        directory = self.question.directory
        homes = {"the release": directory / "public"}
        for number, home in analyses_within(directory / "public").items():
            homes[f"analysis {number} of the release"] = home
        for number, home in answered_beside(directory).items():
            homes[f"answer {number}"] = home
        pool = SumsOfOneTable(release=release)
        known = {release.identifier}
        for name, home in homes.items():
            document = attempt(PrivacyDocument.read, home)
            if document is None or document.release in known:
                continue
            known.add(document.release)
            pool = pool.joined(name, home, document, self.mechanism, ledger)
        return pool


@dataclass(frozen=True, kw_only=True, eq=False)
class SumsOfOneTable:
    """Which published noisy sums are about the same parameters as those of a release,
    and why others aren't pooled with them.
    """

    release: Release
    parts: Mapping[str, CentredAnswers] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    def joined(
        self,
        name: str,
        home: Path,
        document: PrivacyDocument,
        mechanism: Scores,
        ledger: Ledger | None,
    ) -> "SumsOfOneTable":
        """Return the pool with a published release, or with why it isn't in it."""
        reason = self._refused(document, ledger)
        if not reason:
            found = attempt(mechanism.answers_of, home)
            part = None if found is None else found[0]
            if isinstance(part, CentredAnswers) and part.sums.rounds:
                return replace(self, parts={**self.parts, name: part})
            reason = "its covariates are public, or it wasn't asked to the end"
        return replace(self, left_out={**self.left_out, name: reason})

    def _refused(self, document: PrivacyDocument, ledger: Ledger | None) -> str:
        release = self.release
        source = release.settings.get(MODEL_SOURCE)
        is_same = (
            document.mechanism == release.mechanism
            and source
            and document.settings.get(MODEL_SOURCE) == source
            and document.table_schema.columns == release.schema.columns
        )
        if not is_same:
            return "it answers another question"
        if document.privacy.neighbours != release.loss.neighbours:
            return "its guarantee has other neighbours"
        if document.reproducible and not release.reproducible:
            return "it was made from a seed"
        if ledger is None:
            return ""
        if not _is_held(document.receipt, ledger):
            return "nothing shows that it is of the same table: this ledger lacks it"
        return ""

    def answers(self, fresh: Any) -> PooledAnswers | None:
        """Return the noisy sums of all, None where there is nothing to be pooled."""
        if not self.parts or not isinstance(fresh, CentredAnswers):
            return None
        labels = parameter_labels(fresh.sums.space)
        sums = [fresh.sums]
        for part in self.parts.values():
            if parameter_labels(part.sums.space) != labels:
                return None
            sums.append(part.sums)
        together = pooled(sums)
        return PooledAnswers(together, together.mode_of_last(), fresh.sums)

    def without_any(self) -> "SumsOfOneTable":
        """Return the pool after nothing could be made of its parts."""
        reason = "its covariates are public, or the sums can't be brought together"
        return replace(
            self,
            parts={},
            left_out={**self.left_out, **dict.fromkeys(self.parts, reason)},
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TableAnswer:
    """The answer to a question: all of it may be published.

    Parameters
    ----------
    estimates : DataFrame
        A row for each coefficient: its posterior mean ``estimate`` and the ends
        ``lower`` and ``upper`` of its 95 % interval, of the population; and the
        estimate of the table itself with the interval that the fresh noise alone
        leaves, ``table_estimate``, ``table_lower`` and ``table_upper``.
    release : Release
        What the table was asked, at its price; ``tables["answer"]`` has the estimates.
    record : RunRecord
        Of the run: confidential.
    folder : Path
        Where it belongs, in the folder of the release that it is beside.
    claim : CoefficientClaim, optional
        What was said of a coefficient.
    probability : float, optional
        Of the claim, by the posterior.
    pooled_with : tuple of str
        What is published, and was pooled with the fresh noisy sums.
    not_pooled : mapping of str to str
        What wasn't, and why.

    Examples
    --------
    >>> x = np.linspace(-4, 4, 2_000)
    >>> frame = pd.DataFrame({"x": x, "y": 1 + x / 2 + np.sin(40 * x)})
    >>> schema = Schema(
    ...     columns={"x": Column(lower=-4, upper=4), "y": Column(lower=-9, upper=9)}
    ... )
    >>> Margins(epsilon=1).release(Table(frame, schema))[0].publish("beside/public")
    >>> found = answer(frame, "beside", "y ~ x", epsilon=4)
    >>> found.estimates.loc["x", "estimate"].round(1)
    np.float64(0.5)
    >>> found.publish().as_posix()
    'beside/answers/1/public'
    """

    estimates: pd.DataFrame
    release: Release
    record: RunRecord
    folder: Path
    claim: CoefficientClaim | None
    probability: float | None
    pooled_with: tuple[str, ...]
    not_pooled: Mapping[str, str]

    @classmethod
    def made(
        cls,
        asked: PricedQuestion,
        release: Release,
        record: RunRecord,
        of_table: xr.Dataset | None,
        pool: SumsOfOneTable,
    ) -> Self:
        """Return the answer with its estimates, which are a table and in the tree of
        the release.
        """
        question = asked.question
        claim = question.claim
        draws = release.posterior_draws
        if draws is None:
            raise AssertionError("scores publishes a posterior")
        numbers = dict(entries(draws.posterior))
        estimates = estimates_of(draws.posterior, of_table)
        probability = None
        said = {
            "question": question.written.text,
            "meaning": MEANING,
            "pooled_with": ", ".join(pool.parts),
        }
        if claim is not None and claim.name in numbers:
            probability = claim.share(numbers[claim.name])
            said |= {"claim": str(claim), "probability": f"{probability:.4g}"}
        drawn = beside_table(draws, of_table, said)
        tables = {**release.tables, ESTIMATES_TABLE: as_rows(estimates)}
        return cls(
            estimates=estimates,
            release=replace(release, tables=tables, posterior_draws=drawn),
            record=record,
            folder=question.directory / ANSWERS_FOLDER / str(question.number),
            claim=claim,
            probability=probability,
            pooled_with=tuple(pool.parts),
            not_pooled=pool.left_out,
        )

    @cached_property
    def tree(self) -> xr.DataTree:
        """All that is public, as ArviZ reads it: ``posterior`` is pooled, and
        ``this_table`` has draws of the table's own estimate by the fresh noise.
        """
        return public_tree(self.release, self.record)

    @property
    def contradicted(self) -> Contradiction | None:
        """What noisy answers say against the model; None where they don't contradict
        it.
        """
        draws = self.release.posterior_draws
        return None if draws is None else contradiction(draws.posterior.attrs)

    def publish(self) -> Path:
        """Write the answer into its folder, and return the part that may be
        published.
        """
        public = self.folder / "public"
        self.release.publish(public)
        write_card(public)
        return public

    def __repr__(self) -> str:
        return f"TableAnswer({', '.join(self.estimates.index)})"

    def __str__(self) -> str:
        lines = []
        for name, row in self.estimates.iterrows():
            lines.append(
                f"estimate  {name}: {row['estimate']:.4g}, 95 % interval "
                f"{row['lower']:.4g} to {row['upper']:.4g}; of this table "
                f"{row['table_estimate']:.4g}, by the fresh noise alone "
                f"{row['table_lower']:.4g} to {row['table_upper']:.4g}"
            )
        if self.claim is not None and self.probability is not None:
            lines.append(f"claim     {self.claim}: probability {self.probability:.3g}")
        if self.pooled_with:
            lines.append(f"pooled    with {', '.join(self.pooled_with)}")
        for name, reason in self.not_pooled.items():
            lines.append(f"pooled    not with {name}: {reason}")
        if self.contradicted is not None:
            said = CONTRADICTED_MODEL.format(self.contradicted)
            lines.append(f"model     {said}, and the probability isn't the claim's")
        return "\n".join([*lines, f"meaning   {MEANING}"])


def _is_held(receipt: Receipt | None, ledger: Ledger) -> bool:
    """Whether a ledger shows that it was charged for a release, and so that it is of
    its table; one that can't be read shows nothing.
    """
    if receipt is None:
        return False
    try:
        return ledger.compare(receipt) is None
    except InputError:
        return False


def answer(
    table: Any,
    directory: str | Path,
    analysis: Any,
    *,
    epsilon: Number,
    delta: Number | None = None,
    claim: str | None = None,
    ledger: Ledger | str | Path | None = None,
    seed: int | np.random.Generator | None = None,
    allow: Collection[str] = (),
    resume: int | None = None,
    progress: bool = True,
    **options: Any,
) -> TableAnswer:
    """Answer one more question from the table of a release, at a price of its own.

    Parameters
    ----------
    table : DataFrame, dict, pyarrow.Table, path or Table
        The confidential table that the release was made from.
    directory : path
        The folder of the release.
    analysis : str, bambi.Model, callable or path
        A formula, such as ``"y ~ x"``, or a model as :func:`pdips.sample` takes it,
        but for ``pm.Model``. No column need be public.
    epsilon : int, float, str or Fraction
        Privacy loss of the answer, beside that of the release, in nats.
    delta : int, float, str or Fraction, optional
        As in :func:`pdips.sample`.
    claim : str, optional
        What is said of a coefficient: ``"x in [0.1, 0.3]"``, ``"x > 0"`` or
        ``"x < 0"``.
    ledger, seed, allow, resume, progress
        As in :func:`pdips.synthesize`.
    **options
        As in :func:`pdips.sample`: with a formula ``family``, ``priors`` and other
        settings of Bambi.

    Returns
    -------
    TableAnswer
        Nothing is written: :meth:`TableAnswer.publish` writes it into the folder
        ``answers`` in that of the release.

    Raises
    ------
    InputError
        If the folder holds no release; if analysis, claim or table don't fit its
        schema; if there are too few records for the question at this price; or if the
        packages of ``pdips[report]``, which write its card, are missing.
    RefusedError
        If the release isn't published, or the ledger's total would be overspent.

    Notes
    -----
    The posterior is drawn from the fresh noisy sums and from those that are published
    of the same table and model: their noise is independent, the records are the same
    (``docs/proofs/scores.md``, section 6).

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> x = rng.uniform(-4, 4, 2_000)
    >>> ill = np.where(rng.random(2_000) < 1 / (1 + np.exp(-x)), 1, 0)
    >>> frame = pd.DataFrame({"x": x, "ill": ill})
    >>> schema = Schema(
    ...     columns={"x": Column(lower=-4, upper=4), "ill": Column(levels=[0, 1])}
    ... )
    >>> Margins(epsilon=1).release(Table(frame, schema))[0].publish("asked/public")
    >>> found = answer(
    ...     frame, "asked", "ill ~ x", epsilon=1, claim="x > 0", family="bernoulli"
    ... )
    >>> found.probability > 0.99
    True
    """
    # of what is paid for, nothing is lost for want of a card
    require("report", "the card of an answer needs")
    question = TableQuestion.of(directory, analysis, claim, options)
    if ledger is not None and not isinstance(ledger, Ledger):
        ledger = Ledger(ledger)
    source = question.source(table, ledger, allow=allow)
    if delta is not None:
        options["delta"] = delta
    asked = question.asked(source, epsilon=epsilon, **options)
    with show_progress(quiet=not progress) as told:
        job = ReleaseJob(
            mechanism=asked.mechanism,
            schema=asked.schema,
            table=table,
            seed=seed,
            ledger=ledger,
            explain=True,
            allow=allow,
            clock=Clock(told),
            resume=resume,
        )
        _, release, record = job.run()
    found = asked.answered(release, record, ledger)
    tell_of(found.tree)
    return found
