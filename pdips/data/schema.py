"""What is public about a table: its columns, their levels or bounds, and which combinations can't occur.

A schema is written by a person from public knowledge. Nothing in it may be read off the confidential table.
"""

import difflib
import itertools
import math
import tomllib
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from pdips.arrays import FloatArray
from pdips.errors import InputError

type Level = bool | int | float | str


def _as_levels(value: Any) -> tuple[Level, ...]:
    levels = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not levels or not all(isinstance(level, (bool, int, float, str)) for level in levels):
        raise ValueError("must be a list of at least one text, number, true or false")
    return levels


def _as_list(value: Any) -> tuple[Level, ...] | None:
    if value is not None and not isinstance(value, (list, tuple)):
        raise ValueError("must be a list of at least one text, number, true or false")
    return None if value is None else _as_levels(value)


def _is_ordinary(value: Level) -> bool:
    """Whether a level or code is text, a finite number, or a whole number that a double holds exactly."""
    return not isinstance(value, (int, float)) or abs(value) < (2**53 if isinstance(value, int) else math.inf)


def spelling(value: object) -> str:
    """Spell a level, or a cell that is compared with levels, by itself: 9 and 9.0 are one, True and 1 aren't."""
    return str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else str(value)


def _as_missing(value: Any) -> bool | tuple[Level, ...]:
    if not isinstance(value, (bool, list, tuple)):
        raise ValueError("must be true, false, or a list of codes")
    return value if isinstance(value, bool) else _as_levels(value)


LevelList = Annotated[Any, BeforeValidator(_as_list)]
Levels = Annotated[Any, BeforeValidator(_as_levels)]
Missing = Annotated[Any, BeforeValidator(_as_missing)]

DRAFT_MARK = "# DRAFT."
DRAFT_WARNING = f"""\
{DRAFT_MARK} Levels and bounds below were READ OFF THE CONFIDENTIAL TABLE: that is a leak, and no epsilon pays for it.
# Replace every one by what is publicly known (the questionnaire, the code book, the law), then delete the line above:
# as long as it is there, no command takes this schema.
"""
DRAFT_HINT = """\
# Also to be said, where true: [records] person = "...", max_per_person = 2; missing = true or [codes]; public = true;
# [[impossible]] combinations of levels. docs/schema.md has them all.
"""


class Column(BaseModel):
    """One column: categorical (``levels``) or numeric (``lower``, ``upper``, and ``bins`` for histogram mechanisms).

    Parameters
    ----------
    levels : tuple of str, int, float or bool, optional
        All values that can occur, whether or not the table has them.
    lower, upper : float, optional
        Inclusive bounds, in ``unit``.
    bins : int, optional
        Number of bins of equal width (of equal ratio for ``scale="log"``).
    bin_edges : tuple of float, optional
        Increasing edges in place of ``bins``; bins are closed on the left, the last one on both sides.
    scale : {"linear", "log"}
        Whether values are spread evenly within a bin on the linear or on the log scale.
    integer : bool
        Whole numbers only.
    resolution : float, optional
        To what step, counted from ``lower``, posterior mechanisms read values, in ``unit``: the fewer distinct values
        there can be, the quicker they are. Not for integer columns.
    missing : bool or tuple of levels
        Whether a value may be missing; or the codes, beside empty cells, that mean so. Missing is a level of its own.
    public : bool
        Known to everyone; copied as it is.
    unit, label : str, optional
        For people.

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
    resolution: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    missing: Missing = False
    public: bool = False
    unit: str | None = None
    label: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _bounds_from_edges(cls, data: Any) -> Any:
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
        return self

    def _check_levels(self, levels: tuple[Level, ...]) -> None:
        if not all(_is_ordinary(value) for value in (*levels, *self.missing_codes)):
            raise ValueError("levels and missing codes must be finite, and whole numbers below 2^53")
        if len({spelling(level) for level in levels}) < len(levels):
            raise ValueError("levels must differ from each other")
        if len({str if isinstance(level, str) else bool if isinstance(level, bool) else float for level in levels}) > 1:
            raise ValueError("levels must be all text, all numbers, or all true and false")
        fold = str.lower if isinstance(levels[0], bool) else str
        if {fold(spelling(code)) for code in self.missing_codes} & {fold(spelling(level)) for level in levels}:
            raise ValueError("a missing code can't be a level too")
        if self.bins or self.bin_edges or self.integer or self.resolution or self.scale != "linear":
            raise ValueError(
                "bins, bin_edges, scale, integer and resolution belong to numeric columns, not beside levels"
            )

    def _check_numeric(self) -> None:
        if self.lower is None or self.upper is None or not self.lower < self.upper:
            raise ValueError("lower and upper must both be given, lower below upper")
        if max(abs(self.lower), abs(self.upper)) > (2**53 if self.integer else 1e100):
            raise ValueError("lower and upper must be within 1e100 of 0, those of an integer column within 2^53")
        codes = [code for code in self.missing_codes if not isinstance(code, str)]
        if not all(_is_ordinary(code) and (not self.integer or code == int(code)) for code in codes):
            raise ValueError("missing codes must be finite, and whole numbers in an integer column")
        if self.scale == "log" and self.lower <= 0:
            raise ValueError("scale = 'log' needs lower above 0")
        if self.integer and not (self.lower.is_integer() and self.upper.is_integer()):
            raise ValueError("an integer column needs whole lower and upper")
        if self.resolution and (self.integer or self.resolution > self.upper - self.lower):
            raise ValueError("resolution belongs to numeric columns that aren't integer, and is at most upper - lower")
        if self.bins and self.bin_edges:
            raise ValueError("give bins or bin_edges, not both")
        if self.bin_edges and (self.bin_edges[0] != self.lower or self.bin_edges[-1] != self.upper):
            raise ValueError("bin_edges must start at lower and end at upper")
        if self.is_binned:
            if self.integer and self.bin_edges and not all(edge.is_integer() for edge in self.bin_edges):
                raise ValueError("bin_edges of an integer column must be whole numbers")
            few = "every bin of an integer column must hold a whole number; use fewer bins"
            if not (np.diff(self.edges) > 0).all():
                raise ValueError(few if self.integer else "bin_edges must increase")

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
            raise InputError("a numeric column has no levels until bins or bin_edges are given")
        return self.bins or len(self.edges) - 1

    @property
    def n_levels(self) -> int:
        """Number of levels or bins, with missing as the last one where it may occur."""
        return self.n_values + bool(self.missing)

    @property
    def edges(self) -> FloatArray:
        """Bin edges, shape (bins + 1,); those of an integer column end at ``upper + 1``: its bins are half-open."""
        lower, upper = self.lower or 0.0, self.upper or 0.0
        end = upper + 1 if self.integer else upper
        if self.bin_edges:
            return np.array([*self.bin_edges[:-1], end])
        n_bins = self.bins or 1
        edges = np.geomspace(lower, end, n_bins + 1) if self.scale == "log" else np.linspace(lower, end, n_bins + 1)
        edges[0], edges[-1] = lower, end
        return np.floor(edges) if self.integer else edges

    def names(self) -> list[str]:
        """Return what to call each level or bin in tables and pictures."""
        if self.levels is not None:
            found = [str(level) for level in self.levels]
        elif self.integer:
            edges = self.edges.astype(int)
            found = [f"{a}" if b - a == 1 else f"{a}-{b - 1}" for a, b in itertools.pairwise(edges)]
        else:
            found = [f"{a:g} to {b:g}" for a, b in itertools.pairwise(self.edges)]
        return [*found, "missing"] if self.missing else found


class Records(BaseModel):
    """How many records one person may have; the price of a release counts persons.

    Parameters
    ----------
    person : str, optional
        Column of the table that says whose record it is. It is checked against the cap and never synthesized; a record
        without one counts as a person of its own.
    max_per_person : int
        Public cap on the records of one person.
    weight : str, optional
        Numeric column, not below 0, that says for how many of the population a record stands. It is synthesized like
        any other; evaluation weights records by it where it can.

    Examples
    --------
    >>> Records(person="id", max_per_person=2).max_per_person
    2
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    person: str | None = None
    max_per_person: Annotated[int, Field(ge=1, strict=True)] = 1
    weight: str | None = None


class Schema(BaseModel):
    """All that is public about a table.

    Parameters
    ----------
    columns : dict of str to Column
        In the order in which synthetic tables have them.
    records : Records
        Cap on the records of one person.
    impossible : tuple of dict
        Structural zeros: each names levels of two or more categorical columns that can't occur together.
    title : str, optional
        For people.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"]), "age": Column(lower=18, upper=99, bins=9)})
    >>> schema.columns["age"].n_levels
    9
    >>> list(Schema.load("examples/youth.toml").columns)[:3]
    ['age', 'sex', 'race']
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: Annotated[dict[str, Column], Field(min_length=1)]
    records: Records = Records()
    impossible: tuple[dict[str, Levels], ...] = ()
    title: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.records.person in self.columns:
            raise ValueError("records.person names a column that would be synthesized; take it out of columns")
        self._check_weight(self.records.weight)
        for rule in self.impossible:
            self._check_rule(rule)
        return self

    def _check_weight(self, name: str | None) -> None:
        if name is None:
            return
        column = self.columns.get(name)
        if column is None:
            raise ValueError(f"records.weight: {name!r} is no column of this schema{_hint(name, self.columns)}")
        if column.levels is not None or column.missing or (column.lower or 0) < 0:
            raise ValueError(f"records.weight: {name!r} must be numeric, its lower at least 0, and never missing")

    def _check_rule(self, rule: Mapping[str, tuple[Level, ...]]) -> None:
        for name, wanted in rule.items():
            column = self.columns.get(name)
            if column is None:
                raise ValueError(f"impossible: {name!r} is no column of this schema{_hint(name, self.columns)}")
            if column.levels is None:
                raise ValueError(f"impossible: column {name!r} is numeric; structural zeros name levels")
            for level in wanted:
                if level not in column.levels:
                    raise ValueError(f"impossible: {level!r} is no level of column {name!r}")
        if len(rule) < 2:
            raise ValueError("impossible: a rule must name two columns or more; leave out a level that can't occur")

    @property
    def public_columns(self) -> tuple[str, ...]:
        """Names of the columns that are known to everyone."""
        return tuple(name for name, column in self.columns.items() if column.public)

    def without_person(self) -> Self:
        """Return the schema of synthetic sets, which have no person key."""
        return self.model_copy(update={"records": Records(weight=self.records.weight)})

    def rule_codes(self, rule: Mapping[str, tuple[Level, ...]]) -> dict[str, list[int]]:
        """Return a structural zero as codes of levels."""
        return {name: [self.columns[name].levels.index(level) for level in levels] for name, levels in rule.items()}

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a schema from a TOML file.

        Raises
        ------
        InputError
            If the file can't be read, is still a draft, or says something that a schema can't; the message names the
            key.
        """
        try:
            return cls.from_toml(Path(path).read_text(encoding="utf-8"), source=str(path))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise InputError(f"can't read schema {path}: {reason}") from None

    @classmethod
    def from_toml(cls, text: str, *, source: str = "schema") -> Self:
        """Read a schema from TOML text, but no draft; ``source`` is what messages call it."""
        if any(line.strip().startswith(DRAFT_MARK) for line in text.splitlines()):
            raise InputError(
                f"{source} is still a draft: its levels and bounds were read off the table. Replace every one by what "
                f"is publicly known, then delete the line that begins with {DRAFT_MARK!r}"
            )
        try:
            return cls.model_validate(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{source} is no valid TOML: {error}") from None
        except ValidationError as error:
            raise InputError(f"{source}: {_one_line(error)}") from None

    def to_toml(self) -> str:
        """Return the schema as TOML text that :meth:`from_toml` reads back."""
        return tomli_w.dumps(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as plain values, defaults left out."""
        return self.model_dump(exclude_defaults=True, mode="json")

    @classmethod
    def draft(cls, frame: pd.DataFrame, *, most_levels: int = 50) -> str:
        """Return the TOML text of a first guess at a schema, for a person to correct.

        Levels and bounds are read off the table. If it is confidential that is a leak: the text says so at its top, and
        :meth:`from_toml` refuses it until that line is deleted.

        Parameters
        ----------
        frame : DataFrame
            The table.
        most_levels : int
            A numeric column with more different values than this is drafted with bounds and bins.
        """
        keys = [  # text with too many different values to be levels that anybody could list
            str(name)
            for name, values in frame.items()
            if not pd.api.types.is_numeric_dtype(values) and values.nunique() > most_levels
        ]
        columns = {
            str(name): _draft_column(frame[name], most_levels) for name in frame.columns if str(name) not in keys
        }
        note = "".join(
            f"# {name}: many different texts; if it says whose record it is: [records] person\n" for name in keys
        )
        return f"{DRAFT_WARNING}{note}{DRAFT_HINT}\n{tomli_w.dumps({'columns': columns})}"


def _draft_column(values: pd.Series, most_levels: int) -> dict[str, Any]:
    known = values.dropna()
    drafted: dict[str, Any] = {"missing": True} if len(known) < len(values) else {}
    unique: list[Hashable] = sorted(known.unique().tolist(), key=lambda value: (str(type(value)), value))
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if not numeric or not len(unique):
        return {"levels": [v if isinstance(v, (bool, int)) else str(v) for v in unique] or ["?"], **drafted}
    whole = bool((known % 1 == 0).all())
    if whole and len(unique) <= most_levels and max(unique) - min(unique) < most_levels:  # type: ignore[operator, type-var]
        return {"levels": [int(v) for v in unique], **drafted}  # type: ignore[call-overload]
    lower, upper = float(known.min()), float(known.max())
    bins = int(min(20, upper - lower + 1)) if whole else 20
    if lower == upper:
        upper = lower + 1
    return {"lower": lower, "upper": upper, "bins": bins, **({"integer": True} if whole else {}), **drafted}


def _hint(name: str, known: Iterable[str]) -> str:
    """Return a guess at what a misspelt name was meant to be."""
    spelt = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), spelt, n=1)
    return f" (did you mean {spelt[close[0]]!r}?)" if close else ""


def _one_line(error: ValidationError) -> str:
    """Return one complaint of pydantic, an unknown key before all others, as a line that names the key."""
    first = min(error.errors(), key=lambda complaint: complaint["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        models: dict[str, type[BaseModel]] = {"columns": Column, "records": Records}
        known = models.get(str(first["loc"][0]), Schema) if len(first["loc"]) > 1 else Schema
        return f"{where}: unknown key{_hint(str(first['loc'][-1]), known.model_fields)}"
    message = first["msg"].removeprefix("Value error, ").replace("Tuple", "List").replace("tuple", "list")
    return f"{where}: {message}" if where else message
