"""The section on what was spent and what is left."""

import math
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

from pdips.privacy.delta import size_of_delta
from pdips.privacy.loss import (
    PRICE_DIGITS,
    READ_AT,
    READING_DIGITS,
    also_read,
    as_float,
)
from pdips.privacy.rho import rounded_up
from pdips.release.documents import (
    AccountState,
    PrivacyDocument,
    RunDocument,
    StatedLoss,
    answered_beside,
)
from pdips.report.verdict import Level, Verdict, worst

# Beyond it an attacker's odds may grow by more than 22,000: the bound says little
LARGE_EPSILON = 10.0
MOST_ITEMS = 12  # Longer lists are folded
TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


type Losses = dict[str, StatedLoss]


def section(
    release: PrivacyDocument, run: RunDocument, losses: Losses
) -> dict[str, Any]:
    """Return what the section shows; ``verdict`` opens it. ``losses`` are those of
    :func:`published`.
    """
    return {
        "verdict": verdict(release, run, losses),
        "items": items(release),
        "fold": len(release.spends) > MOST_ITEMS,
        "sum": price_sum(release),
        "losses": losses,
        "together": together(losses),
        "account": None if run.ledger is None else account(release, run.ledger, losses),
    }


def published(directory: Path, release: PrivacyDocument) -> Losses:
    """Return what a folder publishes, with the loss of each: the sets, and answers to
    further questions.
    """
    losses = {"The sets": release.privacy}
    for number, home in answered_beside(directory).items():
        answer = PrivacyDocument.read(home)
        losses[f"The answer {number}"] = answer.privacy
    return losses


def together(losses: Losses) -> StatedLoss:
    """Return the loss of all: they compose one after the other, in epsilon and in
    rho."""
    first = losses["The sets"]
    if len(losses) == 1:
        return first
    epsilon = math.fsum(loss.epsilon for loss in losses.values())
    delta = math.fsum(loss.delta for loss in losses.values())
    rhos = [loss.rho for loss in losses.values()]
    rho = 0.0
    if all(rhos):  # a sum of doubles may be rounded down
        rho = math.nextafter(math.fsum(rhos), math.inf)
    return first.model_copy(update={"epsilon": epsilon, "delta": delta, "rho": rho})


def also(loss: StatedLoss) -> dict[str, Any] | None:
    """Return what a pure release satisfies beside its epsilon: its rho, and the epsilon
    of its reading at delta, None where that is no smaller.
    """
    if loss.kind != "pure":
        return None
    reading = rounded_up(also_read(Fraction(loss.rho)), READING_DIGITS)
    return {
        "rho": as_float(rounded_up(Fraction(loss.rho), PRICE_DIGITS)),
        "delta": float(READ_AT),
        "epsilon": as_float(reading) if reading < loss.epsilon else None,
    }


def items(release: PrivacyDocument) -> list[tuple[str, str, float, float]]:
    """Return step, composition, epsilon and share of the total of each spend."""
    whole = release.privacy.epsilon
    return [
        (item.step, item.composition, item.epsilon, item.epsilon / whole)
        for item in release.spends
    ]


def price_sum(release: PrivacyDocument) -> float | None:
    """Return the sum of the spends where it says something other than the total, else
    None.
    """
    total = math.fsum(item.epsilon for item in release.spends)
    if math.isclose(total, release.privacy.epsilon, rel_tol=1e-9):
        return None
    return total


def public_records(release: PrivacyDocument, run: RunDocument) -> int | None:
    """Return the public number of records: of the table where it isn't protected,
    otherwise the one that was given to the mechanism, if any.
    """
    if release.privacy.neighbours == "replace-one":
        return run.n_records
    given: int | None = release.settings.get("n_records")
    return given


def verdict(release: PrivacyDocument, run: RunDocument, losses: Losses) -> Verdict:
    """Return the verdict by the rules that ``docs/report.md`` lists."""
    privacy = together(losses)
    size = size_of_delta(privacy.delta, public_records(release, run))
    unbounded = privacy.kind in ("none", "asymptotic")
    broken = {
        "unbounded": unbounded,
        "seeded": release.reproducible,
        "delta": size == "too large",
        "large_delta": size == "large",
        "epsilon": privacy.epsilon > LARGE_EPSILON and not unbounded,
        "no_ledger": run.ledger is None,
        "no_total": run.ledger is not None and run.ledger.total_epsilon is None,
    }
    levels: tuple[Level, ...] = ("bad", "watch")
    found = []
    for level in levels:
        for name, said in TEXTS[level].items():
            if broken[name]:
                line = said.format(most=LARGE_EPSILON)
                found.append(Verdict(level=level, line=line))
    return worst(found, Verdict(level="good", line=TEXTS["good"]))


def account(
    release: PrivacyDocument, ledger: AccountState, losses: Losses
) -> dict[str, Any]:
    """Return where the account stood: earlier spends, this release, what came after it,
    what is left, for how many.
    """
    in_rho = ledger.total_rho is not None
    spent = ledger.spent_epsilon
    this = ledger.charged_epsilon
    remaining = ledger.remaining_epsilon
    if in_rho:
        spent = ledger.spent_rho or 0.0
        this = ledger.charged_rho or 0.0
        remaining = ledger.remaining_rho
    after = list(losses.values())[1:]
    later = math.fsum(loss.rho if in_rho else loss.epsilon for loss in after)
    left = None if remaining is None else max(0.0, remaining - later)
    more = None
    if left is not None and this:
        more = _times(left, this)
        if not in_rho and ledger.charged_delta and ledger.total_delta is not None:
            room = max(0.0, ledger.total_delta - ledger.spent_delta)
            more = min(more, _times(room, ledger.charged_delta))
    is_as_stated = math.isclose(this, release.privacy.epsilon, rel_tol=1e-9)
    return {
        "ledger": ledger,
        "in_rho": in_rho,
        "spent": spent,
        "total": ledger.total_rho if in_rho else ledger.total_epsilon,
        "this": this,
        "earlier": max(0.0, spent - this),
        "later": later,
        "left": left,
        "more": more,
        "converted": not in_rho and not is_as_stated,
    }


def _times(left: float, price: float) -> int:
    """Return how often a price fits into what is left."""
    return math.floor(left / price * (1 + 1e-9))
