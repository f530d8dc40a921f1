"""How often the intervals of the README's analysis hold, over many releases of its
survey: ``python -m benchmarks.flagship [--releases N] [--epsilon E]``.

``make demo`` fits the analysis once, to one release. Each release here has noise of its
own; an interval holds if the survey's own coefficient is inside.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
import statsmodels.formula.api as smf

from pdips import Schema, synthesize
from pdips.inference import combine

EXAMPLES = Path(__file__).parents[1] / "examples"
FORMULA = "is_enrolled ~ sex + household_role"
N_SETS = 5  # as in the demo


def fitted(frame: pd.DataFrame, schema: Schema) -> Any:
    """Return a logistic regression of enrolment on sex and role in the household, each
    beside its first level.
    """
    is_enrolled = (frame["enrolled"] == "yes").astype(float)
    columns: dict[str, Any] = {"is_enrolled": is_enrolled}
    for name in ("sex", "household_role"):
        columns[name] = pd.Categorical(frame[name], schema.columns[name].levels)
    return smf.glm(FORMULA, columns, family=sm.families.Binomial()).fit()


def main() -> None:
    """Print a row for each coefficient."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=100)
    parser.add_argument("--epsilon", default="1")
    arguments = parser.parse_args()
    table = pd.read_parquet(EXAMPLES / "youth.parquet")
    schema = Schema.from_toml((EXAMPLES / "youth.toml").read_text(encoding="utf-8"))
    own = fitted(table, schema)
    fit = partial(fitted, schema=schema)
    held = []
    widths = []
    start = time.process_time()
    for _ in range(arguments.releases):
        release, _ = synthesize(
            table, schema, epsilon=arguments.epsilon, n_sets=N_SETS, progress=False
        )
        rows = combine(fit, release).summary()
        held.append((rows["lower"] <= own.params) & (own.params <= rows["upper"]))
        widths.append(rows["upper"] - rows["lower"])
    spent = (time.process_time() - start) / arguments.releases
    own_widths = own.conf_int()[1] - own.conf_int()[0]
    share = pd.concat(held, axis=1).mean(axis=1)
    ratio = pd.concat(widths, axis=1).div(own_widths, axis=0).median(axis=1)
    all_held = np.mean([each.all() for each in held])
    print("| coefficient | survey | held | width over the survey's own |")
    print("| --- | --- | --- | --- |")
    for name, value in own.params.items():
        print(f"| `{name}` | {value:.2f} | {share[name]:.2f} | {ratio[name]:.1f} |")
    print(
        f"all of a release held in {all_held:.2f} of {arguments.releases} releases; "
        f"{spent:.0f} CPU s each"
    )


if __name__ == "__main__":
    main()
