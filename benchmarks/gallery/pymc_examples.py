"""Ten models of PyMC's example gallery, in the words of their pages."""

from typing import Any

import numpy as np
import pandas as pd
import patsy
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
TREES = ("pine", "oak", "ebony", "rosewood", "mahogany")
MONTHS = 3  # of an interval of the hazard


def binomial_regression(df: Any) -> pm.Model:
    """Successes out of 20 trials each."""
    coords = {"observation": df.index.values}
    with pm.Model(coords=coords) as model:
        x = pm.Data("x", df["x"], dims="observation")
        beta0 = pm.Normal("beta0", mu=0, sigma=1)
        beta1 = pm.Normal("beta1", mu=0, sigma=1)
        mu = beta0 + beta1 * x
        p = pm.Deterministic("p", pm.math.invlogit(mu), dims="observation")
        pm.Binomial("y", n=20, p=p, observed=df["y"], dims="observation")
    return model


def binomial_records(rng: np.random.Generator, n: int) -> Drawn:
    """Records of the binomial regression."""
    x = rng.uniform(-10, 20, n)
    y = rng.binomial(20, expit(0.7 + 0.4 * x))
    return pd.DataFrame({"x": x, "y": y}), {"beta0": 0.7, "beta1": 0.4}


def imputed(df: Any) -> pm.Model:
    """A linear regression; PyMC imputes what is missing of two covariates."""
    complete = ["a", "b"]
    with_gaps = ["c", "d"]
    numbers = df[complete + with_gaps]
    scaled = (numbers - np.nanmean(numbers, axis=0)) / np.nanstd(numbers, axis=0)
    gaps = scaled[with_gaps].to_numpy()
    coords = {
        "xj_nm": ["intercept", *complete],
        "xk_nm": with_gaps,
        "oid": df.index.values,
    }
    with pm.Model(coords=coords) as model:
        design = np.column_stack([np.ones(len(df)), scaled[complete]])
        xj = pm.Data("xj", design, dims=("oid", "xj_nm"))
        masked = np.ma.masked_array(gaps, mask=np.isnan(gaps))
        xk_mu = pm.Normal("xk_mu", mu=0.0, sigma=1, dims="xk_nm")
        xk = pm.Normal(
            "xk", mu=xk_mu, sigma=1.0, observed=masked, dims=("oid", "xk_nm")
        )
        b_s = pm.Gamma("beta_sigma", alpha=10, beta=10)
        bj = pm.Normal("beta_j", mu=0, sigma=b_s, dims="xj_nm")
        bk = pm.Normal("beta_k", mu=0, sigma=b_s, dims="xk_nm")
        epsilon = pm.Gamma("epsilon", alpha=50, beta=50)
        mean = pt.dot(xj, bj.T) + pt.dot(xk, bk.T)
        pm.Normal("yhat", mu=mean, sigma=epsilon, observed=df["y"].values, dims="oid")
    return model


def imputed_records(rng: np.random.Generator, n: int) -> Drawn:
    """Records of the regression with missing covariates."""
    frame = pd.DataFrame(
        {
            "a": rng.normal(0, 1, n),
            "b": rng.normal(0, 1, n),
            "c": rng.normal(0, 1, n),
            "d": rng.normal(0, 1, n),
        }
    ).clip(-6, 6)
    mean = 1 + 0.5 * frame.a - 1 * frame.b + 0.8 * frame.c + 0.4 * frame.d
    frame["y"] = (mean + rng.normal(0, 1, n)).clip(-20, 20)
    for name in ("c", "d"):
        frame.loc[rng.random(n) < 0.4, name] = np.nan
    truth = {"beta_j": [1, 0.5, -1], "beta_k": [0.8, 0.4], "epsilon": 1.0}
    return frame, truth


def sneezes(df: Any) -> pm.Model:
    """A negative binomial regression with an interaction."""
    regressors = ["nomeds", "alcohol", "nomeds:alcohol"]
    with pm.Model(coords={"regressor": regressors, "obs_idx": df.index}) as model:
        a = pm.Normal("intercept", mu=0, sigma=5)
        b = pm.Normal("slopes", mu=0, sigma=1, dims="regressor")
        alpha = pm.Exponential("alpha", 0.5)
        M = pm.Data("nomeds", df.nomeds.to_numpy(), dims="obs_idx")
        A = pm.Data("alcohol", df.alcohol.to_numpy(), dims="obs_idx")
        S = pm.Data("nsneeze", df.nsneeze.to_numpy(), dims="obs_idx")
        mean = pm.math.exp(a + b[0] * M + b[1] * A + b[2] * M * A)
        pm.NegativeBinomial("y", mu=mean, alpha=alpha, observed=S, dims="obs_idx")
    return model


def sneezing_records(rng: np.random.Generator, n: int) -> Drawn:
    """Records of the negative binomial regression."""
    nomeds = rng.integers(2, size=n)
    alcohol = rng.integers(2, size=n)
    slopes = [np.log(6), np.log(3), np.log(2)]
    eta = nomeds * slopes[0] + alcohol * slopes[1] + nomeds * alcohol * slopes[2]
    sneezed = rng.negative_binomial(10, 10 / (10 + np.exp(eta)))
    frame = pd.DataFrame({"nsneeze": sneezed, "nomeds": nomeds, "alcohol": alcohol})
    return frame, {"intercept": 0.0, "slopes": slopes, "alpha": 10.0}


def out_of_sample(df: Any) -> pm.Model:
    """A logistic regression whose design is patsy's."""
    outcome, design = patsy.dmatrices("y ~ x1 * x2", data=df)
    with pm.Model(coords={"coeffs": design.design_info.column_names}) as model:
        X = pm.Data("X", np.asarray(design))
        y = pm.Data("y", np.asarray(outcome).flatten())
        b = pm.Normal("b", mu=0, sigma=1, dims="coeffs")
        mu = pm.math.dot(X, b)
        p = pm.Deterministic("p", pm.math.invlogit(mu))
        pm.Bernoulli("obs", p=p, observed=y)
    return model


def out_of_sample_records(rng: np.random.Generator, n: int) -> Drawn:
    """Records of the logistic regression."""
    x1 = rng.normal(0, 2, n).clip(-9, 9)
    x2 = rng.normal(0, 2, n).clip(-9, 9)
    p = expit(-0.5 + x1 - x2 + 2 * x1 * x2)
    frame = pd.DataFrame({"x1": x1, "x2": x2, "y": rng.binomial(1, p)})
    return frame, {"b": [-0.5, 1, -1, 2]}


def outliers(df: Any) -> pm.Model:
    """A robust regression: each record is an outlier or not."""
    x = ((df["x"] - df["x"].mean()) / (2 * df["x"].std())).to_numpy()
    # of the outcome's, public numbers
    y = ((df["y"] - 400) / 250).to_numpy()
    spread = (df["sigma_y"] / 250).to_numpy()
    coords = {"coefs": ["intercept", "slope"], "datapoint_id": df.index}
    with pm.Model(coords=coords) as model:
        beta = pm.Normal("beta", mu=0, sigma=10, dims="coefs")
        inside = beta[0] + beta[1] * x
        outside = pm.Normal("y_est_out", mu=0, sigma=10, initval=0.0)
        sigma_out = pm.HalfNormal("sigma_y_out", sigma=10, initval=1.0)
        of_inlier = pm.logp(pm.Normal.dist(mu=inside, sigma=spread), y)
        of_outlier = pm.logp(pm.Normal.dist(mu=outside, sigma=spread + sigma_out), y)
        share = pm.Uniform("frac_outliers", lower=0.0, upper=0.5)
        is_outlier = pm.Bernoulli("is_outlier", p=share, dims="datapoint_id")
        pm.Potential(
            "obs",
            ((1 - is_outlier) * of_inlier).sum() + (is_outlier * of_outlier).sum(),
        )
    return model


def outliers_as_mixture(df: Any) -> pm.Model:
    """The same, summed over whether a record is an outlier."""
    x = ((df["x"] - df["x"].mean()) / (2 * df["x"].std())).to_numpy()
    spread = (df["sigma_y"] / 250).to_numpy()
    with pm.Model(coords={"coefs": ["intercept", "slope"]}) as model:
        beta = pm.Normal("beta", mu=0, sigma=10, dims="coefs")
        outside = pm.Normal("y_est_out", mu=0, sigma=10)
        sigma_out = pm.HalfNormal("sigma_y_out", sigma=10)
        share = pm.Uniform("frac_outliers", lower=0.0, upper=0.5)
        inlier = pm.Normal.dist(mu=beta[0] + beta[1] * x, sigma=spread)
        outlier = pm.Normal.dist(mu=outside, sigma=spread + sigma_out)
        pm.Mixture(
            "obs",
            w=pt.stack([1 - share, share]),
            comp_dists=[inlier, outlier],
            observed=((df["y"] - 400) / 250).to_numpy(),
        )
    return model


def outlying_records(rng: np.random.Generator, n: int) -> Drawn:
    """Records of the robust regression."""
    x = rng.uniform(40, 300, n)
    sigma = rng.uniform(10, 60, n)
    scaled = (x - x.mean()) / (2 * x.std())
    is_outlier = rng.random(n) < 0.2
    mean = np.where(is_outlier, 0.1, -0.2 + 0.9 * scaled)
    spread = np.where(is_outlier, sigma / 250 + 0.5, sigma / 250)
    y = 400 + 250 * rng.normal(mean, spread)
    frame = pd.DataFrame({"x": x, "y": y.clip(-600, 1400), "sigma_y": sigma})
    truth = {
        "beta": [-0.2, 0.9],
        "y_est_out": 0.1,
        "sigma_y_out": 0.5,
        "frac_outliers": 0.2,
    }
    return frame, truth


def simpson(df: Any) -> pm.Model:
    """Intercepts, slopes and spreads of groups, drawn as offsets."""
    with pm.Model(coords={"group": ["one", "two", "three", "four", "five"]}) as model:
        intercept_mu = pm.Normal("intercept_mu", 0, sigma=1)
        intercept_sigma = pm.HalfNormal("intercept_sigma", sigma=2)
        slope_mu = pm.Normal("slope_mu", 0, sigma=1)
        slope_sigma = pm.HalfNormal("slope_sigma", sigma=2)
        sigma_hyperprior = pm.HalfNormal("sigma_hyperprior", sigma=0.5)
        sigma = pm.HalfNormal("sigma", sigma=sigma_hyperprior, dims="group")
        offsets = pm.Normal("β0_offset", 0, sigma=1, dims="group")
        β0 = pm.Deterministic(
            "β0", intercept_mu + offsets * intercept_sigma, dims="group"
        )
        slope_offsets = pm.Normal("β1_offset", 0, sigma=1, dims="group")
        β1 = pm.Deterministic(
            "β1", slope_mu + slope_offsets * slope_sigma, dims="group"
        )
        x = pm.Data("x", df.x, dims="obs_id")
        g = pm.Data("g", df.group_idx, dims="obs_id")
        μ = pm.Deterministic("μ", β0[g] + β1[g] * x, dims="obs_id")
        pm.Normal("y", mu=μ, sigma=sigma[g], observed=df.y, dims="obs_id")
    return model


def simpson_centred(df: Any) -> pm.Model:
    """The same, its groups centred."""
    with pm.Model(coords={"group": ["one", "two", "three", "four", "five"]}) as model:
        intercept_mu = pm.Normal("intercept_mu", 0, sigma=1)
        intercept_sigma = pm.HalfNormal("intercept_sigma", sigma=2)
        slope_mu = pm.Normal("slope_mu", 0, sigma=1)
        slope_sigma = pm.HalfNormal("slope_sigma", sigma=2)
        sigma_hyperprior = pm.HalfNormal("sigma_hyperprior", sigma=0.5)
        sigma = pm.HalfNormal("sigma", sigma=sigma_hyperprior, dims="group")
        β0 = pm.Normal("β0", intercept_mu, sigma=intercept_sigma, dims="group")
        β1 = pm.Normal("β1", slope_mu, sigma=slope_sigma, dims="group")
        x = pm.Data("x", df.x, dims="obs_id")
        g = pm.Data("g", df.group_idx, dims="obs_id")
        μ = pm.Deterministic("μ", β0[g] + β1[g] * x, dims="obs_id")
        pm.Normal("y", mu=μ, sigma=sigma[g], observed=df.y, dims="obs_id")
    return model


def simpson_records(rng: np.random.Generator, n: int) -> Drawn:
    """Records of the groups with a paradox."""
    intercepts = np.array([-1.0, -0.4, 0.1, 0.6, 1.3])
    group = rng.integers(5, size=n)
    middle = 2 * intercepts[group]
    x = rng.normal(middle, 1).clip(-8, 8)
    # each group's line as the model has it, about x = 0
    at_zero = intercepts + 0.5 * 2 * intercepts
    y = rng.normal(at_zero[group] - 0.5 * x, 1).clip(-12, 12)
    frame = pd.DataFrame({"group_idx": group, "x": x, "y": y})
    return frame, {"β0": at_zero, "β1": [-0.5] * 5, "sigma": [1.0] * 5}


def log_logistic(df: Any) -> pm.Model:
    """Survival times after surgery, those that are censored by a potential."""
    X = np.empty((len(df), 2))
    X[:, 0] = 1.0
    X[:, 1] = df.metastasized
    y = np.log(df.time.values)
    scaled = (y - y.mean()) / y.std()
    with pm.Model() as model:
        predictors = pm.Data("predictors", X)
        censored = pm.Data("censored", df.event.values == 0.0)
        y_obs = pm.Data("y_obs", scaled[df.event.values == 1.0])
        y_cens = pm.Data("y_cens", scaled[df.event.values == 0.0])
        beta = pm.Normal("beta", 0.0, 5.0, shape=2)
        eta = beta.dot(predictors.T)
        s = pm.HalfNormal("s", 5.0)
        pm.Logistic("events", eta[~censored], s, observed=y_obs)
        beyond = pm.math.log(1.0 - pm.math.sigmoid((y_cens - eta[censored]) / s))
        pm.Potential("censored_like", beyond)
    return model


def log_logistic_to_window(df: Any) -> pm.Model:
    """The same, with the months for which everybody was followed, in public."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 5.0, shape=2)
        s = pm.HalfNormal("s", 5.0)
        mu = beta[0] + beta[1] * df.metastasized.to_numpy()
        pm.Censored(
            "events",
            pm.Logistic.dist(mu, s),
            lower=None,
            upper=(np.log(df.followed) - 4).to_numpy(),
            observed=(np.log(df.time) - 4).to_numpy(),
        )
    return model


def survival_records(rng: np.random.Generator, n: int) -> Drawn:
    """Times to death, or to the end of the months that one was followed."""
    spread = rng.integers(2, size=n)
    death = np.exp(4 + 1 - 0.8 * spread + rng.logistic(0, 0.5, n))
    followed = rng.uniform(24, 220, n)
    event = (death < followed).astype(int)
    frame = pd.DataFrame(
        {
            "time": np.minimum(death, followed).clip(1, 250),
            "event": event,
            "metastasized": spread,
            "followed": followed,
        }
    )
    return frame, {"beta": [1.0, -0.8], "s": 0.5}


def piecewise(df: Any) -> pm.Model:
    """A proportional hazard by intervals, whose effect varies: deaths of a person in an
    interval are Poisson."""
    bounds = np.arange(0, df.time.max() + MONTHS + 1, MONTHS)
    intervals = np.arange(bounds.size - 1)
    patients = np.arange(len(df))
    last = np.floor((df.time - 0.01) / MONTHS).astype(int)
    death = np.zeros((len(df), intervals.size))
    death[patients, last] = df.event
    at_risk = np.greater_equal.outer(df.time.to_numpy(), bounds[:-1])
    exposure = at_risk * MONTHS
    exposure[patients, last] = df.time - bounds[last]
    with pm.Model(coords={"intervals": intervals}) as model:
        lambda0 = pm.Gamma("lambda0", 0.01, 0.01, dims="intervals")
        beta = pm.GaussianRandomWalk(
            "beta", init_dist=pm.Normal.dist(), sigma=1.0, dims="intervals"
        )
        effect = pt.outer(pt.constant(df.metastasized), beta)
        hazard = pm.Deterministic("h", lambda0 * pt.exp(effect))
        mu = pm.Deterministic("mu", exposure * hazard)
        pm.Poisson("obs", mu, observed=death)
    return model


def forests(df: Any) -> pm.Model:
    """Counts of five species out of 50 trees, with more spread than multinomial."""
    coords = {"tree": TREES, "forest": df.index}
    with pm.Model(coords=coords) as model:
        frac = pm.Dirichlet("frac", a=np.ones(5), dims="tree")
        conc = pm.Lognormal("conc", mu=1, sigma=1)
        pm.DirichletMultinomial(
            "counts",
            n=50,
            a=frac * conc,
            observed=df[[*TREES]].to_numpy(),
            dims=("forest", "tree"),
        )
    return model


def forest_records(rng: np.random.Generator, n: int) -> Drawn:
    """Forests of 50 trees each."""
    frac = np.array([0.45, 0.30, 0.15, 0.09, 0.01])
    shares = rng.dirichlet(6.0 * frac, n)
    counts = rng.multinomial(50, shares)
    frame = pd.DataFrame(counts, columns=[*TREES])
    return frame, {"frac": frac, "conc": 6.0}


def clusters(df: Any) -> pm.Model:
    """A mixture of three normals, in order."""
    with pm.Model(coords={"cluster": range(3)}) as model:
        μ = pm.Normal(
            "μ",
            mu=0,
            sigma=5,
            transform=pm.distributions.transforms.ordered,
            initval=[-4, 0, 4],
            dims="cluster",
        )
        σ = pm.HalfNormal("σ", sigma=1, dims="cluster")
        weights = pm.Dirichlet("w", np.ones(3), dims="cluster")
        pm.NormalMixture("x", w=weights, mu=μ, sigma=σ, observed=df["x"].values)
    return model


def clustered_records(rng: np.random.Generator, n: int) -> Drawn:
    """Records of the mixture."""
    centres = np.array([-5.0, 0.0, 5.0])
    spreads = np.array([0.5, 2.0, 0.75])
    cluster = rng.integers(3, size=n)
    x = rng.normal(centres[cluster], spreads[cluster]).clip(-15, 15)
    truth = {"μ": centres, "σ": spreads, "w": [1 / 3] * 3}
    return pd.DataFrame({"x": x}), truth


SURVIVAL: dict[str, dict[str, Any]] = {
    "time": number(1, 250, unit="months"),
    "event": levels(0, 1, public=True),
    "metastasized": levels(0, 1, public=True),
    "followed": public(**number(24, 220, unit="months")),
}

ENTRIES = [
    Entry(
        name="GLM-binomial-regression",
        family="binomial regression",
        columns={"x": public(**number(-10, 20)), "y": count(0, 20)},
        simulate=binomial_records,
        written=Written(model=binomial_regression),
    ),
    Entry(
        name="GLM-missing-numeric-values",
        family="regression, missing covariates imputed",
        columns={
            "a": public(**number(-6, 6)),
            "b": public(**number(-6, 6)),
            "c": number(-6, 6, missing=True),
            "d": number(-6, 6, missing=True),
            "y": number(-20, 20),
        },
        simulate=imputed_records,
        written=Written(model=imputed),
    ),
    Entry(
        name="GLM-negative-binomial-regression",
        family="negative binomial regression",
        columns={
            "nsneeze": count(0, 300),
            "nomeds": levels(0, 1, public=True),
            "alcohol": levels(0, 1, public=True),
        },
        simulate=sneezing_records,
        written=Written(model=sneezes),
    ),
    Entry(
        name="GLM-out-of-sample-predictions",
        family="logistic regression, a design of patsy's",
        columns={
            "x1": public(**number(-9, 9)),
            "x2": public(**number(-9, 9)),
            "y": levels(0, 1),
        },
        simulate=out_of_sample_records,
        written=Written(model=out_of_sample),
    ),
    Entry(
        name="GLM-robust-with-outlier-detection",
        family="outliers, one by one",
        columns={
            "x": public(**number(40, 300)),
            "y": number(-600, 1400),
            "sigma_y": public(**number(10, 60)),
        },
        simulate=outlying_records,
        written=Written(model=outliers, said="y is scaled by public numbers"),
        amended=Written(model=outliers_as_mixture, said="`pm.Mixture` of the two laws"),
    ),
    Entry(
        name="GLM-simpsons-paradox",
        family="varying intercepts, slopes and spreads",
        columns={
            "group_idx": levels(0, 1, 2, 3, 4, public=True),
            "x": public(**number(-8, 8)),
            "y": number(-12, 12),
        },
        simulate=simpson_records,
        written=Written(model=simpson),
        amended=Written(model=simpson_centred, said="groups centred"),
    ),
    Entry(
        name="bayes_param_survival",
        family="accelerated failure times, censored",
        columns=SURVIVAL,
        simulate=survival_records,
        written=Written(model=log_logistic, said="the logarithm of the survival"),
        amended=Written(
            model=log_logistic_to_window,
            said="`pm.Censored` at the end of the months followed, which are public",
        ),
    ),
    Entry(
        name="survival_analysis",
        family="hazards by intervals",
        columns=SURVIVAL | {"event": levels(0, 1)},
        simulate=survival_records,
        written=Written(model=piecewise),
    ),
    Entry(
        name="dirichlet_mixture_of_multinomials",
        family="Dirichlet-multinomial",
        columns={name: count(0, 50) for name in TREES},
        simulate=forest_records,
        written=Written(model=forests),
    ),
    Entry(
        name="gaussian_mixture_model",
        family="normal mixture",
        columns={"x": number(-15, 15)},
        simulate=clustered_records,
        written=Written(model=clusters),
    ),
]
