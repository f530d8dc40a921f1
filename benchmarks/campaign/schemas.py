"""Random schemas, and tables of records that keep to them."""

import datetime
from dataclasses import dataclass
from typing import Any

from benchmarks.campaign.chance import Chance
from pdips import Column
from pdips.data.dates import spelling

type Content = dict[str, Any]
type Cells = dict[str, list[Any]]

TEXTS = ("no", "yes", "f", "m", "a b", "1", "01", "ä", "日本", "None", "x_1", "<b>")
NAMES = ("a", "b", "c d", "ü", "e", "sum", "g(h)", "n", "index", "count", "k", "_")
WORDS = ("euro", "jährlich", "a & b", "<i>", "'quoted'", "x" * 80)


@dataclass(frozen=True)
class Wishes:
    """What a mechanism takes: numbers without bins, public totals, households."""

    plain_numbers: float = 0.02  # probability that a number has no bins
    totals: float = 0.02
    households: float = 0.02
    weights: float = 0.05
    most_columns: int = 6
    most_levels: int = 8


def random_schema(chance: Chance, wishes: Wishes) -> Content:
    """Return a schema as a dict."""
    names = chance.some(NAMES, 1, wishes.most_columns)
    columns = {name: random_column(chance, wishes) for name in names}
    content: Content = {"columns": columns}
    if chance.maybe(wishes.weights):
        columns["weight"] = _weight(chance, wishes)
        content["records"] = {"weight": "weight"}
    if chance.maybe(wishes.households):
        content["members"] = _members(chance, wishes)
        return content
    for column in columns.values():
        if chance.maybe(0.12) and "groups" not in column:
            column["public"] = True
            if "levels" not in column and "bins" not in column:
                _add_bins(chance, column)
    if chance.maybe(0.15):
        records = content.setdefault("records", {})
        records |= {"person": "person", "max_per_person": chance.whole(1, 3)}
    _add_rules(chance, content)
    if chance.maybe(wishes.totals):
        _add_totals(chance, content)
    if chance.maybe(0.1):
        content["title"] = chance.one(WORDS)
    return content


def random_column(chance: Chance, wishes: Wishes) -> Content:
    """Return a column with levels, numbers or dates."""
    kinds = ("levels", "levels", "levels", "number", "number", "integer", "date")
    kind = chance.one(kinds)
    column = _levels(chance, wishes) if kind == "levels" else {}
    if kind in ("number", "integer"):
        column = _number(chance, whole=kind == "integer")
    if kind == "date":
        column = _date(chance)
    if kind != "levels" and not chance.maybe(wishes.plain_numbers):
        _add_bins(chance, column)
    if kind == "number" and "bins" not in column and chance.maybe(0.3):
        column["resolution"] = (column["upper"] - column["lower"]) / 64
    if chance.maybe(0.15):
        column["missing"] = True
    if chance.maybe(0.1):
        column["label"] = chance.one(WORDS)
    return column


def _levels(chance: Chance, wishes: Wishes) -> Content:
    most = wishes.most_levels
    made: dict[str, list[Any]] = {
        "text": chance.some(TEXTS, 1, most),
        "codes": [
            f"{code:03d}" for code in range(100, 100 + chance.whole(1, 3 * most))
        ],
        "numbers": sorted(chance.some(range(-3, 30), 1, most)),
        "decimals": [0.5 * number for number in sorted(chance.some(range(9), 1, most))],
        "truth": [False, True],
    }
    kind = chance.one(("text", "text", "codes", "numbers", "decimals", "truth"))
    column: Content = {"levels": made[kind]}
    if kind == "codes" and wishes.totals and chance.maybe(0.3):
        column["groups"] = chance.whole(1, 2)
    if kind in ("text", "codes") and chance.maybe(0.1):
        column["missing"] = ["-9", "NA"]
    if kind in ("text", "codes") and chance.maybe(0.1):
        column["trim"] = True
    if chance.maybe(0.1) and kind != "truth":
        column["labels"] = {spelling(made[kind][0]): chance.one(WORDS)}
    return column


def _number(chance: Chance, *, whole: bool) -> Content:
    lower = chance.one([0, 1, -5, 18, -1000, 1000])
    span = chance.one([1, 2, 10, 100, 5000, 1_000_000])
    column: Content = {"lower": lower, "upper": lower + span}
    if whole:
        column["integer"] = True
    elif chance.maybe(0.2):
        column = {"lower": lower / 8, "upper": (lower + span) / 8}
    if column["lower"] > 0 and chance.maybe(0.4):
        column["scale"] = "log"
    if chance.maybe(0.1):
        column["out_of_range"] = "clip"
    if chance.maybe(0.1):
        column["missing"] = [-9999]
    if chance.maybe(0.1):
        column["unit"] = chance.one(WORDS)
    return column


def _date(chance: Chance) -> Content:
    unit = chance.one(("day", "month", "year"))
    first = datetime.date(chance.whole(1900, 2020), chance.whole(1, 12), 1)
    last = first + datetime.timedelta(days=chance.one([400, 800, 20_000]))
    return {"type": "date", "unit": unit, "lower": str(first), "upper": str(last)}


def _add_bins(chance: Chance, column: Content) -> None:
    """Cut a number into bins, if as many as were drawn fit its whole numbers."""
    cut = column | {"bins": chance.one([1, 2, 3, 5, 12, 12, 40])}
    for n_bins in (cut["bins"], 1):
        try:
            Column(**cut | {"bins": n_bins})
        except ValueError:  # fewer whole numbers than bins
            continue
        column["bins"] = n_bins
        return


def _weight(chance: Chance, wishes: Wishes) -> Content:
    column: Content = {"lower": chance.one([0, 1]), "upper": chance.one([2, 50])}
    if not chance.maybe(wishes.plain_numbers):
        column["bins"] = chance.whole(1, 5)
    return column


def _members(chance: Chance, wishes: Wishes) -> Content:
    few = Wishes(wishes.plain_numbers, 0, 0, 0, 2, 4)
    names = chance.some(["age", "sex"], 1, 2)
    members: Content = {
        "key": "key",
        "most": chance.whole(1, 3),
        "columns": {name: random_column(chance, few) for name in names},
    }
    for column in members["columns"].values():
        column.pop("trim", None)
    if chance.maybe(0.5):
        members["order"] = names[0]
    if chance.maybe(0.3):
        members["too_many"] = "truncate"
    return members


def with_levels(content: Content) -> list[str]:
    """Return the names of columns with levels."""
    return [name for name, column in content["columns"].items() if "levels" in column]


def cut(content: Content) -> list[str]:
    """Return the names of columns with levels or bins."""
    known = content["columns"].items()
    return [name for name, column in known if {"levels", "bins"} & {*column}]


def _add_rules(chance: Chance, content: Content) -> None:
    columns = content["columns"]
    named = [name for name in with_levels(content) if len(columns[name]["levels"]) > 1]
    if len(named) > 1 and chance.maybe(0.2):
        pair = chance.some(named, 2, 2)
        content["impossible"] = [{name: [columns[name]["levels"][0]] for name in pair}]
    if len(named) > 1 and chance.maybe(0.15):
        first, second = chance.some(named, 2, 2)
        given = {first: [columns[first]["levels"][-1]]}
        then = {second: [columns[second]["levels"][0]]}
        content["rule"] = [{"if": given, "then": then}]
    numbers = [
        name
        for name, column in columns.items()
        if "bins" in column and not column.get("public") and "type" not in column
    ]
    if numbers and chance.maybe(0.1):
        (name,) = chance.some(numbers, 1, 1)
        columns["later"] = dict(columns[name])
        content.setdefault("rule", []).append({"ordered": [name, "later"]})


def _add_totals(chance: Chance, content: Content) -> None:
    columns = content["columns"]
    names = [name for name in cut(content) if not columns[name].get("public")]
    if not names:
        return
    chosen = chance.some(names, 1, 2)
    counts: Any = {}
    levels = [Column(**columns[name]).names() for name in chosen]
    for level in levels[0]:
        below = {other: chance.whole(0, 40) for other in levels[-1]}
        counts[level] = below if len(chosen) > 1 else chance.whole(0, 40)
    content["total"] = [{"columns": chosen, "counts": counts}]


# ---- tables ----


def random_table(chance: Chance, content: Content) -> Any:
    """Return a table as a dict of columns; of households, two of these."""
    n_records = chance.one([1, 2, 3, chance.whole(4, 40), chance.whole(40, 400)])
    rows = {
        name: cells(chance, column, n_records)
        for name, column in content["columns"].items()
    }
    members = content.get("members")
    if members is not None:
        keys = [f"h{number}" for number in range(n_records)]
        sizes = [chance.whole(0, members["most"]) for _ in keys]
        owners = [
            key for key, size in zip(keys, sizes, strict=True) for _ in range(size)
        ]
        people = {
            name: cells(chance, column, len(owners))
            for name, column in members["columns"].items()
        }
        return {"key": keys, **rows}, {"key": owners, **people}
    _keep_rules(chance, content, rows)
    records = content.get("records", {})
    if "person" in records:
        cap = records["max_per_person"]
        rows["person"] = [number // cap for number in range(n_records)]
    return rows


def cells(chance: Chance, column: Content, n_records: int) -> list[Any]:
    """Return cells of a column, some of them missing if they may be."""
    if "levels" in column:
        # many records of one level, and levels that none has
        levels = chance.some(column["levels"], 1, len(column["levels"]))
        found = [chance.one(levels) for _ in range(n_records)]
    elif column.get("type") == "date":
        found = _dates(chance, column, n_records)
    else:
        found = _numbers(chance, column, n_records)
    if column.get("missing"):
        share = chance.one([0.0, 0.1, 1.0])
        found = [None if chance.maybe(share) else cell for cell in found]
    return found


def _numbers(chance: Chance, column: Content, n_records: int) -> list[Any]:
    lower, upper = column["lower"], column["upper"]
    spike = chance.between(0, 1) ** 3
    found = list[Any]()
    for _ in range(n_records):
        place = spike if chance.maybe(0.2) else chance.between(0, 1)
        number = lower + (upper - lower) * chance.one([place, place, place, 0, 1])
        number = min(max(number, lower), upper)
        found.append(int(number) if column.get("integer") else number)
    return found


def _dates(chance: Chance, column: Content, n_records: int) -> list[str]:
    first, last = (datetime.date.fromisoformat(column[k]) for k in ("lower", "upper"))
    days = (last - first).days
    found = [
        first + datetime.timedelta(days=chance.whole(0, days)) for _ in range(n_records)
    ]
    return [str(date) for date in found]


def _keep_rules(chance: Chance, content: Content, rows: Cells) -> None:
    """Change records until they keep the rules, in place."""
    columns = content["columns"]
    for rule in content.get("rule", []):
        if "ordered" in rule:
            low, high = rule["ordered"]
            for k, (one, other) in enumerate(zip(rows[low], rows[high], strict=True)):
                if one is not None and other is not None and one > other:
                    rows[low][k], rows[high][k] = other, one
            continue
        ((first, given),) = rule["if"].items()
        ((second, then),) = rule["then"].items()
        for k, cell in enumerate(rows[first]):
            if cell in given:
                rows[second][k] = then[0]
    for barred in content.get("impossible", []):
        name = next(iter(barred))
        free = [level for level in columns[name]["levels"] if level not in barred[name]]
        for k in range(len(rows[name])):
            if all(rows[one][k] in levels for one, levels in barred.items()):
                rows[name][k] = chance.one(free)
