"""Models as people write them, on one made-up table."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

from pdips import Schema

REGIONS = ["north", "south", "east", "west"]

SCHEMA = Schema(
    columns={
        "height": {"lower": 100.0, "upper": 220.0},
        "pay": {"lower": 1.0, "upper": 1000.0, "scale": "log"},
        "children": {"lower": 0, "upper": 40, "integer": True},
        "answer": {"levels": [1, 2, 3, 4]},
        "party": {"levels": ["left", "centre", "right"]},
        "vote": {"levels": ["no", "yes"]},
        "weight": {"lower": 30.0, "upper": 150.0, "public": True},
        "region": {"levels": REGIONS, "public": True},
        "treated": {"levels": [0, 1], "public": True},
    }
)


def table(n: int = 150, seed: int = 3) -> pd.DataFrame:
    """Return records, no two alike."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "height": rng.uniform(140, 200, n),
            "pay": rng.uniform(10, 500, n),
            "children": rng.integers(0, 9, n),
            "answer": rng.integers(1, 5, n),
            "party": np.array(["left", "centre", "right"])[rng.integers(3, size=n)],
            "vote": np.array(["no", "yes"])[rng.integers(2, size=n)],
            "weight": rng.uniform(40, 120, n),
            "region": np.array(REGIONS)[rng.integers(4, size=n)],
            "treated": rng.integers(2, size=n),
        }
    )


def centred(df: pd.DataFrame) -> pm.Model:
    """A regression on a covariate less its mean."""
    with pm.Model() as model:
        a = pm.Normal("a", 178, 20)
        b = pm.LogNormal("b", 0, 1)
        sigma = pm.Uniform("sigma", 0, 50)
        mu = a + b * (df.weight.values - df.weight.mean())
        pm.Normal("height", mu, sigma, observed=df.height.values)
    return model


def in_data(df: pd.DataFrame) -> pm.Model:
    """What is observed is data without dims, as floats: its length is the variable's
    shape.
    """
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        y = pm.Data("y", (df.vote == "yes").to_numpy().astype(float))
        eta = b[0] + b[1] * (df.weight.values - 80) / 40
        pm.Bernoulli("vote", logit_p=eta, observed=y)
    return model


def zero_inflated(df: pd.DataFrame) -> pm.Model:
    """A mixture of which a part is a law without a random generator."""
    with pm.Model() as model:
        psi = pm.Beta("psi", 1, 1)
        b = pm.Normal("b", 0, 1, shape=2)
        mu = pm.math.exp(b[0] + b[1] * df.weight.values / 100)
        pm.ZeroInflatedPoisson("n", psi, mu, observed=df.children.values)
    return model


def hurdle(df: pd.DataFrame) -> pm.Model:
    """Counts that are drawn in a loop until they are above 0."""
    with pm.Model() as model:
        psi = pm.Beta("psi", 1, 1)
        b = pm.Normal("b", 0, 1, shape=2)
        mu = pm.math.exp(b[0] + b[1] * df.weight.values / 100)
        pm.HurdlePoisson("n", psi, mu, observed=df.children.values)
    return model


def cut_off_below(df: pd.DataFrame) -> pm.Model:
    """A law without an upper bound: PyMC writes the variable itself in its place."""
    with pm.Model() as model:
        b = pm.Normal("b", [170, 0], [20, 5], shape=2)
        law = pm.Normal.dist(b[0] + b[1] * (df.weight.values - 80) / 20, 20)
        pm.Censored("obs", law, lower=100, upper=None, observed=df.height.values)
    return model


def with_dims(df: pd.DataFrame) -> pm.Model:
    """Groups by factorize, data and dimensions of records, a deterministic."""
    codes, regions = df.region.factorize(sort=True)
    coords = {"region": regions, "obs_id": np.arange(len(df))}
    with pm.Model(coords=coords) as model:
        index = pm.Data("index", codes, dims="obs_id")
        weight = pm.Data("weight", df.weight.to_numpy(), dims="obs_id")
        a = pm.Normal("a", 170, 10, dims="region")
        b = pm.Normal("b", 0, 1)
        mu = pm.Deterministic("mu", a[index] + b * weight, dims="obs_id")
        pm.Deterministic("spread", a.max() - a.min())
        pm.Normal("height_obs", mu, 10, observed=df["height"], dims="obs_id")
    return model


def on_logarithms(df: pd.DataFrame) -> pm.Model:
    """The logarithm of a column, scaled by public numbers."""
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        observed = (np.log(df.pay) - 4.0) / 1.5
        pm.StudentT(
            "log_pay", nu=4, mu=b[0] + b[1] * df.treated, sigma=1, observed=observed
        )
    return model


def ordered(df: pd.DataFrame) -> pm.Model:
    """Answers that are numbers, which become codes by a subtraction."""
    with pm.Model() as model:
        cuts = pm.Normal(
            "cuts",
            0,
            2,
            shape=3,
            transform=pm.distributions.transforms.ordered,
            initval=[-1.0, 0.0, 1.0],
        )
        b = pm.Normal("b", 0, 1)
        eta = b * df.treated.values
        pm.OrderedLogistic("a", eta, cuts, observed=df.answer.values - 1)
    return model


def of_numbers(df: pd.DataFrame) -> pm.Model:
    """Answers that are numbers, taken as such."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 2.5, 1)
        pm.Normal("answer", mu, 1, observed=df.answer.astype(float))
    return model


def by_category(df: pd.DataFrame) -> pm.Model:
    """Levels as a categorical's codes, in another order than the schema's."""
    party = pd.Categorical(df.party)
    with pm.Model(coords={"party": party.categories}) as model:
        p = pm.Dirichlet("p", np.ones(3), dims="party")
        pm.Categorical("y", p=p, observed=party.codes)
    return model


def logistic(df: pd.DataFrame) -> pm.Model:
    """Whether a level is one, by a matrix of covariates."""
    X = np.column_stack([np.ones(len(df)), df.weight / 100, df.treated])
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2, shape=3)
        pm.Bernoulli("v", logit_p=pt.dot(X, b), observed=(df.vote == "yes"))
    return model


def chained(df: pd.DataFrame) -> pm.Model:
    """One confidential column explains another: as a constant of the second."""
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        b = pm.Normal("b", 0, 5, shape=2)
        pm.Poisson("children", rate, observed=df.children)
        mu = b[0] + 170 + b[1] * df.children.values
        pm.Normal("height", mu, 10, observed=df.height)
    return model


def masked(df: pd.DataFrame) -> pm.Model:
    """A variable for each of two groups."""
    one = (df.treated == 1).values
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        rate = pm.math.exp(b[0] + b[1] * df.weight.values / 100)
        pm.Poisson("k1", rate[one], observed=df.children.values[one])
        pm.Poisson("k0", 2 * rate[~one], observed=df.children.values[~one])
    return model


def several(df: pd.DataFrame) -> pm.Model:
    """Two columns at once."""
    with pm.Model() as model:
        mu = pm.Normal("mu", [170, 5], [20, 5])
        chol, _, _ = pm.LKJCholeskyCov(
            "chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(9)
        )
        pm.MvNormal("both", mu, chol=chol, observed=df[["height", "children"]].values)
    return model


def mixed(df: pd.DataFrame) -> pm.Model:
    """A mixture, with zeros made for the number of records."""
    with pm.Model(coords={"cluster": range(2)}) as model:
        mu = pm.Normal("mu", [150, 180], 10, dims="cluster")
        w = pm.Dirichlet("w", np.ones(2), dims="cluster")
        shift = pt.zeros((len(df), 1))
        pm.NormalMixture("h", w=w, mu=mu + shift, sigma=9, observed=df.height.values)
    return model


def observed_later(df: pd.DataFrame) -> pm.Model:
    """Conditioned after it was written."""
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        b = pm.Normal("b", 0, 10, shape=2)
        vote = pm.Bernoulli("vote", p, shape=len(df))
        pm.Normal("height", 170 + b[0] + b[1] * vote, 10)
    codes = (df.vote == "yes").astype(int).values
    return pm.observe(model, {"vote": codes, "height": df.height.values})


def smooth(df: pd.DataFrame) -> pm.Model:
    """A Gaussian process by basis functions of a covariate."""
    with pm.Model() as model:
        ell = pm.InverseGamma("ell", mu=40, sigma=10)
        gp = pm.gp.HSGP(m=[8], c=1.5, cov_func=pm.gp.cov.Matern52(1, ls=ell))
        f = gp.prior("f", X=df.weight.values[:, None])
        pm.Normal("height", 170 + 10 * f, 10, observed=df.height.values)
    return model


def over_levels(df: pd.DataFrame) -> pm.Model:
    """A series of parameters over the levels of a public column."""
    codes, levels = pd.factorize(df.region, sort=True)
    with pm.Model() as model:
        rho = pm.Normal("rho", 0.8, 0.2)
        s = pm.HalfNormal("s", 1)
        start = pm.Normal.dist(0, 1)
        f = pm.AR("f", rho=[rho], sigma=s, init_dist=start, steps=len(levels) - 1)
        pm.Normal("height", 170 + f[codes], 10, observed=df.height.values)
    return model


ACCEPTED = {
    make.__name__: make
    for make in (
        centred,
        in_data,
        zero_inflated,
        hurdle,
        cut_off_below,
        with_dims,
        on_logarithms,
        ordered,
        of_numbers,
        by_category,
        logistic,
        chained,
        masked,
        several,
        mixed,
        observed_later,
        smooth,
        over_levels,
    )
}
