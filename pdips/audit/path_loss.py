"""The exact loss of two neighbouring tables along a path of given answers, for Gaussian
and Laplace noise, choices, and distributions that can be spelt out.

Of numbers that respond to draws z by B z, and differ by d between the tables, the loss
is the least cost of draws that make up for the difference: the minimum over B z = d of
sum z_j^2 / (2 variance_j) for Gaussian noise, in rho, and of sum |z_j| / scale_j for
Laplace noise, in epsilon. Nothing makes up for a number without noise.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import block_array, csr_array
from scipy.sparse.csgraph import connected_components
from scipy.special import logsumexp

from pdips.arrays import FloatArray, IntArray
from pdips.audit.neighbour_pairs import Pair, check_relation
from pdips.errors import InputError
from pdips.mechanism import Mechanism
from pdips.privacy.noise import UNAVAILABLE
from pdips.privacy.path import AnswerPath, AskedQuestion, PathRun, follow
from pdips.privacy.plan import NOISY, LinearImage, Plan

Unit = Literal["epsilon", "rho"]
Source = Literal["noise", "scores", "law", "plan"]

SURE = 1e-9  # Relative error of solutions that aren't rational, and of sums of doubles
ORDERS = 1 + np.geomspace(1e-3, 1e3, 40)  # Of divergences
MOST_SHOWN = 2**20  # Of random whole numbers on which images are tried


@dataclass(frozen=True, kw_only=True)
class StepLoss:
    """What one question loses between two tables.

    Parameters
    ----------
    step, item : str
        Its name, and that of the item that pays for it.
    amount : float or Fraction
        In the unit of the path.
    price : Fraction
        What the plan charges for the step, all repetitions together.
    by : {"noise", "scores", "law", "plan"}
        Where it was read: at the samplers, from a choice's scores, from log
        probabilities; or not at all, so that the plan's price stands.
    tau : float
        Probability with which noise isn't of the law that ``amount`` is about.

    Examples
    --------
    >>> from pdips.audit.neighbour_pairs import worst_pairs
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> pair = worst_pairs(schema, "replace-one")[0]
    >>> [step] = losses(LaplaceSanitizer(epsilon=1), pair).steps
    >>> step.step, float(step.amount), float(step.price), step.by
    ('noisy counts of all cells', 1.0, 1.0, 'noise')
    """

    step: str
    item: str
    amount: float | Fraction
    price: Fraction
    by: Source
    tau: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PathLoss:
    """What a mechanism loses on a pair of tables, along one path of answers.

    Parameters
    ----------
    unit : {"epsilon", "rho"}
        In which losses add up.
    steps : tuple of StepLoss
        Question by question.
    price : Fraction
        The plan's, all items together.
    items : dict of str to Fraction
        The price of each item.
    tau : Fraction
        What the plan keeps of delta for noise that isn't quite of its law.
    differences : tuple of str
        What the tables were asked differently although all answers were the same.
    refusal : str
        Why the mechanism stopped, if it did.

    Examples
    --------
    >>> from pdips.audit.neighbour_pairs import worst_pairs
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> pair = worst_pairs(schema, "replace-one")[0]
    >>> found = losses(LaplaceSanitizer(epsilon=1), pair)
    >>> float(found.amount), found.ratio, found.differences
    (1.0, 1.0, ())
    """

    unit: Unit
    steps: tuple[StepLoss, ...]
    price: Fraction
    items: Mapping[str, Fraction]
    tau: Fraction = Fraction(0)
    differences: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def amount(self) -> float | Fraction:
        """All steps together; infinite if questions differ."""
        if self.differences:
            return math.inf
        return sum((step.amount for step in self.steps), Fraction(0))

    @property
    def missed(self) -> float:
        """Probability with which some noise isn't of its law."""
        return sum(step.tau for step in self.steps)

    @property
    def by_item(self) -> dict[str, float | Fraction]:
        """The loss of each item."""
        lost: dict[str, float | Fraction] = dict.fromkeys(self.items, Fraction(0))
        for step in self.steps:
            lost[step.item] += step.amount
        return lost

    @property
    def ratio(self) -> float:
        """The loss in parts of its price, of all together or of the item that exceeds
        its price most; infinite where noise misses its law too often.
        """
        if self.missed > float(self.tau) * (1 + SURE):
            return math.inf
        largest = max(float(self.amount / self.price), 0.0)
        for item, lost in self.by_item.items():
            part = float(lost / self.items[item])
            if part > 1 + SURE:
                largest = max(largest, part)
        return largest

    @property
    def dearest(self) -> str:
        """The step that loses most of its price, for a message."""
        if self.differences:
            return f"the tables are asked different questions: {self.differences[0]}"
        if not self.steps:
            return "nothing is asked"
        if len(self.steps) == 1:
            return self.steps[0].step
        worst = max(self.steps, key=lambda step: float(step.amount / step.price))
        return f"{len(self.steps)} questions, most of its price by {worst.step}"


def losses(
    mechanism: Any,
    pair: Pair,
    *,
    seed: int = 0,
    loudness: float = 0.0,
    level: float = 0.0,
    plan: Plan | None = None,
    unit: Unit | None = None,
) -> PathLoss:
    """Return what a mechanism loses on a pair along one path of random public answers.

    The mechanism runs on both tables with the same answers. What counts is what the
    samplers are told, not what steps say. In a third run it holds the second table and
    measures the first one: what is asked must not depend on the table that is held.

    Parameters
    ----------
    mechanism : Mechanism
        With a plan.
    pair : Pair
        Two neighbouring tables.
    seed : int
        Of the answers. Public.
    loudness, level : float
        How large noisy numbers are: in standard deviations of their noise, and in
        records.
    plan : Plan, optional
        The mechanism's for this schema, if it is known.
    unit : {"epsilon", "rho"}, optional
        In which losses are added up; left out, that of the plan's kind. A pure plan has
        a rho, too.

    Returns
    -------
    PathLoss

    Raises
    ------
    InputError
        If the pair isn't neighbouring in the mechanism's relation, or the mechanism has
        no plan.

    Examples
    --------
    >>> from pdips.audit.neighbour_pairs import worst_pairs
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> pair = worst_pairs(schema, "replace-one")[0]
    >>> found = losses(Margins(epsilon=1, delta="1e-6"), pair)
    >>> found.unit, round(found.ratio, 9)
    ('rho', 1.0)
    """
    if not isinstance(mechanism, Mechanism):
        raise InputError("a path is followed for mechanisms that have a plan")
    check_relation(mechanism, pair)
    plan = plan or mechanism.plan(pair.first.schema)
    path = AnswerPath(seed=seed, loudness=loudness, level=level)
    first = follow(mechanism, plan, pair.first, path)
    second = follow(mechanism, plan, pair.second, path)
    crossed = follow(mechanism, plan, pair.second, path, measured=pair.first)
    return compared(plan, first, second, crossed, unit)


def compared(
    plan: Plan,
    first: PathRun,
    second: PathRun,
    crossed: PathRun,
    unit: Unit | None = None,
) -> PathLoss:
    """Return the loss between two runs along one path; in the run that is ``crossed``
    the second table was held, and the first one measured.
    """
    loss = plan.loss
    own: Unit = "rho" if loss.kind == "zcdp" else "epsilon"
    unit = unit or own
    price = plan.rho if unit == "rho" else loss.epsilon
    items = {spend.step: price * spend.epsilon / loss.epsilon for spend in plan.spends}
    if unit != own:  # items share the price in the other unit
        items = dict.fromkeys(items, price)
    differences = question_differences(first, second)
    differences += measured_differences(first, crossed)
    steps = () if differences else _step_losses(first, second, unit)
    return PathLoss(
        unit=unit,
        steps=tuple(steps),
        price=price,
        items=items,
        tau=loss.tau,
        differences=differences,
        refusal=first.refusal,
    )


def question_differences(first: PathRun, second: PathRun) -> tuple[str, ...]:
    """Return what two tables were asked differently along one path."""
    differences = []
    for one, other in zip(first.questions, second.questions, strict=False):
        unlike = [name for name, fact in one.facts.items() if other.facts[name] != fact]
        if unlike:
            differences.append(f"{one.step.name}: {', '.join(unlike)}")
        elif not _respond_alike(one, other):
            differences.append(f"{one.step.name}: how noise is added")
    if len(first.questions) != len(second.questions):
        differences.append("the number of questions")
    if first.refusal != second.refusal:
        differences.append("whether the mechanism refuses to go on")
    for reader in dict.fromkeys((*first.reads, *second.reads)):
        differences.append(f"{reader} reads the table beside what it asks")
    return tuple(differences)


def measured_differences(first: PathRun, crossed: PathRun) -> tuple[str, ...]:
    """Return which questions measure something else of one and the same table where
    another table is held.
    """
    differences = []
    for one, other in zip(first.questions, crossed.questions, strict=False):
        same = np.array_equal(one.exact, other.exact)
        if not (same and one.log_probabilities == other.log_probabilities):
            differences.append(f"{one.step.name}: what is measured")
    return tuple(differences)


def _respond_alike(one: AskedQuestion, other: AskedQuestion) -> bool:
    if one.response is None or other.response is None:
        return one.response is other.response
    if one.response is other.response:
        return True
    return not (one.response != other.response).nnz


def _step_losses(first: PathRun, second: PathRun, unit: Unit) -> Iterator[StepLoss]:
    for one, other in zip(first.questions, second.questions, strict=True):
        step = one.step
        price = step.rho if unit == "rho" else step.price
        amount, by = _step_loss(one, other, unit, price)
        yield StepLoss(
            step=step.name,
            item=one.item,
            amount=amount,
            price=price,
            by=by,
            tau=_missed(one),
        )


def _step_loss(
    one: AskedQuestion, other: AskedQuestion, unit: Unit, price: Fraction
) -> tuple[float | Fraction, Source]:
    step = one.step
    if step.law in NOISY:
        if step.image is not None and not is_linear(step.image, seed=0):
            return math.inf, "noise"
        return _of_noise(one, other, unit), "noise"
    if step.law == "exponential":
        return _of_scores(one, other, unit), "scores"
    if one.log_probabilities is not None:
        return _of_law(one, other, unit), "law"
    return price / step.times, "plan"


# ---- choices and distributions ----


def _of_scores(
    one: AskedQuestion, other: AskedQuestion, unit: Unit
) -> float | Fraction:
    """Return the loss of exponential mechanisms: nats a step times how far scores of
    two candidates move apart, row by row.
    """
    total = Fraction(0)
    for row, changed in zip(one.exact, other.exact, strict=True):
        open_ = row != UNAVAILABLE
        moved = changed[open_] - row[open_]
        total += one.unit * int(moved.max() - moved.min())
    return _range_rho(float(total)) if unit == "rho" else total


def _range_rho(width: float) -> float:
    """Return the rho of log ratios in an interval of a width: an eighth of its square,
    or what its epsilon implies.
    """
    return min(width**2 / 8, _pure_rho(width))


def _pure_rho(epsilon: float) -> float:
    """Return the rho of any draw of an epsilon: that of randomised response."""
    return epsilon * math.tanh(epsilon / 2)


def _of_law(one: AskedQuestion, other: AskedQuestion, unit: Unit) -> float:
    """Return the loss of a draw by the log ratio of its laws: by its range where that
    is what is priced, and by Rényi divergences where the rho has a proof of its own.
    """
    law = one.log_probabilities or {}
    changed = other.log_probabilities or {}
    if law.keys() != changed.keys():
        return math.inf
    log = np.array(list(law.values()))
    log_changed = np.array([changed[key] for key in law])
    ratios = log_changed - log
    if unit == "rho" and one.step.own_rho is not None:
        return max(_divergence_rho(log, log_changed), _divergence_rho(log_changed, log))
    if one.step.law == "bounded-range":
        width = float(ratios.max() - ratios.min())
        return _range_rho(width) if unit == "rho" else width
    most = float(np.abs(ratios).max())
    return _pure_rho(most) if unit == "rho" else most


def _divergence_rho(log: FloatArray, log_other: FloatArray) -> float:
    """Return the largest Rényi divergence of one law from another in parts of its
    order, at 40 orders.
    """
    order = ORDERS[:, None]
    moments = logsumexp(order * log + (1 - order) * log_other, axis=1)
    divergences = moments / (ORDERS - 1)
    return float((divergences / ORDERS).max())


# ---- numbers with noise ----


@dataclass(frozen=True, eq=False)
class NoiseBlock:
    """Numbers that share draws: which, and how they respond, shape (numbers, draws)."""

    numbers: IntArray
    draws: IntArray
    response: IntArray


def blocks_of_noise(response: csr_array) -> Iterator[NoiseBlock]:
    """Yield the numbers that share draws, apart from those with a draw of their own."""
    n_numbers = response.shape[0]
    graph = block_array([[None, response], [response.T, None]])
    _, label = connected_components(graph, directed=False)
    for block in np.unique(label):
        numbers = np.flatnonzero(label[:n_numbers] == block)
        draws = np.flatnonzero(label[n_numbers:] == block)
        if len(numbers) and len(draws):
            dense = response[numbers][:, draws].toarray()
            yield NoiseBlock(numbers, draws, dense)


def _of_noise(one: AskedQuestion, other: AskedQuestion, unit: Unit) -> float | Fraction:
    """Return the least cost of draws that make up for the difference of two answers."""
    if one.response is None:
        return math.inf
    # in whole numbers of any size
    there = other.shown.ravel().tolist()
    here = one.shown.ravel().tolist()
    apart = [a - b for a, b in zip(there, here, strict=True)]
    if not any(apart):
        return Fraction(0)
    if len(one.laws) != 1:
        return math.inf
    [law] = one.laws
    if (law, unit) == ("gaussian", "epsilon"):
        return math.inf
    if _has_draw_each(one.response):
        return _of_own_draws(one, apart, unit)
    return _of_shared_draws(one, np.array(apart, dtype=np.float64), unit)


def _of_shared_draws(one: AskedQuestion, difference: FloatArray, unit: Unit) -> float:
    """Return the loss of numbers that share draws, block by block."""
    assert one.response is not None
    n_noises = np.diff(one.response.indptr)
    if not n_noises[np.flatnonzero(difference)].all():
        return math.inf  # a number without noise
    parameters = np.array([float(parameter) for parameter in one.parameters])
    total = 0.0
    for block in blocks_of_noise(one.response):
        own = difference[block.numbers]
        if own.any():
            response = block.response.astype(np.float64)
            given = parameters[block.draws]
            if one.laws == {"gaussian"}:
                total += least_squares_cost(response, given, own)
            else:
                total += _absolute_cost(response, given, own, unit)
    return total


def _has_draw_each(response: csr_array) -> bool:
    """Whether no number has more than one draw, nor a draw more than one number."""
    ones = bool((response.data == 1).all())
    by_number = np.diff(response.indptr).max(initial=0)
    by_draw = np.bincount(response.indices, minlength=1).max(initial=0)
    return ones and max(by_number, by_draw) <= 1


def _of_own_draws(
    one: AskedQuestion, apart: Sequence[int], unit: Unit
) -> float | Fraction:
    """Return the loss of numbers that have a draw each, exactly."""
    assert one.response is not None
    start = one.response.indptr
    draws = one.response.indices
    total: float | Fraction = Fraction(0)
    for number in (k for k, difference in enumerate(apart) if difference):
        if start[number] == start[number + 1]:
            return math.inf  # a number without noise
        parameter = one.parameters[draws[start[number]]]
        difference = abs(apart[number])
        if one.laws == {"gaussian"}:
            total += Fraction(difference**2) / (2 * parameter)
        elif unit == "epsilon":
            total += difference / parameter
        else:
            total += laplace_rho(1 / float(parameter), difference)
    return total


def laplace_rho(rate: float, shift: float) -> float:
    """Return the exact rho of discrete Laplace noise of a rate, 1 / scale, for a number
    that moves by ``shift``.

    Examples
    --------
    >>> round(laplace_rho(1.0, 1), 6) == round(math.tanh(1 / 2), 6)
    True
    """
    moved = rate * shift
    if rate < 1e-3:  # sinh(rate) / rate is 1 + rate^2 / 6: no digit is lost
        return moved + math.expm1(-moved) / (1 + rate**2 / 6)
    if rate > 700:
        return moved
    return moved + rate * math.expm1(-moved) / math.sinh(rate)


def least_squares_cost(
    response: FloatArray, variances: FloatArray, difference: FloatArray
) -> float:
    """Return the minimum of sum z_j^2 / (2 variance_j) over B z = difference; infinite
    if no z makes up for it.

    z = V B' y is orthogonal to the kernel of B in the metric of V by construction. That
    it makes up for the difference is checked, so that no rank is taken on trust.

    Examples
    --------
    >>> differences = np.array([[-1.0, 1, 0], [0, -1, 1]])
    >>> round(least_squares_cost(differences, np.ones(3), np.array([1.0, 0])), 9)
    0.333333333
    """
    weighted = response * variances
    multipliers = np.linalg.lstsq(weighted @ response.T, difference, rcond=1e-13)[0]
    z = weighted.T @ multipliers
    if np.abs(response @ z - difference).max() > SURE * np.abs(difference).max():
        return math.inf
    return float(z @ (z / variances)) / 2


def _absolute_cost(
    response: FloatArray, scales: FloatArray, difference: FloatArray, unit: Unit
) -> float:
    """Return the minimum of sum |z_j| / scale_j over B z = difference, by linear
    programming; in rho what this epsilon implies.
    """
    both = np.concatenate([response, -response], axis=1)
    solution = linprog(np.tile(1 / scales, 2), A_eq=both, b_eq=difference)
    if solution.status != 0:
        return math.inf
    return _pure_rho(float(solution.fun)) if unit == "rho" else float(solution.fun)


def is_linear(image: LinearImage, seed: int) -> bool:
    """Whether an image is linear and whole-valued on random whole numbers."""
    rng = np.random.default_rng(seed)
    n = len(image.weights)
    one, other = rng.integers(-MOST_SHOWN, MOST_SHOWN, size=(2, 3, n))
    shown = image.show(one)
    sums = shown + image.show(other)
    is_additive = np.array_equal(sums, image.show(one + other))
    is_scaled = np.array_equal(3 * shown, image.show(3 * one))
    return is_additive and is_scaled and np.issubdtype(shown.dtype, np.integer)


# ---- noise that isn't quite of its law ----


def _missed(question: AskedQuestion) -> float:
    """Return the probability with which Gaussian noise isn't of the law G that its
    price is about, worked out from the variances that the sampler was told and the
    shapes of what is shown (``docs/proofs/margins.md``, lemma 5).
    """
    response = question.response
    if response is None or question.laws != {"gaussian"} or _has_draw_each(response):
        return 0.0
    total = 0.0
    for block in blocks_of_noise(response):
        if len(block.draws) == len(block.numbers):
            continue
        variances = {question.parameters[draw] for draw in block.draws}
        shape = difference_shape(block.response)
        if shape is None or len(variances) > 1:
            return math.inf
        total += 2 * smoothing(float(variances.pop()), shape)
    return total


def difference_shape(response: IntArray) -> tuple[int, ...] | None:
    """Return the numbers of levels of a margin of one or two columns whose differences
    are shown; None if it is something else.

    Differences of a pair are (L - 1) (M - 1) of L M counts, and tell nothing of sums
    over either column; those of a column nothing of its sum.
    """
    n_shown, n_draws = response.shape
    lost = n_draws - n_shown
    if lost == 1:
        return (n_draws,) if not response.sum(axis=1).any() else None
    # the numbers of levels add up to lost + 1, and multiply to n_draws
    square = (lost + 1) ** 2 - 4 * n_draws
    if square < 0 or math.isqrt(square) ** 2 != square:
        return None
    larger = (lost + 1 + math.isqrt(square)) // 2
    smaller = lost + 1 - larger
    if larger * smaller != n_draws:
        return None
    for shape in ((larger, smaller), (smaller, larger)):
        table = response.reshape(n_shown, *shape)
        if not (table.sum(axis=1).any() or table.sum(axis=2).any()):
            return shape
    return None


def smoothing(variance: float, shape: tuple[int, ...]) -> float:
    """Return eta of lemma 5: how far the mass of a shifted kernel can be from its mean,
    for differences of a margin of one or two columns.

    Examples
    --------
    >>> smoothing(14.0, (2,)) < 1e-50
    True
    """

    def log_theta(exponent: float) -> float:
        terms = (math.exp(-exponent * k**2) for k in range(1, 20))
        return math.log1p(2 * math.fsum(terms))

    if len(shape) == 1:
        return math.expm1(log_theta(2 * math.pi**2 * variance / shape[0]))
    first, last = shape
    of_first = first * log_theta(math.pi**2 * variance / last)
    of_last = last * log_theta(math.pi**2 * variance / first)
    return math.expm1(of_first + of_last)
