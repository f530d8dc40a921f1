"""Normal distributions of one numeric column in the groups of a public column, their
means partially pooled.

Gelman, Carlin, Stern, Dunson, Vehtari & Rubin, Bayesian Data Analysis, 3rd edition
(2013), chapter 5.

Schema: one numeric column that isn't public, and one public column with levels: the
groups. Other public columns are numeric, are copied and play no part.
"""

import pymc as pm

from pdips.errors import InputError


def build_model(data, schema):
    names = [name for name, column in schema.columns.items() if not column.public]
    groups = [
        name for name in schema.public_columns if schema.columns[name].is_categorical
    ]
    if (
        len(names) != 1
        or schema.columns[names[0]].is_categorical
        or schema.columns[names[0]].integer
    ):
        raise InputError(
            "hierarchical_normal.py describes one numeric column that isn't integer, "
            "all others public; "
            f"the schema has {names}"
        )
    if len(groups) != 1:
        raise InputError(
            f"hierarchical_normal.py needs one public column with levels, which is "
            f"the group; the schema has {groups}"
        )
    y = names[0]
    group = groups[0]
    lower = schema.columns[y].lower
    span = schema.columns[y].upper - schema.columns[y].lower
    with pm.Model(coords={"group": schema.columns[group].names()}) as model:
        # In spans of the bounds. Offsets of the groups sum to zero: so the location is
        # their common mean.
        location = pm.Normal("location", 0.5, 0.25)
        between = pm.HalfNormal("between", 0.25)
        within = pm.HalfNormal("within", 0.25)
        offset = pm.ZeroSumNormal("offset", 1, dims="group")
        mean = location + between * offset
        pm.Normal(y, lower + span * mean[data[group]], span * within, observed=data[y])
    return model
