"""Audits of mechanisms on pairs of neighbouring tables: engines, what they found, and
whether that is above the claim.

Engines give lower bounds on epsilon: exact, or by the frequency of events, with a valid
finite-sample statement.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, asdict, dataclass, fields, replace
from fractions import Fraction
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pdips.arrays import FloatArray, IntArray
from pdips.audit.neighbour_pairs import Case, Engine, Event, Pair, check_relation
from pdips.audit.path_loss import losses
from pdips.audit.random_pairs import random_pair
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.mechanism import Mechanism
from pdips.privacy.loss import (
    PrivacyLoss,
    as_float,
    choice,
    exact,
    largest_rho,
    proper_share,
)
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import ExactLaw, Outcome, exact_law, joined, record
from pdips.registry import cases_of, find, variant_class

Rows = NDArray[Any]
Claim = float | Fraction
Progress = Callable[[str], None]
Observe = Callable[[Table, int, RandomBits], Rows | list[Rows]]

LEARNING_CELLS = 24
# Beside the pair of a case that is followed along a path, for each of its schemas
RANDOM_PAIRS = 8
THRESHOLDS = 200


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon in nats, and the event that gave it."""

    epsilon: float
    event: str


def law_of(mechanism: Any, table: Table) -> ExactLaw:
    """Return the exact law of a mechanism on a tiny table."""
    if hasattr(mechanism, "law"):
        law: ExactLaw = mechanism.law(table)
        return law
    return exact_law(mechanism, table)


def released_codes(
    mechanism: Any, table: Table, rng: np.random.Generator
) -> list[IntArray]:
    """Return the levels of the records of each set of a release, shape (records,
    columns).
    """
    release, _ = mechanism.release(table, rng=rng)
    schema = table.schema.without_person()
    nothing = np.zeros(0, dtype=np.int64)
    sets = list[IntArray]()
    for frame in release.sets:
        codes = Table(frame, schema).codes if len(frame) else {}
        columns = [codes.get(name, nothing) for name in schema.columns]
        sets.append(np.column_stack(columns))
    return sets


def cells_of(codes: IntArray, schema: Schema) -> IntArray:
    """Return how many records are in each cell of the cross-tabulation of all
    columns.
    """
    sizes = [column.n_levels for column in schema.columns.values()]
    cells = np.ravel_multi_index(tuple(codes.T), sizes)
    return np.bincount(cells, minlength=math.prod(sizes))


def exact_bound(mechanism: Any, pair: Pair) -> Bound:
    """Return the exact loss of a pair: the worst log ratio over choices and noisy
    statistics, in both directions.

    Statistics with independent discrete Laplace noise of scale b lose at most
    |difference| / b each, all at once.
    """
    law = law_of(mechanism, pair.first)
    first = {outcome.key: outcome for outcome in law.outcomes}
    others = law_of(mechanism, pair.second).outcomes
    second = {outcome.key: outcome for outcome in others}
    worst = Bound(0.0, "none: the laws are equal")
    for key in first.keys() | second.keys():
        if key not in first or key not in second:
            event = f"outcome {key}, which only one of the tables can give"
            return Bound(math.inf, event)
        total = law.repeats * _lost(first[key], second[key])
        if total > worst.epsilon:
            event = f"outcome {key}"
            if first[key].statistics:
                event = "noisy counts"
            if first[key].statistics and key:
                event = f"choices {key} and noisy counts beyond both tables' own"
            worst = Bound(total, event)
    return worst


def _lost(one: Outcome, other: Outcome) -> float:
    """Return the worst log ratio of one outcome under two laws."""
    lost = 0.0
    numbers = zip(one.statistics, other.statistics, one.scales, strict=True)
    for here, there, scale in numbers:
        if here != there:
            lost += abs(here - there) / float(scale) if scale else math.inf
    return abs(one.log_probability - other.log_probability) + lost


def clopper_pearson(hits: Any, n_runs: int, alpha: float) -> tuple[Any, Any]:
    """Return lower and upper confidence limits of a probability, each wrong with
    probability ``alpha`` at most.
    """
    hits = np.asarray(hits)
    misses = n_runs - hits
    least = stats.beta.ppf(alpha, np.maximum(hits, 1), misses + 1)
    most = stats.beta.ppf(1 - alpha, hits + 1, np.maximum(misses, 1))
    return np.where(hits > 0, least, 0.0), np.where(misses > 0, most, 1.0)


def log_ratio_bound(
    hits: Any, other_hits: Any, n_runs: int, alpha: float, delta: float = 0.0
) -> Any:
    """Return a lower limit of log((P - delta) / P'), wrong with probability ``alpha``
    at most; 0 where it is negative.

    (epsilon, delta)-privacy says P <= e^epsilon P' + delta for every event, so this
    bounds epsilon from below.
    """
    lower, _ = clopper_pearson(hits, n_runs, alpha / 2)
    _, upper = clopper_pearson(other_hits, n_runs, alpha / 2)
    excess = np.maximum(lower - delta, 0.0)
    log_ratio = np.log(np.maximum(excess, 1e-300) / upper)
    return np.where(excess > upper, log_ratio, 0.0)


def counts_bound(
    observe: Observe,
    pair: Pair,
    *,
    n_runs: int,
    alpha: float,
    delta: float,
    rng: np.random.Generator | None,
) -> Bound:
    """Bound epsilon by how often an event happens under each table.

    The event is the pair's own, fixed in advance, or one that a classifier chooses on
    half the runs of each table and the other half judges; either way the bound is wrong
    with probability ``alpha`` at most (Clopper and Pearson, 1934).
    """
    first, second = read(observe, pair, n_runs, rng)
    event = pair.event
    name = pair.event_name
    if event is None:
        half = n_runs // 2
        event, is_swapped = _learn(first[:half], second[:half], alpha, delta)
        first = first[half:]
        second = second[half:]
        side = "below" if is_swapped else "above"
        if is_swapped:
            first, second = second, first
        name = f"classifier score {side} a threshold, {name}"
    hits = int(event(first).sum())
    others = int(event(second).sum())
    return Bound(float(log_ratio_bound(hits, others, len(first), alpha, delta)), name)


def read(
    observe: Observe, pair: Pair, n_runs: int, rng: np.random.Generator | None
) -> tuple[Rows, Rows]:
    """Run a mechanism on both tables and check that it gives ``n_runs`` rows of as many
    numbers for both.
    """
    bits = RandomBits(rng)
    seen: list[Any] = [
        observe(table, n_runs, bits) for table in (pair.first, pair.second)
    ]
    if isinstance(seen[0], list):
        seen = joined(*seen)
    first, second = (_numbers(rows, n_runs) for rows in seen)
    if first.shape != second.shape:
        raise InputError(
            "the audit can't read this mechanism: its outputs differ in "
            "length between the tables"
        )
    return first, second


def _numbers(observed: Any, n_runs: int) -> Rows:
    """Return what was observed, if it is a row of numbers for each run."""
    rows = np.asarray(observed)
    if rows.dtype == bool:
        rows = rows.astype(np.int64)
    is_table = rows.ndim == 2 and len(rows) == n_runs and rows.shape[1] > 0
    if not is_table or rows.dtype.kind not in "iuf":
        raise InputError(
            f"the audit can't read this mechanism: observe must "
            f"give {n_runs:,} rows of numbers"
        )
    if np.isnan(rows).any():
        raise InputError(
            "the audit can't read this mechanism: observe gave "
            "values that are no numbers"
        )
    return rows


def likelihood_score(first: Rows, second: Rows) -> Callable[[Rows], FloatArray]:
    """Learn a score, high where outputs of the first table are likelier: log ratios of
    histograms, column by column.
    """
    pooled = np.concatenate([first, second])
    levels = np.linspace(0, 1, LEARNING_CELLS + 1)
    histograms = []
    for numbers, ours, theirs in zip(pooled.T, first.T, second.T, strict=True):
        edges = np.unique(np.quantile(numbers, levels, method="nearest"))
        log_ratio = _log_shares(ours, edges) - _log_shares(theirs, edges)
        histograms.append((edges, log_ratio))

    def score(rows: Rows) -> FloatArray:
        total = np.zeros(len(rows))
        for numbers, (edges, log_ratio) in zip(rows.T, histograms, strict=True):
            total += log_ratio[np.searchsorted(edges, numbers, side="right")]
        return total

    return score


def _log_shares(numbers: Rows, edges: Rows) -> FloatArray:
    """Return the log share of numbers in each cell between edges, none of them 0."""
    cells = np.searchsorted(edges, numbers, side="right")
    counts = np.bincount(cells, minlength=len(edges) + 1) + 0.5
    return np.log(counts / counts.sum())


def _learn(first: Rows, second: Rows, alpha: float, delta: float) -> tuple[Event, bool]:
    """Return the event with the best bound on these runs, and whether it is likelier
    under the second table.
    """
    score = likelihood_score(first, second)
    ours = np.sort(score(first))
    theirs = np.sort(score(second))
    n_runs = len(ours)
    levels = np.linspace(0.001, 0.999, THRESHOLDS)
    thresholds = np.unique(np.quantile(np.concatenate([ours, theirs]), levels))
    below = np.searchsorted(ours, thresholds, side="left")
    their_below = np.searchsorted(theirs, thresholds, side="left")
    above = n_runs - below
    their_above = n_runs - their_below
    high = log_ratio_bound(above, their_above, n_runs, alpha, delta)
    low = log_ratio_bound(their_below, below, n_runs, alpha, delta)
    if high.max() >= low.max():
        cut = thresholds[int(high.argmax())]
        return (lambda rows: score(rows) >= cut), False
    cut = thresholds[int(low.argmax())]
    return (lambda rows: score(rows) < cut), True


# Relative slack of exact audits, whose probabilities of choices are doubles
ROUNDING = 1e-9
DEFAULT_RUNS = 100_000
FEWEST_RUNS = 100
MOST_RUNS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What an audit found.

    Parameters
    ----------
    mechanism, variant, settings, neighbours, kind : str
        What was audited, and the kind of guarantee that it claims.
    claim : float
        The epsilon that it claims, or its rho.
    bound : float
        Lower bound on the true epsilon; holds with probability ``confidence``, with
        certainty for engine "exact". Of engine "path": what one path of answers loses
        by the measure that the plan prices, :func:`pdips.audit.losses`.
    engine, pair, event : str
        What gave the bound.
    confidence : float
        Of this bound alone.
    n_runs : int
        Runs on each table; 0 for engines "exact" and "path".
    verdict : {"consistent", "VIOLATION"}
        Whether the bound is above the claim, or that of an item above its price.
    unit : {"epsilon", "rho"}
        Of claim and bound.

    Examples
    --------
    >>> from pdips.audit import audit_cases, registered_cases
    >>> [found] = audit_cases(registered_cases("steps", epsilon=2)[:1])
    >>> found.claim, found.engine, found.verdict
    (2.0, 'exact', 'consistent')
    """

    mechanism: str
    variant: str
    settings: str
    neighbours: str
    kind: str
    claim: float
    bound: float
    engine: str
    pair: str
    event: str
    confidence: float
    n_runs: int
    verdict: Literal["consistent", "VIOLATION"]
    unit: Literal["epsilon", "rho"] = "epsilon"

    def describe(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return asdict(self)


def audit(
    mechanism: Mechanism,
    pair: Pair,
    *,
    engine: Engine = "counts",
    n_runs: int = DEFAULT_RUNS,
    confidence: float = 0.95,
    claim: Claim | None = None,
    rng: np.random.Generator | None = None,
) -> Finding:
    """Bound the epsilon of a mechanism from below on one pair of neighbouring tables.

    Parameters
    ----------
    mechanism : Mechanism
        With ``observe`` (engine counts) or ``law`` (engine exact). One without
        ``observe`` is observed through the cells of its first synthetic set.
    pair : Pair
        The tables, and possibly an event fixed in advance.
    engine : {"exact", "counts", "path"}
        How to bound: from the spelt-out law, by many runs, or along one path of given
        answers.
    n_runs : int
        Runs on each table, at least 100.
    confidence : float
        Probability, above 0 and below 1, that a sound mechanism isn't accused.
    claim : float, optional
        The epsilon to compare with; the mechanism's own unless given.
    rng : numpy.random.Generator, optional
        For tests.

    Returns
    -------
    Finding

    Raises
    ------
    InputError
        If the confidence or the number of runs is out of range, the pair is not
        neighbouring in the mechanism's relation, or the engine can't read the
        mechanism.

    Examples
    --------
    >>> from pdips.audit.neighbour_pairs import worst_pairs
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> pair = worst_pairs(schema, "replace-one")[0]
    >>> audit(LaplaceSanitizer(epsilon=1), pair, engine="exact").bound
    1.0
    """
    proper_share(confidence, "confidence")
    return _audit(
        Case(mechanism, pair, engine),
        n_runs=n_runs,
        alpha=1 - confidence,
        claim=claim,
        rng=rng,
    )


def _audit(
    case: Case,
    *,
    n_runs: int,
    alpha: float,
    claim: Claim | None,
    rng: np.random.Generator | None,
) -> Finding:
    """Audit one case; ``alpha`` is the probability that a sound mechanism is
    accused.
    """
    mechanism = case.mechanism
    pair = case.pair
    engine = case.engine
    is_exact = engine == "exact"
    choice(engine, get_args(Engine), "engine")
    if not FEWEST_RUNS <= n_runs <= MOST_RUNS:
        raise InputError(
            f"an audit needs at least {FEWEST_RUNS} runs and at most "
            f"{MOST_RUNS:,}, got {n_runs}"
        )
    if claim is not None and not claim > 0:
        raise InputError(f"claim must be above 0, got {claim}")
    check_relation(mechanism, pair)
    loss = mechanism.privacy_loss(pair.first.schema)
    facts: dict[str, Any] = {
        "mechanism": mechanism.name,
        "variant": getattr(mechanism, "variant", "sound"),
        "settings": _settings(mechanism),
        "neighbours": mechanism.neighbours,
        "kind": loss.kind,
        "engine": engine,
        "pair": pair.name,
    }
    if engine == "path":
        return _along_path(case, loss, claim, facts)
    if is_exact:
        _check_spelt_out(mechanism, loss)
        bound = exact_bound(mechanism, pair)
    else:
        is_planned = isinstance(mechanism, Mechanism)
        own: Any = partial(record if is_planned else synthetic_cells, mechanism)
        observe = getattr(mechanism, "observe", own)
        delta = float(loss.delta)
        bound = counts_bound(
            observe, pair, n_runs=n_runs, alpha=alpha, delta=delta, rng=rng
        )
    claimed = as_float(loss.epsilon) if claim is None else float(claim)
    allowed = claimed * (1 + ROUNDING) if is_exact else claimed
    return Finding(
        **facts,
        claim=claimed,
        bound=bound.epsilon,
        event=bound.event,
        confidence=1.0 if is_exact else 1 - alpha,
        n_runs=0 if is_exact else n_runs,
        verdict="VIOLATION" if bound.epsilon > allowed else "consistent",
    )


def _check_spelt_out(mechanism: Any, loss: PrivacyLoss) -> None:
    """Refuse what engine "exact" can't judge."""
    if not isinstance(mechanism, Mechanism) and not hasattr(mechanism, "law"):
        raise InputError(
            f"engine 'exact' needs a mechanism that spells out its "
            f"law, and {mechanism.name} doesn't"
        )
    if loss.delta:
        raise InputError(
            "engine 'exact' is for pure losses; use 'counts', which "
            "allows for delta, or 'path'"
        )


def _along_path(
    case: Case,
    loss: PrivacyLoss,
    claim: Claim | None,
    facts: dict[str, Any],
) -> Finding:
    """Audit a case along a path: its loss in the unit in which the plan adds up."""
    lost = losses(case.mechanism, case.pair)
    price = lost.price
    if claim is not None:
        claimed_epsilon = exact(claim, "claim")
        price = claimed_epsilon
        if lost.unit == "rho":
            price = largest_rho(claimed_epsilon, loss.delta)
    ratio = lost.ratio if claim is None else float(lost.amount / price)
    bound = float(lost.amount) if ratio < math.inf else math.inf
    return Finding(
        **facts,
        claim=float(price),
        bound=bound,
        event=lost.dearest,
        confidence=1.0,
        n_runs=0,
        verdict="VIOLATION" if ratio > 1 + ROUNDING else "consistent",
        unit=lost.unit,
    )


def along_paths(
    cases: Sequence[Case], rng: np.random.Generator | None = None
) -> list[Case]:
    """Return cases for engine "path", where counts alone would bound a loss: their
    pairs, and random pairs of the same schemas.

    Mechanisms whose draws come from Markov chains, and forms without a plan, have
    none.

    Examples
    --------
    >>> from pdips.audit import registered_cases
    >>> cases = registered_cases("steps", delta="1e-6")
    >>> {case.engine for case in cases}, {case.engine for case in along_paths(cases)}
    ({'counts'}, {'path'})
    """
    spelt_out = {
        (_settings(case.mechanism), id(case.pair))
        for case in cases
        if case.engine == "exact"
    }
    rng = np.random.default_rng(rng)
    followed = list[Case]()
    tried = set[tuple[str, str]]()
    for case in cases:
        settings = _settings(case.mechanism)
        if (settings, id(case.pair)) in spelt_out or not _has_path(case):
            continue
        schema = case.pair.first.schema
        pairs = [case.pair]
        if (settings, schema.to_toml()) not in tried:
            tried.add((settings, schema.to_toml()))
            relation = case.mechanism.neighbours
            for number in range(RANDOM_PAIRS):
                far = number % 2 == 0
                pairs.append(random_pair(schema, relation, rng, far=far))
        followed += [Case(case.mechanism, pair, "path") for pair in pairs]
    return followed


def _has_path(case: Case) -> bool:
    """Whether counts are alone on a case, and its mechanism can be followed."""
    if case.engine != "counts" or not isinstance(case.mechanism, Mechanism):
        return False
    return case.mechanism.plan(case.pair.first.schema).sampling == "exact"


def _settings(mechanism: Mechanism) -> str:
    """Return the settings that differ from what the class has by default, as the
    command line spells them.
    """
    frozen: Any = mechanism
    words = []
    for setting in fields(frozen):
        value = getattr(frozen, setting.name)
        if setting.name in ("variant", "neighbours") or setting.default is MISSING:
            continue
        if value != setting.default:
            text = ",".join(value) if isinstance(value, tuple) else value
            words.append(f"{setting.name}={text}")
    return " ".join(words)


def synthetic_cells(
    mechanism: Mechanism, table: Table, n_runs: int, bits: RandomBits
) -> IntArray:
    """Return the cell counts of the first set of whole releases, one release a row: the
    black box of any mechanism.
    """
    rng = bits.generator()
    rows = []
    for _ in range(n_runs):
        first_set = released_codes(mechanism, table, rng)[0]
        rows.append(cells_of(first_set, table.schema))
    return np.array(rows)


def audit_cases(
    cases: Sequence[Case],
    *,
    n_runs: int = DEFAULT_RUNS,
    confidence: float = 0.95,
    claim: Claim | None = None,
    rng: np.random.Generator | None = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """Audit many cases side by side, with the stated confidence for all of them
    together (Bonferroni).

    Examples
    --------
    >>> from pdips.audit import registered_cases
    >>> {
    ...     found.verdict
    ...     for found in audit_cases(registered_cases("laplace-sanitizer")[:1])
    ... }
    {'consistent'}
    """
    proper_share(confidence, "confidence")
    n_counted = sum(case.engine == "counts" for case in cases)
    alpha = (1 - confidence) / max(n_counted, 1)
    generators = rng.spawn(len(cases)) if rng is not None else [None] * len(cases)

    def one(case: Case, generator: np.random.Generator | None) -> Finding:
        if progress is not None:
            progress(f"auditing {case.mechanism.name}: {case.pair.name}")
        return _audit(case, n_runs=n_runs, alpha=alpha, claim=claim, rng=generator)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, cases, generators))


def registered_cases(name: str, **settings: Any) -> list[Case]:
    """Return the cases of a registered mechanism, its settings overridden by
    ``settings`` (epsilon 1 unless given).

    With ``variant="published"`` they are those of the form as printed, from the
    distribution ``pdips-papers``.

    Examples
    --------
    >>> registered_cases("laplace-sanitizer", epsilon=2)[0].engine
    'exact'
    """
    variant = settings.pop("variant", None)
    build = find(name)
    if variant is not None:
        build, choosing = variant_class(name, variant)
        settings |= choosing

    def built(**usual: Any) -> Mechanism:
        return build(**({"epsilon": 1} | usual | settings))  # type: ignore[no-any-return]

    return list(cases_of(name, variant or "sound")(built))


def worst_by_pair(findings: Sequence[Finding]) -> list[Finding]:
    """Return the largest bound for each mechanism, pair and engine, so that a search
    over many tables is one line.

    Examples
    --------
    >>> from pdips.audit import audit_cases, registered_cases
    >>> cases = registered_cases("steps", epsilon=2)[:1]
    >>> len(worst_by_pair(audit_cases([*cases, *cases])))
    1
    """
    worst: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (
            finding.mechanism,
            finding.variant,
            finding.neighbours,
            finding.settings,
            finding.pair,
            finding.engine,
        )
        if key not in worst or finding.bound > worst[key].bound:
            worst[key] = finding
    return list(worst.values())


def overspending(mechanism: Mechanism, factor: float | Fraction) -> Mechanism:
    """Return the broken twin of a mechanism, which spends ``factor`` times the epsilon
    that the original claims.

    Examples
    --------
    >>> from pdips.audit import audit
    >>> from pdips.audit.neighbour_pairs import worst_pairs
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> pair = worst_pairs(schema, "replace-one")[0]
    >>> audit(
    ...     overspending(LaplaceSanitizer(epsilon=1), 2), pair, engine="exact", claim=1
    ... ).verdict
    'VIOLATION'
    """
    epsilon = exact(mechanism.epsilon, "epsilon")
    return replace(mechanism, epsilon=epsilon * Fraction(factor))
