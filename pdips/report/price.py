"""The section on what was spent and what is left."""

import math
import tomllib
from pathlib import Path
from typing import Any

from pdips.errors import InputError
from pdips.evaluation.claim import FOLDER, ClaimAnswer
from pdips.release.documents import (
    AccountState,
    PaidDocument,
    PrivacyDocument,
    RunDocument,
    StatedLoss,
    check,
    read_json,
)
from pdips.release.folder import file_digest
from pdips.report.verdict import Level, Verdict, worst

LARGE_EPSILON = 10.0  # Beyond it an attacker's odds may grow by more than 22,000: the bound says little
MOST_ITEMS = 12  # Longer lists are folded
TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


type Losses = dict[str, StatedLoss]


def section(release: PrivacyDocument, run: RunDocument, losses: Losses) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it. ``losses`` are those of :func:`published`."""
    return {
        "verdict": verdict(release, run, losses),
        "items": items(release),
        "fold": len(release.spends) > MOST_ITEMS,
        "sum": price_sum(release),
        "losses": losses,
        "together": together(losses),
        "account": None if run.ledger is None else account(release, run.ledger, losses),
    }


def published(public: Path, release: PrivacyDocument, paid: PaidDocument | None) -> Losses:
    """Return all that was published and paid for, and its loss: the sets, their evaluation, answers to claims."""
    found = {"The sets": release.privacy} | ({"Their paid evaluation": paid.privacy} if paid else {})
    for path in sorted((public / FOLDER).glob("*.json")):
        answer = check(ClaimAnswer, read_json(path), str(path))
        if answer.release_digest != file_digest(public / PrivacyDocument.file):
            raise InputError(f"{path} is about another release than privacy.json beside it: move it away")
        found[f"The answer to the claim {path.stem}"] = answer.privacy
    return found


def together(losses: Losses) -> StatedLoss:
    """Return the loss of all: they compose one after the other.

    A pure loss of epsilon is zero-concentrated with rho = epsilon^2 / 2 (Bun and Steinke 2016, proposition 1.4).
    """
    every, first = list(losses.values()), losses["The sets"]
    if len(every) == 1:
        return first
    concentrated = any(each.rho for each in every) and all(each.rho or not each.delta for each in every)
    rho = math.fsum(each.rho or each.epsilon**2 / 2 for each in every) if concentrated else 0.0
    epsilon, delta = (math.fsum(getattr(each, name) for each in every) for name in ("epsilon", "delta"))
    return first.model_copy(update={"epsilon": epsilon, "delta": delta, "rho": rho})


def items(release: PrivacyDocument) -> list[tuple[str, str, float, float]]:
    """Return step, composition, epsilon and share of the total of each spend."""
    whole = release.privacy.epsilon
    return [(item.step, item.composition, item.epsilon, item.epsilon / whole) for item in release.spends]


def price_sum(release: PrivacyDocument) -> float | None:
    """Return the sum of the spends where it says something other than the total, else None."""
    summed = math.fsum(item.epsilon for item in release.spends)
    return None if math.isclose(summed, release.privacy.epsilon, rel_tol=1e-9) else summed


def verdict(release: PrivacyDocument, run: RunDocument, losses: Losses) -> Verdict:
    """Return the verdict by the rules that ``docs/report.md`` lists."""
    privacy, n = together(losses), run.n_records
    delta = privacy.delta
    unbounded = privacy.kind in ("none", "asymptotic")
    broken = {
        "unbounded": unbounded,
        "seeded": release.reproducible,
        "delta": n and delta and delta >= 1 / n,
        "large_delta": n and 1 / n**2 < delta < 1 / n,
        "epsilon": privacy.epsilon > LARGE_EPSILON and not unbounded,
        "no_ledger": run.ledger is None,
        "no_total": run.ledger is not None and run.ledger.total_epsilon is None,
    }
    levels: tuple[Level, ...] = ("bad", "watch")
    told = [(level, said) for level in levels for name, said in TEXTS[level].items() if broken[name]]
    found = [Verdict(level=level, line=said.format(most=LARGE_EPSILON)) for level, said in told]
    return worst(found, Verdict(level="good", line=TEXTS["good"]))


def account(release: PrivacyDocument, ledger: AccountState, losses: Losses) -> dict[str, Any]:
    """Return where the account stood: earlier spends, this release, what came after it, what is left, for how many."""
    privacy, in_rho = release.privacy, ledger.total_rho is not None
    spent, this, remaining = ledger.spent_epsilon, ledger.charged_epsilon, ledger.remaining_epsilon
    if in_rho:
        spent, this, remaining = ledger.spent_rho or 0.0, ledger.charged_rho, ledger.remaining_rho
    elif this is None and privacy.kind not in ("none", "asymptotic"):  # a run that doesn't say what was charged
        twice = 2 * privacy.epsilon if privacy.kind != "zcdp" else None
        this = privacy.epsilon if privacy.neighbours == ledger.neighbours else twice
    after = list(losses.values())[1:]
    later = math.fsum((each.rho or each.epsilon**2 / 2) if in_rho else each.epsilon for each in after)
    left = None if remaining is None else max(0.0, remaining - later)
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
        "earlier": None if this is None else max(0.0, spent - this),
        "later": later,
        "left": left,
        "more": more,
        "converted": not in_rho and this is not None and not math.isclose(this, release.privacy.epsilon, rel_tol=1e-9),
    }
