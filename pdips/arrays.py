"""Arrays of numpy by the kind of their entries, for annotations; and numbers of them as
a file can hold them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]  # 64-bit floats, of any shape
IntArray = NDArray[np.int64]  # 64-bit integers, of any shape
BoolArray = NDArray[np.bool_]  # Truth values, of any shape


def finite(value: Any) -> float | None:
    """Return a number, None for one that is infinite or NaN, which JSON doesn't
    have.
    """
    return float(value) if np.isfinite(value) else None
