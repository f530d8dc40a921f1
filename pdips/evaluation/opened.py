"""A release read back from its folder, and the table that it came from, both checked."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pdips.data.readers import read_frame
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import DataError, InputError
from pdips.release.documents import PrivacyDocument, home_of


@dataclass(frozen=True, kw_only=True, repr=False)
class Opened:
    """A release on disk.

    Attributes
    ----------
    folder : Path
        The folder that holds ``public`` and ``confidential``.
    home : Path
        Where the synthetic sets lie: ``public``, or ``confidential`` for a release that may not be published.
    content : dict
        Contents of ``privacy.json``.
    facts : PrivacyDocument
        The same, checked.
    sets : tuple of DataFrame
        The synthetic sets.
    """

    folder: Path
    home: Path
    content: dict[str, Any]
    facts: PrivacyDocument
    sets: tuple[pd.DataFrame, ...]

    @property
    def schema(self) -> Schema:
        """The schema of the release."""
        return self.facts.table_schema

    @property
    def is_public(self) -> bool:
        """Whether the synthetic sets were published."""
        return self.home.name == "public"

    def describe(self) -> dict[str, Any]:
        """Return what the release is, for files about it."""
        facts = self.facts
        return {
            "mechanism": facts.mechanism,
            "epsilon": facts.privacy.epsilon,
            "kind": facts.privacy.kind,
            "n_sets": facts.n_sets,
        }


def open_release(directory: str | Path) -> Opened:
    """Read the synthetic sets of a release and check them against its schema.

    Raises
    ------
    InputError
        If the folder holds no release, a set is missing or in excess, or a set doesn't fit the schema.
    """
    folder = Path(directory)
    home = home_of(folder)
    if home is None:
        raise InputError(
            f"{folder} is no folder of a pdips release: it has no public/privacy.json; name the folder that "
            "`pdips synthesize --out` made"
        )
    facts = PrivacyDocument.read(home)
    sets = tuple(_read_set(path, facts.table_schema) for path in _files(home, facts.n_sets))
    return Opened(folder=folder, home=home, content=facts.contents(), facts=facts, sets=sets)


def open_table(path: str | Path, opened: Opened) -> Table:
    """Read the confidential table and check it against the schema of a release.

    Raises
    ------
    InputError
        If the file can't be read, or isn't a table of that schema; a ``DataError`` where its records aren't.
    """
    frame = read_frame(path)
    try:
        return Table(frame, opened.schema)
    except InputError as error:
        kind = DataError if isinstance(error, DataError) else InputError
        raise kind(f"{path} is not the table that {opened.folder} came from, its schema differs: {error}") from None


def _files(home: Path, n_sets: int) -> list[Path]:
    found: dict[int, Path] = {}
    for path in sorted(home.iterdir()):
        if match := re.fullmatch(r"synthetic_(\d+)\.(parquet|csv)", path.name):
            if int(match[1]) in found:
                raise InputError(
                    f"{found[int(match[1])]} and {path.name} are both there: take away the one that isn't "
                    "of this release"
                )
            found[int(match[1])] = path
    for number in range(1, n_sets + 1):
        if number not in found:
            raise InputError(f"synthetic set {number} of {n_sets} is missing in {home}: put it back from a copy")
    extra = sorted(set(found) - {*range(1, n_sets + 1)})
    if extra:
        raise InputError(f"{found[extra[0]]} is not of this release, which has {n_sets} sets: take it away")
    return [found[number] for number in range(1, n_sets + 1)]


def _read_set(path: Path, schema: Schema) -> pd.DataFrame:
    frame = read_frame(path)
    plain = schema.without_person().model_copy(update={"impossible": ()})
    try:
        if len(frame):
            Table(frame, plain)
        elif [*map(str, frame.columns)] != [*schema.columns]:
            raise InputError("its columns are not those of the schema")
    except InputError as error:
        raise InputError(
            f"{path} doesn't fit the schema in privacy.json: {error}. It was edited by hand, or is of another release"
        ) from None
    return frame
