"""A membership attack on published synthetic sets, beside what epsilon permits."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.audit.findings import cells_of, clopper_pearson, likelihood_score, released_codes
from pdips.audit.neighbour_pairs import Pair, check_relation
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.mechanism import Mechanism
from pdips.privacy.loss import PrivacyLoss
from pdips.report.card import detection_bound

FALSE_POSITIVE_RATES = (0.01, 0.1)
N_PARTS = 8  # Shadow releases are made in this many parts, whatever the cores: a seed gives the same attack


@dataclass(frozen=True, kw_only=True)
class Attack:
    """How well an attacker who sees all sets tells the two tables of a pair apart.

    Parameters
    ----------
    score : str
        What the attacker computes.
    false_positive_rate : float
        The rate that the attacker aims at.
    measured_false_positive_rate, true_positive_rate : float
        Of the attack, on releases that neither the score nor its threshold was learned from.
    lower, upper : float
        Confidence limits of the true positive rate, each wrong with probability 2.5 % at most.
    permitted : float
        The largest true positive rate that the claimed epsilon permits at the upper confidence limit (97.5 %) of the
        measured false positive rate: ``lower`` is above it with probability 5 % at most for a sound mechanism.

    Examples
    --------
    >>> Attack(
    ...     score="distance of the target to its nearest synthetic record",
    ...     false_positive_rate=0.1,
    ...     measured_false_positive_rate=0.1,
    ...     true_positive_rate=0.2,
    ...     lower=0.17,
    ...     upper=0.23,
    ...     permitted=0.33,
    ... ).permitted
    0.33
    """

    score: str
    false_positive_rate: float
    measured_false_positive_rate: float
    true_positive_rate: float
    lower: float
    upper: float
    permitted: float

    def describe(self) -> dict[str, Any]:
        """Return the attack as plain values."""
        return asdict(self)


def attack(
    mechanism: Mechanism, pair: Pair, *, n_shadow: int = 2000, rng: np.random.Generator | None = None
) -> list[Attack]:
    """Attack whole releases: which of the two tables were they made from?

    Half of ``n_shadow`` releases of each table train the likelihood ratio score; the other half are attacked, half of
    the second table's to set the threshold and half to measure false positives. The distance score needs no training:
    how near the record that only the first table has comes to the synthetic records.

    Parameters
    ----------
    mechanism : Mechanism
        Attacked through ``release`` alone.
    pair : Pair
        The first table holds the target, the second doesn't.
    n_shadow : int
        Releases of each table, at least 400.
    rng : numpy.random.Generator, optional
        For tests.

    Examples
    --------
    >>> from pdips.audit.neighbour_pairs import worst_pairs
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> pair = worst_pairs(schema, "replace-one")[0]
    >>> found = attack(LaplaceSanitizer(epsilon=1), pair, n_shadow=400)
    >>> [one.false_positive_rate for one in found]
    [0.01, 0.1, 0.01, 0.1]
    """
    if n_shadow < 400:
        raise InputError(f"a membership attack needs at least 400 shadow releases, got {n_shadow}")
    check_relation(mechanism, pair)
    loss = mechanism.privacy_loss(pair.first.schema)
    views = [_views(mechanism, table, n_shadow, _target(pair), rng) for table in (pair.first, pair.second)]
    half = n_shadow // 2
    score = likelihood_score(views[0][:half, :-1], views[1][:half, :-1])
    scores = {
        "likelihood ratio of cell counts": [score(view[half:, :-1]) for view in views],
        "distance of the target to its nearest synthetic record": [-view[half:, -1] for view in views],
    }
    return [
        _rate(name, inside, outside, rate, loss, rng)
        for name, (inside, outside) in scores.items()
        for rate in FALSE_POSITIVE_RATES
    ]


def _rate(
    name: str, inside: FloatArray, outside: FloatArray, rate: float, loss: PrivacyLoss, rng: np.random.Generator | None
) -> Attack:
    """Cut at the score that gives the wanted false positive rate on half the outsiders, ties broken at random."""
    jitter = np.random.default_rng(rng)
    spread = 1e-9 * (1 + np.abs(np.concatenate([inside, outside])).max())
    inside, outside = (side + spread * jitter.random(len(side)) for side in (inside, outside))
    half = len(outside) // 2
    threshold = np.quantile(outside[:half], 1 - rate)
    hits, false = int((inside > threshold).sum()), int((outside[half:] > threshold).sum())
    lower, upper = clopper_pearson(hits, len(inside), 0.025)
    _, most_false = clopper_pearson(false, len(outside) - half, 0.025)
    return Attack(
        score=name,
        false_positive_rate=rate,
        measured_false_positive_rate=false / (len(outside) - half),
        true_positive_rate=hits / len(inside),
        lower=float(lower),
        upper=float(upper),
        permitted=detection_bound(float(loss.epsilon), float(loss.delta), float(most_false)),
    )


def _views(
    mechanism: Mechanism, table: Table, n_shadow: int, target: IntArray, rng: np.random.Generator | None
) -> FloatArray:
    """Return what the attacker computes from each release: mean cell counts of its sets, and the target's distance."""
    sizes = [len(part) for part in np.array_split(np.arange(n_shadow), N_PARTS)]
    seeds = np.random.SeedSequence(None if rng is None else int(rng.integers(2**63))).spawn(N_PARTS)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        return np.concatenate(
            list(pool.map(partial(_shadow, mechanism, table.frame, table.schema, target), sizes, seeds))
        )


def _target(pair: Pair) -> IntArray:
    """Return the levels of a record that the first table has more often than the second."""
    first, others = (
        np.column_stack([table.codes[name] for name in table.schema.columns]) for table in (pair.first, pair.second)
    )
    rows, counts = np.unique(first, axis=0, return_counts=True)
    surplus = [count - int((others == row).all(axis=1).sum()) for row, count in zip(rows, counts, strict=True)]
    if max(surplus) <= 0:
        raise InputError("the first table of the pair has no record that the second lacks")
    return np.asarray(rows[int(np.argmax(surplus))])


def _shadow(
    mechanism: Mechanism,
    frame: pd.DataFrame,
    schema: Schema,
    target: IntArray,
    n_runs: int,
    seed: np.random.SeedSequence,
) -> FloatArray:
    table, rng, rows = Table(frame, schema), np.random.default_rng(seed), []
    for _ in range(n_runs):
        made = [codes for codes in released_codes(mechanism, table, rng) if len(codes)]
        counts = [cells_of(codes, table.schema) for codes in made or [np.zeros((0, len(target)), dtype=np.int64)]]
        nearest = min(((codes != target).sum(axis=1).min() for codes in made), default=len(target) + 1)
        rows.append(np.append(np.mean(counts, axis=0), nearest))
    return np.array(rows, dtype=np.float64)
