"""censored-posterior from its settings to its sets: what it refuses before it spends,
what it must not depend on.
"""

import re
from functools import partial

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from small_models import (
    PAIRS,
    UNIT,
    about,
    beta,
    beta_records,
    four,
    grid_of,
    line,
    normal,
    written,
)
from tables import cases, refuses

from pdips import CensoredPosterior, InputError, Margins, RefusedError, Schema, Table
from pdips.posterior import private_reference as stages
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits

NUMBER = Schema(columns={"y": {"lower": -50, "upper": 50}})
SECRET = 31.415926
pytestmark = pytest.mark.usefixtures("few_simulated")


class Unread(Table):
    """A table whose records are not to be looked at."""

    locked = False
    n_records = 60

    def __init__(self, schema):
        values = {
            name: np.full(60, float(column.lower or 0))
            for name, column in schema.columns.items()
        }
        super().__init__(pd.DataFrame(values), schema)
        self.locked = True

    def __getattribute__(self, name):
        if name in (
            "frame",
            "codes",
            "fingerprint",
            "counts",
        ) and super().__getattribute__("locked"):
            raise AssertionError("the records were looked at")
        return super().__getattribute__(name)


def refused(mechanism, schema, ledger, error=InputError):
    """Return the one line with which a mechanism refuses before it charges or reads
    records.
    """
    line = refuses("", mechanism.release, Unread(schema), ledger=ledger, error=error)
    assert not ledger.path.exists()
    return line


def test_a_look_at_records_would_be_seen():
    # the broken twin of `refused`
    with pytest.raises(AssertionError, match="looked at"):
        CensoredPosterior(epsilon=10, model=normal, reference="theta=0").release(
            Unread(NUMBER)
        )


# What is refused


def undrawable(_):
    return pm.CustomDist("theta", logp=lambda value: -(value**2) / 2)


def beyond(data):
    return pm.Normal("theta", 0, 1, shape=1)[(data["x"] > 0).astype("int64")]


def observes_public(data):
    mean = pm.Normal("theta", 0, 1)
    pm.Normal("x", mean, 1, observed=data["x"])
    pm.Normal("y", mean, 1, observed=data["y"])


def half(data):
    """A density that is zero for half of what the schema allows, where theta is 0."""
    pm.Uniform(
        "y",
        -50,
        100 * pm.math.sigmoid(pm.Normal("theta", 0, 1)) - 50,
        observed=data["y"],
    )


def undrawable_records(data):
    pm.CustomDist(
        "y",
        pm.Normal("theta", 0, 1),
        logp=lambda value, theta: -((value - theta) ** 2),
        observed=data["y"],
    )


BOTH = Schema(
    columns={"y": {"lower": 0, "upper": 1}, "other": {"lower": 0, "upper": 1}}
)
ADDED = {"neighbours": "add-remove", "n_records": 9}
MISSING = Schema(columns={"y": {"lower": 0, "upper": 1, "missing": True}})


@pytest.mark.parametrize(
    ("model", "schema", "settings", "says"),
    [
        (None, NUMBER, {}, "needs a model: --model"),
        (lambda data, schema: None, NUMBER, {}, "must return a pm.Model"),
        (
            written(lambda data: pm.Normal("theta", 0, 1)),
            NUMBER,
            {},
            "no observed variable",
        ),
        (about(name="wage"), NUMBER, {}, "'wage', which is no column of the schema"),
        (
            written(observes_public),
            PAIRS,
            {},
            "'x', but the schema calls that column public",
        ),
        (normal, BOTH, {}, "'other' is neither public nor observed"),
        (normal, MISSING, {}, "'y' may have missing values"),
        (
            about(parameter=lambda _: 3.0 * pm.Bernoulli("which", 0.5)),
            NUMBER,
            {},
            "'which' is discrete",
        ),
        (
            about(parameter=lambda data: pm.Normal("theta", data["x"].mean(), 1)),
            PAIRS,
            {},
            "prior of 'theta' reads",
        ),
        (normal, NUMBER, {"draws": 500}, "drawn by sampler = grid; leave it out"),
        (
            normal,
            NUMBER,
            {"sampler": "rejection", "n_chains": 2, "nuts": "pymc"},
            "n_chains and nuts would have",
        ),
        (
            about(parameter=undrawable),
            NUMBER,
            {},
            "nothing shows that it integrates to 1",
        ),
        (
            about(lambda theta, _: theta * pm.Data("x_data", 2.0)),
            PAIRS,
            {},
            "makes a variable 'x_data' of its own",
        ),
        (
            written(undrawable_records),
            NUMBER,
            {},
            "the observed variables can't be drawn from",
        ),
        (
            about(parameter=lambda data: pm.Normal("u", shape=data.n_records)),
            NUMBER,
            {},
            "has one parameter for each record",
        ),
        (about(parameter=beyond), PAIRS, {}, "looks something up by a column"),
        (
            about(parameter=lambda _: pm.Normal("theta", 0, 1, shape=7)),
            NUMBER,
            {},
            "one log-likelihood a record",
        ),
        (normal, NUMBER, {"share": "1e-25"}, "epsilon is too small for this table"),
        (four, PAIRS, {"sampler": "grid"}, "4 parameters and a grid takes at most 3"),
        (
            written(half),
            NUMBER,
            {"reference": {"theta": 0.0}},
            "density zero to values that the schema allows",
        ),
        (normal, NUMBER, {"reference": "gone.csv"}, "'gone.csv' is no file"),
        (
            normal,
            NUMBER,
            {"reference": {"mu": 0.0}},
            "must give values for theta; it gives mu",
        ),
        (normal, NUMBER, {"reference": "theta=much"}, "must have the form name=number"),
        (line, PAIRS, ADDED, "public columns show the number of records"),
        (normal, NUMBER, ADDED | {"sampler": "rejection"}, "replace-one"),
        (
            normal,
            NUMBER,
            ADDED | {"sampler": "nuts"},
            "NUTS takes a model of as many records as there are",
        ),
    ],
)
def test_refused_before_any_charge_or_look_at_records(
    model, schema, settings, says, ledger
):
    assert says in refused(
        CensoredPosterior(epsilon=1, model=model, **settings), schema, ledger
    )


@pytest.mark.slow
def test_a_model_may_have_data_of_its_own(ledger):
    def bends(x, knots, maximum=np.maximum):
        return maximum(x[:, None] - knots, 0).sum(axis=1)

    knots, rng = np.array([-2.0, 0.0, 2.0]), np.random.default_rng(0)
    splines = about(
        lambda b, data: (
            b[0]
            + b[1] * bends(data["x"], pm.Data("knots_data", knots), pm.math.maximum)
        ),
        lambda data: pm.Normal("b", 0, 5, shape=2),
    )
    x = rng.uniform(-3, 3, 400)
    table = Table(
        pd.DataFrame({"x": x, "y": 3 * bends(x, knots) + rng.normal(size=400)}), PAIRS
    )
    mechanism = CensoredPosterior(epsilon=100, model=splines, reference="b=0 3")
    [found] = mechanism.release(table, ledger=ledger, rng=np.random.default_rng(1))[
        0
    ].sets
    off = found["y"] - 3 * bends(found["x"].to_numpy(), knots)
    # residuals of deviation 1: the mean of 400 has .05, and the posterior's adds about
    # as much
    assert abs(off.mean()) < 0.5
    assert off.std() == pytest.approx(1, abs=0.3)


def test_what_takes_too_long_is_refused_and_a_useless_window_warned_of_before_any_charge(  # noqa: E501
    ledger,
):
    made = CensoredPosterior(
        epsilon=4, model=normal, centre="zero", sampler="rejection"
    )
    assert "rejection may take" in refused(made, NUMBER, ledger, RefusedError)
    made = CensoredPosterior(epsilon="0.01", model=normal)
    assert ("says next to nothing beyond the prior") in refused(
        made, NUMBER, ledger, UserWarning
    )


def test_files_without_a_model_and_impossible_combinations_are_refused(tmp_path):
    (tmp_path / "m.py").write_text("x = 1\n", encoding="utf-8")
    refuses(
        r"m\.py has no function make\(df\), .* nor build_model",
        CensoredPosterior,
        epsilon=1,
        model=tmp_path / "m.py",
    )
    refuses(
        "there is no model file",
        CensoredPosterior,
        epsilon=1,
        model=tmp_path / "gone.py",
    )
    pair = {"levels": [0, 1]}
    rules = Schema(
        columns={"y": {"lower": 0, "upper": 1}, "a": pair, "b": pair},
        impossible=[{"a": 1, "b": 0}],
    )
    refuses(
        "keeps to no impossible combinations",
        lambda: CensoredPosterior(epsilon=1, model=beta).spends(rules),
    )


@pytest.mark.parametrize(("settings", "says"), cases(__file__, "settings_out_of_range"))
def test_settings_out_of_range(settings, says):
    refuses(says, CensoredPosterior, **{"epsilon": 1, "model": normal, **settings})


# Units


def wages_in(unit):
    """The model of wages about 40,000, written in a unit of so many dollars."""
    mean = partial(pm.Normal, "mean", 40_000 / unit, 10_000 / unit)
    return written(
        lambda data: pm.Normal("y", mean(), 5_000 / unit, observed=data["y"])
    )


def probabilities(unit, **settings):
    schema = Schema(columns={"y": {"lower": 0, "upper": 100_000 / unit}})
    wages = np.round(np.random.default_rng(3).normal(42_000, 5_000, 80)) / unit
    if settings["centre"] == "reference":
        settings["reference"] = {"mean": 38_000 / unit}
    made = CensoredPosterior(epsilon=2, model=wages_in(unit), **settings)
    return np.exp(
        grid_of(made, Table(pd.DataFrame({"y": wages}), schema))[1].log_probabilities()
    )


@pytest.mark.slow_cases(
    "reference",
)
@pytest.mark.parametrize("centre", ["reference", "staged"])
def test_the_unit_of_a_column_changes_nothing(centre):
    # terms are whole steps of a millionth of the window, so doubles that differ in
    # their last bit can differ by a step
    dollars, thousands = (probabilities(unit, centre=centre) for unit in (1, 1_000))
    np.testing.assert_allclose(dollars, thousands, atol=1e-7)
    assert np.abs(dollars - thousands).sum() < 1e-6


def test_without_a_centre_the_unit_is_everything():
    # the broken twin: in hundreds of thousands densities are above 1, which the window
    # takes for evidence
    dollars, large = (probabilities(unit, centre="zero") for unit in (1, 100_000))
    assert np.abs(dollars - large).sum() > 0.1


# Sets, prices, and what is kept out of sight


def parameters_drawn(monkeypatch, **settings):
    """Return the parameters from which each set is drawn."""
    seen = []

    def watch(draw, schema, public, each, n_sets, n_records, rng):
        seen.append([each] * n_sets if isinstance(each, dict) else list(each))
        return [pd.DataFrame({"y": np.full(n_records, 0.5)})] * n_sets

    monkeypatch.setattr("pdips.posterior.censored_posterior.synthetic_sets", watch)
    made = CensoredPosterior(epsilon=3, model=beta, centre="zero", n_sets=3, **settings)
    made.release(
        Table(pd.DataFrame({"y": beta_records(200)}), UNIT),
        rng=np.random.default_rng(0),
    )
    return [tuple(float(value) for value in each.values()) for each in seen[0]]


@pytest.mark.slow
def test_sets_share_a_draw_unless_each_pays_for_its_own(monkeypatch):
    assert len(set(parameters_drawn(monkeypatch))) == 1
    assert len(set(parameters_drawn(monkeypatch, split="per-set"))) == 3


def test_more_sets_need_draws_of_their_own_only_where_each_pays_for_one():
    table = Table(pd.DataFrame({"y": beta_records(200)}), UNIT)

    def drawn(n_sets, **settings):
        made = CensoredPosterior(
            epsilon=3, model=beta, centre="zero", n_sets=2, **settings
        )
        plan = made.plan(UNIT)
        curator = Drawing(plan, table, RandomBits(np.random.default_rng(0)))
        measured = made.ask(plan, curator)
        rng = np.random.default_rng(1)
        return made.draw(plan, measured, n_sets, rng, curator.facts).sets

    assert [len(drawn(n_sets)) for n_sets in (1, 3)] == [1, 3]
    assert len(drawn(1, split="per-set")) == 1
    refuses("drawn for 2 sets, not for 3", drawn, 3, split="per-set")


@pytest.mark.parametrize(("cells", "law"), [(4_096, "laplace"), (1, "distribution")])
def test_a_first_stage_costs_its_counts_or_its_own_plan(cells, law, monkeypatch):
    # a table by Margins has no bounded range: an eighth of the square would be half of
    # what it costs
    monkeypatch.setattr(stages, "MOST_CELLS", cells)
    made = CensoredPosterior(epsilon=1, model=normal, delta="1e-6", centre="staged")
    first, draw = made.plan(NUMBER).steps
    assert (first.law, draw.law) == (law, "bounded-range")
    table = Margins(epsilon=made.price.stage).plan(stages.binned(NUMBER))
    assert first.rho == table.rho
    assert first.rho == pytest.approx(float(made.price.stage**2 / 4), rel=0.01)
    # shares are reckoned with half the square, so what is charged is below the budget
    rho = made.privacy_loss(NUMBER).rho
    assert rho == first.rho + draw.rho < made.price.rho


def test_nothing_of_a_record_or_a_seed_is_shown(tmp_path):
    table = Table(pd.DataFrame({"y": np.r_[np.zeros(60), SECRET]}), NUMBER)
    made = CensoredPosterior(epsilon=2, model=normal, reference="theta=0")
    release, record = made.release(table, rng=np.random.default_rng(987_654_321))
    shown = (
        repr(made)
        + repr(table)
        + repr(release)
        + repr(record)
        + str(release.describe())
    )
    shown = shown.replace(release.loss.statement, "")
    # A digest of source text and versions holds any two digits now and then.
    shown = re.sub(r"\b[0-9a-f]{16,}\b", "digest", shown)
    for secret in (str(SECRET), "31.4", "987654321", "61"):
        assert secret not in shown
    assert "31.4" not in repr(grid_of(made, table)[0].centre)
