"""The logistic statistic: what one person moves, how near the certified minimum is,
what is refused.
"""

from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from tables import cases, refuses, schema_in

from pdips import Schema, Table
from pdips.privacy.sensitivity import Sensitivity
from pdips.statistics import logistic
from pdips.statistics.logistic import (
    Accuracy,
    Logistic,
    Logits,
    decay,
    minimum,
    newton,
    root_above,
)

LEVELS = {2: [0, 1], 3: ["a", "b", "c"]}


def schema_of(n_levels, p, *public, records=1):
    columns = {"w": {"levels": LEVELS[n_levels]}} | {
        f"z{j}": {"lower": -4, "upper": 4} for j in range(p)
    }
    columns = {
        name: column | {"public": name in public} for name, column in columns.items()
    }
    return Schema(columns=columns, records={"max_per_person": records})


def table_of(schema, levels, u):
    spelt = schema.columns["w"].levels
    frame = {"w": [spelt[code] for code in levels]}
    frame |= {
        f"z{j}": 4.0 * column for j, column in enumerate(np.asarray(u, dtype=float).T)
    }
    return Table(pd.DataFrame(frame), schema)


def statistic_of(p, kappa):
    return Logistic(
        outcome="w", predictors=tuple(f"z{j}" for j in range(p)), kappa=kappa
    )


def moved(statistic, first, second):
    change = statistic.measure(first) - statistic.measure(second)
    return int(np.abs(change).sum()), int((change**2).sum())


def worst_pair(n_levels, p, neighbours, kappa, records=1):
    """A crowd makes the fit sure along the last predictor; one person says the
    opposite, along all the others too.
    """
    schema = schema_of(n_levels, p, records=records)
    low, high = (0, 1) if n_levels == 2 else (1, 2)
    n = 100 * kappa * (p + 1) // 2
    crowd = np.zeros((2 * n, p))
    crowd[:n, -1], crowd[n:, -1] = 1, -1
    levels = [high] * n + [low] * n
    corner, other = np.ones(p), np.ones(p)
    other[-1] = -1
    first = table_of(
        schema, [*levels, *[low] * records], np.vstack([crowd, *[corner] * records])
    )
    if neighbours == "add-remove":
        return schema, first, table_of(schema, levels, crowd)
    return (
        schema,
        first,
        table_of(
            schema, [*levels, *[high] * records], np.vstack([crowd, *[other] * records])
        ),
    )


@pytest.mark.parametrize(
    ("n_levels", "neighbours", "records"),
    [
        (2, "replace-one", 1),
        (3, "replace-one", 2),
        (2, "add-remove", 2),
        (3, "add-remove", 1),
    ],
)
def test_the_sensitivity_is_nearly_attained_and_a_claim_of_ten_times_the_ridge_is_not_kept(  # noqa: E501
    n_levels, neighbours, records
):
    for p, kappa, least in ((15, 5, 0.7), (2, 1, 0.3)):
        schema, first, second = worst_pair(n_levels, p, neighbours, kappa, records)
        statistic, twin = statistic_of(p, kappa), statistic_of(p, 10 * kappa)
        most = statistic.sensitivity(schema, neighbours)
        l1, l2_squared = moved(statistic, first, second)
        assert least * most.l1 < l1 <= most.l1
        assert least * most.l2_squared < l2_squared <= most.l2_squared
        assert l1 > 3 * (
            twin.sensitivity(schema, neighbours).l1 * twin.step() / statistic.step()
        )


@pytest.mark.parametrize("n_levels", [2, 3])
def test_no_small_table_moves_more(n_levels, neighbours):
    rng, schema, statistic = (
        np.random.default_rng(0),
        schema_of(n_levels, 2),
        statistic_of(2, "1/4"),
    )
    worst = 0
    for _ in range(50):
        n = int(rng.integers(1, 30))
        kinds = rng.integers(n_levels), rng.choice([-1.0, -0.3, 0.2, 1.0], 2)
        levels, u = rng.integers(0, n_levels, n), rng.choice([-1.0, 0.0, 1.0], (n, 2))
        levels[: n // 2], u[: n // 2] = kinds
        first = table_of(
            schema,
            [*levels, int(rng.integers(n_levels))],
            [*u, rng.choice([-1.0, 1.0], 2)],
        )
        if neighbours == "replace-one":
            second = table_of(
                schema,
                [*levels, int(rng.integers(n_levels))],
                [*u, rng.choice([-1.0, 1.0], 2)],
            )
        else:
            second = table_of(schema, levels, u)
        worst = max(worst, moved(statistic, first, second)[0])
    assert (
        0.15 * statistic.sensitivity(schema, neighbours).l1
        < worst
        <= statistic.sensitivity(schema, neighbours).l1
    )


def test_public_predictors_halve_what_a_replaced_record_can_do():
    statistic, known = statistic_of(2, 1), schema_of(2, 2, "z0", "z1")
    most = statistic.sensitivity(known, "replace-one").l1
    assert most == statistic.sensitivity(schema_of(2, 2), "add-remove").l1
    nothing = statistic.sensitivity(schema_of(2, 2, "w", "z0", "z1"), "replace-one")
    assert nothing.l1 == nothing.l2_squared == 0
    rng = np.random.default_rng(0)
    u = rng.choice([-1.0, 1.0], (12, 2))
    for _ in range(30):
        levels = rng.integers(0, 2, 12)
        other = levels.copy()
        other[0] = 1 - other[0]
        assert (
            moved(statistic, table_of(known, levels, u), table_of(known, other, u))[0]
            <= most
        )


# The certificate


def logits_of(rng, n, n_levels, d, kappa, steep=3.0):
    x = rng.choice([-1.0, -0.2, 0.5, 1.0], (n, d)) / np.sqrt(d)
    level = (n_levels * rng.random(n) ** np.exp(steep * x[:, 0])).astype(np.int64)
    return Logits(
        x=x,
        level=level,
        weight=rng.integers(1, 4, n),
        n_levels=n_levels,
        kappa=Fraction(kappa),
    )


decimals = np.vectorize(lambda value: Decimal(float(value)), otypes=[object])


def exact_gradient(logits, b):
    """The gradient of the objective with 50 digits, entry by entry."""
    with localcontext() as context:
        context.prec = 50
        x, coefficients = decimals(logits.x), decimals(b)
        powers = np.vectorize(Decimal.exp, otypes=[object])(x @ coefficients.T)
        own = (
            (logits.level[:, None] == np.arange(1, len(b) + 1))
            .astype(int)
            .astype(object)
        )
        residuals = powers / (1 + powers.sum(axis=1, keepdims=True)) - own
        kappa = Decimal(logits.kappa.numerator) / Decimal(logits.kappa.denominator)
        return (
            kappa * coefficients
            + (logits.weight.astype(object)[:, None] * residuals).T @ x
        ).ravel()


@pytest.mark.parametrize("n_levels", [2, 3, 5])
def test_the_computed_gradient_is_within_its_proven_error(n_levels):
    rng = np.random.default_rng(1)
    for size in (0.1, 5.0, 200.0):
        logits = logits_of(rng, 40, n_levels, 4, "1/3")
        accuracy, b = (
            Accuracy(n_levels, 4, logits.kappa),
            size * rng.normal(size=(n_levels - 1, 4)),
        )
        exact, found = exact_gradient(logits, b), logits.gradient(b)
        error = (
            float(
                sum((f - Fraction(e)) ** 2 for f, e in zip(found, exact, strict=True))
            )
            ** 0.5
        )
        assert (
            error
            <= float(
                accuracy.tolerance
                / 4
                * int(logits.weight.sum())
                / logistic.MOST_RECORDS
            )
            < 1e-6
        )
        assert error > 0


def test_decay_is_as_near_as_the_proof_says():
    x = np.concatenate([np.linspace(0, 64, 2000), [1e-300, 5e-17, 0.0, 63.999, 1e6]])
    with localcontext() as context:
        context.prec = 50
        exact = [(-min(Decimal(float(v)), Decimal(64))).exp() for v in x]
        worst = max(
            abs(Decimal(float(f)) / e - 1) for f, e in zip(decay(x), exact, strict=True)
        )
    assert 2.0**-52 < worst < 2.0**-43
    assert decay(np.zeros(3)).tolist() == [1, 1, 1]
    assert (decay(x) <= 1).all()


@pytest.mark.parametrize("n_levels", [2, 3])
@pytest.mark.parametrize("kappa", ["1/100", 1, 50])
def test_the_certified_minimum_is_the_minimum(n_levels, kappa):
    logits = logits_of(np.random.default_rng(2), 60, n_levels, 3, kappa)
    accuracy = Accuracy(n_levels, 3, logits.kappa)

    def objective(flat):
        eta = logits.x @ np.vstack([np.zeros(3), flat.reshape(-1, 3)]).T
        loss = np.log(np.exp(eta).sum(axis=1)) - eta[np.arange(60), logits.level]
        return float(logits.kappa) / 2 * (flat**2).sum() + (logits.weight * loss).sum()

    found = minimum(logits, accuracy)
    best = minimize(
        objective, np.zeros(found.size), method="BFGS", options={"gtol": 1e-4}
    )
    assert found.ravel() == pytest.approx(best.x, abs=1e-4 / float(logits.kappa) + 1e-3)
    assert float(sum(v**2 for v in exact_gradient(logits, found))) ** 0.5 <= float(
        accuracy.tolerance
    )
    assert not accuracy.certifies(
        logits, found + 2 * float(accuracy.tolerance / logits.kappa)
    )


@pytest.mark.parametrize("n_levels", [2, 3])
def test_gradient_descent_gets_there_where_newton_does_not(n_levels, monkeypatch):
    logits = logits_of(np.random.default_rng(3), 20, n_levels, 2, 2)
    accuracy = Accuracy(n_levels, 2, logits.kappa)
    near = float(2 * accuracy.tolerance / logits.kappa)
    straight = minimum(logits, accuracy)
    for bad in (0.0, np.inf, 1e300, 0.1, np.nan):
        assert not accuracy.certifies(logits, np.full((n_levels - 1, 2), bad))

    def singular(*_):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(np.linalg, "solve", singular)
    assert not newton(logits, 1e-6).any()
    found = minimum(logits, accuracy)
    assert accuracy.certifies(logits, found)
    assert np.linalg.norm(found - straight) <= near


def test_weights_are_copies_and_the_order_of_records_does_not_matter():
    logits = logits_of(np.random.default_rng(5), 50, 3, 3, 1)
    order = np.random.default_rng(6).permutation(50)
    rows = np.repeat(order, logits.weight[order])
    unrolled = replace(
        logits,
        x=logits.x[rows],
        level=logits.level[rows],
        weight=np.ones(len(rows), np.int64),
    )
    b = np.random.default_rng(7).normal(size=(2, 3))
    assert logits.gradient(b) == unrolled.gradient(b)


def test_roots_are_above():
    for square in (Fraction(2), Fraction(4), Fraction(1, 3), Fraction(10**9)):
        assert square <= root_above(square) ** 2
        assert root_above(square) - Fraction(1, 2**32) < Fraction(
            float(square) ** 0.5
        ) + Fraction(1, 2**20)
    assert root_above(Fraction(4)) == 2


# What is read, and what is refused

MIXED = schema_in("logistic_fit_mixed")


def test_predictors_are_read_from_public_bounds():
    statistic = Logistic(outcome="ill", predictors=("dose", "age", "sex"), kappa=1)
    values = {"dose": [1.0, 10.0, 100.0], "age": [0, 45, 90], "sex": [0, 1, 2]}
    found = statistic.design(
        {name: np.array(column) for name, column in values.items()}, MIXED
    )
    assert found == pytest.approx(
        np.array([[1, -1, -1, 0, 0], [1, 0, 0, 1, 0], [1, 1, 1, 0, 1]]) / 2
    )
    assert max(sum(Fraction(float(v)) ** 2 for v in row) for row in found) <= 1
    predictors = ("1", "dose", "age", "sex = m", "sex = missing")
    assert statistic.labels(MIXED).to_numpy().tolist() == [
        ["True", name] for name in predictors
    ]
    assert statistic.shape(MIXED) == (1, 5)
    assert len(statistic.spread(MIXED)) == len(statistic.labels(MIXED)) == 5
    assert statistic.sensitivity(MIXED, "replace-one") == Sensitivity(
        l1=18332, l2_squared=67215093
    )


def test_an_outcome_called_predictor_keeps_its_name():
    schema = Schema(
        columns={"predictor": {"levels": [0, 1]}, "x": {"lower": 0, "upper": 1}}
    )
    labels = Logistic(outcome="predictor", predictors=("x",), kappa=1).labels(schema)
    assert labels.columns.tolist() == ["predictor", "term"]


def test_no_record_is_longer_than_one():
    for p in range(1, 40):
        for row in statistic_of(p, 1).design(
            {f"z{j}": np.array([-4.0, 4.0]) for j in range(p)}, schema_of(2, p)
        ):
            assert (
                1 - Fraction(1, 2**50) < sum(Fraction(float(v)) ** 2 for v in row) <= 1
            )


def test_a_counted_table_is_read_by_weights():
    schema = Schema(columns={"w": {"levels": [0, 1]}, "g": {"levels": [0, 1, 2]}})
    statistic = Logistic(outcome="w", predictors=("g",), kappa=1)
    frame = pd.DataFrame({"w": [0, 1, 1, 1, 0], "g": [0, 0, 2, 2, 1]})
    whole, counted = Table(frame, schema), Table(frame.drop_duplicates(), schema)
    counted.counts = np.array([1, 1, 2, 1])
    assert np.array_equal(statistic.measure(whole), statistic.measure(counted))


@pytest.mark.parametrize(
    ("settings", "message"), cases(__file__, "what_is_no_regression_is_refused")
)
def test_what_is_no_regression_is_refused(settings, message):
    made = {"outcome": "ill", "predictors": ("dose",), "kappa": 1} | settings
    refuses(message, lambda: Logistic(**made).check(MIXED))


def test_tables_out_of_reach(monkeypatch):
    statistic, schema = statistic_of(1, 1), schema_of(2, 1)
    table = table_of(schema, [0, 1], [[0.0], [1.0]])
    monkeypatch.setattr("pdips.statistics.logistic.MOST_RECORDS", 1)
    refuses("at most 1 records", statistic.measure, table)
    monkeypatch.undo()
    table.frame = table.frame[["w"]]
    refuses("counted=False", statistic.measure, table)
