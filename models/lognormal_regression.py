"""A lognormal regression of one positive numeric column on the public columns, if there
are any.

Gelman, Hill & Vehtari, Regression and Other Stories (2020), section 12.4: linear
regression of the logarithm.

Schema: one numeric column that isn't public, with a lower bound above 0. A public
column with levels has an effect for each level but the first; a numeric one is moved to
[-1, 1] by its bounds (on the log scale where the schema says so). If numbers may be
missing, a logistic regression on the same columns says whether they are.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pdips.errors import InputError


def build_model(data, schema):
    names = [name for name, column in schema.columns.items() if not column.public]
    if (
        len(names) != 1
        or schema.columns[names[0]].is_categorical
        or schema.columns[names[0]].integer
    ):
        raise InputError(
            "lognormal_regression.py describes one numeric column that isn't "
            "integer, all others public; "
            f"the schema has {names}"
        )
    y = names[0]
    if schema.columns[y].lower <= 0:
        raise InputError(
            f"lognormal_regression.py needs a lower bound above 0 for column {y!r}"
        )
    lower = np.log(schema.columns[y].lower)
    span = np.log(schema.columns[y].upper / schema.columns[y].lower)
    with pm.Model() as model:
        # All in spans of the logarithm: the median lies within the bounds with
        # probability .95.
        location = pm.Normal("location", 0.5, 0.25)
        spread = pm.HalfNormal("spread", 0.25)
        odds = pm.Normal("odds", 0, 1.5) if schema.columns[y].missing else None
        if schema.public_columns:
            effects, x = design(data, schema)
            model.add_coord("effect", effects)
            location = location + x @ pm.Normal("coefficients", 0, 0.25, dims="effect")
            if odds is not None:
                odds = odds + x @ pm.Normal("odds_coefficients", 0, 1, dims="effect")
        pm.LogNormal(y, lower + span * location, span * spread, observed=data[y])
        if odds is not None:
            pm.Bernoulli(f"{y}_missing", logit_p=odds, observed=data[f"{y}_missing"])
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
