"""Simulated households with their members: income follows the first member's age,
spouses are of one age.
"""

import numpy as np
import pandas as pd
from tables import schema_in

from pdips import Schema


def schema_of(most=6, **members):
    content = schema_in("households").to_dict()
    return Schema.model_validate(
        {**content, "members": {**content["members"], "most": most, **members}}
    )


def simulated(n, seed=0, most=6, *, shuffled=False):
    """Return households and members; ``shuffled`` is the broken twin, whose members
    live anywhere.
    """
    rng = np.random.default_rng(seed)
    size = rng.choice(
        np.minimum(np.arange(7), most), n, p=[0.03, 0.25, 0.3, 0.17, 0.15, 0.07, 0.03]
    )
    head = np.clip(rng.normal(48, 16, n), 18, 99)
    income = np.clip(15 + 0.9 * head + rng.normal(0, 14, n), 0, 120)
    households = pd.DataFrame({"household_id": rng.permutation(n) + 70_000})
    households["region"] = rng.choice(["north", "south", "west"], n, p=[0.5, 0.3, 0.2])
    households["income"] = income
    households["tenure"] = np.where(rng.random(n) < income / 130, "own", "rent")
    households["cars"] = np.clip(size - 1 + (rng.random(n) < 0.3), 0, 2)
    of, nth = (
        np.repeat(np.arange(n), size),
        np.concatenate([np.arange(k) for k in size]),
    )
    married = rng.random(n) < 0.7
    kinds = ["head", "spouse", "child"]
    relation = np.select(
        [nth == 0, (nth == 1) & married[of], rng.random(len(of)) < 0.9], kinds, "other"
    )
    noise = rng.normal(0, 4, len(of))
    ages = [head[of], head[of] + noise, head[of] - 28 + 2 * noise]
    age = np.select([relation == kind for kind in kinds], ages, 50 + 5 * noise)
    age = np.clip(age, 0, 99).astype(int)
    school = np.array(["low", "middle", "high"])[
        np.clip((age > 12) + (age > 20) * (rng.random(len(of)) < 0.5), 0, 2)
    ]
    members = (
        households[["household_id"]]
        .iloc[of]
        .reset_index(drop=True)
        .assign(relation=relation, age=age)
    )
    members = members.assign(sex=rng.choice(["f", "m"], len(of)), school=school)
    members["works"] = pd.Series(np.where(rng.random(len(of)) < 0.7, "yes", "no")).mask(
        (age < 15) | (age > 70)
    )
    if shuffled:
        members["household_id"] = rng.permutation(members["household_id"])
    order = rng.permutation(len(of))  # members are anywhere in the file
    return households, members.iloc[order].reset_index(drop=True)
