"""A normal distribution for one numeric column.

Gelman, Carlin, Stern, Dunson, Vehtari & Rubin, Bayesian Data Analysis, 3rd edition
(2013), chapter 3, with proper priors.

Schema: one numeric column that isn't public. Public columns are copied and play no
part.
"""

import pymc as pm

from pdips.errors import InputError


def build_model(data, schema):
    names = [name for name, column in schema.columns.items() if not column.public]
    if (
        len(names) != 1
        or schema.columns[names[0]].is_categorical
        or schema.columns[names[0]].integer
    ):
        raise InputError(
            f"normal.py describes one numeric column that isn't integer, all others "
            f"public; the schema has {names}"
        )
    y = names[0]
    lower = schema.columns[y].lower
    span = schema.columns[y].upper - schema.columns[y].lower
    with pm.Model() as model:
        # The mean lies within the bounds with probability .95; values within bounds
        # never spread by more than half of their span.
        location = pm.Normal("location", 0.5, 0.25)
        spread = pm.HalfNormal("spread", 0.25)
        pm.Normal(y, lower + span * location, span * spread, observed=data[y])
    return model
