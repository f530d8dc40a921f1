"""Curators: the only access to a confidential table. They answer the steps of a plan,
in order, and nothing else.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, IntArray
from pdips.data.table import Table
from pdips.errors import PlanError
from pdips.privacy.answers import (
    AnswerKind,
    Answers,
    NotedAnswer,
    PublicFacts,
)
from pdips.privacy.charge import Charge
from pdips.privacy.noise import (
    RandomBits,
    discrete_gaussian,
    discrete_laplace,
    exponential_mechanism,
)
from pdips.privacy.plan import AnswerLaw, Plan, Step

Progress = Callable[[str], None]
Statistic = Callable[[Table], IntArray]
"""Whole numbers of a table, shape (numbers,); for a choice its scores, shape (choices,
candidates).
"""

ScoresGiven = Callable[[Table, IntArray], IntArray]
"""Scores of a choice that depend on noisy numbers, shape (..., numbers), too: shape
(..., candidates), row by row.
"""

Rule = Callable[[IntArray], NDArray[Any]]
"""What follows from noisy numbers, shape (..., numbers): a decision of shape (...,
decisions), row by row.
"""


class Distribution(Protocol):
    """A distribution over whole numbers, or over whatever a mechanism draws."""

    def draw(self, bits: RandomBits, runs: int = 1) -> Any:
        """Return independent draws, one a row: shape (runs, numbers)."""
        ...

    def log_probabilities(self) -> Mapping[tuple[int, ...], float]:
        """Return the log probability of every draw, for tiny tables."""
        ...


TELL: ContextVar[Progress | None] = ContextVar("TELL", default=None)
"""Whoever watches the step that is running, for work that doesn't see its clock:
compilation, chains.
"""

CLOCK: ContextVar["Clock | None"] = ContextVar("CLOCK", default=None)
"""What times the release that is running."""


CHECKING = "checking the model on made-up records"
COMPILING = "compiling the model for NUTS; the first time this takes up to a minute"


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
        start = time.perf_counter()
        token = TELL.set(self.progress)
        try:
            yield
        finally:
            TELL.reset(token)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Report the progress of work that isn't timed."""
        token = TELL.set(self.progress)
        try:
            yield
        finally:
            TELL.reset(token)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time all that :func:`timed` names meanwhile."""
        token = CLOCK.set(self)
        try:
            yield
        finally:
            CLOCK.reset(token)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Time a part of the work under this name, if a release is being timed."""
    clock = CLOCK.get()
    if clock is None:
        yield
        return
    with clock.step(name):
        yield


class Curator(ABC):
    """Holds a table and answers the steps of a plan.

    A step that isn't the next one, or that has been asked as often as the plan says,
    raises :class:`PlanError` before the table is read. :class:`Drawing` answers a
    release; ``Recording`` and ``Enumerating`` (``replay.py``) tell audits what many
    independent runs would show, and the exact law on a tiny table.

    Attributes
    ----------
    answers : Answers
        All that was answered so far.
    """

    def __init__(self, plan: Plan, table: Table) -> None:
        self._plan = plan
        self._table = table
        self._place = self._asked = self._round = self._stratum = 0
        self._taken = dict[tuple[Any, ...], Fraction]()
        self.answers = Answers()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._plan.mechanism}>"

    @property
    def n_public(self) -> bool:
        """Whether the number of records is public."""
        return self._plan.n_public

    @property
    def n_records(self) -> int:
        """The number of records, where the neighbours make it public."""
        return self.facts.n_records

    @property
    def public(self) -> Table:
        """The table's public columns alone; its number of records is public too."""
        return self.facts.columns

    @cached_property
    def facts(self) -> PublicFacts:
        """What is public about the table."""
        return PublicFacts.of(self._table, n_public=self._plan.n_public)

    @cached_property
    def generator(self) -> np.random.Generator:
        """Randomness of what is made from answers and steers later questions, inside
        of :meth:`keep`.
        """
        return np.random.default_rng(0)

    @property
    def finished(self) -> bool:
        """Whether all that the plan priced has been asked."""
        return self._round == self._plan.repeats

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time a part of the work under this name."""
        yield

    def count(
        self,
        step: Step,
        statistic: Statistic,
        possible: BoolArray | None = None,
        *,
        units: int | Fraction = 1,
        share: int | Fraction = 1,
    ) -> IntArray:
        """Return whole numbers of the table, shape (numbers,), with the noise of the
        step's price.

        Parameters
        ----------
        step : Step
            With law ``"laplace"`` or ``"gaussian"``.
        statistic : callable
            Takes the table; returns the exact numbers. One person moves them by the
            step's sensitivity at most.
        possible : ndarray of bool, shape (numbers,), optional
            Which numbers can differ from 0; the others are 0 and have no noise. Public.
        units : int or Fraction
            The statistic's sensitivity in units of the step's, where it follows from
            public facts that no plan knows: the number of records, or earlier answers.
        share : int or Fraction
            How much of the step's price the question takes; above 1 of what other steps
            leave that share a price with it.
        """
        self._take(step, "laplace", "gaussian", share=share)
        asked = step.enlarged(units, share)
        noisy = self._count(asked, statistic, possible)
        self._note(step.name, "numbers", noisy, asked.standard_deviation)
        return noisy

    def choose(
        self,
        step: Step,
        scores: Statistic,
        *,
        units: int | Fraction = 1,
        share: int | Fraction = 1,
    ) -> IntArray:
        """Return one candidate for each row of scores, by exponential mechanisms, shape
        (choices,).

        ``scores`` takes the table and returns whole steps, shape (choices, candidates);
        the smallest int64 marks a candidate that isn't available. The step's
        sensitivity is that of all rows together; ``units`` and ``share`` as in
        :meth:`count`.
        """
        self._take(step, "exponential", share=share)
        chosen = self._choose(step.enlarged(units, share), scores)
        self._note(step.name, "choice", chosen)
        return chosen

    def choose_given(
        self,
        step: Step,
        noisy: IntArray,
        scores: ScoresGiven,
        *,
        units: int | Fraction = 1,
        share: int | Fraction = 1,
    ) -> int:
        """Return one candidate by the exponential mechanism, whose scores depend on an
        earlier answer, ``noisy``.

        ``scores`` takes the table and that answer, shape (..., numbers), and returns
        whole steps, shape (..., candidates), as in :meth:`choose`. For any given answer
        one person moves two scores apart by the step's sensitivity at most; ``units``
        and ``share`` as in :meth:`count`.
        """
        self._take(step, "exponential", share=share)
        chosen = self._choose_given(step.enlarged(units, share), noisy, scores)
        self._note(step.name, "choice", chosen)
        return chosen

    def pass_over(self, step: Step) -> None:
        """Tick off a step that is not asked, as earlier answers say. Its price stays
        spent; steps that share it may take its part.
        """
        self._take(step, step.law, share=0)

    @property
    def due(self) -> Step | None:
        """The step that is to be asked next; None if all have been."""
        return None if self.finished else self._plan.steps[self._place]

    def draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any:
        """Return a draw from a distribution that depends on the table.

        The log ratio of its densities for neighbouring tables is bounded by the step's
        price, as the law says.
        """
        self._take(step, "bounded-range", "distribution")
        drawn = self._draw(step, distribution)
        self._note(step.name, "draw", drawn)
        return drawn

    def decide(self, noisy: IntArray, rule: Rule) -> NDArray[Any]:
        """Return what follows from the noisy numbers of the last answer, where later
        questions depend on it.

        Choices that go on to steer questions must pass through here, so that audits can
        follow them.
        """
        decision = self._decide(noisy, rule)
        self._note("", "kept", decision)
        return decision

    def keep(self, make: Callable[[], Any]) -> Any:
        """Return arrays that steer later questions, where other random bits or another
        machine would make others of the same answers.

        They are made once: a release that is resumed reads them back.

        Parameters
        ----------
        make : callable
            Returns an array, or a dict of arrays, from noisy answers and public facts.
        """
        values = self._keep(make)
        self._note("", "kept", values)
        return values

    def coins(self, n: int, share: float) -> BoolArray:
        """Return secret coins, shape (n,), by the noise's bits: a generator of sets
        would tell how many there were.
        """
        raise PlanError(f"{type(self).__name__} follows no coins")

    def _note(
        self, step: str, kind: AnswerKind, values: Any, deviation: float | None = None
    ) -> None:
        """Add an answer to those that were given."""
        self.answers.note(step, kind, values, deviation)

    def _keep(self, make: Callable[[], Any]) -> Any:
        return make()

    def _decide(self, noisy: IntArray, rule: Rule) -> NDArray[Any]:
        # A rule may work in doubles, whose last bits another run may have otherwise.
        decision: NDArray[Any] = self._keep(partial(rule, noisy))
        return decision

    @abstractmethod
    def _count(
        self, step: Step, statistic: Statistic, possible: BoolArray | None
    ) -> IntArray: ...
    @abstractmethod
    def _choose(self, step: Step, scores: Statistic) -> IntArray: ...
    @abstractmethod
    def _draw(
        self, step: Step, distribution: Callable[[Table], Distribution]
    ) -> Any: ...

    def _choose_given(self, step: Step, noisy: IntArray, scores: ScoresGiven) -> int:
        return int(self._choose(step, lambda table: scores(table, noisy)[None])[0])

    def _take(self, step: Step, *laws: AnswerLaw, share: int | Fraction = 1) -> None:
        """Tick a step off the plan, and what it takes off the price that it has with
        those that share it.
        """
        if self.finished:
            raise PlanError(
                f"{step.name!r} was asked after all that the plan of "
                f"{self._plan.mechanism} prices"
            )
        due = self._plan.steps[self._place]
        if step != due:
            raise PlanError(
                f"{step.name!r} was asked where the plan of "
                f"{self._plan.mechanism} has {due.name!r}"
            )
        if step.law not in laws:
            raise PlanError(
                f"{step.name!r} is priced for the law {step.law!r}, not "
                f"for {' or '.join(laws)}"
            )
        self._pay(step, share)
        self._asked += 1
        if self._asked == step.times:
            self._place = self._place + 1
            self._asked = 0
            self._next_stratum(step)
        if self._place == len(self._plan.steps):
            self._place = 0
            self._round = self._round + 1
            self._taken.clear()

    def _pay(self, step: Step, share: int | Fraction) -> None:
        """Add up what steps take that share a price; more than it is refused."""
        if not isinstance(share, (int, Fraction)) or share < 0:
            raise PlanError(f"{step.name!r} was asked at a share that is no part")
        if step.own_rho is None:
            return
        group = step.shares_with
        stratum = (*group, self._stratum)  # no record is in two
        taken = self._taken.get(stratum, Fraction(0)) + share * step.price / step.times
        if taken > self._plan.shared_prices[group]:
            raise PlanError(
                f"{step.name!r} was asked at more than is left of the price that the "
                f"plan of {self._plan.mechanism} has for it and others"
            )
        self._taken[stratum] = taken

    def _next_stratum(self, step: Step) -> None:
        """Go back to the first of the steps that are asked of each stratum, until all
        strata have been asked.
        """
        steps = self._plan.steps
        block = (step.item, step.branch, step.strata)
        first = self._place
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
    """Answers a release, with exact noise from random bits; no floating-point warning
    tells of a record.
    """

    def __init__(
        self,
        plan: Plan,
        table: Table,
        bits: RandomBits,
        clock: Clock | None = None,
        charge: Charge | None = None,
    ) -> None:
        super().__init__(plan, table)
        self._bits = bits
        self._clock = clock or Clock()
        self._charge = charge

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        with self._clock.step(name):
            yield

    @cached_property
    def generator(self) -> np.random.Generator:
        return self._bits.generator()

    def _keep(self, make: Callable[[], Any]) -> Any:
        return make() if self._charge is None else self._charge.keep(make)

    def _count(
        self, step: Step, statistic: Statistic, possible: BoolArray | None
    ) -> IntArray:
        def draw() -> IntArray:
            exact_counts = self._table.total(statistic)
            return np.asarray(noisy_counts(exact_counts, possible, step, self._bits)[0])

        answer: IntArray = self._answered(step, draw)
        return answer

    def _choose(self, step: Step, scores: Statistic) -> IntArray:
        def draw() -> IntArray:
            unit = 1 / step.scale
            return exponential_mechanism(scores(self._table), unit, self._bits)

        answer: IntArray = self._answered(step, draw)
        return answer

    def _draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any:
        # Outside of the draw: a resumed release has its draws, and looks at them
        # together with the table.
        law = distribution(self._table)
        if self._charge is not None and self._plan.sampling == "mcmc":
            self._charge.begin()
        return self._answered(step, lambda: law.draw(self._bits)[0])

    @np.errstate(all="ignore")
    def _answered(self, step: Step, draw: Callable[[], Any]) -> Any:
        """Return an answer, which a charge commits before it is used."""
        return draw() if self._charge is None else self._charge.answer(step.name, draw)

    def coins(self, n: int, share: float) -> BoolArray:
        return self._bits.words(n, np.uint32) < share * 2**32


class PublishedAnswers(Curator):
    """Answers with what a release has published, for more sets of it. It reads no
    confidential table.

    Parameters
    ----------
    plan : Plan
        Of the release.
    facts : PublicFacts
        What is public about its table.
    given : Answers
        What was answered, in the order of the plan.
    """

    def __init__(self, plan: Plan, facts: PublicFacts, given: Answers) -> None:
        super().__init__(plan, no_table())
        self.facts = facts
        self._given = iter(given)

    def _next(self, step: str, kind: AnswerKind) -> NotedAnswer:
        answer = next(self._given, None)
        if answer is None or (answer.step, answer.kind) != (step, kind):
            raise PlanError(
                f"{step or 'what is kept'!r} of {self._plan.mechanism} isn't among the "
                f"answers that were published"
            )
        return answer

    def _keep(self, make: Callable[[], Any]) -> Any:
        return self._next("", "kept").values

    def _count(
        self, step: Step, statistic: Statistic, possible: BoolArray | None
    ) -> IntArray:
        answer = self._next(step.name, "numbers")
        stated = answer.standard_deviation
        own = step.standard_deviation  # another machine may have other last bits
        if stated is None or not math.isclose(stated, own, rel_tol=1e-9):
            raise PlanError(
                f"{step.name!r} was answered with other noise than these settings give"
            )
        return np.array(answer.values)

    def _choose(self, step: Step, scores: Statistic) -> IntArray:
        return np.array(self._next(step.name, "choice").values)

    def _choose_given(self, step: Step, noisy: IntArray, scores: ScoresGiven) -> int:
        return int(self._next(step.name, "choice").values)

    def _draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any:
        return self._next(step.name, "draw").values


def no_table() -> Table:
    """Return a table that holds nothing, and answers nothing."""
    return Table.__new__(Table)


def noisy_counts(
    counts: IntArray,
    possible: BoolArray | None,
    step: Step,
    bits: RandomBits,
    n_runs: int = 1,
) -> IntArray:
    """Add exact noise to the numbers that can differ from 0; the others are 0 and stay
    so.
    """
    kept = slice(None) if possible is None or possible.all() else possible
    true = counts[kept]
    draw = discrete_laplace if step.law == "laplace" else discrete_gaussian
    if step.image is not None:
        noise = np.empty((n_runs, len(true)), dtype=np.int64)
        for weight in np.unique(step.image.weights).tolist():
            alike = step.image.weights == weight
            n_draws = n_runs * int(alike.sum())
            drawn = draw(step.image.scale(step, weight), n_draws, bits)
            noise[:, alike] = drawn.reshape(n_runs, -1)
        return step.image.show(true + noise)
    noise = draw(step.parameter, n_runs * len(true), bits)
    noisy = true + noise.reshape(n_runs, len(true))
    if isinstance(kept, slice):
        return noisy
    whole = np.zeros((n_runs, len(counts)), dtype=np.int64)
    whole[:, kept] = noisy
    return whole
