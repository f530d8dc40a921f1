"""Estimates with what is known of their error."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pdips.arrays import FloatArray
from pdips.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Answer:
    """Estimates with what is known of their error.

    Parameters
    ----------
    names : tuple of str
        Of the numbers.
    estimate : ndarray, shape (numbers,)
    covariance : ndarray, shape (numbers, numbers)
        Of the estimates' errors: of the noise, and for ``target="population"`` of sampling too.
    basis : str
        Where the numbers come from.
    draws : DataFrame, optional
        Of generalized linear models: draws of the coefficients, which hold both.
    skewed : bool
        Whether intervals are quantiles of the draws.

    Examples
    --------
    >>> Answer(("a",), np.array([1.0]), np.array([[0.25]]), "measured").summary()["upper"].round(2).tolist()
    [1.98]
    """

    names: tuple[str, ...]
    estimate: FloatArray
    covariance: FloatArray
    basis: str
    draws: "pd.DataFrame | None" = None
    skewed: bool = False

    def summary(self, level: float = 0.95) -> "pd.DataFrame":
        """Return a row a number: ``estimate``, ``standard_error``, ``lower``, ``upper`` and ``basis``."""
        if not 0 < level < 1:
            raise InputError("level must be between 0 and 1")
        import pandas as pd
        from scipy.special import ndtri

        error = np.sqrt(np.diagonal(self.covariance))
        reach = ndtri((1 + level) / 2) * error
        columns = {"estimate": self.estimate, "standard_error": error}
        columns |= {"lower": self.estimate - reach, "upper": self.estimate + reach}
        if self.skewed and self.draws is not None:
            ends = self.draws.quantile([(1 - level) / 2, (1 + level) / 2]).to_numpy()
            columns |= {"lower": ends[0], "upper": ends[1]}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="term")).assign(basis=self.basis)

    def contrast(self, weights: Sequence[float], name: str = "contrast") -> "Answer":
        """Return a weighted sum of the numbers: a range of levels, a difference."""
        w = np.asarray(weights, dtype=float)
        if w.shape != self.estimate.shape:
            raise InputError(f"a contrast needs {len(self.names)} weights, one for each number")
        return Answer((name,), np.array([w @ self.estimate]), np.array([[w @ self.covariance @ w]]), self.basis)

    def to_datatree(self) -> Any:
        """Return the draws as an ArviZ DataTree with one chain, a variable a coefficient."""
        if self.draws is None or self.draws.empty:
            raise InputError("only glm has draws, and none where the noise leaves its numbers open")
        import xarray as xr

        named = {name: (("chain", "draw"), self.draws[name].to_numpy()[None]) for name in self.draws}
        return xr.DataTree.from_dict({"posterior": xr.Dataset(named)})

    def __repr__(self) -> str:
        return repr(self.summary())
