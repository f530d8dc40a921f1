"""The window: what a record's term in a log density is made of, and why it never leaves its bounds."""

from typing import Any, Literal

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray

from pdips.arrays import FloatArray
from pdips.errors import InputError

Clip = Literal["hard", "tanh", "algebraic"]

CLIPS: tuple[Clip, ...] = ("hard", "tanh", "algebraic")


def bounded(log_likelihood: Any, weights: Any, centre: Any, window: Any, clip: Clip) -> Any:
    """Return s(weights * (log_likelihood - centre)), all of it within [-window, window], as a graph.

    Whatever the log-likelihood is, so are the bounds: minus infinity and NaN count as -window, infinity as window, a
    record of weight 0 or without a finite centre as 0.

    Parameters
    ----------
    log_likelihood, weights, centre : graph, shape (records,)
        Natural logarithms; weights of at least 0.
    window : graph, scalar
        Half width of the window, in nats; may be infinite.
    clip : {"hard", "tanh", "algebraic"}
        u cut off at the window, ``window * tanh(u / window)``, or ``window * u / (window + |u|)``.
    """
    centred = pt.isfinite(centre)
    u = weights * (log_likelihood - pt.switch(centred, centre, 0.0))
    if clip == "hard":
        inside = pt.switch(pt.isnan(u), -window, pt.clip(u, -window, window))
    else:
        finite = pt.isfinite(u)
        safe, width = pt.switch(finite, u, 0.0), pt.switch(pt.isinf(window), 1.0, window)
        bent = width * pt.tanh(safe / width) if clip == "tanh" else safe / (1 + pt.abs(safe) / width)
        bent = pt.clip(pt.switch(pt.isinf(window), safe, bent), -window, window)
        inside = pt.switch(finite, bent, pt.switch(u > 0, window, -window))
    return pt.switch(pt.eq(weights, 0) | ~centred, 0.0, inside)


def checked_weights(weights: ArrayLike, n: int) -> FloatArray:
    """Return weights as a vector of numbers in [0, 1]."""
    found = checked_vector(weights, n, "weights")
    if not ((found >= 0) & (found <= 1)).all():
        raise InputError("weights must lie between 0 and 1, and none may be missing")
    return found


def checked_centre(centre: ArrayLike, n: int) -> FloatArray:
    """Return centres as a vector; those that are not finite take their record out."""
    return checked_vector(centre, n, "centre")


def checked_window(window: float) -> FloatArray:
    """Return the window as an array of no axes; it is above 0."""
    if not float(window) > 0:
        raise InputError(f"window must be above 0 (infinite for no bound), got {window}")
    return np.asarray(window, dtype=np.float64)


def checked_vector(values: ArrayLike, n: int, name: str) -> FloatArray:
    """Return one number, or one for each record, as a vector."""
    found = np.asarray(values, dtype=np.float64)
    if found.shape not in ((), (n,)):
        raise InputError(f"{name} must be a number or a vector of one number a record")
    return np.ascontiguousarray(np.broadcast_to(found, (n,))).copy()


def without_infinities(values: NDArray[Any]) -> NDArray[Any]:
    """Replace infinite values, such as the logarithm of a record on the edge, by very large ones.

    The term ends at the same end of the window, and its gradient there is 0 and not the product of 0 and infinity.
    """
    if values.dtype.kind != "f" or not np.isinf(values).any():
        return values
    large = float(np.finfo(values.dtype).max) ** 0.5
    finite: NDArray[Any] = np.nan_to_num(values, nan=np.nan, posinf=large, neginf=-large)
    return finite


def corrected(inside: Any, log_likelihood: Any, centre: Any, factor: Any) -> Any:
    """Return what censoring takes from public rows, times their factor, and the terms of the others as they are.

    Parameters
    ----------
    inside : graph, shape (rows,)
        Terms as :func:`bounded` returns them.
    log_likelihood, centre : graph, shape (rows,)
        Natural logarithms.
    factor : graph, shape (rows,)
        0 marks a confidential record. Any other row is public, and adds factor * (log_likelihood - centre - inside).
    """
    whole = log_likelihood - centre
    whole = pt.switch(pt.isfinite(whole), whole, inside)
    return pt.switch(pt.eq(factor, 0), inside, factor * (whole - inside))
