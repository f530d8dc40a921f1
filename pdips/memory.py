"""How much memory there is, so that what can't fit is refused before it is paid for."""

from pathlib import Path

from pdips.errors import InputError

GIB = 2**30
_OF_MACHINE = Path("/proc/meminfo")
_OF_GROUP = Path("/sys/fs/cgroup")


def available() -> int | None:
    """Return how many bytes can be had without swapping: of the machine, and of the
    group of processes that a container is. None where the system doesn't say.

    Examples
    --------
    >>> available() != 0
    True
    """
    found = list[int]()
    if _OF_MACHINE.is_file():
        lines = _OF_MACHINE.read_text().splitlines()
        fields = dict(line.split(":") for line in lines if ":" in line)
        if "MemAvailable" in fields:
            found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    limit = _OF_GROUP / "memory.max"
    used = _OF_GROUP / "memory.current"
    if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
        held = int(used.read_text()) - _of_files(_OF_GROUP / "memory.stat")
        found.append(int(limit.read_text()) - held)
    return min(found) if found else None


def _of_files(statistics: Path) -> int:
    """Return how many bytes of a group's memory are copies of files, which are let go
    where others need them.
    """
    if not statistics.is_file():
        return 0
    fields = dict(line.split() for line in statistics.read_text().splitlines())
    return int(fields.get("inactive_file", 0))


def check_fits(needed: float, what: str, advice: str) -> None:
    """Refuse what needs more memory than there is, with both numbers.

    Raises
    ------
    InputError
        If so many bytes aren't available.
    """
    there = available()
    if there is not None and needed > there:
        raise InputError(
            f"{what} would need about {needed / GIB:,.1f} GiB of memory, and "
            f"{there / GIB:,.1f} GiB are available: {advice}"
        )
