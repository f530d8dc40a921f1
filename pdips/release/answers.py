"""The answers of a release as published: rows of ``answers.parquet``, and what they are
in ``privacy.json``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.privacy.answers import AnswerKind, Answers, NotedAnswer
from pdips.release.noisy_margins import MOST_NUMBERS

Container = Literal["array", "integer", "arrays"]
WHOLE_KINDS = "iub"  # numpy's letters for whole numbers and for true and false


@dataclass(frozen=True, kw_only=True)
class ArrayForm:
    """What the numbers of one array are: its name among several, type and shape."""

    name: str = ""
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class AnswerForm:
    """What the rows of one answer are.

    Parameters
    ----------
    step : str
        The step of the price that paid for it; empty for what was made of earlier
        answers.
    kind : {"numbers", "choice", "draw", "kept"}
        Noisy numbers, a choice among public candidates, a draw of a distribution, or
        what was made of earlier answers and steered later questions.
    container : {"array", "integer", "arrays"}
        One array, one whole number, or several arrays by name.
    arrays : tuple of ArrayForm
        In the order of the rows.
    standard_deviation : float, optional
        That of the noise on each number, in whole steps.
    """

    step: str
    kind: AnswerKind
    container: Container
    arrays: tuple[ArrayForm, ...]
    standard_deviation: float | None = None


def answer_forms(answers: Answers) -> tuple[AnswerForm, ...]:
    """Return what the rows of :func:`answer_rows` are; nothing where some answers are
    no numbers, or are too many to be published.
    """
    forms = []
    n_numbers = 0
    for answer in answers:
        named = _arrays(answer.values)
        if named is None:
            return ()
        arrays = tuple(
            ArrayForm(name=name, dtype=array.dtype.str, shape=array.shape)
            for name, array in named.items()
        )
        n_numbers += sum(array.size for array in arrays)
        forms.append(
            AnswerForm(
                step=answer.step,
                kind=answer.kind,
                container=_container(answer.values),
                arrays=arrays,
                standard_deviation=answer.standard_deviation,
            )
        )
    return tuple(forms) if n_numbers <= MOST_NUMBERS else ()


def answer_rows(answers: Answers) -> pd.DataFrame:
    """Return the rows of ``answers.parquet``, a number each: ``answer`` is the place
    in ``answers`` of ``privacy.json``, and the number is ``whole`` or ``real``.
    """
    parts = []
    for place, answer in enumerate(answers):
        for array in (_arrays(answer.values) or {}).values():
            flat = array.ravel()
            is_whole = array.dtype.kind in WHOLE_KINDS
            missing = [pd.NA] * len(flat)
            whole = flat.astype(np.int64) if is_whole else missing
            real = missing if is_whole else flat
            columns = {
                "answer": np.full(len(flat), place, dtype=np.int64),
                "whole": pd.array(whole, dtype="Int64"),
                "real": pd.array(real, dtype="Float64"),
            }
            parts.append(pd.DataFrame(columns))
    if not parts:
        return pd.DataFrame({"answer": [], "whole": [], "real": []})
    return pd.concat(parts, ignore_index=True)


def read_answers(forms: Sequence[AnswerForm], rows: pd.DataFrame) -> Answers:
    """Return the answers that :func:`answer_rows` wrote.

    Raises
    ------
    ValueError
        If the rows aren't those of these answers.
    """
    expected = [
        place
        for place, form in enumerate(forms)
        for array in form.arrays
        for _ in range(array.size)
    ]
    if not np.array_equal(rows["answer"].to_numpy(dtype=np.int64), expected):
        raise ValueError("rows aren't those of these answers")
    answers = []
    start = 0
    for form in forms:
        named = dict[str, NDArray[Any]]()
        for array, first in _starts(form.arrays, start):
            dtype = np.dtype(array.dtype)
            name = "whole" if dtype.kind in WHOLE_KINDS else "real"
            numbers = rows[name].iloc[first : first + array.size]
            if numbers.isna().any():
                raise ValueError("an answer lacks numbers")
            plain = np.int64 if name == "whole" else np.float64
            named[array.name] = (
                numbers.to_numpy(dtype=plain).astype(dtype).reshape(array.shape)
            )
        start += sum(array.size for array in form.arrays)
        answers.append(
            NotedAnswer(
                step=form.step,
                kind=form.kind,
                values=_values(form.container, named),
                standard_deviation=form.standard_deviation,
            )
        )
    return Answers(answers)


def _starts(arrays: Sequence[ArrayForm], start: int) -> Iterator[tuple[ArrayForm, int]]:
    """Yield each array with the row of its first number."""
    for array in arrays:
        yield array, start
        start += array.size


def _container(values: Any) -> Container:
    if isinstance(values, Mapping):
        return "arrays"
    return "integer" if isinstance(values, int) else "array"


def _values(container: Container, named: Mapping[str, NDArray[Any]]) -> Any:
    if container == "arrays":
        return dict(named)
    (array,) = named.values()
    return int(array) if container == "integer" else array


def _arrays(values: Any) -> Mapping[str, NDArray[Any]] | None:
    """Return an answer as arrays of numbers by name, or None where it isn't numbers."""
    if isinstance(values, pd.DataFrame):
        return None
    named = values if isinstance(values, Mapping) else {"": np.asarray(values)}
    kinds = {array.dtype.kind for array in named.values()}
    return named if kinds <= {*WHOLE_KINDS, "f"} else None
