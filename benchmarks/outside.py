"""Coverage of intervals from noisy margins, over tables drawn from a survey: ``python -m benchmarks.outside``."""

import argparse
import time
import warnings
from itertools import product

import numpy as np
import pandas as pd
import statsmodels.api as sm
from statsmodels.formula.api import glm, ols

from pdips import Pairs, Schema, Table
from pdips.errors import UselessWarning
from pdips.margins.pairs import estimate
from pdips.outside import NoisyMargins, noisy_margins

PREDICTORS = ["sex", "education", "foreign_born"]


def main() -> None:
    """Print a row for each analysis, outcome, size and epsilon."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--replicates", type=int, default=200, help="of the noise, in place of the library's 1,000")
    parser.add_argument("--sizes", type=int, nargs="+", default=[5_000, 50_000])
    parser.add_argument("--epsilons", nargs="+", default=["0.25", "1", "4"])
    asked = parser.parse_args()
    frame = pd.read_parquet("examples/youth.parquet")[[*PREDICTORS, "enrolled", "income"]].astype(str)
    schema = Schema.model_validate({"columns": {name: {"levels": sorted(set(frame[name]))} for name in frame}})
    noisy_margins.N_REPLICATES = asked.replicates
    codes = pd.DataFrame(dict(Table(frame, schema).codes))
    right = " + ".join(f"C({name})" for name in PREDICTORS)
    print("outcome, fit, records, epsilon: coverage of answers that aren't open, open ones, seconds an answer")
    for outcome, fit in product(("enrolled", "income"), ("ols", "binomial")):
        formula = f"{outcome} ~ {right}"
        model = ols(formula, codes) if fit == "ols" else glm(formula, codes, family=sm.families.Binomial())
        truth = model.fit().params.to_numpy()
        for n, epsilon in product(asked.sizes, asked.epsilons):
            mechanism = Pairs(epsilon=epsilon, kind="zcdp")
            plan, held, unknown, start = mechanism.plan(schema), [], 0, time.perf_counter()
            for number in range(asked.tables):
                rng = np.random.default_rng([n, number])
                table = Table(frame.sample(n, replace=True, random_state=rng, ignore_index=True), schema)
                shown = plan.design.image.show(plan.design.count(table)[None])[0]
                seen = estimate(plan.design, plan.steps[0], shown, n).again(rng)
                margins, left = NoisyMargins(schema, plan.design, seen), f"{outcome} ~ {' + '.join(PREDICTORS)}"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UselessWarning)
                    answer = margins.ols(left) if fit == "ols" else margins.glm(left, family="binomial")
                found = answer.summary()
                if np.isfinite(answer.covariance).all():
                    held.append((found["lower"].to_numpy() <= truth) & (truth <= found["upper"].to_numpy()))
                else:
                    unknown += 1
            spent = (time.perf_counter() - start) / asked.tables
            row = f"{np.mean(held) if held else np.nan:.3f}  {unknown}  {spent:.2f}"
            print(f"{outcome}, {fit}, {n}, {epsilon}: {row}", flush=True)


if __name__ == "__main__":
    main()
