"""kng: quantile regressions by the K-norm gradient mechanism, and records drawn from them (paper 002)."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.histogram.urns import check_n_records
from pdips.mechanism import MOST_SETS, Drawn, Split, Variant, check_settings, run, statement
from pdips.privacy.curator import Clock, Progress
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, choice, exact
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import ExactLaw as Law
from pdips.quantile import sequential
from pdips.quantile.choosing import Chooser
from pdips.quantile.column_plan import ColumnPlan, Task
from pdips.quantile.conditional import Between, Draw, LineDraw
from pdips.quantile.gradient import NORMS, Norm
from pdips.quantile.joint import rounding_price
from pdips.quantile.line_search import BASES, Base, Fitter, check_n_candidates
from pdips.quantile.schemes import MEDIAN, SCHEMES, Plan, Scheme, Slopes, lines_of
from pdips.quantile.sequential import ByColumn
from pdips.release.release import Release, RunRecord
from pdips_papers.kng.as_printed import PublishedFitter

QUANTILES = tuple(f"{k}/100" for k in (*range(1, 48, 2), 50, *range(53, 100, 2)))
MAIN = ("1/20", "1/4", "1/2", "3/4", "19/20", "99/100")
"""The 49 quantiles and the 6 main ones of the paper's simulation (section 4.1)."""


LINES = (
    "quantile regression lines that the K-norm gradient mechanism chose among public candidates, with exactly the "
    "probabilities of its formula"
)
QUANTILES_BY = {
    "joint": "quantiles, all of a column chosen in one exact draw among public values, about a median line that the "
    "K-norm gradient mechanism chose where a column has predictors",
    "recursive": "quantiles, those of a column chosen exactly among public values by halving again and again, about a "
    "median line that the K-norm gradient mechanism chose where a column has predictors",
}
"""What numeric columns are drawn from, by scheme."""


@dataclass(frozen=True, kw_only=True)
class KNG:
    """Quantile regressions of each column on those before it, by the K-norm gradient mechanism.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person. ``"1/3"`` and ``0.1`` are taken as written.
    n_sets : int
        Number of synthetic sets, all drawn from the same released lines.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public, and all sets have it.
    scheme : {"plain", "stepwise", "sandwich", "joint", "recursive"}, optional
        Each quantile on its own; from the median outwards; main quantiles first, the others between them (paper 002);
        all intercepts at once (Gillenwater, Joseph and Kulesza 2021); or the middle one first and each half on its own
        records (Kaplan, Schnapp and Stemmer 2022).
        By default joint; sandwich for the published variant.
    slopes : {"fixed", "varying"}
        Whether all lines of a column are parallel to the median's.
    quantiles : int or tuple of numbers
        How many, evenly spaced, or which; by default the paper's 49.
    main : tuple of numbers
        Those that ``sandwich`` chooses first.
    median_share, main_share : int, float, str or Fraction, optional
        Share of a column's budget (of its main quantiles' in sandwich) for the median, and share for the main
        quantiles; the paper's by default.
    sampler : {"exact"}
        Lines are drawn exactly, of public candidates. ``"hit-and-run"``, Markov chains over a public box, is refused.
    norm : {"hull", "linf", "l1"}
        Of the gradient; ``"hull"`` has the least noise.
    base : {"log", "uniform"}
        Base measure of intercepts: even on a scale that grows away from the lower bound, or even.
    between : {"interpolate", "quantile"}
        Whether synthetic values lie between the quantiles too.
    order, predictors, caps, budget, by, panel, panel_columns, births_share, n_records, n_candidates
        See :class:`pdips.KNGResidual`.
    variant : {"sound", "published"}
        ``"published"`` takes the paper's sensitivity 2 (1 - tau) C_X, which is too small for tau > 1/2, and its base
        measure; kind "none", for studies only.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Every line is drawn exactly from exp(-epsilon_k / (2 Delta) norm(G)) on public candidates, with the tight Delta of
    SOUNDNESS theorem 3.1; lines don't cross anywhere in the public box of the predictors (SOUNDNESS 3.4). Proof:
    ``docs/proofs/kng.md``.
    """

    name: ClassVar[str] = "kng"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one", "add-remove")
    variants: ClassVar[tuple[Variant, ...]] = ("sound", "published")
    splits: ClassVar[tuple[Split, ...]] = ("once",)
    most_sets: ClassVar[int] = MOST_SETS

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
    variant: Variant = "sound"
    scheme: Scheme | None = None
    slopes: Slopes = "fixed"
    quantiles: int | tuple[Number, ...] = QUANTILES
    main: tuple[Number, ...] = MAIN
    median_share: Number | None = None
    main_share: Number | None = None
    sampler: Literal["exact"] = "exact"
    norm: Norm = "hull"
    base: Base = "log"
    between: Between = "interpolate"
    order: tuple[str, ...] | None = None
    predictors: ByColumn | None = None
    caps: ByColumn | None = None
    budget: ByColumn | None = None
    by: tuple[str, ...] = ()
    panel: tuple[str, ...] | None = None
    panel_columns: tuple[str, ...] | None = None
    births_share: Number = "parallel"
    n_records: int | None = None
    n_candidates: int = 2_000

    def __post_init__(self) -> None:
        check_settings(self, variant=self.variant)
        check_n_records(self.n_records, self.neighbours)
        sequential.check_by_column(self)
        check_n_candidates(self.n_candidates)
        if self.scheme is None:
            at_once = self.variant == "sound" and self.slopes == "fixed"
            object.__setattr__(self, "scheme", "joint" if at_once else "sandwich")
        choice(str(self.scheme), SCHEMES, "scheme")
        choice(self.slopes, ("fixed", "varying"), "slopes")
        if self.sampler != "exact":
            raise InputError(
                "sampler must be exact: lines are exact draws of public candidates; hit-and-run, whose chains nothing "
                "certified, is no longer offered"
            )
        choice(self.norm, NORMS, "norm")
        choice(self.base, BASES, "base")
        choice(self.between, ("interpolate", "quantile"), "between")
        self.plan  # noqa: B018 - refuses quantiles that don't fit the scheme

    @property
    def plan(self) -> Plan:
        """Which quantiles, in which order."""
        taus = tuple(sequential.quantiles_of(self.quantiles))
        if MEDIAN not in taus and not (self.scheme == "plain" and self.slopes == "varying"):
            raise InputError(
                f"scheme = {self.scheme} with slopes = {self.slopes} starts at the median: quantiles need 0.5"
            )
        if self.slopes == "varying" and self.scheme in ("joint", "recursive"):
            raise InputError(f"scheme = {self.scheme} chooses intercepts only: take slopes = fixed")
        if self.variant == "published" and self.scheme in ("joint", "recursive"):
            raise InputError("variant = published follows paper 002: scheme = plain, stepwise or sandwich")
        main = tuple(tau for tau in sequential.quantiles_of(self.main) if tau in taus)
        if self.scheme == "sandwich" and MEDIAN not in main:
            raise InputError("scheme = sandwich starts at the median: main needs 0.5")
        for name in ("median_share", "main_share"):
            value = getattr(self, name)
            if value is not None and not 0 < exact(value, name) < 1:
                raise InputError(f"{name} must be above 0 and below 1, got {value}")
        return Plan(
            taus=taus,
            scheme=self.scheme or "joint",
            slopes=self.slopes,
            main=main,
            median_share=None if self.median_share is None else exact(self.median_share, "median_share"),
            main_share=None if self.main_share is None else exact(self.main_share, "main_share"),
        )

    def columns(self, schema: Schema) -> ColumnPlan:
        """Return what is done to tables of a schema."""
        return sequential.column_plan(
            schema,
            epsilon=self.epsilon,
            neighbours=self.neighbours,
            order=self.order,
            predictors=self.predictors,
            caps=self.caps,
            budget=self.budget,
            by=self.by,
            n_records=self.n_records,
            panel=self.panel,
            panel_columns=self.panel_columns,
            births_share=self.births_share,
        )

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of the release."""
        epsilon = exact(self.epsilon, "epsilon")
        if self.variant == "published":
            flaw = (
                "NO GUARANTEE. As published (paper 002, equation 5): the sensitivity 2 (1 - tau) C_X is too small for "
                "tau > 1/2, by a factor of 1 / (2 (1 - tau)), 50 at the 99th percentile, so the true loss exceeds "
                "epsilon."
            )
            return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="none", statement=flaw)
        law = sequential.words(schema, QUANTILES_BY.get(str(self.scheme), LINES))
        law += sequential.PANEL if self.panel else ""
        return PrivacyLoss(
            epsilon=epsilon, neighbours=self.neighbours, kind="pure", statement=statement(self, schema, law)
        )

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: one a column."""
        columns = self.columns(schema)
        items = sequential.spends(columns)
        if self.scheme == "joint":
            median = self.plan.median_share or Fraction(1, 2)
            rounding = rounding_price(len(self.plan.taus), 8 * (self.n_candidates + 2))
            for name in (name for name in columns.order if not schema.columns[name].is_categorical):
                left = columns.least(name) * (1 - median if columns.n_predictors(name) else 1)
                if left / schema.records.max_per_person < 2 * rounding:
                    raise InputError(
                        f"epsilon is too small for scheme = joint: rounding would take more than half of what the "
                        f"quantiles of column {name!r} have; take a larger epsilon, a smaller median_share, more even "
                        "shares (budget, births_share), or another scheme"
                    )
        return items

    def fit_numbers(self, task: Task, chooser: Chooser) -> Draw:
        """Choose the lines of a column."""
        fitter = Fitter(
            norm=self.norm, base=self.base, neighbours=task.neighbours, cap=task.cap, n_intercepts=self.n_candidates
        )
        if self.variant == "published":
            fitter = PublishedFitter.of(task.box, task.cap, self.n_candidates)
        lines = lines_of(task.records(), self.plan, fitter, task.epsilon, chooser)
        taus = np.array([float(tau) for tau in self.plan.taus])
        return LineDraw(task.column, task.box, taus, lines, self.between)

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> IntArray:
        """Return the choices and noisy counts of independent releases, shape (runs, numbers), for audits."""
        return sequential.observe(self.columns(table.schema), table, self.fit_numbers, n_runs, bits)

    def law(self, table: Table) -> Law:
        """Return the exact law of choices and noisy counts, for audits of tables with one column to synthesize."""
        return sequential.law(self.columns(table.schema), table, self.fit_numbers)

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return sequential.settings(self)

    def release(
        self,
        table: Table,
        *,
        rng: np.random.Generator | None = None,
        ledger: Ledger | None = None,
        progress: Progress | None = None,
    ) -> tuple[Release, RunRecord]:
        """Spend the budget and draw a release; parameters, results and errors as for :class:`pdips.KNGResidual`."""
        columns, n = self.columns(table.schema), self.n_records or table.n_records
        sequential.check_size(table)
        sequential.check_years(columns, table)
        numeric = any(not table.schema.columns[name].is_categorical for name in columns.order)
        if numeric and self.neighbours == "replace-one" and table.n_records < len(self.plan.taus):
            raise InputError("there are fewer records than quantiles: take fewer quantiles")

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            return sequential.release(columns, table, self.fit_numbers, self.n_sets, n, bits, clock)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)
