"""How the library's own loops are compiled: kept in numba's cache, and a division by
zero is infinite, as numpy has it.
"""

from numba import njit

compiled = njit(cache=True, error_model="numpy")
