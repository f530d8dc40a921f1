"""An audit of a mechanism on pairs of neighbouring tables: what it found, and whether that is above the claim."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, asdict, dataclass, fields, replace
from fractions import Fraction
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from pdips.arrays import IntArray
from pdips.audit.engines import Bound, cells_of, counts_bound, density_bound, exact_bound, released_codes
from pdips.audit.neighbour_pairs import Case, Engine, Pair, check_relation
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.mechanism import Mechanism
from pdips.privacy.loss import as_float, choice, exact
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import record
from pdips.registry import cases_of, find, variant_class

ROUNDING = 1e-9
"""Relative slack of exact audits, whose probabilities of choices are doubles."""

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
        With ``observe`` (engines counts and density) or ``law`` (engine exact). One without ``observe`` is observed
        through the cells of its first synthetic set.
    pair : Pair
        The tables, and possibly an event fixed in advance.
    engine : {"exact", "counts", "density"}
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
    _check_confidence(confidence)
    return _audit(Case(mechanism, pair, engine), n_runs=n_runs, alpha=1 - confidence, claim=claim, rng=rng)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be above 0 and below 1, got {confidence}")


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
    bound = _bound(case, n_runs, alpha, float(loss.delta), rng)
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


def _bound(case: Case, n_runs: int, alpha: float, delta: float, rng: np.random.Generator | None) -> Bound:
    mechanism, pair = case.mechanism, case.pair
    planned = isinstance(mechanism, Mechanism)
    if case.engine == "exact":
        if not planned and not hasattr(mechanism, "law"):
            raise InputError(f"engine 'exact' needs a mechanism that spells out its law, and {mechanism.name} doesn't")
        if delta:
            raise InputError("engine 'exact' is for pure losses; use 'counts', which allows for delta")
        return exact_bound(mechanism, pair)
    own: Any = partial(record if planned else synthetic_cells, mechanism)
    bound = counts_bound if case.engine == "counts" else density_bound
    return bound(getattr(mechanism, "observe", own), pair, n_runs=n_runs, alpha=alpha, delta=delta, rng=rng)


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
    _check_confidence(confidence)
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
