"""Noisy groups of known models, for tests."""

from dataclasses import replace

import numpy as np

from pdips import Schema
from pdips.groups.design import GroupDesign
from pdips.groups.noisy_groups import NoisyGroups

OUTCOMES = {
    "normal": {"lower": -10, "upper": 10},
    "bernoulli": {"levels": [0, 1]},
    "poisson": {"lower": 0, "upper": 30, "integer": True},
}
TRUTH = {"normal": (1.0, 1.5), "bernoulli": (-1.0, 0.8), "poisson": (1.0, 0.5)}
"""Mean and spread of the groups' predictors."""
DEVIATION = 2.0


def design_of(family: str, n_groups: int) -> GroupDesign:
    groups = {"lower": 0, "upper": n_groups - 1, "integer": True}
    schema = Schema(columns={"y": OUTCOMES[family], "g": groups})
    return GroupDesign.of(schema, "y", family)


def simulated(
    family: str,
    n_groups: int,
    rng: np.random.Generator,
    *,
    average: float = 40.0,
    noise: float = 4.0,
    truth: tuple[float, float] | None = None,
    deviation: float = DEVIATION,
) -> tuple[NoisyGroups, np.ndarray, np.ndarray]:
    """Return noisy groups, whose noise at each end is normal with a deviation in
    records, their predictors and their sizes.
    """
    design = design_of(family, n_groups)
    sizes = rng.poisson(rng.gamma(1.2, average / 1.2, n_groups))
    mean, spread = truth or TRUTH[family]
    predictors = rng.normal(mean, spread, n_groups)
    group = np.repeat(np.arange(n_groups), sizes)
    at = predictors[group]
    if family == "normal":
        outcome = rng.normal(at, deviation)
    elif family == "bernoulli":
        outcome = rng.random(len(at)) < 1 / (1 + np.exp(-at))
    else:
        outcome = rng.poisson(np.exp(at))
    steps = design.steps
    upper = design.upper_steps(outcome)
    ends = [
        np.bincount(group, weights=part, minlength=n_groups)
        for part in (steps - upper, upper)
    ]
    noisy = np.concatenate(ends) + rng.normal(0, noise * steps, 2 * n_groups)
    squares = None
    if family == "normal":
        exact = ((2 * upper / steps - 1) ** 2).sum()
        squares = (float(exact + rng.normal(0, 10)), 100.0)
    measured = NoisyGroups.of_ends(
        design,
        np.rint(noisy).astype(np.int64),
        (noise * steps) ** 2,
        squares=squares,
        n_records=int(sizes.sum()),
        public_sizes=None,
    )
    return measured, predictors, sizes


def with_exact_sizes(noisy: NoisyGroups) -> NoisyGroups:
    """The broken twin: noise on the numbers of records is left out."""
    return replace(noisy, size_variance=0.0, sizes=np.maximum(noisy.sizes, 0.0))
