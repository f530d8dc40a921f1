"""Scores on made-up tables: error over the sampling error, coverage of 95 % intervals,
processor seconds.

``python -m benchmarks.scores [MODEL ...] [--runs N]``; without a name all models run.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray

from pdips import Schema, Table
from pdips.arrays import FloatArray
from pdips.posterior.model import blueprint_of, constrained
from pdips.posterior.model_file import as_source
from pdips.scores import posterior as drawing
from pdips.scores import scores as module
from pdips.scores.scores import Scores

Z = {f"z{i}": {"lower": -4, "upper": 4, "public": True} for i in (1, 2, 3)} | {
    f"z{i}": {"levels": [0, 1], "public": True} for i in (4, 5, 6, 7)
}

Public = Callable[[np.random.Generator, int], dict[str, Any]]


@dataclass(frozen=True)
class Design:
    """A model, its true parameters, and tables drawn from them."""

    build: Callable[[Any, Any], pm.Model]
    truth: dict[str, Any]
    columns: dict[str, Any]
    n: int = 2_000
    epsilon: float = 1
    kinds: tuple[Literal["pure", "zcdp"], ...] = ("zcdp", "pure")
    public: Public = field(default=lambda rng, n: {})
    neighbours: Literal["replace-one", "add-remove"] = "replace-one"


def normal(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        pm.Normal(
            "y", pm.Normal("mu", 0, 5), pm.LogNormal("sd", 0, 1), observed=data["y"]
        )
    return model


def logit(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2.5, shape=8)
        pm.Bernoulli(
            "y",
            logit_p=b[0] + sum(b[i] * data[f"z{i}"] for i in range(1, 8)),
            observed=data["y"],
        )
    return model


def separated(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=2)
        pm.Bernoulli("y", logit_p=b[0] + b[1] * data["z1"], observed=data["y"])
    return model


def collinear(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=3)
        near = data["z1"] + 0.05 * data["z2"]
        pm.Normal(
            "y",
            b[0] + b[1] * data["z1"] + b[2] * near,
            pm.HalfNormal("sd", 2),
            observed=data["y"],
        )
    return model


def mixture(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        w, m = pm.LogitNormal("w", 0, 1.5), pm.Normal("m", 0, 5)
        g, s = pm.LogNormal("g", np.log(2), 1), pm.LogNormal("s", 0.2, 1, shape=2)
        pm.NormalMixture("y", w=[w, 1 - w], mu=[m, m + g], sigma=s, observed=data["y"])
    return model


def lognormal(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        a, b, sd = pm.Normal("a", 6, 3), pm.Normal("b", 0, 1), pm.HalfNormal("sd", 2)
        pm.LogNormal("y", a + b * data["z1"], sd, observed=data["y"])
    return model


def slopes(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5, shape=2), pm.HalfNormal("tau", 2, shape=2)
        a, b = (
            pm.Normal("a", mu[0], tau[0], shape=30),
            pm.Normal("b", mu[1], tau[1], shape=30),
        )
        sd = pm.HalfNormal("sd", 5)
        pm.Normal("y", a[data["g"]] + b[data["g"]] * data["z1"], sd, observed=data["y"])
    return model


def effects(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2)
        a = pm.Normal("a", mu, tau, shape=30)
        pm.Normal("y", a[data["g"]], pm.HalfNormal("sd", 5), observed=data["y"])
    return model


def poisson_groups(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        a = pm.Normal("a", mu, tau, shape=10)
        pm.Poisson("y", pt.exp(a[data["g"]]), observed=data["y"])
    return model


def students(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        nu, mu, sd = (
            pm.Gamma("nu", 2, 0.2),
            pm.Normal("mu", 0, 5),
            pm.HalfNormal("sd", 3),
        )
        pm.StudentT("y", nu=nu, mu=mu, sigma=sd, observed=data["y"])
    return model


def gammas(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        pm.Gamma(
            "y",
            alpha=pm.LogNormal("shape", 0, 1),
            beta=pm.LogNormal("rate", 0, 1),
            observed=data["y"],
        )
    return model


def betas(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        pm.Beta(
            "y",
            alpha=pm.LogNormal("alpha", 0, 1),
            beta=pm.LogNormal("beta", 0, 1),
            observed=data["y"],
        )
    return model


def negative_binomial(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        mu, alpha = pm.LogNormal("mu", 1, 1), pm.LogNormal("alpha", 0, 1)
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=data["y"])
    return model


def zero_inflated(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        pm.ZeroInflatedPoisson(
            "y",
            psi=pm.Beta("psi", 1, 1),
            mu=pm.LogNormal("mu", 1, 1),
            observed=data["y"],
        )
    return model


def ordinal(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        cuts = pm.Normal(
            "cuts",
            [-1, 0, 1],
            2,
            transform=pm.distributions.transforms.ordered,
            shape=3,
        )
        pm.OrderedLogistic(
            "y",
            eta=pm.Normal("b", 0, 2) * data["z1"],
            cutpoints=cuts,
            observed=data["y"],
        )
    return model


def multinomial(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        pm.Categorical("y", p=pm.Dirichlet("p", np.ones(5)), observed=data["y"])
    return model


def joint(data: Any, schema: Any) -> pm.Model:
    with pm.Model() as model:
        mu, sd = pm.Normal("mu", 0, 3), pm.HalfNormal("sd", 3)
        x = pm.Normal("x", mu, sd, observed=data["x"])
        b, noise = pm.Normal("b", 0, 2, shape=2), pm.HalfNormal("noise", 3)
        pm.Normal("y", b[0] + b[1] * x, noise, observed=data["y"])
    return model


def covariates(*names: str) -> Public:
    return lambda rng, n: {name: np.clip(rng.normal(size=n), -4, 4) for name in names}


def mixed(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Three normal and four binary covariates, as in the sketch that this is measured
    against.
    """
    numbers = {f"z{i}": np.clip(rng.normal(size=n), -4, 4) for i in (1, 2, 3)}
    return numbers | {
        f"z{i}": (rng.random(n) < share).astype(int)
        for i, share in zip(range(4, 8), [0.5, 0.3, 0.2, 0.1], strict=True)
    }


def groups(levels: int, *names: str) -> Public:
    more = covariates(*names)
    return lambda rng, n: {"g": rng.integers(levels, size=n), **more(rng, n)}


def number(lower: float, upper: float, **more: Any) -> dict[str, Any]:
    return {"y": {"lower": lower, "upper": upper, **more}}


G = {"g": {"levels": [*range(30)], "public": True}}
B8 = np.array([-1.0, 0.5, -0.4, 0.3, 0.8, -0.2, 0.1, 0.6])
AB = np.random.default_rng(5).normal([1.0, -0.5], [1.5, 0.7], (30, 2))
SPLIT = {"w": 0.6, "m": -1.0, "g": 3.0, "s": np.array([1.0, 0.74])}
SLOPES = {
    "mu": np.array([1.0, -0.5]),
    "tau": np.array([1.5, 0.7]),
    "a": AB[:, 0],
    "b": AB[:, 1],
    "sd": 2.0,
}
TEN = {"mu": 0.5, "tau": 0.6, "a": np.random.default_rng(6).normal(0.5, 0.6, 10)}
ONE_Z = {"z1": Z["z1"]}
TWO_Z = {"z1": Z["z1"], "z2": Z["z2"]}
LEVELS = {"y": {"levels": [0, 1]}}

DESIGNS = {
    "logit 2000": Design(logit, {"b": B8}, {**Z, **LEVELS}, 2_000, public=mixed),
    "logit 8000": Design(logit, {"b": B8}, {**Z, **LEVELS}, 8_000, public=mixed),
    "joint, add-remove": Design(
        joint,
        {"mu": 1.0, "sd": 1.0, "b": np.array([0.5, 1.0]), "noise": 1.5},
        {"x": {"lower": -10, "upper": 10}, **number(-20, 20)},
        2_000,
        neighbours="add-remove",
    ),
    "normal": Design(normal, {"mu": 1.0, "sd": 2.0}, number(-20, 20)),
    "normal n 500": Design(normal, {"mu": 1.0, "sd": 2.0}, number(-20, 20), 500),
    "normal n 50": Design(normal, {"mu": 1.0, "sd": 2.0}, number(-20, 20), 50),
    "normal far off": Design(normal, {"mu": 50.0, "sd": 5.0}, number(-200, 200), 3_000),
    "mixture": Design(mixture, SPLIT, number(-20, 20), 3_000),
    "lognormal": Design(
        lognormal,
        {"a": 7.0, "b": 0.7, "sd": 1.5},
        {**ONE_Z, **number(0.1, 1e7)},
        public=covariates("z1"),
    ),
    "effects of 30 groups": Design(
        effects,
        {"mu": 1.0, "tau": 1.5, "a": AB[:, 0], "sd": 2.0},
        {**G, **number(-40, 40)},
        10_000,
        kinds=("zcdp",),
        public=groups(30),
    ),
    "slopes of 30 groups": Design(
        slopes,
        SLOPES,
        {**G, **ONE_Z, **number(-40, 40)},
        10_000,
        kinds=("zcdp",),
        public=groups(30, "z1"),
    ),
    "poisson groups": Design(
        poisson_groups,
        TEN,
        {"g": {"levels": [*range(10)], "public": True}, **number(0, 60, integer=True)},
        public=groups(10),
    ),
    "student": Design(students, {"nu": 4.0, "mu": 1.0, "sd": 1.0}, number(-60, 60)),
    "gamma": Design(gammas, {"shape": 2.0, "rate": 0.5}, number(0.0001, 60)),
    "beta": Design(betas, {"alpha": 2.0, "beta": 5.0}, number(0.00001, 0.99999)),
    "negative binomial": Design(
        negative_binomial, {"mu": 4.0, "alpha": 1.5}, number(0, 80, integer=True)
    ),
    "zero-inflated": Design(
        zero_inflated, {"psi": 0.6, "mu": 3.0}, number(0, 30, integer=True)
    ),
    "ordinal": Design(
        ordinal,
        {"cuts": np.array([-1.0, 0.2, 1.0]), "b": 0.8},
        {**ONE_Z, "y": {"levels": [0, 1, 2, 3]}},
        public=covariates("z1"),
    ),
    "multinomial": Design(
        multinomial,
        {"p": np.array([0.4, 0.3, 0.2, 0.07, 0.03])},
        {"y": {"levels": [*range(5)]}},
    ),
    "separated": Design(
        separated,
        {"b": np.array([0.0, 6.0])},
        {**ONE_Z, **LEVELS},
        public=covariates("z1"),
    ),
    "collinear": Design(
        collinear,
        {"b": np.array([1.0, 0.5, 0.5]), "sd": 1.0},
        {**TWO_Z, **number(-30, 30)},
        public=covariates("z1", "z2"),
    ),
}


@dataclass(frozen=True)
class Answer:
    """What a release says of the unconstrained parameters, against the truth."""

    error: FloatArray
    covered: NDArray[np.bool_]
    deviation: FloatArray
    information: FloatArray  # of one record
    nuts: bool
    seconds: float


def answers(
    design: Design, kind: Literal["pure", "zcdp"], seeds: Iterable[int]
) -> Iterator[Answer]:
    """Release fresh tables, one for each seed; yield what their posteriors say."""
    schema = Schema.model_validate({"columns": design.columns})
    mechanism = Scores(
        epsilon=design.epsilon,
        model=design.build,
        delta=None if kind == "pure" else "1e-6",
        n_sets=5,
        neighbours=design.neighbours,
    )
    space = blueprint_of(as_source(design.build), schema)
    true, original, kept = (
        space.parameters_of(design.truth),
        drawing.posterior_draws,
        list[Any](),
    )

    def keep(*given: Any, **more: Any) -> Any:
        found = original(*given, **more)
        kept[:] = [given[1], found]
        return found

    setattr(module, "posterior_draws", keep)  # noqa: B010
    mechanism.plan(schema)
    for seed in seeds:
        rng = np.random.default_rng(1_000 + seed)
        public = design.public(rng, design.n)
        drawn = space.draw(
            constrained(space.model, true[None])[0], design.n, public, rng
        )
        table = Table(
            pd.DataFrame({name: (public | drawn)[name] for name in schema.columns}),
            schema,
        )
        begun = time.process_time()
        mechanism.release(table)
        seconds = time.process_time() - begun
        here, found = kept
        places = found.places
        low, high = np.quantile(places, [0.025, 0.975], axis=0)
        yield Answer(
            places.mean(axis=0) - true,
            (low <= true) & (true <= high),
            places.std(axis=0),
            here.information,
            found.facts["sampler"] == "nuts",
            seconds,
        )
    setattr(module, "posterior_draws", original)  # noqa: B010


def summary(rows: Sequence[Answer], n: int) -> dict[str, Any]:
    """Return what many releases come to."""
    information = np.mean([row.information for row in rows], axis=0) * n
    spread = np.sqrt(np.diag(np.linalg.pinv(information, hermitian=True)))
    # parameters that records tell of directly
    told = np.diag(information) > 1e-6 * np.diag(information).max()
    errors = np.sqrt(np.mean([row.error**2 for row in rows], axis=0))
    covered = np.array([row.covered for row in rows])
    by_table = covered.mean(axis=1)
    return {
        "ratio": float(np.mean(errors[told] / spread[told])),
        "largest": float(np.max(errors[told] / spread[told])),
        "covered": float(by_table.mean()),
        "uncertainty": float(by_table.std() / np.sqrt(len(rows))),
        "least": float(covered.mean(axis=0).min()),
        "calibration": float(
            np.mean(errors / np.mean([row.deviation for row in rows], axis=0))
        ),
        "nuts": sum(row.nuts for row in rows),
        "seconds": float(np.median([row.seconds for row in rows])),
    }


def main() -> None:
    """Print a row for each design and kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("designs", nargs="*", metavar="MODEL", help=", ".join(DESIGNS))
    parser.add_argument("--runs", type=int, default=40)
    given = parser.parse_args()
    print(
        "| model, n | loss | error / sampling error, mean (largest) | covered ± its "
        "standard error (least) "
        "| error / sd | NUTS | CPU s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in given.designs or DESIGNS:
        for kind in DESIGNS[name].kinds:
            found = summary(
                list(answers(DESIGNS[name], kind, range(given.runs))), DESIGNS[name].n
            )
            loss = "1" if kind == "pure" else "(1, 1e-6)"
            print(
                f"| {name} ({DESIGNS[name].n:,}) | {loss} | {found['ratio']:.2f} "
                f"({found['largest']:.2f}) | "
                f"{found['covered']:.3f} ± {found['uncertainty']:.3f} "
                f"({found['least']:.2f}) | "
                f"{found['calibration']:.2f} | {found['nuts']} | "
                f"{found['seconds']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
