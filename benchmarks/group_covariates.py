"""Mixed models with covariates by ``group-sums``: how often intervals hold effects of
groups and common parameters, over redrawn tables:
``python -m benchmarks.group_covariates [bernoulli|normal] [--tables N] [--first N]
[--epsilon E] [--sites N] [--slopes] [--wrong WHAT]``; seeds are 100 and the number of
the table, from ``--first`` on.

300 sites of 60 records on average, by a gamma law of shape 1.5; sex and four age groups
are confidential covariates, so that records are counted in 2,400 groups. With
``--slopes`` the slope of age differs by site, and records are counted by site and age.
"""

import argparse
import time
from typing import Any

import numpy as np
import pandas as pd

from pdips import Schema, Table
from pdips.groups.group_sums import GroupSums
from pdips.sampling import source_of_groups

TRUTH = {
    "Intercept": -1.0,
    "sex": 0.5,
    "age": 0.2,
    "1|site_sigma": 0.6,
    "age|site_sigma": 0.3,
    "sigma": 1.5,
}
WRONG = {
    "tails": "records have a t law with 3 degrees of freedom, or are overdispersed",
    "skew": "effects of sites, and normal records, are exponential",
    "interaction": "age has a curve, or another effect by sex, that the model omits",
    "spread": "records of some sites are spread up to three times as far as of others",
}
"""What may be otherwise than the model has it."""
RECORDS_A_SITE = 60
SPREAD_OF_LOGS = 0.5  # of deviations of sites that are wrong
CURVE = 0.15  # of a square of age, and of the product with sex, that the model omits
TAIL = 3  # degrees of freedom of normal records that are wrong
CLUMPED = 0.8  # deviation of what is added to the logits of wrong binary records
OUTCOMES: dict[str, dict[str, Any]] = {
    "bernoulli": {"levels": [0, 1]},
    "normal": {"lower": -15, "upper": 15},
}
ENDS = [0.025, 0.975]
KNOWN = "Intercept, sizes and variances known"


def drawn(
    arguments: argparse.Namespace, rng: np.random.Generator
) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """Return a table of the model, or of a wrong one, and the effects of its sites."""
    sites = arguments.sites
    records = RECORDS_A_SITE * sites
    effects = {"1|site": _effects(arguments, "1|site_sigma", rng)}
    if arguments.slopes:
        effects["age|site"] = _effects(arguments, "age|site_sigma", rng)
    sizes = rng.gamma(1.5, size=sites)
    site = rng.choice(sites, records, p=sizes / sizes.sum())
    is_male = rng.random(records) > 0.6
    age = rng.integers(1, 5, records)
    at = TRUTH["Intercept"] + TRUTH["age"] * age + effects["1|site"][site]
    columns = {"site": site, "age": age}
    if arguments.slopes:
        at = at + effects["age|site"][site] * age
    else:
        at = at + TRUTH["sex"] * is_male
        columns["sex"] = np.where(is_male, "m", "f")
    if arguments.wrong == "interaction":
        by = age - 2.5 if arguments.slopes else is_male - 0.4
        # uncorrelated with what the model has
        product = by * (age - 2.5)
        at = at + CURVE * (product - product.mean())
    y = _outcomes(arguments, at, site, rng)
    return pd.DataFrame({"y": y, **columns}), effects


def _effects(
    arguments: argparse.Namespace, name: str, rng: np.random.Generator
) -> np.ndarray:
    """Return effects of sites, of the right spread."""
    standard = rng.standard_normal(arguments.sites)
    if arguments.wrong == "skew":
        standard = rng.exponential(size=arguments.sites) - 1
    return np.asarray(TRUTH[name] * standard)


def _outcomes(
    arguments: argparse.Namespace,
    at: np.ndarray,
    site: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return outcomes of records at their predictors."""
    wrong = arguments.wrong
    of_sites = np.zeros(arguments.sites)
    if wrong == "spread":
        of_sites = SPREAD_OF_LOGS * rng.standard_normal(arguments.sites)
    if arguments.family == "bernoulli":
        clumped = {"tails": CLUMPED, "spread": 2 * CLUMPED}.get(wrong, 0.0)
        deviation = clumped * np.exp(of_sites - SPREAD_OF_LOGS**2)[site]
        at = at + deviation * rng.standard_normal(len(at))
        return np.asarray(rng.random(len(at)) < 1 / (1 + np.exp(-at)), np.int64)
    off = rng.standard_normal(len(at))
    if wrong == "tails":
        off = rng.standard_t(TAIL, len(at)) / np.sqrt(TAIL / (TAIL - 2))
    if wrong == "skew":
        off = rng.exponential(size=len(at)) - 1
    # of the same variance over all sites
    deviation = TRUTH["sigma"] * np.exp(of_sites - SPREAD_OF_LOGS**2)[site]
    if wrong != "spread":
        deviation = np.full(len(at), TRUTH["sigma"])
    return np.asarray(np.clip(at + deviation * off, -15, 15))


def exactly(frame: pd.DataFrame, table: pd.DataFrame) -> float:
    """Return how far off, in its deviation, the intercept is by generalised least
    squares of the same noisy sums, if numbers of records and variances are known: of
    normal outcomes with slopes.
    """
    ages = np.arange(1, 5)
    n_sites = len(table) // len(ages)
    cell = (frame["site"] * len(ages) + frame["age"] - 1).to_numpy()
    sizes = np.bincount(cell, minlength=n_sites * len(ages)).reshape(n_sites, -1)
    sums = table["noisy_sum"].to_numpy().reshape(n_sites, -1)
    # of the noise on a sum, in the outcome's unit: sizes have as much, in records
    noise = np.var(table["noisy_records"].to_numpy() - sizes.ravel())
    noise = noise * OUTCOMES["normal"]["upper"] ** 2
    factors = np.column_stack([np.ones(len(ages)), ages])
    between = np.diag([TRUTH["1|site_sigma"] ** 2, TRUTH["age|site_sigma"] ** 2])
    told = np.zeros((2, 2))
    pull = np.zeros(2)
    for size, total in zip(sizes, sums, strict=True):
        given = factors * size[:, None]
        within = np.diag(size * TRUTH["sigma"] ** 2 + noise)
        weights = np.linalg.inv(given @ between @ given.T + within)
        told += given.T @ weights @ given
        pull += given.T @ weights @ total
    off = np.linalg.solve(told, pull)[0] - TRUTH["Intercept"]
    return float(off / np.sqrt(np.linalg.inv(told)[0, 0]))


def main() -> None:
    """Print a row for each parameter, and one for the effects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="?", choices=[*OUTCOMES], default="bernoulli")
    parser.add_argument("--tables", type=int, default=14)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--epsilon", default="1")
    parser.add_argument("--slopes", action="store_true")
    parser.add_argument("--sites", type=int, default=300)
    parser.add_argument("--wrong", choices=[*WRONG], default="")
    arguments = parser.parse_args()
    columns = {
        "y": OUTCOMES[arguments.family],
        "site": {"lower": 0, "upper": arguments.sites - 1, "integer": True},
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
    held: dict[str, list[bool]] = {}
    covered: dict[str, list[float]] = {}
    start = time.process_time()
    for number in range(arguments.first, arguments.first + arguments.tables):
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
                low, high = np.quantile(draws, ENDS)
                held.setdefault(name, []).append(low < value < high)
        for name, truth in effects.items():
            low, high = posterior[name].quantile(ENDS, ("chain", "draw")).to_numpy()
            inside = np.mean((low < truth) & (truth < high))
            covered.setdefault(name, []).append(float(inside))
        if arguments.slopes:
            by_least_squares = exactly(frame, release.tables["groups"])
            off.setdefault(KNOWN, []).append(by_least_squares)
    seconds = (time.process_time() - start) / arguments.tables
    print("| parameter | off, in its sd: mean | root mean square | covered |")
    print("| --- | --- | --- | --- |")
    for name, values in off.items():
        size = np.sqrt(np.mean(np.square(values)))
        share = np.mean(held.get(name, np.abs(values) < 1.96))
        print(f"| {name} | {np.mean(values):.2f} | {size:.2f} | {share:.3f} |")
    if arguments.slopes:
        both = np.corrcoef(off["Intercept"], off[KNOWN])[0, 1]
        print(f"correlation of Intercept with it: {both:.2f}")
    for name, shares in covered.items():
        print(f"{name} covered {np.mean(shares):.3f}; {seconds:.0f} CPU s a release")


if __name__ == "__main__":
    main()
