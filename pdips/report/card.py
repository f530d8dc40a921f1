"""What the card shows: settings, columns, what the price means for one person, and how
users combine the sets.
"""

import keyword
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from pdips.data.schema import Column, Schema
from pdips.errors import InputError
from pdips.inference.rules import nearest_rule
from pdips.registry import load
from pdips.release import VERSION
from pdips.release.certificate import Certificate
from pdips.release.codebook import CODEBOOK
from pdips.release.documents import PrivacyDocument, Signature, StatedLoss
from pdips.release.folder import file_digest
from pdips.release.public_draws import held_back_by_priors
from pdips.release.release import TREE_FILE
from pdips.report import price
from pdips.report.coefficients import (
    MOST_LISTED,
    answered_analyses,
    coefficients,
    contradicted,
    question,
)
from pdips.report.figures import roc_bound
from pdips.report.formats import number, percent
from pdips.report.label import label

# Reads noisy counts, as analysts outside do
CARD_DATA = "pdips.outside.card_data:card_data"
MODEL_SOURCE = "model_source"
UNSHOWN = (MODEL_SOURCE, "n_sets", "main")  # settings that the card tells elsewhere
FALSE_POSITIVES = (0.001, 0.01, 0.05, 0.1)
AT_A_GLANCE = 0.05
BELIEFS = (0.01, 0.1, 0.5)
# Of the Rényi divergences that bound a test of a zero-concentrated release
ORDERS = 1 + np.geomspace(1e-3, 1e4, 200)
HALVINGS = 50
# What readers of CSV take for numbers, truth values or missing ones
NO_TEXT = re.compile(r"\s*[-+]?(\d|\.\d|inf|nan|true|false)", re.IGNORECASE)

_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
DEFAULT = _TEXTS["default"]
WHY_NONE = _TEXTS["why_none"]
BESIDES = _TEXTS["besides"]
"""What is said of standard errors: without a reason, why there are none, and what there
is beside them.
"""


def context(public: Path, release: PrivacyDocument) -> dict[str, Any]:
    """Return all that ``card.html.j2`` is filled with."""
    csv = (public / "synthetic_1.csv").exists()
    schema = release.table_schema
    settings = release.settings
    shown_settings = {}
    for name, value in settings.items():
        if value is not None and name not in UNSHOWN:
            shown_settings[name] = _spell(value)
    certificate = Certificate.beside(public)
    listed, tree = coefficients(public, release)
    adds_up = release.privacy.kind == "pure" and all(
        item.composition == "sequential" for item in release.spends
    )
    return {
        "facts": release,
        "schema": schema,
        "settings": shown_settings,
        "model": settings.get("model"),
        "model_source": settings.get(MODEL_SOURCE),
        "columns": {name: _values(column) for name, column in schema.columns.items()},
        "spends": price.items(release),
        "price_sum": price.price_sum(release),
        "most_items": price.MOST_ITEMS,
        "adds_up_otherwise": not adds_up,
        "guarantee": guarantee(release.privacy),
        "also": price.also(release.privacy),
        "errors": standard_errors(release),
        "code": _reading(schema, release.n_sets, csv=csv),
        "noisy_code": _noisy(release),
        "has_codebook": (public / CODEBOOK).is_file(),
        "sharing": _sharing(settings),
        "suffix": "csv" if csv else "parquet",
        "advice": combining(release, certificate),
        "certificate": certificate,
        "writer": writer(),
        "coefficients": listed[:MOST_LISTED],
        "more_coefficients": max(len(listed) - MOST_LISTED, 0),
        "contradicted": contradicted(tree),
        "question": question(tree),
        "analyses": [*answered_analyses(public, release)],
        "unlearned": [each.name for each in listed if each.is_prior],
        "held_back": held_back_by_priors(tree),
        "signed": (public / Signature.file).is_file(),
        **_label_and_form(public, release, len(listed)),
    }


def _label_and_form(
    public: Path, release: PrivacyDocument, n_coefficients: int
) -> dict[str, Any]:
    """Return what is kept, what the form answers from, and which files were read."""
    data = None
    has_answers = bool(release.margins) or TREE_FILE in (release.digests or ())
    if has_answers and public.is_dir():
        data = load(CARD_DATA)(public, release)
    n_records = None if data is None else data.get("n")
    return {
        "label": label(release, n_records, n_coefficients),
        "n_records": n_records,
        "card_data": data,
        "sources": sources(public, release, with_counts=n_records is not None),
    }


def _sharing(settings: Mapping[str, Any]) -> str:
    """Return the setting that says what the sets share, if there is one."""
    decisive = "split" if settings.get("split") == "per-set" else "sets"
    for name in (decisive, "split"):
        if settings.get(name):
            return f"{name} = {settings[name]}"
    return ""


def writer() -> str:
    """Return what a card is written by: with the same, it is the same byte for byte."""
    return f"pdips {VERSION}, matplotlib {version('matplotlib')}"


def sources(
    public: Path, release: PrivacyDocument, *, with_counts: bool
) -> dict[str, str]:
    """Return the files of a public folder that a card is written from, with their
    SHA-256; none if it isn't in a folder. Noisy counts are read beside the first set,
    whose length is their number of records.
    """
    names = [PrivacyDocument.file, Certificate.file, TREE_FILE]
    for stated in release.analyses:
        names += [f"{stated.folder}/{PrivacyDocument.file}"]
        names += [f"{stated.folder}/{TREE_FILE}"]
    if with_counts:
        of_counts = {"margins", "products", "caps", "synthetic_1"}
        names += [
            name for name in release.digests or () if Path(name).stem in of_counts
        ]
    paths = [public / name for name in names]
    return {
        path.relative_to(public).as_posix(): file_digest(path)
        for path in paths
        if path.is_file()
    }


def _values(column: Column) -> dict[str, Any]:
    """Return the levels, or the bounds and bins, of a column in words."""
    if column.levels is not None:
        return {
            "levels": column.shown()[: column.n_values],
            "range": None,
            "edges": None,
        }
    return {
        "levels": None,
        "range": column.span(),
        "edges": [column.spell(edge) for edge in column.bin_edges or ()],
    }


def _spell(value: Any) -> str:
    """Return a public setting as a person would write it."""
    if isinstance(value, (list, tuple)):
        return ", ".join(_spell(one) for one in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {_spell(one)}" for name, one in value.items())
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def guarantee(privacy: StatedLoss) -> dict[str, Any]:
    """Return what the price of all that was published means, upper bounds rounded
    up.
    """
    epsilon = privacy.epsilon
    delta = privacy.delta
    rho = privacy.rho

    def power(level: float, *, replacing: bool = False) -> float:
        return power_bound(epsilon, delta, level, rho=rho, replacing=replacing)

    def shown(level: float, *, replacing: bool = False) -> str:
        bound = round_up(power(level, replacing=replacing))
        return percent(min(1.0, bound))

    tests = []
    points = []
    for level in FALSE_POSITIVES:
        name = percent(level, short=True)
        twice = None
        if privacy.neighbours == "add-remove":
            twice = shown(level, replacing=True)
        tests.append((name, shown(level), twice))
        points.append(f"{shown(level)} at {name}")
    label = (
        "Largest share of true cases that a test can detect, against its false "
        f"positives: {', '.join(points)}"
    )
    beliefs = []
    for before in BELIEFS:
        after = min(1.0, round_up(belief_bound(epsilon, before)))
        beliefs.append((percent(before, short=True), percent(after)))
    return {
        "factor": number(round_up(odds_factor(epsilon))),
        "factor_twice": number(round_up(odds_factor(2 * epsilon))),
        "false_positives": percent(AT_A_GLANCE, short=True),
        "detection": shown(AT_A_GLANCE),
        "tests": tests,
        "curve": roc_bound(power, FALSE_POSITIVES, label),
        "beliefs": beliefs,
    }


def odds_factor(epsilon: float) -> float:
    """Return e^epsilon, by which an attacker's odds change at most; infinity where it
    doesn't fit a double.
    """
    return math.exp(epsilon) if epsilon < 709 else math.inf


def belief_bound(epsilon: float, before: float) -> float:
    """Return the largest belief after the release, of an attacker who held ``before``,
    for delta = 0.
    """
    return before / (before + (1 - before) * math.exp(-epsilon))


def detection_bound(epsilon: float, delta: float, false_positives: float) -> float:
    """Return the largest power of any test of one neighbouring table against another.

    Power is at most min(e^epsilon alpha + delta, 1 - e^-epsilon (1 - delta - alpha)),
    and at most 1: both halves of the definition, for the event "the test rejects" and
    for its complement (Kairouz, Oh and Viswanath 2015, theorem 2.1).

    Examples
    --------
    >>> round(detection_bound(1, 0, 0.1), 3)
    0.272
    """
    direct = delta
    if false_positives:
        direct += odds_factor(epsilon) * false_positives
    complement = 1 - math.exp(-epsilon) * (1 - delta - false_positives)
    return min(1.0, direct, complement)


def detection_bound_zcdp(rho: float, false_positives: float) -> float:
    """Return the largest power of any test of one neighbouring table against another,
    of a rho-zCDP release.

    The Rényi divergence of order a of two neighbours' releases is at most rho a, either
    way round, for every a > 1 (Bun and Steinke 2016, definition 1.1). What a test says
    is worked out from the release, so the same holds of its two coins, of which one
    shows "reject" with the power and the other with the level (data processing: van
    Erven and Harremoës 2014). The divergences of the coins rise with the power, so it
    is halved in on, and the upper end is returned. Each order gives a bound, so a grid
    of them is enough.
    """
    if not 0 < false_positives < 1:
        return false_positives
    low = false_positives
    high = 1.0
    most = (ORDERS - 1) * ORDERS * rho
    kept = 1 - false_positives
    for _ in range(HALVINGS):
        power = (low + high) / 2
        if power == 1:  # no double is nearer
            break
        rejecting = ORDERS * math.log(power / false_positives)
        keeping = ORDERS * math.log((1 - power) / kept)
        # Rényi divergences of the coins, both ways round
        there = np.logaddexp(
            math.log(false_positives) + rejecting, math.log(kept) + keeping
        )
        back = np.logaddexp(math.log(power) - rejecting, math.log1p(-power) - keeping)
        if (there <= most).all() and (back <= most).all():
            low = power
        else:
            high = power
    return high


def power_bound(
    epsilon: float,
    delta: float,
    false_positives: float,
    *,
    rho: float = 0.0,
    replacing: bool = False,
) -> float:
    """Return the largest power of a test: by rho where it is known, else by epsilon and
    delta.

    ``replacing``: the loss is one of adding or removing, and the test tells two
    versions of a person's records apart.
    """
    if replacing:
        delta = min(1.0, (1 + odds_factor(epsilon)) * delta) if delta else 0.0
        epsilon = 2 * epsilon
        rho = 4 * rho
    bound = detection_bound(epsilon, delta, false_positives)
    if not rho:
        return bound
    return min(bound, detection_bound_zcdp(rho, false_positives))


def round_up(value: float) -> float:
    """Round an upper bound to three significant digits without making it smaller."""
    if not value or not math.isfinite(value):
        return value
    nearest = float(f"{value:.2e}")
    if nearest >= value * (1 - 1e-12):
        return nearest
    power = math.floor(math.log10(abs(value))) - 2
    return float(f"{nearest + 10.0**power:.2e}")


@dataclass(frozen=True, kw_only=True)
class CombiningAdvice:
    """The rule that combines the sets, or why none is right, and three lines of code
    that use it.
    """

    rule: str | None
    warning: str | None
    code: str


def standard_errors(release: PrivacyDocument) -> str:
    """Return why no standard error is known, or what there is beside the noise that the
    release lists.
    """
    said: str = BESIDES.get(release.mechanism, "")
    if not release.noise:
        said = WHY_NONE.get(release.mechanism, DEFAULT)
    return said


def combining(
    release: PrivacyDocument, certificate: Certificate | None = None
) -> CombiningAdvice:
    """Return the rule of :func:`pdips.inference.rule_for`, or in its words why there is
    none.
    """
    fit = f"smf.ols({formula(release.table_schema)!r}, one).fit()"
    code = (
        "import statsmodels.formula.api as smf\n"
        "from pdips.inference import combine, rule_for\n"
        f"combine(lambda one: {fit}, sets, "
        'rule=rule_for("privacy.json")).summary()\n'
    )
    rule: str | None = None
    facts = {
        "mechanism": release.mechanism,
        "settings": release.settings,
        "n_sets": release.n_sets,
        "offers": asdict(release.offers),
    }
    try:
        rule, warning = nearest_rule(facts)
    except InputError as error:
        warning = str(error)
    if certificate is not None and certificate.refusal:
        warning = certificate.refusal
    return CombiningAdvice(rule=None if warning else rule, warning=warning, code=code)


def formula(schema: Schema) -> str:
    """Return an analysis that any set of the schema can be given to: an outcome on
    another column, if there is one.
    """
    columns = schema.columns
    names = []
    for name, column in columns.items():
        if not column.public and column.type != "date":
            names.append(name)
    names = names or list(columns)
    numeric = [name for name in names if not columns[name].is_categorical]
    outcome = (numeric or names)[0]
    few = []
    for name, column in columns.items():
        if name != outcome and 2 <= len(column.levels or ()) <= 6:
            few.append(name)
    right = "1"
    if few:
        right = f"C({_quoted(few[0])})"
    elif len(numeric) > 1:
        right = _quoted(numeric[1])
    if numeric:
        return f"{_quoted(outcome)} ~ {right}"
    level: Any = (columns[outcome].levels or ("",))[-1]
    return f"I(({_quoted(outcome)} == {level!r}) * 1.0) ~ {right}"


def _quoted(name: str) -> str:
    is_name = name.isidentifier() and not keyword.iskeyword(name)
    return name if is_name and name != "one" else f"Q({name!r})"


def _reading(schema: Schema, n_sets: int, *, csv: bool) -> str:
    """Return the lines of pandas that read the sets, and text levels as text."""
    options = ""
    if csv:
        options = ', keep_default_na=False, na_values=[""]'
        text = {}
        for name, column in schema.columns.items():
            if _has_misleading_levels(column):
                text[name] = "str"
        if text:
            options += f", dtype={text!r}"
    suffix = "csv" if csv else "parquet"
    path = f'f"synthetic_{{i}}.{suffix}"'
    numbers = f"range(1, {n_sets + 1})"
    return (
        "import pandas as pd\n"
        f"sets = [pd.read_{suffix}({path}{options}) for i in {numbers}]\n"
    )


def _has_misleading_levels(column: Column) -> bool:
    """Whether a reader of CSV would take a text level for something else."""
    for level in column.levels or ():
        if isinstance(level, str) and NO_TEXT.match(level):
            return True
    return False


def _noisy(release: PrivacyDocument) -> str:
    """Return the lines that ask the folder for a share, or for a mean where no column
    has levels or bins; nothing where noisy counts don't hold all columns.
    """
    counted = set()
    for law in release.margins:
        for axis in law.axes:
            counted |= {*axis.columns}
    columns = release.table_schema.columns
    asked = [name for name in columns if name in counted and not columns[name].public]
    if counted < {*columns} or not asked:
        return ""
    with_shares = [
        name
        for name in asked
        if columns[name].is_categorical or columns[name].is_binned
    ]
    kind = "share" if with_shares else "mean"
    name = with_shares[0] if with_shares else asked[0]
    word = name if name.isidentifier() and not keyword.iskeyword(name) else f"`{name}`"
    return f'import pdips\npdips.open(".").ask("{kind}({word})").summary()\n'
