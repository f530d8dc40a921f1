"""Histograms over public bins from which records are drawn: perturbed by noise, or smoothed towards evenness."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.histogram import urns
from pdips.histogram.laplace import LaplaceSanitizer
from pdips.margins import synthesis
from pdips.margins.counts import Measured
from pdips.margins.tree import measure
from pdips.mechanism import Drawn, Split, Variant, check_settings, run, statement
from pdips.privacy.curator import Clock, Curator, Progress
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, as_float, exact
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Plan
from pdips.privacy.replay import ExactLaw as Law
from pdips.release.release import Release, RunRecord


@dataclass(frozen=True, kw_only=True)
class PerturbedHistogram(LaplaceSanitizer):
    """Records drawn one by one from a histogram with discrete Laplace noise on each cell.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person. ``"1/3"`` and ``0.1`` are taken as written.
    n_sets : int
        Number of synthetic sets.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public, and all sets have it; with add-remove they have the sum of
        the noisy counts.
    split : {"once", "per-set"}
        One noisy histogram for all sets, or one of its own, at epsilon / n_sets, for each.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    The noisy counts are those of the Laplace sanitizer, at its price. Negative counts become 0, the rest is normalised,
    and records are independent draws from that (Bowen and Liu 2020, equation 3.1): post-processing. Proof:
    ``docs/proofs/perturbed-histogram.md``.

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate({"columns": {"ill": {"levels": [False, True]}}})
    >>> table = pdips.Table(pd.DataFrame({"ill": [True, False, False]}), schema)
    >>> release, _ = PerturbedHistogram(epsilon=1).release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "perturbed-histogram"
    weighs_records: ClassVar[bool] = False
    description: ClassVar[str] = (
        "Every cell of the histogram over public levels and bins has exact discrete Laplace noise on its count; "
        "synthetic records are independent draws from the noisy histogram."
    )

    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
        """Count the cells, and draw the records of all sets from the noisy histograms."""
        sets, statistics = list[pd.DataFrame](), dict[str, pd.DataFrame]()
        public = curator.public if plan.schema.public_columns else None
        for number in range(1, plan.repeats + 1):
            with curator.timed("counting and adding noise"):
                measured = measure(plan.design, curator, rng)
            seen = synthesis.tree_plan(plan.design, plan)
            statistics |= synthesis.noisy_statistics(measured, seen, f"set {number}, " if plan.repeats > 1 else "")
            for _ in range(plan.n_sets // plan.repeats):
                with curator.timed("drawing records"):
                    cell = draw_from_noisy(measured, n_public=plan.n_public, rng=rng)
                    sets.append(synthesis.records(measured, plan.schema, cell, rng, public=public))
        return Drawn(sets=sets, statistics=statistics)


def draw_from_noisy(measured: Measured, *, n_public: bool, rng: np.random.Generator) -> IntArray:
    """Draw cells from a noisy histogram, or one histogram for each combination of the public columns.

    Post-processing: it reads noisy counts and, under replace-one, the public number of records (of each combination).
    Where no count is above 0, cells that can occur are equally likely.

    Parameters
    ----------
    measured : Measured
        A tree without layers in between.
    n_public : bool
        Whether the number of records is public; if not, it is the sum of the noisy counts.
    rng : numpy.random.Generator
        For the draws.

    Returns
    -------
    ndarray of int64, shape (synthetic records,)
        Numbers of cells.
    """
    (exact_counts,), (noisy,) = measured.observed
    group, possible = measured.parents[0], measured.layers[-1].possible
    n_records = exact_counts if n_public else np.array([max(int(noisy.sum()), 0)])
    weight = np.maximum(noisy, 0)
    weight >>= max(int(weight.max()).bit_length() + len(weight).bit_length() - 62, 0)  # or their sum would overflow
    total = np.bincount(group, weights=weight, minlength=len(n_records))
    weight = np.where((total == 0)[group], possible, weight)
    cumulative = np.cumsum(weight)
    end = cumulative[np.searchsorted(group, np.arange(len(n_records)), side="right") - 1]
    start = np.concatenate([[0], end[:-1]])
    drawn = rng.integers(np.repeat(start, n_records), np.repeat(end, n_records))
    return np.asarray(np.searchsorted(cumulative, drawn, side="right"), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class SmoothedHistogram:
    """Records drawn from a histogram that is mixed with an even one, without noise.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss, in nats, for one person. ``"1/3"`` and ``0.1`` are taken as written.
    n_sets : int
        1. A second set drawn from the same proportions would cost epsilon once more.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public.
    n_records : int, optional
        Number N of synthetic records, from public knowledge: the fewer, the closer they follow the table. By default
        as many as the table has, which add-remove can't reveal, so there it must be given; with public columns it
        can't.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Each of N independent records is in cell c with probability (n_c + a) / (n + K a), a = 1 / (e^(epsilon / N) - 1), K
    the number of cells that can occur. A record more or less, or another one, changes that by a factor of at most
    1 + 1/a = e^(epsilon / N); with up to k records a person, epsilon / k takes the place of epsilon. For N = n this is
    003, equations 3.2 and 3.3 (Wasserman and Zhou, 2010), whose lambda is K a / (n + K a); in this form it also holds
    for add-remove (SOUNDNESS review E2). Drawn exactly. Proof: ``docs/proofs/urns.md``.
    """

    name: ClassVar[str] = "smoothed-histogram"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one", "add-remove")
    variants: ClassVar[tuple[Variant, ...]] = ("sound",)
    splits: ClassVar[tuple[Split, ...]] = ("once",)
    most_sets: ClassVar[int] = 1

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    n_records: int | None = None

    def __post_init__(self) -> None:
        urns.check_one_set(self.n_sets)
        check_settings(self)
        urns.check_n_records(self.n_records, self.neighbours)

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of the release."""
        law = (
            "Synthetic records are exact independent draws from the table's cell proportions mixed with even ones; "
            "the share of the even ones follows from epsilon and public numbers, so that no draw tells more than "
            "epsilon divided by their number."
        )
        epsilon = exact(self.epsilon, "epsilon")
        text = statement(self, schema, law)
        return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="pure", statement=text)

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: one."""
        urns.check_schema(schema, self.neighbours, self.n_records)
        return (Spend(step="records drawn from the smoothed histogram", epsilon=exact(self.epsilon, "epsilon")),)

    def rule(self, schema: Schema) -> urns.Rule:
        """Return how the urn is drawn from."""
        epsilon = exact(self.epsilon, "epsilon") / schema.records.max_per_person
        return urns.Rule(epsilon=epsilon, polya=False, n_draws=self.n_records)

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
        """Spend the budget and draw a release; parameters, results and errors as for :class:`PerturbedHistogram`."""

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            return urns.draw_sets(table, self.rule(table.schema), 1, bits, clock)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)
