"""One function for all rules: from analyses of several synthetic sets to what they say together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

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
        ``T`` as a matrix, where covariances were given. By ``"fully-synthetic"`` it need not be positive definite; by
        ``"posterior-predictive"`` V is the part of ``B - W`` that is positive semidefinite in the metric of ``W``.

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
        F tests that take ``B`` to be a multiple of ``W``, so that few sets will do: Li, Raghunathan and Rubin (1991)
        for ``"rubin"``, Reiter (2005) for ``"sanitized"`` and ``"fully-synthetic"``. Where k (m - 1) <= 4, the degrees
        of freedom that Li, Raghunathan and Rubin have for few sets, by analogy for the other two as well.
        ``"raab-nowok-dibben"`` has a chi-square test. ``"posterior-predictive"`` averages chi-square tails over the
        multiple, and its ``statistic`` divides by the median of the multiple.
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
        return f_test(self.rule, off, between, within, self.n_sets, self._ratio)


def combine(
    fit: Callable[[pd.DataFrame], Any] | ArrayLike,
    synthetic_sets: Sequence[pd.DataFrame] | Release | ArrayLike,
    *,
    rule: Rule | None = None,
    level: float = 0.95,
    size_ratio: float = 1.0,
) -> Combined:
    """Combine analyses of synthetic sets: ``combine(fit, synthetic_sets)`` or ``combine(estimates, variances)``.

    Parameters
    ----------
    fit : callable, or array_like of shape (sets,) or (sets, coefficients)
        Analyses one set as if it were the original: takes a DataFrame, returns a result with ``params`` and
        ``cov_params()``, as statsmodels has them, or a pair (estimate, variance), with names where the estimate is a
        Series; the variance of a vector may be a covariance matrix. Or, in its place, the estimates themselves.
    synthetic_sets : sequence of DataFrame, Release, or array_like
        The sets. With estimates in place of ``fit``: their squared standard errors, of the same shape, or covariance
        matrices, of shape (sets, coefficients, coefficients).
    rule : str, optional
        Left out: for a Release what :func:`rule_for` says, else ``"sanitized"``. Which rule fits sets from elsewhere
        depends on how they were made; ``rule_for`` reads their privacy.json. A wrong rule gives wrong intervals.

        ``"sanitized"``, alias ``"partial"``
            Each set has noise of its own (``split="per-set"``). T = W + B/m, t with (m - 1) (1 + m W / B)^2 degrees of
            freedom.
        ``"between"``
            Each set is n records drawn from its own draw of a model whose draws hold the privacy noise alone (``pairs``
            or ``steps`` with ``sets="posterior"``). T = (1 + 1/m) B for the population, t with m - 1
            degrees of freedom.
        ``"posterior-predictive"``
            Sets are independent posterior predictive draws given one noisy release (``modips`` with
            ``split="once"`` and the noise-aware likelihood). T = (1 + 1/m) V + W/m with V unknown.
        ``"fully-synthetic"``
            The same without privacy noise, many sets. T = (1 + 1/m) B - W, t with (m - 1) (1 - W / ((1 + 1/m) B))^2
            degrees of freedom. Where T <= 0, Reiter's (2002) nonnegative variance ``size_ratio`` W, the normal law.
        ``"raab-nowok-dibben"``
            Posterior predictive sets without privacy noise, one set or more: T = W (r + (1 + r)/m) with r
            ``size_ratio``, W (1 + 2/m) for sets as large as the original; normal.
        ``"rubin"``
            Missing values imputed, the rest original. T = W + (1 + 1/m) B, t with
            (m - 1) (1 + W / ((1 + 1/m) B))^2 degrees of freedom. Too wide for synthetic sets as a rule.
    level : float
        Of the interval, between 0 and 1.
    size_ratio : float
        Records of a synthetic set over records of the original; used by ``"raab-nowok-dibben"``, and by
        ``"fully-synthetic"`` where T <= 0.

    Returns
    -------
    Combined
        NaN where a set's estimate or variance is NaN, and for a coefficient that some set lacks (an absent level).

    Raises
    ------
    InputError
        If there are fewer sets than the rule needs, shapes differ, a variance is negative, or there is no such rule or
        level.

    Notes
    -----
    ``B`` is the variance between sets with ``m - 1`` below, ``W`` the mean of the variances. Where the rules come from,
    the mixture of ``"posterior-predictive"`` and its coverage: ``docs/inference.md#which-rule``.

    Examples
    --------
    >>> combine([1.0, 1.2, 0.8], [0.1, 0.1, 0.1], rule="sanitized").estimate
    np.float64(1.0)
    """
    chosen: str
    if callable(fit):
        frames: Any = synthetic_sets
        if isinstance(frames, Release):
            if frames.large_sets:
                raise InputError("sets too large to hold must be read from their files: give combine a list of frames")
            frames, rule = frames.sets, rule or rule_for(frames)
        elif not isinstance(frames, (list, tuple)) or not all(isinstance(one, pd.DataFrame) for one in frames):
            raise InputError("synthetic_sets must be a list of DataFrames, one a set, or a Release")
        chosen = rule or "sanitized"
        check_rule(chosen, len(frames))
        names, q, v = gather(fit, frames)
    else:
        chosen, names = rule or "sanitized", None
        if isinstance(synthetic_sets, Release):
            raise InputError("a release needs an analysis: give combine a function of one set first")
        q, v = np.asarray(fit, dtype=np.float64), np.asarray(synthetic_sets, dtype=np.float64)
    return _pool(q, v, names, chosen, level, size_ratio)


def _pool(
    q: FloatArray, v: FloatArray, names: tuple[str, ...] | None, rule: str, level: float, ratio: float
) -> Combined:
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, not {level}")
    if not 0 < ratio < np.inf:
        raise InputError(f"size_ratio must be finite and above 0, not {ratio}")
    if q.ndim not in (1, 2) or v.shape not in {q.shape, (*q.shape, *q.shape[1:])}:
        raise InputError(
            "estimates and variances must have one shape, (sets,) or (sets, coefficients), or variances must be "
            "covariance matrices, (sets, coefficients, coefficients)"
        )
    check_rule(rule, len(q))
    variances = np.diagonal(v, axis1=1, axis2=2) if v.ndim == 3 else v
    if (variances < 0).any():
        raise InputError("variances must not be negative")
    if v.ndim == 3 and not np.allclose(v, v.swapaxes(1, 2), rtol=1e-6, atol=0, equal_nan=True):
        raise InputError("covariance matrices must be symmetric")
    m, estimate, within = len(q), q.mean(axis=0), variances.mean(axis=0)
    off = q - estimate
    between = (off**2).sum(axis=0) / (m - 1) if m > 1 else np.full(estimate.shape, np.nan)
    law = law_of(rule, np.asarray(between), np.asarray(within), m, ratio)
    half = law.half_width(level)
    variance = law.variance if isinstance(law, Student) else law.half_width(ONE_STANDARD_DEVIATION) ** 2
    matrices = ((off.T @ off) / max(m - 1, 1), v.mean(axis=0)) if v.ndim == 3 else None
    return Combined(
        estimate=estimate,
        variance=variance,
        degrees_of_freedom=law.degrees if isinstance(law, Student) else np.full(estimate.shape, np.nan),
        interval=(estimate - half, estimate + half),
        between=between,
        within=within,
        names=names or tuple(str(j) for j in range(estimate.size)),
        rule=rule,
        level=level,
        n_sets=m,
        covariance=None if matrices is None else _covariance(rule, *matrices, variance, m, ratio),
        _law=law,
        _matrices=matrices,
        _ratio=ratio,
    )


def _covariance(
    rule: str, between: FloatArray, within: FloatArray, variance: FloatArray, m: int, ratio: float
) -> FloatArray:
    if rule != "posterior-predictive":
        return total_variance(rule, between, within, m, ratio)
    known = np.flatnonzero(~np.isnan(np.diagonal(within)) & (np.diagonal(within) > 0))
    total, block = np.full_like(within, np.nan), np.ix_(known, known)
    values, vectors = np.linalg.eigh(within[block])
    if len(known) == 0 or values.min() <= 1e-12 * values.max():
        return total  # W is singular: no metric, so no matrix
    root = (vectors * np.sqrt(values)) @ vectors.T
    inverse = (vectors / np.sqrt(values)) @ vectors.T
    shares, axes = np.linalg.eigh(inverse @ between[block] @ inverse)
    matrix = root @ (axes * ((1 + 1 / m) * np.maximum(shares - 1, 0) + 1 / m)) @ axes.T @ root
    scale = np.sqrt(variance[known] / np.diagonal(matrix))
    total[block] = matrix * np.outer(scale, scale)
    return total


def gather(
    fit: Callable[[pd.DataFrame], Any], frames: Sequence[pd.DataFrame]
) -> tuple[tuple[str, ...] | None, FloatArray, FloatArray]:
    """Analyse each set and line up the coefficients: names, if the analyses have any, estimates and (co)variances.

    Names are in the order in which they first appear; an estimate is NaN where a set lacks a coefficient.
    """
    found = [_read(fit(_with_nan(frame))) for frame in frames]
    if any(names is None for names, _, _ in found):
        if len({estimate.shape + variance.shape for _, estimate, variance in found}) > 1:
            raise InputError("analyses without names must give the same number of coefficients on every set")
        return None, np.stack([q for _, q, _ in found]), np.stack([v for _, _, v in found])
    names = tuple(dict.fromkeys(name for own, _, _ in found for name in own or ()))
    if len({v.ndim for _, _, v in found}) > 1:
        raise InputError("the analysis must give variances for all sets or covariances for all")
    estimates = np.full((len(found), len(names)), np.nan)
    variances = np.full((len(found),) + (len(names),) * found[0][2].ndim, np.nan)
    for place, (own, estimate, variance) in enumerate(found):
        at = [names.index(name) for name in own or ()]
        estimates[place, at] = estimate
        variances[place][np.ix_(*[at] * variance.ndim)] = variance
    return names, estimates, variances


def _with_nan(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a set whose missing numbers are NaN: statsmodels and numpy don't take pandas' NA."""
    holed = frame.columns[frame.isna().any()]
    return frame.astype(dict.fromkeys(frame[holed].select_dtypes("number"), float)) if len(holed) else frame


def _read(result: Any) -> tuple[tuple[str, ...] | None, FloatArray, FloatArray]:
    fitted = hasattr(result, "params") and callable(getattr(result, "cov_params", None))
    if not fitted and not (isinstance(result, tuple) and len(result) == 2):
        raise InputError("fit must return a result with params and cov_params(), or a pair (estimate, variance)")
    estimate, variance = (result.params, result.cov_params()) if fitted else result
    labels: list[object] | None = None
    of_model = getattr(getattr(result, "model", None), "exog_names", None) if fitted else None
    if isinstance(estimate, pd.Series):
        labels = list(estimate.index)
    elif isinstance(estimate, pd.DataFrame):
        labels = [f"{_spell(column)}:{_spell(row)}" for column in estimate.columns for row in estimate.index]
    elif of_model is not None and len(of_model) == np.size(estimate):
        labels = list(of_model)
    # an outcome with several levels has a column of coefficients for each, and covariances run column by column
    flat = np.asarray(estimate, dtype=np.float64)
    q, v = flat.ravel(order="F") if flat.ndim == 2 else flat, np.asarray(variance, dtype=np.float64)
    if flat.ndim == 2 and v.shape == flat.shape:
        v = v.ravel(order="F")
    if q.ndim > 1 or v.shape not in {q.shape, q.shape * 2}:
        raise InputError("fit must return one variance for each estimate, or their covariance matrix")
    if labels is None:
        return None, q, v
    if len({*map(_spell, labels)}) < len(labels):
        raise InputError("fit must return coefficients with names that differ")
    return tuple(map(_spell, labels)), q, v


def _spell(label: object) -> str:
    return ":".join(map(str, label)) if isinstance(label, tuple) else str(label)


def mix(posteriors: Sequence[Any]) -> Any:
    """Pool draws of the posteriors that an analyst has from each set, with equal weights.

    Parameters
    ----------
    posteriors : sequence of array_like, of dict of array_like, or of DataTree or Dataset
        One a set, all of one kind. Arrays have draws first. A DataTree gives its ``posterior`` group; trees and
        Datasets have dimensions ``chain`` and ``draw``, as ArviZ has them.

    Returns
    -------
    ndarray, dict of ndarray, or DataTree
        Draws of the mixture, set after set; a DataTree with the one group ``posterior`` and one chain (R-hat over sets
        means nothing: check each set's own). Where sets have different numbers of draws, each gives as many as the
        least has, evenly spread over its own.

    Raises
    ------
    InputError
        If there are fewer than two posteriors, they are of different kinds, or their parameters or shapes differ.

    Notes
    -----
    Räisä, Jälkö and Honkela (2023): if the sets are posterior predictive draws given one release (``modips``,
    ``split="once"``, noise-aware), the analyst's model agrees with the one that made them, and **each set is much
    larger than the original**, the mixture tends to the posterior given the release. Sets as large as the original
    make it up to 1.73 times too wide (``docs/inference.md#mixing-posteriors``): use :func:`combine` with
    ``"posterior-predictive"`` there.

    Examples
    --------
    >>> import xarray as xr
    >>> draws = [xr.Dataset({"mean": (("chain", "draw"), np.full((2, 5), each))}) for each in (0.0, 1.0)]
    >>> float(mix([xr.DataTree.from_dict({"posterior": each}) for each in draws])["posterior"]["mean"].mean())
    0.5
    """
    items = list(posteriors)
    if len(items) < 2:
        raise InputError("mixing pools the posteriors of at least 2 sets; one set's posterior stays as it is")
    trees = [hasattr(one, "data_vars") or hasattr(one, "children") for one in items]
    dicts = [isinstance(one, Mapping) and not tree for one, tree in zip(items, trees, strict=True)]
    if len({*zip(trees, dicts, strict=True)}) > 1:
        raise InputError("posteriors must all be of one kind: arrays, dicts of arrays, or DataTrees")
    if all(trees):
        return _trees(items)
    pooled = _pooled(items if all(dicts) else [{"posteriors": one} for one in items])
    return pooled if all(dicts) else pooled["posteriors"]


def _pooled(items: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """Return draws of the mixture by parameter."""
    named = [{str(name): np.asarray(value) for name, value in one.items()} for one in items]
    if not named[0] or any({*each} != {*named[0]} for each in named):
        raise InputError("every posterior must have the same parameters")
    found = {}
    for name in named[0]:
        draws = [one[name] for one in named]
        if any(one.ndim < 1 or not len(one) for one in draws) or len({one.shape[1:] for one in draws}) > 1:
            raise InputError(f"{name} must have draws first, at least one, and the same shape in every posterior")
        least = min(len(one) for one in draws)
        found[name] = np.concatenate([one[np.arange(least) * len(one) // least] for one in draws])
    if any(len({len(value) for value in one.values()}) > 1 for one in named):
        raise InputError("all parameters of one posterior need the same number of draws")
    return found


def _trees(items: list[Any]) -> Any:
    import xarray as xr

    groups = []
    for one in items:
        if isinstance(one, xr.DataTree):
            if "posterior" not in one.children:
                raise InputError("a DataTree needs a group posterior to be mixed")
            one = one["posterior"].to_dataset()
        if not isinstance(one, xr.Dataset) or not {"chain", "draw"} <= {*map(str, one.dims)}:
            raise InputError("a posterior must be a DataTree or Dataset with dimensions chain and draw")
        groups.append(one.map(lambda each: each.transpose("chain", "draw", ...)))
    flat = [{str(name): each.to_numpy().reshape(-1, *each.shape[2:]) for name, each in one.items()} for one in groups]
    pooled = {name: (groups[0][name].dims, draws[None]) for name, draws in _pooled(flat).items()}
    kept = {name: value for name, value in groups[0].coords.items() if not {"chain", "draw"} & {*value.dims}}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(pooled, coords=kept)})
