"""scores: any PyMC model, its records' clipped scores summed under noise, and a posterior that knows the noise."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.histogram.urns import check_n_records, check_public
from pdips.mechanism import Drawn
from pdips.posterior import nuts as sampling
from pdips.posterior.columns import Values, public_columns, public_stand_ins, record_values, to_frame
from pdips.posterior.inspection import Draws, published_draws, tree_of
from pdips.posterior.model import ONE_AT_A_TIME, PRIOR_DRAWS, UNRECORDED, Blueprint, initial, most_probable
from pdips.posterior.model_checks import on_stand_ins
from pdips.privacy.curator import Clock, Curator, Progress, Statistic
from pdips.privacy.loss import check_whole
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity, n_changed
from pdips.release.release import Release, RunRecord
from pdips.scores.noisy_likelihood import (
    ColumnCells,
    Linearised,
    Measurement,
    NoisySums,
    NormalPrior,
    Simulator,
    clipping_at,
)
from pdips.scores.posterior import attempt, importance_draws, posterior_draws, predictive_check, with_deterministics
from pdips.scores.published import SUMS, Known, published, read_published, restored, seed_of
from pdips.scores.record_score import STEPS, Clipping, Norm, RecordScore

POSTERIOR = "posterior"
RECORDS, CELLS, SCORES = "noisy number of records", "noisy counts of cells by column", "noisy scores, round "

OF_RECORDS = Fraction(1, 50)  # Share of the budget for the number of records, where it is protected
OF_CELLS = {True: Fraction(1, 4), False: Fraction(1, 10)}
"""Share of the rest for counts of cells: by whether a numeric column, or one with many levels, is described."""

FEW_PARAMETERS = 10  # Up to so many, counts of cells get that share; of more they tell ever less, and get less
LAST = Fraction(7, 10)  # Share of what is left that the last round of scores gets; the others share the rest

FEW_LEVELS = 4
MOST_PARAMETERS = 400
MOST_SPREAD = 100_000  # Of the noise on the number of records, up to which sets are as long as it says

Timed = Callable[[str], AbstractContextManager[None]]

STARTS, CLIMBED = 6, 4_096  # Prior draws to search from, and made-up records that counts of cells stand for there
APART, SEARCHED = 1.0, 3  # Log density by which ends of searches differ, and how many are searched from again
TRIED = 512
OTHERS = 20  # Draws from the posterior, then from the prior, that replace one at which no records can be drawn


@dataclass(frozen=True, eq=False)
class Kit:
    """What is compiled of a model for scores, made once for each blueprint."""

    score: RecordScore
    prior: NormalPrior
    cells: ColumnCells


@dataclass(frozen=True, kw_only=True)
class Scores(sampling.ChainMechanism):
    """Records from a PyMC model of one record, whose clipped scores are summed under noise.

    ``epsilon``, ``n_sets`` and ``neighbours`` are those of :class:`pdips.mechanism.Mechanism`.

    Parameters
    ----------
    model : path, name, callable or Source
        The model: a file with ``build_model(data, schema)``, the name of one that comes with pdips, or that function.
    kind : {"pure", "zcdp"}
        Discrete Laplace noise, whose losses add up in epsilon; or discrete Gaussian noise, read at ``delta``.
    delta : int, float, str or Fraction
        For ``kind="zcdp"``.
    score_rounds : int
        How often scores are asked for, each time at the parameters that the answers before make most probable.
    n_records : int, optional
        Public number of synthetic records. By default as many as the table has; under add-remove, what its noisy number
        of records says.
    nuts : {"auto", "nutpie", "pymc", "numpyro"}
        Whose NUTS: nutpie's, PyMC's own, or numpyro's if it is installed.
    draws, tune, n_chains : int
        Of NUTS.

    Raises
    ------
    InputError
        If a setting is out of range, or the model can't be read.

    Notes
    -----
    The score of a record is the gradient of its log-likelihood in the model's unconstrained parameters. It is whitened
    by the information that one simulated record holds, pulled into a ball and cut to whole steps, so that one person
    moves the sum by a known amount whatever the model; noise is exact. All that follows reads noisy sums and public
    facts: rounds, Markov chains and any number of sets cost nothing more (``docs/proofs/scores.md``). Noisy sums of all
    rounds and the counts of cells are jointly normal given the parameters, with the mean and covariance that simulated
    records have there. One-step and noisy Newton estimators: Avella Medina, Bradshaw and Loh (2023); noise-aware
    posteriors: Bernstein and Sheldon (2018).

    Examples
    --------
    >>> schema = Schema(columns={"pay": Column(lower=0, upper=10)})
    >>> table = Table(pd.DataFrame({"pay": [3.0, 4.0, 5.5] * 200}), schema)
    >>> release, record = Scores(epsilon=1, model="normal", n_sets=2).release(table)
    >>> [len(made) for made in release.sets]
    [600, 600]
    """

    name: ClassVar[str] = "scores"
    adds_up: ClassVar[bool] = True

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
        """Return the plan: counts of cells, and sums of scores round by round; the number of records if protected.

        On the way all that could fail after the charge is tried on made-up records.
        """
        self.check_schema(schema)
        space = self._rehearsed(schema)
        return self.planned(schema, self.steps(space, schema), self._sentences(space), **self.reading)

    def steps(self, space: Blueprint, schema: Schema) -> tuple[Step, ...]:
        """Return what is asked of a table of a schema, each with its share of the budget."""
        left, law, found = self.total, self.noise_law, list[Step]()
        if self.neighbours == "add-remove":
            one = Sensitivity.of_record(schema, l1=1)
            found.append(Step(name=RECORDS, sensitivity=one, price=left * OF_RECORDS, law=law, counts=RECORDS))
            left -= left * OF_RECORDS
        described = [space.columns[name] for name in space.synthesized]
        share = OF_CELLS[any(not c.is_categorical or c.n_levels > FEW_LEVELS for c in described)]
        of_cells = left * max(min(share, share * FEW_PARAMETERS / space.n_parameters), OF_CELLS[False])
        counts = Sensitivity.of_counts(schema, self.neighbours, tables=len(described))
        found.append(Step(name=CELLS, sensitivity=counts, price=of_cells, law=law, counts="each cell"))
        left -= of_cells
        both = n_changed(self.neighbours)
        wide = 1 if self.norm == "l1" else math.isqrt(space.n_parameters - 1) + 1  # of the l2 ball, in the l1 norm
        ball = Sensitivity.of_record(schema, l1=both * wide * STEPS, l2_squared=(both * STEPS) ** 2)
        for number in range(1, self.score_rounds + 1):
            last = number == self.score_rounds
            share = Fraction(1) if self.score_rounds == 1 else LAST if last else (1 - LAST) / (self.score_rounds - 1)
            found.append(
                Step(
                    name=f"{SCORES}{number}",
                    sensitivity=ball,
                    price=left * share,
                    law=law,
                    counts=f"each sum of scores, round {number}, in units of the largest of one record",
                    unit=1 / STEPS,
                )
            )
        return tuple(found)

    def _rehearsed(self, schema: Schema) -> Blueprint:
        """Return the model of a schema, after all that could fail with records has been tried on stand-ins."""
        space = self.space(schema)
        check_public(schema, self.neighbours, self.n_records)
        if not space.n_parameters:
            raise InputError("the model has no parameter, so there is nothing to learn from the table")
        if space.n_parameters > MOST_PARAMETERS:
            raise InputError(self._too_many(space, schema))
        first = self.steps(space, schema)[0]
        if first.name == RECORDS and self.n_records is None and first.standard_deviation > MOST_SPREAD:
            raise InputError(
                "sets would be as long as the noisy number of records says, whose noise has standard deviation "
                f"{first.standard_deviation:,.0f}; give n_records, how many synthetic records, from public knowledge"
            )
        space.check()
        space.check_gradient()
        settings = ("scores", self.kind, self.neighbours, self.score_rounds, self.nuts)

        def go() -> None:
            public = public_stand_ins(schema, TRIED)
            steps = [step for step in self.steps(space, schema) if step.name != RECORDS]
            with on_stand_ins("the release"):
                kit = self.kit(space)
                counts = np.zeros(sum(kit.cells.sizes))
                sums = self._opened(space, float(TRIED), 0.0, public, counts, steps[0])
                here = self._first(sums)
                if here is None:
                    raise InputError("the model draws no records at its prior's parameters: narrow the prior")
                for step in steps[1:]:
                    clipping = clipping_at(sums, here.place, self.norm, step.standard_deviation**2)
                    row = {name: values[:2] for name, values in sums.simulator(here.place)[1].items()}
                    sums = self._with(sums, clipping, kit.score.total(clipping, row), step)
                    here = sums.linearised(here.place)
                drawn = importance_draws(sums, here, np.random.default_rng(0), 10, tried=100)
                with_deterministics(sums, here, tree_of(space.values_of(drawn.places)))

        with ONE_AT_A_TIME:
            space.tried.once(settings, go)
        return space

    def kit(self, space: Blueprint) -> Kit:
        """Return what is compiled of a model for scores."""

        def made() -> Kit:
            cells = ColumnCells.of(space, likely(space))
            return Kit(RecordScore(space.likelihood), NormalPrior.of(space.prior), cells)

        return space.tried.once("scores kit", made)

    def _too_many(self, space: Blueprint, schema: Schema) -> str:
        d, last = space.n_parameters, self.steps(space, schema)[-1]
        records = last.standard_deviation / STEPS * (math.sqrt(d) if self.norm == "l2" else d)
        return (
            f"the model has {d:,} parameters, and scores takes at most {MOST_PARAMETERS:,}: the noise on each would "
            f"weigh as much as what about {records:,.0f} records say of it; take fewer groups or a simpler model"
        )

    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
        """Ask for counts and scores, draw from the posterior that they leave, and draw records."""
        space, steps = self.space(plan.schema), list(plan.steps)
        known = public_columns(curator.public) if plan.schema.public_columns else (pd.DataFrame(), {})
        with ONE_AT_A_TIME:
            kit = self.kit(space)
            n, n_variance = self._number(curator, steps)
            with curator.timed("counting cells"):
                counts = self._asked(curator, steps[0], kit.cells.count).astype(np.float64)
                sums = self._opened(space, n, n_variance, known[1], counts, steps[0])
                here = self._first(sums)
            for number, step in enumerate(steps[1:], start=1):
                with curator.timed(f"adding up scores, round {number} of {self.score_rounds}"):
                    at = attempt(clipping_at, sums, here.place, self.norm, step.standard_deviation**2) if here else None
                    if here is None or at is None:
                        break  # no records can be simulated, so that sums would say nothing
                    summed = partial(lambda at, table: kit.score.total(at, record_values(table)), at)
                    sums = self._with(sums, at, self._asked(curator, step, summed), step)
                    here = attempt(sums.mode, here.place) or here
        return self._drawn(sums, here, known, rng, curator.timed)

    def _drawn(
        self, sums: NoisySums, here: Linearised | None, known: Known, rng: np.random.Generator, timed: Timed
    ) -> Drawn:
        """Draw from the posterior of noisy sums, and records beside the public columns."""
        schema, chosen, sets, undrawn = sums.space.schema, [], [], 0
        with ONE_AT_A_TIME, timed("drawing from the posterior"):
            here = here and attempt(sums.precise, here.place)
            settings = {"draws": self.draws, "tune": self.tune, "chains": self.n_chains, "sampler": self.nuts}
            found = posterior_draws(sums, here, rng, self.draws, **settings)
        n = self.n_records or (len(known[0]) if len(known[0]) else max(round(sums.n_records), 1))
        places = found.places[sampling.far_apart(len(found.places), self.n_sets, rng)]
        for number, place in enumerate(places, start=1):
            with timed(f"drawing synthetic set {number} of {self.n_sets}"):
                others = found.places[rng.integers(len(found.places), size=OTHERS)]
                tried = np.concatenate([place[None], others, sums.space.prior[:OTHERS]])
                values, drawn, failed = self._records(sums, tried, n, known[1], rng)
                sets.append(to_frame(schema, drawn, known[0], rng))
            chosen.append(values)
            undrawn += failed
        found = replace(found, facts={**found.facts, "noisy_sums": found.facts["noisy_sums"] | {"undrawn": undrawn}})
        tables = published(sums)
        return Drawn(
            sets=sets,
            statistics={SUMS: tables[SUMS]},
            tables=tables | {POSTERIOR: published_draws(found.tree)},
            diagnostics=found.facts,
            closer=partial(predictive_check, sums, here, found, chosen) if here else None,
        )

    def _records(
        self, sums: NoisySums, places: FloatArray, n: int, public: Values, rng: np.random.Generator
    ) -> tuple[Draws, Values, int]:
        """Return the first parameters at which the model draws records, these records, and how many came before.

        If there are none each column is drawn by itself, as its noisy counts have it.
        """
        for failed, place in enumerate(places):
            [values] = sums.space.values_of(place[None])
            drawn = attempt(sums.space.draw, values, n, public, rng)
            if drawn is not None:
                return values, drawn, failed
        counted = sums.measurements[0]
        return values, self.kit(sums.space).cells.draw(counted.noisy, counted.deviation, n, rng), len(places)

    def again(
        self, release: Release, *, n_sets: int, rng: np.random.Generator | None = None, progress: Progress | None = None
    ) -> tuple[Release, RunRecord]:
        """Draw more sets from the noisy sums of a release of the same model: post-processing, at no further cost.

        Arguments, what is returned and what is raised are those of :meth:`pdips.statistics.modips.Modips.again`.
        """
        if release.mechanism != self.name:
            raise InputError(f"more sets are drawn from a release of {self.name}; this one is of {release.mechanism}")
        same = ("epsilon", "neighbours", "kind", "delta", "score_rounds", "model_source")
        if any(release.settings.get(name) != self.settings()[name] for name in same):
            raise InputError("model, epsilon, neighbours, kind, delta and score_rounds must be those of the release")
        clock, bits = Clock(progress), RandomBits(rng)
        space = self.space(release.schema)
        with ONE_AT_A_TIME, clock.step("reading noisy sums"):
            _, tables, known = read_published(release)
            kit = self.kit(space)
            sums = restored(space, kit.score, kit.prior, tables, known[1])
            here = attempt(sums.mode, sums.last_reference)
        drawn = replace(self, n_sets=n_sets)._drawn(sums, here, known, bits.generator(), clock.step)
        made = replace(release, sets=tuple(drawn.sets), tables=drawn.tables, statistics=drawn.statistics)
        return made, RunRecord(
            seconds=clock.seconds, peak_memory=0.0, diagnostics=drawn.diagnostics, closer=drawn.closer
        )

    def _number(self, curator: Curator, steps: list[Step]) -> tuple[float, float]:
        """Return the number of records and the variance of the noise on it, and take its step off the list."""
        if steps[0].name != RECORDS:
            return float(curator.n_records), 0.0
        step = steps.pop(0)
        noisy = self._asked(curator, step, lambda table: np.array([table.n_records]))
        return max(float(noisy[0]), 1.0), step.standard_deviation**2

    def _asked(self, curator: Curator, step: Step, statistic: Statistic) -> IntArray:
        """Return the noisy numbers of a step; later questions depend on them, and audits follow them."""
        return curator.decide(curator.count(step, statistic), lambda numbers: numbers)

    def _opened(
        self, space: Blueprint, n: float, n_variance: float, public: Values, counts: FloatArray, step: Step
    ) -> NoisySums:
        """Return the sums with the counts of cells, before any score."""
        kit = self.kit(space)
        cells = Measurement(step.name, kit.cells, counts, step.standard_deviation)
        simulator = Simulator(space, public, seed=seed_of(counts))
        return NoisySums(space, kit.score, kit.prior, simulator, n, n_variance, (cells,), self.kind == "pure")

    def _with(self, sums: NoisySums, clipping: Clipping, noisy: IntArray, step: Step) -> NoisySums:
        """Return the sums with another round of scores."""
        unit = clipping.unit
        made = Measurement(step.name, clipping, noisy.astype(np.float64) * unit, step.standard_deviation * unit)
        return replace(sums, measurements=(*sums.measurements, made))

    def _first(self, sums: NoisySums) -> Linearised | None:
        """Return the counts near the parameters that fit them best, searched from several starts.

        Where none of the searches ends at parameters that records can be drawn at, others from the prior are taken; if
        there are none either, None.
        """
        space, rng, [counted] = sums.space, np.random.default_rng(0), sums.measurements
        made, public = self.kit(space).cells.draw(counted.noisy, counted.deviation, CLIMBED, rng), sums.simulator.public
        if public:
            rows = rng.integers(len(next(iter(public.values()))), size=CLIMBED)
            made = {name: values[rows] for name, values in public.items()} | made

        def near(place: FloatArray) -> tuple[float, Linearised]:
            here = sums.linearised(place)
            return sums.objective(here), here

        starts = [initial(space.model), np.median(space.prior, axis=0), *space.prior[:STARTS]]
        ends = [attempt(climb, sums, made, start) for start in starts]
        found = [attempt(near, end) for end in ends if end is not None]
        good = sorted((e for e in found if e is not None and np.isfinite(e[0])), key=lambda each: each[0])
        if not good:
            others = (attempt(near, place) for place in [*starts, *space.prior[:: PRIOR_DRAWS // 100]])
            return next((each[1] for each in others if each is not None), None)
        apart = [good[0], *(b for a, b in pairwise(good) if b[0] - a[0] > APART)][:SEARCHED]
        return min((attempt(sums.mode, each.place) or each for _, each in apart), key=sums.objective)

    def _sentences(self, space: Blueprint) -> str:
        """Return what is done, for a disclosure board."""
        noise = "Laplace" if self.kind == "pure" else "Gaussian"
        counted = "altogether and by cells" if self.neighbours == "add-remove" else "by cells"
        often = "once" if self.score_rounds == 1 else f"{self.score_rounds} times"
        parts = [
            f"Records are counted {counted} of each column that the model describes. Then, {often}, the scores of "
            "records (the gradient of the log-likelihood of each by itself) at public parameters are pulled into a "
            f"ball, cut to whole steps and added up. Each number has exact discrete {noise} noise. Everything else, "
            "Markov chains too, is worked out from these noisy numbers and public facts, so that it costs nothing: "
            "neither how well chains mix nor how many sets are drawn weakens the guarantee.",
            f"The model of {', '.join(space.synthesized)} and its priors are public, and were not chosen by looking at "
            "the table.",
        ]
        if self.kind == "zcdp":
            parts.append("Losses are added up as zero-concentrated ones and read at delta.")
        if not space.source.text:
            parts.append(UNRECORDED)
        return " ".join(parts)


def likely(space: Blueprint) -> dict[str, Any]:
    """Return records drawn at parameters from the prior, a few at each, as a table would have them."""
    simulator = Simulator(space, public_stand_ins(space.schema, TRIED), TRIED)
    parts = []
    for place in space.prior[:: PRIOR_DRAWS // 100]:
        try:
            parts.append(simulator(place)[1])
        except ValueError:  # parameters at which nothing can be drawn
            continue
    if not parts:
        parts = [dict(simulator(np.median(space.prior, axis=0))[1])]
    return {name: np.concatenate([part[name] for part in parts]) for name in space.synthesized}


def climb(sums: NoisySums, values: Values, start: FloatArray) -> FloatArray:
    """Return the parameters at which made-up records are most probable, searched from a start."""

    def log_density(place: FloatArray) -> tuple[float, FloatArray]:
        value, slope = sums.score.mean_of_public(place, values)
        value = sums.n_records * value + sums.prior.log_density(place)
        return value, sums.n_records * slope + sums.prior.precision @ (sums.prior.mean - place)

    return most_probable(log_density, start, 150)
