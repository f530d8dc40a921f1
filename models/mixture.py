"""A mixture of normal distributions for one numeric column, or of lognormal ones where
its scale is log.

Richardson & Green, On Bayesian analysis of mixtures with an unknown number of
components, Journal of the Royal Statistical Society B 59 (1997), with a fixed number of
components.

Schema: one numeric column that isn't public. Public columns are copied and play no
part.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pdips.errors import InputError

COMPONENTS = 3


def build_model(data, schema):
    names = [name for name, column in schema.columns.items() if not column.public]
    if (
        len(names) != 1
        or schema.columns[names[0]].is_categorical
        or schema.columns[names[0]].integer
    ):
        raise InputError(
            f"mixture.py describes one numeric column that isn't integer, all others "
            f"public; the schema has {names}"
        )
    y = names[0]
    is_log = schema.columns[y].scale == "log"
    component, scale = (pm.LogNormal, np.log) if is_log else (pm.Normal, np.asarray)
    lower = scale(schema.columns[y].lower)
    upper = scale(schema.columns[y].upper)
    with pm.Model(coords={"component": range(COMPONENTS)}) as model:
        weights = pm.Dirichlet("weights", np.ones(COMPONENTS), dims="component")
        # The means are as many independent uniform draws from between the bounds, in
        # order: so no component can be called by another's name.
        gaps = pm.Dirichlet("gaps", np.ones(COMPONENTS + 1))
        means = pt.cumsum(gaps)[:-1]
        # In spans of the bounds. An inverse gamma keeps a component from shrinking to
        # one value.
        spreads = pm.InverseGamma("spreads", alpha=2, beta=0.2, dims="component")
        components = component.dist(
            lower + (upper - lower) * means, (upper - lower) * spreads
        )
        pm.Mixture(y, weights, components, observed=data[y])
    return model
