"""Bowen et al. (2021), section 4: the youth voter table under six methods, table 3
beside ours.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.evaluation.formula import Analysis, read_analysis
from pdips.evaluation.propensity import specks
from pdips.evaluation.regression import Fit, compare_fits, independent_columns
from pdips.mechanism import Mechanism
from pdips.privacy.loss import exact
from pdips_papers.harness import printed, study
from pdips_papers.steps import voter_table as voters
from pdips_papers.steps.association import LEVELS, chi_square

N_SETS = 5
SIMULATED_SEED = 44_821
"""Of the table that is simulated once where none is given: public, and the same in
every run.
"""
EPSILONS = tuple(repr(math.exp(power)) for power in range(-2, 3))

SETTINGS = printed.data("settings.toml")["voter"]

AS_PUBLISHED: dict[str, dict[str, Any]] = {"PrivBayes": {"usefulness": 0}}
"""Further options of the published forms: the paper ran code that leaves out no table.
"""

CASES = (
    *(
        (method, form)
        for form in ("published", "sound")
        for method in voters.PAPER_METHODS
    ),
    ("margins", "default"),
)

OUTCOME = "voted"
INTERACTION = "prereg_state:registered"

COEFFICIENTS = {
    "prereg": "prereg_state[yes]",
    "registered": "registered[yes]",
    "interaction": "prereg_state[yes]:registered[yes]",
}

GLM_TOLERANCE = 1e-8
GLM_STEPS = 25
"""Where R's ``glm.control`` stops: a relative change of the deviance below 1e-8, or 25
steps.
"""


@dataclass(frozen=True, kw_only=True)
class Voter(voters.Table3):
    """Section 4 of Bowen et al. (2021): some pairs of method and form, or all."""

    name: ClassVar[str] = "voter"
    title: ClassVar[str] = "Youth voters 2000-2012: table 3 of the STEPS paper"
    default_replicates: ClassVar[int] = 4
    data: ClassVar[study.Data] = "optional"

    cases: Sequence[tuple[str, str]] = CASES

    def tasks(self, options: study.Options) -> list[study.Task]:
        """One release of one method at one epsilon a task, measured in full. Reads the
        table, to refuse a wrong one.
        """
        given = data_arguments(options)
        epsilons = options.epsilons or EPSILONS
        tasks = []
        for replicate in range(options.replicates):
            tasks += [
                study.Task(
                    key=study.task_key(
                        f"{method}.{form}.epsilon={epsilon}.replicate={replicate}"
                    ),
                    arguments={
                        **given,
                        "method": method,
                        "form": form,
                        "epsilon": epsilon,
                    },
                )
                for epsilon in epsilons
                for method, form in self.cases
            ]
            tasks.append(
                study.Task(
                    key=f"resample.replicate={replicate}",
                    arguments={**given, "method": voters.RESAMPLE},
                )
            )
        return tasks

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Make one release and measure it."""
        original = load(arguments.get("data"))
        rng = np.random.default_rng(seed)
        if arguments["method"] == voters.RESAMPLE:
            return _references(original, rng)
        method, form, epsilon = (
            str(arguments[name]) for name in ("method", "form", "epsilon")
        )
        sets = mechanism(method, form, epsilon).release(original.table, rng=rng)[0].sets
        return study.rows_of(
            row_name(method, form, epsilon), measure(original, sets, rng)
        )

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Average over replicates; rank the paper's methods in their published form,
        then all methods.
        """
        rows = set(measurements["row"])
        paper = {
            place: value for place, value in paper_figures().items() if place[0] in rows
        }
        found = study.summarise(measurements, paper)
        for mine in map(list, study.by_prefix(found["row"].unique()).values()):
            published = [row for row in mine if row.endswith("(published)")]
            found = _with_ranks(found, published, "")
            found = _with_ranks(found, mine, voters.AMONG_ALL)
        return _with_summary(found)


@dataclass(frozen=True)
class Original:
    """The table, and what the regression says on it."""

    table: Table
    glm: Fit
    firth: Fit


def data_arguments(options: study.Options) -> dict[str, str]:
    """Return what a task is told of the table: where it is, or nothing for the
    simulated one. Reads it once.
    """
    given = {} if options.data is None else {"data": str(options.data)}
    load(given.get("data"))
    return given


@lru_cache(maxsize=2)
def load(path: str | None) -> Original:
    """Return the table and the regression on it; without a path, the simulated table of
    a fixed seed.
    """
    frame = voters.simulated_voters(rng=np.random.default_rng(SIMULATED_SEED))
    table = (
        Table(frame, voters.voter_schema()) if path is None else voters.read_voter(path)
    )
    return Original(
        table, glm_fit(table.frame, table.schema), firth_fit(table.frame, table.schema)
    )


def _references(original: Original, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Measure bootstrap samples of the table, and consistency rates that need no
    data.
    """
    frame = original.table.frame
    sets = [
        frame.iloc[rng.integers(len(frame), size=len(frame))].reset_index(drop=True)
        for _ in range(N_SETS)
    ]
    p = chi_square(original.table, sets[:1]).p_original
    labels = {
        level: voters.MEASURES[f"consistency_{round(100 * level)}"] for level in LEVELS
    }
    return [
        *study.rows_of(voters.RESAMPLE, measure(original, sets, rng)),
        *study.rows_of(
            voters.NEVER,
            {label: float(np.mean(p > level)) for level, label in labels.items()},
        ),
        *study.rows_of(
            voters.ALWAYS,
            {label: float(np.mean(p <= level)) for level, label in labels.items()},
        ),
    ]


def log_epsilon(epsilon: str) -> str:
    """Return the natural logarithm of an epsilon, at up to three decimals."""
    return f"{round(math.log(exact(epsilon, 'epsilon')), 3):g}"


def row_name(method: str, form: str, epsilon: str) -> str:
    """Return what a row is called in the table."""
    return f"log epsilon = {log_epsilon(epsilon)}: {method} ({form})"


def mechanism(method: str, form: str, epsilon: str) -> Mechanism:
    """Return a method of the table in one of its forms."""
    name, options = SETTINGS["methods"][method]
    if form == "published":
        options = options | AS_PUBLISHED.get(method, {})
    return printed.mechanism(
        name,
        form,
        epsilon=Fraction(epsilon),
        n_sets=N_SETS,
        **options,
        **SETTINGS["forms"][form],
    )


def measure(
    original: Original, sets: Sequence[pd.DataFrame], rng: np.random.Generator
) -> dict[str, float]:
    """Return all measures of table 3, by their names in the table, and the overlaps
    with Firth's correction.
    """
    table = original.table
    schema = original.table.schema
    tests = chi_square(table, sets)
    consistency = tests.consistency
    found = {"ks_distance": specks(table, sets, rng=rng).mean}
    found |= {
        f"consistency_{round(100 * level)}": consistency[level] for level in LEVELS
    }
    fits: tuple[tuple[str, Fit, Callable[..., Fit]], ...] = (
        ("overlap", original.glm, glm_fit),
        ("firth", original.firth, firth_fit),
    )
    for prefix, reference, fit in fits:
        scores = overlaps(reference, [fit(frame, schema) for frame in sets])
        found |= {f"{prefix}_{key}": value for key, value in scores.items()}
    labels = voters.MEASURES | voters.FIRTH
    measures = {labels[key]: value for key, value in found.items()}
    counts = tests.crosstab.to_numpy().ravel().astype(np.float64)
    return measures | dict(zip(voters.P_VALUES, counts, strict=True))


def paper_figures() -> dict[tuple[str, str], float]:
    """Return the paper's table 3, by row and column of ours, printed ranks and scores
    included.
    """
    found = {}
    for line in voters.paper_table().to_dict("records"):
        row = f"log epsilon = {line['log_epsilon']}: {line['method']} (published)"
        for key, label in voters.MEASURES.items():
            found[row, label] = float(line[key])
            found[row, f"rank, {label}"] = float(line[f"{key}_rank"])
        found[row, voters.SCORE] = float(line["score"])
        found |= {(row, label): float(line[label]) for label in voters.P_VALUES}
    return found


def ranks(values: pd.DataFrame) -> pd.DataFrame:
    """Rank methods as the paper does: 1 is the best, equal figures share the smallest
    rank.
    """
    rounded = values.round(3)
    smaller = {voters.MEASURES[key] for key in voters.SMALLER_IS_BETTER}
    found = pd.DataFrame(
        {
            name: rounded[name].rank(method="min", ascending=name in smaller)
            for name in rounded.columns
        }
    )
    return found.assign(**{voters.SCORE: found.sum(axis=1)})


def _with_ranks(found: pd.DataFrame, rows: Sequence[str], suffix: str) -> pd.DataFrame:
    """Put ranks among some rows into the table, beside the paper's where it prints
    them.
    """
    if not rows:
        return found
    seen = study.Figures(found)
    labels = list(voters.MEASURES.values())
    values = pd.DataFrame(
        [[seen.at(row, label) for label in labels] for row in rows],
        index=list(rows),
        columns=labels,
    )
    more = []
    for name, column in ranks(values).items():
        label = f"{name}{suffix}" if name == voters.SCORE else f"rank, {name}{suffix}"
        more += [
            (row, label, rank, math.nan, seen.paper(row, label))
            for row, rank in zip(rows, column, strict=True)
        ]
    new = pd.DataFrame(more, columns=list(study.COLUMNS))
    kept = ~found["column"].isin(new["column"]) | ~found["row"].isin(list(rows))
    return pd.concat([found[kept], new], ignore_index=True)


def _with_summary(found: pd.DataFrame) -> pd.DataFrame:
    """Add the overall scores as a table of their own: one row a method, one column an
    epsilon.
    """
    mine = found[
        found["column"].isin([voters.SCORE, voters.SCORE + voters.AMONG_ALL])
    ].copy()
    parts = mine["row"].str.partition(": ")
    mine["row"] = parts[2]
    mine["column"] = mine["column"] + ", " + parts[0]
    return pd.concat([found, mine], ignore_index=True)


def firth_fit(frame: pd.DataFrame, schema: Schema) -> Fit:
    """Fit with Firth's correction: estimates and intervals stay finite although nobody
    unregistered voted.
    """
    analysis = _model(schema)
    return analysis.fit(frame)


def _model(schema: Schema) -> Analysis:
    predictors = [name for name in schema.columns if name != OUTCOME]
    return read_analysis(
        f"{OUTCOME} ~ {' + '.join([*predictors, INTERACTION])}", schema
    )


def glm_fit(frame: pd.DataFrame, schema: Schema) -> Fit:
    """Fit as R's ``glm(family = binomial)`` does, which the paper's intervals bear the
    marks of.

    Nobody unregistered voted, so that maximum likelihood doesn't exist: two
    coefficients and the intercept run off, and what comes out, some 20 with standard
    errors of hundreds, is where the iterations happen to stop. Iteratively reweighted
    least squares from R's starting values and with R's stopping rule gives the same.
    """
    analysis = _model(schema)
    names = analysis.names
    (design, outcome, _) = analysis.design(frame)
    rows, count = np.unique(
        np.column_stack([design, outcome]), axis=0, return_counts=True
    )
    x = rows[:, :-1]
    y = rows[:, -1]
    n = count.astype(np.float64)
    estimates = np.full(len(names), np.nan)
    errors = np.full(len(names), np.nan)
    if not len(x):
        return Fit(
            names=names, estimates=estimates, standard_errors=errors, converged=False
        )
    kept = independent_columns(x, n)
    estimates[kept], errors[kept], converged = irls(x[:, kept], y, n)
    return Fit(
        names=names, estimates=estimates, standard_errors=errors, converged=converged
    )


def irls(
    x: FloatArray, y: FloatArray, n: FloatArray
) -> tuple[FloatArray, FloatArray, bool]:
    """Return estimates, standard errors and whether the deviance settled, for outcomes
    0 or 1 of groups of ``n``.

    Statsmodels starts where R does; with these tolerances it stops there too.
    """
    from statsmodels.genmod.families import Binomial
    from statsmodels.genmod.generalized_linear_model import GLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of separation
        found = GLM(y, x, family=Binomial(), freq_weights=n).fit(
            maxiter=GLM_STEPS,
            atol=0.1 * GLM_TOLERANCE,
            rtol=GLM_TOLERANCE,
            tol_criterion="deviance",
        )
    return np.asarray(found.params), np.asarray(found.bse), bool(found.converged)


def overlaps(original: Fit, fits: Sequence[Fit]) -> dict[str, float]:
    """Return the overlap of 95 % intervals: averaged over coefficients, and of the
    three that matter.
    """
    found = compare_fits(original, fits)["ci_overlap"]
    return {
        "all": float(found.mean()),
        **{key: float(found[name]) for key, name in COEFFICIENTS.items()},
    }
