"""Audits of mechanisms on pairs of neighbouring tables: engines, what they found, and whether that is above the claim.

Engines give lower bounds on epsilon: exact, or by the frequency of events, with a valid finite-sample statement.
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
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.mechanism import Mechanism
from pdips.privacy.loss import as_float, choice, exact, proper_share
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import ExactLaw, exact_law, joined, record
from pdips.registry import cases_of, find, variant_class

Rows = NDArray[Any]
Observe = Callable[[Table, int, RandomBits], Rows | list[Rows]]

LEARNING_CELLS = 24
THRESHOLDS = 200


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon in nats, and the event that gave it."""

    epsilon: float
    event: str


def law_of(mechanism: Any, table: Table) -> ExactLaw:
    """Return the exact law of a mechanism on a tiny table."""
    found: ExactLaw = mechanism.law(table) if hasattr(mechanism, "law") else exact_law(mechanism, table)
    return found


def released_codes(mechanism: Any, table: Table, rng: np.random.Generator) -> list[IntArray]:
    """Return the levels of the records of each set of a release, shape (records, columns)."""
    release, _ = mechanism.release(table, rng=rng)
    schema, found = table.schema.without_person(), list[IntArray]()
    for frame in release.sets:
        codes = Table(frame, schema).codes if len(frame) else {}
        found.append(np.column_stack([codes.get(name, np.zeros(0, dtype=np.int64)) for name in schema.columns]))
    return found


def cells_of(codes: IntArray, schema: Schema) -> IntArray:
    """Return how many records are in each cell of the cross-tabulation of all columns."""
    sizes = [column.n_levels for column in schema.columns.values()]
    return np.bincount(np.ravel_multi_index(tuple(codes.T), sizes), minlength=math.prod(sizes))


def exact_bound(mechanism: Any, pair: Pair) -> Bound:
    """Return the exact loss of a pair: the worst log ratio over choices and noisy statistics, in both directions.

    Statistics with independent discrete Laplace noise of scale b lose at most |difference| / b each, all at once.
    """
    laws = [law_of(mechanism, table) for table in (pair.first, pair.second)]
    sides = [{outcome.key: outcome for outcome in law.outcomes} for law in laws]
    worst = Bound(0.0, "none: the laws are equal")
    for key in sides[0].keys() | sides[1].keys():
        if key not in sides[0] or key not in sides[1]:
            return Bound(math.inf, f"outcome {key}, which only one of the tables can give")
        a, b = sides[0][key], sides[1][key]
        numbers = zip(a.statistics, b.statistics, a.scales, strict=True)
        lost = sum(abs(x - y) / float(scale) if scale else math.inf for x, y, scale in numbers if x != y)
        total = laws[0].repeats * (abs(a.log_probability - b.log_probability) + lost)
        if total > worst.epsilon:
            choices = f"choices {key} and noisy counts beyond both tables' own" if key else "noisy counts"
            worst = Bound(total, choices if a.statistics else f"outcome {key}")
    return worst


def clopper_pearson(hits: Any, n_runs: int, alpha: float) -> tuple[Any, Any]:
    """Return lower and upper confidence limits of a probability, each wrong with probability ``alpha`` at most."""
    hits = np.asarray(hits)
    lower = np.where(hits > 0, stats.beta.ppf(alpha, np.maximum(hits, 1), n_runs - hits + 1), 0.0)
    upper = np.where(hits < n_runs, stats.beta.ppf(1 - alpha, hits + 1, np.maximum(n_runs - hits, 1)), 1.0)
    return lower, upper


def log_ratio_bound(hits: Any, other_hits: Any, n_runs: int, alpha: float, delta: float = 0.0) -> Any:
    """Return a lower limit of log((P - delta) / P'), wrong with probability ``alpha`` at most; 0 where it is negative.

    (epsilon, delta)-privacy says P <= e^epsilon P' + delta for every event, so this bounds epsilon from below.
    """
    lower, _ = clopper_pearson(hits, n_runs, alpha / 2)
    _, upper = clopper_pearson(other_hits, n_runs, alpha / 2)
    excess = np.maximum(lower - delta, 0.0)
    return np.where(excess > upper, np.log(np.maximum(excess, 1e-300) / upper), 0.0)


def counts_bound(
    observe: Observe, pair: Pair, *, n_runs: int, alpha: float, delta: float, rng: np.random.Generator | None
) -> Bound:
    """Bound epsilon by how often an event happens under each table.

    The event is the pair's own, fixed in advance, or one that a classifier chooses on half the runs of each table and
    the other half judges; either way the bound is wrong with probability ``alpha`` at most (Clopper and Pearson, 1934).
    """
    first, second = read(observe, pair, n_runs, rng)
    if pair.event is not None:
        hits, others = (int(pair.event(rows).sum()) for rows in (first, second))
        return Bound(float(log_ratio_bound(hits, others, n_runs, alpha, delta)), pair.event_name)
    half = n_runs // 2
    event, swapped = _learn(first[:half], second[:half], alpha, delta)
    likelier, rarer = (second, first) if swapped else (first, second)
    hits, others = (int(event(rows[half:]).sum()) for rows in (likelier, rarer))
    name = f"classifier score {'below' if swapped else 'above'} a threshold, {pair.event_name}"
    return Bound(float(log_ratio_bound(hits, others, n_runs - half, alpha, delta)), name)


def read(observe: Observe, pair: Pair, n_runs: int, rng: np.random.Generator | None) -> tuple[Rows, Rows]:
    """Run a mechanism on both tables and check that it gives ``n_runs`` rows of as many numbers for both."""
    bits = RandomBits(rng)
    found = []
    seen: list[Any] = [observe(table, n_runs, bits) for table in (pair.first, pair.second)]
    for rows in joined(*seen) if isinstance(seen[0], list) else map(np.asarray, seen):
        rows = rows.astype(np.int64) if rows.dtype == bool else rows
        if rows.ndim != 2 or len(rows) != n_runs or not rows.shape[1] or rows.dtype.kind not in "iuf":
            raise InputError(f"the audit can't read this mechanism: observe must give {n_runs:,} rows of numbers")
        if np.isnan(rows).any():
            raise InputError("the audit can't read this mechanism: observe gave values that are no numbers")
        found.append(rows)
    if found[0].shape != found[1].shape:
        raise InputError("the audit can't read this mechanism: its outputs differ in length between the tables")
    return found[0], found[1]


def likelihood_score(first: Rows, second: Rows) -> Callable[[Rows], FloatArray]:
    """Learn a score, high where outputs of the first table are likelier: log ratios of histograms, column by column."""
    pooled = np.concatenate([first, second])
    tables = []
    for column in range(pooled.shape[1]):
        edges = np.unique(np.quantile(pooled[:, column], np.linspace(0, 1, LEARNING_CELLS + 1), method="nearest"))
        counts = [
            np.bincount(np.searchsorted(edges, rows[:, column], side="right"), minlength=len(edges) + 1) + 0.5
            for rows in (first, second)
        ]
        tables.append((edges, np.log(counts[0] / counts[0].sum()) - np.log(counts[1] / counts[1].sum())))

    def score(rows: Rows) -> FloatArray:
        parts = [ratio[np.searchsorted(edges, rows[:, j], side="right")] for j, (edges, ratio) in enumerate(tables)]
        return np.asarray(np.sum(parts, axis=0), dtype=np.float64)

    return score


def _learn(first: Rows, second: Rows, alpha: float, delta: float) -> tuple[Event, bool]:
    """Return the event with the best bound on these runs, and whether it is likelier under the second table."""
    score = likelihood_score(first, second)
    a, b = np.sort(score(first)), np.sort(score(second))
    thresholds = np.unique(np.quantile(np.concatenate([a, b]), np.linspace(0.001, 0.999, THRESHOLDS)))
    above = [len(side) - np.searchsorted(side, thresholds, side="left") for side in (a, b)]
    below = [len(side) - count for side, count in zip((a, b), above, strict=True)]
    high = log_ratio_bound(above[0], above[1], len(a), alpha, delta)
    low = log_ratio_bound(below[1], below[0], len(a), alpha, delta)
    if high.max() >= low.max():
        cut = thresholds[int(high.argmax())]
        return (lambda rows: score(rows) >= cut), False
    cut = thresholds[int(low.argmax())]
    return (lambda rows: score(rows) < cut), True


ROUNDING = 1e-9  # Relative slack of exact audits, whose probabilities of choices are doubles
DEFAULT_RUNS, FEWEST_RUNS, MOST_RUNS = 100_000, 100, 10_000_000


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What an audit found.

    Parameters
    ----------
    mechanism, variant, settings, neighbours, kind : str
        What was audited, and the kind of guarantee that it claims.
    claim : float
        The epsilon that it claims.
    bound : float
        Lower bound on the true epsilon; holds with probability ``confidence``, with certainty for engine "exact".
    engine, pair, event : str
        What gave the bound.
    confidence : float
        Of this bound alone.
    n_runs : int
        Runs on each table; 0 for engine "exact".
    verdict : {"consistent", "VIOLATION"}
        Whether the bound is above the claim.

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
    claim: float | Fraction | None = None,
    rng: np.random.Generator | None = None,
) -> Finding:
    """Bound the epsilon of a mechanism from below on one pair of neighbouring tables.

    Parameters
    ----------
    mechanism : Mechanism
        With ``observe`` (engine counts) or ``law`` (engine exact). One without ``observe`` is observed
        through the cells of its first synthetic set.
    pair : Pair
        The tables, and possibly an event fixed in advance.
    engine : {"exact", "counts"}
        How to bound.
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
        If the confidence or the number of runs is out of range, the pair is not neighbouring in the mechanism's
        relation, or the engine can't read the mechanism.

    Examples
    --------
    >>> from pdips.audit.neighbour_pairs import worst_pairs
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> pair = worst_pairs(schema, "replace-one")[0]
    >>> audit(LaplaceSanitizer(epsilon=1), pair, engine="exact").bound
    1.0
    """
    proper_share(confidence, "confidence")
    return _audit(Case(mechanism, pair, engine), n_runs=n_runs, alpha=1 - confidence, claim=claim, rng=rng)


def _audit(
    case: Case, *, n_runs: int, alpha: float, claim: float | Fraction | None, rng: np.random.Generator | None
) -> Finding:
    """Audit one case; ``alpha`` is the probability that a sound mechanism is accused."""
    mechanism, pair, engine = case.mechanism, case.pair, case.engine
    choice(engine, get_args(Engine), "engine")
    if not FEWEST_RUNS <= n_runs <= MOST_RUNS:
        raise InputError(f"an audit needs at least {FEWEST_RUNS} runs and at most {MOST_RUNS:,}, got {n_runs}")
    if claim is not None and not claim > 0:
        raise InputError(f"claim must be above 0, got {claim}")
    check_relation(mechanism, pair)
    loss = mechanism.privacy_loss(pair.first.schema)
    planned = isinstance(mechanism, Mechanism)
    if engine == "exact":
        if not planned and not hasattr(mechanism, "law"):
            raise InputError(f"engine 'exact' needs a mechanism that spells out its law, and {mechanism.name} doesn't")
        if loss.delta:
            raise InputError("engine 'exact' is for pure losses; use 'counts', which allows for delta")
        bound = exact_bound(mechanism, pair)
    else:
        own: Any = partial(record if planned else synthetic_cells, mechanism)
        observe, delta = getattr(mechanism, "observe", own), float(loss.delta)
        bound = counts_bound(observe, pair, n_runs=n_runs, alpha=alpha, delta=delta, rng=rng)
    claimed = as_float(loss.epsilon) if claim is None else float(claim)
    return Finding(
        mechanism=mechanism.name,
        variant=getattr(mechanism, "variant", "sound"),
        settings=_settings(mechanism),
        neighbours=mechanism.neighbours,
        kind=loss.kind,
        claim=claimed,
        bound=bound.epsilon,
        engine=engine,
        pair=pair.name,
        event=bound.event,
        confidence=1.0 if engine == "exact" else 1 - alpha,
        n_runs=0 if engine == "exact" else n_runs,
        verdict="VIOLATION" if bound.epsilon > claimed * (1 + ROUNDING * (engine == "exact")) else "consistent",
    )


def _settings(mechanism: Mechanism) -> str:
    """Return the settings that differ from what the class has by default, as the command line spells them."""
    made: Any = mechanism
    given = {field.name: (getattr(made, field.name), field.default) for field in fields(made)}
    return " ".join(
        f"{name}={','.join(value) if isinstance(value, tuple) else value}"
        for name, (value, usual) in given.items()
        if usual is not MISSING and name not in ("variant", "neighbours") and value != usual
    )


def synthetic_cells(mechanism: Mechanism, table: Table, n_runs: int, bits: RandomBits) -> IntArray:
    """Return the cell counts of the first set of whole releases, one release a row: the black box of any mechanism."""
    rng = bits.generator()
    return np.array([cells_of(released_codes(mechanism, table, rng)[0], table.schema) for _ in range(n_runs)])


def audit_cases(
    cases: Sequence[Case],
    *,
    n_runs: int = DEFAULT_RUNS,
    confidence: float = 0.95,
    claim: float | Fraction | None = None,
    rng: np.random.Generator | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Finding]:
    """Audit many cases side by side, with the stated confidence for all of them together (Bonferroni).

    Examples
    --------
    >>> from pdips.audit import registered_cases
    >>> {found.verdict for found in audit_cases(registered_cases("laplace-sanitizer")[:1])}
    {'consistent'}
    """
    proper_share(confidence, "confidence")
    alpha = (1 - confidence) / max(sum(case.engine != "exact" for case in cases), 1)
    generators = rng.spawn(len(cases)) if rng is not None else [None] * len(cases)

    def one(case: Case, generator: np.random.Generator | None) -> Finding:
        if progress is not None:
            progress(f"auditing {case.mechanism.name}: {case.pair.name}")
        return _audit(case, n_runs=n_runs, alpha=alpha, claim=claim, rng=generator)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, cases, generators))


def registered_cases(name: str, **settings: Any) -> list[Case]:
    """Return the cases of a registered mechanism, its settings overridden by ``settings`` (epsilon 1 unless given).

    With ``variant="published"`` they are those of the form as printed, from the distribution ``pdips-papers``.

    Examples
    --------
    >>> registered_cases("laplace-sanitizer", epsilon=2)[0].engine
    'exact'
    """
    variant = settings.pop("variant", None)
    build, choosing = variant_class(name, variant) if variant is not None else (find(name), {})

    def built(**usual: Any) -> Mechanism:
        return build(**({"epsilon": 1} | usual | settings | choosing))  # type: ignore[no-any-return]

    return list(cases_of(name, variant or "sound")(built))


def worst_by_pair(findings: Sequence[Finding]) -> list[Finding]:
    """Return the largest bound for each mechanism, pair and engine, so that a search over many tables is one line.

    Examples
    --------
    >>> from pdips.audit import audit_cases, registered_cases
    >>> cases = registered_cases("steps", epsilon=2)[:1]
    >>> len(worst_by_pair(audit_cases([*cases, *cases])))
    1
    """
    worst: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.mechanism, finding.variant, finding.neighbours, finding.settings, finding.pair, finding.engine)
        if key not in worst or finding.bound > worst[key].bound:
            worst[key] = finding
    return list(worst.values())


def overspending(mechanism: Mechanism, factor: float | Fraction) -> Mechanism:
    """Return the broken twin of a mechanism, which spends ``factor`` times the epsilon that the original claims.

    Examples
    --------
    >>> from pdips.audit import audit
    >>> from pdips.audit.neighbour_pairs import worst_pairs
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> pair = worst_pairs(schema, "replace-one")[0]
    >>> audit(overspending(LaplaceSanitizer(epsilon=1), 2), pair, engine="exact", claim=1).verdict
    'VIOLATION'
    """
    return replace(mechanism, epsilon=exact(mechanism.epsilon, "epsilon") * Fraction(factor))
