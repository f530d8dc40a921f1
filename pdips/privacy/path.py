"""A mechanism followed along one path of given answers: what each table is asked, with
which noise, and what it would answer without it.

The answers are random and public. The mechanism's own ``ask`` runs, and answers
pass through the curator of releases. Only the random bits differ: they tell what the
samplers are asked to draw, and give noise in place of draws. So a law is read where
noise is drawn, not from the step that states it.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, hstack

from pdips.arrays import BoolArray, IntArray
from pdips.data.table import Table
from pdips.errors import DataError, InputError, PlanError, RefusedError
from pdips.privacy.answers import Answers, PublicFacts
from pdips.privacy.curator import Distribution, Drawing, Statistic
from pdips.privacy.noise import UNAVAILABLE, RandomBits, discrete_laplace_variance
from pdips.privacy.plan import NOISY, LinearImage, Plan, Step

NoiseLaw = Literal["laplace", "gaussian"]

# Probes of how numbers respond to noise are whole numbers of this many bits: that two
# sums of a few of them agree by chance has a probability below 1e-9
PROBE_BITS = 40
# Responses are whole numbers from -7 to 7, so that twelve are read from one number
DIGIT = 16
AT_ONCE = 12
MOST_RESPONSES = 20_000  # Draws whose responses are worked out one by one
POST_PROCESSING = 1_000_000  # In place of the number of an answer, for its randomness
# Modules whose code may read the table that a curator holds
CURATORS = ("pdips.privacy.curator", __name__)


@dataclass(frozen=True)
class ToldDraws:
    """What a sampler was told: so many independent draws of a law; the parameter is a
    scale, or a variance.
    """

    law: NoiseLaw
    parameter: Fraction
    n: int

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of each draw."""
        if self.law == "gaussian":
            return math.sqrt(self.parameter)
        return math.sqrt(discrete_laplace_variance(self.parameter))


class PathBits(RandomBits):
    """Random bits that give noise in place of draws, and note what samplers were
    told.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self._is_probed = False
        self._noise: IntArray | None = None
        self.told: list[ToldDraws] = []
        self.choices: list[tuple[IntArray, Fraction]] = []

    def under(
        self, noise: IntArray | None, draw: Callable[[], Any]
    ) -> NDArray[np.int64]:
        """Return what ``draw`` returns under some noise, or without any."""
        self._is_probed = True
        self._noise = noise
        self.told = []
        self.choices = []
        try:
            return np.array(draw())
        finally:
            self._is_probed = False

    def given_noise(
        self, law: NoiseLaw, parameter: Fraction, n: int
    ) -> IntArray | None:
        if not self._is_probed:
            return None
        start = self.n_told
        self.told.append(ToldDraws(law, Fraction(parameter), n))
        if self._noise is None:
            return np.zeros(n, dtype=np.int64)
        return self._noise[start : start + n]

    def given_choices(self, scores: IntArray, unit: Fraction) -> IntArray | None:
        if not self._is_probed:
            return None
        self.choices.append((scores.copy(), Fraction(unit)))
        return np.argmax(scores != UNAVAILABLE, axis=1)

    @property
    def n_told(self) -> int:
        """How many draws samplers were told of."""
        return sum(told.n for told in self.told)


@dataclass(frozen=True, eq=False, kw_only=True)
class AskedQuestion:
    """One question to one table.

    Parameters
    ----------
    step : Step
        As it was asked, with its sensitivity in the units of this question.
    item : str
        What the ledger calls the price that pays for it.
    told : tuple of ToldDraws
        What the samplers were told, in their order.
    exact : ndarray
        The statistic of the table; of a choice its scores.
    shown : ndarray
        What would be answered if all noise were 0.
    response : csr_array, optional
        How the answer moves with each draw, shape (shown, draws); None if noise isn't
        added linearly.
    possible : ndarray of bool, optional
        Which numbers can differ from 0.
    unit : Fraction
        Of a choice: nats a step of its scores, as the sampler was told.
    log_probabilities : mapping, optional
        Of a draw from a distribution whose law can be spelt out.
    """

    step: Step
    item: str
    exact: IntArray
    told: tuple[ToldDraws, ...] = ()
    shown: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    response: csr_array | None = None
    possible: BoolArray | None = None
    unit: Fraction = Fraction(0)
    log_probabilities: Mapping[tuple[int, ...], float] | None = None

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What is public about the question: that of any other table, if the answers
        before were the same.
        """
        available = self.step.law == "exponential" and self.exact != UNAVAILABLE
        image: tuple[object, ...] | None = None
        if self.step.image is not None:
            weights = self.step.image.weights
            image = (self.step.image.whole, weights.tobytes(), weights.shape)
        return {
            "name": self.step.name,
            "item": self.item,
            "law": self.step.law,
            "price": self.step.price,
            "noise": self.told,
            "numbers": (self.shown.shape, self.shown.dtype.str),
            "mask": None if self.possible is None else self.possible.tobytes(),
            "image": image,
            "candidates": (np.shape(available), np.asarray(available).tobytes()),
            "unit": self.unit,
            "spelt out": self.log_probabilities is not None,
        }

    @cached_property
    def parameters(self) -> list[Fraction]:
        """The parameter of the law of each draw, shape (draws,)."""
        return [told.parameter for told in self.told for _ in range(told.n)]

    @property
    def laws(self) -> set[NoiseLaw]:
        """The laws that draws are of."""
        return {told.law for told in self.told if told.n}


class PathEnd(BaseException):
    """All that a plan prices has been asked."""


@dataclass
class AnswerPath:
    """The answers that are given to all tables. The first table that is followed
    extends the path.

    Noise is added to ``level`` in each number, plus ``loudness`` times its own standard
    deviation: with a large one all intervals are looked into. A draw from a
    distribution is one of the first table's law, which the second can give as well.

    Parameters
    ----------
    seed : int
        Of the answers, and of post-processing. Public.
    level, loudness : float
        How large noisy numbers are.
    """

    seed: int = 0
    level: float = 0.0
    loudness: float = 0.0
    answers: list[Any] = field(default_factory=list)

    def rng(self, number: int) -> np.random.Generator:
        """Return the randomness of one answer."""
        return np.random.default_rng([self.seed, number])

    def noise(self, number: int, told: list[ToldDraws]) -> IntArray:
        """Return noise in place of draws for one answer."""
        rng = self.rng(number)
        times = [draws.n for draws in told]
        deviations = np.repeat([draws.standard_deviation for draws in told], times)
        standard = self.loudness + rng.standard_normal(len(deviations))
        return np.rint(self.level + deviations * standard).astype(np.int64)


class PathCurator(Drawing):
    """Answers as a release does, but for the bits: with the answers of a path.

    It holds ``table``; statistics are taken of ``measured``, which is the same table
    unless it is tried whether the question depends on the table that is held.
    """

    def __init__(
        self,
        plan: Plan,
        table: Table,
        path: AnswerPath,
        *,
        whole: bool,
        measured: Table | None = None,
    ) -> None:
        if table.partitioned:
            raise InputError("a path is followed for tables in one piece")
        self.reads: list[str] = []
        self._measured = table if measured is None else measured
        self._path_bits = PathBits(np.random.default_rng([path.seed, 0]))
        super().__init__(plan, table, self._path_bits)
        self._path = path
        self._whole = whole
        self._possible: BoolArray | None = None
        self._exact = np.zeros(0, dtype=np.int64)
        self._law: Distribution | None = None
        self._item = ""
        self.questions: list[AskedQuestion] = []

    @property
    def _table(self) -> Table:
        """The table that is held. It is noted who else reads it: a mechanism that does
        lets what it holds steer questions or sets, and pays for nothing.
        """
        reader = sys._getframe(1).f_globals.get("__name__", "")
        if reader not in CURATORS:
            self.reads.append(reader)
        return self._held

    @_table.setter
    def _table(self, table: Table) -> None:
        self._held = table

    def _take(self, step: Step, *laws: Any, share: int | Fraction = 1) -> None:
        number = self._round + 1
        super()._take(step, *laws, share=share)
        name = step.item or step.name
        self._item = f"{name}, set {number}" if self._plan.repeats > 1 else name

    def _count(
        self, step: Step, statistic: Statistic, possible: BoolArray | None
    ) -> IntArray:
        # Worked out once, and given again to each probe of the noise.
        exact = np.asarray(self._measured.total(statistic))
        self._exact = exact.copy()
        self._possible = None if possible is None else np.array(possible)
        return super()._count(step, lambda _: exact.copy(), possible)

    def _choose(self, step: Step, scores: Statistic) -> IntArray:
        exact = np.asarray(scores(self._measured))
        self._exact = exact.copy()
        return super()._choose(step, lambda _: exact.copy())

    def _draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any:
        law = distribution(self._measured)
        self._law = law
        return super()._draw(step, lambda _: law)

    @np.errstate(all="ignore")
    def _answered(self, step: Step, draw: Callable[[], Any]) -> Any:
        number = len(self.questions)
        if step.law in NOISY:
            question = self._counted(step, draw, number)
        elif step.law == "exponential":
            question = self._chosen(step, draw)
        else:
            question = self._drawn(step)
        self.questions.append(question)
        if number == len(self._path.answers):
            self._path.answers.append(self._made(question, draw, number))
        if self.finished and not self._whole:
            raise PathEnd
        given = self._path.answers[number]
        return given.copy() if isinstance(given, np.ndarray) else given

    def _counted(
        self, step: Step, draw: Callable[[], Any], number: int
    ) -> AskedQuestion:
        bits = self._path_bits
        shown = bits.under(None, draw)
        told = tuple(bits.told)
        if bits.choices:
            raise PlanError(f"{step.name!r} draws a choice where it is to count")
        response = _response(step.image, shown, bits, draw, self._path.rng(number))
        return AskedQuestion(
            step=step,
            item=self._item,
            exact=self._exact,
            told=told,
            shown=shown,
            response=response,
            possible=self._possible,
        )

    def _chosen(self, step: Step, draw: Callable[[], Any]) -> AskedQuestion:
        bits = self._path_bits
        bits.under(None, draw)
        if len(bits.choices) != 1 or bits.told:
            raise PlanError(f"{step.name!r} isn't one draw of exponential mechanisms")
        scores, unit = bits.choices[0]
        return AskedQuestion(step=step, item=self._item, exact=scores, unit=unit)

    def _drawn(self, step: Step) -> AskedQuestion:
        try:
            spelt = None if self._law is None else self._law.log_probabilities()
        except InputError:  # too many outcomes, or chains: the plan's price stands
            spelt = None
        nothing = np.zeros(0, dtype=np.int64)
        return AskedQuestion(
            step=step, item=self._item, exact=nothing, log_probabilities=spelt
        )

    def _made(
        self, question: AskedQuestion, draw: Callable[[], Any], number: int
    ) -> Any:
        """Return the answer that all tables are given."""
        if question.step.law in NOISY:
            noise = self._path.noise(number, list(question.told))
            return self._path_bits.under(noise, draw) - question.shown
        if question.step.law == "exponential":
            rng = self._path.rng(number)
            rows = question.exact != UNAVAILABLE
            return np.array([rng.choice(np.flatnonzero(row)) for row in rows])
        return draw()

    @cached_property
    def generator(self) -> np.random.Generator:
        """Randomness of post-processing: the same whether an answer of the path was
        drawn in this run, by bits, or in an earlier one.
        """
        return self._path.rng(POST_PROCESSING)

    def coins(self, n: int, share: float) -> BoolArray:
        rng = self._path.rng(len(self.questions))
        return rng.random(n) < share


_RESPONSES: "WeakKeyDictionary[LinearImage, csr_array]" = WeakKeyDictionary()
"""The response of each image, which is the same for all tables; checked at each use."""


@dataclass(frozen=True)
class _Probes:
    """Random noise, one probe a row, and how it moved an answer."""

    noise: IntArray
    moved: IntArray

    def fit(self, response: csr_array) -> bool:
        """Whether the answer moves with its draws in this way."""
        if response.shape != (self.moved.shape[1], self.noise.shape[1]):
            return False
        pairs = zip(self.noise, self.moved, strict=True)
        return all(np.array_equal(response @ noise, moved) for noise, moved in pairs)


def _response(
    image: LinearImage | None,
    shown: IntArray,
    bits: PathBits,
    draw: Callable[[], Any],
    rng: np.random.Generator,
) -> csr_array | None:
    """Return how an answer moves with each draw, or None if not in proportion.

    Found by probes: most answers are numbers with a draw each; others are read digit by
    digit. What was found is checked by two random probes.
    """
    n_draws = bits.n_told

    def moved(noise: IntArray) -> IntArray:
        return np.asarray(bits.under(noise, draw) - shown).ravel()

    noise = rng.integers(1, 2**PROBE_BITS, size=(2, n_draws))
    probes = _Probes(noise, np.array([moved(probe) for probe in noise]))
    remembered = None if image is None else _RESPONSES.get(image)
    if remembered is not None and probes.fit(remembered):
        return remembered
    response = _one_draw_each(noise[0], probes.moved[0])
    if not probes.fit(response) and n_draws <= MOST_RESPONSES:
        response = _digit_by_digit(moved, shown.size, n_draws)
    if not probes.fit(response):
        return None
    if image is not None:
        _RESPONSES[image] = response
    return response


def _one_draw_each(probe: IntArray, result: IntArray) -> csr_array:
    """Return the response of numbers that have a draw each, or none."""
    order = np.argsort(probe)
    nearest = np.searchsorted(probe[order], result).clip(0, max(len(probe) - 1, 0))
    rows = np.zeros(0, dtype=np.int64)
    draws = rows
    if len(probe):
        draws = order[nearest]
        rows = np.flatnonzero(probe[draws] == result)
        draws = draws[rows]
    ones = np.ones(len(rows), dtype=np.int64)
    return csr_array((ones, (rows, draws)), shape=(len(result), len(probe)))


def _digit_by_digit(
    moved: Callable[[IntArray], IntArray], n_shown: int, n_draws: int
) -> csr_array:
    """Return the response of numbers to each draw, a few draws at a time, each a digit
    from -7 to 7.
    """
    parts = [coo_array((n_shown, 0), dtype=np.int64)]
    for start in range(0, n_draws, AT_ONCE):
        n_block = min(AT_ONCE, n_draws - start)
        noise = np.zeros(n_draws, dtype=np.int64)
        noise[start : start + n_block] = DIGIT ** np.arange(n_block, dtype=np.int64)
        left = moved(noise)
        digits = np.zeros((n_shown, n_block), dtype=np.int64)
        for number in range(n_block):
            digits[:, number] = (left + DIGIT // 2) % DIGIT - DIGIT // 2
            left = (left - digits[:, number]) // DIGIT
        parts.append(coo_array(digits))
    return csr_array(hstack(parts))


class PathMechanism(Protocol):
    """What is followed: a mechanism, or in tests the part of one that asks."""

    @property
    def n_sets(self) -> int: ...
    def plan(self, schema: Any) -> Plan: ...
    def ask(self, plan: Plan, curator: Any) -> Any: ...
    def draw(
        self,
        plan: Plan,
        measured: Any,
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Any: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class PathRun:
    """What one table was asked along a path, and what was made of the answers: nothing
    if the run was ended with the last question. ``reads`` are the modules that read the
    table beside what they asked.
    """

    questions: tuple[AskedQuestion, ...]
    drawn: Any = None
    refusal: str = ""
    reads: tuple[str, ...] = ()
    answers: Answers = field(default_factory=Answers)


def follow(
    mechanism: PathMechanism,
    plan: Plan,
    table: Table,
    path: AnswerPath,
    *,
    whole: bool = False,
    measured: Table | None = None,
) -> PathRun:
    """Run a mechanism on a table along a path, to its last question, or ``whole``;
    statistics may be taken of another table that is ``measured``.
    """
    curator = PathCurator(plan, table, path, whole=whole, measured=measured)
    drawn = None
    refusal = ""
    try:
        found = mechanism.ask(plan, curator)
        if whole:
            rng = np.random.default_rng(path.seed)
            facts = curator.facts
            drawn = mechanism.draw(plan, found, mechanism.n_sets, rng, facts)
    except PathEnd:
        pass
    except (InputError, RefusedError, DataError) as error:
        refusal = f"{type(error).__name__}: {error}"
    return PathRun(
        questions=tuple(curator.questions),
        drawn=drawn,
        refusal=refusal,
        reads=tuple(dict.fromkeys(curator.reads)),
        answers=curator.answers,
    )
