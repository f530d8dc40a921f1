"""Examples of families that people write often."""

from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from benchmarks.gallery.families import ITEMS, REGIONS, YEARS, Family


def _line(df: Any, scale: float = 1.0) -> Any:
    b = pm.Normal("b", 0, scale, shape=2)
    return b[0] + b[1] * df["x"].values


def weibull(df: Any) -> pm.Model:
    with pm.Model() as model:
        pm.Weibull("y", 2, pm.math.exp(_line(df)), observed=df["y"].values)
    return model


def gamma(df: Any) -> pm.Model:
    with pm.Model() as model:
        mu = pm.math.exp(_line(df))
        pm.Gamma("y", mu=mu, sigma=mu / 2, observed=df["y"].values)
    return model


def beta(df: Any) -> pm.Model:
    with pm.Model() as model:
        nu = pm.HalfNormal("nu", 20)
        mu = pm.math.invlogit(_line(df))
        pm.Beta("share", mu=mu, nu=nu + 2, observed=df["share"].values)
    return model


def quantile(df: Any) -> pm.Model:
    with pm.Model() as model:
        b = pm.HalfNormal("scale", 5)
        pm.AsymmetricLaplace("z", q=0.9, mu=_line(df), b=b, observed=df["z"].values)
    return model


def skew(df: Any) -> pm.Model:
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 3)
        pm.SkewNormal("z", mu=_line(df), sigma=5, alpha=alpha, observed=df["z"].values)
    return model


def zero_inflated(df: Any) -> pm.Model:
    with pm.Model() as model:
        psi = pm.Beta("psi", 1, 1)
        mu = pm.math.exp(_line(df))
        pm.ZeroInflatedPoisson("n", psi, mu, observed=df["n"].values)
    return model


def hurdle(df: Any) -> pm.Model:
    with pm.Model() as model:
        psi = pm.Beta("psi", 1, 1)
        mu = pm.math.exp(_line(df))
        pm.HurdleNegativeBinomial("n", psi, mu, 2, observed=df["n"].values)
    return model


def censored(df: Any) -> pm.Model:
    with pm.Model() as model:
        time = pm.Exponential.dist(scale=pm.math.exp(_line(df)))
        upper = df["followed"].values
        pm.Censored("y", time, lower=None, upper=upper, observed=df["y"].values)
    return model


def truncated(df: Any) -> pm.Model:
    with pm.Model() as model:
        law = pm.Normal.dist(_line(df), 10)
        pm.Truncated("y", law, lower=0, upper=None, observed=df["y"].values)
    return model


def shares_of_levels(df: Any) -> pm.Model:
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(3))
        pm.Categorical("party", p=p, observed=pd.Categorical(df["party"]).codes)
    return model


def softmax(df: Any) -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1, shape=2)
        b = pm.Normal("b", 0, 1, shape=2)
        eta = a + b * df["x"].values[:, None]
        eta = pt.concatenate([pt.zeros((len(df), 1)), eta], axis=1)
        p = pm.math.softmax(eta, axis=1)
        pm.Categorical("party", p=p, observed=pd.Categorical(df["party"]).codes)
    return model


def ordered_logit(df: Any) -> pm.Model:
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1)
        cuts = pm.Normal(
            "cuts",
            0,
            2,
            shape=3,
            transform=pm.distributions.transforms.ordered,
            initval=[-1, 0, 1],
        )
        eta = b * df["x"].values
        pm.OrderedLogistic("a", eta, cuts, observed=df["answer"].values - 1)
    return model


def discretised(df: Any) -> pm.Model:
    def logp(value: Any, mu: Any) -> Any:
        law = pm.Logistic.dist(mu, 5)
        upper = pm.math.exp(pm.logcdf(law, value + 0.5))
        return pm.math.log(upper - pm.math.exp(pm.logcdf(law, value - 0.5)))

    def random(mu: Any, rng: Any = None, size: Any = None) -> Any:
        return np.rint(rng.logistic(mu, 5, size))

    with pm.Model() as model:
        pm.CustomDist(
            "n",
            10 + _line(df),
            logp=logp,
            random=random,
            dtype="int64",
            observed=df["n"].values,
        )
    return model


def offsets(df: Any) -> pm.Model:
    codes, regions = df["region"].factorize(sort=True)
    with pm.Model(coords={"region": regions}) as model:
        tau = pm.HalfNormal("tau", 2)
        offset = pm.Normal("offset", 0, 1, dims="region")
        pm.Normal("z", (tau * offset)[codes], 5, observed=df["z"].values)
    return model


def varying_slopes(df: Any) -> pm.Model:
    codes, regions = df["region"].factorize(sort=True)
    with pm.Model(coords={"region": regions}) as model:
        chol, _, _ = pm.LKJCholeskyCov(
            "chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1)
        )
        b = pm.MvNormal("b", np.zeros(2), chol=chol, shape=(len(regions), 2))
        mu = b[codes, 0] + b[codes, 1] * df["x"].values
        pm.Normal("z", mu, 5, observed=df["z"].values)
    return model


def zero_sum(df: Any) -> pm.Model:
    codes, regions = df["region"].factorize(sort=True)
    with pm.Model(coords={"region": regions}) as model:
        a = pm.Normal("a", 0, 5)
        effect = pm.ZeroSumNormal("effect", 2, dims="region")
        pm.Normal("z", a + effect[codes], 5, observed=df["z"].values)
    return model


def mixture_of_regressions(df: Any) -> pm.Model:
    with pm.Model() as model:
        w = pm.Dirichlet("weights", np.ones(2))
        b = pm.Normal("b", 0, 5, shape=(2, 2))
        parts = [
            pm.Normal.dist(b[k, 0] + b[k, 1] * df["x"].values, 3) for k in range(2)
        ]
        pm.Mixture("z", w=w, comp_dists=parts, observed=df["z"].values)
    return model


def stick_breaking(df: Any) -> pm.Model:
    with pm.Model() as model:
        alpha = pm.Gamma("alpha", 2, 2)
        v = pm.Beta("v", 1, alpha, shape=4)
        left = pt.concatenate([pt.ones(1), pt.extra_ops.cumprod(1 - v)])
        w = left * pt.concatenate([v, pt.ones(1)])
        mu = pm.Normal("mu", 0, 10, shape=5)
        pm.NormalMixture("z", w=w, mu=mu, sigma=3, observed=df["z"].values)
    return model


def hsgp(df: Any) -> pm.Model:
    with pm.Model() as model:
        gp = pm.gp.HSGP(m=[8], c=1.5, cov_func=pm.gp.cov.Matern52(1, ls=1))
        f = gp.prior("f", X=df["x"].values[:, None])
        pm.Normal("z", f, 5, observed=df["z"].values)
    return model


def gp_of_years(df: Any) -> pm.Model:
    codes = df["year"].values - YEARS[0]
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=2))
        f = gp.prior("f", X=np.arange(len(YEARS))[:, None])
        pm.Normal("z", f[codes], 5, observed=df["z"].values)
    return model


def ar_of_years(df: Any) -> pm.Model:
    codes = df["year"].values - YEARS[0]
    with pm.Model() as model:
        f = pm.AR("f", rho=[0.7], sigma=2, init_dist=pm.Normal.dist(0, 3), steps=7)
        pm.Normal("z", f[codes], 5, observed=df["z"].values)
    return model


def walk_of_years(df: Any) -> pm.Model:
    codes = df["year"].values - YEARS[0]
    with pm.Model() as model:
        start = pm.Normal.dist(0, 3)
        f = pm.GaussianRandomWalk("f", sigma=1, init_dist=start, steps=7)
        pm.Normal("z", f[codes], 5, observed=df["z"].values)
    return model


def car(df: Any) -> pm.Model:
    codes, _ = df["region"].factorize(sort=True)
    with pm.Model() as model:
        ring = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
        effect = pm.CAR("effect", np.zeros(len(REGIONS)), ring, 0.8, 1.0)
        pm.Normal("z", effect[codes], 5, observed=df["z"].values)
    return model


def horseshoe(df: Any) -> pm.Model:
    x = df["x"].values
    powers = np.column_stack([x, x**2, x**3, x**4])
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", 1)
        local = pm.HalfCauchy("local", 1, shape=4)
        b = pm.Normal("b", 0, tau * local, shape=4)
        pm.Normal("z", pt.dot(powers, b), 5, observed=df["z"].values)
    return model


def chained(df: Any) -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2, shape=3)
        pm.Normal("w", a[0], 2, observed=df["w"].values)
        pm.Normal("z", a[1] + a[2] * df["w"].values, 5, observed=df["z"].values)
    return model


def two_columns(df: Any) -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 5, shape=2)
        chol, _, _ = pm.LKJCholeskyCov(
            "chol", n=2, eta=2, sd_dist=pm.Exponential.dist(0.2)
        )
        pm.MvNormal("wz", mu, chol=chol, observed=df[["w", "z"]].values)
    return model


def separate_items(df: Any) -> pm.Model:
    with pm.Model(coords={"item": ITEMS}) as model:
        difficulty = pm.Normal("difficulty", 0, 1, dims="item")
        pm.Bernoulli("q", logit_p=-difficulty, observed=df[[*ITEMS]].values)
    return model


def changed_at(df: Any) -> pm.Model:
    with pm.Model() as model:
        when = pm.Uniform("when", -2, 2)
        a = pm.Normal("a", 0, 5, shape=2)
        after = pm.math.sigmoid(10 * (df["x"].values - when))
        pm.Normal("z", a[0] + a[1] * after, 5, observed=df["z"].values)
    return model


COMMON = [
    Family("linear", "y ~ x", "z ~ x"),
    Family("linear, covariate confidential", "z ~ x + w", "z ~ x + w"),
    Family("logistic", 'family="bernoulli"', "vote ~ x", {"family": "bernoulli"}),
    Family("Poisson", 'family="poisson"', "n ~ x", {"family": "poisson"}),
    Family("varying intercepts", "(1 | region)", "z ~ x + (1 | region)"),
    Family("Student t", 'family="t"', "z ~ x", {"family": "t"}),
    Family(
        "negative binomial, interaction",
        'family="negativebinomial"',
        "n ~ x * region",
        {"family": "negativebinomial"},
    ),
    Family(
        "ordinal",
        'family="cumulative"',
        "answer ~ 0 + x",
        {"family": "cumulative"},
    ),
    Family("spline of a public column", "bs(x, df=5)", "z ~ bs(x, df=5)"),
    Family("gamma", "pm.Gamma", gamma),
    Family("Weibull", "pm.Weibull", weibull),
    Family("beta", "pm.Beta", beta),
    Family("quantile regression", "pm.AsymmetricLaplace", quantile),
    Family("skew normal", "pm.SkewNormal", skew),
    Family("zero-inflated", "pm.ZeroInflatedPoisson", zero_inflated),
    Family("hurdle", "pm.HurdleNegativeBinomial", hurdle),
    Family("censored", "pm.Censored", censored),
    Family("truncated", "pm.Truncated", truncated),
    Family("shares of levels", "pm.Dirichlet", shares_of_levels),
    Family("multinomial logit", "pm.math.softmax", softmax),
    Family("ordered logit", "pm.OrderedLogistic", ordered_logit),
    Family("a law of one's own", "pm.CustomDist", discretised),
    Family("varying intercepts as offsets", "tau * offset", offsets),
    Family("varying slopes", "pm.LKJCholeskyCov", varying_slopes),
    Family("effects that sum to 0", "pm.ZeroSumNormal", zero_sum),
    Family("mixture of regressions", "pm.Mixture", mixture_of_regressions),
    Family("Dirichlet process", "stick breaking", stick_breaking),
    Family("Gaussian process of a public column", "pm.gp.HSGP", hsgp),
    Family("Gaussian process of public years", "pm.gp.Latent", gp_of_years),
    Family("series of public years", "pm.AR", ar_of_years),
    Family("random walk of public years", "pm.GaussianRandomWalk", walk_of_years),
    Family("neighbours", "pm.CAR", car),
    Family("horseshoe", "pm.HalfCauchy", horseshoe),
    Family("chained outcomes", "mean reads df['w']", chained),
    Family("several columns", "pm.MvNormal", two_columns),
    Family("items without abilities", "df[[...]] observed", separate_items),
    Family("smooth change point", "pm.math.sigmoid", changed_at),
]
