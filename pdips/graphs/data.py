"""Columns as data of a PyMC model, also of one that was made of another."""

from collections.abc import Mapping
from typing import Any

import pymc as pm
import pytensor
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors


def as_data(model: pm.Model, name: str, column: str, values: NDArray[Any]) -> Any:
    """Return a column as data of a model, tagged with its name.

    That is what ``pm.Data`` makes, but for whole numbers, which stay as wide as those
    that a model draws: ``pm.observe`` and ``pm.do`` take no others.
    """
    data = pytensor.shared(values, name=model.name_for(name), shape=(None,))
    data.tag.column = column
    model.register_data_var(data)
    return data


def read_own_data(model: pm.Model, made: Mapping[str, Any]) -> None:
    """Let the observed values of a model read the data that it holds, in the place of
    data that were made under the same names.

    ``pm.observe`` copies a model with its data, and observes what it is given, which
    are the data of the model before.
    """
    copies = {
        before: model[name] for name, before in made.items() if name in model.named_vars
    }
    for variable in model.observed_RVs:
        value = model.rvs_to_values[variable]
        if all(copies.get(read, read) is read for read in ancestors([value])):
            continue
        [own] = clone_replace([value], copies, rebuild_strict=False)
        del model.values_to_rvs[value]
        model.rvs_to_values[variable] = own
        model.values_to_rvs[own] = variable
