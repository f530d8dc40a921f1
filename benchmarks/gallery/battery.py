"""Five models of the project's own battery."""

from typing import Any

import numpy as np
import pandas as pd
import pymc as pm

from benchmarks.gallery.entries import (
    Entry,
    Truth,
    Written,
    count,
    levels,
    number,
    public,
)

Drawn = tuple[pd.DataFrame, Truth]
CLINICS = tuple(f"clinic {number:02d}" for number in range(1, 31))


def howell(df: Any) -> pm.Model:
    """Heights, by weights about their mean."""
    xbar = df.weight.mean()
    with pm.Model() as model:
        a = pm.Normal("a", 178, 20)
        b = pm.LogNormal("b", 0, 1)
        sigma = pm.Uniform("sigma", 0, 50)
        mu = a + b * (df.weight.values - xbar)
        pm.Normal("height", mu, sigma, observed=df.height.values)
    return model


def howell_records(rng: np.random.Generator, n: int) -> Drawn:
    """Records of the heights."""
    weight = rng.normal(45, 7, n).clip(20, 120)
    height = rng.normal(154 + 0.9 * (weight - weight.mean()), 5).clip(50, 250)
    frame = pd.DataFrame({"height": height, "weight": weight})
    return frame, {"a": 154.0, "b": 0.9, "sigma": 5.0}


def epilepsy(df: Any) -> pm.Model:
    """Counts of seizures in clinics, with an exposure."""
    codes, clinics = pd.factorize(df.clinic, sort=True)
    with pm.Model(coords={"clinic": clinics}) as model:
        b0 = pm.Normal("b0", 0, 2)
        b_trt = pm.Normal("b_trt", 0, 1)
        s = pm.HalfNormal("s", 1)
        u = pm.Normal("u", 0, s, dims="clinic")
        alpha = pm.Exponential("alpha", 1)
        eta = b0 + b_trt * (df.trt == "t").values + u[codes] + df.lexp.values
        pm.NegativeBinomial(
            "seizures", mu=pm.math.exp(eta), alpha=alpha, observed=df.seizures.values
        )
    return model


def seizure_records(rng: np.random.Generator, n: int) -> Drawn:
    """Records of the seizures."""
    effects = rng.normal(0, 0.4, len(CLINICS))
    clinic = rng.integers(len(CLINICS), size=n)
    treated = rng.integers(2, size=n)
    exposure = rng.uniform(-1, 1, n)
    mu = np.exp(1.5 + effects[clinic] - 0.4 * treated + exposure)
    frame = pd.DataFrame(
        {
            "seizures": rng.negative_binomial(2, 2 / (2 + mu)).clip(0, 500),
            "trt": np.array(["p", "t"])[treated],
            "lexp": exposure,
            "clinic": np.array(CLINICS)[clinic],
        }
    )
    return frame, {"b_trt": -0.4, "alpha": 2.0, "s": 0.4}


def mixture(df: Any) -> pm.Model:
    """A mixture of three normals."""
    with pm.Model(coords={"cluster": range(3)}) as model:
        mu = pm.Normal(
            "mu",
            0,
            5,
            transform=pm.distributions.transforms.ordered,
            initval=[-4, 0, 4],
            dims="cluster",
        )
        sigma = pm.HalfNormal("sigma", 2, dims="cluster")
        w = pm.Dirichlet("w", np.ones(3), dims="cluster")
        pm.NormalMixture("y", w=w, mu=mu, sigma=sigma, observed=df.y.values)
    return model


def mixture_records(rng: np.random.Generator, n: int) -> Drawn:
    """Records of the mixture."""
    centres = np.array([-5.0, 0.0, 5.0])
    spreads = np.array([0.8, 2.0, 0.8])
    shares = [0.3, 0.4, 0.3]
    cluster = rng.choice(3, n, p=shares)
    y = rng.normal(centres[cluster], spreads[cluster]).clip(-15, 15)
    return pd.DataFrame({"y": y}), {"mu": centres, "sigma": spreads, "w": shares}


def ar1(df: Any) -> pm.Model:
    """A series over records."""
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5, shape=2)
        s = pm.HalfNormal("s", 1)
        pm.AR(
            "y",
            rho=rho,
            sigma=s,
            constant=True,
            init_dist=pm.Normal.dist(0, 10),
            observed=df.y.values,
        )
    return model


def series(rng: np.random.Generator, n: int) -> Drawn:
    """A random walk."""
    return pd.DataFrame({"y": rng.normal(0, 0.1, n).cumsum().clip(-10, 10)}), {}


def spread_records(rng: np.random.Generator, n: int) -> Drawn:
    """A curve whose spread grows."""
    x = rng.uniform(0, 10, n)
    y = rng.normal(2 * np.sin(x), np.exp(-0.5 + 0.1 * x)).clip(-20, 20)
    return pd.DataFrame({"y": y, "x": x}), {"sigma_x": 0.1}


ENTRIES = [
    Entry(
        name="howell",
        family="linear regression",
        columns={"height": number(50, 250), "weight": public(**number(20, 120))},
        simulate=howell_records,
        written=Written(model=howell),
    ),
    Entry(
        name="epilepsy",
        family="negative binomial regression with groups",
        columns={
            "seizures": count(0, 500),
            "trt": levels("p", "t", public=True),
            "lexp": public(**number(-2, 3)),
            "clinic": levels(*CLINICS, public=True),
        },
        simulate=seizure_records,
        written=Written(model=epilepsy),
    ),
    Entry(
        name="gmm",
        family="normal mixture",
        columns={"y": number(-15, 15)},
        simulate=mixture_records,
        written=Written(model=mixture),
    ),
    Entry(
        name="ar1",
        family="a series over records",
        columns={"y": number(-10, 10)},
        simulate=series,
        written=Written(model=ar1),
        n_records=200,
    ),
    Entry(
        name="bmb_dist",
        family="distributional regression, a spline",
        columns={"y": number(-20, 20), "x": public(**number(0, 10))},
        simulate=spread_records,
        written=Written(model=["y ~ bs(x, df=6)", "sigma ~ x"]),
    ),
]
