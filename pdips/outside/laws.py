"""The laws of privacy noise as PyMC distributions, and noisy counts as data of a
model.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.privacy.loss import choice
from pdips.release.noisy_margins import MarginLaw

type Law = Literal["laplace", "gaussian"]

# In scales: noise beyond, of probability below 1e-12, is left out of sums
REACH = {"laplace": 30.0, "gaussian": 8.0}
# Of a sum over noise, for one count; louder noise is continuous, and counts are normal
MOST_TERMS = 2_000
# Terms of a discrete Gaussian's tail that are summed: 9 scales of the loudest noise of
# which they are
SUMMED = 2_000
LOUD = 200.0
FAR = 20.0  # In erfc(x), which is above the smallest double there


@numba_njit  # type: ignore[untyped-decorator]
def _laplace(rng: np.random.Generator, mu: float, scale: float) -> int:
    p = -math.expm1(-1 / scale)
    return round(mu) + rng.geometric(p) - rng.geometric(p)


@numba_njit  # type: ignore[untyped-decorator]
def _gaussian(rng: np.random.Generator, mu: float, scale: float) -> int:
    """Draw by rejection from Laplace noise (Canonne, Kamath and Steinke, 2020)."""
    width = math.floor(scale) + 1
    p = -math.expm1(-1 / width)
    while True:
        noise = rng.geometric(p) - rng.geometric(p)
        gap = abs(noise) - scale**2 / width
        if rng.random() < math.exp(-(gap**2) / (2 * scale**2)):
            return round(mu) + noise


def _laplace_noise(rng: np.random.Generator, scale: FloatArray) -> IntArray:
    """Return discrete Laplace noise, one number for each scale."""
    p = -np.expm1(-1 / scale)
    return rng.geometric(p) - rng.geometric(p)


def _gaussian_noise(rng: np.random.Generator, scale: FloatArray) -> IntArray:
    """Return discrete Gaussian noise, one number for each scale, as :func:`_gaussian`
    does.
    """
    width = np.floor(scale) + 1
    noise = np.zeros(scale.shape, dtype=np.int64)
    waiting = np.ones(scale.shape, dtype=np.bool_)
    while waiting.any():
        proposed = _laplace_noise(rng, width)
        gap = np.abs(proposed) - scale**2 / width
        accepted = rng.random(scale.shape) < np.exp(-(gap**2) / (2 * scale**2))
        noise = np.where(waiting & accepted, proposed, noise)
        waiting &= ~accepted
    return noise


def _log_noise(law: Law, noise: Any, scale: Any) -> Any:
    scale = pt.as_tensor(scale, dtype="float64")
    if law == "laplace":
        return pt.log(pt.tanh(1 / (2 * scale))) - pt.abs(noise) / scale
    tail = sum(pt.exp(-(j**2) / (2 * scale**2)) for j in range(1, 9))
    small = 1 + 2 * tail
    # Poisson's summation
    first = pt.exp(-2 * math.pi**2 * scale**2)
    large = scale * math.sqrt(2 * math.pi) * (1 + 2 * first)
    normaliser = pt.log(pt.switch(scale < 1, small, large))
    return -(noise**2) / (2 * scale**2) - normaliser


class _LaplaceRV(RandomVariable):  # type: ignore[misc]
    """Draws discrete Laplace noise: by numpy, or by numba where PyTensor compiles with
    it.

    Compiled functions aren't called from Python: handed a numpy generator, they ended
    the interpreter.
    """

    name = "discrete_laplace"
    signature = "(),()->()"
    dtype = "int64"
    compiled = staticmethod(_laplace)
    noise = staticmethod(_laplace_noise)

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, mu: Any, scale: Any, size: Any) -> Any:
        shape = np.broadcast_shapes(np.shape(mu), np.shape(scale))
        scales = np.broadcast_to(scale, shape if size is None else size)
        nearest = np.rint(mu).astype(np.int64)
        return nearest + cls.noise(rng, np.asarray(scales, dtype=np.float64))


class _GaussianRV(_LaplaceRV):
    name = "discrete_gaussian"
    compiled = staticmethod(_gaussian)
    noise = staticmethod(_gaussian_noise)


@numba_core_rv_funcify.register(_LaplaceRV)  # type: ignore[untyped-decorator]
def _compiled(op: _LaplaceRV, node: Any) -> tuple[Any, int]:
    return op.compiled, 1


def _nearest(rv: Any, size: Any, mu: Any, scale: Any) -> Any:
    return pt.round(mu + pt.zeros_like(rv, dtype="float64"))


def _log_probability(law: Law) -> Callable[..., Any]:
    def logp(value: Any, mu: Any, scale: Any) -> Any:
        return check_parameters(
            _log_noise(law, value - mu, scale), scale > 0, msg="scale > 0"
        )

    return logp


def _log_below(law: Law, off: Any, scale: Any) -> Any:
    """Return the log probability of noise of at most ``off``, which is negative."""
    if law == "laplace":
        return off / scale - pt.log1p(pt.exp(-1 / scale))
    terms = _log_noise(law, off[..., None] - np.arange(SUMMED), scale[..., None])
    summed = pt.logsumexp(terms, axis=-1)
    # The sum as an integral up to off + 1/2, with the first two terms of Euler and
    # Maclaurin's series about the middle of steps; its error is far below rounding
    # where it is used, and beyond the sum's terms are as good as all.
    at = (off + 0.5) / scale
    # PyTensor's erfcx has an error of 1e-9 for small numbers, its erfc hasn't
    below = -at / math.sqrt(2)
    far = pt.log(pt.erfcx(pt.maximum(below, FAR))) - below**2
    near = pt.log(pt.erfc(pt.minimum(below, FAR)))
    log_normal = pt.switch(below < FAR, near, far) - math.log(2)
    hazard = pt.exp(-(at**2) / 2 - math.log(2 * math.pi) / 2 - log_normal)
    series = at / (24 * scale**2) - 7 * (at**3 - 3 * at) / (5760 * scale**4)
    smooth = (scale > LOUD) & (at > -scale / 50)
    integral = log_normal + pt.log1p(pt.switch(smooth, hazard * series, 0.0))
    return pt.switch(smooth, integral, summed)


def _log_cumulative(law: Law) -> Callable[..., Any]:
    def logcdf(value: Any, mu: Any, scale: Any) -> Any:
        scale = pt.as_tensor(scale, dtype="float64")
        off = pt.floor(value) - mu
        off, scale = pt.broadcast_arrays(off, scale)
        # both tails by the lower one: P(Z <= off) = 1 - P(Z <= -off - 1)
        tail = _log_below(law, pt.switch(off < 0, off, -off - 1), scale)
        found = pt.switch(off < 0, tail, pt.log1mexp(tail))
        return check_parameters(found, scale > 0, msg="scale > 0")

    return logcdf


class _NoisyCount(pm.Discrete):  # type: ignore[misc]
    @classmethod
    def dist(cls, mu: Any = 0, scale: Any = 1, **kwargs: Any) -> Any:
        """Return a random variable outside of a model."""
        return super().dist(
            [pt.as_tensor(mu), pt.as_tensor(scale, dtype="float64")], **kwargs
        )


class DiscreteLaplace(_NoisyCount):
    """The count ``mu`` plus discrete Laplace noise: P(k) = tanh(1 / (2 scale))
    exp(-abs(k - mu) / scale).

    Parameters
    ----------
    mu : tensor_like
        The true count. The law is exact for whole numbers. Between them the same
        formula holds, so that NUTS can move a count that is taken as continuous; draws
        round it.
    scale : tensor_like
        Of the noise, in records: ``scale`` of an entry of ``margins`` in
        ``privacy.json``.

    Examples
    --------
    >>> float(pm.logp(DiscreteLaplace.dist(0, 1), 0).exp().eval().round(4))
    0.4621
    """

    rv_op = _LaplaceRV()

    support_point = _nearest
    logp = _log_probability("laplace")
    logcdf = _log_cumulative("laplace")


class DiscreteGaussian(_NoisyCount):
    """The count ``mu`` plus discrete Gaussian noise: P(k) in proportion to exp(-(k -
    mu)^2 / (2 scale^2)).

    Parameters are those of :class:`DiscreteLaplace`.

    Examples
    --------
    >>> float(pm.logp(DiscreteGaussian.dist(0, 1), 0).exp().eval().round(4))
    0.3989
    """

    rv_op = _GaussianRV()

    support_point = _nearest
    logp = _log_probability("gaussian")
    logcdf = _log_cumulative("gaussian")


class NoisyCounts:
    """Counts of a table with privacy noise on top, as data of a model in whose context
    it is called.

    Each count is Poisson about its mean, or binomial; the true count is summed over.
    Where the noise is so loud that a sum would have more than 2,000 terms, counts are
    taken as normal and noise as continuous; nothing is left to sample beside the
    parameters either way.

    Parameters
    ----------
    name : str
        Of the variable.
    mean : tensor_like
        Expected counts; with ``n_records``, shares.
    noise : MarginLaw or tuple of str and float
        The law of the noise: that of a measured margin, or ``("laplace", scale)``,
        ``("gaussian", sigma)``.
    n_records : tensor_like, optional
        Of which each share is: counts are binomial, and independent of each other.
    exact : bool, optional
        Whether to sum over true counts; left out, where sums have at most 2,000 terms.
    **kwargs
        ``observed`` and whatever else PyMC's distributions take: ``dims``, ``shape``.

    Returns
    -------
    TensorVariable
        The noisy counts.

    Raises
    ------
    InputError
        If the law is neither, or of counts that share noise.

    Examples
    --------
    >>> with pm.Model() as model:
    ...     mean = pm.Gamma("mean", 2, 0.1)
    ...     _ = NoisyCounts(
    ...         "noisy", mean, noise=("laplace", 4.0), observed=np.array([17])
    ...     )
    >>> model.compile_logp()({"mean_log__": 3.0}).round(3).item()
    -3.508
    """

    def __new__(
        cls,
        name: str,
        mean: Any,
        *,
        noise: MarginLaw | tuple[Law, float],
        n_records: Any = None,
        exact: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Add the noisy counts to the model."""
        stated, scale = (
            (noise.law, noise.scale) if isinstance(noise, MarginLaw) else noise
        )
        choice(stated, ("laplace", "gaussian"), "the law of the noise")
        law: Law = "laplace" if stated == "laplace" else "gaussian"
        if isinstance(noise, MarginLaw) and noise.differences:
            raise InputError(
                "these numbers are differences that share noise: use "
                "NoisyMargins.factor"
            )
        if not scale > 0:
            raise InputError("the scale of the noise must be above 0")
        reach = math.ceil(REACH[law] * scale) + 1
        summed = 2 * reach + 1 <= MOST_TERMS if exact is None else exact
        logp = _relaxed(law, scale)
        if summed:
            logp = _summed(law, np.arange(-reach, reach + 1), scale)

        def dist(mean: Any, *rest: Any) -> Any:
            *n, size = rest
            if n:
                true = pm.Binomial.dist(*n, mean, size=size)
            else:
                true = pm.Poisson.dist(mean, size=size)
            noisy = DiscreteLaplace if law == "laplace" else DiscreteGaussian
            return noisy.dist(true, scale)

        parameters = [mean] if n_records is None else [mean, n_records]
        return pm.CustomDist(name, *parameters, dist=dist, logp=logp, **kwargs)


def _summed(law: Law, noise: IntArray, scale: float) -> Callable[..., Any]:
    def logp(value: Any, mean: Any, *rest: Any) -> Any:
        count, mean = (pt.cast(each, "float64")[..., None] for each in (value, mean))
        count = count - noise
        possible = count >= 0
        if rest:
            n = pt.cast(rest[0], "float64")[..., None]
            possible &= count <= n
        k = pt.switch(possible, count, 0)
        if rest:
            terms = pt.gammaln(n + 1) - pt.gammaln(k + 1) - pt.gammaln(n - k + 1)
            terms += k * pt.log(mean) + (n - k) * pt.log1p(-mean)
        else:
            terms = k * pt.log(mean) - mean - pt.gammaln(k + 1)
        terms += _log_noise(law, noise, scale)
        return pt.logsumexp(pt.switch(possible, terms, -np.inf), axis=-1)

    return logp


def _relaxed(law: Law, scale: float) -> Callable[..., Any]:
    def logp(value: Any, mean: Any, *rest: Any) -> Any:
        mean = pt.cast(mean, "float64")
        expected = mean
        variance = mean
        if rest:
            expected = rest[0] * mean
            variance = expected * (1 - mean)
        off = value - expected
        if law == "gaussian":
            total = variance + scale**2
            return -(off**2) / (2 * total) - pt.log(2 * math.pi * total) / 2
        width = pt.sqrt(variance)

        # a normal variable plus Laplace noise on one side of it
        def side(off: Any) -> Any:
            at = (width / scale - off / width) / math.sqrt(2)
            tail = pt.log(pt.erfcx(pt.maximum(at, -5))) - off**2 / (2 * variance)
            exponent = variance / (2 * scale**2) - off / scale
            far = exponent + pt.log(pt.erfc(pt.minimum(at, 0)))
            return pt.switch(at < 0, far, tail)

        return pt.logaddexp(side(off), side(-off)) - math.log(4 * scale)

    return logp
