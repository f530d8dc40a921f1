"""The grid of epsilons that are compared, and the search on it in exact rationals."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from pdips.errors import InputError

SMALLEST = Fraction(1, 10_000)
GUESSES = 6
"""After so many epsilons, guesses by the law of errors give way to bisection."""

SLACK = 5e-3
"""Relative rise of an error with epsilon that is put down to how widths are worked out."""


@dataclass(frozen=True)
class EpsilonGrid:
    """Numbers of so many significant digits, in order: for three, 100, 101, ..., 999 times a power of ten.

    Parameters
    ----------
    digits : int
        How many.
    """

    digits: int

    @property
    def per_decade(self) -> int:
        """How many there are between a power of ten and the next."""
        return 9 * int(10 ** (self.digits - 1))

    def at(self, place: int) -> Fraction:
        """Return the number at a place; 1 is at place 0."""
        decade, step = divmod(place, self.per_decade)
        return Fraction(10 ** (self.digits - 1) + step, 10 ** (self.digits - 1)) * Fraction(10) ** decade

    def place_above(self, number: Fraction) -> int:
        """Return the place of the least number of the grid that is at least as large."""
        decade = math.floor(math.log10(number))
        decade += (Fraction(10) ** (decade + 1) <= number) - (Fraction(10) ** decade > number)
        step: int = math.ceil(number / Fraction(10) ** decade * 10 ** (self.digits - 1)) - self.per_decade // 9
        return decade * self.per_decade + step

    def place_below(self, number: Fraction) -> int:
        """Return the place of the largest number of the grid that is at most as large."""
        above = self.place_above(number)
        return above if self.at(above) == number else above - 1


@dataclass(frozen=True)
class Reached:
    """What was reached at one epsilon.

    Parameters
    ----------
    reached : float
        The largest error or width over all margins.
    monte_carlo_error : float
        Standard error of it; 0 in closed form.
    by_margin : dict of str to float
        The same by margin.
    """

    reached: float
    monte_carlo_error: float
    by_margin: dict[str, float]

    @property
    def worst(self) -> str:
        """The margin that is reached last."""
        return max(self.by_margin, key=lambda name: self.by_margin[name])

    @property
    def at_most(self) -> float:
        """What is compared with the target: two Monte Carlo standard errors more than what was found."""
        return self.reached + 2 * self.monte_carlo_error


def search(
    measure: Callable[[Fraction], Reached],
    target: float,
    largest: Fraction,
    grid: EpsilonGrid,
    *,
    smallest: Fraction = SMALLEST,
) -> tuple[Fraction, dict[Fraction, Reached]]:
    """Return the smallest epsilon of a grid at which a target is reached, and all that was measured on the way.

    Parameters
    ----------
    measure : callable
        From epsilon to what is reached there.
    target : float
        What is asked for.
    largest, smallest : Fraction
        Of the epsilons that are tried.
    grid : EpsilonGrid
        Of epsilons.

    Raises
    ------
    InputError
        If the target isn't reached at the largest epsilon; or, in closed form, an error rises with epsilon.
    """
    low, high = grid.place_above(smallest), grid.place_below(largest)
    found = {grid.at(high): measure(grid.at(high))}
    if found[grid.at(high)].at_most > target:
        raise _unreachable(target, grid.at(high), found[grid.at(high)])
    guess = 0
    while low < high:
        place = guess if low <= guess < high else (low + high) // 2
        epsilon = grid.at(place)
        found[epsilon] = measure(epsilon)
        reached = found[epsilon].at_most
        low, high = (low, place) if reached <= target else (place + 1, high)
        bisects = len(found) > GUESSES or not math.isfinite(reached)
        guess = (low + high) // 2 if bisects else _guess(grid, epsilon, reached / target)
    if grid.at(high) not in found:
        found[grid.at(high)] = measure(grid.at(high))
    found = dict(sorted(found.items()))
    _check_falls(list(found.values()))
    return grid.at(high), found


def _guess(grid: EpsilonGrid, epsilon: Fraction, ratio: float) -> int:
    """Return where the target would be met if errors went with 1 / epsilon, or just below if this epsilon meets it."""
    wanted = epsilon * Fraction(min(max(ratio, 1e-9), 1e9))
    return grid.place_above(wanted) if ratio > 1 else grid.place_below(wanted)


def _unreachable(target: float, epsilon: Fraction, found: Reached) -> InputError:
    about = (
        f", two Monte Carlo standard errors of {found.monte_carlo_error:.2g} included"
        if found.monte_carlo_error
        else ""
    )
    return InputError(
        f"the target of {target:g} isn't reached: at epsilon = {float(epsilon):g}, the largest that is tried, the best "
        f"is {found.at_most:.4g} ({found.worst}){about}; ask for less, or raise largest_epsilon"
    )


def _check_falls(found: list[Reached]) -> None:
    """Check that errors known in closed form don't rise with epsilon, or bisection would find nothing."""
    for before, after in pairwise(found):
        exact = not before.monte_carlo_error and not after.monte_carlo_error
        if exact and after.reached > before.reached * (1 + SLACK):
            raise InputError("the error rises with epsilon somewhere: other settings must not change with epsilon")
