"""Mixed models by formula: their groups, the schema that they are built on, and the
model of a published formula.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from pdips.conversion.convert import converted_model
from pdips.conversion.formulas import maker_of
from pdips.conversion.frames import MadeUp
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.groups.design import ONE_GROUP, check_group, n_values
from pdips.groups.recognised import check_crossed, template_of
from pdips.posterior.model_file import Source

GROUP_TERM = re.compile(r"\(\s*(?P<effects>[^()|]*?)\s*\|(?P<group>[^()]*)\)")
"""A term of a formula that differs by group."""
SETTING = re.compile(r"(?P<name>\w+) = (?P<value>.+)")
"""A line of a formula's public text that is a setting."""
FORMULA = "formula"


def groups_in_formula(model: Any) -> dict[str, int]:
    """Return the groups of a formula, and how many effects of each are written, at
    least; none of another model.

    Examples
    --------
    >>> (
    ...     groups_in_formula("ill ~ age + (1 + age | site)"),
    ...     groups_in_formula("ill ~ age"),
    ... )
    ({'site': 2}, {})
    """
    if isinstance(model, (list, tuple)) and len(model) == 1:
        [model] = model
    terms = [*GROUP_TERM.finditer(model)] if isinstance(model, str) else []
    groups = dict[str, int]()
    for term in terms:
        effects = {effect.strip() for effect in term["effects"].split("+")}
        # an intercept is there unless it is taken out
        if "0" not in effects:
            effects.add("1")
        name = term["group"].strip()
        groups[name] = groups.get(name, 0) + len(effects - {"0"})
    return groups


def template_for(model: Any, schema: Schema) -> Schema:
    """Return the schema on which a model is built, or refuse crossed groups."""
    groups = groups_in_formula(model)
    check_crossed(schema, [*groups])
    known = [name for name in groups if name in schema.columns]
    for name in known:
        check_group(name, schema.columns[name])
        if n_values(schema.columns[name]) < 2:
            raise InputError(ONE_GROUP)
    most = max(known, key=lambda name: n_values(schema.columns[name]), default=None)
    return template_of(schema, most)


def source_of_published(settings: Mapping[str, Any], schema: Schema) -> Source:
    """Return the model of a release by its public text, which is a formula with
    settings that are plain values. No code is run.

    Raises
    ------
    InputError
        If it is a function, or a setting is an object such as a prior.
    """
    text = str(settings.get("model_source") or "")
    formulas = []
    given = dict[str, Any]()
    try:
        if settings.get("model") != FORMULA or "extra_namespace" in text:
            raise ValueError("a function")
        for line in text.splitlines():
            setting = SETTING.fullmatch(line)
            if setting is None:
                formulas.append(line)
            else:
                given[setting["name"]] = ast.literal_eval(setting["value"])
    except (ValueError, SyntaxError):
        raise InputError(
            "the model of this release isn't a formula with plain settings, and code "
            "of a folder isn't run: draw more sets where the release was made, by its "
            "more_sets"
        ) from None
    formula = formulas if len(formulas) > 1 else "".join(formulas)
    template = template_for(formula, schema)
    make = maker_of(formula, template, **given)
    converted = converted_model(make, MadeUp(template, None), FORMULA)
    return Source(converted.build, FORMULA, make.text, converted=converted)
