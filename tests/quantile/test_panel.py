"""Panels: births and continuers, what they cost, and the years in which synthetic
records have values.
"""

import itertools
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from tables import cases, loss_between, refuses

from pdips import KNG, Column, KNGResidual, Schema, Table
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import exact_law
from pdips.quantile.column_plan import Panel
from pdips.quantile.conditional import line_draw
from pdips.quantile.line_search import Candidates, Fitter, spread

PANEL = {"panel": ("entry", "exit"), "panel_columns": ("emp_",)}
YEARS = (1976, 1977, 1978)


def schema_of(
    years=YEARS, *, upper=1000.0, levels=True, industries=0, public=True, **column
) -> Schema:
    year = (
        {"levels": list(years)}
        if levels
        else {"lower": min(years), "upper": max(years), "integer": True}
    )
    columns = {
        "entry": Column(**year, public=True),
        "exit": Column(**year, public=True),
    }
    if industries:
        columns["industry"] = Column(levels=list("abc"[:industries]), public=public)
    number = {"lower": 1.0, "upper": upper, "scale": "log", "missing": True} | column
    return Schema(columns=columns | {f"emp_{t}": Column(**number) for t in years})


def firms(n=90, years=YEARS, seed=0, industries=0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    entry, last = np.sort(rng.choice(years, (n, 2)), axis=1).T
    frame = pd.DataFrame({"entry": entry, "exit": last})
    if industries:
        frame["industry"] = rng.choice(list("abc"[:industries]), n)
    level = rng.lognormal(3, 1, n).clip(2, 300)
    for t in years:
        frame[f"emp_{t}"] = np.where(
            there(frame, t), level * rng.lognormal(0, 0.1, n), np.nan
        )
    return frame


def there(frame, t):
    """Which firms exist in a year."""
    return (frame["entry"] <= t) & (frame["exit"] >= t)


def spied(mechanism, table):
    """The tasks of a mechanism, whose columns are all drawn from the middle of the
    range.
    """
    tasks = []

    class Spy(type(mechanism)):
        def fit(self, task, curator):
            tasks.append(task)
            return lambda given, n, rng: np.full(n, 50.0)

    plan, rng = mechanism.plan(table.schema), np.random.default_rng(1)
    spy = Spy(**vars(mechanism))
    curator = Drawing(plan, table, RandomBits(rng))
    measured = spy.ask(plan, curator)
    spy.draw(plan, measured, spy.n_sets, rng, curator.facts)
    return tasks


@pytest.fixture(scope="module")
def table():
    """Ninety firms of three years."""
    return Table(firms(), schema_of())


@pytest.fixture(scope="module")
def tasks(table):
    """What is done to them."""
    return spied(KNGResidual(epsilon=1, **PANEL), table)


def epsilon_of(task):
    """What a task costs in its stratum."""
    return task.part.budget.epsilon / (2 if task.part.budget.moves else 1)


# Price, by exact enumeration


LIVES = ((1976, 1977), (1977, 1977), (1976, 1976))
"""A firm that goes on, a birth of the second year, and an exit after the first."""


def tiny_tables(schema, values):
    """All tables of three firms with these lives."""
    cells = [t for life in LIVES for t in range(life[0], life[1] + 1)]
    for filled in itertools.product(values, repeat=len(cells)):
        rest, rows = list(filled), []
        for first, last in LIVES:
            rows.append(
                [
                    first,
                    last,
                    *(
                        rest.pop(0) if first <= t <= last else np.nan
                        for t in (1976, 1977)
                    ),
                ]
            )
        yield (
            tuple(map(tuple, rows)),
            Table(pd.DataFrame(rows, columns=list(schema.columns)), schema),
        )


def worst_losses(mechanism, schema, values=(2.0, 30.0, 900.0)):
    """Return for each firm the largest loss over all tables and all other values
    of it.
    """
    known = {
        rows: exact_law(mechanism, table).outcomes
        for rows, table in tiny_tables(schema, values)
    }
    worst = [0.0] * len(LIVES)
    for (rows, mine), (others, theirs) in itertools.combinations(known.items(), 2):
        changed = [k for k in range(len(LIVES)) if repr(rows[k]) != repr(others[k])]
        if len(changed) == 1:
            worst[changed[0]] = max(worst[changed[0]], loss_between(mine, theirs))
    return worst


def test_parts_compose_in_parallel_and_years_in_sequence():
    schema = schema_of((1976, 1977))
    for share, expected in (
        ("parallel", (1, 1 / 2, 1 / 2)),
        ("1/4", (1 / 2 + 3 / 8, 1 / 8, 1 / 2)),
    ):
        found = worst_losses(
            KNGResidual(epsilon=1, births_share=share, **PANEL), schema
        )
        # noisy counts are tight, so a firm's loss is the sum of its parts'
        assert found == pytest.approx(expected)


def test_a_birth_that_is_counted_twice_costs_more(monkeypatch):
    # the broken twin: births are among the continuers too, at the whole year's price
    parts = Panel.parts

    def overlapping(self, name, values):
        found = parts(self, name, values)
        return found | {"continuers": found["continuers"] | found["births"]}

    monkeypatch.setattr(Panel, "parts", overlapping)
    assert (
        worst_losses(KNGResidual(epsilon=1, **PANEL), schema_of((1976, 1977)))[1]
        > 0.99
        > 1 / 2
    )


def test_chosen_lines_stay_within_the_price():
    class OneLine(KNGResidual):
        def steps(self, part):
            budget, p = part.budget, part.box.n_predictors
            return (
                Fitter(slack=10.0).choice(
                    budget, "line", Fraction(3, 4), p, budget.epsilon
                ),
            )

        def fit(self, task, curator):
            regression = task.regression
            slopes = np.array([[0.0], [regression.span / 2]])[
                : 1 + task.box.n_predictors, : task.box.n_predictors
            ]
            offsets = spread(
                regression.span, regression.span / 3, 2, regression.step, upwards=True
            )
            around = Candidates(
                around=regression.start(), slopes=slopes, intercepts=offsets
            )
            (step,) = self.steps(task.part)
            line = Fitter(slack=10.0).choose(
                regression, around, Fraction(3, 4), step, curator
            )
            return line_draw(
                task.column, task.box, np.array([0.75]), line[None], "quantile"
            )

    found = worst_losses(
        OneLine(epsilon=3, **PANEL), schema_of((1976, 1977)), values=(2.0, 900.0)
    )
    assert max(found) <= 3 + 1e-9
    assert max(found[1:]) <= 3 / 2 + 1e-9
    assert min(found) > 0.2  # something is read of each


# Parts


def test_births_are_never_among_the_continuers(table, tasks):
    assert [(task.column, task.box.names) for task in tasks] == [
        (table.schema.columns[f"emp_{t}"], names)
        for t, names in (
            (1976, ()),
            (1977, ()),
            (1977, ("emp_1976",)),
            (1978, ()),
            (1978, ("emp_1977",)),
        )
    ]
    for task, t in zip(tasks, (1976, 1977, 1977, 1978, 1978), strict=True):
        of_year = table.frame[there(table.frame, t)]
        older = of_year[of_year["entry"] < t]
        mine = older if task.box.names else of_year[of_year["entry"] == t]
        read = task.regression.read(table)
        assert read.outcome.tolist() == np.log(mine[f"emp_{t}"]).tolist()
        assert task.n_records == len(mine)
        assert epsilon_of(task) == Fraction(1, 3)
        given = {name: older[name].to_numpy() for name in task.box.names}
        assert not given or (read.predictors == task.box.matrix(given)).all()
        assert all(len(values) == len(older) for values in task.pilot.values())


def test_the_papers_shares_of_births_and_continuers(table):
    tasks = spied(KNG(epsilon=3, quantiles=3, births_share="1/4", **PANEL), table)
    assert [epsilon_of(task) for task in tasks] == [
        1,
        Fraction(1, 4),
        Fraction(3, 4),
        Fraction(1, 4),
        Fraction(3, 4),
    ]
    mechanism = KNGResidual(epsilon=1, **PANEL)
    spends = mechanism.spends(table.schema)
    assert [spend.epsilon for spend in spends] == [Fraction(1, 3)] * 3
    assert spends[1].step == "column emp_1977, births and continuers"
    assert ("follows from public columns") in mechanism.privacy_loss(
        table.schema
    ).statement
    assert "follows from" not in KNG(epsilon=1).privacy_loss(table.schema).statement


@pytest.mark.parametrize("levels", [True, False])
@pytest.mark.parametrize(
    "mechanism",
    [
        KNGResidual(epsilon=1, n_sets=2, **PANEL),
        KNGResidual(epsilon=1, n_sets=2, continuers="line", **PANEL),
        KNG(
            epsilon=1, n_sets=2, quantiles=5, scheme="stepwise", main=("1/2",), **PANEL
        ),
    ],
)
def test_synthetic_firms_exist_in_the_years_of_the_public_ones(mechanism, levels):
    years = (1976, 1977, 1980)  # 1978 and 1979 have no column
    table = Table(firms(60, years), schema_of(years, levels=levels))
    release, _ = mechanism.release(table, rng=np.random.default_rng(2))
    for made in release.sets:
        shown, known = (
            sorted(zip(each["entry"], each["exit"], strict=True))
            for each in (made, table.frame)
        )
        assert shown == known
        for t in years:
            assert (made[f"emp_{t}"].notna() == there(made, t)).all()
            assert made[f"emp_{t}"].dropna().between(1, 1000).all()


def test_much_budget_gives_the_panel_back():
    # Not a test of chance: at this epsilon nothing but the width of bins and the number
    # of quantiles is left.
    frame = firms(400, seed=3)
    table = Table(frame, schema_of())
    for mechanism in (
        KNGResidual(epsilon=30_000, **PANEL),
        KNG(epsilon=300_000, scheme="sandwich", slopes="varying", **PANEL),
    ):
        made = (
            mechanism.release(table, rng=np.random.default_rng(3))[0]
            .sets[0]
            .astype(float)
        )
        for a, b in itertools.pairwise(YEARS):
            change = np.log(made[f"emp_{b}"] / made[f"emp_{a}"])
            true = np.log(frame[f"emp_{b}"] / frame[f"emp_{a}"])
            assert abs(change.median() - true.median()) < 0.05
            assert change.std() == pytest.approx(true.std(), rel=0.5)
            assert np.log(made[f"emp_{b}"]).mean() == pytest.approx(
                np.log(frame[f"emp_{b}"]).mean(), abs=0.2
            )


# Strata


def test_one_synthesis_for_each_public_industry():
    frame = firms(industries=2)
    # no births in "b" in 1977
    frame = frame[~((frame["industry"] == "b") & (frame["entry"] == 1977))]
    # no records in "c"
    table = Table(frame.reset_index(drop=True), schema_of(industries=3))
    tasks = spied(
        KNGResidual(epsilon=3, by=("industry",), births_share="1/4", **PANEL), table
    )
    shares = [1, Fraction(1, 4), Fraction(3, 4), Fraction(1, 4), Fraction(3, 4)]
    assert [epsilon_of(task) for task in tasks] == [
        share for share in shares for _ in range(3)
    ]
    assert [task.n_records > 0 for task in tasks[3:9]] == [
        True,
        False,
        False,
        True,
        True,
        False,
    ]
    assert [task.n_records for task in tasks] == [
        len(task.regression.read(table).outcome) for task in tasks
    ]
    assert all(task.part.budget.in_stratum == "replace-one" for task in tasks)
    made = (
        KNGResidual(epsilon=3, by=("industry",), **PANEL)
        .release(table, rng=np.random.default_rng(5))[0]
        .sets[0]
    )
    assert (
        made["industry"].value_counts().to_dict()
        == table.frame["industry"].value_counts().to_dict()
    )
    assert (made["emp_1977"].notna() == there(made, 1977)).all()


def test_confidential_industries_halve_the_budget():
    table = Table(firms(industries=2), schema_of(industries=3, public=False))
    mechanism = KNGResidual(epsilon=8, by=("industry",), **PANEL)
    tasks = spied(mechanism, table)
    # a stratum without records costs and counts as every other
    assert len(tasks) == 3 + 2 * 3 * 2
    # 2 of 8 for each of four columns, at half for each stratum
    assert {epsilon_of(task) for task in tasks} == {1}
    # not what the confidential strata have
    expected = {("add-remove", table.n_records / 3)}
    assert {(task.part.budget.in_stratum, task.n_records) for task in tasks} == expected
    made = mechanism.release(table, rng=np.random.default_rng(6))[0].sets[0]
    assert (made["emp_1977"].notna() == there(made, 1977)).all()


# Predictors, and two numbers a year


def test_named_predictors_are_split_by_part(table):
    pay = {f"pay_{t}": table.schema.columns[f"emp_{t}"] for t in YEARS}
    schema = Schema(columns={**table.schema.columns, **pay})
    both = Table(
        table.frame.assign(**{f"pay_{t}": table.frame[f"emp_{t}"] for t in YEARS}),
        schema,
    )
    settings = {"panel": ("entry", "exit"), "panel_columns": ("emp_", "pay_")}
    named = {"pay_1977": ("pay_1976", "emp_1977", "emp_1976")}
    tasks = spied(KNGResidual(epsilon=1, predictors=named, **settings), both)
    names = {
        task.box.names for task in tasks if task.column is schema.columns["pay_1977"]
    }
    assert {("emp_1977",), ("pay_1976", "emp_1977", "emp_1976")} <= names
    assert all(
        not np.isnan(task.regression.read(both).predictors).any() for task in tasks
    )
    early = KNG(epsilon=1, predictors={"pay_1978": ("emp_1976",)}, **settings)
    refuses(
        "'emp_1976' isn't there in every record that goes on", early.columns, schema
    )


def test_last_years_value_is_the_line_only_where_it_is_the_one_predictor_on_the_same_scale(  # noqa: E501
    table, tasks
):
    assert [task.part.unchanged is not None for task in tasks] == [
        False,
        False,
        True,
        False,
        True,
    ]
    other = {
        **table.schema.columns,
        "emp_1977": Column(lower=1.0, upper=2000.0, scale="log", missing=True),
    }
    wider = Table(table.frame, Schema(columns=other))
    assert not any(
        task.part.unchanged is not None
        for task in spied(KNGResidual(epsilon=1, **PANEL), wider)
    )
    line, older = (
        tasks[2].part.unchanged,
        table.frame[there(table.frame, 1976) & there(table.frame, 1977)],
    )
    before = np.exp(
        line[0] + tasks[2].regression.read(table).predictors[:, 0] * line[1]
    )
    assert before == pytest.approx(older["emp_1976"].to_numpy())


# Bad input


@pytest.mark.parametrize(
    ("change", "message"), cases(__file__, "a_table_against_its_public_years_is")
)
@pytest.mark.parametrize(
    "mechanism", [KNGResidual(epsilon=1, **PANEL), KNG(epsilon=1, quantiles=3, **PANEL)]
)
def test_a_table_against_its_public_years_is_refused_before_anything_is_spent(
    mechanism, change, message, ledger
):
    frame = firms()
    frame.loc[0] = [1976, 1977, 3.0, 4.0, np.nan]
    frame.loc[0, list(change)] = list(change.values())
    ledger.set_total(5)
    refuses(message, mechanism.release, Table(frame, schema_of()), ledger=ledger)
    assert ledger.summary().remaining_epsilon == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    cases(__file__, "settings_are_checked_before_there_is_a_schema"),
)
def test_settings_are_checked_before_there_is_a_schema(settings, message):
    for mechanism in (KNGResidual, KNG):
        refuses(message, mechanism, epsilon=1, **settings)


@pytest.mark.parametrize(
    ("columns", "settings", "message"), cases(__file__, "schemas_that_are_no_panel")
)
def test_schemas_that_are_no_panel_are_refused(columns, settings, message):
    schema = Schema(columns={**schema_of().columns, **columns})
    neighbours = "add-remove" if "n_records" in settings else "replace-one"
    refuses(
        message,
        lambda: KNG(epsilon=1, neighbours=neighbours, **{**PANEL, **settings}).columns(
            schema
        ),
    )


def test_public_years_of_numbers_are_given_not_made(table):
    first = table.schema.columns["emp_1976"].model_copy(update={"public": True})
    table = Table(
        table.frame, Schema(columns={**table.schema.columns, "emp_1976": first})
    )
    mechanism = KNGResidual(epsilon=1, **PANEL)
    assert [spend.step for spend in mechanism.spends(table.schema)] == [
        f"column emp_{t}, births and continuers" for t in (1977, 1978)
    ]
    made = mechanism.release(table, rng=np.random.default_rng(8))[0].sets[0]
    assert sorted(made["emp_1976"].dropna()) == sorted(table.frame["emp_1976"].dropna())
