"""The section on how a release was drawn and what came of it: chains, posteriors,
bounds of records, noise.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy.special import bdtrc

from pdips.convergence import BFMI, ESS, RHAT, ROUNDS, Convergence
from pdips.release.documents import (
    BoundSummary,
    Diagnostics,
    Margin,
    PosteriorSummary,
    PredictiveCheck,
    PrivacyDocument,
    RecordCheck,
    RunDocument,
    SumsSummary,
    TwoWay,
    mean,
)
from pdips.release.offers import PosteriorOf
from pdips.release.public_draws import CONTRADICTED, REASONS
from pdips.report.formats import number, percent, plural
from pdips.report.posterior_figures import BAND, MOST_DOTS, posterior_figures
from pdips.report.utility import checks as compared_at_release
from pdips.report.verdict import Check, Verdict, graded, summed

FIGURES = ("parameters", "pairs", "ranks", "energy", "predicted", "bounds")
# Shape of the tail of importance weights that are relied on (Vehtari et al. 2024)
MOST_K = 0.7
# Share of the posterior on the outermost cells of its grid from which on the grid cuts
# it off
EDGE = 0.01
# Of a column from what the model draws, in total variation beyond what draws differ by
OFF = 0.05
FAR_OFF = 0.25
CHANCE = 0.01
EXPECTED_OUTSIDE = 0.05
MOST_OUTSIDE = 0.5
MOST_CENSORED = 0.5
ALL_BUT_CENSORED = 0.9
# Distance of levels in a field from the noisy counts it was fitted to, beyond chance
MOST_OFF = 0.05
ASTRAY = 0.15
# Part of the pairs that must say more than noise, for sets to be more than independent
# columns
TELLING = 0.6
# How much further a margin may lie from the table than noise and sampling alone bring
# it
NOISE_FACTOR = 3.0
MOST_WIDENED = 2.0
MOST_MOVED = 3.0
"""Factor on the covariance of exact sums of scores, and standard deviations from the
last reference, still in order.
"""
HALF_NORMAL = math.sqrt(2 / math.pi)  # Mean of the absolute value of a standard normal


def section(
    confidential: Path, release: PrivacyDocument, run: RunDocument
) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it."""
    figures, bfmi = posterior_figures(
        confidential / "diagnostics", run.diagnostics.posterior, release.table_schema
    )
    errors = margin_errors(release, run)
    verdict, checks = judge(release, run, bfmi, errors)
    return {
        "verdict": verdict,
        "checks": checks,
        "models": (run.diagnostics.model_extra or {}).get("models", []),
        "stored": bool(figures),
        "bfmi": bfmi,
        "edge": EDGE,
        "band": BAND,
        "most_dots": MOST_DOTS,
        "noise": errors,
        "pictures": {kind: figures.get(kind, ()) for kind in FIGURES},
    }


def judge(
    release: PrivacyDocument,
    run: RunDocument,
    bfmi: Sequence[float],
    noise: "MarginErrors | None",
) -> tuple[Verdict, list[Check]]:
    """Return the verdict and its checks, by the rules that ``docs/diagnostics.md`` and
    ``docs/report.md`` list.
    """
    posterior = run.diagnostics.posterior
    found = _draw(release, run, bfmi)
    if posterior is not None:
        found += _grid(posterior)
        found += _statistics(posterior.predictive)
        found += _records(posterior.records)
        found += _noisy_sums(posterior.noisy_sums)
        found += _terms(posterior.bounds)
    found += _fit(run.diagnostics)
    if noise is not None:
        found += _margins(noise)
    for check in compared_at_release(release, run.comparison):
        if check.name != "pairs of columns":
            found.append(check)
    return summed(found), found


def _fit(diagnostics: Diagnostics) -> list[Check]:
    """Return the checks of what was fitted to noisy counts."""
    found = []
    arrived = diagnostics.solver_arrived
    if arrived is not None:
        said = "reached" if arrived else "the solver stopped short of it"
        name = "table of maximum entropy"
        found.append(Check(name, said, "reached", graded(arrived)))
    telling = diagnostics.telling_pairs
    if telling is not None:
        name = "pairs of columns above the noise"
        rule = f"at least {percent(TELLING)}: about half would by chance"
        level = graded(telling >= TELLING)
        found.append(Check(name, percent(telling), rule, level))
    off = diagnostics.levels_off
    if off is not None:
        name = "levels in the chains, of the column farthest from its noisy counts"
        rule = f"at most {percent(MOST_OFF)} beyond chance"
        level = graded(off <= MOST_OFF, bad=off > ASTRAY)
        found.append(Check(name, percent(max(off, 0)), rule, level))
    return found


def agreement(found: Convergence) -> str:
    """Say how well chains agree, against what is asked of them."""
    passed = "passed" if found.passed else "failed"
    bulk = _effective(found.smallest_ess_bulk)
    tail = _effective(found.smallest_ess_tail)
    rounds = f", in round {found.rounds}" if found.rounds > 1 else ""
    return (
        f"{passed}: R-hat at most {found.largest_rhat:.4f} (below {RHAT} asked for), "
        f"effective draws at least {bulk} for the centre and {tail} for the tails "
        f"(above {ESS}), {found.divergences} divergences (none){rounds}"
    )


def _effective(size: float) -> str:
    return "unbounded" if size == math.inf else f"{size:.0f}"


def _draw(
    release: PrivacyDocument, run: RunDocument, bfmi: Sequence[float]
) -> list[Check]:
    posterior = run.diagnostics.posterior
    chains = list(run.diagnostics.convergence)
    if posterior is not None and posterior.convergence is not None:
        chains.append(posterior.convergence)
    if chains:
        return _chains(chains, bfmi, release.offers.posterior_of)
    if posterior is not None and posterior.noisy_sums is not None:
        return _weighted_draw(posterior, posterior.noisy_sums)
    found = "exact, no chain that could have failed"
    level = graded(True)
    if release.privacy.sampling == "mcmc":
        found = "independent draws in floating point, no chain that could have failed"
        if posterior is None or posterior.chains > 1:
            found = "by chains or floating point, not described"
            level = "open"
    return [Check("the draw", found, "an exact draw, or chains that agree", level)]


def _weighted_draw(posterior: PosteriorSummary, sums: SumsSummary) -> list[Check]:
    k = sums.pareto_k
    shown = "unbounded" if k is None else number(k)
    found = f"independent draws by importance sampling, Pareto k {shown}"
    if posterior.sampler == "prior":
        found = (
            "independent draws from the prior: neither weights nor chains "
            "could be worked out"
        )
    rule = f"k at most {MOST_K}; otherwise chains are run"
    level = graded(k is not None and k <= MOST_K, bad=True)
    return [Check("the draw", found, rule, level)]


def _chains(
    found: Sequence[Convergence], bfmi: Sequence[float], posterior_of: PosteriorOf
) -> list[Check]:
    rhat = max(one.largest_rhat for one in found)
    sizes = [min(one.smallest_ess_bulk, one.smallest_ess_tail) for one in found]
    fewest = min(sizes)
    divergences = sum(one.divergences for one in found)
    size = "unbounded" if fewest == math.inf else f"{fewest:,.0f}"
    figures = [
        ("R-hat, largest", f"{rhat:.4f}", f"below {RHAT}", rhat < RHAT),
        ("effective draws, fewest", size, f"above {ESS}", fewest > ESS),
        ("divergences", str(divergences), "none", not divergences),
    ]
    checks = []
    for name, shown, rule, holds in figures:
        checks.append(Check(name, shown, rule, graded(holds, bad=True)))
    if bfmi:
        least = min(bfmi)
        level = graded(least >= BFMI)
        checks.append(Check("BFMI, smallest", number(least), f"{BFMI} or more", level))
    rounds = max(one.rounds for one in found)
    if rounds > 1:
        ended = "agreed" if all(one.passed for one in found) else "still disagreed"
        said = (
            f"chains disagreed and were run again, longer each time; they {ended} "
            f"in round {rounds} of {ROUNDS}"
        )
        rule = (
            "running again was decided on confidential records, which the "
            "guarantee does not cover"
        )
        if posterior_of == "answers":
            rule = (
                "the chains read noisy statistics only, so running them again "
                "costs nothing"
            )
        checks.append(
            Check("rounds of chains", said, f"agreement in round 1; {rule}", "watch")
        )
    return checks


def _grid(posterior: PosteriorSummary) -> list[Check]:
    if posterior.edge is None:
        return []
    name = "posterior on the outermost cells of the grid"
    rule = f"at most {percent(EDGE, short=True)}; more is cut off"
    return [Check(name, percent(posterior.edge), rule, graded(posterior.edge <= EDGE))]


def _statistics(predictive: dict[str, PredictiveCheck]) -> list[Check]:
    entries = sum(row.entries for row in predictive.values())
    if not entries:
        return []
    outside = sum(round(row.outside * row.entries) for row in predictive.values())
    furthest = max(row.furthest for row in predictive.values())
    by_number = float(bdtrc(outside - 1, entries, EXPECTED_OUTSIDE))
    chance = min(by_number, entries * math.exp(-math.sqrt(2) * furthest))
    level = graded(chance >= CHANCE, bad=outside > MOST_OUTSIDE * entries)
    found = (
        f"{outside} of {plural(entries, 'noisy number')} outside the middle 95 % "
        f"of the simulated"
    )
    if furthest:
        found += f", the furthest off by {number(furthest)} sd"
    rule = (
        f"nothing that happens less than one time in {1 / CHANCE:.0f}; failed if "
        f"more than half lie outside as well"
    )
    return [Check("posterior predictive check", found, rule, level)]


def _noisy_sums(found: SumsSummary | None) -> list[Check]:
    if found is None:
        return []
    n_learned = found.parameters - found.as_prior
    checked = []
    if found.misfit is not None:
        reason = REASONS[found.misfit_by or "spread"]
        checked.append(
            Check(
                "noisy answers against the model",
                f"as far off {percent(found.misfit)} of the time if the model is right",
                f"at least {percent(CONTRADICTED, short=True)}: below, intervals "
                f"aren't what they seem, as {reason}",
                graded(found.misfit >= CONTRADICTED),
            )
        )
    drawn = "at each draw"
    if found.undrawn:
        drawn = f"none at {plural(found.undrawn, 'draw')}"
    return [
        *checked,
        Check(
            "likelihood of noisy sums",
            f"covariance of the exact sums taken {number(found.widening)} times as "
            f"wide",
            f"at most {number(MOST_WIDENED)}: beyond, simulated records say little "
            f"of the parameters that are likely",
            graded(found.widening <= MOST_WIDENED),
        ),
        Check(
            "posterior from the last reference",
            f"{number(found.moved)} standard deviations",
            f"at most {number(MOST_MOVED)}: scores taken far off say less; more "
            f"rounds bring it nearer",
            graded(found.moved <= MOST_MOVED),
        ),
        Check(
            "posterior against prior",
            f"{n_learned} of {plural(found.parameters, 'parameter')} learned of",
            "all: of others the noise is louder than the records, and the posterior "
            "is the prior",
            graded(not found.as_prior),
        ),
        Check(
            "records at posterior draws",
            drawn,
            "at each: where the model draws none other draws took their place, then "
            "such from the prior, then counts",
            graded(not found.undrawn),
        ),
    ]


def _records(records: RecordCheck | None) -> list[Check]:
    if records is None:
        return []
    rule = (
        f"no column further off than draws are by themselves by more than {OFF}; "
        f"failed above {FAR_OFF}"
    )
    name = "posterior predictive check of records"
    if records.failed:
        return [Check(name, f"could not be made ({records.failed})", rule, "open")]
    gaps = {column.name: column.distance - column.typical for column in records.columns}
    off = [f"{column} by {number(gap)}" for column, gap in gaps.items() if gap > OFF]
    level = graded(not off, bad=max(gaps.values(), default=0.0) > FAR_OFF)
    return [Check(name, ", ".join(off) or "no column is off", rule, level)]


def _terms(bounds: BoundSummary | None) -> list[Check]:
    if bounds is None or bounds.failed:
        return []
    found: list[Check] = []
    if bounds.window is not None and bounds.window.released_share:
        share = max(bounds.window.released_share)
        level = graded(share <= MOST_CENSORED, bad=share > ALL_BUT_CENSORED)
        rule = (
            f"at most {percent(MOST_CENSORED, short=True)}; failed above "
            f"{percent(ALL_BUT_CENSORED, short=True)}"
        )
        found.append(
            Check("records cut off at a released draw", percent(share), rule, level)
        )
    if bounds.rhat is not None:
        level = graded(bounds.rhat < RHAT)
        name = "R-hat of the bound of records' terms"
        found.append(Check(name, f"{bounds.rhat:.4f}", f"below {RHAT}", level))
    return found


def _margins(noise: "MarginErrors") -> list[Check]:
    far = []
    for row in noise.one_way:
        if row.found > NOISE_FACTOR * row.expected:
            far.append(row.column)
    found = "as far from the table as noise brings them"
    if far:
        found = f"{', '.join(far)} further from the table"
    rule = f"at most {NOISE_FACTOR:g} times what noise and the drawing of records give"
    return [Check("one-way margins", found, rule, graded(not far))]


class ColumnError(NamedTuple):
    """One column: the standard error of a cell, in records and as a share, and the
    distance, expected and found.
    """

    column: str
    standard_error: float
    share: float
    expected: float
    found: float


class PairErrors(NamedTuple):
    """All pairs of columns: standard errors of a cell in records, and distances."""

    mean_error: float
    largest_error: float
    largest: str
    expected: float
    found: float | None


class MarginErrors(NamedTuple):
    """Margins' standard errors, from ``privacy.json``, beside distances from the table,
    from ``run.json``.
    """

    n_records: int
    one_way: list[ColumnError]
    two_way: PairErrors | None


def margin_errors(release: PrivacyDocument, run: RunDocument) -> MarginErrors | None:
    """Return standard errors of margins beside distances that were found; None where
    the release states no errors.

    The distance that noise of standard error se and the drawing of n records bring is,
    of normal errors, ``sum_c sqrt((se / n)^2 + p_c (1 - p_c) / n) / sqrt(2 pi)``; of
    pairs, the root of the squares of that of the noise alone and of the mean distance
    of a resample.
    """
    n = run.n_records
    if not release.margin_errors:
        return None
    errors = {item.columns: item.standard_error for item in release.margin_errors}
    margins = {margin.column: margin for margin in run.comparison.one_way}
    rows = []
    for columns, error in errors.items():
        margin = margins.get(columns[0])
        if len(columns) > 1 or margin is None or margin.distance is None:
            continue
        spread = [
            math.sqrt((error / n) ** 2 + share * (1 - share) / n)
            for share in margin.table
        ]
        expected = min(HALF_NORMAL / 2 * math.fsum(spread), 1.0)
        rows.append(
            ColumnError(columns[0], error, error / n, expected, margin.distance)
        )
    rows.sort(key=lambda row: -row.found / row.expected if row.expected else -math.inf)
    two_way = _pairs(errors, margins, run.comparison.two_way, n)
    return MarginErrors(n_records=n, one_way=rows, two_way=two_way)


def _pairs(
    errors: dict[tuple[str, ...], float],
    margins: dict[str, Margin],
    two_way: TwoWay,
    n: int,
) -> PairErrors | None:
    pairs = {}
    distances = []  # that noise alone brings
    for names, error in errors.items():
        if len(names) == 2 and {*names} <= {*margins}:
            pairs[names] = error
            n_cells = math.prod(len(margins[name].levels) for name in names)
            distances.append(HALF_NORMAL / 2 * n_cells * error / n)
    if not pairs:
        return None
    largest = max(pairs, key=lambda names: pairs[names])
    resample = two_way.reference_mean() or 0.0
    expected = math.hypot(mean(distances) or 0.0, resample)
    found = mean(distance for distance, _, _ in two_way.pairs())
    return PairErrors(
        mean_error=mean(pairs.values()) or 0.0,
        largest_error=pairs[largest],
        largest=" and ".join(largest),
        expected=min(expected, 1.0),
        found=found,
    )
