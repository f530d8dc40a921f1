"""Seven models that posteriordb has of a book on regression (Gelman and Hill, 2007), as
one would write their Stan programs in PyMC: a parameter without a prior is flat.
"""

from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
from scipy.special import expit

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
TRIALS = tuple(f"y{trial}" for trial in range(1, 9))
PROPER = "proper priors"


def dogs(df: Any) -> pm.Model:
    """Whether a dog is shocked in a trial, by what happened to it before."""
    y = df[[*TRIALS]].to_numpy()
    before = np.column_stack([np.zeros(len(df)), y[:, :-1]])
    n_shock = before.cumsum(axis=1)
    n_avoid = np.arange(len(TRIALS)) - n_shock
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 100, shape=3)
        eta = beta[0] + beta[1] * n_avoid + beta[2] * n_shock
        pm.Bernoulli("y", logit_p=eta, observed=y)
    return model


def dogs_by_trial(df: Any) -> pm.Model:
    """The same, a variable for each trial."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 100, shape=3)
        n_shock = np.zeros(len(df))
        for trial, name in enumerate(TRIALS):
            eta = beta[0] + beta[1] * (trial - n_shock) + beta[2] * n_shock
            shocked = pm.Bernoulli(name, logit_p=eta, observed=df[name].to_numpy())
            n_shock = n_shock + shocked
    return model


def dog_records(rng: np.random.Generator, n: int) -> Drawn:
    """Dogs in eight trials."""
    beta = np.array([1.5, -0.4, -0.2])
    shocked = np.zeros((n, len(TRIALS)), dtype=int)
    for trial in range(len(TRIALS)):
        n_shock = shocked[:, :trial].sum(axis=1)
        eta = beta[0] + beta[1] * (trial - n_shock) + beta[2] * n_shock
        shocked[:, trial] = rng.random(n) < expit(eta)
    return pd.DataFrame(shocked, columns=[*TRIALS]), {"beta": beta}


def kidscore_interaction(df: Any) -> pm.Model:
    """Test scores of children, by their mothers' school and score."""
    mom_iq = df["mom_iq"].to_numpy()
    mom_hs = df["mom_hs"].to_numpy()
    inter = mom_hs * mom_iq
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=4)
        sigma = pm.HalfCauchy("sigma", 2.5)
        mean = beta[0] + beta[1] * mom_hs + beta[2] * mom_iq + beta[3] * inter
        pm.Normal("kid_score", mean, sigma, observed=df["kid_score"].to_numpy())
    return model


def kidscore_interaction_proper(df: Any) -> pm.Model:
    """The same, with proper priors."""
    mom_iq = df["mom_iq"].to_numpy()
    mom_hs = df["mom_hs"].to_numpy()
    inter = mom_hs * mom_iq
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, [100, 100, 2, 2])
        sigma = pm.HalfCauchy("sigma", 2.5)
        mean = beta[0] + beta[1] * mom_hs + beta[2] * mom_iq + beta[3] * inter
        pm.Normal("kid_score", mean, sigma, observed=df["kid_score"].to_numpy())
    return model


def kidscore_momhsiq(df: Any) -> pm.Model:
    """The same without the interaction."""
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=3)
        sigma = pm.HalfCauchy("sigma", 2.5)
        mean = beta[0] + beta[1] * df.mom_hs.values + beta[2] * df.mom_iq.values
        pm.Normal("kid_score", mean, sigma, observed=df.kid_score.values)
    return model


def kidscore_momhsiq_proper(df: Any) -> pm.Model:
    """The same, with proper priors."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, [100, 100, 2])
        sigma = pm.HalfCauchy("sigma", 2.5)
        mean = beta[0] + beta[1] * df.mom_hs.values + beta[2] * df.mom_iq.values
        pm.Normal("kid_score", mean, sigma, observed=df.kid_score.values)
    return model


def child_records(rng: np.random.Generator, n: int) -> Drawn:
    """Children with an interaction of their mothers' school and score."""
    mom_hs = (rng.random(n) < 0.78).astype(int)
    mom_iq = rng.normal(100, 15, n).clip(50, 150)
    beta = np.array([-11.0, 51.0, 1.0, -0.5])
    mean = beta[0] + beta[1] * mom_hs + beta[2] * mom_iq + beta[3] * mom_hs * mom_iq
    frame = pd.DataFrame(
        {
            "kid_score": rng.normal(mean, 18).clip(0, 200),
            "mom_hs": mom_hs,
            "mom_iq": mom_iq,
        }
    )
    return frame, {"beta": beta, "sigma": 18.0}


def other_child_records(rng: np.random.Generator, n: int) -> Drawn:
    """Children without an interaction."""
    mom_hs = (rng.random(n) < 0.78).astype(int)
    mom_iq = rng.normal(100, 15, n).clip(50, 150)
    beta = np.array([26.0, 6.0, 0.6])
    mean = beta[0] + beta[1] * mom_hs + beta[2] * mom_iq
    frame = pd.DataFrame(
        {
            "kid_score": rng.normal(mean, 18).clip(0, 200),
            "mom_hs": mom_hs,
            "mom_iq": mom_iq,
        }
    )
    return frame, {"beta": beta, "sigma": 18.0}


def logearn(df: Any) -> pm.Model:
    """Logarithms of earnings, by height in standard deviations and sex."""
    z_height = (df["height"] - df["height"].mean()) / df["height"].std()
    inter = z_height * df["male"]
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=4)
        sigma = pm.HalfFlat("sigma")
        mean = beta[0] + beta[1] * z_height.values + beta[2] * df["male"].values
        mean = mean + beta[3] * inter.values
        pm.Normal("log_earn", mean, sigma, observed=np.log(df["earn"]).values)
    return model


def logearn_proper(df: Any) -> pm.Model:
    """The same, with proper priors."""
    z_height = (df["height"] - df["height"].mean()) / df["height"].std()
    inter = z_height * df["male"]
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, [10, 2, 2, 2])
        sigma = pm.HalfNormal("sigma", 2)
        mean = beta[0] + beta[1] * z_height.values + beta[2] * df["male"].values
        mean = mean + beta[3] * inter.values
        pm.Normal("log_earn", mean, sigma, observed=np.log(df["earn"]).values)
    return model


def earning_records(rng: np.random.Generator, n: int) -> Drawn:
    """Earnings, by height and sex."""
    male = rng.integers(2, size=n)
    height = rng.normal(64 + 5.5 * male, 2.7).clip(54, 84)
    scaled = (height - height.mean()) / height.std(ddof=1)
    beta = np.array([9.5, 0.1, 0.4, 0.05])
    mean = beta[0] + beta[1] * scaled + beta[2] * male + beta[3] * scaled * male
    earn = np.exp(rng.normal(mean, 0.88)).clip(50, 1_000_000)
    frame = pd.DataFrame({"earn": earn, "height": height, "male": male})
    return frame, {"beta": beta, "sigma": 0.88}


def mesquite(df: Any) -> pm.Model:
    """Weights of bushes, by the volume of their canopy."""
    volume = np.log(df.diam1 * df.diam2 * df.canopy_height).to_numpy()
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=2)
        sigma = pm.HalfFlat("sigma")
        mean = beta[0] + beta[1] * volume
        pm.Normal("log_weight", mean, sigma, observed=np.log(df.weight).to_numpy())
    return model


def mesquite_proper(df: Any) -> pm.Model:
    """The same, with proper priors."""
    volume = np.log(df.diam1 * df.diam2 * df.canopy_height).to_numpy()
    with pm.Model() as model:
        beta = pm.Normal("beta", [5, 1], [3, 1])
        sigma = pm.HalfNormal("sigma", 1)
        mean = beta[0] + beta[1] * volume
        pm.Normal("log_weight", mean, sigma, observed=np.log(df.weight).to_numpy())
    return model


def bush_records(rng: np.random.Generator, n: int) -> Drawn:
    """Bushes."""
    diam1 = np.exp(rng.normal(0.5, 0.4, n)).clip(0.3, 6)
    diam2 = np.exp(rng.normal(0.2, 0.4, n)).clip(0.3, 6)
    height = np.exp(rng.normal(0.1, 0.3, n)).clip(0.3, 4)
    mean = 5.2 + 0.72 * np.log(diam1 * diam2 * height)
    frame = pd.DataFrame(
        {
            "weight": np.exp(rng.normal(mean, 0.4)).clip(5, 20_000),
            "diam1": diam1,
            "diam2": diam2,
            "canopy_height": height,
        }
    )
    return frame, {"beta": [5.2, 0.72], "sigma": 0.4}


def wells(df: Any) -> pm.Model:
    """Whether a household changes its well, by distance, arsenic and education."""
    c_dist100 = (df.dist - df.dist.mean()) / 100.0
    c_arsenic = df.arsenic - df.arsenic.mean()
    x = np.column_stack([c_dist100, c_arsenic, c_dist100 * c_arsenic, df.educ / 4.0])
    with pm.Model() as model:
        alpha = pm.Flat("alpha")
        beta = pm.Flat("beta", shape=4)
        eta = alpha + pt.dot(x, beta)
        pm.Bernoulli("switched", logit_p=eta, observed=df.switched.to_numpy())
    return model


def wells_proper(df: Any) -> pm.Model:
    """The same, with proper priors."""
    c_dist100 = (df.dist - df.dist.mean()) / 100.0
    c_arsenic = df.arsenic - df.arsenic.mean()
    x = np.column_stack([c_dist100, c_arsenic, c_dist100 * c_arsenic, df.educ / 4.0])
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 2.5)
        beta = pm.Normal("beta", 0, 2.5, shape=4)
        eta = alpha + pt.dot(x, beta)
        pm.Bernoulli("switched", logit_p=eta, observed=df.switched.to_numpy())
    return model


def wells_interaction(df: Any) -> pm.Model:
    """The same without education."""
    c_dist100 = (df.dist - df.dist.mean()) / 100.0
    c_arsenic = df.arsenic - df.arsenic.mean()
    x = np.column_stack([c_dist100, c_arsenic, c_dist100 * c_arsenic])
    with pm.Model() as model:
        alpha = pm.Flat("alpha")
        beta = pm.Flat("beta", shape=3)
        eta = alpha + pt.dot(x, beta)
        pm.Bernoulli("switched", logit_p=eta, observed=df.switched.to_numpy())
    return model


def wells_interaction_proper(df: Any) -> pm.Model:
    """The same, with proper priors."""
    c_dist100 = (df.dist - df.dist.mean()) / 100.0
    c_arsenic = df.arsenic - df.arsenic.mean()
    x = np.column_stack([c_dist100, c_arsenic, c_dist100 * c_arsenic])
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 2.5)
        beta = pm.Normal("beta", 0, 2.5, shape=3)
        eta = alpha + pt.dot(x, beta)
        pm.Bernoulli("switched", logit_p=eta, observed=df.switched.to_numpy())
    return model


def well_records(rng: np.random.Generator, n: int) -> Drawn:
    """Households, where education matters."""
    frame, eta, slopes = _households(rng, n)
    eta = eta + 0.17 * frame.educ / 4
    frame["switched"] = (rng.random(n) < expit(eta)).astype(int)
    return frame, {"alpha": 0.35, "beta": [*slopes, 0.17]}


def other_well_records(rng: np.random.Generator, n: int) -> Drawn:
    """Households, where it doesn't."""
    frame, eta, slopes = _households(rng, n)
    frame["switched"] = (rng.random(n) < expit(eta)).astype(int)
    return frame, {"alpha": 0.35, "beta": slopes}


def _households(
    rng: np.random.Generator, n: int
) -> tuple[pd.DataFrame, "pd.Series[float]", list[float]]:
    frame = pd.DataFrame(
        {
            "dist": rng.gamma(1.7, 28, n).clip(0, 350),
            "arsenic": (0.5 + rng.gamma(1.2, 1, n)).clip(0.5, 10),
            "educ": rng.integers(0, 18, n),
        }
    )
    slopes = [-0.9, 0.47, -0.18]
    dist = (frame.dist - frame.dist.mean()) / 100
    arsenic = frame.arsenic - frame.arsenic.mean()
    eta = 0.35 + slopes[0] * dist + slopes[1] * arsenic + slopes[2] * dist * arsenic
    return frame, eta, slopes


CHILDREN = {
    "kid_score": number(0, 200),
    "mom_hs": levels(0, 1, public=True),
    "mom_iq": public(**number(50, 150)),
}
WELLS = {
    "switched": levels(0, 1),
    "dist": public(**number(0, 350)),
    "arsenic": public(**number(0.5, 10)),
    "educ": public(**count(0, 17)),
}

ENTRIES = [
    Entry(
        name="dogs",
        family="logistic regression on a person's own past",
        columns={name: levels(0, 1) for name in TRIALS},
        simulate=dog_records,
        written=Written(model=dogs, said="8 trials"),
        amended=Written(model=dogs_by_trial, said="8 trials, a variable each"),
    ),
    Entry(
        name="kidscore_interaction",
        family="linear regression",
        columns=CHILDREN,
        simulate=child_records,
        written=Written(model=kidscore_interaction),
        amended=Written(model=kidscore_interaction_proper, said=PROPER),
    ),
    Entry(
        name="kidscore_momhsiq",
        family="linear regression",
        columns=CHILDREN,
        simulate=other_child_records,
        written=Written(model=kidscore_momhsiq),
        amended=Written(model=kidscore_momhsiq_proper, said=PROPER),
    ),
    Entry(
        name="logearn_interaction_z",
        family="linear regression, logarithm of the outcome",
        columns={
            "earn": number(50, 1_000_000),
            "height": public(**number(54, 84)),
            "male": levels(0, 1, public=True),
        },
        simulate=earning_records,
        written=Written(model=logearn),
        amended=Written(model=logearn_proper, said=PROPER),
    ),
    Entry(
        name="logmesquite_logvolume",
        family="linear regression, logarithm of the outcome",
        columns={
            "weight": number(5, 20_000),
            "diam1": public(**number(0.3, 6)),
            "diam2": public(**number(0.3, 6)),
            "canopy_height": public(**number(0.3, 4)),
        },
        simulate=bush_records,
        written=Written(model=mesquite),
        amended=Written(model=mesquite_proper, said=PROPER),
    ),
    Entry(
        name="wells_dae_c_model",
        family="logistic regression",
        columns=WELLS,
        simulate=well_records,
        written=Written(model=wells),
        amended=Written(model=wells_proper, said=PROPER),
    ),
    Entry(
        name="wells_interaction_c_model",
        family="logistic regression",
        columns={name: WELLS[name] for name in ("switched", "dist", "arsenic", "educ")},
        simulate=other_well_records,
        written=Written(model=wells_interaction),
        amended=Written(model=wells_interaction_proper, said=PROPER),
    ),
]
