"""Faults of earlier versions, and which releases they touch.

The faults stand in ``known_faults.toml``. All that is asked of a release is read from its ``privacy.json``, which is
public. ``docs/changelog.md`` describes each fault under **Privacy**.
"""

import ast
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pdips.errors import InputError

Severity = Literal[
    "guarantee does not hold", "statement wrong", "released set may be wrong", "possibly touched", "advice wrong"
]
Facts = Mapping[str, Any]

LARGEST_EXACT = 2**53  # The whole number from which on doubles leave some out
MODEL_MECHANISMS = ("censored-posterior", "pseudo-posterior")
VALUES_READ = re.compile(r"get_value\s*\(|\.eval\s*\(|(?<!range\()\bdata\.n_records")
IMPROPER, OWN_DENSITY = ("ICAR", "Flat", "HalfFlat", "Potential"), ("CustomDist", "DensityDist")
OWN_STATISTIC = re.compile(r"^\s*class\s|\btype\s*\(|\bmeasure\b|\bl1\b|__class__|setattr", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of versions below ``mended``."""

    identifier: str
    wrong: str
    severity: Severity
    touches: Callable[[Facts], bool]
    when: str = ""
    do: str
    mended: str = "0.2.0"


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What is known of one release: the version that made it, and the faults that touch it, or may."""

    mechanism: str
    version: str | None
    faults: tuple[Fault, ...]

    @property
    def described(self) -> str:
        """The version in words."""
        return f"pdips {self.version}" if self.version else "a pdips from before releases named their version"


def examine(facts: Facts) -> Examined:
    """Return the known faults that touch a release, or may."""
    parts = ("settings", "privacy", "schema")
    if not isinstance(facts.get("mechanism"), str) or not all(isinstance(facts.get(part), Mapping) for part in parts):
        raise InputError("privacy.json is damaged: it lacks mechanism, settings, privacy or schema")
    software = facts.get("software")
    version = software.get("pdips") if isinstance(software, Mapping) else None
    version = version if isinstance(version, str) else None
    try:
        old = (fault for fault in FAULTS if _numbers(version) < _numbers(fault.mended))
        found = tuple(fault for fault in old if fault.touches(facts))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError("privacy.json is damaged: its schema or settings are not those of a release") from None
    return Examined(mechanism=facts["mechanism"], version=version, faults=found)


def _numbers(version: str | None) -> tuple[int, ...]:
    """Return a version as numbers that can be compared; what comes after them, as in 0.2.0rc1, doesn't count."""
    found = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(int(part) for part in found[0].split(".")) if found else (0,)


def _columns(facts: Facts) -> list[Facts]:
    return list(facts["schema"]["columns"].values())


def _large_whole_numbers(facts: Facts) -> bool:
    """Whether a column that may have missing values has whole numbers that doubles can't tell apart."""
    return any(
        bool(column.get("missing"))
        and any(map(_large, [*(column.get("levels") or ()), column.get("lower"), column.get("upper")]))
        for column in _columns(facts)
    )


def _large(value: Any) -> bool:
    try:
        return abs(int(str(value))) >= LARGEST_EXACT
    except ValueError:
        return isinstance(value, float) and abs(value) >= LARGEST_EXACT


def _other_units(facts: Facts) -> bool:
    """Whether neighbours differ in more than one record, or share columns."""
    public = any(bool(column.get("public")) for column in _columns(facts))
    records = facts["schema"].get("records") or {}
    return public or records.get("person") is not None or (records.get("max_per_person") or 1) > 1


def _thinned(facts: Facts) -> bool:
    """Whether lines were searched for among records whose number isn't public."""
    hidden = facts["privacy"].get("neighbours") == "add-remove" or facts["settings"].get("by")
    hidden = hidden or any(bool(column.get("missing")) for column in _columns(facts))
    return facts["mechanism"] in ("kng", "kng-residual") and bool(hidden)


def _source(facts: Facts) -> str | None:
    """Return the text of a model, None where it wasn't recorded."""
    text = facts["settings"].get("model_source")
    return text if isinstance(text, str) and text else None


def _modelled(facts: Facts, *mechanisms: str) -> bool:
    return facts["mechanism"] in mechanisms and facts["settings"].get("model") is not None


def _in_source(pattern: str | re.Pattern[str], *mechanisms: str) -> Callable[[Facts], bool]:
    """Return what tells whether the text of a model has a pattern, or wasn't recorded."""

    def touches(facts: Facts) -> bool:
        source = _source(facts)
        return _modelled(facts, *mechanisms) and (source is None or re.search(pattern, source) is not None)

    return touches


def _in_a_call(suspicious: Callable[[str, dict[str, ast.expr]], bool]) -> Callable[[Facts], bool]:
    """Return whether a model has a call that is suspicious, by its name and named arguments, or can't be read."""

    def touches(facts: Facts) -> bool:
        if not _modelled(facts, *MODEL_MECHANISMS):
            return False
        try:
            found = ast.walk(ast.parse(_source(facts) or "("))
        except SyntaxError:
            return True
        calls = [node for node in found if isinstance(node, ast.Call)]
        named = ((getattr(one.func, "attr", getattr(one.func, "id", "")), one.keywords) for one in calls)
        return any(suspicious(name, {word.arg or "": word.value for word in words}) for name, words in named)

    return touches


def _transformed(name: str, words: dict[str, ast.expr]) -> bool:
    """Whether a variable's observed value is given, and is neither data[...] nor data.matrix(...)."""
    value = words.get("observed")
    inner = value.value if isinstance(value, ast.Subscript) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "matrix":
        inner = value.func.value
    return value is not None and not (isinstance(inner, ast.Name) and inner.id == "data")


TOUCHES: dict[str, Callable[[Facts], bool]] = {
    "always": lambda facts: True,
    "coded_by_levels": lambda facts: any(column.get("levels") for column in _columns(facts)),
    "has_persons": lambda facts: (facts["schema"].get("records") or {}).get("person") is not None,
    "hit_and_run": lambda facts: facts["mechanism"] == "kng" and facts["settings"].get("sampler") == "hit-and-run",
    "large_whole_numbers": _large_whole_numbers,
    "other_units": _other_units,
    "own_statistics": _in_source(OWN_STATISTIC, "modips"),
    "perhaps_improper": _in_a_call(
        lambda name, words: name in IMPROPER or (name in OWN_DENSITY and "observed" not in words)
    ),
    "reads_values": _in_source(VALUES_READ, *MODEL_MECHANISMS),
    "sampled": lambda facts: facts["mechanism"] == "censored-posterior" and facts["privacy"].get("sampling") == "mcmc",
    "second_model": _in_source("draw_posterior", "modips"),
    "seeded": lambda facts: bool(facts.get("reproducible")),
    "thinned": _thinned,
    "transformed": _in_a_call(_transformed),
    "unrecorded": lambda facts: _modelled(facts, *MODEL_MECHANISMS, "modips") and _source(facts) is None,
}
"""Whether a release is touched, by the name in ``known_faults.toml``."""

with Path(__file__).with_suffix(".toml").open("rb") as _file:
    FAULTS = tuple(Fault(**{**one, "touches": TOUCHES[one["touches"]]}) for one in tomllib.load(_file)["fault"])
"""Faults by the item of the list that they were found under; items F and J touch no release."""
