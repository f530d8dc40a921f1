"""What several sets say together."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.inference import wald
from pdips.inference.laws import Law
from pdips.inference.wald import Wald


@dataclass(frozen=True, kw_only=True, eq=False)
class Combined:
    """What several synthetic sets say together, each field of the shape of one set's estimates.

    Attributes
    ----------
    estimate : ndarray of float64
        Mean over the sets.
    variance : ndarray of float64
        ``T``, that of ``estimate`` about the population's value. By ``"posterior-predictive"`` the square of half the
        width of the interval of 68.3 %, as a normal law has it.
    degrees_of_freedom : ndarray of float64
        Of Student's t; infinite for the normal law, also where the sets agree; NaN for ``"posterior-predictive"``.
    interval : tuple of ndarray of float64
        Lower and upper bound.
    between, within : ndarray of float64
        ``B`` and ``W``; ``between`` is NaN for one set.
    names : tuple of str
        Of the coefficients; numbers from 0 where the analyses have no names.
    rule : str
        That was used.
    level : float
        Of the interval.
    n_sets : int
    covariance : ndarray of float64, shape (coefficients, coefficients), or None
        ``T`` as a matrix, where covariances were given. By ``"fully-synthetic"`` it need not be positive definite.
        By ``"posterior-predictive"`` correlations come from ``(1 + 1/m) V + W/m``, with ``V`` the part of ``B - W``
        that is positive semidefinite in the metric of ``W``, and variances are those of ``variance``.
    """

    estimate: FloatArray
    variance: FloatArray
    degrees_of_freedom: FloatArray
    interval: tuple[FloatArray, FloatArray]
    between: FloatArray
    within: FloatArray
    names: tuple[str, ...]
    rule: str
    level: float
    n_sets: int
    covariance: FloatArray | None = None
    _law: Law = field(repr=False)
    _matrices: tuple[FloatArray, FloatArray] | None = field(default=None, repr=False)
    _ratio: float = field(default=1.0, repr=False)

    @property
    def standard_error(self) -> FloatArray:
        """Root of the variance."""
        return np.asarray(np.sqrt(self.variance))

    def p_value(self, null: ArrayLike = 0.0) -> FloatArray:
        """Return two-sided p-values, for each coefficient by itself.

        Parameters
        ----------
        null : array_like
            Value under the null hypothesis, one or one a coefficient.
        """
        return self._law.two_sided(self.estimate - np.asarray(null, dtype=np.float64))

    def summary(self, null: ArrayLike = 0.0) -> pd.DataFrame:
        """Return a row a coefficient: estimate, standard_error, df, statistic, p_value, lower, upper.

        Parameters
        ----------
        null : array_like
            Value that ``statistic`` and ``p_value`` test; ``statistic`` is (estimate - null) / standard_error.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            statistic = (self.estimate - np.asarray(null, dtype=np.float64)) / self.standard_error
        columns = {
            "estimate": self.estimate,
            "standard_error": self.standard_error,
            "df": self.degrees_of_freedom,
            "statistic": statistic,
            "p_value": self.p_value(null),
            "lower": self.interval[0],
            "upper": self.interval[1],
        }
        index = pd.Index(self.names, name="coefficient")
        return pd.DataFrame({name: np.atleast_1d(values) for name, values in columns.items()}, index=index)

    def wald(self, names: Sequence[str] | None = None, null: ArrayLike = 0.0) -> Wald:
        """Test that several coefficients have given values, all at once.

        Parameters
        ----------
        names : sequence of str, optional
            The coefficients; all, if left out.
        null : array_like
            Their values under the null hypothesis, one or one a name.

        Raises
        ------
        InputError
            If covariances weren't given, a name is none, a coefficient is missing from some set, or the mean
            covariance is singular.

        Notes
        -----
        F tests that take ``B`` to be a multiple of ``W``, so that few sets will do: Li, Raghunathan and Rubin (1991,
        Journal of the American Statistical Association 86) for ``"rubin"``; Reiter (2005, Journal of Statistical
        Planning and Inference 131) for ``"sanitized"`` and ``"fully-synthetic"``. Where k (m - 1) <= 4, the degrees of
        freedom that Li, Raghunathan and Rubin have for few sets, by analogy for the other two as well.
        ``"raab-nowok-dibben"`` has a chi-square test.
        ``"posterior-predictive"`` averages chi-square tails over the multiple; for one coefficient its p-value is that
        of :meth:`p_value`, and its ``statistic`` divides by the median of the multiple.
        """
        if self._matrices is None:
            raise InputError("a test of several coefficients needs each set's covariance matrix, not variances alone")
        chosen = list(self.names if names is None else names)
        unknown = [name for name in chosen if name not in self.names]
        if unknown or not chosen or len({*chosen}) < len(chosen):
            raise InputError(f"name each coefficient to test once, out of {', '.join(self.names)}")
        at = [self.names.index(name) for name in chosen]
        off = (self.estimate[at] - np.asarray(null, dtype=np.float64)) * np.ones(len(at))
        between, within = (matrix[np.ix_(at, at)] for matrix in self._matrices)
        absent = [name for name, value in zip(chosen, off, strict=True) if np.isnan(value)]
        if absent:
            raise InputError(f"coefficient {absent[0]!r} is missing from some set and can't be tested")
        return wald.f_test(self.rule, off, between, within, self.n_sets, self._ratio)
