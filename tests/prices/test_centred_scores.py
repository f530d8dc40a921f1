"""What centred scores cost, by enumeration: what one record adds is a function of that
record to the bit, lies in its ball, and no pair of neighbouring tables of three records
is told apart by more than the price (``docs/proofs/scores.md``).
"""

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, product

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.raise_op import assert_op
from scipy import stats
from small_models import written
from tables import with_cap

from pdips import Schema, Scores, Table
from pdips.audit.path_loss import laplace_rho
from pdips.posterior.columns import record_values
from pdips.privacy.loss import largest_rho
from pdips.privacy.sensitivity import Sensitivity
from pdips.scores import centred_questions
from pdips.scores.centred_questions import (
    LENGTHS,
    MOST_CENTRED,
    NAMES,
    ROUNDED,
    CentredQuestions,
    RoundTotals,
    blocks_of,
    counted_lengths,
    points_of,
)
from pdips.scores.centring import COUNTED, KINDS, Centring
from pdips.scores.first_search import kit_of
from pdips.scores.inner_points import AtPoints
from pdips.scores.record_score import STEPS
from pdips.scores.references import length_edges
from pdips.scores.scores import CELLS, RECORDS

DELTAS = {"pure": None, "zcdp": "1e-6"}
"""For each kind of loss the delta that chooses it."""

CAPS = (1, 2)
GROUP = {"levels": ["a", "b"]}


@written
def logit(data):
    """A risk in each group."""
    risk = pm.Normal("risk", 0, 2, shape=2)
    pm.Bernoulli("y", logit_p=risk[data["g"]], observed=data["y"])


@written
def normal(data):
    """A mean in each group."""
    mean = pm.Normal("mean", 0, 2, shape=2)
    pm.Normal("y", mean[data["g"]], 1, observed=data["y"])


@written
def count(data):
    """A rate in each group."""
    rate = pm.Normal("rate", 0, 1, shape=2)
    pm.Poisson("y", pt.exp(rate[data["g"]]), observed=data["y"])


MODELS = {
    "logit": (logit, {"levels": [0, 1]}, (0, 1)),
    "normal": (normal, {"lower": -4, "upper": 4}, (-4.0, 0.0, 4.0)),
    "count": (count, {"lower": 0, "upper": 4, "integer": True}, (0, 1, 4)),
}
"""Each with its outcome, and the values that records have."""


@cache
def settled(name, kind, neighbours):
    """A mechanism, its schema at a cap of one, and points of outcomes."""
    build, outcome, _ = MODELS[name]
    schema = Schema(columns={"g": GROUP, "y": outcome})
    # how many records there are is protected under add-remove, and so are sets' lengths
    made = Scores(epsilon=1, delta=DELTAS[kind], neighbours=neighbours, model=build)
    space = made.space(schema)
    return made, schema, space, points_of(space)


def centrings(norm):
    """Places and whitenings, near and far; radii at which all records are pulled in,
    some, and none.
    """
    turned = np.random.default_rng(2).normal(size=(2, 2))
    given = [
        (0.0, np.eye(2), 1e-3, 50.0),
        (0.0, np.eye(2), 50.0, 1e-4),
        (0.0, turned, 0.4, 0.3),
        (1.5, np.eye(2), 0.4, 50.0),
        (1.5, turned, 1e-3, 1e-4),
        (-30.0, turned, 1e-3, 1e-4),
    ]
    return [
        Centring(np.full(2, place), whitening, radius, curvature_radius, norm)
        for place, whitening, radius, curvature_radius in given
    ]


def table_of(records, schema):
    columns = pd.DataFrame([*records], columns=[*schema.columns])
    return Table(columns.assign(g=columns["g"].map(dict(enumerate("ab")))), schema)


def totals_of(points, at, table):
    totals = RoundTotals(points, at, 10.0)
    return {kind: totals.of(table, kind) for kind in KINDS}


def added(points, at, table, expected=10.0):
    """What each record adds to each sum, in whole steps."""
    blocks = [at.of(block) for block in blocks_of(points, at, table, expected)]
    return {
        kind: np.concatenate([at.whole(getattr(each, kind), kind) for each in blocks])
        for kind in KINDS
    }


# ---- (a) a function of one record, to the bit ----


@written
def logit_line(data):
    b = pm.Normal("b", 0, 2, shape=2)
    pm.Bernoulli("y", logit_p=b[0] + b[1] * data["x"], observed=data["y"])


@written
def normal_line(data):
    b = pm.Normal("b", 0, 2, shape=2)
    mean = b[0] + b[1] * data["x"]
    pm.Normal("y", mean, pm.HalfNormal("sd", 2), observed=pt.log(data["y"]))


@written
def count_line(data):
    b = pm.Normal("b", 0, 1, shape=2)
    rate = pt.exp(b[0] + b[1] * data["x"])
    pm.NegativeBinomial("y", rate, pm.HalfNormal("size", 3), observed=data["y"])


LINES = {
    "logit": (logit_line, {"levels": [0, 1]}),
    "normal": (normal_line, {"lower": 0.1, "upper": 20}),
    "count": (count_line, {"lower": 0, "upper": 8, "integer": True}),
}


@cache
def drawn(name, n=41):
    """Points of a model on a line, and a table of records no two of which are alike."""
    build, outcome = LINES[name]
    schema = Schema(columns={"x": {"lower": -3, "upper": 3}, "y": outcome})
    rng = np.random.default_rng(5)
    x = rng.uniform(-3, 3, n)
    y = rng.uniform(0.1, 20, n) if name == "normal" else rng.integers(0, 2, n)
    space = Scores(epsilon=1, model=build).space(schema)
    return points_of(space), Table(pd.DataFrame({"x": x, "y": y}), schema)


def line_centring(points, norm):
    d = points.law.space.n_parameters
    rng = np.random.default_rng(7)
    return Centring(rng.normal(size=d) / 3, rng.normal(size=(d, d)), 0.9, 0.8, norm)


def rows_of(table, rows):
    return Table(table.frame.iloc[rows].reset_index(drop=True), table.schema)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("name", LINES)
def test_what_a_record_adds_is_its_own_alone_in_company_in_any_order_and_block(
    name, norm, monkeypatch
):
    points, table = drawn(name)
    at = line_centring(points, norm)
    n = table.n_records
    whole = added(points, at, table)
    for kind, each in whole.items():
        # of levels nothing lies far out, and of numbers not all does
        assert np.abs(each).any(axis=1).all() or kind in COUNTED
    for kind in COUNTED:
        assert whole[kind].any() == (name != "logit")
    alone = [added(points, at, rows_of(table, [row])) for row in range(n)]
    order = np.random.default_rng(0).permutation(n)
    shuffled = added(points, at, rows_of(table, order))
    monkeypatch.setattr(centred_questions, "BLOCK", 7)
    in_blocks = added(points, at, table)
    for kind in KINDS:
        together = whole[kind]
        assert np.array_equal(np.concatenate([a[kind] for a in alone]), together)
        assert np.array_equal(shuffled[kind], together[order])
        assert np.array_equal(in_blocks[kind], together)
        total = totals_of(points, at, table)[kind]
        assert np.array_equal(total, together.sum(axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_what_a_record_adds_is_its_own_in_compiled_code(name):
    points, table = drawn(name)
    at = line_centring(points, "l2")
    whole = added(points, at, table, 1e6)
    turned = added(points, at, rows_of(table, np.arange(table.n_records)[::-1]), 1e6)
    alone = added(points, at, rows_of(table, [3]), 1e6)
    for kind in KINDS:
        assert np.array_equal(turned[kind][::-1], whole[kind])
        assert np.array_equal(alone[kind][0], whole[kind][3])


@pytest.mark.parametrize("name", LINES)
def test_not_yet_whole_steps_are_the_same_doubles(name):
    # so that no bit is left to a platform's way with arrays of several records
    points, table = drawn(name)
    at = line_centring(points, "l2")
    values = record_values(table)
    points.given(at.place)
    matrices = points.matrices(values)
    whole = at.of(points.split(matrices))
    for row in range(table.n_records):
        one = at.of(points.split(matrices[row : row + 1]))
        for kind in KINDS:
            assert np.array_equal(getattr(one, kind)[0], getattr(whole, kind)[row])


@written
def beside_the_largest(data):
    """What is observed of a record differs by the largest one in the tenth digit."""
    mean = pm.Normal("a", 0, 2) + pm.Normal("b", 0, 2) * data["x"]
    pm.Normal("y", mean, 1.0, observed=data["y"] + 4e-10 * data["y"].max())


@written
def fails_for_one(data):
    """A transformation that one value makes fail."""
    mean = pm.Normal("a", 0, 2) + pm.Normal("b", 0, 2) * data["x"]
    fine = pt.all(pt.abs(data["y"] - 1.2345) > 1e-9)
    pm.Normal("y", mean, 1.0, observed=2 * assert_op(data["y"], fine))


LINE = Schema(
    columns={"x": {"lower": -2, "upper": 2}, "y": {"lower": -10, "upper": 10}}
)


def line_table(x, y):
    return Table(pd.DataFrame({"x": x, "y": y}), LINE)


def test_an_observed_transformation_reads_one_record_and_fails_for_it_alone():
    at = Centring(np.zeros(2), np.eye(2), 2.0, 3.0, "l2")
    points = points_of(Scores(epsilon=1, model=beside_the_largest).space(LINE))
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, 2_000)
    y = rng.normal(-2, 0.1, 2_000)
    found = [added(points, at, line_table(x, [*y[1:], last])) for last in (-10.0, 10.0)]
    assert np.array_equal(found[0]["scores"][:-1], found[1]["scores"][:-1])
    # the broken twin: the column as a whole
    values = record_values(line_table(x, [*y[1:], -10.0]))
    moved = record_values(line_table(x, [*y[1:], 10.0]))
    law = points.law
    assert (law.observed(values)["y"] != law.observed(moved)["y"])[:-1].any()

    points = points_of(Scores(epsilon=1, model=fails_for_one).space(LINE))
    found = added(points, at, line_table([0.5, 0.5, 0.5], [1.0, 1.2345, -1.0]))
    assert found["scores"].any(axis=1).tolist() == [True, False, True]


@written
def shifted(data):
    """A count that begins at 1, observed less 1."""
    rate = pt.exp(pm.Normal("a", 0, 1) + pm.Normal("b", 0, 1) * data["x"])
    pm.Poisson("y", rate, observed=data["y"] - 1)


def test_points_of_a_transformed_count_are_what_the_model_observes():
    schema = Schema(
        columns={
            "x": {"lower": -2, "upper": 2},
            "y": {"lower": 1, "upper": 9, "integer": True},
        }
    )
    points = points_of(Scores(epsilon=1, model=shifted).space(schema))
    assert points.values["y"].min() <= 0
    values = {"x": np.array([-1.0, 0.3]), "y": np.array([1, 4])}
    points.given(np.array([0.2, 0.1]))
    at = points.split(points.matrices(values))
    # scores have mean 0 at the parameters at which they are taken
    mean = (at.weights[..., None] * at.scores[:, 1:]).sum(axis=1)
    assert np.abs(mean).max() < 1e-6


# ---- (b) in the ball ----


def made_up(rng, n, n_points, d, scale=1.0):
    """Scores of records at points, and what the points weigh."""
    weights = rng.dirichlet(np.full(n_points, 0.5), size=n)
    scores = scale * rng.normal(size=(n, n_points + 1, d))
    shape, above = rng.choice([0.0, 0.3, 1.0], size=(2, n, n_points + 1))
    return AtPoints(scores, weights, np.zeros((n, n_points)), shape, above)


def length(steps, norm):
    steps = steps.astype(object)  # of any size
    return np.abs(steps).sum(axis=1) if norm == "l1" else (steps * steps).sum(axis=1)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("d", [1, 3, 30])
def test_no_record_leaves_a_ball(d, norm):
    rng = np.random.default_rng(d)
    most = STEPS if norm == "l1" else STEPS**2
    whitening = rng.normal(size=(d, d))
    largest = 0.0
    for scale in (1e-300, 1e-3, 1.0, 1e3, 1e200, 1e300):
        at = made_up(rng, 40, 6, d, scale)
        for row, bad in enumerate((np.nan, np.inf, -np.inf)):
            at.scores[row, 0, 0] = bad
            at.scores[row + 3, 2, -1] = bad
        for radii in ((1e-3, 1e-3), (1.0, 0.2), (2.0, 50.0), (np.nan, 1.0), (0, 0)):
            centring = Centring(np.zeros(d), whitening, *map(float, radii), norm)
            found = centring.of(at)
            for kind in KINDS:
                with np.errstate(all="ignore"):
                    steps = centring.whole(getattr(found, kind), kind)
                sizes = length(steps, norm)
                assert max(sizes) <= most
                largest = max(largest, max(sizes) / most)
                if kind in ("scores", "squares"):
                    assert not steps[:3].any()
    assert largest > 0.99


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_what_would_lie_outside_of_a_ball_counts_as_nothing(norm):
    """Whatever floating-point numbers say: the price rests on whole steps alone."""
    centring = Centring(np.zeros(2), np.eye(2), 1.0, 1.0, norm)
    step = centring.unit("scores")
    outside = [[1 + step, 0], [0, -1 - step], [1, 1], [1e9, 0], [1e300, -1e300]]
    for values in (*outside, [np.nan, 0.5]):
        assert not centring.whole(np.array([values]), "scores").any()
    on_it = centring.whole(np.array([[-1.0, 0.0]]), "scores")
    np.testing.assert_array_equal(on_it, [[-STEPS, 0]])


# ---- (e) semidefinite blocks ----


def semidefinite(rng, d):
    """Curvatures and squares of records that point in few directions and in many."""
    parts = []
    for n_points in (1, 2, 40):
        at = made_up(rng, 30, n_points, d)
        at.scores[:10] *= np.eye(d)[rng.integers(d, size=10)][:, None]
        at.scores[10:20] *= 10.0 ** rng.integers(-3, 4, size=(10, 1, d))
        parts.append(at)
    return parts


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("d", [1, 2, 5, MOST_CENTRED])
def test_semidefinite_blocks_are_apart_by_two_squares_and_what_rounding_takes(d, norm):
    rng = np.random.default_rng(d)
    radii = {"curvature": (1.0, 1e-6), "squares": (1e-6, 1.0)}
    n_entries = d * (d + 1) // 2
    # as in the proof: truncation moves a vector by less than the root of its length
    taken = 2 * np.sqrt(n_entries) * STEPS + n_entries
    assert 2 * taken <= 2 * STEPS**2 * (ROUNDED - 1)
    for kind, given in radii.items():
        centring = Centring(np.zeros(d), np.eye(d), *given, norm)
        steps = [
            centring.whole(getattr(centring.of(at), kind), kind)
            for at in semidefinite(rng, d)
        ]
        steps = np.concatenate(steps)
        inner = (steps.astype(np.float64) @ steps.T.astype(np.float64)).min()
        assert inner >= -taken
        squares = (steps * steps).sum(axis=1)
        apart = squares[:, None] + squares - 2 * (steps @ steps.T)
        assert apart.max() <= 2 * STEPS**2 * ROUNDED
        if d > 1:  # records that point in directions at right angles
            assert apart.max() > 1.9 * STEPS**2
        # the broken twin: signed blocks
        signed = np.concatenate([steps, -steps])
        squares = (signed * signed).sum(axis=1)
        apart = squares[:, None] + squares - 2 * (signed @ signed.T)
        assert apart.max() > 3.9 * STEPS**2


@pytest.mark.parametrize("d", [2, 5, MOST_CENTRED])
def test_the_price_of_semidefinite_blocks_holds_what_rounding_takes(d):
    schema = Schema(columns={"y": {"lower": 0, "upper": 1}})
    questions = CentredQuestions(
        schema=schema,
        neighbours="replace-one",
        law="gaussian",
        n_rounds=2,
        n_parameters=d,
        n_columns=1,
        by_lengths=True,
        by_shape=True,
    )
    n_entries = d * (d + 1) // 2
    taken = 2 * np.sqrt(n_entries) * STEPS + n_entries
    stated = [
        step.sensitivity.l2_squared
        for step in questions.rounds(Fraction(1))
        if "curvature" in step.name or "squares" in step.name
    ]
    assert len(stated) == 3
    assert min(stated) >= 2 * STEPS**2 + 2 * taken


# ---- (c) every pair of neighbouring tables of three records ----


def neighbouring(records, neighbours, cap, n):
    """Yield neighbouring tables as sorted records: a person of up to ``cap`` records
    among others moves or leaves.
    """
    persons = [
        each
        for size in range(cap + 1)
        for each in combinations_with_replacement(records, size)
    ]
    for others in combinations_with_replacement(records, n - cap):
        for one, other in product(persons, repeat=2):
            sizes = len(one), len(other)
            replaced = sizes[0] == sizes[1]
            if replaced if neighbours == "replace-one" else min(sizes) == 0:
                yield tuple(sorted(others + one)), tuple(sorted(others + other))


@cache
def asked_of(name, norm, reference, records, totals=totals_of):
    """The true numbers that all steps ask of one table at one of the references, by the
    step's name.
    """
    _, schema, space, points = settled(name, "pure", "replace-one")
    at = centrings(norm)[reference]
    table = table_of(records, schema)
    numbers = {
        RECORDS: np.array([len(records)]),
        CELLS: kit_of(space).cells.count(table),
    }
    for step, each in totals(points, at, table).items():
        numbers[NAMES[step]] = each
    edges = length_edges(2, norm) / 3
    numbers[LENGTHS] = counted_lengths(points, at, edges, 10.0, table)
    return numbers


def largest_loss(step, apart):
    """The largest loss of a step over differences, one a row: epsilon, or rho."""
    if step.law == "laplace":
        return int(np.abs(apart).sum(axis=1).max()) / step.scale
    return Fraction(int((apart * apart).sum(axis=1).max())) / (2 * step.variance)


def largest_rho_of(step, apart):
    """The largest rho of a step with Laplace noise."""
    rate = 1 / float(step.scale)
    of_number = np.array([laplace_rho(rate, m) for m in np.unique(np.abs(apart))])
    places = np.searchsorted(np.unique(np.abs(apart)), np.abs(apart))
    return float(of_number[places].sum(axis=1).max())


def found_by_step(
    name, kind, neighbours, cap, *, n=3, totals=totals_of, steps=None, only=slice(None)
):
    """For each step the largest loss over all pairs and references in parts of its
    price; and its rho in parts of its rho, where noise is Laplace noise.
    """
    made, schema, space, _ = settled(name, kind, neighbours)
    steps = steps or made.steps(space, with_cap(schema, cap, None))
    records = [*product(range(2), MODELS[name][2])]
    pairs = [*neighbouring(records, neighbours, cap, n)]
    tables = sorted({table for pair in pairs for table in pair})
    number = {table: place for place, table in enumerate(tables)}
    first, second = np.array([[number[each] for each in pair] for pair in pairs]).T
    found = dict.fromkeys((step.name for step in steps), Fraction(0))
    rhos = dict.fromkeys(found, 0.0)
    for reference in range(len(centrings(made.norm)))[only]:
        asked = [
            asked_of(name, made.norm, reference, table, totals) for table in tables
        ]
        for step in steps:
            key = step.name.partition(", round")[0]
            numbers = np.array([each[key] for each in asked])
            apart = numbers[first] - numbers[second]
            lost = largest_loss(step, apart) / step.price
            found[step.name] = max(found[step.name], lost)
            if step.law == "laplace":
                rho = largest_rho_of(step, apart) / float(step.rho)
                rhos[step.name] = max(rhos[step.name], rho)
    return found, rhos, sum(step.price for step in steps)


# What pairs show at least: scores of an outcome whose distribution isn't symmetric have
# no opposite of the same length
SHOWN = {
    "logit": dict.fromkeys(KINDS, 1),
    "normal": dict.fromkeys(KINDS, 1),
    "count": {
        "scores": 0.8,
        "curvature": 1,
        "shape": 0.99,
        "above": 0.99,
        "squares": 0.99,
    },
}
CLOSE = Fraction(1, 10**5) + Fraction(1, 2**10)


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("kind", DELTAS)
@pytest.mark.parametrize("name", MODELS)
def test_no_person_loses_more_than_the_price_and_some_lose_as_much(
    name, kind, neighbours, cap
):
    found, rhos, price = found_by_step(name, kind, neighbours, cap)
    assert all(lost <= 1 for lost in found.values())
    assert all(rho <= 1 + 1e-9 for rho in rhos.values())
    whole = 1 if kind == "pure" else largest_rho(Fraction(1), Fraction(1, 10**6))
    assert price <= whole
    assert found[CELLS] == 1
    for step, lost in found.items():
        for sums, named in NAMES.items():
            if step.startswith(named):
                assert lost >= SHOWN[name][sums] - CLOSE, step
        if step.startswith(LENGTHS):
            assert lost == 1


# ---- (d) broken twins: each is caught by the same enumeration ----


def with_squares(name, neighbours, cap, kind, squares):
    """The steps where the sums of a kind are priced by another squared length."""
    made, schema, space, _ = settled(name, "zcdp", neighbours)
    schema = with_cap(schema, cap, None)
    priced = Sensitivity.of_record(schema, l1=4 * STEPS, l2_squared=squares)
    return [
        replace(step, sensitivity=priced) if step.name.startswith(NAMES[kind]) else step
        for step in made.steps(space, schema)
    ]


def of_sums(found, kind):
    return max(lost for step, lost in found.items() if step.startswith(NAMES[kind]))


@pytest.mark.parametrize("cap", CAPS)
def test_signed_scores_at_the_price_of_semidefinite_blocks_are_caught(cap):
    twin = with_squares("normal", "replace-one", cap, "scores", 2 * STEPS**2)
    found, *_ = found_by_step("normal", "zcdp", "replace-one", cap, steps=twin)
    assert float(of_sums(found, "scores")) == pytest.approx(2, rel=1e-4)
    # one square for a block of which one leaves and one comes
    twin = with_squares("normal", "replace-one", cap, "curvature", STEPS**2)
    found, *_ = found_by_step("normal", "zcdp", "replace-one", cap, steps=twin)
    assert float(of_sums(found, "curvature")) == pytest.approx(2, rel=1e-4)


@pytest.mark.parametrize("kind", DELTAS)
def test_a_forgotten_cap_is_caught(kind, neighbours):
    made, schema, space, _ = settled("normal", kind, neighbours)
    twin = made.steps(space, schema)
    found, *_ = found_by_step("normal", kind, neighbours, 2, steps=twin)
    times = 2 if kind == "pure" else 4
    for sums in KINDS:
        assert float(of_sums(found, sums)) == pytest.approx(times, rel=2e-3)


def test_curvature_of_a_signed_weight_is_caught():
    def signed(points, at, table):
        totals = totals_of(points, at, table)
        blocks = list(blocks_of(points, at, table, 10.0))
        sign = np.concatenate(
            [np.sign(each.scores[:, 0].sum(axis=1)) for each in blocks]
        )
        curvature = np.concatenate([at.of(each).curvature for each in blocks])
        whole = at.whole(sign[:, None] * curvature, "curvature")
        return totals | {"curvature": whole.sum(axis=0)}

    found, *_ = found_by_step("normal", "zcdp", "replace-one", 1, totals=signed)
    assert float(of_sums(found, "curvature")) == pytest.approx(2, rel=2e-3)
    assert of_sums(found, "scores") <= 1


def test_a_centring_by_the_mean_of_all_records_is_caught():
    def by_all(points, at, table):
        [block] = blocks_of(points, at, table, 10.0)
        apart = block.scores - block.scores[:, :1].mean(axis=0)
        weights = np.zeros_like(block.weights)
        weights[:, 0] = 1e-9  # nothing else is taken away
        moved = AtPoints(apart, weights, block.quantiles, block.shape, block.above)
        return at.of(moved).total()

    first = slice(1)
    found, *_ = found_by_step(
        "normal", "pure", "replace-one", 1, n=4, totals=by_all, only=first
    )
    assert of_sums(found, "scores") > 1.2
    honest, *_ = found_by_step("normal", "pure", "replace-one", 1, n=4, only=first)
    assert of_sums(honest, "scores") <= 1


@pytest.mark.parametrize("counted", COUNTED)
@pytest.mark.parametrize("kind", DELTAS)
def test_a_signed_number_at_the_price_of_one_that_is_not_negative_is_caught(
    kind, neighbours, counted
):
    def signed(points, at, table):
        totals = totals_of(points, at, table)
        blocks = blocks_of(points, at, table, 10.0)
        own = np.concatenate([getattr(at.of(each), counted) for each in blocks])
        return totals | {counted: at.whole(2 * own - 1, counted).sum(axis=0)}

    found, *_ = found_by_step("normal", kind, neighbours, 1, totals=signed)
    # who is replaced may move it from one end to the other
    most = 1 if neighbours == "add-remove" else 2 if kind == "pure" else 4
    assert float(of_sums(found, counted)) == pytest.approx(most, rel=1e-6)


def test_a_shape_judged_by_the_spread_of_the_table_is_caught():
    def by_all(points, at, table):
        own = table.frame["y"].to_numpy()
        apart = np.abs(own - own.mean()) / max(own.std(), 1e-9)
        shape = ((apart < 0.75) | (apart > 2.5)).astype(float)[:, None]
        totals = totals_of(points, at, table)
        return totals | {"shape": at.whole(shape, "shape").sum(axis=0)}

    twin, *_ = found_by_step(
        "normal", "pure", "replace-one", 1, n=4, totals=by_all, only=slice(1)
    )
    assert of_sums(twin, "shape") == 3
    honest, *_ = found_by_step("normal", "pure", "replace-one", 1)
    assert of_sums(honest, "shape") == 1


def test_a_median_of_the_table_is_caught():
    def by_all(points, at, table):
        own = table.frame["y"].to_numpy()
        above = (own > np.median(own)).astype(float)[:, None]
        totals = totals_of(points, at, table)
        return totals | {"above": at.whole(above, "above").sum(axis=0)}

    # without a record of the middle, as many lie above it whoever stands there
    twin, *_ = found_by_step(
        "normal", "pure", "add-remove", 1, n=4, totals=by_all, only=slice(1)
    )
    assert of_sums(twin, "above") > 1
    honest, *_ = found_by_step("normal", "pure", "add-remove", 1)
    assert of_sums(honest, "above") == 1


@pytest.mark.parametrize("name", ["normal", "count"])
def test_half_of_the_outcomes_are_above_their_median_whatever_the_covariates(name):
    """The broken twin counts a value of which one half lies above, whole."""
    points, table = drawn(name)
    at = line_centring(points, "l2")
    [block] = blocks_of(points, at, table, 10.0)
    mean = (block.weights * block.above[:, 1:]).sum(axis=1)
    assert mean == pytest.approx(np.full(len(mean), 0.5), abs=1e-9)
    if name == "count":
        whole = (block.weights * (block.above[:, 1:] > 0)).sum(axis=1)
        assert np.ptp(whole) > 0.02


@pytest.mark.parametrize("name", ["normal", "count"])
def test_the_shape_has_the_same_mean_whatever_the_covariates(name):
    """So that no law of theirs enters what is expected of it."""
    points, table = drawn(name)
    at = line_centring(points, "l2")
    [block] = blocks_of(points, at, table, 10.0)
    mean = (block.weights * block.shape[:, 1:]).sum(axis=1)
    law = stats.norm
    expected = 2 * law.cdf(-1.5)
    if name == "normal":
        expected = 2 * law.cdf(-2.5) + 2 * law.cdf(0.75) - 1
    assert mean == pytest.approx(np.full(len(mean), expected), abs=1e-9)
    if name == "count":
        # the broken twin: values that lie out by their own distribution function
        below = np.cumsum(block.weights, axis=1) - block.weights / 2
        out = (below < law.cdf(-1.5)) | (below > law.cdf(1.5))
        assert np.ptp((block.weights * out).sum(axis=1)) > 0.02


def test_a_record_that_is_counted_is_where_the_model_has_it():
    points, _ = drawn("normal")
    place = np.array([0.4, -0.7, np.log(0.8)])
    points.given(place)
    apart = np.array([-9, -2.6, -2.4, -0.8, -0.7, 0, 0.7, 0.8, 2.4, 2.6, 9])
    x = np.linspace(-1, 1, len(apart))
    y = np.exp(place[0] + place[1] * x + 0.8 * apart)
    block = points.split(points.matrices({"x": x, "y": y}))
    assert block.shape[:, 0].tolist() == [1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    is_sure = apart != 0
    assert (block.above[is_sure, 0] == (apart > 0)[is_sure]).all()
