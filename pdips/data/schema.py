"""What is public about a table: its columns, their levels or bounds, and which
combinations can't occur.

A schema is written by a person from public knowledge. Nothing in it may be read off the
confidential table.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pandas as pd
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pdips.data.analyses import DeclaredAnalysis
from pdips.data.column import Column as Column
from pdips.data.column import Level, Levels
from pdips.data.column import has_number_levels as has_number_levels
from pdips.data.draft import DRAFT_MARK, draft
from pdips.data.households import Members
from pdips.data.rules import Codes, Rule, barred
from pdips.data.totals import KnownTable, Total, known_tables, raked, read_counts
from pdips.errors import InputError, hint
from pdips.html import columns_table

TOO_DEEP = "values are nested too deeply"
MOST_DEEP = 50  # Tables and lists within each other; counts of totals are deepest


class Records(BaseModel):
    """How many records one person may have; the price of a release counts persons.

    Parameters
    ----------
    person : str, optional
        Column of the table that says whose record it is. It is checked against the cap
        and never synthesized; a record without one counts as a person of its own.
    max_per_person : int
        Public cap on the records of one person.
    weight : str, optional
        Numeric column, not below 0, that says for how many of the population a record
        stands. It is synthesized like any other; evaluation weights records by it where
        it can.

    Examples
    --------
    >>> Records(person="id", max_per_person=2).max_per_person
    2
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    person: str | None = None
    max_per_person: Annotated[int, Field(ge=1, le=1_000_000_000, strict=True)] = 1
    weight: str | None = None


class TextFormat(BaseModel):
    """How a ``.csv`` file is written.

    Parameters
    ----------
    separator : {",", ";", "\\t"}, optional
        Between cells. Left out: the first of these that separates names in the first
        line.
    decimal : {".", ","}
        The mark before the decimals of a number. The other mark is then no part of a
        number.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    separator: Literal[",", ";", "\t"] | None = None
    decimal: Literal[".", ","] = "."


class Schema(BaseModel):
    """All that is public about a table.

    Parameters
    ----------
    columns : dict of str to Column
        In the order in which synthetic tables have them.
    records : Records
        Cap on the records of one person.
    members : Members, optional
        What a household has beside the columns: then a record is a household, and
        columns of its members, numbered, are added to ``columns``.
    impossible : tuple of dict
        Structural zeros: each names levels of two or more categorical columns that
        can't occur together.
    rule : tuple of Rule
        What every record must be: skip patterns, and numbers in order.
    total : tuple of Total
        Counts that everyone knows and sets meet: no part of the price.
    analysis : tuple of DeclaredAnalysis
        Regressions that ``pdips synthesize`` answers beside the sets, with half of the
        budget.
    ignore : bool or tuple of str
        Columns of the table that are left out; true: all that aren't in ``columns``.
    csv : TextFormat
        How text files are written.
    title : str, optional
        For people.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "age": Column(lower=18, upper=99, bins=9),
    ...     }
    ... )
    >>> schema.columns["age"].n_levels
    9
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: Annotated[dict[str, Column], Field(min_length=1)]
    records: Records = Records()
    members: Members | None = None
    impossible: tuple[dict[str, Levels], ...] = ()
    rule: tuple[Rule, ...] = ()
    total: tuple[Total, ...] = ()
    analysis: tuple[DeclaredAnalysis, ...] = ()
    ignore: bool | tuple[str, ...] = ()
    csv: TextFormat = TextFormat()
    title: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for text in _texts(self.model_dump()):
            if not _is_unicode(text):
                raise ValueError(
                    f"{text!r} is no Unicode text, which no file could hold: it has "
                    f"half of a surrogate pair"
                )
        if self.members is not None:
            self._add_members(self.members)
        if self.records.person in self.columns:
            raise ValueError(
                "records.person names a column that would be "
                "synthesized; take it out of columns"
            )
        for name in self.ignore if isinstance(self.ignore, tuple) else ():
            if name in self.columns or name == self.records.person:
                raise ValueError(
                    f"ignore: {name!r} is a column of this schema; take "
                    f"it out of one of the two"
                )
        for name, column in self.columns.items():
            clash = f"{name}_groups"
            if column.groups is not None and clash in self.columns:
                raise ValueError(
                    f"columns.{name}.groups: rename the column {clash!r}, for noisy "
                    f"margins call groups so"
                )
        self._check_weight(self.records.weight)
        for rule in self.impossible:
            self._check_rule(rule)
        self.known_totals()
        return self

    def _add_members(self, members: Members) -> None:
        slots = members.slots()
        for name in (members.key, *slots):
            if name in self.columns and self.columns[name] != slots.get(name):
                raise ValueError(
                    f"members: {name!r} can't be a column of households; take it "
                    f"out, or rename one of the two"
                )
        has_persons = self.records.person or self.records.max_per_person > 1
        if has_persons or self.public_columns:
            raise ValueError(
                "members: a household is one record; no records.person, no cap on "
                "records, no public column"
            )
        for total in self.total:
            of_members = [name for name in total.columns if name in slots]
            if of_members:
                raise ValueError(
                    f"total: {of_members[0]!r} is of members; public totals "
                    f"count columns of households"
                )
        object.__setattr__(self, "columns", self.columns | slots)

    def _check_weight(self, name: str | None) -> None:
        if name is None:
            if any(total.weighted for total in self.total):
                raise ValueError(
                    "total: weighted = true needs the column of weights, records.weight"
                )
            return
        column = self.columns.get(name)
        if column is None:
            raise ValueError(
                f"records.weight: {name!r} is no column of this "
                f"schema{hint(name, self.columns)}"
            )
        is_known_number = column.levels is None and not column.missing
        if not is_known_number or (column.lower or 0) < 0:
            raise ValueError(
                f"records.weight: {name!r} must be numeric, its lower "
                f"at least 0, and never missing"
            )
        weighted = [total for total in self.total if total.weighted]
        is_counted = any(name in total.columns for total in weighted)
        if is_counted or (weighted and column.integer):
            raise ValueError(
                f"weighted totals change the weight {name!r}: it can't be integer, "
                f"nor one of their columns"
            )

    def _check_rule(self, rule: Mapping[str, tuple[Level, ...]]) -> None:
        for name, wanted in rule.items():
            column = self.columns.get(name)
            if column is None:
                raise ValueError(
                    f"impossible: {name!r} is no column of this "
                    f"schema{hint(name, self.columns)}"
                )
            if column.levels is None:
                raise ValueError(
                    f"impossible: column {name!r} is numeric; "
                    f"structural zeros name levels"
                )
            for level in wanted:
                if level not in column.levels:
                    raise ValueError(
                        f"impossible: {level!r} is no level of column "
                        f"{name!r}{hint(level, map(str, column.levels))}"
                    )
        if len(rule) < 2:
            raise ValueError(
                "impossible: a rule must name two columns or more; "
                "leave out a level that can't occur"
            )

    def __init__(self, **data: Any) -> None:
        if _is_deep(data):
            raise InputError(TOO_DEEP)
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise InputError(_one_line(error)) from None

    _repr_html_ = columns_table

    @property
    def public_columns(self) -> tuple[str, ...]:
        """Names of the columns that are known to everyone."""
        return tuple(name for name, column in self.columns.items() if column.public)

    @property
    def unit(self) -> str:
        """What is protected together, as texts call it: a person, or a household with
        its members.
        """
        return "person" if self.members is None else "household"

    def refuse_rules(self) -> None:
        """Refuse rules on records, for models, which know nothing of them."""
        kinds = ["a [[rule]]"] if self.rule else []
        if self.impossible:
            kinds.append("[[impossible]] combinations")
        if kinds:
            advice = (
                "it would break them; take steps, or describe the combined "
                "column by one column with levels"
            )
            raise InputError(
                f"the schema has {' and '.join(kinds)}, of which a model knows "
                f"nothing: {advice}"
            )

    def plain(self) -> Self:
        """Return the schema of sets without their rules: to read sets that may break
        them.
        """
        return self.without_person().model_copy(update={"impossible": (), "rule": ()})

    def has_commas(self, column: Column) -> bool:
        """Whether text in a column may be numbers with decimal commas."""
        return self.csv.decimal == "," and (
            not column.is_categorical or has_number_levels(column)
        )

    def without_person(self) -> Self:
        """Return the schema of synthetic sets, which have no person key and are written
        as pdips writes tables.
        """
        return self.model_copy(
            update={
                "records": Records(weight=self.records.weight),
                "members": None,
                "ignore": (),
                "csv": TextFormat(separator=","),
            }
        )

    def with_known_weights(self, sets: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
        """Return sets whose weights meet the weighted totals that are public."""
        totals = self.known_totals(weighted=True)
        if not totals:
            return [*sets]
        weight = str(self.records.weight)
        return [raked(frame, weight, totals, self.columns) for frame in sets]

    def of_members(self) -> Self:
        """Return the schema of the table of members, which may repeat columns of
        households.
        """
        members: Any = self.members
        ignored = {members.key, *self.columns}
        if isinstance(self.ignore, tuple):
            ignored |= {*self.ignore}
        others = tuple(sorted(ignored - {*members.columns}))
        return type(self)(
            columns=members.columns,
            ignore=self.ignore is True or others,
            csv=self.csv,
        )

    def only(self, names: Iterable[str]) -> Self:
        """Return the schema of some of the columns, in its order, with the rules on
        these alone; others are ignored.
        """
        chosen = {*names}
        content = self.to_dict() | {"ignore": True}
        parts = [content, content["members"]] if self.members else [content]
        described = {name for part in parts for name in part["columns"]}
        for name in sorted(chosen - described):
            raise InputError(
                f"{name!r} is no column of the schema{hint(name, described)}"
            )
        for part in parts:
            columns = part["columns"].items()
            part["columns"] = {name: of for name, of in columns if name in chosen}
        for key in ("impossible", "rule", "total"):
            entries = content.get(key, [])
            content[key] = [one for one in entries if chosen >= _columns_of(key, one)]
        return self._checked(content, "the schema of these columns")

    def known(self, public: Sequence[str]) -> Self:
        """Return the schema in which further columns are public.

        Raises
        ------
        InputError
            If one is no column, or the schema says that it isn't public.

        Examples
        --------
        >>> schema = Schema(columns={"age": Column(lower=18, upper=99)})
        >>> schema.known(["age"]).public_columns
        ('age',)
        """
        columns = dict(self.columns)
        for name in [public] if isinstance(public, str) else public:
            if name not in columns:
                raise InputError(
                    f"public names {name!r}, which is no column of the "
                    f"schema{hint(name, columns)}"
                )
            columns[name] = columns[name].made_public(name)
        return self.model_copy(update={"columns": columns})

    def known_totals(self, *, weighted: bool | None = None) -> tuple[KnownTable, ...]:
        """Return the totals as arrays, in an order in which they can be met: all, or
        those that are weighted or not.
        """
        tables = known_tables(self.total, self.columns, self.zeros())
        return tuple(table for table in tables if weighted in (None, table.weighted))

    def zeros(self) -> list[Codes]:
        """Return all structural zeros as codes of levels and bins: impossible
        combinations, and what rules bar.
        """
        zeros = list[Codes]()
        for combination in self.impossible:
            codes: Codes = {}
            for name, barred_levels in combination.items():
                levels = self.columns[name].levels
                codes[name] = [levels.index(level) for level in barred_levels]
            zeros.append(codes)
        return [*zeros, *barred(self.rule, self.columns)]

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a schema from a TOML file; the path of a column's ``levels_file`` is
        from its folder.

        Raises
        ------
        InputError
            If the file can't be read, is still a draft, or says something that a schema
            can't; the message names the key.
        """
        try:
            return cls.from_toml(
                Path(path).read_text(encoding="utf-8"),
                source=str(path),
                folder=Path(path).parent,
            )
        except InputError:
            raise
        except OSError as error:
            reason = error.strerror
        except ValueError:  # no text, or a path with a NUL
            reason = "it is no UTF-8 text"
        raise InputError(f"can't read schema {path}: {reason}")

    @classmethod
    def from_toml(
        cls, text: str, *, source: str = "schema", folder: str | Path = "."
    ) -> Self:
        """Read a schema from TOML text, but no draft; ``source`` is what messages call
        it.
        """
        if any(line.strip().startswith(DRAFT_MARK) for line in text.splitlines()):
            raise InputError(
                f"{source} is still a draft: its levels and bounds were read off the "
                f"table. Replace every one by what "
                f"is publicly known, then delete the line that begins with "
                f"{DRAFT_MARK!r}"
            )
        content = _read_toml(text, source)
        _take_levels(content, folder)
        members = content.get("members")
        if isinstance(members, dict):
            _take_levels(members, folder)
        totals = content.get("total", [])
        for total in totals if isinstance(totals, list) else ():
            if isinstance(total, dict) and "file" in total:
                _take_counts(total, folder, source)
        return cls._checked(content, source)

    @classmethod
    def _checked(cls, content: Mapping[str, Any], source: str) -> Self:
        if _is_deep(content):
            raise InputError(f"{source}: {TOO_DEEP}")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise InputError(f"{source}: {_one_line(error)}") from None

    def to_toml(self) -> str:
        """Return the schema as TOML text that :meth:`from_toml` reads back."""
        return tomli_w.dumps(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as plain values, defaults left out."""
        content = self.model_dump(exclude_defaults=True, mode="json", by_alias=True)
        _spell_dates(content["columns"], self.columns)
        if self.members is not None:
            _spell_dates(content["members"]["columns"], self.members.columns)
            for name in self.members.places:
                del content["columns"][name]
        return content

    @classmethod
    def draft(cls, frame: pd.DataFrame, *, most_levels: int = 50) -> str:
        """Return the TOML text of a first guess at a schema, for a person to correct.

        Levels and bounds are read off the table. If it is confidential that is a leak:
        the text says so at its top, and :meth:`from_toml` refuses it until that line is
        deleted.

        Parameters
        ----------
        frame : DataFrame
            The table.
        most_levels : int
            A column of text, or of whole numbers named like codes, with more different
            values has no levels.
        """
        return draft(frame, most_levels)


def _columns_of(key: str, entry: Mapping[str, Any]) -> set[str]:
    """Return the columns that an entry of a schema's list names."""
    if key == "impossible":
        return {*entry}
    if key == "total":
        return {*entry["columns"]}
    return {name for part in entry.values() for name in part}


def _spell_dates(content: dict[str, Any], columns: Mapping[str, Column]) -> None:
    """Spell the bounds and edges of date columns as dates."""
    for name, values in content.items():
        column = columns[name]
        if column.type != "date":
            continue
        for key in {"lower", "upper"} & {*values}:
            values[key] = column.spell(values[key])
        if "bin_edges" in values:
            values["bin_edges"] = [column.spell(edge) for edge in values["bin_edges"]]


def _take_levels(content: Mapping[str, Any], folder: str | Path) -> None:
    """Put the levels in a column's ``levels_file`` in its place."""
    columns = content.get("columns")
    if not isinstance(columns, dict):
        return
    for name, column in columns.items():
        if isinstance(column, dict) and "levels_file" in column:
            key = f"columns.{name}.levels_file"
            path = _beside(folder, column.pop("levels_file"), key)
            column |= _read_levels(path, key, column)


def _take_counts(total: dict[str, Any], folder: str | Path, source: str) -> None:
    """Put the counts in a total's ``file`` in its place."""
    if not isinstance(total.get("columns"), list):
        return
    if "counts" in total:
        raise InputError(f"{source}: total: the counts are in the file, not beside it")
    path = _beside(folder, total.pop("file"), "total: file")
    total["counts"] = read_counts(path, total["columns"])


def _read_toml(text: str, source: str) -> dict[str, Any]:
    """Return the content of TOML text; what Python can't hold is refused as what isn't
    TOML is.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        wrong = str(error)
    except RecursionError:
        wrong = TOO_DEEP
    except ValueError:
        wrong = "a number has too many digits, or a date doesn't exist"
    raise InputError(f"{source} is no valid TOML: {wrong}")


def _beside(folder: str | Path, name: object, key: str) -> Path:
    """Return the path of a file that a schema names.

    What is read from it is published with the schema. So a schema, which may come from
    elsewhere, can name files of its own folder alone.
    """
    try:
        home = Path(folder).resolve()
        path = home / str(name)
        is_inside = path.resolve().is_relative_to(home)
    except (OSError, ValueError, RuntimeError):  # a NUL, or links in a circle
        is_inside = False
    if not is_inside or not isinstance(name, str) or Path(name).is_absolute():
        raise InputError(
            f"{key} must name a file in the schema's folder, or below it, for its "
            f"lines are published; got {name!r}"
        )
    return Path(folder) / name


def _read_levels(path: Path, key: str, column: Mapping[str, Any]) -> dict[str, Any]:
    """Return levels, and labels behind a tab, from the lines of a file: whole numbers
    if all are written as such.
    """
    source = f"{key} {path}"
    if {"levels", "labels"} & {*column}:
        raise InputError(f"{source}: levels and labels are in the file, not beside it")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{source} can't be read, or is no UTF-8 text") from None
    label_of = dict[str, str]()
    for number, line in enumerate(text.splitlines(), start=1):
        level, _, label = line.partition("\t")
        if not level.strip():
            raise InputError(f"{source}: line {number} has no level")
        if level in label_of:
            raise InputError(f"{source}: line {number} repeats a level")
        label_of[level] = label
    content: dict[str, Any] = {"levels": list(label_of)}
    if all(map(re.compile(r"0|-?[1-9][0-9]{0,14}").fullmatch, label_of)):
        content["levels"] = list(map(int, label_of))
    labels = {level: label for level, label in label_of.items() if label}
    if labels:
        content["labels"] = labels
    return content


def terms_of(schema: Schema, name: str) -> tuple[str, ...]:
    """Return the terms of a column in a regression: itself for numbers, else one for
    each level but the first.
    """
    column = schema.columns.get(name)
    if column is None:
        raise InputError(
            f"{name!r} is no column of the release; it has {', '.join(schema.columns)}"
        )
    is_numeric = column.levels is None or has_number_levels(column)
    if column.missing and is_numeric:
        raise InputError(
            f"{name!r} may be missing: fit such a regression to the "
            f"sets (pdips.inference.combine)"
        )
    if is_numeric and (column.levels is None or len(column.levels) > 2):
        return (name,)
    return tuple(f"{name}[{level}]" for level in column.names()[1:])


def _is_deep(value: object) -> bool:
    """Whether plain values are nested so deeply that Python could end on them; how
    deep that is by itself depends on who calls.
    """
    layer: list[object] = [value]
    for _ in range(MOST_DEEP):
        inside = list[object]()
        for item in layer:
            if isinstance(item, Mapping):
                inside += item.values()
            elif isinstance(item, (list, tuple)):
                inside += item
        layer = inside
    return bool(layer)


def _texts(value: object) -> Iterator[str]:
    """Yield all text in plain values, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


NO_COLUMN = "must say what is known of it: levels = [...], or lower and upper"
NO_COLUMNS = "must name each column, and say of it levels = [...], or lower and upper"


def _one_line(error: ValidationError) -> str:
    """Return one complaint of pydantic, an unknown key before all others, as a line
    that names the key.
    """
    complaints = error.errors()
    unknown_keys = [one for one in complaints if one["type"] == "extra_forbidden"]
    wrong_words = [one for one in complaints if one["type"] == "literal_error"]
    first = [*unknown_keys, *wrong_words, *complaints][0]
    path = [str(part) for part in first["loc"]]
    where = ".".join(path)
    if unknown_keys:
        models: dict[str, type[BaseModel]] = {
            "columns": Column,
            "records": Records,
            "members": Members,
            "csv": TextFormat,
            "rule": Rule,
            "total": Total,
            "analysis": DeclaredAnalysis,
        }
        model = models.get(path[0], Schema) if len(path) > 1 else Schema
        return f"{where}: unknown key{hint(path[-1], model.model_fields)}"
    message = first["msg"].removeprefix("Value error, ")
    if wrong_words:
        expected = first["ctx"]["expected"]
        known = re.findall(r"'([^']*)'", expected)
        message = f"must be {expected}{hint(first['input'], known)}"
    elif first["type"] in ("model_type", "dict_type") and path[0] == "columns":
        message = NO_COLUMN if len(path) > 1 else NO_COLUMNS
    message = message.replace("Tuple", "List").replace("tuple", "list")
    return f"{where}: {message}" if where else message
