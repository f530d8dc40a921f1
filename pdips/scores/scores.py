"""scores: any PyMC model, its records' clipped scores summed under noise, and a
posterior that knows the noise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.histogram.urns import check_n_records, check_public
from pdips.mechanism import Drawn
from pdips.posterior import nuts as sampling
from pdips.posterior.columns import (
    Values,
    covariates_of,
    public_stand_ins,
    record_values,
)
from pdips.posterior.inspection import tree_of
from pdips.posterior.model import (
    UNRECORDED,
    Blueprint,
)
from pdips.posterior.model_checks import on_stand_ins
from pdips.privacy.account import Request
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import Clock, Curator, Statistic
from pdips.privacy.loss import check_whole
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity, n_changed
from pdips.release.offers import Offers
from pdips.release.release import Release, RunRecord
from pdips.scores.centred_answers import CentredAnswers, restored_centred
from pdips.scores.centred_questions import (
    MOST_CENTRED,
    CentredQuestions,
    points_of,
    rehearse_centred,
)
from pdips.scores.first_search import (
    TRIED,
    kit_of,
    one_at_a_time,
    searched,
    searched_again,
)
from pdips.scores.noisy_likelihood import Measurement, NoisySums, clipping_at
from pdips.scores.posterior import (
    attempt,
    importance_draws,
    with_deterministics,
)
from pdips.scores.published import (
    Known,
    read_published,
    restored,
    seed_of,
)
from pdips.scores.record_score import STEPS, Clipping, Norm, RecordScore
from pdips.scores.score_answers import (
    DrawingSettings,
    ScoreAnswers,
    SimulatedAnswers,
    drawn,
)
from pdips.scores.simulator import Simulator
from pdips.scores.sums import Linearised

RECORDS = "noisy number of records"
CELLS = "noisy counts of cells by column"
SCORES = "noisy scores, round "

# Share of the budget for the number of records, where it is protected
OF_RECORDS = Fraction(1, 50)
OF_CELLS = {True: Fraction(1, 4), False: Fraction(1, 10)}
"""Share of the rest for counts of cells: by whether a numeric column, or one with many
levels, is described.
"""

# Up to so many, counts of cells get that share; of more they tell ever less, and get
# less
FEW_PARAMETERS = 10
# Share of what is left that the last round of scores gets; the others share the rest
LAST = Fraction(7, 10)

FEW_LEVELS = 4
MOST_PARAMETERS = 400
# Of the noise on the number of records, up to which sets are as long as it says
MOST_SPREAD = 100_000


@dataclass(frozen=True, kw_only=True)
class Scores(sampling.ChainMechanism):
    """Records from a PyMC model of one record, whose clipped scores are summed under
    noise.

    ``epsilon``, ``n_sets`` and ``neighbours`` are those of
    :class:`pdips.mechanism.Mechanism`.

    Parameters
    ----------
    model : path, name, callable or Source
        The model: a file with ``build_model(data, schema)``, the name of one that comes
        with pdips, or that function.
    delta : int, float, str or Fraction, optional
        Left out, noise is discrete Laplace, and losses add up in epsilon. A number
        makes it discrete Gaussian, with a zero-concentrated loss that is read at this
        delta.
    score_rounds : int
        How often scores are asked for, each time at the parameters that the answers
        before make most probable.
    n_records : int, optional
        Public number of synthetic records. By default as many as the table has; under
        add-remove, what its noisy number of records says.
    nuts : {"auto", "nutpie", "pymc", "numpyro", "blackjax"}
        Whose NUTS: nutpie's, PyMC's own, or numpyro's or blackjax's if installed.
    draws, tune, n_chains : int
        Of NUTS.

    Raises
    ------
    InputError
        If a setting is out of range, or the model can't be read.

    Notes
    -----
    The score of a record is the gradient of its log-likelihood in the model's
    unconstrained parameters. It is whitened by the information that one simulated
    record holds, pulled into a ball and cut to whole steps, so that one person moves
    the sum by a known amount whatever the model; noise is exact. Where the model reads
    a confidential column that it doesn't describe, each record adds its score less the
    mean that its covariates lead one to expect, and its curvature. All that follows
    reads noisy sums and public facts: rounds, Markov chains and any number of sets cost
    nothing more (``docs/proofs/scores.md``). The posterior is that of the last noisy
    sums, which are normal given the parameters; counts of cells and earlier sums find
    where to ask, and check the model. One-step and noisy Newton estimators: Avella
    Medina, Bradshaw and Loh (2023); noise-aware posteriors: Bernstein and Sheldon
    (2018).

    Examples
    --------
    >>> schema = Schema(columns={"pay": Column(lower=0, upper=10)})
    >>> table = Table(pd.DataFrame({"pay": [3.0, 4.0, 5.5] * 200}), schema)
    >>> release, record = Scores(epsilon=1, model="normal", n_sets=2).release(table)
    >>> [len(made) for made in release.sets]
    [600, 600]
    """

    name: ClassVar[str] = "scores"
    takes_covariates: ClassVar[bool] = True
    offers: ClassVar[Offers] = Offers(
        public_columns=True,
        partitions=True,
        relations=("replace-one", "add-remove"),
        kinds=("pure", "zcdp"),
        sets_share="posterior",
        posterior_of="answers",
    )

    score_rounds: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_records is not None:
            check_n_records(self.n_records, self.neighbours)
        check_whole(self.score_rounds, "score_rounds", 1, 5)

    @property
    def norm(self) -> Norm:
        """Of the ball that scores are pulled into: what the law of the noise counts."""
        return "l1" if self.kind == "pure" else "l2"

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: counts of cells, and sums of scores round by round; the
        number of records if protected.

        On the way all that could fail after the charge is tried on made-up records.
        """
        self.check_schema(schema)
        space = self._rehearsed(schema)
        return self.planned(
            schema, self.steps(space, schema), self._sentences(space), **self.reading
        )

    def request_before(self, schema: Schema) -> Request:
        """Return the price and what it is for before the model is known, which stands
        for the whole of it: what is asked is known once the model is.
        """
        whole = self._records_step(schema, self.total)
        plan = self.planned(schema, [whole], "the whole price", **self.reading)
        return Request(
            mechanism=self.name, schema=schema, loss=plan.loss, spends=plan.spends
        )

    def steps(self, space: Blueprint, schema: Schema) -> tuple[Step, ...]:
        """Return what is asked of a table of a schema, each with its share of the
        budget.
        """
        left = self.total
        steps = list[Step]()
        if self.neighbours == "add-remove":
            counted = self._records_step(schema, left * OF_RECORDS)
            steps.append(counted)
            left -= counted.price
        if space.covariates:
            asked = self.centred_questions(space, schema)
            return (*steps, asked.cells(CELLS, left), *asked.rounds(left))
        cells = self._cells_step(space, schema, left)
        return (*steps, cells, *self._score_steps(space, schema, left - cells.price))

    def centred_questions(self, space: Blueprint, schema: Schema) -> CentredQuestions:
        """Return what is asked where covariates are confidential."""
        return CentredQuestions(
            schema=schema,
            neighbours=self.neighbours,
            law=self.noise_law,
            n_rounds=self.score_rounds,
            n_parameters=space.n_parameters,
            n_columns=len(space.synthesized) + len(space.covariates),
            by_lengths=not points_of(space).by_levels,
            by_shape=points_of(space).one_number,
        )

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse too few records for the parameters of a model with confidential
        covariates.
        """
        if plan.n_public:
            self.check_enough(plan, table.n_records)

    def check_enough(self, plan: Plan, n_records: int) -> None:
        """Refuse so few records, a number that is public or a guess."""
        space = self.space(plan.schema)
        if space.covariates:
            asked = self.centred_questions(space, plan.schema)
            asked.check_enough([*plan.steps], n_records)

    def _records_step(self, schema: Schema, price: Fraction) -> Step:
        return Step(
            name=RECORDS,
            sensitivity=Sensitivity.of_record(schema, l1=1),
            price=price,
            law=self.noise_law,
            counts=RECORDS,
        )

    def _cells_step(self, space: Blueprint, schema: Schema, left: Fraction) -> Step:
        described = [space.columns[name] for name in space.synthesized]
        detailed = any(
            not column.is_categorical or column.n_levels > FEW_LEVELS
            for column in described
        )
        most = OF_CELLS[detailed]
        share = min(most, most * FEW_PARAMETERS / space.n_parameters)
        tables = len(described)
        return Step(
            name=CELLS,
            sensitivity=Sensitivity.of_counts(schema, self.neighbours, tables=tables),
            price=left * max(share, OF_CELLS[False]),
            law=self.noise_law,
            counts="each cell",
        )

    def _score_steps(
        self, space: Blueprint, schema: Schema, left: Fraction
    ) -> Iterator[Step]:
        """Yield the rounds of scores, of which the last gets most."""
        both = n_changed(self.neighbours)
        # of the l2 ball, in the l1 norm
        wide = 1 if self.norm == "l1" else math.isqrt(space.n_parameters - 1) + 1
        l1 = both * wide * STEPS
        ball = Sensitivity.of_record(schema, l1=l1, l2_squared=(both * STEPS) ** 2)
        shares = [Fraction(1)]
        if self.score_rounds > 1:
            early = self.score_rounds - 1
            shares = [(1 - LAST) / early] * early + [LAST]
        for number, share in enumerate(shares, start=1):
            yield Step(
                name=f"{SCORES}{number}",
                sensitivity=ball,
                price=left * share,
                law=self.noise_law,
                counts=f"each sum of scores, round {number}, in units of the "
                f"largest of one record",
                unit=1 / STEPS,
            )

    def _rehearsed(self, schema: Schema) -> Blueprint:
        """Return the model of a schema, after all that could fail with records has been
        tried on stand-ins.
        """
        space = self.space(schema)
        check_public(schema, self.neighbours, self.n_records)
        self._check_size(space, schema)
        settings = ("scores", self.kind, self.neighbours, self.score_rounds, self.nuts)
        with one_at_a_time(space):
            space.check()
            space.check_gradient()
            space.tried.once(settings, partial(self._rehearse, space, schema))
        return space

    def _check_size(self, space: Blueprint, schema: Schema) -> None:
        """Refuse a model with no or too many parameters, and sets of any length."""
        if not space.n_parameters:
            raise InputError(
                "the model has no parameter, so there is nothing to "
                "learn from the table"
            )
        if space.covariates and space.n_parameters > MOST_CENTRED:
            raise InputError(
                f"the model has {space.n_parameters:,} parameters, and at most "
                f"{MOST_CENTRED} where covariates are confidential: declare groups and "
                f"covariates public, or take a simpler model"
            )
        if space.n_parameters > MOST_PARAMETERS:
            raise InputError(self._too_many(space, schema))
        first = self.steps(space, schema)[0]
        if first.name != RECORDS or self.n_records is not None:
            return
        if first.standard_deviation > MOST_SPREAD:
            raise InputError(
                "sets would be as long as the noisy number of records says, whose "
                "noise has standard deviation "
                f"{first.standard_deviation:,.0f}; give n_records, how many "
                f"synthetic records, from public knowledge"
            )

    def _rehearse(self, space: Blueprint, schema: Schema) -> None:
        """Go through a release of stand-ins."""
        public = public_stand_ins(space.schema, TRIED)
        steps = [step for step in self.steps(space, schema) if step.name != RECORDS]
        if space.covariates:
            with on_stand_ins("the release"):
                asked = self.centred_questions(space, schema)
                rehearse_centred(space, asked, steps, public)
            return
        with on_stand_ins("the release"):
            kit = kit_of(space)
            counts = np.zeros(sum(kit.cells.sizes))
            opened = self._opened(space, (float(TRIED), 0.0), public, counts, steps[0])
            here = searched(opened, kit.cells)
            if here is None:
                raise InputError(
                    "the model draws no records at its prior's "
                    "parameters: narrow the prior"
                )
            sums = opened
            for step in steps[1:]:
                sums = self._rehearsed_round(sums, here.place, step)
                here = sums.linearised(here.place)
            rng = np.random.default_rng(0)
            drawn = importance_draws(sums, here, rng, 10, tried=100, attempts=1)
            tree = tree_of(space.values_of(drawn.places))
            with_deterministics(sums, here, tree)

    def _rehearsed_round(
        self, sums: NoisySums, place: FloatArray, step: Step
    ) -> NoisySums:
        """Return the sums with a round of scores of two simulated records."""
        clipping = clipping_at(sums, place, self.norm, step.standard_deviation**2)
        _, inside = sums.simulator(place)
        two = {name: values[:2] for name, values in inside.items()}
        return _with_round(sums, clipping, sums.score.total(clipping, two), step)

    def _too_many(self, space: Blueprint, schema: Schema) -> str:
        d = space.n_parameters
        last = self.steps(space, schema)[-1]
        length = math.sqrt(d) if self.norm == "l2" else d
        records = last.standard_deviation / STEPS * length
        return (
            f"the model has {d:,} parameters, and scores takes at most "
            f"{MOST_PARAMETERS:,}: the noise on each would "
            f"weigh as much as what about {records:,.0f} records say of it; take "
            f"fewer groups or a simpler model"
        )

    def ask(self, plan: Plan, curator: Curator) -> ScoreAnswers:
        """Ask for counts of cells, and for sums of scores round by round, each at the
        parameters that the answers before make most probable.
        """
        space = self.space(plan.schema)
        steps = list(plan.steps)
        _, columns = covariates_of(plan.schema, curator.facts)
        public = space.beside(columns)
        with one_at_a_time(space):
            kit = kit_of(space)
            number = self._number(curator, steps)
            if space.covariates:
                asked = self.centred_questions(space, plan.schema)
                centred = asked.ask(curator, space, steps, number, public)
                return CentredAnswers(centred, attempt(centred.mode_of_last))
            with curator.timed("counting cells"):
                counted = self._asked(curator, steps[0], kit.cells.count)
                counts = counted.astype(np.float64)
                sums = self._opened(space, number, public, counts, steps[0])
                here = searched(sums, kit.cells)
            for round_number, step in enumerate(steps[1:], start=1):
                with curator.timed(
                    f"adding up scores, round {round_number} of {self.score_rounds}"
                ):
                    at = self._clipping(curator, sums, here, step)
                    if here is None or at is None:
                        # no records can be simulated, so that sums would say nothing
                        break
                    total = partial(_total, space, kit.score, at, sums.n_records)
                    noisy = self._asked(curator, step, total)
                    sums = _with_round(sums, at, noisy, step)
                    here = attempt(searched_again, sums, here) or here
        return SimulatedAnswers(sums, here)

    def draw(
        self,
        plan: Plan,
        measured: ScoreAnswers,
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Draw from the posterior of the noisy sums, and records beside the public
        columns.
        """
        written, columns = covariates_of(plan.schema, public)
        covariates = self.space(plan.schema).beside(columns)
        known = (written, covariates)
        return drawn(measured, self._settings(plan.schema, n_sets), known, rng)

    def _settings(self, schema: Schema, n_sets: int) -> DrawingSettings:
        return DrawingSettings(
            schema=schema,
            n_sets=n_sets,
            n_records=self.n_records,
            draws=self.draws,
            tune=self.tune,
            chains=self.n_chains,
            sampler=self.nuts,
        )

    def _clipping(
        self, curator: Curator, sums: NoisySums, here: Linearised | None, step: Step
    ) -> Clipping | None:
        """Return how the next sum of scores is clipped, None where nothing can be
        simulated. A release that is resumed has to ask for the same sum.
        """

        def make() -> dict[str, FloatArray]:
            if here is None:
                return {}
            variance = step.standard_deviation**2
            at = attempt(clipping_at, sums, here.place, self.norm, variance)
            return {} if at is None else at.arrays()

        kept = curator.keep(make)
        return Clipping.read(kept, self.norm) if kept else None

    def answers_of(self, release: Release | Path) -> tuple[ScoreAnswers, Known]:
        """Return the noisy answers that a release of the same model has published, and
        its public columns.
        """
        schema, tables, public = read_published(release)
        space = self.space(schema)
        with one_at_a_time(space):
            columns = space.beside(public[1]) if public[1] else {}
            return self._restored(space, tables, columns), public

    def redrawn(
        self,
        release: Release,
        measured: ScoreAnswers,
        public: Known,
        *,
        n_sets: int,
    ) -> tuple[Release, RunRecord]:
        """Return a release with other draws and sets, of noisy answers about the same
        parameters.
        """
        clock = Clock()
        with clock.running():
            settings = self._settings(release.schema, n_sets)
            found = drawn(measured, settings, public, RandomBits().generator())
        made = replace(
            release,
            sets=tuple(found.sets),
            tables={**release.tables, **found.tables},
            statistics=found.statistics,
            posterior_draws=found.posterior_draws,
        )
        return made, RunRecord(
            seconds=clock.seconds,
            peak_memory=0.0,
            diagnostics=found.diagnostics,
            closer=found.closer,
        )

    def _restored(
        self, space: Blueprint, tables: dict[str, pd.DataFrame], public: Values
    ) -> ScoreAnswers:
        kit = kit_of(space)
        if space.covariates:
            centred = restored_centred(space, tables, public)
            return CentredAnswers(centred, attempt(centred.mode_of_last))
        sums = restored(space, kit.score, kit.prior, tables, public)
        return SimulatedAnswers(sums, attempt(sums.mode, sums.last_reference))

    def _number(self, curator: Curator, steps: list[Step]) -> tuple[float, float]:
        """Return the number of records and the variance of the noise on it, and take
        its step off the list.
        """
        if steps[0].name != RECORDS:
            return float(curator.n_records), 0.0
        step = steps.pop(0)
        noisy = self._asked(curator, step, lambda table: np.array([table.n_records]))
        return max(float(noisy[0]), 1.0), step.standard_deviation**2

    def _asked(self, curator: Curator, step: Step, statistic: Statistic) -> IntArray:
        """Return the noisy numbers of a step; later questions depend on them, and
        audits follow them.
        """
        return curator.decide(curator.count(step, statistic), lambda numbers: numbers)

    def _opened(
        self,
        space: Blueprint,
        number: tuple[float, float],
        public: Values,
        counts: FloatArray,
        step: Step,
    ) -> NoisySums:
        """Return the sums with the counts of cells, before any score; ``number`` is
        that of records, and the variance of its noise.
        """
        kit = kit_of(space)
        n_records, n_variance = number
        cells = Measurement(step.name, kit.cells, counts, step.standard_deviation)
        simulator = Simulator(space, public, seed=seed_of(counts))
        return NoisySums(
            space=space,
            score=kit.score,
            prior=kit.prior,
            simulator=simulator,
            n_records=n_records,
            n_variance=n_variance,
            measurements=(cells,),
            laplace=self.kind == "pure",
        )

    def _sentences(self, space: Blueprint) -> str:
        """Return what is done, for a disclosure board."""
        noise = "Laplace" if self.kind == "pure" else "Gaussian"
        counted = (
            ("altogether and by cells")
            if self.neighbours == "add-remove"
            else "by cells"
        )
        often = "once" if self.score_rounds == 1 else f"{self.score_rounds} times"
        parts = [
            f"Records are counted {counted} of each column that the model describes. "
            f"Then, {often}, the scores of "
            "records (the gradient of the log-likelihood of each by itself) at "
            "public parameters are pulled into a "
            f"ball, cut to whole steps and added up. Each number has exact discrete "
            f"{noise} noise. Everything else, "
            "Markov chains too, is worked out from these noisy numbers and public "
            "facts, so that it costs nothing: "
            "neither how well chains mix nor how many sets are drawn weakens the "
            "guarantee.",
            f"The model of {', '.join(space.synthesized)} and its priors are public, "
            f"and were not chosen by looking at "
            "the table.",
        ]
        if self.kind == "zcdp":
            parts.append(
                "Losses are added up as zero-concentrated ones and read at delta."
            )
        if not space.source.text:
            parts.append(UNRECORDED)
        return " ".join(parts)


def _total(
    space: Blueprint,
    score: RecordScore,
    clipping: Clipping,
    expected: float,
    table: Table,
) -> IntArray:
    values = space.beside(record_values(table))
    return score.total(clipping, values, expected)


def _with_round(
    sums: NoisySums, clipping: Clipping, noisy: IntArray, step: Step
) -> NoisySums:
    """Return the sums with another round of scores."""
    unit = clipping.unit
    deviation = step.standard_deviation * unit
    scores = noisy.astype(np.float64) * unit
    added = Measurement(step.name, clipping, scores, deviation)
    return replace(sums, measurements=(*sums.measurements, added))
