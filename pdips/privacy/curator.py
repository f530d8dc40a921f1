"""Curators: the only access to a confidential table. They answer the steps of a plan, in order, and nothing else."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, IntArray
from pdips.data.table import Table
from pdips.errors import PlanError
from pdips.privacy.noise import RandomBits, discrete_gaussian, discrete_laplace, exponential_mechanism
from pdips.privacy.plan import AnswerLaw, Plan, Step

Progress = Callable[[str], None]
Statistic = Callable[[Table], IntArray]
"""Whole numbers of a table, shape (numbers,); for a choice its scores, shape (choices, candidates)."""

ScoresGiven = Callable[[Table, IntArray], IntArray]
"""Scores of a choice that depend on noisy numbers, shape (..., numbers), too: shape (..., candidates), row by row."""

Rule = Callable[[IntArray], NDArray[Any]]
"""What follows from noisy numbers, shape (..., numbers): a decision of shape (..., decisions), row by row."""


class Distribution(Protocol):
    """A distribution over whole numbers, or over whatever a mechanism draws."""

    def draw(self, bits: RandomBits, runs: int = 1) -> Any:
        """Return independent draws, one a row: shape (runs, numbers)."""
        ...

    def log_probabilities(self) -> Mapping[tuple[int, ...], float]:
        """Return the log probability of every draw, for tiny tables."""
        ...


TELL: ContextVar[Progress | None] = ContextVar("TELL", default=None)
"""Whoever watches the step that is running, for work that doesn't see its clock: compilation, chains."""


COMPILING = "compiling the model; the first time this takes a minute"


def tell(message: str) -> None:
    """Report the progress of the running step to an observer, if any."""
    watcher = TELL.get()
    if watcher is not None:
        watcher(message)


class Clock:
    """Wall time by step, reported to an observer."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.progress = progress

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step."""
        if self.progress is not None:
            self.progress(name)
        start, token = time.perf_counter(), TELL.set(self.progress)
        try:
            yield
        finally:
            TELL.reset(token)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


class Curator(ABC):
    """Holds a table and answers the steps of a plan.

    A step that isn't the next one, or that has been asked as often as the plan says, raises :class:`PlanError` before
    the table is read. :class:`Drawing` answers a release; ``Recording`` and ``Enumerating`` (``replay.py``) tell audits
    what many independent runs would show, and the exact law on a tiny table.
    """

    def __init__(self, plan: Plan, table: Table) -> None:
        self._plan, self._table = plan, table
        self._place = self._asked = self._round = self._stratum = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._plan.mechanism}>"

    @property
    def n_public(self) -> bool:
        """Whether the number of records is public."""
        return self._plan.n_public

    @property
    def n_records(self) -> int:
        """The number of records, where the neighbours make it public."""
        if not self._plan.n_public:
            raise PlanError("the number of records is protected under add-remove")
        return self._table.n_records

    @cached_property
    def public(self) -> Table:
        """The table's public columns alone; its number of records is public too."""
        if not self._plan.n_public:
            raise PlanError("public columns show the number of records, which is protected under add-remove")
        return self._table.public_part()

    @property
    def finished(self) -> bool:
        """Whether all that the plan priced has been asked."""
        return self._round == self._plan.repeats

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time a part of the work under this name."""
        yield

    def count(
        self, step: Step, statistic: Statistic, possible: BoolArray | None = None, *, units: int | Fraction = 1
    ) -> IntArray:
        """Return whole numbers of the table, shape (numbers,), with the noise of the step's price.

        Parameters
        ----------
        step : Step
            With law ``"laplace"`` or ``"gaussian"``.
        statistic : callable
            Takes the table; returns the exact numbers. One person moves them by the step's sensitivity at most.
        possible : ndarray of bool, shape (numbers,), optional
            Which numbers can differ from 0; the others are 0 and have no noise. Public.
        units : int or Fraction
            The statistic's sensitivity in units of the step's, where it follows from public facts that no plan knows:
            the number of records, or earlier answers.
        """
        self._take(step, "laplace", "gaussian")
        return self._count(step.enlarged(units), statistic, possible)

    def choose(self, step: Step, scores: Statistic, *, units: int | Fraction = 1) -> IntArray:
        """Return one candidate for each row of scores, by exponential mechanisms, shape (choices,).

        ``scores`` takes the table and returns whole steps, shape (choices, candidates); the smallest int64 marks a
        candidate that isn't available. The step's sensitivity is that of all rows together; ``units`` as in
        :meth:`count`.
        """
        self._take(step, "exponential")
        return self._choose(step.enlarged(units), scores)

    def choose_given(self, step: Step, noisy: IntArray, scores: ScoresGiven) -> int:
        """Return one candidate by the exponential mechanism, whose scores depend on an earlier answer, ``noisy``.

        ``scores`` takes the table and that answer, shape (..., numbers), and returns whole steps, shape (...,
        candidates), as in :meth:`choose`. For any given answer one person moves two scores apart by the step's
        sensitivity at most.
        """
        self._take(step, "exponential")
        return self._choose_given(step, noisy, scores)

    def draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any:
        """Return a draw from a distribution that depends on the table.

        The log ratio of its densities for neighbouring tables is bounded by the step's price, as the law says.
        """
        self._take(step, "bounded-range", "distribution")
        return self._draw(step, distribution)

    def decide(self, noisy: IntArray, rule: Rule) -> NDArray[Any]:
        """Return what follows from the noisy numbers of the last answer, where later questions depend on it.

        Choices that go on to steer questions must pass through here, so that audits can follow them.
        """
        found: NDArray[Any] = rule(noisy)
        return found

    def coins(self, n: int, share: float) -> BoolArray:
        """Return secret coins, shape (n,), by the noise's bits: a generator of sets would tell how many there were."""
        raise PlanError(f"{type(self).__name__} follows no coins")

    @abstractmethod
    def _count(self, step: Step, statistic: Statistic, possible: BoolArray | None) -> IntArray: ...
    @abstractmethod
    def _choose(self, step: Step, scores: Statistic) -> IntArray: ...
    @abstractmethod
    def _draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any: ...

    def _choose_given(self, step: Step, noisy: IntArray, scores: ScoresGiven) -> int:
        return int(self._choose(step, lambda table: scores(table, noisy)[None])[0])

    def _take(self, step: Step, *laws: AnswerLaw) -> None:
        """Tick a step off the plan."""
        if self.finished:
            raise PlanError(f"{step.name!r} was asked after all that the plan of {self._plan.mechanism} prices")
        due = self._plan.steps[self._place]
        if step != due:
            raise PlanError(f"{step.name!r} was asked where the plan of {self._plan.mechanism} has {due.name!r}")
        if step.law not in laws:
            raise PlanError(f"{step.name!r} is priced for the law {step.law!r}, not for {' or '.join(laws)}")
        self._asked += 1
        if self._asked == step.times:
            self._place, self._asked = self._place + 1, 0
            self._next_stratum(step)
        if self._place == len(self._plan.steps):
            self._place, self._round = 0, self._round + 1

    def _next_stratum(self, step: Step) -> None:
        """Go back to the first of the steps that are asked of each stratum, until all strata have been asked."""
        steps, block, first = self._plan.steps, (step.item, step.branch, step.strata), self._place
        if step.strata == 1 or (first < len(steps) and _block(steps[first]) == block):
            return
        self._stratum += 1
        if self._stratum == step.strata:
            self._stratum = 0
            return
        while first and _block(steps[first - 1]) == block:
            first -= 1
        self._place = first


def _block(step: Step) -> tuple[str, str, int]:
    return step.item, step.branch, step.strata


class Drawing(Curator):
    """Answers a release, with exact noise from random bits; no floating-point warning tells of a record."""

    def __init__(self, plan: Plan, table: Table, bits: RandomBits, clock: Clock | None = None) -> None:
        super().__init__(plan, table)
        self._bits, self._clock = bits, clock or Clock()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        with self._clock.step(name):
            yield

    @np.errstate(all="ignore")
    def _count(self, step: Step, statistic: Statistic, possible: BoolArray | None) -> IntArray:
        return np.asarray(noisy_counts(self._table.total(statistic), possible, step, self._bits)[0])

    @np.errstate(all="ignore")
    def _choose(self, step: Step, scores: Statistic) -> IntArray:
        return exponential_mechanism(scores(self._table), 1 / step.scale, self._bits)

    @np.errstate(all="ignore")
    def _draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any:
        return distribution(self._table).draw(self._bits)[0]

    def coins(self, n: int, share: float) -> BoolArray:
        return self._bits.words(n, np.uint32) < share * 2**32


class PublishedAnswers(Curator):
    """Answers with the numbers that a release has published, for more sets of it. It reads no confidential table.

    ``table`` is a synthetic set, for the number of records and public columns where they are public; ``answers`` are in
    the order of the plan, without numbers that can't differ from 0.
    """

    def __init__(self, plan: Plan, table: Table, answers: Iterable[IntArray]) -> None:
        super().__init__(plan, table)
        self._answers = iter(answers)

    def _count(self, step: Step, statistic: Statistic, possible: BoolArray | None) -> IntArray:
        shown = next(self._answers)
        if possible is None:
            return shown
        whole = np.zeros(len(possible), dtype=np.int64)
        whole[possible] = shown
        return whole

    def _choose(self, step: Step, scores: Statistic) -> IntArray:
        raise PlanError(f"{step.name!r} isn't published as numbers")

    def _draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any:
        raise PlanError(f"{step.name!r} isn't published as numbers")


def noisy_counts(
    counts: IntArray, possible: BoolArray | None, step: Step, bits: RandomBits, n_runs: int = 1
) -> IntArray:
    """Add exact noise to the numbers that can differ from 0; the others are 0 and stay so."""
    kept = slice(None) if possible is None or possible.all() else possible
    true, draw = counts[kept], discrete_laplace if step.law == "laplace" else discrete_gaussian
    if step.image is not None:
        noise = np.empty((n_runs, len(true)), dtype=np.int64)
        for weight in np.unique(step.image.weights).tolist():
            alike = step.image.weights == weight
            drawn = draw(step.image.scale(step, weight), n_runs * int(alike.sum()), bits)
            noise[:, alike] = drawn.reshape(n_runs, -1)
        return step.image.show(true + noise)
    noise = draw(step.parameter, n_runs * len(true), bits)
    noisy = true + noise.reshape(n_runs, len(true))
    if isinstance(kept, slice):
        return noisy
    whole = np.zeros((n_runs, len(counts)), dtype=np.int64)
    whole[:, kept] = noisy
    return whole
