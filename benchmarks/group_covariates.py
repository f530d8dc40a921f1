"""Mixed models with covariates by ``group-sums``: how often intervals hold effects of
groups and common parameters, over redrawn tables:
``python -m benchmarks.group_covariates [bernoulli|normal] [--tables N] [--epsilon E]
[--slopes] [--wrong]``.

300 sites of 60 records on average, by a gamma law of shape 1.5; sex and four age groups
are confidential covariates, so that records are counted in 2,400 groups. With
``--slopes`` the slope of age differs by site, and records are counted by site and age;
with ``--wrong`` normal records have a t law with 3 degrees of freedom and others are
overdispersed.
"""

import argparse
import time

import numpy as np
import pandas as pd

from pdips import Schema, Table
from pdips.groups.group_sums import GroupSums
from pdips.sampling import source_of_groups

SITES = 300
RECORDS = 18_000
TRUTH = {
    "Intercept": -1.0,
    "sex": 0.5,
    "age": 0.2,
    "1|site_sigma": 0.6,
    "age|site_sigma": 0.3,
    "sigma": 1.5,
}
TAIL = 3  # degrees of freedom of normal records that are wrong
CLUMPED = 0.8  # deviation of what is added to the logits of wrong binary records
OUTCOMES = {
    "bernoulli": {"levels": [0, 1]},
    "normal": {"lower": -15, "upper": 15},
}
ENDS = [0.025, 0.975]


def drawn(
    arguments: argparse.Namespace, rng: np.random.Generator
) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """Return a table of the model and the effects of its sites."""
    effects = {"1|site": rng.normal(0, TRUTH["1|site_sigma"], SITES)}
    if arguments.slopes:
        effects["age|site"] = rng.normal(0, TRUTH["age|site_sigma"], SITES)
    sizes = rng.gamma(1.5, size=SITES)
    site = rng.choice(SITES, RECORDS, p=sizes / sizes.sum())
    sex = rng.choice(["f", "m"], RECORDS, p=[0.6, 0.4])
    age = rng.integers(1, 5, RECORDS)
    at = TRUTH["Intercept"] + TRUTH["age"] * age + effects["1|site"][site]
    columns = {"site": site, "age": age}
    if arguments.slopes:
        at = at + effects["age|site"][site] * age
    else:
        at = at + TRUTH["sex"] * (sex == "m")
        columns["sex"] = sex
    if arguments.family == "bernoulli":
        if arguments.wrong:
            at = at + rng.normal(0, CLUMPED, RECORDS)
        y = (rng.random(RECORDS) < 1 / (1 + np.exp(-at))).astype(int)
    else:
        off = rng.standard_normal(RECORDS)
        if arguments.wrong:
            off = rng.standard_t(TAIL, RECORDS) / np.sqrt(TAIL / (TAIL - 2))
        y = np.clip(at + TRUTH["sigma"] * off, -15, 15)
    return pd.DataFrame({"y": y, **columns}), effects


def main() -> None:
    """Print a row for each parameter, and one for the effects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="?", choices=[*OUTCOMES], default="bernoulli")
    parser.add_argument("--tables", type=int, default=14)
    parser.add_argument("--epsilon", default="1")
    parser.add_argument("--slopes", action="store_true")
    parser.add_argument("--wrong", action="store_true")
    arguments = parser.parse_args()
    columns = {
        "y": OUTCOMES[arguments.family],
        "site": {"lower": 0, "upper": SITES - 1, "integer": True},
        "sex": {"levels": ["f", "m"]},
        "age": {"lower": 1, "upper": 4, "integer": True},
    }
    formula = "y ~ sex + age + (1 | site)"
    if arguments.slopes:
        del columns["sex"]
        formula = "y ~ age + (1 + age | site)"
    schema = Schema.model_validate({"columns": columns})
    settings = {}
    if arguments.family == "bernoulli":
        settings["family"] = "bernoulli"
    source = source_of_groups(formula, schema, settings)
    mechanism = GroupSums(epsilon=arguments.epsilon, model=source, n_sets=1)
    off: dict[str, list[float]] = {}
    covered: dict[str, list[float]] = {}
    start = time.process_time()
    for number in range(arguments.tables):
        rng = np.random.default_rng(100 + number)
        frame, effects = drawn(arguments, rng)
        release, _ = mechanism.release(Table(frame, schema), rng=rng)
        assert release.posterior_draws is not None
        posterior = release.posterior_draws.posterior
        for name, value in TRUTH.items():
            if name in posterior:
                draws = posterior[name].to_numpy().ravel()
                z = (draws.mean() - value) / draws.std()
                off.setdefault(name, []).append(z)
        for name, truth in effects.items():
            low, high = posterior[name].quantile(ENDS, ("chain", "draw")).to_numpy()
            held = np.mean((low < truth) & (truth < high))
            covered.setdefault(name, []).append(float(held))
    seconds = (time.process_time() - start) / arguments.tables
    print("| parameter | off, in its sd: mean | root mean square | within 1.96 |")
    print("| --- | --- | --- | --- |")
    for name, values in off.items():
        size = np.sqrt(np.mean(np.square(values)))
        held = np.mean(np.abs(values) < 1.96)
        print(f"| {name} | {np.mean(values):.2f} | {size:.2f} | {held:.2f} |")
    for name, shares in covered.items():
        print(f"{name} covered {np.mean(shares):.3f}; {seconds:.0f} CPU s a release")


if __name__ == "__main__":
    main()
