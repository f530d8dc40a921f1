"""The list of faults that a door is tried with."""

import errno
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.faults.doors import MECHANISMS, Door
from benchmarks.faults.shim import KINDS, STAYS, Fault

ERRORS = {
    "open": (errno.EACCES, errno.EMFILE, errno.EIO),
    "write": (errno.ENOSPC, errno.EIO),
    "sync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EACCES, errno.EIO, errno.ENOSPC),
    "make": (errno.ENOSPC, errno.EACCES),
    "remove": (errno.EACCES, errno.EIO),
    "allocate": (errno.ENOSPC, errno.EIO),
    "read": (errno.EIO,),
    "lock": (errno.ENOLCK, errno.EIO),
    "connect": (errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EACCES),
    "receive": (errno.ECONNRESET, errno.ETIMEDOUT),
}
"""With what each kind of call fails."""

QUOTAS = {"door": (62, 24), "dask": (12, 4), "mechanism": (15, 7)}
"""Of ``make faults``: so many faults and kills for each door, for the cluster, and for
each of the other mechanisms.
"""

DISKS = ("", "ledger", "out", "tmp")
"""Parts of the work folder that are full, or dead, from some call on."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED_AT = ("open", "write", "sync", "rename", "make", "remove")


def counts(calls: Sequence[str], part: str = "") -> Counter[str]:
    """Return how many calls of each kind a run makes in a part of the work folder."""
    kinds = Counter[str]()
    for call in calls:
        kind, _, path = call.partition(" ")
        if not part or path == part or path.startswith(f"{part}/"):
            kinds[kind] += 1
    return kinds


def faults(calls: Sequence[str]) -> list[Fault]:
    """Return all faults of calls: each call fails once by each error, or brings a
    signal, or is where a disk is full or dead from then on.
    """
    return [*_single(counts(calls)), *_signals(counts(calls)), *_disks(calls)]


def _single(made: Counter[str]) -> Iterator[Fault]:
    for kind in KINDS:
        for place in range(1, made[kind] + 1):
            for error in ERRORS[kind]:
                yield Fault(kind=kind, place=place, error=error)


def _signals(made: Counter[str]) -> Iterator[Fault]:
    for kind in INTERRUPTED_AT:
        for place in range(1, made[kind] + 1):
            for number in SIGNALS:
                yield Fault(kind=kind, place=place, signal=number)


def _disks(calls: Sequence[str]) -> Iterator[Fault]:
    for part in DISKS:
        made = counts(calls, part)
        for place in range(1, made["write"] + 1):
            for stays, error in zip(STAYS[1:], (errno.ENOSPC, errno.EIO), strict=True):
                yield Fault(
                    kind="write", place=place, error=error, stays=stays, part=part
                )


def kills(calls: Sequence[str], seconds: float, n: int) -> list[Fault]:
    """Return kills, one half at random calls and one half at random moments of a run
    that takes so many seconds.
    """
    rng = random.Random(46)
    made = counts(calls)
    places = [
        Fault(kind=kind, place=place, signal=signal.SIGKILL)
        for kind in INTERRUPTED_AT
        for place in range(1, made[kind] + 1)
    ]
    at_calls = rng.sample(places, n // 2)
    moments = [Fault(seconds=rng.uniform(0, seconds)) for _ in range(n - n // 2)]
    return [*at_calls, *moments]


def special(door: Door) -> list[Fault]:
    """Return faults of the world around a door: parts that are lost or changed, servers
    that go away.
    """
    if door.place == "postgres":
        return [
            _stopped("receive", place, act)
            for act in ("lost connection", "killed server")
            for place in (1, 2, 6)
        ]
    if door.place in ("folder", "dask"):
        return [
            _stopped(kind, place, act, part)
            for act in ("lost part", "changed part")
            for kind, place, part in (("open", 3, "data"), ("lock", 1, "ledger"))
        ]
    return []


def quota(door: Door) -> tuple[int, int]:
    """Return how many faults and kills ``make faults`` tries a door with."""
    if door in MECHANISMS:
        return QUOTAS["mechanism"]
    return QUOTAS["dask" if door.place == "dask" else "door"]


def busy() -> list[Fault]:
    """Return a ledger that is busy for longer than a run waits: at the reservation, at
    the charge, and before the release is in its place.
    """
    return [
        _stopped("make", 1, "busy ledger", "out"),
        _stopped("lock", 1, "busy ledger", "ledger"),
        _stopped("make", 2, "busy ledger", "out"),
    ]


def _stopped(kind: str, place: int, act: str, part: str = "") -> Fault:
    return Fault(kind=kind, place=place, part=part, act=act, signal=signal.SIGSTOP)


def spread(found: Sequence[Fault], n: int) -> list[Fault]:
    """Return so many of the faults, as evenly as can be."""
    if n >= len(found):
        return [*found]
    return [found[k * len(found) // n] for k in range(n)]
