"""Counts given noisy ones where the number of records isn't known: first the number, then the counts."""

from dataclasses import dataclass

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.statistics.count_trees import Kinds, Tree

FAR = 25.0
"""The number of records is followed until its log posterior is this far below the best."""

TRUSTED = 1e-11
"""Of a tree of sums those are used whose weight is at least this share of the largest: the rest is for other tilts."""

MOST_TREES = 2_000


@dataclass(frozen=True)
class _Stretch:
    """Numbers of records from ``low`` on, their log posterior up to a constant, and the tree that splits them."""

    low: int
    logs: FloatArray
    tree: Tree

    @property
    def high(self) -> int:
        return self.low + len(self.logs) - 1


def draw_unknown(kinds: Kinds, inverse: IntArray, n_draws: int, rng: np.random.Generator) -> IntArray:
    """Draw counts, shape (draws, leaves of the tree), cells in the order of their kinds.

    Notes
    -----
    A flat prior on n and counts that are Dirichlet-multinomial given n: n has posterior proportional to
    R(n) n! Gamma(A) / Gamma(A + n) with A the sum of the prior's parameters and R(n) the weight of all tables that add
    up to n, from trees of sums tilted to n, each good for a stretch of numbers; stretches are joined until both ends
    are e^-25 below the best.
    """
    stretches = _followed(kinds, inverse)
    logs = np.concatenate([each.logs for each in stretches])
    weights = np.exp(logs - logs.max())
    places = rng.choice(len(logs), size=n_draws, p=weights / weights.sum())
    numbers = np.concatenate([each.low + np.arange(len(each.logs)) for each in stretches])[places]
    owners = np.repeat(np.arange(len(stretches)), [len(each.logs) for each in stretches])[places]
    found = np.zeros((n_draws, 1 << stretches[0].tree.n_levels), dtype=np.int64)
    for owner in np.unique(owners):
        mine = owners == owner
        found[mine] = stretches[owner].tree.draw(numbers[mine], rng)
    return found


def _followed(kinds: Kinds, inverse: IntArray) -> list[_Stretch]:
    start = int(np.clip(kinds.noisy @ kinds.multiplicity, 0, kinds.n))
    found = [_stretch(kinds, inverse, start, 0, kinds.n)]
    for up in (False, True):
        while not _ended(found, kinds, up):
            if len(found) >= MOST_TREES:
                raise InputError("the noisy counts leave the number of records open too widely: take a larger epsilon")
            edge, width = found[-1 if up else 0], len(found[-1 if up else 0].logs)
            if up:
                found.append(_stretch(kinds, inverse, edge.high + 1 + width // 3, edge.high + 1, kinds.n))
            else:
                found.insert(0, _stretch(kinds, inverse, edge.low - 1 - width // 3, 0, edge.low - 1))
    return found


def _ended(found: list[_Stretch], kinds: Kinds, up: bool) -> bool:
    edge = found[-1 if up else 0]
    best = max(float(each.logs.max()) for each in found)
    last, at_end = (edge.logs[-1], edge.high >= kinds.n) if up else (edge.logs[0], edge.low <= 0)
    return bool(at_end or (last < best - FAR and last < (edge.logs[0] if up else edge.logs[-1])))


def _stretch(kinds: Kinds, inverse: IntArray, aim: int, least: int, most: int) -> _Stretch:
    """Return a stretch about ``aim`` that begins at ``least`` or ends at ``most`` if these are near."""
    aim = int(np.clip(aim, least, most))
    while True:
        tilt = kinds.tilt(aim)
        tree = Tree(kinds.leaves(tilt), np.sort(inverse), kinds.n)
        root = tree.root
        kept = np.flatnonzero(root.weights > TRUSTED * root.weights.max())
        low, high = max(root.low + int(kept[0]), least), min(root.low + int(kept[-1]), most)
        beyond = least > 0 and low > least, most < kinds.n and high < most
        if not any(beyond) or aim in (least, most):
            break
        aim = (aim + least) // 2 if beyond[0] else (aim + most + 1) // 2  # no gap may be left
    numbers = np.arange(low, high + 1)
    logs = np.log(root.weights[numbers - root.low]) + root.log_scale - tilt * numbers
    return _Stretch(low, logs + _log_marginal(numbers, float(kinds.alpha @ kinds.multiplicity)), tree)


def _log_marginal(n: IntArray, total: float) -> FloatArray:
    """Return log n! Gamma(A) / Gamma(A + n)."""
    from scipy.special import gammaln

    return np.asarray(gammaln(n + 1.0) + gammaln(total) - gammaln(total + n), dtype=np.float64)
