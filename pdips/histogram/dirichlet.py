"""Synthesizers of paper 003 for categorical data with a Dirichlet prior: Multinomial-Dirichlet and McClure-Reiter."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.histogram import urns
from pdips.margins.synthesis import of_set
from pdips.mechanism import MOST_SETS, Drawn, Split, Variant, check_settings, run, statement
from pdips.privacy.curator import Clock, Progress
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, as_float, exact
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import ExactLaw as Law
from pdips.release.release import Release, RunRecord


@dataclass(frozen=True, kw_only=True)
class MultinomialDirichlet:
    """Records drawn from a posterior draw of the cell probabilities, which is itself never shown.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person. ``"1/3"`` and ``0.1`` are taken as written.
    n_sets : int
        Number of synthetic sets. Each has a posterior draw of its own and costs epsilon / n_sets.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public.
    n_records : int, optional
        Number N of synthetic records of each set, from public knowledge: the fewer, the closer they follow the table.
        By default as many as the table has, which add-remove can't reveal, so there it must be given; with public
        columns it can't.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    pi ~ Dirichlet(n_1 + alpha, ..., n_K + alpha), then N records from pi, with alpha = N / (e^epsilon - 1): the
    probability of any N records changes by a factor of at most 1 + N / alpha = e^epsilon (003, section 3.2.1, after
    Abowd and Vilhuber, 2008; SOUNDNESS 5.4). With up to k records a person, epsilon / k takes the place of epsilon. Two
    cells make it the Binomial-Beta synthesizer. pi is integrated out by a Polya urn, drawn exactly. Two sets from one
    pi would lose more than epsilon, and pi itself everything. Proof: ``docs/proofs/urns.md``.
    """

    name: ClassVar[str] = "multinomial-dirichlet"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one", "add-remove")
    variants: ClassVar[tuple[Variant, ...]] = ("sound",)
    splits: ClassVar[tuple[Split, ...]] = ("per-set",)
    most_sets: ClassVar[int] = MOST_SETS

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    n_records: int | None = None

    def __post_init__(self) -> None:
        check_settings(self, split="per-set")
        urns.check_n_records(self.n_records, self.neighbours)

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of the release."""
        law = (
            "The counts of each synthetic set are an exact draw from their Dirichlet-multinomial law given the "
            "table's counts and a public prior; the drawn cell probabilities are not released, and no two sets share "
            "them."
        )
        epsilon = exact(self.epsilon, "epsilon")
        text = statement(self, schema, law)
        return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="pure", statement=text)

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: one for each set."""
        urns.check_schema(schema, self.neighbours, self.n_records)
        share = exact(self.epsilon, "epsilon") / self.n_sets
        return tuple(
            Spend(step=f"records drawn from the posterior{of_set(number, self.n_sets)}", epsilon=share)
            for number in range(1, self.n_sets + 1)
        )

    def rule(self, schema: Schema) -> urns.Rule:
        """Return how the urn of one set is drawn from."""
        epsilon = exact(self.epsilon, "epsilon") / (self.n_sets * schema.records.max_per_person)
        return urns.Rule(epsilon=epsilon, polya=True, n_draws=self.n_records)

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> IntArray:
        """Return the synthetic counts of independent releases, shape (runs, sets times cells), for audits."""
        return urns.observe(table, self.rule(table.schema), self.n_sets, n_runs, bits)

    def law(self, table: Table) -> Law:
        """Return the exact law of the synthetic counts of one set, for audits."""
        return Law(outcomes=urns.outcomes(table, self.rule(table.schema)), repeats=self.n_sets)

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
            Charged before any random bit is drawn.
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
            return urns.draw_sets(table, self.rule(table.schema), self.n_sets, bits, clock)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)


@dataclass(frozen=True, kw_only=True)
class McClureReiter:
    """Records drawn from the posterior mean of the cell probabilities.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss, in nats, for one person. ``"1/3"`` and ``0.1`` are taken as written.
    n_sets : int
        1. A second set drawn from the same proportions would cost epsilon once more.
    neighbours : {"replace-one"}
        The number of records is public, and the synthetic set has it.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    For two cells n records from Binomial(n, (n_1 + a) / (n + 2 a)), a = 1 / (e^(epsilon / n) - 1) (003, section 3.2.1,
    after McClure and Reiter, 2012). For K cells the same with K a is the smoothed histogram of n records, which
    ``smoothed-histogram`` generalises to other numbers of records and to add-remove. Proof: ``docs/proofs/urns.md``.
    """

    name: ClassVar[str] = "mcclure-reiter"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one",)
    variants: ClassVar[tuple[Variant, ...]] = ("sound",)
    splits: ClassVar[tuple[Split, ...]] = ("once",)
    most_sets: ClassVar[int] = 1

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"

    def __post_init__(self) -> None:
        urns.check_one_set(self.n_sets)
        check_settings(self)

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of the release."""
        law = (
            "Synthetic records are exact independent draws from the posterior mean of the cell probabilities under a "
            "public prior that follows from epsilon and public numbers."
        )
        epsilon = exact(self.epsilon, "epsilon")
        text = statement(self, schema, law)
        return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="pure", statement=text)

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: one."""
        urns.check_schema(schema, self.neighbours, None)
        return (Spend(step="records drawn from the posterior mean", epsilon=exact(self.epsilon, "epsilon")),)

    def rule(self, schema: Schema) -> urns.Rule:
        """Return how the urn is drawn from."""
        return urns.Rule(epsilon=exact(self.epsilon, "epsilon") / schema.records.max_per_person, polya=False)

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> IntArray:
        """Return the synthetic counts of independent releases, shape (runs, cells), for audits."""
        return urns.observe(table, self.rule(table.schema), 1, n_runs, bits)

    def law(self, table: Table) -> Law:
        """Return the exact law of the synthetic counts, for audits."""
        return Law(outcomes=urns.outcomes(table, self.rule(table.schema)))

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
        """Spend the budget and draw a release; parameters, results and errors as for :class:`MultinomialDirichlet`."""

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            return urns.draw_sets(table, self.rule(table.schema), 1, bits, clock)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)
