"""Counts and sums of a normal law with columns with levels by a sequence of logits on it, seen through their noise.

What is exact is integrated out, and gradients are worked out by hand: chains have less to do than with
:class:`pdips.statistics.noisy_model.Given`, and compilers too.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.statistics import sequential_logits_kernels as kernels
from pdips.statistics.noisy_model import NOISY, SCALE, USED, Given
from pdips.statistics.post_processing import nearest_positive, number_of_records
from pdips.statistics.statistic import Counts

STEP = {1: 0.4, 2: 0.75, 3: 0.85}
"""Between nodes, in standard deviations, by dimension. A mean of a logistic function of slope 2.2 a deviation is wrong
by 1e-7, 1e-5, 8e-5; of slope 4, by 6e-6, 2e-3, 5e-3: small beside the errors of 1,000 records, not of a million."""

REACH = 4.5
"""Standard deviations from the mean beyond which there are no nodes: variances are short by 1e-3 or less."""

NOTHING = 1e9
"""The variance of an entry that says nothing."""

LARGEST, SMALLEST = 0.9, 0.005
"""Means, and eigenvalues of the covariance, of u that chains start within: it steers chains only."""

LEAST = 1e-6
"""Added to variances of statistics (records, or units u, squared), so that rounding can't make one negative."""


def nodes(d: int) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights for means under a standard normal law.

    Parameters
    ----------
    d : int
        Dimension, 1 to 3.

    Returns
    -------
    points : ndarray, shape (nodes, d)
    weights : ndarray, shape (nodes,)
        They add up to 1.

    Raises
    ------
    InputError
        For other dimensions.

    Notes
    -----
    The trapezoidal rule, whose error is exponentially small in 1 / step for functions that are analytic near the real
    line (Trefethen and Weideman, The exponentially convergent trapezoidal rule, SIAM Review 56, 2014): a logistic
    function of slope s has its nearest pole pi / s away. Gauss and Hermite's rule does worse on those.
    """
    if d not in STEP:
        raise InputError(f"integrals over numeric columns are done for one to three of them, not {d}")
    most = math.floor(REACH / STEP[d])
    axis = STEP[d] * np.arange(-most, most + 1)
    points = np.stack(np.meshgrid(*[axis] * d, indexing="ij"), axis=-1).reshape(-1, d)
    squared = (points**2).sum(axis=1)
    kept = squared <= REACH**2
    weights = np.exp(-squared[kept] / 2)
    return points[kept], weights / weights.sum()


class SumsLaw(Op):  # type: ignore[misc]
    """The log density of noisy sums, with its gradient beside it.

    Inputs are mean (d,), factor (d, d), coefficients (p,), variances of the noise (entries,), noisy sums (entries,) and
    the number of records (1,); outputs are the log density (1,) and its gradient in the first four and the last.

    Parameters
    ----------
    sizes : tuple of int
        Levels of each column.
    centred : bool
        Whether the number of records is what it is; otherwise it is Poisson.
    """

    __props__ = ("sizes", "centred")

    def __init__(self, sizes: tuple[int, ...], centred: bool) -> None:
        self.sizes = sizes
        self.centred = centred

    def make_node(self, *inputs: Any) -> Apply:
        """Return the application of the law to inputs."""
        known = [pt.as_tensor_variable(each).astype("float64") for each in inputs]
        outputs = [pt.vector(), *(known[i].type() for i in (0, 1, 2, 3, 5))]
        return Apply(self, known, outputs)

    def _rest(self, d: int) -> tuple[Any, ...]:
        return (np.array(self.sizes), *nodes(d), self.centred, LEAST)

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Sequence[list[Any]]) -> None:
        """Work out the density and the gradient."""
        known: list[Any] = [np.ascontiguousarray(each) for each in inputs]
        found = kernels.log_density(*known, *self._rest(len(inputs[0])))
        for store, value in zip(outputs, found, strict=True):
            store[0] = value

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> list[Variable]:
        """Return the gradient times that of what the density is used for."""
        times = cotangents[0][0]
        found = [times * each for each in outputs[1:]]
        return [*found[:4], pt.zeros_like(inputs[4]), found[4]]


@register_funcify_default_op_cache_key(SumsLaw)  # type: ignore[untyped-decorator]
def _compiled(op: SumsLaw, node: Any, **_: Any) -> Any:
    sizes, centred = np.array(op.sizes), op.centred
    points, weights = nodes(node.inputs[0].type.shape[0])

    @numba_njit  # type: ignore[untyped-decorator]
    def sums_law(mean: Any, factor: Any, x: Any, variances: Any, values: Any, n: Any) -> Any:
        return kernels.log_density(
            np.ascontiguousarray(mean),
            np.ascontiguousarray(factor),
            np.ascontiguousarray(x),
            np.ascontiguousarray(variances),
            np.ascontiguousarray(values),
            np.ascontiguousarray(n),
            sizes,
            points,
            weights,
            centred,
            LEAST,
        )

    return sums_law, 1


def beginnings(given: Given, names: Sequence[str], d: int) -> tuple[FloatArray, FloatArray]:
    """Return where chains start: mean and lower factor of the covariance of u, from settled sums and products.

    Parameters
    ----------
    given : Given
        Noisy statistics.
    names : sequence of str
        As in :func:`sequence_sums`.
    d : int
        Number of numeric columns.

    Returns
    -------
    mean : ndarray, shape (d,)
    factor : ndarray, shape (d, d)
    """
    n = number_of_records(given.measured, given.used)
    mean = np.clip([given.used[name].sum() / n for name in names[1 : d + 1]], -LARGEST, LARGEST)
    rows, columns = np.tril_indices(d)
    covariance = np.zeros((d, d))
    for name, row, column in zip(names[d + 1 :], rows, columns, strict=True):
        covariance[row, column] = covariance[column, row] = given.used[name][0] / n - mean[row] * mean[column]
    return mean, np.linalg.cholesky(nearest_positive(covariance, SMALLEST))


def sequence_sums(given: Given, names: Sequence[str], mean: Any, factor: Any, logits: Sequence[Any]) -> None:
    """State that statistics are counts and sums of u by cell, and products of u, of records of a sequence of logits.

    Parameters
    ----------
    given : Given
        Noisy statistics.
    names : sequence of str
        Counts by all columns with levels, then the sums of each numeric column by the same, then the products of each
        two, those of the lower triangle row by row: xx, yx, yy, ...
    mean : TensorVariable, shape (d,)
        Of the numeric columns, as u.
    factor : TensorVariable, shape (d, d)
        Of their covariance, which is factor factor'.
    logits : sequence of TensorVariable, shape (levels - 1, 1 + d + indicators)
        Coefficients of each column with levels: of 1, of the numeric columns less their means over their standard
        deviations, and of the indicators of all but the first level of the earlier columns.

    Notes
    -----
    Sums over records are normal by the central limit theorem; their means and covariances are integrals over the normal
    law, by :func:`nodes`. A Laplace law is a normal one whose variance is exponential (Andrews and Mallows, Scale
    mixtures of normal distributions, 1974): given these variances, one for each noised entry, noisy statistics are
    normal too, and the exact ones are integrated out.

    Where the number of records is protected, it is Poisson with a mean that is flat, which says the same as a flat
    number of records; sums are then compound Poisson, with uncentred moments.
    """
    sizes = tuple(int(each.type.shape[0]) + 1 for each in logits)
    centred = not given.aware or given.measured.n_records is not None
    values, variances = _noisy(given, names) if given.aware else _as_if_exact(given, names)
    if centred:
        n = pt.as_tensor(number_of_records(given.measured, given.used))
        if given.measured.n_records is None:
            n = given._data("number of records", np.asarray(number_of_records(given.measured, given.used)))
    else:
        n = _flat_records(given, names[0])
    x = pt.concatenate([each.ravel() for each in logits])
    found = SumsLaw(sizes, centred)(mean, factor, x, variances, values, n.reshape((1,)))
    pm.Potential("law of the noisy statistics", found[0][0])


def _as_if_exact(given: Given, names: Sequence[str]) -> tuple[Any, Any]:
    """Return noisy entries as they are used; counts add up, so the last one says nothing more."""
    values = pt.concatenate([given._data(USED.format(name), given.used[name]) for name in names])
    variances = np.zeros(sum(len(given.used[name]) for name in names))
    variances[len(given.used[names[0]]) - 1] = NOTHING
    return values, pt.as_tensor(variances)


def _noisy(given: Given, names: Sequence[str]) -> tuple[Any, Any]:
    """Return noisy entries and the variances of their noise: normal given latent variances where it is Laplace."""
    values, variances = [], []
    for name in names:
        part = given.measured.part(name)
        scale = given._data(SCALE.format(name), np.asarray(given.measured.scale(name)))
        size = len(given.used[name])
        values.append(given._data(NOISY.format(name), given.measured.value(name)))
        if not part.n_noised:
            variances.append(pt.zeros(size))
        elif part.law == "gaussian":
            variances.append(scale**2 * pt.ones(size))
        else:
            mixed = pm.Exponential(given._unknown(f"variances on {name}"), 1.0, shape=part.n_noised)
            # Two counts add up to a public number: the noise on the last is that on the first, and says no more.
            rest = pt.full((size - part.n_noised,), NOTHING)
            variances.append(pt.concatenate([2 * scale**2 * mixed, rest]))
    return pt.concatenate(values), pt.concatenate(variances)


def _flat_records(given: Given, counted: str) -> Any:
    """Return an unknown positive number of records, with a flat law."""
    if not isinstance(given.measured.part(counted).statistic, Counts):
        raise InputError(f"{counted!r} must count records where their number is protected")
    start = number_of_records(given.measured, given.used)
    noise = given.measured.deviation(counted) * math.sqrt(len(given.used[counted]))
    step = min(math.hypot(noise, math.sqrt(start)) / start, 1.0)
    base, width = (
        given._data(f"{what} of records", np.asarray(value)) for what, value in (("start", start), ("step", step))
    )
    moved = pm.Normal(given._unknown("moves of records"), 0, 1)
    pm.Potential("flat records", moved**2 / 2 + width * moved)
    return base * pt.exp(width * moved)
