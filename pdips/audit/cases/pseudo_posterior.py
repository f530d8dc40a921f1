"""The pairs and events on which the pseudo posterior is audited: it is caught on all of them (SOUNDNESS section 8)."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from numpy.typing import NDArray

from pdips.arrays import BoolArray
from pdips.audit.neighbour_pairs import Case, Pair
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.posterior.columns import Columns
from pdips.posterior.pseudo_posterior import PseudoPosterior

SCHEMA = Schema.model_validate({"columns": {"y": {"lower": -1000, "upper": 1000}}})


def normal(data: Columns, schema: Schema) -> pm.Model:
    """Return the model of the pairs: records of known deviation 1 about an unknown mean."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 10)
        pm.Normal("y", theta, 1, observed=data["y"])
    return model


def pseudo_posterior(build: Callable[..., PseudoPosterior]) -> Iterator[Case]:
    """Yield the cases of the pseudo posterior, with a model of their own."""
    mechanism = build(model=normal)
    yield Case(mechanism, _dropped() if mechanism.weights == "weighted-e" else _harmless())


def _dropped() -> Pair:
    """Return the pair in which a record makes all others risky, so that none counts."""
    name, event = "an outlier among equal records", "the mean is more than 3 from 0"
    return Pair(name, _table([400.0] + [0.0] * 19), _table([0.0] * 20), "replace-one", _far, event)


def _harmless() -> Pair:
    """Return the pair in which a record makes all others harmless, so that they count in full."""
    rest = [0.0] * 13 + [5.0] * 6
    name, event = "an outlier beside a risky minority", "the mean is above 1.2"
    return Pair(name, _table([400.0, *rest]), _table([0.0, *rest]), "replace-one", _above, event)


def _table(records: list[float]) -> Table:
    return Table(pd.DataFrame({"y": records}), SCHEMA)


def _far(rows: NDArray[Any]) -> BoolArray:
    found: BoolArray = np.abs(rows[:, 0]) > 3
    return found


def _above(rows: NDArray[Any]) -> BoolArray:
    found: BoolArray = rows[:, 0] > 1.2
    return found
