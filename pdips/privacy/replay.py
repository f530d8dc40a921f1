"""What audits see of a mechanism: many independent runs, or its exact law, by running
its own ``ask``.

A run is followed along a path of answers that are known, to the first that isn't. There
it forks, by what the runs drew or into all that could be drawn; it ends with the last
question of a round, before any post-processing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, IntArray
from pdips.data.table import Table
from pdips.errors import InputError, PlanError
from pdips.privacy.curator import (
    Curator,
    Distribution,
    Rule,
    ScoresGiven,
    Statistic,
    noisy_counts,
)
from pdips.privacy.noise import (
    RandomBits,
    choice_log_probabilities,
    exponential_mechanism,
)
from pdips.privacy.plan import Plan, Step

MOST_AT_ONCE = 2_000_000  # Scores that are held at a time where many runs choose
MOST_OUTCOMES = 100_000  # Ways to choose that an exact law enumerates at one step


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One outcome of a mechanism's exact law: discrete choices with their probability,
    and statistics to be noised.

    Outcomes of two tables with the same key are the same outcome. ``scales`` are those
    of the independent discrete Laplace noise on each statistic; 0 for statistics
    released as they are.
    """

    key: tuple[int, ...]  # what was chosen
    log_probability: float
    statistics: tuple[int, ...] = ()  # true ones, given the choices
    scales: tuple[Fraction, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExactLaw:
    """The exact law of a mechanism on a tiny table: the outcomes of one of ``repeats``
    independent equal rounds.
    """

    outcomes: Sequence[Outcome]
    repeats: int = 1


class _Paused(BaseException):
    """A run of a mechanism has come as far as it is followed."""


class _Following(Curator):
    """Follows a mechanism along a path of known answers, which are given again without
    a look at the table.
    """

    def __init__(self, plan: Plan, table: Table, path: "_Path") -> None:
        super().__init__(plan, table)
        self.path = path
        self._known = iter(list(path.answers))

    def _next(self) -> Any | None:
        """Return the next answer on the path, or None where it ends."""
        return next(self._known, None)

    def _at_end(self, answer: Any) -> Any:
        if self._round:
            raise _Paused
        return answer


@dataclass
class _Path:
    """The answers so far, and what has been noted of them."""

    answers: list[Any] = field(default_factory=list)
    finished: bool = False


@dataclass
class _RunsPath(_Path):
    """A path that some of the runs take: which, and the numbers that each of them saw,
    step by step.
    """

    runs: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    blocks: list[IntArray] = field(default_factory=list)
    forks: list["_RunsPath"] = field(default_factory=list)

    def fork(self, rows: NDArray[Any], answers: NDArray[Any] | None = None) -> None:
        """Divide the runs by what they drew; ``answers`` in place of the rows
        themselves.
        """
        drawn = rows if answers is None else answers
        patterns, which = np.unique(drawn, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            here = which.ravel() == number
            fork = _RunsPath(
                [*self.answers, pattern],
                runs=self.runs[here],
                blocks=[block[here] for block in self.blocks],
            )
            self.forks.append(fork)


class Recording(_Following):
    """Notes, for audits, what many independent runs would show.

    Runs that have drawn alike so far read the table once together; what they draw is
    exact and independent.
    """

    path: _RunsPath

    def __init__(
        self, plan: Plan, table: Table, bits: RandomBits, path: _RunsPath
    ) -> None:
        super().__init__(plan, table, path)
        self._bits = bits
        self._answers = list[IntArray | None]()

    def _count(
        self, step: Step, statistic: Statistic, possible: BoolArray | None
    ) -> IntArray:
        answer = self._next()
        if answer is None:
            counts = statistic(self._table)
            n_runs = len(self.path.runs)
            block = noisy_counts(counts, possible, step, self._bits, n_runs)
            self.path.blocks.append(block)
            answer = block[0]
            self.path.answers.append(answer)
        self._answers.append(answer)
        return np.asarray(self._at_end(answer))

    def _choose(self, step: Step, scores: Statistic) -> IntArray:
        def drawn() -> IntArray:
            rows = scores(self._table)
            n_runs = len(self.path.runs)
            at_once = max(MOST_AT_ONCE // rows.size, 1)
            chosen = []
            for start in range(0, n_runs, at_once):
                of_runs = np.tile(rows, (min(at_once, n_runs - start), 1))
                unit = 1 / step.scale
                chosen.append(exponential_mechanism(of_runs, unit, self._bits))
            return np.concatenate(chosen).reshape(n_runs, len(rows))

        return np.asarray(self._divided(drawn))

    def _choose_given(self, step: Step, noisy: IntArray, scores: ScoresGiven) -> int:
        def drawn() -> IntArray:
            pairs = zip(self._answers, self.path.blocks, strict=False)
            [block] = [block for answer, block in pairs if answer is noisy]
            # each run by the numbers that it saw itself
            of_runs = scores(self._table, block)
            chosen = exponential_mechanism(of_runs, 1 / step.scale, self._bits)
            return chosen[:, None]

        return int(self._divided(drawn)[0])

    def _draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any:
        def drawn() -> NDArray[Any]:
            law = distribution(self._table)
            return np.asarray(law.draw(self._bits, len(self.path.runs)))

        return self._divided(drawn)

    def _decide(self, noisy: IntArray, rule: Rule) -> NDArray[Any]:
        """Divide the runs by what follows from the numbers of their last answer."""
        answer = self._next()
        if answer is None:
            self.path.fork(np.asarray(rule(self.path.blocks[-1])))
            raise _Paused
        return np.asarray(answer)

    def _divided(self, drawn: Callable[[], NDArray[Any]]) -> Any:
        answer = self._next()
        self._answers.append(None)
        if answer is not None:
            return self._at_end(answer)
        rows = drawn()
        self.path.blocks.append(rows)
        if not self._round:
            self.path.fork(rows)
        raise _Paused


@dataclass
class _LawPath(_Path):
    """A path through all choices: their probability, the true statistics and the scales
    of their noise.
    """

    key: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    statistics: list[int] = field(default_factory=list)
    scales: list[Fraction] = field(default_factory=list)
    forks: list["_LawPath"] = field(default_factory=list)

    def fork(
        self, key: Sequence[int], log_probability: float, *, finished: bool
    ) -> None:
        """Add a way to go on."""
        fork = _LawPath(
            [*self.answers, np.array(key, dtype=np.int64)],
            finished,
            key=[*self.key, *map(int, key)],
            log_probability=self.log_probability + log_probability,
            statistics=[*self.statistics],
            scales=[*self.scales],
        )
        self.forks.append(fork)


class Enumerating(_Following):
    """Spells out the exact law of a mechanism on a tiny table."""

    path: _LawPath

    def _count(
        self, step: Step, statistic: Statistic, possible: BoolArray | None
    ) -> IntArray:
        answer = self._next()
        if answer is None:
            if step.law != "laplace":
                raise InputError(
                    "engine 'exact' is for pure losses; use 'counts', "
                    "which allows for delta"
                )
            exact = np.asarray(statistic(self._table))
            has_noise = np.ones(len(exact), dtype=np.bool_)
            if possible is not None:
                has_noise = possible
            answer = np.where(has_noise, exact, 0)
            image = step.image
            scales = [step.scale] * len(exact)
            if image is not None:
                scales = [image.scale(step, w) for w in image.weights.tolist()]
            self.path.statistics += answer.tolist()
            for scale, is_noisy in zip(scales, has_noise, strict=True):
                self.path.scales.append(scale if is_noisy else Fraction(0))
            if image is not None:
                answer = image.show(answer[None])[0]
            self.path.answers.append(answer)
        return np.asarray(self._at_end(answer))

    def _choose(self, step: Step, scores: Statistic) -> IntArray:
        answer = self._next()
        if answer is not None:
            return np.asarray(self._at_end(answer))
        log_each = choice_log_probabilities(scores(self._table), 1 / step.scale)
        candidates = [np.flatnonzero(np.isfinite(row)) for row in log_each]
        if math.prod(map(len, candidates)) > MOST_OUTCOMES:
            raise InputError(
                "too many ways to choose: take fewer layers, columns or "
                "levels for an exact audit"
            )
        for chosen in product(*candidates):
            logs = [row[k] for row, k in zip(log_each, chosen, strict=True)]
            key = [int(k) for k in chosen]
            self.path.fork(key, float(sum(logs)), finished=bool(self._round))
        raise _Paused

    def _draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any:
        answer = self._next()
        if answer is not None:
            return self._at_end(answer)
        law = distribution(self._table).log_probabilities()
        for key, log_probability in law.items():
            self.path.fork(key, log_probability, finished=bool(self._round))
        raise _Paused

    def _decide(self, noisy: IntArray, rule: Rule) -> NDArray[Any]:
        """Refuse: what follows from noise has no finite law."""
        raise InputError(
            "choices that depend on noisy counts have no law that could "
            "be enumerated: leave stop out"
        )

    def _choose_given(self, step: Step, noisy: IntArray, scores: ScoresGiven) -> int:
        raise InputError(
            "choices that depend on noisy counts have no law that could "
            "be enumerated: leave chosen out"
        )


class Asking(Protocol):
    """The part of a mechanism that asks a curator."""

    def plan(self, schema: Any) -> Plan: ...
    def ask(self, plan: Plan, curator: Curator) -> Any: ...


def record(
    mechanism: Asking, table: Table, n_runs: int, bits: RandomBits
) -> list[IntArray]:
    """Return what independent runs of a mechanism show before post-processing: an array
    (runs, numbers) an answer.

    Where runs chose differently and saw vectors of different length, the shorter ones
    are filled up with -1.
    """
    plan = mechanism.plan(table.schema)
    blocks = []
    for _ in range(plan.repeats):
        pending = [_RunsPath(runs=np.arange(n_runs))]
        ended: list[_RunsPath] = []
        while pending:
            path = pending.pop()
            _follow(mechanism, plan, Recording(plan, table, bits, path))
            pending += path.forks
            if not path.forks:
                ended.append(path)
        blocks += _side_by_side(ended, n_runs)
    return blocks


def exact_law(mechanism: Asking, table: Table) -> ExactLaw:
    """Return the exact law of a mechanism on a tiny table."""
    plan = mechanism.plan(table.schema)
    pending = [_LawPath()]
    outcomes = []
    while pending:
        path = pending.pop()
        if not path.finished:
            _follow(mechanism, plan, Enumerating(plan, table, path))
            pending += path.forks
        if path.finished or not path.forks:
            outcome = Outcome(
                key=tuple(path.key),
                log_probability=path.log_probability,
                statistics=tuple(path.statistics),
                scales=tuple(path.scales),
            )
            outcomes.append(outcome)
    return ExactLaw(outcomes=outcomes, repeats=plan.repeats)


def _follow(mechanism: Asking, plan: Plan, curator: _Following) -> None:
    """Run a mechanism until its path forks or its first round has been asked."""
    try:
        mechanism.ask(plan, curator)
    except _Paused:
        return
    raise PlanError(f"{plan.mechanism} doesn't ask all that its plan prices")


def _side_by_side(paths: Sequence[_RunsPath], n_runs: int) -> list[IntArray]:
    """Return the numbers of all runs, answer by answer."""
    n_answers = max(len(path.blocks) for path in paths)
    answers = []
    for number in range(n_answers):
        having = [path for path in paths if number < len(path.blocks)]
        blocks = [path.blocks[number] for path in having]
        width = max(block.shape[1] for block in blocks)
        answer = np.full((n_runs, width), -1, dtype=np.result_type(*blocks))
        for path, block in zip(having, blocks, strict=True):
            answer[path.runs, : block.shape[1]] = block
        answers.append(answer)
    return answers


def joined(*recorded: Sequence[IntArray]) -> list[NDArray[Any]]:
    """Return recorded answers of several tables as rows of as many numbers, the same
    answer in the same columns.
    """
    widths = [
        max(block.shape[1] for block in answer)
        for answer in zip(*recorded, strict=False)
    ]
    rows = []
    for blocks in recorded:
        filled = [_filled(*pair) for pair in zip(blocks, widths, strict=True)]
        rows.append(np.concatenate(filled, axis=1))
    return rows


def _filled(block: IntArray, width: int) -> IntArray:
    """Return rows filled up with -1 to a width."""
    missing = width - block.shape[1]
    return np.pad(block, ((0, 0), (0, missing)), constant_values=-1)
