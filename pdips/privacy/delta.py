"""Whether a delta is small enough: the one rule of the plan, the report and its
checklist.
"""

from fractions import Fraction
from typing import Literal

DeltaSize = Literal["none", "unknown", "small", "large", "too large"]

# What is suggested where the number of records isn't known, and at most
USUAL_DELTA = Fraction(1, 10**6)


def size_of_delta(delta: float | Fraction, n_records: int | None) -> DeltaSize:
    """Return how large a delta is for a public number of records.

    At one over the number of records, publishing a record in full would fit the bound:
    that is too large. Above one over its square, delta is large.

    Parameters
    ----------
    delta : float or Fraction
        Of all that is published together.
    n_records : int, optional
        Public number of records, or a public guess; None if there is none.

    Examples
    --------
    >>> [size_of_delta(delta, 1_000) for delta in (0, 1e-6, 1e-5, 1e-3)]
    ['none', 'small', 'large', 'too large']
    >>> size_of_delta(1.0000000000000002e-6, 1_000)
    'small'
    >>> size_of_delta(1e-6, None)
    'unknown'
    """
    if not delta:
        return "none"
    if not n_records:
        return "unknown"
    stated = _digits(delta)
    if stated >= _digits(Fraction(1, n_records)):
        return "too large"
    if stated > _digits(Fraction(1, n_records**2)):
        return "large"
    return "small"


def _digits(number: float | Fraction) -> float:
    """Return a number at twelve digits: a plan holds 1/1000000, and a file of the same
    release the double that isn't below it.
    """
    return float(f"{float(number):.12g}")


def suggested_delta(n_records: int | None) -> Fraction:
    """Return the largest power of ten, up to 10^-6, that is small for a number of
    records.

    Examples
    --------
    >>> suggested_delta(20_000)
    Fraction(1, 1000000000)
    """
    delta = USUAL_DELTA
    while size_of_delta(delta, n_records) in ("large", "too large"):
        delta /= 10
    return delta
