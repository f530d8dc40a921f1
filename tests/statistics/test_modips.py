"""modips as a mechanism: what a release holds, more sets from it, what is refused
before anything is spent.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from small_models import OF_STATISTICS
from tables import random_table, refuses, schema_of

from pdips import Modips, RefusedError, Schema, Table
from pdips.convergence import Convergence
from pdips.errors import ResumableError
from pdips.inference import rule_for
from pdips.privacy.answers import PublicFacts
from pdips.privacy.noise import RandomBits
from pdips.release.release import Release
from pdips.statistics import averaging, samplers
from pdips.statistics import model as statistic_fit
from pdips.statistics.statistic import Counts

CELLS = schema_of(2, 3)
NUMBER = Schema(columns={"y": {"lower": -3.0, "upper": 5.0}})
BOTH = Schema(columns={**CELLS.columns, **NUMBER.columns})


def table(n: int = 60) -> Table:
    return random_table(CELLS, n, seed=2)


def made(**settings) -> Modips:
    return Modips(**({"epsilon": 1, "model": OF_STATISTICS} | settings))


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def sets_by(mechanism: Modips, release: Release) -> list[pd.DataFrame]:
    """Draw a set of what a release was answered, by another mechanism."""
    facts = PublicFacts(len(release.sets[0]))
    return mechanism.more_sets(release.schema, release.answers, facts, 1, rng(2))


def test_a_release_publishes_statistics_noise_and_posterior(tmp_path):
    release, record = made(n_sets=3, epsilon=2).release(table(), rng=rng())
    release.write(tmp_path)
    names = ("answers", "margins", "statistics")
    tables = [f"{name}.parquet" for name in names]
    tables += [f"synthetic_{number}.parquet" for number in (1, 2, 3)]
    assert {path.name for path in tmp_path.iterdir()} == {
        "datapackage.json",
        "posterior.nc",
        "privacy.json",
        *tables,
    }
    told = pd.read_parquet(tmp_path / "statistics.parquet")
    assert list(told.columns) == [
        "statistic",
        "cell",
        "noisy",
        "used",
        "noise",
        "scale",
        "standard_deviation",
    ]
    assert told["statistic"].tolist() == ["n", *["cells"] * 6]
    assert told["cell"].tolist()[1:3] == ["a = 0; b = 0", "a = 0; b = 1"]
    assert told["noisy"].tolist()[0] == 60
    assert told["scale"].tolist() == [0, *[1.0] * 6]  # sensitivity 2 at epsilon 2
    assert told["used"][1:].sum() == pytest.approx(60)
    assert (told["used"] >= 0).all()
    assert [item.scale for item in release.noise] == [1.0]
    assert record.diagnostics["convergence"] == "independent draws"
    assert rule_for(release) == "posterior-predictive"


def test_sets_come_from_draws_of_their_own_and_per_set_from_noise_of_their_own():
    release, _ = made(n_sets=4).release(table(400), rng=rng())
    shares = [frame["a"].eq(0).mean() for frame in release.sets]
    assert len(set(shares)) == 4
    assert {len(frame) for frame in release.sets} == {400}
    release, _ = made(n_sets=3, split="per-set", epsilon=3).release(table(), rng=rng())
    told = release.tables["statistics"]
    assert told.groupby("set").size().tolist() == [7, 7, 7]
    # sensitivity 2 at epsilon 1 a set
    assert (told.loc[told["statistic"] == "cells", "scale"] == 2).all()
    assert (
        told.pivot(index="cell", columns="set", values="noisy").nunique(axis=1).max()
        > 1
    )
    assert release.spends[0].step == "noise on cells, set 1"
    assert rule_for(release) == "sanitized"


def test_more_sets_come_from_the_same_noise_at_no_cost(tmp_path):
    mechanism = made(n_sets=2)
    first, _ = mechanism.release(table(), rng=rng())
    more = first.more_sets(7, rng=rng(2))
    assert [len(frame) for frame in more] == [60] * 7
    [plug_in] = sets_by(replace(mechanism, likelihood="plug-in"), first)
    assert len(plug_in) == 60


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "per-set", "n_sets": 2}, "noise of its own"),
        ({"epsilon": 3}, "other noise"),
        ({"neighbours": "add-remove", "n_records": 60}, "other noise"),
        (
            {
                "model": replace(
                    OF_STATISTICS,
                    statistics=lambda schema: {"cells": Counts(by=("b",))},
                )
            },
            "other numbers",
        ),
    ],
)
def test_more_sets_need_the_same_statistics(settings, message):
    first, _ = made().release(table(), rng=rng())
    refuses(message, sets_by, made(**settings), first)


@pytest.mark.slow
def test_gaussian_noise_is_read_at_delta_and_under_add_remove_the_number_of_records_is_noisy():  # noqa: E501
    both = Table(table().frame.assign(y=np.linspace(-3, 5, 60)), BOTH)
    release, _ = made(delta="1/1000000").release(both, rng=rng())
    assert (release.loss.kind, float(release.loss.delta)) == ("zcdp", 1e-6)
    assert release.loss.epsilon <= 1
    told = release.tables["statistics"].groupby("statistic")[["noise", "scale"]].last()
    # rho = sum over statistics of squared sensitivity / (2 sigma^2): 2 for the counts,
    # 2^2 for the sum
    rho = (
        2 / told.loc["cells", "scale"] ** 2 / 2
        + (2 / told.loc["sum of y", "scale"]) ** 2 / 2
    )
    assert rho == pytest.approx(float(release.loss.rho))
    assert (told.loc[["cells", "sum of y"], "noise"] == "discrete gaussian").all()
    spends = made(neighbours="add-remove", model="normal_moments", n_records=25).spends(
        NUMBER
    )
    assert [spend.step for spend in spends] == [
        f"noise on {name}" for name in ("total", "squares", "records")
    ]
    assert all(spend.epsilon > 0 for spend in spends)


def test_the_budget_is_divided_as_told():
    mechanism = made(budget="cells=2/3,sum of y=1/3")
    shares = mechanism.design(BOTH).shares
    assert shares == {"cells": Fraction(2, 3), "sum of y": Fraction(1, 3)}
    assert [spend.epsilon for spend in mechanism.spends(BOTH)] == list(shares.values())
    assert set(made(budget="equal").design(BOTH).shares.values()) == {Fraction(1, 2)}


def test_predictive_check_sees_a_model_that_could_not_have_given_the_statistics(
    monkeypatch,
):
    def found():
        facts, tree = made(epsilon=20).release(table(500), rng=rng())[1].look_closer()
        return facts["posterior"]["predictive"]["cells"], tree

    right, tree = found()
    far_off = np.array([0.95, 0.01, 0.01, 0.01, 0.01, 0.01])
    monkeypatch.setattr(
        samplers,
        "draw_shares",
        lambda given, name, alpha, n, rng: np.tile(far_off, (n, 1)),
    )
    wrong, _ = found()
    assert right["smallest_p"] > 0.001
    assert wrong["smallest_p"] < 0.05
    assert wrong["outside"] > 0.5
    assert set(tree.children) == {"posterior", "posterior_predictive", "observed_data"}


def test_chains_that_disagree_withhold_the_release_and_stay_charged(
    ledger, monkeypatch
):
    def disagree(*arguments, **settings):
        raise RefusedError(Convergence.__name__)

    monkeypatch.setattr(statistic_fit, "agreeing", disagree)
    ledger.set_total(5)
    # they read noisy statistics alone, so that they may be run again
    release = made(nuts="nutpie").release
    refuses("resume=1", release, table(), ledger=ledger, error=ResumableError)
    assert ledger.summary().spent_epsilon == 1
    assert [entry.number for entry in ledger.resumable()] == [1]


def test_a_broken_model_is_found_before_the_charge(ledger):
    def fails(given, schema):
        raise ValueError("no such thing")

    ledger.set_total(5)
    broken = made(model=replace(OF_STATISTICS, build_model=fails))
    refuses(
        "build_model failed: ValueError: no such thing",
        broken.release,
        table(),
        ledger=ledger,
    )
    assert ledger.summary().spent_epsilon == 0


def test_what_a_model_sees_of_public_columns_has_none_of_the_tables_order():
    schema = Schema(
        columns={"x": {"levels": ["a", "b"], "public": True}, "v": {"levels": [0, 1]}}
    )
    frame = pd.DataFrame({"x": list("abbab" * 8), "v": [0, 1, 1, 0] * 10})
    mechanism = made(
        model=replace(
            OF_STATISTICS, statistics=lambda schema: {"cells": Counts(by=("v",))}
        ),
        epsilon=5,
    )
    for rows in (frame, frame.iloc[::-1]):
        seen = (
            mechanism.design(schema)
            .sanitize(Table(rows, schema), RandomBits(rng()))
            .public["x"]
        )
        assert seen.tolist() == [0] * 16 + [1] * 24
    release, record = mechanism.release(Table(frame, schema), rng=rng())
    assert sorted(release.sets[0]["x"]) == sorted(frame["x"])
    assert (
        0
        <= record.look_closer()[0]["posterior"]["predictive"]["cells"]["smallest_p"]
        <= 1
    )


def even_cells(given, schema):
    with pm.Model() as model:
        pm.Dirichlet("shares", np.full(6, 1000.0))
        given.multinomial("cells", model["shares"])
    return model


EVEN = replace(OF_STATISTICS, build_model=even_cells, name="even")


def uneven(n: int) -> Table:
    return Table(
        pd.DataFrame({"a": np.zeros(n, dtype=int), "b": np.arange(n) % 10 // 9}), CELLS
    )


@pytest.mark.slow_cases(
    "frame0-cells",
    "frame1-even",
)
@pytest.mark.parametrize(
    ("frame", "best"), [(uneven(600), OF_STATISTICS.name), (table(600), "even")]
)
def test_models_are_weighed_by_the_statistics_that_they_share(frame, best):
    release, record = made(model=(OF_STATISTICS, EVEN), n_sets=4, epsilon=4).release(
        frame, rng=rng()
    )
    told = release.tables["models"].set_index("model")
    assert told["weight"].idxmax() == best
    assert told["sets"].sum() == 4
    assert told["weight"].sum() == pytest.approx(1)
    assert release.loss.epsilon == made(epsilon=4).release(frame)[0].loss.epsilon
    fits = release.posterior["fits"]
    assert {fit.attrs["model"] for fit in fits.children.values()} == {
        OF_STATISTICS.name,
        "even",
    }
    assert release.posterior["posterior"].attrs["model"] == best
    found, _ = record.look_closer()
    assert found["models"] == release.tables["models"].to_dict("records")
    # one of them alone, from the same noise
    [alone] = sets_by(made(epsilon=4, model=EVEN), release)
    assert len(alone) == len(release.sets[0])


@pytest.mark.slow
@pytest.mark.parametrize("twin", [False, True])
def test_stacking_finds_the_law_of_the_measurements(twin):
    """Weight of the true law of 60 measurements, in 20 of 20 runs above 0.8; a twin
    without the noise scale fails.
    """
    scale, generator = float(made().design(CELLS).parts[0].scale), rng(5)
    heavier = []
    for _ in range(20):
        measured = generator.laplace(0, scale, 60) + generator.normal(0, scale, 60)
        assumed = 0.05 * scale if twin else scale
        laws = [
            averaging._normal_laplace(measured, np.full(60, sd), assumed)
            for sd in (scale, 8 * scale)
        ]
        weights = averaging.compare(
            ["true", "wide"], [np.tile(law, (100, 1)) for law in laws]
        )["weight"]
        heavier.append(weights[0] > 0.8)
    assert all(heavier) != twin


def test_the_density_of_a_noisy_statistic_integrates_to_one_and_is_a_convolution():
    grid = np.linspace(-60, 60, 240_001)
    for sd, scale in ((0.01, 1.0), (1.0, 1.0), (3.0, 0.5)):
        density = np.exp(averaging._normal_laplace(grid, np.full(len(grid), sd), scale))
        assert np.trapezoid(density, grid) == pytest.approx(1, abs=1e-6)
        assert np.trapezoid(density * grid**2, grid) == pytest.approx(
            sd**2 + 2 * scale**2, rel=1e-5
        )


def counting(name):
    return replace(EVEN, statistics=lambda schema: {name: Counts(by=("a",))}, name="b")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "most"}, "budget must be"),
        ({"budget": "total=1"}, "budget must give shares"),
        ({"budget": "cells=1/2"}, "budget must give shares"),
        ({"budget": {"cells": 1, "total": 0}}, "the share of total"),
        ({"model": ()}, "at least one"),
        ({"model": (EVEN, EVEN)}, "different names"),
        ({"model": (OF_STATISTICS, EVEN), "split": "per-set"}, "split = once"),
        ({"model": (EVEN, counting("cells"))}, "of the name"),
        ({"model": (EVEN, counting("a"))}, "share no noisy"),
    ],
)
def test_settings_that_no_plan_can_have(settings, message):
    refuses(message, lambda: made(**settings).plan(CELLS))
