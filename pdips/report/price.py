"""The section on what was spent and what is left."""

import math
import tomllib
from pathlib import Path
from typing import Any

from pdips.release.documents import AccountState, PaidDocument, PrivacyDocument, RunDocument
from pdips.report.verdict import Level, Verdict, worst

LARGE_EPSILON = 10.0
"""Beyond it an attacker's odds may grow by more than 22,000: the bound says little."""
MOST_ITEMS = 12
"""Longer lists are folded."""
with Path(__file__).with_suffix(".toml").open("rb") as _file:
    TEXTS = tomllib.load(_file)


def section(release: PrivacyDocument, run: RunDocument, paid: PaidDocument | None) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it. A paid evaluation is a further spend."""
    return {
        "verdict": verdict(release, run, paid),
        "items": items(release),
        "fold": len(release.spends) > MOST_ITEMS,
        "sum": price_sum(release),
        "with_paid": total(release, paid),
        "account": None if run.ledger is None else account(release, run.ledger, paid),
    }


def items(release: PrivacyDocument) -> list[tuple[str, str, float, float]]:
    """Return step, composition, epsilon and share of the total of each spend."""
    whole = release.privacy.epsilon
    return [(item.step, item.composition, item.epsilon, item.epsilon / whole) for item in release.spends]


def price_sum(release: PrivacyDocument) -> float | None:
    """Return the sum of the spends where it says something other than the total, else None."""
    summed = math.fsum(item.epsilon for item in release.spends)
    return None if math.isclose(summed, release.privacy.epsilon, rel_tol=1e-9) else summed


def total(release: PrivacyDocument, paid: PaidDocument | None) -> float:
    """Return epsilon of the sets and of a paid evaluation together: they compose one after the other."""
    return math.fsum([release.privacy.epsilon, *([paid.privacy.epsilon] if paid else [])])


def verdict(release: PrivacyDocument, run: RunDocument, paid: PaidDocument | None = None) -> Verdict:
    """Return the verdict by the rules that ``docs/report.md`` lists."""
    privacy, delta, n = release.privacy, release.privacy.delta, run.n_records
    unbounded = privacy.kind in ("none", "asymptotic")
    broken = {
        "unbounded": unbounded,
        "seeded": release.reproducible,
        "delta": n and delta and delta >= 1 / n,
        "large_delta": n and 1 / n**2 < delta < 1 / n,
        "epsilon": total(release, paid) > LARGE_EPSILON and not unbounded,
        "no_ledger": run.ledger is None,
        "no_total": run.ledger is not None and run.ledger.total_epsilon is None,
    }
    levels: tuple[Level, ...] = ("bad", "watch")
    told = [(level, said) for level in levels for name, said in TEXTS[level].items() if broken[name]]
    found = [Verdict(level=level, line=said.format(most=LARGE_EPSILON)) for level, said in told]
    return worst(found, Verdict(level="good", line=TEXTS["good"]))


def account(release: PrivacyDocument, ledger: AccountState, paid: PaidDocument | None) -> dict[str, Any]:
    """Return where the account stood: earlier spends, this release, an evaluation, what is left, and for how many."""
    privacy, in_rho = release.privacy, ledger.total_rho is not None
    spent, this, remaining = ledger.spent_epsilon, ledger.charged_epsilon, ledger.remaining_epsilon
    if in_rho:
        spent, this, remaining = ledger.spent_rho or 0.0, ledger.charged_rho, ledger.remaining_rho
    elif this is None and privacy.kind not in ("none", "asymptotic"):  # a run that doesn't say what was charged
        twice = 2 * privacy.epsilon if privacy.kind != "zcdp" else None
        this = privacy.epsilon if privacy.neighbours == ledger.neighbours else twice
    later = paid.privacy.epsilon if paid else 0.0
    later = later**2 / 2 if in_rho else later
    left = None if remaining is None else max(0.0, remaining - later)
    earlier = None if this is None else max(0.0, spent - this)
    more = None
    if left is not None and this:
        more = math.floor(left / this * (1 + 1e-9))
        if not in_rho and ledger.charged_delta and ledger.total_delta is not None:
            room = max(0.0, ledger.total_delta - ledger.spent_delta)
            more = min(more, math.floor(room / ledger.charged_delta * (1 + 1e-9)))
    return {
        "ledger": ledger,
        "in_rho": in_rho,
        "spent": spent,
        "total": ledger.total_rho if in_rho else ledger.total_epsilon,
        "this": this,
        "earlier": earlier,
        "later": later,
        "left": left,
        "more": more,
        "converted": not in_rho and this is not None and not math.isclose(this, release.privacy.epsilon, rel_tol=1e-9),
    }
