"""Examples of families at the border of what is taken: models that read several
records, or have an unknown of each record, and priors that may leave no posterior.
"""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from benchmarks.gallery.families import ITEMS, Family


def _normal(df: Any, mu: Any = 0.0, prior: Any = 0.0) -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", prior, 5)
        pm.Normal("z", a + mu, 5, observed=df["z"].values)
    return model


def prior_of_data(df: Any) -> pm.Model:
    return _normal(df, prior=df["z"].mean())


def centred_confidential(df: Any) -> pm.Model:
    return _normal(df, mu=(df["w"] - df["w"].mean()).values)


def lag(df: Any) -> pm.Model:
    return _normal(df, mu=df["x"].shift(fill_value=0).values)


def ranks(df: Any) -> pm.Model:
    return _normal(df, mu=df["w"].rank().values)


def of_largest(df: Any) -> pm.Model:
    return _normal(df, mu=(df["w"] / df["w"].max()).values)


def spline_of_confidential(df: Any) -> pm.Model:
    return _normal(df, mu=np.maximum(df["w"].values - 3, 0) ** 3)


def series_of_records(df: Any) -> pm.Model:
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5)
        start = pm.Normal.dist(0, 5)
        pm.AR("z", rho=[rho], sigma=5, init_dist=start, observed=df["z"].values)
    return model


def gp_of_records(df: Any) -> pm.Model:
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1))
        f = gp.prior("f", X=df["x"].values[:, None])
        pm.Normal("z", f, 5, observed=df["z"].values)
    return model


def marginal_gp(df: Any) -> pm.Model:
    with pm.Model() as model:
        gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, ls=1))
        gp.marginal_likelihood("z", X=df["x"].values[:, None], y=df["z"], sigma=5)
    return model


def minibatch(df: Any) -> pm.Model:
    with pm.Model() as model:
        z = pm.Minibatch(df["z"].values, batch_size=50)
        a = pm.Normal("a", 0, 5)
        pm.Normal("z", a, 5, observed=z, total_size=len(df))
    return model


def potential(df: Any) -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0, 5)
        term = pm.logp(pm.Normal.dist(a, 5), df["z"].values)
        pm.Potential("z", term.sum())
    return model


def latent_of_records(df: Any) -> pm.Model:
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 3)
        u = pm.Normal("u", 0, tau, shape=len(df))
        pm.Poisson("n", pm.math.exp(2 + u), observed=df["n"].values)
    return model


def item_response(df: Any) -> pm.Model:
    with pm.Model(coords={"item": ITEMS}) as model:
        ability = pm.Normal("ability", 0, 1, shape=(len(df), 1))
        difficulty = pm.Normal("difficulty", 0, 1, dims="item")
        eta = ability - difficulty
        pm.Bernoulli("q", logit_p=eta, observed=df[[*ITEMS]].values)
    return model


def discrete_latent(df: Any) -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", [0, 5], 2)
        group = pm.Bernoulli("group", 0.3, shape=len(df))
        pm.Normal("z", mu[group], 5, observed=df["z"].values)
    return model


def long_form(df: Any) -> pm.Model:
    long = df.reset_index().melt("index", [*ITEMS])
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        pm.Bernoulli("q", logit_p=a, observed=long["value"].values.astype(int))
    return model


def discrete_parameter(df: Any) -> pm.Model:
    with pm.Model() as model:
        k = pm.DiscreteUniform("k", 1, 8)
        a = pm.Normal("a", 0, 5)
        pm.Normal("z", a * k, 5, observed=df["z"].values)
    return model


def change_point(df: Any) -> pm.Model:
    with pm.Model() as model:
        when = pm.Uniform("when", -2, 2)
        a = pm.Normal("a", 0, 5, shape=2)
        mu = pm.math.switch(df["x"].values > when, a[0], a[1])
        pm.Normal("z", mu, 5, observed=df["z"].values)
    return model


def flat(df: Any) -> pm.Model:
    with pm.Model() as model:
        a = pm.Flat("a")
        pm.Normal("z", a, 5, observed=df["z"].values)
    return model


def icar(df: Any) -> pm.Model:
    codes, _ = df["region"].factorize(sort=True)
    with pm.Model() as model:
        ring = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
        effect = pm.ICAR("effect", W=ring)
        pm.Normal("z", effect[codes], 5, observed=df["z"].values)
    return model


def prior_without_random(df: Any) -> pm.Model:
    def logp(value: Any) -> Any:
        return -pt.log(1 + value**2)

    with pm.Model() as model:
        a = pm.CustomDist("a", logp=logp)
        pm.Normal("z", a, 5, observed=df["z"].values)
    return model


def imputed(df: Any) -> pm.Model:
    w = np.where(df["w"] > 9, np.nan, df["w"])
    with pm.Model() as model:
        a = pm.Normal("a", 0, 5)
        pm.Normal("w", a, 2, observed=np.ma.masked_invalid(w))
    return model


def number_of_records(df: Any) -> pm.Model:
    with pm.Model() as model:
        a = pm.Normal("a", 0, 5 / np.sqrt(len(df)))
        pm.Normal("z", a, 5, observed=df["z"].values)
    return model


BORDERLINE = [
    Family("prior of data", "pm.Normal('a', df['z'].mean(), 5)", prior_of_data),
    Family("centred by a confidential mean", "df.w.mean()", centred_confidential),
    Family("lag of a public column", "df.x.shift()", lag),
    Family("ranks", "df.w.rank()", ranks),
    Family("share of the largest", "df.w / df.w.max()", of_largest),
    Family(
        "spline of a confidential column", "max(w - 3, 0)^3", spline_of_confidential
    ),
    Family("series of records", "pm.AR observed", series_of_records),
    Family("Gaussian process of records", "pm.gp.Latent", gp_of_records),
    Family("marginal Gaussian process", "pm.gp.Marginal", marginal_gp),
    Family("minibatches", "pm.Minibatch", minibatch),
    Family("potential of records", "pm.Potential", potential),
    Family("latent number of each record", "shape=len(df)", latent_of_records),
    Family("item response", "ability of each record", item_response),
    Family("discrete latent of each record", "pm.Bernoulli", discrete_latent),
    Family("long form", "df.melt", long_form),
    Family("discrete parameter", "pm.DiscreteUniform", discrete_parameter),
    Family("change point", "pm.math.switch", change_point),
    Family("improper prior", "pm.Flat", flat),
    Family("intrinsic autoregression", "pm.ICAR", icar),
    Family("prior without draws", "pm.CustomDist without random", prior_without_random),
    Family("missing outcomes imputed", "np.ma.masked_invalid", imputed),
    Family("number of records", "len(df) in a prior", number_of_records),
]
