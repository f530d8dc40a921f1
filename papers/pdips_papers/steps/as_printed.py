"""Histogram mechanisms as papers 000, 001 and 003 print them: what they claim isn't
what they guarantee.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from pdips.arrays import IntArray
from pdips.bayes_net.privbayes import PrivBayes
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.histogram.laplace import LaplaceSanitizer, PerturbedHistogram
from pdips.margins.elections import (
    STEPS_PER_UNIT,
)
from pdips.margins.steps import Below, Steps, divide
from pdips.margins.universal_histogram import UniversalHistogram
from pdips.privacy.loss import exact
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips_papers.harness.printed import Printed


class PrintedCounts(Printed):
    """Counts with half their sensitivity."""

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return what the papers take it for."""
        return Sensitivity.of_record(schema, l1=1)


@dataclass(frozen=True, kw_only=True)
class PrintedSanitizer(PrintedCounts, LaplaceSanitizer):
    """The Laplace sanitizer with sensitivity 1 and a public number of records: twice
    the claimed loss.
    """


@dataclass(frozen=True, kw_only=True)
class PrintedHistogram(PrintedSanitizer, PerturbedHistogram):
    """The perturbed histogram of Bowen and Liu (2020), equation 3.1, with the same
    sensitivity.
    """


class PrintedTree(PrintedCounts):
    """A tree all of whose steps cost twice their price."""

    def plan(self, schema: Schema) -> Plan:
        """Return the plan with the papers' prices."""
        plan = super().plan(schema)
        true_loss = 2 * plan.repeats * sum(step.price for step in plan.steps)
        text = f"{self.flaw} The true loss is up to {float(true_loss):g}."
        return replace(
            plan, kind="none", law=text, claim=exact(self.epsilon, "epsilon")
        )


@dataclass(frozen=True, kw_only=True)
class PrintedSteps(PrintedTree, Steps):
    """STEPS as papers 000 and 001 account for it: down to all cells, its layers paid
    equally.
    """

    observed_levels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.stop, self.budget) != (None, None) or self.below == "views":
            raise InputError(
                "variant 'published' is the papers' tree down to all cells, its "
                "layers paid equally: no views below, "
                "no stop, no budget"
            )
        if self.elect == "groups" or self.utility == "bic":
            raise InputError(
                "variant 'published' elects by AIC, one column a node "
                "or a layer: the rest is sound only"
            )

    def _below(self) -> Below:
        return "cells"

    def paid(self, n_layers: int, n_items: int) -> int:
        """Return the number of layers that the papers pay for."""
        return n_layers

    def election_sensitivity(self, schema: Schema) -> Sensitivity:
        """Return what the papers take it for, in steps of the grid of scores."""
        return Sensitivity.of_record(schema, l1=4 * STEPS_PER_UNIT)


NO_NOISE = Fraction(10_000)
"""Price of an election without noise: between two scores that are 0.01 units of AIC
apart the better one is taken but for one time in 10^10.
"""

UPPER_SENSITIVITY = Fraction(1, 2)
"""That of a layer above the leaves, in section 3.1 of Bowen and Liu (2018)."""


@dataclass(frozen=True, kw_only=True)
class AsRunSteps(PrintedTree, Steps):
    """STEPS as Bowen and Liu (2018) ran it: each node splits by the column with the
    smallest AIC, without noise on the choice, and counts have sensitivity 1/2 above the
    leaves and 1 at them.
    """

    def plan(self, schema: Schema) -> Plan:
        """Return the plan, which bounds nothing: choices have no price."""
        return replace(super().plan(schema), law=self.flaw)

    def _below(self) -> Below:
        return "cells"

    def _prices(
        self, elections: Sequence[Step], n_layers: int, n_noised: int
    ) -> list[Fraction]:
        """Return the prices at which the right noise is as small as the paper's."""
        total = exact(self.epsilon, "epsilon")
        parts = divide(self.budget or "half-to-leaves", total, n_noised, n_noised)
        return as_run_prices(parts, self.rounds)

    def _elections(
        self, schema: Schema, n_split: int, n_layers: int
    ) -> tuple[Step, ...]:
        """Return elections that take the smallest AIC."""
        elections = super()._elections(schema, n_split, n_layers)
        return tuple(replace(step, price=NO_NOISE) for step in elections)


def as_run_prices(parts: Sequence[Fraction], rounds: int) -> list[Fraction]:
    """Return what layers would cost at sensitivity 1 with the noise that they have at
    1/2 above the leaves; ``parts`` are their shares of epsilon, the leaves' last.
    """
    *upper, leaves = parts
    return [*(part / UPPER_SENSITIVITY / rounds for part in upper), leaves / rounds]


@dataclass(frozen=True, kw_only=True)
class AsRunPartition(PrintedTree, UniversalHistogram):
    """Random Partition-L as Bowen and Liu (2018) ran it: noise as in
    :class:`AsRunSteps`, half of epsilon to the leaves.
    """

    def _step(self, schema: Schema, name: str, counts: str) -> Step:
        n_noised, _ = self.depth(schema)
        total = exact(self.epsilon, "epsilon")
        parts = divide("half-to-leaves", total, n_noised, n_noised)
        prices = as_run_prices(parts, self.rounds)
        price = prices[-1] if name == "all cells" else prices[0]
        return replace(super()._step(schema, name, counts), price=price)


@dataclass(frozen=True, kw_only=True)
class PrintedUniversal(PrintedTree, UniversalHistogram):
    """The universal histogram by the accounting of Bowen et al. (2021)."""

    def paid(self, schema: Schema) -> int:
        """Return the number of layers that the paper pays for."""
        return self.depth(schema)[1]


INFORMATION_STEPS = 64
"""Steps a nat of the grid on which mutual information, times the records, is
rounded.
"""


def mutual_information(counts: IntArray) -> int:
    """Return n times the mutual information of a family, in whole steps of the
    grid.
    """
    nats = 0.0
    entropies = (
        (1, counts),
        (1, counts.sum(keepdims=True)),
        (-1, counts.sum(axis=0)),
        (-1, counts.sum(axis=1)),
    )
    for sign, numbers in entropies:
        filled = numbers[numbers > 1].astype(np.float64)
        nats += sign * float((filled * np.log(filled)).sum())
    return math.floor(nats * INFORMATION_STEPS + 0.5)


def information_sensitivity(n: int, *, binary: bool) -> int:
    """Return by how much ``mutual_information`` may move when one of ``n`` records is
    replaced: Zhang et al. (2017), lemma 1, and two steps for rounding.
    """
    if n == 1:
        return 1  # mutual information is 0 for every table of one record
    if binary:
        nats = math.log(n) + (n - 1) * math.log1p(1 / (n - 1))
    else:
        nats = 2 * math.log((n + 1) / 2) + (n - 1) * math.log1p(2 / (n - 1))
    return math.floor(nats * INFORMATION_STEPS) + 2


@dataclass(frozen=True, kw_only=True)
class PrintedPrivBayes(Printed, PrivBayes):
    """PrivBayes as the DataSynthesizer code of Bowen et al. (2021) had it until March
    2021: families told apart by mutual information, and noise n times too small.
    """

    def family_score(self, counts: IntArray) -> int:
        """Return n times the mutual information, in steps of the grid of scores."""
        return mutual_information(counts)

    def score_sensitivity(self, n_records: int, *, binary: bool) -> int:
        """Return that of Zhang et al. (2017), lemma 1, times n and rounded up."""
        return information_sensitivity(n_records, binary=binary)

    def plan(self, schema: Schema) -> Plan:
        """Return the plan, which bounds nothing: nor has it a rho."""
        plan = super().plan(schema)
        *choices, tables = plan.steps
        tables = replace(tables, own_rho=tables.price)
        return replace(plan, steps=(*choices, tables))

    def table_units(self, n_tables: int, n_records: int) -> Fraction:
        """Return the sensitivity of shares of records, which the code takes for that of
        counts.
        """
        return Fraction(n_tables, n_records)

    def table_sensitivity(self, schema: Schema) -> Sensitivity:
        """Return that of a person with one record."""
        return Sensitivity.of_person(l1=2)
