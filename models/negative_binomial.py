"""A negative binomial regression of one count on the public columns, if there are any.

Cameron & Trivedi, Regression Analysis of Count Data, 2nd edition (2013), section 3.3:
the NB2 model, whose variance is mean + (dispersion * mean)^2.

Schema: one integer column that isn't public, with lower bound 0. A public column with
levels has an effect for each level but the first; a numeric one is moved to [-1, 1] by
its bounds (on the log scale where the schema says so).
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pdips.errors import InputError


def build_model(data, schema):
    names = [name for name, column in schema.columns.items() if not column.public]
    if (
        len(names) != 1
        or not schema.columns[names[0]].integer
        or schema.columns[names[0]].lower != 0
    ):
        raise InputError(
            "negative_binomial.py describes one integer column with lower = 0, all "
            "others public; "
            f"the schema has {names}"
        )
    y = names[0]
    width = np.log1p(schema.columns[y].upper)
    with pm.Model() as model:
        # The mean lies between 1 and the upper bound with probability .95. Dispersion 0
        # is a Poisson distribution.
        log_mean = pm.Normal("intercept", width / 2, width / 4)
        dispersion = pm.HalfNormal("dispersion", 1)
        if schema.public_columns:
            effects, x = design(data, schema)
            model.add_coord("effect", effects)
            log_mean = log_mean + x @ pm.Normal("coefficients", 0, 1, dims="effect")
        pm.NegativeBinomial(
            y, mu=pm.math.exp(log_mean), alpha=dispersion**-2.0, observed=data[y]
        )
    return model


def design(data, schema):
    """Names of the effects, and the matrix of records by effects."""
    effects = []
    columns = []
    for name in schema.public_columns:
        column = schema.columns[name]
        if column.is_categorical:
            effects += [f"{name}[{level}]" for level in column.names()[1:]]
            columns += [
                pt.eq(data[name], code).astype("float64")
                for code in range(1, column.n_levels)
            ]
        else:
            scale, value = (
                (np.log, pt.log(data[name]))
                if column.scale == "log"
                else (np.asarray, data[name])
            )
            low = scale(column.lower)
            high = scale(column.upper)
            effects.append(name)
            columns.append((2 * value - low - high) / (high - low))
    return effects, pt.stack(columns, axis=1)
