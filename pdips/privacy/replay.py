"""What audits see of a mechanism: many independent runs, or its exact law, by running its own ``synthesize``.

A run is followed along a path of answers that are known, to the first that isn't. There it forks, by what the runs drew
or into all that could be drawn; it ends with the last question of a round, before any post-processing.
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
from pdips.privacy.curator import Curator, Distribution, Rule, ScoresGiven, Statistic, noisy_counts
from pdips.privacy.noise import RandomBits, choice_log_probabilities, exponential_mechanism
from pdips.privacy.plan import Plan, Step

MOST_AT_ONCE = 2_000_000  # Scores that are held at a time where many runs choose
MOST_OUTCOMES = 100_000  # Ways to choose that an exact law enumerates at one step


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One outcome of a mechanism's exact law: discrete choices with their probability, and statistics to be noised.

    Outcomes of two tables with the same key are the same outcome. ``scales`` are those of the independent discrete
    Laplace noise on each statistic; 0 for statistics released as they are.
    """

    key: tuple[int, ...]  # what was chosen
    log_probability: float
    statistics: tuple[int, ...] = ()  # true ones, given the choices
    scales: tuple[Fraction, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExactLaw:
    """The exact law of a mechanism on a tiny table: the outcomes of one of ``repeats`` independent equal rounds."""

    outcomes: Sequence[Outcome]
    repeats: int = 1


class _Paused(BaseException):
    """A run of a mechanism has come as far as it is followed."""


class _Following(Curator):
    """Follows a mechanism along a path of known answers, which are given again without a look at the table."""

    def __init__(self, plan: Plan, table: Table, path: "_Path") -> None:
        super().__init__(plan, table)
        self.path, self._known = path, iter(list(path.answers))

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
    """A path that some of the runs take: which, and the numbers that each of them saw, step by step."""

    runs: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    blocks: list[IntArray] = field(default_factory=list)
    forks: list["_RunsPath"] = field(default_factory=list)

    def fork(self, rows: NDArray[Any], answers: NDArray[Any] | None = None) -> None:
        """Divide the runs by what they drew; ``answers`` in place of the rows themselves."""
        told = rows if answers is None else answers
        patterns, which = np.unique(told, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            here = which.ravel() == number
            blocks = [block[here] for block in self.blocks]
            self.forks.append(_RunsPath([*self.answers, pattern], False, self.runs[here], blocks))


class Recording(_Following):
    """Notes, for audits, what many independent runs would show.

    Runs that have drawn alike so far read the table once together; what they draw is exact and independent.
    """

    path: _RunsPath

    def __init__(self, plan: Plan, table: Table, bits: RandomBits, path: _RunsPath) -> None:
        super().__init__(plan, table, path)
        self._bits, self._answers = bits, list[IntArray | None]()

    def _count(self, step: Step, statistic: Statistic, possible: BoolArray | None) -> IntArray:
        known = self._next()
        if known is None:
            self.path.blocks.append(
                noisy_counts(statistic(self._table), possible, step, self._bits, len(self.path.runs))
            )
            known = self.path.blocks[-1][0]
            self.path.answers.append(known)
        self._answers.append(known)
        return np.asarray(self._at_end(known))

    def _choose(self, step: Step, scores: Statistic) -> IntArray:
        def drawn() -> IntArray:
            found, n_runs = scores(self._table), len(self.path.runs)
            rows = max(MOST_AT_ONCE // found.size, 1)
            parts = [min(rows, n_runs - start) for start in range(0, n_runs, rows)]
            chosen = [exponential_mechanism(np.tile(found, (n, 1)), 1 / step.scale, self._bits) for n in parts]
            return np.concatenate(chosen).reshape(n_runs, len(found))

        return np.asarray(self._divided(drawn))

    def _choose_given(self, step: Step, noisy: IntArray, scores: ScoresGiven) -> int:
        def drawn() -> IntArray:  # each run by the numbers that it saw itself
            block = next(self.path.blocks[k] for k, known in enumerate(self._answers) if known is noisy)
            return exponential_mechanism(scores(self._table, block), 1 / step.scale, self._bits)[:, None]

        return int(self._divided(drawn)[0])

    def _draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any:
        return self._divided(lambda: np.asarray(distribution(self._table).draw(self._bits, len(self.path.runs))))

    def decide(self, noisy: IntArray, rule: Rule) -> NDArray[Any]:
        """Divide the runs by what follows from the numbers of their last answer."""
        known = self._next()
        if known is None:
            self.path.fork(np.asarray(rule(self.path.blocks[-1])))
            raise _Paused
        return np.asarray(known)

    def _divided(self, drawn: Callable[[], NDArray[Any]]) -> Any:
        known = self._next()
        self._answers.append(None)
        if known is not None:
            return self._at_end(known)
        rows = drawn()
        self.path.blocks.append(rows)
        if not self._round:
            self.path.fork(rows)
        raise _Paused


@dataclass
class _LawPath(_Path):
    """A path through all choices: their probability, the true statistics and the scales of their noise."""

    key: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    statistics: list[int] = field(default_factory=list)
    scales: list[Fraction] = field(default_factory=list)
    forks: list["_LawPath"] = field(default_factory=list)

    def fork(self, key: Sequence[int], log_probability: float, *, finished: bool) -> None:
        """Add a way to go on."""
        answers = [*self.answers, np.array(key, dtype=np.int64)]
        whole = [*self.key, *map(int, key)], self.log_probability + log_probability
        self.forks.append(_LawPath(answers, finished, *whole, list(self.statistics), list(self.scales)))


class Enumerating(_Following):
    """Spells out the exact law of a mechanism on a tiny table."""

    path: _LawPath

    def _count(self, step: Step, statistic: Statistic, possible: BoolArray | None) -> IntArray:
        known = self._next()
        if known is None:
            if step.law != "laplace":
                raise InputError("engine 'exact' is for pure losses; use 'counts', which allows for delta")
            known = np.where(True if possible is None else possible, statistic(self._table), 0)
            self.path.statistics += known.tolist()
            noised = [True] * len(known) if possible is None else possible
            image = step.image
            weights = [1] * len(known) if image is None else image.weights.tolist()
            scales = [step.scale if image is None else image.scale(step, weight) for weight in weights]
            self.path.scales += [s if each else Fraction(0) for s, each in zip(scales, noised, strict=True)]
            known = known if image is None else image.show(known[None])[0]
            self.path.answers.append(known)
        return np.asarray(self._at_end(known))

    def _choose(self, step: Step, scores: Statistic) -> IntArray:
        known = self._next()
        if known is not None:
            return np.asarray(self._at_end(known))
        log_each = choice_log_probabilities(scores(self._table), 1 / step.scale)
        candidates = [np.flatnonzero(np.isfinite(row)) for row in log_each]
        if math.prod(map(len, candidates)) > MOST_OUTCOMES:
            raise InputError("too many ways to choose: take fewer layers, columns or levels for an exact audit")
        for chosen in product(*candidates):
            log_probability = float(sum(row[k] for row, k in zip(log_each, chosen, strict=True)))
            self.path.fork([int(k) for k in chosen], log_probability, finished=bool(self._round))
        raise _Paused

    def _draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any:
        known = self._next()
        if known is not None:
            return self._at_end(known)
        for key, log_probability in distribution(self._table).log_probabilities().items():
            self.path.fork(key, log_probability, finished=bool(self._round))
        raise _Paused

    def decide(self, noisy: IntArray, rule: Rule) -> NDArray[Any]:
        """Refuse: what follows from noise has no finite law."""
        raise InputError("choices that depend on noisy counts have no law that could be enumerated: leave stop out")

    def _choose_given(self, step: Step, noisy: IntArray, scores: ScoresGiven) -> int:
        raise InputError("choices that depend on noisy counts have no law that could be enumerated: leave chosen out")


class Synthesizer(Protocol):
    """The part of a mechanism that asks a curator."""

    def plan(self, schema: Any) -> Plan: ...
    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Any: ...


def record(mechanism: Synthesizer, table: Table, n_runs: int, bits: RandomBits) -> list[IntArray]:
    """Return what independent runs of a mechanism show before post-processing: an array (runs, numbers) an answer.

    Where runs chose differently and saw vectors of different length, the shorter ones are filled up with -1.
    """
    plan, blocks = mechanism.plan(table.schema), []
    for _ in range(plan.repeats):
        pending = [_RunsPath(runs=np.arange(n_runs))]
        found: list[_RunsPath] = []
        while pending:
            path = pending.pop()
            _follow(mechanism, plan, Recording(plan, table, bits, path))
            pending += path.forks
            found += [] if path.forks else [path]
        blocks += _side_by_side(found, n_runs)
    return blocks


def exact_law(mechanism: Synthesizer, table: Table) -> ExactLaw:
    """Return the exact law of a mechanism on a tiny table."""
    plan = mechanism.plan(table.schema)
    pending, outcomes = [_LawPath()], []
    while pending:
        path = pending.pop()
        if not path.finished:
            _follow(mechanism, plan, Enumerating(plan, table, path))
            pending += path.forks
        if path.finished or not path.forks:
            outcomes.append(
                Outcome(
                    key=tuple(path.key),
                    log_probability=path.log_probability,
                    statistics=tuple(path.statistics),
                    scales=tuple(path.scales),
                )
            )
    return ExactLaw(outcomes=outcomes, repeats=plan.repeats)


def _follow(mechanism: Synthesizer, plan: Plan, curator: _Following) -> None:
    """Run a mechanism until its path forks or its first round has been asked."""
    try:
        mechanism.synthesize(plan, curator, np.random.default_rng(0))
    except _Paused:
        return
    raise PlanError(f"{plan.mechanism} doesn't ask all that its plan prices")


def _side_by_side(paths: Sequence[_RunsPath], n_runs: int) -> list[IntArray]:
    """Return the numbers of all runs, answer by answer."""
    n_answers = max(len(path.blocks) for path in paths)
    found = []
    for number in range(n_answers):
        here = [path for path in paths if number < len(path.blocks)]
        width = max(path.blocks[number].shape[1] for path in here)
        block = np.full((n_runs, width), -1, dtype=np.result_type(*(path.blocks[number] for path in here)))
        for path in here:
            block[path.runs, : path.blocks[number].shape[1]] = path.blocks[number]
        found.append(block)
    return found


def joined(*recorded: Sequence[IntArray]) -> list[NDArray[Any]]:
    """Return recorded answers of several tables as rows of as many numbers, the same answer in the same columns."""
    widths = [max(blocks[i].shape[1] for blocks in recorded) for i in range(len(recorded[0]))]
    return [
        np.concatenate(
            [
                np.pad(block, ((0, 0), (0, width - block.shape[1])), constant_values=-1)
                for block, width in zip(blocks, widths, strict=True)
            ],
            axis=1,
        )
        for blocks in recorded
    ]
