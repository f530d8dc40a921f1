"""The universal histogram: intervals of one ordered column, or columns in random order (Hay et al. 2010; paper 000)."""

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.margins import intervals, laws, synthesis
from pdips.margins.counts import Plan
from pdips.margins.domain import Layer, check_domain, check_noise
from pdips.margins.intervals import IntervalPlan
from pdips.mechanism import MOST_SETS, Drawn, Split, Variant, check_settings, run, statement
from pdips.privacy.curator import Clock, Progress
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, as_float, exact
from pdips.privacy.noise import RandomBits, choice_log_probabilities, exponential_mechanism
from pdips.privacy.replay import ExactLaw as Law
from pdips.release.release import Release, RunRecord

MOST_NODES = 1_000_000
"""Depth is chosen so that no layer above the cells has more nodes than this, unless the user says otherwise."""

LARGEST_FAN_OUT = 1_000_000


@dataclass(frozen=True, kw_only=True)
class UniversalHistogram:
    """Noisy counts on a tree whose shape no record influences: intervals of one column, or columns in random order.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person.
    n_sets : int
        Number of synthetic sets.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public, and all sets have it.
    attribute : str, optional
        The column whose levels, in the order of the schema, are cut into intervals; the others are fully
        cross-tabulated below. May be left out where only one column isn't public. Otherwise: columns in random order.
    fan_out : int, optional
        Most intervals that an interval is cut into. Left out: the one, from 2 to 16 or all levels at once, with least
        average variance of a range of levels, found from numbers of levels alone (Qardaji, Yang and Li 2013).
    layers : int, optional
        Number of layers that split by one column, drawn evenly, the same in every branch. Left out: as many as keep the
        layers above the cells within a million nodes. For columns in random order only.
    split : {"once", "per-set"}
        One noisy tree for all sets, or a tree of its own, at epsilon / n_sets, for each.
    variant : {"sound", "published"}
        ``"published"`` is the accounting of paper 000: sensitivity 1 with a public number of records, and L paid layers
        of L + 1. Kind "none", for studies only.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    A record is in one node of each layer. Replacing it changes the counts of a layer by at most 2 in l1, adding or
    removing it by 1; each of the N noised layers has noise of scale 2 N / epsilon or N / epsilon, k times that for up
    to k records a person. The shape of the tree comes from public numbers of levels and from coins, and costs nothing.
    The root is exact under replace-one and not observed under add-remove. Counts are made consistent by generalised
    least squares, which for a complete tree is theorem 3 of Hay et al. Proof: ``docs/proofs/universal-histogram.md``.

    References
    ----------
    Hay, Rastogi, Miklau and Suciu (2010), "Boosting the accuracy of differentially private histograms through
    consistency". Paper 000, sections 3.1 and 4.2 ("modified UH").
    """

    name: ClassVar[str] = "universal-histogram"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one", "add-remove")
    variants: ClassVar[tuple[Variant, ...]] = ("sound", "published")
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")
    most_sets: ClassVar[int] = MOST_SETS

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    attribute: str | None = None
    fan_out: int | None = None
    layers: int | None = None
    split: Split = "once"
    variant: Variant = "sound"

    def __post_init__(self) -> None:
        check_settings(self, variant=self.variant, split=self.split)
        for name, least, most in (("fan_out", 2, LARGEST_FAN_OUT), ("layers", 1, None)):
            _check_whole(getattr(self, name), name, least, most)
        if self.layers is not None and self.attribute is not None:
            raise InputError(
                "layers goes with columns in random order; the tree of an attribute is as deep as fan_out makes it"
            )
        if self.layers is not None and self.fan_out is not None:
            raise InputError("layers goes with columns in random order, fan_out with the intervals of one: give one")

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of the release."""
        epsilon = exact(self.epsilon, "epsilon")
        if self.variant == "published":
            return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="none", statement=self._flaw(schema))
        law = (
            f"Counts on a tree {self._shape_in_words(schema)}, whose shape depends on the schema and on coins only: "
            "every count of every layer that is not public has exact discrete Laplace noise added, each layer paid "
            "for; the counts were then made consistent, which costs nothing."
        )
        return PrivacyLoss(
            epsilon=epsilon, neighbours=self.neighbours, kind="pure", statement=statement(self, schema, law)
        )

    def _shape_in_words(self, schema: Schema | None) -> str:
        attribute = self.attribute if schema is None else self.ordered(schema)
        if attribute is not None:
            return f"of intervals of {attribute}"
        return "of columns in random order" if schema else "of intervals of one column, or of columns in random order"

    def _flaw(self, schema: Schema | None) -> str:
        text = (
            "NO GUARANTEE. As published: sensitivity 1 for every layer although replacing a record changes two counts, "
            "and the budget divided over L layers although L + 1 are noised where columns remain below."
        )
        if schema is None:
            return text
        n_noised, n_layers = self._depth(schema)
        loss = exact(self.epsilon, "epsilon") * 2 * Fraction(n_noised, n_layers)
        return f"{text} The true loss is up to {float(loss):g}."

    def ordered(self, schema: Schema) -> str | None:
        """Return the column that is cut into intervals, None for a random order; checked against the schema."""
        free = _free_columns(schema)
        if self.attribute is not None and self.attribute not in free:
            raise InputError(
                f"attribute: {self.attribute!r} is no column of the schema that could be cut into intervals"
            )
        if self.attribute is not None or len(free) != 1:
            if self.attribute is None and self.fan_out is not None:
                raise InputError("fan_out goes with the intervals of one column: name it as attribute")
            return self.attribute
        if self.layers is not None and self.layers > 1:
            raise InputError(f"layers = {self.layers} is more than the 1 column that there is to split by")
        return None if self.layers else free[0]

    def interval_fan_out(self, schema: Schema) -> int:
        """Return the fan-out of the intervals, as given or the best one for this schema."""
        if self.fan_out is not None:
            return self.fan_out
        name = self.ordered(schema) or ""
        n_levels = schema.columns[name].n_levels
        n_below = math.prod(schema.columns[other].n_levels for other in _free_columns(schema) if other != name)
        return intervals.best_fan_out(n_levels, n_below, n_public=self.neighbours == "replace-one")

    def _depth(self, schema: Schema) -> tuple[int, int]:
        """Return the number of noised layers, and the number L over which the published variant divides the budget."""
        free = _free_columns(schema)
        attribute = self.ordered(schema)
        if attribute is not None:
            n_layers = len(intervals.interval_counts(schema.columns[attribute].n_levels, self.interval_fan_out(schema)))
            return n_layers + (len(free) > 1), n_layers
        n_layers = self.layers or _deepest(schema, free)
        if n_layers > len(free):
            raise InputError(f"layers = {n_layers} is more than the {len(free)} columns that there are to split by")
        return min(n_layers, len(free) - 1) + 1, n_layers

    def _n_trees(self) -> int:
        return self.n_sets if self.split == "per-set" else 1

    def budget(self, schema: Schema) -> tuple[Fraction, ...]:
        """Return the epsilon of each noised layer of one tree, for one person.

        In the published variant the last noised layer is missing where it is not paid.
        """
        n_noised, n_layers = self._depth(schema)
        divisor = n_layers if self.variant == "published" else n_noised
        return (exact(self.epsilon, "epsilon") / self._n_trees() / divisor,) * divisor

    def scales(self, schema: Schema) -> tuple[Fraction, ...]:
        """Return the scale of the noise on each layer below layer 0, in records; the last is that of the cells."""
        sensitivity = 2 if self.neighbours == "replace-one" and self.variant == "sound" else 1
        each = sensitivity * schema.records.max_per_person / self.budget(schema)[0]
        return (each,) * self._depth(schema)[0]

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: noised layers of each tree."""
        check_domain(schema, self.neighbours)
        check_noise(schema, self.neighbours, self.scales(schema))
        n_noised, trees = self._depth(schema)[0], range(1, self._n_trees() + 1)
        return tuple(
            Spend(step=f"noisy counts of {_layer(i, n_noised)}{synthesis.of_set(tree, len(trees))}", epsilon=epsilon)
            for tree in trees
            for i, epsilon in enumerate(self.budget(schema), start=1)
        )

    def plan(self, schema: Schema) -> Plan | IntervalPlan:
        """Return what is done to a table of this schema."""
        attribute, n_noised = self.ordered(schema), self._depth(schema)[0]
        n_public, n_trees, scales = self.neighbours == "replace-one", self._n_trees(), self.scales(schema)
        what = "node" if attribute is None else f"interval of {attribute}"
        names = (*(f"each {what} in layer {number}" for number in range(1, n_noised)), "each cell")
        if attribute is None:
            return Plan(scales=scales, chooser=Shuffled(), n_public=n_public, n_trees=n_trees, names=names)
        return IntervalPlan(
            attribute=attribute,
            fan_out=self.interval_fan_out(schema),
            scales=scales,
            n_public=n_public,
            n_trees=n_trees,
            names=names,
        )

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> IntArray:
        """Return the drawn columns and noisy counts of independent releases, one a row, for audits."""
        plan = self.plan(table.schema)
        if isinstance(plan, IntervalPlan):
            return intervals.observe(table, plan, n_runs, bits)
        return laws.observe(table, plan, n_runs, bits)

    def law(self, table: Table) -> Law:
        """Return the exact law, for audits of tiny tables."""
        plan = self.plan(table.schema)
        return intervals.law(table, plan) if isinstance(plan, IntervalPlan) else laws.law(table, plan)

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {**asdict(self), "epsilon": as_float(exact(self.epsilon, "epsilon"))}

    def release(
        self,
        table: Table,
        *,
        rng: np.random.Generator | None = None,
        ledger: Ledger | None = None,
        progress: Progress | None = None,
    ) -> tuple[Release, RunRecord]:
        """Spend the budget and draw a release.

        Parameters
        ----------
        table : Table
            The confidential table.
        rng : numpy.random.Generator, optional
            For tests and studies; a release made with one is marked reproducible.
        ledger : Ledger, optional
            Charged before any noise is drawn.
        progress : callable, optional
            Told the name of each step.

        Returns
        -------
        Release, RunRecord
            What may be published, and what stays inside.

        Raises
        ------
        InputError
            If ``attribute``, ``fan_out`` or ``layers`` don't fit the schema, it has unbinned columns or too many
            cells, or the ledger belongs to another table.
        RefusedError
            If the ledger's total would be overspent.
        """

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            plan = self.plan(table.schema)
            if isinstance(plan, IntervalPlan):
                return intervals.draw(table, plan, mechanism=self, bits=bits, clock=clock)
            return synthesis.draw(table, plan, mechanism=self, bits=bits, clock=clock)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)


@dataclass(frozen=True)
class Shuffled:
    """One column for all nodes of a layer, drawn evenly from those that no layer above has split. Reads no record."""

    def draw(
        self,
        number: int,
        layer: Layer,
        node: IntArray,
        codes: IntArray,
        *,
        counts: IntArray | None,
        n_runs: int,
        bits: RandomBits,
    ) -> IntArray:
        """Return the columns of independent runs, shape (runs, nodes)."""
        chosen = exponential_mechanism(np.tile(_even_scores(layer), (n_runs, 1)), Fraction(1), bits)
        return np.repeat(chosen[:, None], layer.n_nodes, axis=1)

    def outcomes(
        self, number: int, layer: Layer, node: IntArray, codes: IntArray, *, counts: IntArray | None
    ) -> tuple[IntArray, FloatArray]:
        """Return every column that could be drawn, shape (outcomes, nodes), and its log probability."""
        log_each = choice_log_probabilities(_even_scores(layer), Fraction(1))[0]
        columns = np.flatnonzero(np.isfinite(log_each))
        return np.repeat(columns[:, None], layer.n_nodes, axis=1), log_each[columns]


def _even_scores(layer: Layer) -> IntArray:
    """Return one row of equal scores, the smallest int64 for columns that have been split."""
    return np.where(layer.path[:1] < 0, 0, np.iinfo(np.int64).min)


def _check_whole(value: int | None, name: str, least: int, most: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value}")
    if most is not None and value > most:
        raise InputError(f"{name} must be at most {most:,}, got {value:,}")


def _free_columns(schema: Schema) -> list[str]:
    return [name for name in schema.columns if name not in schema.public_columns]


def _deepest(schema: Schema, columns: list[str]) -> int:
    """Return how many layers any order of the columns keeps within ``MOST_NODES`` nodes; at least 1."""
    sizes = sorted((schema.columns[name].n_levels for name in columns), reverse=True)
    top = math.prod(schema.columns[name].n_levels for name in schema.public_columns)
    nodes = [top * math.prod(sizes[:n_layers]) for n_layers in range(1, len(sizes) + 1)]
    return max(sum(number <= MOST_NODES for number in nodes), 1)


def _layer(number: int, n_noised: int) -> str:
    return f"layer {number}" if number < n_noised else "all cells"
