"""What the gallery holds of a model: its text, its columns, and records of which it is
true.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

Columns = dict[str, dict[str, Any]]
Truth = Mapping[str, Any]
Simulate = Callable[[np.random.Generator, int], tuple[pd.DataFrame, Truth]]


@dataclass(frozen=True, kw_only=True)
class Written:
    """A model in one of the forms that ``pdips.sample`` takes.

    Parameters
    ----------
    model : callable, str or list of str
        A function ``make(df)``, a formula, or formulas of several parameters.
    settings : dict
        What stands beside a formula.
    said : str
        What differs from the source's text.
    """

    model: Any
    settings: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model of a gallery.

    Parameters
    ----------
    name : str
        Of the page that it stands on.
    family : str
        What it is called.
    columns : dict
        The schema's.
    simulate : callable
        Draws records, and says at which parameters.
    written : Written
        The model as its source states it.
    amended : Written, optional
        The model as the refusal says to write it.
    n_records : int
        How many are drawn.
    """

    name: str
    family: str
    columns: Columns
    simulate: Simulate
    written: Written
    amended: Written | None = None
    n_records: int = 4_000


def public(**settings: Any) -> dict[str, Any]:
    """Return the settings of a column that everybody may know."""
    return {"public": True, **settings}


def number(lower: float, upper: float, **settings: Any) -> dict[str, Any]:
    """Return the settings of a column of numbers."""
    return {"lower": lower, "upper": upper, **settings}


def count(lower: int, upper: int, **settings: Any) -> dict[str, Any]:
    """Return the settings of a column of whole numbers."""
    return number(lower, upper, integer=True, **settings)


def levels(*names: Any, **settings: Any) -> dict[str, Any]:
    """Return the settings of a column with levels."""
    return {"levels": list(names), **settings}
