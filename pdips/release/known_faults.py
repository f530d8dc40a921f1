"""Faults of earlier versions, and which releases they touch: a table of data and a function that reads it.

Everything is read from ``privacy.json``, which is public. ``docs/changelog.md`` describes each fault under **Privacy**.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pdips.errors import InputError

Severity = Literal[
    "guarantee does not hold", "statement wrong", "released set may be wrong", "possibly touched", "advice wrong"
]
Facts = Mapping[str, Any]

MENDED = (0, 2, 0)
"""The version from which on the faults below are mended."""

LARGEST_EXACT = 2**53
"""The whole number from which on doubles leave some out."""

MODEL_MECHANISMS = ("censored-posterior", "pseudo-posterior")
VALUES_READ = re.compile(r"get_value\s*\(|\.eval\s*\(|(?<!range\()\bdata\.n_records")
IMPROPER, OWN_DENSITY = ("ICAR", "Flat", "HalfFlat", "Potential"), ("CustomDist", "DensityDist")
OWN_STATISTIC = re.compile(r"^\s*class\s|\btype\s*\(|\bmeasure\b|\bl1\b|__class__|setattr", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of versions below 0.2.0.

    Attributes
    ----------
    identifier : str
        Short name, which the changelog gives too.
    wrong : str
        What was wrong, in a sentence.
    severity : str
        What it means for a release that it touches; "possibly touched" where ``privacy.json`` can't say whether it is.
    touches : callable
        Whether a release of a version with the fault is touched, by the contents of its ``privacy.json``.
    when : str
        What decides, where the file doesn't say; empty where it does.
    do : str
        What the owner of such a release should do.
    """

    identifier: str
    wrong: str
    severity: Severity
    touches: Callable[[Facts], bool]
    when: str = ""
    do: str


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
    """Return the known faults that touch a release, or may.

    Parameters
    ----------
    facts : mapping
        The contents of its ``privacy.json``. A release without a version is taken to be older than all that have one.

    Raises
    ------
    InputError
        If these aren't the contents of a ``privacy.json``.
    """
    parts = ("settings", "privacy", "schema")
    if not isinstance(facts.get("mechanism"), str) or not all(isinstance(facts.get(part), Mapping) for part in parts):
        raise InputError("privacy.json is damaged: it lacks mechanism, settings, privacy or schema")
    software = facts.get("software")
    version = software.get("pdips") if isinstance(software, Mapping) else None
    version = version if isinstance(version, str) else None
    try:
        found = tuple(fault for fault in FAULTS if fault.touches(facts)) if _numbers(version) < MENDED else ()
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError("privacy.json is damaged: its schema or settings are not those of a release") from None
    return Examined(mechanism=facts["mechanism"], version=version, faults=found)


def _numbers(version: str | None) -> tuple[int, ...]:
    """Return a version as numbers that can be compared; what comes after them, as in 0.2.0rc1, doesn't count."""
    found = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(int(part) for part in found[0].split(".")) if found else (0,)


def _columns(facts: Facts) -> list[Facts]:
    return list(facts["schema"]["columns"].values())


def _coded_by_levels(facts: Facts) -> bool:
    return any(column.get("levels") for column in _columns(facts))


def _large_whole_numbers(facts: Facts) -> bool:
    """Whether a column that may have missing values has whole numbers that doubles can't tell apart."""
    return any(bool(column.get("missing")) and any(map(_large, _values(column))) for column in _columns(facts))


def _values(column: Facts) -> list[Any]:
    return [*(column.get("levels") or ()), column.get("lower"), column.get("upper")]


def _large(value: Any) -> bool:
    try:
        return abs(int(str(value))) >= LARGEST_EXACT
    except ValueError:
        return isinstance(value, float) and abs(value) >= LARGEST_EXACT


def _records(facts: Facts) -> Facts:
    found: Facts = facts["schema"].get("records") or {}
    return found


def _has_persons(facts: Facts) -> bool:
    return _records(facts).get("person") is not None


def _other_units(facts: Facts) -> bool:
    """Whether neighbours differ in more than one record, or share columns."""
    public = any(bool(column.get("public")) for column in _columns(facts))
    cap = _records(facts).get("max_per_person") or 1
    return public or _has_persons(facts) or bool(cap > 1)


def _sampled(facts: Facts) -> bool:
    return bool(facts["mechanism"] == "censored-posterior" and facts["privacy"].get("sampling") == "mcmc")


def _source(facts: Facts) -> str | None:
    """Return the text of a model, None where it wasn't recorded."""
    text = facts["settings"].get("model_source")
    return text if isinstance(text, str) and text else None


def _modelled(facts: Facts, *mechanisms: str) -> bool:
    return facts["mechanism"] in mechanisms and facts["settings"].get("model") is not None


def _own_statistics(facts: Facts) -> bool:
    source = _source(facts)
    return _modelled(facts, "modips") and (source is None or OWN_STATISTIC.search(source) is not None)


def _second_model(facts: Facts) -> bool:
    source = _source(facts)
    return _modelled(facts, "modips") and (source is None or "draw_posterior" in source)


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
        return any(suspicious(_name(one.func), {word.arg or "": word.value for word in one.keywords}) for one in calls)

    return touches


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _transformed(name: str, words: dict[str, ast.expr]) -> bool:
    """Whether a variable's observed value is given, and is neither data[...] nor data.matrix(...)."""
    value = words.get("observed")
    inner = value.value if isinstance(value, ast.Subscript) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "matrix":
        inner = value.func.value
    return value is not None and not (isinstance(inner, ast.Name) and inner.id == "data")


def _perhaps_improper(name: str, words: dict[str, ast.expr]) -> bool:
    return name in IMPROPER or (name in OWN_DENSITY and "observed" not in words)


def _reads_values(facts: Facts) -> bool:
    source = _source(facts)
    return _modelled(facts, *MODEL_MECHANISMS) and (source is None or VALUES_READ.search(source) is not None)


def _unrecorded(facts: Facts) -> bool:
    return _modelled(facts, *MODEL_MECHANISMS, "modips") and _source(facts) is None


AGAIN = "If it was, the stated epsilon does not hold: withdraw the sets if you can, and release again with 0.2.0."
FAULTS = (
    Fault(
        identifier="A1",
        wrong="In a CSV file with a blank first line, types were inferred from all records, so one record could change "
        "the codes of all others.",
        severity="possibly touched",
        touches=lambda facts: True,
        when="the table was a CSV file with a blank first line",
        do=AGAIN,
    ),
    Fault(
        identifier="A2",
        wrong="Whole numbers of 2^53 and more became doubles when one value of their column was missing, so one record "
        "could merge levels of others.",
        severity="guarantee does not hold",
        touches=_large_whole_numbers,
        do="Withdraw the sets if you can, and release again with 0.2.0.",
    ),
    Fault(
        identifier="A3",
        wrong="In object columns of a DataFrame, equal values of different types (True, 1, Decimal(1)) were spelt like "
        "whichever record came first.",
        severity="possibly touched",
        touches=_coded_by_levels,
        when="the table was a DataFrame with a column that mixes types",
        do=AGAIN,
    ),
    Fault(
        identifier="B",
        wrong="modips took the sensitivity of a statistic from the model file's own class, whatever it measured.",
        severity="possibly touched",
        touches=_own_statistics,
        when="the model file measures with a class of its own rather than with one that ships",
        do=AGAIN,
    ),
    Fault(
        identifier="C",
        wrong="Under NUTS a record could enter the terms of others, by a maximum, a mean or a number of levels in the "
        "model.",
        severity="possibly touched",
        touches=_sampled,
        when="the model's likelihood uses anything worked out from all records of a column",
        do=AGAIN,
    ),
    Fault(
        identifier="D",
        wrong="modips models with draw_posterior sampled from that function and ignored build_model, whose priors "
        "privacy.json prints.",
        severity="statement wrong",
        touches=_second_model,
        when="the priors of a model that ships were edited",
        do="The guarantee holds. If priors were edited, tell users that the printed ones were not used, or draw the "
        "sets again with Modips.again of 0.2.0, which costs nothing.",
    ),
    Fault(
        identifier="E1",
        wrong="A model whose observed value was a function of a column, such as np.log, gave synthetic values on the "
        "wrong scale.",
        severity="released set may be wrong",
        touches=_in_a_call(_transformed),
        when="the observed value of a variable is not the column itself",
        do="The guarantee holds. Compare means with the table, inside; if they are off, withdraw the sets.",
    ),
    Fault(
        identifier="E2",
        wrong="Values that a model worked out by get_value, eval or n_records came from made-up records and stayed in "
        "the model as constants.",
        severity="released set may be wrong",
        touches=_reads_values,
        when="such values enter the model, rather than shapes only",
        do="Standardise by public constants instead, and release again; tell users that coefficients are wrong.",
    ),
    Fault(
        identifier="E3",
        wrong="A model given as a Python function could hold arrays or tables in its closure, and its source was not "
        "recorded.",
        severity="possibly touched",
        touches=_unrecorded,
        when="the function reads anything that was worked out from the confidential table",
        do=AGAIN,
    ),
    Fault(
        identifier="E4",
        wrong="Improper priors by CustomDist, ICAR or a Potential were accepted; the proof needs a proper prior.",
        severity="guarantee does not hold",
        touches=_in_a_call(_perhaps_improper),
        when="the prior does not integrate to a finite number",
        do="Check that each prior is proper. If one is not, withdraw the sets if you can.",
    ),
    Fault(
        identifier="G1",
        wrong="The table was read before the budget was asked, so refusals answered questions about records for free.",
        severity="possibly touched",
        touches=lambda facts: True,
        when="requests were refused for what the records are, by persons who should not see the table",
        do="The release itself is unaffected. What refusals showed is outside its epsilon; count who saw them.",
    ),
    Fault(
        identifier="G2",
        wrong="The ledger added up releases with different caps, person keys or public columns as if epsilon meant the "
        "same in each.",
        severity="statement wrong",
        touches=_other_units,
        when="the account has releases under schemas that differ in these",
        do="Compare the schemas of the account's releases; if they agree, run pdips ledger declare-unit.",
    ),
    Fault(
        identifier="G3",
        wrong="Keys of persons were compared as they are spelt, so one person under two spellings could exceed the "
        "cap.",
        severity="possibly touched",
        touches=_has_persons,
        when="keys differ in Unicode form, blanks at their ends or the spelling of numbers",
        do="Check the key column with 0.2.0. A person with k times the cap is protected at k times epsilon.",
    ),
    Fault(
        identifier="G4",
        wrong="A ledger put back from a backup forgot releases, and nothing showed it.",
        severity="possibly touched",
        touches=lambda facts: True,
        when="the ledger's file was ever restored from a copy",
        do="Compare pdips ledger show with the releases that you know of, and charge what is missing.",
    ),
    Fault(
        identifier="H1",
        wrong="Sets made from a seed were written to public/.",
        severity="guarantee does not hold",
        touches=lambda facts: bool(facts.get("reproducible")),
        do="Withdraw the sets: whoever knows or guesses the seed can subtract the noise.",
    ),
    Fault(
        identifier="H2",
        wrong="A schema that was drafted from the confidential table, and never replaced, was accepted.",
        severity="possibly touched",
        touches=lambda facts: True,
        when="the schema still had levels or bounds that `pdips schema draft` read off the table",
        do="Levels and bounds read off the table are published without protection: withdraw the sets if they matter.",
    ),
    Fault(
        identifier="H3",
        wrong="kng with sampler=hit-and-run published unrounded doubles of Markov chains.",
        severity="guarantee does not hold",
        touches=lambda facts: facts["mechanism"] == "kng" and facts["settings"].get("sampler") == "hit-and-run",
        do="Treat epsilon as holding only approximately, and release again with exact draws, which are the default.",
    ),
    Fault(
        identifier="H4",
        wrong="The statement on Markov chains said that nothing is released if chains disagree; they were run up to "
        "three times.",
        severity="statement wrong",
        touches=_sampled,
        do="Tell users that chains may have been run again, which was decided on confidential records.",
    ),
    Fault(
        identifier="I",
        wrong="The report called diagnostics in order, and utility open, whatever the means of the sets were.",
        severity="advice wrong",
        touches=lambda facts: True,
        do="The guarantee holds. Don't rely on the verdicts of the old report: run pdips evaluate with 0.2.0.",
    ),
)
"""Faults by the item of the list that they were found under; items F and J touch no release."""
