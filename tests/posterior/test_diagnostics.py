"""Bounds of log-likelihoods over posterior draws: against numpy and PyMC, in memory,
and in what they claim.
"""

import json
import tracemalloc
from itertools import product

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy import stats
from scipy.signal import lfilter
from small_models import UNIT, beta, blueprint
from tables import refuses

from pdips.posterior.bounds import Bounds, Tally, from_log_likelihood, stream_bounds
from pdips.posterior.streams import stream
from pdips.report.posterior_figures import against_value, censored_by_draw

FAST = "FAST_COMPILE"
N, DRAWS = 50, 24


def two_columns(n: int = N, *, data: bool = True) -> pm.Model:
    """Return a model of two columns, groups, a public covariate and transformed
    parameters.
    """
    rng = np.random.default_rng(3)
    group, x, y = rng.integers(0, 4, n), rng.normal(size=n), rng.normal(size=n)
    with pm.Model() as model:
        group, x, seen = [
            pm.Data(f"{k}_data", v) if data else v
            for k, v in {"group": group, "x": x, "y": y}.items()
        ]
        spread = pm.HalfNormal("spread")
        level = pm.Normal("level", 0, spread, shape=4)
        pm.Normal("y", level[group] + 2 * x, spread, observed=seen)
        pm.Bernoulli("z", logit_p=level[group], observed=np.arange(n) % 2)
    return model


def draws_of_two_columns(n_draws: int = DRAWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    return {"spread": rng.gamma(3, 1, n_draws), "level": rng.normal(size=(n_draws, 4))}


def as_tree(draws: dict[str, np.ndarray], chains: int = 2) -> xr.DataTree:
    return az.from_dict(
        {
            "posterior": {
                k: v.reshape(chains, -1, *v.shape[1:]) for k, v in draws.items()
            }
        }
    )


def all_pieces(found) -> np.ndarray:
    whole = np.empty((found.n_draws, found.n_records))
    for records, draws, piece in found.pieces():
        whole[draws, records] = piece
    return whole


def foreign(terms: np.ndarray, **others: np.ndarray) -> xr.DataTree:
    """Return a tree such as others' programs make, log-likelihoods of shape (chains,
    draws, records).
    """
    dims = {name: ["person"] for name in ("log_lik", *others)}
    return az.from_dict(
        {
            "posterior": {"theta": terms[..., 0]},
            "log_likelihood": {"log_lik": terms, **others},
        },
        dims=dims,
    )


@pytest.fixture(scope="module")
def normal_terms() -> np.ndarray:
    """Log-likelihoods of 30 records at 2 chains of 100 independent draws."""
    rng = np.random.default_rng(5)
    x, theta = rng.normal(0, 2, 30), rng.normal(0, 0.2, (2, 100, 1))
    return stats.norm.logpdf(x, theta)


def by_hand(terms, weights=1.0, centre=0.0, limit=np.inf):
    u = weights * (terms.reshape(-1, terms.shape[-1]) - centre)
    size = np.abs(u)
    return {
        "by_chain": size.reshape(terms.shape).max(axis=1),
        "largest": size.max(axis=0),
        "lowest": u.min(axis=0),
        "highest": u.max(axis=0),
        "mean": u.mean(axis=0),
        "draws_beyond": (size > limit).sum(axis=0),
        "largest_by_draw": size.max(axis=1).reshape(terms.shape[:2]),
        "records_beyond": (size > limit).sum(axis=1).reshape(terms.shape[:2]),
    }


def assert_same(
    bounds: Bounds, expected: dict[str, np.ndarray], *, rtol=1e-10, atol=1e-10
) -> None:
    for name, values in expected.items():
        np.testing.assert_allclose(
            getattr(bounds, name), values, rtol=rtol, atol=atol, err_msg=name
        )


# What is computed


@pytest.mark.parametrize("given", ["data", "constants", "transformed draws"])
def test_blocks_give_what_pymc_gives(given):
    model, draws = two_columns(data=given != "constants"), draws_of_two_columns()
    tree = as_tree(draws)
    pm.compute_log_likelihood(
        tree, model=model, progressbar=False, compile_kwargs={"mode": FAST}
    )
    expected = sum(
        tree["log_likelihood"][name].to_numpy() for name in ("y", "z")
    ).reshape(DRAWS, N)
    if given == "transformed draws":
        draws["spread_log__"] = np.log(draws.pop("spread"))
    found = stream(model, None, draws, block=7, chunk=5, mode=FAST)
    assert found.block == 7
    np.testing.assert_allclose(all_pieces(found), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("limit", [None, 1.0])
def test_a_tally_in_pieces_agrees_with_all_at_once(limit):
    rng = np.random.default_rng(1)
    found = rng.normal(0, 1, (9, 21))
    found[2, 3], found[4, 5], found[1, 20] = -np.inf, np.nan, np.inf
    weights, centre = (
        rng.uniform(0, 1, 21) * (np.arange(21) % 3 > 0),
        rng.normal(0, 1, 21),
    )
    each = Tally(21, (3, 3), weights, centre, limit, counts := rng.integers(1, 4, 21))
    for rows, draws in product(
        (slice(0, 13), slice(13, 21)), (slice(0, 4), slice(4, 9))
    ):
        each.add(rows, draws, found[draws, rows].copy())
    read = np.where(weights == 0, 0.0, np.where(np.isnan(found), -np.inf, found))
    terms, weights, centre = (
        np.repeat(values, counts, axis=-1) for values in (read, weights, centre)
    )
    expected = by_hand(
        terms.reshape(3, 3, -1), weights, centre, np.inf if limit is None else limit
    )
    made = Bounds.of(each, False)
    assert_same(made, expected, rtol=1e-12, atol=0)
    assert made.n_records == counts.sum()
    assert made.describe()["bound"] is None


def test_bounds_of_another_table_than_the_model_was_built_on():
    rng = np.random.default_rng(0)
    y, weights, centre = rng.beta(0.5, 3, 5000), rng.random(5000), rng.normal(size=5000)
    phi, lam = rng.uniform(0.1, 0.2, 20), rng.uniform(3, 4, 20)
    terms = stats.beta.logpdf(y, (phi * lam)[:, None], ((1 - phi) * lam)[:, None])[None]
    model, draws = blueprint(beta, UNIT).model, {"phi": phi, "lam": lam}
    plain = stream_bounds(model, {"y": y}, draws, limit=2.5, mode=FAST)
    assert_same(plain, by_hand(terms, limit=2.5))
    weighted = stream_bounds(
        model, {"y": y}, draws, weights=weights, centre=centre, limit=1, mode=FAST
    )
    assert_same(weighted, by_hand(terms, weights, centre, 1))
    assert plain.n_censored == np.count_nonzero((np.abs(terms) > 2.5).any(axis=1))
    assert (
        plain.local_epsilon
        == 2 * plain.overall
        == pytest.approx(2 * np.abs(terms).max())
    )
    assert plain.share_by_draw.shape == (1, 20)


def test_records_that_see_each_other_are_taken_all_at_once_and_rows_of_several_columns_are_one():  # noqa: E501
    y = np.random.default_rng(1).normal(3, 2, N)
    with pm.Model() as model:
        seen, mu = pm.Data("y_data", y), pm.Normal("mu")
        pm.CustomDist(
            "y",
            mu,
            logp=lambda v, m: pm.logp(pm.Normal.dist(m), v - pt.mean(v)),
            observed=seen,
        )
    mu = np.linspace(-1, 1, DRAWS)
    found = stream(model, None, {"mu": mu}, block=7, chunk=5, mode=FAST)
    assert found.block == N
    np.testing.assert_allclose(
        all_pieces(found), stats.norm.logpdf(y - y.mean(), mu[:, None]), atol=1e-10
    )
    y = np.random.default_rng(1).normal(size=(N, 3))
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", shape=3), observed=y)
    mu = np.random.default_rng(2).normal(size=(DRAWS, 3))
    found = all_pieces(stream(model, None, {"mu": mu}, block=7, mode=FAST))
    np.testing.assert_allclose(
        found, stats.norm.logpdf(y, mu[:, None]).sum(axis=2), atol=1e-10
    )


# Trees that others made


def test_a_foreign_tree(normal_terms):
    expected = by_hand(normal_terms, limit=3)
    tree = foreign(normal_terms)
    assert_same(from_log_likelihood(tree, limit=3), expected)
    # Stan's dims may come in any order
    turned = tree["log_likelihood"].to_dataset().transpose("person", "draw", "chain")
    assert_same(
        from_log_likelihood(xr.DataTree.from_dict({"log_likelihood": turned}), limit=3),
        expected,
    )
    weights, centre = np.linspace(0, 1, 30), np.linspace(-2, 0, 30)
    found = from_log_likelihood(tree, weights=weights, centre=centre, limit=1)
    assert_same(found, by_hand(normal_terms, weights, centre, 1))
    assert tree["log_likelihood"]["log_lik"].equals(
        foreign(normal_terms)["log_likelihood"]["log_lik"]
    )


def test_variables_of_the_same_records_and_columns_beside_them_are_summed(normal_terms):
    tree = foreign(normal_terms, other=normal_terms**3)
    assert_same(from_log_likelihood(tree), by_hand(normal_terms + normal_terms**3))
    assert_same(from_log_likelihood(tree, variable="other"), by_hand(normal_terms**3))
    array = xr.DataArray(
        normal_terms.reshape(2, 100, 3, 10), dims=("chain", "draw", "column", "person")
    )
    tree = xr.DataTree.from_dict({"log_likelihood": array.to_dataset(name="y")})
    refuses(
        "dims column, person besides chain and draw; say which one",
        from_log_likelihood,
        tree,
    )
    found = from_log_likelihood(tree, record_dim="person")
    assert_same(found, by_hand(normal_terms.reshape(2, 100, 3, 10).sum(axis=2)))


# Memory


def peak(job) -> int:
    """Return the most bytes that a job holds beyond what it found."""
    tracemalloc.start()
    try:
        job()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_all_records_at_all_draws_are_never_held():
    n, n_draws = 30_000, 200
    rng = np.random.default_rng(0)
    draws = {"phi": rng.uniform(0.1, 0.2, n_draws), "lam": rng.uniform(3, 4, n_draws)}
    found = stream(blueprint(beta, UNIT).model, {"y": rng.random(n)}, draws, mode=FAST)
    tally = Tally(n, (1, n_draws), None, None, 2.5)
    assert found.block < n
    all_at_once = 8 * n * n_draws
    assert (
        peak(lambda: [tally.add(*piece) for piece in found.pieces()]) < all_at_once / 5
    )
    # the broken twin keeps the pieces
    assert peak(lambda: list(found.pieces())) > 0.9 * all_at_once


def test_a_foreign_tree_is_not_copied():
    tree = foreign(np.zeros((2, 1000, 4000)))
    assert peak(lambda: from_log_likelihood(tree)) < 64e6 / 2


def test_a_tree_in_a_file_is_read_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("pdips.posterior.bounds.MOST_AT_ONCE", 1 << 16)
    terms = np.random.default_rng(0).normal(size=(2, 400, 2000))
    stored = {"/log_likelihood": {"log_lik": {"chunks": (1, 20, 2000)}}}
    foreign(terms).to_zarr(tmp_path / "fit.zarr", encoding=stored, consolidated=False)
    with xr.open_datatree(
        tmp_path / "fit.zarr", engine="zarr", consolidated=False, chunks=None
    ) as tree:
        found = []
        assert (
            peak(lambda: found.append(from_log_likelihood(tree, limit=3)))
            < terms.nbytes / 4
        )
    assert_same(found[0], by_hand(terms, limit=3))


# What is claimed


def exceeds(chains: np.ndarray, further: np.ndarray) -> tuple[bool, Bounds]:
    """Tell whether a further draw goes beyond the bound; chains of shape (draws,
    records), one further row.
    """
    tally = Tally(chains.shape[1], (1, len(chains)), None, None, None)
    tally.add(slice(0, chains.shape[1]), slice(0, len(chains)), chains.copy())
    bounds = Bounds.of(tally, independent=True)
    return bool(np.abs(further).max() > bounds.overall), bounds


@pytest.mark.slow
def test_a_further_draw_exceeds_the_bound_once_in_the_number_of_draws_plus_one():
    # 4,000 posteriors, 9 draws: the share is 1/10. Five standard errors are 0.024; a
    # right bound fails once in 10^6.
    rng = np.random.default_rng(11)
    repeats, n_draws = 4000, 9
    hits = stuck = 0
    for _ in range(repeats):
        x, theta = rng.normal(size=6), rng.normal(size=(n_draws + 1, 1)) / np.sqrt(6)
        terms = stats.norm._logpdf(x - x.mean() - theta)
        hit, bounds = exceeds(terms[:-1], terms[-1])
        assert bounds.exceedance == pytest.approx(0.1)
        hits += hit
        # the broken twin: a chain that stands still counted as independent draws
        stuck += exceeds(np.repeat(terms[:1], n_draws, axis=0), terms[-1])[0]
    assert abs(hits / repeats - 0.1) < 0.024
    assert stuck / repeats > 0.1 + 0.024


def test_a_chain_counts_its_effective_draws():
    rng = np.random.default_rng(2)
    steps = rng.normal(size=(4, 500)) * np.sqrt(1 - 0.9**2)
    steps[:, 0] = rng.normal(size=4)
    terms = -(lfilter([1], [1, -0.9], steps)[..., None] ** 2) * np.array([0.5, 1.0])
    found, same = (
        from_log_likelihood(foreign(terms)),
        from_log_likelihood(foreign(terms), independent=True),
    )
    assert same.exceedance == pytest.approx(1 / 2001)
    assert found.exceedance == pytest.approx(
        1 / (1 + min(found.ess_bulk, found.ess_tail))
    )
    assert found.exceedance > 3 * same.exceedance
    assert found.ess_bulk == pytest.approx(az.ess(found.largest_by_draw, method="bulk"))
    assert found.rhat == pytest.approx(az.rhat(found.largest_by_draw))


def test_the_words_follow_what_was_done(normal_terms):
    independent = from_log_likelihood(
        foreign(normal_terms), independent=True
    ).certifies()
    assert "probability at most 0.005," in independent
    assert "must not be published" in independent
    assert "Nothing is censored" in independent
    assert "Weights computed" not in independent
    rng = np.random.default_rng(6)
    steady = stats.norm.logpdf(rng.normal(0, 2, 30), rng.normal(0, 0.2, (4, 1000, 1)))
    chain = from_log_likelihood(
        foreign(steady), limit=2, weights=np.ones(30)
    ).certifies()
    assert "customary and not a theorem" in chain
    assert "by construction" in chain
    assert "Weights computed from the confidential records" in chain
    apart = normal_terms * np.array([1.0, 2.0])[:, None, None]
    assert "nothing can be said" in from_log_likelihood(foreign(apart)).certifies()
    assert ("nothing can be said") in from_log_likelihood(
        foreign(normal_terms[:, :3])
    ).certifies()


def test_a_bound_that_never_moves_has_no_diagnostics_and_one_chain_is_halved(
    normal_terms,
):
    still = foreign(np.full((2, 50, 3), -1.0))
    found = from_log_likelihood(still)
    assert np.isnan([found.rhat, found.ess_bulk, found.ess_tail]).all()
    assert found.exceedance == 1
    assert from_log_likelihood(still, independent=True).exceedance == pytest.approx(
        1 / 101
    )
    found = from_log_likelihood(foreign(normal_terms[:1]))
    assert found.rhat == pytest.approx(az.rhat(found.largest_by_draw.reshape(2, 50)))
    assert np.isnan(found.chain_spread).all()


# What comes out


def test_findings_are_plain_the_tree_is_whole_and_reprs_show_nothing(normal_terms):
    found = from_log_likelihood(foreign(normal_terms), limit=3)
    said = json.loads(json.dumps(found.describe(), allow_nan=False))
    assert said["bound"] == pytest.approx(found.overall)
    assert said["censored"]["records"] == found.n_censored > 0
    assert said["draws"] == 200
    group = found.to_tree()["pdips"]
    assert group["largest"].dims == ("record",)
    assert group["share_by_draw"].dims == ("chain", "draw")
    assert group.attrs["limit"] == 3
    unlimited = from_log_likelihood(foreign(normal_terms))
    assert "censored" not in unlimited.describe()
    assert "draws_beyond" not in unlimited.to_tree()["pdips"]
    pieces = stream(two_columns(), None, draws_of_two_columns(), mode=FAST)
    for shown in (repr(found), str(found), repr(pieces), f"{pieces}"):
        assert not any(letter.isdigit() for letter in shown)


def test_pictures_have_their_marks_and_stay_small(normal_terms):
    found = from_log_likelihood(foreign(normal_terms), limit=3)
    values = np.linspace(0, 9, 30)
    first = against_value(
        found.largest, values, "pay in $ or $", "a", "bound", found.limit
    )
    assert first.count("<use ") >= 30
    assert "stroke-dasharray" in first
    assert "pay in $ or $" in first
    assert "stroke-dasharray" not in against_value(
        found.largest, values, "pay", "a", "bound"
    )
    assert (
        against_value(np.linspace(0, 1, 30), values, "pay", "b", "weight").count(
            "<use "
        )
        >= 30
    )
    by_draw = censored_by_draw(found.share_by_draw, "c")
    assert "var(--series-1)" in by_draw
    assert "var(--series-2)" in by_draw
    assert "var(--series-3)" not in by_draw
    values = np.random.default_rng(0).normal(size=200_000)
    assert (
        len(against_value(np.exp(-(values**2)), values, "y", "a", "weight")) < 400_000
    )


# Bad input


def test_bad_models_and_columns():
    draws = draws_of_two_columns()
    with pm.Model() as empty:
        pm.Normal("mu")
    refuses("no observed variable", stream_bounds, empty, None, {"mu": np.zeros(3)})
    refuses(
        "no draws of 'level'",
        stream_bounds,
        two_columns(),
        None,
        {"spread": draws["spread"]},
        mode=FAST,
    )
    refuses(
        "no draws of 'spread_log__'",
        stream_bounds,
        two_columns(),
        None,
        {"level": draws["level"]},
        mode=FAST,
    )
    refuses(
        "columns must have the same length",
        stream_bounds,
        two_columns(),
        {"y": np.zeros(9)},
        draws,
        mode=FAST,
    )
    for message, given in (
        ("draws must have the same length", draws | {"spread": np.ones(3)}),
        (r"'level' must have the shape \(4,\)", draws | {"level": np.ones(DRAWS)}),
        ("at least one draw", {"level": np.ones((0, 4))}),
        ("no posterior group", xr.DataTree()),
    ):
        refuses(message, stream_bounds, two_columns(), None, given, mode=FAST)
    with pm.Model() as fixed:
        pm.Normal("y", 0, 1, observed=np.zeros(5))
    refuses("depends on no free variable", stream_bounds, fixed, None, draws, mode=FAST)
    with pm.Model() as sideways:
        pm.Normal("y", pm.Normal("level", shape=4)[:, None], observed=np.zeros((4, 6)))
        pm.Normal("z", 0, 1, observed=np.zeros(6))
    refuses(
        "one log-likelihood for each record",
        stream_bounds,
        sideways,
        None,
        draws,
        mode=FAST,
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": np.ones(29)}, "weights must be"),
        ({"weights": np.full(30, -1.0)}, "weights must be"),
        ({"weights": np.full(30, np.nan)}, "weights must be"),
        ({"centre": np.full(30, -np.inf)}, "must not give a record density 0"),
        ({"limit": 0}, "limit must be"),
        ({"limit": np.inf}, "limit must be"),
        ({"variable": "y"}, "no such variable"),
        ({"record_dim": "row"}, "record_dim"),
    ],
)
def test_bad_settings(normal_terms, settings, message):
    refuses(message, from_log_likelihood, foreign(normal_terms), **settings)


def test_bad_trees(normal_terms):
    refuses(
        "no log_likelihood group", from_log_likelihood, as_tree(draws_of_two_columns())
    )
    group = foreign(normal_terms)["log_likelihood"].to_dataset()
    other = group.rename({"log_lik": "z", "person": "household"})
    for broken, message in (
        (group.merge(other), "different dims of records"),
        (group.isel(chain=0, drop=True), "must have dims chain and draw"),
        (group.isel(person=0, drop=True), "has dims none"),
        (group.isel(draw=slice(0, 0)), "no records or no draws"),
        (group.astype(str), "consist of numbers"),
        (group.drop_vars("log_lik"), "is empty"),
    ):
        refuses(
            message,
            from_log_likelihood,
            xr.DataTree.from_dict({"log_likelihood": broken}),
        )
