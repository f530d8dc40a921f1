"""Every distribution of PyMC as an outcome with covariates, tried on the library:
``python -m benchmarks.matrix``.

Each outcome has a numeric and a categorical public covariate. What is tried is all that
mechanisms do before a table is read: the model is built on made-up records, the terms
of many records are compared with that of one, gradients are taken, records are drawn
and one record's score is worked out. ``--page`` writes the table of the versions of
PyMC and PyTensor that it is run with into ``docs/results/matrix.md``, and keeps those
of other versions.
"""

import argparse
import inspect
import re
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions import transforms

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.posterior.columns import stand_ins
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import Source
from pdips.scores.record_score import RecordScore

PAGE = Path(__file__).parents[1] / "docs" / "results" / "matrix.md"
COMMAND = "python -m benchmarks.matrix --page"

ACCEPTED = "accepted"
REFUSED = "refused"
FAILED = "failed"
# In refusals that pass on what PyMC or the model's own code raised
PASSED_ON = (" failed on made-up records: ", "build_model failed: ")
# Longest sentence that the table shows
LONGEST = 300

Columns = dict[str, dict[str, Any]]

COVARIATES: Columns = {
    "x": {"lower": -2, "upper": 2, "public": True},
    "g": {"levels": ["a", "b", "c"], "public": True},
}
REAL: Columns = {"y": {"lower": -20, "upper": 20}}
POSITIVE: Columns = {"y": {"lower": 0.01, "upper": 50}}
SHARE: Columns = {"y": {"lower": 0.01, "upper": 0.99}}
ANGLE: Columns = {"y": {"lower": -3, "upper": 3}}
COUNT: Columns = {"y": {"lower": 0, "upper": 100, "integer": True}}
ORDINAL: Columns = {"y": {"lower": 1, "upper": 100, "integer": True}}
TRIALS: Columns = {"y": {"lower": 0, "upper": 10, "integer": True}}
BINARY: Columns = {"y": {"levels": [0, 1]}}
LEVELS: Columns = {"y": {"levels": ["low", "middle", "high", "top"]}}
TWO: Columns = {name: {"lower": -20, "upper": 20} for name in ("y1", "y2")}
THREE: Columns = {name: {"levels": [0, 1]} for name in ("y1", "y2", "y3")}
PARTS: Columns = {name: {"lower": 0.01, "upper": 0.98} for name in ("y1", "y2", "y3")}

Observe = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Outcome:
    """A distribution as an outcome: the columns that it describes, and how it is
    written, given the data and a linear predictor of one number a record.
    """

    columns: Columns
    observe: Observe

    def build(self, data: Any, schema: Schema) -> pm.Model:
        """Return the model, as the contract has it."""
        with pm.Model(coords={"column": list(self.columns)}) as model:
            slope = pm.Normal("slope", 0, 0.5)
            level = pm.Normal("level", 0, 0.5, shape=3)
            self.observe(data, slope * data["x"] + level[data["g"]])
        return model


@dataclass(frozen=True)
class Row:
    """What came of one distribution."""

    name: str
    ending: str
    seconds: float
    sentence: str = ""


def plain(law: Any, columns: Columns, parameters: Callable[[Any], Any]) -> Outcome:
    """Return an outcome whose parameters are a function of the linear predictor."""

    def observe(data: Any, eta: Any) -> Any:
        return law("y", observed=data["y"], **parameters(eta))

    return Outcome(columns, observe)


def together(law: Any, columns: Columns, parameters: Callable[[Any], Any]) -> Outcome:
    """Return an outcome of several columns, a row a record."""

    def observe(data: Any, eta: Any) -> Any:
        return law(
            "y",
            observed=data.matrix(list(columns)),
            dims=("record", "column"),
            **parameters(eta),
        )

    return Outcome(columns, observe)


def softmax(eta: Any, n: int) -> Any:
    """Return probabilities of n levels, shape (records, n)."""
    weights = np.arange(n) - (n - 1) / 2
    return pm.math.softmax(eta[:, None] * weights, axis=1)


def cutpoints() -> Any:
    """Return ordered cut points of four levels."""
    return pm.Normal(
        "cutpoints",
        0,
        2,
        shape=3,
        transform=transforms.ordered,
        initval=[-1.0, 0.0, 1.0],
    )


def sigma() -> Any:
    """Return a spread with a prior."""
    return pm.HalfNormal("sigma", 2)


EXP = pt.exp
SIGMOID = pm.math.sigmoid
CORRELATED = np.array([[1.0, 0.5], [0.5, 2.0]])
NEIGHBOURS = np.array([[0, 1], [1, 0]])

CONTINUOUS: dict[str, Outcome] = {
    "AsymmetricLaplace": plain(
        pm.AsymmetricLaplace, REAL, lambda eta: {"kappa": 1.2, "mu": eta, "b": 1.0}
    ),
    "Beta": plain(pm.Beta, SHARE, lambda eta: {"mu": SIGMOID(eta), "nu": 5.0}),
    "Cauchy": plain(pm.Cauchy, REAL, lambda eta: {"alpha": eta, "beta": sigma()}),
    "ChiSquared": plain(pm.ChiSquared, POSITIVE, lambda eta: {"nu": EXP(eta)}),
    "ExGaussian": plain(
        pm.ExGaussian, REAL, lambda eta: {"mu": eta, "sigma": sigma(), "nu": 1.0}
    ),
    "Exponential": plain(pm.Exponential, POSITIVE, lambda eta: {"lam": EXP(eta)}),
    "Gamma": plain(pm.Gamma, POSITIVE, lambda eta: {"mu": EXP(eta), "sigma": sigma()}),
    "Gumbel": plain(pm.Gumbel, REAL, lambda eta: {"mu": eta, "beta": sigma()}),
    "HalfCauchy": plain(pm.HalfCauchy, POSITIVE, lambda eta: {"beta": EXP(eta)}),
    "HalfNormal": plain(pm.HalfNormal, POSITIVE, lambda eta: {"sigma": EXP(eta)}),
    "HalfStudentT": plain(
        pm.HalfStudentT, POSITIVE, lambda eta: {"nu": 4.0, "sigma": EXP(eta)}
    ),
    "HurdleGamma": plain(
        pm.HurdleGamma,
        {"y": {"lower": 0, "upper": 50}},
        lambda eta: {"psi": SIGMOID(eta), "alpha": 2.0, "beta": EXP(eta)},
    ),
    "HurdleLogNormal": plain(
        pm.HurdleLogNormal,
        {"y": {"lower": 0, "upper": 50}},
        lambda eta: {"psi": SIGMOID(eta), "mu": eta, "sigma": sigma()},
    ),
    "Interpolated": plain(
        pm.Interpolated,
        REAL,
        lambda eta: {
            "x_points": np.linspace(-20, 20, 9),
            "pdf_points": np.exp(-(np.linspace(-2, 2, 9) ** 2)),
        },
    ),
    "InverseGamma": plain(
        pm.InverseGamma, POSITIVE, lambda eta: {"alpha": 3.0, "beta": EXP(eta)}
    ),
    "Kumaraswamy": plain(
        pm.Kumaraswamy, SHARE, lambda eta: {"a": EXP(eta), "b": EXP(-eta)}
    ),
    "Laplace": plain(pm.Laplace, REAL, lambda eta: {"mu": eta, "b": sigma()}),
    "LogNormal": plain(
        pm.LogNormal, POSITIVE, lambda eta: {"mu": eta, "sigma": sigma()}
    ),
    "Logistic": plain(pm.Logistic, REAL, lambda eta: {"mu": eta, "s": sigma()}),
    "LogitNormal": plain(
        pm.LogitNormal, SHARE, lambda eta: {"mu": eta, "sigma": sigma()}
    ),
    "Moyal": plain(pm.Moyal, REAL, lambda eta: {"mu": eta, "sigma": sigma()}),
    "Normal": plain(pm.Normal, REAL, lambda eta: {"mu": eta, "sigma": sigma()}),
    "Pareto": plain(pm.Pareto, POSITIVE, lambda eta: {"alpha": EXP(eta), "m": 0.01}),
    "PolyaGamma": plain(pm.PolyaGamma, POSITIVE, lambda eta: {"h": 1.0, "z": eta}),
    "Rice": plain(pm.Rice, POSITIVE, lambda eta: {"nu": EXP(eta), "sigma": sigma()}),
    "SkewNormal": plain(
        pm.SkewNormal, REAL, lambda eta: {"mu": eta, "sigma": sigma(), "alpha": 2.0}
    ),
    "SkewStudentT": plain(
        pm.SkewStudentT,
        REAL,
        lambda eta: {"a": 2.0, "b": 3.0, "mu": eta, "sigma": sigma()},
    ),
    "StudentT": plain(
        pm.StudentT, REAL, lambda eta: {"nu": 4.0, "mu": eta, "sigma": sigma()}
    ),
    "Triangular": plain(
        pm.Triangular,
        REAL,
        lambda eta: {"lower": -21.0, "c": 20 * pt.tanh(eta), "upper": 21.0},
    ),
    "TruncatedNormal": plain(
        pm.TruncatedNormal,
        REAL,
        lambda eta: {"mu": eta, "sigma": sigma(), "lower": -20.5, "upper": 20.5},
    ),
    "Uniform": plain(
        pm.Uniform, REAL, lambda eta: {"lower": -20 - EXP(eta), "upper": 20 + EXP(eta)}
    ),
    "VonMises": plain(pm.VonMises, ANGLE, lambda eta: {"mu": eta, "kappa": sigma()}),
    "Wald": plain(pm.Wald, POSITIVE, lambda eta: {"mu": EXP(eta), "lam": sigma()}),
    "Weibull": plain(
        pm.Weibull, POSITIVE, lambda eta: {"alpha": 1.5, "beta": EXP(eta)}
    ),
}

DISCRETE: dict[str, Outcome] = {
    "Bernoulli": plain(pm.Bernoulli, BINARY, lambda eta: {"logit_p": eta}),
    "BetaBinomial": plain(
        pm.BetaBinomial, TRIALS, lambda eta: {"n": 10, "alpha": EXP(eta), "beta": 2.0}
    ),
    "Binomial": plain(pm.Binomial, TRIALS, lambda eta: {"n": 10, "logit_p": eta}),
    "Categorical": plain(pm.Categorical, LEVELS, lambda eta: {"p": softmax(eta, 4)}),
    "DiracDelta": plain(pm.DiracDelta, REAL, lambda eta: {"c": eta}),
    "DiscreteUniform": plain(
        pm.DiscreteUniform,
        COUNT,
        lambda eta: {"lower": 0, "upper": 100 + pt.floor(EXP(eta)).astype("int64")},
    ),
    "DiscreteWeibull": plain(
        pm.DiscreteWeibull, COUNT, lambda eta: {"q": SIGMOID(eta), "beta": 1.1}
    ),
    "Geometric": plain(pm.Geometric, ORDINAL, lambda eta: {"p": SIGMOID(eta)}),
    "HurdleNegativeBinomial": plain(
        pm.HurdleNegativeBinomial,
        COUNT,
        lambda eta: {"psi": 0.6, "mu": EXP(eta), "alpha": sigma()},
    ),
    "HurdlePoisson": plain(
        pm.HurdlePoisson, COUNT, lambda eta: {"psi": 0.6, "mu": EXP(eta)}
    ),
    "HyperGeometric": plain(
        pm.HyperGeometric,
        TRIALS,
        lambda eta: {"N": 50, "k": 20 + pt.floor(EXP(eta)).astype("int64"), "n": 10},
    ),
    "NegativeBinomial": plain(
        pm.NegativeBinomial, COUNT, lambda eta: {"mu": EXP(eta), "alpha": sigma()}
    ),
    "OrderedLogistic": plain(
        pm.OrderedLogistic,
        LEVELS,
        lambda eta: {"eta": eta, "cutpoints": cutpoints()},
    ),
    "OrderedProbit": plain(
        pm.OrderedProbit, LEVELS, lambda eta: {"eta": eta, "cutpoints": cutpoints()}
    ),
    "Poisson": plain(pm.Poisson, COUNT, lambda eta: {"mu": EXP(eta)}),
    "ZeroInflatedBinomial": plain(
        pm.ZeroInflatedBinomial,
        TRIALS,
        lambda eta: {"psi": 0.6, "n": 10, "p": SIGMOID(eta)},
    ),
    "ZeroInflatedNegativeBinomial": plain(
        pm.ZeroInflatedNegativeBinomial,
        COUNT,
        lambda eta: {"psi": 0.6, "mu": EXP(eta), "alpha": sigma()},
    ),
    "ZeroInflatedPoisson": plain(
        pm.ZeroInflatedPoisson, COUNT, lambda eta: {"psi": 0.6, "mu": EXP(eta)}
    ),
}


def custom_logp(value: Any, eta: Any) -> Any:
    """Return a log density that is written out."""
    return -0.5 * (value - eta) ** 2 - 0.5 * np.log(2 * np.pi)


def custom_random(eta: Any, rng: Any = None, size: Any = None) -> Any:
    """Return draws of the same law."""
    return rng.normal(eta, 1, size=size)


def of_parts(name: str, of: Callable[[Any, Any], Any], columns: Columns) -> Outcome:
    """Return an outcome that is made of other distributions."""
    law = getattr(pm, name)

    def observe(data: Any, eta: Any) -> Any:
        given, named = of(data, eta)
        return law("y", *given, observed=data["y"], **named)

    return Outcome(columns, observe)


MADE_OF_OTHERS: dict[str, Outcome] = {
    "Censored": of_parts(
        "Censored",
        lambda data, eta: ([pm.Normal.dist(eta, sigma())], {"lower": -20, "upper": 20}),
        REAL,
    ),
    "CustomDist": of_parts(
        "CustomDist",
        lambda data, eta: ([eta], {"logp": custom_logp, "random": custom_random}),
        REAL,
    ),
    "CustomDist with dist": of_parts(
        "CustomDist",
        lambda data, eta: (
            [eta, sigma()],
            {"dist": lambda eta, sigma, size: pt.exp(pm.Normal.dist(eta, sigma))},
        ),
        POSITIVE,
    ),
    "DensityDist": of_parts(
        "DensityDist",
        lambda data, eta: ([eta], {"logp": custom_logp, "random": custom_random}),
        REAL,
    ),
    "Mixture": of_parts(
        "Mixture",
        lambda data, eta: (
            [],
            {
                "w": softmax(eta, 2),
                "comp_dists": [pm.Normal.dist(eta, 1.0), pm.Laplace.dist(-eta, 1.0)],
            },
        ),
        REAL,
    ),
    "NormalMixture": of_parts(
        "NormalMixture",
        lambda data, eta: (
            [],
            {
                "w": softmax(eta, 3),
                "mu": eta[:, None] + np.arange(3),
                "sigma": pm.HalfNormal("sigma", 1, shape=3),
            },
        ),
        REAL,
    ),
    "Truncated": of_parts(
        "Truncated",
        lambda data, eta: (
            [pm.StudentT.dist(nu=4, mu=eta, sigma=sigma())],
            {"lower": -20.5, "upper": 20.5},
        ),
        REAL,
    ),
}

OF_ROWS: dict[str, Outcome] = {
    "CAR": together(
        pm.CAR,
        TWO,
        lambda eta: {"mu": eta[:, None], "W": NEIGHBOURS, "alpha": 0.5, "tau": 1.0},
    ),
    "Dirichlet": together(
        pm.Dirichlet, PARTS, lambda eta: {"a": 3 * softmax(eta, 3) + 0.5}
    ),
    "DirichletMultinomial": together(
        pm.DirichletMultinomial, THREE, lambda eta: {"n": 1, "a": 3 * softmax(eta, 3)}
    ),
    "ICAR": together(pm.ICAR, TWO, lambda eta: {"W": NEIGHBOURS}),
    "KroneckerNormal": together(
        pm.KroneckerNormal,
        TWO,
        lambda eta: {"mu": np.zeros(2), "covs": [np.eye(2)], "sigma": sigma()},
    ),
    "LKJCorr": together(pm.LKJCorr, TWO, lambda eta: {"n": 2, "eta": 1.0}),
    "MatrixNormal": together(
        pm.MatrixNormal,
        TWO,
        lambda eta: {
            "mu": pt.stack([eta, -eta], axis=1),
            "rowcov": np.eye(1),
            "colcov": CORRELATED,
        },
    ),
    "Multinomial": together(
        pm.Multinomial, THREE, lambda eta: {"n": 1, "p": softmax(eta, 3)}
    ),
    "MvNormal": together(
        pm.MvNormal,
        TWO,
        lambda eta: {"mu": pt.stack([eta, -eta], axis=1), "cov": CORRELATED * sigma()},
    ),
    "MvStudentT": together(
        pm.MvStudentT,
        TWO,
        lambda eta: {
            "nu": 5.0,
            "mu": pt.stack([eta, -eta], axis=1),
            "scale": CORRELATED * sigma(),
        },
    ),
    "OrderedMultinomial": together(
        pm.OrderedMultinomial,
        {name: {"levels": [0, 1]} for name in ("y1", "y2", "y3", "y4")},
        lambda eta: {"eta": eta, "cutpoints": cutpoints(), "n": 1},
    ),
    "StickBreakingWeights": together(
        pm.StickBreakingWeights, PARTS, lambda eta: {"alpha": EXP(eta), "K": 2}
    ),
    "Wishart": together(pm.Wishart, TWO, lambda eta: {"nu": 5, "V": np.eye(2)}),
    "ZeroSumNormal": together(pm.ZeroSumNormal, TWO, lambda eta: {"sigma": sigma()}),
}


def start() -> Any:
    """Return the law of a series' first value."""
    return pm.Normal.dist(0, 10)


SERIES: dict[str, Outcome] = {
    "AR": plain(
        pm.AR,
        REAL,
        lambda eta: {"rho": [0.1, 0.5], "constant": True, "init_dist": start()},
    ),
    "EulerMaruyama": plain(
        pm.EulerMaruyama,
        REAL,
        lambda eta: {
            "dt": 0.1,
            "sde_fn": lambda x, rate: (-rate * x, 1.0),
            "sde_pars": (1.0,),
            "init_dist": start(),
        },
    ),
    "GARCH11": plain(
        pm.GARCH11,
        REAL,
        lambda eta: {"omega": 1.0, "alpha_1": 0.2, "beta_1": 0.3, "initial_vol": 1.0},
    ),
    "GaussianRandomWalk": plain(
        pm.GaussianRandomWalk, REAL, lambda eta: {"mu": 0.0, "init_dist": start()}
    ),
    "MvGaussianRandomWalk": together(
        pm.MvGaussianRandomWalk,
        TWO,
        lambda eta: {
            "mu": np.zeros(2),
            "cov": CORRELATED,
            "init_dist": pm.MvNormal.dist(np.zeros(2), CORRELATED),
        },
    ),
    "MvStudentTRandomWalk": together(
        pm.MvStudentTRandomWalk,
        TWO,
        lambda eta: {
            "nu": 5,
            "mu": np.zeros(2),
            "scale": CORRELATED,
            "init_dist": pm.MvNormal.dist(np.zeros(2), CORRELATED),
        },
    ),
    "RandomWalk": plain(
        pm.RandomWalk,
        REAL,
        lambda eta: {"innovation_dist": pm.Normal.dist(0, 1), "init_dist": start()},
    ),
}

IMPROPER: dict[str, Outcome] = {
    "Flat": plain(pm.Flat, REAL, lambda eta: {}),
    "HalfFlat": plain(pm.HalfFlat, POSITIVE, lambda eta: {}),
    "Simulator": of_parts(
        "Simulator",
        lambda data, eta: ([lambda rng, eta, size: rng.normal(eta, 1), eta], {}),
        REAL,
    ),
}

OUTCOMES: dict[str, Outcome] = (
    CONTINUOUS | DISCRETE | MADE_OF_OTHERS | OF_ROWS | SERIES | IMPROPER
)
"""Every distribution of PyMC that can be observed, by its name."""

NOT_OBSERVED = {
    "Continuous": "a class of distributions",
    "Discrete": "a class of distributions",
    "Distribution": "a class of distributions",
    "LKJCholeskyCov": "a prior of several variables at once",
    "Lognormal": "another name of LogNormal",
    "SymbolicRandomVariable": "a class of distributions",
    "WishartBartlett": "a prior of several variables at once",
}
"""Names among PyMC's distributions that aren't tried, and why."""


def distributions() -> set[str]:
    """Return the names of what PyMC calls its distributions."""
    named = {name for name in pm.distributions.__all__ if hasattr(pm, name)}
    base = pm.Distribution
    for name, held in vars(pm).items():
        if inspect.isclass(held) and issubclass(held, base):
            named.add(name)
    return named


def schema_of(outcome: Outcome) -> Schema:
    """Return the schema of an outcome with its covariates."""
    return Schema(columns=outcome.columns | COVARIATES)


def tried(name: str) -> Row:
    """Return what the library says of one distribution as an outcome."""
    started = time.process_time()
    ending, sentence = ACCEPTED, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _try(OUTCOMES[name])
    except InputError as error:
        sentence = str(error)
        ending = FAILED if any(map(sentence.__contains__, PASSED_ON)) else REFUSED
    except Exception as error:  # noqa: BLE001 - whatever fails is a row of the table
        line = next(iter(str(error).splitlines()), "")
        ending, sentence = FAILED, f"{type(error).__name__}: {line}"
    return Row(name, ending, time.process_time() - started, sentence)


def _try(outcome: Outcome) -> None:
    """Do what a mechanism does with a model before it has a table."""
    schema = schema_of(outcome)
    blueprint = Blueprint(Source(outcome.build, "matrix"), schema)
    blueprint.check()
    blueprint.check_gradient()
    score = RecordScore(blueprint.likelihood)
    values = stand_ins(schema, 1, end=0)
    middle = np.median(blueprint.prior, axis=0)
    score.of_public(middle, values)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table of the documentation."""
    lines = ["| distribution | ending | CPU s | sentence |", "|---|---|---|---|"]
    for row in rows:
        sentence = re.sub(r"\s+", " ", row.sentence).replace("|", r"\|")
        sentence = sentence.replace("<", "&lt;").replace("*", r"\*")
        if len(sentence) > LONGEST:
            sentence = sentence[:LONGEST] + " ..."
        name = f"`pm.{row.name.replace(' ', '` ', 1)}" + "`" * (" " not in row.name)
        lines.append(f"| {name} | {row.ending} | {row.seconds:.1f} | {sentence} |")
    return "\n".join(lines)


def heading() -> str:
    """Return the heading of the table of the versions in use."""
    return f"## PyMC {pm.__version__}, PyTensor {pytensor.__version__}"


def section(rows: Sequence[Row]) -> str:
    """Return the part of the page that states what the versions in use came to."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    when = datetime.now(UTC).date().isoformat()
    number = {
        ending: sum(row.ending == ending for row in rows)
        for ending in (ACCEPTED, REFUSED, FAILED)
    }
    counted = ", ".join(f"{n} {ending}" for ending, n in number.items())
    return "\n".join(
        [
            heading(),
            "",
            f"`{COMMAND}`, {when}, at commit `{commit}`: {counted}, in "
            f"{sum(row.seconds for row in rows):.0f} CPU seconds.",
            "",
            table(rows),
        ]
    )


INTRODUCTION = """# Distributions as outcomes

`make matrix` takes every distribution of PyMC as an outcome with a numeric and a
categorical public covariate, and says what the library does with it: all that happens
before a table is read, and one record's score. It is run in the environment at hand,
and keeps one table for each pair of versions of PyMC and PyTensor.

*Refused* quotes the sentence that the user reads. *Failed* is a refusal that passes on
what PyMC or PyTensor raised, or an error. [Writing a model](../models.md) says what a
model must be.
"""


def with_section(page: str, new: str) -> str:
    """Return the page with the table of the versions in use, and those of others."""
    sections = re.split(r"^(?=## )", page, flags=re.MULTILINE)[1:]
    title = new.splitlines()[0]
    others = [each for each in sections if each.splitlines()[0] != title]
    parts = [INTRODUCTION, new, *others]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def run(names: Sequence[str]) -> Iterator[Row]:
    """Try distributions and print what came of each."""
    for name in names:
        row = tried(name)
        said = f"{row.ending}, {row.seconds:.1f} s. {row.sentence}"
        print(f"{row.name}: {said}", flush=True)
        yield row


def main(words: Sequence[str] | None = None) -> None:
    """Try the distributions that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="distributions; all where none is")
    parser.add_argument("--page", action="store_true", help="write the page")
    asked = parser.parse_args(words)
    rows = list(run(asked.names or sorted(OUTCOMES)))
    if asked.page:
        page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(with_section(page, section(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()
