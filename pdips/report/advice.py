"""What a user may do with the sets: which standard errors are known, which rule combines them, in lines that run."""

import keyword
import warnings
from dataclasses import dataclass
from typing import Any

from pdips.data.schema import Column, Schema
from pdips.errors import InputError
from pdips.release.documents import PrivacyDocument

_DRAWN = (
    "Records were drawn from the table's shares after these were pulled towards even ones: nothing was noised. How far "
    "a share is off depends on the confidential share itself, so a standard error would have to be paid for."
)
_POSTERIOR = (
    "The sets show a model at released values of its parameters. How wide the posterior of these is was read from "
    "confidential records and not paid for, so no standard error is published."
)
_LINES = (
    "Lines through the data were drawn, with a law that prefers those near the confidential quantiles. How far off "
    "they are depends on how many records lie near each, which is confidential: a standard error would have "
    "to be paid for."
)
WHY_NONE = {
    "censored-posterior": _POSTERIOR,
    "kng": _LINES,
    "kng-residual": _LINES,
    "mcclure-reiter": _DRAWN,
    "multinomial-dirichlet": _DRAWN,
    "pseudo-posterior": _POSTERIOR,
    "smoothed-histogram": _DRAWN,
}
"""Why the card of a mechanism gives no standard errors."""

BESIDES = {
    "perturbed-histogram": "Records were then drawn one by one from the noisy shares, which adds the error of a "
    "sample: for a share p of N synthetic records, the square root of p (1 - p) / N.",
    "privbayes": "This is the noise on the tables that the network is made of. Combinations of columns that no table "
    "holds follow from the independence that the network assumes; how far off that is nobody paid to know.",
    "universal-histogram": "Counts of all layers were put together, which makes ranges more exact than the sum of "
    "their levels; the standard deviation above is that of each count before.",
}
"""What there is beside the noise in the estimates of a mechanism."""

DEFAULT = "The release lists no noise, so no standard error can be told."


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What is to be said about combining the sets.

    Attributes
    ----------
    rule : str or None
        The rule that fits; None where none does.
    warning : str or None
        Why no rule is right, or why there is none.
    code : str
        Three lines that analyse each set and combine the results.
    """

    rule: str | None
    warning: str | None
    code: str


def standard_errors(facts: PrivacyDocument) -> str:
    """Return why no standard error is known, or what there is beside the noise that the release lists."""
    if facts.noise:
        return BESIDES.get(facts.mechanism, "")
    return WHY_NONE.get(facts.mechanism, DEFAULT)


def combining(facts: PrivacyDocument) -> Advice:
    """Return the rule of :func:`pdips.inference.rule_for`, or in its words why there is none."""
    from pdips.inference import rule_for

    code = _code(facts.table_schema)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rule = rule_for({"mechanism": facts.mechanism, "settings": facts.settings, "n_sets": facts.n_sets})
    except InputError as error:
        return Advice(rule=None, warning=str(error), code=code)
    if caught:
        return Advice(rule=None, warning=str(caught[0].message), code=code)
    return Advice(rule=rule, warning=None, code=code)


def _code(schema: Schema) -> str:
    return (
        "import statsmodels.formula.api as smf\n"
        "from pdips.inference import combine, rule_for\n"
        f"combine(lambda one: smf.ols({formula(schema)!r}, one).fit(), sets, "
        'rule=rule_for("privacy.json")).summary()\n'
    )


def formula(schema: Schema) -> str:
    """Return an analysis that any set of the schema can be given to: an outcome on another column, if there is one."""
    names = [name for name, column in schema.columns.items() if not column.public] or list(schema.columns)
    numeric = [name for name in names if not schema.columns[name].is_categorical]
    outcome = (numeric or names)[0]
    others = [name for name in schema.columns if name != outcome]
    few = [name for name in others if _few(schema.columns[name])]
    right = f"C({_name(few[0])})" if few else _name(numeric[1]) if len(numeric) > 1 else "1"
    return f"{_left(outcome, schema.columns[outcome])} ~ {right}"


def _few(column: Column) -> bool:
    return column.is_categorical and 2 <= len(column.levels or ()) <= 6


def _left(name: str, column: Column) -> str:
    if not column.is_categorical:
        return _name(name)
    level: Any = (column.levels or ("",))[-1]
    return f"I(({_name(name)} == {level!r}) * 1.0)"


def _name(name: str) -> str:
    return name if name.isidentifier() and not keyword.iskeyword(name) and name != "one" else f"Q({name!r})"
