"""The rules by which the curator's report calls a draw good, and what each rule found."""

from collections.abc import Sequence
from math import exp, inf, sqrt

from pdips.convergence import BFMI, ESS, RHAT, ROUNDS, Convergence
from pdips.release.documents import (
    BoundSummary,
    PosteriorSummary,
    PredictiveCheck,
    PrivacyDocument,
    RecordCheck,
    RunDocument,
)
from pdips.report.formats import number, percent, plural
from pdips.report.noise import Compared
from pdips.report.utility import checks as compared_at_release
from pdips.report.verdicts import Check, Level, Verdict, summed

EDGE = 0.01
"""Share of the posterior on the outermost cells of its grid from which on the grid cuts it off."""

OFF, FAR_OFF = 0.05, 0.25
"""Total variation distance of a column from what the model draws, beyond what draws differ by themselves."""

CHANCE = 0.01
EXPECTED_OUTSIDE, MOST_OUTSIDE = 0.05, 0.5
MOST_CENSORED, ALL_BUT_CENSORED = 0.5, 0.9
NOISE_FACTOR = 3.0
"""How much further a margin may lie from the table than noise and sampling alone bring it."""

POST_PROCESSING = ("modips",)
"""Mechanisms whose chains read released noisy statistics only, so that repeating them costs nothing."""


def judge(
    facts: PrivacyDocument, run: RunDocument, bfmi: Sequence[float], noise: Compared | None
) -> tuple[Verdict, list[Check]]:
    """Return the verdict on how a release was drawn and what came of it, and each rule with what it found.

    The rules; gates are those of :mod:`pdips.convergence`, the others stand above. The worst of them is the verdict, in
    the order bad, watch, open, good.

    - *Single columns, means and standard deviations* of the sets: the rules of :func:`pdips.report.utility.checks`. A
      draw from a posterior, exact or converged, is of no use where the model is wrong.

    - *Chains*, of parameters, lines, or the posterior of noisy statistics: **bad** where R-hat isn't below ``RHAT``,
      bulk or tail effective draws aren't above ``ESS``, or a trajectory diverged: such a release should have been
      refused. **watch** where a chain's energy moves too little (``BFMI``). **open** where a release came from chains
      and says nothing of them.
    - *Rounds*: **watch** where chains disagreed and were run again.
    - *Exact draws* (noise, elections, urns, grids, rejection) have no chain that could have failed: **good**. On a
      grid, **watch** where more than ``EDGE`` of the posterior lies on its outermost cells: the grid cuts it off.
    - *Posterior predictive check of noisy statistics*: **watch** where so many entries lie outside the middle 95 % of
      the simulated ones that it happens with a probability below ``CHANCE`` if each does so with one of 5 %; or where
      the furthest is so many standard deviations off that it does under Laplace tails, times the number of entries;
      **bad** where, besides, more than ``MOST_OUTSIDE`` of the entries lie outside.
    - *Posterior predictive check of records*: **watch** where a column's shares lie further from the mean of what the
      model draws than draws do on average, by more than ``OFF`` in total variation; **bad** by more than ``FAR_OFF``.
      **open** where it couldn't be made.
    - *Records cut off*: **watch** where the window cuts off more than ``MOST_CENSORED`` of the records at a released
      draw, **bad** above ``ALL_BUT_CENSORED``: the guarantee holds, but the posterior depends little on the records.
    - *Bound of records' terms*: **watch** where chains disagree on it (``RHAT``); it certifies nothing then.
    - *Noise on margins*: **watch** where a one-way margin of the sets lies more than ``NOISE_FACTOR`` times as far from
      the table as noise and the drawing of records alone bring it.

    Parameters
    ----------
    facts, run
        ``privacy.json`` and ``run.json``.
    bfmi : sequence of float
        By chain; none where no energies were kept.
    noise : Compared, optional
        Margins' standard errors beside the distances that were found.
    """
    posterior = run.diagnostics.posterior
    found = _draw(facts, run, bfmi)
    if posterior is not None:
        found += _grid(posterior) + _statistics(posterior.predictive) + _records(posterior.records)
        found += _terms(posterior.bounds)
    if noise is not None:
        found += _margins(noise)
    found += [check for check in compared_at_release(facts, run.comparison) if check.name != "pairs of columns"]
    return summed(found), found


def _draw(facts: PrivacyDocument, run: RunDocument, bfmi: Sequence[float]) -> list[Check]:
    posterior = run.diagnostics.posterior
    chains = list(run.diagnostics.convergence)
    if posterior is not None and posterior.convergence is not None:
        chains.append(posterior.convergence)
    if chains:
        return _chains(chains, bfmi) + _rounds(chains, facts.mechanism)
    rule = "an exact draw, or chains that agree"
    if facts.privacy.sampling == "mcmc" and (posterior is None or posterior.chains > 1):
        return [Check(name="the draw", found="by chains or floating point, not described", rule=rule, level="open")]
    if facts.privacy.sampling == "mcmc":
        found = "independent draws in floating point, no chain that could have failed"
        return [Check(name="the draw", found=found, rule=rule, level="good")]
    found = "exact, no chain that could have failed"
    return [Check(name="the draw", found=found, rule=rule, level="good")]


def _chains(found: Sequence[Convergence], bfmi: Sequence[float]) -> list[Check]:
    rhat = max(one.largest_rhat for one in found)
    fewest = min(min(one.smallest_ess_bulk, one.smallest_ess_tail) for one in found)
    divergences = sum(one.divergences for one in found)
    rows = [
        ("R-hat, largest", f"{rhat:.4f}", f"below {RHAT}", rhat < RHAT),
        ("effective draws, fewest", "unbounded" if fewest == inf else f"{fewest:,.0f}", f"above {ESS}", fewest > ESS),
        ("divergences", str(divergences), "none", not divergences),
    ]
    checks = [Check(name=a, found=b, rule=c, level="good" if kept else "bad") for a, b, c, kept in rows]
    if bfmi:
        level: Level = "good" if min(bfmi) >= BFMI else "watch"
        checks.append(Check(name="BFMI, smallest", found=number(min(bfmi)), rule=f"{BFMI} or more", level=level))
    return checks


def agreement(found: Convergence) -> str:
    """Say how well chains agree, against what is asked of them."""
    sizes = (found.smallest_ess_bulk, found.smallest_ess_tail)
    bulk, tail = ("unbounded" if size == inf else f"{size:.0f}" for size in sizes)
    return (
        f"{'passed' if found.passed else 'failed'}: R-hat at most {found.largest_rhat:.4f} (below {RHAT} asked for), "
        f"effective draws at least {bulk} for the centre and {tail} for the tails (above {ESS}), {found.divergences} "
        f"divergences (none){f', in round {found.rounds}' if found.rounds > 1 else ''}"
    )


def _rounds(chains: Sequence[Convergence], mechanism: str) -> list[Check]:
    """Say that chains were run again; a first round that agreed needs no word."""
    rounds = max(one.rounds for one in chains)
    if rounds == 1:
        return []
    found = f"chains disagreed and were run again, longer each time; they agreed in round {rounds}"
    rule = "agreement in round 1; running again was decided on confidential records, which the guarantee does not cover"
    if mechanism in POST_PROCESSING:
        rule = "agreement in round 1; the chains read noisy statistics only, so running them again costs nothing"
    return [Check(name="rounds of chains", found=f"{found} of {ROUNDS}", rule=rule, level="watch")]


def _grid(posterior: PosteriorSummary) -> list[Check]:
    if posterior.edge is None:
        return []
    level: Level = "good" if posterior.edge <= EDGE else "watch"
    rule = f"at most {percent(EDGE, short=True)}; more is cut off"
    return [
        Check(
            name="posterior on the outermost cells of the grid", found=percent(posterior.edge), rule=rule, level=level
        )
    ]


def _statistics(predictive: dict[str, PredictiveCheck]) -> list[Check]:
    entries = sum(row.entries for row in predictive.values())
    if not entries:
        return []
    outside = sum(round(row.outside * row.entries) for row in predictive.values())
    furthest = max((row.furthest or 0.0 for row in predictive.values()), default=0.0)
    chances = _tail(outside, entries, EXPECTED_OUTSIDE), entries * exp(-sqrt(2) * furthest)
    level: Level = "watch" if min(chances) < CHANCE else "good"
    if level == "watch" and outside > MOST_OUTSIDE * entries:
        level = "bad"
    found = f"{outside} of {plural(entries, 'noisy number')} outside the middle 95 % of the simulated"
    if furthest:
        found += f", the furthest off by {number(furthest)} sd"
    rule = f"nothing that happens less than one time in {1 / CHANCE:.0f}; failed if more than half lie outside as well"
    return [Check(name="posterior predictive check", found=found, rule=rule, level=level)]


def _tail(least: int, n: int, p: float) -> float:
    """Return the probability of at least so many successes in n trials."""
    from scipy.special import bdtrc

    return float(bdtrc(least - 1, n, p)) if least else 1.0


def _records(records: RecordCheck | None) -> list[Check]:
    if records is None:
        return []
    rule = f"no column further off than draws are by themselves by more than {OFF}; failed above {FAR_OFF}"
    name = "posterior predictive check of records"
    if records.failed:
        return [Check(name=name, found=f"could not be made ({records.failed})", rule=rule, level="open")]
    gaps = {column.name: column.distance - column.typical for column in records.columns}
    off = [f"{column} by {number(gap)}" for column, gap in gaps.items() if gap > OFF]
    level: Level = "bad" if max(gaps.values(), default=0.0) > FAR_OFF else "watch" if off else "good"
    return [Check(name=name, found=", ".join(off) or "no column is off", rule=rule, level=level)]


def _terms(bounds: BoundSummary | None) -> list[Check]:
    if bounds is None or bounds.failed:
        return []
    found: list[Check] = []
    if bounds.window is not None and bounds.window.released_share:
        share = max(bounds.window.released_share)
        level: Level = "good" if share <= MOST_CENSORED else "bad" if share > ALL_BUT_CENSORED else "watch"
        rule = f"at most {percent(MOST_CENSORED, short=True)}; failed above {percent(ALL_BUT_CENSORED, short=True)}"
        found.append(Check(name="records cut off at a released draw", found=percent(share), rule=rule, level=level))
    if bounds.rhat is not None:
        level = "good" if bounds.rhat < RHAT else "watch"
        name = "R-hat of the bound of records' terms"
        found.append(Check(name=name, found=f"{bounds.rhat:.4f}", rule=f"below {RHAT}", level=level))
    return found


def _margins(noise: Compared) -> list[Check]:
    far = [row.column for row in noise.one_way if row.found > NOISE_FACTOR * row.expected]
    level: Level = "watch" if far else "good"
    found = f"{', '.join(far)} further from the table" if far else "as far from the table as noise brings them"
    rule = f"at most {NOISE_FACTOR:g} times what noise and the drawing of records give"
    return [Check(name="one-way margins", found=found, rule=rule, level=level)]
