"""Arrays of numpy by the kind of their entries, for annotations."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]  # 64-bit floats, of any shape
IntArray = NDArray[np.int64]  # 64-bit integers, of any shape
BoolArray = NDArray[np.bool_]  # Truth values, of any shape
