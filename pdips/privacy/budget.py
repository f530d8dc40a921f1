"""What an account refuses: prices that don't fit into it, and units of privacy whose
prices don't add up.
"""

from collections.abc import Collection
from fractions import Fraction
from pathlib import Path

from pdips.errors import InputError, RefusedError
from pdips.privacy.account import Account, AccountPrice, Request, Unit
from pdips.privacy.loss import PrivacyLoss

_NO_RHO = "an approximate loss, which doesn't add up in rho"

FREE_REFUSALS = 3
"""How often records may refuse a request at no price before the curator must say so."""

REFUSALS = "refusals"
CHARGED_REFUSALS = "charged-refusals"
ALLOWED = (REFUSALS, CHARGED_REFUSALS)


def check_total(
    path: Path, account: Account, epsilon: Fraction, delta: Fraction
) -> None:
    """Refuse a total that is less than what is spent and reserved."""
    if account.total_rho is not None:
        raise InputError(
            f"ledger {path} is kept in rho; a total in epsilon needs another ledger"
        )
    spent_epsilon = account.spent_epsilon + account.reserved_epsilon
    spent_delta = account.spent_delta + account.reserved_delta
    if epsilon < spent_epsilon or delta < spent_delta:
        spent = _pair(spent_epsilon, spent_delta)
        total = _pair(epsilon, delta)
        raise _total_too_small(path, account, spent, total)


def check_total_in_rho(path: Path, account: Account, rho: Fraction) -> None:
    """Refuse a total in rho that is less than what is spent and reserved."""
    if account.spent_rho is None or account.reserved_rho is None:
        raise InputError(
            f"ledger {path} has {_NO_RHO}; a total in rho needs another ledger"
        )
    spent = account.spent_rho + account.reserved_rho
    if rho < spent:
        raise _total_too_small(path, account, f"rho {spent:.12g}", f"rho {rho:.12g}")


def _total_too_small(
    path: Path, account: Account, spent: str, total: str
) -> RefusedError:
    return RefusedError(
        f"ledger {path} has already spent {spent}{_reserved(account)}; the "
        f"total can't be {total}"
    )


def refuse_unit(path: Path, account: Unit | None, unit: Unit) -> None:
    """Refuse a price for a unit of privacy whose losses don't add to those in the
    account.
    """
    if account is not None and not unit.fits(account):
        raise InputError(
            f"ledger {path} is kept for this unit of privacy: {account}. The "
            f"schema has another: {unit}. Prices for different units don't add up: "
            "give the schema the records and public columns of the account, or "
            "name another ledger, whose total counts apart"
        )


def refuse_overspending(path: Path, account: Account, price: AccountPrice) -> None:
    """Raise RefusedError unless the charge fits into what remains."""
    epsilon = account.remaining_epsilon
    delta = account.remaining_delta
    if epsilon is None or delta is None:
        return
    if account.remaining_rho is not None:
        _refuse_in_rho(path, account, price, account.remaining_rho)
        return
    if price.charged_epsilon <= epsilon and price.charged_delta <= delta:
        return
    do = "ask for less, or raise the total (pdips ledger set-total)"
    if price.charged_delta and not account.total_delta:
        do = (
            "the total allows no delta: give it one (pdips ledger set-total "
            "--delta), or leave delta out of the release"
        )
    total = _pair(account.total_epsilon or Fraction(0), account.total_delta or 0)
    asked = _pair(price.charged_epsilon, price.charged_delta)
    raise _overspent(path, account, (asked, _pair(epsilon, delta), total), do)


def _refuse_in_rho(
    path: Path, account: Account, price: AccountPrice, room: Fraction
) -> None:
    if price.charged_rho is None:
        raise InputError(
            f"ledger {path} is kept in rho, and this is {_NO_RHO}; name another ledger"
        )
    if price.charged_rho <= room:
        return
    asked = f"rho {price.charged_rho:.12g}"
    total = f"rho {account.total_rho:.12g}"
    do = "ask for less, or raise the total (pdips ledger set-total)"
    raise _overspent(path, account, (asked, f"rho {room:.12g}", total), do)


def _overspent(
    path: Path, account: Account, amounts: tuple[str, str, str], do: str
) -> RefusedError:
    asked, left, total = amounts
    return RefusedError(
        f"ledger {path} would be overspent: asked {asked}, remaining {left}, "
        f"total {total} ({account.neighbours} neighbours){_reserved(account)}; {do}"
    )


def refuse_refusals(
    path: Path, refused: int, allow: Collection[str], *, reserves: bool = True
) -> None:
    """Refuse a request once records have refused several, unless the curator says what
    a further refusal is to cost: nothing where no price is reserved.
    """
    ways = {REFUSALS: "it is free, and on record"}
    if reserves:
        ways[CHARGED_REFUSALS] = "a refusal is charged what was reserved"
    if refused >= FREE_REFUSALS and not {*allow} & {*ways}:
        said = [f"--allow {word} ({meaning})" for word, meaning in ways.items()]
        raise InputError(
            f"ledger {path} has {refused} requests on record that were refused for "
            "what records contain, and each refusal says something of them at no "
            f"price. Say {' or '.join(said)}"
        )


def validate_price(request: Request) -> PrivacyLoss:
    """Return the loss of a request, if an account can hold it."""
    loss = request.loss
    spends = request.spends
    if loss is None or not loss.is_finite:
        kind = "none" if loss is None else loss.kind
        raise InputError(
            f"a loss of kind {kind!r} bounds nothing, so a ledger can't hold it; leave "
            "the ledger out of studies"
        )
    if not spends:
        raise InputError("a charge must be itemised: spends is empty")
    itemised = sum((spend.epsilon for spend in spends), Fraction(0))
    if loss.kind == "pure" and itemised != loss.epsilon:
        raise InputError(
            f"the spends add up to epsilon {itemised:.12g}, the loss says "
            f"{loss.epsilon:.12g}"
        )
    return loss


def _pair(epsilon: Fraction, delta: Fraction | int) -> str:
    more = f" and delta {Fraction(delta):.12g}" if delta else ""
    return f"epsilon {epsilon:.12g}{more}"


def _reserved(account: Account) -> str:
    """Say what of an account is reserved, if anything is."""
    if not account.reserved_epsilon:
        return ""
    amount = _pair(account.reserved_epsilon, account.reserved_delta)
    if account.total_rho is not None:
        amount = f"rho {account.reserved_rho:.12g}"
    return f", {amount} of it reserved by runs that aren't finished (pdips ledger show)"
