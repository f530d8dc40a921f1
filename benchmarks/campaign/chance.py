"""Random choices, by a generator that a number of a request seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np


class Chance:
    """Draws what a request consists of: plain Python values, which can be printed and
    pasted.
    """

    def __init__(self, *seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def maybe(self, probability: float) -> bool:
        """Whether something of this probability happens."""
        return bool(self._rng.random() < probability)

    def whole(self, low: int, high: int) -> int:
        """Return a whole number between two, both included."""
        return int(self._rng.integers(low, high + 1))

    def between(self, low: float, high: float) -> float:
        """Return a number between two."""
        return float(self._rng.uniform(low, high))

    def one[T](self, of: Sequence[T]) -> T:
        """Return one of several."""
        return of[self.whole(0, len(of) - 1)]

    def some[T](self, of: Sequence[T], least: int, most: int) -> list[T]:
        """Return some of several, none twice, in random order."""
        n_some = min(self.whole(least, max(least, most)), len(of))
        places = self._rng.permutation(len(of))[:n_some]
        return [of[place] for place in places.tolist()]

    def option(self, options: dict[str, Any], name: str, *values: Any) -> None:
        """Set an option of a mechanism in three of ten requests."""
        if self.maybe(0.3):
            options[name] = self.one(values)
