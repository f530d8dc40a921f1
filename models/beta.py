"""A beta distribution on the bounds of one numeric column.

Hu, Williams & Savitsky, Mechanisms for global differential privacy under Bayesian data
synthesis: the synthesizer of their simulations, with the priors of their Stan program
(Supplement 2). The mean is lower + (upper - lower) * phi; lambda is the precision.

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
            f"beta.py describes one numeric column that isn't integer, all others "
            f"public; the schema has {names}"
        )
    y = names[0]
    lower = schema.columns[y].lower
    span = schema.columns[y].upper - schema.columns[y].lower

    def scaled_beta(a, b, size):
        return lower + span * pm.Beta.dist(a, b, size=size)

    with pm.Model() as model:
        # any mean between the bounds is as likely as any other
        phi = pm.Beta("phi", 1, 1)
        precision = pm.Pareto("lambda", alpha=1.5, m=0.1)
        pm.CustomDist(
            y,
            precision * phi,
            precision * (1 - phi),
            dist=scaled_beta,
            observed=data[y],
        )
    return model
