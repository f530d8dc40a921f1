"""Coverage of intervals from noisy margins, over tables drawn from a survey: ``python
-m benchmarks.outside``; and of the answers of ``ask`` by source: ``python -m
benchmarks.outside --ask youth``; and of a hierarchical model, by factor and by mixing:
``python -m benchmarks.outside --models``.
"""

import argparse
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import statsmodels.api as sm
from statsmodels.formula.api import glm, ols

import pdips
from pdips import InputError, Margins, Schema, Table
from pdips.errors import UselessWarning
from pdips.margins.estimates import estimate
from pdips.outside import NoisyMargins, noisy_margins
from pdips.outside.questions import Formula, read_question
from pdips.outside.sets.analyses import Family, regression, summary
from pdips.outside.sets.records import SetRecords

PREDICTORS = ["sex", "education", "foreign_born"]
OUTCOMES = ("enrolled", "income")
CASES = tuple(product(OUTCOMES, ("ols", "binomial")))

ASKED: dict[str, tuple[list[str], list[tuple[str, Family]]]] = {
    "youth": (
        ["sex", "education", "marital_status", "foreign_born", "enrolled", "income"],
        [
            ("share(enrolled == 'yes')", "gaussian"),
            ("share(enrolled == 'yes', by=['education'])", "gaussian"),
            ("share((enrolled == 'yes') & (sex == 'male'))", "gaussian"),
            ("share(enrolled == 'yes', by=['education', 'sex'])", "gaussian"),
            ("count(foreign_born == 'yes', by=['sex'])", "gaussian"),
            ("enrolled ~ sex + foreign_born", "gaussian"),
            ("enrolled ~ sex + education + foreign_born + marital_status", "gaussian"),
            ("enrolled ~ sex * foreign_born", "gaussian"),
            ("enrolled ~ sex + education + foreign_born", "binomial"),
            ("income ~ sex + foreign_born", "binomial"),
            ("(marital_status == 'other') ~ sex + foreign_born", "binomial"),
            ("enrolled ~ sex * marital_status", "binomial"),
        ],
    ),
    "hours": (
        ["age", "sex", "hours_per_week", "income"],
        [
            ("share(income == 'over 50,000 USD', by=['sex'])", "gaussian"),
            ("mean(hours_per_week)", "gaussian"),
            ("mean(hours_per_week, by=['sex'])", "gaussian"),
            ("median(age)", "gaussian"),
            ("quantile(hours_per_week, .9, by=['sex'])", "gaussian"),
            ("correlation(age, hours_per_week)", "gaussian"),
            ("hours_per_week ~ age", "gaussian"),
            ("hours_per_week ~ age + sex", "gaussian"),
            ("log(hours_per_week) ~ age + sex", "gaussian"),
            ("hours_per_week ~ age + age ** 2", "gaussian"),
            ("hours_per_week ~ log(age) + sex", "gaussian"),
            ("hours_per_week ~ (age > 60)", "gaussian"),
            ("share(age > 60)", "gaussian"),
            ("age ~ sex * income", "gaussian"),
            ("income ~ age + sex + hours_per_week", "binomial"),
            ("income ~ age * sex", "binomial"),
        ],
    ),
}
"""By survey: columns, and questions with their families. Numbers have no bins."""


def survey(name: str) -> tuple[pd.DataFrame, Schema]:
    """Return a population and its schema, with numbers as whole numbers."""
    columns, _ = ASKED[name]
    frame = pd.read_parquet(f"examples/{name}.parquet")[columns]
    schema = Schema.load(f"examples/{name}.toml").only(columns)
    plain = {
        key: column.model_copy(update={"bin_edges": None})
        for key, column in schema.columns.items()
    }
    return frame, schema.model_copy(update={"columns": plain})


def own_answer(
    frame: pd.DataFrame, schema: Schema, text: str, family: Family
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return what the records themselves say, with the width of their intervals; NaN
    for quantiles.
    """
    question = read_question(text, schema)
    records = SetRecords.of(frame, schema, [*question.columns], "level")
    if isinstance(question, Formula):
        names, estimate, variance = regression(records, question, family)
    elif question.kind == "quantile":
        numbers = records.numbers(question.of[0])
        estimate = np.array(
            [
                np.quantile(numbers[held], question.part or 0.5, method="inverted_cdf")
                for held in records.groups(question.by)
            ]
        )
        names, variance = [], np.full(len(estimate), np.nan)
    else:
        names, estimate, variance = summary(records, question)
    return names, estimate, 2 * 1.96 * np.sqrt(variance)


def ask_redrawn(name: str, n_tables: int, n: int, epsilon: str) -> None:
    """Print a row for each question and source: how often intervals held the
    population's number, their median width over that of the table's own, and in how
    many tables the source answered.
    """
    frame, schema = survey(name)
    _, questions = ASKED[name]
    mechanism = Margins(epsilon=epsilon, delta="1e-6", n_sets=10)
    rows = []
    for number in range(n_tables):
        rng = np.random.default_rng([n, number])
        drawn = frame.sample(n, replace=True, random_state=rng, ignore_index=True)
        release, _ = mechanism.release(Table(drawn, schema), rng=rng)
        with tempfile.TemporaryDirectory() as folder:
            release.publish(Path(folder) / "public", allow=["seeded"])
            public = pdips.open(folder)
            for text, family in questions:
                _, truth, _ = own_answer(frame, schema, text, family)
                _, _, own_width = own_answer(drawn, schema, text, family)
                if "count" in text:
                    truth = truth * n / len(frame)
                rows += asked_rows(public, text, family, truth, own_width)
        print(f"{number + 1} of {n_tables}", flush=True)
    answers = pd.DataFrame(rows)
    by = answers.groupby(["question", "source"], sort=False)
    table = by.agg(
        held=("held", "mean"),
        width=("width", "median"),
        closed=("closed", "mean"),
        tables=("table", "sum"),
        seconds=("seconds", "max"),
    )
    print(table.round(3).to_string())
    print(answers.groupby("source")[["held", "closed"]].mean().round(3).to_string())


def asked_rows(
    public: pdips.release.opening.PublishedRelease,
    text: str,
    family: Family,
    truth: np.ndarray,
    own_width: np.ndarray,
) -> list[dict[str, object]]:
    """Return a row for each number of an answer."""
    start = time.process_time()
    try:
        answer = public.ask(text, family=family)
    except InputError:
        return [{"question": text, "source": "refused", "table": 1}]
    seconds = time.process_time() - start
    found = answer.summary()
    width = (found["upper"] - found["lower"]).to_numpy()
    held = (found["lower"].to_numpy() <= truth) & (truth <= found["upper"].to_numpy())
    return [
        {
            "question": text,
            "source": answer.source,
            "held": held[k],
            "width": width[k] / own_width[k],
            "closed": bool(np.isfinite(width[k])),
            "table": int(k == 0),
            "seconds": seconds,
        }
        for k in range(len(truth))
    ]


GROUP = "education"


def shares_by_group(groups: list[str]) -> pm.Model:
    """Return a hierarchical model of the share that is enrolled, by group."""
    with pm.Model(coords={GROUP: groups}) as model:
        middle = pm.Normal("middle", 0, 2)
        spread = pm.HalfNormal("spread", 1.5)
        off = pm.Normal("off", 0, 1, dims=GROUP)
        pm.Deterministic("share", pm.math.invlogit(middle + spread * off), dims=GROUP)
    return model


def of_records(groups: list[str]) -> Callable[[pd.DataFrame], pm.Model]:
    """Return what makes the model on the records of a table or a set."""

    def make(df: pd.DataFrame) -> pm.Model:
        counts = pd.crosstab(df[GROUP].astype(str), df["enrolled"].astype(str))
        counts = counts.reindex(groups, fill_value=0)
        with shares_by_group(groups) as model:
            n = counts.sum(axis=1).to_numpy()
            pm.Binomial("ill", n, model["share"], observed=counts["yes"].to_numpy())
        return model

    return make


def models_redrawn(n_tables: int, n: int, epsilon: str) -> None:
    """Print how often intervals of a hierarchical model held the population's shares,
    and how wide they were over the posterior of the table itself.
    """
    frame, schema = survey("youth")
    groups = schema.columns[GROUP].names()
    is_enrolled = frame["enrolled"].astype(str) == "yes"
    truth = is_enrolled.groupby(frame[GROUP].astype(str)).mean()[groups].to_numpy()
    settings: dict[str, Any] = {"draws": 500, "tune": 1_000, "chains": 2}
    settings |= {"target_accept": 0.95, "random_seed": 1}
    settings |= {"progressbar": False, "quiet": True}
    rows = []
    for number in range(n_tables):
        rng = np.random.default_rng([n, number])
        drawn = frame.sample(n, replace=True, random_state=rng, ignore_index=True)
        mechanism = Margins(epsilon=epsilon, delta="1e-6", n_sets=10)
        release, _ = mechanism.release(Table(drawn, schema), rng=rng)
        with tempfile.TemporaryDirectory() as folder:
            release.publish(Path(folder) / "public", allow=["seeded"])
            public = pdips.open(folder)
            with shares_by_group(groups) as model:
                of_group = pm.Dirichlet("of_group", np.ones(len(groups)))
                chance = pm.math.clip(model["share"], 1e-6, 1 - 1e-6)
                both = pm.math.stack([1 - chance, chance], axis=1)
                public.factor([GROUP, "enrolled"], n * of_group[:, None] * both)
                by_factor = pm.sample(**settings)
            with of_records(groups)(drawn):
                by_table = pm.sample(**settings)
            with warnings.catch_warnings(action="ignore", category=UselessWarning):
                by_sets = public.mix(of_records(groups), **settings)
        trees = {"table": by_table, "factor": by_factor, "sets": by_sets}
        ends = {
            name: tree["posterior"]["share"]
            .quantile([0.025, 0.975], dim=("chain", "draw"))
            .to_numpy()
            for name, tree in trees.items()
        }
        own = np.ptp(ends["table"], axis=0)
        for name, (lower, upper) in ends.items():
            held = (lower <= truth) & (truth <= upper)
            rows += [
                {"by": name, "held": held[k], "width": (upper - lower)[k] / own[k]}
                for k in range(len(groups))
            ]
        print(f"{number + 1} of {n_tables}", flush=True)
    by = pd.DataFrame(rows).groupby("by", sort=False)
    print(by.agg(held=("held", "mean"), width=("width", "median")).round(3).to_string())


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
    parser.add_argument("--ask", choices=[*ASKED], help="this survey, by ask")
    parser.add_argument(
        "--models", action="store_true", help="a hierarchical model, by PyMC"
    )
    asked = parser.parse_args()
    if asked.models:
        for n, epsilon in product(asked.sizes, asked.epsilons):
            models_redrawn(asked.tables, n, epsilon)
        return
    if asked.ask:
        for n, epsilon in product(asked.sizes, asked.epsilons):
            ask_redrawn(asked.ask, asked.tables, n, epsilon)
        return
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
