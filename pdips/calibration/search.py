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
    """Numbers of so many significant digits, in order: for three, 100, 101, ..., 999 times a power of ten."""

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
    """The largest error or width over all margins at one epsilon, and that of each."""

    reached: float
    monte_carlo_error: float  # standard error of it; 0 in closed form
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

    A target that isn't reached at the largest epsilon is refused, and, in closed form, an error that rises.
    """
    low, high = grid.place_above(smallest), grid.place_below(largest)
    top = grid.at(high)
    best = measure(top)
    found = {top: best}
    if best.at_most > target:
        error = best.monte_carlo_error
        about = f", two Monte Carlo standard errors of {error:.2g} included" if error else ""
        raise InputError(
            f"the target of {target:g} isn't reached: at epsilon = {float(top):g}, the largest that is tried, the best "
            f"is {best.at_most:.4g} ({best.worst}){about}; ask for less, or raise largest_epsilon"
        )
    guess = 0
    while low < high:
        place = guess if low <= guess < high else (low + high) // 2
        epsilon = grid.at(place)
        found[epsilon] = measure(epsilon)
        ratio = found[epsilon].at_most / target
        low, high = (low, place) if ratio <= 1 else (place + 1, high)
        if len(found) > GUESSES or not math.isfinite(ratio):
            guess = (low + high) // 2
        else:  # where the target would be met if errors went with 1 / epsilon, or just below if this epsilon meets it
            wanted = epsilon * Fraction(min(max(ratio, 1e-9), 1e9))
            guess = grid.place_above(wanted) if ratio > 1 else grid.place_below(wanted)
    if grid.at(high) not in found:
        found[grid.at(high)] = measure(grid.at(high))
    found = dict(sorted(found.items()))
    for before, after in pairwise(found.values()):
        exact = not before.monte_carlo_error and not after.monte_carlo_error
        if exact and after.reached > before.reached * (1 + SLACK):
            raise InputError("the error rises with epsilon somewhere: other settings must not change with epsilon")
    return grid.at(high), found
