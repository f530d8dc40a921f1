"""Analyses as they are named: formulas with their settings, Bambi models, functions and
files, read before the table is.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from pydantic import ValidationError

from pdips.analyses.composite import WithAnalyses, check_tables, of_analysis
from pdips.conversion.formula_settings import formula_settings, of_two_levels
from pdips.data.analyses import DeclaredAnalysis, as_list
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.mechanism import Mechanism
from pdips.posterior.model_file import Source
from pdips.privacy.charge import reserved_to_read
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours
from pdips.sampling import written_model

SEPARATOR = ";"  # between a formula and its settings, and between these
# Records whose public columns are made up, for a plan without a table
MADE_UP = 480


def sources_of(
    analyses: Sequence[Any],
    schema: Schema,
    table: Any = None,
    ledger: Ledger | None = None,
    *,
    neighbours: Neighbours = "replace-one",
    explain: bool = True,
    allow: Collection[str] = (),
) -> list[Source]:
    """Return analyses as models, made with the public columns of a table, of which
    nothing else is read.

    Parameters
    ----------
    analyses : sequence of str, DeclaredAnalysis, mapping, bambi.Model, callable or path
        A formula may have settings behind it: ``"ill ~ age; family=bernoulli"``.
    schema : Schema
        Of the table.
    table, ledger, neighbours, explain, allow
        As in :func:`pdips.synthesize`; the table is needed where columns are public.

    Raises
    ------
    InputError
        If one can't be read, or doesn't fit the schema; the message names it.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "age": Column(lower=18, upper=99),
    ...         "ill": Column(levels=[0, 1]),
    ...     }
    ... )
    >>> [source] = sources_of(["ill ~ age; family=bernoulli"], schema)
    >>> source.text.splitlines()
    ['ill ~ age', "family = 'bernoulli'"]
    """
    written = []
    for analysis in as_list(analyses):
        with of_analysis(_label(analysis)):
            model, settings = _read(analysis)
            if isinstance(model, str):
                model, settings = of_two_levels(model, settings, schema)
            found = written_model(model, schema, settings)
            if found is None:
                raise InputError(_not_taken(model))
        written.append(found)
    sources = []
    with reserved_to_read(ledger, schema, neighbours, explain=explain, allow=allow):
        for found in written:
            with of_analysis(found.called):
                sources.append(found.source(table, schema))
    return sources


def with_analyses(
    mechanism: Mechanism,
    analyses: Sequence[Any],
    schema: Schema,
    table: Any = None,
    ledger: Ledger | None = None,
    **reading: Any,
) -> Mechanism:
    """Return a mechanism that answers analyses too, for the same price; ``reading`` are
    settings of :func:`sources_of`.
    """
    check_tables(mechanism)
    sources = sources_of(
        analyses, schema, table, ledger, neighbours=mechanism.neighbours, **reading
    )
    return WithAnalyses.of(mechanism, sources)


def planned_with(
    mechanism: Mechanism, analyses: Sequence[Any], schema: Schema
) -> WithAnalyses:
    """Return a mechanism that answers analyses too, for a plan before there is a table:
    public columns are made up.
    """
    check_tables(mechanism)
    sources = sources_of(analyses, schema, made_up_public(schema))
    return WithAnalyses.of(mechanism, sources)


def made_up_public(schema: Schema) -> pd.DataFrame:
    """Return public columns of records that nobody has: all levels of each in turn,
    and numbers all over its bounds.
    """
    cells = {}
    for name in schema.public_columns:
        column = schema.columns[name]
        if column.levels is not None:
            cells[name] = [*islice(cycle(column.levels), MADE_UP)]
            continue
        numbers = np.linspace(
            float(column.lower or 0), float(column.upper or 0), MADE_UP
        )
        if column.type == "date":
            cells[name] = [column.spell(value) for value in numbers]
        else:
            cells[name] = [*(numbers.round() if column.integer else numbers)]
    return pd.DataFrame(cells)


def _read(analysis: Any) -> tuple[Any, dict[str, Any]]:
    """Return the model of an analysis, and the settings beside it."""
    if isinstance(analysis, Mapping):
        try:
            analysis = DeclaredAnalysis(**analysis)
        except (ValidationError, TypeError):
            raise InputError(
                "an analysis that is a dict has a formula, and family, link and priors "
                "if need be: {'formula': 'ill ~ age', 'family': 'bernoulli'}"
            ) from None
    if isinstance(analysis, DeclaredAnalysis):
        return analysis.formula, analysis.settings
    if isinstance(analysis, str):
        formula, *settings = analysis.split(SEPARATOR)
        if "~" not in formula and not Path(formula).is_file():
            raise InputError(
                "it is neither a formula, such as 'y ~ x', nor a file with make(df)"
            )
        given = [each for each in settings if each.strip()]
        return formula.strip(), formula_settings(given)
    return analysis, {}


def _not_taken(model: Any) -> str:
    """Return what is said of a model of another form."""
    if isinstance(model, pm.Model):
        return (
            "a pm.Model holds the records that it was built on: hand over the function "
            "that makes it, make(df), which is called with made-up records"
        )
    return (
        "an analysis is a formula, such as 'y ~ x', a bambi.Model, or a function "
        "make(df) or its file"
    )


def _label(analysis: Any) -> str:
    """Return what an analysis is called that couldn't be read."""
    if isinstance(analysis, (str, Path)):
        return str(analysis)
    if isinstance(analysis, Mapping):
        return str(analysis.get("formula", "without a formula"))
    if isinstance(analysis, DeclaredAnalysis):
        return analysis.formula
    return str(getattr(analysis, "__name__", type(analysis).__name__))
