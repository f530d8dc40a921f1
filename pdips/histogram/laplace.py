"""The Laplace sanitizer: noise on every cell of the full cross-tabulation."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pdips.data.schema import Schema
from pdips.margins import synthesis
from pdips.margins.domain import check_domain, check_noise, domain_of
from pdips.margins.tree import Tree
from pdips.mechanism import Drawn, PlannedMechanism, Split
from pdips.privacy.curator import Curator
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity


@dataclass(frozen=True, kw_only=True)
class LaplaceSanitizer(PlannedMechanism):
    """Discrete Laplace noise on each cell of the full cross-tabulation.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person. ``"1/3"`` and ``0.1`` are taken as written.
    n_sets : int
        Number of synthetic sets.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public, and all sets have it.
    split : {"once", "per-set"}
        One noisy table for all sets, or a noisy table of its own, at epsilon / n_sets, for each.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Replacing a record changes two cells by 1 each: l1-sensitivity 2; adding or removing one changes one cell: 1. Noise
    of scale sensitivity / epsilon gives epsilon; with up to k records a person, k times that scale. What follows
    (nonnegative, adding up to the number of records, whole records) is post-processing. Numeric columns are cut into
    their public bins and drawn evenly inside. Proof: ``docs/proofs/laplace-sanitizer.md``.

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate({"columns": {"ill": {"levels": [False, True]}}})
    >>> table = pdips.Table(pd.DataFrame({"ill": [True, False, False]}), schema)
    >>> release, _ = LaplaceSanitizer(epsilon=1).release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "laplace-sanitizer"
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")
    weighs_records: ClassVar[bool] = True
    description: ClassVar[str] = (
        "Every cell of the full cross-tabulation that can occur has exact discrete Laplace noise on its count."
    )

    split: Split = "once"

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: one noisy count of all cells for each round."""
        check_domain(schema, self.neighbours)
        rounds = self.n_sets if self.split == "per-set" else 1
        cells = Step(
            name="noisy counts of all cells",
            counts="each cell",
            sensitivity=self.sensitivity(schema),
            price=self.share(rounds),
        )
        check_noise(schema, self.neighbours, [cells.scale])
        return Plan(
            mechanism=self.name,
            schema=schema,
            neighbours=self.neighbours,
            steps=(cells,),
            repeats=rounds,
            n_sets=self.n_sets,
            law=self.description,
            design=Tree(domain=domain_of(schema), layers=(cells,)),
        )

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return how far one person moves the counts of all cells."""
        return Sensitivity.of_counts(schema, self.neighbours)

    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
        """Count the cells, make the counts consistent, and draw records."""
        return synthesis.release_of(plan.design, plan, curator, rng)
