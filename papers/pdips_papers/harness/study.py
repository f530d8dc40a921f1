"""What a study is: tasks that run anywhere in any order, a table beside the paper's,
pictures, claims and words.
"""

import hashlib
import math
import re
import tomllib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.privacy.loss import positive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("row", "column", "ours", "standard_error", "paper")
"""The columns of a study's table, in long form."""

HOLDS = "holds"
PARTLY = "holds in part"
FAILS = "doesn't hold"
TO_COME = "to come"
"""What is said of a claim."""

PROVED = "doesn't hold, by proof"
"""What is said of a claim that no replicate can decide: a guarantee that is refuted on
paper.
"""

UNDECIDED = "undecided"
RESAMPLES = 100
MOST_OFTEN = 0.95
"""A verdict stands if as large a share of as many resamples of the replicates has
it.
"""

Data = Literal["none", "optional", "required"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run of a study was asked for; all public.

    Parameters
    ----------
    replicates : int
        Number of repetitions of each case.
    data : path, optional
        A table to use in place of simulated data.
    epsilons : tuple of str
        Total privacy losses, in nats, as written on the command line; empty for the
        study's own.

    Raises
    ------
    InputError
        If ``replicates`` is below 1, an epsilon is not above 0, or ``data`` is no file.

    Examples
    --------
    >>> Options(replicates=10).epsilons
    ()
    """

    replicates: int
    data: Path | None = None
    epsilons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.replicates < 1:
            raise InputError(f"replicates must be at least 1, got {self.replicates}")
        for epsilon in self.epsilons:
            positive(epsilon, "epsilon")
        if len({positive(epsilon, "epsilon") for epsilon in self.epsilons}) < len(
            self.epsilons
        ):
            raise InputError("an epsilon is given twice")
        if self.data is not None and not self.data.is_file():
            raise InputError(f"{self.data} is no file")


@dataclass(frozen=True, kw_only=True)
class Task:
    """A piece of a study that runs by itself.

    Parameters
    ----------
    key : str
        Unlike any other task's of the study; part of a file name, and of what the seed
        is derived from.
    arguments : mapping
        What ``Study.run`` is to do, as values that JSON can hold.

    Examples
    --------
    >>> Task(key="laplace-1", arguments={"epsilon": "1"}).key
    'laplace-1'
    """

    key: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9._=-]*", self.key):
            raise InputError(
                f"the key of a task must be of a-z, 0-9 and ._=- only, got {self.key!r}"
            )


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Panels (SVG elements or matplotlib figures) that belong together.

    ``key`` maps each line's label to its colour variable: ``"--series-1"``, dashed if
    it ends in ``" dashed"``.
    """

    title: str
    panels: "Sequence[str | Figure]"
    caption: str = ""
    key: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim that the paper makes in words, and what the study finds."""

    claim: str
    found: str
    verdict: str
    certainty: str = ""
    """In how many resamples of the replicates which verdict came out."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A rectangle cut from the long table: rows and columns as it has them, and how to
    print them.

    The terminal shows headlines; the page puts blocks of one ``group`` under one
    heading.
    """

    title: str
    rows: Mapping[str, str]
    columns: Mapping[str, str]
    headline: bool = True
    group: str = ""


class Study(ABC):
    """A study: built without arguments, picklable.

    Attributes
    ----------
    name : str
        On the command line.
    title : str
        On the page.
    default_replicates : int
        As in the paper, or as many as take minutes.
    data : {"none", "optional", "required"}
        Whether ``--data`` makes sense.
    needs : str
        What the refusal of a run without data adds.

    Examples
    --------
    >>> from pdips_papers.steps.voter import Voter
    >>> issubclass(Voter, Study)
    True
    """

    name: ClassVar[str]
    title: ClassVar[str]
    default_replicates: ClassVar[int]
    data: ClassVar[Data] = "none"
    needs: ClassVar[str] = ""

    @abstractmethod
    def tasks(self, options: Options) -> list[Task]:
        """Cut the work into tasks of seconds to a minute. Raises InputError if the
        options make no sense.
        """

    @abstractmethod
    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Do one task; return measurements, each with ``row``, ``column`` and ``value``
        at least.

        ``seed`` is for ``numpy.random.default_rng``: derived from the study, the seed
        option and the task's key.
        """

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return ``COLUMNS`` from all measurements (``task`` holds the key of the
        task), NaN for what there isn't.
        """
        return summarise(measurements)

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Say how to print the table: all rows by all columns, in the order in which
        they come, if it is small.
        """
        rows, columns = (
            {name: name for name in table[side].unique()} for side in ("row", "column")
        )
        return [Block(title=self.title, rows=rows, columns=columns)]

    def pictures(
        self, measurements: pd.DataFrame, table: pd.DataFrame
    ) -> list[Picture]:
        """Draw what the paper draws."""
        return []

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Hold the paper's claims against the table."""
        return []

    def text(self) -> str:
        """Return paragraphs in HTML: what was done, definitions, which published row
        spends how much true epsilon.
        """
        page, common = (
            files("pdips_papers").joinpath("texts", f"{part}.html").read_text("utf-8")
            for part in (self.name, "common")
        )
        return page.replace("{{ common }}\n", common)


class Figures:
    """Looks up figures in a study's table, by row and column; ``named`` are epsilons
    that texts may name.
    """

    named: Mapping[str, str] = MappingProxyType({})

    def __init__(self, table: pd.DataFrame) -> None:
        self.found = {
            (row, column): values
            for row, column, *values in table[list(COLUMNS)].values.tolist()
        }
        self.rows = tuple(dict.fromkeys(str(row) for row, _ in self.found))

    def at(self, row: str, column: str) -> float:
        """Return our figure, NaN if there is none."""
        return float(self.found.get((row, column), (math.nan,))[0])

    def error(self, row: str, column: str) -> float:
        """Return its standard error, NaN if there is none."""
        return (
            float(self.found[row, column][1])
            if (row, column) in self.found
            else math.nan
        )

    def paper(self, row: str, column: str) -> float:
        """Return the paper's figure, NaN if there is none."""
        return (
            float(self.found[row, column][2])
            if (row, column) in self.found
            else math.nan
        )


type Judged = str | bool | Sequence[bool]
"""A verdict, or the comparisons that it follows from."""

type Said = tuple[str | Mapping[str, Any], Judged]
"""What was found, with its figures, or the figures alone for what ``texts/NAME.toml``
says of them; and the verdict.
"""

type Judge[Seen] = Callable[[Seen], Said | None]


def say(judged: Judged, **figures: Any) -> Said:
    """Return a verdict, and the figures that fill what the study's texts say was
    found.
    """
    return figures, judged


class Claims[Seen: Figures]:
    """The claims of a paper in their order: the paper's words, and what holds each
    against the figures seen.

    Parameters
    ----------
    *names : str
        Files ``texts/NAME.toml`` that have the words of claims, by the function that
        judges each.

    Examples
    --------
    >>> claims: Claims[Figures] = Claims()
    >>> @claims("(4) Less noise, less error; {form}.")
    ... def less_error(seen):
    ...     low, high = seen.at("sound", "1"), seen.at("sound", "2")
    ...     return f"{low} and {high}.", [high < low]
    >>> table = pd.DataFrame(
    ...     [("sound", "1", 0.5, 0.1, 0.0), ("sound", "2", 0.2, 0.1, 0.0)],
    ...     columns=list(COLUMNS),
    ... )
    >>> [judged] = claims.judge(Figures(table), form="sound")
    >>> judged.claim, judged.found, judged.verdict
    ('(4) Less noise, less error; sound.', '0.5 and 0.2.', 'holds')
    """

    def __init__(self, *names: str) -> None:
        texts = [
            files("pdips_papers").joinpath("texts", f"{name}.toml").read_text("utf-8")
            for name in names
        ]
        self._words = {
            key: words for text in texts for key, words in tomllib.loads(text).items()
        }
        self._table: list[tuple[dict[str, str], Judge[Seen]]] = []

    def __call__(self, claim: str | Judge[Seen]) -> Any:
        """Put a claim into the table, with the function that judges it; the function
        may return None for no finding.
        """
        words = (
            {"claim": claim}
            if isinstance(claim, str)
            else self._words[claim.__name__.strip("_")]
        )

        def put(judge: Judge[Seen]) -> Judge[Seen]:
            self._table.append((words, judge))
            return judge

        return put if isinstance(claim, str) else put(claim)

    def judge(self, seen: Seen, **words: str) -> list[Finding]:
        """Judge all claims; ``words`` fill what their texts leave open."""
        found = []
        for text, judge in self._table:
            if said := judge(seen):
                shown = (
                    said[0]
                    if isinstance(said[0], str)
                    else text["found"].format(seen=seen, **seen.named, **said[0])
                )
                found.append(
                    Finding(
                        claim=text["claim"].format(**words),
                        found=shown,
                        verdict=verdict(said[1]),
                    )
                )
        return found


def verdict(parts: Judged) -> str:
    """Return the verdict that follows from comparisons: all of them right, some, or
    none.
    """
    if isinstance(parts, str):
        return parts
    parts = [parts] if isinstance(parts, bool | np.bool_) else parts
    return HOLDS if all(parts) else PARTLY if any(parts) else FAILS


def resample(
    measurements: pd.DataFrame, rng: np.random.Generator
) -> tuple[pd.DataFrame, int]:
    """Draw replicates with replacement, the same ones in all cases that have as many;
    return their number, too.

    Tasks that differ only in the number at the end of their key are replicates of one
    case.
    """
    places = {
        str(task): rows
        for task, rows in measurements.groupby("task", sort=False).indices.items()
    }
    cases: dict[str, list[str]] = {}
    for task in places:
        cases.setdefault(task.rstrip("0123456789"), []).append(task)
    drawn = {
        n: rng.integers(n, size=n)
        for n in sorted({len(tasks) for tasks in cases.values()})
    }
    taken = [
        (places[tasks[pick]], f"{case}{number}")
        for case, tasks in cases.items()
        for number, pick in enumerate(drawn[len(tasks)])
    ]
    labels = np.repeat([label for _, label in taken], [len(rows) for rows, _ in taken])
    return measurements.iloc[np.concatenate([rows for rows, _ in taken])].assign(
        task=labels
    ), max(drawn)


def judged(
    study: Study, measurements: pd.DataFrame, table: pd.DataFrame
) -> list[Finding]:
    """Return the findings of a table, each with how sure its verdict is: a bootstrap
    over replicates.

    A verdict that comes out in less than 95 % of the resamples is undecided. What is
    proved needs none.
    """
    found = study.findings(table)
    if all(each.verdict in (PROVED, TO_COME) for each in found):
        return found
    rng = np.random.default_rng(derive_seed(study.name, 0, "resamples"))
    seen = [Counter[str]() for _ in found]
    for _ in range(RESAMPLES):
        again, n = resample(measurements, rng)
        if n < 2:
            return [
                replace(each, certainty="one replicate: no Monte Carlo error")
                for each in found
            ]
        verdicts = {
            each.claim: each.verdict for each in study.findings(study.table(again))
        }
        for count, each in zip(seen, found, strict=True):
            count[verdicts.get(each.claim, TO_COME)] += 1
    return [
        _with_certainty(each, count, n) for each, count in zip(found, seen, strict=True)
    ]


def _with_certainty(finding: Finding, seen: Counter[str], n: int) -> Finding:
    """Return a finding with the verdicts of resamples, undecided where they differ."""
    if finding.verdict in (PROVED, TO_COME):
        return finding
    is_often = seen[finding.verdict] >= MOST_OFTEN * RESAMPLES
    shares = [
        f"{name} {100 * times // RESAMPLES} %" for name, times in seen.most_common()
    ]
    return replace(
        finding,
        verdict=finding.verdict if is_often else UNDECIDED,
        certainty=f"{n} replicates or batches, resampled: {', '.join(shares)}",
    )


def derive_seed(study: str, seed: int, key: str) -> int:
    """Return the seed of a task: the same wherever and whenever it runs."""
    return int.from_bytes(
        hashlib.sha256(f"{study}\n{seed}\n{key}".encode()).digest()[:16], "big"
    )


def summarise(
    measurements: pd.DataFrame,
    paper: Mapping[tuple[str, str], float] | None = None,
    open_rows: Iterable[str] = (),
) -> pd.DataFrame:
    """Average the measurements of each row and column."""
    paper = paper or {}
    groups = measurements.groupby(["row", "column"], sort=False)["value"]
    found = groups.agg(ours="mean", standard_error="sem").reset_index()
    known = set(zip(found["row"], found["column"], strict=True))
    more = [place for place in paper if place not in known]
    more += [
        (row, column)
        for row in open_rows
        for column in found["column"].unique()
        if (row, column) not in known
    ]
    found = pd.concat(
        [found, pd.DataFrame(more, columns=["row", "column"])], ignore_index=True
    )
    return beside(found, paper)[list(COLUMNS)]


def beside(found: pd.DataFrame, paper: Mapping[tuple[str, str], float]) -> pd.DataFrame:
    """Put the figures of a paper, by row and column, beside ours; NaN where it has
    none.
    """
    return found.assign(
        paper=[
            paper.get(place, math.nan)
            for place in zip(found["row"], found["column"], strict=True)
        ]
    )


def rows_of(row: str, values: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return measurements of one row, by column."""
    return [
        {"row": row, "column": column, "value": value}
        for column, value in values.items()
    ]


type Values = Mapping[tuple[str, str], FloatArray]
"""By row and column: one value a replicate."""


def by_place(measurements: pd.DataFrame) -> Values:
    """Return the values over replicates, by row and column."""
    groups = measurements.groupby(["row", "column"], sort=False)["value"]
    return {
        (str(row), str(column)): group.to_numpy(dtype=np.float64)
        for (row, column), group in groups
    }


def by_prefix(rows: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return rows by what stands before the colon in their names, each with what
    follows it; not those without.
    """
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        prefix, colon, rest = row.partition(": ")
        if colon:
            found.setdefault(prefix, {})[row] = rest
    return found


def task_key(text: str) -> str:
    """Return a text as the key of a task: in lower case, other characters than letters
    and digits replaced.
    """
    return "".join(
        letter if letter.isalnum() or letter in "._=-" else "_"
        for letter in text.lower()
    )


def schema_beside(path: Path, study: str) -> Schema:
    """Return the schema in the file beside a table, of the same name with the ending
    .toml.
    """
    beside = path.with_suffix(".toml")
    if not beside.is_file():
        raise InputError(
            f"study {study} needs the table's schema beside it: there "
            f"is no {beside.name}"
        )
    return Schema.load(beside)
