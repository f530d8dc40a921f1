"""The pMSE mechanism (Snoke and Slavkovic, PSD 2018), paper 002's comparator: in a sound form, and as printed.

The mechanism chooses a synthesizer's parameters by the exponential mechanism, with the pMSE between confidential and
synthetic table as the loss, and publishes one table drawn from the synthesizer.
"""

from fractions import Fraction

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.privacy.loss import Number, choice, positive
from pdips.privacy.noise import RandomBits
from pdips_papers.kng.pmse_scores import MOST_RECORDS
from pdips_papers.kng.pmse_stages import choose_parameters

COLUMNS = ("x1", "x2", "x3")
VARIANTS = ("sound", "published")
FEWEST_CANDIDATES, MOST_CANDIDATES = 16, 2**16
MOST_STAGES = 6


def pmse_mechanism(
    frame: pd.DataFrame,
    epsilon: Number,
    *,
    n_candidates: int = 8000,
    stages: int = 3,
    variant: str = "sound",
    bits: RandomBits | None = None,
) -> pd.DataFrame:
    """Publish one synthetic table of the exponential sequential model, its parameters chosen by pMSE.

    Parameters
    ----------
    frame : DataFrame
        Columns x1, x2, x3: finite numbers. The number of rows n is public.
    epsilon : int, float, str or Fraction
        The whole budget.
    n_candidates : int
        Candidate parameters in each stage, 16 to 65,536.
    stages : int
        Stages on all eight parameters, 1 to 6, after a coarse pass column by column.
    variant : str
        "sound": candidates and cells are public. "published": the printed density, with a tree fitted to the records,
        drawn from exactly on candidates that were looked for without paying (guarantee: none).
    bits : RandomBits, optional
        Source of uniform bits; left out, the operating system.

    Returns
    -------
    DataFrame
        n rows, columns x1, x2, x3.

    Raises
    ------
    InputError
        If a column is missing or not finite, or a setting is out of range.

    Notes
    -----
    Neighbours: replace-one. Guarantee of "sound": pure epsilon. Each stage chooses one of a finite public set of
    candidates with probability proportional to exp(-epsilon_s N pMSE / (2 Delta)), Delta = m / (m + 1) with m = 2 n
    synthetic records (:func:`~pdips_papers.kng.pmse_scores.sensitivity`), in whole steps and by an exact draw. Sets and
    cells of later stages are functions of earlier outputs, so losses add up to epsilon; the table is post-processing.
    """
    price = positive(epsilon, "epsilon")
    which = choice(variant, VARIANTS, "variant")
    if not FEWEST_CANDIDATES <= n_candidates <= MOST_CANDIDATES:
        raise InputError(f"n_candidates must be from {FEWEST_CANDIDATES} to {MOST_CANDIDATES}, got {n_candidates}")
    if not 1 <= stages <= MOST_STAGES:
        raise InputError(f"stages must be from 1 to {MOST_STAGES}, got {stages}")
    records = records_of(frame)
    source = RandomBits() if bits is None else bits
    if which == "sound":
        theta = choose_parameters(records, price, n_candidates=n_candidates, stages=stages, bits=source).theta
    else:
        theta = _published(records, price, n_candidates, stages, source)
    return draw_table(theta, len(records), source)


def _published(records: FloatArray, epsilon: Fraction, n_candidates: int, stages: int, bits: RandomBits) -> FloatArray:
    from pdips_papers.kng.pmse_published import published

    return published(records, epsilon, n_candidates=n_candidates, stages=stages, bits=bits)


def records_of(frame: pd.DataFrame) -> FloatArray:
    """Return the three columns, shape (n, 3), or say which rule is broken."""
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise InputError(f"the table needs a column {missing[0]}: the model is of x1, x2 and x3")
    if not 1 <= len(frame) <= MOST_RECORDS:
        raise InputError(f"the table must have from 1 to {MOST_RECORDS} rows")
    columns = []
    for name in COLUMNS:
        try:
            values = frame[name].to_numpy(dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"column {name} must hold numbers only") from None
        if not np.isfinite(values).all():
            raise InputError(f"column {name} must hold finite numbers only: drop or fill in missing values first")
        columns.append(values)
    return np.ascontiguousarray(np.stack(columns, axis=1))


def draw_table(theta: FloatArray, n: int, bits: RandomBits) -> pd.DataFrame:
    """Draw ``n`` records of the model at ``theta``, shape (8,): post-processing."""
    from pdips_papers.kng.pmse_kernels import synthesise

    waits = -np.log1p(-bits.generator().random((n, len(COLUMNS))))
    made = synthesise(np.asarray(theta, dtype=np.float64), waits)
    return pd.DataFrame(made, columns=list(COLUMNS))
