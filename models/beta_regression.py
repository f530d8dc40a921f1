"""A beta regression of one bounded numeric column on all public columns.

Ferrari & Cribari-Neto, Beta regression for modelling rates and proportions, Journal of
Applied Statistics 31 (2004). The application of Hu, Williams & Savitsky, Mechanisms for
global differential privacy under Bayesian data synthesis: salaries on gender, age group
and weeks worked.

Schema: one numeric column that isn't public, and at least one public column. A public
column with levels has an effect for each level but the first; a numeric one is moved to
[-1, 1] by its bounds (on the log scale where the schema says so).
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
            f"beta_regression.py describes one numeric column that isn't integer, "
            f"all others public; "
            f"the schema has {names}"
        )
    if not schema.public_columns:
        raise InputError(
            "beta_regression.py needs public columns to regress on; "
            "without any, beta.py is the model"
        )
    y = names[0]
    lower = schema.columns[y].lower
    span = schema.columns[y].upper - schema.columns[y].lower

    def scaled_beta(a, b, size):
        return lower + span * pm.Beta.dist(a, b, size=size)

    with pm.Model() as model:
        effects, x = design(data, schema)
        model.add_coord("effect", effects)
        # On the scale of log odds: normal(0, 1.5) is nearly uniform on the mean, and an
        # effect of 1 is a large one.
        intercept = pm.Normal("intercept", 0, 1.5)
        coefficients = pm.Normal("coefficients", 0, 1, dims="effect")
        precision = pm.Pareto("lambda", alpha=1.5, m=0.1)
        mean = pm.math.sigmoid(intercept + x @ coefficients)
        pm.CustomDist(
            y,
            precision * mean,
            precision * (1 - mean),
            dist=scaled_beta,
            observed=data[y],
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
