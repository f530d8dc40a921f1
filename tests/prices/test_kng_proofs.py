"""What docs/proofs/kng.md claims, prices along a path of choices, records apart, lines
that do not cross.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest
from quantile_tables import Anything, budget_of, records_of, regression_of
from tables import cases, refuses

from pdips import Schema, Table
from pdips.data.encoding import UNITS, Box, in_units
from pdips.errors import PlanError
from pdips.privacy.curator import Curator
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import record
from pdips.quantile import column_synthesis, kng, table_questions
from pdips.quantile import line_search as lines
from pdips.quantile.column_plan import ColumnPlan, NumericPart
from pdips.quantile.gradient import Gradient
from pdips.quantile.kng import KNG, KNGResidual
from pdips.quantile.line_search import Fitter
from pdips.quantile.quantile_plan import WIDE
from pdips.quantile.residuals import instrumented
from pdips.quantile.table_questions import ColumnTask
from pdips_papers.kng.as_printed import PrintedKNG, true_epsilon

TAUS = [
    Fraction(1, 2),
    Fraction(1, 100),
    Fraction(3, 4),
    Fraction(99, 100),
    Fraction(2, 3),
]


def test_no_sum_of_the_largest_table_overflows():
    tried = product((1, 501, 999), (1, 100), ("hull", "linf"))
    worst = max(
        Gradient(Fraction(a, 1_000), p, norm).sensitivity("add-remove")
        for a, p, norm in tried
    )
    assert worst * lines.MOST_RECORDS < -lines.LEAST
    assert -2 * lines.LEAST <= 2**61  # what noise.exponential_mechanism takes


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8, 20, 60])
def test_a_step_has_no_more_candidates_than_the_exact_draw_is_proved_for(p):
    none = np.zeros((0, p))
    records = regression_of(none[:, 0], none, 0.0, 1.0)
    for fitter in (Fitter(), Fitter(n_intercepts=10_000)):
        # more slopes are searched for one by one
        together = lines.rounds(p) if p <= fitter.at_once else ()
        each = [
            fitter.around(records, records.start(), one) for one in {*together, WIDE}
        ]
        for found in (*each, fitter.beside(records, records.start(), slopes=True)):
            assert 1 < len(found.slopes) * len(found.intercepts) <= 2**22


def test_base_weights_never_leave_the_range_of_scores():
    regression, epsilon = (
        regression_of(np.zeros(1), np.zeros((1, 0)), 0.0, 1.0),
        Fraction(1, 10**30),
    )
    fitter, curator = Fitter(base="uniform"), Anything(np.random.default_rng(0))
    step = fitter.choice(budget_of(epsilon), "line", TAUS[0], 0, epsilon)
    fitter.choose(
        regression,
        fitter.beside(regression, regression.start()),
        TAUS[0],
        step,
        curator,
    )
    scores = curator.scores
    assert np.abs(scores[scores != lines.UNAVAILABLE]).max() <= 2**61
    assert scores.max() <= 0


# records stay apart


def numeric(n, **extra):
    return Schema.model_validate(
        {"columns": {f"x{k}": {"lower": 0.0, "upper": 1.0} for k in range(n)}, **extra}
    )


@pytest.mark.parametrize("p", [2, 40])
def test_a_record_has_the_same_bits_whatever_records_are_beside_it(p):
    rng = np.random.default_rng(p)
    schema, names = numeric(p + 1), tuple(f"x{k}" for k in range(p))
    mix, n = rng.random((p, p)), 60
    pilot = dict(zip(names, (rng.random((500, p)) @ mix / p).T, strict=True))
    given, outcome = dict(zip(names, rng.random((p, n)), strict=True)), rng.random(n)

    box = Box(schema, names, {})
    part, column = NumericPart(budget=budget_of(1), box=box), schema.columns[f"x{p}"]
    nothing = {"regression": None, "ask": None, "planned": None}
    task = ColumnTask(
        part=part, column=column, pilot=pilot, n_records=n, pinned=True, **nothing
    )

    def records(rows):
        predictors = box.matrix({name: values[rows] for name, values in given.items()})
        return records_of(
            instrumented(regression_of(outcome[rows], predictors, 0.0, 1.0), task)[0]
        )

    every, line = records(np.arange(n)), rng.normal(size=p + 1)
    assert np.abs(every.instruments).max() <= UNITS
    for rows in (
        np.arange(1),
        np.arange(18),
        np.arange(19),
        np.arange(n)[::-1],
        rng.permutation(n)[:7],
    ):
        some = records(rows)
        assert (some.instruments == every.instruments[rows]).all()
        assert (some.residuals(line) == every.residuals(line)[rows]).all()


def test_instruments_are_rounded_one_by_one_and_never_leave_the_unit():
    assert in_units(np.array([-9.0, -1.0, 1.0, 1 + 2**-52, np.inf])).tolist() == [
        -UNITS,
        -UNITS,
        UNITS,
        UNITS,
        UNITS,
    ]


# prices along a path of choices


class Path(Curator):
    """Prescribes what is released, and notes what it was drawn from."""

    def __init__(self, plan, table, seed):
        super().__init__(plan, table)
        self.seed, self.scores, self.counts = seed, [], []

    def _rng(self):
        return np.random.default_rng([self.seed, len(self.scores) + len(self.counts)])

    def _choose(self, step, scores):
        found = scores(self._table)[0]
        self.scores.append((found, 1 / step.scale))
        return self._rng().choice(np.flatnonzero(found != lines.UNAVAILABLE), 1)

    def _count(self, step, statistic, possible):
        counts = statistic(self._table)
        self.counts.append((counts, step.scale))
        return self._rng().geometric(0.3, len(counts))

    def _draw(self, step, distribution):
        raise AssertionError("these mechanisms choose and count")


@pytest.fixture
def few(monkeypatch):
    """Rounds of few candidates, so that a path takes no time; the price doesn't depend
    on how many there are.

    Lines and groups are asked of tiny tables too.
    """
    monkeypatch.setattr(kng, "ENOUGH", 0.1)
    monkeypatch.setattr(table_questions, "RECORDS_PER_CELL", 1e-3)

    def rounds(p):
        return tuple(
            replace(each, n_slopes=3, n_intercepts=9) for each in all_rounds(p)
        )

    all_rounds = lines.rounds
    monkeypatch.setattr(lines, "rounds", rounds)


def path_of(mechanism, table, seed):
    plan = mechanism.plan(table.schema)
    path = Path(plan, table, seed)
    mechanism.ask(plan, path)
    assert path.finished
    return path


def price(mechanism, first, second, seed=0):
    """The most that can be lost with these releases: oscillations of scores, and
    changes of counts by their scale.
    """
    a, b = path_of(mechanism, first, seed), path_of(mechanism, second, seed)
    assert (len(a.scores), len(a.counts)) == (len(b.scores), len(b.counts))
    total = Fraction(0)
    for (left, unit), (right, same) in zip(a.scores, b.scores, strict=True):
        available = left != lines.UNAVAILABLE
        assert unit == same
        assert (available == (right != lines.UNAVAILABLE)).all()
        moved = (left - right)[available]
        total += unit * int(moved.max() - moved.min())
    for (left, scale), (right, same) in zip(a.counts, b.counts, strict=True):
        assert (scale, left.shape) == (same, right.shape)
        total += int(np.abs(left - right).sum()) / scale
    return total


def schema_of(cap=2, public=False):
    x = {"lower": 0.0, "upper": 10.0, "missing": True, "public": public}
    y = {"lower": 1.0, "upper": 1000.0, "scale": "log", "missing": True}
    columns = {"s": {"levels": ["a", "b"], "public": public}, "x": x, "y": y}
    return Schema(records={"max_per_person": cap}, columns=columns)


def frame(rows):
    return pd.DataFrame(rows, columns=["s", "x", "y"])


def others(n):
    rng = np.random.default_rng(5)
    return [
        (str(rng.choice(["a", "b"])), rng.uniform(0, 10), np.exp(rng.uniform(0, 6.9)))
        for _ in range(n)
    ]


MOVES = cases(__file__, "moves")
FEW = {"by": ("s",), "quantiles": ("1/4", "1/2", "9/10")}
MECHANISMS = {
    "residual": lambda **more: KNGResidual(epsilon=1, by=("s",), bins=8, **more),
    "sandwich": lambda **more: KNG(epsilon=1, scheme="sandwich", **FEW, **more),
    "varying": lambda **more: KNG(
        epsilon=1, scheme="stepwise", slopes="varying", **FEW, **more
    ),
}


def tables(schema, before, after, neighbours):
    """Two neighbours; a person has the cap's number of records, all alike; the second
    file is in another order.
    """
    shared, cap = others(7), schema.records.max_per_person
    second = frame(
        [*shared, *([after] * cap if neighbours == "replace-one" else [])]
    ).sample(frac=1, random_state=1)
    return Table(frame([*shared, *[before] * cap]), schema), Table(second, schema)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("which", MECHANISMS)
def test_no_path_costs_more_than_epsilon(which, neighbours, move):
    more = {"n_records": 10} if neighbours == "add-remove" else {}
    mechanism = MECHANISMS[which](neighbours=neighbours, **more)
    found = price(mechanism, *tables(schema_of(), *MOVES[move], neighbours))
    assert Fraction(1, 8) < found <= 1


def tasks_of(made, table, monkeypatch):
    found, fit = [], KNGResidual.fit
    with monkeypatch.context() as patch:
        patch.setattr(
            KNGResidual,
            "fit",
            lambda self, task, curator: (found.append(task), fit(self, task, curator))[
                1
            ],
        )
        path_of(made, table, 0)
    return found


@pytest.mark.parametrize("borne", [0, 1, 2])
def test_what_a_line_does_not_take_goes_to_the_histogram(
    borne, neighbours, monkeypatch
):
    # three predictors are given, and none, one or two borne; nearly all of epsilon goes
    # to the last column
    schema = numeric(4)
    rows = np.random.default_rng(1).random((8, 4))
    more = {"n_records": 9} if neighbours == "add-remove" else {}
    budget = {"x0": 1, "x1": 1, "x2": 1, "x3": 997}
    made = KNGResidual(
        epsilon=1, bins=2, n_candidates=16, budget=budget, neighbours=neighbours, **more
    )
    monkeypatch.setattr(kng, "ENOUGH", 9 * 0.997 / 2 / (borne + 1.5))
    first, second = (
        Table(pd.DataFrame([*rows, *end], columns=list(schema.columns)), schema)
        for end in ([np.zeros(4)], [np.ones(4)] if neighbours == "replace-one" else [])
    )
    assert [task.box.n_predictors for task in tasks_of(made, first, monkeypatch)] == [
        0,
        0,
        0,
        borne,
    ]
    found = price(made, first, second)
    assert Fraction(1, 4) < found <= 1
    if not borne:
        assert found > Fraction(98, 100)
        # the broken twin: a line_share that the histogram gets, and the plan doesn't
        # have
        planned = KNGResidual.steps
        monkeypatch.setattr(kng, "ENOUGH", 1e9)
        monkeypatch.setattr(
            KNGResidual,
            "steps",
            lambda self, part: planned(replace(self, line_share="1/4"), part),
        )
        greedy = replace(made, line_share="3/4")
        with pytest.raises(PlanError, match="more than is left of the price"):
            price(greedy, first, second)
        monkeypatch.setattr(Curator, "_pay", lambda *given: None)
        assert price(greedy, first, second) > 2


def test_a_record_that_changes_its_confidential_stratum_spends_all_of_epsilon(
    monkeypatch,
):
    # it leaves one balanced stratum and enters another: below the median scores go one
    # way, above it the other
    schema = Schema(
        columns={"s": {"levels": ["a", "b"]}, "y": {"lower": 0.0, "upper": 1.0}}
    )
    balanced = [(s, y) for s in "ab" for y in (0.1, 0.4, 0.6, 0.9)]
    first, second = (
        Table(pd.DataFrame([*balanced, moved], columns=["s", "y"]), schema)
        for moved in (("a", 0.0), ("b", 1.0))
    )
    made = KNG(
        epsilon=1,
        by=("s",),
        scheme="stepwise",
        main=("1/2",),
        quantiles=("1/2",),
        slopes="varying",
    )
    assert Fraction(9, 10) < price(made, first, second) <= 1
    # the broken twin: parallel composition as if a record stayed where it is
    whole, alone = (
        ColumnPlan.budget,
        {"neighbours": "add-remove", "confidential": False},
    )
    monkeypatch.setattr(
        ColumnPlan,
        "budget",
        lambda *words, **part: replace(whole(*words, **part), **alone),
    )
    assert price(made, first, second) > Fraction(3, 2)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("which", ["residual", "sandwich"])
def test_strata_that_are_public_cost_epsilon_at_its_full_share(which):
    pair = tables(
        schema_of(public=True), ("a", 9.0, 900.0), ("a", 9.0, 1.5), "replace-one"
    )
    found = price(MECHANISMS[which](), *pair)
    assert Fraction(1, 8) < found <= 1


def test_the_published_sensitivity_costs_fifty_times_epsilon_at_the_99th_percentile():
    schema = Schema(columns={"y": {"lower": 0.0, "upper": 1000.0}})
    first, second = (
        Table(pd.DataFrame({"y": [10.0] * 98 + [500.0, last]}), schema)
        for last in (900.0, 10.0)
    )
    settings = {"quantiles": ("99/100",), "scheme": "plain", "slopes": "varying"}
    assert Fraction(99, 100) < price(KNG(epsilon=1, **settings), first, second) <= 1
    published = PrintedKNG(epsilon=1, **settings)
    assert float(price(published, first, second)) == pytest.approx(
        true_epsilon(published.quantile_plan, 0, 1.0), rel=1e-4
    )
    assert true_epsilon(published.quantile_plan, 0, 1.0) == pytest.approx(50)


# candidate sets, non-crossing


def test_between_a_line_and_itself_there_is_that_line():
    regression = regression_of(np.zeros(0), np.zeros((0, 1)), 0.0, 9.7)
    fitter, line = Fitter(), np.array([5.0, 2.5])
    step = fitter.choice(budget_of(1), "line", TAUS[2], 1, Fraction(1))
    candidates, curator = (
        fitter.beside(regression, line, slopes=True),
        Anything(np.random.default_rng(0)),
    )
    assert (
        fitter.choose(
            regression,
            replace(candidates, floor=line, ceiling=line),
            TAUS[2],
            step,
            curator,
        )
        == line
    ).all()


# what is refused is public


def test_bounds_without_width_on_the_scale_are_refused_before_anything_is_spent():
    high = 1e100
    schema = Schema(
        columns={
            "y": {"lower": float(np.nextafter(high, 0)), "upper": high, "scale": "log"}
        }
    )
    refuses("one and the same number", lambda: KNGResidual(epsilon=1).columns(schema))


def test_tables_too_large_for_whole_numbers_are_refused(monkeypatch):
    monkeypatch.setattr(column_synthesis, "MOST_RECORDS", 8)
    table = Table(frame(others(9)), schema_of())
    for mechanism in (KNGResidual(epsilon=1), KNG(epsilon=1, quantiles=("1/2",))):
        refuses(
            "at most 8 records", mechanism.release, table, rng=np.random.default_rng(0)
        )


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_strata_without_records_release_as_many_numbers():
    shapes = set()
    for stratum in ("a", "b"):
        table = Table(frame([(stratum, 1.0, 2.0)] * 6), schema_of())
        blocks = record(
            MECHANISMS["residual"](), table, 1, RandomBits(np.random.default_rng(0))
        )
        shapes.add(tuple(block.shape for block in blocks))
    assert len(shapes) == 1
