"""Ranges that approximate Gaussian processes have from what is public, and not from the
values that happen to be there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import pytensor.tensor as pt
from pymc.gp import HSGP, HSGPPeriodic
from pymc.gp.hsgp_approx import set_boundary

from pdips.arrays import FloatArray

# The method of PyMC's classes that asks for ranges is another one meanwhile, so that
# models are built one at a time
BUILDING = RLock()


@contextmanager
def told_ranges(ranges: Callable[[Any], FloatArray | None]) -> Iterator[None]:
    """Let the ranges of inputs be what a function returns while models are built.

    ``pm.gp.HSGP`` takes its centre, and its boundary where ``c`` is given, from the
    values of its inputs, by ``eval()``. The function is given the inputs as a graph and
    returns the least and the greatest value of each column, shape (2, columns), or None
    where it has nothing to say.
    """

    def told(process: Any, X: Any) -> Any:
        ends = ranges(pt.as_tensor(X)) if process._X_center is None else None
        if ends is not None:
            process._X_center = ends.mean(axis=0)
            if isinstance(process, HSGP) and process._L is None:
                centred = pt.as_tensor(ends - process._X_center)
                active, _ = process.cov_func._slice(centred)
                process.L = set_boundary(active, process._c)
        kind = HSGP if isinstance(process, HSGP) else HSGPPeriodic
        return asked[kind](process, X)

    with BUILDING:
        asked = {kind: kind.prior_linearized for kind in (HSGP, HSGPPeriodic)}
        try:
            for kind in asked:
                kind.prior_linearized = told
            yield
        finally:
            for kind, method in asked.items():
                kind.prior_linearized = method
