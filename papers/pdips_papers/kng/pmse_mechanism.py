"""The pMSE mechanism (Snoke and Slavkovic, PSD 2018), Tran et al.'s comparator, in a
sound form.

The mechanism chooses a synthesizer's parameters by the exponential mechanism, with the
pMSE between confidential and synthetic table as the loss, and publishes one table drawn
from the synthesizer. Candidates and cells of each stage follow from public and released
numbers; each stage makes one choice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.privacy.loss import Number, positive
from pdips.privacy.noise import RandomBits, exponential_mechanism
from pdips_papers.kng.pmse_scores import (
    MOST_RECORDS,
    RATIO,
    WHOLE,
    Partition,
    scores,
    step_sensitivity,
    synthesise,
)

COLUMNS = ("x1", "x2", "x3")


FEWEST_CANDIDATES = 16
MOST_CANDIDATES = 2**16
MOST_STAGES = 6

Choose = Callable[..., FloatArray]

NAMES = (
    "rate_1",
    "intercept_2",
    "slope_21",
    "rate_2",
    "intercept_3",
    "slope_31",
    "slope_32",
    "rate_3",
)
"""x1 ~ Exp(rate_1); x2 = intercept_2 + slope_21 x1 + Exp(rate_2);
x3 = intercept_3 + slope_31 x1 + slope_32 x2 + Exp(rate_3)."""

RATES = np.array([0, 3, 7])
LOWEST = np.array([0.01, 0.0, 0.0, 0.01, 0.0, 0.0, 0.0, 0.01])

HIGHEST = np.array([1.0, 20.0, 10.0, 1.0, 20.0, 10.0, 10.0, 1.0])
"""The public box, in the order of :data:`NAMES`: uniform, rates on the log scale."""

GROWTH = 4
"""Each joint stage has this many times the budget of the one before it, and so half its
spread.
"""

WIDEN = 1.6
"""Candidates spread this much wider than what is left unknown."""

FIRST_CUTS = np.geomspace(0.05, 1000, 40)

CUTS = np.geomspace(1.0, 20_000.0, 30)
"""Where x1, and x2 or a residual of x3, are cut before anything is known of them."""


def pmse_mechanism(
    frame: pd.DataFrame,
    epsilon: Number,
    *,
    n_candidates: int = 8000,
    stages: int = 3,
    choose: "Choose | None" = None,
    bits: RandomBits | None = None,
) -> pd.DataFrame:
    """Publish one synthetic table of the exponential sequential model, its parameters
    chosen by pMSE.

    Neighbours: replace-one. Guarantee: pure epsilon. Each stage chooses one of a finite
    public set of candidates with probability proportional to exp(-epsilon_s N pMSE / (2
    Delta)), Delta = m / (m + 1) with m = 2 n synthetic records
    (:func:`~pdips_papers.kng.pmse_scores.sensitivity`), in whole steps and by an exact
    draw. Sets and cells of later stages are functions of earlier outputs, so losses add
    up to epsilon; the table is post-processing.
    """
    price = positive(epsilon, "epsilon")
    if not FEWEST_CANDIDATES <= n_candidates <= MOST_CANDIDATES:
        raise InputError(
            f"n_candidates must be from {FEWEST_CANDIDATES} to "
            f"{MOST_CANDIDATES}, got {n_candidates}"
        )
    if not 1 <= stages <= MOST_STAGES:
        raise InputError(f"stages must be from 1 to {MOST_STAGES}, got {stages}")
    records = records_of(frame)
    source = RandomBits() if bits is None else bits
    theta = (choose or chosen)(
        records, price, n_candidates=n_candidates, stages=stages, bits=source
    )
    waits = -np.log1p(-source.generator().random((len(records), len(COLUMNS))))
    return pd.DataFrame(
        synthesise(np.asarray(theta, dtype=np.float64), waits), columns=list(COLUMNS)
    )


def chosen(
    records: FloatArray,
    epsilon: Fraction,
    *,
    n_candidates: int,
    stages: int,
    bits: RandomBits,
) -> FloatArray:
    """Return the parameters of the sound choice, shape (8,)."""
    return choose_parameters(
        records, epsilon, n_candidates=n_candidates, stages=stages, bits=bits
    ).theta


def records_of(frame: pd.DataFrame) -> FloatArray:
    """Return the three columns, shape (n, 3), or say which rule is broken."""
    if missing := [name for name in COLUMNS if name not in frame]:
        raise InputError(
            f"the table needs a column {missing[0]}: the model is of x1, x2 and x3"
        )
    if not 1 <= len(frame) <= MOST_RECORDS:
        raise InputError(f"the table must have from 1 to {MOST_RECORDS} rows")
    for name in COLUMNS:
        if not pd.api.types.is_numeric_dtype(frame[name]):
            raise InputError(f"column {name} must hold numbers only")
        if not np.isfinite(frame[name].to_numpy(np.float64, na_value=np.nan)).all():
            raise InputError(
                f"column {name} must hold finite numbers only: drop or "
                f"fill in missing values first"
            )
    return np.ascontiguousarray(frame[list(COLUMNS)].to_numpy(dtype=np.float64))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A choice among candidates that differ in ``free`` and fill the box, or lie around
    what was released.
    """

    free: tuple[int, ...]
    from_box: bool
    share: Fraction


COARSE = [
    Stage(free=(0,), from_box=True, share=Fraction(1, 40)),
    Stage(free=(1, 2, 3), from_box=True, share=Fraction(1, 40)),
    Stage(free=(1, 2, 3), from_box=False, share=Fraction(3, 80)),
    Stage(free=(4, 5, 6, 7), from_box=True, share=Fraction(3, 80)),
    Stage(free=(4, 5, 6, 7), from_box=False, share=Fraction(3, 40)),
]
"""The coarse pass, column by column."""


def plan(n_joint: int) -> tuple[Stage, ...]:
    """Return the coarse pass and ``n_joint`` stages on all parameters; the shares add
    up to 1.
    """
    left = 1 - sum(stage.share for stage in COARSE)
    weights = [GROWTH**k for k in range(n_joint)]
    everything = tuple(range(len(NAMES)))
    joint = (
        Stage(free=everything, from_box=False, share=left * Fraction(w, sum(weights)))
        for w in weights
    )
    return (*COARSE, *joint)


@dataclass(frozen=True, kw_only=True)
class Known:
    """Parameters released so far, and the covariance of log rates, intercepts and
    slopes: how well they are known.
    """

    theta: FloatArray
    covariance: FloatArray

    def with_block(self, free: tuple[int, ...], block: FloatArray) -> "Known":
        """Return the same with another covariance of some parameters, independent of
        the others.
        """
        covariance = self.covariance.copy()
        covariance[list(free), :] = 0
        covariance[:, list(free)] = 0
        covariance[np.ix_(free, free)] = block
        return Known(theta=self.theta, covariance=covariance)


def with_logs(thetas: FloatArray) -> FloatArray:
    """Return parameters, shape (..., 8), with the logs of the rates."""
    changed = np.array(thetas, dtype=np.float64)
    changed[..., RATES] = np.log(changed[..., RATES])
    return changed


def without_logs(changed: FloatArray) -> FloatArray:
    """Undo :func:`with_logs`."""
    thetas = np.array(changed, dtype=np.float64)
    thetas[..., RATES] = np.exp(np.clip(thetas[..., RATES], -30, 30))
    return thetas


def _in_box(changed: FloatArray) -> FloatArray:
    return np.clip(without_logs(changed), LOWEST, HIGHEST)


def at_start() -> Known:
    """Return what is known before anything is released: the public box."""
    low = with_logs(LOWEST)
    high = with_logs(HIGHEST)
    return Known(
        theta=_in_box((low + high) / 2), covariance=np.diag((high - low) ** 2 / 12)
    )


@lru_cache(maxsize=64)
def cube(n_candidates: int, n_dimensions: int, number: int) -> FloatArray:
    """Return public points that fill the unit cube evenly, shape (candidates,
    dimensions).
    """
    from scipy.stats import qmc

    sequence = qmc.Sobol(n_dimensions, rng=np.random.default_rng(number))
    uniform = sequence.random(2 ** (n_candidates - 1).bit_length())[:n_candidates]
    return np.asarray(np.clip(uniform, 2.0**-30, 1 - 2.0**-30))


@lru_cache(maxsize=64)
def cloud(n_candidates: int, n_dimensions: int, number: int) -> FloatArray:
    """Return public standard normal points, shape (candidates, dimensions), the first
    of them 0.
    """
    from scipy.special import ndtri

    points = np.array(ndtri(cube(n_candidates, n_dimensions, number)))
    points[0] = 0
    return points


def root_of(covariance: FloatArray) -> FloatArray:
    """Return a square root R, R R' = covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0)))


def candidates(
    known: Known, stage: Stage, n_candidates: int, number: int
) -> FloatArray:
    """Return the candidates of a stage, shape (candidates, 8), all in the public
    box.
    """
    free = list(stage.free)
    changed = np.tile(with_logs(known.theta), (n_candidates, 1))
    if stage.from_box:
        low = with_logs(LOWEST)[free]
        high = with_logs(HIGHEST)[free]
        changed[:, free] = low + (high - low) * cube(n_candidates, len(free), number)
    else:
        root = root_of(known.covariance[np.ix_(free, free)])
        changed[:, free] += WIDEN * cloud(n_candidates, len(free), number) @ root.T
    return _in_box(changed)


def _quantiles(rate: float, n_bins: int) -> FloatArray:
    return np.asarray(-np.log1p(-np.arange(1, n_bins) / n_bins) / rate)


def _residual_cuts(rate: float, spread: float) -> FloatArray:
    """Cut a residual at quantiles of its law, and about 0, where a wrong plane shows
    most.
    """
    inner = _quantiles(rate, 8)
    near = np.array([-2, -0.7, 0, 0.7, 2]) * spread
    return np.unique(np.concatenate([near, inner[inner > 2.5 * spread]]))


def _spreads(known: Known) -> tuple[float, float]:
    """Return how far off the planes of x2 and x3 may be at a record in the middle."""
    x1 = 1 / known.theta[0]
    x2 = known.theta[1] + known.theta[2] * x1 + 1 / known.theta[3]
    at_2 = np.array([1, x1])
    at_3 = np.array([1, x1, x2])
    block_2 = known.covariance[1:3, 1:3]
    block_3 = known.covariance[4:7, 4:7]
    return float(np.sqrt(at_2 @ block_2 @ at_2)), float(np.sqrt(at_3 @ block_3 @ at_3))


def cells(known: Known, stage: Stage) -> Partition:
    """Choose a partition that tells the candidates of a stage apart."""
    theta = known.theta
    none = np.empty(0)
    lines = theta[[1, 2, 4, 5, 6]]
    only_x2 = np.where([True, True, False, False, False], lines, 0.0)
    if stage.free == (0,):
        return Partition(lines=0 * lines, edges=(FIRST_CUTS, none, none))
    spread_2, spread_3 = _spreads(known)
    cuts_1 = _quantiles(theta[0], 8)
    cuts_2 = _residual_cuts(theta[3], spread_2)
    cuts_3 = _residual_cuts(theta[7], spread_3)
    if 7 not in stage.free and stage.from_box:
        return Partition(lines=0 * lines, edges=(cuts_1, CUTS, none))
    if 7 not in stage.free:
        return Partition(lines=only_x2, edges=(cuts_1, cuts_2, none))
    if stage.from_box:
        return Partition(lines=only_x2, edges=(cuts_1, _quantiles(theta[3], 4), CUTS))
    return Partition(lines=lines, edges=(cuts_1, cuts_2, cuts_3))


def information(known: Known, stage: Stage) -> FloatArray:
    """Return what one record's cell says about the free parameters: sum over cells of
    dq_i dq_j / q, by differences.
    """
    free = list(stage.free)
    widths = np.sqrt(np.diag(known.covariance))[free] / 2
    changed = np.tile(with_logs(known.theta), (2 * len(free), 1))
    which = np.arange(len(free))
    changed[2 * which, free] += widths
    changed[2 * which + 1, free] -= widths
    thetas = _in_box(changed)
    shares = cells(known, stage).shares(thetas) / WHOLE + 1e-6
    moved = with_logs(thetas)
    steps = moved[2 * which, free] - moved[2 * which + 1, free]
    slopes = (shares[::2] - shares[1::2]) / steps[:, None]
    return np.asarray(slopes / shares.mean(axis=0) @ slopes.T)


def after(
    known: Known,
    stage: Stage,
    theta: FloatArray,
    *,
    n: int,
    epsilon: Fraction,
    n_candidates: int,
) -> Known:
    """Return what is known once a stage has released ``theta``.

    Near its best, the loss of the mechanism is quadratic, so that its choice spreads
    about the fit to the records with the covariance inv(sharpness n I), and that fit
    about the truth with inv(n I).
    """
    free = stage.free
    moved = Known(theta=theta, covariance=known.covariance)
    per_table = n * information(moved, stage)
    before = known.covariance[np.ix_(free, free)] * WIDEN**2
    sharpness = float(epsilon) * RATIO**2 / (1 + RATIO) ** 3
    chosen = np.linalg.inv(np.linalg.inv(before) + sharpness * per_table)
    sampled = np.linalg.inv(np.linalg.inv(before) + per_table)
    spacing = before * n_candidates ** (-2 / len(free))
    return moved.with_block(free, chosen + sampled + spacing)


def choose_parameters(
    records: FloatArray,
    epsilon: Fraction,
    *,
    n_candidates: int,
    stages: int,
    bits: RandomBits,
) -> Known:
    """Choose the model's parameters, epsilon-differentially private under
    replace-one.
    """
    n = len(records)
    known = at_start()
    for number, stage in enumerate(plan(stages)):
        thetas = candidates(known, stage, n_candidates, number)
        price = epsilon * stage.share
        unit = price / (2 * step_sensitivity(n))
        losses = scores(cells(known, stage), thetas, records)
        chosen = exponential_mechanism(losses[None, :], unit, bits)[0]
        known = after(
            known, stage, thetas[chosen], n=n, epsilon=price, n_candidates=n_candidates
        )
    return known
