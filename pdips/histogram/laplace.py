"""The Laplace sanitizer: noise on every cell of the full cross-tabulation."""

from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.margins import laws, synthesis
from pdips.margins.counts import Given, Plan
from pdips.margins.domain import check_domain, check_noise
from pdips.mechanism import MOST_SETS, Clock, Drawn, Law, Progress, Split, Variant, check_settings, run, statement
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, as_float, exact
from pdips.privacy.noise import RandomBits
from pdips.release.release import Release, RunRecord


@dataclass(frozen=True, kw_only=True)
class LaplaceSanitizer:
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
    variant : {"sound", "published"}
        ``"published"`` takes sensitivity 1 with a public number of records, as the papers do: twice the claimed loss,
        kind "none", for studies only.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Replacing a record changes two cells by 1 each: l1-sensitivity 2; adding or removing one changes one cell: 1
    (SOUNDNESS 5.1). Noise of scale sensitivity / epsilon gives epsilon; with up to k records a person, k times that
    scale. What follows (nonnegative, adding up to the number of records, whole records) is post-processing. Numeric
    columns are cut into their public bins and drawn evenly inside. Proof: ``docs/proofs/laplace-sanitizer.md``.
    """

    name: ClassVar[str] = "laplace-sanitizer"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one", "add-remove")
    variants: ClassVar[tuple[Variant, ...]] = ("sound", "published")
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")
    most_sets: ClassVar[int] = MOST_SETS
    weighs_records: ClassVar[bool] = True

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    split: Split = "once"
    variant: Variant = "sound"

    def __post_init__(self) -> None:
        check_settings(self, variant=self.variant, split=self.split)

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of the release."""
        epsilon = exact(self.epsilon, "epsilon")
        if self.variant == "published":
            flaw = (
                "NO GUARANTEE. As published: noise of scale 1/epsilon on every cell, with the number of records "
                "public. Replacing one record changes two cells, so the true loss is 2 epsilon."
            )
            return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="none", statement=flaw)
        law = "Every cell of the full cross-tabulation that can occur has exact discrete Laplace noise on its count."
        return PrivacyLoss(
            epsilon=epsilon, neighbours=self.neighbours, kind="pure", statement=statement(self, schema, law)
        )

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: one for each noisy table."""
        check_domain(schema, self.neighbours)
        check_noise(schema, self.neighbours, [self.scale(schema)])
        n_tables = self.n_sets if self.split == "per-set" else 1
        share = exact(self.epsilon, "epsilon") / n_tables
        return tuple(
            Spend(step=f"noisy counts of all cells{synthesis.of_set(number, n_tables)}", epsilon=share)
            for number in range(1, n_tables + 1)
        )

    def scale(self, schema: Schema) -> Fraction:
        """Return the scale of the noise on each cell, in records."""
        sensitivity = 2 if self.neighbours == "replace-one" and self.variant == "sound" else 1
        n_tables = self.n_sets if self.split == "per-set" else 1
        return sensitivity * schema.records.max_per_person * n_tables / exact(self.epsilon, "epsilon")

    def plan(self, schema: Schema) -> Plan:
        """Return what is done to a table of this schema."""
        n_trees = self.n_sets if self.split == "per-set" else 1
        return Plan(
            scales=(self.scale(schema),),
            chooser=Given(),
            n_public=self.neighbours == "replace-one",
            n_trees=n_trees,
            names=("each cell",),
        )

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> IntArray:
        """Return the noisy counts of independent releases, shape (runs, counts), for audits."""
        return laws.observe(table, self.plan(table.schema), n_runs, bits)

    def law(self, table: Table) -> Law:
        """Return the exact law, for audits."""
        return laws.law(table, self.plan(table.schema))

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
            If the schema has unbinned columns or too many cells, or the ledger belongs to another table.
        RefusedError
            If the ledger's total would be overspent.
        """

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            return synthesis.draw(table, self.plan(table.schema), mechanism=self, bits=bits, clock=clock)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)
