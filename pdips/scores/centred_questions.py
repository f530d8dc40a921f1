"""What is asked of a table whose covariates are confidential: cells, and round by round
sums of centred scores and of their curvature.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior.columns import Values, public_names, record_values
from pdips.posterior.model import Blueprint
from pdips.privacy.curator import Curator, Statistic
from pdips.privacy.loss import Neighbours
from pdips.privacy.plan import Step
from pdips.privacy.sensitivity import Sensitivity, n_changed
from pdips.scores.centred_sums import CentredRound, CentredSums
from pdips.scores.centring import COUNTED, KINDS, Centring, Kind
from pdips.scores.column_cells import COARSE
from pdips.scores.first_search import kit_of
from pdips.scores.inner_points import AtPoints, InnerPoints
from pdips.scores.posterior import attempt, importance_draws
from pdips.scores.pseudo_table import (
    covariate_cells,
    covariates_in,
    made_up_rows,
    n_rows,
)
from pdips.scores.record_score import STEPS, Norm
from pdips.scores.references import (
    CURVED,
    LARGEST_EDGE,
    RoundNoise,
    edge_of,
    expected_beyond,
    first_centring,
    last_radii,
    length_edges,
    next_whitening,
    radius_by_tail,
    usual_curvature,
)

ROUND = "{}, round {}"
NAMES: dict[Kind, str] = {
    "scores": "noisy centred scores",
    "curvature": "noisy curvature",
    "shape": "noisy shape of outcomes",
    "above": "noisy outcomes above their median",
    "squares": "noisy squares of scores",
}
LENGTHS = "noisy lengths of scores"

# Share of the price that the counts of cells have
OF_CELLS = Fraction(9, 100)


@dataclass(frozen=True)
class Shares:
    """Shares of the price of all rounds, and of what is asked in one."""

    of_last: Mapping[int, Fraction]  # by the number of rounds
    first: Mapping[Kind, Fraction]  # in each round but the last
    last: Mapping[Kind, Fraction]


# Gaussian noise on the curvature of 5,000 records and four coefficients adds a
# hundredth to the variance, that on the scores half of it: see `python -m
# benchmarks.score_parts noise` (2026-12-01). The ball of Laplace noise holds all
# numbers of a curvature, so that this is what ends pure releases first
SHARES: Mapping[str, Shares] = {
    "gaussian": Shares(
        of_last={1: Fraction(1), 2: Fraction(4, 5), 3: Fraction(5, 8)},
        first={"scores": Fraction(65, 100), "curvature": Fraction(35, 100)},
        last={
            "scores": Fraction(77, 100),
            "curvature": Fraction(16, 100),
            "squares": Fraction(7, 100),
        },
    ),
    "laplace": Shares(
        of_last={1: Fraction(1), 2: Fraction(3, 4), 3: Fraction(5, 8)},
        first={"scores": Fraction(1, 2), "curvature": Fraction(1, 2)},
        last={
            "scores": Fraction(70, 100),
            "curvature": Fraction(22, 100),
            "squares": Fraction(8, 100),
        },
    ),
}
# Shares of the last round's scores where outcomes are numbers: of their lengths, and
# where there is one of its shape and of how many lie above their median
OF_LENGTHS = Fraction(5, 70)
OF_COUNTED = Fraction(3, 70)

# Products of two semidefinite matrices are not negative, but for what rounding to whole
# steps may take away: see the proof of the curvature's price
ROUNDED = 1 + Fraction(1, 2**10)

# Coefficients and other parameters of a model with confidential covariates
MOST_CENTRED = 62
# Records that a release is rehearsed with
REHEARSED = 5_000
# Records whose numbers are worked out at once
BLOCK = 1_024


@dataclass(frozen=True)
class CentredQuestions:
    """The steps of a release with confidential covariates, each with its price."""

    schema: Schema
    neighbours: Neighbours
    law: Literal["laplace", "gaussian"]
    n_rounds: int
    n_parameters: int
    n_columns: int  # that aren't public
    # whether lengths of scores are asked for, which have no bound where outcomes are
    # numbers
    by_lengths: bool
    # whether the shape of the outcome is: it is one number
    by_shape: bool

    @property
    def norm(self) -> Norm:
        """Of the balls that scores and curvatures are pulled into."""
        return "l1" if self.law == "laplace" else "l2"

    def cells(self, name: str, left: Fraction) -> Step:
        """Return the step that counts cells of all columns that aren't public."""
        return Step(
            name=name,
            sensitivity=Sensitivity.of_counts(
                self.schema, self.neighbours, tables=self.n_columns
            ),
            price=left * OF_CELLS,
            law=self.law,
            counts="each cell",
        )

    def rounds(self, left: Fraction) -> Iterator[Step]:
        """Yield the steps of all rounds: they share what counts of cells leave."""
        left = left * (1 - OF_CELLS)
        shares = SHARES[self.law]
        last = shares.of_last.get(self.n_rounds, shares.of_last[3])
        early = self.n_rounds - 1
        for number in range(1, early + 1):
            share = (1 - last) * Fraction(2 * number, early * (early + 1))
            for kind, part in shares.first.items():
                yield self._sum(kind, number, left * share * part)
        prices = {kind: left * last * part for kind, part in shares.last.items()}
        whole = prices["scores"]
        if self.by_lengths:
            yield self._lengths(whole * OF_LENGTHS)
            prices["scores"] -= whole * OF_LENGTHS
        if self.by_shape:
            for kind in COUNTED:
                prices[kind] = whole * OF_COUNTED
                prices["scores"] -= whole * OF_COUNTED
        for kind in KINDS:
            if kind in prices:
                yield self._sum(kind, self.n_rounds, prices[kind])

    def _sum(self, kind: Kind, number: int, price: Fraction) -> Step:
        return Step(
            name=ROUND.format(NAMES[kind], number),
            sensitivity=self._moved(kind),
            price=price,
            law=self.law,
            counts=f"each sum of {kind}, round {number}, in units of the largest of "
            f"one record",
            unit=1 / STEPS,
        )

    def _moved(self, kind: Kind) -> Sensitivity:
        """Return how far one person moves a sum."""
        if kind in COUNTED:
            # one number between 0 and the largest, whichever record stands there
            return Sensitivity.of_sums(
                self.schema, self.neighbours, STEPS, signed=False, moves=False
            )
        both = n_changed(self.neighbours)
        n_sums = self.n_parameters
        # scores may have opposite signs; curvatures and squares are semidefinite
        squares = Fraction(both * STEPS) ** 2
        if kind != "scores":
            n_sums = n_sums * (n_sums + 1) // 2
            squares = both * Fraction(STEPS) ** 2 * (ROUNDED if both > 1 else 1)
        wide = 1 if self.norm == "l1" else math.isqrt(n_sums - 1) + 1
        return Sensitivity.of_record(
            self.schema, l1=both * wide * STEPS, l2_squared=squares
        )

    def _lengths(self, price: Fraction) -> Step:
        return Step(
            name=ROUND.format(LENGTHS, self.n_rounds),
            sensitivity=Sensitivity.of_counts(self.schema, self.neighbours),
            price=price,
            law=self.law,
            counts="each cell of lengths",
        )

    def check_enough(self, steps: list[Step], n: float) -> None:
        """Refuse a table with too few records for so many parameters: all of it public.

        Raises
        ------
        InputError
            If the noise on the curvature would be louder than the curvature.
        """
        d = self.n_parameters
        edge = self._edge(steps, n)
        if edge <= LARGEST_EDGE:
            return
        more = edge / LARGEST_EDGE
        enough = math.ceil(n * more / 100) * 100
        fewer = "fewer parameters"
        most = self._most_parameters(steps, n)
        if most:
            fewer = f"a model of at most {most} parameters"
        raise InputError(
            f"too few records for {d} parameters beside confidential covariates at "
            f"this epsilon: the noise on the curvature of the likelihood would be "
            f"{edge:.2g} of what records say, and may be {LARGEST_EDGE:g}. It takes "
            f"about {enough:,} records, or {more:.1f} times epsilon, or {fewer}, or "
            f"covariates that are public"
        )

    def _edge(self, steps: Sequence[Step], n: float) -> float:
        """Return the noise on the curvature, as a share of what n records say."""
        d = self.n_parameters
        noise = noise_of(round_steps([*steps], self.n_rounds))
        return edge_of(CURVED * usual_curvature(d, self.norm), d, noise, n)

    def _most_parameters(self, steps: Sequence[Step], n: float) -> int:
        """Return how many parameters n records bear at the price of these steps; 0 if
        they bear none.
        """
        names = {each.name for each in self.rounds(Fraction(1))}
        price = sum((step.price for step in steps if step.name in names), Fraction(0))
        left = price / (1 - OF_CELLS)
        for d in range(self.n_parameters - 1, 0, -1):
            smaller = replace(self, n_parameters=d)
            if smaller._edge([*smaller.rounds(left)], n) <= LARGEST_EDGE:
                return d
        return 0

    def ask(
        self,
        curator: Curator,
        space: Blueprint,
        steps: list[Step],
        number: tuple[float, float],
        public: Values,
    ) -> CentredSums:
        """Ask for counts of cells and all rounds, each at the parameters that the
        answers before make most probable; ``number`` is that of records, and the
        variance of its noise.
        """
        counted, *rest = steps
        cells = kit_of(space).cells
        with curator.timed("counting cells"):
            counts = _asked(curator, counted, cells.count).astype(np.float64)
        opened = self.opened(space, counts, counted, number, public)
        return asked_rounds(curator, opened, rest, self.n_rounds, self.norm)

    def opened(
        self,
        space: Blueprint,
        counts: FloatArray,
        step: Step,
        number: tuple[float, float],
        public: Values,
    ) -> CentredSums:
        """Return the sums with the counts of cells, before any score."""
        return opened_sums(
            space,
            counts,
            step.standard_deviation,
            number,
            public,
            laplace=self.law == "laplace",
            step=step.name,
        )


def opened_sums(
    space: Blueprint,
    counts: FloatArray,
    deviation: float,
    number: tuple[float, float],
    public: Values,
    *,
    laplace: bool,
    step: str,
) -> CentredSums:
    """Return the sums with the counts of cells, before any score; ``number`` is that of
    records, and the variance of its noise.
    """
    kit = kit_of(space)
    points = points_of(space)
    known = {name: public[name] for name in public_names(space.schema)}
    rows = made_up_rows(
        covariate_cells(space, kit.cells),
        counts[covariates_in(space, kit.cells)],
        deviation,
        known,
        n_rows(points.n),
    )
    return CentredSums(
        space=space,
        points=points,
        prior=kit.prior,
        rows=rows,
        n_records=number[0],
        n_variance=number[1],
        cells=kit.cells,
        counts=counts,
        counts_deviation=deviation,
        counts_step=step,
        laplace=laplace,
    )


def points_of(space: Blueprint) -> InnerPoints:
    """Return the points of a model's outcomes, made once for each blueprint."""
    made: InnerPoints = space.tried.once("inner points", lambda: InnerPoints.of(space))
    return made


def rehearse_centred(
    space: Blueprint, asked: CentredQuestions, steps: list[Step], public: Values
) -> None:
    """Go through a release of made-up records."""
    kit = kit_of(space)
    counts = np.full(sum(kit.cells.sizes), REHEARSED / COARSE)
    number = (float(REHEARSED), 0.0)
    sums = asked.opened(space, counts, steps[0], number, public)
    norm = asked.norm
    for round_number in range(1, asked.n_rounds + 1):
        asked_now = round_steps(steps, round_number)
        if sums.rounds:
            is_last = round_number == asked.n_rounds
            at = next_whitening(sums, norm, is_last=is_last)
            at = last_radii(sums, at, noise_of(asked_now), None)
        else:
            at = first_centring(sums, norm)
        points, _ = sums.at_rows(at)
        total = at.of(points).total()
        measured = answered(at, asked_now, total)
        sums = sums.with_rounds([measured])
    here = sums.linearised(sums.last_reference)
    rng = np.random.default_rng(0)
    importance_draws(sums, here, rng, 10, tried=100, attempts=1)


def round_steps(steps: list[Step], number: int) -> dict[Kind, Step]:
    """Return the steps of a round by what they sum."""
    by_name = {step.name: step for step in steps}
    names = {kind: ROUND.format(NAMES[kind], number) for kind in KINDS}
    return {kind: by_name[name] for kind, name in names.items() if name in by_name}


def noise_of(steps: dict[Kind, Step]) -> RoundNoise:
    """Return the noise of a round in units of the largest that a record adds."""
    return RoundNoise(
        steps["scores"].standard_deviation / STEPS,
        steps["curvature"].standard_deviation / STEPS,
    )


@dataclass(eq=False)
class RoundTotals:
    """The exact sums of one round, worked out in one pass over the table and held in
    memory until all of them were asked for.
    """

    points: InnerPoints
    centring: Centring
    expected: float  # public or noisy number of records
    # the table that was counted last, with its sums
    _held: tuple[Table, dict[Kind, IntArray]] | None = None

    def __repr__(self) -> str:
        return "RoundTotals()"  # what it holds is confidential

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_held": None}

    def of(self, table: Table, kind: Kind) -> IntArray:
        """Return the sums of a kind over the records of a table, in whole steps."""
        held = self._held
        if held is None or held[0] is not table:
            held = (table, self._sums(table))
            self._held = held
        if kind == KINDS[-1]:
            self._held = None
        return held[1][kind]

    def _sums(self, table: Table) -> dict[Kind, IntArray]:
        d = len(self.centring.place)
        pairs = d * (d + 1) // 2
        sizes: dict[Kind, int] = {
            "scores": d,
            "curvature": pairs,
            "shape": 1,
            "above": 1,
            "squares": pairs,
        }
        totals: dict[Kind, IntArray] = {
            kind: np.zeros(size, dtype=np.int64) for kind, size in sizes.items()
        }
        for at in blocks_of(self.points, self.centring, table, self.expected):
            for kind, total in self.centring.of(at).total().items():
                totals[kind] += total
        return totals


def blocks_of(
    points: InnerPoints, centring: Centring, table: Table, expected: float
) -> Iterator[AtPoints]:
    """Yield what is known of a table's records at some parameters, block by block."""
    space = points.law.space
    values = space.beside(record_values(table))
    points.given(centring.place)
    n_records = table.n_records
    for start in range(0, n_records, BLOCK):
        block = {name: each[start : start + BLOCK] for name, each in values.items()}
        yield points.split(points.matrices(block, expected))


def counted_lengths(
    points: InnerPoints,
    centring: Centring,
    edges: FloatArray,
    expected: float,
    table: Table,
) -> IntArray:
    """Return how many records have whitened scores of each length."""
    counts = np.zeros(len(edges), dtype=np.int64)
    for at in blocks_of(points, centring, table, expected):
        lengths = centring.own_lengths(at)
        cells = np.searchsorted(edges, lengths, side="right")
        counts += np.bincount(cells, minlength=len(edges) + 1)[1:]
    return counts


def asked_rounds(
    curator: Curator, opened: CentredSums, steps: list[Step], n_rounds: int, norm: Norm
) -> CentredSums:
    """Ask for all rounds, each at the parameters that the answers before make most
    probable.
    """
    sums = opened
    for number in range(1, n_rounds + 1):
        is_last = number == n_rounds
        named = f"adding up scores, round {number} of {n_rounds}"
        with curator.timed(named):
            asked = round_steps(steps, number)
            at = _kept(curator, sums, norm, is_last=is_last)
            if at is None:
                break
            if is_last:
                at = _with_radii(curator, sums, at, steps, asked)
            elif sums.rounds:
                at = last_radii(sums, at, noise_of(asked), None)
            # radii, which another machine might round otherwise, are kept with answers
            at = Centring.read(curator.keep(at.arrays), norm)
            totals = RoundTotals(sums.points, at, sums.n_records)
            answers = {
                kind: _asked(curator, step, _of_kind(totals, kind))
                for kind, step in asked.items()
            }
            sums = sums.with_rounds([answered(at, asked, answers)])
    return sums


def answered(
    at: Centring, steps: Mapping[Kind, Step], answers: Mapping[Kind, IntArray]
) -> CentredRound:
    """Return a round by its answers in whole steps."""
    noisy = dict[Kind, FloatArray]()
    deviations = dict[Kind, float]()
    for kind, step in steps.items():
        unit = at.unit(kind)
        noisy[kind] = answers[kind].astype(np.float64) * unit
        deviations[kind] = step.standard_deviation * unit
    return CentredRound(at, noisy, deviations)


def _kept(
    curator: Curator, sums: CentredSums, norm: Norm, *, is_last: bool
) -> Centring | None:
    """Return where scores are taken next, None where nothing can be worked out: after
    the charge no release may fail. A release that is resumed asks there too.
    """

    def make() -> dict[str, FloatArray]:
        found = attempt(_next_centring, sums, norm, is_last=is_last)
        return {} if found is None else found.arrays()

    kept = curator.keep(make)
    return Centring.read(kept, norm) if kept else None


def _next_centring(sums: CentredSums, norm: Norm, *, is_last: bool) -> Centring:
    if not sums.rounds:
        return first_centring(sums, norm)
    return next_whitening(sums, norm, is_last=is_last)


def _with_radii(
    curator: Curator,
    sums: CentredSums,
    at: Centring,
    steps: list[Step],
    asked: dict[Kind, Step],
) -> Centring:
    tail = None
    lengths = [step for step in steps if step.name.startswith(LENGTHS)]
    if lengths:
        [step] = lengths
        edges = length_edges(len(at.place), at.norm)

        def counted(table: Table) -> IntArray:
            return counted_lengths(sums.points, at, edges, sums.n_records, table)

        noisy = _asked(curator, step, counted)
        deviation = step.standard_deviation
        expected = expected_beyond(sums, at, edges)
        tail = radius_by_tail(
            noisy.astype(float), deviation, edges, expected, sums.n_records
        )
    return last_radii(sums, at, noise_of(asked), tail)


def _of_kind(totals: RoundTotals, kind: Kind) -> Statistic:
    return lambda table: totals.of(table, kind)


def _asked(curator: Curator, step: Step, statistic: Statistic) -> IntArray:
    """Return the noisy numbers of a step; later questions depend on them, and audits
    follow them.
    """
    return curator.decide(curator.count(step, statistic), lambda numbers: numbers)
