"""Groups: how often intervals of groups and of what they have in common hold the
truth, and how far off they are, beside no privacy and beside noisy ratios.

``python -m benchmarks.groups [FAMILY ...] [--groups N] [--tables N] [--average N]
[--epsilon E] [--delta D] [--wrong WHAT] [--range LOWER UPPER] [--written]``; the range
is that of normal outcomes. With ``--written`` effects have nothing to do with sizes, as
in a model that an analyst wrote; *contradicted* is how often noisy numbers say that
they do.
"""

import argparse
import resource
import time
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.groups.design import Family, GroupDesign
from pdips.groups.group_sums import GroupSums
from pdips.groups.hierarchy import PlainHierarchy
from pdips.groups.noisy_groups import NoisyGroups
from pdips.groups.release_of_groups import GroupResult
from pdips.privacy.noise import RandomBits, discrete_gaussian, discrete_laplace
from pdips.privacy.plan import Step
from pdips.release.public_draws import contradiction

OUTCOMES: dict[str, dict[str, Any]] = {
    "normal": {"lower": -20, "upper": 20},
    "bernoulli": {"levels": [0, 1]},
    "poisson": {"lower": 0, "upper": 20, "integer": True},
}
TRUTH: dict[str, tuple[float, ...]] = {
    "normal": (2.0, 3.0, 4.0),
    "bernoulli": (-1.5, 0.8),
    "poisson": (0.8, 0.5),
}
"""Mean and spread of predictors, and the deviation of a normal outcome."""

SHAPE = 1.2  # of the gamma law of sizes
CLASSES = ((0, 10), (10, 100), (100, 10**9))
Z = 1.959964


@dataclass(frozen=True)
class Exact:
    """A table by group: sizes, steps at the upper end, squares, and the truth."""

    predictors: np.ndarray
    sizes: np.ndarray
    upper: np.ndarray
    squares: float


WRONG = {
    "effects": "a fifth of the groups have much higher effects than the others",
    "sizes": "the log of sizes is normal, with a deviation of 1",
    "related": "larger groups have higher effects",
    "records": "records of a group are spread otherwise than the model has it",
}
"""What may be otherwise than the model has it."""
TAIL = 3  # degrees of freedom of normal records that are wrong
CLUMPED = 2.0  # shape of the gamma law by which counts of records that are wrong vary


def drawn_groups(
    design: GroupDesign, average: float, wrong: str, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return effects and sizes of groups."""
    mean, spread, *_ = TRUTH[design.family]
    n = design.n_groups
    standard = rng.standard_normal(n)
    if wrong == "effects":
        is_high = rng.random(n) < 0.2
        # with mean 0 and variance 1
        standard = np.where(is_high, 1.9, -0.475) + 0.314 * standard
    if wrong == "sizes":
        expected = average * np.exp(rng.normal(-0.5, 1.0, n))
    else:
        expected = rng.gamma(SHAPE, average / SHAPE, n)
    if wrong == "related":
        ranked = np.argsort(np.argsort(expected)) / n - 0.5
        standard = 2 * ranked + 0.8 * standard
    return mean + spread * standard, rng.poisson(expected)


def drawn_outcomes(
    design: GroupDesign, at: np.ndarray, wrong: str, rng: np.random.Generator
) -> np.ndarray:
    """Return outcomes of records at their groups' effects."""
    is_wrong = wrong == "records"
    if design.family == "normal":
        deviation = TRUTH["normal"][2]
        if is_wrong:
            heavy = rng.standard_t(TAIL, len(at)) / np.sqrt(TAIL / (TAIL - 2))
            return np.asarray(np.clip(at + deviation * heavy, *design.range))
        return np.asarray(rng.normal(at, deviation))
    if design.family == "bernoulli":
        return rng.random(len(at)) < 1 / (1 + np.exp(-at))
    rate = np.exp(at)
    if is_wrong:
        rate = rate * rng.gamma(CLUMPED, 1 / CLUMPED, len(at))
    return rng.poisson(rate)


def exact_table(
    design: GroupDesign, average: float, rng: np.random.Generator, wrong: str = ""
) -> Exact:
    """Return a table of the model, or of a wrong one, drawn in parts of 50,000
    groups.
    """
    predictors, sizes = drawn_groups(design, average, wrong, rng)
    upper = np.zeros(design.n_groups, dtype=np.int64)
    squares = 0.0
    for first in range(0, design.n_groups, 50_000):
        rows = slice(first, first + 50_000)
        group = np.repeat(np.arange(len(sizes[rows])), sizes[rows])
        at = predictors[rows][group]
        outcome = drawn_outcomes(design, at, wrong, rng)
        steps = design.upper_steps(outcome)
        upper[rows] = np.bincount(group, steps, minlength=len(sizes[rows]))
        squares += float(((2 * steps / design.steps - 1) ** 2).sum())
    return Exact(predictors, sizes, upper, squares)


def noisy_table(
    mechanism: GroupSums, schema: Schema, exact: Exact, rng: np.random.Generator
) -> NoisyGroups:
    """Return what a curator would answer."""
    plan = mechanism.plan(schema)
    design = plan.design
    bits = RandomBits(rng)

    def noise(step: Step, n: int) -> IntArray:
        if step.law == "laplace":
            return discrete_laplace(step.scale, n, bits)
        return discrete_gaussian(step.variance, n, bits)

    ends, *others = plan.steps
    lower = exact.sizes * design.steps - exact.upper
    numbers = np.concatenate([lower, exact.upper])
    squares = None
    for step in others:
        [added] = noise(step, 1)
        deviation = step.noise.standard_deviation
        squares = (exact.squares + added / design.steps, deviation**2)
    return NoisyGroups.of_ends(
        design,
        numbers + noise(ends, len(numbers)),
        ends.standard_deviation**2,
        squares=squares,
        n_records=int(exact.sizes.sum()),
        public_sizes=None,
    )


def on_range(design: GroupDesign, exact: Exact) -> np.ndarray:
    """Return the true mean of each group in the outcome's unit."""
    if design.family == "bernoulli":
        return 1 / (1 + np.exp(-exact.predictors))
    if design.family == "poisson":
        return np.exp(exact.predictors)
    return exact.predictors


def without_privacy(design: GroupDesign, exact: Exact) -> np.ndarray:
    """Return shrunk means of the exact sums, given the true common parameters: of
    other outcomes than normal ones the best linear ones.
    """
    truth = on_range(design, exact)
    lower, upper = design.range
    sums = exact.sizes * lower + exact.upper / design.steps * (upper - lower)
    if design.family == "normal":
        within = TRUTH["normal"][2] ** 2
    elif design.family == "bernoulli":
        within = float(np.mean(truth * (1 - truth)))
    else:
        within = float(np.mean(truth))
    prior = 1 / np.var(truth)
    total = prior + exact.sizes / within
    return np.asarray((prior * truth.mean() + sums / within) / total)


def deviations_without_privacy(design: GroupDesign, exact: Exact) -> np.ndarray:
    """Return posterior deviations of normal effects given the exact numbers and the
    true common parameters, shape (groups,); of other outcomes there is no such form.
    """
    if design.family != "normal":
        return np.full(design.n_groups, np.nan)
    _, spread, within = TRUTH["normal"]
    return np.asarray((spread**-2 + exact.sizes * within**-2) ** -0.5)


def measured(
    family: str, arguments: argparse.Namespace, number: int
) -> dict[str, float | list[bool]]:
    """Return what one table shows."""
    rng = np.random.default_rng([51, number])
    groups = {"lower": 0, "upper": arguments.groups - 1, "integer": True}
    outcome = OUTCOMES[family]
    if family == "normal":
        outcome = dict(zip(("lower", "upper"), arguments.range, strict=True))
    schema = Schema.model_validate({"columns": {"y": outcome, "g": groups}})
    mechanism = GroupSums(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        outcome="y",
        family=cast(Family, family),
    )
    design = mechanism.design(schema)
    exact = exact_table(design, arguments.average, rng, arguments.wrong)
    noisy = noisy_table(mechanism, schema, exact, rng)
    start = time.process_time()
    hierarchy = PlainHierarchy.of(design)
    if arguments.written:
        hierarchy = replace(hierarchy, is_correlated=False)
    result = GroupResult.of(noisy, hierarchy, rng)
    mean, deviation, _, left = result.moments
    table = result.table()
    seconds = time.process_time() - start
    covered = np.abs(exact.predictors - mean) < Z * deviation
    truth = on_range(design, exact)
    with np.errstate(all="ignore"):
        noisy_records = np.maximum(table["noisy_records"].to_numpy(), 1)
        noisy_ratio = table["noisy_sum"].to_numpy() / noisy_records
    lower, upper = design.range
    ratio = np.clip(noisy_ratio, lower, upper)
    rank = np.argsort(np.argsort(exact.predictors)) / len(truth)
    places = result.weighted.resampled(400, rng)
    if hierarchy.has_relation:
        # the correlation of effects with sizes isn't compared
        places = np.delete(places, len(TRUTH[family]), axis=1)
    places[:, 1:] = np.exp(places[:, 1:])
    low, high = np.quantile(places, [0.025, 0.975], axis=0)
    # that of the gamma law with the variance of what a Poisson law adds to it
    shape = 1 / (1 / SHAPE + 1 / arguments.average)
    common = np.array([*TRUTH[family], arguments.average, shape])
    direct = (table["direct_lower"] <= truth) & (truth <= table["direct_upper"])

    def error(estimate: FloatArray) -> float:
        return float(np.sqrt(np.mean((estimate - truth) ** 2)))

    found: dict[str, float | list[bool]] = {
        "covered": covered.mean(),
        "top 5 %": covered[rank >= 0.95].mean(),
        "direct": direct.mean(),
        "direct, top 5 %": direct[rank >= 0.95].mean(),
        "rmse": error(table["mean"].to_numpy()),
        "no privacy": error(without_privacy(design, exact)),
        "noisy ratio": error(ratio),
        "left": left.mean(),
        "sd": deviation.mean() / deviations_without_privacy(design, exact).mean(),
        "seconds": seconds,
        "contradicted": contradiction(result.misfit()) is not None,
        "common": [*((low < common) & (common < high))],
    }
    for first, end in CLASSES:
        rows = (exact.sizes >= first) & (exact.sizes < end)
        found[f"{first}-"] = covered[rows].mean() if rows.any() else np.nan
    return found


def main() -> None:
    """Print a row of a table in Markdown for each family."""
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", default=[*OUTCOMES])
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--average", type=float, default=50.0)
    parser.add_argument("--epsilon", default="1")
    parser.add_argument("--delta")
    parser.add_argument("--range", type=float, nargs=2, default=[-20.0, 20.0])
    parser.add_argument("--wrong", choices=[*WRONG], default="")
    parser.add_argument("--written", action="store_true")
    arguments = parser.parse_args()
    price = arguments.epsilon
    if arguments.delta is not None:
        price = f"({price}, {arguments.delta})"
    for family in arguments.families:
        rows = [measured(family, arguments, each) for each in range(arguments.tables)]
        names = [name for name in rows[0] if name != "common"]
        means = [f"{np.mean([row[name] for row in rows]):.3g}" for name in names]
        common = np.mean([row["common"] for row in rows], axis=0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        cells = [family, f"{arguments.groups:,}", price, str(arguments.tables)]
        print("| " + " | ".join(["outcome", "groups", "price", "tables", *names]))
        print("| " + " | ".join([*cells, *means]), flush=True)
        print(f"common parameters covered: {common}; peak memory {peak:.2f} GiB")


if __name__ == "__main__":
    main()
