"""Histograms with noise on every cell of the cross-tabulation: the Laplace sanitizer,
and records drawn from one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.margins import synthesis
from pdips.margins.domain import check_domain, check_noise, domain_of
from pdips.margins.tree import NoisyTree, TreeDesign
from pdips.mechanism import Drawn, Split
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import timed
from pdips.privacy.plan import Plan, Step
from pdips.release.offers import Offers


@dataclass(frozen=True, kw_only=True)
class LaplaceSanitizer(synthesis.CountedTree):
    """Discrete Laplace noise on each cell of the full cross-tabulation.

    ``epsilon``, ``n_sets`` and ``neighbours`` are those of :class:`pdips.Mechanism`.

    Parameters
    ----------
    split : {"once", "per-set"}
        One noisy table for all sets, or a noisy table of its own, at epsilon / n_sets,
        for each.

    Notes
    -----
    Replacing a record changes two cells by 1 each: l1-sensitivity 2; adding or removing
    one changes one cell: 1. Noise of scale sensitivity / epsilon gives epsilon; with up
    to k records a person, k times that scale. What follows (nonnegative, adding up to
    the number of records, whole records) is post-processing. Numeric columns are cut
    into their public bins and drawn evenly inside. Proof:
    ``docs/proofs/laplace-sanitizer.md``.

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate(
    ...     {"columns": {"ill": {"levels": [False, True]}}}
    ... )
    >>> table = pdips.Table(pd.DataFrame({"ill": [True, False, False]}), schema)
    >>> release, _ = LaplaceSanitizer(epsilon=1).release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "laplace-sanitizer"
    offers: ClassVar[Offers] = Offers(
        zeros=True,
        rules=True,
        public_columns=True,
        counted_tables=True,
        relations=("replace-one", "add-remove"),
        even_in_cells=True,
        planned_scales=True,
    )
    description: ClassVar[str] = (
        "Every cell of the full cross-tabulation that can occur has exact discrete "
        "Laplace noise on its count."
    )

    split: Split = "once"

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: one noisy count of all cells for each round."""
        check_domain(schema, self.neighbours)
        cells = Step(
            name="noisy counts of all cells",
            counts="each cell",
            sensitivity=self.sensitivity(schema),
            price=self.per_round(self.rounds),
        )
        check_noise(schema, self.neighbours, [cells.scale])
        design = TreeDesign(domain=domain_of(schema), layers=(cells,))
        return self.planned(
            schema, [cells], self.description, repeats=self.rounds, design=design
        )


@dataclass(frozen=True, kw_only=True)
class PerturbedHistogram(LaplaceSanitizer):
    """Records drawn one by one from a histogram with discrete Laplace noise on each
    cell.

    ``epsilon``, ``n_sets`` and ``neighbours`` are those of :class:`pdips.Mechanism`;
    with add-remove the sets have as many records as the noisy counts add up to.

    Parameters
    ----------
    split : {"once", "per-set"}
        One noisy histogram for all sets, or one of its own, at epsilon / n_sets, for
        each.

    Notes
    -----
    The noisy counts are those of the Laplace sanitizer, at its price. Negative counts
    become 0, the rest is normalised, and records are independent draws from that (Bowen
    and Liu 2020, equation 3.1): post-processing. Proof:
    ``docs/proofs/perturbed-histogram.md``.

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate(
    ...     {"columns": {"ill": {"levels": [False, True]}}}
    ... )
    >>> table = pdips.Table(pd.DataFrame({"ill": [True, False, False]}), schema)
    >>> release, _ = PerturbedHistogram(epsilon=1).release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "perturbed-histogram"
    offers: ClassVar[Offers] = Offers(
        zeros=True,
        rules=True,
        public_columns=True,
        relations=("replace-one", "add-remove"),
        even_in_cells=True,
        planned_scales=True,
    )
    description: ClassVar[str] = (
        "Every cell of the histogram over public levels and bins has exact discrete "
        "Laplace noise on its count; "
        "synthetic records are independent draws from the noisy histogram."
    )

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: one noisy count of all cells for each round."""
        return replace(super().plan(schema), is_redrawn=True)

    def draw(
        self,
        plan: Plan,
        measured: Sequence[NoisyTree],
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Draw the records of all sets from the noisy histograms."""
        sets = list[pd.DataFrame]()
        statistics = dict[str, pd.DataFrame]()
        columns = public.columns if plan.schema.public_columns else None
        for number, histogram in enumerate(measured, start=1):
            prefix = f"set {number}, " if plan.repeats > 1 else ""
            statistics |= plan.design.noisy_statistics(histogram, prefix)
            for _ in range(n_sets // plan.repeats):
                with timed("drawing records"):
                    cell = draw_from_noisy(histogram, n_public=plan.n_public, rng=rng)
                    frame = synthesis.records(
                        histogram, plan.schema, cell, rng, public=columns
                    )
                sets.append(frame)
        return Drawn(sets=sets, statistics=statistics)


def draw_from_noisy(
    measured: NoisyTree, *, n_public: bool, rng: np.random.Generator
) -> IntArray:
    """Draw cells from a noisy histogram, or one histogram for each combination of the
    public columns.

    Post-processing: it reads noisy counts and, under replace-one, the public number of
    records (of each combination). Where no count is above 0, cells that can occur are
    equally likely.
    """
    exact_counts, noisy = measured.observed
    group = measured.parents[0]
    possible = measured.layers[-1].possible
    n_records = exact_counts if n_public else np.array([max(int(noisy.sum()), 0)])
    weight = np.maximum(noisy, 0)
    # or their sum would overflow
    weight >>= max(int(weight.max()).bit_length() + len(weight).bit_length() - 62, 0)
    total = np.bincount(group, weights=weight, minlength=len(n_records))
    weight = np.where((total == 0)[group], possible, weight)
    cumulative = np.cumsum(weight)
    end = cumulative[
        np.searchsorted(group, np.arange(len(n_records)), side="right") - 1
    ]
    start = np.concatenate([[0], end[:-1]])
    drawn = rng.integers(np.repeat(start, n_records), np.repeat(end, n_records))
    return np.asarray(np.searchsorted(cumulative, drawn, side="right"), dtype=np.int64)
