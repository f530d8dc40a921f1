"""Mechanisms that take a model, beside each other at the same guarantee: errors,
intervals, seconds.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from pdips.arrays import FloatArray
from pdips.data.table import Table
from pdips.errors import InputError, RefusedError
from pdips.inference import combine
from pdips.mechanism import Mechanism
from pdips.posterior.columns import record_values
from pdips.posterior.inspection import published_draws, released_draws, tree_of
from pdips.posterior.target import NODES
from pdips.registry import find
from pdips_papers.harness import study
from pdips_papers.pseudo.model_designs import DESIGNS, Design
from pdips_papers.pseudo.synthesizers import ecdf_distances

CENSORED = "censored-posterior"
MODIPS = "modips"
SCORES = "scores"
PLUG_IN = "plug-in"
NONE = "no privacy"
N_SETS = 5
CHAINS = {"draws": 500, "tune": 500}
"""Of censored posteriors that NUTS draws: as in the study of salaries."""

PAIRS = 500
STEP = 1e-4
"""Antithetic pairs of draws of a normal approximation, and step of the differences that
give its curvature.
"""

COLUMNS = {
    "rmse": "error over sampling error",
    "coverage": "coverage of the 95 % interval",
    "width": "its width, in that of no privacy",
    "seconds": "CPU seconds",
    "max-ECDF": "max-ECDF",
    "epsilon": "true ϵ",
    "releases": "releases",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """What a mechanism says of the parameters, each of shape (parameters,), and one
    synthetic table.
    """

    estimate: FloatArray
    lower: FloatArray
    upper: FloatArray
    synthetic: pd.DataFrame
    facts: Mapping[str, float] = field(default_factory=dict)


class ModelMechanisms(study.Study):
    """``pdips study model-mechanisms``."""

    name: ClassVar[str] = "model-mechanisms"
    title: ClassVar[str] = "Mechanisms that take a model, at the same guarantee"
    default_replicates: ClassVar[int] = 5

    def tasks(self, options: study.Options) -> list[study.Task]:
        """Return one task for each design and replicate; an epsilon that is given takes
        the place of the guarantees.
        """
        found = []
        for design in DESIGNS.values():
            guarantees = list(options.epsilons or design.guarantees)
            first = guarantees[:1] if design.seldom > 1 else guarantees
            for number in range(options.replicates):
                censored = first if number % design.seldom == 0 else []
                arguments = {
                    "design": design.name,
                    "guarantees": guarantees,
                    "censored": censored,
                }
                key = study.task_key(f"{design.name}-{number:03}")
                found.append(study.Task(key=key, arguments=arguments))
        return found

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw a table, release it by every mechanism, and hold what each says against
        the truth.
        """
        rng = np.random.default_rng(seed)
        design = DESIGNS[arguments["design"]]
        table = design.table(rng)
        baseline = without_privacy(design, table, rng)
        rows = measured(design, NONE, table, baseline, baseline)
        for guarantee in arguments["guarantees"]:
            mechanisms = [MODIPS, SCORES]
            if guarantee in arguments["censored"]:
                mechanisms.insert(0, CENSORED)
            for mechanism in mechanisms:
                try:
                    answers = dict(released(design, table, mechanism, guarantee, rng))
                except (InputError, RefusedError) as refusal:
                    why = str(refusal).partition(";")[0].partition(",")[0]
                    row = f"{design.name}, {mechanism}, ϵ = {guarantee}: refused: {why}"
                    rows += study.rows_of(row, {"releases": 0.0})
                    continue
                for name, answer in answers.items():
                    label = f"{name}, ϵ = {guarantee}"
                    rows += measured(design, label, table, answer, baseline)
        return rows

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return roots of mean squared errors, medians of seconds, the number of
        releases, and means of the rest.
        """
        found = study.summarise(measurements).set_index(["row", "column"])
        groups = measurements.groupby(["row", "column"], sort=False)["value"]
        of = found.index.get_level_values("column")
        is_square = of == "rmse"
        found.loc[is_square, "ours"] **= 0.5
        found.loc[is_square, "standard_error"] /= 2 * found.loc[is_square, "ours"]
        for column, total in (("seconds", groups.median()), ("releases", groups.sum())):
            is_column = of == column
            found.loc[is_column, "ours"] = total[found.index[is_column]]
            found.loc[is_column, "standard_error"] = np.nan
        return found.reset_index()[list(study.COLUMNS)]

    def layout(self, table: pd.DataFrame) -> list[study.Block]:
        """Return a block for each design."""
        names = dict.fromkeys(table["row"])
        blocks = []
        for design in DESIGNS.values():
            rows = {}
            for row in names:
                of, _, label = row.partition(", ")
                if of == design.name:
                    rows[row] = label
            title = (
                f"{design.name}: {design.n:,} records, {len(design.labels)} parameters"
            )
            blocks.append(study.Block(title=title, rows=rows, columns=COLUMNS))
        return blocks


def released(
    design: Design, table: Table, name: str, guarantee: str, rng: np.random.Generator
) -> Iterator[tuple[str, Answer]]:
    """Release a table; yield what the release says, and for scores what plugging its
    posterior mean in would say.

    A guarantee is an epsilon, or ``"1 at 1e-6"``: a zero-concentrated loss read at
    delta.
    """
    epsilon, _, delta = guarantee.partition(" at ")
    settings: dict[str, Any] = {"delta": delta} if delta else {}
    if name == CENSORED and len(design.labels) > max(NODES):
        settings |= CHAINS
    model = design.model
    if name == MODIPS and design.moments:
        model = design.moments
    mechanism: Mechanism = find(name)(
        epsilon=epsilon, model=model, n_sets=N_SETS, **settings
    )
    mechanism.plan(design.schema)  # compiles what is compiled once for a model
    begun = time.process_time()
    release, _ = mechanism.release(table, rng=rng)
    facts = {"seconds": time.process_time() - begun}
    facts["epsilon"] = float(release.loss.epsilon)
    if release.posterior_draws is None:
        yield name, of_sets(design, release.sets, facts)
        return
    draws = released_draws(release)
    if name == MODIPS:
        for mine, (of, factor, shift) in design.measured.items():
            draws = draws.assign(**{mine: factor * draws[of] + shift})
    draws = draws[design.labels]
    yield name, of_draws(draws, release.sets[0], facts)
    if name == SCORES:
        public = record_values(table, design.schema.public_columns)
        point = design.parameters(draws.mean().to_numpy())
        sets = [design.drawn(point, public, rng).frame for _ in range(N_SETS)]
        yield PLUG_IN, of_sets(design, sets, facts)


def without_privacy(design: Design, table: Table, rng: np.random.Generator) -> Answer:
    """Return the posterior without privacy, by a normal approximation at its mode, and
    a table at one draw of it.
    """
    begun = time.process_time()
    draws = normal_posterior(design, table)
    drawn = draws.iloc[rng.integers(len(draws))]
    point = design.parameters(drawn.to_numpy())
    public = record_values(table, design.schema.public_columns)
    synthetic = design.drawn(point, public, rng).frame
    return of_draws(draws, synthetic, {"seconds": time.process_time() - begun})


def normal_posterior(design: Design, table: Table) -> pd.DataFrame:
    """Return draws in the model's own units, normal about the posterior mode of the
    unconstrained parameters.
    """
    design.observe(record_values(table))
    log_density = design.log_density

    def downhill(place: FloatArray) -> tuple[float, FloatArray]:
        value, slope = log_density(place)
        if not np.isfinite(value) or not np.isfinite(slope).all():
            return 1e300, np.zeros_like(place)
        return -float(value), -np.asarray(slope)

    start = design.space.parameters_of(dict(design.truth))
    mode = np.asarray(minimize(downhill, start, jac=True, method="BFGS").x)
    rows = []
    for step in STEP * np.eye(len(mode)):
        bent = downhill(mode + step)[1] - downhill(mode - step)[1]
        rows.append(bent / (2 * STEP))
    curvature = (np.array(rows) + np.array(rows).T) / 2
    root = np.linalg.cholesky(np.linalg.inv(curvature))
    moves = np.random.default_rng(0).standard_normal((PAIRS, len(mode))) @ root.T
    places = mode + np.concatenate([moves, -moves])
    draws = published_draws(tree_of(design.space.values_of(places)))
    return draws[design.labels]


def of_draws(
    draws: pd.DataFrame, synthetic: pd.DataFrame, facts: Mapping[str, float]
) -> Answer:
    """Return means and central 95 % of posterior draws."""
    lower, upper = np.quantile(draws.to_numpy(), [0.025, 0.975], axis=0)
    return Answer(
        estimate=draws.mean().to_numpy(),
        lower=lower,
        upper=upper,
        synthetic=synthetic,
        facts=facts,
    )


def of_sets(
    design: Design, sets: Sequence[pd.DataFrame], facts: Mapping[str, float]
) -> Answer:
    """Return what an analyst finds who fits the model to each set, and combines by the
    rule that is the nearest.
    """
    fits = [normal_posterior(design, Table(each, design.schema)) for each in sets]
    estimates = np.array([fit.mean().to_numpy() for fit in fits])
    variances = np.array([fit.var().to_numpy() for fit in fits])
    found = combine(estimates, variances, rule="sanitized")
    lower, upper = found.interval
    return Answer(
        estimate=found.estimate,
        lower=lower,
        upper=upper,
        synthetic=sets[0],
        facts=facts,
    )


def measured(
    design: Design, label: str, table: Table, answer: Answer, baseline: Answer
) -> list[dict[str, Any]]:
    """Return the measurements of an answer, in units of what the posterior without
    privacy says of the same table.
    """
    truth = design.true
    width = baseline.upper - baseline.lower
    off = 2 * 1.96 * (answer.estimate - truth) / width
    is_covered = (answer.lower <= truth) & (truth <= answer.upper)
    found = {
        "rmse": float((off**2).mean()),
        "coverage": float(is_covered.mean()),
        "width": float(((answer.upper - answer.lower) / width).mean()),
        **answer.facts,
        "releases": 1.0,
    }
    for number in design.numbers:
        confidential = table.frame[number].to_numpy(float)
        synthetic = answer.synthetic[number].to_numpy(float)
        found["max-ECDF"], _ = ecdf_distances(confidential, synthetic)
    return study.rows_of(f"{design.name}, {label}", found)
