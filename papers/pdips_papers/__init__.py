"""The papers' tables and figures, computed again, and their mechanisms as printed.

Studies are found by the entry points of the group ``pdips.studies``, so that a package
of one's own may add some.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from pdips.privacy.loss import choice

if TYPE_CHECKING:
    from pdips_papers.harness.study import Study


def names() -> tuple[str, ...]:
    """Return the names of all installed studies.

    Examples
    --------
    >>> "voter" in names()
    True
    """
    return tuple(sorted(_installed()))


def find(name: str) -> "Study":
    """Return a study.

    Raises
    ------
    InputError
        If there is no study of this name; the message lists those that there are.

    Examples
    --------
    >>> find("proportions").default_replicates
    5000
    """
    study: Study = _installed()[choice(name, names(), "study")].load()()
    return study


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="pdips.studies")}
