"""What is public about a table: its columns, their levels or bounds, and which combinations can't occur.

A schema is written by a person from public knowledge. Nothing in it may be read off the confidential table.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pdips.data.column import Column as Column
from pdips.data.column import Level, Levels
from pdips.data.column import has_number_levels as has_number_levels
from pdips.data.draft import DRAFT_MARK, draft
from pdips.data.households import Members
from pdips.data.rules import Codes, Rule, barred
from pdips.data.totals import KnownTable, Total, known_tables, raked, read_counts
from pdips.errors import InputError
from pdips.html import columns_table


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


class TextFormat(BaseModel):
    """How a ``.csv`` file is written.

    Parameters
    ----------
    separator : {",", ";", "\\t"}, optional
        Between cells. Left out: the first of these that separates names in the first line.
    decimal : {".", ","}
        The mark before the decimals of a number. The other mark is then no part of a number.
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
        What a household has beside the columns: then a record is a household, and columns of its members, numbered,
        are added to ``columns``.
    impossible : tuple of dict
        Structural zeros: each names levels of two or more categorical columns that can't occur together.
    rule : tuple of Rule
        What every record must be: skip patterns, and numbers in order.
    total : tuple of Total
        Counts that everyone knows and sets meet: no part of the price.
    ignore : bool or tuple of str
        Columns of the table that are left out; true: all that aren't in ``columns``.
    csv : TextFormat
        How text files are written.
    title : str, optional
        For people.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"]), "age": Column(lower=18, upper=99, bins=9)})
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
    ignore: bool | tuple[str, ...] = ()
    csv: TextFormat = TextFormat()
    title: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.members is not None:
            self._add_members(self.members)
        if self.records.person in self.columns:
            raise ValueError("records.person names a column that would be synthesized; take it out of columns")
        for name in self.ignore if isinstance(self.ignore, tuple) else ():
            if name in self.columns or name == self.records.person:
                raise ValueError(f"ignore: {name!r} is a column of this schema; take it out of one of the two")
        for name, column in self.columns.items():
            if column.groups is not None and (clash := f"{name}_groups") in self.columns:
                raise ValueError(
                    f"columns.{name}.groups: rename the column {clash!r}, for noisy margins call groups so"
                )
        self._check_weight(self.records.weight)
        for rule in self.impossible:
            self._check_rule(rule)
        self.known_totals()
        return self

    def _add_members(self, members: Members) -> None:
        slots, columns = members.slots(), self.columns
        if clash := [n for n in [members.key, *slots] if n in columns and columns[n] != slots.get(n)]:
            raise ValueError(
                f"members: {clash[0]!r} can't be a column of households; take it out, or rename one of the two"
            )
        if self.records.person or self.records.max_per_person > 1 or self.public_columns:
            raise ValueError(
                "members: a household is one record; no records.person, no cap on records, no public column"
            )
        if named := [n for total in self.total for n in total.columns if n in slots]:
            raise ValueError(f"total: {named[0]!r} is of members; public totals count columns of households")
        object.__setattr__(self, "columns", columns | slots)

    def _check_weight(self, name: str | None) -> None:
        if name is None:
            if any(total.weighted for total in self.total):
                raise ValueError("total: weighted = true needs the column of weights, records.weight")
            return
        column = self.columns.get(name)
        if column is None:
            raise ValueError(f"records.weight: {name!r} is no column of this schema{_hint(name, self.columns)}")
        if column.levels is not None or column.missing or (column.lower or 0) < 0:
            raise ValueError(f"records.weight: {name!r} must be numeric, its lower at least 0, and never missing")
        if any(total.weighted and (column.integer or name in total.columns) for total in self.total):
            raise ValueError(
                f"weighted totals change the weight {name!r}: it can't be integer, nor one of their columns"
            )

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

    def __init__(self, **data: Any) -> None:
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
        """What is protected together, as texts call it: a person, or a household with its members."""
        return "person" if self.members is None else "household"

    def refuse_rules(self) -> None:
        """Refuse rules on records, for models, which know nothing of them."""
        if self.impossible or self.rule:
            kinds = {"a [[rule]]": self.rule, "[[impossible]] combinations": self.impossible}
            found = " and ".join(kind for kind, there in kinds.items() if there)
            advice = "it would break them; take steps, or describe the combined column by one column with levels"
            raise InputError(f"the schema has {found}, of which a model knows nothing: {advice}")

    def plain(self) -> Self:
        """Return the schema of sets without their rules: to read sets that may break them."""
        return self.without_person().model_copy(update={"impossible": (), "rule": ()})

    def has_commas(self, column: Column) -> bool:
        """Whether text in a column may be numbers with decimal commas."""
        return self.csv.decimal == "," and (not column.is_categorical or has_number_levels(column))

    def without_person(self) -> Self:
        """Return the schema of synthetic sets, which have no person key and are written as pdips writes tables."""
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
        known = self.known_totals(weighted=True)
        return [raked(frame, str(self.records.weight), known, self.columns) for frame in sets] if known else [*sets]

    def of_members(self) -> Self:
        """Return the schema of the table of members, which may repeat columns of households."""
        known: Any = self.members
        more = {known.key, *self.columns, *(self.ignore if isinstance(self.ignore, tuple) else ())} - {*known.columns}
        return type(self)(columns=known.columns, ignore=self.ignore is True or tuple(sorted(more)), csv=self.csv)

    def only(self, names: Iterable[str]) -> Self:
        """Return the schema of some of the columns, in its order, with the rules on these alone; others are ignored."""
        chosen, content = {*names}, self.to_dict() | {"ignore": True}
        parts = [content, *([content["members"]] if self.members else [])]
        known = {name for part in parts for name in part["columns"]}
        for name in sorted(chosen - known):
            raise InputError(f"{name!r} is no column of the schema{_hint(name, known)}")
        for part in parts:
            part["columns"] = {name: column for name, column in part["columns"].items() if name in chosen}
        content["impossible"] = [rule for rule in content.get("impossible", []) if chosen >= {*rule}]
        content["rule"] = [
            r
            for r in content.get("rule", [])
            if chosen >= {*r.get("if", ()), *r.get("then", ()), *r.get("ordered", ())}
        ]
        content["total"] = [total for total in content.get("total", []) if chosen >= {*total["columns"]}]
        return self._checked(content, "the schema of these columns")

    def known_totals(self, *, weighted: bool | None = None) -> tuple[KnownTable, ...]:
        """Return the totals as arrays, in an order in which they can be met: all, or those that are weighted or not."""
        found = known_tables(self.total, self.columns, self.zeros())
        return tuple(table for table in found if weighted in (None, table.weighted))

    def zeros(self) -> list[Codes]:
        """Return all structural zeros as codes of levels and bins: impossible combinations, and what rules bar."""
        columns = self.columns
        found = [
            {n: [columns[n].levels.index(level) for level in of] for n, of in each.items()} for each in self.impossible
        ]
        return [*found, *barred(self.rule, columns)]

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a schema from a TOML file; the path of a column's ``levels_file`` is from its folder.

        Raises
        ------
        InputError
            If the file can't be read, is still a draft, or says something that a schema can't; the message names the
            key.
        """
        try:
            return cls.from_toml(Path(path).read_text(encoding="utf-8"), source=str(path), folder=Path(path).parent)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise InputError(f"can't read schema {path}: {reason}") from None

    @classmethod
    def from_toml(cls, text: str, *, source: str = "schema", folder: str | Path = ".") -> Self:
        """Read a schema from TOML text, but no draft; ``source`` is what messages call it."""
        if any(line.strip().startswith(DRAFT_MARK) for line in text.splitlines()):
            raise InputError(
                f"{source} is still a draft: its levels and bounds were read off the table. Replace every one by what "
                f"is publicly known, then delete the line that begins with {DRAFT_MARK!r}"
            )
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{source} is no valid TOML: {error}") from None
        members = content.get("members", {})
        tables = [content.get("columns", {}), members.get("columns", {}) if isinstance(members, dict) else {}]
        for name, column in (item for table in tables if isinstance(table, dict) for item in table.items()):
            if isinstance(column, dict) and "levels_file" in column:
                column |= _read_levels(Path(folder) / str(column.pop("levels_file")), name, column)
        totals = content.get("total", [])
        for total in totals if isinstance(totals, list) else ():
            if isinstance(total, dict) and isinstance(total.get("columns"), list) and "file" in total:
                if "counts" in total:
                    raise InputError(f"{source}: total: the counts are in the file, not beside it")
                total["counts"] = read_counts(Path(folder) / str(total.pop("file")), total["columns"])
        return cls._checked(content, source)

    @classmethod
    def _checked(cls, content: Mapping[str, Any], source: str) -> Self:
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
        tables = [(content["columns"], self.columns)]
        if self.members is not None:
            tables.append((content["members"]["columns"], self.members.columns))
            for name in self.members.places:
                del content["columns"][name]
        for table, columns in tables:
            for name, values in table.items():
                column = columns[name]
                for key, value in values.items() if column.type == "date" else ():
                    if key in ("lower", "upper", "bin_edges"):
                        spelt = [column.spell(edge) for edge in np.atleast_1d(value)]
                        values[key] = spelt if key == "bin_edges" else spelt[0]
        return content

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
            A column of text, or of whole numbers named like codes, with more different values has no levels.
        """
        return draft(frame, most_levels)


def _read_levels(path: Path, name: str, column: Mapping[str, Any]) -> dict[str, Any]:
    """Return levels, and labels behind a tab, from the lines of a file: whole numbers if all are written as such."""
    source = f"columns.{name}.levels_file {path}"
    if {"levels", "labels"} & {*column}:
        raise InputError(f"{source}: levels and labels are in the file, not beside it")
    try:
        rows = [line.partition("\t")[::2] for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{source} can't be read, or is no UTF-8 text") from None
    levels, whole, known = [level for level, _ in rows], re.compile(r"0|-?[1-9][0-9]{0,14}"), set[str]()
    for number, level in enumerate(levels, start=1):
        if not level.strip() or level in known:
            raise InputError(f"{source}: line {number} {'repeats a level' if level.strip() else 'has no level'}")
        known.add(level)
    found: list[Any] = [int(level) for level in levels] if all(map(whole.fullmatch, levels)) else levels
    labels = {level: label for level, label in rows if label}
    return {"levels": found} | ({"labels": labels} if labels else {})


def terms_of(schema: Schema, name: str) -> tuple[str, ...]:
    """Return the terms of a column in a regression: itself for numbers, else one for each level but the first."""
    column = schema.columns.get(name)
    if column is None:
        raise InputError(f"{name!r} is no column of the release; it has {', '.join(schema.columns)}")
    if column.missing and (column.levels is None or has_number_levels(column)):
        raise InputError(f"{name!r} may be missing: fit such a regression to the sets (pdips.inference.combine)")
    if column.levels is None or (has_number_levels(column) and len(column.levels) > 2):
        return (name,)
    return tuple(f"{name}[{level}]" for level in column.names()[1:])


def read_formula(formula: str, schema: Schema) -> tuple[str, list[str]]:
    """Read ``"outcome ~ column + column"``: the outcome and the predictors. Nothing is evaluated."""
    left, tilde, right = formula.partition("~")
    outcome, predictors = left.strip(), [part.strip() for part in right.split("+") if part.strip() != "1"]
    if not tilde or any(re.search(r"[:*()~^-]|^$", name) for name in {outcome, *predictors} - {*schema.columns}):
        raise InputError("a formula names columns, as in 'income ~ age + sex': no interaction, no function")
    if not predictors or len({outcome, *predictors}) < 1 + len(predictors):
        raise InputError("a formula needs an outcome and one or more predictors that differ from it and each other")
    if len(terms_of(schema, outcome)) > 1:
        raise InputError(f"{outcome!r} has more than two levels: an outcome is a number, or has two levels")
    return outcome, predictors


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
        models: dict[str, type[BaseModel]] = {
            "columns": Column,
            "records": Records,
            "members": Members,
            "csv": TextFormat,
            "rule": Rule,
            "total": Total,
        }
        known = models.get(str(first["loc"][0]), Schema) if len(first["loc"]) > 1 else Schema
        return f"{where}: unknown key{_hint(str(first['loc'][-1]), known.model_fields)}"
    message = first["msg"].removeprefix("Value error, ").replace("Tuple", "List").replace("tuple", "list")
    return f"{where}: {message}" if where else message
