"""kng: quantile regressions by the K-norm gradient mechanism, and records drawn from them (Tran et al. 2023)."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, get_args

import numpy as np

from pdips.data.table import Table
from pdips.errors import InputError
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Number, choice, exact
from pdips.privacy.plan import Plan, Step
from pdips.quantile.column_plan import NumericPart
from pdips.quantile.column_synthesis import ColumnSynthesis, ColumnTask
from pdips.quantile.conditional import Between, Draw, line_draw
from pdips.quantile.gradient import Norm
from pdips.quantile.line_search import Base, Fitter
from pdips.quantile.quantile_plan import QuantilePlan, Scheme, Slopes, quantiles_of

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
class KNG(ColumnSynthesis):
    """Quantile regressions of each column on those before it, by the K-norm gradient mechanism.

    Its other settings are those of :class:`pdips.quantile.column_synthesis.ColumnSynthesis`: epsilon, sets, neighbours,
    and what is said by column.

    Parameters
    ----------
    scheme : {"plain", "stepwise", "sandwich", "joint", "recursive"}, optional
        Each quantile on its own; from the median outwards; main quantiles first, the others between them (Tran et al.
        2023); all intercepts at once (Gillenwater, Joseph and Kulesza 2021); or the middle one first and each half on
        its own records (Kaplan, Schnapp and Stemmer 2022).
        By default joint; sandwich where slopes vary.
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

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Every line is drawn exactly from exp(-epsilon_k / (2 Delta) norm(G)) on public candidates, with a tight Delta; lines
    don't cross anywhere in the public box of the predictors. Proof: ``docs/proofs/kng.md``, theorem 1 and lemma 3.

    Examples
    --------
    >>> schema = Schema(columns={"wage": Column(lower=0, upper=1000, bins=100)})
    >>> table = Table(pd.DataFrame({"wage": np.linspace(100, 900, 60)}), schema)
    >>> release, record = KNG(epsilon=1, quantiles=("1/4", "1/2", "3/4")).release(table)
    >>> release.sets[0]["wage"].between(0, 1000).all()
    np.True_
    """

    name: ClassVar[str] = "kng"

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scheme is None:
            object.__setattr__(self, "scheme", "joint" if self.slopes == "fixed" else "sandwich")
        kinds = {"scheme": Scheme, "slopes": Slopes, "norm": Norm, "base": Base, "between": Between}
        for name, kind in kinds.items():
            choice(getattr(self, name), get_args(kind), name)
        if self.sampler != "exact":
            raise InputError(
                "sampler must be exact: lines are exact draws of public candidates; hit-and-run, whose chains nothing "
                "certified, is no longer offered"
            )
        self.quantile_plan  # noqa: B018 - refuses quantiles that don't fit the scheme

    @property
    def quantile_plan(self) -> QuantilePlan:
        """Which quantiles, in which order."""
        taus, shares = quantiles_of(self.quantiles), dict[str, Fraction | None]()
        for name, share in (("median_share", self.median_share), ("main_share", self.main_share)):
            shares[name] = None if share is None else exact(share, name)
        main = tuple(tau for tau in quantiles_of(self.main) if tau in taus)
        return QuantilePlan(taus=taus, scheme=self.scheme or "joint", slopes=self.slopes, main=main, **shares)

    @property
    def numbers_from(self) -> str:
        """What the statement says numeric columns are drawn from."""
        return QUANTILES_BY.get(str(self.scheme), LINES)

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse, before anything is spent, tables as every mechanism by columns does, and those of fewer records than
        quantiles where their number is public.
        """
        super().check(plan, table)
        if plan.design.numeric and plan.n_public and table.n_records < len(self.quantile_plan.taus):
            raise InputError("there are fewer records than quantiles: take fewer quantiles")

    def fitter(self, part: NumericPart) -> Fitter:
        """Return how the lines of a column are chosen."""
        return Fitter(norm=self.norm, base=self.base, neighbours=part.budget.in_stratum, n_intercepts=self.n_candidates)

    def steps(self, part: NumericPart) -> tuple[Step, ...]:
        """Return what is asked of each stratum: the lines, in the order in which they are chosen."""
        priced = self.quantile_plan.steps(self.fitter(part), part.budget, part.box.n_predictors)
        return tuple(step for steps in priced.values() for step in steps)

    def fit(self, task: ColumnTask, curator: Curator) -> Draw:
        """Choose the lines of a column."""
        plan, fitter = self.quantile_plan, self.fitter(task.part)
        steps = plan.steps(fitter, task.part.budget, task.box.n_predictors)
        lines = plan.lines(task.regression, fitter, steps, curator)
        return line_draw(task.column, task.box, np.array([float(tau) for tau in plan.taus]), lines, self.between)
