"""What is public about one column: its levels or bounds, and how its cells are read."""

import itertools
import math
from collections import Counter
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pdips.arrays import FloatArray
from pdips.data.dates import DASHES, read_dates, spell_date, spelling
from pdips.errors import InputError

type Level = bool | int | float | str


def _as_levels(value: Any) -> tuple[Level, ...]:
    levels = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    are_plain = all(isinstance(level, (bool, int, float, str)) for level in levels)
    if not levels or not are_plain:
        raise ValueError("must be a list of at least one text, number, true or false")
    return levels


def _as_list(value: Any) -> tuple[Level, ...] | None:
    if value is None:
        return None
    return _as_levels(value if isinstance(value, (list, tuple)) else ())


def _is_ordinary(value: Level) -> bool:
    """Whether a level or code is text, a finite number, or a whole number that a double
    holds exactly.
    """
    if isinstance(value, int):
        return abs(value) < 2**53
    return isinstance(value, str) or math.isfinite(value)


def _as_missing(value: Any) -> bool | tuple[Level, ...]:
    if not isinstance(value, (bool, list, tuple)):
        raise ValueError("must be true, false, or a list of codes")
    return value if isinstance(value, bool) else _as_levels(value)


def _as_groups(value: Any) -> int | dict[str, tuple[Level, ...]]:
    if isinstance(value, dict) and value:
        return {str(name): _as_levels(levels) for name, levels in value.items()}
    if isinstance(value, bool) or not isinstance(value, int):
        value = 0
    if 1 <= value <= 1_000:
        return int(value)
    raise ValueError(
        "must be a number of first characters, 1 to 1,000, or a "
        "list of levels for each group"
    )


LevelList = Annotated[Any, BeforeValidator(_as_list)]
Levels = Annotated[Any, BeforeValidator(_as_levels)]
Missing = Annotated[Any, BeforeValidator(_as_missing)]
Groups = Annotated[Any, BeforeValidator(_as_groups)]


class Column(BaseModel):
    """One column: categorical (``levels``) or numeric (``lower``, ``upper``, and
    ``bins`` for histogram mechanisms).

    Parameters
    ----------
    levels : tuple of str, int, float or bool, optional
        All values that can occur, whether or not the table has them.
    lower, upper : float, optional
        Inclusive bounds, in ``unit``.
    bins : int, optional
        Number of bins of equal width (of equal ratio for ``scale="log"``).
    bin_edges : tuple of float, optional
        Increasing edges in place of ``bins``; bins are closed on the left, the last one
        on both sides.
    scale : {"linear", "log"}
        Whether values are spread evenly within a bin on the linear or on the log scale.
    integer : bool
        Whole numbers only.
    type : {"number", "date"}
        Of a numeric column: ``unit`` of dates is "day", "month" or "year"; bounds and
        edges are dates.
    out_of_range : {"refuse", "clip"}
        Whether a number beyond its bounds is refused, with the table, or read as the
        bound.
    trim : bool
        Whether blanks around text are taken off before it is compared with ``levels``.
    resolution : float, optional
        To what step, counted from ``lower``, posterior mechanisms read values, in
        ``unit``: the fewer distinct values there can be, the quicker they are. Not for
        integer columns.
    missing : bool or tuple of levels
        Whether a value may be missing; or the codes, beside empty cells, that mean so.
        Missing is a level of its own.
    groups : dict of str to tuple of levels, or int, optional
        Public groups of the levels of a code, each level in one; or by how many of its
        first characters a level is in which. Pairs of columns know groups, the column
        alone levels (``margins``).
    public : bool
        Known to everyone; copied as it is.
    unit, label : str, optional
        For people.
    labels : dict of str to str
        For people: what a level or missing code means.

    Examples
    --------
    >>> Column(lower=0, upper=90, bins=3, integer=True).names()
    ['0-29', '30-59', '60-90']
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    levels: LevelList = None
    lower: float | None = Field(default=None, allow_inf_nan=False, strict=True)
    upper: float | None = Field(default=None, allow_inf_nan=False, strict=True)
    bins: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] | None = None
    bin_edges: Annotated[tuple[float, ...], Field(min_length=2)] | None = None
    scale: Literal["linear", "log"] = "linear"
    integer: bool = False
    type: Literal["number", "date"] = "number"
    out_of_range: Literal["refuse", "clip"] = "refuse"
    trim: bool = False
    resolution: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    missing: Missing = False
    groups: Groups | None = None
    public: bool = False
    unit: str | None = None
    label: str | None = None
    labels: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _bounds_from_edges(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type") == "date":
            data = {"unit": "day", **data, "integer": True}
            unit = data["unit"]
            is_known = isinstance(unit, str) and unit in DASHES
            if not is_known or data.get("scale", "linear") != "linear":
                raise ValueError(
                    "the unit of dates must be 'day', 'month' or "
                    "'year', and their scale linear"
                )
            for key in ("lower", "upper", "bin_edges"):
                if key in data:
                    data[key] = read_dates(data[key], data["unit"], key)
        edges = data.get("bin_edges") if isinstance(data, dict) else None
        if isinstance(edges, (list, tuple)) and edges:
            return {"lower": edges[0], "upper": edges[-1], **data}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        numeric = self.lower is not None or self.upper is not None
        if (self.levels is not None) == numeric:
            raise ValueError("needs either levels, or lower and upper")
        if self.levels is not None:
            self._check_levels(self.levels)
        else:
            self._check_numeric()
        if self.groups is not None:
            self.grouped()
        codes = (*(self.levels or ()), *self.missing_codes)
        unknown = sorted({*self.labels}.difference(map(spelling, codes)))
        if unknown:
            raise ValueError(f"labels: {unknown[0]!r} is no level or missing code")
        return self

    def _check_levels(self, levels: tuple[Level, ...]) -> None:
        if not all(map(_is_ordinary, (*levels, *self.missing_codes))):
            raise ValueError(
                "levels and missing codes must be finite, and whole numbers below 2^53"
            )
        times = Counter(map(spelling, levels))
        twice = [level for level, n in times.items() if n > 1]
        if twice:
            raise ValueError(
                f"levels must differ from each other, and {twice[0]!r} is there twice"
            )
        if len(set(map(_sort_of, levels))) > 1:
            raise ValueError(
                "levels must be all text, all numbers, or all true and false"
            )
        fold = str.lower if isinstance(levels[0], bool) else str
        spelt = {fold(spelling(level)) for level in levels}
        if any(fold(spelling(code)) in spelt for code in self.missing_codes):
            raise ValueError("a missing code can't be a level too")
        is_cut = self.bins or self.bin_edges or self.resolution
        if is_cut or self.integer or self.scale != "linear":
            raise ValueError(
                "bins, bin_edges, scale, integer and resolution belong to numeric "
                "columns, not beside levels"
            )
        if self.out_of_range != "refuse" or self.type != "number":
            raise ValueError(
                "out_of_range and type belong to numeric columns: a "
                "level can't be moved to another"
            )
        if self.trim and not all(map(_is_trimmed, levels)):
            raise ValueError("trim needs levels of text without blanks around it")

    def _check_numeric(self) -> None:
        if self.trim:
            raise ValueError(
                "trim belongs to levels of text; numbers are read "
                "whatever blanks are around them"
            )
        if self.lower is None or self.upper is None or not self.lower < self.upper:
            raise ValueError("lower and upper must both be given, lower below upper")
        largest = 2**53 if self.integer else 1e100
        if max(abs(self.lower), abs(self.upper)) > largest:
            raise ValueError(
                "lower and upper must be within 1e100 of 0, those of an "
                "integer column within 2^53"
            )
        codes = [code for code in self.missing_codes if not isinstance(code, str)]
        are_whole = all(code % 1 == 0 for code in codes)
        if not all(map(_is_ordinary, codes)) or (self.integer and not are_whole):
            raise ValueError(
                "missing codes must be finite, and whole numbers in an integer column"
            )
        if self.scale == "log" and self.lower <= 0:
            raise ValueError("scale = 'log' needs lower above 0")
        if self.integer and not (self.lower.is_integer() and self.upper.is_integer()):
            raise ValueError("an integer column needs whole lower and upper")
        widest = 0.0 if self.integer else self.upper - self.lower
        if self.resolution and self.resolution > widest:
            raise ValueError(
                "resolution belongs to numeric columns that aren't "
                "integer, and is at most upper - lower"
            )
        if self.bins and self.bin_edges:
            raise ValueError("give bins or bin_edges, not both")
        edges = self.bin_edges or (self.lower, self.upper)
        if (edges[0], edges[-1]) != (self.lower, self.upper):
            raise ValueError("bin_edges must start at lower and end at upper")
        if self.is_binned:
            if self.integer and not all(edge.is_integer() for edge in edges):
                raise ValueError("bin_edges of an integer column must be whole numbers")
            if not (np.diff(self.edges) > 0).all():
                raise ValueError(self._empty_bins())

    def _empty_bins(self) -> str:
        """Say which bins are empty, or out of order, and what to do."""
        steps = np.diff(self.edges)
        [wrong] = np.nonzero(steps <= 0)
        if self.bin_edges or not self.integer:
            edge = int(wrong[0]) + 2
            return (
                f"bin_edges must increase, and number {edge} isn't above the one before"
            )
        n_whole = int(self.edges[-1] - self.edges[0])
        shown = ", ".join(str(number + 1) for number in wrong[:3])
        more = ", ..." if len(wrong) > 3 else ""
        return (
            f"every bin of an integer column must hold a whole number, and "
            f"{len(wrong)} of {len(steps)} don't (number {shown}{more}); use fewer "
            f"bins, at most {n_whole}"
        )

    def made_public(self, name: str) -> Self:
        """Return the column, which is called ``name``, as one that is public; refuse
        one of which the schema says that it isn't.
        """
        if not self.public and "public" in self.model_fields_set:
            raise InputError(
                f"public names {name!r}, and the schema says public = false of it: "
                f"take one of the two away"
            )
        return self.model_copy(update={"public": True})

    @property
    def is_categorical(self) -> bool:
        """Whether the column has levels rather than bounds."""
        return self.levels is not None

    @property
    def is_binned(self) -> bool:
        """Whether the column is numeric and cut into bins."""
        return self.bins is not None or self.bin_edges is not None

    @property
    def missing_codes(self) -> tuple[Level, ...]:
        """The codes, beside empty cells, that mean a missing value."""
        return () if isinstance(self.missing, bool) else tuple(self.missing)

    @property
    def n_values(self) -> int:
        """Number of levels or bins, not counting missing."""
        if self.levels is not None:
            return len(self.levels)
        if not self.is_binned:
            raise InputError(
                "a numeric column has no levels until bins or bin_edges are given"
            )
        return self.bins or len(self.edges) - 1

    @property
    def n_levels(self) -> int:
        """Number of levels or bins, with missing as the last one where it may occur."""
        return self.n_values + bool(self.missing)

    @property
    def edges(self) -> FloatArray:
        """Bin edges, shape (bins + 1,); those of an integer column end at ``upper +
        1``: its bins are half-open.
        """
        lower = self.lower or 0.0
        upper = self.upper or 0.0
        end = upper + 1 if self.integer else upper
        if self.bin_edges:
            return np.array([*self.bin_edges[:-1], end])
        spaced = np.geomspace if self.scale == "log" else np.linspace
        edges = np.asarray(spaced(lower, end, (self.bins or 1) + 1))
        edges[0] = lower
        edges[-1] = end
        return np.floor(edges) if self.integer else edges

    def grouped(self) -> tuple[list[str], list[int]]:
        """Return the names of the groups, and the group of each level; missing comes
        last, as a group of its own.
        """
        if self.levels is None:
            raise ValueError("groups belong to levels, not to numeric columns")
        groups = self._groups([spelling(level) for level in self.levels])
        number_of = {spelling(level): -1 for level in self.levels}
        for number, members in enumerate(groups.values()):
            for level in members:
                if number_of.get(level) != -1:
                    wrong = "named twice" if level in number_of else "no level"
                    raise ValueError(f"groups: {level!r} is {wrong}")
                number_of[level] = number
        for level, number in number_of.items():
            if number < 0:
                raise ValueError(f"groups: level {level!r} is in none")
        of_missing = [len(groups)] if self.missing else []
        return list(groups), [*number_of.values(), *of_missing]

    def _groups(self, levels: list[str]) -> dict[str, list[str]]:
        """Return the levels in each group, as the schema names them, or by their first
        characters.
        """
        groups: Any = self.groups
        if isinstance(groups, dict):
            return {name: [*map(spelling, some)] for name, some in groups.items()}
        named = dict[str, list[str]]()
        for level in levels:
            # without groups each level is one
            if groups is not None and len(level) < groups:
                raise ValueError(
                    f"groups: level {level!r} has fewer than {groups} characters"
                )
            named.setdefault(level[:groups], []).append(level)
        return named

    def names(self) -> list[str]:
        """Return what to call each level or bin in tables and pictures."""
        if self.levels is not None:
            names = [str(level) for level in self.levels]
        elif self.integer:
            ends = itertools.pairwise(self.edges)
            names = [self._spell_bin(first, beyond - 1) for first, beyond in ends]
        else:
            names = [f"{a:g} to {b:g}" for a, b in itertools.pairwise(self.edges)]
        return [*names, "missing"] if self.missing else names

    def _spell_bin(self, first: float, last: float) -> str:
        if first == last:
            return self.spell(first)
        to = " to " if self.type == "date" else "-"
        return f"{self.spell(first)}{to}{self.spell(last)}"

    def shown(self) -> list[str]:
        """Return :meth:`names` with their labels, for people."""
        return [
            f"{name} {self.labels[name]}" if name in self.labels else name
            for name in self.names()
        ]

    def span(self) -> str:
        """Return the bounds and bins of a numeric column in words."""
        kind = "whole numbers" if self.integer else "numbers"
        unit = f" {self.unit}" if self.unit else ""
        if self.type == "date":
            kind = "dates"
            unit = f", by {self.unit}"
        lower = self.spell(self.lower or 0)
        upper = self.spell(self.upper or 0)
        span = f"{kind} from {lower} to {upper}{unit}"
        if self.is_binned:
            plural = "s" if self.n_values > 1 else ""
            span += f", in {self.n_values:,} bin{plural}"
        if self.bins:
            about = "about " if self.integer else ""
            log = " on the log scale" if self.scale == "log" else ""
            span += f" of {about}equal width{log}"
        if self.out_of_range == "clip":
            span += "; values beyond the bounds count as the nearest bound"
        return span

    def spell(self, value: float) -> str:
        """Return a bound or an edge as people write it, a date as a date."""
        if self.type == "date":
            return spell_date(value, self.unit)
        return f"{value:.0f}" if self.integer else f"{value:.12g}"


def _sort_of(level: Level) -> type:
    """Return what a level is: text, true or false, or a number, whole or not."""
    if isinstance(level, bool):
        return bool
    return str if isinstance(level, str) else float


def _is_trimmed(level: Level) -> bool:
    return isinstance(level, str) and level == level.strip() != ""


def has_number_levels(column: Column) -> bool:
    """Whether all levels are numbers (true and false aren't)."""
    return column.levels is not None and _sort_of(column.levels[0]) is float
