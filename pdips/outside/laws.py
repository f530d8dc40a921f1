"""The laws of privacy noise as PyMC distributions, and noisy counts as data of a model."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable

from pdips.arrays import IntArray
from pdips.errors import InputError
from pdips.privacy.loss import choice
from pdips.release.noisy_margins import MarginLaw

type Law = Literal["laplace", "gaussian"]

REACH = {"laplace": 30.0, "gaussian": 8.0}  # In scales: noise beyond, of probability below 1e-12, is left out of sums
MOST_TERMS = 2_000  # Of a sum over noise, for one count; louder noise is continuous, and counts are normal


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
        if rng.random() < math.exp(-((abs(noise) - scale**2 / width) ** 2) / (2 * scale**2)):
            return round(mu) + noise


def _log_noise(law: Law, noise: Any, scale: Any) -> Any:
    scale = pt.as_tensor(scale, dtype="float64")
    if law == "laplace":
        return pt.log(pt.tanh(1 / (2 * scale))) - pt.abs(noise) / scale
    small = 1 + 2 * sum(pt.exp(-(j**2) / (2 * scale**2)) for j in range(1, 9))
    large = scale * math.sqrt(2 * math.pi) * (1 + 2 * pt.exp(-2 * math.pi**2 * scale**2))  # Poisson's summation
    return -(noise**2) / (2 * scale**2) - pt.log(pt.switch(scale < 1, small, large))


class _LaplaceRV(RandomVariable):  # type: ignore[misc]
    name = "discrete_laplace"
    signature = "(),()->()"
    dtype = "int64"
    drawn = staticmethod(_laplace)

    @classmethod
    def rng_fn(cls, rng: np.random.Generator, mu: Any, scale: Any, size: Any) -> Any:
        mu, scale = np.broadcast_arrays(mu, scale) if size is None else (np.broadcast_to(x, size) for x in (mu, scale))
        return np.vectorize(partial(cls.drawn, rng), otypes=[np.int64])(mu, scale)


class _GaussianRV(_LaplaceRV):
    name = "discrete_gaussian"
    drawn = staticmethod(_gaussian)


@numba_core_rv_funcify.register(_LaplaceRV)  # type: ignore[untyped-decorator]
def _compiled(op: _LaplaceRV, node: Any) -> tuple[Any, int]:
    return op.drawn, 1


def _nearest(rv: Any, size: Any, mu: Any, scale: Any) -> Any:
    return pt.round(mu + pt.zeros_like(rv, dtype="float64"))


def _log_probability(law: Law) -> Callable[..., Any]:
    def logp(value: Any, mu: Any, scale: Any) -> Any:
        return check_parameters(_log_noise(law, value - mu, scale), scale > 0, msg="scale > 0")

    return logp


class _NoisyCount(pm.Discrete):  # type: ignore[misc]
    @classmethod
    def dist(cls, mu: Any = 0, scale: Any = 1, **kwargs: Any) -> Any:
        """Return a random variable outside of a model."""
        return super().dist([pt.as_tensor(mu), pt.as_tensor(scale, dtype="float64")], **kwargs)


class DiscreteLaplace(_NoisyCount):
    """The count ``mu`` plus discrete Laplace noise: P(k) = tanh(1 / (2 scale)) exp(-abs(k - mu) / scale).

    Parameters
    ----------
    mu : tensor_like
        The true count. The law is exact for whole numbers. Between them the same formula holds, so that NUTS can move
        a count that is taken as continuous; draws round it.
    scale : tensor_like
        Of the noise, in records: ``scale`` of an entry of ``margins`` in ``privacy.json``.

    Examples
    --------
    >>> float(pm.logp(DiscreteLaplace.dist(0, 1), 0).exp().eval().round(4))
    0.4621
    """

    rv_op = _LaplaceRV()

    support_point = _nearest
    logp = _log_probability("laplace")


class DiscreteGaussian(_NoisyCount):
    """The count ``mu`` plus discrete Gaussian noise: P(k) in proportion to exp(-(k - mu)^2 / (2 scale^2)).

    Parameters are those of :class:`DiscreteLaplace`.

    Examples
    --------
    >>> float(pm.logp(DiscreteGaussian.dist(0, 1), 0).exp().eval().round(4))
    0.3989
    """

    rv_op = _GaussianRV()

    support_point = _nearest
    logp = _log_probability("gaussian")


class NoisyCounts:
    """Counts of a table with privacy noise on top, as data of a model in whose context it is called.

    Each count is Poisson about its mean, or binomial; the true count is summed over. Where the noise is so loud that a
    sum would have more than 2,000 terms, counts are taken as normal and noise as continuous; nothing is left to
    sample beside the parameters either way.

    Parameters
    ----------
    name : str
        Of the variable.
    mean : tensor_like
        Expected counts; with ``n_records``, shares.
    noise : MarginLaw or tuple of str and float
        The law of the noise: that of a measured margin, or ``("laplace", scale)``, ``("gaussian", sigma)``.
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
    ...     _ = NoisyCounts("noisy", mean, noise=("laplace", 4.0), observed=np.array([17]))
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
        stated, scale = (noise.law, noise.scale) if isinstance(noise, MarginLaw) else noise
        choice(stated, ("laplace", "gaussian"), "the law of the noise")
        law: Law = "laplace" if stated == "laplace" else "gaussian"
        if isinstance(noise, MarginLaw) and noise.differences:
            raise InputError("these numbers are differences that share noise: use NoisyMargins.factor")
        if not scale > 0:
            raise InputError("the scale of the noise must be above 0")
        reach = math.ceil(REACH[law] * scale) + 1
        summed = 2 * reach + 1 <= MOST_TERMS if exact is None else exact
        logp = _summed(law, np.arange(-reach, reach + 1), scale) if summed else _relaxed(law, scale)

        def dist(mean: Any, *rest: Any) -> Any:
            *n, size = rest
            true = pm.Binomial.dist(*n, mean, size=size) if n else pm.Poisson.dist(mean, size=size)
            return (DiscreteLaplace if law == "laplace" else DiscreteGaussian).dist(true, scale)

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
        return pt.logsumexp(pt.switch(possible, terms + _log_noise(law, noise, scale), -np.inf), axis=-1)

    return logp


def _relaxed(law: Law, scale: float) -> Callable[..., Any]:
    def logp(value: Any, mean: Any, *rest: Any) -> Any:
        mean = pt.cast(mean, "float64")
        expected, variance = (rest[0] * mean, rest[0] * mean * (1 - mean)) if rest else (mean, mean)
        off = value - expected
        if law == "gaussian":
            return -(off**2) / (2 * (variance + scale**2)) - pt.log(2 * math.pi * (variance + scale**2)) / 2
        width = pt.sqrt(variance)

        def side(off: Any) -> Any:  # a normal variable plus Laplace noise on one side of it
            at = (width / scale - off / width) / math.sqrt(2)
            tail = pt.log(pt.erfcx(pt.maximum(at, -5))) - off**2 / (2 * variance)
            far = variance / (2 * scale**2) - off / scale + pt.log(pt.erfc(pt.minimum(at, 0)))
            return pt.switch(at < 0, far, tail)

        return pt.logaddexp(side(off), side(-off)) - math.log(4 * scale)

    return logp
