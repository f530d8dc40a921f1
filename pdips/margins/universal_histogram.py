"""The universal histogram: intervals of one ordered column, or columns in random order (Hay et al. 2010; paper 000)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.margins import intervals, synthesis
from pdips.margins.domain import Layer, check_domain, check_noise, deepest, domain_of, splittable
from pdips.margins.intervals import IntervalTree
from pdips.margins.tree import Position, TreeDesign
from pdips.mechanism import Drawn, Mechanism, Split
from pdips.privacy.curator import Curator
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity

LARGEST_FAN_OUT = 1_000_000


@dataclass(frozen=True, kw_only=True)
class UniversalHistogram(Mechanism):
    """Noisy counts on a tree whose shape no record influences: intervals of one column, or columns in random order.

    ``epsilon``, ``n_sets`` and ``neighbours`` are those of :class:`pdips.Mechanism`.

    Parameters
    ----------
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

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate({"columns": {"age": {"lower": 0, "upper": 100, "bins": 20}}})
    >>> table = pdips.Table(pd.DataFrame({"age": [31, 64, 50]}), schema)
    >>> release, _ = UniversalHistogram(epsilon=1, attribute="age").release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "universal-histogram"
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")

    attribute: str | None = None
    fan_out: int | None = None
    layers: int | None = None
    split: Split = "once"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("fan_out", 2), ("layers", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InputError(f"{name} must be a whole number of at least {least}, got {value}")
        if self.fan_out is not None and self.fan_out > LARGEST_FAN_OUT:
            raise InputError(f"fan_out must be at most {LARGEST_FAN_OUT:,}, got {self.fan_out:,}")
        if self.layers is not None and self.attribute is not None:
            raise InputError(
                "layers goes with columns in random order; the tree of an attribute is as deep as fan_out makes it"
            )
        if self.layers is not None and self.fan_out is not None:
            raise InputError("layers goes with columns in random order, fan_out with the intervals of one: give one")

    def ordered(self, schema: Schema) -> str | None:
        """Return the column that is cut into intervals, None for a random order; checked against the schema."""
        free = splittable(schema)
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
        n_below = math.prod(schema.columns[other].n_levels for other in splittable(schema) if other != name)
        return intervals.best_fan_out(n_levels, n_below, n_public=self.neighbours == "replace-one")

    def depth(self, schema: Schema) -> tuple[int, int]:
        """Return the number of noised layers, and the number L of those that split by the column, or by columns."""
        free = splittable(schema)
        attribute = self.ordered(schema)
        if attribute is not None:
            n_layers = len(intervals.interval_counts(schema.columns[attribute].n_levels, self.interval_fan_out(schema)))
            return n_layers + (len(free) > 1), n_layers
        n_layers = self.layers or deepest(schema)
        if n_layers > len(free):
            raise InputError(f"layers = {n_layers} is more than the {len(free)} columns that there are to split by")
        return min(n_layers, len(free) - 1) + 1, n_layers

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return how far one person moves the counts of a layer."""
        return Sensitivity.of_counts(schema, self.neighbours)

    def paid(self, schema: Schema) -> int:
        """Return by how many noised layers the budget is divided."""
        return self.depth(schema)[0]

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: noisy counts of each layer, the last one that of all cells."""
        check_domain(schema, self.neighbours)
        rounds = self.n_sets if self.split == "per-set" else 1
        domain, attribute, n_noised = domain_of(schema), self.ordered(schema), self.depth(schema)[0]
        what = "node" if attribute is None else f"interval of {attribute}"
        names = [(f"layer {number}", f"each {what} in layer {number}") for number in range(1, n_noised)]
        steps = tuple(
            Step(
                name=f"noisy counts of {name}",
                counts=counts,
                sensitivity=self.sensitivity(schema),
                price=self.per_round(rounds) / self.paid(schema),
            )
            for name, counts in [*names, ("all cells", "each cell")]
        )
        check_noise(schema, self.neighbours, [step.scale for step in steps])
        design: TreeDesign | IntervalTree = TreeDesign(domain=domain, layers=steps, splitter=ShuffledColumns())
        if attribute is not None:
            column, fan_out = domain.names.index(attribute), self.interval_fan_out(schema)
            design = IntervalTree(domain=domain, column=column, fan_out=fan_out, steps=steps)
        shape = "of columns in random order" if attribute is None else f"of intervals of {attribute}"
        return Plan(
            mechanism=self.name,
            schema=schema,
            neighbours=self.neighbours,
            steps=steps,
            repeats=rounds,
            n_sets=self.n_sets,
            law=(
                f"Counts on a tree {shape}, whose shape depends on the schema and on coins only: every count of every "
                "layer that is not public has exact discrete Laplace noise added, each layer paid for; the counts were "
                "then made consistent, which costs nothing."
            ),
            design=design,
        )

    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
        """Count the tree, make its counts consistent, and draw records."""
        return synthesis.release_of(plan, curator, rng)


@dataclass(frozen=True)
class ShuffledColumns:
    """One column for all nodes of a layer, drawn evenly from those that no layer above has split. Reads no record."""

    def columns(
        self, number: int, layer: Layer, position: Position, curator: Curator, rng: np.random.Generator
    ) -> IntArray:
        """Return the drawn column for every node."""
        return np.full(layer.n_nodes, rng.choice(np.flatnonzero(layer.path[0] < 0)), dtype=np.int64)
