"""Answers: what a curator has told a mechanism, one after the other.

They are what a release has paid for, and all that its sets depend on beside public
facts. So whoever has them can ask again, without a table: for more sets, for another
measure of the noise, or outside.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from pdips.data.table import Table
from pdips.errors import PlanError

AnswerKind = Literal["numbers", "choice", "draw", "kept"]
"""Noisy numbers; a choice among public candidates; a draw of a distribution, such as
parameters of a posterior; or what was made of earlier answers and steers later
questions.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class NotedAnswer:
    """The answer to one question.

    Parameters
    ----------
    step : str
        The name of the step of the plan; empty for what is kept.
    kind : {"numbers", "choice", "draw", "kept"}
        What sort of answer it is.
    values : ndarray, int, mapping or DataFrame
        What the curator said.
    standard_deviation : float, optional
        That of the noise on each number, in whole steps.
    """

    step: str
    kind: AnswerKind
    values: Any
    standard_deviation: float | None = None


class Answers(Sequence[NotedAnswer]):
    """The answers of a release, in the order in which they were given.

    Parameters
    ----------
    given : sequence of NotedAnswer
        None, for a release that begins.
    """

    def __init__(self, given: Sequence[NotedAnswer] = ()) -> None:
        self._given = list(given)

    @overload
    def __getitem__(self, index: int) -> NotedAnswer: ...
    @overload
    def __getitem__(self, index: slice) -> "Answers": ...
    def __getitem__(self, index: int | slice) -> "NotedAnswer | Answers":
        if isinstance(index, slice):
            return Answers(self._given[index])
        return self._given[index]

    def __len__(self) -> int:
        return len(self._given)

    def __iter__(self) -> Iterator[NotedAnswer]:
        return iter(self._given)

    def __repr__(self) -> str:
        return f"Answers({len(self)} of {len({answer.step for answer in self})} steps)"

    def note(
        self,
        step: str,
        kind: AnswerKind,
        values: Any,
        standard_deviation: float | None = None,
    ) -> None:
        """Add an answer. Arrays are copied, for mechanisms may work in their place."""
        held = values
        if isinstance(values, np.ndarray):
            held = values.copy()
        elif isinstance(values, Mapping):
            held = {name: np.array(array) for name, array in values.items()}
        self._given.append(
            NotedAnswer(
                step=step,
                kind=kind,
                values=held,
                standard_deviation=standard_deviation,
            )
        )


class PublicFacts:
    """What is public about a table of confidential records.

    Under replace-one these are its number of records and its public columns, sorted;
    under add-remove nothing is.

    Parameters
    ----------
    n_records : int or None
        The number of records; None where it is protected.
    columns : Table, optional
        The public columns of all records, if there are any.
    """

    def __init__(self, n_records: int | None, columns: Table | None = None) -> None:
        self._n_records = n_records
        self._columns = columns

    @classmethod
    def of(cls, table: Table, *, n_public: bool) -> "PublicFacts":
        """Return the public facts of a table. Their order shows nothing."""
        if not n_public:
            return cls(None)
        part = table.public_part() if table.schema.public_columns else None
        return cls(table.n_records, part)

    @property
    def n_public(self) -> bool:
        """Whether the number of records is public."""
        return self._n_records is not None

    @property
    def n_records(self) -> int:
        """The number of records."""
        if self._n_records is None:
            raise PlanError("the number of records is protected under add-remove")
        return self._n_records

    @property
    def columns(self) -> Table:
        """The table's public columns alone."""
        if self._n_records is None:
            raise PlanError(
                "public columns show the number of records, which is "
                "protected under add-remove"
            )
        if self._columns is None:
            raise PlanError("no column is public")
        return self._columns
