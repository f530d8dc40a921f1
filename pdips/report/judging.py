"""The rules by which the curator's report calls a draw good, and what each rule found."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt

from pdips.convergence import BFMI, ESS, RHAT, ROUNDS
from pdips.report.facts import BoundFacts, PosteriorFacts, Predicted, PublicFacts, RecordsFacts, Run
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

SAID = re.compile(
    r"(passed|failed): R-hat at most (\S+) \(.*?\), effective draws at least (\S+) for the centre and (\S+) for the "
    r"tails \(.*?\), (\d+) divergences(?: \(none\), in round (\d+))?"
)
POST_PROCESSING = ("modips",)
"""Mechanisms whose chains read released noisy statistics only, so that repeating them costs nothing."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What chains said about themselves: the worst of all parameters, and of all runs."""

    passed: bool
    rhat: float
    ess_bulk: float
    ess_tail: float
    divergences: int
    rounds: int = 1

    @classmethod
    def of(cls, lines: Sequence[str]) -> "Agreement | None":
        """Read lines of :meth:`pdips.convergence.Convergence.describe`; None if there is none among them."""
        found = [said.groups() for line in lines if (said := SAID.match(line))]
        if not found:
            return None
        return cls(
            passed=all(word == "passed" for word, *_ in found),
            rhat=max(float(rhat) for _, rhat, *_ in found),
            ess_bulk=min(float(bulk) for _, _, bulk, *_ in found),
            ess_tail=min(float(tail) for *_, tail, _, _ in found),
            divergences=sum(int(count) for *_, count, _ in found),
            rounds=max(int(number or 1) for *_, number in found),
        )


def judge(facts: PublicFacts, run: Run, bfmi: Sequence[float], noise: Compared | None) -> tuple[Verdict, list[Check]]:
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


def _draw(facts: PublicFacts, run: Run, bfmi: Sequence[float]) -> list[Check]:
    posterior = run.diagnostics.posterior
    looked_at = [] if posterior is None or posterior.convergence is None else [posterior.convergence]
    agreement = Agreement.of([*run.diagnostics.convergence, *looked_at])
    if agreement is not None:
        return _chains(agreement, bfmi) + _rounds(agreement, facts.mechanism)
    rule = "an exact draw, or chains that agree"
    if facts.privacy.sampling == "mcmc" and (posterior is None or posterior.chains > 1):
        return [Check(name="the draw", found="by chains or floating point, not described", rule=rule, level="open")]
    if facts.privacy.sampling == "mcmc":
        found = "independent draws in floating point, no chain that could have failed"
        return [Check(name="the draw", found=found, rule=rule, level="good")]
    found = "exact, no chain that could have failed"
    return [Check(name="the draw", found=found, rule=rule, level="good")]


def _chains(agreement: Agreement, bfmi: Sequence[float]) -> list[Check]:
    """Judge by the numbers, and by the gate's own word, which knew all digits of them."""
    fewest = min(agreement.ess_bulk, agreement.ess_tail)
    apart, few = agreement.rhat >= RHAT, fewest <= ESS
    if agreement.passed:
        apart = few = False
    elif not few and not agreement.divergences:
        apart = True
    rows = [
        ("R-hat, largest", f"{agreement.rhat:.4f}", f"below {RHAT}", apart),
        ("effective draws, fewest", "unbounded" if fewest == inf else f"{fewest:,.0f}", f"above {ESS}", few),
        ("divergences", str(agreement.divergences), "none", agreement.divergences > 0),
    ]
    found = [Check(name=a, found=b, rule=c, level="bad" if failed else "good") for a, b, c, failed in rows]
    if bfmi:
        level: Level = "good" if min(bfmi) >= BFMI else "watch"
        found.append(Check(name="BFMI, smallest", found=number(min(bfmi)), rule=f"{BFMI} or more", level=level))
    return found


def _rounds(agreement: Agreement, mechanism: str) -> list[Check]:
    """Say that chains were run again; a first round that agreed needs no word."""
    if agreement.rounds == 1:
        return []
    found = f"chains disagreed and were run again, longer each time; they agreed in round {agreement.rounds}"
    rule = "agreement in round 1; running again was decided on confidential records, which the guarantee does not cover"
    if mechanism in POST_PROCESSING:
        rule = "agreement in round 1; the chains read noisy statistics only, so running them again costs nothing"
    return [Check(name="rounds of chains", found=f"{found} of {ROUNDS}", rule=rule, level="watch")]


def _grid(posterior: PosteriorFacts) -> list[Check]:
    if posterior.edge is None:
        return []
    level: Level = "good" if posterior.edge <= EDGE else "watch"
    rule = f"at most {percent(EDGE, short=True)}; more is cut off"
    return [
        Check(
            name="posterior on the outermost cells of the grid", found=percent(posterior.edge), rule=rule, level=level
        )
    ]


def _statistics(predictive: dict[str, Predicted]) -> list[Check]:
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


def _records(records: RecordsFacts | None) -> list[Check]:
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


def _terms(bounds: BoundFacts | None) -> list[Check]:
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
