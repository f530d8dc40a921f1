"""What the card shows: settings, columns, what the price means for one person, and how users combine the sets."""

import keyword
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pdips.data.schema import Column, Schema
from pdips.errors import InputError
from pdips.inference.rules import KNOW_THE_NOISE, nearest_rule
from pdips.release.certificate import Certificate
from pdips.release.codebook import CODEBOOK
from pdips.release.documents import PaidDocument, PrivacyDocument, StatedLoss
from pdips.report import price
from pdips.report.figures import roc_bound
from pdips.report.formats import number, percent

MODEL_SOURCE = "model_source"
FALSE_POSITIVES = (0.001, 0.01, 0.05, 0.1)
AT_A_GLANCE = 0.05
BELIEFS = (0.01, 0.1, 0.5)
ORDERS = 1 + np.geomspace(1e-3, 1e4, 200)  # Of the Rényi divergences that bound a test of a zero-concentrated release
HALVINGS = 50

_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
DEFAULT, WHY_NONE, BESIDES = _TEXTS["default"], _TEXTS["why_none"], _TEXTS["besides"]
"""What is said of standard errors: without a reason, why there are none, and what there is beside them."""


def context(public: Path, release: PrivacyDocument, paid: PaidDocument | None) -> dict[str, Any]:
    """Return all that ``card.html.j2`` is filled with."""
    csv, schema, settings = (public / "synthetic_1.csv").exists(), release.table_schema, release.settings
    kept = {name: value for name, value in settings.items() if value is not None}
    certificate, losses = Certificate.beside(public), price.published(public, release, paid)
    return {
        "facts": release,
        "schema": schema,
        "settings": {name: _spell(value) for name, value in kept.items() if name not in (MODEL_SOURCE, "n_sets")},
        "model": settings.get("model"),
        "model_source": settings.get(MODEL_SOURCE),
        "columns": {name: _values(column) for name, column in schema.columns.items()},
        "spends": price.items(release),
        "price_sum": price.price_sum(release),
        "most_items": price.MOST_ITEMS,
        "adds_up_otherwise": release.privacy.kind != "pure"
        or any(item.composition != "sequential" for item in release.spends),
        "paid": paid,
        "losses": losses,
        "total": price.together(losses),
        "guarantee": guarantee(price.together(losses)),
        "errors": standard_errors(release),
        "code": _reading(schema, release.n_sets, csv=csv),
        "noisy_code": _noisy(release),
        "margin_spans": [
            (what, min(errors), max(errors))
            for what, size in (("Counts of one level", 1), ("Counts of two levels together", 2))
            if (errors := [item.standard_error for item in release.margin_errors if len(item.columns) == size])
        ],
        "has_codebook": (public / CODEBOOK).is_file(),
        "split": settings.get("split"),
        "suffix": "csv" if csv else "parquet",
        "advice": combining(release, certificate),
        "certificate": certificate,
        "knows_the_noise": KNOW_THE_NOISE,
    }


def _values(column: Column) -> dict[str, Any]:
    """Return the levels, or the bounds and bins, of a column in words."""
    if column.levels is not None:
        return {"levels": column.shown()[: column.n_values], "range": None, "edges": None}
    return {"levels": None, "range": column.span(), "edges": [column.spell(edge) for edge in column.bin_edges or ()]}


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
    """Return what the price of all that was published means, upper bounds rounded up."""
    epsilon, delta, rho = privacy.epsilon, privacy.delta, privacy.rho
    removing = privacy.neighbours == "add-remove"

    def power(level: float, replacing: bool = False) -> float:
        return power_bound(epsilon, delta, level, rho=rho, replacing=replacing)

    def shown(level: float, replacing: bool = False) -> str:
        return percent(min(1.0, round_up(power(level, replacing))))

    label = "Largest share of true cases that a test can detect, against its false positives: " + ", ".join(
        f"{shown(level)} at {percent(level, short=True)}" for level in FALSE_POSITIVES
    )
    return {
        "factor": number(round_up(odds_factor(epsilon))),
        "factor_twice": number(round_up(odds_factor(2 * epsilon))),
        "false_positives": percent(AT_A_GLANCE, short=True),
        "detection": shown(AT_A_GLANCE),
        "tests": [
            (percent(level, short=True), shown(level), shown(level, True) if removing else None)
            for level in FALSE_POSITIVES
        ],
        "curve": roc_bound(power, FALSE_POSITIVES, label),
        "beliefs": [
            (percent(before, short=True), percent(min(1.0, round_up(belief_bound(epsilon, before)))))
            for before in BELIEFS
        ],
    }


def odds_factor(epsilon: float) -> float:
    """Return e^epsilon, by which an attacker's odds change at most; infinity where it doesn't fit a double."""
    return math.exp(epsilon) if epsilon < 709 else math.inf


def belief_bound(epsilon: float, before: float) -> float:
    """Return the largest belief after the release, of an attacker who held ``before``, for delta = 0."""
    return before / (before + (1 - before) * math.exp(-epsilon))


def detection_bound(epsilon: float, delta: float, false_positives: float) -> float:
    """Return the largest power of any test of one neighbouring table against another.

    Power is at most min(e^epsilon alpha + delta, 1 - e^-epsilon (1 - delta - alpha)), and at most 1: both halves of
    the definition, for the event "the test rejects" and for its complement (Kairouz, Oh and Viswanath 2015, theorem
    2.1).

    Examples
    --------
    >>> round(detection_bound(1, 0, 0.1), 3)
    0.272
    """
    direct = odds_factor(epsilon) * false_positives + delta if false_positives else delta
    complement = 1 - math.exp(-epsilon) * (1 - delta - false_positives)
    return min(1.0, direct, complement)


def detection_bound_zcdp(rho: float, false_positives: float) -> float:
    """Return the largest power of any test of one neighbouring table against another, of a rho-zCDP release.

    The Rényi divergence of order a of two neighbours' releases is at most rho a, either way round, for every a > 1 (Bun
    and Steinke 2016, definition 1.1). What a test says is worked out from the release, so the same holds of its two
    coins, of which one shows "reject" with the power and the other with the level (data processing: van Erven and
    Harremoës 2014). The divergences of the coins rise with the power, so it is halved in on, and the upper end is
    returned. Each order gives a bound, so a grid of them is enough.
    """
    if not 0 < false_positives < 1:
        return false_positives
    low, high = false_positives, 1.0
    most, kept = (ORDERS - 1) * ORDERS * rho, 1 - false_positives
    for _ in range(HALVINGS):
        power = (low + high) / 2
        if power == 1:  # no double is nearer
            break
        rejecting, keeping = ORDERS * math.log(power / false_positives), ORDERS * math.log((1 - power) / kept)
        there = np.logaddexp(math.log(false_positives) + rejecting, math.log(kept) + keeping)
        back = np.logaddexp(math.log(power) - rejecting, math.log1p(-power) - keeping)
        low, high = (power, high) if (there <= most).all() and (back <= most).all() else (low, power)
    return high


def power_bound(
    epsilon: float, delta: float, false_positives: float, *, rho: float = 0.0, replacing: bool = False
) -> float:
    """Return the largest power of a test: by rho where it is known, else by epsilon and delta.

    ``replacing``: the loss is one of adding or removing, and the test tells two versions of a person's records apart.
    """
    if replacing:
        epsilon, delta, rho = 2 * epsilon, min(1.0, (1 + odds_factor(epsilon)) * delta) if delta else 0.0, 4 * rho
    known = detection_bound(epsilon, delta, false_positives)
    return min(known, detection_bound_zcdp(rho, false_positives)) if rho else known


def round_up(value: float) -> float:
    """Round an upper bound to three significant digits without making it smaller."""
    if not value or not math.isfinite(value):
        return value
    nearest = float(f"{value:.2e}")
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return nearest if nearest >= value * (1 - 1e-12) else float(f"{nearest + step:.2e}")


@dataclass(frozen=True, kw_only=True)
class CombiningAdvice:
    """The rule that combines the sets, or why none is right, and three lines of code that use it."""

    rule: str | None
    warning: str | None
    code: str


def standard_errors(release: PrivacyDocument) -> str:
    """Return why no standard error is known, or what there is beside the noise that the release lists."""
    found: str = (BESIDES if release.noise else WHY_NONE).get(release.mechanism, "" if release.noise else DEFAULT)
    return found


def combining(release: PrivacyDocument, certificate: Certificate | None = None) -> CombiningAdvice:
    """Return the rule of :func:`pdips.inference.rule_for`, or in its words why there is none."""
    code = (
        "import statsmodels.formula.api as smf\n"
        "from pdips.inference import combine, rule_for\n"
        f"combine(lambda one: smf.ols({formula(release.table_schema)!r}, one).fit(), sets, "
        'rule=rule_for("privacy.json")).summary()\n'
    )
    rule: str | None = None
    facts = {"mechanism": release.mechanism, "settings": release.settings, "n_sets": release.n_sets}
    try:
        rule, warning = nearest_rule(facts)
    except InputError as error:
        warning = str(error)
    if certificate is not None and certificate.refusal:
        warning = certificate.refusal
    return CombiningAdvice(rule=None if warning else rule, warning=warning, code=code)


def formula(schema: Schema) -> str:
    """Return an analysis that any set of the schema can be given to: an outcome on another column, if there is one."""
    columns = schema.columns
    names = [name for name, column in columns.items() if not column.public and column.type != "date"] or list(columns)
    numeric = [name for name in names if not columns[name].is_categorical]
    outcome = (numeric or names)[0]
    few = [name for name in columns if name != outcome and 2 <= len(columns[name].levels or ()) <= 6]
    right = f"C({_quoted(few[0])})" if few else _quoted(numeric[1]) if len(numeric) > 1 else "1"
    if numeric:
        return f"{_quoted(outcome)} ~ {right}"
    level: Any = (columns[outcome].levels or ("",))[-1]
    return f"I(({_quoted(outcome)} == {level!r}) * 1.0) ~ {right}"


def _quoted(name: str) -> str:
    return name if name.isidentifier() and not keyword.iskeyword(name) and name != "one" else f"Q({name!r})"


def _reading(schema: Schema, n_sets: int, *, csv: bool) -> str:
    """Return the lines of pandas that read the sets, and text levels as text."""
    options = ""
    if csv:
        looks = re.compile(r"\s*[-+]?(\d|\.\d|inf|nan|true|false)", re.IGNORECASE)
        text = {
            name: "str"
            for name, column in schema.columns.items()
            if any(isinstance(level, str) and looks.match(level) for level in column.levels or ())
        }
        options = ', keep_default_na=False, na_values=[""]' + (f", dtype={text!r}" if text else "")
    suffix = "csv" if csv else "parquet"
    return (
        "import pandas as pd\n"
        f'sets = [pd.read_{suffix}(f"synthetic_{{i}}.{suffix}"{options}) for i in range(1, {n_sets + 1})]\n'
    )


def _noisy(release: PrivacyDocument) -> str:
    """Return the lines that ask the noisy counts for a share, or nothing where they don't hold all columns."""
    counted = [name for law in release.margins for axis in law.axes for name in axis.columns]
    asked = [name for name, column in release.table_schema.columns.items() if name in counted and not column.public]
    if {*counted} < {*release.table_schema.columns} or not asked:
        return ""
    return f'from pdips.outside import NoisyMargins\nNoisyMargins.read(".").share([{asked[0]!r}]).summary()\n'
