"""Products that are broken on purpose: the judge must find each at fault."""

from collections.abc import Callable
from typing import Any


def exchange(kind: type[object], **methods: Callable[..., Any]) -> None:
    """Exchange methods of a class for others, until this process ends."""
    for name, method in methods.items():
        setattr(kind, name, method)


def no_journal() -> None:
    """Charge, and keep no answer: a release that is stopped after it is lost."""
    from pdips.privacy.charge import Charge

    def commit(charge: Charge, name: str, data: bytes) -> None:
        if charge.receipt is None:
            fingerprint = charge._fingerprint()
            charge.receipt = charge.ledger.charge(
                charge._request, fingerprint=fingerprint
            )

    exchange(Charge, _commit=commit)


def late_commit() -> None:
    """Hand an answer to the mechanism first, and commit it before the next one: a run
    that is stopped in between draws it again.
    """
    from pdips.privacy.charge import Charge

    answer, commit, end = Charge.answer, Charge._commit, Charge.end
    waiting: list[tuple[str, bytes]] = []

    def settle(charge: Charge) -> None:
        while waiting:
            commit(charge, *waiting.pop(0))

    def answered(charge: Charge, name: str, draw: Callable[[], Any]) -> Any:
        settle(charge)
        return answer(charge, name, draw)

    def put_off(charge: Charge, name: str, data: bytes) -> None:
        waiting.append((name, data))

    def ended(charge: Charge, how: Any) -> None:
        settle(charge)
        end(charge, how)

    exchange(Charge, answer=answered, _commit=put_off, end=ended)


TWINS: dict[str, Callable[[], None]] = {
    "no journal": no_journal,
    "late commit": late_commit,
}
