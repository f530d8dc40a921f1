"""The censored likelihood: the same model inside the window, bounded outside of it, and
refused where it can't be.
"""

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import CheckParameterValue
from pymc.model.fgraph import clone_model
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.graph.traversal import toposort
from scipy import stats
from small_models import CLIPPED
from tables import refuses

from pdips.posterior.censoring import CLIPS, LIKELIHOOD
from pdips.posterior.finished_model import censor
from pdips.posterior.parts import Axis

N = 50
RNG = np.random.default_rng(0)
X = RNG.normal(size=N)
Y = 1 + 2 * X + RNG.normal(size=N)
COUNTS = RNG.poisson(3, N)
Z = RNG.binomial(1, 0.4, N)
GROUPS = RNG.integers(0, 5, N)
HOLES = RNG.random(N) < 0.2
ORDERED = pm.distributions.transforms.ordered


def logp(model, terms=None):
    point = model.initial_point()
    return float(model.compile_logp(terms, mode="FAST_COMPILE")(point))


def constants():
    b, s = pm.Normal("b", 0, 5, shape=2), pm.HalfNormal("s", 2)
    pm.Normal("y", b[0] + b[1] * X, s, observed=Y)


def data_and_dims():
    pm.modelcontext(None).add_coords({"who": range(N), "k": ["a", "b"]})
    x = pm.Data("x", np.c_[np.ones(N), X], dims=("who", "k"))
    b, s = pm.Normal("b", 0, 5, dims="k"), pm.HalfNormal("s", 2)
    mu = pm.Deterministic("mu", x @ b, dims="who")
    pm.Normal("y", mu, s, observed=pm.Data("y_data", Y, dims="who"), dims="who")
    return {"axis": Axis(record_dim="who")}


def columns_that_read_columns():
    lam, p, s = pm.Gamma("lam", 2, 1, shape=2), pm.Beta("p", 1, 1), pm.HalfNormal("s")
    z = pm.Bernoulli("z", p, observed=pm.Data("z_data", Z))
    pm.Normal(
        "y", pm.Poisson("c", lam[z], observed=pm.Data("c_data", COUNTS)), s, observed=Y
    )


def multivariate():
    mu = pm.Normal("mu", shape=2)
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1))
    pm.MvNormal("y", mu, chol=chol, observed=np.c_[X, Y])


def record_axis_last():
    pm.modelcontext(None).add_coords({"record": range(N), "t": range(3)})
    pm.Normal(
        "y",
        pm.Normal("mu", dims="t")[:, None],
        1.0,
        observed=np.stack([X, Y, X + Y]),
        dims=("t", "record"),
    )
    return {"axis": Axis(n_records=N)}


def mixture_of_families():
    w, mu, s = pm.Dirichlet("w", np.ones(2)), pm.Normal("mu"), pm.HalfNormal("s")
    pm.Mixture(
        "y",
        w,
        [pm.Normal.dist(mu, s), pm.StudentT.dist(nu=4, mu=mu, sigma=5)],
        observed=Y,
    )


def censored():
    mu, s = pm.Normal("mu"), pm.HalfNormal("s")
    pm.Censored(
        "y", pm.Normal.dist(mu, s), lower=-1.0, upper=3.0, observed=np.clip(Y, -1, 3)
    )


def custom_scaled():
    a, b = pm.Gamma("a", 2, 1), pm.Gamma("b", 2, 1)
    values = pm.Data("y_data", 10 + 5 * stats.norm.cdf(X))
    pm.CustomDist(
        "y",
        a,
        b,
        dist=lambda a, b, size: 10 + 5 * pm.Beta.dist(a, b, size=size),
        observed=values,
    )


def record_parameters():
    pm.Poisson(
        "c", pt.exp(pm.Normal("u", 0, pm.HalfNormal("t"), shape=N)), observed=COUNTS
    )


def lengths():
    a = pm.Normal("a")
    pm.Normal("income", a, 1.0, observed=X[:20])
    pm.Normal("y", a, 1.0, observed=Y)


def households():
    lengths()
    ids = {"income": np.arange(20), "y": np.arange(N) % 20}
    return {"axis": Axis(record_ids=ids, n_records=20)}


def imputed():
    pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.ma.masked_array(Y, HOLES))
    ids = {"y_observed": np.flatnonzero(~HOLES)}
    return {"axis": Axis(record_ids=ids, n_records=N)}


def ordinal():
    cut = pm.Normal("cut", [-1, 1], 1, shape=2, transform=ORDERED)
    pm.OrderedLogistic("y", eta=0.0, cutpoints=cut, observed=GROUPS % 3)


def part_of_a_model():
    mu = pm.Normal("mu")
    with pm.Model("sub"):
        pm.Normal("y", mu, pm.HalfNormal("s"), observed=Y)


def gaussian_process():
    process = pm.gp.HSGP(m=[6], c=2.0, cov_func=pm.gp.cov.ExpQuad(1, 1.0))
    pm.Normal("y", process.prior("f", X=X[:, None]), 1.0, observed=Y)


def discrete_parameter():
    pm.Normal(
        "y", pt.as_tensor([0.0, 1.0])[pm.Categorical("k", [0.5, 0.5])], 1.0, observed=Y
    )


def residuals():
    mu = pm.Normal("mu")
    pm.Deterministic("off", pm.Normal("y", mu, 1.0, observed=Y) - mu)


def public_potential():
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1.0, observed=Y)
    pm.Potential("known", -((mu - 3.0) ** 2))
    return {"public_potentials": ("known",)}


TAKEN = [
    constants,
    data_and_dims,
    columns_that_read_columns,
    multivariate,
    record_axis_last,
    mixture_of_families,
]
TAKEN += [
    censored,
    custom_scaled,
    record_parameters,
    households,
    imputed,
    ordinal,
    part_of_a_model,
]
TAKEN += [gaussian_process, discrete_parameter, residuals, public_potential]


WARNINGS = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS installation",
    "ignore:Data in .* contains missing values:pymc.exceptions.ImputationWarning",
    "ignore:Detected variables likely created by GP objects",
)


@WARNINGS
@pytest.mark.parametrize("write", TAKEN, ids=lambda write: write.__name__)
def test_without_a_window_the_density_is_the_models(write):
    with pm.Model() as model:
        options = write() or {}
    names = set(model.named_vars)
    made = censor(model, window=math.inf, **options)
    function = made.model.compile_fn(
        [made.model.logp(), made.model[LIKELIHOOD]], mode="FAST_COMPILE"
    )
    point = made.model.initial_point()
    assert float(function(point)[0]) == pytest.approx(logp(model))
    made.update(window=0.5)
    assert abs(float(function(point)[1])) <= 0.5 * made.n_records
    assert not made.model.observed_RVs
    assert set(model.named_vars) == names
    assert model.observed_RVs
    # a check of PyMC looks at all records at once
    assert not any(
        isinstance(node.op, CheckParameterValue)
        for node in toposort(list(made._parts.terms.values()))
    )


def normal(observed=Y, sd=1.0, prior=pm.Normal, **settings):
    pm.Normal("y", prior("mu"), sd, observed=observed, **settings)


def of_data(mean, values=Y):
    """A normal law of a column about what is made of it."""
    data = pm.Data("y_data", values)
    pm.Normal("y", mean(data), 1.0, observed=data)


def prior_reads_data():
    of_data(lambda y: pm.Normal("mu", pm.Deterministic("centre", y.mean()), 1))


def prior_reads_observed():
    y = pm.Normal("y", 0, pm.HalfNormal("s"), observed=Y)
    pm.Normal("mu", y[0], 1)


def potential_on_data():
    mu, y = pm.Normal("mu"), pm.Data("y_data", Y)
    pm.Normal("y", mu, 1.0, observed=y)
    pm.Potential("leak", -((mu - y.mean()) ** 2))
    return {"public_potentials": ("leak",)}


def random_walk():
    pm.GaussianRandomWalk(
        "y", sigma=pm.HalfNormal("s"), init_dist=pm.Normal.dist(), observed=Y
    )


def rows_with_holes():
    values = np.ma.masked_array(np.c_[X, Y], np.c_[HOLES, ~HOLES])
    pm.MvNormal("y", pm.Normal("mu", shape=2), np.eye(2), observed=values)


def one_draw_over_columns():
    pm.MvNormal("y", pm.Normal("mu", shape=2), np.eye(2), observed=np.c_[X, Y])
    return {"axis": Axis(record_axis={"y": 1})}


def own_parameters_by_dims():
    pm.modelcontext(None).add_coords({"record": range(N)})
    pm.Poisson("c", pt.exp(pm.Normal("u", dims="record")), observed=COUNTS)
    return {"neighbours": "add-remove"}


def own_parameters_that_read_records():
    pm.Poisson("c", pt.exp(pm.Normal("u", X, 1.0, shape=N)), observed=COUNTS)


OTHERS = "depends on other records"
REFUSED = {
    "standardised": (
        lambda: of_data(lambda y: pm.Normal("b") * (y - y.mean())),
        OTHERS,
    ),
    "lagged": (
        lambda: of_data(lambda y: pm.Normal("b") * pt.concatenate([[0.0], y[:-1]])),
        OTHERS,
    ),
    "shared_scale": (
        lambda: normal(sd=pt.as_tensor(X).std() * pm.HalfNormal("s")),
        OTHERS,
    ),
    "any_of_them": (
        lambda: of_data(
            lambda z: pm.Normal("b") * pt.any(pt.eq(z, 1)), np.append(Z[1:], 1)
        ),
        OTHERS,
    ),
    "nothing_observed": (lambda: pm.Normal("mu"), "no observed variable"),
    "flat": (lambda: normal(prior=pm.Flat), "prior of 'mu' is improper"),
    "total_size": (lambda: normal(total_size=1000), "'y' is observed in minibatches"),
    "minibatch": (
        lambda: normal(pm.Minibatch(Y, batch_size=10), total_size=N),
        "'y' is observed in minibatches",
    ),
    "prior_reads_data": (prior_reads_data, "prior of 'mu' reads 'y_data'"),
    "prior_reads_observed": (prior_reads_observed, "prior of 'mu' reads 'y'"),
    "potential": (
        public_potential,
        "'known' may read records",
        {"public_potentials": ()},
    ),
    "potential_on_data": (potential_on_data, "'leak' is called public but reads data"),
    "random_walk": (random_walk, "'y' has one log-likelihood for all records"),
    "lengths": (lengths, "differ in length"),
    "missing": (lambda: normal(np.ma.masked_array(Y, HOLES)), "'y' has missing values"),
    "rows_with_holes": (rows_with_holes, "some values missing"),
    "wrong_axis": (
        lambda: normal(np.stack([X, Y, X])),
        "should have n_records = 50",
        {"axis": Axis(n_records=N)},
    ),
    "one_draw_over_columns": (one_draw_over_columns, "axis 1 of 'y'"),
    "record_parameters": (
        record_parameters,
        "'u' has one value for each record",
        {"neighbours": "add-remove"},
    ),
    "own_parameters_by_dims": (
        own_parameters_by_dims,
        "'u' has one value for each record",
    ),
    "own_parameters_that_read_records": (
        own_parameters_that_read_records,
        "'u', one for each record, reads records",
    ),
    "ids_without_number": (
        lengths,
        "asks for n_records",
        {"axis": Axis(record_ids={"y": np.arange(N)})},
    ),
    "clip": (normal, "clip must be one of", {"clip": "soft"}),
    "axis": (normal, "'wage'", {"axis": Axis(record_axis={"wage": 0})}),
    "window": (normal, "window must be above 0", {"window": 0}),
}


@WARNINGS
@pytest.mark.parametrize("name", REFUSED)
def test_a_model_no_window_can_bound_is_refused(name):
    write, words, *options = REFUSED[name]
    with pm.Model() as model:
        given = write()
    asked = (
        {"window": 1.0} | (given if isinstance(given, dict) else {}) | dict(*options)
    )
    refuses(words, censor, model, **asked)


def beta_model(y):
    with pm.Model() as model:
        phi, lam = pm.Beta("phi", 1, 1), pm.Pareto("lam", alpha=1.5, m=0.1)
        pm.Beta("y", lam * phi, lam * (1 - phi), observed=pm.Data("y_data", y))
    return model


@pytest.mark.parametrize("clip", CLIPS)
def test_the_density_is_the_one_worked_out_by_hand(clip):
    y = stats.beta(0.5, 3).rvs(30, random_state=1)
    weights, centre = np.linspace(0, 1, 30), np.linspace(-1, 2, 30)
    made = censor(beta_model(y), window=0.7, weights=weights, centre=centre, clip=clip)
    phi, lam = 0.3, 4.1
    point = {
        "phi_logodds__": np.log(phi / (1 - phi)),
        "lam_interval__": np.log(lam - 0.1),
    }
    prior = stats.beta(1, 1).logpdf(phi) + stats.pareto(1.5, scale=0.1).logpdf(lam)
    jacobian = np.log(phi * (1 - phi)) + np.log(lam - 0.1)
    u = weights * (stats.beta(lam * phi, lam * (1 - phi)).logpdf(y) - centre)
    found = made.model.compile_logp(mode="FAST_COMPILE")(point)
    assert found == pytest.approx(prior + jacobian + CLIPPED[clip](u, 0.7).sum())


def lookup(values):
    with pm.Model() as model:
        mu, codes = pm.Normal("mu"), pm.Data("code_data", np.arange(len(values)))
        table = pt.as_tensor(values)
        pm.CustomDist(
            "code",
            mu,
            logp=lambda value, mu: table[value] + 0 * mu,
            observed=codes,
            dtype="int64",
        )
    return model


@pytest.mark.parametrize(
    ("clip", "mode"),
    [
        *((clip, "FAST_COMPILE") for clip in CLIPS),
        ("hard", "NUMBA"),
        ("algebraic", "NUMBA"),
    ],
)
def test_no_log_likelihood_leaves_the_window(clip, mode):
    # NUMBA is what nutpie runs: its arithmetic may be reordered, but NaN must stay NaN
    values = [-math.inf, math.inf, math.nan, -1e300, 1e300, -math.inf, 0.5, 0.5, 0.5]
    weights = [1, 1, 1, 1, 1, 0, 1, 1, 0.5]
    centre = [0, 0, 0, 0, 0, 0, math.nan, -math.inf, 0.1]
    half = CLIPPED[clip](0.5 * (0.5 - 0.1), 2.0)
    made = censor(lookup(values), window=2.0, weights=weights, centre=centre, clip=clip)
    point = made.model.initial_point()
    function = made.model.compile_logp([made.model[LIKELIHOOD]], mode=mode)
    found = []
    for i in range(len(values)):
        made.update(values={"code": [i]}, weights=weights[i], centre=centre[i])
        found.append(float(function(point)))
    assert found == pytest.approx([-2, 2, -2, -2, 2, 0, 0, 0, half])
    assert max(map(abs, found)) <= 2


def test_one_records_parameters_out_of_order_are_its_own_matter():
    x = np.array([1.0, 2.0, -1.0, 3.0])
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        pm.Normal(
            "y", 0.0, s * pm.Data("x_data", x), observed=pm.Data("y_data", np.ones(4))
        )
    found = censor(model, window=1.0).log_likelihood({"s": [1.0]})[0]
    assert found[2] == -math.inf
    np.testing.assert_allclose(found[[0, 1, 3]], stats.norm(0, x[[0, 1, 3]]).logpdf(1))
    assert np.isneginf(
        float(model.compile_logp(mode="FAST_COMPILE")(model.initial_point()))
    )


@pytest.mark.parametrize("clip", ["hard", "algebraic"])
def test_records_on_the_edge_have_a_gradient(clip):
    made = censor(beta_model(np.array([0.0, 0.3, 1.0])), window=2.0, clip=clip)
    assert np.isfinite(
        made.model.compile_dlogp(mode="FAST_COMPILE")(made.model.initial_point())
    ).all()
    made.update(window=math.inf)
    assert np.isinf(logp(made.model))


def test_the_window_outlives_transforms_of_the_model():
    made = censor(beta_model(np.array([0.2, 0.01, 1e-9])), window=0.5)
    for changed in (freeze_dims_and_data(made.model), clone_model(made.model)):
        assert logp(changed) == pytest.approx(logp(made.model))
    # the broken twin: the model that it was made from has another density
    assert abs(logp(beta_model(np.array([0.2, 0.01, 1e-9]))) - logp(made.model)) > 1


@pytest.mark.slow
def test_updates_are_those_of_a_model_made_anew():
    y, weights, centre = (
        stats.beta(0.5, 3).rvs(40, random_state=2),
        np.linspace(0, 1, 40),
        np.linspace(0, 0.3, 40),
    )
    made = censor(beta_model(np.linspace(0.1, 0.9, 7)), window=5.0)
    assert made.update(values={"y": y}, window=1.0) is made
    assert (made.n_records, made.window) == (40, 1.0)
    assert logp(made.model) == pytest.approx(
        logp(censor(beta_model(y), window=1.0).model)
    )
    for window in (0.5, math.inf):
        made.update(weights=weights, centre=centre, window=window)
        anew = censor(beta_model(y), window=window, weights=weights, centre=centre)
        assert logp(made.model) == pytest.approx(logp(anew.model))
    # the broken twin: weights that aren't taken over
    assert logp(made.model) != pytest.approx(
        logp(censor(beta_model(y), window=math.inf, centre=centre).model)
    )


def two_columns():
    with pm.Model() as model:
        x, y = pm.Data("x_data", X), pm.Data("y_data", Y)
        pm.Normal(
            "y", pm.Normal("b", shape=2)[pt.cast(x > 0, "int64")], 1.0, observed=y
        )
    return model


def own_parameters():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("u", shape=N), 1.0, observed=pm.Data("y_data", Y))
    return model


@pytest.mark.parametrize(
    ("build", "new", "words"),
    [
        (two_columns, {"values": {"y": Y[:-1]}}, "differ in length"),
        (two_columns, {"values": {"wage": Y}}, "no pm.Data 'wage'"),
        (two_columns, {"values": {"y": np.c_[X, Y]}}, "'y' must have 1 axes"),
        (
            two_columns,
            {"weights": np.ones(N + 1)},
            "weights must be a number or a vector",
        ),
        (own_parameters, {"values": {"y": Y[:-1]}}, "differ in length|can't change"),
    ],
)
def test_updates_that_do_not_fit_are_refused(build, new, words):
    refuses(words, censor(build(), window=1.0).update, **new)


def test_what_reads_records_is_not_drawn_and_record_parameters_are_told_from_others():
    with pm.Model() as model:
        x, b = pm.Data("x_data", X), pm.Normal("b")
        mu = pm.Deterministic("mu", b * x)
        pm.Deterministic("twice", 2 * b)
        pm.Normal("y", mu, 1.0, observed=Y)
    made = censor(model, window=1.0)
    assert made.dropped == ("mu",)
    assert [each.name for each in made.model.deterministics] == ["twice"]
    assert "mu" in model.named_vars
    with pm.Model() as model:
        own, shared = pm.Normal("own", shape=N), pm.Normal("shared", shape=N)
        pm.Normal(
            "y",
            own + shared[pm.Data("code_data", (np.arange(N) * 7 + 3) % N)],
            1.0,
            observed=Y,
        )
    assert censor(model, window=1.0).record_parameters == ("own",)


def test_log_likelihoods_are_neither_weighted_nor_bounded():
    y = np.array([0.2, 0.01, 0.5])
    made = censor(beta_model(y), window=0.1, weights=0.5, centre=1.0)
    found = made.log_likelihood({"phi": [0.2, 0.4], "lam": [2.0, 3.0]})
    np.testing.assert_allclose(
        found,
        [stats.beta(p * s, (1 - p) * s).logpdf(y) for p, s in ((0.2, 2), (0.4, 3))],
    )
