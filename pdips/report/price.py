"""The section on what was spent and what is left."""

import math
from typing import Any

from markupsafe import Markup

from pdips.release.documents import AccountState, PaidDocument, PrivacyDocument, RunDocument
from pdips.report import drawings
from pdips.report.drawings import Part
from pdips.report.formats import price
from pdips.report.verdicts import Verdict, worst

LARGE_EPSILON = 10.0
"""Beyond it an attacker's odds may grow by more than 22,000: the bound says little."""
MOST_ITEMS = 12
"""Longer lists are folded."""


def section(facts: PrivacyDocument, run: RunDocument, paid: PaidDocument | None) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it.

    Parameters
    ----------
    facts : PrivacyDocument
        ``privacy.json``.
    run : RunDocument
        ``run.json``.
    paid : PaidDocument, optional
        A paid evaluation, which is a further spend.
    """
    return {
        "verdict": verdict(facts, run, paid),
        "items": items(facts),
        "fold": len(facts.spends) > MOST_ITEMS,
        "smallest": min(item.epsilon for item in facts.spends) if facts.spends else None,
        "largest": max(item.epsilon for item in facts.spends) if facts.spends else None,
        "sum": price_sum(facts),
        "paid": paid,
        "with_paid": total(facts, paid),
        "account": None if run.ledger is None else account(facts, run.ledger, paid),
    }


def items(facts: PrivacyDocument) -> list[tuple[str, str, float, float]]:
    """Return step, composition, epsilon and share of the total of each spend."""
    return [(item.step, item.composition, item.epsilon, item.epsilon / facts.privacy.epsilon) for item in facts.spends]


def price_sum(facts: PrivacyDocument) -> float | None:
    """Return the sum of the spends where it says something other than the total, else None."""
    summed = math.fsum(item.epsilon for item in facts.spends)
    return None if math.isclose(summed, facts.privacy.epsilon, rel_tol=1e-9) else summed


def total(facts: PrivacyDocument, paid: PaidDocument | None) -> float:
    """Return epsilon of the sets and of a paid evaluation together: they compose one after the other."""
    return math.fsum([facts.privacy.epsilon, *([paid.privacy.epsilon] if paid else [])])


def verdict(facts: PrivacyDocument, run: RunDocument, paid: PaidDocument | None = None) -> Verdict:
    """Return the verdict by the rules that ``docs/report.md`` lists."""
    privacy, found = facts.privacy, []
    if privacy.kind in ("none", "asymptotic"):
        found.append(Verdict(level="bad", line="No bound holds: nothing is paid for, and the sets stay inside."))
    if facts.reproducible:
        found.append(Verdict(level="bad", line="Made from a seed: whoever knows it can subtract the noise."))
    found += _on_delta(privacy.delta, run.n_records)
    if total(facts, paid) > LARGE_EPSILON and privacy.kind not in ("none", "asymptotic"):
        line = f"An epsilon above {LARGE_EPSILON:g} bounds the odds of an attacker by so much that it says little."
        found.append(Verdict(level="watch", line=line))
    if run.ledger is None:
        line = "No ledger was named: this spend is on no record."
        found.append(Verdict(level="watch", line=line))
    elif run.ledger.total_epsilon is None:
        line = "The ledger has no total: nothing stops the next release."
        found.append(Verdict(level="watch", line=line))
    line = "The price is bounded, and the ledger was charged before any noise was drawn."
    return worst(found, Verdict(level="good", line=line))


def _on_delta(delta: float, n: int | None) -> list[Verdict]:
    if not delta or not n:
        return []
    if delta >= 1 / n:
        line = "Delta is at least one over the number of records: publishing a record in full would fit the bound."
        return [Verdict(level="bad", line=line)]
    if delta > 1 / n**2:
        line = "Delta is more than one over the square of the number of records."
        return [Verdict(level="watch", line=line)]
    return []


def account(facts: PrivacyDocument, ledger: AccountState, paid: PaidDocument | None) -> dict[str, Any]:
    """Return where the account stood: earlier spends, this release, an evaluation, what is left, and for how many."""
    this = ledger.charged_epsilon if ledger.charged_epsilon is not None else _charged(facts, ledger)
    later = paid.privacy.epsilon if paid else 0.0
    left = None if ledger.remaining_epsilon is None else max(0.0, ledger.remaining_epsilon - later)
    earlier = None if this is None else max(0.0, ledger.spent_epsilon - this)
    return {
        "ledger": ledger,
        "this": this,
        "earlier": earlier,
        "later": later,
        "left": left,
        "more": None if left is None or not this else _more(ledger, this, left),
        "bar": None if this is None or earlier is None else Markup(_bar(earlier, this, later, left)),
        "converted": this is not None and not math.isclose(this, facts.privacy.epsilon, rel_tol=1e-9),
        "folded": len(ledger.entries) > MOST_ITEMS,
    }


def _charged(facts: PrivacyDocument, ledger: AccountState) -> float | None:
    """Return what the account was charged, for a run that doesn't say; None where it can't be told."""
    privacy = facts.privacy
    if privacy.kind in ("none", "asymptotic"):
        return None
    if privacy.neighbours == ledger.neighbours:
        return privacy.epsilon
    return 2 * privacy.epsilon if privacy.kind != "zcdp" else None


def _more(ledger: AccountState, this: float, left: float) -> int:
    """Return how many more releases of this price the total has room for, in epsilon and in delta."""
    fits = math.floor(left / this * (1 + 1e-9))
    if ledger.charged_delta and ledger.total_delta is not None:
        room = max(0.0, ledger.total_delta - ledger.spent_delta)
        fits = min(fits, math.floor(room / ledger.charged_delta * (1 + 1e-9)))
    return fits


def _bar(earlier: float, this: float, later: float, left: float | None) -> str:
    parts = [
        Part(size=earlier, kind="earlier", words=f"{price(earlier)} spent before"),
        Part(size=this, kind="this", words=f"{price(this)} by this release"),
        Part(size=later, kind="later", words=f"{price(later)} by its paid evaluation"),
    ]
    if left is not None:
        parts.append(Part(size=left, kind="left", words=f"{price(left)} left"))
    return drawings.stacked_bar(parts, "Epsilon of the account")
