"""Estimates with what is known of their error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from pdips.arrays import FloatArray
from pdips.errors import InputError

type Weights = Sequence[float] | Mapping[str, float]


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
        Where the numbers come from.
    draws : DataFrame, optional
        Of generalized linear models: draws of the coefficients, which hold both.
    skewed : bool
        Whether intervals are quantiles of the draws.

    Examples
    --------
    >>> Answer(("a",), np.array([1.0]), np.array([[0.25]]), "measured").summary()[
    ...     "upper"
    ... ].round(2).tolist()
    [1.98]
    """

    names: tuple[str, ...]
    estimate: FloatArray
    covariance: FloatArray
    basis: str
    draws: pd.DataFrame | None = None
    skewed: bool = False

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Return a row a number: ``estimate``, ``standard_error``, ``lower``, ``upper``
        and ``basis``.
        """
        if not 0 < level < 1:
            raise InputError("level must be between 0 and 1")
        error = np.sqrt(np.diagonal(self.covariance))
        lower, upper = self._interval(float(ndtri((1 + level) / 2)))
        if self.skewed and self.draws is not None:
            lower, upper = self.draws.quantile(
                [(1 - level) / 2, (1 + level) / 2]
            ).to_numpy()
        columns = {
            "estimate": self.estimate,
            "standard_error": error,
            "lower": lower,
            "upper": upper,
        }
        return pd.DataFrame(columns, index=pd.Index(self.names, name="term")).assign(
            basis=self.basis
        )

    def _interval(self, reach: float) -> tuple[FloatArray, FloatArray]:
        errors = reach * np.sqrt(np.diagonal(self.covariance))
        return self.estimate - errors, self.estimate + errors

    def _sums(self, *weights: Weights) -> tuple[FloatArray, FloatArray]:
        """Return weighted sums of the numbers, and the covariance of their errors."""
        rows = list[Sequence[float]]()
        for each in weights:
            if isinstance(each, Mapping):
                if unknown := [name for name in each if name not in self.names]:
                    raise InputError(
                        f"{unknown[0]!r} is none of the numbers: "
                        f"{', '.join(self.names)}"
                    )
                each = [each.get(name, 0.0) for name in self.names]
            if np.shape(each) != self.estimate.shape:
                raise InputError(
                    f"a contrast needs {len(self.names)} weights, one for each number"
                )
            rows.append(each)
        w: FloatArray = np.array(rows, dtype=np.float64)
        return w @ self.estimate, w @ self.covariance @ w.T

    def contrast(self, weights: Weights, name: str = "contrast") -> "Answer":
        """Return a weighted sum of the numbers, such as the sum of a range of levels or
        a difference.

        ``weights`` is a sequence with one for each number, or a mapping of names to
        weights; other numbers have 0.
        """
        return Answer((name,), *self._sums(weights), self.basis)

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
        sums, known = self._sums(above, below)
        if not sums[1]:
            raise InputError("the sum below is 0: there is no ratio")
        by = np.array([1.0, -sums[0] / sums[1]]) / sums[1]
        return Ratio(
            (name,),
            sums[:1] / sums[1],
            np.array([[by @ known @ by]]),
            self.basis,
            sums=sums,
            known=known,
        )

    def to_datatree(self) -> Any:
        """Return the draws as an ArviZ DataTree with one chain, a variable a
        coefficient.
        """
        if self.draws is None or self.draws.empty:
            raise InputError(
                "only glm has draws, and none where the noise leaves its numbers open"
            )
        import xarray as xr

        named = {
            name: (("chain", "draw"), self.draws[name].to_numpy()[None])
            for name in self.draws
        }
        return xr.DataTree.from_dict({"posterior": xr.Dataset(named)})

    def __repr__(self) -> str:
        return repr(self.summary())


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Ratio(Answer):
    """The ratio of two sums, with Fieller's interval (1954) and the delta method's
    standard error.

    Where an interval of the sum below holds 0, the ratio's is the whole line.
    """

    sums: FloatArray  # shape (2,): the sum above and the one below
    known: FloatArray  # shape (2, 2): the covariance of their errors

    def _interval(self, reach: float) -> tuple[FloatArray, FloatArray]:
        above, below = self.sums
        ((of_above, shared), (_, of_below)) = self.known
        far = (reach / below) ** 2
        part = 1 - far * of_below
        if part <= 0:
            return np.array([-np.inf]), np.array([np.inf])
        ratio = above / below
        delta = of_above - 2 * ratio * shared + ratio**2 * of_below
        inner = delta - far * (of_above * of_below - shared**2)
        middle = (ratio - far * shared) / part
        half = reach / abs(below) * inner**0.5 / part
        return np.array([middle - half]), np.array([middle + half])
