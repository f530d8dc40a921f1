"""The smallest epsilon at which counts are as near as asked for, from public facts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.margins.forecast import NoFormError, errors_of
from pdips.mechanism import Mechanism
from pdips.privacy.loss import exact, positive, spell
from pdips.privacy.noise_sum import NoiseSum

LEVEL = 0.95  # Probability with which a count is to be within its bound
SMALLEST = Fraction(1, 10_000)
LARGEST = Fraction(1_000)
PER_DECADE = 900  # Numbers of three significant digits: 1.00, 1.01, ..., 9.99


@dataclass(frozen=True)
class Want:
    """Margins in words, and how near their counts are to be: ``within`` is in records,
    or below 1 a share of the records.
    """

    margins: str
    within: Fraction

    @classmethod
    def of(cls, text: str) -> "Want":
        """Read "education x income within .005"."""
        margins, word, within = text.rpartition(" within ")
        if not word:
            raise InputError(
                f'--want must be like "age x sex within .005", with columns, or '
                f"one-way, two-way or all, got {text!r}"
            )
        return cls(margins.strip(), positive(within.strip(), "--want: within"))

    def in_records(self, n_records: int | None) -> float:
        """Return the bound in records."""
        if self.within >= 1:
            return float(self.within)
        if n_records is None:
            raise InputError(
                f"--want: within {spell(self.within)} is a share of the records: give "
                f"--records, a public number or guess"
            )
        return float(self.within) * n_records


@dataclass(frozen=True, kw_only=True)
class Enough:
    """The smallest epsilon, of three significant digits, that meets all that is wanted.

    ``hardest`` is the margin that is nearest to its ``bound``, both it and ``reached``
    in records.
    """

    epsilon: Fraction
    hardest: str
    reached: float
    bound: float


def smallest_epsilon(
    mechanism: Mechanism,
    schema: Schema,
    wants: Sequence[str],
    n_records: int | None = None,
) -> Enough:
    """Return the smallest epsilon at which each count is as near as wanted, with
    probability 95 %, by the noise alone.

    Parameters
    ----------
    mechanism : Mechanism
        With all settings but epsilon; the epsilons of a ``budget`` are scaled with it.
    schema : Schema
        What is public about the table.
    wants : sequence of str
        Such as ``"age x sex within .005"`` or ``"two-way within 200"``: columns, or
        one-way, two-way or all, or of modips a statistic; a number of records, or below
        1 a share of ``n_records``.
    n_records : int, optional
        A public number of records, or a public guess.

    Raises
    ------
    InputError
        If what is wanted can't be read, has no closed form, or isn't met at epsilon
        1,000; or if the mechanism's epsilon bounds nothing.

    Notes
    -----
    It is the error of the least squares counts (of trees), of the averages of noisy
    margins, or of noisy statistics, of the mean over all sets; before counts are made
    nonnegative, whole, and into records. Structural zeros are left out of account, with
    which errors are at most as large. Bounds come from the law of the weighted sum of
    noise, at most half a percent too wide. They fall as epsilon rises, so bisection
    finds the number: the next smaller one of three digits misses.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "sex": Column(levels=["f", "m"]),
    ...     }
    ... )
    >>> enough = smallest_epsilon(
    ...     LaplaceSanitizer(epsilon=1), schema, ["ill within 20", "all within 50"]
    ... )
    >>> float(enough.epsilon), enough.hardest
    (0.288, 'ill')
    """
    loss = mechanism.privacy_loss()
    if not loss.is_finite:
        raise InputError(
            f"the epsilon of {mechanism.name} with these settings bounds nothing (kind "
            f"{loss.kind}): there is no price to be found for it"
        )
    bounds = []
    for text in wants:
        want = Want.of(text)
        bounds.append((want.margins, want.in_records(n_records)))

    place = _place_of(SMALLEST)
    while True:
        enough = _hardest(mechanism, schema, bounds, _epsilon_at(place))
        if enough.reached <= enough.bound:
            return enough
        # nothing smaller meets the hardest margin; all are looked at again there
        place = _first_place(mechanism, schema, enough, place + 1)


def answer(
    mechanism: Mechanism,
    schema: Schema,
    wants: Sequence[str],
    n_records: int | None,
) -> str:
    """Return what ``pdips plan --want`` prints."""
    enough = smallest_epsilon(mechanism, schema, wants, n_records)
    share = f" ({enough.reached / n_records:.3g} of n)" if n_records else ""
    return (
        f"want      epsilon = {spell(enough.epsilon)} is the smallest that meets "
        f"{'it' if len(wants) == 1 else 'all'}: with probability {LEVEL:.0%} for each "
        f"count, by noise alone\n"
        f"          the hardest is {enough.hardest}, within {enough.reached:.4g} of "
        f"{enough.bound:.4g} records{share}"
    )


def _epsilon_at(place: int) -> Fraction:
    """Return the number of three significant digits at a place; 1 is at place 0."""
    decade, step = divmod(place, PER_DECADE)
    return Fraction(100 + step, 100) * Fraction(10) ** decade


def _place_of(power_of_ten: Fraction) -> int:
    return round(math.log10(power_of_ten)) * PER_DECADE


def _first_place(mechanism: Mechanism, schema: Schema, enough: Enough, low: int) -> int:
    """Return the first place, from ``low`` on, at which one margin is within its
    bound, by bisection.
    """
    bound = enough.bound

    def reached(place: int) -> float:
        one = [(enough.hardest, bound)]
        return _hardest(mechanism, schema, one, _epsilon_at(place)).reached

    high = _place_of(LARGEST)
    best = reached(high)
    if best > bound:
        raise InputError(
            f"--want isn't met at epsilon = {spell(LARGEST)}, the largest that is "
            f"tried: {enough.hardest} is within {best:.4g} of {bound:.4g} records; ask "
            f"for less"
        )
    while low < high:
        middle = (low + high) // 2
        if reached(middle) <= bound:
            high = middle
        else:
            low = middle + 1
    return high


def _hardest(
    mechanism: Mechanism,
    schema: Schema,
    bounds: Sequence[tuple[str, float]],
    epsilon: Fraction,
) -> Enough:
    """Return the margin that is nearest to its bound, or furthest above it."""
    plan = _with_epsilon(mechanism, epsilon).plan(schema)
    hardest = []
    for words, bound in bounds:
        try:
            errors = errors_of(plan, words)
        except NoFormError as error:
            raise InputError(
                f"--want: the errors of {mechanism.name} aren't known in closed form "
                f"here: {error}"
            ) from None
        except InputError as error:
            raise InputError(f"--want: {error}") from None
        name, reached = _least_exact(errors)
        hardest.append(
            Enough(epsilon=epsilon, hardest=name, reached=reached, bound=bound)
        )
    return max(hardest, key=lambda each: each.reached / each.bound)


def _least_exact(errors: dict[str, NoiseSum]) -> tuple[str, float]:
    """Return the margin whose counts have the widest interval, and half its width."""
    names = {error: name for name, error in errors.items()}
    widest = ("", -1.0)
    for error in sorted(names, key=lambda error: -error.standard_error):
        # by Chebyshev, none of the others is wider
        if error.standard_error / math.sqrt(1 - LEVEL) < widest[1]:
            break
        half_width = error.half_width(LEVEL)
        if half_width > widest[1]:
            widest = (names[error], half_width)
    return widest


def _with_epsilon(mechanism: Mechanism, epsilon: Fraction) -> Mechanism:
    changed: dict[str, Any] = {"epsilon": epsilon}
    budget = getattr(mechanism, "budget", None)
    if isinstance(budget, tuple):  # epsilons by layer, which add up to the total
        share = epsilon / exact(mechanism.epsilon, "epsilon")
        changed["budget"] = tuple(exact(part, "budget") * share for part in budget)
    return replace(mechanism, **changed)
