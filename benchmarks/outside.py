"""Coverage of intervals from noisy margins, over tables drawn from a survey: ``python
-m benchmarks.outside``.
"""

import argparse
import time
import warnings
from collections import defaultdict
from itertools import product

import numpy as np
import pandas as pd
import statsmodels.api as sm
from statsmodels.formula.api import glm, ols

from pdips import Margins, Schema, Table
from pdips.errors import UselessWarning
from pdips.margins.estimates import estimate
from pdips.outside import NoisyMargins, noisy_margins

PREDICTORS = ["sex", "education", "foreign_born"]
OUTCOMES = ("enrolled", "income")
CASES = tuple(product(OUTCOMES, ("ols", "binomial")))


def main() -> None:
    """Print a row for each outcome, fit, size and epsilon; each table is released once,
    and asked all questions.

    A column ``coin`` is drawn for each table, independent of all others: the
    population's coefficient is 0, and a test at 5 % that rejects it is a false
    positive.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument(
        "--replicates",
        type=int,
        default=1_000,
        help="of the noise; the library's number by default",
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[5_000, 50_000])
    parser.add_argument("--epsilons", nargs="+", default=["0.25", "1", "4"])
    asked = parser.parse_args()
    frame = pd.read_parquet("examples/youth.parquet")[[*PREDICTORS, *OUTCOMES]].astype(
        str
    )
    levels = {name: sorted(set(frame[name])) for name in frame} | {
        "coin": ["heads", "tails"]
    }
    schema = Schema.model_validate(
        {"columns": {name: {"levels": each} for name, each in levels.items()}}
    )
    noisy_margins.N_REPLICATES = asked.replicates
    truth = {case: np.append(true_coefficients(frame, *case), 0.0) for case in CASES}
    print(
        "outcome, fit, records, epsilon: coverage of answers that aren't open; their "
        "number; false positives of coin;"
    )
    print("processor seconds an answer, mean and longest")
    for n, epsilon in product(asked.sizes, asked.epsilons):
        plan, held, seconds = (
            Margins(measure="pairs", epsilon=epsilon, delta="1e-6").plan(schema),
            defaultdict(list),
            defaultdict(list),
        )
        for number in range(asked.tables):
            rng = np.random.default_rng([n, number])
            records = frame.sample(n, replace=True, random_state=rng, ignore_index=True)
            table = Table(records.assign(coin=rng.choice(levels["coin"], n)), schema)
            shown = plan.design.image.show(plan.design.count(table)[None])[0]
            margins = NoisyMargins(
                schema,
                plan.design,
                estimate(plan.design, plan.steps[0], shown, n).again(rng),
            )
            for outcome, fit in CASES:
                formula, start = (
                    (f"{outcome} ~ {' + '.join([*PREDICTORS, 'coin'])}"),
                    time.process_time(),
                )
                with warnings.catch_warnings(action="ignore", category=UselessWarning):
                    answer = (
                        margins.ols(formula)
                        if fit == "ols"
                        else margins.glm(formula, family="binomial")
                    )
                found, true = answer.summary(), truth[outcome, fit]
                seconds[outcome, fit].append(time.process_time() - start)
                if np.isfinite(answer.covariance).all():
                    held[outcome, fit].append(
                        (found["lower"].to_numpy() <= true)
                        & (true <= found["upper"].to_numpy())
                    )
        for outcome, fit in CASES:
            inside, spent = np.array(held[outcome, fit]), seconds[outcome, fit]
            row = (
                (f"{inside.mean():.3f}  {len(inside)}  {1 - inside[:, -1].mean():.3f}")
                if len(inside)
                else "-  0  -"
            )
            print(
                f"{outcome}, {fit}, {n}, {epsilon}: {row}  {np.mean(spent):.2f} "
                f"{np.max(spent):.2f}",
                flush=True,
            )


def true_coefficients(frame: pd.DataFrame, outcome: str, fit: str) -> np.ndarray:
    """Return the coefficients of the population."""
    codes = frame.apply(lambda column: column.astype("category").cat.codes)
    formula = f"{outcome} ~ {' + '.join(f'C({name})' for name in PREDICTORS)}"
    model = (
        ols(formula, codes)
        if fit == "ols"
        else glm(formula, codes, family=sm.families.Binomial())
    )
    return np.asarray(model.fit().params)


if __name__ == "__main__":
    main()
