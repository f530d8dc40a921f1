"""Elections of the columns that split a tree, by an exponential mechanism with AIC or
BIC as its utility.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import Literal

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.table import Table, tally
from pdips.margins.domain import Domain, Layer
from pdips.margins.tree import Position
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import UNAVAILABLE
from pdips.privacy.plan import Step
from pdips.privacy.sensitivity import n_changed

Utility = Literal["aic", "bic"]

# AIC is rounded to a public grid of this many steps a unit (2 units are whole steps)
STEPS_PER_UNIT = 1024
# Columns that an election of groups can divide: it has 2^columns - 2 candidates
MOST_GROUPED = 16


def node_width(neighbours: Neighbours) -> Fraction:
    """Return by how much the scores of an election among columns can spread between
    neighbouring tables, in units.

    One step g of the grid more than the sensitivity 2 allows for rounding at a
    boundary, on each side: a score that should rise by [0, 2] rises by [-g, 2 + g].
    Hence 2 + 2 g where one node changes, and twice that under replace-one, where a
    record can leave one node and enter another.
    """
    return n_changed(neighbours) * (2 + 2 * Fraction(1, STEPS_PER_UNIT))


def group_width(neighbours: Neighbours) -> Fraction:
    """Return the same for an election of groups, whose score is a difference of two
    means of AIC.

    Under add-remove each AIC rises by [-g, 2 + g], so the difference moves by at most 2
    + 2 g either way, and g more for its own rounding; under replace-one each AIC moves
    by 2 + g either way, the difference by 4 + 2 g. The scores of two candidates can
    move in opposite directions.
    """
    grid = Fraction(1, STEPS_PER_UNIT)
    return 2 * (2 + 3 * grid) if neighbours == "add-remove" else 2 * (4 + 3 * grid)


@dataclass(frozen=True, kw_only=True)
class ElectedColumns:
    """Columns are elected by the exponential mechanism with utility -AIC or -BIC."""

    domain: Domain
    steps: tuple[Step, ...]  # The election of each layer
    # One election for all nodes of a layer, by the sum of their scores, in place of one
    # each
    by_layer: bool = False
    # A free parameter costs 2 units (aic), or the log of the public number of records
    # (bic)
    utility: Utility = "aic"
    # Count the levels that occur (Bowen et al. 2021) in place of the public ones
    observed_levels: bool = False

    @property
    def given(self) -> None:
        """None: elections say which columns split."""
        return None

    def columns(
        self,
        number: int,
        layer: Layer,
        position: Position,
        curator: Curator,
    ) -> IntArray:
        """Return the columns that the nodes of a layer elect, shape (nodes,)."""
        penalty = 2.0
        if self.utility == "bic":
            penalty = math.log(max(curator.n_records, 2))

        def scores(table: Table) -> IntArray:
            node = position.node(table)
            codes = position.codes(table)
            of_nodes = election_scores(
                self.domain,
                layer,
                node,
                codes,
                table.counts,
                penalty=penalty,
                observed_levels=self.observed_levels,
            )
            return together(of_nodes, layer) if self.by_layer else of_nodes

        chosen = curator.choose(self.steps[number - 1], scores)
        return np.broadcast_to(chosen, layer.n_nodes)


def together(scores: IntArray, layer: Layer) -> IntArray:
    """Add up the scores of the nodes of a layer that are still open."""
    counted = scores[layer.counted] if layer.counted.any() else scores
    total: IntArray = counted.sum(axis=0, keepdims=True)
    total[:, (counted == UNAVAILABLE).any(axis=0)] = UNAVAILABLE
    return total


@dataclass(frozen=True, kw_only=True)
class GroupElection:
    """Elects which columns go into layer 1 and which below: the clusters of Bowen et
    al. (2021), section 2.2.3.

    The utility of a division is the mean AIC of the group below less that of the group
    on top. The paper takes its absolute value and then puts the group with the smaller
    mean on top, which reads the table once more, without noise; here the candidates are
    ordered divisions, so that the election itself says which group is on top.
    """

    domain: Domain
    step: Step

    @cached_property
    def free(self) -> list[int]:
        """Positions of the columns that aren't public."""
        return [j for j in range(len(self.domain.names)) if j not in self.domain.public]

    @cached_property
    def candidates(self) -> list[tuple[int, ...]]:
        """The groups that can be on top, as positions of columns."""
        sizes = range(1, len(self.free))
        return [group for size in sizes for group in combinations(self.free, size)]

    def elect(self, position: Position, curator: Curator) -> tuple[int, ...]:
        """Return the columns on top."""
        chosen = curator.choose(
            self.step, lambda table: self._scores(position.codes(table), table.counts)
        )
        return self.candidates[int(chosen[0])]

    def _scores(self, codes: IntArray, counts: IntArray | None) -> IntArray:
        aic = dict[int, int]()
        for j in self.free:
            by_level = tally(codes[:, j], counts, int(self.domain.sizes[j]))
            (steps,) = aic_steps(by_level[None], penalty=2.0)
            aic[j] = int(steps)
        total = sum(aic.values())
        scores = list[int]()
        for group in self.candidates:
            inside = sum(aic[j] for j in group)
            n_in = len(group)
            n_out = len(self.free) - n_in
            difference = (total - inside) * n_in - inside * n_out
            scores.append(difference // (n_in * n_out))
        return np.array(scores, dtype=np.int64)[None]


def election_scores(
    domain: Domain,
    layer: Layer,
    node: IntArray,
    codes: IntArray,
    counts: IntArray | None = None,
    *,
    penalty: float = 2.0,
    observed_levels: bool = False,
) -> IntArray:
    """Return -AIC (or -BIC) of splitting each node by each column, in whole grid steps,
    shape (nodes, columns).

    ``node`` says where each row of levels is, and ``counts`` how many records it stands
    for, 1 unless given. Columns that have been split already have the smallest int64.
    """
    scores = np.full((layer.n_nodes, len(domain.names)), UNAVAILABLE, dtype=np.int64)
    for column, size in enumerate(domain.sizes):
        open_ = layer.path[:, column] < 0
        if open_.any():
            level = node * size + codes[:, column]
            by_level = tally(level, counts, layer.n_nodes * size)
            steps = aic_steps(
                by_level.reshape(layer.n_nodes, size),
                penalty=penalty,
                observed_levels=observed_levels,
            )
            scores[open_, column] = -steps[open_]
    return scores


def aic_steps(
    counts: IntArray, *, penalty: float, observed_levels: bool = False
) -> IntArray:
    """Return AIC, or BIC, of each row of counts, rounded to whole steps of the grid."""
    aic = one_way_aic(counts, penalty=penalty, observed_levels=observed_levels)
    return np.floor(aic * STEPS_PER_UNIT + 0.5).astype(np.int64)


def one_way_aic(
    counts: IntArray, *, penalty: float = 2.0, observed_levels: bool = False
) -> FloatArray:
    """Return the AIC of the saturated one-way multinomial model of each row of counts.

    With h(m) = log m! - m log m the log-likelihood is h(n) - sum_k h(n_k)
    (docs/proofs/steps.md, lemma 1). Since the counts of a row add up to n, h may be
    replaced by h(m) + m, which stays small: no large terms cancel, and the error is
    below 1e-9 for any table that fits in memory.

    A free parameter costs ``penalty`` units: 2 for AIC; for BIC the logarithm of a
    *public* number of records, which leaves the sensitivity as it is. With
    ``observed_levels`` only levels that occur count as parameters.
    """
    n_levels = (counts > 0).sum(axis=1) if observed_levels else counts.shape[1]
    of_levels = _log_factorial_rest(counts).sum(axis=1)
    spread = of_levels - _log_factorial_rest(counts.sum(axis=1))
    return np.asarray(2 * spread + penalty * (n_levels - 1), dtype=np.float64)


def _log_factorial_rest_of(m: int) -> float:
    return math.lgamma(m + 1) - m * math.log(m) + m if m else 0.0


_SMALL = np.array([_log_factorial_rest_of(m) for m in range(256)])


def _log_factorial_rest(counts: IntArray) -> FloatArray:
    """Return log m! - m log m + m: exactly tabulated below 256, Stirling's series
    (error below 1e-15) above.
    """
    m = np.maximum(counts, 1).astype(np.float64)
    leading = 0.5 * np.log(2 * np.pi * m)
    series = leading + 1 / (12 * m) - 1 / (360 * m**3)
    tabulated = _SMALL[np.minimum(counts, len(_SMALL) - 1)]
    return np.where(counts < len(_SMALL), tabulated, series)
