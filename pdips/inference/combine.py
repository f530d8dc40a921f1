"""One function for all rules: from analyses of several synthetic sets to what they say
together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.inference.rules import (
    ONE_STANDARD_DEVIATION,
    Mixture,
    Rule,
    Student,
    Wald,
    check_rule,
    f_test,
    law_of,
    rule_for,
    total_variance,
)
from pdips.release.release import Release


@dataclass(frozen=True, kw_only=True, eq=False)
class Combined:
    """What several synthetic sets say together, each field of the shape of one set's
    estimates.

    Attributes
    ----------
    estimate : ndarray of float64
        Mean over the sets.
    variance : ndarray of float64
        ``T``, that of ``estimate`` about the population's value. By
        ``"posterior-predictive"`` the square of half the width of the interval of 68.3
        %, as a normal law has it.
    degrees_of_freedom : ndarray of float64
        Of Student's t; infinite for the normal law, also where the sets agree; NaN for
        ``"posterior-predictive"``.
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
        ``T`` as a matrix, where covariances were given. By ``"fully-synthetic"`` it
        need not be positive definite; by ``"posterior-predictive"`` V is the part of
        ``B - W`` that is positive semidefinite in the metric of ``W``.

    Examples
    --------
    >>> found = combine([1.0, 1.2, 0.8], [0.1, 0.1, 0.1], rule="sanitized")
    >>> found.n_sets, found.rule
    (3, 'sanitized')
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
    _law: Student | Mixture = field(repr=False)
    _matrices: tuple[FloatArray, FloatArray] | None = field(default=None, repr=False)
    _ratio: float = field(default=1.0, repr=False)

    @property
    def standard_error(self) -> FloatArray:
        """Root of the variance."""
        return np.sqrt(self.variance)

    def half_width(self, level: float) -> FloatArray:
        """Return half of the width of the interval of another level."""
        return self._law.half_width(level)

    def p_value(self, null: ArrayLike = 0.0) -> FloatArray:
        """Return two-sided p-values, for each coefficient by itself.

        Parameters
        ----------
        null : array_like
            Value under the null hypothesis, one or one a coefficient.
        """
        return self._law.two_sided(self.estimate - np.asarray(null, dtype=np.float64))

    def summary(self, null: ArrayLike = 0.0) -> pd.DataFrame:
        """Return a row a coefficient: estimate, standard_error, df, statistic, p_value,
        lower, upper.

        Parameters
        ----------
        null : array_like
            Value that ``statistic`` and ``p_value`` test; ``statistic`` is (estimate -
            null) / standard_error.
        """
        off = self.estimate - np.asarray(null, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            statistic = off / self.standard_error
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
        rows = {name: np.atleast_1d(values) for name, values in columns.items()}
        return pd.DataFrame(rows, index=index)

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
            If covariances weren't given, a name is none, a coefficient is missing from
            some set, or the mean covariance is singular.

        Notes
        -----
        F tests that take ``B`` to be a multiple of ``W``, so that few sets will do: Li,
        Raghunathan and Rubin (1991) for ``"rubin"``, Reiter (2005) for ``"sanitized"``
        and ``"fully-synthetic"``. Where k (m - 1) <= 4, the degrees of freedom that Li,
        Raghunathan and Rubin have for few sets, by analogy for the other two as well.
        ``"raab-nowok-dibben"`` has a chi-square test. ``"posterior-predictive"``
        averages chi-square tails over the multiple, and its ``statistic`` divides by
        the median of the multiple.
        """
        if self._matrices is None:
            raise InputError(
                "a test of several coefficients needs each set's "
                "covariance matrix, not variances alone"
            )
        chosen = list(self.names if names is None else names)
        unknown = [name for name in chosen if name not in self.names]
        if unknown or not chosen or len({*chosen}) < len(chosen):
            raise InputError(
                f"name each coefficient to test once, out of {', '.join(self.names)}"
            )
        at = [self.names.index(name) for name in chosen]
        off = np.array(self.estimate[at] - np.asarray(null, dtype=np.float64))
        if np.isnan(off).any():
            absent = chosen[int(np.isnan(off).argmax())]
            raise InputError(
                f"coefficient {absent!r} is missing from some set and can't be tested"
            )
        between, within = (matrix[np.ix_(at, at)] for matrix in self._matrices)
        return f_test(self.rule, off, between, within, self.n_sets, self._ratio)


def combine(
    fit: Callable[[pd.DataFrame], Any] | ArrayLike,
    synthetic_sets: Sequence[pd.DataFrame] | Release | ArrayLike,
    *,
    rule: Rule | None = None,
    level: float = 0.95,
    size_ratio: float = 1.0,
) -> Combined:
    """Combine analyses of synthetic sets: ``combine(fit, synthetic_sets)`` or
    ``combine(estimates, variances)``.

    Parameters
    ----------
    fit : callable, or array_like of shape (sets,) or (sets, coefficients)
        Analyses one set as if it were the original: takes a DataFrame, returns a result
        with ``params`` and ``cov_params()``, as statsmodels has them, or a pair
        (estimate, variance), with names where the estimate is a Series; the variance of
        a vector may be a covariance matrix. Or, in its place, the estimates themselves.
    synthetic_sets : sequence of DataFrame, Release, or array_like
        The sets. With estimates in place of ``fit``: their squared standard errors, of
        the same shape, or covariance matrices, of shape (sets, coefficients,
        coefficients).
    rule : str, optional
        Left out: for a Release what :func:`rule_for` says, else ``"sanitized"``. Which
        rule fits sets from elsewhere depends on how they were made; ``rule_for`` reads
        their privacy.json. A wrong rule gives wrong intervals.

        ``"sanitized"``, alias ``"partial"``
            Each set has noise of its own (``split="per-set"``). T = W + B/m, t with (m
            - 1) (1 + m W / B)^2 degrees of freedom.
        ``"between"``
            Each set is n records drawn from its own draw of a model whose draws hold
            the privacy noise alone (``margins`` with ``sets="posterior"``).
            T = (1 + 1/m) B for the population, t with m - 1 degrees of freedom.
        ``"posterior-predictive"``
            Sets are independent posterior predictive draws given one noisy release
            (``modips`` with ``split="once"`` and the noise-aware likelihood). T = (1 +
            1/m) V + W/m with V unknown.
        ``"fully-synthetic"``
            The same without privacy noise, many sets. T = (1 + 1/m) B - W, t with (m -
            1) (1 - W / ((1 + 1/m) B))^2 degrees of freedom. Where T <= 0, Reiter's
            (2002) nonnegative variance ``size_ratio`` W, the normal law.
        ``"raab-nowok-dibben"``
            Posterior predictive sets without privacy noise, one set or more: T = W (r +
            (1 + r)/m) with r ``size_ratio``, W (1 + 2/m) for sets as large as the
            original; normal.
        ``"rubin"``
            Missing values imputed, the rest original. T = W + (1 + 1/m) B, t with (m -
            1) (1 + W / ((1 + 1/m) B))^2 degrees of freedom. Too wide for synthetic sets
            as a rule.
    level : float
        Of the interval, between 0 and 1.
    size_ratio : float
        Records of a synthetic set over records of the original; used by
        ``"raab-nowok-dibben"``, and by ``"fully-synthetic"`` where T <= 0.

    Returns
    -------
    Combined
        NaN where a set's estimate or variance is NaN, and for a coefficient that some
        set lacks (an absent level).

    Raises
    ------
    InputError
        If there are fewer sets than the rule needs, shapes differ, a variance is
        negative, or there is no such rule or level.

    Notes
    -----
    ``B`` is the variance between sets with ``m - 1`` below, ``W`` the mean of the
    variances. Where the rules come from, the mixture of ``"posterior-predictive"`` and
    its coverage: ``docs/inference.md#which-rule``.

    Examples
    --------
    >>> combine([1.0, 1.2, 0.8], [0.1, 0.1, 0.1], rule="sanitized").estimate
    np.float64(1.0)
    """
    chosen: str
    names = None
    if callable(fit):
        frames, fitting = _frames_of(synthetic_sets, rule)
        chosen = fitting or "sanitized"
        check_rule(chosen, len(frames))
        names, estimates, variances = gather(fit, frames)
    elif isinstance(synthetic_sets, Release):
        raise InputError(
            "a release needs an analysis: give combine a function of one set first"
        )
    else:
        chosen = rule or "sanitized"
        estimates = np.asarray(fit, dtype=np.float64)
        variances = np.asarray(synthetic_sets, dtype=np.float64)
    _check_numbers(estimates, variances, level, size_ratio)
    check_rule(chosen, len(estimates))
    return _pool(estimates, variances, names, chosen, level, size_ratio)


def _frames_of(
    synthetic_sets: Any, rule: Rule | None
) -> tuple[Sequence[pd.DataFrame], Rule | None]:
    """Return the sets as frames, and the rule that fits them if it is known."""
    if isinstance(synthetic_sets, Release):
        if synthetic_sets.large_sets:
            raise InputError(
                "sets too large to hold must be read from their "
                "files: give combine a list of frames"
            )
        return synthetic_sets.sets, rule or rule_for(synthetic_sets)
    is_list = isinstance(synthetic_sets, (list, tuple))
    if not is_list or not all(isinstance(one, pd.DataFrame) for one in synthetic_sets):
        raise InputError(
            "synthetic_sets must be a list of DataFrames, one a set, or a Release"
        )
    return synthetic_sets, rule


def _check_numbers(
    estimates: FloatArray, variances: FloatArray, level: float, ratio: float
) -> None:
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, not {level}")
    if not 0 < ratio < np.inf:
        raise InputError(f"size_ratio must be finite and above 0, not {ratio}")
    shape = estimates.shape
    if len(shape) not in (1, 2) or variances.shape not in {shape, (*shape, *shape[1:])}:
        raise InputError(
            "estimates and variances must have one shape, (sets,) or (sets, "
            "coefficients), or variances must be "
            "covariance matrices, (sets, coefficients, coefficients)"
        )
    if (_diagonals(variances) < 0).any():
        raise InputError("variances must not be negative")
    if variances.ndim < 3:
        return
    turned = variances.swapaxes(1, 2)
    if not np.allclose(variances, turned, rtol=1e-6, atol=0, equal_nan=True):
        raise InputError("covariance matrices must be symmetric")


def _diagonals(variances: FloatArray) -> FloatArray:
    """Return variances, also where covariance matrices were given."""
    if variances.ndim < 3:
        return variances
    return np.diagonal(variances, axis1=1, axis2=2)


def _pool(
    estimates: FloatArray,
    variances: FloatArray,
    names: tuple[str, ...] | None,
    rule: str,
    level: float,
    ratio: float,
) -> Combined:
    m = len(estimates)
    estimate = estimates.mean(axis=0)
    numbered = tuple(map(str, range(estimate.size)))
    within = _diagonals(variances).mean(axis=0)
    off = estimates - estimate
    between = np.full(estimate.shape, np.nan)
    if m > 1:
        between = np.asarray((off**2).sum(axis=0) / (m - 1))
    law = law_of(rule, between, np.asarray(within), m, ratio)
    half = law.half_width(level)
    if isinstance(law, Student):
        variance = law.variance
        degrees = law.degrees
    else:
        variance = law.half_width(ONE_STANDARD_DEVIATION) ** 2
        degrees = np.full(estimate.shape, np.nan)
    matrices = None
    covariance = None
    if variances.ndim == 3:
        scatter = (off.T @ off) / max(m - 1, 1)
        matrices = scatter, variances.mean(axis=0)
        covariance = _covariance(rule, *matrices, variance, m, ratio)
    return Combined(
        estimate=estimate,
        variance=variance,
        degrees_of_freedom=degrees,
        interval=(estimate - half, estimate + half),
        between=between,
        within=within,
        names=names or numbered,
        rule=rule,
        level=level,
        n_sets=m,
        covariance=covariance,
        _law=law,
        _matrices=matrices,
        _ratio=ratio,
    )


def _covariance(
    rule: str,
    between: FloatArray,
    within: FloatArray,
    variance: FloatArray,
    m: int,
    ratio: float,
) -> FloatArray:
    if rule != "posterior-predictive":
        return total_variance(rule, between, within, m, ratio)
    own = np.diagonal(within)
    known = np.flatnonzero(~np.isnan(own) & (own > 0))
    total = np.full_like(within, np.nan)
    block = np.ix_(known, known)
    values, vectors = np.linalg.eigh(within[block])
    if len(known) == 0 or values.min() <= 1e-12 * values.max():
        return total  # W is singular: no metric, so no matrix
    root = (vectors * np.sqrt(values)) @ vectors.T
    inverse = (vectors / np.sqrt(values)) @ vectors.T
    shares, axes = np.linalg.eigh(inverse @ between[block] @ inverse)
    # in the metric of W: (1 + 1/m) V + W/m, V of the part of B - W above 0
    metric = (1 + 1 / m) * np.maximum(shares - 1, 0) + 1 / m
    matrix = root @ (axes * metric) @ axes.T @ root
    scale = np.sqrt(variance[known] / np.diagonal(matrix))
    total[block] = matrix * np.outer(scale, scale)
    return total


def gather(
    fit: Callable[[pd.DataFrame], Any], frames: Sequence[pd.DataFrame]
) -> tuple[tuple[str, ...] | None, FloatArray, FloatArray]:
    """Analyse each set and line up the coefficients: names, if the analyses have any,
    estimates and (co)variances.

    Names are in the order in which they first appear; an estimate is NaN where a set
    lacks a coefficient.
    """
    analyses = [_read(fit(_with_nan(frame))) for frame in frames]
    named, estimates, variances = zip(*analyses, strict=True)
    if any(names is None for names in named):
        shapes = {(q.shape, v.shape) for _, q, v in analyses}
        if len(shapes) > 1:
            raise InputError(
                "analyses without names must give the same number of "
                "coefficients on every set"
            )
        return None, np.stack(estimates), np.stack(variances)
    names = tuple(dict.fromkeys(name for own in named for name in own))
    if len({v.ndim for v in variances}) > 1:
        raise InputError(
            "the analysis must give variances for all sets or covariances for all"
        )
    n_sets = len(analyses)
    aligned = np.full((n_sets, len(names)), np.nan)
    spread = np.full((n_sets, *[len(names)] * variances[0].ndim), np.nan)
    for number, (own, estimate, variance) in enumerate(analyses):
        at = [names.index(name) for name in own or ()]
        aligned[number, at] = estimate
        spread[number][np.ix_(*[at] * variance.ndim)] = variance
    return names, aligned, spread


def _with_nan(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a set whose missing numbers are NaN: statsmodels and numpy don't take
    pandas' NA.
    """
    holed = frame.columns[frame.isna().any()]
    if not len(holed):
        return frame
    return frame.astype(dict.fromkeys(frame[holed].select_dtypes("number"), float))


def _read(result: Any) -> tuple[tuple[str, ...] | None, FloatArray, FloatArray]:
    fitted = hasattr(result, "params") and callable(getattr(result, "cov_params", None))
    if not fitted and not (isinstance(result, tuple) and len(result) == 2):
        raise InputError(
            "fit must return a result with params and cov_params(), or "
            "a pair (estimate, variance)"
        )
    estimate, variance = (result.params, result.cov_params()) if fitted else result
    labels = _labels(result, estimate)
    # an outcome with several levels has a column of coefficients for each, and
    # covariances run column by column
    flat = np.asarray(estimate, dtype=np.float64)
    q = flat.ravel(order="F") if flat.ndim == 2 else flat
    v = np.asarray(variance, dtype=np.float64)
    if flat.ndim == 2 and v.shape == flat.shape:
        v = v.ravel(order="F")
    if q.ndim > 1 or v.shape not in {q.shape, q.shape * 2}:
        raise InputError(
            "fit must return one variance for each estimate, or their covariance matrix"
        )
    if labels is None:
        return None, q, v
    names = tuple(map(_spell, labels))
    if len({*names}) < len(names):
        raise InputError("fit must return coefficients with names that differ")
    return names, q, v


def _labels(result: Any, estimate: Any) -> list[object] | None:
    """Return what an analysis calls its coefficients, None where it names none."""
    if isinstance(estimate, pd.Series):
        return list(estimate.index)
    if isinstance(estimate, pd.DataFrame):
        return [
            f"{_spell(column)}:{_spell(row)}"
            for column in estimate.columns
            for row in estimate.index
        ]
    of_model = getattr(getattr(result, "model", None), "exog_names", None)
    if of_model is not None and len(of_model) == np.size(estimate):
        return list(of_model)
    return None


def _spell(label: object) -> str:
    return ":".join(map(str, label)) if isinstance(label, tuple) else str(label)


def mix(posteriors: Sequence[Any]) -> Any:
    """Pool draws of the posteriors that an analyst has from each set, with equal
    weights.

    Parameters
    ----------
    posteriors : sequence of DataTree or Dataset
        One a set, with dimensions ``chain`` and ``draw`` as ArviZ has them; of a
        DataTree its group ``posterior``.

    Returns
    -------
    DataTree
        Draws of the mixture, set after set, in the one group ``posterior`` with one
        chain (R-hat over sets means nothing: check each set's own). Where sets have
        different numbers of draws, each gives as many as the least has, evenly spread
        over its own.

    Raises
    ------
    InputError
        If there are fewer than two posteriors, or their parameters or shapes differ.

    Notes
    -----
    Räisä, Jälkö and Honkela (2023): if the sets are posterior predictive draws given
    one release (``modips``, ``split="once"``, noise-aware), the analyst's model agrees
    with the one that made them, and **each set is much larger than the original**, the
    mixture tends to the posterior given the release. Sets as large as the original make
    it up to 1.73 times too wide (``docs/inference.md#mixing-posteriors``): use
    :func:`combine` with ``"posterior-predictive"`` there.

    Examples
    --------
    >>> import xarray as xr
    >>> draws = [
    ...     xr.Dataset({"mean": (("chain", "draw"), np.full((2, 5), each))})
    ...     for each in (0.0, 1.0)
    ... ]
    >>> trees = [xr.DataTree.from_dict({"posterior": each}) for each in draws]
    >>> float(mix(trees)["posterior"]["mean"].mean())
    0.5
    """
    import xarray as xr

    if len(posteriors) < 2:
        raise InputError(
            "mixing pools the posteriors of at least 2 sets; one set's "
            "posterior stays as it is"
        )
    draws = [_draws_of(one) for one in posteriors]
    least = min(one.sizes["draw"] for one in draws)
    even = [
        one.isel(draw=np.arange(least) * one.sizes["draw"] // least) for one in draws
    ]
    shapes = [
        {name: dict(each.sizes) for name, each in one.data_vars.items()} for one in even
    ]
    if any(each != shapes[0] for each in shapes):
        raise InputError("every posterior must have the same parameters and shapes")
    pooled = xr.concat(even, "draw", coords="minimal", join="override")
    return xr.DataTree.from_dict({"posterior": pooled.expand_dims(chain=1)})


def _draws_of(posterior: Any) -> Any:
    """Return the draws of all chains, one after the other."""
    import xarray as xr

    if isinstance(posterior, xr.DataTree):
        if "posterior" not in posterior.children:
            raise InputError("a DataTree needs a group posterior to be mixed")
        posterior = posterior["posterior"].to_dataset()
    is_set = isinstance(posterior, xr.Dataset)
    if not is_set or not {"chain", "draw"} <= {*posterior.dims}:
        raise InputError(
            "a posterior must be a DataTree or Dataset with dimensions chain and draw"
        )
    plain = posterior.drop_vars(["chain", "draw"], errors="ignore")
    stacked = plain.stack(place=("chain", "draw"), create_index=False)
    return stacked.rename(place="draw").transpose("draw", ...)
