"""Estimates with what is known of their error."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from scipy.special import expit, logit, ndtr, ndtri

from pdips.arrays import FloatArray
from pdips.errors import InputError, hint
from pdips.extras import require
from pdips.html import small_table, spelt
from pdips.inference.combine import Combined

type Weights = Sequence[float] | Mapping[str, float]

type Ends = tuple[FloatArray, FloatArray]

NOISY_MARGINS = "noisy margins"
PRODUCTS = "noisy products"
SETS = "synthetic sets"
POSTERIOR = "posterior"
MOST_SHOWN = 30  # numbers, printed or in a notebook
EVERYWHERE = (-np.inf, np.inf)
OF_SPAN = 8.0
"""The variance of where numbers are within intervals is the square of an estimate's
span over this: between that of an even law over the span (12) and of its ends (4).
"""


def beside(half: FloatArray, far: FloatArray, reach: float) -> FloatArray:
    """Return half a width that allows for an error of so many standard errors, and for
    numbers that may be anywhere in intervals, which is worth ``far`` at most: as two
    chances, or as both at their worst if that is less.

    Examples
    --------
    >>> beside(np.array([2.0, 0.0]), np.array([0.0, 1.0]), 1.96).tolist()
    [2.0, 1.0]
    """
    by_chance = np.hypot(half, reach * 2 * far / np.sqrt(OF_SPAN))
    return np.asarray(np.minimum(by_chance, half + far))


@dataclass(frozen=True, eq=False)
class Answer:
    """Estimates with what is known of their error.

    Parameters
    ----------
    names : tuple of str
        Of the numbers.
    estimate : ndarray, shape (numbers,)
    covariance : ndarray, shape (numbers, numbers)
        Of the estimates' errors: of the noise, and for ``target="population"`` of
        sampling too.
    basis : str
        Where the numbers come from, in words.
    draws : DataFrame, optional
        Of generalized linear models: draws of the coefficients, which hold both.
    skewed : bool
        Whether intervals are quantiles of the draws.
    noise : ndarray, shape (numbers, numbers), optional
        The part of the covariance that is of the noise, where it is known.
    source : str
        Which of the release's files they are made of: ``"posterior"``, ``"noisy
        products"``, ``"noisy margins"`` or ``"synthetic sets"``.
    remarks : tuple of str
        What the intervals don't hold, or only under conditions.
    limits : tuple of float
        What the numbers can be, by their definition: of shares 0 to 1.
    is_of_prior : bool
        Whether the noise left no fit, so that a stated prior has a part in it.
    tree : DataTree, optional
        A posterior that was published.
    untold : tuple of ndarray, shape (numbers,), optional
        By how much less, and by how much more, each number may be than the estimate for
        where numbers are within bins or counted intervals, which nothing tells. It is
        in intervals, and not in standard errors.

    Examples
    --------
    >>> answer = Answer(("a",), np.array([1.0]), np.array([[0.25]]), "measured")
    >>> answer.summary()["upper"].round(2).tolist()
    [1.98]
    >>> answer
    Answer(1 number from noisy margins: measured)
    >>> print(answer)
    Answer(1 number from noisy margins: measured)
      estimate    lower upper
    a        1  0.02002  1.98
    """

    names: tuple[str, ...]
    estimate: FloatArray
    covariance: FloatArray
    basis: str
    draws: pd.DataFrame | None = None
    skewed: bool = False
    noise: FloatArray | None = None
    source: str = NOISY_MARGINS
    remarks: tuple[str, ...] = ()
    limits: tuple[float, float] = EVERYWHERE
    is_of_prior: bool = False
    tree: Any = None
    untold: Ends | None = None

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Return a row a number: ``estimate``, ``standard_error``, ``lower``,
        ``upper``, ``noise`` and ``source``.

        ``noise`` is the part of the interval's width that is there for the noise: how
        much shorter it would be without, between 0 and 1; NaN where it isn't known.
        """
        if not 0 < level < 1:
            raise InputError("level must be between 0 and 1")
        error = np.sqrt(np.diagonal(self.covariance))
        lower, upper = self._ends(level)
        columns = {
            "estimate": self.estimate,
            "standard_error": error,
            # of numbers that are left open the whole line, or all that they can be
            "lower": np.clip(np.where(np.isnan(lower), -np.inf, lower), *self.limits),
            "upper": np.clip(np.where(np.isnan(upper), np.inf, upper), *self.limits),
            "noise": self._noise_part(),
        }
        return pd.DataFrame(columns, index=pd.Index(self.names, name="term")).assign(
            source=self.source
        )

    def _ends(self, level: float) -> Ends:
        reach = float(ndtri((1 + level) / 2))
        lower, upper = self._interval(reach)
        if self.skewed and self.draws is not None:
            lower, upper = self.draws.quantile(
                [(1 - level) / 2, (1 + level) / 2]
            ).to_numpy()
        if self.untold is None:
            return lower, upper
        less, more = self.untold
        return (
            self.estimate - beside(self.estimate - lower, less, reach),
            self.estimate + beside(upper - self.estimate, more, reach),
        )

    def _interval(self, reach: float) -> Ends:
        errors = reach * np.sqrt(np.diagonal(self.covariance))
        return self.estimate - errors, self.estimate + errors

    def _noise_part(self) -> FloatArray:
        if self.noise is None:
            return np.full(len(self.names), np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            of_noise = np.diagonal(self.noise) / np.diagonal(self.covariance)
        return np.asarray(1 - np.sqrt(np.clip(1 - of_noise, 0, 1)))

    @property
    def is_open(self) -> bool:
        """Whether the noise leaves a number open, so that its interval is all that it
        can be, or is a prior's.
        """
        return self.is_of_prior or self.n_open > 0

    @property
    def n_open(self) -> int:
        """How many intervals of 95 % are all that the number can be."""
        rows = self.summary()
        low, high = self.limits
        return int(((rows["lower"] <= low) & (rows["upper"] >= high)).sum())

    @property
    def posterior(self) -> Any:
        """The draws as an ArviZ DataTree: of a published posterior its own, else one
        chain, with a variable a coefficient.
        """
        if self.tree is not None:
            return self.tree
        if self.draws is None or self.draws.empty:
            raise InputError(
                "only glm has draws, or a published posterior, and none where the "
                "noise leaves its numbers open"
            )
        import xarray as xr

        named = {
            name: (("chain", "draw"), self.draws[name].to_numpy()[None])
            for name in self.draws
        }
        return xr.DataTree.from_dict({"posterior": xr.Dataset(named)})

    def plot(self, ax: Any = None, *, level: float = 0.95) -> Any:
        """Draw estimates and intervals, a row a number, and return the axes.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        level : float
            Of the intervals. One without end isn't drawn.
        """
        require("report", "pictures of answers need")
        import matplotlib.pyplot as plt

        rows = self.summary(level)
        if ax is None:
            _, ax = plt.subplots(figsize=(6, 1 + 0.3 * len(rows)), layout="constrained")
        ends = rows[["lower", "upper"]].to_numpy()
        is_closed = np.isfinite(ends).all(axis=1)
        at = np.arange(len(rows))
        ax.hlines(at[is_closed], *ends[is_closed].T)
        ax.plot(rows["estimate"], at, "o")
        ax.set_yticks(at, rows.index)
        ax.set_xlabel(f"{level:.0%} intervals from {self.source}")
        ax.invert_yaxis()
        return ax

    def arranged(self, names: Sequence[str]) -> Self:
        """Return the numbers in another order."""
        at = [self.names.index(name) for name in names]
        block = np.ix_(at, at)
        return replace(
            self,
            names=tuple(names),
            estimate=self.estimate[at],
            covariance=self.covariance[block],
            noise=None if self.noise is None else self.noise[block],
            draws=None if self.draws is None else self.draws[[*names]],
            untold=None
            if self.untold is None
            else (self.untold[0][at], self.untold[1][at]),
        )

    def _rows(self, *weights: Weights) -> FloatArray:
        """Return weights as a matrix, a row for each sum of the numbers."""
        rows = list[Sequence[float]]()
        for each in weights:
            if isinstance(each, Mapping):
                if unknown := [name for name in each if name not in self.names]:
                    raise InputError(
                        f"{unknown[0]!r} is none of the numbers"
                        f"{hint(unknown[0], self.names)}: {', '.join(self.names)}"
                    )
                each = [each.get(name, 0.0) for name in self.names]
            if np.shape(each) != self.estimate.shape:
                raise InputError(
                    f"a contrast needs {len(self.names)} weights, one for each number"
                )
            rows.append(each)
        return np.array(rows, dtype=np.float64)

    def contrast(self, weights: Weights, name: str = "contrast") -> "Answer":
        """Return a weighted sum of the numbers, such as the sum of a range of levels or
        a difference.

        ``weights`` is a sequence with one for each number, or a mapping of names to
        weights; other numbers have 0.
        """
        return self.contrasts([name], self._rows(weights))

    def contrasts(self, names: Sequence[str], rows: FloatArray) -> "Answer":
        """Return several weighted sums, from weights of shape (sums, numbers)."""
        noise = None if self.noise is None else rows @ self.noise @ rows.T
        untold = None
        if self.untold is not None:
            less, more = self.untold
            added = np.maximum(rows, 0)
            taken = np.maximum(-rows, 0)
            untold = added @ less + taken @ more, added @ more + taken @ less
        return Answer(
            tuple(names),
            rows @ self.estimate,
            rows @ self.covariance @ rows.T,
            self.basis,
            noise=noise,
            source=self.source,
            remarks=self.remarks,
            untold=untold,
        )

    def ratio(self, above: Weights, below: Weights, name: str = "ratio") -> "Ratio":
        """Return the ratio of two weighted sums; weights are those of :meth:`contrast`.

        Examples
        --------
        >>> counts = Answer(
        ...     ("no", "yes"), np.array([30.0, 10.0]), np.eye(2), "measured"
        ... )
        >>> counts.ratio({"no": 1}, {"yes": 1}).summary()[["lower", "upper"]].round(
        ...     2
        ... ).to_numpy().tolist()
        [[2.48, 3.76]]
        """
        rows = self._rows(above, below)
        if not rows[1] @ self.estimate:
            raise InputError("the sum below is 0: there is no ratio")
        return self.ratios([name], rows[:1], rows[1:])

    def ratios(
        self, names: Sequence[str], above: FloatArray, below: FloatArray
    ) -> "Ratio":
        """Return several ratios, from weights of shape (ratios, numbers)."""
        sums = np.stack([above @ self.estimate, below @ self.estimate])
        weights = np.stack([above, below])
        covariance = self.covariance
        if self.untold is not None:
            spans = self.untold[0] + self.untold[1]
            covariance = covariance + np.diag(spans**2 / OF_SPAN)
        known = np.einsum(
            "akn,nm,bkm->abk", weights, covariance, weights, optimize=True
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            estimate = sums[0] / sums[1]
            # the delta method's weights of the numbers
            slopes = (above - estimate[:, None] * below) / sums[1][:, None]
        noise = None if self.noise is None else slopes @ self.noise @ slopes.T
        return Ratio(
            tuple(names),
            estimate,
            slopes @ covariance @ slopes.T,
            self.basis,
            noise=noise,
            source=self.source,
            remarks=self.remarks,
            sums=sums,
            known=known,
        )

    def __repr__(self) -> str:
        numbers = "number" if len(self.names) == 1 else "numbers"
        lines = [
            f"Answer({len(self.names)} {numbers} from {self.source}: {self.basis})",
            *(f"  note: {remark}" for remark in self.remarks),
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        rows = self.summary()[["estimate", "lower", "upper"]].head(MOST_SHOWN)
        lines = [repr(self), rows.map(spelt).rename_axis(None).to_string()]
        if len(self.names) > MOST_SHOWN:
            lines.append(f"and {len(self.names) - MOST_SHOWN} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows: list[tuple[Any, ...]] = [("", "estimate", "lower", "upper", "noise")]
        for name, row in self.summary().head(MOST_SHOWN).iterrows():
            part = "-" if np.isnan(row["noise"]) else f"{row['noise']:.0%}"
            ends = [spelt(row[each]) for each in ("estimate", "lower", "upper")]
            rows.append((str(name), *ends, part))
        if len(self.names) > MOST_SHOWN:
            rows.append((f"and {len(self.names) - MOST_SHOWN} more", "", "", "", ""))
        rows += [("note", remark, "", "", "") for remark in self.remarks]
        return small_table(f"From {self.source}: {self.basis}", rows)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Ratio(Answer):
    """Ratios of two sums, with Fieller's intervals (1954) and the delta method's
    standard errors.

    Where an interval of the sum below holds 0, the ratio's is the whole line.
    """

    sums: FloatArray  # shape (2, ratios): the sums above and those below
    known: FloatArray  # shape (2, 2, ratios): the covariance of their errors

    def _interval(self, reach: float) -> Ends:
        above, below = self.sums
        ((of_above, shared), (_, of_below)) = self.known
        with np.errstate(divide="ignore", invalid="ignore"):
            far = (reach / below) ** 2
            part = 1 - far * of_below
            ratio = above / below
            delta = of_above - 2 * ratio * shared + ratio**2 * of_below
            inner = np.maximum(delta - far * (of_above * of_below - shared**2), 0)
            middle = (ratio - far * shared) / part
            half = reach / abs(below) * np.sqrt(inner) / part
        is_closed = part > 0
        lower = np.where(is_closed, middle - half, -np.inf)
        return lower, np.where(is_closed, middle + half, np.inf)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Inverted(Answer):
    """Quantiles, whose intervals are the values that tests of the noisy shares below
    them don't reject.
    """

    below: FloatArray  # shape (quantiles, places): records below, less the part asked
    # half of the width of their intervals of a level, of the same shape
    half_widths: Callable[[float], FloatArray]
    lows: FloatArray  # shape (places,): where a quantile is, if no place before it is
    highs: FloatArray  # of the same shape: or no place after it

    def _interval(self, reach: float) -> Ends:
        # From each end to the first place that isn't rejected: if the quantile lies
        # beyond, the test at the place next to it was wrong, one test a side.
        half = self.half_widths(float(2 * ndtr(reach) - 1))
        above = self.below + half
        under = self.below - half
        first = np.argmax(above >= 0, axis=1)
        last = len(self.highs) - 1 - np.argmax(under[:, ::-1] <= 0, axis=1)
        return self.lows[first], self.highs[last]


@dataclass(frozen=True)
class OpenScale:
    """A scale without ends, for numbers between two.

    Parameters
    ----------
    ends : tuple of float
    forward, back : callable
    slope : callable
        Of ``forward``.
    """

    ends: tuple[float, float]
    forward: Callable[[FloatArray], FloatArray]
    back: Callable[[FloatArray], FloatArray]
    slope: Callable[[FloatArray], FloatArray]

    def taken(
        self, estimates: FloatArray, variances: FloatArray, n: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return estimates and variances on the scale; estimates at an end are moved
        by half a record of ``n``.
        """
        middle = sum(self.ends) / 2
        inside = estimates + (middle - estimates) / (n + 1)
        return self.forward(inside), variances * self.slope(inside) ** 2


LOGIT = OpenScale((0.0, 1.0), logit, expit, lambda share: 1 / share / (1 - share))
FISHER = OpenScale((-1.0, 1.0), np.arctanh, np.tanh, lambda one: 1 / (1 - one**2))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CombinedAnswer(Answer):
    """Numbers from synthetic sets, with intervals by the rule that fits them.

    Those with a scale have the longer reach on each side, of that on the scale and that
    without: draws near an end are skewed, and what is at the end has no place on the
    scale.
    """

    combined: Combined
    scale: OpenScale | None = None
    on_scale: Combined | None = None

    def _interval(self, reach: float) -> Ends:
        level = float(2 * ndtr(reach) - 1)
        half = self.combined.half_width(level)
        lower = self.estimate - half
        upper = self.estimate + half
        if self.scale is None or self.on_scale is None:
            return lower, upper
        half = self.on_scale.half_width(level)
        middle = np.asarray(self.on_scale.estimate)
        lower = np.minimum(lower, self.scale.back(middle - half))
        return lower, np.maximum(upper, self.scale.back(middle + half))
